/*
 * act_recover.c: recovery inside a transaction: jobs and workers.
 *
 * A job is judged here, from its row as it is in this transaction, and taken back by a write that
 * repeats the guard.
 */
#include "store/sqlite/db.h"

#include "base/clock.h"
#include "base/hook.h"

#include <string.h>

enum { LEAST = 8 }; /* rows a batch takes before it gives way to others */

/* ---- one job ---- */

/* A row that its own constraints will not let go: the rest goes on. Once that is known, a recovery
 * that comes by itself does not tell it again and again. */
static int note_failure(struct txn *txn, const lh_job *job, const lh_recover_opts *opts,
                        struct lhi_run *run, const char *why, struct lhi_error *err)
{
    int64_t told;
    int rc = sql_int(txn->conn, LHI_SQL_FAILURE_TOLD, err, 0, &told, "ii", job->id, job->token);

    if (rc < 0)
        return rc;
    if (opts == NULL && told != 0) {
        run->untold++;
        return LH_OK;
    }
    txn_log(txn, LH_LOG_ERROR,
            &(lh_log_entry){.job = job->id,
                            .token = job->token,
                            .attempt = job->attempt,
                            .queue = job->queue,
                            .worker = job->worker,
                            .reason = why},
            "job %lld cannot be recovered: %s", (long long)job->id, why);
    run->failures++;
    if ((rc = run_begin(txn, run, err)) < 0)
        return rc;
    return run_event(txn, run,
                     &(struct event){.type = "recovery.failed",
                                     .job = job->id,
                                     .queue = job->queue,
                                     .worker = job->worker,
                                     .reason = why,
                                     .token = job->token,
                                     .attempt = job->attempt,
                                     .max_attempts = job->max_attempts},
                     err);
}

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

static int tell_recovered(struct txn *txn, const lh_job *job, const struct lhi_fate *fate,
                          lh_state to, struct lhi_run *run, struct lhi_error *err)
{
    txn_log(txn, LH_LOG_WARN,
            &(lh_log_entry){.job = job->id,
                            .token = job->token,
                            .attempt = job->attempt,
                            .queue = job->queue,
                            .worker = job->worker,
                            .reason = fate->reason},
            "job %lld recovered: %s", (long long)job->id, fate->reason);
    count_action(run, fate);
    int rc = run_begin(txn, run, err);
    if (rc < 0)
        return rc;
    return run_event(txn, run,
                     &(struct event){.type = fate->poison ? "job.poisoned" : "job.recovered",
                                     .job = job->id,
                                     .queue = job->queue,
                                     .worker = job->worker,
                                     .from = LH_RUNNING,
                                     .to = to,
                                     .reason = fate->reason,
                                     .token = job->token,
                                     .attempt = fate->shown_attempt,
                                     .max_attempts = job->max_attempts,
                                     .action = fate->action},
                     err);
}

/* Take one job back. A guard that no longer matches means that somebody else came first, and nothing
 * is done. */
static int recover_one(struct txn *txn, const lh_job *job, enum lhi_cause cause,
                       const struct holder *holder, const lh_recover_opts *opts,
                       struct lhi_run *run, struct lhi_error *err)
{
    lh_policy policy = *txn_policy(txn, job->queue, job->kind);
    bool started = had_started(holder, job);
    struct lhi_fate fate;
    int rc;

    lhi_decide_death(job, &policy, opts, cause, holder->what, !started, txn->now, &fate);
    /* A live lease revoked by hand: the job stays back until its holder has answered or the deadline
     * has passed. */
    bool hold = cause == LHI_CAUSE_MANUAL && job->lease_until > txn->now && !opts->now;
    int64_t run_at = 0;
    if (fate.state == LH_PENDING) {
        if (policy.recovery_backoff_ms > 0 && started)
            run_at = txn->wall + policy.recovery_backoff_ms;
        if (hold && job->lease_until > run_at)
            run_at = job->lease_until;
    }
    lh_state to = fate.state == LH_PENDING && run_at > 0 ? LH_SCHEDULED : fate.state;
    int n = sql_run(txn->conn, LHI_SQL_JOB_RECOVER, err, "tIiiiIitiii", lh_state_name(to), run_at,
                    fate.attempt, fate.recoveries, txn_next_token(txn, job->token),
                    to == LH_FAILED ? txn->now : (int64_t)0, txn->now, fate.reason, job->id,
                    job->token, job->lease_until);
    if (n == LH_EINVAL) {
        struct lhi_error why = *err;
        lhi_error_clear(err);
        return note_failure(txn, job, opts, run, why.text, err);
    }
    if (n <= 0)
        return n;
    LHI_POINT("job_recover:inside");
    if (hold && (rc = hold_put(txn, job->queue, job->id, job->token, job->lease_until, err)) < 0)
        return rc;
    struct tally *tally = txn_tally(txn, job->queue, err);
    if (tally == NULL)
        return err->status;
    txn->changed = true;
    tally_move(tally, LH_RUNNING, to);
    tally->recovered++;
    if (to == LH_FAILED)
        tally->failed++;
    const lh_policy *whole = txn_policy(txn, job->queue, NULL);
    if (whole->exclusive && !hold && (rc = exclusive_end(txn, job->queue, job->id, err)) < 0)
        return rc;
    if (whole->exclusive || whole->concurrency > 0)
        tally->ring++;
    return tell_recovered(txn, job, &fate, to, run, err);
}

