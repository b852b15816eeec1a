/* What falls due by itself: promotion, expiry, and pruning of rows whose retention has ended. Every
 * round is bounded. A caller whose batch was full runs another round. */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/open.h"
#include "store/sqlite/rows.h"

#include <string.h>

/* ---- promotion and expiry ---- */

struct waiting {
    int64_t id, token, expires_at;
    const char *queue;
    lh_state state;
};

static int read_waiting(struct txn *txn, enum lhi_sql which, size_t limit, struct waiting **out,
                        size_t *n, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, which, err, "ii", txn->wall, (int64_t)limit);
    bool ok = true;
    int rc;

    *n = 0;
    if (stmt == NULL)
        return err->status;
    if ((rc = sq_step(txn->conn, stmt, err)) != LH_OK)
        return rc < 0 ? rc : LH_OK;
    *out = lhi_arena_alloc(&txn->arena, limit * sizeof **out);
    if (*out == NULL) {
        sq_reset(stmt);
        return lhi_no_memory(err);
    }
    do {
        struct waiting *row = &(*out)[(*n)++];
        row->id = sqlite3_column_int64(stmt, 0);
        row->queue = sq_column_name(stmt, 1, &txn->arena, &ok);
        row->state = sq_column_state(stmt, 3);
        if (which == LHI_SQL_JOB_OVERDUE) {
            row->token = sqlite3_column_int64(stmt, 4);
            row->expires_at = sqlite3_column_int64(stmt, 5);
        }
    } while (ok && *n < limit && (rc = sq_step(txn->conn, stmt, err)) == LH_OK);
    sq_reset(stmt);
    if (!ok)
        return lhi_no_memory(err);
    return rc < 0 ? rc : LH_OK;
}

/* The row of a job that should be promoted or expire is damaged. */
static int fail_damaged(struct txn *txn, const struct waiting *job, struct lhi_error *err)
{
    char reason[80];
    bool held = false;
    struct tally *tally = sq_txn_tally(txn, job->queue, err);
    int rc =
        tally ? sq_set_job_aside(txn, job->id, job->token, DAMAGED_ROW, &held, err) : err->status;

    if (rc < 0 || !held)
        return rc;
    sq_tally_move(tally, job->state, LH_FAILED);
    tally->failed++;
    lhi_format(reason, sizeof reason, "CORRUPT: %s", sq_damage_words(DAMAGED_ROW));
    sq_txn_log(txn, LH_LOG_ERROR,
               &(lh_log_entry){.job = job->id, .queue = job->queue, .reason = reason},
               "job %lld was failed: %s", (long long)job->id, sq_damage_words(DAMAGED_ROW));
    return sq_txn_event(txn,
                        &(struct event){.type = "job.failed",
                                        .job = job->id,
                                        .queue = job->queue,
                                        .from = job->state,
                                        .to = LH_FAILED,
                                        .actor = "system/upkeep",
                                        .reason = reason,
                                        .token = job->token},
                        err);
}

int sq_promote_due(struct txn *txn, size_t limit, int64_t *promoted, bool *more,
                   struct lhi_error *err)
{
    struct waiting *due = NULL;
    size_t n;
    int rc = read_waiting(txn, LHI_SQL_JOB_DUE, limit, &due, &n, err);

    *promoted = 0;
    *more = false;
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++) {
        int64_t token, until;
        /* run_at follows the wall clock, the end of a quarantine follows store time. The later one
         * counts. */
        if ((rc = sq_quarantine_get(txn, due[i].queue, due[i].id, &token, &until, err)) < 0)
            return rc;
        if (until > txn->now)
            continue;
        struct tally *tally = sq_txn_tally(txn, due[i].queue, err);
        if (tally == NULL)
            return err->status;
        int changed = sq_run(txn->conn, LHI_SQL_JOB_PROMOTE, err, "ii", txn->now, due[i].id);
        if (changed < 0 && !sq_is_damage(txn, due[i].id, changed, err))
            return changed;
        if (changed <= 0 && (rc = fail_damaged(txn, &due[i], err)) < 0)
            return rc;
        if (changed <= 0)
            continue;
        txn->changed = true;
        sq_tally_move(tally, LH_SCHEDULED, LH_PENDING);
        (*promoted)++;
    }
    *more = n == limit && *promoted > 0;
    return LH_OK;
}

static int expire_one(struct txn *txn, const struct waiting *job, int64_t *expired,
                      struct lhi_error *err)
{
    char reason[96], at[40];

