/* Queues and policies: pause, purge, delete, settings. */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/rows.h"

#include <string.h>

/* Settings have changed: other handles reload them with their next transaction, later acts of this
 * transaction at once. */
static int bump_generation(struct txn *txn, struct lhi_error *err)
{
    txn->changed = txn->reloaded = true;
    if (sq_run(txn->conn, LHI_SQL_STORE_GENERATION, err, "") < 0)
        return err->status;
    return sq_txn_reload(txn, err);
}

int sq_act_queue_pause(struct txn *txn, struct lhi_act *act)
{
    const char *queue = act->queue.queue;
    int n = sq_run(txn->conn, act->queue.paused ? LHI_SQL_QUEUE_PAUSE : LHI_SQL_QUEUE_RESUME,
                   &act->err, "t", queue);
    if (n <= 0)
        return n; /* the queue is in that state already: there is nothing to record */
    struct tally *tally = sq_txn_tally(txn, queue, &act->err);
    if (tally == NULL)
        return act->err.status;
    if (!act->queue.paused)
        tally->wake = 1000; /* every worker that waits for this queue may claim again */
    int rc = bump_generation(txn, &act->err);
    if (rc < 0)
        return rc;
    return sq_txn_event(
        txn,
        &(struct event){.type = act->queue.paused ? "queue.paused" : "queue.resumed",
                        .queue = queue,
                        .actor = "hand"},
        &act->err);
}

/* Purge one batch of jobs in one state. */
static int purge_some(struct txn *txn, const char *queue, lh_state state, int64_t *purged,
                      struct lhi_error *err)
{
    sqlite3_stmt *stmt =
        sq_stmt(txn->conn,
                state == LH_PENDING ? LHI_SQL_JOB_WAITING_PENDING : LHI_SQL_JOB_WAITING_SCHEDULED,
                err, "ti", queue, (int64_t)LHI_BATCH);
    int64_t ids[LHI_BATCH];
    size_t n = 0;
    int rc;

    if (stmt == NULL)
        return err->status;
    while (n < LHI_BATCH && (rc = sq_step(txn->conn, stmt, err)) == LH_OK)
        ids[n++] = sqlite3_column_int64(stmt, 0);
    sq_reset(stmt);
    if (n < LHI_BATCH && rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++)
        if (sq_run(txn->conn, LHI_SQL_JOB_DELETE, err, "i", ids[i]) < 0)
            return err->status;
    *purged += (int64_t)n;
    return LH_OK;
}

int sq_act_queue_purge(struct txn *txn, struct lhi_act *act)
{
    struct lhi_error *err = &act->err;
    const char *queue = act->queue.queue;
    int64_t pending = 0, scheduled = 0;
    int rc;

    if ((rc = sq_txn_count(txn, err)) < 0 ||
        (rc = purge_some(txn, queue, LH_PENDING, &pending, err)) < 0 ||
        (rc = purge_some(txn, queue, LH_SCHEDULED, &scheduled, err)) < 0)
        return rc;
    act->queue.count = pending + scheduled;
    act->queue.more = pending == LHI_BATCH || scheduled == LHI_BATCH;
    if (act->queue.count == 0)
        return LH_OK;
    char data[48];
    lhi_format(data, sizeof data, "{\"purged\":%lld}", (long long)act->queue.count);
    txn->changed = true;
    return sq_txn_event(
        txn, &(struct event){.type = "job.deleted", .queue = queue, .actor = "hand", .data = data},
        err);
}

/* ---- delete ---- */

/* The order of the columns of queue_counts. */
static const lh_state states[] = {LH_SCHEDULED, LH_PENDING, LH_RUNNING,
                                  LH_COMPLETED, LH_FAILED,  LH_CANCELLED};
enum { STATES = sizeof states / sizeof states[0] };

/* The jobs of a queue by state: its row, plus what this transaction has counted but not written
 * yet. */
static int count_jobs(struct txn *txn, const char *queue, int64_t jobs[LH_CANCELLED + 1],
                      struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_QUEUE_COUNTS, err, "t", queue);
    int rc = stmt != NULL ? sq_step(txn->conn, stmt, err) : err->status;
    bool known = rc == LH_OK;

    if (rc < 0)
        return rc;
    for (int i = 0; i < STATES && known; i++)
        jobs[states[i]] = sqlite3_column_int64(stmt, i);
    sq_reset(stmt);
    for (const struct tally *t = txn->tallies; t != NULL; t = t->next) {
        if (strcmp(t->queue, queue) != 0)
            continue;
        known = true;
        for (int i = 0; i < STATES; i++)
            jobs[states[i]] += t->state[states[i]];
    }
    return known ? LH_OK : lhi_fail(err, LH_ENOTFOUND, "there is no queue \"%s\"", queue);
}

static int need_no_jobs(struct txn *txn, const char *queue, struct lhi_error *err)
{
    int64_t jobs[LH_CANCELLED + 1] = {0};
    char found[256] = "";
    size_t len = 0;
    int rc = count_jobs(txn, queue, jobs, err);

    if (rc != LH_OK)
        return rc;
    for (int i = 0; i < STATES; i++) {
        if (jobs[states[i]] == 0)
            continue;
        lhi_format(found + len, sizeof found - len, "%s%lld %s", len > 0 ? ", " : "",
                   (long long)jobs[states[i]], lh_state_name(states[i]));
        len = strlen(found);
    }
    return len == 0 ? LH_OK
                    : lhi_fail(err, LH_ESTATE, "queue \"%s\" is not empty: %s", queue, found);
}

