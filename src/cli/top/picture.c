/*
 * Reads the store into a picture. Lists are replaced as a whole; rates and events are carried over
 * from one picture to the next.
 */
#include "top.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- rates ----------------------------------------------------------------------------------- */

enum { MARKS = PICTURE_RATE_MS / PICTURE_MARK_MS };

static const struct pace_mark *oldest_mark(const struct pace *pace)
{
    return &pace->mark[pace->marks <= MARKS ? 0 : pace->marks % MARKS];
}

static int64_t queue_total(const lh_queue *queue)
{
    return queue->scheduled + queue->pending + queue->running + queue->completed + queue->failed +
           queue->cancelled;
}

static void pace_count(struct pace *pace, const lh_queue *queue, int64_t now)
{
    int64_t total = queue_total(queue);

    if (pace->marks > 0 && total > pace->total)
        pace->in += total - pace->total;
    if (pace->marks > 0 && queue->completed > pace->completed)
        pace->done += queue->completed - pace->completed;
    pace->at = now;
    pace->total = total;
    pace->completed = queue->completed;
    if (pace->marks == 0 || now - pace->mark[(pace->marks - 1) % MARKS].at >= PICTURE_MARK_MS)
        pace->mark[pace->marks++ % MARKS] = (struct pace_mark){now, pace->in, pace->done};
}

static double per_second(int64_t n, int64_t ms)
{
    return ms < PICTURE_MARK_MS ? -1 : (double)n * 1000 / (double)ms;
}

double pace_in(const struct pace *pace)
{
    return per_second(pace->in - oldest_mark(pace)->in, pace->at - oldest_mark(pace)->at);
}

double pace_done(const struct pace *pace)
{
    return per_second(pace->done - oldest_mark(pace)->done, pace->at - oldest_mark(pace)->at);
}

/** Updates the rates, in the order of the queues. A queue that is new since the time `before`
 *  starts at zero; with `before` 0 there was no picture before. */
static void count_paces(struct picture *picture, int64_t before)
{
    const lh_queues *queues = picture->queues;
    struct pace *fresh = mem_array(queues->n, sizeof *fresh);

    for (size_t i = 0; i < queues->n; i++) {
        snprintf(fresh[i].queue, sizeof fresh[i].queue, "%s", queues->queue[i].queue);
        fresh[i].mark[0].at = before;
        fresh[i].marks = before != 0;
        for (size_t j = 0; j < picture->n_pace; j++)
            if (strcmp(picture->pace[j].queue, fresh[i].queue) == 0)
                fresh[i] = picture->pace[j];
        pace_count(&fresh[i], &queues->queue[i], picture->now);
    }
    free(picture->pace);
    picture->pace = fresh;
    picture->n_pace = queues->n;
}

/* ---- events ---------------------------------------------------------------------------------- */

static const struct shown_event {
    const char *type;
    unsigned ink;
} shown_events[] = {
    {"job.recovered", INK_GREEN},    {"job.poisoned", INK_RED},
    {"job.failed", INK_RED},         {"lease.recovered", INK_GREEN},
    {"worker.started", INK_PLAIN},   {"worker.late", INK_YELLOW},
    {"worker.dead", INK_RED},        {"worker.degraded", INK_YELLOW},
    {"worker.stopped", INK_PLAIN},   {"recovery.completed", INK_CYAN},
    {"recovery.failed", INK_RED},    {"recovery.inconsistency", INK_RED},
    {"store.damaged", INK_RED},      {"store.repaired", INK_YELLOW},
    {"store.restored", INK_YELLOW},  {"clock.jump", INK_YELLOW},
    {"schedule.missed", INK_YELLOW}, {"queue.paused", INK_YELLOW},
    {"queue.resumed", INK_YELLOW},   {"queue.deleted", INK_YELLOW},
};

/** How an event is shown; NULL: it is not. */
static const struct shown_event *find_shown(const lh_event *event)
{
    /* A failed attempt that will be retried is routine: it is not shown. */
    if (strcmp(event->type, "job.failed") == 0 &&
        (event->to == NULL || strcmp(event->to, "failed") != 0))
        return NULL;
    for (size_t i = 0; i < sizeof shown_events / sizeof shown_events[0]; i++)
        if (strcmp(shown_events[i].type, event->type) == 0)
            return &shown_events[i];
    return NULL;
}

static void add_count(struct buf *text, const lh_event *event, const char *key, const char *noun)
{
    int64_t n = 0;

    if (event->data != NULL && js_find_int(event->data, key, &n) && n > 0)
        buf_format(text, "%s%" PRId64 " %s%s", text->n > 0 ? ", " : "", n, noun, text_plural(n));
}

/** Appends what a recovery did, as in "2 jobs, 1 dead worker". */
static void add_recovery(struct buf *text, const lh_event *event)
{
    add_count(text, event, "jobs", "job");
    add_count(text, event, "leases", "named lease");
    add_count(text, event, "dead_workers", "dead worker");
}

static void add_named(struct buf *text, const char *noun, const char *name)
{
    if (name != NULL)
        buf_format(text, "%s%s %s", text->n > 0 ? "  " : "", noun, name);
}

static void describe(struct buf *text, const lh_event *event)
{
    if (event->job > 0)
        buf_format(text, "job %" PRId64, event->job);
    else
        add_named(text, "worker", event->worker);
    add_named(text, "lease", event->lease);
    if (event->job == 0 && event->worker == NULL)
        add_named(text, "queue", event->queue);
    if (strcmp(event->type, "recovery.completed") == 0)
        add_recovery(text, event);
    if (event->reason != NULL)
        buf_format(text, "%s%s", text->n > 0 ? "  " : "", event->reason);
}

