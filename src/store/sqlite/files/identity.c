/*
 * Is this still the store that the coordination file names?
 *
 * Every open for writing checks this under the writer lock before it writes anything: it must be
 * the same file, with its own log, not emptied, and no older than what was acknowledged. If
 * acknowledged changes are missing, the open is refused. If tokens may have been lost, the epoch
 * rises.
 */
#include "store/sqlite/files/files.h"
#include "store/sqlite/open.h"
#include "store/sqlite/reads/degraded.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/sync.h"
#include "store/sqlite/txn.h"

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

/* The identity of a file: its inode and its creation time, because inode numbers are reused. */
uint64_t sq_inode_of(const struct db *db, const char *suffix, char path[4200])
{
    struct statx st;

    lhi_format(path, 4200, "%s%s", db->file, suffix);
    if (statx(AT_FDCWD, path, 0, STATX_INO | STATX_BTIME, &st) != 0)
        return 0;
    uint64_t born = (uint64_t)st.stx_btime.tv_sec * 1000000000U + st.stx_btime.tv_nsec;
    return st.stx_ino ^ (born * UINT64_C(0x9e3779b97f4a7c15));
}

/* Another file is in the store's place, but the log beside it belongs to the old file. SQLite would
 * apply that log to the new file. So the log is kept under another name. */
static int set_old_log_aside(struct db *db, struct lhi_error *err)
{
    char wal[4200], shm[4200], aside[4300];
    uint64_t ino = sq_inode_of(db, "-wal", wal);

    if (ino == 0 || ino != sq_coord_wal(&db->coord))
        return LH_OK;
    lhi_format(aside, sizeof aside, "%s.of-another-%lld", wal, (long long)lhi_wall_ms());
    if (rename(wal, aside) != 0)
        return lhi_fail_errno(err, errno, "could not set the log \"%s\" of another store aside",
                              wal);
    (void)sq_inode_of(db, "-shm", shm);
    (void)unlink(shm); /* the index of the old log; it is rebuilt for the next one */
    lhi_log(&db->log, LH_LOG_WARN,
            "database \"%s\" was replaced: the log of the previous one is kept as \"%s\"", db->path,
            aside);
    return LH_OK;
}

/* The file may have been replaced while other processes have the old one open. They share the log
 * with us: a write of ours would go into their file, and their checkpoint would take ours. So this
 * is checked before SQLite opens the file. */
int sq_recognize_file(struct db *db, bool created, struct lhi_error *err)
{
    struct stat st;

    if (stat(db->file, &st) != 0)
        return lhi_fail_errno(err, errno, "could not look at \"%s\"", db->path);
    if (!sq_coord_same_file(&db->coord, st.st_dev, st.st_ino)) {
        if (!sq_coord_alone(&db->coord)) {
            if (created && st.st_size == 0)
                (void)unlink(db->file);
            return lhi_fail(err, LH_ESTOPPED,
                            "database \"%s\" was removed or replaced while other processes have "
                            "it open: stop them first",
                            db->path);
        }
        int rc = set_old_log_aside(db, err);
        sq_coord_share(&db->coord);
        if (rc != LH_OK)
            return rc;
    }
    db->known = !created && sq_coord_uuid(&db->coord)[0] != '\0' &&
                sq_coord_same_file(&db->coord, st.st_dev, st.st_ino);
    db->dev = st.st_dev;
    db->ino = st.st_ino;
    return LH_OK;
}

/* Without a coordination file there is no answer. A handle that only reads does not create one. */
bool sq_coord_knows_file(struct db *db)
{
    struct lhi_error ignored;
    struct stat st;

    if (db->coord.page == NULL &&
        sq_coord_open(&db->coord, db->file, false, &db->log, &ignored) != LH_OK)
        return false;
    return sq_coord_uuid(&db->coord)[0] != '\0' && stat(db->file, &st) == 0 &&
           sq_coord_same_file(&db->coord, st.st_dev, st.st_ino);
}

/* The file is the right one, but its log belongs to another store. SQLite would apply that log to
 * the file. */
int sq_refuse_foreign_log(struct db *db, struct lhi_error *err)
{
    char uuid[40], wal[4200];
    struct stat st;
    int rc = sq_meta_text(&db->conn, "store_uuid", uuid, sizeof uuid, err);

    if (rc != LH_OK || !db->known || strcmp(uuid, sq_coord_uuid(&db->coord)) == 0 ||
        sq_inode_of(db, "-wal", wal) == 0 || stat(wal, &st) != 0 || st.st_size == 0)
        return rc;
    return lhi_fail(err, LH_ECORRUPT,
                    "log \"%s-wal\" belongs to another store than the database beside it: move it "
                    "away",
                    db->path);
}

