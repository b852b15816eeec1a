/* Claims: which job is claimed, under which token, and for how long. */
#include "world.h"

/* ---- the guard and the effect ---- */

SPEC(a_claim_takes_a_pending_job_under_a_new_token_and_counts_an_attempt)
{
    struct world w = world_with_job("mail", "hello");
    lh_job job;
    clock_advance_ms(&w, 50);
    EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w-7", .lease_ms = 1000));
    EXPECT_EQ(job.state, LH_RUNNING);
    EXPECT_EQ(job.token, 1);
    EXPECT_EQ(job.attempt, 1);
    EXPECT_EQ(job.max_attempts, 3);
    EXPECT_STR(job.worker, "w-7");
    EXPECT_EQ(job.lease_until, WORLD_START_MS + 50 + 1000);
    EXPECT_EQ(job.lease_ms, 1000);
    EXPECT_EQ(job.remaining_ms, 1000);
    EXPECT_EQ(job.started_at, WORLD_START_MS + 50);
    EXPECT_EQ(job.state_changed_at, WORLD_START_MS + 50);
    EXPECT_EQ(job.created_at, WORLD_START_MS);
    EXPECT(!job.expired);
    EXPECT_MEM(job.payload, job.payload_len, "hello", 5);

    lh_job seen = job_of(&w, job.id);
    EXPECT_EQ(seen.state, LH_RUNNING);
    EXPECT_EQ(seen.token, job.token);
    EXPECT_EQ(seen.attempt, 1);
    EXPECT_STR(seen.worker, "w-7");
    EXPECT_EQ(seen.lease_until, job.lease_until);
    EXPECT_EQ(seen.lease_ms, 1000);
    EXPECT_EQ(seen.started_at, job.started_at);
    world_close(&w);
}

SPEC(a_claim_of_an_empty_queue_finds_nothing_and_does_not_touch_its_output)
{
    struct world w = world_with_job("mail", "x");
    const char *queue = "other";
    lh_jobs *out = NULL;
    EXPECT_STATUS(
        lh_claim(w.store, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w1"}, &out),
        LH_EMPTY);
    EXPECT(out == NULL);
    world_close(&w);
}

SPEC(a_claim_promotes_a_due_job_even_if_it_first_recovers_one_of_another_queue)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 300));
    int64_t due = enqueue(&w, "report", "y", .delay_ms = 600);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "report", &job, .worker = "w2"));
    EXPECT_EQ(job.id, due);
    world_close(&w);
}

SPEC(a_claim_cancels_an_expired_job_even_if_it_first_recovers_one_of_another_queue)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 300));
    int64_t expired = enqueue(&w, "report", "y", .expires_ms = 600);
    clock_advance_ms(&w, 1000);
    EXPECT_STATUS(claim_one(&w, "report", &job, .worker = "w2"), LH_EMPTY);
    EXPECT_EQ(job_of(&w, expired).state, LH_CANCELLED);
    world_close(&w);
}

SPEC(a_running_job_is_not_handed_out_again)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_STATUS(claim_one(&w, "mail", &job, .worker = "w2"), LH_EMPTY);
    EXPECT_STATUS(claim_one(&w, "mail", &job, .worker = "w1"), LH_EMPTY);
    world_close(&w);
}

SPEC(a_finished_job_is_not_handed_out)
{
    struct world w = world_open();
    lh_job job;
    enqueue(&w, "mail", "a", .max_attempts = 1);
    int64_t b = enqueue(&w, "mail", "b");
    enqueue(&w, "mail", "c");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(fail(&w, &job, "no"));
    EXPECT_OK(cancel(&w, b));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete(&w, &job));
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    world_close(&w);
}

SPEC(the_remaining_time_of_a_lease_counts_down_to_zero)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 400);
    EXPECT_EQ(job_of(&w, job.id).remaining_ms, 600);
    EXPECT(!job_of(&w, job.id).expired);
    clock_advance_ms(&w, 599);
    EXPECT_EQ(job_of(&w, job.id).remaining_ms, 1);
    EXPECT(!job_of(&w, job.id).expired);
    clock_advance_ms(&w, 1);
    EXPECT_EQ(job_of(&w, job.id).remaining_ms, 0);
    EXPECT(job_of(&w, job.id).expired);
    clock_advance_ms(&w, 1000);
    EXPECT_EQ(job_of(&w, job.id).remaining_ms, 0);
    world_close(&w);
}

/* ---- the order ---- */

