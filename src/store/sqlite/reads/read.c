/* Reads. They use a connection of their own, so that readers and writers do not wait for each
 * other. Most are limited to 5 s, so that a reader cannot keep the log from being checkpointed. */
#include "store/sqlite/acts/recovery.h"
#include "store/sqlite/files/files.h"
#include "store/sqlite/open.h"
#include "store/sqlite/reads/degraded.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/rows.h"
#include "store/sqlite/sync.h"

#include "base/clock.h"
#include "base/sys.h"

#include <assert.h>
#include <string.h>
#include <sys/stat.h>

enum { READ_MS = 5000, STALE_MS = 60000, READ_STEPS = 10000 };

/* Some reads go over every row and get more time. */
static int64_t most_ms(enum lhi_verb verb)
{
    return verb == LHI_STALE || verb == LHI_MOVE_LOOK || verb == LHI_MOVE_READ ? STALE_MS : READ_MS;
}

static int past_deadline(void *arg)
{
    const struct db *db = arg;
    return lhi_mono_ms() > db->read_deadline;
}

/* ---- jobs ---- */

static int read_jobs(struct db *db, struct conn *conn, sqlite3_stmt *stmt, lh_jobs *out,
                     struct lhi_error *err)
{
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    int64_t now = sq_db_now(db);
    size_t room = 0;
    int rc;

    if (stmt == NULL)
        return err->status;
    if (arena == NULL)
        return lhi_no_memory(err);
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        lh_job *job;
        if (!sq_jobs_add(out, &room, &job) || !sq_job_from_row(stmt, now, arena, job)) {
            sq_reset(stmt);
            return lhi_no_memory(err);
        }
    }
    return rc < 0 ? rc : LH_OK;
}

static int job_get(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    int rc = read_jobs(db, conn, sq_stmt(conn, LHI_SQL_JOB_GET, err, "i", act->jobs.id),
                       act->jobs.out, err);
    if (rc == LH_OK && act->jobs.out->n == 0)
        return lhi_fail(err, LH_ENOTFOUND, "there is no job %lld", (long long)act->jobs.id);
    if (rc < 0)
        return rc;
    lh_job *job = &act->jobs.out->job[0];
    int64_t whole = 0;
    if (job->state == LH_COMPLETED &&
        (rc = sq_int(conn, LHI_SQL_OUTPUT_RESULT, err, 0, &whole, "ii", job->id, job->token)) < 0)
        return rc;
    job->result_cut = whole > (int64_t)job->result_len ? whole - (int64_t)job->result_len : 0;
    return LH_OK;
}

/* The columns in their order. Those that may be long are NULL if the caller does not want them,
 * because SQLite reads every page of a named column. */
static size_t select_jobs(char *text, size_t len, bool brief)
{
    size_t used = lhi_format(text, len, "SELECT ");
    for (int i = 0; i < JOB_COLUMNS; i++) {
        bool left_out = brief && (i == JOB_PAYLOAD || i == JOB_CHECKPOINT || i == JOB_RESULT);
        used += lhi_format(text + used, len - used, "%s%s", i > 0 ? ", " : "",
                           left_out ? "NULL" : sq_job_columns[i]);
    }
    return used + lhi_format(text + used, len - used, " FROM lh_job WHERE id > ?1");
}

/* The only statement that is assembled at run time: the filters decide which index fits. Values are
 * still bound. */
