/* Reports of recoveries: each is read from its row and its events. */
#include "store/postgres/pg.h"

#include <string.h>

/* ---- a row ---- */

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
    R_FAILURES = R_LOCKS_CLEANED + 2 /* after the number of dead workers */
};

static bool report_from_row(const struct rows *rows, int row, struct lhi_arena *arena, lh_report *r)
{
    const char *integrity = pg_row_text(rows, row, R_INTEGRITY);
    bool ok = true;

    r->id = pg_row_int(rows, row, R_ID);
    r->trigger = pg_row_copy(rows, row, R_TRIGGER, arena, &ok);
    r->started_at = pg_row_time(rows, row, R_STARTED_AT);
    r->completed_at = pg_row_time(rows, row, R_COMPLETED_AT);
    r->duration_ms = pg_row_int(rows, row, R_DURATION_MS);
    r->integrity.ran = strcmp(integrity, "skipped") != 0;
    r->integrity.repair_attempted = strcmp(integrity, "repaired") == 0;
    r->integrity.repair_succeeded = r->integrity.repair_attempted;
    r->integrity.passed = r->integrity.ran && strcmp(integrity, "failed") != 0;
    r->wal_frames = pg_row_int(rows, row, R_WAL_FRAMES);
    r->orphaned = pg_row_int(rows, row, R_ORPHANED);
    r->entries_reclaimed = pg_row_int(rows, row, R_RECLAIMED);
    r->locks_cleaned = pg_row_int(rows, row, R_LOCKS_CLEANED);
    r->failed_recoveries = pg_row_int(rows, row, R_FAILURES);
    r->recovery_timestamp = r->completed_at ? r->completed_at : r->started_at;
    return ok;
}

