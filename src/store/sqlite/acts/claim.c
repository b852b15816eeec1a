/* Claim: take the best pending jobs under a new token, within the limits of their queue. */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/acts/recovery.h"
#include "store/sqlite/row_sum.h"
#include "store/sqlite/rows.h"

#include "base/checksum.h"
#include "base/clock.h"
#include "base/hook.h"

#include <assert.h>
#include <string.h>

/* ---- one job ---- */

static int fail_damaged(struct txn *txn, const lh_job *job, enum damage damage, struct tally *tally,
                        bool *held, struct lhi_error *err)
{
    char reason[80];
    int rc = sq_set_job_aside(txn, job->id, job->token, damage, held, err);

    if (rc < 0 || !*held)
        return rc;
    lhi_format(reason, sizeof reason, "CORRUPT: %s", sq_damage_words(damage));
    sq_txn_log(txn, LH_LOG_ERROR,
               &(lh_log_entry){.job = job->id,
                               .token = job->token,
                               .attempt = job->attempt,
                               .queue = job->queue,
                               .reason = reason},
               "job %lld was failed: %s", (long long)job->id, sq_damage_words(damage));
    sq_tally_move(tally, LH_PENDING, LH_FAILED);
    tally->failed++;
    return sq_txn_event(txn,
                        &(struct event){.type = "job.failed",
                                        .job = job->id,
                                        .queue = job->queue,
                                        .from = LH_PENDING,
                                        .to = LH_FAILED,
                                        .actor = "system/claim",
                                        .reason = reason,
                                        .token = job->token},
                        err);
}

/* A job from a plain INSERT has no checksums. Its first claim adds them. */
static int sign(struct txn *txn, const lh_job *job, struct lhi_error *err)
{
    return sq_run(txn->conn, LHI_SQL_JOB_SIGN, err, "iii",
                  sq_name_sum(job->queue, job->kind, job->key),
                  lhi_checksum(job->payload, job->payload ? job->payload_len : 0), job->id);
}

/* Apply the policy to a job that is claimed. */
static void apply_policy(lh_job *job, const lh_policy *policy)
{
    job->timeout_ms = policy->timeout_ms;
    job->max_output = policy->max_output;
}

static int take(struct txn *txn, const lh_claim_opts *opts, lh_job *job, int64_t wished_ms,
                struct tally *tally, struct lhi_error *err)
{
    const lh_policy *policy = sq_txn_policy(txn, job->queue, job->kind);
    int rc;

    int64_t old_token = job->token;
    job->lease_ms = opts->lease_ms ? opts->lease_ms : wished_ms ? wished_ms : policy->lease_ms;
    job->lease_until = txn->now + job->lease_ms;
    job->remaining_ms = job->lease_ms;
    sq_txn_falls_due(txn, job->lease_ms);
    job->token = sq_txn_next_token(txn, old_token);
    assert(job->token > old_token);
    job->attempt++;
    if (job->max_attempts == 0)
        job->max_attempts = policy->max_attempts;
    /* A plain INSERT may have set an attempt count above the policy's limit. */
    if (job->max_attempts != LH_UNLIMITED && job->max_attempts < job->attempt)
        job->max_attempts = job->attempt;
    apply_policy(job, policy);
    job->worker = opts->worker;
    job->state = LH_RUNNING;
    job->started_at = job->state_changed_at = txn->now;
    job->finished_at = 0;
    job->stage = NULL;
    job->progress = -1;
    rc = sq_run(txn->conn, LHI_SQL_JOB_CLAIM, err, "iitiiii", job->token, job->max_attempts,
                job->worker, job->lease_until, job->lease_ms, txn->now, job->id);
    if (rc < 0)
        return rc;
    if (rc == 0) /* the index says that the job is pending, but its row does not */
        return lhi_fail(err, LH_ELOST, "row of the job contradicts its index");
    /* The job was claimed before it expired, so its entry in lh_expiry is removed for good. */
    if (job->expires_at != 0 &&
        (rc = sq_run(txn->conn, LHI_SQL_EXPIRY_END, err, "ii", job->expires_at, job->id)) < 0)
        return rc;
    int64_t ready = job->run_at > job->created_at ? job->run_at : job->created_at;
    sq_tally_move(tally, LH_PENDING, LH_RUNNING);
    tally->claimed++;
    tally->wait_ms += txn->now > ready ? txn->now - ready : 0;
    if (policy->audit == LH_AUDIT_FULL)
        return sq_txn_event(txn,
                            &(struct event){.type = "job.claimed",
                                            .job = job->id,
                                            .queue = job->queue,
                                            .worker = opts->worker,
                                            .from = LH_PENDING,
                                            .to = LH_RUNNING,
                                            .actor = opts->worker,
                                            .token = job->token},
                            err);
    return LH_OK;
}

