/*
 * leasehold schedule add, list, remove: jobs that are enqueued periodically, by a cron line.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/cli.h"

static void print_json(const lh_schedule *schedule)
{
    struct js json = {0};

    js_schedule(&json, schedule);
    js_line(&json);
    js_clear(&json);
}

/* ---- add ------------------------------------------------------------------------------------- */

enum {
    CRON,
    EVERY,
    TZ,
    CATCH_UP,
    KIND,
    PRIORITY,
    KEY,
    MAX_ATTEMPTS,
    LEASE,
    EXPIRES,
    BACKOFF,
    BACKOFF_CAP,
};

#define CATCH_UP_WORDS "once none all"

static const struct option add_options[] = {
    [CRON] = {"cron", 'c', "LINE", SPEC_TEXT(256), 0,
              "minute, hour, day of month, month, day of week; or @hourly, @daily, @weekly, "
              "@monthly, @yearly"},
    [EVERY] = {"every", 'e', "D", SPEC_DURATION(1000, VALUE_LONG_MAX), 0,
               "the interval, 1s or more; the first job comes after one interval"},
    [TZ] = {"tz", 0, "ZONE", SPEC_TEXT(64), 0,
            "the time zone of --cron, like Europe/Berlin (default: UTC)"},
    [CATCH_UP] = {"catch-up", 0, "HOW", SPEC_CHOICE(CATCH_UP_WORDS), 0,
                  "what to do about missed times (default: once)"},
    [KIND] = {"kind", 'k', "K", SPEC_NAME, 0, "the kind of the jobs"},
    [PRIORITY] = {"priority", 'p', "N", SPEC_INT(-32768, 32767), 0,
                  "-32768 to 32767, higher first (default: 0)"},
    [KEY] = {"key", 0, "K", SPEC_TEXT(256), 0,
             "if the queue has a live job with this key, enqueue nothing"},
    [MAX_ATTEMPTS] = {"max-attempts", 0, "N", SPEC_ATTEMPTS, 0,
                      "claims before a job is failed: 1 to 1000000, or unlimited"},
    [LEASE] = {"lease", 0, "D", SPEC_LEASE_TIME, 0, "how long a claim holds a job, up to 30d"},
    [EXPIRES] = {"expires", 0, "D", SPEC_DURATION(1, VALUE_LONG_MAX), 0,
                 "cancel a job that was not claimed after this time"},
    [BACKOFF] = {"backoff", 0, "D", SPEC_DURATION(1, VALUE_LONG_MAX), 0,
                 "first delay after a failure, in place of the policy's"},
    [BACKOFF_CAP] = {"backoff-cap", 0, "D", SPEC_DURATION(1, VALUE_LONG_MAX), 0,
                     "longest delay after a failure, in place of the policy's"},
    {.name = NULL},
};

static const struct positional add_positionals[] = {
    {"NAME", SPEC_NAME, false, false},
    {"QUEUE", SPEC_NAME, false, false},
    {"PAYLOAD", SPEC_BYTES, true, false},
    {.meta = NULL},
};

/** With --json prints the schedule as it is now. */
static int print_one(struct cli *cli, const char *name)
{
    lh_schedules *schedules = NULL;
    int rc;

    if (!cli->json)
        return 0;
    rc = lh_schedule_list(cli->store, &schedules);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    for (size_t i = 0; i < schedules->n; i++)
        if (strcmp(schedules->schedule[i].name, name) == 0)
            print_json(&schedules->schedule[i]);
    lh_schedules_free(schedules);
    return 0;
}

/** Checks the options before the store is opened, because opening may create it. */
static int check_timing(const struct args *args, const char *cron, const char *zone)
{
    char why[512];
    int64_t next;
    int rc = lh_schedule_next(cron, zone, 0, &next, why, sizeof why);

    if (rc == LH_OK)
        return 0;
    return rc == LH_EINVAL ? usage_error(args->command, "%s", why) : cli_refused(rc, "%s", why);
}

