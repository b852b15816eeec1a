/*
 * The processes of a measurement: starting them together, stopping them, and reading clocks and meters.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

/* ---- time and other meters ------------------------------------------------------------------- */

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t bench_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

void pause_ms(int64_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    (void)nanosleep(&t, NULL); /* a signal may end it early */
}

/** The number after `key` in a file of /proc; 0: not found. */
static int64_t proc_number(const char *path, const char *key)
{
    char text[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    const char *at;

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    at = strstr(text, key);
    return at != NULL ? strtoll(at + strlen(key), NULL, 10) : 0;
}

int64_t peak_bytes(void)
{
    return proc_number("/proc/self/status", "VmHWM:") * 1024;
}

struct meters meters_start(void)
{
    struct meters meters;

    meters.bytes = proc_number("/proc/self/io", "wchar:");
    meters.cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    meters.ns = bench_ns();
    return meters;
}

void meters_stop(const struct meters *meters, struct bench_result *result)
{
    result->elapsed_ns = bench_ns() - meters->ns;
    result->cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - meters->cpu;
    result->written_bytes = proc_number("/proc/self/io", "wchar:") - meters->bytes;
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

void percentiles(int64_t *samples, size_t n, struct bench_result *result)
{
    double sum = 0;

    if (n == 0)
        return;
    qsort(samples, n, sizeof samples[0], by_size);
    for (size_t i = 0; i < n; i++)
        sum += (double)samples[i];
    result->p50_ns = samples[n / 2];
    result->p90_ns = samples[n * 9 / 10];
    result->p95_ns = samples[n * 19 / 20];
    result->p99_ns = samples[n * 99 / 100];
    result->worst_ns = samples[n - 1];
    result->mean_ns = (int64_t)(sum / (double)n);
}

/* ---- processes ------------------------------------------------------------------------------- */

static size_t team_size(size_t n_samples)
{
    return sizeof(struct team) + n_samples * sizeof(int64_t);
}

void team_free(struct team *team)
{
    if (team != NULL)
        munmap(team, team_size(team->n_samples));
}

void await_start(struct team *team)
{
    __atomic_add_fetch(&team->ready, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&team->go, __ATOMIC_SEQ_CST))
        pause_ms(1);
}

bool stop_requested(const struct team *team)
{
    return __atomic_load_n(&team->stop, __ATOMIC_SEQ_CST) != 0;
}

_Noreturn void fail_measurement(struct team *team, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    if (team->error[0] == '\0')
        vsnprintf(team->error, sizeof team->error, format, ap);
    va_end(ap);
    _exit(EXIT_FAILED);
}

/** Runs one process of the team. It must not flush standard output: the buffer belongs to the
 *  parent. */
static _Noreturn void work(struct team *team, size_t me, process_fn *fn, const struct bench *bench,
                           pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILED);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    fn(team, me, bench);
    _exit(EXIT_DONE);
}

static void end_all(pid_t *pids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (pids[i] > 0) {
            kill(pids[i], SIGKILL);
            while (waitpid(pids[i], NULL, 0) < 0 && errno == EINTR)
                ;
            pids[i] = 0;
        }
}

/** Collects processes that have exited. False: one of them failed. */
static bool reap(struct team *team, pid_t *pids, size_t n, size_t *left)
{
    for (size_t i = 0; i < n; i++) {
        int status;
        if (pids[i] <= 0 || waitpid(pids[i], &status, WNOHANG) != pids[i])
            continue;
        pids[i] = 0;
        (*left)--;
        if (status != 0) {
            if (team->error[0] == '\0')
                snprintf(team->error, sizeof team->error, "a measuring process died");
            return false;
        }
    }
    return true;
}

/** Starts, stops and collects the processes. False: one failed, or the user interrupted. */
static bool supervise(struct team *team, const struct bench *bench, pid_t *pids, size_t n,
                      int64_t seconds)
{
    size_t left = n;
    int64_t end = 0;

    while (left > 0) {
        if (!reap(team, pids, n, &left) || *bench->cancel != 0)
            return false;
        if (end == 0 && __atomic_load_n(&team->ready, __ATOMIC_SEQ_CST) == (int)n) {
            __atomic_store_n(&team->go, 1, __ATOMIC_SEQ_CST);
            end = bench_ns() + seconds * 1000000000;
        }
        if (seconds > 0 && end != 0 && bench_ns() >= end)
            __atomic_store_n(&team->stop, 1, __ATOMIC_SEQ_CST);
        /* Check rarely while they measure: checking takes CPU time from them. */
        if (left > 0)
            pause_ms(end == 0 ? 1 : 10);
    }
    return true;
}

struct team *team_run(const struct bench *bench, size_t n, process_fn *fn, size_t n_samples,
                      int64_t seconds)
{
    struct team *team =
        mmap(NULL, team_size(n_samples), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[BENCH_MAX_PROCESSES] = {0};
    pid_t parent = getpid();
    bool fine = true;

    if (team == MAP_FAILED) {
        cli_error(0, "out of memory");
        return NULL;
    }
    team->n = n;
    team->n_samples = n_samples;
    fflush(stdout);
    for (size_t i = 0; i < n && fine; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            work(team, i, fn, bench, parent);
        fine = pids[i] > 0;
    }
    if (!fine)
        snprintf(team->error, sizeof team->error, "could not start a process");
    fine = fine && supervise(team, bench, pids, n, seconds);
    end_all(pids, n);
    if (fine)
        return team;
    if (team->error[0] != '\0')
        cli_error(0, "%s", team->error);
    team_free(team);
    return NULL;
}
