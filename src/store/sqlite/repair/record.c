/* One row of the file: its bytes are gathered and split into values. */
#include "store/sqlite/repair/pages.h"

#include <string.h>

enum { MOST_COLUMNS = 32768 };

size_t sq_read_varint(const unsigned char *p, const unsigned char *end, uint64_t *out)
{
    uint64_t value = 0;

    for (size_t i = 0; i < 9 && p + i < end; i++) {
        if (i == 8) {
            *out = value << 8 | p[i];
            return 9;
        }
        value = value << 7 | (p[i] & 0x7f);
        if ((p[i] & 0x80) == 0) {
            *out = value;
            return i + 1;
        }
    }
    return 0;
}

static size_t length_of(uint64_t type)
{
    static const unsigned char lengths[12] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0};
    return type < 12 ? lengths[type] : (size_t)((type - 12) / 2);
}

/* Read the columns of a record of `whole` bytes, of which `len` are present. False: it is no
 * record. */
static bool read_record(struct pages *pages, const unsigned char *p, size_t len, size_t whole,
                        struct row *row)
{
    uint64_t header, type;
    size_t used = sq_read_varint(p, p + len, &header), body;

    if (used == 0 || header < used || header > len)
        return false;
    body = (size_t)header;
    row->n = 0;
    row->broken = len < whole;
    while (used < header) {
        size_t n = sq_read_varint(p + used, p + header, &type);
        if (n == 0 || row->n == MOST_COLUMNS || type == 10 || type == 11 ||
            (type >= 12 && (type - 12) / 2 > whole))
            return false;
        used += n;
        struct column *column = &pages->column[row->n++];
        *column = (struct column){.type = type, .at = p + body, .len = length_of(type)};
        if (body + column->len > whole)
            return false;
        if (body + column->len > len) {
            /* Of a text or blob the beginning is kept; of a number nothing. */
            column->len = body < len && type >= 12 ? len - body : 0;
            if (type < 12)
                column->type = 0;
        }
        body += length_of(type);
    }
    row->column = pages->column;
    row->pages = pages;
    return row->n > 0;
}

size_t sq_row_local(const struct pages *pages, bool index, uint64_t whole)
{
    uint32_t usable = pages->usable;
    uint64_t most = index ? (usable - 12) * 64 / 255 - 23 : usable - 35;
    uint64_t least = (usable - 12) * 32 / 255 - 23;

    if (whole <= most)
        return (size_t)whole;
    uint64_t here = least + (whole - least) % (usable - 4);
    /* and the number of the page where it continues */
    return (size_t)(here > most ? least : here) + 4;
}

/* Gather the bytes of a row from its own page and its overflow pages. `*len`: the bytes that could
 * be read. NULL: out of memory, or nothing could be read (then rc is LH_OK). */
static const unsigned char *gather(struct pages *pages, const unsigned char *p,
                                   const unsigned char *end, bool index, uint64_t whole,
                                   size_t *len, int *rc, struct lhi_error *err)
{
    uint32_t usable = pages->usable;

    *rc = LH_OK;
    if (whole > (uint64_t)pages->count * usable)
        return NULL;
    size_t here = sq_row_local(pages, index, whole);
    if (here > (size_t)(end - p))
        return NULL;
    if (here == whole) {
        *len = here;
        return p;
    }
    here -= 4;
    unsigned char *grown = lhi_realloc(pages->overflow, (size_t)whole + pages->size);
    if (grown == NULL) {
        *rc = lhi_no_memory(err);
        return NULL;
    }
    pages->overflow = grown;
    memcpy(grown, p, here);
    uint32_t next = sq_read_u32(p + here);
    size_t got = here;
    unsigned char *page = grown + (size_t)whole; /* room for one page behind the row */
    while (got < whole && next > 1 && next <= pages->count) {
        if ((*rc = sq_read_page(pages, next, page, err)) != LH_OK)
            return NULL;
        next = sq_read_u32(page);
        size_t n = usable - 4 < whole - got ? usable - 4 : (size_t)whole - got;
        memmove(grown + got, page + 4, n);
        got += n;
    }
    *len = got;
    return grown;
}

