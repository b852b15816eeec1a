/*
 * Prints the state of a store in the text format of Prometheus. Names and labels are only ever
 * added.
 */
#ifndef LEASEHOLD_CLI_METRICS_H
#define LEASEHOLD_CLI_METRICS_H

#include <leasehold.h>

/** `last` is the report of the last recovery; NULL: there was none. */
void metrics_print(const lh_queues *queues, const lh_store_info *info, const lh_report *last);

#endif
