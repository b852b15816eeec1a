/* Running a job as a function call: lh_worker_run() with a handler. */
#include "work/shift.h"

#include "base/hook.h"
#include "session/sanitized.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const queue = "q";

struct bench {
    struct shop shop;
    lh_work_opts opts;
    lh_work_tally tally;
    char error[480];
    lh_flag stop;      /* stops the worker */
    int calls, inside; /* calls of the handler; and how many run now */
    int most;          /* the most that ran at once */
    int started, ended, trouble, stopped;
    size_t running_at_end;
};

/* lh_work_opts.tell, called in the thread of the worker. */
static void hear(void *arg, const lh_work_event *event)
{
    struct bench *b = arg;

    b->started += event->what == LH_WORK_STARTED;
    b->ended += event->what == LH_WORK_ENDED;
    b->trouble += event->what == LH_WORK_TROUBLE;
    if (event->what == LH_WORK_STOPPED) {
        b->stopped++;
        b->running_at_end = event->running + event->ahead;
    }
}

static struct bench bench_open(lh_handler *handler)
{
    struct bench b = {.shop = shop_open()};

    b.opts =
        (lh_work_opts){.queues = &queue, .n_queues = 1, .handler = handler, .drain_pending = true};
    return b;
}

static int work(struct bench *b)
{
    b->opts.handler_arg = b->opts.tell_arg = b;
    b->opts.tell = hear;
    b->opts.cancel = &b->stop;
    return lh_worker_run(b->shop.store, &b->opts, &b->tally, b->error, sizeof b->error);
}

static void bench_close(struct bench *b)
{
    EXPECT_EQ(b->stopped > 0, 1);
    EXPECT_EQ(b->running_at_end, 0);
    shop_close(&b->shop);
}

/* ---------------------------------------------------------------- outcomes */

/* Return the outcome that the payload names. */
static lh_outcome as_told(void *arg, lh_task *task, const lh_job *job)
{
    struct bench *b = arg;

    EXPECT(job->payload_len == 1 && job->attempt == 1 && job->token > 0);
    __atomic_add_fetch(&b->calls, 1, __ATOMIC_RELAXED);
    EXPECT_OK(lh_task_result(task, "gone", 4));
    EXPECT_OK(lh_task_result(task, "re\0sult", 7));
    EXPECT_OK(lh_task_error(task, "why \303\244"));
    return (lh_outcome)(*(const char *)job->payload - '0');
}

TEST(the_outcome_of_a_handler_decides_the_outcome_of_the_job)
{
    struct bench b = bench_open(as_told);
    long_backoff(&b.shop);
    int64_t ok = put(&b.shop, "q", "0"), failed = put(&b.shop, "q", "1");
    int64_t permanent = put(&b.shop, "q", "2"), later = put(&b.shop, "q", "3");
    int64_t nonsense = put(&b.shop, "q", "9"), not_its_own = put(&b.shop, "q", "5");
    EXPECT_OK(work(&b));
    EXPECT_EQ(state_of(&b.shop, ok), LH_COMPLETED);
    EXPECT_MEM(look(&b.shop, ok)->result, look(&b.shop, ok)->result_len, "re\0sult", 7);
    EXPECT_EQ(state_of(&b.shop, failed), LH_SCHEDULED);
    EXPECT_STR(look(&b.shop, failed)->last_error, "why \303\244");
    EXPECT_EQ(look(&b.shop, failed)->attempt, 1);
    EXPECT_EQ(state_of(&b.shop, permanent), LH_FAILED);
    EXPECT_EQ(state_of(&b.shop, later), LH_SCHEDULED);
    EXPECT_EQ(look(&b.shop, later)->attempt, 0);
    EXPECT_EQ(state_of(&b.shop, nonsense), LH_SCHEDULED);
    EXPECT_CONTAINS(look(&b.shop, nonsense)->last_error, "an outcome that is not allowed");
    EXPECT_EQ(state_of(&b.shop, not_its_own), LH_SCHEDULED);
    EXPECT_EQ(b.tally.claimed, 6);
    EXPECT_EQ(b.tally.started, 6);
    EXPECT_EQ(b.tally.completed, 1);
    EXPECT_EQ(b.tally.failed, 4);
    EXPECT_EQ(b.tally.released, 1);
    EXPECT_EQ(b.tally.lost, 0);
    EXPECT_EQ(b.started, 6);
    EXPECT_EQ(b.ended, 6);
    EXPECT_STR(b.error, "");
    bench_close(&b);
}

