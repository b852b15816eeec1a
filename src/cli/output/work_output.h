/*
 * What the commands of a worker write, printed line by line with the job in front.
 *
 * A blocked write would make the worker miss its deadlines. So a line that cannot be written at
 * once is dropped, and the number of dropped lines is reported.
 */
#ifndef LEASEHOLD_CLI_WORK_OUTPUT_H
#define LEASEHOLD_CLI_WORK_OUTPUT_H

#include <leasehold.h>

#include "cli/cli.h"

struct work_output;

struct work_output *work_output_new(struct cli *cli);
/** A command has written something, or a job has ended: then its incomplete last line is
 *  printed. */
void work_output_event(struct work_output *output,
                       const lh_work_event *event); /* NULL: output is not printed */
void work_output_free(struct work_output *output);

#endif
