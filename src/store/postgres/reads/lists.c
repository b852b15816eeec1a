/* Lists: jobs, queues, policies, leases, workers, and the store itself. Each is one SELECT and
 * sees one snapshot. */
#include "store/postgres/pg.h"

#include "base/clock.h"

#include <string.h>

enum { DEFAULT_LIMIT = 100 };

/* ---- arrays with one element per row; strings are in an arena ---- */

bool pg_list_room(void *array, const struct rows *rows, size_t size)
{
    void *old, *room = lhi_calloc((size_t)rows->n + 1, size);

    /* All object pointers have the same representation. */
    memcpy(&old, array, sizeof old);
    lhi_free(old);
    memcpy(array, &room, sizeof room);
    return room != NULL;
}

/* ---- jobs ---- */

/* Columns after those of the job: the time, and whether its lease has expired. */
enum { JOB_SEEN_AT = JOB_COLUMNS, JOB_EXPIRED };

static int jobs_from_rows(const struct rows *rows, lh_jobs *out, struct lhi_error *err)
{
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    bool ok = arena != NULL;
    size_t room = 0;

    for (int row = 0; row < rows->n && ok; row++) {
        lh_job *job;
        ok = pg_jobs_add(out, &room, &job) &&
             pg_job_from_row(rows, row, pg_row_time(rows, row, JOB_SEEN_AT), arena, job);
        if (ok)
            job->expired = pg_row_bool(rows, row, JOB_EXPIRED);
    }
    return ok ? LH_OK : lhi_no_memory(err);
}

int pg_read_job(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};
    struct rows rows;

    pg_arg_int(&args, act->jobs.id);
    int rc = pg_call(txn, LHI_POSTGRES_JOB_GET, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    enum { RESULT_BYTES = JOB_COLUMNS + 2 };
    rc = jobs_from_rows(&rows, act->jobs.out, &act->err);
    if (rc == LH_OK && rows.n == 1 && !pg_row_null(&rows, 0, RESULT_BYTES)) {
        lh_job *job = &act->jobs.out->job[0];
        int64_t cut = pg_row_int(&rows, 0, RESULT_BYTES) - (int64_t)job->result_len;
        job->result_cut = job->state == LH_COMPLETED && cut > 0 ? cut : 0;
    }
    pg_rows_free(&rows);
    if (rc == LH_OK && act->jobs.out->n == 0)
        return lhi_fail(&act->err, LH_ENOTFOUND, "there is no job %lld", (long long)act->jobs.id);
    return rc;
}

/* Long columns are read only if the caller wants them. */
static const char all_columns[] = "j.*";
static const char brief_columns[] =
    "j.id, j.token, j.run_at, j.created_at, j.state_changed_at, j.lease_until, j.started_at, "
    "j.finished_at, j.last_heartbeat_at, j.expires_at, j.held_ms, j.lease_ms, j.backoff_ms, "
    "j.backoff_cap_ms, j.payload_sum, j.nonce, j.priority, j.attempt, j.max_attempts, "
    "j.recoveries, j.progress, j.again, j.plain, j.state, j.queue, j.kind, j.worker, j.key, "
    "j.stage, j.last_error, NULL, NULL, NULL, NULL, NULL";

/* Conditions that let a partial index find all jobs of a state; ended jobs are found by id. */
static const char *state_terms(lh_state state)
{
    switch (state) {
    case LH_SCHEDULED:
        return " AND j.state = 'scheduled'";
    case LH_PENDING: /* in two indexes */
        return " AND j.state = 'pending' AND (j.again OR NOT j.again)";
    case LH_RUNNING:
        return " AND j.state = 'running'";
    case LH_COMPLETED:
        return " AND j.state = 'completed'";
    case LH_FAILED:
        return " AND j.state = 'failed'";
    case LH_CANCELLED:
        return " AND j.state = 'cancelled'";
    default:
        return "";
    }
}

/* The statement is generated, because its columns decide which index serves it. Values are still
 * parameters. */
