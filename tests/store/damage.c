/*
 * Real damage to real files, and what becomes of it: a store that opens, sound, with everything in it
 * that could be kept, everything else named, and the damaged file kept as it was.
 */
#include "ruin.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JOBS = 3000, MOST = 4000 };

/* The jobs of this page that an index knows, which is all but the completed ones. */
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

/* A file as we make them. */
static void expect_as_made(void)
{
    sqlite3 *db = db_open("store.db");

    EXPECT_EQ(db_int(db, "PRAGMA auto_vacuum"), 2);
    EXPECT_EQ(db_int(db, "PRAGMA application_id"), 0x4c484c44);
    EXPECT_EQ(db_int(db, "PRAGMA user_version"), lh_schema_version());
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM pragma_journal_mode WHERE journal_mode = 'wal'"), 1);
    sqlite3_close(db);
}

/* ---- indexes ---- */

TEST(a_zeroed_page_of_an_index_costs_nothing)
{
    ruin_build(JOBS);
    page_fill(page_of("lh_job_pending", "leaf", 3), 0);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
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

TEST(a_zeroed_root_of_an_index_costs_nothing)
{
    ruin_build(JOBS);
    page_fill(root_of("lh_job_timed"), 0);
    ruin_note();
    lh_store *store = ruin_open();
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    lh_close(store);
}

TEST(a_wrong_entry_of_an_index_is_found_and_the_index_rebuilt)
{
    char key[32];
    int64_t page;
    ruin_build(JOBS);
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
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    expect_said(report, "REINDEX, no loss is known");
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

/* An entry that leads to a job that was deleted long ago: the job it belonged to is there. */
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
    /* The id of an entry is a column of this index, and its last value. */
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
    ruin_note();
    store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT(report->integrity.repair_succeeded);
    EXPECT_EQ(report_count(report, "is lost"), 0);
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

/* To the engine one condition of an index is as good as another. */
TEST(a_definition_of_ours_that_has_become_another_is_made_anew)
{
    ruin_build(JOBS);
    page_patch(0, "lh_job(queue, key)\n WHERE key IS NOT NULL",
               "lh_job(queue, key)\n WHERE key IS     NULL", 39);
    ruin_note();
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

TEST(a_zeroed_page_of_a_table_costs_its_own_rows_and_names_them)
{
    int64_t ids[MOST], known[MOST];
    int64_t page;
    int n, k;
    ruin_build(JOBS);
    for (int i = 0;; i++) { /* one with completed jobs on it, which no index knows */
        page = page_of("lh_job", "leaf", i);
        n = jobs_on(page, ids, MOST);
        k = known_of(ids, n, known);
        if (k > 0 && k < n)
            break;
    }
    page_fill(page, 0);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    for (int i = 0; i < k; i++)
        expect_said(report, "job %lld is lost", (long long)known[i]);
    EXPECT_EQ(report_count(report, "is lost"), k + 1); /* and the page */
    expect_said(report, "ids %lld to", (long long)ids[0]);
    EXPECT_EQ(epoch_of(store), 1); /* no token is handed out twice */
    expect_same(store, ids, n);
    lh_report_free(report);
    lh_close(store);
}

TEST(pages_filled_with_rubbish_cost_their_own_rows)
{
    int64_t ids[MOST];
    int n = 0;
    ruin_build(JOBS);
    for (int i = 10; i <= 50; i += 10) {
        int64_t page = page_of("lh_job", "leaf", i);
        n += jobs_on(page, ids + n, MOST - n);
        page_fill(page, 0xa5);
    }
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT_EQ(report_count(report, "of lh_job cannot be read"), 5);
    expect_same(store, ids, n);
    lh_report_free(report);
    lh_close(store);
}

TEST(no_more_than_a_hundred_losses_are_named_and_the_others_counted)
{
    int64_t ids[MOST];
    int n = 0;
    ruin_build(JOBS);
    for (int i = 20; i < 40; i++) {
        int64_t page = page_of("lh_job", "leaf", i);
        n += jobs_on(page, ids + n, MOST - n);
        page_fill(page, 0);
    }
    EXPECT(n > 200);
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT(report->n_inconsistencies < 120);
    expect_said(report, "more are lost or partial");
    expect_same(store, ids, n);
    lh_report_free(report);
    lh_close(store);
}

TEST(a_zeroed_root_of_the_table_of_jobs_costs_nothing)
{
    ruin_build(JOBS);
    EXPECT_EQ(pages_of("lh_job", "internal"), 1);
    page_fill(root_of("lh_job"), 0);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT_EQ(report_count(report, "lost"), 0);
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

TEST(a_damaged_page_below_a_damaged_one_costs_its_own_rows)
{
    int64_t ids[MOST];
    ruin_build(JOBS);
    int64_t page = page_of("lh_job", "leaf", 30);
    int n = jobs_on(page, ids, MOST);
    page_fill(page, 0);
    page_fill(root_of("lh_job"), 0);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT_EQ(report_count(report, "of lh_job cannot be read"), 1);
    expect_said(report, "page %lld of lh_job cannot be read", (long long)page);
    EXPECT_EQ(epoch_of(store), 1);
    expect_same(store, ids, n);
    lh_report_free(report);
    lh_close(store);
}

TEST_TIMEOUT(a_zeroed_inner_page_deep_in_the_table_of_jobs_costs_nothing, 60)
{
    ruin_build(JOBS * 5);
    EXPECT(pages_of("lh_job", "internal") > 2);
    page_fill(page_of("lh_job", "internal", 1), 0);
    page_fill(root_of("lh_job"), 0xff);
    ruin_note();
    lh_store *store = ruin_open();
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    lh_close(store);
}

/* What was deleted long ago stands on pages that are free: nothing leads to them, as nothing leads to
 * the children of a damaged page. */
TEST(what_was_deleted_does_not_rise_again)
{
    lh_store *store;
    ruin_build(JOBS);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "PRAGMA secure_delete = OFF; DELETE FROM lh_job WHERE queue = 'mail'");
    EXPECT(db_int(db, "PRAGMA freelist_count") > 10);
    db_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    page_fill(root_of("lh_job"), 0);
    ruin_note();
    store = ruin_open();
    EXPECT_EQ(counts_of(store, "mail").pending, 0);
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    store_check(store);
    lh_close(store);
}

/* The disk has kept an older version of a page: to the engine all is well but the indexes. */
TEST(a_page_that_was_never_written_is_a_loss_too)
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
    ruin_note();
    store = ruin_open();
    lh_report *report = ruin_report(store);
    for (int i = had; i < has; i++)
        expect_said(report, "job %lld is lost", (long long)ids[i]);
    EXPECT_EQ(report_count(report, "is lost"), has - had);
    EXPECT_EQ(epoch_of(store), 1);
    expect_same(store, ids + had, has - had);
    lh_report_free(report);
    EXPECT(add(store, "mail", "next") > ids[has - 1]); /* an id is never used again */
    lh_close(store);
}

/* The id of a row has become that of another one, which is there too. */
TEST(a_row_under_the_id_of_another_does_not_take_its_place)
{
    int64_t ids[MOST];
    unsigned char *bytes;
    ruin_build(JOBS);
    int64_t page = page_of("lh_job", "leaf", 30);
    int n = jobs_on(page, ids, MOST);
    EXPECT(ids[n / 2] > 128 && ids[n / 2] + 1024 < JOBS); /* two bytes, as varint */
    bytes = page_bytes(page);
    size_t cell = (size_t)bytes[8 + n / 2 * 2] << 8 | bytes[9 + n / 2 * 2];
    cell += bytes[cell] & 0x80 ? 2 : 1;                     /* behind the length of the row */
    unsigned char first = (unsigned char)(bytes[cell] + 8); /* 8 * 128 more */
    page_write(page, cell, &first, 1);
    free(bytes);
    ruin_note();
    lh_store *store = ruin_open();
    EXPECT_EQ(epoch_of(store), 1);
    expect_same(store, &ids[n / 2], 1);
    lh_close(store);
}

/* What it led to is found all the same, and what is read twice counts once. */
TEST(a_page_that_leads_to_the_wrong_one_costs_nothing)
{
    ruin_build(JOBS);
    unsigned char *bytes = page_bytes(root_of("lh_job"));
    EXPECT_EQ(bytes[0], 5);
    size_t fifth = (size_t)bytes[12 + 10] << 8 | bytes[12 + 11];
    size_t sixth = (size_t)bytes[12 + 12] << 8 | bytes[12 + 13];
    page_write(root_of("lh_job"), fifth, bytes + sixth, 4);
    free(bytes);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT_EQ(report_count(report, "UNIQUE"), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

/* ---- pages that do not add up ---- */

/* The number of cells a page says it has. */
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

/* To the engine such a row was never there. */
TEST(a_page_that_says_it_has_fewer_rows_than_it_has_costs_nothing)
{
    static const char *const trees[] = {"lh_job",   "lh_lease",  "lh_policy",      "lh_meta",
                                        "lh_queue", "lh_worker", "sqlite_sequence"};
    for (size_t i = 0; i < sizeof trees / sizeof trees[0]; i++) {
        ruin_build(700);
        change_count(page_of(trees[i], "leaf", 0), -1);
        ruin_note();
        lh_store *store = ruin_open();
        EXPECT_EQ(epoch_of(store), 0);
        expect_same(store, NULL, 0);
        lh_close(store);
        EXPECT_EQ(system("rm -f store.db* before.db* ruined"), 0);
    }
}

TEST(a_page_that_says_it_has_more_rows_than_it_has_costs_nothing)
{
    ruin_build(700);
    change_count(page_of("lh_job", "leaf", 5), 3);
    ruin_note();
    lh_store *store = ruin_open();
    expect_same(store, NULL, 0);
    lh_close(store);
}

TEST(an_inner_page_that_leads_to_fewer_pages_than_it_did_costs_nothing)
{
    ruin_build(JOBS);
    change_count(root_of("lh_job"), -5);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT_EQ(report_count(report, "lost"), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

/* A write that went to the wrong place. */
TEST(a_page_written_over_another_costs_the_rows_of_that_one)
{
    int64_t ids[MOST];
    ruin_build(JOBS);
    int64_t page = page_of("lh_job", "leaf", 20);
    int n = jobs_on(page, ids, MOST);
    unsigned char *bytes = page_bytes(page_of("lh_job", "leaf", 30));
    page_write(page, 0, bytes, 4096);
    free(bytes);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT_EQ(report_count(report, "UNIQUE"), 0);
    expect_said(report, "page %lld of lh_job cannot be read", (long long)page);
    EXPECT_EQ(epoch_of(store), 1);
    expect_same(store, ids, n);
    lh_report_free(report);
    lh_close(store);
}

/* To the engine the table is one page, and sound. */
TEST(a_leaf_written_over_the_root_of_its_table_costs_nothing)
{
    ruin_build(JOBS);
    unsigned char *bytes = page_bytes(page_of("lh_job", "leaf", 30));
    page_write(root_of("lh_job"), 0, bytes, 4096);
    free(bytes);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT_EQ(report_count(report, "lost"), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

TEST(a_page_of_events_in_place_of_jobs_makes_no_jobs)
{
    int64_t ids[MOST];
    ruin_build(JOBS);
    int64_t page = page_of("lh_job", "leaf", 0);
    int n = jobs_on(page, ids, MOST);
    unsigned char *bytes = page_bytes(page_of("lh_event", "leaf", 0));
    page_write(page, 0, bytes, 4096);
    free(bytes);
    ruin_note();
    lh_store *store = ruin_open();
    expect_same(store, ids, n);
    EXPECT_EQ(epoch_of(store), 1);
    lh_close(store);
}

TEST(a_damaged_key_of_an_inner_page_costs_nothing)
{
    ruin_build(JOBS);
    unsigned char *bytes = page_bytes(root_of("lh_job"));
    size_t cell = (size_t)bytes[12 + 20] << 8 | bytes[12 + 21];
    EXPECT((bytes[cell + 4] & 0x80) != 0); /* a key of two bytes */
    unsigned char less = 0x80;
    page_write(root_of("lh_job"), cell + 4, &less, 1);
    free(bytes);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT_EQ(report_count(report, "lost"), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

TEST(a_damaged_map_of_pages_below_a_damaged_root_costs_nothing)
{
    ruin_build(JOBS);
    page_fill(2, 0); /* says of every page what it is for */
    page_fill(root_of("lh_job"), 0);
    ruin_note();
    lh_store *store = ruin_open();
    EXPECT_EQ(epoch_of(store), 1); /* nobody knows whether there were rows on it */
    expect_same(store, NULL, 0);
    lh_close(store);
}

TEST(a_page_of_jobs_in_place_of_the_highest_ids_is_not_taken_for_them)
{
    int64_t last;
    ruin_build(700);
    lh_store *store = store_new();
    last = add(store, "mail", "x");
    EXPECT_OK(lh_delete(store, &last, 1, NULL));
    lh_close(store);
    copy_file("store.db", "before.db");
    unsigned char *bytes = page_bytes(page_of("lh_job", "leaf", 3));
    page_write(root_of("sqlite_sequence"), 0, bytes, 4096);
    page_fill(root_of("lh_job_pending"), 0);
    free(bytes);
    store = ruin_open();
    lh_report *report = ruin_report(store);
    expect_said(report, "highest ids ever given are lost");
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    EXPECT(add(store, "mail", "y") > last);
    store_check(store);
    lh_report_free(report);
    lh_close(store);
}

/* The engine may take it for a free one, and write something else over it: on a copy. */
TEST(a_page_in_use_that_is_on_the_list_of_free_pages_costs_nothing)
{
    unsigned char header[4], *bytes;
    ruin_build(JOBS);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "DELETE FROM lh_job WHERE queue = 'print'; PRAGMA wal_checkpoint(TRUNCATE)");
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
    ruin_note();
    lh_store *store = ruin_open();
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    store_check(store);
    expect_kept();
    lh_close(store);
}

/* ---- rows ---- */

static lh_job find_job(lh_store *store, int64_t id, char *error, size_t len)
{
    lh_jobs *jobs = NULL;

    EXPECT_OK(lh_job_get(store, id, &jobs));
    lh_job job = jobs->job[0];
    (void)snprintf(error, len, "%s", job.last_error ? job.last_error : "");
    lh_jobs_free(jobs);
    return job;
}

/* The one job that is not as it was. */
static int64_t changed_job(void)
{
    sqlite3 *db = db_open("store.db");
    db_exec(db, "ATTACH 'before.db' AS was");
    int64_t id = db_int(db, "SELECT id FROM (SELECT * FROM was.lh_job EXCEPT "
                            "SELECT * FROM main.lh_job)");
    sqlite3_close(db);
    return id;
}

/* Claim all that is pending: what is handed out must not be this job. */
static void expect_never_run(lh_store *store, int64_t id)
{
    const char *queues[] = {"print", "mail", "sql"};
    lh_jobs *jobs = NULL;

    while (lh_claim(store,
                    &(lh_claim_opts){.queues = queues, .n_queues = 3, .worker = "w2", .n = 1000},
                    &jobs) == LH_OK) {
        for (size_t i = 0; i < jobs->n; i++)
            EXPECT(jobs->job[i].id != id);
        lh_jobs_free(jobs);
        jobs = NULL;
    }
}

TEST(a_job_whose_payload_cannot_be_read_to_its_end_is_kept_and_a_claim_fails_it)
{
    char error[200];
    ruin_build(JOBS);
    page_fill(page_of("lh_job", "overflow", 0), 0);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT_EQ(report_count(report, "is partial"), 1);
    EXPECT_EQ(report_count(report, "lost"), 0);
    EXPECT_EQ(rows_gone("lh_job", "id"), 0);
    EXPECT_EQ(rows_changed("lh_job", "true"), 1);
    int64_t id = changed_job();
    expect_said(report, "job %lld is partial", (long long)id);
    EXPECT_EQ(find_job(store, id, error, sizeof error).state, LH_PENDING);
    expect_never_run(store, id);
    EXPECT_EQ(find_job(store, id, error, sizeof error).state, LH_FAILED);
    EXPECT_CONTAINS(error, "CORRUPT: payload does not match its checksum");
    expect_kept();
    lh_report_free(report);
    lh_close(store);
}

TEST(a_job_of_a_plain_insert_that_cannot_be_read_to_its_end_is_failed_by_the_repair)
{
    char error[200];
    ruin_build(300);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "INSERT INTO lh_job(queue, payload) VALUES ('sql', zeroblob(30000))");
    int64_t id = sqlite3_last_insert_rowid(db);
    db_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    page_fill(page_of("lh_job", "overflow", -2), 0xff);
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    expect_said(report, "job %lld is partial", (long long)id);
    EXPECT_EQ(find_job(store, id, error, sizeof error).state, LH_FAILED);
    EXPECT_CONTAINS(error, "CORRUPT: row was damaged: not all of it can be read");
    EXPECT_EQ(rows_changed("lh_job", "true"), 1);
    EXPECT_EQ(counts_of(store, "sql").failed, 1);
    expect_never_run(store, id);
    store_check(store);
    lh_report_free(report);
    lh_close(store);
}

TEST(a_flipped_byte_of_a_payload_is_named_where_a_repair_comes_by)
{
    char error[200];
    ruin_build(JOBS);
    page_patch(0, "payload-of-job-001238", "payload-of-job-001239", 21);
    page_fill(page_of("lh_job_pending", "leaf", 2), 0);
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT_EQ(report_count(report, "is partial"), 1);
    int64_t id = changed_job();
    expect_said(report, "job %lld is partial: its payload", (long long)id);
    expect_never_run(store, id);
    EXPECT_EQ(find_job(store, id, error, sizeof error).state, LH_FAILED);
    EXPECT_CONTAINS(error, "CORRUPT: payload");
    lh_report_free(report);
    lh_close(store);
}

/* One byte of its row is another, and it is a job no longer. */
static void break_row(const char *was, const char *now, int64_t *id)
{
    sqlite3 *db;

    ruin_build(300);
    db = db_open("store.db");
    db_exec(db, "INSERT INTO lh_job(queue, key, payload) VALUES ('brokenqueue', 'brokenkey', 'x')");
    *id = sqlite3_last_insert_rowid(db);
    db_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    page_patch(page_of("lh_job", "leaf", -1), was, now, strlen(was));
    ruin_note();
}

TEST(a_job_in_no_state_that_there_is_is_kept_and_failed)
{
    char error[200];
    int64_t id;
    break_row("brokenqueuepending", "brokenqueuepfnding", &id);
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    expect_said(report, "job %lld is partial, and failed", (long long)id);
    lh_job job = find_job(store, id, error, sizeof error);
    EXPECT_EQ(job.state, LH_FAILED);
    EXPECT_CONTAINS(error, "CORRUPT: row was damaged: CHECK constraint failed");
    EXPECT_EQ(rows_changed("lh_job", "true"), 1);
    EXPECT_EQ(counts_of(store, "brokenqueue").failed, 1);
    store_check(store);
    expect_kept();
    lh_report_free(report);
    lh_close(store);
}

TEST(a_job_whose_queue_has_lost_its_name_is_kept_in_one_that_says_so)
{
    char error[200];
    int64_t id;
    break_row("brokenqueuepending", "broken\x01ueuepending", &id);
    lh_store *store = ruin_open();
    EXPECT_EQ(find_job(store, id, error, sizeof error).state, LH_FAILED);
    EXPECT_EQ(counts_of(store, "damaged").failed, 1);
    EXPECT_EQ(rows_changed("lh_job", "true"), 1);
    store_check(store);
    lh_close(store);
}

/* ---- the file as a whole ---- */

TEST(a_file_that_was_cut_off_keeps_every_row_that_is_left_of_it)
{
    int64_t ids[MOST], gone[MOST], cut;
    int n = 0;
    ruin_build(JOBS);
    cut = file_size("store.db") / 4096 * 2 / 3;
    EXPECT_EQ(truncate("store.db", cut * 4096 + 100), 0);
    for (int i = 0; i < pages_of("lh_job", "leaf"); i++) {
        int64_t page = page_of("lh_job", "leaf", i);
        int on = jobs_on(page, ids, MOST);
        for (int k = 0; k < on && page > cut; k++)
            gone[n++] = ids[k];
    }
    EXPECT(n > 100 && n < JOBS - 100);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT_EQ(rows_gone("lh_job", "id"), n);
    EXPECT_EQ(epoch_of(store), 1);
    sqlite3 *db = db_open("store.db");
    for (int i = 0; i < n; i += 7) {
        char text[100];
        (void)snprintf(text, sizeof text, "SELECT count(*) FROM lh_job WHERE id = %lld",
                       (long long)gone[i]);
        EXPECT_EQ(db_int(db, text), 0);
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

TEST(rubbish_in_the_header_costs_nothing)
{
    ruin_build(JOBS);
    overwrite(0, 100, 0x77);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT_EQ(report_count(report, "lost"), 0);
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    expect_as_made();
    lh_report_free(report);
    lh_close(store);
}

/* What is where is told by its shape alone. */
TEST(rubbish_in_place_of_the_schema_costs_no_job)
{
    ruin_build(JOBS);
    overwrite(0, 4096, 0x77);
    ruin_note();
    lh_store *store = ruin_open();
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    EXPECT_EQ(rows_changed("lh_policy", "true"), 0);
    EXPECT_EQ(rows_changed("lh_lease", "true"), 0);
    EXPECT_EQ(rows_changed("lh_worker", "true"), 0);
    EXPECT_EQ(rows_changed("lh_event", "true"), 0);
    EXPECT_EQ(rows_changed("lh_request", "true"), 0);
    EXPECT_EQ(rows_changed("lh_expiry", "true"), 0);
    EXPECT_EQ(rows_changed("lh_meta", "key <> 'epoch'"), 0);
    store_check(store);
    expect_kept();
    lh_close(store);
}

TEST(where_nothing_can_be_read_the_file_is_as_it_was)
{
    size_t len;
    lh_store *store = NULL;
    ruin_build(300);
    unsigned char *bytes = file_bytes("store.db", &len);
    memset(bytes, 0x5a, len);
    file_write("store.db", bytes, len);
    free(bytes);
    ruin_note();
    EXPECT_STATUS(lh_open("store.db", &(lh_open_opts){.startup = true}, &store), LH_ECORRUPT);
    EXPECT_EQ(lh_status_exit(LH_ECORRUPT), 6);
    EXPECT_CONTAINS(lh_errmsg(store), "could not be repaired");
    EXPECT_CONTAINS(lh_errmsg(store), "leasehold restore");
    lh_close(store);
    expect_nothing_left();
}

TEST(a_file_that_was_emptied_is_not_taken_for_a_new_one)
{
    ruin_build(300);
    EXPECT_EQ(truncate("store.db", 0), 0);
    ruin_note();
    expect_open("store.db", (lh_open_opts){.create = true, .startup = true}, LH_ECORRUPT,
                "too short for a database");
    expect_nothing_left();
}

TEST(a_file_that_was_emptied_is_made_anew_from_its_log)
{
    ruin_build_crashed(300, 50);
    EXPECT_EQ(truncate("store.db", 0), 0);
    ruin_note();
    lh_store *store = store_open("store.db", (lh_open_opts){.create = true});
    lh_report *report = ruin_report(store);
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

TEST(a_store_that_is_damaged_twice_at_the_same_time_keeps_both)
{
    freeze_now();
    ruin_build(300);
    page_fill(root_of("lh_job_pending"), 0);
    ruin_note();
    lh_store *store = ruin_open();
    lh_close(store);
    copy_file("store.db", "before.db");
    page_fill(root_of("lh_job_timed"), 0);
    store = ruin_open();
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    store_check(store);
    lh_close(store);
    EXPECT_EQ(system("test $(ls store.db.damaged-* | wc -l) = 2"), 0);
    EXPECT_EQ(system("for f in store.db.damaged-*; do cmp -s $f ruined && exit 0; done; exit 1"),
              0);
}

/* ---- what the store knows of itself ---- */

TEST(a_store_that_has_lost_what_it_knows_of_itself_is_the_same_store)
{
    ruin_build(300);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "UPDATE lh_meta SET value = 5 WHERE key = 'epoch';"
                "UPDATE lh_job SET token = (7 << 40) + 3 WHERE id = 9;"
                "PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    page_fill(root_of("lh_meta"), 0);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    expect_said(report, "identity of the store was lost");
    EXPECT_EQ(rows_changed("lh_job", "state <> 'running'"), 0);
    EXPECT_EQ(rows_changed("lh_meta", "key = 'store_uuid' OR key = 'own_file' OR "
                                      "key = 'schema_version'"),
              0);
    EXPECT(epoch_of(store) > 7); /* above any token that is there */
    lh_jobs *jobs = take(store, "sql", "w1", 0);
    EXPECT(jobs->job[0].token > INT64_C(7) << 40);
    lh_jobs_free(jobs);
    store_check(store);
    expect_kept();
    lh_report_free(report);
    lh_close(store);
}

TEST(where_the_highest_ids_are_lost_none_is_used_again)
{
    int64_t last;
    ruin_build(300);
    lh_store *store = store_new();
    last = add(store, "mail", "x");
    EXPECT_OK(lh_cancel(store, &last, 1, NULL, NULL));
    EXPECT_OK(lh_delete(store, &last, 1, NULL));
    lh_close(store);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "DELETE FROM lh_event; PRAGMA wal_checkpoint(TRUNCATE)"); /* nothing tells of it */
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    page_fill(root_of("sqlite_sequence"), 0);
    ruin_note();
    store = ruin_open();
    EXPECT(add(store, "mail", "y") > last);
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    EXPECT_EQ(epoch_of(store), 1);
    store_check(store);
    lh_close(store);
}

/* Whichever way it was repaired. */
TEST(where_the_highest_id_of_a_job_is_missing_none_is_used_again)
{
    int64_t last;
    ruin_build(300);
    sqlite3 *db = db_open("store.db");
    last = db_int(db, "SELECT seq FROM sqlite_sequence WHERE name = 'lh_job'");
    db_exec(db, "DELETE FROM lh_job WHERE queue = 'sql'; DELETE FROM lh_event;"
                "DELETE FROM sqlite_sequence WHERE name = 'lh_job';"
                "PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    page_patch(page_of("lh_job_key", "leaf", 0), "key-0", "key-z", 5);
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    expect_said(report, "REINDEX");
    expect_said(report, "highest ids ever given are lost");
    EXPECT(add(store, "mail", "y") > last);
    EXPECT_EQ(epoch_of(store), 1);
    store_check(store);
    lh_report_free(report);
    lh_close(store);
}

TEST(where_the_row_of_a_queue_is_lost_its_jobs_are_counted_anew)
{
    lh_queue was[2];
    ruin_build(JOBS);
    lh_store *store = store_new();
    was[0] = counts_of(store, "mail");
    was[1] = counts_of(store, "print");
    lh_close(store);
    copy_file("store.db", "before.db");
    page_fill(root_of("lh_queue"), 0x11);
    ruin_note();
    store = ruin_open();
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
    lh_report *report = ruin_report(store);
    EXPECT_EQ(report_count(report, "counts"), 0); /* by the repair, not by what comes after it */
    lh_report_free(report);
    store_check(store);
    (void)add(store, "mail", "goes on");
    lh_close(store);
    store = ruin_open(); /* and is not taken for an old copy */
    lh_close(store);
}

TEST(a_zeroed_page_of_any_other_table_costs_no_job)
{
    static const char *const trees[] = {"lh_request", "lh_event", "lh_expiry",
                                        "lh_policy",  "lh_lease", "lh_worker"};
    for (size_t i = 0; i < sizeof trees / sizeof trees[0]; i++) {
        ruin_build(300);
        page_fill(root_of(trees[i]), 0);
        lh_store *store = ruin_open();
        EXPECT_EQ(rows_changed("lh_job", "true"), 0);
        EXPECT_EQ(rows_changed("lh_expiry", "true"), 0);
        store_check(store);
        lh_close(store);
        EXPECT_EQ(system("rm -f store.db* before.db*"), 0);
    }
}

/* ---- the log ---- */

TEST(what_is_in_the_log_alone_is_kept)
{
    ruin_build_crashed(JOBS, 700);
    page_fill(page_of("lh_job_timed", "leaf", 0), 0);
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    EXPECT(report->integrity.repair_succeeded);
    EXPECT_EQ(report_count(report, "lost"), 0);
    expect_same(store, NULL, 0);
    EXPECT_EQ(epoch_of(store), 0);
    lh_report_free(report);
    lh_close(store);
}

TEST(a_loss_in_the_database_does_not_cost_its_log)
{
    int64_t ids[MOST];
    ruin_build_crashed(JOBS, 700);
    int64_t page = page_of("lh_job", "leaf", 20);
    int n = jobs_on(page, ids, MOST);
    page_fill(page, 0);
    ruin_note();
    lh_store *store = ruin_open();
    expect_same(store, ids, n);
    EXPECT_EQ(epoch_of(store), 1);
    lh_close(store);
}

/* A transaction that was larger than its program's memory is in the log before it is committed. */
TEST(what_was_not_committed_is_not_in_the_repaired_store)
{
    ruin_build_crashed(JOBS, 50);
    pid_t child = test_fork();
    if (child == 0) {
        sqlite3 *db = db_open("store.db");
        db_exec(db, "PRAGMA cache_size = 10; BEGIN; UPDATE lh_job SET priority = 99");
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).code, 0);
    EXPECT(file_size("store.db-wal") > 100000);
    page_fill(page_of("lh_job_key", "leaf", 0), 0);
    ruin_note();
    lh_store *store = ruin_open();
    expect_same(store, NULL, 0);
    EXPECT_EQ(epoch_of(store), 0);
    lh_close(store);
}

/* The log was folded, and is still there: it has the page that the database has lost. */
TEST(a_page_that_the_log_still_has_costs_nothing)
{
    int64_t ids[MOST];
    ruin_build_crashed(300, 50);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "PRAGMA wal_checkpoint(FULL)");
    int64_t page = page_of("lh_job", "leaf", -1);
    EXPECT(jobs_on(page, ids, MOST) > 0);
    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_close(db);
    EXPECT(file_size("store.db-wal") > 0);
    page_fill(page, 0);
    page_fill(root_of("lh_job_key"), 0);
    lh_store *store = ruin_open();
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    EXPECT_EQ(epoch_of(store), 0);
    lh_close(store);
}

TEST(a_lost_log_is_a_loss_that_a_repair_does_not_hide)
{
    ruin_build_crashed(JOBS, 700);
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

TEST(a_torn_log_is_read_up_to_where_it_is_whole_and_the_loss_is_told)
{
    ruin_build_crashed(JOBS, 700);
    EXPECT_EQ(truncate("store.db-wal", file_size("store.db-wal") / 2), 0);
    expect_open("store.db", (lh_open_opts){.startup = true}, LH_EOLDER, "older than it was");
    lh_store *store = store_open("store.db", (lh_open_opts){.startup = true, .accept_loss = true});
    EXPECT_EQ(rows_gone("lh_job", "id") % 500, 200); /* whole transactions */
    EXPECT_EQ(epoch_of(store), 1);
    store_check(store);
    lh_close(store);
}

/* In "other": a store of which `folded` jobs are in the file, and 60 more in the log alone. */
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
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).code, 0);
    EXPECT_EQ(chdir(".."), 0);
}

TEST(a_log_of_another_store_is_not_taken_for_ours)
{
    lh_store *store = NULL;
    ruin_build(JOBS);
    build_other(0); /* its log alone is a whole store */
    copy_file("other/store.db-wal", "store.db-wal");
    ruin_note();
    if (lh_open("store.db", &(lh_open_opts){.startup = true}, &store) == LH_OK)
        FAIL("another store is there now");
    lh_close(store);
    expect_nothing_left();
}

TEST(a_log_that_ruins_the_store_is_left_out)
{
    ruin_build(JOBS);
    build_other(20);
    copy_file("other/store.db-wal", "store.db-wal");
    ruin_note();
    lh_store *store = ruin_open();
    lh_report *report = ruin_report(store);
    expect_said(report, "log of the store was left out");
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    EXPECT_EQ(epoch_of(store), 1);
    expect_kept();
    lh_report_free(report);
    lh_close(store);
}
