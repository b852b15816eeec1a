/* A suspended machine: on a server the leases of its workers continue to run; in a file they
 * stop with the machine. */
#include "harness/harness.h"

#include "base/hook.h"

#include <leasehold.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { HOUR_MS = 3600000, PATIENCE = 10000 };

struct shift {
    lh_store *store;
    int64_t heartbeat_ms;
    int running, go, lost; /* shared, atomic */
    pthread_t worker;
};

static void raise_flag(int *flag)
{
    __atomic_store_n(flag, 1, __ATOMIC_RELAXED);
}

static bool raised(const int *flag)
{
    return __atomic_load_n(flag, __ATOMIC_RELAXED) != 0;
}

static lh_outcome until_lost(void *arg, lh_task *task, const lh_job *job)
{
    struct shift *shift = arg;

    (void)job;
    raise_flag(&shift->running);
    while (!lh_task_lost(task) && !raised(&shift->go))
        (void)usleep(1000);
    if (lh_task_lost(task))
        raise_flag(&shift->lost);
    return LH_RAN_OK;
}

static void *work(void *arg)
{
    static const char *const queue = "q";
    struct shift *shift = arg;
    lh_work_tally tally;
    lh_work_opts opts = {.queues = &queue,
                         .n_queues = 1,
                         .handler = until_lost,
                         .handler_arg = shift,
                         .lease_ms = 60000,
                         .heartbeat_ms = shift->heartbeat_ms,
                         .once = true};
    (void)lh_worker_run(shift->store, &opts, &tally, NULL, 0);
    return NULL;
}

/* Waits until the flag is set; a busy machine may need some time. */
static void expect_soon(const int *flag)
{
    for (int i = 0; i < PATIENCE && !raised(flag); i++)
        (void)usleep(1000);
    EXPECT(raised(flag));
}

/* A worker has begun its job; then the machine is suspended for an hour. */
static void fall_asleep(struct shift *shift, const char *url)
{
    lh_enqueued out;

    EXPECT_OK(lh_open(url, &(lh_open_opts){.create = true}, &shift->store));
    EXPECT_OK(lh_enqueue(shift->store, "q", &(lh_new_job){.payload = "x", .payload_len = 1}, 1,
                         NULL, &out));
    EXPECT_EQ(pthread_create(&shift->worker, NULL, work, shift), 0);
    expect_soon(&shift->running);
    __atomic_store_n(&lhi_control()->slept_ms, HOUR_MS, __ATOMIC_RELAXED);
}

static void wake_up(struct shift *shift)
{
    raise_flag(&shift->go);
    EXPECT_EQ(pthread_join(shift->worker, NULL), 0);
    lh_close(shift->store);
}

static int64_t heard_of(struct shift *shift)
{
    lh_jobs *jobs = NULL;

    EXPECT_OK(lh_job_list(shift->store, &(lh_job_filter){.queue = "q", .limit = 1}, &jobs));
    int64_t at = jobs->job[0].last_heartbeat_at;
    lh_jobs_free(jobs);
    return at;
}

TEST_TIMEOUT(a_worker_on_postgres_stops_its_job_after_a_suspend_past_its_lease, 60)
{
    struct shift shift = {.heartbeat_ms = 20000}; /* no heartbeat comes in between */
    fall_asleep(&shift, test_store());
    EXPECT_EQ(lh_store_clock(shift.store), CLOCK_BOOTTIME);
    expect_soon(&shift.lost);
    wake_up(&shift);
}

TEST_TIMEOUT(a_worker_on_sqlite_keeps_its_lease_during_a_suspend, 60)
{
    struct shift shift = {.heartbeat_ms = 100};
    fall_asleep(&shift, "store.db");
    EXPECT_EQ(lh_store_clock(shift.store), CLOCK_MONOTONIC);
    int64_t before = heard_of(&shift);
    for (int i = 0; i < PATIENCE && heard_of(&shift) < before + 200; i++)
        (void)usleep(1000);
    EXPECT(heard_of(&shift) >= before + 200);
    EXPECT(!raised(&shift.lost));
    wake_up(&shift);
}
