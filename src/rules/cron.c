/*
 * cron.c: parsing a schedule, and its instants.
 *
 * A schedule with a fixed hour names times of day. Each of them runs once a day: a time that clocks skip
 * runs when they continue, and a time that clocks show twice runs the first time. A schedule for every hour
 * runs in every hour that passes, also in one that is repeated.
 */
#include "rules/cron.h"

#include "rules/limits.h"

#include <string.h>

enum {
    HOUR = 3600,
    DAY = 86400,
    CYCLE_DAYS = 146097, /* 400 years, after which the calendar repeats */
    MOST_TEXT = 256,
    LEAST_EVERY_MS = 1000,
    ALL_HOURS = (1 << 24) - 1,
};

/* ---- parsing ---- */

static const struct field {
    const char *what;
    int min, max;
    const char *names; /* three letters each, the first is `min` */
    const char *allowed;
} fields[5] = {
    {"minute", 0, 59, NULL, "0 to 59"},
    {"hour", 0, 23, NULL, "0 to 23"},
    {"day of month", 1, 31, NULL, "1 to 31"},
    {"month", 1, 12, "janfebmaraprmayjunjulaugsepoctnovdec", "1 to 12 or jan to dec"},
    {"day of week", 0, 7, "sunmontuewedthufrisat", "0 to 7 (0 and 7 are Sunday) or sun to sat"},
};

static int bad_field(const struct field *field, const char *text, size_t len, struct lhi_error *err)
{
    return lhi_fail(err, LH_EINVAL,
                    "%s \"%.*s\" of the schedule is not understood: *, %s, ranges (a-b), steps "
                    "(*/n, a-b/n) and lists of these (a,b) are allowed",
                    field->what, (int)(len < 60 ? len : 60), text, field->allowed);
}

/* Parse a number or one of the names. */
static bool parse_value(const struct field *field, const char **p, const char *end, int *out)
{
    int value = 0, digits = 0;

    for (; *p < end && **p >= '0' && **p <= '9' && digits < 3; (*p)++, digits++)
        value = value * 10 + (**p - '0');
    if (digits > 0) {
        *out = value;
        return value >= field->min && value <= field->max;
    }
    if (field->names == NULL || end - *p < 3)
        return false;
    const char *name = field->names;
    for (int i = 0; *name != '\0'; i++, name += 3)
        if (strncasecmp(*p, name, 3) == 0) {
            *p += 3;
            *out = field->min + i;
            return true;
        }
    return false;
}

/* Parse one item of a list: a value, a range or a star, perhaps with a step. */
static bool parse_item(const struct field *field, const char *p, const char *end, uint64_t *bits)
{
    int low = field->min, high = field->max, step = 1;
    bool wide = true;

    if (p < end && *p == '*') {
        p++;
    } else {
        if (!parse_value(field, &p, end, &low))
            return false;
        high = low;
        wide = p < end && *p == '-';
        if (wide && (p++, !parse_value(field, &p, end, &high)))
            return false;
    }
    if (p < end && *p == '/') {
        const struct field steps = {.min = 1, .max = field->max};
        /* "5/15" is refused: some programs read it as "5-59/15", others as "5". */
        if (!wide || (p++, !parse_value(&steps, &p, end, &step)))
            return false;
    }
    if (p != end || low > high)
        return false;
    for (int value = low; value <= high; value += step)
        *bits |= UINT64_C(1) << value;
    return true;
}

static int parse_field(const struct field *field, const char *text, size_t len, uint64_t *bits,
                       struct lhi_error *err)
{
    const char *p = text, *end = text + len;

    *bits = 0;
    for (;;) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        if (!parse_item(field, p, comma ? comma : end, bits))
            return bad_field(field, text, len, err);
        if (comma == NULL)
            return LH_OK;
        p = comma + 1;
    }
}

static int parse_fields(const char *text, struct lhi_cron *out, struct lhi_error *err)
{
    uint64_t bits[5];
    bool star[5];
    int n = 0;

    for (const char *p = text; *(p += strspn(p, " \t")) != '\0'; n++) {
        size_t len = strcspn(p, " \t");
        if (n < 5) {
            int rc = parse_field(&fields[n], p, len, &bits[n], err);
            if (rc != LH_OK)
                return rc;
            star[n] = *p == '*';
        }
        p += len;
    }
    if (n != 5)
        return lhi_fail(err, LH_EINVAL,
                        "schedule \"%.200s\" has %d fields: minute, hour, day of month, month, day "
                        "of week are needed, or @hourly, @daily, @weekly, @monthly, @yearly, "
                        "@every 5m",
                        text, n);
    out->minutes = bits[0];
    out->hours = (uint32_t)bits[1];
    out->days = (uint32_t)bits[2];
    out->months = (uint32_t)bits[3];
    out->weekdays = (uint32_t)(bits[4] | bits[4] >> 7) & 0x7f;
    out->any_day = star[2];
    out->any_weekday = star[4];
    return LH_OK;
}

static int parse_every(const char *text, struct lhi_cron *out, struct lhi_error *err)
{
    text += strspn(text, " \t");
    if (lh_duration_parse(text, &out->every_ms) == LH_OK && out->every_ms >= LEAST_EVERY_MS &&
        out->every_ms <= LHI_MAX_EVERY_MS)
        return LH_OK;
    return lhi_fail(err, LH_EINVAL,
                    "@every \"%.60s\" of the schedule is not allowed: 1s to 3650d, written like "
                    "30s, 5m or 1h30m",
                    text);
}

