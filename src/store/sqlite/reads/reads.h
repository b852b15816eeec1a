/* Reads: jobs, reports, schedules, output, the parts of a move, and checks of the store. */
#ifndef LHI_SQLITE_READS_H
#define LHI_SQLITE_READS_H

#include "store/sqlite/db.h"

/* ---- reads of one kind; each fills the act ---- */
int sq_read_stale(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err);
int sq_read_outputs(struct conn *conn, struct lhi_act *act, struct lhi_error *err);
int sq_read_report(struct conn *conn, struct lhi_act *act, struct lhi_error *err);
int sq_read_reports(struct conn *conn, struct lhi_act *act, struct lhi_error *err);
int sq_read_schedules(struct conn *conn, struct lhi_act *act, struct lhi_error *err);
int sq_read_move_part(struct conn *conn, struct lhi_act *act, struct lhi_error *err);
int sq_read_moved(struct conn *conn, struct lhi_act *act, struct lhi_error *err);
int sq_read_totals(struct conn *conn, lh_store_info *info, struct lhi_error *err);
/* ---- status.c ---- */
int sq_read_stats(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err);
int sq_read_poll(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err);
int sq_read_retries(struct conn *conn, struct lhi_act *act, struct lhi_error *err);

/* ---- backup.c, move.c, read.c ---- */
int sq_backup_store(struct db *db, struct lhi_act *act, struct lhi_error *err);
/* Why only a move may write to this store; "": every act may. */
int sq_move_closed(const struct db *db, struct conn *conn, char *out, size_t len,
                   struct lhi_error *err);
/* Make room for one more element of an array of n. NULL: out of memory. */
void *sq_grow(void *array, size_t n, size_t size);

/* ---- check.c ---- */

int sq_check_store(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err);
/* SQLite's own check of the file: one finding "integrity" of level "error" for each defect. */
int sq_check_file(struct conn *conn, const lh_flag *cancel, lh_findings *out,
                  struct lhi_error *err);
/* A finding for each table that is not as the migrations make it, and if the store's own row is missing. */
int sq_check_tables(struct conn *conn, lh_findings *out, struct lhi_error *err);
/* False: out of memory. */
bool sq_finding_add(lh_findings *out, const char *level, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void sq_findings_clear(lh_findings *findings);

#endif