static bool read_payload(const struct args *args, struct buf *input, lh_new_job *job)
{
    const char *payload = args->n > 2 ? args->positional[2].text : NULL;

    if (payload == NULL)
        return true;
    job->payload = payload;
    job->payload_len = strlen(payload);
    if (strcmp(payload, "-") != 0)
        return true;
    if (!cli_read_stdin(input, (size_t)VALUE_PAYLOAD_MAX, "payload"))
        return false;
    job->payload = buf_str(input);
    job->payload_len = input->n;
    return true;
}

static int add(struct cli *cli, const struct args *args, lh_schedule *schedule)
{
    struct buf input = {0};
    int exit = read_payload(args, &input, &schedule->job) ? 0 : EXIT_USAGE;

    if (exit == 0)
        exit = cli_open(cli, ACCESS_WRITE);
    if (exit == 0) {
        int rc = lh_schedule_set(cli->store, schedule);
        exit = rc == LH_OK ? print_one(cli, schedule->name) : cli_failed(cli, rc);
    }
    buf_clear(&input);
    return exit;
}

static int run_add(struct cli *cli, const struct args *args)
{
    static const lh_catch_up catch_up[] = {LH_CATCH_UP_ONCE, LH_CATCH_UP_ONCE, LH_CATCH_UP_NONE,
                                           LH_CATCH_UP_ALL};
    const struct value *opt = args->option;
    char every[300];
    lh_schedule schedule = {
        .name = args->positional[0].text,
        .queue = args->positional[1].text,
        .cron = opt[CRON].text,
        .zone = opt[TZ].text,
        .catch_up = catch_up[opt[CATCH_UP].num],
        .job = {.kind = opt[KIND].text,
                .priority = (int)opt[PRIORITY].num,
                .key = opt[KEY].text,
                .max_attempts = opt[MAX_ATTEMPTS].num,
                .lease_ms = opt[LEASE].num,
                .expires_ms = opt[EXPIRES].num,
                .backoff_ms = opt[BACKOFF].num,
                .backoff_cap_ms = opt[BACKOFF_CAP].num},
    };

    if (!opt[CRON].given == !opt[EVERY].given)
        return usage_error(args->command,
                           "schedule add needs --cron LINE or --every D, one of them");
    if (opt[EVERY].given && opt[TZ].given)
        return usage_error(args->command, "--every and --tz exclude each other: an interval is the "
                                          "same everywhere");
    if (opt[EVERY].given) {
        snprintf(every, sizeof every, "@every %s", opt[EVERY].text);
        schedule.cron = every;
    }
    int exit = check_timing(args, schedule.cron, schedule.zone);
    return exit != 0 ? exit : add(cli, args, &schedule);
}

static const struct example add_examples[] = {
    {"leasehold schedule add nightly reports --cron '30 2 * * *' --tz Europe/Berlin",
     "a job every night"},
    {"leasehold schedule add sync feeds '{\"all\":true}' --every 5m --key sync",
     "every five minutes, unless the last job has not ended"},
    {"leasehold schedule add dunning mail --cron '0 9 * * mon-fri' --catch-up none",
     "on workdays; missed times are not made up for"},
    {.line = NULL},
};

const struct command cmd_schedule_add = {
    .group = "schedule",
    .name = "add",
    .args = "NAME QUEUE [PAYLOAD | -] (--cron LINE [--tz ZONE] | --every D) [--catch-up HOW] "
            "[--kind K] [--priority N] [--key K] [--max-attempts N] [--lease D] [--expires D]",
    .summary = "enqueue a job periodically",
    .text =
        "Enqueues a job into QUEUE at the times of the cron line, or at every interval. Each "
        "time it is enqueued once, however many workers run: any process that claims, waits for "
        "jobs or maintains the store does it. A schedule of the same name is replaced. With the "
        "same line and zone its times stay the same, so the command may be repeated.\n\nThe five "
        "fields take numbers, names (jan, mon), ranges (9-17), steps (*/15) and lists (0,30); 0 "
        "and 7 are Sunday. If day of month and day of week are both given (neither begins with "
        "*), one of them is enough. A time that is skipped when clocks are put forward is due at "
        "the moment of the change; a time that occurs twice is due the first time. If the hour "
        "is *, every hour that passes counts.\n\nA time is missed if no process ran within a "
        "minute of it, or before the next one. With --catch-up once, one job makes up for all "
        "missed times; with none, none does; with all, each gets its job. The event "
        "schedule.missed says what was missed.",
    .positionals = add_positionals,
    .options = add_options,
    .examples = add_examples,
    .run = run_add,
};

