/*
 * Schedules as pure functions: what a line means, and when it is due.
 *
 * The expected instants come from libc: minute after minute through localtime_r(), with $TZ set in this
 * process. Random lines are generated together with their meaning, so the parser is tested too.
 */
#include "harness/harness.h"

#include "rules/cron.h"
#include "rules/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { MINUTE = 60, HOUR = 3600, DAY = 86400 };

/* ---- helpers ---- */

static int64_t ms_of(const char *time)
{
    int64_t ms = 0;
    if (lh_time_parse(time, &ms) != LH_OK)
        FAIL("\"%s\" is no time", time);
    return ms;
}

static struct lhi_timing *timing_of(const char *line, const char *zone)
{
    struct lhi_timing *timing = NULL;
    struct lhi_error err;
    lhi_error_clear(&err);
    if (lhi_timing_open(line, zone, &timing, &err) != LH_OK)
        FAIL("%s: %s", line, err.text);
    return timing;
}

/* The next `n` instants after `after`, as text. */
static const char *instants(const char *line, const char *zone, const char *after, int n)
{
    static char text[1024];
    struct lhi_timing *timing = timing_of(line, zone);
    int64_t at = ms_of(after);
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < n && (at = lhi_timing_next(timing, at)) >= 0; i++) {
        char one[40];
        lh_time_format(at, one, sizeof one);
        used += lhi_format(text + used, sizeof text - used, "%s%.16s", i ? " " : "", one);
    }
    lhi_timing_close(timing);
    return text;
}

static void expect_refused(const char *line, const char *says)
{
    struct lhi_cron cron;
    struct lhi_error err;
    lhi_error_clear(&err);
    EXPECT_STATUS(lhi_cron_parse(line, &cron, &err), LH_EINVAL);
    EXPECT_CONTAINS(err.text, says);
}

/* ---- what a line means ---- */

TEST(a_schedule_runs_at_its_minutes_hours_days_and_months)
{
    EXPECT_STR(instants("*/20 * * * *", NULL, "2026-01-15T10:30:00Z", 3),
               "2026-01-15T10:40 2026-01-15T11:00 2026-01-15T11:20");
    EXPECT_STR(instants("5 4 * * *", NULL, "2026-01-15T04:05:00Z", 2),
               "2026-01-16T04:05 2026-01-17T04:05");
    EXPECT_STR(instants("0 9-17/4 * * *", NULL, "2026-01-15T10:00:00Z", 3),
               "2026-01-15T13:00 2026-01-15T17:00 2026-01-16T09:00");
    EXPECT_STR(instants("0 0 1 jan,JUL *", NULL, "2026-01-15T10:00:00Z", 2),
               "2026-07-01T00:00 2027-01-01T00:00");
    EXPECT_STR(instants("0 12 * * mon-fri", NULL, "2026-01-16T12:00:00Z", 2),
               "2026-01-19T12:00 2026-01-20T12:00");
    EXPECT_STR(instants("1,31 8,9 * * *", NULL, "2026-01-15T08:31:00Z", 2),
               "2026-01-15T09:01 2026-01-15T09:31");
}

TEST(the_next_instant_is_after_the_given_moment_never_at_it)
{
    EXPECT_STR(instants("0 * * * *", NULL, "2026-01-15T10:59:59.999Z", 1), "2026-01-15T11:00");
    EXPECT_STR(instants("0 * * * *", NULL, "2026-01-15T11:00:00Z", 1), "2026-01-15T12:00");
    EXPECT_STR(instants("0 11 * * *", NULL, "2026-01-15T10:59:59.999Z", 1), "2026-01-15T11:00");
    EXPECT_STR(instants("0 11 * * *", NULL, "2026-01-15T11:00:00Z", 1), "2026-01-16T11:00");
}

