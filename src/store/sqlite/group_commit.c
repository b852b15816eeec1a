/*
 * Group commit: threads of one handle share transactions.
 *
 * A caller puts its acts into a queue. The first caller leads: it takes everything in the queue,
 * takes the writer lock, performs all acts in one transaction, commits, releases the writer lock,
 * wakes idle workers, and returns the results to the other callers. Then each caller makes sure
 * that the log is synced up to its own transaction (sync.c). So a durable act costs one sync, and
 * sixteen at the same time cost little more than one.
 *
 * If COMMIT or the sync fails, the outcome is unknown: the callers get LH_EUNKNOWN, the handle
 * stops, and after opening the store again the identity of the act resolves it.
 */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/sync.h"

#include "base/sys.h"

#include <assert.h>
#include <string.h>

enum { BATCH_ITEMS = 2000 }; /* the most items that a leader performs in one transaction */

enum {
    JOB_BYTES = 1024,      /* about the bytes of a new job beside its payload */
    LOG_BYTES = 256 << 10, /* bytes of log for one transaction, to which */
    ITEM_BYTES = 8 << 10,  /* these are added for each job that it changes */
};

enum { WAITING, PERFORMED, LEAD }; /* the values of `done` */

struct call {
    struct lhi_act *acts;
    size_t n;
    struct lhi_error *err;
    int rc;
    int64_t folded_us; /* how long the leader's checkpoint took */
    /* an act of this call must survive a power loss; the syncs of other calls do not count */
    bool durable;
    bool claims_wait; /* its claims are returned only after the sync too */
    uint64_t tick;    /* the transaction to sync before the caller returns; 0: none */
    uint32_t done;    /* futex */
    struct call *next;
};

static act_fn *const performers[LHI_WRITES] = {
    [LHI_ENQUEUE] = sq_act_enqueue,
    [LHI_CLAIM] = sq_act_claim,
    [LHI_HEARTBEAT] = sq_act_heartbeat,
    [LHI_COMPLETE] = sq_act_complete,
    [LHI_FAIL] = sq_act_fail,
    [LHI_RELEASE] = sq_act_release,
    [LHI_OUTPUT] = sq_act_output,
    [LHI_RELEASE_WORKER] = sq_act_release_worker,
    [LHI_CANCEL] = sq_act_cancel,
    [LHI_RETRY] = sq_act_retry,
    [LHI_DELETE] = sq_act_delete,
    [LHI_RESCHEDULE] = sq_act_reschedule,
    [LHI_QUEUE_PAUSE] = sq_act_queue_pause,
    [LHI_QUEUE_PURGE] = sq_act_queue_purge,
    [LHI_QUEUE_DELETE] = sq_act_queue_delete,
    [LHI_POLICY_SET] = sq_act_policy_set,
    [LHI_SCOPE_SET] = sq_act_scope_set,
    [LHI_SCHEDULE_SET] = sq_act_schedule_set,
    [LHI_SCHEDULE_REMOVE] = sq_act_schedule_remove,
    [LHI_LEASE_ACT] = sq_act_lease,
    [LHI_WORKER_REGISTER] = sq_act_worker_register,
    [LHI_WORKER_HEARTBEAT] = sq_act_worker_heartbeat,
    [LHI_WORKER_STOP] = sq_act_worker_stop,
    [LHI_WORKER_STARTED] = sq_act_worker_started,
    [LHI_WORKER_SESSIONS] = sq_act_worker_sessions,
    [LHI_WORKER_DEGRADED] = sq_act_worker_degraded,
    [LHI_RECOVER] = sq_act_recover,
    [LHI_MAINTAIN] = sq_act_maintain,
    [LHI_PRUNE] = sq_act_prune,
    [LHI_RECOUNT] = sq_act_recount,
    [LHI_MOVE] = sq_act_move,
};

/* Claims and heartbeats of a holder on this machine need no sync: if the machine goes down, the
 * holder does too, and the new boot raises the epoch. The end of a run syncs its output. */
