/* Salvaging rows: salvage.c reads the damaged file, rebuild.c makes the new one. */
#ifndef LHI_SQLITE_SALVAGE_H
#define LHI_SQLITE_SALVAGE_H

#include "store/sqlite/repair/repair.h"

/* An entry of the damaged file's schema. */
struct object {
    const char *type, *name, *table, *sql; /* NULL: it cannot be read */
    uint32_t root;
};

/* A table of the new file, with its columns as in the records of the old one. */
struct table {
    const char *name;
    uint32_t root;     /* in the old file; 0: unknown */
    bool ours, keyed;  /* keyed: without row ids */
    bool damaged;      /* some of its pages cannot be read */
    const char *rowid; /* the name of the row id if it is no column; NULL: there is none */
    size_t n;          /* columns, in the order of the record */
    struct table_column {
        const char *name; /* NULL: it is computed */
        char kind;        /* 'i' integer, 't' text, ' ' anything */
        bool required;    /* NOT NULL */
        bool id;          /* it is the row id */
    } * column;
    sqlite3_stmt *insert;
    size_t width; /* the number of columns that it sets */
};

/* A page that cannot be read. */
struct hole {
    struct table *table;
    uint32_t page;
    int64_t above, upto;
    bool filled; /* its rows were found nevertheless */
};

struct salvage {
    struct db *db;
    struct pages pages;
    struct repair_result *result;
    struct lhi_arena arena;
    struct conn conn;   /* the new file */
    struct conn memory; /* a database in memory, for `echo` */
    sqlite3_stmt *echo; /* the statement SELECT ? */
    struct object *object;
    size_t n_objects;
    bool schema_damaged;
    int64_t version, own_file; /* from lh_meta; 0 and -1: unknown */
    struct table *table;
    size_t n_tables;
    struct table *at; /* the table that is being read */
    bool orphan;      /* its rows come from pages that no tree leads to */
    struct hole *hole;
    size_t n_holes;
    bool counters_found, counters_damaged; /* of the highest ids given to jobs, and to all tables */
};

/* Add a finding about a loss. A status. */
#define NAME(s, level, what, ...) \
    (sq_repair_add_loss((s)->result, level, what, __VA_ARGS__) ? LH_OK : lhi_no_memory(err))

/* salvage_row.c: handle a row of s->at (arg: s). */
bool sq_is_job_table(const struct table *table);
int sq_put_row(void *arg, const struct row *row, struct lhi_error *err);

/* rebuild.c: create a file with our tables in the version that was found, and with the tables of
 * others, all empty. Fills s->table. */
int sq_rebuild_begin(struct salvage *s, const char *to, struct lhi_error *err);
/* Add everything that is not a row: values of lh_meta, counts, the highest ids, and the indexes,
 * views and triggers of others. Then `to` is complete. */
int sq_rebuild_end(struct salvage *s, const char *to, struct lhi_error *err);
/* Insert a row of the table of the highest ids. */
int sq_rebuild_counter(struct salvage *s, const char *table, int64_t last, struct lhi_error *err);

#endif
