/* A dry run reports what the recovery then does, and so do the counts. Neither changes anything. */
#include "recovery_world.h"

static void expect_same_job(const lh_recovered_job *would, const lh_recovered_job *did)
{
    if (would == NULL)
        FAIL("the dry run did not tell of job %lld", (long long)did->job);
    EXPECT_STR(would->action, did->action);
    EXPECT_EQ(would->attempt, did->attempt);
    EXPECT_EQ(would->max_attempts, did->max_attempts);
    EXPECT_STR(would->queue, did->queue);
    EXPECT_STR(would->kind, did->kind);
    EXPECT_STR(would->previous_worker, did->previous_worker);
    EXPECT_STR(would->reason, did->reason);
    EXPECT_EQ(would->success, did->success);
}

static bool among(const lh_dead_worker *worker, int64_t job)
{
    for (size_t i = 0; i < worker->n_jobs; i++)
        if (worker->jobs[i] == job)
            return true;
    return false;
}

static void expect_same_report(const lh_report *would, const lh_report *did)
{
    EXPECT(would->dry_run && !did->dry_run);
    EXPECT_EQ(would->id, 0);
    EXPECT_STR(would->trigger, did->trigger);
    EXPECT_EQ(would->started_at, did->started_at);
    EXPECT_EQ(would->recovery_timestamp, did->recovery_timestamp);
    EXPECT_EQ(would->wal_frames, did->wal_frames);
    EXPECT_EQ(would->integrity.ran, did->integrity.ran);
    EXPECT_EQ(would->n_recovered, did->n_recovered);
    for (size_t i = 0; i < did->n_recovered; i++)
        expect_same_job(told_of(would, did->recovered[i].job), &did->recovered[i]);
    EXPECT_EQ(would->n_dead_workers, did->n_dead_workers);
    for (size_t i = 0; i < did->n_dead_workers; i++) {
        const lh_dead_worker *is = &did->dead_workers[i], *was = dead_in(would, is->worker);
        EXPECT(was != NULL);
        EXPECT_EQ(was->last_heartbeat, is->last_heartbeat);
        EXPECT_EQ(was->n_jobs, is->n_jobs);
        for (size_t k = 0; k < is->n_jobs; k++)
            EXPECT(among(was, is->jobs[k]));
    }
    EXPECT_EQ(would->orphaned, did->orphaned);
    EXPECT_EQ(would->entries_reclaimed, did->entries_reclaimed);
    EXPECT_EQ(would->locks_cleaned, did->locks_cleaned);
    EXPECT_EQ(would->failed_recoveries, did->failed_recoveries);
}

/* A dry run, and then the recovery itself. */
static const lh_report *expect_reported(struct world *w, lh_recover_opts opts)
{
    int64_t before = changes(w);
    opts.dry_run = true;
    const lh_report *would = recover_by(w, &opts);
    EXPECT_EQ(changes(w), before);
    opts.dry_run = false;
    const lh_report *did = recover_by(w, &opts);
    expect_same_report(would, did);
    return did;
}

SPEC(a_dry_run_changes_nothing_and_is_not_kept)
{
    struct world w = world_open();
    enlist_process(&w, "w-1");
    lh_job job = held(&w, "mail", "w-1", 1000);
    clock_advance_ms(&w, SILENCE_MS);
    int64_t before = changes(&w);
    const lh_report *report = recover_by(&w, &(lh_recover_opts){.dry_run = true});
    EXPECT(report->dry_run);
    EXPECT_EQ(report->id, 0);
    EXPECT_EQ(report->orphaned, 1);
    EXPECT_EQ(report->n_dead_workers, 1);
    EXPECT_OK(lh_recover(w.store, &(lh_recover_opts){.dry_run = true}, NULL));
    EXPECT_EQ(changes(&w), before);
    EXPECT_EQ(reports(&w), 0);
    EXPECT_EQ(job_of(&w, job.id).token, job.token);
    EXPECT_OK(complete(&w, &job));
    world_close(&w);
}

