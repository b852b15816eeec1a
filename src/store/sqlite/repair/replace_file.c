/*
 * Putting another file in the store's place.
 *
 * The order of the steps makes it safe. The new file is complete and on the disk before the note is
 * written. The old file gets a second name, so there is always a file. The old log is moved aside
 * before the new file is in place, because SQLite would apply it to the new file. The marks of the
 * new file are in the coordination file before the rename. Then there is one rename. If the process
 * is killed at any step, the next open finds the note and does what is left (sq_repair_resume).
 * Nothing is ever deleted except the index of the old log.
 *
 * Other processes may have the old file open. Their next act finds that the name belongs to another
 * file, and stops. Until then they read the old log under its new name.
 */
#include "store/sqlite/files/trust.h"
#include "store/sqlite/open.h"
#include "store/sqlite/repair/repair.h"

#include "base/hook.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void sq_aside_name(const struct db *db, const char *word, int64_t at, const char *suffix,
                   char out[4300])
{
    char time[40], *to = time;

    lh_time_format(at, time, sizeof time);
    for (const char *from = time; *from != '\0'; from++)
        if (*from != '-' && *from != ':')
            *to++ = *from;
    *to = '\0';
    lhi_format(out, 4300, "%s.%s-%s%s", db->file, word, time, suffix);
}

int sq_repair_note(struct db *db, enum coord_work work, int64_t at, struct lhi_error *err)
{
    sq_coord_set_work(&db->coord, work, at);
    /* After a power loss the note must be at least as new as the files that it describes. */
    if (fdatasync(db->coord.fd) != 0)
        return lhi_fail_errno(err, errno, "could not sync the coordination file \"%.300s\"",
                              db->coord.path);
    return LH_OK;
}

int sq_sync_folder(const char *file, struct lhi_error *err)
{
    char folder[4300];
    const char *slash = strrchr(file, '/');

    lhi_format(folder, sizeof folder, "%.*s", slash ? (int)(slash - file) + 1 : 1,
               slash ? file : ".");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    return failed ? lhi_fail_errno(err, failed, "could not sync the folder \"%.300s\"", folder)
                  : LH_OK;
}

void sq_replace_source(const struct db *db, const char *word, int64_t at, char out[4300])
{
    sq_aside_name(db, word, at, "-new", out);
}

/* ---- the new file ---- */

struct coming {
    char uuid[40];
    int64_t changes;
    struct stat st;
};

/* In WAL mode, as a store is, but with all contents in the file itself, synced. */
static int make_whole(struct conn *conn, const char *file, struct lhi_error *err)
{
    static const char *const suffixes[] = {"-wal", "-shm"};
    int frames = 0, moved = 0;
    bool changed;
    int rc = sq_set_wal_mode(conn, &changed, err);

    if (rc == LH_OK && sqlite3_wal_checkpoint_v2(conn->db, "main", SQLITE_CHECKPOINT_TRUNCATE,
                                                 &frames, &moved) != SQLITE_OK)
        rc = sq_fail(conn, sqlite3_extended_errcode(conn->db), err);
    sq_conn_close(conn);
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0] && rc == LH_OK; i++) {
        char name[4300];
        lhi_format(name, sizeof name, "%.4290s%s", file, suffixes[i]);
        (void)unlink(name);
    }
    int fd = rc == LH_OK ? open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (rc == LH_OK && (fd < 0 || fsync(fd) != 0))
        rc = lhi_fail_errno(err, errno, "could not sync \"%.300s\"", file);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* What the coordination file will say about the new file. */
static int look_at_coming(const char *file, struct coming *coming, struct lhi_error *err)
{
    struct conn conn = {0};
    int rc = sq_copy_open(&conn, file, err);

    if (rc == LH_OK &&
        (rc = sq_meta_text(&conn, "store_uuid", coming->uuid, sizeof coming->uuid, err)) == LH_OK &&
        (rc = sq_int(&conn, LHI_SQL_STORE_MARKS, err, 0, &coming->changes, "")) == LH_OK)
        rc = make_whole(&conn, file, err);
    sq_conn_close(&conn);
    if (rc != LH_OK)
        return sq_copy_failed("could not read", file, err);
    if (stat(file, &coming->st) != 0)
        return lhi_fail_errno(err, errno, "could not look at \"%.300s\"", file);
    return LH_OK;
}

/* The new file gets the old file's owner, group and mode, because another user may run the repair
 * or restore. */
