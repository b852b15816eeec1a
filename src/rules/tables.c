/*
 * tables.c: the list of tables and columns that a move copies.
 *
 * Three things are not copied: workers, because they register with the store they work for; the
 * PostgreSQL role that enqueued a job, because the other store does not have that role; and whatever a
 * store derives from the rest.
 */
#include "rules/tables.h"

#include "base/mem.h"

#define TABLE(name_, keys_, ...)                                                     \
    {                                                                                \
        .name = (name_), .n_keys = (keys_),                                          \
        .n = sizeof((struct lhi_column[]){__VA_ARGS__}) / sizeof(struct lhi_column), \
        .column = (const struct lhi_column[])                                        \
        {                                                                            \
            __VA_ARGS__                                                              \
        }                                                                            \
    }
#define INT(name_)            \
    {                         \
        (name_), LHI_CELL_INT \
    }
#define BOOL(name_)            \
    {                          \
        (name_), LHI_CELL_BOOL \
    }
#define TIME(name_)            \
    {                          \
        (name_), LHI_CELL_TIME \
    }
#define TEXT(name_)            \
    {                          \
        (name_), LHI_CELL_TEXT \
    }
#define ANY(name_)            \
    {                         \
        (name_), LHI_CELL_ANY \
    }
#define BYTES(name_)            \
    {                           \
        (name_), LHI_CELL_BYTES \
    }
#define REFS(name_)            \
    {                          \
        (name_), LHI_CELL_REFS \
    }

/* clang-format off */
const struct lhi_table lhi_moved[LHI_MOVED_TABLES] = {
    [LHI_MOVED_POLICY] = TABLE("policy", 2,
        TEXT("queue"), TEXT("kind"), INT("lease_ms"), INT("max_attempts"), INT("max_recoveries"),
        INT("action"), BOOL("recovery"), INT("recovery_backoff_ms"), INT("backoff_ms"),
        INT("backoff_cap_ms"), INT("timeout_ms"), BOOL("exclusive"), INT("audit"),
        INT("retention_ms"), INT("retention_failed_ms"), INT("max_payload"), INT("rate_n"),
        INT("rate_per_ms"), INT("concurrency"), INT("max_output"), INT("retention_output_ms")),
    [LHI_MOVED_SCOPE] = TABLE("scope", 1, TEXT("scope"), INT("ttl_ms")),
    [LHI_MOVED_QUEUE] = TABLE("queue", 1,
        TEXT("queue"), BOOL("paused"), INT("bucket"), TIME("bucket_at"), INT("scheduled"),
        INT("pending"), INT("running"), INT("completed"), INT("failed"), INT("cancelled")),
    [LHI_MOVED_SCHEDULE] = TABLE("schedule", 1,
        TEXT("name"), TEXT("queue"), TEXT("cron"), TEXT("tz"), INT("catch_up"), TIME("done_until"),
        TIME("next_at"), TIME("last_at"), INT("last_job"), TIME("created_at"), TEXT("error"),
        TEXT("kind"), INT("priority"), TEXT("key"), INT("max_attempts"), INT("lease_ms"),
        INT("expires_ms"), INT("backoff_ms"), INT("backoff_cap_ms"), INT("payload_sum"),
        ANY("payload")),
    [LHI_MOVED_LEASE] = TABLE("lease", 2,
        TEXT("scope"), TEXT("name"), TEXT("owner"), INT("token"), INT("ttl_ms"),
        TIME("acquired_at"), TIME("expires_at"), TEXT("value"), INT("rows"),
        TIME("last_completed_at"), INT("job")),
    [LHI_MOVED_QUARANTINE] = TABLE("quarantine", 2, TEXT("queue"), INT("job"), INT("token"), TIME("until")),
    [LHI_MOVED_TOTAL] = TABLE("total", 1, TEXT("key"), INT("value")),
    [LHI_MOVED_ROLLUP] = TABLE("rollup", 2,
        TIME("minute"), TEXT("queue"), INT("enqueued"), INT("claimed"), INT("completed"),
        INT("failed"), INT("recovered"), INT("ended"), INT("wait_ms"), INT("run_ms")),
    [LHI_MOVED_REQUEST] = TABLE("request", 1,
        TEXT("request"), TEXT("act"), TIME("at"), REFS("jobs")),
    [LHI_MOVED_REPORT] = TABLE("report", 1,
        INT("id"), TEXT("started_by"), TIME("started_at"), TIME("completed_at"),
        INT("duration_ms"), TEXT("integrity"), INT("wal_frames"), INT("orphaned"),
        INT("reclaimed"), INT("locks_cleaned"), INT("dead_workers"), INT("failures")),
    [LHI_MOVED_EVENT] = TABLE("event", 1,
        INT("id"), TIME("at"), TEXT("type"), INT("job"), TEXT("queue"), TEXT("worker"),
        TEXT("lease"), TEXT("from_state"), TEXT("to_state"), TEXT("actor"), TEXT("reason"),
        INT("token"), TEXT("data"), INT("attempt"), INT("max_attempts"), TEXT("action"),
        INT("report")),
    [LHI_MOVED_OUTPUT] = TABLE("output", 2,
        INT("job"), INT("token"), INT("attempt"), TIME("at"), INT("result_bytes"),
        INT("stdout_bytes"), BYTES("stdout_head"), BYTES("stdout_tail"), INT("stderr_bytes"),
        BYTES("stderr_head"), BYTES("stderr_tail")),
    [LHI_MOVED_JOB] = TABLE("job", 1,
        INT("id"), TEXT("queue"), TEXT("kind"), TEXT("state"), INT("priority"), INT("attempt"),
        INT("max_attempts"), INT("recoveries"), INT("token"), INT("held_ms"), TIME("run_at"),
        TIME("created_at"), TIME("started_at"), TIME("finished_at"), TIME("state_changed_at"),
        TIME("last_heartbeat_at"), TEXT("key"), TIME("expires_at"), INT("lease_ms"),
        INT("backoff_ms"), INT("backoff_cap_ms"), TEXT("stage"), INT("progress"),
        TEXT("last_error"), TEXT("checkpoint"), ANY("result"), INT("payload_sum"),
        ANY("payload")),
};
/* clang-format on */

void lhi_rows_clear(struct lhi_rows *rows)
{
    lhi_arena_drop(&rows->priv);
    lhi_free(rows->cell);
    *rows = (struct lhi_rows){0};
}

struct lhi_cell *lhi_rows_room(struct lhi_rows *rows, size_t width)
{
    /* Grows at 0, 1, 2, 4, 8 … rows. */
    if ((rows->n & (rows->n - 1)) == 0) {
        size_t room = rows->n ? rows->n * 2 : 1;
        struct lhi_cell *grown = lhi_realloc(rows->cell, room * width * sizeof *grown);
        if (grown == NULL)
            return NULL;
        rows->cell = grown;
    }
    return rows->cell + rows->n * width;
}