    txn->changed = true;
    if (sq_run(txn->conn, LHI_SQL_EXPIRY_END, err, "ii", job->expires_at, job->id) < 0)
        return err->status;
    if (job->state != LH_PENDING && job->state != LH_SCHEDULED)
        return LH_OK; /* the job was cancelled or deleted, so its expiry does nothing */
    lhi_format(reason, sizeof reason, "EXPIRED: not claimed by %s",
               lh_time_format(job->expires_at, at, sizeof at));
    struct tally *tally = sq_txn_tally(txn, job->queue, err);
    if (tally == NULL)
        return err->status;
    int rc = sq_run(txn->conn, LHI_SQL_JOB_CANCEL, err, "itiii", sq_txn_next_token(txn, job->token),
                    reason, txn->now, job->id, job->token);
    if (rc < 0)
        return sq_is_damage(txn, job->id, rc, err) ? fail_damaged(txn, job, err) : rc;
    sq_tally_move(tally, job->state, LH_CANCELLED);
    (*expired)++;
    return sq_txn_event(txn,
                        &(struct event){.type = "job.cancelled",
                                        .job = job->id,
                                        .queue = job->queue,
                                        .from = job->state,
                                        .to = LH_CANCELLED,
                                        .actor = "system/expiry",
                                        .reason = reason,
                                        .token = job->token},
                        err);
}

int sq_expire_overdue(struct txn *txn, size_t limit, int64_t *expired, bool *more,
                      struct lhi_error *err)
{
    struct waiting *gone = NULL;
    size_t n;
    int rc = read_waiting(txn, LHI_SQL_JOB_OVERDUE, limit, &gone, &n, err);

    *expired = 0;
    *more = false;
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++)
        if ((rc = expire_one(txn, &gone[i], expired, err)) < 0)
            return rc;
    *more = n == limit;
    return LH_OK;
}

int sq_act_maintain(struct txn *txn, struct lhi_act *act)
{
    lh_maintained *done = &act->maintain.done;
    bool more[3] = {false};
    int rc;

    if ((rc = sq_run_due_schedules(txn, LHI_BATCH, &done->enqueued, &more[2], &act->err)) < 0 ||
        (rc = sq_expire_overdue(txn, LHI_BATCH, &done->expired, &more[0], &act->err)) < 0 ||
        (rc = sq_promote_due(txn, LHI_BATCH, &done->promoted, &more[1], &act->err)) < 0)
        return rc;
    int holds = sq_run(txn->conn, LHI_SQL_QUARANTINE_PRUNE, &act->err, "i", txn->now);
    if (holds < 0)
        return holds;
    if (holds > 0)
        txn->changed = true;
    act->maintain.more = more[0] || more[1] || more[2];
    return LH_OK;
}

/* ---- pruning ---- */

/* Output of a finished job may be pruned before the job is. */
static int prune_output(struct txn *txn, int64_t id, lh_state state, int64_t finished,
                        const lh_policy *policy, struct lhi_error *err)
{
    if (state != LH_COMPLETED && state != LH_FAILED && state != LH_CANCELLED)
        return LH_OK;
    if (policy->retention_output_ms == 0 || finished > txn->now - policy->retention_output_ms)
        return LH_OK;
    int rc = sq_run(txn->conn, LHI_SQL_OUTPUT_PRUNE, err, "i", id);
    if (rc < 0)
        return rc;
    txn->changed = txn->changed || rc > 0;
    return LH_OK;
}

/* Delete one finished job if its retention has ended. */
static int prune_row(struct txn *txn, sqlite3_stmt *row, int64_t older_than_ms, int64_t *pruned,
                     struct lhi_error *err)
{
    int64_t id = sqlite3_column_int64(row, 0), finished = sqlite3_column_int64(row, 4);
    const char *queue = sq_text_or_empty(row, 1);
    const char *kind = (const char *)sqlite3_column_text(row, 2);
    lh_state state = sq_column_state(row, 3);
    const lh_policy *policy;

    if (state != LH_COMPLETED && state != LH_FAILED && state != LH_CANCELLED)
        return LH_OK;
    policy = sq_txn_policy(txn, queue, kind);
    int64_t keep = older_than_ms        ? older_than_ms
                   : state == LH_FAILED ? policy->retention_failed_ms
                                        : policy->retention_ms;
    if (finished > txn->now - keep)
        return prune_output(txn, id, state, finished, policy, err);
    int rc = sq_run(txn->conn, LHI_SQL_JOB_DELETE, err, "i", id);
    if (rc < 0) /* a damaged row stays until a repair */
        return sq_is_damage(txn, id, rc, err) ? sq_skip_job(txn, id, err) : rc;
    txn->changed = true;
    (*pruned)++;
    return LH_OK;
}

static int64_t shortest_retention(const lh_policies *policies)
{
    int64_t least = lhi_policy_builtin.retention_ms;
    for (size_t i = 0; i < policies->n; i++) {
        const lh_policy *p = &policies->row[i].policy;
        if ((p->set & LH_POLICY_RETENTION) && p->retention_ms < least)
            least = p->retention_ms;
        if ((p->set & LH_POLICY_RETENTION_FAILED) && p->retention_failed_ms < least)
            least = p->retention_failed_ms;
    }
    return least;
}

/* 0: output is kept as long as its job. */
static int64_t shortest_output_retention(const lh_policies *policies)
{
    int64_t least = 0;
    for (size_t i = 0; i < policies->n; i++) {
        const lh_policy *p = &policies->row[i].policy;
        if ((p->set & LH_POLICY_RETENTION_OUTPUT) && p->retention_output_ms > 0 &&
            (least == 0 || p->retention_output_ms < least))
            least = p->retention_output_ms;
    }
    return least;
}

