/*
 * A world for a test: one fresh store, and a clock that only the test moves.
 *
 *     struct world w = world_with_job("mail", "hello");
 *     lh_job job;
 *     EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
 *     clock_advance_ms(&w, 1000);
 *     EXPECT_STATUS(beat(&w, &job), LH_ELOST);
 *     world_close(&w);
 *
 * The suite is written against leasehold.h and the clock of hook.h alone, and runs on every store.
 *
 * Returned jobs, events, leases and their strings live until world_close(), which also checks that the store
 * has no damage and that all its counts are right.
 */
#ifndef SPEC_WORLD_H
#define SPEC_WORLD_H

#include "base/hook.h"
#include "harness/harness.h"

#include <string.h>

/* 2026-01-15T10:30:00Z: where time stands when a world opens. */
#define WORLD_START_MS INT64_C(1768473000000)

struct kept;

struct world {
    lh_store *store;
    struct kept *kept; /* memory that is freed when the world closes */
};

struct world world_open(void);
struct world world_with_job(const char *queue, const char *payload);
void world_close(struct world *w);
/* Another handle on the same store; lh_close() it. */
lh_store *world_second_handle(void);
lh_store *world_handle(lh_open_opts opts);
/* test_fork(), with the handle of the world closed before it, and opened again in the parent. */
pid_t world_fork(struct world *w);
/* Every job obeys the invariants, every count is right, and lh_check() finds no error. */
void world_check(struct world *w);

void clock_advance_ms(struct world *w, int64_t ms);

/* ---- acts; those that return int return the outcome ---- */

/* enqueue(&w, "mail", "hello", .priority = 5): the id of the new job. */
#define enqueue(w_, queue_, ...) \
    enqueue_with((w_), (queue_), (lh_new_job){.payload = __VA_ARGS__}, __FILE__, __LINE__)
int64_t enqueue_with(struct world *w, const char *queue, lh_new_job job, const char *file,
                     int line);

struct claim_args {
    lh_job *out;
    const char *worker; /* NULL: "w1" */
    const char *kind;
    const char *request;
    int64_t lease_ms;
};

/* claim_one(&w, "mail", &job, .lease_ms = 1000) */
#define claim_one(w_, queue_, ...) \
    claim_one_with((w_), (queue_), (struct claim_args){.out = __VA_ARGS__})
int claim_one_with(struct world *w, const char *queue, struct claim_args args);
/* Up to n jobs; an empty list if there is none. */
lh_jobs *claim_many(struct world *w, const char *queue, size_t n);

int beat(struct world *w, const lh_job *job);
int complete(struct world *w, const lh_job *job);
int fail(struct world *w, const lh_job *job, const char *error);
int release(struct world *w, const lh_job *job);
int cancel(struct world *w, int64_t id);
int retry(struct world *w, int64_t id);

/* policy(&w, "mail", NULL, .set = LH_POLICY_LEASE, .lease_ms = 1000) */
#define policy(w_, queue_, kind_, ...) \
    lh_policy_set((w_)->store, (queue_), (kind_), &(lh_policy){__VA_ARGS__}, 0)

/* ---- looking ---- */

lh_job job_of(struct world *w, int64_t id);
bool job_exists(struct world *w, int64_t id);
lh_jobs *jobs_where(struct world *w, lh_job_filter filter);
lh_queue queue_of(struct world *w,
                  const char *queue); /* all fields are zero if the queue is unknown */
lh_worker worker_of(struct world *w, const char *id); /* fails if the worker is unknown */
lh_policy policy_of(struct world *w, const char *queue, const char *kind);
lh_events *events_of(struct world *w, int64_t job); /* 0: all */
/* "job.failed job.retried": the events of the job, or of all jobs, oldest first. */
const char *story_of(struct world *w, int64_t job);
/* The newest event of this type; fails if there is none. */
lh_event last_event(struct world *w, const char *type);

/* ---- memory that the world looks after ---- */

void *keep(struct world *w, void *thing, void (*free_it)(void *));
lh_jobs *keep_jobs(struct world *w, lh_jobs *jobs);
lh_lease keep_lease(struct world *w, lh_leases *leases); /* the first one */

#endif
