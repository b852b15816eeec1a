/*
 * While a transaction stays open, the indexes keep the entries of every job that ended since. Idle
 * workers, starting workers and reports must not read these entries again and again; and no bound
 * that prevents this may hide a job.
 *
 * The server counts the entries that are read. The limits are lowered, so that a few thousand dead
 * rows count as many.
 */
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEAD = 4000, OWED = 500, NET = 300, FEW = 40 };

/* ---------------------------------------------------------------- dead entries */

static void lower_limits(PGconn *c)
{
    done(c, "CREATE OR REPLACE FUNCTION leasehold.many_dead_rows() RETURNS bigint LANGUAGE sql "
            "IMMUTABLE "
            "RETURN 1000::bigint");
    done(c, "CREATE OR REPLACE FUNCTION leasehold.backlog_batch() RETURNS bigint LANGUAGE sql "
            "IMMUTABLE "
            "RETURN 500::bigint");
    done(c, "CREATE OR REPLACE FUNCTION leasehold.recheck_batch() RETURNS bigint LANGUAGE sql "
            "IMMUTABLE "
            "RETURN 300::bigint");
}

/* Jobs that were enqueued and completed, evenly over the last hour; and as many that were
 * scheduled, or expired, then. */
static void litter(PGconn *c)
{
    done(c, "ALTER TABLE leasehold.job SET (autovacuum_enabled = off)");
    EXPECT_STR(said(c,
                    "INSERT INTO leasehold.job(queue, plain, max_attempts) SELECT 'mail', false, 3 "
                    "FROM generate_series(1, %d)",
                    DEAD),
               "");
    EXPECT_STR(
        said(c,
             "UPDATE leasehold.job SET state = 'running', token = 1, attempt = 1, worker = 'w', "
             "again = true, held_ms = 1000, started_at = leasehold.clock(), "
             "state_changed_at = leasehold.clock(), lease_until = leasehold.clock() - "
             "id * interval '1 hour' / %d",
             DEAD),
        "");
    EXPECT_STR(
        said(c,
             "UPDATE leasehold.job SET state = 'scheduled', worker = NULL, lease_until = NULL, "
             "run_at = leasehold.clock() - id * interval '1 hour' / %d",
             DEAD),
        "");
    done(c, "UPDATE leasehold.job SET state = 'completed', finished_at = leasehold.clock()");
    done(c, "SELECT pg_stat_force_next_flush()");
    EXPECT_STR(said(c, "SELECT leasehold.has_many_dead_rows()"), "t");
}

