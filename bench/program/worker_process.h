/*
 * `leasehold work` as users start it: the program beside this one, in a process of its own, on the queue
 * of the benchmark.
 */
#ifndef LEASEHOLD_BENCH_WORKER_PROCESS_H
#define LEASEHOLD_BENCH_WORKER_PROCESS_H

#include <sys/types.h>

#include "jobs.h"

enum { WORKER_MAX_WORDS = 24 };

/** Starts a worker with these arguments after the queue, NULL at the end. Returns its pid. The worker dies with
 *  this process. It ignores the user's config file and environment. */
pid_t worker_start(struct team *team, const struct bench *bench, const char *const *words);
/** Waits until the worker exits, which must be with code 0. Returns the CPU time of the worker and of its
 *  children. */
int64_t worker_wait_exit(struct team *team, pid_t pid);
/** Removes the config file that worker_start() left beside the store. */
void worker_remove_config(const struct bench *bench);
/** Fails the measurement if the worker is dead: else the caller would wait in vain. */
void worker_check_alive(struct team *team, pid_t pid);

#endif
