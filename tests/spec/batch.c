/* Batches: one transaction, in which each item is judged by itself; and complete with the next claim. */
#include "recovery_world.h"

#include <stdio.h>

/* Three held jobs, the second of them cancelled, and an id that does not exist. */
struct batch {
    struct world w;
    lh_job a, b, c;
    int64_t missing;
};

static struct batch batch_open(void)
{
    struct batch x = {.w = world_open()};
    for (int i = 0; i < 3; i++)
        enqueue(&x.w, "mail", "x");
    EXPECT_OK(claim_one(&x.w, "mail", &x.a));
    EXPECT_OK(claim_one(&x.w, "mail", &x.b));
    EXPECT_OK(claim_one(&x.w, "mail", &x.c));
    EXPECT_OK(cancel(&x.w, x.b.id));
    x.missing = x.c.id + 1000;
    return x;
}

static void expect_mixed(const int status[4])
{
    EXPECT_OK(status[0]);
    EXPECT_STATUS(status[1], LH_ECANCELLED);
    EXPECT_STATUS(status[2], LH_ENOTFOUND);
    EXPECT_OK(status[3]);
}

SPEC(a_batch_of_heartbeats_judges_each_by_itself)
{
    struct batch x = batch_open();
    lh_beat beats[] = {{.job = x.a.id, .token = x.a.token},
                       {.job = x.b.id, .token = x.b.token},
                       {.job = x.missing, .token = 1},
                       {.job = x.c.id, .token = x.c.token}};
    int status[4];
    lh_jobs *after = NULL;
    clock_advance_ms(&x.w, 1000);
    EXPECT_STATUS(lh_heartbeat(x.w.store, beats, 4, status, &after), LH_ECANCELLED);
    expect_mixed(status);
    EXPECT_CONTAINS(lh_errmsg(x.w.store), "cancelled");
    keep_jobs(&x.w, after);
    EXPECT_EQ(after->n, 3); /* those that exist, in the order given */
    EXPECT_EQ(after->job[0].id, x.a.id);
    EXPECT_EQ(after->job[1].id, x.b.id);
    EXPECT_EQ(after->job[1].state, LH_CANCELLED);
    EXPECT_EQ(after->job[2].id, x.c.id);
    EXPECT_EQ(after->job[2].lease_until, WORLD_START_MS + 301000);
    EXPECT_EQ(job_of(&x.w, x.a.id).lease_until, WORLD_START_MS + 301000);
    world_close(&x.w);
}

SPEC(a_batch_of_completes_judges_each_by_itself)
{
    struct batch x = batch_open();
    lh_done done[] = {{.job = x.a.id, .token = x.a.token, .result = "r", .result_len = 1},
                      {.job = x.b.id, .token = x.b.token},
                      {.job = x.missing, .token = 1},
                      {.job = x.c.id, .token = x.c.token}};
    int status[4];
    EXPECT_STATUS(lh_complete(x.w.store, done, 4, status, NULL), LH_ECANCELLED);
    expect_mixed(status);
    EXPECT_EQ(queue_of(&x.w, "mail").completed, 2);
    EXPECT_EQ(queue_of(&x.w, "mail").cancelled, 1);
    world_close(&x.w);
}

SPEC(a_batch_of_fails_judges_each_by_itself)
{
    struct batch x = batch_open();
    lh_failure failures[] = {{.job = x.a.id, .token = x.a.token, .error = "a"},
                             {.job = x.b.id, .token = x.b.token, .error = "b"},
                             {.job = x.missing, .token = 1, .error = "m"},
                             {.job = x.c.id, .token = x.c.token, .error = "c", .permanent = true}};
    int status[4];
    EXPECT_STATUS(lh_fail(x.w.store, failures, 4, status, NULL), LH_ECANCELLED);
    expect_mixed(status);
    EXPECT_EQ(job_of(&x.w, x.a.id).state, LH_SCHEDULED);
    EXPECT_STR(job_of(&x.w, x.a.id).last_error, "a");
    EXPECT_EQ(job_of(&x.w, x.c.id).state, LH_FAILED);
    EXPECT_STR(job_of(&x.w, x.c.id).last_error, "c");
    world_close(&x.w);
}

