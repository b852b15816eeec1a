/* Restores while processes claim, complete and take leases. Their results must be possible: every
 * (job, token) and every token of a lease is issued once, and no worker gets a job while an earlier
 * holder, in either store, may still be running it. */
#include "store/copies.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 4, MOST = 200000, JOBS = 400, LEASE_MS = 250, ROUNDS = 12 };

struct entry {
    int64_t job, token; /* job 0: a named lease */
    /* answer_ns: when the holder was done; 0: it never answered */
    int64_t call_ns, return_ns, answer_ns;
};

struct shared {
    bool stop;
    int64_t reopened;
    size_t n[WORKERS];
    struct entry entry[WORKERS][MOST];
};

static int64_t now_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void pause_ms(long ms)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* ---- a worker ---- */

/* The store was replaced, or is being replaced: open it again. */
static bool is_over(int rc)
{
    return rc == LH_ESTOPPED || rc == LH_EUNKNOWN || rc == LH_EBUSY;
}

static lh_store *open_anew(void)
{
    for (;;) {
        lh_store *store = NULL;
        int rc = lh_open("store.db", NULL, &store);
        if (rc == LH_OK)
            return store;
        if (!is_over(rc))
            FAIL("could not open: %s: %s", lh_status_name(rc), lh_errmsg(store));
        lh_close(store);
    }
}

static struct entry *note(struct shared *shared, int me, struct entry entry)
{
    EXPECT(shared->n[me] < MOST);
    struct entry *place = &shared->entry[me][shared->n[me]];

    *place = entry;
    __atomic_add_fetch(&shared->n[me], 1, __ATOMIC_RELEASE);
    return place;
}

static int claim_some(struct shared *shared, int me, lh_store *store, const char *name)
{
    const char *queue = "q";
    lh_jobs *jobs = NULL;
    int64_t call_ns = now_ns();
    int rc =
        lh_claim(store,
                 &(lh_claim_opts){
                     .queues = &queue, .n_queues = 1, .worker = name, .n = 5, .lease_ms = LEASE_MS},
                 &jobs);

    for (size_t i = 0; rc == LH_OK && i < jobs->n; i++) {
        lh_job *job = &jobs->job[i];
        struct entry *entry = note(
            shared, me,
            (struct entry){
                .job = job->id, .token = job->token, .call_ns = call_ns, .return_ns = now_ns()});
        if (job->token % 3 == 0)
            continue; /* keep the job until its lease ends */
        entry->answer_ns = now_ns();
        int ended = complete(store, job);
        if (is_over(ended)) {
            /* The answer reached no store, unless the outcome is unknown. */
            if (ended != LH_EUNKNOWN)
                entry->answer_ns = 0;
            rc = ended;
        } else if (ended != LH_OK && ended != LH_ELOST) {
            FAIL("complete: %s: %s", lh_status_name(ended), lh_errmsg(store));
        }
    }
    lh_jobs_free(jobs);
    return rc == LH_EMPTY ? LH_OK : rc;
}

static int lease_once(struct shared *shared, int me, lh_store *store, const char *name)
{
    lh_leases *lease = NULL;
    lh_lease_opts opts = {.owner = name, .ttl_ms = 1000};
    int rc = lh_lease_acquire(store, "race", "lock", &opts, &lease);

    if (rc == LH_OK) {
        (void)note(shared, me, (struct entry){.token = lease->lease[0].token});
        lh_leases_free(lease);
        rc = lh_lease_release(store, "race", "lock", &opts, NULL);
    }
    return rc == LH_EHELD ? LH_OK : rc;
}

static void work(struct shared *shared, int me)
{
    char name[32];
    lh_store *store = open_anew();

    (void)snprintf(name, sizeof name, "w-%d", me);
    while (!__atomic_load_n(&shared->stop, __ATOMIC_RELAXED)) {
        int rc = claim_some(shared, me, store, name);
        if (rc == LH_OK)
            rc = lease_once(shared, me, store, name);
        if (is_over(rc)) {
            __atomic_add_fetch(&shared->reopened, 1, __ATOMIC_RELAXED);
            lh_close(store);
            store = open_anew();
        } else if (rc != LH_OK) {
            FAIL("%s: %s", lh_status_name(rc), lh_errmsg(store));
        }
    }
    lh_close(store);
}

/* ---- is the history possible? ---- */

static int by_job_and_token(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;

    if (a->job != b->job)
        return a->job < b->job ? -1 : 1;
    return a->token < b->token ? -1 : a->token > b->token;
}

/* When the holder of this claim is certainly done. The store's clock has whole milliseconds, and so
 * has the rest of a lease that is carried over. */