int pg_read_jobs(struct txn *txn, struct lhi_act *act)
{
    const lh_job_filter *f = act->jobs.filter;
    lh_state state = f->expired ? LH_RUNNING : f->state;
    struct args args = {0};
    struct rows rows;
    char text[1536];
    size_t used = lhi_format(
        text, sizeof text,
        "WITH t AS MATERIALIZED (SELECT c.now, leasehold.due(c.now, m.no_expiry_before) AS due "
        "FROM (SELECT leasehold.clock() AS now) c, leasehold.meta m) "
        "SELECT %s, t.now, coalesce(j.lease_until <= t.due, false) "
        "FROM leasehold.job j, t WHERE j.id > $1",
        f->brief ? brief_columns : all_columns);
    pg_arg_int(&args, f->after);
    pg_arg_int(&args, f->limit ? (int64_t)f->limit : DEFAULT_LIMIT);
#define TERM(given, column, value)                                                              \
    if (given) {                                                                                \
        pg_arg_text(&args, value);                                                              \
        used += lhi_format(text + used, sizeof text - used, " AND j." column " = $%d", args.n); \
    }
    TERM(f->queue, "queue", f->queue)
    TERM(f->kind, "kind", f->kind)
    TERM(f->worker, "worker", f->worker)
    TERM(f->key, "key", f->key)
#undef TERM
    used += lhi_format(text + used, sizeof text - used, "%s%s%s", state_terms(state),
                       f->worker ? state_terms(LH_RUNNING) : "",
                       f->expired ? " AND j.lease_until <= t.due" : "");
    /* Live jobs are few compared with ended ones: they are read and sorted, not searched among
     * all ids. */
    bool few = state == LH_SCHEDULED || state == LH_PENDING || state == LH_RUNNING || f->worker;
    lhi_format(text + used, sizeof text - used, " ORDER BY j.id%s LIMIT $2", few ? " + 0" : "");
    int rc = pg_call_text(txn, text, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    rc = jobs_from_rows(&rows, act->jobs.out, &act->err);
    pg_rows_free(&rows);
    return rc;
}

/* ---- queues and policies ---- */

int pg_read_queues(struct txn *txn, struct lhi_act *act)
{
    lh_queues *out = act->queues.out;
    struct rows rows;
    int rc = pg_call(txn, LHI_POSTGRES_QUEUE_LIST, NULL, &rows, &act->err);

    if (rc != LH_OK)
        return rc;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    bool ok = arena != NULL && pg_list_room(&out->queue, &rows, sizeof *out->queue);
    for (int row = 0; row < rows.n && ok; row++) {
        lh_queue *q = &out->queue[out->n++];
        int64_t *const numbers[] = {&q->scheduled,         &q->pending,       &q->running,
                                    &q->completed,         &q->failed,        &q->cancelled,
                                    &q->oldest_pending_ms, &q->rate_n,        &q->rate_per_ms,
                                    &q->concurrency,       &q->hour_enqueued, &q->hour_claimed,
                                    &q->hour_completed,    &q->hour_failed,   &q->hour_recovered,
                                    &q->hour_ended,        &q->hour_wait_ms,  &q->hour_run_ms};
        q->queue = pg_row_copy(&rows, row, 0, arena, &ok);
        q->paused = pg_row_bool(&rows, row, 1);
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
            *numbers[i] = pg_row_int(&rows, row, (int)i + 2);
        if (pg_row_null(&rows, row, 8))
            q->oldest_pending_ms = -1;
    }
    pg_rows_free(&rows);
    return ok ? LH_OK : lhi_no_memory(&act->err);
}

/* The columns of a policy in the order of the table, after queue and kind. */
static void policy_from_row(const struct rows *rows, int row, lh_policy *p)
{
    struct {
        unsigned bit;
        int64_t *value;
    } const fields[] = {
        {LH_POLICY_LEASE, &p->lease_ms},
        {LH_POLICY_MAX_ATTEMPTS, &p->max_attempts},
        {LH_POLICY_MAX_RECOVERIES, &p->max_recoveries},
        {LH_POLICY_ACTION, NULL},
        {LH_POLICY_RECOVERY, NULL},
        {LH_POLICY_RECOVERY_BACKOFF, &p->recovery_backoff_ms},
        {LH_POLICY_BACKOFF, &p->backoff_ms},
        {LH_POLICY_BACKOFF_CAP, &p->backoff_cap_ms},
        {LH_POLICY_TIMEOUT, &p->timeout_ms},
        {LH_POLICY_EXCLUSIVE, NULL},
        {LH_POLICY_AUDIT, NULL},
        {LH_POLICY_RETENTION, &p->retention_ms},
        {LH_POLICY_RETENTION_FAILED, &p->retention_failed_ms},
        {LH_POLICY_MAX_PAYLOAD, &p->max_payload},
        {LH_POLICY_RATE, &p->rate_n},
        {LH_POLICY_RATE, &p->rate_per_ms},
        {LH_POLICY_CONCURRENCY, &p->concurrency},
        {LH_POLICY_MAX_OUTPUT, &p->max_output},
        {LH_POLICY_RETENTION_OUTPUT, &p->retention_output_ms},
    };

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        int column = (int)i + 2;
        if (pg_row_null(rows, row, column))
            continue;
        int64_t value = pg_row_int(rows, row, column);
        p->set |= fields[i].bit;
        if (fields[i].value != NULL)
            *fields[i].value = value;
        else if (fields[i].bit == LH_POLICY_ACTION)
            p->action = (lh_action)value;
        else if (fields[i].bit == LH_POLICY_AUDIT)
            p->audit = (lh_audit)value;
        else if (fields[i].bit == LH_POLICY_RECOVERY)
            p->recovery = value != 0;
        else
            p->exclusive = value != 0;
    }
}

