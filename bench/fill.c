/*
 * Makes large stores fast: copies of one job that the product has enqueued. Payload and checksum
 * match, so the product claims the copies like its own jobs.
 */
#include "floor.h"

#include <stdio.h>
#include <string.h>

enum { STEP = 500000 };

static void insert_rows(sqlite3 *db, const struct floor_opts *opts, const char *state, int64_t n)
{
    bool completed = strcmp(state, "completed") == 0;
    sqlite3_stmt *stmt = prepare(
        db, "INSERT INTO lh_job(queue, kind, state, attempt, token, max_attempts, created_at, "
            "started_at, finished_at, state_changed_at, payload_sum, payload) "
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) "
            "SELECT queue, ?2, ?3, ?4, ?4, max_attempts, ?5, iif(?4, ?5, NULL), iif(?4, ?5, NULL), "
            "?5, payload_sum, payload FROM (SELECT * FROM lh_job WHERE queue = '" QUEUE
            "' ORDER BY id LIMIT 1), n");

    sqlite3_bind_text(stmt, 2, opts->kind, -1, SQLITE_STATIC);
    sqlite3_bind_text(stmt, 3, state, -1, SQLITE_STATIC);
    sqlite3_bind_int(stmt, 4, completed);
    sqlite3_bind_int64(stmt, 5, wall_ms());
    for (int64_t left = n; left > 0; left -= STEP) {
        sqlite3_bind_int64(stmt, 1, left < STEP ? left : STEP);
        finish(stmt);
    }
    (void)sqlite3_finalize(stmt);
}

void floor_fill(const struct floor_opts *opts, struct floor_result *result)
{
    if (opts->db == NULL)
        die("--db is needed");
    sqlite3 *db = db_open(opts->db);
    if (query_int(db, "SELECT count(*) FROM (SELECT 1 FROM lh_job WHERE queue = '" QUEUE
                      "' LIMIT 1)") == 0)
        die("store \"%s\" needs one job in queue \"%s\" to copy", opts->db, QUEUE);
    struct meters meters = meters_start();
    /* No other process has the file open, and after a crash it is made again, so nothing needs to
     * be safe. */
    run(db, "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -200000");
    insert_rows(db, opts, "completed", opts->completed);
    insert_rows(db, opts, "pending", opts->pending);
    sqlite3_stmt *count = prepare(db, "UPDATE lh_queue SET completed = completed + ?1, pending = "
                                      "pending + ?2 WHERE queue = '" QUEUE "'");
    sqlite3_bind_int64(count, 1, opts->completed);
    sqlite3_bind_int64(count, 2, opts->pending);
    finish(count);
    run(db, "PRAGMA synchronous = FULL; PRAGMA journal_mode = WAL");
    meters_stop(&meters, result);
    result->jobs = opts->completed + opts->pending;
    db_close(db);
}
