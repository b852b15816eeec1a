/*
 * txn.c: one writing transaction, shared by all threads that came while it was on its way.
 *
 * A caller queues its acts. The first one leads: it takes everything queued, passes the turnstile,
 * performs all of it in one transaction, commits, leaves the turnstile, rings the bell, and tells
 * the others. Then everyone makes sure that the log is synced as far as their own transaction:
 * one fdatasync serves all who wait for it, threads and processes. So a durable act costs one sync,
 * but sixteen of them at once cost little more than one.
 *
 * When COMMIT or the sync fails, the outcome is unknown: the callers are told so, the handle stops,
 * and opening anew resolves it by the identity of the act.
 */
#include "store/sqlite/db.h"

#include "base/clock.h"
#include "base/hook.h"
#include "base/sys.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

enum {
    CHECKPOINT_FRAMES = 800, /* before a foreign autocheckpoint at 1000 has anything to do */
    TRUNCATE_BYTES = 64 << 20,
    BATCH_ITEMS = 2000, /* how much work a leader takes on in one transaction */
    BUSY_TRIES = 5,     /* against foreign writers: 50 ms, doubling, 1.55 s in all */
    BUSY_FIRST_MS = 50,
};

struct call {
    struct lhi_act *acts;
    size_t n;
    struct lhi_error *err;
    int rc;
    uint64_t tick; /* to be synced before the caller is told; 0: nothing to sync */
    uint32_t done; /* futex */
    struct call *next;
};

static act_fn *const performers[LHI_WRITES] = {
    [LHI_ENQUEUE] = act_enqueue,
    [LHI_CLAIM] = act_claim,
    [LHI_HEARTBEAT] = act_heartbeat,
    [LHI_COMPLETE] = act_complete,
    [LHI_FAIL] = act_fail,
    [LHI_RELEASE] = act_release,
    [LHI_RELEASE_WORKER] = act_release_worker,
    [LHI_CANCEL] = act_cancel,
    [LHI_RETRY] = act_retry,
    [LHI_DELETE] = act_delete,
    [LHI_RESCHEDULE] = act_reschedule,
    [LHI_QUEUE_PAUSE] = act_queue_pause,
    [LHI_QUEUE_PURGE] = act_queue_purge,
    [LHI_POLICY_SET] = act_policy_set,
    [LHI_SCOPE_SET] = act_scope_set,
    [LHI_LEASE_ACT] = act_lease,
    [LHI_WORKER_REGISTER] = act_worker_register,
    [LHI_WORKER_BEAT] = act_worker_beat,
    [LHI_WORKER_STOP] = act_worker_stop,
    [LHI_UPKEEP] = act_upkeep,
    [LHI_PRUNE] = act_prune,
};

/* Claims and beats of a holder on this machine need no sync: with the machine the holder dies too,
 * and a new boot raises the epoch. */
static bool needs_sync(const struct db *db, enum lhi_verb verb)
{
    if (db->opts.durability == LH_DURABLE_RELAXED)
        return false;
    switch (verb) {
    case LHI_CLAIM:
    case LHI_HEARTBEAT:
    case LHI_WORKER_BEAT:
    case LHI_WORKER_REGISTER:
    case LHI_UPKEEP:
        return db->opts.remote;
    default:
        return true;
    }
}

/* ---- pieces the acts use ---- */

struct tally *txn_tally(struct txn *txn, const char *queue, struct lhi_error *err)
{
    for (struct tally *t = txn->tallies; t != NULL; t = t->next)
        if (strcmp(t->queue, queue) == 0)
            return t;
    struct tally *tally = lhi_arena_alloc(&txn->arena, sizeof *tally);
    if (tally != NULL)
        tally->queue = lhi_arena_strdup(&txn->arena, queue);
    if (tally == NULL || tally->queue == NULL) {
        (void)lhi_fail(err, LH_ENOMEM, "out of memory");
        return NULL;
    }
    tally->next = txn->tallies;
    txn->tallies = tally;
    return tally;
}

void tally_move(struct tally *tally, lh_state from, lh_state to)
{
    if (from != 0)
        tally->state[from]--;
    if (to != 0)
        tally->state[to]++;
    if (to == LH_PENDING && tally->ring < INT_MAX)
        tally->ring++;
}

const lh_policy *txn_policy(struct txn *txn, const char *queue, const char *kind)
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

