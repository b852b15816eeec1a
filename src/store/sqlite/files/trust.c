/*
 * Files beside a database that another user may have put there.
 *
 * SQLite opens a log, an index and a journal by their names and believes their contents. We do the
 * same with the coordination file and with a new file that replaces the store. In a folder where
 * other users may create files (/tmp), one of them can create such a file first. That user then
 * decides what our jobs are, reads them, or truncates the mapped file, which kills us with SIGBUS.
 * So a file is used only if it belongs to us, to root or to the owner of the database, has no
 * second name, and can be written only by users who can write the database.
 *
 * If a name is free, an empty file takes it before SQLite looks; to SQLite an empty file is the
 * same as none. The folder must have the sticky bit, as /tmp has. Otherwise other users can rename
 * the database itself, and no check helps.
 */
#include "store/sqlite/files/trust.h"

#include <leasehold.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static const char *const suffixes[] = {"-wal", "-shm", "-journal"};
enum { SUFFIXES = sizeof suffixes / sizeof suffixes[0] };

/* ---- one file ---- */

static bool is_owner(uid_t uid, const struct stat *database)
{
    return uid == geteuid() || uid == 0 || (database != NULL && uid == database->st_uid);
}

/* May more users write the file than the database? A file that we made has the database's mode and,
 * if the group may write it, the database's group. */
static bool is_exposed(const struct stat *st, const struct stat *database)
{
    mode_t mode = database != NULL ? database->st_mode : 0600;
    mode_t more = st->st_mode & (S_IWGRP | S_IWOTH) & ~mode;
    bool other_group = (st->st_mode & S_IWGRP) && database != NULL &&
                       st->st_gid != database->st_gid && !(mode & S_IWOTH);

    return more != 0 || other_group;
}

int sq_trust_file(const char *path, const struct stat *st, const struct stat *database,
                  struct lhi_error *err)
{
    if (!S_ISREG(st->st_mode))
        return lhi_fail(err, LH_EINVAL, "\"%.300s\" is in the way: it is not a regular file", path);
    if (!is_owner(st->st_uid, database))
        return lhi_fail(err, LH_EINVAL,
                        "file \"%.250s\" belongs to user %lu, who is neither you nor the owner of "
                        "the database, and may have put it there: remove it, and keep the store in "
                        "a folder where only its owner can make files",
                        path, (unsigned long)st->st_uid);
    if (st->st_nlink > 1)
        return lhi_fail(err, LH_EINVAL,
                        "file \"%.300s\" has %lu names (hard links): remove the other name; copy a "
                        "store with \"leasehold backup\"",
                        path, (unsigned long)st->st_nlink);
    if (is_exposed(st, database))
        return lhi_fail(
            err, LH_EINVAL,
            "file \"%.250s\" can be written by more users than the database (mode %04o, "
            "group %lu): stop the programs that use the store, and give the file the "
            "mode and the group of the database",
            path, (unsigned)(st->st_mode & 07777), (unsigned long)st->st_gid);
    return LH_OK;
}

mode_t sq_trust_writers(const struct stat *database)
{
    mode_t mode = database != NULL ? database->st_mode : 0;

    return 0600 | (mode & S_IWGRP ? 0060 : 0) | (mode & S_IWOTH ? 0006 : 0);
}

/* ---- the names beside a database ---- */

static bool look_at_folder(const char *database, struct stat *st)
{
    char folder[4300];

    lhi_format(folder, sizeof folder, "%.*s", (int)(strrchr(database, '/') - database) + 1,
               database);
    return stat(folder, st) == 0;
}

bool sq_trust_folder(const char *database)
{
    struct stat st;
    return !look_at_folder(database, &st) || !(st.st_mode & S_IWOTH) || (st.st_mode & S_ISVTX);
}

void sq_trust_warn_of_owner(const char *database, const struct lhi_log *log)
{
    struct stat st, around;

    if (lstat(database, &st) != 0 || !look_at_folder(database, &around) ||
        !(around.st_mode & S_IWOTH) || is_owner(st.st_uid, &around))
        return;
    lhi_log(log, LH_LOG_WARN,
            "database \"%s\" is in a folder where every user may create files, and belongs to user "
            "%lu, who can choose the jobs that run",
            database, (unsigned long)st.st_uid);
}

/* May users who cannot write the database create files beside it? */
static bool admits_strangers(const char *database, const struct stat *st)
{
    struct stat around;

    if (!look_at_folder(database, &around))
        return false;
    if ((around.st_mode & S_IWOTH) || !is_owner(around.st_uid, st))
        return true;
    return (around.st_mode & S_IWGRP) && !((st->st_mode & S_IWGRP) && around.st_gid == st->st_gid);
}

/* No descriptor is kept: closing one on the index would drop SQLite's locks on it. SQLite gives an
 * empty file the mode of the database, and as root its owner. */
static void take_name(const char *path, const struct stat *database)
{
    if (mknod(path, S_IFREG | 0600, 0) != 0)
        return; /* the file exists by now, or cannot be created: the check that follows decides */
    uid_t uid = geteuid() == 0 ? database->st_uid : (uid_t)-1;
    int failed =
        uid != (uid_t)-1 || (database->st_mode & S_IWGRP) ? lchown(path, uid, database->st_gid) : 0;
    (void)failed; /* the file keeps our owner, and the check that follows decides */
}

/* A whole folder was copied with links (cp -al): every file has two names, and each pair is one
 * file. In a folder where other users may create files, a link could lead to another file of
 * ours. */
bool sq_trust_links(const char *database, const struct stat *st)
{
    return st->st_nlink > 1 && !admits_strangers(database, st);
}

int sq_trust_names(const char *database, bool to_write, struct lhi_error *err)
{
    struct stat db, st;
    int rc = LH_OK;

    if (database[0] != '/' || lstat(database, &db) != 0)
        return LH_OK; /* it is in memory, or SQLite will report that it does not exist */
    bool take = admits_strangers(database, &db) || (db.st_mode & S_IWGRP);
    for (int i = 0; i < SUFFIXES && rc == LH_OK; i++) {
        char path[4300];
        lhi_format(path, sizeof path, "%s%s", database, suffixes[i]);
        bool exists = lstat(path, &st) == 0;
        if (!exists && take) {
            take_name(path, &db);
            exists = lstat(path, &st) == 0;
        }
        if (exists && !to_write && sq_trust_links(database, &db))
            st.st_nlink = 1;
        if (exists)
            rc = sq_trust_file(path, &st, &db, err);
    }
    return rc;
}

void sq_trust_forget(const char *database)
{
    for (int i = 0; i < SUFFIXES; i++) {
        char path[4300];
        struct stat st;
        lhi_format(path, sizeof path, "%s%s", database, suffixes[i]);
        if (lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0)
            (void)unlink(path);
    }
}