SPEC(jobs_are_claimed_by_priority_high_to_low_then_by_age)
{
    struct world w = world_open();
    int64_t first = enqueue(&w, "mail", "1"), low = enqueue(&w, "mail", "2", .priority = -32768);
    int64_t high = enqueue(&w, "mail", "3", .priority = 32767), second = enqueue(&w, "mail", "4");
    int64_t five = enqueue(&w, "mail", "5", .priority = 5);
    int64_t wanted[] = {high, five, first, second, low};
    lh_job job[5];
    for (int i = 0; i < 5; i++) {
        EXPECT_OK(claim_one(&w, "mail", &job[i]));
        EXPECT_EQ(job[i].id, wanted[i]);
    }
    /* A job that returns to the queue keeps its place, because its age counts from its enqueue. */
    for (int i = 4; i >= 0; i--) {
        clock_advance_ms(&w, 1000);
        EXPECT_OK(release(&w, &job[i]));
    }
    for (int i = 0; i < 5; i++) {
        EXPECT_OK(claim_one(&w, "mail", &job[i]));
        EXPECT_EQ(job[i].id, wanted[i]);
    }
    world_close(&w);
}

SPEC(a_batch_claims_jobs_in_the_same_order_as_single_claims)
{
    struct world w = world_open();
    int64_t a = enqueue(&w, "mail", "a"), b = enqueue(&w, "mail", "b", .priority = 1);
    int64_t c = enqueue(&w, "mail", "c"), d = enqueue(&w, "mail", "d", .priority = 1);
    lh_jobs *jobs = claim_many(&w, "mail", 3);
    EXPECT_EQ(jobs->n, 3);
    EXPECT_EQ(jobs->job[0].id, b);
    EXPECT_EQ(jobs->job[1].id, d);
    EXPECT_EQ(jobs->job[2].id, a);
    jobs = claim_many(&w, "mail", 3);
    EXPECT_EQ(jobs->n, 1);
    EXPECT_EQ(jobs->job[0].id, c);
    world_close(&w);
}

SPEC(a_job_that_returns_to_the_queue_keeps_its_place_in_the_order)
{
    struct world w = world_open();
    int64_t old = enqueue(&w, "mail", "old");
    enqueue(&w, "mail", "new");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(release(&w, &job));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.id, old);
    world_close(&w);
}

SPEC(a_claim_returns_no_more_jobs_than_requested_and_at_most_a_thousand)
{
    struct world w = world_open();
    static lh_new_job jobs[1003];
    static lh_enqueued out[1003];
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, 1003, NULL, out));
    EXPECT_EQ(claim_many(&w, "mail", 0)->n, 1);
    EXPECT_EQ(claim_many(&w, "mail", 1)->n, 1);
    EXPECT_EQ(claim_many(&w, "mail", 1000)->n, 1000);
    EXPECT_EQ(claim_many(&w, "mail", 1000)->n, 1);
    EXPECT_EQ(claim_many(&w, "mail", 1000)->n, 0);
    world_close(&w);
}

SPEC(several_queues_are_claimed_from_in_the_order_given)
{
    struct world w = world_open();
    const char *queues[] = {"second", "first", "third"};
    int64_t third = enqueue(&w, "third", "x", .priority = 100);
    int64_t first = enqueue(&w, "first", "x", .priority = 50);
    int64_t second = enqueue(&w, "second", "x");
    int64_t later = enqueue(&w, "second", "x");
    lh_jobs *jobs = NULL;
    EXPECT_OK(lh_claim(w.store,
                       &(lh_claim_opts){.queues = queues, .n_queues = 3, .worker = "w1", .n = 10},
                       &jobs));
    keep_jobs(&w, jobs);
    EXPECT_EQ(jobs->n, 4);
    EXPECT_EQ(jobs->job[0].id, second);
    EXPECT_EQ(jobs->job[1].id, later);
    EXPECT_EQ(jobs->job[2].id, first);
    EXPECT_EQ(jobs->job[3].id, third);
    world_close(&w);
}

SPEC(only_the_queues_that_are_named_are_claimed_from)
{
    struct world w = world_open();
    lh_job job;
    enqueue(&w, "mail2", "x");
    enqueue(&w, "Mail", "x");
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    world_close(&w);
}

SPEC(only_the_kinds_that_are_named_are_claimed)
{
    struct world w = world_open();
    const char *queue = "mail", *kinds[] = {"a", "c"};
    enqueue(&w, "mail", "none", .priority = 9);
    enqueue(&w, "mail", "b", .kind = "b", .priority = 9);
    int64_t c = enqueue(&w, "mail", "c", .kind = "c", .priority = 1);
    int64_t a = enqueue(&w, "mail", "a", .kind = "a");
    lh_claim_opts opts = {.queues = &queue, .n_queues = 1, .worker = "w1", .n = 10};
    opts.kinds = kinds;
    opts.n_kinds = 2;
    lh_jobs *jobs = NULL;
    EXPECT_OK(lh_claim(w.store, &opts, &jobs));
    keep_jobs(&w, jobs);
    EXPECT_EQ(jobs->n, 2);
    EXPECT_EQ(jobs->job[0].id, c);
    EXPECT_EQ(jobs->job[1].id, a);
    EXPECT_STATUS(lh_claim(w.store, &opts, &jobs), LH_EMPTY);
    EXPECT_EQ(claim_many(&w, "mail", 10)->n, 2);
    world_close(&w);
}

