/*
 * leasehold migrate: make or update the tables of the store.
 */
#include <stdlib.h>

#include "cli/cli.h"

enum { DRY_RUN, DROP_SQL };

static const struct option options[] = {
    [DRY_RUN] = {"dry-run", 'n', NULL, SPEC_FLAG, 0, "only print what would be done"},
    [DROP_SQL] = {"drop-sql", 0, NULL, SPEC_FLAG, 0,
                  "print the SQL that removes our tables from the database"},
    {.name = NULL},
};

static void print(const struct cli *cli, int from, int to, bool dry)
{
    struct js json = {0};

    if (cli->json) {
        js_open(&json, '{');
        js_key_int(&json, "from", from);
        js_key_int(&json, "to", to);
        js_key_bool(&json, "dry_run", dry);
        js_close(&json, '}');
        js_line(&json);
        js_clear(&json);
    } else if (from == to) {
        printf("schema %d, nothing to do\n", to);
    } else {
        printf("schema %d %s %d\n", from, dry ? "would become" : "became", to);
    }
}

static int drop_sql(struct cli *cli)
{
    char *sql = NULL;
    int exit = cli_open(cli, ACCESS_READ);
    int rc;

    if (exit != 0)
        return exit;
    rc = lh_drop_sql(cli->store, &sql);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    if (cli->json) {
        struct js json = {0};
        js_open(&json, '{');
        js_key_text(&json, "sql", sql);
        js_close(&json, '}');
        js_line(&json);
        js_clear(&json);
    } else {
        fputs(sql, stdout);
    }
    free(sql);
    return 0;
}

static int run(struct cli *cli, const struct args *args)
{
    bool dry = args->option[DRY_RUN].given > 0;
    char why[1024] = "";
    int from = 0;
    int exit, rc;

    if (dry && args->option[DROP_SQL].given)
        return usage_error(args->command,
                           "--dry-run and --drop-sql exclude each other: allowed: one of "
                           "them");
    if (args->option[DROP_SQL].given)
        return drop_sql(cli);
    rc = lh_schema_of(cli->url, &from, why, sizeof why);
    if (rc == LH_ENOSTORE) /* there is no file yet: migrating creates it */
        from = 0;
    else if (rc != LH_OK)
        return cli_refused(rc, "%s", why[0] ? why : lh_status_text(rc));
    /* lh_open() refuses a store of a newer version; a dry run must refuse it with the same
     * message. */
    if (dry && from > lh_schema_version())
        return cli_open(cli, ACCESS_READ);
    if (!dry) {
        exit = cli_open(cli, ACCESS_ADOPT);
        if (exit != 0)
            return exit;
    }
    print(cli, from, lh_schema_version(), dry);
    return 0;
}

static const struct example examples[] = {
    {"leasehold migrate --store app.db", "add the queue to the database of an application"},
    {"leasehold migrate --store postgresql:///app", "create the schema leasehold on a server"},
    {"leasehold migrate --dry-run", "what would be done?"},
    {"leasehold migrate --drop-sql", "how can it be removed?"},
    {.line = NULL},
};

const struct command cmd_migrate = {
    .name = "migrate",
    .args = "[--dry-run | --drop-sql]",
    .summary = "create or update the tables of the queue",
    .text = "Creates or updates the tables of the store for this version. A missing SQLite file is "
            "created. To put a queue into a database with other tables, or onto a server, this "
            "command is required: no other command creates tables there.",
    .options = options,
    .examples = examples,
    .run = run,
};
