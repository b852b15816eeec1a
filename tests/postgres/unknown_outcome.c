/* What the caller is told about an act that had to be repeated. */
#include "postgres/proxy.h"
#include "postgres/session.h"

#include "core/core.h"
#include "store/postgres/wire.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE = 5000, LONG_MS = 20000 };

static lh_store *open_at(const char *url)
{
    lh_store *store = NULL;
    if (lh_open(url, &(lh_open_opts){.busy_ms = LONG_MS}, &store) != LH_OK)
        FAIL("%s", lh_errmsg(store));
    return store;
}

static lh_new_job job_with(const char *key)
{
    return (lh_new_job){.payload = "x", .payload_len = 1, .key = key};
}

static lh_enqueued enqueue_one(lh_store *store, const char *key)
{
    lh_new_job job = job_with(key);
    lh_enqueued out;

    EXPECT_OK(lh_enqueue(store, "q", &job, 1, NULL, &out));
    return out;
}

static int64_t count_jobs(void)
{
    PGconn *session = session_at(START_MS);
    int64_t n = strtoll(said(session, "SELECT count(*) FROM leasehold.job"), NULL, 10);

    PQfinish(session);
    return n;
}

/* ---------------------------------------------------------------- enqueue */

TEST(a_repeated_enqueue_reports_only_jobs_of_others_as_duplicates)
{
    struct proxy *proxy = proxy_start();
    lh_store *far = open_at(proxy->url), *near = open_at(test_store());
    lh_enqueued out, theirs = enqueue_one(near, "theirs");

    (void)enqueue_one(far, "warm");
    proxy_cut(proxy, TO_SERVER, 0, false); /* it never arrives */
    out = enqueue_one(far, "theirs");
    EXPECT(proxy_mend(proxy));
    EXPECT_EQ(out.id, theirs.id);
    EXPECT(out.duplicate);
    proxy_cut(proxy, TO_CLIENT, 0, false); /* it is done, and the answer is lost */
    out = enqueue_one(far, "ours");
    EXPECT(proxy_mend(proxy));
    EXPECT(!out.duplicate);
    EXPECT(enqueue_one(far, "ours").duplicate);
    EXPECT_EQ(count_jobs(), 3);
    lh_close(far);
    lh_close(near);
    proxy_stop(proxy);
}

TEST(a_repeated_batch_reports_the_truth_about_each_job)
{
    struct proxy *proxy = proxy_start();
    PGconn *session = session_at(START_MS);
    lh_store *far = open_at(proxy->url);
    lh_new_job jobs[] = {job_with("theirs"), job_with("ours"), job_with(NULL)};
    lh_enqueued out[3], theirs = enqueue_one(far, "theirs");

    proxy_cut(proxy, TO_CLIENT, 0, false);
    EXPECT_OK(lh_enqueue(far, "q", jobs, 3, NULL, out));
    EXPECT(proxy_mend(proxy));
    EXPECT_EQ(out[0].id, theirs.id);
    EXPECT(out[0].duplicate && !out[1].duplicate && !out[2].duplicate);
    EXPECT_EQ(count_jobs(), 3);
    /* The first try had the request id, too: it cannot arrive late, and nobody searches for it. */
    EXPECT_STR(said(session, "SELECT count(*) FROM leasehold.delta WHERE act = 'n'"), "0");
    PQfinish(session);
    lh_close(far);
    proxy_stop(proxy);
}

/* Jobs of the first try are searched among the newest ids, also by a process that has just
 * started. */
TEST(jobs_of_a_lost_enqueue_are_searched_at_the_end_of_the_table)
{
    struct proxy *proxy = proxy_start();
    PGconn *session = session_at(START_MS);
    lh_new_job job = job_with(NULL);
    lh_enqueued out;
    char request[64];

    EXPECT_STR(said(session, "INSERT INTO leasehold.job(queue, plain)"
                             " SELECT 'q', false FROM generate_series(1, 20000)"),
               "");
    EXPECT_STR(said(session, "ANALYZE leasehold.job"), "");
    lh_store *far = NULL;
    EXPECT_OK(lh_open(proxy->url, &(lh_open_opts){.busy_ms = 100}, &far));
    proxy_cut(proxy, TO_SERVER, 0, true);
    EXPECT_STATUS(lh_enqueue(far, "q", &job, 1, NULL, &out), LH_EUNKNOWN);
    (void)proxy_mend(proxy);
    (void)snprintf(request, sizeof request, "%s", lh_last_request(far));
    EXPECT_CONTAINS(request, ":20000");
    EXPECT_STR(said(session, "BEGIN"), "");
    EXPECT_STR(said(session, "SELECT leasehold.jobs_of_nonce('%s', 0)", request), "");
    EXPECT_STR(said(session, "SELECT seq_scan FROM pg_stat_xact_all_tables"
                             " WHERE relid = 'leasehold.job'::regclass"),
               "0");
    PQfinish(session);
    lh_close(far);
    proxy_stop(proxy);
}