/* ---- the lease ---- */

SPEC(the_lease_is_that_of_the_claim_or_of_the_job_or_of_the_policy)
{
    struct world w = world_open();
    lh_job job;
    enqueue(&w, "built-in", "x");
    EXPECT_OK(claim_one(&w, "built-in", &job));
    EXPECT_EQ(job.lease_ms, 300000);
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_LEASE, .lease_ms = 7000));
    enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.lease_ms, 7000);
    enqueue(&w, "mail", "x", .lease_ms = 8000);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.lease_ms, 8000);
    EXPECT_EQ(job.lease_until, WORLD_START_MS + 8000);
    enqueue(&w, "mail", "x", .lease_ms = 8000);
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 9000));
    EXPECT_EQ(job.lease_ms, 9000);
    world_close(&w);
}

SPEC(a_claim_returns_the_timeout_of_the_policy)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", "slow", .set = LH_POLICY_TIMEOUT, .timeout_ms = 90000));
    enqueue(&w, "mail", "x", .kind = "slow");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.timeout_ms, 90000);
    enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.timeout_ms, 0);
    world_close(&w);
}

SPEC(each_job_of_a_batch_gets_the_lease_of_its_own_kind)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", "a", .set = LH_POLICY_LEASE, .lease_ms = 1000));
    EXPECT_OK(policy(&w, "mail", "b", .set = LH_POLICY_LEASE, .lease_ms = 2000));
    enqueue(&w, "mail", "x", .kind = "a");
    enqueue(&w, "mail", "x", .kind = "b");
    enqueue(&w, "mail", "x", .kind = "a");
    lh_jobs *jobs = claim_many(&w, "mail", 3);
    EXPECT_EQ(jobs->n, 3);
    EXPECT_EQ(jobs->job[0].lease_ms, 1000);
    EXPECT_EQ(jobs->job[1].lease_ms, 2000);
    EXPECT_EQ(jobs->job[2].lease_ms, 1000);
    world_close(&w);
}

/* ---- the token ---- */

SPEC(the_token_of_a_job_rises_with_every_claim_and_every_revocation)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    int64_t token = 0, id;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    id = job.id;
    EXPECT(job.token > token);
    token = job.token;

    clock_advance_ms(&w, 1000); /* revoked by its expiry */
    EXPECT_OK(lh_recover(w.store, NULL, NULL));
    EXPECT(job_of(&w, id).token > token);
    token = job_of(&w, id).token;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT(job.token > token);
    token = job.token;

    EXPECT_OK(cancel(&w, id)); /* revoked by an operator */
    EXPECT(job_of(&w, id).token > token);
    token = job_of(&w, id).token;
    EXPECT_STATUS(complete(&w, &job), LH_ECANCELLED);
    EXPECT_OK(retry(&w, id));
    EXPECT(job_of(&w, id).token >= token);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT(job.token > token);
    token = job.token;

    EXPECT_OK(lh_release_worker(w.store, "w1", NULL, 0, 0, true, NULL, NULL));
    EXPECT(job_of(&w, id).token > token);
    token = job_of(&w, id).token;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT(job.token > token);
    world_close(&w);
}

SPEC(a_released_job_is_handed_out_under_another_token)
{
    struct world w = world_with_job("mail", "x");
    lh_job first, second;
    EXPECT_OK(claim_one(&w, "mail", &first));
    EXPECT_OK(release(&w, &first));
    EXPECT_OK(claim_one(&w, "mail", &second));
    EXPECT(second.token > first.token);
    EXPECT_STATUS(beat(&w, &first), LH_ELOST);
    EXPECT_STATUS(complete(&w, &first), LH_ELOST);
    EXPECT_STATUS(fail(&w, &first, "no"), LH_ELOST);
    EXPECT_STATUS(release(&w, &first), LH_ELOST);
    EXPECT_OK(complete(&w, &second));
    world_close(&w);
}

SPEC(an_expired_lease_returns_the_job_and_fences_off_the_slow_worker)
{
    struct world w = world_with_job("mail", "hello");
    lh_job slow, next;
    EXPECT_OK(claim_one(&w, "mail", &slow, .worker = "slow", .lease_ms = 1000));
    clock_advance_ms(&w, 1001);
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "b7", .lease_ms = 1000));
    EXPECT_EQ(next.id, slow.id);
    EXPECT_STATUS(beat(&w, &slow), LH_ELOST);
    EXPECT_STATUS(complete(&w, &slow), LH_ELOST);
    EXPECT_CONTAINS(lh_errmsg(w.store), "b7");
    EXPECT_OK(complete(&w, &next));
    world_close(&w);
}

