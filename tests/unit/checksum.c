/* The checksum of payloads: damage changes it. */
#include "base/checksum.h"
#include "harness/harness.h"

#include <string.h>

static void fill(unsigned char *bytes, size_t len)
{
    uint32_t x = 12345;
    for (size_t i = 0; i < len; i++) {
        x = x * 1664525 + 1013904223;
        bytes[i] = (unsigned char)(x >> 24);
    }
}

TEST(any_flipped_bit_changes_the_checksum)
{
    unsigned char bytes[200];
    fill(bytes, sizeof bytes);
    for (size_t len = 1; len <= sizeof bytes; len += len < 40 ? 1 : 37) {
        int64_t sum = lhi_checksum(bytes, len);
        for (size_t bit = 0; bit < len * 8; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1U << bit % 8);
            EXPECT(lhi_checksum(bytes, len) != sum);
            bytes[bit / 8] ^= (unsigned char)(1U << bit % 8);
        }
        EXPECT_EQ(lhi_checksum(bytes, len), sum);
    }
}

TEST(any_changed_byte_changes_the_checksum)
{
    unsigned char bytes[33];
    fill(bytes, sizeof bytes);
    int64_t sum = lhi_checksum(bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) {
        unsigned char was = bytes[i];
        for (int other = 0; other < 256; other++) {
            bytes[i] = (unsigned char)other;
            EXPECT_EQ(lhi_checksum(bytes, sizeof bytes) == sum, other == was);
        }
        bytes[i] = was;
    }
}

TEST(a_lost_or_added_byte_changes_the_checksum_even_if_it_is_zero)
{
    unsigned char zeroes[64] = {0};
    for (size_t a = 0; a <= sizeof zeroes; a++)
        for (size_t b = 0; b < a; b++)
            EXPECT(lhi_checksum(zeroes, a) != lhi_checksum(zeroes, b));
}

TEST(swapped_words_change_the_checksum)
{
    unsigned char bytes[64], swapped[64];
    fill(bytes, sizeof bytes);
    for (size_t a = 0; a < 8; a++)
        for (size_t b = 0; b < a; b++) {
            memcpy(swapped, bytes, sizeof bytes);
            memcpy(swapped + a * 8, bytes + b * 8, 8);
            memcpy(swapped + b * 8, bytes + a * 8, 8);
            EXPECT(lhi_checksum(swapped, 64) != lhi_checksum(bytes, 64));
        }
}

TEST(the_checksum_is_part_of_the_format_and_does_not_change)
{
    /* The checksums of a store that an older version wrote must still match. */
    unsigned char bytes[20];
    fill(bytes, sizeof bytes);
    EXPECT_EQ(lhi_checksum(NULL, 0), lhi_checksum("x", 0));
    EXPECT_EQ(lhi_checksum(NULL, 0), INT64_C(-6375526866282551356));
    EXPECT_EQ(lhi_checksum("hello", 5), INT64_C(-241512169387428869));
    EXPECT_EQ(lhi_checksum(bytes, sizeof bytes), INT64_C(-8748950500350632131));
}

TEST(the_checksum_does_not_depend_on_alignment)
{
    unsigned char bytes[64 + 8];
    unsigned char plain[64];
    fill(plain, sizeof plain);
    int64_t sum = lhi_checksum(plain, sizeof plain);
    for (size_t shift = 0; shift < 8; shift++) {
        memcpy(bytes + shift, plain, sizeof plain);
        EXPECT_EQ(lhi_checksum(bytes + shift, sizeof plain), sum);
    }
}
