/* Named leases. The exclusive lease of a queue is one of them. */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/acts/recovery.h"
#include "store/sqlite/row_sum.h"
#include "store/sqlite/rows.h"

#include <assert.h>
#include <string.h>

#define EXPIRED "RECLAIMED_TTL: lease had expired"

enum { DEFAULT_TTL_MS = 300000 };

/* Read the row into the transaction's arena; `found` is false if there is none. */
static int read_lease(struct txn *txn, const char *scope, const char *name, lh_lease *lease,
                      bool *found, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_LEASE_GET, err, "tt", scope, name);
    if (stmt == NULL)
        return err->status;
    int rc = sq_step(txn->conn, stmt, err);
    if (rc < 0)
        return rc;
    *found = rc == LH_OK;
    if (*found && !sq_row_sum_matches(stmt)) {
        char full[400];
        lhi_format(full, sizeof full, "%s/%s", scope, name);
        sq_reset(stmt);
        txn->own_damage = true;
        return sq_damaged_row("lease", full, err);
    }
    if (*found && !sq_lease_from_row(stmt, txn->now, &txn->arena, lease)) {
        sq_reset(stmt);
        return lhi_no_memory(err);
    }
    sq_reset(stmt);
    return LH_OK;
}

static int lease_event(struct txn *txn, const char *type, const char *scope, const char *name,
                       const char *owner, int64_t token, const char *actor, const char *reason,
                       struct lhi_error *err)
{
    char full[400];
    lhi_format(full, sizeof full, "%s/%s", scope, name);
    return sq_txn_event(txn,
                        &(struct event){.type = type,
                                        .lease = full,
                                        .worker = owner,
                                        .actor = actor,
                                        .reason = reason,
                                        .token = token},
                        err);
}

static int free_lease(struct txn *txn, const lh_lease *lease, const char *value,
                      const int64_t *rows, bool completed, struct lhi_error *err)
{
    int rc = sq_run(txn->conn, LHI_SQL_LEASE_FREE, err, "toItti", value, rows,
                    completed ? txn->now : (int64_t)0, lease->scope, lease->name, lease->token);
    if (rc >= 0)
        rc = sq_run(txn->conn, LHI_SQL_LEASE_DELETE, err, "tt", lease->scope, lease->name);
    txn->changed = true;
    return rc < 0 ? rc : LH_OK;
}

/* Return the lease as it is now to the caller. */
static int answer(struct txn *txn, struct lhi_act *act)
{
    lh_leases *out = act->lease.out;
    struct lhi_error *err = &act->err;

    if (out == NULL)
        return LH_OK;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    out->lease = arena ? lhi_calloc(1, sizeof *out->lease) : NULL;
    if (out->lease == NULL)
        return lhi_no_memory(err);
    sqlite3_stmt *stmt =
        sq_stmt(txn->conn, LHI_SQL_LEASE_GET, err, "tt", act->lease.scope, act->lease.name);
    if (stmt == NULL)
        return err->status;
    int rc = sq_step(txn->conn, stmt, err);
    if (rc < 0)
        return rc;
    if (rc == LH_OK) {
        if (!sq_lease_from_row(stmt, txn->now, arena, out->lease)) {
            sq_reset(stmt);
            return lhi_no_memory(err);
        }
        out->n = 1;
    }
    sq_reset(stmt);
    return LH_OK;
}

static int held_by_other(struct txn *txn, struct lhi_act *act, const lh_lease *lease)
{
    char left[32];
    int rc = answer(txn, act);
    if (rc < 0)
        return rc;
    return lhi_fail(&act->err, LH_EHELD, "lease \"%s/%s\" is held by \"%s\" for another %s",
                    lease->scope, lease->name, lease->owner,
                    lh_duration_format(lease->remaining_ms, left, sizeof left));
}