int64_t txn_next_token(const struct txn *txn, int64_t token)
{
    int64_t floor = txn->db->epoch << 40;
    return (token > floor ? token : floor) + 1;
}

int put_event(struct conn *conn, int64_t at, const struct event *e, struct lhi_error *err)
{
    int rc = sql_run(conn, LHI_SQL_EVENT_INSERT, err, "itItttttttIt", at, e->type, e->job, e->queue,
                     e->worker, e->lease, e->from ? lh_state_name(e->from) : NULL,
                     e->to ? lh_state_name(e->to) : NULL, e->actor, e->reason, e->token, e->data);
    return rc < 0 ? rc : LH_OK;
}

int txn_event(struct txn *txn, const struct event *event, struct lhi_error *err)
{
    return put_event(txn->conn, txn->now, event, err);
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
    sqlite3_stmt *stmt = sql(txn->conn, LHI_SQL_QUEUE_PAUSED, err, "");
    int rc;

    free_paused(db);
    if (stmt == NULL)
        return err->status;
    while ((rc = sql_step(txn->conn, stmt, err)) == LH_OK) {
        char **grown = lhi_realloc(db->paused, (db->n_paused + 1) * sizeof *grown);
        if (grown != NULL) {
            db->paused = grown;
            grown[db->n_paused] = lhi_strdup((const char *)sqlite3_column_text(stmt, 0));
        }
        if (grown == NULL || grown[db->n_paused] == NULL) {
            sql_reset(stmt);
            return lhi_fail(err, LH_ENOMEM, "out of memory");
        }
        db->n_paused++;
    }
    return rc < 0 ? rc : LH_OK;
}

static int txn_reload(struct txn *txn, struct lhi_error *err)
{
    struct db *db = txn->db;
    int64_t wall, mono;
    int rc;

    lhi_policies_clear(&db->policies);
    txn->policy_valid = false;
    if ((rc = load_policies(txn->conn, &db->policies, err)) < 0 || (rc = load_paused(txn, err)) < 0)
        return rc;
    if ((rc = meta_int(txn->conn, "epoch", 0, &db->epoch, err)) < 0 ||
        (rc = meta_int(txn->conn, "anchor_wall", 0, &wall, err)) < 0 ||
        (rc = meta_int(txn->conn, "anchor_mono", 0, &mono, err)) < 0)
        return rc;
    __atomic_store_n(&db->anchor_mono, mono, __ATOMIC_RELEASE);
    __atomic_store_n(&db->anchor_wall, wall, __ATOMIC_RELEASE);
    return LH_OK;
}

void db_free_caches(struct db *db)
{
    lhi_policies_clear(&db->policies);
    free_paused(db);
}

/* ---- one transaction ---- */

/* Writers of ours never meet here: they queue in the turnstile. A foreign program on the same file
 * may hold the write lock; it is met with small steps and growing patience. */
static int begin_immediate(struct conn *conn, struct lhi_error *err)
{
    int64_t patience = BUSY_FIRST_MS;
    for (int try = 0;; try++, patience *= 2) {
        int64_t deadline = lhi_mono_ms() + patience;
        for (;;) {
            int rc = sql_run(conn, LHI_SQL_TXN_BEGIN, err, "");
            if (rc != LH_EBUSY)
                return rc < 0 ? rc : LH_OK;
            if (lhi_mono_ms() >= deadline)
                break;
            lhi_sleep_ms(1);
        }
        if (try + 1 == BUSY_TRIES)
            return err->status;
    }
}

static int txn_begin(struct txn *txn, struct db *db, struct lhi_error *err)
{
    memset(txn, 0, sizeof *txn);
    txn->db = db;
    txn->conn = &db->conn;
    int rc = begin_immediate(txn->conn, err);
    if (rc != LH_OK)
        return rc;
    sqlite3_stmt *stmt = sql(txn->conn, LHI_SQL_STORE_MARKS, err, "");
    rc = stmt ? sql_step(txn->conn, stmt, err) : err->status;
    if (rc != LH_OK)
        return rc < 0 ? rc : lhi_fail(err, LH_ECORRUPT, "store has no row for itself in lh_queue");
    txn->tick = sqlite3_column_int64(stmt, 0) + 1;
    int64_t generation = sqlite3_column_int64(stmt, 1);
    sql_reset(stmt);
    if (generation != db->generation) {
        db->generation = -1;
        if ((rc = txn_reload(txn, err)) < 0)
            return rc;
        db->generation = generation;
    }
    return clock_judge(txn, err);
}

