/*
 * leasehold check: examine the store, and repair it with --repair.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/cli.h"

enum { REPAIR, ACCEPT_LOSS };

static const struct option options[] = {
    [REPAIR] = {"repair", 0, NULL, SPEC_FLAG, 0,
                "first repair damage, on a copy; the damaged file is kept (SQLite)"},
    [ACCEPT_LOSS] =
        {"accept-loss", 0, NULL, SPEC_FLAG, 0,
         "accept the loss in a store that is older than its high-water mark: allow writes again "
         "and raise the epoch (SQLite)"},
    {.name = NULL},
};

static void print_json(const lh_findings *findings)
{
    struct js json = {0};

    js_open(&json, '{');
    js_key_bool(&json, "ok", findings->errors == 0);
    js_key_int(&json, "errors", (int64_t)findings->errors);
    js_key(&json, "findings");
    js_open(&json, '[');
    for (size_t i = 0; i < findings->n; i++) {
        const lh_finding *f = &findings->finding[i];
        js_open(&json, '{');
        js_key_text(&json, "level", f->level);
        js_key_text(&json, "what", f->what);
        js_key_text(&json, "text", f->text);
        js_close(&json, '}');
    }
    js_close(&json, ']');
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
}

static void print_text(const lh_findings *findings)
{
    static const char *const heads[] = {"LEVEL", "WHAT", "FINDING", NULL};
    struct table table;

    table_begin(&table, heads);
    for (size_t i = 0; i < findings->n; i++) {
        const lh_finding *f = &findings->finding[i];
        table_cell(&table,
                   strcmp(f->level, "error") == 0     ? STYLE_RED
                   : strcmp(f->level, "warning") == 0 ? STYLE_YELLOW
                                                      : STYLE_DIM,
                   f->level);
        table_cell(&table, STYLE_NONE, f->what);
        table_cell(&table, STYLE_NONE, f->text);
    }
    table_end(&table);
    if (findings->errors == 0)
        puts("ok");
}

/** Whether a finding says that the file itself is damaged. */
static bool damaged(const lh_findings *findings)
{
    for (size_t i = 0; i < findings->n; i++)
        if (strcmp(findings->finding[i].what, "integrity") == 0 &&
            strcmp(findings->finding[i].level, "error") == 0)
            return true;
    return false;
}

/** Prints that opening the store has repaired it, and which report says more. */
static void note_repair(struct cli *cli)
{
    lh_report *report = NULL;

    if (lh_report_get(cli->store, 0, &report) != LH_OK)
        return;
    if (report->integrity.repair_succeeded)
        cli_note("repaired; \"leasehold recovery-report %" PRId64 "\" says what was kept and lost",
                 report->id);
    lh_report_free(report);
}

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    lh_findings *findings = NULL;
    unsigned access = ACCESS_READ;
    int exit, rc;

    if (!cli_is_file(cli) && (opt[REPAIR].given || opt[ACCEPT_LOSS].given))
        return usage_error(args->command,
                           "%s is for SQLite files: restore a damaged database on a server from "
                           "a backup",
                           opt[REPAIR].given ? "--repair" : "--accept-loss");
    if (opt[REPAIR].given)
        access |= ACCESS_REPAIR;
    if (opt[ACCEPT_LOSS].given)
        access |= ACCESS_ACCEPT_LOSS;
    exit = cli_open(cli, access);
    if (exit != 0)
        return exit;
    if (opt[REPAIR].given)
        note_repair(cli);
    rc = lh_check(cli->store, cli_cancel(), &findings);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    if (cli->json)
        print_json(findings);
    else
        print_text(findings);
    if (findings->errors > 0)
        exit = cli_error(damaged(findings) ? EXIT_CORRUPT : EXIT_FAILED, "%zu error%s found%s",
                         findings->errors, findings->errors == 1 ? " was" : "s were",
                         damaged(findings) && cli_is_file(cli) && !opt[REPAIR].given
                             ? "; \"leasehold check --repair\" repairs the file"
                             : "");
    lh_findings_free(findings);
    return exit;
}

static const struct example examples[] = {
    {"leasehold check", "is everything all right?"},
    {"leasehold check --repair", "and repair the file if it is damaged"},
    {"leasehold check --store postgresql:///app", "check a store on a server"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"no errors were found", 0},
    {"errors were found, or the check failed", 1},
    {"the store is corrupt and was not repaired", 6},
    {.when = NULL},
};

const struct command cmd_check = {
    .name = "check",
    .args = "[--repair] [--accept-loss]",
    .summary = "check integrity, invariants, log, clock, disk room, versions",
    .text =
        "Checks the database file, the invariants of the jobs, the counters, the checksums of "
        "payloads, the size of the log, the clock, the free space on the device and the "
        "versions, and prints what it found. On PostgreSQL it checks the schema, settings that "
        "risk data or speed, dead rows, standbys, and the oldest transaction. Without an option "
        "it changes nothing. Wrong counts are corrected by leasehold-recover(1).\n\nWith "
        "--repair a damaged file is repaired on a copy: first the indexes are rebuilt, then the "
        "whole file, and at last every readable row is copied. Only a copy that passes the check "
        "replaces the store. The damaged file is kept as DB.damaged-TIME, and the recovery "
        "report says what was lost. If the file has no tables but ours, the first writing "
        "command after a crash repairs it as well. In a database with other tables only this "
        "command does.",
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
};
