/*
 * Measurements with the library alone: enqueue, bulk, drain, cycle, wake, claim, kind, memory,
 * idle.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "jobs.h"

/* ---- enqueue: durable enqueues by several processes ------------------------------------------ */

static void enqueue_on(struct team *team, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct new_jobs s = new_jobs_make(bench, (size_t)bench->batch, NULL);
    struct slot *slot = &team->slot[me];

    await_start(team);
    struct meters meters = meters_start();
    while (!stop_requested(team)) {
        int64_t start = bench_ns(), took;
        enqueue_jobs(team, store, BENCH_QUEUE, &s, s.n);
        took = bench_ns() - start;
        slot->result.jobs += bench->batch;
        if (took > slot->result.worst_ns)
            slot->result.worst_ns = took;
    }
    meters_stop(&meters, &slot->result);
    lh_close(store);
}

bool bench_enqueue(const struct bench *bench, struct bench_result *result)
{
    return bench_in_processes(bench, enqueue_on, bench->seconds, result);
}

/* ---- bulk and drain -------------------------------------------------------------------------- */

static void bulk_on(struct team *team, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct new_jobs s = new_jobs_make(bench, (size_t)bench->batch, NULL);
    struct bench_result *result = &team->slot[me].result;

    await_start(team);
    struct meters meters = meters_start();
    enqueue_all(team, store, &s, bench->jobs);
    meters_stop(&meters, result);
    result->jobs = bench->jobs;
    lh_close(store);
}

bool bench_bulk(const struct bench *bench, struct bench_result *result)
{
    return bench_in_one_process(bench, bulk_on, 0, result);
}

static void drain_on(struct team *team, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct bench_result *result = &team->slot[me].result;

    await_start(team);
    struct meters meters = meters_start();
    result->jobs = drain_queue(team, store, bench->batch, bench_share(bench, me));
    meters_stop(&meters, result);
    lh_close(store);
}

bool bench_drain(const struct bench *bench, struct bench_result *result)
{
    struct bench filled = *bench;

    filled.pending = bench->jobs;
    if (!bench_in_processes(&filled, drain_on, 0, result))
        return false;
    if (result->jobs != bench->jobs)
        return cli_error(0, "%lld jobs should have been drained, but %lld were",
                         (long long)bench->jobs, (long long)result->jobs) != 0;
    return true;
}

/* ---- cycle: enqueue, claim, complete --------------------------------------------------------- */

/* Complete the held jobs and claim the next in one call, as a worker does. A claim may find nothing
 * if other processes took the jobs first. */
static void cycle_on(struct team *team, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct new_jobs s = new_jobs_make(bench, (size_t)bench->batch, NULL);
    struct bench_result *result = &team->slot[me].result;
    lh_claim_opts opts = claim_opts_for(bench_queues, bench->batch);
    lh_done done[BENCH_MAX_BATCH];
    size_t held = 0;

    await_start(team);
    struct meters meters = meters_start();
    while (result->jobs + (int64_t)held < bench_share(bench, me)) {
        lh_jobs *jobs = NULL;
        enqueue_jobs(team, store, BENCH_QUEUE, &s, s.n);
        int rc = complete_and_claim(team, store, done, held, &opts, &jobs);
        result->jobs += (int64_t)held;
        held = 0;
        if (rc == LH_EMPTY && bench->processes > 1)
            continue;
        require_ok(team, store, rc);
        held = done_from(jobs, done);
        lh_jobs_free(jobs);
    }
    if (held > 0)
        require_ok(team, store, lh_complete(store, done, held, NULL, NULL));
    result->jobs += (int64_t)held;
    meters_stop(&meters, result);
    lh_close(store);
}

bool bench_cycle(const struct bench *bench, struct bench_result *result)
{
    return bench_in_processes(bench, cycle_on, 0, result);
}

/* ---- wake: the delay until an idle worker has a job ------------------------------------------ */

enum { WAITER, ENQUEUER };

static void wait_for_jobs(struct team *team, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct slot *slot = &team->slot[WAITER];
    lh_claim_opts opts = claim_opts_for(bench_queues, 1);

    opts.wait_ms = -1;
    await_start(team);
    for (int64_t i = 0; i < bench->jobs; i++) {
        lh_jobs *jobs = NULL;
        lh_done done;
        step_to(team, WAITER, 2 * i + 1); /* is about to wait */
        require_ok(team, store, lh_claim(store, &opts, &jobs));
        slot->time_ns = bench_ns();
        step_to(team, WAITER, 2 * i + 2); /* has the job */
        done_from(jobs, &done);
        require_ok(team, store, lh_complete(store, &done, 1, NULL, NULL));
        lh_jobs_free(jobs);
    }
    lh_close(store);
}

/* The first half of the samples is measured from the call of the enqueue, the second half from its
 * return. */
static void wake_waiter(struct team *team, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct new_jobs s = new_jobs_make(bench, 1, NULL);

    await_start(team);
    for (int64_t i = 0; i < bench->jobs; i++) {
        await_step(team, WAITER, 2 * i + 1);
        pause_ms(3); /* by now the waiter has found nothing, and sleeps */
        int64_t called = bench_ns();
        enqueue_jobs(team, store, BENCH_QUEUE, &s, 1);
        int64_t returned = bench_ns();
        await_step(team, WAITER, 2 * i + 2);
        team->samples[i] = team->slot[WAITER].time_ns - called;
        team->samples[bench->jobs + i] = team->slot[WAITER].time_ns - returned;
    }
    lh_close(store);
}

