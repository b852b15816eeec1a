/* Fork: what a forked child may do, and that it cannot harm its parent or other processes. */
#include "store/sqlite.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the parent's handle ---- */

TEST(handle_is_refused_in_a_forked_child_and_works_in_the_parent)
{
    lh_store *store = store_new();
    int64_t id = add(store, "mail", "x");
    lh_jobs_free(take(store, "mail", "w1", 0));
    pid_t child = test_fork();
    if (child == 0) {
        lh_enqueued out;
        lh_jobs *jobs = NULL;
        lh_queues *queues = NULL;
        const char *queue = "mail";
        EXPECT_STATUS(lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_EMISUSE);
        EXPECT_CONTAINS(lh_errmsg(store), "fork");
        EXPECT_STATUS(lh_claim(store,
                               &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w2"},
                               &jobs),
                      LH_EMISUSE);
        EXPECT_STATUS(lh_cancel(store, &id, 1, NULL, NULL), LH_EMISUSE);
        EXPECT_STATUS(lh_job_get(store, id, &jobs), LH_EMISUSE);
        EXPECT_STATUS(lh_queue_list(store, &queues), LH_EMISUSE);
        EXPECT_STATUS(lh_maintain(store, NULL, NULL), LH_EMISUSE);
        lh_close(store); /* frees what is safe to free */
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).code, 0);
    EXPECT_EQ(state_of(store, id), LH_RUNNING);
    add(store, "mail", "y");
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    store_check(store);
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    lh_close(store);
}

TEST(a_child_that_dies_with_an_inherited_handle_leaves_no_lock_behind)
{
    lh_store *store = store_new();
    add(store, "mail", "x");
    int hold[2];
    char byte;
    EXPECT_EQ(pipe(hold), 0);
    pid_t child = test_fork();
    if (child == 0) { /* the child calls nothing and outlives the parent's close */
        close(hold[1]);
        EXPECT_EQ(read(hold[0], &byte, 1), 0);
        test_child_done();
    }
    close(hold[0]);
    add(store, "mail", "y");
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){.busy_ms = 500});
    add(store, "mail", "z");
    EXPECT_EQ(counts_of(store, "mail").pending, 3);
    lh_close(store);
    close(hold[1]);
    EXPECT_EQ(test_wait(child).code, 0);
}

/* Does this process have the file open? */
static bool has_open(const char *part)
{
    DIR *dir = opendir("/proc/self/fd");
    bool found = false;
    const struct dirent *entry;

    EXPECT(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        char link[300], file[4096] = "";
        (void)snprintf(link, sizeof link, "/proc/self/fd/%s", entry->d_name);
        (void)!readlink(link, file, sizeof file - 1);
        found = found || strstr(file, part) != NULL;
    }
    (void)closedir(dir);
    return found;
}

TEST(forked_child_has_no_copy_of_the_coordination_file)
{
    lh_store *store = store_new();
    EXPECT(has_open("store.db-lease"));
    pid_t child = test_fork();
    if (child == 0) {
        EXPECT(!has_open("store.db-lease"));
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).code, 0);
    lh_close(store);
}

static void *wait_for_a_job(void *arg)
{
    const char *queue = "mail";
    lh_jobs *jobs = NULL;
    lh_claim_opts opts = {.queues = &queue, .n_queues = 1, .worker = "w1", .wait_ms = -1};
    EXPECT_OK(lh_claim(arg, &opts, &jobs));
    lh_jobs_free(jobs);
    return NULL;
}

/* The handle's threads are stopped through pipes, of which the child has copies. */
TEST(close_does_not_wait_for_a_forked_child_to_exit)
{
    lh_store *store = store_new();
    pthread_t waiter;
    int hold[2];
    char byte;

    EXPECT_EQ(pipe(hold), 0);
    EXPECT_EQ(pthread_create(&waiter, NULL, wait_for_a_job, store), 0);
    while (
        !has_open("inotify")) /* by then the handle has its threads and the pipes that stop them */
        (void)usleep(1000);
    pid_t child = test_fork();
    if (child == 0) {
        close(hold[1]);
        EXPECT_EQ(read(hold[0], &byte, 1), 0);
        test_child_done();
    }
    close(hold[0]);
    add(store, "mail", "x");
    pthread_join(waiter, NULL);
    lh_close(store);
    close(hold[1]);
    EXPECT_EQ(test_wait(child).code, 0);
}

/* ---- a child opens a store ---- */

static void expect_refused(const char *path, lh_open_opts opts)
{
    expect_open(path, opts, LH_EMISUSE, "close the store before fork, or open it after exec");
}

TEST(forked_child_cannot_open_a_store_while_its_parent_has_one_open)
{
    lh_store *store = store_new();
    add(store, "mail", "x");
    pid_t child = test_fork();
    if (child == 0) {
        char message[300];
        int version;
        lh_close(store); /* closing does not help: SQLite cannot forget its locks */
        expect_refused("store.db", (lh_open_opts){0});
        expect_refused("store.db", (lh_open_opts){.read_only = true});
        expect_refused("another.db", (lh_open_opts){.create = true});
        EXPECT(!file_exists("another.db") && !file_exists("another.db-lease"));
        EXPECT_STATUS(lh_schema_of("store.db", &version, message, sizeof message), LH_EMISUSE);
        EXPECT_STATUS(lh_restore("another.db", "store.db", NULL, NULL, 0, message, sizeof message),
                      LH_EMISUSE);
        EXPECT_CONTAINS(message, "close the store before fork");
        pid_t grandchild = test_fork();
        if (grandchild == 0) {
            expect_refused("store.db", (lh_open_opts){0});
            test_child_done();
        }
        EXPECT_EQ(test_wait(grandchild).code, 0);
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).code, 0);
    add(store, "mail", "y");
    EXPECT_EQ(counts_of(store, "mail").pending, 2);
    store_check(store);
    lh_close(store);
}

