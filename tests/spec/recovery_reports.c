/* Reports of recoveries: when one is written, all of its fields, lists of reports, and pruning. */
#include "recovery_world.h"

#define DAY_MS INT64_C(86400000)

/* ---- one report ---- */

SPEC(a_report_lists_everything_that_a_recovery_did)
{
    struct world w = world_open();
    lh_job last;
    enlist_process(&w, "w-1");
    lh_job silent = held(&w, "mail", "w-1", 60000);
    enqueue(&w, "post", "x", .kind = "k", .max_attempts = 1);
    EXPECT_OK(claim_one(&w, "post", &last, .worker = "w-2", .lease_ms = 1000));
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a",
                               &(lh_lease_opts){.owner = "o-1", .ttl_ms = 1000}, NULL));
    clock_advance_ms(&w, SILENCE_MS);
    const lh_report *report = recover_by(&w, NULL);
    EXPECT(report->id > 0);
    EXPECT_STR(report->trigger, "manual");
    EXPECT_EQ(report->started_at, WORLD_START_MS + SILENCE_MS);
    EXPECT_EQ(report->completed_at, WORLD_START_MS + SILENCE_MS);
    EXPECT_EQ(report->recovery_timestamp, WORLD_START_MS + SILENCE_MS);
    EXPECT_EQ(report->duration_ms, 0);
    EXPECT(!report->integrity.ran && !report->integrity.passed);
    EXPECT(!report->integrity.repair_attempted && !report->integrity.repair_succeeded);
    EXPECT_EQ(report->integrity.n_errors, 0);
    EXPECT_EQ(report->wal_frames, -1);
    EXPECT_EQ(report->orphaned, 2);
    EXPECT_EQ(report->entries_reclaimed, 2);
    EXPECT_EQ(report->locks_cleaned, 1);
    EXPECT_EQ(report->failed_recoveries, 0);
    EXPECT_EQ(report->n_inconsistencies, 0);
    EXPECT(!report->dry_run);

    EXPECT_EQ(report->n_recovered, 2);
    const lh_recovered_job *one = told_of(report, silent.id), *other = told_of(report, last.id);
    EXPECT_STR(one->queue, "mail");
    EXPECT(one->kind == NULL);
    EXPECT_STR(one->action, "retry");
    EXPECT_EQ(one->attempt, 2);
    EXPECT_EQ(one->max_attempts, 3);
    EXPECT_STR(one->previous_worker, "w-1");
    EXPECT(one->success && one->error == NULL);
    EXPECT_STR(other->queue, "post");
    EXPECT_STR(other->kind, "k");
    EXPECT_STR(other->action, "failed");
    EXPECT_EQ(other->attempt, 1);
    EXPECT_EQ(other->max_attempts, 1);
    EXPECT_STR(other->previous_worker, "w-2");
    EXPECT_STR(other->reason, job_of(&w, last.id).last_error);

    EXPECT_EQ(report->n_dead_workers, 1);
    EXPECT_STR(report->dead_workers[0].worker, "w-1");
    EXPECT_EQ(report->dead_workers[0].last_heartbeat, WORLD_START_MS);
    EXPECT_EQ(report->dead_workers[0].n_jobs, 1);
    EXPECT_EQ(report->dead_workers[0].jobs[0], silent.id);
    world_close(&w);
}

