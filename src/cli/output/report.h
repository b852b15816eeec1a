/*
 * A recovery report, as people and programs read it. Text and keys are pinned: lines and keys are
 * only ever added.
 */
#ifndef LEASEHOLD_CLI_REPORT_H
#define LEASEHOLD_CLI_REPORT_H

#include "cli/cli.h"

/** Prints a report with all its lists: the text, or one line of JSON. */
void report_print(const struct cli *cli, const lh_report *report);

/** The report as a JSON object; without `lists` only what lh_report_list() fills. */
void js_report(struct js *json, const lh_report *report, bool lists);

/** "PASSED", "REPAIRED", "FAILED", "SKIPPED". */
const char *report_integrity(const lh_report *report);

/** One line: when, why, what was found. */
void report_line(const lh_report *report, int64_t now, struct buf *out);

/** "1.2s", "2m5s": how long a recovery took. Returns `buf`. */
char *report_duration(int64_t ms, char *buf, size_t len);

#endif
