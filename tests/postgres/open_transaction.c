/*
 * What a transaction that stays open must not do to others. A transaction that has claimed,
 * enqueued or only read may belong to a program that works for an hour before it commits. Also:
 * late answers, limits, wake-ups and clocks around such transactions.
 */
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TRIES = 3000 };

/* A session that must not wait for a lock: it gets an error instead. */
static PGconn *impatient_at(int64_t now_ms)
{
    PGconn *c = session_at(now_ms);

    EXPECT_STR(said(c, "SET statement_timeout = '8 s'"), "");
    return c;
}

/* What the waiting session gets: the first column. */
static const char *waited_for(PGconn *c)
{
    static char text[200];
    PGresult *result = PQgetResult(c);

    (void)snprintf(text, sizeof text, "%s",
                   PQresultStatus(result) == PGRES_TUPLES_OK ? PQgetvalue(result, 0, 0)
                                                             : PQresultErrorMessage(result));
    PQclear(result);
    EXPECT(PQgetResult(c) == NULL);
    return text;
}

static void close_both(PGconn *a, PGconn *b)
{
    PQfinish(a);
    PQfinish(b);
}

#define CLAIM(worker_, queue_) "SELECT id FROM leasehold.claim('" worker_ "', '" queue_ "')"
#define ENQUEUE(queue_) "SELECT leasehold.enqueue('" queue_ "', 'x')"

/* ---------------------------------------------------------------- recovery */

/* One job each in the queues mail, post and news, held with leases of one, two and three
 * seconds. */
static void put_three_that_end_one_after_the_other(PGconn *c)
{
    done(c, ENQUEUE("mail"));
    done(c, ENQUEUE("post"));
    done(c, ENQUEUE("news"));
    done(c, "SELECT leasehold.claim('w', 'mail', 1, '1 s')");
    done(c, "SELECT leasehold.claim('w', 'post', 1, '2 s')");
    done(c, "SELECT leasehold.claim('w', 'news', 1, '3 s')");
}

TEST(a_claim_in_an_open_transaction_does_not_block_recovery)
{
    PGconn *a = session_at(START_MS), *b = impatient_at(START_MS + 2000);
    put_three_that_end_one_after_the_other(a);
    session_clock(a, START_MS + 1000);
    done(a, "BEGIN");
    EXPECT_STR(said(a, CLAIM("v", "mail")), "1"); /* it has recovered the job before */
    EXPECT_STR(said(b, CLAIM("u", "post")), "2");
    session_clock(b, START_MS + 3000);
    EXPECT_STR(said(b, "SELECT leasehold.maintain() -> 'entries_reclaimed'"), "1");
    EXPECT_STR(said(b, "SELECT leasehold.recover() -> 'entries_reclaimed'"), "0");
    done(a, "COMMIT");
    EXPECT_STR(said(b, "SELECT sum(value) FROM leasehold.total WHERE key = 'recovery:retried'"),
               "3");
    close_both(a, b);
}

TEST(a_heartbeat_in_an_open_transaction_does_not_block_recovery)
{
    PGconn *a = session_at(START_MS), *b = impatient_at(START_MS + 200000);
    done(a, ENQUEUE("mail"));
    done(a, "SELECT leasehold.claim('v', 'mail', 1, '1 s')");
    done(a, "SELECT leasehold.worker_heartbeat('w')");
    done(a, "BEGIN");
    done(a, "SELECT leasehold.worker_heartbeat('w')");
    /* By the clock of the other session it was silent for too long. */
    EXPECT_STR(
        said(b, "SELECT dead_workers, retried FROM leasehold.recover_batch('{last}', 'timer', "
                "NULL, NULL, '{0,0,0,0,0,0,0,0,0}', '{0,0,0,0,0,0,0}', '{w}', "
                "ARRAY[(SELECT last_heartbeat_at FROM leasehold.worker)], '{silent}', "
                "'{silent}', '{NULL}', '{1}', NULL, NULL, NULL, NULL, NULL, false, '{}', '{}')"),
        "0 1");
    done(a, "COMMIT");
    EXPECT_STR(said(b, "SELECT state FROM leasehold.worker WHERE id = 'w'"), "alive");
    close_both(a, b);
}

