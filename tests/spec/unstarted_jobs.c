/* Jobs that a dead worker held and had not started are released. */
#include "recovery_world.h"

#define W1 "w-1"

/* A worker that reports its starts, with two claimed jobs. */
struct crew {
    struct world w;
    lh_job begun, waiting;
};

static void says_started(struct world *w, const lh_job *job)
{
    EXPECT_OK(lh_worker_started(w->store, W1, &(lh_ref){.job = job->id, .token = job->token}, 1));
}

static struct crew crew_with(int64_t lease_ms)
{
    struct crew c = {.w = world_open()};
    enlist(&c.w, W1, .process = true, .tells_started = true, .interval_ms = 1000);
    c.begun = held(&c.w, "mail", W1, lease_ms);
    c.waiting = held(&c.w, "mail", W1, lease_ms);
    says_started(&c.w, &c.begun);
    return c;
}

static void expect_released(struct world *w, int64_t id)
{
    lh_job job = job_of(w, id);
    EXPECT_EQ(job.state, LH_PENDING);
    EXPECT_EQ(job.attempt, 0);
    EXPECT_EQ(job.recoveries, 0);
    EXPECT_EQ(job.started_at, 0);
}

static void expect_counted(struct world *w, int64_t id)
{
    EXPECT_EQ(job_of(w, id).attempt, 1);
    EXPECT_EQ(job_of(w, id).recoveries, 1);
}

SPEC(a_job_that_a_dead_worker_had_not_started_is_released_without_cost)
{
    struct crew c = crew_with(60000);
    clock_advance_ms(&c.w, SILENCE_MS);
    const lh_report *report = recover_by(&c.w, NULL);
    expect_released(&c.w, c.waiting.id);
    expect_counted(&c.w, c.begun.id);
    EXPECT(job_of(&c.w, c.waiting.id).token > c.waiting.token);
    EXPECT_STR(told_of(report, c.waiting.id)->action, "released");
    EXPECT_EQ(told_of(report, c.waiting.id)->attempt, 1);
    EXPECT_STR(told_of(report, c.begun.id)->action, "retry");
    EXPECT_EQ(told_of(report, c.begun.id)->attempt, 2);
    EXPECT_STR(last_event(&c.w, "job.recovered").action, "released");
    EXPECT_STATUS(complete(&c.w, &c.waiting), LH_ELOST);
    world_close(&c.w);
}

SPEC(a_job_that_was_not_started_is_released_when_its_worker_is_dead_and_its_lease_has_expired)
{
    struct crew c = crew_with(INT64_C(2) * SILENCE_MS);
    clock_advance_ms(&c.w, INT64_C(2) * SILENCE_MS);
    recover_by(&c.w, NULL);
    expect_released(&c.w, c.waiting.id);
    expect_counted(&c.w, c.begun.id);
    world_close(&c.w);
}

SPEC(a_job_that_was_not_started_is_released_when_its_lease_expires_under_a_live_worker)
{
    struct crew c = crew_with(2000);
    clock_advance_ms(&c.w, 1000);
    EXPECT_OK(lh_worker_heartbeat(c.w.store, W1, 0, NULL, 0, NULL));
    clock_advance_ms(&c.w, 1000);
    recover_by(&c.w, NULL);
    expect_released(&c.w, c.waiting.id);
    expect_counted(&c.w, c.begun.id);
    world_close(&c.w);
}

SPEC(a_claim_releases_jobs_that_were_not_started)
{
    struct crew c = crew_with(60000);
    lh_job next;
    clock_advance_ms(&c.w, SILENCE_MS);
    EXPECT_OK(claim_one(&c.w, "mail", &next, .worker = "w-2"));
    EXPECT_EQ(next.id, c.begun.id);
    EXPECT_EQ(next.attempt, 2);
    EXPECT_OK(claim_one(&c.w, "mail", &next, .worker = "w-2"));
    EXPECT_EQ(next.id, c.waiting.id);
    EXPECT_EQ(next.attempt, 1);
    EXPECT_EQ(next.recoveries, 0);
    world_close(&c.w);
}

