/*
 * The table of policy settings, and conversion between a setting and its field.
 */
#include "policy_keys.h"

const struct policy_key policy_keys[POLICY_KEYS] = {
#define POLICY_KEY(config, option, json, meta, spec, field, help) \
    {config, option, json, meta, spec, field, help},
#include "policy_keys.def"
#undef POLICY_KEY
};

const size_t policy_key_count = POLICY_KEYS;

void policy_key_set(const struct policy_key *key, const struct value *value, lh_policy *policy)
{
    int64_t num = value->num;

    switch (key->field) {
    case LH_POLICY_LEASE:
        policy->lease_ms = num;
        break;
    case LH_POLICY_MAX_ATTEMPTS:
        policy->max_attempts = num;
        break;
    case LH_POLICY_MAX_RECOVERIES:
        policy->max_recoveries = num;
        break;
    case LH_POLICY_ACTION:
        policy->action = (lh_action)num;
        break;
    case LH_POLICY_RECOVERY:
        policy->recovery = num != 0;
        break;
    case LH_POLICY_RECOVERY_BACKOFF:
        policy->recovery_backoff_ms = num;
        break;
    case LH_POLICY_BACKOFF:
        policy->backoff_ms = num;
        break;
    case LH_POLICY_BACKOFF_CAP:
        policy->backoff_cap_ms = num;
        break;
    case LH_POLICY_TIMEOUT:
        policy->timeout_ms = num;
        break;
    case LH_POLICY_EXCLUSIVE:
        policy->exclusive = num != 0;
        break;
    case LH_POLICY_AUDIT:
        policy->audit = (lh_audit)num;
        break;
    case LH_POLICY_RETENTION:
        policy->retention_ms = num;
        break;
    case LH_POLICY_RETENTION_FAILED:
        policy->retention_failed_ms = num;
        break;
    case LH_POLICY_MAX_PAYLOAD:
        policy->max_payload = num;
        break;
    case LH_POLICY_RATE:
        policy->rate_n = num;
        policy->rate_per_ms = value->num2;
        break;
    case LH_POLICY_CONCURRENCY:
        policy->concurrency = num;
        break;
    case LH_POLICY_MAX_OUTPUT:
        policy->max_output = num;
        break;
    case LH_POLICY_RETENTION_OUTPUT:
        policy->retention_output_ms = num;
        break;
    default:
        return;
    }
    policy->set |= key->field;
}

void policy_key_get(const struct policy_key *key, const lh_policy *policy, struct value *out)
{
    *out = (struct value){.given = (policy->set & key->field) != 0};
    switch (key->field) {
    case LH_POLICY_LEASE:
        out->num = policy->lease_ms;
        break;
    case LH_POLICY_MAX_ATTEMPTS:
        out->num = policy->max_attempts;
        break;
    case LH_POLICY_MAX_RECOVERIES:
        out->num = policy->max_recoveries;
        break;
    case LH_POLICY_ACTION:
        out->num = (int64_t)policy->action;
        break;
    case LH_POLICY_RECOVERY:
        out->num = policy->recovery;
        break;
    case LH_POLICY_RECOVERY_BACKOFF:
        out->num = policy->recovery_backoff_ms;
        break;
    case LH_POLICY_BACKOFF:
        out->num = policy->backoff_ms;
        break;
    case LH_POLICY_BACKOFF_CAP:
        out->num = policy->backoff_cap_ms;
        break;
    case LH_POLICY_TIMEOUT:
        out->num = policy->timeout_ms;
        break;
    case LH_POLICY_EXCLUSIVE:
        out->num = policy->exclusive;
        break;
    case LH_POLICY_AUDIT:
        out->num = (int64_t)policy->audit;
        break;
    case LH_POLICY_RETENTION:
        out->num = policy->retention_ms;
        break;
    case LH_POLICY_RETENTION_FAILED:
        out->num = policy->retention_failed_ms;
        break;
    case LH_POLICY_MAX_PAYLOAD:
        out->num = policy->max_payload;
        break;
    case LH_POLICY_RATE:
        out->num = policy->rate_n;
        out->num2 = policy->rate_per_ms;
        break;
    case LH_POLICY_CONCURRENCY:
        out->num = policy->concurrency;
        break;
    case LH_POLICY_MAX_OUTPUT:
        out->num = policy->max_output;
        break;
    case LH_POLICY_RETENTION_OUTPUT:
        out->num = policy->retention_output_ms;
        break;
    default:
        break;
    }
}

char *policy_key_text(const struct policy_key *key, const lh_policy *policy, char *buf, size_t len)
{
    struct value value;

    policy_key_get(key, policy, &value);
    return value_format(&key->spec, &value, buf, len);
}
