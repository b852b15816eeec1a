/*
 * policy.h: the policy that holds for a job: the built-in values, and the rows that override them.
 */
#ifndef LHI_POLICY_H
#define LHI_POLICY_H

#include <leasehold.h>

#include <stdint.h>

extern const lh_policy lhi_policy_builtin; /* policy.def */

/* The policy of (queue, kind): a row for both overrides a row for the queue, which overrides a row for
 * the kind, which overrides a row for everything, which overrides the built-in values. `kind` NULL: the
 * job has no kind. */
void lhi_policy_resolve(const lh_policies *rows, const char *queue, const char *kind,
                        lh_policy *out);

/* Copy the fields that `from` sets to `into`. */
void lhi_policy_merge(lh_policy *into, const lh_policy *from);

void lhi_policies_clear(lh_policies *rows);

/* The delay before the next try after the `attempt`th: exponential backoff with jitter. `dice`: 32
 * random bits. */
int64_t lhi_backoff_ms(int64_t base_ms, int64_t cap_ms, int64_t attempt, uint32_t dice);

#endif
