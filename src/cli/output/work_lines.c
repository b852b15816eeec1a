/*
 * The status lines of running jobs below the log of a worker.
 */
#include "work_lines.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sys.h"
#include "cli/mem.h"
#include "text.h"

enum { MOST = 40, TICK_MS = 500 };

struct line {
    int64_t job, attempt, max_attempts, started_ms;
    char queue[40], stage[80];
    int progress;
};

struct work_lines {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    pthread_t thread;
    bool quit;
    struct line line[MOST]; /* the first running jobs */
    size_t n;
    size_t running, ahead; /* all jobs of the worker */
    size_t drawn;          /* lines that are visible now */
};

/* ---- drawing --------------------------------------------------------------------------------- */

static size_t columns(void)
{
    struct winsize size;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 10 ? size.ws_col : 80;
}

static void erase(struct work_lines *lines, struct buf *out)
{
    if (lines->drawn > 0)
        buf_format(out, "\033[%zuA\r\033[J", lines->drawn);
    lines->drawn = 0;
}

/** Cuts a line to the width of the terminal, because a wrapped line could not be erased. */
static void put_cut(struct buf *out, const char *text, size_t width)
{
    size_t len = strlen(text);

    while (len > 0 && text_width(text, len) > width)
        len--;
    while (len > 0 && ((unsigned char)text[len] & 0xC0U) == 0x80)
        len--; /* do not cut a UTF-8 character */
    text_visible(out, text, len);
    buf_char(out, '\n');
}

static void draw_line(struct buf *out, const struct line *line, size_t width)
{
    char text[400], age[32], attempts[32] = "";
    char percent[16] = "";

    if (line->max_attempts > 0)
        snprintf(attempts, sizeof attempts, "/%" PRId64, line->max_attempts);
    if (line->progress >= 0)
        snprintf(percent, sizeof percent, "  %d%%", line->progress);
    snprintf(text, sizeof text, "  %8" PRId64 "  %-16s attempt %" PRId64 "%s  %6s%s%s%s", line->job,
             line->queue, line->attempt, attempts,
             text_span(lhi_mono_ms() - line->started_ms, age, sizeof age), percent,
             line->stage[0] ? "  " : "", line->stage);
    put_cut(out, text, width);
}

static void draw(struct work_lines *lines, struct buf *out)
{
    size_t width = columns() - 1;

    for (size_t i = 0; i < lines->n; i++)
        draw_line(out, &lines->line[i], width);
    lines->drawn = lines->n;
    if (lines->running > lines->n || lines->ahead > 0) {
        char text[100];
        snprintf(text, sizeof text, "  %zu running, %zu claimed in advance", lines->running,
                 lines->ahead);
        put_cut(out, text, width);
        lines->drawn++;
    }
}

static void put(struct buf *out)
{
    struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};

    /* If the terminal is stopped, skip the drawing: do not wait. */
    if (out->n > 0 && poll(&ready, 1, 0) > 0)
        (void)!fwrite(out->p, 1, out->n, stderr);
    (void)fflush(stderr);
    buf_clear(out);
}

static void redraw(struct work_lines *lines)
{
    struct buf out = {0};

    erase(lines, &out);
    draw(lines, &out);
    put(&out);
}

void work_lines_hide(struct work_lines *lines)
{
    struct buf out = {0};

    if (lines == NULL)
        return;
    pthread_mutex_lock(&lines->mutex);
    erase(lines, &out);
    put(&out);
}

void work_lines_show(struct work_lines *lines)
{
    if (lines == NULL)
        return;
    redraw(lines);
    pthread_mutex_unlock(&lines->mutex);
}

/* ---- running jobs ---------------------------------------------------------------------------- */

static void begin(struct work_lines *lines, const lh_work_event *event)
{
    if (lines->n == MOST)
        return;
    struct line *line = &lines->line[lines->n++];
    *line = (struct line){.job = event->job->id,
                          .attempt = event->job->attempt,
                          .max_attempts = event->job->max_attempts,
                          .started_ms = lhi_mono_ms(),
                          .progress = -1};
    snprintf(line->queue, sizeof line->queue, "%s", event->job->queue);
}

static void forget(struct work_lines *lines, int64_t job)
{
    for (size_t i = 0; i < lines->n; i++)
        if (lines->line[i].job == job) {
            memmove(&lines->line[i], &lines->line[i + 1], (--lines->n - i) * sizeof lines->line[0]);
            return;
        }
}

static void progress(struct work_lines *lines, const lh_work_event *event)
{
    for (size_t i = 0; i < lines->n; i++)
        if (lines->line[i].job == event->job->id) {
            lines->line[i].progress = event->progress;
            snprintf(lines->line[i].stage, sizeof lines->line[i].stage, "%s",
                     event->stage ? event->stage : "");
        }
}

void work_lines_event(struct work_lines *lines, const lh_work_event *event)
{
    if (lines == NULL)
        return;
    pthread_mutex_lock(&lines->mutex);
    lines->running = event->running;
    lines->ahead = event->ahead;
    if (event->what == LH_WORK_STARTED)
        begin(lines, event);
    else if (event->what == LH_WORK_ENDED)
        forget(lines, event->job->id);
    else if (event->what == LH_WORK_PROGRESS)
        progress(lines, event);
    pthread_mutex_unlock(&lines->mutex);
}

/* ---- redrawing the ages ---------------------------------------------------------------------- */

static void *tick(void *arg)
{
    struct work_lines *lines = arg;
    struct timespec until;

    pthread_mutex_lock(&lines->mutex);
    while (!lines->quit) {
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += TICK_MS * 1000000L;
        if (until.tv_nsec >= 1000000000L) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000L;
        }
        (void)pthread_cond_timedwait(&lines->cond, &lines->mutex, &until);
        if (lines->drawn > 0 || lines->n > 0)
            redraw(lines);
    }
    pthread_mutex_unlock(&lines->mutex);
    return NULL;
}

struct work_lines *work_lines_new(void)
{
    struct work_lines *lines = isatty(STDERR_FILENO) ? calloc(1, sizeof *lines) : NULL;

    if (lines == NULL)
        return NULL;
    pthread_mutex_init(&lines->mutex, NULL);
    pthread_cond_init(&lines->cond, NULL);
    if (!lhi_thread_start(&lines->thread, tick, lines)) {
        free(lines);
        return NULL;
    }
    return lines;
}

void work_lines_free(struct work_lines *lines)
{
    struct buf out = {0};

    if (lines == NULL)
        return;
    pthread_mutex_lock(&lines->mutex);
    lines->quit = true;
    erase(lines, &out);
    put(&out);
    lines->n = 0;
    pthread_cond_signal(&lines->cond);
    pthread_mutex_unlock(&lines->mutex);
    pthread_join(lines->thread, NULL);
    pthread_mutex_destroy(&lines->mutex);
    pthread_cond_destroy(&lines->cond);
    free(lines);
}
