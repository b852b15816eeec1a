/* Damage to real files. The store opens and is sound; everything that could be kept is in it, every
 * loss has a finding, and the damaged file is kept unchanged. */
#include "store/crashed.h"
#include "store/damage.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JOBS = 3000, MOST = 4000 };

/* The jobs of this page that are in an index: all except completed ones. */
static int known_of(const int64_t *ids, int n, int64_t *known)
{
    sqlite3 *db = db_open("before.db");
    char text[200];
    int found = 0;

    for (int i = 0; i < n; i++) {
        (void)snprintf(text, sizeof text,
                       "SELECT count(*) FROM lh_job WHERE id = %lld AND state <> 'completed'",
                       (long long)ids[i]);
        if (db_int(db, text) == 1)
            known[found++] = ids[i];
    }
    sqlite3_close(db);
    return found;
}
/* ---- indexes ---- */

TEST(a_zeroed_page_of_an_index_costs_nothing)
{
    full_store_build(JOBS);
    page_fill(page_of("lh_job_pending", "leaf", 3), 0);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT(report->integrity.ran && report->integrity.passed);
    EXPECT(report->integrity.repair_attempted && report->integrity.repair_succeeded);
    EXPECT(report->integrity.n_errors > 0);
    EXPECT_EQ(report_count(report, "lost"), 0);
    EXPECT_EQ(report_count(report, "partial"), 0);
    EXPECT_EQ(report_count(report, "journal"), 0);
    expect_said(report, "leasehold backup FILE");
    expect_said(report, "store.db.damaged-");
    expect_said(report, "recovery point: the newest change found is of 20");
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    expect_as_made();
    lh_report_free(report);
    lh_close(store);
}

TEST(findings_of_a_failed_check_are_logged_and_reported)
{
    struct lines lines;
    full_store_build(JOBS);
    page_fill(page_of("lh_job_pending", "leaf", 3), 0);
    lh_store *store = open_logged(&lines, (lh_open_opts){.startup = true});
    lh_report *report = repair_report(store);
    EXPECT(report->integrity.n_errors > 0);
    EXPECT_CONTAINS(lines.text, "integrity check: ");
    EXPECT_CONTAINS(lines.text, report->integrity.errors[0]);
    lh_report_free(report);
    lh_close(store);
}

TEST(a_zeroed_root_of_an_index_costs_nothing)
{
    full_store_build(JOBS);
    page_fill(root_of("lh_job_timed"), 0);
    note_damaged_file();
    lh_store *store = repair_open();
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    lh_close(store);
}

