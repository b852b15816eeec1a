/* See world.h. A helper that cannot do its own work fails the test. */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>

struct kept {
    void *thing;
    void (*free_it)(void *);
    struct kept *next;
};

void *keep(struct world *w, void *thing, void (*free_it)(void *))
{
    struct kept *kept = malloc(sizeof *kept);

    if (kept == NULL)
        FAIL("out of memory");
    *kept = (struct kept){.thing = thing, .free_it = free_it, .next = w->kept};
    w->kept = kept;
    return thing;
}

static void free_jobs(void *thing)
{
    lh_jobs_free(thing);
}

static void free_queues(void *thing)
{
    lh_queues_free(thing);
}

static void free_workers(void *thing)
{
    lh_workers_free(thing);
}

static void free_events(void *thing)
{
    lh_events_free(thing);
}

static void free_leases(void *thing)
{
    lh_leases_free(thing);
}

lh_jobs *keep_jobs(struct world *w, lh_jobs *jobs)
{
    return keep(w, jobs, free_jobs);
}

lh_lease keep_lease(struct world *w, lh_leases *leases)
{
    if (leases == NULL)
        FAIL("expected: a lease");
    keep(w, leases, free_leases);
    EXPECT_EQ(leases->n, 1);
    return leases->lease[0];
}

/* ---- opening and closing ---- */

lh_store *world_handle(lh_open_opts opts)
{
    lh_store *store = NULL;

    opts.busy_ms = opts.busy_ms != 0 ? opts.busy_ms : TEST_BUSY_MS;
    int rc = lh_open(test_store(), &opts, &store);

    if (rc != LH_OK)
        FAIL("could not open the store: %s", lh_errmsg(store));
    return store;
}

struct world world_open(void)
{
    struct lhi_control *control = lhi_control();

    control->frozen = true;
    control->frozen_wall_ms = WORLD_START_MS;
    control->frozen_mono_ms = 1000000;
    return (struct world){.store = world_handle((lh_open_opts){.create = true})};
}

lh_store *world_second_handle(void)
{
    return world_handle((lh_open_opts){0});
}

pid_t world_fork(struct world *w)
{
    return test_fork_reopening(&w->store, world_second_handle);
}

struct world world_with_job(const char *queue, const char *payload)
{
    struct world w = world_open();

    enqueue(&w, queue, payload);
    return w;
}

void world_close(struct world *w)
{
    world_check(w);
    while (w->kept != NULL) {
        struct kept *kept = w->kept;
        w->kept = kept->next;
        kept->free_it(kept->thing);
        free(kept);
    }
    lh_close(w->store);
    w->store = NULL;
}

void clock_advance_ms(struct world *w, int64_t ms)
{
    struct lhi_control *control = lhi_control();

    (void)w;
    __atomic_add_fetch(&control->wall_ms, ms, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&control->mono_ms, ms, __ATOMIC_SEQ_CST);
}

/* ---- the checks ---- */

static void check_job(const lh_job *job)
{
    bool running = job->state == LH_RUNNING;

    EXPECT_EQ(running, job->lease_until != 0);
    EXPECT_EQ(running, job->worker != NULL);
    if (running) {
        EXPECT(job->started_at != 0);
        EXPECT(job->token > 0);
    }
    if (job->max_attempts > 0)
        EXPECT(job->attempt <= job->max_attempts);
    EXPECT(job->attempt >= 0);
    EXPECT(job->recoveries >= 0);
    EXPECT(job->token >= 0 && job->token < INT64_C(1) << 53);
    EXPECT(job->started_at <= job->state_changed_at);
    EXPECT_EQ(job->finished_at != 0, job->state >= LH_COMPLETED);
}

static lh_queues *list_queues(struct world *w)
{
    lh_queues *queues = NULL;

    EXPECT_OK(lh_queue_list(w->store, &queues));
    return queues;
}

static void check_counts(struct world *w, const lh_queue *queue)
{
    int64_t counted[LH_CANCELLED + 1] = {0}, total = 0, after = 0;
    lh_jobs *page = NULL;

    do {
        lh_jobs_free(page);
        EXPECT_OK(lh_job_list(
            w->store, &(lh_job_filter){.queue = queue->queue, .after = after, .limit = 1000},
            &page));
        for (size_t i = 0; i < page->n; i++) {
            check_job(&page->job[i]);
            counted[page->job[i].state]++;
            EXPECT(page->job[i].id > after);
            after = page->job[i].id;
            total++;
        }
    } while (page->n == 1000);
    lh_jobs_free(page);
    EXPECT_EQ(queue->scheduled, counted[LH_SCHEDULED]);
    EXPECT_EQ(queue->pending, counted[LH_PENDING]);
    EXPECT_EQ(queue->running, counted[LH_RUNNING]);
    EXPECT_EQ(queue->completed, counted[LH_COMPLETED]);
    EXPECT_EQ(queue->failed, counted[LH_FAILED]);
    EXPECT_EQ(queue->cancelled, counted[LH_CANCELLED]);
    EXPECT_EQ(queue->oldest_pending_ms >= 0, counted[LH_PENDING] > 0);
}

void world_check(struct world *w)
{
    lh_queues *queues = list_queues(w);
    lh_findings *findings = NULL;

    for (size_t i = 0; i < queues->n; i++)
        check_counts(w, &queues->queue[i]);
    lh_queues_free(queues);
    EXPECT_OK(lh_check(w->store, NULL, &findings));
    for (size_t i = 0; i < findings->n; i++)
        if (strcmp(findings->finding[i].level, "error") == 0)
            FAIL("the store finds a fault: %s: %s", findings->finding[i].what,
                 findings->finding[i].text);
    lh_findings_free(findings);
}

