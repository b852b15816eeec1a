/* Policies as pure functions: falling through, merging, backoff. */
#include "harness/harness.h"

#include "store/store.h"
#include <string.h>

/* ---- falling through ---- */

/* Resolve with rows of the given levels, whose order must not matter. The lease says which row won. */
static lh_policy resolve(unsigned levels, const char *queue, const char *kind)
{
    static const struct {
        const char *queue, *kind;
    } where[] = {{"q", "k"}, {NULL, NULL}, {"q", NULL}, {NULL, "k"}};
    lh_policy_row row[4];
    lh_policies rows = {.row = row};
    lh_policy out;

    for (unsigned i = 0; i < 4; i++)
        if (levels & 1U << i)
            row[rows.n++] =
                (lh_policy_row){.queue = where[i].queue,
                                .kind = where[i].kind,
                                .policy = {.set = LH_POLICY_LEASE, .lease_ms = 1 + (int64_t)i}};
    lhi_policy_resolve(&rows, queue, kind, &out);
    return out;
}

TEST(the_narrowest_policy_row_that_sets_a_field_wins)
{
    enum { BOTH = 1, ANY = 2, QUEUE = 4, KIND = 8 };
    for (unsigned levels = 0; levels < 16; levels++) {
        int64_t wanted = levels & BOTH    ? 1
                         : levels & QUEUE ? 3
                         : levels & KIND  ? 4
                         : levels & ANY   ? 2
                                          : 300000;
        EXPECT_EQ(resolve(levels, "q", "k").lease_ms, wanted);
        wanted = levels & QUEUE ? 3 : levels & ANY ? 2 : 300000;
        EXPECT_EQ(resolve(levels, "q", NULL).lease_ms, wanted);
        EXPECT_EQ(resolve(levels, "q", "other").lease_ms, wanted);
        wanted = levels & KIND ? 4 : levels & ANY ? 2 : 300000;
        EXPECT_EQ(resolve(levels, "other", "k").lease_ms, wanted);
        EXPECT_EQ(resolve(levels, NULL, "k").lease_ms, wanted);
        wanted = levels & ANY ? 2 : 300000;
        EXPECT_EQ(resolve(levels, "other", "other").lease_ms, wanted);
        EXPECT_EQ(resolve(levels, NULL, NULL).lease_ms, wanted);
    }
}

TEST(a_resolved_policy_has_every_field)
{
    EXPECT_EQ(resolve(0, "q", "k").set, LH_POLICY_ALL);
    EXPECT_EQ(resolve(15, "q", "k").set, LH_POLICY_ALL);
    EXPECT_EQ(resolve(15, "q", "k").max_attempts, 3);
}

TEST(a_merge_copies_only_the_fields_that_are_set)
{
    lh_policy into = {.set = LH_POLICY_LEASE | LH_POLICY_TIMEOUT, .lease_ms = 1, .timeout_ms = 2};
    lh_policy from = {.set = LH_POLICY_TIMEOUT | LH_POLICY_RATE | LH_POLICY_RECOVERY,
                      .lease_ms = 10,
                      .timeout_ms = 20,
                      .rate_n = 30,
                      .rate_per_ms = 40,
                      .recovery = true,
                      .concurrency = 50};
    lhi_policy_merge(&into, &from);
    EXPECT_EQ(into.set, LH_POLICY_LEASE | LH_POLICY_TIMEOUT | LH_POLICY_RATE | LH_POLICY_RECOVERY);
    EXPECT_EQ(into.lease_ms, 1);
    EXPECT_EQ(into.timeout_ms, 20);
    EXPECT_EQ(into.rate_n, 30);
    EXPECT_EQ(into.rate_per_ms, 40);
    EXPECT(into.recovery);
    EXPECT_EQ(into.concurrency, 0);
}

/* ---- backoff ---- */

TEST(the_backoff_is_between_half_of_it_and_all_of_it)
{
    for (int64_t attempt = 1; attempt <= 12; attempt++) {
        int64_t full = INT64_C(1000) << (attempt - 1);
        if (full > 3600000)
            full = 3600000;
        EXPECT_EQ(lhi_backoff_ms(1000, 3600000, attempt, 0), full - full / 2);
        int64_t most = lhi_backoff_ms(1000, 3600000, attempt, UINT32_MAX);
        EXPECT(most <= full);
        EXPECT(most >= full - 1);
        int64_t middle = lhi_backoff_ms(1000, 3600000, attempt, UINT32_MAX / 2);
        EXPECT(middle > full / 2 && middle < full);
    }
}

TEST(the_backoff_never_exceeds_its_cap_nor_falls_below_zero)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 1000, 3600000, INT64_C(315360000000), INT64_MAX};
    static const int64_t attempts[] = {0, 1, 2, 3, 62, 63, 64, 65, 1000000};
    for (size_t b = 0; b < sizeof sizes / sizeof sizes[0]; b++)
        for (size_t c = 0; c < sizeof sizes / sizeof sizes[0]; c++)
            for (size_t a = 0; a < sizeof attempts / sizeof attempts[0]; a++)
                for (int d = 0; d < 2; d++) {
                    int64_t ms =
                        lhi_backoff_ms(sizes[b], sizes[c], attempts[a], d ? UINT32_MAX : 0);
                    EXPECT(ms >= 0);
                    EXPECT(ms <= sizes[c]);
                    if (sizes[b] > 0 && sizes[c] > 0)
                        EXPECT(ms > 0);
                }
}

TEST(a_backoff_of_zero_stays_zero)
{
    EXPECT_EQ(lhi_backoff_ms(0, 3600000, 1, UINT32_MAX), 0);
    EXPECT_EQ(lhi_backoff_ms(0, 3600000, 1000000, UINT32_MAX), 0);
}

/* ---- the reason of a recovery ---- */

static const char *reason_of(const lh_job *job, int64_t now, struct lhi_fate *fate)
{
    lhi_decide_death(job, &lhi_policy_builtin, NULL, LHI_CAUSE_TTL, NULL, false, now, fate);
    return fate->reason;
}

TEST(the_reason_of_a_recovery_names_the_lease_in_one_unit)
{
    static const struct {
        int64_t ms;
        const char *words;
    } leases[] = {{1800000, "RECLAIMED_TTL: Exceeded TTL (30 min) at attempt 1/3, "},
                  {60000, "RECLAIMED_TTL: Exceeded TTL (1 min) at attempt 1/3, "},
                  {90000, "RECLAIMED_TTL: Exceeded TTL (90 s) at attempt 1/3, "},
                  {1500, "RECLAIMED_TTL: Exceeded TTL (1500 ms) at attempt 1/3, "}};
    for (size_t i = 0; i < sizeof leases / sizeof leases[0]; i++) {
        struct lhi_fate fate;
        size_t n = strlen(leases[i].words);
        lh_job job = {.lease_ms = leases[i].ms,
                      .worker = "w-1",
                      .started_at = 1000000,
                      .attempt = 1,
                      .max_attempts = 3};
        EXPECT(strncmp(reason_of(&job, 1300000, &fate), leases[i].words, n) == 0);
        EXPECT_STR(fate.reason + n, "worker w-1 last seen 5m ago");
        job.last_heartbeat_at = 1000000 + 240000;
        EXPECT_STR(reason_of(&job, 1300000, &fate) + n, "worker w-1 last seen 1m ago");
        job.last_heartbeat_at = 5; /* from an earlier attempt */
        EXPECT_STR(reason_of(&job, 1300000, &fate) + n, "worker w-1 last seen 5m ago");
    }
}
