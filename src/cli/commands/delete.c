/*
 * leasehold delete: delete jobs that are not running.
 */
#include "jobs.h"

static const struct option options[] = {FILTER_OPTIONS, {.name = NULL}};

static int act(struct cli *cli, const struct args *args, const int64_t *ids, size_t n, int *status,
               lh_jobs **after)
{
    (void)args;
    (void)after;
    return lh_delete(cli->store, ids, n, status);
}

static void print(int64_t id)
{
    struct js json = {0};

    js_open(&json, '{');
    js_key_int(&json, "id", id);
    js_key_bool(&json, "deleted", true);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
}

static int run(struct cli *cli, const struct args *args)
{
    static const struct many delete_them = {
        .verb = "delete",
        .past = "deleted",
        .states = 1U << LH_SCHEDULED | 1U << LH_PENDING | 1U << LH_RUNNING | 1U << LH_COMPLETED |
                  1U << LH_FAILED | 1U << LH_CANCELLED,
        .act = act,
        .print = print,
    };

    return many_run(cli, args, &delete_them);
}

static const struct example examples[] = {
    {"leasehold delete 17", "one job"},
    {"leasehold delete --queue mail --state completed", "all completed jobs of a queue"},
    {.line = NULL},
};

const struct command cmd_delete = {
    .name = "delete",
    .args = "JOB…\n[--queue Q] [--kind K] [--state S] [--key K]",
    .summary = "delete jobs that are not running",
    .text = "Deletes jobs permanently. A running job is not deleted: cancel it first. The id of a "
            "deleted job is never used again.",
    .positionals = many_positionals,
    .options = options,
    .examples = examples,
    .run = run,
};