SPEC(a_batch_of_releases_judges_each_by_itself)
{
    struct batch x = batch_open();
    lh_ref refs[] = {{x.a.id, x.a.token}, {x.b.id, x.b.token}, {x.missing, 1}, {x.c.id, x.c.token}};
    int status[4];
    EXPECT_STATUS(lh_release(x.w.store, refs, 4, 0, status, NULL), LH_ECANCELLED);
    expect_mixed(status);
    EXPECT_EQ(queue_of(&x.w, "mail").pending, 2);
    world_close(&x.w);
}

/* A change is one transaction. */
SPEC(a_batch_is_claimed_extended_and_released_in_one_transaction_each)
{
    enum { MANY = 50 };
    struct world w = world_open();
    static lh_new_job jobs[MANY];
    lh_enqueued out[MANY];
    lh_ref refs[MANY];
    lh_beat beats[MANY];
    int64_t before = changes(&w);
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, MANY, NULL, out));
    EXPECT_EQ(changes(&w), before + 1);
    const lh_jobs *held = claim_many(&w, "mail", MANY);
    EXPECT_EQ(held->n, MANY);
    EXPECT_EQ(changes(&w), before + 2);
    for (int i = 0; i < MANY; i++) {
        refs[i] = (lh_ref){held->job[i].id, held->job[i].token};
        beats[i] = (lh_beat){.job = held->job[i].id, .token = held->job[i].token};
    }
    EXPECT_OK(lh_heartbeat(w.store, beats, MANY, NULL, NULL));
    EXPECT_EQ(changes(&w), before + 3);
    EXPECT_OK(lh_release(w.store, refs, MANY, 0, NULL, NULL));
    EXPECT_EQ(changes(&w), before + 4);
    EXPECT_EQ(queue_of(&w, "mail").pending, MANY);
    world_close(&w);
}

SPEC(a_batch_of_cancels_retries_and_deletes_judges_each_by_itself)
{
    struct batch x = batch_open();
    int64_t ids[] = {x.a.id, x.b.id, x.missing, x.c.id};
    int status[4];
    lh_jobs *after = NULL;
    EXPECT_STATUS(lh_cancel(x.w.store, ids, 4, status, &after), LH_ESTATE);
    keep_jobs(&x.w, after);
    EXPECT_EQ(after->n, 3);
    EXPECT_OK(status[0]);
    EXPECT_STATUS(status[1], LH_ESTATE);
    EXPECT_STATUS(status[2], LH_ENOTFOUND);
    EXPECT_OK(status[3]);
    EXPECT_STATUS(lh_retry(x.w.store, ids, 4, 0, status, NULL), LH_ENOTFOUND);
    EXPECT_OK(status[0]);
    EXPECT_OK(status[1]);
    EXPECT_STATUS(status[2], LH_ENOTFOUND);
    EXPECT_OK(status[3]);
    EXPECT_STATUS(lh_retry(x.w.store, ids, 4, 0, status, NULL), LH_ESTATE);
    EXPECT_STATUS(lh_delete(x.w.store, ids, 4, status), LH_ENOTFOUND);
    EXPECT_OK(status[0]);
    EXPECT_STATUS(status[2], LH_ENOTFOUND);
    EXPECT_OK(status[3]);
    EXPECT_EQ(jobs_where(&x.w, (lh_job_filter){0})->n, 0);
    world_close(&x.w);
}

SPEC(a_batch_without_a_status_array_returns_the_first_outcome_other_than_done)
{
    struct batch x = batch_open();
    lh_done done[] = {{.job = x.a.id, .token = x.a.token},
                      {.job = x.missing, .token = 1},
                      {.job = x.b.id, .token = x.b.token}};
    EXPECT_STATUS(lh_complete(x.w.store, done, 3, NULL, NULL), LH_ENOTFOUND);
    EXPECT_EQ(job_of(&x.w, x.a.id).state, LH_COMPLETED);
    EXPECT_OK(complete(&x.w, &x.c));
    world_close(&x.w);
}

SPEC(the_same_job_twice_in_one_batch_is_done_and_then_reported_as_a_repeat)
{
    struct batch x = batch_open();
    lh_done done[] = {{.job = x.a.id, .token = x.a.token}, {.job = x.a.id, .token = x.a.token}};
    int status[2];
    EXPECT_OK(lh_complete(x.w.store, done, 2, status, NULL));
    EXPECT_OK(status[0]);
    EXPECT_OK(status[1]);
    EXPECT_EQ(queue_of(&x.w, "mail").hour_completed, 1);
    world_close(&x.w);
}