static const char *unless_any(const char *name)
{
    return name != NULL && strcmp(name, "*") == 0 ? NULL : name;
}

int pg_read_policies(struct txn *txn, struct lhi_act *act)
{
    lh_policies *out = act->policies.out;
    struct rows rows;
    int rc = pg_call(txn, LHI_POSTGRES_POLICY_LIST, NULL, &rows, &act->err);

    if (rc != LH_OK)
        return rc;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    bool ok = arena != NULL && pg_list_room(&out->row, &rows, sizeof *out->row);
    for (int row = 0; row < rows.n && ok; row++) {
        lh_policy_row *p = &out->row[out->n++];
        p->queue = unless_any(pg_row_copy(&rows, row, 0, arena, &ok));
        p->kind = unless_any(pg_row_copy(&rows, row, 1, arena, &ok));
        policy_from_row(&rows, row, &p->policy);
    }
    pg_rows_free(&rows);
    return ok ? LH_OK : lhi_no_memory(&act->err);
}

/* ---- named leases ---- */

bool pg_lease_from_row(const struct rows *rows, int row, int column, struct lhi_arena *arena,
                       lh_lease *lease)
{
    enum {
        SCOPE,
        NAME,
        OWNER,
        TOKEN,
        ACQUIRED_AT,
        EXPIRES_AT,
        REMAINING_MS,
        STALE,
        VALUE,
        ROWS,
        DONE
    };
    bool ok = true;

    memset(lease, 0, sizeof *lease);
    lease->scope = pg_row_copy(rows, row, column + SCOPE, arena, &ok);
    lease->name = pg_row_copy(rows, row, column + NAME, arena, &ok);
    lease->owner = pg_row_copy(rows, row, column + OWNER, arena, &ok);
    lease->token = pg_row_int(rows, row, column + TOKEN);
    lease->acquired_at = pg_row_time(rows, row, column + ACQUIRED_AT);
    lease->expires_at = pg_row_time(rows, row, column + EXPIRES_AT);
    lease->remaining_ms = pg_row_int(rows, row, column + REMAINING_MS);
    lease->stale = pg_row_bool(rows, row, column + STALE);
    lease->value = pg_row_copy(rows, row, column + VALUE, arena, &ok);
    lease->rows = pg_row_null(rows, row, column + ROWS) ? -1 : pg_row_int(rows, row, column + ROWS);
    lease->last_completed_at = pg_row_time(rows, row, column + DONE);
    return ok;
}

int pg_read_leases(struct txn *txn, struct lhi_act *act)
{
    lh_leases *out = act->leases.out;
    bool one = act->leases.name != NULL;
    struct args args = {0};
    struct rows rows;

    pg_arg_text(&args, act->leases.scope);
    if (one)
        pg_arg_text(&args, act->leases.name);
    int rc = pg_call(txn, one ? LHI_POSTGRES_LEASE_GET : LHI_POSTGRES_LEASE_LIST, &args, &rows,
                     &act->err);
    if (rc != LH_OK)
        return rc;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    bool ok = arena != NULL && pg_list_room(&out->lease, &rows, sizeof *out->lease);
    for (int row = 0; row < rows.n && ok; row++)
        ok = pg_lease_from_row(&rows, row, 0, arena, &out->lease[out->n++]);
    pg_rows_free(&rows);
    return ok ? LH_OK : lhi_no_memory(&act->err);
}

/* ---- workers ---- */

/* A constant for each state: the caller compares and keeps it. */
static const char *worker_state(const char *state)
{
    static const char *const states[] = {"alive", "late", "dead", "stopped"};

    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        if (strcmp(state, states[i]) == 0)
            return states[i];
    return "alive";
}

