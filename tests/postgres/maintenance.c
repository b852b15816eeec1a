/* Maintenance that only PostgreSQL has: folded counts, event days, one leader for all; and what
 * a check says about the schema and the server. */
#include "proxy.h"
#include "session.h"

#include "base/clock.h"

#include <leasehold.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DAY_MS INT64_C(86400000)

#define UPKEEP "SELECT expired, promoted, folded, more FROM leasehold.maintain_round()"

/* ---- counts ---- */

#define COUNTS "SELECT pending, scheduled, cancelled FROM leasehold.queue WHERE queue = 'mail'"

TEST(one_statement_runs_due_maintenance_and_counts_it)
{
    PGconn *c = session_at(START_MS);
    (void)said(c, "SELECT leasehold.enqueue('mail', 'due', delay => '1 s')");
    (void)said(c, "SELECT leasehold.enqueue('mail', 'overdue', expires => '1 s')");
    (void)said(c, "SELECT leasehold.enqueue('mail', 'later', delay => '1001 ms')");
    EXPECT_STR(said(c, UPKEEP), "0 0 3 f");
    EXPECT_STR(said(c, COUNTS), "1 2 0");
    session_clock(c, START_MS + 1000);
    EXPECT_STR(said(c, UPKEEP), "1 1 2 f");
    EXPECT_STR(said(c, COUNTS), "1 1 1");
    EXPECT_STR(said(c, "SELECT reason FROM leasehold.event WHERE job = 2"),
               "EXPIRED: not claimed by 2026-01-15T10:30:01.000Z");
    EXPECT_STR(said(c, UPKEEP), "0 0 0 f");
    PQfinish(c);
}

TEST(two_folds_at_once_count_each_change_once)
{
    PGconn *a = session_at(START_MS), *b = session_at(START_MS);
    for (int i = 0; i < 3; i++)
        (void)said(a, "SELECT leasehold.enqueue('mail', 'x')");
    (void)said(a, "BEGIN");
    EXPECT_STR(said(a, UPKEEP), "0 0 3 f");
    (void)said(b, "SELECT leasehold.enqueue('mail', 'x')");
    (void)said(b, "SELECT leasehold.enqueue('post', 'x')");
    EXPECT_STR(said(b, UPKEEP), "0 0 0 f"); /* and does not wait */
    (void)said(a, "COMMIT");
    EXPECT_STR(said(b, UPKEEP), "0 0 2 f");
    EXPECT_STR(said(b, COUNTS), "4 0 0");
    EXPECT_STR(said(b, "SELECT sum(enqueued) FROM leasehold.rollup"), "5");
    PQfinish(a);
    PQfinish(b);
}

TEST(counts_of_a_locked_queue_are_folded_later)
{
    PGconn *a = session_at(START_MS), *b = session_at(START_MS);
    (void)said(a, "SELECT leasehold.enqueue('mail', 'x')");
    (void)said(a, UPKEEP);
    (void)said(a, "SELECT leasehold.enqueue('mail', 'x')");
    (void)said(a, "SELECT leasehold.enqueue('post', 'x')");
    (void)said(a, "BEGIN");
    (void)said(a, "SELECT 1 FROM leasehold.queue WHERE queue = 'mail' FOR UPDATE");
    EXPECT_STR(said(b, UPKEEP), "0 0 1 f");
    EXPECT_STR(said(b, COUNTS), "1 0 0");
    (void)said(a, "COMMIT");
    EXPECT_STR(said(b, UPKEEP), "0 0 1 f");
    EXPECT_STR(said(b, COUNTS), "2 0 0");
    PQfinish(a);
    PQfinish(b);
}

TEST(a_fold_that_is_rolled_back_counts_nothing)
{
    PGconn *c = session_at(START_MS);
    (void)said(c, "SELECT leasehold.enqueue('mail', 'x')");
    (void)said(c, "BEGIN");
    EXPECT_STR(said(c, UPKEEP), "0 0 1 f");
    (void)said(c, "ROLLBACK");
    EXPECT_STR(said(c, UPKEEP), "0 0 1 f");
    EXPECT_STR(said(c, COUNTS), "1 0 0");
    PQfinish(c);
}