static int give_owner(const struct db *db, const char *file, struct lhi_error *err)
{
    struct stat old;

    if (stat(db->file, &old) != 0)
        return errno == ENOENT ? LH_OK
                               : lhi_fail_errno(err, errno, "could not look at \"%s\"", db->path);
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int failed = fd < 0 ? errno : 0;
    if (fd >= 0 && fchown(fd, old.st_uid, old.st_gid) != 0)
        lhi_log(&db->log, LH_LOG_WARN, "could not give \"%s\" to its owner %lu:%lu", db->path,
                (unsigned long)old.st_uid, (unsigned long)old.st_gid);
    if (fd >= 0 && (fchmod(fd, old.st_mode & 0777) != 0 || fsync(fd) != 0))
        failed = errno;
    if (fd >= 0)
        close(fd);
    return failed ? lhi_fail_errno(err, failed, "could not give \"%.300s\" its mode", file) : LH_OK;
}

/* ---- the steps ---- */

static bool exists(const char *file)
{
    struct stat st;
    return lstat(file, &st) == 0;
}

/* Give the old file its second name. If there is no old file, `kept` is "". */
static int keep_old(const struct db *db, char kept[4300], struct lhi_error *err)
{
    if (link(db->file, kept) == 0 || (errno == EEXIST && lhi_same_file(db->file, kept)))
        return LH_OK;
    if (errno != ENOENT)
        return lhi_fail_errno(err, errno, "could not keep \"%s\" as \"%.200s\"", db->path, kept);
    kept[0] = '\0';
    return LH_OK;
}

/* The new file must not have a log or journal of the old file beside it. */
static int set_aside(const struct db *db, const char *suffix, const char *kept,
                     struct lhi_error *err)
{
    char from[4300], to[4300];

    lhi_format(from, sizeof from, "%s%s", db->file, suffix);
    struct stat st;
    if (lstat(from, &st) != 0 || (st.st_size == 0 && unlink(from) == 0))
        return LH_OK; /* there is none, or it is empty */
    lhi_format(to, sizeof to, "%.4200s%s", kept, suffix);
    /* An interrupted replacement may have left a file with that name. */
    for (int i = 1; exists(to) && i < 10; i++)
        lhi_format(to, sizeof to, "%.4200s%s.%d", kept, suffix, i);
    if (rename(from, to) != 0)
        return lhi_fail_errno(err, errno, "could not set \"%.200s\" aside", from);
    return LH_OK;
}

static void drop_log_index(const struct db *db)
{
    char shm[4300];

    lhi_format(shm, sizeof shm, "%s-shm", db->file);
    (void)unlink(shm); /* its log is gone, and the next log gets a new index */
}

/* The high-water mark of a store never falls. A file that is older than what was acknowledged is
 * refused at the next open, unless an operator accepts the loss. */
static void set_marks(struct db *db, const struct coming *coming)
{
    struct coord *coord = &db->coord;
    uint64_t synced = sq_coord_synced(coord), changes = (uint64_t)coming->changes;

    if (strcmp(sq_coord_uuid(coord), coming->uuid) != 0) {
        sq_coord_set_uuid(coord, coming->uuid);
        synced = 0;
    }
    sq_coord_reset_marks(coord, synced > changes ? synced : changes);
    sq_coord_set_committed(coord, changes);
    sq_coord_set_frames(coord, 0);
    sq_coord_set_sync_failed(coord, false);
    sq_coord_set_wal(coord, 0);
    sq_coord_set_file(coord, coming->st.st_dev, coming->st.st_ino);
}

/* After a crash only the note says which file is the new one. It must be a file that we have
 * made. */
static int trust_coming(const struct db *db, const char *ready, struct lhi_error *err)
{
    struct stat st, old;

    if (lstat(ready, &st) != 0)
        return lhi_fail_errno(err, errno, "could not look at \"%.300s\"", ready);
    return sq_trust_file(ready, &st, stat(db->file, &old) == 0 ? &old : NULL, err);
}

/* All steps before the rename. */
static int prepare(struct db *db, const char *ready, const char *aside, char kept[4300],
                   struct coming *coming, struct lhi_error *err)
{
    int rc;

    memcpy(kept, aside, strlen(aside) + 1);
    if ((rc = trust_coming(db, ready, err)) != LH_OK ||
        (rc = look_at_coming(ready, coming, err)) != LH_OK ||
        (rc = keep_old(db, kept, err)) != LH_OK)
        return rc;
    LHI_POINT("swap:linked");
    if ((rc = set_aside(db, "-wal", aside, err)) != LH_OK ||
        (rc = set_aside(db, "-journal", aside, err)) != LH_OK)
        return rc;
    drop_log_index(db);
    LHI_POINT("swap:aside");
    return sq_sync_folder(db->file, err);
}

