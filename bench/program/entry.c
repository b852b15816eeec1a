#include "bench.h"

static int run(struct cli *cli, const struct args *args)
{
    int n = args->raw_n + 1;
    char name[] = "bench";
    char **words = mem_array((size_t)n + 1, sizeof *words);
    int exit;

    words[0] = name;
    for (int i = 1; i < n; i++)
        words[i] = args->raw[i - 1];
    exit = lh_cli_bench(n, words, cli);
    free(words);
    return exit;
}

static const struct option options[] = {
    {"jobs", 0, "N", SPEC_INT(1, 100000000), 0, "how many jobs, 1 to 100000000"},
    {"batch", 0, "N", SPEC_INT(1, 1000), 0, "how many in a call, 1 to 1000"},
    {"processes", 0, "N", SPEC_INT(1, 64), 0, "how many at once, 1 to 64"},
    {"seconds", 0, "N", SPEC_INT(1, 3600), 0, "for how long, 1 to 3600"},
    {"payload", 0, "N", SPEC_INT(0, 1048576), 0, "bytes of a payload, 0 to 1048576"},
    {"pending", 0, "N", SPEC_INT(1, 100000000), 0, "jobs that wait beside it"},
    {"completed", 0, "N", SPEC_INT(0, 100000000), 0, "jobs that are done beside it"},
    {"dir", 0, "DIR", SPEC_FILE, 0, "where the store is made (default: $TMPDIR, /tmp)"},
    {"on", 0, "URL", SPEC_FILE, 0,
     "on this store, SQLite or PostgreSQL, which must have been made for it"},
    {"relaxed", 0, NULL, SPEC_FLAG, 0, "with durability relaxed"},
    {.name = NULL},
};

static const struct example examples[] = {
    {"leasehold bench", "how fast is it here?"},
    {"leasehold bench enqueue --processes 16", "durable enqueues by sixteen processes at once"},
    {.line = NULL},
};

const struct command cmd_bench = {
    .name = "bench",
    .args = "[NAME…] [--jobs N] [--batch N] [--processes N] [--seconds N] [--payload N] "
            "[--pending N] [--completed N] [--dir DIR] [--on URL] [--relaxed]",
    .summary = "measure how fast it is on this machine",
    .text =
        "Measures on a store that it creates for this purpose and removes afterwards: all there is "
        "to measure, or what is named: enqueue, bulk, drain, cycle, wake, claim, kind, memory, "
        "idle, recovery, beat, death, expiry, flood, work, handler, heal, rest.",
    .options = options,
    .examples = examples,
    .run = run,
    .raw = true,
};
