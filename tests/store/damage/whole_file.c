/* Damage to the whole file, to the store's own values, and to its log. */
#include "store/damage.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JOBS = 3000, MOST = 4000 };

/* ---- the file as a whole ---- */

TEST(truncated_file_keeps_every_remaining_row)
{
    int64_t ids[MOST], gone[MOST], cut;
    int n = 0;
    full_store_build(JOBS);
    cut = file_size("store.db") / 4096 * 2 / 3;
    EXPECT_EQ(truncate("store.db", cut * 4096 + 100), 0);
    for (int i = 0; i < pages_of("lh_job", "leaf"); i++) {
        int64_t page = page_of("lh_job", "leaf", i);
        int on = jobs_on(page, ids, MOST);
        for (int k = 0; k < on && page > cut; k++)
            gone[n++] = ids[k];
    }
    EXPECT(n > 100 && n < JOBS - 100);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT_EQ(epoch_of(store), 1);
    sqlite3 *db = db_open("store.db");
    /* The beginning of a row at the cut may be left. That job is kept and failed. */
    int64_t shreds = db_int(db, "SELECT count(*) FROM lh_job WHERE queue = 'damaged'");
    EXPECT(shreds <= 1);
    EXPECT_EQ(rows_gone("lh_job", "id"), n - shreds);
    for (int i = 0; i < n; i += 7) {
        char text[100];
        (void)snprintf(text, sizeof text, "SELECT count(*) FROM lh_job WHERE id = %lld",
                       (long long)gone[i]);
        EXPECT(db_int(db, text) <= shreds);
    }
    sqlite3_close(db);
    expect_said(report, "more are lost or partial");
    expect_kept();
    lh_report_free(report);
    lh_close(store);
}

static void overwrite(off_t at, size_t len, int byte)
{
    char rubbish[8192];
    int fd = open("store.db", O_WRONLY | O_CLOEXEC);

    memset(rubbish, byte, sizeof rubbish);
    EXPECT_EQ(pwrite(fd, rubbish, len, at), (ssize_t)len);
    close(fd);
}

TEST(overwritten_header_costs_nothing)
{
    full_store_build(JOBS);
    overwrite(0, 100, 0x77);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT_EQ(report_count(report, "lost"), 0);
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    expect_as_made();
    lh_report_free(report);
    lh_close(store);
}

/* Rows are assigned to tables only by their shape. */
TEST(overwritten_schema_costs_no_job)
{
    full_store_build(JOBS);
    overwrite(0, 4096, 0x77);
    note_damaged_file();
    lh_store *store = repair_open();
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    EXPECT_EQ(rows_changed("lh_policy", "true"), 0);
    EXPECT_EQ(rows_changed("lh_lease", "true"), 0);
    EXPECT_EQ(rows_changed("lh_worker", "true"), 0);
    EXPECT_EQ(rows_changed("lh_event", "true"), 0);
    EXPECT_EQ(rows_changed("lh_request", "true"), 0);
    EXPECT_EQ(rows_changed("lh_expiry", "true"), 0);
    EXPECT_EQ(rows_changed("lh_meta", "key NOT IN ('epoch', 'epoch_copy')"), 0);
    store_check(store);
    expect_kept();
    lh_close(store);
}

TEST(unreadable_file_is_left_unchanged)
{
    size_t len;
    lh_store *store = NULL;
    full_store_build(300);
    unsigned char *bytes = file_bytes("store.db", &len);
    memset(bytes, 0x5a, len);
    file_write("store.db", bytes, len);
    free(bytes);
    note_damaged_file();
    EXPECT_STATUS(lh_open("store.db", &(lh_open_opts){.startup = true}, &store), LH_ECORRUPT);
    EXPECT_EQ(lh_status_exit(LH_ECORRUPT), 6);
    EXPECT_CONTAINS(lh_errmsg(store), "could not be repaired");
    EXPECT_CONTAINS(lh_errmsg(store), "leasehold restore");
    lh_close(store);
    expect_nothing_left();
}

