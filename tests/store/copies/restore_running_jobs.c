/* What was in progress when a copy was made, or is in progress in the replaced store, ends with a
 * restore: jobs, slots, leases, workers. */
#include "store/copies.h"

TEST(job_that_ran_in_the_copy_is_in_quarantine_until_its_deadline)
{
    freeze_now();
    lh_store *store = store_new();
    int64_t id = add(store, "q", "one");
    lh_job held = claim(store, "q", "w", 60000);
    backup(store, "copy.db", (lh_backup_opts){0});
    EXPECT_OK(complete(store, &held));
    lh_close(store);
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){0});
    lh_job job = job_of(store, id);
    EXPECT_EQ(job.state, LH_SCHEDULED);
    EXPECT_EQ(job.attempt, 0); /* the attempt is given back */
    EXPECT_EQ(job.recoveries, 0);
    EXPECT(job.token > held.token);
    expect_nothing(store, "q");
    store_check(store);
    pass_ms(60000);
    EXPECT_EQ(claim(store, "q", "w2", 60000).attempt, 1);
    lh_close(store);
}

TEST(a_job_whose_lease_has_ended_by_now_is_pending_at_once)
{
    freeze_now();
    lh_store *store = store_new();
    int64_t id = add(store, "q", "one");
    (void)claim(store, "q", "w", 1000);
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_close(store);
    pass_ms(1000);
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(state_of(store, id), LH_PENDING);
    EXPECT_EQ(job_of(store, id).recoveries, 0); /* no worker has died */
    EXPECT_EQ(claim(store, "q", "w", 1000).attempt, 1);
    store_check(store);
    lh_close(store);
}

TEST(clock_set_after_the_copy_shifts_no_deadline)
{
    freeze_now();
    lh_store *store = store_new();
    add(store, "q", "one");
    (void)claim(store, "q", "w", 60000);
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_close(store);
    pass_ms(20000);
    step_wall_ms(3600000);
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){0});
    pass_ms(39999);
    expect_nothing(store, "q");
    pass_ms(1);
    (void)claim(store, "q", "w2", 60000);
    lh_close(store);
}

TEST(copy_from_before_a_boot_uses_the_wall_clock)
{
    freeze_now();
    lh_store *store = store_new();
    int64_t late = add(store, "q", "one");
    (void)claim(store, "q", "w", 60000);
    int64_t early = add(store, "q", "two");
    (void)claim(store, "q", "w", 10000);
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_close(store);
    pass_ms(20000);
    boot_again("another");
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(state_of(store, early), LH_PENDING);
    EXPECT_EQ(state_of(store, late), LH_SCHEDULED);
    EXPECT_EQ(info_of(store).epoch, 2); /* one for the restore, one for the boot */
    store_check(store);
    lh_close(store);
}

TEST(job_held_in_the_replaced_store_is_in_quarantine)
{
    freeze_now();
    lh_store *store = store_new();
    int64_t id = add(store, "q", "one");
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_job held = claim(store, "q", "w", 60000);
    restore("copy.db");
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    expect_nothing(store, "q");
    EXPECT(job_of(store, id).token > held.token);
    store_check(store);
    /* Its holder answers: it has lost the lease, and the job is free. */
    EXPECT_STATUS(complete(store, &held), LH_ELOST);
    lh_job next = claim(store, "q", "w2", 60000);
    EXPECT_EQ(next.id, id);
    EXPECT(next.token > held.token);
    lh_close(store);
}

TEST(quarantine_after_a_restore_ends_with_the_lease)
{
    freeze_now();
    lh_store *store = store_new();
    add(store, "q", "one");
    backup(store, "copy.db", (lh_backup_opts){0});
    (void)claim(store, "q", "w", 60000);
    lh_close(store);
    pass_ms(20000);
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){0});
    pass_ms(39999);
    expect_nothing(store, "q");
    pass_ms(1);
    (void)claim(store, "q", "w2", 60000);
    lh_close(store);
}

