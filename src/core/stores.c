/* stores.c: which stores there are, and which of them an address means. */
#include "core/core.h"

#include "store/open.h"

#include <string.h>

static const char *sqlite_path(const char *url)
{
    static const char scheme[] = "sqlite:";
    return strncmp(url, scheme, sizeof scheme - 1) == 0 ? url + sizeof scheme - 1 : url;
}

#define BLANKS " \t\n\v\f\r"

/* Is it a keyword of libpq's connection strings? A build without libpq must know them, too. */
static bool is_keyword(const char *word, size_t len)
{
    static const char *const keywords[] = {
        "application_name",
        "channel_binding",
        "client_encoding",
        "connect_timeout",
        "dbname",
        "fallback_application_name",
        "gssdelegation",
        "gssencmode",
        "gsslib",
        "host",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "krbsrvname",
        "load_balance_hosts",
        "max_protocol_version",
        "min_protocol_version",
        "oauth_client_id",
        "oauth_client_secret",
        "oauth_issuer",
        "oauth_scope",
        "options",
        "passfile",
        "password",
        "port",
        "replication",
        "require_auth",
        "requirepeer",
        "scram_client_key",
        "scram_server_key",
        "service",
        "servicefile",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcertmode",
        "sslcompression",
        "sslcrl",
        "sslcrldir",
        "sslkey",
        "sslkeylogfile",
        "sslmode",
        "sslnegotiation",
        "sslpassword",
        "sslrootcert",
        "sslsni",
        "target_session_attrs",
        "tcp_user_timeout",
        "user",
    };
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++)
        if (strlen(keywords[i]) == len && strncmp(keywords[i], word, len) == 0)
            return true;
    return false;
}

/* The length of the word before an equals sign; 0: there is none. */
static size_t key_length(const char *text)
{
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
    return text[len + strspn(text + len, BLANKS)] == '=' ? len : 0;
}

/* Is it KEY=VALUE … with at least one keyword of libpq? Then libpq refuses a mistyped keyword; otherwise a file
 * would be created whose name contains the password. */
static bool is_conninfo(const char *text)
{
    if (key_length(text) == 0)
        return false;
    for (; *text != '\0'; text += strspn(text, BLANKS)) {
        if (is_keyword(text, key_length(text)))
            return true;
        text += strcspn(text, BLANKS);
    }
    return false;
}

static bool is_postgres(const char *url)
{
    static const char *const schemes[] = {"postgres://", "postgresql://"};

    url += strspn(url, BLANKS);
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        if (strncmp(url, schemes[i], strlen(schemes[i])) == 0)
            return true;
    return is_conninfo(url);
}

/* Refuse NAME:// of an unknown kind, which is not meant as a file. The message does not repeat the address,
 * because it may contain a password. */
static int refuse_unknown(const char *url, struct lhi_error *err)
{
    int len = (int)strspn(url, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");

    if (is_postgres(url) || sqlite_path(url) != url || len == 0 || len > 32 ||
        strncmp(url + len, "://", 3) != 0)
        return LH_OK;
    return lhi_fail(err, LH_EINVAL,
                    "there is no store for %.*s:// addresses: allowed: a path, sqlite:PATH, "
                    "postgresql://USER@HOST/DATABASE or a connection string of libpq",
                    len, url);
}

#ifndef LHI_WITH_POSTGRES
static int refuse_postgres(struct lhi_error *err)
{
    /* The message does not repeat the address, because it may contain a password. */
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
    if (refuse_unknown(url, err) != LH_OK)
        return err->status;
    if (is_postgres(url))
        return lhi_postgres_open(url, opts, log, out, health, err);
    return lhi_sqlite_open(sqlite_path(url), opts, log, out, health, err);
}

int lhi_store_restore(const char *url, const char *from, const lh_open_opts *opts,
                      const struct lhi_log *log, char *kept, size_t keptlen, struct lhi_error *err)
{
    if (refuse_unknown(url, err) != LH_OK)
        return err->status;
    if (is_postgres(url))
        return lhi_fail(err, LH_EINVAL,
                        "store is on PostgreSQL: pg_restore puts back what pg_dump has saved");
    return lhi_sqlite_restore(sqlite_path(url), from, opts, log, kept, keptlen, err);
}

int lhi_schema_of(const char *url, int *version, struct lhi_error *err)
{
    if (refuse_unknown(url, err) != LH_OK)
        return err->status;
    if (is_postgres(url))
        return lhi_postgres_schema_of(url, version, err);
    return lhi_sqlite_schema_of(sqlite_path(url), version, err);
}

const char *lhi_store_kind(const char *url)
{
    return is_postgres(url) ? "postgres" : "sqlite";
}

const char *lhi_engine_version(void)
{
    return lhi_sqlite_version();
}

int lhi_schema_version(void)
{
    return lhi_sqlite_schema_version();
}
