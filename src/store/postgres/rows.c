/* rows.c: results of a call, in binary, and how they become values and structs. */
#include "store/postgres/pg.h"

#include <assert.h>
#include <string.h>

#define EPOCH_2000_MS INT64_C(946684800000)

void pg_rows_free(struct rows *rows)
{
    PQclear(rows->result);
    *rows = (struct rows){0};
}

bool pg_row_null(const struct rows *rows, int row, int column)
{
    return PQgetisnull(rows->result, row, column) != 0;
}

/* A whole number of 1, 2, 4 or 8 bytes. */
static int64_t number(const struct rows *rows, int row, int column)
{
    const unsigned char *at = (const unsigned char *)PQgetvalue(rows->result, row, column);
    int len = PQgetlength(rows->result, row, column);
    uint64_t value = 0;

    assert(len == 1 || len == 2 || len == 4 || len == 8);
    if (len > 1 && (at[0] & 0x80) != 0)
        value = UINT64_MAX;
    for (int i = 0; i < len; i++)
        value = value << 8 | at[i];
    return (int64_t)value;
}

int64_t pg_row_int(const struct rows *rows, int row, int column)
{
    return pg_row_null(rows, row, column) ? 0 : number(rows, row, column);
}

bool pg_row_bool(const struct rows *rows, int row, int column)
{
    return pg_row_int(rows, row, column) != 0;
}

int64_t pg_row_time(const struct rows *rows, int row, int column)
{
    if (pg_row_null(rows, row, column))
        return 0;
    int64_t us = number(rows, row, column);
    if (us == INT64_MAX || us == INT64_MIN)
        return 0;
    return (us - (us % 1000 + 1000) % 1000) / 1000 + EPOCH_2000_MS; /* rounded down */
}

const char *pg_row_text(const struct rows *rows, int row, int column)
{
    return pg_row_null(rows, row, column) ? NULL : PQgetvalue(rows->result, row, column);
}

const void *pg_row_bytes(const struct rows *rows, int row, int column, size_t *len)
{
    *len = (size_t)PQgetlength(rows->result, row, column);
    return pg_row_text(rows, row, column);
}

/* The copy ends with an additional zero byte. */
static void *copy_bytes(const struct rows *rows, int row, int column, struct lhi_arena *arena,
                        size_t *len, bool *ok)
{
    const void *bytes = pg_row_bytes(rows, row, column, len);

    if (bytes == NULL)
        return NULL;
    void *copy = lhi_arena_copy(arena, bytes, *len);
    *ok = *ok && copy != NULL;
    return copy;
}

char *pg_row_copy(const struct rows *rows, int row, int column, struct lhi_arena *arena, bool *ok)
{
    size_t len;
    return copy_bytes(rows, row, column, arena, &len, ok);
}

lh_state pg_row_state(const struct rows *rows, int row, int column)
{
    const char *text = pg_row_text(rows, row, column);
    return text != NULL ? lh_state_parse(text) : 0;
}

/* Copy a value that is text in this column, or else bytes in the next one. */
static void *copy_either(const struct rows *rows, int row, int column, struct lhi_arena *arena,
                         size_t *len, bool *is_text, bool *ok)
{
    *is_text = !pg_row_null(rows, row, column);
    return copy_bytes(rows, row, *is_text ? column : column + 1, arena, len, ok);
}