TEST(reading_handle_of_the_parent_refuses_the_child_too)
{
    lh_close(store_new());
    lh_store *reader = store_open("store.db", (lh_open_opts){.read_only = true});
    pid_t child = test_fork();
    if (child == 0) {
        expect_refused("store.db", (lh_open_opts){0});
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).code, 0);
    lh_close(reader);
}

TEST(failed_open_of_the_parent_does_not_refuse_the_child)
{
    expect_open("missing.db", (lh_open_opts){0}, LH_ENOSTORE, "missing.db");
    file_write("text.db", "this is not a database, and longer than a header of one, to be sure",
               68);
    expect_open("text.db", (lh_open_opts){0}, LH_EINVAL, "text.db");
    pid_t child = test_fork();
    if (child == 0) {
        lh_close(store_new());
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).code, 0);
}

/* ---- prefork servers ---- */

static void *read_counts(void *arg)
{
    const int *stop = arg;
    while (__atomic_load_n(stop, __ATOMIC_RELAXED) == 0) {
        lh_store *reader = store_open("store.db", (lh_open_opts){.read_only = true});
        (void)counts_of(reader, "mail");
        lh_close(reader);
    }
    return NULL;
}

/* A child of the server. One of its threads works while another opens and closes handles for
 * reading. */
static void serve(void)
{
    int stop = 0;
    pthread_t reader;
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    lh_jobs *jobs;

    EXPECT_EQ(pthread_create(&reader, NULL, read_counts, &stop), 0);
    while ((jobs = take(store, "mail", "w1", 0)) != NULL) {
        lh_done done = {.job = jobs->job[0].id, .token = jobs->job[0].token};
        EXPECT_OK(lh_complete(store, &done, 1, NULL, NULL));
        lh_jobs_free(jobs);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(reader, NULL);
    lh_close(store);
}

TEST_TIMEOUT(prefork_server_that_closes_before_fork_keeps_all_its_children, 60)
{
    enum { ROUNDS = 6, CHILDREN = 4, JOBS = 30 };
    pid_t children[CHILDREN];

    for (int round = 1; round <= ROUNDS; round++) {
        lh_store *store = store_new();
        for (int i = 0; i < JOBS; i++)
            add(store, "mail", "x");
        lh_close(store);
        for (int i = 0; i < CHILDREN; i++) {
            children[i] = test_fork();
            if (children[i] == 0) {
                serve();
                test_child_done();
            }
        }
        for (int i = 0; i < CHILDREN; i++) {
            struct run ended = test_wait(children[i]);
            EXPECT_EQ(ended.sig, 0);
            EXPECT_EQ(ended.code, 0);
        }
        store = store_new();
        EXPECT_EQ(counts_of(store, "mail").completed, round * JOBS);
        store_check(store);
        lh_close(store);
    }
}

static void *come_and_go(void *arg)
{
    const int *stop = arg;
    while (__atomic_load_n(stop, __ATOMIC_RELAXED) == 0) {
        lh_store *store = store_open("store.db", (lh_open_opts){0});
        add(store, "mail", "x");
        lh_close(store);
    }
    return NULL;
}

/* Exit code 0: it has opened the store. 1: it was refused. */
static int try_to_open(void)
{
    lh_store *store = NULL;
    int rc = lh_open("store.db", &(lh_open_opts){.busy_ms = 15000}, &store);

    if (rc == LH_OK)
        add(store, "mail", "x");
    else if (rc == LH_EMISUSE)
        EXPECT_CONTAINS(lh_errmsg(store), "close the store before fork");
    else
        EXPECT_OK(rc);
    lh_close(store);
    return rc == LH_OK ? 0 : 1;
}

TEST_TIMEOUT(child_of_a_threaded_parent_opens_the_store_or_is_refused_and_never_hangs, 60)
{
    enum { THREADS = 3, CHILDREN = 60 };
    pthread_t threads[THREADS];
    int stop = 0, refused = 0;

    lh_close(store_new());
    for (int i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, come_and_go, &stop), 0);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = test_fork();
        if (child == 0)
            _exit(try_to_open());
        struct run ended = test_wait(child);
        EXPECT_EQ(ended.sig, 0);
        EXPECT(ended.code == 0 || ended.code == 1);
        refused += ended.code;
    }
    /* otherwise no thread was inside the store at any fork, and the test shows nothing */
    EXPECT(refused > 0);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pid_t child = test_fork();
    if (child == 0)
        _exit(try_to_open());
    EXPECT_EQ(test_wait(child).code, 0); /* all handles are closed now */
    lh_store *store = store_new();
    store_check(store);
    lh_close(store);
}