/* Both lock workers before jobs. */
TEST(a_clock_jump_and_a_heartbeat_do_not_deadlock)
{
    PGconn *a = impatient_at(START_MS), *b = session_at(START_MS + 3600000);
    done(a, ENQUEUE("mail"));
    done(a, "SELECT leasehold.claim('w', 'mail', 1, '1 min')");
    done(a, "SELECT leasehold.worker_heartbeat('w')");
    done(a, "BEGIN");
    done(a, "SELECT leasehold.worker_heartbeat('w')");
    begin_to_wait(b, "SELECT leasehold.clock_jumped(3600000, 0, 1000)");
    EXPECT_STR(said(a, "SELECT state FROM leasehold.heartbeat(1, 1)"), "running");
    done(a, "COMMIT");
    EXPECT_STR(waited_for(b), "t");
    EXPECT_STR(said(b, "SELECT lease_until - leasehold.clock() FROM leasehold.job"), "00:01:00");
    close_both(a, b);
}

/* ---------------------------------------------------------------- claims */

TEST(two_large_claims_from_a_new_queue_do_not_wait_for_each_other)
{
    PGconn *a = session_at(START_MS), *b = impatient_at(START_MS);
    done(a, "INSERT INTO leasehold.job(queue) SELECT 'mail' FROM generate_series(1, 1000)");
    done(a, "BEGIN");
    EXPECT_STR(said(a, "SELECT count(*) FROM leasehold.claim('a', 'mail', 500)"), "500");
    EXPECT_STR(said(a, "SELECT count(*) FROM leasehold.claim_floor"),
               "1"); /* and has stored the claim floor */
    EXPECT_STR(said(b, "SELECT count(*) FROM leasehold.claim('b', 'mail', 400)"), "400");
    for (int i = 901; i <= 1000; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "%d", i);
        EXPECT_STR(said(b, "SELECT id FROM leasehold.claim_one('b', 'mail', NULL, true)"), id);
    }
    done(a, "COMMIT");
    close_both(a, b);
}

/* A transaction has the first id, and other sessions have claimed later ones. */
static void let_claims_pass_an_uncommitted_job(PGconn *late, PGconn *claimer)
{
    done(late, "BEGIN");
    EXPECT_STR(said(late, "SELECT id FROM leasehold.enqueue('mail')"), "1");
    done(claimer, "INSERT INTO leasehold.job(queue) SELECT 'mail' FROM generate_series(1, 1000)");
    for (int i = 0; i < 4; i++) {
        session_clock(claimer, START_MS + 3000 * i);
        /* Enough jobs for the claim to compute the claim floor. */
        done(claimer, "SELECT count(*) FROM leasehold.claim('a', 'mail', 500)");
        done(claimer,
             "INSERT INTO leasehold.job(queue) SELECT 'mail' FROM generate_series(1, 500)");
    }
    EXPECT_STR(said(claimer, "SELECT bool_and(floor > 1) FROM leasehold.claim_floor"), "t");
}

/* Within two seconds of the next scan. */
static void expect_the_late_job_is_claimed(PGconn *claimer, int64_t from_ms)
{
    for (int i = 0; i < 3; i++) {
        session_clock(claimer, from_ms + 1000 * i);
        if (strcmp(said(claimer, CLAIM("b", "mail")), "1") == 0)
            return;
    }
    FAIL("job 1 committed late and no claim finds it");
}

TEST(a_claim_in_an_open_transaction_does_not_hide_a_job_that_committed_late)
{
    PGconn *late = session_at(START_MS), *a = session_at(START_MS), *b = impatient_at(START_MS);
    let_claims_pass_an_uncommitted_job(late, a);
    session_clock(a, START_MS + 12000);
    done(a, "BEGIN");
    done(a, CLAIM("a", "mail")); /* it scans the whole queue, and its transaction stays open */
    done(late, "COMMIT");
    expect_the_late_job_is_claimed(b, START_MS + 12000);
    done(a, "COMMIT");
    PQfinish(late);
    close_both(a, b);
}

TEST(an_advisory_lock_of_another_role_does_not_hide_a_job_that_committed_late)
{
    PGconn *late = session_at(START_MS), *a = session_at(START_MS), *b = impatient_at(START_MS);
    let_claims_pass_an_uncommitted_job(late, a);
    /* The advisory lock key that claims used at one time. */
    done(a, "SELECT pg_advisory_lock(hashtextextended('mail', 5273658113))");
    done(late, "COMMIT");
    expect_the_late_job_is_claimed(b, START_MS + 12000);
    PQfinish(late);
    close_both(a, b);
}

