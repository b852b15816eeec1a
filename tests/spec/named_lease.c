/* Named leases: time-limited ownership of a (scope, name), and the state that outlives it. */
#include "harness/recover.h"
#include "world.h"

static int acquire(struct world *w, const char *owner, int64_t ttl_ms, lh_lease *out)
{
    lh_leases *leases = NULL;
    int rc = lh_lease_acquire(w->store, "sync", "chunk/7",
                              &(lh_lease_opts){.owner = owner, .ttl_ms = ttl_ms}, &leases);
    if (leases != NULL)
        *out = keep_lease(w, leases);
    return rc;
}

static int extend(struct world *w, lh_lease_opts opts)
{
    return lh_lease_extend(w->store, "sync", "chunk/7", &opts, NULL);
}

static int give_back(struct world *w, const char *owner, bool *released)
{
    return lh_lease_release(w->store, "sync", "chunk/7", &(lh_lease_opts){.owner = owner},
                            released);
}

static lh_lease lease_of(struct world *w)
{
    lh_leases *leases = NULL;
    EXPECT_OK(lh_lease_get(w->store, "sync", "chunk/7", &leases));
    return keep_lease(w, leases);
}

static bool known(struct world *w)
{
    lh_leases *leases = NULL;
    int rc = lh_lease_get(w->store, "sync", "chunk/7", &leases);
    lh_leases_free(leases);
    return rc == LH_OK;
}

/* ---- acquire ---- */

SPEC(acquiring_a_free_lease_returns_a_token)
{
    struct world w = world_open();
    lh_lease lease;
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    EXPECT_STR(lease.scope, "sync");
    EXPECT_STR(lease.name, "chunk/7");
    EXPECT_STR(lease.owner, "a");
    EXPECT(lease.token > 0);
    EXPECT_EQ(lease.acquired_at, WORLD_START_MS);
    EXPECT_EQ(lease.expires_at, WORLD_START_MS + 1000);
    EXPECT_EQ(lease.remaining_ms, 1000);
    EXPECT(!lease.stale);
    EXPECT(lease.value == NULL);
    EXPECT_EQ(lease.rows, -1);
    EXPECT_EQ(lease.last_completed_at, 0);
    EXPECT_EQ(lease_of(&w).token, lease.token);
    world_close(&w);
}

SPEC(an_active_lease_cannot_be_acquired_by_another_owner)
{
    struct world w = world_open();
    lh_lease mine, theirs;
    EXPECT_OK(acquire(&w, "a", 1000, &mine));
    clock_advance_ms(&w, 999);
    EXPECT_STATUS(acquire(&w, "b", 1000, &theirs), LH_EHELD);
    EXPECT_CONTAINS(lh_errmsg(w.store), "\"a\"");
    EXPECT_STR(theirs.owner, "a"); /* the answer names the holder */
    EXPECT_EQ(theirs.token, mine.token);
    EXPECT_EQ(theirs.remaining_ms, 1);
    EXPECT_EQ(lease_of(&w).expires_at, WORLD_START_MS + 1000);
    world_close(&w);
}

SPEC(an_expired_lease_passes_to_the_next_owner_under_a_higher_token)
{
    struct world w = world_open();
    lh_lease mine, theirs;
    EXPECT_OK(acquire(&w, "a", 1000, &mine));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(acquire(&w, "b", 1000, &theirs));
    EXPECT(theirs.token > mine.token);
    EXPECT_STR(theirs.owner, "b");
    EXPECT_EQ(theirs.acquired_at, WORLD_START_MS + 1000);
    EXPECT_STATUS(extend(&w, (lh_lease_opts){.owner = "a"}), LH_ELOST);
    EXPECT_STR(story_of(&w, 0), "lease.acquired lease.recovered lease.acquired");
    lh_event recovered = last_event(&w, "lease.recovered");
    EXPECT_STR(recovered.lease, "sync/chunk/7");
    EXPECT_STR(recovered.worker, "a");
    EXPECT_EQ(recovered.token, mine.token);
    world_close(&w);
}

