/*
 * Memory of the program: a growing byte buffer, and allocations that cannot fail.
 *
 * When memory runs out, these functions print a message and end the program with exit code 1. The program
 * has nothing to save then: every change is one transaction of the library.
 */
#ifndef LEASEHOLD_CLI_MEM_H
#define LEASEHOLD_CLI_MEM_H

#include <stddef.h>

#include "base/mem.h"

void *mem_alloc(size_t size);           /* zeroed */
void *mem_array(size_t n, size_t size); /* zeroed */
void *mem_grow(void *old, size_t n, size_t size);
char *mem_copy(const char *text);

struct buf {
    char *p; /* a zero follows the bytes, once anything was added */
    size_t n, cap;
};

void buf_clear(struct buf *buf); /* frees the memory */
void buf_reset(struct buf *buf); /* empties it, keeps the memory */
void buf_add(struct buf *buf, const void *bytes, size_t n);
void buf_char(struct buf *buf, char c);
void buf_text(struct buf *buf, const char *text);
void buf_format(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *buf_str(struct buf *buf); /* never NULL */

/* The arena of base/mem.h, for callers that cannot continue without memory. */
void *arena_alloc(struct lhi_arena *arena, size_t size); /* zeroed */
/** A copy with a zero behind it. */
char *arena_copy(struct lhi_arena *arena, const void *bytes, size_t n);

#endif