TEST(floor_scans_of_open_transactions_leave_no_rows_behind)
{
    PGconn *late = session_at(START_MS), *a = session_at(START_MS), *b = impatient_at(START_MS);
    let_claims_pass_an_uncommitted_job(late, a);
    session_clock(a, START_MS + 12000);
    done(a, "BEGIN");
    done(a, CLAIM("a", "mail"));
    done(late, "COMMIT");
    expect_the_late_job_is_claimed(b, START_MS + 12000);
    EXPECT_STR(said(b, "SELECT count(*) FROM leasehold.claim_floor"),
               "2"); /* one is locked by the other session */
    done(a, "COMMIT");
    session_clock(b, START_MS +
                         2400000); /* a scan is due by then, however expensive the last one was */
    done(b, CLAIM("b", "mail"));
    EXPECT_STR(said(b, "SELECT count(*) FROM leasehold.claim_floor"), "1");
    PQfinish(late);
    close_both(a, b);
}

TEST(a_claim_under_repeatable_read_writes_no_claim_floor)
{
    PGconn *late = session_at(START_MS), *a = session_at(START_MS), *b = impatient_at(START_MS);
    let_claims_pass_an_uncommitted_job(late, b);
    session_clock(a, START_MS + 12000);
    done(a, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    done(a, "SELECT 1 FROM leasehold.meta");
    done(late, "COMMIT");
    session_clock(b, START_MS + 12000);
    EXPECT_STR(said(b, CLAIM("b", "mail")), "1"); /* its scan has replaced the row that `a` sees */
    done(a, CLAIM("a", "gone"));
    done(a, "SELECT leasehold.claim('a', 'mail', 500)");
    done(a, "COMMIT");
    EXPECT_STR(said(b, "SELECT count(DISTINCT look) FROM leasehold.claim_floor"), "1");
    PQfinish(late);
    close_both(a, b);
}

static void expect_the_other_is_free(int first, int second)
{
    PGconn *a = session_at(START_MS), *b = impatient_at(START_MS);
    done(a, ENQUEUE("mail"));
    done(a, CLAIM("w", "mail"));
    done(a, "SELECT leasehold.release(1, 1)"); /* pending again */
    EXPECT_STR(said(a, "SELECT id FROM leasehold.enqueue('mail', 'x', priority => %d)",
                    first == 2 ? 5 : 0),
               "2");
    char id[16];
    done(a, "BEGIN");
    (void)snprintf(id, sizeof id, "%d", first);
    EXPECT_STR(said(a, CLAIM("a", "mail")), id);
    (void)snprintf(id, sizeof id, "%d", second);
    EXPECT_STR(said(b, CLAIM("b", "mail")), id);
    done(a, "COMMIT");
    close_both(a, b);
}

TEST(a_claim_in_an_open_transaction_locks_only_the_jobs_it_took)
{
    expect_the_other_is_free(1, 2);
    test_store_renew();
    expect_the_other_is_free(2, 1);
}

TEST(expired_jobs_are_never_claimed_however_many_there_are)
{
    PGconn *c = session_at(START_MS);
    done(c,
         "SELECT leasehold.enqueue_many('mail', array_fill(0::bigint, ARRAY[1100]), "
         "array_fill('x'::text, ARRAY[1100]), expires_ms => array_fill(5::bigint, ARRAY[1100]))");
    session_clock(c, START_MS + 100);
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.claim('w', 'mail', 1000)"), "0");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.claim_one('w', 'mail', NULL, true)"), "0");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.claim('w', 'mail', 1000, request => 'r')"),
               "0");
    EXPECT_STR(said(c, "SELECT string_agg(DISTINCT state, ' '), count(*) FROM leasehold.job"),
               "cancelled 1100");
    PQfinish(c);
}

TEST(a_claim_over_several_priorities_returns_each_job_once)
{
    static const char *const claims[] = {
        "SELECT count(*) FROM leasehold.claim('w', 'mail', 10)",
        "SELECT count(*) FROM leasehold.claim('w', '{mail,mail}'::text[], 10)",
    };
    for (size_t i = 0; i < sizeof claims / sizeof claims[0]; i++) {
        PGconn *c = session_at(START_MS);
        done(c, "SELECT leasehold.queue_set('mail', audit => 'full')");
        done(c, "INSERT INTO leasehold.job(queue, priority) VALUES ('mail', 5), ('mail', 0), "
                "('mail', -3)");
        done(c,
             "INSERT INTO leasehold.claim_floor SELECT 'mail', 0, p, 0, 0, "
             "leasehold.clock() + interval '1 min', 0, '-infinity' FROM unnest('{5,0}'::int[]) p");
        EXPECT_STR(said(c, "%s", claims[i]), "3");
        EXPECT_STR(said(c, "SELECT string_agg(job::text, ' ' ORDER BY id) FROM leasehold.event "
                           "WHERE type = 'job.claimed'"),
                   "1 2 3");
        PQfinish(c);
        test_store_renew();
    }
}

