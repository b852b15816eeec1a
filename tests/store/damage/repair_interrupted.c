/* A repair that is killed or fails: the damaged store is unchanged, and the next open repairs
 * it. */
#include "store/copies.h"
#include "store/damage.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JOBS = 800 };

static const char *const points[] = {
    "repair:noted",    "repair:copied", "repair:reindexed", "repair:vacuumed",
    "repair:salvaged", "repair:made",   "swap:noted",       "swap:linked",
    "swap:aside",      "swap:marked",   "swap:renamed",     "swap:done",
};

enum { N_POINTS = sizeof points / sizeof points[0] };

/* Open the store in a child that is killed at this point. False: it does not reach the point. */
static bool killed_at(const char *point)
{
    pid_t child = test_fork();
    if (child == 0) {
        (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "%s", point);
        lh_close(repair_open());
        test_child_done();
    }
    struct run r = test_wait(child);
    if (r.sig != SIGKILL && r.code != 0)
        FAIL("the repair failed by itself at %s", point);
    return r.sig == SIGKILL;
}

static void start_over(void)
{
    EXPECT_EQ(system("rm -f store.db*; cp -p ruins/* ."), 0);
}

/* Damage that needs all methods of repair, and frames in the log. */
static void build_badly_damaged(void)
{
    full_store_build_crashed(JOBS, 30);
    page_fill(page_of("lh_job_pending", "leaf", 0), 0);
    note_damaged_file();
    EXPECT_EQ(system("mkdir ruins && cp -p store.db* ruins"), 0);
}

static void expect_repaired(const char *when)
{
    lh_store *store = NULL;

    if (lh_open("store.db", &(lh_open_opts){.startup = true}, &store) != LH_OK)
        FAIL("%s: %s", when, lh_errmsg(store));
    expect_same(store, NULL, 0);
    lh_close(store);
}

TEST_TIMEOUT(a_repair_killed_at_any_point_is_done_by_the_next_open, 60)
{
    build_badly_damaged();
    for (int i = 0; i < N_POINTS; i++) {
        if (!killed_at(points[i]))
            FAIL("a repair never passes %s", points[i]);
        expect_repaired(points[i]);
        start_over();
    }
}

TEST_TIMEOUT(a_repair_killed_twice_in_a_row_is_done_by_the_next_open, 120)
{
    const int second[] = {-1, 1, 8, 10}; /* -1: the same point again */

    build_badly_damaged();
    for (int i = 0; i < N_POINTS; i++)
        for (int k = 0; k < 4; k++) {
            const char *then = points[second[k] < 0 ? i : second[k]];
            char when[100];
            (void)snprintf(when, sizeof when, "%s, then %s", points[i], then);
            EXPECT(killed_at(points[i]));
            (void)killed_at(then); /* the remaining steps may not reach that point */
            expect_repaired(when);
            start_over();
        }
}

/* Another program always finds a file in the store's place, the old one or the new one, at every
 * step of a repair. */
TEST_TIMEOUT(store_always_has_a_file_during_a_repair, 60)
{
    build_badly_damaged();
    for (int i = 0; i < N_POINTS; i++) {
        size_t len;
        EXPECT(killed_at(points[i]));
        unsigned char *bytes = file_bytes("store.db", &len);
        EXPECT(len > 4096 && memcmp(bytes, "SQLite format 3", 16) == 0);
        free(bytes);
        /* The log of the old file is never beside the new one, and no other user may read a
         * copy. */
        EXPECT(!file_exists("store.db-wal") || i <= 7);
        EXPECT_EQ(system("test -z \"$(find . -name 'store.db.repair-*' -perm /077)\""), 0);
        start_over();
    }
}

/* ---- repairs that fail ---- */

static void expect_refused(int status, const char *part)
{
    lh_store *store = NULL;

    EXPECT_STATUS(lh_open("store.db", &(lh_open_opts){.startup = true}, &store), status);
    EXPECT_CONTAINS(lh_errmsg(store), part);
    lh_close(store);
    expect_nothing_left();
}

TEST(repair_without_room_for_a_copy_changes_nothing)
{
    full_store_build(JOBS * 5);
    page_fill(root_of("lh_job_pending"), 0);
    note_damaged_file();
    own_disk("disk");
    EXPECT_EQ(system("cp store.db store.db-lease ruined before.db disk && rm disk/before.db"), 0);
    EXPECT_EQ(chdir("disk"), 0);
    own_disk_fill("filler", 300000);
    expect_refused(LH_ENOSPC, "no space left to repair");
    EXPECT_EQ(unlink("filler"), 0);
    lh_store *store = repair_open(); /* when there is room, the store is repaired */
    store_check(store);
    lh_close(store);
}

/* There is room for the copy, but not for the new file. */
TEST(repair_without_room_leaves_the_store_unchanged)
{
    full_store_build(JOBS * 5);
    page_fill(root_of("lh_job"), 0);
    note_damaged_file();
    int64_t size = file_size("store.db");
    own_disk("disk");
    EXPECT_EQ(system("cp store.db store.db-lease ruined disk"), 0);
    EXPECT_EQ(chdir("disk"), 0);
    own_disk_fill("filler", size + (1 << 20) + 400000);
    expect_refused(LH_ENOSPC, "no space left");
    EXPECT_EQ(unlink("filler"), 0);
    lh_store *store = repair_open();
    store_check(store);
    lh_close(store);
}

TEST(repair_whose_copy_cannot_be_written_changes_nothing)
{
    build_badly_damaged();
    int64_t whole = file_size("store.db");
    EXPECT(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)whole / 2, RLIM_INFINITY}), 0);
    expect_refused(LH_EIO, "store.db.repair-");
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}), 0);
    expect_repaired("with room");
}

TEST_TIMEOUT(repair_without_memory_changes_nothing, 120)
{
    struct lhi_control *control = lhi_control();
    int64_t failures = 0;

    build_badly_damaged();
    for (int64_t n = 1;; n += 1 + n / 6) {
        lh_store *store = NULL;
        control->calls[LHI_FAULT_ALLOC] = 0;
        control->fail_at[LHI_FAULT_ALLOC] = n;
        int rc = lh_open("store.db", &(lh_open_opts){.startup = true}, &store);
        bool fired = control->calls[LHI_FAULT_ALLOC] >= n;
        control->fail_at[LHI_FAULT_ALLOC] = 0;
        lh_close(store);
        if (!fired)
            break;
        failures++;
        if (rc != LH_OK && rc != LH_ENOMEM)
            FAIL("allocation %lld: %s", (long long)n, lh_status_name(rc));
        expect_repaired("with memory");
        start_over();
    }
    EXPECT(failures > 20);
}

TEST(store_that_another_program_has_open_is_not_replaced)
{
    build_badly_damaged();
    sqlite3 *db = db_open("store.db");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_queue WHERE queue = 'mail'"), 1);
    expect_refused(LH_EBUSY, "another program has it open");
    sqlite3_close(db);
}

TEST(repaired_store_keeps_its_owner)
{
    struct stat was, now;
    build_badly_damaged();
    EXPECT_EQ(chmod("store.db", 0640), 0);
    if (geteuid() == 0)
        EXPECT_EQ(chown("store.db", 12345, 54321), 0);
    EXPECT_EQ(stat("store.db", &was), 0);
    expect_repaired("owner");
    EXPECT_EQ(stat("store.db", &now), 0);
    EXPECT_EQ(now.st_uid, was.st_uid);
    EXPECT_EQ(now.st_gid, was.st_gid);
    EXPECT_EQ(now.st_mode, was.st_mode);
    EXPECT(now.st_ino != was.st_ino);
}
