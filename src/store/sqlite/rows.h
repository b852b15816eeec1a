/* Rows of the tables as structs, and values of single columns. */
#ifndef LHI_SQLITE_ROWS_H
#define LHI_SQLITE_ROWS_H

#include "store/sqlite/stmt.h"

/* The columns of lh_job in the order of SELECT *. */
enum job_column {
    JOB_ID,
    JOB_QUEUE,
    JOB_KIND,
    JOB_STATE,
    JOB_PRIORITY,
    JOB_ATTEMPT,
    JOB_MAX_ATTEMPTS,
    JOB_RECOVERIES,
    JOB_TOKEN,
    JOB_WORKER,
    JOB_LEASE_UNTIL,
    JOB_HELD_MS,
    JOB_RUN_AT,
    JOB_CREATED_AT,
    JOB_STARTED_AT,
    JOB_FINISHED_AT,
    JOB_STATE_CHANGED_AT,
    JOB_LAST_HEARTBEAT_AT,
    JOB_KEY,
    JOB_EXPIRES_AT,
    JOB_LEASE_MS,
    JOB_BACKOFF_MS,
    JOB_BACKOFF_CAP_MS,
    JOB_STAGE,
    JOB_PROGRESS,
    JOB_LAST_ERROR,
    JOB_CHECKPOINT,
    JOB_RESULT,
    JOB_NAME_SUM,
    JOB_STATE_SUM,
    JOB_PAYLOAD_SUM,
    JOB_PAYLOAD,
    JOB_COLUMNS
};
extern const char *const sq_job_columns[JOB_COLUMNS];

bool sq_job_from_row(sqlite3_stmt *stmt, int64_t now, struct lhi_arena *arena, lh_job *job);
/* Append an empty job to the list, which grows. False: out of memory. */
bool sq_jobs_add(lh_jobs *jobs, size_t *room, lh_job **slot);
const void *sq_column_raw(sqlite3_stmt *stmt, int column, size_t *len);
const char *sq_column_text(sqlite3_stmt *stmt, int column, struct lhi_arena *arena, bool *ok);
/* The same for a column that is never NULL in a sound row; "" if damage made it NULL. */
const char *sq_column_name(sqlite3_stmt *stmt, int column, struct lhi_arena *arena, bool *ok);
/* The text, or "" for NULL. It is valid until the next step of the statement. */
const char *sq_text_or_empty(sqlite3_stmt *stmt, int column);
lh_state sq_column_state(sqlite3_stmt *stmt, int column);
bool sq_lease_from_row(sqlite3_stmt *stmt, int64_t now, struct lhi_arena *arena, lh_lease *lease);
int sq_load_policies(struct conn *conn, lh_policies *out, struct lhi_error *err);

#endif
