/*
 * The command that `leasehold work` runs in torture: one run of a job.
 *
 *     child FOLDER
 *
 * It takes a lock on a file of its job. If another process has the lock, another run of the job is alive, which
 * is recorded as an overlap. Then it records its start, sleeps, and records its end. At random it starts a daemon
 * that shares the lock and would outlive it, ignores SIGTERM, fails, or asks to be postponed.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_NOT_NOW = 75, LONGEST_MS = 2500, LONG_MS = 400, SHORT_MS = 120, DAEMON_S = 30 };

struct run {
    long long job, token;
    int log;
    uint64_t dice;
};

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "child: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void sleep_ms(long ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (nanosleep(&ts, &ts) != 0 && errno == EINTR)
        ;
}

/* a random number below n; another series for each run */
static long roll(struct run *run, long n)
{
    run->dice = run->dice * 6364136223846793005U + 1442695040888963407U;
    return (long)((run->dice >> 33) % (uint64_t)n);
}

/* See client.c: one write, the newline first. */
static void tell(const struct run *run, const char *act, const char *more)
{
    char line[256];
    int len = snprintf(line, sizeof line,
                       "\n{\"act\":\"%s\",\"job\":%lld,\"token\":%lld,\"ns\":%" PRId64 "%s}", act,
                       run->job, run->token, now_ns(), more);
    if (write(run->log, line, (size_t)len) != len)
        die("history.jsonl");
}

static long long from_environment(const char *name)
{
    const char *text = getenv(name);
    char *end = NULL;
    long long value = text ? strtoll(text, &end, 10) : 0;

    if (text == NULL || *text == '\0' || *end != '\0') {
        (void)fprintf(stderr, "child: %s is \"%s\": a number is expected\n", name,
                      text ? text : "");
        exit(1);
    }
    return value;
}

static void take_lock(const struct run *run)
{
    char path[64];

    (void)snprintf(path, sizeof path, "locks/%lld", run->job);
    int fd =
        open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600); /* not closed, because it is the lock */
    if (fd < 0)
        die(path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        tell(run, "overlap", "");
        exit(1);
    }
}

/* A daemon with the lock: if it is not killed, two runs of the job are alive. */
static pid_t start_daemon(void)
{
    int told[2];
    pid_t daemon = 0;

    if (pipe(told) != 0)
        die("pipe");
    pid_t between = fork();
    if (between == 0) {
        (void)setsid();
        pid_t self = fork();
        if (self == 0) {
            (void)signal(SIGTERM, SIG_IGN);
            for (int fd = 0; fd < 3; fd++)
                close(fd);
            close(told[0]);
            close(told[1]);
            sleep(DAEMON_S);
        } else if (write(told[1], &self, sizeof self) != sizeof self) {
            _exit(1);
        }
        _exit(0);
    }
    close(told[1]);
    if (between < 0 || read(told[0], &daemon, sizeof daemon) != sizeof daemon)
        die("daemon");
    close(told[0]);
    (void)waitpid(between, NULL, 0);
    return daemon;
}

/* Wait until it is dead, because its lock would block the next run. */
static void end_daemon(pid_t daemon)
{
    (void)kill(daemon, SIGKILL);
    while (kill(daemon, 0) == 0 && waitpid(daemon, NULL, 0) != daemon) {
        char path[64], line[256] = "";
        (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)daemon);
        FILE *in = fopen(path, "re");
        bool over = in == NULL || fgets(line, sizeof line, in) == NULL || strstr(line, ") Z ");
        if (in != NULL)
            (void)fclose(in);
        if (over)
            return;
        sleep_ms(1);
    }
}

/* Some runs last longer than every deadline of a suspended worker. */
static long length(struct run *run)
{
    long dice = roll(run, 16);
    return dice == 0 ? LONGEST_MS : dice < 5 ? LONG_MS : SHORT_MS;
}

int main(int argc, char **argv)
{
    struct run run = {.log = -1};
    pid_t daemon = 0;
    char more[32];
    int code = 0;

    if (argc != 2 || chdir(argv[1]) != 0)
        die("child FOLDER");
    run.job = from_environment("LEASEHOLD_JOB_ID");
    run.token = from_environment("LEASEHOLD_TOKEN");
    run.dice = (uint64_t)now_ns() ^ (uint64_t)getpid() << 32;
    run.log = open("history.jsonl", O_WRONLY | O_APPEND | O_CLOEXEC);
    if (run.log < 0)
        die("history.jsonl");
    take_lock(&run);
    tell(&run, "start", "");
    if (access("sober", F_OK) == 0) { /* the faults have ended, and so do those of this program */
        sleep_ms(roll(&run, SHORT_MS / 4));
    } else {
        if (roll(&run, 4) == 0)
            (void)signal(SIGTERM, SIG_IGN);
        if (roll(&run, 5) == 0)
            daemon = start_daemon();
        sleep_ms(roll(&run, length(&run)));
        long how = roll(&run, 12);
        code = how == 0 ? EXIT_FAILURE : how == 1 ? EXIT_NOT_NOW : EXIT_SUCCESS;
    }
    if (daemon != 0)
        end_daemon(daemon);
    (void)snprintf(more, sizeof more, ",\"code\":%d", code);
    tell(&run, "end", more);
    return code;
}
