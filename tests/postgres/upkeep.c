/* Upkeep as only PostgreSQL has it: counts that are folded, days of events, one keeper for all; and what
 * a check says about the schema and the server. */
#include "harness/harness.h"

#include <leasehold.h>

#include <libpq-fe.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define START INT64_C(1768473000000) /* 2026-01-15T10:30:00Z */
#define DAY_MS INT64_C(86400000)

static PGconn *session_open(void)
{
    PGconn *conn = PQconnectdb(test_store());

    if (PQstatus(conn) != CONNECTION_OK)
        FAIL("%s", PQerrorMessage(conn));
    PQclear(PQexec(conn, "SET client_min_messages = error"));
    PQclear(PQexec(conn, "SET application_name = 'the test'"));
    return conn;
}

/* The first row, its columns with a blank between; or the code of what went wrong. Until the next. */
__attribute__((format(printf, 2, 3))) static const char *sql(PGconn *conn, const char *fmt, ...)
{
    static char answer[2000];
    char text[2000];
    size_t used = 0;
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    PGresult *result = PQexec(conn, text);
    answer[0] = '\0';
    if (PQresultStatus(result) == PGRES_TUPLES_OK) {
        for (int i = 0; PQntuples(result) > 0 && i < PQnfields(result); i++)
            used += (size_t)snprintf(answer + used, sizeof answer - used, "%s%s", i ? " " : "",
                                     PQgetvalue(result, 0, i));
    } else if (PQresultStatus(result) != PGRES_COMMAND_OK) {
        (void)snprintf(answer, sizeof answer, "%s %s", PQresultErrorField(result, PG_DIAG_SQLSTATE),
                       PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY));
    }
    PQclear(result);
    return answer;
}

static void set_clock(PGconn *conn, int64_t now)
{
    (void)sql(conn, "SET leasehold.test_now = '%lld'", (long long)now);
}

static PGconn *session_at(int64_t now)
{
    PGconn *conn = session_open();
    set_clock(conn, now);
    return conn;
}

#define UPKEEP "SELECT expired, promoted, folded, more FROM leasehold.upkeep()"

/* ---- counts ---- */

#define COUNTS "SELECT pending, scheduled, cancelled FROM leasehold.queue WHERE queue = 'mail'"

TEST(what_falls_due_is_done_by_one_statement_and_counted)
{
    PGconn *c = session_at(START);
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'due', delay => '1 s')");
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'overdue', expires => '1 s')");
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'later', delay => '1001 ms')");
    EXPECT_STR(sql(c, UPKEEP), "0 0 3 f");
    EXPECT_STR(sql(c, COUNTS), "1 2 0");
    set_clock(c, START + 1000);
    EXPECT_STR(sql(c, UPKEEP), "1 1 2 f");
    EXPECT_STR(sql(c, COUNTS), "1 1 1");
    EXPECT_STR(sql(c, "SELECT reason FROM leasehold.event WHERE job = 2"),
               "EXPIRED: not claimed by 2026-01-15T10:30:01.000Z");
    EXPECT_STR(sql(c, UPKEEP), "0 0 0 f");
    PQfinish(c);
}

TEST(of_two_who_fold_at_once_each_change_is_counted_by_one)
{
    PGconn *a = session_at(START), *b = session_at(START);
    for (int i = 0; i < 3; i++)
        (void)sql(a, "SELECT leasehold.enqueue('mail', 'x')");
    (void)sql(a, "BEGIN");
    EXPECT_STR(sql(a, UPKEEP), "0 0 3 f");
    (void)sql(b, "SELECT leasehold.enqueue('mail', 'x')");
    (void)sql(b, "SELECT leasehold.enqueue('post', 'x')");
    EXPECT_STR(sql(b, UPKEEP), "0 0 0 f"); /* and does not wait */
    (void)sql(a, "COMMIT");
    EXPECT_STR(sql(b, UPKEEP), "0 0 2 f");
    EXPECT_STR(sql(b, COUNTS), "4 0 0");
    EXPECT_STR(sql(b, "SELECT sum(enqueued) FROM leasehold.rollup"), "5");
    PQfinish(a);
    PQfinish(b);
}

