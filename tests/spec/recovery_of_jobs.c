/* Recovery: when a job is reclaimable, what a death changes, what it does not change, and its reason. */
#include "harness/recover.h"
#include "world.h"

#include <pthread.h>
#include <stdio.h>

/* ---- when ---- */

SPEC(a_lease_expires_at_its_deadline_and_not_a_millisecond_earlier)
{
    struct world w = world_with_job("mail", "x");
    lh_job job, next;
    lh_recovered found;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 999);
    EXPECT_OK(recovered_by_hand(w.store, &found));
    EXPECT_EQ(found.entries_reclaimed, 0);
    EXPECT_STATUS(claim_one(&w, "mail", &next), LH_EMPTY);
    EXPECT_EQ(job_of(&w, job.id).state, LH_RUNNING);
    clock_advance_ms(&w, 1);
    EXPECT_EQ(job_of(&w, job.id).lease_until, lh_now(w.store));
    EXPECT(job_of(&w, job.id).expired);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.expired = true})->n, 1);
    EXPECT_OK(recovered_by_hand(w.store, &found));
    EXPECT_EQ(found.entries_reclaimed, 1);
    EXPECT_EQ(found.recovery_timestamp, WORLD_START_MS + 1000);
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    world_close(&w);
}

SPEC(recovery_does_not_take_a_job_whose_heartbeat_came_first)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    lh_recovered found;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 999);
    EXPECT_OK(beat(&w, &job));
    clock_advance_ms(&w, 1);
    EXPECT_OK(recovered_by_hand(w.store, &found));
    EXPECT_EQ(found.entries_reclaimed, 0);
    EXPECT_OK(complete(&w, &job));
    world_close(&w);
}

SPEC(recovery_clears_the_holder_and_keeps_the_other_fields_of_the_job)
{
    struct world w = world_open();
    lh_job job;
    int64_t id = enqueue(&w, "mail", "payload", .kind = "k", .priority = 4, .key = "key");
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 100);
    EXPECT_OK(lh_heartbeat(w.store,
                           &(lh_beat){.job = id,
                                      .token = job.token,
                                      .has_progress = true,
                                      .progress = 55,
                                      .stage = "rebasing",
                                      .checkpoint = "{\"n\":1}"},
                           1, NULL, NULL));
    lh_job before = job_of(&w, id);
    clock_advance_ms(&w, 5000);
    EXPECT_OK(lh_recover(w.store, NULL, NULL));
    lh_job after = job_of(&w, id);
    EXPECT_EQ(after.state, LH_PENDING);
    EXPECT(after.worker == NULL);
    EXPECT_EQ(after.started_at, 0);
    EXPECT_EQ(after.lease_until, 0);
    EXPECT_EQ(after.state_changed_at, WORLD_START_MS + 5100);
    EXPECT(after.token > before.token);
    EXPECT_EQ(after.attempt, 1);
    EXPECT_EQ(after.recoveries, 1);
    /* invariant 4 */
    EXPECT_EQ(after.id, before.id);
    EXPECT_STR(after.queue, before.queue);
    EXPECT_STR(after.kind, before.kind);
    EXPECT_MEM(after.payload, after.payload_len, before.payload, before.payload_len);
    EXPECT_EQ(after.priority, before.priority);
    EXPECT_STR(after.key, before.key);
    EXPECT_EQ(after.created_at, before.created_at);
    EXPECT_STR(after.stage, before.stage);
    EXPECT_EQ(after.progress, before.progress);
    EXPECT_STR(after.checkpoint, before.checkpoint);
    EXPECT_EQ(after.last_heartbeat_at, before.last_heartbeat_at);
    world_close(&w);
}

SPEC(a_release_costs_no_attempt_and_no_recovery_and_a_death_costs_both)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    for (int i = 0; i < 10; i++) {
        EXPECT_OK(claim_one(&w, "mail", &job));
        EXPECT_OK(release(&w, &job));
    }
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    EXPECT_EQ(job.attempt, 1);
    EXPECT_EQ(job.recoveries, 0);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.attempt, 2);
    EXPECT_EQ(job.recoveries, 1);
    world_close(&w);
}

/* ---- the table of deaths ---- */

