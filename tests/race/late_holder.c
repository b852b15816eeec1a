/* See late_holder.h. */
#include "race/late_holder.h"

#include "race/foreign_sql.h"
#include "sql_names.h"
#include "sql_sqlite.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------- SQLite: its statements */

struct value {
    const char *name;
    int64_t number;
    const char *text; /* instead */
};

static int64_t run_statement(enum lhi_sql which, const struct value *values, size_t n)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    int rc;

    EXPECT_EQ(sqlite3_open_v2(test_store(), &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    EXPECT_EQ(sqlite3_prepare_v2(db, lhi_sqlite_sql[which].text, -1, &stmt, NULL), SQLITE_OK);
    for (size_t i = 0; i < n; i++) {
        int at =
            sqlite3_bind_parameter_index(stmt, values[i].name); /* the other parameters are NULL */
        if (at > 0 && values[i].text != NULL)
            (void)sqlite3_bind_text(stmt, at, values[i].text, -1, SQLITE_STATIC);
        else if (at > 0)
            (void)sqlite3_bind_int64(stmt, at, values[i].number);
    }
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW)
        ;
    if (rc != SQLITE_DONE)
        FAIL("%s", sqlite3_errmsg(db));
    (void)sqlite3_finalize(stmt);
    int changed = sqlite3_changes(db);
    EXPECT_EQ(sqlite3_close(db), SQLITE_OK);
    return changed;
}

static int64_t write_to_file(enum late_write which, const lh_job *seen, int64_t lease_ms)
{
    static const enum lhi_sql statements[] = {
        [LATE_RECOVER] = LHI_SQL_JOB_RECOVER, [LATE_COMPLETE] = LHI_SQL_JOB_COMPLETE,
        [LATE_FAIL] = LHI_SQL_JOB_END_FAIL,   [LATE_RELEASE] = LHI_SQL_JOB_RELEASE,
        [LATE_BEAT] = LHI_SQL_JOB_HEARTBEAT,
    };
    const struct value values[] = {
        {":id", seen->id, NULL},
        {":token", seen->token, NULL},
        {":lease_until", seen->lease_until, NULL},
        {":new_token", seen->token + 1, NULL},
        {":now", seen->lease_until - 1, NULL},
        {":lease_ms", lease_ms, NULL},
        {":attempt", seen->attempt, NULL},
        {":recoveries", 1, NULL},
        {":state", 0, "pending"},
        {":reason", 0, "RECLAIMED_TTL"},
        {":error", 0, "late"},
    };
    return run_statement(statements[which], values, sizeof values / sizeof values[0]);
}

static int64_t bury_in_file(const struct seen_worker *seen, bool proven, int64_t now)
{
    const struct value values[] = {
        {":id", 0, "w-1"},         {":last_heartbeat_at", seen->last_heartbeat_at, NULL},
        {":proven", proven, NULL}, {":now", now, NULL},
        {":what", 0, "is gone"},   {":sessions", 0, seen->sessions},
    };
    /* The last parameter is left out if it is NULL. */
    return run_statement(LHI_SQL_WORKER_MARK_DEAD, values,
                         sizeof values / sizeof values[0] - (seen->sessions == NULL));
}

/* ---------------------------------------------------------------- PostgreSQL: its functions */

static int64_t recover_on_server(const lh_job *seen)
{
    return run_as_stranger(
        "SELECT set_config('leasehold.test_now', '%lld', true); "
        "SELECT 1 FROM leasehold.meta m, leasehold.reclaim(leasehold.new_run('claim', false, "
        "false), leasehold.clock(), m, '{%lld}', "
        "leasehold.automatic_recovery()) r WHERE r.retried + r.made_pending + r.failed + "
        "r.released = 1",
        (long long)seen->lease_until, (long long)seen->id);
}

static void name_function(enum late_write which, int64_t lease_ms, char *call, size_t room)
{
    switch (which) {
    case LATE_COMPLETE:
        (void)snprintf(call, room, "complete_many(t.jobs, t.tokens, '{}', '{}')");
        break;
    case LATE_FAIL:
        (void)snprintf(call, room, "fail_many(t.jobs, t.tokens, '{late}', '{}', '{}')");
        break;
    case LATE_RELEASE:
        (void)snprintf(call, room, "release_many(t.jobs, t.tokens, 0)");
        break;
    case LATE_BEAT:
        (void)snprintf(call, room, "heartbeat_many(t.jobs, t.tokens, '{%lld}', '{}', '{}', '{}')",
                       (long long)lease_ms);
        break;
    case LATE_RECOVER:
    default:
        FAIL("not by a holder");
    }
}

/* The statement returns a row for each change. */
static int64_t write_to_server(enum late_write which, const lh_job *seen, int64_t lease_ms)
{
    char call[200];

    if (which == LATE_RECOVER)
        return recover_on_server(seen);
    name_function(which, lease_ms, call, sizeof call);
    return run_as_stranger("SELECT set_config('leasehold.test_now', '%lld', true); "
                           "SELECT 1 FROM (SELECT '{%lld}'::bigint[], '{%lld}'::bigint[]) "
                           "t(jobs, tokens) WHERE NOT EXISTS "
                           "(SELECT 1 FROM leasehold.%s WHERE status <> 0)",
                           (long long)seen->lease_until - 1, (long long)seen->id,
                           (long long)seen->token, call);
}

static int64_t bury_on_server(const struct seen_worker *seen, bool proven, int64_t now)
{
    return run_as_stranger(
        "SELECT 1 FROM (SELECT 'epoch'::timestamptz + %lld * interval '1 ms' AS now, "
        "'epoch'::timestamptz + %lld * interval '1 ms' AS beat) t, "
        "leasehold.declare_dead(leasehold.new_run('claim', false, false), t.now, t.now, 'w-1', "
        "t.beat, "
        "'is gone', %s%s%s, %s, false) r WHERE r.dead_workers = 1",
        (long long)now, (long long)seen->last_heartbeat_at, seen->sessions ? "'" : "",
        seen->sessions ? seen->sessions : "NULL", seen->sessions ? "'" : "",
        proven ? "true" : "false");
}

/* ---------------------------------------------------------------- either */

int64_t write_late(enum late_write which, const lh_job *seen, int64_t lease_ms)
{
    return test_store_is_postgres() ? write_to_server(which, seen, lease_ms)
                                    : write_to_file(which, seen, lease_ms);
}

int64_t bury_late(const struct seen_worker *seen, bool proven, int64_t now)
{
    return test_store_is_postgres() ? bury_on_server(seen, proven, now)
                                    : bury_in_file(seen, proven, now);
}