SPEC(acquiring_a_held_lease_again_extends_it_under_the_same_token)
{
    struct world w = world_open();
    lh_lease first, second;
    EXPECT_OK(acquire(&w, "a", 1000, &first));
    clock_advance_ms(&w, 600);
    EXPECT_OK(acquire(&w, "a", 2000, &second));
    EXPECT_EQ(second.token, first.token);
    EXPECT_EQ(second.acquired_at, first.acquired_at);
    EXPECT_EQ(second.expires_at, WORLD_START_MS + 2600);
    world_close(&w);
}

SPEC(acquiring_with_take_only_does_not_extend_a_held_lease)
{
    struct world w = world_open();
    lh_lease_opts opts = {.owner = "a", .ttl_ms = 1000, .take_only = true};
    EXPECT_OK(lh_lease_acquire(w.store, "s", "n", &opts, NULL));
    clock_advance_ms(&w, 600);
    EXPECT_STATUS(lh_lease_acquire(w.store, "s", "n", &opts, NULL), LH_EHELD);
    clock_advance_ms(&w, 400);
    EXPECT_OK(lh_lease_acquire(w.store, "s", "n", &opts, NULL));
    world_close(&w);
}

SPEC(acquiring_an_expired_lease_again_is_a_new_lease)
{
    struct world w = world_open();
    lh_lease first, second;
    EXPECT_OK(acquire(&w, "a", 1000, &first));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(acquire(&w, "a", 1000, &second));
    EXPECT(second.token > first.token);
    world_close(&w);
}

SPEC(without_an_owner_a_lease_belongs_to_the_handle)
{
    struct world w = world_open();
    lh_lease lease;
    lh_store *other = world_second_handle();
    EXPECT(strcmp(lh_default_owner(w.store), lh_default_owner(other)) != 0);
    EXPECT_OK(acquire(&w, NULL, 1000, &lease));
    EXPECT_STR(lease.owner, lh_default_owner(w.store));
    EXPECT_STATUS(lh_lease_acquire(other, "sync", "chunk/7", NULL, NULL), LH_EHELD);
    EXPECT_OK(extend(&w, (lh_lease_opts){.ttl_ms = 5000}));
    lh_close(other);
    world_close(&w);
}

SPEC(the_ttl_is_that_of_the_call_or_of_the_scope_or_300_s)
{
    struct world w = world_open();
    lh_lease lease;
    EXPECT_OK(acquire(&w, "a", 0, &lease));
    EXPECT_EQ(lease.remaining_ms, 300000);
    EXPECT_OK(lh_scope_set(w.store, "sync", 120000));
    EXPECT_OK(acquire(&w, "a", 0, &lease));
    EXPECT_EQ(lease.remaining_ms, 120000);
    EXPECT_OK(acquire(&w, "a", 7000, &lease));
    EXPECT_EQ(lease.remaining_ms, 7000);
    EXPECT_OK(lh_scope_set(w.store, "sync", 0));
    EXPECT_OK(acquire(&w, "a", 0, &lease));
    EXPECT_EQ(lease.remaining_ms, 300000);
    world_close(&w);
}

SPEC(setting_the_same_ttl_of_a_scope_again_writes_nothing)
{
    struct world w = world_open();
    lh_store_info before, after;
    EXPECT_OK(lh_scope_set(w.store, "sync", 120000));
    EXPECT_OK(lh_store_status(w.store, &before));
    EXPECT_OK(lh_scope_set(w.store, "sync", 120000));
    EXPECT_OK(lh_scope_set(w.store, "none", 0));
    EXPECT_OK(lh_store_status(w.store, &after));
    EXPECT_EQ(after.changes, before.changes);
    EXPECT_EQ(after.wal_bytes, before.wal_bytes);
    EXPECT_OK(lh_scope_set(w.store, "sync", 0));
    EXPECT_OK(lh_store_status(w.store, &after));
    EXPECT_EQ(after.changes, before.changes + 1);
    world_close(&w);
}

