/* Do the names of the store still belong to the files that were opened, and is the database the store that
 * the coordination file names? */
#ifndef LHI_SQLITE_FILES_H
#define LHI_SQLITE_FILES_H

#include "store/sqlite/db.h"

/* ---- names.c ---- */

/* Was the database, its log or the index of the log removed or replaced? */
bool sq_db_moved(const struct db *db);
/* The same before a commit, under the writer lock; also true if a replacement of the file has begun. Logs a
 * warning if the database has got a second name. */
bool sq_db_files_changed(struct db *db);
/* Stop the handle because sq_db_moved(). */
int sq_db_stop_moved(struct db *db, struct lhi_error *err);
/* The log was removed, or the database was renamed without it, and no other log exists. Move the contents of
 * the open log into the database. Under the writer lock. True: nothing is missing. */
bool sq_db_save_log(struct db *db);
int sq_refuse_file_mount(const struct db *db, struct lhi_error *err);
int sq_refuse_second_name(struct db *db, struct lhi_error *err); /* under the writer lock */
/* Describe what is wrong with the names, for a handle that only reads. */
int sq_names_problem(const struct db *db, char *out, size_t len);

/* ---- zeroed_header.c ---- */

/* Is this one of our stores with a zeroed header? SQLite does not recognize such a file. */
bool sq_header_is_zeroed(const struct db *db);

/* ---- other_names.c ---- */

/* Refuse if a process that may write the database has it open under another name. */
int sq_refuse_other_names(const struct db *db, struct lhi_error *err);
/* Is the index of the log with this name in use? Also true if that cannot be found out. */
bool sq_index_in_use(char *shm);

/* ---- last_path.c, under the writer lock ---- */

/* Check the path under which the store was last open. LH_ESTOPPED: it is still in use there. LH_EOLDER: its
 * log was left there. Otherwise the marks are copied from the coordination file there. */
int sq_last_path_check(struct db *db, const char *uuid, int64_t changes, struct lhi_error *err);
int sq_last_path_set(struct db *db, struct lhi_error *err);

/* ---- identity.c; under the writer lock, except for sq_read_age() and sq_inode_of() ---- */

uint64_t sq_inode_of(const struct db *db, const char *suffix,
                     char path[4200]); /* 0: no such file */
struct age {
    char uuid[40];
    int64_t changes;  /* our transactions in the snapshot; -1: the store's own row is missing */
    uint64_t missing; /* acknowledged transactions that are not in it */
};
/* This must be the first read of its snapshot; identity.c says why. */
int sq_read_age(struct db *db, struct conn *conn, struct age *age, struct lhi_error *err);
int sq_recognize_file(struct db *db, bool created, struct lhi_error *err);
/* Does the coordination file name this file as a store, whatever it contains now? */
bool sq_coord_knows_file(struct db *db);
int sq_refuse_emptied(const struct db *db, struct lhi_error *err);
int sq_refuse_foreign_log(struct db *db, struct lhi_error *err);
int sq_compare_marks(struct db *db, struct lhi_error *err);
int sq_resolve_failed_sync(struct db *db, struct lhi_error *err);
int sq_other_boot(struct db *db, bool *other, struct lhi_error *err);
int sq_notice_boot(struct db *db, struct lhi_error *err);

#endif