/* A session in a store with many dead entries, which the transaction of `*holder` keeps. */
static PGconn *littered(PGconn **holder)
{
    PGconn *c = session_at(START_MS);

    *holder = session_at(START_MS);
    lower_limits(c);
    done(*holder, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    done(*holder, "SELECT count(*) FROM leasehold.job");
    litter(c);
    return c;
}

static void leave(PGconn *holder, PGconn *c)
{
    PQfinish(holder);
    PQfinish(c);
}

static long entries_so_far(PGconn *c)
{
    return strtol(said(c, "SELECT sum(pg_stat_get_xact_tuples_returned(oid)) FROM pg_class "
                          "WHERE relnamespace = 'leasehold'::regnamespace AND relkind = 'i' "
                          "AND relname ~ '^(job|worker|lease)_'"),
                  NULL, 10);
}

/* The number of entries that a statement reads. The statement is undone unless `stays`. */
static long entries_read(PGconn *c, const char *sql, bool stays)
{
    done(c, "BEGIN");
    long before = entries_so_far(c);
    done(c, sql);
    long read = entries_so_far(c) - before;
    done(c, stays ? "COMMIT" : "ROLLBACK");
    return read;
}

/* The same, without entries that the planner reads at the ends of an index. */
static long entries_read_again(PGconn *c, const char *sql)
{
    (void)entries_read(c, sql, false);
    return entries_read(c, sql, false);
}

/* ---------------------------------------------------------------- scans */

#define LOOK "SELECT count(*) FROM leasehold.claim('w-2', 'mail', 10, '1 h')"
/* A claim from a queue that was never used. */
#define ELSEWHERE "SELECT count(*) FROM leasehold.claim('w-2', 'empty')"
#define LAST_NOTE "FROM leasehold.scan_bound ORDER BY id DESC LIMIT 1"
#define IS_OWED "SELECT owed_to > owed_from " LAST_NOTE

/* A claim that saves a scan bound, which happens once a second. Returns the number of claimed
 * jobs. */
static long look(PGconn *c, int64_t *now_ms)
{
    char *rest = NULL;

    session_clock(c, *now_ms += 1100);
    const char *got = said(c, LOOK);
    long n = strtol(got, &rest, 10);
    if (*rest != '\0')
        FAIL("a claim was refused: %s", got);
    return n;
}

static bool owed(PGconn *c)
{
    return strcmp(said(c, IS_OWED), "t") == 0;
}

/* Claims until there is no backlog; returns the number of scans. */
static int catch_up(PGconn *c, int64_t *now_ms)
{
    int looks = 0;

    do {
        EXPECT(look(c, now_ms) == 0);
        EXPECT(++looks < 100);
    } while (owed(c));
    return looks;
}

/* A job that w-1 holds with a lease of one second. */
static void hold_one(PGconn *c)
{
    done(c, "SELECT leasehold.enqueue('mail', 'x')");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.claim('w-1', 'mail', 1, '1 s')"), "1");
}

#define RUNNING "SELECT count(*) FROM leasehold.job WHERE worker = 'w-1'"

/* ---------------------------------------------------------------- what is read */

TEST(scans_of_dead_entries_are_bounded_and_continue_where_the_last_one_stopped)
{
    PGconn *holder, *c = littered(&holder);
    int64_t now_ms = START_MS;
    int looks = 0;

    /* The oldest entry: a scan that finds it has reached the end. */
    done(c, "UPDATE leasehold.job SET state = 'running', worker = 'w-1', run_at = NULL, "
            "finished_at = NULL, "
            "lease_until = leasehold.clock() - interval '50 minutes' WHERE id = 1");
    do {
        session_clock(c, now_ms += 1100);
        long read = entries_read(c, ELSEWHERE, true);
        if (read > 2 * OWED + FEW)
            FAIL("look %d has read %ld entries", looks, read);
        EXPECT(++looks < 100);
    } while (strcmp(said(c, RUNNING), "1") == 0);
    EXPECT(looks > 3);
    leave(holder, c);
}

TEST(a_cancelled_scan_keeps_the_progress_of_earlier_scans)
{
    static const char place[] = "SELECT extract(epoch FROM owed_to) " LAST_NOTE;
    PGconn *holder, *c = littered(&holder);
    int64_t now_ms = START_MS;

    (void)look(c, &now_ms);
    (void)look(c, &now_ms);
    double before = strtod(said(c, place), NULL);
    session_clock(c, now_ms += 1100);
    done(c, "BEGIN");
    done(c, ELSEWHERE);
    EXPECT(strtod(said(c, place), NULL) < before);
    done(c, "ROLLBACK");
    EXPECT(strtod(said(c, place), NULL) == before);
    (void)look(c, &now_ms);
    EXPECT(strtod(said(c, place), NULL) < before);
    leave(holder, c);
}

/* Another session scans the backlog; its transaction may never commit. */
TEST(one_session_at_a_time_scans_dead_entries_and_nobody_waits_for_it)
{
    PGconn *holder, *c = littered(&holder), *other = session_at(START_MS);
    int64_t now_ms = START_MS;

    (void)look(c, &now_ms);
    session_clock(other, now_ms += 1100);
    done(other, "BEGIN");
    done(other, ELSEWHERE);
    done(c, "SET statement_timeout = '8 s'");
    session_clock(c, now_ms);
    EXPECT(entries_read(c, ELSEWHERE, false) <= FEW);
    session_clock(c, now_ms += 4000); /* it takes too long */
    EXPECT(entries_read(c, ELSEWHERE, false) > FEW);
    PQfinish(other);
    leave(holder, c);
}

#define BATCH                                                                                      \
    "SELECT leasehold.recover_batch('{leases,last}', 'timer', NULL, NULL, '{0,0,0,0,0,0,0,0,0}', " \
    "'{0,0,0,0,0,0,0}', '{}', '{}', '{}', '{}', '{}', '{}', NULL, NULL, NULL, NULL, NULL, false, " \
    "'{}', '{}')"

/* The queries of idle workers, of starting workers and of reports. */
TEST(idle_queries_read_few_entries_behind_a_held_snapshot)
{
    static const char *const acts[] = {
        "SELECT leasehold.poll('{mail}', NULL)",
        "SELECT leasehold.poll('{mail}', 'w')",
        "SELECT leasehold.poll('{mail}', 'w', '{odd}')",
        "SELECT leasehold.poll('{}', NULL)",
        "SELECT leasehold.retry_waits('{other}', '{}')",
        "SELECT leasehold.wake_missed(leasehold.clock())",
        "SELECT leasehold.falls_due(leasehold.clock())",
        "SELECT leasehold.queues()",
        "SELECT leasehold.recovery_stats()",
        "SELECT leasehold.stale_jobs(false, NULL, NULL, '{}', 500, false)",
        "SELECT leasehold.stale_jobs(true, NULL, NULL, '{}', NULL, false)",
        "SELECT leasehold.stale_rest(NULL, NULL, false, '{}', false)",
        "SELECT leasehold.maintain_round()",
        "SELECT leasehold.maintain()",
        BATCH,
    };
    static const char *const noting[] = {
        "SELECT leasehold.poll('{}', 'w')",
        "SELECT leasehold.claim('w', 'mail', 10)",
        "SELECT leasehold.claim_one('w', 'mail', NULL, true)",
    };
    PGconn *holder, *c = littered(&holder);
    int64_t now_ms = START_MS;

    (void)catch_up(c, &now_ms);
    /* As if a scan of the whole queue took a second: it is rare then. */
    done(c, "UPDATE leasehold.claim_floor SET next_look = leasehold.clock() + interval '15 min', "
            "rest_until = leasehold.clock()");
    done(c, "SELECT leasehold.subscribe('{mail,mail/odd}')");
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
            long read = entries_read_again(c, acts[i]);
            if (read > FEW)
                FAIL("round %d: %s reads %ld entries", round, acts[i], read);
        }
        for (size_t i = 0; i < sizeof noting / sizeof noting[0]; i++) {
            session_clock(c, now_ms += 70000 * (round == 1) + 6000); /* now the slow pass is due */
            (void)entries_read(c, noting[i], false);
            long read = entries_read(c, noting[i], true);
            if (read > 2 * NET + FEW)
                FAIL("round %d: %s reads %ld entries", round, noting[i], read);
        }
    }
    leave(holder, c);
}

