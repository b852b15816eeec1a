/*
 * Connections are cut at every step of a conversation, in either direction. What the caller is told
 * must agree with the database, and a repeat with the same identity must do the act once.
 *
 * A step is a message of the protocol: the cut comes before it or in its middle. With
 * $TEST_CUT_STEP it comes at every byte, or every N bytes. A pooler that has lost its server says
 * so, and knows as little as the client about the act.
 */
#include "postgres/proxy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LONGEST_S = 240, TRIES = 50, INSIDE = 3, MANY = 3 };

struct scene {
    struct proxy *proxy;
    lh_store *far, *near; /* through the proxy, and directly */
    int round;
    char queue[32], request[64];
    lh_job job; /* held by "w-1" when the act begins; its strings may not be read */
};

struct deed {
    const char *name;
    void (*prepare)(struct scene *scene);
    int (*perform)(struct scene *scene);
    bool (*stands)(
        struct scene *scene); /* is it done? The function fails the test if it was done twice */
    bool nameless; /* has no identity: a repeat may be refused, because the first try worked */
};

/* ---------------------------------------------------------------- what the database has */

static lh_jobs *jobs_of_round(struct scene *scene)
{
    lh_jobs *jobs = NULL;
    EXPECT_OK(
        lh_job_list(scene->near, &(lh_job_filter){.queue = scene->queue, .limit = 10}, &jobs));
    return jobs;
}

static lh_job job_now(struct scene *scene)
{
    lh_jobs *jobs = jobs_of_round(scene);
    EXPECT_EQ(jobs->n, 1);
    lh_job job = jobs->job[0];
    lh_jobs_free(jobs);
    return job;
}

static int64_t events_of(struct scene *scene, int64_t job, const char *type)
{
    lh_events *events = NULL;
    int64_t n = 0;

    EXPECT_OK(lh_event_list(scene->near, &(lh_event_filter){.job = job, .limit = 100}, &events));
    for (size_t i = 0; i < events->n; i++)
        n += strcmp(events->event[i].type, type) == 0;
    lh_events_free(events);
    return n;
}

/* ---------------------------------------------------------------- enqueue */

static void prepare_nothing(struct scene *scene)
{
    (void)scene;
}

static int perform_enqueue(struct scene *scene)
{
    lh_enqueued out;
    int rc =
        lh_enqueue(scene->far, scene->queue, &(lh_new_job){.payload = "hello", .payload_len = 5}, 1,
                   scene->request[0] ? scene->request : NULL, &out);

    if (rc == LH_EUNKNOWN)
        (void)snprintf(scene->request, sizeof scene->request, "%s", lh_last_request(scene->far));
    if (rc == LH_OK)
        EXPECT_EQ(out.id, job_now(scene).id);
    return rc;
}

static void prepare_request(struct scene *scene)
{
    (void)snprintf(scene->request, sizeof scene->request, "r-%s", scene->queue);
}

static bool stands_enqueue(struct scene *scene)
{
    lh_jobs *jobs = jobs_of_round(scene);
    size_t n = jobs->n;

    lh_jobs_free(jobs);
    EXPECT(n <= 1);
    return n == 1;
}

static int perform_enqueue_many(struct scene *scene)
{
    lh_new_job job = {.payload = "hello", .payload_len = 5};
    lh_new_job jobs[MANY] = {job, job, job};
    lh_enqueued out[MANY];
    int rc = lh_enqueue(scene->far, scene->queue, jobs, MANY,
                        scene->request[0] ? scene->request : NULL, out);

    if (rc == LH_EUNKNOWN)
        (void)snprintf(scene->request, sizeof scene->request, "%s", lh_last_request(scene->far));
    return rc;
}

static bool stands_enqueue_many(struct scene *scene)
{
    lh_jobs *jobs = jobs_of_round(scene);
    size_t n = jobs->n;

    lh_jobs_free(jobs);
    EXPECT(n == 0 || n == MANY);
    return n > 0;
}

/* ---------------------------------------------------------------- claim */

static void prepare_pending(struct scene *scene)
{
    lh_enqueued out;
    EXPECT_OK(lh_enqueue(scene->near, scene->queue,
                         &(lh_new_job){.payload = "hello", .payload_len = 5}, 1, NULL, &out));
    prepare_request(scene);
}

