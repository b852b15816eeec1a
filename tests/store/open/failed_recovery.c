/* Jobs that cannot be recovered: each is recorded as a failed recovery, the rest goes on, and the
 * store is degraded until a whole recovery succeeds. Also counts that are wrong. */
#include "store/crashed.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

enum { STUBBORN = 2 };

static void exec(const char *text)
{
    sqlite3 *db = db_open("store.db");
    db_exec(db, text);
    sqlite3_close(db);
}

/* Three jobs with expired leases. The row of one of them cannot be changed. */
static lh_store *store_with_a_stubborn_job(void)
{
    freeze_now();
    lh_store *store = store_new();
    for (int i = 0; i < 3; i++) {
        add(store, i == 2 ? "post" : "mail", "x");
        lh_jobs_free(take(store, i == 2 ? "post" : "mail", "w1", 1000));
    }
    exec("CREATE TRIGGER stubborn BEFORE UPDATE ON lh_job WHEN old.id = 2 AND new.state <> "
         "'running' BEGIN SELECT RAISE(ABORT, 'it will not let go'); END");
    pass_ms(1000);
    return store;
}

static void soften(void)
{
    exec("DROP TRIGGER stubborn");
}

static lh_report *recover(lh_store *store, const lh_recover_opts *opts)
{
    lh_report *report = NULL;
    if (lh_recover(store, opts, &report) != LH_OK)
        FAIL("could not recover: %s", lh_errmsg(store));
    return report;
}

static void expect_degraded(lh_store *store, bool degraded)
{
    lh_store_info info;
    EXPECT_OK(lh_store_status(store, &info));
    if ((info.degraded[0] != '\0') != degraded)
        FAIL("degraded: \"%s\"", info.degraded);
}

TEST(job_that_cannot_be_recovered_is_reported_and_the_rest_goes_on)
{
    lh_store *store = store_with_a_stubborn_job();
    lh_store_info info;
    lh_report *report = recover(store, NULL);
    EXPECT_EQ(report->orphaned, 3);
    EXPECT_EQ(report->entries_reclaimed, 2);
    EXPECT_EQ(report->failed_recoveries, 1);
    EXPECT_EQ(report->n_recovered, 3);
    for (size_t i = 0; i < report->n_recovered; i++) {
        const lh_recovered_job *job = &report->recovered[i];
        EXPECT_EQ(job->success, job->job != STUBBORN);
        if (job->job != STUBBORN)
            continue;
        EXPECT_CONTAINS(job->error, "it will not let go");
        EXPECT_STR(job->queue, "mail");
        EXPECT_STR(job->previous_worker, "w1");
        EXPECT(job->reason == NULL);
    }
    lh_report_free(report);
    EXPECT_EQ(state_of(store, 1), LH_PENDING);
    EXPECT_EQ(state_of(store, STUBBORN), LH_RUNNING);
    EXPECT_EQ(state_of(store, 3), LH_PENDING);
    expect_degraded(store, true);
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_EQ(info.recovery.failures, 1);
    EXPECT_EQ(info.recovery.retried, 2);
    lh_close(store);
}

TEST(a_claim_goes_on_past_a_job_that_cannot_be_recovered)
{
    lh_store *store = store_with_a_stubborn_job();
    lh_jobs *jobs = take(store, "mail", "w2", 60000);
    EXPECT(jobs != NULL);
    EXPECT_EQ(jobs->job[0].id, 1);
    lh_jobs_free(jobs);
    expect_degraded(store, true);
    EXPECT_EQ(reports(store), 1);
    for (int i = 0; i < 5; i++) /* it is known, so it is not recorded again */
        EXPECT(take(store, "mail", "w2", 60000) == NULL);
    lh_maintained done;
    EXPECT_OK(lh_maintain(store, NULL, &done));
    EXPECT_EQ(done.recovered, 0);
    EXPECT_EQ(done.report, 0);
    EXPECT_EQ(reports(store), 1);
    jobs = take(store, "post", "w2", 60000);
    EXPECT(jobs != NULL);
    lh_jobs_free(jobs);
    lh_close(store);
}