static int job_list(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    const lh_job_filter *f = act->jobs.filter;
    lh_state state = f->expired ? LH_RUNNING : f->state;
    char text[1280];
    sqlite3_stmt *stmt = NULL;
    size_t used = select_jobs(text, sizeof text, f->brief);
#define TERM(given, term) \
    if (given)            \
    used += lhi_format(text + used, sizeof text - used, " AND " term)
    /* The names of states come from us, not from the user. As literals they let SQLite use the
     * partial indexes. */
    if (state != 0)
        used +=
            lhi_format(text + used, sizeof text - used, " AND state = '%s'", lh_state_name(state));
    TERM(state != 0 && state != LH_PENDING && state != LH_COMPLETED,
         "state <> 'pending' AND state <> 'completed'");
    TERM(f->queue, "queue = ?2");
    TERM(f->kind, "kind = ?3");
    TERM(f->worker,
         "worker = ?4 AND state <> 'pending' AND state <> 'completed' AND state = 'running'");
    TERM(f->key, "key = ?5");
    TERM(f->expired, "lease_until <= ?6");
#undef TERM
    lhi_format(text + used, sizeof text - used, " ORDER BY id LIMIT ?7");
    int rc = sqlite3_prepare_v2(conn->db, text, -1, &stmt, NULL);
    if (rc != SQLITE_OK)
        return sq_fail(conn, rc, err);
    (void)sqlite3_bind_int64(stmt, 1, f->after);
    (void)sqlite3_bind_text(stmt, 2, f->queue, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(stmt, 3, f->kind, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(stmt, 4, f->worker, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(stmt, 5, f->key, -1, SQLITE_STATIC);
    (void)sqlite3_bind_int64(stmt, 6, sq_db_now(db));
    (void)sqlite3_bind_int64(stmt, 7, f->limit ? (int64_t)f->limit : 100);
    rc = read_jobs(db, conn, stmt, act->jobs.out, err);
    (void)sqlite3_finalize(stmt);
    return rc;
}

/* ---- lists: a growing array, and strings in an arena ---- */

void *sq_grow(void *array, size_t n, size_t size)
{
    if ((n & (n - 1)) != 0) /* it grows at n = 0, 1, 2, 4, 8 and so on */
        return array;
    return lhi_realloc(array, (n ? n * 2 : 1) * size);
}

static int64_t oldest_pending(struct conn *conn, const char *queue, int64_t now,
                              struct lhi_error *err)
{
    int64_t created;
    if (sq_int(conn, LHI_SQL_QUEUE_OLDEST, err, -1, &created, "t", queue) < 0)
        return -2;
    return created < 0 ? -1 : now > created ? now - created : 0;
}

static int queue_list(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    lh_queues *out = act->queues.out;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    lh_policies policies = {0};
    int64_t now = sq_db_now(db), minute = now / 60000;
    int rc = arena ? sq_load_policies(conn, &policies, err) : lhi_no_memory(err);
    sqlite3_stmt *stmt =
        rc == LH_OK ? sq_stmt(conn, LHI_SQL_QUEUE_LIST, err, "i", minute - 60) : NULL;

    if (rc == LH_OK && stmt == NULL)
        rc = err->status;
    while (rc == LH_OK && (rc = sq_step(conn, stmt, err)) == LH_OK) {
        bool ok = true;
        lh_queue *grown = sq_grow(out->queue, out->n, sizeof *grown);
        if (grown == NULL) {
            rc = lhi_no_memory(err);
            break;
        }
        out->queue = grown;
        assert(out->queue != NULL);
        lh_queue *q = &out->queue[out->n];
        memset(q, 0, sizeof *q);
        q->queue = sq_column_text(stmt, 0, arena, &ok);
        q->paused = sqlite3_column_int(stmt, 1) != 0;
        int64_t *const columns[] = {&q->scheduled,     &q->pending,        &q->running,
                                    &q->completed,     &q->failed,         &q->cancelled,
                                    &q->hour_enqueued, &q->hour_claimed,   &q->hour_completed,
                                    &q->hour_failed,   &q->hour_recovered, &q->hour_ended,
                                    &q->hour_wait_ms,  &q->hour_run_ms};
        for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
            *columns[i] = sqlite3_column_int64(stmt, (int)i + 2);
        if (!ok) {
            rc = lhi_no_memory(err);
            break;
        }
        out->n++;
    }
    sq_reset(stmt);
    if (rc == LH_EMPTY)
        rc = LH_OK;
    assert(out->n == 0 || out->queue != NULL);
    for (size_t i = 0; i < out->n && rc == LH_OK; i++) {
        lh_queue *q = &out->queue[i];
        lh_policy policy;
        lhi_policy_resolve(&policies, q->queue, NULL, &policy);
        q->rate_n = policy.rate_n;
        q->rate_per_ms = policy.rate_per_ms;
        q->concurrency = policy.concurrency;
        q->oldest_pending_ms = oldest_pending(conn, q->queue, now, err);
        if (q->oldest_pending_ms == -2)
            rc = err->status;
    }
    lhi_policies_clear(&policies);
    return rc;
}

static int lease_list(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    lh_leases *out = act->leases.out;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    bool one = act->leases.name != NULL;
    int64_t now = sq_db_now(db);
    sqlite3_stmt *stmt =
        one ? sq_stmt(conn, LHI_SQL_LEASE_GET, err, "tt", act->leases.scope, act->leases.name)
            : sq_stmt(conn, LHI_SQL_LEASE_LIST, err, "t", act->leases.scope);
    int rc;

    if (stmt == NULL)
        return err->status;
    if (arena == NULL)
        return lhi_no_memory(err);
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        lh_lease *grown = sq_grow(out->lease, out->n, sizeof *grown);
        if (grown != NULL)
            out->lease = grown;
        if (grown == NULL || !sq_lease_from_row(stmt, now, arena, &out->lease[out->n])) {
            sq_reset(stmt);
            return lhi_no_memory(err);
        }
        out->n++;
    }
    if (rc == LH_EMPTY && one && out->n == 0)
        return lhi_fail(err, LH_ENOTFOUND, "there is no lease \"%s/%s\"", act->leases.scope,
                        act->leases.name);
    return rc < 0 ? rc : LH_OK;
}

static const char *worker_state(const char *kept, int64_t silent, int64_t interval,
                                int64_t multiplier)
{
    if (strcmp(kept, "dead") == 0 || strcmp(kept, "stopped") == 0)
        return kept[0] == 'd' ? "dead" : "stopped";
    if (silent >= interval * multiplier)
        return "dead";
    return silent > interval ? "late" : "alive";
}

static int worker_list(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    lh_workers *out = act->workers.out;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    int64_t now = sq_db_now(db);
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_WORKER_LIST, err, "");
    int rc;

    if (stmt == NULL)
        return err->status;
    if (arena == NULL)
        return lhi_no_memory(err);
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        bool ok = true;
        lh_worker *grown = sq_grow(out->worker, out->n, sizeof *grown);
        if (grown == NULL) {
            rc = lhi_no_memory(err);
            break;
        }
        out->worker = grown;
        lh_worker *w = &out->worker[out->n];
        memset(w, 0, sizeof *w);
        w->id = sq_column_text(stmt, 0, arena, &ok);
        w->label = sq_column_text(stmt, 1, arena, &ok);
        w->host = sq_column_text(stmt, 2, arena, &ok);
        w->queues = sq_column_text(stmt, 3, arena, &ok);
        w->version = sq_column_text(stmt, 4, arena, &ok);
        w->pid = sqlite3_column_int64(stmt, 6);
        w->interval_ms = sqlite3_column_int64(stmt, 7);
        w->multiplier = sqlite3_column_int64(stmt, 8);
        w->registered_at = sqlite3_column_int64(stmt, 9);
        w->last_heartbeat_at = sqlite3_column_int64(stmt, 10);
        w->stopped_at = sqlite3_column_int64(stmt, 11);
        w->running = sqlite3_column_int64(stmt, 12);
        w->degraded = sq_column_text(stmt, 13, arena, &ok);
        w->silent_ms = now > w->last_heartbeat_at ? now - w->last_heartbeat_at : 0;
        w->marked_dead = strcmp(sq_text_or_empty(stmt, 5), "dead") == 0;
        w->state =
            worker_state(sq_text_or_empty(stmt, 5), w->silent_ms, w->interval_ms, w->multiplier);
        if (!ok) {
            rc = lhi_no_memory(err);
            break;
        }
        out->n++;
    }
    sq_reset(stmt);
    if (rc == LH_EMPTY)
        rc = LH_OK;
    return rc;
}

