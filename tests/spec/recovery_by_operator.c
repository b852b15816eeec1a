/* Recovery by an operator: by age, over live leases, of one queue, with another action. */
#include "recovery_world.h"

#define BY_AGE(ms_) .by_age = true, .threshold_ms = (ms_)

static int reclaimed(struct world *w, lh_recover_opts opts)
{
    return (int)recover_by(w, &opts)->entries_reclaimed;
}

/* ---- by age ---- */

SPEC(a_recovery_by_age_takes_old_jobs_without_a_heartbeat)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 60000);
    clock_advance_ms(&w, 4999);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(5000)}), 0);
    EXPECT_EQ(job_of(&w, job.id).state, LH_RUNNING);
    clock_advance_ms(&w, 1);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(5000)}), 1);
    EXPECT_STATUS(beat(&w, &job), LH_ELOST);
    world_close(&w);
}

SPEC(a_recovery_by_age_counts_from_the_last_heartbeat)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 60000);
    clock_advance_ms(&w, 3000);
    EXPECT_OK(beat(&w, &job));
    clock_advance_ms(&w, 4999);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(5000)}), 0);
    clock_advance_ms(&w, 1);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(5000)}), 1);
    world_close(&w);
}

SPEC(a_recovery_by_age_counts_from_the_latest_claim)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 60000);
    EXPECT_OK(beat(&w, &job));
    EXPECT_OK(release(&w, &job));
    clock_advance_ms(&w, 10000);
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 60000));
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(5000)}), 0);
    clock_advance_ms(&w, 5000);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(5000)}), 1);
    world_close(&w);
}

SPEC(a_recovery_by_age_zero_takes_all_running_jobs)
{
    struct world w = world_open();
    held(&w, "mail", "w-1", 60000);
    held(&w, "post", "w-2", 60000);
    int64_t waiting = enqueue(&w, "mail", "x");
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(0), .now = true}), 2);
    EXPECT_EQ(queue_of(&w, "mail").running + queue_of(&w, "post").running, 0);
    EXPECT_EQ(job_of(&w, waiting).token, 0);
    world_close(&w);
}

SPEC(a_recovery_by_age_leaves_younger_jobs_with_expired_leases_alone)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 1000);
    clock_advance_ms(&w, 1000);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(5000)}), 0);
    EXPECT_EQ(job_of(&w, job.id).state, LH_RUNNING);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){.by_age = false}), 1);
    world_close(&w);
}

SPEC(reclaim_stale_is_a_recovery_by_age)
{
    struct world w = world_open();
    lh_job old = held(&w, "mail", "w-1", 60000);
    int64_t count = -1;
    clock_advance_ms(&w, 5000);
    lh_job young = held(&w, "mail", "w-1", 60000);
    EXPECT_OK(lh_reclaim_stale(w.store, 5001, &count));
    EXPECT_EQ(count, 0);
    EXPECT_OK(lh_reclaim_stale(w.store, 5000, &count));
    EXPECT_EQ(count, 1);
    EXPECT_EQ(job_of(&w, old.id).state, LH_SCHEDULED); /* its lease had not expired */
    EXPECT_EQ(job_of(&w, young.id).state, LH_RUNNING);
    EXPECT_STR(report_of(&w, 0)->trigger, "manual");
    clock_advance_ms(&w, 5000);
    EXPECT_OK(lh_reclaim_stale(w.store, 5000, NULL));
    EXPECT_EQ(queue_of(&w, "mail").running, 0);
    world_close(&w);
}

