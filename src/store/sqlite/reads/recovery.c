/* Reads for recoveries: which workers to check, and which jobs are reclaimable. */
#include "store/sqlite/acts/recovery.h"
#include "store/sqlite/open.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/rows.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* ---- workers ---- */

static void column_copy(sqlite3_stmt *stmt, int column, char *out, size_t len)
{
    const unsigned char *text = sqlite3_column_text(stmt, column);
    lhi_format(out, len, "%s", text ? (const char *)text : "");
}

int sq_read_suspects(struct conn *conn, enum lhi_sql which, int64_t now, struct lhi_suspects *out,
                     struct lhi_error *err)
{
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    sqlite3_stmt *stmt = which == LHI_SQL_WORKER_SILENT
                             ? sq_stmt(conn, which, err, "ii", now, (int64_t)LHI_BATCH)
                             : sq_stmt(conn, which, err, "");
    int rc;

    if (stmt == NULL)
        return err->status;
    if (arena == NULL)
        return lhi_no_memory(err);
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        bool ok = true;
        struct lhi_suspect *grown = sq_grow(out->suspect, out->n, sizeof *grown);
        if (grown == NULL) {
            sq_reset(stmt);
            return lhi_no_memory(err);
        }
        out->suspect = grown;
        struct lhi_suspect *s = &out->suspect[out->n];
        memset(s, 0, sizeof *s);
        s->id = sq_column_text(stmt, 0, arena, &ok);
        s->boot_proves = true;
        s->late = strcmp(sq_text_or_empty(stmt, 1), "late") == 0;
        column_copy(stmt, 2, s->process.machine, sizeof s->process.machine);
        column_copy(stmt, 3, s->process.boot, sizeof s->process.boot);
        s->process.pid_ns = sqlite3_column_int64(stmt, 4);
        s->process.pid = sqlite3_column_int64(stmt, 5);
        s->process.start = sqlite3_column_int64(stmt, 6);
        s->interval_ms = sqlite3_column_int64(stmt, 7);
        s->multiplier = sqlite3_column_int64(stmt, 8);
        s->last_heartbeat_at = sqlite3_column_int64(stmt, 9);
        s->sessions = sq_column_text(stmt, 10, arena, &ok);
        s->process.time_ns = sqlite3_column_int64(stmt, 11);
        if (s->sessions != NULL)
            ok = lhi_sessions_parse(s->sessions, arena, s) && ok;
        if (!ok) {
            sq_reset(stmt);
            return lhi_no_memory(err);
        }
        out->n++;
    }
    return rc < 0 ? rc : LH_OK;
}

/* ---- what is reclaimable ---- */

int sq_read_ids(struct conn *conn, enum lhi_sql which, int64_t now, const char *queue, int64_t *ids,
                size_t room, size_t *n, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(conn, which, err, "it", now, queue);
    int rc = LH_EMPTY;

    if (stmt == NULL)
        return err->status;
    while (*n < room && (rc = sq_step(conn, stmt, err)) == LH_OK)
        ids[(*n)++] = sqlite3_column_int64(stmt, 0);
    sq_reset(stmt);
    return rc < 0 ? rc : LH_OK;
}

/* The columns of a job that a recovery needs. */
bool sq_recovery_row(sqlite3_stmt *stmt, struct lhi_arena *arena, lh_job *job)
{
    bool ok = true;

    memset(job, 0, sizeof *job);
    job->id = sqlite3_column_int64(stmt, JOB_ID);
    job->queue = sq_column_name(stmt, JOB_QUEUE, arena, &ok);
    job->kind = sq_column_text(stmt, JOB_KIND, arena, &ok);
    job->state = sq_column_state(stmt, JOB_STATE);
    job->worker = sq_column_text(stmt, JOB_WORKER, arena, &ok);
    job->attempt = sqlite3_column_int64(stmt, JOB_ATTEMPT);
    job->max_attempts = sqlite3_column_int64(stmt, JOB_MAX_ATTEMPTS);
    job->recoveries = sqlite3_column_int64(stmt, JOB_RECOVERIES);
    job->token = sqlite3_column_int64(stmt, JOB_TOKEN);
    job->lease_until = sqlite3_column_int64(stmt, JOB_LEASE_UNTIL);
    job->lease_ms = sqlite3_column_int64(stmt, JOB_HELD_MS);
    job->started_at = sqlite3_column_int64(stmt, JOB_STARTED_AT);
    job->last_heartbeat_at = sqlite3_column_int64(stmt, JOB_LAST_HEARTBEAT_AT);
    return ok;
}

/* Read the jobs that a worker has started, if it reports them. They are kept, because a batch asks
 * for the same worker repeatedly. */
