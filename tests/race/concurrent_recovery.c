/* Recovery against another recovery, and against a holder that completes late. */
#include "race/late_holder.h"
#include "race/sizes.h"

#include "base/hook.h"
#include "harness/harness.h"
#include "harness/recover.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LEASE_MS = 60000 };

static lh_store *open_store(void)
{
    lh_store *store = NULL;
    int rc =
        lh_open(test_store(), &(lh_open_opts){.create = true, .busy_ms = TEST_BUSY_MS}, &store);
    if (rc != LH_OK)
        FAIL("%s: %s", lh_status_name(rc), lh_errmsg(store));
    return store;
}

/* All processes of a test share one clock. */
static void clock_start(void)
{
    EXPECT_EQ(setenv("LHI_TEST_CONTROL", "control", 1), 0);
    (void)lhi_control();
}

static void clock_advance_ms(int64_t ms)
{
    lhi_control()->wall_ms += ms;
    lhi_control()->mono_ms += ms;
}

/* `n` jobs, held by one worker. */
static lh_jobs *held_jobs(lh_store *store, size_t n)
{
    const char *queue = "q";
    lh_new_job *jobs = calloc(n, sizeof *jobs);
    lh_enqueued *out = calloc(n, sizeof *out);
    lh_jobs *held = NULL;

    EXPECT(jobs != NULL && out != NULL);
    EXPECT_OK(lh_enqueue(store, queue, jobs, n, NULL, out));
    EXPECT_OK(lh_claim(
        store,
        &(lh_claim_opts){
            .queues = &queue, .n_queues = 1, .worker = "slow", .n = n, .lease_ms = LEASE_MS},
        &held));
    EXPECT_EQ(held->n, n);
    free(jobs);
    free(out);
    return held;
}

static lh_job get(lh_store *store, int64_t id)
{
    lh_jobs *jobs = NULL;
    EXPECT_OK(lh_job_get(store, id, &jobs));
    lh_job job = jobs->job[0];
    job.queue = job.kind = job.worker = job.last_error = NULL; /* freed with the list */
    lh_jobs_free(jobs);
    return job;
}

static int64_t recovered_events(lh_store *store, int64_t id)
{
    lh_events *events = NULL;
    int64_t n = 0;

    EXPECT_OK(lh_event_list(store, &(lh_event_filter){.job = id, .limit = 1000}, &events));
    for (size_t i = 0; i < events->n; i++)
        n += strcmp(events->event[i].type, "job.recovered") == 0;
    lh_events_free(events);
    return n;
}

static void expect_sound(lh_store *store)
{
    lh_findings *findings = NULL;
    EXPECT_OK(lh_check(store, NULL, &findings));
    EXPECT_EQ(findings->errors, 0);
    lh_findings_free(findings);
}

/* ---------------------------------------------------------------- starting together */

struct meeting {
    int waiting;
    int64_t count[8];
    int status[1000];
};

static struct meeting *meeting_new(void)
{
    struct meeting *meeting =
        mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(meeting != MAP_FAILED);
    return meeting;
}

/* All continue when the last one has arrived. */
static void meet(struct meeting *meeting, int all)
{
    (void)__atomic_add_fetch(&meeting->waiting, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&meeting->waiting, __ATOMIC_SEQ_CST) < all)
        (void)sched_yield();
}

/* ---------------------------------------------------------------- recovery against recovery */

TEST_TIMEOUT(concurrent_recoveries_recover_each_job_once, 60)
{
    enum { RECOVERERS = 4, JOBS = 900, ROUNDS = 2 };
    lh_store *store;

    clock_start();
    for (int round = 0; round < ROUNDS; round++) {
        struct meeting *meeting = meeting_new();
        pid_t pid[RECOVERERS];
        int64_t sum = 0;

        store = open_store();
        lh_jobs *held = held_jobs(store, JOBS);
        clock_advance_ms(LEASE_MS);
        lh_close(store);
        for (int i = 0; i < RECOVERERS; i++) {
            pid[i] = test_fork();
            if (pid[i] != 0)
                continue;
            lh_recovered out;
            store = open_store();
            meet(meeting, RECOVERERS);
            EXPECT_OK(recovered_by_hand(store, &out));
            meeting->count[i] = out.entries_reclaimed;
            lh_close(store);
            test_child_done();
        }
        for (int i = 0; i < RECOVERERS; i++) {
            EXPECT_EQ(test_wait(pid[i]).code, 0);
            sum += meeting->count[i];
        }
        EXPECT_EQ(sum, JOBS);
        store = open_store();
        for (size_t i = 0; i < held->n; i++) {
            lh_job job = get(store, held->job[i].id);
            EXPECT_EQ(job.state, LH_PENDING);
            EXPECT_EQ(job.recoveries, 1);
            EXPECT_EQ(job.token, held->job[i].token + 1);
            if (i % 50 == 0)
                EXPECT_EQ(recovered_events(store, job.id), 1);
        }
        expect_sound(store);
        int64_t purged;
        EXPECT_OK(lh_queue_purge(store, "q", &purged));
        EXPECT_EQ(purged, JOBS);
        lh_jobs_free(held);
        lh_close(store);
    }
}

