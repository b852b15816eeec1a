/*
 * An LD_PRELOAD library that times SQLite. When a connection is closed, it adds lines to the file
 * $STEPS_OUT: one for the writing transactions, one for the checkpoints, each with the longest, and
 * one for the statement that $STEPS_OF names ("all": one for each statement). Reading the clock
 * takes time too, so other statements are not timed.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sql_sqlite.h"

enum { CONNECTIONS = 64, SAMPLES = 100000 };

struct tally {
    int64_t n, ns, worst_ns;
    int64_t *took; /* the first SAMPLES times; NULL: not kept */
};

/* The state of one connection, which one thread at a time uses. */
struct seen {
    sqlite3 *db;
    int64_t began; /* start of the current transaction; 0: none */
    struct tally transactions, checkpoints, statement[LHI_SQL_COUNT];
};

static struct seen seen[CONNECTIONS];

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void count(struct tally *tally, int64_t ns)
{
    if (tally->took == NULL)
        tally->took = malloc(SAMPLES * sizeof *tally->took);
    if (tally->took != NULL && tally->n < SAMPLES)
        tally->took[tally->n] = ns;
    tally->n++;
    tally->ns += ns;
    if (ns > tally->worst_ns)
        tally->worst_ns = ns;
}

/* Corrects the last sample, which took longer. */
static void lengthen(struct tally *tally, int64_t ns)
{
    tally->ns += ns;
    if (tally->took != NULL && tally->n > 0 && tally->n <= SAMPLES)
        tally->took[tally->n - 1] += ns;
}

static struct seen *seen_of(sqlite3 *db)
{
    for (size_t i = 0; i < CONNECTIONS; i++)
        if (__atomic_load_n(&seen[i].db, __ATOMIC_ACQUIRE) == db)
            return &seen[i];
    for (size_t i = 0; i < CONNECTIONS; i++) {
        sqlite3 *none = NULL;
        if (__atomic_compare_exchange_n(&seen[i].db, &none, db, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return &seen[i];
    }
    return NULL;
}

/* ---- statements and transactions ---- */

/* The number of the statement if it is timed, else LHI_SQL_COUNT. */
static size_t number_of(const char *sql)
{
    static const char *of;
    static size_t one = LHI_SQL_COUNT;
    size_t i = 0;

    if (of == NULL) {
        of = getenv("STEPS_OF");
        of = of != NULL ? of : "";
        for (i = 0; i < LHI_SQL_COUNT; i++)
            if (strcmp(lhi_sqlite_sql[i].name, of) == 0)
                one = i;
    }
    if (one < LHI_SQL_COUNT)
        return strcmp(lhi_sqlite_sql[one].text, sql) == 0 ? one : LHI_SQL_COUNT;
    i = strcmp(of, "all") == 0 ? 0 : LHI_SQL_COUNT;
    while (i < LHI_SQL_COUNT && strcmp(lhi_sqlite_sql[i].text, sql) != 0)
        i++;
    return i;
}

/* The first letter tells whether a statement may begin or end a transaction. */
static bool bounds(const char *sql)
{
    return sql[0] == 'B' || sql[0] == 'C' || sql[0] == 'R';
}

static void after_bound(struct seen *s, const char *sql, int64_t start)
{
    static const char begin[] = "BEGIN IMMEDIATE";

    if (strncmp(sql, begin, sizeof begin - 1) == 0)
        s->began = start;
    if (s->began != 0 && sqlite3_get_autocommit(s->db)) {
        count(&s->transactions, now_ns() - s->began);
        s->began = 0;
    }
}

int sqlite3_step(sqlite3_stmt *stmt)
{
    static int (*real)(sqlite3_stmt *);
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "sqlite3_step");
    const char *sql = sqlite3_sql(stmt); /* internal statements of the engine have no text */
    size_t i = sql != NULL ? number_of(sql) : LHI_SQL_COUNT;
    bool bound = sql != NULL && bounds(sql);
    struct seen *s = bound || i < LHI_SQL_COUNT ? seen_of(sqlite3_db_handle(stmt)) : NULL;
    if (s == NULL)
        return real(stmt);
    int64_t start = now_ns();
    int rc = real(stmt);
    if (i < LHI_SQL_COUNT)
        count(&s->statement[i], now_ns() - start);
    if (bound)
        after_bound(s, sql, start);
    return rc;
}

/* The time of COMMIT belongs to the transaction. */
int sqlite3_reset(sqlite3_stmt *stmt)
{
    static int (*real)(sqlite3_stmt *);
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "sqlite3_reset");
    const char *sql = stmt != NULL ? sqlite3_sql(stmt) : NULL;
    size_t i = sql != NULL ? number_of(sql) : LHI_SQL_COUNT;
    struct seen *s = i < LHI_SQL_COUNT ? seen_of(sqlite3_db_handle(stmt)) : NULL;
    int64_t start = s != NULL ? now_ns() : 0;
    int rc = real(stmt);
    if (s != NULL)
        lengthen(&s->statement[i], now_ns() - start);
    return rc;
}

/* ---- checkpoints ---- */

int sqlite3_wal_checkpoint_v2(sqlite3 *db, const char *zDb, int eMode, int *pnLog, int *pnCkpt)
{
    static int (*real)(sqlite3 *, const char *, int, int *, int *);
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "sqlite3_wal_checkpoint_v2");
    int64_t start = now_ns();
    int rc = real(db, zDb, eMode, pnLog, pnCkpt);
    struct seen *s = seen_of(db);
    if (s != NULL)
        count(&s->checkpoints, now_ns() - start);
    return rc;
}

/* ---- output ---------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void tell(int fd, const char *what, struct tally *t)
{
    char line[256];
    size_t kept = t->took == NULL ? 0 : t->n < SAMPLES ? (size_t)t->n : SAMPLES;

    if (kept == 0)
        return;
    qsort(t->took, kept, sizeof t->took[0], by_size);
    int n = snprintf(line, sizeof line,
                     "{\"steps\":\"%s\",\"pid\":%d,\"n\":%lld,\"ns\":%lld,\"p50_ns\":%lld,"
                     "\"p99_ns\":%lld,\"worst_ns\":%lld}\n",
                     what, (int)getpid(), (long long)t->n, (long long)t->ns,
                     (long long)t->took[kept / 2], (long long)t->took[kept * 99 / 100],
                     (long long)t->worst_ns);
    if (n > 0)
        (void)!write(fd, line, (size_t)n);
    free(t->took);
}

static void tell_all(sqlite3 *db)
{
    const char *out = getenv("STEPS_OUT");
    struct seen *s = seen_of(db);
    int fd = out ? open(out, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;

    if (fd >= 0 && s != NULL) {
        tell(fd, "transactions", &s->transactions);
        tell(fd, "checkpoints", &s->checkpoints);
        for (size_t i = 0; i < LHI_SQL_COUNT; i++)
            tell(fd, lhi_sqlite_sql[i].name, &s->statement[i]);
    }
    if (fd >= 0)
        close(fd);
    if (s != NULL) {
        *s = (struct seen){.db = db};
        __atomic_store_n(&s->db, NULL, __ATOMIC_RELEASE);
    }
}

int sqlite3_close_v2(sqlite3 *db)
{
    static int (*real)(sqlite3 *);
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "sqlite3_close_v2");
    if (db != NULL)
        tell_all(db);
    return real(db);
}