/* ---- acts ---- */

int64_t enqueue_with(struct world *w, const char *queue, lh_new_job job, const char *file, int line)
{
    lh_enqueued out = {0};

    if (job.payload != NULL && job.payload_len == 0)
        job.payload_len = strlen(job.payload);
    int rc = lh_enqueue(w->store, queue, &job, 1, NULL, &out);
    if (rc != LH_OK)
        test_fail(file, line, "could not enqueue into \"%s\": %s", queue, lh_errmsg(w->store));
    return out.id;
}

int claim_one_with(struct world *w, const char *queue, struct claim_args args)
{
    lh_claim_opts opts = {.queues = &queue,
                          .n_queues = 1,
                          .worker = args.worker ? args.worker : "w1",
                          .lease_ms = args.lease_ms,
                          .request = args.request};
    lh_jobs *jobs = NULL;

    if (args.kind != NULL) {
        opts.kinds = &args.kind;
        opts.n_kinds = 1;
    }
    int rc = lh_claim(w->store, &opts, &jobs);
    if (rc != LH_OK)
        return rc;
    keep_jobs(w, jobs);
    EXPECT_EQ(jobs->n, 1);
    *args.out = jobs->job[0];
    return LH_OK;
}

lh_jobs *claim_many(struct world *w, const char *queue, size_t n)
{
    static lh_jobs none;
    lh_jobs *jobs = NULL;
    int rc = lh_claim(
        w->store, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w1", .n = n}, &jobs);

    if (rc == LH_EMPTY)
        return &none;
    EXPECT_OK(rc);
    return keep_jobs(w, jobs);
}

int beat(struct world *w, const lh_job *job)
{
    return lh_heartbeat(w->store, &(lh_beat){.job = job->id, .token = job->token}, 1, NULL, NULL);
}

int complete(struct world *w, const lh_job *job)
{
    return lh_complete(w->store, &(lh_done){.job = job->id, .token = job->token}, 1, NULL, NULL);
}

int fail(struct world *w, const lh_job *job, const char *error)
{
    return lh_fail(w->store, &(lh_failure){.job = job->id, .token = job->token, .error = error}, 1,
                   NULL, NULL);
}

int release(struct world *w, const lh_job *job)
{
    return lh_release(w->store, &(lh_ref){job->id, job->token}, 1, 0, NULL, NULL);
}

int cancel(struct world *w, int64_t id)
{
    return lh_cancel(w->store, &id, 1, NULL, NULL);
}

int retry(struct world *w, int64_t id)
{
    return lh_retry(w->store, &id, 1, 0, NULL, NULL);
}

/* ---- looking ---- */

lh_job job_of(struct world *w, int64_t id)
{
    lh_jobs *jobs = NULL;

    if (lh_job_get(w->store, id, &jobs) != LH_OK)
        FAIL("could not read job %lld: %s", (long long)id, lh_errmsg(w->store));
    keep_jobs(w, jobs);
    EXPECT_EQ(jobs->n, 1);
    EXPECT_EQ(jobs->job[0].id, id);
    return jobs->job[0];
}

bool job_exists(struct world *w, int64_t id)
{
    lh_jobs *jobs = NULL;
    int rc = lh_job_get(w->store, id, &jobs);

    lh_jobs_free(jobs);
    if (rc != LH_ENOTFOUND)
        EXPECT_OK(rc);
    return rc == LH_OK;
}

lh_jobs *jobs_where(struct world *w, lh_job_filter filter)
{
    lh_jobs *jobs = NULL;

    EXPECT_OK(lh_job_list(w->store, &filter, &jobs));
    return keep_jobs(w, jobs);
}

lh_queue queue_of(struct world *w, const char *queue)
{
    lh_queues *queues = keep(w, list_queues(w), free_queues);

    for (size_t i = 0; i < queues->n; i++)
        if (strcmp(queues->queue[i].queue, queue) == 0)
            return queues->queue[i];
    return (lh_queue){.queue = queue, .oldest_pending_ms = -1};
}

lh_worker worker_of(struct world *w, const char *id)
{
    lh_workers *workers = NULL;

    EXPECT_OK(lh_worker_list(w->store, &workers));
    keep(w, workers, free_workers);
    for (size_t i = 0; i < workers->n; i++)
        if (strcmp(workers->worker[i].id, id) == 0)
            return workers->worker[i];
    FAIL("there is no worker \"%s\"", id);
}

lh_policy policy_of(struct world *w, const char *queue, const char *kind)
{
    lh_policy out = {0};

    EXPECT_OK(lh_policy_get(w->store, queue, kind, &out));
    return out;
}

lh_events *events_of(struct world *w, int64_t job)
{
    lh_events *events = NULL;

    EXPECT_OK(lh_event_list(w->store, &(lh_event_filter){.job = job, .limit = 10000}, &events));
    return keep(w, events, free_events);
}

const char *story_of(struct world *w, int64_t job)
{
    const lh_events *events = events_of(w, job);
    size_t room = 1, used = 0;

    for (size_t i = 0; i < events->n; i++)
        room += strlen(events->event[i].type) + 1;
    char *story = keep(w, calloc(1, room), free);
    if (story == NULL)
        FAIL("out of memory");
    for (size_t i = 0; i < events->n; i++)
        used += (size_t)snprintf(story + used, room - used, "%s%s", i ? " " : "",
                                 events->event[i].type);
    return story;
}

lh_event last_event(struct world *w, const char *type)
{
    const lh_events *events = events_of(w, 0);

    for (size_t i = events->n; i-- > 0;)
        if (strcmp(events->event[i].type, type) == 0)
            return events->event[i];
    FAIL("there is no event \"%s\"", type);
}
