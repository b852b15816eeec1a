#include <inttypes.h>
#include <string.h>

#include "cli.h"

enum { METRICS };

static const struct option options[] = {
    [METRICS] = {"metrics", 0, NULL, SPEC_FLAG, 0, "in the text format of Prometheus"},
    {.name = NULL},
};

/* ---- JSON ------------------------------------------------------------------------------------ */

static void print_json(const lh_queues *queues, const lh_store_info *info)
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
    js_close(&json, '}');
    js_key(&json, "stale");
    js_open(&json, '{');
    js_key_int(&json, "jobs", info->stale_jobs);
    js_key_int(&json, "leases", info->stale_leases);
    js_close(&json, '}');
    js_key(&json, "last_recovery");
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
    js_key_int(&json, "wal_bytes", info->wal_bytes);
    js_key_int(&json, "free_bytes", info->free_bytes);
    js_key_int(&json, "changes", info->changes);
    js_key_int(&json, "clock_skew_ms", info->clock_skew_ms);
    js_close(&json, '}');
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

static void print_text(const lh_queues *queues, const lh_store_info *info)
{
    static const char *const heads[] = {"QUEUE",      ">SCHEDULED", ">PENDING",   ">RUNNING",
                                        ">COMPLETED", ">FAILED",    ">CANCELLED", ">OLDEST PENDING",
                                        "",           NULL};
    bool colors = text_colors(stdout);
    enum style bad = info->degraded[0] ? STYLE_RED : STYLE_GREEN;
    char file[32], wal[32], room[32], age[32];
    struct table table;

    text_field("store", "%s  %s%s%s", info->url, style_on(bad, colors),
               info->degraded[0] ? info->degraded : "ok", style_off(bad, colors));
    text_field("size", "%s, log %s, %s free on the device",
               text_bytes(info->file_bytes, file, sizeof file),
               text_bytes(info->wal_bytes, wal, sizeof wal),
               text_bytes(info->free_bytes, room, sizeof room));
    text_field("workers", "%" PRId64 " alive, %" PRId64 " late, %" PRId64 " dead",
               info->workers_alive, info->workers_late, info->workers_dead);
    text_field("stale", "%" PRId64 " job%s, %" PRId64 " named lease%s", info->stale_jobs,
               text_plural(info->stale_jobs), info->stale_leases, text_plural(info->stale_leases));
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

/* ---- Prometheus ------------------------------------------------------------------------------ */

static void head(const char *name, const char *type, const char *help)
{
    printf("# HELP leasehold_%s %s\n# TYPE leasehold_%s %s\n", name, help, name, type);
}

static void gauge(const char *name, const char *help, int64_t value)
{
    head(name, "gauge", help);
    printf("leasehold_%s %" PRId64 "\n", name, value);
}

/* Names of queues have no character that a label would have to escape. */
static void by_queue(const lh_queues *queues, const char *name, const char *help,
                     int64_t (*of)(const lh_queue *q))
{
    head(name, "gauge", help);
    for (size_t i = 0; i < queues->n; i++)
        printf("leasehold_%s{queue=\"%s\"} %" PRId64 "\n", name, queues->queue[i].queue,
               of(&queues->queue[i]));
}

static int64_t paused_of(const lh_queue *q)
{
    return q->paused;
}

static int64_t hour_enqueued_of(const lh_queue *q)
{
    return q->hour_enqueued;
}

static int64_t hour_completed_of(const lh_queue *q)
{
    return q->hour_completed;
}

static int64_t hour_failed_of(const lh_queue *q)
{
    return q->hour_failed;
}

static int64_t hour_recovered_of(const lh_queue *q)
{
    return q->hour_recovered;
}

static void seconds(const char *metric, const char *queue, int64_t ms)
{
    printf("leasehold_%s{queue=\"%s\"} %" PRId64 ".%03" PRId64 "\n", metric, queue, ms / 1000,
           ms % 1000);
}

static void print_metrics(const lh_queues *queues, const lh_store_info *info)
{
    head("jobs", "gauge", "Jobs by queue and state.");
    for (size_t i = 0; i < queues->n; i++) {
        const lh_queue *q = &queues->queue[i];
        const struct {
            const char *state;
            int64_t n;
        } states[] = {{"scheduled", q->scheduled}, {"pending", q->pending},
                      {"running", q->running},     {"completed", q->completed},
                      {"failed", q->failed},       {"cancelled", q->cancelled}};
        for (size_t k = 0; k < sizeof states / sizeof states[0]; k++)
            printf("leasehold_jobs{queue=\"%s\",state=\"%s\"} %" PRId64 "\n", q->queue,
                   states[k].state, states[k].n);
    }
    head("oldest_pending_seconds", "gauge",
         "Age of the oldest pending job of a queue that has one.");
    for (size_t i = 0; i < queues->n; i++)
        if (queues->queue[i].oldest_pending_ms >= 0)
            seconds("oldest_pending_seconds", queues->queue[i].queue,
                    queues->queue[i].oldest_pending_ms);
    by_queue(queues, "queue_paused", "1 for a paused queue.", paused_of);
    by_queue(queues, "hour_enqueued", "Jobs enqueued in the last hour.", hour_enqueued_of);
    by_queue(queues, "hour_completed", "Jobs completed in the last hour.", hour_completed_of);
    by_queue(queues, "hour_failed", "Jobs failed in the last hour.", hour_failed_of);
    by_queue(queues, "hour_recovered", "Jobs recovered in the last hour.", hour_recovered_of);
    head("hour_wait_seconds_mean", "gauge",
         "Mean time from enqueue to claim of what was claimed in the last hour.");
    for (size_t i = 0; i < queues->n; i++)
        if (queues->queue[i].hour_claimed > 0)
            seconds("hour_wait_seconds_mean", queues->queue[i].queue,
                    queues->queue[i].hour_wait_ms / queues->queue[i].hour_claimed);
    head("hour_run_seconds_mean", "gauge",
         "Mean time from claim to end of what ended in the last hour.");
    for (size_t i = 0; i < queues->n; i++)
        if (queues->queue[i].hour_ended > 0)
            seconds("hour_run_seconds_mean", queues->queue[i].queue,
                    queues->queue[i].hour_run_ms / queues->queue[i].hour_ended);
    head("workers", "gauge", "Workers by state.");
    printf("leasehold_workers{state=\"alive\"} %" PRId64 "\n", info->workers_alive);
    printf("leasehold_workers{state=\"late\"} %" PRId64 "\n", info->workers_late);
    printf("leasehold_workers{state=\"dead\"} %" PRId64 "\n", info->workers_dead);
    gauge("stale_jobs", "Running jobs whose lease has ended.", info->stale_jobs);
    gauge("stale_leases", "Named leases that are held and expired.", info->stale_leases);
    gauge("store_bytes", "Size of the database.", info->file_bytes);
    gauge("store_wal_bytes", "Size of the write-ahead log.", info->wal_bytes);
    gauge("store_free_bytes", "Room left on the device.", info->free_bytes);
    gauge("store_clock_skew_ms", "Wall clock against elapsed time.", info->clock_skew_ms);
    gauge("store_degraded", "1 while the store is degraded.", info->degraded[0] != '\0');
    head("store_changes_total", "counter", "Transactions so far.");
    printf("leasehold_store_changes_total %" PRId64 "\n", info->changes);
    head("info", "gauge", "Version of the program.");
    printf("leasehold_info{version=\"%s\",engine=\"%s\"} 1\n", lh_version(), lh_engine_version());
}

static int run(struct cli *cli, const struct args *args)
{
    lh_store_info info = {0};
    lh_queues *queues = NULL;
    int rc, exit;

    if (cli->json && args->option[METRICS].given)
        return usage_error(args->command, "--json and --metrics exclude each other");
    if ((exit = cli_open(cli, ACCESS_READ)) != 0)
        return exit;
    rc = lh_store_status(cli->store, &info);
    if (rc == LH_OK)
        rc = lh_queue_list(cli->store, &queues);
    if (rc != LH_OK)
        exit = cli_failed(cli, rc);
    else if (args->option[METRICS].given)
        print_metrics(queues, &info);
    else if (cli->json)
        print_json(queues, &info);
    else
        print_text(queues, &info);
    lh_queues_free(queues);
    return exit;
}

static const struct example examples[] = {
    {"leasehold status", "how is it going?"},
    {"leasehold status --metrics > /var/lib/node_exporter/leasehold.prom", "for Prometheus"},
    {.line = NULL},
};

const struct command cmd_status = {
    .name = "status",
    .args = "[--metrics]",
    .summary = "queues and states, workers, what is stale, the store's health",
    .text = "Prints how many jobs of each queue are in which state, the age of the oldest pending "
            "one, how "
            "many workers are alive, late and dead, what is stale, and how the store is.",
    .options = options,
    .examples = examples,
    .run = run,
};
