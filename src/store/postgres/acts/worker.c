/* Workers: registration, heartbeats, stop. */
#include "store/postgres/pg.h"

#include "base/sys.h"

/* Two arrays: pids and start times. */
static void arg_leaders(struct args *args, const struct lhi_session *leaders, size_t n)
{
    pg_arg_array(args, OID_INT8, n);
    for (size_t i = 0; i < n; i++)
        pg_put_int(args, leaders[i].pid);
    pg_arg_array(args, OID_INT8, n);
    for (size_t i = 0; i < n; i++)
        pg_put_int(args, leaders[i].start);
}

int pg_act_worker_register(struct txn *txn, struct lhi_act *act)
{
    const lh_worker_opts *opts = act->worker.opts;
    struct lhi_identity self = {0};
    struct args args = {0};

    /* Without a process of ours, only time decides. */
    if (opts->process)
        lhi_identify(&self);
    pg_arg_text(&args, act->worker.id);
    pg_arg_text(&args, opts->label);
    pg_arg_text(&args, opts->process ? self.host : NULL);
    pg_arg_text(&args, opts->process ? self.machine : NULL);
    pg_arg_text(&args, opts->process ? self.boot : NULL);
    pg_arg_opt(&args, self.pid_ns);
    pg_arg_opt(&args, self.time_ns);
    pg_arg_opt(&args, self.pid);
    pg_arg_opt(&args, self.start);
    pg_arg_text(&args, opts->queues);
    pg_arg_text(&args, LH_VERSION);
    pg_arg_opt(&args, opts->interval_ms);
    pg_arg_opt(&args, opts->multiplier);
    pg_arg_bool(&args, opts->tells_started);
    pg_arg_bool(&args, act->worker.leaders != NULL);
    arg_leaders(&args, act->worker.leaders, act->worker.leaders ? act->n : 0);
    return pg_call(txn, LHI_POSTGRES_WORKER_REGISTER, &args, NULL, &act->err);
}

static int64_t beat_id(const struct lhi_act *act, size_t i)
{
    return act->beat.beats[i].job;
}

int pg_act_worker_heartbeat(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_arg_text(&args, act->beat.worker);
    pg_arg_opt(&args, act->beat.interval_ms);
    pg_arg_text(&args, LH_VERSION);
    pg_heartbeat_args(&args, act);
    return pg_call_list(txn, act, LHI_POSTGRES_WORKER_HEARTBEAT, &args, beat_id);
}

int pg_act_worker_started(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_arg_text(&args, act->started.worker);
    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(&args, act->started.started[i].job);
    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(&args, act->started.started[i].token);
    return pg_call(txn, LHI_POSTGRES_WORKER_STARTED, &args, NULL, &act->err);
}

int pg_act_worker_sessions(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_arg_text(&args, act->sessions.worker);
    arg_leaders(&args, act->sessions.leaders, act->n);
    return pg_call(txn, LHI_POSTGRES_WORKER_SESSIONS, &args, NULL, &act->err);
}

int pg_act_worker_degraded(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_arg_text(&args, act->degraded.worker);
    pg_arg_text(&args, act->degraded.why);
    return pg_call(txn, LHI_POSTGRES_WORKER_DEGRADED, &args, NULL, &act->err);
}

/* A process of this machine: only we can tell whether it is gone. */
struct seen {
    int64_t pid, start;
    bool gone;
};

/* LH_EMPTY: nothing is done yet; *seen is the process to check. */
static int leave(struct txn *txn, struct lhi_act *act, struct seen *seen)
{
    struct lhi_identity self;
    struct args args = {0};
    struct rows rows;

    lhi_identify(&self);
    pg_arg_text(&args, act->worker.id);
    pg_arg_text(&args, self.boot);
    pg_arg_text(&args, self.machine);
    pg_arg_opt(&args, self.pid_ns);
    pg_arg_opt(&args, self.time_ns);
    pg_arg_int(&args, self.pid);
    pg_arg_opt(&args, self.start);
    pg_arg_opt(&args, seen->pid);
    pg_arg_opt(&args, seen->start);
    pg_arg_bool(&args, seen->gone);
    int rc = pg_call(txn, LHI_POSTGRES_WORKER_LEAVE, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    if (!pg_row_null(&rows, 0, 0)) {
        *seen = (struct seen){.pid = pg_row_int(&rows, 0, 0), .start = pg_row_int(&rows, 0, 1)};
        rc = LH_EMPTY;
    }
    pg_rows_free(&rows);
    return rc;
}

/* One call; two if another process must be checked, and another round if a third process
 * registered meanwhile. */
int pg_act_worker_stop(struct txn *txn, struct lhi_act *act)
{
    struct seen seen = {0};
    int rc;

    while ((rc = leave(txn, act, &seen)) == LH_EMPTY)
        seen.gone = lhi_process_gone(seen.pid, seen.start);
    return rc;
}
