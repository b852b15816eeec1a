/*
 * The list of measurements, and printing their results.
 */
#ifndef LEASEHOLD_BENCH_MEASURES_H
#define LEASEHOLD_BENCH_MEASURES_H

#include "bench.h"

enum { BENCH_NAMES = 18, BENCH_VARIANTS = 4 };

/* Unless the command line says otherwise, a measurement runs once for each of `values`, with the number of jobs
 * beside it; 0 ends the list. */
struct measure {
    const char *name;
    const char *what; /* for the heading */
    bench_fn *fn;
    size_t vary;      /* the field that varies: its offset in struct bench */
    const char *unit; /* of the varied value; NULL: nothing is varied */
    int64_t values[BENCH_VARIANTS];
    int64_t jobs[BENCH_VARIANTS];
    int64_t batch, seconds, completed;
};

extern const struct measure bench_measures[BENCH_NAMES];

void bench_print_machine(bool json, const char *folder, const struct bench_machine *machine);
void bench_print_json(const struct measure *measure, const struct bench *bench,
                      const struct bench_result *result);
void bench_print_text(const struct measure *measure, const struct bench *bench,
                      const struct bench_result *result);

#endif