TEST(slots_and_exclusive_lease_stay_in_quarantine_with_the_job)
{
    freeze_now();
    lh_store *store = store_new();
    EXPECT_OK(lh_policy_set(store, "one", NULL,
                            &(lh_policy){.set = LH_POLICY_EXCLUSIVE, .exclusive = true}, 0));
    EXPECT_OK(lh_policy_set(store, "two", NULL,
                            &(lh_policy){.set = LH_POLICY_CONCURRENCY, .concurrency = 1}, 0));
    for (int i = 0; i < 2; i++) {
        add(store, "one", "x");
        add(store, "two", "x");
    }
    lh_job early = claim(store, "one", "w", 10000);
    backup(store, "copy.db", (lh_backup_opts){0});
    EXPECT_OK(complete(store, &early));
    lh_job exclusive = claim(store, "one", "w", 60000), slot = claim(store, "two", "w", 60000);
    lh_close(store);
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){0});
    expect_nothing(store, "one");
    expect_nothing(store, "two");
    store_check(store);
    pass_ms(10000); /* the lease in the copy has ended, the one in the replaced store has not */
    expect_nothing(store, "one");
    EXPECT_STATUS(complete(store, &exclusive), LH_ELOST);
    EXPECT_STATUS(complete(store, &slot), LH_ELOST);
    (void)claim(store, "one", "w2", 60000);
    (void)claim(store, "two", "w2", 60000);
    store_check(store);
    lh_close(store);
}

TEST(named_leases_are_freed_and_keep_their_state)
{
    lh_store *store = store_new();
    lh_leases *lease = NULL;
    EXPECT_OK(lh_lease_acquire(
        store, "sync", "chunk",
        &(lh_lease_opts){.owner = "me", .ttl_ms = 60000, .value = "{\"at\":7}"}, &lease));
    int64_t token = lease->lease[0].token;
    lh_leases_free(lease);
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_close(store);
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_OK(lh_lease_acquire(store, "sync", "chunk",
                               &(lh_lease_opts){.owner = "another", .ttl_ms = 60000}, &lease));
    EXPECT(lease->lease[0].token > token);
    EXPECT_STR(lease->lease[0].value, "{\"at\":7}");
    lh_leases_free(lease);
    lh_close(store);
}

TEST(workers_of_the_copy_are_dead_until_they_send_a_heartbeat)
{
    lh_store *store = store_new();
    char id[160];
    lh_workers *workers = NULL;
    EXPECT_OK(
        lh_worker_register(store, &(lh_worker_opts){.label = "w", .process = true}, id, sizeof id));
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_close(store);
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_OK(lh_worker_list(store, &workers));
    EXPECT_EQ(workers->n, 1);
    EXPECT_STR(workers->worker[0].state, "dead");
    lh_workers_free(workers);
    EXPECT_OK(lh_worker_heartbeat(store, id, 0, NULL, 0, NULL));
    EXPECT_OK(lh_worker_list(store, &workers));
    EXPECT_STR(workers->worker[0].state, "alive");
    lh_workers_free(workers);
    lh_close(store);
}

TEST(restored_store_has_an_event_of_the_restore)
{
    lh_store *store = store_new();
    lh_events *events = NULL;
    add(store, "q", "one");
    (void)claim(store, "q", "w", 60000);
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_close(store);
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_OK(lh_event_list(store, &(lh_event_filter){.newest = true, .limit = 1}, &events));
    EXPECT_EQ(events->n, 1);
    EXPECT_STR(events->event[0].type, "store.restored");
    EXPECT_CONTAINS(events->event[0].reason, "copy.db");
    EXPECT_CONTAINS(events->event[0].data, "\"jobs\":1,");
    EXPECT_CONTAINS(events->event[0].data, "\"released\":1,\"held_back\":1,\"epoch\":1}");
    lh_events_free(events);
    lh_close(store);
}
