/* Checking a store while other processes write to it or replace its file: it must never be reported
 * as older than it was. Processes stop at named points, which forces each order of steps. */
#include "store/copies.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

static void wait_for_stop(pid_t child)
{
    int status;

    EXPECT_EQ(waitpid(child, &status, WUNTRACED), child);
    EXPECT(WIFSTOPPED(status));
}

static void finish(pid_t child)
{
    EXPECT_EQ(kill(child, SIGCONT), 0);
    EXPECT_EQ(test_wait(child).code, 0);
}

static void stop_at(const char *point)
{
    (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "%s", point);
    lhi_control()->stop_there = true;
}

static void status_is_sound(lh_store *store)
{
    EXPECT_STR(info_of(store).degraded, "");
}

/* The two calls that report a store as older than it was. */
static void (*const looks[])(lh_store *) = {store_check, status_is_sound};
enum { LOOKS = sizeof looks / sizeof looks[0] };

/* A process that opens the store, checks it, and stops at the point. */
static pid_t looker(void (*look)(lh_store *store), const char *point)
{
    pid_t child = test_fork();

    if (child == 0) {
        lh_store *store = store_open("store.db", (lh_open_opts){.read_only = true});
        stop_at(point);
        look(store);
        lh_close(store);
        test_child_done();
    }
    wait_for_stop(child);
    return child;
}

TEST(store_is_not_reported_as_older_while_others_write)
{
    for (int i = 0; i < LOOKS; i++) {
        lh_close(store_new());
        pid_t child = looker(looks[i], "age:between");
        lh_store *store = store_new();
        for (int n = 0; n < 3; n++)
            add(store, "mail", "acknowledged meanwhile");
        lh_close(store);
        finish(child);
    }
}

/* A process that restores a copy. It stops when the marks belong to the new file and the old file
 * still has the name. */
static pid_t restorer(const char *point)
{
    pid_t child = test_fork();

    if (child == 0) {
        stop_at(point);
        restore("copy.db");
        test_child_done();
    }
    wait_for_stop(child);
    return child;
}

TEST(store_is_not_reported_as_older_while_it_is_replaced)
{
    for (int i = 0; i < LOOKS; i++) {
        lh_store *store = store_new();
        add(store, "mail", "in the copy");
        backup(store, "copy.db", (lh_backup_opts){.replace = true});
        lh_close(store);
        pid_t look = looker(looks[i], "age:before");
        pid_t replace = restorer("swap:marked");
        finish(look);
        finish(replace);
    }
}

TEST(loss_that_is_accepted_during_a_check_is_not_reported)
{
    for (int i = 0; i < LOOKS; i++) {
        lh_close(store_new());
        copy_file("store.db", "old.db");
        lh_store *store = store_new();
        for (int n = 0; n < 5; n++)
            add(store, "mail", "lost");
        lh_close(store);
        copy_file("old.db", "store.db");
        pid_t child = looker(looks[i], "age:between");
        lh_close(store_open("store.db", (lh_open_opts){.accept_loss = true}));
        finish(child);
    }
}
