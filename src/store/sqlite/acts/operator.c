/* The acts of an operator: cancel, retry, delete, reschedule. Also what acts on lists of items
 * share. */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/rows.h"

#include "base/hook.h"

#include <string.h>

sqlite3_stmt *sq_get_job(struct txn *txn, int64_t id, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_GET, err, "i", id);
    int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;

    if (rc == LH_EMPTY)
        (void)lhi_fail(err, LH_ENOTFOUND, "there is no job %lld", (long long)id);
    return rc == LH_OK ? stmt : NULL;
}

static int read_after(struct txn *txn, struct lhi_act *act,
                      int64_t (*id_of)(const struct lhi_act *, size_t), struct lhi_error *err)
{
    size_t room = act->after->n;
    struct lhi_arena *arena = lhi_arena_of(&act->after->priv);

    if (arena == NULL)
        return lhi_no_memory(err);
    for (size_t i = 0; i < act->n; i++) {
        lh_job *job;
        sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_GET, err, "i", id_of(act, i));
        int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;
        if (rc == LH_OK &&
            (!sq_jobs_add(act->after, &room, &job) || !sq_job_from_row(stmt, txn->now, arena, job)))
            rc = lhi_no_memory(err);
        sq_reset(stmt);
        if (rc < 0)
            return rc;
    }
    return LH_OK;
}

/* The statuses that end one item, but not the whole act. */
static bool own_outcome(int rc)
{
    return rc >= 0 || rc == LH_ELOST || rc == LH_ECANCELLED || rc == LH_ENOTFOUND ||
           rc == LH_ESTATE || rc == LH_EINVAL || rc == LH_ETOOBIG;
}

int sq_each_item(struct txn *txn, struct lhi_act *act, item_fn *one,
                 int64_t (*id_of)(const struct lhi_act *, size_t))
{
    for (size_t i = 0; i < act->n; i++) {
        struct lhi_error item;
        lhi_error_clear(&item);
        int rc = one(txn, act, i, &item);
        if (rc == LH_ECORRUPT && id_of != NULL && sq_is_damage(txn, id_of(act, i), rc, &item))
            rc = lhi_fail(&item, LH_ELOST, "row of job %lld is damaged: the job is set aside",
                          (long long)id_of(act, i));
        act->status[i] = rc;
        if (rc < 0 && act->err.status == LH_OK)
            act->err = item;
        if (!own_outcome(rc)) {
            act->err = item;
            return rc;
        }
    }
    if (act->after == NULL || id_of == NULL)
        return LH_OK;
    struct lhi_error err;
    lhi_error_clear(&err);
    int rc = read_after(txn, act, id_of, &err);
    if (rc < 0)
        act->err = err;
    return rc;
}

/* ---- what an operator's act needs to know about a job ---- */

struct brief {
    char queue[160], worker[160];
    lh_state state;
    int64_t token, lease_until;
    int64_t held_until; /* the end of the job's quarantine; 0: it is not in quarantine */
};

static int read_brief(struct txn *txn, int64_t id, struct brief *brief, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_get_job(txn, id, err);

    if (stmt == NULL)
        return err->status;
    const unsigned char *worker = sqlite3_column_text(stmt, JOB_WORKER);
    lhi_format(brief->queue, sizeof brief->queue, "%s", sq_text_or_empty(stmt, JOB_QUEUE));
    lhi_format(brief->worker, sizeof brief->worker, "%s", worker ? (const char *)worker : "");
    brief->state = sq_column_state(stmt, JOB_STATE);
    brief->token = sqlite3_column_int64(stmt, JOB_TOKEN);
    brief->lease_until = sqlite3_column_int64(stmt, JOB_LEASE_UNTIL);
    sq_reset(stmt);
    int64_t token;
    int rc = sq_quarantine_get(txn, brief->queue, id, &token, &brief->held_until, err);
    if (brief->held_until <= txn->now)
        brief->held_until = 0;
    return rc;
}

static int wrong_state(int64_t id, lh_state state, const char *act, struct lhi_error *err)
{
    return lhi_fail(err, LH_ESTATE, "job %lld is %s and cannot be %s", (long long)id,
                    lh_state_name(state), act);
}

/* Count a change of state and write its event. Every act of an operator is an event. */
static int record(struct txn *txn, int64_t id, const struct brief *brief, lh_state to,
                  const char *type, const char *reason, struct lhi_error *err)
{
    struct tally *tally = sq_txn_tally(txn, brief->queue, err);
    if (tally == NULL)
        return err->status;
    txn->changed = true;
    if (to != 0) /* a trigger subtracts a deleted job from the counts */
        sq_tally_move(tally, brief->state, to);
    return sq_txn_event(txn,
                        &(struct event){.type = type,
                                        .job = id,
                                        .queue = brief->queue,
                                        .worker = brief->worker[0] ? brief->worker : NULL,
                                        .from = brief->state,
                                        .to = to,
                                        .actor = "hand",
                                        .reason = reason,
                                        .token = brief->token},
                        err);
}

static int64_t id_at(const struct lhi_act *act, size_t i)
{
    return act->ids.ids[i];
}

/* ---- the acts ---- */

