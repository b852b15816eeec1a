/*
 * leasehold wait: wait until a job has ended.
 */
#include <inttypes.h>

#include "cli/cli.h"

enum { TIMEOUT };

static const struct option options[] = {
    [TIMEOUT] = {"timeout", 0, "D", SPEC_LONG_TIME, 0, "wait up to this long"},
    {.name = NULL},
};

static const struct positional positionals[] = {
    {"JOB", SPEC_ID, false, false},
    {.meta = NULL},
};

static int run(struct cli *cli, const struct args *args)
{
    const struct value *limit = &args->option[TIMEOUT];
    int64_t id = args->positional[0].num;
    lh_jobs *jobs = NULL;
    const lh_job *job;
    int exit, rc;

    exit = cli_open(cli, ACCESS_READ);
    if (exit != 0)
        return exit;
    rc = lh_job_wait(cli->store, id, limit->given ? limit->num : -1, cli_cancel(), &jobs);
    if (rc == LH_EMPTY)
        return cli_error(EXIT_FAILED, "job %" PRId64 " has not ended within %s", id, limit->text);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    job = &jobs->job[0];
    if (cli->json)
        js_job_line(job);
    else
        printf("%s\n", lh_state_name(job->state));
    if (job->state != LH_COMPLETED)
        exit = EXIT_FAILED;
    if (exit != 0 && job->last_error != NULL)
        cli_error(exit, "job %" PRId64 ": %s", id, job->last_error);
    lh_jobs_free(jobs);
    return exit;
}

static const struct example examples[] = {
    {"leasehold wait 17 --timeout 5m && echo done", "continue if the job was completed"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"the job was completed", 0},
    {"the job failed, was cancelled, or has not ended in time", 1},
    {"there is no such job, or no store", 3},
    {.when = NULL},
};

const struct command cmd_wait = {
    .name = "wait",
    .args = "JOB [--timeout D]",
    .summary = "wait until a job has ended",
    .text = "Waits until the job is completed, failed or cancelled, and prints the state. The exit "
            "code says whether it was completed.",
    .positionals = positionals,
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
};
