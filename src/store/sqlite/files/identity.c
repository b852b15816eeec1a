/*
 * identity.c: is this still the store that the side file knows?
 *
 * Asked at every writing open, under the turnstile, before anything is written: the same file, with its
 * own log, not emptied, and no older than what was acknowledged. What is missing is never taken for
 * what is there; where tokens may have been lost with it, the epoch rises.
 */
#include "store/sqlite/db.h"

#include "base/clock.h"
#include "base/hook.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SKIPPED_IDS = 1000000 };

/* ---- the file ---- */

/* Which file it is: its inode and when that was made, because a number is given out again. */
uint64_t inode_of(const struct db *db, const char *suffix, char path[4200])
{
    struct statx st;

    lhi_format(path, 4200, "%s%s", db->file, suffix);
    if (statx(AT_FDCWD, path, 0, STATX_INO | STATX_BTIME, &st) != 0)
        return 0;
    uint64_t born = (uint64_t)st.stx_btime.tv_sec * 1000000000U + st.stx_btime.tv_nsec;
    return st.stx_ino ^ (born * UINT64_C(0x9e3779b97f4a7c15));
}

/* Another file stands in the store's place, but the log beside it is still that of the old one: to
 * SQLite it would be the new one's. It is kept, under another name. */
static int set_old_log_aside(struct db *db, struct lhi_error *err)
{
    char wal[4200], shm[4200], aside[4300];
    uint64_t ino = inode_of(db, "-wal", wal);

    if (ino == 0 || ino != side_wal(&db->side))
        return LH_OK;
    lhi_format(aside, sizeof aside, "%s.of-another-%lld", wal, (long long)lhi_wall_ms());
    if (rename(wal, aside) != 0)
        return lhi_fail_errno(err, errno, "could not set the log \"%s\" of another store aside",
                              wal);
    (void)inode_of(db, "-shm", shm);
    (void)unlink(shm); /* the index of that log; made anew from the next */
    lhi_log(&db->log, LH_LOG_WARN,
            "database \"%s\" was replaced: the log of the one before is kept as \"%s\"", db->path,
            aside);
    return LH_OK;
}

/* Others may have the store open while the file behind its name was exchanged. They share the log
 * with us: one write of ours would reach their file, one checkpoint of theirs would take ours. So
 * this is asked before SQLite is. */
int recognize_file(struct db *db, bool created, struct lhi_error *err)
{
    struct stat st;

    if (stat(db->file, &st) != 0)
        return lhi_fail_errno(err, errno, "could not look at \"%s\"", db->path);
    if (!side_same_file(&db->side, st.st_dev, st.st_ino)) {
        if (!side_alone(&db->side)) {
            if (created && st.st_size == 0)
                (void)unlink(db->file);
            return lhi_fail(err, LH_ESTOPPED,
                            "database \"%s\" was removed or replaced while other processes have "
                            "it open: stop them first",
                            db->path);
        }
        int rc = set_old_log_aside(db, err);
        side_share(&db->side);
        if (rc != LH_OK)
            return rc;
    }
    db->known = !created && side_uuid(&db->side)[0] != '\0' &&
                side_same_file(&db->side, st.st_dev, st.st_ino);
    db->dev = st.st_dev;
    db->ino = st.st_ino;
    return LH_OK;
}

/* Without a side file nobody knows; who only reads does not make one. */
bool knows_file(struct db *db)
{
    struct lhi_error ignored;
    struct stat st;

    if (db->side.page == NULL && side_open(&db->side, db->file, false, &db->log, &ignored) != LH_OK)
        return false;
    return side_uuid(&db->side)[0] != '\0' && stat(db->file, &st) == 0 &&
           side_same_file(&db->side, st.st_dev, st.st_ino);
}

/* It is the file we know, but with its log it is another store: SQLite would fold the one into the
 * other. */
int refuse_foreign_log(struct db *db, struct lhi_error *err)
{
    char uuid[40], wal[4200];
    struct stat st;
    int rc = meta_text(&db->conn, "store_uuid", uuid, sizeof uuid, err);

    if (rc != LH_OK || !db->known || strcmp(uuid, side_uuid(&db->side)) == 0 ||
        inode_of(db, "-wal", wal) == 0 || stat(wal, &st) != 0 || st.st_size == 0)
        return rc;
    return lhi_fail(err, LH_ECORRUPT,
                    "log \"%s-wal\" belongs to another store than the database beside it: move it "
                    "away",
                    db->path);
}

