/*
 * leasehold work: run a command for each job, under a lease.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/output/work_lines.h"
#include "cli/output/work_output.h"

enum {
    JOBS,
    BATCH,
    KIND,
    RATE,
    TIMEOUT,
    LEASE,
    HEARTBEAT,
    GRACE,
    KILL_AFTER,
    DRAIN,
    ONCE,
    WORKER,
    PASS_STORE,
    PRINT_OUTPUT,
};

enum { DRAIN_RETRIES = 1, DRAIN_PENDING };

/* clang-format off: one a line, as a table */
#define SPEC_RATE          \
    {                      \
        .kind = VALUE_RATE \
    }
/* clang-format on */

static const struct positional positionals[] = {
    {"QUEUE", SPEC_NAME, false, true},
    {.meta = NULL},
};

static const struct option options[] = {
    [JOBS] = {"jobs", 'j', "N", SPEC_INT(1, 1000), 0, "run up to N jobs at once (default: 1)"},
    [BATCH] = {"batch", 0, "N", SPEC_INT(0, 1000), 0,
               "claim up to N more jobs in advance (default: 0)"},
    [KIND] = {"kind", 'k', "K", SPEC_NAME, OPTION_REPEATS, "only jobs of this kind"},
    [RATE] = {"rate", 0, "N/D", SPEC_RATE, 0, "start at most N jobs per D: 20/1m"},
    [TIMEOUT] = {"timeout", 0, "D", SPEC_DURATION(1, VALUE_LONG_MAX), 0,
                 "stop a run that takes longer: it has failed (default: the policy's, else none)"},
    [LEASE] = {"lease", 'l', "D", SPEC_LEASE_TIME, 0,
               "the lease of each job (default: the job's, else the policy's)"},
    [HEARTBEAT] = {"heartbeat", 0, "D", SPEC_LEASE_TIME, 0,
                   "extend the leases at least this often (default: queue.heartbeat of the "
                   "config file, else 30s)"},
    [GRACE] = {"grace", 0, "D", SPEC_LONG_TIME, 0,
               "on stop, wait this long for running jobs (default: 30s)"},
    [KILL_AFTER] = {"kill-after", 0, "D", SPEC_DURATION(1, VALUE_DAY), 0,
                    "time from SIGTERM to SIGKILL when a command is stopped (default: 5s)"},
    [DRAIN] = {"drain", 0, "HOW", SPEC_CHOICE("retries pending"), OPTION_VALUE_ATTACHED,
               "stop when nothing is pending and no job will be retried (retries, the default), "
               "or when nothing can be claimed now (pending)"},
    [ONCE] = {"once", '1', NULL, SPEC_FLAG, 0, "run one job and stop; exit 3 if there is none"},
    [WORKER] = {"worker", 'w', "LABEL", SPEC_NAME, 0,
                "the name of the worker; a unique suffix is added (default: USER@HOST)"},
    [PASS_STORE] = {"pass-store", 0, NULL, SPEC_FLAG, 0,
                    "pass the store to the command, in LEASEHOLD_STORE"},
    [PRINT_OUTPUT] = {"print-output", 0, NULL, SPEC_FLAG, 0,
                      "print the output of the commands, each line with its job in front"},
    {.name = NULL},
};

/* ---- log ------------------------------------------------------------------------------------- */

struct work {
    struct cli *cli;
    struct work_output *output; /* NULL: the output of commands is not printed */
    bool recovery;              /* this worker runs recoveries */
};

static void log_event(struct work *work, int level, const lh_work_event *event, const char *format,
                      ...) __attribute__((format(printf, 4, 5)));

static void log_event(struct work *work, int level, const lh_work_event *event, const char *format,
                      ...)
{
    char line[1024];
    va_list args;
    lh_log_entry entry = {.level = level, .worker = event->worker, .reason = event->error};

    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    entry.line = line;
    if (event->job != NULL) {
        entry.job = event->job->id;
        entry.token = event->job->token;
        entry.attempt = event->job->attempt;
        entry.queue = event->job->queue;
    }
    cli_log_line(work->cli, &entry);
}

/** Logs only the first line of an error; the job has all of it. */
static int first_line(const char *text)
{
    size_t n = strcspn(text, "\n");
    return n < 300 ? (int)n : 300;
}

static void log_ended(struct work *work, const lh_work_event *event)
{
    static const char *const words[] = {
        [LH_RAN_OK] = "completed",
        [LH_RAN_FAILED] = "failed",
        [LH_RAN_PERMANENT] = "failed for good",
        [LH_RAN_NOT_NOW] = "postponed",
        [LH_RAN_CRITICAL] = "released (the worker stops)",
        [LH_RAN_RELEASED] = "released",
        [LH_RAN_LOST] = "lost",
    };
    const char *error = event->error ? event->error : "";
    bool well = event->outcome == LH_RAN_OK || event->outcome == LH_RAN_RELEASED;
    bool stops = event->outcome == LH_RAN_CRITICAL; /* the worker stops after this job */
    char span[32];

    log_event(work,
              well    ? LH_LOG_INFO
              : stops ? LH_LOG_ERROR
                      : LH_LOG_WARN,
              event, "job %" PRId64 " %s after %s%s%.*s", event->job->id, words[event->outcome],
              lh_duration_format(event->run_ms, span, sizeof span), error[0] ? ": " : "",
              first_line(error), error);
}

