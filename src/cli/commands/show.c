/*
 * leasehold show: one job and its history.
 *
 * The history combines the job's events with the times in the job itself. Routine steps (enqueued,
 * claimed, completed) write an event only if the policy asks for it, but they always leave their
 * time in the job.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static const struct positional positionals[] = {
    {"JOB", SPEC_ID, false, false},
    {.meta = NULL},
};

/* ---- history --------------------------------------------------------------------------------- */

struct step {
    int64_t at;
    size_t order; /* order of steps that have the same time */
    const char *what;
    const lh_event *event; /* NULL: the step is known from a time in the job */
    const char *note;
};

static int by_time(const void *left, const void *right)
{
    const struct step *a = left, *b = right;

    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

static bool has_event(const lh_events *events, const char *type, int64_t at)
{
    for (size_t i = 0; i < events->n; i++)
        if (strcmp(events->event[i].type, type) == 0 && (at == 0 || events->event[i].at == at))
            return true;
    return false;
}

static void add(struct buf *line, const char *before, const char *text)
{
    if (text == NULL)
        return;
    buf_text(line, before);
    text_visible(line, text, strlen(text));
}

static void print_step(const struct step *step, bool colors)
{
    struct buf line = {0};
    char time[64];

    buf_format(&line, "  %s%s%s  %-12s", style_on(STYLE_DIM, colors),
               lh_time_format(step->at, time, sizeof time), style_off(STYLE_DIM, colors),
               step->what);
    if (step->event != NULL) {
        const lh_event *e = step->event;
        if (e->from != NULL && e->to != NULL && strcmp(e->from, e->to) != 0)
            buf_format(&line, "  %s → %s", e->from, e->to);
        else if (e->to != NULL)
            buf_format(&line, "  %s", e->to);
        add(&line, "  worker ", e->worker);
        add(&line, "  by ", e->actor);
        add(&line, "  ", e->reason);
    } else if (step->note != NULL) {
        buf_format(&line, "  %s", step->note);
    }
    while (line.n > 0 && line.p[line.n - 1] == ' ')
        line.n--;
    puts(buf_str(&line));
    buf_clear(&line);
}

static void print_history(const lh_job *job, const lh_events *events)
{
    bool colors = text_colors(stdout);
    struct step *steps = mem_array(events->n + 3, sizeof *steps);
    struct buf holder = {0};
    size_t n = 0, claim_order = 1;

    if (!has_event(events, "job.enqueued", 0))
        steps[n++] = (struct step){job->created_at, 0, "enqueued", NULL, NULL};
    for (size_t i = 0; i < events->n; i++) {
        const lh_event *e = &events->event[i];
        const char *what = strncmp(e->type, "job.", 4) == 0 ? e->type + 4 : e->type;
        steps[n++] = (struct step){e->at, 2 * i + 2, what, e, NULL};
        /* An event with an older token happened before the claim, perhaps in the same
         * transaction. */
        if (e->at == job->started_at && e->token < job->token)
            claim_order = 2 * i + 3;
    }
    if (job->started_at != 0 && !has_event(events, "job.claimed", job->started_at)) {
        if (job->worker != NULL)
            buf_format(&holder, "worker %s, ", job->worker);
        buf_format(&holder, "attempt %" PRId64, job->attempt);
        steps[n++] = (struct step){job->started_at, claim_order, "claimed", NULL, buf_str(&holder)};
    }
    if (job->finished_at != 0 && job->state == LH_COMPLETED &&
        !has_event(events, "job.completed", job->finished_at))
        steps[n++] = (struct step){job->finished_at, 2 * events->n + 2, "completed", NULL, NULL};
    qsort(steps, n, sizeof *steps, by_time);
    printf("\n%shistory%s\n", style_on(STYLE_BOLD, colors), style_off(STYLE_BOLD, colors));
    for (size_t i = 0; i < n; i++)
        print_step(&steps[i], colors);
    buf_clear(&holder);
    free(steps);
}

/* ---- the job --------------------------------------------------------------------------------- */

static void field_text(const char *label, const char *text)
{
    struct buf visible = {0};

    if (text == NULL)
        return;
    text_visible(&visible, text, strlen(text));
    text_field(label, "%s", buf_str(&visible));
    buf_clear(&visible);
}

static void field_time(const char *label, int64_t at, int64_t now)
{
    char time[64], when[64];

    if (at != 0)
        text_field(label, "%s (%s)", lh_time_format(at, time, sizeof time),
                   text_when(at, now, when, sizeof when));
}

/** Prints a payload or result. `cut` is the number of bytes that were not kept. */
static void print_bytes(const char *title, const void *bytes, size_t len, int64_t cut, bool is_text)
{
    enum { MOST = 4096 };
    bool colors = text_colors(stdout);
    struct buf visible = {0};
    size_t shown = len < MOST ? len : MOST;

    if (bytes == NULL && cut == 0)
        return;
    printf("\n%s%s%s (%zu byte%s%s", style_on(STYLE_BOLD, colors), title,
           style_off(STYLE_BOLD, colors), len, text_plural((int64_t)len),
           is_text || bytes == NULL ? "" : ", not text");
    if (cut > 0)
        printf("; %" PRId64 " more were written and are not kept", cut);
    puts(")");
    if (bytes == NULL)
        return;
    if (!is_text)
        base64_encode(&visible, bytes, shown);
    else {
        const char *text = bytes;
        while (shown < len && shown > 0 && ((unsigned char)text[shown] & 0xc0) == 0x80)
            shown--;
        /* Keep line breaks; make every other control character visible. */
        for (size_t i = 0; i < shown;) {
            const char *end = memchr(text + i, '\n', shown - i);
            size_t n = end ? (size_t)(end - text) - i : shown - i;
            text_visible(&visible, text + i, n);
            i += n + (end != NULL);
            if (end != NULL && i < shown)
                buf_text(&visible, "\n  ");
        }
    }
    printf("  %s%s\n", buf_str(&visible), shown < len ? "…" : "");
    buf_clear(&visible);
}

static void print_job(const lh_job *job, int64_t now)
{
    bool colors = text_colors(stdout);
    enum style style = style_of_state(job->state);
    char span[32];

    printf("%sjob %" PRId64 "%s  %s%s%s%s\n", style_on(STYLE_BOLD, colors), job->id,
           style_off(STYLE_BOLD, colors), style_on(style, colors), lh_state_name(job->state),
           style_off(style, colors), job->expired ? ", its lease has expired" : "");
    field_text("queue", job->queue);
    field_text("kind", job->kind);
    text_field("priority", "%d", job->priority);
    field_text("key", job->key);
    if (job->max_attempts > 0)
        text_field("attempt", "%" PRId64 " of %" PRId64, job->attempt, job->max_attempts);
    else
        text_field("attempt", "%" PRId64 "%s", job->attempt,
                   job->max_attempts == LH_UNLIMITED ? ", unlimited" : "");
    text_field("recoveries", "%" PRId64, job->recoveries);
    if (job->token != 0)
        text_field("token", "%" PRId64, job->token);
    field_text("worker", job->worker);
    if (job->state == LH_RUNNING)
        text_field("lease", "%s left", text_span(job->remaining_ms, span, sizeof span));
    field_time("lease until", job->lease_until, now);
    if (job->progress >= 0)
        text_field("progress", "%d %%", job->progress);
    field_text("stage", job->stage);
    field_text("checkpoint", job->checkpoint);
    field_text("last error", job->last_error);
    field_time("created", job->created_at, now);
    field_time("run at", job->run_at, now);
    field_time("started", job->started_at, now);
    field_time("last heartbeat", job->last_heartbeat_at, now);
    field_time("changed", job->state_changed_at, now);
    field_time("finished", job->finished_at, now);
    field_time("expires", job->expires_at, now);
    print_bytes("payload", job->payload, job->payload_len, 0, job->payload_is_text);
    print_bytes("result", job->result, job->result_len, job->result_cut, job->result_is_text);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int run(struct cli *cli, const struct args *args)
{
    int64_t id = args->positional[0].num;
    lh_event_filter filter = {.job = id, .limit = 10000, .newest = true};
    lh_jobs *jobs = NULL;
    lh_events *events = NULL;
    int exit, rc;

    exit = cli_open(cli, ACCESS_READ);
    if (exit != 0)
        return exit;
    rc = lh_job_get(cli->store, id, &jobs);
    if (rc == LH_OK)
        rc = lh_event_list(cli->store, &filter, &events);
    if (rc != LH_OK) {
        exit = cli_failed(cli, rc);
    } else if (cli->json) {
        struct js json = {0};
        js_job(&json, &jobs->job[0], events, false);
        js_line(&json);
        js_clear(&json);
    } else {
        print_job(&jobs->job[0], lh_now(cli->store));
        print_history(&jobs->job[0], events);
    }
    lh_events_free(events);
    lh_jobs_free(jobs);
    return exit;
}

static const struct example examples[] = {
    {"leasehold show 17", "what happened to job 17?"},
    {.line = NULL},
};

const struct command cmd_show = {
    .name = "show",
    .args = "JOB",
    .summary = "show everything about a job, with its history",
    .text = "Prints everything that is known about a job, and its history: what happened, when, "
            "by whom and why. With --json it prints the job with its events. leasehold logs shows "
            "what its runs wrote.",
    .positionals = positionals,
    .examples = examples,
    .run = run,
};
