/*
 * A database file, read page by page without SQLite.
 *
 * SQLite may refuse a file because of one damaged page. The rest of such a file can still be read.
 * The format is SQLite's, documented and frozen. No value from the file is trusted: every number is
 * checked before it is used, and what cannot be read is reported, never guessed.
 */
#ifndef LHI_SQLITE_PAGES_H
#define LHI_SQLITE_PAGES_H

#include "store/sqlite/db.h"

struct pages {
    int fd;
    char path[4300];
    uint32_t size, usable, count; /* bytes of a page; usable bytes of it; pages in the file */
    int encoding;                 /* of its texts, as SQLITE_UTF8 */
    int64_t user_version, application_id;
    bool mapped;             /* the file has a map of its pages */
    bool incremental;        /* free pages are returned to the file system only on request */
    bool live_known;         /* it is known which pages are in use */
    unsigned char *state;    /* one byte for each page */
    struct column *column;   /* of the current row */
    unsigned char *overflow; /* the current row, if it is longer than its page holds */
};

/* One value: a serial type of the file format, and its bytes. */
struct column {
    uint64_t type;
    const unsigned char *at;
    size_t len;
};

struct row {
    const struct pages *pages;
    int64_t id; /* in a table with row ids; else 0 */
    const struct column *column;
    size_t n;
    /* its end cannot be read: texts and blobs are shorter or empty, numbers are NULL */
    bool broken;
};

/* The callbacks of a walk over a tree. */
struct walker {
    bool index; /* the tree is an index, or a table without row ids */
    int (*row)(void *arg, const struct row *row, struct lhi_error *err);
    /* A page that cannot be read, and the range of its row ids: above the first, up to the second.
     * Page 0 means a single row. Both are 0 if rows have no ids. */
    int (*unreadable)(void *arg, uint32_t page, int64_t above, int64_t upto, struct lhi_error *err);
    void *arg;
    /* A page that is not consistent. `counted`: it is consistent with another number of cells, and
     * that number is used. NULL: not wanted. */
    int (*suspect)(void *arg, uint32_t page, bool counted, struct lhi_error *err);
};

/* LH_ECORRUPT: the file is no database. */
int sq_pages_open(struct pages *pages, const char *path, struct lhi_error *err);
void sq_pages_close(struct pages *pages);
/* Is this the root of an index, or of a table without row ids? */
int sq_pages_is_keyed(struct pages *pages, uint32_t root, bool *keyed, struct lhi_error *err);
/* Walk over all rows below `root` in their order. Each page is read once; a second reference to a
 * page is damage. */
int sq_pages_walk(struct pages *pages, uint32_t root, const struct walker *walker,
                  struct lhi_error *err);
/* A page in use that no walk has reached. It holds rows, or it cannot be read. */
struct orphan {
    uint32_t page;
    bool readable, index; /* index: its rows are those of an index */
};
/* Find the next one after orphan->page; 0: there is none. */
int sq_pages_next_orphan(struct pages *pages, struct orphan *orphan, struct lhi_error *err);
/* The page above this one, from the map; 0: there is none, or no map. */
int sq_pages_parent(struct pages *pages, uint32_t number, uint32_t *parent, struct lhi_error *err);
/* Does the map have a page below this one? Without a map, no. */
int sq_pages_is_parent(struct pages *pages, uint32_t number, bool *yes, struct lhi_error *err);
/* Forget all walks. */
void sq_pages_forget(struct pages *pages);
/* Walk over the rows of this page only. */
int sq_pages_rows(struct pages *pages, uint32_t number, const struct walker *walker,
                  struct lhi_error *err);

bool sq_row_is_null(const struct row *row, size_t i);
bool sq_row_is_text(const struct row *row, size_t i);
bool sq_row_equals(const struct row *row, size_t i, const char *text); /* for a file in UTF-8 */
bool sq_row_int(const struct row *row, size_t i, int64_t *out);        /* false: it is no integer */
/* Returns an SQLite result code. The bound value must not outlive the row. */
int sq_row_bind(const struct row *row, size_t i, sqlite3_stmt *stmt, int parameter);
/* The text as UTF-8, in the arena. NULL: it is no text, or there is no memory (then *ok is false).
 * `echo` is the statement SELECT ?. */
char *sq_row_text(const struct row *row, size_t i, sqlite3_stmt *echo, struct lhi_arena *arena,
                  bool *ok);

/* ---- page.c: one page of a tree ---- */

struct page {
    uint32_t number;
    const unsigned char *bytes, *end;
    int type;
    uint32_t cells, right;
    const unsigned char *pointer; /* the positions of the cells, two bytes each */
    /* adds_up: the page is consistent; counted: only with the number in `cells` */
    bool adds_up, counted;
};
struct row_order {
    bool any;
    int64_t last; /* the id of the previous row; before the first row, the limits from the tree: */
    int64_t upto; /* the lowest id is above `last`, the highest is `upto` */
};

bool sq_page_parse(const struct pages *pages, uint32_t number, const unsigned char *bytes,
                   struct page *page); /* false: it is no page of a tree */
bool sq_page_is_index(const struct page *page);
bool sq_page_is_inner(const struct page *page);
bool sq_page_has_rows(const struct page *page);
/* Are some of its ids within this range? */
bool sq_page_is_within(const struct page *page, int64_t above, int64_t upto);
/* The page below cell `i` and the highest id on it; 0: there is none. */
uint32_t sq_page_child(const struct page *page, uint32_t i, int64_t *key);
int sq_page_read_row(struct pages *pages, const struct page *page, uint32_t i,
                     struct row_order *order, const struct walker *walker, struct lhi_error *err);
int sq_page_read_rows(struct pages *pages, const struct page *page, int64_t above, int64_t upto,
                      const struct walker *walker, struct lhi_error *err);

/* ---- shared by these files, and by others that read bytes of a file ---- */
/* The bytes of such a row on its own page. */
size_t sq_row_local(const struct pages *pages, bool index, uint64_t whole);
uint32_t sq_read_u16(const unsigned char *p);
uint32_t sq_read_u32(const unsigned char *p);
/* The length of the varint; 0: it does not end before `end`. */
size_t sq_read_varint(const unsigned char *p, const unsigned char *end, uint64_t *out);
/* False: the file ends before (errno 0), or it cannot be read. */
bool sq_read_bytes(int fd, void *buf, size_t len, off_t at);
int sq_read_page(const struct pages *pages, uint32_t page, unsigned char *buf,
                 struct lhi_error *err);
bool sq_row_buffers_new(struct pages *pages);
void sq_row_buffers_free(struct pages *pages);
/* Read the record of `whole` bytes that begins here. LH_EMPTY: it is no record. */
int sq_row_read(struct pages *pages, const unsigned char *p, const unsigned char *end, bool index,
                uint64_t whole, struct row *row, struct lhi_error *err);
/* The page of the map that describes this page; the page itself if it is one. */
uint32_t sq_map_page_of(uint32_t size, uint32_t usable, uint32_t page);

#endif
