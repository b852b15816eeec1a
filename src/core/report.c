/* report.c: recovery by an operator and at startup, dry runs, and reading reports. */
#include "core/core.h"

#include <string.h>

enum { MAX_REPORTS = 10000 };

/* ---- reports ---- */

void lh_report_free(lh_report *report)
{
    if (report != NULL)
        lhi_result_free(report, report->priv, NULL);
}

void lh_reports_free(lh_reports *reports)
{
    if (reports != NULL)
        lhi_result_free(reports, reports->priv, reports->report);
}

static int get_report(lh_store *store, int64_t id, lh_report **out, struct lhi_error *err)
{
    lh_report *report = lhi_result_new(sizeof *report, err);
    if (report == NULL)
        return err->status;
    struct lhi_act act = {.verb = LHI_REPORT_GET, .report = {.id = id, .out = report}};
    int rc = lhi_read(store, &act, err);
    if (rc == LH_OK)
        *out = report;
    else
        lh_report_free(report);
    return rc;
}

int lh_report_get(lh_store *store, int64_t id, lh_report **out)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_out(out, err)) != LH_OK ||
        (rc = lhi_need_range("report", id, 0, INT64_MAX, err)) != LH_OK)
        return rc;
    return get_report(store, id, out, err);
}

int lh_report_list(lh_store *store, size_t limit, lh_reports **out)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_out(out, err)) != LH_OK ||
        (rc = lhi_need_range("limit", (int64_t)limit, 0, MAX_REPORTS, err)) != LH_OK)
        return rc;
    lh_reports *reports = lhi_result_new(sizeof *reports, err);
    if (reports == NULL)
        return err->status;
    struct lhi_act act = {.verb = LHI_REPORT_LIST,
                          .reports = {.limit = limit ? limit : 100, .out = reports}};
    rc = lhi_read(store, &act, err);
    if (rc == LH_OK)
        *out = reports;
    else
        lh_reports_free(reports);
    return rc;
}

/* ---- dry runs ---- */

/* The entry of one job, as if it were recovered now. */
static bool report_job(const struct lhi_stale_job *stale, const lh_policy *policy,
                       const lh_recover_opts *opts, int64_t now, struct lhi_arena *arena,
                       lh_recovered_job *out)
{
    const lh_job *job = &stale->job;
    struct lhi_fate fate;

    lhi_decide_death(job, policy, opts, stale->cause, stale->what, stale->unstarted, now, &fate);
    *out = (lh_recovered_job){.job = job->id,
                              .queue = lhi_arena_strdup(arena, job->queue),
                              .kind = lhi_arena_strdup(arena, job->kind),
                              .action = fate.action,
                              .attempt = fate.shown_attempt,
                              .max_attempts = job->max_attempts,
                              .previous_worker = lhi_arena_strdup(arena, job->worker),
                              .reason = lhi_arena_strdup(arena, fate.reason),
                              .success = true};
    return out->queue != NULL && out->reason != NULL && out->previous_worker != NULL &&
           (out->kind != NULL) == (job->kind != NULL);
}

static int report_dead(const struct lhi_death *deaths, size_t n, const struct lhi_act *stale,
                       struct lhi_arena *arena, lh_report *report, struct lhi_error *err)
{
    lh_dead_worker *dead = lhi_arena_alloc(arena, (n + 1) * sizeof *dead);
    bool ok = dead != NULL;

    for (size_t i = 0; i < n && ok; i++) {
        if (deaths[i].late)
            continue;
        lh_dead_worker *one = &dead[report->n_dead_workers++];
        int64_t *held = lhi_arena_alloc(arena, (stale->stale.n_jobs + 1) * sizeof *held);
        *one = (lh_dead_worker){.worker = lhi_arena_strdup(arena, deaths[i].worker),
                                .last_heartbeat = deaths[i].last_heartbeat_at,
                                .jobs = held};
        ok = held != NULL && one->worker != NULL;
        for (size_t k = 0; k < stale->stale.n_jobs && ok; k++)
            if (strcmp(stale->stale.jobs[k].job.worker, one->worker) == 0)
                held[one->n_jobs++] = stale->stale.jobs[k].job.id;
    }
    report->dead_workers = dead;
    return ok ? LH_OK : lhi_no_memory(err);
}

