/*
 * leasehold claim: take jobs and hold them.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/cli.h"

enum { KIND, WORKER, COUNT, LEASE, WAIT, REQUEST };

enum { MOST_QUEUES = 64 };

static const struct option options[] = {
    [KIND] = {"kind", 'k', "K", SPEC_NAME, OPTION_REPEATS,
              "only jobs of this kind; may be repeated"},
    [WORKER] = {"worker", 'w', "W", SPEC_NAME, 0,
                "the worker that holds them (default: "
                "USER@HOST)"},
    [COUNT] = {"count", 'n', "N", SPEC_INT(1, 1000), 0, "up to this many, 1 to 1000 (default: 1)"},
    [LEASE] = {"lease", 0, "D", SPEC_LEASE_TIME, 0,
               "how long to hold them, up to 30d (default: the job's, else the policy's)"},
    [WAIT] = {"wait", 0, "D", SPEC_LONG_TIME, 0, "wait up to this long for a job"},
    [REQUEST] =
        {"request", 0, "ID", SPEC_TEXT(200), 0,
         "request id: a repeated call with the same id returns the jobs that the first call got "
         "and still holds"},
    {.name = NULL},
};

static const struct positional positionals[] = {
    {"QUEUE", SPEC_NAME, false, true},
    {.meta = NULL},
};

static void print_jobs(const lh_jobs *jobs)
{
    struct js json = {0};

    for (size_t i = 0; i < jobs->n; i++) {
        js_job(&json, &jobs->job[i], NULL, true);
        js_line(&json);
    }
    js_clear(&json);
}

/** Notes the claimed jobs for cli_finish(). If their output is lost, the user can release them;
 *  otherwise they would stay held until their leases expire. */
static void keep_refs(struct cli *cli, const lh_jobs *jobs)
{
    enum { SHOWN = 8 };
    struct buf refs = {0};

    for (size_t i = 0; i < jobs->n && i < SHOWN; i++)
        buf_format(&refs, " %" PRId64 ":%" PRId64, jobs->job[i].id, jobs->job[i].token);
    if (jobs->n > SHOWN)
        buf_format(&refs, " and %zu more", jobs->n - SHOWN);
    cli_did(cli, "claimed (JOB:TOKEN):%s; \"leasehold release\" returns them to the queue",
            buf_str(&refs));
    buf_clear(&refs);
}

static int nothing(const struct args *args, const struct value *wait)
{
    struct buf queues = {0};
    int exit;

    for (size_t i = 0; i < args->n; i++)
        buf_format(&queues, "%s\"%s\"", i ? ", " : "", args->positional[i].text);
    exit = cli_refused(LH_EMPTY, "no job is pending in %s%s%s", buf_str(&queues),
                       wait->given ? " after " : "", wait->given ? wait->text : "");
    buf_clear(&queues);
    return exit;
}

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    const char **queues;
    char worker[129];
    lh_claim_opts claim = {
        .kinds = opt[KIND].all,
        .n_kinds = opt[KIND].given,
        .worker = opt[WORKER].given ? opt[WORKER].text : cli_default_worker(worker, sizeof worker),
        .n = (size_t)opt[COUNT].num,
        .lease_ms = opt[LEASE].num,
        .wait_ms = opt[WAIT].num,
        .request = opt[REQUEST].text,
    };
    lh_jobs *jobs = NULL;
    int exit, rc;

    if (args->n > MOST_QUEUES)
        return usage_error(args->command, "%zu queues are too many: allowed: 1 to %d", args->n,
                           MOST_QUEUES);
    if (!lh_name_ok(claim.worker))
        return usage_error(args->command, "the default worker name cannot be made of user and "
                                          "host: allowed: --worker W");
    exit = cli_open(cli, ACCESS_WRITE);
    if (exit != 0)
        return exit;
    queues = mem_array(args->n, sizeof *queues);
    for (size_t i = 0; i < args->n; i++)
        queues[i] = args->positional[i].text;
    claim.queues = queues;
    claim.n_queues = args->n;
    claim.cancel = opt[WAIT].given ? cli_cancel() : NULL;
    rc = lh_claim(cli->store, &claim, &jobs);
    if (rc == LH_OK) {
        keep_refs(cli, jobs);
        print_jobs(jobs);
    } else {
        exit = rc == LH_EMPTY ? nothing(args, &opt[WAIT]) : cli_failed(cli, rc);
    }
    lh_jobs_free(jobs);
    free(queues);
    return exit;
}

static const struct example examples[] = {
    {"leasehold claim mail --lease 30s", "the best job of a queue, held for 30 seconds"},
    {"leasehold claim urgent mail -n 10 --wait 1m",
     "up to ten, from urgent first; wait if there is none"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"no job is pending", 3},
    {.when = NULL},
};

const struct command cmd_claim = {
    .name = "claim",
    .args = "QUEUE… [--kind K]… [--worker W] [-n N] [--lease D] [--wait D] [--request ID]",
    .summary = "claim the best pending jobs and hold them",
    .text = "Claims the best pending jobs, one queue after the other in the order given: highest "
            "priority first, then the oldest. Prints one JSON object per job, with or without "
            "--json. Each job is held under a lease, which its token identifies: use the token to "
            "extend the lease, and then to complete, fail or release the job. Expired jobs are "
            "recovered first, so jobs of a crashed worker can be claimed too.\n\nA lease from this "
            "command belongs to no process: it ends when it expires, is released, or an operator "
            "takes it back.",
    .positionals = positionals,
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
};