/* Take a lease that is free or expired; `got` is false if it is held. */
static int take_lease(struct txn *txn, const char *scope, const char *name, const char *owner,
                      int64_t ttl_ms, const char *value, int64_t job, bool *got, int64_t *token,
                      struct lhi_error *err)
{
    sqlite3_stmt *stmt =
        sq_stmt(txn->conn, LHI_SQL_LEASE_ACQUIRE, err, "tttiiiiitI", scope, name, owner,
                txn->db->epoch, txn->tick, ttl_ms, txn->now, txn->now + ttl_ms, value, job);
    int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;

    *got = rc == LH_OK;
    if (rc == LH_OK) {
        *token = sqlite3_column_int64(stmt, 0);
        rc = sq_step(txn->conn, stmt, err); /* step to the end: only then is the write done */
    }
    return rc < 0 ? rc : LH_OK;
}

static int acquire(struct txn *txn, struct lhi_act *act, lh_lease *old, bool found)
{
    struct lhi_error *err = &act->err;
    const lh_lease_opts *opts = act->lease.opts;
    const char *scope = act->lease.scope, *name = act->lease.name, *owner = act->lease.owner;
    int64_t ttl = opts->ttl_ms;
    bool held = found && old->owner != NULL && !old->stale;
    int rc;

    if (ttl == 0 &&
        (rc = sq_int(txn->conn, LHI_SQL_SCOPE_GET, err, DEFAULT_TTL_MS, &ttl, "t", scope)) < 0)
        return rc;
    txn->changed = true;
    sq_txn_falls_due(txn, ttl);
    if (held && strcmp(old->owner, owner) == 0 && !opts->take_only)
        rc = sq_run(txn->conn, LHI_SQL_LEASE_EXTEND, err, "iiitttti", (int64_t)0, txn->now, ttl,
                    opts->value, scope, name, owner, old->token);
    else if (held)
        return held_by_other(txn, act, old);
    else {
        bool got;
        int64_t token = 0;
        rc = take_lease(txn, scope, name, owner, ttl, opts->value, 0, &got, &token, err);
        assert(rc < 0 || got);
        if (rc >= 0 && found && old->stale)
            rc = lease_event(txn, "lease.recovered", scope, name, old->owner, old->token,
                             "system/recovery", EXPIRED, err);
        if (rc >= 0)
            rc = lease_event(txn, "lease.acquired", scope, name, owner, token, owner, NULL, err);
    }
    return rc < 0 ? rc : answer(txn, act);
}

static int lost(struct lhi_act *act, const lh_lease *lease, bool found)
{
    const char *scope = act->lease.scope, *name = act->lease.name;
    if (!found || lease->owner == NULL)
        return lhi_fail(&act->err, LH_ELOST, "lease \"%s/%s\" is held by nobody", scope, name);
    if (strcmp(lease->owner, act->lease.owner) != 0)
        return lhi_fail(&act->err, LH_ELOST, "lease \"%s/%s\" is held by \"%s\" now", scope, name,
                        lease->owner);
    if (lease->stale)
        return lhi_fail(&act->err, LH_ELOST, "lease \"%s/%s\" has expired", scope, name);
    return lhi_fail(&act->err, LH_ELOST, "lease \"%s/%s\" has token %lld now, not %lld", scope,
                    name, (long long)lease->token, (long long)act->lease.opts->token);
}

static bool is_holder(const struct lhi_act *act, const lh_lease *lease, bool found)
{
    return found && lease->owner != NULL && strcmp(lease->owner, act->lease.owner) == 0 &&
           (act->lease.opts->token == 0 || act->lease.opts->token == lease->token);
}