int pg_read_reports(struct txn *txn, struct lhi_act *act)
{
    lh_reports *out = act->reports.out;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    struct args args = {0};
    struct rows rows;

    pg_arg_int(&args, (int64_t)act->reports.limit);
    int rc = pg_call(txn, LHI_POSTGRES_REPORT_LAST, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    bool ok = arena != NULL && pg_list_room(&out->report, &rows, sizeof *out->report);
    for (int row = 0; row < rows.n && ok; row++)
        ok = report_from_row(&rows, row, arena, &out->report[out->n++]);
    pg_rows_free(&rows);
    return ok ? LH_OK : lhi_no_memory(&act->err);
}

/* ---- its lists ---- */

enum { E_TYPE, E_JOB, E_QUEUE, E_WORKER, E_REASON, E_ATTEMPT, E_MAX, E_ACTION, E_BEAT, E_KIND };

/* The lists of one report while they grow; each has room for all events. */
struct lists {
    struct lhi_arena *arena;
    lh_recovered_job *jobs;
    lh_dead_worker *dead;
    const char **errors, **inconsistencies;
    size_t n_jobs, n_dead, n_errors, n_inconsistencies;
    bool ok;
};

static void *list_of(struct lists *l, int n, size_t size)
{
    size_t most = n < LH_REPORT_MOST ? (size_t)n : LH_REPORT_MOST;
    void *list = lhi_arena_alloc(l->arena, (most + 1) * size);

    l->ok = l->ok && list != NULL;
    return list;
}

static void add_text(struct lists *l, const struct rows *rows, int row, const char **texts,
                     size_t *n)
{
    if (*n < LH_REPORT_MOST)
        texts[(*n)++] = pg_row_copy(rows, row, E_REASON, l->arena, &l->ok);
}

static void add_job(struct lists *l, const struct rows *rows, int row, bool success)
{
    if (l->n_jobs == LH_REPORT_MOST)
        return;
    const char *reason = pg_row_copy(rows, row, E_REASON, l->arena, &l->ok);
    l->jobs[l->n_jobs++] =
        (lh_recovered_job){.job = pg_row_int(rows, row, E_JOB),
                           .queue = pg_row_copy(rows, row, E_QUEUE, l->arena, &l->ok),
                           .kind = pg_row_copy(rows, row, E_KIND, l->arena, &l->ok),
                           .action = pg_row_copy(rows, row, E_ACTION, l->arena, &l->ok),
                           .attempt = pg_row_int(rows, row, E_ATTEMPT),
                           .max_attempts = pg_row_int(rows, row, E_MAX),
                           .previous_worker = pg_row_copy(rows, row, E_WORKER, l->arena, &l->ok),
                           .reason = success ? reason : NULL,
                           .success = success,
                           .error = success ? NULL : reason};
}

static void add_dead(struct lists *l, const struct rows *rows, int row)
{
    if (l->n_dead < LH_REPORT_MOST)
        l->dead[l->n_dead++] =
            (lh_dead_worker){.worker = pg_row_copy(rows, row, E_WORKER, l->arena, &l->ok),
                             .last_heartbeat = pg_row_int(rows, row, E_BEAT)};
}

static void add_event(struct lists *l, const struct rows *rows, int row)
{
    const char *type = pg_row_text(rows, row, E_TYPE);

    if (strcmp(type, "worker.dead") == 0)
        add_dead(l, rows, row);
    else if (strcmp(type, "store.damaged") == 0)
        add_text(l, rows, row, l->errors, &l->n_errors);
    else if (strcmp(type, "recovery.inconsistency") == 0)
        add_text(l, rows, row, l->inconsistencies, &l->n_inconsistencies);
    else if (strcmp(type, "recovery.failed") == 0)
        add_job(l, rows, row, false);
    else if (!pg_row_null(rows, row, E_ACTION))
        add_job(l, rows, row, true);
}

/* Which jobs each dead worker held. */
static void share_out(struct lists *l)
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

static int read_lists(struct txn *txn, struct lhi_arena *arena, lh_report *out,
                      struct lhi_error *err)
{
    struct lists l = {.arena = arena, .ok = true};
    struct args args = {0};
    struct rows rows;

    pg_arg_int(&args, out->id);
    int rc = pg_call(txn, LHI_POSTGRES_REPORT_EVENTS, &args, &rows, err);
    if (rc != LH_OK)
        return rc;
    l.jobs = list_of(&l, rows.n, sizeof *l.jobs);
    l.dead = list_of(&l, rows.n, sizeof *l.dead);
    l.errors = list_of(&l, rows.n, sizeof *l.errors);
    l.inconsistencies = list_of(&l, rows.n, sizeof *l.inconsistencies);
    for (int row = 0; row < rows.n && l.ok; row++)
        add_event(&l, &rows, row);
    pg_rows_free(&rows);
    share_out(&l);
    out->recovered = l.jobs;
    out->n_recovered = l.n_jobs;
    out->dead_workers = l.dead;
    out->n_dead_workers = l.n_dead;
    out->integrity.errors = l.errors;
    out->integrity.n_errors = l.n_errors;
    out->inconsistencies = l.inconsistencies;
    out->n_inconsistencies = l.n_inconsistencies;
    return l.ok ? LH_OK : lhi_no_memory(err);
}

int pg_read_report(struct txn *txn, struct lhi_act *act)
{
    lh_report *out = act->report.out;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    bool last = act->report.id == 0, found, ok = arena != NULL;
    struct args args = {0};
    struct rows rows;

    pg_arg_int(&args, last ? 1 : act->report.id);
    int rc = pg_call(txn, last ? LHI_POSTGRES_REPORT_LAST : LHI_POSTGRES_REPORT_GET, &args, &rows,
                     &act->err);
    if (rc != LH_OK)
        return rc;
    found = rows.n > 0;
    if (found && ok)
        ok = report_from_row(&rows, 0, arena, out);
    pg_rows_free(&rows);
    if (!ok)
        return lhi_no_memory(&act->err);
    if (!found && last)
        return lhi_fail(&act->err, LH_ENOTFOUND, "there is no recovery report yet");
    if (!found)
        return lhi_fail(&act->err, LH_ENOTFOUND, "there is no recovery report %lld",
                        (long long)act->report.id);
    return read_lists(txn, arena, out, &act->err);
}
