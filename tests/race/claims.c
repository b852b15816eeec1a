/* Eight processes claim and complete 100,000 jobs, undisturbed and with some of them dying. */
#include "race/history.h"
#include "race/sizes.h"
#include "race/worker_processes.h"

#include "harness/harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 8, BATCH_MAX = 100, LEASE_MS = 300, MANY = 1000 };

static lh_store *open_store(struct history *history)
{
    crew_log = history_log;
    crew_log_arg = history;
    return crew_open();
}

static void enqueue_many(lh_store *store, int64_t n)
{
    static lh_new_job jobs[MANY];
    static lh_enqueued out[MANY];

    for (int i = 0; i < MANY; i++)
        jobs[i] = (lh_new_job){.payload = "work", .payload_len = 4};
    for (int64_t done = 0; done < n; done += MANY)
        EXPECT_OK(lh_enqueue(store, "q", jobs, MANY, NULL, out));
}

static void pause_ms(long ms)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* ---------------------------------------------------------------- a worker */

static void note_claims(struct history *history, int me, const lh_jobs *jobs, int64_t call_ns)
{
    int64_t now = history_now();

    for (size_t i = 0; i < jobs->n; i++)
        history_add(history, me,
                    &(struct entry){.job = jobs->job[i].id,
                                    .token = jobs->job[i].token,
                                    .call_ns = call_ns,
                                    .return_ns = now});
}

static void note_completes(struct history *history, int me, const lh_done *done, size_t n,
                           const int *status, int64_t call_ns)
{
    int64_t now = history_now();

    for (size_t i = 0; i < n; i++) {
        if (status[i] != LH_OK && status[i] != LH_ELOST)
            FAIL("complete: %s", lh_status_name(status[i]));
        history_add(history, me,
                    &(struct entry){.job = done[i].job,
                                    .token = done[i].token,
                                    .call_ns = call_ns,
                                    .return_ns = now,
                                    .complete = true,
                                    .status = status[i]});
    }
}

/* Now and then a worker takes its time, and now and then too much of it: it comes back with jobs
 * that another one holds by then. */
static void dawdle(unsigned *dice)
{
    *dice = *dice * 1103515245U + 12345U;
    unsigned roll = (*dice >> 16) % 100;
    if (roll < 2)
        pause_ms(LEASE_MS + 10 + (long)(*dice >> 8) % 80);
    else if (roll < 10)
        pause_ms(20 + (long)(*dice >> 8) % 80);
}

static void work(struct history *history, int me, int64_t lease_ms)
{
    const char *queue = "q";
    char name[32];
    lh_done done[BATCH_MAX];
    int status[BATCH_MAX];
    size_t held = 0;
    unsigned rounds = (unsigned)getpid(), dice = rounds * 2654435761U;

    history_watch_locks(history);
    lh_store *store = open_store(history);
    (void)snprintf(name, sizeof name, "w-%d-%d", me, (int)getpid());
    for (;;) {
        lh_jobs *jobs = NULL;
        size_t n = 10 + rounds++ * 37 % (BATCH_MAX - 9);
        bool stop = __atomic_load_n(&history->stop, __ATOMIC_RELAXED);
        lh_claim_opts opts = {.queues = &queue,
                              .n_queues = 1,
                              .worker = name,
                              .n = n,
                              .lease_ms = lease_ms,
                              .wait_ms = stop ? 0 : 20};
        int64_t call_ns = history_now();
        int rc = lh_complete_claim(store, done, held, status, &opts, &jobs);
        if (rc != LH_OK && rc != LH_EMPTY)
            FAIL("claim: %s: %s", lh_status_name(rc), lh_errmsg(store));
        note_completes(history, me, done, held, status, call_ns);
        held = 0;
        if (rc == LH_OK)
            note_claims(history, me, jobs, call_ns);
        for (size_t i = 0; rc == LH_OK && i < jobs->n; i++)
            done[held++] = (lh_done){.job = jobs->job[i].id, .token = jobs->job[i].token};
        lh_jobs_free(jobs);
        if (stop && held == 0)
            break;
        if (lease_ms == LEASE_MS && !stop)
            dawdle(&dice);
    }
    lh_close(store);
}

/* Read-only, because a worker may be suspended while it has the writer lock. */
static lh_store *open_to_read(void)
{
    lh_store *store = NULL;
    int rc =
        lh_open(test_store(), &(lh_open_opts){.read_only = true, .busy_ms = TEST_BUSY_MS}, &store);

    if (rc != LH_OK)
        FAIL("%s: %s", lh_status_name(rc), lh_errmsg(store));
    return store;
}

static pid_t start_worker(lh_store **store, struct history *history, int me, int64_t lease_ms)
{
    pid_t pid = test_fork_reopening(store, open_to_read);
    if (pid == 0) {
        work(history, me, lease_ms);
        test_child_done();
    }
    return pid;
}

