/*
 * Is a file that SQLite does not recognize one of our stores with a zeroed header?
 *
 * If there is a coordination file, it names the store's file. Without it only the contents can show
 * it, and a file of somebody else must never be taken for ours, because it would be repaired. So
 * the header must be zeros, followed directly by the root page of a schema whose text contains our
 * two main tables.
 */
#include "store/sqlite/files/files.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum {
    HEADER = 100, /* of the file; the header of the first page follows */
    INTERIOR = 5, /* the types of pages of a table */
    LEAF = 13,
    ENOUGH = 1 << 20 /* a new store has its schema within this many bytes */
};

struct beginning {
    const char *file;
    unsigned char *bytes;
    size_t n;
};

/* This runs in a process of its own: closing a descriptor of the database drops the locks that its
 * process has on it. */
static int read_beginning(void *arg)
{
    struct beginning *b = arg;
    ssize_t n = 1;
    int fd = open(b->file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    for (b->n = 0; fd >= 0 && n > 0 && b->n<ENOUGH; b->n += n> 0 ? (size_t)n : 0)
        n = pread(fd, b->bytes + b->n, ENOUGH - b->n, (off_t)b->n);
    return 0;
}

static bool has(const struct beginning *b, const char *text)
{
    return memmem(b->bytes, b->n, text, strlen(text)) != NULL;
}

static bool is_store(const struct beginning *b)
{
    if (b->n <= HEADER || (b->bytes[HEADER] != INTERIOR && b->bytes[HEADER] != LEAF))
        return false;
    for (int i = 0; i < HEADER; i++)
        if (b->bytes[i] != 0)
            return false;
    return has(b, "CREATE TABLE lh_meta") && has(b, "CREATE TABLE lh_job");
}

bool sq_header_is_zeroed(const struct db *db)
{
    struct beginning b = {.file = db->file, .bytes = lhi_malloc(ENOUGH)};
    bool ours = b.bytes != NULL && lhi_ask_child(read_beginning, &b) == 0 && is_store(&b);

    lhi_free(b.bytes);
    return ours;
}
