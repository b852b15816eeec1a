/* The coordination file DB-lease: making, opening, mapping and closing it. */
#include "store/sqlite/coordination/coord_page.h"
#include "store/sqlite/files/trust.h"

#include "base/clock.h"
#include "base/sys.h"

#include <leasehold.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC "LHSIDE1"

/* A lock belongs to the open file description, which a forked child shares. If the child kept the
 * descriptor, it would keep the parent's locks after the parent has ended. */
static void forget_in_child(void *arg)
{
    struct coord *coord = arg;
    close(coord->fd);
    coord->fd = -1;
    coord->page = NULL; /* the mapping is not inherited */
}

int64_t sq_coord_machine_ms(const struct coord *coord)
{
    return lhi_mono_ms() - coord->ahead_ms;
}

/* A mapping keeps the open file description, and so the locks. A forked child must not inherit it. */
static void *map_for_this_process(int fd)
{
    lhi_forks_hold();
    void *p = mmap(NULL, COORD_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED || madvise(p, COORD_PAGE_BYTES, MADV_DONTFORK) != 0) {
        int failed = errno;
        if (p != MAP_FAILED)
            (void)munmap(p, COORD_PAGE_BYTES);
        errno = failed;
        p = NULL;
    }
    lhi_forks_resume();
    return p;
}

/* A file that this open has created gets permissions for every user who may write the database. An
 * existing file is checked. */
static int set_permissions(const struct coord *coord, const char *db_path, bool to_write,
                           struct stat *st, struct lhi_error *err)
{
    struct stat database;
    const struct stat *of = stat(db_path, &database) == 0 ? &database : NULL;
    mode_t mode = sq_trust_writers(of);

    if (fstat(coord->fd, st) != 0)
        return lhi_fail_errno(err, errno, "could not look at the coordination file \"%s\"",
                              coord->path);
    if (coord->created && of != NULL &&
        ((geteuid() == 0 && fchown(coord->fd, of->st_uid, of->st_gid) != 0) ||
         ((mode & 0060) && of->st_gid != st->st_gid &&
          fchown(coord->fd, (uid_t)-1, of->st_gid) != 0)))
        mode = 0600; /* it could not get the right owner: only for this user */
    if (!to_write && of != NULL && sq_trust_links(db_path, of))
        st->st_nlink = 1;
    int rc = coord->created ? LH_OK : sq_trust_file(coord->path, st, of, err);
    /* A user who may read the file may lock it, and could keep everybody out of the store. */
    if (rc == LH_OK && (coord->created || (st->st_mode & 0077 & ~mode)))
        (void)fchmod(coord->fd, mode);
    return rc;
}

static int map_page(struct coord *coord, const char *db_path, bool to_write, struct lhi_error *err)
{
    struct stat st;
    int status = set_permissions(coord, db_path, to_write, &st, err);

    if (status != LH_OK)
        return status;
    if (st.st_size != 0 && st.st_size != COORD_PAGE_BYTES)
        return lhi_fail(
            err, LH_EINVAL,
            "\"%s\" is in the way: it is not a coordination file of ours, and would be overwritten",
            coord->path);
    if (st.st_size < COORD_PAGE_BYTES) {
        /* Allocate the blocks: on a full disk, a write to a hole in the mapping would raise SIGBUS. */
        int rc = posix_fallocate(coord->fd, 0, COORD_PAGE_BYTES);
        if (rc != 0)
            return lhi_fail_errno(err, rc, "could not make the coordination file \"%s\"",
                                  coord->path);
    }
    coord->page = map_for_this_process(coord->fd);
    if (coord->page == NULL)
        return lhi_fail_errno(err, errno, "could not map the coordination file \"%s\"",
                              coord->path);
    coord->ino = st.st_ino;
    if (memcmp(coord->page->magic, MAGIC, sizeof MAGIC) == 0)
        return LH_OK;
    /* The file is new or damaged. The first process that gets the lock writes the page. */
    int rc = lhi_lock_wait(coord->fd, BYTE_WRITER_LOCK, false);
    if (rc != 0)
        return lhi_fail_errno(err, rc, "could not lock the coordination file \"%s\"", coord->path);
    if (memcmp(coord->page->magic, MAGIC, sizeof MAGIC) != 0) {
        memset(coord->page, 0, sizeof *coord->page);
        memcpy(coord->page->magic, MAGIC, sizeof MAGIC);
    }
    lhi_unlock(coord->fd, BYTE_WRITER_LOCK);
    return LH_OK;
}