/* ---------------------------------------------------------------- recovery against complete */

/* The last job is completed after the recovery, so that at least one complete always comes too late. */
static void complete_one_by_one(const lh_jobs *held, struct meeting *meeting)
{
    lh_store *store = open_store();

    meet(meeting, 2);
    for (size_t i = 0; i < held->n; i++) {
        while (i + 1 == held->n && __atomic_load_n(&meeting->count[0], __ATOMIC_SEQ_CST) == 0)
            (void)sched_yield();
        (void)lh_complete(store, &(lh_done){.job = held->job[i].id, .token = held->job[i].token}, 1,
                          &meeting->status[i], NULL);
        __atomic_store_n(&meeting->count[1], (int64_t)i + 1, __ATOMIC_SEQ_CST);
    }
    lh_close(store);
}

/* The first commit wins and is never undone. */
TEST_TIMEOUT(a_late_complete_and_a_recovery_never_both_win, 60)
{
    enum { JOBS = 60, ROUNDS = 2 * RACE_SCALE };
    int completed = 0, lost = 0;

    clock_start();
    for (int round = 0; round < ROUNDS; round++) {
        struct meeting *meeting = meeting_new();
        lh_store *store = open_store();
        lh_jobs *held = held_jobs(store, JOBS);
        lh_recovered out;
        int64_t n = 0;

        clock_advance_ms(LEASE_MS + 1);
        pid_t completer = test_fork_reopening(&store, open_store);
        if (completer == 0) {
            complete_one_by_one(held, meeting);
            test_child_done();
        }
        meet(meeting, 2);
        /* At another place in each round. */
        while (__atomic_load_n(&meeting->count[1], __ATOMIC_SEQ_CST) < round * JOBS / ROUNDS)
            (void)sched_yield();
        EXPECT_OK(recovered_by_hand(store, &out));
        __atomic_store_n(&meeting->count[0], 1, __ATOMIC_SEQ_CST);
        EXPECT_EQ(test_wait(completer).code, 0);
        for (size_t i = 0; i < held->n; i++) {
            lh_job job = get(store, held->job[i].id);
            bool won = meeting->status[i] == LH_OK;
            EXPECT_EQ(meeting->status[i], won ? LH_OK : LH_ELOST);
            EXPECT_EQ(job.state, won ? LH_COMPLETED : LH_PENDING);
            EXPECT_EQ(job.recoveries, won ? 0 : 1);
            EXPECT_EQ(job.token, held->job[i].token + (won ? 0 : 1));
            EXPECT_EQ(recovered_events(store, job.id), won ? 0 : 1);
            n += !won;
        }
        EXPECT_EQ(out.entries_reclaimed, n);
        lost += (int)n;
        completed += (int)(JOBS - n);
        expect_sound(store);
        int64_t purged;
        EXPECT_OK(lh_queue_purge(store, "q", &purged));
        lh_jobs_free(held);
        lh_close(store);
    }
    EXPECT(completed > 0 && lost > 0);
}

/* ---------------------------------------------------------------- step by step */