TEST(store_is_degraded_until_a_whole_recovery_succeeds)
{
    lh_store *store = store_with_a_stubborn_job();
    lh_report_free(recover(store, NULL));
    expect_degraded(store, true);
    lh_report_free(recover(store, NULL)); /* the same as before */
    expect_degraded(store, true);
    soften();
    expect_degraded(store, true);
    lh_report *report = recover(store, NULL);
    EXPECT_EQ(report->entries_reclaimed, 1);
    EXPECT_EQ(report->failed_recoveries, 0);
    lh_report_free(report);
    expect_degraded(store, false);
    store_check(store);
    lh_close(store);
}

TEST(successful_startup_ends_the_degraded_state)
{
    lh_store *store = store_with_a_stubborn_job();
    lh_report_free(recover(store, NULL));
    soften();
    lh_close(store_open("store.db", (lh_open_opts){.startup = true}));
    expect_degraded(store, false);
    EXPECT_EQ(state_of(store, STUBBORN), LH_PENDING);
    lh_close(store);
}

TEST(maintenance_that_recovers_the_failed_job_ends_the_degraded_state)
{
    lh_store *store = store_with_a_stubborn_job();
    lh_report_free(recover(store, NULL));
    soften();
    lh_maintained done;
    EXPECT_OK(lh_maintain(store, NULL, &done));
    EXPECT_EQ(done.recovered, 1);
    expect_degraded(store, false);
    lh_close(store);
}

TEST(partial_recovery_does_not_end_the_degraded_state)
{
    lh_store *store = store_with_a_stubborn_job();
    int raised = 1;
    lh_report_free(recover(store, NULL));
    lh_report_free(recover(store, &(lh_recover_opts){.queue = "post"}));
    expect_degraded(store, true);
    lh_recover_opts old = {.by_age = true, .threshold_ms = 3600000};
    lh_report_free(recover(store, &old));
    expect_degraded(store, true);
    EXPECT_STATUS(lh_recover(store, &(lh_recover_opts){.cancel = &raised}, NULL), LH_EINTR);
    expect_degraded(store, true);
    lh_report_free(recover(store, &(lh_recover_opts){.dry_run = true}));
    expect_degraded(store, true);
    lh_close(store);
}

TEST(second_job_that_cannot_be_recovered_is_reported_too)
{
    lh_store *store = store_with_a_stubborn_job();
    lh_maintained done;
    EXPECT_OK(lh_maintain(store, NULL, &done));
    EXPECT_EQ(reports(store), 1);
    exec("CREATE TRIGGER stubborn_too BEFORE UPDATE ON lh_job WHEN old.id = 1 AND old.state = "
         "'running' AND new.state <> 'running' BEGIN SELECT RAISE(ABORT, 'nor will this'); END");
    lh_jobs_free(take(store, "mail", "w2", 1000));
    pass_ms(1000);
    EXPECT_OK(lh_maintain(store, NULL, &done));
    EXPECT(done.report != 0);
    lh_report *report = last_report(store);
    EXPECT_EQ(report->failed_recoveries, 1);
    EXPECT_EQ(report->recovered[0].job, 1);
    EXPECT_CONTAINS(report->recovered[0].error, "nor will this");
    lh_report_free(report);
    lh_close(store);
}

TEST(store_is_not_degraded_after_the_failed_job_is_deleted)
{
    lh_store *store = store_with_a_stubborn_job();
    lh_report_free(recover(store, NULL));
    soften();
    EXPECT_OK(lh_cancel(store, &(int64_t){STUBBORN}, 1, NULL, NULL));
    EXPECT_OK(lh_maintain(store, NULL, NULL));
    expect_degraded(store, false);
    lh_close(store);
}

/* ---- maintenance is not kept busy ---- */

struct keeper {
    lh_store *store;
    int cancel, rounds, rc;
};

static void *keep_up(void *arg)
{
    struct keeper *k = arg;
    lh_maintain_opts opts = {.wait_ms = -1, .cancel = &k->cancel};
    do
        k->rc = lh_maintain(k->store, &opts, NULL);
    while (k->rc == LH_OK && ++k->rounds < 1000);
    return NULL;
}

