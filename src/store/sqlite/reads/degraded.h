/* Reading a store that cannot be written. */
#ifndef LHI_SQLITE_DEGRADED_H
#define LHI_SQLITE_DEGRADED_H

#include "store/sqlite/db.h"

/* ---- degraded.c ---- */

/* LH_EREADONLY if this process cannot write the store. Called before any file is created. */
int sq_check_writable(const struct db *db, struct lhi_error *err);
/* Opening conn for reading failed with err. If the store cannot be written, open it anyway, in place or from
 * a private copy; db->degraded says how. Otherwise the failure stands. */
int sq_degraded_open(struct db *db, struct conn *conn, struct lhi_error *err);
/* The open succeeded: note in db->degraded if the store cannot be written. */
void sq_degraded_note(struct db *db);
/* Has somebody written since the files were read? Then they must be opened again. */
bool sq_degraded_outdated(const struct db *db);

/* ---- private_copy.c ---- */

/* The files that hold the contents of a store. The index of the log is rebuilt from the log. */
enum part { PART_DATABASE, PART_LOG, PART_JOURNAL, PARTS };
extern const char *const sq_part_suffix[PARTS];

/* Open conn on a private copy of the parts with a size above 0. Closing conn removes the copy. */
int sq_private_copy_open(const struct db *db, struct conn *conn, const int64_t size[PARTS],
                         struct lhi_error *err);

enum { URI_MAX = 3 * 4096 + 32 };
/* The path as a URI that promises SQLite that nobody writes to the file. */
void sq_immutable_uri(const char *path, char out[URI_MAX]);

#endif
