/*
 * Two sessions on one server, step by step: what the second one does while the transaction of the
 * first is open, and what it gets once that is committed or rolled back.
 */
#include "session.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TRIES = 2000 };
#define NOW "1768473000000"
#define LATER "1768476600001" /* an hour later: the lease has ended */

struct session {
    PGconn *conn;
};

/* ---------------------------------------------------------------- sessions */

static struct session session_open(const char *now)
{
    struct session s = {session_to(test_store())};
    char text[80];

    (void)snprintf(text, sizeof text, "SET leasehold.test_now = '%s'", now);
    PQclear(PQexec(s.conn, text));
    PQclear(PQexec(s.conn, "SET client_min_messages = error"));
    return s;
}

static void session_close(struct session *s)
{
    PQfinish(s->conn);
}

/* The first column of the first row, or the SQLSTATE of the error; valid until the next answer. */
static const char *answer_of(PGresult *result)
{
    static char text[200];
    ExecStatusType status = PQresultStatus(result);

    if (status == PGRES_TUPLES_OK)
        (void)snprintf(text, sizeof text, "%s", PQntuples(result) ? PQgetvalue(result, 0, 0) : "");
    else if (status == PGRES_COMMAND_OK)
        text[0] = '\0';
    else
        (void)snprintf(text, sizeof text, "%s", PQresultErrorField(result, PG_DIAG_SQLSTATE));
    PQclear(result);
    return text;
}

__attribute__((format(printf, 2, 3))) static const char *run_in(struct session *s, const char *fmt,
                                                                ...)
{
    char text[400];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return answer_of(PQexec(s->conn, text));
}

/* What the waiting session gets. */
static const char *told(struct session *s)
{
    const char *text = answer_of(PQgetResult(s->conn));

    EXPECT(PQgetResult(s->conn) == NULL);
    return text;
}

/* ---------------------------------------------------------------- the scene: job 1 is held with
 * token 1 */

struct pair {
    struct session a, b;
};

static struct pair with_jobs(int n, bool held, const char *now_of_b)
{
    struct pair p = {session_open(NOW), session_open(now_of_b)};

    for (int i = 0; i < n; i++)
        EXPECT_STR(run_in(&p.a, "SELECT state FROM leasehold.enqueue('q', 'hello')"), "pending");
    if (held)
        (void)run_in(&p.a, "SELECT id FROM leasehold.claim('w', ARRAY['q'], %d, '1 hour')", n);
    return p;
}

static void close_both(struct pair *p)
{
    session_close(&p->a);
    session_close(&p->b);
}

static const char *state_of(struct session *s, int job)
{
    return run_in(s, "SELECT state FROM leasehold.job WHERE id = %d", job);
}

/* ---------------------------------------------------------------- recovery and holders */

TEST(a_recovery_skips_a_job_that_is_being_completed)
{
    struct pair p = with_jobs(1, true, LATER);
    (void)run_in(&p.a, "BEGIN");
    EXPECT_STR(run_in(&p.a, "SELECT state FROM leasehold.complete(1, 1)"), "completed");
    (void)run_in(&p.b, "SELECT leasehold.recover()"); /* and does not wait for it */
    (void)run_in(&p.a, "COMMIT");
    EXPECT_STR(state_of(&p.b, 1), "completed");
    EXPECT_STR(run_in(&p.b, "SELECT recoveries FROM leasehold.job WHERE id = 1"), "0");
    close_both(&p);
}

TEST(a_recovery_takes_a_job_whose_completion_was_rolled_back)
{
    struct pair p = with_jobs(1, true, LATER);
    (void)run_in(&p.a, "BEGIN");
    EXPECT_STR(run_in(&p.a, "SELECT state FROM leasehold.complete(1, 1)"), "completed");
    (void)run_in(&p.b, "SELECT leasehold.recover()");
    (void)run_in(&p.a, "ROLLBACK");
    EXPECT_STR(state_of(&p.b, 1), "running");
    (void)run_in(&p.b, "SELECT leasehold.recover()");
    EXPECT_STR(state_of(&p.b, 1), "pending");
    close_both(&p);
}

