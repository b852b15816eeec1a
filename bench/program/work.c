#include <stdlib.h>
#include <string.h>

#include "work.h"

enum { FILL_BATCH = 1000, FILL_DRAIN = 100000 };

const char *const bench_queues[1] = {BENCH_QUEUE};
const char *const other_queues[1] = {BENCH_OTHER_QUEUE};

lh_store *crew_open_as(struct crew *crew, const struct bench *bench, const lh_open_opts *opts)
{
    lh_store *store = NULL;

    if (lh_open(bench->url, opts, &store) != LH_OK)
        crew_fail(crew, "%s", store ? lh_errmsg(store) : "out of memory");
    return store;
}

lh_store *crew_open(struct crew *crew, const struct bench *bench, bool relaxed)
{
    lh_open_opts opts = {.create = true,
                         .durability = relaxed ? LH_DURABLE_RELAXED : LH_DURABLE_FULL};

    return crew_open_as(crew, bench, &opts);
}

void crew_need(struct crew *crew, lh_store *store, int rc)
{
    if (rc != LH_OK)
        crew_fail(crew, "%s", rc > 0 ? lh_status_text(rc) : lh_errmsg(store));
}

/* ---- jobs -------------------------------------------------------------------------------------- */

struct supply supply_new(const struct bench *bench, size_t n, const char *kind)
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

void supply(struct crew *crew, lh_store *store, const char *queue, struct supply *s, size_t n)
{
    crew_need(crew, store, lh_enqueue(store, queue, s->jobs, n, NULL, s->out));
}

void supply_all(struct crew *crew, lh_store *store, struct supply *s, int64_t jobs)
{
    while (jobs > 0) {
        size_t n = jobs < (int64_t)s->n ? (size_t)jobs : s->n;
        supply(crew, store, BENCH_QUEUE, s, n);
        jobs -= (int64_t)n;
    }
}

lh_claim_opts claim_of(const char *const *queues, int64_t n)
{
    return (lh_claim_opts){.queues = queues, .n_queues = 1, .worker = BENCH_WORKER, .n = (size_t)n};
}

size_t done_of(const lh_jobs *jobs, lh_done *done)
{
    for (size_t i = 0; i < jobs->n; i++)
        done[i] = (lh_done){.job = jobs->job[i].id, .token = jobs->job[i].token};
    return jobs->n;
}

int crew_complete_claim(struct crew *crew, lh_store *store, const lh_done *done, size_t held,
                        const lh_claim_opts *opts, lh_jobs **jobs)
{
    int status[BENCH_MAX_BATCH];
    int rc = lh_complete_claim(store, done, held, status, opts, jobs);

    for (size_t i = 0; (rc == LH_OK || rc == LH_EMPTY) && i < held; i++)
        crew_need(crew, store, status[i]);
    return rc;
}

int64_t crew_drain(struct crew *crew, lh_store *store, int64_t batch, int64_t most)
{
    lh_claim_opts opts = claim_of(bench_queues, batch);
    lh_done done[BENCH_MAX_BATCH];
    lh_jobs *jobs = NULL;
    size_t held = 0;
    int64_t n = 0;

    while (n + (int64_t)held < most) {
        int64_t left = most - n - (int64_t)held;
        opts.n = (size_t)(left < batch ? left : batch);
        int rc = crew_complete_claim(crew, store, done, held, &opts, &jobs);
        n += (int64_t)held;
        if (rc == LH_EMPTY)
            return n;
        crew_need(crew, store, rc);
        held = done_of(jobs, done);
        lh_jobs_free(jobs);
        jobs = NULL;
    }
    if (held > 0)
        crew_need(crew, store, lh_complete(store, done, held, NULL, NULL));
    return n + (int64_t)held;
}

int64_t crew_claim_complete(struct crew *crew, lh_store *store, const lh_claim_opts *opts)
{
    lh_jobs *jobs = NULL;
    lh_done done;
    int64_t start = bench_ns();
    int rc = lh_claim(store, opts, &jobs);
    int64_t took = bench_ns() - start;

    crew_need(crew, store, rc);
    done_of(jobs, &done);
    lh_jobs_free(jobs);
    crew_need(crew, store, lh_complete(store, &done, 1, NULL, NULL));
    return took;
}

/* ---- what a measurement starts from ------------------------------------------------------------- */

static void fill(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, true);
    struct supply s = supply_new(bench, FILL_BATCH, "common");

    (void)me;
    crew_ready(crew);
    for (int64_t left = bench->completed; left > 0; left -= FILL_DRAIN) {
        supply_all(crew, store, &s, left < FILL_DRAIN ? left : FILL_DRAIN);
        crew_drain(crew, store, BENCH_MAX_BATCH, INT64_MAX);
    }
    supply_all(crew, store, &s, bench->pending);
    lh_close(store);
}

bool bench_filled(const struct bench *bench)
{
    struct crew *crew = bench->made ? NULL : crew_run(bench, 1, fill, 0, 0);
    bool fine = bench->made || crew != NULL;

    crew_free(crew);
    return fine;
}

bool bench_together(const struct bench *bench, crew_fn *fn, int64_t seconds,
                    struct bench_result *result)
{
    size_t n = (size_t)bench->processes;
    struct crew *crew = bench_filled(bench) ? crew_run(bench, n, fn, 0, seconds) : NULL;

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

bool bench_alone(const struct bench *bench, crew_fn *fn, size_t n_samples,
                 struct bench_result *result)
{
    struct crew *crew = bench_filled(bench) ? crew_run(bench, 1, fn, n_samples, 0) : NULL;

    if (crew == NULL)
        return false;
    *result = crew->seat[0].result;
    crew_free(crew);
    return true;
}

int64_t bench_share(const struct bench *bench, size_t me)
{
    return bench->jobs / bench->processes + ((int64_t)me < bench->jobs % bench->processes);
}

/* ---- taking turns ------------------------------------------------------------------------------ */

int64_t step_of(struct crew *crew, size_t who)
{
    return __atomic_load_n(&crew->seat[who].step, __ATOMIC_SEQ_CST);
}

void step_to(struct crew *crew, size_t who, int64_t step)
{
    __atomic_store_n(&crew->seat[who].step, step, __ATOMIC_SEQ_CST);
}

void await_step(struct crew *crew, size_t who, int64_t step)
{
    while (step_of(crew, who) < step)
        crew_pause_ms(1);
}