static int extend(struct txn *txn, struct lhi_act *act, const lh_lease *old, bool found)
{
    const lh_lease_opts *opts = act->lease.opts;
    struct lhi_error *err = &act->err;
    int64_t ttl = opts->ttl_ms;
    char left[32];
    int rc;

    if (!is_holder(act, old, found) || old->stale)
        return lost(act, old, found);
    if (opts->by_ms > LHI_MAX_LEASE_MS - old->remaining_ms)
        return lhi_fail(err, LH_EINVAL,
                        "lease \"%s/%s\" would be held for another %s: at most 30d from now is "
                        "allowed",
                        old->scope, old->name,
                        lh_duration_format(old->remaining_ms + opts->by_ms, left, sizeof left));
    if (ttl == 0 && (rc = sq_int(txn->conn, LHI_SQL_SCOPE_GET, err, DEFAULT_TTL_MS, &ttl, "t",
                                 act->lease.scope)) < 0)
        return rc;
    rc = sq_run(txn->conn, LHI_SQL_LEASE_EXTEND, err, "iiitttti", opts->by_ms, txn->now, ttl,
                opts->value, act->lease.scope, act->lease.name, act->lease.owner, old->token);
    txn->changed = true;
    return rc < 0 ? rc : answer(txn, act);
}

static int give_back(struct txn *txn, struct lhi_act *act, const lh_lease *old, bool found)
{
    const lh_lease_opts *opts = act->lease.opts;
    bool completed = act->lease.verb == LHI_LEASE_COMPLETE;
    struct lhi_error *err = &act->err;
    int rc;

    if (!is_holder(act, old, found)) {
        if (completed)
            return lost(act, old, found);
        if (found && old->owner != NULL && !old->stale && strcmp(old->owner, act->lease.owner) != 0)
            return held_by_other(txn, act, old);
        return LH_OK; /* it is no longer held, so a second release does nothing */
    }
    if ((rc = free_lease(txn, old, opts->value, opts->has_rows ? &opts->rows : NULL, completed,
                         err)) < 0 ||
        (rc = lease_event(txn, completed ? "lease.completed" : "lease.released", old->scope,
                          old->name, old->owner, old->token, old->owner, NULL, err)) < 0)
        return rc;
    act->lease.released = true;
    return answer(txn, act);
}

/* The exclusive lease of a queue ends only with its job. */
static int belongs_to_job(struct txn *txn, struct lhi_act *act)
{
    int64_t job;
    int rc = sq_int(txn->conn, LHI_SQL_LEASE_JOB, &act->err, 0, &job, "tt", act->lease.scope,
                    act->lease.name);

    if (rc < 0 || job == 0)
        return rc;
    return lhi_fail(&act->err, LH_ESTATE, "lease \"%s/%s\" belongs to job %lld and ends with it",
                    act->lease.scope, act->lease.name, (long long)job);
}

int sq_act_lease(struct txn *txn, struct lhi_act *act)
{
    lh_lease old = {0};
    bool found = false;
    int rc = sq_check_json(txn->conn, act->lease.opts->value, "value", &act->err);

    if (rc < 0 ||
        (rc = read_lease(txn, act->lease.scope, act->lease.name, &old, &found, &act->err)) < 0)
        return rc;
    if (is_holder(act, &old, found) && !old.stale && (rc = belongs_to_job(txn, act)) < 0)
        return rc;
    switch (act->lease.verb) {
    case LHI_LEASE_ACQUIRE:
        return acquire(txn, act, &old, found);
    case LHI_LEASE_EXTEND:
        return extend(txn, act, &old, found);
    case LHI_LEASE_RELEASE:
    case LHI_LEASE_COMPLETE:
    default:
        return give_back(txn, act, &old, found);
    }
}

int sq_act_scope_set(struct txn *txn, struct lhi_act *act)
{
    int rc = act->scope.ttl_ms
                 ? sq_run(txn->conn, LHI_SQL_SCOPE_SET, &act->err, "ti", act->scope.scope,
                          act->scope.ttl_ms)
                 : sq_run(txn->conn, LHI_SQL_SCOPE_DELETE, &act->err, "t", act->scope.scope);
    if (rc > 0)
        txn->changed = true;
    return rc < 0 ? rc : LH_OK;
}

/* ---- expired leases ---- */