bool pg_job_from_row(const struct rows *rows, int row, int64_t now, struct lhi_arena *arena,
                     lh_job *job)
{
    bool ok = true;

    memset(job, 0, sizeof *job);
    job->id = pg_row_int(rows, row, JOB_ID);
    job->token = pg_row_int(rows, row, JOB_TOKEN);
    job->queue = pg_row_copy(rows, row, JOB_QUEUE, arena, &ok);
    job->kind = pg_row_copy(rows, row, JOB_KIND, arena, &ok);
    job->state = pg_row_state(rows, row, JOB_STATE);
    job->priority = (int)pg_row_int(rows, row, JOB_PRIORITY);
    job->payload =
        copy_either(rows, row, JOB_PAYLOAD, arena, &job->payload_len, &job->payload_is_text, &ok);
    job->key = pg_row_copy(rows, row, JOB_KEY, arena, &ok);
    job->attempt = pg_row_int(rows, row, JOB_ATTEMPT);
    job->max_attempts = pg_row_int(rows, row, JOB_MAX_ATTEMPTS);
    job->recoveries = pg_row_int(rows, row, JOB_RECOVERIES);
    job->worker = pg_row_copy(rows, row, JOB_WORKER, arena, &ok);
    job->lease_until = pg_row_time(rows, row, JOB_LEASE_UNTIL);
    job->lease_ms = pg_row_int(rows, row, JOB_HELD_MS);
    job->run_at = pg_row_time(rows, row, JOB_RUN_AT);
    job->created_at = pg_row_time(rows, row, JOB_CREATED_AT);
    job->started_at = pg_row_time(rows, row, JOB_STARTED_AT);
    job->finished_at = pg_row_time(rows, row, JOB_FINISHED_AT);
    job->state_changed_at = pg_row_time(rows, row, JOB_STATE_CHANGED_AT);
    job->last_heartbeat_at = pg_row_time(rows, row, JOB_LAST_HEARTBEAT_AT);
    job->expires_at = pg_row_time(rows, row, JOB_EXPIRES_AT);
    job->last_error = pg_row_copy(rows, row, JOB_LAST_ERROR, arena, &ok);
    job->stage = pg_row_copy(rows, row, JOB_STAGE, arena, &ok);
    job->progress =
        pg_row_null(rows, row, JOB_PROGRESS) ? -1 : (int)pg_row_int(rows, row, JOB_PROGRESS);
    job->checkpoint = pg_row_copy(rows, row, JOB_CHECKPOINT, arena, &ok);
    job->result =
        copy_either(rows, row, JOB_RESULT, arena, &job->result_len, &job->result_is_text, &ok);
    job->expired = job->state == LH_RUNNING && job->lease_until <= now;
    job->remaining_ms =
        job->state == LH_RUNNING && job->lease_until > now ? job->lease_until - now : 0;
    return ok;
}

bool pg_jobs_add(lh_jobs *jobs, size_t *room, lh_job **out)
{
    if (jobs->n == *room) {
        size_t more = *room ? *room * 2 : 8;
        lh_job *grown = lhi_realloc(jobs->job, more * sizeof *grown);
        if (grown == NULL)
            return false;
        jobs->job = grown;
        *room = more;
    }
    *out = &jobs->job[jobs->n++];
    return true;
}

/* Items without a row were done. */
int pg_outcomes(struct lhi_act *act, const struct rows *rows)
{
    for (size_t i = 0; i < act->n; i++)
        act->status[i] = LH_OK;
    for (int row = 0; row < rows->n; row++) {
        int64_t n = pg_row_int(rows, row, 0);
        int status = (int)pg_row_int(rows, row, 1);
        const char *message = pg_row_text(rows, row, 2);

        if (n < 1 || (size_t)n > act->n)
            return lhi_fail(&act->err, LH_EFAIL, "the database answered for item %lld of %zu",
                            (long long)n, act->n);
        act->status[n - 1] = status;
        if (status < 0 && act->err.status >= 0)
            (void)lhi_fail(&act->err, status, "%s", message != NULL ? message : "");
    }
    return LH_OK;
}

int pg_read_after(struct txn *txn, struct lhi_act *act, const int64_t *ids, size_t n)
{
    struct args args = {0};
    struct rows rows;
    size_t room = 0;

    if (act->after == NULL)
        return LH_OK;
    pg_arg_array(&args, OID_INT8, n);
    for (size_t i = 0; i < n; i++)
        pg_put_int(&args, ids[i]);
    int rc = pg_call(txn, LHI_POSTGRES_STORE_JOBS, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    struct lhi_arena *arena = lhi_arena_of(&act->after->priv);
    bool ok = arena != NULL;
    for (int row = 0; row < rows.n && ok; row++) {
        lh_job *job;
        ok = pg_jobs_add(act->after, &room, &job) &&
             pg_job_from_row(&rows, row, pg_row_time(&rows, row, JOB_COLUMNS), arena, job);
    }
    pg_rows_free(&rows);
    return ok ? LH_OK : lhi_no_memory(&act->err);
}
