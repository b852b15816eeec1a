/*
 * conn.c: opens, checks and closes one connection.
 *
 * libpq connects without blocking, under our deadline, to one host of the conninfo string (hosts.c
 * chooses which). Settings in the user's string override ours, except for what the acts rely on.
 */
#include "store/postgres/wire.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OLDEST_SERVER = 140000,
    LOOK_UP_MS = 100,
    DRAIN_MS = 1000 /* after a deadline, for data that has already arrived */
};

int64_t pg_real_ms(void)
{
    return lhi_mono_us() / 1000;
}

bool pg_await_fd(const struct pg *pg, int fd, short events, int64_t deadline)
{
    struct pollfd one = {.fd = fd, .events = events};

    for (;;) {
        int64_t left = deadline - pg_real_ms();
        if (left < -DRAIN_MS)
            return false; /* data keeps arriving without an end */
        int n = poll(&one, 1, left <= 0 ? 0 : left < LOOK_UP_MS ? (int)left : LOOK_UP_MS);
        if (n > 0 || (n < 0 && errno != EINTR))
            return true; /* the caller's read reports any error */
        if (left <= 0 || __atomic_load_n(&pg->closing, __ATOMIC_RELAXED))
            return false;
    }
}

/* ---- the conninfo string ---- */

static const char *setting(const struct target *target, const char *key)
{
    for (size_t i = 0; i < target->n; i++)
        if (strcmp(target->keys[i], key) == 0)
            return target->values[i];
    return NULL;
}

static void set(struct target *target, const char *key, const char *value)
{
    if (target->n < MOST_SETTINGS) {
        target->keys[target->n] = key;
        target->values[target->n++] = value;
    }
}

/* Does a service file give settings? It may contain any, and it takes precedence over the
 * environment. */
static bool is_served(const struct target *target)
{
    return setting(target, "service") != NULL || getenv("PGSERVICE") != NULL;
}

static const char *from_environment(const struct target *target, const char *variable)
{
    return is_served(target) ? NULL : getenv(variable);
}

/* A default for a setting that is neither in the string nor in the environment nor in a service
 * file. */
static void set_default(struct target *target, const char *key, const char *variable,
                        const char *value)
{
    if (setting(target, key) == NULL && !is_served(target) &&
        (variable == NULL || getenv(variable) == NULL))
        set(target, key, value);
}

/* The i-th item of a comma-separated list. A list of one item applies to all hosts. */
static int list_item(struct target *target, const char *list, size_t i, const char **out)
{
    *out = NULL;
    if (list == NULL)
        return LH_OK;
    if (strchr(list, ',') == NULL)
        i = 0;
    for (; i > 0; i--) {
        list = strchr(list, ',');
        if (list == NULL)
            return LH_OK;
        list++;
    }
    size_t len = strcspn(list, ",");
    if (len == 0)
        return LH_OK;
    *out = lhi_arena_copy(&target->arena, list, len);
    return *out != NULL ? LH_OK : LH_ENOMEM;
}

static size_t list_length(const char *list)
{
    size_t n = list != NULL;
    for (; list != NULL && *list != '\0'; list++)
        n += *list == ',';
    return n;
}

static int split_hosts(struct target *target, struct lhi_error *err)
{
    const char *host = setting(target, "host"), *hostaddr = setting(target, "hostaddr");
    const char *port = setting(target, "port");

    if (host == NULL && hostaddr == NULL)
        host = from_environment(target, "PGHOST");
    if (port == NULL)
        port = from_environment(target, "PGPORT");
    size_t n = list_length(hostaddr != NULL ? hostaddr : host);
    target->n_hosts = n > 0 ? n : 1;
    if (n > MOST_HOSTS)
        return lhi_fail(err, LH_EINVAL, "store names %zu hosts: 1 to %d are allowed", n,
                        MOST_HOSTS);
    for (size_t i = 0; i < target->n_hosts; i++)
        if (list_item(target, host, i, &target->hosts[i].host) != LH_OK ||
            list_item(target, hostaddr, i, &target->hosts[i].hostaddr) != LH_OK ||
            list_item(target, port, i, &target->hosts[i].port) != LH_OK)
            return lhi_no_memory(err);
    return LH_OK;
}