/* What a claim needs to know about a job beside the columns of lh_job. */
struct candidate {
    int64_t wished_ms; /* the lease that the enqueue asked for */
    enum damage damage;
    bool unsigned_yet;
};

/* Jobs that may be claimed, with `about` for each. Jobs that this claim must skip are left out. */
struct candidates {
    lh_jobs *out;
    size_t *room;
    struct candidate *about;
    size_t n;
    const struct passed *passed;
};

/* Damaged jobs that stay in the index because SQLite cannot change their rows. */
struct passed {
    int64_t *id;
    size_t n, room;
    bool unreadable; /* a row cannot be read: scan the index alone */
};

static bool is_passed(const struct passed *passed, int64_t id)
{
    for (size_t i = 0; i < passed->n; i++)
        if (passed->id[i] == id)
            return true;
    return false;
}

static int skip(struct txn *txn, struct passed *passed, int64_t id, struct lhi_error *err)
{
    if (passed->n == passed->room) {
        size_t room = passed->room ? passed->room * 2 : 16;
        int64_t *grown = lhi_arena_alloc(&txn->arena, room * sizeof *grown);
        if (grown == NULL)
            return lhi_no_memory(err);
        if (passed->n > 0)
            memcpy(grown, passed->id, passed->n * sizeof *grown);
        passed->id = grown;
        passed->room = room;
    }
    passed->id[passed->n++] = id;
    return LH_OK;
}

static int add_candidate(struct txn *txn, sqlite3_stmt *stmt, struct candidates *c,
                         struct lhi_error *err)
{
    struct lhi_arena *arena = lhi_arena_of(&c->out->priv);
    lh_job *job;

    if (arena == NULL || !sq_jobs_add(c->out, c->room, &job) ||
        !sq_job_from_row(stmt, txn->now, arena, job))
        return lhi_no_memory(err);
    c->about[c->n++] = (struct candidate){
        .wished_ms = sqlite3_column_int64(stmt, JOB_LEASE_MS),
        .damage = sq_job_damage(stmt, job),
        .unsigned_yet = sqlite3_column_type(stmt, JOB_NAME_SUM) == SQLITE_NULL ||
                        sqlite3_column_type(stmt, JOB_PAYLOAD_SUM) == SQLITE_NULL};
    return LH_OK;
}

/* Read all candidates before the first is changed: claiming a job removes it from the index that is
 * being read. */
static int read_candidates(struct txn *txn, const char *queue, size_t n, struct candidates *c,
                           struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_NEXT, err, "ti", queue, (int64_t)n);
    int rc;

    if (stmt == NULL)
        return err->status;
    while ((rc = sq_step(txn->conn, stmt, err)) == LH_OK)
        if ((rc = add_candidate(txn, stmt, c, err)) < 0) {
            sq_reset(stmt);
            return rc;
        }
    return rc < 0 ? rc : LH_OK;
}

/* Read one job by its id. A job that cannot be read is skipped. */
static int read_candidate(struct txn *txn, int64_t id, struct candidates *c, struct lhi_error *err)
{
    if (is_passed(c->passed, id))
        return LH_OK;
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_GET, err, "i", id);
    int rc = stmt != NULL ? sq_step(txn->conn, stmt, err) : err->status;
    if (rc == LH_OK)
        rc = add_candidate(txn, stmt, c, err);
    sq_reset(stmt);
    if (rc == LH_EMPTY || (rc < 0 && sq_is_damage(txn, id, rc, err)))
        return sq_skip_job(txn, id, err);
    return rc;
}

/* The same candidates, read one by one: at least one row cannot be read or cannot be changed. */
static int read_candidates_by_id(struct txn *txn, const char *queue, size_t n, struct candidates *c,
                                 struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_NEXT_IDS, err, "t", queue);
    int rc = stmt != NULL ? LH_OK : err->status;

    while (rc == LH_OK && c->n < n && (rc = sq_step(txn->conn, stmt, err)) == LH_OK)
        rc = read_candidate(txn, sqlite3_column_int64(stmt, 0), c, err);
    sq_reset(stmt);
    return rc < 0 ? rc : LH_OK;
}

/* ---- by kind ---- */

struct rank {
    int64_t priority, id;
};