static void on_event(void *arg, const lh_work_event *event)
{
    struct work *work = arg;

    work_lines_event(work->cli->lines, event);
    work_output_event(work->output, event);
    switch (event->what) {
    case LH_WORK_READY:
        log_event(work, LH_LOG_INFO, event, "worker %s is ready", event->worker);
        break;
    case LH_WORK_STARTED:
        log_event(work, LH_LOG_DEBUG, event, "job %" PRId64 " started", event->job->id);
        break;
    case LH_WORK_PROGRESS:
    case LH_WORK_OUTPUT:
        break;
    case LH_WORK_ENDED:
        log_ended(work, event);
        break;
    case LH_WORK_TROUBLE:
        log_event(work, LH_LOG_WARN, event, "%s", event->error);
        break;
    case LH_WORK_WELL:
        log_event(work, LH_LOG_INFO, event, "resolved: %s", event->error);
        break;
    case LH_WORK_WAITING:
        log_event(work, LH_LOG_INFO, event,
                  "nothing is pending: waiting for jobs that will be retried");
        break;
    case LH_WORK_STOPPING:
        if (event->running > 0)
            log_event(work, LH_LOG_INFO, event, "stopping: waiting for %zu job%s", event->running,
                      text_plural((int64_t)event->running));
        break;
    case LH_WORK_STOPPED:
        log_event(work, LH_LOG_INFO, event, "worker %s has stopped", event->worker);
        break;
    }
}

/* ---- the store ------------------------------------------------------------------------------- */

/** Opens the store again, because it was replaced (by a restore, for example) or a sync has
 *  failed. */
static int reopen(void *arg, lh_store **store, char *errmsg, size_t errlen)
{
    struct work *work = arg;
    lh_open_opts opts = cli_opts(work->cli, ACCESS_HOLDER);

    opts.no_recovery = !work->recovery;
    lh_close(*store);
    *store = work->cli->store = NULL;
    int rc = lh_open(work->cli->url, &opts, &work->cli->store);
    if (rc != LH_OK) {
        snprintf(errmsg, errlen, "%s", lh_errmsg(work->cli->store));
        lh_close(work->cli->store);
        work->cli->store = NULL;
    }
    *store = work->cli->store;
    return rc;
}

static int end(int rc, const char *why)
{
    if (rc == LH_OK)
        return EXIT_DONE;
    if (rc == LH_EMPTY)
        return EXIT_NOTHING;
    return cli_refused(rc, "%s", why[0] != '\0' ? why : lh_status_text(rc));
}

/** Counts the jobs that are left in a drained queue but cannot be claimed, because the queue is
 *  paused. */
static void warn_of_paused(struct cli *cli, const lh_work_opts *opts)
{
    lh_queues *all = NULL;

    if ((!opts->drain && !opts->drain_pending) || cli->store == NULL ||
        lh_queue_list(cli->store, &all) != LH_OK)
        return;
    for (size_t i = 0; i < all->n; i++) {
        const lh_queue *q = &all->queue[i];
        bool ours = false;
        for (size_t k = 0; k < opts->n_queues; k++)
            ours = ours || strcmp(opts->queues[k], q->queue) == 0;
        if (!ours || !q->paused || q->pending == 0)
            continue;
        char line[400];
        snprintf(line, sizeof line,
                 "queue \"%s\" is paused: %" PRId64 " pending job%s %s left "
                 "(see 'leasehold queue resume %s')",
                 q->queue, q->pending, text_plural(q->pending), q->pending == 1 ? "is" : "are",
                 q->queue);
        cli_log_line(cli, &(lh_log_entry){.level = LH_LOG_WARN, .line = line, .queue = q->queue});
    }
    lh_queues_free(all);
}

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    struct work work = {.cli = cli};
    char why[480] = "";
    bool recovery;

    if (args->program_n == 0)
        return usage_error(args->command, "there is no command to run: QUEUE… -- CMD ARGS…");
    lh_work_opts opts = {
        .n_queues = args->n,
        .kinds = opt[KIND].all,
        .n_kinds = opt[KIND].given,
        .label = opt[WORKER].text,
        .jobs = (size_t)opt[JOBS].num,
        .ahead = (size_t)opt[BATCH].num,
        .lease_ms = opt[LEASE].num,
        .timeout_ms = opt[TIMEOUT].num,
        .rate_n = opt[RATE].num,
        .rate_per_ms = opt[RATE].num2,
        .grace_ms = opt[GRACE].given && opt[GRACE].num == 0 ? LH_NOW : opt[GRACE].num,
        .kill_after_ms = opt[KILL_AFTER].num,
        .drain = opt[DRAIN].given > 0 && opt[DRAIN].num != DRAIN_PENDING,
        .drain_pending = opt[DRAIN].given > 0 && opt[DRAIN].num == DRAIN_PENDING,
        .once = opt[ONCE].given > 0,
        .command = args->program,
        .store_url = opt[PASS_STORE].given ? cli->url : NULL,
        .own_signals = true,
        .reopen = reopen,
        .reopen_arg = &work,
        .tell = on_event,
        .tell_arg = &work,
        .tell_output = opt[PRINT_OUTPUT].given > 0,
    };
    const char **queues = arena_alloc(&cli->config.arena, (args->n + 1) * sizeof *queues);
    for (size_t i = 0; i < args->n; i++)
        queues[i] = args->positional[i].text;
    opts.queues = queues;
    cli_worker_settings(cli, &opts.heartbeat_ms, &opts.multiplier, &opts.detection_ms, &recovery);
    opts.no_recovery = !recovery;
    work.recovery = recovery;
    if (opt[HEARTBEAT].given)
        opts.heartbeat_ms = opt[HEARTBEAT].num;
    /* Check these before the store is opened, because opening may create it. */
    int rc = lh_worker_check(&opts, why, sizeof why);
    if (rc != LH_OK)
        return end(rc, why);
    int exit = cli_open(cli, ACCESS_WRITE | ACCESS_STARTUP);
    if (exit == 0)
        exit = cli_apply_config(cli);
    if (exit != 0)
        return exit;
    if (!cli->log_given && cli->log_level < LH_LOG_INFO)
        cli->log_level = LH_LOG_INFO; /* without a terminal a worker logs what it does */
    cli->never_wait = true;           /* a blocked write would make the worker miss its deadlines */
    cli->lines = work_lines_new();
    if (opts.tell_output)
        work.output = work_output_new(cli);
    rc = lh_worker_run(cli->store, &opts, NULL, why, sizeof why);
    work_output_free(work.output);
    work_lines_free(cli->lines);
    cli->lines = NULL;
    if (rc == LH_OK)
        warn_of_paused(cli, &opts);
    return end(rc, why);
}

