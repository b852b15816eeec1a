/* text.c: parsing and writing durations and times; checking names and UTF-8. */
#include <leasehold.h>

#include "base/error.h"
#include "base/text.h"
#include "base/zone.h"

#include <string.h>
#include <time.h>

static const struct unit {
    const char *name;
    int64_t ms;
} units[] = {{"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};

enum { N_UNITS = sizeof units / sizeof units[0] };

static bool parse_digits(const char **p, int64_t *out)
{
    int64_t value = 0;
    const char *start = *p;
    for (; **p >= '0' && **p <= '9'; (*p)++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, **p - '0', &value))
            return false;
    *out = value;
    return *p > start;
}

int lh_duration_parse(const char *text, int64_t *ms)
{
    int64_t total = 0;
    int last_unit = -1;
    const char *p = text;

    if (text == NULL || *text == '\0')
        return LH_EINVAL;
    while (*p != '\0') {
        int64_t value, part;
        int unit;
        if (!parse_digits(&p, &value))
            return LH_EINVAL;
        size_t len = strspn(p, "dhms");
        for (unit = 0; unit < N_UNITS; unit++)
            if (strlen(units[unit].name) == len && memcmp(units[unit].name, p, len) == 0)
                break;
        /* Each unit may appear once, from large to small: "30m1h" is refused. */
        if (unit == N_UNITS || unit <= last_unit)
            return LH_EINVAL;
        if (__builtin_mul_overflow(value, units[unit].ms, &part) ||
            __builtin_add_overflow(total, part, &total))
            return LH_EINVAL;
        last_unit = unit;
        p += len;
    }
    *ms = total;
    return LH_OK;
}

char *lh_duration_format(int64_t ms, char *buf, size_t len)
{
    size_t used = 0;

    if (len == 0)
        return buf;
    if (ms <= 0) {
        lhi_format(buf, len, "0s");
        return buf;
    }
    buf[0] = '\0';
    /* Write the two largest units only: 3d4h, 5m10s. */
    int parts = 0;
    for (int i = 0; i < N_UNITS && parts < 2 && used + 1 < len; i++) {
        int64_t n = ms / units[i].ms;
        if (n == 0) {
            if (parts > 0)
                break;
            continue;
        }
        if (parts > 0 && units[i].ms == 1)
            break;
        used += lhi_format(buf + used, len - used, "%lld%s", (long long)n, units[i].name);
        ms -= n * units[i].ms;
        parts++;
    }
    return buf;
}

static bool two_digits(const char *p, int min, int max, int *out)
{
    if (p[0] < '0' || p[0] > '9' || p[1] < '0' || p[1] > '9')
        return false;
    *out = (p[0] - '0') * 10 + (p[1] - '0');
    return *out >= min && *out <= max;
}

static bool leap_year(int year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static int days_in_month(int year, int month)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return days[month - 1] + (month == 2 && leap_year(year));
}

int lh_time_parse(const char *text, int64_t *ms)
{
    int century, yy, month, day, hour, minute, second;
    int64_t frac = 0;

    if (text == NULL || strlen(text) < 20)
        return LH_EINVAL;
    if (!two_digits(text, 19, 99, &century) || !two_digits(text + 2, 0, 99, &yy) ||
        text[4] != '-' || !two_digits(text + 5, 1, 12, &month) || text[7] != '-' ||
        !two_digits(text + 8, 1, 31, &day) || (text[10] != 'T' && text[10] != ' ') ||
        !two_digits(text + 11, 0, 23, &hour) || text[13] != ':' ||
        !two_digits(text + 14, 0, 59, &minute) || text[16] != ':' ||
        !two_digits(text + 17, 0, 59, &second))
        return LH_EINVAL;
    int year = century * 100 + yy;
    if (year < 1970 || day > days_in_month(year, month))
        return LH_EINVAL;
    const char *p = text + 19;
    if (*p == '.') {
        int digits = 0;
        for (p++; *p >= '0' && *p <= '9'; p++, digits++)
            if (digits < 3)
                frac = frac * 10 + (*p - '0');
        if (digits == 0 || digits > 9)
            return LH_EINVAL;
        for (; digits < 3; digits++)
            frac *= 10;
    }
    int64_t offset = 0;
    if (*p == 'Z') {
        p++;
    } else if (*p == '+' || *p == '-') {
        int oh, om;
        if (strlen(p) != 6 || p[3] != ':' || !two_digits(p + 1, 0, 23, &oh) ||
            !two_digits(p + 4, 0, 59, &om))
            return LH_EINVAL;
        offset = (*p == '-' ? -1 : 1) * ((int64_t)oh * 60 + om);
        p += 6;
    } else {
        return LH_EINVAL; /* a time without a zone is ambiguous */
    }
    if (*p != '\0')
        return LH_EINVAL;
    int64_t days = lhi_days_from_civil(year, month, day);
    *ms = (((days * 24 + hour) * 60 + minute - offset) * 60 + second) * 1000 + frac;
    return LH_OK;
}

char *lh_time_format(int64_t ms, char *buf, size_t len)
{
    int64_t seconds = ms / 1000 - (ms % 1000 < 0);
    time_t t = (time_t)seconds;
    struct tm tm;

    if (len == 0)
        return buf;
    if (gmtime_r(&t, &tm) == NULL) {
        buf[0] = '\0';
        return buf;
    }
    lhi_format(buf, len, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", tm.tm_year + 1900, tm.tm_mon + 1,
               tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)(ms - seconds * 1000));
    return buf;
}

