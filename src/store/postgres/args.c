/*
 * args.c: the parameters of a call.
 *
 * Numbers, times, bytes and arrays are sent in binary, so nothing is formatted and parsed again,
 * and a payload may contain zero bytes.
 */
#include "store/postgres/pg.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

/* The server counts microseconds from the year 2000. */
#define EPOCH_2000_MS INT64_C(946684800000)

enum { ARRAY_HEADER = 20 };

static void put_u32(char *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (char)(unsigned char)(value >> (24 - 8 * i));
}

static void put_u64(char *to, uint64_t value)
{
    put_u32(to, (uint32_t)(value >> 32));
    put_u32(to + 4, (uint32_t)value);
}

/* Times beyond the server's range become infinity. */
static int64_t microseconds(int64_t ms)
{
    int64_t us;
    return __builtin_mul_overflow(ms - EPOCH_2000_MS, 1000, &us) ? INT64_MAX : us;
}

void pg_args_clear(struct args *args)
{
    lhi_free(args->array.bytes);
    lhi_arena_clear(&args->arena);
    memset(args, 0, sizeof *args);
}

static int next_arg(struct args *args, Oid type, int format)
{
    assert(args->n < MOST_ARGS && args->array.left == 0);
    args->type[args->n] = type;
    args->format[args->n] = format;
    return args->n++;
}

static void add_number(struct args *args, Oid type, uint64_t value)
{
    int i = next_arg(args, type, 1);

    put_u64(args->number[i], value);
    args->value[i] = args->number[i];
    args->length[i] = 8;
}

static void add_null(struct args *args, Oid type)
{
    args->value[next_arg(args, type, 1)] = NULL;
}

void pg_arg_text(struct args *args, const char *text)
{
    args->value[next_arg(args, OID_TEXT, 0)] = text;
}

void pg_arg_int(struct args *args, int64_t value)
{
    add_number(args, OID_INT8, (uint64_t)value);
}

void pg_arg_opt(struct args *args, int64_t value)
{
    pg_arg_ref(args, value != 0 ? &value : NULL);
}

void pg_arg_ref(struct args *args, const int64_t *value)
{
    if (value != NULL)
        pg_arg_int(args, *value);
    else
        add_null(args, OID_INT8);
}

void pg_arg_bool(struct args *args, bool value)
{
    int i = next_arg(args, OID_BOOL, 1);

    args->number[i][0] = value;
    args->value[i] = args->number[i];
    args->length[i] = 1;
}

void pg_arg_time(struct args *args, int64_t ms)
{
    if (ms != 0)
        add_number(args, OID_TIMESTAMPTZ, (uint64_t)microseconds(ms));
    else
        add_null(args, OID_TIMESTAMPTZ);
}

static void add_bytes(struct args *args, Oid type, const void *bytes, size_t len)
{
    int i = next_arg(args, type, 1);

    if (len > INT_MAX)
        args->no_memory = true;
    args->value[i] = bytes;
    args->length[i] = (int)len;
}

void pg_arg_bytes(struct args *args, const void *bytes, size_t len)
{
    add_bytes(args, OID_BYTEA, bytes, len);
}

void pg_arg_text_len(struct args *args, const void *text, size_t len)
{
    add_bytes(args, OID_TEXT, text, len);
}

/* ---- arrays ---- */

static Oid array_of(Oid element)
{
    switch (element) {
    case OID_BOOL:
        return OID_BOOL_ARRAY;
    case OID_BYTEA:
        return OID_BYTEA_ARRAY;
    case OID_INT8:
        return OID_INT8_ARRAY;
    case OID_TEXT:
        return OID_TEXT_ARRAY;
    default:
        assert(element == OID_TIMESTAMPTZ);
        return OID_TIMESTAMPTZ_ARRAY;
    }
}

