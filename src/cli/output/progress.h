/*
 * A bar on a terminal while something long goes on; nothing at all anywhere else.
 */
#ifndef LEASEHOLD_CLI_PROGRESS_H
#define LEASEHOLD_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* is counted: "jobs" */
    bool on;          /* standard error is a terminal */
    bool drawn;       /* a bar stands there now */
    int64_t begun_ms, drawn_ms;
};

void progress_begin(struct progress *progress, const char *what);

/** `n` are done; `at` of `whole` says how far that is (whole 0: nobody knows, there is no bar). Drawn
 *  at most ten times a second. */
void progress_show(struct progress *progress, int64_t n, int64_t at, int64_t whole);

/** Wipes the bar, so that a line may be written; it comes back with the next progress_show(). */
void progress_wipe(struct progress *progress);

/** For the `progress` of a library call: its argument is the struct. */
void progress_call(void *arg, int64_t done, int64_t total);

#endif