/* ---------------------------------------------------------------- acts that end a run */

struct end {
    lh_store *store;
    lh_job job;
    int (*perform)(struct end *end);
    int rc;
};

static int release(struct end *end)
{
    return lh_release(end->store, &(lh_ref){end->job.id, end->job.token}, 1, 0, NULL, NULL);
}

static int fail_now(struct end *end)
{
    return lh_fail(
        end->store,
        &(lh_failure){
            .job = end->job.id, .token = end->job.token, .error = "no luck", .retry_in_ms = LH_NOW},
        1, NULL, NULL);
}

static void *perform(void *arg)
{
    struct end *end = arg;

    end->rc = end->perform(end);
    return NULL;
}

static int claim(lh_store *store, lh_job *job)
{
    const char *queue = "q";
    lh_jobs *jobs = NULL;
    int rc =
        lh_claim(store, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w"}, &jobs);

    if (rc == LH_OK)
        *job = jobs->job[0];
    lh_jobs_free(jobs);
    return rc;
}

/* The answer is lost, and before the repeat another worker has claimed the job. */
static void expect_unknown(int (*act)(struct end *end))
{
    struct proxy *proxy = proxy_start();
    lh_store *near = open_at(test_store());
    struct end end = {.store = open_at(proxy->url), .perform = act};
    lh_job next = {0};
    pthread_t thread;
    int rc = LH_EMPTY;

    (void)enqueue_one(end.store, NULL);
    EXPECT_OK(claim(end.store, &end.job));
    proxy_cut(proxy, TO_CLIENT, 0, true);
    EXPECT_EQ(pthread_create(&thread, NULL, perform, &end), 0);
    for (int i = 0; i < PATIENCE && rc == LH_EMPTY; i++) {
        rc = claim(near, &next);
        (void)usleep(1000);
    }
    EXPECT_OK(rc);
    EXPECT_EQ(next.id, end.job.id);
    for (int i = 0; i < PATIENCE && !proxy_has_cut(proxy); i++)
        (void)usleep(1000);
    EXPECT(proxy_mend(proxy));
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT_STATUS(end.rc, LH_EUNKNOWN);
    lh_close(end.store);
    lh_close(near);
    proxy_stop(proxy);
}

TEST(a_release_is_unknown_if_others_claimed_its_job_before_the_repeat)
{
    expect_unknown(release);
}

TEST(a_fail_is_unknown_if_others_claimed_its_job_before_the_repeat)
{
    expect_unknown(fail_now);
}

/* ---------------------------------------------------------------- repeats */

/* Refuses the commit of an enqueue n times. */
static void refuse_commits(int n)
{
    PGconn *session = session_at(START_MS);

    EXPECT_STR(said(session, "CREATE SEQUENCE refusals"), "");
    EXPECT_STR(said(session,
                    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                    " IF nextval('public.refusals') <= %d THEN RAISE serialization_failure; END IF;"
                    " RETURN NULL; END $$",
                    n),
               "");
    EXPECT_STR(said(session,
                    "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON leasehold.job"
                    " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()"),
               "");
    PQfinish(session);
}

TEST(an_act_that_cannot_be_serialized_is_repeated_and_done_once)
{
    lh_store *store = open_at(test_store());

    refuse_commits(4);
    EXPECT(!enqueue_one(store, NULL).duplicate);
    EXPECT_EQ(count_jobs(), 1);
    lh_close(store);
}

TEST(an_act_that_cannot_be_serialized_five_times_fails)
{
    lh_store *store = open_at(test_store());
    lh_new_job job = job_with(NULL);
    lh_enqueued out;

    refuse_commits(5);
    EXPECT_STATUS(lh_enqueue(store, "q", &job, 1, NULL, &out), LH_EBUSY);
    EXPECT_EQ(count_jobs(), 0);
    lh_close(store);
}
