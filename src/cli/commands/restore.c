/*
 * leasehold restore: replace the store by a copy.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/cli.h"

#include "base/clock.h"

static const struct positional positionals[] = {
    {"FILE", SPEC_FILE, false, false},
    {.meta = NULL},
};

/* The data of the event store.restored. */
struct restored {
    int64_t jobs, copied_at, released, held_back, epoch;
};

/** Reads the newest event store.restored. Other processes may use the restored store already, so newer events may
 *  exist. */
static bool read_event(struct cli *cli, struct restored *out)
{
    lh_events *events = NULL;
    const char *data = NULL;
    lh_event_filter newest = {.newest = true, .limit = 10000};

    if (lh_event_list(cli->store, &newest, &events) != LH_OK)
        return false;
    for (size_t i = events->n; i > 0 && data == NULL; i--)
        if (strcmp(events->event[i - 1].type, "store.restored") == 0)
            data = events->event[i - 1].data;
    bool read = data != NULL && js_find_int(data, "jobs", &out->jobs) &&
                js_find_int(data, "copied_at", &out->copied_at) &&
                js_find_int(data, "released", &out->released) &&
                js_find_int(data, "held_back", &out->held_back) &&
                js_find_int(data, "epoch", &out->epoch);
    lh_events_free(events);
    return read;
}

static void print_json(const char *file, const char *kept, const struct restored *event)
{
    struct js json = {0};

    js_open(&json, '{');
    js_key_text(&json, "file", file);
    js_key_int(&json, "jobs", event->jobs);
    js_key_time(&json, "copied_at", event->copied_at);
    js_key_int(&json, "released", event->released);
    js_key_int(&json, "held_back", event->held_back);
    js_key_int(&json, "epoch", event->epoch);
    js_key_text(&json, "kept", kept[0] != '\0' ? kept : NULL);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
}

static void print_text(const char *kept, const struct restored *event)
{
    char time[64], age[32];

    printf("%" PRId64 " job%s as of %s (%s)\n", event->jobs, text_plural(event->jobs),
           lh_time_format(event->copied_at, time, sizeof time),
           text_when(event->copied_at, lhi_wall_ms(), age, sizeof age));
    if (event->released > 0)
        printf("%" PRId64 " of them %s running and %s released\n", event->released,
               event->released == 1 ? "was" : "were", event->released == 1 ? "was" : "were");
    if (event->held_back > 0)
        printf("%" PRId64
               " stay%s quarantined until the holder has answered or its lease has expired\n",
               event->held_back, event->held_back == 1 ? "s" : "");
    if (kept[0] == '\0')
        return;
    struct buf visible = {0};
    text_visible(&visible, kept, strlen(kept));
    printf("the store that was there is kept as \"%s\"\n", buf_str(&visible));
    buf_clear(&visible);
}

static int run(struct cli *cli, const struct args *args)
{
    const char *file = args->positional[0].text;
    char kept[4300] = "", why[1024] = "";
    lh_open_opts opts = cli_opts(cli, ACCESS_WRITE);
    struct restored event = {0};
    int rc = lh_restore(cli->url, file, &opts, kept, sizeof kept, why, sizeof why);

    if (rc != LH_OK)
        return cli_refused(rc, "%s", why[0] != '\0' ? why : lh_status_text(rc));
    int exit = cli_open(cli, ACCESS_READ);
    cli_did(cli, "the store was restored");
    if (exit != 0)
        return exit;
    if (!read_event(cli, &event))
        return cli_error(EXIT_FAILED,
                         "the store was restored, but its event store.restored could not be read");
    if (cli->json)
        print_json(file, kept, &event);
    else
        print_text(kept, &event);
    return 0;
}

static const struct example examples[] = {
    {"leasehold restore jobs-monday.db", "restore Monday's copy"},
    {"leasehold restore jobs.db --store test.db", "make a second store from a copy, for "
                                                  "experiments"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"FILE is missing or is not a copy of a store, or the database to be replaced is not ours; "
     "nothing was changed",
     2},
    {"FILE is damaged; nothing was changed", 6},
    {.when = NULL},
};

const struct command cmd_restore = {
    .name = "restore",
    .args = "FILE",
    .summary = "replace the store by a copy",
    .text =
        "Checks the copy FILE and replaces the store by its content; FILE itself stays. The old "
        "store is kept beside it as STORE.replaced-TIME. A missing store is created.\n\nJobs "
        "that were running when the copy was made are released, without counting the attempt; "
        "named leases are free. A job that a worker holds, in the copy or in the replaced store, "
        "stays in quarantine until its holder has answered or the lease would have expired. The "
        "epoch rises, so that no token is issued twice.\n\nNothing has to stop first: a program "
        "that has the old store open gets an error at its next call and must open the store "
        "again. Changes since the copy was made are only in the old store, which is kept.\n\nA "
        "store on PostgreSQL is refused: use the server's own tools, such as psql and "
        "pg_restore; then leasehold-recover(1) ends the leases of the copy.",
    .positionals = positionals,
    .examples = examples,
    .exits = exits,
    .run = run,
};
