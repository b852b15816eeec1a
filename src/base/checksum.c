/* checksum.c: the checksum of payloads and rows. */
#include "base/checksum.h"

#include <string.h>

static uint64_t step(uint64_t sum, uint64_t word)
{
    sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return sum ^ (sum >> 32);
}

int64_t lhi_checksum(const void *bytes, size_t len)
{
    const unsigned char *p = bytes;
    uint64_t sum = step(UINT64_C(0x6c65617365686f6c), len);
    uint64_t word;
    int64_t out;

    for (; len >= sizeof word; p += sizeof word, len -= sizeof word) {
        memcpy(&word, p, sizeof word);
        sum = step(sum, word);
    }
    if (len > 0) {
        word = 0;
        memcpy(&word, p, len);
        sum = step(sum, word);
    }
    memcpy(&out, &sum, sizeof out);
    return out;
}