TEST(zero_and_seven_are_both_sunday)
{
    EXPECT_STR(instants("0 0 * * 0", NULL, "2026-01-15T00:00:00Z", 1), "2026-01-18T00:00");
    EXPECT_STR(instants("0 0 * * 7", NULL, "2026-01-15T00:00:00Z", 1), "2026-01-18T00:00");
    EXPECT_STR(instants("0 0 * * sun", NULL, "2026-01-15T00:00:00Z", 1), "2026-01-18T00:00");
    EXPECT_STR(instants("0 0 * * 6-7", NULL, "2026-01-15T00:00:00Z", 2),
               "2026-01-17T00:00 2026-01-18T00:00");
}

TEST(day_of_month_or_day_of_week_must_match_unless_one_begins_with_a_star)
{
    EXPECT_STR(instants("0 0 13 * 5", NULL, "2026-02-10T00:00:00Z", 3),
               "2026-02-13T00:00 2026-02-20T00:00 2026-02-27T00:00");
    EXPECT_STR(instants("0 0 15 * 1", NULL, "2026-01-12T00:00:00Z", 2),
               "2026-01-15T00:00 2026-01-19T00:00");
    EXPECT_STR(instants("0 0 15 * *", NULL, "2026-01-15T00:00:00Z", 1), "2026-02-15T00:00");
    EXPECT_STR(instants("0 0 */2 * 1", NULL, "2026-01-05T00:00:00Z", 2),
               "2026-01-19T00:00 2026-02-09T00:00"); /* odd Mondays */
}

TEST(shorthands_mean_the_documented_lines)
{
    EXPECT_STR(instants("@hourly", NULL, "2026-01-15T10:30:00Z", 1), "2026-01-15T11:00");
    EXPECT_STR(instants("@daily", NULL, "2026-01-15T10:30:00Z", 1), "2026-01-16T00:00");
    EXPECT_STR(instants("@weekly", NULL, "2026-01-15T10:30:00Z", 1), "2026-01-18T00:00");
    EXPECT_STR(instants("@monthly", NULL, "2026-01-15T10:30:00Z", 1), "2026-02-01T00:00");
    EXPECT_STR(instants("@yearly", NULL, "2026-01-15T10:30:00Z", 1), "2027-01-01T00:00");
    EXPECT_STR(instants("@every 90m", NULL, "2026-01-15T10:30:00Z", 2),
               "2026-01-15T12:00 2026-01-15T13:30");
}

TEST(a_schedule_for_a_leap_day_waits_for_it)
{
    EXPECT_STR(instants("0 0 29 2 *", NULL, "2026-01-15T00:00:00Z", 2),
               "2028-02-29T00:00 2032-02-29T00:00");
    EXPECT_STR(instants("0 0 29 2 *", NULL, "2096-03-01T00:00:00Z", 1), "2104-02-29T00:00");
}

TEST(a_schedule_that_never_runs_has_no_next_instant)
{
    EXPECT_STR(instants("0 0 30 2 *", NULL, "2026-01-15T00:00:00Z", 1), "");
    EXPECT_STR(instants("* * 31 4,6,9,11 *", NULL, "2026-01-15T00:00:00Z", 1), "");
    EXPECT_STR(instants("0 0 30 2 1", NULL, "2026-01-15T00:00:00Z", 1), "2026-02-02T00:00");
}

/* ---- what is refused ---- */

