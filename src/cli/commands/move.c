/*
 * leasehold move: move everything into another store.
 */
#include <inttypes.h>

#include "cli/cli.h"

enum { FROM, TO, ABANDON };

static const struct option options[] = {
    [FROM] = {"from", 0, "STORE", SPEC_TEXT(1023), OPTION_REQUIRED, "the old store"},
    [TO] = {"to", 0, "STORE", SPEC_TEXT(1023), 0, "the new store: missing or empty"},
    [ABANDON] = {"abandon", 0, NULL, SPEC_FLAG, 0,
                 "give up an unfinished move: --from can be used again"},
    {.name = NULL},
};

static void print(const struct cli *cli, const lh_moved *moved)
{
    struct js json = {0};

    if (cli->json) {
        js_open(&json, '{');
        js_key_int(&json, "jobs", moved->jobs);
        js_key_int(&json, "events", moved->events);
        js_key_int(&json, "leases", moved->leases);
        js_key_int(&json, "policies", moved->policies);
        js_key_int(&json, "schedules", moved->schedules);
        js_key_bool(&json, "already", moved->already);
        js_close(&json, '}');
        js_line(&json);
        js_clear(&json);
    } else if (moved->already) {
        printf("moved already, nothing to do\n");
    } else {
        printf("%" PRId64 " job%s, %" PRId64 " event%s, %" PRId64 " named lease%s, %" PRId64
               " polic%s, %" PRId64 " schedule%s\n",
               moved->jobs, text_plural(moved->jobs), moved->events, text_plural(moved->events),
               moved->leases, text_plural(moved->leases), moved->policies,
               moved->policies == 1 ? "y" : "ies", moved->schedules, text_plural(moved->schedules));
    }
}

static int run(struct cli *cli, const struct args *args)
{
    const char *from = args->option[FROM].text;
    const char *to = args->option[TO].given ? args->option[TO].text : NULL;
    lh_open_opts open = cli_opts(cli, ACCESS_WRITE);
    lh_move_opts opts = {.open = &open,
                         .abandon = args->option[ABANDON].given > 0,
                         .cancel = cli_cancel(),
                         .progress = progress_call,
                         .progress_arg = &cli->progress};
    lh_moved moved = {0};
    char why[1024] = "";

    if (!opts.abandon && to == NULL)
        return usage_error(args->command, "--to is missing: it names the new store");
    progress_begin(&cli->progress, "rows");
    int rc = lh_move(from, to, &opts, &moved, why, sizeof why);
    progress_wipe(&cli->progress);
    if (rc != LH_OK) {
        int exit = cli_refused(rc, "%s", why[0] != '\0' ? why : lh_status_text(rc));
        return cli_interrupted() ? cli_interrupted_exit() : exit;
    }
    cli->writes = true;
    if (!opts.abandon)
        print(cli, &moved);
    return 0;
}

static const struct example examples[] = {
    {"leasehold move --from jobs.db --to postgres://db/app", "when one machine is not enough"},
    {"leasehold move --from postgres://db/app --to jobs.db", "and back"},
    {"leasehold move --from jobs.db --abandon", "give up the move and use jobs.db again"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"the new store differs from the old one; --from is complete, and closed", 1},
    {"there is no store at --from; or jobs are running in it; or --to is not empty; or one of "
     "them takes part in another move",
     3},
    {.when = NULL},
};

const struct command cmd_move = {
    .name = "move",
    .args = "--from STORE (--to STORE | --abandon)",
    .summary = "move everything into another store",
    .text =
        "Moves everything from one store into another, of the same kind or not: jobs with their "
        "ids, tokens and payloads, counts, named leases, policies, schedules, events, reports "
        "and request ids. Workers register with the new store when they start there. A missing "
        "new store is created; an existing one must be empty.\n\nNo job may be running in the "
        "old store: stop the workers first. Expired leases are recovered. Then the old store is "
        "closed: a writing command there says where the store has moved, and exits with 7. The "
        "new store stays closed until it is complete. At the end every row of both stores is "
        "read and compared. Then the old store stays closed forever, and the new one is opened "
        "with a higher epoch, so that no token is issued twice.\n\nIf it is interrupted or "
        "killed, run it again with the same stores: it continues. Until it has finished, "
        "--abandon gives it up: the old store can be used again, and the next move from there "
        "starts over.",
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
};
