/*
 * A progress bar on a terminal. If standard error is no terminal, nothing is printed.
 */
#ifndef LEASEHOLD_CLI_PROGRESS_H
#define LEASEHOLD_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* the counted things: "jobs" */
    bool on;          /* standard error is a terminal */
    bool drawn;       /* the bar is visible now */
    int64_t begun_ms, drawn_ms;
};

void progress_begin(struct progress *progress, const char *what);

/** Shows that `n` are done. `at` of `whole` is the progress; if `whole` is 0, the total is unknown
 *  and there is no bar. The bar is redrawn at most ten times a second. */
void progress_show(struct progress *progress, int64_t n, int64_t at, int64_t whole);

/** Erases the bar before other output is written. The next progress_show() draws it again. */
void progress_wipe(struct progress *progress);

/** A progress callback for library calls; `arg` is the struct progress. */
void progress_call(void *arg, int64_t done, int64_t total);

#endif