SPEC(a_dry_run_reports_expired_leases)
{
    struct world w = world_open();
    lh_job last;
    EXPECT_OK(policy(&w, "mail", "k", .set = LH_POLICY_ACTION, .action = LH_ACTION_PENDING));
    EXPECT_OK(policy(&w, "frail", NULL, .set = LH_POLICY_MAX_RECOVERIES, .max_recoveries = 0));
    EXPECT_OK(policy(&w, "stuck", NULL, .set = LH_POLICY_RECOVERY, .recovery = false));
    held(&w, "mail", "w-1", 1000);
    held(&w, "mail", "w-1", 5000); /* not yet */
    held(&w, "frail", "w-2", 1000);
    held(&w, "stuck", "w-2", 1000);
    enqueue(&w, "post", "x", .max_attempts = 1);
    EXPECT_OK(claim_one(&w, "post", &last, .lease_ms = 1000));
    enqueue(&w, "mail", "x", .kind = "k");
    EXPECT_OK(claim_one(&w, "mail", &last, .lease_ms = 1000));
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a", &(lh_lease_opts){.ttl_ms = 1000}, NULL));
    clock_advance_ms(&w, 1000);
    EXPECT_EQ(expect_reported(&w, (lh_recover_opts){.dry_run = true})->n_recovered, 5);
    world_close(&w);
}

SPEC(a_dry_run_reports_silent_workers)
{
    struct world w = world_open();
    enlist_process(&w, "w-1");
    enlist(&w, "remote", .interval_ms = 1000);
    enlist(&w, "late", .process = true, .interval_ms = 2000);
    held(&w, "mail", "w-1", 60000);
    held(&w, "mail", "w-1", 1000);
    held(&w, "mail", "remote", 60000); /* stays: only its expiry ends it */
    held(&w, "mail", "remote", 1000);
    held(&w, "mail", "late", 60000);
    clock_advance_ms(&w, SILENCE_MS);
    const lh_report *report = expect_reported(&w, (lh_recover_opts){.dry_run = true});
    EXPECT_EQ(report->n_recovered, 3);
    EXPECT_EQ(report->n_dead_workers, 2);
    world_close(&w);
}

SPEC(a_dry_run_reports_the_jobs_of_dead_workers)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RECOVERY, .recovery = false));
    enlist_process(&w, "w-1");
    held(&w, "mail", "w-1", 60000);
    clock_advance_ms(&w, SILENCE_MS);
    EXPECT_EQ(upkeep(&w).dead_workers, 1); /* marked, and its job is stuck */
    EXPECT_EQ(expect_reported(&w, (lh_recover_opts){.dry_run = true})->n_recovered, 1);
    world_close(&w);
}

SPEC(a_dry_run_reports_jobs_that_were_not_started)
{
    struct world w = world_open();
    enlist(&w, "w-1", .process = true, .tells_started = true, .interval_ms = 1000);
    lh_job begun = held(&w, "mail", "w-1", 60000), waiting = held(&w, "mail", "w-1", 60000);
    lh_ref started = {.job = begun.id, .token = begun.token};
    EXPECT_OK(lh_worker_started(w.store, "w-1", &started, 1));
    clock_advance_ms(&w, SILENCE_MS);
    const lh_report *report = expect_reported(&w, (lh_recover_opts){.dry_run = true});
    EXPECT_STR(told_of(report, waiting.id)->action, "released");
    EXPECT_STR(told_of(report, begun.id)->action, "retry");
    world_close(&w);
}

SPEC(a_dry_run_reports_the_named_leases_of_dead_workers)
{
    struct world w = world_open();
    enlist_process(&w, "w-1");
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a",
                               &(lh_lease_opts){.owner = "w-1", .ttl_ms = 60000}, NULL));
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "b",
                               &(lh_lease_opts){.owner = "o-1", .ttl_ms = 60000}, NULL));
    clock_advance_ms(&w, SILENCE_MS);
    EXPECT_EQ(expect_reported(&w, (lh_recover_opts){.dry_run = true})->locks_cleaned, 1);
    world_close(&w);
}

/* ---- the lock of an exclusive queue: one rule for claims, recoveries and dry runs ---- */

static struct world world_with_a_lock(const char *worker, int64_t lease_ms)
{
    struct world w = world_open();