static int compare_ranks(const void *left, const void *right)
{
    const struct rank *a = left, *b = right;

    if (a->priority != b->priority)
        return a->priority > b->priority ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* The best n jobs of each kind. */
static int rank_kinds(struct txn *txn, const lh_claim_opts *opts, const char *queue, size_t n,
                      struct rank *ranks, size_t *found, struct lhi_error *err)
{
    *found = 0;
    for (size_t i = 0; i < opts->n_kinds; i++) {
        sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_JOB_NEXT_OF_KIND, err, "tti", queue,
                                     opts->kinds[i], (int64_t)n);
        int rc = stmt != NULL ? LH_OK : err->status;
        while (rc == LH_OK && (rc = sq_step(txn->conn, stmt, err)) == LH_OK)
            ranks[(*found)++] =
                (struct rank){sqlite3_column_int64(stmt, 0), sqlite3_column_int64(stmt, 1)};
        if (rc < 0)
            return rc;
    }
    if (*found > 0)
        qsort(ranks, *found, sizeof *ranks, compare_ranks);
    return LH_OK;
}

static int read_candidates_of_kinds(struct txn *txn, const lh_claim_opts *opts, const char *queue,
                                    size_t n, struct candidates *c, struct lhi_error *err)
{
    size_t most = n + c->passed->n; /* jobs that are skipped are in the index too */
    struct rank *ranks = lhi_arena_alloc(&txn->arena, most * opts->n_kinds * sizeof *ranks);
    size_t found;

    if (ranks == NULL)
        return lhi_no_memory(err);
    int rc = rank_kinds(txn, opts, queue, most, ranks, &found, err);
    for (size_t i = 0; i < found && c->n < n && rc == LH_OK; i++) {
        if (i > 0 && ranks[i].id == ranks[i - 1].id)
            continue; /* the caller named the kind twice */
        rc = read_candidate(txn, ranks[i].id, c, err);
    }
    return rc;
}

/* Claim the job, or set it aside if its row does not match its checksums. The constraint of the
 * table finds the last kind of damage during the write. */
static int take_or_set_aside(struct txn *txn, const lh_claim_opts *opts, lh_job *job,
                             struct candidate *candidate, struct tally *tally,
                             struct passed *passed, struct lhi_error *err)
{
    lh_job before = *job;
    bool held = false;
    int rc = LH_OK;

    if (candidate->damage == DAMAGED_NOT && candidate->unsigned_yet)
        rc = sign(txn, job, err);
    if (candidate->damage == DAMAGED_NOT && rc >= 0)
        rc = take(txn, opts, job, candidate->wished_ms, tally, err);
    if (rc < 0 && sq_is_damage(txn, before.id, rc, err)) {
        candidate->damage = DAMAGED_ROW;
        rc = LH_OK;
    }
    if (rc < 0 || candidate->damage == DAMAGED_NOT)
        return rc;
    rc = fail_damaged(txn, &before, candidate->damage, tally, &held, err);
    return rc < 0 || held ? rc : skip(txn, passed, before.id, err);
}

/* When will the bucket have room for one claim? */
static void note_retry(struct lhi_act *act, const lh_policy *policy, int64_t bucket)
{
    if (bucket < 0 || bucket >= 1000)
        return;
    int64_t ms = (1000 - bucket) * policy->rate_per_ms / (policy->rate_n * 1000) + 1;
    if (act->claim.retry_ms == 0 || ms < act->claim.retry_ms)
        act->claim.retry_ms = ms;
}

static int find_candidates(struct txn *txn, const lh_claim_opts *opts, const char *queue, size_t n,
                           struct candidates *c, struct passed *passed, struct lhi_error *err)
{
    size_t first = c->out->n;

    if (opts->n_kinds > 0)
        return read_candidates_of_kinds(txn, opts, queue, n, c, err);
    if (passed->n == 0 && !passed->unreadable) {
        int rc = read_candidates(txn, queue, n, c, err);
        if (rc != LH_ECORRUPT)
            return rc;
        lhi_error_clear(err);
        passed->unreadable = true;
        c->out->n = first;
        c->n = 0;
    }
    return read_candidates_by_id(txn, queue, n, c, err);
}

