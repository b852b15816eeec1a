/*
 * Starts and stops `leasehold work`.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker_process.h"

static void config_path(const struct bench *bench, char *path, size_t len)
{
    snprintf(path, len, "%s.%s.yaml", bench->url, bench->relaxed ? "relaxed" : "full");
}

/* The durability is set in a config file. Naming one also keeps the user's own config file out. */
static void write_config(struct team *team, const struct bench *bench, const char *path)
{
    FILE *file = fopen(path, "we");

    if (file != NULL) {
        fprintf(file, "durability: %s\n", bench->relaxed ? "relaxed" : "full");
        fclose(file);
    } else {
        fail_measurement(team, "could not write \"%s\"", path);
    }
}

static void unset_variables(void)
{
    static const char *const ours[] = {"LEASEHOLD_STORE", "LEASEHOLD_CONFIG", "LEASEHOLD_LOG",
                                       "LEASEHOLD_LOG_FORMAT", "LEASEHOLD_RECOVERY_INTERVAL"};

    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        (void)unsetenv(ours[i]);
}

/* Discards the log: a worker without a terminal logs each job. */
static void silence_output(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int to = STDIN_FILENO; to <= STDERR_FILENO; to++)
        if (fd < 0 || dup2(fd, to) < 0)
            _exit(EXIT_FAILED);
}

/** The path of the program `leasehold`: it is in the folder of this program. */
static bool program_path(char *path, size_t len)
{
    ssize_t n = readlink("/proc/self/exe", path, len - 1);
    char *slash;

    path[n > 0 ? n : 0] = '\0';
    slash = strrchr(path, '/');
    if (slash == NULL || (size_t)(slash - path) + sizeof "/leasehold" > len)
        return false;
    memcpy(slash, "/leasehold", sizeof "/leasehold");
    return true;
}

static _Noreturn void become_worker(const char *program, const struct bench *bench,
                                    const char *config, const char *const *words, pid_t parent)
{
    const char *argv[WORKER_MAX_WORDS] = {"leasehold", "--store", bench->url, "--config",
                                          config,      "work",    BENCH_QUEUE};
    char *copy[WORKER_MAX_WORDS] = {NULL};
    size_t n = 7;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILED);
    for (; *words != NULL && n < WORKER_MAX_WORDS - 1; words++)
        argv[n++] = *words;
    for (size_t i = 0; i < n; i++)
        copy[i] = strdup(argv[i]);
    unset_variables();
    silence_output();
    execv(program, copy);
    _exit(EXIT_FAILED);
}

pid_t worker_start(struct team *team, const struct bench *bench, const char *const *words)
{
    char config[1100], program[4096];
    pid_t me = getpid(), pid;

    if (!program_path(program, sizeof program) || access(program, X_OK) != 0)
        fail_measurement(team, "there is no program \"%s\" to start", program);
    config_path(bench, config, sizeof config);
    if (access(config, F_OK) != 0)
        write_config(team, bench, config);
    pid = fork();
    if (pid == 0)
        become_worker(program, bench, config, words, me);
    if (pid < 0)
        fail_measurement(team, "could not start a process");
    return pid;
}

void worker_remove_config(const struct bench *bench)
{
    char config[1100];

    config_path(bench, config, sizeof config);
    (void)unlink(config);
}

static _Noreturn void report_bad_exit(struct team *team, int status)
{
    if (WIFSIGNALED(status))
        fail_measurement(team, "a worker was killed by signal %d", WTERMSIG(status));
    fail_measurement(team,
                     "a worker exited with code %d: see what \"leasehold work %s -- true\" prints",
                     WEXITSTATUS(status), BENCH_QUEUE);
}

static int64_t ns_of(struct timeval t)
{
    return (int64_t)t.tv_sec * 1000000000 + (int64_t)t.tv_usec * 1000;
}

int64_t worker_wait_exit(struct team *team, pid_t pid)
{
    struct rusage used;
    int status;

    if (wait4(pid, &status, 0, &used) != pid)
        fail_measurement(team, "could not wait for a worker");
    if (status != 0)
        report_bad_exit(team, status);
    return ns_of(used.ru_utime) + ns_of(used.ru_stime);
}

void worker_check_alive(struct team *team, pid_t pid)
{
    int status;

    if (waitpid(pid, &status, WNOHANG) == pid)
        report_bad_exit(team, status);
}