static int report_jobs(lh_store *store, const lh_recover_opts *opts, const struct lhi_act *stale,
                       struct lhi_arena *arena, lh_report *report, struct lhi_error *err)
{
    lh_policies policies = {0};
    struct lhi_act act = {.verb = LHI_POLICY_LIST, .policies = {.out = &policies}};
    size_t n = stale->stale.n_jobs;
    lh_recovered_job *entries = lhi_arena_alloc(arena, (n + 1) * sizeof *entries);
    if (entries == NULL)
        return lhi_no_memory(err);
    int rc = lhi_read(store, &act, err);
    for (size_t i = 0; i < n && rc == LH_OK; i++) {
        const struct lhi_stale_job *one = &stale->stale.jobs[i];
        lh_policy policy;
        lhi_policy_resolve(&policies, one->job.queue, one->job.kind, &policy);
        if (!report_job(one, &policy, opts, report->started_at, arena, &entries[i]))
            rc = lhi_no_memory(err);
    }
    report->recovered = entries;
    report->n_recovered = n;
    lhi_policies_clear(&policies);
    return rc;
}

/* Read what is reclaimable now, including the jobs of workers found dead now; free it with stale_clear(). */
static int read_stale(lh_store *store, const lh_recover_opts *opts, bool rows,
                      struct lhi_suspects *suspects, struct lhi_act *stale, struct lhi_error *err)
{
    struct lhi_death *deaths = NULL;
    size_t n = 0;
    int rc = lhi_judge_workers(store, suspects, &deaths, &n, err);

    *stale = (struct lhi_act){
        .verb = LHI_STALE, .stale = {.opts = opts, .rows = rows, .deaths = deaths, .n_deaths = n}};
    return rc == LH_OK ? lhi_read(store, stale, err) : rc;
}

static void stale_clear(struct lhi_suspects *suspects, struct lhi_act *stale)
{
    lhi_free(stale->stale.ids);
    lhi_free(stale->stale.jobs);
    lhi_arena_drop(&stale->stale.priv);
    lhi_free((void *)(uintptr_t)stale->stale.deaths);
    lhi_suspects_clear(suspects);
}

int lhi_count_stale(lh_store *store, const lh_recover_opts *opts, lh_recovered *out,
                    struct lhi_error *err)
{
    struct lhi_suspects suspects = {0};
    struct lhi_act stale;
    int rc = read_stale(store, opts, false, &suspects, &stale, err);

    if (rc == LH_OK)
        *out = (lh_recovered){.entries_reclaimed = (int64_t)stale.stale.n,
                              .locks_cleaned = stale.stale.leases,
                              .recovery_timestamp = lh_now(store)};
    stale_clear(&suspects, &stale);
    return rc;
}

int lh_recovery_stats(lh_store *store, lh_recovered *out)
{
    static const lh_recover_opts by_operator;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    rc = lhi_need_out(out, err);
    return rc == LH_OK ? lhi_count_stale(store, &by_operator, out, err) : rc;
}

static int dry_run(lh_store *store, const lh_recover_opts *opts, lh_report **out,
                   struct lhi_error *err)
{
    struct lhi_suspects suspects = {0};
    struct lhi_act stale;
    lh_report *report = lhi_result_new(sizeof *report, err);

    if (report == NULL)
        return err->status;
    *report = (lh_report){.trigger = "manual", .wal_frames = -1, .dry_run = true};
    report->started_at = report->completed_at = report->recovery_timestamp = lh_now(store);
    struct lhi_arena *arena = lhi_arena_of(&report->priv);
    int rc = read_stale(store, opts, true, &suspects, &stale, err);
    if (rc == LH_OK && arena == NULL)
        rc = lhi_no_memory(err);
    if (rc == LH_OK)
        rc = report_jobs(store, opts, &stale, arena, report, err);
    if (rc == LH_OK)
        rc = report_dead(stale.stale.deaths, stale.stale.n_deaths, &stale, arena, report, err);
    report->orphaned = report->entries_reclaimed = (int64_t)stale.stale.n;
    report->locks_cleaned = stale.stale.leases;
    stale_clear(&suspects, &stale);
    if (rc == LH_OK && out != NULL)
        *out = report;
    else
        lh_report_free(report);
    return rc;
}

