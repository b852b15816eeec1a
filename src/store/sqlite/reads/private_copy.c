/*
 * A private copy of a store's files, for reading a store that cannot be opened in place.
 *
 * Database, log and journal are copied to the first temporary folder with enough room: $TMPDIR,
 * /dev/shm, /tmp, /var/tmp. The copy has names only while SQLite opens it. So a killed process
 * leaves nothing behind, or at worst (on a file system without nameless files, or in that moment) a
 * folder that only this user can read. LH_EBUSY: the store was written to meanwhile.
 *
 * The database file is read through SQLite: closing a descriptor of ours would drop the locks of
 * other connections in this process.
 */
#include "store/sqlite/open.h"
#include "store/sqlite/reads/degraded.h"

#include "base/hook.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHUNK = 256 << 10,
    HEAD = 100, /* the header of a database with its change counter, and of a log with its salts */
    SPARE = 256 << 10, /* extra room: for the index of the log and the folder */
};

const char *const sq_part_suffix[PARTS] = {"", "-wal", "-journal"};

void sq_immutable_uri(const char *path, char out[URI_MAX])
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._-";
    size_t used = lhi_format(out, 8, "file:");

    for (; *path != '\0'; path++)
        if (strchr(plain, *path) != NULL)
            out[used++] = *path;
        else
            used += lhi_format(out + used, 4, "%%%02X", (unsigned char)*path);
    lhi_format(out + used, 16, "?immutable=1");
}

/* ---- the files of a copy ---- */

/* A copy that is being made. Its files have only descriptors until it is complete. */
struct copy {
    const char *place;
    char folder[1100]; /* a private folder, created when a name is needed; "" until then */
    int fd[PARTS];     /* -1: the file does not exist */
};

static void copy_path(const struct copy *copy, const char *suffix, char out[1200])
{
    lhi_format(out, 1200, "%s/store.db%s", copy->folder, suffix);
}

static int make_folder(struct copy *copy, struct lhi_error *err)
{
    if (copy->folder[0] != '\0')
        return LH_OK;
    size_t used = lhi_format(copy->folder, sizeof copy->folder, "%s/leasehold-XXXXXX", copy->place);
    if (used < sizeof copy->folder - 1 && mkdtemp(copy->folder) != NULL)
        return LH_OK;
    int why = used < sizeof copy->folder - 1 ? errno : ENAMETOOLONG;
    copy->folder[0] = '\0';
    return lhi_fail_errno(err, why, "%s", copy->place);
}

/* Create a file without a name, which disappears if this process is killed. On a file system
 * without nameless files, create it in the private folder. */
static int make_file(struct copy *copy, enum part which, struct lhi_error *err)
{
    char path[1200];
    int fd = -1;

    if (access("/proc/self/fd", X_OK) == 0)
        fd = open(copy->place, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        int rc = make_folder(copy, err);
        if (rc != LH_OK)
            return rc;
        copy_path(copy, sq_part_suffix[which], path);
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    }
    if (fd < 0)
        return lhi_fail_errno(err, errno, "%s", copy->place);
    copy->fd[which] = fd;
    return LH_OK;
}

static int name_file(struct copy *copy, enum part which, struct lhi_error *err)
{
    char path[1200], link[40];
    struct stat st;
    int rc = make_folder(copy, err);

    if (rc != LH_OK || (fstat(copy->fd[which], &st) == 0 && st.st_nlink > 0))
        return rc;
    copy_path(copy, sq_part_suffix[which], path);
    lhi_format(link, sizeof link, "/proc/self/fd/%d", copy->fd[which]);
    if (linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0)
        return lhi_fail_errno(err, errno, "%s", path);
    return LH_OK;
}

/* SQLite has opened the copy, or failed to. Remove the names, so that no other process finds it. */
static void forget_names(const struct copy *copy)
{
    static const char *const all[] = {"", "-wal", "-journal", "-shm"};
    char path[1200];

    if (copy->folder[0] == '\0')
        return;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        copy_path(copy, all[i], path);
        (void)unlink(path);
    }
    (void)rmdir(copy->folder);
}

/* The database is read through SQLite's own file, the other parts through a descriptor. */
struct source {
    char path[4200];
    sqlite3 *db;
    sqlite3_file *file;
    int fd;
};

static int open_source(struct source *src, const struct db *db, enum part which,
                       struct lhi_error *err)
{
    char uri[URI_MAX];

    lhi_format(src->path, sizeof src->path, "%s%s", db->file, sq_part_suffix[which]);
    if (which != PART_DATABASE) {
        src->fd = open(src->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        return src->fd >= 0 ? LH_OK
                            : lhi_fail_errno(err, errno, "could not read \"%s\"", src->path);
    }
    sq_immutable_uri(db->file, uri);
    if (sqlite3_open_v2(uri, &src->db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL) != SQLITE_OK ||
        sqlite3_file_control(src->db, "main", SQLITE_FCNTL_FILE_POINTER, &src->file) != SQLITE_OK ||
        src->file == NULL || src->file->pMethods == NULL)
        return lhi_fail(err, LH_EIO, "could not read \"%s\": %s", src->path,
                        sqlite3_errmsg(src->db));
    return LH_OK;
}

static void close_source(struct source *src)
{
    if (src->fd >= 0)
        close(src->fd);
    (void)sqlite3_close(src->db);
}

static bool read_source(struct source *src, void *buf, size_t len, int64_t at)
{
    if (src->file != NULL)
        return src->file->pMethods->xRead(src->file, buf, (int)len, at) == SQLITE_OK;
    ssize_t n;
    do
        n = pread(src->fd, buf, len, at);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)len;
}