TEST(a_holder_waits_for_a_recovery_of_its_job_and_then_has_lost_it)
{
    static const char *const acts[] = {
        "SELECT state FROM leasehold.complete(1, 1)",
        "SELECT state FROM leasehold.fail(1, 1, 'no luck')",
        "SELECT state FROM leasehold.release(1, 1)",
        "SELECT state FROM leasehold.heartbeat(1, 1)",
    };
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        struct pair p = with_jobs(1, true, LATER);
        (void)run_in(&p.b, "BEGIN");
        (void)run_in(&p.b, "SELECT leasehold.recover()");
        begin_to_wait(p.a.conn, acts[i]);
        (void)run_in(&p.b, "COMMIT");
        EXPECT_STR(told(&p.a), "LH008"); /* LH_ELOST */
        EXPECT_STR(state_of(&p.b, 1), "pending");
        close_both(&p);
        test_store_renew();
    }
}

#define CLAIM_ONE "SELECT id FROM leasehold.claim('v', ARRAY['q'], 1, '1 hour')"

TEST(a_claim_waits_for_the_recovery_of_its_job_and_gets_it)
{
    struct pair p = with_jobs(1, true, LATER);
    struct session c = session_open(LATER);
    (void)run_in(&c, "BEGIN");
    (void)run_in(&c, "SELECT leasehold.recover()");
    begin_to_wait(p.b.conn, CLAIM_ONE);
    (void)run_in(&c, "COMMIT");
    EXPECT_STR(told(&p.b), "1");
    session_close(&c);
    close_both(&p);
}

/* The other session recovers while it claims from an empty queue. */
TEST(a_claim_waits_for_the_claim_that_recovers_its_job_and_gets_it)
{
    struct pair p = with_jobs(1, true, LATER);
    struct session c = session_open(LATER);
    (void)run_in(&c, "BEGIN");
    EXPECT_STR(run_in(&c, "SELECT id FROM leasehold.claim('u', ARRAY['empty'])"), "");
    begin_to_wait(p.b.conn, CLAIM_ONE);
    (void)run_in(&c, "COMMIT");
    EXPECT_STR(told(&p.b), "1");
    session_close(&c);
    close_both(&p);
}

TEST(a_claim_recovers_a_job_whose_recovery_was_rolled_back)
{
    struct pair p = with_jobs(1, true, LATER);
    struct session c = session_open(LATER);
    (void)run_in(&c, "BEGIN");
    (void)run_in(&c, "SELECT leasehold.recover()");
    begin_to_wait(p.b.conn, CLAIM_ONE);
    (void)run_in(&c, "ROLLBACK");
    EXPECT_STR(told(&p.b), "1");
    session_close(&c);
    close_both(&p);
}

TEST(a_claim_waits_for_the_promotion_of_its_job_and_gets_it)
{
    struct pair p = with_jobs(0, false, LATER);
    struct session c = session_open(LATER);
    (void)run_in(&p.a, "SELECT id FROM leasehold.enqueue('q', 'x', delay => '1 minute')");
    (void)run_in(&c, "BEGIN");
    (void)run_in(&c, "SELECT leasehold.maintain_round()");
    begin_to_wait(p.b.conn, CLAIM_ONE);
    (void)run_in(&c, "COMMIT");
    EXPECT_STR(told(&p.b), "1");
    session_close(&c);
    close_both(&p);
}

TEST(a_claim_does_not_wait_for_a_holder_that_completes_its_job)
{
    struct pair p = with_jobs(1, true, LATER);
    (void)run_in(&p.a, "BEGIN");
    EXPECT_STR(run_in(&p.a, "SELECT state FROM leasehold.complete(1, 1)"), "completed");
    EXPECT_STR(run_in(&p.b, CLAIM_ONE), "");
    EXPECT_STR(run_in(&p.b, "SELECT leasehold.await_freeing(false)"), "f");
    (void)run_in(&p.a, "ROLLBACK");
    EXPECT_STR(run_in(&p.b, CLAIM_ONE), "1");
    close_both(&p);
}

