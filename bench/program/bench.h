/*
 * leasehold bench, which reads its words by itself (cmd_bench.c).
 */
#ifndef LEASEHOLD_CLI_BENCH_H
#define LEASEHOLD_CLI_BENCH_H

#include "cli/cli.h"

/**
 * Measures. argv[0] is "bench", then the words of the command line that are no general options;
 * NULL at the end. `cli` has the settings (json, config, log); the store is not open. Returns the
 * exit code.
 */
int lh_cli_bench(int argc, char **argv, struct cli *cli);

#endif
