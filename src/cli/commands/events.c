/*
 * leasehold events: print the events of the store, and follow them.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/cli.h"

enum { FOLLOW, JOB, TYPE, QUEUE, SINCE, AFTER, LIMIT };

static const struct option options[] = {
    [FOLLOW] = {"follow", 'f', NULL, SPEC_FLAG, 0, "keep printing events as they happen"},
    [JOB] = {"job", 'j', "J", SPEC_ID, 0, "only events of this job"},
    [TYPE] = {"type", 't', "TYPE", SPEC_NAME, 0,
              "only events of this type: job.failed, or job for all that begin with \"job.\""},
    [QUEUE] = {"queue", 'q', "Q", SPEC_NAME, 0, "only events of this queue"},
    [SINCE] = {"since", 0, "D|T", SPEC_TEXT(64), 0,
               "only newer events: a duration (1h30m) or a time (2026-01-15T10:00:00Z)"},
    [AFTER] = {"after", 0, "ID", SPEC_INT(0, VALUE_ID_MAX), 0,
               "events after this id, oldest first (default: the newest events)"},
    [LIMIT] = {"limit", 'n', "N", SPEC_INT(1, 10000), 0,
               "at most this many, 1 to 10000 (default: 100); with --follow: at the start"},
    {.name = NULL},
};

static void add(struct buf *line, const char *before, const char *text)
{
    if (text == NULL)
        return;
    buf_text(line, before);
    text_visible(line, text, strlen(text));
}

static void print_text(const lh_event *event, bool colors)
{
    struct buf line = {0};
    char time[64];

    buf_format(&line, "%6" PRId64 "  %s%s%s  %-18s", event->id, style_on(STYLE_DIM, colors),
               lh_time_format(event->at, time, sizeof time), style_off(STYLE_DIM, colors),
               event->type);
    if (event->job > 0)
        buf_format(&line, "  job %" PRId64, event->job);
    add(&line, "  queue ", event->queue);
    add(&line, "  lease ", event->lease);
    add(&line, "  worker ", event->worker);
    if (event->from != NULL && event->to != NULL)
        buf_format(&line, "  %s → %s", event->from, event->to);
    add(&line, "  by ", event->actor);
    add(&line, "  ", event->reason);
    puts(buf_str(&line));
    buf_clear(&line);
}

static void print_events(const struct cli *cli, const lh_events *events)
{
    bool colors = text_colors(stdout);
    struct js json = {0};

    for (size_t i = 0; i < events->n; i++) {
        if (cli->json) {
            js_event(&json, &events->event[i]);
            js_line(&json);
        } else {
            print_text(&events->event[i], colors);
        }
    }
    js_clear(&json);
}

/** Reads the point in time of --since. 0, or exit code 2. */
static int read_since(struct cli *cli, const struct args *args, int64_t *since)
{
    static const struct value_spec duration = SPEC_LONG_TIME, time = SPEC_TIME;
    const char *text = args->option[SINCE].text;
    char why[VALUE_WHY], shown[128];
    struct value value = {0};

    if (text == NULL)
        return 0;
    if (value_parse(&duration, text, &value, why)) {
        *since = lh_now(cli->store) - value.num;
        return 0;
    }
    value = (struct value){0};
    if (value_parse(&time, text, &value, why)) {
        *since = value.num;
        return 0;
    }
    return usage_error(args->command,
                       "--since %s is neither a duration nor a time: allowed: 1h30m, or "
                       "2026-01-15T10:00:00Z",
                       value_quote(text, shown, sizeof shown));
}

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    lh_event_filter filter = {
        .job = opt[JOB].num,
        .type = opt[TYPE].text,
        .queue = opt[QUEUE].text,
        .after = opt[AFTER].num,
        .limit = opt[LIMIT].given ? (size_t)opt[LIMIT].num : 100,
        .newest = !opt[AFTER].given,
    };
    int exit = cli_open(cli, ACCESS_READ);

    if (exit != 0 || (exit = read_since(cli, args, &filter.since)) != 0)
        return exit;
    for (;;) {
        lh_events *events = NULL;
        int rc = lh_event_list(cli->store, &filter, &events);
        if (rc < 0) {
            exit = cli_failed(cli, rc);
            break;
        }
        if (rc == LH_OK && events != NULL) {
            print_events(cli, events);
            if (events->n > 0)
                filter.after = events->event[events->n - 1].id;
        }
        lh_events_free(events);
        if (!opt[FOLLOW].given)
            break;
        /* Print each event at once. Check between waits whether the reader is gone: if the store
         * has no events, no write fails. */
        if (fflush(stdout) != 0 || cli_reader_gone()) {
            exit = EXIT_FAILED;
            break;
        }
        filter.newest = false;
        filter.limit = 10000;
        filter.wait_ms = 1000;
        filter.cancel = cli_cancel();
    }
    return exit;
}

static const struct example examples[] = {
    {"leasehold events --follow", "watch events as they happen"},
    {"leasehold events --job 17", "what happened to job 17"},
    {"leasehold events --type job.failed --queue mail --since 1h", "what failed in the last hour"},
    {.line = NULL},
};

const struct command cmd_events = {
    .name = "events",
    .args = "[--follow] [--job J] [--type TYPE] [--queue Q] [--since D|T] [--after ID] [--limit N]",
    .summary = "the events of the store",
    .text = "Prints events, oldest first: failures, retries, releases, recoveries, cancellations, "
            "and every change by an operator. With the policy audit full also enqueues, claims and "
            "completions. Without --after it prints the newest events.",
    .options = options,
    .examples = examples,
    .run = run,
};