static int claim_from(struct txn *txn, struct lhi_act *act, const char *queue, size_t want,
                      size_t *room, struct passed *passed, bool *again)
{
    const lh_claim_opts *opts = act->claim.opts;
    struct lhi_error *err = &act->err;
    lh_jobs *out = act->claim.out;
    /* a copy, because the cache may change below */
    lh_policy policy = *sq_txn_policy(txn, queue, NULL);
    size_t allowed, first = out->n, kept = first;
    int64_t bucket;
    int rc;

    if ((rc = sq_claims_allowed(txn, &policy, queue, want, &allowed, &bucket, err)) < 0)
        return rc;
    if (allowed == 0) {
        note_retry(act, &policy, bucket);
        return LH_OK;
    }
    struct candidate *about = lhi_arena_alloc(&txn->arena, allowed * sizeof *about);
    if (about == NULL)
        return lhi_no_memory(err);
    struct candidates c = {.out = out, .about = about, .passed = passed};
    c.room = room;
    if ((rc = find_candidates(txn, opts, queue, allowed, &c, passed, err)) < 0)
        return rc;
    size_t found = out->n - first;
    if (found == 0)
        return LH_OK;
    if (policy.exclusive) {
        bool got;
        int64_t lease = opts->lease_ms       ? opts->lease_ms
                        : about[0].wished_ms ? about[0].wished_ms
                                             : policy.lease_ms;
        if ((rc = sq_exclusive_acquire(txn, queue, out->job[first].id, opts->worker,
                                       txn->now + lease, &got, err)) < 0)
            return rc;
        if (!got) {
            out->n = first;
            return LH_OK;
        }
    }
    struct tally *tally = sq_txn_tally(txn, queue, err);
    if (tally == NULL)
        return err->status;
    for (size_t i = 0; i < found; i++) {
        lh_job *job = &out->job[first + i];
        if ((rc = take_or_set_aside(txn, opts, job, &about[i], tally, passed, err)) < 0)
            return rc;
        if (about[i].damage == DAMAGED_NOT)
            out->job[kept++] = *job;
    }
    out->n = kept;
    *again = kept < first + found; /* some jobs were damaged: sound ones may follow them */
    txn->changed = true;
    if (policy.exclusive) {
        /* The exclusive lease ends together with the job's lease. If no job was claimed, there is
         * no exclusive lease. */
        rc = kept > first ? sq_exclusive_follow(txn, queue, out->job[first].id,
                                                out->job[first].lease_until, err)
                          : sq_exclusive_end(txn, queue, out->job[first].id, err);
        if (rc < 0)
            return rc;
    }
    if (bucket >= 0)
        rc = sq_run(txn->conn, LHI_SQL_QUEUE_BUCKET_SET, err, "tii", queue,
                    bucket - (int64_t)(kept - first) * 1000, txn->now);
    return rc < 0 ? rc : LH_OK;
}

/* ---- requests ---- */

static int repeat_claim(struct txn *txn, struct lhi_act *act, bool *found, size_t *room)
{
    struct lhi_error *err = &act->err;
    lh_jobs *out = act->claim.out;
    int64_t n = 0;
    int rc = sq_check_request(txn, act->claim.opts->request, err);

    if (rc < 0)
        return rc;
    sqlite3_stmt *stmt =
        sq_stmt(txn->conn, LHI_SQL_REQUEST_JOBS, err, "t", act->claim.opts->request);
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    if (stmt == NULL)
        return err->status;
    if (arena == NULL)
        return lhi_no_memory(err);
    while ((rc = sq_step(txn->conn, stmt, err)) == LH_OK) {
        int64_t id = sqlite3_column_int64(stmt, 0), token = sqlite3_column_int64(stmt, 1);
        if (n++ == 0 &&
            (rc = sq_check_same_act(stmt, "claim", act->claim.opts->request, err)) < 0) {
            sq_reset(stmt);
            return rc;
        }
        sqlite3_stmt *get = sq_stmt(txn->conn, LHI_SQL_JOB_GET, err, "i", id);
        int got = get ? sq_step(txn->conn, get, err) : err->status;
        lh_job *job;
        if (got == LH_OK && sqlite3_column_int64(get, JOB_TOKEN) == token &&
            sq_column_state(get, JOB_STATE) == LH_RUNNING &&
            sqlite3_column_int64(get, JOB_LEASE_UNTIL) > txn->now) {
            if (!sq_jobs_add(out, room, &job) || !sq_job_from_row(get, txn->now, arena, job))
                got = lhi_no_memory(err);
            else
                apply_policy(job, sq_txn_policy(txn, job->queue, job->kind));
        }
        sq_reset(get);
        if (got < 0) {
            sq_reset(stmt);
            return got;
        }
    }
    *found = n > 0;
    return rc < 0 ? rc : LH_OK;
}

static int remember_claim(struct txn *txn, struct lhi_act *act)
{
    const lh_jobs *out = act->claim.out;
    size_t room = out->n * 48 + 8, used = 0;
    char *jobs = lhi_arena_alloc(&txn->arena, room);

    if (jobs == NULL)
        return lhi_no_memory(&act->err);
    for (size_t i = 0; i < out->n; i++)
        used += lhi_format(jobs + used, room - used, "%s[%lld,%lld]", i ? "," : "[",
                           (long long)out->job[i].id, (long long)out->job[i].token);
    lhi_format(jobs + used, room - used, "]");
    int rc = sq_run(txn->conn, LHI_SQL_REQUEST_PUT, &act->err, "ttit", act->claim.opts->request,
                    "claim", txn->now, jobs);
    return rc < 0 ? rc : LH_OK;
}

