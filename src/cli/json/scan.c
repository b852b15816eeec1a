/*
 * The JSON scanner: it checks a text against RFC 8259 and builds nothing.
 *
 * It refuses mistakes that many readers accept (a leading zero, a control character in a string,
 * bytes after the value), because the text is passed to other programs as JSON. It never fails for
 * lack of memory, and JSON_DEPTH bounds its recursion.
 */
#include "json.h"

#include <string.h>

struct scan {
    const char *p, *end, *start;
    struct buf *compact;
    struct js_error *error;
    int depth;
};

static bool fail(struct scan *s, const char *what)
{
    s->error->what = what;
    s->error->at = (size_t)(s->p - s->start);
    return false;
}

static void skip_space(struct scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r'))
        s->p++;
}

static void keep(struct scan *s, const char *from)
{
    if (s->compact != NULL)
        buf_add(s->compact, from, (size_t)(s->p - from));
}

static bool at(const struct scan *s, char c)
{
    return s->p < s->end && *s->p == c;
}

/** Consumes the character if it is next. */
static bool take(struct scan *s, char c)
{
    if (!at(s, c))
        return false;
    s->p++;
    keep(s, s->p - 1);
    return true;
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool string(struct scan *s)
{
    const char *from = s->p++;

    for (;;) {
        if (s->p == s->end)
            return fail(s, "a string has no end");
        if ((unsigned char)*s->p < 0x20)
            return fail(s, "a control character stands in a string");
        if (*s->p == '"')
            break;
        if (*s->p == '\\') {
            s->p++;
            if (s->p == s->end || strchr("\"\\/bfnrtu", *s->p) == NULL || *s->p == '\0')
                return fail(s, "a backslash is followed by an unknown letter");
            if (*s->p == 'u') {
                for (int i = 0; i < 4; i++) {
                    s->p++;
                    if (s->p == s->end || !is_hex(*s->p))
                        return fail(s, "\\u is not followed by four hexadecimal digits");
                }
            }
        }
        s->p++;
    }
    s->p++;
    keep(s, from);
    return true;
}

static bool digits(struct scan *s)
{
    const char *from = s->p;

    while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
        s->p++;
    return s->p > from || fail(s, "a digit was expected");
}

static bool number(struct scan *s)
{
    const char *from = s->p;

    if (at(s, '-'))
        s->p++;
    if (at(s, '0')) {
        s->p++;
        if (s->p < s->end && *s->p >= '0' && *s->p <= '9')
            return fail(s, "a number begins with a zero");
    } else if (!digits(s)) {
        return false;
    }
    if (at(s, '.')) {
        s->p++;
        if (!digits(s))
            return false;
    }
    if (at(s, 'e') || at(s, 'E')) {
        s->p++;
        if (at(s, '+') || at(s, '-'))
            s->p++;
        if (!digits(s))
            return false;
    }
    keep(s, from);
    return true;
}

static bool word(struct scan *s, const char *text)
{
    const char *from = s->p;
    size_t n = strlen(text);

    if ((size_t)(s->end - s->p) < n || memcmp(s->p, text, n) != 0)
        return fail(s, "a value was expected");
    s->p += n;
    keep(s, from);
    return true;
}

static bool value(struct scan *s);

static bool members(struct scan *s)
{
    take(s, '{');
    skip_space(s);
    if (take(s, '}'))
        return true;
    do {
        skip_space(s);
        if (!at(s, '"'))
            return fail(s, "a key in quotes was expected");
        if (!string(s))
            return false;
        skip_space(s);
        if (!take(s, ':'))
            return fail(s, "a colon was expected");
        if (!value(s))
            return false;
    } while (take(s, ','));
    return take(s, '}') || fail(s, "a comma or } was expected");
}

static bool elements(struct scan *s)
{
    take(s, '[');
    skip_space(s);
    if (take(s, ']'))
        return true;
    do {
        if (!value(s))
            return false;
    } while (take(s, ','));
    return take(s, ']') || fail(s, "a comma or ] was expected");
}

/** Scans one value and the white space around it. */
static bool value(struct scan *s)
{
    bool ok;

    skip_space(s);
    if (s->p == s->end)
        return fail(s, "a value was expected");
    switch (*s->p) {
    case '{':
    case '[':
        if (s->depth == JSON_DEPTH)
            return fail(s, "it is nested more than 64 deep");
        s->depth++;
        ok = *s->p == '{' ? members(s) : elements(s);
        s->depth--;
        break;
    case '"':
        ok = string(s);
        break;
    case 't':
        ok = word(s, "true");
        break;
    case 'f':
        ok = word(s, "false");
        break;
    case 'n':
        ok = word(s, "null");
        break;
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9':
        ok = number(s);
        break;
    default:
        return fail(s, "a value was expected");
    }
    if (ok)
        skip_space(s);
    return ok;
}

bool js_valid(const char *text, size_t len, struct buf *compact, struct js_error *error)
{
    struct js_error unread = {0};
    struct scan s = {.p = text,
                     .end = text + len,
                     .start = text,
                     .compact = compact,
                     .error = error ? error : &unread};

    if (!value(&s))
        return false;
    if (s.p != s.end)
        return fail(&s, "something follows the value");
    /* Everything outside strings is ASCII by now, so an error is in a string. */
    if (!lh_text_ok(text, len)) {
        s.p = s.start;
        return fail(&s, "it is not valid UTF-8");
    }
    return true;
}
