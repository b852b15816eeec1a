/*
 * leasehold recovery-status: the last recovery, the next one, and what is stale now.
 */
#include <inttypes.h>

#include "cli/output/report.h"

/* The last recovery, the next one, and what a recovery would do now. */
struct look {
    lh_store_info info;
    lh_workers *dead;
    lh_report *last; /* NULL: there was none */
    int64_t now;
};

static int look(struct cli *cli, struct look *look)
{
    int rc = lh_store_status(cli->store, &look->info);

    if (rc == LH_OK)
        rc = lh_workers_stale(cli->store, &look->dead);
    if (rc == LH_OK) {
        rc = lh_report_get(cli->store, 0, &look->last);
        rc = rc == LH_ENOTFOUND ? LH_OK : rc;
    }
    look->now = lh_now(cli->store);
    return rc;
}

static void print_dead(const lh_workers *dead)
{
    for (size_t i = 0; i < dead->n; i++) {
        const lh_worker *w = &dead->worker[i];
        struct buf jobs = {0};
        char age[32];
        text_ids(&jobs, w->jobs, (size_t)w->running);
        text_field("", "%s, last heartbeat %s ago, holds %s%s", w->id,
                   text_span(w->silent_ms, age, sizeof age),
                   w->running == 0   ? "nothing"
                   : w->running == 1 ? "job "
                                     : "jobs ",
                   buf_str(&jobs));
        buf_clear(&jobs);
    }
}

static void print_text(const struct look *look)
{
    int64_t next = look->info.next_due_at;
    struct buf last = {0};
    char time[64], when[64];

    if (look->last != NULL)
        report_line(look->last, look->now, &last);
    text_field("last run", "%s", last.n ? buf_str(&last) : "never");
    if (look->last != NULL)
        text_field("", "see 'leasehold recovery-report %" PRId64 "'", look->last->id);
    if (next == 0)
        text_field("next run", "none due");
    else if (next <= look->now)
        text_field("next run", "due now: the next claim or 'leasehold recover' does it");
    else
        text_field("next run", "%s (%s)", lh_time_format(next, time, sizeof time),
                   text_when(next, look->now, when, sizeof when));
    text_field("stale now", "%" PRId64 " job%s, %" PRId64 " named lease%s", look->info.stale_jobs,
               text_plural(look->info.stale_jobs), look->info.stale_leases,
               text_plural(look->info.stale_leases));
    text_field("dead workers", "%zu", look->dead->n);
    print_dead(look->dead);
    if (look->info.degraded[0] != '\0')
        text_field("degraded", "%s", look->info.degraded);
    buf_clear(&last);
}

static void print_json(const struct look *look)
{
    struct js json = {0};

    js_open(&json, '{');
    js_key_int(&json, "stale_jobs", look->info.stale_jobs);
    js_key_int(&json, "stale_leases", look->info.stale_leases);
    js_key_int(&json, "dead_workers", (int64_t)look->dead->n);
    js_key(&json, "last_report");
    if (look->last != NULL)
        js_report(&json, look->last, true);
    else
        js_null(&json);
    js_key_time(&json, "next_run_at", look->info.next_due_at);
    js_key(&json, "workers");
    js_open(&json, '[');
    for (size_t i = 0; i < look->dead->n; i++)
        js_worker(&json, &look->dead->worker[i], true, &look->dead->worker[i]);
    js_close(&json, ']');
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
}

static int run(struct cli *cli, const struct args *args)
{
    struct look seen = {0};
    int exit = cli_open(cli, ACCESS_READ);
    int rc;

    (void)args;
    if (exit != 0)
        return exit;
    rc = look(cli, &seen);
    if (rc != LH_OK)
        exit = cli_failed(cli, rc);
    else if (cli->json)
        print_json(&seen);
    else
        print_text(&seen);
    lh_workers_free(seen.dead);
    lh_report_free(seen.last);
    return exit;
}

static const struct example examples[] = {
    {"leasehold recovery-status", "is anything waiting to be recovered?"},
    {"leasehold recovery-status --json | jq .stale_jobs", "for a script"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"there is no store", 3},
    {.when = NULL},
};

static const char text[] =
    "Prints what the last recovery found, when the next one is due, what a recovery would "
    "recover now, and which workers are dead. It changes nothing. The next claim from any "
    "queue, a running worker or server, or leasehold-recover(1) does what is due.";

/* clang-format off: the same command, under two names */
#define RECOVERY_STATUS                                                                     \
    .name = "recovery-status", .args = "",                                                  \
    .summary = "show the last recovery, the next one, and what is stale now", .text = text, \
    .examples = examples, .exits = exits, .run = run
/* clang-format on */

const struct command cmd_recovery_status = {RECOVERY_STATUS};
const struct command cmd_queue_recovery_status = {.group = "queue", RECOVERY_STATUS};
