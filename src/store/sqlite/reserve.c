/*
 * Room for a full disk.
 *
 * While there is enough room, blocks are allocated behind the page of the coordination file; its
 * size stays one page. When the disk is full, new jobs are refused, and everything that ends old
 * jobs goes on: heartbeats, completes, failures, releases, recovery, pruning. These acts need
 * little room: a few frames of the log, and now and then one more page of the database. So the log
 * is checkpointed and starts again in the blocks that it has. If that is not enough, a slice of the
 * reserve is freed, and the log takes it at once, before another program can.
 *
 * Room is made before a transaction, because acts cannot be performed twice. The next writer that
 * finds enough room allocates the reserve again, and new jobs are accepted again. A file system
 * that cannot allocate blocks has no reserve; the rest works there too.
 *
 * Everything here is called under the writer lock.
 */
#include "store/sqlite/sync.h"

#include "base/hook.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    PAGE = 4096, /* of the coordination file */
    RESERVE = 4 << 20,
    SLICE = 1 << 20,       /* the reserve is allocated and freed in slices */
    PLENTY = 2 * RESERVE,  /* this much must be free before a reserve is allocated */
    LOG_MOST = 64 << 20,   /* the size that the log may reach while readers hold it back (sync.c) */
    LEFT_OVER = 256 << 10, /* new jobs never use the last free bytes */
    INDEX = 64 << 10,      /* SQLite needs this to open a store: the index of the log */
};

/* ---- how much there is ---- */

/* Free bytes on the disk, for this user; -1: unknown. */
static int64_t free_bytes(const struct db *db)
{
    struct statvfs fs;
    return fstatvfs(db->coord.fd, &fs) == 0 ? (int64_t)(fs.f_bavail * fs.f_frsize) : -1;
}

/* Bytes that are reserved, in whole slices. */
static int64_t set_aside(const struct db *db)
{
    struct stat st;
    if (fstat(db->coord.fd, &st) != 0 || st.st_blocks * 512 < PAGE)
        return 0;
    return (st.st_blocks * 512 - PAGE) / SLICE * SLICE;
}

static int64_t pragma(struct db *db, const char *text)
{
    sqlite3_stmt *stmt = NULL;
    int64_t value = 0;

    if (sqlite3_prepare_v2(db->conn.db, text, -1, &stmt, NULL) == SQLITE_OK &&
        sqlite3_step(stmt) == SQLITE_ROW)
        value = sqlite3_column_int64(stmt, 0);
    (void)sqlite3_finalize(stmt);
    return value;
}

static void log_path(const struct db *db, char out[4200])
{
    lhi_format(out, 4200, "%s-wal", db->file);
}

static int64_t log_used(struct db *db)
{
    return 32 + sq_coord_frames(&db->coord) * (24 + pragma(db, "PRAGMA page_size"));
}

/* Bytes that the log can take without another block. */
static int64_t log_room(struct db *db)
{
    char path[4200];
    struct stat st;

    log_path(db, path);
    return stat(path, &st) == 0 ? st.st_blocks * 512 - log_used(db) : 0;
}

/* Bytes for new jobs inside the database: free pages that pruning left, less the growth of the
 * database when the log is checkpointed. */
static int64_t own_room(struct db *db)
{
    struct stat st;
    int64_t page = pragma(db, "PRAGMA page_size");
    int64_t growth =
        stat(db->file, &st) == 0 ? pragma(db, "PRAGMA page_count") * page - st.st_size : 0;

    return pragma(db, "PRAGMA freelist_count") * page - (growth > 0 ? growth : 0);
}

/* ---- the reserve ---- */

bool sq_reserve_spent(const struct db *db)
{
    return sq_coord_reserve_spent(&db->coord);
}

void sq_reserve_keep(struct db *db)
{
    if (set_aside(db) < RESERVE) {
        if (free_bytes(db) <= PLENTY)
            return;
        if (fallocate(db->coord.fd, FALLOC_FL_KEEP_SIZE, PAGE, RESERVE) != 0 && errno == ENOSPC)
            return;
    }
    if (sq_reserve_spent(db))
        lhi_log(&db->log, LH_LOG_INFO, "there is room again on the device of \"%s\"", db->path);
    sq_coord_set_reserve_spent(&db->coord, false);
}

bool sq_reserve_spend(struct db *db)
{
    int64_t have = set_aside(db);

    if (have == 0)
        return false;
    if (!sq_reserve_spent(db))
        lhi_log(&db->log, LH_LOG_WARN,
                "device of \"%s\" is full: new jobs are refused, other acts use the reserve",
                db->path);
    sq_coord_set_reserve_spent(&db->coord, true);
    LHI_POINT("reserve:spent");
    /* ext4 cannot punch holes behind the end of a file, but cutting the file to its current size
     * frees everything behind it. What is still needed is allocated again at once. */
    if (ftruncate(db->coord.fd, PAGE) != 0)
        return false;
    if (have > SLICE)
        (void)fallocate(db->coord.fd, FALLOC_FL_KEEP_SIZE, PAGE, have - SLICE);
    return set_aside(db) < have;
}

/* ---- before writing ---- */

void sq_reserve_before_open(struct db *db)
{
    int64_t room = free_bytes(db);

    if (room >= 0 && room < INDEX)
        (void)sq_reserve_spend(db);
}

/* Allocate the blocks of the log in advance, so that no other program can take them. */
static bool grow_log(struct db *db, int64_t need)
{
    char path[4200];

    log_path(db, path);
    /* SQLite's locks are on the database and on the index, so closing the log drops none of
     * them. */
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    int rc = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, log_used(db) + need);
    bool full = rc != 0 && errno == ENOSPC;
    close(fd);
    return !full;
}

void sq_reserve_ready(struct db *db, int64_t wish, int64_t need)
{
    int64_t room = free_bytes(db);

    if (room > PLENTY && sq_reserve_spent(db))
        sq_reserve_keep(db);
    /* After a failed sync the next writer verifies the log first (sq_sync_after_failure). */
    if (room < 0 || room >= RESERVE || sq_coord_sync_failed(&db->coord) || log_room(db) >= wish)
        return;
    /* After a checkpoint the log starts again in the blocks that it has. */
    if (sq_coord_frames(&db->coord) > 0)
        (void)sq_db_checkpoint(db, SQLITE_CHECKPOINT_RESTART, NULL);
    while (log_room(db) < need && !grow_log(db, need) && sq_reserve_spend(db))
        ;
}

int sq_reserve_admit(struct db *db, int64_t bytes, struct lhi_error *err)
{
    bool spent = sq_reserve_spent(db);
    int64_t keep = LEFT_OVER + (spent ? PLENTY : 0), room = free_bytes(db);

    if (room < 0 || room >= 2 * (bytes + keep) + LOG_MOST)
        return LH_OK;
    /* New jobs go into the log first and into the database later. */
    int64_t log = bytes + LEFT_OVER - log_room(db);
    if (log < 0)
        log = 0;
    int64_t needed = log + bytes + keep, all = room + own_room(db);
    if (all >= needed && room >= log)
        return LH_OK;
    return lhi_fail(
        err, LH_ENOSPC,
        "no space left for new jobs in \"%s\": there is room for %lld KiB, and %lld KiB "
        "are needed%s",
        db->path, (long long)(all > 0 ? all >> 10 : 0), (long long)(needed >> 10),
        spent ? " since the reserve was given up" : "");
}
