/* Looking at a store while others write to it or exchange its file: such a store is never taken for
 * one that is older than it was. Processes are stopped at named points, so that each order of steps
 * is forced. */
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

/* The two ways to be told that a store is older than it was. */
static void (*const looks[])(lh_store *) = {store_check, status_is_sound};
enum { LOOKS = sizeof looks / sizeof looks[0] };

/* A process that has the store open, looks at it, and stops at the point. */
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

TEST(a_store_written_to_while_it_is_looked_at_is_not_older_than_it_was)
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

/* A copy is put back; it stops when the marks are those of the new file and the old one still has
 * the name. */
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

TEST(a_store_looked_at_while_it_is_replaced_is_not_older_than_it_was)
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

TEST(a_loss_accepted_while_the_store_is_looked_at_is_not_reported_again)
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
