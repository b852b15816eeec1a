/* Processes that crash and leave a store behind, and what the next open logs and reports. A helper
 * that cannot do its work fails the test. */
#ifndef STORE_CRASHED_H
#define STORE_CRASHED_H

#include "store/sqlite.h"

#define FRAME_BYTES INT64_C(4120) /* a page of the log with its frame header */

/* The lines that were logged since the handle was opened. */
struct lines {
    char text[16384];
};

lh_store *open_logged(struct lines *lines, lh_open_opts opts);

lh_report *last_report(lh_store *store); /* free it with lh_report_free() */
size_t reports(lh_store *store);         /* the number of reports */
/* Does one of the inconsistencies contain `part`? */
bool tells_of(const lh_report *report, const char *part);

/* Another process opens the store, runs `doing`, and is killed. */
void crash(void (*doing)(lh_store *store));
/* For `doing`: hold job 1 for a second; enqueue five jobs. */
void hold_a_job(lh_store *store);
void write_a_little(lh_store *store);

#endif