TEST(emptied_file_is_not_taken_for_a_new_one)
{
    full_store_build(300);
    EXPECT_EQ(truncate("store.db", 0), 0);
    note_damaged_file();
    expect_open("store.db", (lh_open_opts){.create = true, .startup = true}, LH_ECORRUPT,
                "too short for a database");
    expect_nothing_left();
}

TEST(emptied_file_is_rebuilt_from_its_log)
{
    full_store_build_crashed(300, 50);
    EXPECT_EQ(truncate("store.db", 0), 0);
    note_damaged_file();
    lh_store *store = store_open("store.db", (lh_open_opts){.create = true});
    lh_report *report = repair_report(store);
    expect_said(report, "part of the schema is lost");
    expect_said(report, "identity of the store was lost");
    sqlite3 *db = db_open("store.db");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_job WHERE payload LIKE 'payload-of-job-1000%'"),
              50);
    sqlite3_close(db);
    EXPECT(epoch_of(store) > 0);
    store_check(store);
    expect_kept();
    lh_report_free(report);
    lh_close(store);
}

TEST(store_damaged_twice_in_one_second_keeps_both_files)
{
    freeze_now();
    full_store_build(300);
    page_fill(root_of("lh_job_pending"), 0);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_close(store);
    copy_file("store.db", "before.db");
    page_fill(root_of("lh_job_timed"), 0);
    store = repair_open();
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    store_check(store);
    lh_close(store);
    EXPECT_EQ(system("test $(ls store.db.damaged-* | wc -l) = 2"), 0);
    EXPECT_EQ(system("for f in store.db.damaged-*; do cmp -s $f ruined && exit 0; done; exit 1"),
              0);
}

/* ---- the store's own values ---- */

TEST(store_that_lost_its_own_values_keeps_its_identity)
{
    full_store_build(300);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "UPDATE lh_meta SET value = 5, row_sum = NULL WHERE key = 'epoch';"
                "UPDATE lh_job SET token = (7 << 40) + 3, state_sum = state_sum + 17 * ((7 << 40) "
                "+ 3 - token) "
                "WHERE id = 9;"
                "PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    page_fill(root_of("lh_meta"), 0);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    expect_said(report, "identity of the store was lost");
    EXPECT_EQ(rows_changed("lh_job", "state <> 'running'"), 0);
    EXPECT_EQ(rows_changed("lh_meta", "key = 'store_uuid' OR key = 'own_file' OR "
                                      "key = 'schema_version'"),
              0);
    EXPECT(epoch_of(store) > 7); /* above every token in the file */
    lh_jobs *jobs = take(store, "sql", "w1", 0);
    EXPECT(jobs->job[0].token > INT64_C(7) << 40);
    lh_jobs_free(jobs);
    store_check(store);
    expect_kept();
    lh_report_free(report);
    lh_close(store);
}

