/* Limits and calls for a whole queue: pause, purge, delete, rate, concurrency, exclusive queues. */
#include "world.h"

#include <pthread.h>

/* ---- pause, resume, purge ---- */

SPEC(a_paused_queue_hands_out_no_job_and_running_jobs_continue)
{
    struct world w = world_open();
    lh_job running, job;
    enqueue(&w, "mail", "a");
    enqueue(&w, "mail", "b");
    enqueue(&w, "post", "c");
    EXPECT_OK(claim_one(&w, "mail", &running));
    EXPECT_OK(lh_queue_pause(w.store, "mail"));
    EXPECT(queue_of(&w, "mail").paused);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_OK(claim_one(&w, "post", &job));
    EXPECT_OK(beat(&w, &running));
    EXPECT_OK(complete(&w, &running));
    int64_t more = enqueue(&w, "mail", "d");
    EXPECT_EQ(job_of(&w, more).state, LH_PENDING);
    EXPECT_OK(lh_queue_resume(w.store, "mail"));
    EXPECT(!queue_of(&w, "mail").paused);
    EXPECT_EQ(claim_many(&w, "mail", 10)->n, 2);
    world_close(&w);
}

SPEC(pausing_and_resuming_may_be_repeated_and_is_recorded_once)
{
    struct world w = world_open();
    EXPECT_OK(lh_queue_resume(w.store, "mail"));
    EXPECT_OK(lh_queue_pause(w.store, "mail"));
    EXPECT_OK(lh_queue_pause(w.store, "mail"));
    EXPECT_OK(lh_queue_resume(w.store, "mail"));
    EXPECT_OK(lh_queue_resume(w.store, "mail"));
    EXPECT_STR(story_of(&w, 0), "queue.paused queue.resumed");
    EXPECT_STR(last_event(&w, "queue.paused").queue, "mail");
    world_close(&w);
}

SPEC(a_pause_holds_for_other_handles_at_once)
{
    struct world w = world_open();
    lh_job job;
    lh_store *other = world_second_handle();
    enqueue(&w, "mail", "a");
    enqueue(&w, "mail", "b");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(lh_queue_pause(other, "mail"));
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_OK(lh_queue_resume(other, "mail"));
    EXPECT_OK(claim_one(&w, "mail", &job));
    lh_close(other);
    world_close(&w);
}

SPEC(stuck_jobs_of_a_paused_queue_are_recovered)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    EXPECT_OK(lh_queue_pause(w.store, "mail"));
    clock_advance_ms(&w, 1000);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    world_close(&w);
}

SPEC(a_purge_deletes_only_waiting_jobs)
{
    struct world w = world_open();
    lh_job running, done;
    int64_t purged = -1;
    enqueue(&w, "mail", "done");
    enqueue(&w, "mail", "running");
    EXPECT_OK(claim_one(&w, "mail", &done));
    EXPECT_OK(complete(&w, &done));
    EXPECT_OK(claim_one(&w, "mail", &running));
    for (int i = 0; i < 3; i++) {
        enqueue(&w, "mail", "pending");
        enqueue(&w, "mail", "scheduled", .delay_ms = 1000);
    }
    int64_t cancelled = enqueue(&w, "mail", "cancelled");
    EXPECT_OK(cancel(&w, cancelled));
    int64_t other = enqueue(&w, "post", "other");
    EXPECT_OK(lh_queue_purge(w.store, "mail", &purged));
    EXPECT_EQ(purged, 6);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.queue = "mail"})->n, 3);
    EXPECT_EQ(job_of(&w, done.id).state, LH_COMPLETED);
    EXPECT_EQ(job_of(&w, cancelled).state, LH_CANCELLED);
    EXPECT_EQ(job_of(&w, other).state, LH_PENDING);
    EXPECT_OK(complete(&w, &running));
    EXPECT_OK(lh_queue_purge(w.store, "mail", &purged));
    EXPECT_EQ(purged, 0);
    EXPECT_OK(lh_queue_purge(w.store, "unknown", &purged));
    EXPECT_EQ(purged, 0);
    world_close(&w);
}