static void wake_on(struct team *team, size_t me, const struct bench *bench)
{
    if (me == WAITER)
        wait_for_jobs(team, bench);
    else
        wake_waiter(team, bench);
}

bool bench_wake(const struct bench *bench, struct bench_result *result)
{
    size_t n = (size_t)bench->jobs;
    struct team *team = team_run(bench, 2, wake_on, 2 * n, 0);
    struct bench_result after = {0};

    if (team == NULL)
        return false;
    percentiles(team->samples, n, result);
    percentiles(team->samples + n, n, &after);
    result->after_p50_ns = after.p50_ns;
    result->jobs = bench->jobs;
    team_free(team);
    return true;
}

/* ---- claim and kind: the cost of a claim among many jobs ------------------------------------- */

static void claim_on(struct team *team, size_t me, const struct bench *bench)
{
    lh_store *store =
        open_store(team, bench, true); /* claims are not synced, and the rest is not measured */
    struct new_jobs s = new_jobs_make(bench, 1, NULL);
    lh_claim_opts opts = claim_opts_for(bench_queues, 1);

    await_start(team);
    for (size_t i = 0; i < team->n_samples; i++) {
        team->samples[i] = claim_and_complete(team, store, &opts);
        /* Keep the number of pending jobs constant. */
        enqueue_jobs(team, store, BENCH_QUEUE, &s, 1);
    }
    percentiles(team->samples, team->n_samples, &team->slot[me].result);
    team->slot[me].result.jobs = (int64_t)team->n_samples;
    lh_close(store);
}

bool bench_claim(const struct bench *bench, struct bench_result *result)
{
    return bench_in_one_process(bench, claim_on, (size_t)bench->jobs, result);
}

/* The jobs of the wanted kind are behind all others: the worst case. */
static void kind_on(struct team *team, size_t me, const struct bench *bench)
{
    static const char *const kinds[] = {"rare"};
    lh_store *store = open_store(team, bench, true);
    struct new_jobs s = new_jobs_make(bench, 1, kinds[0]);
    lh_claim_opts opts = claim_opts_for(bench_queues, 1);

    opts.kinds = kinds;
    opts.n_kinds = 1;
    enqueue_all(team, store, &s, bench->jobs);
    await_start(team);
    for (size_t i = 0; i < team->n_samples; i++)
        team->samples[i] = claim_and_complete(team, store, &opts);
    percentiles(team->samples, team->n_samples, &team->slot[me].result);
    team->slot[me].result.jobs = bench->jobs;
    lh_close(store);
}

bool bench_kind(const struct bench *bench, struct bench_result *result)
{
    return bench_in_one_process(bench, kind_on, (size_t)bench->jobs, result);
}

/* ---- memory of a worker ---------------------------------------------------------------------- */

static void memory_on(struct team *team, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    lh_claim_opts opts = claim_opts_for(bench_queues, bench->batch);
    struct bench_result *result = &team->slot[me].result;
    lh_done done[BENCH_MAX_BATCH];
    size_t held = 0;

    await_start(team);
    while (result->jobs < bench->jobs) {
        lh_jobs *jobs = NULL;
        require_ok(team, store, complete_and_claim(team, store, done, held, &opts, &jobs));
        result->jobs += (int64_t)held;
        held = done_from(jobs, done);
        lh_jobs_free(jobs);
    }
    result->rss_bytes = peak_bytes();
    lh_close(store);
}

bool bench_memory(const struct bench *bench, struct bench_result *result)
{
    return bench_in_one_process(bench, memory_on, 0, result);
}

/* ---- idle: a worker that waits while another queue is busy ----------------------------------- */

enum { IDLE, BUSY };

static void idle_while_busy(struct team *team, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct bench_result *result = &team->slot[me].result;
    struct new_jobs s = new_jobs_make(bench, 1, NULL);
    bool idle = me == IDLE;
    lh_claim_opts opts = claim_opts_for(idle ? bench_queues : other_queues, 1);

    if (idle) {
        opts.wait_ms = -1;
        opts.cancel = &team->stop;
    }
    await_start(team);
    struct meters meters = meters_start();
    if (idle) {
        lh_jobs *jobs = NULL;
        int rc = lh_claim(store, &opts, &jobs);
        if (rc != LH_EINTR)
            fail_measurement(team, "an idle worker should have waited, but: %s",
                             lh_status_text(rc));
    } else {
        while (!stop_requested(team)) {
            enqueue_jobs(team, store, BENCH_OTHER_QUEUE, &s, 1);
            (void)claim_and_complete(team, store, &opts);
            result->jobs++;
        }
    }
    meters_stop(&meters, result);
    lh_close(store);
}

bool bench_idle(const struct bench *bench, struct bench_result *result)
{
    struct team *team = team_run(bench, 2, idle_while_busy, 0, bench->seconds);

    if (team == NULL)
        return false;
    const struct bench_result *idle_result = &team->slot[IDLE].result;
    result->jobs = team->slot[BUSY].result.jobs;
    result->elapsed_ns = idle_result->elapsed_ns;
    result->cpu_ns = idle_result->cpu_ns;
    result->idle_ppm =
        (int64_t)((double)idle_result->cpu_ns * 1e6 / (double)idle_result->elapsed_ns);
    team_free(team);
    return true;
}
