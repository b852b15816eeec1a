/*
 * One page of a tree: its cells, and whether they are consistent.
 *
 * A page begins with its type, the number of its cells and their positions. Cells, free blocks and
 * fragments fill the page exactly, from the start of its content to its end. So a page with a
 * damaged number of cells can be detected, and often the right number can be found.
 */
#include "store/sqlite/repair/pages.h"

enum {
    TABLE_LEAF = 0x0d,
    TABLE_INNER = 0x05,
    INDEX_LEAF = 0x0a,
    INDEX_INNER = 0x02,
    FILE_HEADER = 100,
    SMALLEST_CELL = 4,
};

bool sq_page_is_index(const struct page *page)
{
    return page->type == INDEX_LEAF || page->type == INDEX_INNER;
}

bool sq_page_is_inner(const struct page *page)
{
    return page->type == TABLE_INNER || page->type == INDEX_INNER;
}

bool sq_page_has_rows(const struct page *page)
{
    return page->type != TABLE_INNER && page->cells > 0;
}

/* ---- cells ---- */

/* Where cell `i` begins; NULL: not on this page. */
static const unsigned char *cell_of(const struct page *page, uint32_t i)
{
    const unsigned char *p = page->bytes + sq_read_u16(page->pointer + (size_t)i * 2);
    return p >= page->pointer && p + SMALLEST_CELL <= page->end ? p : NULL;
}

/* The bytes of a cell on its page; 0: it is no valid cell. */
static size_t cell_size(const struct pages *pages, const struct page *page, uint32_t i)
{
    const unsigned char *begin = cell_of(page, i), *p = begin;
    uint64_t whole, id;
    size_t n;

    if (p == NULL)
        return 0;
    if (sq_page_is_inner(page))
        p += 4;
    if ((n = sq_read_varint(p, page->end, &whole)) == 0)
        return 0;
    p += n;
    if (page->type == TABLE_LEAF && (n = sq_read_varint(p, page->end, &id)) == 0)
        return 0;
    if (page->type == TABLE_LEAF)
        p += n;
    size_t size = (size_t)(p - begin);
    if (page->type != TABLE_INNER)
        size += sq_row_local(pages, sq_page_is_index(page), whole);
    return size < SMALLEST_CELL ? SMALLEST_CELL : size;
}

uint32_t sq_page_child(const struct page *page, uint32_t i, int64_t *key)
{
    const unsigned char *p = cell_of(page, i);
    uint64_t value;

    if (p == NULL)
        return 0;
    if (page->type == TABLE_INNER && sq_read_varint(p + 4, page->end, &value) > 0)
        *key = (int64_t)value;
    return sq_read_u32(p);
}

/* ---- is the page consistent? ---- */

static size_t free_bytes(const struct page *page, const unsigned char *header)
{
    size_t sum = header[7], at = sq_read_u16(header + 1), size = (size_t)(page->end - page->bytes);

    for (size_t steps = 0; at != 0 && at + 4 <= size && steps < size / 4; steps++) {
        sum += sq_read_u16(page->bytes + at + 2);
        at = sq_read_u16(page->bytes + at);
    }
    return sum;
}

/* The number of cells that makes the page consistent; -1: there is none. */
static int64_t count_cells(const struct pages *pages, const struct page *page,
                           const unsigned char *header)
{
    size_t usable = (size_t)(page->end - page->bytes), start = sq_read_u16(header + 5);
    size_t array = (size_t)(page->pointer - page->bytes);

    if (start == 0)
        start = 65536;
    if (start < array || start > usable)
        return -1;
    size_t used = free_bytes(page, header);
    size_t most = (start - array) / 2;
    for (size_t n = 0;; n++) {
        if (used == usable - start)
            return (int64_t)n;
        size_t size = n < most && used < usable ? cell_size(pages, page, (uint32_t)n) : 0;
        if (size == 0 || sq_read_u16(page->pointer + n * 2) < start)
            return -1;
        used += size;
    }
}

bool sq_page_parse(const struct pages *pages, uint32_t number, const unsigned char *bytes,
                   struct page *page)
{
    const unsigned char *p = bytes + (number == 1 ? FILE_HEADER : 0);

