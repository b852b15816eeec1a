/*
 * leasehold fail: a held job went wrong.
 */
#include "jobs.h"

enum { TOKEN, ERROR, PERMANENT, RETRY_IN };

static const struct option options[] = {
    [TOKEN] = {"token", 't', "T", SPEC_ID, 0, "the token of the claim (or write JOB:TOKEN)"},
    [ERROR] = {"error", 'e', "MSG", SPEC_TEXT(65536), OPTION_REQUIRED, "what went wrong"},
    [PERMANENT] = {"permanent", 0, NULL, SPEC_FLAG, 0, "do not retry the job: it would fail again"},
    [RETRY_IN] = {"retry-in", 0, "D", SPEC_LONG_TIME, 0,
                  "try again after this time (default: by the backoff of the policy)"},
    {.name = NULL},
};

static const struct positional positionals[] = {
    {"JOB", SPEC_REF, false, false},
    {.meta = NULL},
};

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    lh_failure failure = {
        .error = opt[ERROR].text,
        .permanent = opt[PERMANENT].given > 0,
        .retry_in_ms = opt[RETRY_IN].num,
    };
    lh_ref ref;
    lh_jobs *after = NULL;
    int exit, rc;

    if (opt[PERMANENT].given && opt[RETRY_IN].given)
        return usage_error(args->command,
                           "--permanent and --retry-in exclude each other: allowed: one of them");
    if (opt[RETRY_IN].given && failure.retry_in_ms == 0)
        failure.retry_in_ms = LH_NOW; /* for the library, 0 means the backoff of the policy */
    exit = jobs_held(args, &opt[TOKEN], &ref);
    if (exit == 0)
        exit = cli_open(cli, ACCESS_WRITE | ACCESS_HOLDER);
    if (exit != 0)
        return exit;
    failure.job = ref.job;
    failure.token = ref.token;
    rc = lh_fail(cli->store, &failure, 1, NULL, cli->json ? &after : NULL);
    if (rc != LH_OK)
        exit = cli_failed(cli, rc);
    else
        jobs_print_after(cli, after);
    return exit;
}

static const struct example examples[] = {
    {"leasehold fail 17 --token 3 --error 'no route to host'", "try again, after the backoff"},
    {"leasehold fail 17 --token 3 --error 'no such address' --permanent", "do not try again"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"there is no such job", 3},
    {"the lease is lost: the job was claimed by another worker, has ended or was cancelled; "
     "nothing was changed",
     4},
    {.when = NULL},
};

const struct command cmd_fail = {
    .name = "fail",
    .args = "JOB --token T --error MSG [--permanent | --retry-in D]",
    .summary = "report that a held job failed",
    .text = "Fails a job: it is retried after the backoff of its policy. After its last attempt, "
            "or with --permanent, it stays failed.",
    .positionals = positionals,
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
};
