/*
 * leasehold status: queues, workers, recovery and the health of the store.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/output/metrics.h"
#include "cli/output/report.h"

enum { METRICS, FAIL_ON, MAX_AGE };

static const struct option options[] = {
    [METRICS] = {"metrics", 0, NULL, SPEC_FLAG, 0, "print in the text format of Prometheus"},
    [FAIL_ON] =
        {"fail-on", 0, "WHAT", SPEC_CHOICE("stale degraded failed paused no-worker"),
         OPTION_REPEATS,
         "exit with 1 on this condition: stale (something should have been recovered), degraded "
         "(the store or a worker), failed (there are failed jobs), paused (a queue), no-worker "
         "(no worker is alive); may be repeated"},
    [MAX_AGE] = {"max-age", 0, "D", SPEC_LONG_TIME, 0,
                 "exit with 1 if a job has been pending longer than this"},
    {.name = NULL},
};

/* ---- JSON ------------------------------------------------------------------------------------ */

static void key_known(struct js *json, const char *key, int64_t bytes)
{
    if (bytes >= 0) {
        js_key_int(json, key, bytes);
        return;
    }
    js_key(json, key);
    js_null(json);
}

static void print_json(const lh_queues *queues, const lh_store_info *info, const lh_report *last)
{
    struct js json = {0};

    js_open(&json, '{');
    js_key(&json, "queues");
    js_open(&json, '[');
    for (size_t i = 0; i < queues->n; i++)
        js_queue(&json, &queues->queue[i], false);
    js_close(&json, ']');
    js_key(&json, "workers");
    js_open(&json, '{');
    js_key_int(&json, "alive", info->workers_alive);
    js_key_int(&json, "late", info->workers_late);
    js_key_int(&json, "dead", info->workers_dead);
    js_key_int(&json, "degraded", info->workers_degraded);
    js_close(&json, '}');
    js_key(&json, "stale");
    js_open(&json, '{');
    js_key_int(&json, "jobs", info->stale_jobs);
    js_key_int(&json, "leases", info->stale_leases);
    js_close(&json, '}');
    js_key(&json, "last_recovery");
    if (last != NULL)
        js_report(&json, last, true);
    else
        js_null(&json);
    js_key_text(&json, "degraded", info->degraded[0] ? info->degraded : NULL);
    js_key(&json, "store");
    js_open(&json, '{');
    js_key_text(&json, "url", info->url);
    js_key_text(&json, "kind", info->kind);
    js_key_bool(&json, "ok", info->degraded[0] == '\0');
    js_key_text(&json, "uuid", info->uuid);
    js_key_int(&json, "schema", info->schema);
    js_key_int(&json, "epoch", info->epoch);
    js_key_int(&json, "file_bytes", info->file_bytes);
    key_known(&json, "wal_bytes", info->wal_bytes);
    key_known(&json, "free_bytes", info->free_bytes);
    js_key_int(&json, "changes", info->changes);
    js_key_int(&json, "clock_skew_ms", info->clock_skew_ms);
    js_close(&json, '}');
    js_key_time(&json, "next_due_at", info->next_due_at);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void count(struct table *table, int64_t n, enum style style)
{
    char text[32];

    snprintf(text, sizeof text, "%" PRId64, n);
    table_cell(table, n == 0 ? STYLE_DIM : style, text);
}

/** Prints the last recovery, and the next one if it is due. */
static void print_recovery(const lh_store_info *info, const lh_report *last, int64_t now)
{
    char time[64], when[64];
    struct buf line = {0};

    if (last != NULL)
        report_line(last, now, &line);
    text_field("last recovery", "%s", line.n ? buf_str(&line) : "never");
    buf_clear(&line);
    if (info->next_due_at != 0 && info->next_due_at <= now)
        text_field("next due", "now");
    else if (info->next_due_at != 0)
        text_field("next due", "%s (%s)", lh_time_format(info->next_due_at, time, sizeof time),
                   text_when(info->next_due_at, now, when, sizeof when));
}

/** Prints sizes and free space, which are only known for a file: a server does not report them. */
static void print_size(const lh_store_info *info)
{
    char file[32], part[32];
    struct buf line = {0};

    buf_text(&line, text_bytes(info->file_bytes, file, sizeof file));
    if (info->wal_bytes >= 0)
        buf_format(&line, ", log %s", text_bytes(info->wal_bytes, part, sizeof part));
    if (info->free_bytes >= 0)
        buf_format(&line, ", %s free on the device",
                   text_bytes(info->free_bytes, part, sizeof part));
    text_field("size", "%s", buf_str(&line));
    buf_clear(&line);
}

static void print_text(const lh_queues *queues, const lh_store_info *info, const lh_report *last,
                       int64_t now)
{
    static const char *const heads[] = {"QUEUE",      ">SCHEDULED", ">PENDING",   ">RUNNING",
                                        ">COMPLETED", ">FAILED",    ">CANCELLED", ">OLDEST PENDING",
                                        "",           NULL};
    bool colors = text_colors(stdout);
    enum style bad = info->degraded[0] ? STYLE_RED : STYLE_GREEN;
    char age[32], failing[48] = "";
    struct buf url = {0};
    struct table table;

    text_visible(&url, info->url, strlen(info->url));
    text_field("store", "%s  %s%s%s", buf_str(&url), style_on(bad, colors),
               info->degraded[0] ? "degraded" : "ok", style_off(bad, colors));
    buf_clear(&url);
    if (info->degraded[0])
        text_field("degraded", "%s", info->degraded);
    print_size(info);
    if (info->workers_degraded > 0)
        snprintf(failing, sizeof failing, ", %" PRId64 " degraded", info->workers_degraded);
    text_field("workers", "%" PRId64 " alive, %" PRId64 " late, %" PRId64 " dead%s",
               info->workers_alive, info->workers_late, info->workers_dead, failing);
    text_field("stale", "%" PRId64 " job%s, %" PRId64 " named lease%s", info->stale_jobs,
               text_plural(info->stale_jobs), info->stale_leases, text_plural(info->stale_leases));
    print_recovery(info, last, now);
    if (queues->n > 0)
        putchar('\n');
    table_begin(&table, heads);
    for (size_t i = 0; i < queues->n; i++) {
        const lh_queue *q = &queues->queue[i];
        table_cell(&table, STYLE_NONE, q->queue);
        count(&table, q->scheduled, STYLE_YELLOW);
        count(&table, q->pending, STYLE_NONE);
        count(&table, q->running, STYLE_CYAN);
        count(&table, q->completed, STYLE_GREEN);
        count(&table, q->failed, STYLE_RED);
        count(&table, q->cancelled, STYLE_NONE);
        table_cell(&table, STYLE_NONE,
                   q->oldest_pending_ms < 0 ? NULL
                                            : text_span(q->oldest_pending_ms, age, sizeof age));
        table_cell(&table, q->paused ? STYLE_YELLOW : STYLE_NONE, q->paused ? "paused" : " ");
    }
    table_end(&table);
}

/* ---- conditions ------------------------------------------------------------------------------ */

static int complain_stale(const lh_store_info *info, const lh_queues *queues)
{
    (void)queues;
    return info->stale_jobs + info->stale_leases == 0
               ? 0
               : cli_error(EXIT_FAILED, "stale: %" PRId64 " job%s, %" PRId64 " lease%s",
                           info->stale_jobs, text_plural(info->stale_jobs), info->stale_leases,
                           text_plural(info->stale_leases));
}

static int complain_degraded(const lh_store_info *info, const lh_queues *queues)
{
    int exit = 0;

    (void)queues;
    if (info->degraded[0] != '\0')
        exit = cli_error(EXIT_FAILED, "degraded: %s", info->degraded);
    if (info->workers_degraded > 0)
        exit = cli_error(EXIT_FAILED, "degraded: %" PRId64 " worker%s", info->workers_degraded,
                         text_plural(info->workers_degraded));
    return exit;
}

static int complain_failed(const lh_store_info *info, const lh_queues *queues)
{
    int exit = 0;

    (void)info;
    for (size_t i = 0; i < queues->n; i++)
        if (queues->queue[i].failed > 0)
            exit = cli_error(EXIT_FAILED, "failed: %" PRId64 " job%s of queue \"%s\"",
                             queues->queue[i].failed, text_plural(queues->queue[i].failed),
                             queues->queue[i].queue);
    return exit;
}

static int complain_paused(const lh_store_info *info, const lh_queues *queues)
{
    int exit = 0;

    (void)info;
    for (size_t i = 0; i < queues->n; i++)
        if (queues->queue[i].paused)
            exit = cli_error(EXIT_FAILED, "paused: queue \"%s\"", queues->queue[i].queue);
    return exit;
}

static int complain_no_worker(const lh_store_info *info, const lh_queues *queues)
{
    (void)queues;
    return info->workers_alive > 0 ? 0 : cli_error(EXIT_FAILED, "no-worker: none is alive");
}

static int complain_age(const lh_queues *queues, const struct value *most)
{
    char age[32];
    int exit = 0;

    for (size_t i = 0; most->given && i < queues->n; i++) {
        const lh_queue *q = &queues->queue[i];
        if (q->oldest_pending_ms > most->num)
            exit = cli_error(EXIT_FAILED, "max-age: a job of queue \"%s\" has been pending for %s",
                             q->queue, lh_duration_format(q->oldest_pending_ms, age, sizeof age));
    }
    return exit;
}

/** Prints a line for each condition of --fail-on and --max-age that is true. Returns 0, or 1. */
static int complain(const struct args *args, const lh_store_info *info, const lh_queues *queues)
{
    static const struct {
        const char *name;
        int (*complain)(const lh_store_info *info, const lh_queues *queues);
    } conditions[] = {
        {"stale", complain_stale},   {"degraded", complain_degraded},   {"failed", complain_failed},
        {"paused", complain_paused}, {"no-worker", complain_no_worker},
    };
    const struct value *asked = &args->option[FAIL_ON];
    int exit = complain_age(queues, &args->option[MAX_AGE]);

    for (size_t i = 0; i < asked->given; i++)
        for (size_t k = 0; k < sizeof conditions / sizeof conditions[0]; k++)
            if (strcmp(asked->all[i], conditions[k].name) == 0 &&
                conditions[k].complain(info, queues) != 0)
                exit = EXIT_FAILED;
    return exit;
}

static int run(struct cli *cli, const struct args *args)
{
    lh_store_info info = {0};
    lh_queues *queues = NULL;
    lh_report *last = NULL;
    int rc, exit;

    if (cli->json && args->option[METRICS].given)
        return usage_error(args->command, "--json and --metrics exclude each other");
    if ((exit = cli_open(cli, ACCESS_READ)) != 0)
        return exit;
    rc = lh_store_status(cli->store, &info);
    if (rc == LH_OK)
        rc = lh_queue_list(cli->store, &queues);
    if (rc == LH_OK) {
        rc = lh_report_get(cli->store, 0, &last);
        rc = rc == LH_ENOTFOUND ? LH_OK : rc;
    }
    if (rc != LH_OK)
        exit = cli_failed(cli, rc);
    else if (args->option[METRICS].given)
        metrics_print(queues, &info, last);
    else if (cli->json)
        print_json(queues, &info, last);
    else
        print_text(queues, &info, last, lh_now(cli->store));
    if (rc == LH_OK && exit == 0)
        exit = complain(args, &info, queues);
    lh_report_free(last);
    lh_queues_free(queues);
    return exit;
}

static const struct example examples[] = {
    {"leasehold status", "how is it going?"},
    {"leasehold status --fail-on stale --fail-on degraded --max-age 15m > /dev/null",
     "for a monitor that checks exit codes"},
    {"leasehold status --metrics > /var/lib/node_exporter/leasehold.prom", "for Prometheus"},
    {.line = NULL},
};

const struct command cmd_status = {
    .name = "status",
    .args = "[--metrics] [--fail-on WHAT]… [--max-age D]",
    .summary = "queues and states, workers, recovery, health of the store",
    .text =
        "Prints the number of jobs of each queue by state, the age of the oldest pending "
        "job, the numbers of alive, late and dead workers, what is stale, the last recovery, the "
        "time of the next, and the health of the store.\n\nA store is degraded if it can be read "
        "but not written, or if its last recovery did not recover everything. The command prints "
        "the reason; it is not an error, unless --fail-on asks for it.",
    .options = options,
    .examples = examples,
    .run = run,
};
