/* What the tests of copies share: making one, putting it back, and looking at what lies around. */
#ifndef STORE_COPIES_H
#define STORE_COPIES_H

#include "store/sqlite.h"

/* Copy the store; must succeed. */
void backup(lh_store *store, const char *path, lh_backup_opts opts);
/* Put the copy in place of store.db; must succeed. What was there is kept as `kept`. */
void restore(const char *copy);
extern char kept[4300];
/* Neither must succeed; `part` is in the message. */
void expect_no_backup(lh_store *store, const char *path, lh_backup_opts opts, int status,
                      const char *part);
void expect_no_restore(const char *copy, int status, const char *part);

/* How many files of this folder have `part` in their names. */
int files_with(const char *folder, const char *part);
/* Pending jobs of the queue "q" in the store at `path`, which must be sound. */
int64_t jobs_in(const char *path);
lh_store_info info_of(lh_store *store);
lh_job job_of(lh_store *store, int64_t id); /* its strings are not to be read */

/* A small file system of the test's own, mounted on the new folder (see mounts.h). */
void own_disk(const char *folder);
/* Fill it with the file `filler`, but for so many bytes. */
void own_disk_fill(const char *filler, int64_t but);

/* Claim one job; there must be one. */
lh_job claim(lh_store *store, const char *queue, const char *worker, int64_t lease_ms);
void expect_nothing(lh_store *store, const char *queue);
int complete(lh_store *store, const lh_job *job);

#endif
