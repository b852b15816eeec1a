/*
 * One writing transaction from its begin to its commit, and what acts use inside it.
 *
 * group_commit.c decides which thread runs one and for which calls; sync.c gets it to the disk.
 */
#include "store/sqlite/txn.h"
#include "store/sqlite/files/files.h"
#include "store/sqlite/open.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/rows.h"
#include "store/sqlite/sync.h"

#include "base/hook.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- what acts use ---- */

struct tally *sq_txn_tally(struct txn *txn, const char *queue, struct lhi_error *err)
{
    for (struct tally *t = txn->tallies; t != NULL; t = t->next)
        if (strcmp(t->queue, queue) == 0)
            return t;
    struct tally *tally = lhi_arena_alloc(&txn->arena, sizeof *tally);
    if (tally != NULL)
        tally->queue = lhi_arena_strdup(&txn->arena, queue);
    if (tally == NULL || tally->queue == NULL) {
        (void)lhi_no_memory(err);
        return NULL;
    }
    tally->next = txn->tallies;
    txn->tallies = tally;
    return tally;
}

void sq_txn_forget_tally(struct txn *txn, const char *queue)
{
    for (struct tally **t = &txn->tallies; *t != NULL; t = &(*t)->next)
        if (strcmp((*t)->queue, queue) == 0) {
            *t = (*t)->next;
            return;
        }
}

void sq_tally_move(struct tally *tally, lh_state from, lh_state to)
{
    if (from != 0)
        tally->state[from]--;
    if (to != 0)
        tally->state[to]++;
    /* Wake at least one worker of this queue: to claim the job, or to learn when it falls due. */
    if ((to == LH_PENDING || to == LH_SCHEDULED) && tally->wake < INT_MAX)
        tally->wake++;
}

const lh_policy *sq_txn_policy(struct txn *txn, const char *queue, const char *kind)
{
    bool same = txn->policy_valid && strcmp(queue, txn->policy_queue) == 0 &&
                strcmp(kind ? kind : "", txn->policy_kind) == 0;
    if (!same) {
        lhi_format(txn->policy_queue, sizeof txn->policy_queue, "%s", queue);
        lhi_format(txn->policy_kind, sizeof txn->policy_kind, "%s", kind ? kind : "");
        lhi_policy_resolve(&txn->db->policies, queue, kind, &txn->policy);
        txn->policy_valid = true;
    }
    return &txn->policy;
}

int64_t sq_txn_next_token(const struct txn *txn, int64_t token)
{
    int64_t floor = txn->db->epoch << 40;
    return (token > floor ? token : floor) + 1;
}

struct logged {
    struct logged *next;
    lh_log_entry about;
    int level;
    const char *line;
};

/* Without memory the line is lost, but nothing else. */
void sq_txn_log(struct txn *txn, int level, const lh_log_entry *about, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    if (txn->db->log.fn == NULL)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    struct logged *log = lhi_arena_alloc(&txn->arena, sizeof *log);
    if (log == NULL || (log->line = lhi_arena_strdup(&txn->arena, line)) == NULL)
        return;
    if (about != NULL) {
        log->about = *about;
        log->about.queue = lhi_arena_strdup(&txn->arena, about->queue);
        log->about.worker = lhi_arena_strdup(&txn->arena, about->worker);
        log->about.reason = lhi_arena_strdup(&txn->arena, about->reason);
    }
    log->level = level;
    log->next = txn->logs;
    txn->logs = log;
}

void sq_txn_write_logs(struct txn *txn)
{
    struct logged *first = NULL;

    for (struct logged *log = txn->logs, *next; log != NULL; log = next) {
        next = log->next;
        log->next = first;
        first = log;
    }
    for (; first != NULL; first = first->next)
        lhi_log_about(&txn->db->log, first->level, &first->about, "%s", first->line);
    txn->logs = NULL;
}

void sq_txn_falls_due(struct txn *txn, int64_t in_ms)
{
    if (in_ms < LHI_POLL_MS)
        txn->falls_due = true;
}

