/* The totals of all recoveries of a store: runs, jobs, leases, workers, time. */
#include "recovery_world.h"

static lh_store_info status(struct world *w)
{
    lh_store_info info;
    EXPECT_OK(lh_store_status(w->store, &info));
    return info;
}

static void expect_totals(struct world *w, lh_store_info before, int64_t runs, int64_t retried,
                          int64_t leases, int64_t dead)
{
    lh_store_info after = status(w);
    int64_t ran = after.recovery.startup + after.recovery.claim + after.recovery.timer +
                  after.recovery.expiry + after.recovery.death + after.recovery.manual;
    int64_t had = before.recovery.startup + before.recovery.claim + before.recovery.timer +
                  before.recovery.expiry + before.recovery.death + before.recovery.manual;
    EXPECT_EQ(ran - had, runs);
    EXPECT_EQ(after.recovery.retried - before.recovery.retried, retried);
    EXPECT_EQ(after.recovery.leases - before.recovery.leases, leases);
    EXPECT_EQ(after.recovery.dead_workers - before.recovery.dead_workers, dead);
}

SPEC(the_totals_of_a_new_store_are_zero)
{
    struct world w = world_open();
    expect_totals(&w, (lh_store_info){.kind = NULL}, 0, 0, 0, 0);
    EXPECT_STR(status(&w).degraded, "");
    world_close(&w);
}

SPEC(the_totals_count_recoveries_by_trigger)
{
    struct world w = world_open();
    lh_job job;
    recover_by(&w, NULL);
    EXPECT_EQ(status(&w).recovery.manual, 1);
    recover_by(&w, &(lh_recover_opts){.dry_run = true});
    EXPECT_EQ(status(&w).recovery.manual, 1);
    lh_store_info before = status(&w);
    held(&w, "mail", "w-1", 1000);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    EXPECT_EQ(status(&w).recovery.claim, 1);
    expect_totals(&w, before, 1, 1, 0, 0);
    clock_advance_ms(&w, 1000);
    EXPECT(upkeep(&w).report != 0);
    EXPECT_EQ(status(&w).recovery.expiry, 1);
    EXPECT_EQ(upkeep(&w).report, 0);
    EXPECT_EQ(status(&w).recovery.expiry, 1);
    enlist_process(&w, "w-2");
    clock_advance_ms(&w, SILENCE_MS);
    before = status(&w);
    EXPECT(upkeep(&w).report != 0);
    EXPECT_EQ(status(&w).recovery.timer, 1);
    expect_totals(&w, before, 1, 0, 0, 1);
    lh_close(world_handle((lh_open_opts){.startup = true}));
    EXPECT_EQ(status(&w).recovery.startup, 1);
    EXPECT_EQ(status(&w).recovery.death, 0);
    world_close(&w);
}

SPEC(the_totals_count_the_outcomes_of_jobs)
{
    struct world w = world_open();
    static const lh_action actions[] = {LH_ACTION_RETRY, LH_ACTION_PENDING, LH_ACTION_FAIL};
    enlist(&w, "w-1", .process = true, .tells_started = true, .interval_ms = 1000);
    for (int i = 0; i < 3; i++) {
        held(&w, "mail", "w-2", 1000);
        clock_advance_ms(&w, 1000);
        recover_by(&w, &(lh_recover_opts){.action = actions[i]});
        int64_t purged;
        EXPECT_OK(lh_queue_purge(w.store, "mail", &purged));
        EXPECT_OK(lh_worker_heartbeat(w.store, "w-1", 0, NULL, 0, NULL));
    }
    held(&w, "mail", "w-1", 60000);
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a",
                               &(lh_lease_opts){.owner = "w-1", .ttl_ms = 60000}, NULL));
    clock_advance_ms(&w, SILENCE_MS);
    recover_by(&w, NULL);
    lh_store_info info = status(&w);
    EXPECT_EQ(info.recovery.retried, 1);
    EXPECT_EQ(info.recovery.made_pending, 1);
    EXPECT_EQ(info.recovery.failed, 1);
    EXPECT_EQ(info.recovery.released, 1);
    EXPECT_EQ(info.recovery.leases, 1);
    EXPECT_EQ(info.recovery.dead_workers, 1);
    EXPECT_EQ(info.recovery.failures, 0);
    world_close(&w);
}

static void pass(void *arg, int64_t done, int64_t total)
{
    (void)done;
    (void)total;
    clock_advance_ms(arg, 11);
}

SPEC(the_totals_add_up_the_duration_of_recoveries)
{
    enum { MANY = 700 }; /* two batches: time passes between them */
    struct world w = world_open();
    static lh_new_job jobs[MANY];
    static lh_enqueued out[MANY];
    int64_t sum = 0;
    EXPECT_OK(policy(&w, NULL, NULL, .set = LH_POLICY_LEASE | LH_POLICY_MAX_RECOVERIES,
                     .lease_ms = 1000, .max_recoveries = LH_UNLIMITED));
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, MANY, NULL, out));
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(claim_many(&w, "mail", MANY)->n, MANY);
        clock_advance_ms(&w, 1000);
        lh_recover_opts opts = {.progress = pass, .progress_arg = &w};
        int64_t took = recover_by(&w, &opts)->duration_ms;
        EXPECT(took >= 11);
        sum += took;
    }
    EXPECT_EQ(status(&w).recovery.duration_ms, sum);
    world_close(&w);
}
