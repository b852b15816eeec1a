/* Several processes: creating the same store, a bounded log, durability. */
#include "store/sqlite.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- several processes ---- */

TEST(processes_that_create_a_store_at_the_same_time_create_one)
{
    enum { MAKERS = 6 };
    pid_t makers[MAKERS];
    int start[2];
    char byte;
    EXPECT_EQ(pipe(start), 0);
    for (int i = 0; i < MAKERS; i++) {
        makers[i] = test_fork();
        if (makers[i] == 0) {
            close(start[1]);
            EXPECT_EQ(read(start[0], &byte, 1), 0); /* all start at the same time */
            lh_store *store = store_new();
            add(store, "mail", "x");
            lh_close(store);
            test_child_done();
        }
    }
    close(start[0]);
    close(start[1]);
    for (int i = 0; i < MAKERS; i++)
        EXPECT_EQ(test_wait(makers[i]).code, 0);
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "mail").pending, MAKERS);
    store_check(store);
    lh_close(store);
}

TEST(a_process_that_is_killed_inside_a_transaction_blocks_nobody)
{
    lh_store *store = store_new();
    lh_close(store);
    pid_t child = test_fork();
    if (child == 0) {
        store = store_new();
        (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "job_enqueue:inside");
        add(store, "mail", "never");
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).sig, 9);
    store = store_open("store.db", (lh_open_opts){.busy_ms = 500});
    EXPECT_EQ(counts_of(store, "mail").pending, 0);
    EXPECT_EQ(add(store, "mail", "x"), 1);
    store_check(store);
    lh_close(store);
}

/* ---- the log ---- */

enum { FRAME = 4096 + 24 };

TEST(the_log_stays_bounded_however_much_is_written)
{
    lh_store *store =
        store_open("store.db", (lh_open_opts){.create = true, .durability = LH_DURABLE_RELAXED});
    int64_t largest = 0;
    for (int i = 0; i < 5000; i++) {
        add(store, "mail", "some payload");
        int64_t size = file_size("store.db-wal");
        if (size > largest)
            largest = size;
    }
    EXPECT(largest < 1000 * (int64_t)FRAME);
    lh_store_info info;
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_EQ(info.wal_bytes, file_size("store.db-wal"));
    EXPECT_EQ(counts_of(store, "mail").pending, 5000);
    lh_close(store);
}

TEST(the_log_stays_bounded_while_others_read)
{
    lh_store *store =
        store_open("store.db", (lh_open_opts){.create = true, .durability = LH_DURABLE_RELAXED});
    lh_store *reader = store_open("store.db", (lh_open_opts){.read_only = true});
    for (int i = 0; i < 3000; i++) {
        add(store, "mail", "some payload");
        if (i % 10 == 0)
            (void)counts_of(reader, "mail");
    }
    EXPECT(file_size("store.db-wal") < 1000 * (int64_t)FRAME);
    lh_close(reader);
    lh_close(store);
}

/* ---- durability ---- */

TEST(what_was_acknowledged_survives_the_death_of_the_process_in_every_mode)
{
    static const struct {
        enum lh_durability durability;
        bool remote;
    } modes[] = {{LH_DURABLE_FULL, false}, {LH_DURABLE_RELAXED, false}, {LH_DURABLE_FULL, true}};
    for (int i = 0; i < 3; i++) {
        pid_t child = test_fork();
        if (child == 0) {
            lh_store *store =
                store_open("store.db", (lh_open_opts){.create = true,
                                                      .durability = modes[i].durability,
                                                      .remote = modes[i].remote});
            add(store, "mail", "x");
            lh_jobs *jobs = take(store, "mail", "w1", 0);
            EXPECT_OK(lh_complete(store,
                                  &(lh_done){.job = jobs->job[0].id, .token = jobs->job[0].token},
                                  1, NULL, NULL));
            (void)kill(getpid(), SIGKILL);
        }
        EXPECT_EQ(test_wait(child).sig, SIGKILL);
        lh_store *store = store_open("store.db", (lh_open_opts){0});
        EXPECT_EQ(counts_of(store, "mail").completed, i + 1);
        store_check(store);
        lh_close(store);
    }
}

/* ---- many threads, many handles ---- */

struct hand {
    pthread_t thread;
    int rc;
};

static void *open_add_close(void *arg)
{
    struct hand *h = arg;
    for (int i = 0; i < 20 && h->rc == LH_OK; i++) {
        lh_store *store = NULL;
        lh_enqueued out;
        h->rc = lh_open("store.db", &(lh_open_opts){.create = true}, &store);
        if (h->rc == LH_OK)
            h->rc = lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out);
        lh_close(store);
    }
    return NULL;
}

TEST(handles_open_and_close_while_others_write)
{
    struct hand hands[6] = {{.rc = LH_OK}};
    for (int i = 0; i < 6; i++)
        EXPECT_EQ(pthread_create(&hands[i].thread, NULL, open_add_close, &hands[i]), 0);
    for (int i = 0; i < 6; i++)
        pthread_join(hands[i].thread, NULL);
    for (int i = 0; i < 6; i++)
        EXPECT_OK(hands[i].rc);
    lh_store *store = store_new();
    EXPECT_EQ(counts_of(store, "mail").pending, 120);
    store_check(store);
    lh_close(store);
}