struct death {
    lh_action action;
    bool last_attempt;  /* attempt = max_attempts */
    bool last_recovery; /* recoveries = max_recoveries */
    lh_state to;
    int refunded;
    const char *prefix;
};

/* Two deaths, and then the one that the test is about. */
static void expect_death(const struct death *death)
{
    enum { BEFORE = 2 };
    struct world w = world_open();
    lh_job job;
    int64_t max_attempts = death->last_attempt ? BEFORE + 1 : BEFORE + 2;
    int64_t id = enqueue(&w, "mail", "x", .max_attempts = max_attempts);
    for (int i = 0; i <= BEFORE; i++) {
        clock_advance_ms(&w, 1000);
        EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
        EXPECT_EQ(job.recoveries, i);
        EXPECT_EQ(job.attempt, i + 1);
    }
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_ACTION | LH_POLICY_MAX_RECOVERIES,
                     .action = death->action,
                     .max_recoveries = death->last_recovery ? BEFORE : BEFORE + 1));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_recover(w.store, NULL, NULL));
    lh_job after = job_of(&w, id);
    EXPECT_EQ(after.state, death->to);
    EXPECT_EQ(after.attempt, BEFORE + 1 - death->refunded);
    EXPECT(after.token > job.token);
    EXPECT_EQ(after.started_at, 0);
    EXPECT_EQ(after.finished_at, death->to == LH_FAILED ? lh_now(w.store) : 0);
    if (death->to == LH_PENDING)
        EXPECT_EQ(after.recoveries, BEFORE + 1);
    EXPECT(after.recoveries <= (death->last_recovery ? BEFORE : BEFORE + 1)); /* invariant 5 */
    if (strncmp(after.last_error, death->prefix, strlen(death->prefix)) != 0)
        FAIL("expected: \"%s\" starts with \"%s\"", after.last_error, death->prefix);
    EXPECT_EQ(queue_of(&w, "mail").hour_failed, death->to == LH_FAILED);
    world_close(&w);
}

#define TTL "RECLAIMED_TTL: Exceeded TTL (1 s)"

SPEC(action_retry_returns_the_job_and_counts_the_death)
{
    expect_death(&(struct death){LH_ACTION_RETRY, false, false, LH_PENDING, 0, TTL});
}

SPEC(action_retry_fails_a_job_at_its_last_attempt)
{
    expect_death(&(struct death){LH_ACTION_RETRY, true, false, LH_FAILED, 0,
                                 "RECLAIMED_TTL: Max attempts reached (3), "});
}

SPEC(action_retry_fails_a_job_as_poison_at_its_last_recovery)
{
    expect_death(&(struct death){LH_ACTION_RETRY, false, true, LH_FAILED, 0, "POISON: "});
}

SPEC(the_limit_of_recoveries_is_checked_before_the_limit_of_attempts)
{
    expect_death(&(struct death){LH_ACTION_RETRY, true, true, LH_FAILED, 0, "POISON: "});
}

SPEC(action_pending_returns_the_job_and_refunds_the_attempt)
{
    expect_death(&(struct death){LH_ACTION_PENDING, false, false, LH_PENDING, 1, TTL});
}

SPEC(action_pending_returns_a_job_even_at_its_last_attempt)
{
    expect_death(&(struct death){LH_ACTION_PENDING, true, false, LH_PENDING, 1, TTL});
}

SPEC(action_pending_fails_a_job_as_poison_at_its_last_recovery)
{
    expect_death(&(struct death){LH_ACTION_PENDING, false, true, LH_FAILED, 0, "POISON: "});
}

SPEC(action_pending_fails_a_job_as_poison_at_its_last_attempt_and_recovery)
{
    expect_death(&(struct death){LH_ACTION_PENDING, true, true, LH_FAILED, 0, "POISON: "});
}

SPEC(action_fail_fails_a_job_at_its_first_death)
{
    expect_death(&(struct death){LH_ACTION_FAIL, false, false, LH_FAILED, 0, TTL});
}

SPEC(action_fail_fails_a_job_at_its_last_attempt)
{
    expect_death(&(struct death){LH_ACTION_FAIL, true, false, LH_FAILED, 0, "RECLAIMED_TTL: "});
}

