/* policy.c: the built-in policy values, the resolving of policies, and backoff. */
#include "rules/policy.h"

#include "base/mem.h"

#include <string.h>

const lh_policy lhi_policy_builtin = {
    .set = LH_POLICY_ALL,
#define BUILTIN(field_, value_) .field_ = (value_),
#include "rules/policy.def"
#undef BUILTIN
};

void lhi_policy_merge(lh_policy *into, const lh_policy *from)
{
#define TAKE(bit, field)             \
    if (from->set & LH_POLICY_##bit) \
    into->field = from->field
    TAKE(LEASE, lease_ms);
    TAKE(MAX_ATTEMPTS, max_attempts);
    TAKE(MAX_RECOVERIES, max_recoveries);
    TAKE(ACTION, action);
    TAKE(RECOVERY, recovery);
    TAKE(RECOVERY_BACKOFF, recovery_backoff_ms);
    TAKE(BACKOFF, backoff_ms);
    TAKE(BACKOFF_CAP, backoff_cap_ms);
    TAKE(TIMEOUT, timeout_ms);
    TAKE(EXCLUSIVE, exclusive);
    TAKE(AUDIT, audit);
    TAKE(RETENTION, retention_ms);
    TAKE(RETENTION_FAILED, retention_failed_ms);
    TAKE(MAX_PAYLOAD, max_payload);
    TAKE(RATE, rate_n);
    TAKE(RATE, rate_per_ms);
    TAKE(CONCURRENCY, concurrency);
    TAKE(MAX_OUTPUT, max_output);
    TAKE(RETENTION_OUTPUT, retention_output_ms);
#undef TAKE
    into->set |= from->set;
}

static bool matches(const char *row, const char *wanted)
{
    return row == NULL ? wanted == NULL : wanted != NULL && strcmp(row, wanted) == 0;
}

void lhi_policy_resolve(const lh_policies *rows, const char *queue, const char *kind,
                        lh_policy *out)
{
    /* From the widest rows to the narrowest: the later ones override. */
    const char *const order[4][2] = {{NULL, NULL}, {NULL, kind}, {queue, NULL}, {queue, kind}};

    *out = lhi_policy_builtin;
    if (rows->n == 0)
        return;
    for (int level = 0; level < 4; level++) {
        if ((level & 1) != 0 && kind == NULL)
            continue;
        for (size_t i = 0; i < rows->n; i++)
            if (matches(rows->row[i].queue, order[level][0]) &&
                matches(rows->row[i].kind, order[level][1]))
                lhi_policy_merge(out, &rows->row[i].policy);
    }
}

void lhi_policies_clear(lh_policies *rows)
{
    lhi_arena_drop(&rows->priv);
    lhi_free(rows->row);
    memset(rows, 0, sizeof *rows);
}

int64_t lhi_backoff_ms(int64_t base_ms, int64_t cap_ms, int64_t attempt, uint32_t dice)
{
    int64_t delay = base_ms;

    for (int64_t i = 1; i < attempt && delay < cap_ms; i++)
        delay = delay > INT64_MAX / 2 ? INT64_MAX : delay * 2;
    if (delay > cap_ms)
        delay = cap_ms;
    /* Half of the delay is random, so that jobs that failed together are not retried together. */
    int64_t half = delay / 2;
    return delay - half + (int64_t)((double)half * (dice / 4294967296.0));
}