TEST(folding_does_not_change_any_count)
{
    PGconn *c = session_at(START_MS);
    for (int i = 0; i < 4; i++)
        (void)said(c, "SELECT leasehold.enqueue('mail', 'x', max_attempts => 1)");
    session_clock(c, START_MS + 300);
    (void)said(c, "SELECT leasehold.claim('w', ARRAY['mail'], 3, '1 s')");
    session_clock(c, START_MS + 500);
    (void)said(c, "SELECT leasehold.complete(1, 1)");
    (void)said(c, "SELECT leasehold.fail(2, 1, 'no luck')");
    session_clock(c, START_MS + 1300);
    (void)said(c, "SELECT leasehold.recover()"); /* job 3: its only attempt is used */
    /* scheduled, pending, running, completed, failed, cancelled; enqueued, claimed, completed,
     * failed, recovered, ended, waited, run */
    static const char *const counts =
        "SELECT scheduled, pending, running, completed, failed, cancelled, hour_enqueued, "
        "hour_claimed, hour_completed, hour_failed, hour_recovered, hour_ended, hour_wait_ms, "
        "hour_run_ms FROM leasehold.queues()";
    EXPECT_STR(said(c, "%s", counts), "0 1 0 1 2 0 4 3 1 2 1 2 900 400");
    (void)said(c, UPKEEP);
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.delta"), "0");
    EXPECT_STR(said(c, "%s", counts), "0 1 0 1 2 0 4 3 1 2 1 2 900 400");
    PQfinish(c);
}

TEST(a_job_in_quarantine_is_not_promoted_before_the_quarantine_ends)
{
    PGconn *c = session_at(START_MS);
    (void)said(c, "SELECT leasehold.enqueue('mail', 'held', delay => '1 s')");
    (void)said(c, "SELECT leasehold.enqueue('mail', 'free', delay => '1 s')");
    (void)said(c,
               "INSERT INTO leasehold.quarantine SELECT 'mail', 1, 1, leasehold.clock() + '2 s'");
    session_clock(c, START_MS + 1000);
    EXPECT_STR(said(c, UPKEEP), "0 1 3 f");
    EXPECT_STR(said(c, "SELECT state FROM leasehold.job WHERE id = 1"), "scheduled");
    session_clock(c, START_MS + 2000);
    EXPECT_STR(said(c, UPKEEP), "0 1 1 f");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.quarantine"), "0");
    PQfinish(c);
}

/* ---- event days ---- */

static const char *days(PGconn *c)
{
    return said(c, "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class "
                   "WHERE relname ~ '^event_2026[0-9]{4}$' AND relname < 'event_20260701'");
}

TEST(event_days_are_created_ahead_and_dropped_when_they_are_old)
{
    PGconn *c = session_at(START_MS);
    (void)said(c, UPKEEP);
    EXPECT_STR(days(c), "event_20260115 event_20260116 event_20260117");
    (void)said(c, "SELECT leasehold.enqueue('mail', 'x', expires => '1 s')");
    session_clock(c, START_MS + 1000);
    (void)said(c, UPKEEP);
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.event_20260115"), "1");
    session_clock(c, START_MS + 31 * DAY_MS);
    (void)said(c, UPKEEP);
    EXPECT_STR(days(c), "event_20260115 event_20260116 event_20260117 event_20260215 "
                        "event_20260216 event_20260217");
    EXPECT_STR(said(c, "SELECT leasehold.prune()"), "1");
    /* 30 days are kept; of the 16th, only the first half is older than that. */
    EXPECT_STR(days(c),
               "event_20260116 event_20260117 event_20260215 event_20260216 event_20260217");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.event"), "0");
    PQfinish(c);
}

TEST(a_day_that_was_not_created_in_time_stays_in_the_default_partition)
{
    PGconn *c = session_at(START_MS);
    (void)said(c, "SELECT leasehold.enqueue('mail', 'x', expires => '1 s')");
    session_clock(c, START_MS + 1000);
    (void)said(c, UPKEEP); /* writes an event before it creates days */
    EXPECT_STR(days(c), "event_20260116 event_20260117");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.event_default"), "1");
    session_clock(c, START_MS + 31 * DAY_MS);
    EXPECT_STR(said(c, "SELECT leasehold.prune()"), "1");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.event"), "0");
    PQfinish(c);
}