TEST(the_counts_of_a_queue_that_somebody_holds_are_folded_later)
{
    PGconn *a = session_at(START), *b = session_at(START);
    (void)sql(a, "SELECT leasehold.enqueue('mail', 'x')");
    (void)sql(a, UPKEEP);
    (void)sql(a, "SELECT leasehold.enqueue('mail', 'x')");
    (void)sql(a, "SELECT leasehold.enqueue('post', 'x')");
    (void)sql(a, "BEGIN");
    (void)sql(a, "SELECT 1 FROM leasehold.queue WHERE queue = 'mail' FOR UPDATE");
    EXPECT_STR(sql(b, UPKEEP), "0 0 1 f");
    EXPECT_STR(sql(b, COUNTS), "1 0 0");
    (void)sql(a, "COMMIT");
    EXPECT_STR(sql(b, UPKEEP), "0 0 1 f");
    EXPECT_STR(sql(b, COUNTS), "2 0 0");
    PQfinish(a);
    PQfinish(b);
}

TEST(a_fold_that_is_rolled_back_has_counted_nothing)
{
    PGconn *c = session_at(START);
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'x')");
    (void)sql(c, "BEGIN");
    EXPECT_STR(sql(c, UPKEEP), "0 0 1 f");
    (void)sql(c, "ROLLBACK");
    EXPECT_STR(sql(c, UPKEEP), "0 0 1 f");
    EXPECT_STR(sql(c, COUNTS), "1 0 0");
    PQfinish(c);
}

TEST(folding_changes_nothing_of_what_is_counted)
{
    PGconn *c = session_at(START);
    for (int i = 0; i < 4; i++)
        (void)sql(c, "SELECT leasehold.enqueue('mail', 'x', max_attempts => 1)");
    set_clock(c, START + 300);
    (void)sql(c, "SELECT leasehold.claim('w', ARRAY['mail'], 3, '1 s')");
    set_clock(c, START + 500);
    (void)sql(c, "SELECT leasehold.complete(1, 1)");
    (void)sql(c, "SELECT leasehold.fail(2, 1, 'no luck')");
    set_clock(c, START + 1300);
    (void)sql(c, "SELECT leasehold.recover()"); /* job 3: its only attempt is spent */
    /* Scheduled, pending, running, completed, failed, cancelled; enqueued, claimed, completed, failed,
     * recovered, ended, waited, run. */
    static const char *const counts =
        "SELECT scheduled, pending, running, completed, failed, cancelled, hour_enqueued, "
        "hour_claimed, hour_completed, hour_failed, hour_recovered, hour_ended, hour_wait_ms, "
        "hour_run_ms FROM leasehold.queues()";
    EXPECT_STR(sql(c, "%s", counts), "0 1 0 1 2 0 4 3 1 2 1 2 900 400");
    (void)sql(c, UPKEEP);
    EXPECT_STR(sql(c, "SELECT count(*) FROM leasehold.delta"), "0");
    EXPECT_STR(sql(c, "%s", counts), "0 1 0 1 2 0 4 3 1 2 1 2 900 400");
    PQfinish(c);
}

TEST(what_a_revoked_lease_holds_back_is_not_promoted_before_it_ends)
{
    PGconn *c = session_at(START);
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'held', delay => '1 s')");
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'free', delay => '1 s')");
    (void)sql(c, "INSERT INTO leasehold.hold SELECT 'mail', 1, 1, leasehold.clock() + '2 s'");
    set_clock(c, START + 1000);
    EXPECT_STR(sql(c, UPKEEP), "0 1 3 f");
    EXPECT_STR(sql(c, "SELECT state FROM leasehold.job WHERE id = 1"), "scheduled");
    set_clock(c, START + 2000);
    EXPECT_STR(sql(c, UPKEEP), "0 1 1 f");
    EXPECT_STR(sql(c, "SELECT count(*) FROM leasehold.hold"), "0");
    PQfinish(c);
}

/* ---- days of events ---- */

static const char *days(PGconn *c)
{
    return sql(c, "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class "
                  "WHERE relname ~ '^event_2026[0-9]{4}$' AND relname < 'event_20260701'");
}