/* A lease that a recovery frees. */
struct freeing {
    const lh_lease *lease;
    const char *full, *reason;
    struct lhi_run *run;
    struct lhi_error *err;
};

static int write_freed(struct txn *txn, void *arg)
{
    const struct freeing *f = arg;
    int rc;

    if ((rc = sq_recovery_begin(txn, f->run, f->err)) < 0 ||
        (rc = free_lease(txn, f->lease, NULL, NULL, false, f->err)) < 0)
        return rc;
    f->run->leases++;
    sq_txn_log(
        txn, LH_LOG_INFO,
        &(lh_log_entry){.token = f->lease->token, .worker = f->lease->owner, .reason = f->reason},
        "lease %s of %s was freed: %s", f->full, f->lease->owner, f->reason);
    return sq_recovery_event(txn, f->run,
                             &(struct event){.type = "lease.recovered",
                                             .lease = f->full,
                                             .worker = f->lease->owner,
                                             .reason = f->reason,
                                             .token = f->lease->token},
                             f->err);
}

static int free_one(struct txn *txn, const lh_lease *lease, const char *reason, bool by_operator,
                    struct lhi_run *run, struct lhi_error *err)
{
    char full[400], what[440];
    bool done;

    lhi_format(full, sizeof full, "%s/%s", lease->scope, lease->name);
    lhi_format(what, sizeof what, "lease %s cannot be freed", full);
    struct freeing f = {.lease = lease, .full = full, .reason = reason, .run = run, .err = err};
    return sq_recovery_step(
        txn, run,
        &(struct recovery_step){
            .fn = write_freed,
            .arg = &f,
            .what = what,
            .by_operator = by_operator,
            .about = {.lease = full, .worker = lease->owner, .token = lease->token}},
        &done, err);
}

/* Free the leases that the statement finds, and record each. `n` counts the leases found, `last` is
 * the last of them. */
static int free_found(struct txn *txn, sqlite3_stmt *stmt, size_t limit, const char *reason,
                      bool by_operator, struct lhi_run *run, size_t *n, lh_lease *last,
                      struct lhi_error *err)
{
    int rc;

    *n = 0;
    if (stmt == NULL)
        return err->status;
    if ((rc = sq_step(txn->conn, stmt, err)) != LH_OK)
        return rc < 0 ? rc : LH_OK;
    lh_lease *stale = lhi_arena_alloc(&txn->arena, limit * sizeof *stale);
    bool *sound = lhi_arena_alloc(&txn->arena, limit * sizeof *sound);
    if (stale == NULL || sound == NULL) {
        sq_reset(stmt);
        return lhi_no_memory(err);
    }
    bool ok = true;
    do {
        ok = sq_lease_from_row(stmt, txn->now, &txn->arena, &stale[*n]);
        sound[(*n)++] = sq_row_sum_matches(stmt);
    } while (ok && *n < limit && (rc = sq_step(txn->conn, stmt, err)) == LH_OK);
    sq_reset(stmt);
    if (!ok)
        return lhi_no_memory(err);
    for (size_t i = 0; i < *n && rc >= 0; i++)
        if (sound[i]) /* the end of a damaged lease is unknown: it stays until a repair */
            rc = free_one(txn, &stale[i], reason, by_operator, run, err);
    *last = stale[*n - 1];
    return rc < 0 ? rc : LH_OK;
}

/* A lease that cannot be freed stays and would be found again, so the loop continues behind the
 * last one found. A call frees up to `limit` leases and leaves the rest to the next transaction. */
int sq_recover_leases(struct txn *txn, size_t limit, bool by_operator, struct lhi_run *run,
                      bool *more, struct lhi_error *err)
{
    int64_t enough = run->leases + (int64_t)limit;
    lh_lease last = {.scope = "", .name = "", .expires_at = INT64_MIN};
    size_t n = limit;
    int rc = LH_OK;

    while (rc >= 0 && n == limit && run->leases < enough)
        rc = free_found(txn,
                        sq_stmt(txn->conn, LHI_SQL_LEASE_EXPIRED, err, "iitti", txn->now,
                                last.expires_at, last.scope, last.name, (int64_t)limit),
                        limit, EXPIRED, by_operator, run, &n, &last, err);
    *more = n == limit;
    return rc;
}

