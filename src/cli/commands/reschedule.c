/*
 * leasehold reschedule: move a waiting job to another time.
 */
#include "jobs.h"

enum { DELAY, AT };

static const struct option options[] = {
    [DELAY] = {"delay", 0, "D", SPEC_LONG_TIME, 0, "run after this delay; 0s: now"},
    [AT] = {"at", 0, "T", SPEC_TIME, 0, "run at this time (RFC 3339 with a zone)"},
    {.name = NULL},
};

static const struct positional positionals[] = {
    {"JOB", SPEC_ID, false, false},
    {.meta = NULL},
};

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    lh_jobs *after = NULL;
    int exit, rc;

    if ((opt[DELAY].given > 0) == (opt[AT].given > 0))
        return usage_error(args->command, "reschedule needs %s",
                           opt[AT].given ? "either --delay D or --at T, not both"
                                         : "--delay D or --at T");
    exit = cli_open(cli, ACCESS_WRITE);
    if (exit != 0)
        return exit;
    rc = lh_reschedule(cli->store, args->positional[0].num, opt[DELAY].num, opt[AT].num,
                       cli->json ? &after : NULL);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    jobs_print_after(cli, after);
    return 0;
}

static const struct example examples[] = {
    {"leasehold reschedule 17 --at 2026-01-15T06:00:00+01:00", "tomorrow morning"},
    {"leasehold reschedule 17 --delay 0s", "now"},
    {.line = NULL},
};

const struct command cmd_reschedule = {
    .name = "reschedule",
    .args = "JOB --delay D | --at T",
    .summary = "move a waiting job to another time",
    .text = "Moves a scheduled or pending job to another time.",
    .positionals = positionals,
    .options = options,
    .examples = examples,
    .run = run,
};