TEST(days_of_events_are_made_ahead_and_dropped_when_they_are_old)
{
    PGconn *c = session_at(START);
    (void)sql(c, UPKEEP);
    EXPECT_STR(days(c), "event_20260115 event_20260116 event_20260117");
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'x', expires => '1 s')");
    set_clock(c, START + 1000);
    (void)sql(c, UPKEEP);
    EXPECT_STR(sql(c, "SELECT count(*) FROM leasehold.event_20260115"), "1");
    set_clock(c, START + 31 * DAY_MS);
    (void)sql(c, UPKEEP);
    EXPECT_STR(days(c), "event_20260115 event_20260116 event_20260117 event_20260215 "
                        "event_20260216 event_20260217");
    EXPECT_STR(sql(c, "SELECT leasehold.prune()"), "1");
    /* 30 days are kept, and of the 16th only the first half is older than that. */
    EXPECT_STR(days(c),
               "event_20260116 event_20260117 event_20260215 event_20260216 event_20260217");
    EXPECT_STR(sql(c, "SELECT count(*) FROM leasehold.event"), "0");
    PQfinish(c);
}

TEST(a_day_that_nobody_made_in_time_stays_in_the_default_partition)
{
    PGconn *c = session_at(START);
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'x', expires => '1 s')");
    set_clock(c, START + 1000);
    (void)sql(c, UPKEEP); /* writes an event before it makes days */
    EXPECT_STR(days(c), "event_20260116 event_20260117");
    EXPECT_STR(sql(c, "SELECT count(*) FROM leasehold.event_default"), "1");
    set_clock(c, START + 31 * DAY_MS);
    EXPECT_STR(sql(c, "SELECT leasehold.prune()"), "1");
    EXPECT_STR(sql(c, "SELECT count(*) FROM leasehold.event"), "0");
    PQfinish(c);
}

TEST(a_prune_by_age_takes_the_events_of_half_a_day)
{
    PGconn *c = session_at(START);
    (void)sql(c, UPKEEP);
    for (int i = 0; i < 2; i++) {
        (void)sql(c, "SELECT leasehold.enqueue('mail', 'x', expires => '1 s')");
        set_clock(c, START + (i + 1) * 1000);
        (void)sql(c, UPKEEP);
    }
    EXPECT_STR(sql(c, "SELECT leasehold.prune('1 s')"), "1");
    EXPECT_STR(sql(c, "SELECT leasehold.prune('0')"), "LH003 age is 0 ms: 1ms to 3650d is allowed");
    EXPECT_STR(sql(c, "SELECT count(*) FROM leasehold.event_20260115"), "2");
    set_clock(c, START + 2500);
    EXPECT_STR(sql(c, "SELECT leasehold.prune('1 s')"), "0");
    EXPECT_STR(sql(c, "SELECT count(*) FROM leasehold.event_20260115"), "1");
    PQfinish(c);
}

TEST(whoever_writes_events_does_not_wait_for_days_to_be_made_or_dropped)
{
    PGconn *a = session_at(START), *b = session_at(START);
    (void)sql(a, UPKEEP);
    (void)sql(a, "SELECT leasehold.enqueue('mail', 'x')");
    (void)sql(a, "BEGIN");
    (void)sql(a, "SELECT leasehold.cancel(1)"); /* an event that is not committed */
    set_clock(b, START + 40 * DAY_MS);
    EXPECT_STR(sql(b, "SELECT leasehold.prune()"), "0"); /* leaves what it cannot have */
    EXPECT_CONTAINS(days(b), "event_20260115");
    EXPECT_STR(sql(b, "SHOW lock_timeout"), "0");
    (void)sql(a, "COMMIT");
    (void)sql(b, "SELECT leasehold.prune()");
    EXPECT_STR(days(b), "");
    PQfinish(a);
    PQfinish(b);
}

/* ---- one keeper for all ---- */

#define PEEK(keeper_) "SELECT something, next_ms FROM leasehold.peek('{}', " keeper_ ")"
#define ON_DUTY(keeper_) "SELECT on_duty FROM leasehold.peek('{}', " keeper_ ")"

TEST(of_all_who_wait_one_is_on_duty)
{
    PGconn *c = session_at(START);
    EXPECT_STR(sql(c, PEEK("'a'")), "f ");
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'x', delay => '1 s')");
    EXPECT_STR(sql(c, PEEK("'a'")), "f 1000");
    EXPECT_STR(sql(c, PEEK("'b'")), "f ");
    set_clock(c, START + 1000);
    EXPECT_STR(sql(c, PEEK("'a'")), "t ");
    EXPECT_STR(sql(c, PEEK("'b'")), "f ");
    EXPECT_STR(sql(c, PEEK("NULL")), "t "); /* who does not wait for it is told as it is */
    PQfinish(c);
}