TEST(a_claim_does_not_wait_for_a_recovery_if_nothing_was_due)
{
    struct pair p = with_jobs(1, true, LATER);
    (void)run_in(&p.b, "BEGIN");
    (void)run_in(&p.b, "SELECT leasehold.recover()");
    /* By the clock of its session nothing is due. */
    EXPECT_STR(run_in(&p.a, CLAIM_ONE), "");
    (void)run_in(&p.b, "COMMIT");
    close_both(&p);
}

/* From now on a claim that would wait is refused instead. */
static void refuse_waits(struct session *s)
{
    EXPECT_STR(run_in(s, "CREATE OR REPLACE FUNCTION leasehold.await_freeing(has_taken boolean)"
                         " RETURNS boolean LANGUAGE plpgsql AS"
                         " $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'XX777'; END $$"),
               "");
}

#define CLAIM_OF_KIND(kind_) \
    "SELECT id FROM leasehold.claim('v', ARRAY['q'], kinds => ARRAY['" kind_ "'])"

TEST(a_claim_does_not_wait_for_recovery_or_promotion_in_other_queues)
{
    struct pair p = with_jobs(1, true, LATER);
    struct session c = session_open(LATER);
    (void)run_in(&p.a, "SELECT id FROM leasehold.enqueue('q', 'x', delay => '1 minute')");
    refuse_waits(&p.a);
    (void)run_in(&c, "BEGIN");
    EXPECT_STR(run_in(&c, "SELECT id FROM leasehold.claim('u', ARRAY['empty'])"), "");
    EXPECT_STR(run_in(&p.b, "SELECT id FROM leasehold.claim('v', ARRAY['unrelated'])"), "");
    EXPECT_STR(run_in(&p.b, "SELECT id FROM leasehold.claim('v', ARRAY['unrelated', 'q'])"),
               "XX777");
    (void)run_in(&c, "COMMIT");
    session_close(&c);
    close_both(&p);
}

TEST(a_claim_does_not_wait_for_a_recovery_of_other_kinds)
{
    struct pair p = with_jobs(0, false, LATER);
    struct session c = session_open(LATER);
    (void)run_in(&p.a, "SELECT id FROM leasehold.enqueue('q', 'x', kind => 'letter')");
    (void)run_in(&p.a, "SELECT id FROM leasehold.claim('w', ARRAY['q'], 1, '1 hour')");
    refuse_waits(&p.a);
    (void)run_in(&c, "BEGIN");
    (void)run_in(&c, "SELECT leasehold.recover()");
    EXPECT_STR(run_in(&p.b, CLAIM_OF_KIND("parcel")), "");
    EXPECT_STR(run_in(&p.b, CLAIM_OF_KIND("letter")), "XX777");
    (void)run_in(&c, "COMMIT");
    session_close(&c);
    close_both(&p);
}

/* The recovery of one kind frees the slot that another kind needs. */
TEST(a_claim_of_a_limited_queue_waits_for_the_recovery_of_any_kind)
{
    struct pair p = with_jobs(0, false, LATER);
    struct session c = session_open(LATER);
    (void)run_in(&p.a, "SELECT leasehold.queue_set('q', concurrency => 1)");
    (void)run_in(&p.a, "SELECT id FROM leasehold.enqueue('q', 'x', kind => 'letter')");
    (void)run_in(&p.a, "SELECT id FROM leasehold.claim('w', ARRAY['q'], 1, '1 hour')");
    (void)run_in(&p.a, "SELECT id FROM leasehold.enqueue('q', 'y', kind => 'parcel')");
    (void)run_in(&c, "BEGIN");
    (void)run_in(&c, "SELECT leasehold.recover()");
    begin_to_wait(p.b.conn, CLAIM_OF_KIND("parcel"));
    (void)run_in(&c, "COMMIT");
    EXPECT_STR(told(&p.b), "2");
    session_close(&c);
    close_both(&p);
}