int lhi_cron_parse(const char *text, struct lhi_cron *out, struct lhi_error *err)
{
    static const struct {
        const char *word, *line;
    } words[] = {
        {"@yearly", "0 0 1 1 *"}, {"@annually", "0 0 1 1 *"}, {"@monthly", "0 0 1 * *"},
        {"@weekly", "0 0 * * 0"}, {"@daily", "0 0 * * *"},    {"@midnight", "0 0 * * *"},
        {"@hourly", "0 * * * *"},
    };

    *out = (struct lhi_cron){0};
    if (strnlen(text, MOST_TEXT + 1) > MOST_TEXT)
        return lhi_fail(err, LH_EINVAL, "schedule is too long: at most %d bytes are allowed",
                        MOST_TEXT);
    if (strncmp(text, "@every", 6) == 0 && (text[6] == ' ' || text[6] == '\t'))
        return parse_every(text + 6, out, err);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(text, words[i].word) == 0)
            return parse_fields(words[i].line, out, err);
    if (text[0] == '@')
        return lhi_fail(err, LH_EINVAL,
                        "schedule \"%.60s\" is unknown: @hourly, @daily, @weekly, @monthly, "
                        "@yearly, @every 5m or five fields are allowed",
                        text);
    return parse_fields(text, out, err);
}

/* ---- days ---- */

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0 ? 1 : 0);
}

static bool day_matches(const struct lhi_cron *cron, int64_t days)
{
    int64_t year;
    int month, day;
    unsigned weekday = (unsigned)(((days + 4) % 7 + 7) % 7); /* 1970-01-01 was a Thursday */

    lhi_civil_from_days(days, &year, &month, &day);
    if ((cron->months >> month & 1) == 0)
        return false;
    bool by_day = (cron->days >> day & 1) != 0, by_weekday = (cron->weekdays >> weekday & 1) != 0;
    return cron->any_day || cron->any_weekday ? by_day && by_weekday : by_day || by_weekday;
}

/* Find the first matching day, from *days on. False: there is none. */
static bool find_day(const struct lhi_cron *cron, int64_t *days)
{
    for (int64_t end = *days + CYCLE_DAYS; *days <= end; (*days)++)
        if (day_matches(cron, *days))
            return true;
    return false;
}

/* ---- schedules with fixed hours ---- */

/* The first instant of this day after `after`, at local time `local` or later; -1: there is none. */
static int64_t next_on_day(const struct lhi_cron *cron, const struct lhi_zone *zone, int64_t days,
                           int64_t local, int64_t after)
{
    int64_t from = local > days * DAY ? local - days * DAY : 0;

    for (int hour = (int)(from / HOUR); hour < 24; hour++)
        for (int minute = 0; (cron->hours >> hour & 1) != 0 && minute < 60; minute++) {
            if ((cron->minutes >> minute & 1) == 0)
                continue;
            int64_t at = lhi_zone_moment(zone, days * DAY + (hour * 60 + minute) * INT64_C(60));
            if (at > after)
                return at;
        }
    return -1;
}

static int64_t next_time_of_day(const struct lhi_cron *cron, const struct lhi_zone *zone,
                                int64_t after)
{
    /* Local times up to the present one have already run. */
    int64_t until, local = after + lhi_zone_offset(zone, after, &until);

    for (int64_t days = floor_div(local, DAY); find_day(cron, &days); days++) {
        int64_t at = next_on_day(cron, zone, days, local, after);
        if (at >= 0)
            return at;
    }
    return -1;
}

/* ---- schedules for every hour ---- */

static int64_t next_of_every_hour(const struct lhi_cron *cron, const struct lhi_zone *zone,
                                  int64_t after)
{
    int64_t until, utc = after + 1;

    for (;;) {
        int64_t offset = lhi_zone_offset(zone, utc, &until);
        int64_t local = utc + offset, days = floor_div(local, DAY), day = days;
        if (!find_day(cron, &day))
            return -1;
        if (day > days)
            local = day * DAY;
        local = floor_div(local + 59, 60) * 60; /* the next whole minute */
        if (floor_div(local, DAY) != day) {
            utc = local - offset;
            if (utc > until)
                utc = until;
            continue;
        }
        int64_t hour = floor_div(local, HOUR) * HOUR;
        int minute = (int)((local - hour) / 60);
        while (minute < 60 && (cron->minutes >> minute & 1) == 0)
            minute++;
        local = hour + minute * INT64_C(60); /* 60: the next hour */
        if (local - offset >= until)
            utc = until; /* clocks are changed before that */
        else if (minute < 60)
            return local - offset;
        else
            utc = local - offset;
    }
}

int64_t lhi_cron_next(const struct lhi_cron *cron, const struct lhi_zone *zone, int64_t after)
{
    if (cron->every_ms > 0)
        return after + cron->every_ms;
    int64_t seconds = floor_div(after, 1000);
    int64_t at = cron->hours == ALL_HOURS ? next_of_every_hour(cron, zone, seconds)
                                          : next_time_of_day(cron, zone, seconds);
    return at < 0 ? -1 : at * 1000;
}
