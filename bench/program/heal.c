/*
 * Time to heal: from SIGKILL of a `leasehold work` that runs a command, to the start of the command
 * for the same job in another worker.
 *
 * Two workers run. A command reports its worker through a named pipe when it starts. On its first
 * attempt it sleeps until it is killed with its worker; on the second it exits. The worker that got
 * the job is killed and replaced by a new one, so the worker that takes over is always idle.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker_process.h"

enum { WORKERS = 2, LEAST_PAUSE_MS = 20, MOST_PAUSE_MS = 60, HEAL_MOST_MS = 60000 };

struct healing {
    struct team *team;
    const struct bench *bench;
    lh_store *store;
    char pipe[1100]; /* path of the named pipe */
    int pipe_fd;
    pid_t worker[WORKERS];
};

/* ---- reports of the commands ----------------------------------------------------------------- */

static const char command[] =
    "echo \"$LEASEHOLD_JOB_ID $LEASEHOLD_ATTEMPT $LEASEHOLD_WORKER\" >\"$0\"\n"
    "[ \"$LEASEHOLD_ATTEMPT\" -gt 1 ] || exec sleep 3600";

struct start {
    long long job, attempt;
    int worker;
    int64_t at_ns;
};

static void open_pipe(struct healing *healing)
{
    snprintf(healing->pipe, sizeof healing->pipe, "%s.pipe_fd", healing->bench->url);
    (void)unlink(healing->pipe);
    /* Open for reading and writing, so that read() does not return end of file while no command
     * writes. */
    if (mkfifo(healing->pipe, 0600) != 0 ||
        (healing->pipe_fd = open(healing->pipe, O_RDWR | O_CLOEXEC)) < 0)
        fail_measurement(healing->team, "could not make a named pipe \"%s\"", healing->pipe);
}

/** A command writes a short line in one write, so one read() returns all of it. */
static struct start next_start(struct healing *healing)
{
    struct pollfd poll_in = {.fd = healing->pipe_fd, .events = POLLIN};
    struct start start = {0};
    char line[256];

    if (poll(&poll_in, 1, HEAL_MOST_MS) != 1)
        fail_measurement(healing->team, "no command was started within %d s", HEAL_MOST_MS / 1000);
    start.at_ns = bench_ns();
    ssize_t n = read(healing->pipe_fd, line, sizeof line - 1);
    line[n > 0 ? n : 0] = '\0';
    char *at = line;
    start.job = strtoll(at, &at, 10);
    start.attempt = strtoll(at, &at, 10);
    if (strncmp(at, " healer-", 8) != 0 || start.job == 0)
        fail_measurement(healing->team, "a command wrote \"%.100s\"", line);
    start.worker = at[8] - '0';
    if (start.worker < 0 || start.worker >= WORKERS)
        fail_measurement(healing->team, "a command wrote \"%.100s\"", line);
    return start;
}

/* ---- workers -------------------------------------------------------------------------------------- */

static int64_t running_workers(struct healing *healing)
{
    lh_workers *workers = NULL;
    int64_t n = 0;

    require_ok(healing->team, healing->store, lh_worker_list(healing->store, &workers));
    for (size_t i = 0; i < workers->n; i++)
        for (int w = 0; w < WORKERS; w++)
            n += workers->worker[i].pid == healing->worker[w] &&
                 strcmp(workers->worker[i].state, "alive") == 0;
    lh_workers_free(workers);
    return n;
}

static void start_healer(struct healing *healing, int i)
{
    char label[] = "healer-0";
    const char *words[] = {"--worker", label, "--", "sh", "-c", command, healing->pipe, NULL};

    label[sizeof label - 2] = (char)('0' + i);
    healing->worker[i] = worker_start(healing->team, healing->bench, words);
}

static void await_workers(struct healing *healing)
{
    while (running_workers(healing) < WORKERS) {
        for (int i = 0; i < WORKERS; i++)
            worker_check_alive(healing->team, healing->worker[i]);
        pause_ms(2);
    }
}

/* ---- killing a worker ------------------------------------------------------------------------ */

static int64_t heal_once(struct healing *healing, struct new_jobs *s, int64_t i)
{
    struct start first, second;

    await_workers(healing);
    enqueue_jobs(healing->team, healing->store, BENCH_QUEUE, s, 1);
    first = next_start(healing);
    if (first.attempt != 1)
        fail_measurement(healing->team, "job %lld is at attempt %lld, but it is new", first.job,
                         first.attempt);
    pause_ms(LEAST_PAUSE_MS + i * 7919 % (MOST_PAUSE_MS - LEAST_PAUSE_MS + 1));
    int64_t killed = bench_ns();
    kill(healing->worker[first.worker], SIGKILL);
    second = next_start(healing);
    if (second.job != first.job || second.attempt != 2 || second.worker == first.worker)
        fail_measurement(healing->team,
                         "job %lld should have been taken over, but job %lld started, attempt "
                         "%lld",
                         first.job, second.job, second.attempt);
    waitpid(healing->worker[first.worker], NULL, 0);
    start_healer(healing, first.worker);
    return second.at_ns - killed;
}

static void stop_workers(struct healing *healing)
{
    for (int i = 0; i < WORKERS; i++)
        kill(healing->worker[i], SIGTERM);
    for (int i = 0; i < WORKERS; i++)
        (void)worker_wait_exit(healing->team, healing->worker[i]);
}

/* This process only reads and enqueues. It must not recover anything itself. */
static void heal_on(struct team *team, size_t me, const struct bench *bench)
{
    lh_open_opts how = {.create = true, .no_recovery = true};
    struct healing healing = {.team = team, .bench = bench};
    struct new_jobs s = new_jobs_make(bench, 1, NULL);

    (void)me;
    open_pipe(&healing);
    healing.store = open_store_as(team, bench, &how);
    await_start(team);
    for (int i = 0; i < WORKERS; i++)
        start_healer(&healing, i);
    for (int64_t i = 0; i < bench->jobs; i++)
        team->samples[i] = heal_once(&healing, &s, i);
    await_workers(&healing);
    stop_workers(&healing);
    lh_close(healing.store);
    (void)close(healing.pipe_fd);
    (void)unlink(healing.pipe);
    worker_remove_config(bench);
}

bool bench_heal(const struct bench *bench, struct bench_result *result)
{
    struct team *team = team_run(bench, 1, heal_on, (size_t)bench->jobs, 0);

    if (team == NULL)
        return false;
    percentiles(team->samples, team->n_samples, result);
    result->jobs = bench->jobs;
    result->n_times = team->n_samples;
    result->times_ns = mem_array(team->n_samples, sizeof *result->times_ns);
    memcpy(result->times_ns, team->samples, team->n_samples * sizeof *result->times_ns);
    team_free(team);
    return true;
}
