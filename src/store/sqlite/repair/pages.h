/*
 * pages.h: a database file read page by page, without the engine.
 *
 * What the engine refuses as a whole because one page of it is damaged can still be read around that
 * page. The format is SQLite's, documented and frozen. Nothing read here is trusted: every number is
 * checked before it is used, and what cannot be read is told, never guessed.
 */
#ifndef LHI_SQLITE_PAGES_H
#define LHI_SQLITE_PAGES_H

#include "store/sqlite/db.h"

struct pages {
    int fd;
    char path[4300];
    uint32_t size, usable, count; /* bytes of a page, those of them in use; pages in the file */
    int encoding;                 /* SQLITE_UTF8 … of its texts */
    int64_t user_version, application_id;
    bool mapped;             /* it has a map that says of every page what it is for … */
    bool incremental;        /* … and gives free pages back only when asked */
    bool live_known;         /* it is known which pages are in use */
    unsigned char *state;    /* of each page */
    struct column *column;   /* of the row at hand */
    unsigned char *overflow; /* the row at hand, where it is longer than a page holds */
};

/* One value: a serial type of the file format, and its bytes. */
struct column {
    uint64_t type;
    const unsigned char *at;
    size_t len;
};

struct row {
    const struct pages *pages;
    int64_t id; /* of a table with row ids; else 0 */
    const struct column *column;
    size_t n;
    bool broken; /* its end cannot be read: texts and bytes are shorter or empty, numbers NULL */
};

/* What a walk over a tree tells. */
struct walker {
    bool index; /* of an index, or of a table without row ids */
    int (*row)(void *arg, const struct row *row, struct lhi_error *err);
    /* A page that cannot be read, and between which row ids it stood: above the first, up to the second.
     * With page 0 it is a row; both are 0 where rows have no ids. */
    int (*unreadable)(void *arg, uint32_t page, int64_t above, int64_t upto, struct lhi_error *err);
    void *arg;
    /* NULL: not wanted. A page whose cells do not add up; `counted`: but do with another number of
     * them, which is taken. */
    int (*suspect)(void *arg, uint32_t page, bool counted, struct lhi_error *err);
};

/* LH_ECORRUPT: it is no database at all. */
int sq_pages_open(struct pages *pages, const char *path, struct lhi_error *err);
void sq_pages_close(struct pages *pages);
/* Is it the root of an index, or of a table without row ids? */
int sq_pages_is_keyed(struct pages *pages, uint32_t root, bool *keyed, struct lhi_error *err);
/* All rows below `root`, in their order. A page is read once: what leads back to it is damage. */
int sq_pages_walk(struct pages *pages, uint32_t root, const struct walker *walker,
                  struct lhi_error *err);
/* A page in use that no walk has come by: it holds rows, or cannot be read. */
struct orphan {
    uint32_t page;
    bool readable, index; /* index: rows of which kind */
};
/* The next one after orphan->page; 0: none. */
int sq_pages_next_orphan(struct pages *pages, struct orphan *orphan, struct lhi_error *err);
/* The page above this one, as the map has it; 0: none, or no map. */
int sq_pages_parent(struct pages *pages, uint32_t number, uint32_t *parent, struct lhi_error *err);
/* Does the map know a page below this one? Without a map nobody knows. */
int sq_pages_is_parent(struct pages *pages, uint32_t number, bool *yes, struct lhi_error *err);
/* As if no walk had been made. */
void sq_pages_forget(struct pages *pages);
/* The rows of this one page. */
int sq_pages_rows(struct pages *pages, uint32_t number, const struct walker *walker,
                  struct lhi_error *err);

bool sq_row_is_null(const struct row *row, size_t i);
bool sq_row_is_text(const struct row *row, size_t i);
bool sq_row_equals(const struct row *row, size_t i, const char *text); /* of a file in UTF-8 */
bool sq_row_int(const struct row *row, size_t i, int64_t *out);        /* false: it is none */
/* An SQLite result code. What is bound is borrowed until the row is gone. */
int sq_row_bind(const struct row *row, size_t i, sqlite3_stmt *stmt, int parameter);
/* As UTF-8, in the arena; NULL: it is no text, or no memory (then *ok is false). `echo` is SELECT ?. */
char *sq_row_text(const struct row *row, size_t i, sqlite3_stmt *echo, struct lhi_arena *arena,
                  bool *ok);

/* ---- page.c: one page of a tree ---- */

struct page {
    uint32_t number;
    const unsigned char *bytes, *end;
    int type;
    uint32_t cells, right;
    const unsigned char *pointer; /* to the cells, two bytes each */
    bool adds_up, counted;        /* counted: `cells` is what the page must have */
};
struct row_order {
    bool any;
    int64_t last; /* the id of the row before; until there is one, what the tree says … */
    int64_t upto; /* … of the lowest and the highest on the page */
};

bool sq_page_parse(const struct pages *pages, uint32_t number, const unsigned char *bytes,
                   struct page *page); /* false: it is none */
bool sq_page_is_index(const struct page *page);
bool sq_page_is_inner(const struct page *page);
bool sq_page_has_rows(const struct page *page);
/* Not all of its ids are elsewhere. */
bool sq_page_is_within(const struct page *page, int64_t above, int64_t upto);
/* The page below cell `i`, and up to which id; 0: none. */
uint32_t sq_page_child(const struct page *page, uint32_t i, int64_t *key);
int sq_page_read_row(struct pages *pages, const struct page *page, uint32_t i,
                     struct row_order *order, const struct walker *walker, struct lhi_error *err);
int sq_page_read_rows(struct pages *pages, const struct page *page, int64_t above, int64_t upto,
                      const struct walker *walker, struct lhi_error *err);

/* ---- between these files, and for whoever else reads bytes of a file ---- */
/* How many bytes of such a row stand on its page. */
size_t sq_row_local(const struct pages *pages, bool index, uint64_t whole);
uint32_t sq_read_u16(const unsigned char *p);
uint32_t sq_read_u32(const unsigned char *p);
/* How many bytes it has; 0: it does not end before `end`. */
size_t sq_read_varint(const unsigned char *p, const unsigned char *end, uint64_t *out);
/* False: not all of it is there (errno 0), or it cannot be read. */
bool sq_read_bytes(int fd, void *buf, size_t len, off_t at);
int sq_read_page(const struct pages *pages, uint32_t page, unsigned char *buf,
                 struct lhi_error *err);
bool sq_row_buffers_new(struct pages *pages);
void sq_row_buffers_free(struct pages *pages);
/* The record of `whole` bytes that begins here. LH_EMPTY: it is none. */
int sq_row_read(struct pages *pages, const unsigned char *p, const unsigned char *end, bool index,
                uint64_t whole, struct row *row, struct lhi_error *err);
/* Which page of the map speaks of this page; itself, if it is one. */
uint32_t sq_map_page_of(uint32_t size, uint32_t usable, uint32_t page);

#endif
