/*
 * The runner: it starts each test as a process group of its own, ends it in time, and reports in TAP. If the
 * runner itself cannot continue (no memory, no processes), it prints "Bail out!" and exits with 2.
 */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <fts.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_JOBS 64
#define MAX_TIMES 10000
#define SLOW_MS 2000

/* Constructors run before main, so the list that they build is global. */
static struct test *first_test;
static struct test **last_link = &first_test;

static char this_tmpdir[PATH_MAX];

/* The state of the body of a test. */
enum stage { RUNNING, FINISHED, SKIPPED };

struct slot {
    const struct test *test; /* NULL: free */
    pid_t pid;
    int output;
    bool timed_out;
    int64_t started_ms;
    int64_t deadline_ms;
    /* Shared with the child, set once the body has returned: exit code 0 alone would let a test
     * pass that called exit() half way. */
    volatile unsigned char *stage; /* enum stage, shared with the child */
    char tmpdir[PATH_MAX];
};

struct runner {
    struct slot slots[MAX_JOBS];
    int jobs;
    int done;
    int failed;
    long timeout_scale;
    sigset_t watched;
};

void test_register(struct test *test)
{
    *last_link = test;
    last_link = &test->next;
}

const char *test_tmpdir(void)
{
    return this_tmpdir;
}

__attribute__((format(printf, 1, 2))) static _Noreturn void bail_out(const char *fmt, ...)
{
    va_list args;

    fputs("Bail out! ", stdout);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
    _exit(2);
}

static int64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* ---------------------------------------------------------------- directories */

static void make_tmpdir(struct slot *slot)
{
    const char *base = getenv("TMPDIR");
    char path[PATH_MAX];
    int len;

    /* Short, because sockets below it have to fit 108 bytes. */
    len = snprintf(path, sizeof path, "%s/lht-XXXXXX", base && *base ? base : "/tmp");
    if (len < 0 || (size_t)len >= sizeof path || mkdtemp(path) == NULL)
        bail_out("could not make a directory in %s: %s", base ? base : "/tmp", strerror(errno));
    if (realpath(path, slot->tmpdir) == NULL)
        bail_out("could not resolve %s: %s", path, strerror(errno));
}

static void remove_tree(char *path)
{
    char *roots[] = {path, NULL};
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    FTSENT *entry;

    if (tree == NULL)
        return;
    while ((entry = fts_read(tree)) != NULL) {
        switch (entry->fts_info) {
        case FTS_D:
            /* A test may have removed the permissions. */
            (void)chmod(entry->fts_accpath, 0700);
            break;
        case FTS_DP:
            (void)rmdir(entry->fts_accpath);
            break;
        default:
            (void)unlink(entry->fts_accpath);
            break;
        }
    }
    fts_close(tree);
}

/* ---------------------------------------------------------------- the child */

