/*
 * Steps that the measuring processes share: open the store, enqueue and claim jobs, take turns. A failure
 * ends the process, and the measurement with it (fail_measurement()).
 */
#ifndef LEASEHOLD_BENCH_JOBS_H
#define LEASEHOLD_BENCH_JOBS_H

#include "bench.h"

enum { BENCH_MAX_BATCH = 1000 };

extern const char *const bench_queues[1], *const other_queues[1];

lh_store *open_store(struct team *team, const struct bench *bench, bool relaxed);
lh_store *open_store_as(struct team *team, const struct bench *bench, const lh_open_opts *opts);
void require_ok(struct team *team, lh_store *store, int rc);

/* Jobs to enqueue; the same `n` are enqueued again and again. */
struct new_jobs {
    size_t n;
    lh_new_job *jobs;
    lh_enqueued *out;
};
struct new_jobs new_jobs_make(const struct bench *bench, size_t n, const char *kind);
void enqueue_jobs(struct team *team, lh_store *store, const char *queue, struct new_jobs *s,
                  size_t n);
void enqueue_all(struct team *team, lh_store *store, struct new_jobs *s, int64_t jobs);

lh_claim_opts claim_opts_for(const char *const *queues, int64_t n);
size_t done_from(const lh_jobs *jobs, lh_done *done);
/** Completes the `held` jobs in `done` and claims the next. A refused complete fails the measurement. */
int complete_and_claim(struct team *team, lh_store *store, const lh_done *done, size_t held,
                       const lh_claim_opts *opts, lh_jobs **jobs);
/** Claims and completes until the queue is empty or `most` jobs are done. Returns the number of jobs. */
int64_t drain_queue(struct team *team, lh_store *store, int64_t batch, int64_t most);
/** Claims one job and completes it. Returns the time of the claim. */
int64_t claim_and_complete(struct team *team, lh_store *store, const lh_claim_opts *opts);

/** Fills the store with the jobs that `bench` asks for. False: the reason was printed. */
bool bench_fill(const struct bench *bench);
/** Runs `fn` in `bench->processes` processes on such a store, and adds up their results. */
bool bench_in_processes(const struct bench *bench, process_fn *fn, int64_t seconds,
                        struct bench_result *result);
/** The number of jobs that process `me` does. */
int64_t bench_share(const struct bench *bench, size_t me);
/** Runs `fn` in one process, on such a store. */
bool bench_in_one_process(const struct bench *bench, process_fn *fn, size_t n_samples,
                          struct bench_result *result);

/* Processes take turns: each counts its steps, and another waits for a step. */
int64_t step_of(struct team *team, size_t who);
void step_to(struct team *team, size_t who, int64_t step);
void await_step(struct team *team, size_t who, int64_t step);

#endif