    EXPECT_OK(policy(&w, "solo", NULL, .set = LH_POLICY_EXCLUSIVE, .exclusive = true));
    held(&w, "solo", worker, lease_ms);
    return w;
}

static void expect_lock_event(struct world *w, const char *reason)
{
    lh_event event = last_event(w, "lease.recovered");

    EXPECT_STR(event.lease, "processing/solo");
    EXPECT_STR(event.worker, "w-1");
    EXPECT_STR(event.reason, reason);
    EXPECT(event.report != 0);
}

SPEC(the_expired_lease_of_an_exclusive_queue_is_counted_and_reported_by_a_recovery)
{
    struct world w = world_with_a_lock("w-1", 1000);
    lh_recovered counted;
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_recovery_stats(w.store, &counted));
    EXPECT_EQ(counted.locks_cleaned, 1);
    const lh_report *did = expect_reported(&w, (lh_recover_opts){.dry_run = true});
    EXPECT_EQ(did->entries_reclaimed, 1);
    EXPECT_EQ(did->locks_cleaned, 1);
    expect_lock_event(&w, "RECLAIMED_TTL: lease had expired");
    world_close(&w);
}

SPEC(the_expired_lease_of_an_exclusive_queue_is_counted_and_reported_by_a_claim)
{
    struct world w = world_with_a_lock("w-1", 1000);
    lh_report *report = NULL;
    lh_job job;
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "solo", &job, .worker = "w-2"));
    EXPECT_OK(lh_report_get(w.store, 0, &report));
    EXPECT_EQ(report->locks_cleaned, 1);
    lh_report_free(report);
    expect_lock_event(&w, "RECLAIMED_TTL: lease had expired");
    world_close(&w);
}

SPEC(the_exclusive_lease_of_a_dead_worker_is_counted_and_reported)
{
    struct world w = world_open();
    enlist_process(&w, "w-1");
    EXPECT_OK(policy(&w, "solo", NULL, .set = LH_POLICY_EXCLUSIVE, .exclusive = true));
    EXPECT_OK(policy(&w, "other", NULL, .set = LH_POLICY_EXCLUSIVE, .exclusive = true));
    held(&w, "other", "w-1", 60000);
    held(&w, "solo", "w-1", 60000);
    clock_advance_ms(&w, SILENCE_MS);
    EXPECT_EQ(expect_reported(&w, (lh_recover_opts){.queue = "solo"})->locks_cleaned, 1);
    expect_lock_event(&w, "RECLAIMED_DEAD: job 2 was taken back");
    EXPECT_EQ(expect_reported(&w, (lh_recover_opts){0})->locks_cleaned, 1);
    world_close(&w);
}

SPEC(a_live_exclusive_lease_is_counted_when_its_job_is_taken_back_at_once)
{
    struct world w = world_with_a_lock("w-1", 60000);
    lh_job job;
    clock_advance_ms(&w, 1000);
    EXPECT_EQ(expect_reported(&w, (lh_recover_opts){.by_age = true})->locks_cleaned, 0);
    clock_advance_ms(&w, 60000); /* until then the job and its exclusive lease are in quarantine */
    EXPECT_OK(claim_one(&w, "solo", &job, .worker = "w-1", .lease_ms = 60000));
    const lh_report *did = expect_reported(&w, (lh_recover_opts){.by_age = true, .now = true});
    EXPECT_EQ(did->locks_cleaned, 1);
    expect_lock_event(&w, "RECLAIMED_MANUAL: job 1 was taken back");
    world_close(&w);
}

SPEC(a_dry_run_reports_a_recovery_by_age)
{
    struct world w = world_open();
    enlist_process(&w, "w-1");
    held(&w, "mail", "w-1", 60000);
    held(&w, "mail", "w-2", 60000);
    held(&w, "mail", "w-2", 1000);
    lh_job busy = held(&w, "mail", "w-2", 60000);
    clock_advance_ms(&w, SILENCE_MS);
    EXPECT_OK(beat(&w, &busy));
    const lh_report *report =
        expect_reported(&w, (lh_recover_opts){.by_age = true, .threshold_ms = SILENCE_MS});
    EXPECT_EQ(report->n_recovered, 3);
    world_close(&w);
}