SPEC(a_new_list_of_started_jobs_replaces_the_last_one)
{
    struct crew c = crew_with(60000);
    says_started(&c.w, &c.waiting); /* the other job is no longer in the list */
    clock_advance_ms(&c.w, SILENCE_MS);
    recover_by(&c.w, NULL);
    expect_counted(&c.w, c.waiting.id);
    expect_released(&c.w, c.begun.id);
    world_close(&c.w);
}

SPEC(the_list_of_started_jobs_may_be_empty)
{
    struct crew c = crew_with(60000);
    EXPECT_OK(lh_worker_started(c.w.store, W1, NULL, 0));
    clock_advance_ms(&c.w, SILENCE_MS);
    recover_by(&c.w, NULL);
    expect_released(&c.w, c.begun.id);
    world_close(&c.w);
}

SPEC(a_start_reported_under_an_earlier_token_does_not_count)
{
    struct crew c = crew_with(60000);
    lh_job again;
    EXPECT_OK(release(&c.w, &c.begun));
    EXPECT_OK(claim_one(&c.w, "mail", &again, .worker = W1, .lease_ms = 60000));
    EXPECT_EQ(again.id, c.begun.id);
    clock_advance_ms(&c.w, SILENCE_MS);
    recover_by(&c.w, NULL);
    expect_released(&c.w, c.begun.id);
    world_close(&c.w);
}

SPEC(a_worker_that_reports_no_starts_counts_as_having_started_its_jobs)
{
    struct world w = world_open();
    enlist_process(&w, W1);
    lh_job job = held(&w, "mail", W1, 60000);
    clock_advance_ms(&w, SILENCE_MS);
    recover_by(&w, NULL);
    expect_counted(&w, job.id);
    world_close(&w);
}

SPEC(a_worker_that_registers_again_has_started_nothing)
{
    struct crew c = crew_with(60000);
    enlist(&c.w, W1, .process = true, .tells_started = true, .interval_ms = 1000);
    clock_advance_ms(&c.w, SILENCE_MS);
    recover_by(&c.w, NULL);
    expect_released(&c.w, c.begun.id);
    world_close(&c.w);
}

SPEC(no_policy_counts_against_a_job_that_was_not_started)
{
    struct crew c = crew_with(60000);
    EXPECT_OK(
        policy(&c.w, "mail", NULL,
               .set = LH_POLICY_ACTION | LH_POLICY_MAX_RECOVERIES | LH_POLICY_RECOVERY_BACKOFF,
               .action = LH_ACTION_FAIL, .max_recoveries = 0, .recovery_backoff_ms = 5000));
    clock_advance_ms(&c.w, SILENCE_MS);
    recover_by(&c.w, NULL);
    expect_released(&c.w, c.waiting.id); /* at once: pending */
    EXPECT_EQ(job_of(&c.w, c.begun.id).state, LH_FAILED);
    world_close(&c.w);
}

SPEC(a_job_that_was_not_started_at_its_last_attempt_gets_the_attempt_back)
{
    struct world w = world_open();
    lh_job job;
    enlist(&w, W1, .process = true, .tells_started = true, .interval_ms = 1000);
    enqueue(&w, "mail", "x", .max_attempts = 1);
    for (int i = 0; i < 5; i++) {
        EXPECT_OK(claim_one(&w, "mail", &job, .worker = W1, .lease_ms = 60000));
        EXPECT_EQ(job.attempt, 1);
        clock_advance_ms(&w, SILENCE_MS);
        recover_by(&w, NULL);
        expect_released(&w, job.id);
        EXPECT_OK(lh_worker_heartbeat(w.store, W1, 0, NULL, 0, NULL));
    }
    world_close(&w);
}

SPEC(an_invalid_list_of_started_jobs_is_refused)
{
    struct world w = world_open();
    lh_ref one = {.job = 1, .token = 1};
    EXPECT_STATUS(lh_worker_started(w.store, "nobody", &one, 1), LH_ENOTFOUND);
    EXPECT_CONTAINS(lh_errmsg(w.store), "nobody");
    EXPECT_STATUS(lh_worker_started(w.store, "no name", &one, 1), LH_EINVAL);
    EXPECT_STATUS(lh_worker_started(w.store, NULL, &one, 1), LH_EINVAL);
    EXPECT_STATUS(lh_worker_started(w.store, W1, NULL, 1), LH_EMISUSE);
    world_close(&w);
}
