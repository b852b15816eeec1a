/*
 * mem.h: an allocator that tests can make fail, and an arena for memory that is freed together.
 */
#ifndef LHI_MEM_H
#define LHI_MEM_H

#include <stddef.h>

void *lhi_malloc(size_t size);
void *lhi_calloc(size_t n, size_t size);
void *lhi_realloc(void *p, size_t size);
char *lhi_strdup(const char *s); /* NULL stays NULL */
void lhi_free(void *p);

/* Memory of an arena stays valid until the arena is cleared. A zeroed arena is empty. */
struct lhi_arena {
    struct lhi_arena_block *head;
};

void *lhi_arena_alloc(struct lhi_arena *arena, size_t size); /* zeroed; NULL: no memory */
void *lhi_arena_copy(struct lhi_arena *arena, const void *bytes,
                     size_t len);                               /* with a zero byte appended */
char *lhi_arena_strdup(struct lhi_arena *arena, const char *s); /* NULL stays NULL */
void lhi_arena_clear(struct lhi_arena *arena);
/* The arena for the strings of a result struct, created by the first call; NULL: no memory. */
struct lhi_arena *lhi_arena_of(void **priv);
void lhi_arena_drop(void **priv);

#endif
