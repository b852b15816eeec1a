/* The transaction of an act, and what acts use inside it. */
#ifndef LHI_SQLITE_TXN_H
#define LHI_SQLITE_TXN_H

#include "store/sqlite/db.h"

/* What one transaction changed in one queue. */
struct tally {
    struct tally *next;
    const char *queue;
    int64_t state[LH_CANCELLED + 1];
    int64_t enqueued, claimed, completed, failed, recovered, ended, wait_ms, run_ms;
    int wake; /* jobs that became pending: that many idle workers are woken */
};

struct txn {
    struct db *db;
    struct conn *conn;
    int64_t now;   /* store time: elapsed time, readable as a wall-clock time */
    int64_t wall;  /* wall-clock time: run_at and expires_at are compared with it */
    int64_t tick;  /* the number of this transaction */
    bool durable;  /* it contains something that must be synced before it is acknowledged */
    bool changed;  /* something was written */
    bool anchored; /* the anchor of the clock was renewed */
    bool reloaded; /* an act changed settings, and they were read again */
    bool gone;     /* SQLite has rolled the transaction back: nothing may go on in it */
    bool
        run_goes_on; /* a recovery goes on after it: the coordination file is updated after the commit */
    bool run_over;      /* it ends a recovery: likewise */
    bool all_recovered; /* run_over, and nothing is left to recover after a crash */
    bool fenced;        /* the epoch was raised because a row was damaged */
    bool own_damage;    /* an act refuses a damaged row; the other acts of the transaction go on */
    bool falls_due;     /* something falls due before the processes that wait would poll again */
    struct tally *tallies;  /* newest first, in the arena; pointers to them stay valid */
    struct lhi_arena arena; /* lives as long as the transaction */
    /* The policy that was asked for last: a batch asks for the same one repeatedly. */
    char policy_queue[160], policy_kind[160];
    lh_policy policy;
    bool policy_valid;
    struct logged *logs; /* newest first; they are logged after the commit */
};

/* Run fn in a transaction of its own, without group commit. Only used while opening. */
int sq_txn_alone(struct db *db, int (*fn)(struct txn *, void *, struct lhi_error *), void *arg,
                 struct lhi_error *err);
struct tally *sq_txn_tally(struct txn *txn, const char *queue, struct lhi_error *err);
/* Drop what this transaction has counted for a queue, because the queue is deleted. */
void sq_txn_forget_tally(struct txn *txn, const char *queue);
void sq_tally_move(struct tally *tally, lh_state from, lh_state to);
const lh_policy *sq_txn_policy(struct txn *txn, const char *queue, const char *kind);
/* Write to the database what this transaction has counted so far. Needed before a statement that changes
 * or reads lh_queue itself; a delete of jobs does so, by its trigger. */
int sq_txn_count(struct txn *txn, struct lhi_error *err);
/* Run fn in a savepoint. If it fails, its writes, log lines and flags are undone, but its counts of queues are
 * not: fn must count only after its last step that can fail. */
int sq_txn_savepoint(struct txn *txn, int (*fn)(struct txn *, void *), void *arg,
                     struct lhi_error *err);
/* The same, but the counts are undone too. */
int sq_txn_guarded(struct txn *txn, int (*fn)(struct txn *, void *), void *arg,
                   struct lhi_error *err);
int64_t sq_txn_next_token(const struct txn *txn, int64_t token);
/* Log a line after the commit. It is dropped if the transaction is rolled back. */
void sq_txn_log(struct txn *txn, int level, const lh_log_entry *about, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void sq_txn_write_logs(struct txn *txn); /* after the commit */
/* The transaction wrote something that falls due in `in_ms`. */
void sq_txn_falls_due(struct txn *txn, int64_t in_ms);
void sq_db_free_caches(struct db *db);
/* Read the settings again: policies, pauses, epoch. */
int sq_txn_reload(struct txn *txn, struct lhi_error *err);

struct event {
    const char *type;
    int64_t job;
    const char *queue, *worker, *lease;
    lh_state from, to;
    const char *actor, *reason;
    int64_t token;
    const char *data;
    int64_t attempt, max_attempts; /* 0: not known */
    const char *action;            /* of a recovery */
    int64_t report;
};
int sq_put_event(struct conn *conn, int64_t at, const struct event *event, struct lhi_error *err);
int sq_txn_event(struct txn *txn, const struct event *event, struct lhi_error *err);

/* The steps of a transaction, for the leading thread. */
int sq_txn_begin(struct txn *txn, struct db *db, struct lhi_error *err);
int sq_txn_flush(struct txn *txn, struct lhi_error *err); /* writes the counts of the queues */
int sq_txn_commit(struct txn *txn, struct lhi_error *err);
void sq_txn_rollback(struct txn *txn);

#endif