SPEC(a_dry_run_reports_a_recovery_of_one_queue_with_another_action)
{
    struct world w = world_open();
    held(&w, "mail", "w-1", 1000);
    held(&w, "post", "w-1", 1000);
    clock_advance_ms(&w, 1000);
    const lh_report *report =
        expect_reported(&w, (lh_recover_opts){.queue = "post", .action = LH_ACTION_FAIL});
    EXPECT_EQ(report->n_recovered, 1);
    EXPECT_STR(report->recovered[0].action, "failed");
    world_close(&w);
}

/* ---- the counts ---- */

SPEC(the_counts_of_stale_jobs_agree_with_the_recovery)
{
    struct world w = world_open();
    lh_recovered counted;
    lh_store_info info;
    enlist_process(&w, "w-1");
    enlist(&w, "remote", .interval_ms = 1000);
    held(&w, "mail", "w-1", 60000);
    held(&w, "mail", "w-1", 1000);
    held(&w, "mail", "remote", 60000);
    held(&w, "mail", "w-2", 1000);
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a",
                               &(lh_lease_opts){.owner = "o-1", .ttl_ms = 1000}, NULL));
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "b",
                               &(lh_lease_opts){.owner = "w-1", .ttl_ms = 60000}, NULL));
    clock_advance_ms(&w, SILENCE_MS);
    int64_t before = changes(&w);
    EXPECT_OK(lh_recovery_stats(w.store, &counted));
    EXPECT_OK(lh_store_status(w.store, &info));
    EXPECT_EQ(changes(&w), before);
    const lh_report *did = recover_by(&w, NULL);
    EXPECT_EQ(did->entries_reclaimed, 3);
    EXPECT_EQ(counted.entries_reclaimed, did->entries_reclaimed);
    EXPECT_EQ(counted.locks_cleaned, did->locks_cleaned);
    EXPECT_EQ(counted.recovery_timestamp, did->recovery_timestamp);
    EXPECT_EQ(info.stale_jobs, did->entries_reclaimed);
    EXPECT_EQ(info.stale_leases, did->locks_cleaned);
    EXPECT_OK(lh_recovery_stats(w.store, &counted));
    EXPECT_EQ(counted.entries_reclaimed + counted.locks_cleaned, 0);
    EXPECT_STATUS(lh_recovery_stats(w.store, NULL), LH_EMISUSE);
    world_close(&w);
}

/* Each allocation of the call fails once. */
SPEC(a_count_of_stale_jobs_that_fails_returns_the_error_and_changes_nothing)
{
    struct world w = world_open();
    struct lhi_control *control = lhi_control();
    lh_recovered counted = {.entries_reclaimed = -1};
    int failed = 0;
    enlist_process(&w, "w-1");
    held(&w, "mail", "w-1", 60000);
    clock_advance_ms(&w, SILENCE_MS);
    EXPECT_OK(lh_recovery_stats(w.store, &counted)); /* the first call has allocated what is kept */
    EXPECT_EQ(counted.entries_reclaimed, 1);
    int64_t before = changes(&w), token = job_of(&w, 1).token;
    for (int64_t nth = 1;; nth++) {
        counted.entries_reclaimed = -1;
        control->calls[LHI_FAULT_ALLOC] = 0;
        control->fail_at[LHI_FAULT_ALLOC] = nth;
        int rc = lh_recovery_stats(w.store, &counted);
        bool fired = control->calls[LHI_FAULT_ALLOC] >= nth;
        control->fail_at[LHI_FAULT_ALLOC] = 0;
        if (!fired)
            break;
        EXPECT_STATUS(rc, LH_ENOMEM);
        EXPECT_EQ(counted.entries_reclaimed, -1);
        failed++;
    }
    EXPECT(failed > 0);
    EXPECT_EQ(changes(&w), before);
    EXPECT_EQ(job_of(&w, 1).token, token);
    EXPECT_OK(lh_recovery_stats(w.store, &counted));
    EXPECT_EQ(counted.entries_reclaimed, 1);
    world_close(&w);
}