TEST(the_refusal_of_a_bad_field_names_it_and_its_value)
{
    expect_refused("60 * * * *", "minute \"60\" of the schedule is not understood: *, 0 to 59");
    expect_refused("* 24 * * *", "hour \"24\"");
    expect_refused("* * 0 * *", "day of month \"0\"");
    expect_refused("* * 32 * *", "day of month \"32\"");
    expect_refused("* * * 13 *",
                   "month \"13\" of the schedule is not understood: *, 1 to 12 or jan");
    expect_refused("* * * * 8", "day of week \"8\"");
    expect_refused("* * * janu *", "month \"janu\"");
    expect_refused("* * * * m", "day of week \"m\"");
    expect_refused("5-1 * * * *", "minute \"5-1\"");
    expect_refused("*/0 * * * *", "minute \"*/0\"");
    expect_refused("*/60 * * * *", "minute \"*/60\"");
    expect_refused("5/15 * * * *", "minute \"5/15\"");
    expect_refused("1,,2 * * * *", "minute \"1,,2\"");
    expect_refused(", * * * *", "minute \",\"");
    expect_refused("1- * * * *", "minute \"1-\"");
    expect_refused("-1 * * * *", "minute \"-1\"");
    expect_refused("+1 * * * *", "minute \"+1\"");
    expect_refused("1.5 * * * *", "minute \"1.5\"");
    expect_refused("** * * * *", "minute \"**\"");
    expect_refused("*-5 * * * *", "minute \"*-5\"");
    expect_refused("000 * * * *x", "day of week \"*x\"");
    expect_refused("0000 * * * *", "minute \"0000\"");
}

TEST(a_line_of_other_than_five_fields_is_refused)
{
    expect_refused("", "has 0 fields");
    expect_refused("   ", "has 0 fields");
    expect_refused("* * * *", "schedule \"* * * *\" has 4 fields");
    expect_refused("* * * * * *", "has 6 fields");
    expect_refused("@reboot", "schedule \"@reboot\" is unknown");
    expect_refused("@Daily", "is unknown");
    expect_refused("@every", "is unknown");
    expect_refused("@every5m", "is unknown");
}

TEST(an_interval_is_one_second_to_ten_years)
{
    struct lhi_cron cron;
    struct lhi_error err;
    expect_refused("@every 999ms", "@every \"999ms\" of the schedule is not allowed: 1s to 3650d");
    expect_refused("@every 3651d", "@every \"3651d\"");
    expect_refused("@every 5", "@every \"5\"");
    expect_refused("@every ", "@every \"\"");
    expect_refused("@every -5m", "@every \"-5m\"");
    expect_refused("@every 5m x", "@every \"5m x\"");
    EXPECT_OK(lhi_cron_parse("@every 1s", &cron, &err));
    EXPECT_OK(lhi_cron_parse("@every 3650d", &cron, &err));
}

TEST(a_schedule_that_is_too_long_is_refused)
{
    char line[400];
    memset(line, '1', sizeof line);
    line[sizeof line - 1] = '\0';
    expect_refused(line, "schedule is too long");
}

TEST(the_refusal_of_an_unknown_zone_names_it)
{
    static const char *const names[] = {
        "Mars/Olympus", "",          "/etc/passwd",    "../../etc/passwd", "Europe",
        "zone.tab",     "tzdata.zi", "Europe/Berlin ", "Europe/Berlin/x"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct lhi_zone *zone = NULL;
        struct lhi_error err;
        char says[120];
        lhi_error_clear(&err);
        EXPECT_STATUS(lhi_zone_load(names[i], &zone, &err), LH_EINVAL);
        lhi_format(says, sizeof says, "time zone \"%s\" is unknown", names[i]);
        EXPECT_CONTAINS(err.text, says);
    }
}

/* ---- days on which clocks are changed ---- */