int sq_put_event(struct conn *conn, int64_t at, const struct event *e, struct lhi_error *err)
{
    int rc = sq_run(conn, LHI_SQL_EVENT_INSERT, err, "itItttttttItIItI", at, e->type, e->job,
                    e->queue, e->worker, e->lease, e->from ? lh_state_name(e->from) : NULL,
                    e->to ? lh_state_name(e->to) : NULL, e->actor, e->reason, e->token, e->data,
                    e->attempt, e->max_attempts, e->action, e->report);
    return rc < 0 ? rc : LH_OK;
}

int sq_txn_event(struct txn *txn, const struct event *event, struct lhi_error *err)
{
    return sq_put_event(txn->conn, txn->now, event, err);
}

static void free_paused(struct db *db)
{
    for (size_t i = 0; i < db->n_paused; i++)
        lhi_free(db->paused[i]);
    lhi_free(db->paused);
    db->paused = NULL;
    db->n_paused = 0;
}

static int load_paused(struct txn *txn, struct lhi_error *err)
{
    struct db *db = txn->db;
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_QUEUE_PAUSED, err, "");
    int rc;

    free_paused(db);
    if (stmt == NULL)
        return err->status;
    while ((rc = sq_step(txn->conn, stmt, err)) == LH_OK) {
        char **grown = lhi_realloc(db->paused, (db->n_paused + 1) * sizeof *grown);
        if (grown != NULL) {
            db->paused = grown;
            grown[db->n_paused] = lhi_strdup(sq_text_or_empty(stmt, 0));
        }
        if (grown == NULL || grown[db->n_paused] == NULL) {
            sq_reset(stmt);
            return lhi_no_memory(err);
        }
        db->n_paused++;
    }
    return rc < 0 ? rc : LH_OK;
}

int sq_txn_reload(struct txn *txn, struct lhi_error *err)
{
    struct db *db = txn->db;
    int64_t wall, mono;
    int rc;

    lhi_policies_clear(&db->policies);
    txn->policy_valid = false;
    if ((rc = sq_load_policies(txn->conn, &db->policies, err)) < 0 ||
        (rc = load_paused(txn, err)) < 0 ||
        (rc = sq_move_closed(db, txn->conn, db->closed, sizeof db->closed, err)) < 0)
        return rc;
    char boot[40];
    if ((rc = sq_meta_int(txn->conn, "epoch", 0, &db->epoch, err)) < 0 ||
        (rc = sq_meta_text(txn->conn, "anchor_boot", boot, sizeof boot, err)) < 0 ||
        (rc = sq_meta_int(txn->conn, "anchor_wall", 0, &wall, err)) < 0 ||
        (rc = sq_meta_int(txn->conn, "anchor_mono", 0, &mono, err)) < 0)
        return rc;
    /* The anchor of another boot says nothing about this boot's clock. */
    int64_t offset = sq_clock_of_this_boot(db, boot) ? wall - mono : 0;
    __atomic_store_n(&db->clock, offset, __ATOMIC_RELEASE);
    if (!txn->anchored && offset != 0)
        sq_coord_set_clock(&db->coord, offset);
    return LH_OK;
}

void sq_db_free_caches(struct db *db)
{
    lhi_policies_clear(&db->policies);
    free_paused(db);
}

/* ---- one transaction ---- */

int sq_txn_begin(struct txn *txn, struct db *db, struct lhi_error *err)
{
    memset(txn, 0, sizeof *txn);
    txn->db = db;
    txn->conn = &db->conn;
    int rc = sq_run(txn->conn, LHI_SQL_TXN_BEGIN, err, "");
    if (rc < 0)
        return rc;
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_STORE_MARKS, err, "");
    rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;
    if (rc != LH_OK)
        return rc < 0 ? rc : lhi_fail(err, LH_ECORRUPT, "store has no row for itself in lh_queue");
    txn->tick = sqlite3_column_int64(stmt, 0) + 1;
    int64_t generation = sqlite3_column_int64(stmt, 1);
    sq_reset(stmt);
    if (generation != db->generation) {
        db->generation = -1;
        db->stuck_until = 0;
        if ((rc = sq_txn_reload(txn, err)) < 0)
            return rc;
        db->generation = generation;
    }
    return sq_clock_check(txn, err);
}

