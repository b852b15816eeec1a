/*
 * Measurements of workers: a command per job, a handler per job, and an idle worker.
 */
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "worker_process.h"

/* The number of jobs in the queue. */
struct counts {
    int64_t waiting, completed;
};

static struct counts counts_of(struct team *team, lh_store *store)
{
    struct counts counts = {0};
    lh_queues *queues = NULL;

    require_ok(team, store, lh_queue_list(store, &queues));
    for (size_t i = 0; i < queues->n; i++)
        if (strcmp(queues->queue[i].queue, BENCH_QUEUE) == 0)
            counts = (struct counts){queues->queue[i].pending + queues->queue[i].running,
                                     queues->queue[i].completed};
    lh_queues_free(queues);
    return counts;
}

/** The number of jobs completed since `before`. Fails unless all of them are. */
static int64_t completed_since(struct team *team, lh_store *store, struct counts before)
{
    int64_t done = counts_of(team, store).completed - before.completed;

    if (done != before.waiting)
        fail_measurement(team, "%lld jobs were pending, %lld were completed",
                         (long long)before.waiting, (long long)done);
    return done;
}

static bool measure_drain(const struct bench *bench, process_fn *fn, struct bench_result *result)
{
    struct bench filled = *bench;

    filled.pending = bench->jobs;
    return bench_in_one_process(&filled, fn, 0, result);
}

/* ---- work: a command for each job ------------------------------------------------------------ */

/* Measures from the start of the program to its exit, because that is what the user of --drain
 * waits for. */
static void work_on(struct team *team, size_t me, const struct bench *bench)
{
    struct bench_result *result = &team->slot[me].result;
    char at_once[24];
    const char *words[] = {"-j", at_once, "--drain", "--", "true", NULL};
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct counts before = counts_of(team, store);

    lh_close(store);
    snprintf(at_once, sizeof at_once, "%lld", (long long)bench->processes);
    await_start(team);
    int64_t start = bench_ns();
    result->cpu_ns = worker_wait_exit(team, worker_start(team, bench, words));
    result->elapsed_ns = bench_ns() - start;
    store = open_store(team, bench, bench->relaxed);
    result->jobs = completed_since(team, store, before);
    lh_close(store);
    worker_remove_config(bench);
}

bool bench_work(const struct bench *bench, struct bench_result *result)
{
    return measure_drain(bench, work_on, result);
}

/* ---- handler: a handler for each job --------------------------------------------------------- */

static lh_outcome do_nothing(void *arg, lh_task *task, const lh_job *job)
{
    (void)arg;
    (void)task;
    (void)job;
    return LH_RAN_OK;
}

static void handler_on(struct team *team, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct bench_result *result = &team->slot[me].result;
    struct counts before = counts_of(team, store);
    char why[480] = "";
    lh_work_opts opts = {.queues = bench_queues,
                         .n_queues = 1,
                         .jobs = (size_t)bench->processes,
                         .ahead = (size_t)bench->batch,
                         .drain = true,
                         .handler = do_nothing};

    await_start(team);
    struct meters meters = meters_start();
    int rc = lh_worker_run(store, &opts, NULL, why, sizeof why);
    meters_stop(&meters, result);
    if (rc != LH_OK)
        fail_measurement(team, "%s", why[0] ? why : lh_status_text(rc));
    result->jobs = completed_since(team, store, before);
    lh_close(store);
}

bool bench_handler(const struct bench *bench, struct bench_result *result)
{
    return measure_drain(bench, handler_on, result);
}

/* ---- rest: a worker without jobs ------------------------------------------------------------- */

enum { RESTING, BUSY };

/* CPU time and wakeups of the processes of a worker so far. */
struct usage {
    int64_t cpu_ns, wakeups;
};

static int64_t number_in_file(const char *path, const char *key)
{
    FILE *file = fopen(path, "re");
    char line[256];
    int64_t value = 0;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            value = strtoll(line + strlen(key), NULL, 10);
    if (file != NULL)
        fclose(file);
    return value;
}

/* A thread that gives up the processor voluntarily is woken again later: each voluntary context
 * switch is a wakeup. */
static int64_t wakeups_of(pid_t pid)
{
    char path[300];
    int64_t n = 0;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", (int)pid, entry->d_name);
        n += number_in_file(path, "voluntary_ctxt_switches:");
    }
    if (dir != NULL)
        closedir(dir);
    return n;
}

static int64_t cpu_of(pid_t pid)
{
    struct timespec t = {0};
    clockid_t clock;

    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0)
        return 0;
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/** Adds up the worker and its guardians. */
static struct usage usage_of(pid_t worker)
{
    struct usage sum = {cpu_of(worker), wakeups_of(worker)};
    char path[64], pids[1024] = "";

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)worker, (int)worker);
    FILE *file = fopen(path, "re");
    if (file != NULL && fgets(pids, sizeof pids, file) == NULL)
        pids[0] = '\0';
    if (file != NULL)
        fclose(file);
    for (char *at = pids, *end; (end = strchr(at, ' ')) != NULL; at = end + 1) {
        pid_t pid = (pid_t)strtol(at, NULL, 10);
        sum.cpu_ns += cpu_of(pid);
        sum.wakeups += wakeups_of(pid);
    }
    return sum;
}

/* The worker runs one job first, so that it has allocated all it needs and started its guardian. */
static void rest(struct team *team, const struct bench *bench)
{
    const char *words[] = {"--", "true", NULL};
    struct bench_result *result = &team->slot[RESTING].result;
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct new_jobs s = new_jobs_make(bench, 1, NULL);
    pid_t worker = worker_start(team, bench, words);

    enqueue_jobs(team, store, BENCH_QUEUE, &s, 1);
    while (counts_of(team, store).waiting > 0) {
        worker_check_alive(team, worker);
        pause_ms(10);
    }
    lh_close(store);
    await_start(team);
    pause_ms(200); /* wait for the work that follows a job */
    struct usage before = usage_of(worker);
    int64_t start = bench_ns();
    while (!stop_requested(team))
        pause_ms(10);
    struct usage after = usage_of(worker);
    result->elapsed_ns = bench_ns() - start;
    result->cpu_ns = after.cpu_ns - before.cpu_ns;
    result->wakeups = after.wakeups - before.wakeups;
    kill(worker, SIGTERM);
    (void)worker_wait_exit(team, worker);
    worker_remove_config(bench);
}

static void be_busy(struct team *team, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct new_jobs s = new_jobs_make(bench, 1, NULL);
    lh_claim_opts opts = claim_opts_for(other_queues, 1);

    await_start(team);
    while (!stop_requested(team)) {
        enqueue_jobs(team, store, BENCH_OTHER_QUEUE, &s, 1);
        (void)claim_and_complete(team, store, &opts);
        team->slot[BUSY].result.jobs++;
    }
    lh_close(store);
}

static void rest_on(struct team *team, size_t me, const struct bench *bench)
{
    if (me == RESTING)
        rest(team, bench);
    else
        be_busy(team, bench);
}

/* With one process nothing else happens in the store. With two, another queue is busy. */
bool bench_rest(const struct bench *bench, struct bench_result *result)
{
    size_t n = bench->processes > 1 ? 2 : 1;
    struct team *team = team_run(bench, n, rest_on, 0, bench->seconds);

    if (team == NULL)
        return false;
    *result = team->slot[RESTING].result;
    result->jobs = n > 1 ? team->slot[BUSY].result.jobs : 0;
    result->idle_ppm = (int64_t)((double)result->cpu_ns * 1e6 / (double)result->elapsed_ns);
    team_free(team);
    return true;
}
