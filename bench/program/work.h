/*
 * What the measuring processes do alike: open the store, bring jobs, take them, take turns. What
 * fails ends the process, and the measurement with it (crew_fail).
 */
#ifndef LEASEHOLD_CLI_BENCH_WORK_H
#define LEASEHOLD_CLI_BENCH_WORK_H

#include "measure.h"

enum { BENCH_MAX_BATCH = 1000 };

extern const char *const bench_queues[1], *const other_queues[1];

lh_store *crew_open(struct crew *crew, const struct bench *bench, bool relaxed);
lh_store *crew_open_as(struct crew *crew, const struct bench *bench, const lh_open_opts *opts);
void crew_need(struct crew *crew, lh_store *store, int rc);

/* Jobs to enqueue: the same `n` again and again. */
struct supply {
    size_t n;
    lh_new_job *jobs;
    lh_enqueued *out;
};
struct supply supply_new(const struct bench *bench, size_t n, const char *kind);
void supply(struct crew *crew, lh_store *store, const char *queue, struct supply *s, size_t n);
void supply_all(struct crew *crew, lh_store *store, struct supply *s, int64_t jobs);

lh_claim_opts claim_of(const char *const *queues, int64_t n);
size_t done_of(const lh_jobs *jobs, lh_done *done);
/** Complete what is held and claim the next. A complete that is refused is an error. */
int crew_complete_claim(struct crew *crew, lh_store *store, const lh_done *done, size_t held,
                        const lh_claim_opts *opts, lh_jobs **jobs);
/** The same, until nothing is left or `most` are done; how many
 *  there were. */
int64_t crew_drain(struct crew *crew, lh_store *store, int64_t batch, int64_t most);
/** Claim one job, complete it, and say how long the claim took. */
int64_t crew_claim_complete(struct crew *crew, lh_store *store, const lh_claim_opts *opts);

/** A store with what `bench` says, filled by a process of its own. False: told why. */
bool bench_filled(const struct bench *bench);
/** Runs `fn` in `bench->processes` processes on such a store; the sum of what they did. */
bool bench_together(const struct bench *bench, crew_fn *fn, int64_t seconds,
                    struct bench_result *result);
/** How many of the jobs are those of one of these processes. */
int64_t bench_share(const struct bench *bench, size_t me);
/** Runs `fn` in one process, on such a store. */
bool bench_alone(const struct bench *bench, crew_fn *fn, size_t n_samples,
                 struct bench_result *result);

/* Processes that take turns: a step says how far one has got. */
int64_t step_of(struct crew *crew, size_t who);
void step_to(struct crew *crew, size_t who, int64_t step);
void await_step(struct crew *crew, size_t who, int64_t step);

#endif
