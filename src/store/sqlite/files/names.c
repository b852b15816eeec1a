/*
 * Does each name of the store still belong to the file that was opened, and has the database only
 * one name?
 *
 * SQLite derives the names of the log and of its index from the name of the database, and we derive
 * the name of the coordination file. So a database with two names has two of each: the locks under
 * one name do not apply under the other, and two workers could run one job with one token. An open
 * for writing refuses that. If a second name appears later, the handle goes on and logs a warning,
 * because every process that has the store open used the first name. other_names.c finds processes
 * that use another name.
 */
#include "store/sqlite/files/files.h"
#include "store/sqlite/sync.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* ---- the files that were opened ---- */

static bool look(const char *path, struct statx *st)
{
    /* Symbolic links are not followed: a database that was moved and linked back has a second
     * name. */
    return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW,
                 STATX_INO | STATX_NLINK | STATX_SIZE | STATX_MNT_ID, st) == 0;
}

static bool is_database(const struct db *db, const struct statx *st)
{
    return st->stx_ino == db->ino && makedev(st->stx_dev_major, st->stx_dev_minor) == db->dev;
}

/* A handle that reads a copy, or reads the file in place, has opened neither log nor index: 0. */
static bool is_same(const struct db *db, const char *suffix, uint64_t opened)
{
    char path[4200];
    return opened == 0 || sq_inode_of(db, suffix, path) == opened;
}

static bool is_swapping(const struct db *db)
{
    int64_t at;
    return db->coord.page != NULL && sq_coord_work(&db->coord, &at) == WORK_REPLACING;
}

static bool lost_log(const struct db *db)
{
    return !is_same(db, "-wal", db->wal_ino) || !is_same(db, "-shm", db->shm_ino);
}

/* Replacing the file renames the log first; until the new database is in place, the old store can
 * still be read. The note is checked last, because it is written before the log is renamed. */
bool sq_db_moved(const struct db *db)
{
    struct statx st;

    return !look(db->file, &st) || !is_database(db, &st) || (lost_log(db) && !is_swapping(db));
}

static void warn_of_links(struct db *db, uint32_t links)
{
    if (links > 1 && db->links <= 1)
        lhi_log(&db->log, LH_LOG_WARN,
                "database \"%s\" has %u names (hard links): this process goes on, but the store "
                "cannot be opened for writing until the other name is removed; copy a store with "
                "\"leasehold backup\", not with links",
                db->path, links);
    db->links = links;
}

bool sq_db_files_changed(struct db *db)
{
    struct statx st;

    if (!look(db->file, &st) || !is_database(db, &st))
        return true;
    /* The next open finishes an interrupted replacement of the file. As soon as its note is
     * written, nothing more may go into the old file. During a replacement the old file has two
     * names on purpose. */
    if (is_swapping(db))
        return true;
    warn_of_links(db, st.stx_nlink);
    return lost_log(db);
}

/* Find the current path of the open database when its own name no longer leads to it. The kernel
 * knows the name of an open file. No descriptor is opened, because closing one would drop SQLite's
 * locks. False: the file was deleted, or its name cannot be found out. */
static bool find_renamed(const struct db *db, char *out, size_t len)
{
    DIR *fds = opendir("/proc/self/fd");
    bool found = false;

    for (struct dirent *entry; fds != NULL && !found && (entry = readdir(fds)) != NULL;) {
        char link[300], name[4200];
        struct statx st;
        lhi_format(link, sizeof link, "/proc/self/fd/%s", entry->d_name);
        ssize_t n = readlink(link, name, sizeof name - 1);
        if (n <= 0 || name[0] != '/')
            continue;
        name[n] = '\0';
        /* The name may by now belong to another file, or to none. */
        found = look(name, &st) && is_database(db, &st);
        if (found)
            lhi_format(out, len, "%s", name);
    }
    if (fds != NULL)
        (void)closedir(fds);
    return found;
}

static bool is_behind_its_name(const struct db *db)
{
    struct statx st;
    return look(db->file, &st) && is_database(db, &st);
}

int sq_db_stop_moved(struct db *db, struct lhi_error *err)
{
    char now[4200];
    bool database = !is_behind_its_name(db);
    bool log = !database && !is_same(db, "-wal", db->wal_ino);
    bool index = !database && !log && !is_same(db, "-shm", db->shm_ino);

    __atomic_store_n(&db->stopped, 1, __ATOMIC_RELEASE);
    if (database && find_renamed(db, now, sizeof now))
        return lhi_fail(err, LH_ESTOPPED,
                        "database \"%.200s\" was renamed to \"%.200s\" while the store was open: "
                        "nothing is acknowledged any more; stop this process, or rename it back",
                        db->path, now);
    return lhi_fail(err, LH_ESTOPPED,
                    "%s \"%s%s\" was removed or replaced while the store was open: nothing is "
                    "acknowledged any more",
                    log     ? "log"
                    : index ? "index of the log"
                            : "database",
                    db->path,
                    log     ? "-wal"
                    : index ? "-shm"
                            : "");
}

