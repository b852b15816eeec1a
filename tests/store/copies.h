/* Helpers for tests of copies: make one, restore it, and look at the files in the folder. */
#ifndef STORE_COPIES_H
#define STORE_COPIES_H

#include "store/sqlite.h"

/* Copy the store. A failure fails the test. */
void backup(lh_store *store, const char *path, lh_backup_opts opts);
/* Restore the copy as store.db. A failure fails the test. The replaced store is kept as `kept`. */
void restore(const char *copy);
extern char kept[4300];
/* The backup or restore must fail; `part` is in the message. */
void expect_no_backup(lh_store *store, const char *path, lh_backup_opts opts, int status,
                      const char *part);
void expect_no_restore(const char *copy, int status, const char *part);

/* The number of files in this folder that have `part` in their names. */
int files_with(const char *folder, const char *part);
/* The pending jobs of the queue "q" in the store at `path`, which must be sound. */
int64_t jobs_in(const char *path);
lh_store_info info_of(lh_store *store);
lh_job job_of(lh_store *store, int64_t id); /* its strings are not valid */

/* Mount a small file system on the new folder, only for this test (see mounts.h). */
void own_disk(const char *folder);
/* Fill it with the file `filler`, except for `but` bytes. */
void own_disk_fill(const char *filler, int64_t but);

/* Claim one job. The test fails if there is none. */
lh_job claim(lh_store *store, const char *queue, const char *worker, int64_t lease_ms);
void expect_nothing(lh_store *store, const char *queue);
int complete(lh_store *store, const lh_job *job);

#endif
