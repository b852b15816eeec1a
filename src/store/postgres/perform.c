/*
 * perform.c: performs acts in one transaction, and repeats them after failures.
 *
 * An act is one call of a function in the database, and so a transaction of its own; so is the
 * completion of one job together with the claim of the next. Several acts, and acts of several
 * calls, run between BEGIN and COMMIT. An act that fails leaves no trace and does not undo the
 * others: if one fails, all are rolled back and performed again with a savepoint before each.
 *
 * What the server certainly did not do is tried again until the deadline: after a deadlock, on a
 * new connection, on another host. What it may have done is repeated only if the act has an
 * identity by which the database recognizes it. Otherwise the caller is told that the outcome is
 * unknown.
 */
#include "store/postgres/wire.h"

#include "base/clock.h"
#include "base/sys.h"

#include <assert.h>
#include <string.h>

enum {
    MOST_TRIES = 5,   /* after deadlocks */
    ITEM_MS = 2,      /* more than one job of a batch ever takes */
    PAUSE_MS = 50,    /* before the second try on a new connection; doubled ... */
    PAUSE_MOST = 1000 /* ... up to this */
};

enum how {
    ONE_CALL = 1,   /* a transaction of its own if performed alone */
    SCANS = 2,      /* scans many rows: may take long */
    IDENTIFIED = 4, /* the database recognizes it: may be repeated if its outcome is unknown */
    OF_HOLDER = 8   /* short, and a job depends on it: never waits behind other calls */
};

static const struct {
    act_fn *perform;
    int how;
} verbs[LHI_VERBS] = {
    [LHI_ENQUEUE] = {pg_act_enqueue, ONE_CALL | IDENTIFIED},
    [LHI_CLAIM] = {pg_act_claim, ONE_CALL},
    [LHI_HEARTBEAT] = {pg_act_heartbeat, ONE_CALL | IDENTIFIED | OF_HOLDER},
    [LHI_COMPLETE] = {pg_act_complete, ONE_CALL | IDENTIFIED | OF_HOLDER},
    [LHI_FAIL] = {pg_act_fail, ONE_CALL | IDENTIFIED | OF_HOLDER},
    [LHI_RELEASE] = {pg_act_release, ONE_CALL | IDENTIFIED | OF_HOLDER},
    [LHI_OUTPUT] = {pg_act_output, ONE_CALL | IDENTIFIED | OF_HOLDER},
    [LHI_RELEASE_WORKER] = {pg_act_release_worker, 0},
    [LHI_CANCEL] = {pg_act_cancel, 0},
    [LHI_RETRY] = {pg_act_retry, 0},
    [LHI_DELETE] = {pg_act_delete, 0},
    [LHI_RESCHEDULE] = {pg_act_reschedule, 0},
    [LHI_QUEUE_PAUSE] = {pg_act_queue_pause, 0},
    [LHI_QUEUE_PURGE] = {pg_act_queue_purge, SCANS},
    [LHI_QUEUE_DELETE] = {pg_act_queue_delete, SCANS},
    [LHI_POLICY_SET] = {pg_act_policy_set, 0},
    [LHI_SCOPE_SET] = {pg_act_scope_set, 0},
    [LHI_SCHEDULE_SET] = {pg_act_schedule_set, 0},
    [LHI_SCHEDULE_REMOVE] = {pg_act_schedule_remove, 0},
    [LHI_LEASE_ACT] = {pg_act_lease, ONE_CALL},
    [LHI_WORKER_REGISTER] = {pg_act_worker_register, IDENTIFIED},
    [LHI_WORKER_HEARTBEAT] = {pg_act_worker_heartbeat, ONE_CALL | IDENTIFIED | OF_HOLDER},
    [LHI_WORKER_STOP] = {pg_act_worker_stop, IDENTIFIED},
    [LHI_WORKER_STARTED] = {pg_act_worker_started, ONE_CALL | IDENTIFIED | OF_HOLDER},
    [LHI_WORKER_SESSIONS] = {pg_act_worker_sessions, ONE_CALL | IDENTIFIED | OF_HOLDER},
    [LHI_WORKER_DEGRADED] = {pg_act_worker_degraded, ONE_CALL | IDENTIFIED},
    [LHI_RECOVER] = {pg_act_recover, SCANS | IDENTIFIED},
    [LHI_MAINTAIN] = {pg_act_maintain, SCANS | IDENTIFIED},
    [LHI_PRUNE] = {pg_act_prune, SCANS | IDENTIFIED},
    [LHI_RECOUNT] = {pg_act_recount, SCANS},
    [LHI_MOVE] = {pg_act_move, SCANS},
    [LHI_JOB_GET] = {pg_read_job, 0},
    [LHI_JOB_LIST] = {pg_read_jobs, 0},
    [LHI_QUEUE_LIST] = {pg_read_queues, 0},
    [LHI_POLICY_LIST] = {pg_read_policies, 0},
    [LHI_SCHEDULE_LIST] = {pg_read_schedules, 0},
    [LHI_LEASE_LIST] = {pg_read_leases, 0},
    [LHI_WORKER_LIST] = {pg_read_workers, 0},
    [LHI_EVENT_LIST] = {pg_read_events, 0},
    [LHI_OUTPUT_LIST] = {pg_read_outputs, 0},
    [LHI_WORKER_JUDGE] = {pg_read_judge, 0},
    [LHI_STATS] = {pg_read_stats, 0},
    [LHI_STALE] = {pg_read_stale, SCANS},
    [LHI_REPORT_GET] = {pg_read_report, 0},
    [LHI_REPORT_LIST] = {pg_read_reports, 0},
    [LHI_POLL] = {pg_read_poll, 0},
    [LHI_RETRIES] = {pg_read_retries, SCANS},
    [LHI_CHECK] = {pg_read_check, SCANS},
    [LHI_INTEGRITY] = {pg_read_integrity, SCANS},
    [LHI_DROP_SQL] = {pg_read_drop_sql, 0},
    [LHI_MOVE_LOOK] = {pg_read_standing, SCANS},
    [LHI_MOVE_READ] = {pg_read_moved, SCANS},
};