/* May the log be moved into the database, which is now called `now`? If another log with
 * contents is in its place, or its index is in use, another process writes there, and nothing
 * may be moved. */
static bool may_save_log(const struct db *db, const char *now)
{
    struct statx st;
    char wal[4300], shm[4300];

    lhi_format(wal, sizeof wal, "%s-wal", now);
    lhi_format(shm, sizeof shm, "%s-shm", now);
    if (strcmp(now, db->file) == 0)
        return !look(wal, &st) && errno == ENOENT && is_same(db, "-shm", db->shm_ino);
    return (look(wal, &st) ? st.stx_size == 0 : errno == ENOENT) && !sq_index_in_use(shm);
}

bool sq_db_save_log(struct db *db)
{
    char now[4200];
    int folded = 0;

    if (db->wal_ino == 0 || is_swapping(db))
        return false;
    if (is_behind_its_name(db))
        lhi_format(now, sizeof now, "%s", db->file);
    else if (!find_renamed(db, now, sizeof now))
        return false;
    bool renamed = strcmp(now, db->file) != 0;
    if (!may_save_log(db, now))
        return false;
    int64_t frames = sq_coord_frames(&db->coord);
    int rc = sq_db_checkpoint(db, SQLITE_CHECKPOINT_TRUNCATE, &folded);
    /* A reader that still uses the log prevents cutting it, but not moving its contents. */
    if (rc != SQLITE_OK && !((rc & 0xff) == SQLITE_BUSY && frames > 0 && folded >= frames))
        return false;
    if (renamed)
        lhi_log(&db->log, LH_LOG_WARN,
                "database \"%s\" was renamed to \"%.1000s\" while the store was open: the contents "
                "of its log were saved in it",
                db->path, now);
    else
        lhi_log(&db->log, LH_LOG_WARN,
                "log \"%s-wal\" was removed while the store was open: its contents were saved in "
                "the database",
                db->path);
    return true;
}

/* ---- a second name ---- */

int sq_refuse_file_mount(const struct db *db, struct lhi_error *err)
{
    char folder[4200];
    struct statx file, around;

    lhi_format(folder, sizeof folder, "%.*s", (int)(strrchr(db->file, '/') - db->file) + 1,
               db->file);
    if (!look(db->file, &file) || !look(folder, &around) ||
        !(file.stx_mask & around.stx_mask & STATX_MNT_ID) || file.stx_mnt_id == around.stx_mnt_id)
        return LH_OK;
    return lhi_fail(err, LH_EINVAL,
                    "database \"%s\" is mounted as a single file, and its log and locks are not: "
                    "mount the folder that it is in",
                    db->path);
}

int sq_refuse_second_name(struct db *db, struct lhi_error *err)
{
    struct statx st;
    int rc = sq_refuse_file_mount(db, err);

    if (rc != LH_OK || !look(db->file, &st))
        return rc;
    db->links = st.stx_nlink;
    if (st.stx_nlink > 1)
        return lhi_fail(err, LH_EINVAL,
                        "database \"%s\" has %u names (hard links), each with a log and locks of "
                        "its own: remove the other name (\"find -samefile\" finds it); copy a "
                        "store with \"leasehold backup\"",
                        db->path, st.stx_nlink);
    /* Processes that share the coordination file with us used the same name. */
    if (!sq_coord_alone(&db->coord))
        return LH_OK;
    rc = sq_refuse_other_names(db, err);
    sq_coord_share(&db->coord);
    return rc;
}

/* Replacing the file gives the old one a second name before it removes the first. */
int sq_names_problem(const struct db *db, char *out, size_t len)
{
    struct lhi_error err;
    struct statx st;
    int rc = sq_refuse_file_mount(db, &err);

    if (rc == LH_OK && look(db->file, &st) && st.stx_nlink > 1 && !is_swapping(db))
        rc = lhi_fail(&err, LH_EINVAL,
                      "database \"%s\" has %u names (hard links): what was written under another "
                      "name may be missing here, and it cannot be opened for writing",
                      db->path, st.stx_nlink);
    lhi_format(out, len, "%s", rc == LH_OK ? "" : err.text);
    return rc;
}