/* Another handle reads the same report later. */
SPEC(a_stored_report_equals_the_returned_report)
{
    struct world w = world_open();
    enlist_process(&w, "w-1");
    lh_job silent = held(&w, "mail", "w-1", 60000);
    held(&w, "mail", "w-2", 1000);
    clock_advance_ms(&w, SILENCE_MS);
    const lh_report *now = recover_by(&w, NULL);
    clock_advance_ms(&w, 5000);
    struct world other = {.store = world_second_handle()};
    const lh_report *kept = report_of(&other, now->id);
    EXPECT_EQ(kept->id, now->id);
    EXPECT_STR(kept->trigger, now->trigger);
    EXPECT_EQ(kept->started_at, now->started_at);
    EXPECT_EQ(kept->completed_at, now->completed_at);
    EXPECT_EQ(kept->recovery_timestamp, now->recovery_timestamp);
    EXPECT_EQ(kept->orphaned, 2);
    EXPECT_EQ(kept->n_recovered, 2);
    for (size_t i = 0; i < 2; i++) {
        const lh_recovered_job *is = &kept->recovered[i], *was = &now->recovered[i];
        EXPECT_EQ(is->job, was->job);
        EXPECT_STR(is->queue, "mail");
        EXPECT_STR(is->action, was->action);
        EXPECT_EQ(is->attempt, 2);
        EXPECT_EQ(is->max_attempts, was->max_attempts);
        EXPECT_STR(is->previous_worker, was->previous_worker);
        EXPECT(is->success && is->error == NULL);
        EXPECT_STR(is->reason, was->reason);
    }
    EXPECT_EQ(kept->entries_reclaimed, 2);
    EXPECT_EQ(kept->n_dead_workers, 1);
    EXPECT_STR(kept->dead_workers[0].worker, "w-1");
    EXPECT_EQ(kept->dead_workers[0].last_heartbeat, WORLD_START_MS);
    EXPECT_EQ(kept->dead_workers[0].n_jobs, 1);
    EXPECT_EQ(kept->dead_workers[0].jobs[0], silent.id);
    world_close(&other);
    world_close(&w);
}

SPEC(the_last_report_is_the_newest)
{
    struct world w = world_open();
    lh_report *none = NULL;
    EXPECT_STATUS(lh_report_get(w.store, 0, &none), LH_ENOTFOUND);
    EXPECT_CONTAINS(lh_errmsg(w.store), "no recovery report");
    int64_t first = recover_by(&w, NULL)->id, second = recover_by(&w, NULL)->id;
    EXPECT(second > first);
    EXPECT_EQ(report_of(&w, 0)->id, second);
    EXPECT_EQ(report_of(&w, first)->id, first);
    EXPECT_STATUS(lh_report_get(w.store, second + 1, &none), LH_ENOTFOUND);
    EXPECT_STATUS(lh_report_get(w.store, -1, &none), LH_EINVAL);
    EXPECT_STATUS(lh_report_get(w.store, 0, NULL), LH_EMISUSE);
    EXPECT(none == NULL);
    lh_report_free(NULL);
    world_close(&w);
}

SPEC(a_report_remains_after_its_jobs_are_deleted)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 1000);
    clock_advance_ms(&w, 1000);
    int64_t id = recover_by(&w, NULL)->id;
    EXPECT_OK(lh_delete(w.store, &job.id, 1, NULL));
    EXPECT_EQ(told_of(report_of(&w, id), job.id)->attempt, 2);
    EXPECT_STR(told_of(report_of(&w, id), job.id)->queue, "mail");
    world_close(&w);
}

SPEC(a_report_has_limited_lists_and_complete_counts)
{
    enum { MANY = LH_REPORT_MOST + 3, BATCH = 1000 };
    struct world w = world_open();
    static lh_new_job jobs[MANY];
    static lh_enqueued out[MANY];
    EXPECT_OK(policy(&w, NULL, NULL, .set = LH_POLICY_LEASE, .lease_ms = 1000));
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, MANY, NULL, out));
    for (int i = 0; i < MANY; i += BATCH)
        EXPECT(claim_many(&w, "mail", BATCH)->n > 0);
    clock_advance_ms(&w, 1000);
    const lh_report *would = recover_by(&w, &(lh_recover_opts){.dry_run = true});
    EXPECT_EQ(would->n_recovered, LH_REPORT_MOST);
    EXPECT_EQ(would->entries_reclaimed, MANY);
    const lh_report *report = recover_by(&w, NULL);
    EXPECT_EQ(report->n_recovered, LH_REPORT_MOST);
    EXPECT_EQ(report->entries_reclaimed, MANY);
    EXPECT_EQ(report->orphaned, MANY);
    world_close(&w);
}

