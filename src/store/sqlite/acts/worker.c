/* Workers: registration, heartbeats, sessions, stop. */
#include "store/sqlite/acts/acts.h"

#include "base/sys.h"

#include <string.h>

enum { DEFAULT_INTERVAL_MS = 30000, DEFAULT_MULTIPLIER = 3 };

static int worker_event(struct txn *txn, const char *type, const char *id, struct lhi_error *err)
{
    return sq_txn_event(txn, &(struct event){.type = type, .worker = id, .actor = id}, err);
}

/* `process` is NULL for a caller without a process on this machine. Then only time decides whether
 * it is dead. */
static int put_worker(struct txn *txn, const char *id, const lh_worker_opts *opts,
                      const struct lhi_identity *process, struct lhi_error *err)
{
    int64_t interval = opts->interval_ms ? opts->interval_ms : DEFAULT_INTERVAL_MS;
    int64_t multiplier = opts->multiplier ? opts->multiplier : DEFAULT_MULTIPLIER;
    int rc = sq_run(txn->conn, LHI_SQL_WORKER_REGISTER, err, "tttttIIIIttiiit", id,
                    opts->label ? opts->label : id, process ? process->host : NULL,
                    process ? process->machine : NULL, process ? process->boot : NULL,
                    process ? process->pid_ns : (int64_t)0, process ? process->time_ns : (int64_t)0,
                    process ? process->pid : (int64_t)0, process ? process->start : (int64_t)0,
                    opts->queues, LH_VERSION, interval, multiplier, txn->now,
                    opts->tells_started ? "[]" : NULL);
    txn->changed = txn->falls_due = true; /* the death watch has one more process to watch */
    return rc < 0 ? rc : worker_event(txn, "worker.started", id, err);
}

int sq_act_worker_heartbeat(struct txn *txn, struct lhi_act *act)
{
    const char *id = act->beat.worker;
    int n = sq_run(txn->conn, LHI_SQL_WORKER_HEARTBEAT, &act->err, "iIt", txn->now,
                   act->beat.interval_ms, id);

    if (n < 0)
        return n;
    txn->changed = true;
    if (n == 0) {
        int rc = put_worker(txn, id, &(lh_worker_opts){.interval_ms = act->beat.interval_ms}, NULL,
                            &act->err);
        if (rc < 0)
            return rc;
    }
    return sq_act_heartbeat(txn, act);
}

/* Return LH_ENOTFOUND if the worker is not registered. */
static int said_of(struct txn *txn, int changed, const char *worker, struct lhi_error *err)
{
    if (changed == 0)
        return lhi_fail(err, LH_ENOTFOUND, "there is no worker \"%s\"", worker);
    txn->changed = true;
    return changed < 0 ? changed : LH_OK;
}

/* Pairs as JSON: [[first, second], …]; NULL: out of memory. */
static char *pairs_json(struct txn *txn, size_t n,
                        void (*pair)(const struct lhi_act *, size_t, int64_t out[2]),
                        const struct lhi_act *act)
{
    size_t room = n * 48 + 8, used = 0;
    char *json = lhi_arena_alloc(&txn->arena, room);

    for (size_t i = 0; i < n && json != NULL; i++) {
        int64_t two[2];
        pair(act, i, two);
        used += lhi_format(json + used, room - used, "%s[%lld,%lld]", i ? "," : "[",
                           (long long)two[0], (long long)two[1]);
    }
    if (json != NULL)
        lhi_format(json + used, room - used, "%s", n > 0 ? "]" : "[]");
    return json;
}

static void start_pair(const struct lhi_act *act, size_t i, int64_t out[2])
{
    out[0] = act->started.started[i].job;
    out[1] = act->started.started[i].token;
}

static void leader_pair(const struct lhi_act *act, size_t i, int64_t out[2])
{
    out[0] = act->sessions.leaders[i].pid;
    out[1] = act->sessions.leaders[i].start;
}

static void first_leader_pair(const struct lhi_act *act, size_t i, int64_t out[2])
{
    out[0] = act->worker.leaders[i].pid;
    out[1] = act->worker.leaders[i].start;
}

int sq_act_worker_register(struct txn *txn, struct lhi_act *act)
{
    const lh_worker_opts *opts = act->worker.opts;
    struct lhi_identity self;

    lhi_identify(&self);
    int rc = put_worker(txn, act->worker.id, opts, opts->process ? &self : NULL, &act->err);
    if (rc < 0 || act->worker.leaders == NULL)
        return rc;
    const char *json = pairs_json(txn, act->n, first_leader_pair, act);
    if (json == NULL)
        return lhi_no_memory(&act->err);
    rc = sq_run(txn->conn, LHI_SQL_WORKER_SESSIONS, &act->err, "tt", json, act->worker.id);
    return rc < 0 ? rc : LH_OK;
}

int sq_act_worker_started(struct txn *txn, struct lhi_act *act)
{
    const char *worker = act->started.worker;
    const char *json = pairs_json(txn, act->n, start_pair, act);

    if (json == NULL)
        return lhi_no_memory(&act->err);
    return said_of(txn, sq_run(txn->conn, LHI_SQL_WORKER_STARTED, &act->err, "tt", json, worker),
                   worker, &act->err);
}

