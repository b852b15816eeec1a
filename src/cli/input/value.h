/*
 * Values as users write them: on the command line, in the environment and in the config file.
 *
 * One description of what is allowed (`struct value_spec`) serves the parser, the message about a
 * bad value, the help and the completions, so that they agree.
 */
#ifndef LEASEHOLD_CLI_VALUE_H
#define LEASEHOLD_CLI_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum value_kind {
    VALUE_NONE,     /* a flag, without a value */
    VALUE_BYTES,    /* any bytes */
    VALUE_TEXT,     /* UTF-8, 1 to `max` bytes (0: unlimited) */
    VALUE_FILE,     /* a path */
    VALUE_NAME,     /* queue, kind, worker */
    VALUE_INT,      /* min … max */
    VALUE_DURATION, /* min … max milliseconds */
    VALUE_TIME,     /* RFC 3339 with a zone */
    VALUE_JSON,     /* any JSON value, at most `max` bytes */
    VALUE_CHOICE,   /* one of `choices`; the value is its position, from 1 */
    VALUE_SWITCH,   /* on, off, yes, no, true, false */
    VALUE_SIZE,     /* bytes: 512, 64KiB, 1MiB */
    VALUE_RATE,     /* 20/1m: `num` jobs per `num2` milliseconds */
    VALUE_REF,      /* JOB or JOB:TOKEN */
    VALUE_HELD,     /* JOB:TOKEN */
    VALUE_LEASE     /* SCOPE/NAME */
};

struct value_spec {
    enum value_kind kind;
    int64_t min, max;
    const char *choices; /* "full relaxed" */
    const char *word;    /* a word allowed as the value: "unlimited" */
    int64_t word_value;  /* the number that it means */
};

struct value {
    size_t given;      /* the number of times it was given */
    const char *text;  /* as written, the last time; NULL: an optional value was left out */
    const char **all;  /* as written, each time */
    int64_t num, num2; /* the value: number, milliseconds, 1 for on; token or period */
};

/* The largest integer that every JSON reader keeps exact. Ids and tokens are not larger. */
#define VALUE_ID_MAX ((INT64_C(1) << 53) - 1)
#define VALUE_DAY INT64_C(86400000)
#define VALUE_LEASE_MAX (30 * VALUE_DAY)
#define VALUE_LONG_MAX (3650 * VALUE_DAY)
#define VALUE_OUTPUT_MAX (INT64_C(16) << 20)
#define VALUE_PAYLOAD_MAX (INT64_C(64) << 20)

/* clang-format off: one a line, as a table */
#define SPEC_FLAG          \
    {                      \
        .kind = VALUE_NONE \
    }
#define SPEC_BYTES          \
    {                       \
        .kind = VALUE_BYTES \
    }
#define SPEC_TEXT(most)                   \
    {                                     \
        .kind = VALUE_TEXT, .max = (most) \
    }
#define SPEC_FILE          \
    {                      \
        .kind = VALUE_FILE \
    }
#define SPEC_NAME          \
    {                      \
        .kind = VALUE_NAME \
    }
#define SPEC_INT(lo, hi)                            \
    {                                               \
        .kind = VALUE_INT, .min = (lo), .max = (hi) \
    }
#define SPEC_ID                                          \
    {                                                    \
        .kind = VALUE_INT, .min = 1, .max = VALUE_ID_MAX \
    }
#define SPEC_COUNT(lo)                                                                        \
    {                                                                                         \
        .kind = VALUE_INT, .min = (lo), .max = 1000000, .word = "unlimited", .word_value = -1 \
    }
#define SPEC_DURATION(lo, hi)                            \
    {                                                    \
        .kind = VALUE_DURATION, .min = (lo), .max = (hi) \
    }
#define SPEC_LEASE_TIME                                          \
    {                                                            \
        .kind = VALUE_DURATION, .min = 1, .max = VALUE_LEASE_MAX \
    }
#define SPEC_LONG_TIME                                          \
    {                                                           \
        .kind = VALUE_DURATION, .min = 0, .max = VALUE_LONG_MAX \
    }
#define SPEC_TIME          \
    {                      \
        .kind = VALUE_TIME \
    }
#define SPEC_JSON(most)                   \
    {                                     \
        .kind = VALUE_JSON, .max = (most) \
    }
#define SPEC_RESULT                                               \
    {                                                             \
        .kind = VALUE_JSON, .max = VALUE_PAYLOAD_MAX, .word = "-" \
    } /* "-" means standard input */
#define SPEC_CHOICE(words)                       \
    {                                            \
        .kind = VALUE_CHOICE, .choices = (words) \
    }
#define SPEC_SWITCH          \
    {                        \
        .kind = VALUE_SWITCH \
    }
#define SPEC_REF          \
    {                     \
        .kind = VALUE_REF \
    }
#define SPEC_HELD          \
    {                      \
        .kind = VALUE_HELD \
    }
#define SPEC_LEASE_NAME     \
    {                       \
        .kind = VALUE_LEASE \
    }
#define SPEC_ATTEMPTS SPEC_COUNT(1)
/* clang-format on */

enum { VALUE_WHY = 512 };

/** Parses `text` into `out->num` and `out->num2`. On failure `why` (VALUE_WHY bytes) is the rest of
 *  a sentence about the value: `is not a duration: allowed: …`. */
bool value_parse(const struct value_spec *spec, const char *text, struct value *out, char *why);

/** Formats a number, duration, choice, switch, size or rate as users write it; returns `buf`. */
char *value_format(const struct value_spec *spec, const struct value *value, char *buf, size_t len);

/** The position of `word` in a list of words separated by spaces, from 1; 0: it is not in the
 *  list. */
size_t value_word_place(const char *words, const char *word);
/** Copies the word at this position into `buf`. False: the list is shorter. */
bool value_word_at(const char *words, size_t place, char *buf, size_t len);

/** Quotes a value for a message, and shortens it to fit on a line. Returns `buf`. */
char *value_quote(const char *text, char *buf, size_t len);

/** The most similar of `n` known words, or NULL if none is similar. */
const char *value_nearest(const char *word, const char *const *known, size_t n);

#endif