/* ---- is it forfeit? ---- */

static bool old_enough(const lh_job *job, const lh_recover_opts *opts, int64_t now)
{
    int64_t before = now - opts->threshold_ms;
    return job->started_at <= before && job->last_heartbeat_at <= before;
}

/* Judge a running job, and take it back if it is forfeit. */
static int judge_job(struct txn *txn, const lh_job *job, const lh_recover_opts *opts,
                     struct holder *holder, struct lhi_run *run, struct lhi_error *err)
{
    bool by_age = opts != NULL && opts->by_age, forfeit;
    enum lhi_cause cause = LHI_CAUSE_MANUAL;

    if (job->worker == NULL)
        return LH_OK;
    int rc = look_up_holder(txn->conn, job->worker, holder, err);
    if (rc < 0)
        return rc;
    if (by_age) {
        forfeit = old_enough(job, opts, txn->now);
    } else {
        cause = holder->what[0] != '\0' ? LHI_CAUSE_DEAD : LHI_CAUSE_TTL;
        forfeit = cause == LHI_CAUSE_DEAD || job->lease_until <= txn->now;
    }
    if (!forfeit || (opts == NULL && !txn_policy(txn, job->queue, job->kind)->recovery))
        return LH_OK;
    run->orphaned++;
    return recover_one(txn, job, cause, holder, opts, run, err);
}

static int recover_id(struct txn *txn, int64_t id, const lh_recover_opts *opts,
                      struct holder *holder, struct lhi_run *run, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sql(txn->conn, LHI_SQL_JOB_GET, err, "i", id);
    int rc = stmt ? sql_step(txn->conn, stmt, err) : err->status;
    lh_job job;

    if (rc != LH_OK)
        return rc < 0 ? rc : LH_OK; /* gone meanwhile */
    bool ok = held_row(stmt, &txn->arena, &job);
    sql_reset(stmt);
    if (!ok)
        return lhi_no_memory(err);
    if (job.state != LH_RUNNING || (opts && opts->queue && strcmp(job.queue, opts->queue) != 0))
        return LH_OK;
    return judge_job(txn, &job, opts, holder, run, err);
}

/* ---- expired leases of jobs, as a claim meets them ---- */

/* Expired rows, read to the end before the first is changed. */
static int read_expired(struct txn *txn, size_t limit, int64_t skip, lh_job *jobs, size_t *n,
                        struct lhi_error *err)
{
    sqlite3_stmt *stmt = sql(txn->conn, LHI_SQL_JOB_EXPIRED, err, "iiii", txn->now,
                             txn->db->stuck_until, (int64_t)limit, skip);
    int rc;

    *n = 0;
    if (stmt == NULL)
        return err->status;
    while ((rc = sql_step(txn->conn, stmt, err)) == LH_OK)
        if (!held_row(stmt, &txn->arena, &jobs[(*n)++])) {
            sql_reset(stmt);
            return lhi_no_memory(err);
        }
    return rc < 0 ? rc : LH_OK;
}

static int recover_expired(struct txn *txn, struct lhi_run *run, struct lhi_error *err)
{
    struct holder holder = {.arena = &txn->arena};
    int64_t skip = 0, taken = lhi_run_reclaimed(run), failed = run->failures + run->untold;
    lh_job first, *jobs = NULL;
    size_t n;
    int rc;

    /* The common case, nothing expired, is one probe of an index and no memory. */
    if ((rc = read_expired(txn, 1, 0, &first, &n, err)) < 0 || n == 0)
        return rc;
    jobs = lhi_arena_alloc(&txn->arena, LHI_BATCH * sizeof *jobs);
    if (jobs == NULL)
        return lhi_no_memory(err);
    /* Queues with recovery off keep their stuck jobs at the head of the index: walk past them. */
    do {
        if ((rc = read_expired(txn, LHI_BATCH, skip, jobs, &n, err)) < 0)
            return rc;
        for (size_t i = 0; i < n; i++)
            if ((rc = judge_job(txn, &jobs[i], NULL, &holder, run, err)) < 0)
                return rc;
        skip += (int64_t)n;
    } while (n == LHI_BATCH && lhi_run_reclaimed(run) == taken);
    /* All of them stay on purpose: until a setting changes, the next claim looks behind them. Whatever
     * ends later has a later deadline. */
    if (n < LHI_BATCH && lhi_run_reclaimed(run) == taken && run->failures + run->untold == failed)
        txn->db->stuck_until = txn->now;
    return LH_OK;
}

/* ---- workers ---- */

static int bury(struct txn *txn, const struct lhi_death *death, struct lhi_run *run,
                struct lhi_error *err)
{
    char data[64];
    int n = sql_run(txn->conn, LHI_SQL_WORKER_BURY, err, "ttiiit", death->what, death->worker,
                    death->last_heartbeat_at, (int64_t)death->proven, txn->now, death->sessions);
    int rc;

