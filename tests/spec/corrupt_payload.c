/* Corrupt payloads: the job is failed with a reason and is never handed out. */
#include "world.h"

#include "race/foreign_sql.h"

static int64_t enqueue_corrupt(struct world *w, const char *queue)
{
    int64_t id = enqueue(w, queue, "as it was sent");

    EXPECT_EQ(damage("UPDATE lh_job SET payload = 'as it became' WHERE id = %lld", (long long)id),
              1);
    return id;
}

static void expect_failed(struct world *w, int64_t id)
{
    lh_job job = job_of(w, id);

    EXPECT_EQ(job.state, LH_FAILED);
    EXPECT_STR(job.last_error, "CORRUPT: payload does not match its checksum");
    EXPECT_EQ(job.attempt, 0);
    EXPECT_STR(story_of(w, id), "job.failed");
    EXPECT_STR(last_event(w, "job.failed").actor, "system/claim");
}

/* The check of the store would report the corrupt payload. */
static void leave(struct world *w, const int64_t *corrupt, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        expect_failed(w, corrupt[i]);
        EXPECT_OK(lh_delete(w->store, &corrupt[i], 1, NULL));
    }
    world_close(w);
}

SPEC(a_job_with_a_corrupt_payload_is_failed_and_the_next_job_is_claimed)
{
    struct world w = world_open();
    int64_t corrupt[] = {enqueue_corrupt(&w, "mail"), enqueue_corrupt(&w, "mail")};
    int64_t sound = enqueue(&w, "mail", "sound");
    lh_job job;

    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.id, sound);
    EXPECT_OK(complete(&w, &job));
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    leave(&w, corrupt, 2);
}

SPEC(a_queue_with_only_a_corrupt_job_is_reported_as_empty)
{
    struct world w = world_open();
    int64_t corrupt = enqueue_corrupt(&w, "mail");
    lh_job job;

    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_EQ(queue_of(&w, "mail").failed, 1);
    EXPECT_EQ(queue_of(&w, "mail").pending, 0);
    leave(&w, &corrupt, 1);
}

SPEC(a_claimed_batch_replaces_corrupt_jobs_with_later_ones)
{
    struct world w = world_open();
    int64_t first = enqueue(&w, "mail", "first");
    int64_t corrupt[] = {enqueue_corrupt(&w, "mail"), enqueue_corrupt(&w, "mail")};
    int64_t second = enqueue(&w, "mail", "second"), third = enqueue(&w, "mail", "third");
    int64_t left = enqueue(&w, "mail", "left");
    const lh_jobs *jobs = claim_many(&w, "mail", 3);

    EXPECT_EQ(jobs->n, 3);
    EXPECT_EQ(jobs->job[0].id, first);
    EXPECT_EQ(jobs->job[1].id, second);
    EXPECT_EQ(jobs->job[2].id, third);
    EXPECT_MEM(jobs->job[2].payload, jobs->job[2].payload_len, "third", 5);
    EXPECT_EQ(job_of(&w, left).state, LH_PENDING);
    leave(&w, corrupt, 2);
}

SPEC(a_claim_with_a_request_id_does_not_return_a_corrupt_job)
{
    struct world w = world_open();
    int64_t corrupt = enqueue_corrupt(&w, "mail"), sound = enqueue(&w, "mail", "sound");
    const char *queue = "mail";
    lh_claim_opts opts = {
        .queues = &queue, .n_queues = 1, .n = 2, .worker = "w1", .request = "r-1"};

    for (int i = 0; i < 2; i++) {
        lh_jobs *jobs = NULL;
        EXPECT_OK(lh_claim(w.store, &opts, &jobs));
        EXPECT_EQ(keep_jobs(&w, jobs)->n, 1);
        EXPECT_EQ(jobs->job[0].id, sound);
        EXPECT_EQ(jobs->job[0].token, 1);
    }
    leave(&w, &corrupt, 1);
}

SPEC(complete_and_claim_skips_a_corrupt_job)
{
    struct world w = world_with_job("mail", "first");
    int64_t corrupt = enqueue_corrupt(&w, "mail"), sound = enqueue(&w, "mail", "sound");
    const char *queue = "mail";
    lh_jobs *jobs = NULL;
    lh_job job;

    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(lh_complete_claim(w.store, &(lh_done){.job = job.id, .token = job.token}, 1, NULL,
                                &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w1"},
                                &jobs));
    EXPECT_EQ(keep_jobs(&w, jobs)->n, 1);
    EXPECT_EQ(jobs->job[0].id, sound);
    EXPECT_EQ(job_of(&w, job.id).state, LH_COMPLETED);
    leave(&w, &corrupt, 1);
}

SPEC(a_corrupt_job_does_not_block_an_exclusive_queue)
{
    struct world w = world_open();
    lh_leases *leases = NULL;
    lh_job job;

    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_EXCLUSIVE, .exclusive = true));
    int64_t corrupt = enqueue_corrupt(&w, "mail");
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_STATUS(lh_lease_get(w.store, "processing", "mail", &leases), LH_ENOTFOUND);
    int64_t sound = enqueue(&w, "mail", "sound");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.id, sound);
    leave(&w, &corrupt, 1);
}
