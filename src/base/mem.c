/* mem.c: the allocator and the arena. */
#include "base/mem.h"

#include "base/hook.h"

#include <assert.h>
#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void *lhi_malloc(size_t size)
{
    if (LHI_FAULT(LHI_FAULT_ALLOC))
        return NULL;
    return malloc(size ? size : 1);
}

void *lhi_calloc(size_t n, size_t size)
{
    if (LHI_FAULT(LHI_FAULT_ALLOC))
        return NULL;
    return calloc(n ? n : 1, size ? size : 1);
}

void *lhi_realloc(void *p, size_t size)
{
    if (LHI_FAULT(LHI_FAULT_ALLOC))
        return NULL;
    return realloc(p, size ? size : 1);
}

char *lhi_strdup(const char *s)
{
    if (s == NULL)
        return NULL;
    size_t len = strlen(s) + 1;
    char *copy = lhi_malloc(len);
    if (copy != NULL)
        memcpy(copy, s, len);
    return copy;
}

void lhi_free(void *p)
{
    free(p);
}

struct lhi_arena_block {
    struct lhi_arena_block *next;
    size_t used, size;
    alignas(max_align_t) unsigned char bytes[];
};

enum { FIRST_BLOCK = 4096 - sizeof(struct lhi_arena_block) };

void *lhi_arena_alloc(struct lhi_arena *arena, size_t size)
{
    struct lhi_arena_block *block = arena->head;
    size_t need = (size + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);

    if (need < size)
        return NULL;
    if (block == NULL || block->size - block->used < need) {
        /* Doubling the size keeps the number of blocks small. */
        size_t want = block ? block->size * 2 : FIRST_BLOCK;
        if (want > (size_t)1 << 20)
            want = (size_t)1 << 20;
        if (want < need)
            want = need;
        block = lhi_malloc(sizeof *block + want);
        if (block == NULL)
            return NULL;
        block->used = 0;
        block->size = want;
        block->next = arena->head;
        arena->head = block;
    }
    void *p = block->bytes + block->used;
    block->used += need;
    memset(p, 0, need);
    return p;
}

void *lhi_arena_copy(struct lhi_arena *arena, const void *bytes, size_t len)
{
    assert(len < SIZE_MAX);
    char *p = lhi_arena_alloc(arena, len + 1);
    if (p != NULL && len > 0)
        memcpy(p, bytes, len);
    return p;
}

char *lhi_arena_strdup(struct lhi_arena *arena, const char *s)
{
    return s ? lhi_arena_copy(arena, s, strlen(s)) : NULL;
}

void lhi_arena_clear(struct lhi_arena *arena)
{
    while (arena->head != NULL) {
        struct lhi_arena_block *block = arena->head;
        arena->head = block->next;
        lhi_free(block);
    }
}

struct lhi_arena *lhi_arena_of(void **priv)
{
    if (*priv == NULL)
        *priv = lhi_calloc(1, sizeof(struct lhi_arena));
    return *priv;
}

void lhi_arena_drop(void **priv)
{
    if (*priv != NULL)
        lhi_arena_clear(*priv);
    lhi_free(*priv);
    *priv = NULL;
}