SPEC(leases_with_other_names_or_scopes_are_independent)
{
    struct world w = world_open();
    lh_lease lease;
    lh_leases *list = NULL;
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "chunk/8", &(lh_lease_opts){.owner = "b"}, NULL));
    EXPECT_OK(lh_lease_acquire(w.store, "sink", "chunk/7", &(lh_lease_opts){.owner = "c"}, NULL));
    EXPECT_OK(lh_lease_list(w.store, "sync", &list));
    EXPECT_EQ(list->n, 2);
    EXPECT_STR(list->lease[0].name, "chunk/7");
    EXPECT_STR(list->lease[1].name, "chunk/8");
    lh_leases_free(list);
    EXPECT_OK(lh_lease_list(w.store, NULL, &list));
    EXPECT_EQ(list->n, 3);
    lh_leases_free(list);
    world_close(&w);
}

/* ---- extend ---- */

SPEC(a_lease_cannot_be_extended_past_thirty_days_from_now)
{
    const int64_t day = INT64_C(86400000);
    struct world w = world_open();
    lh_lease lease;
    EXPECT_OK(acquire(&w, "a", 20 * day, &lease));
    EXPECT_OK(extend(&w, (lh_lease_opts){.owner = "a", .by_ms = 10 * day}));
    EXPECT_STATUS(extend(&w, (lh_lease_opts){.owner = "a", .by_ms = 1}), LH_EINVAL);
    EXPECT_STATUS(extend(&w, (lh_lease_opts){.owner = "a", .by_ms = 15 * day}), LH_EINVAL);
    EXPECT_STR(lh_errmsg(w.store), "lease \"sync/chunk/7\" would be held for another 45d: at most "
                                   "30d from now is allowed");
    clock_advance_ms(&w, day);
    EXPECT_OK(extend(&w, (lh_lease_opts){.owner = "a", .by_ms = day}));
    world_close(&w);
}

SPEC(an_extension_to_a_ttl_counts_from_now_and_an_extension_by_a_time_adds_to_the_expiry)
{
    struct world w = world_open();
    lh_lease lease;
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    clock_advance_ms(&w, 500);
    EXPECT_OK(extend(&w, (lh_lease_opts){.owner = "a", .ttl_ms = 3000}));
    EXPECT_EQ(lease_of(&w).expires_at, WORLD_START_MS + 3500);
    EXPECT_OK(extend(&w, (lh_lease_opts){.owner = "a", .by_ms = 250}));
    EXPECT_EQ(lease_of(&w).expires_at, WORLD_START_MS + 3750);
    EXPECT_EQ(lease_of(&w).token, lease.token);
    EXPECT_EQ(lease_of(&w).acquired_at, WORLD_START_MS);
    world_close(&w);
}

SPEC(an_extension_is_refused_to_everyone_but_the_holder)
{
    struct world w = world_open();
    lh_lease lease;
    EXPECT_STATUS(extend(&w, (lh_lease_opts){.owner = "a"}), LH_ELOST);
    EXPECT(!known(&w));
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    EXPECT_STATUS(extend(&w, (lh_lease_opts){.owner = "b"}), LH_ELOST);
    EXPECT_STATUS(extend(&w, (lh_lease_opts){.owner = "a", .token = lease.token + 1}), LH_ELOST);
    EXPECT_OK(extend(&w, (lh_lease_opts){.owner = "a", .token = lease.token, .ttl_ms = 1000}));
    clock_advance_ms(&w, 999);
    EXPECT_OK(extend(&w, (lh_lease_opts){.owner = "a", .ttl_ms = 1000}));
    clock_advance_ms(&w, 1000);
    EXPECT_STATUS(extend(&w, (lh_lease_opts){.owner = "a", .ttl_ms = 1000}), LH_ELOST);
    EXPECT_CONTAINS(lh_errmsg(w.store), "expired");
    world_close(&w);
}