static bool is_host_setting(const char *key)
{
    return strcmp(key, "host") == 0 || strcmp(key, "hostaddr") == 0 || strcmp(key, "port") == 0;
}

/* The name for messages: without the password, and with no more than is needed to identify the
 * store. */
static void make_name(struct target *target)
{
    const char *host = setting(target, "host"), *port = setting(target, "port");
    const char *user = setting(target, "user"), *dbname = setting(target, "dbname");

    if (host == NULL)
        host = setting(target, "hostaddr");
    lhi_format(target->database, sizeof target->database, "%s",
               dbname != NULL ? dbname
               : user != NULL ? user
                              : "");
    lhi_format(target->name, sizeof target->name, "postgresql://%s%s%s%s%s/%s",
               user != NULL ? user : "", user != NULL ? "@" : "", host != NULL ? host : "",
               port != NULL ? ":" : "", port != NULL ? port : "", dbname != NULL ? dbname : "");
}

static void add_defaults(struct target *target)
{
    set_default(target, "fallback_application_name", NULL, "leasehold");
    set_default(target, "keepalives_idle", NULL, "10");
    set_default(target, "keepalives_interval", NULL, "3");
    set_default(target, "keepalives_count", NULL, "3");
    set_default(target, "tcp_user_timeout", NULL, "10000");
    if (target->n_hosts > 1)
        set_default(target, "target_session_attrs", "PGTARGETSESSIONATTRS", "read-write");
}

static int64_t connect_ms(const struct target *target)
{
    const char *seconds = setting(target, "connect_timeout");
    char *end;

    if (seconds == NULL)
        seconds = getenv("PGCONNECT_TIMEOUT");
    if (seconds == NULL)
        return CONNECT_MS;
    long value = strtol(seconds, &end, 10);
    if (*end != '\0' || value < 0)
        return CONNECT_MS;
    return value == 0 ? INT32_MAX : (value > 600 ? 600 : value) * 1000;
}

static int copy_settings(struct target *target, const PQconninfoOption *options,
                         struct lhi_error *err)
{
    for (const PQconninfoOption *option = options; option->keyword != NULL; option++) {
        if (option->val == NULL || option->val[0] == '\0')
            continue;
        char *key = lhi_arena_strdup(&target->arena, option->keyword);
        char *value = lhi_arena_strdup(&target->arena, option->val);
        if (key == NULL || value == NULL)
            return lhi_no_memory(err);
        set(target, key, value);
    }
    return LH_OK;
}

/* libpq's own message is not shown, because it repeats the string, which may contain a password. */
static int refuse_string(struct lhi_error *err)
{
    return lhi_fail(err, LH_EINVAL,
                    "store is no connection string of PostgreSQL: postgresql://USER@HOST/DATABASE "
                    "or \"host=HOST dbname=DATABASE\" is allowed");
}

int pg_target_parse(struct target *target, const char *url, struct lhi_error *err)
{
    PQconninfoOption *options = PQconninfoParse(url, NULL);
    int rc = options != NULL ? copy_settings(target, options, err) : refuse_string(err);

    PQconninfoFree(options);
    if (rc != LH_OK || (rc = split_hosts(target, err)) != LH_OK)
        return rc;
    make_name(target);
    target->connect_ms = connect_ms(target);
    add_defaults(target);
    return LH_OK;
}

void pg_target_clear(struct target *target)
{
    lhi_arena_clear(&target->arena);
}

/* ---- connecting ---- */

static void keep_notice(void *arg, const PGresult *result)
{
    struct conn *conn = arg;
    pg_notice_keep(&conn->notices, result);
}

static int fail_connect(const struct conn *conn, struct lhi_error *err, const char *why)
{
    size_t len = strcspn(why, "\n");
    return lhi_fail(err, LH_EUNREACH, "could not reach \"%s\": %.*s", conn->owner->target.name,
                    (int)len, why);
}

int pg_fail_replaced(const struct conn *conn, struct lhi_error *err)
{
    return fail_connect(conn, err, "it was replaced: another server has taken over");
}

