/*
 * What `leasehold bench` measures, and the processes that do it.
 *
 * Everything that is measured happens in a process of its own, started for it: its memory, its CPU
 * and what it writes are then those of the product and of nothing else. Like every command this one
 * knows the store through leasehold.h alone.
 */
#ifndef LEASEHOLD_CLI_BENCH_MEASURE_H
#define LEASEHOLD_CLI_BENCH_MEASURE_H

#include "cli/cli.h"

#define BENCH_QUEUE "bench"
#define BENCH_OTHER_QUEUE "bench-other"
#define BENCH_WORKER "bench"

/* How it is asked for. */
struct bench {
    const char *url; /* of the store, in a folder made for it */
    bool made;       /* the store was made by somebody else (--on): leave what is in it */
    bool relaxed;    /* durability */
    int64_t jobs, batch, processes, seconds, payload;
    int64_t pending, completed;
    int64_t ends_at; /* flood: when all leases end, by the store's clock */
    const lh_flag *cancel;
};

/* What came out; what is 0 was not measured. */
struct bench_result {
    int64_t jobs, elapsed_ns, cpu_ns, written_bytes;
    int64_t p50_ns, p90_ns, p95_ns, p99_ns, mean_ns, worst_ns; /* of one call */
    int64_t after_p50_ns; /* wake: from the return of the enqueue */
    int64_t before_p50_ns, before_p90_ns, before_p99_ns, before_worst_ns; /* flood: before it */
    int64_t claims, before_claims;                                        /* flood: so many */
    int64_t stale_ns, check_ns; /* recovery: telling what is forfeit, checking the file */
    int64_t beat_cpu_ns;        /* beat: of one */
    int64_t rss_bytes;
    int64_t idle_ppm;  /* CPU of an idle worker, in millionths of one core */
    int64_t wakeups;   /* rest: of all its threads */
    int64_t *times_ns; /* heal: each, in order of size; on the heap */
    size_t n_times;
};

typedef bool bench_fn(const struct bench *bench, struct bench_result *result);

/* Each on an empty store (or, with `made`, on what is there). False: told why. */
bench_fn bench_enqueue, bench_bulk, bench_drain, bench_cycle, bench_wake, bench_claim, bench_kind,
    bench_memory, bench_idle, bench_recovery, bench_beat, bench_death, bench_expiry, bench_flood,
    bench_work, bench_handler, bench_heal, bench_rest;

/* ---- bench_crew.c: processes that work together, and time ------------------------------------ */

enum { BENCH_MAX_PROCESSES = 64 };

int64_t bench_ns(void);

/* One process; what it says when it is done. */
struct seat {
    struct bench_result result;
    int64_t count; /* jobs so far, read while it works */
    int64_t step;  /* where it is, for processes that take turns */
    int64_t time_ns;
};

/* Shared between the processes. */
struct crew {
    size_t n;
    int ready, go, stop;
    char error[512]; /* of the first that failed */
    size_t n_samples;
    struct seat seat[BENCH_MAX_PROCESSES];
    int64_t samples[]; /* n_samples */
};

typedef void crew_fn(struct crew *crew, size_t me, const struct bench *bench);

/** `n` processes run `fn`, from the moment that all of them called crew_ready(). With `seconds` they
 *  are told to stop after so long. NULL: told why; else crew_free() it. */
struct crew *crew_run(const struct bench *bench, size_t n, crew_fn *fn, size_t n_samples,
                      int64_t seconds);
void crew_free(struct crew *crew);

/* For the processes: */
void crew_ready(struct crew *crew);
bool crew_stopped(const struct crew *crew);
_Noreturn void crew_fail(struct crew *crew, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void crew_pause_ms(int64_t ms);

struct meters {
    int64_t ns, cpu, bytes;
};
struct meters meters_start(void);
void meters_stop(const struct meters *meters, struct bench_result *result);

/** Peak of resident memory of this process. */
int64_t peak_bytes(void);
/** Sorts the samples and fills in the percentiles. */
void percentiles(int64_t *samples, size_t n, struct bench_result *result);

/** The machine, as an object that is open or as lines for people; measures fdatasync in `folder`. */
struct bench_machine {
    char cpu[128], kernel[200], file_system[32];
    int64_t cores, fdatasync_ns;
};
bool bench_machine(const char *folder, struct bench_machine *out);

#endif