/* Until the claim floor of a queue is known, a claim reads all dead entries. Of twenty workers that start at once, one
 * does, and the others wait. */
TEST(claims_that_know_no_claim_floor_scan_the_queue_one_after_the_other)
{
    static const char waiting[] = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    PGconn *holder, *c = littered(&holder), *other = session_at(START_MS),
                    *watcher = session_at(START_MS);
    int64_t now_ms = START_MS;

    done(other, "BEGIN");
    done(other, "SELECT * FROM leasehold.claim_one('w-2', 'mail', NULL, true)");
    EXPECT(PQsendQuery(c, "SELECT * FROM leasehold.claim_one('w-3', 'mail', NULL, true)") == 1);
    while (strcmp(said(watcher, waiting), "0") == 0)
        EXPECT(PQconsumeInput(c) == 1 && PQisBusy(c));
    done(other, "COMMIT");
    for (PGresult *result; (result = PQgetResult(c)) != NULL; PQclear(result))
        EXPECT(PQresultStatus(result) == PGRES_TUPLES_OK);
    (void)catch_up(c, &now_ms);
    EXPECT(entries_read(c, LOOK, true) <= FEW);
    PQfinish(other);
    PQfinish(watcher);
    leave(holder, c);
}

TEST(maintenance_reads_everything_where_nobody_claims)
{
    PGconn *holder, *c = littered(&holder);
    int64_t now_ms = START_MS;

    (void)catch_up(c, &now_ms);
    hold_one(c);
    session_clock(c, now_ms += 60000);
    EXPECT_STR(said(c, "SELECT leasehold.maintain() -> 'entries_reclaimed'"), "1");
    leave(holder, c);
}

