/* The acts, and what they share. */
#ifndef LHI_SQLITE_ACTS_H
#define LHI_SQLITE_ACTS_H

#include "store/sqlite/txn.h"

typedef int act_fn(struct txn *txn, struct lhi_act *act);
act_fn sq_act_enqueue, sq_act_claim, sq_act_heartbeat, sq_act_complete, sq_act_fail, sq_act_release,
    sq_act_output, sq_act_release_worker, sq_act_cancel, sq_act_retry, sq_act_delete,
    sq_act_reschedule, sq_act_queue_pause, sq_act_queue_purge, sq_act_queue_delete,
    sq_act_policy_set, sq_act_scope_set, sq_act_schedule_set, sq_act_schedule_remove, sq_act_lease,
    sq_act_worker_register, sq_act_worker_heartbeat, sq_act_worker_stop, sq_act_worker_started,
    sq_act_worker_sessions, sq_act_worker_degraded, sq_act_recover, sq_act_maintain, sq_act_prune,
    sq_act_recount, sq_act_move;

/* ---- lists of items, operator.c ---- */

/* Run `one` for each item of an act. act->status[i] is the outcome of item i, act->err the first error. A
 * failure of SQLite ends the whole act. */
typedef int item_fn(struct txn *txn, struct lhi_act *act, size_t i, struct lhi_error *err);
int sq_each_item(struct txn *txn, struct lhi_act *act, item_fn *one,
                 int64_t (*id_of)(const struct lhi_act *, size_t));
/* The row of a job, which the caller reads and resets. NULL: there is none, and err is set. */
sqlite3_stmt *sq_get_job(struct txn *txn, int64_t id, struct lhi_error *err);

/* ---- enqueue.c ---- */

/* Insert jobs. An act and an enqueue on the user's own connection share this. */
struct insert_context {
    struct conn *conn;
    int64_t now, wall;
    const lh_policies *policies;
    int64_t last_id; /* the highest id ever given; 0: not read yet */
};
int sq_insert_job(struct insert_context *ctx, const char *queue, const lh_new_job *job,
                  lh_enqueued *out, struct lhi_error *err);

/* ---- queue_limits.c ---- */

bool sq_queue_paused(const struct db *db, const char *queue);
/* How many of `want` jobs may be claimed now; `*bucket` is the level of the queue's rate. */
int sq_claims_allowed(struct txn *txn, const lh_policy *policy, const char *queue, size_t want,
                      size_t *allowed, int64_t *bucket, struct lhi_error *err);

/* ---- damaged_job.c: jobs whose row does not match its checksums ---- */

enum damage { DAMAGED_NOT, DAMAGED_PAYLOAD, DAMAGED_NAMES, DAMAGED_ROW };
struct new_row {
    int64_t id, max_attempts, created_at, run_at, expires_at, lease_ms, backoff_ms, backoff_cap_ms;
    int priority;
    lh_state state;
};
int64_t sq_new_row_sum(const struct new_row *row); /* state_sum for job_insert */
int64_t sq_name_sum(const char *queue, const char *kind, const char *key);
enum damage sq_job_damage(sqlite3_stmt *stmt, const lh_job *job); /* payload and names; SELECT * */
enum damage sq_summed_damage(sqlite3_stmt *stmt);                 /* a row of check_payloads */
bool sq_names_damaged(sqlite3_stmt *stmt);                        /* a row of check_names */
const char *sq_damage_words(enum damage damage);
/* Fail a damaged job so that no worker runs it. `*held`: it was failed, and the caller counts it. Otherwise
 * its row cannot be changed, and the job is skipped. */
int sq_set_job_aside(struct txn *txn, int64_t id, int64_t token, enum damage damage, bool *held,
                     struct lhi_error *err);
/* Skip a job whose row cannot be read or changed: log it once, and let the next open repair the store. */
int sq_skip_job(struct txn *txn, int64_t id, struct lhi_error *err);
/* Did a statement on this job end with `rc` because the row is damaged? Then err is cleared, and the
 * transaction may go on. */
bool sq_is_damage(struct txn *txn, int64_t id, int rc, struct lhi_error *err);

/* ---- holder.c and operator.c ---- */

/* The quarantine of a job: the token and the deadline of its revoked lease, 0 if there is none. */
int sq_quarantine_get(struct txn *txn, const char *queue, int64_t job, int64_t *token,
                      int64_t *until, struct lhi_error *err);
int sq_quarantine_put(struct txn *txn, const char *queue, int64_t job, int64_t token, int64_t until,
                      struct lhi_error *err);
/* Release a running job, for a release by an operator and for the stop of a worker. */
int sq_release_by_operator(struct txn *txn, int64_t id, int64_t token, int64_t delay_ms, bool now,
                           const char *actor, struct lhi_error *err);
/* Call fn for each job that the worker holds. */
int sq_each_job_of_worker(struct txn *txn, const char *worker,
                          int (*fn)(struct txn *, int64_t id, int64_t token, void *arg,
                                    struct lhi_error *),
                          void *arg, struct lhi_error *err);

/* ---- the exclusive lease of a queue, lease.c: it belongs to one job ---- */

int sq_exclusive_acquire(struct txn *txn, const char *queue, int64_t job, const char *worker,
                         int64_t until, bool *got, struct lhi_error *err);
int sq_exclusive_follow(struct txn *txn, const char *queue, int64_t job, int64_t until,
                        struct lhi_error *err);
int sq_exclusive_end(struct txn *txn, const char *queue, int64_t job, struct lhi_error *err);

/* ---- one bounded round of what falls due; `*more`: the batch was full ---- */

int sq_promote_due(struct txn *txn, size_t limit, int64_t *promoted, bool *more,
                   struct lhi_error *err);
int sq_expire_overdue(struct txn *txn, size_t limit, int64_t *expired, bool *more,
                      struct lhi_error *err);
int sq_run_due_schedules(struct txn *txn, size_t limit, int64_t *enqueued, bool *more,
                         struct lhi_error *err);

#endif
