/*
 * Workers as others see them: alive, late, dead; what a silent worker loses, at which millisecond, and what
 * becomes of the jobs and leases of a dead worker.
 */
#include "recovery_world.h"

#define REMOTE "remote" /* a worker without a process on this machine */

static void beat_of(struct world *w, const char *worker)
{
    EXPECT_OK(lh_worker_heartbeat(w->store, worker, 0, NULL, 0, NULL));
}

static size_t told(struct world *w, const char *type)
{
    const lh_events *events = events_of(w, 0);
    size_t n = 0;
    for (size_t i = 0; i < events->n; i++)
        n += strcmp(events->event[i].type, type) == 0;
    return n;
}

/* ---- late ---- */

SPEC(a_worker_that_misses_a_heartbeat_is_reported_as_late_once)
{
    struct world w = world_open();
    enlist_process(&w, "w-1");
    clock_advance_ms(&w, SILENCE_MS / 2 + 1); /* half an interval later than expected */
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(upkeep(&w).dead_workers, 0);
        EXPECT_EQ(told(&w, "worker.late"), 1);
        EXPECT_STR(worker_of(&w, "w-1").state, "late");
    }
    EXPECT_EQ(reports(&w), 0); /* nothing to recover */
    beat_of(&w, "w-1");
    EXPECT_STR(worker_of(&w, "w-1").state, "alive");
    clock_advance_ms(&w, SILENCE_MS / 2 + 1);
    EXPECT_EQ(upkeep(&w).dead_workers, 0);
    EXPECT_EQ(told(&w, "worker.late"), 2);
    EXPECT_STR(last_event(&w, "worker.late").worker, "w-1");
    world_close(&w);
}

/* ---- silence ---- */

enum finder { BY_CLAIM, BY_UPKEEP, BY_HAND };

static int64_t look(struct world *w, enum finder finder)
{
    lh_job job;
    int64_t before = queue_of(w, "mail").hour_recovered;
    if (finder == BY_CLAIM)
        EXPECT_STATUS(claim_one(w, "elsewhere", &job), LH_EMPTY);
    else if (finder == BY_UPKEEP)
        (void)upkeep(w);
    else
        (void)recover_by(w, NULL);
    return queue_of(w, "mail").hour_recovered - before;
}

/* Its lease has not expired. */
static void expect_forfeit_at(enum finder finder, int64_t interval_ms, int64_t multiplier)
{
    struct world w = world_open();
    enlist(&w, "w-1", .process = true, .interval_ms = interval_ms, .multiplier = multiplier);
    lh_job jobs[4]; /* the jobs of the worker, in all queues */
    for (int i = 0; i < 4; i++)
        jobs[i] = held(&w, i == 0 ? "post" : "mail", "w-1", 100 * interval_ms * multiplier);
    clock_advance_ms(&w, 500);
    beat_of(&w, "w-1");
    clock_advance_ms(&w, interval_ms * multiplier - 1);
    EXPECT_EQ(look(&w, finder), 0);
    EXPECT_STR(worker_of(&w, "w-1").state, "late");
    clock_advance_ms(&w, 1);
    EXPECT_EQ(look(&w, finder), 3);
    EXPECT_STR(worker_of(&w, "w-1").state, "dead");
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(job_of(&w, jobs[i].id).state, LH_PENDING);
        EXPECT_EQ(job_of(&w, jobs[i].id).recoveries, 1);
        EXPECT_STATUS(beat(&w, &jobs[i]), LH_ELOST);
    }
    world_close(&w);
}

SPEC(a_claim_takes_the_jobs_of_a_silent_process_at_the_exact_millisecond)
{
    expect_forfeit_at(BY_CLAIM, 1000, 3);
}

SPEC(maintenance_takes_the_jobs_of_a_silent_process_at_the_exact_millisecond)
{
    expect_forfeit_at(BY_UPKEEP, 7000, 2);
}

SPEC(a_recovery_takes_the_jobs_of_a_silent_process_at_the_exact_millisecond)
{
    expect_forfeit_at(BY_HAND, 250, 11);
}

SPEC(a_heartbeat_in_the_last_millisecond_keeps_all_jobs_of_a_process)
{
    struct world w = world_open();
    enlist_process(&w, "w-1");
    lh_job job = held(&w, "mail", "w-1", 60000);
    clock_advance_ms(&w, SILENCE_MS - 1);
    beat_of(&w, "w-1");
    clock_advance_ms(&w, 1);
    EXPECT_EQ(look(&w, BY_HAND), 0);
    EXPECT_OK(complete(&w, &job));
    world_close(&w);
}

