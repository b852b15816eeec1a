/*
 * The store that a restore replaces, and what the new store takes from it.
 *
 * The replaced store may be damaged, because that is a reason for a restore. So every read may
 * fail, and what was read until then counts. Values of a damaged row are used only within possible
 * bounds.
 */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/copies/backup.h"
#include "store/sqlite/open.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/rows.h"

#include "base/clock.h"

#include <string.h>
#include <sys/stat.h>

#define MOST_CHANGES (INT64_C(1) << 40) /* the bits above them are the epoch of a token */

void sq_replaced_clear(struct replaced *replaced)
{
    lhi_free(replaced->held);
    lhi_free(replaced->exclusive);
    lhi_free(replaced->ids);
    lhi_arena_clear(&replaced->arena);
}

/* ---- reading ---- */

static int64_t bounded(int64_t left_ms)
{
    return left_ms < LHI_MAX_LEASE_MS ? left_ms : LHI_MAX_LEASE_MS;
}

/* Add a row to an array. False: out of memory. */
#define MORE(array, n) more((void **)&(array), (n), sizeof *(array))
static bool more(void **array, size_t n, size_t size)
{
    void *grown = sq_grow(*array, n, size);
    if (grown != NULL)
        *array = grown;
    return grown != NULL;
}

static int read_held(struct replaced *replaced, struct conn *conn, int64_t now,
                     struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_RESTORE_LIVE, err, "i", now);
    int rc = stmt ? LH_OK : err->status;

    while (rc == LH_OK && (rc = sq_step(conn, stmt, err)) == LH_OK) {
        if (!MORE(replaced->held, replaced->n_held))
            rc = lhi_no_memory(err);
        else
            replaced->held[replaced->n_held++] =
                (struct held_job){.job = sqlite3_column_int64(stmt, 0),
                                  .token = sqlite3_column_int64(stmt, 1),
                                  .left_ms = bounded(sqlite3_column_int64(stmt, 2))};
    }
    sq_reset(stmt);
    return rc < 0 ? rc : LH_OK;
}

static int read_exclusive(struct replaced *replaced, struct conn *conn, int64_t now,
                          struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_RESTORE_LIVE_EXCLUSIVE, err, "i", now);
    int rc = stmt ? LH_OK : err->status;

    while (rc == LH_OK && (rc = sq_step(conn, stmt, err)) == LH_OK) {
        bool ok = MORE(replaced->exclusive, replaced->n_exclusive);
        if (ok)
            replaced->exclusive[replaced->n_exclusive++] =
                (struct held_queue){.queue = sq_column_text(stmt, 0, &replaced->arena, &ok),
                                    .owner = sq_column_text(stmt, 1, &replaced->arena, &ok),
                                    .job = sqlite3_column_int64(stmt, 2),
                                    .left_ms = bounded(sqlite3_column_int64(stmt, 3))};
        if (!ok)
            rc = lhi_no_memory(err);
    }
    sq_reset(stmt);
    return rc < 0 ? rc : LH_OK;
}

static int read_last_ids(struct replaced *replaced, struct conn *conn, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_RESTORE_IDS, err, "");
    int rc = stmt ? LH_OK : err->status;

    while (rc == LH_OK && (rc = sq_step(conn, stmt, err)) == LH_OK) {
        bool ok = MORE(replaced->ids, replaced->n_ids);
        if (ok)
            replaced->ids[replaced->n_ids++] =
                (struct last_id){.table = sq_column_text(stmt, 0, &replaced->arena, &ok),
                                 .id = sqlite3_column_int64(stmt, 1)};
        if (!ok)
            rc = lhi_no_memory(err);
    }
    sq_reset(stmt);
    return rc < 0 ? rc : LH_OK;
}

static int read_counts(struct replaced *replaced, struct conn *conn, struct lhi_error *err)
{
    int64_t epoch, changes;
    int rc = sq_meta_int(conn, "epoch", -1, &epoch, err);

    if (rc < 0 || (rc = sq_int(conn, LHI_SQL_STORE_MARKS, err, -1, &changes, "")) < 0)
        return rc;
    replaced->counted = epoch >= 0 && epoch < MOST_EPOCHS && changes >= 0 && changes < MOST_CHANGES;
    if (replaced->counted) {
        replaced->epoch = epoch;
        replaced->changes = changes;
    }
    return LH_OK;
}

/* Store time in the replaced store, with which its leases are compared. */
static int read_clock(struct db *db, int64_t *now, struct lhi_error *err)
{
    char boot[40];
    int64_t wall, mono;
    int rc;

    *now = lhi_wall_ms();
    if ((rc = sq_meta_text(&db->conn, "anchor_boot", boot, sizeof boot, err)) < 0 ||
        (rc = sq_meta_int(&db->conn, "anchor_wall", 0, &wall, err)) < 0 ||
        (rc = sq_meta_int(&db->conn, "anchor_mono", 0, &mono, err)) < 0)
        return rc;
    if (sq_clock_of_this_boot(db, boot))
        *now = sq_machine_ms(db) + wall - mono;
    return LH_OK;
}