static int claim(lh_store *store, struct scene *scene, const char *request)
{
    const char *queue = scene->queue;
    lh_jobs *jobs = NULL;
    int rc = lh_claim(store,
                      &(lh_claim_opts){.queues = &queue,
                                       .n_queues = 1,
                                       .worker = "w-1",
                                       .lease_ms = 600000,
                                       .request = request},
                      &jobs);

    if (rc == LH_OK)
        scene->job = jobs->job[0];
    lh_jobs_free(jobs);
    return rc;
}

static int perform_claim(struct scene *scene)
{
    int rc = claim(scene->far, scene, scene->request);

    if (rc == LH_OK)
        EXPECT_EQ(scene->job.token, job_now(scene).token);
    return rc;
}

static bool stands_claim(struct scene *scene)
{
    lh_job job = job_now(scene);

    EXPECT(job.attempt <= 1);
    EXPECT_EQ(job.state == LH_RUNNING, job.attempt == 1);
    return job.state == LH_RUNNING;
}

static int perform_claim_nameless(struct scene *scene)
{
    return claim(scene->far, scene, NULL);
}

/* ---------------------------------------------------------------- acts of a holder */

static void prepare_held(struct scene *scene)
{
    prepare_pending(scene);
    EXPECT_OK(claim(scene->near, scene, NULL));
}

static lh_beat beat_of(const struct scene *scene)
{
    return (lh_beat){
        .job = scene->job.id, .token = scene->job.token, .stage = scene->queue, .lease_ms = 700000};
}

static int perform_beat(struct scene *scene)
{
    lh_beat beat = beat_of(scene);
    return lh_heartbeat(scene->far, &beat, 1, NULL, NULL);
}

static int perform_worker_beat(struct scene *scene)
{
    lh_beat beat = beat_of(scene);
    return lh_worker_heartbeat(scene->far, "w-1", 0, &beat, 1, NULL);
}

static bool stands_beat(struct scene *scene)
{
    lh_job job = job_now(scene);

    EXPECT_EQ(job.state, LH_RUNNING);
    EXPECT_EQ(job.token, scene->job.token);
    return job.lease_until > scene->job.lease_until;
}

static int perform_complete(struct scene *scene)
{
    return lh_complete(
        scene->far,
        &(lh_done){
            .job = scene->job.id, .token = scene->job.token, .result = "done", .result_len = 4},
        1, NULL, NULL);
}

static bool stands_complete(struct scene *scene)
{
    lh_job job = job_now(scene);

    EXPECT(job.state == LH_RUNNING || job.state == LH_COMPLETED);
    EXPECT_EQ(job.token, scene->job.token);
    return job.state == LH_COMPLETED;
}

static int perform_fail(struct scene *scene)
{
    return lh_fail(
        scene->far,
        &(lh_failure){.job = scene->job.id, .token = scene->job.token, .error = "no luck"}, 1, NULL,
        NULL);
}

static bool stands_fail(struct scene *scene)
{
    lh_job job = job_now(scene);
    int64_t told = events_of(scene, job.id, "job.failed");

    EXPECT(job.state == LH_RUNNING || job.state == LH_SCHEDULED);
    EXPECT_EQ(told, job.state == LH_SCHEDULED);
    return job.state == LH_SCHEDULED;
}

static int perform_release(struct scene *scene)
{
    return lh_release(scene->far, &(lh_ref){scene->job.id, scene->job.token}, 1, 0, NULL, NULL);
}

static bool stands_release(struct scene *scene)
{
    lh_job job = job_now(scene);

    EXPECT(job.state == LH_RUNNING || job.state == LH_PENDING);
    EXPECT_EQ(job.attempt, job.state == LH_RUNNING);
    return job.state == LH_PENDING;
}

/* One job is running, another is pending. */
static void prepare_held_and_pending(struct scene *scene)
{
    prepare_held(scene);
    prepare_pending(scene);
}

static int complete_claim(struct scene *scene, const char *request)
{
    const char *queue = scene->queue;
    lh_jobs *jobs = NULL;
    int status;
    int rc = lh_complete_claim(
        scene->far, &(lh_done){.job = scene->job.id, .token = scene->job.token}, 1, &status,
        &(lh_claim_opts){.queues = &queue,
                         .n_queues = 1,
                         .worker = "w-1",
                         .lease_ms = 600000,
                         .request = request},
        &jobs);

    lh_jobs_free(jobs);
    return rc == LH_OK ? status : rc;
}