/* ---- before a second try ---- */

/* The inputs of an act, and the counters of the caller that an act changes. */
struct before {
    struct lhi_act act;
    struct lhi_run run;
    int64_t after;
};

static void note_before(struct before *before, const struct lhi_act *act)
{
    before->act = *act;
    if (act->verb == LHI_RECOVER && act->recover.run != NULL)
        before->run = *act->recover.run;
    if (act->verb == LHI_PRUNE && act->prune.after != NULL)
        before->after = *act->prune.after;
}

static void clear_jobs(lh_jobs *jobs)
{
    if (jobs == NULL)
        return;
    lhi_free(jobs->job);
    jobs->job = NULL;
    jobs->n = 0;
    if (jobs->priv != NULL)
        lhi_arena_clear(jobs->priv);
}

static void clear_leases(lh_leases *leases)
{
    if (leases == NULL)
        return;
    lhi_free(leases->lease);
    leases->lease = NULL;
    leases->n = 0;
    if (leases->priv != NULL)
        lhi_arena_clear(leases->priv);
}

/* Discard everything that an earlier try has answered. */
static void restore(const struct before *before, struct lhi_act *act)
{
    *act = before->act;
    lhi_error_clear(&act->err);
    if (act->status != NULL)
        memset(act->status, 0, act->n * sizeof *act->status);
    clear_jobs(act->after);
    switch (act->verb) {
    case LHI_ENQUEUE:
        memset(act->enqueue.out, 0, act->n * sizeof *act->enqueue.out);
        break;
    case LHI_CLAIM:
        clear_jobs(act->claim.out);
        break;
    case LHI_LEASE_ACT:
        clear_leases(act->lease.out);
        break;
    case LHI_RECOVER:
        if (act->recover.run != NULL)
            *act->recover.run = before->run;
        break;
    case LHI_PRUNE:
        if (act->prune.after != NULL)
            *act->prune.after = before->after;
        break;
    default:
        break;
    }
}

/* ---- one try ---- */