SPEC(a_purge_of_more_than_one_batch_deletes_all_of_it)
{
    struct world w = world_open();
    static lh_new_job jobs[1300];
    static lh_enqueued out[1300];
    int64_t purged = 0;
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, 1300, NULL, out));
    EXPECT_OK(lh_queue_purge(w.store, "mail", &purged));
    EXPECT_EQ(purged, 1300);
    EXPECT_EQ(queue_of(&w, "mail").pending, 0);
    world_close(&w);
}

/* ---- delete ---- */

static bool is_listed(struct world *w, const char *queue)
{
    lh_queues *queues = NULL;
    bool found = false;

    EXPECT_OK(lh_queue_list(w->store, &queues));
    for (size_t i = 0; i < queues->n; i++)
        found = found || strcmp(queues->queue[i].queue, queue) == 0;
    lh_queues_free(queues);
    return found;
}

SPEC(deleting_an_empty_queue_removes_its_history_pause_and_policies)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_LEASE, .lease_ms = 5000));
    EXPECT_OK(policy(&w, "mail", "slow", .set = LH_POLICY_LEASE, .lease_ms = 6000));
    EXPECT_OK(policy(&w, "post", NULL, .set = LH_POLICY_LEASE, .lease_ms = 7000));
    enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete(&w, &job));
    EXPECT_OK(lh_delete(w.store, &job.id, 1, NULL));
    clock_advance_ms(&w, 120000); /* its minute is added to the history */
    EXPECT_OK(lh_maintain(w.store, NULL, NULL));
    EXPECT_OK(lh_queue_pause(w.store, "mail"));
    EXPECT_OK(lh_queue_delete(w.store, "mail"));
    EXPECT_STR(last_event(&w, "queue.deleted").queue, "mail");
    EXPECT(!is_listed(&w, "mail"));
    EXPECT(is_listed(&w, "post"));
    EXPECT_OK(lh_maintain(w.store, NULL, NULL));
    EXPECT(!is_listed(&w, "mail"));
    EXPECT(policy_of(&w, "mail", NULL).lease_ms != 5000);
    EXPECT(policy_of(&w, "mail", "slow").lease_ms != 6000);
    EXPECT_EQ(policy_of(&w, "post", NULL).lease_ms, 7000);

    enqueue(&w, "mail", "y");
    EXPECT_OK(claim_one(&w, "mail", &job));
    lh_queue q = queue_of(&w, "mail");
    EXPECT(!q.paused);
    EXPECT_EQ(q.running, 1);
    EXPECT_EQ(q.hour_enqueued, 1);
    EXPECT_EQ(q.hour_claimed, 1);
    EXPECT_EQ(q.hour_completed, 0);
    world_close(&w);
}

SPEC(deleting_a_queue_holds_for_other_handles_at_once)
{
    struct world w = world_open();
    lh_job job;
    lh_store *other = world_second_handle();
    EXPECT_OK(lh_queue_pause(w.store, "mail"));
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_OK(lh_queue_delete(other, "mail"));
    enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &job));
    lh_close(other);
    world_close(&w);
}

#define NOT_DELETED(w_, status_, text_)                                 \
    do {                                                                \
        EXPECT_STATUS(lh_queue_delete((w_)->store, "mail"), (status_)); \
        EXPECT_CONTAINS(lh_errmsg((w_)->store), (text_));               \
    } while (0)