static int perform_complete_claim(struct scene *scene)
{
    return complete_claim(scene, scene->request);
}

/* With one call. */
static int perform_complete_claim_nameless(struct scene *scene)
{
    return complete_claim(scene, NULL);
}

static bool stands_complete_claim(struct scene *scene)
{
    lh_jobs *jobs = jobs_of_round(scene);
    int n[LH_CANCELLED + 1] = {0};

    EXPECT_EQ(jobs->n, 2);
    n[jobs->job[0].state]++;
    n[jobs->job[1].state]++;
    lh_jobs_free(jobs);
    EXPECT_EQ(n[LH_RUNNING], 1);
    EXPECT_EQ(n[LH_COMPLETED] + n[LH_PENDING], 1); /* both or none */
    return n[LH_COMPLETED] == 1;
}

/* ---------------------------------------------------------------- acts of an operator */

static int perform_cancel(struct scene *scene)
{
    return lh_cancel(scene->far, &scene->job.id, 1, NULL, NULL);
}

static bool stands_cancel(struct scene *scene)
{
    return job_now(scene).state == LH_CANCELLED;
}

static void prepare_cancelled(struct scene *scene)
{
    prepare_pending(scene);
    scene->job = job_now(scene);
    EXPECT_OK(lh_cancel(scene->near, &scene->job.id, 1, NULL, NULL));
}

static int perform_retry(struct scene *scene)
{
    return lh_retry(scene->far, &scene->job.id, 1, 0, NULL, NULL);
}

static bool stands_retry(struct scene *scene)
{
    lh_job job = job_now(scene);

    EXPECT(events_of(scene, job.id, "job.retried") <= 1);
    return job.state == LH_PENDING;
}

static int perform_delete(struct scene *scene)
{
    return lh_delete(scene->far, &scene->job.id, 1, NULL);
}

static bool stands_delete(struct scene *scene)
{
    return !stands_enqueue(scene);
}

static int perform_reschedule(struct scene *scene)
{
    return lh_reschedule(scene->far, scene->job.id, 600000, 0, NULL);
}

static bool stands_reschedule(struct scene *scene)
{
    return job_now(scene).state == LH_SCHEDULED;
}

static void prepare_unheld(struct scene *scene)
{
    prepare_pending(scene);
    scene->job = job_now(scene);
}

/* ---------------------------------------------------------------- named leases */

static const lh_lease_opts of_me = {.owner = "me", .ttl_ms = 600000};

static int perform_acquire(struct scene *scene)
{
    return lh_lease_acquire(scene->far, "scope", scene->queue, &of_me, NULL);
}

static bool is_leased(struct scene *scene)
{
    lh_leases *leases = NULL;
    int rc = lh_lease_get(scene->near, "scope", scene->queue, &leases);
    bool held = rc == LH_OK && leases->lease[0].owner != NULL;

    EXPECT(rc == LH_OK || rc == LH_ENOTFOUND);
    lh_leases_free(leases);
    return held;
}

static void prepare_lease(struct scene *scene)
{
    EXPECT_OK(lh_lease_acquire(scene->near, "scope", scene->queue, &of_me, NULL));
}

static int perform_lease_complete(struct scene *scene)
{
    return lh_lease_complete(scene->far, "scope", scene->queue, &of_me, NULL);
}

static bool stands_lease_complete(struct scene *scene)
{
    return !is_leased(scene);
}

/* ---------------------------------------------------------------- one cut */

static void begin_round(struct scene *scene, const struct deed *deed)
{
    scene->round++;
    (void)snprintf(scene->queue, sizeof scene->queue, "q-%d", scene->round);
    scene->request[0] = '\0';
    deed->prepare(scene);
}

static bool is_trouble(int rc)
{
    return rc == LH_EUNREACH || rc == LH_EBUSY || rc == LH_EUNKNOWN;
}

/* What the caller was told must be true. Once the connection works again, a repeat does the act
 * or says that it is done. */
