/*
 * Reading a store that cannot be written.
 *
 * If neither the folder nor the files can be written, SQLite reads the store only if both its -wal
 * and its -shm exist. Otherwise:
 *
 * - without a log the database file is the whole store, and is read in place as immutable;
 * - with a log, that would drop the commits in it, so a copy of both is read (private_copy.c).
 *
 * Other users, or processes with another mount of the folder, may still write. So the state of the
 * files before and after the read is compared. If they changed, they are read again, and after some
 * tries the answer is LH_EBUSY.
 */
#include "store/sqlite/reads/degraded.h"
#include "store/sqlite/open.h"

#include "base/checksum.h"
#include "base/clock.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TRIES = 5,
    FULL = 64 << 10, /* less free space counts as a full disk */
    SETTLE_MS = 20,  /* longer than a tick of the clock for file times */
};

/* ---- can the store be written? ---- */

static bool may_write(const char *path)
{
    return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0;
}

/* Why this process cannot write the store, as an errno; 0 if it can. */
static int write_error(const struct db *db)
{
    static const char *const needed[] = {"", "-lease", "-wal", "-shm"};
    char path[4200];

    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        lhi_format(path, sizeof path, "%s%s", db->file, needed[i]);
        bool ok = may_write(path);
        if (!ok && errno == ENOENT) { /* the file would have to be created */
            *strrchr(path, '/') = '\0';
            ok = may_write(path[0] ? path : "/");
        }
        if (!ok && (errno == EROFS || errno == EACCES || errno == EPERM))
            return errno;
    }
    return 0;
}

static void explain(int why, char out[96])
{
    if (why == EROFS)
        lhi_format(out, 96, "file system is read-only");
    else if (why == ENOSPC)
        lhi_format(out, 96, "device is full");
    else
        lhi_format(out, 96, "user %ld may not write here", (long)geteuid());
}

int sq_check_writable(const struct db *db, struct lhi_error *err)
{
    char reason[96];
    int why = write_error(db);

    if (why == 0)
        return LH_OK;
    explain(why, reason);
    return lhi_fail(err, LH_EREADONLY, "store \"%s\" cannot be written: %s", db->path, reason);
}

/* Log it once, and keep it for lh_store_info(). */
static void degrade(struct db *db, int why, const char *how)
{
    bool known = db->degraded[0] != '\0';
    char reason[96];

    explain(why, reason);
    lhi_format(db->degraded, sizeof db->degraded, "%s%s", reason, how);
    if (!known)
        lhi_log(&db->log, LH_LOG_WARN, "store \"%s\" is degraded: %s", db->path, db->degraded);
}

void sq_degraded_note(struct db *db)
{
    int why = write_error(db);

    db->seen = 0;
    db->in_place = false;
    if (why != 0)
        degrade(db, why, "");
    else
        db->degraded[0] = '\0';
}

/* ---- the state of the files ---- */

/* A checksum that stays the same as long as nobody writes to the files and no log or index is
 * created or removed. */
static int64_t files_state(const struct db *db, int64_t size[PARTS])
{
    struct {
        struct {
            int64_t dev, ino, size, written_s, written_ns, changed_s, changed_ns;
        } part[PARTS];
        int64_t shm;
    } seen = {0};
    char path[4200];
    struct stat st;

    for (int i = 0; i < PARTS; i++) {
        lhi_format(path, sizeof path, "%s%s", db->file, sq_part_suffix[i]);
        size[i] = 0;
        if (stat(path, &st) != 0)
            continue;
        size[i] = st.st_size;
        seen.part[i].dev = (int64_t)st.st_dev;
        seen.part[i].ino = (int64_t)st.st_ino;
        seen.part[i].size = st.st_size;
        seen.part[i].written_s = st.st_mtim.tv_sec;
        seen.part[i].written_ns = st.st_mtim.tv_nsec;
        seen.part[i].changed_s = st.st_ctim.tv_sec;
        seen.part[i].changed_ns = st.st_ctim.tv_nsec;
    }
    lhi_format(path, sizeof path, "%s-shm", db->file);
    seen.shm = stat(path, &st) == 0 ? (int64_t)st.st_ino : 0;
    int64_t sum = lhi_checksum(&seen, sizeof seen);
    return sum ? sum : 1; /* 0 means that the files were not looked at */
}

bool sq_degraded_outdated(const struct db *db)
{
    int64_t size[PARTS];
    return db->seen != 0 && files_state(db, size) != db->seen;
}

/* ---- in place ---- */

static int open_in_place(struct db *db, struct conn *conn, struct lhi_error *err)
{
    char uri[URI_MAX];

    sq_immutable_uri(db->file, uri);
    return sq_conn_open(conn, uri, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, err);
}

/* ---- opening ---- */

/* One try. LH_EBUSY: another process writes. */
static int open_once(struct db *db, struct conn *conn, struct lhi_error *err)
{
    int64_t size[PARTS], after[PARTS];
    int64_t seen = files_state(db, size);

    /* After this wait, every write gets a later file time than the ones that were compared. */
    lhi_sleep_ms(SETTLE_MS);
    bool whole = size[PART_LOG] == 0 && size[PART_JOURNAL] == 0;
    int rc = files_state(db, after) != seen ? LH_EBUSY
             : whole                        ? open_in_place(db, conn, err)
                                            : sq_private_copy_open(db, conn, size, err);
    if (rc != LH_EBUSY && files_state(db, after) == seen) {
        db->seen = seen;
        db->in_place = whole;
        return rc;
    }
    sq_conn_close(conn);
    return LH_EBUSY;
}

int sq_degraded_open(struct db *db, struct conn *conn, struct lhi_error *err)
{
    char how[96], at[40];
    int why = write_error(db), rc = LH_EBUSY;

    int64_t room = lhi_free_bytes(db->file);
    if (why == 0 && room >= 0 && room < FULL)
        why = ENOSPC; /* there is no room for the index of the log */
    if (why == 0)
        return err->status;
    sq_conn_close(conn);
    lh_time_format(lhi_wall_ms(), at, sizeof at);
    for (int i = 0; i < TRIES && rc == LH_EBUSY; i++)
        rc = open_once(db, conn, err);
    if (rc == LH_EBUSY)
        return lhi_fail(err, rc, "store \"%s\" was written to by others each time it was read",
                        db->path);
    if (rc != LH_OK)
        return rc;
    lhi_error_clear(err);
    lhi_format(how, sizeof how,
               db->in_place ? ": reading the file in place" : ": reading a copy made at %s", at);
    degrade(db, why, how);
    return LH_OK;
}