SPEC(a_queue_with_a_job_in_any_state_is_not_deleted)
{
    struct world w = world_open();
    lh_job job;
    NOT_DELETED(&w, LH_ENOTFOUND, "there is no queue \"mail\"");
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_MAX_ATTEMPTS, .max_attempts = 1));
    int64_t id = enqueue(&w, "mail", "x", .delay_ms = 1000);
    NOT_DELETED(&w, LH_ESTATE, "queue \"mail\" is not empty: 1 scheduled");
    EXPECT_OK(lh_reschedule(w.store, id, 0, 0, NULL));
    NOT_DELETED(&w, LH_ESTATE, "is not empty: 1 pending");
    EXPECT_OK(claim_one(&w, "mail", &job));
    NOT_DELETED(&w, LH_ESTATE, "is not empty: 1 running");
    EXPECT_OK(complete(&w, &job));
    NOT_DELETED(&w, LH_ESTATE, "is not empty: 1 completed");
    id = enqueue(&w, "mail", "y");
    EXPECT_OK(lh_delete(w.store, &job.id, 1, NULL));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(fail(&w, &job, "no"));
    NOT_DELETED(&w, LH_ESTATE, "is not empty: 1 failed");
    EXPECT_OK(cancel(&w, enqueue(&w, "mail", "z")));
    NOT_DELETED(&w, LH_ESTATE, "is not empty: 1 failed, 1 cancelled");
    EXPECT_OK(lh_delete(w.store, &id, 1, NULL));
    NOT_DELETED(&w, LH_ESTATE, "is not empty: 1 cancelled");
    EXPECT_EQ(policy_of(&w, "mail", NULL).max_attempts, 1);
    EXPECT_EQ(queue_of(&w, "mail").hour_enqueued, 3);
    world_close(&w);
}

SPEC(a_queue_with_a_job_in_quarantine_is_not_deleted)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    EXPECT_OK(cancel(&w, job.id));
    EXPECT_OK(lh_delete(w.store, &job.id, 1, NULL));
    NOT_DELETED(&w, LH_ESTATE, "is not empty: 1 in quarantine");
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_queue_delete(w.store, "mail"));
    EXPECT(!is_listed(&w, "mail"));
    world_close(&w);
}

SPEC(a_queue_that_a_schedule_feeds_is_not_deleted)
{
    struct world w = world_open();
    EXPECT_OK(lh_queue_pause(w.store, "mail"));
    EXPECT_OK(lh_schedule_set(
        w.store, &(lh_schedule){.name = "tick", .queue = "mail", .cron = "@every 1h"}));
    NOT_DELETED(&w, LH_ESTATE, "schedule \"tick\" enqueues into queue \"mail\"");
    EXPECT(queue_of(&w, "mail").paused);
    EXPECT_OK(lh_schedule_remove(w.store, "tick"));
    EXPECT_OK(lh_queue_delete(w.store, "mail"));
    NOT_DELETED(&w, LH_ENOTFOUND, "there is no queue");
    world_close(&w);
}

struct passing {
    lh_store *store;
    const char *wrong;
    pthread_t thread;
};

/* Jobs that are enqueued and deleted, so that the queue is often empty. */
static void *pass_jobs(void *arg)
{
    struct passing *me = arg;

    for (int i = 0; i < 25 && me->wrong == NULL; i++) {
        lh_enqueued out;
        lh_jobs *job = NULL;
        if (lh_enqueue(me->store, "mail", &(lh_new_job){.payload = "x"}, 1, NULL, &out) != LH_OK)
            me->wrong = "enqueue";
        else if (lh_job_get(me->store, out.id, &job) != LH_OK)
            me->wrong = "the job that was enqueued";
        else if (i < 24 && lh_delete(me->store, &out.id, 1, NULL) != LH_OK)
            me->wrong = "delete of the job";
        lh_jobs_free(job);
    }
    return NULL;
}

