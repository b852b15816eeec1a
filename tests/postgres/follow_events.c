/* Events become visible in another order than their ids; a reader that follows them misses none. */
#include "session.h"

#include <leasehold.h>
#include <stdio.h>
#include <string.h>

static lh_store *open_store(void)
{
    lh_store *store = NULL;
    if (lh_open(test_store(), NULL, &store) != LH_OK)
        FAIL("%s", lh_errmsg(store));
    return store;
}

/* An act that writes an event: the event names the lease. */
static void acquire(PGconn *conn, const char *name)
{
    char sql[200];
    (void)snprintf(sql, sizeof sql, "SELECT leasehold.lease_acquire('s', '%s', 'me', '1 hour')",
                   name);
    done(conn, sql);
}

/* Reads the leases of the next events, each with a blank; moves *after. */
static void follow(lh_store *store, int64_t *after, int64_t wait_ms, char *told, size_t len)
{
    lh_events *events = NULL;
    lh_event_filter filter = {.after = *after, .wait_ms = wait_ms};
    size_t used = 0;

    told[0] = '\0';
    EXPECT_OK(lh_event_list(store, &filter, &events));
    for (size_t i = 0; i < events->n; i++) {
        const lh_event *event = &events->event[i];
        EXPECT(event->id > *after);
        *after = event->id;
        if (event->lease != NULL)
            used += (size_t)snprintf(told + used, len - used, "%s ", event->lease);
    }
    lh_events_free(events);
}

/* A transaction that began later took the lower id and is still open: the event above it must
 * wait. */
TEST(a_follower_sees_no_event_before_one_with_a_lower_id)
{
    char told[200];
    int64_t after = 0;
    lh_store *store = open_store();
    PGconn *first = session_to(test_store()), *second = session_to(test_store());

    done(first, "BEGIN");
    done(first, "SELECT pg_current_xact_id()");
    done(second, "BEGIN");
    acquire(second, "low");
    acquire(first, "high");
    done(first, "COMMIT");

    follow(store, &after, 1, told, sizeof told);
    EXPECT_STR(told, "");
    done(second, "COMMIT");
    follow(store, &after, 10000, told, sizeof told);
    EXPECT_STR(told, "s/low s/high ");
    PQfinish(first);
    PQfinish(second);
    lh_close(store);
}

/* The transaction that an event waits for may have nothing to do with events, and may be rolled
 * back. */
TEST(a_rolled_back_transaction_does_not_delay_followers)
{
    char told[200];
    int64_t after = 0;
    lh_store *store = open_store();
    PGconn *first = session_to(test_store()), *second = session_to(test_store());

    done(second, "BEGIN");
    acquire(second, "gone");
    acquire(first, "high");
    follow(store, &after, 1, told, sizeof told);
    EXPECT_STR(told, "");
    done(second, "ROLLBACK");
    follow(store, &after, 10000, told, sizeof told);
    EXPECT_STR(told, "s/high ");
    acquire(first, "next");
    follow(store, &after, 10000, told, sizeof told);
    EXPECT_STR(told, "s/next ");
    PQfinish(first);
    PQfinish(second);
    lh_close(store);
}

/* On a busy server some transaction is always in progress; readers must not wait forever. */
TEST(a_busy_server_does_not_delay_followers_forever)
{
    char told[200];
    int64_t after = 0;
    lh_store *store = open_store();
    PGconn *sessions[3] = {session_to(test_store()), session_to(test_store()),
                           session_to(test_store())};

    done(sessions[0], "BEGIN");
    acquire(sessions[0], "0");
    for (int i = 1; i < 20; i++) {
        char name[8];
        PGconn *one = sessions[i % 3], *before = sessions[(i - 1) % 3];
        (void)snprintf(name, sizeof name, "%d", i);
        done(one, "BEGIN");
        acquire(one, name);
        done(before, "COMMIT");
        (void)snprintf(name, sizeof name, "s/%d ", i - 2);
        follow(store, &after, i == 1 ? 1 : 10000, told, sizeof told);
        EXPECT_STR(told, i == 1 ? "" : name);
    }
    for (int i = 0; i < 3; i++)
        PQfinish(sessions[i]);
    lh_close(store);
}

/* A reader that does not follow sees everything that is visible. */
TEST(a_list_of_events_shows_all_visible_events)
{
    char told[200];
    int64_t after = 0;
    lh_store *store = open_store();
    PGconn *first = session_to(test_store()), *second = session_to(test_store());

    done(second, "BEGIN");
    acquire(second, "low");
    acquire(first, "high");
    follow(store, &after, 0, told, sizeof told);
    EXPECT_STR(told, "s/high ");
    done(second, "ROLLBACK");
    PQfinish(first);
    PQfinish(second);
    lh_close(store);
}
