/* The views for people who use plain SQL. They compare with the wall clock, so these tests change
 * the rows instead of the clock. */
#include "store/sqlite.h"

#include <stdio.h>

static const char *text_of(sqlite3 *db, const char *sql, char *buf, size_t len)
{
    sqlite3_stmt *stmt = NULL;
    EXPECT_EQ(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
    bool row = sqlite3_step(stmt) == SQLITE_ROW;
    (void)snprintf(buf, len, "%s", row ? (const char *)sqlite3_column_text(stmt, 0) : "(none)");
    sqlite3_finalize(stmt);
    return buf;
}

#define EXPECT_TEXT(sql_, text_)                                     \
    do {                                                             \
        char buf_[200];                                              \
        EXPECT_STR(text_of(db, (sql_), buf_, sizeof buf_), (text_)); \
    } while (0)

/* One job with a lease of 1000 s, claimed `age_s` seconds ago. */
static sqlite3 *job_of_age(lh_store *store, int age_s)
{
    sqlite3 *db = db_open_to_damage("store.db");
    char sql[200];

    (void)add(store, "mail", "x");
    lh_jobs_free(take(store, "mail", "w1", 1000000));
    (void)snprintf(sql, sizeof sql,
                   "UPDATE lh_job SET started_at = started_at - %d, lease_until = lease_until - %d",
                   age_s * 1000, age_s * 1000);
    db_exec(db, sql);
    return db;
}

TEST(stale_monitor_shows_how_close_a_job_is_to_recovery)
{
    static const struct {
        int age_s;
        const char *health;
    } ages[] = {{10, "OK"}, {790, "OK"}, {805, "WARNING"}, {990, "WARNING"}, {1005, "STALE"}};

    for (size_t i = 0; i < sizeof ages / sizeof ages[0]; i++) {
        lh_store *store = store_new();
        sqlite3 *db = job_of_age(store, ages[i].age_s);
        EXPECT_TEXT("SELECT health FROM lh_stale_monitor", ages[i].health);
        EXPECT_TEXT("SELECT job_id || queue || coalesce(kind, '-') || worker || attempt "
                    "FROM lh_stale_monitor",
                    "1mail-w11");
        EXPECT_EQ(db_int(db, "SELECT lease_s FROM lh_stale_monitor"), 1000);
        EXPECT_EQ(db_int(db, "SELECT abs(age_s / lease_s - ratio) < 0.001 FROM lh_stale_monitor"),
                  1);
        int64_t age = db_int(db, "SELECT CAST(age_s AS INTEGER) FROM lh_stale_monitor");
        EXPECT(age >= ages[i].age_s && age < ages[i].age_s + 10);
        sqlite3_close(db);
        lh_close(store);
        EXPECT_EQ(remove("store.db"), 0);
        EXPECT_EQ(remove("store.db-lease"), 0);
    }
}

TEST(heartbeat_resets_the_age_of_a_job_in_the_monitor)
{
    lh_store *store = store_new();
    sqlite3 *db = job_of_age(store, 900);
    db_exec(db, "UPDATE lh_job SET last_heartbeat_at = started_at + 890000, "
                "lease_until = started_at + 890000 + held_ms");
    EXPECT_TEXT("SELECT health FROM lh_stale_monitor", "OK");
    sqlite3_close(db);
    lh_close(store);
}

TEST(the_validation_shows_what_runs_beyond_twice_its_lease)
{
    lh_store *store = store_new();
    sqlite3 *db = job_of_age(store, 1960);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_stale_validation"), 0);
    db_exec(db,
            "UPDATE lh_job SET started_at = started_at - 50000, lease_until = lease_until - 50000");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_stale_validation"), 1);
    EXPECT_TEXT("SELECT health FROM lh_stale_validation", "STALE");
    /* Any claim, from any queue, recovers the job. */
    lh_jobs_free(take(store, "other", "w2", 1000));
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_stale_validation"), 0);
    sqlite3_close(db);
    lh_close(store);
}

TEST(views_use_the_lease_of_the_last_heartbeat)
{
    lh_store *store = store_new();
    sqlite3 *db = db_open_to_damage("store.db");
    (void)add(store, "mail", "x");
    lh_jobs *jobs = take(store, "mail", "w1", 1000);
    lh_beat beat = {.job = jobs->job[0].id, .token = jobs->job[0].token, .lease_ms = 3600000};
    EXPECT_OK(lh_heartbeat(store, &beat, 1, NULL, NULL));
    lh_jobs_free(jobs);
    db_exec(db, "UPDATE lh_job SET started_at = started_at - 600000, last_heartbeat_at = "
                "last_heartbeat_at - 600000, lease_until = lease_until - 600000");
    EXPECT_EQ(db_int(db, "SELECT lease_s FROM lh_stale_monitor"), 3600);
    EXPECT_TEXT("SELECT health FROM lh_stale_monitor", "OK");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_stale_validation"), 0);
    sqlite3_close(db);
    lh_close(store);
}

TEST(validation_leaves_out_jobs_whose_policy_switches_recovery_off)
{
    lh_store *store = store_new();
    sqlite3 *db = job_of_age(store, 2500);
    lh_policy off = {.set = LH_POLICY_RECOVERY, .recovery = false};
    lh_policy on = {.set = LH_POLICY_RECOVERY, .recovery = true};
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_stale_validation"), 1);
    EXPECT_OK(lh_policy_set(store, NULL, NULL, &off, 0));
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_stale_validation"), 0);
    EXPECT_OK(lh_policy_set(store, "mail", NULL, &on, 0));
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_stale_validation"), 1);
    sqlite3_close(db);
    lh_close(store);
}

TEST(history_shows_every_recovered_job)
{
    freeze_now();
    lh_store *store = store_new();
    sqlite3 *db = db_open_to_damage("store.db");
    (void)add(store, "mail", "x");
    lh_jobs_free(take(store, "mail", "w1", 1000));
    pass_ms(1000);
    lh_jobs_free(take(store, "mail", "w2", 1000));
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_recovery_history"), 1);
    EXPECT_TEXT("SELECT job_id || action || attempt || previous_worker FROM lh_recovery_history",
                "1retry2w1");
    EXPECT_EQ(db_int(db, "SELECT at FROM lh_recovery_history"), lh_now(store));
    EXPECT_EQ(db_int(db, "SELECT reason LIKE 'RECLAIMED_TTL: %' FROM lh_recovery_history"), 1);
    pass_ms(1000);
    EXPECT_OK(lh_recover(store, &(lh_recover_opts){.action = LH_ACTION_FAIL}, NULL));
    EXPECT_TEXT("SELECT group_concat(action) FROM lh_recovery_history", "retry,failed");
    sqlite3_close(db);
    lh_close(store);
}

TEST(job_state_is_derived_from_the_columns_at_this_moment)
{
#define NOW "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"
#define HELD "state = 'running', worker = 'w', token = 1, started_at = 1, lease_until = "
    static const struct {
        const char *change, *derived;
    } states[] = {
        {HELD NOW, "EXPIRED"}, /* when it ends, and not a moment before */
        {HELD NOW " + 30000", "RUNNING"},
        {"state = 'scheduled', run_at = " NOW, "AVAILABLE"},
        {"state = 'scheduled', run_at = " NOW " + 30000", "SCHEDULED"},
        {"state = 'pending'", "AVAILABLE"},
        {"state = 'scheduled', run_at = 9999999999999", "SCHEDULED"},
        {"state = 'scheduled', run_at = 1000000000000", "AVAILABLE"},
        {"state = 'running', worker = 'w', token = 1, started_at = 1, lease_until = 9999999999999",
         "RUNNING"},
        {"state = 'running', worker = 'w', token = 1, started_at = 1, lease_until = 1000000000000",
         "EXPIRED"},
        {"state = 'completed'", "COMPLETED"},
        {"state = 'failed'", "FAILED"},
        {"state = 'cancelled'", "CANCELLED"},
    };
    lh_store *store = store_new();
    sqlite3 *db = db_open_to_damage("store.db");
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        char sql[300];
        int64_t id = add(store, "mail", "x");
        (void)snprintf(sql, sizeof sql, "UPDATE lh_job SET %s WHERE id = %lld", states[i].change,
                       (long long)id);
        db_exec(db, sql);
        (void)snprintf(sql, sizeof sql,
                       "SELECT derived_state FROM lh_job_state WHERE job_id = %lld", (long long)id);
        EXPECT_TEXT(sql, states[i].derived);
    }
    sqlite3_close(db);
    lh_close(store);
}

