/* Parsing and writing durations and times; checking names and UTF-8. */
#include "base/text.h"
#include "harness/harness.h"

#include <stdio.h>
#include <string.h>

/* ---- durations ---- */

static int64_t duration(const char *text)
{
    int64_t ms = -77;
    if (lh_duration_parse(text, &ms) != LH_OK)
        FAIL("expected: \"%s\" is a duration", text);
    return ms;
}

TEST(a_duration_is_a_number_with_a_unit)
{
    EXPECT_EQ(duration("250ms"), 250);
    EXPECT_EQ(duration("30s"), 30000);
    EXPECT_EQ(duration("5m"), 300000);
    EXPECT_EQ(duration("2h"), 7200000);
    EXPECT_EQ(duration("14d"), INT64_C(1209600000));
    EXPECT_EQ(duration("0s"), 0);
    EXPECT_EQ(duration("007s"), 7000);
}

TEST(a_duration_may_have_several_parts_from_large_to_small)
{
    EXPECT_EQ(duration("1h30m"), 5400000);
    EXPECT_EQ(duration("1d2h3m4s5ms"), 93784005);
    EXPECT_EQ(duration("1m500ms"), 60500);
    EXPECT_EQ(duration("90m"), duration("1h30m"));
}

TEST(what_is_not_a_duration_is_refused_and_leaves_the_output_alone)
{
    static const char *const bad[] = {
        "",     "5",     "s",     "ms",   "5x",    "5 s",  " 5s",   "5s ",  "-5s",      "+5s",
        "5S",   "1.5h",  "30m1h", "1h1h", "5sm",   "5mss", "1h30",  "5s5s", "5ms5s",    "0x5s",
        "1e3s", "5d-1h", "٣s",    "5s\n", "5days", "inf",  "1h 5m", "m5",   "1h30m30m", "5hm"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t ms = -77;
        if (lh_duration_parse(bad[i], &ms) != LH_EINVAL)
            FAIL("expected: \"%s\" is no duration", bad[i]);
        EXPECT_EQ(ms, -77);
    }
    int64_t ms = -77;
    EXPECT_STATUS(lh_duration_parse(NULL, &ms), LH_EINVAL);
}

TEST(a_duration_too_large_to_count_is_refused)
{
    int64_t ms = 0;
    EXPECT_EQ(duration("9223372036854775807ms"), INT64_MAX);
    EXPECT_STATUS(lh_duration_parse("9223372036854775808ms", &ms), LH_EINVAL);
    EXPECT_STATUS(lh_duration_parse("9223372036854775807s", &ms), LH_EINVAL);
    EXPECT_STATUS(lh_duration_parse("106751991168d", &ms), LH_EINVAL);
    EXPECT_STATUS(lh_duration_parse("106751991167d24h", &ms), LH_EINVAL);
    EXPECT_STATUS(lh_duration_parse("99999999999999999999999s", &ms), LH_EINVAL);
}

static void expect_duration_text(int64_t ms, const char *wanted)
{
    char buf[64];
    EXPECT_STR(lh_duration_format(ms, buf, sizeof buf), wanted);
}

TEST(a_duration_is_written_with_its_two_largest_units)
{
    expect_duration_text(0, "0s");
    expect_duration_text(-5, "0s");
    expect_duration_text(1, "1ms");
    expect_duration_text(999, "999ms");
    expect_duration_text(1000, "1s");
    expect_duration_text(60000, "1m");
    expect_duration_text(90000, "1m30s");
    expect_duration_text(300000, "5m");
    expect_duration_text(5400000, "1h30m");
    expect_duration_text(INT64_C(1209600000), "14d");
    expect_duration_text(INT64_C(86400000) * 3 + 3600000 * 4 + 60000 * 5, "3d4h");
}

TEST(a_written_duration_is_parsed_to_the_same_value)
{
    static const int64_t whole[] = {1,       17,      999,     1000,     59000,    60000,     61000,
                                    3599000, 3600000, 3660000, 86400000, 90000000, 1209600000};
    char buf[64];
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        EXPECT_EQ(duration(lh_duration_format(whole[i], buf, sizeof buf)), whole[i]);
}

TEST(a_duration_is_cut_to_its_buffer_and_not_beyond)
{
    char buf[8];
    for (size_t len = 0; len <= sizeof buf; len++) {
        memset(buf, '#', sizeof buf);
        EXPECT(lh_duration_format(5400000, buf, len) == buf);
        for (size_t i = len; i < sizeof buf; i++)
            EXPECT_EQ(buf[i], '#');
        if (len > 0)
            EXPECT(memchr(buf, '\0', len) != NULL);
    }
}

/* ---- times ---- */

static int64_t moment(const char *text)
{
    int64_t ms = -77;
    if (lh_time_parse(text, &ms) != LH_OK)
        FAIL("expected: \"%s\" is a time", text);
    return ms;
}