/* Is it a failure of the store? Then the whole transaction fails, and not only the act. */
static bool fatal(int rc)
{
    return rc == LH_EIO || rc == LH_ENOMEM || rc == LH_ENOSPC || rc == LH_ECORRUPT ||
           rc == LH_EREADONLY || rc == LH_EBUSY || rc == LH_EFAIL || rc == LH_EUNREACH ||
           rc == LH_EUNKNOWN || rc == LH_ENOSTORE;
}

static int perform_act(struct txn *txn, struct lhi_act *act)
{
    lhi_error_clear(&act->err);
    int rc = verbs[act->verb].perform(txn, act);
    if (rc < 0 && act->err.status >= 0)
        act->err.status = rc;
    return rc;
}

static int savepoint(struct txn *txn, const char *sql, struct lhi_error *err)
{
    return pg_call_text(txn, sql, NULL, NULL, err);
}

/* Perform one of several acts under a savepoint. */
static int perform_guarded(struct txn *txn, struct lhi_act *act, struct lhi_error *err)
{
    int rc = savepoint(txn, "SAVEPOINT act", err);

    if (rc != LH_OK)
        return rc;
    rc = perform_act(txn, act);
    if (rc >= 0)
        return savepoint(txn, "RELEASE SAVEPOINT act", err) == LH_OK ? rc : err->status;
    if (fatal(rc) || txn->trouble != TROUBLE_NONE) {
        *err = act->err;
        return rc;
    }
    int back = savepoint(txn, "ROLLBACK TO SAVEPOINT act", err);
    return back == LH_OK ? LH_OK : back;
}

/* Perform two acts by one call, which does not tell which of them failed. */
static int perform_pair(struct txn *txn, struct lhi_act *acts, bool *spoiled, struct lhi_error *err)
{
    lhi_error_clear(&acts[0].err);
    lhi_error_clear(&acts[1].err);
    int rc = pg_act_complete_claim(txn, acts);
    if (rc >= 0)
        return LH_OK;
    *err = acts[1].err;
    err->status = rc;
    *spoiled = !fatal(rc) && txn->trouble == TROUBLE_NONE;
    return rc;
}

static int perform_each(struct txn *txn, struct lhi_act *acts, size_t n, bool guarded,
                        bool *spoiled, struct lhi_error *err)
{
    for (size_t i = 0; i < n; i++) {
        int rc = guarded ? perform_guarded(txn, &acts[i], err) : perform_act(txn, &acts[i]);
        if (rc >= 0)
            continue;
        if (!guarded) {
            *err = acts[i].err;
            err->status = rc;
            *spoiled = n > 1 && !fatal(rc) && txn->trouble == TROUBLE_NONE;
        }
        return rc;
    }
    return LH_OK;
}

int pg_fail_unconfirmed(struct txn *txn, struct lhi_error *err)
{
    txn->trouble = TROUBLE_NONE;
    txn->conn->broken = true;
    pg_hosts_recheck(txn->pg); /* its standby may be the primary by now */
    return lhi_fail(err, LH_EUNKNOWN,
                    "outcome is unknown: the wait for the standby of \"%s\" was cancelled",
                    txn->pg->target.name);
}

/* Perform all acts in one transaction. `*spoiled`: one act failed by itself, and the others were
 * rolled back with it. */
static int transact(struct txn *txn, struct lhi_act *acts, size_t n, bool guarded, bool *spoiled,
                    struct lhi_error *err)
{
    const bool pair = !guarded && !txn->conn->isolated && pg_is_complete_claim(acts, n);

    *spoiled = false;
    if (!pair && (n > 1 || (verbs[acts[0].verb].how & ONE_CALL) == 0 || acts[0].after != NULL ||
                  txn->conn->isolated))
        pg_txn_wrap(txn);
    int rc = pair ? perform_pair(txn, acts, spoiled, err)
                  : perform_each(txn, acts, n, guarded, spoiled, err);
    if (rc >= 0)
        rc = pg_txn_commit(txn, err);
    if (rc < 0) {
        pg_txn_rollback(txn);
        return rc;
    }
    if (txn->conn->notices.unconfirmed)
        rc = pg_fail_unconfirmed(txn, err);
    pg_notices_log(&txn->conn->notices, &txn->pg->log);
    return rc;
}

