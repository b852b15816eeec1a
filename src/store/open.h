/*
 * open.h: what each store provides besides its operations: opening it by name, restoring a backup, the
 * versions of its schema.
 */
#ifndef LHI_STORE_OPEN_H
#define LHI_STORE_OPEN_H

#include "store/store.h"

int lhi_sqlite_open(const char *path, const lh_open_opts *opts, const struct lhi_log *log,
                    struct lhi_store *out, struct lhi_health *health, struct lhi_error *err);
int lhi_sqlite_restore(const char *path, const char *from, const lh_open_opts *opts,
                       const struct lhi_log *log, char *kept, size_t keptlen,
                       struct lhi_error *err);
const char *lhi_sqlite_version(void);
int lhi_sqlite_schema_version(void);
int lhi_sqlite_schema_of(const char *path, int *version, struct lhi_error *err);
int lhi_postgres_open(const char *url, const lh_open_opts *opts, const struct lhi_log *log,
                      struct lhi_store *out, struct lhi_health *health, struct lhi_error *err);
int lhi_postgres_schema_version(void);
int lhi_postgres_schema_of(const char *url, int *version, struct lhi_error *err);

#endif
