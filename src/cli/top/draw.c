/*
 * Draws a picture into a frame: a head, four tables that share the rows, a foot. On a low screen
 * the least useful tables are left out.
 */
#include "table.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

/* ---- head and foot --------------------------------------------------------------------------- */

/** The first line: the store and the time. */
static void draw_title(struct frame *frame, const struct picture *picture, const struct view *view)
{
    char time[64] = "", right[64];
    int takes;

    if (picture->seen)
        lh_time_format(picture->now, time, sizeof time);
    snprintf(right, sizeof right, "%s%.8s UTC", view->paused ? "paused at " : "",
             picture->seen ? time + 11 : "--:--:--");
    takes = frame_width(frame, right);
    frame_text(frame, 0, 0, frame->cols, INK_BOLD, "leasehold");
    if (frame->cols > takes + 13)
        frame_text(frame, 0, 11, frame->cols - takes - 13, INK_PLAIN, picture->info.url);
    if (frame->cols > takes + 10)
        frame_right(frame, 0, 0, frame->cols, INK_PLAIN, right);
    frame_line(frame, 0, INK_REVERSE);
}

struct line {
    struct frame *frame;
    int row, col;
};

/** Appends words after a gap of two columns, if all of them fit. */
static void add_words(struct line *line, unsigned ink, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void add_words(struct line *line, unsigned ink, const char *format, ...)
{
    char text[128];
    va_list ap;
    int takes;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    takes = frame_width(line->frame, text);
    if (line->col + takes > line->frame->cols)
        return;
    frame_text(line->frame, line->row, line->col, takes, ink, text);
    line->col += takes + TABLE_GAP;
}

static int64_t healed(const lh_store_info *info)
{
    return info->recovery.retried + info->recovery.made_pending + info->recovery.failed +
           info->recovery.released;
}

/** The second line: totals of all queues, and what was recovered. */
static void draw_totals(struct frame *frame, int row, const struct picture *picture)
{
    struct line line = {frame, row, 0};
    const lh_store_info *info = &picture->info;
    int64_t waiting = 0, running = 0, done = 0, failed = 0;
    double pace = 0;

    for (size_t i = 0; i < picture->queues->n; i++) {
        const lh_queue *queue = &picture->queues->queue[i];
        waiting += queue->scheduled + queue->pending;
        running += queue->running;
        done += queue->completed;
        failed += queue->failed;
        pace += pace_done(&picture->pace[i]);
    }
    add_words(&line, waiting ? INK_BOLD : INK_DIM, "%" PRId64 " waiting", waiting);
    add_words(&line, running ? INK_CYAN | INK_BOLD : INK_DIM, "%" PRId64 " running", running);
    add_words(&line, done ? INK_GREEN | INK_BOLD : INK_DIM, "%" PRId64 " done", done);
    if (failed > 0)
        add_words(&line, INK_RED | INK_BOLD, "%" PRId64 " failed", failed);
    if (info->stale_jobs > 0)
        add_words(&line, INK_RED | INK_BOLD, "%" PRId64 " stale", info->stale_jobs);
    if (healed(info) > 0)
        add_words(&line, INK_GREEN | INK_BOLD, "%" PRId64 " healed", healed(info));
    if (pace > 0)
        add_words(&line, INK_PLAIN, "%.1f/s", pace);
    if (info->workers_dead > 0)
        add_words(&line, INK_RED | INK_BOLD, "%" PRId64 " dead worker%s", info->workers_dead,
                  text_plural(info->workers_dead));
    if (info->workers_late > 0)
        add_words(&line, INK_YELLOW | INK_BOLD, "%" PRId64 " late worker%s", info->workers_late,
                  text_plural(info->workers_late));
    if (info->workers_alive > 0)
        add_words(&line, INK_PLAIN, "%" PRId64 " live worker%s", info->workers_alive,
                  text_plural(info->workers_alive));
}

/** The problem with the store or with reading it; "": none. */
static void trouble(const struct picture *picture, char *buf, size_t len)
{
    buf[0] = '\0';
    if (picture->trouble[0] != '\0')
        snprintf(buf, len, "not current: %s", picture->trouble);
    else if (picture->info.degraded[0] != '\0')
        snprintf(buf, len, "degraded: %s", picture->info.degraded);
}

/** Draws the warning, if there is one. Returns the next free row. */
static int draw_head(struct frame *frame, const struct picture *picture, const struct view *view)
{
    char wrong[SHOWN_MOST + 64];
    int row = 1;

    draw_title(frame, picture, view);
    if (picture->seen)
        draw_totals(frame, row++, picture);
    trouble(picture, wrong, sizeof wrong);
    if (wrong[0] != '\0')
        frame_text(frame, row++, 0, frame->cols, INK_RED | INK_BOLD, wrong);
    return row;
}

static const char *const sort_names[SORTS] = {"job", "lease", "age", "worker"};

static void draw_foot(struct frame *frame, const struct view *view, size_t jobs)
{
    struct line line = {frame, frame->rows - 1, 0};
    size_t last = view->first + view->page;

    add_words(&line, INK_DIM, "q quit");
    add_words(&line, INK_DIM, "? help");
    add_words(&line, view->paused ? INK_YELLOW | INK_BOLD : INK_DIM, "p %s",
              view->paused ? "go on" : "pause");
    add_words(&line, INK_DIM, "s sort: %s", sort_names[view->sort]);
    if (view->page > 0 && view->page < jobs)
        add_words(&line, INK_DIM, "jobs %zu-%zu of %zu", view->first + 1, last, jobs);
}

static void draw_help(struct frame *frame, int row)
{
    static const char *const lines[] = {
        "q            quit",
        "p, space     pause; again: resume",
        "s            sort jobs by id, lease, age, worker",
        "up, down     scroll the jobs",
        "PgUp, PgDn   scroll by a page; also Home, End",
        "?            show or hide this help",
        "",
        "LEASE  time left: the bar drains, and a",
        "       heartbeat fills it. When it is empty, the",
        "       job returns to the queue.",
        "TRY    attempt, of the maximum",
        "HEALED recoveries of the job",
        NULL,
    };

    for (size_t i = 0; lines[i] != NULL; i++)
        frame_text(frame, row + (int)i, 0, frame->cols, INK_PLAIN, lines[i]);
}

/* ---- sharing the rows ------------------------------------------------------------------------ */

enum part { QUEUES, WORKERS, JOBS, EVENTS, PARTS };

/** Shares `room` rows: no table gets more than it needs, and the rest goes to the others. On a low
 *  screen the least useful tables get no rows. */
static void share(const int *want, int room, int *get)
{
    static const enum part least_first[PARTS] = {QUEUES, WORKERS, EVENTS, JOBS};
    int shown = PARTS;

    memset(get, 0, PARTS * sizeof *get);
    while (shown > 1 && room < 2 * shown)
        shown--;
    for (bool grown = true; room > 0 && grown;) {
        grown = false;
        for (int i = PARTS - 1; i >= PARTS - shown && room > 0; i--) {
            enum part s = least_first[i];
            /* A table head without rows is useless, and running jobs matter most. */
            int step = get[s] == 0 || s == JOBS ? 2 : 1;
            if (step > room || step > want[s] - get[s])
                step = get[s] > 0 && get[s] < want[s] ? 1 : 0;
            if (step == 0)
                continue;
            get[s] += step;
            room -= step;
            grown = true;
        }
    }
}

/** Puts empty rows between the tables, if they fit. */
static bool airy(const int *want, int room)
{
    int all = PARTS;

    for (int s = 0; s < PARTS; s++)
        all += want[s];
    return all <= room || room >= 24;
}

static void scroll_to(struct view *view, struct rows *jobs, int room)
{
    size_t last = jobs->n - table_lines(room, jobs);

    view->first = view->first < last ? view->first : last;
    jobs->first = view->first;
}

static void draw_parts(struct frame *frame, int row, int room, struct rows *rows, struct view *view)
{
    int want[PARTS], get[PARTS];
    bool air;

    for (int s = 0; s < PARTS; s++)
        want[s] = table_rows(&rows[s]);
    air = airy(want, room);
    share(want, air ? room - PARTS : room, get);
    if (rows[WORKERS].n > 0 && get[WORKERS] < want[WORKERS])
        troubled_first(&rows[WORKERS]);
    scroll_to(view, &rows[JOBS], get[JOBS]);
    for (int s = 0; s < PARTS; s++) {
        size_t shown;
        if (get[s] == 0)
            continue;
        row += air;
        shown = table_draw(frame, row, get[s], &rows[s]);
        if (s == JOBS)
            view->page = shown;
        row += get[s];
    }
}

static void rows_of(const struct picture *picture, enum sort sort, struct rows *rows)
{
    rows[QUEUES] = queue_rows(picture);
    rows[WORKERS] = worker_rows(picture);
    rows[JOBS] = job_rows(picture, sort);
    rows[EVENTS] = event_rows(picture);
}

static void rows_clear_all(struct rows *rows)
{
    for (int s = 0; s < PARTS; s++)
        rows_clear(&rows[s]);
}

int draw_rows(const struct picture *picture)
{
    struct rows rows[PARTS];
    char wrong[SHOWN_MOST + 64];
    int n = 2 + PARTS;

    rows_of(picture, SORT_JOB, rows);
    for (int s = 0; s < PARTS; s++)
        n += table_rows(&rows[s]);
    rows_clear_all(rows);
    trouble(picture, wrong, sizeof wrong);
    return n + (wrong[0] != '\0');
}

void draw(struct frame *frame, const struct picture *picture, struct view *view)
{
    struct rows rows[PARTS];
    int row = draw_head(frame, picture, view);

    rows_of(picture, view->sort, rows);
    if (view->help)
        draw_help(frame, row + 1);
    else
        draw_parts(frame, row, frame->rows - row - view->keys, rows, view);
    if (view->keys)
        draw_foot(frame, view, rows[JOBS].n);
    rows_clear_all(rows);
}