TEST(a_time_is_rfc_3339_with_a_zone)
{
    EXPECT_EQ(moment("1970-01-01T00:00:00Z"), 0);
    EXPECT_EQ(moment("2026-01-15T10:30:00Z"), INT64_C(1768473000000));
    EXPECT_EQ(moment("2026-01-15T10:30:00.5Z"), INT64_C(1768473000500));
    EXPECT_EQ(moment("2026-01-15T10:30:00.123Z"), INT64_C(1768473000123));
    EXPECT_EQ(moment("2026-01-15T10:30:00.123999999Z"), INT64_C(1768473000123));
    EXPECT_EQ(moment("2026-01-15 10:30:00Z"), INT64_C(1768473000000));
    EXPECT_EQ(moment("2001-09-09T01:46:40Z"), INT64_C(1000000000000));
    EXPECT_EQ(moment("2038-01-19T03:14:08Z"), INT64_C(2147483648000));
    EXPECT_EQ(moment("9999-12-31T23:59:59.999Z"), INT64_C(253402300799999));
}

TEST(a_zone_moves_the_time)
{
    int64_t utc = moment("2026-01-15T10:30:00Z");
    EXPECT_EQ(moment("2026-01-15T11:30:00+01:00"), utc);
    EXPECT_EQ(moment("2026-01-15T05:00:00-05:30"), utc);
    EXPECT_EQ(moment("2026-01-16T00:30:00+14:00"), utc);
    EXPECT_EQ(moment("2026-01-14T22:30:00-12:00"), utc);
    EXPECT_EQ(moment("2026-01-15T10:30:00+00:00"), utc);
    EXPECT_EQ(moment("2026-01-15T10:30:00-00:00"), utc);
}

TEST(leap_years_have_their_day_and_others_do_not)
{
    int64_t ms;
    EXPECT_EQ(moment("2024-03-01T00:00:00Z") - moment("2024-02-29T00:00:00Z"), 86400000);
    EXPECT_EQ(moment("2024-02-29T00:00:00Z") - moment("2024-02-28T00:00:00Z"), 86400000);
    EXPECT_EQ(moment("2023-03-01T00:00:00Z") - moment("2023-02-28T00:00:00Z"), 86400000);
    EXPECT_EQ(moment("2000-03-01T00:00:00Z") - moment("2000-02-29T00:00:00Z"), 86400000);
    EXPECT_EQ(moment("2100-03-01T00:00:00Z") - moment("2100-02-28T00:00:00Z"), 86400000);
    EXPECT_STATUS(lh_time_parse("2023-02-29T00:00:00Z", &ms), LH_EINVAL);
    EXPECT_STATUS(lh_time_parse("2100-02-29T00:00:00Z", &ms), LH_EINVAL);
    EXPECT_EQ(moment("2025-01-01T00:00:00Z") - moment("2024-01-01T00:00:00Z"),
              INT64_C(366) * 86400000);
    EXPECT_EQ(moment("2026-01-01T00:00:00Z") - moment("2025-01-01T00:00:00Z"),
              INT64_C(365) * 86400000);
}

TEST(what_is_not_a_time_is_refused_and_leaves_the_output_alone)
{
    static const char *const bad[] = {
        "",
        "now",
        "2026-01-15",
        "2026-01-15T10:30:00", /* no zone */
        "2026-01-15T10:30Z",
        "2026-01-15T10:30:00.Z",
        "2026-01-15T10:30:00.0000000000Z",
        "2026-01-15T10:30:00z",
        "2026-01-15T10:30:00ZZ",
        "2026-01-15T10:30:00Z ",
        " 2026-01-15T10:30:00Z",
        "2026-01-15T10:30:00+1:00",
        "2026-01-15T10:30:00+0100",
        "2026-01-15T10:30:00+01",
        "2026-01-15T10:30:00+24:00",
        "2026-01-15T10:30:00+01:60",
        "2026-01-15T10:30:00+01:00Z",
        "2026-13-15T10:30:00Z",
        "2026-00-15T10:30:00Z",
        "2026-01-32T10:30:00Z",
        "2026-01-00T10:30:00Z",
        "2026-04-31T10:30:00Z",
        "2026-01-15T24:00:00Z",
        "2026-01-15T10:60:00Z",
        "2026-01-15T10:30:60Z",
        "2026-01-15x10:30:00Z",
        "2026/01/15T10:30:00Z",
        "26-01-15T10:30:00Z",
        "1969-12-31T23:59:59Z",
        "1768473000",
        "2026-01-15T10:30:00 UTC",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t ms = -77;
        if (lh_time_parse(bad[i], &ms) != LH_EINVAL)
            FAIL("expected: \"%s\" is no time", bad[i]);
        EXPECT_EQ(ms, -77);
    }
    int64_t ms = -77;
    EXPECT_STATUS(lh_time_parse(NULL, &ms), LH_EINVAL);
}

TEST(a_time_is_written_in_utc_with_milliseconds)
{
    char buf[40];
    EXPECT_STR(lh_time_format(0, buf, sizeof buf), "1970-01-01T00:00:00.000Z");
    EXPECT_STR(lh_time_format(INT64_C(1768473000007), buf, sizeof buf), "2026-01-15T10:30:00.007Z");
    EXPECT_STR(lh_time_format(-1, buf, sizeof buf), "1969-12-31T23:59:59.999Z");
    EXPECT_STR(lh_time_format(-1000, buf, sizeof buf), "1969-12-31T23:59:59.000Z");
}

