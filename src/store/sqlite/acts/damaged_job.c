/*
 * Jobs whose row does not match its checksums.
 *
 * Three checksums cover a job: payload_sum covers the payload; name_sum covers queue, kind and key;
 * state_sum covers every number that decides something, and a constraint of the table compares it.
 * Our statements add to state_sum what they change. So the next act on a damaged row fails the
 * constraint, and no act makes damage look sound. A claim or a recovery that meets such a row sets
 * the job aside: the job fails, is named in an event, and never runs. Its token may be damaged too,
 * so the epoch rises with it, and the next token is higher than any that was ever issued.
 *
 * SQLite cannot change a row that it cannot read, or one whose index entry has another value than
 * the row. Such a job is skipped: an event and a log line name it, claims go on with the jobs
 * behind it, and the next open without other processes repairs the file.
 */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/open.h"
#include "store/sqlite/rows.h"

#include "base/checksum.h"

#include <string.h>

#define MOST_TOKEN (INT64_C(1) << 53)

/* The place is part of the sum, so that moving a text from kind to key changes the sum. */
static uint64_t one_name(const char *name, uint64_t place)
{
    return name ? ((uint64_t)lhi_checksum(name, strlen(name)) | 1) * place : 0;
}

int64_t sq_name_sum(const char *queue, const char *kind, const char *key)
{
    uint64_t sum = one_name(queue, 3) ^ one_name(kind, 5) ^ one_name(key, 7);
    int64_t out;

    memcpy(&out, &sum, sizeof out);
    return out;
}

/* The same sum as in the constraint of lh_job. Unsigned, because a caller's numbers may be large
 * enough to overflow. */
int64_t sq_new_row_sum(const struct new_row *row)
{
    uint64_t sum = 3 * (uint64_t)row->id + 5 * (uint64_t)(int64_t)row->priority +
                   11 * (uint64_t)row->max_attempts + 31 * (uint64_t)row->created_at +
                   67 * (row->state == LH_PENDING ? UINT64_C(1) : UINT64_C(4)) - 163;
    const struct {
        uint64_t factor;
        int64_t value; /* 0 stands for NULL, and counts as -1 */
    } may_be_null[] = {{29, row->run_at},
                       {47, row->expires_at},
                       {53, row->lease_ms},
                       {59, row->backoff_ms},
                       {61, row->backoff_cap_ms}};
    int64_t out;

    for (size_t i = 0; i < sizeof may_be_null / sizeof may_be_null[0]; i++)
        sum += may_be_null[i].factor * (uint64_t)(may_be_null[i].value ? may_be_null[i].value : -1);
    memcpy(&out, &sum, sizeof out);
    return out;
}

enum damage sq_job_damage(sqlite3_stmt *stmt, const lh_job *job)
{
    bool summed = sqlite3_column_type(stmt, JOB_PAYLOAD_SUM) != SQLITE_NULL;

    if (summed && sqlite3_column_int64(stmt, JOB_PAYLOAD_SUM) !=
                      lhi_checksum(job->payload, job->payload ? job->payload_len : 0))
        return DAMAGED_PAYLOAD;
    if (summed &&
        sqlite3_column_int64(stmt, JOB_STATE_SUM) == 0) /* the library always writes state_sum */
        return DAMAGED_ROW;
    if (sqlite3_column_type(stmt, JOB_NAME_SUM) != SQLITE_NULL &&
        sqlite3_column_int64(stmt, JOB_NAME_SUM) != sq_name_sum(job->queue, job->kind, job->key))
        return DAMAGED_NAMES;
    return DAMAGED_NOT;
}

bool sq_names_damaged(sqlite3_stmt *stmt)
{
    enum { SUM = 1, QUEUE, KIND, KEY };

    return sqlite3_column_int64(stmt, SUM) !=
           sq_name_sum(sq_text_or_empty(stmt, QUEUE), (const char *)sqlite3_column_text(stmt, KIND),
                       (const char *)sqlite3_column_text(stmt, KEY));
}

enum damage sq_summed_damage(sqlite3_stmt *stmt)
{
    enum { SUM = 1, PAYLOAD, NAMES, QUEUE, KIND, KEY };
    const char *queue = (const char *)sqlite3_column_text(stmt, QUEUE);
    size_t len;
    const void *payload = sq_column_raw(stmt, PAYLOAD, &len);