TEST(who_is_on_duty_and_leaves_things_lying_is_relieved)
{
    PGconn *c = session_at(START);
    (void)sql(c, PEEK("'a'"));
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'x', delay => '1 s')");
    set_clock(c, START + 1900);
    EXPECT_STR(sql(c, ON_DUTY("'a'")), "t"); /* heard of */
    set_clock(c, START + 4800);
    EXPECT_STR(sql(c, ON_DUTY("'a'")), "t"); /* does not count: the job has been due for long */
    EXPECT_STR(sql(c, ON_DUTY("'b'")), "f");
    set_clock(c, START + 4900);
    EXPECT_STR(sql(c, ON_DUTY("'a'")), "t"); /* while nobody else asks */
    EXPECT_STR(sql(c, PEEK("'b'")), "t ");
    EXPECT_STR(sql(c, ON_DUTY("'a'")), "f");
    PQfinish(c);
}

TEST(the_duty_passes_on_when_its_keeper_is_not_heard_of)
{
    PGconn *c = session_at(START);
    (void)sql(c, PEEK("'a'"));
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'x', delay => '9 s')");
    set_clock(c, START + 2000);
    (void)sql(c, PEEK("'a'")); /* heard of */
    set_clock(c, START + 4999);
    EXPECT_STR(sql(c, PEEK("'b'")), "f ");
    set_clock(c, START + 5000);
    EXPECT_STR(sql(c, PEEK("'b'")), "f 4000");
    EXPECT_STR(sql(c, PEEK("'a'")), "f ");
    PQfinish(c);
}

TEST(who_is_not_on_duty_is_told_to_look_again_before_long)
{
    lh_store *store = NULL;
    lh_upkeep done;
    EXPECT_OK(lh_open(test_store(), NULL, &store));
    PGconn *c = session_at(lh_now(store));
    (void)sql(c, PEEK("'a'"));
    /* Until it listens, it looks after the store itself. */
    for (int i = 0; i < 20; i++) {
        EXPECT_OK(lh_maintain(store, &(lh_maintain_opts){.wait_ms = 100}, &done));
        (void)sql(c, PEEK("'a'"));
        if (done.next_ms <= 2500)
            break;
    }
    EXPECT(done.next_ms <= 2500);
    PQfinish(c);
    lh_close(store);
}

TEST(who_closes_its_handle_passes_the_duty_on)
{
    lh_store *store = NULL;
    EXPECT_OK(lh_open(test_store(), NULL, &store));
    EXPECT_OK(lh_maintain(store, &(lh_maintain_opts){.wait_ms = 1}, NULL));
    PGconn *c = session_at(lh_now(store));
    EXPECT_STR(sql(c, ON_DUTY("'b'")), "f");
    (void)sql(c, "LISTEN leasehold");
    lh_close(store);
    EXPECT_STR(sql(c, ON_DUTY("'b'")), "t");
    (void)PQconsumeInput(c);
    PGnotify *told = PQnotifies(c);
    EXPECT(told != NULL);
    EXPECT_STR(told->extra, "-");
    PQfreemem(told);
    PQfinish(c);
}

/* Workers that are heard of. */
#define ADD_WORKERS                                                                     \
    "INSERT INTO leasehold.worker(id, label, interval_ms, multiplier, registered_at, "  \
    "last_heartbeat_at, silent_at) SELECT 'w-' || n, 'w', 1000, 3, leasehold.clock(), " \
    "leasehold.clock(), leasehold.clock() + interval '3 s' FROM generate_series(%d, %d) n"

TEST(who_is_not_on_duty_looks_the_less_often_the_more_they_are)
{
    static const char spare[] = "SELECT spare_ms BETWEEN 0.75 * %d AND 1.25 * %d "
                                "FROM leasehold.peek('{}', 'b')";
    PGconn *c = session_at(START);
    (void)sql(c, PEEK("'a'"));
    EXPECT_STR(sql(c, "SELECT spare_ms FROM leasehold.peek('{}', 'a')"), "0");
    EXPECT_STR(sql(c, spare, 2000, 2000), "t");
    (void)sql(c, ADD_WORKERS, 1, 10);
    EXPECT_STR(sql(c, spare, 5000, 5000), "t");
    (void)sql(c, ADD_WORKERS, 11, 100);
    EXPECT_STR(sql(c, spare, 20000, 20000), "t");
    /* Not all at once. */
    EXPECT_STR(sql(c, "SELECT count(DISTINCT spare_ms) > 1 FROM generate_series(1, 20) n, "
                      "LATERAL leasehold.peek('{}', 'b' || n)"),
               "t");
    PQfinish(c);
}

