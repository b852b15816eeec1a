/* Checksums over the rows of the small tables: policies, schedules, leases, requests, lh_meta. */
#ifndef LHI_SQLITE_ROW_SUM_H
#define LHI_SQLITE_ROW_SUM_H

#include "store/sqlite/txn.h"

enum { SUMMED_TABLES = 5 };
struct summed_table {
    const char *table;
    const char *what;
    enum lhi_sql rows; /* SELECT *; row_sum is the last column */
    int names;         /* the number of columns that name a row */
};
extern const struct summed_table sq_summed_tables[SUMMED_TABLES];
int sq_row_sum_register(struct conn *conn, struct lhi_error *err); /* adds lh_sum() to conn */
bool sq_row_sum_matches(sqlite3_stmt *stmt);                       /* a row of SELECT * */
/* Call fn for every row whose checksum does not match, until fn fails. */
typedef int unsound_fn(void *arg, const struct summed_table *table, sqlite3_stmt *row,
                       const char *name, struct lhi_error *err);
int sq_each_unsound(struct conn *conn, unsound_fn *fn, void *arg, struct lhi_error *err);
int sq_damaged_row(const char *what, const char *name, struct lhi_error *err); /* LH_ECORRUPT */

/* Refuse a damaged row of a request: its answer could be the jobs of another request. */
int sq_check_request(struct txn *txn, const char *request, struct lhi_error *err);
/* Refuse if the request id belongs to another kind of act. */
int sq_check_same_act(sqlite3_stmt *stmt, const char *act, const char *request,
                      struct lhi_error *err);

#endif