TEST(a_written_time_is_parsed_to_the_same_value)
{
    char buf[40];
    int64_t step = INT64_C(86400000) * 17 + 12345677; /* steps that reach every month and hour */
    for (int64_t ms = 0; ms < INT64_C(253402300800000); ms += step * 31)
        EXPECT_EQ(moment(lh_time_format(ms, buf, sizeof buf)), ms);
    for (int64_t day = 0; day < 366 * 9; day++) { /* every day from 2019 to 2028 */
        int64_t ms = INT64_C(1546300800000) + day * 86400000;
        EXPECT_EQ(moment(lh_time_format(ms, buf, sizeof buf)), ms);
    }
}

TEST(a_time_is_cut_to_its_buffer_and_not_beyond)
{
    char buf[40];
    for (size_t len = 0; len <= 25; len++) {
        memset(buf, '#', sizeof buf);
        EXPECT(lh_time_format(0, buf, len) == buf);
        EXPECT_EQ(buf[len], '#');
        if (len > 0)
            EXPECT(memchr(buf, '\0', len) != NULL);
    }
}

/* ---- names ---- */

TEST(a_name_has_only_the_allowed_characters)
{
    char name[3] = "xx";
    EXPECT(lh_name_ok("AZaz09._:@-"));
    EXPECT(lh_name_ok("-"));
    EXPECT(!lh_name_ok(""));
    EXPECT(!lh_name_ok(NULL));
    for (int c = 1; c < 256; c++) {
        bool allowed = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                       strchr("._:@-", c) != NULL;
        name[1] = (char)c;
        EXPECT_EQ(lh_name_ok(name), allowed);
    }
}

TEST(a_name_has_at_most_128_bytes)
{
    char name[130] = {0};
    memset(name, 'n', 128);
    EXPECT(lh_name_ok(name));
    name[128] = 'n';
    EXPECT(!lh_name_ok(name));
    EXPECT(lhi_name_ok_n(name, 128));
    EXPECT(!lhi_name_ok_n(name, 129));
    EXPECT(!lhi_name_ok_n(name, 0));
    EXPECT(!lhi_name_ok_n("a\0b", 3));
}

/* ---- UTF-8 ---- */

TEST(text_is_utf_8_without_a_zero_byte)
{
    EXPECT(lh_text_ok("", 0));
    EXPECT(lh_text_ok("plain\t\n\x7f", 8));
    EXPECT(!lh_text_ok("\0", 1));
    EXPECT(!lh_text_ok("a\0b", 3));
    EXPECT(lh_text_ok("\xc2\x80", 2));
    EXPECT(lh_text_ok("\xdf\xbf", 2));
    EXPECT(lh_text_ok("\xe0\xa0\x80", 3));
    EXPECT(lh_text_ok("\xed\x9f\xbf", 3));
    EXPECT(lh_text_ok("\xee\x80\x80", 3));
    EXPECT(lh_text_ok("\xef\xbf\xbf", 3));
    EXPECT(lh_text_ok("\xf0\x90\x80\x80", 4));
    EXPECT(lh_text_ok("\xf4\x8f\xbf\xbf", 4));
    EXPECT(!lh_text_ok("\x80", 1));
    EXPECT(!lh_text_ok("\xbf", 1));
    EXPECT(!lh_text_ok("\xc2", 1));
    EXPECT(!lh_text_ok("\xc2 ", 2));
    EXPECT(!lh_text_ok("\xe2\x82", 2));
    EXPECT(!lh_text_ok("\xf0\x9f\x90", 3));
    EXPECT(!lh_text_ok("\xc0\x80", 2)); /* overlong */
    EXPECT(!lh_text_ok("\xc1\xbf", 2));
    EXPECT(!lh_text_ok("\xe0\x9f\xbf", 3));
    EXPECT(!lh_text_ok("\xf0\x8f\xbf\xbf", 4));
    EXPECT(!lh_text_ok("\xed\xa0\x80", 3)); /* surrogates */
    EXPECT(!lh_text_ok("\xed\xbf\xbf", 3));
    EXPECT(!lh_text_ok("\xf4\x90\x80\x80", 4)); /* beyond U+10FFFF */
    EXPECT(!lh_text_ok("\xf5\x80\x80\x80", 4));
    EXPECT(!lh_text_ok("\xff", 1));
}

static size_t encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

TEST(every_character_is_text_and_every_surrogate_is_not)
{
    char bytes[4];
    for (uint32_t c = 1; c <= 0x110fff; c++) {
        size_t len = encode(c, bytes);
        bool valid = c <= 0x10ffff && !(c >= 0xd800 && c <= 0xdfff);
        if (lh_text_ok(bytes, len) != valid)
            FAIL("U+%04X is judged wrong", (unsigned)c);
        if (len > 1 && lh_text_ok(bytes, len - 1))
            FAIL("U+%04X without its last byte is taken as text", (unsigned)c);
    }
}