static int cancel_one(struct txn *txn, struct lhi_act *act, size_t i, struct lhi_error *err)
{
    int64_t id = act->ids.ids[i];
    struct brief job = {0};
    int rc = read_brief(txn, id, &job, err);

    if (rc < 0)
        return rc;
    if (job.state != LH_SCHEDULED && job.state != LH_PENDING && job.state != LH_RUNNING)
        return wrong_state(id, job.state, "cancelled", err);
    /* A live holder keeps its slot until it has answered; until then no other worker gets the
     * job. */
    bool live = job.state == LH_RUNNING && job.lease_until > txn->now;
    rc = sq_run(txn->conn, LHI_SQL_JOB_CANCEL, err, "itiii", sq_txn_next_token(txn, job.token),
                "CANCELLED: by hand", txn->now, id, job.token);
    if (rc < 0 ||
        (live && (rc = sq_quarantine_put(txn, job.queue, id, job.token, job.lease_until, err)) < 0))
        return rc;
    return record(txn, id, &job, LH_CANCELLED, "job.cancelled", NULL, err);
}

int sq_act_cancel(struct txn *txn, struct lhi_act *act)
{
    int rc = sq_each_item(txn, act, cancel_one, id_at);
    LHI_POINT("job_cancel:inside");
    return rc;
}

static int retry_one(struct txn *txn, struct lhi_act *act, size_t i, struct lhi_error *err)
{
    int64_t id = act->ids.ids[i];
    struct brief job = {0};
    int rc = read_brief(txn, id, &job, err);

    if (rc < 0)
        return rc;
    if (job.state == LH_COMPLETED && (act->ids.how & LH_RETRY_FORCE) == 0)
        return lhi_fail(err, LH_ESTATE,
                        "job %lld is completed: only a forced retry runs it again (--force)",
                        (long long)id);
    if (job.state != LH_FAILED && job.state != LH_CANCELLED && job.state != LH_COMPLETED)
        return wrong_state(id, job.state, "retried", err);
    bool now = (act->ids.how & LH_RETRY_NOW) != 0;
    if (now)
        job.held_until = 0;
    lh_state to = job.held_until ? LH_SCHEDULED : LH_PENDING;
    rc = sq_run(txn->conn, LHI_SQL_JOB_RETRY, err, "tIiii", lh_state_name(to), job.held_until,
                sq_txn_next_token(txn, job.token), txn->now, id);
    if (rc == LH_EINVAL)
        return lhi_fail(err, LH_ESTATE,
                        "job %lld cannot be retried: another job with its key lives in the queue",
                        (long long)id);
    if (rc < 0)
        return rc;
    if (now && (sq_run(txn->conn, LHI_SQL_QUARANTINE_END, err, "ti", job.queue, id) < 0 ||
                sq_exclusive_end(txn, job.queue, id, err) < 0))
        return err->status;
    return record(txn, id, &job, to, "job.retried", NULL, err);
}

int sq_act_retry(struct txn *txn, struct lhi_act *act)
{
    int rc = sq_each_item(txn, act, retry_one, id_at);
    LHI_POINT("job_retry:inside");
    return rc;
}

static int delete_one(struct txn *txn, struct lhi_act *act, size_t i, struct lhi_error *err)
{
    int64_t id = act->ids.ids[i];
    struct brief job = {0};
    int rc = read_brief(txn, id, &job, err);

    if (rc < 0)
        return rc;
    if (job.state == LH_RUNNING)
        return lhi_fail(err, LH_ESTATE, "job %lld is running: cancel it first", (long long)id);
    if (sq_run(txn->conn, LHI_SQL_JOB_DELETE, err, "i", id) < 0)
        return err->status;
    return record(txn, id, &job, 0, "job.deleted", NULL, err);
}

int sq_act_delete(struct txn *txn, struct lhi_act *act)
{
    int rc = sq_txn_count(txn, &act->err);
    if (rc == LH_OK)
        rc = sq_each_item(txn, act, delete_one, NULL);
    LHI_POINT("job_delete:inside");
    return rc;
}

static int reschedule_one(struct txn *txn, struct lhi_act *act, size_t i, struct lhi_error *err)
{
    int64_t id = act->ids.ids[i];
    struct brief job = {0};
    char reason[80], at[40];
    int rc = read_brief(txn, id, &job, err);

    if (rc < 0)
        return rc;
    if (job.state != LH_SCHEDULED && job.state != LH_PENDING)
        return wrong_state(id, job.state, "rescheduled", err);
    int64_t run_at = act->ids.run_at ? act->ids.run_at : txn->wall + act->ids.delay_ms;
    if (job.held_until > run_at)
        run_at = job.held_until;
    lh_state to = run_at > txn->wall ? LH_SCHEDULED : LH_PENDING;
    if (sq_run(txn->conn, LHI_SQL_JOB_RESCHEDULE, err, "tiii", lh_state_name(to), run_at, txn->now,
               id) < 0)
        return err->status;
    lhi_format(reason, sizeof reason, "to run at %s", lh_time_format(run_at, at, sizeof at));
    return record(txn, id, &job, to, "job.rescheduled", reason, err);
}

int sq_act_reschedule(struct txn *txn, struct lhi_act *act)
{
    return sq_each_item(txn, act, reschedule_one, id_at);
}
