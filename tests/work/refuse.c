/* A worker that cannot work does not start: it claims nothing and writes nothing. */
#include "work/shift.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void expect_refused(const char *command, const char *words)
{
    struct run r = WORK("q", "--drain=pending", "--", command);

    if (r.code != 2)
        FAIL("command \"%s\": exit code %d\n%s", command, r.code, r.err);
    EXPECT_CONTAINS(r.err, words);
    run_clear(&r);
}

static char why[480];

static void expect_untouched(struct shop *shop, int64_t job)
{
    EXPECT_EQ(look(shop, job)->state, LH_PENDING);
    EXPECT_EQ(look(shop, job)->attempt, 0);
    EXPECT_EQ(look(shop, job)->token, 0);
    EXPECT_EQ(workers(shop), 0);
    EXPECT_EQ(events(shop, "worker.started"), 0);
}

TEST(a_command_that_cannot_be_run_is_refused_before_anything_is_claimed)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    write_file("plain", "#!/bin/sh\n", 0600);
    EXPECT_EQ(mkdir("folder", 0700), 0);
    EXPECT_EQ(setenv("PATH", "/usr/bin:/bin:.", 1), 0);
    expect_refused("./nonesuch", "command \"./nonesuch\" does not exist");
    expect_refused("nonesuch", "command \"nonesuch\" was not found in $PATH");
    expect_refused("./plain", "command \"./plain\" is not an executable file");
    expect_refused("plain", "command \"plain\" was not found in $PATH");
    expect_refused("./folder", "command \"./folder\" is not an executable file");
    expect_refused("folder", "command \"folder\" was not found in $PATH");
    expect_refused("./plain/x", "command \"./plain/x\" does not exist");
    expect_refused("", "command \"\" was not found");
    expect_untouched(&shop, job);
    shop_close(&shop);
}

TEST(a_command_that_cannot_be_run_creates_no_store)
{
    expect_refused("./nonesuch", "does not exist");
    EXPECT(!exists("s.db"));
    EXPECT(!exists("s.db-lease"));
}

/* Run the program in a new namespace. Exit code 77: this machine allows none. */
static struct run run_in(const char *namespace, const char *offset, const char *prepare,
                         const char *words)
{
    char script[600];

    (void)snprintf(script, sizeof script, "%s || exit 77; exec \"$TEST_LEASEHOLD\" --store s.db %s",
                   prepare, words);
    const char *const argv[] = {"unshare", namespace, offset, "sh", "-c", script, NULL};
    struct run r = run(NULL, argv);
    if (r.code == 77 || strstr(r.err, "unshare failed") != NULL) {
        (void)fprintf(stderr, "not run: this user has no such namespace\n");
        r.code = 77;
    }
    return r;
}

#define HIDE_PROC "mount -t tmpfs none /proc 2> /dev/null"

/* The start times of guardians are read from /proc; without them no job could start. */
TEST(worker_without_proc_refuses_to_start_and_claims_nothing)
{
    static const char *const words[] = {"work q --once -- true",
                                        "lease run backup/nightly -- true"};
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct run r = run_in("--mount", "--fork", HIDE_PROC, words[i]);
        if (r.code != 77) {
            EXPECT_EQ(r.code, 1);
            EXPECT_CONTAINS(r.err, "/proc shows no processes here");
            EXPECT_CONTAINS(r.err, "mount -t proc");
        }
        run_clear(&r);
    }
    expect_untouched(&shop, job);
    EXPECT_EQ(events(&shop, "lease.acquired"), 0);
    shop_close(&shop);
}

/* With a new pid namespace but the /proc of the outer one, each pid is that of another process. Guardians would
 * look dead, and other processes like guardians. */
TEST(worker_with_proc_of_another_pid_namespace_refuses_to_start_and_claims_nothing)
{
    static const char *const words[] = {"work q --once -- true",
                                        "lease run backup/nightly -- true"};
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct run r = run_in("--pid", "--fork", "true", words[i]);
        if (r.code != 77) {
            EXPECT_EQ(r.code, 1);
            EXPECT_CONTAINS(r.err, "/proc shows the processes of another pid namespace");
            EXPECT_CONTAINS(r.err, "mount -t proc proc /proc");
        }
        run_clear(&r);
    }
    expect_untouched(&shop, job);
    EXPECT_EQ(events(&shop, "lease.acquired"), 0);
    shop_close(&shop);
}

TEST(worker_in_a_pid_namespace_with_its_own_proc_runs_jobs)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct run r = run_in("-pf", "--mount-proc", "true", "work q --once --timeout 1m -- true");

    if (r.code != 77) {
        EXPECT_EQ(r.code, 0);
        EXPECT_EQ(look(&shop, job)->state, LH_COMPLETED);
    }
    run_clear(&r);
    shop_close(&shop);
}

