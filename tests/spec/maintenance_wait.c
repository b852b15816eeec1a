/*
 * Waiting maintenance: it waits until the earliest lease expires, a worker has been silent for too long, or a job
 * is due, not longer, and not for jobs with recovery off.
 */
#include "recovery_world.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

/* ---- when to come back ---- */

SPEC(maintenance_returns_the_time_until_something_is_due)
{
    struct world w = world_open();
    lh_job job;
    int64_t nothing = upkeep(&w).next_ms;
    EXPECT_EQ(nothing, 60000);
    enqueue(&w, "mail", "x", .delay_ms = 9000);
    EXPECT_EQ(upkeep(&w).next_ms, 9000);
    enqueue(&w, "post", "x", .expires_ms = 8000);
    EXPECT_EQ(upkeep(&w).next_ms, 8000);
    job = held(&w, "later", "w-2", 7000);
    EXPECT_EQ(upkeep(&w).next_ms, 7000);
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a", &(lh_lease_opts){.ttl_ms = 6000}, NULL));
    EXPECT_EQ(upkeep(&w).next_ms, 6000);
    enlist(&w, "w-1", .interval_ms = 2500, .multiplier = 2);
    EXPECT_EQ(upkeep(&w).next_ms, 5000);
    clock_advance_ms(&w, 4000);
    EXPECT_EQ(upkeep(&w).next_ms, 1000);
    for (int64_t at = 5000; at <= 9000; at += 1000) { /* each is done at its deadline */
        clock_advance_ms(&w, 1000);
        lh_maintained done = upkeep(&w);
        EXPECT_EQ(done.dead_workers, at == 5000);
        EXPECT_EQ(done.recovered, at == 7000);
        EXPECT_EQ(done.expired, at == 8000);
        EXPECT_EQ(done.promoted, at == 9000);
        EXPECT_EQ(done.next_ms, at < 9000 ? 1000 : nothing);
    }
    EXPECT_EQ(job_of(&w, job.id).recoveries, 1);
    world_close(&w);
}

SPEC(a_job_with_recovery_off_does_not_hide_a_later_deadline)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RECOVERY, .recovery = false));
    held(&w, "mail", "w-1", 1000);
    held(&w, "post", "w-1", 5000);
    clock_advance_ms(&w, 2000);
    EXPECT_EQ(upkeep(&w).next_ms, 3000);
    clock_advance_ms(&w, 3000);
    EXPECT_EQ(upkeep(&w).recovered, 1);
    EXPECT(upkeep(&w).next_ms > 0);
    world_close(&w);
}

/* ---- waiting ---- */

struct keeper {
    pthread_t thread;
    lh_store *store;
    int64_t wait_ms;
    int cancel;
    lh_maintained done;
    int rc;
};

static void *keep_up(void *arg)
{
    struct keeper *k = arg;
    lh_maintain_opts opts = {.wait_ms = k->wait_ms, .cancel = &k->cancel};
    k->rc = lh_maintain(k->store, &opts, &k->done);
    return NULL;
}

/* Maintenance is called until a round has done something, as a worker does. */
static void *keep_up_for_ever(void *arg)
{
    struct keeper *k = arg;
    do
        (void)keep_up(k);
    while (k->rc == LH_OK && k->done.recovered + k->done.promoted + k->done.dead_workers == 0);
    return NULL;
}

static void start_maintenance(struct world *w, struct keeper *k)
{
    if (k->store == NULL)
        k->store = w->store;
    void *(*rounds)(void *) = k->wait_ms < 0 ? keep_up_for_ever : keep_up;
    EXPECT_EQ(pthread_create(&k->thread, NULL, rounds, k), 0);
}

static void start(struct world *w, struct keeper *k)
{
    start_maintenance(w, k);
    EXPECT(test_thread_sleeps(k->thread));
}

/* A thread that sleeps until a deadline wakes one millisecond after it. */
static void clock_reach_ms(struct world *w, int64_t ms)
{
    clock_advance_ms(w, ms + 1);
}

