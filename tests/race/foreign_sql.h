/*
 * A client of the database without the library: only a driver and SQL, on both stores.
 *
 * Tables have their names of SQLite (lh_job); on PostgreSQL lh_job becomes leasehold.job. Every error fails the
 * test.
 */
#ifndef RACE_STRANGER_H
#define RACE_STRANGER_H

#include "harness/harness.h"

struct stranger;

struct stranger *stranger_open(void);
void stranger_close(struct stranger *stranger);

/* A transaction of its own, with a busy timeout as other programs have it. */
void stranger_begin(struct stranger *stranger);
void stranger_commit(struct stranger *stranger);

/* Run one statement: how many rows it changed. */
int64_t stranger_run(struct stranger *stranger, const char *sql);
/* The same on a new connection. */
int64_t run_as_stranger(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The statement must fail; `why` is in the message. */
void stranger_is_refused(const char *sql, const char *why);
/* Run one past all triggers, and past all constraints where the engine allows it: as bytes change on
 * a disk. */
int64_t damage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
