#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "work.h"

/* ---- one durable enqueue after the other, by several processes -------------------------------- */

static void enqueue_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    struct supply s = supply_new(bench, (size_t)bench->batch, NULL);
    struct seat *seat = &crew->seat[me];

    crew_ready(crew);
    struct meters meters = meters_start();
    while (!crew_stopped(crew)) {
        int64_t start = bench_ns(), took;
        supply(crew, store, BENCH_QUEUE, &s, s.n);
        took = bench_ns() - start;
        seat->result.jobs += bench->batch;
        if (took > seat->result.worst_ns)
            seat->result.worst_ns = took;
    }
    meters_stop(&meters, &seat->result);
    lh_close(store);
}

bool bench_enqueue(const struct bench *bench, struct bench_result *result)
{
    return bench_together(bench, enqueue_on, bench->seconds, result);
}

/* ---- many at once ----------------------------------------------------------------------------- */

static void bulk_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    struct supply s = supply_new(bench, (size_t)bench->batch, NULL);
    struct bench_result *result = &crew->seat[me].result;

    crew_ready(crew);
    struct meters meters = meters_start();
    supply_all(crew, store, &s, bench->jobs);
    meters_stop(&meters, result);
    result->jobs = bench->jobs;
    lh_close(store);
}

bool bench_bulk(const struct bench *bench, struct bench_result *result)
{
    return bench_alone(bench, bulk_on, 0, result);
}

static void drain_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    struct bench_result *result = &crew->seat[me].result;

    crew_ready(crew);
    struct meters meters = meters_start();
    result->jobs = crew_drain(crew, store, bench->batch, bench_share(bench, me));
    meters_stop(&meters, result);
    lh_close(store);
}

bool bench_drain(const struct bench *bench, struct bench_result *result)
{
    struct bench filled = *bench;

    filled.pending = bench->jobs;
    if (!bench_together(&filled, drain_on, 0, result))
        return false;
    if (result->jobs != bench->jobs)
        return cli_error(0, "%lld jobs were to be drained, %lld were", (long long)bench->jobs,
                         (long long)result->jobs) != 0;
    return true;
}

/* ---- the whole life of a job: enqueue, claim, complete ---------------------------------------- */

/* What is held is completed with the claim of the next, as a worker does it. Beside others a claim may find
 * nothing: they have taken what it saw. */
static void cycle_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    struct supply s = supply_new(bench, (size_t)bench->batch, NULL);
    struct bench_result *result = &crew->seat[me].result;
    lh_claim_opts opts = claim_of(bench_queues, bench->batch);
    lh_done done[BENCH_MAX_BATCH];
    size_t held = 0;

    crew_ready(crew);
    struct meters meters = meters_start();
    while (result->jobs + (int64_t)held < bench_share(bench, me)) {
        lh_jobs *jobs = NULL;
        supply(crew, store, BENCH_QUEUE, &s, s.n);
        int rc = crew_complete_claim(crew, store, done, held, &opts, &jobs);
        result->jobs += (int64_t)held;
        held = 0;
        if (rc == LH_EMPTY && bench->processes > 1)
            continue;
        crew_need(crew, store, rc);
        held = done_of(jobs, done);
        lh_jobs_free(jobs);
    }
    if (held > 0)
        crew_need(crew, store, lh_complete(store, done, held, NULL, NULL));
    result->jobs += (int64_t)held;
    meters_stop(&meters, result);
    lh_close(store);
}

bool bench_cycle(const struct bench *bench, struct bench_result *result)
{
    return bench_together(bench, cycle_on, 0, result);
}

/* ---- how soon an idle worker has a job --------------------------------------------------------- */

enum { WAITER, ENQUEUER };

static void wait_for_jobs(struct crew *crew, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    struct seat *seat = &crew->seat[WAITER];
    lh_claim_opts opts = claim_of(bench_queues, 1);

    opts.wait_ms = -1;
    crew_ready(crew);
    for (int64_t i = 0; i < bench->jobs; i++) {
        lh_jobs *jobs = NULL;
        lh_done done;
        step_to(crew, WAITER, 2 * i + 1); /* about to wait */
        crew_need(crew, store, lh_claim(store, &opts, &jobs));
        seat->time_ns = bench_ns();
        step_to(crew, WAITER, 2 * i + 2); /* has it */
        done_of(jobs, &done);
        crew_need(crew, store, lh_complete(store, &done, 1, NULL, NULL));
        lh_jobs_free(jobs);
    }
    lh_close(store);
}

/* The first half of the samples counts from the call of the enqueue, the second from its return. */
static void wake_waiter(struct crew *crew, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    struct supply s = supply_new(bench, 1, NULL);

    crew_ready(crew);
    for (int64_t i = 0; i < bench->jobs; i++) {
        await_step(crew, WAITER, 2 * i + 1);
        crew_pause_ms(3); /* by now it has looked, found nothing, and sleeps */
        int64_t called = bench_ns();
        supply(crew, store, BENCH_QUEUE, &s, 1);
        int64_t returned = bench_ns();
        await_step(crew, WAITER, 2 * i + 2);
        crew->samples[i] = crew->seat[WAITER].time_ns - called;
        crew->samples[bench->jobs + i] = crew->seat[WAITER].time_ns - returned;
    }
    lh_close(store);
}

