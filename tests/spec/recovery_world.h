/*
 * Recoveries and their reports, for the tests of recovery. Every error fails the test; returned memory lives until
 * world_close().
 */
#ifndef SPEC_HEALING_H
#define SPEC_HEALING_H

#include "world.h"

/* Recover as an operator; opts NULL: all defaults. */
const lh_report *recover_by(struct world *w, const lh_recover_opts *opts);
const lh_report *report_of(struct world *w, int64_t id); /* 0: the last */
/* How many reports are kept. */
size_t reports(struct world *w);
lh_maintained upkeep(struct world *w);

/* enlist(&w, "w-1", .process = true, .interval_ms = 1000): a worker with this exact id. */
#define enlist(w_, ...) enlist_with((w_), (lh_worker_opts){.id = __VA_ARGS__})
void enlist_with(struct world *w, lh_worker_opts opts);
/* After this silence its jobs are reclaimable. */
#define SILENCE_MS 3000
void enlist_process(struct world *w, const char *id);

/* A new job, claimed by `worker`. */
lh_job held(struct world *w, const char *queue, const char *worker, int64_t lease_ms);
/* The entry of a job, or of a worker, in the report; NULL: there is none. */
const lh_recovered_job *told_of(const lh_report *report, int64_t job);
const lh_dead_worker *dead_in(const lh_report *report, const char *worker);

/* Nothing was written since changes() returned `before`. */
int64_t changes(struct world *w);

#endif
