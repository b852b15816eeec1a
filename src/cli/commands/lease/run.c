/*
 * leasehold lease run: a command that runs while a named lease is held.
 */
#include <string.h>
#include <sys/wait.h>

#include "cli/cli.h"

enum { OWNER, TTL, WAIT, KILL_AFTER };

static const struct positional positionals[] = {
    {"SCOPE/NAME", SPEC_LEASE_NAME, false, false},
    {.meta = NULL},
};

static const struct option options[] = {
    [OWNER] = {"owner", 'o', "W", SPEC_NAME, 0, "the owner (default: a name unique to this run)"},
    [TTL] = {"ttl", 0, "D", SPEC_LEASE_TIME, 0,
             "the time that each extension adds, up to 30d (default: the scope's, else 5m)"},
    [WAIT] = {"wait", 'w', "D", SPEC_LONG_TIME, OPTION_VALUE_OPTIONAL,
              "if another owner holds it, wait up to this long until it is free"},
    [KILL_AFTER] = {"kill-after", 0, "D", SPEC_DURATION(1, VALUE_DAY), 0,
                    "time from SIGTERM to SIGKILL when the command is stopped (default: 5s)"},
    {.name = NULL},
};

static void trouble(void *arg, const char *text)
{
    cli_log_line(arg, &(lh_log_entry){.level = LH_LOG_WARN, .line = text});
}

/** The exit code of the command, as a shell reports it. */
static int exit_of(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int64_t wait_of(const struct value *wait)
{
    if (!wait->given)
        return 0;
    return wait->text ? wait->num : -1;
}

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    const char *lease = args->positional[0].text;
    const char *slash = strchr(lease, '/'); /* the parser has checked that it exists */
    char scope[129], error[480];
    int status = 0;

    if (args->program_n == 0)
        return usage_error(args->command, "there is no command to run: SCOPE/NAME -- CMD ARGS…");
    lh_lease_run_opts opts = {
        .owner = opt[OWNER].text,
        .ttl_ms = opt[TTL].num,
        .wait_ms = wait_of(&opt[WAIT]),
        .kill_after_ms = opt[KILL_AFTER].num,
        .own_signals = true,
        .tell = trouble,
        .tell_arg = cli,
    };
    int exit = cli_open(cli, ACCESS_WRITE);
    if (exit != 0)
        return exit;
    snprintf(scope, sizeof scope, "%.*s", (int)(slash - lease), lease);
    int rc = lh_lease_run(cli->store, scope, slash + 1, args->program, &opts, &status, error,
                          sizeof error);
    return rc == LH_OK ? exit_of(status) : cli_refused(rc, "%s", error);
}

static const struct example examples[] = {
    {"leasehold lease run deploy/web -- ./deploy.sh", "one deployment at a time, or exit 4"},
    {"leasehold lease run cron/report --wait 10m --ttl 1m -- ./report.sh",
     "wait for a running report; if its process dies, for at most a minute"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"the exit code of the command; 128 plus the signal that killed it", 0},
    {"the command cannot be run", 2},
    {"another holds the lease, or it was lost while the command ran", 4},
    {.when = NULL},
};

const struct command cmd_lease_run = {
    .group = "lease",
    .name = "run",
    .args = "SCOPE/NAME [--owner W] [--ttl D] [--wait [D]] [--kill-after D] -- CMD ARGS…",
    .summary = "hold a named lease while a command runs",
    .text =
        "Acquires the lease, runs the command, and releases the lease when the command has ended "
        "for any reason. The command has the standard streams and the terminal, as if it had "
        "been started alone. It finds the lease in LEASEHOLD_LEASE and its token in "
        "LEASEHOLD_TOKEN. The lease is extended while the command runs.\n\nIf the lease is held, "
        "even by --owner, the exit code is 4. With --wait the program waits until the lease is "
        "released or expires or its holder is proven dead. --wait takes the next word as its "
        "limit if it is a duration; --wait=30s is never ambiguous.\n\nWhen the lease is lost, or "
        "no extension was confirmed in time, all processes that the command has started get "
        "SIGTERM, then SIGKILL, before another owner can acquire the lease. When leasehold is "
        "killed, they are all killed at once. The lease is then free at once if the command had "
        "run for a moment and --owner was not given; otherwise when it expires. Background "
        "processes that the command leaves behind are killed when it ends.\n\nSIGTERM, SIGINT, "
        "SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the command.",
    .positionals = positionals,
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
    .runs = true,
};
