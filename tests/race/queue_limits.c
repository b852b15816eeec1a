/* The limits of a queue hold when many claimers use it at once. */
#include "race/worker_processes.h"

#include <stdio.h>
#include <string.h>

enum { CLAIMERS = 4, FOR_MS = 1500, JOBS = 400, RATE = 20, RATE_MS = 10000, SLOTS = 3 };

static void claim_for_a_while(const char *queue)
{
    lh_store *store = crew_open();
    lh_claim_opts opts = {.queues = &queue, .n_queues = 1, .worker = "w", .lease_ms = HOLD_MS};

    for (int64_t until = now_ns() + FOR_MS * INT64_C(1000000); now_ns() < until;) {
        lh_jobs *jobs = NULL;
        int rc = lh_claim(store, &opts, &jobs);
        EXPECT(rc == LH_OK || rc == LH_EMPTY || rc == LH_EBUSY);
        lh_jobs_free(jobs);
    }
    lh_close(store);
}

/* How many jobs run after several processes have claimed for a while, as fast as they can. */
static int64_t claimed(lh_store **store, const char *queue)
{
    lh_new_job jobs[JOBS] = {0};
    lh_enqueued out[JOBS];
    pid_t claimers[CLAIMERS];
    lh_queues *queues = NULL;
    int64_t running = -1;

    EXPECT_OK(lh_enqueue(*store, queue, jobs, JOBS, NULL, out));
    for (int i = 0; i < CLAIMERS; i++) {
        if ((claimers[i] = test_fork_reopening(store, crew_open)) == 0) {
            claim_for_a_while(queue);
            test_child_done();
        }
    }
    for (int i = 0; i < CLAIMERS; i++)
        EXPECT_EQ(test_wait(claimers[i]).code, 0);
    EXPECT_OK(lh_queue_list(*store, &queues));
    for (size_t i = 0; i < queues->n; i++)
        if (strcmp(queues->queue[i].queue, queue) == 0)
            running = queues->queue[i].running;
    lh_queues_free(queues);
    return running;
}

TEST_TIMEOUT(a_rate_holds_with_many_claimers, 60)
{
    lh_store *store = crew_open();
    lh_policy policy = {.set = LH_POLICY_RATE, .rate_n = RATE, .rate_per_ms = RATE_MS};

    EXPECT_OK(lh_policy_set(store, "q", NULL, &policy, 0));
    int64_t start = now_ns(), n = claimed(&store, "q");
    int64_t most = RATE + (now_ns() - start) * RATE / (RATE_MS * INT64_C(1000000)) + 1;
    (void)fprintf(stderr, "%lld claimed, %lld allowed\n", (long long)n, (long long)most);
    EXPECT(n >= RATE && n <= most);
    lh_close(store);
}

TEST_TIMEOUT(a_concurrency_limit_holds_with_many_claimers, 60)
{
    lh_store *store = crew_open();
    lh_policy policy = {.set = LH_POLICY_CONCURRENCY, .concurrency = SLOTS};

    EXPECT_OK(lh_policy_set(store, "q", NULL, &policy, 0));
    EXPECT_EQ(claimed(&store, "q"), SLOTS);
    lh_close(store);
}

TEST_TIMEOUT(an_exclusive_queue_runs_one_job_with_many_claimers, 60)
{
    lh_store *store = crew_open();
    lh_policy policy = {.set = LH_POLICY_EXCLUSIVE, .exclusive = true};

    EXPECT_OK(lh_policy_set(store, "q", NULL, &policy, 0));
    EXPECT_EQ(claimed(&store, "q"), 1);
    lh_close(store);
}
