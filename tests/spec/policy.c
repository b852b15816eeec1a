/* Policies: built-in values, inheritance between levels, refused values, and backoff. */
#include "world.h"

/* ---- falling through ---- */

SPEC(without_a_policy_the_built_in_values_hold)
{
    struct world w = world_open();
    lh_policy p = policy_of(&w, "mail", "kind");
    EXPECT_EQ(p.lease_ms, 300000);
    EXPECT_EQ(p.max_attempts, 3);
    EXPECT_EQ(p.max_recoveries, 3);
    EXPECT_EQ(p.action, LH_ACTION_RETRY);
    EXPECT(p.recovery);
    EXPECT_EQ(p.recovery_backoff_ms, 0);
    EXPECT_EQ(p.backoff_ms, 1000);
    EXPECT_EQ(p.backoff_cap_ms, 3600000);
    EXPECT_EQ(p.timeout_ms, 0);
    EXPECT(!p.exclusive);
    EXPECT_EQ(p.audit, LH_AUDIT_EXCEPTIONAL);
    EXPECT_EQ(p.retention_ms, INT64_C(14) * 86400000);
    EXPECT_EQ(p.retention_failed_ms, INT64_C(30) * 86400000);
    EXPECT_EQ(p.max_payload, 1 << 20);
    EXPECT_EQ(p.rate_n, 0);
    EXPECT_EQ(p.concurrency, 0);
    world_close(&w);
}

SPEC(an_unset_value_falls_through_to_the_next_level)
{
    struct world w = world_open();
    static const struct {
        const char *queue, *kind;
    } levels[] = {{NULL, NULL}, {NULL, "k"}, {"mail", NULL}, {"mail", "k"}};
    /* From the most general level to the most specific: each overrides those before it … */
    for (int i = 0; i < 4; i++) {
        EXPECT_OK(policy(&w, levels[i].queue, levels[i].kind, .set = LH_POLICY_LEASE,
                         .lease_ms = 1000 * (i + 1)));
        EXPECT_EQ(policy_of(&w, "mail", "k").lease_ms, 1000 * (i + 1));
    }
    EXPECT_EQ(policy_of(&w, "mail", NULL).lease_ms, 3000);
    EXPECT_EQ(policy_of(&w, "mail", "other").lease_ms, 3000);
    EXPECT_EQ(policy_of(&w, "post", "k").lease_ms, 2000);
    EXPECT_EQ(policy_of(&w, "post", "other").lease_ms, 1000);
    EXPECT_EQ(policy_of(&w, NULL, NULL).lease_ms, 1000);
    /* … and when it is unset, the level before applies again. */
    for (int i = 3; i >= 0; i--) {
        EXPECT_OK(lh_policy_set(w.store, levels[i].queue, levels[i].kind, NULL, LH_POLICY_LEASE));
        EXPECT_EQ(policy_of(&w, "mail", "k").lease_ms, i > 0 ? 1000 * i : 300000);
    }
    world_close(&w);
}

SPEC(a_claim_obeys_the_policy_of_each_level)
{
    struct world w = world_open();
    static const struct {
        const char *queue, *kind;
    } levels[] = {{NULL, NULL}, {NULL, "k"}, {"mail", NULL}, {"mail", "k"}};
    for (int i = 0; i < 4; i++) {
        lh_job job;
        EXPECT_OK(policy(&w, levels[i].queue, levels[i].kind, .set = LH_POLICY_LEASE,
                         .lease_ms = 1000 * (i + 1)));
        enqueue(&w, "mail", "x", .kind = "k");
        EXPECT_OK(claim_one(&w, "mail", &job));
        EXPECT_EQ(job.lease_ms, 1000 * (i + 1));
    }
    world_close(&w);
}

