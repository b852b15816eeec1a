/*
 * Base64 (RFC 4648, with padding), for payloads in JSON that are not text.
 */
#include "json.h"

/* An array without a terminating zero: a search must not find that zero. */
static const char alphabet[64] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(struct buf *out, const void *bytes, size_t len)
{
    const unsigned char *in = bytes;

    for (size_t i = 0; i < len; i += 3) {
        size_t left = len - i;
        unsigned group = (unsigned)in[i] << 16;
        char four[4];
        if (left > 1)
            group |= (unsigned)in[i + 1] << 8;
        if (left > 2)
            group |= in[i + 2];
        four[0] = alphabet[group >> 18];
        four[1] = alphabet[group >> 12 & 63];
        four[2] = left > 1 ? alphabet[group >> 6 & 63] : '=';
        four[3] = left > 2 ? alphabet[group & 63] : '=';
        buf_add(out, four, sizeof four);
    }
}

bool base64_decode(struct buf *out, const char *text, size_t len)
{
    if (len % 4 != 0)
        return false;
    for (size_t i = 0; i < len; i += 4) {
        size_t pad = 0;
        unsigned group = 0;
        if (i + 4 == len)
            pad = text[i + 3] != '=' ? 0 : text[i + 2] != '=' ? 1 : 2;
        for (size_t k = 0; k < 4 - pad; k++) {
            unsigned six = 0;
            while (six < 64 && alphabet[six] != text[i + k])
                six++;
            if (six == 64)
                return false;
            group |= six << (18 - 6 * k);
        }
        /* Unused bits must be zero, so that each sequence of bytes has one encoding. */
        if ((pad == 1 && (group & 0xff) != 0) || (pad == 2 && (group & 0xffff) != 0))
            return false;
        for (size_t k = 0; k < 3 - pad; k++)
            buf_char(out, (char)(group >> (16 - 8 * k) & 0xff));
    }
    return true;
}