static void remember(struct picture *picture, const lh_event *event)
{
    const struct shown_event *how = find_shown(event);
    struct happening *slot = &picture->event[picture->events % PICTURE_EVENTS];
    struct buf text = {0};

    if (how == NULL)
        return;
    describe(&text, event);
    slot->at = event->at;
    slot->ink = how->ink;
    snprintf(slot->type, sizeof slot->type, "%s", event->type);
    snprintf(slot->text, sizeof slot->text, "%s", buf_str(&text));
    buf_clear(&text);
    picture->events++;
}

/** Reads the events since the last picture. The first time, the newest are enough. If there are
 *  very many (audit full), the rest is read for the next picture. */
static int read_events(struct picture *picture, lh_store *store)
{
    enum { PAGE = 1000, PAGES = 10 };
    lh_event_filter filter = {.limit = PAGE, .newest = picture->last_event == 0};
    size_t n = PAGE;

    for (int i = 0; i < PAGES && n == PAGE; i++) {
        lh_events *events = NULL;
        int rc;
        filter.after = picture->last_event;
        if ((rc = lh_event_list(store, &filter, &events)) != LH_OK)
            return rc;
        n = events->n;
        for (size_t j = 0; j < n; j++)
            remember(picture, &events->event[j]);
        if (n > 0)
            picture->last_event = events->event[n - 1].id;
        lh_events_free(events);
        filter.newest = false;
    }
    return LH_OK;
}

const struct happening *picture_event(const struct picture *picture, size_t i)
{
    if (i >= picture->events || i >= PICTURE_EVENTS)
        return NULL;
    return &picture->event[(picture->events - 1 - i) % PICTURE_EVENTS];
}

/* ---- the picture ----------------------------------------------------------------------------- */

/** Forgets rates and events if the file is another store now (after a restore). */
static bool forget_other_store(struct picture *picture)
{
    if (strcmp(picture->uuid, picture->info.uuid) == 0)
        return false;
    snprintf(picture->uuid, sizeof picture->uuid, "%s", picture->info.uuid);
    free(picture->pace);
    picture->pace = NULL;
    picture->n_pace = 0;
    picture->events = 0;
    picture->last_event = 0;
    return true;
}

static void free_lists(struct picture *picture)
{
    lh_queues_free(picture->queues);
    lh_workers_free(picture->workers);
    lh_jobs_free(picture->jobs);
}

int picture_take(struct picture *picture, lh_store *store, bool whole)
{
    const lh_job_filter running = {.state = LH_RUNNING, .limit = PICTURE_JOBS, .brief = !whole};
    struct picture seen = {.seen = true};
    int64_t before;
    int rc = lh_store_status(store, &seen.info);

    if (rc == LH_OK)
        rc = lh_queue_list(store, &seen.queues);
    if (rc == LH_OK)
        rc = lh_worker_list(store, &seen.workers);
    if (rc == LH_OK)
        rc = lh_job_list(store, &running, &seen.jobs);
    if (rc != LH_OK) {
        picture_trouble(picture, lh_errmsg(store));
        free_lists(&seen);
        return rc;
    }
    free_lists(picture);
    before = picture->now;
    picture->seen = true;
    picture->now = lh_now(store);
    picture->info = seen.info;
    picture->queues = seen.queues;
    picture->workers = seen.workers;
    picture->jobs = seen.jobs;
    if (forget_other_store(picture))
        before = 0;
    count_paces(picture, before);
    if ((rc = read_events(picture, store)) == LH_OK)
        picture->trouble[0] = '\0';
    else
        picture_trouble(picture, lh_errmsg(store));
    return rc;
}

void picture_trouble(struct picture *picture, const char *why)
{
    snprintf(picture->trouble, sizeof picture->trouble, "%s", why[0] != '\0' ? why : "unknown");
}

void picture_clear(struct picture *picture)
{
    free_lists(picture);
    free(picture->pace);
    *picture = (struct picture){0};
}

bool picture_empty(const struct picture *picture)
{
    for (size_t i = 0; picture->seen && i < picture->queues->n; i++) {
        const lh_queue *queue = &picture->queues->queue[i];
        if (queue->scheduled + queue->pending + queue->running > 0)
            return false;
    }
    return picture->seen;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_events(struct js *json, const struct picture *picture)
{
    const struct happening *event;

    js_key(json, "events");
    js_open(json, '[');
    for (size_t i = 0; (event = picture_event(picture, i)) != NULL; i++) {
        js_open(json, '{');
        js_key_time(json, "at", event->at);
        js_key_text(json, "type", event->type);
        js_key_text(json, "text", event->text);
        js_close(json, '}');
    }
    js_close(json, ']');
}

void picture_json(const struct picture *picture)
{
    struct js json = {0};

    js_open(&json, '{');
    js_key_time(&json, "now", picture->now);
    js_key_text(&json, "store", picture->info.url);
    js_key_text(&json, "degraded", picture->info.degraded[0] ? picture->info.degraded : NULL);
    js_key(&json, "queues");
    js_open(&json, '[');
    for (size_t i = 0; i < picture->queues->n; i++)
        js_queue(&json, &picture->queues->queue[i], true);
    js_close(&json, ']');
    js_key(&json, "workers");
    js_open(&json, '[');
    for (size_t i = 0; i < picture->workers->n; i++)
        js_worker(&json, &picture->workers->worker[i], false, NULL);
    js_close(&json, ']');
    js_key(&json, "running");
    js_open(&json, '[');
    for (size_t i = 0; i < picture->jobs->n; i++)
        js_job(&json, &picture->jobs->job[i], NULL, false);
    js_close(&json, ']');
    json_events(&json, picture);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
}
