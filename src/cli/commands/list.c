/*
 * leasehold list: the jobs of the store.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/cli.h"

enum { QUEUE, KIND, STATE, WORKER, KEY, LIMIT, AFTER };

/* In the order of lh_state; after them a running job whose lease has expired. */
#define STATES "scheduled pending running completed failed cancelled expired"
enum { EXPIRED = LH_CANCELLED + 1, PAGE = 1000 };

static const struct option options[] = {
    [QUEUE] = {"queue", 'q', "Q", SPEC_NAME, 0, "only jobs of this queue"},
    [KIND] = {"kind", 'k', "K", SPEC_NAME, 0, "only jobs of this kind"},
    [STATE] = {"state", 's', "S", SPEC_CHOICE(STATES), 0, "only jobs in this state"},
    [WORKER] = {"worker", 'w', "W", SPEC_NAME, 0, "only jobs that this worker holds"},
    [KEY] = {"key", 0, "K", SPEC_TEXT(256), 0, "only jobs with this key"},
    [LIMIT] = {"limit", 'n', "N", SPEC_INT(1, 1000000000), 0, "at most this many (default: 100)"},
    [AFTER] = {"after", 0, "ID", SPEC_INT(0, VALUE_ID_MAX), 0, "only jobs after this id"},
    {.name = NULL},
};

/** The detail column: what matters most about a job in its state. */
static void note(struct table *table, const lh_job *job, int64_t now)
{
    struct buf text = {0};
    char when[64];

    if (job->state == LH_SCHEDULED && job->run_at != 0)
        buf_format(&text, "runs %s  ", text_when(job->run_at, now, when, sizeof when));
    if (job->expired)
        buf_text(&text, "lease has expired  ");
    if (job->state == LH_RUNNING && job->progress >= 0)
        buf_format(&text, "%d %%  ", job->progress);
    if (job->state == LH_RUNNING && job->stage != NULL)
        buf_format(&text, "%s  ", job->stage);
    if (job->last_error != NULL && job->state != LH_COMPLETED)
        buf_text(&text, job->last_error);
    else if (job->key != NULL)
        buf_format(&text, "key %s", job->key);
    while (text.n > 0 && text.p[text.n - 1] == ' ')
        text.p[--text.n] = '\0';
    table_cell(table, job->expired ? STYLE_YELLOW : STYLE_NONE, buf_str(&text));
    buf_clear(&text);
}

static void row(struct table *table, const lh_job *job, int64_t now)
{
    char text[64];

    snprintf(text, sizeof text, "%" PRId64, job->id);
    table_cell(table, STYLE_NONE, text);
    table_cell(table, STYLE_NONE, job->queue);
    table_cell(table, STYLE_NONE, job->kind);
    table_cell(table, style_of_state(job->state), lh_state_name(job->state));
    table_number(table, job->priority);
    if (job->max_attempts > 0)
        snprintf(text, sizeof text, "%" PRId64 "/%" PRId64, job->attempt, job->max_attempts);
    else
        snprintf(text, sizeof text, "%" PRId64, job->attempt);
    table_cell(table, STYLE_NONE, text);
    table_cell(table, STYLE_NONE, text_when(job->state_changed_at, now, text, sizeof text));
    table_cell(table, STYLE_NONE, job->worker);
    note(table, job, now);
}

static int run(struct cli *cli, const struct args *args)
{
    static const char *const heads[] = {">ID",      "QUEUE",   "KIND",   "STATE", ">PRIORITY",
                                        ">ATTEMPT", "CHANGED", "WORKER", "NOTE",  NULL};
    const struct value *opt = args->option;
    int64_t left = opt[LIMIT].given ? opt[LIMIT].num : 100;
    lh_job_filter filter = {
        .queue = opt[QUEUE].text,
        .kind = opt[KIND].text,
        .worker = opt[WORKER].text,
        .key = opt[KEY].text,
        .after = opt[AFTER].num,
    };
    struct table table;
    bool more = false;
    int exit;

    if (opt[STATE].num == EXPIRED)
        filter.expired = true;
    else
        filter.state = (lh_state)opt[STATE].num;
    exit = cli_open(cli, ACCESS_READ);
    if (exit != 0)
        return exit;
    table_begin(&table, heads);
    cli_cancel();
    while (left > 0 && exit == 0 && !ferror(stdout) && !cli_interrupted()) {
        lh_jobs *jobs = NULL;
        size_t n;
        int rc;
        filter.limit = left < PAGE ? (size_t)left : PAGE;
        rc = lh_job_list(cli->store, &filter, &jobs);
        if (rc != LH_OK) {
            exit = cli_failed(cli, rc);
            break;
        }
        n = jobs->n;
        for (size_t i = 0; i < n; i++) {
            if (cli->json)
                js_job_line(&jobs->job[i]);
            else
                row(&table, &jobs->job[i], lh_now(cli->store));
            filter.after = jobs->job[i].id;
        }
        lh_jobs_free(jobs);
        left -= (int64_t)n;
        more = n == filter.limit;
        if (!more)
            break;
    }
    table_end(&table);
    if (exit == 0 && cli_interrupted())
        return cli_interrupted_exit();
    if (exit == 0 && more && !cli->json)
        cli_note("there may be more: --after %" PRId64, filter.after);
    return exit;
}

static const struct example examples[] = {
    {"leasehold list --queue mail --state failed", "the failed jobs of a queue"},
    {"leasehold list --state expired", "running jobs whose lease has expired"},
    {"leasehold list --json --limit 1000000 > jobs.ndjson", "all jobs as JSON lines"},
    {.line = NULL},
};

const struct command cmd_list = {
    .name = "list",
    .args = "[--queue Q] [--kind K] [--state S] [--worker W] [--key K] [--limit N] [--after ID]",
    .summary = "list jobs",
    .text = "Lists jobs by id, oldest first. An empty list is not an error.",
    .options = options,
    .examples = examples,
    .run = run,
};
