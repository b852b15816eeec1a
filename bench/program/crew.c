#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measure.h"

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

void crew_pause_ms(int64_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    (void)nanosleep(&t, NULL); /* shorter after a signal, which is looked at then */
}

/** The number behind `key` in a file of /proc; 0: not there. */
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

static size_t crew_size(size_t n_samples)
{
    return sizeof(struct crew) + n_samples * sizeof(int64_t);
}

void crew_free(struct crew *crew)
{
    if (crew != NULL)
        munmap(crew, crew_size(crew->n_samples));
}

void crew_ready(struct crew *crew)
{
    __atomic_add_fetch(&crew->ready, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&crew->go, __ATOMIC_SEQ_CST))
        crew_pause_ms(1);
}

bool crew_stopped(const struct crew *crew)
{
    return __atomic_load_n(&crew->stop, __ATOMIC_SEQ_CST) != 0;
}

_Noreturn void crew_fail(struct crew *crew, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    if (crew->error[0] == '\0')
        vsnprintf(crew->error, sizeof crew->error, format, ap);
    va_end(ap);
    _exit(EXIT_FAILED);
}

/** The life of one process. Its standard output is not flushed: that is the parent's. */
static _Noreturn void work(struct crew *crew, size_t me, crew_fn *fn, const struct bench *bench,
                           pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILED);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    fn(crew, me, bench);
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

/** Looks who has ended. False: one of them failed. */
static bool reap(struct crew *crew, pid_t *pids, size_t n, size_t *left)
{
    for (size_t i = 0; i < n; i++) {
        int status;
        if (pids[i] <= 0 || waitpid(pids[i], &status, WNOHANG) != pids[i])
            continue;
        pids[i] = 0;
        (*left)--;
        if (status != 0) {
            if (crew->error[0] == '\0')
                snprintf(crew->error, sizeof crew->error, "a measuring process died");
            return false;
        }
    }
    return true;
}

/** Sees the processes through. False: one failed, or we are to stop. */
static bool supervise(struct crew *crew, const struct bench *bench, pid_t *pids, size_t n,
                      int64_t seconds)
{
    size_t left = n;
    int64_t end = 0;

    while (left > 0) {
        if (!reap(crew, pids, n, &left) || *bench->cancel != 0)
            return false;
        if (end == 0 && __atomic_load_n(&crew->ready, __ATOMIC_SEQ_CST) == (int)n) {
            __atomic_store_n(&crew->go, 1, __ATOMIC_SEQ_CST);
            end = bench_ns() + seconds * 1000000000;
        }
        if (seconds > 0 && end != 0 && bench_ns() >= end)
            __atomic_store_n(&crew->stop, 1, __ATOMIC_SEQ_CST);
        /* Rarely, once they are at work: looking takes time from them. */
        if (left > 0)
            crew_pause_ms(end == 0 ? 1 : 10);
    }
    return true;
}

struct crew *crew_run(const struct bench *bench, size_t n, crew_fn *fn, size_t n_samples,
                      int64_t seconds)
{
    struct crew *crew =
        mmap(NULL, crew_size(n_samples), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[BENCH_MAX_PROCESSES] = {0};
    pid_t parent = getpid();
    bool fine = true;

    if (crew == MAP_FAILED) {
        cli_error(0, "could not get memory to measure with");
        return NULL;
    }
    crew->n = n;
    crew->n_samples = n_samples;
    fflush(stdout);
    for (size_t i = 0; i < n && fine; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            work(crew, i, fn, bench, parent);
        fine = pids[i] > 0;
    }
    if (!fine)
        snprintf(crew->error, sizeof crew->error, "could not start a process");
    fine = fine && supervise(crew, bench, pids, n, seconds);
    end_all(pids, n);
    if (fine)
        return crew;
    if (crew->error[0] != '\0')
        cli_error(0, "%s", crew->error);
    crew_free(crew);
    return NULL;
}

/* ---- the machine ----------------------------------------------------------------------------- */

enum { SYNCS = 300, LOG_PAGES = 100 };

/** How long the disk takes to keep a page: a log that was started over is written in place. */
static bool measure_sync(const char *folder, int64_t *out)
{
    int64_t took[SYNCS];
    char page[4096], path[1100];
    struct bench_result result = {0};
    bool fine = true;
    int fd;

    snprintf(path, sizeof path, "%s/sync", folder);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return cli_error(0, "could not write to \"%s\"", folder) != 0;
    memset(page, 'x', sizeof page);
    for (int i = 0; i < SYNCS && fine; i++) {
        fine = pwrite(fd, page, sizeof page, i % LOG_PAGES * (off_t)sizeof page) == sizeof page;
        took[i] = -bench_ns();
        fine = fine && fdatasync(fd) == 0;
        took[i] += bench_ns();
    }
    close(fd);
    unlink(path);
    if (!fine)
        return cli_error(0, "could not write to \"%s\"", folder) != 0;
    percentiles(took, SYNCS, &result);
    *out = result.p50_ns;
    return true;
}

static void file_system_name(const char *folder, char *out, size_t len)
{
    static const struct {
        long magic;
        const char *name;
    } known[] = {{0xef53, "ext4"},          {0x58465342, "xfs"},       {0x9123683e, "btrfs"},
                 {0x01021994, "tmpfs"},     {0x794c7630, "overlayfs"}, {0x2fc12fc1, "zfs"},
                 {(long)0xf2f52010, "f2fs"}};
    struct statfs fs;

    if (statfs(folder, &fs) != 0)
        memset(&fs, 0, sizeof fs);
    snprintf(out, len, "0x%lx", (unsigned long)fs.f_type);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].magic == (long)fs.f_type)
            snprintf(out, len, "%s", known[i].name);
}

static void cpu_name(char *out, size_t len)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[512];

    snprintf(out, len, "unknown");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "model name", strlen("model name")) == 0) {
            const char *name = strchr(line, ':');
            if (name != NULL)
                snprintf(out, len, "%.*s", (int)strcspn(name + 2, "\n"), name + 2);
            break;
        }
    if (file != NULL)
        fclose(file);
}

bool bench_machine(const char *folder, struct bench_machine *out)
{
    struct utsname name;

    memset(out, 0, sizeof *out);
    if (uname(&name) == 0)
        snprintf(out->kernel, sizeof out->kernel, "%s %s %s", name.sysname, name.release,
                 name.machine);
    cpu_name(out->cpu, sizeof out->cpu);
    file_system_name(folder, out->file_system, sizeof out->file_system);
    out->cores = sysconf(_SC_NPROCESSORS_ONLN);
    return measure_sync(folder, &out->fdatasync_ns);
}
