/* Getting commits to the disk: syncs, checkpoints, and the reserve for a full disk. */
#ifndef LHI_SQLITE_SYNC_H
#define LHI_SQLITE_SYNC_H

#include "store/sqlite/db.h"

/* ---- sync.c ---- */

/* Return when transaction `tick` is synced, by this process or another. */
int sq_sync_to(struct db *db, uint64_t tick, struct lhi_error *err);
/* After a failed sync: move the log into the database before anything else is written. Under the writer
 * lock. */
int sq_sync_after_failure(struct db *db, struct lhi_error *err);
/* Under the writer lock. `*folded`: the frames that were moved into the database; may be NULL. */
int sq_db_checkpoint(struct db *db, int mode, int *folded);
/* `recovering`: the last transaction was part of a recovery. `*took_us`: 0 if no checkpoint was due. */
void sq_checkpoint_when_due(struct db *db, bool recovering, int64_t *took_us);

/* ---- wal.c ---- */

/* Count the valid frames of the log by its own checksums. Under the writer lock. */
int sq_wal_valid_frames(const char *db_path, int64_t *frames, struct lhi_error *err);

/* ---- reserve.c, all under the writer lock ---- */

/* Set the reserve aside, or refill it when there is enough room again. A failure is not reported. */
void sq_reserve_keep(struct db *db);
bool sq_reserve_spend(struct db *db); /* give up a slice of it; true: that made room */
bool sq_reserve_spent(const struct db *db);
void sq_reserve_before_open(struct db *db); /* before the database is opened for writing */
/* Before a transaction. If less than `wish` bytes are free, checkpoint the log. Then make sure that `need`
 * bytes are free, from the reserve if necessary. New jobs never use the reserve. */
void sq_reserve_ready(struct db *db, int64_t wish, int64_t need);
/* LH_ENOSPC: there is no room for `bytes` of new jobs. */
int sq_reserve_admit(struct db *db, int64_t bytes, struct lhi_error *err);

#endif
