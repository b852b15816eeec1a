/*
 * The embedded SQL: every statement prepares on a fresh store, its columns are in the order in which they are
 * read, and every hot statement uses its index, whatever the number of rows.
 */
#include "harness/harness.h"
#include "store/sqlite/row_sum.h"
#include "store/sqlite/rows.h"

#include <stdio.h>
#include <string.h>

static void add_functions(sqlite3 *db)
{
    struct lhi_error err;
    EXPECT_OK(sq_row_sum_register(&(struct conn){.db = db}, &err));
}

static sqlite3 *open_fresh(void)
{
    lh_store *store = NULL;
    sqlite3 *db = NULL;

    EXPECT_OK(lh_open("sql.db", &(lh_open_opts){.create = true}, &store));
    lh_close(store);
    EXPECT_EQ(sqlite3_open("sql.db", &db), SQLITE_OK);
    /* As the library sets its own connections. */
    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    EXPECT_EQ(sqlite3_exec(db, "PRAGMA foreign_keys = ON", NULL, NULL, NULL), SQLITE_OK);
    add_functions(db);
    return db;
}

TEST(every_embedded_statement_prepares_on_a_fresh_store)
{
    sqlite3 *db = open_fresh();
    for (int i = 0; i < LHI_SQL_COUNT; i++) {
        const struct lhi_sql_text *sql = &lhi_sqlite_sql[i];
        sqlite3_stmt *stmt = NULL;
        const char *tail = NULL;
        if (sqlite3_prepare_v2(db, sql->text, -1, &stmt, &tail) != SQLITE_OK || stmt == NULL)
            FAIL("%s: %s", sql->name, sqlite3_errmsg(db));
        while (*tail == ';' || *tail == '\n' || *tail == ' ')
            tail++;
        if (*tail != '\0')
            FAIL("%s: more than one statement: %s", sql->name, tail);
        sqlite3_finalize(stmt);
    }
    sqlite3_close(db);
}

TEST(every_statement_has_a_name_of_its_own)
{
    for (int i = 0; i < LHI_SQL_COUNT; i++)
        for (int k = 0; k < i; k++)
            EXPECT(strcmp(lhi_sqlite_sql[i].name, lhi_sqlite_sql[k].name) != 0);
}

/* Compare the columns of a statement with the expected ones. */
static void expect_columns(sqlite3 *db, enum lhi_sql which, const char *const *names, int n)
{
    sqlite3_stmt *stmt = NULL;
    EXPECT_EQ(sqlite3_prepare_v2(db, lhi_sqlite_sql[which].text, -1, &stmt, NULL), SQLITE_OK);
    EXPECT_EQ(sqlite3_column_count(stmt), n);
    for (int i = 0; i < n; i++)
        EXPECT_STR(sqlite3_column_name(stmt, i), names[i]);
    sqlite3_finalize(stmt);
}

TEST(rows_of_jobs_have_the_columns_the_library_reads)
{
    static const enum lhi_sql whole[] = {LHI_SQL_JOB_GET, LHI_SQL_JOB_NEXT};
    sqlite3 *db = open_fresh();
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        expect_columns(db, whole[i], sq_job_columns, JOB_COLUMNS);
    sqlite3_close(db);
}

TEST(rows_of_schedules_have_the_columns_the_library_reads)
{
    static const char *const schedule[] = {
        "name",           "queue",       "cron",         "tz",         "catch_up",   "done_until",
        "next_at",        "last_at",     "last_job",     "created_at", "error",      "kind",
        "priority",       "key",         "max_attempts", "lease_ms",   "expires_ms", "backoff_ms",
        "backoff_cap_ms", "payload_sum", "payload",      "row_sum"};
    sqlite3 *db = open_fresh();
    expect_columns(db, LHI_SQL_SCHEDULE_GET, schedule, 22);
    expect_columns(db, LHI_SQL_SCHEDULE_LIST, schedule, 22);
    sqlite3_close(db);
}

