/* A plain SQL client of the test's database, with a clock of its own. */
#ifndef POSTGRES_SESSION_H
#define POSTGRES_SESSION_H

#include "harness/harness.h"

#include <libpq-fe.h>
#include <stdint.h>

#define START_MS INT64_C(1768473000000) /* 2026-01-15T10:30:00Z */

/* Open a session, or fail the test. */
PGconn *session_to(const char *url);
PGconn *session_at(int64_t now_ms);
void session_clock(PGconn *session, int64_t now_ms);

/* The statement must succeed. */
void done(PGconn *session, const char *sql);

/* Send a statement that has to wait for a lock. */
void begin_to_wait(PGconn *session, const char *sql);

/* The first row of the result, columns separated by a blank; or the SQLSTATE and message of the
 * error. Valid until the next call. */
const char *said(PGconn *session, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
