/*
 * Claims that need several transactions: a claim fails corrupt jobs and then searches sound ones.
 * What its first query got is already claimed, so a failure of a later query must not lose it.
 * Also: what a claim reads besides the jobs.
 */
#include "session.h"

#include <stdio.h>
#include <string.h>

enum { MOST_TEXT = 500 };

static lh_store *open_with_jobs(PGconn *session, const lh_open_opts *opts,
                                const char *const *payloads, size_t n)
{
    lh_store *store = NULL;
    lh_enqueued out;

    EXPECT_OK(lh_open(test_store(), opts, &store));
    for (size_t i = 0; i < n; i++)
        EXPECT_OK(
            lh_enqueue(store, "mail",
                       &(lh_new_job){.payload = payloads[i], .payload_len = strlen(payloads[i])}, 1,
                       NULL, &out));
    EXPECT_STR(said(session, "UPDATE leasehold.job SET payload = 'x' WHERE payload = 'rotten'"),
               "");
    return store;
}

static int claim(lh_store *store, size_t n, const char *request, lh_jobs **out)
{
    const char *queue = "mail";

    return lh_claim(store,
                    &(lh_claim_opts){.queues = &queue,
                                     .n_queues = 1,
                                     .n = n,
                                     .worker = "w1",
                                     .lease_ms = 600000,
                                     .request = request},
                    out);
}

/* A trigger with this body runs when the job with the payload "trap" is claimed, as if by the
 * session that set it. */
static void set_trap(PGconn *session, const char *body)
{
    EXPECT_STR(said(session,
                    "CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS"
                    " $$ BEGIN %s;"
                    " RETURN NEW; END $$",
                    body),
               "");
    EXPECT_STR(said(session, "CREATE TRIGGER trap BEFORE UPDATE ON leasehold.job FOR EACH ROW WHEN"
                             " (NEW.payload = 'trap' AND NEW.state = 'running')"
                             " EXECUTE FUNCTION trap()"),
               "");
}

static void keep_warning(void *arg, const lh_log_entry *entry)
{
    if (entry->level == LH_LOG_WARN)
        (void)snprintf(arg, MOST_TEXT, "%s", entry->line);
}

static void expect_the_sound_one_is_handed_out(const char *trap, const char *warning)
{
    static const char *const payloads[] = {"rotten", "sound", "trap"};
    PGconn *session = session_at(START_MS);
    char warned[MOST_TEXT] = "";
    lh_store *store = open_with_jobs(
        session, &(lh_open_opts){.log = keep_warning, .log_arg = warned}, payloads, 3);
    lh_jobs *jobs = NULL;

    set_trap(session, trap);
    EXPECT_OK(claim(store, 2, NULL, &jobs));
    EXPECT_EQ(jobs->n, 1);
    EXPECT_EQ(jobs->job[0].id, 2);
    EXPECT_STR(lh_errmsg(store), "");
    EXPECT_CONTAINS(warned, "claim got 1 of 2 jobs: ");
    EXPECT_CONTAINS(warned, warning);
    EXPECT_STR(said(session, "SELECT string_agg(state, ' ' ORDER BY id) FROM leasehold.job"),
               "failed running pending");
    EXPECT_OK(lh_complete(store, &(lh_done){.job = 2, .token = jobs->job[0].token}, 1, NULL, NULL));
    lh_jobs_free(jobs);

    EXPECT_STR(said(session, "DROP TRIGGER trap ON leasehold.job"), "");
    EXPECT_OK(claim(store, 2, NULL, &jobs));
    EXPECT_EQ(jobs->job[0].id, 3);
    lh_jobs_free(jobs);
    lh_close(store);
    PQfinish(session);
}

TEST(a_claim_returns_its_jobs_when_its_second_query_is_refused)
{
    expect_the_sound_one_is_handed_out("RAISE 'not this one'", "not this one");
}

TEST(a_claim_returns_its_jobs_when_its_second_query_loses_the_connection)
{
    expect_the_sound_one_is_handed_out(
        "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10)",
        "terminating connection");
}

static void break_fail_rotten(PGconn *session)
{
    EXPECT_STR(said(session, "ALTER FUNCTION leasehold.fail_corrupt RENAME TO kept"), "");
    EXPECT_STR(said(session, "CREATE FUNCTION leasehold.fail_corrupt(bigint, bigint) RETURNS void"
                             " LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$"),
               "");
}

static void mend_fail_rotten(PGconn *session)
{
    EXPECT_STR(said(session, "DROP FUNCTION leasehold.fail_corrupt"), "");
    EXPECT_STR(said(session, "ALTER FUNCTION leasehold.kept RENAME TO fail_corrupt"), "");
}

TEST(a_corrupt_job_that_cannot_be_failed_does_not_hide_sound_jobs)
{
    static const char *const payloads[] = {"first", "rotten", "second", "rotten"};
    PGconn *session = session_at(START_MS);
    lh_store *store = open_with_jobs(session, NULL, payloads, 4);
    lh_jobs *jobs = NULL;

    break_fail_rotten(session);
    EXPECT_OK(claim(store, 4, NULL, &jobs));
    EXPECT_EQ(jobs->n, 2);
    EXPECT_EQ(jobs->job[0].id, 1);
    EXPECT_EQ(jobs->job[1].id, 3);
    lh_jobs_free(jobs);
    lh_close(store);
    PQfinish(session);
}