TEST(no_id_is_used_again_if_the_highest_ids_are_lost)
{
    int64_t last;
    full_store_build(300);
    lh_store *store = store_new();
    last = add(store, "mail", "x");
    EXPECT_OK(lh_cancel(store, &last, 1, NULL, NULL));
    EXPECT_OK(lh_delete(store, &last, 1, NULL));
    lh_close(store);
    sqlite3 *db = db_open("store.db");
    /* nothing in the file shows it */
    db_exec(db, "DELETE FROM lh_event; PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    page_fill(root_of("sqlite_sequence"), 0);
    note_damaged_file();
    store = repair_open();
    EXPECT(add(store, "mail", "y") > last);
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    EXPECT_EQ(epoch_of(store), 1);
    store_check(store);
    lh_close(store);
}

/* For both methods of repair. */
TEST(no_id_is_used_again_if_the_highest_job_id_is_lost)
{
    int64_t last;
    full_store_build(300);
    sqlite3 *db = db_open("store.db");
    last = db_int(db, "SELECT seq FROM sqlite_sequence WHERE name = 'lh_job'");
    db_exec(db, "DELETE FROM lh_job WHERE queue = 'sql'; DELETE FROM lh_event;"
                "DELETE FROM sqlite_sequence WHERE name = 'lh_job';"
                "PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    page_patch(page_of("lh_job_key", "leaf", 0), "key-0", "key-z", 5);
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    expect_said(report, "REINDEX");
    expect_said(report, "highest ids ever issued are lost");
    EXPECT(add(store, "mail", "y") > last);
    EXPECT_EQ(epoch_of(store), 1);
    store_check(store);
    lh_report_free(report);
    lh_close(store);
}

TEST(jobs_are_counted_again_if_the_row_of_their_queue_is_lost)
{
    lh_queue was[2];
    full_store_build(JOBS);
    lh_store *store = store_new();
    was[0] = counts_of(store, "mail");
    was[1] = counts_of(store, "print");
    lh_close(store);
    copy_file("store.db", "before.db");
    page_fill(root_of("lh_queue"), 0x11);
    note_damaged_file();
    store = repair_open();
    for (int i = 0; i < 2; i++) {
        lh_queue now = counts_of(store, i ? "print" : "mail");
        EXPECT_EQ(now.pending, was[i].pending);
        EXPECT_EQ(now.running, was[i].running);
        EXPECT_EQ(now.completed, was[i].completed);
        EXPECT_EQ(now.failed, was[i].failed);
        EXPECT_EQ(now.cancelled, was[i].cancelled);
        EXPECT_EQ(now.scheduled, was[i].scheduled);
    }
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    lh_report *report = repair_report(store);
    /* the repair has corrected it, not a later step */
    EXPECT_EQ(report_count(report, "counts"), 0);
    lh_report_free(report);
    store_check(store);
    (void)add(store, "mail", "goes on");
    lh_close(store);
    store = repair_open(); /* and the store does not count as an old copy */
    lh_close(store);
}

TEST(a_zeroed_page_of_any_other_table_costs_no_job)
{
    static const char *const trees[] = {"lh_request", "lh_event", "lh_expiry",
                                        "lh_policy",  "lh_lease", "lh_worker"};
    for (size_t i = 0; i < sizeof trees / sizeof trees[0]; i++) {
        full_store_build(300);
        page_fill(root_of(trees[i]), 0);
        lh_store *store = repair_open();
        EXPECT_EQ(rows_changed("lh_job", "true"), 0);
        EXPECT_EQ(rows_changed("lh_expiry", "true"), 0);
        store_check(store);
        lh_close(store);
        EXPECT_EQ(system("rm -f store.db* before.db*"), 0);
    }
}

/* ---- the log ---- */

TEST(changes_that_are_only_in_the_log_are_kept)
{
    full_store_build_crashed(JOBS, 700);
    page_fill(page_of("lh_job_timed", "leaf", 0), 0);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT(report->integrity.repair_succeeded);
    EXPECT_EQ(report_count(report, "lost"), 0);
    expect_same(store, NULL, 0);
    EXPECT_EQ(epoch_of(store), 0);
    lh_report_free(report);
    lh_close(store);
}

TEST(loss_in_the_database_does_not_cost_changes_in_the_log)
{
    int64_t ids[MOST];
    full_store_build_crashed(JOBS, 700);
    int64_t page = page_of("lh_job", "leaf", 20);
    int n = jobs_on(page, ids, MOST);
    page_fill(page, 0);
    note_damaged_file();
    lh_store *store = repair_open();
    expect_same(store, ids, n);
    EXPECT_EQ(epoch_of(store), 1);
    lh_close(store);
}

/* A transaction that does not fit in its program's cache is in the log before it is committed. */
TEST(uncommitted_changes_are_not_in_the_repaired_store)
{
    full_store_build_crashed(JOBS, 50);
    pid_t child = test_fork();
    if (child == 0) {
        sqlite3 *db = db_open("store.db");
        db_exec(db,
                "PRAGMA cache_size = 10; BEGIN; UPDATE lh_job SET priority = 99, state_sum = 0");
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).code, 0);
    EXPECT(file_size("store.db-wal") > 100000);
    page_fill(page_of("lh_job_key", "leaf", 0), 0);
    note_damaged_file();
    lh_store *store = repair_open();
    expect_same(store, NULL, 0);
    EXPECT_EQ(epoch_of(store), 0);
    lh_close(store);
}

/* The log was checkpointed but still has the page that the database has lost. */
TEST(a_page_that_the_log_still_has_costs_nothing)
{
    int64_t ids[MOST];
    full_store_build_crashed(300, 50);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "PRAGMA wal_checkpoint(FULL)");
    int64_t page = page_of("lh_job", "leaf", -1);
    EXPECT(jobs_on(page, ids, MOST) > 0);
    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_close(db);
    EXPECT(file_size("store.db-wal") > 0);
    page_fill(page, 0);
    page_fill(root_of("lh_job_key"), 0);
    lh_store *store = repair_open();
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    EXPECT_EQ(epoch_of(store), 0);
    lh_close(store);
}

