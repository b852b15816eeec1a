/*
 * What the tests of the SQLite store share: a foreign connection on the store's file, files, and a
 * store of their own. Whatever of this cannot be done fails the test.
 */
#ifndef STORE_SQLITE_H
#define STORE_SQLITE_H

#include "base/hook.h"
#include "harness/harness.h"

#include <sqlite3.h>
#include <string.h>

/* Time stands still at this very moment, so that SQLite's own clock agrees with the store's. */
void freeze_now(void);
/* Move the wall clock and elapsed time; a step moves the first alone, a suspend too. */
void pass_ms(int64_t ms);
void step_wall_ms(int64_t ms);
/* The machine was booted anew: another boot id, and its monotonic clock starts over. */
void boot_anew(const char *boot);

lh_store *store_open(const char *path, lh_open_opts opts); /* must succeed */
lh_store *store_new(void);                                 /* store.db, made if it is missing */
/* Opening must fail like this; `part` is in the message. */
void expect_open(const char *path, lh_open_opts opts, int status, const char *part);
/* lh_check() has nothing to object. */
void store_check(lh_store *store);

int64_t add(lh_store *store, const char *queue, const char *payload);
/* Claim one job; the caller frees the list, NULL if there is none. */
lh_jobs *take(lh_store *store, const char *queue, const char *worker, int64_t lease_ms);
lh_state state_of(lh_store *store, int64_t id);
lh_queue counts_of(lh_store *store, const char *queue); /* its strings are not to be read */

sqlite3 *db_open(const char *path);
/* The same past all triggers and constraints: as bytes change on a disk. */
sqlite3 *db_open_to_damage(const char *path);
void db_exec(sqlite3 *db, const char *sql);
int db_try(sqlite3 *db, const char *sql); /* the engine's own outcome, without extended bits */
int64_t db_int(sqlite3 *db, const char *sql);

void copy_file(const char *from, const char *to);
bool file_exists(const char *path);
int64_t file_size(const char *path);
/* Read a whole file; free() it. */
unsigned char *file_bytes(const char *path, size_t *len);
void file_write(const char *path, const void *bytes, size_t len);

#endif
