/* The mapped page of the coordination file. Only the files in this folder include this header. */
#ifndef LHI_SQLITE_COORD_PAGE_H
#define LHI_SQLITE_COORD_PAGE_H

#include "store/sqlite/coordination/coord.h"

enum { COORD_PAGE_BYTES = 4096 };
enum { WAKE_BITS = 32 }; /* a futex distinguishes 32 groups of waiters */

/* The layout is part of the file format: every version with the magic LHSIDE1 uses it. */
struct coord_page {
    char magic[8];
    char uuid[40];
    uint64_t dev, ino; /* of the database; 0: unknown */
    uint64_t wal_ino;  /* of its log */
    uint32_t dirty;
    uint32_t sync_failed;
    uint64_t committed;
    uint64_t synced;
    int64_t frames;
    int64_t clock;          /* store time minus the machine's monotonic clock; 0: unknown */
    uint32_t lock_releases; /* futex: counts how often the writer lock was released */
    uint32_t lock_waiters;
    int64_t newcomers_wait_until; /* monotonic: until then a newcomer may not overtake a waiter */
    uint32_t queue_wakeups;       /* futex: counts queue wake-ups */
    uint32_t queue_waiters;
    uint32_t wakeups[WAKE_BITS];   /* queue wake-ups, counted by bit of the queue's hash */
    uint32_t last_hash[WAKE_BITS]; /* by bit: the hash of the queue that was woken last */
    uint32_t
        passed_on; /* how many times a woken process has passed the last queue wake-up on to another sleeper */
    uint32_t syncs; /* futex: counts syncs of the log */
    uint32_t sync_waiters;
    uint32_t commits; /* futex: counts commits */
    uint32_t commit_waiters;
    int64_t holder_pid;
    char holder_what[24];
    uint32_t recovery_due;
    uint32_t own;  /* the database has only our tables */
    uint32_t work; /* enum coord_work */
    int64_t work_at;
    uint32_t reserve_spent; /* the disk was full, and part of the reserve was given up: reserve.c */
    uint32_t maintenance_wakeups; /* futex: counts maintenance wake-ups */
    uint32_t maintenance_waiters;
    int64_t recovering; /* monotonic: a recovery is in progress until then */
};
_Static_assert(sizeof(struct coord_page) <= COORD_PAGE_BYTES, "the coordination file is one page");

/* The bytes that are locked. They lie far behind the page. */
enum {
    BYTE_WRITER_LOCK = 1 << 20,
    BYTE_PRESENT,
    BYTE_WRITERS,
    BYTE_SYNC,
    BYTE_WATCH,
    BYTE_LAST = BYTE_WATCH
};

/* A killed holder wakes nobody, so a waiter tries again after this time. */
enum { SLICE_MS = 50 };

/* The machine's monotonic clock. Processes of all time namespaces compare times in the page. */
int64_t sq_coord_machine_ms(const struct coord *coord);

#endif
