/* See foreign_sql.h. */
#include "race/foreign_sql.h"

#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LHI_WITH_POSTGRES
#include <libpq-fe.h>
#else
typedef struct pg_conn PGconn;
#endif

enum { PATIENCE_MS = TEST_BUSY_MS, MOST_TEXT = 1000 };

struct stranger {
    sqlite3 *file; /* either this or the connection */
    PGconn *server;
};

/* ---------------------------------------------------------------- PostgreSQL */

#ifdef LHI_WITH_POSTGRES

static PGconn *server_open(void)
{
    PGconn *server = PQconnectdb(test_store());

    if (PQstatus(server) != CONNECTION_OK)
        FAIL("the stranger: %s", PQerrorMessage(server));
    return server;
}

/* On PostgreSQL lh_job is named leasehold.job. */
static void translate(const char *sql, char *out, size_t room)
{
    size_t used = 0;

    for (size_t len; *sql != '\0'; sql += len) {
        bool table = strncmp(sql, "lh_", 3) == 0;
        len = table ? 3 : 1;
        used += (size_t)snprintf(out + used, room - used, "%.*s", table ? 10 : 1,
                                 table ? "leasehold." : sql);
        EXPECT(used < room);
    }
}

static int64_t server_run(PGconn *server, const char *sql)
{
    char text[MOST_TEXT];
    translate(sql, text, sizeof text);
    PGresult *result = PQexec(server, text);
    ExecStatusType status = PQresultStatus(result);

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        FAIL("the stranger: %s: %s", text, PQerrorMessage(server));
    int64_t changed = strtoll(PQcmdTuples(result), NULL, 10);
    PQclear(result);
    return changed;
}

static void server_refuses(PGconn *server, const char *sql, const char *why)
{
    char text[MOST_TEXT];
    translate(sql, text, sizeof text);
    PGresult *result = PQexec(server, text);

    if (PQresultStatus(result) != PGRES_FATAL_ERROR)
        FAIL("not refused: %s", text);
    EXPECT_CONTAINS(PQerrorMessage(server), why);
    PQclear(result);
}

static void server_close(PGconn *server)
{
    PQfinish(server);
}

#else

static PGconn *server_open(void)
{
    FAIL("built without PostgreSQL");
}

static int64_t server_run(PGconn *server, const char *sql)
{
    (void)server;
    FAIL("%s: built without PostgreSQL", sql);
}

static void server_refuses(PGconn *server, const char *sql, const char *why)
{
    (void)server;
    FAIL("%s: %s: built without PostgreSQL", sql, why);
}

static void server_close(PGconn *server)
{
    (void)server;
}

#endif

/* ---------------------------------------------------------------- SQLite */

static sqlite3 *file_open(void)
{
    sqlite3 *db = NULL;

    EXPECT_EQ(sqlite3_open_v2(test_store(), &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    EXPECT_EQ(sqlite3_busy_timeout(db, PATIENCE_MS), SQLITE_OK);
    return db;
}

static int64_t file_run(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        FAIL("the stranger: %s: %s", sql, sqlite3_errmsg(db));
    return sqlite3_changes(db);
}

static void file_refuses(sqlite3 *db, const char *sql, const char *why)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK)
        FAIL("not refused: %s", sql);
    EXPECT_CONTAINS(sqlite3_errmsg(db), why);
}

/* ---------------------------------------------------------------- either */

struct stranger *stranger_open(void)
{
    struct stranger *stranger = calloc(1, sizeof *stranger);

    EXPECT(stranger != NULL);
    if (test_store_is_postgres())
        stranger->server = server_open();
    else
        stranger->file = file_open();
    return stranger;
}

void stranger_close(struct stranger *stranger)
{
    if (stranger->file != NULL)
        EXPECT_EQ(sqlite3_close(stranger->file), SQLITE_OK);
    else
        server_close(stranger->server);
    free(stranger);
}

int64_t stranger_run(struct stranger *stranger, const char *sql)
{
    return stranger->file ? file_run(stranger->file, sql) : server_run(stranger->server, sql);
}

void stranger_begin(struct stranger *stranger)
{
    (void)stranger_run(stranger, stranger->file ? "BEGIN IMMEDIATE" : "BEGIN");
}

void stranger_commit(struct stranger *stranger)
{
    (void)stranger_run(stranger, "COMMIT");
}

static void say(char text[MOST_TEXT], const char *fmt, va_list args)
    __attribute__((format(printf, 2, 0)));

static void say(char text[MOST_TEXT], const char *fmt, va_list args)
{
    int len = vsnprintf(text, MOST_TEXT, fmt, args);

    EXPECT(len > 0 && len < MOST_TEXT);
}

int64_t run_as_stranger(const char *fmt, ...)
{
    struct stranger *stranger = stranger_open();
    char text[MOST_TEXT];
    va_list args;

    va_start(args, fmt);
    say(text, fmt, args);
    va_end(args);
    int64_t changed = stranger_run(stranger, text);
    stranger_close(stranger);
    return changed;
}

int64_t damage(const char *fmt, ...)
{
    struct stranger *stranger = stranger_open();
    char text[MOST_TEXT];
    va_list args;

    va_start(args, fmt);
    say(text, fmt, args);
    va_end(args);
    if (stranger->file != NULL) {
        (void)sqlite3_db_config(stranger->file, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
        (void)stranger_run(stranger, "PRAGMA ignore_check_constraints = ON");
    }
    int64_t changed = stranger_run(stranger, text);
    stranger_close(stranger);
    return changed;
}

void stranger_is_refused(const char *sql, const char *why)
{
    struct stranger *stranger = stranger_open();

    if (stranger->file != NULL)
        file_refuses(stranger->file, sql, why);
    else
        server_refuses(stranger->server, sql, why);
    stranger_close(stranger);
}
