#include <string.h>

#include "cli.h"

enum { ACCEPT_LOSS };

static const struct option options[] = {
    [ACCEPT_LOSS] =
        {"accept-loss", 0, NULL, SPEC_FLAG, 0,
         "write again to a store that is older than its high-water mark, and raise its epoch"},
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

static int run(struct cli *cli, const struct args *args)
{
    lh_findings *findings = NULL;
    int exit = cli_open(cli, args->option[ACCEPT_LOSS].given ? ACCESS_ACCEPT_LOSS : ACCESS_READ);
    int rc;

    if (exit != 0)
        return exit;
    rc = lh_check(cli->store, cli_cancel(), &findings);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    if (cli->json)
        print_json(findings);
    else
        print_text(findings);
    if (findings->errors > 0)
        exit = cli_error(EXIT_FAILED, "%zu error%s found", findings->errors,
                         findings->errors == 1 ? " was" : "s were");
    lh_findings_free(findings);
    return exit;
}

static const struct example examples[] = {
    {"leasehold check", "is everything as it should be?"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"there is nothing to mend", 0},
    {"errors were found, or the check failed", 1},
    {.when = NULL},
};

const struct command cmd_check = {
    .name = "check",
    .args = "[--accept-loss]",
    .summary = "integrity, invariants, log size, clock, room, versions",
    .text = "Checks the database file, the invariants of the jobs, the counters, the size of the "
            "log, the clock, "
            "the room on the device and the versions, and prints what it found.",
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
};