    if (sqlite3_column_type(stmt, SUM) != SQLITE_NULL &&
        sqlite3_column_int64(stmt, SUM) != lhi_checksum(payload, len))
        return DAMAGED_PAYLOAD;
    if (sqlite3_column_type(stmt, NAMES) != SQLITE_NULL &&
        sqlite3_column_int64(stmt, NAMES) !=
            sq_name_sum(queue ? queue : "", (const char *)sqlite3_column_text(stmt, KIND),
                        (const char *)sqlite3_column_text(stmt, KEY)))
        return DAMAGED_NAMES;
    return DAMAGED_NOT;
}

const char *sq_damage_words(enum damage damage)
{
    switch (damage) {
    case DAMAGED_PAYLOAD:
        return "payload does not match its checksum";
    case DAMAGED_NAMES:
        return "queue, kind or key does not match its checksum";
    default:
        return "row does not match its checksum";
    }
}

/* ---- setting a job aside ---- */

/* Raise the epoch; the job has failed, and its next token belongs to the new epoch. */
static int raise_for(struct txn *txn, struct lhi_error *err)
{
    if (!txn->fenced && sq_raise_epoch(txn, err) < 0)
        return err->status;
    txn->fenced = true;
    return LH_OK;
}

int sq_set_job_aside(struct txn *txn, int64_t id, int64_t token, enum damage damage, bool *held,
                     struct lhi_error *err)
{
    char reason[80];
    int64_t floor = (txn->db->epoch + (txn->fenced ? 0 : 1)) << 40;

    lhi_format(reason, sizeof reason, "CORRUPT: %s", sq_damage_words(damage));
    if (damage != DAMAGED_PAYLOAD)
        token = (token > floor && token < MOST_TOKEN ? token : floor) + 1;
    int n = sq_run(txn->conn, LHI_SQL_JOB_SET_ASIDE, err, "itii", token, reason, txn->now, id);
    *held = n > 0;
    if (n == 0 || sq_is_damage(txn, id, n, err))
        return sq_skip_job(txn, id, err);
    if (n < 0 || (damage != DAMAGED_PAYLOAD && raise_for(txn, err) < 0))
        return err->status;
    txn->changed = true;
    return sq_run(txn->conn, LHI_SQL_JOB_SUM, err, "i", id) < 0 ? err->status : LH_OK;
}

/* ---- skipping a job ---- */

bool sq_is_damage(struct txn *txn, int64_t id, int rc, struct lhi_error *err)
{
    struct lhi_error ignored;

    if (rc != LH_ELOST && rc != LH_ECORRUPT)
        return false;
    /* SQLite reports a damaged page and a damaged row in the same words. If the row can be read, a
     * page is damaged, and the act must stop. */
    if (rc == LH_ECORRUPT) {
        sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_GET, &ignored, "i", id);
        bool readable = stmt == NULL || sq_step(txn->conn, stmt, &ignored) != LH_ECORRUPT;
        sq_reset(stmt);
        if (readable)
            return false;
    }
    lhi_error_clear(err);
    return true;
}

int sq_skip_job(struct txn *txn, int64_t id, struct lhi_error *err)
{
    static const char why[] =
        "CORRUPT: row cannot be read or contradicts its index: \"leasehold check "
        "--repair\" resolves it";
    int64_t told = 0;
    int rc = sq_int(txn->conn, LHI_SQL_DAMAGE_RECORDED, err, 0, &told, "i", id);

    sq_coord_set_recovery_due(&txn->db->coord,
                              true); /* the next open checks the file and repairs it */
    if (rc < 0 || told != 0)
        return rc;
    txn->changed = true;
    sq_txn_log(txn, LH_LOG_ERROR, &(lh_log_entry){.job = id, .reason = why},
               "job %lld is damaged and is skipped: %s", (long long)id, why + strlen("CORRUPT: "));
    return sq_txn_event(
        txn,
        &(struct event){.type = "job.damaged", .job = id, .actor = "system/claim", .reason = why},
        err);
}
