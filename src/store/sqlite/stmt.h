/* Connections and their prepared statements. */
#ifndef LHI_SQLITE_STMT_H
#define LHI_SQLITE_STMT_H

#include "sql_sqlite.h"
#include "store/store.h"

#include <sqlite3.h>

/* One connection with its prepared statements. */
struct conn {
    sqlite3 *db;
    sqlite3_stmt *stmt[LHI_SQL_COUNT];
};

/* The statement, reset, with its parameters bound in the order in which they first appear. NULL: it failed,
 * and err is set. The letters of fmt:
 *   i  int64                        I  int64, where 0 means NULL
 *   o  pointer to int64             t  text
 *   b  pointer and length: text if it is valid UTF-8 without a NUL, else a blob
 *   B  pointer and length: a blob   n  NULL, without an argument
 * A NULL pointer is bound as NULL. */
sqlite3_stmt *sq_stmt(struct conn *conn, enum lhi_sql which, struct lhi_error *err, const char *fmt,
                      ...);
/* Take one step. LH_OK: a row. LH_EMPTY: the statement has ended. Otherwise it failed, and err is set. */
int sq_step(struct conn *conn, sqlite3_stmt *stmt, struct lhi_error *err);
/* Run a statement to its end. The number of changed rows, or a negative status. */
int sq_run(struct conn *conn, enum lhi_sql which, struct lhi_error *err, const char *fmt, ...);
/* Read the first column of the first row; `fallback` if there is no row or the value is NULL. */
int sq_int(struct conn *conn, enum lhi_sql which, struct lhi_error *err, int64_t fallback,
           int64_t *out, const char *fmt, ...);
int sq_exec(struct conn *conn, const char *text, struct lhi_error *err);
/* Turn SQLite's last error into a status and a message of ours. */
int sq_fail(struct conn *conn, int code, struct lhi_error *err);
int sq_check_json(struct conn *conn, const char *text, const char *what, struct lhi_error *err);
void sq_reset(sqlite3_stmt *stmt);
void sq_conn_close(struct conn *conn);

#endif
