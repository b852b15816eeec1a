/*
 * The columns of the tables: queues, workers, running jobs and events.
 */
#include "table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    FRESH_MS = 8000,     /* how long a recent change is highlighted */
    GONE_MS = 10 * 60000 /* how long a stopped or dead worker is shown */
};

/* ---- words ----------------------------------------------------------------------------------- */

static void number(struct shown *out, int64_t n, unsigned ink)
{
    snprintf(out->text, sizeof out->text, "%" PRId64, n);
    out->ink = n == 0 ? INK_DIM : ink;
}

static void rate(struct shown *out, double per_second)
{
    if (per_second < 0)
        snprintf(out->text, sizeof out->text, "-");
    else
        snprintf(out->text, sizeof out->text, per_second < 100 ? "%.1f" : "%.0f", per_second);
    out->ink = per_second <= 0 ? INK_DIM : INK_PLAIN;
}

/** Formats a duration more exactly than text_span() does, because the user watches it: in seconds,
 *  and below ten seconds in tenths. */
static void span(char *buf, size_t len, int64_t ms)
{
    int seconds = (int)(ms / 1000 % 60);

    if (ms < 10000)
        snprintf(buf, len, "%.1fs", (double)(ms > 0 ? ms : 0) / 1000);
    else if (ms >= 60000 && ms < 600000)
        snprintf(buf, len, "%dm%02ds", (int)(ms / 60000), seconds);
    else
        text_span(ms, buf, len);
}

static void age(struct shown *out, int64_t since, int64_t now)
{
    text_span(now > since ? now - since : 0, out->text, sizeof out->text);
}

/* ---- queues ---------------------------------------------------------------------------------- */

#define QUEUE const lh_queue *queue = &picture->queues->queue[i]

static void queue_name(const struct picture *picture, size_t i, struct shown *out)
{
    QUEUE;
    snprintf(out->text, sizeof out->text, "%s", queue->queue);
}

static void queue_scheduled(const struct picture *picture, size_t i, struct shown *out)
{
    QUEUE;
    number(out, queue->scheduled, INK_YELLOW);
}

static void queue_pending(const struct picture *picture, size_t i, struct shown *out)
{
    QUEUE;
    number(out, queue->pending, INK_PLAIN);
}

static void queue_running(const struct picture *picture, size_t i, struct shown *out)
{
    QUEUE;
    number(out, queue->running, INK_CYAN);
}

static void queue_completed(const struct picture *picture, size_t i, struct shown *out)
{
    QUEUE;
    number(out, queue->completed, INK_GREEN);
}

static void queue_failed(const struct picture *picture, size_t i, struct shown *out)
{
    QUEUE;
    number(out, queue->failed, INK_RED);
}

static void queue_in(const struct picture *picture, size_t i, struct shown *out)
{
    rate(out, pace_in(&picture->pace[i]));
}

static void queue_done(const struct picture *picture, size_t i, struct shown *out)
{
    rate(out, pace_done(&picture->pace[i]));
}

static void queue_hour(const struct picture *picture, size_t i, struct shown *out)
{
    QUEUE;
    number(out, queue->hour_recovered, INK_GREEN);
}

static void queue_oldest(const struct picture *picture, size_t i, struct shown *out)
{
    QUEUE;
    if (queue->oldest_pending_ms >= 0)
        text_span(queue->oldest_pending_ms, out->text, sizeof out->text);
}

static void queue_paused(const struct picture *picture, size_t i, struct shown *out)
{
    QUEUE;
    snprintf(out->text, sizeof out->text, "%s", queue->paused ? "paused" : "");
    out->ink = INK_YELLOW | INK_BOLD;
}

