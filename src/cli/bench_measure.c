#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_measure.h"

enum { FILL_BATCH = 1000, FILL_DRAIN = 100000, MAX_BATCH = 1000 };

/* ---- what the measuring processes share ------------------------------------------------------ */

static lh_store *open_store(struct crew *crew, const struct bench *bench, bool relaxed)
{
    lh_open_opts opts = {.create = true,
                         .durability = relaxed ? LH_DURABLE_RELAXED : LH_DURABLE_FULL};
    lh_store *store = NULL;

    if (lh_open(bench->url, &opts, &store) != LH_OK)
        crew_fail(crew, "%s", store ? lh_errmsg(store) : "out of memory");
    return store;
}

static void need(struct crew *crew, lh_store *store, int rc)
{
    if (rc != LH_OK)
        crew_fail(crew, "%s", rc > 0 ? lh_status_text(rc) : lh_errmsg(store));
}

/* Jobs to enqueue: the same `n` again and again. */
struct supply {
    size_t n;
    lh_new_job *jobs;
    lh_enqueued *out;
};

static struct supply supply_new(const struct bench *bench, size_t n, const char *kind)
{
    struct supply s = {.n = n};
    char *payload = mem_alloc((size_t)bench->payload + 1);

    memset(payload, 'p', (size_t)bench->payload);
    s.jobs = mem_array(n, sizeof *s.jobs);
    s.out = mem_array(n, sizeof *s.out);
    for (size_t i = 0; i < n; i++)
        s.jobs[i] =
            (lh_new_job){.kind = kind, .payload = payload, .payload_len = (size_t)bench->payload};
    return s;
}

static void supply(struct crew *crew, lh_store *store, const char *queue, struct supply *s,
                   size_t n)
{
    need(crew, store, lh_enqueue(store, queue, s->jobs, n, NULL, s->out));
}

static void supply_all(struct crew *crew, lh_store *store, struct supply *s, int64_t jobs)
{
    while (jobs > 0) {
        size_t n = jobs < (int64_t)s->n ? (size_t)jobs : s->n;
        supply(crew, store, BENCH_QUEUE, s, n);
        jobs -= (int64_t)n;
    }
}

static const char *const bench_queues[] = {BENCH_QUEUE};
static const char *const other_queues[] = {BENCH_OTHER_QUEUE};

static lh_claim_opts claim_of(const char *const *queues, int64_t n)
{
    return (lh_claim_opts){.queues = queues, .n_queues = 1, .worker = BENCH_WORKER, .n = (size_t)n};
}

static size_t done_of(const lh_jobs *jobs, lh_done *done)
{
    for (size_t i = 0; i < jobs->n; i++)
        done[i] = (lh_done){.job = jobs->job[i].id, .token = jobs->job[i].token};
    return jobs->n;
}

/** Complete what is held and claim the next, until nothing is left. */
static int64_t drain(struct crew *crew, lh_store *store, int64_t batch)
{
    lh_claim_opts opts = claim_of(bench_queues, batch);
    lh_done done[MAX_BATCH];
    lh_jobs *jobs = NULL;
    size_t held = 0;
    int64_t n = 0;

    for (;;) {
        int rc = lh_complete_claim(store, done, held, NULL, &opts, &jobs);
        n += (int64_t)held;
        if (rc == LH_EMPTY)
            return n;
        need(crew, store, rc);
        held = done_of(jobs, done);
        lh_jobs_free(jobs);
        jobs = NULL;
    }
}

/* What a measurement starts from, made by a process of its own. */
static void fill(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(crew, bench, true);
    struct supply s = supply_new(bench, FILL_BATCH, "common");

    (void)me;
    crew_ready(crew);
    for (int64_t left = bench->completed; left > 0; left -= FILL_DRAIN) {
        supply_all(crew, store, &s, left < FILL_DRAIN ? left : FILL_DRAIN);
        drain(crew, store, MAX_BATCH);
    }
    supply_all(crew, store, &s, bench->pending);
    lh_close(store);
}

/** Runs `fn` in one process, on a store with what `bench` says. */
static bool run_alone(const struct bench *bench, crew_fn *fn, size_t n_samples,
                      struct bench_result *result)
{
    struct crew *crew;

    if (!bench->made) {
        crew = crew_run(bench, 1, fill, 0, 0);
        if (crew == NULL)
            return false;
        crew_free(crew);
    }
    crew = crew_run(bench, 1, fn, n_samples, 0);
    if (crew == NULL)
        return false;
    *result = crew->seat[0].result;
    crew_free(crew);
    return true;
}

/* ---- one durable enqueue at a time, by several processes -------------------------------------- */

