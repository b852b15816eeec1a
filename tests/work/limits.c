/* Cancelled, limited and failing jobs; and many of them. */
#include "work/shift.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST(a_cancelled_job_is_stopped_within_a_beat)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--heartbeat", "500ms", "--",
                               SH("echo $$ >pid; trap ': >termed; exit 0' TERM;"
                                  "while :; do sleep 0.02; done"));
    int64_t pid = number_in("pid"), since = now_ms();
    cancel(&shop, job);
    EVENTUALLY(gone(pid));
    int64_t took = now_ms() - since;
    if (took > 1500)
        FAIL("it took %lld ms", (long long)took);
    EXPECT(exists("termed"));
    EVENTUALLY(said(&shift, "job 1 lost"));
    EXPECT(said(&shift, "the job was cancelled"));
    EXPECT_EQ(state_of(&shop, job), LH_CANCELLED);
    EXPECT_EQ(look(&shop, job)->result_len, 0);
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT_EQ(state_of(&shop, job), LH_CANCELLED);
    shop_close(&shop);
}

/* Cancelled and tried again while the old run is still there: the new one waits for its end. */
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

TEST(at_the_rate_what_is_not_started_is_released_at_once_and_the_rest_keeps_beating)
{
    struct shop shop = shop_open();
    int64_t jobs[6];
    for (int i = 0; i < 6; i++)
        jobs[i] = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "-j", "3", "--batch", "3", "--rate", "2/1h", "--heartbeat",
                               "500ms", "--", SH("echo x >>runs;" UNTIL("go")));
    EVENTUALLY(lines_of("runs") >= 2);
    EVENTUALLY(count(&shop, LH_PENDING) == 4);
    for (int i = 2; i < 6; i++)
        EXPECT_EQ(look(&shop, jobs[i])->attempt, 0);
    int64_t beat = look(&shop, jobs[0])->last_heartbeat_at;
    EVENTUALLY(look(&shop, jobs[0])->last_heartbeat_at > beat);
    EXPECT_EQ(count(&shop, LH_PENDING), 4);
    touch("go");
    EVENTUALLY(count(&shop, LH_COMPLETED) == 2);
    EXPECT_EQ(lines_of("runs"), 2);
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT_EQ(lines_of("runs"), 2);
    shop_close(&shop);
}

TEST(a_rate_holds_without_a_batch_too_and_fills_up_again)
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

/* With TEST_THOROUGH to the end; else it is stopped on the way, which must lose nothing either. */
TEST_TIMEOUT(of_ten_thousand_jobs_none_is_lost, 120)
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
