/* Many owners compete for one named lease. */
#include "race/sizes.h"

#include "harness/harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { OWNERS = 8, EACH = 10 * RACE_SCALE };

/* Code that only the holder of the lease runs. */
static struct {
    atomic_int holders;
    _Atomic int64_t token;
    atomic_int taken;
} under;

static void hold_once(lh_store *store, const char *owner)
{
    lh_leases *leases = NULL;
    lh_lease_opts opts = {.owner = owner, .ttl_ms = 60000};
    int rc = lh_lease_acquire(store, "race", "one", &opts, &leases);

    if (rc == LH_OK) {
        EXPECT_EQ(atomic_fetch_add(&under.holders, 1), 0);
        EXPECT(leases->lease[0].token > atomic_load(&under.token));
        atomic_store(&under.token, leases->lease[0].token);
        atomic_fetch_add(&under.taken, 1);
        EXPECT_EQ(atomic_fetch_sub(&under.holders, 1), 1);
        bool released = false;
        EXPECT_OK(lh_lease_release(store, "race", "one", &opts, &released));
        EXPECT(released);
    } else if (rc != LH_EHELD) {
        FAIL("%s: %s", lh_status_name(rc), lh_errmsg(store));
    }
    lh_leases_free(leases);
}

static void *want_it(void *arg)
{
    lh_store *store = NULL;
    char owner[16];

    (void)snprintf(owner, sizeof owner, "owner-%d", *(const int *)arg);
    if (lh_open(test_store(), &(lh_open_opts){.create = true, .busy_ms = TEST_BUSY_MS}, &store) !=
        LH_OK)
        FAIL("%s", lh_errmsg(store));
    for (int i = 0; i < EACH; i++)
        hold_once(store, owner);
    lh_close(store);
    return NULL;
}

/* A lease without state is deleted on release, and its next token is still above the last. */
TEST_TIMEOUT(a_lease_has_one_holder_at_a_time_and_its_tokens_rise, 120)
{
    pthread_t threads[OWNERS];
    int number[OWNERS];

    for (int i = 0; i < OWNERS; i++) {
        number[i] = i;
        EXPECT_EQ(pthread_create(&threads[i], NULL, want_it, &number[i]), 0);
    }
    for (int i = 0; i < OWNERS; i++)
        EXPECT_EQ(pthread_join(threads[i], NULL), 0);
    EXPECT(atomic_load(&under.taken) > 0);
}