SPEC(jobs_enqueued_while_their_queue_is_deleted_are_kept_and_counted)
{
    enum { PASSING = 2 };
    struct world w = world_open();
    struct passing passing[PASSING];
    for (int i = 0; i < PASSING; i++) {
        passing[i] = (struct passing){.store = w.store};
        EXPECT_EQ(pthread_create(&passing[i].thread, NULL, pass_jobs, &passing[i]), 0);
    }
    int rc = LH_OK;
    for (int i = 0; i < 40; i++) {
        rc = lh_queue_delete(w.store, "mail");
        if (rc != LH_OK && rc != LH_ENOTFOUND && rc != LH_ESTATE)
            break;
    }
    for (int i = 0; i < PASSING; i++) {
        pthread_join(passing[i].thread, NULL);
        if (passing[i].wrong != NULL)
            FAIL("thread %d: %s went wrong", i, passing[i].wrong);
    }
    EXPECT(rc == LH_OK || rc == LH_ENOTFOUND || rc == LH_ESTATE);
    EXPECT_EQ(queue_of(&w, "mail").pending, PASSING);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.queue = "mail"})->n, PASSING);
    world_close(&w);
}

/* ---- rate ---- */

static void enqueue_many(struct world *w, const char *queue, int n)
{
    for (int i = 0; i < n; i++)
        enqueue(w, queue, "x");
}

SPEC(a_rate_allows_a_burst_and_then_one_job_at_a_time)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RATE, .rate_n = 4, .rate_per_ms = 1000));
    enqueue_many(&w, "mail", 20);
    EXPECT_EQ(claim_many(&w, "mail", 10)->n, 4);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    clock_advance_ms(&w, 249);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    clock_advance_ms(&w, 1);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    clock_advance_ms(&w, 500);
    EXPECT_EQ(claim_many(&w, "mail", 10)->n, 2);
    clock_advance_ms(&w, 3600000); /* unused rate does not add up beyond the limit */
    EXPECT_EQ(claim_many(&w, "mail", 10)->n, 4);
    EXPECT_EQ(claim_many(&w, "mail", 10)->n, 0);
    world_close(&w);
}

SPEC(an_unused_rate_refills_up_to_its_limit)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RATE, .rate_n = 4, .rate_per_ms = 1000));
    enqueue_many(&w, "mail", 20);
    EXPECT_OK(claim_one(&w, "mail", &job));
    clock_advance_ms(&w, 750);
    EXPECT_EQ(claim_many(&w, "mail", 10)->n, 4);
    world_close(&w);
}

SPEC(a_rate_is_shared_by_all_handles)
{
    struct world w = world_open();
    const char *queue = "mail";
    lh_jobs *jobs = NULL;
    lh_store *other = world_second_handle();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RATE, .rate_n = 3, .rate_per_ms = 60000));
    enqueue_many(&w, "mail", 10);
    EXPECT_EQ(claim_many(&w, "mail", 2)->n, 2);
    EXPECT_OK(lh_claim(
        other, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w2", .n = 5}, &jobs));
    EXPECT_EQ(jobs->n, 1);
    lh_jobs_free(jobs);
    EXPECT_EQ(claim_many(&w, "mail", 2)->n, 0);
    lh_close(other);
    world_close(&w);
}

SPEC(a_limited_queue_does_not_block_the_next_queue)
{
    struct world w = world_open();
    const char *queues[] = {"mail", "post"};
    lh_jobs *jobs = NULL;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RATE, .rate_n = 1, .rate_per_ms = 60000));
    enqueue_many(&w, "mail", 5);
    enqueue_many(&w, "post", 2);
    EXPECT_OK(lh_claim(w.store,
                       &(lh_claim_opts){.queues = queues, .n_queues = 2, .worker = "w1", .n = 10},
                       &jobs));
    keep_jobs(&w, jobs);
    EXPECT_EQ(jobs->n, 3);
    EXPECT_STR(jobs->job[0].queue, "mail");
    EXPECT_STR(jobs->job[1].queue, "post");
    EXPECT_STR(jobs->job[2].queue, "post");
    world_close(&w);
}