/* The file is empty, and was not: to SQLite it would be a new one, and its log of no use. */
int refuse_emptied(const struct db *db, struct lhi_error *err)
{
    struct stat st;

    if (!db->known || side_synced(&db->side) == 0 || stat(db->file, &st) != 0 || st.st_size > 0)
        return LH_OK;
    return lhi_fail(err, LH_ECORRUPT, "database \"%s\" is empty, and was not", db->path);
}

/* ---- its age ---- */

static int new_epoch(struct txn *txn, void *arg, struct lhi_error *err)
{
    (void)arg;
    txn->changed = true;
    return raise_epoch(txn, err);
}

/* Jobs may be among what is lost: neither their tokens nor their ids are given out again. */
static int accept_loss(struct txn *txn, void *arg, struct lhi_error *err)
{
    int rc = new_epoch(txn, arg, err);
    return rc < 0 || sql_run(txn->conn, LHI_SQL_SKIP_IDS, err, "i", (int64_t)SKIPPED_IDS) >= 0
               ? rc
               : err->status;
}

static bool knows(const struct db *db, const char *uuid)
{
    return db->side.page != NULL && strcmp(side_uuid(&db->side), uuid) == 0;
}

/* An exchange of the file sets the marks of the new one before it renames it; a private copy may be
 * older than what its owners have acknowledged since. */
static bool marks_are_of_another(const struct db *db)
{
    int64_t at;
    return side_work(&db->side, &at) == SIDE_SWAPPING || db_moved(db) || degraded_outdated(db);
}

/* Writers go on meanwhile, so the mark is read before the snapshot: what was acknowledged by then is
 * in it. It is read once more afterwards, because an exchange that was undone, or a loss that was
 * accepted, sets it back. */
int read_age(struct db *db, struct conn *conn, struct age *age, struct lhi_error *err)
{
    int rc;

    LHI_POINT("age:before");
    uint64_t before = db->side.page != NULL ? side_synced(&db->side) : 0;
    LHI_POINT("age:between");
    *age = (struct age){0};
    if ((rc = sql_int(conn, LHI_SQL_STORE_MARKS, err, -1, &age->changes, "")) < 0 ||
        (rc = meta_text(conn, "store_uuid", age->uuid, sizeof age->uuid, err)) < 0)
        return rc;
    if (age->changes < 0 || !knows(db, age->uuid) || marks_are_of_another(db))
        return LH_OK;
    uint64_t after = side_synced(&db->side), changes = (uint64_t)age->changes;
    uint64_t acknowledged = after < before ? after : before;
    age->missing = acknowledged > changes ? acknowledged - changes : 0;
    return LH_OK;
}

/* Another store was put in this place, or its coordination file is not there. A process that has the
 * old one open must close it first. */
static int start_marks(struct db *db, int64_t changes, struct lhi_error *err)
{
    if (side_uuid(&db->side)[0] != '\0' && !side_alone(&db->side))
        return lhi_fail(err, LH_ESTOPPED,
                        "database \"%s\" was replaced while other processes have it open",
                        db->path);
    side_reset_marks(&db->side, (uint64_t)changes);
    side_set_sync_failed(&db->side, false);
    side_set_frames(&db->side, 0);
    side_share(&db->side);
    db->alone = false;
    return LH_OK;
}

/* Nothing that was acknowledged is missing. The epoch rises where claims may be missing, which are not
 * synced: their tokens are not handed out again. `unknown`: the marks have just been started, so nobody
 * knows. */
static int renew_epoch(struct db *db, int64_t changes, bool unknown, struct lhi_error *err)
{
    uint64_t committed = side_committed(&db->side);

    /* The database is the truth: the mark may be behind it (a writer died before it set the mark), or
     * ahead (the log was cut). */
    side_set_committed(&db->side, (uint64_t)changes);
    /* After a failed sync the log itself is asked (resolve_failed_sync). */
    bool missing = committed > (uint64_t)changes && !side_sync_failed(&db->side);
    if (missing)
        lhi_log(&db->log, LH_LOG_WARN,
                "the last commits of \"%s\" are missing (%llu), none of them acknowledged as "
                "durable: the epoch rises",
                db->path, (unsigned long long)(committed - (uint64_t)changes));
    return missing || (unknown && !db->fresh) ? txn_alone(db, new_epoch, NULL, err) : LH_OK;
}

