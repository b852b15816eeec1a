/*
 * The coordination file DB-lease, which all processes of a store share:
 *
 *   writer lock    one lock for every writer and every checkpoint of ours
 *   wake-ups       of idle workers, and of processes that wait for maintenance or for a commit
 *   marks          how far commits have got, and how far they are synced (the high-water mark)
 *   presence       who has the store open; with the dirty flag it shows an unclean stop
 *
 * Only the kernel's locks on the file are authoritative; they end with their holder. The mapped page has
 * hints and marks. A missing file is created. README.md describes the protocol.
 */
#ifndef LHI_SQLITE_COORD_H
#define LHI_SQLITE_COORD_H

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
    bool created; /* this open has created the file */
    const struct lhi_log *log;
    struct lhi_fork_entry fork;
    int64_t ahead_ms; /* our monotonic clock minus the machine's, which the page uses */
    ino_t ino;
    int64_t pid; /* our pid, for the messages of waiting processes */
};

/* ---- coord.c: the file ---- */

int sq_coord_open(struct coord *coord, const char *db_path, bool create, const struct lhi_log *log,
                  struct lhi_error *err);
void sq_coord_close(struct coord *coord);  /* also releases the locks */
void sq_coord_remove(struct coord *coord); /* the open was refused: remove the file if we made it */

/* The contents of the coordination file of another path. */
struct coord_view {
    char uuid[40];
    ino_t file;        /* inode of the coordination file itself */
    uint64_t dev, ino; /* of the database */
    uint64_t committed, synced;
    bool in_use; /* a process has the store open under that path */
};

/* Read the coordination file of `db_path` without changing it. False: there is none, or a user who cannot
 * write `database` may have made it. */
bool sq_coord_look_at(const char *db_path, const struct stat *database, struct coord_view *out);

/* ---- locks.c: presence and writers ---- */

/* Every process that has the store open holds the presence lock, shared. */
int sq_coord_present(struct coord *coord, int64_t busy_ms, struct lhi_error *err);
/* Take the presence lock exclusively. False: another process has the store open. */
bool sq_coord_alone(struct coord *coord);
void sq_coord_share(struct coord *coord); /* make it shared again */

/* Writers have a lock of their own: the last one to close cleanly clears the dirty flag, even if readers
 * remain. Both under the writer lock; true: there is no other writer. */
bool sq_coord_join_writers(struct coord *coord);
bool sq_coord_leave_writers(struct coord *coord);

/* ---- locks.c: the writer lock ---- */

/* `what` is shown to processes that wait for us. */
int sq_writer_lock(struct coord *coord, int64_t busy_ms, const char *what, struct lhi_error *err);
void sq_writer_unlock(struct coord *coord);
void sq_writer_lock_announce(struct coord *coord, const char *what); /* change `what` */
bool sq_writer_lock_wanted(const struct coord *coord); /* is another process waiting? */

/* ---- locks.c: the sync lock and the watch lock ---- */

/* Only one process syncs at a time. The others wait for the mark instead of the lock, so that one sync ends
 * the wait of every process whose transaction it covers. Take the ticket before reading the mark. */
uint32_t sq_sync_ticket(const struct coord *coord);
bool sq_sync_lock_try(struct coord *coord);
void sq_sync_unlock(struct coord *coord);
void sq_sync_wait(struct coord *coord, uint32_t ticket);

/* Become the one process that watches for foreign writers. */
bool sq_coord_lock_watch(struct coord *coord);
void sq_coord_unlock_watch(struct coord *coord);

/* ---- marks.c: written under the writer lock, read by anyone ---- */

uint64_t sq_coord_committed(const struct coord *coord);
void sq_coord_set_committed(struct coord *coord, uint64_t tick);
uint64_t sq_coord_synced(const struct coord *coord);
void sq_coord_raise_synced(struct coord *coord, uint64_t tick);
/* The frames of the log after our last commit. The log must have at least as many valid frames. */
int64_t sq_coord_frames(const struct coord *coord);
void sq_coord_set_frames(struct coord *coord, int64_t frames);
void sq_coord_reset_marks(struct coord *coord, uint64_t tick);
bool sq_coord_sync_failed(const struct coord *coord);
void sq_coord_set_sync_failed(struct coord *coord, bool failed);
bool sq_coord_dirty(const struct coord *coord);
void sq_coord_set_dirty(struct coord *coord, bool dirty);

/* The database and its log, by device and inode. */
bool sq_coord_same_file(const struct coord *coord, uint64_t dev, uint64_t ino);
void sq_coord_set_file(struct coord *coord, uint64_t dev, uint64_t ino);
uint64_t sq_coord_wal(const struct coord *coord);
void sq_coord_set_wal(struct coord *coord, uint64_t ino);
const char *sq_coord_uuid(const struct coord *coord);
void sq_coord_set_uuid(struct coord *coord, const char *uuid);
bool sq_coord_own(const struct coord *coord); /* the database has only our tables */
void sq_coord_set_own(struct coord *coord, bool own);

/* A crash left something to recover, and no recovery has completed since. */
bool sq_coord_recovery_due(const struct coord *coord);
void sq_coord_set_recovery_due(struct coord *coord, bool due);
/* A recovery runs in batches, so claims need not recover. It holds for one second unless set again. */
bool sq_coord_recovering(const struct coord *coord);
void sq_coord_set_recovering(struct coord *coord, bool yes);
/* The disk was full, and part of the reserve was given up: reserve.c. */
bool sq_coord_reserve_spent(const struct coord *coord);
void sq_coord_set_reserve_spent(struct coord *coord, bool spent);
/* The note of a repair or restore in progress: its step, and the time in the names of its files. A process
 * that opens the store alone and finds a note finishes the work or undoes it. */
enum coord_work { WORK_NONE, WORK_MAKING, WORK_REPLACING };
enum coord_work sq_coord_work(const struct coord *coord, int64_t *at);
void sq_coord_set_work(struct coord *coord, enum coord_work work, int64_t at);

/* Store time minus the machine's monotonic clock: the same for all handles. */
int64_t sq_coord_clock(const struct coord *coord);
void sq_coord_set_clock(struct coord *coord, int64_t offset);

/* ---- wakeups.c: take a ticket, poll, wait with the ticket ---- */

/* A queue wake-up wakes up to n idle workers of the queue. */
uint32_t sq_queue_hash(const char *queue);
uint32_t sq_queue_ticket(const struct coord *coord, const uint32_t *hashes, size_t n);
void sq_wake_queue(struct coord *coord, uint32_t queue_hash, int n);
void sq_wake_all_queues(struct coord *coord);
/* True: there was a wake-up after the ticket, so poll again. */
bool sq_wait_queue(struct coord *coord, uint32_t ticket, const uint32_t *hashes, size_t n,
                   int64_t timeout_ms);
/* Any commit. */
uint32_t sq_commit_ticket(const struct coord *coord);
void sq_wake_commit(struct coord *coord);
bool sq_wait_commit(struct coord *coord, uint32_t ticket, int64_t timeout_ms);
/* A maintenance wake-up wakes every waiting process: a worker's process has ended, a worker has registered,
 * or something falls due before the next poll. */
uint32_t sq_maintenance_ticket(const struct coord *coord);
void sq_wake_maintenance(struct coord *coord);
bool sq_wait_maintenance(struct coord *coord, uint32_t ticket, int64_t timeout_ms);

#endif