TEST(rows_of_leases_events_and_reports_have_the_columns_the_library_reads)
{
    static const char *const lease[] = {
        "scope",       "name",       "owner", "token", "ttl_ms",
        "acquired_at", "expires_at", "value", "rows",  "last_completed_at",
        "job",         "row_sum"};
    static const char *const event[] = {"id",     "at",    "type",       "job",      "queue",
                                        "worker", "lease", "from_state", "to_state", "actor",
                                        "reason", "token", "data",       "attempt",  "max_attempts",
                                        "action", "report"};
    static const char *const report[] = {
        "id",         "started_by", "started_at", "completed_at",  "duration_ms",  "integrity",
        "wal_frames", "orphaned",   "reclaimed",  "locks_cleaned", "dead_workers", "failures"};
    sqlite3 *db = open_fresh();
    expect_columns(db, LHI_SQL_REPORT_GET, report, 12);
    expect_columns(db, LHI_SQL_REPORT_LAST, report, 12);
    expect_columns(db, LHI_SQL_LEASE_GET, lease, 12);
    expect_columns(db, LHI_SQL_LEASE_LIST, lease, 12);
    expect_columns(db, LHI_SQL_EVENT_LIST, event, 17);
    expect_columns(db, LHI_SQL_EVENT_LIST_JOB, event, 17);
    expect_columns(db, LHI_SQL_EVENT_LAST, event, 17);
    expect_columns(db, LHI_SQL_EVENT_LAST_JOB, event, 17);
    sqlite3_close(db);
}

/* ---- plans ---- */

static const struct lhi_sql_text *named(const char *name)
{
    for (int i = 0; i < LHI_SQL_COUNT; i++)
        if (strcmp(lhi_sqlite_sql[i].name, name) == 0)
            return &lhi_sqlite_sql[i];
    FAIL("there is no statement \"%s\"", name);
}

static const char *plan_of(sqlite3 *db, const struct lhi_sql_text *sql)
{
    static char plan[4096], query[8192];
    sqlite3_stmt *stmt = NULL;
    size_t used = 0;

    EXPECT((size_t)snprintf(query, sizeof query, "EXPLAIN QUERY PLAN %s", sql->text) <
           sizeof query);
    if (sqlite3_prepare_v2(db, query, -1, &stmt, NULL) != SQLITE_OK)
        FAIL("%s: %s", sql->name, sqlite3_errmsg(db));
    plan[0] = '\0';
    while (sqlite3_step(stmt) == SQLITE_ROW)
        used += (size_t)snprintf(plan + used, sizeof plan - used, "%s\n",
                                 (const char *)sqlite3_column_text(stmt, 3));
    sqlite3_finalize(stmt);
    EXPECT(used < sizeof plan);
    return plan;
}

/* Does the plan scan the whole table, or a whole index of it? */
static bool scans(const char *plan, const char *table)
{
    size_t len = strlen(table);

    for (const char *line = plan; *line != '\0'; line = strchr(line, '\n') + 1)
        if (strncmp(line, "SCAN ", 5) == 0 && strncmp(line + 5, table, len) == 0 &&
            (line[5 + len] == '\n' || line[5 + len] == ' '))
            return true;
    return false;
}

#define JOB "SEARCH lh_job USING INTEGER PRIMARY KEY (rowid=?)"
#define PENDING "SEARCH lh_job USING INDEX lh_job_pending (queue=?)"
#define KIND "SEARCH lh_job USING INDEX lh_job_kind (queue=? AND kind=?)"
#define ENDING "INDEX lh_job_timed (state=? AND lease_until"
#define DUE "INDEX lh_job_timed (state=? AND lease_until=? AND run_at<?)"
#define SILENT "lh_worker_silent (silent_at>? AND silent_at<?)"
#define LEASE "SEARCH lh_lease USING PRIMARY KEY (scope=? AND name=?)"
#define QUEUE "SEARCH lh_queue USING PRIMARY KEY (queue=?)"

/* The statements that run for every job or every claim. Each part must be in the plan, and nothing is sorted,
 * because the index has the order. */
