/*
 * zone.c: the offset of a time zone from UTC at any moment.
 *
 * A zone file (RFC 8536) lists the moments at which the offset changes, and ends with a rule for the
 * time after the last of them. The file may be damaged, so every number in it is checked before it
 * is used.
 */
#include "base/zone.h"

#include "base/mem.h"

#include <leasehold.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DAY = 86400,
    MOST_OFFSET = 26 * 3600, /* no zone is further from UTC */
    MOST_BYTES = 256 << 10,  /* no zone file is larger */
    MOST_NAME = 64,
    MOST_CHANGES = 4096,
};

/* When a rule changes the offset: the day, and the second of that day by the clock before the change. */
struct change {
    char
        kind; /* 'M': weekday of a week of a month; 'J': day of the year without a leap day; 'D': with it */
    int month, week, day;
    int64_t time;
};

struct lhi_zone {
    size_t n;
    int64_t *at;     /* the moments of change, ascending */
    int64_t *offset; /* the offset from each of these moments on */
    int64_t before;  /* the offset before the first change */
    /* The rule for the time after the last change. */
    bool has_rule, has_summer;
    int64_t standard, summer;
    struct change begin, end; /* of summer time */
};

/* ---- the calendar ---- */

int64_t lhi_days_from_civil(int64_t year, int month, int day)
{
    /* Years are counted from 1 March, so the leap day is the last day of its year. */
    int64_t y = month <= 2 ? year - 1 : year;
    int64_t m = month <= 2 ? month + 9 : month - 3;
    int64_t era = (y >= 0 ? y : y - 399) / 400;
    int64_t of_era = y - era * 400;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + (m * 153 + 2) / 5 + day - 1 -
           719468;
}

void lhi_civil_from_days(int64_t days, int64_t *year, int *month, int *day)
{
    int64_t z = days + 719468;
    int64_t era = (z >= 0 ? z : z - 146096) / 146097;
    int64_t of_era = z - era * 146097;
    int64_t y = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * y + y / 4 - y / 100);
    int64_t m = (5 * of_year + 2) / 153;

    *day = (int)(of_year - (153 * m + 2) / 5) + 1;
    *month = (int)(m < 10 ? m + 3 : m - 9);
    *year = y + era * 400 + (*month <= 2 ? 1 : 0);
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0 ? 1 : 0);
}