TEST(a_wrong_entry_of_an_index_is_found_and_the_index_rebuilt)
{
    char key[32];
    int64_t page;
    full_store_build(JOBS);
    page = page_of("lh_job_key", "leaf", 1);
    for (int i = 2; i < JOBS; i += 9) { /* one of the keys on that page */
        size_t len;
        (void)snprintf(key, sizeof key, "key-%06d", i);
        unsigned char *bytes = file_bytes("store.db", &len);
        bool there = memmem(bytes + (page - 1) * 4096, 4096, key, 10) != NULL;
        free(bytes);
        if (there)
            break;
    }
    page_patch(page, key, "key-zzzzzz", 10);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    expect_said(report, "REINDEX, no loss is known");
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

/* The entry leads to a job that was deleted long ago. The job that it belonged to still exists. */
TEST(a_wrong_entry_of_an_index_is_not_taken_for_a_lost_job)
{
    int64_t deleted = 0, other;
    unsigned char was[4], now[4];
    lh_store *store = store_new();
    for (int i = 0; i < 400; i++)
        (void)add(store, "mail", "x");
    deleted = 333;
    other = 222;
    EXPECT_OK(lh_delete(store, &deleted, 1, NULL));
    lh_close(store);
    copy_file("store.db", "before.db");
    /* The id is a column of this index and also the last value of its entries. */
    for (int i = 0; i < 4; i += 2) {
        was[i] = (unsigned char)(other >> 8), was[i + 1] = (unsigned char)other;
        now[i] = (unsigned char)(deleted >> 8), now[i + 1] = (unsigned char)deleted;
    }
    for (int i = 0; i < pages_of("lh_job_pending", "leaf"); i++) {
        size_t len;
        int64_t page = page_of("lh_job_pending", "leaf", i);
        unsigned char *bytes = file_bytes("store.db", &len);
        bool there = memmem(bytes + (page - 1) * 4096, 4096, was, 4) != NULL;
        free(bytes);
        if (!there)
            continue;
        page_patch(page, was, now, 4);
        break;
    }
    note_damaged_file();
    store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT(report->integrity.repair_succeeded);
    EXPECT_EQ(report_count(report, "is lost"), 0);
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

/* SQLite accepts any condition of an index. */
TEST(changed_definition_of_our_index_is_created_again)
{
    full_store_build(JOBS);
    page_patch(0, "lh_job(queue, key)\n WHERE key IS NOT NULL",
               "lh_job(queue, key)\n WHERE key IS     NULL", 39);
    note_damaged_file();
    lh_store *store = store_open("store.db", (lh_open_opts){.repair = true});
    sqlite3 *db = db_open("store.db");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM sqlite_schema WHERE name = 'lh_job_key' AND "
                         "sql LIKE '%key IS NOT NULL%'"),
              1);
    sqlite3_close(db);
    expect_same(store, NULL, 0);
    lh_close(store);
}

/* ---- tables ---- */

TEST(zeroed_page_of_a_table_costs_its_own_rows_and_reports_them)
{
    int64_t ids[MOST], known[MOST];
    int64_t page;
    int n, k;
    full_store_build(JOBS);
    for (int i = 0;; i++) { /* a page with completed jobs, which no index lists */
        page = page_of("lh_job", "leaf", i);
        n = jobs_on(page, ids, MOST);
        k = known_of(ids, n, known);
        if (k > 0 && k < n)
            break;
    }
    page_fill(page, 0);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    for (int i = 0; i < k; i++)
        expect_said(report, "job %lld is lost", (long long)known[i]);
    EXPECT_EQ(report_count(report, "is lost"), k);
    EXPECT_EQ(report_count(report, "are lost"), 1); /* the rows of the page */
    expect_said(report, "ids %lld to", (long long)ids[0]);
    EXPECT_EQ(epoch_of(store), 1); /* no token is issued twice */
    expect_same(store, ids, n);
    lh_report_free(report);
    lh_close(store);
}

TEST(overwritten_pages_cost_their_own_rows)
{
    int64_t ids[MOST];
    int n = 0;
    full_store_build(JOBS);
    for (int i = 10; i <= 50; i += 10) {
        int64_t page = page_of("lh_job", "leaf", i);
        n += jobs_on(page, ids + n, MOST - n);
        page_fill(page, 0xa5);
    }
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT_EQ(report_count(report, "of lh_job cannot be read"), 5);
    expect_same(store, ids, n);
    lh_report_free(report);
    lh_close(store);
}

TEST(report_names_a_hundred_losses_and_counts_the_others)
{
    int64_t ids[MOST];
    int n = 0;
    full_store_build(JOBS);
    for (int i = 20; i < 40; i++) {
        int64_t page = page_of("lh_job", "leaf", i);
        n += jobs_on(page, ids + n, MOST - n);
        page_fill(page, 0);
    }
    EXPECT(n > 200);
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT(report->n_inconsistencies < 120);
    expect_said(report, "more are lost or partial");
    expect_same(store, ids, n);
    lh_report_free(report);
    lh_close(store);
}

