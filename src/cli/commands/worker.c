/*
 * leasehold worker list, heartbeat, stop.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* ---- worker list ----------------------------------------------------------------------------- */

enum { SHOW_HEARTBEAT };

static const struct option list_options[] = {
    [SHOW_HEARTBEAT] = {"show-heartbeat", 0, NULL, SPEC_FLAG, 0,
                        "also show the last heartbeat of each worker, its silence limit, and the "
                        "jobs that a dead one still holds"},
    {.name = NULL},
};

static enum style style_of(const char *state)
{
    if (strcmp(state, "alive") == 0)
        return STYLE_GREEN;
    if (strcmp(state, "late") == 0)
        return STYLE_YELLOW;
    return strcmp(state, "dead") == 0 ? STYLE_RED : STYLE_DIM;
}

static const lh_worker *find_worker(const lh_workers *workers, const char *id)
{
    for (size_t i = 0; workers != NULL && i < workers->n; i++)
        if (strcmp(workers->worker[i].id, id) == 0)
            return &workers->worker[i];
    return NULL;
}

/* Almost always empty, so the column is printed only if a worker has a value. */
static bool any_degraded(const lh_workers *workers)
{
    for (size_t i = 0; workers != NULL && i < workers->n; i++)
        if (workers->worker[i].degraded != NULL)
            return true;
    return false;
}

enum { MOST_COLUMNS = 12 };

/* `columns` must live as long as the table, which keeps the pointer. */
static void list_begin(struct table *table, bool beat, bool degraded,
                       const char *columns[MOST_COLUMNS + 1])
{
    static const char *const brief[] = {"WORKER", "STATE", ">JOBS", ">PID", "HOST", "QUEUES", NULL};
    static const char *const full[] = {"WORKER",      "STATE",      ">JOBS",  ">PID",
                                       "HOST",        "HEARTBEAT",  "AT",     ">EVERY",
                                       ">DEAD AFTER", "STALE JOBS", "QUEUES", NULL};
    const char *const *from = beat ? full : brief;
    size_t n = 0;

    _Static_assert(sizeof full / sizeof full[0] <= MOST_COLUMNS, "room for one more");
    for (; from[n] != NULL; n++)
        columns[n] = from[n];
    if (degraded)
        columns[n++] = "DEGRADED";
    columns[n] = NULL;
    table_begin(table, columns);
}

static void list_row(struct table *table, const lh_worker *w, bool beat, const lh_worker *stale)
{
    char text[64];

    table_cell(table, STYLE_NONE, w->id);
    table_cell(table, style_of(w->state), w->state);
    table_number(table, w->running);
    snprintf(text, sizeof text, "%" PRId64, w->pid);
    table_cell(table, STYLE_NONE, w->pid > 0 ? text : NULL);
    table_cell(table, STYLE_NONE, w->host);
    if (beat) {
        char span[32];
        snprintf(text, sizeof text, "%s ago", text_span(w->silent_ms, span, sizeof span));
        table_cell(table, STYLE_NONE, text);
        table_cell(table, STYLE_NONE, lh_time_format(w->last_heartbeat_at, text, sizeof text));
        table_cell(table, STYLE_NONE, lh_duration_format(w->interval_ms, text, sizeof text));
        table_cell(table, STYLE_NONE,
                   lh_duration_format(w->interval_ms * w->multiplier, text, sizeof text));
        struct buf jobs = {0};
        if (stale != NULL)
            text_ids(&jobs, stale->jobs, (size_t)stale->running);
        table_cell(table, STYLE_RED, buf_str(&jobs));
        buf_clear(&jobs);
    }
    table_cell(table, STYLE_NONE, w->queues);
}

static int run_list(struct cli *cli, const struct args *args)
{
    bool beat = args->option[SHOW_HEARTBEAT].given > 0;
    lh_workers *workers = NULL, *stale = NULL;
    struct js json = {0};
    const char *columns[MOST_COLUMNS + 1];
    struct table table;
    int exit = cli_open(cli, ACCESS_READ);
    int rc;

    if (exit != 0)
        return exit;
    rc = lh_worker_list(cli->store, &workers);
    if (rc == LH_OK && beat)
        rc = lh_workers_stale(cli->store, &stale);
    if (rc != LH_OK)
        exit = cli_failed(cli, rc);
    bool degraded = any_degraded(workers);
    list_begin(&table, beat, degraded, columns);
    for (size_t i = 0; exit == 0 && i < workers->n; i++) {
        const lh_worker *w = &workers->worker[i];
        const lh_worker *dead = find_worker(stale, w->id);
        if (cli->json) {
            js_worker(&json, w, beat, dead);
            js_line(&json);
        } else {
            list_row(&table, w, beat, dead);
            if (degraded)
                table_cell(&table, STYLE_RED, w->degraded);
        }
    }
    table_end(&table);
    js_clear(&json);
    lh_workers_free(workers);
    lh_workers_free(stale);
    return exit;
}