TEST(a_prune_by_age_deletes_events_of_half_a_day)
{
    PGconn *c = session_at(START_MS);
    (void)said(c, UPKEEP);
    for (int i = 0; i < 2; i++) {
        (void)said(c, "SELECT leasehold.enqueue('mail', 'x', expires => '1 s')");
        session_clock(c, START_MS + (i + 1) * 1000);
        (void)said(c, UPKEEP);
    }
    EXPECT_STR(said(c, "SELECT leasehold.prune('1 s')"), "1");
    EXPECT_STR(said(c, "SELECT leasehold.prune('0')"),
               "LH003 age is 0 ms: 1ms to 3650d is allowed");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.event_20260115"), "2");
    session_clock(c, START_MS + 2500);
    EXPECT_STR(said(c, "SELECT leasehold.prune('1 s')"), "0");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.event_20260115"), "1");
    PQfinish(c);
}

TEST(writers_of_events_do_not_wait_for_days_to_be_created_or_dropped)
{
    PGconn *a = session_at(START_MS), *b = session_at(START_MS);
    (void)said(a, UPKEEP);
    (void)said(a, "SELECT leasehold.enqueue('mail', 'x')");
    (void)said(a, "BEGIN");
    (void)said(a, "SELECT leasehold.cancel(1)"); /* an event that is not committed */
    session_clock(b, START_MS + 40 * DAY_MS);
    EXPECT_STR(said(b, "SELECT leasehold.prune()"),
               "0"); /* skips what another transaction has locked */
    EXPECT_CONTAINS(days(b), "event_20260115");
    EXPECT_STR(said(b, "SHOW lock_timeout"), "0");
    (void)said(a, "COMMIT");
    (void)said(b, "SELECT leasehold.prune()");
    EXPECT_STR(days(b), "");
    PQfinish(a);
    PQfinish(b);
}

struct cancelling {
    lh_store *store;
    int rc;
};

static void *cancel_first(void *arg)
{
    struct cancelling *it = arg;

    it->rc = lh_cancel(it->store, &(int64_t){1}, 1, NULL, NULL);
    return NULL;
}

/* The event was routed to the default partition, and waits for the session that creates its day. */
TEST(an_event_whose_day_is_being_created_is_written)
{
    PGconn *c = session_to(test_store()), *watch = session_to(test_store());
    struct cancelling it = {.rc = LH_EFAIL};
    bool waits = false;
    pthread_t thread;

    EXPECT_OK(lh_open(test_store(), NULL, &it.store));
    done(c, "SELECT leasehold.enqueue('mail', 'x')");
    done(c, "DO $$ BEGIN EXECUTE format('DROP TABLE IF EXISTS leasehold.event_%s', "
            "to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')); END $$");
    done(c, "BEGIN");
    done(c, "SELECT leasehold.make_event_days(now())");
    EXPECT_EQ(pthread_create(&thread, NULL, cancel_first, &it), 0);
    for (int i = 0; i < 5000 && !waits; i++) {
        waits = *said(watch, "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = "
                             "'leasehold.event_default'::regclass") != '\0';
        (void)usleep(1000);
    }
    done(c, "COMMIT");
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT(waits);
    EXPECT_OK(it.rc);
    EXPECT_STR(said(c, "SELECT count(*), min(tableoid::regclass::text) <> "
                       "'leasehold.event_default' FROM leasehold.event WHERE job = 1"),
               "1 t");
    lh_close(it.store);
    PQfinish(c);
    PQfinish(watch);
}

/* ---- one leader for all ---- */

#define PEEK(keeper_) "SELECT something, next_ms FROM leasehold.poll('{}', " keeper_ ")"
#define ON_DUTY(keeper_) "SELECT on_duty FROM leasehold.poll('{}', " keeper_ ")"