static void enqueue_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(crew, bench, bench->relaxed);
    struct supply s = supply_new(bench, 1, NULL);
    struct seat *seat = &crew->seat[me];

    crew_ready(crew);
    struct meters meters = meters_start();
    while (!crew_stopped(crew)) {
        int64_t start = bench_ns(), took;
        supply(crew, store, BENCH_QUEUE, &s, 1);
        took = bench_ns() - start;
        seat->result.jobs++;
        if (took > seat->result.worst_ns)
            seat->result.worst_ns = took;
    }
    meters_stop(&meters, &seat->result);
    lh_close(store);
}

bool bench_enqueue(const struct bench *bench, struct bench_result *result)
{
    struct crew *crew = crew_run(bench, (size_t)bench->processes, enqueue_on, 0, bench->seconds);

    if (crew == NULL)
        return false;
    for (size_t i = 0; i < crew->n; i++) {
        const struct bench_result *one = &crew->seat[i].result;
        result->jobs += one->jobs;
        result->cpu_ns += one->cpu_ns;
        result->written_bytes += one->written_bytes;
        if (one->elapsed_ns > result->elapsed_ns)
            result->elapsed_ns = one->elapsed_ns;
        if (one->worst_ns > result->worst_ns)
            result->worst_ns = one->worst_ns;
    }
    crew_free(crew);
    return true;
}

/* ---- many at once ----------------------------------------------------------------------------- */

static void bulk_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(crew, bench, bench->relaxed);
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
    return run_alone(bench, bulk_on, 0, result);
}

static void drain_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(crew, bench, bench->relaxed);
    struct bench_result *result = &crew->seat[me].result;

    crew_ready(crew);
    struct meters meters = meters_start();
    result->jobs = drain(crew, store, bench->batch);
    meters_stop(&meters, result);
    lh_close(store);
}

bool bench_drain(const struct bench *bench, struct bench_result *result)
{
    struct bench filled = *bench;

    filled.pending = bench->jobs;
    if (!run_alone(&filled, drain_on, 0, result))
        return false;
    if (result->jobs != bench->jobs)
        return cli_error(0, "%lld jobs were enqueued, %lld were drained", (long long)bench->jobs,
                         (long long)result->jobs) != 0;
    return true;
}

/* ---- the whole life of a job: enqueue, claim, complete ---------------------------------------- */

static void cycle_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(crew, bench, bench->relaxed);
    struct supply s = supply_new(bench, (size_t)bench->batch, NULL);
    struct bench_result *result = &crew->seat[me].result;
    lh_claim_opts opts = claim_of(bench_queues, bench->batch);
    lh_done done[MAX_BATCH];

    crew_ready(crew);
    struct meters meters = meters_start();
    while (result->jobs < bench->jobs) {
        lh_jobs *jobs = NULL;
        supply(crew, store, BENCH_QUEUE, &s, s.n);
        need(crew, store, lh_claim(store, &opts, &jobs));
        need(crew, store, lh_complete(store, done, done_of(jobs, done), NULL, NULL));
        result->jobs += (int64_t)jobs->n;
        lh_jobs_free(jobs);
    }
    meters_stop(&meters, result);
    lh_close(store);
}

bool bench_cycle(const struct bench *bench, struct bench_result *result)
{
    return run_alone(bench, cycle_on, 0, result);
}

/* ---- how soon an idle worker has a job --------------------------------------------------------- */

enum { WAITER, ENQUEUER };

static int64_t step_of(struct crew *crew, size_t who)
{
    return __atomic_load_n(&crew->seat[who].step, __ATOMIC_SEQ_CST);
}

static void wait_for_jobs(struct crew *crew, const struct bench *bench)
{
    lh_store *store = open_store(crew, bench, bench->relaxed);
    struct seat *seat = &crew->seat[WAITER];
    lh_claim_opts opts = claim_of(bench_queues, 1);

    opts.wait_ms = -1;
    crew_ready(crew);
    for (int64_t i = 0; i < bench->jobs; i++) {
        lh_jobs *jobs = NULL;
        lh_done done;
        __atomic_store_n(&seat->step, 2 * i + 1, __ATOMIC_SEQ_CST); /* about to wait */
        need(crew, store, lh_claim(store, &opts, &jobs));
        seat->time_ns = bench_ns();
        __atomic_store_n(&seat->step, 2 * i + 2, __ATOMIC_SEQ_CST); /* has it */
        done_of(jobs, &done);
        need(crew, store, lh_complete(store, &done, 1, NULL, NULL));
        lh_jobs_free(jobs);
    }
    lh_close(store);
}