SPEC(action_fail_fails_a_job_as_poison_at_its_last_recovery)
{
    expect_death(&(struct death){LH_ACTION_FAIL, false, true, LH_FAILED, 0, "POISON: "});
}

SPEC(with_a_limit_of_no_recoveries_the_first_death_is_poison)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_MAX_RECOVERIES, .max_recoveries = 0));
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_EQ(job_of(&w, job.id).state, LH_FAILED);
    EXPECT(strncmp(job_of(&w, job.id).last_error, "POISON: ", 8) == 0);
    EXPECT_STR(story_of(&w, job.id), "job.poisoned");
    world_close(&w);
}

SPEC(unlimited_attempts_and_recoveries_never_end_a_job)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(
        policy(&w, "mail", NULL, .set = LH_POLICY_MAX_RECOVERIES, .max_recoveries = LH_UNLIMITED));
    enqueue(&w, "mail", "x", .max_attempts = LH_UNLIMITED);
    for (int i = 0; i < 40; i++) {
        EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
        EXPECT_EQ(job.attempt, i + 1);
        EXPECT_EQ(job.recoveries, i);
        clock_advance_ms(&w, 1000);
    }
    EXPECT_OK(lh_recover(w.store, NULL, NULL));
    EXPECT_STR(job_of(&w, job.id).last_error,
               "RECLAIMED_TTL: Exceeded TTL (1 s) at attempt 40/unlimited, worker w1 last seen 1s "
               "ago");
    world_close(&w);
}

SPEC(unlimited_recoveries_still_end_at_the_last_attempt)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(
        policy(&w, "mail", NULL, .set = LH_POLICY_MAX_RECOVERIES, .max_recoveries = LH_UNLIMITED));
    int64_t id = enqueue(&w, "mail", "x", .max_attempts = 2);
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
        clock_advance_ms(&w, 1000);
    }
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_EQ(job_of(&w, id).state, LH_FAILED);
    EXPECT_CONTAINS(job_of(&w, id).last_error, "Max attempts reached (2)");
    world_close(&w);
}

SPEC(without_a_policy_three_deaths_fail_a_job)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(claim_one(&w, "mail", &job));
        clock_advance_ms(&w, 300000);
    }
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_EQ(job_of(&w, job.id).state, LH_FAILED);
    EXPECT_EQ(job_of(&w, job.id).attempt, 3);
    EXPECT_CONTAINS(job_of(&w, job.id).last_error, "RECLAIMED_TTL: Max attempts reached (3), ");
    world_close(&w);
}

SPEC(the_action_of_a_kind_overrides_that_of_its_queue)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_ACTION, .action = LH_ACTION_FAIL));
    EXPECT_OK(policy(&w, "mail", "k", .set = LH_POLICY_ACTION, .action = LH_ACTION_PENDING));
    int64_t plain = enqueue(&w, "mail", "x"), special = enqueue(&w, "mail", "x", .kind = "k");
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_recover(w.store, NULL, NULL));
    EXPECT_EQ(job_of(&w, plain).state, LH_FAILED);
    EXPECT_EQ(job_of(&w, special).state, LH_PENDING);
    EXPECT_EQ(job_of(&w, special).attempt, 0);
    world_close(&w);
}

/* ---- what it says ---- */

SPEC(the_reason_of_a_recovery_names_the_lease_the_attempt_and_the_worker)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(lh_fail(
        w.store,
        &(lh_failure){.job = job.id, .token = job.token, .error = "no", .retry_in_ms = LH_NOW}, 1,
        NULL, NULL));
    EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w-1", .lease_ms = 1800000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_heartbeat(
        w.store, &(lh_beat){.job = job.id, .token = job.token, .lease_ms = 300000}, 1, NULL, NULL));
    clock_advance_ms(&w, 300000);
    EXPECT_OK(lh_recover(w.store, NULL, NULL));
    const char *wanted = "RECLAIMED_TTL: Exceeded TTL (30 min) at attempt 2/3, worker w-1 last "
                         "seen 5m ago";
    EXPECT_STR(job_of(&w, job.id).last_error, wanted);
    lh_event event = last_event(&w, "job.recovered");
    EXPECT_STR(event.reason, wanted);
    EXPECT_EQ(event.job, job.id);
    EXPECT_STR(event.queue, "mail");
    EXPECT_STR(event.worker, "w-1");
    EXPECT_STR(event.from, "running");
    EXPECT_STR(event.to, "pending");
    EXPECT_STR(event.actor, "system/recovery");
    EXPECT_EQ(event.token, job.token);
    EXPECT_EQ(event.at, WORLD_START_MS + 301000);
    world_close(&w);
}

