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

struct side_page;

struct side {
    int fd;
    struct side_page *page;
    char path[4200];
    bool created; /* it was not there before this open */
    const struct lhi_log *log;
    struct lhi_fork_entry fork;
    int64_t
        ahead_ms; /* of our monotonic clock before the machine's: in the page it is the machine's */
    ino_t ino;
    int64_t pid; /* ours, to be shown to whoever waits */
};

int side_open(struct side *side, const char *db_path, bool create, const struct lhi_log *log,
              struct lhi_error *err);
void side_close(struct side *side); /* gives the locks back */

void side_remove(struct side *side); /* the store was refused: leave no trace of ours */

/* What the coordination file of another name says of a store. */
struct side_peek {
    char uuid[40];
    ino_t file;        /* the coordination file itself */
    uint64_t dev, ino; /* of the database */
    uint64_t committed, synced;
    bool in_use; /* a process has the store open by that name */
};

/* Look at the coordination file of `db_path` and leave it as it is. False: there is none that can be
 * trusted as one of `database`, the file that the question is about. */
bool side_look_at(const char *db_path, const struct stat *database, struct side_peek *out);

/* Presence: shared by everyone who has the store open. */
int side_present(struct side *side, int64_t busy_ms, struct lhi_error *err);
bool side_alone(struct side *side); /* nobody else is present; on true the lock is exclusive */
void side_share(struct side *side); /* … until it is shared again */

/* Writers are counted apart: the last one to leave cleanly clears the dirty flag, whoever still reads.
 * Both under the turnstile. */
bool side_join_writers(struct side *side); /* true: there is no other */
bool side_leave_writers(struct side *side);

/* The turnstile. `what` is shown to whoever waits for us. */
int side_enter(struct side *side, int64_t busy_ms, const char *what, struct lhi_error *err);
void side_leave(struct side *side);

/* Marks; all under the turnstile, but for reading. */
uint64_t side_committed(const struct side *side);
void side_set_committed(struct side *side, uint64_t tick);
uint64_t side_synced(const struct side *side);
void side_raise_synced(struct side *side, uint64_t tick);
/* Frames the log had after the last commit of ours; what is whole of it must be no less. */
int64_t side_frames(const struct side *side);
void side_set_frames(struct side *side, int64_t frames);
void side_reset_marks(struct side *side, uint64_t tick);
bool side_sync_failed(const struct side *side);
void side_set_sync_failed(struct side *side, bool failed);
bool side_dirty(const struct side *side);
void side_set_dirty(struct side *side, bool dirty);
/* A crash left something to recover, and nobody has finished doing so. */
bool side_recovery_due(const struct side *side);
void side_set_recovery_due(struct side *side, bool due);
/* The device was full: some of the reserve was given up, see reserve.c. */
bool side_reserve_spent(const struct side *side);
void side_set_reserve_spent(struct side *side, bool spent);
/* The note of a repair or restore under way: what is being done, and the time in the names of its
 * files. An opener that finds it, alone, finishes or undoes it. */
enum side_work { SIDE_IDLE, SIDE_MAKING, SIDE_SWAPPING };
enum side_work side_work(const struct side *side, int64_t *at);
void side_set_work(struct side *side, enum side_work work, int64_t at);
/* A recovery goes on from batch to batch: claims need not help it. For a second, unless said again. */
bool side_recovering(const struct side *side);
void side_set_recovering(struct side *side, bool yes);
/* The siren wakes everybody who waits, whatever for: a process died, a worker has come, or something
 * falls due sooner than the sleepers' next look. */
uint32_t side_siren(const struct side *side);
void side_sound_siren(struct side *side);
bool side_wait_siren(struct side *side, uint32_t ticket, int64_t timeout_ms);
void side_announce(struct side *side, const char *what); /* … what we are doing in there */
bool side_own(const struct side *side); /* the database has nobody's tables but ours */
void side_set_own(struct side *side, bool own);
bool side_waited(const struct side *side); /* somebody waits for the turnstile */
/* The store's clock, as an offset of the machine's monotonic one: every handle judges by the same. */
int64_t side_clock(const struct side *side);
void side_set_clock(struct side *side, int64_t offset);
/* Which file the store is: device and inode of the database. */
bool side_same_file(const struct side *side, uint64_t dev, uint64_t ino);
void side_set_file(struct side *side, uint64_t dev, uint64_t ino);
uint64_t side_wal(const struct side *side); /* … and the inode of its log */
void side_set_wal(struct side *side, uint64_t ino);
const char *side_uuid(const struct side *side);
void side_set_uuid(struct side *side, const char *uuid);

/* One sync at a time over all processes. Who does not get to do it waits for the mark, not for the
 * lock, so that a sync sets everybody free whom it served. A ticket is taken before the mark is read. */
uint32_t side_sync_ticket(const struct side *side);
bool side_sync_try(struct side *side);
void side_sync_done(struct side *side);
void side_sync_wait(struct side *side, uint32_t ticket);

/* The bell: rung for a queue it wakes as many idle claimers of that queue as there are new jobs.
 * Beside it, `changed` wakes whoever waits for any commit. A ticket taken before looking makes sure
 * that nothing rung after the look is missed. */
uint32_t side_bell(const struct side *side, const uint32_t *hashes, size_t n);
uint32_t side_queue_hash(const char *queue);
void side_ring(struct side *side, uint32_t queue_hash, int n);
void side_ring_all(struct side *side);
/* True: something was rung since the ticket, have a look. */
bool side_wait(struct side *side, uint32_t ticket, const uint32_t *hashes, size_t n,
               int64_t timeout_ms);
uint32_t side_changes(const struct side *side);
void side_changed(struct side *side);
bool side_wait_change(struct side *side, uint32_t ticket, int64_t timeout_ms);
void side_end_watch(struct side *side);
bool side_take_watch(struct side *side); /* be the one process that watches for foreign writers */

#endif