/* The file is empty and was not before. SQLite would treat it as new and ignore its log. */
int sq_refuse_emptied(const struct db *db, struct lhi_error *err)
{
    struct stat st;

    if (!db->known || sq_coord_synced(&db->coord) == 0 || stat(db->file, &st) != 0 ||
        st.st_size > 0)
        return LH_OK;
    return lhi_fail(err, LH_ECORRUPT, "database \"%s\" is empty, and was not", db->path);
}

/* ---- its age ---- */

static int new_epoch(struct txn *txn, void *arg, struct lhi_error *err)
{
    (void)arg;
    txn->changed = true;
    return sq_raise_epoch(txn, err);
}

/* Jobs may be among the lost changes: none of their tokens or ids may be issued again. */
static int accept_loss(struct txn *txn, void *arg, struct lhi_error *err)
{
    int rc = new_epoch(txn, arg, err);
    return rc < 0 || sq_run(txn->conn, LHI_SQL_SKIP_IDS, err, "i", (int64_t)SKIPPED_IDS) >= 0
               ? rc
               : err->status;
}

static bool knows(const struct db *db, const char *uuid)
{
    return db->coord.page != NULL && strcmp(sq_coord_uuid(&db->coord), uuid) == 0;
}

/* Replacing the file sets the new file's marks before the rename. And a private copy may be older
 * than what was acknowledged since it was made. */
static bool marks_are_of_another(const struct db *db)
{
    int64_t at;
    return sq_coord_work(&db->coord, &at) == WORK_REPLACING || sq_db_moved(db) ||
           sq_degraded_outdated(db);
}

/* Other processes write meanwhile. So the mark is read before the snapshot, which then contains
 * everything acknowledged by then. The mark is read again afterwards, because an undone replacement
 * or an accepted loss sets it back. */
int sq_read_age(struct db *db, struct conn *conn, struct age *age, struct lhi_error *err)
{
    int rc;

    LHI_POINT("age:before");
    uint64_t before = db->coord.page != NULL ? sq_coord_synced(&db->coord) : 0;
    LHI_POINT("age:between");
    *age = (struct age){0};
    if ((rc = sq_int(conn, LHI_SQL_STORE_MARKS, err, -1, &age->changes, "")) < 0 ||
        (rc = sq_meta_text(conn, "store_uuid", age->uuid, sizeof age->uuid, err)) < 0)
        return rc;
    if (age->changes < 0 || !knows(db, age->uuid) || marks_are_of_another(db))
        return LH_OK;
    uint64_t after = sq_coord_synced(&db->coord), changes = (uint64_t)age->changes;
    uint64_t acknowledged = after < before ? after : before;
    age->missing = acknowledged > changes ? acknowledged - changes : 0;
    return LH_OK;
}

/* Another store was put in this place, or the coordination file is missing. Processes that have the
 * old store open must close it first. */
static int start_marks(struct db *db, int64_t changes, struct lhi_error *err)
{
    if (sq_coord_uuid(&db->coord)[0] != '\0' && !sq_coord_alone(&db->coord))
        return lhi_fail(err, LH_ESTOPPED,
                        "database \"%s\" was replaced while other processes have it open",
                        db->path);
    sq_coord_reset_marks(&db->coord, (uint64_t)changes);
    sq_coord_set_sync_failed(&db->coord, false);
    sq_coord_set_frames(&db->coord, 0);
    sq_coord_share(&db->coord);
    db->alone = false;
    return LH_OK;
}

/* Nothing acknowledged is missing. The epoch rises if claims may be missing, because claims are not
 * synced; so their tokens are not issued again. `unknown`: the marks have just been created and
 * prove nothing. */
static int renew_epoch(struct db *db, int64_t changes, bool unknown, struct lhi_error *err)
{
    uint64_t committed = sq_coord_committed(&db->coord);

    /* The database is authoritative. The mark may be behind it (a writer died before it set the
     * mark) or ahead of it (the log was cut). */
    sq_coord_set_committed(&db->coord, (uint64_t)changes);
    /* After a failed sync the log itself decides (sq_resolve_failed_sync). */
    bool missing = committed > (uint64_t)changes && !sq_coord_sync_failed(&db->coord);
    if (missing)
        lhi_log(&db->log, LH_LOG_WARN,
                "the last commits of \"%s\" are missing (%llu), none of them acknowledged as "
                "durable: the epoch rises",
                db->path, (unsigned long long)(committed - (uint64_t)changes));
    return missing || (unknown && !db->fresh) ? sq_txn_alone(db, new_epoch, NULL, err) : LH_OK;
}