SPEC(silence_does_not_end_the_leases_of_a_remote_worker)
{
    struct world w = world_open();
    enlist(&w, REMOTE, .interval_ms = 1000);
    lh_job job = held(&w, "mail", REMOTE, 60000);
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a",
                               &(lh_lease_opts){.owner = REMOTE, .ttl_ms = 60000}, NULL));
    clock_advance_ms(&w, SILENCE_MS);
    for (enum finder finder = BY_CLAIM; finder <= BY_HAND; finder++)
        EXPECT_EQ(look(&w, finder), 0);
    EXPECT_STR(worker_of(&w, REMOTE).state, "dead");
    EXPECT_EQ(told(&w, "worker.dead"), 1);
    EXPECT_STATUS(lh_lease_acquire(w.store, "sync", "a", &(lh_lease_opts){.owner = "o"}, NULL),
                  LH_EHELD);
    clock_advance_ms(&w, 60000 - SILENCE_MS - 1);
    EXPECT_EQ(look(&w, BY_HAND), 0);
    EXPECT_OK(beat(&w, &job)); /* its own lease has not expired */
    clock_advance_ms(&w, 60000);
    EXPECT_EQ(look(&w, BY_HAND), 1);
    EXPECT_CONTAINS(job_of(&w, job.id).last_error, "RECLAIMED_TTL: ");
    world_close(&w);
}

SPEC(the_jobs_of_an_unregistered_worker_end_only_with_their_leases)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "unknown", 60000);
    clock_advance_ms(&w, 59999);
    EXPECT_EQ(look(&w, BY_HAND), 0);
    clock_advance_ms(&w, 1);
    EXPECT_EQ(look(&w, BY_HAND), 1);
    EXPECT_CONTAINS(job_of(&w, job.id).last_error, "RECLAIMED_TTL: ");
    world_close(&w);
}

/* ---- what a dead worker held ---- */

SPEC(the_jobs_and_leases_of_a_dead_worker_are_freed)
{
    struct world w = world_open();
    lh_job next;
    EXPECT_OK(policy(&w, "solo", NULL, .set = LH_POLICY_EXCLUSIVE, .exclusive = true));
    EXPECT_OK(policy(&w, "slow", NULL, .set = LH_POLICY_CONCURRENCY, .concurrency = 1));
    enlist_process(&w, "w-1");
    lh_job solo = held(&w, "solo", "w-1", 60000), slow = held(&w, "slow", "w-1", 60000);
    enqueue(&w, "solo", "next");
    enqueue(&w, "slow", "next");
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a",
                               &(lh_lease_opts){.owner = "w-1", .ttl_ms = 60000, .value = "[7]"},
                               NULL));
    clock_advance_ms(&w, SILENCE_MS);
    lh_maintained done = upkeep(&w);
    EXPECT_EQ(done.dead_workers, 1);
    EXPECT_EQ(done.recovered, 2);
    EXPECT_OK(claim_one(&w, "solo", &next));
    EXPECT_EQ(next.id, solo.id);
    EXPECT_OK(claim_one(&w, "slow", &next));
    EXPECT_EQ(next.id, slow.id);
    lh_leases *taken = NULL;
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a", &(lh_lease_opts){.owner = "o-2"}, &taken));
    EXPECT_STR(keep_lease(&w, taken).value, "[7]"); /* its state remains */
    EXPECT_STR(worker_of(&w, "w-1").state, "dead");
    EXPECT_EQ(worker_of(&w, "w-1").running, 0);
    EXPECT_EQ(told(&w, "worker.dead"), 1);
    EXPECT_EQ(told(&w, "worker.cleaned"), 1);
    EXPECT_EQ(upkeep(&w).report, 0); /* and there is no more to do */
    world_close(&w);
}

