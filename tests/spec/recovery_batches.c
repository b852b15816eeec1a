/*
 * Recovery of more than one batch: its progress, its cancel flag, calls between two batches, and several
 * recoveries at the same time.
 */
#include "recovery_world.h"

#include <pthread.h>

static int reclaimed(struct world *w, lh_recover_opts opts)
{
    return (int)recover_by(w, &opts)->entries_reclaimed;
}

enum { MANY = 1200, BATCH = 500 };

/* Jobs of "w1"; `late` are the last of them, and are in the last batch. */
static struct world world_with_many(int64_t lease_ms, const lh_jobs **late)
{
    struct world w = world_open();
    static lh_new_job jobs[MANY];
    static lh_enqueued out[MANY];
    EXPECT_OK(policy(&w, NULL, NULL, .set = LH_POLICY_LEASE, .lease_ms = lease_ms));
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, MANY, NULL, out));
    EXPECT_EQ(claim_many(&w, "mail", 1000)->n, 1000);
    *late = claim_many(&w, "mail", 1000);
    EXPECT_EQ((*late)->n, MANY - 1000);
    return w;
}

static struct world world_with_many_dead(void)
{
    const lh_jobs *late;
    struct world w = world_with_many(1000, &late);
    clock_advance_ms(&w, 1000);
    return w;
}

struct watcher {
    struct world *w;
    pthread_t thread;
    int64_t done, total;
    int calls;
    int cancel;       /* set … */
    int cancel_after; /* … after this many batches */
    int64_t pass_ms;  /* time that passes with each batch */
};

static void watch(void *arg, int64_t done, int64_t total)
{
    struct watcher *seen = arg;
    EXPECT(pthread_equal(seen->thread, pthread_self()));
    EXPECT(done > seen->done && done <= seen->done + BATCH && done <= total);
    EXPECT_EQ(queue_of(seen->w, "mail").pending, done); /* other handles can see the batch */
    seen->done = done;
    seen->total = total;
    if (++seen->calls == seen->cancel_after)
        seen->cancel = 1;
    clock_advance_ms(seen->w, seen->pass_ms);
}

SPEC(a_recovery_reports_its_progress_after_every_batch)
{
    struct world w = world_with_many_dead();
    struct watcher seen = {.w = &w, .thread = pthread_self(), .pass_ms = 7};
    const lh_report *report =
        recover_by(&w, &(lh_recover_opts){.progress = watch, .progress_arg = &seen});
    EXPECT_EQ(report->entries_reclaimed, MANY);
    EXPECT_EQ(seen.done, MANY);
    EXPECT_EQ(seen.total, MANY);
    EXPECT(seen.calls >= 3); /* batches of 500 */
    EXPECT(report->duration_ms >= 14 && report->duration_ms <= 7 * (int64_t)seen.calls);
    EXPECT_EQ(report->completed_at, report->started_at + report->duration_ms);
    world_close(&w);
}

SPEC(an_interrupted_recovery_keeps_and_reports_its_finished_batches)
{
    struct world w = world_with_many_dead();
    struct watcher seen = {.w = &w, .thread = pthread_self(), .cancel_after = 2};
    lh_report *report = NULL;
    lh_recover_opts opts = {.cancel = &seen.cancel, .progress = watch, .progress_arg = &seen};
    EXPECT_STATUS(lh_recover(w.store, &opts, &report), LH_EINTR);
    EXPECT(report == NULL);
    EXPECT_EQ(seen.calls, 2);
    EXPECT_EQ(queue_of(&w, "mail").pending, seen.done);
    EXPECT_EQ(queue_of(&w, "mail").running, MANY - seen.done);
    EXPECT_EQ(report_of(&w, 0)->entries_reclaimed, seen.done);
    EXPECT(report_of(&w, 0)->completed_at != 0);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){.by_age = false}), MANY - seen.done);
    world_close(&w);
}

/* ---- who comes first ---- */

/* The holders of the last jobs make their calls during the first batches. */
struct holders {
    struct world *w;
    const lh_jobs *late;
    bool acted;
};

static void act_between_batches(void *arg, int64_t done, int64_t total)
{
    struct holders *h = arg;
    const lh_job *job = h->late->job;
    (void)total;
    if (h->acted || done > 1000)
        return;
    h->acted = true;
    EXPECT_OK(beat(h->w, &job[0]));
    EXPECT_OK(complete(h->w, &job[1]));
    EXPECT_OK(release(h->w, &job[2]));
    EXPECT_OK(fail(h->w, &job[3], "no"));
    EXPECT_OK(cancel(h->w, job[4].id));
}