/* ---- trying again ---- */

static int64_t jittered(int64_t ms)
{
    uint32_t dice = 0;

    (void)lhi_random(&dice, sizeof dice);
    return ms / 2 + (int64_t)(dice % (uint32_t)(ms / 2 + 1));
}

/* Wait before the next try. False: the deadline would pass. */
static bool pause_before(const struct pg *pg, int64_t *pause, int64_t deadline)
{
    int64_t ms = jittered(*pause);

    if (pg_real_ms() + ms >= deadline || __atomic_load_n(&pg->closing, __ATOMIC_RELAXED))
        return false;
    lhi_sleep_ms(ms);
    *pause = *pause * 2 < PAUSE_MOST ? *pause * 2 : PAUSE_MOST;
    return true;
}

static bool identified(const struct lhi_act *act)
{
    if (act->verb == LHI_CLAIM && act->claim.opts->request != NULL)
        return true;
    return (verbs[act->verb].how & IDENTIFIED) != 0;
}

static bool all_identified(const struct lhi_act *acts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!identified(&acts[i]))
            return false;
    return true;
}

/* The time limit: time to wait for others, and time for the work itself. */
static int64_t time_limit_ms(const struct pg *pg, const struct lhi_act *acts, size_t n)
{
    int64_t ms = pg->opts.busy_ms;
    size_t items = 0;

    for (size_t i = 0; i < n; i++) {
        items += acts[i].n;
        if ((verbs[acts[i].verb].how & SCANS) != 0 && ms < SCAN_MS)
            ms = SCAN_MS;
    }
    return ms + (int64_t)items * ITEM_MS;
}

/* State of all tries of one transaction. */
struct tries {
    const struct pg *pg;
    int64_t deadline, pause;
    int n;        /* tries that met a deadlock or the like */
    bool unknown; /* one of them may have committed */
    bool may_repeat;
};

/* May there be another try after this one? */
static bool may_try_again(struct tries *tries, enum trouble trouble)
{
    int64_t short_pause = 20 << tries->n;

    switch (trouble) {
    case TROUBLE_AGAIN:
        return ++tries->n < MOST_TRIES && pause_before(tries->pg, &short_pause, tries->deadline);
    case TROUBLE_LOST:
        return pause_before(tries->pg, &tries->pause, tries->deadline);
    case TROUBLE_UNKNOWN:
        tries->unknown = true;
        return tries->may_repeat && pause_before(tries->pg, &tries->pause, tries->deadline);
    default:
        return false;
    }
}

static bool could_be_own_earlier_try(int refusal)
{
    return refusal == LH_ELOST || refusal == LH_ECANCELLED || refusal == LH_ENOTFOUND ||
           refusal == LH_ESTATE;
}

/* If a holder ended its run and had to repeat the call, a refusal may mean that the first try
 * worked and others claimed the job since. */
static void mark_refusals_unknown(struct lhi_act *act)
{
    if (act->verb != LHI_COMPLETE && act->verb != LHI_FAIL && act->verb != LHI_RELEASE)
        return;
    for (size_t i = 0; i < act->n; i++)
        if (could_be_own_earlier_try(act->status[i]))
            act->status[i] = LH_EUNKNOWN;
    if (could_be_own_earlier_try(act->err.status)) {
        struct lhi_error refusal = act->err;
        (void)lhi_fail(&act->err, LH_EUNKNOWN, "outcome is unknown: %.400s", refusal.text);
    }
}

static enum pool_caller caller_of(const struct lhi_act *acts, size_t n)
{
    size_t of_holder = 0;

    for (size_t i = 0; i < n; i++)
        of_holder += (verbs[acts[i].verb].how & OF_HOLDER) != 0;
    if (of_holder == n)
        return POOL_HOLDER;
    return of_holder > 0 ? POOL_OUTCOMES_AND_CLAIM : POOL_ANY;
}

