/*
 * What the commands of a worker write, printed line by line with the job in front.
 *
 * A worker keeps its deadlines, so nothing here waits for a reader: a line that cannot be written is left
 * out, and how many were is told.
 */
#ifndef LEASEHOLD_CLI_WORK_OUTPUT_H
#define LEASEHOLD_CLI_WORK_OUTPUT_H

#include <leasehold.h>

#include "cli/cli.h"

struct work_output;

struct work_output *work_output_new(struct cli *cli);
/** Something was written, or a job has ended: then the rest of its last line is printed. */
void work_output_event(struct work_output *output,
                       const lh_work_event *event); /* NULL: not wanted */
void work_output_free(struct work_output *output);

#endif