static int need_no_quarantine(struct txn *txn, const char *queue, struct lhi_error *err)
{
    int64_t n = 0;
    int rc = sq_int(txn->conn, LHI_SQL_QUEUE_QUARANTINE, err, 0, &n, "ti", queue, txn->now);

    if (rc < 0 || n == 0)
        return rc < 0 ? rc : LH_OK;
    return lhi_fail(err, LH_ESTATE, "queue \"%s\" is not empty: %lld in quarantine", queue,
                    (long long)n);
}

static int need_no_schedule(struct txn *txn, const char *queue, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_SCHEDULE_OF_QUEUE, err, "t", queue);
    int rc = stmt != NULL ? sq_step(txn->conn, stmt, err) : err->status;

    if (rc != LH_OK)
        return rc < 0 ? rc : LH_OK;
    rc = lhi_fail(err, LH_ESTATE, "schedule \"%s\" enqueues into queue \"%s\": remove it first",
                  sq_text_or_empty(stmt, 0), queue);
    sq_reset(stmt);
    return rc;
}

/* The counts are used because no index finds the completed jobs of a queue. */
int sq_act_queue_delete(struct txn *txn, struct lhi_act *act)
{
    static const enum lhi_sql deletes[] = {LHI_SQL_QUEUE_DELETE, LHI_SQL_QUEUE_DELETE_ROLLUPS,
                                           LHI_SQL_QUEUE_DELETE_POLICIES,
                                           LHI_SQL_QUEUE_DELETE_QUARANTINE};
    struct lhi_error *err = &act->err;
    const char *queue = act->queue.queue;
    int rc;

    if ((rc = need_no_jobs(txn, queue, err)) != LH_OK ||
        (rc = need_no_quarantine(txn, queue, err)) != LH_OK ||
        (rc = need_no_schedule(txn, queue, err)) != LH_OK)
        return rc;
    for (size_t i = 0; i < sizeof deletes / sizeof deletes[0]; i++)
        if (sq_run(txn->conn, deletes[i], err, "t", queue) < 0)
            return err->status;
    if ((rc = bump_generation(txn, err)) < 0)
        return rc;
    rc = sq_txn_event(
        txn, &(struct event){.type = "queue.deleted", .queue = queue, .actor = "hand"}, err);
    /* Otherwise the end of the transaction would write the row again. */
    if (rc == LH_OK)
        sq_txn_forget_tally(txn, queue);
    return rc;
}

/* ---- policies ---- */

/* The current row, with the set fields changed and the unset fields removed. */
static lh_policy merged(const struct txn *txn, const struct lhi_act *act)
{
    lh_policy out = {0};
    const lh_policies *rows = &txn->db->policies;

    for (size_t i = 0; i < rows->n; i++) {
        const char *queue = rows->row[i].queue ? rows->row[i].queue : "*";
        const char *kind = rows->row[i].kind ? rows->row[i].kind : "*";
        if (strcmp(queue, act->policy.queue) == 0 && strcmp(kind, act->policy.kind) == 0)
            out = rows->row[i].policy;
    }
    lhi_policy_merge(&out, act->policy.policy);
    out.set &= ~act->policy.unset;
    return out;
}

int sq_act_policy_set(struct txn *txn, struct lhi_act *act)
{
    struct lhi_error *err = &act->err;
    lh_policy p = merged(txn, act);
    int64_t action = p.action, recovery = p.recovery, exclusive = p.exclusive, audit = p.audit;
    int rc;
#define GIVEN(bit, value) ((p.set & LH_POLICY_##bit) ? &(value) : NULL)

    if (p.set == 0)
        rc = sq_run(txn->conn, LHI_SQL_POLICY_DELETE, err, "tt", act->policy.queue,
                    act->policy.kind);
    else
        rc =
            sq_run(txn->conn, LHI_SQL_POLICY_PUT, err, "ttooooooooooooooooooo", act->policy.queue,
                   act->policy.kind, GIVEN(LEASE, p.lease_ms), GIVEN(MAX_ATTEMPTS, p.max_attempts),
                   GIVEN(MAX_RECOVERIES, p.max_recoveries), GIVEN(ACTION, action),
                   GIVEN(RECOVERY, recovery), GIVEN(RECOVERY_BACKOFF, p.recovery_backoff_ms),
                   GIVEN(BACKOFF, p.backoff_ms), GIVEN(BACKOFF_CAP, p.backoff_cap_ms),
                   GIVEN(TIMEOUT, p.timeout_ms), GIVEN(EXCLUSIVE, exclusive), GIVEN(AUDIT, audit),
                   GIVEN(RETENTION, p.retention_ms), GIVEN(RETENTION_FAILED, p.retention_failed_ms),
                   GIVEN(MAX_PAYLOAD, p.max_payload), GIVEN(RATE, p.rate_n),
                   GIVEN(RATE, p.rate_per_ms), GIVEN(CONCURRENCY, p.concurrency),
                   GIVEN(MAX_OUTPUT, p.max_output), GIVEN(RETENTION_OUTPUT, p.retention_output_ms));
#undef GIVEN
    if (rc < 0 || (rc = bump_generation(txn, err)) < 0)
        return rc;
    if (strcmp(act->policy.queue, "*") != 0) {
        struct tally *tally = sq_txn_tally(txn, act->policy.queue, err);
        if (tally == NULL)
            return err->status;
        tally->wake = 1000; /* the new limit may be wider */
    }
    char data[400];
    lhi_format(data, sizeof data, "{\"queue\":\"%s\",\"kind\":\"%s\"}", act->policy.queue,
               act->policy.kind);
    return sq_txn_event(
        txn, &(struct event){.type = "policy.changed", .actor = "hand", .data = data}, err);
}
