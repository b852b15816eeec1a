/*
 * leasehold lease show, lease list.
 */
#include <inttypes.h>
#include <string.h>

#include "lease.h"

const struct positional lease_positionals[] = {
    {"SCOPE/NAME", SPEC_LEASE_NAME, false, false},
    {.meta = NULL},
};

struct lease_name lease_name_of(const struct args *args)
{
    const char *text = args->positional[0].text;
    const char *slash = strchr(text, '/');
    struct lease_name name;

    snprintf(name.scope, sizeof name.scope, "%.*s", (int)(slash - text), text);
    name.name = slash + 1;
    return name;
}

void lease_print_json(const lh_lease *lease)
{
    struct js json = {0};

    js_lease(&json, lease);
    js_line(&json);
    js_clear(&json);
}

/* ---- show ------------------------------------------------------------------------------------ */

static void print_text(const lh_lease *lease, int64_t now)
{
    char time[64], when[64];

    printf("lease %s/%s\n", lease->scope, lease->name);
    text_field("owner", "%s%s", lease->owner ? lease->owner : "nobody",
               lease->stale ? ", expired" : "");
    text_field("token", "%" PRId64, lease->token);
    if (lease->acquired_at != 0)
        text_field("acquired", "%s (%s)", lh_time_format(lease->acquired_at, time, sizeof time),
                   text_when(lease->acquired_at, now, when, sizeof when));
    if (lease->expires_at != 0)
        text_field("expires", "%s (%s)", lh_time_format(lease->expires_at, time, sizeof time),
                   text_when(lease->expires_at, now, when, sizeof when));
    if (lease->rows >= 0)
        text_field("rows", "%" PRId64, lease->rows);
    if (lease->last_completed_at != 0)
        text_field("completed", "%s (%s)",
                   lh_time_format(lease->last_completed_at, time, sizeof time),
                   text_when(lease->last_completed_at, now, when, sizeof when));
    if (lease->value != NULL) {
        struct buf visible = {0};
        text_visible(&visible, lease->value, strlen(lease->value));
        text_field("value", "%s", buf_str(&visible));
        buf_clear(&visible);
    }
}

static int run_show(struct cli *cli, const struct args *args)
{
    struct lease_name name = lease_name_of(args);
    lh_leases *leases = NULL;
    int exit = cli_open(cli, ACCESS_READ);
    int rc;

    if (exit != 0)
        return exit;
    rc = lh_lease_get(cli->store, name.scope, name.name, &leases);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    if (cli->json)
        lease_print_json(&leases->lease[0]);
    else
        print_text(&leases->lease[0], lh_now(cli->store));
    lh_leases_free(leases);
    return 0;
}

static const struct example show_examples[] = {
    {"leasehold lease show sync/chunk-7", "who owns it, and until when?"},
    {.line = NULL},
};

static const struct exit_note show_exits[] = {
    {"there is no such lease, or no store", 3},
    {.when = NULL},
};

const struct command cmd_lease_show = {
    .group = "lease",
    .name = "show",
    .args = "SCOPE/NAME",
    .summary = "one named lease",
    .text = "Prints the owner of the lease, its expiry, and the values that are kept with it.",
    .positionals = lease_positionals,
    .examples = show_examples,
    .exits = show_exits,
    .run = run_show,
};

/* ---- list ------------------------------------------------------------------------------------ */

static const struct positional list_positionals[] = {
    {"SCOPE", SPEC_NAME, true, false},
    {.meta = NULL},
};

static void list_row(struct table *table, const lh_lease *lease, int64_t now)
{
    struct buf name = {0};
    char text[64];

    buf_format(&name, "%s/%s", lease->scope, lease->name);
    table_cell(table, STYLE_NONE, buf_str(&name));
    buf_clear(&name);
    table_cell(table, STYLE_NONE, lease->owner);
    snprintf(text, sizeof text, "%" PRId64, lease->token);
    table_cell(table, STYLE_NONE, text);
    table_cell(table, lease->stale ? STYLE_YELLOW : STYLE_NONE,
               text_when(lease->expires_at, now, text, sizeof text));
    snprintf(text, sizeof text, "%" PRId64, lease->rows);
    table_cell(table, STYLE_NONE, lease->rows >= 0 ? text : NULL);
    table_cell(table, STYLE_NONE, text_when(lease->last_completed_at, now, text, sizeof text));
}

static int run_list(struct cli *cli, const struct args *args)
{
    static const char *const heads[] = {"LEASE", "OWNER",     ">TOKEN", "EXPIRES",
                                        ">ROWS", "COMPLETED", NULL};
    lh_leases *leases = NULL;
    struct table table;
    int exit = cli_open(cli, ACCESS_READ);
    int rc;

    if (exit != 0)
        return exit;
    rc = lh_lease_list(cli->store, args->n > 0 ? args->positional[0].text : NULL, &leases);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    table_begin(&table, heads);
    for (size_t i = 0; i < leases->n; i++) {
        if (cli->json)
            lease_print_json(&leases->lease[i]);
        else
            list_row(&table, &leases->lease[i], lh_now(cli->store));
    }
    table_end(&table);
    lh_leases_free(leases);
    return 0;
}

static const struct example list_examples[] = {
    {"leasehold lease list sync", "all leases of a scope"},
    {.line = NULL},
};

const struct command cmd_lease_list = {
    .group = "lease",
    .name = "list",
    .args = "[SCOPE]",
    .summary = "list named leases",
    .text = "Lists all named leases, or those of one scope.",
    .positionals = list_positionals,
    .examples = list_examples,
    .run = run_list,
};