/* ---------------------------------------------------------------- transactions */

static lh_outcome done(void *arg, lh_task *task, const lh_job *job)
{
    (void)job;
    __atomic_add_fetch(&((struct bench *)arg)->calls, 1, __ATOMIC_RELAXED);
    EXPECT_OK(lh_task_result(task, "r", 1));
    return LH_RAN_OK;
}

/* Count the commits of this process while the worker runs, by a kill point that is never reached. */
static int64_t commits_of(struct bench *b, size_t jobs, size_t n)
{
    const int64_t never = 1 << 30;
    struct lhi_control *control = lhi_control();

    put_many(&b->shop, "q", n);
    b->opts.jobs = jobs;
    control->kill_skip = never;
    (void)snprintf(control->kill_at, sizeof control->kill_at, "txn:after_commit");
    EXPECT_OK(work(b));
    control->kill_at[0] = '\0';
    return never - control->kill_skip;
}

TEST(a_worker_completes_a_job_and_claims_the_next_in_one_transaction)
{
    struct bench b = bench_open(done);
    enum { JOBS = 200, OTHERS = 20 }; /* registration, maintenance, the first claim and the last */

    int64_t commits = commits_of(&b, 1, JOBS);
    EXPECT_EQ(b.calls, JOBS);
    EXPECT_EQ(b.tally.completed, JOBS);
    EXPECT_EQ(count(&b.shop, LH_COMPLETED), JOBS);
    EXPECT(commits >= JOBS);
    if (commits > JOBS + OTHERS)
        test_fail(__FILE__, __LINE__, "%lld commits for %d jobs", (long long)commits, JOBS);
    EXPECT_EQ(b.trouble, 0);
    bench_close(&b);
}

TEST(a_critical_outcome_stops_the_worker_with_the_error_of_the_handler)
{
    struct bench b = bench_open(as_told);
    int64_t job = put(&b.shop, "q", "4");
    (void)put(&b.shop, "q", "0");
    EXPECT_STATUS(work(&b), LH_EFAIL);
    EXPECT_STR(b.error, "why \303\244");
    EXPECT_EQ(state_of(&b.shop, job), LH_PENDING);
    EXPECT_EQ(look(&b.shop, job)->attempt, 0);
    EXPECT_EQ(b.calls, 1);
    bench_close(&b);
}

TEST(once_runs_one_job_or_returns_empty)
{
    struct bench b = bench_open(as_told);
    b.opts.drain_pending = false;
    b.opts.once = true;
    EXPECT_STATUS(work(&b), LH_EMPTY);
    (void)put(&b.shop, "q", "0");
    (void)put(&b.shop, "q", "1");
    EXPECT_OK(work(&b));
    EXPECT_EQ(b.calls, 1);
    EXPECT_STATUS(work(&b), LH_EFAIL);
    EXPECT_EQ(b.calls, 2);
    bench_close(&b);
}

/* ---------------------------------------------------------------- progress */

