/* Time namespaces shift monotonic clocks and the start times of processes. A process in one must
 * treat leases and workers as every other process does. */
#include "store/sqlite.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

enum { AHEAD_S = 100000, BEHIND_S = -1, HOUR_MS = 3600000, A_MOMENT_MS = 60000 };

static int64_t reclaimed(lh_store *store)
{
    lh_report *report = NULL;

    EXPECT_OK(lh_recover(store, NULL, &report));
    int64_t n = report->entries_reclaimed;
    lh_report_free(report);
    return n;
}

static int64_t jumps(lh_store *store)
{
    lh_events *events = NULL;
    int64_t n = 0;

    EXPECT_OK(lh_event_list(store, &(lh_event_filter){.limit = 1000}, &events));
    for (size_t i = 0; i < events->n; i++)
        n += strcmp(events->event[i].type, "clock.jump") == 0;
    lh_events_free(events);
    return n;
}

static int64_t wall_ms(void)
{
    struct timespec ts;

    EXPECT_EQ(clock_gettime(CLOCK_REALTIME, &ts), 0);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Neither a claim nor a recovery takes the lease from its holder, and the remaining time is the
 * same. */
static void expect_nothing_taken(void)
{
    lh_store *reader = store_open("store.db", (lh_open_opts){.read_only = true});
    EXPECT(llabs(lh_now(reader) - wall_ms()) < A_MOMENT_MS);
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    EXPECT(take(store, "mail", "thief", 0) == NULL);
    EXPECT_EQ(reclaimed(store), 0);
    EXPECT_EQ(jumps(store), 0);
    EXPECT_EQ(state_of(store, 1), LH_RUNNING);
    EXPECT(llabs(lh_now(store) - wall_ms()) < A_MOMENT_MS);
    lh_store_info info;
    EXPECT_OK(lh_store_status(reader, &info));
    EXPECT_EQ(info.stale_jobs, 0);
    EXPECT_EQ(info.workers_dead, 0);
    EXPECT(llabs(info.clock_skew_ms) < A_MOMENT_MS);
    lh_close(reader);
    lh_close(store);
}

static void hold_a_job(const char *worker)
{
    lh_store *store = store_new();
    char id[160];

    add(store, "mail", "x");
    lh_worker_opts opts = {.id = worker, .process = true};
    EXPECT_OK(lh_worker_register(store, &opts, id, sizeof id));
    lh_jobs_free(take(store, "mail", worker, HOUR_MS));
    lh_close(store);
}

TEST(process_in_another_time_namespace_takes_no_live_lease)
{
    hold_a_job("w1");
    for (int i = 0; i < 2; i++) {
        pid_t child = test_fork_at_another_time(i == 0 ? AHEAD_S : BEHIND_S);
        if (child < 0)
            return;
        if (child == 0) {
            expect_nothing_taken();
            test_child_done();
        }
        EXPECT_EQ(test_wait(child).code, 0);
        expect_nothing_taken();
    }
}

TEST(lease_taken_in_another_time_namespace_ends_at_the_same_time_outside)
{
    pid_t child = test_fork_at_another_time(AHEAD_S);
    if (child < 0)
        return;
    if (child == 0) {
        lh_store *store = store_new(); /* it also sets the anchor of the clock */
        add(store, "mail", "x");
        lh_jobs_free(take(store, "mail", "w1", HOUR_MS));
        lh_close(store);
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).code, 0);
    expect_nothing_taken();
    lh_store *store = store_new();
    pass_ms(HOUR_MS + A_MOMENT_MS);
    EXPECT_EQ(reclaimed(store), 1);
    lh_close(store);
}

/* Both may have the store open at the same time. The values that they leave in the coordination
 * file are compared. */
TEST(processes_of_two_time_namespaces_write_side_by_side)
{
    enum { EACH = 60 };
    lh_close(store_new());
    pid_t child = test_fork_at_another_time(AHEAD_S);
    if (child < 0)
        return;
    if (child == 0) {
        lh_store *store = store_new();
        for (int i = 0; i < EACH; i++)
            add(store, "mail", "from there");
        EXPECT_EQ(reclaimed(store), 0);
        lh_close(store);
        test_child_done();
    }
    lh_store *store = store_new();
    for (int i = 0; i < EACH; i++)
        add(store, "mail", "from here");
    EXPECT_EQ(test_wait(child).code, 0);
    EXPECT_EQ(counts_of(store, "mail").pending, 2 * EACH);
    EXPECT_EQ(jumps(store), 0);
    store_check(store);
    lh_close(store);
}

/* The kernel then shows only the offsets of the children's namespace. */
TEST(process_that_made_a_time_namespace_for_its_children_cannot_open_a_store)
{
    lh_close(store_new());
    pid_t child = test_fork();
    if (child == 0) {
        if (test_new_time_namespace(AHEAD_S)) {
            expect_open("store.db", (lh_open_opts){0}, LH_EMISUSE, "open the store in a child");
            expect_open("store.db", (lh_open_opts){.read_only = true}, LH_EMISUSE,
                        "time namespace");
        } else {
            (void)fprintf(stderr, "not run: this user may not make a time namespace\n");
        }
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).code, 0);
}

static bool hide_proc(void)
{
    return (unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
           mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", "/proc", "tmpfs", 0, NULL) == 0;
}

/* Such a process knows neither its boot nor its offset, and uses the wall clock. */
TEST(process_without_proc_takes_no_live_lease_and_leaves_the_clock_of_others_alone)
{
    hold_a_job("w1");
    pid_t child = test_fork_at_another_time(AHEAD_S);
    if (child < 0)
        return;
    if (child == 0) {
        if (hide_proc())
            expect_nothing_taken();
        else
            (void)fprintf(stderr, "not run: this user may not mount\n");
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).code, 0);
    expect_nothing_taken();
}

/* Its anchor belongs to no known boot, so no other process may use it. */
TEST(anchor_made_without_proc_is_ignored)
{
    int go;
    pid_t other = test_fork_waiting(&go);
    if (other == 0) {
        if (file_exists("store.db") && hide_proc())
            expect_nothing_taken();
        test_child_done();
    }
    pid_t child = test_fork_at_another_time(AHEAD_S);
    if (child == 0) {
        if (hide_proc())
            hold_a_job("w1");
        else
            (void)fprintf(stderr, "not run: this user may not mount\n");
        test_child_done();
    }
    if (child > 0)
        EXPECT_EQ(test_wait(child).code, 0);
    close(go);
    EXPECT_EQ(test_wait(other).code, 0);
}