/* Index entries that the statement has read, dead ones included. */
static long entries_read(PGconn *c, const char *index, const char *sql)
{
    char before[40];

    done(c, "BEGIN");
    (void)snprintf(
        before, sizeof before, "%s",
        said(c, "SELECT pg_stat_get_xact_tuples_returned('leasehold.%s'::regclass)", index));
    done(c, sql);
    long read =
        strtol(said(c, "SELECT pg_stat_get_xact_tuples_returned('leasehold.%s'::regclass) - %s",
                    index, before),
               NULL, 10);
    done(c, "ROLLBACK");
    return read;
}

/* A thousand jobs of the queue `past` have fallen due, and a thousand others have expired. */
static void let_a_lot_fall_due(PGconn *c)
{
    done(c, "INSERT INTO leasehold.job(queue, run_at) SELECT 'past', leasehold.clock() + '1 s' "
            "FROM generate_series(1, 1000)");
    done(c, "INSERT INTO leasehold.job(queue, expires_at) SELECT 'past', leasehold.clock() + '1 s' "
            "FROM generate_series(1, 1000)");
    session_clock(c, START_MS + 1000);
    done(c, "SELECT leasehold.maintain_round()");
    EXPECT_STR(said(c, "SELECT expired, promoted FROM leasehold.maintain_round()"), "500 500");
}

TEST(due_jobs_behind_an_old_snapshot_are_not_read_again_by_every_claim)
{
    static const char *const acts[] = {
        "SELECT * FROM leasehold.claim_one('w', 'empty', NULL, true)",
        "SELECT * FROM leasehold.claim('w', 'empty', 10)",
        "SELECT * FROM leasehold.poll('{empty}', NULL)",
    };
    PGconn *a = session_at(START_MS), *b = session_at(START_MS);
    done(a, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    done(a, "SELECT count(*) FROM leasehold.job");
    let_a_lot_fall_due(b);
    session_clock(b, START_MS + 5000);
    done(b, CLAIM("w", "empty")); /* sees that nothing is due, and saves a bound ... */
    session_clock(b, START_MS + 7000);
    done(b, CLAIM("w", "empty")); /* ... one second before the previous bound */
    session_clock(b, START_MS + 7500);
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        if (entries_read(b, "job_scheduled", acts[i]) > 10)
            FAIL("%s reads all that was ever promoted", acts[i]);
        if (entries_read(b, "job_expiry", acts[i]) > 10)
            FAIL("%s reads all that ever expired", acts[i]);
    }
    done(a, "COMMIT");
    close_both(a, b);
}

/* Thousands of jobs of a queue are enqueued and completed while an old snapshot is held, in two
 * priorities, and a few become pending again in between; then the queue is empty. Returns after
 * some seconds of claims and polls. */
static void drain_behind_a_snapshot(PGconn *c, int64_t *now_ms)
{
    for (int i = 0; i < 4; i++) {
        done(c, "INSERT INTO leasehold.job(queue, priority) SELECT 'mail', i % 2 "
                "FROM generate_series(1, 1000) i");
        for (int claims = 0; claims < 2; claims++)
            done(c, "SELECT leasehold.complete_many(array_agg(id), array_agg(token), '{}', '{}') "
                    "FROM leasehold.claim('w', 'mail', 500, '2 s')");
        session_clock(c, *now_ms += 3000);
    }
    for (int i = 0; i < 6; i++) {
        done(c, "SELECT leasehold.claim('w', 'mail', 10)");
        session_clock(c, *now_ms += 2000);
    }
}

