/* The acts of an operator: cancel, retry, delete, reschedule; queues, policies, scopes. Each is
 * one call; the rules are in sql/postgres/migrations (50_operator.sql). */
#include "store/postgres/pg.h"

#include "base/hook.h"

#include <string.h>

/* ---- jobs ---- */

static int64_t id_at(const struct lhi_act *act, size_t i)
{
    return act->ids.ids[i];
}

static void put_ids(struct args *args, const struct lhi_act *act)
{
    pg_arg_array(args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(args, act->ids.ids[i]);
}

int pg_act_cancel(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    put_ids(&args, act);
    int rc = pg_call_list(txn, act, LHI_POSTGRES_JOB_CANCEL, &args, id_at);
    LHI_POINT("job_cancel:inside");
    return rc;
}

int pg_act_retry(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    put_ids(&args, act);
    pg_arg_bool(&args, (act->ids.how & LH_RETRY_FORCE) != 0);
    pg_arg_bool(&args, (act->ids.how & LH_RETRY_NOW) != 0);
    int rc = pg_call_list(txn, act, LHI_POSTGRES_JOB_RETRY, &args, id_at);
    LHI_POINT("job_retry:inside");
    return rc;
}

int pg_act_delete(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    put_ids(&args, act);
    int rc = pg_call_list(txn, act, LHI_POSTGRES_JOB_DELETE, &args, NULL);
    LHI_POINT("job_delete:inside");
    return rc;
}

int pg_act_reschedule(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    put_ids(&args, act);
    pg_arg_time(&args, act->ids.run_at);
    pg_arg_int(&args, act->ids.delay_ms);
    return pg_call_list(txn, act, LHI_POSTGRES_JOB_RESCHEDULE, &args, id_at);
}

/* ---- queues ---- */

int pg_act_queue_pause(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_arg_text(&args, act->queue.queue);
    pg_arg_bool(&args, act->queue.paused);
    return pg_call(txn, LHI_POSTGRES_QUEUE_SWITCH, &args, NULL, &act->err);
}

int pg_act_queue_purge(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};
    struct rows rows = {0};

    pg_arg_text(&args, act->queue.queue);
    int rc = pg_call(txn, LHI_POSTGRES_QUEUE_PURGE, &args, &rows, &act->err);
    if (rc == LH_OK) {
        act->queue.count = pg_row_int(&rows, 0, 0);
        act->queue.more = pg_row_bool(&rows, 0, 1);
    }
    pg_rows_free(&rows);
    return rc;
}

int pg_act_queue_delete(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_arg_text(&args, act->queue.queue);
    return pg_call(txn, LHI_POSTGRES_QUEUE_DELETE, &args, NULL, &act->err);
}

/* ---- policies ---- */

/* The columns of a policy and the fields of lh_policy, in the order of leasehold.policy_set(). */
static const struct {
    unsigned field;
    const char *column;
} columns[] = {
    {LH_POLICY_LEASE, "lease_ms"},
    {LH_POLICY_MAX_ATTEMPTS, "max_attempts"},
    {LH_POLICY_MAX_RECOVERIES, "max_recoveries"},
    {LH_POLICY_ACTION, "action"},
    {LH_POLICY_RECOVERY, "recovery"},
    {LH_POLICY_RECOVERY_BACKOFF, "recovery_backoff_ms"},
    {LH_POLICY_BACKOFF, "backoff_ms"},
    {LH_POLICY_BACKOFF_CAP, "backoff_cap_ms"},
    {LH_POLICY_TIMEOUT, "timeout_ms"},
    {LH_POLICY_EXCLUSIVE, "exclusive"},
    {LH_POLICY_AUDIT, "audit"},
    {LH_POLICY_RETENTION, "retention_ms"},
    {LH_POLICY_RETENTION_FAILED, "retention_failed_ms"},
    {LH_POLICY_MAX_PAYLOAD, "max_payload"},
    {LH_POLICY_RATE, "rate_n"},
    {LH_POLICY_RATE, "rate_per_ms"},
    {LH_POLICY_CONCURRENCY, "concurrency"},
    {LH_POLICY_MAX_OUTPUT, "max_output"},
    {LH_POLICY_RETENTION_OUTPUT, "retention_output_ms"},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

/* In the same order. Booleans are sent as numbers, too; the statement converts them. */
static void policy_values(const lh_policy *p, int64_t out[COLUMNS])
{
    const int64_t values[] = {
        p->lease_ms,
        p->max_attempts,
        p->max_recoveries,
        (int64_t)p->action,
        p->recovery,
        p->recovery_backoff_ms,
        p->backoff_ms,
        p->backoff_cap_ms,
        p->timeout_ms,
        p->exclusive,
        (int64_t)p->audit,
        p->retention_ms,
        p->retention_failed_ms,
        p->max_payload,
        p->rate_n,
        p->rate_per_ms,
        p->concurrency,
        p->max_output,
        p->retention_output_ms,
    };
    _Static_assert(sizeof values == COLUMNS * sizeof values[0], "a value for every column");

    memcpy(out, values, sizeof values);
}

static void put_unset(struct args *args, unsigned unset)
{
    size_t n = 0;

    for (size_t i = 0; i < COLUMNS; i++)
        n += (unset & columns[i].field) != 0;
    pg_arg_array(args, OID_TEXT, n);
    for (size_t i = 0; i < COLUMNS; i++)
        if (unset & columns[i].field)
            pg_put_text(args, columns[i].column);
}

int pg_act_policy_set(struct txn *txn, struct lhi_act *act)
{
    const lh_policy *policy = act->policy.policy;
    int64_t values[COLUMNS];
    struct args args = {0};

    policy_values(policy, values);
    pg_arg_text(&args, act->policy.queue);
    pg_arg_text(&args, act->policy.kind);
    for (size_t i = 0; i < COLUMNS; i++)
        pg_arg_ref(&args, (policy->set & columns[i].field) ? &values[i] : NULL);
    put_unset(&args, act->policy.unset);
    return pg_call(txn, LHI_POSTGRES_POLICY_SET, &args, NULL, &act->err);
}

/* ---- scopes of named leases ---- */

int pg_act_scope_set(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_arg_text(&args, act->scope.scope);
    pg_arg_opt(&args, act->scope.ttl_ms);
    return pg_call(txn, LHI_POSTGRES_SCOPE_SET, &args, NULL, &act->err);
}