TEST(a_time_that_clocks_skip_runs_once_after_the_gap)
{
    /* Berlin, 2026-03-29: 02:00 becomes 03:00, at 01:00 UTC. */
    EXPECT_STR(instants("30 2 * * *", "Europe/Berlin", "2026-03-28T01:00:00Z", 3),
               "2026-03-28T01:30 2026-03-29T01:00 2026-03-30T00:30");
    EXPECT_STR(instants("*/15 2 * * *", "Europe/Berlin", "2026-03-28T02:00:00Z", 2),
               "2026-03-29T01:00 2026-03-30T00:00");
    EXPECT_STR(instants("0,30 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 3),
               "2026-03-29T01:00 2026-03-29T01:30 2026-03-30T00:00");
    /* Apia had no 30 December 2011 at all. */
    EXPECT_STR(instants("0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", 1),
               "2011-12-30T10:00");
}

TEST(a_time_that_occurs_twice_runs_the_first_time)
{
    /* Berlin, 2026-10-25: 03:00 becomes 02:00, at 01:00 UTC. */
    EXPECT_STR(instants("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2),
               "2026-10-25T00:30 2026-10-26T01:30");
    EXPECT_STR(instants("0 2,3 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 3),
               "2026-10-25T00:00 2026-10-25T02:00 2026-10-26T01:00");
}

TEST(a_schedule_for_every_hour_runs_in_a_repeated_hour_too)
{
    EXPECT_STR(instants("30 * * * *", "Europe/Berlin", "2026-10-24T23:00:00Z", 4),
               "2026-10-24T23:30 2026-10-25T00:30 2026-10-25T01:30 2026-10-25T02:30");
    EXPECT_STR(instants("30 * * * *", "Europe/Berlin", "2026-03-28T23:00:00Z", 4),
               "2026-03-28T23:30 2026-03-29T00:30 2026-03-29T01:30 2026-03-29T02:30");
    EXPECT_STR(instants("0 * 25 10 *", "Europe/Berlin", "2026-10-24T21:00:00Z", 1),
               "2026-10-24T22:00");
}

/* ---- against libc ---- */

static uint32_t dice(uint32_t *seed, uint32_t sides)
{
    *seed = *seed * 1664525U + 1013904223U;
    return (*seed >> 8) % sides;
}

/* A line and its meaning. */
struct line {
    char text[200];
    uint64_t bits[5];
    bool star[5];
};

static void make_item(uint32_t *seed, int min, int max, char *text, size_t len, uint64_t *bits)
{
    int span = max - min + 1, low = min + (int)dice(seed, (uint32_t)span), step = 1;
    int high = low + (int)dice(seed, (uint32_t)(max - low + 1));

    switch (dice(seed, 4)) {
    case 0:
        high = low;
        lhi_format(text, len, "%d", low);
        break;
    case 1:
        lhi_format(text, len, "%d-%d", low, high);
        break;
    default:
        step = 1 + (int)dice(seed, (uint32_t)(span / 2));
        lhi_format(text, len, "%d-%d/%d", low, high, step);
    }
    for (int value = low; value <= high; value += step)
        *bits |= UINT64_C(1) << value;
}

static void make_field(uint32_t *seed, int min, int max, uint32_t stars, char *text, size_t len,
                       uint64_t *bits, bool *star)
{
    size_t used = 0;
    int step = 1;

    *bits = 0;
    *star = dice(seed, 10) < stars;
    if (*star) {
        if (dice(seed, 3) == 0) {
            step = 1 + (int)dice(seed, (uint32_t)(max - min));
            lhi_format(text, len, "*/%d", step);
        } else {
            lhi_format(text, len, "*");
        }
        for (int value = min; value <= max; value += step)
            *bits |= UINT64_C(1) << value;
        return;
    }
    for (uint32_t n = 1 + dice(seed, 3), i = 0; i < n; i++) {
        used += lhi_format(text + used, len - used, "%s", i ? "," : "");
        make_item(seed, min, max, text + used, len - used, bits);
        used += strlen(text + used);
    }
}

static struct line make_line(uint32_t *seed)
{
    static const int limits[5][2] = {{0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 7}};
    static const uint32_t stars[5] = {2, 4, 7, 8, 7};
    struct line line = {.text = ""};
    size_t used = 0;

    for (int i = 0; i < 5; i++) {
        used += lhi_format(line.text + used, sizeof line.text - used, "%s", i ? " " : "");
        make_field(seed, limits[i][0], limits[i][1], stars[i], line.text + used,
                   sizeof line.text - used, &line.bits[i], &line.star[i]);
        used += strlen(line.text + used);
    }
    if (line.bits[4] >> 7 & 1)
        line.bits[4] |= 1;
    return line;
}

static bool means(const struct line *line, const struct tm *tm)
{
    bool day = (line->bits[2] >> tm->tm_mday & 1) != 0;
    bool weekday = (line->bits[4] >> tm->tm_wday & 1) != 0;

    return (line->bits[0] >> tm->tm_min & 1) != 0 && (line->bits[1] >> tm->tm_hour & 1) != 0 &&
           (line->bits[3] >> (tm->tm_mon + 1) & 1) != 0 &&
           (line->star[2] || line->star[4] ? day && weekday : day || weekday);
}

/* The local times that libc shows for some days of minutes, in seconds since 1970 as if they were UTC. */
enum { WINDOW = 9 * 1440 };
static int64_t shown[WINDOW];

static void look_at(int64_t from)
{
    for (int i = 0; i < WINDOW; i++) {
        time_t utc = (time_t)(from + (int64_t)i * MINUTE);
        struct tm tm;
        localtime_r(&utc, &tm);
        shown[i] = (int64_t)timegm(&tm);
    }
}

static bool means_at(const struct line *line, int64_t local)
{
    time_t as_utc = (time_t)local;
    struct tm tm;
    gmtime_r(&as_utc, &tm);
    return means(line, &tm);
}

/* Is the line due at minute i? `*latest` is the latest local time so far. */
static bool due_at(const struct line *line, int i, int64_t *latest)
{
    bool due = false;

    if (line->bits[1] == (1 << 24) - 1)
        return means_at(line, shown[i]);
    for (int64_t local = *latest + MINUTE; local <= shown[i] && !due; local += MINUTE)
        due = means_at(line, local);
    if (shown[i] > *latest)
        *latest = shown[i];
    return due;
}

static void compare(const struct line *line, const char *zone, int64_t from)
{
    struct lhi_timing *timing = timing_of(line->text, zone);
    int64_t latest = shown[0] - MINUTE, next = -1;

    for (int i = 0; i < WINDOW; i++) {
        bool due = due_at(line, i, &latest);
        int64_t now = (from + (int64_t)i * MINUTE) * 1000;
        if (i < 2 * 1440) /* from here on all repeated times are known */
            continue;
        if (next < now)
            next = lhi_timing_next(timing, now - 1);
        if (due != (next == now))
            FAIL("\"%s\" in %s is %s at %lld", line->text, zone, due ? "due" : "not due",
                 (long long)now / 1000);
    }
    lhi_timing_close(timing);
}

/* Compare with libc, which knows the zone as `tz`. */
static void compare_in(const char *zone, const char *tz, uint32_t seed, int windows, int lines)
{
    struct lhi_zone *loaded = NULL;
    struct lhi_error err;

    setenv("TZ", tz, 1);
    tzset();
    EXPECT_OK(lhi_zone_load(zone, &loaded, &err));
    for (int w = 0; w < windows; w++) {
        /* 2005 to 2060, mostly where clocks are about to be changed. */
        int64_t at = INT64_C(1104537600) + (int64_t)dice(&seed, 55 * 365) * DAY, until;
        (void)lhi_zone_offset(loaded, at, &until);
        if (until != INT64_MAX && dice(&seed, 4) != 0)
            at = until / DAY * DAY;
        at -= INT64_C(5) * DAY;
        look_at(at);
        for (int i = 0; i < lines; i++) {
            struct line line = make_line(&seed);
            compare(&line, zone, at);
        }
    }
    lhi_zone_free(loaded);
}

TEST_TIMEOUT(every_minute_agrees_with_libc_in_every_kind_of_zone, 60)
{
    static const char *const zones[] = {
        "UTC",
        "Europe/Berlin",
        "Europe/Dublin", /* its standard time is the summer time */
        "America/New_York",
        "America/St_Johns",  /* offset of half an hour; changes one minute past midnight */
        "America/Sao_Paulo", /* changes at midnight, until 2019 */
        "America/Santiago",
        "Africa/Casablanca", /* negative summer time during Ramadan */
        "Asia/Kathmandu",
        "Asia/Gaza",
        "Asia/Tehran",
        "Australia/Lord_Howe", /* summer time of half an hour */
        "Antarctica/Troll",    /* summer time of two hours */
        "Pacific/Chatham",
        "Pacific/Apia",
    };
    for (size_t i = 0; i < sizeof zones / sizeof zones[0]; i++)
        compare_in(zones[i], zones[i], 20260115U + (uint32_t)i, 5, 8);
}

TEST(a_day_that_was_skipped_agrees_with_libc)
{
    uint32_t seed = 7;
    setenv("TZ", "Pacific/Apia", 1);
    tzset();
    look_at(INT64_C(1324857600)); /* 2011-12-26 */
    for (int i = 0; i < 40; i++) {
        struct line line = make_line(&seed);
        compare(&line, "Pacific/Apia", INT64_C(1324857600));
    }
}

/* Write a zone file without a list of changes, only with a rule. */
static void write_zone(const char *path, const char *rule)
{
    FILE *file = fopen(path, "wb");
    unsigned char header[44] = "TZif2";
    static const unsigned char type[6 + 4] = {0, 0, 0x0e, 0x10, 0, 0, 'C', 'E', 'T', 0};

    if (file == NULL)
        FAIL("could not write %s", path);
    header[39] = 1; /* one type */
    header[43] = 4; /* four letters */
    for (int i = 0; i < 2; i++) {
        fwrite(header, 1, sizeof header, file);
        fwrite(type, 1, sizeof type, file);
    }
    fprintf(file, "\n%s\n", rule);
    fclose(file);
}

TEST(a_zone_file_with_a_rule_only_agrees_with_libc)
{
    static const char *const rules[] = {"CET-1CEST,M3.5.0,M10.5.0/3",
                                        "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0",
                                        "IST-1GMT0,M10.5.0,M3.5.0/1",
                                        "EST5EDT,J60/2,J300/2",
                                        "EST5EDT,59/2,299/26",
                                        "<-02>2<-01>,M3.5.0/-1,M10.5.0/0",
                                        "CST6"};
    char dir[300];
    lhi_format(dir, sizeof dir, "%s/zones", test_tmpdir());
    EXPECT_EQ(mkdir(dir, 0700), 0);
    setenv("TZDIR", dir, 1);
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        char path[400], name[32];
        lhi_format(name, sizeof name, "Rule%zu", i);
        lhi_format(path, sizeof path, "%s/%s", dir, name);
        write_zone(path, rules[i]);
        compare_in(name, rules[i], 99U + (uint32_t)i, 3, 8);
    }
}

TEST(an_inconsistent_zone_file_is_refused)
{
    char dir[300], path[400];
    unsigned char bytes[4096];
    lhi_format(dir, sizeof dir, "%s/zones", test_tmpdir());
    lhi_format(path, sizeof path, "%s/Torn", dir);
    EXPECT_EQ(mkdir(dir, 0700), 0);
    FILE *whole = fopen("/usr/share/zoneinfo/Europe/Berlin", "rb");
    EXPECT(whole != NULL);
    size_t len = fread(bytes, 1, sizeof bytes, whole);
    fclose(whole);
    setenv("TZDIR", dir, 1);
    for (size_t cut = 0; cut < len; cut += cut < 100 ? 1 : 37) {
        struct lhi_zone *zone = NULL;
        struct lhi_error err;
        FILE *torn = fopen(path, "wb");
        EXPECT(torn != NULL);
        fwrite(bytes, 1, cut, torn);
        fclose(torn);
        EXPECT_STATUS(lhi_zone_load("Torn", &zone, &err), LH_EINVAL);
    }
}

/* Random bytes are either accepted or refused, and never crash. */
TEST(a_zone_file_of_random_bytes_does_no_harm)
{
    char dir[300], path[400];
    unsigned char bytes[4096];
    uint32_t seed = 4711;
    lhi_format(dir, sizeof dir, "%s/zones", test_tmpdir());
    lhi_format(path, sizeof path, "%s/Wrong", dir);
    EXPECT_EQ(mkdir(dir, 0700), 0);
    FILE *whole = fopen("/usr/share/zoneinfo/Europe/Berlin", "rb");
    EXPECT(whole != NULL);
    size_t len = fread(bytes, 1, sizeof bytes, whole);
    fclose(whole);
    setenv("TZDIR", dir, 1);
    for (int i = 0; i < 300; i++) {
        struct lhi_zone *zone = NULL;
        struct lhi_error err;
        struct lhi_cron cron;
        unsigned char kept = bytes[0];
        size_t at = dice(&seed, i < 150 ? 100 : (uint32_t)len);
        kept = bytes[at];
        bytes[at] = (unsigned char)dice(&seed, 256);
        FILE *wrong = fopen(path, "wb");
        EXPECT(wrong != NULL);
        fwrite(bytes, 1, len, wrong);
        fclose(wrong);
        bytes[at] = kept;
        if (lhi_zone_load("Wrong", &zone, &err) != LH_OK)
            continue;
        EXPECT_OK(lhi_cron_parse("30 2 * * *", &cron, &err));
        int64_t now = ms_of("2026-03-28T12:00:00Z"), next = lhi_cron_next(&cron, zone, now);
        EXPECT(next > now && next < now + INT64_C(4) * 86400000);
        lhi_zone_free(zone);
    }
}

/* ---- several instants ---- */

static struct lhi_instants ticks(const char *line, const char *after, const char *upto)
{
    struct lhi_timing *timing = timing_of(line, "Europe/Berlin");
    struct lhi_instants found;
    lhi_timing_instants(timing, ms_of(after), ms_of(upto), &found);
    lhi_timing_close(timing);
    return found;
}

TEST(the_instants_between_two_moments_are_counted)
{
    struct lhi_instants t = ticks("*/5 * * * *", "2026-01-15T10:00:00Z", "2026-01-15T11:00:00Z");
    EXPECT_EQ(t.n, 12);
    EXPECT_EQ(t.first, ms_of("2026-01-15T10:05:00Z"));
    EXPECT_EQ(t.before_last, ms_of("2026-01-15T10:55:00Z"));
    EXPECT_EQ(t.last, ms_of("2026-01-15T11:00:00Z"));
    EXPECT_EQ(ticks("*/5 * * * *", "2026-01-15T10:00:00Z", "2026-01-15T10:04:59Z").n, 0);
    EXPECT_EQ(ticks("@every 5m", "2026-01-15T10:00:00Z", "2026-01-15T10:04:59Z").n, 0);
    t = ticks("@every 7m", "2026-01-15T10:00:00Z", "2026-01-15T11:00:00Z");
    EXPECT_EQ(t.n, 8);
    EXPECT_EQ(t.first, ms_of("2026-01-15T10:07:00Z"));
    EXPECT_EQ(t.last, ms_of("2026-01-15T10:56:00Z"));
    EXPECT_EQ(t.before_last, ms_of("2026-01-15T10:49:00Z"));
    EXPECT_EQ(ticks("@every 1s", "2020-01-15T10:00:00Z", "2026-01-15T10:00:00Z").n, 189388800);
}

TEST(above_a_hundred_thousand_instants_the_count_stops_and_the_last_is_known)
{
    struct lhi_instants t = ticks("* * * * *", "2020-01-15T10:00:00Z", "2026-01-15T10:00:30Z");
    EXPECT(t.more);
    EXPECT_EQ(t.n, LHI_MOST_INSTANTS);
    EXPECT_EQ(t.last, ms_of("2026-01-15T10:00:00Z"));
    EXPECT_EQ(t.before_last, ms_of("2026-01-15T09:59:00Z"));
    t = ticks("* * * 1-3 *", "2020-01-15T10:00:00Z", "2025-12-24T10:00:30Z");
    EXPECT(t.more);
    EXPECT_EQ(t.last, ms_of("2025-03-31T21:59:00Z"));
}