TEST(a_claim_waits_for_the_recovery_of_its_job_from_a_silent_worker)
{
    struct pair p = with_jobs(1, false, LATER);
    struct session c = session_open(LATER);
    EXPECT_STR(run_in(&p.a, "INSERT INTO leasehold.worker(id, label, pid, interval_ms, multiplier,"
                            " registered_at, last_heartbeat_at, silent_at)"
                            " SELECT 'w', 'w', 1, 1000, 3, n, n, n + interval '3 s'"
                            " FROM leasehold.clock() n"),
               "");
    (void)run_in(&p.a, "SELECT id FROM leasehold.claim('w', ARRAY['q'], 1, '1 day')");
    (void)run_in(&c, "BEGIN");
    EXPECT_STR(run_in(&c, "SELECT leasehold.recover() -> 'entries_reclaimed'"), "1");
    begin_to_wait(p.b.conn, CLAIM_ONE);
    (void)run_in(&c, "COMMIT");
    EXPECT_STR(told(&p.b), "1");
    session_close(&c);
    close_both(&p);
}

TEST(a_claim_does_not_wait_forever_for_an_open_recovery)
{
    struct pair p = with_jobs(1, true, LATER);
    struct session c = session_open(LATER);
    (void)run_in(&c, "BEGIN");
    (void)run_in(&c, "SELECT leasehold.recover()");
    begin_to_wait(p.b.conn, CLAIM_ONE);
    EXPECT_STR(told(&p.b), "");
    (void)run_in(&c, "COMMIT");
    session_close(&c);
    close_both(&p);
}

/* Each has recovered the job that the other one wants: neither may wait for the other to end. */
TEST(claims_that_recovered_each_others_jobs_do_not_deadlock)
{
    struct pair p = with_jobs(1, true, LATER);
    struct session c = session_open(LATER);
    (void)run_in(&c, "BEGIN");
    EXPECT_STR(run_in(&c, "SELECT id FROM leasehold.claim('u', ARRAY['other'])"), "");
    (void)run_in(&p.a, "SELECT id FROM leasehold.enqueue('other', 'x')");
    (void)run_in(&p.a, "SELECT id FROM leasehold.claim('w', ARRAY['other'], 1, '1 hour')");
    (void)run_in(&p.b, "BEGIN");
    EXPECT_STR(run_in(&p.b, "SELECT id FROM leasehold.claim('v', ARRAY['q'])"), "");
    EXPECT_STR(run_in(&c, "SELECT id FROM leasehold.claim('u', ARRAY['other'])"), "");
    (void)run_in(&p.b, "COMMIT");
    (void)run_in(&c, "COMMIT");
    EXPECT_STR(run_in(&p.b, "SELECT id FROM leasehold.claim('v', ARRAY['q'])"), "1");
    EXPECT_STR(run_in(&p.b, "SELECT id FROM leasehold.claim('v', ARRAY['other'])"), "2");
    session_close(&c);
    close_both(&p);
}

TEST(of_two_ends_at_once_the_first_commit_wins)
{
    struct pair p = with_jobs(1, true, NOW);
    (void)run_in(&p.a, "BEGIN");
    EXPECT_STR(run_in(&p.a, "SELECT state FROM leasehold.fail(1, 1, 'no luck')"), "scheduled");
    begin_to_wait(p.b.conn, "SELECT state FROM leasehold.complete(1, 1)");
    (void)run_in(&p.a, "COMMIT");
    EXPECT_STR(told(&p.b), "LH008");
    EXPECT_STR(state_of(&p.b, 1), "scheduled");
    close_both(&p);
}