/* ---------------------------------------------------------------- what is found */

TEST(a_lease_that_expired_before_its_claim_committed_is_found_among_dead_entries)
{
    PGconn *holder, *c = littered(&holder), *late = session_at(START_MS);
    int64_t now_ms = START_MS;

    (void)catch_up(c, &now_ms);
    done(c, "SELECT leasehold.enqueue('mail', 'x')");
    session_clock(late, now_ms);
    done(late, "BEGIN");
    EXPECT_STR(said(late, "SELECT count(*) FROM leasehold.claim('w-1', 'mail', 1, '2 s')"), "1");
    for (int i = 0; i < 30; i++)
        EXPECT(look(c, &now_ms) == 0);
    EXPECT_STR(
        said(c, "SELECT cardinality(open), bound > leasehold.clock() - interval '4 s' " LAST_NOTE),
        "1 t");
    done(late, "COMMIT");
    EXPECT_STR(said(c, LOOK), "1"); /* the next claim */
    PQfinish(late);
    leave(holder, c);
}

TEST(a_job_that_fell_due_before_its_commit_is_found_among_dead_entries)
{
    PGconn *holder, *c = littered(&holder), *late = session_at(START_MS);
    int64_t now_ms = START_MS;

    (void)catch_up(c, &now_ms);
    session_clock(late, now_ms);
    done(late, "BEGIN");
    done(late, "SELECT leasehold.enqueue('mail', 'x', delay => '1 s')");
    for (int i = 0; i < 30; i++)
        EXPECT(look(c, &now_ms) == 0);
    done(late, "COMMIT");
    EXPECT_STR(said(c, LOOK), "1");
    PQfinish(late);
    leave(holder, c);
}

/* What a transaction has seen counts only once it has committed. */
static void expect_found_after_rollback(const char *act)
{
    PGconn *holder, *c = littered(&holder);
    int64_t now_ms = START_MS;

    (void)catch_up(c, &now_ms);
    hold_one(c);
    session_clock(c, now_ms += 5000);
    for (int i = 0; i < 3; i++) {
        done(c, "BEGIN");
        done(c, act);
        (void)look(c, &now_ms);
        done(c, "ROLLBACK");
    }
    EXPECT_STR(said(c, RUNNING), "1");
    EXPECT(look(c, &now_ms) == 1);
    leave(holder, c);
}

TEST(an_expired_job_is_found_among_dead_entries_after_a_rollback)
{
    expect_found_after_rollback("UPDATE leasehold.job SET state = 'completed', worker = NULL, "
                                "lease_until = NULL WHERE worker = 'w-1'");
    test_store_renew();
    expect_found_after_rollback(LOOK);
}

/* Nothing records this change: the slow pass finds it, and a recovery by an operator finds it at
 * once. */
TEST(a_lease_that_an_update_sets_to_the_past_is_found_among_dead_entries)
{
    PGconn *holder, *c = littered(&holder);
    int64_t now_ms = START_MS;
    int looks = 0;

    (void)catch_up(c, &now_ms);
    done(c, "SELECT leasehold.enqueue('mail', 'x')");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.claim('w-1', 'mail', 1, '1 day')"), "1");
    done(c, "UPDATE leasehold.job SET lease_until = leasehold.clock() - interval '30 minutes' "
            "WHERE worker = 'w-1'");
    done(c, "BEGIN");
    EXPECT_STR(said(c, "SELECT leasehold.recover() -> 'entries_reclaimed'"), "1");
    done(c, "ROLLBACK");
    while (look(c, &now_ms) == 0)
        EXPECT(++looks < 300);
    EXPECT_STR(said(c, RUNNING), "0");
    leave(holder, c);
}

/* The most common case: the lease ends now. */
TEST(a_lease_that_an_update_ends_is_found_by_the_next_claim_among_dead_entries)
{
    PGconn *holder, *c = littered(&holder);
    int64_t now_ms = START_MS;

    (void)catch_up(c, &now_ms);
    done(c, "SELECT leasehold.enqueue('mail', 'x')");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.claim('w-1', 'mail', 1, '1 day')"), "1");
    done(c, "UPDATE leasehold.job SET lease_until = leasehold.clock() WHERE worker = 'w-1'");
    EXPECT(look(c, &now_ms) == 1);
    leave(holder, c);
}