    if (n <= 0)
        return n; /* it has beaten, or was found by another */
    txn->changed = true;
    txn_log(txn, LH_LOG_WARN, &(lh_log_entry){.worker = death->worker, .reason = death->what},
            "worker %s is dead: it %s", death->worker, death->what);
    lhi_format(data, sizeof data, "{\"last_heartbeat\":%lld}", (long long)death->last_heartbeat_at);
    run->dead_workers++;
    if ((rc = run_begin(txn, run, err)) < 0 ||
        (rc = run_event(txn, run,
                        &(struct event){.type = "worker.dead",
                                        .worker = death->worker,
                                        .reason = death->what,
                                        .data = data},
                        err)) < 0)
        return rc;
    /* Time alone ends the leases of a worker without a process of ours. */
    return death->process ? free_leases_of(txn, death->worker, death->what, run, err) : LH_OK;
}

static int mark_late(struct txn *txn, const struct lhi_death *death, struct lhi_error *err)
{
    int n =
        sql_run(txn->conn, LHI_SQL_WORKER_LATE, err, "ti", death->worker, death->last_heartbeat_at);
    if (n <= 0)
        return n;
    txn->changed = true;
    txn_log(txn, LH_LOG_INFO, &(lh_log_entry){.worker = death->worker},
            "worker %s is late: it has missed a beat", death->worker);
    return txn_event(
        txn,
        &(struct event){.type = "worker.late", .worker = death->worker, .actor = "system/recovery"},
        err);
}

/* ---- on every claim ---- */

/* Workers whose silence was too long, and what they hold. */
static int recover_silent(struct txn *txn, struct lhi_run *run, struct lhi_error *err)
{
    struct lhi_suspects silent = {0};
    int rc = read_suspects(txn->conn, LHI_SQL_WORKER_SILENT, txn->now, &silent, err);
    struct holder holder = {.arena = &txn->arena};
    struct lhi_identity nobody = {.pid = 0};
    struct lhi_death death;
    int64_t ids[LHI_BATCH], unclean = 0;
    size_t n = 0;

    for (size_t i = 0; i < silent.n && rc >= 0; i++)
        if (lhi_judge_worker(&silent.suspect[i], &nobody, txn->now, &death) && !death.late)
            rc = bury(txn, &death, run, err);
    lhi_suspects_clear(&silent);
    if (rc < 0 ||
        (rc = sql_int(txn->conn, LHI_SQL_DEAD_NOT_CLEANED, err, 0, &unclean, "i", txn->now)) < 0 ||
        unclean == 0)
        return rc;
    if ((rc = read_ids(txn->conn, LHI_SQL_STALE_OF_DEAD, txn->now, NULL, ids, LHI_BATCH, &n, err)) <
        0)
        return rc;
    for (size_t i = 0; i < n && rc >= 0; i++)
        rc = recover_id(txn, ids[i], NULL, &holder, run, err);
    return rc < 0 ? rc : clean_workers(txn, run, err);
}

int recover_on_claim(struct txn *txn, struct lhi_error *err)
{
    struct lhi_run run = {.trigger = "claim"};
    bool more;
    int rc;

    if ((rc = recover_silent(txn, &run, err)) < 0 ||
        (rc = recover_leases(txn, LHI_BATCH, &run, &more, err)) < 0 ||
        (rc = recover_expired(txn, &run, err)) < 0 || run.report == 0)
        return rc;
    return end_report(txn, &run, NULL, err);
}

/* ---- a batch of a run ---- */

static bool others_wait(struct db *db)
{
    if (side_waited(&db->side))
        return true;
    pthread_mutex_lock(&db->mutex);
    bool waiting = db->queue_head != NULL;
    pthread_mutex_unlock(&db->mutex);
    return waiting;
}

int act_recover(struct txn *txn, struct lhi_act *act)
{
    struct lhi_run *run = act->recover.run;
    struct holder holder = {.arena = &txn->arena};
    struct lhi_error *err = &act->err;
    int rc = LH_OK;

    if (run->always)
        rc = run_begin(txn, run, err);
    for (size_t i = 0; i < act->recover.n_deaths && rc >= 0; i++) {
        const struct lhi_death *death = &act->recover.deaths[i];
        rc = death->late ? mark_late(txn, death, err) : bury(txn, death, run, err);
    }
    size_t at = 0;
    while (at < act->n && rc >= 0 && (at < LEAST || !others_wait(txn->db)))
        rc = recover_id(txn, act->recover.ids[at++], act->recover.opts, &holder, run, err);
    act->recover.done = at;
    bool more = at < act->n;
    if (rc >= 0 && act->recover.leases && !more)
        rc = recover_leases(txn, LHI_BATCH, run, &more, err);
    if (rc < 0)
        return rc;
    act->recover.over = act->recover.last && !more;
    if (act->recover.over)
        return run_end(txn, run, act->recover.health, err);
    /* While a run goes on from batch to batch, claims need not help it. */
    side_set_recovering(&txn->db->side, true);
    return run_count(txn, run, err);
}