/* ---- by an operator ---- */

static int check_recover(const lh_recover_opts *opts, struct lhi_error *err)
{
    int rc;

    if (opts->queue != NULL && (rc = lhi_need_name("queue", opts->queue, err)) != LH_OK)
        return rc;
    if (opts->action != 0 && (rc = lhi_need_range("action", (int64_t)opts->action, LH_ACTION_RETRY,
                                                  LH_ACTION_FAIL, err)) != LH_OK)
        return rc;
    if (!opts->by_age && opts->threshold_ms != 0)
        return lhi_fail(err, LH_EMISUSE, "threshold_ms is set without by_age");
    return lhi_need_duration("threshold", opts->threshold_ms, 0, LHI_MAX_TIME_MS, err);
}

/* Take what opening found. The first recovery after it reports it, and no other. */
static void take_health(lh_store *store, struct lhi_health *out)
{
    pthread_mutex_lock(&store->slots_mutex);
    *out = store->health;
    store->health = (struct lhi_health){.wal_frames = -1};
    pthread_mutex_unlock(&store->slots_mutex);
}

/* Discard it if it was reported; otherwise keep it for the next recovery. */
static void give_health(lh_store *store, struct lhi_health *health, bool reported, size_t opened)
{
    for (; !reported && health->findings.n > opened;
         health->findings.n--) /* the next recovery finds these again */
        health->findings.errors -=
            strcmp(health->findings.finding[health->findings.n - 1].level, "error") == 0;
    pthread_mutex_lock(&store->slots_mutex);
    if (!reported && !store->health.checked && store->health.findings.n == 0) {
        store->health = *health;
        *health = (struct lhi_health){.wal_frames = -1};
    }
    pthread_mutex_unlock(&store->slots_mutex);
    lhi_health_clear(health);
}

/* Read the stored report. If that fails, return its numbers without the lists. */
static void read_run(lh_store *store, const struct lhi_run *run, lh_report *report, lh_report **out)
{
    struct lhi_error err;

    lhi_error_clear(&err);
    if (get_report(store, run->report, out, &err) == LH_OK) {
        lh_report_free(report);
        return;
    }
    lhi_log(&store->log, LH_LOG_WARN, "recovery report %lld could not be read: %s",
            (long long)run->report, err.text);
    *report = (lh_report){.id = run->report,
                          .trigger = "manual",
                          .started_at = run->started_at,
                          .completed_at = lh_now(store),
                          .wal_frames = -1,
                          .orphaned = run->orphaned,
                          .entries_reclaimed = lhi_run_reclaimed(run),
                          .locks_cleaned = run->leases,
                          .failed_recoveries = run->failures,
                          .recovery_timestamp = lh_now(store)};
    *out = report;
}

int lh_recover(lh_store *store, const lh_recover_opts *opts, lh_report **out)
{
    static const lh_recover_opts defaults;
    struct lhi_run run = {.trigger = "manual", .always = true};
    struct lhi_health health;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if (opts == NULL)
        opts = &defaults;
    if ((rc = LHI_NEED_RESERVED(opts, err)) != LH_OK || (rc = check_recover(opts, err)) != LH_OK)
        return rc;
    if (opts->dry_run)
        return dry_run(store, opts, out, err);
    /* Allocated first, so that the call cannot run out of memory after the recovery. */
    lh_report *report = lhi_result_new(sizeof *report, err);
    if (report == NULL)
        return err->status;
    run.whole = !opts->by_age && opts->queue == NULL;
    take_health(store, &health);
    size_t opened = health.findings.n;
    if ((rc = lhi_find_inconsistencies(store, opts->cancel, &health, err)) == LH_OK)
        rc = lhi_run_recovery(store, &run, opts, &health, err);
    give_health(store, &health, rc == LH_OK || (rc == LH_EINTR && run.report != 0), opened);
    if (rc == LH_OK && run.whole)
        lhi_set_degraded(store, NULL);
    if (rc == LH_OK && out != NULL)
        read_run(store, &run, report, out);
    else
        lh_report_free(report);
    return rc;
}