static PGconn *start(const struct target *target, size_t host)
{
    const char *keys[MOST_SETTINGS + 8], *values[MOST_SETTINGS + 8];
    size_t n = 0;

    for (size_t i = 0; i < target->n; i++) {
        if (is_host_setting(target->keys[i]))
            continue;
        keys[n] = target->keys[i];
        values[n++] = target->values[i];
    }
    keys[n] = "host";
    values[n++] = target->hosts[host].host;
    keys[n] = "hostaddr";
    values[n++] = target->hosts[host].hostaddr;
    keys[n] = "port";
    values[n++] = target->hosts[host].port;
    keys[n] = "client_encoding"; /* the client reads and writes UTF-8 */
    values[n++] = "UTF8";
    keys[n] = NULL;
    values[n] = NULL;
    return PQconnectStartParams(keys, values, 0);
}

static int connect_host(struct conn *conn, size_t host, int64_t deadline, struct lhi_error *err)
{
    PostgresPollingStatusType status = PGRES_POLLING_WRITING;

    conn->pg = start(&conn->owner->target, host);
    if (conn->pg == NULL)
        return lhi_no_memory(err);
    if (PQstatus(conn->pg) == CONNECTION_BAD)
        return fail_connect(conn, err, PQerrorMessage(conn->pg));
    (void)PQsetNoticeReceiver(conn->pg, keep_notice, conn);
    while (status != PGRES_POLLING_OK) {
        if (status == PGRES_POLLING_FAILED)
            return fail_connect(conn, err, PQerrorMessage(conn->pg));
        if (!pg_await_fd(conn->owner, PQsocket(conn->pg),
                         status == PGRES_POLLING_READING ? POLLIN : POLLOUT, deadline))
            return fail_connect(conn, err, "no answer");
        status = PQconnectPoll(conn->pg);
    }
    return LH_OK;
}

/* ---- after connecting ---- */

/* The acts rely on three settings, whatever the role, the database or the environment says. Each
 * statement sees what was committed before it. Warnings are sent, because one of them says that
 * a commit was not confirmed. Operators are the server's own, and not those of some schema in
 * the search_path. A session of the server is ours, so the settings are changed once. A session
 * of a pooler ($1 is not its pid) is shared, so each transaction asks for them. */
static const char greeting[] =
    "SELECT pg_catalog.pg_backend_pid(), pg_catalog.clock_timestamp(), s.system_identifier,"
    " CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN"
    " ('x' OPERATOR(pg_catalog.||) pg_catalog.left(pg_catalog.pg_walfile_name("
    "pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint END,"
    " o.isolated, o.quiet,"
    " CASE WHEN o.isolated AND o.ours THEN"
    " pg_catalog.set_config('default_transaction_isolation', 'read committed', false) END,"
    " CASE WHEN o.quiet AND o.ours THEN"
    " pg_catalog.set_config('client_min_messages', 'notice', false) END,"
    " CASE WHEN o.ours THEN"
    " pg_catalog.set_config('search_path', '" OUR_PATH "', false) END"
    " FROM pg_catalog.pg_control_system() s, (SELECT"
    " pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) $1::integer,"
    " pg_catalog.current_setting('default_transaction_isolation')"
    " OPERATOR(pg_catalog.<>) 'read committed',"
    " pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.=)"
    " ANY (ARRAY['warning', 'error', 'fatal', 'panic'])"
    ") o(ours, isolated, quiet)";

/* Run a query with one parameter that returns one row. */
static PGresult *ask(struct conn *conn, const char *sql, const char *value, int64_t deadline)
{
    PGresult *answer = NULL, *next;

    if (PQsendQueryParams(conn->pg, sql, 1, NULL, &value, NULL, NULL, 1) == 0)
        return NULL;
    for (;;) {
        int unsent = PQflush(conn->pg);
        if (unsent < 0)
            break;
        if (unsent == 0 && PQisBusy(conn->pg) == 0) {
            next = PQgetResult(conn->pg);
            if (next == NULL)
                return answer;
            PQclear(answer);
            answer = next;
            continue;
        }
        if (!pg_await_fd(conn->owner, PQsocket(conn->pg), unsent ? POLLIN | POLLOUT : POLLIN,
                         deadline) ||
            PQconsumeInput(conn->pg) == 0)
            break;
    }
    PQclear(answer);
    return NULL;
}

