/*
 * The store finds itself on another server: promoted, restored from a dump, upgraded. Whoever says the
 * first word there, nothing has expired, and no token is handed out again. (Real promotions:
 * failover.py.)
 */
#include "session.h"

#define LEASE_MS 60000
#define LATER (START_MS + 10 * LEASE_MS)
#define CLAIM "SELECT token FROM leasehold.claim('w-2', 'mail')"

/* Job 1 is held by w-1 under token 1, and the lease s/n by me; both ended long ago. Then the server
 * turns out to be another one. */
static PGconn *session_elsewhere(void)
{
    PGconn *c = session_at(START_MS);

    (void)said(c, "SELECT leasehold.enqueue('mail', 'x')");
    EXPECT_STR(said(c, "SELECT token FROM leasehold.claim('w-1', 'mail', 1, '1 minute')"), "1");
    (void)said(c, "SELECT leasehold.lease_acquire('s', 'n', 'me', '2 minutes')");
    session_clock(c, LATER);
    (void)said(c, "UPDATE leasehold.meta SET timeline = '00000000'");
    return c;
}

static void expect_held(PGconn *c)
{
    EXPECT_STR(said(c, "SELECT state, token FROM leasehold.job WHERE id = 1"), "running 1");
    EXPECT_STR(said(c, "SELECT owner FROM leasehold.lease WHERE scope = 's'"), "me");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.event WHERE type = 'store.restored'"), "1");
}

TEST(a_claim_on_another_server_takes_nothing_back)
{
    PGconn *c = session_elsewhere();
    EXPECT_STR(said(c, CLAIM), "");
    expect_held(c);
    PQfinish(c);
}

TEST(a_claim_of_one_sees_that_the_server_is_another)
{
    PGconn *c = session_elsewhere();
    done(c, "SELECT leasehold.enqueue('mail', 'y')");
    EXPECT_STR(said(c, "SELECT id, token >> 40 FROM leasehold.claim_one('w', 'mail', NULL, true)"),
               "2 1");
    expect_held(c);
    PQfinish(c);
}

TEST(a_recovery_on_another_server_takes_nothing_back)
{
    PGconn *c = session_elsewhere();
    EXPECT_STR(said(c, "SELECT leasehold.recover() -> 'entries_reclaimed'"), "0");
    expect_held(c);
    PQfinish(c);
}

TEST(maintenance_on_another_server_takes_nothing_back)
{
    PGconn *c = session_elsewhere();
    EXPECT_STR(said(c, "SELECT leasehold.maintain()"), "");
    expect_held(c);
    PQfinish(c);
}

TEST(a_beat_on_another_server_is_in_time)
{
    PGconn *c = session_elsewhere();
    EXPECT_STR(said(c, "SELECT (leasehold.heartbeat(1, 1)).state"), "running");
    expect_held(c);
    PQfinish(c);
}

TEST(a_named_lease_is_extended_on_another_server_and_not_taken)
{
    PGconn *c = session_elsewhere();
    EXPECT_CONTAINS(said(c, "SELECT leasehold.lease_acquire('s', 'n', 'other')"), "held by");
    PQfinish(c);
    c = session_at(LATER);
    (void)said(c,
               "UPDATE leasehold.meta SET timeline = '00000000', no_expiry_before = '-infinity'");
    EXPECT_STR(said(c, "SELECT owner FROM leasehold.lease_extend('s', 'n', 'me')"), "me");
    PQfinish(c);
}

TEST(from_the_length_of_the_longest_lease_on_all_is_as_ever)
{
    PGconn *c = session_elsewhere();
    EXPECT_STR(said(c, CLAIM), "");
    session_clock(c, LATER + 2 * LEASE_MS - 1);
    EXPECT_STR(said(c, CLAIM), "");
    session_clock(c, LATER + 2 * LEASE_MS);
    EXPECT_STR(said(c, "SELECT token > 1099511627776 FROM leasehold.claim('w-2', 'mail')"), "t");
    PQfinish(c);
}

/* What the epoch was on the timeline before may be lost: it is never below the timeline. */
TEST(the_epoch_is_never_below_the_timeline)
{
    PGconn *c = session_elsewhere();
    (void)said(c, "CREATE OR REPLACE FUNCTION pg_temp.line() RETURNS text LANGUAGE sql AS "
                  "$$ SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8) $$");
    EXPECT_STR(said(c, CLAIM), "");
    EXPECT_STR(said(c, "SELECT epoch >= ('x' || pg_temp.line())::bit(32)::bigint, timeline = "
                       "pg_temp.line() FROM leasehold.meta"),
               "t t");
    PQfinish(c);
}