SPEC(a_rate_that_was_removed_limits_nothing)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RATE, .rate_n = 1, .rate_per_ms = 60000));
    enqueue_many(&w, "mail", 10);
    EXPECT_EQ(claim_many(&w, "mail", 4)->n, 1);
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RATE, .rate_n = 0));
    EXPECT_EQ(claim_many(&w, "mail", 4)->n, 4);
    EXPECT_OK(lh_policy_set(w.store, "mail", NULL, NULL, LH_POLICY_RATE));
    EXPECT_EQ(claim_many(&w, "mail", 4)->n, 4);
    world_close(&w);
}

SPEC(the_largest_rate_over_the_longest_time_is_counted_without_overflow)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RATE, .rate_n = 1000000000,
                     .rate_per_ms = INT64_C(30) * 86400000));
    enqueue_many(&w, "mail", 3);
    EXPECT_EQ(claim_many(&w, "mail", 1)->n, 1);
    clock_advance_ms(&w, INT64_C(29) * 86400000);
    EXPECT_OK(policy(&w, NULL, NULL, .set = LH_POLICY_RECOVERY, .recovery = false));
    EXPECT_EQ(claim_many(&w, "mail", 1)->n, 1);
    EXPECT_EQ(claim_many(&w, "mail", 1)->n, 1);
    world_close(&w);
}

/* ---- concurrency ---- */

SPEC(concurrency_limits_running_jobs_and_every_end_frees_a_slot)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_CONCURRENCY, .concurrency = 2));
    enqueue_many(&w, "mail", 20);
    lh_jobs *held = claim_many(&w, "mail", 10);
    EXPECT_EQ(held->n, 2);
    EXPECT_EQ(claim_many(&w, "mail", 10)->n, 0);

    EXPECT_OK(complete(&w, &held->job[0]));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(claim_many(&w, "mail", 10)->n, 0);

    EXPECT_OK(fail(&w, &held->job[1], "no"));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(claim_many(&w, "mail", 10)->n, 0);

    EXPECT_OK(release(&w, &job));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(claim_many(&w, "mail", 10)->n, 0);

    EXPECT_OK(lh_release_worker(w.store, "w1", &job.id, 1, 0, true, NULL, NULL));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(claim_many(&w, "mail", 10)->n, 0);

    clock_advance_ms(&w, 300000); /* both workers die */
    EXPECT_EQ(claim_many(&w, "mail", 10)->n, 2);
    EXPECT_EQ(queue_of(&w, "mail").running, 2);
    world_close(&w);
}

SPEC(the_slot_of_a_cancelled_running_job_is_freed_when_its_holder_answers)
{
    struct world w = world_open();
    lh_job old, job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_CONCURRENCY, .concurrency = 1));
    enqueue_many(&w, "mail", 3);
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 60000));
    EXPECT_OK(cancel(&w, old.id));
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_STATUS(beat(&w, &old), LH_ECANCELLED);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_STATUS(release(&w, &old), LH_ECANCELLED);
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 60000));
    EXPECT_OK(cancel(&w, job.id)); /* and this holder never answers */
    clock_advance_ms(&w, 59999);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    clock_advance_ms(&w, 1);
    EXPECT_OK(claim_one(&w, "mail", &job));
    world_close(&w);
}

SPEC(the_slot_of_a_job_released_by_worker_name_is_freed_when_its_holder_answers)
{
    struct world w = world_open();
    lh_job old, job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_CONCURRENCY, .concurrency = 1));
    enqueue_many(&w, "mail", 2);
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 60000));
    EXPECT_OK(lh_release_worker(w.store, "w1", NULL, 0, 0, false, NULL, NULL));
    EXPECT_STATUS(claim_one(&w, "mail", &job, .worker = "w2"), LH_EMPTY);
    EXPECT_STATUS(complete(&w, &old), LH_ELOST);
    EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w2"));
    EXPECT_EQ(job.id, old.id);
    world_close(&w);
}