static int event_list(struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    const lh_event_filter *f = act->events.filter;
    lh_events *out = act->events.out;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    int64_t limit = f->limit ? (int64_t)f->limit : 100;
    enum lhi_sql which = f->job ? (f->newest ? LHI_SQL_EVENT_LAST_JOB : LHI_SQL_EVENT_LIST_JOB)
                                : (f->newest ? LHI_SQL_EVENT_LAST : LHI_SQL_EVENT_LIST);
    sqlite3_stmt *stmt =
        f->job ? sq_stmt(conn, which, err, "iiitti", f->job, f->after, f->since, f->queue, f->type,
                         limit)
               : sq_stmt(conn, which, err, "iitti", f->after, f->since, f->queue, f->type, limit);
    int rc;

    if (stmt == NULL)
        return err->status;
    if (arena == NULL)
        return lhi_no_memory(err);
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        bool ok = true;
        lh_event *grown = sq_grow(out->event, out->n, sizeof *grown);
        if (grown == NULL) {
            sq_reset(stmt);
            return lhi_no_memory(err);
        }
        out->event = grown;
        lh_event *e = &out->event[out->n];
        memset(e, 0, sizeof *e);
        e->id = sqlite3_column_int64(stmt, 0);
        e->at = sqlite3_column_int64(stmt, 1);
        e->type = sq_column_text(stmt, 2, arena, &ok);
        e->job = sqlite3_column_int64(stmt, 3);
        e->queue = sq_column_text(stmt, 4, arena, &ok);
        e->worker = sq_column_text(stmt, 5, arena, &ok);
        e->lease = sq_column_text(stmt, 6, arena, &ok);
        e->from = sq_column_text(stmt, 7, arena, &ok);
        e->to = sq_column_text(stmt, 8, arena, &ok);
        e->actor = sq_column_text(stmt, 9, arena, &ok);
        e->reason = sq_column_text(stmt, 10, arena, &ok);
        e->token = sqlite3_column_int64(stmt, 11);
        e->data = sq_column_text(stmt, 12, arena, &ok);
        e->attempt = sqlite3_column_int64(stmt, 13);
        e->max_attempts = sqlite3_column_int64(stmt, 14);
        e->action = sq_column_text(stmt, 15, arena, &ok);
        e->report = sqlite3_column_int64(stmt, 16);
        if (!ok) {
            sq_reset(stmt);
            return lhi_no_memory(err);
        }
        out->n++;
    }
    return rc < 0 ? rc : LH_OK;
}