TEST(a_completion_that_waited_for_the_same_completion_succeeds)
{
    struct pair p = with_jobs(1, true, NOW);
    (void)run_in(&p.a, "BEGIN");
    EXPECT_STR(run_in(&p.a, "SELECT state FROM leasehold.complete(1, 1)"), "completed");
    begin_to_wait(p.b.conn, "SELECT state FROM leasehold.complete(1, 1)");
    (void)run_in(&p.a, "COMMIT");
    EXPECT_STR(told(&p.b), "completed");
    close_both(&p);
}

TEST(a_holder_learns_that_its_job_is_being_cancelled)
{
    struct pair p = with_jobs(1, true, NOW);
    (void)run_in(&p.b, "BEGIN");
    EXPECT_STR(run_in(&p.b, "SELECT state FROM leasehold.cancel(1)"), "cancelled");
    begin_to_wait(p.a.conn, "SELECT state FROM leasehold.heartbeat(1, 1)");
    (void)run_in(&p.b, "COMMIT");
    EXPECT_STR(told(&p.a), "LH009"); /* LH_ECANCELLED */
    close_both(&p);
}

TEST(batches_in_opposite_order_do_not_deadlock)
{
    static const char *const acts[][2] = {
        {"SELECT count(*) FROM leasehold.complete_many('{3,2,1}', '{1,1,1}', '{}', '{}')",
         "SELECT count(*) FROM leasehold.complete_many('{1,2,3}', '{1,1,1}', '{}', '{}')"},
        {"SELECT count(*) FROM leasehold.fail_many('{3,2,1}', '{1,1,1}', '{a,a,a}', '{}', '{}')",
         "SELECT count(*) FROM leasehold.fail_many('{1,2,3}', '{1,1,1}', '{a,a,a}', '{}', '{}')"},
        {"SELECT count(*) FROM leasehold.release_many('{3,2,1}', '{1,1,1}', 0)",
         "SELECT count(*) FROM leasehold.release_many('{1,2,3}', '{1,1,1}', 0)"},
    };
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        struct pair p = with_jobs(3, true, NOW);
        struct session c = session_open(NOW);
        (void)run_in(&p.a, "BEGIN");
        EXPECT_STR(run_in(&p.a, "SELECT state FROM leasehold.heartbeat(2, 1)"), "running");
        begin_to_wait(p.b.conn, acts[i][0]);
        begin_to_wait(c.conn, acts[i][1]);
        (void)run_in(&p.a, "COMMIT");
        EXPECT_STR(told(&p.b), "0");
        EXPECT(strcmp(told(&c), "40P01") != 0); /* no deadlock */
        session_close(&c);
        close_both(&p);
        test_store_renew();
    }
}

/* ---------------------------------------------------------------- claims and enqueues */

TEST(a_claim_skips_jobs_that_another_claim_has_locked)
{
    struct pair p = with_jobs(2, false, NOW);
    (void)run_in(&p.a, "BEGIN");
    EXPECT_STR(run_in(&p.a, "SELECT id FROM leasehold.claim('w', ARRAY['q'], 1, '1 hour')"), "1");
    EXPECT_STR(run_in(&p.b, "SELECT id FROM leasehold.claim('v', ARRAY['q'], 1, '1 hour')"), "2");
    EXPECT_STR(run_in(&p.b, "SELECT id FROM leasehold.claim('v', ARRAY['q'], 1, '1 hour')"), "");
    (void)run_in(&p.a, "ROLLBACK");
    EXPECT_STR(run_in(&p.b, "SELECT id FROM leasehold.claim('v', ARRAY['q'], 1, '1 hour')"), "1");
    close_both(&p);
}