static const struct {
    const char *name;
    const char *parts[9];
} hot[] = {
    {"job_get", {JOB}},
    {"job_by_key", {"SEARCH lh_job USING INDEX lh_job_key (queue=? AND key=?)"}},
    {"job_next", {PENDING}},
    {"job_next_of_kind", {KIND}},
    {"poll_kind", {KIND}},
    {"poll_pending", {PENDING}},
    {"job_claim", {JOB}},
    {"job_heartbeat", {JOB}},
    {"job_complete", {JOB}},
    {"job_held", {JOB}},
    {"job_end_fail", {JOB}},
    {"job_release", {JOB}},
    {"job_cancel", {JOB}},
    {"job_retry", {JOB}},
    {"job_delete", {JOB}},
    {"job_reschedule", {JOB}},
    {"job_promote", {JOB}},
    {"job_set_aside", {JOB}},
    {"job_recover", {JOB}},
    {"job_leave_quarantine", {JOB}},
    {"job_expired", {ENDING}},
    {"job_due", {DUE}},
    {"job_retry_waits", {"lh_job_timed (state=? AND lease_until=?)", "SEARCH q USING PRIMARY KEY"}},
    {"job_limited", {"lh_job_pending (queue=?)", "SEARCH q USING PRIMARY KEY"}},
    {"job_limited_of_kind", {"(queue=? AND kind=?)", "SEARCH q USING PRIMARY KEY"}},
    {"job_overdue",
     {"SEARCH e USING PRIMARY KEY (expires_at<?)", "SEARCH j USING INTEGER PRIMARY"}},
    {"due_now",
     {ENDING, DUE, "lh_lease_expires (expires_at>? AND expires_at<?)",
      "SEARCH lh_expiry USING PRIMARY KEY (expires_at<?)", "lh_schedule_next (next_at<?)", SILENT}},
    {"next_due",
     {ENDING, DUE, "lh_job_timed (state=? AND lease_until>?)",
      "lh_job_timed (state=? AND lease_until=? AND run_at>?)", "lh_lease_expires (expires_at>?)",
      SILENT, "lh_worker_silent (silent_at>?)", "lh_schedule_next (next_at<?)",
      "lh_schedule_next (next_at>?)"}},
    {"schedule_due", {"lh_schedule_next (next_at<?)"}},
    {"schedule_get", {"SEARCH lh_schedule USING PRIMARY KEY (name=?)"}},
    {"schedule_advance", {"SEARCH lh_schedule USING PRIMARY KEY (name=?)"}},
    {"schedule_result", {"SEARCH lh_schedule USING PRIMARY KEY (name=?)"}},
    {"worker_judge", {"INDEX lh_worker_silent"}},
    {"worker_silent", {SILENT}},
    {"worker_to_clean", {"lh_worker_uncleaned (stuck>?)"}},
    {"dead_not_cleaned", {"lh_worker_uncleaned", SILENT}},
    {"stale_expired", {ENDING}},
    {"lease_count_stale", {"lh_lease_expires (expires_at>? AND expires_at<?)"}},
    {"report_get", {"SEARCH lh_report USING INTEGER PRIMARY KEY (rowid=?)"}},
    {"report_events", {"SEARCH e USING INDEX lh_event_report (report=?)"}},
    /* These read all running jobs, of which there are few, and nothing else. */
    {"job_of_worker", {"lh_job_timed (state=?)"}},
    {"stale_of_worker", {"lh_job_timed (state=? AND lease_until>?)"}},
    {"stale_of_dead", {"lh_job_timed (state=? AND lease_until>?)", "lh_worker_uncleaned", SILENT}},
    {"stale_by_age", {"lh_job_timed (state=?)"}},
    {"job_slots", {"lh_job_timed (state=?)", "SEARCH lh_quarantine USING PRIMARY KEY (queue=?)"}},
    {"queue_slots", {QUEUE, "SEARCH lh_quarantine USING PRIMARY KEY (queue=?)"}},
    {"queue_oldest", {PENDING, "lh_job_pending (queue=? AND priority<?)"}},
    {"quarantine_get", {"SEARCH lh_quarantine USING PRIMARY KEY (queue=? AND job=?)"}},
    {"quarantine_end", {"SEARCH lh_quarantine USING PRIMARY KEY (queue=? AND job=?)"}},
    {"expiry_end", {"SEARCH lh_expiry USING PRIMARY KEY (expires_at=? AND job=?)"}},
    {"output_of",
     {"SEARCH j USING INTEGER PRIMARY KEY (rowid=?)",
      "SEARCH o USING PRIMARY KEY (job=? AND token=?)"}},
    {"output_list", {"SEARCH lh_output USING PRIMARY KEY (job=?)"}},
    {"output_result", {"SEARCH lh_output USING PRIMARY KEY (job=? AND token=?)"}},
    {"output_trim", {"SEARCH lh_output USING PRIMARY KEY (job=? AND token<?)"}},
    {"output_aged",
     {"SEARCH o USING PRIMARY KEY (job>?)", "SEARCH j USING INTEGER PRIMARY KEY (rowid=?)"}},
    {"output_prune", {"SEARCH lh_output USING PRIMARY KEY (job=?)"}},
    {"lease_expired", {"lh_lease_expires ((expires_at,scope,name)>(?,?,?) AND expires_at<?)"}},
    {"lease_get", {LEASE}},
    {"lease_extend", {LEASE}},
    {"lease_follow", {LEASE}},
    {"lease_free", {LEASE}},
    {"lease_delete", {LEASE}},
    {"event_list", {"SEARCH lh_event USING INTEGER PRIMARY KEY (rowid>?)"}},
    {"event_list_job", {"SEARCH lh_event USING INDEX lh_event_job (job=? AND rowid>?)"}},
    {"queue_tally", {QUEUE}},
    {"queue_roll", {QUEUE}},
    {"queue_bucket", {QUEUE}},
    {"store_touch", {QUEUE}},
    {"store_marks", {QUEUE}},
    {"meta_get", {"SEARCH lh_meta USING PRIMARY KEY (key=?)"}},
    {"scope_get", {"SEARCH lh_scope USING PRIMARY KEY (scope=?)"}},
    {"worker_claims", {"SEARCH lh_worker USING PRIMARY KEY (id=?)"}},
    {"worker_heartbeat", {"SEARCH lh_worker USING PRIMARY KEY (id=?)"}},
};