static int one_try(struct txn *txn, struct lhi_act *acts, size_t n, bool guarded, bool *spoiled,
                   struct lhi_error *err)
{
    *spoiled = false;
    txn->trouble = TROUBLE_LOST;
    int rc = pg_pool_take_as(txn->pg, caller_of(acts, n), txn->deadline, &txn->conn, err);
    if (rc != LH_OK) {
        txn->trouble = rc == LH_EUNREACH ? TROUBLE_LOST : TROUBLE_NONE;
        return rc;
    }
    txn->trouble = TROUBLE_NONE;
    /* Only when the server is known: after a failover, ids may begin lower. */
    if (!txn->repeated)
        txn->after = __atomic_load_n(&txn->pg->last_job, __ATOMIC_RELAXED);
    rc = transact(txn, acts, n, guarded, spoiled, err);
    pg_pool_give(txn->pg, txn->conn);
    txn->conn = NULL;
    lhi_arena_clear(&txn->arena);
    return rc;
}

static int keep_trying(struct pg *pg, struct lhi_act *acts, size_t n, const struct before *before,
                       struct lhi_error *err)
{
    struct tries tries = {.pg = pg,
                          .deadline = pg_real_ms() + time_limit_ms(pg, acts, n),
                          .pause = PAUSE_MS,
                          .may_repeat = all_identified(acts, n)};
    /* An act waits for a primary up to its normal time limit, even if its scan may take longer. */
    const int64_t writable_by = pg_real_ms() + pg->opts.busy_ms;
    struct lhi_error standby = {0}; /* last error of a server that accepts no writes */
    bool guarded = false, spoiled = false;
    uint32_t dice[2] = {0};
    int rc;

    (void)lhi_random(dice, sizeof dice);
    const int64_t nonce = (int64_t)((uint64_t)(dice[0] & 0x7fffffff) << 32 | dice[1]);
    int64_t after = 0;
    for (;;) {
        struct txn txn = {.pg = pg,
                          .nonce = nonce,
                          .after = after,
                          .repeated = tries.unknown,
                          .deadline = tries.deadline,
                          .writes = true};
        rc = one_try(&txn, acts, n, guarded, &spoiled, err);
        if (rc >= 0) {
            for (size_t i = 0; i < n && tries.unknown; i++)
                mark_refusals_unknown(&acts[i]);
            return rc;
        }
        after = txn.after;
        if (rc == LH_EREADONLY)
            standby = *err;
        bool in_vain = rc == LH_EREADONLY && pg_real_ms() >= writable_by;
        if (!spoiled && (in_vain || !may_try_again(&tries, txn.trouble)))
            break;
        guarded = guarded || spoiled;
        for (size_t i = 0; i < n; i++)
            restore(&before[i], &acts[i]);
        lhi_error_clear(err);
    }
    /* The last try may have had no time for an answer; the one before had one. */
    if (rc == LH_EUNREACH && standby.status == LH_EREADONLY) {
        *err = standby;
        rc = standby.status;
    }
    /* An earlier try may have committed, whatever happened to the last. */
    if (tries.unknown && rc != LH_EUNKNOWN) {
        struct lhi_error last = *err;
        rc = lhi_fail(err, LH_EUNKNOWN, "outcome is unknown: %.400s", last.text);
    }
    if (rc == LH_EUNKNOWN && n == 1 && acts[0].verb == LHI_ENQUEUE &&
        acts[0].enqueue.request == NULL)
        pg_request_from_nonce(&(struct txn){.nonce = nonce, .after = after}, err->request,
                              sizeof err->request);
    return rc;
}

