/*
 * The floors: the speed of SQLite itself on this machine, on the same tables, in a program that
 * only steps prepared statements. tools/bench compares the product with them.
 *
 * floor.c parses the command line and prints JSON; acts.c has insert, bulk, drain, cycle and sync;
 * parts.c the cost and use of each index, CHECK and trigger of lh_job; fill.c large stores; util.c
 * the database, time and processes.
 */
#ifndef BENCH_FLOOR_H
#define BENCH_FLOOR_H

#include <stdbool.h>
#include <stdint.h>

#include <sqlite3.h>

#define QUEUE "bench" /* as in bench/program/bench.h */
#define WORKER "bench"

struct floor_opts {
    const char *dir;     /* folder of the database */
    const char *db;      /* fill: the store to fill */
    const char *without; /* a part of the schema to leave out; NULL: none */
    const char *claim;   /* "returning", "select", or NULL: the faster one for the batch */
    const char *kind;    /* fill: the kind of the jobs */
    int64_t jobs, batch, processes, payload, seconds;
    int64_t pending, completed;
};

/* The result of a measurement; fields that are 0 are not printed. */
struct floor_result {
    int64_t jobs, elapsed_ns, cpu_ns, written_bytes;
    int64_t p50_ns, p99_ns;
    int64_t busy;      /* commits that failed after the busy timeout */
    int64_t worst_ns;  /* the longest commit */
    int64_t insert_ns; /* parts: CPU time per job for the insert */
    int64_t insert_bytes;
    int64_t drain_ns; /* parts: CPU time per job for the drain */
    int64_t drain_bytes;
};

/* ---- util.c ---- */

_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

int64_t now_ns(void);
int64_t wall_ms(void);
int64_t cpu_ns(void);        /* of this process so far */
int64_t written_bytes(void); /* bytes that this process has written so far */
void pause_ms(int64_t ms);

/** Start the three meters; stop them and store the values in `result`. */
struct meters {
    int64_t ns, cpu, bytes;
};
struct meters meters_start(void);
void meters_stop(const struct meters *meters, struct floor_result *result);

/** The path of the database in `opts->dir`, in a static buffer. */
const char *db_path(const struct floor_opts *opts);
/** Makes a new database with our tables, without `opts->without`. An existing file is replaced. */
void db_create(const struct floor_opts *opts);
/** Opens the database: WAL, synchronous=FULL, 5 s busy timeout, default checkpoints. */
sqlite3 *db_open(const char *path);
void db_close(sqlite3 *db);
void db_remove(const struct floor_opts *opts);

void run(sqlite3 *db, const char *sql);
int64_t query_int(sqlite3 *db, const char *sql);
sqlite3_stmt *prepare(sqlite3 *db, const char *sql);
/** Steps the statement to its end; exits on an error. */
void finish(sqlite3_stmt *stmt);

int compare_int64(const void *a, const void *b);

/* ---- acts.c ---- */

void floor_sync(const struct floor_opts *opts, struct floor_result *result);
void floor_enqueue(const struct floor_opts *opts, struct floor_result *result);
void floor_bulk(const struct floor_opts *opts, struct floor_result *result);
void floor_drain(const struct floor_opts *opts, struct floor_result *result);
void floor_cycle(const struct floor_opts *opts, struct floor_result *result);
void floor_insert_and_drain(const struct floor_opts *opts, struct floor_result *insert,
                            struct floor_result *drained);
void floor_leave_some(const struct floor_opts *opts, struct floor_result *result);

/* ---- parts.c ---- */

/** The text of the schema without one part: "index NAME", "trigger NAME", "check GROUP". */
char *schema_without(const char *part);
/** Prints the names of all parts, one a line. */
void floor_parts(void);
void floor_part(const struct floor_opts *opts, struct floor_result *result);
/** Prints a line for each statement of the product that uses an index of lh_job. */
void floor_uses(const struct floor_opts *opts, struct floor_result *result);

/* ---- fill.c ---- */

/** Adds `completed` and then `pending` rows to a store that the product made. */
void floor_fill(const struct floor_opts *opts, struct floor_result *result);

#endif
