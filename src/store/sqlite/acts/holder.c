/* The acts of a job's holder: heartbeat, complete, fail, release. The token guards each write. A
 * refusal names the worker that has the job now. */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/rows.h"

#include "base/hook.h"
#include "base/sys.h"

#include <string.h>

/* ---- what the acts share ---- */

/* Does this queue have a lease that ends with its job? */
static bool exclusive(struct txn *txn, const char *queue)
{
    return sq_txn_policy(txn, queue, NULL)->exclusive;
}

int sq_quarantine_get(struct txn *txn, const char *queue, int64_t job, int64_t *token,
                      int64_t *until, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_QUARANTINE_GET, err, "ti", queue, job);
    int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;

    *token = *until = 0;
    if (rc < 0)
        return rc;
    if (rc == LH_OK) {
        *token = sqlite3_column_int64(stmt, 0);
        *until = sqlite3_column_int64(stmt, 1);
    }
    sq_reset(stmt);
    return LH_OK;
}

int sq_quarantine_put(struct txn *txn, const char *queue, int64_t job, int64_t token, int64_t until,
                      struct lhi_error *err)
{
    int rc = sq_run(txn->conn, LHI_SQL_QUARANTINE_PUT, err, "tiii", queue, job, token, until);
    return rc < 0 ? rc : LH_OK;
}

/* The holder of a revoked lease has answered: free the job, its slot and the exclusive lease. */
static int end_quarantine(struct txn *txn, const char *queue, int64_t id, int64_t token,
                          struct lhi_error *err)
{
    int64_t held_token, until;
    int rc = sq_quarantine_get(txn, queue, id, &held_token, &until, err);

    if (rc < 0 || held_token != token || until == 0)
        return rc;
    if (sq_run(txn->conn, LHI_SQL_QUARANTINE_END, err, "ti", queue, id) < 0 ||
        sq_run(txn->conn, LHI_SQL_JOB_LEAVE_QUARANTINE, err, "iii", txn->wall, id, until) < 0)
        return err->status;
    struct tally *tally = sq_txn_tally(txn, queue, err);
    if (tally == NULL)
        return err->status;
    txn->changed = true;
    tally->wake++;
    if (exclusive(txn, queue))
        return sq_exclusive_end(txn, queue, id, err);
    return LH_OK;
}

/* The job was deleted after its lease was revoked. Its slot is still given back. */
static int end_quarantine_of_deleted(struct txn *txn, int64_t id, int64_t token,
                                     struct lhi_error *err)
{
    struct lhi_error not_found = *err;
    char queue[160];
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_QUARANTINE_OF_JOB, err, "i", id);
    int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;

    if (rc == LH_OK) {
        lhi_format(queue, sizeof queue, "%s", sq_text_or_empty(stmt, 0));
        sq_reset(stmt);
        rc = end_quarantine(txn, queue, id, token, err);
    }
    if (rc < 0)
        return rc;
    *err = not_found;
    return err->status;
}

/* The write matched no row: say why, and end the quarantine if the holder of a revoked lease has
 * answered. */
static int not_held(struct txn *txn, int64_t id, int64_t token, bool ends, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_get_job(txn, id, err);
    int rc;

    if (stmt == NULL && err->status == LH_ENOTFOUND && ends)
        return end_quarantine_of_deleted(txn, id, token, err);
    if (stmt == NULL)
        return err->status;
    lh_state state = sq_column_state(stmt, JOB_STATE);
    int64_t current = sqlite3_column_int64(stmt, JOB_TOKEN);
    char queue[160], worker[160];
    const unsigned char *name = sqlite3_column_text(stmt, JOB_WORKER);
    lhi_format(queue, sizeof queue, "%s", sq_text_or_empty(stmt, JOB_QUEUE));
    lhi_format(worker, sizeof worker, "%s", name ? (const char *)name : "");
    sq_reset(stmt);

    if (ends && (rc = end_quarantine(txn, queue, id, token, err)) < 0)
        return rc;
    if (token > current)
        return lhi_fail(err, LH_ELOST, "job %lld never had token %lld: its token is %lld",
                        (long long)id, (long long)token, (long long)current);
    if (state == LH_CANCELLED)
        return lhi_fail(err, LH_ECANCELLED, "job %lld was cancelled", (long long)id);
    if (state == LH_RUNNING && current == token)
        return lhi_fail(err, LH_ELOST, "the lease of job %lld has expired", (long long)id);
    if (state == LH_RUNNING && worker[0] != '\0')
        return lhi_fail(err, LH_ELOST,
                        "lease of job %lld is lost: token %lld was followed by %lld, claimed by "
                        "worker \"%s\"",
                        (long long)id, (long long)token, (long long)current, worker);
    if (current == token)
        return lhi_fail(err, LH_ELOST, "lease of job %lld has ended: the job is %s", (long long)id,
                        lh_state_name(state));
    return lhi_fail(err, LH_ELOST,
                    "lease of job %lld is lost: its token is %lld now, not %lld; the job is %s",
                    (long long)id, (long long)current, (long long)token, lh_state_name(state));
}