int sq_act_worker_sessions(struct txn *txn, struct lhi_act *act)
{
    const char *worker = act->sessions.worker;
    const char *json = pairs_json(txn, act->n, leader_pair, act);

    if (json == NULL)
        return lhi_no_memory(&act->err);
    return said_of(txn, sq_run(txn->conn, LHI_SQL_WORKER_SESSIONS, &act->err, "tt", json, worker),
                   worker, &act->err);
}

/* Recorded when the worker becomes degraded, and not again while it is. */
int sq_act_worker_degraded(struct txn *txn, struct lhi_act *act)
{
    const char *worker = act->degraded.worker, *why = act->degraded.why;
    int64_t before;
    int rc = sq_int(txn->conn, LHI_SQL_WORKER_IS_DEGRADED, &act->err, -1, &before, "t", worker);

    if (rc < 0 || before == (why != NULL))
        return rc;
    rc = said_of(
        txn,
        before < 0 ? 0 : sq_run(txn->conn, LHI_SQL_WORKER_DEGRADED, &act->err, "tt", why, worker),
        worker, &act->err);
    if (rc < 0)
        return rc;
    if (why == NULL) {
        sq_txn_log(txn, LH_LOG_INFO, &(lh_log_entry){.worker = worker},
                   "worker %s is no longer degraded", worker);
        return LH_OK;
    }
    sq_txn_log(txn, LH_LOG_ERROR, &(lh_log_entry){.worker = worker, .reason = why},
               "worker %s is degraded: %s", worker, why);
    return sq_txn_event(
        txn,
        &(struct event){
            .type = "worker.degraded", .worker = worker, .actor = worker, .reason = why},
        &act->err);
}

/* ---- what a worker holds ---- */

int sq_each_job_of_worker(struct txn *txn, const char *worker,
                          int (*fn)(struct txn *, int64_t id, int64_t token, void *arg,
                                    struct lhi_error *),
                          void *arg, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_OF_WORKER, err, "t", worker);
    lh_ref *held = NULL;
    size_t n = 0, room = 0;
    int rc;

    if (stmt == NULL)
        return err->status;
    /* Read all rows before the first is changed. */
    while ((rc = sq_step(txn->conn, stmt, err)) == LH_OK) {
        if (n == room) {
            room = room ? room * 2 : 64;
            lh_ref *grown = lhi_realloc(held, room * sizeof *grown);
            if (grown == NULL) {
                sq_reset(stmt);
                rc = lhi_no_memory(err);
                break;
            }
            held = grown;
        }
        held[n++] = (lh_ref){sqlite3_column_int64(stmt, 0), sqlite3_column_int64(stmt, 1)};
    }
    for (size_t i = 0; i < n && rc >= 0; i++)
        rc = fn(txn, held[i].job, held[i].token, arg, err);
    lhi_free(held);
    return rc < 0 ? rc : LH_OK;
}

struct leaver {
    char id[160];
    bool itself; /* the worker itself stops, so nobody needs to be waited for */
};

static int give_back(struct txn *txn, int64_t id, int64_t token, void *arg, struct lhi_error *err)
{
    const struct leaver *leaver = arg;
    return sq_release_by_operator(txn, id, token, 0, leaver->itself, leaver->id, err);
}

/* False if the worker is another process than the caller and may still run. */
static int acts_for_itself(struct txn *txn, const char *id, bool *itself, struct lhi_error *err)
{
    struct lhi_identity self;

    lhi_identify(&self);
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_WORKER_OTHER_PROCESS, err, "ttIItiI", self.boot,
                                 self.machine, self.pid_ns, self.time_ns, id, self.pid, self.start);
    int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;

    *itself = true;
    if (rc == LH_OK) {
        *itself = sqlite3_column_int(stmt, 2) != 0 &&
                  lhi_process_gone(sqlite3_column_int64(stmt, 0), sqlite3_column_int64(stmt, 1));
        sq_reset(stmt);
    }
    return rc < 0 ? rc : LH_OK;
}

int sq_act_worker_stop(struct txn *txn, struct lhi_act *act)
{
    struct leaver leaver;
    int64_t known;
    int rc;

    if ((rc = sq_int(txn->conn, LHI_SQL_WORKER_KNOWN, &act->err, -1, &known, "t", act->worker.id)) <
        0)
        return rc;
    if (known < 0)
        return lhi_fail(&act->err, LH_ENOTFOUND, "there is no worker \"%s\"", act->worker.id);
    /* If another process stops the worker, its jobs may still be running. They go into quarantine,
     * as the jobs of every live holder do. */
    if ((rc = acts_for_itself(txn, act->worker.id, &leaver.itself, &act->err)) < 0)
        return rc;
    int n = sq_run(txn->conn, LHI_SQL_WORKER_STOP, &act->err, "it", txn->now, act->worker.id);
    if (n < 0)
        return n;
    lhi_format(leaver.id, sizeof leaver.id, "%s", act->worker.id);
    if ((rc = sq_each_job_of_worker(txn, leaver.id, give_back, &leaver, &act->err)) < 0 || n == 0)
        return rc;
    txn->changed = true;
    return worker_event(txn, "worker.stopped", leaver.id, &act->err);
}
