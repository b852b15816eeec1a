/*
 * Find processes that have the database open under another name, by SQLite's own locks.
 *
 * Every SQLite connection in WAL mode holds a read lock on the database, which belongs to the
 * inode, and one on the index of the log, which belongs to the name. If a process holds the first
 * but not the second, it opened the database under another name and writes to another log.
 *
 * A user who may read the database may take such a lock too, without a connection. So a lock counts
 * only if its holder may write the database.
 */
#include "store/sqlite/files/files.h"

#include "base/clock.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SHARED_AT = 0x40000002, /* on the database: held while a connection is open in WAL mode */
    SHARED_LEN = 510,
    INDEX_AT = 128, /* on the index: held while a connection uses it */
    WAL_FORMAT = 2,
    FORMAT_AT = 18,
};

static bool is_read_locked(long fd, off_t at, off_t len)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = len};
    return fcntl((int)fd, F_GETLK, &lock) == 0 && lock.l_type == F_RDLCK;
}

/* ---- in a process of its own, because closing a descriptor drops the locks of its process ---- */

enum { NO, YES };

static int look_at_index(void *arg)
{
    int index = open(arg, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    return index >= 0 && is_read_locked(index, INDEX_AT, 1) ? YES : NO;
}

bool sq_index_in_use(char *shm)
{
    return lhi_ask_child(look_at_index, shm) != NO;
}

struct users {
    const char *database;
    char *index;
};

static int look_for_users(void *arg)
{
    const struct users *users = arg;
    unsigned char format = 0;
    int database = open(users->database, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (database < 0 || !is_read_locked(database, SHARED_AT, SHARED_LEN) ||
        pread(database, &format, 1, FORMAT_AT) != 1 || format != WAL_FORMAT)
        return NO;
    return look_at_index(users->index) == YES ? NO : YES;
}

/* ---- the holder of a lock ---- */

/* Use the real user, because locks are kept through exec: a setuid program has the locks of the
 * user who started it. */
static bool may_write(long pid, const struct stat *database)
{
    char path[64], line[256];
    unsigned long uid = 0;
    bool known = false;

    if (database->st_mode & (S_IWGRP | S_IWOTH))
        return true; /* the process may have this group */
    lhi_format(path, sizeof path, "/proc/%ld/status", pid);
    FILE *status = fopen(path, "re");
    while (status != NULL && !known && fgets(line, sizeof line, status) != NULL)
        if ((known = strncmp(line, "Uid:", 4) == 0))
            uid = strtoul(line + 4, NULL, 10);
    if (status != NULL)
        (void)fclose(status);
    return !known || uid == 0 || uid == database->st_uid;
}

/* Parse a line of /proc/locks: "1: POSIX  ADVISORY  READ 25 fe:00:131 1073741826 1073742335".
 * False: it is another lock or another file. */
static bool holds_lock(char *line, const struct stat *database, long *pid)
{
    enum { FIELDS = 8, KIND = 1, PID = 4, INODE = 5, FROM = 6 };
    char *field[FIELDS], *rest = NULL;

    for (int i = 0; i < FIELDS; i++)
        if ((field[i] = strtok_r(i == 0 ? line : NULL, " \n", &rest)) == NULL)
            return false;
    /* On some file systems the device number is not the one that stat() returns. */
    const char *inode = strrchr(field[INODE], ':');
    *pid = strtol(field[PID], NULL, 10);
    return strcmp(field[KIND], "POSIX") == 0 && inode != NULL &&
           strtoull(inode + 1, NULL, 10) == database->st_ino &&
           strtoll(field[FROM], NULL, 10) < SHARED_AT + SHARED_LEN;
}

/* No holder may write the database. If the kernel does not show a holder (another pid namespace, no
 * /proc), it counts as a writer. */
static bool shows_only_strangers(const struct stat *database)
{
    char line[256];
    bool found = false, writer = false;
    long pid;

    FILE *locks = fopen("/proc/locks", "re");
    while (locks != NULL && !writer && fgets(line, sizeof line, locks) != NULL)
        if (holds_lock(line, database, &pid)) {
            found = true;
            writer = may_write(pid, database);
        }
    if (locks != NULL)
        (void)fclose(locks);
    return found && !writer;
}

/* The kernel writes the list page by page. Locks that come and go meanwhile shift the rest, so a
 * line may be missing, but hardly every time. */
static bool only_strangers(const struct db *db)
{
    enum { LOOKS = 8 };
    struct stat database;
    int looks = 0;

    if (stat(db->file, &database) != 0)
        return false;
    while (looks < LOOKS && shows_only_strangers(&database))
        looks++;
    return looks == LOOKS;
}

int sq_refuse_other_names(const struct db *db, struct lhi_error *err)
{
    enum { PATIENCE_MS = 500 };
    char shm[4200];
    struct users users = {.database = db->file, .index = shm};
    int64_t deadline = lhi_mono_ms() + PATIENCE_MS;

    lhi_format(shm, sizeof shm, "%s-shm", db->file);
    while (lhi_ask_child(look_for_users, &users) == YES) {
        if (only_strangers(db))
            return LH_OK;
        /* A program that is opening the database locks the database first and the index next. */
        if (lhi_mono_ms() >= deadline)
            return lhi_fail(err, LH_ESTOPPED,
                            "database \"%s\" is open in another process under another name (it was "
                            "renamed, linked or mounted): stop that process first",
                            db->path);
        lhi_sleep_ms(1);
    }
    return LH_OK;
}
