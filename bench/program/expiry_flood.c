/*
 * A flood of leases that expire at the same moment: how long recovering them takes one process, and
 * how much it delays claims on another queue.
 */
#include <string.h>

#include "jobs.h"

enum { MAINTAINER, CLAIMER };
enum { FILL_BATCH = 1000, PACE_MS = 2, MOST_CLAIMS = 1000000 };

/* ---- leases that expire together ------------------------------------------------------------- */

/* Claims all jobs with leases that end at the same time, and stores that time (by the store's
 * clock) in the slot. Claiming takes about twice as long as enqueueing; allow twice that. */
static void hold_all(struct team *team, size_t me, const struct bench *bench)
{
    lh_open_opts how = {.create = true, .no_recovery = true, .durability = LH_DURABLE_RELAXED};
    lh_store *store = open_store_as(team, bench, &how);
    struct new_jobs s = new_jobs_make(bench, FILL_BATCH, NULL);
    lh_claim_opts opts = claim_opts_for(bench_queues, FILL_BATCH);
    int64_t start = bench_ns(), end, held = 0;

    await_start(team);
    enqueue_all(team, store, &s, bench->jobs);
    end = lh_now(store) + (bench_ns() - start) * 4 / 1000000 + (bench->seconds + 2) * 1000;
    while (held < bench->jobs) {
        lh_jobs *jobs = NULL;
        opts.lease_ms = end - lh_now(store);
        if (opts.lease_ms <= bench->seconds * 1000)
            fail_measurement(
                team, "this machine is too busy: holding %lld jobs took longer than expected",
                (long long)bench->jobs);
        require_ok(team, store, lh_claim(store, &opts, &jobs));
        held += (int64_t)jobs->n;
        lh_jobs_free(jobs);
    }
    team->slot[me].time_ns = end;
    lh_close(store);
}

/* ---- before and after the expiry ------------------------------------------------------------- */

/* When the leases expire, by the monotonic clock; 0: not known yet. */
static int64_t expiry_ns(struct team *team)
{
    return __atomic_load_n(&team->slot[MAINTAINER].time_ns, __ATOMIC_SEQ_CST);
}

/* Read from the store, because claims of the other process recover jobs too. */
static int64_t still_held(struct team *team, lh_store *store)
{
    lh_queues *queues = NULL;
    int64_t running = 0;

    require_ok(team, store, lh_queue_list(store, &queues));
    for (size_t i = 0; i < queues->n; i++)
        if (strcmp(queues->queue[i].queue, BENCH_QUEUE) == 0)
            running = queues->queue[i].running;
    lh_queues_free(queues);
    return running;
}

static void recover_all(struct team *team, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    lh_maintain_opts opts = {.wait_ms = 1000};
    struct bench_result *result = &team->slot[MAINTAINER].result;

    await_start(team);
    int64_t flood = bench_ns() + (bench->ends_at - lh_now(store)) * 1000000;
    __atomic_store_n(&team->slot[MAINTAINER].time_ns, flood, __ATOMIC_SEQ_CST);
    while (result->jobs < bench->jobs) {
        require_ok(team, store, lh_maintain(store, &opts, NULL));
        result->jobs = bench->jobs - still_held(team, store);
    }
    result->elapsed_ns = bench_ns() - flood;
    __atomic_store_n(&team->stop, 1, __ATOMIC_SEQ_CST);
    lh_close(store);
}

/* The first half of the samples is for claims before the expiry, the second half for claims after
 * it. */
static void claim_beside(struct team *team, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct new_jobs s = new_jobs_make(bench, 1, NULL);
    lh_claim_opts opts = claim_opts_for(other_queues, 1);
    struct bench_result *result = &team->slot[CLAIMER].result;

    await_start(team);
    while (expiry_ns(team) == 0 && !stop_requested(team))
        pause_ms(1);
    while (!stop_requested(team)) {
        enqueue_jobs(team, store, BENCH_OTHER_QUEUE, &s, 1);
        int64_t start = bench_ns(), took = claim_and_complete(team, store, &opts);
        if (start + took < expiry_ns(team) && result->before_claims < MOST_CLAIMS)
            team->samples[result->before_claims++] = took;
        else if (start >= expiry_ns(team) && result->claims < MOST_CLAIMS)
            team->samples[MOST_CLAIMS + result->claims++] = took;
        pause_ms(PACE_MS);
    }
    lh_close(store);
}

static void flood_on(struct team *team, size_t me, const struct bench *bench)
{
    if (me == MAINTAINER)
        recover_all(team, bench);
    else
        claim_beside(team, bench);
}

bool bench_flood(const struct bench *bench, struct bench_result *result)
{
    struct team *team = team_run(bench, 1, hold_all, 0, 0);
    struct bench_result before = {0};
    struct bench expiring = *bench;

    if (team == NULL)
        return false;
    expiring.ends_at = team->slot[0].time_ns;
    team_free(team);
    team = team_run(&expiring, 2, flood_on, (size_t)2 * MOST_CLAIMS, 0);
    if (team == NULL)
        return false;
    const struct bench_result *claims = &team->slot[CLAIMER].result;
    percentiles(team->samples, (size_t)claims->before_claims, &before);
    percentiles(team->samples + MOST_CLAIMS, (size_t)claims->claims, result);
    result->jobs = team->slot[MAINTAINER].result.jobs;
    result->elapsed_ns = team->slot[MAINTAINER].result.elapsed_ns;
    result->claims = claims->claims;
    result->before_claims = claims->before_claims;
    result->before_p50_ns = before.p50_ns;
    result->before_p90_ns = before.p90_ns;
    result->before_p99_ns = before.p99_ns;
    result->before_worst_ns = before.worst_ns;
    team_free(team);
    return true;
}
