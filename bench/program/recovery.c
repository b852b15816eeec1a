/*
 * Opening a store with lost jobs after a crash, and heartbeats.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jobs.h"

/* ---- a crash --------------------------------------------------------------------------------- */

static void hold(struct team *team, lh_store *store, const char *worker, int64_t n,
                 int64_t lease_ms)
{
    lh_claim_opts opts = claim_opts_for(bench_queues, BENCH_MAX_BATCH);

    opts.worker = worker;
    opts.lease_ms = lease_ms;
    while (n > 0) {
        lh_jobs *jobs = NULL;
        opts.n = n < BENCH_MAX_BATCH ? (size_t)n : BENCH_MAX_BATCH;
        require_ok(team, store, lh_claim(store, &opts, &jobs));
        n -= (int64_t)jobs->n;
        lh_jobs_free(jobs);
    }
}

/* Half of the lost jobs belong to a dead process; the other half have an expired lease. */
static _Noreturn void hold_and_die(struct team *team, const struct bench *bench, pid_t parent)
{
    lh_open_opts how = {.no_recovery = true};
    lh_worker_opts worker = {.label = "bench-victim", .process = true};
    char id[160];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILED);
    lh_store *store = open_store_as(team, bench, &how);
    require_ok(team, store, lh_worker_register(store, &worker, id, sizeof id));
    hold(team, store, id, bench->jobs / 2, 0);
    hold(team, store, "bench-holder", bench->jobs - bench->jobs / 2, 1);
    step_to(team, 0, 1);
    raise(SIGKILL);
    _exit(EXIT_FAILED);
}

/* Empties the page cache of the file, as a crash of the machine would. Only pages that are on disk
 * can be dropped. */
static void drop_cached_pages(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    (void)fdatasync(fd);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static void crash_on(struct team *team, size_t me, const struct bench *bench)
{
    (void)me;
    await_start(team);
    pid_t self = getpid(), victim = fork();
    if (victim == 0)
        hold_and_die(team, bench, self);
    if (victim < 0)
        fail_measurement(team, "could not start a process");
    waitpid(victim, NULL, 0);
    if (step_of(team, 0) != 1)
        fail_measurement(team, "a worker that should have been killed exited by itself");
    drop_cached_pages(bench->url);
}

/* ---- opening the store ----------------------------------------------------------------------- */

static void find_lost_jobs(struct team *team, const struct bench *bench,
                           struct bench_result *result)
{
    lh_open_opts how = {.read_only = true};
    lh_store *store = open_store_as(team, bench, &how);
    lh_recovered found;
    lh_report *report = NULL;

    int64_t start = bench_ns();
    require_ok(team, store, lh_recovery_stats(store, &found));
    result->stale_ns = bench_ns() - start;
    if (found.entries_reclaimed != bench->jobs)
        fail_measurement(team, "%lld jobs were lost, but %lld were found", (long long)bench->jobs,
                         (long long)found.entries_reclaimed);
    start = bench_ns();
    require_ok(team, store, lh_check_integrity(store, NULL, &report));
    result->check_ns = bench_ns() - start;
    if (!report->integrity.ran || !report->integrity.passed)
        fail_measurement(team, "the store is damaged");
    lh_report_free(report);
    lh_close(store);
}

static void recovery_on(struct team *team, size_t me, const struct bench *bench)
{
    struct bench_result *result = &team->slot[me].result;
    lh_open_opts how = {.startup = true,
                        .durability = bench->relaxed ? LH_DURABLE_RELAXED : LH_DURABLE_FULL};
    lh_report *report = NULL;

    find_lost_jobs(team, bench, result);
    drop_cached_pages(bench->url);
    await_start(team);
    struct meters meters = meters_start();
    lh_store *store = open_store_as(team, bench, &how);
    meters_stop(&meters, result);
    require_ok(team, store, lh_report_get(store, 0, &report));
    if (!report->integrity.passed || report->entries_reclaimed != bench->jobs ||
        report->completed_at == 0)
        fail_measurement(team, "%lld jobs were lost, but %lld were recovered",
                         (long long)bench->jobs, (long long)report->entries_reclaimed);
    result->jobs = bench->jobs;
    lh_report_free(report);
    lh_close(store);
}

bool bench_recovery(const struct bench *bench, struct bench_result *result)
{
    struct bench filled = *bench;
    struct team *team;

    filled.pending += bench->jobs;
    if (!bench_fill(&filled) || (team = team_run(bench, 1, crash_on, 0, 0)) == NULL)
        return false;
    team_free(team);
    team = team_run(bench, 1, recovery_on, 0, 0);
    if (team == NULL)
        return false;
    *result = team->slot[0].result;
    team_free(team);
    return true;
}

/* ---- heartbeats ---------------------------------------------------------------------------------- */

enum { BEATS = 200, BEAT_PAUSE_MS = 5 };

/* A worker with many jobs sends heartbeats. It sleeps in between as a real worker does, so that CPU
 * caches are cold at the next heartbeat. */
static void beat_on(struct team *team, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct bench_result *result = &team->slot[me].result;
    lh_worker_opts worker = {.label = BENCH_WORKER, .process = true};
    lh_claim_opts opts = claim_opts_for(bench_queues, bench->jobs);
    struct new_jobs s = new_jobs_make(bench, (size_t)bench->jobs, NULL);
    lh_beat *beats = mem_array((size_t)bench->jobs, sizeof *beats);
    lh_jobs *jobs = NULL;
    char id[160];

    require_ok(team, store, lh_worker_register(store, &worker, id, sizeof id));
    opts.worker = id;
    enqueue_all(team, store, &s, bench->jobs);
    require_ok(team, store, lh_claim(store, &opts, &jobs));
    for (size_t i = 0; i < jobs->n; i++)
        beats[i] = (lh_beat){.job = jobs->job[i].id, .token = jobs->job[i].token};
    await_start(team);
    struct meters meters = meters_start();
    for (size_t i = 0; i < team->n_samples; i++) {
        int64_t start = bench_ns();
        require_ok(team, store, lh_worker_heartbeat(store, id, 0, beats, jobs->n, NULL));
        team->samples[i] = bench_ns() - start;
        pause_ms(BEAT_PAUSE_MS);
    }
    meters_stop(&meters, result);
    percentiles(team->samples, team->n_samples, result);
    result->jobs = (int64_t)jobs->n;
    result->beat_cpu_ns = result->cpu_ns / (int64_t)team->n_samples;
    lh_close(store);
}

bool bench_beat(const struct bench *bench, struct bench_result *result)
{
    return bench_in_one_process(bench, beat_on, BEATS, result);
}