static lh_outcome talk(void *arg, lh_task *task, const lh_job *job)
{
    struct bench *b = arg;
    char stage[300], checkpoint[32];

    if (job->attempt == 2) {
        EXPECT_STR(job->checkpoint, "100");
        return LH_RAN_OK;
    }
    memset(stage, 'x', sizeof stage - 1);
    stage[sizeof stage - 1] = '\0';
    EXPECT(!lh_task_lost(task));
    for (int i = 1; i <= 100; i++) {
        EXPECT_OK(lh_task_progress(task, i));
        EXPECT_OK(lh_task_stage(task, "stage"));
        (void)snprintf(checkpoint, sizeof checkpoint, "%d", i);
        if (i % 25 == 0)
            EXPECT_OK(lh_task_checkpoint(task, checkpoint));
    }
    EXPECT_STATUS(lh_task_progress(task, 101), LH_EINVAL);
    EXPECT_STATUS(lh_task_progress(task, -1), LH_EINVAL);
    EXPECT_STATUS(lh_task_stage(task, stage), LH_EINVAL);
    EXPECT_STATUS(lh_task_stage(task, "\377"), LH_EINVAL);
    EXPECT_STATUS(lh_task_checkpoint(task, "{bad"), LH_EINVAL);
    EXPECT_STATUS(lh_task_error(task, "\377"), LH_EINVAL);
    EXPECT_STATUS(lh_task_result(task, NULL, 1), LH_EMISUSE);
    EXPECT_STATUS(lh_task_stage(task, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_task_progress(NULL, 1), LH_EMISUSE);
    EXPECT(lh_task_lost(NULL));
    (void)b;
    return LH_RAN_FAILED;
}

TEST(a_handler_reports_progress_and_a_bad_value_changes_nothing)
{
    struct bench b = bench_open(talk);
    put_many(&b.shop, "q", 8);
    b.opts.jobs = 4;
    b.opts.drain_pending = true;
    EXPECT_OK(work(&b));
    for (int64_t id = 1; id <= 8; id++) {
        EXPECT_EQ(look(&b.shop, id)->progress, 100);
        EXPECT_STR(look(&b.shop, id)->stage, "stage");
    }
    EVENTUALLY((lh_maintain(b.shop.store, NULL, NULL), count(&b.shop, LH_SCHEDULED) == 0));
    EXPECT_OK(work(&b));
    EXPECT_EQ(count(&b.shop, LH_COMPLETED), 8);
    bench_close(&b);
}

/* ---------------------------------------------------------------- stopping */

static void enter(struct bench *b)
{
    int inside = __atomic_add_fetch(&b->inside, 1, __ATOMIC_SEQ_CST);
    int most = __atomic_load_n(&b->most, __ATOMIC_SEQ_CST);

    __atomic_add_fetch(&b->calls, 1, __ATOMIC_SEQ_CST);
    while (inside > most && !__atomic_compare_exchange_n(&b->most, &most, inside, false,
                                                         __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
}

static lh_outcome until_lost(void *arg, lh_task *task, const lh_job *job)
{
    struct bench *b = arg;

    (void)job;
    enter(b);
    EVENTUALLY(lh_task_lost(task));
    __atomic_sub_fetch(&b->inside, 1, __ATOMIC_SEQ_CST);
    return LH_RAN_FAILED;
}

static void *work_in_thread(void *arg)
{
    struct bench *b = arg;
    return (void *)(intptr_t)work(b);
}

static int inside(const struct bench *b)
{
    return __atomic_load_n(&b->inside, __ATOMIC_SEQ_CST);
}

TEST(a_handler_learns_that_its_job_was_cancelled_and_a_stop_releases_the_other_jobs)
{
    struct bench b = bench_open(until_lost);
    pthread_t thread;
    void *rc;
    int64_t first = put(&b.shop, "q", "x"), second = put(&b.shop, "q", "y");
    b.opts.drain_pending = false;
    b.opts.jobs = 2;
    b.opts.heartbeat_ms = 500;
    b.opts.grace_ms = LH_NOW;
    EXPECT_EQ(pthread_create(&thread, NULL, work_in_thread, &b), 0);
    EVENTUALLY(inside(&b) == 2);
    cancel(&b.shop, first);
    EVENTUALLY(inside(&b) == 1);
    EXPECT_EQ(state_of(&b.shop, first), LH_CANCELLED);
    __atomic_store_n(&b.stop, 1, __ATOMIC_RELAXED);
    EXPECT_EQ(pthread_join(thread, &rc), 0);
    EXPECT_OK((int)(intptr_t)rc);
    EXPECT_EQ(state_of(&b.shop, second), LH_PENDING);
    EXPECT_EQ(look(&b.shop, second)->attempt, 0);
    EXPECT_EQ(b.tally.lost, 1);
    EXPECT_EQ(b.tally.released, 1);
    bench_close(&b);
}

TEST(a_handler_learns_that_its_timeout_has_passed)
{
    struct bench b = bench_open(until_lost);
    long_backoff(&b.shop);
    int64_t job = put(&b.shop, "q", "x");
    b.opts.timeout_ms = 50;
    EXPECT_OK(work(&b));
    EXPECT_EQ(state_of(&b.shop, job), LH_SCHEDULED);
    EXPECT_EQ(look(&b.shop, job)->attempt, 1);
    bench_close(&b);
}

/* ---------------------------------------------------------------- many */

static lh_outcome quick(void *arg, lh_task *task, const lh_job *job)
{
    struct bench *b = arg;

    enter(b);
    EXPECT_OK(lh_task_result(task, &job->id, sizeof job->id));
    __atomic_sub_fetch(&b->inside, 1, __ATOMIC_SEQ_CST);
    return LH_RAN_OK;
}

TEST(each_of_many_jobs_runs_once_on_several_threads)
{
    enum { MANY = SANITIZED ? 400 : 3000, THREADS = 4 };
    struct bench b = bench_open(quick);
    put_many(&b.shop, "q", MANY);
    b.opts.jobs = THREADS;
    b.opts.ahead = 100;
    int64_t since = now_ms();
    EXPECT_OK(work(&b));
    printf("%d jobs in %lld ms\n", MANY, (long long)(now_ms() - since));
    EXPECT_EQ(b.calls, MANY);
    EXPECT(b.most <= THREADS);
    EXPECT_EQ(b.tally.completed, MANY);
    EXPECT_EQ(count(&b.shop, LH_COMPLETED), MANY);
    EXPECT_EQ(*(const int64_t *)look(&b.shop, 7)->result, 7);
    bench_close(&b);
}

/* ---------------------------------------------------------------- no memory */

static lh_outcome careless(void *arg, lh_task *task, const lh_job *job)
{
    (void)arg;
    (void)job;
    (void)lh_task_stage(task, "stage");
    (void)lh_task_progress(task, 10);
    (void)lh_task_checkpoint(task, "{}");
    (void)lh_task_error(task, "why");
    (void)lh_task_result(task, "result", 6);
    return LH_RAN_OK;
}

static void arm(int64_t nth)
{
    struct lhi_control *control = lhi_control();

    __atomic_store_n(&control->fail_at[LHI_FAULT_ALLOC], 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&control->calls[LHI_FAULT_ALLOC], 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&control->fail_at[LHI_FAULT_ALLOC], nth, __ATOMIC_SEQ_CST);
}

static bool fired(int64_t nth)
{
    return __atomic_load_n(&lhi_control()->calls[LHI_FAULT_ALLOC], __ATOMIC_SEQ_CST) >= nth;
}

/* The worker ends after any failed allocation, and the next worker can do what it left. */
TEST_TIMEOUT(every_allocation_of_a_worker_may_fail, 120)
{
    struct bench b = bench_open(careless);
    int64_t nth = 1, jobs = 0;
    int step = getenv("TEST_THOROUGH") != NULL ? 1 : 5;

    b.opts.jobs = 2;
    b.opts.ahead = 1;
    b.opts.lease_ms = 60000;
    for (bool more = true; more; nth += step) {
        put_many(&b.shop, "q", 3);
        jobs += 3;
        arm(nth);
        int rc = work(&b);
        more = fired(nth);
        arm(0);
        EXPECT_EQ(b.running_at_end, 0);
        if (rc != LH_OK && b.error[0] == '\0')
            FAIL("allocation %lld: %s, and no word why", (long long)nth, lh_status_name(rc));
        rc = work(&b);
        if (rc != LH_OK || count(&b.shop, LH_COMPLETED) != jobs)
            FAIL("allocation %lld: %s, completed %lld of %lld: %s", (long long)nth,
                 lh_status_name(rc), (long long)count(&b.shop, LH_COMPLETED), (long long)jobs,
                 b.error);
    }
    printf("%lld allocations\n", (long long)nth);
    EXPECT(nth > 20);
    bench_close(&b);
}

static lh_outcome never(void *arg, lh_task *task, const lh_job *job)
{
    (void)arg;
    (void)task;
    FAIL("job %lld was run", (long long)job->id);
}

TEST(a_handler_is_not_called_for_a_queue_that_is_paused)
{
    struct bench b = bench_open(never);
    (void)put(&b.shop, "q", "x");
    EXPECT_OK(lh_queue_pause(b.shop.store, "q"));
    EXPECT_OK(work(&b));
    EXPECT_EQ(count(&b.shop, LH_PENDING), 1);
    bench_close(&b);
}