TEST(a_zeroed_root_of_the_table_of_jobs_costs_nothing)
{
    full_store_build(JOBS);
    EXPECT_EQ(pages_of("lh_job", "internal"), 1);
    page_fill(root_of("lh_job"), 0);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT_EQ(report_count(report, "lost"), 0);
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

TEST(a_damaged_page_below_a_damaged_one_costs_its_own_rows)
{
    int64_t ids[MOST];
    full_store_build(JOBS);
    int64_t page = page_of("lh_job", "leaf", 30);
    int n = jobs_on(page, ids, MOST);
    page_fill(page, 0);
    page_fill(root_of("lh_job"), 0);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT_EQ(report_count(report, "of lh_job cannot be read"), 1);
    expect_said(report, "page %lld of lh_job cannot be read", (long long)page);
    EXPECT_EQ(epoch_of(store), 1);
    expect_same(store, ids, n);
    lh_report_free(report);
    lh_close(store);
}

TEST_TIMEOUT(a_zeroed_inner_page_deep_in_the_table_of_jobs_costs_nothing, 60)
{
    full_store_build(JOBS * 5);
    EXPECT(pages_of("lh_job", "internal") > 2);
    page_fill(page_of("lh_job", "internal", 1), 0);
    page_fill(root_of("lh_job"), 0xff);
    note_damaged_file();
    lh_store *store = repair_open();
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    lh_close(store);
}

/* Deleted rows are on free pages. No tree leads to those, as no tree leads to the children of a
 * damaged page. */
TEST(deleted_rows_do_not_return)
{
    lh_store *store;
    full_store_build(JOBS);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "PRAGMA secure_delete = OFF; DELETE FROM lh_job WHERE queue = 'mail'");
    EXPECT(db_int(db, "PRAGMA freelist_count") > 10);
    db_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    page_fill(root_of("lh_job"), 0);
    note_damaged_file();
    store = repair_open();
    EXPECT_EQ(counts_of(store, "mail").pending, 0);
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    store_check(store);
    lh_close(store);
}

/* The disk has kept an older version of a page. SQLite notices only that the indexes differ. */
TEST(page_that_was_never_written_is_a_loss)
{
    int64_t ids[MOST], old[MOST];
    size_t len;
    lh_store *store = store_new();
    for (int i = 0; i < 200; i++)
        (void)add(store, "mail", "some payload of a job");
    lh_close(store);
    copy_file("store.db", "before.db");
    int64_t page = page_of("lh_job", "leaf", -1);
    int had = jobs_on(page, old, MOST);
    unsigned char *bytes = file_bytes("store.db", &len);
    store = store_new();
    for (int i = 0; i < 5; i++)
        (void)add(store, "mail", "x");
    lh_close(store);
    copy_file("store.db", "before.db");
    int has = jobs_on(page, ids, MOST);
    EXPECT(has > had);
    int fd = open("store.db", O_WRONLY);
    EXPECT_EQ(pwrite(fd, bytes + (page - 1) * 4096, 4096, (page - 1) * 4096), 4096);
    close(fd);
    free(bytes);
    note_damaged_file();
    store = repair_open();
    lh_report *report = repair_report(store);
    for (int i = had; i < has; i++)
        expect_said(report, "job %lld is lost", (long long)ids[i]);
    EXPECT_EQ(report_count(report, "is lost"), has - had);
    EXPECT_EQ(epoch_of(store), 1);
    expect_same(store, ids + had, has - had);
    lh_report_free(report);
    EXPECT(add(store, "mail", "next") > ids[has - 1]); /* an id is never used again */
    lh_close(store);
}

/* The id of a row has changed to the id of another row, which exists too. */
TEST(a_row_under_the_id_of_another_does_not_take_its_place)
{
    int64_t ids[MOST];
    unsigned char *bytes;
    full_store_build(JOBS);
    int64_t page = page_of("lh_job", "leaf", 30);
    int n = jobs_on(page, ids, MOST);
    EXPECT(ids[n / 2] > 128 && ids[n / 2] + 1024 < JOBS); /* the id has two bytes as a varint */
    bytes = page_bytes(page);
    size_t cell = (size_t)bytes[8 + n / 2 * 2] << 8 | bytes[9 + n / 2 * 2];
    cell += bytes[cell] & 0x80 ? 2 : 1;                     /* behind the length of the row */
    unsigned char first = (unsigned char)(bytes[cell] + 8); /* adds 8 * 128 to the id */
    page_write(page, cell, &first, 1);
    free(bytes);
    note_damaged_file();
    lh_store *store = repair_open();
    EXPECT_EQ(epoch_of(store), 1);
    expect_same(store, &ids[n / 2], 1);
    lh_close(store);
}

