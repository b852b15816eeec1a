/* The limits of a queue: how many jobs a claim may take from it now. */
#include "store/sqlite/acts/acts.h"

#include <string.h>

bool sq_queue_paused(const struct db *db, const char *queue)
{
    for (size_t i = 0; i < db->n_paused; i++)
        if (strcmp(db->paused[i], queue) == 0)
            return true;
    return false;
}

static int64_t refilled(const lh_policy *policy, int64_t bucket, int64_t at, int64_t now)
{
    int64_t full = policy->rate_n * 1000;
    int64_t elapsed = at == 0 || now < at ? policy->rate_per_ms : now - at;

    if (elapsed >= policy->rate_per_ms)
        return full;
    /* In floating point, because a large rate times a long time may not fit into 64 bits. */
    bucket += (int64_t)((double)full * ((double)elapsed / (double)policy->rate_per_ms));
    return bucket > full ? full : bucket;
}

static int read_bucket(struct txn *txn, const lh_policy *policy, const char *queue, int64_t *bucket,
                       struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_QUEUE_BUCKET, err, "t", queue);
    if (stmt == NULL)
        return err->status;
    int rc = sq_step(txn->conn, stmt, err);
    if (rc < 0)
        return rc;
    int64_t level = rc == LH_OK ? sqlite3_column_int64(stmt, 0) : 0;
    int64_t at = rc == LH_OK ? sqlite3_column_int64(stmt, 1) : 0;
    sq_reset(stmt);
    *bucket = refilled(policy, level, at, txn->now);
    return LH_OK;
}

/* The queue's row counts its running jobs. Before that count refuses a claim, the jobs themselves
 * are counted: a wrong count must not block the queue. */
static int slots_used(struct txn *txn, const char *queue, int64_t limit, int64_t *used,
                      struct lhi_error *err)
{
    struct tally *tally = sq_txn_tally(txn, queue, err);
    int64_t counted = 0;
    int rc;

    if (tally == NULL)
        return err->status;
    if ((rc = sq_int(txn->conn, LHI_SQL_QUEUE_SLOTS, err, 0, used, "ti", queue, txn->now)) < 0)
        return rc;
    *used += tally->state[LH_RUNNING]; /* counted by this transaction but not written yet */
    if (*used < limit)
        return LH_OK;
    if ((rc = sq_int(txn->conn, LHI_SQL_JOB_SLOTS, err, 0, &counted, "ti", queue, txn->now)) < 0)
        return rc;
    if (counted == *used)
        return LH_OK;
    sq_txn_log(txn, LH_LOG_WARN, NULL, "queue %s counted %lld running, there are %lld: corrected",
               queue, (long long)*used, (long long)counted);
    txn->changed = true;
    if ((rc = sq_txn_count(txn, err)) == LH_OK)
        rc = sq_run(txn->conn, LHI_SQL_QUEUE_RUNNING_SET, err, "it", counted - *used, queue);
    *used = counted;
    return rc < 0 ? rc : LH_OK;
}

int sq_claims_allowed(struct txn *txn, const lh_policy *policy, const char *queue, size_t want,
                      size_t *allowed, int64_t *bucket, struct lhi_error *err)
{
    int rc;

    *allowed = want;
    *bucket = -1;
    if (policy->exclusive && *allowed > 1)
        *allowed = 1;
    if (policy->concurrency > 0) {
        int64_t used = 0;
        if ((rc = slots_used(txn, queue, policy->concurrency, &used, err)) < 0)
            return rc;
        int64_t room = policy->concurrency > used ? policy->concurrency - used : 0;
        if ((int64_t)*allowed > room)
            *allowed = (size_t)room;
    }
    if (policy->rate_n > 0 && *allowed > 0) {
        if ((rc = read_bucket(txn, policy, queue, bucket, err)) < 0)
            return rc;
        if ((int64_t)*allowed > *bucket / 1000)
            *allowed = (size_t)(*bucket / 1000);
    }
    return LH_OK;
}