TEST(a_claimer_beside_a_keeper_looks_at_its_queues_only)
{
    static const char beside[] = "SELECT something, next_ms FROM leasehold.peek('{mail}', 'b')";
    PGconn *c = session_at(START);
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'x', delay => '1 s')");
    EXPECT_STR(sql(c, beside), "f 1000"); /* nobody is on duty */
    (void)sql(c, PEEK("'a'"));
    EXPECT_STR(sql(c, beside), "f ");
    EXPECT_STR(sql(c, "SELECT something, next_ms FROM leasehold.peek('{mail}', NULL)"), "f 1000");
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'x')");
    EXPECT_STR(sql(c, beside), "t ");
    PQfinish(c);
}

TEST(a_clock_that_is_set_back_does_not_leave_the_duty_to_nobody)
{
    PGconn *c = session_at(START + DAY_MS);
    (void)sql(c, PEEK("'a'"));
    set_clock(c, START);
    (void)sql(c, "SELECT leasehold.enqueue('mail', 'x', delay => '1 s')");
    EXPECT_STR(sql(c, PEEK("'b'")), "f 1000");
    PQfinish(c);
}

TEST(counts_that_pile_up_are_a_thing_to_do)
{
    PGconn *c = session_at(START);
    (void)sql(c, "INSERT INTO leasehold.job(queue) SELECT 'mail' FROM generate_series(1, 5001)");
    EXPECT_STR(sql(c, PEEK("'a'")), "t ");
    EXPECT_STR(sql(c, PEEK("'b'")), "f ");
    EXPECT_STR(sql(c, UPKEEP), "0 0 5001 f");
    EXPECT_STR(sql(c, PEEK("'a'")), "f ");
    EXPECT_STR(sql(c, COUNTS), "5001 0 0");
    PQfinish(c);
}

/* ---- check ---- */

static lh_store *store_open(void)
{
    lh_store *store = NULL;

    if (lh_open(test_store(), NULL, &store) != LH_OK)
        FAIL("%s", lh_errmsg(store));
    return store;
}

/* All findings of a kind, one a line: "level text". */
static const char *findings(lh_store *store, const char *what)
{
    static char text[8000];
    lh_findings *found = NULL;
    size_t used = 0;

    EXPECT_OK(lh_check(store, NULL, &found));
    text[0] = '\0';
    for (size_t i = 0; i < found->n; i++)
        if (strcmp(found->finding[i].what, what) == 0)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s %s\n",
                                     found->finding[i].level, found->finding[i].text);
    lh_findings_free(found);
    return text;
}

TEST(a_check_names_what_of_the_schema_is_not_as_it_was_made)
{
    PGconn *c = session_open();
    lh_store *store = store_open();
    /* (The clock of the tests is not ours: that is all.) */
    EXPECT_STR(findings(store, "schema"), "warning function clock() is not as it was made\n");
    (void)sql(c, "DROP INDEX leasehold.job_ended");
    (void)sql(c, "ALTER TABLE leasehold.report DROP COLUMN wal_frames");
    (void)sql(c, "ALTER TABLE leasehold.job ALTER COLUMN stage TYPE varchar(10)");
    (void)sql(c, "ALTER TABLE leasehold.job DISABLE TRIGGER job_inserted");
    (void)sql(c, "ALTER TABLE leasehold.hold DROP CONSTRAINT hold_pkey");
    (void)sql(c, "ALTER TABLE leasehold.job ADD COLUMN mine text");
    (void)sql(c, "CREATE OR REPLACE FUNCTION leasehold.span(ms bigint) RETURNS interval "
                 "LANGUAGE sql IMMUTABLE STRICT AS 'SELECT ms * interval ''1 ms'''");
    const char *found = findings(store, "schema");
    EXPECT_CONTAINS(found, "warning index job_ended is missing\n");
    EXPECT_CONTAINS(found, "warning column report.wal_frames is missing\n");
    EXPECT_CONTAINS(found, "warning column job.stage is not as it was made\n");
    EXPECT_CONTAINS(found, "warning trigger job_inserted on job is not as it was made\n");
    EXPECT_CONTAINS(found, "warning constraint hold_pkey on hold is missing\n");
    EXPECT_CONTAINS(found, "warning function span(bigint) is not as it was made\n");
    EXPECT_CONTAINS(found, "info column job.mine is not one of ours\n");
    lh_close(store);
    PQfinish(c);
}

