/*
 * A database file, read page by page without SQLite. pages.h says why.
 *
 * All pages of a file have one size. A tree has inner pages, which point to other pages, and leaves
 * with rows. In an index, and in a table without row ids, inner pages hold rows too. A row that is
 * too long for its page continues in a chain of overflow pages. A file with auto_vacuum has a map,
 * in pages spread over the file, which says for every page what it is used for. With the map, a
 * page that a damaged page led to can be distinguished from one that was freed long ago, whose rows
 * must not return.
 */
#include "store/sqlite/repair/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEEPEST = 40 }; /* no sound tree is deeper */

/* Bits of the state of a page. */
enum { SEEN = 1, LIVE = 2 };

/* Types in the map: a root, a free page, the first and a later overflow page, a page below another
 * one. */
enum { MAP_ROOT = 1, MAP_FREE, MAP_OVERFLOW, MAP_REST, MAP_INNER };

#define LOCK_BYTE INT64_C(0x40000000) /* the page with this byte is always empty */

/* ---- bytes ---- */

uint32_t sq_read_u16(const unsigned char *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

uint32_t sq_read_u32(const unsigned char *p)
{
    return sq_read_u16(p) << 16 | sq_read_u16(p + 2);
}

bool sq_read_bytes(int fd, void *buf, size_t len, off_t at)
{
    size_t got = 0;

    errno = 0;
    while (got < len) {
        ssize_t n = pread(fd, (char *)buf + got, len - got, at + (off_t)got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        got += (size_t)n;
    }
    return true;
}

/* A page behind the end of the file reads as zeros, which is no page of a tree. */
int sq_read_page(const struct pages *pages, uint32_t page, unsigned char *buf,
                 struct lhi_error *err)
{
    memset(buf, 0, pages->size);
    if (page == 0 || page > pages->count ||
        sq_read_bytes(pages->fd, buf, pages->size, (off_t)(page - 1) * (off_t)pages->size) ||
        errno == 0)
        return LH_OK;
    return lhi_fail_errno(err, errno, "could not read \"%.300s\"", pages->path);
}

/* ---- which pages are in use ---- */

static uint32_t lock_page(uint32_t size)
{
    return (uint32_t)(LOCK_BYTE / size) + 1;
}

uint32_t sq_map_page_of(uint32_t size, uint32_t usable, uint32_t page)
{
    if (page < 2)
        return 0;
    uint32_t each = usable / 5 + 1;
    uint32_t map = (page - 2) / each * each + 2;
    return map == lock_page(size) ? map + 1 : map;
}

/* Pages that are not on the list of free pages are in use. If the list is damaged, that is
 * unknown. */
static int read_free_list(struct pages *pages, unsigned char *buf, uint32_t trunk, uint32_t wanted,
                          struct lhi_error *err)
{
    uint32_t freed = 0;

    for (uint32_t page = 2; page <= pages->count; page++)
        pages->state[page] |= LIVE;
    while (trunk != 0) {
        if (trunk < 2 || trunk > pages->count || (pages->state[trunk] & LIVE) == 0)
            return LH_OK;
        int rc = sq_read_page(pages, trunk, buf, err);
        if (rc != LH_OK)
            return rc;
        uint32_t n = sq_read_u32(buf + 4);
        if (n > pages->usable / 4 - 2)
            return LH_OK;
        pages->state[trunk] &= (unsigned char)~LIVE;
        freed += 1 + n;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t page = sq_read_u32(buf + 8 + (size_t)i * 4);
            if (page < 2 || page > pages->count)
                return LH_OK;
            pages->state[page] &= (unsigned char)~LIVE;
        }
        trunk = sq_read_u32(buf);
    }
    pages->live_known = freed == wanted;
    return LH_OK;
}

/* The map is more reliable, page by page. Where the map is damaged, the list decides. */
static int read_map(struct pages *pages, unsigned char *buf, struct lhi_error *err)
{
    uint32_t at = 0;

    for (uint32_t page = 2; page <= pages->count; page++) {
        uint32_t map = sq_map_page_of(pages->size, pages->usable, page);
        bool live = pages->live_known && (pages->state[page] & LIVE) != 0;
        if (map != at) {
            int rc = sq_read_page(pages, map, buf, err);
            if (rc != LH_OK)
                return rc;
            at = map;
        }
        size_t entry = map == page ? 0 : 5 * (size_t)(page - map - 1);
        if (map == page || page == lock_page(pages->size))
            live = false;
        else if (entry + 5 <= pages->usable && buf[entry] >= MAP_ROOT && buf[entry] <= MAP_INNER)
            live = buf[entry] == MAP_ROOT || buf[entry] == MAP_INNER;
        pages->state[page] &= (unsigned char)~LIVE;
        if (live)
            pages->state[page] |= LIVE;
    }
    pages->live_known = true;
    return LH_OK;
}

/* ---- opening ---- */

static int read_header(struct pages *pages, struct lhi_error *err)
{
    static const int encodings[] = {SQLITE_UTF8, SQLITE_UTF8, SQLITE_UTF16LE, SQLITE_UTF16BE};
    unsigned char header[100];
    struct stat st;

    if (fstat(pages->fd, &st) != 0 || !sq_read_bytes(pages->fd, header, sizeof header, 0)) {
        if (errno != 0)
            return lhi_fail_errno(err, errno, "could not read \"%.300s\"", pages->path);
        return lhi_fail(err, LH_ECORRUPT, "it is too short for a database");
    }
    uint32_t size = sq_read_u16(header + 16), encoding = sq_read_u32(header + 56);
    pages->size = size == 1 ? 65536 : size;
    if (memcmp(header, "SQLite format 3", 16) != 0 || pages->size < 512 ||
        (pages->size & (pages->size - 1)) != 0 || header[20] > pages->size - 480)
        return lhi_fail(err, LH_ECORRUPT, "it is not a database");
    pages->usable = pages->size - header[20];
    pages->encoding = encodings[encoding < 4 ? encoding : 0];
    pages->user_version = (int32_t)sq_read_u32(header + 60);
    pages->application_id = (int32_t)sq_read_u32(header + 68);
    pages->mapped = sq_read_u32(header + 52) != 0;
    pages->incremental = sq_read_u32(header + 64) != 0;
    int64_t count = ((int64_t)st.st_size + pages->size - 1) / pages->size;
    pages->count = count > INT32_MAX ? INT32_MAX : (uint32_t)count;
    pages->state = lhi_calloc((size_t)pages->count + 1, 1);
    unsigned char *buf = lhi_malloc(pages->size);
    int rc = LH_OK;
    if (pages->state == NULL || buf == NULL || !sq_row_buffers_new(pages))
        rc = lhi_no_memory(err);
    else
        rc = read_free_list(pages, buf, sq_read_u32(header + 32), sq_read_u32(header + 36), err);
    if (rc == LH_OK && pages->mapped)
        rc = read_map(pages, buf, err);
    lhi_free(buf);
    return rc;
}

int sq_pages_open(struct pages *pages, const char *path, struct lhi_error *err)
{
    memset(pages, 0, sizeof *pages);
    lhi_format(pages->path, sizeof pages->path, "%s", path);
    pages->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (pages->fd < 0)
        return lhi_fail_errno(err, errno, "could not open \"%.300s\"", path);
    int rc = read_header(pages, err);
    if (rc != LH_OK)
        sq_pages_close(pages);
    return rc;
}

void sq_pages_close(struct pages *pages)
{
    if (pages->path[0] == '\0')
        return;
    if (pages->fd >= 0)
        close(pages->fd);
    lhi_free(pages->state);
    sq_row_buffers_free(pages);
    memset(pages, 0, sizeof *pages);
}

/* ---- a tree ---- */

/* One step down the tree: the page, and the range of its row ids. */
struct step {
    uint32_t page;
    int depth;
    int64_t above, upto;
};

static int walk_page(struct pages *pages, struct step at, const struct walker *walker,
                     struct lhi_error *err);

static int walk_inner(struct pages *pages, const struct page *page, struct step at,
                      const struct walker *walker, struct lhi_error *err)
{
    struct row_order order = {0};
    struct step down = {.depth = at.depth + 1, .above = at.above};
    int rc = LH_OK;

    for (uint32_t i = 0; i < page->cells && rc == LH_OK; i++) {
        int64_t key = at.upto;
        down.page = sq_page_child(page, i, &key);
        down.upto = sq_page_is_index(page) ? at.upto : key;
        rc = walk_page(pages, down, walker, err);
        if (rc == LH_OK && sq_page_is_index(page))
            rc = sq_page_read_row(pages, page, i, &order, walker, err);
        down.above = down.upto;
    }
    down.page = page->right;
    down.upto = at.upto;
    return rc == LH_OK ? walk_page(pages, down, walker, err) : rc;
}

static int walk_parsed(struct pages *pages, const struct page *page, struct step at,
                       const struct walker *walker, struct lhi_error *err)
{
    int rc = page->adds_up || walker->suspect == NULL
                 ? LH_OK
                 : walker->suspect(walker->arg, page->number, page->counted, err);

    if (rc != LH_OK)
        return rc;
    if (sq_page_is_inner(page))
        return walk_inner(pages, page, at, walker, err);
    if (!pages->live_known || sq_page_is_within(page, at.above, at.upto))
        return sq_page_read_rows(pages, page, at.above, at.upto, walker, err);
    /* The rows belong somewhere else: a page was written to the wrong place, or a key above it is
     * damaged. Rows that are not found where they belong are found here later, as a page that no
     * tree leads to. */
    pages->state[page->number] &= (unsigned char)~SEEN;
    return walker->unreadable(walker->arg, page->number, at.above, at.upto, err);
}

static int walk_page(struct pages *pages, struct step at, const struct walker *walker,
                     struct lhi_error *err)
{
    struct page page;
    int rc;

    if (at.page == 0 || at.page > pages->count || at.depth > DEEPEST ||
        (pages->state[at.page] & SEEN))
        return walker->unreadable(walker->arg, at.page ? at.page : 1, at.above, at.upto, err);
    unsigned char *bytes = lhi_malloc(pages->size);
    if (bytes == NULL)
        return lhi_no_memory(err);
    if ((rc = sq_read_page(pages, at.page, bytes, err)) == LH_OK) {
        pages->state[at.page] |= SEEN;
        if (sq_page_parse(pages, at.page, bytes, &page) && sq_page_is_index(&page) == walker->index)
            rc = walk_parsed(pages, &page, at, walker, err);
        else
            rc = walker->unreadable(walker->arg, at.page, at.above, at.upto, err);
    }
    lhi_free(bytes);
    return rc;
}

int sq_pages_walk(struct pages *pages, uint32_t root, const struct walker *walker,
                  struct lhi_error *err)
{
    struct step at = {.page = root, .above = INT64_MIN, .upto = INT64_MAX};
    return walk_page(pages, at, walker, err);
}

int sq_pages_is_keyed(struct pages *pages, uint32_t root, bool *keyed, struct lhi_error *err)
{
    struct page page;
    unsigned char *bytes = lhi_malloc(pages->size);

    *keyed = false;
    if (bytes == NULL)
        return lhi_no_memory(err);
    int rc = sq_read_page(pages, root, bytes, err);
    if (rc == LH_OK && sq_page_parse(pages, root, bytes, &page))
        *keyed = sq_page_is_index(&page);
    lhi_free(bytes);
    return rc;
}

int sq_pages_next_orphan(struct pages *pages, struct orphan *orphan, struct lhi_error *err)
{
    struct page page;
    int rc = LH_OK;
    uint32_t n = orphan->page;
    unsigned char *bytes = lhi_malloc(pages->size);

    *orphan = (struct orphan){0};
    if (bytes == NULL)
        return lhi_no_memory(err);
    while (pages->live_known && orphan->page == 0 && rc == LH_OK && ++n <= pages->count) {
        if ((pages->state[n] & (SEEN | LIVE)) != LIVE || n == lock_page(pages->size))
            continue;
        rc = sq_read_page(pages, n, bytes, err);
        bool readable = rc == LH_OK && sq_page_parse(pages, n, bytes, &page);
        /* Without a map the page may be used for something else. */
        if (rc != LH_OK || (!readable && !pages->mapped) || (readable && !sq_page_has_rows(&page)))
            continue;
        *orphan = (struct orphan){n, readable, readable && sq_page_is_index(&page)};
    }
    lhi_free(bytes);
    return rc;
}

int sq_pages_rows(struct pages *pages, uint32_t number, const struct walker *walker,
                  struct lhi_error *err)
{
    struct page page;
    unsigned char *bytes = lhi_malloc(pages->size);

    if (bytes == NULL)
        return lhi_no_memory(err);
    int rc = sq_read_page(pages, number, bytes, err);
    if (rc == LH_OK && sq_page_parse(pages, number, bytes, &page))
        rc = sq_page_read_rows(pages, &page, INT64_MIN, INT64_MAX, walker, err);
    lhi_free(bytes);
    return rc;
}

void sq_pages_forget(struct pages *pages)
{
    for (uint32_t page = 1; page <= pages->count; page++)
        pages->state[page] &= (unsigned char)~SEEN;
}

/* Read an entry of the map: five bytes with the type of the page and the page above it. */
static int read_entry(struct pages *pages, uint32_t number, unsigned char entry[5],
                      struct lhi_error *err)
{
    uint32_t map = sq_map_page_of(pages->size, pages->usable, number);
    off_t at = (off_t)(map - 1) * (off_t)pages->size + 5 * (off_t)(number - map - 1);

    memset(entry, 0, 5);
    if (!pages->mapped || number < 3 || map == number || sq_read_bytes(pages->fd, entry, 5, at) ||
        errno == 0)
        return LH_OK;
    return lhi_fail_errno(err, errno, "could not read \"%.300s\"", pages->path);
}

int sq_pages_parent(struct pages *pages, uint32_t number, uint32_t *parent, struct lhi_error *err)
{
    unsigned char entry[5];
    int rc = read_entry(pages, number, entry, err);

    *parent = rc == LH_OK && entry[0] == MAP_INNER ? sq_read_u32(entry + 1) : 0;
    return rc;
}

int sq_pages_is_parent(struct pages *pages, uint32_t number, bool *yes, struct lhi_error *err)
{
    int rc = LH_OK;

    *yes = false;
    for (uint32_t page = 3; pages->mapped && !*yes && page <= pages->count && rc == LH_OK; page++) {
        uint32_t parent = 0;
        if ((pages->state[page] & LIVE) != 0)
            rc = sq_pages_parent(pages, page, &parent, err);
        *yes = parent == number;
    }
    return rc;
}
