/*
 * How commits get to the disk, and the log into the database.
 *
 * Commits are synced after the writer lock is released, once for all threads and processes that
 * wait. A failed sync is never repeated, because afterwards the kernel takes the lost pages for
 * clean. It is flagged in the coordination file, and the next writer moves the whole log into the
 * database before anything more is acknowledged.
 */
#include "store/sqlite/sync.h"
#include "store/sqlite/files/files.h"
#include "store/sqlite/open.h"

#include "base/clock.h"
#include "base/hook.h"

enum {
    /* less than 1000, at which another program's connection would checkpoint */
    CHECKPOINT_FRAMES = 800,
    SPARED_FRAMES = 960,
    TRUNCATE_BYTES = 64 << 20,
    SHARE_MS = 1000, /* how long to wait for another process's sync */
};

/* ---- checkpoints ---- */

int sq_db_checkpoint(struct db *db, int mode, int *folded)
{
    int frames = 0, moved = 0;
    /* Do not wait for readers: every other writer would wait for us. */
    sq_conn_set_busy_wait(&db->conn, false);
    int rc;
    do /* the database may have to grow for a checkpoint */
        rc = sqlite3_wal_checkpoint_v2(db->conn.db, "main", mode, &frames, &moved);
    while ((rc & 0xff) == SQLITE_FULL && sq_reserve_spend(db));
    sq_conn_set_busy_wait(&db->conn, true);

    LHI_POINT("checkpoint:after");
    if (folded != NULL)
        *folded = moved > 0 ? moved : 0;
    if (rc == SQLITE_OK && frames == moved) {
        /* Everything is in the database file and synced. */
        sq_coord_raise_synced(&db->coord, sq_coord_committed(&db->coord));
        db->wal_frames = 0;
        sq_coord_set_frames(&db->coord, 0);
    } else if (rc != SQLITE_OK && (rc & 0xff) != SQLITE_BUSY) {
        lhi_log(&db->log, LH_LOG_WARN, "checkpoint failed: %s", sqlite3_errmsg(db->conn.db));
        /* The error may have been a failed sync, also of the log. Then what is behind it cannot be
         * trusted. */
        if ((rc & 0xff) == SQLITE_IOERR)
            sq_coord_set_sync_failed(&db->coord, true);
    }
    return rc;
}

void sq_checkpoint_when_due(struct db *db, bool recovering, int64_t *took_us)
{
    /* After a failed sync the next writer verifies the log first (sq_sync_after_failure). */
    if (db->wal_frames < CHECKPOINT_FRAMES || sq_coord_sync_failed(&db->coord))
        return;
    /* A recovery in progress writes most of the log and checkpoints it. But the checkpoint must not
     * come so late that another program's connection does it. */
    if (!recovering && sq_coord_recovering(&db->coord) && db->wal_frames < SPARED_FRAMES)
        return;
    int64_t began = lhi_mono_us();
    /* A reader may keep the log from starting again. Then it grows until it is truncated. */
    bool outsized = (int64_t)db->wal_frames * 4096 > TRUNCATE_BYTES;
    (void)sq_db_checkpoint(db, outsized ? SQLITE_CHECKPOINT_TRUNCATE : SQLITE_CHECKPOINT_RESTART,
                           NULL);
    *took_us = lhi_mono_us() - began;
}

/* After a failed sync it is unknown what of the log is on the disk. The next writer moves all of it
 * into the database file and syncs that, before anything more is acknowledged. */
int sq_sync_after_failure(struct db *db, struct lhi_error *err)
{
    int64_t whole;
    int rc;

    if (!sq_coord_sync_failed(&db->coord))
        return LH_OK;
    if (sq_db_moved(db))
        return sq_db_stop_moved(db, err);
    if ((rc = sq_wal_valid_frames(db->file, &whole, err)) < 0)
        return rc;
    if (whole < sq_coord_frames(&db->coord))
        return lhi_fail(err, LH_ECORRUPT,
                        "an earlier sync of \"%s-wal\" failed and %lld of its %lld frames are "
                        "damaged",
                        db->path, (long long)(sq_coord_frames(&db->coord) - whole),
                        (long long)sq_coord_frames(&db->coord));
    if (sq_db_checkpoint(db, SQLITE_CHECKPOINT_TRUNCATE, NULL) != SQLITE_OK)
        return lhi_fail(err, LH_EIO,
                        "an earlier sync of \"%s-wal\" failed and the log could not be moved into "
                        "the database: %s",
                        db->path, sqlite3_errmsg(db->conn.db));
    sq_coord_set_sync_failed(&db->coord, false);
    lhi_log(&db->log, LH_LOG_WARN, "an earlier sync failed: the log was moved into the database");
    return LH_OK;
}

/* ---- syncing ---- */

/* The file was replaced. The marks belong to the new file and say nothing about our commits. */
static int replaced(struct db *db, struct lhi_error *err)
{
    (void)sq_db_stop_moved(db, err);
    err->status = LH_EUNKNOWN;
    return LH_EUNKNOWN;
}

/* Sync the log for every caller whose commit is in it by now. */
static void sync_now(struct db *db)
{
    uint64_t reached = sq_coord_committed(&db->coord);
    bool synced = db->wal->pMethods->xSync(db->wal, SQLITE_SYNC_NORMAL) == SQLITE_OK;

    if (sq_db_moved(db))
        return; /* the caller that asked for the sync reports it */
    if (synced && !sq_coord_sync_failed(&db->coord))
        sq_coord_raise_synced(&db->coord, reached);
    else
        sq_coord_set_sync_failed(&db->coord, true);
}

/* Return when everything up to `tick` is on the disk. A caller that arrives during a sync waits for
 * it. Then its transaction is synced, or it syncs for all callers that arrived meanwhile. */
int sq_sync_to(struct db *db, uint64_t tick, struct lhi_error *err)
{
    int64_t start = lhi_mono_ms();

    LHI_POINT("txn:before_sync");
    for (;;) {
        uint32_t ticket = sq_sync_ticket(&db->coord);
        bool done = sq_coord_synced(&db->coord) >= tick;
        if (sq_db_moved(db))
            return replaced(db, err);
        if (done)
            break;
        if (sq_coord_sync_failed(&db->coord))
            return lhi_fail(err, LH_EUNKNOWN,
                            "could not sync \"%s-wal\": whether the act survives a power loss is "
                            "unknown",
                            db->path);
        /* The lock excludes other handles, the mutex other threads of this handle. */
        bool ours = pthread_mutex_trylock(&db->sync_mutex) == 0;
        if (ours && sq_sync_lock_try(&db->coord)) {
            if (sq_coord_synced(&db->coord) < tick && !sq_coord_sync_failed(&db->coord))
                sync_now(db);
            sq_sync_unlock(&db->coord);
            pthread_mutex_unlock(&db->sync_mutex);
            continue;
        }
        if (ours)
            pthread_mutex_unlock(&db->sync_mutex);
        /* Sharing a sync only saves work. If the syncing process does not finish in time, we sync
         * ourselves, and do not wait again until a sync of that process has ended. */
        if (lhi_mono_ms() - start > SHARE_MS ||
            __atomic_load_n(&db->stuck_sync, __ATOMIC_RELAXED) == (int64_t)ticket) {
            __atomic_store_n(&db->stuck_sync, (int64_t)ticket, __ATOMIC_RELAXED);
            sync_now(db);
            continue;
        }
        sq_sync_wait(&db->coord, ticket);
    }
    LHI_POINT("txn:after_sync");
    return LH_OK;
}