/* A job that was created too late to have ended before the cutoff. Ids rise with time, so all later
 * ids are too young as well. A creation time in the future proves nothing. */
static bool is_too_young(const struct txn *txn, sqlite3_stmt *row, int64_t youngest)
{
    int64_t created = sqlite3_column_int64(row, 5);
    return created > youngest && created <= txn->now;
}

/* Prune the output of one batch of jobs that are kept. Only needed if output is kept for a shorter
 * time than jobs. */
static int prune_outputs(struct txn *txn, int64_t keep_ms, int64_t *after, bool *more,
                         struct lhi_error *err)
{
    int64_t n = 0;
    int rc;

    sqlite3_stmt *stmt =
        sq_stmt(txn->conn, LHI_SQL_OUTPUT_AGED, err, "ii", *after, (int64_t)LHI_BATCH);
    if (stmt == NULL)
        return err->status;
    while ((rc = sq_step(txn->conn, stmt, err)) == LH_OK) {
        if (is_too_young(txn, stmt, txn->now - keep_ms))
            break;
        n++;
        *after = sqlite3_column_int64(stmt, 0);
        const char *queue = (const char *)sqlite3_column_text(stmt, 1);
        const char *kind = (const char *)sqlite3_column_text(stmt, 2);
        rc = prune_output(txn, *after, sq_column_state(stmt, 3), sqlite3_column_int64(stmt, 4),
                          sq_txn_policy(txn, queue, kind), err);
        if (rc < 0)
            break;
    }
    sq_reset(stmt);
    *more = n == LHI_BATCH;
    return rc < 0 ? rc : LH_OK;
}

/* Prune one batch of jobs by id. The scan continues where it ended and starts again after the last
 * id. */
static int prune_jobs(struct txn *txn, struct lhi_act *act)
{
    struct lhi_error *err = &act->err;
    int64_t older = act->prune.older_than_ms, after, n = 0;
    int64_t youngest = txn->now - (older ? older : shortest_retention(&txn->db->policies));
    bool too_young = false;
    int rc;

    if (act->prune.after != NULL)
        after = *act->prune.after;
    else if ((rc = sq_meta_int(txn->conn, "prune_after", 0, &after, err)) < 0)
        return rc;
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_AGED, err, "ii", after, (int64_t)LHI_BATCH);
    if (stmt == NULL)
        return err->status;
    while ((rc = sq_step(txn->conn, stmt, err)) == LH_OK) {
        if ((too_young = is_too_young(txn, stmt, youngest)))
            break;
        n++;
        after = sqlite3_column_int64(stmt, 0);
        if ((rc = prune_row(txn, stmt, older, &act->prune.pruned, err)) < 0)
            break;
    }
    sq_reset(stmt);
    if (rc < 0)
        return rc;
    act->prune.more = n == LHI_BATCH && !too_young;
    int64_t keep = shortest_output_retention(&txn->db->policies);
    if (!act->prune.more && keep > 0 &&
        (rc = prune_outputs(txn, keep, &after, &act->prune.more, err)) < 0)
        return rc;
    if (act->prune.after != NULL) {
        *act->prune.after = after;
        return LH_OK;
    }
    if (after == 0)
        return LH_OK;
    txn->changed = true;
    return sq_meta_set_int(txn->conn, "prune_after", act->prune.more ? after : 0, err);
}

int sq_act_prune(struct txn *txn, struct lhi_act *act)
{
    struct lhi_error *err = &act->err;
    int64_t older = act->prune.older_than_ms;
    int64_t kept = older ? older : lhi_policy_builtin.retention_failed_ms;
    int64_t before = txn->now - kept;
    int64_t n = LHI_BATCH;
    int rc = sq_txn_count(txn, err);

    if (rc < 0 || (rc = prune_jobs(txn, act)) < 0)
        return rc;
    int events = sq_run(txn->conn, LHI_SQL_EVENT_PRUNE, err, "iii", n, before, txn->now + 86400000);
    int requests =
        events < 0 ? events : sq_run(txn->conn, LHI_SQL_REQUEST_PRUNE, err, "ii", before, n);
    int rollups = requests < 0
                      ? requests
                      : sq_run(txn->conn, LHI_SQL_ROLLUP_PRUNE, err, "ii", before / 60000, n);
    int workers = rollups < 0 ? rollups : sq_run(txn->conn, LHI_SQL_WORKER_PRUNE, err, "i", before);
    int reports =
        workers < 0 ? workers : sq_run(txn->conn, LHI_SQL_REPORT_PRUNE, err, "ii", n, before);
    if (reports < 0)
        return reports;
    if (events + requests + rollups + workers + reports > 0)
        txn->changed = true;
    if (events == n || requests == n || rollups == n || reports == n)
        act->prune.more = true;
    return LH_OK;
}