static bool needs_sync(const struct db *db, enum lhi_verb verb)
{
    if (db->opts.durability == LH_DURABLE_RELAXED)
        return false;
    switch (verb) {
    case LHI_CLAIM:
    case LHI_HEARTBEAT:
    case LHI_WORKER_HEARTBEAT:
    case LHI_WORKER_REGISTER:
    case LHI_WORKER_STARTED:
    case LHI_WORKER_SESSIONS:
    case LHI_WORKER_DEGRADED:
    case LHI_RECOVER:
    case LHI_MAINTAIN:
    case LHI_OUTPUT:
        return db->opts.remote;
    default:
        return true;
    }
}

/* ---- performing ---- */

/* Acts that check their items one by one write nothing before they refuse one, and neither does the
 * enqueue of a single job. If such an act fails, SQLite has failed, or a trigger of the user's has. The
 * other acts may fail after a write for reasons of their own, and get a savepoint at once. */
static bool may_fail_halfway(const struct lhi_act *act)
{
    switch (act->verb) {
    case LHI_CLAIM:
    case LHI_HEARTBEAT:
    case LHI_COMPLETE:
    case LHI_FAIL:
    case LHI_RELEASE:
    case LHI_OUTPUT:
        return false;
    case LHI_ENQUEUE:
        return act->n > 1 || act->enqueue.request != NULL;
    default:
        return true;
    }
}

static int perform(struct txn *txn, void *arg)
{
    struct lhi_act *act = arg;

    if (txn->db->closed[0] != '\0' && act->verb != LHI_MOVE)
        return lhi_fail(&act->err, LH_EREADONLY, "%s", txn->db->closed);
    return performers[act->verb](txn, act);
}

/* An act that fails leaves no trace, and its counts are undone too. */
static int perform_one(struct txn *txn, struct lhi_act *act, bool guarded)
{
    lhi_error_clear(&act->err);
    int rc = guarded ? sq_txn_guarded(txn, perform, act, &act->err) : perform(txn, act);
    if (rc < 0 && act->err.status == LH_OK)
        act->err.status = rc;
    return rc;
}

/* SQLite has failed, not an act: the whole transaction is rolled back. */
static bool fatal(int rc)
{
    return rc == LH_EIO || rc == LH_ENOMEM || rc == LH_ENOSPC || rc == LH_ECORRUPT ||
           rc == LH_EREADONLY || rc == LH_EBUSY || rc == LH_EFAIL;
}

/* All acts of all calls. `*redo`: one of several has failed without a savepoint, perhaps half-way. */
static int run_acts(struct txn *txn, struct call *calls, bool guard_all, bool *redo,
                    struct lhi_error *err)
{
    bool alone = calls->next == NULL && calls->n == 1;

    for (struct call *call = calls; call != NULL; call = call->next)
        for (size_t i = 0; i < call->n && call->rc == LH_OK; i++) {
            struct lhi_act *act = &call->acts[i];
            bool guarded = !alone && (guard_all || may_fail_halfway(act));
            int rc = perform_one(txn, act, guarded);
            bool own = txn->own_damage && rc == LH_ECORRUPT;
            txn->own_damage = false;
            if (rc == LH_ECORRUPT) /* the next open checks the file and repairs it */
                sq_coord_set_recovery_due(&txn->db->coord, true);
            if (rc < 0 && ((fatal(rc) && !own) || !guarded || txn->gone)) {
                *redo = !alone && !guarded && !txn->gone && (!fatal(rc) || own);
                *err = act->err;
                err->status = rc;
                return rc;
            }
            if (rc >= 0 && needs_sync(txn->db, act->verb))
                call->durable = true;
        }
    return LH_OK;
}

/* ---- once more, with savepoints ---- */

/* An act as it was before it was performed, with what it changes of its caller's. */
struct original {
    struct lhi_act act;
    struct lhi_run run;
    int64_t after;
    int rc;
};

static size_t count_acts(const struct call *calls)
{
    size_t n = 0;

    for (; calls != NULL; calls = calls->next)
        n += calls->n;
    return n;
}