SPEC(the_named_leases_of_a_silent_process_are_freed_at_the_exact_millisecond)
{
    struct world w = world_open();
    lh_job none;
    enlist_process(&w, "w-1");
    lh_lease_opts mine = {.owner = "w-1", .ttl_ms = 60000}, theirs = {.owner = "o-2"};
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a", &mine, NULL));
    clock_advance_ms(&w, SILENCE_MS - 1);
    EXPECT_STATUS(claim_one(&w, "mail", &none), LH_EMPTY);
    EXPECT_STATUS(lh_lease_acquire(w.store, "sync", "a", &theirs, NULL), LH_EHELD);
    clock_advance_ms(&w, 1);
    EXPECT_STATUS(claim_one(&w, "mail", &none), LH_EMPTY);
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a", &theirs, NULL));
    EXPECT_STATUS(lh_lease_extend(w.store, "sync", "a", &mine, NULL), LH_ELOST);
    world_close(&w);
}

SPEC(claims_take_all_jobs_of_a_dead_worker_even_if_there_are_many)
{
    enum { MANY = 1300 };
    struct world w = world_open();
    static lh_new_job jobs[MANY];
    static lh_enqueued out[MANY];
    size_t got = 0;
    enlist(&w, "w1", .process = true, .interval_ms = 1000);
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, MANY, NULL, out));
    while (got < MANY)
        got += claim_many(&w, "mail", 1000)->n;
    clock_advance_ms(&w, SILENCE_MS); /* their leases run for 300 s */
    lh_job job;
    for (int i = 0; i < MANY; i++)
        EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w-2"));
    EXPECT_EQ(worker_of(&w, "w1").running, 0);
    EXPECT_EQ(told(&w, "worker.cleaned"), 1);
    world_close(&w);
}

/* ---- the row of a dead worker ---- */

static bool listed(struct world *w, const char *id)
{
    lh_workers *workers = NULL;
    bool found = false;
    EXPECT_OK(lh_worker_list(w->store, &workers));
    for (size_t i = 0; i < workers->n; i++)
        found = found || strcmp(workers->worker[i].id, id) == 0;
    lh_workers_free(workers);
    return found;
}

/* Its job stays stuck, because recovery is off. */
static struct world world_with_a_stuck_job(lh_job *job)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RECOVERY, .recovery = false));
    enlist_process(&w, "w-1");
    *job = held(&w, "mail", "w-1", 60000);
    clock_advance_ms(&w, SILENCE_MS);
    EXPECT_EQ(upkeep(&w).dead_workers, 1);
    EXPECT_EQ(look(&w, BY_CLAIM), 0);
    EXPECT_EQ(job_of(&w, job->id).state, LH_RUNNING);
    EXPECT_EQ(told(&w, "worker.cleaned"), 0);
    return w;
}

SPEC(the_row_of_a_dead_process_stays_until_its_jobs_are_free)
{
    lh_job job;
    struct world w = world_with_a_stuck_job(&job);
    clock_advance_ms(&w, 5000);
    EXPECT_OK(lh_prune(w.store, 1000, NULL, NULL));
    EXPECT(listed(&w, "w-1"));
    EXPECT_EQ(recover_by(&w, NULL)->entries_reclaimed, 1);
    EXPECT_CONTAINS(job_of(&w, job.id).last_error, "RECLAIMED_DEAD: ");
    EXPECT_EQ(told(&w, "worker.cleaned"), 1);
    EXPECT_OK(lh_prune(w.store, 1000, NULL, NULL));
    EXPECT(!listed(&w, "w-1"));
    world_close(&w);
}

SPEC(the_row_of_a_silent_worker_stays_until_its_jobs_are_free)
{
    struct world w = world_open();
    enlist(&w, REMOTE, .interval_ms = 1000);
    held(&w, "mail", REMOTE, 60000);
    clock_advance_ms(&w, SILENCE_MS + 5000);
    EXPECT_EQ(upkeep(&w).dead_workers, 1);
    EXPECT_OK(lh_prune(w.store, 1000, NULL, NULL));
    EXPECT(listed(&w, REMOTE));
    clock_advance_ms(&w, 60000);
    EXPECT_EQ(upkeep(&w).recovered, 1);
    EXPECT_OK(lh_prune(w.store, 1000, NULL, NULL));
    EXPECT(!listed(&w, REMOTE));
    world_close(&w);
}

SPEC(a_dead_worker_is_cleaned_up_even_if_its_last_job_finishes)
{
    lh_job job;
    struct world w = world_with_a_stuck_job(&job);
    EXPECT_OK(complete(&w, &job)); /* late, but the job was not recovered */
    (void)upkeep(&w);
    EXPECT_EQ(told(&w, "worker.cleaned"), 1);
    world_close(&w);
}