TEST(the_health_of_workers_is_judged_by_their_own_interval)
{
    lh_store *store = store_new();
    sqlite3 *db = db_open_to_damage("store.db");
    char id[160];
    EXPECT_OK(lh_worker_register(
        store, &(lh_worker_opts){.id = "w1", .interval_ms = 10000, .multiplier = 2}, id,
        sizeof id));
    (void)add(store, "mail", "x");
    lh_jobs_free(take(store, "mail", "w1", 60000));
    EXPECT_TEXT("SELECT worker || state || running FROM lh_worker_health", "w1alive1");
    EXPECT_EQ(db_int(db, "SELECT limit_s FROM lh_worker_health"), 20);
    db_exec(db, "UPDATE lh_worker SET last_heartbeat_at = last_heartbeat_at - 12000");
    EXPECT_TEXT("SELECT state FROM lh_worker_health", "late");
    db_exec(db, "UPDATE lh_worker SET last_heartbeat_at = last_heartbeat_at - 12000");
    EXPECT_TEXT("SELECT state FROM lh_worker_health", "dead");
    EXPECT_OK(lh_worker_stop(store, "w1"));
    EXPECT_TEXT("SELECT state FROM lh_worker_health", "stopped");
    sqlite3_close(db);
    lh_close(store);
}