SPEC(every_field_falls_through_by_itself)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, NULL, NULL, .set = LH_POLICY_LEASE | LH_POLICY_BACKOFF | LH_POLICY_TIMEOUT,
                     .lease_ms = 1, .backoff_ms = 2, .timeout_ms = 3));
    EXPECT_OK(policy(&w, NULL, "k", .set = LH_POLICY_BACKOFF | LH_POLICY_ACTION, .backoff_ms = 20,
                     .action = LH_ACTION_FAIL));
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_TIMEOUT | LH_POLICY_CONCURRENCY,
                     .timeout_ms = 300, .concurrency = 7));
    EXPECT_OK(policy(&w, "mail", "k", .set = LH_POLICY_MAX_ATTEMPTS, .max_attempts = 4000));
    lh_policy p = policy_of(&w, "mail", "k");
    EXPECT_EQ(p.lease_ms, 1);
    EXPECT_EQ(p.backoff_ms, 20);
    EXPECT_EQ(p.timeout_ms, 300);
    EXPECT_EQ(p.max_attempts, 4000);
    EXPECT_EQ(p.action, LH_ACTION_FAIL);
    EXPECT_EQ(p.concurrency, 7);
    EXPECT_EQ(p.max_recoveries, 3);
    world_close(&w);
}

SPEC(every_field_is_kept_and_listed_as_it_was_set)
{
    struct world w = world_open();
    lh_policy all = {.set = LH_POLICY_ALL,
                     .lease_ms = 11,
                     .max_attempts = LH_UNLIMITED,
                     .max_recoveries = LH_UNLIMITED,
                     .action = LH_ACTION_PENDING,
                     .recovery = false,
                     .recovery_backoff_ms = 12,
                     .backoff_ms = 13,
                     .backoff_cap_ms = 14,
                     .timeout_ms = 15,
                     .exclusive = true,
                     .audit = LH_AUDIT_FULL,
                     .retention_ms = 16,
                     .retention_failed_ms = 17,
                     .max_payload = 18,
                     .rate_n = 19,
                     .rate_per_ms = 20,
                     .concurrency = 21};
    EXPECT_OK(lh_policy_set(w.store, "mail", NULL, &all, 0));
    lh_policies *list = NULL;
    EXPECT_OK(lh_policy_list(w.store, &list));
    EXPECT_EQ(list->n, 1);
    EXPECT_STR(list->row[0].queue, "mail");
    EXPECT(list->row[0].kind == NULL);
    lh_policy resolved = policy_of(&w, "mail", "any");
    const lh_policy *both[] = {&list->row[0].policy, &resolved};
    for (int i = 0; i < 2; i++) {
        const lh_policy *p = both[i];
        EXPECT_EQ(p->set, LH_POLICY_ALL);
        EXPECT_EQ(p->lease_ms, 11);
        EXPECT_EQ(p->max_attempts, LH_UNLIMITED);
        EXPECT_EQ(p->max_recoveries, LH_UNLIMITED);
        EXPECT_EQ(p->action, LH_ACTION_PENDING);
        EXPECT(!p->recovery);
        EXPECT_EQ(p->recovery_backoff_ms, 12);
        EXPECT_EQ(p->backoff_ms, 13);
        EXPECT_EQ(p->backoff_cap_ms, 14);
        EXPECT_EQ(p->timeout_ms, 15);
        EXPECT(p->exclusive);
        EXPECT_EQ(p->audit, LH_AUDIT_FULL);
        EXPECT_EQ(p->retention_ms, 16);
        EXPECT_EQ(p->retention_failed_ms, 17);
        EXPECT_EQ(p->max_payload, 18);
        EXPECT_EQ(p->rate_n, 19);
        EXPECT_EQ(p->rate_per_ms, 20);
        EXPECT_EQ(p->concurrency, 21);
    }
    lh_policies_free(list);
    world_close(&w);
}