int lh_reclaim_stale(lh_store *store, int64_t threshold_ms, int64_t *reclaimed)
{
    lh_recover_opts opts = {.by_age = true, .threshold_ms = threshold_ms};
    lh_report *report = NULL;
    int rc = lh_recover(store, &opts, &report);

    if (rc != LH_OK || report == NULL)
        return rc;
    if (reclaimed != NULL)
        *reclaimed = report->entries_reclaimed;
    lh_report_free(report);
    return LH_OK;
}

/* ---- at startup ---- */

int lhi_recover_at_startup(lh_store *store, const lh_open_opts *opts, struct lhi_error *err)
{
    struct lhi_run run = {.trigger = "startup", .always = true, .whole = !opts->no_recovery};
    int rc;

    if (!store->health.due || opts->recover_later || opts->read_only)
        return LH_OK;
    /* Opening has reported a damaged store. A failed recovery is logged, and the next one tries again; it does
     * not prevent work on the store. */
    rc = store->health.rows_suspect ? lhi_find_inconsistencies(store, NULL, &store->health, err)
                                    : LH_OK;
    if (rc == LH_OK)
        rc = opts->no_recovery ? lhi_report_health(store, &run, &store->health, err)
                               : lhi_run_recovery(store, &run, NULL, &store->health, err);
    if (rc == LH_OK)
        lhi_health_clear(&store->health);
    if (rc == LH_ENOMEM || rc == LH_ESTOPPED || rc == LH_EUNKNOWN)
        return rc;
    if (rc < 0) {
        lhi_log(&store->log, LH_LOG_ERROR, "recovery at startup failed: %s", err->text);
        lhi_set_degraded(store, err->text);
    }
    lhi_error_clear(err);
    return LH_OK;
}

/* ---- integrity ---- */

static int report_integrity(const lh_findings *findings, lh_report *report, struct lhi_error *err)
{
    struct lhi_arena *arena = lhi_arena_of(&report->priv);
    const char **errors = arena ? lhi_arena_alloc(arena, (findings->n + 1) * sizeof *errors) : NULL;

    if (errors == NULL)
        return lhi_no_memory(err);
    for (size_t i = 0; i < findings->n; i++) {
        errors[i] = lhi_arena_strdup(arena, findings->finding[i].text);
        if (errors[i] == NULL)
            return lhi_no_memory(err);
    }
    report->integrity.ran = true;
    report->integrity.passed = findings->errors == 0;
    report->integrity.errors = errors;
    report->integrity.n_errors = findings->n;
    return LH_OK;
}

int lh_check_integrity(lh_store *store, const lh_flag *cancel, lh_report **out)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if (lhi_need_out(out, err) != LH_OK)
        return err->status;
    struct lhi_health health = {.wal_frames = -1};
    lh_report *report = lhi_result_new(sizeof *report, err);
    if (report == NULL)
        return err->status;
    *report = (lh_report){.trigger = "manual", .wal_frames = -1, .started_at = lh_now(store)};
    struct lhi_act act = {.verb = LHI_INTEGRITY,
                          .check = {.cancel = cancel, .out = &health.findings}};
    rc = lhi_read(store, &act, err);
    if (rc == LH_OK)
        rc = report_integrity(&health.findings, report, err);
    report->completed_at = report->recovery_timestamp = lh_now(store);
    report->duration_ms = report->completed_at - report->started_at;
    lhi_health_clear(&health);
    if (rc == LH_OK)
        *out = report;
    else
        lh_report_free(report);
    return rc;
}
