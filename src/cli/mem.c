/*
 * The allocations and the byte buffer of mem.h.
 */
#include "mem.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void out_of_memory(void)
{
    fputs("leasehold: out of memory\n", stderr);
    exit(1);
}

void *mem_array(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);

    if (p == NULL)
        out_of_memory();
    return p;
}

void *mem_alloc(size_t size)
{
    return mem_array(1, size);
}

void *mem_grow(void *old, size_t n, size_t size)
{
    void *p = NULL;

    if (size == 0 || n <= SIZE_MAX / size)
        p = realloc(old, n && size ? n * size : 1);
    if (p == NULL)
        out_of_memory();
    return p;
}

char *mem_copy(const char *text)
{
    size_t n = strlen(text) + 1;

    return memcpy(mem_alloc(n), text, n);
}

/* ---- buffer ---------------------------------------------------------------------------------- */

void buf_clear(struct buf *buf)
{
    free(buf->p);
    *buf = (struct buf){0};
}

void buf_reset(struct buf *buf)
{
    buf->n = 0;
    if (buf->p != NULL)
        buf->p[0] = '\0';
}

static void reserve(struct buf *buf, size_t more)
{
    size_t cap = buf->cap ? buf->cap : 256;

    if (more >= SIZE_MAX / 4 - buf->n)
        out_of_memory();
    while (cap < buf->n + more + 1)
        cap *= 2;
    if (cap != buf->cap) {
        buf->p = mem_grow(buf->p, cap, 1);
        buf->cap = cap;
    }
}

void buf_add(struct buf *buf, const void *bytes, size_t n)
{
    reserve(buf, n);
    if (n > 0)
        memcpy(buf->p + buf->n, bytes, n);
    buf->n += n;
    buf->p[buf->n] = '\0';
}

void buf_char(struct buf *buf, char c)
{
    buf_add(buf, &c, 1);
}

void buf_text(struct buf *buf, const char *text)
{
    buf_add(buf, text, strlen(text));
}

void buf_format(struct buf *buf, const char *format, ...)
{
    char small[512];
    va_list ap;
    int n;

    va_start(ap, format);
    n = vsnprintf(small, sizeof small, format, ap);
    va_end(ap);
    if (n < 0)
        return;
    if ((size_t)n < sizeof small) {
        buf_add(buf, small, (size_t)n);
        return;
    }
    reserve(buf, (size_t)n);
    va_start(ap, format);
    vsnprintf(buf->p + buf->n, (size_t)n + 1, format, ap);
    va_end(ap);
    buf->n += (size_t)n;
}

const char *buf_str(struct buf *buf)
{
    reserve(buf, 0);
    buf->p[buf->n] = '\0';
    return buf->p;
}

/* ---- arena ----------------------------------------------------------------------------------- */

void *arena_alloc(struct lhi_arena *arena, size_t size)
{
    void *p = lhi_arena_alloc(arena, size);

    if (p == NULL)
        out_of_memory();
    return p;
}

char *arena_copy(struct lhi_arena *arena, const void *bytes, size_t n)
{
    char *p = lhi_arena_copy(arena, bytes, n);

    if (p == NULL)
        out_of_memory();
    return p;
}
