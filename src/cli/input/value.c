/*
 * Parsing and formatting values by their spec.
 */
#include "value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <leasehold.h>

#include "cli/json/json.h"

static bool refuse(char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool refuse(char *why, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    vsnprintf(why, VALUE_WHY, format, ap);
    va_end(ap);
    return false;
}

/** Turns "a b c" into "a, b, c". */
static char *listed(const char *words, char *buf, size_t len)
{
    size_t n = 0;

    for (const char *p = words; *p != '\0' && n + 3 < len; p++) {
        if (*p == ' ')
            buf[n++] = ',';
        buf[n++] = *p;
    }
    buf[n] = '\0';
    return buf;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/** Parses a decimal number without blanks, plus sign or leading text. */
static bool read_int(const char *text, int64_t *out)
{
    const char *digits = text + (text[0] == '-');
    char *end;

    if (digits[0] < '0' || digits[0] > '9')
        return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static bool all_digits(const char *text)
{
    const char *digits = text + (text[0] == '-');

    return digits[0] != '\0' && digits[strspn(digits, "0123456789")] == '\0';
}

/** Formats exactly: the result parses to the same value. */
static char *duration(int64_t ms, char *buf, size_t len)
{
    static const struct {
        const char *unit;
        int64_t ms;
    } units[] = {{"d", VALUE_DAY}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
    size_t n = 0;

    snprintf(buf, len, "0s");
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (ms < units[i].ms)
            continue;
        n += (size_t)snprintf(buf + n, len - n, "%" PRId64 "%s", ms / units[i].ms, units[i].unit);
        ms %= units[i].ms;
    }
    return buf;
}

static bool parse_int(const struct value_spec *spec, const char *text, int64_t *out, char *why)
{
    const char *or_word = spec->word ? " or " : "";
    const char *word = spec->word ? spec->word : "";
    const char *fault = "is out of range";

    if (read_int(text, out) && *out >= spec->min && *out <= spec->max)
        return true;
    if (!all_digits(text))
        fault = "is not a whole number";
    return refuse(why, "%s: allowed: %" PRId64 " to %" PRId64 "%s%s", fault, spec->min, spec->max,
                  or_word, word);
}

static bool parse_duration(const struct value_spec *spec, const char *text, int64_t *out, char *why)
{
    char lo[64], hi[64];
    const char *or_word = spec->word ? " or " : "";
    const char *word = spec->word ? spec->word : "";
    const char *fault = "is out of range";

    if (lh_duration_parse(text, out) == LH_OK) {
        if (*out >= spec->min && *out <= spec->max)
            return true;
    } else {
        fault = "is not a duration";
    }
    return refuse(why, "%s: allowed: %s to %s%s%s, written like 250ms, 30s, 5m, 1h30m or 14d",
                  fault, duration(spec->min, lo, sizeof lo), duration(spec->max, hi, sizeof hi),
                  or_word, word);
}

static bool parse_size(const struct value_spec *spec, const char *text, int64_t *out, char *why)
{
    static const struct {
        const char *unit;
        int64_t bytes;
    } units[] = {{"", 1}, {"B", 1}, {"KiB", 1024}, {"MiB", 1 << 20}};
    char *end;
    int64_t n;

    errno = 0;
    n = strtoll(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && errno == 0)
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
            if (strcmp(end, units[i].unit) == 0 && n <= spec->max / units[i].bytes) {
                *out = n * units[i].bytes;
                if (*out >= spec->min)
                    return true;
            }
    return refuse(why,
                  "is not a size: allowed: %" PRId64 "B to %" PRId64 "MiB, written like 512, 64KiB "
                  "or 1MiB%s%s",
                  spec->min, spec->max >> 20, spec->word ? ", or " : "",
                  spec->word ? spec->word : "");
}

static bool parse_rate(const char *text, struct value *out, char *why)
{
    const char *slash = strchr(text, '/');
    char count[24];

    if (slash != NULL && slash > text && (size_t)(slash - text) < sizeof count) {
        snprintf(count, sizeof count, "%.*s", (int)(slash - text), text);
        if (read_int(count, &out->num) && out->num >= 1 && out->num <= 1000000000 &&
            lh_duration_parse(slash + 1, &out->num2) == LH_OK && out->num2 >= 1 &&
            out->num2 <= VALUE_LEASE_MAX)
            return true;
    }
    return refuse(why, "is not a rate: allowed: JOBS/DURATION, 1 to 1000000000 jobs in 1ms to 30d, "
                       "written like 20/1m, or unlimited");
}

static bool parse_switch(const char *text, int64_t *out, char *why)
{
    size_t place = value_word_place("on yes true off no false", text);

    if (place == 0)
        return refuse(why, "is neither on nor off: allowed: on, off, yes, no, true, false");
    *out = place <= 3;
    return true;
}

/* ---- names, text, JSON, references ----------------------------------------------------------- */

static bool parse_name(const char *text, char *why)
{
    if (lh_name_ok(text))
        return true;
    return refuse(why, "is not a name: allowed: 1 to 128 of A-Z a-z 0-9 . _ : @ -");
}

static bool parse_text(const struct value_spec *spec, const char *text, char *why)
{
    size_t n = strlen(text);

    if (n == 0)
        return refuse(why, "is empty: allowed: at least one character");
    if (!lh_text_ok(text, n))
        return refuse(why, "is not UTF-8 text: allowed: valid UTF-8");
    if (spec->max > 0 && n > (size_t)spec->max)
        return refuse(why, "is %zu bytes long: allowed: 1 to %" PRId64 " bytes", n, spec->max);
    return true;
}

static bool parse_json(const struct value_spec *spec, const char *text, char *why)
{
    struct js_error error;
    size_t n = strlen(text);

    if (!js_valid(text, n, NULL, &error))
        return refuse(why, "is not JSON: %s at byte %zu: allowed: any JSON value", error.what,
                      error.at + 1);
    if (spec->max > 0 && n > (size_t)spec->max)
        return refuse(why, "is %zu bytes long: allowed: JSON of at most %" PRId64 " bytes", n,
                      spec->max);
    return true;
}

static bool parse_ref(bool with_token, const char *text, struct value *out, char *why)
{
    const char *colon = strchr(text, ':');
    char job[24];
    bool ok = false;

    out->num2 = 0;
    if (colon == NULL) {
        ok = !with_token && read_int(text, &out->num);
    } else if ((size_t)(colon - text) < sizeof job) {
        snprintf(job, sizeof job, "%.*s", (int)(colon - text), text);
        ok = read_int(job, &out->num) && read_int(colon + 1, &out->num2) && out->num2 >= 1 &&
             out->num2 <= VALUE_ID_MAX;
    }
    if (ok && out->num >= 1 && out->num <= VALUE_ID_MAX)
        return true;
    return refuse(why, "is not a job%s: allowed: %s, each a number from 1 to %" PRId64,
                  with_token ? " with its token" : "",
                  with_token ? "JOB:TOKEN" : "JOB or JOB:TOKEN", VALUE_ID_MAX);
}

static bool parse_lease(const char *text, char *why)
{
    const char *slash = strchr(text, '/');
    bool ok = false;

    if (slash != NULL && slash - text <= 128) {
        char scope[129];
        size_t n = strlen(slash + 1);
        snprintf(scope, sizeof scope, "%.*s", (int)(slash - text), text);
        ok = lh_name_ok(scope) && n >= 1 && n <= 256;
        for (const char *p = slash + 1; ok && *p != '\0'; p++)
            ok = *p > ' ' && *p <= '~';
    }
    if (ok)
        return true;
    return refuse(why, "is not a named lease: allowed: SCOPE/NAME, SCOPE 1 to 128 of A-Z a-z 0-9 . "
                       "_ : @ - and NAME 1 to 256 printable ASCII characters without space");
}

bool value_parse(const struct value_spec *spec, const char *text, struct value *out, char *why)
{
    char words[256];

    if (spec->word != NULL && strcmp(text, spec->word) == 0) {
        out->num = spec->word_value;
        out->num2 = 0;
        return true;
    }
    switch (spec->kind) {
    case VALUE_NONE:
    case VALUE_BYTES:
        return true;
    case VALUE_TEXT:
    case VALUE_FILE:
        return parse_text(spec, text, why);
    case VALUE_NAME:
        return parse_name(text, why);
    case VALUE_INT:
        return parse_int(spec, text, &out->num, why);
    case VALUE_DURATION:
        return parse_duration(spec, text, &out->num, why);
    case VALUE_TIME:
        if (lh_time_parse(text, &out->num) == LH_OK && out->num > 0)
            return true;
        return refuse(why, "is not a time: allowed: RFC 3339 with a zone, written like "
                           "2026-01-15T10:30:00Z or 2026-01-15T11:30:00+01:00");
    case VALUE_JSON:
        return parse_json(spec, text, why);
    case VALUE_CHOICE:
        out->num = (int64_t)value_word_place(spec->choices, text);
        if (out->num > 0)
            return true;
        return refuse(why, "is unknown: allowed: %s", listed(spec->choices, words, sizeof words));
    case VALUE_SWITCH:
        return parse_switch(text, &out->num, why);
    case VALUE_SIZE:
        return parse_size(spec, text, &out->num, why);
    case VALUE_RATE:
        return parse_rate(text, out, why);
    case VALUE_REF:
        return parse_ref(false, text, out, why);
    case VALUE_HELD:
        return parse_ref(true, text, out, why);
    case VALUE_LEASE:
        return parse_lease(text, why);
    }
    return refuse(why, "is not allowed");
}

char *value_format(const struct value_spec *spec, const struct value *value, char *buf, size_t len)
{
    char per[64];

    if (spec->word != NULL && value->num == spec->word_value) {
        snprintf(buf, len, "%s", spec->word);
        return buf;
    }
    switch (spec->kind) {
    case VALUE_DURATION:
        return duration(value->num, buf, len);
    case VALUE_CHOICE:
        if (!value_word_at(spec->choices, (size_t)value->num, buf, len))
            snprintf(buf, len, "?");
        return buf;
    case VALUE_SWITCH:
        snprintf(buf, len, "%s", value->num ? "on" : "off");
        return buf;
    case VALUE_SIZE:
        if (value->num % (1 << 20) == 0)
            snprintf(buf, len, "%" PRId64 "MiB", value->num >> 20);
        else if (value->num % 1024 == 0)
            snprintf(buf, len, "%" PRId64 "KiB", value->num >> 10);
        else
            snprintf(buf, len, "%" PRId64, value->num);
        return buf;
    case VALUE_RATE:
        snprintf(buf, len, "%" PRId64 "/%s", value->num, duration(value->num2, per, sizeof per));
        return buf;
    default:
        snprintf(buf, len, "%" PRId64, value->num);
        return buf;
    }
}
