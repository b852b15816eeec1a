/*
 * Steps that the measurements share.
 */
#include <stdlib.h>
#include <string.h>

#include "jobs.h"

enum { FILL_BATCH = 1000, FILL_DRAIN = 100000 };

const char *const bench_queues[1] = {BENCH_QUEUE};
const char *const other_queues[1] = {BENCH_OTHER_QUEUE};

lh_store *open_store_as(struct team *team, const struct bench *bench, const lh_open_opts *opts)
{
    lh_store *store = NULL;

    if (lh_open(bench->url, opts, &store) != LH_OK)
        fail_measurement(team, "%s", store ? lh_errmsg(store) : "out of memory");
    return store;
}

lh_store *open_store(struct team *team, const struct bench *bench, bool relaxed)
{
    lh_open_opts opts = {.create = true,
                         .durability = relaxed ? LH_DURABLE_RELAXED : LH_DURABLE_FULL};

    return open_store_as(team, bench, &opts);
}

void require_ok(struct team *team, lh_store *store, int rc)
{
    if (rc != LH_OK)
        fail_measurement(team, "%s", rc > 0 ? lh_status_text(rc) : lh_errmsg(store));
}

/* ---- jobs -------------------------------------------------------------------------------------- */

struct new_jobs new_jobs_make(const struct bench *bench, size_t n, const char *kind)
{
    struct new_jobs s = {.n = n};
    char *payload = mem_alloc((size_t)bench->payload + 1);

    memset(payload, 'p', (size_t)bench->payload);
    s.jobs = mem_array(n, sizeof *s.jobs);
    s.out = mem_array(n, sizeof *s.out);
    for (size_t i = 0; i < n; i++)
        s.jobs[i] =
            (lh_new_job){.kind = kind, .payload = payload, .payload_len = (size_t)bench->payload};
    return s;
}

void enqueue_jobs(struct team *team, lh_store *store, const char *queue, struct new_jobs *s,
                  size_t n)
{
    require_ok(team, store, lh_enqueue(store, queue, s->jobs, n, NULL, s->out));
}

void enqueue_all(struct team *team, lh_store *store, struct new_jobs *s, int64_t jobs)
{
    while (jobs > 0) {
        size_t n = jobs < (int64_t)s->n ? (size_t)jobs : s->n;
        enqueue_jobs(team, store, BENCH_QUEUE, s, n);
        jobs -= (int64_t)n;
    }
}

lh_claim_opts claim_opts_for(const char *const *queues, int64_t n)
{
    return (lh_claim_opts){.queues = queues, .n_queues = 1, .worker = BENCH_WORKER, .n = (size_t)n};
}

size_t done_from(const lh_jobs *jobs, lh_done *done)
{
    for (size_t i = 0; i < jobs->n; i++)
        done[i] = (lh_done){.job = jobs->job[i].id, .token = jobs->job[i].token};
    return jobs->n;
}

int complete_and_claim(struct team *team, lh_store *store, const lh_done *done, size_t held,
                       const lh_claim_opts *opts, lh_jobs **jobs)
{
    int status[BENCH_MAX_BATCH];
    int rc = lh_complete_claim(store, done, held, status, opts, jobs);

    for (size_t i = 0; (rc == LH_OK || rc == LH_EMPTY) && i < held; i++)
        require_ok(team, store, status[i]);
    return rc;
}

int64_t drain_queue(struct team *team, lh_store *store, int64_t batch, int64_t most)
{
    lh_claim_opts opts = claim_opts_for(bench_queues, batch);
    lh_done done[BENCH_MAX_BATCH];
    lh_jobs *jobs = NULL;
    size_t held = 0;
    int64_t n = 0;

    while (n + (int64_t)held < most) {
        int64_t left = most - n - (int64_t)held;
        opts.n = (size_t)(left < batch ? left : batch);
        int rc = complete_and_claim(team, store, done, held, &opts, &jobs);
        n += (int64_t)held;
        if (rc == LH_EMPTY)
            return n;
        require_ok(team, store, rc);
        held = done_from(jobs, done);
        lh_jobs_free(jobs);
        jobs = NULL;
    }
    if (held > 0)
        require_ok(team, store, lh_complete(store, done, held, NULL, NULL));
    return n + (int64_t)held;
}

int64_t claim_and_complete(struct team *team, lh_store *store, const lh_claim_opts *opts)
{
    lh_jobs *jobs = NULL;
    lh_done done;
    int64_t start = bench_ns();
    int rc = lh_claim(store, opts, &jobs);
    int64_t took = bench_ns() - start;

    require_ok(team, store, rc);
    done_from(jobs, &done);
    lh_jobs_free(jobs);
    require_ok(team, store, lh_complete(store, &done, 1, NULL, NULL));
    return took;
}

/* ---- filling the store ----------------------------------------------------------------------- */

static void fill(struct team *team, size_t me, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, true);
    struct new_jobs s = new_jobs_make(bench, FILL_BATCH, "common");

    (void)me;
    await_start(team);
    for (int64_t left = bench->completed; left > 0; left -= FILL_DRAIN) {
        enqueue_all(team, store, &s, left < FILL_DRAIN ? left : FILL_DRAIN);
        drain_queue(team, store, BENCH_MAX_BATCH, INT64_MAX);
    }
    enqueue_all(team, store, &s, bench->pending);
    lh_close(store);
}

bool bench_fill(const struct bench *bench)
{
    struct team *team = bench->existing ? NULL : team_run(bench, 1, fill, 0, 0);
    bool fine = bench->existing || team != NULL;

    team_free(team);
    return fine;
}

bool bench_in_processes(const struct bench *bench, process_fn *fn, int64_t seconds,
                        struct bench_result *result)
{
    size_t n = (size_t)bench->processes;
    struct team *team = bench_fill(bench) ? team_run(bench, n, fn, 0, seconds) : NULL;

    if (team == NULL)
        return false;
    for (size_t i = 0; i < team->n; i++) {
        const struct bench_result *one = &team->slot[i].result;
        result->jobs += one->jobs;
        result->cpu_ns += one->cpu_ns;
        result->written_bytes += one->written_bytes;
        if (one->elapsed_ns > result->elapsed_ns)
            result->elapsed_ns = one->elapsed_ns;
        if (one->worst_ns > result->worst_ns)
            result->worst_ns = one->worst_ns;
    }
    team_free(team);
    return true;
}

bool bench_in_one_process(const struct bench *bench, process_fn *fn, size_t n_samples,
                          struct bench_result *result)
{
    struct team *team = bench_fill(bench) ? team_run(bench, 1, fn, n_samples, 0) : NULL;

    if (team == NULL)
        return false;
    *result = team->slot[0].result;
    team_free(team);
    return true;
}

int64_t bench_share(const struct bench *bench, size_t me)
{
    return bench->jobs / bench->processes + ((int64_t)me < bench->jobs % bench->processes);
}

/* ---- processes that take turns --------------------------------------------------------------- */

int64_t step_of(struct team *team, size_t who)
{
    return __atomic_load_n(&team->slot[who].step, __ATOMIC_SEQ_CST);
}

void step_to(struct team *team, size_t who, int64_t step)
{
    __atomic_store_n(&team->slot[who].step, step, __ATOMIC_SEQ_CST);
}

void await_step(struct team *team, size_t who, int64_t step)
{
    while (step_of(team, who) < step)
        pause_ms(1);
}