/* The pages below are found nevertheless, and a page that is read twice counts once. */
TEST(a_page_that_leads_to_the_wrong_one_costs_nothing)
{
    full_store_build(JOBS);
    unsigned char *bytes = page_bytes(root_of("lh_job"));
    EXPECT_EQ(bytes[0], 5);
    size_t fifth = (size_t)bytes[12 + 10] << 8 | bytes[12 + 11];
    size_t sixth = (size_t)bytes[12 + 12] << 8 | bytes[12 + 13];
    page_write(root_of("lh_job"), fifth, bytes + sixth, 4);
    free(bytes);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT_EQ(report_count(report, "UNIQUE"), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

/* ---- inconsistent pages ---- */

/* Change the number of cells in the header of a page. */
static void change_count(int64_t page, int by)
{
    unsigned char *bytes = page_bytes(page), now[2];
    int n = (bytes[3] << 8 | bytes[4]) + by;

    EXPECT(n >= 0 && by != 0);
    now[0] = (unsigned char)(n >> 8);
    now[1] = (unsigned char)n;
    page_write(page, 3, now, 2);
    free(bytes);
}

/* To SQLite the missing row never existed. */
TEST(page_with_too_low_a_count_of_rows_costs_nothing)
{
    static const char *const trees[] = {"lh_job",   "lh_lease",  "lh_policy",      "lh_meta",
                                        "lh_queue", "lh_worker", "sqlite_sequence"};
    for (size_t i = 0; i < sizeof trees / sizeof trees[0]; i++) {
        full_store_build(700);
        change_count(page_of(trees[i], "leaf", 0), -1);
        note_damaged_file();
        lh_store *store = repair_open();
        EXPECT_EQ(epoch_of(store), 0);
        expect_same(store, NULL, 0);
        lh_close(store);
        EXPECT_EQ(system("rm -f store.db* before.db* ruined"), 0);
    }
}

TEST(a_page_that_says_it_has_more_rows_than_it_has_costs_nothing)
{
    full_store_build(700);
    change_count(page_of("lh_job", "leaf", 5), 3);
    note_damaged_file();
    lh_store *store = repair_open();
    expect_same(store, NULL, 0);
    lh_close(store);
}

TEST(an_inner_page_that_leads_to_fewer_pages_than_it_did_costs_nothing)
{
    full_store_build(JOBS);
    change_count(root_of("lh_job"), -5);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT_EQ(report_count(report, "lost"), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

/* A write went to the wrong place. */
TEST(a_page_written_over_another_costs_the_rows_of_that_one)
{
    int64_t ids[MOST];
    full_store_build(JOBS);
    int64_t page = page_of("lh_job", "leaf", 20);
    int n = jobs_on(page, ids, MOST);
    unsigned char *bytes = page_bytes(page_of("lh_job", "leaf", 30));
    page_write(page, 0, bytes, 4096);
    free(bytes);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT_EQ(report_count(report, "UNIQUE"), 0);
    expect_said(report, "page %lld of lh_job cannot be read", (long long)page);
    EXPECT_EQ(epoch_of(store), 1);
    expect_same(store, ids, n);
    lh_report_free(report);
    lh_close(store);
}

/* To SQLite the table has one page and is sound. */
TEST(a_leaf_written_over_the_root_of_its_table_costs_nothing)
{
    full_store_build(JOBS);
    unsigned char *bytes = page_bytes(page_of("lh_job", "leaf", 30));
    page_write(root_of("lh_job"), 0, bytes, 4096);
    free(bytes);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT_EQ(report_count(report, "lost"), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

TEST(a_page_of_events_in_place_of_jobs_makes_no_jobs)
{
    int64_t ids[MOST];
    full_store_build(JOBS);
    int64_t page = page_of("lh_job", "leaf", 0);
    int n = jobs_on(page, ids, MOST);
    unsigned char *bytes = page_bytes(page_of("lh_event", "leaf", 0));
    page_write(page, 0, bytes, 4096);
    free(bytes);
    note_damaged_file();
    lh_store *store = repair_open();
    expect_same(store, ids, n);
    EXPECT_EQ(epoch_of(store), 1);
    lh_close(store);
}

TEST(a_damaged_key_of_an_inner_page_costs_nothing)
{
    full_store_build(JOBS);
    unsigned char *bytes = page_bytes(root_of("lh_job"));
    size_t cell = (size_t)bytes[12 + 20] << 8 | bytes[12 + 21];
    EXPECT((bytes[cell + 4] & 0x80) != 0); /* a key of two bytes */
    unsigned char less = 0x80;
    page_write(root_of("lh_job"), cell + 4, &less, 1);
    free(bytes);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT_EQ(report_count(report, "lost"), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

TEST(a_damaged_map_of_pages_below_a_damaged_root_costs_nothing)
{
    full_store_build(JOBS);
    page_fill(2, 0); /* the map of the pages */
    page_fill(root_of("lh_job"), 0);
    note_damaged_file();
    lh_store *store = repair_open();
    EXPECT_EQ(epoch_of(store), 1); /* it is unknown whether the page had rows */
    expect_same(store, NULL, 0);
    lh_close(store);
}

TEST(a_page_of_jobs_in_place_of_the_highest_ids_is_not_taken_for_them)
{
    int64_t last;
    full_store_build(700);
    lh_store *store = store_new();
    last = add(store, "mail", "x");
    EXPECT_OK(lh_delete(store, &last, 1, NULL));
    lh_close(store);
    copy_file("store.db", "before.db");
    unsigned char *bytes = page_bytes(page_of("lh_job", "leaf", 3));
    page_write(root_of("sqlite_sequence"), 0, bytes, 4096);
    page_fill(root_of("lh_job_pending"), 0);
    free(bytes);
    store = repair_open();
    lh_report *report = repair_report(store);
    expect_said(report, "highest ids ever issued are lost");
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    EXPECT(add(store, "mail", "y") > last);
    store_check(store);
    lh_report_free(report);
    lh_close(store);
}

/* SQLite may take the page for free and overwrite it, but only in a copy. */
TEST(a_page_in_use_that_is_on_the_list_of_free_pages_costs_nothing)
{
    unsigned char header[4], *bytes;
    full_store_build(JOBS);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "DELETE FROM lh_job WHERE queue = 'print' AND state <> 'running'; PRAGMA "
                "wal_checkpoint(TRUNCATE)");
    EXPECT(db_int(db, "PRAGMA freelist_count") > 10);
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    int64_t leaf = page_of("lh_job", "leaf", 10);
    for (int i = 0; i < 4; i++)
        header[i] = (unsigned char)(leaf >> (24 - 8 * i));
    bytes = page_bytes(1);
    int64_t trunk = (int64_t)bytes[32] << 24 | bytes[33] << 16 | bytes[34] << 8 | bytes[35];
    free(bytes);
    bytes = page_bytes(trunk);
    int n = bytes[6] << 8 | bytes[7];
    free(bytes);
    for (int i = 0; i < n; i++)
        page_write(trunk, 8 + (size_t)i * 4, header, 4);
    page_patch(page_of("lh_job_key", "leaf", 0), "key-0", "key-z", 5);
    note_damaged_file();
    lh_store *store = repair_open();
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    store_check(store);
    expect_kept();
    lh_close(store);
}
