/* A bare client of the test's database, in its own time: psql without psql. */
#ifndef POSTGRES_SESSION_H
#define POSTGRES_SESSION_H

#include "harness/harness.h"

#include <libpq-fe.h>
#include <stdint.h>

#define START_MS INT64_C(1768473000000) /* 2026-01-15T10:30:00Z */

/* A session, or the test fails. */
PGconn *session_to(const char *url);
PGconn *session_at(int64_t now_ms);
void session_clock(PGconn *session, int64_t now_ms);

/* It must not be refused. */
void done(PGconn *session, const char *sql);

/* Start it; it has to wait for a lock. */
void begin_to_wait(PGconn *session, const char *sql);

/* The first row of the answer, its columns with a blank between; or the code and the words of what went
 * wrong. Until the next call. */
const char *said(PGconn *session, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
