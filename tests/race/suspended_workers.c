/* Processes that are suspended while they hold a job: what they may still do when they are resumed. */
#include "race/worker_processes.h"

enum { SILENCE_MS = 90000 };

static const lh_worker_opts process = {.process = true};

static int64_t recovered(lh_store *store)
{
    lh_report *report = NULL;

    EXPECT_OK(lh_recover(store, NULL, &report));
    int64_t n = report->entries_reclaimed;
    lh_report_free(report);
    return n;
}

/* A worker that holds a job and is suspended. */
static struct hand stopped_worker(lh_store **store, const lh_worker_opts *opts, struct answer *job)
{
    struct hand worker = hand_start(store, "w-1", opts);

    *job = ask(&worker, HOLD);
    (void)ask(&worker, STOP);
    await_stop(&worker);
    return worker;
}

TEST(a_suspended_worker_is_not_dead_until_it_has_been_silent_for_too_long)
{
    struct answer held;
    clock_start();
    lh_store *store = crew_open();
    struct hand worker = stopped_worker(&store, &process, &held);
    EXPECT_EQ(recovered(store), 0);
    clock_advance_ms(SILENCE_MS / 2); /* real time passes too */
    EXPECT_EQ(recovered(store), 0);
    clock_advance_ms(SILENCE_MS / 2 + 1);
    EXPECT_EQ(recovered(store), 1);
    hand_continue(&worker);
    EXPECT_STATUS(ask(&worker, BEAT).status, LH_ELOST);
    EXPECT_STATUS(ask(&worker, BEAT_WORKER).status, LH_ELOST);
    EXPECT_STATUS(ask(&worker, COMPLETE).status, LH_ELOST);
    EXPECT_EQ(job_now(store, held.job).state, LH_PENDING);
    hand_quit(&worker);
    expect_sound(store);
    lh_close(store);
}

/* A worker is suspended past its lease, another one does its job, and then the worker is resumed. */
TEST(a_worker_suspended_past_its_lease_learns_that_its_job_was_taken)
{
    struct answer held;
    clock_start();
    lh_store *store = crew_open();
    struct hand worker = stopped_worker(&store, NULL, &held),
                next = hand_start(&store, "next", NULL);
    clock_advance_ms(HOLD_MS);
    struct answer claimed = ask(&next, WAIT);
    EXPECT_EQ(claimed.job, held.job);
    EXPECT(claimed.token > held.token);
    hand_continue(&worker);
    EXPECT_STATUS(ask(&worker, BEAT).status, LH_ELOST);
    EXPECT_STATUS(ask(&worker, COMPLETE).status, LH_ELOST);
    EXPECT_EQ(job_now(store, held.job).token, claimed.token);
    EXPECT_EQ(job_now(store, held.job).state, LH_RUNNING);
    EXPECT_OK(ask(&next, COMPLETE).status);
    EXPECT_STATUS(ask(&worker, COMPLETE).status, LH_ELOST);
    hand_quit(&next);
    hand_quit(&worker);
    expect_sound(store);
    lh_close(store);
}

TEST(a_worker_suspended_past_its_lease_may_complete_a_job_that_was_not_recovered)
{
    struct answer held;
    clock_start();
    lh_store *store = crew_open();
    struct hand worker = stopped_worker(&store, NULL, &held);
    clock_advance_ms(HOLD_MS + 1);
    hand_continue(&worker);
    EXPECT_STATUS(ask(&worker, BEAT).status, LH_ELOST); /* it can no longer be extended */
    EXPECT_OK(ask(&worker, COMPLETE).status);
    EXPECT_EQ(job_now(store, held.job).state, LH_COMPLETED);
    EXPECT_EQ(recovered(store), 0);
    hand_quit(&worker);
    lh_close(store);
}

TEST(a_worker_suspended_past_its_silence_may_complete_a_job_that_was_not_recovered)
{
    struct answer held;
    clock_start();
    lh_store *store = crew_open();
    struct hand worker = stopped_worker(&store, &process, &held);
    clock_advance_ms(SILENCE_MS + 1);
    hand_continue(&worker);
    EXPECT_OK(ask(&worker, COMPLETE).status);
    EXPECT_EQ(job_now(store, held.job).state, LH_COMPLETED);
    EXPECT_EQ(recovered(store), 0);
    hand_quit(&worker);
    lh_close(store);
}

TEST(a_worker_that_is_resumed_in_time_has_lost_nothing)
{
    struct answer held;
    clock_start();
    lh_store *store = crew_open();
    struct hand worker = stopped_worker(&store, &process, &held);
    clock_advance_ms(SILENCE_MS * 2 / 3);
    hand_continue(&worker);
    EXPECT_OK(ask(&worker, BEAT_WORKER).status);
    clock_advance_ms(SILENCE_MS * 2 / 3);
    EXPECT_EQ(recovered(store), 0);
    EXPECT_OK(ask(&worker, COMPLETE).status);
    hand_quit(&worker);
    lh_close(store);
}