static void keep_originals(const struct call *calls, struct original *kept)
{
    for (; calls != NULL; calls = calls->next)
        for (size_t i = 0; i < calls->n; i++, kept++) {
            const struct lhi_act *act = &calls->acts[i];
            kept->act = *act;
            kept->rc = calls->rc;
            if (act->verb == LHI_RECOVER)
                kept->run = *act->recover.run;
            if (act->verb == LHI_PRUNE && act->prune.after != NULL)
                kept->after = *act->prune.after;
        }
}

static void put_back(struct call *calls, const struct original *kept)
{
    for (; calls != NULL; calls = calls->next)
        for (size_t i = 0; i < calls->n; i++, kept++) {
            struct lhi_act *act = &calls->acts[i];
            *act = kept->act;
            calls->rc = kept->rc;
            if (act->after != NULL)
                act->after->n = 0;
            if (act->verb == LHI_CLAIM)
                act->claim.out->n = 0;
            if (act->verb == LHI_RECOVER)
                *act->recover.run = kept->run;
            if (act->verb == LHI_PRUNE && act->prune.after != NULL)
                *act->prune.after = kept->after;
        }
}

/* One act of several has failed and has no savepoint to go back to, because that would cost each claim.
 * So the transaction is undone, and all of them are performed again with a savepoint each. */
static int perform_all(struct db *db, struct call *calls, struct txn *txn, struct lhi_error *err)
{
    size_t n = count_acts(calls);
    struct original *kept = n > 1 ? lhi_malloc(n * sizeof *kept) : NULL;
    bool redo = false;

    if (n > 1 && kept == NULL)
        return lhi_no_memory(err);
    if (kept != NULL)
        keep_originals(calls, kept);
    int rc = run_acts(txn, calls, false, &redo, err);
    if (redo) {
        sq_txn_rollback(txn);
        lhi_arena_clear(&txn->arena);
        db->generation = -1; /* what was cached inside was rolled back */
        put_back(calls, kept);
        lhi_error_clear(err);
        if ((rc = sq_txn_begin(txn, db, err)) == LH_OK)
            rc = run_acts(txn, calls, true, &redo, err);
    }
    lhi_free(kept);
    return rc;
}

static void ring_bells(struct txn *txn)
{
    for (const struct tally *t = txn->tallies; t != NULL; t = t->next)
        if (t->wake > 0)
            sq_wake_queue(&txn->db->coord, sq_queue_hash(t->queue), t->wake);
    if (txn->falls_due)
        sq_wake_maintenance(&txn->db->coord);
    sq_wake_commit(&txn->db->coord);
}

/* ---- when the disk is full ---- */

/* The bytes of new jobs in a call; 0: none. */
static int64_t brings(const struct call *call)
{
    int64_t bytes = 0;

    for (size_t i = 0; i < call->n; i++) {
        const struct lhi_act *act = &call->acts[i];
        for (size_t j = 0; act->verb == LHI_ENQUEUE && j < act->n; j++)
            bytes += (int64_t)act->enqueue.jobs[j].payload_len + JOB_BYTES;
        if (act->verb == LHI_SCHEDULE_SET)
            bytes += (int64_t)act->schedule->job.payload_len + JOB_BYTES;
    }
    return bytes;
}

/* The bytes of output in an act. */
static int64_t output_bytes(const struct lhi_act *act)
{
    int64_t bytes = 0;

    for (size_t i = 0; act->verb == LHI_OUTPUT && i < act->n; i++) {
        const lh_output *o = act->outputs[i].output;
        if (o != NULL)
            bytes +=
                (int64_t)(o->out.head_len + o->out.tail_len + o->err.head_len + o->err.tail_len);
    }
    return bytes;
}

/* The bytes that a call must be able to write to the log: some pages for each job, and the texts of
 * heartbeats and ends of runs. Output does not count: without room only its sizes are stored. */
