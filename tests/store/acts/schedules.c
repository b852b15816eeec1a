/* Schedules in the file: damage to them, a full disk, and dropping our tables. */
#include "store/damage.h"

#include <stdio.h>
#include <stdlib.h>

static int64_t rows(const char *sql)
{
    sqlite3 *db = db_open("store.db");
    int64_t n = db_int(db, sql);
    sqlite3_close(db);
    return n;
}

TEST(damaged_page_of_schedules_is_reported_and_costs_nothing_else)
{
    full_store_build(50);
    page_fill(root_of("lh_schedule"), 0);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    expect_said(report, "of lh_schedule cannot be read: its rows are lost");
    EXPECT_EQ(rows("SELECT count(*) FROM lh_schedule"), 0);
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    EXPECT_OK(lh_schedule_set(
        store, &(lh_schedule){.name = "yearly", .queue = "mail", .cron = "@yearly"}));
    store_check(store);
    lh_report_free(report);
    lh_close(store);
}

TEST(a_damaged_index_of_schedules_costs_nothing)
{
    full_store_build(50);
    page_fill(root_of("lh_schedule_next"), 0);
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT_EQ(report_count(report, "lost"), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
}

TEST(schedule_with_a_corrupt_payload_enqueues_nothing)
{
    freeze_now();
    lh_store *store = store_new();
    lh_findings *findings = NULL;
    lh_maintained done;
    EXPECT_OK(
        lh_schedule_set(store, &(lh_schedule){.name = "tick",
                                              .queue = "mail",
                                              .cron = "@every 1m",
                                              .job = {.payload = "hello", .payload_len = 5}}));
    sqlite3 *db = db_open("store.db");
    db_exec(db, "UPDATE lh_schedule SET payload = 'hallo'");
    EXPECT_OK(lh_check(store, NULL, &findings));
    EXPECT_EQ(findings->errors, 1);
    for (size_t i = 0; i < findings->n; i++)
        if (strcmp(findings->finding[i].level, "error") == 0)
            EXPECT_STR(findings->finding[i].text,
                       "schedule \"tick\" of lh_schedule does not match its checksum");
    lh_findings_free(findings);
    for (int i = 0; i < 2; i++) {
        pass_ms(60000);
        EXPECT_OK(lh_maintain(store, NULL, &done));
        EXPECT_EQ(done.enqueued, 0);
    }
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_job"), 0);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_event WHERE type = 'schedule.failed' AND reason "
                         "LIKE '%does not match its checksum%'"),
              1);
    sqlite3_close(db);
    lh_close(store);
}

TEST(schedule_continues_after_a_restore)
{
    enum { TEN_MINUTES_MS = 600000 };
    freeze_now();
    lh_store *store = store_new();
    char why[300] = "";
    lh_maintained done;
    lh_jobs *jobs = NULL;
    lh_schedules *schedules = NULL;
    EXPECT_OK(lh_schedule_set(store, &(lh_schedule){.name = "tick",
                                                    .queue = "mail",
                                                    .cron = "*/10 * * * *",
                                                    .job = {.payload = "\0x", .payload_len = 2}}));
    EXPECT_OK(lh_backup(store, "copy.db", NULL));
    pass_ms(2 * TEN_MINUTES_MS);
    lh_close(store);
    EXPECT_OK(lh_restore("store.db", "copy.db", NULL, NULL, 0, why, sizeof why));
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_OK(lh_maintain(store, NULL, &done));
    EXPECT_EQ(done.enqueued, 1);
    EXPECT_OK(lh_job_get(store, 1, &jobs));
    EXPECT_MEM(jobs->job[0].payload, jobs->job[0].payload_len, "\0x", 2);
    lh_jobs_free(jobs);
    EXPECT_OK(lh_schedule_list(store, &schedules));
    int64_t now = lh_now(store), next = schedules->schedule[0].next_at;
    EXPECT_EQ(next, now - now % TEN_MINUTES_MS + TEN_MINUTES_MS);
    lh_schedules_free(schedules);
    lh_close(store);
}

TEST(dropping_our_tables_drops_the_schedules)
{
    lh_store *store = store_new();
    char *sql = NULL;
    EXPECT_OK(lh_drop_sql(store, &sql));
    EXPECT_CONTAINS(sql, "DROP table lh_schedule;");
    free(sql);
    lh_close(store);
}
