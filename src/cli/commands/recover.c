/*
 * leasehold recover: recover the jobs and leases of dead workers now, and print the report. With
 * --every it repeats, for systems without a running worker.
 */
#include <poll.h>

#include "cli/input/policy_keys.h"
#include "cli/output/report.h"

enum { DRY_RUN, THRESHOLD, ACTION, QUEUE, NOW, EVERY };

/* clang-format off: one a line, as a table */
#define SPEC_THRESHOLD                                                       \
    {                                                                        \
        .kind = VALUE_DURATION, .min = 0, .max = VALUE_LONG_MAX, .word = "0" \
    }
/* clang-format on */

static const struct option options[] = {
    [DRY_RUN] = {"dry-run", 'n', NULL, SPEC_FLAG, 0, "change nothing, print what would be done"},
    [THRESHOLD] = {"threshold", 0, "D", SPEC_THRESHOLD, 0,
                   "recover all jobs whose claim and last heartbeat are at least this old, live "
                   "leases included; 0: all running jobs"},
    [ACTION] = {"action", 0, "A", SPEC_ACTION, 0,
                "what to do with the jobs, instead of the action in their policy"},
    [QUEUE] = {"queue", 'q', "Q", SPEC_NAME, 0, "only jobs of this queue"},
    [NOW] = {"now", 0, NULL, SPEC_FLAG, 0,
             "with --threshold: no quarantine, do not wait for holders to answer or leases to "
             "expire"},
    [EVERY] = {"every", 0, "D", SPEC_DURATION(1, VALUE_DAY), 0,
               "repeat until interrupted: recover each job when it is due, and check everything "
               "at least this often, up to 1d"},
    {.name = NULL},
};

/** Refuses combinations of options that have no meaning. 0, or exit code 2. */
static int check_options(const struct args *args)
{
    static const int one_run[] = {DRY_RUN, THRESHOLD, ACTION, QUEUE};
    const struct value *opt = args->option;

    /* The runs after the first follow the policies of all queues, so an option for the first run
     * only would mislead. */
    for (size_t i = 0; opt[EVERY].given && i < sizeof one_run / sizeof one_run[0]; i++)
        if (opt[one_run[i]].given)
            return usage_error(args->command,
                               "--every and --%s exclude each other: allowed: one of them",
                               options[one_run[i]].name);
    if (opt[NOW].given && !opt[THRESHOLD].given)
        return usage_error(args->command, "--now needs --threshold D: without it no live lease "
                                          "is revoked");
    return 0;
}

static int recover_once(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    lh_recover_opts opts = {
        .dry_run = opt[DRY_RUN].given > 0,
        .by_age = opt[THRESHOLD].given > 0,
        .threshold_ms = opt[THRESHOLD].num,
        .now = opt[NOW].given > 0,
        .action = (lh_action)opt[ACTION].num,
        .queue = opt[QUEUE].text,
        .cancel = cli_cancel(),
        .progress = progress_call,
        .progress_arg = &cli->progress,
    };
    lh_report *report = NULL;
    int exit = 0;
    int rc;

    progress_begin(&cli->progress, "jobs");
    rc = lh_recover(cli->store, &opts, &report);
    progress_wipe(&cli->progress);
    if (rc == LH_EINTR)
        return cli_error(cli_interrupted_exit(), "%s", lh_errmsg(cli->store));
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    report_print(cli, report);
    if (report->failed_recoveries > 0)
        exit = cli_error(EXIT_FAILED, "not everything could be recovered: see the report");
    lh_report_free(report);
    return exit;
}

/* ---- --every --------------------------------------------------------------------------------- */

/** Failures that are temporary: the store is busy, full or unreachable. */
static bool may_pass(int rc)
{
    return rc == LH_EBUSY || rc == LH_EUNREACH || rc == LH_EREADONLY || rc == LH_ENOSPC ||
           rc == LH_EIO || rc == LH_ENOMEM || rc == LH_EUNKNOWN;
}

/** Prints the reports since the last one. */
static void separate(const struct cli *cli)
{
    if (!cli->json)
        putchar('\n');
}

static int print_report(struct cli *cli, int64_t id)
{
    lh_report *report = NULL;
    int rc = lh_report_get(cli->store, id, &report);

    if (rc != LH_OK)
        return rc;
    separate(cli);
    report_print(cli, report);
    lh_report_free(report);
    return LH_OK;
}

