/*
 * Very many leases that end at the same moment, and what the claims of another queue feel of it while
 * one process takes them back.
 */
#include <string.h>

#include "work.h"

enum { MAINTAINER, CLAIMER };
enum { FILL_BATCH = 1000, PACE_MS = 2, MOST_CLAIMS = 1000000 };

/* ---- so many leases, one end ----------------------------------------------------------------------- */

/* Claims everything, each batch with what is left of the time until the common end; the end, by the
 * store's clock, is in the seat. Holding takes about twice as long as bringing; twice that is
 * allowed for. */
static void hold_all(struct crew *crew, size_t me, const struct bench *bench)
{
    lh_open_opts how = {.create = true, .no_recovery = true, .durability = LH_DURABLE_RELAXED};
    lh_store *store = crew_open_as(crew, bench, &how);
    struct supply s = supply_new(bench, FILL_BATCH, NULL);
    lh_claim_opts opts = claim_of(bench_queues, FILL_BATCH);
    int64_t start = bench_ns(), end, held = 0;

    crew_ready(crew);
    supply_all(crew, store, &s, bench->jobs);
    end = lh_now(store) + (bench_ns() - start) * 4 / 1000000 + (bench->seconds + 2) * 1000;
    while (held < bench->jobs) {
        lh_jobs *jobs = NULL;
        opts.lease_ms = end - lh_now(store);
        if (opts.lease_ms <= bench->seconds * 1000)
            crew_fail(crew, "this machine is too busy: holding %lld jobs took longer than expected",
                      (long long)bench->jobs);
        crew_need(crew, store, lh_claim(store, &opts, &jobs));
        held += (int64_t)jobs->n;
        lh_jobs_free(jobs);
    }
    crew->seat[me].time_ns = end;
    lh_close(store);
}

/* ---- before and during ------------------------------------------------------------------------------ */

/* When the leases end, by the clock that everything is measured with; 0: not known yet. */
static int64_t flood_ns(struct crew *crew)
{
    return __atomic_load_n(&crew->seat[MAINTAINER].time_ns, __ATOMIC_SEQ_CST);
}

/* Asked for, not counted from the upkeep: claims help to take back. */
static int64_t still_held(struct crew *crew, lh_store *store)
{
    lh_queues *queues = NULL;
    int64_t running = 0;

    crew_need(crew, store, lh_queue_list(store, &queues));
    for (size_t i = 0; i < queues->n; i++)
        if (strcmp(queues->queue[i].queue, BENCH_QUEUE) == 0)
            running = queues->queue[i].running;
    lh_queues_free(queues);
    return running;
}

static void take_all_back(struct crew *crew, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    lh_maintain_opts opts = {.wait_ms = 1000};
    struct bench_result *result = &crew->seat[MAINTAINER].result;

    crew_ready(crew);
    int64_t flood = bench_ns() + (bench->ends_at - lh_now(store)) * 1000000;
    __atomic_store_n(&crew->seat[MAINTAINER].time_ns, flood, __ATOMIC_SEQ_CST);
    while (result->jobs < bench->jobs) {
        crew_need(crew, store, lh_maintain(store, &opts, NULL));
        result->jobs = bench->jobs - still_held(crew, store);
    }
    result->elapsed_ns = bench_ns() - flood;
    __atomic_store_n(&crew->stop, 1, __ATOMIC_SEQ_CST);
    lh_close(store);
}

/* The first half of the samples is for before, the second for during. */
static void claim_beside(struct crew *crew, const struct bench *bench)
{
    lh_store *store = crew_open(crew, bench, bench->relaxed);
    struct supply s = supply_new(bench, 1, NULL);
    lh_claim_opts opts = claim_of(other_queues, 1);
    struct bench_result *result = &crew->seat[CLAIMER].result;

    crew_ready(crew);
    while (flood_ns(crew) == 0 && !crew_stopped(crew))
        crew_pause_ms(1);
    while (!crew_stopped(crew)) {
        supply(crew, store, BENCH_OTHER_QUEUE, &s, 1);
        int64_t start = bench_ns(), took = crew_claim_complete(crew, store, &opts);
        if (start + took < flood_ns(crew) && result->before_claims < MOST_CLAIMS)
            crew->samples[result->before_claims++] = took;
        else if (start >= flood_ns(crew) && result->claims < MOST_CLAIMS)
            crew->samples[MOST_CLAIMS + result->claims++] = took;
        crew_pause_ms(PACE_MS);
    }
    lh_close(store);
}

static void flood_on(struct crew *crew, size_t me, const struct bench *bench)
{
    if (me == MAINTAINER)
        take_all_back(crew, bench);
    else
        claim_beside(crew, bench);
}

bool bench_flood(const struct bench *bench, struct bench_result *result)
{
    struct crew *crew = crew_run(bench, 1, hold_all, 0, 0);
    struct bench_result before = {0};
    struct bench flooded = *bench;

    if (crew == NULL)
        return false;
    flooded.ends_at = crew->seat[0].time_ns;
    crew_free(crew);
    crew = crew_run(&flooded, 2, flood_on, (size_t)2 * MOST_CLAIMS, 0);
    if (crew == NULL)
        return false;
    const struct bench_result *claims = &crew->seat[CLAIMER].result;
    percentiles(crew->samples, (size_t)claims->before_claims, &before);
    percentiles(crew->samples + MOST_CLAIMS, (size_t)claims->claims, result);
    result->jobs = crew->seat[MAINTAINER].result.jobs;
    result->elapsed_ns = crew->seat[MAINTAINER].result.elapsed_ns;
    result->claims = claims->claims;
    result->before_claims = claims->before_claims;
    result->before_p50_ns = before.p50_ns;
    result->before_p90_ns = before.p90_ns;
    result->before_p99_ns = before.p99_ns;
    result->before_worst_ns = before.worst_ns;
    crew_free(crew);
    return true;
}
