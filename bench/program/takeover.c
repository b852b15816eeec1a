/*
 * The delay until a waiting process claims a job: after the process of its worker died, or after
 * its lease expired.
 */
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jobs.h"

enum { WAITER, OTHER, VICTIM };

/* Claims one job after the other. It starts to wait when the other process holds the job. */
static void wait_for_lost_jobs(struct team *team, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    lh_claim_opts opts = claim_opts_for(bench_queues, 1);

    opts.wait_ms = -1;
    await_start(team);
    for (int64_t i = 0; i < bench->jobs; i++) {
        lh_jobs *jobs = NULL;
        lh_done done;
        await_step(team, OTHER, i + 1);
        step_to(team, WAITER, 2 * i + 1); /* is about to wait */
        require_ok(team, store, lh_claim(store, &opts, &jobs));
        team->slot[WAITER].time_ns = bench_ns();
        if (jobs->job[0].recoveries != 1)
            fail_measurement(team, "job %lld should have been recovered once, but it was not",
                             (long long)jobs->job[0].id);
        step_to(team, WAITER, 2 * i + 2); /* has the job */
        done_from(jobs, &done);
        require_ok(team, store, lh_complete(store, &done, 1, NULL, NULL));
        lh_jobs_free(jobs);
    }
    lh_close(store);
}

/* A pause of varying length, so that no periodic poll can be in step with it. */
static int64_t some_ms(int64_t i, int64_t least, int64_t most)
{
    return least + i * 7919 % (most - least + 1);
}

/* ---- after the death of a process ------------------------------------------------------------ */

static _Noreturn void run_victim(struct team *team, const struct bench *bench, int64_t i,
                                 pid_t parent)
{
    lh_worker_opts worker = {.label = "bench-victim", .process = true};
    struct new_jobs s = new_jobs_make(bench, 1, NULL);
    lh_claim_opts opts = claim_opts_for(bench_queues, 1);
    lh_jobs *jobs = NULL;
    char id[160];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILED);
    lh_store *store = open_store(team, bench, bench->relaxed);
    require_ok(team, store, lh_worker_register(store, &worker, id, sizeof id));
    opts.worker = id;
    enqueue_jobs(team, store, BENCH_QUEUE, &s, 1);
    require_ok(team, store, lh_claim(store, &opts, &jobs));
    step_to(team, VICTIM, i + 1);
    for (;;)
        pause();
}

/** Waits for a step of the victim. Fails if the victim exits. */
static void await_victim(struct team *team, pid_t victim, int64_t step)
{
    while (step_of(team, VICTIM) < step) {
        if (waitpid(victim, NULL, WNOHANG) == victim)
            fail_measurement(team, "a worker that should have been killed exited by itself");
        pause_ms(1);
    }
}

/* This process has no store handle: it only kills. */
static void kill_workers(struct team *team, const struct bench *bench)
{
    await_start(team);
    for (int64_t i = 0; i < bench->jobs; i++) {
        pid_t me = getpid(), victim = fork();
        if (victim == 0)
            run_victim(team, bench, i, me);
        if (victim < 0)
            fail_measurement(team, "could not start a process");
        await_victim(team, victim, i + 1);
        step_to(team, OTHER, i + 1);
        await_step(team, WAITER, 2 * i + 1);
        pause_ms(some_ms(i, 20, 60)); /* by now the waiter has found nothing, and sleeps */
        int64_t killed = bench_ns();
        kill(victim, SIGKILL);
        await_step(team, WAITER, 2 * i + 2);
        team->samples[i] = team->slot[WAITER].time_ns - killed;
        waitpid(victim, NULL, 0);
    }
}

static void death_on(struct team *team, size_t me, const struct bench *bench)
{
    if (me == WAITER)
        wait_for_lost_jobs(team, bench);
    else
        kill_workers(team, bench);
}

static bool measure_delay(const struct bench *bench, process_fn *fn, struct bench_result *result)
{
    struct team *team = team_run(bench, 2, fn, (size_t)bench->jobs, 0);

    if (team == NULL)
        return false;
    percentiles(team->samples, team->n_samples, result);
    result->jobs = bench->jobs;
    team_free(team);
    return true;
}

bool bench_death(const struct bench *bench, struct bench_result *result)
{
    return measure_delay(bench, death_on, result);
}

/* ---- after the end of a lease ---------------------------------------------------------------- */

/* The store's clock has milliseconds. Measure from the earliest moment at which the lease can have
 * expired. */
static void let_leases_end(struct team *team, const struct bench *bench)
{
    lh_store *store = open_store(team, bench, bench->relaxed);
    struct new_jobs s = new_jobs_make(bench, 1, NULL);
    lh_claim_opts opts = claim_opts_for(bench_queues, 1);

    opts.worker = "bench-holder";
    await_start(team);
    for (int64_t i = 0; i < bench->jobs; i++) {
        lh_jobs *jobs = NULL;
        opts.lease_ms = some_ms(i, 50, 150);
        enqueue_jobs(team, store, BENCH_QUEUE, &s, 1);
        int64_t end = bench_ns() + (opts.lease_ms - 1) * 1000000;
        require_ok(team, store, lh_claim(store, &opts, &jobs));
        lh_jobs_free(jobs);
        step_to(team, OTHER, i + 1);
        await_step(team, WAITER, 2 * i + 2);
        team->samples[i] = team->slot[WAITER].time_ns - end;
    }
    lh_close(store);
}

static void expiry_on(struct team *team, size_t me, const struct bench *bench)
{
    if (me == WAITER)
        wait_for_lost_jobs(team, bench);
    else
        let_leases_end(team, bench);
}

bool bench_expiry(const struct bench *bench, struct bench_result *result)
{
    return measure_delay(bench, expiry_on, result);
}
