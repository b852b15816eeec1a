/* Rows of the tables as structs, and values of single columns. */
#include "store/sqlite/rows.h"
#include "store/sqlite/row_sum.h"

#include <string.h>

const char *const sq_job_columns[JOB_COLUMNS] = {
    "id",
    "queue",
    "kind",
    "state",
    "priority",
    "attempt",
    "max_attempts",
    "recoveries",
    "token",
    "worker",
    "lease_until",
    "held_ms",
    "run_at",
    "created_at",
    "started_at",
    "finished_at",
    "state_changed_at",
    "last_heartbeat_at",
    "key",
    "expires_at",
    "lease_ms",
    "backoff_ms",
    "backoff_cap_ms",
    "stage",
    "progress",
    "last_error",
    "checkpoint",
    "result",
    "name_sum",
    "state_sum",
    "payload_sum",
    "payload",
};

const char *sq_text_or_empty(sqlite3_stmt *stmt, int column)
{
    const unsigned char *text = sqlite3_column_text(stmt, column);
    return text ? (const char *)text : "";
}

const char *sq_column_name(sqlite3_stmt *stmt, int column, struct lhi_arena *arena, bool *ok)
{
    const char *text = sq_column_text(stmt, column, arena, ok);
    return text || !*ok ? text : "";
}

const char *sq_column_text(sqlite3_stmt *stmt, int column, struct lhi_arena *arena, bool *ok)
{
    const unsigned char *text = sqlite3_column_text(stmt, column);

    if (text == NULL) {
        /* NULL is a valid value. NULL for a text means that there was no memory to convert it. */
        if (sqlite3_column_type(stmt, column) != SQLITE_NULL)
            *ok = false;
        return NULL;
    }
    char *copy = lhi_arena_copy(arena, text, (size_t)sqlite3_column_bytes(stmt, column));
    if (copy == NULL)
        *ok = false;
    return copy;
}

const void *sq_column_raw(sqlite3_stmt *stmt, int column, size_t *len)
{
    /* As text it is UTF-8, whatever encoding the database has. */
    const void *bytes = sqlite3_column_type(stmt, column) == SQLITE_TEXT
                            ? (const void *)sqlite3_column_text(stmt, column)
                            : sqlite3_column_blob(stmt, column);
    *len = bytes ? (size_t)sqlite3_column_bytes(stmt, column) : 0;
    return bytes;
}

static const void *column_bytes(sqlite3_stmt *stmt, int column, struct lhi_arena *arena,
                                size_t *len, bool *is_text, bool *ok)
{
    int type = sqlite3_column_type(stmt, column);

    *len = 0;
    *is_text = false;
    if (type == SQLITE_NULL)
        return NULL;
    const void *bytes = sq_column_raw(stmt, column, len);
    /* A plain INSERT may have put any bytes into a text. */
    *is_text = type == SQLITE_TEXT && lh_text_ok(bytes, *len);
    void *copy = lhi_arena_copy(arena, bytes, *len);
    if (copy == NULL)
        *ok = false;
    return copy;
}

lh_state sq_column_state(sqlite3_stmt *stmt, int column)
{
    const unsigned char *text = sqlite3_column_text(stmt, column);
    return text ? lh_state_parse((const char *)text) : 0;
}

bool sq_job_from_row(sqlite3_stmt *s, int64_t now, struct lhi_arena *arena, lh_job *job)
{
    bool ok = true;

    memset(job, 0, sizeof *job);
    job->id = sqlite3_column_int64(s, JOB_ID);
    job->token = sqlite3_column_int64(s, JOB_TOKEN);
    job->queue = sq_column_name(s, JOB_QUEUE, arena, &ok);
    job->kind = sq_column_text(s, JOB_KIND, arena, &ok);
    job->state = sq_column_state(s, JOB_STATE);
    job->priority = sqlite3_column_int(s, JOB_PRIORITY);
    job->payload =
        column_bytes(s, JOB_PAYLOAD, arena, &job->payload_len, &job->payload_is_text, &ok);
    job->key = sq_column_text(s, JOB_KEY, arena, &ok);
    job->attempt = sqlite3_column_int64(s, JOB_ATTEMPT);
    job->max_attempts = sqlite3_column_int64(s, JOB_MAX_ATTEMPTS);
    job->recoveries = sqlite3_column_int64(s, JOB_RECOVERIES);
    job->worker = sq_column_text(s, JOB_WORKER, arena, &ok);
    job->lease_until = sqlite3_column_int64(s, JOB_LEASE_UNTIL);
    job->lease_ms = sqlite3_column_int64(s, JOB_HELD_MS);
    job->run_at = sqlite3_column_int64(s, JOB_RUN_AT);
    job->created_at = sqlite3_column_int64(s, JOB_CREATED_AT);
    job->started_at = sqlite3_column_int64(s, JOB_STARTED_AT);
    job->finished_at = sqlite3_column_int64(s, JOB_FINISHED_AT);
    job->state_changed_at = sqlite3_column_int64(s, JOB_STATE_CHANGED_AT);
    job->last_heartbeat_at = sqlite3_column_int64(s, JOB_LAST_HEARTBEAT_AT);
    job->expires_at = sqlite3_column_int64(s, JOB_EXPIRES_AT);
    job->last_error = sq_column_text(s, JOB_LAST_ERROR, arena, &ok);
    job->stage = sq_column_text(s, JOB_STAGE, arena, &ok);
    job->progress = sqlite3_column_type(s, JOB_PROGRESS) == SQLITE_NULL
                        ? -1
                        : sqlite3_column_int(s, JOB_PROGRESS);
    job->checkpoint = sq_column_text(s, JOB_CHECKPOINT, arena, &ok);
    job->result = column_bytes(s, JOB_RESULT, arena, &job->result_len, &job->result_is_text, &ok);
    job->expired = job->state == LH_RUNNING && job->lease_until <= now;
    job->remaining_ms =
        job->state == LH_RUNNING && job->lease_until > now ? job->lease_until - now : 0;
    return ok;
}