TEST(a_job_that_cannot_be_recovered_does_not_keep_maintenance_busy)
{
    struct keeper k = {.store = store_with_a_stubborn_job()};
    pthread_t thread;
    EXPECT_EQ(pthread_create(&thread, NULL, keep_up, &k), 0);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL); /* nothing happens meanwhile */
    __atomic_store_n(&k.cancel, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    EXPECT_STATUS(k.rc, LH_EINTR);
    EXPECT(k.rounds <= 3);
    lh_close(k.store);
}

/* ---- inconsistencies ---- */

TEST(wrong_counts_are_reported_and_corrected)
{
    freeze_now();
    lh_store *store = store_new();
    for (int i = 0; i < 4; i++)
        add(store, "mail", "x");
    exec("UPDATE lh_queue SET pending = 99, failed = 7 WHERE queue = 'mail'");
    lh_report *report = recover(store, NULL);
    EXPECT(report->n_inconsistencies > 0);
    EXPECT_CONTAINS(report->inconsistencies[0], "mail");
    lh_report_free(report);
    EXPECT_EQ(counts_of(store, "mail").pending, 4);
    EXPECT_EQ(counts_of(store, "mail").failed, 0);
    report = recover(store, NULL);
    EXPECT_EQ(report->n_inconsistencies, 0);
    lh_report_free(report);
    store_check(store);
    lh_close(store);
}

TEST(missing_count_is_created_again)
{
    freeze_now();
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_close(store);
    exec("DELETE FROM lh_queue WHERE queue = 'mail'");
    store = store_open("store.db", (lh_open_opts){.startup = true});
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    store_check(store);
    lh_close(store);
}

TEST(highest_id_that_is_too_low_is_corrected)
{
    lh_store *store = store_new();
    for (int i = 0; i < 5; i++)
        (void)add(store, "q", "x");
    sqlite3 *db = db_open("store.db");
    db_exec(db, "DELETE FROM sqlite_sequence WHERE name = 'lh_job'");
    EXPECT_OK(lh_recover(store, NULL, NULL));
    EXPECT_EQ(db_int(db, "SELECT seq FROM sqlite_sequence WHERE name = 'lh_job'"), 5);
    EXPECT_EQ(add(store, "q", "x"), 6);
    store_check(store);
    sqlite3_close(db);
    lh_close(store);
}

/* ---- steps that a user's trigger refuses ---- */

/* Two jobs with expired leases, an expired named lease, and a trigger. */
static lh_store *store_with_a_refused_step(const char *trigger)
{
    freeze_now();
    lh_store *store = store_new();
    lh_leases *lease = NULL;
    for (int i = 0; i < 2; i++) {
        add(store, "mail", "x");
        lh_jobs_free(take(store, "mail", "w1", 1000));
    }
    EXPECT_OK(lh_lease_acquire(store, "sync", "all",
                               &(lh_lease_opts){.owner = "w1", .ttl_ms = 1000}, &lease));
    lh_leases_free(lease);
    exec(trigger);
    pass_ms(1000);
    return store;
}

#define REFUSE(table_, when_)                                       \
    "CREATE TRIGGER refuse BEFORE " table_ " WHEN " when_ " BEGIN " \
    "SELECT RAISE(ABORT, 'the auditor says no'); END"

static void expect_refused(const char *trigger, const char *message)
{
    lh_store *store = store_with_a_refused_step(trigger);
    lh_report *report = NULL;

    EXPECT_STATUS(lh_recover(store, NULL, &report), LH_EFAIL);
    EXPECT_STR(lh_errmsg(store), message);
    EXPECT_EQ(state_of(store, 1), LH_RUNNING);
    lh_close(store);
}

TEST(a_recovery_report_that_cannot_be_written_is_named_in_the_error)
{
    expect_refused(REFUSE("INSERT ON lh_report", "true"),
                   "recovery could not begin its report: the auditor says no");
}

TEST(a_failure_event_that_cannot_be_written_is_named_in_the_error)
{
    expect_refused(REFUSE("INSERT ON lh_event", "new.type IN ('job.recovered', 'recovery.failed')"),
                   "recovery could not record that job 1 cannot be recovered: the auditor says no");
}

TEST(an_end_of_a_report_that_the_database_refuses_is_named)
{
    expect_refused(REFUSE("UPDATE OF completed_at ON lh_report", "true"),
                   "recovery could not end its report: the auditor says no");
}