TEST(idle_workers_do_not_read_jobs_claimed_behind_an_old_snapshot)
{
    static const char *const acts[] = {
        "SELECT leasehold.poll('{mail}', NULL)",
        "SELECT leasehold.poll('{mail}', 'w')",
        "SELECT leasehold.poll('{}', 'w')", /* as leader, for the sleepers */
        "SELECT leasehold.claim('w', 'mail', 10)",
        "SELECT leasehold.claim_one('w', 'mail', NULL, true)",
    };
    static const char *const indexes[] = {"job_fresh", "job_running"};
    PGconn *a = session_at(START_MS), *b = session_at(START_MS);
    int64_t now_ms = START_MS;

    done(a, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    done(a, "SELECT count(*) FROM leasehold.job");
    drain_behind_a_snapshot(b, &now_ms);
    /* As if a scan of the whole queue took a second. */
    done(b, "UPDATE leasehold.claim_floor SET next_look = leasehold.clock() + interval '15 min', "
            "rest_until = leasehold.clock()");
    done(b, "SELECT leasehold.subscribe('{mail}')");
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        for (size_t k = 0; k < sizeof indexes / sizeof indexes[0]; k++) {
            long read = entries_read(b, indexes[k], acts[i]);
            if (read > 10)
                FAIL("%s reads %ld entries of %s", acts[i], read, indexes[k]);
        }
    done(a, "COMMIT");
    close_both(a, b);
}

/* A transaction that took long to commit has ended: the next claim scans at once. */
TEST(a_job_that_committed_late_is_found_at_once_when_scans_are_expensive)
{
    PGconn *late = session_at(START_MS), *b = session_at(START_MS);
    int64_t now_ms = START_MS;

    done(b, CLAIM("w", "mail"));
    done(late, "BEGIN");
    done(late, ENQUEUE("mail"));
    drain_behind_a_snapshot(b, &now_ms);
    EXPECT_STR(said(b, "SELECT count(*) FROM leasehold.claim_floor WHERE floor > 1"), "2");
    done(b, "UPDATE leasehold.claim_floor SET next_look = leasehold.clock() + interval '15 min', "
            "rest_until = leasehold.clock()");
    EXPECT_STR(said(b, "SELECT something FROM leasehold.poll('{mail}', NULL)"), "f");
    done(late, "COMMIT");
    EXPECT_STR(said(b, "SELECT something FROM leasehold.poll('{mail}', NULL)"), "t");
    EXPECT_STR(said(b, CLAIM("b", "mail")), "1");
    EXPECT_STR(said(b, "SELECT something FROM leasehold.poll('{mail}', NULL)"), "f");
    close_both(late, b);
}

/* ---------------------------------------------------------------- limits */

static void expect_the_exclusive_lease_is_kept(const char *late_answer)
{
    PGconn *c = session_at(START_MS);
    done(c, "SELECT leasehold.queue_set('alone', exclusive => true)");
    done(c, ENQUEUE("alone"));
    done(c, ENQUEUE("alone"));
    done(c, "SELECT leasehold.claim('a', 'alone', 1, '1 s')");
    done(c, "SELECT leasehold.release_worker('a')");
    session_clock(c, START_MS + 1300); /* revoked and expired, and no maintenance has run */
    EXPECT_STR(said(c, CLAIM("b", "alone")), "1");
    EXPECT_STR(said(c, "SELECT status FROM %s", late_answer), "-8");
    EXPECT_STR(said(c, "SELECT owner, job FROM leasehold.lease WHERE scope = 'processing'"), "b 1");
    EXPECT_STR(said(c, CLAIM("c", "alone")), "");
    PQfinish(c);
}

TEST(a_late_answer_of_a_revoked_holder_does_not_end_the_next_exclusive_lease)
{
    expect_the_exclusive_lease_is_kept("leasehold.complete_many('{1}', '{1}', '{}', '{}')");
    test_store_renew();
    expect_the_exclusive_lease_is_kept("leasehold.fail_many('{1}', '{1}', '{late}', '{}', '{}')");
    test_store_renew();
    expect_the_exclusive_lease_is_kept("leasehold.release_many('{1}', '{1}', 0)");
}

static void limit_two_queues(PGconn *c)
{
    done(c, "SELECT leasehold.queue_set('la', concurrency => 5)");
    done(c, "SELECT leasehold.queue_set('lb', rate => 5, rate_per => '1 s')");
}

TEST(claims_from_limited_queues_in_opposite_order_do_not_deadlock)
{
    PGconn *a = impatient_at(START_MS), *b = impatient_at(START_MS);
    limit_two_queues(a);
    done(a, "BEGIN");
    done(b, "BEGIN");
    EXPECT_STR(said(a, CLAIM("a", "la")), "");
    EXPECT_STR(said(b, CLAIM("b", "lb")), "");
    EXPECT_STR(said(a, CLAIM("a", "lb")), "");
    EXPECT_STR(said(b, CLAIM("b", "la")), "");
    done(a, "COMMIT");
    done(b, "COMMIT");
    done(a, "BEGIN");
    EXPECT_STR(said(a, "SELECT id FROM leasehold.claim('a', '{la,lb}'::text[])"), "");
    EXPECT_STR(said(b, "SELECT id FROM leasehold.claim('b', '{lb,la}'::text[])"), "");
    done(a, "COMMIT");
    close_both(a, b);
}

static void expect_others_are_served(const char *limit)
{
    PGconn *a = session_at(START_MS), *b = impatient_at(START_MS);
    done(a, limit);
    done(a, ENQUEUE("tight"));
    done(a, ENQUEUE("tight"));
    done(a, ENQUEUE("mail"));
    done(a, "BEGIN");
    EXPECT_STR(said(a, CLAIM("a", "tight")), "1");
    EXPECT_STR(said(b, "SELECT id FROM leasehold.claim('b', '{tight,mail}'::text[])"), "3");
    EXPECT_STR(
        said(
            b,
            "SELECT retry_ms FROM leasehold.claim_many('b', '{tight}', NULL, 1, NULL, NULL, true)"),
        "50"); /* poll again soon */
    done(a, "COMMIT");
    close_both(a, b);
}

TEST(an_open_transaction_in_a_limited_queue_does_not_block_other_queues)
{
    expect_others_are_served("SELECT leasehold.queue_set('tight', concurrency => 5)");
    test_store_renew();
    expect_others_are_served("SELECT leasehold.queue_set('tight', rate => 5, rate_per => '1 s')");
    test_store_renew();
    expect_others_are_served("SELECT leasehold.queue_set('tight', exclusive => true)");
}

TEST(a_pause_that_waits_for_a_claim_does_not_block_other_settings)
{
    PGconn *a = session_at(START_MS), *b = session_at(START_MS), *c = impatient_at(START_MS);
    limit_two_queues(a);
    done(a, "BEGIN");
    EXPECT_STR(said(a, CLAIM("a", "la")), "");
    begin_to_wait(b, "SELECT leasehold.queue_pause('la')");
    EXPECT_STR(said(c, "SELECT leasehold.queue_pause('mail')"), "t");
    done(c, "SELECT leasehold.queue_set('mail', max_attempts => 5)");
    done(a, "COMMIT");
    EXPECT_STR(waited_for(b), "t");
    close_both(a, b);
    PQfinish(c);
}

TEST(counts_behind_those_of_a_locked_queue_are_folded)
{
    PGconn *a = session_at(START_MS), *b = impatient_at(START_MS);
    limit_two_queues(a);
    for (int i = 0; i < 3; i++)
        done(a, ENQUEUE("la"));
    done(a, ENQUEUE("mail"));
    done(a, "BEGIN");
    EXPECT_STR(said(a, CLAIM("a", "la")), "1");
    EXPECT_STR(said(b, "SELECT leasehold.fold(2)"), "1");
    EXPECT_STR(said(b, "SELECT pending FROM leasehold.queue WHERE queue = 'mail'"), "1");
    done(a, "COMMIT");
    close_both(a, b);
}

static void expect_one_runs(const char *limit)
{
    PGconn *a = impatient_at(START_MS), *b = session_at(START_MS);
    done(a, limit);
    done(a, ENQUEUE("tight"));
    done(a, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    done(a, "SELECT count(*) FROM leasehold.job");
    done(b, "SELECT leasehold.enqueue('tight', 'x', priority => 10)");
    EXPECT_STR(said(b, CLAIM("b", "tight")), "2");
    (void)said(a, CLAIM("a", "tight"));
    (void)said(a, "COMMIT");
    EXPECT_STR(said(b, "SELECT count(*) FROM leasehold.job WHERE state = 'running'"), "1");
    close_both(a, b);
}

TEST(a_claim_by_an_old_snapshot_exceeds_no_limit)
{
    expect_one_runs("SELECT leasehold.queue_set('tight', concurrency => 1)");
    test_store_renew();
    expect_one_runs("SELECT leasehold.queue_set('tight', rate => 1, rate_per => '1 h')");
    test_store_renew();
    expect_one_runs("SELECT leasehold.queue_set('tight', exclusive => true)");
}

TEST(a_claim_by_an_old_snapshot_in_a_limited_queue_is_refused_with_the_reason)
{
    PGconn *c = session_at(START_MS);
    limit_two_queues(c);
    done(c, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    EXPECT_STR(
        said(c, CLAIM("a", "la")),
        "LH003 queue \"la\" has limits: claim from it in a transaction that is READ COMMITTED, "
        "not REPEATABLE READ");
    PQfinish(c);
}

/* ---------------------------------------------------------------- wake-ups */

/* Does the sleeper get a notification? */
static bool hears(PGconn *sleeper, const char *queue)
{
    bool heard = false;

    for (int i = 0; i < TRIES && !heard; i++) {
        EXPECT(PQconsumeInput(sleeper));
        PGnotify *note = PQnotifies(sleeper);
        heard = note != NULL && strcmp(note->extra, queue) == 0;
        PQfreemem(note);
        if (!heard)
            (void)usleep(1000);
    }
    return heard;
}

static void expect_the_second_is_heard(const char *queue, const char *act)
{
    PGconn *a = session_at(START_MS), *b = impatient_at(START_MS), *sleeper = session_at(START_MS);
    done(a, "INSERT INTO leasehold.job(queue) SELECT 'post' FROM generate_series(1, 2)");
    done(sleeper, "LISTEN leasehold");
    EXPECT_STR(said(sleeper, "SELECT leasehold.subscribe('{%s}')", queue), "t");
    done(a, "BEGIN");
    done(a, act);
    done(b, act);
    EXPECT(hears(sleeper, queue));
    done(a, "ROLLBACK");
    close_both(a, b);
    PQfinish(sleeper);
}

TEST(an_enqueue_wakes_sleepers_while_another_enqueue_is_uncommitted)
{
    expect_the_second_is_heard("mail", "INSERT INTO leasehold.job(queue) VALUES ('mail')");
    test_store_renew();
    expect_the_second_is_heard("mail", ENQUEUE("mail"));
    test_store_renew();
    /* A process that waits for the next thing to fall due. */
    expect_the_second_is_heard("!", "SELECT leasehold.claim('w', 'post', 1, '500 ms')");
}

/* ---------------------------------------------------------------- times */

#define NOT_A_TIME(what_) \
    "LH003 " what_ " is infinity: 1973-03-03T09:46:40Z to the end of the year 9999 is allowed"

TEST(an_infinite_time_is_refused_and_stops_no_waiting_worker)
{
    PGconn *c = session_at(START_MS);
    done(c, ENQUEUE("mail"));
    done(c, ENQUEUE("mail"));
    EXPECT_STR(said(c, "INSERT INTO leasehold.job(queue, expires_at) VALUES ('mail', 'infinity')"),
               NOT_A_TIME("expires_at"));
    EXPECT_STR(said(c, "INSERT INTO leasehold.job(queue, run_at) VALUES ('mail', 'infinity')"),
               NOT_A_TIME("run_at"));
    EXPECT_STR(said(c, "SELECT leasehold.enqueue('mail', run_at => 'infinity')"),
               NOT_A_TIME("time to run at"));
    EXPECT_STR(
        said(c, "SELECT leasehold.enqueue_many('mail', '{0}', '{x}', run_ats => '{infinity}')"),
        NOT_A_TIME("time to run at"));
    EXPECT_CONTAINS(
        said(c, "INSERT INTO leasehold.job(queue, expires_at) VALUES ('mail', '-infinity')"),
        "LH003 expires_at is -infinity");
    done(c, "UPDATE leasehold.job SET expires_at = 'infinity' WHERE id = 1"); /* by plain SQL */
    done(c, "UPDATE leasehold.job SET state = 'scheduled', run_at = 'infinity' WHERE id = 2");
    EXPECT_STR(said(c, "SELECT something, next_ms FROM leasehold.poll('{empty}', 'k')"), "f ");
    EXPECT_STR(said(c, CLAIM("w", "mail")), "1");
    PQfinish(c);
}

TEST(event_days_begin_at_midnight_utc_in_every_time_zone)
{
    PGconn *c = session_at(START_MS);
    done(c, "SET timezone = 'Asia/Shanghai'"); /* CST, which could be read as another zone */
    done(c, "SET datestyle = 'SQL'");
    done(c, "SELECT leasehold.maintain_round()");
    done(c, "SET timezone = 'UTC'");
    done(c, "SET datestyle = 'ISO'");
    EXPECT_STR(said(c, "SELECT pg_get_expr(relpartbound, oid) FROM pg_class "
                       "WHERE relname = 'event_20260116'"),
               "FOR VALUES FROM ('2026-01-16 00:00:00+00') TO ('2026-01-17 00:00:00+00')");
    PQfinish(c);
}

TEST(an_enqueue_that_never_commits_does_not_silence_its_queue)
{
    PGconn *a = session_at(START_MS), *b = impatient_at(START_MS),
           *sleeper = impatient_at(START_MS);
    done(sleeper, "LISTEN leasehold");
    EXPECT_STR(said(sleeper, "SELECT leasehold.subscribe('{mail}')"), "t");
    done(a, "BEGIN");
    done(a, ENQUEUE("mail"));
    for (int s = 20; s <= 100; s += 20) {
        session_clock(sleeper, START_MS + s * 1000);
        done(sleeper, "SELECT leasehold.subscribe('{mail}')"); /* and does not wait */
    }
    session_clock(b, START_MS + 101000);
    done(b, ENQUEUE("mail"));
    EXPECT(hears(sleeper, "mail"));
    done(a, "ROLLBACK");
    close_both(a, b);
    PQfinish(sleeper);
}

TEST(the_best_unlocked_job_is_claimed_first)
{
    PGconn *a = session_at(START_MS), *b = impatient_at(START_MS);
    done(a, "SELECT leasehold.enqueue('mail', 'x', priority => 10)");
    done(a, "SELECT leasehold.enqueue('mail', 'x', priority => -5)");
    done(a, "SELECT leasehold.claim('w', 'mail', 2)");
    done(a, "SELECT leasehold.release(1, 1)");
    done(a, "SELECT leasehold.release(2, 1)");
    done(a, "SELECT leasehold.enqueue('mail', 'x', priority => 5)");
    done(a, "BEGIN");
    EXPECT_STR(said(a, CLAIM("a", "mail")), "1");
    EXPECT_STR(said(b, CLAIM("b", "mail")), "3");
    EXPECT_STR(said(b, CLAIM("b", "mail")), "2");
    done(a, "COMMIT");
    close_both(a, b);
}

TEST(a_policy_is_set_at_once_while_a_claim_is_open)
{
    PGconn *a = session_at(START_MS), *b = impatient_at(START_MS);
    limit_two_queues(a);
    done(a, ENQUEUE("lb"));
    done(a, "BEGIN");
    EXPECT_STR(said(a, CLAIM("a", "lb")), "1");
    done(b, "SELECT leasehold.queue_set('lb', max_attempts => 5)");
    done(a, "COMMIT");
    close_both(a, b);
}

/* ---- heartbeats ---- */

TEST(an_open_transaction_at_one_job_does_not_end_the_leases_of_others)
{
    PGconn *c = session_at(START_MS), *other = session_at(START_MS);

    (void)said(c, "SELECT leasehold.enqueue('mail', 'x') FROM generate_series(1, 3)");
    (void)said(c, "SELECT leasehold.worker_heartbeat_put('w', 1000, '1', '{}', '{}', '{}', '{}', "
                  "'{}', '{}')");
    (void)said(c, "SELECT leasehold.claim('w', 'mail', 3, '10 s')");
    (void)said(other, "BEGIN");
    (void)said(other, "SELECT leasehold.cancel(2)");
    (void)said(other, "UPDATE leasehold.worker SET label = label");
    session_clock(c, START_MS + 5000);
    EXPECT_STR(
        said(c, "SELECT (b.o).n, (b.o).status, (b.o).message FROM (SELECT "
                "leasehold.worker_heartbeat_put('w', 1000, '1', ARRAY(SELECT id FROM leasehold.job "
                "ORDER BY "
                "id), "
                "ARRAY(SELECT token FROM leasehold.job ORDER BY id), '{}', '{}', '{}', '{}') o) b"),
        "2 -11 store is busy: job 2 is locked by another transaction");
    EXPECT_STR(said(c, "SELECT string_agg((extract(epoch FROM lease_until - "
                       "leasehold.clock()))::int::text, ' ' "
                       "ORDER BY id) FROM leasehold.job"),
               "10 5 10");
    PQfinish(other);
    PQfinish(c);
}

/* ---- a move ---- */

TEST(a_transaction_older_than_a_move_writes_nothing_into_the_old_store)
{
    static const char *const late[] = {
        "INSERT INTO leasehold.job(queue, payload) VALUES ('mail', 'acknowledged')",
        "SELECT leasehold.enqueue('mail', 'acknowledged')",
        "SELECT leasehold.claim('w', 'mail')",
        "SELECT leasehold.lease_acquire('sync', 'a', 'w', '1 h')",
    };
    enum { LATE = sizeof late / sizeof late[0] };
    PGconn *c = session_at(START_MS), *early[LATE];
    lh_moved moved;
    char why[300];

    (void)said(c, "SELECT leasehold.enqueue('mail', 'x')");
    for (size_t i = 0; i < LATE; i++) {
        early[i] = session_at(START_MS);
        (void)said(early[i], "BEGIN ISOLATION LEVEL REPEATABLE READ");
        EXPECT_STR(said(early[i], "SELECT 1"), "1");
    }
    if (lh_move(test_store(), "new.db", NULL, &moved, why, sizeof why) != LH_OK)
        FAIL("%s", why);
    for (size_t i = 0; i < LATE; i++) {
        EXPECT_CONTAINS(said(early[i], "%s", late[i]), "LH014");
        PQfinish(early[i]);
    }
    PQfinish(c);
}