/* Read its marks, and who holds what. A damaged page does not hide what is on the others. */
static int read_same(struct replaced *replaced, struct db *db, struct lhi_error *err)
{
    struct lhi_error said[5] = {0};
    int64_t now;

    (void)read_counts(replaced, &db->conn, &said[0]);
    (void)read_clock(db, &now, &said[1]);
    (void)read_last_ids(replaced, &db->conn, &said[2]);
    (void)read_held(replaced, &db->conn, now, &said[3]);
    (void)read_exclusive(replaced, &db->conn, now, &said[4]);
    for (int i = 0; i < 5; i++)
        if (said[i].status == LH_ENOMEM || (said[i].status < 0 && err->status == LH_OK))
            *err = said[i];
    return err->status;
}

static int look(struct replaced *replaced, struct db *db, const char *uuid, struct lhi_error *err)
{
    enum contents contents = CONTENTS_EMPTY;
    char theirs[40] = "";
    int64_t version, own = 1;
    int rc = sq_conn_open(&db->conn, db->file, SQLITE_OPEN_READONLY, err);

    if (rc < 0 || (rc = sq_schema_look(&db->conn, &contents, &version, err)) < 0)
        return rc;
    replaced->known = true;
    replaced->own_file = contents != CONTENTS_FOREIGN;
    if (contents != CONTENTS_OURS)
        return LH_OK;
    if ((rc = sq_meta_text(&db->conn, "store_uuid", theirs, sizeof theirs, err)) < 0 ||
        (rc = sq_meta_int(&db->conn, "own_file", 1, &own, err)) < 0)
        return rc;
    replaced->own_file = own != 0;
    replaced->same = strcmp(theirs, uuid) == 0;
    return replaced->same ? read_same(replaced, db, err) : LH_OK;
}

int sq_replaced_read(struct replaced *replaced, struct db *db, const char *uuid,
                     struct lhi_error *err)
{
    struct stat st;
    int64_t committed = (int64_t)sq_coord_committed(&db->coord);
    int rc = lstat(db->file, &st) == 0 ? look(replaced, db, uuid, err) : LH_OK;

    sq_conn_close(&db->conn);
    if (strcmp(sq_coord_uuid(&db->coord), uuid) == 0 && committed > replaced->changes &&
        committed < MOST_CHANGES)
        replaced->changes = committed;
    if (rc == LH_ENOMEM || rc == LH_EBUSY)
        return rc;
    if (rc < 0)
        lhi_log(&db->log, LH_LOG_WARN, "store \"%s\", which is replaced, cannot be read: %s",
                db->path, err->text);
    lhi_error_clear(err);
    if (replaced->known && !replaced->same && !replaced->own_file)
        return lhi_fail(err, LH_EINVAL,
                        "database \"%.300s\" has tables that are not leasehold's, and the copy is "
                        "of another one: it is not replaced",
                        db->path);
    return LH_OK;
}

/* ---- carrying over ---- */

/* The copy may have the job as ended, or not at all. */
static int put_in_quarantine(struct txn *txn, const struct held_job *held, struct lhi_error *err)
{
    char queue[160];
    int64_t token, until;
    sqlite3_stmt *stmt = sq_get_job(txn, held->job, err);

    if (stmt == NULL)
        return err->status == LH_ENOTFOUND ? LH_OK : err->status;
    lh_state state = sq_column_state(stmt, JOB_STATE);
    int64_t new_token = sq_txn_next_token(txn, sqlite3_column_int64(stmt, JOB_TOKEN));
    lhi_format(queue, sizeof queue, "%s", sq_text_or_empty(stmt, JOB_QUEUE));
    sq_reset(stmt);
    if (state != LH_PENDING && state != LH_SCHEDULED)
        return LH_OK;
    int rc = sq_quarantine_get(txn, queue, held->job, &token, &until, err);
    if (rc < 0)
        return rc;
    if (until < txn->now + held->left_ms)
        until = txn->now + held->left_ms;
    if ((rc = sq_quarantine_put(txn, queue, held->job, held->token, until, err)) < 0 ||
        (rc = sq_run(txn->conn, LHI_SQL_RESTORE_QUARANTINE, err, "iiii", until, new_token, txn->now,
                     held->job)) < 0)
        return rc;
    struct tally *tally = sq_txn_tally(txn, queue, err);
    if (tally == NULL)
        return err->status;
    sq_tally_move(tally, state, LH_SCHEDULED);
    return LH_OK;
}

int sq_replaced_carry_over(const struct replaced *replaced, struct txn *txn, struct lhi_error *err)
{
    int rc = LH_OK;

    for (size_t i = 0; i < replaced->n_held && rc == LH_OK; i++)
        rc = put_in_quarantine(txn, &replaced->held[i], err);
    for (size_t i = 0; i < replaced->n_exclusive && rc == LH_OK; i++) {
        const struct held_queue *held = &replaced->exclusive[i];
        if (sq_run(txn->conn, LHI_SQL_RESTORE_EXCLUSIVE, err, "ttiiiii", held->queue, held->owner,
                   txn->db->epoch, txn->tick, held->left_ms, txn->now, held->job) < 0)
            rc = err->status;
    }
    for (size_t i = 0; i < replaced->n_ids && rc == LH_OK; i++)
        if (sq_run(txn->conn, LHI_SQL_RESTORE_ID_ROW, err, "t", replaced->ids[i].table) < 0 ||
            sq_run(txn->conn, LHI_SQL_RESTORE_ID, err, "it", replaced->ids[i].id,
                   replaced->ids[i].table) < 0)
            rc = err->status;
    return rc;
}
