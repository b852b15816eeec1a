/*
 * Recovery of jobs and workers inside a transaction.
 *
 * Whether a job is reclaimable is decided here, from its row as this transaction reads it. The
 * write that takes the job back repeats the guard.
 */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/acts/recovery.h"

#include "base/clock.h"
#include "base/hook.h"

#include <string.h>

enum { LEAST = 8 }; /* rows that a batch handles before it ends to let others write */

/* ---- one job ---- */

static void count_action(struct lhi_run *run, const struct lhi_fate *fate)
{
    if (fate->state == LH_FAILED)
        run->failed++;
    else if (strcmp(fate->action, "retry") == 0)
        run->retried++;
    else if (strcmp(fate->action, "pending") == 0)
        run->made_pending++;
    else
        run->released++;
}

static void log_recovered(struct txn *txn, const lh_job *job, const char *reason)
{
    sq_txn_log(txn, LH_LOG_WARN,
               &(lh_log_entry){.job = job->id,
                               .token = job->token,
                               .attempt = job->attempt,
                               .queue = job->queue,
                               .worker = job->worker,
                               .reason = reason},
               "job %lld recovered: %s", (long long)job->id, reason);
}

/* One job, and what the recovery does with it. */
struct taking {
    const lh_job *job;
    struct lhi_fate fate;
    lh_state to;
    int64_t run_at;
    bool
        hold; /* a live lease revoked by an operator: the job stays back until its holder answers */
    enum lhi_cause cause;
    struct lhi_run *run;
    struct lhi_error *err;
};

/* The row does not match its checksum. Its values cannot be trusted, so no worker gets the job. */
static int write_damaged(struct txn *txn, struct taking *t)
{
    lhi_error_clear(t->err);
    bool held = false;
    int rc = sq_set_job_aside(txn, t->job->id, t->job->token, DAMAGED_ROW, &held, t->err);
    if (rc < 0)
        return rc;
    if (!held)
        return lhi_fail(t->err, LH_EINVAL, "its row cannot be read or contradicts its index");
    t->to = LH_FAILED;
    t->hold = false;
    t->fate.poison = false;
    t->fate.action = "failed";
    lhi_format(t->fate.reason, sizeof t->fate.reason, "CORRUPT: %s", sq_damage_words(DAMAGED_ROW));
    return LH_OK;
}

static int write_job(struct txn *txn, struct taking *t)
{
    const lh_job *job = t->job;
    const struct lhi_fate *fate = &t->fate;
    int n = sq_run(txn->conn, LHI_SQL_JOB_RECOVER, t->err, "tIiiiIitiii", lh_state_name(t->to),
                   t->run_at, fate->attempt, fate->recoveries, sq_txn_next_token(txn, job->token),
                   t->to == LH_FAILED ? txn->now : (int64_t)0, txn->now, fate->reason, job->id,
                   job->token, job->lease_until);
    if (n < 0 && sq_is_damage(txn, job->id, n, t->err))
        return write_damaged(txn, t);
    if (n < 0)
        return n;
    txn->changed = true;
    /* The row was read in this transaction, so only a trigger can have prevented the write. */
    return n > 0 ? LH_OK : lhi_fail(t->err, LH_EINVAL, "the change had no effect on the row");
}

/* All writes that the database may refuse. */
static int write_recovery(struct txn *txn, void *arg)
{
    struct taking *t = arg;
    const lh_job *job = t->job;
    int rc = write_job(txn, t);

    LHI_POINT("job_recover:inside");
    if (rc < 0 || (rc = sq_recovery_begin(txn, t->run, t->err)) < 0 ||
        (t->hold && (rc = sq_quarantine_put(txn, job->queue, job->id, job->token, job->lease_until,
                                            t->err)) < 0))
        return rc;
    if (!t->hold && txn->db->policies.n > 0 &&
        (rc = sq_exclusive_recover(txn, job, t->cause, t->run, t->err)) < 0)
        return rc;
    return sq_recovery_event(
        txn, t->run,
        &(struct event){.type = t->fate.poison ? "job.poisoned" : "job.recovered",
                        .job = job->id,
                        .queue = job->queue,
                        .worker = job->worker,
                        .from = LH_RUNNING,
                        .to = t->to,
                        .reason = t->fate.reason,
                        .token = job->token,
                        .attempt = t->fate.shown_attempt,
                        .max_attempts = job->max_attempts,
                        .action = t->fate.action},
        t->err);
}

