/*
 * What enqueue.c and bulk.c share: the two ways of `leasehold enqueue`.
 */
#ifndef LEASEHOLD_CLI_ENQUEUE_H
#define LEASEHOLD_CLI_ENQUEUE_H

#include "cli/cli.h"

void enqueue_print(const lh_enqueued *enqueued, bool json);

/** Enqueues the JSON lines on standard input. `defaults` has the values for keys that a line leaves
 *  out. */
int enqueue_bulk(struct cli *cli, const char *queue, const lh_new_job *defaults,
                 const char *request);

#endif
