/* The file behind the store's name is replaced while a process has it open. That process shares the
 * log with every later one, so neither may write. Also what a plain INSERT may not set, and what
 * lh_check() finds. */
#include "store/sqlite.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void add_many(lh_store *store, int n)
{
    for (int i = 0; i < n; i++)
        (void)add(store, "q", "x");
}

TEST(database_moved_aside_while_open_keeps_its_jobs)
{
    lh_store *waiter = store_new();
    add_many(waiter, 20);
    EXPECT_EQ(rename("store.db", "backup.db"), 0);
    expect_open("store.db", (lh_open_opts){.create = true}, LH_ESTOPPED, "removed or replaced");
    EXPECT(!file_exists("store.db"));
    lh_close(waiter);
    /* The log is moved together with its database. The waiting process must not have checkpointed
     * it into another file. */
    EXPECT_EQ(rename("store.db-wal", "backup.db-wal"), 0);
    lh_store *backup = store_open("backup.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(backup, "q").pending, 20);
    store_check(backup);
    lh_close(backup);
}

TEST(old_copy_in_place_of_an_open_store_is_refused)
{
    lh_store *first = store_new();
    add_many(first, 5);
    lh_close(first);
    copy_file("store.db", "copy.db");
    lh_store *waiter = store_new();
    add_many(waiter, 20);
    EXPECT_EQ(rename("copy.db", "store.db"), 0);
    expect_open("store.db", (lh_open_opts){.create = true, .accept_loss = true}, LH_ESTOPPED,
                "removed or replaced");
    lh_close(waiter);
}

TEST(handle_stops_when_its_file_was_replaced)
{
    lh_store *store = store_new();
    lh_queues *queues = NULL;
    lh_new_job job = {.payload = "x", .payload_len = 1};
    lh_enqueued out;
    add_many(store, 1);
    EXPECT_EQ(unlink("store.db"), 0);
    EXPECT_STATUS(lh_queue_list(store, &queues), LH_ESTOPPED);
    EXPECT_STATUS(lh_enqueue(store, "q", &job, 1, NULL, &out), LH_ESTOPPED);
    lh_close(store);
}

TEST(waiting_claim_notices_that_its_file_was_replaced)
{
    lh_store *store = store_new();
    lh_jobs *jobs = NULL;
    const char *queue = "nothing";
    EXPECT_EQ(unlink("store.db"), 0);
    EXPECT_STATUS(
        lh_claim(store,
                 &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w", .wait_ms = 10000},
                 &jobs),
        LH_ESTOPPED);
    lh_close(store);
}

TEST(payload_that_is_no_valid_text_is_returned_byte_for_byte)
{
    lh_store *store = store_new();
    sqlite3 *db = db_open("store.db");
    db_exec(db, "INSERT INTO lh_job(queue, payload) VALUES('q', 'a' || char(0) || 'b')");
    db_exec(db, "INSERT INTO lh_job(queue, payload) VALUES('q', CAST(x'ff00fe' AS TEXT))");
    static const char *const wanted[] = {"a\0b", "\xff\0\xfe"};
    for (int i = 0; i < 2; i++) {
        lh_jobs *jobs = take(store, "q", "w", 60000);
        EXPECT(jobs != NULL);
        EXPECT(!jobs->job[0].payload_is_text);
        EXPECT_EQ(jobs->job[0].payload_len, 3);
        EXPECT(memcmp(jobs->job[0].payload, wanted[i], 3) == 0);
        lh_jobs_free(jobs);
    }
    sqlite3_close(db);
    lh_close(store);
}

TEST(plain_insert_cannot_set_what_only_the_queue_decides)
{
    static const char *const bad[] = {
        "(queue, id) VALUES('q', 9223372036854775807)",
        "(queue, id) VALUES('q', 0)",
        "(queue, id) VALUES('q', -9)",
        "(queue, state) VALUES('q', 'scheduled')",
        "(queue, state) VALUES('q', 'completed')",
        "(queue, token) VALUES('q', 9007199254740991)",
        "(queue, attempt) VALUES('q', 1)",
        "(queue, recoveries) VALUES('q', 1)",
        "(queue) VALUES('q' || char(0) || 'k')",
        "(queue, kind) VALUES('q', 'k' || char(0))",
        "(queue, key) VALUES('q', 'k' || char(0) || 'k')",
        "(queue, payload) VALUES('q', zeroblob(67108865))",
    };
    lh_store *store = store_new();
    sqlite3 *db = db_open("store.db");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char sql[200];
        (void)snprintf(sql, sizeof sql, "INSERT INTO lh_job%s", bad[i]);
        if (db_try(db, sql) != SQLITE_CONSTRAINT)
            FAIL("accepted: %s", sql);
    }
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_job"), 0);
    EXPECT(add(store, "q", "x") > 0);
    store_check(store);
    sqlite3_close(db);
    lh_close(store);
}