SPEC(setting_one_field_leaves_the_others_of_the_row_alone)
{
    struct world w = world_open();
    lh_policies *list = NULL;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_LEASE, .lease_ms = 1000));
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_TIMEOUT, .timeout_ms = 2000));
    EXPECT_EQ(policy_of(&w, "mail", NULL).lease_ms, 1000);
    EXPECT_EQ(policy_of(&w, "mail", NULL).timeout_ms, 2000);
    EXPECT_OK(lh_policy_set(w.store, "mail", NULL, &(lh_policy){.set = LH_POLICY_BACKOFF},
                            LH_POLICY_LEASE));
    EXPECT_EQ(policy_of(&w, "mail", NULL).lease_ms, 300000);
    EXPECT_EQ(policy_of(&w, "mail", NULL).backoff_ms, 0);
    EXPECT_EQ(policy_of(&w, "mail", NULL).timeout_ms, 2000);
    EXPECT_OK(lh_policy_set(w.store, "mail", NULL, NULL, LH_POLICY_ALL));
    EXPECT_OK(lh_policy_list(w.store, &list));
    EXPECT_EQ(list->n, 0);
    lh_policies_free(list);
    world_close(&w);
}

SPEC(a_policy_holds_for_other_handles_at_once)
{
    struct world w = world_open();
    lh_job job;
    lh_store *other = world_second_handle();
    enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &job)); /* this handle has read the policies already */
    EXPECT_OK(lh_policy_set(other, "mail", NULL,
                            &(lh_policy){.set = LH_POLICY_LEASE, .lease_ms = 4321}, 0));
    enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.lease_ms, 4321);
    EXPECT_EQ(policy_of(&w, "mail", NULL).lease_ms, 4321);
    lh_close(other);
    world_close(&w);
}

SPEC(a_change_of_policy_is_recorded)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", "k", .set = LH_POLICY_LEASE, .lease_ms = 1000));
    EXPECT_STR(story_of(&w, 0), "policy.changed");
    EXPECT_CONTAINS(last_event(&w, "policy.changed").data, "mail");
    world_close(&w);
}

/* ---- what is refused ---- */

static void expect_refused(struct world *w, lh_policy bad, const char *name)
{
    EXPECT_STATUS(lh_policy_set(w->store, "mail", NULL, &bad, 0), LH_EINVAL);
    EXPECT_CONTAINS(lh_errmsg(w->store), name);
}