/* Variables of the caller must not influence a test. */
static void clean_environment(const char *tmpdir)
{
    size_t i = 0;

    while (environ[i] != NULL) {
        char name[256];
        size_t len = strcspn(environ[i], "=");

        if (strncmp(environ[i], "LEASEHOLD_", 10) != 0 || len >= sizeof name) {
            i++;
            continue;
        }
        memcpy(name, environ[i], len);
        name[len] = '\0';
        unsetenv(name); /* shifts the rest down: same index again */
    }
    setenv("TMPDIR", tmpdir, 1);
    setenv("HOME", tmpdir, 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    setenv("TZ", "UTC", 1);
}

/* A runner that a shell started in the background ignores SIGINT; below nohup it ignores SIGHUP. Every
 * process of a test would inherit that. */
static void default_signals(void)
{
    sigset_t none;
    static const int signals[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM, SIGPIPE, SIGCHLD,
                                  SIGUSR1, SIGUSR2, SIGALRM, SIGTSTP, SIGTTIN, SIGTTOU};

    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        (void)signal(signals[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static volatile unsigned char *this_stage;

_Noreturn void test_skip(const char *why)
{
    printf("%s\n", why);
    fflush(stdout);
    *this_stage = SKIPPED;
    _exit(0);
}

static _Noreturn void run_child(struct slot *slot, pid_t parent)
{
    const struct rlimit no_core = {0, 0};
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1); /* the runner died before the line above could matter */
    default_signals();
    setrlimit(RLIMIT_CORE, &no_core);
    if (null < 0 || dup2(null, 0) < 0 || dup2(slot->output, 1) < 0 || dup2(slot->output, 2) < 0)
        _exit(1);
    close(null);
    setvbuf(stdout, NULL, _IOLBF, 0);
    memcpy(this_tmpdir, slot->tmpdir, sizeof this_tmpdir);
    clean_environment(slot->tmpdir);
    if (chdir(slot->tmpdir) != 0)
        FAIL("could not enter %s: %s", slot->tmpdir, strerror(errno));
    test_store_renew();

    this_stage = slot->stage;
    slot->test->body();
    *slot->stage = FINISHED;
    /* A full exit, because leak checkers report there. */
    exit(0);
}

/* ---------------------------------------------------------------- the runner */

static void start_test(struct runner *runner, struct slot *slot, const struct test *test)
{
    pid_t self = getpid();

    slot->test = test;
    slot->timed_out = false;
    *slot->stage = RUNNING;
    make_tmpdir(slot);
    /* Appending: the test and its children share the file, and none may overwrite another. */
    slot->output = memfd_create("output", MFD_CLOEXEC);
    if (slot->output < 0 || fcntl(slot->output, F_SETFL, O_APPEND) != 0)
        bail_out("could not create a memory file: %s", strerror(errno));
    slot->started_ms = now_ms();
    slot->deadline_ms = slot->started_ms + test->timeout_s * 1000L * runner->timeout_scale;

    fflush(stdout);
    slot->pid = fork();
    if (slot->pid < 0)
        bail_out("could not fork: %s", strerror(errno));
    if (slot->pid == 0)
        run_child(slot, self);
    /* Done on both sides, so that the group exists whoever comes first. */
    setpgid(slot->pid, slot->pid);
}

static void print_diagnostics(int fd)
{
    FILE *in;
    bool at_start = true;
    int c;

    if (lseek(fd, 0, SEEK_SET) != 0 || (in = fdopen(fd, "r")) == NULL) {
        close(fd);
        return;
    }
    while ((c = fgetc(in)) != EOF) {
        if (at_start)
            fputs("#   ", stdout);
        putchar(c);
        at_start = c == '\n';
    }
    if (!at_start)
        putchar('\n');
    fclose(in);
}

/* A test that skips itself has printed only the reason. */
static void print_reason(int fd)
{
    char why[200] = "";
    ssize_t n = pread(fd, why, sizeof why - 1, 0);

    why[n > 0 ? n : 0] = '\0';
    why[strcspn(why, "\n")] = '\0';
    printf(" # SKIP %s", why);
}

static void report(struct runner *runner, struct slot *slot, int status)
{
    int64_t took_ms = now_ms() - slot->started_ms;
    bool left = !slot->timed_out && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    bool skipped = left && *slot->stage == SKIPPED;
    bool passed = left && *slot->stage != RUNNING;

    printf("%s %d - %s", passed ? "ok" : "not ok", ++runner->done, slot->test->name);
    if (skipped)
        print_reason(slot->output);
    putchar('\n');
    if (passed) {
        if (took_ms > SLOW_MS)
            printf("# slow: %s took %.1f s\n", slot->test->name, (double)took_ms / 1000);
        close(slot->output);
        remove_tree(slot->tmpdir);
    } else {
        runner->failed++;
        printf("# %s (%s), after %.3f s: ", slot->test->name, test_source_path(slot->test->file),
               (double)took_ms / 1000);
        if (slot->timed_out)
            printf("timed out\n");
        else if (WIFSIGNALED(status))
            printf("killed by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
        else if (WEXITSTATUS(status) == 0)
            printf("left with exit code 0 before the end of the test\n");
        else
            printf("exit code %d\n", WEXITSTATUS(status));
        print_diagnostics(slot->output);
        printf("# its directory: %s\n", slot->tmpdir);
    }
    fflush(stdout);
    slot->test = NULL;
}

/* Report every test that has ended. Returns how many slots became free. */
static int collect(struct runner *runner)
{
    int freed = 0;

    for (int i = 0; i < runner->jobs; i++) {
        struct slot *slot = &runner->slots[i];
        siginfo_t info = {0};
        int status;

        if (slot->test == NULL)
            continue;
        if (!slot->timed_out && now_ms() >= slot->deadline_ms) {
            slot->timed_out = true;
            kill(-slot->pid, SIGKILL);
        }
        /* Look before reaping: while the zombie is there its group id cannot be taken by others,
         * and the kill below hits only what the test left running. */
        if (waitid(P_PID, (id_t)slot->pid, &info, WEXITED | WNOWAIT | WNOHANG) != 0)
            bail_out("could not wait: %s", strerror(errno));
        if (info.si_pid == 0)
            continue;
        kill(-slot->pid, SIGKILL);
        if (waitpid(slot->pid, &status, 0) < 0)
            bail_out("could not wait: %s", strerror(errno));
        report(runner, slot, status);
        freed++;
    }
    return freed;
}

static void kill_all(const struct runner *runner)
{
    for (int i = 0; i < runner->jobs; i++) {
        if (runner->slots[i].test != NULL)
            kill(-runner->slots[i].pid, SIGKILL);
    }
}

/* Sleeps until a child ends or a deadline passes. */
static void wait_for_news(const struct runner *runner)
{
    int64_t next_ms = INT64_MAX, now = now_ms();
    struct timespec timeout;
    int sig;

    for (int i = 0; i < runner->jobs; i++) {
        if (runner->slots[i].test != NULL && runner->slots[i].deadline_ms < next_ms)
            next_ms = runner->slots[i].deadline_ms;
    }
    if (next_ms < now)
        next_ms = now;
    /* A second at most: the end of a traced child may cause no signal. */
    if (next_ms - now > 1000)
        next_ms = now + 1000;
    timeout.tv_sec = (next_ms - now) / 1000;
    timeout.tv_nsec = (next_ms - now) % 1000 * 1000000;
    sig = sigtimedwait(&runner->watched, NULL, &timeout);
    if (sig == SIGINT || sig == SIGTERM || sig == SIGHUP) {
        /* The tests are in process groups of their own, which Ctrl-C does not reach. */
        kill_all(runner);
        bail_out("interrupted");
    }
}

/* Kill daemons that left the group of their test; this process has become their parent. */
static void end_orphans(void)
{
    char path[64];
    bool found = true;

    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    while (found) {
        FILE *children = fopen(path, "re");
        int pid;

        found = false;
        if (children == NULL)
            return;
        /* Wait only for the children that were killed; later ones are in the next list. */
        while (fscanf(children, "%d", &pid) == 1) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            found = true;
        }
        fclose(children);
    }
}

static bool selected(const struct test *test, char **patterns)
{
    if (*patterns == NULL)
        return true;
    for (; *patterns != NULL; patterns++) {
        if (fnmatch(*patterns, test->name, 0) == 0)
            return true;
    }
    return false;
}

/* The test after this one; from the last test back to the first while rounds are left. */
static const struct test *next_test(const struct test *test, int *rounds)
{
    if (test->next != NULL)
        return test->next;
    *rounds -= 1;
    return *rounds > 0 ? first_test : NULL;
}

static void run_all(struct runner *runner, char **patterns, int rounds)
{
    const struct test *next = first_test;
    int running = 0;

    while (next != NULL || running > 0) {
        while (next != NULL && running < runner->jobs) {
            struct slot *slot = runner->slots;

            if (selected(next, patterns)) {
                while (slot->test != NULL)
                    slot++;
                start_test(runner, slot, next);
                running++;
            }
            next = next_test(next, &rounds);
        }
        if (running == 0)
            break;
        wait_for_news(runner);
        running -= collect(runner);
    }
}

static void prepare(struct runner *runner)
{
    const char *scale = getenv("TEST_TIMEOUT_SCALE");
    size_t size = MAX_JOBS;
    volatile unsigned char *stages =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (stages == MAP_FAILED)
        bail_out("could not share memory: %s", strerror(errno));
    for (int i = 0; i < MAX_JOBS; i++)
        runner->slots[i].stage = &stages[i];
    runner->timeout_scale = scale ? strtol(scale, NULL, 10) : 1;
    if (runner->timeout_scale < 1)
        runner->timeout_scale = 1;

    sigemptyset(&runner->watched);
    sigaddset(&runner->watched, SIGCHLD);
    sigaddset(&runner->watched, SIGINT);
    sigaddset(&runner->watched, SIGTERM);
    sigaddset(&runner->watched, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &runner->watched, NULL) != 0)
        bail_out("could not block signals: %s", strerror(errno));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

/* Where the programs under test are: beside the folder of this program, unless the build says so. */
static void find_program(const char *variable, const char *name)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);

    for (int i = 0; i < 2; i++) /* the name of the program, and of its folder */
        while (n > 0 && path[--n] != '/')
            continue;
    if (n <= 0)
        return;
    (void)snprintf(path + n, sizeof path - (size_t)n, "/%s", name);
    if (access(path, X_OK) == 0)
        (void)setenv(variable, path, 0);
}

/* Processes that only use the processor, so that a test meets orders of steps that a quiet machine
 * never shows. They die with the runner; end_orphans() ends them. */
static void start_busy(int count)
{
    pid_t runner = getpid();

    for (int i = 0; i < count; i++) {
        pid_t pid = fork();

        if (pid < 0)
            bail_out("could not start a busy process: %s", strerror(errno));
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            while (getppid() == runner)
                continue;
            _exit(0);
        }
    }
}