/* ---- list ------------------------------------------------------------------------------------ */

static void list_row(struct table *table, const lh_schedule *schedule)
{
    char text[64];

    table_cell(table, STYLE_NONE, schedule->name);
    table_cell(table, STYLE_NONE, schedule->queue);
    table_cell(table, STYLE_NONE, schedule->cron);
    table_cell(table, STYLE_NONE,
               strncmp(schedule->cron, "@every", 6) == 0 ? NULL : schedule->zone);
    table_cell(table, STYLE_NONE,
               schedule->last_at ? lh_time_format(schedule->last_at, text, sizeof text) : NULL);
    table_cell(table, schedule->error ? STYLE_RED : STYLE_NONE,
               schedule->error ? "failed" : lh_time_format(schedule->next_at, text, sizeof text));
}

static int run_list(struct cli *cli, const struct args *args)
{
    static const char *const heads[] = {"SCHEDULE", "QUEUE", "CRON", "ZONE", "LAST", "NEXT", NULL};
    lh_schedules *schedules = NULL;
    struct table table;
    int exit = cli_open(cli, ACCESS_READ);
    int rc;

    (void)args;
    if (exit != 0)
        return exit;
    rc = lh_schedule_list(cli->store, &schedules);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    table_begin(&table, heads);
    for (size_t i = 0; i < schedules->n; i++) {
        if (cli->json)
            print_json(&schedules->schedule[i]);
        else
            list_row(&table, &schedules->schedule[i]);
    }
    table_end(&table);
    for (size_t i = 0; i < schedules->n && !cli->json; i++)
        if (schedules->schedule[i].error != NULL)
            cli_note("schedule %s enqueues nothing: %s", schedules->schedule[i].name,
                     schedules->schedule[i].error);
    lh_schedules_free(schedules);
    return 0;
}

static const struct example list_examples[] = {
    {"leasehold schedule list", "the times of the last job and of the next"},
    {.line = NULL},
};

const struct command cmd_schedule_list = {
    .group = "schedule",
    .name = "list",
    .args = "",
    .summary = "list the schedules",
    .text = "Lists the schedules with their lines and the times of the last and the next job. "
            "Times are UTC.",
    .examples = list_examples,
    .run = run_list,
};

/* ---- remove ---------------------------------------------------------------------------------- */

static const struct positional remove_positionals[] = {
    {"NAME", SPEC_NAME, false, false},
    {.meta = NULL},
};

static int run_remove(struct cli *cli, const struct args *args)
{
    int exit = cli_open(cli, ACCESS_WRITE);
    int rc;

    if (exit != 0)
        return exit;
    rc = lh_schedule_remove(cli->store, args->positional[0].text);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    if (cli->json) {
        struct js json = {0};
        js_open(&json, '{');
        js_key_text(&json, "name", args->positional[0].text);
        js_key_bool(&json, "removed", true);
        js_close(&json, '}');
        js_line(&json);
        js_clear(&json);
    }
    return 0;
}

static const struct example remove_examples[] = {
    {"leasehold schedule remove nightly", "stop the schedule"},
    {.line = NULL},
};

static const struct exit_note remove_exits[] = {
    {"there is no such schedule", 3},
    {.when = NULL},
};

const struct command cmd_schedule_remove = {
    .group = "schedule",
    .name = "remove",
    .args = "NAME",
    .summary = "remove a schedule",
    .text = "Removes a schedule. Jobs that it has enqueued stay.",
    .positionals = remove_positionals,
    .examples = remove_examples,
    .exits = remove_exits,
    .run = run_remove,
};
