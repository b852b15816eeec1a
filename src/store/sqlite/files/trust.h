/* trust.h: files beside a database that another user may have put there. See trust.c. */
#ifndef LHI_SQLITE_TRUST_H
#define LHI_SQLITE_TRUST_H

#include "base/error.h"
#include "base/log.h"

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

/* LH_EINVAL, in words: the file `path`, of which `st` is the state, is not one that only those can
 * have made and can write who can write the database. `database` is NULL while there is none. */
int sq_trust_file(const char *path, const struct stat *st, const struct stat *database,
                  struct lhi_error *err);

/* The same for what SQLite finds beside `database` when it opens it: log, index, journal. Where others
 * may make files in the folder, a name that is free is taken first, by an empty file of ours. To read,
 * they may have as many names as the database: see sq_trust_links(). */
int sq_trust_names(const char *database, bool to_write, struct lhi_error *err);

/* The files beside `database`, of which `st` is the state, may be read though they have two names. */
bool sq_trust_links(const char *database, const struct stat *st);

/* Remove the empty files that took those names, when `database` is renamed or gone. */
void sq_trust_forget(const char *database);

/* Log a warning if another user may have made the database in a folder like /tmp. Its name was chosen by
 * our caller, so it is used. */
void sq_trust_warn_of_owner(const char *database, const struct lhi_log *log);

/* False: everybody may rename and remove files in the folder, the database too. */
bool sq_trust_folder(const char *database);

/* The mode of a file that all may use who may write the database, and nobody else may even lock. */
mode_t sq_trust_writers(const struct stat *database);

#endif