TEST(one_waiting_process_is_the_maintenance_leader)
{
    PGconn *c = session_at(START_MS);
    EXPECT_STR(said(c, PEEK("'a'")), "f ");
    (void)said(c, "SELECT leasehold.enqueue('mail', 'x', delay => '1 s')");
    EXPECT_STR(said(c, PEEK("'a'")), "f 1000");
    EXPECT_STR(said(c, PEEK("'b'")), "f ");
    session_clock(c, START_MS + 1000);
    EXPECT_STR(said(c, PEEK("'a'")), "t ");
    EXPECT_STR(said(c, PEEK("'b'")), "f ");
    EXPECT_STR(said(c, PEEK("NULL")),
               "t "); /* a caller that is no candidate gets the plain answer */
    PQfinish(c);
}

TEST(a_leader_that_leaves_due_jobs_is_replaced)
{
    PGconn *c = session_at(START_MS);
    (void)said(c, PEEK("'a'"));
    (void)said(c, "SELECT leasehold.enqueue('mail', 'x', delay => '1 s')");
    session_clock(c, START_MS + 1900);
    EXPECT_STR(said(c, ON_DUTY("'a'")), "t"); /* sent a sign of life */
    session_clock(c, START_MS + 4800);
    EXPECT_STR(said(c, ON_DUTY("'a'")), "t"); /* does not count: the job has been due for long */
    EXPECT_STR(said(c, ON_DUTY("'b'")), "f");
    session_clock(c, START_MS + 4900);
    EXPECT_STR(said(c, ON_DUTY("'a'")), "t"); /* while no other process asks */
    EXPECT_STR(said(c, PEEK("'b'")), "t ");
    EXPECT_STR(said(c, ON_DUTY("'a'")), "f");
    PQfinish(c);
}

TEST(a_silent_leader_is_replaced)
{
    PGconn *c = session_at(START_MS);
    (void)said(c, PEEK("'a'"));
    (void)said(c, "SELECT leasehold.enqueue('mail', 'x', delay => '7 s')");
    session_clock(c, START_MS + 2000);
    (void)said(c, PEEK("'a'")); /* sent a sign of life */
    session_clock(c, START_MS + 4999);
    EXPECT_STR(said(c, PEEK("'b'")), "f ");
    session_clock(c, START_MS + 5000);
    EXPECT_STR(said(c, PEEK("'b'")), "f 2000");
    EXPECT_STR(said(c, PEEK("'a'")), "f ");
    PQfinish(c);
}

TEST(a_follower_polls_again_soon)
{
    lh_store *store = NULL;
    lh_maintained done;
    EXPECT_OK(lh_open(test_store(), NULL, &store));
    PGconn *c = session_at(lh_now(store));
    (void)said(c, PEEK("'a'"));
    /* Until its listener runs, it does maintenance itself. */
    for (int i = 0; i < 20; i++) {
        EXPECT_OK(lh_maintain(store, &(lh_maintain_opts){.wait_ms = 100}, &done));
        (void)said(c, PEEK("'a'"));
        if (done.next_ms <= 2500)
            break;
    }
    EXPECT(done.next_ms <= 2500);
    PQfinish(c);
    lh_close(store);
}

TEST(a_leader_that_closes_its_handle_resigns)
{
    lh_store *store = NULL;
    EXPECT_OK(lh_open(test_store(), NULL, &store));
    EXPECT_OK(lh_maintain(store, &(lh_maintain_opts){.wait_ms = 1}, NULL));
    PGconn *c = session_at(lh_now(store));
    EXPECT_STR(said(c, ON_DUTY("'b'")), "f");
    (void)said(c, "LISTEN leasehold");
    lh_close(store);
    EXPECT_STR(said(c, ON_DUTY("'b'")), "t");
    (void)PQconsumeInput(c);
    PGnotify *told = PQnotifies(c);
    EXPECT(told != NULL);
    EXPECT_STR(told->extra, "-");
    PQfreemem(told);
    PQfinish(c);
}

