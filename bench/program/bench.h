/*
 * leasehold-bench: the measurements, and the processes that perform them.
 *
 * A process of its own performs each measurement, so that memory, CPU time and written bytes are those of the
 * product alone. Like every command, a measurement uses the store through leasehold.h only.
 */
#ifndef LEASEHOLD_BENCH_H
#define LEASEHOLD_BENCH_H

#include "cli/cli.h"

#define BENCH_QUEUE "bench"
#define BENCH_OTHER_QUEUE "bench-other"
#define BENCH_WORKER "bench"

/* The parameters of a measurement. */
struct bench {
    const char *url; /* of the store, in a folder made for it */
    bool existing;   /* the user named the store (--on): keep what is in it */
    bool relaxed;    /* durability */
    int64_t jobs, batch, processes, seconds, payload;
    int64_t pending, completed;
    int64_t ends_at; /* flood: when all leases end, by the store's clock */
    const lh_flag *cancel;
};

/* A result; a value of 0 was not measured. */
struct bench_result {
    int64_t jobs, elapsed_ns, cpu_ns, written_bytes;
    int64_t p50_ns, p90_ns, p95_ns, p99_ns, mean_ns, worst_ns; /* of one call */
    int64_t after_p50_ns; /* wake: from the return of the enqueue */
    int64_t before_p50_ns, before_p90_ns, before_p99_ns, before_worst_ns; /* flood: before it */
    int64_t claims, before_claims; /* flood: numbers of claims */
    int64_t stale_ns, check_ns;    /* recovery: counting the lost jobs; checking the file */
    int64_t beat_cpu_ns;           /* beat: of one heartbeat */
    int64_t rss_bytes;
    int64_t idle_ppm;  /* CPU of an idle worker, in millionths of one core */
    int64_t wakeups;   /* rest: of all threads of the worker */
    int64_t *times_ns; /* heal: every time, sorted; on the heap */
    size_t n_times;
};

typedef bool bench_fn(const struct bench *bench, struct bench_result *result);

/* Each measures on an empty store, or with `existing` on the one that was named. False: the reason was
 * printed. */
bench_fn bench_enqueue, bench_bulk, bench_drain, bench_cycle, bench_wake, bench_claim, bench_kind,
    bench_memory, bench_idle, bench_recovery, bench_beat, bench_death, bench_expiry, bench_flood,
    bench_work, bench_handler, bench_heal, bench_rest;

/* ---- team.c: processes that measure together, and meters -------------------------------------- */

enum { BENCH_MAX_PROCESSES = 64 };

int64_t bench_ns(void);

/* What one process of a team reports. */
struct slot {
    struct bench_result result;
    int64_t step; /* how far the process is, for processes that take turns */
    int64_t time_ns;
};

/* Memory that the processes of a team share. */
struct team {
    size_t n;
    int ready, go, stop;
    char error[512]; /* of the first process that failed */
    size_t n_samples;
    struct slot slot[BENCH_MAX_PROCESSES];
    int64_t samples[]; /* n_samples */
};

typedef void process_fn(struct team *team, size_t me, const struct bench *bench);

/** Starts `n` processes that run `fn`. They begin to measure together, after all have called await_start().
 *  With `seconds` they are asked to stop after that time. NULL: the reason was printed; else free the
 *  result with team_free(). */
struct team *team_run(const struct bench *bench, size_t n, process_fn *fn, size_t n_samples,
                      int64_t seconds);
void team_free(struct team *team);

/* Called by the processes: */
void await_start(struct team *team);
bool stop_requested(const struct team *team);
_Noreturn void fail_measurement(struct team *team, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void pause_ms(int64_t ms);

struct meters {
    int64_t ns, cpu, bytes;
};
struct meters meters_start(void);
void meters_stop(const struct meters *meters, struct bench_result *result);

/** Peak resident memory of this process. */
int64_t peak_bytes(void);
/** Sorts the samples and fills in the percentiles. */
void percentiles(int64_t *samples, size_t n, struct bench_result *result);

/* ---- machine.c ------------------------------------------------------------------------------- */

struct bench_machine {
    char cpu[128], kernel[200], file_system[32];
    int64_t cores, fdatasync_ns;
};
/** Describes the machine; measures fdatasync() in `folder`. False: the reason was printed. */
bool bench_machine(const char *folder, struct bench_machine *out);

#endif