bool lhi_name_ok_n(const char *name, size_t len)
{
    if (len < 1 || len > LHI_NAME_MAX)
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = name[i];
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
              c == '.' || c == '_' || c == ':' || c == '@' || c == '-'))
            return false;
    }
    return true;
}

bool lh_name_ok(const char *name)
{
    return name != NULL && lhi_name_ok_n(name, strnlen(name, LHI_NAME_MAX + 1));
}

/* The length of the well-formed UTF-8 sequence at p (no overlong forms, no surrogates); 0: there is none. */
static size_t utf8_sequence(const unsigned char *p, size_t left)
{
    unsigned char c = p[0];
    size_t n;
    unsigned char low = 0x80, high = 0xbf;

    if (c < 0x80)
        return 1;
    if (c >= 0xc2 && c <= 0xdf)
        n = 2;
    else if (c >= 0xe0 && c <= 0xef)
        n = 3;
    else if (c >= 0xf0 && c <= 0xf4)
        n = 4;
    else
        return 0;
    if (c == 0xe0)
        low = 0xa0;
    else if (c == 0xed)
        high = 0x9f;
    else if (c == 0xf0)
        low = 0x90;
    else if (c == 0xf4)
        high = 0x8f;
    if (n > left || p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < n; i++)
        if (p[i] < 0x80 || p[i] > 0xbf)
            return 0;
    return n;
}

#define HIGH_BITS UINT64_C(0x8080808080808080)
#define LOW_BITS UINT64_C(0x0101010101010101)

bool lh_text_ok(const void *bytes, size_t len)
{
    const unsigned char *p = bytes;

    for (size_t i = 0; i < len;) {
        uint64_t word;
        /* Check eight bytes at a time while they are ASCII: no high bit, no zero byte. */
        if (len - i >= sizeof word) {
            memcpy(&word, p + i, sizeof word);
            if ((word & HIGH_BITS) == 0 && ((word - LOW_BITS) & ~word & HIGH_BITS) == 0) {
                i += sizeof word;
                continue;
            }
        }
        size_t n = p[i] == 0 ? 0 : utf8_sequence(p + i, len - i);
        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

size_t lhi_text_cut(const char *text, size_t most)
{
    size_t len = strnlen(text, most + 1);

    if (len <= most)
        return len;
    len = most;
    while (len > 0 && ((unsigned char)text[len] & 0xC0U) == 0x80)
        len--;
    return len;
}