static const struct column queue_columns[] = {
    {"QUEUE", 0, false, false, 40, queue_name},
    {"SCHEDULED", 6, true, false, 0, queue_scheduled},
    {"PENDING", 0, true, false, 0, queue_pending},
    {"RUNNING", 0, true, false, 0, queue_running},
    {"DONE", 1, true, false, 0, queue_completed},
    {"FAILED", 4, true, false, 0, queue_failed},
    {"IN/S", 5, true, false, 0, queue_in},
    {"DONE/S", 2, true, false, 0, queue_done},
    {"HEALED/H", 7, true, false, 0, queue_hour},
    {"OLDEST", 8, true, false, 0, queue_oldest},
    {"", 3, false, false, 0, queue_paused},
    {.head = NULL},
};

struct rows queue_rows(const struct picture *picture)
{
    size_t n = picture->seen ? picture->queues->n : 0;
    struct rows rows = {
        .picture = picture, .columns = queue_columns, .none = "there is no queue yet"};

    rows.order = mem_array(n, sizeof *rows.order);
    for (; rows.n < n; rows.n++)
        rows.order[rows.n] = rows.n;
    return rows;
}

/* ---- workers --------------------------------------------------------------------------------- */

#define WORKER const lh_worker *worker = &picture->workers->worker[i]

static bool is(const lh_worker *worker, const char *state)
{
    return strcmp(worker->state, state) == 0;
}

static unsigned worker_ink(const lh_worker *worker)
{
    if (is(worker, "dead"))
        return INK_RED;
    if (is(worker, "stopped"))
        return INK_DIM;
    return is(worker, "late") || worker->degraded != NULL ? INK_YELLOW : INK_PLAIN;
}

static void worker_name(const struct picture *picture, size_t i, struct shown *out)
{
    WORKER;
    snprintf(out->text, sizeof out->text, "%s", worker->id);
    out->ink = worker_ink(worker);
}

static void worker_state(const struct picture *picture, size_t i, struct shown *out)
{
    WORKER;
    snprintf(out->text, sizeof out->text, "%s", worker->state);
    out->ink = is(worker, "alive") ? INK_GREEN : worker_ink(worker) | INK_BOLD;
}

static void worker_jobs(const struct picture *picture, size_t i, struct shown *out)
{
    WORKER;
    number(out, worker->running, worker_ink(worker));
}

static void worker_beat(const struct picture *picture, size_t i, struct shown *out)
{
    WORKER;
    text_span(worker->silent_ms, out->text, sizeof out->text);
    out->ink = worker_ink(worker);
}

static void worker_pid(const struct picture *picture, size_t i, struct shown *out)
{
    WORKER;
    if (worker->pid > 0)
        number(out, worker->pid, worker_ink(worker));
}

static void worker_host(const struct picture *picture, size_t i, struct shown *out)
{
    WORKER;
    snprintf(out->text, sizeof out->text, "%s", worker->host != NULL ? worker->host : "");
    out->ink = worker_ink(worker);
}

static void worker_queues(const struct picture *picture, size_t i, struct shown *out)
{
    WORKER;
    if (worker->degraded != NULL)
        snprintf(out->text, sizeof out->text, "degraded: %s", worker->degraded);
    else
        snprintf(out->text, sizeof out->text, "%s", worker->queues != NULL ? worker->queues : "");
    out->ink = worker_ink(worker);
}

static const struct column worker_columns[] = {
    {"WORKER", 0, false, false, 48, worker_name},  {"STATE", 0, false, false, 0, worker_state},
    {"JOBS", 1, true, false, 0, worker_jobs},      {"HEARTBEAT", 2, true, false, 0, worker_beat},
    {"PID", 4, true, false, 0, worker_pid},        {"HOST", 5, false, false, 24, worker_host},
    {"QUEUES", 3, false, false, 0, worker_queues}, {.head = NULL},
};

/** Workers that run, and for a while those that stopped or died. */
static bool worth_showing(const lh_worker *worker)
{
    return (!is(worker, "dead") && !is(worker, "stopped")) || worker->running > 0 ||
           worker->silent_ms < GONE_MS;
}

static int worker_rank(const lh_worker *worker)
{
    if (is(worker, "dead"))
        return 0;
    if (is(worker, "late"))
        return 1;
    if (worker->degraded != NULL)
        return 2;
    return is(worker, "alive") ? 3 : 4;
}

