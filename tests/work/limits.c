/* Cancelled jobs, rates, draining, failing jobs, and many jobs. */
#include "work/shift.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST(a_cancelled_job_is_stopped_within_one_heartbeat)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--lease", "1h", "--heartbeat", "500ms", "--",
                               SH("echo $$ >pid; trap ': >termed; exit 0' TERM;"
                                  "while :; do sleep 0.02; done"));
    int64_t pid = number_in("pid");
    cancel(&shop, job);
    EVENTUALLY(gone(pid)); /* long before the lease expires */
    EXPECT(exists("termed"));
    EVENTUALLY(said(&shift, "job 1 lost"));
    EXPECT(said(&shift, "the job was cancelled"));
    EXPECT_EQ(state_of(&shop, job), LH_CANCELLED);
    EXPECT_EQ(look(&shop, job)->result_len, 0);
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT_EQ(state_of(&shop, job), LH_CANCELLED);
    shop_close(&shop);
}

/* The job is cancelled and retried while its old run still lives: the new run waits for its end. */
TEST(a_job_cancelled_and_retried_does_not_run_twice_at_once)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift =
        SHIFT("q", "-j", "2", "--heartbeat", "500ms", "--kill-after", "300ms", "--",
              SH("exec 9>>lock; flock -n 9 || exit 65; trap '' TERM; echo x >>runs;"
                 "[ $(wc -l <runs) = 2 ] && exit 0; while :; do sleep 0.02; done"));
    EVENTUALLY(lines_of("runs") == 1);
    cancel(&shop, job);
    EXPECT_OK(lh_retry(shop.store, &job, 1, 0, NULL, NULL));
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(lines_of("runs"), 2);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- a rate */

TEST(jobs_above_the_rate_are_released_at_once_and_running_jobs_keep_their_leases)
{
    struct shop shop = shop_open();
    int64_t jobs[6];
    for (int i = 0; i < 6; i++)
        jobs[i] = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "-j", "3", "--batch", "3", "--rate", "2/1h", "--heartbeat",
                               "2s", "--", SH("echo x >>runs;" UNTIL("go")));
    EVENTUALLY(lines_of("runs") >= 2);
    EVENTUALLY(count(&shop, LH_PENDING) == 4);
    for (int i = 2; i < 6; i++)
        EXPECT_EQ(look(&shop, jobs[i])->attempt, 0);
    for (int i = 0; i < 2; i++) { /* every running job sends several heartbeats */
        int64_t beat = look(&shop, jobs[i])->last_heartbeat_at;
        EVENTUALLY(look(&shop, jobs[i])->last_heartbeat_at > beat);
    }
    EXPECT_EQ(count(&shop, LH_PENDING), 4);
    touch("go");
    EVENTUALLY(count(&shop, LH_COMPLETED) == 2);
    EXPECT_EQ(lines_of("runs"), 2);
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT_EQ(lines_of("runs"), 2);
    shop_close(&shop);
}

TEST(jobs_above_the_rate_are_not_claimed_while_all_slots_are_busy)
{
    struct shop shop = shop_open();
    int64_t jobs[6];
    for (int i = 0; i < 6; i++)
        jobs[i] = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "-j", "1", "--batch", "3", "--rate", "2/1h", "--",
                               SH("echo x >>runs;" UNTIL("go")));
    EVENTUALLY(lines_of("runs") == 1);
    EVENTUALLY(look(&shop, jobs[1])->state ==
               LH_RUNNING); /* it was claimed in advance and may start */
    touch("go");
    EVENTUALLY(count(&shop, LH_COMPLETED) == 2);
    EXPECT_EQ(shift_stop(&shift), 0);
    for (int i = 2; i < 6; i++)
        EXPECT_EQ(look(&shop, jobs[i])->token, 0); /* never claimed */
    shop_close(&shop);
}

