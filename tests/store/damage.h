/*
 * What the tests of repair share: a store with some of everything in it, real damage to its bytes,
 * and a comparison row by row with what was there before.
 */
#ifndef STORE_RUIN_H
#define STORE_RUIN_H

#include "store/sqlite.h"

/* store.db with so many jobs in all states, policies, leases, workers and events, closed cleanly; and
 * before.db, a copy of it. */
void ruin_build(int jobs);
/* The same, but the last `tail` enqueues are in the log alone: whoever made them was killed. */
void ruin_build_crashed(int jobs, int tail);
/* Tables of somebody else's in the same file, and its log folded. */
void ruin_share(void);

/* The nth page of this kind ("leaf", "internal", "overflow") of a table or index; negative: from the
 * end. */
int64_t page_of(const char *tree, const char *kind, int n);
int pages_of(const char *tree, const char *kind); /* how many there are */
int64_t root_of(const char *tree);
void page_fill(int64_t page, int byte);
/* Write `now` over the first place where `was` stands on this page (0: in the whole file). */
void page_patch(int64_t page, const void *was, const void *now, size_t len);
/* Write `bytes` at this place of the page. */
void page_write(int64_t page, size_t at, const void *bytes, size_t len);
unsigned char *page_bytes(int64_t page); /* as it is in before.db; free() it */
/* Ids of lh_job on this leaf; returns how many. */
int jobs_on(int64_t page, int64_t *ids, int room);

/* Open it as a long-running program does, which repairs it; must succeed. */
lh_store *ruin_open(void);
/* The report of that. */
lh_report *ruin_report(lh_store *store);
int report_count(const lh_report *report, const char *part); /* how many lines have `part` */
void expect_said(const lh_report *report, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Every row of every table is as it was, but for jobs in `ids`, which are gone. The store is sound,
 * the damaged file is kept byte for byte, and nothing else was left behind. */
void expect_same(lh_store *store, const int64_t *ids, int n);
/* One table: how many rows that were there are not there as they were. */
int64_t rows_changed(const char *table, const char *where);
int64_t rows_gone(const char *table, const char *key);
/* The damaged file and its log are kept, once, as they were after the damage (which ruin_note() saw), and no
 * file of the repair's own is left. */
void ruin_note(void);
void expect_kept(void);
void expect_nothing_left(void); /* no file of a repair, and store.db as ruin_note() saw it */
int64_t epoch_of(lh_store *store);
void expect_as_made(void); /* store.db has the settings of a file that we make */

#endif
