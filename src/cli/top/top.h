/*
 * leasehold top, in three steps that know only the one before: what is seen of the store
 * (struct picture), how it is laid out (struct frame), and where it is shown: on a terminal, or as
 * plain lines.
 *
 * It only ever reads. When the store cannot be read the last picture stays, and says so.
 */
#ifndef LEASEHOLD_CLI_TOP_H
#define LEASEHOLD_CLI_TOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

#include <leasehold.h>

#include "cli/cli.h"

/* ---- how a thing looks ----------------------------------------------------------------------- */

/* A colour, and how it is written. Everything stays readable without colours. */
enum ink {
    INK_PLAIN = 0,
    INK_RED,
    INK_GREEN,
    INK_YELLOW,
    INK_CYAN,
    INK_COLORS = 7, /* mask of the above */
    INK_BOLD = 8,
    INK_DIM = 16,
    INK_REVERSE = 32
};

/* ---- the picture ----------------------------------------------------------------------------- */

enum {
    PICTURE_JOBS = 1000,    /* running jobs that are looked at */
    PICTURE_EVENTS = 64,    /* that are remembered */
    PICTURE_RATE_MS = 5000, /* a rate is made from what happened in this time … */
    PICTURE_MARK_MS = 500   /* … noted so often */
};

/* One event worth a line. */
struct happening {
    int64_t at;
    unsigned ink;
    char type[32];
    char text[400];
};

/* How fast a queue fills and empties. */
struct pace {
    char queue[129];
    int64_t at;               /* when it was last looked at, and … */
    int64_t total, completed; /* … what the queue had */
    int64_t in, done;         /* counted since this began; a prune takes nothing from them */
    struct pace_mark {
        int64_t at, in, done;
    } mark[PICTURE_RATE_MS / PICTURE_MARK_MS];
    size_t marks; /* ever made; the last ones are there */
};

struct picture {
    bool seen;   /* there is one at all */
    int64_t now; /* by the store's clock, when it was taken */
    lh_store_info info;
    lh_queues *queues;
    lh_workers *workers;
    lh_jobs *jobs;     /* running, by id */
    struct pace *pace; /* as many as queues, in their order */
    size_t n_pace;
    struct happening event[PICTURE_EVENTS];
    size_t events;      /* ever remembered: the newest is event[(events - 1) % PICTURE_EVENTS] */
    int64_t last_event; /* id up to which they were read */
    char uuid[40];      /* of the store that all this is about */
    char trouble[512];  /* why there is no newer one; "": there is */
};

/** Take a new picture from `store`; `whole`: with payloads and checkpoints, which no screen shows. On
 *  failure the old one stays, with its `trouble` told. */
int picture_take(struct picture *picture, lh_store *store, bool whole);
/** The same for a store that could not even be opened. */
void picture_trouble(struct picture *picture, const char *why);
void picture_clear(struct picture *picture);

/** Jobs a second, over the last seconds; below 0: not known yet. */
double pace_in(const struct pace *pace);
double pace_done(const struct pace *pace);
/** The newest first: 0 … ; NULL: there are no more. */
const struct happening *picture_event(const struct picture *picture, size_t i);
/** Is nothing scheduled, pending or running? */
bool picture_empty(const struct picture *picture);
void picture_json(const struct picture *picture);

/* ---- the frame ------------------------------------------------------------------------------- */

/* A screen of characters. What is put outside of it is lost, so that every size is fine. */
struct frame {
    int rows, cols;
    bool ascii; /* of a terminal that shows nothing else */
    struct spot {
        wchar_t c; /* 0: the second half of a wide one */
        unsigned ink;
    } * spot;
};

void frame_init(struct frame *frame, int rows, int cols, bool ascii);
void frame_clear(struct frame *frame);                                /* frees */
struct spot *frame_spot(const struct frame *frame, int row, int col); /* NULL: outside */

/** How many columns a text takes as it will be shown. */
int frame_width(const struct frame *frame, const char *text);
/** Writes a text into `width` columns, cut with an ellipsis where it is longer. Control characters
 *  are shown, not obeyed. Returns how many columns it took. */
int frame_text(struct frame *frame, int row, int col, int width, unsigned ink, const char *text);
/** The same, at the right of these columns. */
void frame_right(struct frame *frame, int row, int col, int width, unsigned ink, const char *text);
/** A bar that fills this part, 0 … 1, of the columns. */
void frame_bar(struct frame *frame, int row, int col, int width, unsigned ink, double part);
/** Colours a whole line. */
void frame_line(struct frame *frame, int row, unsigned ink);
/** As lines of text on standard output, without trailing blanks. */
void frame_print(const struct frame *frame);

/* ---- drawing --------------------------------------------------------------------------------- */

enum sort { SORT_JOB, SORT_LEASE, SORT_AGE, SORT_WORKER, SORTS };

/* What the person at the keyboard wants to see. */
struct view {
    size_t first; /* job in the first line; put right when it is too large */
    enum sort sort;
    size_t page; /* as many jobs were shown the last time */
    bool paused, help;
    bool keys; /* somebody can press some: tell which */
};

/** As many rows as it takes to show everything. */
int draw_rows(const struct picture *picture);
void draw(struct frame *frame, const struct picture *picture, struct view *view);

/* ---- the screen ------------------------------------------------------------------------------ */

struct top {
    struct cli *cli;
    struct picture picture;
    struct view view;
    int64_t interval_ms;
    bool until_empty;
    bool ascii;
};

/** Look again: opens the store if it is not, and closes it if it is of no use any more. */
int top_look(struct top *top);

/** Shows it until the end; returns the exit code. In a build without ncurses, that there is none. */
int top_screen(struct top *top);

#endif