TEST(a_check_names_who_holds_the_oldest_transaction)
{
    PGconn *c = session_open();
    lh_store *store = store_open();
    EXPECT_STR(findings(store, "transactions"), "");
    (void)sql(c, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    (void)sql(c, "SELECT count(*) FROM leasehold.job");
    char who[80];
    (void)snprintf(who, sizeof who, "old: pid %d, user ", PQbackendPID(c));
    const char *found = findings(store, "transactions");
    EXPECT_CONTAINS(found, "info oldest is ");
    EXPECT_CONTAINS(found, who);
    EXPECT_CONTAINS(found, ", application the test, idle in transaction; dead rows cannot be "
                           "vacuumed while it lasts\n");
    (void)sql(c, "ROLLBACK");
    EXPECT_STR(findings(store, "transactions"), "");
    lh_close(store);
    PQfinish(c);
}

TEST(a_check_finds_rows_and_counts_that_cannot_be)
{
    PGconn *c = session_open();
    lh_store *store = store_open();
    (void)sql(c, "INSERT INTO leasehold.job(queue) VALUES ('mail'), ('mail')");
    EXPECT_STR(findings(store, "counts"), "");
    (void)sql(c, "DELETE FROM leasehold.delta");
    EXPECT_STR(findings(store, "counts"),
               "error queue \"mail\" has jobs but no row to count them in\n");
    (void)sql(c, "INSERT INTO leasehold.queue(queue, pending) VALUES ('mail', 3)");
    EXPECT_STR(findings(store, "counts"),
               "error queue \"mail\" counts pending as 3, there are 2\n");
    (void)sql(c, "INSERT INTO leasehold.job(id, queue) OVERRIDING SYSTEM VALUE "
                 "VALUES (99, 'mail')");
    EXPECT_STR(findings(store, "invariant 7"),
               "error job 99: id is above the highest ever given\n");
    (void)sql(c, "DO $$ DECLARE n name; BEGIN FOR n IN SELECT conname FROM pg_constraint WHERE "
                 "conrelid = 'leasehold.job'::regclass AND contype = 'c' LOOP EXECUTE "
                 "format('ALTER TABLE leasehold.job DROP CONSTRAINT %%I', n); END LOOP; END $$");
    (void)sql(c, "UPDATE leasehold.job SET state = 'running' WHERE id = 1");
    (void)sql(c, "UPDATE leasehold.job SET attempt = 2, max_attempts = 1 WHERE id = 2");
    (void)sql(c, "UPDATE leasehold.job SET payload = 'x', payload_sum = 1 WHERE id = 2");
    EXPECT_STR(findings(store, "invariant 1"),
               "error job 1: running without a lease, worker, start or token, or a lease without "
               "running\n");
    EXPECT_STR(findings(store, "invariant 5"), "error job 2: attempt 2 is above max_attempts 1\n");
    EXPECT_STR(findings(store, "payload"), "error job 2: payload does not match its checksum\n");
    lh_close(store);
    PQfinish(c);
}

TEST(a_check_tells_about_the_server)
{
    lh_store *store = store_open();
    char version[80];
    (void)snprintf(version, sizeof version, "info leasehold %s, PostgreSQL ", lh_version());
    EXPECT_CONTAINS(findings(store, "version"), version);
    EXPECT_CONTAINS(findings(store, "clock"), "info clock of the server is ");
    EXPECT_CONTAINS(findings(store, "integrity"), "info passed\n");
    EXPECT_CONTAINS(findings(store, "vacuum"), "info leasehold.job has about 0 rows and ");
    lh_close(store);
}

TEST(a_check_ends_when_its_flag_is_raised)
{
    lh_store *store = store_open();
    int cancel = 1;
    lh_findings *found = NULL;
    EXPECT_STATUS(lh_check(store, &cancel, &found), LH_EINTR);
    lh_close(store);
}