static int64_t end_ns(const struct entry *e)
{
    int64_t lease_end = e->call_ns + INT64_C(1000000) * (LEASE_MS - 2);
    return e->answer_ns != 0 && e->answer_ns < lease_end ? e->answer_ns : lease_end;
}

static void check(struct shared *shared)
{
    size_t n = 0, claims = 0;
    struct entry *all = malloc(sizeof *all * WORKERS * MOST);

    EXPECT(all != NULL);
    for (int i = 0; i < WORKERS; i++) {
        memcpy(all + n, shared->entry[i], shared->n[i] * sizeof *all);
        n += shared->n[i];
    }
    qsort(all, n, sizeof *all, by_job_and_token);
    for (size_t i = 0; i < n; i++) {
        claims += all[i].job != 0;
        if (i == 0 || all[i - 1].job != all[i].job)
            continue;
        if (all[i - 1].token == all[i].token)
            FAIL("token %lld of job %lld was handed out twice", (long long)all[i].token,
                 (long long)all[i].job);
        if (all[i].job != 0 && all[i].return_ns < end_ns(&all[i - 1]))
            FAIL("job %lld was handed out as %lld while %lld was held, %lld us too early",
                 (long long)all[i].job, (long long)all[i].token, (long long)all[i - 1].token,
                 (long long)((end_ns(&all[i - 1]) - all[i].return_ns) / 1000));
    }
    (void)fprintf(stderr, "%zu claims, %zu leases, opened anew %lld times\n", claims, n - claims,
                  (long long)shared->reopened);
    EXPECT(claims > JOBS && n - claims > 0);
    free(all);
}

/* ---- the race ---- */

static lh_store *many_jobs(void)
{
    lh_store *store = store_new();

    EXPECT_OK(lh_policy_set(store, "q", NULL,
                            &(lh_policy){.set = LH_POLICY_MAX_ATTEMPTS | LH_POLICY_MAX_RECOVERIES,
                                         .max_attempts = LH_UNLIMITED,
                                         .max_recoveries = LH_UNLIMITED},
                            0));
    for (int i = 0; i < JOBS; i++)
        add(store, "q", "x");
    backup(store, "first.db", (lh_backup_opts){0});
    return store;
}

/* At least one worker has noticed that the store was replaced, even on a busy machine. */
static void wait_for_reopening(const struct shared *shared, int64_t before)
{
    while (__atomic_load_n(&shared->reopened, __ATOMIC_ACQUIRE) <= before)
        pause_ms(1);
}

/* Restore repeatedly, a copy of now or of the beginning, by `how`. */
static void race(void (*how)(const char *copy, int round))
{
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t worker[WORKERS];
    lh_store *store = many_jobs();

    EXPECT(shared != MAP_FAILED);
    for (int i = 0; i < WORKERS; i++)
        if ((worker[i] = test_fork_reopening(&store, open_anew)) == 0) {
            work(shared, i);
            test_child_done();
        }
    for (int round = 0; round < ROUNDS; round++) {
        int64_t epoch = info_of(store).epoch;
        int64_t reopened = __atomic_load_n(&shared->reopened, __ATOMIC_ACQUIRE);
        if (round % 3 != 0)
            backup(store, "copy.db", (lh_backup_opts){.replace = true});
        lh_close(store);
        pause_ms(40);
        how(round % 3 != 0 ? "copy.db" : "first.db", round);
        store = open_anew();
        EXPECT(info_of(store).epoch > epoch);
        store_check(store);
        wait_for_reopening(shared, reopened);
        pause_ms(60);
    }
    __atomic_store_n(&shared->stop, true, __ATOMIC_RELAXED);
    for (int i = 0; i < WORKERS; i++)
        EXPECT_EQ(test_wait(worker[i]).code, 0);
    EXPECT(shared->reopened >= ROUNDS);
    check(shared);
    store_check(store);
    lh_close(store);
}

static void restore_whole(const char *copy, int round)
{
    (void)round;
    restore(copy);
}

TEST_TIMEOUT(restores_under_load_hand_nothing_out_twice_and_nothing_too_early, 60)
{
    race(restore_whole);
}

/* The restore is killed half-way. A worker or the next restore finds what is left and finishes
 * it. */
static void restore_killed(const char *copy, int round)
{
    static const char *const points[] = {"restore:made", "swap:linked", "swap:aside", "swap:marked",
                                         "swap:renamed"};
    pid_t child = test_fork();

    if (child == 0) {
        (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "%s",
                       points[round % 5]);
        restore(copy);
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).sig, SIGKILL);
    pause_ms(round % 2 != 0 ? 30 : 0);
    restore(copy);
}

TEST_TIMEOUT(restores_that_are_killed_under_load_do_no_more_harm, 60)
{
    race(restore_killed);
}