/* ---- policies of recovery ---- */

SPEC(a_recovery_backoff_delays_the_next_attempt)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(
        policy(&w, "mail", NULL, .set = LH_POLICY_RECOVERY_BACKOFF, .recovery_backoff_ms = 5000));
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_EQ(job_of(&w, job.id).state, LH_SCHEDULED);
    EXPECT_EQ(job_of(&w, job.id).run_at, WORLD_START_MS + 6000);
    clock_advance_ms(&w, 5000);
    EXPECT_OK(claim_one(&w, "mail", &job));
    world_close(&w);
}

SPEC(with_recovery_off_only_an_operator_recovers_stuck_jobs)
{
    struct world w = world_open();
    lh_job stuck, other, job;
    lh_recovered found;
    lh_store_info info;
    lh_maintained done;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RECOVERY, .recovery = false));
    enqueue(&w, "mail", "x");
    enqueue(&w, "post", "x");
    EXPECT_OK(claim_one(&w, "mail", &stuck, .lease_ms = 1000));
    EXPECT_OK(claim_one(&w, "post", &other, .lease_ms = 2000));
    clock_advance_ms(&w, 5000);
    EXPECT_OK(claim_one(&w, "post", &job)); /* a stuck job does not hide the others */
    EXPECT_EQ(job.id, other.id);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_OK(lh_maintain(w.store, NULL, &done));
    EXPECT_EQ(done.recovered, 0);
    EXPECT_EQ(job_of(&w, stuck.id).state, LH_RUNNING);
    EXPECT(job_of(&w, stuck.id).expired);
    EXPECT_OK(lh_store_status(w.store, &info));
    EXPECT_EQ(info.stale_jobs, 0); /* recovery is off on purpose: this is no alarm */
    EXPECT_OK(lh_recovery_stats(w.store, &found));
    EXPECT_EQ(found.entries_reclaimed, 1);
    EXPECT_OK(recovered_by_hand(w.store, &found));
    EXPECT_EQ(found.entries_reclaimed, 1);
    EXPECT_EQ(job_of(&w, stuck.id).state, LH_PENDING);
    EXPECT(strncmp(job_of(&w, stuck.id).last_error, "RECLAIMED_", 10) == 0);
    world_close(&w);
}

SPEC(a_handle_with_automatic_recovery_off_still_recovers_on_request)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    lh_maintained done;
    lh_recovered found;
    const char *queue = "mail";
    lh_jobs *jobs = NULL;
    lh_store *passive = world_handle((lh_open_opts){.no_recovery = true});
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    EXPECT_OK(lh_lease_acquire(w.store, "locks", "a", &(lh_lease_opts){.ttl_ms = 1000}, NULL));
    int64_t due = enqueue(&w, "mail", "due", .delay_ms = 1000);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_claim(
        passive, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w2", .n = 9}, &jobs));
    EXPECT_EQ(jobs->n, 1); /* a scheduled job that becomes due is no recovery */
    EXPECT_EQ(jobs->job[0].id, due);
    lh_jobs_free(jobs);
    EXPECT_OK(lh_maintain(passive, NULL, &done));
    EXPECT_EQ(done.recovered, 0);
    EXPECT_EQ(job_of(&w, job.id).state, LH_RUNNING);
    EXPECT_OK(recovered_by_hand(passive, &found));
    EXPECT_EQ(found.entries_reclaimed, 1);
    EXPECT_EQ(found.locks_cleaned, 1);
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    lh_close(passive);
    world_close(&w);
}

/* ---- many ---- */

