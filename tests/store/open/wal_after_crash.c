/* What an open does with the log after a crash: uncommitted changes are gone, the journal mode is
 * WAL again, a log that is too large is truncated, and a failed checkpoint does not prevent the
 * start. */
#include "store/crashed.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- what was not committed ---- */

static void die_before_the_commit(lh_store *store)
{
    write_a_little(store);
    (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "txn:before_commit");
    add(store, "mail", "never");
}

TEST(uncommitted_changes_of_a_killed_process_are_gone)
{
    crash(die_before_the_commit);
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "mail").pending, 5);
    store_check(store);
    lh_close(store);
}

/* With a cache this small, pages of a transaction are in the log before it commits. */
TEST(uncommitted_pages_in_the_log_are_ignored)
{
    lh_close(store_new());
    pid_t child = test_fork();
    if (child == 0) {
        sqlite3 *db = db_open("store.db");
        db_exec(db, "PRAGMA cache_size = 5; BEGIN");
        for (int i = 0; i < 500; i++)
            db_exec(db, "INSERT INTO lh_job(queue, payload) VALUES ('mail', hex(zeroblob(1000)))");
        EXPECT(file_size("store.db-wal") > 20 * FRAME_BYTES);
        (void)kill(getpid(), SIGKILL);
    }
    EXPECT_EQ(test_wait(child).sig, SIGKILL);
    lh_store *store = store_open("store.db", (lh_open_opts){.startup = true});
    EXPECT_EQ(counts_of(store, "mail").pending, 0);
    lh_report *report = last_report(store);
    EXPECT(report->integrity.passed);
    EXPECT_EQ(report->n_inconsistencies, 0);
    lh_report_free(report);
    store_check(store);
    lh_close(store);
}

/* ---- the journal mode ---- */

static void change_the_journal(void)
{
    sqlite3 *db = db_open("store.db");
    db_exec(db, "PRAGMA journal_mode = DELETE");
    sqlite3_close(db);
}

static void expect_wal(void)
{
    sqlite3 *db = db_open("store.db");
    EXPECT_EQ(db_int(db, "SELECT journal_mode = 'wal' FROM pragma_journal_mode"), 1);
    sqlite3_close(db);
}

TEST(changed_journal_mode_is_set_back_and_reported)
{
    struct lines lines;
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_close(store);
    change_the_journal();
    store = open_logged(&lines, (lh_open_opts){.startup = true});
    EXPECT_CONTAINS(lines.text, "journal mode");
    lh_report *report = last_report(store);
    EXPECT(tells_of(report, "journal mode"));
    lh_report_free(report);
    expect_wal();
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    lh_close(store);
    change_the_journal(); /* a handle that runs no startup recovery logs it */
    store = open_logged(&lines, (lh_open_opts){0});
    EXPECT_CONTAINS(lines.text, "journal mode");
    expect_wal();
    lh_close(store);
}

/* The power failed while the store was created: the header is from before the switch to WAL mode,
 * and the log beside it has nothing valid. */
TEST(header_without_wal_mode_beside_a_log_is_corrected)
{
    enum { VERSIONS_AT = 18 };
    size_t len;
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_close(store);
    unsigned char *bytes = file_bytes("store.db", &len);
    EXPECT(len > VERSIONS_AT + 1);
    memset(bytes + VERSIONS_AT, 1, 2);
    file_write("store.db", bytes, len);
    free(bytes);
    file_write("store.db-wal", "0123456789abcdef", 16);

    store = store_open("store.db", (lh_open_opts){0});
    add(store, "mail", "y");
    lh_store *other = store_open("store.db", (lh_open_opts){0});
    add(other, "mail", "z");
    EXPECT_EQ(counts_of(store, "mail").pending, 3);
    store_check(store);
    lh_close(store);
    lh_close(other);
    expect_wal();
}

TEST(new_store_reports_no_changed_journal_mode)
{
    struct lines lines;
    lh_store *store = open_logged(&lines, (lh_open_opts){.create = true, .startup = true});
    EXPECT(strstr(lines.text, "journal") == NULL);
    lh_report *report = last_report(store);
    EXPECT_EQ(report->n_inconsistencies, 0);
    lh_report_free(report);
    lh_close(store);
}

/* ---- the log ---- */

TEST_TIMEOUT(a_log_that_has_grown_too_large_is_told_and_truncated, 60)
{
    struct lines lines;
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_close(store);
    pid_t child = test_fork();
    if (child == 0) { /* another program that never checkpoints, and is killed */
        sqlite3 *db = db_open("store.db");
        db_exec(db, "PRAGMA wal_autocheckpoint = 0; PRAGMA synchronous = OFF;"
                    "CREATE TABLE theirs(b)");
        for (int i = 0; i < 70; i++)
            db_exec(db, "INSERT INTO theirs VALUES (zeroblob(1000000))");
        (void)kill(getpid(), SIGKILL);
    }
    EXPECT_EQ(test_wait(child).sig, SIGKILL);
    EXPECT(file_size("store.db-wal") > 64 << 20);
    store = open_logged(&lines, (lh_open_opts){.startup = true});
    EXPECT_CONTAINS(lines.text, "had grown to 6"); /* MiB */
    lh_report *report = last_report(store);
    EXPECT(tells_of(report, "had grown to 6"));
    EXPECT(report->wal_frames > 16000);
    lh_report_free(report);
    EXPECT(file_size("store.db-wal") < 1 << 20);
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    lh_close(store);
}

/* A reader that keeps its snapshot prevents a full checkpoint. */
TEST(log_held_by_a_reader_is_reported_and_the_store_opens)
{
    struct lines lines;
    lh_store *store = store_new();
    write_a_little(store);
    lh_close(store);
    sqlite3 *reader = db_open("store.db");
    db_exec(reader, "BEGIN; SELECT count(*) FROM lh_job");
    crash(write_a_little);
    store = open_logged(&lines, (lh_open_opts){0});
    EXPECT_CONTAINS(lines.text, "could not be moved into the database");
    lh_report *report = last_report(store);
    EXPECT_STR(report->trigger, "startup");
    EXPECT(tells_of(report, "could not be moved into the database"));
    EXPECT(report->integrity.passed);
    lh_report_free(report);
    add(store, "mail", "goes on");
    EXPECT_EQ(counts_of(store, "mail").pending, 11);
    db_exec(reader, "COMMIT");
    sqlite3_close(reader);
    lh_close(store);
}

static void add_something_large(lh_store *store)
{
    static char large[300000];
    memset(large, 'l', sizeof large - 1);
    add(store, "mail", large);
}

/* The database file may not grow, so the pages of the log cannot be moved into it. */
TEST(failed_checkpoint_is_reported_and_the_store_opens)
{
    struct lines lines;
    lh_store *store = store_new();
    for (int i = 0; i < 10; i++)
        add_something_large(store);
    lh_close(store);
    crash(add_something_large);
    (void)signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, tight;
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    tight = before;
    tight.rlim_cur = (rlim_t)file_size("store.db");
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
    store = open_logged(&lines, (lh_open_opts){0});
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_CONTAINS(lines.text, "could not be moved into the database");
    EXPECT_EQ(counts_of(store, "mail").pending, 11);
    add(store, "mail", "there is room again");
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){.startup = true});
    EXPECT_EQ(counts_of(store, "mail").pending, 12);
    lh_report *report = last_report(store);
    EXPECT(report->integrity.passed);
    lh_report_free(report);
    store_check(store);
    lh_close(store);
}