SPEC(a_batch_may_contain_jobs_of_many_queues)
{
    enum { QUEUES = 150 };
    struct world w = world_open();
    int64_t ids[QUEUES];
    char name[16];
    for (int i = 0; i < QUEUES; i++) {
        (void)snprintf(name, sizeof name, "q%d", i);
        ids[i] = enqueue(&w, name, "x");
    }
    EXPECT_OK(lh_cancel(w.store, ids, QUEUES, NULL, NULL));
    EXPECT_OK(lh_retry(w.store, ids, QUEUES, 0, NULL, NULL));
    EXPECT_OK(lh_delete(w.store, ids, QUEUES, NULL));
    world_close(&w);
}

/* ---- complete and claim ---- */

static const char *const mail = "mail";
static const lh_claim_opts next_opts = {.queues = &mail, .n_queues = 1, .worker = "w1"};

SPEC(complete_and_claim_run_in_one_transaction)
{
    struct world w = world_open();
    lh_job job;
    lh_jobs *next = NULL;
    int status = 99;
    enqueue(&w, "mail", "a");
    int64_t second = enqueue(&w, "mail", "b");
    EXPECT_OK(claim_one(&w, "mail", &job));
    lh_store_info before, after;
    EXPECT_OK(lh_store_status(w.store, &before));
    EXPECT_OK(lh_complete_claim(
        w.store, &(lh_done){.job = job.id, .token = job.token, .result = "r", .result_len = 1}, 1,
        &status, &next_opts, &next));
    keep_jobs(&w, next);
    EXPECT_OK(status);
    EXPECT_EQ(next->n, 1);
    EXPECT_EQ(next->job[0].id, second);
    EXPECT_EQ(job_of(&w, job.id).state, LH_COMPLETED);
    EXPECT_MEM(job_of(&w, job.id).result, job_of(&w, job.id).result_len, "r", 1);
    EXPECT_OK(lh_store_status(w.store, &after));
    EXPECT_EQ(after.changes, before.changes + 1); /* one transaction */
    world_close(&w);
}

SPEC(complete_and_claim_of_one_job_claims_even_if_that_job_was_lost)
{
    struct world w = world_with_job("mail", "a");
    lh_job lost;
    lh_jobs *next = NULL;
    int status = 99;
    int64_t second = enqueue(&w, "mail", "b");
    EXPECT_OK(claim_one(&w, "mail", &lost));
    lh_done done = {.job = lost.id, .token = lost.token + 1};
    EXPECT_OK(lh_complete_claim(w.store, &done, 1, &status, &next_opts, &next));
    keep_jobs(&w, next);
    EXPECT_EQ(status, LH_ELOST);
    EXPECT_EQ(next->n, 1);
    EXPECT_EQ(next->job[0].id, second);
    EXPECT_EQ(job_of(&w, lost.id).state, LH_RUNNING);
    EXPECT_STATUS(lh_complete_claim(w.store, &done, 1, &status, &next_opts, &next), LH_EMPTY);
    EXPECT_EQ(status, LH_ELOST);
    world_close(&w);
}

SPEC(complete_and_claim_completes_even_if_there_is_nothing_to_claim)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    lh_jobs *next = NULL;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_STATUS(lh_complete_claim(w.store, &(lh_done){.job = job.id, .token = job.token}, 1, NULL,
                                    &next_opts, &next),
                  LH_EMPTY);
    EXPECT(next == NULL);
    EXPECT_EQ(job_of(&w, job.id).state, LH_COMPLETED);
    world_close(&w);
}

SPEC(complete_and_claim_claims_even_if_the_completed_jobs_were_lost)
{
    struct world w = world_open();
    lh_job lost;
    lh_jobs *next = NULL;
    int status[2];
    enqueue(&w, "mail", "a");
    enqueue(&w, "mail", "b");
    EXPECT_OK(claim_one(&w, "mail", &lost));
    EXPECT_OK(cancel(&w, lost.id));
    lh_done done[] = {{.job = lost.id, .token = lost.token}, {.job = 777, .token = 1}};
    EXPECT_OK(lh_complete_claim(w.store, done, 2, status, &next_opts, &next));
    keep_jobs(&w, next);
    EXPECT_STATUS(status[0], LH_ECANCELLED);
    EXPECT_STATUS(status[1], LH_ENOTFOUND);
    EXPECT_EQ(next->n, 1);
    world_close(&w);
}