SPEC(recovery_is_safe_to_repeat)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    lh_recovered found;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(recovered_by_hand(w.store, &found));
    EXPECT_EQ(found.entries_reclaimed, 1);
    lh_job first = job_of(&w, job.id);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(recovered_by_hand(w.store, &found));
    EXPECT_EQ(found.entries_reclaimed, 0);
    EXPECT_EQ(found.locks_cleaned, 0);
    lh_job second = job_of(&w, job.id);
    EXPECT_EQ(second.token, first.token);
    EXPECT_EQ(second.state_changed_at, first.state_changed_at);
    EXPECT_EQ(second.recoveries, 1);
    EXPECT_STR(story_of(&w, job.id), "job.recovered");
    world_close(&w);
}

SPEC(more_stuck_jobs_than_one_batch_are_all_recovered)
{
    struct world w = world_open();
    static lh_new_job jobs[1200];
    static lh_enqueued out[1200];
    lh_recovered found;
    EXPECT_OK(policy(&w, NULL, NULL, .set = LH_POLICY_LEASE, .lease_ms = 1000));
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, 1200, NULL, out));
    EXPECT_EQ(claim_many(&w, "mail", 1000)->n, 1000);
    EXPECT_EQ(claim_many(&w, "mail", 1000)->n, 200);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_recovery_stats(w.store, &found));
    EXPECT_EQ(found.entries_reclaimed, 1200);
    EXPECT_OK(recovered_by_hand(w.store, &found));
    EXPECT_EQ(found.entries_reclaimed, 1200);
    EXPECT_EQ(queue_of(&w, "mail").pending, 1200);
    EXPECT_EQ(queue_of(&w, "mail").hour_recovered, 1200);
    world_close(&w);
}

SPEC(stuck_jobs_in_many_queues_are_all_recovered)
{
    enum { QUEUES = 150 };
    struct world w = world_open();
    char name[16];
    lh_job job;
    lh_recovered found;
    for (int i = 0; i < QUEUES; i++) {
        (void)snprintf(name, sizeof name, "q%d", i);
        enqueue(&w, name, "x");
        EXPECT_OK(claim_one(&w, name, &job, .lease_ms = 1000));
    }
    clock_advance_ms(&w, 1000);
    EXPECT_OK(recovered_by_hand(w.store, &found));
    EXPECT_EQ(found.entries_reclaimed, QUEUES);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.state = LH_PENDING, .limit = 1000})->n, QUEUES);
    world_close(&w);
}

SPEC(a_claim_recovers_stuck_jobs_in_many_queues)
{
    enum { QUEUES = 150 };
    struct world w = world_open();
    char name[16];
    lh_job job;
    for (int i = 0; i < QUEUES; i++) {
        (void)snprintf(name, sizeof name, "q%d", i);
        enqueue(&w, name, "x");
        EXPECT_OK(claim_one(&w, name, &job, .lease_ms = 1000));
    }
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "q149", &job));
    EXPECT_EQ(job.recoveries, 1);
    world_close(&w);
}

SPEC(a_cancel_flag_stops_a_long_recovery_between_batches)
{
    struct world w = world_open();
    static lh_new_job jobs[1000];
    static lh_enqueued out[1000];
    int raised = 1;
    EXPECT_OK(policy(&w, NULL, NULL, .set = LH_POLICY_LEASE, .lease_ms = 1000));
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, 1000, NULL, out));
    EXPECT_EQ(claim_many(&w, "mail", 1000)->n, 1000);
    clock_advance_ms(&w, 1000);
    EXPECT_STATUS(lh_recover(w.store, &(lh_recover_opts){.cancel = &raised}, NULL), LH_EINTR);
    EXPECT(queue_of(&w, "mail").running > 0);
    EXPECT_OK(lh_recover(w.store, NULL, NULL));
    EXPECT_EQ(queue_of(&w, "mail").running, 0);
    world_close(&w);
}

/* ---- by the names their users know ---- */