SPEC(an_extension_under_an_old_token_is_refused_after_the_lease_changed_hands)
{
    struct world w = world_open();
    lh_lease first, second;
    EXPECT_OK(acquire(&w, "a", 1000, &first));
    EXPECT_OK(give_back(&w, "a", NULL));
    EXPECT_OK(acquire(&w, "a", 1000, &second));
    EXPECT_STATUS(extend(&w, (lh_lease_opts){.owner = "a", .token = first.token}), LH_ELOST);
    EXPECT_OK(extend(&w, (lh_lease_opts){.owner = "a", .token = second.token}));
    world_close(&w);
}

/* ---- release ---- */

SPEC(a_lease_release_checks_the_owner_and_may_be_repeated)
{
    struct world w = world_open();
    lh_lease lease;
    bool released = true;
    EXPECT_OK(give_back(&w, "a", &released)); /* no owner holds it */
    EXPECT(!released);
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    EXPECT_STATUS(give_back(&w, "b", &released), LH_EHELD);
    EXPECT_STR(lease_of(&w).owner, "a");
    EXPECT_OK(give_back(&w, "a", &released));
    EXPECT(released);
    EXPECT_OK(give_back(&w, "a", &released));
    EXPECT(!released);
    EXPECT_OK(acquire(&w, "b", 1000, &lease));
    EXPECT_STATUS(give_back(&w, "a", &released), LH_EHELD);
    world_close(&w);
}

SPEC(a_release_under_an_old_token_does_not_release_the_new_lease)
{
    struct world w = world_open();
    lh_lease first, second;
    bool released = true;
    EXPECT_OK(acquire(&w, "a", 1000, &first));
    EXPECT_OK(give_back(&w, "a", NULL));
    EXPECT_OK(acquire(&w, "a", 1000, &second));
    EXPECT_OK(lh_lease_release(w.store, "sync", "chunk/7",
                               &(lh_lease_opts){.owner = "a", .token = first.token}, &released));
    EXPECT(!released);
    EXPECT_STR(lease_of(&w).owner, "a");
    EXPECT_OK(lh_lease_release(w.store, "sync", "chunk/7",
                               &(lh_lease_opts){.owner = "a", .token = second.token}, &released));
    EXPECT(released);
    world_close(&w);
}

SPEC(a_lease_without_state_is_deleted_when_it_is_released)
{
    struct world w = world_open();
    lh_lease lease;
    bool stale = true;
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    EXPECT_OK(give_back(&w, "a", NULL));
    EXPECT(!known(&w));
    EXPECT_OK(lh_lease_is_stale(w.store, "sync", "chunk/7", &stale));
    EXPECT(!stale);
    world_close(&w);
}

SPEC(the_token_of_a_lease_rises_even_after_the_lease_was_deleted)
{
    struct world w = world_open();
    lh_lease lease;
    int64_t token = 0;
    for (int i = 0; i < 30; i++) {
        EXPECT_OK(acquire(&w, i % 2 ? "a" : "b", 1000, &lease));
        EXPECT(lease.token > token);
        EXPECT(lease.token < INT64_C(1) << 53);
        token = lease.token;
        if (i % 3 == 0)
            EXPECT_OK(give_back(&w, lease.owner, NULL));
        else if (i % 3 == 1)
            clock_advance_ms(&w, 1000); /* acquired by the next owner */
        else {
            clock_advance_ms(&w, 1000);
            EXPECT_OK(lh_recover(w.store, NULL, NULL)); /* freed */
            EXPECT(!known(&w));
        }
    }
    world_close(&w);
}

SPEC(the_token_of_a_lease_with_state_rises_too)
{
    struct world w = world_open();
    lh_lease lease;
    int64_t token = 0;
    for (int i = 0; i < 5; i++) {
        EXPECT_OK(acquire(&w, "a", 1000, &lease));
        EXPECT(lease.token > token);
        token = lease.token;
        EXPECT_OK(lh_lease_complete(w.store, "sync", "chunk/7",
                                    &(lh_lease_opts){.owner = "a", .rows = i, .has_rows = true},
                                    NULL));
    }
    world_close(&w);
}

