/*
 * leasehold cancel: cancel jobs, by id or by what they have in common.
 */
#include "jobs.h"

static const struct option options[] = {FILTER_OPTIONS, {.name = NULL}};

static int act(struct cli *cli, const struct args *args, const int64_t *ids, size_t n, int *status,
               lh_jobs **after)
{
    (void)args;
    return lh_cancel(cli->store, ids, n, status, cli->json ? after : NULL);
}

static int run(struct cli *cli, const struct args *args)
{
    static const struct many cancel = {
        .verb = "cancel",
        .past = "cancelled",
        .states = 1U << LH_SCHEDULED | 1U << LH_PENDING | 1U << LH_RUNNING,
        .act = act,
    };

    return many_run(cli, args, &cancel);
}

static const struct example examples[] = {
    {"leasehold cancel 17 18", "two jobs"},
    {"leasehold cancel --queue mail --state pending", "all pending jobs of a queue"},
    {.line = NULL},
};

const struct command cmd_cancel = {
    .name = "cancel",
    .args = "JOB…\n[--queue Q] [--kind K] [--state S] [--key K]",
    .summary = "cancel jobs that have not ended",
    .text = "Cancels scheduled, pending and running jobs. The holder of a running job learns of it "
            "at its next heartbeat; its token is no longer accepted. The job stays in quarantine "
            "until its holder has answered or its lease would have expired: only then can another "
            "worker claim it after a retry.",
    .positionals = many_positionals,
    .options = options,
    .examples = examples,
    .run = run,
};