SPEC(complete_and_claim_without_a_job_to_complete_is_a_claim)
{
    struct world w = world_with_job("mail", "x");
    lh_jobs *next = NULL;
    EXPECT_OK(lh_complete_claim(w.store, NULL, 0, NULL, &next_opts, &next));
    keep_jobs(&w, next);
    EXPECT_EQ(next->n, 1);
    world_close(&w);
}

SPEC(complete_and_claim_reuses_the_slot_and_the_exclusive_lease)
{
    struct world w = world_open();
    lh_job job;
    lh_jobs *next = NULL;
    lh_leases *lease = NULL;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_CONCURRENCY | LH_POLICY_EXCLUSIVE,
                     .concurrency = 1, .exclusive = true));
    enqueue(&w, "mail", "a");
    enqueue(&w, "mail", "b");
    EXPECT_OK(claim_one(&w, "mail", &job));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_complete_claim(w.store, &(lh_done){.job = job.id, .token = job.token}, 1, NULL,
                                &next_opts, &next));
    keep_jobs(&w, next);
    EXPECT_EQ(next->n, 1);
    EXPECT_OK(lh_lease_get(w.store, "processing", "mail", &lease));
    EXPECT_EQ(keep_lease(&w, lease).expires_at, next->job[0].lease_until);
    world_close(&w);
}

struct handed {
    lh_jobs *jobs;
    int calls;
};

static void take_over(void *arg, lh_jobs *jobs)
{
    struct handed *handed = arg;

    handed->jobs = jobs;
    handed->calls++;
}

SPEC(complete_and_claim_passes_the_jobs_to_the_callback)
{
    struct world w = world_with_job("mail", "a");
    lh_job job;
    lh_jobs *out = NULL;
    struct handed handed = {0};
    lh_claim_opts opts = next_opts;
    opts.claimed = take_over;
    opts.claimed_arg = &handed;
    EXPECT_OK(claim_one(&w, "mail", &job));
    int64_t second = enqueue(&w, "mail", "b");
    EXPECT_OK(lh_complete_claim(w.store, &(lh_done){.job = job.id, .token = job.token}, 1, NULL,
                                &opts, &out));
    EXPECT_EQ(handed.calls, 1);
    EXPECT(out == NULL);
    keep_jobs(&w, handed.jobs);
    EXPECT_EQ(handed.jobs->n, 1);
    EXPECT_EQ(handed.jobs->job[0].id, second);
    EXPECT(handed.jobs->job[0].remaining_ms > 0);
    job = handed.jobs->job[0];
    /* With nothing to claim the callback is not called, and the job is completed. */
    EXPECT_STATUS(lh_complete_claim(w.store, &(lh_done){.job = job.id, .token = job.token}, 1, NULL,
                                    &opts, NULL),
                  LH_EMPTY);
    EXPECT_EQ(handed.calls, 1);
    EXPECT_EQ(job_of(&w, second).state, LH_COMPLETED);
    world_close(&w);
}

SPEC(a_claim_passes_its_jobs_to_the_callback)
{
    struct world w = world_with_job("mail", "a");
    struct handed handed = {0};
    lh_claim_opts opts = next_opts;
    opts.claimed = take_over;
    opts.claimed_arg = &handed;
    EXPECT_OK(lh_claim(w.store, &opts, NULL));
    EXPECT_EQ(handed.calls, 1);
    keep_jobs(&w, handed.jobs);
    EXPECT_STATUS(lh_claim(w.store, &opts, NULL), LH_EMPTY);
    EXPECT_EQ(handed.calls, 1);
    EXPECT_STATUS(lh_claim(w.store, &next_opts, NULL), LH_EMISUSE);
    world_close(&w);
}

SPEC(an_invalid_complete_and_claim_completes_nothing)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    lh_jobs *next = NULL;
    lh_claim_opts bad = next_opts;
    bad.worker = "not a name";
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_STATUS(lh_complete_claim(w.store, &(lh_done){.job = job.id, .token = job.token}, 1, NULL,
                                    &bad, &next),
                  LH_EINVAL);
    EXPECT_EQ(job_of(&w, job.id).state, LH_RUNNING);
    world_close(&w);
}
