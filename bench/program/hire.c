#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hire.h"

static void config_path(const struct bench *bench, char *path, size_t len)
{
    snprintf(path, len, "%s.%s.yaml", bench->url, bench->relaxed ? "relaxed" : "full");
}

/* Durability is a matter of the config file; naming one keeps that of the user's out, too. */
static void write_config(struct crew *crew, const struct bench *bench, const char *path)
{
    FILE *file = fopen(path, "we");

    if (file != NULL) {
        fprintf(file, "durability: %s\n", bench->relaxed ? "relaxed" : "full");
        fclose(file);
    } else {
        crew_fail(crew, "could not write \"%s\"", path);
    }
}

static void forget_variables(void)
{
    static const char *const ours[] = {"LEASEHOLD_STORE", "LEASEHOLD_CONFIG", "LEASEHOLD_LOG",
                                       "LEASEHOLD_LOG_FORMAT", "LEASEHOLD_RECOVERY_INTERVAL"};

    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        (void)unsetenv(ours[i]);
}

/* It logs what it does, as it does without a terminal, but nobody reads it. */
static void say_nothing(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int to = STDIN_FILENO; to <= STDERR_FILENO; to++)
        if (fd < 0 || dup2(fd, to) < 0)
            _exit(EXIT_FAILED);
}

static _Noreturn void become_worker(const struct bench *bench, const char *config,
                                    const char *const *words, pid_t parent)
{
    const char *argv[HIRE_MAX_WORDS] = {"leasehold", "--store", bench->url, "--config",
                                        config,      "work",    BENCH_QUEUE};
    char *copy[HIRE_MAX_WORDS] = {NULL};
    size_t n = 7;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILED);
    for (; *words != NULL && n < HIRE_MAX_WORDS - 1; words++)
        argv[n++] = *words;
    for (size_t i = 0; i < n; i++)
        copy[i] = strdup(argv[i]);
    forget_variables();
    say_nothing();
    execv("/proc/self/exe", copy);
    _exit(EXIT_FAILED);
}

pid_t hire(struct crew *crew, const struct bench *bench, const char *const *words)
{
    char config[1100];
    pid_t me = getpid(), pid;

    config_path(bench, config, sizeof config);
    if (access(config, F_OK) != 0)
        write_config(crew, bench, config);
    pid = fork();
    if (pid == 0)
        become_worker(bench, config, words, me);
    if (pid < 0)
        crew_fail(crew, "could not start a process");
    return pid;
}

void hire_clear(const struct bench *bench)
{
    char config[1100];

    config_path(bench, config, sizeof config);
    (void)unlink(config);
}

static _Noreturn void ended_badly(struct crew *crew, int status)
{
    if (WIFSIGNALED(status))
        crew_fail(crew, "a worker was ended by signal %d", WTERMSIG(status));
    crew_fail(crew, "a worker ended with exit code %d: see what \"leasehold work %s -- true\" says",
              WEXITSTATUS(status), BENCH_QUEUE);
}

static int64_t ns_of(struct timeval t)
{
    return (int64_t)t.tv_sec * 1000000000 + (int64_t)t.tv_usec * 1000;
}

int64_t hire_end(struct crew *crew, pid_t pid)
{
    struct rusage used;
    int status;

    if (wait4(pid, &status, 0, &used) != pid)
        crew_fail(crew, "a worker cannot be waited for");
    if (status != 0)
        ended_badly(crew, status);
    return ns_of(used.ru_utime) + ns_of(used.ru_stime);
}

void hire_check(struct crew *crew, pid_t pid)
{
    int status;

    if (waitpid(pid, &status, WNOHANG) == pid)
        ended_badly(crew, status);
}
