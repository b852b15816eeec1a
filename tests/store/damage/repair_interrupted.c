/* A repair that is cut off, or cannot be done: the original is there, and the next one does it. */
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

/* Open it in a child that is killed at this point; false if it never comes by. */
static bool killed_at(const char *point)
{
    pid_t child = test_fork();
    if (child == 0) {
        (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "%s", point);
        lh_close(ruin_open());
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

/* Damage that takes the whole ladder, and frames in the log. */
static void build_ruins(void)
{
    ruin_build_crashed(JOBS, 30);
    page_fill(page_of("lh_job_pending", "leaf", 0), 0);
    ruin_note();
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
    build_ruins();
    for (int i = 0; i < N_POINTS; i++) {
        if (!killed_at(points[i]))
            FAIL("a repair never passes %s", points[i]);
        expect_repaired(points[i]);
        start_over();
    }
}

TEST_TIMEOUT(a_repair_killed_twice_in_a_row_is_done_by_the_next_open, 120)
{
    const int second[] = {-1, 1, 8, 10}; /* -1: the same again */

    build_ruins();
    for (int i = 0; i < N_POINTS; i++)
        for (int k = 0; k < 4; k++) {
            const char *then = points[second[k] < 0 ? i : second[k]];
            char when[100];
            (void)snprintf(when, sizeof when, "%s, then %s", points[i], then);
            EXPECT(killed_at(points[i]));
            (void)killed_at(then); /* what is left to do may not come by there */
            expect_repaired(when);
            start_over();
        }
}

/* What a program that is not ours finds in the store's place, whenever a repair was cut off: a file,
 * never none; the old one or the new one. */
TEST_TIMEOUT(there_is_never_a_moment_without_a_file, 60)
{
    build_ruins();
    for (int i = 0; i < N_POINTS; i++) {
        size_t len;
        EXPECT(killed_at(points[i]));
        unsigned char *bytes = file_bytes("store.db", &len);
        EXPECT(len > 4096 && memcmp(bytes, "SQLite format 3", 16) == 0);
        free(bytes);
        /* The log of the old one is never beside the new one, and nobody else may read a copy. */
        EXPECT(!file_exists("store.db-wal") || i <= 7);
        EXPECT_EQ(system("test -z \"$(find . -name 'store.db.repair-*' -perm /077)\""), 0);
        start_over();
    }
}

/* ---- what cannot be done ---- */

static void expect_refused(int status, const char *part)
{
    lh_store *store = NULL;

    EXPECT_STATUS(lh_open("store.db", &(lh_open_opts){.startup = true}, &store), status);
    EXPECT_CONTAINS(lh_errmsg(store), part);
    lh_close(store);
    expect_nothing_left();
}

TEST(where_there_is_no_room_for_a_copy_the_store_is_as_it_was)
{
    ruin_build(JOBS * 5);
    page_fill(root_of("lh_job_pending"), 0);
    ruin_note();
    own_disk("disk");
    EXPECT_EQ(system("cp store.db store.db-lease ruined before.db disk && rm disk/before.db"), 0);
    EXPECT_EQ(chdir("disk"), 0);
    own_disk_fill("filler", 300000);
    expect_refused(LH_ENOSPC, "no space left to repair");
    EXPECT_EQ(unlink("filler"), 0);
    lh_store *store = ruin_open(); /* and when there is room, it is repaired */
    store_check(store);
    lh_close(store);
}

/* Room for the copy, and none for what is made of it. */
TEST(where_the_room_ends_on_the_way_the_store_is_as_it_was)
{
    ruin_build(JOBS * 5);
    page_fill(root_of("lh_job"), 0);
    ruin_note();
    int64_t size = file_size("store.db");
    own_disk("disk");
    EXPECT_EQ(system("cp store.db store.db-lease ruined disk"), 0);
    EXPECT_EQ(chdir("disk"), 0);
    own_disk_fill("filler", size + (1 << 20) + 400000);
    expect_refused(LH_ENOSPC, "no space left");
    EXPECT_EQ(unlink("filler"), 0);
    lh_store *store = ruin_open();
    store_check(store);
    lh_close(store);
}

TEST(where_the_copy_cannot_be_written_the_store_is_as_it_was)
{
    build_ruins();
    int64_t whole = file_size("store.db");
    EXPECT(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)whole / 2, RLIM_INFINITY}), 0);
    expect_refused(LH_EIO, "store.db.repair-");
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}), 0);
    expect_repaired("with room");
}

TEST_TIMEOUT(where_memory_runs_out_the_store_is_as_it_was, 120)
{
    struct lhi_control *control = lhi_control();
    int64_t failures = 0;

    build_ruins();
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

TEST(where_another_program_has_the_store_open_it_is_not_exchanged)
{
    build_ruins();
    sqlite3 *db = db_open("store.db");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_queue WHERE queue = 'mail'"), 1);
    expect_refused(LH_EBUSY, "another program has it open");
    sqlite3_close(db);
}

TEST(a_repaired_store_belongs_to_whom_it_belonged)
{
    struct stat was, now;
    build_ruins();
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
