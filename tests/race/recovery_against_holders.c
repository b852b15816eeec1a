/*
 * Recovery against holders: each lease is ended once, by the holder or by a recovery, in threads and in
 * processes. And many leases that expire at the same time, while other processes claim.
 */
#include "race/sizes.h"
#include "race/worker_processes.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---------------------------------------------------------------- one end for each lease */

enum { JOBS = 60, HOLDERS = 2, THREADS = 2, ROUNDS = 40 * RACE_SCALE, MOST_LEASES = 200000 };

/* The outcome of each lease, as its holder saw it. */
struct outcome {
    int64_t job, token;
    char end[16]; /* the event that its end records; "": the call returned LH_ELOST */
};

struct ledger {
    int stop;
    int n;
    struct outcome outcome[MOST_LEASES];
};

static struct ledger *ledger_new(void)
{
    struct ledger *ledger = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT(ledger != MAP_FAILED);
    return ledger;
}

static void note(struct ledger *ledger, const lh_job *job, int status, const char *end)
{
    int at = __atomic_fetch_add(&ledger->n, 1, __ATOMIC_SEQ_CST);
    EXPECT(at < MOST_LEASES);
    struct outcome *o = &ledger->outcome[at];
    o->job = job->id;
    o->token = job->token;
    if (status != LH_OK && status != LH_ELOST)
        FAIL("job %lld: %s", (long long)job->id, lh_status_name(status));
    (void)snprintf(o->end, sizeof o->end, "%s", status == LH_OK ? end : "");
}

/* A heartbeat, and then one of three ends; a recovery may happen between any two of them. */
static void end_lease(lh_store *store, struct ledger *ledger, const lh_job *job, unsigned dice)
{
    lh_beat beat = {.job = job->id, .token = job->token};
    lh_done done = {.job = job->id, .token = job->token};
    lh_failure failure = {
        .job = job->id, .token = job->token, .error = "no", .retry_in_ms = LH_NOW};
    lh_ref ref = {.job = job->id, .token = job->token};

    int beaten = lh_heartbeat(store, &beat, 1, NULL, NULL);
    int rc = dice % 8 == 0   ? lh_complete(store, &done, 1, NULL, NULL)
             : dice % 2 == 0 ? lh_fail(store, &failure, 1, NULL, NULL)
                             : lh_release(store, &ref, 1, 0, NULL, NULL);
    if (beaten != LH_OK)
        EXPECT_STATUS(rc, LH_ELOST); /* a lost lease stays lost */
    note(ledger, job, rc,
         dice % 8 == 0   ? "job.completed"
         : dice % 2 == 0 ? "job.failed"
                         : "job.released");
}

struct holder {
    pthread_t thread;
    lh_store *store;
    struct ledger *ledger;
    unsigned dice;
    char name[32];
};

static void *claim_and_end(void *arg)
{
    struct holder *h = arg;
    const char *queue = "q";

    for (int i = 0; i < ROUNDS; i++) {
        lh_jobs *jobs = NULL;
        lh_claim_opts opts = {.queues = &queue, .n_queues = 1, .worker = h->name, .n = 3};
        int rc = lh_claim(h->store, &opts, &jobs);
        EXPECT(rc == LH_OK || rc == LH_EMPTY);
        for (size_t k = 0; rc == LH_OK && k < jobs->n; k++) {
            h->dice = h->dice * 1103515245U + 12345U;
            end_lease(h->store, h->ledger, &jobs->job[k], h->dice >> 16);
        }
        lh_jobs_free(jobs);
    }
    return NULL;
}

