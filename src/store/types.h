/*
 * types.h: what operations of a store take and return, besides the types of leasehold.h and src/rules.
 */
#ifndef LHI_STORE_TYPES_H
#define LHI_STORE_TYPES_H

#include <leasehold.h>

#include "rules/fate.h"

/* What opening found out about the store, and did to it. The core writes a report about it. */
struct lhi_health {
    bool due; /* startup recovery is due: requested, or after an unclean stop or a new boot */
    bool rows_suspect; /* compare rows and counts first, which reads every job */
    bool checked;      /* the integrity was checked */
    bool sound;        /* the integrity is good, perhaps after a repair */
    bool repair_attempted, repaired;
    int64_t wal_frames; /* checkpointed frames of the log; -1: there was no checkpoint */
    /* "integrity": the findings of the check; other names: what is inconsistent, lost or partial */
    lh_findings findings;
};

/* One recovery: what it has found and done so far, over all its batches. */
struct lhi_run {
    const char *trigger;
    bool always;        /* write a report even if nothing is found */
    bool whole;         /* everything is in scope, so afterwards nothing is left to recover */
    int64_t report;     /* the id of the report; 0: not written yet */
    int64_t started_at; /* by the store's clock; 0: not started */
    int64_t orphaned, retried, made_pending, failed, released;
    int64_t leases, dead_workers, failures;
    int64_t untold;     /* those of the failures that an earlier run has logged */
    int64_t counted[7]; /* the part of these numbers that the store's totals already include */
};

/* The number of jobs that were taken back so far. */
static inline int64_t lhi_run_reclaimed(const struct lhi_run *run)
{
    return run->retried + run->made_pending + run->failed + run->released;
}

/* A reclaimable job, and why it is. */
struct lhi_stale_job {
    lh_job job; /* without payload and result */
    enum lhi_cause cause;
    char what[96];  /* LHI_CAUSE_DEAD: what follows the worker's name, see lhi_decide_death() */
    bool unstarted; /* the worker had claimed the job but not started it */
};

/* The output of one run, before it is cut to its limit, and the size of a result that was cut. */
struct lhi_written {
    int64_t job, token;
    const lh_output *output; /* NULL: none */
    int64_t result_bytes;    /* 0: the result was not cut */
};

/* ---- moves ---- */

/* The part of a store in a move. A source, a moved store and a target refuse all other acts. */
enum lhi_part {
    LHI_PART_NONE,
    LHI_PART_SOURCE, /* its rows are being copied */
    LHI_PART_GONE,   /* its rows are in another store now */
    LHI_PART_TARGET, /* rows are being copied into it */
    LHI_PART_FILLED, /* it was a target; the move is finished */
};

/* The state of a store, as far as a move needs it. */
struct lhi_standing {
    char uuid[40];
    int64_t epoch;
    int64_t last_job, last_event, last_report; /* the highest ids ever used */
    int64_t rows;                              /* that a move would copy */
    bool empty;                                /* it never had a job, and has no settings */
    enum lhi_part part;
    char move[40], other[40]; /* the id of the move; the uuid of the other store */
};

enum lhi_move_step {
    LHI_MOVE_CLOSE,   /* source: refuse other acts; LH_ESTATE while a job is running */
    LHI_MOVE_PREPARE, /* target: accept rows; it is empty, or half filled by the same source */
    LHI_MOVE_PUT,     /* target: write rows of one table */
    LHI_MOVE_LEAVE,   /* source: record that its rows are in the target */
    LHI_MOVE_FINISH,  /* target: continue the ids and the epoch of the source, accept all acts */
    LHI_MOVE_REOPEN,  /* source: the move is abandoned, accept all acts */
};

#endif