static bool leap_year(int64_t year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

/* ---- the rule at the end: "CET-1CEST,M3.5.0,M10.5.0/3" ---- */

static bool parse_number(const char **p, int64_t min, int64_t max, int64_t *out)
{
    int64_t value = 0;
    const char *start = *p;

    for (; **p >= '0' && **p <= '9' && *p - start < 8; (*p)++)
        value = value * 10 + (**p - '0');
    *out = value;
    return *p > start && value >= min && value <= max;
}

/* Parse hh[:mm[:ss]] with an optional sign. */
static bool parse_time(const char **p, int64_t *out)
{
    int64_t sign = 1, hours, minutes = 0, seconds = 0;

    if (**p == '-' || **p == '+')
        sign = *(*p)++ == '-' ? -1 : 1;
    if (!parse_number(p, 0, 167, &hours))
        return false;
    if (**p == ':') {
        (*p)++;
        if (!parse_number(p, 0, 59, &minutes))
            return false;
        if (**p == ':') {
            (*p)++;
            if (!parse_number(p, 0, 59, &seconds))
                return false;
        }
    }
    *out = sign * (hours * 3600 + minutes * 60 + seconds);
    return true;
}

/* Skip the abbreviation of a zone: letters, or any text in angle brackets. */
static bool skip_letters(const char **p)
{
    const char *start = *p;

    if (**p == '<') {
        *p += strcspn(*p, ">");
        return *(*p)++ == '>';
    }
    while ((**p >= 'A' && **p <= 'Z') || (**p >= 'a' && **p <= 'z'))
        (*p)++;
    return *p - start >= 3;
}

static bool parse_change(const char **p, struct change *out)
{
    int64_t month = 0, week = 0, day = 0;

    if (*(*p)++ != ',')
        return false;
    out->kind = **p == 'M' || **p == 'J' ? *(*p)++ : 'D';
    if (out->kind == 'M') {
        if (!parse_number(p, 1, 12, &month) || *(*p)++ != '.' || !parse_number(p, 1, 5, &week) ||
            *(*p)++ != '.' || !parse_number(p, 0, 6, &day))
            return false;
    } else if (!parse_number(p, out->kind == 'J' ? 1 : 0, 365, &day)) {
        return false;
    }
    out->month = (int)month;
    out->week = (int)week;
    out->day = (int)day;
    out->time = 2 * INT64_C(3600);
    if (**p != '/')
        return true;
    (*p)++;
    return parse_time(p, &out->time);
}

static bool parse_rule(const char *p, struct lhi_zone *zone)
{
    if (!skip_letters(&p) || !parse_time(&p, &zone->standard))
        return false;
    zone->standard = -zone->standard; /* POSIX counts offsets west of UTC as positive */
    zone->has_rule = true;
    if (*p == '\0')
        return true;
    zone->has_summer = true;
    zone->summer = zone->standard + 3600;
    if (!skip_letters(&p))
        return false;
    if (*p != ',') {
        if (!parse_time(&p, &zone->summer))
            return false;
        zone->summer = -zone->summer;
    }
    return parse_change(&p, &zone->begin) && parse_change(&p, &zone->end) && *p == '\0';
}

/* The moment of a change in a given year; `offset` is the offset before it. */
static int64_t change_in(const struct change *change, int64_t year, int64_t offset)
{
    int64_t day;

    if (change->kind == 'M') {
        int64_t first = lhi_days_from_civil(year, change->month, 1);
        int64_t next = change->month == 12 ? lhi_days_from_civil(year + 1, 1, 1)
                                           : lhi_days_from_civil(year, change->month + 1, 1);
        int64_t weekday = ((first + 4) % 7 + 7) % 7; /* 1970-01-01 was a Thursday */
        day = first + (change->day - weekday + 7) % 7 + (change->week - 1) * INT64_C(7);
        while (day >= next)
            day -= 7;
    } else {
        day = lhi_days_from_civil(year, 1, 1) + change->day;
        if (change->kind == 'J')
            day -= change->day >= 60 && leap_year(year) ? 0 : 1;
    }
    return day * DAY + change->time - offset;
}

static int64_t offset_by_rule(const struct lhi_zone *zone, int64_t utc, int64_t *until)
{
    int64_t year, last = INT64_MIN, offset = zone->standard;
    int month, day;

    *until = INT64_MAX;
    if (!zone->has_summer)
        return offset;
    lhi_civil_from_days(floor_div(utc, DAY), &year, &month, &day);
    for (int64_t y = year - 1; y <= year + 1; y++) {
        const int64_t begin = change_in(&zone->begin, y, zone->standard);
        const int64_t end = change_in(&zone->end, y, zone->summer);
        /* If summer time lasts all year, its end is the beginning of the next one. */
        if (begin <= utc && begin >= last) {
            last = begin;
            offset = zone->summer;
        }
        if (end <= utc && end >= last) {
            last = end;
            offset = zone->standard;
        }
        if (begin > utc && begin < *until)
            *until = begin;
        if (end > utc && end < *until)
            *until = end;
    }
    return offset;
}

/* ---- the file ---- */

static int64_t big_endian(const unsigned char *p, size_t len)
{
    uint64_t value = (p[0] & 0x80) != 0 ? UINT64_MAX : 0;
    for (size_t i = 0; i < len; i++)
        value = value << 8 | p[i];
    return (int64_t)value;
}

/* The counts of a header. They determine the size of the data after it. */
struct counts {
    size_t is_ut, is_std, leaps, times, types, letters;
};

static bool read_header(const unsigned char *p, size_t left, struct counts *c)
{
    if (left < 44 || memcmp(p, "TZif", 4) != 0)
        return false;
    size_t *const fields[] = {&c->is_ut, &c->is_std, &c->leaps, &c->times, &c->types, &c->letters};
    for (size_t i = 0; i < 6; i++) {
        int64_t value = big_endian(p + 20 + 4 * i, 4);
        if (value < 0 || value > MOST_CHANGES)
            return false;
        *fields[i] = (size_t)value;
    }
    return c->types > 0;
}

static size_t body_size(const struct counts *c, size_t width)
{
    return c->times * (width + 1) + c->types * 6 + c->letters + c->leaps * (width + 4) + c->is_std +
           c->is_ut;
}

static bool offset_of_type(const unsigned char *types, size_t n, size_t type, int64_t *out)
{
    if (type >= n)
        return false;
    *out = big_endian(types + type * 6, 4);
    return *out > -MOST_OFFSET && *out < MOST_OFFSET;
}

static bool read_changes(const unsigned char *p, const struct counts *c, size_t width,
                         struct lhi_zone *zone)
{
    const unsigned char *kinds = p + c->times * width, *types = kinds + c->times;

    if (!offset_of_type(types, c->types, 0, &zone->before))
        return false;
    for (size_t i = 0; i < c->times; i++) {
        zone->at[i] = big_endian(p + i * width, width);
        if (!offset_of_type(types, c->types, kinds[i], &zone->offset[i]) ||
            (i > 0 && zone->at[i] <= zone->at[i - 1]))
            return false;
    }
    zone->n = c->times;
    return true;
}

/* The rule is the text between the last two newlines of the file. */
static bool read_rule(const unsigned char *p, size_t left, struct lhi_zone *zone)
{
    char text[128];

    if (left < 2 || p[0] != '\n' || p[left - 1] != '\n' || left - 2 >= sizeof text)
        return false;
    memcpy(text, p + 1, left - 2);
    text[left - 2] = '\0';
    return text[0] == '\0' || parse_rule(text, zone);
}

static bool read_zone(const unsigned char *p, size_t len, struct lhi_zone *zone, bool *no_memory)
{
    struct counts c;
    size_t width = 4;

    if (p == NULL || !read_header(p, len, &c))
        return false;
    if (p[4] != '\0') { /* from version 2 on, a second header has the same data in 64 bits */
        size_t skip = 44 + body_size(&c, 4);
        if (skip > len || !read_header(p + skip, len - skip, &c))
            return false;
        p += skip;
        len -= skip;
        width = 8;
    }
    size_t body = body_size(&c, width);
    if (len - 44 < body)
        return false;
    zone->at = lhi_calloc(c.times + 1, sizeof *zone->at);
    zone->offset = lhi_calloc(c.times + 1, sizeof *zone->offset);
    *no_memory = zone->at == NULL || zone->offset == NULL;
    return !*no_memory && read_changes(p + 44, &c, width, zone) &&
           (width == 4 || read_rule(p + 44 + body, len - 44 - body, zone));
}

/* ---- loading a zone ---- */

/* Is it a path below the folder of zones that cannot leave it? */
static bool zone_name_ok(const char *name)
{
    size_t len = strnlen(name, MOST_NAME + 1);

    if (len == 0 || len > MOST_NAME || name[0] == '/')
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = name[i];
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '+' || c == '-' || c == '/'))
            return false;
    }
    return true;
}

