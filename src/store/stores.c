/* Which stores there are, and which of them a name means. */
#include "store/store.h"

#include <string.h>

static const char *sqlite_path(const char *url)
{
    static const char scheme[] = "sqlite:";
    return strncmp(url, scheme, sizeof scheme - 1) == 0 ? url + sizeof scheme - 1 : url;
}

static bool is_postgres(const char *url)
{
    static const char *const starts[] = {
        "postgres://", "postgresql://", "host=",    "hostaddr=", "port=",
        "dbname=",     "user=",         "service=", "password=", "application_name=",
    };
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        if (strncmp(url, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

#ifndef LHI_WITH_POSTGRES
static int refuse_postgres(struct lhi_error *err)
{
    /* The name stays unsaid: a password may be in it. */
    return lhi_fail(err, LH_EINVAL, "store is on PostgreSQL, which this build does not support");
}

int lhi_postgres_open(const char *url, const lh_open_opts *opts, const struct lhi_log *log,
                      struct lhi_store *out, struct lhi_health *health, struct lhi_error *err)
{
    (void)url, (void)opts, (void)log, (void)out, (void)health;
    return refuse_postgres(err);
}

int lhi_postgres_schema_of(const char *url, int *version, struct lhi_error *err)
{
    (void)url, (void)version;
    return refuse_postgres(err);
}
#endif

int lhi_store_open(const char *url, const lh_open_opts *opts, const struct lhi_log *log,
                   struct lhi_store *out, struct lhi_health *health, struct lhi_error *err)
{
    if (is_postgres(url))
        return lhi_postgres_open(url, opts, log, out, health, err);
    return lhi_sqlite_open(sqlite_path(url), opts, log, out, health, err);
}

int lhi_store_restore(const char *url, const char *from, const lh_open_opts *opts,
                      const struct lhi_log *log, char *kept, size_t keptlen, struct lhi_error *err)
{
    if (is_postgres(url))
        return lhi_fail(err, LH_EINVAL,
                        "store is on PostgreSQL: pg_restore puts back what pg_dump has saved");
    return lhi_sqlite_restore(sqlite_path(url), from, opts, log, kept, keptlen, err);
}

int lhi_schema_of(const char *url, int *version, struct lhi_error *err)
{
    if (is_postgres(url))
        return lhi_postgres_schema_of(url, version, err);
    return lhi_sqlite_schema_of(sqlite_path(url), version, err);
}

const char *lhi_engine_version(void)
{
    return lhi_sqlite_version();
}

int lhi_schema_version(void)
{
    return lhi_sqlite_schema_version();
}
