/*
 * Calls that a worker needs to run commands: the start time of its leases, a release with a backoff, the
 * sessions of its commands, and its degraded state.
 */
#include "recovery_world.h"

#include "base/clock.h"

#include <unistd.h>

#define W1 "w-1"

static const char *const mail[] = {"mail"};

static lh_claim_opts wish(int64_t wait_ms, const char *request)
{
    return (lh_claim_opts){.queues = mail,
                           .n_queues = 1,
                           .worker = W1,
                           .lease_ms = 5000,
                           .wait_ms = wait_ms,
                           .request = request};
}

/* ---- from when a lease counts ---- */

SPEC(a_claim_returns_the_time_at_which_it_was_called)
{
    struct world w = world_open();
    lh_jobs *jobs = NULL;
    lh_claim_opts opts = wish(0, "r-1");
    enqueue(&w, "mail", "x");
    clock_advance_ms(&w, 1000);
    int64_t asked = lhi_mono_ms();
    EXPECT_OK(lh_claim(w.store, &opts, &jobs));
    EXPECT_EQ(jobs->asked_mono_ms, asked);
    EXPECT_EQ(jobs->job[0].remaining_ms, 5000);
    lh_jobs_free(jobs);
    clock_advance_ms(&w, 2000);
    EXPECT_OK(lh_claim(w.store, &opts, &jobs)); /* the same answer, with less of it left */
    EXPECT_EQ(jobs->asked_mono_ms, asked + 2000);
    EXPECT_EQ(jobs->job[0].remaining_ms, 3000);
    lh_jobs_free(jobs);
    world_close(&w);
}

SPEC(complete_and_claim_returns_the_time_at_which_it_was_called)
{
    struct world w = world_open();
    lh_job first;
    lh_jobs *jobs = NULL;
    lh_claim_opts opts = wish(0, NULL);
    enqueue(&w, "mail", "x");
    enqueue(&w, "mail", "y");
    EXPECT_OK(claim_one(&w, "mail", &first));
    clock_advance_ms(&w, 1000);
    int64_t asked = lhi_mono_ms();
    lh_done done = {.job = first.id, .token = first.token};
    EXPECT_OK(lh_complete_claim(w.store, &done, 1, NULL, &opts, &jobs));
    EXPECT_EQ(jobs->asked_mono_ms, asked);
    lh_jobs_free(jobs);
    world_close(&w);
}

/* ---- given back, with a backoff ---- */

static lh_job given_back(struct world *w, const lh_job *job)
{
    lh_ref ref = {.job = job->id, .token = job->token};
    EXPECT_OK(lh_release(w->store, &ref, 1, LH_BACKOFF, NULL, NULL));
    EXPECT_OK(lh_release(w->store, &ref, 1, LH_BACKOFF, NULL, NULL)); /* a repeat changes nothing */
    return job_of(w, job->id);
}

SPEC(a_release_with_backoff_delays_like_a_failure_and_refunds_the_attempt)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_BACKOFF | LH_POLICY_BACKOFF_CAP,
                     .backoff_ms = 8000, .backoff_cap_ms = 60000));
    enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &job));
    lh_job back = given_back(&w, &job);
    EXPECT_EQ(back.state, LH_SCHEDULED);
    EXPECT_EQ(back.attempt, 0);
    EXPECT(back.run_at > WORLD_START_MS && back.run_at <= WORLD_START_MS + 12000);
    EXPECT_STR(last_event(&w, "job.released").to, "scheduled");
    world_close(&w);
}

SPEC(a_release_with_backoff_uses_the_backoff_of_the_job_if_it_has_one)
{
    struct world w = world_open();
    lh_job job;
    enqueue(&w, "mail", "x", .backoff_ms = 500000, .backoff_cap_ms = 600000);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT(given_back(&w, &job).run_at >= WORLD_START_MS + 200000);
    world_close(&w);
}

SPEC(a_negative_delay_other_than_the_backoff_is_refused)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    lh_ref ref = {.job = job.id, .token = job.token};
    EXPECT_STATUS(lh_release(w.store, &ref, 1, -1, NULL, NULL), LH_EINVAL);
    EXPECT_STATUS(lh_release_worker(w.store, "w1", NULL, 0, LH_BACKOFF, true, NULL, NULL),
                  LH_EINVAL);
    EXPECT_EQ(job_of(&w, job.id).state, LH_RUNNING);
    world_close(&w);
}

/* ---- sessions ---- */

