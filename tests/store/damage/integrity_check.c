/* A check of the engine's file by itself: what it says of a sound one and of a damaged one, and that
 * it keeps, repairs and changes nothing. */
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

/* No report, no second file. */
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

TEST(a_check_of_integrity_tells_a_sound_file_from_a_damaged_one)
{
    freeze_now();
    ruin_build(300);
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    lh_report *report = check(store);
    EXPECT(report->integrity.passed);
    EXPECT_EQ(report->integrity.n_errors, 0);
    expect_nothing_else(report);
    expect_nothing_kept(store);
    lh_report_free(report);
    lh_close(store);

    page_fill(page_of("lh_job_pending", "leaf", 0), 0);
    store = store_open("store.db", (lh_open_opts){0}); /* it was closed cleanly: nobody looks */
    for (int i = 0; i < 2; i++) {                      /* and it is not repaired on the way */
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

TEST(a_check_of_integrity_ends_when_its_cancel_flag_is_raised)
{
    int cancel = 1;
    lh_report *report = NULL;
    lh_store *store = store_new();
    EXPECT_STATUS(lh_check_integrity(store, &cancel, &report), LH_EINTR);
    lh_close(store);
    ruin_build(3000); /* whatever its size */
    store = store_new();
    EXPECT_STATUS(lh_check_integrity(store, &cancel, &report), LH_EINTR);
    EXPECT(strlen(lh_errmsg(store)) > 0);
    EXPECT(report == NULL);
    cancel = 0;
    EXPECT_OK(lh_check_integrity(store, &cancel, &report)); /* of the next one nothing is left */
    EXPECT(report->integrity.passed);
    lh_report_free(report);
    lh_close(store);
}