/* A slot of a limited queue is free, so a claim may be waiting for it. */
static void wake_for_slot(struct txn *txn, struct tally *tally)
{
    const lh_policy *policy = sq_txn_policy(txn, tally->queue, NULL);
    if (policy->exclusive || policy->concurrency > 0)
        tally->wake++;
}

/* The row of job_held, copied out of the statement. */
struct held {
    char queue[160], kind[160], worker[160];
    bool has_kind;
    int64_t attempt, max_attempts, started_at, backoff_ms, backoff_cap_ms, lease_until;
};

static int read_held(struct txn *txn, int64_t id, int64_t token, struct held *held, bool *found,
                     struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_HELD, err, "ii", id, token);
    int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;

    if (rc < 0)
        return rc;
    *found = rc == LH_OK;
    if (!*found)
        return LH_OK;
    const unsigned char *kind = sqlite3_column_text(stmt, 1);
    lhi_format(held->queue, sizeof held->queue, "%s", sq_text_or_empty(stmt, 0));
    lhi_format(held->kind, sizeof held->kind, "%s", kind ? (const char *)kind : "");
    held->has_kind = kind != NULL;
    held->attempt = sqlite3_column_int64(stmt, 2);
    held->max_attempts = sqlite3_column_int64(stmt, 3);
    held->started_at = sqlite3_column_int64(stmt, 4);
    held->backoff_ms = sqlite3_column_int64(stmt, 5);
    held->backoff_cap_ms = sqlite3_column_int64(stmt, 6);
    lhi_format(held->worker, sizeof held->worker, "%s", sq_text_or_empty(stmt, 7));
    held->lease_until = sqlite3_column_int64(stmt, 8);
    sq_reset(stmt);
    return LH_OK;
}

/* ---- heartbeat ---- */

static int heartbeat_one(struct txn *txn, const lh_beat *beat, struct lhi_error *err)
{
    int64_t progress = beat->progress;
    int rc = sq_check_json(txn->conn, beat->checkpoint, "checkpoint", err);

    if (rc < 0)
        return rc;
    rc = sq_run(txn->conn, LHI_SQL_JOB_HEARTBEAT, err, "iIottii", txn->now, beat->lease_ms,
                beat->has_progress ? &progress : NULL, beat->stage, beat->checkpoint, beat->job,
                beat->token);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return not_held(txn, beat->job, beat->token, false, err);
    txn->changed = true;
    if (txn->db->policies.n == 0)
        return LH_OK; /* no queue can be exclusive */
    struct held held;
    bool found;
    if ((rc = read_held(txn, beat->job, beat->token, &held, &found, err)) < 0)
        return rc;
    if (found && exclusive(txn, held.queue))
        return sq_exclusive_follow(txn, held.queue, beat->job, held.lease_until, err);
    return LH_OK;
}

static int heartbeat_item(struct txn *txn, struct lhi_act *act, size_t i, struct lhi_error *err)
{
    return heartbeat_one(txn, &act->beat.beats[i], err);
}

static int64_t beat_id(const struct lhi_act *act, size_t i)
{
    return act->beat.beats[i].job;
}

