/*
 * leasehold heartbeat: extend the lease of a held job.
 */
#include "jobs.h"

enum { TOKEN, LEASE, PROGRESS, STAGE, CHECKPOINT };

static const struct option options[] = {
    [TOKEN] = {"token", 't', "T", SPEC_ID, 0, "the token of the claim (or write JOB:TOKEN)"},
    [LEASE] = {"lease", 0, "D", SPEC_LEASE_TIME, 0,
               "extend the lease to this long from now (default: as long as the claim)"},
    [PROGRESS] = {"progress", 'p', "N", SPEC_INT(0, 100), 0, "progress in percent, 0 to 100"},
    [STAGE] = {"stage", 0, "S", SPEC_TEXT(256), 0, "the stage that the job is in"},
    [CHECKPOINT] = {"checkpoint", 'c', "JSON", SPEC_JSON(65536), 0,
                    "checkpoint: saved and given to the next attempt; at most 64 KiB"},
    {.name = NULL},
};

static const struct positional positionals[] = {
    {"JOB", SPEC_REF, false, false},
    {.meta = NULL},
};

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    lh_beat beat = {
        .lease_ms = opt[LEASE].num,
        .has_progress = opt[PROGRESS].given > 0,
        .progress = (int)opt[PROGRESS].num,
        .stage = opt[STAGE].text,
        .checkpoint = opt[CHECKPOINT].text,
    };
    lh_ref ref;
    lh_jobs *after = NULL;
    int exit = jobs_held(args, &opt[TOKEN], &ref);
    int rc;

    if (exit == 0)
        exit = cli_open(cli, ACCESS_WRITE | ACCESS_HOLDER);
    if (exit != 0)
        return exit;
    beat.job = ref.job;
    beat.token = ref.token;
    rc = lh_heartbeat(cli->store, &beat, 1, NULL, cli->json ? &after : NULL);
    if (rc != LH_OK)
        exit = cli_failed(cli, rc);
    else
        jobs_print_after(cli, after);
    return exit;
}

static const struct example examples[] = {
    {"leasehold heartbeat 17 --token 3 --progress 40", "extend the lease and report progress"},
    {"leasehold heartbeat 17:3 --checkpoint '{\"page\":12}'",
     "save a checkpoint for the next attempt"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"there is no such job", 3},
    {"the lease is lost: it expired, or the job was claimed by another worker or cancelled; stop "
     "working on it",
     4},
    {.when = NULL},
};

const struct command cmd_heartbeat = {
    .name = "heartbeat",
    .args = "JOB --token T [--lease D] [--progress 0..100] [--stage S] [--checkpoint JSON]",
    .summary = "extend the lease of a held job",
    .text =
        "Extends the lease of a job to now plus the length of the lease. It is refused after the "
        "lease has expired, even if no other worker has claimed the job.",
    .positionals = positionals,
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
};