SPEC(stale_processing_lock_allows_new_claims)
{
    struct world w = world_open();
    lh_job dead, job;
    bool stale;
    EXPECT_OK(policy(&w, "merge", NULL, .set = LH_POLICY_EXCLUSIVE, .exclusive = true));
    enqueue(&w, "merge", "a");
    enqueue(&w, "merge", "b");
    EXPECT_OK(claim_one(&w, "merge", &dead, .worker = "agent-1"));
    EXPECT_STATUS(claim_one(&w, "merge", &job, .worker = "agent-2"), LH_EMPTY);
    clock_advance_ms(&w, 300000);
    EXPECT_OK(lh_lease_is_stale(w.store, "processing", "merge", &stale));
    EXPECT(stale);
    EXPECT_OK(claim_one(&w, "merge", &job, .worker = "agent-2"));
    EXPECT_EQ(job.id, dead.id);
    EXPECT_OK(lh_lease_is_stale(w.store, "processing", "merge", &stale));
    EXPECT(!stale);
    EXPECT_STATUS(complete(&w, &dead), LH_ELOST);
    EXPECT_OK(complete(&w, &job));
    world_close(&w);
}

static lh_job held_by_silent_process(struct world *w, const char *queue)
{
    lh_worker_opts opts = {.id = "silent", .process = true, .interval_ms = 1000, .multiplier = 3};
    char id[160];
    lh_job job;

    EXPECT_OK(lh_worker_register(w->store, &opts, id, sizeof id));
    enqueue(w, queue, "x");
    EXPECT_OK(claim_one(w, queue, &job, .worker = "silent", .lease_ms = 60000));
    return job;
}

SPEC(automatic_recovery_on_claim)
{
    struct world w = world_open();
    lh_job job;
    lh_leases *lease = NULL;
    int64_t a = enqueue(&w, "mail", "a", .priority = 5), b = enqueue(&w, "post", "b");
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    EXPECT_OK(claim_one(&w, "post", &job, .lease_ms = 1000));
    lh_job silent = held_by_silent_process(&w, "mail");
    EXPECT_OK(lh_lease_acquire(w.store, "processing", "x",
                               &(lh_lease_opts){.owner = "dead", .ttl_ms = 1000}, NULL));
    clock_advance_ms(&w, 3000);
    enqueue(&w, "mail", "c"); /* pending: the claim recovers although there is a job to take */
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.id, a);
    EXPECT_EQ(job.recoveries, 1);
    EXPECT_EQ(job_of(&w, b).state, LH_PENDING); /* of a queue without claims */
    EXPECT_EQ(job_of(&w, b).recoveries, 1);
    EXPECT_EQ(job_of(&w, silent.id).state, LH_PENDING); /* its lease has not expired */
    EXPECT_STR(worker_of(&w, "silent").state, "dead");
    EXPECT_STATUS(lh_lease_get(w.store, "processing", "x", &lease), LH_ENOTFOUND);
    EXPECT_STR(last_event(&w, "lease.recovered").lease, "processing/x");
    world_close(&w);
}

SPEC(recovery_stats_accuracy)
{
    struct world w = world_open();
    lh_job job;
    lh_recovered counted, done;
    lh_store_info info;
    for (int i = 0; i < 5; i++)
        enqueue(&w, "mail", "x");
    for (int i = 0; i < 4; i++)
        EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = i < 3 ? 1000 : 60000));
    for (int i = 0; i < 3; i++) {
        char name[] = {(char)('a' + i), '\0'};
        EXPECT_OK(lh_lease_acquire(w.store, "locks", name,
                                   &(lh_lease_opts){.ttl_ms = i < 2 ? 1000 : 60000}, NULL));
    }
    EXPECT_OK(lh_recovery_stats(w.store, &counted));
    EXPECT_EQ(counted.entries_reclaimed, 0);
    EXPECT_EQ(counted.locks_cleaned, 0);
    clock_advance_ms(&w, 1000);
    for (int i = 0; i < 2; i++) { /* counting changes nothing */
        EXPECT_OK(lh_recovery_stats(w.store, &counted));
        EXPECT_EQ(counted.entries_reclaimed, 3);
        EXPECT_EQ(counted.locks_cleaned, 2);
        EXPECT_EQ(counted.recovery_timestamp, WORLD_START_MS + 1000);
    }
    EXPECT_OK(lh_store_status(w.store, &info));
    EXPECT_EQ(info.stale_jobs, 3);
    EXPECT_EQ(info.stale_leases, 2);
    EXPECT_OK(recovered_by_hand(w.store, &done));
    EXPECT_EQ(done.entries_reclaimed, counted.entries_reclaimed);
    EXPECT_EQ(done.locks_cleaned, counted.locks_cleaned);
    EXPECT_OK(lh_recovery_stats(w.store, &counted));
    EXPECT_EQ(counted.entries_reclaimed, 0);
    EXPECT_EQ(counted.locks_cleaned, 0);
    EXPECT_EQ(queue_of(&w, "mail").running, 1);
    world_close(&w);
}

