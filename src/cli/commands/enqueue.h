/*
 * The two ways of `leasehold enqueue` share these.
 */
#ifndef LEASEHOLD_CLI_ENQUEUE_H
#define LEASEHOLD_CLI_ENQUEUE_H

#include "cli/cli.h"

void enqueue_print(const lh_enqueued *enqueued, bool json);

/** JSON lines on standard input. `defaults` holds for the lines that do not say otherwise. */
int enqueue_bulk(struct cli *cli, const char *queue, const lh_new_job *defaults,
                 const char *request);

#endif
