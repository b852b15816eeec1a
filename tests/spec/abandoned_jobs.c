/*
 * Jobs whose worker has died, as an operator would test it: work that may take half an hour, a worker that never
 * sends a heartbeat again, and a queue in which no job may run forever.
 */
#include "recovery_world.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#define MINUTE_MS INT64_C(60000)
#define QUEUE "executor"
#define KIND "run_tsa"

/* A lease of half an hour, ten attempts, and no limit of recoveries. */
static struct world world_of_executors(void)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, QUEUE, NULL, .set = LH_POLICY_MAX_ATTEMPTS | LH_POLICY_MAX_RECOVERIES,
                     .max_attempts = 10, .max_recoveries = LH_UNLIMITED));
    EXPECT_OK(policy(&w, QUEUE, KIND, .set = LH_POLICY_LEASE, .lease_ms = 30 * MINUTE_MS));
    return w;
}

static lh_job claim_as(struct world *w, const char *worker)
{
    lh_job job;
    EXPECT_OK(claim_one(w, QUEUE, &job, .worker = worker));
    EXPECT_EQ(job.lease_ms, 30 * MINUTE_MS);
    return job;
}

static void expect_starts(const char *text, const char *start)
{
    if (text == NULL || strncmp(text, start, strlen(start)) != 0)
        FAIL("expected: \"%s\" starts with \"%s\"", text ? text : "(nothing)", start);
}

/* ---- one death ---- */

SPEC(a_job_of_a_dead_worker_beyond_its_thirty_minutes_is_queued_again_with_its_attempt_counted)
{
    struct world w = world_of_executors();
    enqueue(&w, QUEUE, "{}", .kind = KIND);
    lh_job dead = claim_as(&w, "test-worker-dead");
    clock_advance_ms(&w, 29 * MINUTE_MS);
    EXPECT_EQ(recover_by(&w, NULL)->entries_reclaimed, 0);
    clock_advance_ms(&w, 6 * MINUTE_MS);
    const lh_report *report = recover_by(&w, NULL);
    EXPECT_EQ(report->entries_reclaimed, 1);
    EXPECT_STR(told_of(report, dead.id)->action, "retry");
    EXPECT_EQ(told_of(report, dead.id)->attempt, 2);
    EXPECT_STR(told_of(report, dead.id)->previous_worker, "test-worker-dead");
    lh_job after = job_of(&w, dead.id);
    EXPECT_EQ(after.state, LH_PENDING);
    EXPECT(after.worker == NULL);
    expect_starts(after.last_error, "RECLAIMED_TTL: Exceeded TTL (30 min)");
    lh_job next = claim_as(&w, "test-worker-next");
    EXPECT_EQ(next.id, dead.id);
    EXPECT_EQ(next.attempt, 2);
    EXPECT_STATUS(complete(&w, &dead), LH_ELOST);
    EXPECT_OK(complete(&w, &next));
    world_close(&w);
}

struct waiter {
    lh_store *store;
    lh_jobs *jobs;
    int rc;
};

static void *wait_for_one(void *arg)
{
    static const char *const queue = QUEUE;
    struct waiter *waiter = arg;
    waiter->rc =
        lh_claim(waiter->store,
                 &(lh_claim_opts){
                     .queues = &queue, .n_queues = 1, .worker = "test-worker-next", .wait_ms = -1},
                 &waiter->jobs);
    return NULL;
}