static bool write_all(int fd, const char *buf, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, buf, len);
        if (n < 0 && errno != EINTR)
            return false;
        if (n > 0) {
            buf += n;
            len -= (size_t)n;
        }
    }
    return true;
}

static int pump(struct source *src, int fd, int64_t size, char *buf, struct lhi_error *err)
{
    char head[HEAD] = "";
    size_t heads = size < HEAD ? (size_t)size : HEAD;

    for (int64_t at = 0; at < size; at += CHUNK) {
        size_t len = size - at < CHUNK ? (size_t)(size - at) : CHUNK;
        if (!read_source(src, buf, len, at))
            return lhi_fail(err, LH_EIO, "could not read \"%s\" at %lld", src->path, (long long)at);
        if (at == 0)
            memcpy(head, buf, heads);
        if (!write_all(fd, buf, len))
            return lhi_fail_errno(err, errno, "could not write a copy");
    }
    /* Every write to the store changes the change counter or the salts of the log. */
    if (!read_source(src, buf, heads, 0) || memcmp(head, buf, heads) != 0)
        return lhi_fail(err, LH_EBUSY, "\"%s\" is being written", src->path);
    return LH_OK;
}

static int copy_file(const struct db *db, struct copy *copy, enum part which, int64_t size,
                     char *buf, struct lhi_error *err)
{
    struct source src = {.fd = -1};
    int rc = make_file(copy, which, err);

    if (rc == LH_OK)
        rc = open_source(&src, db, which, err);
    if (rc == LH_OK)
        rc = pump(&src, copy->fd[which], size, buf, err);
    close_source(&src);
    return rc;
}

static int copy_all(const struct db *db, struct copy *copy, const int64_t *size,
                    struct lhi_error *err)
{
    char *buf = lhi_malloc(CHUNK);
    if (buf == NULL)
        return lhi_no_memory(err);
    int rc = LH_OK;

    for (int i = 0; i < PARTS && rc == LH_OK; i++)
        if (size[i] > 0)
            rc = copy_file(db, copy, (enum part)i, size[i], buf, err);
    LHI_POINT("scratch:filled");
    for (int i = 0; i < PARTS && rc == LH_OK; i++)
        if (size[i] > 0)
            rc = name_file(copy, (enum part)i, err);
    LHI_POINT("scratch:named");
    /* Close the descriptors before SQLite opens the files, because closing drops locks. */
    for (int i = 0; i < PARTS; i++)
        if (copy->fd[i] >= 0)
            close(copy->fd[i]);
    lhi_free(buf);
    return rc;
}

/* ---- opening it ---- */

static int open_there(const struct db *db, struct conn *conn, const char *place,
                      const int64_t *size, struct lhi_error *err)
{
    struct copy copy = {.place = place, .fd = {-1, -1, -1}};
    char path[1200];
    int rc = copy_all(db, &copy, size, err);

    if (rc == LH_OK) {
        /* Open for writing, because SQLite applies a journal or log to the copy. */
        copy_path(&copy, "", path);
        rc = sq_conn_open(conn, path, SQLITE_OPEN_READWRITE, err);
    }
    if (rc == LH_OK)
        rc = sq_exec(conn, "PRAGMA query_only = ON; SELECT 1 FROM sqlite_schema LIMIT 1", err);
    forget_names(&copy);
    if (rc != LH_OK)
        sq_conn_close(conn);
    return rc;
}

int sq_private_copy_open(const struct db *db, struct conn *conn, const int64_t size[PARTS],
                         struct lhi_error *err)
{
    const char *const places[] = {secure_getenv("TMPDIR"), "/dev/shm", "/tmp", "/var/tmp"};
    int64_t needed = SPARE + size[PART_LOG] / 64; /* the index has 8 bytes for each frame */
    char said[300] = "";
    size_t used = 0;
    int rc = LH_ENOSPC;

    for (int i = 0; i < PARTS; i++)
        needed += size[i];
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (places[i] == NULL || places[i][0] != '/')
            continue;
        int64_t room = lhi_free_bytes(places[i]);
        if (room >= 0 && room < needed)
            rc = lhi_fail(err, LH_ENOSPC, "%.80s has %lld bytes", places[i], (long long)room);
        else
            rc = open_there(db, conn, places[i], size, err);
        /* The store itself has this problem, so another folder does not help. */
        if (rc == LH_OK || rc == LH_EBUSY || rc == LH_ECORRUPT || rc == LH_EINVAL ||
            rc == LH_ENOMEM)
            return rc;
        used +=
            lhi_format(said + used, sizeof said - used, "%s%.100s", used ? ", " : "", err->text);
    }
    return lhi_fail(err, rc, "could not copy the store \"%.80s\" (%lld bytes) to read it: %s",
                    db->path, (long long)needed, said);
}