/* ---- complete, and what outlives the holder ---- */

SPEC(a_lease_complete_stores_rows_value_and_time)
{
    struct world w = world_open();
    lh_lease lease;
    lh_leases *after = NULL;
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    clock_advance_ms(&w, 500);
    EXPECT_OK(lh_lease_complete(w.store, "sync", "chunk/7",
                                &(lh_lease_opts){.owner = "a",
                                                 .token = lease.token,
                                                 .rows = 1234,
                                                 .has_rows = true,
                                                 .value = "{\"cursor\":\"z\"}"},
                                &after));
    lease = keep_lease(&w, after);
    EXPECT(lease.owner == NULL);
    EXPECT_EQ(lease.expires_at, 0);
    EXPECT_EQ(lease.acquired_at, 0);
    EXPECT_EQ(lease.remaining_ms, 0);
    EXPECT(!lease.stale);
    EXPECT_EQ(lease.rows, 1234);
    EXPECT_STR(lease.value, "{\"cursor\":\"z\"}");
    EXPECT_EQ(lease.last_completed_at, WORLD_START_MS + 500);

    EXPECT_OK(acquire(&w, "b", 1000, &lease)); /* the next owner finds it */
    EXPECT_EQ(lease.rows, 1234);
    EXPECT_STR(lease.value, "{\"cursor\":\"z\"}");
    EXPECT_EQ(lease.last_completed_at, WORLD_START_MS + 500);
    clock_advance_ms(&w, 1000); /* and its owner dies */
    EXPECT_OK(lh_recover(w.store, NULL, NULL));
    EXPECT(lease_of(&w).owner == NULL);
    EXPECT_STR(lease_of(&w).value, "{\"cursor\":\"z\"}");
    EXPECT_STR(story_of(&w, 0),
               "lease.acquired lease.completed lease.acquired recovery.started lease.recovered "
               "recovery.completed");
    world_close(&w);
}

SPEC(zero_rows_differ_from_no_rows)
{
    struct world w = world_open();
    lh_lease lease;
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    EXPECT_OK(lh_lease_complete(w.store, "sync", "chunk/7", &(lh_lease_opts){.owner = "a"}, NULL));
    EXPECT_EQ(lease_of(&w).rows, -1);
    EXPECT_EQ(lease_of(&w).last_completed_at, WORLD_START_MS);
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    EXPECT_OK(lh_lease_complete(w.store, "sync", "chunk/7",
                                &(lh_lease_opts){.owner = "a", .rows = 0, .has_rows = true}, NULL));
    EXPECT_EQ(lease_of(&w).rows, 0);
    world_close(&w);
}

SPEC(only_the_holder_completes_a_lease)
{
    struct world w = world_open();
    lh_lease lease;
    lh_lease_opts a = {.owner = "a"}, b = {.owner = "b"};
    EXPECT_STATUS(lh_lease_complete(w.store, "sync", "chunk/7", &a, NULL), LH_ELOST);
    EXPECT(!known(&w));
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    EXPECT_STATUS(lh_lease_complete(w.store, "sync", "chunk/7", &b, NULL), LH_ELOST);
    a.token = lease.token + 1;
    EXPECT_STATUS(lh_lease_complete(w.store, "sync", "chunk/7", &a, NULL), LH_ELOST);
    a.token = lease.token;
    EXPECT_OK(lh_lease_complete(w.store, "sync", "chunk/7", &a, NULL));
    EXPECT_STATUS(lh_lease_complete(w.store, "sync", "chunk/7", &a, NULL), LH_ELOST);
    world_close(&w);
}

