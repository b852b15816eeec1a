#include <inttypes.h>

#include "cli.h"

enum { DRY_RUN };

static const struct option options[] = {
    [DRY_RUN] = {"dry-run", 'n', NULL, SPEC_FLAG, 0, "only count what would be taken back"},
    {.name = NULL},
};

static int run(struct cli *cli, const struct args *args)
{
    bool dry = args->option[DRY_RUN].given > 0;
    lh_recovered recovered = {0};
    struct js json = {0};
    int exit = cli_open(cli, dry ? ACCESS_READ : ACCESS_WRITE);
    int rc;

    if (exit != 0)
        return exit;
    rc = dry ? lh_recovery_stats(cli->store, &recovered)
             : lh_recover(cli->store, cli_cancel(), &recovered);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    if (!cli->json) {
        printf("%" PRId64 " job%s %s, %" PRId64 " named lease%s %s\n", recovered.entries_reclaimed,
               text_plural(recovered.entries_reclaimed), dry ? "would be taken back" : "taken back",
               recovered.locks_cleaned, text_plural(recovered.locks_cleaned),
               dry ? "would be freed" : "freed");
        return 0;
    }
    js_open(&json, '{');
    js_key_int(&json, "entries_reclaimed", recovered.entries_reclaimed);
    js_key_int(&json, "locks_cleaned", recovered.locks_cleaned);
    js_key_time(&json, "recovery_timestamp", recovered.recovery_timestamp);
    js_key_bool(&json, "dry_run", dry);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
    return 0;
}

static const struct example examples[] = {
    {"leasehold recover --dry-run", "what is forfeit right now?"},
    {"leasehold recover", "take it back"},
    {.line = NULL},
};

const struct command cmd_recover = {
    .name = "recover",
    .args = "[--dry-run]",
    .summary = "take back what dead workers hold",
    .text = "Takes back jobs whose lease has ended or whose worker is dead, and frees named leases "
            "that have "
            "expired. It may be run at any time, twice, at once, anywhere; every claim does the "
            "same for "
            "what it meets.",
    .options = options,
    .examples = examples,
    .run = run,
};