SPEC(the_slot_of_a_cancelled_running_job_stays_taken_after_the_job_is_deleted)
{
    struct world w = world_open();
    lh_job old, job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_CONCURRENCY, .concurrency = 1));
    enqueue_many(&w, "mail", 2);
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 60000));
    EXPECT_OK(cancel(&w, old.id));
    EXPECT_OK(lh_delete(w.store, &old.id, 1, NULL));
    clock_advance_ms(&w, 59999);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    clock_advance_ms(&w, 1);
    EXPECT_OK(claim_one(&w, "mail", &job));
    world_close(&w);
}

/* ---- one job at a time ---- */

static lh_lease lock_of(struct world *w, const char *queue)
{
    lh_leases *leases = NULL;
    EXPECT_OK(lh_lease_get(w->store, "processing", queue, &leases));
    return keep_lease(w, leases);
}

static bool locked(struct world *w, const char *queue)
{
    lh_leases *leases = NULL;
    int rc = lh_lease_get(w->store, "processing", queue, &leases);
    bool held = rc == LH_OK && leases->lease[0].owner != NULL;
    lh_leases_free(leases);
    return held;
}

static struct world exclusive_world(int jobs)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "merge", NULL, .set = LH_POLICY_EXCLUSIVE, .exclusive = true));
    enqueue_many(&w, "merge", jobs);
    return w;
}

SPEC(an_exclusive_queue_hands_out_one_job_at_a_time)
{
    struct world w = exclusive_world(3);
    lh_job job;
    lh_jobs *jobs = claim_many(&w, "merge", 10);
    EXPECT_EQ(jobs->n, 1);
    EXPECT_STATUS(claim_one(&w, "merge", &job, .worker = "w2"), LH_EMPTY);
    EXPECT_STATUS(claim_one(&w, "merge", &job, .worker = "w1"), LH_EMPTY);
    EXPECT_OK(complete(&w, &jobs->job[0]));
    EXPECT_OK(claim_one(&w, "merge", &job, .worker = "w2"));
    world_close(&w);
}

SPEC(the_lease_of_an_exclusive_queue_lasts_as_long_as_its_job)
{
    struct world w = exclusive_world(1);
    lh_job job;
    EXPECT(!locked(&w, "merge"));
    EXPECT_OK(claim_one(&w, "merge", &job, .worker = "w-9", .lease_ms = 1000));
    EXPECT_STR(lock_of(&w, "merge").owner, "w-9");
    EXPECT_EQ(lock_of(&w, "merge").expires_at, job.lease_until);
    EXPECT(lock_of(&w, "merge").token > 0);
    clock_advance_ms(&w, 700);
    EXPECT_OK(beat(&w, &job));
    EXPECT_EQ(lock_of(&w, "merge").expires_at, WORLD_START_MS + 1700);
    EXPECT_OK(lh_heartbeat(w.store, &(lh_beat){.job = job.id, .token = job.token, .lease_ms = 9000},
                           1, NULL, NULL));
    EXPECT_EQ(lock_of(&w, "merge").expires_at, WORLD_START_MS + 9700);
    EXPECT_EQ(lock_of(&w, "merge").expires_at, job_of(&w, job.id).lease_until);
    EXPECT_OK(complete(&w, &job));
    EXPECT(!locked(&w, "merge"));
    world_close(&w);
}

SPEC(every_end_of_a_job_releases_the_lease_of_its_exclusive_queue)
{
    struct world w = exclusive_world(1);
    lh_job job;
    EXPECT_OK(claim_one(&w, "merge", &job));
    EXPECT_OK(release(&w, &job));
    EXPECT(!locked(&w, "merge"));
    EXPECT_OK(claim_one(&w, "merge", &job));
    EXPECT_OK(lh_release_worker(w.store, "w1", NULL, 0, 0, true, NULL, NULL));
    EXPECT(!locked(&w, "merge"));
    EXPECT_OK(claim_one(&w, "merge", &job));
    EXPECT_OK(fail(&w, &job, "no"));
    EXPECT(!locked(&w, "merge"));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "merge", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_recover(w.store, NULL, NULL));
    EXPECT(!locked(&w, "merge"));
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    world_close(&w);
}

