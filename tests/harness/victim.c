/*
 * Tests that misbehave on purpose, so that selftest.py can see the harness notice. Not a suite.
 */
#include "harness.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void write_pid(const char *variable)
{
    const char *path = getenv(variable);
    FILE *out = path ? fopen(path, "w") : NULL;

    if (out != NULL) {
        fprintf(out, "%d\n", (int)getpid());
        fclose(out);
    }
}

static int zero(void)
{
    return 0;
}

TEST(passes)
{
    printf("quiet\n");
    EXPECT(zero() == 0);
    EXPECT_EQ(zero(), 0);
    EXPECT_STR("a", "a");
    EXPECT_CONTAINS("abc", "b");
    EXPECT_MEM("a\0b", 3, "a\0b", 3);
    EXPECT_OK(zero());
}

/* The runner has two kinds of children: this test, and the busy processes. */
TEST(lists_its_siblings)
{
    char path[64], line[256] = "";
    FILE *in, *out;

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)getppid(), (int)getppid());
    in = fopen(path, "r");
    EXPECT(in != NULL);
    EXPECT(fgets(line, sizeof line, in) != NULL);
    fclose(in);
    out = fopen(getenv("SIBLINGS"), "w");
    EXPECT(out != NULL);
    EXPECT(fprintf(out, "%d %s", (int)getpid(), line) > 0);
    fclose(out);
}

TEST(stands_in_a_fresh_directory)
{
    char cwd[4096];
    FILE *file;

    EXPECT_STR(getcwd(cwd, sizeof cwd), test_tmpdir());
    EXPECT(access("trace", F_OK) != 0);
    file = fopen("trace", "w");
    EXPECT(file != NULL);
    fclose(file);
    EXPECT(getenv("LEASEHOLD_STORE") == NULL);
}

TEST(stands_in_another_fresh_directory)
{
    EXPECT(access("trace", F_OK) != 0);
}

TEST(has_default_signals)
{
    struct sigaction action;
    sigset_t blocked;

    EXPECT(sigaction(SIGINT, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
    EXPECT(sigaction(SIGHUP, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
    EXPECT(sigprocmask(SIG_BLOCK, NULL, &blocked) == 0);
    EXPECT(!sigismember(&blocked, SIGINT) && !sigismember(&blocked, SIGUSR1));
}

TEST(fails_expect)
{
    EXPECT(zero() == 1);
    printf("not reached\n");
}

TEST(fails_expect_eq)
{
    EXPECT_EQ(zero() + 41, 42);
}

TEST(fails_expect_str)
{
    EXPECT_STR("left text", "right text");
}

TEST(fails_expect_str_null)
{
    EXPECT_STR(NULL, "right text");
}

TEST(fails_expect_mem)
{
    EXPECT_MEM("a\0b", 3, "a\0c", 3);
}

TEST(fails_expect_contains)
{
    EXPECT_CONTAINS("hay", "needle");
}

TEST(fails_expect_status)
{
    EXPECT_STATUS(zero(), LH_EMPTY);
}

TEST(fails_with_words)
{
    printf("told on stdout\n");
    FAIL("the number is %d", 7);
}

TEST(crashes)
{
    raise(SIGSEGV);
}

TEST(aborts)
{
    abort();
}

TEST(exits_early_with_zero)
{
    exit(0);
}

TEST(skips_itself)
{
    test_skip("no moon");
}

TEST(exits_with_code)
{
    exit(23);
}

static void leave_with_code(void)
{
    _exit(99);
}

/* As leak checkers do: the exit code changes at exit. */
TEST(fails_at_exit)
{
    EXPECT(atexit(leave_with_code) == 0);
}

TEST_TIMEOUT(hangs, 1)
{
    write_pid("VICTIM_PID");
    for (;;)
        pause();
}

TEST_TIMEOUT(hangs_with_a_stubborn_child, 1)
{
    if (test_fork() == 0) {
        signal(SIGTERM, SIG_IGN);
        write_pid("VICTIM_PID");
    }
    for (;;)
        pause();
}

TEST(leaves_a_process_behind)
{
    int ready[2];
    char byte;

    EXPECT(pipe(ready) == 0);
    if (test_fork() == 0) {
        write_pid("VICTIM_PID");
        EXPECT(write(ready[1], "x", 1) == 1);
        for (;;)
            pause();
    }
    EXPECT(read(ready[0], &byte, 1) == 1);
}

TEST(leaves_a_daemon_behind)
{
    int ready[2];
    char byte;

    EXPECT(pipe(ready) == 0);
    if (test_fork() == 0) {
        setsid();
        write_pid("VICTIM_PID");
        EXPECT(write(ready[1], "x", 1) == 1);
        for (;;)
            pause();
    }
    EXPECT(read(ready[0], &byte, 1) == 1);
}

TEST(child_fails)
{
    pid_t child = test_fork();

    if (child == 0)
        FAIL("in the child");
    EXPECT_EQ(test_wait(child).code, 1);
    child = test_fork();
    if (child == 0)
        test_child_done();
    EXPECT_EQ(test_wait(child).code, 0);
}

TEST(makes_its_directory_unreadable)
{
    EXPECT(mkdir("closed", 0700) == 0);
    EXPECT(mkdir("closed/inner", 0700) == 0);
    EXPECT(chmod("closed", 0) == 0);
}

TEST(runs_a_program)
{
    const char *const cat[] = {"sh", "-c", "cat; echo words >&2; exit 3", NULL};
    const char *const die[] = {"sh", "-c", "kill -9 $$", NULL};
    const char *const none[] = {"no-such-program", NULL};
    struct run r = run("in\n", cat);

    EXPECT_STR(r.out, "in\n");
    EXPECT_STR(r.err, "words\n");
    EXPECT_EQ(r.code, 3);
    EXPECT_EQ(r.sig, 0);
    run_clear(&r);
    r = run(NULL, die);
    EXPECT_EQ(r.code, -1);
    EXPECT_EQ(r.sig, SIGKILL);
    run_clear(&r);
    r = run(NULL, none);
    EXPECT_EQ(r.code, 127);
    run_clear(&r);
}

/* These fail only under their sanitizer. */
static void *volatile lost;

TEST(leaks_memory)
{
    lost = malloc(100);
    lost = NULL;
}

static int contended;

static void *contend(void *unused)
{
    (void)unused;
    for (int i = 0; i < 1000; i++)
        contended++;
    return NULL;
}

TEST(races)
{
    pthread_t thread;

    EXPECT(pthread_create(&thread, NULL, contend, NULL) == 0);
    contend(NULL);
    EXPECT(pthread_join(thread, NULL) == 0);
}

TEST(overflows)
{
    volatile int number = INT_MAX;

    number = number + 1;
    EXPECT(number != 0);
}
