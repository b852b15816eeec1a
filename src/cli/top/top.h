/*
 * leasehold top, in three steps: reading the store (struct picture), layout (struct frame), and
 * showing the frame on a terminal or as plain text. Each step knows only the one before it.
 *
 * It never writes to the store. If the store cannot be read, the last picture stays visible with a
 * message.
 */
#ifndef LEASEHOLD_CLI_TOP_H
#define LEASEHOLD_CLI_TOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

#include <leasehold.h>

#include "cli/cli.h"

/* ---- colours and styles ---------------------------------------------------------------------- */

/* Colour and style. The screen stays readable without colours. */
enum ink {
    INK_PLAIN = 0,
    INK_RED,
    INK_GREEN,
    INK_YELLOW,
    INK_CYAN,
    INK_COLORS = 7, /* mask of the colours */
    INK_BOLD = 8,
    INK_DIM = 16,
    INK_REVERSE = 32
};

/* ---- the picture ----------------------------------------------------------------------------- */

enum {
    PICTURE_JOBS = 1000,    /* most running jobs that are read */
    PICTURE_EVENTS = 64,    /* events that are kept */
    PICTURE_RATE_MS = 5000, /* rates are averages over this time */
    PICTURE_MARK_MS = 500   /* counts are recorded at this interval */
};

/* An event that is shown. */
struct happening {
    int64_t at;
    unsigned ink;
    char type[32];
    char text[400];
};

/* How fast a queue fills and empties. */
struct pace {
    char queue[129];
    int64_t at;               /* when the queue was last read */
    int64_t total, completed; /* counts at that time */
    int64_t in, done; /* jobs since the start of the program; a prune does not reduce them */
    struct pace_mark {
        int64_t at, in, done;
    } mark[PICTURE_RATE_MS / PICTURE_MARK_MS];
    size_t marks; /* number of marks so far; the array has the last ones */
};

struct picture {
    bool seen;   /* a picture was taken */
    int64_t now; /* when it was taken, by the store's clock */
    lh_store_info info;
    lh_queues *queues;
    lh_workers *workers;
    lh_jobs *jobs;     /* running jobs, by id */
    struct pace *pace; /* one for each queue, in the same order */
    size_t n_pace;
    struct happening event[PICTURE_EVENTS];
    size_t events; /* number of events so far; the newest is event[(events - 1) % PICTURE_EVENTS] */
    int64_t last_event; /* the id of the last event that was read */
    char uuid[40];      /* of the store */
    char trouble[512];  /* why the last read failed; "": it did not */
};

/** Takes a new picture. `whole` includes payloads and checkpoints, which are for JSON only. On
 *  failure the old picture stays, and `trouble` has the reason. */
int picture_take(struct picture *picture, lh_store *store, bool whole);
/** Notes that the store could not be opened. */
void picture_trouble(struct picture *picture, const char *why);
void picture_clear(struct picture *picture);

/** Jobs per second over the last seconds; below 0: not known yet. */
double pace_in(const struct pace *pace);
double pace_done(const struct pace *pace);
/** Event number `i`, the newest first; NULL: there are no more. */
const struct happening *picture_event(const struct picture *picture, size_t i);
/** Whether no job is scheduled, pending or running. */
bool picture_empty(const struct picture *picture);
void picture_json(const struct picture *picture);

/* ---- the frame ------------------------------------------------------------------------------- */

/* A grid of characters. Writing outside of it does nothing, so any size is valid. */
struct frame {
    int rows, cols;
    bool ascii; /* the terminal shows ASCII only */
    struct spot {
        wchar_t c; /* 0: the second half of a wide character */
        unsigned ink;
    } * spot;
};

void frame_init(struct frame *frame, int rows, int cols, bool ascii);
void frame_clear(struct frame *frame);                                /* frees the grid */
struct spot *frame_spot(const struct frame *frame, int row, int col); /* NULL: outside the grid */

/** The number of columns of a text as it will be shown. */
int frame_width(const struct frame *frame, const char *text);
/** Writes a text into `width` columns; a longer text is cut with an ellipsis. Control characters
 *  are made visible. Returns the number of columns used. */
int frame_text(struct frame *frame, int row, int col, int width, unsigned ink, const char *text);
/** The same, right-aligned. */
void frame_right(struct frame *frame, int row, int col, int width, unsigned ink, const char *text);
/** Draws a bar that fills the part 0 … 1 of the columns. */
void frame_bar(struct frame *frame, int row, int col, int width, unsigned ink, double part);
/** Colours a whole line. */
void frame_line(struct frame *frame, int row, unsigned ink);
/** Prints the frame as lines of text, without trailing blanks. */
void frame_print(const struct frame *frame);

/* ---- drawing --------------------------------------------------------------------------------- */

enum sort { SORT_JOB, SORT_LEASE, SORT_AGE, SORT_WORKER, SORTS };

/* What the user has chosen. */
struct view {
    size_t first; /* the job in the first line; corrected if it is too large */
    enum sort sort;
    size_t page; /* the number of jobs shown the last time */
    bool paused, help;
    bool keys; /* the user can press keys: show which */
};

/** The number of rows that show everything. */
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

/** Takes a new picture. Opens the store if it is not open, and closes it after a failure. */
int top_look(struct top *top);

/** Runs the screen until the user quits; returns the exit code. Without ncurses it returns an
 *  error. */
int top_screen(struct top *top);

#endif