SPEC(a_cancelled_running_job_keeps_the_exclusive_lease_until_its_holder_answers)
{
    struct world w = exclusive_world(2);
    lh_job old, job;
    EXPECT_OK(claim_one(&w, "merge", &old, .lease_ms = 60000));
    EXPECT_OK(cancel(&w, old.id));
    EXPECT(locked(&w, "merge"));
    EXPECT_STATUS(claim_one(&w, "merge", &job, .worker = "w2"), LH_EMPTY);
    EXPECT_STATUS(complete(&w, &old), LH_ECANCELLED);
    EXPECT(!locked(&w, "merge"));
    EXPECT_OK(claim_one(&w, "merge", &job, .worker = "w2"));
    world_close(&w);
}

SPEC(a_cancelled_running_job_keeps_the_exclusive_lease_no_longer_than_its_deadline)
{
    struct world w = exclusive_world(2);
    lh_job old, job;
    EXPECT_OK(claim_one(&w, "merge", &old, .lease_ms = 60000));
    EXPECT_OK(cancel(&w, old.id));
    clock_advance_ms(&w, 59999);
    EXPECT_STATUS(claim_one(&w, "merge", &job, .worker = "w2"), LH_EMPTY);
    clock_advance_ms(&w, 1);
    EXPECT_OK(claim_one(&w, "merge", &job, .worker = "w2", .lease_ms = 60000));
    /* A late answer does not affect the lease of the next job. */
    EXPECT_STATUS(complete(&w, &old), LH_ECANCELLED);
    EXPECT_STR(lock_of(&w, "merge").owner, "w2");
    EXPECT_EQ(lock_of(&w, "merge").expires_at, job.lease_until);
    world_close(&w);
}

SPEC(a_job_released_by_worker_name_keeps_the_exclusive_lease_until_its_holder_answers)
{
    struct world w = exclusive_world(2);
    lh_job old, job;
    EXPECT_OK(claim_one(&w, "merge", &old, .lease_ms = 60000));
    EXPECT_OK(lh_release_worker(w.store, "w1", NULL, 0, 0, false, NULL, NULL));
    EXPECT(locked(&w, "merge"));
    EXPECT_STATUS(claim_one(&w, "merge", &job, .worker = "w2"), LH_EMPTY);
    EXPECT_STATUS(release(&w, &old), LH_ELOST);
    EXPECT(!locked(&w, "merge"));
    EXPECT_OK(claim_one(&w, "merge", &job, .worker = "w2"));
    EXPECT_EQ(job.id, old.id);
    world_close(&w);
}

SPEC(a_late_complete_of_a_stuck_job_does_not_release_the_exclusive_lease_of_the_next_job)
{
    struct world w = exclusive_world(3);
    lh_job stuck, next, third;
    EXPECT_OK(policy(&w, "merge", NULL, .set = LH_POLICY_RECOVERY, .recovery = false));
    EXPECT_OK(claim_one(&w, "merge", &stuck, .worker = "w1", .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "merge", &next, .worker = "w2", .lease_ms = 60000));
    EXPECT_OK(complete(&w, &stuck));
    EXPECT_STR(lock_of(&w, "merge").owner, "w2");
    EXPECT_EQ(lock_of(&w, "merge").expires_at, next.lease_until);
    EXPECT_STATUS(claim_one(&w, "merge", &third, .worker = "w3"), LH_EMPTY);
    world_close(&w);
}