/* Damage the store with `sql`. lh_check() must report it, in a finding that contains `part`. */
static void expect_finding(const char *sql, const char *part)
{
    lh_findings *findings = NULL;
    bool said = false;
    lh_store *store = store_new();
    add_many(store, 3);
    lh_close(store);
    sqlite3 *db = db_open_to_damage("store.db");
    db_exec(db, sql);
    sqlite3_close(db);
    store = store_open("store.db", (lh_open_opts){.read_only = true});
    EXPECT_OK(lh_check(store, NULL, &findings));
    for (size_t i = 0; i < findings->n; i++)
        said = said || (strcmp(findings->finding[i].level, "error") == 0 &&
                        strstr(findings->finding[i].text, part) != NULL);
    if (!said || findings->errors == 0)
        FAIL("no error says \"%s\" after: %s", part, sql);
    lh_findings_free(findings);
    lh_close(store);
}

static bool warns_of_the_wal_reset_bug(lh_store *store)
{
    lh_findings *findings = NULL;
    bool warns = false;

    EXPECT_OK(lh_check(store, NULL, &findings));
    for (size_t i = 0; i < findings->n; i++)
        warns = warns || (strcmp(findings->finding[i].level, "warning") == 0 &&
                          strstr(findings->finding[i].text, "WAL-reset bug") != NULL);
    lh_findings_free(findings);
    return warns;
}

TEST(a_check_of_a_queue_in_the_users_database_warns_of_the_wal_reset_bug)
{
    bool concerned = sqlite3_libversion_number() < 3044006;
    sqlite3 *db = db_open("shop.db");
    db_exec(db, "CREATE TABLE orders(id INTEGER PRIMARY KEY)");
    sqlite3_close(db);
    lh_store *shared = store_open("shop.db", (lh_open_opts){.adopt = true});
    lh_store *own = store_new();
    if (concerned)
        EXPECT(warns_of_the_wal_reset_bug(shared));
    EXPECT(!warns_of_the_wal_reset_bug(own));
    lh_close(shared);
    lh_close(own);
}

TEST(check_finds_a_queue_without_counts)
{
    expect_finding("DELETE FROM lh_queue WHERE queue = 'q'", "no row to count");
}

TEST(a_check_finds_a_missing_row_of_the_store_itself)
{
    expect_finding("DELETE FROM lh_queue WHERE queue = '*'", "no row for the store itself");
}

TEST(a_check_finds_a_missing_table)
{
    expect_finding("DROP TABLE lh_event", "lh_event is missing");
}

TEST(a_check_finds_a_missing_trigger)
{
    expect_finding("DROP TRIGGER lh_job_insert", "lh_job_insert is missing");
}

TEST(a_check_finds_a_wrong_count)
{
    expect_finding("UPDATE lh_queue SET pending = 17 WHERE queue = 'q'", "counts pending as 17");
}

TEST(a_check_finds_another_journal_mode)
{
    expect_finding("PRAGMA journal_mode = DELETE", "journal mode is delete");
}

TEST(check_finds_an_impossible_token)
{
    expect_finding("UPDATE lh_job SET token = -1 WHERE id = 1", "job 1: token -1 is outside");
    expect_finding("UPDATE lh_job SET token = 1 << 53 WHERE id = 2",
                   "job 2: token 9007199254740992 is outside");
    expect_finding("INSERT INTO lh_lease(scope, name, token) VALUES('sync', 'a', -7)",
                   "lease \"sync/a\": token -7 is outside");
}

TEST(a_check_finds_a_lease_that_never_ends)
{
    expect_finding("INSERT INTO lh_lease(scope, name, owner, token) VALUES('sync', 'a', 'w-1', 1)",
                   "lease \"sync/a\": it has an owner and no expiry");
    expect_finding("INSERT INTO lh_lease(scope, name, expires_at, token) VALUES('s', 'b', 1, 1)",
                   "lease \"s/b\": it has an expiry and no owner");
}

TEST(a_check_finds_that_the_store_is_older_than_it_was)
{
    lh_findings *findings = NULL;
    lh_store *store = store_new();
    add_many(store, 3);
    lh_close(store);
    copy_file("store.db", "old.db");
    store = store_new();
    add_many(store, 3);
    lh_close(store);
    copy_file("old.db", "store.db");
    store = store_open("store.db", (lh_open_opts){.read_only = true});
    EXPECT_OK(lh_check(store, NULL, &findings));
    EXPECT_EQ(findings->errors, 1);
    lh_findings_free(findings);
    lh_close(store);
}