int sq_free_leases_of_worker(struct txn *txn, const char *owner, const char *what, bool by_operator,
                             struct lhi_run *run, struct lhi_error *err)
{
    char reason[320];
    lh_lease last = {.scope = "", .name = ""};
    size_t n = LHI_BATCH;
    int rc = LH_OK;

    lhi_format(reason, sizeof reason, "RECLAIMED_DEAD: worker %s %s", owner, what);
    while (rc >= 0 && n == LHI_BATCH)
        rc = free_found(txn,
                        sq_stmt(txn->conn, LHI_SQL_LEASE_OF_OWNER, err, "ttti", owner, last.scope,
                                last.name, (int64_t)LHI_BATCH),
                        LHI_BATCH, reason, by_operator, run, &n, &last, err);
    return rc;
}

/* ---- exclusive queues ---- */

int sq_exclusive_acquire(struct txn *txn, const char *queue, int64_t job, const char *worker,
                         int64_t until, bool *got, struct lhi_error *err)
{
    lh_lease old;
    int64_t token;
    bool found;
    int rc = read_lease(txn, "processing", queue, &old, &found, err);

    *got = false;
    if (rc == LH_ECORRUPT && txn->own_damage) {
        txn->own_damage = false;
        lhi_log(&txn->db->log, LH_LOG_ERROR, "queue %s cannot be claimed from: %s", queue,
                err->text);
        sq_coord_set_recovery_due(&txn->db->coord, true);
        lhi_error_clear(err);
        return LH_OK;
    }
    if (rc < 0)
        return rc;
    return take_lease(txn, "processing", queue, worker, until - txn->now, NULL, job, got, &token,
                      err);
}

int sq_exclusive_follow(struct txn *txn, const char *queue, int64_t job, int64_t until,
                        struct lhi_error *err)
{
    int rc =
        sq_run(txn->conn, LHI_SQL_LEASE_FOLLOW, err, "iiti", until, until - txn->now, queue, job);
    return rc < 0 ? rc : LH_OK;
}

int sq_exclusive_end(struct txn *txn, const char *queue, int64_t job, struct lhi_error *err)
{
    lh_lease lease = {.scope = "processing", .name = queue};
    int rc = sq_int(txn->conn, LHI_SQL_LEASE_OF_JOB, err, 0, &lease.token, "ti", queue, job);

    if (rc < 0 || lease.token == 0)
        return rc;
    return free_lease(txn, &lease, NULL, NULL, false, err);
}

int sq_exclusive_recover(struct txn *txn, const lh_job *job, enum lhi_cause cause,
                         struct lhi_run *run, struct lhi_error *err)
{
    lh_lease lease = {.scope = "processing", .name = job->queue, .owner = job->worker};
    char full[400], reason[96];
    int rc =
        sq_int(txn->conn, LHI_SQL_LEASE_OF_JOB, err, 0, &lease.token, "ti", job->queue, job->id);

    if (rc < 0 || lease.token == 0)
        return rc;
    lhi_format(full, sizeof full, "%s/%s", lease.scope, lease.name);
    if (cause == LHI_CAUSE_TTL)
        lhi_format(reason, sizeof reason, "%s", EXPIRED);
    else
        lhi_format(reason, sizeof reason, "%s: job %lld was taken back",
                   cause == LHI_CAUSE_DEAD ? "RECLAIMED_DEAD" : "RECLAIMED_MANUAL",
                   (long long)job->id);
    return write_freed(
        txn,
        &(struct freeing){.lease = &lease, .full = full, .reason = reason, .run = run, .err = err});
}
