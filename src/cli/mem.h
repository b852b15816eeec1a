/*
 * Memory of the program: a growing byte buffer, and an arena for things that are freed together.
 *
 * The program has nothing to save when memory runs out (every act is one transaction of the
 * library), so these say so and end it with exit code 1 instead of returning NULL.
 */
#ifndef LEASEHOLD_CLI_MEM_H
#define LEASEHOLD_CLI_MEM_H

#include <stddef.h>

void *mem_alloc(size_t size);           /* zeroed */
void *mem_array(size_t n, size_t size); /* zeroed */
void *mem_grow(void *old, size_t n, size_t size);
char *mem_copy(const char *text);

struct buf {
    char *p; /* always ends with a zero behind `n`, once something was added */
    size_t n, cap;
};

void buf_clear(struct buf *buf); /* frees */
void buf_reset(struct buf *buf); /* empties, keeps the room */
void buf_add(struct buf *buf, const void *bytes, size_t n);
void buf_char(struct buf *buf, char c);
void buf_text(struct buf *buf, const char *text);
void buf_format(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *buf_str(struct buf *buf); /* never NULL */

struct arena {
    struct arena_block *last;
};

void *arena_alloc(struct arena *arena, size_t size);
/** A copy with a zero behind it. */
char *arena_copy(struct arena *arena, const void *bytes, size_t n);
void arena_clear(struct arena *arena);

#endif
