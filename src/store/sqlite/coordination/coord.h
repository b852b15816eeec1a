/*
 * coord.h: the side file DB-lease, what the processes of one store share beside the database.
 *
 *   turnstile   one lock that every writer and checkpointer of ours passes
 *   bell        wakes idle claimers of a queue, after the commit is visible
 *   marks       how far commits have got, how far they are synced (the high-water mark)
 *   presence    who has the store open; with the dirty flag it tells an unclean stop
 *
 * Truth is in kernel locks on the file, which die with their holder; the mapped page only carries
 * hints and marks, and a missing file is made anew. See README.md in this folder.
 */
#ifndef LHI_SIDE_H
#define LHI_SIDE_H

#include "base/error.h"
#include "base/forks.h"
#include "base/log.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

struct coord_page;

struct coord {
    int fd;
    struct coord_page *page;
    char path[4200];
    bool created; /* it was not there before this open */
    const struct lhi_log *log;
    struct lhi_fork_entry fork;
    int64_t
        ahead_ms; /* of our monotonic clock before the machine's: in the page it is the machine's */
    ino_t ino;
    int64_t pid; /* ours, to be shown to whoever waits */
};

int sq_coord_open(struct coord *coord, const char *db_path, bool create, const struct lhi_log *log,
                  struct lhi_error *err);
void sq_coord_close(struct coord *coord); /* gives the locks back */

void sq_coord_remove(struct coord *coord); /* the store was refused: leave no trace of ours */

/* What the coordination file of another name says of a store. */
struct coord_view {
    char uuid[40];
    ino_t file;        /* the coordination file itself */
    uint64_t dev, ino; /* of the database */
    uint64_t committed, synced;
    bool in_use; /* a process has the store open by that name */
};

/* Look at the coordination file of `db_path` and leave it as it is. False: there is none that can be
 * trusted as one of `database`, the file that the question is about. */
bool sq_coord_look_at(const char *db_path, const struct stat *database, struct coord_view *out);

/* Presence: shared by everyone who has the store open. */
int sq_coord_present(struct coord *coord, int64_t busy_ms, struct lhi_error *err);
bool sq_coord_alone(
    struct coord *coord); /* nobody else is present; on true the lock is exclusive */
void sq_coord_share(struct coord *coord); /* … until it is shared again */

/* Writers are counted apart: the last one to leave cleanly clears the dirty flag, whoever still reads.
 * Both under the turnstile. */
bool sq_coord_join_writers(struct coord *coord); /* true: there is no other */
bool sq_coord_leave_writers(struct coord *coord);

/* The turnstile. `what` is shown to whoever waits for us. */
int sq_writer_lock(struct coord *coord, int64_t busy_ms, const char *what, struct lhi_error *err);
void sq_writer_unlock(struct coord *coord);

/* Marks; all under the turnstile, but for reading. */
uint64_t sq_coord_committed(const struct coord *coord);
void sq_coord_set_committed(struct coord *coord, uint64_t tick);
uint64_t sq_coord_synced(const struct coord *coord);
void sq_coord_raise_synced(struct coord *coord, uint64_t tick);
/* Frames the log had after the last commit of ours; what is whole of it must be no less. */
int64_t sq_coord_frames(const struct coord *coord);
void sq_coord_set_frames(struct coord *coord, int64_t frames);
void sq_coord_reset_marks(struct coord *coord, uint64_t tick);
bool sq_coord_sync_failed(const struct coord *coord);
void sq_coord_set_sync_failed(struct coord *coord, bool failed);
bool sq_coord_dirty(const struct coord *coord);
void sq_coord_set_dirty(struct coord *coord, bool dirty);
/* A crash left something to recover, and nobody has finished doing so. */
bool sq_coord_recovery_due(const struct coord *coord);
void sq_coord_set_recovery_due(struct coord *coord, bool due);
/* The device was full: some of the reserve was given up, see reserve.c. */
bool sq_coord_reserve_spent(const struct coord *coord);
void sq_coord_set_reserve_spent(struct coord *coord, bool spent);
/* The note of a repair or restore under way: what is being done, and the time in the names of its
 * files. An opener that finds it, alone, finishes or undoes it. */
enum coord_work { WORK_NONE, WORK_MAKING, WORK_REPLACING };
enum coord_work sq_coord_work(const struct coord *coord, int64_t *at);
void sq_coord_set_work(struct coord *coord, enum coord_work work, int64_t at);
/* A recovery goes on from batch to batch: claims need not help it. For a second, unless said again. */
bool sq_coord_recovering(const struct coord *coord);
void sq_coord_set_recovering(struct coord *coord, bool yes);
/* The siren wakes everybody who waits, whatever for: a process died, a worker has come, or something
 * falls due sooner than the sleepers' next look. */
uint32_t sq_maintenance_ticket(const struct coord *coord);
void sq_wake_maintenance(struct coord *coord);
bool sq_wait_maintenance(struct coord *coord, uint32_t ticket, int64_t timeout_ms);
void sq_writer_lock_announce(struct coord *coord,
                             const char *what); /* … what we are doing in there */
bool sq_coord_own(const struct coord *coord);   /* the database has nobody's tables but ours */
void sq_coord_set_own(struct coord *coord, bool own);
bool sq_writer_lock_wanted(const struct coord *coord); /* somebody waits for the turnstile */
/* The store's clock, as an offset of the machine's monotonic one: every handle judges by the same. */
int64_t sq_coord_clock(const struct coord *coord);
void sq_coord_set_clock(struct coord *coord, int64_t offset);
/* Which file the store is: device and inode of the database. */
bool sq_coord_same_file(const struct coord *coord, uint64_t dev, uint64_t ino);
void sq_coord_set_file(struct coord *coord, uint64_t dev, uint64_t ino);
uint64_t sq_coord_wal(const struct coord *coord); /* … and the inode of its log */
void sq_coord_set_wal(struct coord *coord, uint64_t ino);
const char *sq_coord_uuid(const struct coord *coord);
void sq_coord_set_uuid(struct coord *coord, const char *uuid);

/* One sync at a time over all processes. Who does not get to do it waits for the mark, not for the
 * lock, so that a sync sets everybody free whom it served. A ticket is taken before the mark is read. */
uint32_t sq_sync_ticket(const struct coord *coord);
bool sq_sync_lock_try(struct coord *coord);
void sq_sync_unlock(struct coord *coord);
void sq_sync_wait(struct coord *coord, uint32_t ticket);

/* The bell: rung for a queue it wakes as many idle claimers of that queue as there are new jobs.
 * Beside it, `changed` wakes whoever waits for any commit. A ticket taken before looking makes sure
 * that nothing rung after the look is missed. */
uint32_t sq_queue_ticket(const struct coord *coord, const uint32_t *hashes, size_t n);
uint32_t sq_queue_hash(const char *queue);
void sq_wake_queue(struct coord *coord, uint32_t queue_hash, int n);
void sq_wake_all_queues(struct coord *coord);
/* True: something was rung since the ticket, have a look. */
bool sq_wait_queue(struct coord *coord, uint32_t ticket, const uint32_t *hashes, size_t n,
                   int64_t timeout_ms);
uint32_t sq_commit_ticket(const struct coord *coord);
void sq_wake_commit(struct coord *coord);
bool sq_wait_commit(struct coord *coord, uint32_t ticket, int64_t timeout_ms);
void sq_coord_unlock_watch(struct coord *coord);
bool sq_coord_lock_watch(
    struct coord *coord); /* be the one process that watches for foreign writers */

#endif
