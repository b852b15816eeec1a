/*
 * leasehold enqueue: put one job into a queue. bulk.c has --bulk.
 */
#include <inttypes.h>
#include <string.h>

#include "enqueue.h"

enum {
    KIND,
    PRIORITY,
    DELAY,
    AT,
    KEY,
    REQUEST,
    MAX_ATTEMPTS,
    LEASE,
    EXPIRES,
    BACKOFF,
    BACKOFF_CAP,
    WAIT,
    BULK,
};

static const struct option options[] = {
    [KIND] = {"kind", 'k', "K", SPEC_NAME, 0, "the kind of job"},
    [PRIORITY] = {"priority", 'p', "N", SPEC_INT(-32768, 32767), 0,
                  "-32768 to 32767, higher first (default: 0)"},
    [DELAY] = {"delay", 0, "D", SPEC_LONG_TIME, 0, "run after this delay"},
    [AT] = {"at", 0, "T", SPEC_TIME, 0, "run at this time (RFC 3339 with a zone)"},
    [KEY] = {"key", 0, "K", SPEC_TEXT(256), 0,
             "if the queue has a live job with this key, return that job instead"},
    [REQUEST] = {"request", 0, "ID", SPEC_TEXT(200), 0,
                 "request id: a repeated call with the same id returns the same job"},
    [MAX_ATTEMPTS] = {"max-attempts", 0, "N", SPEC_ATTEMPTS, 0,
                      "claims before the job is failed: 1 to 1000000, or unlimited"},
    [LEASE] = {"lease", 0, "D", SPEC_LEASE_TIME, 0, "how long a claim holds the job, up to 30d"},
    [EXPIRES] = {"expires", 0, "D", SPEC_DURATION(1, VALUE_LONG_MAX), 0,
                 "cancel the job if it was not claimed after this time"},
    [BACKOFF] = {"backoff", 0, "D", SPEC_DURATION(1, VALUE_LONG_MAX), 0,
                 "first delay after a failure, in place of the policy's"},
    [BACKOFF_CAP] = {"backoff-cap", 0, "D", SPEC_DURATION(1, VALUE_LONG_MAX), 0,
                     "longest delay after a failure, in place of the policy's"},
    [WAIT] = {"wait", 0, "D", SPEC_LONG_TIME, OPTION_VALUE_OPTIONAL,
              "wait until the job has ended, up to this long"},
    [BULK] = {"bulk", 0, NULL, SPEC_FLAG, 0, "read JSON lines from standard input, one job each"},
    {.name = NULL},
};

static const struct positional positionals[] = {
    {"QUEUE", SPEC_NAME, false, false},
    {"PAYLOAD", SPEC_BYTES, true, false},
    {.meta = NULL},
};

void enqueue_print(const lh_enqueued *enqueued, bool as_json)
{
    struct js json = {0};
    bool shown = enqueued->id != 0;

    if (!as_json) {
        if (shown)
            printf("%" PRId64 "\n", enqueued->id);
        return;
    }
    js_open(&json, '{');
    js_key(&json, "id");
    js_int_or_null(&json, enqueued->id, 0);
    js_key_text(&json, "state", shown ? lh_state_name(enqueued->state) : NULL);
    js_key_bool(&json, "duplicate", enqueued->duplicate);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
}

/** Waits until the job has ended. Returns 0 if it was completed, else 1. */
static int wait_for(struct cli *cli, int64_t id, const struct value *limit)
{
    int64_t wait_ms = limit->text ? limit->num : -1;
    lh_jobs *jobs = NULL;
    const lh_job *job;
    int exit = EXIT_DONE;
    int rc;

    /* Print the id before waiting: the user may need it meanwhile. */
    fflush(stdout);
    rc = lh_job_wait(cli->store, id, wait_ms, cli_cancel(), &jobs);
    if (rc == LH_EMPTY)
        return cli_error(EXIT_FAILED, "job %" PRId64 " has not ended within %s", id, limit->text);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    job = &jobs->job[0];
    if (cli->json)
        js_job_line(job);
    if (job->state != LH_COMPLETED)
        exit = cli_error(EXIT_FAILED, "job %" PRId64 " %s%s%s", id,
                         job->state == LH_FAILED ? "failed" : "was cancelled",
                         job->last_error ? ": " : "", job->last_error ? job->last_error : "");
    lh_jobs_free(jobs);
    return exit;
}