/* Several threads on one handle. */
static void hold_and_end(struct ledger *ledger, int me)
{
    struct holder holders[THREADS];
    lh_store *store = crew_open();

    for (int i = 0; i < THREADS; i++) {
        holders[i] = (struct holder){
            .store = store, .ledger = ledger, .dice = (unsigned)(me * THREADS + i) * 2654435761U};
        (void)snprintf(holders[i].name, sizeof holders[i].name, "h-%d-%d", me, i);
        EXPECT_EQ(pthread_create(&holders[i].thread, NULL, claim_and_end, &holders[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(holders[i].thread, NULL);
    lh_close(store);
}

/* Recover all running jobs, with live holders too. */
static void recover_all_the_time(const struct ledger *ledger)
{
    lh_store *store = crew_open();
    lh_recover_opts all = {.by_age = true, .now = true};

    while (!__atomic_load_n(&ledger->stop, __ATOMIC_SEQ_CST))
        EXPECT_OK(lh_recover(store, &all, NULL));
    lh_close(store);
}

static void fill(lh_store *store)
{
    static lh_new_job jobs[JOBS];
    static lh_enqueued out[JOBS];
    lh_policy policy = {.set = LH_POLICY_AUDIT | LH_POLICY_MAX_RECOVERIES,
                        .audit = LH_AUDIT_FULL,
                        .max_recoveries = LH_UNLIMITED};

    for (int i = 0; i < JOBS; i++)
        jobs[i].max_attempts = LH_UNLIMITED;
    EXPECT_OK(lh_policy_set(store, "q", NULL, &policy, 0));
    EXPECT_OK(lh_enqueue(store, "q", jobs, JOBS, NULL, out));
}

static bool ends_a_lease(const char *type)
{
    return strcmp(type, "job.completed") == 0 || strcmp(type, "job.failed") == 0 ||
           strcmp(type, "job.retried") == 0 || strcmp(type, "job.released") == 0 ||
           strcmp(type, "job.recovered") == 0;
}

/* The recorded end of (job, token); NULL: none. Two ends fail the test. */
static const char *end_of(const lh_events *events, int64_t token)
{
    const char *end = NULL;

    for (size_t i = 0; i < events->n; i++) {
        const lh_event *event = &events->event[i];
        if (event->token != token || !ends_a_lease(event->type))
            continue;
        if (end != NULL)
            FAIL("job %lld: token %lld ended twice: %s, %s", (long long)event->job,
                 (long long)token, end, event->type);
        end = event->type;
    }
    return end;
}

static void check_ledger(lh_store *store, const struct ledger *ledger, int *lost, int *ended)
{
    for (int64_t job = 1; job <= JOBS; job++) {
        lh_events *events = NULL;
        EXPECT_OK(lh_event_list(store, &(lh_event_filter){.job = job, .limit = 10000}, &events));
        for (int i = 0; i < ledger->n; i++) {
            const struct outcome *o = &ledger->outcome[i];
            if (o->job != job)
                continue;
            const char *end = end_of(events, o->token);
            EXPECT_STR(end, o->end[0] != '\0' ? o->end : "job.recovered");
            *(o->end[0] != '\0' ? ended : lost) += 1;
        }
        lh_events_free(events);
    }
}

TEST_TIMEOUT(each_lease_is_ended_once_by_its_holder_or_by_a_recovery, 120)
{
    struct ledger *ledger = ledger_new();
    pid_t holders[HOLDERS], recoverers[2];
    int lost = 0, ended = 0;
    lh_store *store = crew_open();

    fill(store);
    for (int i = 0; i < HOLDERS; i++)
        if ((holders[i] = test_fork_reopening(&store, crew_open)) == 0) {
            hold_and_end(ledger, i);
            test_child_done();
        }
    for (int i = 0; i < 2; i++)
        if ((recoverers[i] = test_fork_reopening(&store, crew_open)) == 0) {
            recover_all_the_time(ledger);
            test_child_done();
        }
    for (int i = 0; i < HOLDERS; i++)
        EXPECT_EQ(test_wait(holders[i]).code, 0);
    __atomic_store_n(&ledger->stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(test_wait(recoverers[i]).code, 0);
    check_ledger(store, ledger, &lost, &ended);
    (void)fprintf(stderr, "%d leases ended by their holders, %d by a recovery\n", ended, lost);
    EXPECT(lost > 0 && ended > 0); /* both sides won at least once */
    expect_sound(store);
    lh_close(store);
}

/* ---------------------------------------------------------------- many at once */

enum { CLAIMS = 200 };

static int mass(void)
{
    return race_size(2000 * RACE_SCALE);
}

static void hold_mass(lh_store *store)
{
    enum { BATCH = 1000 };
    static lh_new_job jobs[BATCH];
    static lh_enqueued out[BATCH];
    const char *queue = "mass";
    lh_claim_opts opts = {
        .queues = &queue, .n_queues = 1, .worker = "mass", .n = BATCH, .lease_ms = HOLD_MS};

    for (int n = 0; n < mass(); n += BATCH) {
        lh_jobs *held = NULL;
        EXPECT_OK(lh_enqueue(store, queue, jobs, BATCH, NULL, out));
        EXPECT_OK(lh_claim(store, &opts, &held));
        EXPECT_EQ(held->n, BATCH);
        lh_jobs_free(held);
    }
}

static int by_size(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return a < b ? -1 : a > b;
}

/* The time in which nearly all claims of another queue return. */
static int64_t claim_elsewhere_ns(lh_store *store, int n, const int *until, int *claimed)
{
    int64_t took[CLAIMS];
    int at = 0;
    const char *queue = "q";
    lh_claim_opts opts = {
        .queues = &queue, .n_queues = 1, .worker = "busy", .lease_ms = INT64_C(3) * HOLD_MS};

    while (at < n && (until == NULL || !__atomic_load_n(until, __ATOMIC_SEQ_CST))) {
        lh_enqueued out;
        lh_jobs *jobs = NULL;
        EXPECT_OK(lh_enqueue(store, queue, &(lh_new_job){0}, 1, NULL, &out));
        int64_t call = now_ns();
        EXPECT_OK(lh_claim(store, &opts, &jobs));
        took[at++] = now_ns() - call;
        EXPECT_EQ(jobs->job[0].id, out.id);
        lh_jobs_free(jobs);
    }
    qsort(took, (size_t)at, sizeof *took, by_size);
    *claimed = at;
    return at > 0 ? took[(at - 1) * 95 / 100] : 0;
}

TEST_TIMEOUT(claims_of_other_queues_continue_during_a_mass_recovery, 120)
{
    int claimed;
    clock_start();
    struct ledger *shared = ledger_new();
    lh_store *store = crew_open();
    hold_mass(store);
    int64_t before_ns = claim_elsewhere_ns(store, CLAIMS, NULL, &claimed);
    clock_advance_ms(HOLD_MS);
    pid_t keeper = test_fork_reopening(&store, crew_open);
    int64_t began_ns = now_ns();
    if (keeper == 0) {
        lh_store *own = crew_open();
        lh_maintained done;
        EXPECT_OK(lh_maintain(own, NULL, &done));
        __atomic_store_n(&shared->stop, 1, __ATOMIC_SEQ_CST);
        lh_close(own);
        test_child_done();
    }
    int64_t during_ns = claim_elsewhere_ns(store, CLAIMS, &shared->stop, &claimed);
    EXPECT_EQ(test_wait(keeper).code, 0);
    int64_t recovery_ns = now_ns() - began_ns;
    (void)fprintf(
        stderr, "%d claims beside %d leases: p95 %.2f ms before, %.2f ms during %.2f ms\n", claimed,
        mass(), (double)before_ns / 1e6, (double)during_ns / 1e6, (double)recovery_ns / 1e6);
    EXPECT(claimed > 10);
    EXPECT(during_ns < recovery_ns / 4); /* no claim waited for the whole recovery */
    lh_recovered left;
    EXPECT_OK(lh_recovery_stats(store, &left));
    EXPECT_EQ(left.entries_reclaimed, 0);
    lh_queues *queues = NULL;
    EXPECT_OK(lh_queue_list(store, &queues));
    for (size_t i = 0; i < queues->n; i++)
        if (strcmp(queues->queue[i].queue, "mass") == 0) {
            EXPECT_EQ(queues->queue[i].pending, mass());
            EXPECT_EQ(queues->queue[i].hour_recovered, mass());
        }
    lh_queues_free(queues);
    expect_sound(store);
    lh_close(store);
}
