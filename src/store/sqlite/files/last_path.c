/*
 * The path under which the store was last open for writing.
 *
 * The log and the coordination file are found by the name of the database. If only the database is
 * renamed, both stay behind, and nothing under the new name would show that acknowledged changes
 * are missing. So the database stores its last path. An open under another path reads the
 * coordination file at the last path: is the store still in use there, and how far had it got? A
 * copy of the file is not a rename: then the store is still at its last path.
 */
#include "store/sqlite/files/files.h"
#include "store/sqlite/open.h"
#include "store/sqlite/sync.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* True if the path no longer leads to the database of that coordination file: it is our file now,
 * or nothing is there. A database that was moved to another file system is a new file. */
static bool has_left(const char *path, const struct coord_view *left, const struct stat *database)
{
    struct stat st;

    if (left->dev == database->st_dev && left->ino == database->st_ino)
        return true;
    return lstat(path, &st) != 0 && errno == ENOENT;
}

static bool has_contents(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && st.st_size > 0;
}

/* A folder that is mounted twice has two paths and one coordination file, which is ours. */
static bool find_left(const struct db *db, const char *path, const char *uuid,
                      struct coord_view *left)
{
    struct stat database;

    return path[0] == '/' && strcmp(path, db->file) != 0 && stat(db->file, &database) == 0 &&
           sq_coord_look_at(path, &database, left) && strcmp(left->uuid, uuid) == 0 &&
           left->file != db->coord.ino && has_left(path, left, &database);
}

int sq_last_path_check(struct db *db, const char *uuid, int64_t changes, struct lhi_error *err)
{
    char path[4096], wal[4200];
    struct coord_view left;
    int rc = sq_meta_text(&db->conn, "last_path", path, sizeof path, err);

    if (rc != LH_OK || !find_left(db, path, uuid, &left))
        return rc;
    if (left.in_use)
        return lhi_fail(err, LH_ESTOPPED,
                        "store \"%.150s\" is open in another process by its former name "
                        "\"%.150s\": stop that process first",
                        db->path, path);
    lhi_format(wal, sizeof wal, "%s-wal", path);
    uint64_t reached = left.committed > left.synced ? left.committed : left.synced;
    if (reached > (uint64_t)changes && has_contents(wal) && !db->opts.accept_loss)
        return lhi_fail(
            err, LH_EOLDER,
            "store \"%.110s\" was renamed without its log: %llu change%s missing here; "
            "rename \"%.130s\" to \"%.110s-wal\" (\"leasehold check --accept-loss\" goes "
            "on without it)",
            db->path, (unsigned long long)(reached - (uint64_t)changes),
            reached - (uint64_t)changes == 1 ? " is" : "s are", wal, db->path);
    sq_coord_raise_synced(&db->coord, left.synced);
    if (left.committed > sq_coord_committed(&db->coord))
        sq_coord_set_committed(&db->coord, left.committed);
    return LH_OK;
}

/* This transaction is not one that the marks count, because nothing acknowledged depends on it. */
static int note_path(struct db *db, struct lhi_error *err)
{
    struct lhi_error ignored;
    int rc = sq_exec(&db->conn, "BEGIN IMMEDIATE", err);

    if (rc == LH_OK)
        rc = sq_meta_set_text(&db->conn, "last_path", db->file, err);
    if (rc == LH_OK)
        rc = sq_exec(&db->conn, "COMMIT", err);
    if (rc != LH_OK)
        (void)sq_exec(&db->conn, "ROLLBACK", &ignored);
    return rc;
}

/* Checkpoint, so that the path is in the database file itself, which may be renamed without its
 * log. If that fails, the last close does it. */
static void make_lasting(struct db *db)
{
    (void)sq_db_checkpoint(db, SQLITE_CHECKPOINT_TRUNCATE, NULL);
}

/* Processes that have the store open by another path (a folder that is mounted twice) share our
 * coordination file. So the stored path leads to it either way. */
int sq_last_path_set(struct db *db, struct lhi_error *err)
{
    char path[4096];
    int rc = sq_meta_text(&db->conn, "last_path", path, sizeof path, err);

    if (rc == LH_OK && db->fresh)
        make_lasting(db);
    if (rc != LH_OK || strcmp(path, db->file) == 0)
        return rc;
    bool took = !db->alone && sq_coord_alone(&db->coord);
    if (!db->alone && !took)
        return LH_OK;
    rc = note_path(db, err);
    if (rc == LH_OK)
        make_lasting(db);
    if (took)
        sq_coord_share(&db->coord);
    return rc;
}