/* ---- thought dead ---- */

SPEC(a_heartbeat_revives_a_worker_but_does_not_return_its_lost_jobs)
{
    struct world w = world_open();
    int status = LH_OK;
    enlist_process(&w, "w-1");
    lh_job job = held(&w, "mail", "w-1", 60000);
    clock_advance_ms(&w, SILENCE_MS);
    EXPECT_EQ(upkeep(&w).recovered, 1);
    lh_beat mine = {.job = job.id, .token = job.token};
    EXPECT_STATUS(lh_worker_heartbeat(w.store, "w-1", 0, &mine, 1, &status), LH_ELOST);
    EXPECT_STATUS(status, LH_ELOST);
    EXPECT_STR(worker_of(&w, "w-1").state, "alive");
    EXPECT_EQ(worker_of(&w, "w-1").interval_ms, SILENCE_MS / 3);
    lh_job next;
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w-1", .lease_ms = 60000));
    EXPECT_EQ(upkeep(&w).recovered, 0);
    clock_advance_ms(&w, SILENCE_MS - 1);
    EXPECT_EQ(upkeep(&w).recovered, 0);
    clock_advance_ms(&w, 1); /* judged like any other worker */
    EXPECT_EQ(upkeep(&w).recovered, 1);
    EXPECT_EQ(told(&w, "worker.dead"), 2);
    world_close(&w);
}

SPEC(a_heartbeat_of_a_worker_taken_for_dead_keeps_the_jobs_that_were_not_recovered)
{
    lh_job job;
    struct world w = world_with_a_stuck_job(&job);
    lh_beat mine = {.job = job.id, .token = job.token};
    EXPECT_OK(lh_worker_heartbeat(w.store, "w-1", 0, &mine, 1, NULL));
    EXPECT_EQ(recover_by(&w, NULL)->entries_reclaimed, 0);
    EXPECT_OK(complete(&w, &job));
    world_close(&w);
}

/* ---- who is dead? ---- */

static const lh_workers *stale(struct world *w, lh_workers **out)
{
    lh_workers_free(*out);
    *out = NULL;
    int64_t before = changes(w);
    EXPECT_OK(lh_workers_stale(w->store, out));
    EXPECT_EQ(changes(w), before);
    return *out;
}

SPEC(stale_workers_are_dead_workers_that_are_not_cleaned_up)
{
    struct world w = world_open();
    lh_workers *dead = NULL;
    enlist_process(&w, "w-1");
    enlist_process(&w, "w-2");
    enlist(&w, REMOTE, .interval_ms = 1000);
    enlist_process(&w, "gone-home");
    lh_job first = held(&w, "mail", "w-1", 60000), second = held(&w, "mail", "w-1", 60000);
    lh_job far = held(&w, "mail", REMOTE, 60000);
    EXPECT_OK(lh_worker_stop(w.store, "gone-home"));
    EXPECT_EQ(stale(&w, &dead)->n, 0);
    clock_advance_ms(&w, SILENCE_MS - 1);
    beat_of(&w, "w-2");
    EXPECT_EQ(stale(&w, &dead)->n, 0);
    clock_advance_ms(&w, 1);
    EXPECT_EQ(stale(&w, &dead)->n, 2);
    EXPECT_STR(dead->worker[0].id, REMOTE);
    EXPECT_STR(dead->worker[0].state, "dead");
    EXPECT_EQ(dead->worker[0].running, 1);
    EXPECT_EQ(dead->worker[0].jobs[0], far.id);
    EXPECT_STR(dead->worker[1].id, "w-1");
    EXPECT_EQ(dead->worker[1].silent_ms, SILENCE_MS);
    EXPECT_EQ(dead->worker[1].running, 2);
    EXPECT_EQ(dead->worker[1].jobs[0], first.id);
    EXPECT_EQ(dead->worker[1].jobs[1], second.id);
    EXPECT_EQ(upkeep(&w).dead_workers, 2);
    EXPECT_EQ(stale(&w, &dead)->n, 1); /* the remote one still holds its job */
    EXPECT_STR(dead->worker[0].id, REMOTE);
    EXPECT_OK(complete(&w, &far));
    EXPECT_EQ(stale(&w, &dead)->n, 0);
    lh_workers_free(dead);
    EXPECT_STATUS(lh_workers_stale(w.store, NULL), LH_EMISUSE);
    world_close(&w);
}