static int64_t real_ms(void)
{
    struct timespec now;
    EXPECT_EQ(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* No operator recovers the job. The time that the waiting worker needs is real time. */
SPEC(a_waiting_worker_gets_the_job_of_a_dead_worker_within_half_a_minute)
{
    struct world w = world_of_executors();
    struct waiter waiter = {.store = world_second_handle()};
    pthread_t thread;
    enqueue(&w, QUEUE, "{}", .kind = KIND);
    lh_job dead = claim_as(&w, "test-worker-dead");
    EXPECT_EQ(pthread_create(&thread, NULL, wait_for_one, &waiter), 0);
    clock_advance_ms(&w, 35 * MINUTE_MS);
    int64_t since = real_ms();
    /* The clock moves on, because a thread that has read it before the jump sleeps until the old deadline. */
    while (pthread_tryjoin_np(thread, NULL) == EBUSY) {
        EXPECT(real_ms() - since < 30000);
        (void)usleep(10000);
        clock_advance_ms(&w, 10);
    }
    EXPECT_OK(waiter.rc);
    const lh_job *next = &keep_jobs(&w, waiter.jobs)->job[0];
    EXPECT_EQ(next->id, dead.id);
    EXPECT_EQ(next->attempt, 2);
    expect_starts(job_of(&w, dead.id).last_error, "RECLAIMED_TTL: Exceeded TTL (30 min)");
    lh_close(waiter.store);
    world_close(&w);
}

/* ---- nothing for ever ---- */

/* The age counts from the claim, or from the last heartbeat. */
static size_t beyond_twice_their_time(struct world *w)
{
    const lh_jobs *running = jobs_where(w, (lh_job_filter){.state = LH_RUNNING});
    size_t n = 0;
    for (size_t i = 0; i < running->n; i++) {
        const lh_job *job = &running->job[i];
        int64_t seen =
            job->last_heartbeat_at > job->started_at ? job->last_heartbeat_at : job->started_at;
        n += lh_now(w->store) - seen >= 2 * job->lease_ms;
    }
    return n;
}

SPEC(after_a_recovery_no_job_runs_longer_than_twice_its_time)
{
    static const struct {
        const char *kind;
        int64_t minutes;
    } kinds[] = {{"protect_document_v2", 5},
                 {"build_artifact", 15},
                 {"run_tsa", 30},
                 {"submit_anchor_polygon", 60}};
    enum { KINDS = sizeof kinds / sizeof kinds[0] };
    struct world w = world_of_executors();
    lh_job jobs[KINDS], beating;
    for (size_t i = 0; i < KINDS; i++) {
        EXPECT_OK(policy(&w, QUEUE, kinds[i].kind, .set = LH_POLICY_LEASE,
                         .lease_ms = kinds[i].minutes * MINUTE_MS));
        enqueue(&w, QUEUE, "{}", .kind = kinds[i].kind);
        EXPECT_OK(claim_one(&w, QUEUE, &jobs[i], .worker = "test-worker-dead"));
    }
    enqueue(&w, QUEUE, "{}", .kind = KIND);
    beating = claim_as(&w, "test-worker-alive");
    for (int minute = 0; minute < 120;
         minute += 20) { /* long after twice its time; its worker is alive */
        clock_advance_ms(&w, 20 * MINUTE_MS);
        EXPECT_OK(beat(&w, &beating));
    }
    EXPECT_EQ(beyond_twice_their_time(&w), KINDS);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.expired = true})->n, KINDS);
    EXPECT_EQ(recover_by(&w, NULL)->entries_reclaimed, KINDS);
    EXPECT_EQ(beyond_twice_their_time(&w), 0);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.expired = true})->n, 0);
    for (size_t i = 0; i < KINDS; i++)
        EXPECT_EQ(job_of(&w, jobs[i].id).state, LH_PENDING);
    EXPECT_OK(complete(&w, &beating));
    world_close(&w);
}

/* ---- the last attempt ---- */

SPEC(after_ten_attempts_a_job_has_failed_and_its_attempts_stay_ten)
{
    struct world w = world_of_executors();
    lh_job job;
    int64_t id = enqueue(&w, QUEUE, "{}", .kind = KIND);
    for (int attempt = 1; attempt <= 10; attempt++) {
        EXPECT_EQ(job_of(&w, id).state, LH_PENDING);
        job = claim_as(&w, "test-worker-exhausted");
        EXPECT_EQ(job.id, id);
        EXPECT_EQ(job.attempt, attempt);
        clock_advance_ms(&w, 35 * MINUTE_MS);
        EXPECT_EQ(recover_by(&w, NULL)->entries_reclaimed, 1);
    }
    EXPECT_STR(told_of(report_of(&w, 0), id)->action, "failed");
    EXPECT_EQ(recover_by(&w, NULL)->entries_reclaimed, 0); /* it stays as it is */
    EXPECT_STATUS(claim_one(&w, QUEUE, &job), LH_EMPTY);
    lh_job after = job_of(&w, id);
    EXPECT_EQ(after.state, LH_FAILED);
    EXPECT_EQ(after.attempt, 10);
    expect_starts(after.last_error, "RECLAIMED_TTL: Max attempts reached (10)");
    world_close(&w);
}
