/* Damage inside rows: readable values are kept, and a job with a damaged row never runs. */
#include "store/damage.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JOBS = 3000, MOST = 4000 };

static lh_job find_job(lh_store *store, int64_t id, char *error, size_t len)
{
    lh_jobs *jobs = NULL;

    EXPECT_OK(lh_job_get(store, id, &jobs));
    lh_job job = jobs->job[0];
    (void)snprintf(error, len, "%s", job.last_error ? job.last_error : "");
    lh_jobs_free(jobs);
    return job;
}

/* The one job whose row has changed. */
static int64_t changed_job(void)
{
    sqlite3 *db = db_open("store.db");
    db_exec(db, "ATTACH 'before.db' AS was");
    int64_t id = db_int(db, "SELECT id FROM (SELECT * FROM was.lh_job EXCEPT "
                            "SELECT * FROM main.lh_job)");
    sqlite3_close(db);
    return id;
}

/* Claim all pending jobs. This job must not be among them. */
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

TEST(job_with_a_cut_payload_is_kept_and_a_claim_fails_it)
{
    char error[200];
    full_store_build(JOBS);
    page_fill(page_of("lh_job", "overflow", 0), 0);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
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

TEST(inserted_job_with_a_cut_payload_is_failed_by_the_repair)
{
    char error[200];
    full_store_build(300);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "INSERT INTO lh_job(queue, payload) VALUES ('sql', zeroblob(30000))");
    int64_t id = sqlite3_last_insert_rowid(db);
    db_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    page_fill(page_of("lh_job", "overflow", -2), 0xff);
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
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

TEST(repair_reports_a_corrupt_payload)
{
    char error[200];
    full_store_build(JOBS);
    page_patch(0, "payload-of-job-001238", "payload-of-job-001239", 21);
    page_fill(page_of("lh_job_pending", "leaf", 2), 0);
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT_EQ(report_count(report, "is partial"), 1);
    int64_t id = changed_job();
    expect_said(report, "job %lld is partial: its payload", (long long)id);
    expect_never_run(store, id);
    EXPECT_EQ(find_job(store, id, error, sizeof error).state, LH_FAILED);
    EXPECT_CONTAINS(error, "CORRUPT: payload");
    lh_report_free(report);
    lh_close(store);
}

/* Change one byte of its row, so that it is no valid job. */
static void break_row(const char *was, const char *now, int64_t *id)
{
    sqlite3 *db;

    full_store_build(300);
    db = db_open("store.db");
    db_exec(db, "INSERT INTO lh_job(queue, key, payload) VALUES ('brokenqueue', 'brokenkey', 'x')");
    *id = sqlite3_last_insert_rowid(db);
    db_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    page_patch(page_of("lh_job", "leaf", -1), was, now, strlen(was));
    note_damaged_file();
}

TEST(job_in_an_unknown_state_is_kept_and_failed)
{
    char error[200];
    int64_t id;
    break_row("brokenqueuepending", "brokenqueuepfnding", &id);
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
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

TEST(job_without_a_queue_name_is_kept_in_a_queue_for_lost_jobs)
{
    char error[200];
    int64_t id;
    break_row("brokenqueuepending", "broken\x01ueuepending", &id);
    lh_store *store = repair_open();
    EXPECT_EQ(find_job(store, id, error, sizeof error).state, LH_FAILED);
    EXPECT_EQ(counts_of(store, "damaged").failed, 1);
    EXPECT_EQ(rows_changed("lh_job", "true"), 1);
    store_check(store);
    lh_close(store);
}

/* ---- a row that cannot be read ---- */

/* Overwrite two bytes of row `cell` on this leaf: its id, or the start of its record behind the id.
 * Returns the id. */
static int64_t break_cell(int64_t page, int cell, bool over_id, const char *bytes)
{
    int64_t ids[200];
    unsigned char *was = page_bytes(page);
    size_t at = (size_t)was[8 + 2 * cell] << 8 | was[9 + 2 * cell];

    EXPECT(jobs_on(page, ids, 200) > cell + 2);
    EXPECT(ids[cell] >= 128 && ids[cell] < 16384); /* two bytes long */
    while (was[at++] & 0x80)
        continue;
    page_write(page, at + (over_id ? 0 : 2), bytes, 2);
    free(was);
    return ids[cell];
}

static void expect_named(int64_t id)
{
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    expect_said(report, "job %lld is lost: its row cannot be read", (long long)id);
    EXPECT_EQ(report_count(report, "is lost"), 1);
    expect_same(store, &id, 1);
    lh_report_free(report);
    lh_close(store);
}

TEST(job_whose_contents_cannot_be_read_is_named_by_the_id_in_its_row)
{
    full_store_build(600);
    expect_named(break_cell(page_of("lh_job", "leaf", 15), 1, false, "\xff\xff"));
}

TEST(first_job_of_a_page_is_named_by_its_neighbours_when_its_row_cannot_be_found)
{
    int64_t ids[200];
    full_store_build(600);
    int64_t page = page_of("lh_job", "leaf", 15);
    EXPECT(jobs_on(page, ids, 200) > 2);
    page_write(page, 8, "\xff\xff", 2); /* the position of its row */
    expect_named(ids[0]);
}

TEST(jobs_whose_ids_cannot_be_read_are_named_as_a_range)
{
    full_store_build(600);
    int64_t page = page_of("lh_job", "leaf", 15);
    int64_t first = break_cell(page, 1, true, "\xff\x7f");
    (void)break_cell(page, 2, true, "\xff\x7f");
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    expect_said(report, "a job with an id from %lld to %lld is lost", (long long)first,
                (long long)first + 1);
    EXPECT_EQ(report_count(report, "a job with an id from"), 2);
    EXPECT_EQ(rows_gone("lh_job", "id"), 2);
    lh_report_free(report);
    lh_close(store);
}
