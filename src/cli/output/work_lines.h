/*
 * The running jobs of a worker on a terminal: one line each, below the log.
 */
#ifndef LEASEHOLD_CLI_WORK_LINES_H
#define LEASEHOLD_CLI_WORK_LINES_H

#include <leasehold.h>

struct work_lines;

/** NULL if standard error is no terminal. All functions below accept NULL. */
struct work_lines *work_lines_new(void);
void work_lines_free(struct work_lines *lines);

void work_lines_event(struct work_lines *lines, const lh_work_event *event);

/** Call these before and after writing a log line, from any thread. */
void work_lines_hide(struct work_lines *lines);
void work_lines_show(struct work_lines *lines);

#endif