/** Puts workers in trouble first, for a screen with too little room. Otherwise every worker keeps
 *  its line, so that a user can watch it. */
void troubled_first(struct rows *rows)
{
    const lh_worker *workers = rows->picture->workers->worker;
    size_t *order = mem_array(rows->n, sizeof *order);
    size_t n = 0;

    for (int rank = 0; rank <= 4; rank++)
        for (size_t i = 0; i < rows->n; i++)
            if (worker_rank(&workers[rows->order[i]]) == rank)
                order[n++] = rows->order[i];
    free(rows->order);
    rows->order = order;
}

struct rows worker_rows(const struct picture *picture)
{
    size_t n = picture->seen ? picture->workers->n : 0;
    struct rows rows = {
        .picture = picture, .columns = worker_columns, .none = "no worker has registered"};

    rows.order = mem_array(n, sizeof *rows.order);
    for (size_t i = 0; i < n; i++)
        if (worth_showing(&picture->workers->worker[i]))
            rows.order[rows.n++] = i;
    return rows;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

#define JOB const lh_job *job = &picture->jobs->job[i]

static int64_t lease_left(const lh_job *job, int64_t now)
{
    return job->lease_until - now;
}

static void job_id(const struct picture *picture, size_t i, struct shown *out)
{
    JOB;
    number(out, job->id, INK_PLAIN);
}

static void job_queue(const struct picture *picture, size_t i, struct shown *out)
{
    JOB;
    snprintf(out->text, sizeof out->text, "%s%s%s", job->queue, job->kind != NULL ? "/" : "",
             job->kind != NULL ? job->kind : "");
}

static void job_worker(const struct picture *picture, size_t i, struct shown *out)
{
    JOB;
    snprintf(out->text, sizeof out->text, "%s", job->worker != NULL ? job->worker : "");
}

static void job_try(const struct picture *picture, size_t i, struct shown *out)
{
    JOB;
    if (job->max_attempts > 0)
        snprintf(out->text, sizeof out->text, "%" PRId64 "/%" PRId64, job->attempt,
                 job->max_attempts);
    else
        snprintf(out->text, sizeof out->text, "%" PRId64, job->attempt);
    out->ink = job->attempt > 1 ? INK_YELLOW : INK_PLAIN;
}

static void job_healed(const struct picture *picture, size_t i, struct shown *out)
{
    JOB;
    number(out, job->recoveries, INK_GREEN | INK_BOLD);
}

static void job_lease(const struct picture *picture, size_t i, struct shown *out)
{
    JOB;
    int64_t left = lease_left(job, picture->now);

    out->part = job->lease_ms > 0 ? (double)left / (double)job->lease_ms : left > 0;
    out->part = out->part < 0 ? 0 : out->part;
    out->ink = out->part > 0.5 ? INK_GREEN : out->part > 0.2 ? INK_YELLOW : INK_RED | INK_BOLD;
    if (left <= 0)
        snprintf(out->text, sizeof out->text, "ended");
    else
        span(out->text, sizeof out->text, left);
}

static void job_age(const struct picture *picture, size_t i, struct shown *out)
{
    JOB;
    age(out, job->started_at, picture->now);
}

static void job_progress(const struct picture *picture, size_t i, struct shown *out)
{
    JOB;
    if (job->progress < 0)
        return;
    snprintf(out->text, sizeof out->text, "%d%%", job->progress);
    out->part = job->progress / 100.0;
    out->ink = INK_CYAN;
}

static void job_stage(const struct picture *picture, size_t i, struct shown *out)
{
    JOB;
    snprintf(out->text, sizeof out->text, "%s", job->stage != NULL ? job->stage : "");
}

static const struct column job_columns[] = {
    {"JOB", 0, true, false, 0, job_id},          {"QUEUE", 5, false, false, 24, job_queue},
    {"WORKER", 3, false, false, 32, job_worker}, {"TRY", 1, true, false, 0, job_try},
    {"HEALED", 7, true, false, 0, job_healed},   {"LEASE", 0, false, true, 24, job_lease},
    {"AGE", 2, true, false, 0, job_age},         {"PROGRESS", 6, false, true, 16, job_progress},
    {"STAGE", 4, false, false, 0, job_stage},    {.head = NULL},
};

/** Below 0: `a` comes first. Ties are broken by id, so that lines do not change places at
 *  random. */
static int compare_jobs(const lh_job *a, const lh_job *b, enum sort sort)
{
    int order = 0;

    if (sort == SORT_LEASE)
        order = (a->lease_until > b->lease_until) - (a->lease_until < b->lease_until);
    else if (sort == SORT_AGE)
        order = (a->started_at > b->started_at) - (a->started_at < b->started_at);
    else if (sort == SORT_WORKER && a->worker != NULL && b->worker != NULL)
        order = strcmp(a->worker, b->worker);
    return order != 0 ? order : (a->id > b->id) - (a->id < b->id);
}

struct sorting {
    const lh_job *jobs;
    enum sort sort;
};

static int by_wish(const void *a, const void *b, void *arg)
{
    const struct sorting *sorting = arg;

    return compare_jobs(&sorting->jobs[*(const size_t *)a], &sorting->jobs[*(const size_t *)b],
                        sorting->sort);
}

struct rows job_rows(const struct picture *picture, enum sort sort)
{
    size_t n = picture->seen ? picture->jobs->n : 0;
    struct rows rows = {.picture = picture, .columns = job_columns, .none = "nothing is running"};
    struct sorting sorting = {n > 0 ? picture->jobs->job : NULL, sort};
    int64_t all = 0;