int sq_act_heartbeat(struct txn *txn, struct lhi_act *act)
{
    int rc = sq_each_item(txn, act, heartbeat_item, beat_id);
    LHI_POINT("job_heartbeat:inside");
    return rc;
}

/* ---- complete ---- */

/* What every end of a run does: counts, the slot, the exclusive lease, the event. */
static int end_run(struct txn *txn, int64_t id, int64_t token, const struct held *held, lh_state to,
                   const char *error, bool told, struct lhi_error *err)
{
    struct tally *tally = sq_txn_tally(txn, held->queue, err);

    if (tally == NULL)
        return err->status;
    txn->changed = true;
    sq_tally_move(tally, LH_RUNNING, to);
    *(error ? &tally->failed : &tally->completed) += 1;
    tally->ended++;
    tally->run_ms += txn->now - held->started_at;
    wake_for_slot(txn, tally);
    if (exclusive(txn, held->queue) && sq_exclusive_end(txn, held->queue, id, err) < 0)
        return err->status;
    if (!told)
        return LH_OK;
    return sq_txn_event(txn,
                        &(struct event){.type = error ? "job.failed" : "job.completed",
                                        .job = id,
                                        .queue = held->queue,
                                        .worker = held->worker,
                                        .from = LH_RUNNING,
                                        .to = to,
                                        .actor = held->worker,
                                        .reason = error,
                                        .token = token},
                        err);
}

/* The job was completed under this token with this result: the call is a repeat. */
static int repeated_complete(struct txn *txn, const lh_done *done, bool *same,
                             struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_GET, err, "i", done->job);
    int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;

    *same = false;
    if (rc != LH_OK)
        return rc < 0 ? rc : LH_OK;
    size_t len;
    const void *result = sq_column_raw(stmt, JOB_RESULT, &len);
    *same = sq_column_state(stmt, JOB_STATE) == LH_COMPLETED &&
            sqlite3_column_int64(stmt, JOB_TOKEN) == done->token &&
            (sqlite3_column_type(stmt, JOB_RESULT) == SQLITE_NULL) == (done->result == NULL) &&
            len == (done->result ? done->result_len : 0) &&
            (len == 0 || memcmp(result, done->result, len) == 0);
    sq_reset(stmt);
    return LH_OK;
}

static int complete_one(struct txn *txn, const lh_done *done, struct lhi_error *err)
{
    struct held held;
    const lh_policy *policy;
    bool found, same;
    int rc = read_held(txn, done->job, done->token, &held, &found, err);

    if (rc < 0)
        return rc;
    if (!found) {
        if ((rc = repeated_complete(txn, done, &same, err)) < 0)
            return rc;
        return same ? LH_OK : not_held(txn, done->job, done->token, true, err);
    }
    policy = sq_txn_policy(txn, held.queue, held.has_kind ? held.kind : NULL);
    if (done->result_len > (size_t)policy->max_payload)
        return lhi_fail(err, LH_ETOOBIG,
                        "result of %zu bytes is too large: queue \"%s\" takes at most %lld bytes",
                        done->result_len, held.queue, (long long)policy->max_payload);
    bool audited = policy->audit == LH_AUDIT_FULL;
    if (sq_run(txn->conn, LHI_SQL_JOB_COMPLETE, err, "biii", done->result, done->result_len,
               txn->now, done->job, done->token) < 0)
        return err->status;
    return end_run(txn, done->job, done->token, &held, LH_COMPLETED, NULL, audited, err);
}

static int complete_item(struct txn *txn, struct lhi_act *act, size_t i, struct lhi_error *err)
{
    return complete_one(txn, &act->done[i], err);
}

static int64_t done_id(const struct lhi_act *act, size_t i)
{
    return act->done[i].job;
}

int sq_act_complete(struct txn *txn, struct lhi_act *act)
{
    int rc = sq_each_item(txn, act, complete_item, done_id);
    LHI_POINT("job_complete:inside");
    return rc;
}

/* ---- fail ---- */