static int64_t completed(lh_store *store)
{
    lh_queues *queues = NULL;
    EXPECT_OK(lh_queue_list(store, &queues));
    int64_t n = queues->queue[0].completed;
    lh_queues_free(queues);
    return n;
}

/* ---------------------------------------------------------------- undisturbed */

TEST_TIMEOUT(eight_processes_hand_out_every_job_once, 120)
{
    struct history *history = history_new();
    pid_t worker[WORKERS];

    lh_store *store = open_store(history);
    enqueue_many(store, race_jobs());
    for (int i = 0; i < WORKERS; i++)
        worker[i] = start_worker(&store, history, i, 0);
    while (completed(store) < race_jobs()) {
        int status;
        pause_ms(20);
        /* No worker exits before the end. */
        if (waitpid(-1, &status, WNOHANG) > 0)
            FAIL("a worker has failed");
    }
    __atomic_store_n(&history->stop, true, __ATOMIC_RELAXED);
    for (int i = 0; i < WORKERS; i++)
        EXPECT_EQ(test_wait(worker[i]).code, 0);
    for (int i = 0; i < WORKERS; i++)
        for (size_t k = 0; k < history->place[i].n; k++) {
            EXPECT_EQ(history->place[i].entry[k].token, 1); /* no worker died: one lease each */
            EXPECT_EQ(history->place[i].entry[k].status, LH_OK);
        }
    history_check(history, store, "q", race_jobs(), 300000);
    /* The writer lock keeps all of them from waiting for locks of SQLite. */
    EXPECT_EQ(history->busy, 0);
    lh_close(store);
}

/* ---------------------------------------------------------------- with deaths */

struct troupe {
    struct history *history;
    lh_store *store;
    pid_t pid[WORKERS];
    int64_t stopped_until[WORKERS]; /* ns; 0: runs */
    int kills, stops;
};

static void kill_one(struct troupe *t, int i)
{
    int status;

    EXPECT_EQ(kill(t->pid[i], SIGKILL), 0);
    EXPECT_EQ(waitpid(t->pid[i], &status, 0), t->pid[i]);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        FAIL("a worker had failed before it was killed");
    t->pid[i] = start_worker(&t->store, t->history, i, LEASE_MS);
    t->stopped_until[i] = 0;
    t->kills++;
}

/* Kill a worker, or suspend it for longer than its lease. */
static void disturb(struct troupe *t)
{
    int64_t now = history_now();
    int i = rand() % WORKERS;

    if (t->stopped_until[i] == 0 && rand() % 3 == 0) {
        EXPECT_EQ(kill(t->pid[i], SIGSTOP), 0);
        t->stopped_until[i] = now + INT64_C(1000000) * (LEASE_MS + 50 + rand() % 100);
        t->stops++;
    } else {
        kill_one(t, i);
    }
}

static void wake_up(struct troupe *t)
{
    int64_t now = history_now();

    for (int i = 0; i < WORKERS; i++)
        if (t->stopped_until[i] != 0 && t->stopped_until[i] <= now) {
            EXPECT_EQ(kill(t->pid[i], SIGCONT), 0);
            t->stopped_until[i] = 0;
        }
}

TEST_TIMEOUT(killed_and_stalled_workers_lose_no_job_and_complete_none_twice, 120)
{
    struct troupe t = {.history = history_new()};
    unsigned seed = (unsigned)time(NULL);
    int64_t done, before = -1;

    (void)fprintf(stderr, "seed %u\n", seed);
    srand(seed);
    t.store = open_store(t.history);
    /* The number of attempts does not matter here. */
    EXPECT_OK(lh_policy_set(t.store, "q", NULL,
                            &(lh_policy){.set = LH_POLICY_MAX_ATTEMPTS | LH_POLICY_MAX_RECOVERIES,
                                         .max_attempts = LH_UNLIMITED,
                                         .max_recoveries = LH_UNLIMITED},
                            0));
    enqueue_many(t.store, race_jobs());
    for (int i = 0; i < WORKERS; i++)
        t.pid[i] = start_worker(&t.store, t.history, i, LEASE_MS);
    while ((done = completed(t.store)) < race_jobs()) {
        pause_ms(10);
        wake_up(&t);
        /* Workers are not disturbed at the end, so that they finish, and not while they start. */
        if (done >= race_jobs() * 9 / 10)
            for (int i = 0; i < WORKERS; i++)
                (void)kill(t.pid[i], SIGCONT);
        else if (done > before)
            disturb(&t);
        before = done;
    }
    __atomic_store_n(&t.history->stop, true, __ATOMIC_RELAXED);
    for (int i = 0; i < WORKERS; i++)
        EXPECT_EQ(test_wait(t.pid[i]).code, 0);
    (void)fprintf(stderr, "%d killed, %d stopped\n", t.kills, t.stops);
    EXPECT(t.kills >= 5 && t.stops >= 2);
    history_check(t.history, t.store, "q", race_jobs(), LEASE_MS);
    lh_close(t.store);
}