TEST(a_completion_stands_when_the_corrupt_job_behind_it_cannot_be_failed)
{
    static const char *const payloads[] = {"first", "rotten"};
    PGconn *session = session_at(START_MS);
    lh_store *store = open_with_jobs(session, NULL, payloads, 2);
    const char *queue = "mail";
    lh_jobs *jobs = NULL, *next = NULL;
    int status = LH_EFAIL;

    EXPECT_OK(claim(store, 1, NULL, &jobs));
    break_fail_rotten(session);
    EXPECT_STATUS(
        lh_complete_claim(store, &(lh_done){.job = jobs->job[0].id, .token = jobs->job[0].token}, 1,
                          &status, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w"},
                          &next),
        LH_EMPTY);
    EXPECT_OK(status);
    EXPECT_STR(said(session, "SELECT string_agg(state, ' ' ORDER BY id) FROM leasehold.job"),
               "completed running");
    lh_jobs_free(jobs);
    lh_close(store);
    PQfinish(session);
}

TEST(a_request_that_failed_on_a_corrupt_job_gets_all_its_jobs_on_repeat)
{
    static const char *const payloads[] = {"first", "rotten", "second"};
    PGconn *session = session_at(START_MS);
    lh_store *store = open_with_jobs(session, NULL, payloads, 3);
    lh_jobs *jobs = NULL;

    break_fail_rotten(session);
    EXPECT_STATUS(claim(store, 3, "r-1", &jobs), LH_EFAIL);
    EXPECT_CONTAINS(lh_errmsg(store), "not today");
    mend_fail_rotten(session);
    EXPECT_OK(claim(store, 3, "r-1", &jobs));
    EXPECT_EQ(jobs->n, 2);
    EXPECT_EQ(jobs->job[0].id, 1);
    EXPECT_EQ(jobs->job[1].id, 3);
    EXPECT_STR(said(session, "SELECT string_agg(state, ' ' ORDER BY id) FROM leasehold.job"),
               "running failed running");
    lh_jobs_free(jobs);
    lh_close(store);
    PQfinish(session);
}

/* The request has its answer, so the claim does not wait for other jobs. */
TEST(a_request_that_finds_only_a_corrupt_job_returns_at_once)
{
    static const char *const payloads[] = {"rotten"};
    PGconn *session = session_at(START_MS);
    lh_store *store = open_with_jobs(session, NULL, payloads, 1);
    const char *queue = "mail";
    lh_jobs *jobs = NULL;

    EXPECT_STATUS(
        lh_claim(
            store,
            &(lh_claim_opts){
                .queues = &queue, .n_queues = 1, .worker = "w1", .request = "r-1", .wait_ms = -1},
            &jobs),
        LH_EMPTY);
    lh_close(store);
    PQfinish(session);
}

TEST(a_claim_revives_a_worker_that_was_marked_dead)
{
    static const char *const payloads[] = {"first", "second"};
    PGconn *session = session_at(START_MS);
    lh_store *store = open_with_jobs(session, NULL, payloads, 2);
    lh_jobs *jobs = NULL;

    done(session, "SELECT leasehold.worker_heartbeat('w1')");
    done(session, "UPDATE leasehold.worker SET pid = 1, last_heartbeat_at = now(),"
                  " silent_at = now() + interval '1 hour'");
    EXPECT_OK(claim(store, 1, NULL, &jobs));
    lh_jobs_free(jobs);
    done(session, "UPDATE leasehold.worker SET state = 'dead', silent_at = NULL, stuck = true,"
                  " uncleaned = 'thought dead'");
    EXPECT_OK(claim(store, 1, NULL, &jobs));
    lh_jobs_free(jobs);
    EXPECT_STR(said(session, "SELECT state FROM leasehold.worker"), "alive");
    lh_close(store);
    PQfinish(session);
}

/* run.py checks that the server compiles no query of it. */
TEST(claims_of_single_jobs_raise_the_claim_floor)
{
    enum { CLAIMS = 200 };
    PGconn *session = session_at(START_MS);
    lh_store *store = NULL;
    lh_jobs *jobs = NULL;

    EXPECT_OK(lh_open(test_store(), NULL, &store));
    done(session, "INSERT INTO leasehold.job(queue) SELECT 'mail' FROM generate_series(1, 300)");
    for (int i = 0; i < CLAIMS; i++) {
        EXPECT_OK(claim(store, 1, NULL, &jobs));
        lh_jobs_free(jobs);
    }
    EXPECT_STR(said(session, "SELECT queue, priority, low FROM leasehold.claim_floor"),
               "mail 0 200");
    lh_close(store);
    PQfinish(session);
}

static void keep_notice(void *arg, const char *message)
{
    (void)snprintf(arg, MOST_TEXT, "%s", message);
}

/* There may be millions of counts that are not folded yet. */
TEST(a_claim_of_an_unknown_queue_does_not_read_all_unfolded_counts)
{
    PGconn *session = session_at(START_MS);
    char notice[MOST_TEXT] = "";

    (void)PQsetNoticeProcessor(session, keep_notice, notice);
    done(session, "SET client_min_messages = notice");
    EXPECT_STR(said(session, "SELECT count(*) FROM leasehold.claim('w1', 'nothing')"), "0");
    EXPECT_CONTAINS(notice, "queue \"nothing\" has never been used");
    notice[0] = '\0';
    EXPECT_STR(said(session,
                    "INSERT INTO leasehold.delta SELECT 'mail', leasehold.clock(), 'o', NULL, "
                    "NULL, 0 FROM generate_series(1, 100000)"),
               "");
    done(session, "BEGIN");
    EXPECT_STR(said(session, "SELECT count(*) FROM leasehold.claim('w1', 'nothing')"), "0");
    EXPECT_STR(said(session,
                    "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) < 20000 "
                    "FROM pg_stat_xact_user_tables WHERE relid = 'leasehold.delta'::regclass"),
               "t");
    done(session, "COMMIT");
    EXPECT_STR(notice, ""); /* not known whether the queue was ever used, so no warning */
    PQfinish(session);
}
