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
    static const char *const starts[] = {"postgres://", "postgresql://",
                                         "host=", "dbname=", "service="};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        if (strncmp(url, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

static int refuse_postgres(const char *url, struct lhi_error *err)
{
    return lhi_fail(err, LH_EINVAL,
                    "store \"%.200s\" is on PostgreSQL, which this build does not support", url);
}

int lhi_store_open(const char *url, const lh_open_opts *opts, const struct lhi_log *log,
                   struct lhi_store *out, struct lhi_health *health, struct lhi_error *err)
{
    if (is_postgres(url))
        return refuse_postgres(url, err);
    return lhi_sqlite_open(sqlite_path(url), opts, log, out, health, err);
}

int lhi_store_restore(const char *url, const char *from, const lh_open_opts *opts,
                      const struct lhi_log *log, char *kept, size_t keptlen, struct lhi_error *err)
{
    if (is_postgres(url))
        return refuse_postgres(url, err);
    return lhi_sqlite_restore(sqlite_path(url), from, opts, log, kept, keptlen, err);
}

int lhi_schema_of(const char *url, int *version, struct lhi_error *err)
{
    if (is_postgres(url))
        return refuse_postgres(url, err);
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