static const struct example examples[] = {
    {"leasehold work mail -- ./send.sh", "run ./send.sh for each job, with the payload on its "
                                         "standard input"},
    {"leasehold work mail news -j 4 --drain -- python3 send.py",
     "four jobs at once, from two queues, until both are empty"},
    {"leasehold work embeddings --rate 20/1m --batch 10 -- ./embed", "no more than an API allows"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"stopped by a signal, or drained (with a warning if a paused queue still has jobs); with "
     "--once: the job was completed",
     0},
    {"a command exited with 78: this worker cannot do its work; with --once: the job was not "
     "completed",
     1},
    {"the command cannot be run", 2},
    {"--once, and no job is pending", 3},
    {.when = NULL},
};

const struct command cmd_work = {
    .name = "work",
    .args = "QUEUE… [-j N] [--batch N] [--kind K]… [--rate N/D] [--timeout D] [--lease D]\n"
            "QUEUE… [--drain[=HOW] | --once] [--heartbeat D] [--grace D] [--worker LABEL] "
            "[--print-output] "
            "-- CMD ARGS…",
    .summary = "run a command for each job, under a lease",
    .text =
        "Claims jobs and runs the command once for each. The payload is on its standard input; "
        "LEASEHOLD_JOB_ID, _TOKEN, _QUEUE, _KIND, _ATTEMPT, _MAX_ATTEMPTS, _CHECKPOINT and "
        "_WORKER describe the job. Its standard output (the first 1 MiB) becomes the result, the "
        "end of its standard error the error. Both streams of every run are kept: leasehold logs "
        "JOB shows them. The worker extends the lease, so a busy command never loses it.\n\nExit "
        "code 0 completes the job. 75 means not now: the job is released with the backoff delay, "
        "and the attempt is refunded. 65 fails the job permanently. 78 means that this worker "
        "cannot do the work: the job is released and the worker stops with exit code 1. Any "
        "other code, or a signal, is a failure: the job is retried.\n\nA command can report its "
        "progress in lines written to the descriptor in $LEASEHOLD_FD: progress 40, stage "
        "testing, checkpoint {\"page\": 7}. The next attempt gets the last checkpoint.\n\nWhen "
        "the lease is lost, the job is cancelled, its time is up or no heartbeat was confirmed "
        "in time, all processes that the command has started get SIGTERM, then SIGKILL. When the "
        "worker is killed, they are all killed at once, and the job returns to the queue. "
        "Background processes that a command leaves behind are killed when it ends.\n\n--drain "
        "stops the worker when nothing is pending and no claimed job will be retried, as after a "
        "failure or exit code 75. It does not wait for jobs that were enqueued for later and "
        "never claimed, nor for jobs of other workers. It does wait for pending jobs that the "
        "rate, the concurrency or the exclusive lease of a queue keeps from running. "
        "--drain=pending waits neither for retries nor for those.\n\nAfter SIGTERM, SIGINT or "
        "SIGHUP the worker claims nothing more and waits up to --grace for running jobs; then it "
        "stops them and releases them, without counting the attempt. After a second signal it "
        "does so at once.",
    .positionals = positionals,
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
    .runs = true,
};