/* ---- who leaves one ---- */

SPEC(a_claim_that_recovers_leaves_a_report)
{
    struct world w = world_open();
    lh_job job, next;
    job = held(&w, "mail", "w-1", 1000);
    EXPECT_STATUS(claim_one(&w, "mail", &next), LH_EMPTY);
    EXPECT_EQ(reports(&w), 0);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "mail", &next));
    const lh_report *report = report_of(&w, 0);
    EXPECT_STR(report->trigger, "claim");
    EXPECT_EQ(report->entries_reclaimed, 1);
    EXPECT(told_of(report, job.id) != NULL);
    EXPECT_EQ(report->completed_at, WORLD_START_MS + 1000);
    EXPECT_STATUS(claim_one(&w, "mail", &next), LH_EMPTY);
    EXPECT_EQ(reports(&w), 1);
    world_close(&w);
}

SPEC(maintenance_that_recovers_an_expired_lease_leaves_a_report_of_expiry)
{
    struct world w = world_open();
    held(&w, "mail", "w-1", 1000);
    EXPECT_EQ(upkeep(&w).report, 0);
    clock_advance_ms(&w, 1000);
    lh_maintained done = upkeep(&w);
    EXPECT(done.report > 0);
    EXPECT_STR(report_of(&w, done.report)->trigger, "expiry");
    EXPECT_EQ(report_of(&w, done.report)->entries_reclaimed, done.recovered);
    EXPECT_EQ(upkeep(&w).report, 0);
    EXPECT_EQ(reports(&w), 1);
    world_close(&w);
}

SPEC(maintenance_that_finds_a_silent_worker_without_jobs_leaves_a_report_of_the_timer)
{
    struct world w = world_open();
    enlist_process(&w, "w-1");
    clock_advance_ms(&w, SILENCE_MS);
    lh_maintained done = upkeep(&w);
    EXPECT_EQ(done.dead_workers, 1);
    const lh_report *report = report_of(&w, done.report);
    EXPECT_STR(report->trigger, "timer");
    EXPECT_EQ(report->n_dead_workers, 1);
    EXPECT_EQ(report->dead_workers[0].n_jobs, 0);
    EXPECT_EQ(report->orphaned, 0);
    world_close(&w);
}

SPEC(maintenance_that_frees_a_named_lease_leaves_a_report)
{
    struct world w = world_open();
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a", &(lh_lease_opts){.ttl_ms = 1000}, NULL));
    clock_advance_ms(&w, 1000);
    lh_maintained done = upkeep(&w);
    EXPECT_EQ(report_of(&w, done.report)->locks_cleaned, 1);
    EXPECT_EQ(done.recovered, 0);
    world_close(&w);
}

SPEC(a_startup_leaves_a_report_even_if_it_finds_nothing)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 1000);
    lh_close(world_handle((lh_open_opts){.startup = true}));
    EXPECT_STR(report_of(&w, 0)->trigger, "startup");
    EXPECT_EQ(report_of(&w, 0)->orphaned, 0);
    EXPECT(report_of(&w, 0)->completed_at != 0);
    EXPECT(report_of(&w, 0)->integrity.ran && report_of(&w, 0)->integrity.passed);
    clock_advance_ms(&w, 1000);
    lh_close(world_handle((lh_open_opts){.startup = true}));
    EXPECT_EQ(reports(&w), 2);
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    EXPECT(told_of(report_of(&w, 0), job.id) != NULL);
    world_close(&w);
}

SPEC(a_startup_with_recovery_off_recovers_nothing_and_reports_that)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 1000);
    clock_advance_ms(&w, 1000);
    lh_close(world_handle((lh_open_opts){.startup = true, .no_recovery = true}));
    EXPECT_EQ(job_of(&w, job.id).state, LH_RUNNING);
    EXPECT_STR(report_of(&w, 0)->trigger, "startup");
    EXPECT_EQ(report_of(&w, 0)->entries_reclaimed, 0);
    world_close(&w);
}