static int read_started(struct conn *conn, struct holder *holder, struct lhi_error *err)
{
    int64_t tells;
    size_t room = 0;
    int rc = sq_int(conn, LHI_SQL_WORKER_TELLS, err, 0, &tells, "t", holder->worker);

    holder->tells = tells != 0;
    holder->n_started = 0;
    holder->started = NULL;
    if (rc < 0 || !holder->tells)
        return rc;
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_WORKER_START_LIST, err, "t", holder->worker);
    if (stmt == NULL)
        return err->status;
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        if (holder->n_started == room) {
            room = room ? room * 2 : 64;
            lh_ref *grown = lhi_arena_alloc(holder->arena, room * sizeof *grown);
            if (grown == NULL) {
                sq_reset(stmt);
                return lhi_no_memory(err);
            }
            if (holder->n_started > 0)
                memcpy(grown, holder->started, holder->n_started * sizeof *grown);
            holder->started = grown;
        }
        holder->started[holder->n_started++] =
            (lh_ref){sqlite3_column_int64(stmt, 0), sqlite3_column_int64(stmt, 1)};
    }
    return rc < 0 ? rc : LH_OK;
}

int sq_holder_look_up(struct conn *conn, const char *worker, struct holder *holder,
                      struct lhi_error *err)
{
    if (strcmp(holder->worker, worker) == 0)
        return LH_OK;
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_WORKER_UNCLEANED, err, "t", worker);
    int rc = stmt ? sq_step(conn, stmt, err) : err->status;
    if (rc < 0)
        return rc;
    lhi_format(holder->worker, sizeof holder->worker, "%s", worker);
    lhi_format(holder->what, sizeof holder->what, "%s",
               rc == LH_OK ? sq_text_or_empty(stmt, 0) : "");
    sq_reset(stmt);
    return read_started(conn, holder, err);
}

static int by_job(const void *key, const void *element)
{
    const lh_job *job = key;
    const lh_ref *ref = element;
    return job->id < ref->job ? -1 : job->id > ref->job;
}

bool sq_had_started(const struct holder *holder, const lh_job *job)
{
    if (!holder->tells)
        return true;
    const lh_ref *ref = holder->n_started == 0 ? NULL
                                               : bsearch(job, holder->started, holder->n_started,
                                                         sizeof *holder->started, by_job);
    return ref != NULL && ref->token == job->token;
}

/* A growing list of ids, without those whose queue has recovery off. */
struct found {
    struct db *db;
    const lh_policies *policies;
    bool by_operator;
    struct lhi_act *act;
};

static bool may_recover(const struct found *f, sqlite3_stmt *stmt)
{
    lh_policy policy;

    if (f->by_operator || f->policies->n == 0)
        return true;
    lhi_policy_resolve(f->policies, sq_text_or_empty(stmt, 1),
                       (const char *)sqlite3_column_text(stmt, 2), &policy);
    return policy.recovery;
}

static int collect(struct conn *conn, sqlite3_stmt *stmt, struct found *f, struct lhi_error *err)
{
    struct lhi_act *act = f->act;
    int rc;

    if (stmt == NULL)
        return err->status;
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        if (act->stale.most > 0 && act->stale.n >= act->stale.most)
            break;
        if (!may_recover(f, stmt))
            continue;
        int64_t *grown = sq_grow(act->stale.ids, act->stale.n, sizeof *grown);
        if (grown == NULL) {
            sq_reset(stmt);
            return lhi_no_memory(err);
        }
        act->stale.ids = grown;
        grown[act->stale.n++] = sqlite3_column_int64(stmt, 0);
        if (act->stale.acting && act->stale.n % LHI_BATCH == 0)
            sq_coord_set_recovering(&f->db->coord, true);
    }
    sq_reset(stmt);
    return rc < 0 ? rc : LH_OK;
}

/* Add what workers hold that were found dead but are not yet marked: for a dry run. */
static int collect_of_worker(struct conn *conn, const char *worker, int64_t now, struct found *f,
                             struct lhi_error *err)
{
    const lh_recover_opts *opts = f->act->stale.opts;
    return collect(
        conn,
        sq_stmt(conn, LHI_SQL_STALE_OF_WORKER, err, "tit", worker, now, opts ? opts->queue : NULL),
        f, err);
}

/* Say why the job is reclaimable, by the rules of a recovery. */
static int give_cause(struct conn *conn, const struct lhi_act *act, struct lhi_stale_job *stale,
                      struct holder *holder, struct lhi_error *err)
{
    int rc = sq_holder_look_up(conn, stale->job.worker, holder, err);