static int no_such_zone(const char *name, const char *folder, struct lhi_error *err)
{
    return lhi_fail(err, LH_EINVAL,
                    "time zone \"%.80s\" is unknown: UTC, or a name below %.200s like "
                    "Europe/Berlin is allowed",
                    name, folder);
}

/* Read the whole file. LH_EINVAL: it does not exist, or is no zone file. */
static int read_file(const char *path, unsigned char **out, size_t *len, struct lhi_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return LH_EINVAL;
    if (fd < 0)
        return lhi_fail_errno(err, errno, "could not open time zone file \"%.300s\"", path);
    int rc = LH_EINVAL;
    unsigned char *bytes = NULL;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size <= MOST_BYTES)
        rc = (bytes = lhi_malloc((size_t)st.st_size)) != NULL ? LH_OK : lhi_no_memory(err);
    if (rc == LH_OK) {
        ssize_t got = read(fd, bytes, (size_t)st.st_size);
        if (got == st.st_size) {
            *out = bytes;
            *len = (size_t)got;
        } else {
            rc = lhi_fail_errno(err, got < 0 ? errno : EIO,
                                "could not read time zone file \"%.300s\"", path);
            lhi_free(bytes);
        }
    }
    close(fd);
    return rc;
}

int lhi_zone_load(const char *name, struct lhi_zone **out, struct lhi_error *err)
{
    const char *folder = secure_getenv("TZDIR");
    char path[4200];
    unsigned char *bytes = NULL;
    size_t len = 0;
    bool no_memory = false;

    if (folder == NULL || folder[0] == '\0')
        folder = "/usr/share/zoneinfo";
    if (!zone_name_ok(name))
        return no_such_zone(name, folder, err);
    struct lhi_zone *zone = lhi_calloc(1, sizeof *zone);
    if (zone == NULL)
        return lhi_no_memory(err);
    int rc = LH_OK;
    if (strcmp(name, "UTC") != 0) {
        lhi_format(path, sizeof path, "%s/%s", folder, name);
        rc = read_file(path, &bytes, &len, err);
        if (rc == LH_OK && !read_zone(bytes, len, zone, &no_memory))
            rc = no_memory ? lhi_no_memory(err) : LH_EINVAL;
        if (rc == LH_EINVAL)
            rc = no_such_zone(name, folder, err);
        lhi_free(bytes);
    }
    if (rc == LH_OK)
        *out = zone;
    else
        lhi_zone_free(zone);
    return rc;
}

void lhi_zone_free(struct lhi_zone *zone)
{
    if (zone == NULL)
        return;
    lhi_free(zone->at);
    lhi_free(zone->offset);
    lhi_free(zone);
}

/* ---- offsets ---- */

int64_t lhi_zone_offset(const struct lhi_zone *zone, int64_t utc, int64_t *until)
{
    size_t low = 0, high = zone->n; /* the number of changes up to `utc` */

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (zone->at[middle] <= utc)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == zone->n && zone->has_rule)
        return offset_by_rule(zone, utc, until);
    *until = low < zone->n ? zone->at[low] : INT64_MAX;
    return low > 0 ? zone->offset[low - 1] : zone->before;
}

int64_t lhi_zone_moment(const struct lhi_zone *zone, int64_t local)
{
    int64_t utc = local - MOST_OFFSET, until;

    /* Walk from change to change, starting before the earliest possible moment, and return the first moment
     * at which clocks show `local` or later. */
    for (;;) {
        int64_t there = local - lhi_zone_offset(zone, utc, &until);
        if (there <= utc)
            return utc;
        if (there < until)
            return there;
        utc = until;
    }
}