SPEC(an_invalid_list_of_sessions_is_refused)
{
    struct world w = world_open();
    int64_t none = 0, own = getpid();
    EXPECT_STATUS(lh_worker_sessions(w.store, "nobody", &own, 1), LH_ENOTFOUND);
    EXPECT_CONTAINS(lh_errmsg(w.store), "nobody");
    EXPECT_STATUS(lh_worker_sessions(w.store, "no name", &own, 1), LH_EINVAL);
    EXPECT_STATUS(lh_worker_sessions(w.store, NULL, &own, 1), LH_EINVAL);
    EXPECT_STATUS(lh_worker_sessions(w.store, W1, NULL, 1), LH_EMISUSE);
    enlist_process(&w, W1);
    EXPECT_STATUS(lh_worker_sessions(w.store, W1, &none, 1), LH_EINVAL);
    EXPECT_STATUS(lh_worker_sessions(w.store, W1, &own, 1001), LH_EINVAL);
    EXPECT_OK(lh_worker_sessions(w.store, W1, NULL, 0));
    EXPECT_OK(lh_worker_sessions(w.store, W1, &own, 1));
    world_close(&w);
}

SPEC(a_silent_worker_loses_its_jobs_whatever_runs_in_its_sessions)
{
    struct world w = world_open();
    int64_t own = getpid();
    enlist_process(&w, W1);
    lh_job job = held(&w, "mail", W1, 60000);
    EXPECT_OK(lh_worker_sessions(w.store, W1, &own, 1));
    clock_advance_ms(&w, SILENCE_MS);
    EXPECT_EQ(recover_by(&w, NULL)->entries_reclaimed, 1);
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    world_close(&w);
}

/* ---- degraded ---- */

static size_t told_degraded(struct world *w)
{
    const lh_events *events = events_of(w, 0);
    size_t n = 0;
    for (size_t i = 0; i < events->n; i++)
        n += strcmp(events->event[i].type, "worker.degraded") == 0;
    return n;
}

static int64_t count_degraded(struct world *w)
{
    lh_store_info info;
    EXPECT_OK(lh_store_status(w->store, &info));
    return info.workers_degraded;
}

SPEC(a_worker_whose_jobs_all_fail_is_degraded_until_one_succeeds)
{
    struct world w = world_open();
    enlist_process(&w, W1);
    EXPECT(worker_of(&w, W1).degraded == NULL);
    EXPECT_OK(lh_worker_degraded(w.store, W1, NULL)); /* the worker works: nothing is reported */
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(lh_worker_degraded(w.store, W1, "5 failures in a row"));
        EXPECT_STR(worker_of(&w, W1).degraded, "5 failures in a row");
        EXPECT_STR(worker_of(&w, W1).state, "alive");
        EXPECT_EQ(count_degraded(&w), 1);
        EXPECT_EQ(told_degraded(&w), 1);
    }
    EXPECT_STR(last_event(&w, "worker.degraded").reason, "5 failures in a row");
    EXPECT_STR(last_event(&w, "worker.degraded").worker, W1);
    EXPECT_OK(lh_worker_heartbeat(w.store, W1, 0, NULL, 0, NULL));
    EXPECT(worker_of(&w, W1).degraded != NULL);
    EXPECT_OK(lh_worker_degraded(w.store, W1, NULL));
    EXPECT(worker_of(&w, W1).degraded == NULL);
    EXPECT_EQ(count_degraded(&w), 0);
    EXPECT_OK(lh_worker_degraded(w.store, W1, "again"));
    EXPECT_EQ(told_degraded(&w), 2);
    world_close(&w);
}

SPEC(a_worker_that_registers_or_stops_is_not_degraded)
{
    struct world w = world_open();
    enlist_process(&w, W1);
    EXPECT_OK(lh_worker_degraded(w.store, W1, "why"));
    enlist_process(&w, W1);
    EXPECT(worker_of(&w, W1).degraded == NULL);
    EXPECT_OK(lh_worker_degraded(w.store, W1, "why"));
    EXPECT_OK(lh_worker_stop(w.store, W1));
    EXPECT(worker_of(&w, W1).degraded == NULL);
    world_close(&w);
}

SPEC(an_invalid_degraded_flag_is_refused)
{
    struct world w = world_open();
    char longest[1026];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    EXPECT_STATUS(lh_worker_degraded(w.store, "nobody", "why"), LH_ENOTFOUND);
    EXPECT_STATUS(lh_worker_degraded(w.store, "nobody", NULL), LH_ENOTFOUND);
    EXPECT_STATUS(lh_worker_degraded(w.store, "no name", "why"), LH_EINVAL);
    EXPECT_STATUS(lh_worker_degraded(w.store, NULL, "why"), LH_EINVAL);
    enlist_process(&w, W1);
    EXPECT_STATUS(lh_worker_degraded(w.store, W1, ""), LH_EINVAL);
    EXPECT_STATUS(lh_worker_degraded(w.store, W1, longest), LH_ETOOBIG);
    world_close(&w);
}