/* Waits until the handle is the leader. */
static lh_store *open_on_duty(const char *url, PGconn *c)
{
    lh_store *store = NULL;
    EXPECT_OK(lh_open(url, NULL, &store));
    EXPECT_OK(lh_maintain(store, &(lh_maintain_opts){.wait_ms = 1}, NULL));
    EXPECT_STR(said(c, ON_DUTY("'b'")), "f");
    return store;
}

TEST(a_leader_closes_its_handle_even_if_the_server_does_not_answer)
{
    struct proxy *proxy = proxy_start();
    PGconn *c = session_to(test_store());
    lh_store *gone = open_on_duty(proxy->url, c);
    proxy_cut(proxy, TO_SERVER, 0, true);
    int64_t since = lhi_mono_ms();
    lh_close(gone);
    EXPECT(lhi_mono_ms() - since < 3000);
    EXPECT(proxy_mend(proxy));
    done(c, "UPDATE leasehold.maintenance_task SET until = '-infinity'");
    lh_store *unheard = open_on_duty(test_store(), c);
    done(c, "BEGIN");
    done(c, "SELECT * FROM leasehold.maintenance_task FOR UPDATE");
    since = lhi_mono_ms();
    lh_close(unheard);
    EXPECT(lhi_mono_ms() - since < 3000);
    done(c, "ROLLBACK");
    EXPECT_STR(said(c, ON_DUTY("'b'")), "f"); /* it was not notified, and takes over later */
    PQfinish(c);
    proxy_stop(proxy);
}

/* Workers that send heartbeats. */
#define ADD_WORKERS                                                                     \
    "INSERT INTO leasehold.worker(id, label, interval_ms, multiplier, registered_at, "  \
    "last_heartbeat_at, silent_at) SELECT 'w-' || n, 'w', 1000, 3, leasehold.clock(), " \
    "leasehold.clock(), leasehold.clock() + interval '3 s' FROM generate_series(%d, %d) n"

TEST(followers_poll_less_often_the_more_they_are)
{
    static const char spare[] = "SELECT spare_ms BETWEEN 0.75 * %d AND 1.25 * %d "
                                "FROM leasehold.poll('{}', 'b')";
    PGconn *c = session_at(START_MS);
    (void)said(c, PEEK("'a'"));
    EXPECT_STR(said(c, "SELECT spare_ms FROM leasehold.poll('{}', 'a')"), "0");
    EXPECT_STR(said(c, spare, 2000, 2000), "t");
    (void)said(c, ADD_WORKERS, 1, 10);
    EXPECT_STR(said(c, spare, 5000, 5000), "t");
    (void)said(c, ADD_WORKERS, 11, 100);
    EXPECT_STR(said(c, spare, 20000, 20000), "t");
    /* They do not all poll at the same time. */
    EXPECT_STR(said(c, "SELECT count(DISTINCT spare_ms) > 1 FROM generate_series(1, 20) n, "
                       "LATERAL leasehold.poll('{}', 'b' || n)"),
               "t");
    PQfinish(c);
}

TEST(a_claimer_beside_a_maintainer_polls_only_its_queues)
{
    static const char beside[] = "SELECT something, next_ms FROM leasehold.poll('{mail}', 'b')";
    PGconn *c = session_at(START_MS);
    (void)said(c, "SELECT leasehold.enqueue('mail', 'x', delay => '1 s')");
    EXPECT_STR(said(c, beside), "f 1000"); /* there is no leader */
    (void)said(c, PEEK("'a'"));
    EXPECT_STR(said(c, beside), "f ");
    EXPECT_STR(said(c, "SELECT something, next_ms FROM leasehold.poll('{mail}', NULL)"), "f 1000");
    (void)said(c, "SELECT leasehold.enqueue('mail', 'x')");
    EXPECT_STR(said(c, beside), "t ");
    PQfinish(c);
}

TEST(a_clock_set_back_does_not_leave_the_store_without_a_leader)
{
    PGconn *c = session_at(START_MS + DAY_MS);
    (void)said(c, PEEK("'a'"));
    session_clock(c, START_MS);
    (void)said(c, "SELECT leasehold.enqueue('mail', 'x', delay => '1 s')");
    EXPECT_STR(said(c, PEEK("'b'")), "f 1000");
    PQfinish(c);
}

