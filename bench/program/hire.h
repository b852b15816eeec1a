/*
 * `leasehold work` as users start it: this program, in a process of its own, on the bench's queue.
 */
#ifndef LEASEHOLD_CLI_BENCH_HIRE_H
#define LEASEHOLD_CLI_BENCH_HIRE_H

#include <sys/types.h>

#include "work.h"

enum { HIRE_MAX_WORDS = 24 };

/** Starts it with these words after the queue, NULL at the end; its pid. It dies with this process.
 *  No config file and no variable of the user's has a say in it. */
pid_t hire(struct crew *crew, const struct bench *bench, const char *const *words);
/** Waits for its end, which must be a good one; the CPU time of it and of all it started. */
int64_t hire_end(struct crew *crew, pid_t pid);
/** Removes what hire() left beside the store. */
void hire_clear(const struct bench *bench);
/** It must be alive: one that cannot work would be waited for in vain. */
void hire_check(struct crew *crew, pid_t pid);

#endif
