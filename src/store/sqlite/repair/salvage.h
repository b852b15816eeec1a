/* salvage.h: between salvage.c, which reads a damaged file, and rebuild.c, which makes the new one. */
#ifndef LHI_SQLITE_SALVAGE_H
#define LHI_SQLITE_SALVAGE_H

#include "store/sqlite/repair/repair.h"

/* Something in the schema of the damaged file. */
struct object {
    const char *type, *name, *table, *sql; /* NULL: not to be read */
    uint32_t root;
};

/* A table of the new file, as its rows stand in the old one. */
struct table {
    const char *name;
    uint32_t root;     /* in the old file; 0: nobody knows */
    bool ours, keyed;  /* keyed: without row ids */
    bool damaged;      /* not all of it could be read */
    const char *rowid; /* the name of a row id that is no column; NULL: none */
    size_t n;          /* columns, in the order of the record */
    struct table_column {
        const char *name; /* NULL: computed */
        char kind;        /* 'i' integer, 't' text, ' ' anything */
        bool required;    /* not NULL */
        bool id;          /* the row id under another name */
    } * column;
    sqlite3_stmt *insert;
    size_t width; /* … of so many columns */
};

/* A page that cannot be read. */
struct hole {
    struct table *table;
    uint32_t page;
    int64_t above, upto;
    bool filled; /* its rows were found all the same */
};

struct salvage {
    struct db *db;
    struct pages pages;
    struct repair_result *result;
    struct lhi_arena arena;
    struct conn conn;   /* on the new file */
    struct conn memory; /* for `echo` */
    sqlite3_stmt *echo; /* SELECT ? */
    struct object *object;
    size_t n_objects;
    bool schema_damaged;
    int64_t version, own_file; /* as lh_meta says; 0 and -1: not to be read */
    struct table *table;
    size_t n_tables;
    struct table *at; /* the one being read */
    bool orphan;      /* … from pages that nothing leads to any more */
    struct hole *hole;
    size_t n_holes;
    bool counters_found, counters_damaged; /* the highest ids ever given to jobs, and to all */
};

/* Name one thing that is lost or partial; a status. */
#define NAME(s, level, what, ...) \
    (sq_repair_add_loss((s)->result, level, what, __VA_ARGS__) ? LH_OK : lhi_no_memory(err))

/* salvage_row.c: a row of s->at (arg: s). */
bool sq_is_job_table(const struct table *table);
int sq_put_row(void *arg, const struct row *row, struct lhi_error *err);

/* rebuild.c: a file with our tables of the version found and the tables of others, all empty; s->table. */
int sq_rebuild_begin(struct salvage *s, const char *to, struct lhi_error *err);
/* Everything that is not a row: what lh_meta must have, counts, the highest ids, indexes, views and
 * triggers of others. Then `to` is whole. */
int sq_rebuild_end(struct salvage *s, const char *to, struct lhi_error *err);
/* A row of the table of the highest ids. */
int sq_rebuild_counter(struct salvage *s, const char *table, int64_t last, struct lhi_error *err);

#endif