static int take_job(struct txn *txn, struct taking *t, bool by_operator, bool *done)
{
    const lh_job *job = t->job;
    char what[64];

    lhi_format(what, sizeof what, "job %lld cannot be recovered", (long long)job->id);
    return sq_recovery_step(txn, t->run,
                            &(struct recovery_step){.fn = write_recovery,
                                                    .arg = t,
                                                    .what = what,
                                                    .by_operator = by_operator,
                                                    .about = {.job = job->id,
                                                              .queue = job->queue,
                                                              .worker = job->worker,
                                                              .token = job->token,
                                                              .attempt = job->attempt,
                                                              .max_attempts = job->max_attempts}},
                            done, t->err);
}

/* Recover one job. */
static int recover_one(struct txn *txn, const lh_job *job, enum lhi_cause cause,
                       const struct holder *holder, const lh_recover_opts *opts,
                       struct lhi_run *run, struct lhi_error *err)
{
    lh_policy policy = *sq_txn_policy(txn, job->queue, job->kind);
    bool started = sq_had_started(holder, job), done;
    struct taking t = {.job = job, .cause = cause, .run = run, .err = err};

    lhi_decide_death(job, &policy, opts, cause, holder->what, !started, txn->now, &t.fate);
    t.hold = cause == LHI_CAUSE_MANUAL && job->lease_until > txn->now && !opts->now;
    if (t.fate.state == LH_PENDING) {
        if (policy.recovery_backoff_ms > 0 && started)
            t.run_at = txn->wall + policy.recovery_backoff_ms;
        if (t.hold && job->lease_until > t.run_at)
            t.run_at = job->lease_until;
    }
    t.to = t.fate.state == LH_PENDING && t.run_at > 0 ? LH_SCHEDULED : t.fate.state;
    int rc = take_job(txn, &t, opts != NULL, &done);
    if (rc < 0 || !done)
        return rc;
    struct tally *tally = sq_txn_tally(txn, job->queue, err);
    if (tally == NULL)
        return err->status;
    sq_tally_move(tally, LH_RUNNING, t.to);
    tally->recovered++;
    if (t.to == LH_FAILED)
        tally->failed++;
    const lh_policy *whole = sq_txn_policy(txn, job->queue, NULL);
    if (whole->exclusive || whole->concurrency > 0)
        tally->wake++;
    log_recovered(txn, job, t.fate.reason);
    count_action(run, &t.fate);
    return LH_OK;
}

/* ---- is a job reclaimable? ---- */

static bool old_enough(const lh_job *job, const lh_recover_opts *opts, int64_t now)
{
    int64_t before = now - opts->threshold_ms;
    return job->started_at <= before && job->last_heartbeat_at <= before;
}

/* Check a running job, and recover it if it is reclaimable. */
static int judge_job(struct txn *txn, const lh_job *job, const lh_recover_opts *opts,
                     struct holder *holder, struct lhi_run *run, struct lhi_error *err)
{
    bool by_age = opts != NULL && opts->by_age, reclaimable;
    enum lhi_cause cause = LHI_CAUSE_MANUAL;

    if (job->worker == NULL)
        return LH_OK;
    int rc = sq_holder_look_up(txn->conn, job->worker, holder, err);
    if (rc < 0)
        return rc;
    if (by_age) {
        reclaimable = old_enough(job, opts, txn->now);
    } else {
        cause = holder->what[0] != '\0' ? LHI_CAUSE_DEAD : LHI_CAUSE_TTL;
        reclaimable = cause == LHI_CAUSE_DEAD || job->lease_until <= txn->now;
    }
    if (!reclaimable || (opts == NULL && !sq_txn_policy(txn, job->queue, job->kind)->recovery))
        return LH_OK;
    run->orphaned++;
    return recover_one(txn, job, cause, holder, opts, run, err);
}

static int recover_id(struct txn *txn, int64_t id, const lh_recover_opts *opts,
                      struct holder *holder, struct lhi_run *run, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_GET, err, "i", id);
    int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;
    lh_job job;

    if (rc < 0 && sq_is_damage(txn, id, rc, err))
        return sq_skip_job(txn, id, err);
    if (rc != LH_OK)
        return rc < 0 ? rc : LH_OK; /* another transaction has ended or deleted it */
    bool ok = sq_recovery_row(stmt, &txn->arena, &job);
    sq_reset(stmt);
    if (!ok)
        return lhi_no_memory(err);
    if (job.state != LH_RUNNING || (opts && opts->queue && strcmp(job.queue, opts->queue) != 0))
        return LH_OK;
    return judge_job(txn, &job, opts, holder, run, err);
}

/* ---- expired leases of jobs, during a claim ---- */

/* Read the expired jobs to the end before the first is changed. */
static int read_expired(struct txn *txn, size_t limit, int64_t skip, int64_t *ids, size_t *n,
                        struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_EXPIRED, err, "iiii", txn->now,
                                 txn->db->stuck_until, (int64_t)limit, skip);
    int rc;

    *n = 0;
    if (stmt == NULL)
        return err->status;
    while ((rc = sq_step(txn->conn, stmt, err)) == LH_OK)
        ids[(*n)++] = sqlite3_column_int64(stmt, 0);
    return rc < 0 ? rc : LH_OK;
}