/* The first half of the samples counts from the call of the enqueue, the second from its return. */
static void wake_waiter(struct crew *crew, const struct bench *bench)
{
    lh_store *store = open_store(crew, bench, bench->relaxed);
    struct supply s = supply_new(bench, 1, NULL);

    crew_ready(crew);
    for (int64_t i = 0; i < bench->jobs; i++) {
        while (step_of(crew, WAITER) < 2 * i + 1)
            crew_pause_ms(1);
        crew_pause_ms(3); /* by now it has looked, found nothing, and sleeps */
        int64_t called = bench_ns();
        supply(crew, store, BENCH_QUEUE, &s, 1);
        int64_t returned = bench_ns();
        while (step_of(crew, WAITER) < 2 * i + 2)
            crew_pause_ms(1);
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
        open_store(crew, bench, true); /* claims are not synced; the rest need not be */
    struct supply s = supply_new(bench, 1, NULL);
    lh_claim_opts opts = claim_of(bench_queues, 1);

    crew_ready(crew);
    for (size_t i = 0; i < crew->n_samples; i++) {
        lh_jobs *jobs = NULL;
        lh_done done;
        int64_t start = bench_ns();
        int rc = lh_claim(store, &opts, &jobs);
        crew->samples[i] = bench_ns() - start;
        need(crew, store, rc);
        done_of(jobs, &done);
        lh_jobs_free(jobs);
        /* As many are pending at the next claim as at this one. */
        need(crew, store, lh_complete(store, &done, 1, NULL, NULL));
        supply(crew, store, BENCH_QUEUE, &s, 1);
    }
    percentiles(crew->samples, crew->n_samples, &crew->seat[me].result);
    crew->seat[me].result.jobs = (int64_t)crew->n_samples;
    lh_close(store);
}

bool bench_claim(const struct bench *bench, struct bench_result *result)
{
    return run_alone(bench, claim_on, (size_t)bench->jobs, result);
}

/* Jobs of the wanted kind stand behind all others: the worst place. */
static void kind_on(struct crew *crew, size_t me, const struct bench *bench)
{
    static const char *const kinds[] = {"rare"};
    lh_store *store = open_store(crew, bench, true);
    struct supply s = supply_new(bench, 1, kinds[0]);
    lh_claim_opts opts = claim_of(bench_queues, 1);

    opts.kinds = kinds;
    opts.n_kinds = 1;
    supply_all(crew, store, &s, bench->jobs);
    crew_ready(crew);
    for (size_t i = 0; i < crew->n_samples; i++) {
        lh_jobs *jobs = NULL;
        lh_done done;
        int64_t start = bench_ns();
        int rc = lh_claim(store, &opts, &jobs);
        crew->samples[i] = bench_ns() - start;
        need(crew, store, rc);
        done_of(jobs, &done);
        lh_jobs_free(jobs);
        need(crew, store, lh_complete(store, &done, 1, NULL, NULL));
    }
    percentiles(crew->samples, crew->n_samples, &crew->seat[me].result);
    crew->seat[me].result.jobs = bench->jobs;
    lh_close(store);
}

bool bench_kind(const struct bench *bench, struct bench_result *result)
{
    return run_alone(bench, kind_on, (size_t)bench->jobs, result);
}

/* ---- memory of a worker beside many jobs ------------------------------------------------------ */

static void memory_on(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(crew, bench, bench->relaxed);
    lh_claim_opts opts = claim_of(bench_queues, bench->batch);
    struct bench_result *result = &crew->seat[me].result;
    lh_done done[MAX_BATCH];
    size_t held = 0;

    crew_ready(crew);
    while (result->jobs < bench->jobs) {
        lh_jobs *jobs = NULL;
        need(crew, store, lh_complete_claim(store, done, held, NULL, &opts, &jobs));
        result->jobs += (int64_t)held;
        held = done_of(jobs, done);
        lh_jobs_free(jobs);
    }
    result->rss_bytes = peak_bytes();
    lh_close(store);
}

bool bench_memory(const struct bench *bench, struct bench_result *result)
{
    return run_alone(bench, memory_on, 0, result);
}

/* ---- an idle worker while another queue is busy ------------------------------------------------ */

enum { IDLER, BUSY };

static void idle_while_busy(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(crew, bench, bench->relaxed);
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
            lh_jobs *jobs = NULL;
            lh_done done;
            supply(crew, store, BENCH_OTHER_QUEUE, &s, 1);
            need(crew, store, lh_claim(store, &opts, &jobs));
            done_of(jobs, &done);
            need(crew, store, lh_complete(store, &done, 1, NULL, NULL));
            lh_jobs_free(jobs);
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