static int go_on_without(struct db *db, int64_t changes, struct lhi_error *err)
{
    uint64_t missing = side_synced(&db->side) - (uint64_t)changes;
    int rc;

    if (!db->opts.accept_loss)
        return lhi_fail(err, LH_EOLDER,
                        "store \"%s\" is older than it was: %llu acknowledged change%s missing "
                        "(a lost -wal file, or an old copy); \"leasehold check --accept-loss\" "
                        "goes on without them",
                        db->path, (unsigned long long)missing, missing == 1 ? " is" : "s are");
    side_reset_marks(&db->side, (uint64_t)changes);
    if ((rc = txn_alone(db, accept_loss, NULL, err)) != LH_OK)
        return rc;
    /* On the record, whoever accepted it. */
    lhi_log(&db->log, LH_LOG_WARN, "%llu acknowledged changes are missing: accepted, epoch is %lld",
            (unsigned long long)missing, (long long)db->epoch);
    db->health->due = true;
    if (!finding_add(&db->health->findings, "warning", "store",
                     "%llu acknowledged change%s missing (a lost -wal file, or an old copy): "
                     "accepted; the epoch is %lld",
                     (unsigned long long)missing, missing == 1 ? " is" : "s are",
                     (long long)db->epoch))
        return lhi_no_memory(err);
    return LH_OK;
}

/* The opener that made the tables was cut off: they are in the log alone, so no log was ever lost. */
static bool is_half_made(const struct db *db, int64_t changes)
{
    enum { ONE_PAGE = 4096 };
    struct stat st;

    return changes == 0 && stat(db->file, &st) == 0 && st.st_size <= ONE_PAGE;
}

int compare_marks(struct db *db, struct lhi_error *err)
{
    char uuid[40];
    int64_t changes;
    int rc;

    if ((rc = meta_text(&db->conn, "store_uuid", uuid, sizeof uuid, err)) < 0 ||
        (rc = sql_int(&db->conn, LHI_SQL_STORE_MARKS, err, 0, &changes, "")) < 0)
        return rc;
    bool unknown = strcmp(side_uuid(&db->side), uuid) != 0;
    db->fresh = db->fresh || (unknown && is_half_made(db, changes));
    if ((unknown && (rc = start_marks(db, changes, err)) != LH_OK) ||
        (rc = former_look(db, uuid, changes, err)) != LH_OK)
        return rc;
    bool clean = !side_dirty(&db->side);
    side_set_dirty(&db->side, true); /* from here on we write */
    rc = (uint64_t)changes >= side_synced(&db->side) ? renew_epoch(db, changes, unknown, err)
                                                     : go_on_without(db, changes, err);
    /* Last, and together: where any of this was refused, or cut off, the next opener asks again. */
    if (rc == LH_OK && unknown)
        side_set_uuid(&db->side, uuid);
    if (rc == LH_OK)
        side_set_file(&db->side, db->dev, db->ino);
    else if (clean && rc == LH_EOLDER)
        side_set_dirty(&db->side, false); /* nothing was written */
    return rc == LH_OK ? former_note(db, err) : rc;
}

/* A failed sync was flagged, and nobody else has the store open: SQLite has just read the log anew
 * and cut it at its last whole commit, and compare_marks() has seen that nothing acknowledged is
 * missing. What is there is moved into the database. If frames are missing, claims may have been
 * among them, which are not synced: a new epoch keeps their tokens from being handed out again. */
int resolve_failed_sync(struct db *db, struct lhi_error *err)
{
    int64_t whole, expected = side_frames(&db->side);
    int rc = LH_OK;

    if (!side_sync_failed(&db->side) || !(db->alone || side_alone(&db->side)))
        return LH_OK;
    if ((rc = wal_valid_frames(db->file, &whole, err)) == LH_OK &&
        db_checkpoint(db, SQLITE_CHECKPOINT_TRUNCATE, NULL) == SQLITE_OK) {
        side_set_sync_failed(&db->side, false);
        side_set_frames(&db->side, 0);
        if (whole < expected)
            rc = txn_alone(db, new_epoch, NULL, err);
        lhi_log(&db->log, LH_LOG_WARN,
                "an earlier sync of \"%s-wal\" failed: the log was read anew", db->path);
    }
    side_share(&db->side);
    db->alone = false;
    return rc;
}

/* ---- its boot ---- */

static int new_boot(struct txn *txn, void *arg, struct lhi_error *err)
{
    (void)arg;
    return clock_new_boot(txn, err);
}

int other_boot(struct db *db, bool *other, struct lhi_error *err)
{
    char boot[40];
    int rc = meta_text(&db->conn, "anchor_boot", boot, sizeof boot, err);

    *other = rc == LH_OK && db->boot[0] != '\0' && strcmp(boot, db->boot) != 0;
    return rc;
}

int notice_boot(struct db *db, struct lhi_error *err)
{
    bool other;
    int rc = other_boot(db, &other, err);

    if (rc < 0 || !other)
        return rc;
    /* The anchor of the old boot says nothing about this one's clock: start from now. */
    return txn_alone(db, new_boot, NULL, err);
}
