/*
 * leasehold release: return held jobs to their queue.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "jobs.h"

enum { TOKEN, WORKER, ALL, DELAY, NOW };

static const struct option options[] = {
    [TOKEN] = {"token", 't', "T", SPEC_ID, 0, "the token, for a single JOB"},
    [WORKER] = {"worker", 'w', "W", SPEC_NAME, 0,
                "release jobs that this worker holds, as an "
                "operator"},
    [ALL] = {"all", 'a', NULL, SPEC_FLAG, 0, "with --worker: all jobs that it holds"},
    [DELAY] = {"delay", 0, "D", SPEC_LONG_TIME, 0, "do not allow claims before this delay"},
    [NOW] = {"now", 0, NULL, SPEC_FLAG, 0,
             "with --worker: no quarantine, do not wait for the holder to answer or its lease to "
             "expire"},
    {.name = NULL},
};

static const struct positional positionals[] = {
    {"JOB:TOKEN", SPEC_REF, true, true},
    {.meta = NULL},
};

static int by_token(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    size_t n = args->n;
    lh_ref *refs = mem_array(n, sizeof *refs);
    int64_t *ids = mem_array(n, sizeof *ids);
    int *status = mem_array(n, sizeof *status);
    lh_jobs *after = NULL;
    int exit = 0;
    int rc;

    if (n == 1)
        exit = jobs_held(args, &opt[TOKEN], &refs[0]);
    for (size_t i = 0; i < n && exit == 0; i++) {
        const struct value *job = &args->positional[i];
        if (n > 1 && opt[TOKEN].given)
            exit = usage_error(args->command, "--token is for a single JOB: allowed: JOB:TOKEN for "
                                              "each");
        else if (n > 1 && job->num2 == 0)
            exit = usage_error(args->command, "JOB:TOKEN \"%s\" has no token: allowed: JOB:TOKEN",
                               job->text);
        if (n > 1)
            refs[i] = (lh_ref){.job = job->num, .token = job->num2};
        ids[i] = job->num;
    }
    if (exit == 0)
        exit = cli_open(cli, ACCESS_WRITE | ACCESS_HOLDER);
    if (exit == 0) {
        rc = lh_release(cli->store, refs, n, opt[DELAY].num, status, cli->json ? &after : NULL);
        if (rc != LH_OK)
            exit = cli_failed_jobs(cli, "release", ids, status, n, rc);
        for (size_t i = 0; after != NULL && i < after->n; i++)
            for (size_t k = 0; k < n; k++)
                if (ids[k] == after->job[i].id && status[k] == LH_OK) {
                    js_job_line(&after->job[i]);
                    break;
                }
        lh_jobs_free(after);
    }
    free(refs);
    free(ids);
    free(status);
    return exit;
}

static void print_released(struct cli *cli, const int64_t *ids, const int *status, size_t n,
                           int64_t released)
{
    struct js json = {0};

    if (!cli->json)
        return;
    if (n == 0) {
        js_open(&json, '{');
        js_key_int(&json, "released", released);
        js_close(&json, '}');
        js_line(&json);
    }
    for (size_t i = 0; i < n; i++) {
        lh_jobs *jobs = NULL;
        if (status[i] == LH_OK && lh_job_get(cli->store, ids[i], &jobs) == LH_OK)
            js_job_line(&jobs->job[0]);
        lh_jobs_free(jobs);
    }
    js_clear(&json);
}

static int by_worker(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    size_t n = args->n;
    int64_t *ids = mem_array(n, sizeof *ids);
    int *status = mem_array(n, sizeof *status);
    int64_t released = 0;
    int exit, rc;

    for (size_t i = 0; i < n; i++)
        ids[i] = args->positional[i].num;
    exit = cli_open(cli, ACCESS_WRITE);
    if (exit == 0) {
        rc = lh_release_worker(cli->store, opt[WORKER].text, n ? ids : NULL, n, opt[DELAY].num,
                               opt[NOW].given > 0, n ? status : NULL, &released);
        if (rc != LH_OK && n > 0)
            exit = cli_failed_jobs(cli, "release", ids, status, n, rc);
        else if (rc != LH_OK)
            exit = cli_failed(cli, rc);
        if (rc == LH_OK || n > 0)
            print_released(cli, ids, status, n, released);
    }
    free(ids);
    free(status);
    return exit;
}

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;

    if (!opt[WORKER].given) {
        if (opt[ALL].given || opt[NOW].given)
            return usage_error(args->command, "--%s needs --worker W",
                               opt[ALL].given ? "all" : "now");
        if (args->n == 0)
            return usage_error(args->command,
                               "release needs JOB:TOKEN, or --worker W with JOB or --all");
        return by_token(cli, args);
    }
    if (opt[TOKEN].given)
        return usage_error(args->command,
                           "--worker and --token exclude each other: allowed: one of "
                           "them");
    if ((args->n == 0) != (opt[ALL].given > 0))
        return usage_error(args->command, args->n
                                              ? "--all and JOB exclude each other: allowed: one of "
                                                "them"
                                              : "--worker needs JOB or --all");
    for (size_t i = 0; i < args->n; i++)
        if (args->positional[i].num2 != 0)
            return usage_error(args->command, "JOB \"%s\" has a token: allowed with --worker: JOB",
                               args->positional[i].text);
    return by_worker(cli, args);
}

static const struct example examples[] = {
    {"leasehold release 17:3 18:5", "release two jobs"},
    {"leasehold release 17 --token 3 --delay 5m", "release one job, with a delay of 5 minutes"},
    {"leasehold release --worker w-1 --all", "release all jobs of a worker"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"there is no such job", 3},
    {"the lease is lost, or held by another", 4},
    {.when = NULL},
};

const struct command cmd_release = {
    .name = "release",
    .args = "JOB:TOKEN… [--delay D]\nJOB --token T [--delay D]\n"
            "--worker W JOB… [--delay D] [--now]\n--worker W --all [--delay D] [--now]",
    .summary = "return held jobs to the queue, without counting the attempt",
    .text =
        "Returns jobs to their queue: they are pending again, or scheduled with --delay, and the "
        "attempt is not counted. Several jobs are released in one transaction, each with its own "
        "outcome.\n\nWith --worker an operator releases the jobs, not their holder. A job with a "
        "live lease then stays in quarantine until its holder has answered or the old lease has "
        "expired, unless --now is given.",
    .positionals = positionals,
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
};