static int recover_expired(struct txn *txn, struct lhi_run *run, struct lhi_error *err)
{
    struct holder holder = {.arena = &txn->arena};
    int64_t skip = 0, taken = lhi_run_reclaimed(run), failed = run->failures + run->untold;
    int64_t first, *ids = NULL;
    size_t n;
    int rc;

    /* Usually nothing has expired. Then this is one probe of an index and needs no memory. */
    if ((rc = read_expired(txn, 1, 0, &first, &n, err)) < 0 || n == 0)
        return rc;
    ids = lhi_arena_alloc(&txn->arena, LHI_BATCH * sizeof *ids);
    if (ids == NULL)
        return lhi_no_memory(err);
    /* Queues with recovery off keep their expired jobs at the head of the index, so the scan goes
     * past them. */
    do {
        if ((rc = read_expired(txn, LHI_BATCH, skip, ids, &n, err)) < 0)
            return rc;
        for (size_t i = 0; i < n; i++)
            if ((rc = recover_id(txn, ids[i], NULL, &holder, run, err)) < 0)
                return rc;
        skip += (int64_t)n;
    } while (n == LHI_BATCH && lhi_run_reclaimed(run) == taken);
    /* All expired jobs stay because recovery is off for them. The next claims skip them until a
     * setting changes; leases that end later have a later deadline. */
    if (n < LHI_BATCH && lhi_run_reclaimed(run) == taken && run->failures + run->untold == failed)
        txn->db->stuck_until = txn->now;
    return LH_OK;
}

/* ---- workers ---- */

/* A worker that was checked, and what is written about it. */
struct verdict {
    const struct lhi_death *death;
    struct lhi_run *run;
    struct lhi_error *err;
    bool by_operator, changed;
};

static int write_death(struct txn *txn, void *arg)
{
    struct verdict *v = arg;
    const struct lhi_death *death = v->death;
    char data[64];
    int n =
        sq_run(txn->conn, LHI_SQL_WORKER_MARK_DEAD, v->err, "ttiiit", death->what, death->worker,
               death->last_heartbeat_at, (int64_t)death->proven, txn->now, death->sessions);

    v->changed = n > 0;
    if (n <= 0)
        return n; /* it has sent a heartbeat, or another transaction has marked it */
    int rc = sq_recovery_begin(txn, v->run, v->err);
    if (rc < 0)
        return rc;
    lhi_format(data, sizeof data, "{\"last_heartbeat\":%lld}", (long long)death->last_heartbeat_at);
    return sq_recovery_event(
        txn, v->run,
        &(struct event){
            .type = "worker.dead", .worker = death->worker, .reason = death->what, .data = data},
        v->err);
}

static int write_late(struct txn *txn, void *arg)
{
    struct verdict *v = arg;
    const struct lhi_death *death = v->death;
    int n = sq_run(txn->conn, LHI_SQL_WORKER_LATE, v->err, "ti", death->worker,
                   death->last_heartbeat_at);

    v->changed = n > 0;
    if (n <= 0)
        return n;
    return sq_txn_event(
        txn,
        &(struct event){.type = "worker.late", .worker = death->worker, .actor = "system/recovery"},
        v->err);
}

/* Write that a worker is late or dead; `v->changed`: it was not so before. */
static int judge_worker(struct txn *txn, struct verdict *v)
{
    const struct lhi_death *death = v->death;
    char what[192];
    bool done;

    lhi_format(what, sizeof what, "worker %s cannot be marked %s", death->worker,
               death->late ? "late" : "dead");
    int rc = sq_recovery_step(txn, v->run,
                              &(struct recovery_step){.fn = death->late ? write_late : write_death,
                                                      .arg = v,
                                                      .what = what,
                                                      .by_operator = v->by_operator,
                                                      .about = {.worker = death->worker}},
                              &done, v->err);
    v->changed = v->changed && done;
    txn->changed = txn->changed || v->changed;
    return rc < 0 ? rc : LH_OK;
}

static int mark_dead(struct txn *txn, const struct lhi_death *death, bool by_operator,
                     struct lhi_run *run, struct lhi_error *err)
{
    struct verdict v = {.death = death, .run = run, .err = err, .by_operator = by_operator};
    int rc = judge_worker(txn, &v);

    if (rc < 0 || !v.changed)
        return rc;
    sq_txn_log(txn, LH_LOG_WARN, &(lh_log_entry){.worker = death->worker, .reason = death->what},
               "worker %s is dead: it %s", death->worker, death->what);
    run->dead_workers++;
    /* The leases of a worker without a process on this machine end only by time. */
    return death->process
               ? sq_free_leases_of_worker(txn, death->worker, death->what, by_operator, run, err)
               : LH_OK;
}