TEST(a_poll_reports_counts_that_pile_up)
{
    PGconn *c = session_at(START_MS);
    (void)said(c, "INSERT INTO leasehold.job(queue) SELECT 'mail' FROM generate_series(1, 5001)");
    EXPECT_STR(said(c, PEEK("'a'")), "t ");
    EXPECT_STR(said(c, PEEK("'b'")), "f ");
    EXPECT_STR(said(c, UPKEEP), "0 0 5001 f");
    EXPECT_STR(said(c, PEEK("'a'")), "f ");
    EXPECT_STR(said(c, COUNTS), "5001 0 0");
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

/* All findings of a kind, one per line: "level text". */
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

TEST(a_check_names_every_change_of_the_schema)
{
    PGconn *c = session_to(test_store());
    lh_store *store = store_open();
    /* (Only the two clocks differ, because the tests replace them.) */
    EXPECT_STR(findings(store, "schema"),
               "warning function clock() differs from its definition\n"
               "warning function stopwatch() differs from its definition\n");
    (void)said(c, "DROP INDEX leasehold.job_ended");
    (void)said(c, "ALTER TABLE leasehold.schedule DROP COLUMN error");
    (void)said(c, "ALTER TABLE leasehold.policy ALTER COLUMN audit TYPE integer");
    (void)said(c, "ALTER TABLE leasehold.job DISABLE TRIGGER job_inserted");
    (void)said(c, "ALTER TABLE leasehold.quarantine DROP CONSTRAINT quarantine_pkey");
    (void)said(c, "ALTER TABLE leasehold.job ADD COLUMN mine text");
    (void)said(c, "CREATE OR REPLACE FUNCTION leasehold.span(ms bigint) RETURNS interval "
                  "LANGUAGE sql IMMUTABLE STRICT AS 'SELECT ms * interval ''1 ms'''");
    const char *found = findings(store, "schema");
    EXPECT_CONTAINS(found, "warning index job_ended is missing\n");
    EXPECT_CONTAINS(found, "warning column schedule.error is missing\n");
    EXPECT_CONTAINS(found, "warning column policy.audit differs from its definition\n");
    EXPECT_CONTAINS(found, "warning trigger job_inserted on job differs from its definition\n");
    EXPECT_CONTAINS(found, "warning constraint quarantine_pkey on quarantine is missing\n");
    EXPECT_CONTAINS(found, "warning function span(bigint) differs from its definition\n");
    EXPECT_CONTAINS(found, "info column job.mine is not one of ours\n");
    lh_close(store);
    PQfinish(c);
}

TEST(a_check_names_the_session_with_the_oldest_transaction)
{
    PGconn *c = session_to(test_store());
    (void)said(c, "SET application_name = 'the test'");
    lh_store *store = store_open();
    EXPECT_STR(findings(store, "transactions"), "");
    (void)said(c, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    (void)said(c, "SELECT count(*) FROM leasehold.job");
    char who[80];
    (void)snprintf(who, sizeof who, "old: pid %d, user ", PQbackendPID(c));
    const char *found = findings(store, "transactions");
    EXPECT_CONTAINS(found, "info oldest is ");
    EXPECT_CONTAINS(found, who);
    EXPECT_CONTAINS(found, ", application the test, idle in transaction; dead rows cannot be "
                           "vacuumed while it lasts\n");
    (void)said(c, "ROLLBACK");
    EXPECT_STR(findings(store, "transactions"), "");
    lh_close(store);
    PQfinish(c);
}

TEST(a_check_finds_impossible_rows_and_counts)
{
    PGconn *c = session_to(test_store());
    lh_store *store = store_open();
    (void)said(c, "INSERT INTO leasehold.job(queue) VALUES ('mail'), ('mail')");
    EXPECT_STR(findings(store, "counts"), "");
    (void)said(c, "DELETE FROM leasehold.delta");
    EXPECT_STR(findings(store, "counts"),
               "error queue \"mail\" has jobs but no row to count them in\n");
    (void)said(c, "INSERT INTO leasehold.queue(queue, pending) VALUES ('mail', 3)");
    EXPECT_STR(findings(store, "counts"),
               "error queue \"mail\" counts pending as 3, there are 2\n");
    (void)said(c, "INSERT INTO leasehold.job(id, queue) OVERRIDING SYSTEM VALUE "
                  "VALUES (99, 'mail')");
    EXPECT_STR(findings(store, "invariant 7"),
               "error job 99: id is above the highest ever given\n");
    (void)said(c, "DO $$ DECLARE n name; BEGIN FOR n IN SELECT conname FROM pg_constraint WHERE "
                  "conrelid = 'leasehold.job'::regclass AND contype = 'c' LOOP EXECUTE "
                  "format('ALTER TABLE leasehold.job DROP CONSTRAINT %%I', n); END LOOP; END $$");
    (void)said(c, "UPDATE leasehold.job SET state = 'running' WHERE id = 1");
    (void)said(c, "UPDATE leasehold.job SET attempt = 2, max_attempts = 1 WHERE id = 2");
    (void)said(c, "UPDATE leasehold.job SET payload = 'x', payload_sum = 1 WHERE id = 2");
    EXPECT_STR(findings(store, "invariant 1"),
               "error job 1: running without a lease, worker, start or token, or a lease without "
               "running\n");
    EXPECT_STR(findings(store, "invariant 5"), "error job 2: attempt 2 is above max_attempts 1\n");
    EXPECT_STR(findings(store, "payload"), "error job 2: payload does not match its checksum\n");
    lh_close(store);
    PQfinish(c);
}

TEST(a_check_reports_on_the_server)
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

TEST(a_check_stops_when_its_cancel_flag_is_raised)
{
    lh_store *store = store_open();
    int cancel = 1;
    lh_findings *found = NULL;
    EXPECT_STATUS(lh_check(store, &cancel, &found), LH_EINTR);
    lh_close(store);
}

/* ---- output ---- */

#define PUT(job_)                                                                       \
    "SELECT count(*) FROM leasehold.output_many('{" job_ "}', '{1}', '{NULL}', '{0}', " \
    "ARRAY['x'::bytea], '{NULL}', '{0}', '{NULL}', '{NULL}')"

static void finish_jobs(PGconn *c, int n)
{
    (void)said(c, "SELECT leasehold.enqueue('mail', 'x') FROM generate_series(1, %d)", n);
    (void)said(c, "SELECT count(*) FROM leasehold.claim('w', 'mail', %d)", n);
    (void)said(c, "SELECT count(leasehold.complete(j.id, j.token)) FROM leasehold.job j");
}

TEST(a_job_cannot_be_deleted_while_its_output_is_stored)
{
    PGconn *a = session_at(START_MS), *b = session_at(START_MS);
    finish_jobs(a, 1);
    (void)said(a, "BEGIN");
    EXPECT_STR(said(a, PUT("1")), "0");
    begin_to_wait(b, "SELECT leasehold.delete(1)");
    (void)said(a, "COMMIT");
    PGresult *result;
    while ((result = PQgetResult(b)) != NULL)
        PQclear(result);
    EXPECT_STR(said(b, "SELECT count(*) FROM leasehold.job"), "0");
    EXPECT_STR(said(b, "SELECT count(*) FROM leasehold.output"), "0");
    PQfinish(a);
    PQfinish(b);
}

TEST(pruning_of_output_skips_jobs_without_output)
{
    PGconn *c = session_at(START_MS);
    finish_jobs(c, 600);
    (void)said(c, "SELECT leasehold.queue_set('mail', retention_output => '1 hour')");
    (void)said(c, PUT("300"));
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.output"), "1");
    session_clock(c, START_MS + 2 * 3600000);
    EXPECT_STR(said(c, "SELECT * FROM leasehold.prune_round(NULL, 0)"), "300 0 f");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.output"), "0");
    EXPECT_STR(said(c, "SELECT * FROM leasehold.prune_round(NULL, 0)"), "0 0 f");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.job"), "600");
    PQfinish(c);
}