/* An existing file is opened without O_CREAT: with it, some kernels refuse a file of the database's owner
 * in a folder like /tmp. O_NONBLOCK avoids waiting if the file is a FIFO or a device. */
static void open_file(struct coord *coord, bool create)
{
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    bool taken;

    do {
        coord->fd = create ? open(coord->path, flags | O_CREAT | O_EXCL, 0600) : -1;
        coord->created = coord->fd >= 0;
        taken = create && errno == EEXIST;
        if (!coord->created && (taken || !create))
            coord->fd = open(coord->path, flags);
    } while (coord->fd < 0 && taken && errno == ENOENT); /* it was removed between the two calls */
}

int sq_coord_open(struct coord *coord, const char *db_path, bool create, const struct lhi_log *log,
                  struct lhi_error *err)
{
    struct lhi_time_ns time;

    memset(coord, 0, sizeof *coord);
    coord->fd = -1;
    coord->log = log;
    coord->pid = getpid();
    lhi_time_ns(&time);
    coord->ahead_ms = time.ahead_ms;
    lhi_format(coord->path, sizeof coord->path, "%s-lease", db_path);
    lhi_forks_hold();
    open_file(coord, create);
    int failed = errno;
    if (coord->fd >= 0)
        lhi_forks_add(&coord->fork, forget_in_child, coord);
    lhi_forks_resume();
    if (coord->fd < 0)
        return lhi_fail_errno(err, failed, "could not open the coordination file \"%s\"",
                              coord->path);
    int rc = map_page(coord, db_path, create, err);
    if (rc != LH_OK)
        sq_coord_close(coord);
    return rc;
}

/* The locks belong to open file descriptions, so closing this descriptor releases none of ours. */
bool sq_coord_look_at(const char *db_path, const struct stat *database, struct coord_view *out)
{
    char path[4300];
    struct coord_page page;
    struct lhi_error ignored;
    struct stat st;

    lhi_format(path, sizeof path, "%s-lease", db_path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool ours = fstat(fd, &st) == 0 && sq_trust_file(path, &st, database, &ignored) == LH_OK &&
                pread(fd, &page, sizeof page, 0) == (ssize_t)sizeof page &&
                memcmp(page.magic, MAGIC, sizeof MAGIC) == 0;
    if (ours) {
        *out = (struct coord_view){.file = st.st_ino,
                                   .dev = page.dev,
                                   .ino = page.ino,
                                   .committed = page.committed,
                                   .synced = page.synced,
                                   .in_use = lhi_is_locked(fd, BYTE_PRESENT)};
        memcpy(out->uuid, page.uuid, sizeof out->uuid - 1);
    }
    close(fd);
    return ours;
}

void sq_coord_close(struct coord *coord)
{
    if (coord->fd >= 0) {
        for (off_t byte = BYTE_WRITER_LOCK; byte <= BYTE_WATCH; byte++)
            lhi_unlock(coord->fd, byte);
        lhi_forks_hold();
        lhi_forks_remove(&coord->fork);
        close(coord->fd);
        lhi_forks_resume();
    }
    if (coord->page != NULL)
        munmap(coord->page, COORD_PAGE_BYTES);
    coord->page = NULL;
    coord->fd = -1;
}

void sq_coord_remove(struct coord *coord)
{
    if (coord->created && sq_coord_alone(coord))
        (void)unlink(coord->path);
}