/* Make room for more bytes. NULL: out of memory, or too many bytes; the call reports it. */
static char *extend(struct args *args, size_t len)
{
    size_t needed = args->array.used + len;

    args->total += len;
    if (args->total > (size_t)MOST_MIB << 20)
        args->too_big = true;
    if (args->no_memory || args->too_big)
        return NULL;
    if (needed > args->array.room) {
        size_t room = needed * 2;
        char *grown = lhi_realloc(args->array.bytes, room);
        if (grown == NULL) {
            args->no_memory = true;
            return NULL;
        }
        args->array.bytes = grown;
        args->array.room = room;
    }
    char *at = args->array.bytes + args->array.used;
    args->array.used = needed;
    return at;
}

static void end_array(struct args *args)
{
    int i = args->n - 1;

    char *head = args->array.bytes;
    if (args->no_memory || args->too_big || head == NULL)
        return;
    put_u32(head, args->array.n > 0 ? 1 : 0); /* number of dimensions */
    put_u32(head + 4, args->array.nulls);
    put_u32(head + 8, args->array.element);
    if (args->array.n > 0) {
        put_u32(head + 12, (uint32_t)args->array.n);
        put_u32(head + 16, 1); /* lower bound */
    } else {
        args->array.used = 12;
    }
    args->value[i] = lhi_arena_copy(&args->arena, head, args->array.used);
    args->length[i] = (int)args->array.used;
    args->no_memory = args->value[i] == NULL;
}

void pg_arg_no_array(struct args *args, Oid element)
{
    add_null(args, array_of(element));
}

void pg_arg_array(struct args *args, Oid element, size_t n)
{
    (void)next_arg(args, array_of(element), 1);
    args->array.element = element;
    args->array.n = args->array.left = n;
    args->array.nulls = false;
    args->array.used = 0;
    (void)extend(args, ARRAY_HEADER);
    if (n == 0)
        end_array(args);
}

static void put_element(struct args *args, Oid element, const void *bytes, size_t len)
{
    assert(args->array.left > 0);
    assert(args->array.element == element || (element == OID_BYTEA && bytes == NULL) ||
           (element == OID_BYTEA && args->array.element == OID_TEXT));
    char *at = extend(args, 4 + (bytes != NULL ? len : 0));
    if (at != NULL) {
        put_u32(at, bytes != NULL ? (uint32_t)len : UINT32_MAX);
        if (bytes != NULL && len > 0)
            memcpy(at + 4, bytes, len);
        else if (bytes == NULL)
            args->array.nulls = true;
    }
    if (--args->array.left == 0)
        end_array(args);
}

void pg_put_null(struct args *args)
{
    put_element(args, OID_BYTEA, NULL, 0);
}

void pg_put_int(struct args *args, int64_t value)
{
    char bytes[8];

    put_u64(bytes, (uint64_t)value);
    put_element(args, OID_INT8, bytes, sizeof bytes);
}

void pg_put_opt(struct args *args, int64_t value)
{
    if (value != 0)
        pg_put_int(args, value);
    else
        pg_put_null(args);
}

void pg_put_text(struct args *args, const char *text)
{
    put_element(args, text != NULL ? OID_TEXT : OID_BYTEA, text, text != NULL ? strlen(text) : 0);
}

void pg_arg_names(struct args *args, const char *const *names, size_t n)
{
    pg_arg_array(args, OID_TEXT, n);
    for (size_t i = 0; i < n; i++)
        pg_put_text(args, names[i]);
}

void pg_put_bytes(struct args *args, const void *bytes, size_t len)
{
    put_element(args, OID_BYTEA, bytes, len);
}

void pg_put_bool(struct args *args, bool value)
{
    put_element(args, OID_BOOL, (char[]){value}, 1);
}

void pg_put_time(struct args *args, int64_t ms)
{
    char bytes[8];

    if (ms == 0) {
        pg_put_null(args);
        return;
    }
    put_u64(bytes, (uint64_t)microseconds(ms));
    put_element(args, OID_TIMESTAMPTZ, bytes, sizeof bytes);
}
