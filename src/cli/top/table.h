/*
 * The tables of `leasehold top`. Each column says what it shows of a row; drawing computes the
 * widths.
 */
#ifndef LEASEHOLD_CLI_TOP_TABLE_H
#define LEASEHOLD_CLI_TOP_TABLE_H

#include "top.h"

enum { TABLE_GAP = 2, SHOWN_MOST = 512 };

/* The content of a cell. */
struct shown {
    char text[SHOWN_MOST];
    unsigned ink;
    double part; /* the filled part of a bar, 0 … 1; below 0: no bar */
};

struct column {
    const char *head; /* NULL ends a table */
    int rank;         /* 0: never dropped; the highest rank is dropped first */
    bool right, bar;  /* aligned to the right; a bar with a number */
    int most;         /* the greatest width; 0: as wide as its texts */
    void (*show)(const struct picture *picture, size_t i, struct shown *out);
};

/* The rows of a table: items of the picture, in this order. */
struct rows {
    const struct picture *picture;
    const struct column *columns;
    size_t *order;
    size_t n;
    size_t first;     /* the first visible row */
    size_t more;      /* rows that the picture does not have */
    bool open_end;    /* do not say how many more there are */
    const char *none; /* the text for an empty table */
};

struct rows queue_rows(const struct picture *picture);
struct rows worker_rows(const struct picture *picture);
struct rows job_rows(const struct picture *picture, enum sort sort);
struct rows event_rows(const struct picture *picture);
/** Puts workers in trouble first, for a screen with too little room. */
void troubled_first(struct rows *rows);
void rows_clear(struct rows *rows);

/** The number of lines, with the head and the text for an empty table. */
int table_rows(const struct rows *rows);
/** The number of rows, from the first visible one, that fit into a table of `room` lines. */
size_t table_lines(int room, const struct rows *rows);
/** Draws at most `room` lines, including the head, at `row`. Returns the number of rows shown. */
size_t table_draw(struct frame *frame, int row, int room, const struct rows *rows);

#endif