    stale->unstarted = !sq_had_started(holder, &stale->job);
    lhi_format(stale->what, sizeof stale->what, "%s", holder->what);
    for (size_t i = 0; i < act->stale.n_deaths && stale->what[0] == '\0'; i++) {
        const struct lhi_death *death = &act->stale.deaths[i];
        if (death->process && !death->late && strcmp(death->worker, stale->job.worker) == 0)
            lhi_format(stale->what, sizeof stale->what, "%s", death->what);
    }
    stale->cause = act->stale.opts && act->stale.opts->by_age ? LHI_CAUSE_MANUAL
                   : stale->what[0] != '\0'                   ? LHI_CAUSE_DEAD
                                                              : LHI_CAUSE_TTL;
    return rc;
}

static int collect_rows(struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    struct lhi_arena *arena = lhi_arena_of(&act->stale.priv);
    struct holder holder = {.arena = arena};
    size_t n = act->stale.n < LH_REPORT_MOST ? act->stale.n : LH_REPORT_MOST;

    act->stale.jobs = lhi_calloc(n + 1, sizeof *act->stale.jobs);
    if (arena == NULL || act->stale.jobs == NULL)
        return lhi_no_memory(err);
    for (size_t i = 0; i < n; i++) {
        struct lhi_stale_job *stale = &act->stale.jobs[act->stale.n_jobs];
        sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_JOB_GET, err, "i", act->stale.ids[i]);
        int rc = stmt ? sq_step(conn, stmt, err) : err->status;
        if (rc == LH_OK && !sq_recovery_row(stmt, arena, &stale->job))
            rc = lhi_no_memory(err);
        sq_reset(stmt);
        if (rc < 0 || (rc = give_cause(conn, act, stale, &holder, err)) < 0)
            return rc;
        act->stale.n_jobs++;
    }
    return LH_OK;
}

/* Count the leases that a recovery would free. Claims, recoveries and dry runs share this rule. */
static int count_leases(struct conn *conn, struct lhi_act *act, int64_t now, struct lhi_error *err)
{
    const lh_recover_opts *opts = act->stale.opts;
    const char *queue = opts ? opts->queue : NULL;
    bool by_age = opts != NULL && opts->by_age;
    int64_t before = by_age ? now - opts->threshold_ms : 0;
    int rc = sq_int(conn, LHI_SQL_LEASE_COUNT_STALE, err, 0, &act->stale.leases, "iito", now,
                    (int64_t)by_age, queue, by_age && opts->now ? &before : NULL);

    for (size_t i = 0; i < act->stale.n_deaths && rc == LH_OK; i++) {
        const struct lhi_death *death = &act->stale.deaths[i];
        int64_t held = 0;
        if (death->proven)
            rc = sq_int(conn, LHI_SQL_LEASE_COUNT_OF_OWNER, err, 0, &held, "tiit", death->worker,
                        now, (int64_t)by_age, queue);
        act->stale.leases += held;
    }
    return rc;
}

int sq_read_stale(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    const lh_recover_opts *opts = act->stale.opts;
    const char *queue = opts ? opts->queue : NULL;
    bool by_age = opts != NULL && opts->by_age;
    lh_policies policies = {0};
    struct found f = {.db = db, .policies = &policies, .by_operator = opts != NULL, .act = act};
    int64_t now = sq_db_now(db), unclean = 0;
    char degraded[256] = "";
    int rc = sq_load_policies(conn, &policies, err);

    act->stale.n = 0;
    if (rc == LH_OK && by_age)
        rc = collect(
            conn, sq_stmt(conn, LHI_SQL_STALE_BY_AGE, err, "it", now - opts->threshold_ms, queue),
            &f, err);
    else if (rc == LH_OK)
        rc = collect(conn, sq_stmt(conn, LHI_SQL_STALE_EXPIRED, err, "it", now, queue), &f, err);
    if (rc == LH_OK)
        rc = sq_int(conn, LHI_SQL_DEAD_NOT_CLEANED, err, 0, &unclean, "i", now);
    if (rc == LH_OK && unclean != 0 && !by_age)
        rc = collect(conn, sq_stmt(conn, LHI_SQL_STALE_OF_DEAD, err, "it", now, queue), &f, err);
    act->stale.unclean = unclean != 0;
    if (rc == LH_OK)
        rc = sq_meta_text(conn, "degraded", degraded, sizeof degraded, err);
    act->stale.degraded = rc == LH_OK && degraded[0] != '\0';
    for (size_t i = 0; i < act->stale.n_deaths && rc == LH_OK && !by_age; i++)
        if (act->stale.deaths[i].proven)
            rc = collect_of_worker(conn, act->stale.deaths[i].worker, now, &f, err);
    if (rc == LH_OK && act->stale.rows)
        rc = collect_rows(conn, act, err);
    if (rc == LH_OK)
        rc = count_leases(conn, act, now, err);
    lhi_policies_clear(&policies);
    return rc;
}
