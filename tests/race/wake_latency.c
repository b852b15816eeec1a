/*
 * The time from the death of a worker, or from the expiry of a lease, until another worker has the job. A waiting
 * worker is woken by the kernel, or sleeps until the deadline; none depends on the poll of a second.
 */
#include "race/worker_processes.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const lh_worker_opts process = {.process = true};

enum { KILLS = 30 };

static int by_size(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return a < b ? -1 : a > b;
}

/* On SQLite no poll ends a wait here, so the test came to its end because each waiter was woken. On
 * PostgreSQL a waiter that only the poll wakes takes nearly a second every time, because it begins its
 * wait just before the event. */
static void expect_soon(const char *what, int64_t *took_ns, size_t n)
{
    qsort(took_ns, n, sizeof *took_ns, by_size);
    int64_t median_ns = took_ns[n / 2];
    (void)fprintf(stderr, "%s: median %.1f ms, longest %.1f ms of %zu\n", what,
                  (double)median_ns / 1e6, (double)took_ns[n - 1] / 1e6, n);
    EXPECT(!test_store_is_postgres() || median_ns < 500000000);
}

/* A store in which only wake-ups end a wait. */
static lh_store *open_without_polls(void)
{
    clock_start();
    polls_stop();
    return crew_open();
}

TEST_TIMEOUT(a_waiting_worker_gets_the_job_of_a_killed_worker_without_a_poll, 60)
{
    int64_t took_ns[KILLS];
    lh_store *store = open_without_polls();
    struct hand next = hand_start(&store, "next", &process);
    for (int i = 0; i < KILLS; i++) {
        struct hand worker = hand_start(&store, "w-1", &process);
        int64_t job = ask(&worker, HOLD).job;
        tell(&next, WAIT);
        EXPECT(test_process_sleeps(next.pid));
        int64_t killed_ns = now_ns();
        hand_kill(&worker);
        struct answer claimed = hear(&next);
        EXPECT_OK(claimed.status);
        EXPECT_EQ(claimed.job, job);
        EXPECT_EQ(job_now(store, job).recoveries, 1);
        took_ns[i] = claimed.at_ns - killed_ns;
        EXPECT_OK(ask(&next, COMPLETE).status);
        hand_reap(&worker);
    }
    expect_soon("from SIGKILL to claimed", took_ns, KILLS);
    hand_quit(&next);
    expect_sound(store);
    lh_close(store);
}

TEST_TIMEOUT(waiting_maintenance_notices_a_death_without_a_poll, 60)
{
    int64_t took_ns[KILLS];
    lh_store *store = open_without_polls();
    for (int i = 0; i < KILLS; i++) {
        struct hand worker = hand_start(&store, "w-1", &process);
        (void)ask(&worker, HOLD);
        lh_maintained done;
        pid_t killer = test_fork(); /* while this process waits */
        int64_t began_ns = now_ns();
        if (killer == 0) {
            EXPECT(test_process_sleeps(getppid()));
            hand_kill(&worker);
            test_child_done();
        }
        do
            EXPECT_OK(lh_maintain(store, &(lh_maintain_opts){.wait_ms = -1}, &done));
        while (done.dead_workers == 0);
        EXPECT_EQ(done.recovered, 1);
        took_ns[i] = now_ns() - began_ns - 20000000;
        (void)test_wait(killer);
        hand_reap(&worker);
    }
    expect_soon("from SIGKILL to recovered", took_ns, KILLS);
    lh_close(store);
}

TEST_TIMEOUT(a_waiting_worker_gets_a_job_without_a_poll_when_its_lease_expires, 60)
{
    enum { LEASE_MS = 60 };
    int64_t took_ns[KILLS];
    const char *queue = "q";
    lh_store *store = open_without_polls();
    struct hand next = hand_start(&store, "next", NULL);
    for (int i = 0; i < KILLS; i++) {
        lh_enqueued out;
        lh_jobs *jobs = NULL;
        EXPECT_OK(lh_enqueue(store, queue, &(lh_new_job){0}, 1, NULL, &out));
        lh_claim_opts opts = {
            .queues = &queue, .n_queues = 1, .worker = "slow", .lease_ms = LEASE_MS};
        int64_t before_ns = now_ns();
        EXPECT_OK(lh_claim(store, &opts, &jobs));
        tell(&next, WAIT);
        struct answer claimed = hear(&next);
        EXPECT_EQ(claimed.job, out.id);
        took_ns[i] = claimed.at_ns - before_ns - LEASE_MS * INT64_C(1000000);
        EXPECT(took_ns[i] > -2000000); /* not before the lease expired */
        EXPECT_OK(ask(&next, COMPLETE).status);
        lh_jobs_free(jobs);
    }
    expect_soon("from the end of a lease to claimed", took_ns, KILLS);
    hand_quit(&next);
    lh_close(store);
}

TEST(the_lease_of_a_waiting_claim_counts_from_the_end_of_the_wait)
{
    lh_store *store = crew_open();
    lh_enqueued out;
    lh_jobs *jobs = NULL;
    const char *queue = "q";
    lh_claim_opts opts = {
        .queues = &queue, .n_queues = 1, .worker = "w-1", .lease_ms = 60000, .wait_ms = -1};
    lh_new_job later = {.payload = "x", .payload_len = 1, .delay_ms = 300};
    int64_t before = now_ns() / 1000000;
    EXPECT_OK(lh_enqueue(store, "q", &later, 1, NULL, &out));
    EXPECT_OK(lh_claim(store, &opts, &jobs));
    EXPECT(jobs->asked_mono_ms >= before + 250); /* wall and elapsed time may differ a little */
    EXPECT(jobs->asked_mono_ms <= now_ns() / 1000000);
    lh_jobs_free(jobs);
    lh_close(store);
}