/* ---- the act ---- */

static int recover_reclaimable(struct txn *txn, void *arg)
{
    return sq_recover_on_claim(txn, arg);
}

static int promote(struct txn *txn, void *arg)
{
    struct lhi_error *err = arg;
    int64_t n;
    bool more;
    int rc = sq_expire_overdue(txn, LHI_BATCH, &n, &more, err);
    return rc < 0 ? rc : sq_promote_due(txn, LHI_BATCH, &n, &more, err);
}

static int run_schedules(struct txn *txn, void *arg)
{
    int64_t n;
    bool more;
    return sq_run_due_schedules(txn, LHI_BATCH, &n, &more, arg);
}

/* Run one step before a claim. If it fails, it is undone and logged, and the claim goes on, unless
 * the transaction is gone. */
static int best_effort(struct txn *txn, int (*step)(struct txn *, void *), const char *what,
                       struct lhi_error *err)
{
    struct lhi_error reason;

    lhi_error_clear(&reason);
    if (sq_txn_guarded(txn, step, &reason, &reason) >= 0)
        return LH_OK;
    lhi_log(&txn->db->log, LH_LOG_WARN, "%s failed: %s", what, reason.text);
    if (!txn->gone)
        return LH_OK;
    *err = reason;
    return err->status;
}

/* Recover reclaimable jobs and promote due ones. `*put_off`: another process runs a recovery in
 * batches; a claim that finds enough jobs does not help it. */
static int recover_and_promote(struct txn *txn, bool *put_off, struct lhi_error *err)
{
    int64_t due;
    int rc = sq_int(txn->conn, LHI_SQL_DUE_NOW, err, 0, &due, "iii", txn->now, txn->db->stuck_until,
                    txn->wall);

    *put_off = false;
    if (rc < 0 || due == 0)
        return rc;
    if (!txn->db->opts.no_recovery) {
        *put_off = sq_coord_recovering(&txn->db->coord);
        if (!*put_off &&
            (rc = best_effort(txn, recover_reclaimable, "automatic recovery", err)) < 0)
            return rc;
    }
    if ((rc = best_effort(txn, run_schedules, "enqueueing what is scheduled", err)) < 0)
        return rc;
    return best_effort(txn, promote, "moving due jobs in", err);
}

static int claim_queues(struct txn *txn, struct lhi_act *act, size_t want, size_t *room)
{
    const lh_claim_opts *opts = act->claim.opts;
    const lh_jobs *out = act->claim.out;

    for (size_t i = 0; i < opts->n_queues && out->n < want; i++) {
        if (sq_queue_paused(txn->db, opts->queues[i]))
            continue;
        struct passed passed = {0};
        for (bool again = true; again && out->n < want;) {
            again = false;
            int rc = claim_from(txn, act, opts->queues[i], want - out->n, room, &passed, &again);
            if (rc < 0)
                return rc;
        }
    }
    return LH_OK;
}

int sq_act_claim(struct txn *txn, struct lhi_act *act)
{
    const lh_claim_opts *opts = act->claim.opts;
    lh_jobs *out = act->claim.out;
    size_t want = opts->n ? opts->n : 1, room = out->n;
    bool put_off;
    int rc;

    if (opts->request != NULL) {
        bool found = false;
        if ((rc = repeat_claim(txn, act, &found, &room)) < 0)
            return rc;
        act->claim.repeated = found;
        if (found)
            return out->n > 0 ? LH_OK : LH_EMPTY;
    }
    int alive = sq_run(txn->conn, LHI_SQL_WORKER_CLAIMS, &act->err, "it", txn->now, opts->worker);
    if (alive < 0)
        return alive;
    if (alive > 0)
        txn->changed = txn->falls_due = true;
    if ((rc = recover_and_promote(txn, &put_off, &act->err)) < 0 ||
        (rc = claim_queues(txn, act, want, &room)) < 0)
        return rc;
    if (out->n == 0 && put_off &&
        ((rc = best_effort(txn, recover_reclaimable, "automatic recovery", &act->err)) < 0 ||
         (rc = claim_queues(txn, act, want, &room)) < 0))
        return rc;
    LHI_POINT("job_claim:inside");
    if (out->n > 0 && opts->request != NULL)
        return remember_claim(txn, act);
    return out->n > 0 ? LH_OK : LH_EMPTY;
}
