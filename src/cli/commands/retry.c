/*
 * leasehold retry: run failed or cancelled jobs again.
 */
#include "jobs.h"

enum { FORCE = FILTERS, NOW };

static const struct option options[] = {
    FILTER_OPTIONS,
    [FORCE] = {"force", 'f', NULL, SPEC_FLAG, 0, "completed jobs too"},
    [NOW] = {"now", 0, NULL, SPEC_FLAG, 0,
             "no quarantine: do not wait for the holder of a lease that was revoked while it was "
             "live"},
    {.name = NULL},
};

static int act(struct cli *cli, const struct args *args, const int64_t *ids, size_t n, int *status,
               lh_jobs **after)
{
    unsigned how = (args->option[FORCE].given > 0 ? LH_RETRY_FORCE : 0) |
                   (args->option[NOW].given > 0 ? LH_RETRY_NOW : 0);
    return lh_retry(cli->store, ids, n, how, status, cli->json ? after : NULL);
}

static int run(struct cli *cli, const struct args *args)
{
    struct many retry = {
        .verb = "retry",
        .past = "retried",
        .states = 1U << LH_FAILED | 1U << LH_CANCELLED,
        .act = act,
    };

    if (args->option[FORCE].given)
        retry.states |= 1U << LH_COMPLETED;
    return many_run(cli, args, &retry);
}

static const struct example examples[] = {
    {"leasehold retry 17", "one job"},
    {"leasehold retry --queue mail --state failed", "all failed jobs of a queue"},
    {.line = NULL},
};

const struct command cmd_retry = {
    .name = "retry",
    .args =
        "JOB… [--force] [--now]\n[--queue Q] [--kind K] [--state S] [--key K] [--force] [--now]",
    .summary = "run failed or cancelled jobs again",
    .text = "Makes failed and cancelled jobs pending again; with --force completed ones too. "
            "Their attempts and recoveries are counted from zero. A job that was cancelled while a "
            "worker held it stays in quarantine until that worker has answered or its lease has "
            "expired; --now skips the quarantine.",
    .positionals = many_positionals,
    .options = options,
    .examples = examples,
    .run = run,
};