static int flush_tally(struct txn *txn, const struct tally *t, struct lhi_error *err)
{
    int64_t minute = txn->now / 60000;

    for (int try = 0; try < 2; try++) {
        int n = sql_run(txn->conn, LHI_SQL_QUEUE_TALLY, err, "iiiiiiiiiiiiiiti",
                        t->state[LH_SCHEDULED], t->state[LH_PENDING], t->state[LH_RUNNING],
                        t->state[LH_COMPLETED], t->state[LH_FAILED], t->state[LH_CANCELLED],
                        t->enqueued, t->claimed, t->completed, t->failed, t->recovered, t->ended,
                        t->wait_ms, t->run_ms, t->queue, minute);
        if (n != 0)
            return n < 0 ? n : LH_OK;
        /* A new minute, or a new queue. */
        if (sql_run(txn->conn, LHI_SQL_QUEUE_ROLL, err, "t", t->queue) < 0 ||
            sql_run(txn->conn, LHI_SQL_QUEUE_MINUTE, err, "ti", t->queue, minute) < 0)
            return err->status;
    }
    return lhi_fail(err, LH_EFAIL, "could not count what happened in queue \"%s\"", t->queue);
}

static int flush_tallies(struct txn *txn, struct lhi_error *err)
{
    for (const struct tally *t = txn->tallies; t != NULL; t = t->next) {
        int rc = flush_tally(txn, t, err);
        if (rc != LH_OK)
            return rc;
    }
    int rc = sql_run(txn->conn, LHI_SQL_STORE_TOUCH, err, "i", txn->tick);
    return rc < 0 ? rc : LH_OK;
}

static void rollback(struct txn *txn)
{
    struct lhi_error ignored; /* after some failures SQLite has rolled back by itself */
    (void)sql_run(txn->conn, LHI_SQL_TXN_ROLLBACK, &ignored, "");
}

int db_checkpoint(struct db *db, int mode)
{
    int frames = 0, moved = 0;
    int rc = sqlite3_wal_checkpoint_v2(db->conn.db, "main", mode, &frames, &moved);

    LHI_POINT("checkpoint:after");
    if (rc == SQLITE_OK && frames == moved) {
        /* Everything is in the database file, and synced there. */
        side_raise_synced(&db->side, side_committed(&db->side));
        db->wal_frames = 0;
        side_set_frames(&db->side, 0);
    } else if (rc != SQLITE_OK && (rc & 0xff) != SQLITE_BUSY) {
        lhi_log(&db->log, LH_LOG_WARN, "checkpoint failed: %s", sqlite3_errmsg(db->conn.db));
        /* It may have been a sync, of the log too: then what is behind it cannot be trusted. */
        if ((rc & 0xff) == SQLITE_IOERR)
            side_set_sync_failed(&db->side, true);
    }
    return rc;
}

static void checkpoint_when_due(struct db *db)
{
    if (db->wal_frames < CHECKPOINT_FRAMES)
        return;
    /* A reader may keep us from starting the log over; then it grows, until it is cut. */
    bool outsized = (int64_t)db->wal_frames * 4096 > TRUNCATE_BYTES;
    (void)db_checkpoint(db, outsized ? SQLITE_CHECKPOINT_TRUNCATE : SQLITE_CHECKPOINT_RESTART);
}

