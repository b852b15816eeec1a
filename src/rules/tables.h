/*
 * tables.h: the tables of a store that can be moved to another store, with their columns.
 *
 * Both stores read and write rows in this form.
 */
#ifndef LHI_TABLES_H
#define LHI_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum lhi_cell_type {
    LHI_CELL_INT,
    LHI_CELL_BOOL,
    LHI_CELL_TIME, /* ms since 1970; 0 is NULL */
    LHI_CELL_TEXT,
    LHI_CELL_ANY,   /* bytes: a store keeps them as text if they are UTF-8 */
    LHI_CELL_BYTES, /* bytes, always kept as bytes */
    LHI_CELL_REFS,  /* jobs with their tokens, in order, as JSON: [[17,4],[18,1]] */
};

struct lhi_column {
    const char *name;
    enum lhi_cell_type type;
};

struct lhi_table {
    const char *name;
    size_t n, n_keys; /* the first n_keys columns are the primary key, and the order of rows */
    const struct lhi_column *column;
};

enum lhi_moved {
    LHI_MOVED_POLICY,
    LHI_MOVED_SCOPE,
    LHI_MOVED_QUEUE,
    LHI_MOVED_SCHEDULE,
    LHI_MOVED_LEASE,
    LHI_MOVED_QUARANTINE,
    LHI_MOVED_TOTAL,
    LHI_MOVED_ROLLUP,
    LHI_MOVED_REQUEST,
    LHI_MOVED_REPORT,
    LHI_MOVED_EVENT,
    LHI_MOVED_OUTPUT,
    LHI_MOVED_JOB,
    LHI_MOVED_TABLES
};
extern const struct lhi_table lhi_moved[LHI_MOVED_TABLES];

struct lhi_cell {
    bool null;
    int64_t number;
    const void *bytes; /* of text, any, bytes and refs */
    size_t len;
};

struct lhi_rows {
    size_t n;
    struct lhi_cell
        *cell; /* row after row; a row has as many cells as the table, or its key, has columns */
    void *priv;
};
void lhi_rows_clear(struct lhi_rows *rows);

/* Room for one more row of `width` cells after the n that exist; NULL: no memory. */
struct lhi_cell *lhi_rows_room(struct lhi_rows *rows, size_t width);

#endif