TEST(a_job_that_commits_late_is_found_after_later_ones_were_claimed)
{
    struct pair p = with_jobs(0, false, NOW);
    (void)run_in(&p.a, "BEGIN");
    EXPECT_STR(run_in(&p.a, "SELECT id FROM leasehold.enqueue('q', 'slow')"), "1");
    for (int i = 2; i < 50; i++) {
        char id[8];
        (void)snprintf(id, sizeof id, "%d", i);
        EXPECT_STR(run_in(&p.b, "SELECT id FROM leasehold.enqueue('q', 'quick')"), id);
        EXPECT_STR(run_in(&p.b, "SELECT id FROM leasehold.claim('v', ARRAY['q'], 1, '1 hour')"),
                   id);
    }
    (void)run_in(&p.a, "COMMIT");
    for (int i = 0; i < TRIES; i++) {
        if (strcmp(run_in(&p.b, "SELECT id FROM leasehold.claim('v', ARRAY['q'], 1, '1 hour')"),
                   "1") == 0)
            break;
        EXPECT(i + 1 < TRIES);
        (void)usleep(5000);
    }
    close_both(&p);
}

TEST(two_enqueues_with_one_key_at_once_create_one_job)
{
    struct pair p = with_jobs(0, false, NOW);
    (void)run_in(&p.a, "BEGIN");
    EXPECT_STR(run_in(&p.a, "SELECT id FROM leasehold.enqueue('q', 'a', key => 'k')"), "1");
    begin_to_wait(p.b.conn,
                  "SELECT id || ' ' || duplicate FROM leasehold.enqueue('q', 'b', key => 'k')");
    (void)run_in(&p.a, "COMMIT");
    EXPECT_STR(told(&p.b), "1 true");
    EXPECT_STR(run_in(&p.b, "SELECT count(*) FROM leasehold.job"), "1");
    close_both(&p);
}

TEST(two_enqueues_with_one_request_id_at_once_create_one_job)
{
    struct pair p = with_jobs(0, false, NOW);
    (void)run_in(&p.a, "BEGIN");
    EXPECT_STR(run_in(&p.a, "SELECT id FROM leasehold.enqueue('q', 'a', request => 'r')"), "1");
    begin_to_wait(p.b.conn,
                  "SELECT id || ' ' || duplicate FROM leasehold.enqueue('q', 'a', request => 'r')");
    (void)run_in(&p.a, "COMMIT");
    EXPECT_STR(told(&p.b), "1 true");
    EXPECT_STR(run_in(&p.b, "SELECT count(*) FROM leasehold.job"), "1");
    close_both(&p);
}

TEST(an_enqueue_in_a_transaction_that_is_rolled_back_leaves_nothing)
{
    struct pair p = with_jobs(0, false, NOW);
    (void)run_in(&p.a, "BEGIN");
    (void)run_in(&p.a, "SELECT id FROM leasehold.enqueue('q', 'a', key => 'k')");
    EXPECT_STR(run_in(&p.b, "SELECT id FROM leasehold.claim('v', ARRAY['q'], 1, '1 hour')"), "");
    (void)run_in(&p.a, "ROLLBACK");
    EXPECT_STR(run_in(&p.b, "SELECT duplicate FROM leasehold.enqueue('q', 'b', key => 'k')"), "f");
    EXPECT_STR(run_in(&p.b, "SELECT count(*) FROM leasehold.job"), "1");
    close_both(&p);
}

/* The claim sees what happened to the queue while it waited for the job that it completes. */
TEST(a_complete_and_claim_takes_nothing_from_a_queue_paused_meanwhile)
{
    struct pair p = with_jobs(2, false, NOW);
    EXPECT_STR(run_in(&p.b, "SELECT id FROM leasehold.claim('w', 'q')"), "1");
    (void)run_in(&p.a, "BEGIN");
    EXPECT_STR(run_in(&p.a, "SELECT (leasehold.heartbeat(1, 1)).state"), "running");
    begin_to_wait(p.b.conn, "SELECT id FROM leasehold.claim_one('w', 'q', NULL, true, 1, 1, NULL)");
    (void)run_in(&p.a, "SELECT leasehold.queue_pause('q')");
    (void)run_in(&p.a, "COMMIT");
    EXPECT_STR(told(&p.b), "");
    EXPECT_STR(run_in(&p.a, "SELECT string_agg(state, ' ' ORDER BY id) FROM leasehold.job"),
               "completed pending");
    close_both(&p);
}

