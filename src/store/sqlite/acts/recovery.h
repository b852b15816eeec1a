/* Recovery inside a transaction, and its report. */
#ifndef LHI_SQLITE_RECOVERY_H
#define LHI_SQLITE_RECOVERY_H

#include "store/sqlite/txn.h"

/* ---- recover.c, lease.c, worker.c ---- */

/* Free expired named leases, in one bounded round. `*more`: the batch was full. */
int sq_recover_leases(struct txn *txn, size_t limit, bool by_operator, struct lhi_run *run,
                      bool *more, struct lhi_error *err);
/* Recover what a claim needs before it claims. */
int sq_recover_on_claim(struct txn *txn, struct lhi_error *err);
/* Free the named leases of a dead worker. */
int sq_free_leases_of_worker(struct txn *txn, const char *owner, const char *what, bool by_operator,
                             struct lhi_run *run, struct lhi_error *err);
int sq_clean_workers(struct txn *txn, struct lhi_run *run, struct lhi_error *err);
/* A job is recovered: free the exclusive lease of its queue, with a count and an event. */
int sq_exclusive_recover(struct txn *txn, const lh_job *job, enum lhi_cause cause,
                         struct lhi_run *run, struct lhi_error *err);

/* ---- recovery_report.c ---- */

/* The report of a run is created when the first thing is found. */
int sq_recovery_begin(struct txn *txn, struct lhi_run *run, struct lhi_error *err);
int sq_recovery_event(struct txn *txn, const struct lhi_run *run, struct event *event,
                      struct lhi_error *err);
int sq_recovery_count(struct txn *txn, struct lhi_run *run, struct lhi_error *err);

/* One step of a recovery: a job, a lease or a worker. */
struct recovery_step {
    int (*fn)(struct txn *txn, void *arg); /* writes, and counts only in the run */
    void *arg;
    const char *what;   /* the failure in words: "job 7 cannot be recovered" */
    bool by_operator;   /* log a failure even if it was logged before */
    struct event about; /* the subject of the event of a failure */
};
/* Run a step in a savepoint. If the database refuses it, by a constraint or by a user's trigger, the step is
 * undone and logged, and the rest of the recovery goes on. `*done` is false then. */
int sq_recovery_step(struct txn *txn, struct lhi_run *run, const struct recovery_step *step,
                     bool *done, struct lhi_error *err);
/* End the report, with what an open has found out about the store. */
int sq_recovery_end_report(struct txn *txn, struct lhi_run *run, const struct lhi_health *health,
                           struct lhi_error *err);
int sq_recovery_end(struct txn *txn, struct lhi_run *run, const struct lhi_health *health,
                    struct lhi_error *err);

/* ---- reads/recovery.c ---- */

/* The worker that was looked up last: a batch asks for the same one repeatedly. */
struct holder {
    struct lhi_arena *arena; /* holds the list */
    char worker[160];
    char what[96];   /* why it is dead; "": it is not known to be dead */
    bool tells;      /* the worker reports which jobs it has started */
    lh_ref *started; /* these jobs, by id */
    size_t n_started;
};
int sq_holder_look_up(struct conn *conn, const char *worker, struct holder *holder,
                      struct lhi_error *err);
/* The columns of a job that a recovery needs. False: out of memory. */
bool sq_recovery_row(sqlite3_stmt *stmt, struct lhi_arena *arena, lh_job *job);
/* Had the worker started the job? Yes, if the worker does not report what it starts. */
bool sq_had_started(const struct holder *holder, const lh_job *job);
int sq_read_suspects(struct conn *conn, enum lhi_sql which, int64_t now, struct lhi_suspects *out,
                     struct lhi_error *err);
/* Read up to `room` ids from a statement with the parameters (now, queue). */
int sq_read_ids(struct conn *conn, enum lhi_sql which, int64_t now, const char *queue, int64_t *ids,
                size_t room, size_t *n, struct lhi_error *err);

#endif