/* ---- the entry for all reads ---- */

static int dispatch(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    switch (act->verb) {
    case LHI_JOB_GET:
        return job_get(db, conn, act, err);
    case LHI_JOB_LIST:
        return job_list(db, conn, act, err);
    case LHI_QUEUE_LIST:
        return queue_list(db, conn, act, err);
    case LHI_POLICY_LIST:
        return sq_load_policies(conn, act->policies.out, err);
    case LHI_SCHEDULE_LIST:
        return sq_read_schedules(conn, act, err);
    case LHI_LEASE_LIST:
        return lease_list(db, conn, act, err);
    case LHI_WORKER_LIST:
        return worker_list(db, conn, act, err);
    case LHI_WORKER_JUDGE:
        return sq_read_suspects(conn, LHI_SQL_WORKER_JUDGE, 0, act->suspects, err);
    case LHI_STALE:
        return sq_read_stale(db, conn, act, err);
    case LHI_REPORT_GET:
        return sq_read_report(conn, act, err);
    case LHI_REPORT_LIST:
        return sq_read_reports(conn, act, err);
    case LHI_EVENT_LIST:
        return event_list(conn, act, err);
    case LHI_OUTPUT_LIST:
        return sq_read_outputs(conn, act, err);
    case LHI_STATS:
        return sq_read_stats(db, conn, act, err);
    case LHI_DROP_SQL:
        return sq_schema_drop_sql(conn, act->drop_sql, err);
    case LHI_POLL:
        return sq_read_poll(db, conn, act, err);
    case LHI_RETRIES:
        return sq_read_retries(conn, act, err);
    case LHI_MOVE_LOOK:
        return sq_read_move_part(conn, act, err);
    case LHI_MOVE_READ:
        return sq_read_moved(conn, act, err);
    default:
        return lhi_fail(err, LH_EMISUSE, "not an act that reads");
    }
}

/* End the snapshot even after a failure: an open one would keep the log from starting again. */
static void end_snapshot(struct conn *conn)
{
    struct lhi_error ignored;

    for (int i = 0; i < LHI_SQL_COUNT; i++)
        sq_reset(conn->stmt[i]);
    if (sq_exec(conn, "COMMIT", &ignored) < 0)
        (void)sq_exec(conn, "ROLLBACK", &ignored);
    if (sqlite3_get_autocommit(conn->db) == 0)
        sq_conn_close(conn); /* the next read opens it again */
}

/* These reads have no time limit, even if the log grows meanwhile. */
static bool unbounded(enum lhi_verb verb)
{
    return verb == LHI_CHECK || verb == LHI_INTEGRITY;
}

int sq_db_read(void *self, struct lhi_act *act, struct lhi_error *err)
{
    struct db *db = self;
    int rc = LH_OK;

    /* A backup takes long and has a connection of its own, so other reads do not wait for it. */
    if (act->verb == LHI_BACKUP)
        return sq_db_moved(db) ? sq_db_stop_moved(db, err) : sq_backup_store(db, act, err);
    pthread_mutex_lock(&db->read_mutex);
    /* A handle for reading has one connection. A handle for writing opens a second one with its
     * first read. */
    struct conn *conn = db->opts.read_only ? &db->conn : &db->reader;
    if (conn->db != NULL && sq_degraded_outdated(db))
        sq_conn_close(conn);
    if (sq_db_moved(db))
        rc = sq_db_stop_moved(db, err);
    else if (conn->db == NULL)
        rc = sq_conn_open_to_read(db, conn, err);
    if (rc != LH_OK && conn == &db->reader)
        sq_conn_close(conn);
    if (rc == LH_OK && unbounded(act->verb)) {
        sqlite3_progress_handler(conn->db, 0, NULL, NULL);
        rc = act->verb == LHI_CHECK ? sq_check_store(db, conn, act, err)
                                    : sq_check_file(conn, act->check.cancel, act->check.out, err);
    } else if (rc == LH_OK) {
        db->read_deadline = lhi_mono_ms() + most_ms(act->verb);
        sqlite3_progress_handler(conn->db, READ_STEPS, past_deadline, db);
        /* All statements of the act use one snapshot. */
        if ((rc = sq_exec(conn, "BEGIN", err)) == LH_OK) {
            rc = dispatch(db, conn, act, err);
            end_snapshot(conn);
        }
    }
    if (rc >= 0 && db->in_place && sq_degraded_outdated(db))
        rc = lhi_fail(err, LH_EBUSY, "store \"%s\" was written to by others while it was read",
                      db->path);
    pthread_mutex_unlock(&db->read_mutex);
    return rc;
}