int sq_replace_finish(struct db *db, const char *word, int64_t at, char kept[4300],
                      struct lhi_error *err)
{
    struct coming coming = {0};
    char ready[4300], aside[4300];

    sq_replace_source(db, word, at, ready);
    sq_aside_name(db, word, at, "", aside);
    int rc = prepare(db, ready, aside, kept, &coming, err);
    if (rc != LH_OK)
        return rc;
    set_marks(db, &coming);
    if ((rc = sq_repair_note(db, WORK_REPLACING, at, err)) != LH_OK)
        return rc;
    LHI_POINT("swap:marked");
    if (rename(ready, db->file) != 0)
        return lhi_fail_errno(err, errno, "could not put \"%.200s\" in place of \"%s\"", ready,
                              db->path);
    LHI_POINT("swap:renamed");
    sq_trust_forget(ready);
    db->dev = coming.st.st_dev;
    db->ino = coming.st.st_ino;
    if ((rc = sq_sync_folder(db->file, err)) != LH_OK ||
        (rc = sq_repair_note(db, WORK_NONE, 0, err)) != LH_OK)
        return rc;
    LHI_POINT("swap:done");
    return LH_OK;
}

/* ---- undoing ---- */

struct marks {
    char uuid[40];
    uint64_t committed, synced, wal;
    int64_t frames;
    bool sync_failed;
};

static void save_marks(const struct coord *coord, struct marks *marks)
{
    lhi_format(marks->uuid, sizeof marks->uuid, "%s", sq_coord_uuid(coord));
    marks->committed = sq_coord_committed(coord);
    marks->synced = sq_coord_synced(coord);
    marks->wal = sq_coord_wal(coord);
    marks->frames = sq_coord_frames(coord);
    marks->sync_failed = sq_coord_sync_failed(coord);
}

/* If a step cannot be undone, the note stays and the next open finishes the replacement. */
static void undo(struct db *db, const char *ready, const char *aside, const struct marks *marks)
{
    static const char *const suffixes[] = {"-wal", "-journal"};
    struct coord *coord = &db->coord;
    struct lhi_error ignored;
    struct stat st;

    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        char from[4300], to[4300];
        lhi_format(from, sizeof from, "%.4200s%s", aside, suffixes[i]);
        lhi_format(to, sizeof to, "%s%s", db->file, suffixes[i]);
        if (exists(from) && rename(from, to) != 0)
            return;
    }
    if (lhi_same_file(db->file, aside))
        (void)unlink(aside);
    sq_coord_set_uuid(coord, marks->uuid);
    sq_coord_reset_marks(coord, marks->synced);
    sq_coord_set_committed(coord, marks->committed);
    sq_coord_set_frames(coord, marks->frames);
    sq_coord_set_sync_failed(coord, marks->sync_failed);
    sq_coord_set_wal(coord, marks->wal);
    if (stat(db->file, &st) == 0)
        sq_coord_set_file(coord, st.st_dev, st.st_ino);
    sq_copy_remove(ready);
    (void)sq_repair_note(db, WORK_NONE, 0, &ignored);
}

/* Choose free names: files that were kept before are not overwritten. */
static void choose_names(const struct db *db, const char *word, int64_t *at, char ready[4300],
                         char aside[4300])
{
    for (;; ++*at) {
        char wal[4300], journal[4300];
        sq_replace_source(db, word, *at, ready);
        sq_aside_name(db, word, *at, "", aside);
        sq_aside_name(db, word, *at, "-wal", wal);
        sq_aside_name(db, word, *at, "-journal", journal);
        if (!exists(ready) && !exists(aside) && !exists(wal) && !exists(journal))
            return;
    }
}

int sq_replace_file(struct db *db, const char *fresh, const char *word, int64_t at, char kept[4300],
                    struct lhi_error *err)
{
    char ready[4300], aside[4300];
    struct marks marks;
    int rc = give_owner(db, fresh, err);

    if (rc != LH_OK)
        return rc;
    choose_names(db, word, &at, ready, aside);
    if (rename(fresh, ready) != 0)
        return lhi_fail_errno(err, errno, "could not rename \"%.300s\"", fresh);
    sq_trust_forget(fresh);
    save_marks(&db->coord, &marks);
    rc = sq_sync_folder(db->file, err);
    if (rc == LH_OK)
        rc = sq_repair_note(db, WORK_REPLACING, at, err);
    LHI_POINT("swap:noted");
    if (rc == LH_OK)
        rc = sq_replace_finish(db, word, at, kept, err);
    if (rc != LH_OK && exists(ready))
        undo(db, ready, aside, &marks);
    return rc;
}
