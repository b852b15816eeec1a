/*
 * leasehold queue list: the queues with their limits and counts, or the policies as they were set.
 */
#include <inttypes.h>

#include "cli/cli.h"
#include "cli/input/policy_keys.h"

enum { LIST_POLICIES };

static const struct option list_options[] = {
    [LIST_POLICIES] = {"policies", 0, NULL, SPEC_FLAG, 0,
                       "list the policies that were set, not the queues"},
    {.name = NULL},
};

static int list_policies(struct cli *cli)
{
    static const char *const heads[] = {"QUEUE", "KIND", "SETTINGS", NULL};
    lh_policies *policies = NULL;
    struct js json = {0};
    struct table table;
    int rc = lh_policy_list(cli->store, &policies);

    if (rc != LH_OK)
        return cli_failed(cli, rc);
    table_begin(&table, heads);
    for (size_t i = 0; i < policies->n; i++) {
        const lh_policy_row *row = &policies->row[i];
        struct buf text = {0};
        char value[64];
        if (cli->json) {
            js_open(&json, '{');
            js_key_text(&json, "queue", row->queue);
            js_key_text(&json, "kind", row->kind);
            js_policy(&json, &row->policy);
            js_close(&json, '}');
            js_line(&json);
            continue;
        }
        for (size_t k = 0; k < policy_key_count; k++)
            if ((row->policy.set & policy_keys[k].field) != 0)
                buf_format(&text, "%s%s %s", text.n ? ", " : "", policy_keys[k].option,
                           policy_key_text(&policy_keys[k], &row->policy, value, sizeof value));
        table_cell(&table, STYLE_NONE, row->queue ? row->queue : "*");
        table_cell(&table, STYLE_NONE, row->kind ? row->kind : "*");
        table_cell(&table, STYLE_NONE, buf_str(&text));
        buf_clear(&text);
    }
    table_end(&table);
    js_clear(&json);
    lh_policies_free(policies);
    return 0;
}

static void list_row(struct table *table, const lh_queue *q)
{
    char text[64], per[32];

    table_cell(table, STYLE_NONE, q->queue);
    table_cell(table, q->paused ? STYLE_YELLOW : STYLE_NONE, q->paused ? "paused" : "open");
    table_number(table, q->pending);
    table_number(table, q->running);
    table_cell(table, STYLE_NONE,
               q->oldest_pending_ms < 0 ? NULL
                                        : text_span(q->oldest_pending_ms, text, sizeof text));
    if (q->rate_n > 0)
        snprintf(text, sizeof text, "%" PRId64 "/%s", q->rate_n,
                 lh_duration_format(q->rate_per_ms, per, sizeof per));
    table_cell(table, STYLE_NONE, q->rate_n > 0 ? text : NULL);
    if (q->concurrency > 0)
        snprintf(text, sizeof text, "%" PRId64, q->concurrency);
    table_cell(table, STYLE_NONE, q->concurrency > 0 ? text : NULL);
    table_number(table, q->hour_enqueued);
    table_number(table, q->hour_completed);
    table_number(table, q->hour_failed);
    table_number(table, q->hour_recovered);
}

static int run_list(struct cli *cli, const struct args *args)
{
    static const char *const heads[] = {
        "QUEUE",           "",         ">PENDING",       ">RUNNING",        ">OLDEST PENDING",
        ">RATE",           ">AT ONCE", ">ENQUEUED/HOUR", ">COMPLETED/HOUR", ">FAILED/HOUR",
        ">RECOVERED/HOUR", NULL};
    lh_queues *queues = NULL;
    struct js json = {0};
    struct table table;
    int exit = cli_open(cli, ACCESS_READ);
    int rc;

    if (exit != 0)
        return exit;
    if (args->option[LIST_POLICIES].given)
        return list_policies(cli);
    rc = lh_queue_list(cli->store, &queues);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    table_begin(&table, heads);
    for (size_t i = 0; i < queues->n; i++) {
        if (cli->json) {
            js_queue(&json, &queues->queue[i], true);
            js_line(&json);
        } else {
            list_row(&table, &queues->queue[i]);
        }
    }
    table_end(&table);
    js_clear(&json);
    lh_queues_free(queues);
    return 0;
}

static const struct example list_examples[] = {
    {"leasehold queue list", "the queues, with their limits and the last hour"},
    {"leasehold queue list --policies", "the policies of queues and kinds"},
    {.line = NULL},
};

const struct command cmd_queue_list = {
    .group = "queue",
    .name = "list",
    .args = "[--policies]",
    .summary = "list the queues",
    .text = "Lists the queues: whether they are open or paused, their pending and running jobs, "
            "their limits, and the last hour.",
    .options = list_options,
    .examples = list_examples,
    .run = run_list,
};