TEST(an_old_holder_cannot_affect_the_next_holder)
{
    const char *queue = "q";
    lh_jobs *next = NULL;

    clock_start();
    lh_store *store = open_store();
    lh_jobs *held = held_jobs(store, 1);
    const lh_job *slow = &held->job[0];
    clock_advance_ms(LEASE_MS);
    EXPECT_OK(lh_claim(store, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "next"},
                       &next));
    EXPECT_EQ(next->job[0].id, slow->id);

    EXPECT_STATUS(
        lh_heartbeat(store, &(lh_beat){.job = slow->id, .token = slow->token}, 1, NULL, NULL),
        LH_ELOST);
    EXPECT_STATUS(
        lh_complete(store, &(lh_done){.job = slow->id, .token = slow->token}, 1, NULL, NULL),
        LH_ELOST);
    EXPECT_STATUS(lh_fail(store,
                          &(lh_failure){.job = slow->id, .token = slow->token, .error = "late"}, 1,
                          NULL, NULL),
                  LH_ELOST);
    EXPECT_STATUS(
        lh_release(store, &(lh_ref){.job = slow->id, .token = slow->token}, 1, 0, NULL, NULL),
        LH_ELOST);
    lh_job job = get(store, slow->id);
    EXPECT_EQ(job.state, LH_RUNNING);
    EXPECT_EQ(job.token, next->job[0].token);
    EXPECT_EQ(job.lease_until, next->job[0].lease_until);
    EXPECT_OK(lh_complete(store, &(lh_done){.job = job.id, .token = job.token}, 1, NULL, NULL));
    lh_jobs_free(next);
    lh_jobs_free(held);
    lh_close(store);
}

enum meanwhile { NOTHING, COMPLETED, EXTENDED, RECOVERED, RELEASED, HELD_BY_ANOTHER, CANCELLED };

static void happens(enum meanwhile what, lh_store *store, const lh_job *job)
{
    const char *queue = "q";
    lh_recovered out;
    lh_jobs *jobs = NULL;

    switch (what) {
    case COMPLETED:
        EXPECT_OK(
            lh_complete(store, &(lh_done){.job = job->id, .token = job->token}, 1, NULL, NULL));
        break;
    case EXTENDED:
        EXPECT_OK(lh_heartbeat(
            store, &(lh_beat){.job = job->id, .token = job->token, .lease_ms = LEASE_MS * 2}, 1,
            NULL, NULL));
        break;
    case RELEASED:
        EXPECT_OK(
            lh_release(store, &(lh_ref){.job = job->id, .token = job->token}, 1, 0, NULL, NULL));
        break;
    case CANCELLED:
        EXPECT_OK(lh_cancel(store, &job->id, 1, NULL, NULL));
        break;
    case HELD_BY_ANOTHER:
    case RECOVERED:
        clock_advance_ms(LEASE_MS);
        EXPECT_OK(recovered_by_hand(store, &out));
        EXPECT_EQ(out.entries_reclaimed, 1);
        if (what == HELD_BY_ANOTHER)
            EXPECT_OK(lh_claim(
                store, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "next"}, &jobs));
        lh_jobs_free(jobs);
        break;
    case NOTHING:
    default:
        break;
    }
}

TEST(a_recovery_on_outdated_evidence_changes_nothing)
{
    clock_start();
    lh_store *store = open_store();
    for (enum meanwhile what = COMPLETED; what <= CANCELLED; what++) {
        lh_jobs *held = held_jobs(store, 1);
        lh_job seen = get(store, held->job[0].id);

        happens(what, store, &held->job[0]);
        lh_job before = get(store, seen.id);
        EXPECT_EQ(write_late(LATE_RECOVER, &seen, LEASE_MS), 0);
        lh_job after = get(store, seen.id);
        EXPECT_EQ(after.state, before.state);
        EXPECT_EQ(after.token, before.token);
        EXPECT_EQ(after.lease_until, before.lease_until);
        EXPECT_EQ(after.recoveries, before.recoveries);
        if (before.state == LH_RUNNING)
            EXPECT_OK(lh_cancel(store, &seen.id, 1, NULL, NULL));
        EXPECT_OK(lh_delete(store, &seen.id, 1, NULL));
        lh_jobs_free(held);
    }
    /* The same write, when nothing has changed since the read. */
    lh_jobs *held = held_jobs(store, 1);
    lh_job seen = get(store, held->job[0].id);
    happens(NOTHING, store, &seen);
    EXPECT_EQ(write_late(LATE_RECOVER, &seen, LEASE_MS), 1);
    EXPECT_EQ(get(store, seen.id).state, LH_PENDING);
    lh_jobs_free(held);
    lh_close(store);
}