static int mark_late(struct txn *txn, const struct lhi_death *death, bool by_operator,
                     struct lhi_run *run, struct lhi_error *err)
{
    struct verdict v = {.death = death, .run = run, .err = err, .by_operator = by_operator};
    int rc = judge_worker(txn, &v);

    if (rc >= 0 && v.changed)
        sq_txn_log(txn, LH_LOG_INFO, &(lh_log_entry){.worker = death->worker},
                   "worker %s is late: it missed a heartbeat", death->worker);
    return rc;
}

/* ---- on every claim ---- */

/* Recover workers that were silent for too long, and what they hold. */
static int recover_silent(struct txn *txn, struct lhi_run *run, struct lhi_error *err)
{
    struct lhi_suspects silent = {0};
    int rc = sq_read_suspects(txn->conn, LHI_SQL_WORKER_SILENT, txn->now, &silent, err);
    struct holder holder = {.arena = &txn->arena};
    struct lhi_identity nobody = {.pid = 0};
    struct lhi_death death;
    int64_t ids[LHI_BATCH], unclean = 0;
    size_t n = 0;

    for (size_t i = 0; i < silent.n && rc >= 0; i++)
        if (lhi_judge_worker(&silent.suspect[i], &nobody, txn->now, &death) && !death.late)
            rc = mark_dead(txn, &death, false, run, err);
    lhi_suspects_clear(&silent);
    if (rc < 0 ||
        (rc = sq_int(txn->conn, LHI_SQL_DEAD_NOT_CLEANED, err, 0, &unclean, "i", txn->now)) < 0 ||
        unclean == 0)
        return rc;
    if ((rc = sq_read_ids(txn->conn, LHI_SQL_STALE_OF_DEAD, txn->now, NULL, ids, LHI_BATCH, &n,
                          err)) < 0)
        return rc;
    for (size_t i = 0; i < n && rc >= 0; i++)
        rc = recover_id(txn, ids[i], NULL, &holder, run, err);
    return rc < 0 ? rc : sq_clean_workers(txn, run, err);
}

int sq_recover_on_claim(struct txn *txn, struct lhi_error *err)
{
    struct lhi_run run = {.trigger = "claim"};
    bool more;
    int rc;

    if ((rc = recover_silent(txn, &run, err)) < 0 ||
        (rc = sq_recover_leases(txn, LHI_BATCH, false, &run, &more, err)) < 0 ||
        (rc = recover_expired(txn, &run, err)) < 0 || run.report == 0)
        return rc;
    return sq_recovery_end_report(txn, &run, NULL, err);
}

/* ---- a batch of a run ---- */

static bool others_wait(struct db *db)
{
    if (sq_writer_lock_wanted(&db->coord))
        return true;
    pthread_mutex_lock(&db->mutex);
    bool waiting = db->queue_head != NULL;
    pthread_mutex_unlock(&db->mutex);
    return waiting;
}

static int recover_batch(struct txn *txn, struct lhi_act *act)
{
    struct lhi_run *run = act->recover.run;
    struct holder holder = {.arena = &txn->arena};
    struct lhi_error *err = &act->err;
    bool by_operator = act->recover.opts != NULL;
    int rc = LH_OK;

    if (run->always)
        rc = sq_recovery_begin(txn, run, err);
    for (size_t i = 0; i < act->recover.n_deaths && rc >= 0; i++) {
        const struct lhi_death *death = &act->recover.deaths[i];
        rc = death->late ? mark_late(txn, death, by_operator, run, err)
                         : mark_dead(txn, death, by_operator, run, err);
    }
    size_t at = 0;
    while (at < act->n && rc >= 0 && (at < LEAST || !others_wait(txn->db)))
        rc = recover_id(txn, act->recover.ids[at++], act->recover.opts, &holder, run, err);
    act->recover.done = at;
    bool more = at < act->n;
    if (rc >= 0 && act->recover.leases && !more)
        rc = sq_recover_leases(txn, LHI_BATCH, by_operator, run, &more, err);
    if (rc < 0)
        return rc;
    act->recover.over = act->recover.last && !more;
    if (act->recover.over)
        return sq_recovery_end(txn, run, act->recover.health, err);
    /* While a recovery runs in batches, claims need not help. */
    txn->run_goes_on = true;
    return sq_recovery_count(txn, run, err);
}

int sq_act_recover(struct txn *txn, struct lhi_act *act)
{
    struct lhi_run before = *act->recover.run;
    int rc = recover_batch(txn, act);

    if (rc < 0)
        *act->recover.run = before; /* its report is undone with it */
    return rc;
}