static bool worker_from_row(const struct rows *rows, int row, struct lhi_arena *arena, lh_worker *w)
{
    bool ok = true;

    w->id = pg_row_copy(rows, row, 0, arena, &ok);
    w->label = pg_row_copy(rows, row, 1, arena, &ok);
    w->host = pg_row_copy(rows, row, 2, arena, &ok);
    w->queues = pg_row_copy(rows, row, 3, arena, &ok);
    w->version = pg_row_copy(rows, row, 4, arena, &ok);
    w->state = worker_state(pg_row_text(rows, row, 5));
    w->marked_dead = pg_row_bool(rows, row, 6);
    w->pid = pg_row_int(rows, row, 7);
    w->interval_ms = pg_row_int(rows, row, 8);
    w->multiplier = pg_row_int(rows, row, 9);
    w->registered_at = pg_row_time(rows, row, 10);
    w->last_heartbeat_at = pg_row_time(rows, row, 11);
    w->stopped_at = pg_row_time(rows, row, 12);
    w->silent_ms = pg_row_int(rows, row, 13);
    w->degraded = pg_row_copy(rows, row, 14, arena, &ok);
    w->running = pg_row_int(rows, row, 15);
    return ok;
}

int pg_read_workers(struct txn *txn, struct lhi_act *act)
{
    lh_workers *out = act->workers.out;
    struct rows rows;
    int rc = pg_call(txn, LHI_POSTGRES_WORKER_LIST, NULL, &rows, &act->err);

    if (rc != LH_OK)
        return rc;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    bool ok = arena != NULL && pg_list_room(&out->worker, &rows, sizeof *out->worker);
    for (int row = 0; row < rows.n && ok; row++)
        ok = worker_from_row(&rows, row, arena, &out->worker[out->n++]);
    pg_rows_free(&rows);
    return ok ? LH_OK : lhi_no_memory(&act->err);
}

/* ---- the store as a whole ---- */

static void total_from_row(const struct rows *rows, int row, int column, lh_store_info *info)
{
    const struct {
        const char *key;
        int64_t *n;
    } totals[] = {
        {"recovery:startup", &info->recovery.startup},
        {"recovery:claim", &info->recovery.claim},
        {"recovery:timer", &info->recovery.timer},
        {"recovery:expiry", &info->recovery.expiry},
        {"recovery:death", &info->recovery.death},
        {"recovery:manual", &info->recovery.manual},
        {"recovery:retried", &info->recovery.retried},
        {"recovery:made_pending", &info->recovery.made_pending},
        {"recovery:failed", &info->recovery.failed},
        {"recovery:released", &info->recovery.released},
        {"recovery:leases", &info->recovery.leases},
        {"recovery:dead_workers", &info->recovery.dead_workers},
        {"recovery:failures", &info->recovery.failures},
        {"recovery:duration_ms", &info->recovery.duration_ms},
    };
    const char *key = pg_row_text(rows, row, column);

    for (size_t i = 0; i < sizeof totals / sizeof totals[0] && key != NULL; i++)
        if (strcmp(key, totals[i].key) == 0)
            *totals[i].n = pg_row_int(rows, row, column + 1);
}

int pg_read_stats(struct txn *txn, struct lhi_act *act)
{
    lh_store_info *info = act->info;
    struct rows rows;
    int rc = pg_call(txn, LHI_POSTGRES_STORE_STATS, NULL, &rows, &act->err);

    if (rc != LH_OK)
        return rc;
    memset(info, 0, sizeof *info);
    info->kind = "postgres";
    lhi_format(info->url, sizeof info->url, "%s", pg_name(txn->pg));
    lhi_format(info->uuid, sizeof info->uuid, "%s", pg_row_text(&rows, 0, 0));
    info->schema = (int)pg_row_int(&rows, 0, 1);
    info->epoch = pg_row_int(&rows, 0, 2);
    lhi_format(info->degraded, sizeof info->degraded, "%s", pg_row_text(&rows, 0, 3));
    info->clock_skew_ms = lhi_wall_ms() - pg_row_time(&rows, 0, 4);
    info->next_due_at = pg_row_time(&rows, 0, 5);
    info->file_bytes = pg_row_int(&rows, 0, 6);
    info->wal_bytes = info->free_bytes = -1; /* on the server, which does not report them */
    info->changes = pg_row_int(&rows, 0, 7);
    info->workers_alive = pg_row_int(&rows, 0, 8);
    info->workers_late = pg_row_int(&rows, 0, 9);
    info->workers_dead = pg_row_int(&rows, 0, 10);
    info->workers_degraded = pg_row_int(&rows, 0, 11);
    for (int row = 0; row < rows.n; row++)
        total_from_row(&rows, row, 12, info);
    pg_rows_free(&rows);
    return LH_OK;
}