/* A thread that has read the clock just before the test moved it sleeps for the whole time again. So the clock
 * is moved on until the thread ends. */
static lh_maintained finish(struct world *w, struct keeper *k)
{
    while (test_thread_sleeps(k->thread))
        clock_advance_ms(w, 10);
    EXPECT_EQ(pthread_join(k->thread, NULL), 0);
    EXPECT_OK(k->rc);
    return k->done;
}

SPEC(maintenance_waits_until_a_lease_expires)
{
    struct world w = world_open();
    struct keeper k = {.wait_ms = -1};
    lh_job job = held(&w, "mail", "w-1", 500);
    start(&w, &k);
    clock_advance_ms(&w, 499);
    EXPECT(test_thread_sleeps(k.thread));
    EXPECT_EQ(job_of(&w, job.id).state, LH_RUNNING);
    clock_reach_ms(&w, 1);
    EXPECT_EQ(finish(&w, &k).recovered, 1);
    EXPECT_STR(report_of(&w, k.done.report)->trigger, "expiry");
    world_close(&w);
}

SPEC(maintenance_waits_until_a_worker_is_silent_for_too_long)
{
    struct world w = world_open();
    struct keeper k = {.wait_ms = -1};
    enlist_process(&w, "w-1");
    held(&w, "mail", "w-1", 60000);
    start(&w, &k);
    clock_reach_ms(&w, SILENCE_MS);
    EXPECT_EQ(finish(&w, &k).dead_workers, 1);
    EXPECT_EQ(k.done.recovered, 1);
    world_close(&w);
}

SPEC(maintenance_waits_until_a_job_is_due)
{
    struct world w = world_open();
    struct keeper k = {.wait_ms = -1, .store = world_second_handle()};
    enqueue(&w, "mail", "x", .delay_ms = 700);
    start(&w, &k);
    clock_reach_ms(&w, 700);
    EXPECT_EQ(finish(&w, &k).promoted, 1);
    EXPECT_EQ(k.done.report, 0);
    lh_close(k.store);
    world_close(&w);
}

SPEC(maintenance_wakes_for_a_lease_that_expires_earlier_than_the_others)
{
    struct world w = world_open();
    struct keeper k = {.wait_ms = -1};
    held(&w, "mail", "w-1", 60000);
    start(&w, &k);
    lh_job brief = held(&w, "mail", "w-1", 200);
    clock_reach_ms(&w, 200);
    EXPECT_EQ(finish(&w, &k).recovered, 1);
    EXPECT_EQ(job_of(&w, brief.id).state, LH_PENDING);
    EXPECT(report_of(&w, k.done.report)->started_at <
           WORLD_START_MS + 900); /* a poll would have come later */
    world_close(&w);
}

SPEC(maintenance_waits_no_longer_than_its_wait_time)
{
    struct world w = world_open();
    struct keeper k = {.wait_ms = 5000};
    held(&w, "mail", "w-1", 60000);
    start(&w, &k);
    clock_advance_ms(&w, 5000);
    EXPECT_EQ(finish(&w, &k).recovered, 0);
    world_close(&w);
}

SPEC(waiting_maintenance_ends_when_its_cancel_flag_is_set)
{
    struct world w = world_open();
    struct keeper k = {.wait_ms = -1};
    start(&w, &k);
    __atomic_store_n(&k.cancel, 1, __ATOMIC_SEQ_CST);
    pthread_join(k.thread, NULL);
    EXPECT_STATUS(k.rc, LH_EINTR);
    EXPECT_STATUS(lh_maintain(w.store, &(lh_maintain_opts){.wait_ms = -2}, NULL), LH_EINVAL);
    world_close(&w);
}

SPEC(maintenance_that_finds_something_to_do_does_not_wait)
{
    struct world w = world_open();
    struct keeper k = {.wait_ms = -1};
    held(&w, "mail", "w-1", 1000);
    clock_advance_ms(&w, 1000);
    start_maintenance(&w, &k);
    EXPECT_EQ(finish(&w, &k).recovered, 1);
    world_close(&w);
}