/* The job was failed under this token with this error, or was released: the call is a repeat. */
static int repeated_end(struct txn *txn, int64_t id, int64_t token, const char *error, bool *same,
                        struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_GET, err, "i", id);
    int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;

    *same = false;
    if (rc != LH_OK)
        return rc < 0 ? rc : LH_OK;
    lh_state state = sq_column_state(stmt, JOB_STATE);
    const unsigned char *last = sqlite3_column_text(stmt, JOB_LAST_ERROR);
    bool released = sqlite3_column_type(stmt, JOB_STARTED_AT) == SQLITE_NULL;
    *same = sqlite3_column_int64(stmt, JOB_TOKEN) == token && state != LH_RUNNING &&
            state != LH_COMPLETED && state != LH_CANCELLED &&
            (error ? !released && last != NULL && strcmp((const char *)last, error) == 0
                   : released && state != LH_FAILED);
    sq_reset(stmt);
    return LH_OK;
}

/* How long a job waits after a failure: its own backoff, or the policy's. */
static int64_t backoff_of(const struct held *held, const lh_policy *policy)
{
    uint32_t dice = 0;

    (void)lhi_random(&dice, sizeof dice); /* without random numbers the delay has no jitter */
    return lhi_backoff_ms(held->backoff_ms ? held->backoff_ms : policy->backoff_ms,
                          held->backoff_cap_ms ? held->backoff_cap_ms : policy->backoff_cap_ms,
                          held->attempt, dice);
}

static int fail_one(struct txn *txn, const lh_failure *failure, struct lhi_error *err)
{
    struct held held;
    const lh_policy *policy;
    bool found, same;
    int rc = read_held(txn, failure->job, failure->token, &held, &found, err);

    if (rc < 0)
        return rc;
    if (!found) {
        if ((rc = repeated_end(txn, failure->job, failure->token, failure->error, &same, err)) < 0)
            return rc;
        return same ? LH_OK : not_held(txn, failure->job, failure->token, true, err);
    }
    policy = sq_txn_policy(txn, held.queue, held.has_kind ? held.kind : NULL);
    bool last = failure->permanent ||
                (held.max_attempts != LH_UNLIMITED && held.attempt >= held.max_attempts);
    int64_t delay = failure->retry_in_ms == LH_NOW ? 0
                    : failure->retry_in_ms > 0     ? failure->retry_in_ms
                                                   : backoff_of(&held, policy);
    lh_state to = last ? LH_FAILED : delay > 0 ? LH_SCHEDULED : LH_PENDING;
    rc = sq_run(txn->conn, LHI_SQL_JOB_END_FAIL, err, "ttIIiii", lh_state_name(to), failure->error,
                to == LH_SCHEDULED ? txn->wall + delay : (int64_t)0,
                to == LH_FAILED ? txn->now : (int64_t)0, txn->now, failure->job, failure->token);
    if (rc < 0)
        return rc;
    return end_run(txn, failure->job, failure->token, &held, to, failure->error, true, err);
}

static int fail_item(struct txn *txn, struct lhi_act *act, size_t i, struct lhi_error *err)
{
    return fail_one(txn, &act->failures[i], err);
}

static int64_t failure_id(const struct lhi_act *act, size_t i)
{
    return act->failures[i].job;
}

int sq_act_fail(struct txn *txn, struct lhi_act *act)
{
    int rc = sq_each_item(txn, act, fail_item, failure_id);
    LHI_POINT("job_fail:inside");
    return rc;
}

/* ---- release ---- */

/* `hold`: an operator gives the job back while its lease is live. The job stays in quarantine until
 * its holder has answered or the old deadline has passed. */
static int give_back(struct txn *txn, int64_t id, int64_t token, const struct held *held,
                     int64_t delay_ms, bool by_operator, bool hold, const char *actor,
                     struct lhi_error *err)
{
    int64_t run_at = delay_ms > 0 ? txn->wall + delay_ms : 0;
    int64_t hold_until = hold ? held->lease_until : 0;