bool sq_jobs_add(lh_jobs *jobs, size_t *room, lh_job **slot)
{
    if (jobs->n == *room) {
        size_t more = *room ? *room * 2 : 8;
        lh_job *grown = lhi_realloc(jobs->job, more * sizeof *grown);
        if (grown == NULL)
            return false;
        jobs->job = grown;
        *room = more;
    }
    *slot = &jobs->job[jobs->n++];
    return true;
}

bool sq_lease_from_row(sqlite3_stmt *s, int64_t now, struct lhi_arena *arena, lh_lease *lease)
{
    bool ok = true;

    memset(lease, 0, sizeof *lease);
    lease->scope = sq_column_name(s, 0, arena, &ok);
    lease->name = sq_column_name(s, 1, arena, &ok);
    lease->owner = sq_column_text(s, 2, arena, &ok);
    lease->token = sqlite3_column_int64(s, 3);
    lease->acquired_at = sqlite3_column_int64(s, 5);
    lease->expires_at = sqlite3_column_int64(s, 6);
    lease->value = sq_column_text(s, 7, arena, &ok);
    lease->rows = sqlite3_column_type(s, 8) == SQLITE_NULL ? -1 : sqlite3_column_int64(s, 8);
    lease->last_completed_at = sqlite3_column_int64(s, 9);
    lease->stale = lease->owner != NULL && lease->expires_at <= now;
    lease->remaining_ms =
        lease->owner != NULL && lease->expires_at > now ? lease->expires_at - now : 0;
    return ok;
}

/* The columns of a policy in the order of the table, after queue and kind. */
static void policy_from_row(sqlite3_stmt *s, lh_policy *p)
{
    struct {
        unsigned bit;
        int64_t *value;
    } const ints[] = {
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

    memset(p, 0, sizeof *p);
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        int column = (int)i + 2;
        if (sqlite3_column_type(s, column) == SQLITE_NULL)
            continue;
        int64_t value = sqlite3_column_int64(s, column);
        p->set |= ints[i].bit;
        if (ints[i].value != NULL)
            *ints[i].value = value;
        else if (ints[i].bit == LH_POLICY_ACTION)
            p->action = (lh_action)value;
        else if (ints[i].bit == LH_POLICY_AUDIT)
            p->audit = (lh_audit)value;
        else if (ints[i].bit == LH_POLICY_RECOVERY)
            p->recovery = value != 0;
        else
            p->exclusive = value != 0;
    }
}

int sq_load_policies(struct conn *conn, lh_policies *out, struct lhi_error *err)
{
    size_t room = 0;
    int rc;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_POLICY_LIST, err, "");

    if (stmt == NULL)
        return err->status;
    if (arena == NULL)
        return lhi_no_memory(err);
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        bool ok = true;
        if (!sq_row_sum_matches(stmt)) {
            char name[300];
            lhi_format(name, sizeof name, "%s/%s", sq_text_or_empty(stmt, 0),
                       sq_text_or_empty(stmt, 1));
            sq_reset(stmt);
            return sq_damaged_row("policy", name, err);
        }
        if (out->n == room) {
            room = room ? room * 2 : 8;
            lh_policy_row *grown = lhi_realloc(out->row, room * sizeof *grown);
            if (grown == NULL)
                goto no_memory;
            out->row = grown;
        }
        lh_policy_row *row = &out->row[out->n];
        row->queue = sq_column_name(stmt, 0, arena, &ok);
        row->kind = sq_column_name(stmt, 1, arena, &ok);
        if (!ok)
            goto no_memory;
        if (strcmp(row->queue, "*") == 0)
            row->queue = NULL;
        if (strcmp(row->kind, "*") == 0)
            row->kind = NULL;
        policy_from_row(stmt, &row->policy);
        out->n++;
    }
    return rc < 0 ? rc : LH_OK;

no_memory:
    sq_reset(stmt);
    return lhi_no_memory(err);
}
