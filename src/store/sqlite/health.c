/*
 * The checks of a store that is opened after a crash, or by a program that will run for long.
 *
 * After an unclean stop the dirty flag in the coordination file is set and no other process writes.
 * Then the file is checked before anything is written to it. If the check fails and only our tables
 * are in the file, it is repaired on a copy. If other processes have the store open, it is only
 * checked: replacing the file under them is a decision of the operator. The results go into the
 * report of the recovery that follows.
 */
#include "store/sqlite/files/files.h"
#include "store/sqlite/open.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/repair/repair.h"
#include "store/sqlite/sync.h"

#include <string.h>
#include <sys/stat.h>

enum { OUTSIZED = 64 << 20 };

/* ---- before the database is opened ---- */

void sq_health_before_open(struct db *db)
{
    struct lhi_health *health = db->health;

    health->wal_frames = -1;
    db->alone = sq_coord_alone(&db->coord);
    if (sq_coord_join_writers(&db->coord) && sq_coord_dirty(&db->coord)) {
        lhi_log(&db->log, LH_LOG_WARN, "store \"%s\" was not closed cleanly", db->path);
        sq_coord_set_recovery_due(&db->coord, true);
    }
    health->due =
        health->due || db->opts.startup || db->opts.repair || sq_coord_recovery_due(&db->coord);
    health->rows_suspect = health->due;
    if (db->alone && !health->due)
        sq_coord_share(&db->coord);
}

/* ---- integrity ---- */

/* A file with only our tables may be replaced without asking. If it is too damaged to read that,
 * the coordination file still has it. */
static bool ours_alone(struct db *db)
{
    struct lhi_error ignored;
    int64_t own = 0;

    if (db->conn.db != NULL && sq_meta_int(&db->conn, "own_file", -1, &own, &ignored) == LH_OK &&
        own >= 0)
        return own != 0;
    return sq_coord_own(&db->coord);
}

static int refuse_repair(struct db *db, const char *why, struct lhi_error *err)
{
    const lh_findings *f = &db->health->findings;
    return lhi_fail(err, LH_ECORRUPT, "store \"%s\" is damaged (%.120s) and %s", db->path,
                    f->n > 0 ? f->finding[0].text : "?", why);
}

static int repair(struct db *db, struct lhi_error *err)
{
    bool ours = ours_alone(db);

    if (!db->alone)
        return refuse_repair(db,
                             "other processes have it open: stop them, then run \"leasehold check "
                             "--repair\"",
                             err);
    if (!ours && !db->opts.repair)
        return refuse_repair(db,
                             "shared with tables that are not ours: \"leasehold check --repair\" "
                             "repairs it",
                             err);
    sq_conn_close(&db->conn);
    sq_writer_lock_announce(&db->coord, "repair");
    lhi_log(&db->log, LH_LOG_ERROR, "store \"%s\" is damaged: repairing a copy", db->path);
    int rc = sq_repair_store(db, db->health, err);
    if (rc != LH_OK)
        return rc;
    struct stat st;
    if (stat(db->file, &st) != 0)
        return lhi_fail(err, LH_EIO, "could not look at \"%s\"", db->path);
    db->dev = st.st_dev;
    db->ino = st.st_ino;
    return sq_conn_open(&db->conn, db->file, SQLITE_OPEN_READWRITE, err);
}

static bool wants_check(const struct db *db)
{
    return db->health->due && (!db->opts.no_integrity_check || db->opts.repair);
}

static int check_and_tell(struct db *db, struct conn *conn, struct lhi_error *err)
{
    struct lhi_health *health = db->health;
    size_t before = health->findings.errors;
    int rc = sq_check_file(conn, NULL, &health->findings, err);

    if (rc == LH_OK && health->findings.errors == before)
        rc = sq_check_tables(conn, &health->findings, err);
    if (rc != LH_OK)
        return rc;
    health->checked = true;
    health->sound = health->findings.errors == before;
    for (size_t i = 0; i < health->findings.n && !health->sound; i++)
        lhi_log(&db->log, LH_LOG_ERROR, "integrity check: %s", health->findings.finding[i].text);
    return LH_OK;
}

int sq_health_check_shared(struct db *db, struct lhi_error *err)
{
    struct conn conn = {0};

    if (!wants_check(db) || db->health->checked)
        return LH_OK;
    int rc = sq_conn_open(&conn, db->file, SQLITE_OPEN_READONLY, err);
    if (rc == LH_OK)
        rc = check_and_tell(db, &conn, err);
    sq_conn_close(&conn);
    return rc == LH_OK && !db->health->sound ? repair(db, err) : rc;
}

/* SQLite could not even open the file. If the coordination file names it as a store, the file is
 * damaged. */
int sq_health_repair(struct db *db, struct lhi_error *err)
{
    bool damage = err->status == LH_ECORRUPT || (err->status == LH_EINVAL && db->conn.db != NULL &&
                                                 (db->known || sq_header_is_zeroed(db)));

    if (!damage || !wants_check(db))
        return err->status;
    if (!sq_finding_add(&db->health->findings, "error", "integrity", "%s", err->text))
        return lhi_no_memory(err);
    db->health->checked = true;
    lhi_log(&db->log, LH_LOG_ERROR, "integrity check: %s", err->text);
    lhi_error_clear(err);
    int rc = repair(db, err);
    db->health->sound = rc == LH_OK;
    return rc;
}

int sq_health_check(struct db *db, struct lhi_error *err)
{
    struct lhi_health *health = db->health;

    /* Other processes must not wait for the check. If there are any, it runs later without the
     * writer lock (sq_health_check_shared). */
    if (!wants_check(db) || !db->alone || db->health->repaired)
        return LH_OK;
    sq_writer_lock_announce(&db->coord, "check");
    int rc = check_and_tell(db, &db->conn, err);
    if (rc != LH_OK || health->sound)
        return rc;
    rc = repair(db, err);
    health->sound = rc == LH_OK;
    return rc;
}

/* ---- after the open ---- */

/* Checkpoint the log. A failure is logged, and the program starts anyway. */
int sq_health_after_open(struct db *db, struct lhi_error *err)
{
    struct lhi_health *health = db->health;
    char wal[4200];
    struct stat st;

    if (!health->due)
        return LH_OK;
    lhi_format(wal, sizeof wal, "%s-wal", db->file);
    int64_t bytes = stat(wal, &st) == 0 ? (int64_t)st.st_size : 0;
    int frames = 0;
    /* The first checkpoint returns the number of frames; the second one does not. */
    int rc = sq_db_checkpoint(db, SQLITE_CHECKPOINT_PASSIVE, &frames);
    if (rc == SQLITE_OK)
        rc = sq_db_checkpoint(db, SQLITE_CHECKPOINT_TRUNCATE, NULL);
    health->wal_frames = frames;
    if (bytes > OUTSIZED) {
        lhi_log(&db->log, LH_LOG_WARN, "log of \"%s\" had grown to %lld MiB", db->path,
                (long long)(bytes >> 20));
        if (!sq_finding_add(&health->findings, "warning", "wal", "log had grown to %lld MiB%s",
                            (long long)(bytes >> 20), rc == SQLITE_OK ? " and was truncated" : ""))
            return lhi_no_memory(err);
    }
    if (rc != SQLITE_OK) {
        lhi_log(&db->log, LH_LOG_WARN, "log of \"%s\" could not be moved into the database: %s",
                db->path, sqlite3_errstr(rc));
        if (!sq_finding_add(&health->findings, "warning", "wal",
                            "log could not be moved into the database: %s", sqlite3_errstr(rc)))
            return lhi_no_memory(err);
    }
    return LH_OK;
}
