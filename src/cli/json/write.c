/*
 * The JSON writer: values, keys and lines.
 */
#include "json.h"

#include <inttypes.h>
#include <string.h>

#include "cli/output/text.h"

static void comma(struct js *json)
{
    char last = json->buf.n > 0 ? json->buf.p[json->buf.n - 1] : '{';

    if (last != '{' && last != '[' && last != ':')
        buf_char(&json->buf, ',');
}

void js_open(struct js *json, char bracket)
{
    comma(json);
    buf_char(&json->buf, bracket);
}

void js_close(struct js *json, char bracket)
{
    buf_char(&json->buf, bracket);
}

/** The length of the UTF-8 character at `p`; 0: invalid. */
static size_t character(const char *p)
{
    unsigned char c = (unsigned char)*p;
    size_t n = c < 0x80                ? 1
               : c >= 0xc2 && c < 0xe0 ? 2
               : c >= 0xe0 && c < 0xf0 ? 3
               : c >= 0xf0 && c < 0xf5 ? 4
                                       : 0;

    if (n == 0 || strnlen(p, n) < n || !lh_text_ok(p, n))
        return 0;
    return n;
}

static void quoted(struct buf *buf, const char *text)
{
    static const char *const special = "\"\\\b\f\n\r\t";
    static const char *const letter = "\"\\bfnrt";

    buf_char(buf, '"');
    for (const char *p = text; *p != '\0';) {
        unsigned char c = (unsigned char)*p;
        const char *found = strchr(special, *p);
        size_t n;
        if (found != NULL) {
            buf_char(buf, '\\');
            buf_char(buf, letter[found - special]);
            p++;
        } else if (c < 0x20 || c == 0x7f) {
            buf_format(buf, "\\u%04x", (unsigned)c);
            p++;
        } else if ((n = character(p)) > 0) {
            buf_add(buf, p, n);
            p += n;
        } else {
            buf_text(
                buf,
                "\xef\xbf\xbd"); /* replace an invalid byte by U+FFFD, to keep the line valid JSON */
            p++;
        }
    }
    buf_char(buf, '"');
}

void js_key(struct js *json, const char *key)
{
    comma(json);
    quoted(&json->buf, key);
    buf_char(&json->buf, ':');
}

void js_null(struct js *json)
{
    js_raw(json, "null", 4);
}

void js_int(struct js *json, int64_t value)
{
    comma(json);
    buf_format(&json->buf, "%" PRId64, value);
}

void js_int_or_null(struct js *json, int64_t value, int64_t none)
{
    if (value == none)
        js_null(json);
    else
        js_int(json, value);
}

void js_bool(struct js *json, bool value)
{
    js_raw(json, value ? "true" : "false", value ? 4 : 5);
}

void js_text(struct js *json, const char *text)
{
    if (text == NULL) {
        js_null(json);
        return;
    }
    comma(json);
    quoted(&json->buf, text);
}

void js_time(struct js *json, int64_t ms)
{
    char text[64];

    js_text(json, ms == 0 ? NULL : lh_time_format(ms, text, sizeof text));
}

void js_raw(struct js *json, const char *text, size_t len)
{
    comma(json);
    buf_add(&json->buf, text, len);
}

void js_key_int(struct js *json, const char *key, int64_t value)
{
    js_key(json, key);
    js_int(json, value);
}

void js_key_bool(struct js *json, const char *key, bool value)
{
    js_key(json, key);
    js_bool(json, value);
}

void js_key_text(struct js *json, const char *key, const char *text)
{
    js_key(json, key);
    js_text(json, text);
}

void js_key_time(struct js *json, const char *key, int64_t ms)
{
    js_key(json, key);
    js_time(json, ms);
}

void js_key_value(struct js *json, const char *key, const char *text)
{
    struct buf compact = {0};

    js_key(json, key);
    if (text != NULL && js_valid(text, strlen(text), &compact, NULL))
        js_raw(json, compact.p, compact.n);
    else
        js_text(json, text);
    buf_clear(&compact);
}

/* Characters beyond ASCII occur in strings only, where each may be written as an escape. */
static void put_number(struct buf *out, uint32_t code)
{
    if (code < 0x10000)
        buf_format(out, "\\u%04x", (unsigned)code);
    else
        buf_format(out, "\\u%04x\\u%04x", 0xd800 + (unsigned)((code - 0x10000) >> 10),
                   0xdc00 + (unsigned)((code - 0x10000) & 0x3ff));
}

void js_end_line(struct js *json)
{
    struct buf safe = {0};
    size_t done = 0;
    uint32_t code = 0;

    for (size_t i = 0, n; i < json->buf.n; i += n) {
        unsigned char c = (unsigned char)json->buf.p[i];
        n = c < 0x7f ? 1 : text_character(json->buf.p + i, json->buf.n - i, &code);
        if (n == 0 || c < 0x7f || !text_is_control(code)) {
            n = n == 0 ? 1 : n;
            continue;
        }
        buf_add(&safe, json->buf.p + done, i - done);
        put_number(&safe, code);
        done = i + n;
    }
    if (done > 0) {
        buf_add(&safe, json->buf.p + done, json->buf.n - done);
        buf_clear(&json->buf);
        json->buf = safe;
    }
    buf_char(&json->buf, '\n');
}

void js_line(struct js *json)
{
    js_end_line(json);
    fwrite(json->buf.p, 1, json->buf.n, stdout);
    buf_reset(&json->buf);
}

void js_clear(struct js *json)
{
    buf_clear(&json->buf);
}
