/* stream.c: cutting an output stream to its limit. */
#include "rules/stream.h"

/* The number of bytes at the end that begin a UTF-8 character but do not complete it. */
static size_t half_character(const unsigned char *bytes, size_t len)
{
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        unsigned char c = bytes[len - back];
        if (c < 0x80 || c >= 0xf8) /* not part of a multi-byte character */
            return 0;
        if (c >= 0xc0) {
            size_t whole = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
            return whole > back ? back : 0;
        }
    }
    return 0;
}

/* The number of bytes at the start that continue a UTF-8 character that began earlier. */
static size_t rest_of_character(const unsigned char *bytes, size_t len)
{
    size_t n = 0;

    while (n < 3 && n < len && (bytes[n] & 0xc0U) == 0x80)
        n++;
    return n;
}

static int64_t bytes_of(const lh_stream *stream)
{
    int64_t kept = (int64_t)(stream->head_len + stream->tail_len);
    return stream->bytes > kept ? stream->bytes : kept;
}

lh_stream lhi_stream_cut(const lh_stream *stream, int64_t most)
{
    lh_stream out = *stream;
    size_t room = (size_t)most;

    out.bytes = bytes_of(stream);
    if (out.head_len + out.tail_len > room) {
        size_t quarter = room / 4;
        if (out.tail_len == 0) { /* the head is the whole stream, so the tail is its end */
            out.tail = (const char *)out.head + out.head_len;
            out.head_len = out.head_len < quarter ? out.head_len : quarter;
            out.tail_len = room - out.head_len;
            out.tail = (const char *)out.tail - out.tail_len;
        }
        out.head_len = out.head_len < quarter ? out.head_len : quarter;
        if (out.tail_len > room - out.head_len) {
            size_t drop = out.tail_len - (room - out.head_len);
            out.tail = (const char *)out.tail + drop;
            out.tail_len -= drop;
        }
    }
    if ((int64_t)(out.head_len + out.tail_len) < out.bytes) {
        out.head_len -= half_character(out.head, out.head_len);
        size_t drop = rest_of_character(out.tail, out.tail_len);
        out.tail = drop > 0 ? (const char *)out.tail + drop : out.tail;
        out.tail_len -= drop;
    }
    return out;
}