SPEC(an_open_without_startup_recovers_nothing)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 1000);
    clock_advance_ms(&w, 1000);
    lh_close(world_handle((lh_open_opts){0}));
    EXPECT_EQ(reports(&w), 0);
    EXPECT_EQ(job_of(&w, job.id).state, LH_RUNNING);
    world_close(&w);
}

/* ---- many ---- */

SPEC(reports_are_listed_newest_first)
{
    struct world w = world_open();
    lh_reports *list = NULL;
    EXPECT_OK(lh_report_list(w.store, 0, &list));
    EXPECT_EQ(list->n, 0);
    lh_reports_free(list);
    for (int i = 0; i < 120; i++) {
        held(&w, "mail", "w-1", 1000);
        clock_advance_ms(&w, 1000);
        recover_by(&w, &(lh_recover_opts){.action = LH_ACTION_FAIL});
    }
    EXPECT_OK(lh_report_list(w.store, 0, &list));
    EXPECT_EQ(list->n, 100); /* unless more are asked for */
    for (size_t i = 0; i < list->n; i++) {
        EXPECT_EQ(list->report[i].started_at, WORLD_START_MS + 1000 * (120 - (int64_t)i));
        EXPECT_STR(list->report[i].trigger, "manual");
        EXPECT_EQ(list->report[i].entries_reclaimed, 1);
        EXPECT(list->report[i].recovered == NULL);
    }
    lh_reports_free(list);
    EXPECT_OK(lh_report_list(w.store, 3, &list));
    EXPECT_EQ(list->n, 3);
    EXPECT_EQ(list->report[0].id, report_of(&w, 0)->id);
    lh_reports_free(list);
    EXPECT_OK(lh_report_list(w.store, 10000, &list));
    EXPECT_EQ(list->n, 120);
    lh_reports_free(list);
    EXPECT_STATUS(lh_report_list(w.store, 10001, &list), LH_EINVAL);
    EXPECT_STATUS(lh_report_list(w.store, 0, NULL), LH_EMISUSE);
    lh_reports_free(NULL);
    world_close(&w);
}

SPEC(a_listed_report_has_counts_and_no_lists)
{
    struct world w = world_open();
    lh_reports *list = NULL;
    enlist_process(&w, "w-1");
    held(&w, "mail", "w-1", 60000);
    clock_advance_ms(&w, SILENCE_MS);
    recover_by(&w, NULL);
    EXPECT_OK(lh_report_list(w.store, 0, &list));
    const lh_report *one = &list->report[0];
    EXPECT(one->n_recovered == 0 || one->recovered != NULL);
    EXPECT(one->n_dead_workers == 0 || one->dead_workers != NULL);
    EXPECT(one->n_inconsistencies == 0 || one->inconsistencies != NULL);
    EXPECT(one->integrity.n_errors == 0 || one->integrity.errors != NULL);
    lh_reports_free(list);
    world_close(&w);
}

SPEC(reports_are_pruned_by_age)
{
    struct world w = world_open();
    lh_report *none = NULL;
    int64_t old = recover_by(&w, NULL)->id;
    clock_advance_ms(&w, 600);
    int64_t young = recover_by(&w, NULL)->id;
    clock_advance_ms(&w, 600);
    EXPECT_OK(lh_prune(w.store, 1000, NULL, NULL));
    EXPECT_STATUS(lh_report_get(w.store, old, &none), LH_ENOTFOUND);
    EXPECT_EQ(report_of(&w, young)->id, young);
    EXPECT(recover_by(&w, NULL)->id > young); /* a number is never used again */
    clock_advance_ms(&w, 30 * DAY_MS - 700);
    (void)upkeep(&w);
    EXPECT_EQ(reports(&w), 2);
    clock_advance_ms(&w, 60000 + 700);
    (void)upkeep(&w);
    EXPECT_EQ(reports(&w), 0);
    world_close(&w);
}
