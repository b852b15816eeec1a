/* Reading the results of recoveries: a report from its row and its events, and the totals since the
 * store was created. */
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/rows.h"

#include <string.h>

/* ---- reports ---- */

enum {
    R_ID,
    R_TRIGGER,
    R_STARTED_AT,
    R_COMPLETED_AT,
    R_DURATION_MS,
    R_INTEGRITY,
    R_WAL_FRAMES,
    R_ORPHANED,
    R_RECLAIMED,
    R_LOCKS_CLEANED,
    R_FAILURES = R_LOCKS_CLEANED + 2 /* the column after the number of dead workers */
};

static bool report_row(sqlite3_stmt *stmt, struct lhi_arena *arena, lh_report *r)
{
    const char *integrity = (const char *)sqlite3_column_text(stmt, R_INTEGRITY);
    bool ok = true;

    r->id = sqlite3_column_int64(stmt, R_ID);
    r->trigger = sq_column_text(stmt, R_TRIGGER, arena, &ok);
    r->started_at = sqlite3_column_int64(stmt, R_STARTED_AT);
    r->completed_at = sqlite3_column_int64(stmt, R_COMPLETED_AT);
    r->duration_ms = sqlite3_column_int64(stmt, R_DURATION_MS);
    r->integrity.ran = strcmp(integrity, "skipped") != 0;
    r->integrity.repair_attempted = strcmp(integrity, "repaired") == 0;
    r->integrity.repair_succeeded = r->integrity.repair_attempted;
    r->integrity.passed = r->integrity.ran && strcmp(integrity, "failed") != 0;
    r->wal_frames = sqlite3_column_int64(stmt, R_WAL_FRAMES);
    r->orphaned = sqlite3_column_int64(stmt, R_ORPHANED);
    r->entries_reclaimed = sqlite3_column_int64(stmt, R_RECLAIMED);
    r->locks_cleaned = sqlite3_column_int64(stmt, R_LOCKS_CLEANED);
    r->failed_recoveries = sqlite3_column_int64(stmt, R_FAILURES);
    r->recovery_timestamp = r->completed_at ? r->completed_at : r->started_at;
    return ok;
}

int sq_read_reports(struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    lh_reports *out = act->reports.out;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_REPORT_LAST, err, "i", (int64_t)act->reports.limit);
    int rc;

    if (stmt == NULL)
        return err->status;
    if (arena == NULL)
        return lhi_no_memory(err);
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        lh_report *grown = sq_grow(out->report, out->n, sizeof *grown);
        if (grown != NULL) {
            out->report = grown;
            memset(&out->report[out->n], 0, sizeof *grown);
        }
        if (grown == NULL || !report_row(stmt, arena, &out->report[out->n])) {
            sq_reset(stmt);
            return lhi_no_memory(err);
        }
        out->n++;
    }
    return rc < 0 ? rc : LH_OK;
}

/* The growing lists of one report. */
struct lists {
    struct lhi_arena *arena;
    lh_recovered_job *jobs;
    lh_dead_worker *dead;
    const char **errors, **inconsistencies;
    size_t n_jobs, n_dead, n_errors, n_inconsistencies;
    bool ok;
};

enum { E_TYPE, E_JOB, E_QUEUE, E_WORKER, E_REASON, E_ATTEMPT, E_MAX, E_ACTION, E_BEAT, E_KIND };

static void *room_for(struct lists *l, void *array, size_t n, size_t size)
{
    void *grown = n < LH_REPORT_MOST ? sq_grow(array, n, size) : NULL;
    l->ok = l->ok && (grown != NULL || n >= LH_REPORT_MOST);
    return grown;
}

static void add_text(struct lists *l, sqlite3_stmt *stmt, const char ***texts, size_t *n)
{
    const char **grown = room_for(l, *texts, *n, sizeof **texts);
    if (grown == NULL)
        return;
    *texts = grown;
    grown[(*n)++] = sq_column_text(stmt, E_REASON, l->arena, &l->ok);
}

static void add_job(struct lists *l, sqlite3_stmt *stmt, bool success)
{
    lh_recovered_job *grown = room_for(l, l->jobs, l->n_jobs, sizeof *grown);
    if (grown == NULL)
        return;
    l->jobs = grown;
    lh_recovered_job *job = &grown[l->n_jobs++];
    const char *reason = sq_column_text(stmt, E_REASON, l->arena, &l->ok);
    *job = (lh_recovered_job){.job = sqlite3_column_int64(stmt, E_JOB),
                              .queue = sq_column_text(stmt, E_QUEUE, l->arena, &l->ok),
                              .kind = sq_column_text(stmt, E_KIND, l->arena, &l->ok),
                              .action = sq_column_text(stmt, E_ACTION, l->arena, &l->ok),
                              .attempt = sqlite3_column_int64(stmt, E_ATTEMPT),
                              .max_attempts = sqlite3_column_int64(stmt, E_MAX),
                              .previous_worker = sq_column_text(stmt, E_WORKER, l->arena, &l->ok),
                              .reason = success ? reason : NULL,
                              .success = success,
                              .error = success ? NULL : reason};
}

static void add_dead(struct lists *l, sqlite3_stmt *stmt)
{
    lh_dead_worker *grown = room_for(l, l->dead, l->n_dead, sizeof *grown);
    if (grown == NULL)
        return;
    l->dead = grown;
    grown[l->n_dead++] =
        (lh_dead_worker){.worker = sq_column_text(stmt, E_WORKER, l->arena, &l->ok),
                         .last_heartbeat = sqlite3_column_int64(stmt, E_BEAT)};
}

