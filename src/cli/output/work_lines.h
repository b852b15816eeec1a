/*
 * The running jobs of a worker on a terminal: a line each, kept below what is logged.
 */
#ifndef LEASEHOLD_CLI_WORK_LINES_H
#define LEASEHOLD_CLI_WORK_LINES_H

#include <leasehold.h>

struct work_lines;

/** NULL where standard error is no terminal; all of the below accept that. */
struct work_lines *work_lines_new(void);
void work_lines_free(struct work_lines *lines);

void work_lines_event(struct work_lines *lines, const lh_work_event *event);

/** Around a line of the log, from any thread. */
void work_lines_hide(struct work_lines *lines);
void work_lines_show(struct work_lines *lines);

#endif
