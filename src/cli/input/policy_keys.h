/*
 * The settings of a policy: one table for the config file, for `queue set` and for output.
 */
#ifndef LEASEHOLD_CLI_POLICY_KEYS_H
#define LEASEHOLD_CLI_POLICY_KEYS_H

#include <leasehold.h>

#include "value.h"

struct policy_key {
    const char *config; /* maxAttempts, in the config file */
    const char *option; /* max-attempts, of `queue set` */
    const char *json;   /* max_attempts */
    const char *meta;   /* the placeholder of the value in the help */
    struct value_spec spec;
    unsigned field; /* of enum lh_policy_field */
    const char *help;
};

/* clang-format off: one a line, as a table */
#define SPEC_RECOVERIES SPEC_COUNT(0)
#define SPEC_ACTION SPEC_CHOICE("retry pending fail") /* in the order of lh_action */
#define SPEC_AUDIT SPEC_CHOICE("exceptional full")    /* in the order of lh_audit */
#define SPEC_TIMEOUT                                                            \
    {                                                                           \
        .kind = VALUE_DURATION, .min = 1, .max = VALUE_LONG_MAX, .word = "none" \
    }
#define SPEC_PAYLOAD                                           \
    {                                                          \
        .kind = VALUE_SIZE, .min = 1, .max = VALUE_PAYLOAD_MAX \
    }
#define SPEC_OUTPUT                                                           \
    {                                                                         \
        .kind = VALUE_SIZE, .min = 1, .max = VALUE_OUTPUT_MAX, .word = "none" \
    }
#define SPEC_OUTPUT_TIME                                                       \
    {                                                                          \
        .kind = VALUE_DURATION, .min = 1, .max = VALUE_LONG_MAX, .word = "job" \
    }
#define SPEC_RATE                               \
    {                                           \
        .kind = VALUE_RATE, .word = "unlimited" \
    }
#define SPEC_CONCURRENCY                                                 \
    {                                                                    \
        .kind = VALUE_INT, .min = 1, .max = 1000000, .word = "unlimited" \
    }
/* clang-format on */

enum {
#define POLICY_KEY(config, option, json, meta, spec, field, help) POLICY_KEY_##field,
#include "policy_keys.def"
#undef POLICY_KEY
    POLICY_KEYS
};

extern const struct policy_key policy_keys[POLICY_KEYS];
extern const size_t policy_key_count;

/** Stores a parsed value in the policy and marks the field as set. */
void policy_key_set(const struct policy_key *key, const struct value *value, lh_policy *policy);

/** Reads a field of the policy as a value. */
void policy_key_get(const struct policy_key *key, const lh_policy *policy, struct value *out);

/** Formats a field as the user would write it; returns `buf`. */
char *policy_key_text(const struct policy_key *key, const lh_policy *policy, char *buf, size_t len);

/** Settings that apply to a whole queue, not to a kind. */
#define POLICY_QUEUE_ONLY (LH_POLICY_RATE | LH_POLICY_CONCURRENCY)

#endif