TEST(a_rate_limits_single_claims_and_refills)
{
    struct shop shop = shop_open();
    put_many(&shop, "q", 9);
    int64_t since = now_ms();
    struct shift shift = SHIFT("q", "-j", "5", "--rate", "3/300ms", "--drain", "--", "true");
    EXPECT_EQ(shift_wait(&shift), 0);
    EXPECT(now_ms() - since >= 550);
    EXPECT_EQ(count(&shop, LH_COMPLETED), 9);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- draining */

/* Fails the job once, to be retried in an hour. */
static void fail_for_an_hour(struct shop *shop, int64_t job)
{
    lh_jobs *jobs = NULL;
    const char *queue = "q";
    EXPECT_OK(lh_claim(shop->store,
                       &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w"}, &jobs));
    EXPECT_EQ(jobs->job[0].id, job);
    EXPECT_OK(lh_fail(shop->store,
                      &(lh_failure){job, jobs->job[0].token, .error = "x", .retry_in_ms = 3600000},
                      1, NULL, NULL));
    lh_jobs_free(jobs);
}

TEST(a_draining_worker_reports_that_it_waits_for_retries)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    fail_for_an_hour(&shop, job);
    struct shift shift = SHIFT("q", "--drain", "--", "true");
    EVENTUALLY(said(&shift, "nothing is pending: waiting for jobs that will be retried"));
    EXPECT_OK(lh_reschedule(shop.store, job, 0, 0, NULL));
    EXPECT_EQ(shift_wait(&shift), 0);
    EXPECT_EQ(state_of(&shop, job), LH_COMPLETED);
    shop_close(&shop);
}

TEST(a_worker_that_waits_for_retries_can_be_stopped)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    fail_for_an_hour(&shop, job);
    struct shift shift = SHIFT("q", "--drain=retries", "--", "true");
    EVENTUALLY(said(&shift, "waiting for jobs that will be retried"));
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT_EQ(state_of(&shop, job), LH_SCHEDULED);
    shop_close(&shop);
}

TEST(a_worker_that_drains_pending_jobs_does_not_wait_for_retries)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    fail_for_an_hour(&shop, job);
    int64_t other = put(&shop, "q", "y");
    EXPECT_WORK(0, "q", "--drain=pending", "--", "true");
    EXPECT_EQ(state_of(&shop, job), LH_SCHEDULED);
    EXPECT_EQ(state_of(&shop, other), LH_COMPLETED);
    shop_close(&shop);
}

TEST(a_worker_that_drains_does_not_wait_for_jobs_enqueued_for_later)
{
    struct shop shop = shop_open();
    lh_enqueued put;
    EXPECT_OK(lh_enqueue(shop.store, "q", &(lh_new_job){.delay_ms = 86400000}, 1, NULL, &put));
    EXPECT_WORK(0, "q", "--drain", "--", "true");
    EXPECT_EQ(state_of(&shop, put.id), LH_SCHEDULED);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- failing */

static bool is_degraded(struct shop *shop, const char *why)
{
    lh_workers *list = NULL;

    EXPECT_OK(lh_worker_list(shop->store, &list));
    EXPECT_EQ(list->n, 1);
    bool degraded = list->worker[0].degraded != NULL;
    if (degraded)
        EXPECT_CONTAINS(list->worker[0].degraded, why);
    lh_workers_free(list);
    return degraded;
}

TEST(five_failures_in_a_row_mark_the_worker_until_a_success)
{
    struct shop shop = shop_open();
    policy(&shop, .set = LH_POLICY_MAX_ATTEMPTS, .max_attempts = 1);
    struct shift shift = SHIFT("q", "--", SH("read code why; echo $why >&2; exit $code"));
    for (int i = 0; i < 4; i++)
        (void)put(&shop, "q", "1 first");
    (void)put(&shop, "q", "0");
    for (int i = 0; i < 4; i++)
        (void)put(&shop, "q", "1 second");
    EVENTUALLY(count(&shop, LH_FAILED) == 8);
    EXPECT(!is_degraded(&shop, ""));
    (void)put(&shop, "q", "65 no such host");
    EVENTUALLY(is_degraded(&shop, "exit code 65: no such host"));
    EXPECT_EQ(events(&shop, "worker.degraded"), 1);
    (void)put(&shop, "q", "1 again");
    EVENTUALLY(count(&shop, LH_FAILED) == 10);
    EXPECT(is_degraded(&shop, ""));
    (void)put(&shop, "q", "0");
    EVENTUALLY(!is_degraded(&shop, ""));
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- many */

/* With TEST_THOROUGH all jobs run. Otherwise the workers are stopped, which must lose no job either. */
TEST_TIMEOUT(none_of_ten_thousand_jobs_is_lost, 120)
{
    enum { ALL = 10000, ENOUGH = 600 };
    struct shop shop = shop_open();
    bool thorough = getenv("TEST_THOROUGH") != NULL;
    put_many(&shop, "q", ALL);
    int64_t since = now_ms();
    struct shift shift = SHIFT("q", "-j", "64", "--drain", "--", SH("echo >>runs"));
    while (count(&shop, LH_COMPLETED) < (thorough ? ALL : ENOUGH) && !gone(shift.pid))
        not_yet(now_ms(), __FILE__, __LINE__, "");
    int64_t took = now_ms() - since, done = count(&shop, LH_COMPLETED);
    printf("%lld jobs in %lld ms: %lld a second\n", (long long)done, (long long)took,
           (long long)(done * 1000 / (took + 1)));
    if (!thorough)
        shift_signal(&shift, SIGTERM);
    EXPECT_EQ(shift_wait(&shift), 0);
    done = count(&shop, LH_COMPLETED);
    EXPECT(done >= (thorough ? ALL : ENOUGH));
    EXPECT_EQ(count(&shop, LH_PENDING), ALL - done);
    EXPECT_EQ(lines_of("runs"), done);
    shop_close(&shop);
}