#define REFUSED(bit_, field_, value_, name_) \
    expect_refused(&w, (lh_policy){.set = LH_POLICY_##bit_, .field_ = (value_)}, name_)

SPEC(bad_values_of_a_policy_are_refused_by_name_and_change_nothing)
{
    struct world w = world_open();
    const int64_t month = INT64_C(30) * 86400000;
    REFUSED(LEASE, lease_ms, 0, "lease");
    REFUSED(LEASE, lease_ms, -1, "lease");
    REFUSED(LEASE, lease_ms, month + 1, "lease");
    REFUSED(MAX_ATTEMPTS, max_attempts, 0, "max attempts");
    REFUSED(MAX_ATTEMPTS, max_attempts, -2, "max attempts");
    REFUSED(MAX_ATTEMPTS, max_attempts, 1000001, "max attempts");
    REFUSED(MAX_RECOVERIES, max_recoveries, -2, "max recoveries");
    REFUSED(MAX_RECOVERIES, max_recoveries, 1000001, "max recoveries");
    REFUSED(ACTION, action, 0, "action");
    REFUSED(ACTION, action, LH_ACTION_FAIL + 1, "action");
    REFUSED(RECOVERY_BACKOFF, recovery_backoff_ms, -1, "recovery backoff");
    REFUSED(BACKOFF, backoff_ms, -1, "backoff");
    REFUSED(BACKOFF_CAP, backoff_cap_ms, -1, "backoff cap");
    REFUSED(TIMEOUT, timeout_ms, -1, "timeout");
    REFUSED(AUDIT, audit, 0, "audit");
    REFUSED(AUDIT, audit, LH_AUDIT_FULL + 1, "audit");
    REFUSED(RETENTION, retention_ms, -1, "retention");
    REFUSED(RETENTION_FAILED, retention_failed_ms, -1, "retention");
    REFUSED(MAX_PAYLOAD, max_payload, 0, "max payload");
    REFUSED(MAX_PAYLOAD, max_payload, (64 << 20) + 1, "max payload");
    REFUSED(CONCURRENCY, concurrency, -1, "concurrency");
    REFUSED(RATE, rate_n, -1, "rate");
    expect_refused(&w, (lh_policy){.set = LH_POLICY_RATE, .rate_n = 1, .rate_per_ms = 0}, "rate");
    expect_refused(&w, (lh_policy){.set = LH_POLICY_RATE, .rate_n = 1, .rate_per_ms = -5}, "rate");
    EXPECT_STATUS(lh_policy_set(w.store, "mail", NULL, &(lh_policy){.set = 1U << 20}, 0),
                  LH_EMISUSE);
    EXPECT_STATUS(policy(&w, "bad name", NULL, .set = LH_POLICY_LEASE, .lease_ms = 1), LH_EINVAL);
    EXPECT_CONTAINS(lh_errmsg(w.store), "bad name");
    EXPECT_STATUS(policy(&w, "mail", "*", .set = LH_POLICY_LEASE, .lease_ms = 1), LH_EINVAL);
    EXPECT_STATUS(policy(&w, "*", NULL, .set = LH_POLICY_LEASE, .lease_ms = 1), LH_EINVAL);
    /* One invalid field refuses the whole call. */
    EXPECT_STATUS(policy(&w, "mail", NULL, .set = LH_POLICY_LEASE | LH_POLICY_TIMEOUT,
                         .lease_ms = 1000, .timeout_ms = -1),
                  LH_EINVAL);
    EXPECT_EQ(policy_of(&w, "mail", NULL).lease_ms, 300000);
    EXPECT_EQ(events_of(&w, 0)->n, 0);
    world_close(&w);
}

SPEC(the_limits_of_policy_values_are_themselves_allowed)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "a", NULL,
                     .set = LH_POLICY_LEASE | LH_POLICY_MAX_ATTEMPTS | LH_POLICY_MAX_RECOVERIES |
                            LH_POLICY_MAX_PAYLOAD,
                     .lease_ms = 1, .max_attempts = 1, .max_recoveries = 0, .max_payload = 1));
    EXPECT_OK(policy(&w, "b", NULL,
                     .set = LH_POLICY_LEASE | LH_POLICY_MAX_ATTEMPTS | LH_POLICY_MAX_RECOVERIES |
                            LH_POLICY_MAX_PAYLOAD,
                     .lease_ms = INT64_C(30) * 86400000, .max_attempts = 1000000,
                     .max_recoveries = 1000000, .max_payload = 64 << 20));
    world_close(&w);
}

SPEC(rate_concurrency_and_exclusive_belong_to_a_queue_as_a_whole)
{
    struct world w = world_open();
    EXPECT_STATUS(policy(&w, "mail", "k", .set = LH_POLICY_CONCURRENCY, .concurrency = 1),
                  LH_EINVAL);
    EXPECT_STATUS(policy(&w, NULL, NULL, .set = LH_POLICY_CONCURRENCY, .concurrency = 1),
                  LH_EINVAL);
    EXPECT_STATUS(policy(&w, "mail", "k", .set = LH_POLICY_RATE, .rate_n = 1, .rate_per_ms = 1000),
                  LH_EINVAL);
    EXPECT_STATUS(policy(&w, NULL, NULL, .set = LH_POLICY_RATE, .rate_n = 1, .rate_per_ms = 1000),
                  LH_EINVAL);
    EXPECT_STATUS(policy(&w, "mail", "k", .set = LH_POLICY_EXCLUSIVE, .exclusive = true),
                  LH_EINVAL);
    EXPECT_OK(policy(&w, NULL, NULL, .set = LH_POLICY_EXCLUSIVE, .exclusive = true));
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_EXCLUSIVE, .exclusive = true));
    EXPECT(policy_of(&w, "mail", "k").exclusive);
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_CONCURRENCY, .concurrency = 1));
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RATE, .rate_n = 1, .rate_per_ms = 1000));
    EXPECT_EQ(queue_of(&w, "mail").concurrency, 1);
    EXPECT_EQ(queue_of(&w, "mail").rate_n, 1);
    EXPECT_EQ(queue_of(&w, "mail").rate_per_ms, 1000);
    world_close(&w);
}