/* Commit; on failure the outcome is unknown, unless SQLite itself says that nothing happened. */
static int commit(struct txn *txn, struct lhi_error *err)
{
    struct db *db = txn->db;

    LHI_POINT("txn:before_commit");
    int status = sql_run(txn->conn, LHI_SQL_TXN_COMMIT, err, "");
    if (status < 0) {
        rollback(txn);
        if (status == LH_EBUSY || status == LH_ENOMEM || status == LH_ENOSPC)
            return status;
        __atomic_store_n(&db->stopped, 1, __ATOMIC_RELEASE);
        struct lhi_error said = *err;
        return lhi_fail(err, LH_EUNKNOWN, "could not commit, the outcome is unknown: %.300s",
                        said.text);
    }
    side_set_committed(&db->side, (uint64_t)txn->tick);
    side_set_frames(&db->side, db->wal_frames);
    LHI_POINT("txn:after_commit");
    /* A database file that was removed or replaced still takes commits, for nobody to see. */
    int moved = 0;
    if (sqlite3_file_control(db->conn.db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK &&
        moved) {
        __atomic_store_n(&db->stopped, 1, __ATOMIC_RELEASE);
        return lhi_fail(err, LH_ESTOPPED,
                        "database \"%s\" was removed or replaced while it was open: "
                        "nothing is acknowledged any more",
                        db->path);
    }
    return LH_OK;
}

/* What was counted so far, so that an act that fails can be taken out of it again. */
static struct tally *copy_tallies(struct txn *txn, bool *ok)
{
    struct tally *head = NULL, **end = &head;

    for (const struct tally *t = txn->tallies; t != NULL && *ok; t = t->next) {
        *end = lhi_arena_alloc(&txn->arena, sizeof **end);
        *ok = *end != NULL;
        if (*ok) {
            **end = *t;
            (*end)->next = NULL;
            end = &(*end)->next;
        }
    }
    return head;
}

/* Acts that judge their items one by one write nothing before they refuse one, and so does the
 * enqueue of a single job: when they fail, the engine has. The others may fail half-way. */
static bool may_fail_halfway(const struct lhi_act *act)
{
    switch (act->verb) {
    case LHI_CLAIM:
    case LHI_HEARTBEAT:
    case LHI_COMPLETE:
    case LHI_FAIL:
    case LHI_RELEASE:
        return false;
    case LHI_ENQUEUE:
        return act->n > 1 || act->enqueue.request != NULL;
    default:
        return true;
    }
}

int txn_guarded(struct txn *txn, int (*fn)(struct txn *, void *), void *arg, struct lhi_error *err)
{
    bool changed = txn->changed, durable = txn->durable, ok = true;
    struct tally *before = copy_tallies(txn, &ok);
    struct lhi_error ignored;

    if (!ok)
        return lhi_fail(err, LH_ENOMEM, "out of memory");
    if (sql_run(txn->conn, LHI_SQL_ACT_BEGIN, err, "") < 0)
        return err->status;
    int rc = fn(txn, arg);
    if (rc < 0) {
        /* The engine may have given up the whole transaction: then there is nothing to go back to,
         * and nothing may go on. */
        if (sqlite3_get_autocommit(txn->conn->db) != 0 ||
            sql_run(txn->conn, LHI_SQL_ACT_UNDO, &ignored, "") < 0) {
            txn->gone = true;
            return rc;
        }
        txn->tallies = before;
        txn->changed = changed;
        txn->durable = durable;
    }
    if (sql_run(txn->conn, LHI_SQL_ACT_END, &ignored, "") < 0) {
        txn->gone = true;
        return rc < 0 ? rc : lhi_fail(err, LH_EIO, "%s", ignored.text);
    }
    return rc;
}

static int perform(struct txn *txn, void *arg)
{
    struct lhi_act *act = arg;
    return performers[act->verb](txn, act);
}

/* An act that fails leaves no trace; what it counted goes too. */
static int perform_one(struct txn *txn, struct lhi_act *act, bool alone)
{
    lhi_error_clear(&act->err);
    int rc = !alone && may_fail_halfway(act) ? txn_guarded(txn, perform, act, &act->err)
                                             : perform(txn, act);
    if (rc < 0 && act->err.status == LH_OK)
        act->err.status = rc;
    return rc;
}

/* A failure of the engine, not of an act: the whole transaction goes. */
static bool fatal(int rc)
{
    return rc == LH_EIO || rc == LH_ENOMEM || rc == LH_ENOSPC || rc == LH_ECORRUPT ||
           rc == LH_EREADONLY || rc == LH_EBUSY || rc == LH_EFAIL;
}

static int run_acts(struct txn *txn, struct call *calls, struct lhi_error *err)
{
    bool alone = calls->next == NULL && calls->n == 1;

    for (struct call *call = calls; call != NULL; call = call->next)
        for (size_t i = 0; i < call->n; i++) {
            struct lhi_act *act = &call->acts[i];
            int rc = perform_one(txn, act, alone);
            if (rc < 0 && (fatal(rc) || alone || txn->gone)) {
                *err = act->err;
                err->status = rc;
                return rc;
            }
            if (rc >= 0 && needs_sync(txn->db, act->verb))
                txn->durable = true;
        }
    return LH_OK;
}

/* After a failed sync nobody knows what of the log is on the disk. Whoever comes next moves all of
 * it into the database file, synced, before anything more is acknowledged. */
static int heal_failed_sync(struct db *db, struct lhi_error *err)
{
    int64_t whole;
    int rc;

    if (!side_sync_failed(&db->side))
        return LH_OK;
    if ((rc = wal_valid_frames(db->path, &whole, err)) < 0)
        return rc;
    if (whole < side_frames(&db->side))
        return lhi_fail(err, LH_ECORRUPT,
                        "an earlier sync of \"%s-wal\" failed and %lld of its %lld frames are "
                        "damaged",
                        db->path, (long long)(side_frames(&db->side) - whole),
                        (long long)side_frames(&db->side));
    if (db_checkpoint(db, SQLITE_CHECKPOINT_TRUNCATE) != SQLITE_OK)
        return lhi_fail(err, LH_EIO,
                        "an earlier sync of \"%s-wal\" failed and the log could not be moved into "
                        "the database: %s",
                        db->path, sqlite3_errmsg(db->conn.db));
    side_set_sync_failed(&db->side, false);
    lhi_log(&db->log, LH_LOG_WARN, "an earlier sync failed: the log was moved into the database");
    return LH_OK;
}

static void ring_bells(struct txn *txn)
{
    for (const struct tally *t = txn->tallies; t != NULL; t = t->next)
        if (t->ring > 0)
            side_ring(&txn->db->side, side_queue_hash(t->queue), t->ring);
    side_changed(&txn->db->side);
}

/* Everything between entering and leaving the turnstile. */
static int transact(struct db *db, struct call *calls, struct txn *txn, struct lhi_error *err)
{
    int rc = heal_failed_sync(db, err);
    if (rc != LH_OK)
        return rc;
    rc = txn_begin(txn, db, err);
    if (rc == LH_OK)
        rc = run_acts(txn, calls, err);
    if (rc >= 0 && txn->changed)
        rc = flush_tallies(txn, err);
    if (rc < 0 || !txn->changed) {
        rollback(txn);
        if (rc < 0)
            db->generation = -1; /* what was cached inside may have been rolled back */
        return rc;
    }
    rc = commit(txn, err);
    if (rc == LH_OK)
        checkpoint_when_due(db);
    return rc;
}

static int stopped(struct lhi_error *err)
{
    return lhi_fail(err, LH_ESTOPPED,
                    "store was stopped by an earlier failure: close it and open it anew");
}

/* Perform all calls in one transaction and fill in what they are to be told. */
static void lead(struct db *db, struct call *calls)
{
    struct txn txn = {0};
    struct lhi_error err;
    bool committed = false;

    lhi_error_clear(&err);
    int rc = __atomic_load_n(&db->stopped, __ATOMIC_ACQUIRE) == 0 ? LH_OK : stopped(&err);
    if (rc == LH_OK)
        rc = side_enter(&db->side, db->opts.busy_ms, "write", &err);
    if (rc == LH_OK) {
        rc = transact(db, calls, &txn, &err);
        committed = rc == LH_OK && txn.changed;
        side_leave(&db->side);
    }
    if (committed)
        ring_bells(&txn);
    for (struct call *call = calls; call != NULL; call = call->next) {
        call->rc = rc;
        if (rc < 0)
            *call->err = err;
        call->tick = committed && txn.durable ? (uint64_t)txn.tick : 0;
    }
    lhi_arena_clear(&txn.arena);
}

/* ---- syncing ---- */

/* Sync the log for everybody whose commit is in it by now. */
static void sync_now(struct db *db)
{
    uint64_t reached = side_committed(&db->side);

    if (db->wal->pMethods->xSync(db->wal, SQLITE_SYNC_NORMAL) == SQLITE_OK &&
        !side_sync_failed(&db->side))
        side_raise_synced(&db->side, reached);
    else
        side_set_sync_failed(&db->side, true);
}

/* Make sure that everything up to `tick` is on the disk. Who comes while a sync runs waits for it,
 * and then either finds its work done or syncs for everyone who came meanwhile. */
static int sync_to(struct db *db, uint64_t tick, struct lhi_error *err)
{
    LHI_POINT("txn:before_sync");
    for (;;) {
        uint32_t ticket = side_sync_ticket(&db->side);
        if (side_synced(&db->side) >= tick)
            break;
        if (side_sync_failed(&db->side))
            return lhi_fail(err, LH_EUNKNOWN,
                            "could not sync \"%s-wal\": whether the act survives a power loss is "
                            "unknown",
                            db->path);
        /* The lock keeps other handles out, the mutex other threads of this one. */
        bool ours = pthread_mutex_trylock(&db->sync_mutex) == 0;
        if (ours && side_sync_try(&db->side)) {
            if (side_synced(&db->side) < tick && !side_sync_failed(&db->side))
                sync_now(db);
            side_sync_done(&db->side);
            pthread_mutex_unlock(&db->sync_mutex);
            continue;
        }
        if (ours)
            pthread_mutex_unlock(&db->sync_mutex);
        side_sync_wait(&db->side, ticket);
    }
    LHI_POINT("txn:after_sync");
    return LH_OK;
}

/* ---- combining ---- */

static struct call *take_batch(struct db *db)
{
    struct call *head = db->queue_head, *last = head;
    size_t items = 0;

    assert(head != NULL);
    for (;;) {
        for (size_t i = 0; i < last->n; i++)
            items += last->acts[i].n + 1;
        if (last->next == NULL || items >= BATCH_ITEMS)
            break;
        last = last->next;
    }
    db->queue_head = last->next;
    if (db->queue_head == NULL)
        db->queue_tail = NULL;
    last->next = NULL;
    return head;
}

static void tell(struct call *calls, const struct call *self)
{
    while (calls != NULL) {
        struct call *next = calls->next; /* gone as soon as its owner knows */
        if (calls != self) {
            uint32_t *done = &calls->done;
            __atomic_store_n(done, 1, __ATOMIC_RELEASE);
            lhi_futex_wake(done, 1, UINT32_MAX);
        }
        calls = next;
    }
}

/* Lead until this thread's own call is done, then hand the lead to whoever is queued. */
static void combine(struct db *db, struct call *self)
{
    pthread_mutex_lock(&db->mutex);
    if (db->queue_tail != NULL)
        db->queue_tail->next = self;
    else
        db->queue_head = self;
    db->queue_tail = self;
    while (db->leading && self->done == 0) {
        /* `done` turns 1 when performed, 2 when the lead passes to us. */
        pthread_mutex_unlock(&db->mutex);
        (void)lhi_futex_wait(&self->done, 0, UINT32_MAX, -1);
        if (__atomic_load_n(&self->done, __ATOMIC_ACQUIRE) == 1)
            return;
        pthread_mutex_lock(&db->mutex);
    }
    db->leading = true;
    struct call *batch = take_batch(db);
    pthread_mutex_unlock(&db->mutex);
    assert(batch == self); /* we are the oldest: those before us led before us */

    lead(db, batch);
    struct call *others = batch->next;

    pthread_mutex_lock(&db->mutex);
    struct call *heir = db->queue_head;
    if (heir != NULL) {
        __atomic_store_n(&heir->done, 2, __ATOMIC_RELEASE);
        lhi_futex_wake(&heir->done, 1, UINT32_MAX);
    } else {
        db->leading = false;
    }
    pthread_mutex_unlock(&db->mutex);
    tell(others, self);
}

int db_perform(void *self, struct lhi_act *acts, size_t n, struct lhi_error *err)
{
    struct db *db = self;
    struct call call = {.acts = acts, .n = n, .err = err};

    if (db->opts.read_only)
        return lhi_fail(err, LH_EREADONLY, "store \"%s\" was opened for reading only", db->path);
    combine(db, &call);
    if (call.rc < 0)
        return call.rc;
    if (call.tick != 0) {
        int rc = sync_to(db, call.tick, err);
        if (rc != LH_OK) {
            __atomic_store_n(&db->stopped, 1, __ATOMIC_RELEASE);
            return rc;
        }
    }
    return LH_OK;
}

int txn_alone(struct db *db, int (*fn)(struct txn *, void *, struct lhi_error *), void *arg,
              struct lhi_error *err)
{
    struct txn txn;
    int rc = txn_begin(&txn, db, err);

    if (rc == LH_OK)
        rc = fn(&txn, arg, err);
    if (rc == LH_OK)
        rc = flush_tallies(&txn, err);
    if (rc == LH_OK)
        rc = commit(&txn, err);
    else
        rollback(&txn);
    lhi_arena_clear(&txn.arena);
    db->generation = -1;
    if (rc == LH_OK)
        rc = sync_to(db, (uint64_t)txn.tick, err);
    return rc;
}