TEST(a_job_whose_event_is_refused_stays_as_it_was_and_the_rest_goes_on)
{
    lh_store *store = store_with_a_refused_step(
        REFUSE("INSERT ON lh_event", "new.type = 'job.recovered' AND new.job = 1"));
    lh_report *report = recover(store, NULL);

    EXPECT_EQ(report->entries_reclaimed, 1);
    EXPECT_EQ(report->failed_recoveries, 1);
    EXPECT_EQ(report->locks_cleaned, 1);
    EXPECT_STR(report->recovered[0].error, "the auditor says no");
    lh_report_free(report);
    EXPECT_EQ(state_of(store, 1), LH_RUNNING);
    EXPECT_EQ(state_of(store, 2), LH_PENDING);
    store_check(store);
    lh_close(store);
}

TEST(lease_that_cannot_be_freed_does_not_stop_the_recovery_of_jobs)
{
    lh_store *store = store_with_a_refused_step(REFUSE("UPDATE ON lh_lease", "new.owner IS NULL"));
    lh_jobs *jobs = take(store, "mail", "w2", 60000);

    EXPECT(jobs != NULL);
    lh_jobs_free(jobs);
    expect_degraded(store, true);
    EXPECT_EQ(reports(store), 1);
    /* the failure is known, so there is no second report */
    jobs = take(store, "mail", "w2", 60000);
    lh_jobs_free(jobs);
    EXPECT_EQ(reports(store), 1);
    lh_report *report = recover(store, NULL);
    EXPECT_EQ(report->failed_recoveries, 1);
    EXPECT_EQ(report->n_recovered, 1);
    EXPECT_EQ(report->recovered[0].job, 0);
    EXPECT_STR(report->recovered[0].error, "lease sync/all cannot be freed: the auditor says no");
    lh_report_free(report);
    exec("DROP TRIGGER refuse");
    lh_report_free(recover(store, NULL));
    expect_degraded(store, false);
    lh_close(store);
}

/* Two damaged jobs. The step that sets the first aside is undone, and the epoch with it. */
TEST(an_epoch_that_was_raised_in_a_refused_step_is_raised_again_by_the_next)
{
    lh_store *store = store_with_a_refused_step(
        REFUSE("INSERT ON lh_event", "new.type = 'job.recovered' AND new.job = 1"));
    sqlite3 *db = db_open_to_damage("store.db");

    db_exec(db, "UPDATE lh_job SET attempt = attempt + 1 WHERE queue = 'mail'");
    lh_report_free(recover(store, NULL));
    EXPECT_EQ(state_of(store, 1), LH_RUNNING);
    EXPECT_EQ(state_of(store, 2), LH_FAILED);
    EXPECT_EQ(db_int(db, "SELECT value FROM lh_meta WHERE key = 'epoch'"), 1);
    EXPECT_EQ(db_int(db, "SELECT token >> 40 FROM lh_job WHERE id = 2"), 1);
    EXPECT_EQ(db_int(db, "SELECT token >> 40 FROM lh_job WHERE id = 1"), 0);
    sqlite3_close(db);
    lh_close(store);
}

/* Every run fails again; only what is new is reported. */
TEST(a_failure_that_repeats_is_reported_once_and_a_new_one_beside_it_too)
{
    lh_store *store = store_with_a_refused_step(REFUSE("UPDATE ON lh_lease", "new.owner IS NULL"));
    lh_leases *lease = NULL;
    lh_store_info info;
    sqlite3 *db = db_open("store.db");

    for (int i = 0; i < 5; i++)
        EXPECT_OK(lh_maintain(store, NULL, NULL));
    EXPECT_EQ(reports(store), 1);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_event WHERE type = 'recovery.failed'"), 1);
    expect_degraded(store, true);

    EXPECT_OK(lh_lease_acquire(store, "sync", "other",
                               &(lh_lease_opts){.owner = "w2", .ttl_ms = 1000}, &lease));
    lh_leases_free(lease);
    pass_ms(1000);
    for (int i = 0; i < 5; i++)
        EXPECT_OK(lh_maintain(store, NULL, NULL));
    EXPECT_EQ(reports(store), 2);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_event WHERE type = 'recovery.failed'"), 2);
    lh_report *report = last_report(store);
    EXPECT_EQ(report->failed_recoveries, 1);
    EXPECT_STR(report->recovered[0].error, "lease sync/other cannot be freed: the auditor says no");
    lh_report_free(report);
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_CONTAINS(info.degraded, "2 recovery steps failed, see recovery report 2");

    exec("DROP TRIGGER refuse");
    EXPECT_OK(lh_maintain(store, NULL, NULL));
    expect_degraded(store, false);
    sqlite3_close(db);
    lh_close(store);
}