/* ---------------------------------------------------------------- a lost answer */

#define ONE_OF_NUMBER_78 "SELECT id FROM leasehold.enqueue_many('q', '{0}', '{x}', of_nonce => 78)"
#define NONCE_USED "23505" /* unique_violation, which the library reports as LH_EBUSY */
#define WHAT_BECAME_OF_IT \
    "SELECT id || ' ' || duplicate FROM leasehold.enqueue('q', 'x', request => 'lh:78:0')"

/* The repeated enqueue waits for the first one to end. */
static void expect_told(const char *end, const char *answer)
{
    struct pair p = with_jobs(0, false, NOW);
    (void)run_in(&p.a, "BEGIN");
    EXPECT_STR(run_in(&p.a, ONE_OF_NUMBER_78), "1");
    begin_to_wait(p.b.conn, WHAT_BECAME_OF_IT);
    (void)run_in(&p.a, "%s", end);
    EXPECT_STR(told(&p.b), answer);
    EXPECT_STR(run_in(&p.b, "SELECT count(*) FROM leasehold.job"), "1");
    close_both(&p);
}

TEST(a_repeated_enqueue_waits_for_the_first_try_and_gets_its_job)
{
    expect_told("COMMIT", "1 true");
}

TEST(a_repeated_enqueue_enqueues_if_the_first_try_was_rolled_back)
{
    expect_told("ROLLBACK", "2 false");
}

/* The enqueue was repeated: if the first try arrives late, it must not enqueue again. */
TEST(a_first_try_that_arrives_after_its_repeat_is_refused)
{
    struct pair p = with_jobs(0, false, NOW);
    EXPECT_STR(run_in(&p.b, WHAT_BECAME_OF_IT), "1 false");
    EXPECT_STR(run_in(&p.a, ONE_OF_NUMBER_78), "LH011"); /* LH_EBUSY */
    EXPECT_STR(run_in(&p.a, "SELECT leasehold.enqueue_one('q', 0, 'x', 78)"), NONCE_USED);
    EXPECT_STR(run_in(&p.b, WHAT_BECAME_OF_IT), "1 true");
    EXPECT_STR(run_in(&p.a, "SELECT count(*) FROM leasehold.job"), "1");
    EXPECT_STR(run_in(&p.a, "SELECT leasehold.enqueue_one('q', 0, 'x', 79) > 1"), "t");
    close_both(&p);
}

TEST(a_first_try_is_refused_after_its_repeat_despite_a_clock_jump)
{
    struct pair p = with_jobs(0, false, NOW);
    EXPECT_STR(run_in(&p.b, WHAT_BECAME_OF_IT), "1 false");
    (void)run_in(&p.b,
                 "SELECT leasehold.shift_leases(leasehold.clock(), '2 days', leasehold.clock())");
    EXPECT_STR(run_in(&p.b,
                      "SELECT at >= leasehold.clock() + interval '2 days' FROM leasehold.delta "
                      "WHERE act = 'n'"),
               "t");
    close_both(&p);
}

/* The nonce is kept for a day, and not folded into the counts. */
TEST(a_first_try_is_refused_after_its_repeat_and_maintenance)
{
    struct pair p = with_jobs(0, false, NOW);
    EXPECT_STR(run_in(&p.b, WHAT_BECAME_OF_IT), "1 false");
    (void)run_in(&p.b, "SELECT leasehold.maintain_round()");
    EXPECT_STR(run_in(&p.b, "SELECT count(*) FROM leasehold.delta"), "1");
    EXPECT_STR(run_in(&p.a, "SELECT leasehold.enqueue_one('q', 0, 'x', 78)"), NONCE_USED);
    (void)run_in(&p.b, "UPDATE leasehold.delta SET at = at - interval '25 hours'");
    (void)run_in(&p.b, "SELECT leasehold.maintain_round()");
    EXPECT_STR(run_in(&p.b, "SELECT count(*) FROM leasehold.delta"), "0");
    EXPECT_STR(run_in(&p.b, "SELECT pending FROM leasehold.queues()"), "1");
    close_both(&p);
}

