/*
 * damaged.c: jobs whose row does not match its checksums.
 *
 * Three checksums cover a job: payload_sum its payload, name_sum its queue, kind and key, and state_sum
 * every number that decides anything, by a constraint of the table. A statement of ours adds to
 * state_sum what it changes. So a row that was damaged fails the constraint at the next act, whatever
 * the act is, and no act makes damage look sound. A claim or a recovery that meets such a row holds the
 * job back: it is failed, named, and never run. Its token may be what was damaged; so the epoch rises
 * first, and the next token is higher than any that was ever handed out.
 */
#include "store/sqlite/db.h"

#include "base/checksum.h"

#include <string.h>

#define MOST_TOKEN (INT64_C(1) << 53)

/* By its place, so that a kind that becomes the key does not leave the sum as it was. */
static uint64_t one_name(const char *name, uint64_t place)
{
    return name ? ((uint64_t)lhi_checksum(name, strlen(name)) | 1) * place : 0;
}

int64_t name_sum(const char *queue, const char *kind, const char *key)
{
    uint64_t sum = one_name(queue, 3) ^ one_name(kind, 5) ^ one_name(key, 7);
    int64_t out;

    memcpy(&out, &sum, sizeof out);
    return out;
}

enum damage row_damage(sqlite3_stmt *stmt, const lh_job *job)
{
    if (sqlite3_column_type(stmt, JOB_PAYLOAD_SUM) != SQLITE_NULL &&
        sqlite3_column_int64(stmt, JOB_PAYLOAD_SUM) !=
            lhi_checksum(job->payload, job->payload ? job->payload_len : 0))
        return DAMAGED_PAYLOAD;
    if (sqlite3_column_type(stmt, JOB_NAME_SUM) != SQLITE_NULL &&
        sqlite3_column_int64(stmt, JOB_NAME_SUM) != name_sum(job->queue, job->kind, job->key))
        return DAMAGED_NAMES;
    return DAMAGED_NOT;
}

enum damage summed_damage(sqlite3_stmt *stmt)
{
    enum { SUM = 1, PAYLOAD, NAMES, QUEUE, KIND, KEY };
    const char *queue = (const char *)sqlite3_column_text(stmt, QUEUE);
    size_t len;
    const void *payload = column_raw(stmt, PAYLOAD, &len);

    if (sqlite3_column_type(stmt, SUM) != SQLITE_NULL &&
        sqlite3_column_int64(stmt, SUM) != lhi_checksum(payload, len))
        return DAMAGED_PAYLOAD;
    if (sqlite3_column_type(stmt, NAMES) != SQLITE_NULL &&
        sqlite3_column_int64(stmt, NAMES) != name_sum(queue ? queue : "",
                                                      (const char *)sqlite3_column_text(stmt, KIND),
                                                      (const char *)sqlite3_column_text(stmt, KEY)))
        return DAMAGED_NAMES;
    return DAMAGED_NOT;
}

const char *damage_words(enum damage damage)
{
    return damage == DAMAGED_PAYLOAD ? "payload does not match its checksum"
           : damage == DAMAGED_NAMES ? "queue, kind or key does not match its checksum"
                                     : "row does not match its checksum";
}

int hold_back(struct txn *txn, int64_t id, int64_t token, enum damage damage, struct lhi_error *err)
{
    char reason[80];

    lhi_format(reason, sizeof reason, "CORRUPT: %s", damage_words(damage));
    if (damage != DAMAGED_PAYLOAD) {
        if (!txn->fenced && raise_epoch(txn, err) < 0)
            return err->status;
        txn->fenced = txn->reloaded = true; /* an act that is undone takes the epoch back */
        token = txn_next_token(txn, token < MOST_TOKEN ? token : 0);
    }
    txn->changed = true;
    if (sql_run(txn->conn, LHI_SQL_JOB_HOLD_BACK, err, "itii", token, reason, txn->now, id) < 0 ||
        sql_run(txn->conn, LHI_SQL_JOB_SUM, err, "i", id) < 0)
        return err->status;
    return LH_OK;
}
