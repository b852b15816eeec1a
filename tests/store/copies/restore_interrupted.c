/* A restore that is killed at any step leaves either the old store or the new one, complete, and no
 * other file. The next open finishes the restore or removes its files. */
#include "store/copies.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static const char *const points[] = {
    "copy:step",   "restore:copied", "restore:settled", "restore:made", "swap:noted",
    "swap:linked", "swap:aside",     "swap:marked",     "swap:renamed", "swap:done",
};

enum { POINTS = sizeof points / sizeof points[0], OLD_JOBS = 3, COPY_JOBS = 1 };

/* One job in the copy, three in the store. */
static lh_store *prepare(void)
{
    lh_store *store = store_new();

    while (counts_of(store, "q").pending < COPY_JOBS)
        add(store, "q", "one");
    backup(store, "copy.db", (lh_backup_opts){.replace = true});
    while (counts_of(store, "q").pending < OLD_JOBS)
        add(store, "q", "more");
    return store;
}

/* Start a process that restores, and is killed at this point once *go is closed. */
static pid_t start_restore(const char *point, int *go)
{
    pid_t child = test_fork_waiting(go);

    if (child == 0) {
        (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "%s", point);
        restore("copy.db");
        test_child_done();
    }
    return child;
}

static void end_restore(const char *point, pid_t child, int go)
{
    close(go);
    if (test_wait(child).sig != SIGKILL)
        FAIL("a restore never passes %s", point);
}

static void restore_killed(const char *point)
{
    int go;
    pid_t child = start_restore(point, &go);

    end_restore(point, child, go);
}

/* The store is one of the two and sound, and no file of an unfinished restore exists. */
static int64_t expect_one_of_both(const char *point)
{
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    int64_t n = counts_of(store, "q").pending, epoch = info_of(store).epoch;

    (void)fprintf(stderr, "killed at %s: %lld jobs, epoch %lld\n", point, (long long)n,
                  (long long)epoch);
    if (n != OLD_JOBS && n != COPY_JOBS)
        FAIL("killed at %s: the store has %lld jobs", point, (long long)n);
    store_check(store);
    EXPECT_EQ(files_with(".", ".repair-"), 0);
    EXPECT_EQ(files_with(".", "-new"), 0);
    lh_close(store);
    return n;
}

TEST_TIMEOUT(a_restore_that_is_killed_leaves_the_old_store_or_the_new_one, 60)
{
    int old = 0, restored = 0;

    for (int i = 0; i < POINTS; i++) {
        lh_close(prepare());
        restore_killed(points[i]);
        if (expect_one_of_both(points[i]) == OLD_JOBS)
            old++;
        else
            restored++;
        restore("copy.db");
        EXPECT_EQ(jobs_in("store.db"), COPY_JOBS);
    }
    /* some of the points are before the replacement, some after it */
    EXPECT(old > 0 && restored > 0);
}

TEST_TIMEOUT(a_restore_that_is_killed_is_done_by_the_next_one_though_others_have_the_store_open, 60)
{
    for (int i = 0; i < POINTS; i++) {
        int go;
        pid_t child = start_restore(points[i], &go);
        lh_store *witness = prepare();
        int64_t epoch = info_of(witness).epoch;
        end_restore(points[i], child, go);
        restore("copy.db");
        EXPECT_EQ(jobs_in("store.db"), COPY_JOBS);
        EXPECT_EQ(files_with(".", ".repair-"), 0);
        EXPECT_EQ(files_with(".", "-new"), 0);
        lh_enqueued out;
        EXPECT_STATUS(lh_enqueue(witness, "q", &(lh_new_job){0}, 1, NULL, &out), LH_ESTOPPED);
        lh_store *store = store_open("store.db", (lh_open_opts){0});
        EXPECT(info_of(store).epoch > epoch);
        EXPECT_EQ(counts_of(store, "q").pending, COPY_JOBS);
        lh_close(store);
        lh_close(witness);
    }
}

TEST_TIMEOUT(a_restore_that_is_killed_keeps_nobody_out_though_others_have_the_store_open, 60)
{
    for (int i = 0; i < POINTS; i++) {
        int go;
        pid_t child = start_restore(points[i], &go);
        lh_store *witness = prepare(), *store = NULL;
        end_restore(points[i], child, go);
        int rc = lh_open("store.db", NULL, &store);
        if (rc != LH_OK)
            FAIL("killed at %s: %s: %s", points[i], lh_status_name(rc), lh_errmsg(store));
        int64_t n = counts_of(store, "q").pending;
        if (n != OLD_JOBS && n != COPY_JOBS)
            FAIL("killed at %s: the store has %lld jobs", points[i], (long long)n);
        store_check(store);
        lh_close(witness);
        lh_close(store);
        EXPECT_EQ(jobs_in("store.db"), n);
        restore("copy.db");
    }
}