TEST(worker_in_another_time_namespace_runs_jobs)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct run r =
        run_in("--time", "--monotonic=100000", "true", "work q --once --timeout 1m -- true");

    if (r.code != 77) {
        EXPECT_EQ(r.code, 0);
        EXPECT_EQ(look(&shop, job)->state, LH_COMPLETED);
        EXPECT_EQ(events(&shop, "clock.jump"), 0);
    }
    run_clear(&r);
    shop_close(&shop);
}

static lh_outcome never_called(void *arg, lh_task *task, const lh_job *job)
{
    (void)arg;
    (void)task;
    FAIL("job %lld was run", (long long)job->id);
}

TEST(a_guardian_that_cannot_be_started_ends_the_worker_before_it_claims)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    const char *queue = "q";
    char name[] = "true", *command[] = {name, NULL};
    lh_work_tally tally;
    write_file("guardian", "no program", 0700);
    lh_work_opts opts = {.queues = &queue, .n_queues = 1, .command = command, .drain = true};
    opts.guardian = "./nonesuch";
    EXPECT_STATUS(lh_worker_run(shop.store, &opts, &tally, why, sizeof why), LH_EINVAL);
    EXPECT_CONTAINS(why, "./nonesuch");
    opts.guardian = "./guardian";
    EXPECT_STATUS(lh_worker_run(shop.store, &opts, &tally, why, sizeof why), LH_EFAIL);
    EXPECT_CONTAINS(why, "./guardian");
    EXPECT_EQ(tally.claimed, 0);
    EXPECT_EQ(look(&shop, job)->token, 0);
    shop_close(&shop);
}

TEST(a_worker_without_a_queue_or_with_bad_numbers_is_refused)
{
    struct shop shop = shop_open();
    const char *queue = "q", *bad = "a b";
    char name[] = "true", *command[] = {name, NULL}, *none[] = {NULL};
    lh_work_tally tally;
    lh_work_opts good = {.queues = &queue, .n_queues = 1, .handler = never_called, .drain = true};
    EXPECT_STATUS(lh_worker_run(shop.store, NULL, &tally, why, sizeof why), LH_EMISUSE);
    lh_work_opts opts = good;
    opts.n_queues = 0;
    EXPECT_STATUS(lh_worker_run(shop.store, &opts, &tally, why, sizeof why), LH_EMISUSE);
    opts = good;
    opts.command = command;
    EXPECT_STATUS(lh_worker_run(shop.store, &opts, &tally, why, sizeof why), LH_EMISUSE);
    opts.handler = NULL;
    opts.command = none;
    EXPECT_STATUS(lh_worker_run(shop.store, &opts, &tally, why, sizeof why), LH_EMISUSE);
    opts = good;
    opts.queues = &bad;
    EXPECT_STATUS(lh_worker_run(shop.store, &opts, &tally, why, sizeof why), LH_EINVAL);
    EXPECT_CONTAINS(why, "queue \"a b\" is not a name");
    opts = good;
    opts.jobs = 1001;
    EXPECT_STATUS(lh_worker_run(shop.store, &opts, &tally, why, sizeof why), LH_EINVAL);
    EXPECT_CONTAINS(why, "number of jobs at once is 1001: 0 to 1000 is allowed");
    opts = good;
    opts.rate_n = 5;
    EXPECT_STATUS(lh_worker_run(shop.store, &opts, &tally, why, sizeof why), LH_EINVAL);
    opts = good;
    opts.heartbeat_ms = -1;
    EXPECT_STATUS(lh_worker_run(shop.store, &opts, NULL, NULL, 0), LH_EINVAL);
    EXPECT_EQ(workers(&shop), 0);
    EXPECT_OK(lh_worker_run(shop.store, &good, &tally, why, sizeof why));
    shop_close(&shop);
}

/* The command existed when the worker started, and is deleted before a job needs it. */
TEST(a_command_that_is_deleted_stops_the_worker_and_costs_no_attempt)
{
    struct shop shop = shop_open();
    write_file("run", "#!/bin/sh\nexit 0\n", 0700);
    struct shift shift = SHIFT("q", "--", "./run");
    int64_t first = put(&shop, "q", "x");
    EVENTUALLY(state_of(&shop, first) == LH_COMPLETED);
    EXPECT_EQ(chmod("run", 0600), 0);
    int64_t second = put(&shop, "q", "y");
    EXPECT_EQ(shift_wait(&shift), 1);
    EXPECT(said(&shift, "command \"./run\" cannot be run: Permission denied"));
    EXPECT_EQ(look(&shop, second)->state, LH_PENDING);
    EXPECT_EQ(look(&shop, second)->attempt, 0);
    shop_close(&shop);
}

TEST(a_script_without_an_interpreter_stops_the_worker_and_costs_no_attempt)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    write_file("run", "#!/nonesuch/interpreter\n", 0700);
    EXPECT_WORK(1, "q", "--drain", "--", "./run");
    EXPECT_EQ(look(&shop, job)->state, LH_PENDING);
    EXPECT_EQ(look(&shop, job)->attempt, 0);
    shop_close(&shop);
}
