/* Helpers for tests of repair: a store with rows in every table, damage to its bytes, and a
 * comparison with every row from before. */
#ifndef STORE_DAMAGE_H
#define STORE_DAMAGE_H

#include "store/sqlite.h"

/* Make store.db with `jobs` jobs in all states, policies, leases, workers and events, and close it
 * cleanly. before.db is a copy of it. */
void full_store_build(int jobs);
/* The same, but the last `tail` enqueues are only in the log, because their process was killed. */
void full_store_build_crashed(int jobs, int tail);
/* Add tables of another program to the file, and checkpoint its log. */
void full_store_share(void);

/* The nth page of this kind ("leaf", "internal", "overflow") of a table or index; negative: counted
 * from the end. */
int64_t page_of(const char *tree, const char *kind, int n);
int pages_of(const char *tree, const char *kind); /* the number of such pages */
int64_t root_of(const char *tree);
void page_fill(int64_t page, int byte);
/* Replace the first `was` on this page (0: in the whole file) by `now`. */
void page_patch(int64_t page, const void *was, const void *now, size_t len);
/* Write `bytes` at this position of the page. */
void page_write(int64_t page, size_t at, const void *bytes, size_t len);
unsigned char *page_bytes(int64_t page); /* the page in before.db; free it with free() */
/* The ids of jobs on this leaf; returns their number. */
int jobs_on(int64_t page, int64_t *ids, int room);

/* Open the store as a long-running program does, which repairs it. A failure fails the test. */
lh_store *repair_open(void);
/* The report of that repair. */
lh_report *repair_report(lh_store *store);
/* the number of lines that contain `part` */
int report_count(const lh_report *report, const char *part);
void expect_said(const lh_report *report, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Every row of every table is unchanged, except for the jobs in `ids`, which are gone. The store is
 * sound, the damaged file is kept byte for byte, and no other file is left. */
void expect_same(lh_store *store, const int64_t *ids, int n);
/* The number of rows of a table that are missing or changed. */
int64_t rows_changed(const char *table, const char *where);
int64_t rows_gone(const char *table, const char *key);
/* The damaged file and its log are kept once, unchanged since note_damaged_file(), and no file of
 * the repair is left. */
void note_damaged_file(void);
void expect_kept(void);
/* no file of a repair exists, and store.db is unchanged since note_damaged_file() */
void expect_nothing_left(void);
int64_t epoch_of(lh_store *store);
void expect_as_made(void); /* store.db has the settings of a new file of ours */

#endif
