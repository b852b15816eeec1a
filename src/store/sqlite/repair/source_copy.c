/*
 * The damaged file: locked against other processes, and copied together with its log.
 *
 * Nothing is ever written to it. It is read through SQLite's own file, because closing a descriptor
 * of ours would drop the locks of every other connection in this process. In the copy the log is
 * applied by its own checksums, as far as they are valid. SQLite would do the same, but it may be
 * unable to open a damaged database.
 */
#include "store/sqlite/open.h"
#include "store/sqlite/repair/repair.h"
#include "store/sqlite/sync.h"

#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, FILE_HEADER = 100, LOG_HEADER = 32, FRAME_HEADER = 24, COMMON_PAGE = 4096 };

/* ---- locking ---- */

/* Every process that has the database open in WAL mode holds a shared lock on it. An exclusive lock
 * proves that there is none, and keeps new ones out. */
int sq_source_lock(struct damaged_file *source, const struct db *db, struct lhi_error *err)
{
    struct conn conn = {0};

    memset(source, 0, sizeof *source);
    int rc = sqlite3_open_v2(db->file, &source->holder,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE,
                             NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_file_control(source->holder, "main", SQLITE_FCNTL_FILE_POINTER, &source->file);
    if (rc == SQLITE_OK &&
        (rc = source->file->pMethods->xLock(source->file, SQLITE_LOCK_SHARED)) == SQLITE_OK)
        rc = source->file->pMethods->xLock(source->file, SQLITE_LOCK_EXCLUSIVE);
    if (rc == SQLITE_OK)
        return LH_OK;
    if ((rc & 0xff) == SQLITE_BUSY)
        return lhi_fail(err, LH_EBUSY,
                        "store \"%s\" is damaged, and another program has it open: stop that, and "
                        "try again",
                        db->path);
    return sq_fail(&conn, rc, err);
}

void sq_source_unlock(struct damaged_file *source)
{
    (void)sqlite3_close(source->holder);
    memset(source, 0, sizeof *source);
}

/* ---- copying ---- */

int sq_file_create(const char *file, int *fd, struct lhi_error *err)
{
    *fd = open(file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    return *fd >= 0 ? LH_OK : lhi_fail_errno(err, errno, "could not create \"%.300s\"", file);
}

static int write_all(int fd, const unsigned char *bytes, size_t len, off_t at, const char *file,
                     struct lhi_error *err)
{
    while (len > 0) {
        ssize_t n = pwrite(fd, bytes, len, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return lhi_fail_errno(err, n < 0 ? errno : ENOSPC, "could not write \"%.300s\"", file);
        bytes += n;
        at += n;
        len -= (size_t)n;
    }
    return LH_OK;
}

static int read_database(const struct damaged_file *source, const struct db *db, unsigned char *buf,
                         size_t len, off_t at, struct lhi_error *err)
{
    struct conn conn = {0};
    int rc = source->file->pMethods->xRead(source->file, buf, (int)len, at);

    if (rc == SQLITE_OK)
        return LH_OK;
    (void)sq_fail(&conn, rc, err);
    return sq_copy_failed("could not read", db->path, err);
}

static int copy_database(const struct damaged_file *source, const struct db *db, const char *to,
                         unsigned char *buf, struct lhi_error *err)
{
    sqlite3_int64 size = 0;
    int fd, rc = sq_file_create(to, &fd, err);

    if (rc != LH_OK)
        return rc;
    if (source->file->pMethods->xFileSize(source->file, &size) != SQLITE_OK)
        rc = lhi_fail(err, LH_EIO, "could not look at \"%s\"", db->path);
    for (off_t at = 0; at < size && rc == LH_OK; at += CHUNK) {
        size_t len = size - at < CHUNK ? (size_t)(size - at) : CHUNK;
        if ((rc = read_database(source, db, buf, len, at, err)) == LH_OK)
            rc = write_all(fd, buf, len, at, to, err);
    }
    close(fd);
    return rc;
}

/* Copy a log or journal, if there is one. */
static int copy_beside(const struct db *db, const char *suffix, const char *to, unsigned char *buf,
                       bool *copied, struct lhi_error *err)
{
    char from[4300], name[4300];
    int out, rc;

    *copied = false;
    lhi_format(from, sizeof from, "%s%s", db->file, suffix);
    lhi_format(name, sizeof name, "%.4280s%s", to, suffix);
    int in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (in < 0)
        return errno == ENOENT ? LH_OK
                               : lhi_fail_errno(err, errno, "could not read \"%.300s\"", from);
    if ((rc = sq_file_create(name, &out, err)) != LH_OK) {
        close(in);
        return rc;
    }
    *copied = true;
    for (off_t at = 0; rc == LH_OK;) {
        ssize_t n = pread(in, buf, CHUNK, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = lhi_fail_errno(err, errno, "could not read \"%.300s\"", from);
        if (n <= 0)
            break;
        rc = write_all(out, buf, (size_t)n, at, name, err);
        at += n;
    }
    close(in);
    close(out);
    return rc;
}

/* A full disk would do more harm than a repair that must wait. */
static int need_room(const struct db *db, struct lhi_error *err)
{
    static const char *const suffixes[] = {"", "-wal", "-journal"};
    int64_t need = CHUNK, room = lhi_free_bytes(db->file);

    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        char name[4300];
        struct stat st;
        lhi_format(name, sizeof name, "%s%s", db->file, suffixes[i]);
        need += stat(name, &st) == 0 ? (int64_t)st.st_size : 0;
    }
    if (room < 0 || room >= need)
        return LH_OK;
    return lhi_fail(err, LH_ENOSPC,
                    "no space left to repair \"%s\": a copy beside it needs %lld KiB, %lld KiB are "
                    "free",
                    db->path, (long long)(need >> 10), (long long)(room >> 10));
}

/* ---- applying the log ---- */

/* Find the last commit of the log: the number of frames up to it, and the number of pages of the
 * database then. */
static int64_t last_commit(int log, int64_t frames, size_t frame_size, uint32_t *pages)
{
    unsigned char header[FRAME_HEADER];

    for (; frames > 0; frames--) {
        if (sq_read_bytes(log, header, sizeof header,
                          LOG_HEADER + (off_t)(frames - 1) * (off_t)frame_size) &&
            (*pages = sq_read_u32(header + 4)) != 0)
            break;
    }
    return frames;
}

static int apply_log(int log, int fd, int64_t frames, uint32_t size, const char *to,
                     unsigned char *buf, struct lhi_error *err)
{
    size_t frame_size = FRAME_HEADER + size;
    uint32_t pages = 0;
    int rc = LH_OK;

    frames = last_commit(log, frames, frame_size, &pages);
    for (int64_t i = 0; i < frames && rc == LH_OK; i++) {
        if (!sq_read_bytes(log, buf, frame_size, LOG_HEADER + (off_t)i * (off_t)frame_size))
            rc = lhi_fail_errno(err, errno ? errno : EIO, "could not read the log of \"%.200s\"",
                                to);
        else if (sq_read_u32(buf) > 0 && sq_read_u32(buf) <= pages)
            rc = write_all(fd, buf + FRAME_HEADER, size,
                           (off_t)(sq_read_u32(buf) - 1) * (off_t)size, to, err);
    }
    if (rc == LH_OK && frames > 0 && ftruncate(fd, (off_t)pages * (off_t)size) != 0)
        rc = lhi_fail_errno(err, errno, "could not write \"%.300s\"", to);
    return rc;
}

static int move_log_into_copy(const char *to, int fd, uint32_t *page_size, int64_t *frames,
                              unsigned char *buf, struct lhi_error *err)
{
    char name[4300];
    unsigned char header[LOG_HEADER];
    int rc = sq_wal_valid_frames(to, frames, err);

    if (rc != LH_OK || *frames == 0)
        return rc;
    lhi_format(name, sizeof name, "%.4280s-wal", to);
    int log = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (log < 0 || !sq_read_bytes(log, header, sizeof header, 0)) {
        rc = lhi_fail_errno(err, errno ? errno : EIO, "could not read \"%.300s\"", name);
    } else {
        *page_size = sq_read_u32(header + 8);
        rc = apply_log(log, fd, *frames, *page_size, to, buf, err);
    }
    if (log >= 0)
        close(log);
    return rc;
}

/* ---- the header ---- */

static void write_u32(unsigned char *p, uint32_t value)
{
    p[0] = (unsigned char)(value >> 24);
    p[1] = (unsigned char)(value >> 16);
    p[2] = (unsigned char)(value >> 8);
    p[3] = (unsigned char)value;
}

static bool header_sound(const unsigned char *h)
{
    uint32_t size = h[16] == 0 && h[17] == 1 ? 65536 : sq_read_u16(h + 16);

    return memcmp(h, "SQLite format 3", 16) == 0 && size >= 512 && (size & (size - 1)) == 0 &&
           h[18] >= 1 && h[18] <= 2 && h[19] >= 1 && h[19] <= 2 && h[20] <= size - 480 &&
           h[21] == 64 && h[22] == 32 && h[23] == 32 && sq_read_u32(h + 44) <= 4 &&
           sq_read_u32(h + 56) <= 3;
}

/* The highest root page that the map of pages shows; 0: page 2 is no such map. */
static int highest_root(int fd, uint32_t size, uint32_t count, unsigned char *buf, uint32_t *root)
{
    uint32_t at = 0;

    *root = 0;
    for (uint32_t page = 3; page <= count; page++) {
        uint32_t map = sq_map_page_of(size, size, page);
        if (map == page)
            continue;
        if (map != at && !sq_read_bytes(fd, buf, size, (off_t)(map - 1) * (off_t)size))
            return errno;
        at = map;
        const unsigned char *entry = buf + 5 * (size_t)(page - map - 1);
        if (map == 2 && (entry[0] < 1 || entry[0] > 5 || sq_read_u32(entry + 1) > count)) {
            *root = 0;
            return 0;
        }
        if (entry[0] == 1)
            *root = page;
    }
    return 0;
}

/* The first hundred bytes say how to read the others. If they are damaged, write the header of a
 * store. Then the list of free pages is unknown, and the check reports that. */
static int rewrite_header(int fd, const char *to, uint32_t size, unsigned char *buf,
                          struct lhi_error *err)
{
    unsigned char h[FILE_HEADER];
    struct stat st;
    uint32_t root;

    if (fstat(fd, &st) != 0)
        return lhi_fail_errno(err, errno, "could not look at \"%.300s\"", to);
    if (!sq_read_bytes(fd, h, sizeof h, 0))
        return errno ? lhi_fail_errno(err, errno, "could not read \"%.300s\"", to) : LH_OK;
    if (header_sound(h)) {
        uint32_t page = sq_read_u16(h + 16) == 1 ? 65536 : sq_read_u16(h + 16);
        uint32_t there = (uint32_t)((st.st_size + page - 1) / page);
        if (sq_read_u32(h + 28) <= there)
            return LH_OK;
        /* The file is cut off: SQLite would not open it. */
        write_u32(h + 28, there);
        return write_all(fd, h, sizeof h, 0, to, err);
    }
    uint32_t count = (uint32_t)((st.st_size + size - 1) / size);
    int failed = highest_root(fd, size, count, buf, &root);
    if (failed != 0)
        return lhi_fail_errno(err, failed, "could not read \"%.300s\"", to);
    memset(h, 0, sizeof h);
    memcpy(h, "SQLite format 3", 16);
    h[16] = (unsigned char)(size == 65536 ? 0 : size >> 8);
    h[17] = size == 65536 ? 1 : 0;
    h[18] = h[19] = 1;
    h[21] = 64;
    h[22] = h[23] = 32;
    h[27] = h[95] = 1;
    write_u32(h + 28, count);
    h[43] = 1;
    h[47] = 4;
    write_u32(h + 52, root);
    h[59] = 1;
    write_u32(h + 60, (uint32_t)lhi_sqlite_migration_count);
    h[67] = root != 0;
    write_u32(h + 68, 0x4c484c44);
    write_u32(h + 96, (uint32_t)sqlite3_libversion_number());
    return write_all(fd, h, sizeof h, 0, to, err);
}

/* ---- all of it ---- */

/* SQLite rolls back a transaction that was interrupted in another journal mode. */
static void roll_back(const char *to)
{
    struct conn conn = {0};
    struct lhi_error ignored;

    if (sq_conn_open(&conn, to, SQLITE_OPEN_READWRITE, &ignored) == LH_OK)
        (void)sq_exec(&conn, "SELECT count(*) FROM sqlite_schema", &ignored);
    sq_conn_close(&conn);
}

static int copy_by(unsigned char *buf, const struct damaged_file *source, const struct db *db,
                   const char *to, bool log, int64_t *folded, struct lhi_error *err)
{
    bool copied = false, journal = false;
    uint32_t page_size = COMMON_PAGE;
    char name[4300];
    int rc = need_room(db, err);

    if (rc == LH_OK && (rc = copy_database(source, db, to, buf, err)) == LH_OK && log)
        rc = copy_beside(db, "-wal", to, buf, &copied, err);
    if (rc == LH_OK)
        rc = copy_beside(db, "-journal", to, buf, &journal, err);
    int fd = rc == LH_OK ? open(to, O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (rc == LH_OK && fd < 0)
        rc = lhi_fail_errno(err, errno, "could not open \"%.300s\"", to);
    if (rc == LH_OK && copied)
        rc = move_log_into_copy(to, fd, &page_size, folded, buf, err);
    if (rc == LH_OK)
        rc = rewrite_header(fd, to, page_size, buf, err);
    if (fd >= 0)
        close(fd);
    lhi_format(name, sizeof name, "%.4280s-wal", to);
    (void)unlink(name);
    if (rc == LH_OK && journal)
        roll_back(to);
    return rc;
}

int sq_source_copy(const struct damaged_file *source, const struct db *db, const char *to, bool log,
                   int64_t *folded, struct lhi_error *err)
{
    unsigned char *buf = lhi_malloc(CHUNK);

    *folded = 0;
    if (buf == NULL)
        return lhi_no_memory(err);
    int rc = copy_by(buf, source, db, to, log, folded, err);
    lhi_free(buf);
    return rc;
}
