/* The handle of a SQLite store. README.md describes the protocol. */
#ifndef LHI_SQLITE_DB_H
#define LHI_SQLITE_DB_H

#include "base/sys.h"
#include "store/death_watch.h"
#include "store/sqlite/coordination/coord.h"
#include "store/sqlite/files/fork.h"
#include "store/sqlite/stmt.h"
#include "store/store.h"

#include <pthread.h>
#include <sqlite3.h>
#include <sys/types.h>

struct call; /* one perform() in the queue of the group commit, group_commit.c */

struct db {
    struct conn conn; /* for writing; the leading thread uses it under the writer lock */
    struct coord coord;
    struct fork_guard fork_guard;
    char path[1024];    /* as the caller gave it: for messages */
    char file[4096];    /* absolute, so it does not depend on the working directory */
    char degraded[256]; /* why the store can only be read, or "" */
    int64_t seen;       /* degraded: a checksum over the state of its files; 0: it is read live */
    bool in_place;      /* degraded: the files are read in place, not from a copy */
    dev_t dev;          /* of the database file */
    ino_t ino;
    uint64_t wal_ino, shm_ino; /* of its log, and of the index of the log; 0: not opened */
    uint32_t links;            /* the number of names of the database when last checked */
    lh_open_opts opts;
    struct lhi_log log;
    struct lhi_health *health; /* while opening */
    bool alone;                /* while opening: no other process has the store open */
    bool fresh;                /* while opening: this open has created the tables */
    bool known;                /* while opening: the coordination file names this database file */
    char boot[40];
    struct lhi_time_ns time;
    sqlite3_file *wal; /* the file of the log, to sync it; belongs to conn */

    /* group commit */
    pthread_mutex_t mutex;
    struct call *queue_head, *queue_tail;
    bool leading;
    int stopped; /* the status of a failure that stopped this handle */
    int wal_frames;
    pthread_mutex_t sync_mutex;
    int64_t stuck_sync; /* the ticket of another process's sync that did not end; -1: none */

    /* Caches for one `generation` of the settings. Only the leading thread uses them. */
    int64_t generation;
    int64_t stuck_until; /* leases that ended up to this time stay: recovery is off for them */
    int64_t epoch;
    lh_policies policies;
    char **paused;
    size_t n_paused;
    char closed[480]; /* why only a move may write here, or "" */

    int64_t clock; /* store time minus the machine's monotonic clock; any thread reads it */

    /* reading */
    pthread_mutex_t read_mutex;
    struct conn reader;
    int64_t read_deadline;

    /* death_watch.c */
    struct lhi_death_watch deaths;
    struct conn death_watch_conn;

    /* foreign_writers.c */
    pthread_mutex_t watch_mutex;
    pthread_t watcher;
    bool watching;
    int watch_stop[2];
};

/* ---- group_commit.c ---- */
int sq_db_perform(void *self, struct lhi_act *acts, size_t n, struct lhi_error *err);

/* ---- reads/read.c ---- */
int sq_db_read(void *self, struct lhi_act *act, struct lhi_error *err);

#endif