TEST(a_clock_set_back_hides_nothing_among_dead_entries)
{
    PGconn *holder, *c = littered(&holder);
    int64_t now_ms = START_MS;
    int looks = 0;

    (void)catch_up(c, &now_ms);
    int64_t later_ms = now_ms + 3600000;
    (void)look(c, &later_ms);
    (void)look(c, &later_ms); /* saves a bound an hour ahead */
    session_clock(c, now_ms);
    hold_one(c);
    now_ms += 5000;
    while (look(c, &now_ms) == 0)
        EXPECT(++looks < 10);
    EXPECT_STR(said(c, RUNNING), "0");
    leave(holder, c);
}

TEST(leases_that_expired_while_no_claim_ran_are_found_among_dead_entries)
{
    PGconn *holder, *c = littered(&holder);
    int64_t now_ms = START_MS;
    int looks = 0;

    (void)catch_up(c, &now_ms);
    hold_one(c);
    now_ms += 1800000;
    while (look(c, &now_ms) == 0)
        EXPECT(++looks < 10);
    leave(holder, c);
}

/* The open transaction may have completed its job, too: then recovery cannot take it. */
TEST(a_locked_expired_job_does_not_hold_back_the_scan_bound)
{
    PGconn *holder, *c = littered(&holder), *other = session_at(START_MS);
    int64_t now_ms = START_MS;

    (void)catch_up(c, &now_ms);
    hold_one(c);
    done(other, "BEGIN");
    done(other, "SELECT 1 FROM leasehold.job WHERE worker = 'w-1' FOR UPDATE");
    for (int i = 0; i < 30; i++)
        EXPECT(look(c, &now_ms) == 0);
    EXPECT_STR(
        said(c,
             "SELECT cardinality(left_at), bound > leasehold.clock() - interval '4 s' " LAST_NOTE),
        "1 t");
    EXPECT_STR(said(c, "SELECT something FROM leasehold.poll('{}', 'w')"), "t");
    EXPECT_STR(
        said(c, "SELECT count(*) FROM leasehold.stale_jobs(false, NULL, NULL, '{}', 500, false)"),
        "1");
    done(other, "ROLLBACK");
    EXPECT(look(c, &now_ms) == 1);
    EXPECT_STR(said(c, "SELECT left_at " LAST_NOTE), "{}");
    PQfinish(other);
    leave(holder, c);
}

/* Too many to be remembered one by one. */
TEST(many_jobs_that_expired_unseen_are_all_found_among_dead_entries)
{
    PGconn *holder, *c = littered(&holder);
    int64_t now_ms = START_MS;
    int looks = 0;

    (void)catch_up(c, &now_ms);
    done(c, "UPDATE leasehold.job SET state = 'running', worker = 'w-1', run_at = NULL, "
            "finished_at = NULL, "
            "lease_until = leasehold.clock() + id * interval '10 milliseconds' WHERE id <= 700");
    now_ms += 600000;
    for (;;) {
        (void)look(c, &now_ms);
        if (strcmp(said(c, RUNNING), "0") == 0)
            break;
        EXPECT(++looks < 20);
    }
    leave(holder, c);
}

/* After a vacuum, the whole backlog is scanned at once. */
TEST(a_backlog_is_scanned_at_once_when_the_dead_entries_are_gone)
{
    PGconn *holder, *c = littered(&holder);
    int64_t now_ms = START_MS;

    done(c, "UPDATE leasehold.job SET state = 'running', worker = 'w-1', run_at = NULL, "
            "finished_at = NULL, "
            "lease_until = leasehold.clock() - interval '50 minutes' WHERE id = 1");
    EXPECT(look(c, &now_ms) == 0);
    EXPECT(owed(c));
    done(holder, "COMMIT");
    done(c, "VACUUM leasehold.job");
    done(c, "SELECT pg_stat_force_next_flush()");
    EXPECT_STR(said(c, "SELECT leasehold.has_many_dead_rows()"), "f");
    EXPECT(look(c, &now_ms) == 1);
    EXPECT(!owed(c));
    leave(holder, c);
}
