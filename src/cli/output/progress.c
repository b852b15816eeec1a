/*
 * The progress bar.
 */
#include "progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

enum { BAR = 24, REDRAW_MS = 100 };

void progress_begin(struct progress *progress, const char *what)
{
    *progress = (struct progress){
        .what = what, .on = isatty(STDERR_FILENO) != 0, .begun_ms = lhi_mono_ms()};
}

static void draw_bar(int64_t at, int64_t whole)
{
    int full = (int)(at * BAR / whole);

    fputc('[', stderr);
    for (int i = 0; i < BAR; i++)
        fputc(i < full ? '#' : '.', stderr);
    fprintf(stderr, "] %3d%%  ", (int)(at * 100 / whole));
}

void progress_show(struct progress *progress, int64_t n, int64_t at, int64_t whole)
{
    int64_t now, elapsed;

    if (!progress->on)
        return;
    now = lhi_mono_ms();
    if (now - progress->drawn_ms < REDRAW_MS)
        return;
    progress->drawn_ms = now;
    progress->drawn = true;
    elapsed = now - progress->begun_ms > 0 ? now - progress->begun_ms : 1;
    fputc('\r', stderr);
    if (whole > 0 && at >= 0)
        draw_bar(at < whole ? at : whole, whole);
    fprintf(stderr, "%" PRId64 " %s, %" PRId64 " a second\033[K", n, progress->what,
            n * 1000 / elapsed);
    fflush(stderr);
}

void progress_wipe(struct progress *progress)
{
    if (!progress->drawn)
        return;
    progress->drawn = false;
    fputs("\r\033[K", stderr);
    fflush(stderr);
}

void progress_call(void *arg, int64_t done, int64_t total)
{
    progress_show(arg, done, done, total);
}