SPEC(an_older_job_does_not_release_the_lease_of_a_queue_that_became_exclusive_later)
{
    struct world w = world_open();
    lh_job before, job, third;
    enqueue_many(&w, "merge", 3);
    EXPECT_OK(claim_one(&w, "merge", &before, .worker = "w1"));
    EXPECT_OK(policy(&w, "merge", NULL, .set = LH_POLICY_EXCLUSIVE, .exclusive = true));
    EXPECT_OK(claim_one(&w, "merge", &job, .worker = "w2"));
    EXPECT_OK(complete(&w, &before));
    EXPECT_STR(lock_of(&w, "merge").owner, "w2");
    EXPECT_EQ(lock_of(&w, "merge").expires_at, job.lease_until);
    EXPECT_STATUS(claim_one(&w, "merge", &third, .worker = "w3"), LH_EMPTY);
    world_close(&w);
}

SPEC(acquiring_the_processing_lease_by_name_stops_the_exclusive_queue)
{
    struct world w = exclusive_world(1);
    lh_job job;
    EXPECT_OK(lh_lease_acquire(w.store, "processing", "merge",
                               &(lh_lease_opts){.owner = "operator", .ttl_ms = 60000}, NULL));
    EXPECT_STATUS(claim_one(&w, "merge", &job), LH_EMPTY);
    EXPECT_OK(lh_lease_release(w.store, "processing", "merge",
                               &(lh_lease_opts){.owner = "operator"}, NULL));
    EXPECT_OK(claim_one(&w, "merge", &job));
    EXPECT_STATUS(lh_lease_acquire(w.store, "processing", "merge",
                                   &(lh_lease_opts){.owner = "operator"}, NULL),
                  LH_EHELD);
    world_close(&w);
}

SPEC(an_exclusive_queue_without_a_pending_job_takes_no_lease)
{
    struct world w = exclusive_world(0);
    lh_job job;
    EXPECT_STATUS(claim_one(&w, "merge", &job), LH_EMPTY);
    EXPECT(!locked(&w, "merge"));
    world_close(&w);
}

SPEC(exclusive_queues_do_not_block_each_other)
{
    struct world w = world_open();
    const char *queues[] = {"a", "b"};
    lh_jobs *jobs = NULL;
    for (int i = 0; i < 2; i++)
        EXPECT_OK(policy(&w, queues[i], NULL, .set = LH_POLICY_EXCLUSIVE, .exclusive = true));
    enqueue_many(&w, "a", 2);
    enqueue_many(&w, "b", 2);
    EXPECT_OK(lh_claim(w.store,
                       &(lh_claim_opts){.queues = queues, .n_queues = 2, .worker = "w1", .n = 10},
                       &jobs));
    keep_jobs(&w, jobs);
    EXPECT_EQ(jobs->n, 2);
    EXPECT_STR(jobs->job[0].queue, "a");
    EXPECT_STR(jobs->job[1].queue, "b");
    world_close(&w);
}

SPEC(the_exclusive_lease_of_a_running_job_cannot_be_released_by_name)
{
    struct world w = world_open();
    lh_job first, second;
    bool released = true;
    const lh_lease_opts as_w1 = {.owner = "w1"};
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_EXCLUSIVE, .exclusive = true));
    enqueue(&w, "mail", "a");
    enqueue(&w, "mail", "b");
    EXPECT_OK(claim_one(&w, "mail", &first, .worker = "w1"));
    EXPECT_STATUS(lh_lease_release(w.store, "processing", "mail", &as_w1, &released), LH_ESTATE);
    EXPECT(!released);
    EXPECT_STATUS(lh_lease_complete(w.store, "processing", "mail", &as_w1, NULL), LH_ESTATE);
    EXPECT_STATUS(claim_one(&w, "mail", &second, .worker = "w2"), LH_EMPTY);
    EXPECT_OK(complete(&w, &first));
    EXPECT_OK(claim_one(&w, "mail", &second, .worker = "w2"));
    world_close(&w);
}
