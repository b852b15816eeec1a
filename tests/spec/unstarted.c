/* Jobs that a dead worker held and had not begun: given back as if it had released them. */
#include "healing.h"

#define W1 "w-1"

/* A worker that says what it starts, and two jobs of a batch it has claimed. */
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

SPEC(what_a_dead_worker_had_not_begun_is_given_back_unharmed)
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

SPEC(what_was_not_begun_is_given_back_also_when_its_lease_has_ended)
{
    struct crew c = crew_with(INT64_C(2) * SILENCE_MS);
    clock_advance_ms(&c.w, INT64_C(2) * SILENCE_MS);
    recover_by(&c.w, NULL);
    expect_released(&c.w, c.waiting.id);
    expect_counted(&c.w, c.begun.id);
    world_close(&c.w);
}

SPEC(what_was_not_begun_when_its_lease_ended_is_given_back_though_its_worker_lives)
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

SPEC(a_claim_gives_back_what_was_not_begun_too)
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

SPEC(what_is_said_to_be_started_replaces_what_was_said_before)
{
    struct crew c = crew_with(60000);
    says_started(&c.w, &c.waiting); /* the other one is not on the list any more */
    clock_advance_ms(&c.w, SILENCE_MS);
    recover_by(&c.w, NULL);
    expect_counted(&c.w, c.waiting.id);
    expect_released(&c.w, c.begun.id);
    world_close(&c.w);
}

SPEC(nothing_may_be_said_to_be_started)
{
    struct crew c = crew_with(60000);
    EXPECT_OK(lh_worker_started(c.w.store, W1, NULL, 0));
    clock_advance_ms(&c.w, SILENCE_MS);
    recover_by(&c.w, NULL);
    expect_released(&c.w, c.begun.id);
    world_close(&c.w);
}

SPEC(a_start_under_an_earlier_token_is_none_under_the_next)
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

SPEC(who_does_not_tell_is_taken_to_have_begun)
{
    struct world w = world_open();
    enlist_process(&w, W1);
    lh_job job = held(&w, "mail", W1, 60000);
    clock_advance_ms(&w, SILENCE_MS);
    recover_by(&w, NULL);
    expect_counted(&w, job.id);
    world_close(&w);
}

SPEC(who_registers_anew_has_begun_nothing)
{
    struct crew c = crew_with(60000);
    enlist(&c.w, W1, .process = true, .tells_started = true, .interval_ms = 1000);
    clock_advance_ms(&c.w, SILENCE_MS);
    recover_by(&c.w, NULL);
    expect_released(&c.w, c.begun.id);
    world_close(&c.w);
}

SPEC(no_policy_harms_what_was_not_begun)
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

SPEC(what_was_not_begun_at_the_last_attempt_gets_it_back)
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

SPEC(a_bad_word_about_what_was_started_is_refused)
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
