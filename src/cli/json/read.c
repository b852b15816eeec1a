/*
 * Reading values out of text that js_valid() has accepted: the members of an object, strings, whole numbers.
 */
#include "json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- members of an object -------------------------------------------------------------------- */

/** Returns the position after the string that begins at `p`. */
static const char *after_string(const char *p)
{
    for (p++; *p != '"'; p++)
        if (*p == '\\')
            p++;
    return p + 1;
}

bool js_next_member(struct js_member *m)
{
    const char *p = m->at;
    int depth = 0;

    if (*p == '}' || p[1] == '}')
        return false;
    p++; /* the opening brace, or the comma before this member */
    m->key = p;
    p = after_string(p);
    m->key_len = (size_t)(p - m->key);
    p++;
    m->value = p;
    for (;;) {
        if (*p == '"') {
            p = after_string(p);
            continue;
        }
        if (depth == 0 && (*p == ',' || *p == '}'))
            break;
        if (*p == '{' || *p == '[')
            depth++;
        else if (*p == '}' || *p == ']')
            depth--;
        p++;
    }
    m->value_len = (size_t)(p - m->value);
    m->at = p;
    return true;
}

bool js_find_int(const char *text, const char *key, int64_t *out)
{
    struct buf compact = {0};
    size_t len = strlen(key);
    bool found = false;

    if (js_valid(text, strlen(text), &compact, NULL) && compact.p[0] == '{') {
        struct js_member m = {.at = compact.p};
        while (!found && js_next_member(&m)) {
            char *end;
            if (m.key_len != len + 2 || memcmp(m.key + 1, key, len) != 0)
                continue;
            errno = 0;
            *out = strtoll(m.value, &end, 10);
            found = errno == 0 && end == m.value + m.value_len;
        }
    }
    buf_clear(&compact);
    return found;
}

/* ---- strings --------------------------------------------------------------------------------- */

static unsigned hex4(const char *p)
{
    unsigned code = 0;

    for (int i = 0; i < 4; i++) {
        char c = p[i];
        unsigned digit = c <= '9' ? (unsigned)(c - '0') : (unsigned)((c | 0x20) - 'a') + 10;
        code = code << 4 | digit;
    }
    return code;
}

static void put_character(struct buf *out, unsigned code)
{
    if (code < 0x80) {
        buf_char(out, (char)code);
        return;
    }
    if (code < 0x800) {
        buf_char(out, (char)(0xc0 | code >> 6));
    } else {
        if (code < 0x10000) {
            buf_char(out, (char)(0xe0 | code >> 12));
        } else {
            buf_char(out, (char)(0xf0 | code >> 18));
            buf_char(out, (char)(0x80 | (code >> 12 & 0x3f)));
        }
        buf_char(out, (char)(0x80 | (code >> 6 & 0x3f)));
    }
    buf_char(out, (char)(0x80 | (code & 0x3f)));
}

/** Decodes `\uXXXX` at `*p`, or the two of a surrogate pair, and moves `*p` to the next
 *  character. */
static bool numbered_character(const char **p, struct buf *out)
{
    unsigned code = hex4(*p + 2), low;

    *p += 6;
    if (code >= 0xd800 && code < 0xdc00 && (*p)[0] == '\\' && (*p)[1] == 'u') {
        low = hex4(*p + 2);
        if (low < 0xdc00 || low > 0xdfff)
            return false;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        *p += 6;
    }
    if (code >= 0xd800 && code <= 0xdfff)
        return false;
    put_character(out, code);
    return true;
}

bool js_decode_string(struct buf *out, const char *text, size_t len)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *p = text + 1, *end = text + len - 1;

    while (p < end) {
        if (*p != '\\') {
            buf_char(out, *p++);
        } else if (p[1] == 'u') {
            if (!numbered_character(&p, out))
                return false;
        } else {
            buf_char(out, meanings[strchr(letters, p[1]) - letters]);
            p += 2;
        }
    }
    return true;
}