static const struct example list_examples[] = {
    {"leasehold worker list", "who is there?"},
    {"leasehold worker list --show-heartbeat", "when was the last heartbeat, and what is stuck?"},
    {.line = NULL},
};

const struct command cmd_worker_list = {
    .group = "worker",
    .name = "list",
    .args = "[--show-heartbeat]",
    .summary = "list the workers",
    .text = "Lists the registered workers: alive, late (missed a heartbeat), dead (silent for "
            "too long, or its process is gone) or stopped, and the number of jobs that each holds. "
            "With --show-heartbeat also the last heartbeat, the interval, the silence limit after "
            "which the worker is dead, and the jobs of dead workers that wait for recovery. For a "
            "degraded worker the reason is shown.",
    .options = list_options,
    .examples = list_examples,
    .run = run_list,
};

/* ---- worker heartbeat ------------------------------------------------------------------------ */

enum { INTERVAL };

static const struct option beat_options[] = {
    [INTERVAL] = {"interval", 0, "D", SPEC_DURATION(1, VALUE_DAY), 0,
                  "the interval until its next heartbeat, up to 1d (default: 30s)"},
    {.name = NULL},
};

static const struct positional beat_positionals[] = {
    {"WORKER", SPEC_NAME, false, false},
    {"JOB:TOKEN", SPEC_HELD, true, true},
    {.meta = NULL},
};

static void print_worker(struct cli *cli, const char *id)
{
    lh_workers *workers = NULL;
    const lh_worker *worker;
    struct js json = {0};

    if (!cli->json || lh_worker_list(cli->store, &workers) != LH_OK)
        return;
    worker = find_worker(workers, id);
    if (worker != NULL) {
        js_worker(&json, worker, false, NULL);
        js_line(&json);
    }
    js_clear(&json);
    lh_workers_free(workers);
}

static int run_heartbeat(struct cli *cli, const struct args *args)
{
    const char *worker = args->positional[0].text;
    size_t n = args->n - 1;
    lh_beat *beats = mem_array(n, sizeof *beats);
    int64_t *ids = mem_array(n, sizeof *ids);
    int *status = mem_array(n, sizeof *status);
    int exit = cli_open(cli, ACCESS_WRITE | ACCESS_HOLDER);

    for (size_t i = 0; i < n; i++) {
        beats[i].job = args->positional[i + 1].num;
        beats[i].token = args->positional[i + 1].num2;
        ids[i] = beats[i].job;
    }
    if (exit == 0) {
        int rc =
            lh_worker_heartbeat(cli->store, worker, args->option[INTERVAL].num, beats, n, status);
        if (rc != LH_OK && n > 0)
            exit = cli_failed_jobs(cli, "extend the lease of", ids, status, n, rc);
        else if (rc != LH_OK)
            exit = cli_failed(cli, rc);
        print_worker(cli, worker);
    }
    free(beats);
    free(ids);
    free(status);
    return exit;
}

static const struct example beat_examples[] = {
    {"leasehold worker heartbeat w-1 17:3 18:5", "a heartbeat for a worker and two jobs that it "
                                                 "holds"},
    {.line = NULL},
};

static const struct exit_note beat_exits[] = {
    {"there is no such job", 3},
    {"the lease of a job is lost; the others were extended", 4},
    {.when = NULL},
};

const struct command cmd_worker_heartbeat = {
    .group = "worker",
    .name = "heartbeat",
    .args = "WORKER [JOB:TOKEN…] [--interval D]",
    .summary = "send a heartbeat for a worker and its jobs",
    .text =
        "Records that a worker is alive and extends the leases of its jobs, in one "
        "transaction. An unknown worker is registered, as one without a process on this machine: "
        "it is dead only when its silence limit has passed.",
    .positionals = beat_positionals,
    .options = beat_options,
    .examples = beat_examples,
    .exits = beat_exits,
    .run = run_heartbeat,
};

/* ---- worker stop ----------------------------------------------------------------------------- */

static const struct positional stop_positionals[] = {
    {"WORKER", SPEC_NAME, false, false},
    {.meta = NULL},
};

static int run_stop(struct cli *cli, const struct args *args)
{
    int exit = cli_open(cli, ACCESS_WRITE | ACCESS_HOLDER);
    int rc;

    if (exit != 0)
        return exit;
    rc = lh_worker_stop(cli->store, args->positional[0].text);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    print_worker(cli, args->positional[0].text);
    return 0;
}

static const struct example stop_examples[] = {
    {"leasehold worker stop w-1", "this worker has ended"},
    {.line = NULL},
};

const struct command cmd_worker_stop = {
    .group = "worker",
    .name = "stop",
    .args = "WORKER",
    .summary = "mark a worker as stopped",
    .text = "Marks the worker as stopped and releases the jobs that it still holds.",
    .positionals = stop_positionals,
    .examples = stop_examples,
    .run = run_stop,
};