    *page = (struct page){.number = number, .bytes = bytes, .end = bytes + pages->usable};
    page->type = p[0];
    if (!sq_page_is_inner(page) && page->type != TABLE_LEAF && page->type != INDEX_LEAF)
        return false;
    page->cells = sq_read_u16(p + 3);
    page->pointer = p + (sq_page_is_inner(page) ? 12 : 8);
    page->right = sq_page_is_inner(page) ? sq_read_u32(p + 8) : 0;
    int64_t n = count_cells(pages, page, p);
    page->adds_up = n == page->cells;
    page->counted = n >= 0;
    if (n >= 0)
        page->cells = (uint32_t)n;
    return page->pointer + (size_t)page->cells * 2 <= page->end;
}

/* ---- rows ---- */

/* The row id of a cell in a leaf of a table; 0: it cannot be read. */
static int64_t id_of(const struct page *page, uint32_t i)
{
    uint64_t whole, id;
    const unsigned char *p = i < page->cells ? cell_of(page, i) : NULL;
    size_t n = p ? sq_read_varint(p, page->end, &whole) : 0;
    return n > 0 && sq_read_varint(p + n, page->end, &id) > 0 ? (int64_t)id : 0;
}

bool sq_page_is_within(const struct page *page, int64_t above, int64_t upto)
{
    if (page->type != TABLE_LEAF || page->cells == 0)
        return true;
    int64_t first = id_of(page, 0), last = id_of(page, page->cells - 1);
    return first == 0 || last == 0 || (first <= upto && last > above);
}

/* Ids rise on a page. If two do not, the one that fits neither of its neighbours is the damaged
 * one. */
static bool out_of_order(const struct page *page, uint32_t i, int64_t id,
                         const struct row_order *order)
{
    int64_t next = id_of(page, i + 1);
    if (order->any && id <= order->last)
        return true;
    return next != 0 && id >= next && (!order->any || next > order->last);
}

/* The highest id that row `i` can have: below the next one that fits, or the limit from the
 * tree. */
static int64_t highest_id(const struct page *page, uint32_t i, const struct row_order *order)
{
    for (uint32_t k = i + 1; k < page->cells; k++) {
        int64_t next = id_of(page, k);
        if (next > order->last && next <= order->upto)
            return next - 1;
    }
    return order->upto;
}

/* The id may be known even if the contents cannot be read. */
static int report_unreadable(const struct page *page, uint32_t i, const struct row_order *order,
                             bool has_id, int64_t id, const struct walker *walker,
                             struct lhi_error *err)
{
    if (page->type != TABLE_LEAF)
        return walker->unreadable(walker->arg, 0, 0, 0, err);
    if (has_id && id > order->last && id <= order->upto)
        return walker->unreadable(walker->arg, 0, id - 1, id, err);
    return walker->unreadable(walker->arg, 0, order->last, highest_id(page, i, order), err);
}

int sq_page_read_row(struct pages *pages, const struct page *page, uint32_t i,
                     struct row_order *order, const struct walker *walker, struct lhi_error *err)
{
    struct row row = {0};
    uint64_t whole = 0, id = 0;
    int rc = LH_OK;
    const unsigned char *p = cell_of(page, i);

    if (p != NULL && page->type == INDEX_INNER)
        p += 4;
    size_t n = p ? sq_read_varint(p, page->end, &whole) : 0;
    bool ok = n > 0;
    if (ok && page->type == TABLE_LEAF) {
        size_t more = sq_read_varint(p + n, page->end, &id);
        ok = more > 0 && !out_of_order(page, i, (int64_t)id, order);
        n += more;
    }
    if (ok &&
        (rc = sq_row_read(pages, p + n, page->end, sq_page_is_index(page), whole, &row, err)) < 0)
        return rc;
    if (!ok || rc == LH_EMPTY)
        return report_unreadable(page, i, order, ok, (int64_t)id, walker, err);
    row.id = (int64_t)id;
    order->any = true;
    order->last = row.id;
    return walker->row(walker->arg, &row, err);
}

int sq_page_read_rows(struct pages *pages, const struct page *page, int64_t above, int64_t upto,
                      const struct walker *walker, struct lhi_error *err)
{
    struct row_order order = {.last = above, .upto = upto};
    int rc = LH_OK;

    for (uint32_t i = 0; i < page->cells && rc == LH_OK; i++)
        rc = sq_page_read_row(pages, page, i, &order, walker, err);
    return rc;
}
