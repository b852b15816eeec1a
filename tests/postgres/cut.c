/*
 * Connections that are cut, at every step of a conversation and in either direction: what the caller
 * is told agrees with what stands in the database, and a repeat under the same identity does it once.
 *
 * A step is a message of the protocol: the cut comes before it, and in its middle. With $TEST_CUT_STEP it
 * comes at every byte, or every so many.
 */
#include "postgres/proxy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_S = 240, TRIES = 50, INSIDE = 3 };

struct scene {
    struct proxy *proxy;
    lh_store *far, *near; /* through the proxy, and past it */
    int round;
    char queue[32], request[64];
    lh_job job; /* held by "w-1" when the act begins; its strings are not to be read */
};

struct deed {
    const char *name;
    void (*prepare)(struct scene *scene);
    int (*perform)(struct scene *scene);
    bool (*stands)(struct scene *scene); /* and not twice, which fails the test */
};

/* ---------------------------------------------------------------- what stands */

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

/* ---------------------------------------------------------------- of a holder */

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

/* What was told is true; and when all is well again, a repeat does it, or says that it is done. */
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
    for (int i = 0; i < TRIES && is_trouble(rc); i++) /* a busy machine may need some more */
        rc = deed->perform(scene);
    EXPECT_OK(rc);
    EXPECT(deed->stands(scene));
}

/* False: the act was over, or went another way, before the cut. */
static bool cut_once(struct scene *scene, const struct deed *deed, enum way way, int64_t after,
                     bool gone, int *told)
{
    begin_round(scene, deed);
    proxy_cut(scene->proxy, way, after, gone);
    int rc = deed->perform(scene);
    bool was_cut = proxy_mend(scene->proxy);
    if (!was_cut && rc != LH_OK && !is_trouble(rc)) /* of a busy machine */
        FAIL("%s: %s: %s", deed->name, lh_status_name(rc), lh_errmsg(scene->far));
    told[0] += rc == LH_OK;
    told[1] += rc == LH_EUNKNOWN;
    told[2] += rc == LH_EUNREACH || rc == LH_EBUSY;
    judge(scene, deed, rc);
    return was_cut || rc != LH_OK;
}

static const struct deed deeds[] = {
    {"enqueue", prepare_nothing, perform_enqueue, stands_enqueue},
    {"enqueue by request", prepare_request, perform_enqueue, stands_enqueue},
    {"claim", prepare_pending, perform_claim, stands_claim},
    {"heartbeat", prepare_held, perform_beat, stands_beat},
    {"worker heartbeat", prepare_held, perform_worker_beat, stands_beat},
    {"complete", prepare_held, perform_complete, stands_complete},
    {"fail", prepare_held, perform_fail, stands_fail},
    {"release", prepare_held, perform_release, stands_release},
};

static struct scene set_the_scene(int64_t busy_ms)
{
    struct scene scene = {.proxy = proxy_start()};
    char id[160];
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

/* One that is not cut, on a connection that is open, with its statements prepared: where its messages
 * end. */
static size_t rehearse(struct scene *scene, const struct deed *deed, enum way way,
                       int64_t ends[MOST_STEPS])
{
    for (int i = 0; i < 2; i++) {
        begin_round(scene, deed);
        proxy_cut(scene->proxy, way, INT64_MAX, false);
        EXPECT_OK(deed->perform(scene));
        EXPECT(!proxy_mend(scene->proxy));
    }
    size_t n = proxy_steps(scene->proxy, way, ends);
    EXPECT(n > 0 && n < MOST_STEPS);
    return n;
}

static int cut_at_every_step(struct scene *scene, const struct deed *deed, enum way way, bool gone,
                             int *told)
{
    int64_t ends[MOST_STEPS], begin = 0;
    size_t n = rehearse(scene, deed, way, ends);
    int cuts = 0;

    for (size_t i = 0; i < n; begin = ends[i++])
        for (int64_t at = begin; at < ends[i] && at <= begin + INSIDE; at += INSIDE)
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

static void cut_everywhere(int64_t busy_ms, bool gone)
{
    struct scene scene = set_the_scene(busy_ms);
    const char *bytes = getenv("TEST_CUT_STEP");

    for (size_t i = 0; i < sizeof deeds / sizeof deeds[0]; i++)
        for (int way = TO_SERVER; way <= TO_CLIENT; way++) {
            int told[3] = {0};
            int cuts = bytes ? cut_by_bytes(&scene, &deeds[i], (enum way)way, gone, told,
                                            strtoll(bytes, NULL, 10))
                             : cut_at_every_step(&scene, &deeds[i], (enum way)way, gone, told);
            (void)fprintf(stderr, "%s: %d cuts %s: %d done, %d unknown, %d not done\n",
                          deeds[i].name, cuts, way == TO_SERVER ? "to the server" : "to the client",
                          told[0], told[1], told[2]);
            EXPECT(cuts > 1);
        }
    leave(&scene);
}

TEST_TIMEOUT(an_act_whose_connection_is_cut_anywhere_is_done_once, LONGEST_S)
{
    cut_everywhere(0, false);
}

TEST_TIMEOUT(an_act_whose_server_is_gone_from_any_step_on_is_told_as_it_is, LONGEST_S)
{
    cut_everywhere(100, true);
}
