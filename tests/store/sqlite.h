/* Helpers for tests of the SQLite store: a foreign connection to the store's file, files, and
 * stores. A helper that cannot do its work fails the test. */
#ifndef STORE_SQLITE_H
#define STORE_SQLITE_H

#include "base/hook.h"
#include "harness/harness.h"

#include <sqlite3.h>
#include <string.h>

/* Stop time at the current moment, so that SQLite's own clock agrees with the store's. */
void freeze_now(void);
/* Advance the wall clock and elapsed time. A step changes the wall clock only, a suspend does
 * too. */
void pass_ms(int64_t ms);
void step_wall_ms(int64_t ms);
/* The machine has booted: it has another boot id, and its monotonic clock starts again. */
void boot_again(const char *boot);

lh_store *store_open(const char *path, lh_open_opts opts); /* a failure fails the test */
/* opens store.db, and creates it if it is missing */
lh_store *store_new(void);
/* Opening must fail with this status; `part` is in the message. */
void expect_open(const char *path, lh_open_opts opts, int status, const char *part);
/* lh_check() must have no findings. */
void store_check(lh_store *store);

int64_t add(lh_store *store, const char *queue, const char *payload);
/* Claim one job. The caller frees the list; NULL: there is none. */
lh_jobs *take(lh_store *store, const char *queue, const char *worker, int64_t lease_ms);
lh_state state_of(lh_store *store, int64_t id);
lh_queue counts_of(lh_store *store, const char *queue); /* its strings are not valid */

sqlite3 *db_open(const char *path);
/* The same without triggers and constraints, to change bytes as a disk does. */
sqlite3 *db_open_to_damage(const char *path);
void db_exec(sqlite3 *db, const char *sql);
int db_try(sqlite3 *db, const char *sql); /* SQLite's result code, without extended bits */
int64_t db_int(sqlite3 *db, const char *sql);

void copy_file(const char *from, const char *to);
bool file_exists(const char *path);
int64_t file_size(const char *path);
/* Read a whole file; free it with free(). */
unsigned char *file_bytes(const char *path, size_t *len);
void file_write(const char *path, const void *bytes, size_t len);

#endif