/* ---- what is stuck does not make it spin ---- */

struct rounds {
    struct keeper keeper;
    int n;
};

static void *keep_on(void *arg)
{
    struct rounds *r = arg;
    do
        (void)keep_up(&r->keeper);
    while (r->keeper.rc == LH_OK && ++r->n < 1000);
    return NULL;
}

static int64_t real_ms(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Maintenance with nothing to do makes only as many rounds as a slow poll. */
static void expect_few_rounds(lh_store *store)
{
    struct rounds r = {.keeper = {.store = store, .wait_ms = -1}};
    int64_t began = real_ms();
    EXPECT_EQ(pthread_create(&r.keeper.thread, NULL, keep_on, &r), 0);
    for (int i = 0; i < 6; i++)
        EXPECT(test_thread_sleeps(r.keeper.thread));
    __atomic_store_n(&r.keeper.cancel, 1, __ATOMIC_SEQ_CST);
    pthread_join(r.keeper.thread, NULL);
    EXPECT_STATUS(r.keeper.rc, LH_EINTR);
    EXPECT(r.n <= 3 + (real_ms() - began) / 100);
}

SPEC(jobs_with_recovery_off_do_not_keep_maintenance_busy)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RECOVERY, .recovery = false));
    enlist_process(&w, "w-1");
    held(&w, "mail", "w-1", 60000);
    held(&w, "mail", "w-2", 1000);
    clock_advance_ms(&w, SILENCE_MS);
    expect_few_rounds(w.store);
    EXPECT_EQ(queue_of(&w, "mail").running, 2);
    EXPECT_EQ(reports(&w), 1); /* the report of the dead worker */
    world_close(&w);
}

SPEC(a_handle_with_automatic_recovery_off_is_not_kept_busy_by_reclaimable_jobs)
{
    struct world w = world_open();
    held(&w, "mail", "w-2", 1000);
    lh_store *passive = world_handle((lh_open_opts){.no_recovery = true});
    clock_advance_ms(&w, 1000);
    expect_few_rounds(passive);
    EXPECT_EQ(queue_of(&w, "mail").running, 1);
    lh_close(passive);
    world_close(&w);
}

SPEC(maintenance_waits_for_recoverable_jobs_beside_jobs_with_recovery_off)
{
    struct world w = world_open();
    struct keeper k = {.wait_ms = -1};
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RECOVERY, .recovery = false));
    held(&w, "mail", "w-1", 1000);
    clock_advance_ms(&w, 1000);
    EXPECT_EQ(upkeep(&w).recovered, 0);
    lh_job job = held(&w, "post", "w-1", 600);
    start(&w, &k);
    clock_reach_ms(&w, 600);
    EXPECT_EQ(finish(&w, &k).recovered, 1);
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    world_close(&w);
}

/* The thread sanitizer checks that two rounds at a time share no unguarded memory. */
SPEC(threads_that_run_maintenance_on_one_handle_do_each_thing_once)
{
    enum { THREADS = 4 };
    struct world w = world_open();
    struct keeper keepers[THREADS];
    int64_t recovered = 0, promoted = 0;
    for (int i = 0; i < 20; i++) {
        held(&w, "mail", "w-1", 1000);
        enqueue(&w, "post", "x", .delay_ms = 1000);
    }
    clock_advance_ms(&w, 1000);
    for (int i = 0; i < THREADS; i++) {
        keepers[i] = (struct keeper){.store = w.store};
        EXPECT_EQ(pthread_create(&keepers[i].thread, NULL, keep_up, &keepers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        recovered += finish(&w, &keepers[i]).recovered;
        promoted += keepers[i].done.promoted;
    }
    EXPECT_EQ(recovered, 20);
    EXPECT_EQ(promoted, 20);
    world_close(&w);
}