static _Noreturn void usage(const char *program)
{
    fprintf(stderr, "usage: %s [--list] [--jobs N] [--times N] [--busy N] [NAME | GLOB]...\n",
            program);
    exit(2);
}

/* The number behind an option, or usage() if it is not between 1 and max. */
static int number_of(char **argv, int arg, long max)
{
    long number = argv[arg] == NULL ? 0 : strtol(argv[arg], NULL, 10);

    if (number < 1 || number > max)
        usage(argv[0]);
    return (int)number;
}

int main(int argc, char **argv)
{
    static struct runner runner = {.jobs = 2};
    bool list = false;
    int chosen = 0, times = 1, busy = 0;
    int arg = 1;

    for (; arg < argc && strncmp(argv[arg], "--", 2) == 0; arg++) {
        if (strcmp(argv[arg], "--list") == 0) {
            list = true;
        } else if (strcmp(argv[arg], "--jobs") == 0) {
            runner.jobs = number_of(argv, ++arg, MAX_JOBS);
        } else if (strcmp(argv[arg], "--times") == 0) {
            times = number_of(argv, ++arg, MAX_TIMES);
        } else if (strcmp(argv[arg], "--busy") == 0) {
            busy = number_of(argv, ++arg, MAX_JOBS);
        } else {
            usage(argv[0]);
        }
    }

    /* A pattern that matches nothing would always look like success. */
    for (char **pattern = argv + arg; *pattern != NULL; pattern++) {
        char *only[] = {*pattern, NULL};
        const struct test *test = first_test;

        while (test != NULL && !selected(test, only))
            test = test->next;
        if (test == NULL) {
            fprintf(stderr, "%s: no test matches \"%s\"\n", argv[0], *pattern);
            return 2;
        }
    }
    for (const struct test *test = first_test; test != NULL; test = test->next) {
        /* A name must identify one test. */
        for (const struct test *other = test->next; other != NULL; other = other->next) {
            if (strcmp(test->name, other->name) == 0) {
                fprintf(stderr, "%s: two tests are named %s: %s:%d and %s:%d\n", argv[0],
                        test->name, test->file, test->line, other->file, other->line);
                return 2;
            }
        }
        if (selected(test, argv + arg)) {
            chosen++;
            if (list)
                printf("%s\n", test->name);
        }
    }
    if (list)
        return 0;
    if (chosen == 0) {
        fprintf(stderr, "%s: no tests\n", argv[0]);
        return 2;
    }

    prepare(&runner);
    find_program("TEST_LEASEHOLD", "leasehold");
    find_program("TEST_LEASEHOLD_FAULTS", "leasehold-test");
    chosen *= times;
    printf("TAP version 13\n1..%d\n", chosen);
    start_busy(busy);
    run_all(&runner, argv + arg, times);
    end_orphans();
    if (runner.failed > 0)
        printf("# %d of %d failed\n", runner.failed, runner.done);
    return runner.failed > 0 || runner.done != chosen;
}
