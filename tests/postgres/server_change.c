/*
 * The store is on another server: promoted, restored from a dump, upgraded. Whichever act comes
 * first there, nothing has expired, and no token is issued twice. (failover.py has real
 * promotions.)
 */
#include "session.h"

#define LEASE_MS 60000
#define LATER (START_MS + 10 * LEASE_MS)
#define CLAIM "SELECT token FROM leasehold.claim('w-2', 'mail')"

/* Job 1 is held by w-1 with token 1, and the lease s/n by me; both expired long ago. Then the
 * server changes. */
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

TEST(a_claim_on_a_new_server_recovers_nothing)
{
    PGconn *c = session_elsewhere();
    EXPECT_STR(said(c, CLAIM), "");
    expect_held(c);
    PQfinish(c);
}

TEST(a_claim_of_one_job_notices_a_new_server)
{
    PGconn *c = session_elsewhere();
    done(c, "SELECT leasehold.enqueue('mail', 'y')");
    EXPECT_STR(said(c, "SELECT id, token >> 40 FROM leasehold.claim_one('w', 'mail', NULL, true)"),
               "2 1");
    expect_held(c);
    PQfinish(c);
}

TEST(a_recovery_on_a_new_server_recovers_nothing)
{
    PGconn *c = session_elsewhere();
    EXPECT_STR(said(c, "SELECT leasehold.recover() -> 'entries_reclaimed'"), "0");
    expect_held(c);
    PQfinish(c);
}

TEST(maintenance_on_a_new_server_recovers_nothing)
{
    PGconn *c = session_elsewhere();
    EXPECT_STR(said(c, "SELECT leasehold.maintain()"), "");
    expect_held(c);
    PQfinish(c);
}

TEST(a_heartbeat_on_a_new_server_is_in_time)
{
    PGconn *c = session_elsewhere();
    EXPECT_STR(said(c, "SELECT (leasehold.heartbeat(1, 1)).state"), "running");
    expect_held(c);
    PQfinish(c);
}

TEST(a_named_lease_on_a_new_server_is_extended_and_not_taken)
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

TEST(leases_on_a_new_server_expire_after_the_length_of_the_longest_lease)
{
    PGconn *c = session_elsewhere();
    EXPECT_STR(said(c, CLAIM), "");
    session_clock(c, LATER + 2 * LEASE_MS - 1);
    EXPECT_STR(said(c, CLAIM), "");
    session_clock(c, LATER + 2 * LEASE_MS);
    EXPECT_STR(said(c, "SELECT token > 1099511627776 FROM leasehold.claim('w-2', 'mail')"), "t");
    PQfinish(c);
}

/* The epoch of the previous timeline may be lost, so the epoch is never below the timeline. */
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

/* ---------------------------------------------------------------- after a crash, or a second restore */

#define EPOCH "SELECT epoch FROM leasehold.meta"

/* What a crash does to every unlogged table. */
TEST(every_act_that_makes_a_token_raises_the_epoch_after_a_crash)
{
    static const char *const acts[] = {
        "SELECT leasehold.claim('w-2', 'mail')",
        "SELECT leasehold.claim_one('w-2', 'mail', NULL, true)",
        "SELECT leasehold.lease_acquire('s', 'n', 'me')",
        "SELECT leasehold.recover()",
        "SELECT leasehold.maintain()",
    };
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        PGconn *c = session_at(START_MS);
        done(c, "TRUNCATE leasehold.crash_marker");
        done(c, acts[i]);
        EXPECT_STR(said(c, EPOCH), "1");
        done(c, acts[i]);
        EXPECT_STR(said(c, EPOCH), "1");
        EXPECT_STR(said(c, "SELECT first_token > 1::bigint << 40, first_token < 3::bigint << 39 "
                           "FROM leasehold.meta"),
                   "t t");
        PQfinish(c);
        test_store_renew();
    }
}

TEST(a_crash_ends_no_lease)
{
    PGconn *c = session_at(START_MS);
    done(c, "SELECT leasehold.enqueue('mail', 'x')");
    done(c, "SELECT leasehold.claim('w-1', 'mail')");
    done(c, "TRUNCATE leasehold.crash_marker");
    EXPECT_STR(said(c, "SELECT leasehold.maintain()"), "");
    EXPECT_STR(said(c, EPOCH), "1");
    EXPECT_STR(said(c, "SELECT no_expiry_before FROM leasehold.meta"), "-infinity");
    EXPECT_STR(said(c, "SELECT state FROM leasehold.complete(1, 1)"), "completed");
    PQfinish(c);
}

/* The act may run within a user's savepoint, too. */
TEST(the_epoch_rises_once_after_a_crash_even_within_a_savepoint)
{
    PGconn *c = session_at(START_MS);
    done(c, "TRUNCATE leasehold.crash_marker");
    done(c, "BEGIN");
    done(c, "SAVEPOINT a");
    done(c, "SELECT leasehold.claim('w-2', 'mail')");
    done(c, "COMMIT");
    done(c, "SELECT leasehold.claim('w-2', 'mail')");
    EXPECT_STR(said(c, EPOCH), "1");
    PQfinish(c);
}

TEST(a_new_epoch_is_synced_even_with_synchronous_commit_off)
{
    PGconn *c = session_at(START_MS);
    done(c, "TRUNCATE leasehold.crash_marker");
    done(c, "SET synchronous_commit = off");
    done(c, "BEGIN");
    done(c, "SELECT leasehold.claim('w-2', 'mail')");
    EXPECT_STR(said(c, "SHOW synchronous_commit"), "local");
    done(c, "COMMIT");
    EXPECT_STR(said(c, "SHOW synchronous_commit"), "off");
    PQfinish(c);
}

/* A new server may give the tables of a dump the oids that they had before. The row that came
 * with the dump was written by another transaction than the one that it names. */
TEST(a_dump_is_recognized_though_its_tables_have_the_same_oids)
{
    PGconn *c = session_at(START_MS);
    done(c, "SELECT leasehold.enqueue('mail', 'x')");
    done(c, "SELECT leasehold.claim('w-1', 'mail')");
    done(c, "UPDATE leasehold.meta SET system_id = 1");
    done(c, "UPDATE leasehold.crash_marker SET xid = '3'");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.claim('w-2', 'mail')"), "0");
    EXPECT_STR(said(c, EPOCH), "1");
    EXPECT_CONTAINS(said(c, "SELECT leasehold.complete(1, 1)"), "lease of job 1 is lost");
    PQfinish(c);
}
