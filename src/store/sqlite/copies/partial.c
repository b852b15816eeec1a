/*
 * The private folder of an unfinished backup, FILE.partial-XXXXXXXX.
 *
 * Its mode is 0700, so that no other user can put a log or a journal beside the copy. The backup
 * holds a lock on the folder. A killed backup leaves the folder behind without the lock, and the
 * next backup to the same place removes it.
 */
#include "store/sqlite/copies/backup.h"

#include "base/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIGITS = 8, TRIES = 10 };
static const char word[] = ".partial-";

/* ---- making one ---- */

/* Another backup may remove a new folder as abandoned before it is locked. Then another name is
 * tried. False with errno 0 means that. */
static bool make_folder(struct partial *partial)
{
    struct stat opened, named;

    if (mkdir(partial->folder, 0700) != 0) {
        errno = errno == EEXIST ? 0 : errno;
        return false;
    }
    partial->fd = open(partial->folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    /* If a folder cannot be locked, no other backup can lock it either, and none removes it. */
    bool taken = partial->fd < 0 ||
                 (flock(partial->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) ||
                 fstat(partial->fd, &opened) != 0 || stat(partial->folder, &named) != 0 ||
                 opened.st_ino != named.st_ino;
    if (!taken)
        return true;
    if (partial->fd >= 0)
        close(partial->fd);
    partial->fd = -1;
    errno = 0;
    return false;
}

int sq_partial_make(struct partial *partial, const char *target, struct lhi_error *err)
{
    uint32_t dice = 0;

    partial->fd = -1;
    for (int i = 0; i < TRIES; i++) {
        (void)lhi_random(&dice, sizeof dice);
        lhi_format(partial->folder, sizeof partial->folder, "%s%s%0*x", target, word, DIGITS, dice);
        lhi_format(partial->file, sizeof partial->file, "%.4280s/copy", partial->folder);
        if (make_folder(partial))
            return LH_OK;
        if (errno != 0)
            break;
    }
    (void)lhi_fail_errno(err, errno ? errno : EEXIST, "could not create \"%.300s\"",
                         partial->folder);
    /* A folder that cannot be written to says nothing about the store. */
    return err->status = err->status == LH_EREADONLY ? LH_EIO : err->status;
}

void sq_partial_remove(struct partial *partial)
{
    if (partial->fd < 0)
        return;
    sq_copy_remove(partial->file);
    (void)rmdir(partial->folder);
    close(partial->fd);
    partial->fd = -1;
}

/* ---- removing abandoned folders ---- */

static bool is_partial(const char *name)
{
    size_t len = strlen(name), tail = sizeof word - 1 + DIGITS;
    const char *at = len > tail ? name + len - tail : NULL;

    return at != NULL && strncmp(at, word, sizeof word - 1) == 0 &&
           strspn(at + sizeof word - 1, "0123456789abcdef") == DIGITS;
}

/* Remove a folder of this user that no process uses. Only files that a backup makes are removed: a
 * folder with anything else in it stays. */
static bool remove_abandoned(int around, const char *name)
{
    static const char *const files[] = {"copy", "copy-wal", "copy-shm", "copy-journal"};
    struct stat st;
    bool removed = false;
    int fd = openat(around, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return false;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 0777) == 0700 &&
        flock(fd, LOCK_EX | LOCK_NB) == 0) {
        for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
            (void)unlinkat(fd, files[i], 0);
        removed = unlinkat(around, name, AT_REMOVEDIR) == 0;
    }
    close(fd);
    return removed;
}

void sq_partial_clean(const char *target, const struct lhi_log *log)
{
    char folder[4300];
    const struct dirent *entry;

    lhi_format(folder, sizeof folder, "%.*s", (int)(strrchr(target, '/') - target) + 1, target);
    DIR *list = opendir(folder);
    if (list == NULL)
        return;
    /* The lock of a backup on another machine may not be visible on a network file system. */
    bool local = !lhi_on_network_fs(dirfd(list));
    while (local && (entry = readdir(list)) != NULL)
        if (is_partial(entry->d_name) && remove_abandoned(dirfd(list), entry->d_name))
            lhi_log(log, LH_LOG_INFO, "removed \"%s%s\", left by a killed backup", folder,
                    entry->d_name);
    (void)closedir(list);
}