/* 600 leases of one owner, more than a batch, that no recovery can free. They expire before all
 * others. */
static void put_refused_leases(const char *owner, int64_t expires_at)
{
    char sql[400];

    (void)snprintf(
        sql, sizeof sql,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600) "
        "INSERT INTO lh_lease(scope, name, owner, token, ttl_ms, acquired_at, expires_at) "
        "SELECT 'refused', i, '%s', 1, 1, 1, %lld FROM n",
        owner, (long long)expires_at);
    exec(sql);
}

#define REFUSE_600 REFUSE("UPDATE ON lh_lease", "new.owner IS NULL AND old.scope = 'refused'")

TEST(expired_leases_behind_a_batch_of_refused_ones_are_freed)
{
    lh_store *store = store_with_a_refused_step(REFUSE_600);
    put_refused_leases("w1", 2);
    lh_report *report = recover(store, NULL);
    EXPECT_EQ(report->failed_recoveries, 600);
    EXPECT_EQ(report->locks_cleaned, 1);
    lh_report_free(report);
    lh_close(store);
}

/* A worker that was silent for too long and holds a named lease. */
static lh_store *store_with_a_silent_worker(const char *trigger)
{
    lh_store *store = store_with_a_refused_step(trigger);
    lh_leases *lease = NULL;
    char id[64];

    EXPECT_OK(lh_worker_register(
        store, &(lh_worker_opts){.id = "w9", .process = true, .interval_ms = 1000}, id, sizeof id));
    EXPECT_OK(lh_lease_acquire(store, "sync", "mine",
                               &(lh_lease_opts){.owner = "w9", .ttl_ms = 600000}, &lease));
    lh_leases_free(lease);
    pass_ms(60000);
    return store;
}

TEST(worker_that_cannot_be_marked_dead_does_not_stop_the_recovery_of_jobs)
{
    lh_store *store =
        store_with_a_silent_worker(REFUSE("INSERT ON lh_event", "new.type = 'worker.dead'"));
    lh_jobs *jobs = take(store, "mail", "w2", 60000);

    EXPECT(jobs != NULL);
    lh_jobs_free(jobs);
    lh_report *report = recover(store, NULL);
    EXPECT_EQ(report->n_dead_workers, 0);
    EXPECT_STR(report->recovered[0].error, "worker w9 cannot be marked dead: the auditor says no");
    lh_report_free(report);
    lh_close(store);
}

TEST(leases_of_a_dead_worker_behind_a_batch_of_refused_ones_are_freed)
{
    lh_store *store = store_with_a_silent_worker(REFUSE_600);
    put_refused_leases("w9", INT64_C(4000000000000)); /* in the year 2096 */
    exec("UPDATE lh_lease SET name = 'last', scope = 'zz', row_sum = NULL WHERE name = 'mine'");
    lh_report *report = recover(store, NULL);
    EXPECT_EQ(report->n_dead_workers, 1);
    EXPECT_EQ(report->failed_recoveries, 600);
    EXPECT_EQ(report->locks_cleaned, 2); /* and the expired one */
    lh_report_free(report);
    lh_close(store);
}

TEST(refused_lease_of_a_dead_worker_is_not_counted_as_a_job)
{
    lh_store *store = store_with_a_silent_worker(
        REFUSE("UPDATE ON lh_lease", "old.name = 'mine' AND new.owner IS NULL"));
    lh_report *report = recover(store, NULL);

    EXPECT_EQ(report->failed_recoveries, 1);
    EXPECT_EQ(report->n_dead_workers, 1);
    EXPECT_EQ(report->dead_workers[0].n_jobs, 0);
    EXPECT_STR(report->recovered[0].error, "lease sync/mine cannot be freed: the auditor says no");
    lh_report_free(report);
    lh_close(store);
}