static void add_event(struct lists *l, sqlite3_stmt *stmt)
{
    const char *type = (const char *)sqlite3_column_text(stmt, E_TYPE);

    if (strcmp(type, "worker.dead") == 0)
        add_dead(l, stmt);
    else if (strcmp(type, "store.damaged") == 0)
        add_text(l, stmt, &l->errors, &l->n_errors);
    else if (strcmp(type, "recovery.inconsistency") == 0)
        add_text(l, stmt, &l->inconsistencies, &l->n_inconsistencies);
    else if (strcmp(type, "recovery.failed") == 0)
        add_job(l, stmt, false);
    else if (sqlite3_column_type(stmt, E_ACTION) != SQLITE_NULL)
        add_job(l, stmt, true);
}

/* Assign each job to the dead worker that held it. */
static void assign_jobs(struct lists *l)
{
    for (size_t i = 0; i < l->n_dead && l->ok; i++) {
        lh_dead_worker *dead = &l->dead[i];
        int64_t *ids = lhi_arena_alloc(l->arena, (l->n_jobs + 1) * sizeof *ids);
        l->ok = ids != NULL;
        for (size_t k = 0; k < l->n_jobs && l->ok; k++)
            if (l->jobs[k].job != 0 && l->jobs[k].previous_worker != NULL &&
                strcmp(l->jobs[k].previous_worker, dead->worker) == 0)
                ids[dead->n_jobs++] = l->jobs[k].job;
        dead->jobs = ids;
    }
}

static const void *keep_list(struct lists *l, const void *list, size_t n, size_t size)
{
    const void *copy = n > 0 ? lhi_arena_copy(l->arena, list, n * size) : NULL;
    l->ok = l->ok && (n == 0 || copy != NULL);
    return copy;
}

static int read_lists(struct conn *conn, lh_report *out, struct lists *l, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_REPORT_EVENTS, err, "i", out->id);
    int rc = stmt ? LH_OK : err->status;

    while (rc == LH_OK && l->ok && (rc = sq_step(conn, stmt, err)) == LH_OK)
        add_event(l, stmt);
    sq_reset(stmt);
    assign_jobs(l);
    out->recovered = keep_list(l, l->jobs, l->n_jobs, sizeof *l->jobs);
    out->n_recovered = l->n_jobs;
    out->dead_workers = keep_list(l, l->dead, l->n_dead, sizeof *l->dead);
    out->n_dead_workers = l->n_dead;
    out->integrity.errors = keep_list(l, l->errors, l->n_errors, sizeof *l->errors);
    out->integrity.n_errors = l->n_errors;
    out->inconsistencies =
        keep_list(l, l->inconsistencies, l->n_inconsistencies, sizeof *l->inconsistencies);
    out->n_inconsistencies = l->n_inconsistencies;
    if (rc < 0)
        return rc;
    return l->ok ? LH_OK : lhi_no_memory(err);
}

int sq_read_report(struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    lh_report *out = act->report.out;
    struct lists l = {.arena = lhi_arena_of(&out->priv), .ok = true};

    if (l.arena == NULL)
        return lhi_no_memory(err);
    sqlite3_stmt *stmt = act->report.id
                             ? sq_stmt(conn, LHI_SQL_REPORT_GET, err, "i", act->report.id)
                             : sq_stmt(conn, LHI_SQL_REPORT_LAST, err, "i", (int64_t)1);
    int rc = stmt ? sq_step(conn, stmt, err) : err->status;
    if (rc < 0)
        return rc;
    if (rc == LH_EMPTY && act->report.id == 0)
        return lhi_fail(err, LH_ENOTFOUND, "there is no recovery report yet");
    if (rc == LH_EMPTY)
        return lhi_fail(err, LH_ENOTFOUND, "there is no recovery report %lld",
                        (long long)act->report.id);
    bool ok = report_row(stmt, l.arena, out);
    sq_reset(stmt);
    rc = ok ? read_lists(conn, out, &l, err) : lhi_no_memory(err);
    lhi_free(l.jobs);
    lhi_free(l.dead);
    lhi_free(l.errors);
    lhi_free(l.inconsistencies);
    return rc;
}

/* ---- totals ---- */

int sq_read_totals(struct conn *conn, lh_store_info *info, struct lhi_error *err)
{
    const struct {
        const char *key;
        int64_t *n;
    } totals[] = {
        {"startup", &info->recovery.startup},   {"claim", &info->recovery.claim},
        {"timer", &info->recovery.timer},       {"expiry", &info->recovery.expiry},
        {"death", &info->recovery.death},       {"manual", &info->recovery.manual},
        {"retried", &info->recovery.retried},   {"made_pending", &info->recovery.made_pending},
        {"failed", &info->recovery.failed},     {"released", &info->recovery.released},
        {"leases", &info->recovery.leases},     {"dead_workers", &info->recovery.dead_workers},
        {"failures", &info->recovery.failures}, {"duration_ms", &info->recovery.duration_ms},
    };
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_TOTALS, err, "");
    int rc;

    if (stmt == NULL)
        return err->status;
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        const char *key = (const char *)sqlite3_column_text(stmt, 0) + strlen("recovery:");
        for (size_t i = 0; i < sizeof totals / sizeof totals[0]; i++)
            if (strcmp(key, totals[i].key) == 0)
                *totals[i].n = sqlite3_column_int64(stmt, 1);
    }
    return rc < 0 ? rc : LH_OK;
}