    rows.order = mem_array(n, sizeof *rows.order);
    for (; rows.n < n; rows.n++)
        rows.order[rows.n] = rows.n;
    if (n > 0)
        qsort_r(rows.order, n, sizeof *rows.order, by_wish, &sorting);
    for (size_t i = 0; picture->seen && i < picture->queues->n; i++)
        all += picture->queues->queue[i].running;
    if (n == PICTURE_JOBS && all > (int64_t)n)
        rows.more = (size_t)all - n;
    return rows;
}

/* ---- events ---------------------------------------------------------------------------------- */

#define EVENT const struct happening *event = picture_event(picture, i)

static unsigned event_ink(const struct picture *picture, const struct happening *event)
{
    return picture->now - event->at < FRESH_MS ? event->ink | INK_BOLD : event->ink;
}

static void event_time(const struct picture *picture, size_t i, struct shown *out)
{
    EVENT;
    char time[64];

    /* Cuts the time of day out of 2026-01-15T10:30:00.000Z. */
    snprintf(out->text, sizeof out->text, "%.8s",
             lh_time_format(event->at, time, sizeof time) + 11);
    out->ink = INK_DIM;
}

static void event_type(const struct picture *picture, size_t i, struct shown *out)
{
    EVENT;
    snprintf(out->text, sizeof out->text, "%s", event->type);
    out->ink = event_ink(picture, event);
    if (picture->now - event->at < FRESH_MS)
        out->ink |= INK_REVERSE;
}

static void event_text(const struct picture *picture, size_t i, struct shown *out)
{
    EVENT;
    snprintf(out->text, sizeof out->text, "%s", event->text);
    out->ink = event_ink(picture, event);
}

static const struct column event_columns[] = {
    {"AT", 1, false, false, 0, event_time},
    {"EVENT", 0, false, false, 0, event_type},
    {"", 2, false, false, 0, event_text},
    {.head = NULL},
};

struct rows event_rows(const struct picture *picture)
{
    size_t n = picture->events < PICTURE_EVENTS ? picture->events : PICTURE_EVENTS;
    struct rows rows = {.picture = picture,
                        .columns = event_columns,
                        .open_end = true,
                        .none = "no deaths, no recoveries"};

    rows.order = mem_array(n, sizeof *rows.order);
    for (; rows.n < n; rows.n++)
        rows.order[rows.n] = rows.n;
    return rows;
}

void rows_clear(struct rows *rows)
{
    free(rows->order);
    rows->order = NULL;
}