TEST(views_can_be_read_where_the_schema_is_not_trusted)
{
    static const char *const views[] = {"lh_stale_monitor", "lh_stale_validation",
                                        "lh_recovery_history", "lh_job_state", "lh_worker_health"};
    lh_store *store = store_new();
    sqlite3 *db = job_of_age(store, 1);
    db_exec(db, "PRAGMA trusted_schema = OFF");
    for (size_t i = 0; i < sizeof views / sizeof views[0]; i++) {
        char sql[80];
        (void)snprintf(sql, sizeof sql, "SELECT count(*) FROM (SELECT * FROM %s)", views[i]);
        EXPECT(db_int(db, sql) >= 0);
    }
    sqlite3_close(db);
    lh_close(store);
}

/* ---- output ---- */

TEST(the_view_of_output_shows_text_and_marks_what_was_cut)
{
    lh_store *store = store_new();
    int64_t id = add(store, "mail", "x");
    lh_jobs *jobs = take(store, "mail", "w1", 1000);
    EXPECT_OK(lh_complete(
        store,
        &(lh_done){
            id, jobs->job[0].token,
            .output =
                &(lh_output){.out = {.head = "hello ", .head_len = 6, .tail = "you", .tail_len = 3},
                             .err = {.head = "\303\244 ",
                                     .head_len = 3,
                                     .tail = "the end",
                                     .tail_len = 7,
                                     .bytes = 1010}}},
        1, NULL, NULL));
    sqlite3 *db = db_open("store.db");
    EXPECT_TEXT("SELECT stdout FROM lh_job_output WHERE job_id = 1 AND attempt = 1", "hello you");
    EXPECT_TEXT("SELECT stderr FROM lh_job_output", "\303\244 \n[... 1000 bytes cut ...]\nthe end");
    EXPECT_EQ(db_int(db, "SELECT stderr_bytes FROM lh_job_output"), 1010);
    db_exec(db, "DELETE FROM lh_job"); /* a plain DELETE removes the output too */
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_output"), 0);
    sqlite3_close(db);
    lh_jobs_free(jobs);
    lh_close(store);
}

TEST(output_without_a_job_is_found_and_deleted_by_a_recovery)
{
    lh_store *store = store_new();
    (void)add(store, "mail", "x");
    sqlite3 *db = db_open("store.db");
    db_exec(db, "INSERT INTO lh_output(job, token, attempt, at) VALUES (7, 1, 1, 0)");
    lh_findings *found = NULL;
    EXPECT_OK(lh_check(store, NULL, &found));
    EXPECT_EQ(found->errors, 1);
    lh_findings_free(found);
    EXPECT_OK(lh_recover(store, NULL, NULL));
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_output"), 0);
    store_check(store);
    sqlite3_close(db);
    lh_close(store);
}