/* Are we connected to the server itself? A pooler reports pids of its own. */
static int greet(struct conn *conn, int64_t deadline, struct lhi_error *err)
{
    struct pg *pg = conn->owner;
    int64_t asked = pg_real_ms();
    struct rows rows = {0};
    char session[16];

    if (PQserverVersion(conn->pg) < OLDEST_SERVER)
        return lhi_fail(err, LH_EINVAL,
                        "server of \"%s\" is PostgreSQL %d: 14 and later are supported",
                        pg->target.name, PQserverVersion(conn->pg) / 10000);
    if (PQsetnonblocking(conn->pg, 1) != 0)
        return lhi_no_memory(err);
    lhi_format(session, sizeof session, "%d", PQbackendPID(conn->pg));
    rows.result = ask(conn, greeting, session, deadline);
    if (PQresultStatus(rows.result) != PGRES_TUPLES_OK) {
        int rc = fail_connect(conn, err,
                              rows.result != NULL ? PQresultErrorMessage(rows.result)
                              : PQstatus(conn->pg) == CONNECTION_BAD ? PQerrorMessage(conn->pg)
                                                                     : "no answer");
        pg_rows_free(&rows);
        return rc;
    }
    conn->pooled = pg_row_int(&rows, 0, 0) != PQbackendPID(conn->pg);
    conn->clock = pg_row_time(&rows, 0, 1) - (asked + pg_real_ms()) / 2;
    conn->cluster = pg_row_int(&rows, 0, 2);
    conn->timeline = pg_row_int(&rows, 0, 3);
    conn->isolated = conn->pooled && pg_row_bool(&rows, 0, 4);
    conn->quiet = conn->pooled && pg_row_bool(&rows, 0, 5);
    pg_rows_free(&rows);
    if (PQenterPipelineMode(conn->pg) == 0)
        return fail_connect(conn, err, PQerrorMessage(conn->pg));
    return LH_OK;
}

int pg_conn_to_host(struct pg *pg, size_t host, int64_t deadline, struct conn **out,
                    struct lhi_error *err)
{
    struct conn *conn = lhi_calloc(1, sizeof *conn);

    if (conn == NULL)
        return lhi_no_memory(err);
    conn->owner = pg;
    conn->place = -1;
    int rc = connect_host(conn, host, deadline, err);
    if (rc == LH_OK)
        rc = greet(conn, deadline, err);
    if (rc == LH_OK && pg_was_replaced(conn))
        rc = pg_fail_replaced(conn, err);
    if (rc != LH_OK) {
        pg_conn_close(conn);
        return rc;
    }
    pg_notices_drop(&conn->notices);
    *out = conn;
    return LH_OK;
}

void pg_conn_close(struct conn *conn)
{
    if (conn == NULL)
        return;
    if (conn->place >= 0)
        pg_pool_leave_fd(conn->owner, conn->place);
    PQfinish(conn->pg);
    pg_notices_drop(&conn->notices);
    lhi_free(conn);
}

/* If the server has closed the connection, that can be seen now. It is better to notice before
 * something is sent, because afterwards the outcome would be unknown. */
bool pg_conn_alive(struct conn *conn)
{
    struct pollfd fd = {.fd = PQsocket(conn->pg), .events = POLLIN};

    if (conn->broken || fd.fd < 0 || PQstatus(conn->pg) != CONNECTION_OK || pg_was_replaced(conn))
        return false;
    if (poll(&fd, 1, 0) <= 0)
        return true;
    return PQconsumeInput(conn->pg) != 0 && PQstatus(conn->pg) == CONNECTION_OK;
}

/* ---- cancelling ---- */

static void *cancel(void *arg)
{
    char why[256];

    (void)PQcancel(arg, why, sizeof why);
    PQfreeCancel(arg);
    return NULL;
}

/* PQcancel() opens a connection of its own and waits for it without a limit. So it runs in a
 * thread of its own, because this thread has already waited until its deadline. The new thread
 * shares no data with us. */
void pg_conn_cancel(struct conn *conn)
{
    PGcancel *how = PQgetCancel(conn->pg);
    pthread_t thread;

    conn->broken = true; /* a late cancel must not hit the next statement */
    if (how == NULL)
        return;
    if (lhi_thread_start(&thread, cancel, how))
        pthread_detach(thread);
    else
        PQfreeCancel(how);
}