    if (hold_until > run_at)
        run_at = hold_until;
    lh_state to = run_at > 0 ? LH_SCHEDULED : LH_PENDING;
    int rc = sq_run(txn->conn, LHI_SQL_JOB_RELEASE, err, "tIiiii", lh_state_name(to), run_at,
                    txn->now, by_operator ? sq_txn_next_token(txn, token) : token, id, token);
    if (rc < 0 ||
        (hold && (rc = sq_quarantine_put(txn, held->queue, id, token, hold_until, err)) < 0))
        return rc;
    struct tally *tally = sq_txn_tally(txn, held->queue, err);
    if (tally == NULL)
        return err->status;
    txn->changed = true;
    sq_tally_move(tally, LH_RUNNING, to);
    wake_for_slot(txn, tally);
    if (!hold && exclusive(txn, held->queue) &&
        (rc = sq_exclusive_end(txn, held->queue, id, err)) < 0)
        return rc;
    return sq_txn_event(txn,
                        &(struct event){.type = "job.released",
                                        .job = id,
                                        .queue = held->queue,
                                        .worker = held->worker,
                                        .from = LH_RUNNING,
                                        .to = to,
                                        .actor = actor,
                                        .token = token},
                        err);
}

static int release_one(struct txn *txn, const lh_ref *ref, int64_t delay_ms, struct lhi_error *err)
{
    struct held held;
    bool found, same;
    int rc = read_held(txn, ref->job, ref->token, &held, &found, err);

    if (rc < 0)
        return rc;
    if (!found) {
        if ((rc = repeated_end(txn, ref->job, ref->token, NULL, &same, err)) < 0)
            return rc;
        return same ? LH_OK : not_held(txn, ref->job, ref->token, true, err);
    }
    if (delay_ms == LH_BACKOFF)
        delay_ms =
            backoff_of(&held, sq_txn_policy(txn, held.queue, held.has_kind ? held.kind : NULL));
    return give_back(txn, ref->job, ref->token, &held, delay_ms, false, false, held.worker, err);
}

static int release_item(struct txn *txn, struct lhi_act *act, size_t i, struct lhi_error *err)
{
    return release_one(txn, &act->release.refs[i], act->release.delay_ms, err);
}

static int64_t ref_id(const struct lhi_act *act, size_t i)
{
    return act->release.refs[i].job;
}

int sq_act_release(struct txn *txn, struct lhi_act *act)
{
    int rc = sq_each_item(txn, act, release_item, ref_id);
    LHI_POINT("job_release:inside");
    return rc;
}

int sq_release_by_operator(struct txn *txn, int64_t id, int64_t token, int64_t delay_ms, bool now,
                           const char *actor, struct lhi_error *err)
{
    struct held held;
    bool found;
    int rc = read_held(txn, id, token, &held, &found, err);

    if (rc < 0 || !found)
        return rc < 0 ? rc : not_held(txn, id, token, false, err);
    bool live = held.lease_until > txn->now;
    return give_back(txn, id, token, &held, delay_ms, true, live && !now, actor, err);
}

static int release_of_worker(struct txn *txn, int64_t id, int64_t token, void *arg,
                             struct lhi_error *err)
{
    struct lhi_act *act = arg;
    int rc = sq_release_by_operator(txn, id, token, act->release.delay_ms, act->release.now, "hand",
                                    err);
    if (rc == LH_OK)
        act->release.released++;
    return rc;
}

/* If the caller names a worker, that worker must hold the job. */
static int release_named(struct txn *txn, struct lhi_act *act, size_t i, struct lhi_error *err)
{
    int64_t id = act->release.ids[i];
    sqlite3_stmt *stmt = sq_get_job(txn, id, err);

    if (stmt == NULL)
        return err->status;
    const unsigned char *holder = sqlite3_column_text(stmt, JOB_WORKER);
    bool theirs = holder != NULL && strcmp((const char *)holder, act->release.worker) == 0;
    int64_t token = sqlite3_column_int64(stmt, JOB_TOKEN);
    sq_reset(stmt);
    if (!theirs)
        return lhi_fail(err, LH_ELOST, "job %lld is not held by worker \"%s\"", (long long)id,
                        act->release.worker);
    return release_of_worker(txn, id, token, act, err);
}

int sq_act_release_worker(struct txn *txn, struct lhi_act *act)
{
    if (act->release.ids == NULL)
        return sq_each_job_of_worker(txn, act->release.worker, release_of_worker, act, &act->err);
    return sq_each_item(txn, act, release_named, NULL);
}
