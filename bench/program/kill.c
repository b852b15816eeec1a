/*
 * Time to heal, end to end: from SIGKILL of a `leasehold work` in the middle of a command to the start
 * of the command for the same job in another.
 *
 * Two workers run. A command tells who it is when it starts, through a named pipe; on its first
 * attempt it then stays until it is killed with its worker, on the second it ends. Whoever got the
 * job is killed and replaced by a new worker, so that the next to take over is always one that rests.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hire.h"

enum { WORKERS = 2, LEAST_PAUSE_MS = 20, MOST_PAUSE_MS = 60, HEAL_MOST_MS = 60000 };

struct ward {
    struct crew *crew;
    const struct bench *bench;
    lh_store *store;
    char pipe[1100]; /* its name */
    int told;
    pid_t worker[WORKERS];
};

/* ---- what commands say --------------------------------------------------------------------------- */

static const char command[] =
    "echo \"$LEASEHOLD_JOB_ID $LEASEHOLD_ATTEMPT $LEASEHOLD_WORKER\" >\"$0\"\n"
    "[ \"$LEASEHOLD_ATTEMPT\" -gt 1 ] || exec sleep 3600";

struct start {
    long long job, attempt;
    int worker;
    int64_t at_ns;
};

static void open_pipe(struct ward *ward)
{
    snprintf(ward->pipe, sizeof ward->pipe, "%s.told", ward->bench->url);
    (void)unlink(ward->pipe);
    /* Open at both ends, so that it has no end while nobody writes. */
    if (mkfifo(ward->pipe, 0600) != 0 || (ward->told = open(ward->pipe, O_RDWR | O_CLOEXEC)) < 0)
        crew_fail(ward->crew, "could not make a named pipe \"%s\"", ward->pipe);
}

/** A line is written at once and short: it is read at once. */
static struct start next_start(struct ward *ward)
{
    struct pollfd poll_in = {.fd = ward->told, .events = POLLIN};
    struct start start = {0};
    char line[256];

    if (poll(&poll_in, 1, HEAL_MOST_MS) != 1)
        crew_fail(ward->crew, "no command was started within %d s", HEAL_MOST_MS / 1000);
    start.at_ns = bench_ns();
    ssize_t n = read(ward->told, line, sizeof line - 1);
    line[n > 0 ? n : 0] = '\0';
    char *at = line;
    start.job = strtoll(at, &at, 10);
    start.attempt = strtoll(at, &at, 10);
    if (strncmp(at, " healer-", 8) != 0 || start.job == 0)
        crew_fail(ward->crew, "a command said \"%.100s\"", line);
    start.worker = at[8] - '0';
    if (start.worker < 0 || start.worker >= WORKERS)
        crew_fail(ward->crew, "a command said \"%.100s\"", line);
    return start;
}

/* ---- workers -------------------------------------------------------------------------------------- */

static int64_t at_work(struct ward *ward)
{
    lh_workers *workers = NULL;
    int64_t n = 0;

    crew_need(ward->crew, ward->store, lh_worker_list(ward->store, &workers));
    for (size_t i = 0; i < workers->n; i++)
        for (int w = 0; w < WORKERS; w++)
            n += workers->worker[i].pid == ward->worker[w] &&
                 strcmp(workers->worker[i].state, "alive") == 0;
    lh_workers_free(workers);
    return n;
}

static void hire_healer(struct ward *ward, int i)
{
    char label[] = "healer-0";
    const char *words[] = {"--worker", label, "--", "sh", "-c", command, ward->pipe, NULL};

    label[sizeof label - 2] = (char)('0' + i);
    ward->worker[i] = hire(ward->crew, ward->bench, words);
}

static void await_workers(struct ward *ward)
{
    while (at_work(ward) < WORKERS) {
        for (int i = 0; i < WORKERS; i++)
            hire_check(ward->crew, ward->worker[i]);
        crew_pause_ms(2);
    }
}

/* ---- one kill ------------------------------------------------------------------------------------- */

static int64_t heal_once(struct ward *ward, struct supply *s, int64_t i)
{
    struct start first, second;

    await_workers(ward);
    supply(ward->crew, ward->store, BENCH_QUEUE, s, 1);
    first = next_start(ward);
    if (first.attempt != 1)
        crew_fail(ward->crew, "job %lld is at attempt %lld, but it is new", first.job,
                  first.attempt);
    crew_pause_ms(LEAST_PAUSE_MS + i * 7919 % (MOST_PAUSE_MS - LEAST_PAUSE_MS + 1));
    int64_t killed = bench_ns();
    kill(ward->worker[first.worker], SIGKILL);
    second = next_start(ward);
    if (second.job != first.job || second.attempt != 2 || second.worker == first.worker)
        crew_fail(ward->crew, "job %lld was to be taken over, but job %lld started, attempt %lld",
                  first.job, second.job, second.attempt);
    waitpid(ward->worker[first.worker], NULL, 0);
    hire_healer(ward, first.worker);
    return second.at_ns - killed;
}

static void let_go(struct ward *ward)
{
    for (int i = 0; i < WORKERS; i++)
        kill(ward->worker[i], SIGTERM);
    for (int i = 0; i < WORKERS; i++)
        (void)hire_end(ward->crew, ward->worker[i]);
}

/* This process only looks and enqueues: it is not to heal anything itself. */
static void heal_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_open_opts how = {.create = true, .no_recovery = true};
    struct ward ward = {.crew = crew, .bench = bench};
    struct supply s = supply_new(bench, 1, NULL);

    (void)me;
    open_pipe(&ward);
    ward.store = crew_open_as(crew, bench, &how);
    crew_ready(crew);
    for (int i = 0; i < WORKERS; i++)
        hire_healer(&ward, i);
    for (int64_t i = 0; i < bench->jobs; i++)
        crew->samples[i] = heal_once(&ward, &s, i);
    await_workers(&ward);
    let_go(&ward);
    lh_close(ward.store);
    (void)close(ward.told);
    (void)unlink(ward.pipe);
    hire_clear(bench);
}

bool bench_heal(const struct bench *bench, struct bench_result *result)
{
    struct crew *crew = crew_run(bench, 1, heal_on, (size_t)bench->jobs, 0);

    if (crew == NULL)
        return false;
    percentiles(crew->samples, crew->n_samples, result);
    result->jobs = bench->jobs;
    result->n_times = crew->n_samples;
    result->times_ns = mem_array(crew->n_samples, sizeof *result->times_ns);
    memcpy(result->times_ns, crew->samples, crew->n_samples * sizeof *result->times_ns);
    crew_free(crew);
    return true;
}