/** One round: waits until something is due, recovers it, prints the report. */
static int round_of_upkeep(struct cli *cli, int64_t every_ms)
{
    lh_maintain_opts opts = {.wait_ms = every_ms, .cancel = cli_cancel()};
    lh_maintained done = {0};
    int rc = lh_maintain(cli->store, &opts, &done);

    return rc == LH_OK && done.report != 0 ? print_report(cli, done.report) : rc;
}

/** Opens the store again, because it was replaced (by a restore, for example) or a sync has failed.
 *  Does not create a missing store. */
static int reopen(struct cli *cli, const struct args *args)
{
    int exit;

    lh_close(cli->store);
    cli->store = NULL;
    exit = cli_open(cli, ACCESS_RECOVER);
    if (exit == 0) {
        separate(cli);
        exit = recover_once(cli, args);
    }
    return exit == EXIT_FAILED ? 0 : exit; /* a failed recovery is tried again in the next round */
}

static int keep_recovering(struct cli *cli, const struct args *args)
{
    enum { PAUSE_MS = 1000 };
    int64_t every_ms = args->option[EVERY].num;

    for (;;) {
        int rc, exit;
        /* Print each report at once. Stop if the reader is gone. */
        if (fflush(stdout) != 0 || cli_reader_gone())
            return EXIT_FAILED;
        if (cli_interrupted())
            return EXIT_DONE;
        rc = round_of_upkeep(cli, every_ms);
        if (rc == LH_OK || rc == LH_EINTR)
            continue;
        exit = cli_failed(cli, rc);
        poll(NULL, 0, every_ms < PAUSE_MS ? (int)every_ms : PAUSE_MS); /* a signal ends the wait */
        if (rc == LH_ESTOPPED)
            exit = reopen(cli, args);
        else if (may_pass(rc))
            exit = 0;
        if (exit != 0)
            return exit;
    }
}

static int run(struct cli *cli, const struct args *args)
{
    const struct value *every = &args->option[EVERY];
    bool dry = args->option[DRY_RUN].given > 0;
    int exit = check_options(args);

    if (exit == 0)
        exit = cli_open(cli, dry ? ACCESS_READ : ACCESS_WRITE | ACCESS_RECOVER);
    if (exit != 0)
        return exit;
    exit = recover_once(cli, args);
    if (!every->given)
        return exit;
    /* An interruption is the normal end. */
    if (cli_interrupted())
        return EXIT_DONE;
    return exit <= EXIT_FAILED ? keep_recovering(cli, args) : exit;
}

static const struct example examples[] = {
    {"leasehold recover --dry-run", "what would be recovered now?"},
    {"leasehold recover", "recover it"},
    {"leasehold recover --threshold 2h --queue mail --action fail",
     "fail jobs that have been running for two hours without a heartbeat"},
    {"leasehold recover --every 1m", "repeat it, if no worker runs"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"done, even if nothing was found; or --every was interrupted", 0},
    {"failed, or not everything could be recovered: see the message and the report", 1},
    {"there is no store (--dry-run), or it was removed (--every)", 3},
    {.when = NULL},
};

const struct command cmd_recover = {
    .name = "recover",
    .args = "[--dry-run] [--threshold D [--now]] [--action A] [--queue Q]\n--every D",
    .summary = "recover jobs of dead workers now, and print the report",
    .text =
        "Checks that the store is sound, recovers the jobs of dead workers and jobs whose lease "
        "has expired, frees expired named leases, and prints the report. The report is also "
        "kept: see leasehold-recovery-report(1). It may be run at any time, anywhere, and "
        "several times at once. A job that has meanwhile got a heartbeat, was completed or was "
        "recovered by another process is not touched. Queues with the policy recovery off are "
        "recovered too.\n\nWith --threshold it recovers jobs by age, even from live holders. "
        "Such a job stays in quarantine until its holder has answered or the old lease has "
        "expired, unless --now is given.\n\nWith --every it repeats until SIGINT or SIGTERM, and "
        "prints a report whenever it found something. Each job is recovered when its lease "
        "expires or its worker dies; scheduled jobs are promoted when they are due, and old jobs "
        "are pruned. Workers do all this too, so it is only for stores without a running worker.",
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
};