TEST(an_advisory_lock_of_another_role_does_not_block_a_repeated_enqueue)
{
    struct pair p = with_jobs(0, false, NOW);
    struct session stranger = session_open(NOW);
    EXPECT_STR(run_in(&p.a, ONE_OF_NUMBER_78), "1");
    (void)run_in(&stranger, "SELECT pg_advisory_lock(78)");
    (void)run_in(&p.b, "SET statement_timeout = '8 s'");
    EXPECT_STR(run_in(&p.b, WHAT_BECAME_OF_IT), "1 true");
    (void)run_in(&stranger, "SELECT pg_advisory_lock(79)");
    EXPECT_STR(run_in(&p.b, "SELECT leasehold.enqueue_one('q', 0, 'x', 79) > 1"), "t");
    session_close(&stranger);
    close_both(&p);
}

TEST(sleepers_are_known_after_a_clock_jump)
{
    struct pair p = with_jobs(0, false, NOW);
    (void)run_in(&p.a, "SELECT leasehold.subscribe('{q}')");
    (void)run_in(&p.b, "SELECT leasehold.shift_leases(leasehold.clock() + interval '2 days', "
                       "'2 days', leasehold.clock())");
    EXPECT_STR(
        run_in(&p.b,
               "SELECT sleepers_until > leasehold.clock() + interval '2 days' FROM leasehold.meta"),
        "t");
    close_both(&p);
}

TEST(a_first_try_is_refused_while_its_repeat_is_open)
{
    struct pair p = with_jobs(0, false, NOW);
    (void)run_in(&p.b, "BEGIN");
    EXPECT_STR(run_in(&p.b, WHAT_BECAME_OF_IT), "1 false");
    begin_to_wait(p.a.conn, ONE_OF_NUMBER_78);
    (void)run_in(&p.b, "COMMIT");
    EXPECT_STR(told(&p.a), "LH011");
    close_both(&p);
}

/* The repeat could not see what is committed while it waits. */
TEST(a_repeated_enqueue_under_repeatable_read_is_refused)
{
    struct pair p = with_jobs(0, false, NOW);
    (void)run_in(&p.b, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    EXPECT_STR(run_in(&p.b, "SELECT count(*) FROM leasehold.job"), "0");
    EXPECT_STR(run_in(&p.a, ONE_OF_NUMBER_78), "1");
    EXPECT_STR(run_in(&p.b, WHAT_BECAME_OF_IT), "LH003"); /* LH_EINVAL */
    (void)run_in(&p.b, "ROLLBACK");
    EXPECT_STR(run_in(&p.b, WHAT_BECAME_OF_IT), "1 true");
    close_both(&p);
}

TEST(a_subscription_that_waits_for_a_lock_does_not_block_others)
{
    struct pair p = with_jobs(0, false, NOW);
    struct session c = session_open(NOW);
    (void)run_in(&p.a, "BEGIN");
    EXPECT_STR(run_in(&p.a, "INSERT INTO leasehold.sleeper VALUES ('q', true, leasehold.clock())"),
               "");
    begin_to_wait(p.b.conn, "SELECT leasehold.subscribe('{q}')");
    EXPECT_STR(run_in(&c, "SELECT one FROM leasehold.meta FOR UPDATE NOWAIT"), "t");
    (void)run_in(&p.a, "ROLLBACK");
    EXPECT_STR(told(&p.b), "t");
    EXPECT_STR(run_in(&c, "SELECT sleepers_until > leasehold.clock() FROM leasehold.meta"), "t");
    session_close(&c);
    close_both(&p);
}
