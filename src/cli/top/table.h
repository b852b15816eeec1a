/*
 * The tables of `leasehold top`: columns that say what they show of a row, and a drawing that finds
 * out how wide they may be.
 */
#ifndef LEASEHOLD_CLI_TOP_TABLE_H
#define LEASEHOLD_CLI_TOP_TABLE_H

#include "top.h"

enum { TABLE_GAP = 2, SHOWN_MOST = 512 };

/* What one cell shows. */
struct shown {
    char text[SHOWN_MOST];
    unsigned ink;
    double part; /* of a bar, 0 … 1; below 0: there is none */
};

struct column {
    const char *head; /* NULL ends a table */
    int rank;         /* 0 stays; the highest goes first where there is no room */
    bool right, bar;  /* aligned to the right; a bar with a number */
    int most;         /* columns of the screen; 0: as many as its texts take */
    void (*show)(const struct picture *picture, size_t i, struct shown *out);
};

/* What is shown in a table: rows of the picture, in this order. */
struct rows {
    const struct picture *picture;
    const struct column *columns;
    size_t *order;
    size_t n;
    size_t first;     /* the one at the top */
    size_t more;      /* that are not even in the picture */
    bool open_end;    /* that there are more goes without saying */
    const char *none; /* said in place of rows */
};

struct rows queue_rows(const struct picture *picture);
struct rows worker_rows(const struct picture *picture);
struct rows job_rows(const struct picture *picture, enum sort sort);
struct rows event_rows(const struct picture *picture);
/** Workers in trouble come first: for where not all have room. */
void troubled_first(struct rows *rows);
void rows_clear(struct rows *rows);

/** With the head, and what is said in place of rows. */
int table_rows(const struct rows *rows);
/** As many rows, from the first, have room in a table of so many lines. */
size_t table_lines(int room, const struct rows *rows);
/** Draws at most `room` lines, the head included, at `row`; returns how many rows were shown. */
size_t table_draw(struct frame *frame, int row, int room, const struct rows *rows);

#endif