/* Several claims recover at a time, and each of them finds jobs. */
enum { RECOVERERS = 8, ORPHANS = 1300, AT_ONCE = 20 };

struct recoverer {
    pthread_t thread;
    lh_store *store;
    int number;
    int64_t ids[ORPHANS];
    size_t n;
    int rc;
};

static void *claim_until_empty(void *arg)
{
    struct recoverer *r = arg;
    const char *queue = "mail";
    char worker[16];
    (void)snprintf(worker, sizeof worker, "w%d", r->number);
    for (;;) {
        lh_jobs *jobs = NULL;
        r->rc = lh_claim(
            r->store,
            &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = worker, .n = AT_ONCE},
            &jobs);
        if (r->rc != LH_OK)
            return NULL;
        for (size_t i = 0; i < jobs->n; i++)
            r->ids[r->n++] = jobs->job[i].id;
        lh_jobs_free(jobs);
    }
}

/* The jobs in the reports of all claims. */
static int64_t reclaimed_by_claims(struct world *w, size_t *n)
{
    lh_reports *reports = NULL;
    int64_t sum = 0;
    EXPECT_OK(lh_report_list(w->store, 10000, &reports));
    for (size_t i = 0; i < reports->n; i++) {
        EXPECT_STR(reports->report[i].trigger, "claim");
        sum += reports->report[i].entries_reclaimed;
    }
    *n = reports->n;
    lh_reports_free(reports);
    return sum;
}

SPEC(concurrent_automatic_recovery)
{
    struct world w = world_open();
    static struct recoverer recoverers[RECOVERERS];
    static lh_new_job jobs[ORPHANS];
    static lh_enqueued out[ORPHANS];
    static bool seen[ORPHANS + 1];
    lh_store *second = world_second_handle();
    size_t total = 0, n;
    EXPECT_OK(policy(&w, NULL, NULL, .set = LH_POLICY_LEASE, .lease_ms = 1000));
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, ORPHANS, NULL, out));
    for (size_t got = 0; got < ORPHANS;)
        got += claim_many(&w, "mail", 1000)->n;
    clock_advance_ms(&w, 1000);
    for (int i = 0; i < RECOVERERS; i++) {
        recoverers[i] = (struct recoverer){.store = i % 2 ? second : w.store, .number = i};
        EXPECT_EQ(pthread_create(&recoverers[i].thread, NULL, claim_until_empty, &recoverers[i]),
                  0);
    }
    for (int i = 0; i < RECOVERERS; i++) {
        pthread_join(recoverers[i].thread, NULL);
        EXPECT_STATUS(recoverers[i].rc, LH_EMPTY);
        for (size_t k = 0; k < recoverers[i].n; k++, total++) {
            EXPECT(!seen[recoverers[i].ids[k]]);
            seen[recoverers[i].ids[k]] = true;
        }
    }
    EXPECT_EQ(total, ORPHANS);
    lh_jobs *all = jobs_where(&w, (lh_job_filter){.limit = ORPHANS});
    EXPECT_EQ(all->n, ORPHANS);
    for (size_t i = 0; i < all->n; i++) {
        EXPECT_EQ(all->job[i].recoveries, 1);
        EXPECT_EQ(all->job[i].attempt, 2);
        if (i % 50 == 0)
            EXPECT_STR(story_of(&w, all->job[i].id), "job.recovered");
    }
    EXPECT_EQ(queue_of(&w, "mail").hour_recovered, ORPHANS);
    EXPECT_EQ(reclaimed_by_claims(&w, &n), ORPHANS);
    EXPECT(n > 1);
    lh_close(second);
    world_close(&w);
}
