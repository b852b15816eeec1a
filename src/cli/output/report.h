/*
 * Recovery reports, as text and as JSON. The text and the keys are a promise to users: lines and
 * keys are only ever added.
 */
#ifndef LEASEHOLD_CLI_REPORT_H
#define LEASEHOLD_CLI_REPORT_H

#include "cli/cli.h"

/** Prints a report with its lists, as text or as one line of JSON. */
void report_print(const struct cli *cli, const lh_report *report);

/** Writes the report as a JSON object; without `lists`, only the fields that lh_report_list()
 *  fills. */
void js_report(struct js *json, const lh_report *report, bool lists);

/** The result of the integrity check: "PASSED", "REPAIRED", "FAILED" or "SKIPPED". */
const char *report_integrity(const lh_report *report);

/** Appends one line about the report: time, trigger and counts. */
void report_line(const lh_report *report, int64_t now, struct buf *out);

/** Formats the duration of a recovery, as in "1.2s" or "2m5s". Returns `buf`. */
char *report_duration(int64_t ms, char *buf, size_t len);

#endif