enum { N_HOT = sizeof hot / sizeof hot[0], N_PARTS = sizeof hot[0].parts / sizeof hot[0].parts[0] };

TEST(every_hot_statement_uses_its_index)
{
    sqlite3 *db = open_fresh();
    for (int i = 0; i < N_HOT; i++) {
        const char *plan = plan_of(db, named(hot[i].name));
        for (int k = 0; k < N_PARTS && hot[i].parts[k] != NULL; k++)
            if (strstr(plan, hot[i].parts[k]) == NULL)
                FAIL("%s: the plan lacks \"%s\":\n%s", hot[i].name, hot[i].parts[k], plan);
        if (strstr(plan, "TEMP B-TREE") != NULL)
            FAIL("%s: the plan sorts:\n%s", hot[i].name, plan);
    }
    sqlite3_close(db);
}

TEST(no_hot_statement_reads_all_of_a_table)
{
    static const char *const tables[] = {"lh_job",    "j",         "lh_event",      "lh_request",
                                         "r",         "lh_rollup", "lh_quarantine", "lh_lease",
                                         "lh_expiry", "e",         "lh_worker",     "lh_queue"};
    sqlite3 *db = open_fresh();
    for (int i = 0; i < N_HOT; i++) {
        const char *plan = plan_of(db, named(hot[i].name));
        for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
            if (scans(plan, tables[t]))
                FAIL("%s reads all of %s:\n%s", hot[i].name, tables[t], plan);
    }
    sqlite3_close(db);
}

TEST(nothing_but_a_check_reads_all_jobs)
{
    sqlite3 *db = open_fresh();
    for (int i = 0; i < LHI_SQL_COUNT; i++) {
        const struct lhi_sql_text *sql = &lhi_sqlite_sql[i];
        /* Checks, corrections after a check, and moves read everything. */
        if (strncmp(sql->name, "check_", 6) == 0 || strncmp(sql->name, "recount_", 8) == 0 ||
            strncmp(sql->name, "move_", 5) == 0)
            continue;
        const char *plan = plan_of(db, sql);
        if (scans(plan, "lh_job"))
            FAIL("%s reads all jobs:\n%s", sql->name, plan);
    }
    sqlite3_close(db);
}

/* Another program may have run ANALYZE; its statistics must not change the plans. */
static void expect_plans_with(const char *queue, const char *completed)
{
    char fill[500];
    sqlite3 *db = open_fresh();

    (void)snprintf(fill, sizeof fill,
                   "DELETE FROM lh_job; INSERT INTO lh_job(queue, payload) "
                   "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 700) "
                   "SELECT %s, 'x' FROM n; "
                   "UPDATE lh_job SET state = 'completed', state_sum = 0 WHERE %s; ANALYZE",
                   queue, completed);
    if (sqlite3_exec(db, fill, NULL, NULL, NULL) != SQLITE_OK)
        FAIL("could not fill the store: %s", sqlite3_errmsg(db));
    sqlite3_close(db);
    EXPECT_EQ(sqlite3_open("sql.db", &db),
              SQLITE_OK); /* SQLite reads statistics when it opens the file */
    add_functions(db);
    for (int i = 0; i < N_HOT; i++) {
        const char *plan = plan_of(db, named(hot[i].name));
        for (int k = 0; k < N_PARTS && hot[i].parts[k] != NULL; k++)
            if (strstr(plan, hot[i].parts[k]) == NULL)
                FAIL("%s: the plan lacks \"%s\":\n%s", hot[i].name, hot[i].parts[k], plan);
    }
    sqlite3_close(db);
}

TEST(statistics_of_a_full_store_do_not_change_a_plan)
{
    expect_plans_with("'mail'", "false");
    expect_plans_with("'q' || (i % 7)", "false");
    expect_plans_with("'mail'", "id % 2");
    expect_plans_with("'q' || (i % 7)", "id % 100");
    expect_plans_with("'mail'", "true");
}