static int go_on_without(struct db *db, int64_t changes, struct lhi_error *err)
{
    uint64_t missing = sq_coord_synced(&db->coord) - (uint64_t)changes;
    int rc;

    if (!db->opts.accept_loss)
        return lhi_fail(err, LH_EOLDER,
                        "store \"%s\" is older than it was: %llu acknowledged change%s missing "
                        "(a lost -wal file, or an old copy); \"leasehold check --accept-loss\" "
                        "goes on without them",
                        db->path, (unsigned long long)missing, missing == 1 ? " is" : "s are");
    sq_coord_reset_marks(&db->coord, (uint64_t)changes);
    if ((rc = sq_txn_alone(db, accept_loss, NULL, err)) != LH_OK)
        return rc;
    /* Log it every time, no matter which process accepted the loss. */
    lhi_log(&db->log, LH_LOG_WARN, "%llu acknowledged changes are missing: accepted, epoch is %lld",
            (unsigned long long)missing, (long long)db->epoch);
    db->health->due = true;
    if (!sq_finding_add(&db->health->findings, "warning", "store",
                        "%llu acknowledged change%s missing (a lost -wal file, or an old copy): "
                        "accepted; the epoch is %lld",
                        (unsigned long long)missing, missing == 1 ? " is" : "s are",
                        (long long)db->epoch))
        return lhi_no_memory(err);
    return LH_OK;
}

/* The open that created the tables was interrupted. They are only in the log, so no log was
 * lost. */
static bool is_half_made(const struct db *db, int64_t changes)
{
    enum { ONE_PAGE = 4096 };
    struct stat st;

    return changes == 0 && stat(db->file, &st) == 0 && st.st_size <= ONE_PAGE;
}

int sq_compare_marks(struct db *db, struct lhi_error *err)
{
    char uuid[40];
    int64_t changes;
    int rc;

    if ((rc = sq_meta_text(&db->conn, "store_uuid", uuid, sizeof uuid, err)) < 0 ||
        (rc = sq_int(&db->conn, LHI_SQL_STORE_MARKS, err, 0, &changes, "")) < 0)
        return rc;
    bool unknown = strcmp(sq_coord_uuid(&db->coord), uuid) != 0;
    db->fresh = db->fresh || (unknown && is_half_made(db, changes));
    if ((unknown && (rc = start_marks(db, changes, err)) != LH_OK) ||
        (rc = sq_last_path_check(db, uuid, changes, err)) != LH_OK)
        return rc;
    bool clean = !sq_coord_dirty(&db->coord);
    sq_coord_set_dirty(&db->coord, true); /* from here on this open writes */
    rc = (uint64_t)changes >= sq_coord_synced(&db->coord) ? renew_epoch(db, changes, unknown, err)
                                                          : go_on_without(db, changes, err);
    /* These come last and together: if anything before was refused or interrupted, the next open
     * checks again. */
    if (rc == LH_OK && unknown)
        sq_coord_set_uuid(&db->coord, uuid);
    if (rc == LH_OK)
        sq_coord_set_file(&db->coord, db->dev, db->ino);
    else if (clean && rc == LH_EOLDER)
        sq_coord_set_dirty(&db->coord, false); /* nothing was written */
    return rc == LH_OK ? sq_last_path_set(db, err) : rc;
}

/* A sync failed earlier, and no other process has the store open. SQLite has just read the log
 * again and cut it after its last valid commit, and sq_compare_marks() found that nothing
 * acknowledged is missing. Now the log is moved into the database. If frames are missing, claims
 * may have been among them, because claims are not synced; a new epoch keeps their tokens from
 * being issued again. */
int sq_resolve_failed_sync(struct db *db, struct lhi_error *err)
{
    int64_t whole, expected = sq_coord_frames(&db->coord);
    int rc = LH_OK;

    if (!sq_coord_sync_failed(&db->coord) || !(db->alone || sq_coord_alone(&db->coord)))
        return LH_OK;
    if ((rc = sq_wal_valid_frames(db->file, &whole, err)) == LH_OK &&
        sq_db_checkpoint(db, SQLITE_CHECKPOINT_TRUNCATE, NULL) == SQLITE_OK) {
        sq_coord_set_sync_failed(&db->coord, false);
        sq_coord_set_frames(&db->coord, 0);
        if (whole < expected)
            rc = sq_txn_alone(db, new_epoch, NULL, err);
        lhi_log(&db->log, LH_LOG_WARN,
                "an earlier sync of \"%s-wal\" failed: the log was read again", db->path);
    }
    sq_coord_share(&db->coord);
    db->alone = false;
    return rc;
}

/* ---- the boot ---- */

static int new_boot(struct txn *txn, void *arg, struct lhi_error *err)
{
    (void)arg;
    return sq_clock_new_boot(txn, err);
}

int sq_other_boot(struct db *db, bool *other, struct lhi_error *err)
{
    char boot[40];
    int rc = sq_meta_text(&db->conn, "anchor_boot", boot, sizeof boot, err);

    *other = rc == LH_OK && db->boot[0] != '\0' && strcmp(boot, db->boot) != 0;
    return rc;
}

int sq_notice_boot(struct db *db, struct lhi_error *err)
{
    bool other;
    int rc = sq_other_boot(db, &other, err);

    if (rc < 0 || !other)
        return rc;
    /* The anchor of the old boot says nothing about the clock of this one, so the clock starts
     * now. */
    return sq_txn_alone(db, new_boot, NULL, err);
}