static int64_t writes(const struct call *call)
{
    int64_t items = 0, bytes = 0;

    for (size_t i = 0; i < call->n; i++) {
        const struct lhi_act *act = &call->acts[i];
        items += (int64_t)act->n;
        for (size_t j = 0; act->verb == LHI_COMPLETE && j < act->n; j++)
            bytes += (int64_t)act->done[j].result_len;
        for (size_t j = 0; act->verb == LHI_HEARTBEAT && j < act->n; j++)
            if (act->beat.beats[j].checkpoint != NULL)
                bytes += (int64_t)strlen(act->beat.beats[j].checkpoint);
        if (act->verb == LHI_RECOVER || act->verb == LHI_MAINTAIN || act->verb == LHI_PRUNE ||
            act->verb == LHI_QUEUE_PURGE)
            items += LHI_BATCH;
    }
    return LOG_BYTES + items * ITEM_BYTES + bytes;
}

/* Output needs free space as new jobs do. It never uses the reserve, which is for acts that end
 * jobs. */
static void admit_output(struct db *db, struct call *call, int64_t *bytes)
{
    for (size_t i = 0; i < call->n; i++) {
        struct lhi_error unused;
        struct lhi_act *act = &call->acts[i];
        int64_t more = output_bytes(act);
        act->sizes_only = more > 0 && sq_reserve_admit(db, *bytes + more, &unused) != LH_OK;
        if (!act->sizes_only)
            *bytes += more;
    }
}

/* Refuse new jobs for which there is no room, before they can fail the other calls of the
 * transaction. False: no call is left to perform. */
static bool admit(struct db *db, struct call *calls)
{
    int64_t bytes = 0, wish = 0, need = 0;
    bool any = false;

    for (const struct call *call = calls; call != NULL; call = call->next) {
        int64_t more = brings(call);
        wish += more + writes(call);
        for (size_t i = 0; i < call->n; i++)
            wish += output_bytes(&call->acts[i]);
        need += more > 0 ? 0 : writes(call);
    }
    sq_reserve_ready(db, wish, need);
    for (struct call *call = calls; call != NULL; call = call->next) {
        int64_t more = brings(call);
        if (more > 0)
            call->rc = sq_reserve_admit(db, bytes + more, call->err);
        if (call->rc == LH_OK) {
            bytes += more;
            admit_output(db, call, &bytes);
        }
        any = any || call->rc == LH_OK;
    }
    return any;
}

/* Everything between taking and releasing the writer lock. */
static int transact(struct db *db, struct call *calls, struct txn *txn, struct lhi_error *err)
{
    int rc = sq_sync_after_failure(db, err);
    if (rc != LH_OK || !admit(db, calls))
        return rc;
    rc = sq_txn_begin(txn, db, err);
    if (rc == LH_ECORRUPT)
        sq_coord_set_recovery_due(&db->coord, true);
    if (rc == LH_OK)
        rc = perform_all(db, calls, txn, err);
    if (rc >= 0 && txn->changed)
        rc = sq_txn_flush(txn, err);
    if (rc < 0 || !txn->changed) {
        sq_txn_rollback(txn);
        if (rc < 0)
            db->generation = -1; /* a rollback may have undone what the caches were read from */
        return rc;
    }
    rc = sq_txn_commit(txn, err);
    if (rc == LH_OK)
        sq_checkpoint_when_due(db, calls->acts[0].verb == LHI_RECOVER, &calls->folded_us);
    return rc;
}

static int stopped(struct lhi_error *err)
{
    return lhi_fail(err, LH_ESTOPPED,
                    "store was stopped by an earlier failure: close it and open it again");
}

/* Perform all calls in one transaction and fill in their results. */
static void lead(struct db *db, struct call *calls)
{
    struct txn txn = {0};
    struct lhi_error err;
    bool committed = false;
    uint64_t tick = 0;

    lhi_error_clear(&err);
    int rc = __atomic_load_n(&db->stopped, __ATOMIC_ACQUIRE) == 0 ? LH_OK : stopped(&err);
    if (rc == LH_OK)
        rc = sq_writer_lock(&db->coord, db->opts.busy_ms, "write", &err);
    if (rc == LH_OK) {
        rc = transact(db, calls, &txn, &err);
        committed = rc == LH_OK && txn.changed;
        /* An act that changed nothing may depend on an earlier write (a duplicate by key, a
         * repeat). So it waits until that write is synced. */
        if (rc == LH_OK)
            tick = committed ? (uint64_t)txn.tick : sq_coord_committed(&db->coord);
        sq_writer_unlock(&db->coord);
    }
    if (committed) {
        if (txn.run_goes_on || txn.run_over)
            sq_coord_set_recovering(&db->coord, !txn.run_over);
        if (txn.all_recovered)
            sq_coord_set_recovery_due(&db->coord, false);
        ring_bells(&txn);
        sq_txn_write_logs(&txn);
    }
    for (struct call *call = calls; call != NULL; call = call->next) {
        if (rc < 0) {
            call->rc = rc;
            *call->err = err;
        }
        call->claims_wait = txn.durable;
        call->tick = call->rc == LH_OK && (call->durable || txn.durable) ? tick : 0;
    }
    lhi_arena_clear(&txn.arena);
}

