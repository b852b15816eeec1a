/*
 * leasehold prune: delete jobs, events and reports that are old enough.
 */
#include <inttypes.h>

#include "cli/cli.h"

enum { OLDER_THAN };

static const struct option options[] = {
    [OLDER_THAN] = {"older-than", 0, "D", SPEC_DURATION(1, VALUE_LONG_MAX), 0,
                    "delete jobs that ended longer ago than this, regardless of the policies"},
    {.name = NULL},
};

static int run(struct cli *cli, const struct args *args)
{
    int64_t pruned = 0;
    struct js json = {0};
    int exit = cli_open(cli, ACCESS_WRITE);
    int rc;

    if (exit != 0)
        return exit;
    rc = lh_prune(cli->store, args->option[OLDER_THAN].num, cli_cancel(), &pruned);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    if (!cli->json) {
        printf("%" PRId64 "\n", pruned);
        return 0;
    }
    js_open(&json, '{');
    js_key_int(&json, "pruned", pruned);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
    return 0;
}

static const struct example examples[] = {
    {"leasehold prune", "by the retention in the policies"},
    {"leasehold prune --older-than 7d", "all jobs that ended more than a week ago"},
    {.line = NULL},
};

const struct command cmd_prune = {
    .name = "prune",
    .args = "[--older-than D]",
    .summary = "delete jobs that ended long ago",
    .text = "Deletes completed, cancelled and failed jobs after their retention, and old events, "
            "request ids and statistics. Prints the number of deleted jobs.",
    .options = options,
    .examples = examples,
    .run = run,
};