TEST(incomplete_tables_are_reported_as_damage)
{
    lh_store *store = store_new();
    lh_close(store);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "DELETE FROM lh_meta WHERE key = 'schema_version'");
    expect_open("store.db", (lh_open_opts){.create = true}, LH_ECORRUPT, "no schema version");
    db_exec(db, "DROP TABLE lh_meta");
    expect_open("store.db", (lh_open_opts){.create = true}, LH_ECORRUPT, "is missing");
    sqlite3_close(db);
}

TEST(an_index_of_the_log_removed_under_an_open_handle_loses_nothing)
{
    lh_store *waiter = store_new();
    lh_enqueued out;
    add_many(waiter, 5);
    EXPECT_EQ(unlink("store.db-shm"), 0);
    lh_store *other = store_open("store.db", (lh_open_opts){0});
    add_many(other, 10);
    EXPECT_STATUS(lh_enqueue(waiter, "q", &(lh_new_job){0}, 1, NULL, &out), LH_ESTOPPED);
    lh_close(waiter);
    EXPECT_EQ(counts_of(other, "q").pending, 15);
    lh_close(other);
    other = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(other, "q").pending, 15);
    store_check(other);
    lh_close(other);
}

TEST(text_in_a_utf16_database_is_returned_unchanged)
{
    sqlite3 *db = db_open("store.db");
    db_exec(db, "PRAGMA encoding = 'UTF-16'; CREATE TABLE mine(x)");
    lh_store *store = store_open("store.db", (lh_open_opts){.create = true, .adopt = true});
    EXPECT(add(store, "q", "hello") > 0);
    lh_jobs *jobs = take(store, "q", "w", 60000);
    EXPECT(jobs != NULL);
    EXPECT_EQ(jobs->job[0].payload_len, 5);
    EXPECT(memcmp(jobs->job[0].payload, "hello", 5) == 0);
    lh_jobs_free(jobs);
    store_check(store);
    lh_close(store);
    sqlite3_close(db);
}

/* ---- a recovery that fails, a changed journal mode ---- */

static char last_warning[512];

static void note_warning(void *arg, const lh_log_entry *entry)
{
    (void)arg;
    if (entry->level <= LH_LOG_WARN)
        (void)snprintf(last_warning, sizeof last_warning, "%s", entry->line);
}

/* The trigger refuses a change that a recovery needs and a claim does not. */
static void expect_claim_without_recovery(const char *trigger, const char *warning)
{
    char sql[256];
    freeze_now();
    lh_store *store = store_open("store.db", (lh_open_opts){.create = true, .log = note_warning});
    (void)add(store, "stuck", "x");
    lh_jobs_free(take(store, "stuck", "dead", 1000));
    (void)add(store, "q", "y");
    sqlite3 *db = db_open("store.db");
    (void)snprintf(sql, sizeof sql,
                   "CREATE TRIGGER no_way BEFORE %s BEGIN SELECT RAISE(ABORT, 'not today'); END",
                   trigger);
    db_exec(db, sql);
    pass_ms(1000);
    lh_jobs *jobs = take(store, "q", "w", 60000);
    EXPECT(jobs != NULL);
    lh_jobs_free(jobs);
    EXPECT_CONTAINS(last_warning, warning);
    EXPECT_EQ(counts_of(store, "stuck").running, 1);
    db_exec(db, "DROP TRIGGER no_way");
    jobs = take(store, "stuck", "w", 60000);
    EXPECT(jobs != NULL);
    lh_jobs_free(jobs);
    store_check(store);
    sqlite3_close(db);
    lh_close(store);
}

TEST(a_recovery_that_fails_is_logged_and_does_not_stop_the_claim)
{
    expect_claim_without_recovery(
        "INSERT ON lh_report",
        "automatic recovery failed: recovery could not begin its report: not today");
}

TEST(a_job_whose_recovery_fails_is_logged_and_does_not_stop_the_claim)
{
    expect_claim_without_recovery("UPDATE OF recoveries ON lh_job",
                                  "job 1 cannot be recovered: not today");
}

TEST(a_journal_mode_that_was_changed_is_wal_again_after_opening)
{
    lh_store *store = store_new();
    add_many(store, 3);
    lh_close(store);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "PRAGMA journal_mode = DELETE");
    sqlite3_close(db);
    store = store_new();
    add_many(store, 1);
    EXPECT(file_exists("store.db-wal"));
    EXPECT_EQ(counts_of(store, "q").pending, 4);
    store_check(store);
    lh_close(store);
}
