/* A repair during which one system call fails, for each call in turn. The store is unchanged or
 * repaired, no other file is left, and the next open has no findings. */
#include "store/damage.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef __x86_64__

#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

enum { JOBS = 800 };

/* The system calls that change files, and how many of each are skipped between two failures. */
static const struct {
    const char *name;
    unsigned long long number;
    int stride, error;
} calls[] = {
    {"link", SYS_link, 1, EPERM},         {"rename", SYS_rename, 1, EIO},
    {"fsync", SYS_fsync, 1, EIO},         {"fdatasync", SYS_fdatasync, 1, EIO},
    {"ftruncate", SYS_ftruncate, 1, EIO}, {"fchmod", SYS_fchmod, 1, EPERM},
    {"openat", SYS_openat, 5, EMFILE},    {"pwrite64", SYS_pwrite64, 97, ENOSPC},
    {"pread64", SYS_pread64, 997, EIO},
};

enum { N_CALLS = sizeof calls / sizeof calls[0] };

static pid_t start(void)
{
    int status;
    pid_t child = test_fork();

    if (child == 0) {
        lh_store *store = NULL;
        EXPECT_EQ(ptrace(PTRACE_TRACEME, 0, NULL, NULL), 0);
        EXPECT_EQ(raise(SIGSTOP), 0);
        (void)lh_open("store.db", &(lh_open_opts){.startup = true}, &store);
        lh_close(store);
        test_child_done();
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    EXPECT_EQ(ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD), 0);
    return child;
}

/* Continue to the next entry to or exit from a system call. False: the child has ended. */
static bool step(pid_t child)
{
    int status;

    EXPECT_EQ(ptrace(PTRACE_SYSCALL, child, NULL, NULL), 0);
    EXPECT(waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status))
        FAIL("signal %d", WTERMSIG(status));
    return WIFSTOPPED(status);
}

/* Let the call after `skip` others fail without doing anything. False: there are not that many. */
static bool fail_call(size_t which, int skip)
{
    struct user_regs_struct regs;
    bool failed = false;
    pid_t child = start();

    while (step(child)) {
        EXPECT_EQ(ptrace(PTRACE_GETREGS, child, NULL, &regs), 0);
        bool now = !failed && regs.orig_rax == calls[which].number && skip-- == 0;
        if (now) {
            regs.orig_rax = (unsigned long long)-1;
            EXPECT_EQ(ptrace(PTRACE_SETREGS, child, NULL, &regs), 0);
        }
        if (!step(child))
            break;
        if (now) {
            EXPECT_EQ(ptrace(PTRACE_GETREGS, child, NULL, &regs), 0);
            regs.rax = (unsigned long long)-calls[which].error;
            EXPECT_EQ(ptrace(PTRACE_SETREGS, child, NULL, &regs), 0);
            failed = true;
        }
    }
    return failed;
}

static bool exchanged(void)
{
    size_t a, b;
    unsigned char *x = file_bytes("store.db", &a), *y = file_bytes("ruined", &b);
    bool same = a == b && memcmp(x, y, a) == 0;

    free(x);
    free(y);
    return !same;
}

static void start_over(void)
{
    EXPECT_EQ(system("rm -f store.db*; cp -p ruins/* ."), 0);
}

static void expect_harmless(const char *call, int skip)
{
    lh_store *store = NULL;

    if (exchanged())
        expect_kept();
    else
        expect_nothing_left();
    if (lh_open("store.db", &(lh_open_opts){.startup = true}, &store) != LH_OK)
        FAIL("after %s %d: %s", call, skip, lh_errmsg(store));
    expect_same(store, NULL, 0);
    lh_close(store);
}

TEST_TIMEOUT(a_repair_in_which_a_call_fails_harms_nothing, 300)
{
    full_store_build_crashed(JOBS, 30);
    page_fill(page_of("lh_job_pending", "leaf", 0), 0);
    note_damaged_file();
    EXPECT_EQ(system("mkdir ruins && cp -p store.db* ruins"), 0);
    for (size_t i = 0; i < N_CALLS; i++) {
        int failures = 0;
        for (int skip = 0; fail_call(i, skip); skip += calls[i].stride) {
            expect_harmless(calls[i].name, skip);
            failures++;
            start_over();
        }
        start_over();
        if (failures == 0)
            FAIL("a repair never calls %s", calls[i].name);
        (void)fprintf(stderr, "%s: %d\n", calls[i].name, failures);
    }
}

#else

TEST(a_repair_in_which_a_call_fails_harms_nothing)
{
    (void)fprintf(stderr, "calls are not made to fail on this machine: nothing shown\n");
}

#endif