TEST(repair_does_not_hide_a_lost_log)
{
    full_store_build_crashed(JOBS, 700);
    page_fill(page_of("lh_job_timed", "leaf", 0), 0);
    EXPECT_EQ(unlink("store.db-wal"), 0);
    EXPECT_EQ(unlink("store.db-shm"), 0);
    expect_open("store.db", (lh_open_opts){.startup = true}, LH_EOLDER, "older than it was");
    expect_open("store.db", (lh_open_opts){0}, LH_EOLDER, "accept-loss");
    lh_store *store = store_open("store.db", (lh_open_opts){.startup = true, .accept_loss = true});
    EXPECT_EQ(rows_gone("lh_job", "id"), 700);
    EXPECT_EQ(epoch_of(store), 1);
    store_check(store);
    lh_close(store);
}

TEST(torn_log_is_applied_up_to_its_last_valid_commit)
{
    full_store_build_crashed(JOBS, 700);
    EXPECT_EQ(truncate("store.db-wal", file_size("store.db-wal") / 2), 0);
    expect_open("store.db", (lh_open_opts){.startup = true}, LH_EOLDER, "older than it was");
    lh_store *store = store_open("store.db", (lh_open_opts){.startup = true, .accept_loss = true});
    EXPECT_EQ(rows_gone("lh_job", "id") % 500, 200); /* whole transactions of 500 jobs */
    EXPECT_EQ(epoch_of(store), 1);
    store_check(store);
    lh_close(store);
}

/* In "other", make a store with `folded` jobs in the file and 60 more in the log. With 0 the log
 * has every page. */
static void build_other(int folded)
{
    static char payload[3001];

    memset(payload, 'z', sizeof payload - 1);
    EXPECT_EQ(mkdir("other", 0700), 0);
    EXPECT_EQ(chdir("other"), 0);
    if (folded > 0) {
        lh_store *store = store_new();
        for (int i = 0; i < folded; i++)
            (void)add(store, "another", payload);
        lh_close(store);
    }
    pid_t child = test_fork();
    if (child == 0) {
        lh_store *store = store_new();
        for (int i = 0; i < 60; i++)
            (void)add(store, "another", payload);
        if (folded == 0)
            /* it is not closed, because that would checkpoint the log */
            db_exec(db_open("store.db"), "VACUUM");
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).code, 0);
    EXPECT_EQ(chdir(".."), 0);
}

TEST(log_of_another_store_is_refused)
{
    lh_store *store = NULL;
    full_store_build(JOBS);
    build_other(0); /* the log alone is a complete store */
    copy_file("other/store.db-wal", "store.db-wal");
    note_damaged_file();
    if (lh_open("store.db", &(lh_open_opts){.startup = true}, &store) == LH_OK)
        FAIL("another store is there now");
    lh_close(store);
    expect_nothing_left();
}

TEST(log_that_damages_the_store_is_left_out)
{
    full_store_build(JOBS);
    build_other(20);
    copy_file("other/store.db-wal", "store.db-wal");
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    expect_said(report, "log of the store was left out");
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    EXPECT_EQ(epoch_of(store), 1);
    expect_kept();
    lh_report_free(report);
    lh_close(store);
}