static int flush_tally(struct txn *txn, const struct tally *t, struct lhi_error *err)
{
    int64_t minute = txn->now / 60000;

    for (int try = 0; try < 2; try++) {
        int n = sq_run(txn->conn, LHI_SQL_QUEUE_TALLY, err, "iiiiiiiiiiiiiiti",
                       t->state[LH_SCHEDULED], t->state[LH_PENDING], t->state[LH_RUNNING],
                       t->state[LH_COMPLETED], t->state[LH_FAILED], t->state[LH_CANCELLED],
                       t->enqueued, t->claimed, t->completed, t->failed, t->recovered, t->ended,
                       t->wait_ms, t->run_ms, t->queue, minute);
        if (n != 0)
            return n < 0 ? n : LH_OK;
        /* A new minute, or a new queue. */
        if (sq_run(txn->conn, LHI_SQL_QUEUE_ROLL, err, "t", t->queue) < 0 ||
            sq_run(txn->conn, LHI_SQL_QUEUE_MINUTE, err, "ti", t->queue, minute) < 0)
            return err->status;
    }
    return lhi_fail(err, LH_EFAIL, "could not write the counts of queue \"%s\"", t->queue);
}

int sq_txn_count(struct txn *txn, struct lhi_error *err)
{
    for (struct tally *t = txn->tallies; t != NULL; t = t->next) {
        int rc = flush_tally(txn, t, err);
        if (rc != LH_OK)
            return rc;
        *t = (struct tally){.next = t->next, .queue = t->queue, .wake = t->wake};
    }
    return LH_OK;
}

int sq_txn_flush(struct txn *txn, struct lhi_error *err)
{
    int rc = sq_txn_count(txn, err);

    if (rc == LH_OK)
        rc = sq_run(txn->conn, LHI_SQL_STORE_TOUCH, err, "i", txn->tick);
    return rc < 0 ? rc : LH_OK;
}

void sq_txn_rollback(struct txn *txn)
{
    struct lhi_error ignored; /* after some failures SQLite has already rolled back */
    (void)sq_run(txn->conn, LHI_SQL_TXN_ROLLBACK, &ignored, "");
}

/* Commit. If this fails, the outcome is unknown, unless SQLite says that nothing happened. */
int sq_txn_commit(struct txn *txn, struct lhi_error *err)
{
    struct db *db = txn->db;

    LHI_POINT("txn:before_commit");
    if (sq_db_files_changed(db)) {
        sq_txn_rollback(txn);
        (void)sq_db_stop_moved(db, err);
        (void)sq_db_save_log(db);
        return LH_ESTOPPED;
    }
    int status = sq_run(txn->conn, LHI_SQL_TXN_COMMIT, err, "");
    if (status < 0) {
        sq_txn_rollback(txn);
        if (status == LH_EBUSY || status == LH_ENOMEM || status == LH_ENOSPC)
            return status;
        __atomic_store_n(&db->stopped, 1, __ATOMIC_RELEASE);
        struct lhi_error said = *err;
        return lhi_fail(err, LH_EUNKNOWN, "could not commit, the outcome is unknown: %.300s",
                        said.text);
    }
    sq_coord_set_committed(&db->coord, (uint64_t)txn->tick);
    sq_coord_set_frames(&db->coord, db->wal_frames);
    if (txn->anchored)
        sq_coord_set_clock(&db->coord, db->clock);
    LHI_POINT("txn:after_commit");
    /* Files that were removed or replaced still accept commits, but nobody else will see them. */
    if (sq_db_moved(db)) {
        (void)sq_db_stop_moved(db, err);
        (void)sq_db_save_log(db);
        err->status = LH_EUNKNOWN; /* the file may return, with this commit in it */
        return LH_EUNKNOWN;
    }
    return LH_OK;
}