SPEC(a_value_is_set_by_acquire_and_extend_and_stays_when_none_is_given)
{
    struct world w = world_open();
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "chunk/7",
                               &(lh_lease_opts){.owner = "a", .value = "{\"v\":1}"}, NULL));
    EXPECT_STR(lease_of(&w).value, "{\"v\":1}");
    EXPECT_OK(extend(&w, (lh_lease_opts){.owner = "a"}));
    EXPECT_STR(lease_of(&w).value, "{\"v\":1}");
    EXPECT_OK(extend(&w, (lh_lease_opts){.owner = "a", .value = "2"}));
    EXPECT_STR(lease_of(&w).value, "2");
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "chunk/7",
                               &(lh_lease_opts){.owner = "a", .value = "[3]"}, NULL));
    EXPECT_STR(lease_of(&w).value, "[3]");
    EXPECT_OK(give_back(&w, "a", NULL));
    EXPECT_STR(lease_of(&w).value, "[3]");
    world_close(&w);
}

SPEC(a_value_that_is_not_json_is_refused)
{
    struct world w = world_open();
    lh_lease lease;
    EXPECT_STATUS(lh_lease_acquire(w.store, "sync", "chunk/7",
                                   &(lh_lease_opts){.owner = "a", .value = "nope"}, NULL),
                  LH_EINVAL);
    EXPECT(!known(&w));
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    EXPECT_STATUS(extend(&w, (lh_lease_opts){.owner = "a", .ttl_ms = 9000, .value = "{"}),
                  LH_EINVAL);
    EXPECT_EQ(lease_of(&w).expires_at, WORLD_START_MS + 1000);
    EXPECT_STATUS(lh_lease_complete(w.store, "sync", "chunk/7",
                                    &(lh_lease_opts){.owner = "a", .value = ""}, NULL),
                  LH_EINVAL);
    EXPECT_STR(lease_of(&w).owner, "a");
    world_close(&w);
}

/* ---- stale ---- */

SPEC(a_lease_is_stale_from_its_expiry_on)
{
    struct world w = world_open();
    lh_lease lease;
    bool stale = true;
    EXPECT_OK(lh_lease_is_stale(w.store, "sync", "chunk/7", &stale));
    EXPECT(!stale);
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    clock_advance_ms(&w, 999);
    EXPECT_OK(lh_lease_is_stale(w.store, "sync", "chunk/7", &stale));
    EXPECT(!stale);
    EXPECT_EQ(lease_of(&w).remaining_ms, 1);
    clock_advance_ms(&w, 1);
    EXPECT_OK(lh_lease_is_stale(w.store, "sync", "chunk/7", &stale));
    EXPECT(stale);
    EXPECT(lease_of(&w).stale);
    EXPECT_STR(lease_of(&w).owner, "a");
    EXPECT_EQ(lease_of(&w).remaining_ms, 0);
    world_close(&w);
}

SPEC(recovery_frees_a_stale_lease_and_leaves_an_active_one)
{
    struct world w = world_open();
    lh_lease lease;
    lh_recovered found;
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "other", &(lh_lease_opts){.ttl_ms = 1001}, NULL));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(recovered_by_hand(w.store, &found));
    EXPECT_EQ(found.locks_cleaned, 1);
    EXPECT(!known(&w));
    lh_leases *list = NULL;
    EXPECT_OK(lh_lease_list(w.store, NULL, &list));
    EXPECT_EQ(list->n, 1);
    lh_leases_free(list);
    world_close(&w);
}

SPEC(the_events_of_a_lease_name_its_tokens)
{
    struct world w = world_open();
    lh_lease lease;
    EXPECT_OK(acquire(&w, "a", 1000, &lease));
    EXPECT_OK(give_back(&w, "a", NULL));
    const lh_events *events = events_of(&w, 0);
    EXPECT_EQ(events->n, 2);
    const char *types[] = {"lease.acquired", "lease.released"};
    for (int i = 0; i < 2; i++) {
        EXPECT_STR(events->event[i].type, types[i]);
        EXPECT_STR(events->event[i].lease, "sync/chunk/7");
        EXPECT_STR(events->event[i].worker, "a");
        EXPECT_EQ(events->event[i].token, lease.token);
        EXPECT_EQ(events->event[i].job, 0);
    }
    world_close(&w);
}
