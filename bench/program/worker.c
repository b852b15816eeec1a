/*
 * What a worker adds to the store: commands run once a job, handlers called once a job, and what it
 * costs to have one that has nothing to do.
 */
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hire.h"

/* The jobs of the queue. */
struct counts {
    int64_t waiting, completed;
};

static struct counts counts_of(struct crew *crew, lh_store *store)
{
    struct counts counts = {0};
    lh_queues *queues = NULL;

    crew_need(crew, store, lh_queue_list(store, &queues));
    for (size_t i = 0; i < queues->n; i++)
        if (strcmp(queues->queue[i].queue, BENCH_QUEUE) == 0)
            counts = (struct counts){queues->queue[i].pending + queues->queue[i].running,
                                     queues->queue[i].completed};
    lh_queues_free(queues);
    return counts;
}

/** So many were completed, which must be all. */
static int64_t all_since(struct crew *crew, lh_store *store, struct counts before)
{
    int64_t done = counts_of(crew, store).completed - before.completed;

    if (done != before.waiting)
        crew_fail(crew, "%lld jobs were pending, %lld were completed", (long long)before.waiting,
                  (long long)done);
    return done;
}

static bool measure_drain(const struct bench *bench, crew_fn *fn, struct bench_result *result)
{
    struct bench filled = *bench;

    filled.pending = bench->jobs;
    return bench_alone(&filled, fn, 0, result);
}

/* ---- a command once a job ------------------------------------------------------------------------ */

/* From the start of the program to its end: whoever drains a queue waits for all of that. */
static void work_on(struct crew *crew, size_t me, const struct bench *bench)
{
    struct bench_result *result = &crew->seat[me].result;
    char at_once[24];
    const char *words[] = {"-j", at_once, "--drain", "--", "true", NULL};
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    struct counts before = counts_of(crew, store);

    lh_close(store);
    snprintf(at_once, sizeof at_once, "%lld", (long long)bench->processes);
    crew_ready(crew);
    int64_t start = bench_ns();
    result->cpu_ns = hire_end(crew, hire(crew, bench, words));
    result->elapsed_ns = bench_ns() - start;
    store = crew_open(crew, bench, bench->relaxed);
    result->jobs = all_since(crew, store, before);
    lh_close(store);
    hire_clear(bench);
}

bool bench_work(const struct bench *bench, struct bench_result *result)
{
    return measure_drain(bench, work_on, result);
}

/* ---- a handler once a job ------------------------------------------------------------------------ */

static lh_outcome do_nothing(void *arg, lh_task *task, const lh_job *job)
{
    (void)arg;
    (void)task;
    (void)job;
    return LH_RAN_OK;
}

static void handler_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    struct bench_result *result = &crew->seat[me].result;
    struct counts before = counts_of(crew, store);
    char why[480] = "";
    lh_work_opts opts = {.queues = bench_queues,
                         .n_queues = 1,
                         .jobs = (size_t)bench->processes,
                         .ahead = (size_t)bench->batch,
                         .drain = true,
                         .handler = do_nothing};

    crew_ready(crew);
    struct meters meters = meters_start();
    int rc = lh_worker_run(store, &opts, NULL, why, sizeof why);
    meters_stop(&meters, result);
    if (rc != LH_OK)
        crew_fail(crew, "%s", why[0] ? why : lh_status_text(rc));
    result->jobs = all_since(crew, store, before);
    lh_close(store);
}

bool bench_handler(const struct bench *bench, struct bench_result *result)
{
    return measure_drain(bench, handler_on, result);
}

/* ---- nothing to do ------------------------------------------------------------------------------- */

enum { RESTER, BUSY };

/* What the processes of a worker have used so far. */
struct usage {
    int64_t cpu_ns, wakeups;
};

static int64_t number_of_line(const char *path, const char *key)
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

/* Whenever a thread gives up the processor because it has nothing to do, something wakes it again. */
static int64_t wakeups_of(pid_t pid)
{
    char path[300];
    int64_t n = 0;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", (int)pid, entry->d_name);
        n += number_of_line(path, "voluntary_ctxt_switches:");
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

/** The worker and its guardians. */
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

/* A worker that has done a job has everything it will ever have, its guardian too. */
static void rest(struct crew *crew, const struct bench *bench)
{
    const char *words[] = {"--", "true", NULL};
    struct bench_result *result = &crew->seat[RESTER].result;
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    struct supply s = supply_new(bench, 1, NULL);
    pid_t worker = hire(crew, bench, words);

    supply(crew, store, BENCH_QUEUE, &s, 1);
    while (counts_of(crew, store).waiting > 0) {
        hire_check(crew, worker);
        crew_pause_ms(10);
    }
    lh_close(store);
    crew_ready(crew);
    crew_pause_ms(200); /* what the job left to do is done */
    struct usage before = usage_of(worker);
    int64_t start = bench_ns();
    while (!crew_stopped(crew))
        crew_pause_ms(10);
    struct usage after = usage_of(worker);
    result->elapsed_ns = bench_ns() - start;
    result->cpu_ns = after.cpu_ns - before.cpu_ns;
    result->wakeups = after.wakeups - before.wakeups;
    kill(worker, SIGTERM);
    (void)hire_end(crew, worker);
    hire_clear(bench);
}

static void be_busy(struct crew *crew, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    struct supply s = supply_new(bench, 1, NULL);
    lh_claim_opts opts = claim_of(other_queues, 1);

    crew_ready(crew);
    while (!crew_stopped(crew)) {
        supply(crew, store, BENCH_OTHER_QUEUE, &s, 1);
        (void)crew_claim_complete(crew, store, &opts);
        crew->seat[BUSY].result.jobs++;
    }
    lh_close(store);
}

static void rest_on(struct crew *crew, size_t me, const struct bench *bench)
{
    if (me == RESTER)
        rest(crew, bench);
    else
        be_busy(crew, bench);
}

/* One process: nothing else happens in the store. Two: another queue is busy. */
bool bench_rest(const struct bench *bench, struct bench_result *result)
{
    size_t n = bench->processes > 1 ? 2 : 1;
    struct crew *crew = crew_run(bench, n, rest_on, 0, bench->seconds);

    if (crew == NULL)
        return false;
    *result = crew->seat[RESTER].result;
    result->jobs = n > 1 ? crew->seat[BUSY].result.jobs : 0;
    result->idle_ppm = (int64_t)((double)result->cpu_ns * 1e6 / (double)result->elapsed_ns);
    crew_free(crew);
    return true;
}
