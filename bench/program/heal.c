/*
 * What healing costs: a store that is opened after a crash with orphans in it, and the beats that keep
 * the leases of live workers.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "work.h"

/* ---- a crash ------------------------------------------------------------------------------------- */

static void hold(struct crew *crew, lh_store *store, const char *worker, int64_t n,
                 int64_t lease_ms)
{
    lh_claim_opts opts = claim_of(bench_queues, BENCH_MAX_BATCH);

    opts.worker = worker;
    opts.lease_ms = lease_ms;
    while (n > 0) {
        lh_jobs *jobs = NULL;
        opts.n = n < BENCH_MAX_BATCH ? (size_t)n : BENCH_MAX_BATCH;
        crew_need(crew, store, lh_claim(store, &opts, &jobs));
        n -= (int64_t)jobs->n;
        lh_jobs_free(jobs);
    }
}

/* Half of the orphans have a worker whose process is gone, half a lease that has ended. */
static _Noreturn void hold_and_die(struct crew *crew, const struct bench *bench, pid_t parent)
{
    lh_open_opts how = {.no_recovery = true};
    lh_worker_opts worker = {.label = "bench-victim", .process = true};
    char id[160];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILED);
    lh_store *store = crew_open_as(crew, bench, &how);
    crew_need(crew, store, lh_worker_register(store, &worker, id, sizeof id));
    hold(crew, store, id, bench->jobs / 2, 0);
    hold(crew, store, "bench-holder", bench->jobs - bench->jobs / 2, 1);
    step_to(crew, 0, 1);
    raise(SIGKILL);
    _exit(EXIT_FAILED);
}

/* What a crash of the machine would leave of the page cache: nothing. Only what is on the disk by now
 * can be dropped. */
static void forget_pages(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    (void)fdatasync(fd);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static void crash_on(struct crew *crew, size_t me, const struct bench *bench)
{
    (void)me;
    crew_ready(crew);
    pid_t self = getpid(), victim = fork();
    if (victim == 0)
        hold_and_die(crew, bench, self);
    if (victim < 0)
        crew_fail(crew, "could not start a process");
    waitpid(victim, NULL, 0);
    if (step_of(crew, 0) != 1)
        crew_fail(crew, "a worker that was to be killed ended by itself");
    forget_pages(bench->url);
}

/* ---- what the next start finds ---------------------------------------------------------------------- */

static void look_at_orphans(struct crew *crew, const struct bench *bench,
                            struct bench_result *result)
{
    lh_open_opts how = {.read_only = true};
    lh_store *store = crew_open_as(crew, bench, &how);
    lh_recovered found;
    lh_report *report = NULL;

    int64_t start = bench_ns();
    crew_need(crew, store, lh_recovery_stats(store, &found));
    result->stale_ns = bench_ns() - start;
    if (found.entries_reclaimed != bench->jobs)
        crew_fail(crew, "%lld jobs are orphans, but %lld were found", (long long)bench->jobs,
                  (long long)found.entries_reclaimed);
    start = bench_ns();
    crew_need(crew, store, lh_check_integrity(store, NULL, &report));
    result->check_ns = bench_ns() - start;
    if (!report->integrity.ran || !report->integrity.passed)
        crew_fail(crew, "the store is damaged");
    lh_report_free(report);
    lh_close(store);
}

static void recovery_on(struct crew *crew, size_t me, const struct bench *bench)
{
    struct bench_result *result = &crew->seat[me].result;
    lh_open_opts how = {.startup = true,
                        .durability = bench->relaxed ? LH_DURABLE_RELAXED : LH_DURABLE_FULL};
    lh_report *report = NULL;

    look_at_orphans(crew, bench, result);
    forget_pages(bench->url);
    crew_ready(crew);
    struct meters meters = meters_start();
    lh_store *store = crew_open_as(crew, bench, &how);
    meters_stop(&meters, result);
    crew_need(crew, store, lh_report_get(store, 0, &report));
    if (!report->integrity.passed || report->entries_reclaimed != bench->jobs ||
        report->completed_at == 0)
        crew_fail(crew, "%lld jobs are orphans, but %lld were taken back", (long long)bench->jobs,
                  (long long)report->entries_reclaimed);
    result->jobs = bench->jobs;
    lh_report_free(report);
    lh_close(store);
}

bool bench_recovery(const struct bench *bench, struct bench_result *result)
{
    struct bench filled = *bench;
    struct crew *crew;

    filled.pending += bench->jobs;
    if (!bench_filled(&filled) || (crew = crew_run(bench, 1, crash_on, 0, 0)) == NULL)
        return false;
    crew_free(crew);
    crew = crew_run(bench, 1, recovery_on, 0, 0);
    if (crew == NULL)
        return false;
    *result = crew->seat[0].result;
    crew_free(crew);
    return true;
}

/* ---- heartbeats ---------------------------------------------------------------------------------- */

enum { BEATS = 200, BEAT_PAUSE_MS = 5 };

/* A worker with so many jobs beats, and sleeps in between as it does in life: what is near at hand
 * after a beat is not at the next. */
static void beat_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    struct bench_result *result = &crew->seat[me].result;
    lh_worker_opts worker = {.label = BENCH_WORKER, .process = true};
    lh_claim_opts opts = claim_of(bench_queues, bench->jobs);
    struct supply s = supply_new(bench, (size_t)bench->jobs, NULL);
    lh_beat *beats = mem_array((size_t)bench->jobs, sizeof *beats);
    lh_jobs *jobs = NULL;
    char id[160];

    crew_need(crew, store, lh_worker_register(store, &worker, id, sizeof id));
    opts.worker = id;
    supply_all(crew, store, &s, bench->jobs);
    crew_need(crew, store, lh_claim(store, &opts, &jobs));
    for (size_t i = 0; i < jobs->n; i++)
        beats[i] = (lh_beat){.job = jobs->job[i].id, .token = jobs->job[i].token};
    crew_ready(crew);
    struct meters meters = meters_start();
    for (size_t i = 0; i < crew->n_samples; i++) {
        int64_t start = bench_ns();
        crew_need(crew, store, lh_worker_heartbeat(store, id, 0, beats, jobs->n, NULL));
        crew->samples[i] = bench_ns() - start;
        crew_pause_ms(BEAT_PAUSE_MS);
    }
    meters_stop(&meters, result);
    percentiles(crew->samples, crew->n_samples, result);
    result->jobs = (int64_t)jobs->n;
    result->beat_cpu_ns = result->cpu_ns / (int64_t)crew->n_samples;
    lh_close(store);
}

bool bench_beat(const struct bench *bench, struct bench_result *result)
{
    return bench_alone(bench, beat_on, BEATS, result);
}
