/* degraded.h: what degraded.c and private_copy.c share. */
#ifndef LHI_SQLITE_DEGRADED_H
#define LHI_SQLITE_DEGRADED_H

#include "store/sqlite/db.h"

/* The files that make up the contents of a store; the index of the log is made anew from it. */
enum part { PART_DATABASE, PART_LOG, PART_JOURNAL, PARTS };
extern const char *const sq_part_suffix[PARTS]; /* what they are called, behind the path */

/* Open conn on a private copy of the parts that have a size; it is gone with the connection. */
int sq_private_copy_open(const struct db *db, struct conn *conn, const int64_t size[PARTS],
                         struct lhi_error *err);

enum { URI_MAX = 3 * 4096 + 32 };
/* A path as SQLite reads it in a URI, promising that nobody writes to the file. */
void sq_immutable_uri(const char *path, char out[URI_MAX]);

#endif