/* ---- savepoints ---- */

/* Undo the writes since the savepoint, and all that the transaction keeps in memory of them. Pointers to
 * tallies that existed before stay valid. */
static void undo(struct txn *txn, const struct txn *before, int64_t stuck_until)
{
    struct lhi_arena arena = txn->arena;
    bool own_damage = txn->own_damage, reloaded = txn->reloaded;
    struct lhi_error ignored;

    *txn = *before;
    txn->arena = arena;
    txn->own_damage = own_damage; /* says why it is undone */
    txn->db->stuck_until = stuck_until;
    /* Settings that it changed are as they were. */
    txn->gone = sqlite3_get_autocommit(txn->conn->db) != 0 ||
                sq_run(txn->conn, LHI_SQL_ACT_UNDO, &ignored, "") < 0 ||
                (reloaded && sq_txn_reload(txn, &ignored) < 0);
}

int sq_txn_savepoint(struct txn *txn, int (*fn)(struct txn *, void *), void *arg,
                     struct lhi_error *err)
{
    struct txn before = *txn;
    int64_t stuck_until = txn->db->stuck_until;
    struct lhi_error ignored;

    if (sq_run(txn->conn, LHI_SQL_ACT_BEGIN, err, "") < 0) {
        txn->gone = sqlite3_get_autocommit(txn->conn->db) != 0;
        return err->status;
    }
    int rc = fn(txn, arg);
    if (rc < 0)
        undo(txn, &before, stuck_until);
    /* SQLite may have rolled back the whole transaction. Then the savepoint is gone, and nothing
     * may go on. */
    if (txn->gone)
        return rc;
    if (sq_run(txn->conn, LHI_SQL_ACT_END, &ignored, "") < 0) {
        txn->gone = true;
        return rc < 0 ? rc : lhi_fail(err, ignored.status, "%s", ignored.text);
    }
    return rc;
}

struct counted {
    struct tally *tally;
    struct tally before;
};

/* A copy of the counts, so that those of an act that fails can be undone. */
static struct counted *copy_tallies(struct txn *txn, size_t *n)
{
    struct counted *copies, *copy;

    *n = 0;
    for (const struct tally *t = txn->tallies; t != NULL; t = t->next)
        (*n)++;
    copy = copies = lhi_arena_alloc(&txn->arena, (*n + 1) * sizeof *copies);
    for (struct tally *t = txn->tallies; t != NULL && copies != NULL; t = t->next)
        *copy++ = (struct counted){.tally = t, .before = *t};
    return copies;
}

int sq_txn_guarded(struct txn *txn, int (*fn)(struct txn *, void *), void *arg,
                   struct lhi_error *err)
{
    size_t n;
    struct counted *copies = copy_tallies(txn, &n);

    if (copies == NULL)
        return lhi_no_memory(err);
    int rc = sq_txn_savepoint(txn, fn, arg, err);
    for (size_t i = 0; i < n && rc < 0; i++)
        *copies[i].tally = copies[i].before;
    return rc;
}

int sq_txn_alone(struct db *db, int (*fn)(struct txn *, void *, struct lhi_error *), void *arg,
                 struct lhi_error *err)
{
    struct txn txn;
    int rc = sq_txn_begin(&txn, db, err);

    if (rc == LH_OK)
        rc = fn(&txn, arg, err);
    if (rc == LH_OK)
        rc = sq_txn_flush(&txn, err);
    if (rc == LH_OK)
        rc = sq_txn_commit(&txn, err);
    else
        sq_txn_rollback(&txn);
    if (rc == LH_OK)
        sq_txn_write_logs(&txn);
    lhi_arena_clear(&txn.arena);
    db->generation = -1;
    if (rc == LH_OK)
        rc = sq_sync_to(db, (uint64_t)txn.tick, err);
    return rc;
}