/* ---- backoff ---- */

/* Fail the job of `queue` in each attempt; the delay must be within [low, high]. */
static void expect_delay(struct world *w, const char *queue, int64_t low, int64_t high)
{
    lh_job job;
    EXPECT_OK(claim_one(w, queue, &job));
    EXPECT_OK(fail(w, &job, "no"));
    lh_job seen = job_of(w, job.id);
    int64_t delay = seen.run_at - lh_now(w->store);
    EXPECT_EQ(seen.state, LH_SCHEDULED);
    if (delay < low || delay > high)
        FAIL("attempt %lld: a delay of %lld ms is not within %lld and %lld",
             (long long)seen.attempt, (long long)delay, (long long)low, (long long)high);
    clock_advance_ms(w, high);
}

SPEC(the_backoff_doubles_with_every_attempt_up_to_its_cap)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_BACKOFF | LH_POLICY_BACKOFF_CAP,
                     .backoff_ms = 1000, .backoff_cap_ms = 6000));
    enqueue(&w, "mail", "x", .max_attempts = LH_UNLIMITED);
    expect_delay(&w, "mail", 500, 1000);
    expect_delay(&w, "mail", 1000, 2000);
    expect_delay(&w, "mail", 2000, 4000);
    for (int i = 0; i < 70; i++) /* more often than 64 bits can be doubled */
        expect_delay(&w, "mail", 3000, 6000);
    world_close(&w);
}

SPEC(a_job_may_override_the_backoff_of_its_policy)
{
    struct world w = world_open();
    enqueue(&w, "mail", "x", .max_attempts = LH_UNLIMITED, .backoff_ms = 60000,
            .backoff_cap_ms = 90000);
    expect_delay(&w, "mail", 30000, 60000);
    expect_delay(&w, "mail", 45000, 90000);
    expect_delay(&w, "mail", 45000, 90000);
    world_close(&w);
}

SPEC(a_backoff_cap_below_the_backoff_is_the_delay)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_BACKOFF | LH_POLICY_BACKOFF_CAP,
                     .backoff_ms = 10000, .backoff_cap_ms = 2000));
    enqueue(&w, "mail", "x", .max_attempts = LH_UNLIMITED);
    expect_delay(&w, "mail", 1000, 2000);
    world_close(&w);
}

SPEC(without_a_backoff_a_retry_is_pending_at_once)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_BACKOFF, .backoff_ms = 0));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(fail(&w, &job, "no"));
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    EXPECT_OK(claim_one(&w, "mail", &job));
    world_close(&w);
}

SPEC(jobs_that_failed_together_are_retried_at_different_times)
{
    struct world w = world_open();
    int64_t first = 0;
    bool differ = false;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_BACKOFF, .backoff_ms = 1000000));
    for (int i = 0; i < 20; i++)
        enqueue(&w, "mail", "x");
    lh_jobs *jobs = claim_many(&w, "mail", 20);
    for (size_t i = 0; i < jobs->n; i++) {
        EXPECT_OK(fail(&w, &jobs->job[i], "no"));
        int64_t run_at = job_of(&w, jobs->job[i].id).run_at;
        differ = differ || (i > 0 && run_at != first);
        first = run_at;
    }
    EXPECT(differ);
    world_close(&w);
}