SPEC(an_invalid_recovery_is_refused)
{
    struct world w = world_open();
    static const struct {
        lh_recover_opts opts;
        int status;
        const char *part;
    } bad[] = {
        {{.threshold_ms = 5000}, LH_EMISUSE, "by_age"},
        {{.by_age = true, .threshold_ms = -1}, LH_EINVAL, "-1 ms"},
        {{.queue = "no such name"}, LH_EINVAL, "no such name"},
        {{.queue = ""}, LH_EINVAL, "queue"},
        {{.action = (lh_action)4}, LH_EINVAL, "action is 4"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lh_report *report = NULL;
        EXPECT_STATUS(lh_recover(w.store, &bad[i].opts, &report), bad[i].status);
        EXPECT_CONTAINS(lh_errmsg(w.store), bad[i].part);
        EXPECT(report == NULL);
    }
    EXPECT_STATUS(lh_reclaim_stale(w.store, -1, NULL), LH_EINVAL);
    EXPECT_EQ(reports(&w), 0);
    world_close(&w);
}

/* ---- over a live lease ---- */

SPEC(a_job_taken_from_a_live_holder_is_quarantined_until_its_deadline)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 60000), next;
    clock_advance_ms(&w, 1000);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(0)}), 1);
    EXPECT_EQ(job_of(&w, job.id).state, LH_SCHEDULED);
    clock_advance_ms(&w, 58999);
    EXPECT_STATUS(claim_one(&w, "mail", &next), LH_EMPTY);
    clock_advance_ms(&w, 1);
    EXPECT_OK(claim_one(&w, "mail", &next));
    EXPECT_EQ(next.id, job.id);
    EXPECT_EQ(next.recoveries, 1);
    world_close(&w);
}

SPEC(a_job_taken_from_a_live_holder_is_freed_when_the_holder_answers)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 60000), next;
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(0)}), 1);
    EXPECT_STATUS(beat(&w, &job), LH_ELOST); /* a heartbeat is no answer: the command still runs */
    EXPECT_STATUS(claim_one(&w, "mail", &next), LH_EMPTY);
    EXPECT_STATUS(complete(&w, &job), LH_ELOST);
    EXPECT_OK(claim_one(&w, "mail", &next));
    EXPECT_EQ(next.id, job.id);
    world_close(&w);
}

SPEC(with_now_a_job_taken_from_a_live_holder_is_free_at_once)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 60000), next;
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(0), .now = true}), 1);
    EXPECT_OK(claim_one(&w, "mail", &next));
    EXPECT_EQ(next.id, job.id);
    EXPECT(next.token > job.token);
    EXPECT_STATUS(complete(&w, &job), LH_ELOST);
    world_close(&w);
}

SPEC(a_job_with_an_expired_lease_taken_by_age_is_not_quarantined)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 1000), next;
    clock_advance_ms(&w, 1000);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(1000)}), 1);
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    EXPECT_OK(claim_one(&w, "mail", &next));
    EXPECT_EQ(next.id, job.id);
    world_close(&w);
}

SPEC(a_slot_stays_taken_while_its_holder_may_still_run)
{
    struct world w = world_open();
    lh_job next;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_CONCURRENCY, .concurrency = 1));
    lh_job job = held(&w, "mail", "w-1", 60000);
    enqueue(&w, "mail", "another");
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(0)}), 1);
    EXPECT_STATUS(claim_one(&w, "mail", &next), LH_EMPTY);
    EXPECT_STATUS(release(&w, &job), LH_ELOST);
    EXPECT_OK(claim_one(&w, "mail", &next));
    world_close(&w);
}

SPEC(an_exclusive_lease_stays_taken_while_its_holder_may_still_run)
{
    struct world w = world_open();
    lh_job next;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_EXCLUSIVE, .exclusive = true));
    lh_job job = held(&w, "mail", "w-1", 60000);
    enqueue(&w, "mail", "another");
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(0)}), 1);
    EXPECT_STATUS(claim_one(&w, "mail", &next), LH_EMPTY);
    EXPECT_STATUS(release(&w, &job), LH_ELOST);
    EXPECT_OK(claim_one(&w, "mail", &next));
    EXPECT_EQ(next.id, job.id);
    world_close(&w);
}