bool sq_row_buffers_new(struct pages *pages)
{
    pages->column = lhi_malloc(MOST_COLUMNS * sizeof *pages->column);
    return pages->column != NULL;
}

void sq_row_buffers_free(struct pages *pages)
{
    lhi_free(pages->column);
    lhi_free(pages->overflow);
}

int sq_row_read(struct pages *pages, const unsigned char *p, const unsigned char *end, bool index,
                uint64_t whole, struct row *row, struct lhi_error *err)
{
    size_t len = 0;
    int rc;

    p = gather(pages, p, end, index, whole, &len, &rc, err);
    if (rc != LH_OK)
        return rc;
    return p != NULL && read_record(pages, p, len, (size_t)whole, row) ? LH_OK : LH_EMPTY;
}

/* ---- values ---- */

bool sq_row_is_null(const struct row *row, size_t i)
{
    return i >= row->n || row->column[i].type == 0;
}

bool sq_row_is_text(const struct row *row, size_t i)
{
    return i < row->n && row->column[i].type >= 13 && row->column[i].type % 2 == 1;
}

bool sq_row_equals(const struct row *row, size_t i, const char *text)
{
    return sq_row_is_text(row, i) && row->pages->encoding == SQLITE_UTF8 &&
           row->column[i].len == strlen(text) &&
           memcmp(row->column[i].at, text, row->column[i].len) == 0;
}

bool sq_row_int(const struct row *row, size_t i, int64_t *out)
{
    if (i >= row->n || row->column[i].type == 0 || row->column[i].type == 7 ||
        row->column[i].type > 9)
        return false;
    const struct column *column = &row->column[i];
    if (column->type >= 8) {
        *out = (int64_t)column->type - 8;
        return true;
    }
    uint64_t value = (column->at[0] & 0x80) != 0 ? UINT64_MAX : 0;
    for (size_t k = 0; k < column->len; k++)
        value = value << 8 | column->at[k];
    *out = (int64_t)value;
    return true;
}

int sq_row_bind(const struct row *row, size_t i, sqlite3_stmt *stmt, int parameter)
{
    const struct column *column = &row->column[i];
    int64_t value;

    if (sq_row_is_null(row, i))
        return sqlite3_bind_null(stmt, parameter);
    if (sq_row_int(row, i, &value))
        return sqlite3_bind_int64(stmt, parameter, value);
    if (column->type == 7) {
        uint64_t bits = (uint64_t)sq_read_u32(column->at) << 32 | sq_read_u32(column->at + 4);
        double real;
        memcpy(&real, &bits, sizeof real);
        return sqlite3_bind_double(stmt, parameter, real);
    }
    if (sq_row_is_text(row, i))
        return sqlite3_bind_text64(stmt, parameter, (const char *)column->at, column->len,
                                   SQLITE_STATIC, (unsigned char)row->pages->encoding);
    return sqlite3_bind_blob64(stmt, parameter, column->at, column->len, SQLITE_STATIC);
}

/* SQLite converts other encodings to UTF-8. */
char *sq_row_text(const struct row *row, size_t i, sqlite3_stmt *echo, struct lhi_arena *arena,
                  bool *ok)
{
    char *copy = NULL;

    if (!sq_row_is_text(row, i))
        return NULL;
    if (row->pages->encoding == SQLITE_UTF8) {
        copy = lhi_arena_copy(arena, row->column[i].at, row->column[i].len);
    } else if (sq_row_bind(row, i, echo, 1) == SQLITE_OK && sqlite3_step(echo) == SQLITE_ROW &&
               sqlite3_column_text(echo, 0) != NULL) {
        copy = lhi_arena_copy(arena, sqlite3_column_text(echo, 0),
                              (size_t)sqlite3_column_bytes(echo, 0));
    }
    (void)sqlite3_reset(echo);
    (void)sqlite3_clear_bindings(echo);
    *ok = *ok && copy != NULL;
    return copy;
}