SPEC(the_old_token_is_refused_even_if_the_same_worker_claims_the_job_again)
{
    struct world w = world_with_job("mail", "hello");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "mail", &next, .lease_ms = 1000));
    EXPECT_STR(next.worker, old.worker);
    EXPECT_STATUS(complete(&w, &old), LH_ELOST);
    EXPECT_OK(complete(&w, &next));
    world_close(&w);
}

/* ---- requests ---- */

SPEC(a_claim_repeated_with_its_request_id_returns_the_jobs_that_are_still_held)
{
    struct world w = world_open();
    const char *queue = "mail";
    lh_claim_opts opts = {
        .queues = &queue, .n_queues = 1, .worker = "w1", .n = 3, .request = "c-1"};
    for (int i = 0; i < 5; i++)
        enqueue(&w, "mail", "x");
    lh_jobs *first = NULL, *second = NULL, *third = NULL;
    EXPECT_OK(lh_claim(w.store, &opts, &first));
    keep_jobs(&w, first);
    EXPECT_EQ(first->n, 3);
    EXPECT_OK(lh_claim(w.store, &opts, &second));
    keep_jobs(&w, second);
    EXPECT_EQ(second->n, 3);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(second->job[i].id, first->job[i].id);
        EXPECT_EQ(second->job[i].token, first->job[i].token);
        EXPECT_EQ(second->job[i].attempt, 1);
    }
    EXPECT_OK(complete(&w, &first->job[1]));
    EXPECT_OK(lh_claim(w.store, &opts, &third));
    keep_jobs(&w, third);
    EXPECT_EQ(third->n, 2);
    EXPECT_EQ(third->job[0].id, first->job[0].id);
    EXPECT_EQ(third->job[1].id, first->job[2].id);
    EXPECT_EQ(queue_of(&w, "mail").pending, 2);
    world_close(&w);
}

SPEC(a_repeated_claim_whose_jobs_are_all_gone_claims_no_new_job)
{
    struct world w = world_open();
    lh_job job;
    enqueue(&w, "mail", "a");
    enqueue(&w, "mail", "b");
    EXPECT_OK(claim_one(&w, "mail", &job, .request = "c-1"));
    EXPECT_OK(complete(&w, &job));
    EXPECT_STATUS(claim_one(&w, "mail", &job, .request = "c-1"), LH_EMPTY);
    EXPECT_EQ(queue_of(&w, "mail").pending, 1);
    world_close(&w);
}

SPEC(a_repeated_claim_does_not_return_a_job_that_was_lost_since)
{
    struct world w = world_with_job("mail", "a");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .request = "c-1", .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w2", .request = "c-2"));
    EXPECT_STATUS(claim_one(&w, "mail", &job, .request = "c-1"), LH_EMPTY);
    world_close(&w);
}

SPEC(a_repeated_claim_does_not_return_a_job_whose_lease_has_expired)
{
    struct world w = world_with_job("mail", "a");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .request = "c-1", .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_STATUS(claim_one(&w, "mail", &job, .request = "c-1"), LH_EMPTY);
    world_close(&w);
}

SPEC(a_claim_that_found_nothing_does_not_use_up_its_request_id)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_STATUS(claim_one(&w, "mail", &job, .request = "c-1"), LH_EMPTY);
    enqueue(&w, "mail", "a");
    EXPECT_OK(claim_one(&w, "mail", &job, .request = "c-1"));
    world_close(&w);
}

/* ---- what is handed to the next attempt ---- */

SPEC(the_checkpoint_is_passed_to_the_next_attempt)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    EXPECT(job.checkpoint == NULL);
    EXPECT_OK(lh_heartbeat(
        w.store, &(lh_beat){.job = job.id, .token = job.token, .checkpoint = "{\"page\": 7}"}, 1,
        NULL, NULL));
    clock_advance_ms(&w, 1000); /* by death */
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_STR(job.checkpoint, "{\"page\": 7}");
    EXPECT_OK(release(&w, &job)); /* by release */
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_STR(job.checkpoint, "{\"page\": 7}");
    EXPECT_OK(lh_fail(
        w.store,
        &(lh_failure){.job = job.id, .token = job.token, .error = "no", .retry_in_ms = LH_NOW}, 1,
        NULL, NULL)); /* by failure */
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_STR(job.checkpoint, "{\"page\": 7}");
    world_close(&w);
}
