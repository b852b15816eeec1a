/*
 * The database, meters, and one way to exit on an error.
 */
#include "floor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

_Noreturn void die(const char *format, ...)
{
    va_list ap;

    fputs("floor: ", stderr);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(1);
}

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

int64_t wall_ms(void)
{
    return clock_ns(CLOCK_REALTIME) / 1000000;
}

int64_t cpu_ns(void)
{
    return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

int64_t written_bytes(void)
{
    char text[512] = "";
    int fd = open("/proc/self/io", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;

    if (fd >= 0)
        close(fd);
    const char *line = n > 0 ? strstr(text, "wchar: ") : NULL;
    return line ? strtoll(line + strlen("wchar: "), NULL, 10) : 0;
}

void pause_ms(int64_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

struct meters meters_start(void)
{
    struct meters m = {.bytes = written_bytes(), .cpu = cpu_ns()};
    m.ns = now_ns();
    return m;
}

void meters_stop(const struct meters *m, struct floor_result *result)
{
    result->elapsed_ns = now_ns() - m->ns;
    result->cpu_ns = cpu_ns() - m->cpu;
    result->written_bytes = written_bytes() - m->bytes;
}

/* ---- the database ---- */

const char *db_path(const struct floor_opts *opts)
{
    static char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/floor.db", opts->dir) >= sizeof path)
        die("folder \"%s\" has too long a name", opts->dir);
    return path;
}

void run(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        die("%s: %.80s", sqlite3_errmsg(db), sql);
}

sqlite3_stmt *prepare(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *stmt = NULL;
    if (sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL) != SQLITE_OK)
        die("%s: %.80s", sqlite3_errmsg(db), sql);
    return stmt;
}

void finish(sqlite3_stmt *stmt)
{
    while (sqlite3_step(stmt) == SQLITE_ROW)
        ;
    if (sqlite3_reset(stmt) != SQLITE_OK)
        die("%s: %s", sqlite3_errmsg(sqlite3_db_handle(stmt)), sqlite3_sql(stmt));
}

int64_t query_int(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *stmt = prepare(db, sql);
    int64_t value = sqlite3_step(stmt) == SQLITE_ROW ? sqlite3_column_int64(stmt, 0) : 0;
    (void)sqlite3_finalize(stmt);
    return value;
}

sqlite3 *db_open(const char *path)
{
    sqlite3 *db = NULL;
    /* NOMUTEX and these two PRAGMAs are the product's own settings. */
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK)
        die("could not open \"%s\": %s", path, sqlite3_errmsg(db));
    (void)sqlite3_busy_timeout(db, 5000);
    run(db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL");
    return db;
}

void db_close(sqlite3 *db)
{
    for (sqlite3_stmt *s; (s = sqlite3_next_stmt(db, NULL)) != NULL;)
        (void)sqlite3_finalize(s);
    if (sqlite3_close(db) != SQLITE_OK)
        die("could not close: %s", sqlite3_errmsg(db));
}

void db_remove(const struct floor_opts *opts)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    char name[4200];

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        snprintf(name, sizeof name, "%s%s", db_path(opts), ends[i]);
        if (unlink(name) != 0 && errno != ENOENT)
            die("could not remove \"%s\": %s", name, strerror(errno));
    }
}

void db_create(const struct floor_opts *opts)
{
    db_remove(opts);
    sqlite3 *db = db_open(db_path(opts));
    char *schema = schema_without(opts->without);
    run(db, "BEGIN");
    run(db, schema);
    run(db, "COMMIT");
    free(schema);
    db_close(db);
}

int compare_int64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}