static void wake_on(struct crew *crew, size_t me, const struct bench *bench)
{
    if (me == WAITER)
        wait_for_jobs(crew, bench);
    else
        wake_waiter(crew, bench);
}

bool bench_wake(const struct bench *bench, struct bench_result *result)
{
    size_t n = (size_t)bench->jobs;
    struct crew *crew = crew_run(bench, 2, wake_on, 2 * n, 0);
    struct bench_result after = {0};

    if (crew == NULL)
        return false;
    percentiles(crew->samples, n, result);
    percentiles(crew->samples + n, n, &after);
    result->after_p50_ns = after.p50_ns;
    result->jobs = bench->jobs;
    crew_free(crew);
    return true;
}

/* ---- what a claim costs beside many others ---------------------------------------------------- */

static void claim_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store =
        crew_open(crew, bench, true); /* claims are not synced; the rest need not be */
    struct supply s = supply_new(bench, 1, NULL);
    lh_claim_opts opts = claim_of(bench_queues, 1);

    crew_ready(crew);
    for (size_t i = 0; i < crew->n_samples; i++) {
        crew->samples[i] = crew_claim_complete(crew, store, &opts);
        /* As many are pending at the next claim as at this one. */
        supply(crew, store, BENCH_QUEUE, &s, 1);
    }
    percentiles(crew->samples, crew->n_samples, &crew->seat[me].result);
    crew->seat[me].result.jobs = (int64_t)crew->n_samples;
    lh_close(store);
}

bool bench_claim(const struct bench *bench, struct bench_result *result)
{
    return bench_alone(bench, claim_on, (size_t)bench->jobs, result);
}

/* Jobs of the wanted kind stand behind all others: the worst place. */
static void kind_on(struct crew *crew, size_t me, const struct bench *bench)
{
    static const char *const kinds[] = {"rare"};
    lh_store *store = crew_open(crew, bench, true);
    struct supply s = supply_new(bench, 1, kinds[0]);
    lh_claim_opts opts = claim_of(bench_queues, 1);

    opts.kinds = kinds;
    opts.n_kinds = 1;
    supply_all(crew, store, &s, bench->jobs);
    crew_ready(crew);
    for (size_t i = 0; i < crew->n_samples; i++)
        crew->samples[i] = crew_claim_complete(crew, store, &opts);
    percentiles(crew->samples, crew->n_samples, &crew->seat[me].result);
    crew->seat[me].result.jobs = bench->jobs;
    lh_close(store);
}

bool bench_kind(const struct bench *bench, struct bench_result *result)
{
    return bench_alone(bench, kind_on, (size_t)bench->jobs, result);
}

/* ---- memory of a worker beside many jobs ------------------------------------------------------ */

static void memory_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    lh_claim_opts opts = claim_of(bench_queues, bench->batch);
    struct bench_result *result = &crew->seat[me].result;
    lh_done done[BENCH_MAX_BATCH];
    size_t held = 0;

    crew_ready(crew);
    while (result->jobs < bench->jobs) {
        lh_jobs *jobs = NULL;
        crew_need(crew, store, crew_complete_claim(crew, store, done, held, &opts, &jobs));
        result->jobs += (int64_t)held;
        held = done_of(jobs, done);
        lh_jobs_free(jobs);
    }
    result->rss_bytes = peak_bytes();
    lh_close(store);
}

bool bench_memory(const struct bench *bench, struct bench_result *result)
{
    return bench_alone(bench, memory_on, 0, result);
}

/* ---- an idle worker while another queue is busy ------------------------------------------------ */

enum { IDLER, BUSY };

static void idle_while_busy(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    struct bench_result *result = &crew->seat[me].result;
    struct supply s = supply_new(bench, 1, NULL);
    bool idle = me == IDLER;
    lh_claim_opts opts = claim_of(idle ? bench_queues : other_queues, 1);

    if (idle) {
        opts.wait_ms = -1;
        opts.cancel = &crew->stop;
    }
    crew_ready(crew);
    struct meters meters = meters_start();
    if (idle) {
        lh_jobs *jobs = NULL;
        int rc = lh_claim(store, &opts, &jobs);
        if (rc != LH_EINTR)
            crew_fail(crew, "an idle worker was to wait, but: %s", lh_status_text(rc));
    } else {
        while (!crew_stopped(crew)) {
            supply(crew, store, BENCH_OTHER_QUEUE, &s, 1);
            (void)crew_claim_complete(crew, store, &opts);
            result->jobs++;
        }
    }
    meters_stop(&meters, result);
    lh_close(store);
}

bool bench_idle(const struct bench *bench, struct bench_result *result)
{
    struct crew *crew = crew_run(bench, 2, idle_while_busy, 0, bench->seconds);

    if (crew == NULL)
        return false;
    const struct bench_result *idler = &crew->seat[IDLER].result;
    result->jobs = crew->seat[BUSY].result.jobs;
    result->elapsed_ns = idler->elapsed_ns;
    result->cpu_ns = idler->cpu_ns;
    result->idle_ppm = (int64_t)((double)idler->cpu_ns * 1e6 / (double)idler->elapsed_ns);
    crew_free(crew);
    return true;
}
