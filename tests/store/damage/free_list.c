/* Damage to the list of free pages. No table or index is damaged, so REINDEX does not help and
 * VACUUM INTO does. */
#include "store/damage.h"

#include <stdlib.h>

enum { JOBS = 3000, FIRST_FREE = 32, COUNT_FREE = 36, LEAST_FREE = 20 };

static unsigned number_at(const unsigned char *p)
{
    return (unsigned)p[0] << 24 | (unsigned)p[1] << 16 | (unsigned)p[2] << 8 | p[3];
}

/* A number in the header of the file. */
static unsigned header_at(size_t at)
{
    size_t len;
    unsigned char *bytes = file_bytes("store.db", &len);
    unsigned number = number_at(bytes + at);

    free(bytes);
    return number;
}

/* A store with many free pages: half of its jobs were purged. */
static void build(void)
{
    int64_t purged = 0;

    full_store_build(JOBS);
    lh_store *store = store_new();
    EXPECT_OK(lh_queue_purge(store, "print", &purged));
    EXPECT(purged > JOBS / 4);
    lh_close(store);
    copy_file("store.db", "before.db");
    EXPECT(header_at(COUNT_FREE) > LEAST_FREE);
}

static void expect_copied_by_the_engine(void)
{
    note_damaged_file();
    lh_store *store = repair_open();
    lh_report *report = repair_report(store);
    EXPECT(report->integrity.ran && report->integrity.passed);
    EXPECT(report->integrity.repair_attempted && report->integrity.repair_succeeded);
    expect_said(report, "repaired by VACUUM INTO, no loss is known");
    expect_said(report, "store.db.damaged-");
    EXPECT_EQ(report_count(report, "lost") + report_count(report, "partial"), 0);
    EXPECT_EQ(epoch_of(store), 0);
    expect_same(store, NULL, 0);
    lh_report_free(report);
    lh_close(store);
    EXPECT_EQ(header_at(COUNT_FREE), 0);
}

TEST(damaged_list_of_free_pages_is_repaired_by_vacuum)
{
    build();
    page_fill(header_at(FIRST_FREE), 0);
    expect_copied_by_the_engine();
}

TEST(wrong_count_of_free_pages_is_repaired_by_vacuum)
{
    size_t len;
    build();
    unsigned char *bytes = file_bytes("store.db", &len);
    bytes[COUNT_FREE + 2] ^= 0x40;
    file_write("store.db", bytes, len);
    free(bytes);
    expect_copied_by_the_engine();
}
