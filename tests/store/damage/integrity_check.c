/* A check of the file alone: what it says about a sound file and a damaged one, and that it stores,
 * repairs and changes nothing. */
#include "store/copies.h"
#include "store/damage.h"

static lh_report *check(lh_store *store)
{
    lh_report *report = NULL;

    if (lh_check_integrity(store, NULL, &report) != LH_OK)
        FAIL("could not check: %s", lh_errmsg(store));
    EXPECT(report->integrity.ran);
    EXPECT(!report->integrity.repair_attempted && !report->integrity.repair_succeeded);
    EXPECT_STR(report->trigger, "manual");
    EXPECT_EQ(report->completed_at, lh_now(store));
    return report;
}

/* There is no report and no second file. */
static void expect_nothing_kept(lh_store *store)
{
    lh_reports *reports = NULL;

    EXPECT_OK(lh_report_list(store, 0, &reports));
    EXPECT_EQ(reports->n, 0);
    lh_reports_free(reports);
    EXPECT_EQ(files_with(".", ".damaged-") + files_with(".", ".repair-"), 0);
}

static void expect_nothing_else(const lh_report *report)
{
    EXPECT_EQ(report->id, 0);
    EXPECT_EQ(report->wal_frames, -1);
    EXPECT_EQ(report->orphaned + report->entries_reclaimed + report->locks_cleaned, 0);
    EXPECT_EQ(report->n_recovered + report->n_dead_workers + report->n_inconsistencies, 0);
}

TEST(integrity_check_distinguishes_sound_and_damaged_files)
{
    freeze_now();
    full_store_build(300);
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    lh_report *report = check(store);
    EXPECT(report->integrity.passed);
    EXPECT_EQ(report->integrity.n_errors, 0);
    expect_nothing_else(report);
    expect_nothing_kept(store);
    lh_report_free(report);
    lh_close(store);

    page_fill(page_of("lh_job_pending", "leaf", 0), 0);
    /* the store was closed cleanly, so opening it runs no check */
    store = store_open("store.db", (lh_open_opts){0});
    for (int i = 0; i < 2; i++) { /* and the check does not repair it */
        report = check(store);
        EXPECT(!report->integrity.passed);
        EXPECT(report->integrity.n_errors > 0);
        for (size_t k = 0; k < report->integrity.n_errors; k++)
            EXPECT(strlen(report->integrity.errors[k]) > 0);
        expect_nothing_else(report);
        expect_nothing_kept(store);
        lh_report_free(report);
    }
    lh_close(store);
}

TEST(integrity_check_ends_when_it_is_cancelled)
{
    int cancel = 1;
    lh_report *report = NULL;
    lh_store *store = store_new();
    EXPECT_STATUS(lh_check_integrity(store, &cancel, &report), LH_EINTR);
    lh_close(store);
    full_store_build(3000); /* for a file of any size */
    store = store_new();
    EXPECT_STATUS(lh_check_integrity(store, &cancel, &report), LH_EINTR);
    EXPECT(strlen(lh_errmsg(store)) > 0);
    EXPECT(report == NULL);
    cancel = 0;
    /* the finding of an earlier check is gone */
    EXPECT_OK(lh_check_integrity(store, &cancel, &report));
    EXPECT(report->integrity.passed);
    lh_report_free(report);
    lh_close(store);
}