/* ---- the queue of calls ---- */

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

static void return_results(struct call *calls)
{
    while (calls != NULL) {
        struct call *next = calls->next; /* its owner may free the call as soon as it is done */
        uint32_t *done = &calls->done;
        __atomic_store_n(done, PERFORMED, __ATOMIC_RELEASE);
        lhi_futex_wake(done, 1, UINT32_MAX);
        calls = next;
    }
}

/* Queue the call, and return when this thread or another has performed it. Whether this thread
 * leads is decided once, under the mutex. After that only `done` counts, however often the thread
 * wakes up. */
static void queue_and_perform(struct db *db, struct call *self)
{
    pthread_mutex_lock(&db->mutex);
    if (db->queue_tail != NULL)
        db->queue_tail->next = self;
    else
        db->queue_head = self;
    db->queue_tail = self;
    bool leads = !db->leading;
    db->leading = true;
    pthread_mutex_unlock(&db->mutex);
    while (!leads) {
        uint32_t done = __atomic_load_n(&self->done, __ATOMIC_ACQUIRE);
        if (done == PERFORMED)
            return;
        leads = done == LEAD;
        if (!leads)
            (void)lhi_futex_wait(&self->done, WAITING, UINT32_MAX, -1);
    }

    pthread_mutex_lock(&db->mutex);
    struct call *batch = take_batch(db);
    pthread_mutex_unlock(&db->mutex);
    assert(batch == self); /* this call is the oldest: earlier calls are already done */
    lead(db, batch);
    struct call *others = batch->next;

    pthread_mutex_lock(&db->mutex);
    struct call *heir = db->queue_head;
    db->leading = heir != NULL;
    if (heir != NULL) {
        __atomic_store_n(&heir->done, LEAD, __ATOMIC_RELEASE);
        lhi_futex_wake(&heir->done, 1, UINT32_MAX);
    }
    pthread_mutex_unlock(&db->mutex);
    return_results(others);
}

/* A claim needs no sync, so its caller does not wait for the sync of the completes in the same
 * transaction. */
static void return_claims(const struct db *db, const struct call *call)
{
    if (call->claims_wait || needs_sync(db, LHI_CLAIM))
        return;
    for (size_t i = 0; i < call->n; i++) {
        struct lhi_act *act = &call->acts[i];
        if (act->verb == LHI_CLAIM && act->err.status == LH_OK && act->claim.stands != NULL)
            act->claim.stands(act);
    }
}

int sq_db_perform(void *self, struct lhi_act *acts, size_t n, struct lhi_error *err)
{
    struct db *db = self;
    struct call call = {.acts = acts, .n = n, .err = err};

    if (db->opts.read_only)
        return lhi_fail(err, LH_EREADONLY, "store \"%s\" was opened for reading only", db->path);
    queue_and_perform(db, &call);
    if (call.rc < 0)
        return call.rc;
    if (acts[0].verb == LHI_RECOVER)
        acts[0].recover.folded_us = call.folded_us;
    if (call.tick != 0) {
        return_claims(db, &call);
        int rc = sq_sync_to(db, call.tick, err);
        if (rc != LH_OK) {
            __atomic_store_n(&db->stopped, 1, __ATOMIC_RELEASE);
            return rc;
        }
    }
    return LH_OK;
}