static void judge(struct scene *scene, const struct deed *deed, int rc)
{
    bool stands = deed->stands(scene);

    if (rc == LH_OK && !stands)
        FAIL("%s was acknowledged, and is not there", deed->name);
    if (is_trouble(rc) && rc != LH_EUNKNOWN && stands)
        FAIL("%s: \"%s\" was told, and it stands", deed->name, lh_status_name(rc));
    if (rc != LH_OK && !is_trouble(rc))
        FAIL("%s: %s: %s", deed->name, lh_status_name(rc), lh_errmsg(scene->far));
    if (rc == LH_OK)
        return;
    for (int i = 0; i < TRIES && is_trouble(rc); i++) /* a busy machine may need several tries */
        rc = deed->perform(scene);
    if (rc != LH_OK && !deed->nameless)
        FAIL("%s, again: %s: %s", deed->name, lh_status_name(rc), lh_errmsg(scene->far));
    EXPECT(deed->stands(scene));
}

/* False: the act ended, or took another path, before the cut. */
static bool cut_once(struct scene *scene, const struct deed *deed, enum way way, int64_t after,
                     bool gone, int *told)
{
    begin_round(scene, deed);
    proxy_cut(scene->proxy, way, after, gone);
    int rc = deed->perform(scene);
    bool was_cut = proxy_mend(scene->proxy);
    if (!was_cut && rc != LH_OK && !is_trouble(rc)) /* caused by a busy machine */
        FAIL("%s: %s: %s", deed->name, lh_status_name(rc), lh_errmsg(scene->far));
    told[0] += rc == LH_OK;
    told[1] += rc == LH_EUNKNOWN;
    told[2] += rc == LH_EUNREACH || rc == LH_EBUSY;
    judge(scene, deed, rc);
    return was_cut || rc != LH_OK;
}

static const struct deed deeds[] = {
    {"enqueue", prepare_nothing, perform_enqueue, stands_enqueue, false},
    {"enqueue by request", prepare_request, perform_enqueue, stands_enqueue, false},
    {"claim", prepare_pending, perform_claim, stands_claim, false},
    {"heartbeat", prepare_held, perform_beat, stands_beat, false},
    {"worker heartbeat", prepare_held, perform_worker_beat, stands_beat, false},
    {"complete", prepare_held, perform_complete, stands_complete, false},
    {"fail", prepare_held, perform_fail, stands_fail, false},
    {"release", prepare_held, perform_release, stands_release, false},
    {"enqueue of many", prepare_nothing, perform_enqueue_many, stands_enqueue_many, false},
    {"complete and claim", prepare_held_and_pending, perform_complete_claim, stands_complete_claim,
     false},
    {"complete and nameless claim", prepare_held_and_pending, perform_complete_claim_nameless,
     stands_complete_claim, true},
    {"nameless claim", prepare_pending, perform_claim_nameless, stands_claim, true},
    {"cancel", prepare_held, perform_cancel, stands_cancel, true},
    {"retry", prepare_cancelled, perform_retry, stands_retry, true},
    {"delete", prepare_unheld, perform_delete, stands_delete, true},
    {"reschedule", prepare_unheld, perform_reschedule, stands_reschedule, true},
    {"lease acquire", prepare_nothing, perform_acquire, is_leased, true},
    {"lease complete", prepare_lease, perform_lease_complete, stands_lease_complete, true},
};

static int64_t real_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* A time in which an act succeeds on this machine, however busy it is: four times that of a new connection,
 * and at least this much. */
static int64_t long_enough_ms(const char *url, int64_t at_least_ms)
{
    enum { OPENS = 4 };
    int64_t since = real_ms();

    for (int i = 0; i < OPENS; i++) {
        lh_store *store = NULL;
        EXPECT_OK(lh_open(url, &(lh_open_opts){.busy_ms = TEST_BUSY_MS}, &store));
        lh_close(store);
    }
    int64_t four_ms = real_ms() - since;
    return four_ms > at_least_ms ? four_ms : at_least_ms;
}

static struct scene set_the_scene(int64_t busy_ms)
{
    struct scene scene = {.proxy = proxy_start()};
    char id[160];

    if (busy_ms > 0)
        busy_ms = long_enough_ms(scene.proxy->url, busy_ms);
    int rc = lh_open(scene.proxy->url, &(lh_open_opts){.busy_ms = busy_ms}, &scene.far);

