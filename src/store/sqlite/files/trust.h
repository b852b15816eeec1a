/* Files beside a database that another user may have put there. trust.c explains the rules. */
#ifndef LHI_SQLITE_TRUST_H
#define LHI_SQLITE_TRUST_H

#include "base/error.h"
#include "base/log.h"

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

/* LH_EINVAL with a message: the file `path` with the state `st` could have been made or written by
 * a user who cannot write the database. `database` is NULL if there is no database yet. */
int sq_trust_file(const char *path, const struct stat *st, const struct stat *database,
                  struct lhi_error *err);

/* The same for the files that SQLite opens beside `database`: log, index, journal. If other users
 * may create files in the folder, an empty file of ours takes each free name first. A handle that
 * reads accepts files with as many names as the database has: see sq_trust_links(). */
int sq_trust_names(const char *database, bool to_write, struct lhi_error *err);

/* May the files beside `database`, whose state is `st`, be read although they have two names? */
bool sq_trust_links(const char *database, const struct stat *st);

/* Remove the empty files that took those names, when `database` was renamed or removed. */
void sq_trust_forget(const char *database);

/* Log a warning if another user may have made the database, in a folder like /tmp. It is used
 * anyway, because the caller chose its name. */
void sq_trust_warn_of_owner(const char *database, const struct lhi_log *log);

/* False: every user may rename and remove files in the folder, also the database. */
bool sq_trust_folder(const char *database);

/* The mode for a file that exactly the users who may write the database may use. Other users may
 * not even lock it. */
mode_t sq_trust_writers(const struct stat *database);

#endif