SPEC(a_recovery_skips_a_job_whose_holder_acts_before_its_batch)
{
    const lh_jobs *late;
    struct world w = world_with_many(60000, &late);
    struct holders h = {.w = &w, .late = late};
    static const lh_state states[] = {LH_RUNNING, LH_COMPLETED, LH_PENDING, LH_SCHEDULED,
                                      LH_CANCELLED};
    clock_advance_ms(&w, 5000);
    lh_recover_opts opts = {
        .by_age = true, .threshold_ms = 5000, .progress = act_between_batches, .progress_arg = &h};
    EXPECT_EQ(reclaimed(&w, opts), MANY - 5);
    EXPECT(h.acted);
    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(job_of(&w, late->job[i].id).state, states[i]);
        EXPECT_EQ(job_of(&w, late->job[i].id).recoveries, 0);
    }
    EXPECT_OK(beat(&w, &late->job[0]));
    world_close(&w);
}

static void beat_between_batches(void *arg, int64_t done, int64_t total)
{
    struct holders *h = arg;
    (void)total;
    if (!h->acted && done < 1000)
        EXPECT_OK(lh_worker_heartbeat(h->w->store, "w1", 0, NULL, 0, NULL));
    h->acted = true;
}

SPEC(a_heartbeat_during_a_recovery_keeps_the_jobs_of_later_batches)
{
    const lh_jobs *late;
    struct world w = world_with_many(60000, &late);
    struct holders h = {.w = &w, .late = late};
    enlist_process(&w, "w1");
    clock_advance_ms(&w, SILENCE_MS);
    lh_recover_opts opts = {.progress = beat_between_batches, .progress_arg = &h};
    EXPECT_EQ(reclaimed(&w, opts), BATCH);
    EXPECT_EQ(queue_of(&w, "mail").running, MANY - BATCH);
    EXPECT_STR(worker_of(&w, "w1").state, "alive");
    EXPECT_OK(complete(&w, &late->job[0]));
    world_close(&w);
}

/* ---- several at once on one handle ---- */

static void *recover_all(void *arg)
{
    struct world *w = arg;
    lh_report *report = NULL;
    EXPECT_OK(lh_recover(w->store, NULL, &report));
    intptr_t n = (intptr_t)report->entries_reclaimed;
    lh_report_free(report);
    return (void *)n;
}

SPEC(concurrent_recoveries_on_one_handle_take_each_job_once)
{
    enum { THREADS = 4 };
    struct world w = world_with_many_dead();
    pthread_t threads[THREADS];
    intptr_t sum = 0;
    for (int i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, recover_all, &w), 0);
    for (int i = 0; i < THREADS; i++) {
        void *n;
        pthread_join(threads[i], &n);
        sum += (intptr_t)n;
    }
    EXPECT_EQ(sum, MANY);
    EXPECT_EQ(reports(&w), THREADS);
    lh_jobs *jobs = jobs_where(&w, (lh_job_filter){.limit = 10000});
    for (size_t i = 0; i < jobs->n; i++)
        EXPECT_EQ(jobs->job[i].recoveries, 1);
    world_close(&w);
}

TEST_TIMEOUT(an_automatic_recovery_of_several_batches_finishes_its_report, 60)
{
    enum { LOOK = 20000 }; /* as many as one scan returns: the next scan finds nothing */
    static lh_new_job jobs[LOOK];
    static lh_enqueued out[LOOK];
    struct world w = world_open();
    lh_maintained done;
    EXPECT_OK(policy(&w, NULL, NULL, .set = LH_POLICY_LEASE, .lease_ms = 1000));
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, LOOK, NULL, out));
    for (int i = 0; i < LOOK / 1000; i++)
        EXPECT_EQ(claim_many(&w, "mail", 1000)->n, 1000);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_maintain(w.store, NULL, &done));
    EXPECT_EQ(done.recovered, LOOK);
    lh_reports *reports = NULL;
    EXPECT_OK(lh_report_list(w.store, 0, &reports));
    EXPECT_EQ(reports->n, 1);
    EXPECT_EQ(reports->report[0].entries_reclaimed, LOOK);
    EXPECT_EQ(reports->report[0].completed_at, lh_now(w.store));
    lh_reports_free(reports);
    world_close(&w);
}