TEST(every_write_of_a_holder_checks_state_and_token)
{
    static const enum late_write writes[] = {LATE_COMPLETE, LATE_FAIL, LATE_RELEASE, LATE_BEAT};
    clock_start();
    lh_store *store = open_store();
    for (size_t i = 0; i < sizeof writes / sizeof writes[0]; i++) {
        lh_jobs *held = held_jobs(store, 1);
        lh_job slow = get(store, held->job[0].id);

        happens(HELD_BY_ANOTHER, store, &slow);
        lh_job next = get(store, slow.id);
        EXPECT(next.state == LH_RUNNING && next.token > slow.token);
        EXPECT_EQ(write_late(writes[i], &slow, LEASE_MS), 0);
        EXPECT_EQ(get(store, slow.id).token, next.token);
        EXPECT_EQ(get(store, slow.id).state, LH_RUNNING);
        /* The same write by the current holder. */
        EXPECT_EQ(write_late(writes[i], &next, LEASE_MS), 1);
        (void)lh_cancel(store, &slow.id, 1, NULL, NULL);
        EXPECT_OK(lh_delete(store, &slow.id, 1, NULL));
        lh_jobs_free(held);
    }
    lh_close(store);
}

/* ---------------------------------------------------------------- recovery against claims */

enum { CLAIMERS = 10 };

struct claimer {
    pthread_t thread;
    pthread_barrier_t *start, *end;
    lh_store *store;
    int rounds;
    int got; /* jobs, one a round */
};

static void claim_and_complete(struct claimer *c)
{
    const char *queue = "q";
    lh_jobs *jobs = NULL;

    if (lh_claim(c->store,
                 &(lh_claim_opts){
                     .queues = &queue, .n_queues = 1, .worker = "quick", .lease_ms = LEASE_MS},
                 &jobs) != LH_OK)
        return;
    c->got++;
    (void)lh_complete(c->store, &(lh_done){.job = jobs->job[0].id, .token = jobs->job[0].token}, 1,
                      NULL, NULL);
    lh_jobs_free(jobs);
}

static void *claimer(void *arg)
{
    struct claimer *c = arg;

    for (int i = 0; i < c->rounds; i++) {
        (void)pthread_barrier_wait(c->start);
        claim_and_complete(c);
        (void)pthread_barrier_wait(c->end);
    }
    return NULL;
}

/* As many jobs fall due as there are claimers; the first claim takes all of them back. `due` brings the jobs, and
 * lets them fall due. */
static void expect_a_job_for_each(void (*due)(lh_store *store))
{
    enum { ROUNDS = SANITIZED ? 3 : 10 };
    struct claimer claimers[CLAIMERS];
    pthread_barrier_t start, end;

    clock_start();
    lh_store *store = open_store();
    EXPECT_EQ(pthread_barrier_init(&start, NULL, CLAIMERS + 1), 0);
    EXPECT_EQ(pthread_barrier_init(&end, NULL, CLAIMERS + 1), 0);
    for (int i = 0; i < CLAIMERS; i++) {
        claimers[i] =
            (struct claimer){.start = &start, .end = &end, .store = open_store(), .rounds = ROUNDS};
        EXPECT_EQ(pthread_create(&claimers[i].thread, NULL, claimer, &claimers[i]), 0);
    }
    for (int i = 0; i < ROUNDS; i++) {
        due(store);
        (void)pthread_barrier_wait(&start);
        (void)pthread_barrier_wait(&end);
    }
    for (int i = 0; i < CLAIMERS; i++) {
        EXPECT_EQ(pthread_join(claimers[i].thread, NULL), 0);
        lh_close(claimers[i].store);
        EXPECT_EQ(claimers[i].got, ROUNDS);
    }
    lh_close(store);
}

static void let_leases_expire(lh_store *store)
{
    lh_jobs_free(held_jobs(store, CLAIMERS));
    clock_advance_ms(LEASE_MS);
}

TEST_TIMEOUT(claims_during_a_recovery_get_the_jobs_that_it_frees, 60)
{
    expect_a_job_for_each(let_leases_expire);
}

static void let_delays_pass(lh_store *store)
{
    lh_new_job jobs[CLAIMERS];
    lh_enqueued out[CLAIMERS];

    for (int i = 0; i < CLAIMERS; i++)
        jobs[i] = (lh_new_job){.delay_ms = 1000};
    EXPECT_OK(lh_enqueue(store, "q", jobs, CLAIMERS, NULL, out));
    clock_advance_ms(1001);
}

TEST_TIMEOUT(claims_during_a_promotion_get_the_jobs_that_it_makes_pending, 60)
{
    expect_a_job_for_each(let_delays_pass);
}