SPEC(a_job_failed_under_a_live_holder_and_retried_waits_for_that_holder)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 60000), next;
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(0), .action = LH_ACTION_FAIL}), 1);
    EXPECT_EQ(job_of(&w, job.id).state, LH_FAILED);
    EXPECT_OK(retry(&w, job.id));
    EXPECT_STATUS(claim_one(&w, "mail", &next), LH_EMPTY);
    clock_advance_ms(&w, 60000);
    EXPECT_OK(claim_one(&w, "mail", &next));
    world_close(&w);
}

/* ---- of one queue, with another action ---- */

SPEC(a_recovery_of_one_queue_leaves_the_others_alone)
{
    struct world w = world_open();
    enlist_process(&w, "w-1");
    lh_job mail = held(&w, "mail", "w-1", 60000), post = held(&w, "post", "w-1", 60000);
    lh_job brief = held(&w, "post", "w-2", 1000);
    clock_advance_ms(&w, SILENCE_MS);
    const lh_report *first = recover_by(&w, &(lh_recover_opts){.queue = "mail"});
    EXPECT_EQ(first->entries_reclaimed, 1);
    EXPECT(told_of(first, mail.id) != NULL);
    EXPECT_EQ(job_of(&w, post.id).state, LH_RUNNING);
    EXPECT_EQ(job_of(&w, brief.id).state, LH_RUNNING);
    const lh_report *second = recover_by(&w, &(lh_recover_opts){.queue = "post"});
    EXPECT_EQ(second->entries_reclaimed, 2);
    EXPECT_STR(told_of(second, post.id)->reason, told_of(first, mail.id)->reason);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(0), .queue = "none"}), 0);
    world_close(&w);
}

SPEC(a_recovery_by_age_of_one_queue_leaves_the_others_alone)
{
    struct world w = world_open();
    lh_job mail = held(&w, "mail", "w-1", 60000), post = held(&w, "post", "w-1", 60000);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(0), .queue = "mail"}), 1);
    EXPECT_EQ(job_of(&w, mail.id).state, LH_SCHEDULED);
    EXPECT_EQ(job_of(&w, post.id).state, LH_RUNNING);
    world_close(&w);
}

/* The action of an operator overrides that of the policy. */
static lh_job made_by(lh_action policy_says, lh_action hand_says)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_ACTION, .action = policy_says));
    lh_job job = held(&w, "mail", "w-1", 1000);
    clock_advance_ms(&w, 1000);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){.action = hand_says}), 1);
    lh_job after = job_of(&w, job.id);
    world_close(&w);
    return after;
}

SPEC(an_operator_may_fail_jobs_that_the_policy_would_retry)
{
    EXPECT_EQ(made_by(LH_ACTION_RETRY, LH_ACTION_FAIL).state, LH_FAILED);
}

SPEC(an_operator_may_retry_jobs_that_the_policy_would_fail)
{
    lh_job after = made_by(LH_ACTION_FAIL, LH_ACTION_RETRY);
    EXPECT_EQ(after.state, LH_PENDING);
    EXPECT_EQ(after.attempt, 1);
    EXPECT_EQ(after.recoveries, 1);
}

SPEC(an_operator_may_refund_an_attempt_that_the_policy_would_count)
{
    lh_job after = made_by(LH_ACTION_RETRY, LH_ACTION_PENDING);
    EXPECT_EQ(after.state, LH_PENDING);
    EXPECT_EQ(after.attempt, 0);
    EXPECT_EQ(after.recoveries, 1);
}

SPEC(no_action_of_an_operator_retries_a_poison_job)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_MAX_RECOVERIES, .max_recoveries = 0));
    lh_job job = held(&w, "mail", "w-1", 60000);
    EXPECT_EQ(reclaimed(&w, (lh_recover_opts){BY_AGE(0), .action = LH_ACTION_PENDING}), 1);
    EXPECT_EQ(job_of(&w, job.id).state, LH_FAILED);
    EXPECT_STR(story_of(&w, job.id), "job.poisoned");
    world_close(&w);
}