void pg_saw_job(struct pg *pg, int64_t id)
{
    int64_t known = __atomic_load_n(&pg->last_job, __ATOMIC_RELAXED);
    while (id > known && !__atomic_compare_exchange_n(&pg->last_job, &known, id, true,
                                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
}

/* The death watch of this handle watches other processes from now on. */
static void note_workers(struct pg *pg, const struct lhi_act *acts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (acts[i].verb == LHI_WORKER_REGISTER || acts[i].verb == LHI_WORKER_STOP ||
            acts[i].verb == LHI_WORKER_SESSIONS)
            pg_workers_changed(pg);
}

/* A claim has found that schedules are due: enqueue their jobs, and claim again if it got
 * nothing. A failure is logged and does not stop the claim. */
static int enqueue_due_and_claim(struct pg *pg, struct lhi_act *claim, const struct before *before,
                                 struct lhi_error *err)
{
    struct lhi_act upkeep = {.verb = LHI_MAINTAIN};
    struct before nothing = {0};
    struct lhi_error failure;

    lhi_error_clear(&failure);
    note_before(&nothing, &upkeep);
    if (keep_trying(pg, &upkeep, 1, &nothing, &failure) < 0)
        lhi_log(&pg->log, LH_LOG_WARN, "enqueueing due schedules failed: %s", failure.text);
    if (claim->claim.out->n > 0)
        return LH_OK;
    restore(before, claim);
    return keep_trying(pg, claim, 1, before, err);
}

int pg_perform(void *self, struct lhi_act *acts, size_t n, struct lhi_error *err)
{
    struct pg *pg = self;
    struct before few[4], *before = few;

    assert(n > 0);
    if (pg->opts.read_only)
        return lhi_fail(err, LH_EREADONLY, "store \"%s\" was opened for reading only",
                        pg->target.name);
    if (n > sizeof few / sizeof few[0] && (before = lhi_calloc(n, sizeof *before)) == NULL)
        return lhi_no_memory(err);
    for (size_t i = 0; i < n; i++)
        note_before(&before[i], &acts[i]);
    int rc = keep_trying(pg, acts, n, before, err);
    for (size_t i = 0; i < n && rc >= 0; i++)
        if (acts[i].verb == LHI_CLAIM && acts[i].claim.schedules)
            rc = enqueue_due_and_claim(pg, &acts[i], &before[i], err);
    if (before != few)
        lhi_free(before);
    if (rc >= 0)
        note_workers(pg, acts, n);
    return rc;
}

/* ---- reading ---- */

static int fail_backup(const struct pg *pg, struct lhi_error *err)
{
    return lhi_fail(err, LH_EINVAL,
                    "store \"%s\" is on PostgreSQL: \"pg_dump --schema=leasehold\" backs it up",
                    pg->target.name);
}

static int read_once(struct txn *txn, struct lhi_act *act, struct lhi_error *err)
{
    int rc = pg_pool_take(txn->pg, txn->deadline, &txn->conn, err);

    if (rc != LH_OK) {
        txn->trouble = rc == LH_EUNREACH ? TROUBLE_LOST : TROUBLE_NONE;
        return rc;
    }
    rc = perform_act(txn, act);
    if (rc < 0)
        *err = act->err;
    else
        pg_notices_log(&txn->conn->notices, &txn->pg->log);
    pg_pool_give(txn->pg, txn->conn);
    lhi_arena_clear(&txn->arena);
    return rc;
}

int pg_read(void *self, struct lhi_act *act, struct lhi_error *err)
{
    struct pg *pg = self;
    struct tries tries = {
        .pg = pg, .deadline = pg_real_ms() + time_limit_ms(pg, act, 1), .pause = PAUSE_MS};

    if (act->verb == LHI_BACKUP)
        return fail_backup(pg, err);
    assert(act->verb >= LHI_WRITES && verbs[act->verb].perform != NULL);
    for (;;) {
        struct txn txn = {.pg = pg, .deadline = tries.deadline};
        int rc = read_once(&txn, act, err);
        /* A read that has delivered a part is not repeated, because its result already has that
         * part. */
        if (rc >= 0 || txn.calls > 0 || !may_try_again(&tries, txn.trouble))
            return rc;
        lhi_error_clear(err);
    }
}

int pg_ask(struct pg *pg, enum lhi_postgres_call which, struct args *args, struct rows *rows,
           struct lhi_error *err)
{
    struct txn txn = {.pg = pg, .deadline = pg_real_ms() + pg->opts.busy_ms};
    int rc = pg_pool_take(pg, txn.deadline, &txn.conn, err);

    if (rc != LH_OK) {
        if (args != NULL)
            pg_args_clear(args);
        return rc;
    }
    rc = pg_call(&txn, which, args, rows, err);
    pg_pool_give(pg, txn.conn);
    return rc;
}
