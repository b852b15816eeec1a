/*
 * leasehold recovery-report: the last report, one by its id, or the list.
 */
#include <inttypes.h>

#include "cli/output/report.h"

enum { LIST, LIMIT };

static const struct option options[] = {
    [LIST] = {"list", 'l', NULL, SPEC_FLAG, 0, "all reports, newest first, one line each"},
    [LIMIT] = {"limit", 'n', "N", SPEC_INT(1, 10000), 0,
               "with --list: at most this many, 1 to 10000 (default: 100)"},
    {.name = NULL},
};

static const struct positional positionals[] = {
    {"ID", SPEC_ID, true, false},
    {.meta = NULL},
};

static void list_row(struct table *table, const lh_report *r, int64_t now)
{
    char text[64];

    table_number(table, r->id);
    table_cell(table, STYLE_NONE, lh_time_format(r->started_at, text, sizeof text));
    table_cell(table, STYLE_NONE, text_when(r->started_at, now, text, sizeof text));
    table_cell(table, STYLE_NONE, r->trigger);
    if (r->completed_at == 0)
        table_cell(table, STYLE_YELLOW, "incomplete");
    else
        table_cell(table, STYLE_NONE, report_duration(r->duration_ms, text, sizeof text));
    table_cell(table, r->integrity.ran && !r->integrity.passed ? STYLE_RED : STYLE_NONE,
               r->integrity.ran ? report_integrity(r) : NULL);
    table_number(table, r->orphaned);
    table_number(table, r->entries_reclaimed);
    table_number(table, r->locks_cleaned);
    snprintf(text, sizeof text, "%" PRId64, r->failed_recoveries);
    table_cell(table, r->failed_recoveries > 0 ? STYLE_RED : STYLE_DIM, text);
}

static int list(struct cli *cli, size_t limit)
{
    static const char *const heads[] = {">ID",     "STARTED",   "WHEN",      "TRIGGER",
                                        ">TOOK",   "INTEGRITY", ">ORPHANED", ">RECOVERED",
                                        ">LEASES", ">FAILED",   NULL};
    lh_reports *reports = NULL;
    struct js json = {0};
    struct table table;
    int64_t now;
    int rc = lh_report_list(cli->store, limit, &reports);

    if (rc != LH_OK)
        return cli_failed(cli, rc);
    now = lh_now(cli->store);
    table_begin(&table, heads);
    for (size_t i = 0; i < reports->n; i++) {
        if (cli->json) {
            js_report(&json, &reports->report[i], false);
            js_line(&json);
        } else {
            list_row(&table, &reports->report[i], now);
        }
    }
    table_end(&table);
    js_clear(&json);
    lh_reports_free(reports);
    return 0;
}

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    lh_report *report = NULL;
    int exit, rc;

    if (opt[LIST].given && args->n > 0)
        return usage_error(args->command, "--list and ID exclude each other: allowed: one of them");
    if (opt[LIMIT].given && !opt[LIST].given)
        return usage_error(args->command, "--limit needs --list");
    exit = cli_open(cli, ACCESS_READ);
    if (exit != 0)
        return exit;
    if (opt[LIST].given)
        return list(cli, (size_t)opt[LIMIT].num);
    rc = lh_report_get(cli->store, args->n > 0 ? args->positional[0].num : 0, &report);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    report_print(cli, report);
    lh_report_free(report);
    return 0;
}

static const struct example examples[] = {
    {"leasehold recovery-report", "what did the last recovery find and do?"},
    {"leasehold recovery-report --list", "list all recoveries"},
    {"leasehold recovery-report 12 --json | jq '.recovered[] | select(.action == \"failed\")'",
     "the jobs that report 12 failed"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"there is no such report, or none yet, or no store", 3},
    {.when = NULL},
};

static const char text[] =
    "Prints the report of the last recovery, or of one by its id: integrity, log, recovered "
    "jobs and what became of them, dead workers, named leases, failures and inconsistencies. "
    "Every recovery that found something writes a report, and so does every recovery at "
    "startup or by an operator. Reports are pruned with the events.";

/* clang-format off: the same command, under two names */
#define RECOVERY_REPORT                                                                        \
    .name = "recovery-report", .args = "[ID]\n--list [--limit N]",                             \
    .summary = "show what a recovery found and did", .text = text, .positionals = positionals, \
    .options = options, .examples = examples, .exits = exits, .run = run
/* clang-format on */

const struct command cmd_recovery_report = {RECOVERY_REPORT};
const struct command cmd_queue_recovery_report = {.group = "queue", RECOVERY_REPORT};