    if (rc != LH_OK)
        FAIL("%s: %s", lh_status_name(rc), lh_errmsg(scene.far));
    EXPECT_OK(lh_open(test_store(), NULL, &scene.near));
    EXPECT_OK(lh_worker_register(scene.near, &(lh_worker_opts){.id = "w-1"}, id, sizeof id));
    return scene;
}

static void leave(struct scene *scene)
{
    lh_findings *findings = NULL;

    EXPECT_OK(lh_check(scene->near, NULL, &findings));
    EXPECT_EQ(findings->errors, 0);
    lh_findings_free(findings);
    lh_close(scene->far);
    lh_close(scene->near);
    proxy_stop(scene->proxy);
}

/* Performs the act without a cut on an open connection with prepared statements, to find out
 * where its messages end. */
static size_t rehearse(struct scene *scene, const struct deed *deed, enum way way,
                       int64_t ends[MOST_STEPS])
{
    for (int i = 0, rehearsed = 0; rehearsed < 2; i++) {
        begin_round(scene, deed);
        proxy_cut(scene->proxy, way, INT64_MAX, false);
        int rc = deed->perform(scene);
        EXPECT(!proxy_mend(scene->proxy));
        if (rc != LH_OK &&
            (!is_trouble(rc) || i > TRIES)) /* but a busy machine may need several tries */
            FAIL("%s: %s: %s", deed->name, lh_status_name(rc), lh_errmsg(scene->far));
        rehearsed = rc == LH_OK && proxy_steps(scene->proxy, way, ends) > 0 ? rehearsed + 1 : 0;
    }
    size_t n = proxy_steps(scene->proxy, way, ends);
    EXPECT(n > 0 && n < MOST_STEPS);
    return n;
}

static int cut_at_every_step(struct scene *scene, const struct deed *deed, enum way way, bool gone,
                             bool told_first, int *told)
{
    int64_t ends[MOST_STEPS], begin = 0;
    size_t n = rehearse(scene, deed, way, ends);
    int cuts = 0;

    for (size_t i = 0; i < n; begin = ends[i++])
        for (int64_t at = begin; at < ends[i] && at <= begin + (told_first ? 0 : INSIDE);
             at += INSIDE)
            cuts += cut_once(scene, deed, way, at, gone, told);
    return cuts;
}

static int cut_by_bytes(struct scene *scene, const struct deed *deed, enum way way, bool gone,
                        int *told, int64_t step)
{
    int64_t ends[MOST_STEPS];
    int cuts = 0;

    (void)rehearse(scene, deed, way, ends);
    while (cut_once(scene, deed, way, cuts * step, gone, told))
        cuts++;
    return cuts;
}

static void cut_everywhere(int64_t busy_ms, bool gone, bool told_first)
{
    struct scene scene = set_the_scene(busy_ms);
    if (told_first)
        proxy_tell(scene.proxy);
    const char *bytes = getenv("TEST_CUT_STEP");

    for (size_t i = 0; i < sizeof deeds / sizeof deeds[0]; i++)
        for (int way = TO_SERVER; way <= TO_CLIENT; way++) {
            int told[3] = {0};
            int cuts =
                bytes ? cut_by_bytes(&scene, &deeds[i], (enum way)way, gone, told,
                                     strtoll(bytes, NULL, 10))
                      : cut_at_every_step(&scene, &deeds[i], (enum way)way, gone, told_first, told);
            (void)fprintf(stderr, "%s: %d cuts %s: %d done, %d unknown, %d not done\n",
                          deeds[i].name, cuts, way == TO_SERVER ? "to the server" : "to the client",
                          told[0], told[1], told[2]);
            EXPECT(cuts > 1);
        }
    leave(&scene);
}

TEST_TIMEOUT(an_act_is_done_once_wherever_its_connection_is_cut, LONGEST_S)
{
    cut_everywhere(0, false, false);
}

TEST_TIMEOUT(an_act_reports_the_truth_when_the_server_disappears_at_any_step, LONGEST_S)
{
    cut_everywhere(100, true, false);
}

TEST_TIMEOUT(an_act_reports_the_truth_when_the_pooler_loses_its_server, LONGEST_S)
{
    cut_everywhere(0, false, true);
}