static int enqueue_one(struct cli *cli, const struct args *args, lh_new_job *job)
{
    const struct value *opt = args->option;
    const char *payload = args->n > 1 ? args->positional[1].text : NULL;
    struct buf input = {0};
    lh_enqueued enqueued = {0};
    int exit, rc;

    if (payload != NULL && strcmp(payload, "-") == 0) {
        if (!cli_read_stdin(&input, (size_t)VALUE_PAYLOAD_MAX, "payload")) {
            exit = EXIT_USAGE;
            goto done;
        }
        job->payload = buf_str(&input);
        job->payload_len = input.n;
    } else if (payload != NULL) {
        job->payload = payload;
        job->payload_len = strlen(payload);
    }
    exit = cli_open(cli, ACCESS_WRITE);
    if (exit != 0)
        goto done;
    rc = lh_enqueue(cli->store, args->positional[0].text, job, 1, opt[REQUEST].text, &enqueued);
    if (rc != LH_OK) {
        exit = cli_failed(cli, rc);
        goto done;
    }
    if (enqueued.id == 0)
        cli_note("queue %s has a job with this key that belongs to another role: it is not shown "
                 "to you",
                 args->positional[0].text);
    else
        cli_did(cli, "job %" PRId64 " was enqueued%s", enqueued.id,
                enqueued.duplicate ? " before" : "");
    enqueue_print(&enqueued, cli->json);
    if (opt[WAIT].given && enqueued.id != 0)
        exit = wait_for(cli, enqueued.id, &opt[WAIT]);
done:
    buf_clear(&input);
    return exit;
}

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    lh_new_job job = {
        .kind = opt[KIND].text,
        .priority = (int)opt[PRIORITY].num,
        .delay_ms = opt[DELAY].num,
        .run_at = opt[AT].num,
        .key = opt[KEY].text,
        .max_attempts = opt[MAX_ATTEMPTS].num,
        .lease_ms = opt[LEASE].num,
        .expires_ms = opt[EXPIRES].num,
        .backoff_ms = opt[BACKOFF].num,
        .backoff_cap_ms = opt[BACKOFF_CAP].num,
    };

    if (opt[DELAY].given && opt[AT].given)
        return usage_error(args->command,
                           "--delay and --at exclude each other: allowed: one of them");
    if (!opt[BULK].given)
        return enqueue_one(cli, args, &job);
    if (args->n > 1)
        return usage_error(args->command,
                           "--bulk reads its payloads from standard input: unexpected "
                           "argument \"%s\"",
                           args->positional[1].text);
    if (opt[KEY].given || opt[WAIT].given)
        return usage_error(args->command, "--bulk and --%s exclude each other",
                           opt[KEY].given ? "key" : "wait");
    return enqueue_bulk(cli, args->positional[0].text, &job, opt[REQUEST].text);
}

static const struct example examples[] = {
    {"leasehold enqueue mail '{\"to\":\"a@b.c\"}' --kind welcome", "one job; prints its id"},
    {"leasehold enqueue mail - --delay 5m < letter.txt",
     "the payload from a file, to run in 5 minutes"},
    {"leasehold enqueue mail --bulk < jobs.ndjson", "many jobs, 1000 in a transaction"},
    {"leasehold enqueue mail x --wait 1m", "wait for the outcome: exit 0 if it was completed"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"failed, see the message; with --wait also: the job failed, was cancelled, or has not ended "
     "in "
     "time",
     1},
    {"wrong usage or bad input; nothing was enqueued (--bulk says how many jobs were)", 2},
    {.when = NULL},
};

const struct command cmd_enqueue = {
    .name = "enqueue",
    .args = "QUEUE [PAYLOAD | -] [--kind K] [--priority N] [--delay D | --at T] [--key K] "
            "[--request ID] [--max-attempts N] [--lease D] [--expires D] [--wait [D]]\n"
            "QUEUE --bulk",
    .summary = "put a job into a queue",
    .text =
        "Puts a job into QUEUE and prints its id. The payload is stored byte for byte; - reads "
        "it from standard input. Settings that are not given (attempts, lease, backoff) come "
        "from the policy of the queue and kind.\n\nWith --bulk, standard input has one JSON "
        "object per line: payload (any JSON value), payload_text or payload_base64; kind, "
        "priority, key, max_attempts (a number or \"unlimited\"), run_at or at (RFC 3339), and "
        "the durations delay, lease, expires, backoff, backoff_cap as text (\"30s\") or, with "
        "_ms after the name, in milliseconds. The options of the command apply to keys that a "
        "line leaves out. Jobs are written in transactions of 1000; the command prints their "
        "number at the end. A bad line ends the command: earlier transactions stay, and the "
        "message says how many jobs were written. A file is checked completely before anything "
        "is written. With --request the whole input may be sent again after a failure: no job is "
        "enqueued twice.\n\n--wait takes the next word as its limit if it is a duration; "
        "--wait=30s is never ambiguous.",
    .positionals = positionals,
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
};
