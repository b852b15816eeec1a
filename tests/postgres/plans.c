/*
 * No act reads more rows than it needs, whatever the server's statistics say when it plans.
 *
 * A plan is made from the statistics of the tables and kept by the session. So the tests fill a
 * store in several ways, perform every act in it, undo it, and compare what the server counted:
 * rows of jobs, events and requests that were read, and sequential scans. The plans themselves are
 * not compared, because they differ between versions.
 */
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- the store */

enum { FEW = 2, MANY = 1000, RUNNING = 3000 };

/* Every group of jobs has its own range of ids, so that acts can name them. Three of the queues
 * have limits, one is paused. */
#define MAIL "20001"
#define SCHEDULED "60001"
#define HELD "70001"
#define FAILED "90001"
#define LAST_ID 100000

static void make_rules(PGconn *c)
{
    /* Otherwise autovacuum would run at random times. */
    done(c, "ALTER TABLE leasehold.job SET (autovacuum_enabled = off)");
    done(c, "SELECT leasehold.queue_set('alone', exclusive => true)");
    done(c, "SELECT leasehold.queue_set('rated', rate => 1000, rate_per => '1 s')");
    done(c, "SELECT leasehold.queue_set('slots', concurrency => 100000)");
    done(c, "SELECT leasehold.queue_pause('still')");
    done(c, "SELECT leasehold.maintain_round()"); /* creates the event days */
    EXPECT_STR(said(c, "SELECT setval('leasehold.job_id_seq', %d)", LAST_ID), "100000");
}

/* Without policies most acts take a shorter path. */
static void obey_rules(PGconn *c, bool rules)
{
    EXPECT_STR(said(c, "UPDATE leasehold.meta SET has_policies = %s, has_paused = %s",
                    rules ? "true" : "false", rules ? "true" : "false"),
               "");
}

static void put_jobs(PGconn *c, int above, int n, const char *queue, const char *state)
{
    EXPECT_STR(
        said(c,
             "INSERT INTO leasehold.job(id, queue, state, kind, key, payload, plain, created_at, "
             "state_changed_at, run_at, finished_at) OVERRIDING SYSTEM VALUE "
             "SELECT %d + i, '%s', '%s', CASE i %% 2 WHEN 0 THEN 'even' ELSE 'odd' END, "
             "'key-' || %d + i, 'hello', false, t.now, t.now, "
             "CASE '%s' WHEN 'scheduled' THEN t.now + i * interval '1 min' END, "
             "CASE WHEN '%s' IN ('completed', 'failed') THEN t.now END "
             "FROM generate_series(1, %d) i, leasehold.clock() t(now)",
             above, queue, state, above, state, state, n),
        "");
}

static void put_held(PGconn *c, int above, int n, const char *queue)
{
    EXPECT_STR(said(c,
                    "INSERT INTO leasehold.job(id, queue, state, payload, plain, token, attempt, "
                    "max_attempts, "
                    "worker, held_ms, lease_until, started_at, again) OVERRIDING SYSTEM VALUE "
                    "SELECT %d + i, '%s', 'running', 'hello', false, 1, 1, 3, 'w-' || i, 600000, "
                    "t.now + interval '10 min' + i * interval '1 s', t.now, true "
                    "FROM generate_series(1, %d) i, leasehold.clock() t(now)",
                    above, queue, n),
               "");
}

static void put_the_rest(PGconn *c, int n)
{
    put_jobs(c, 10000, n, "mail", "completed");
    put_jobs(c, 20000, n, "mail", "pending");
    put_jobs(c, 30000, n, "alone", "pending");
    put_jobs(c, 40000, n, "rated", "pending");
    put_jobs(c, 50000, n, "slots", "pending");
    put_jobs(c, 55000, n, "still", "pending");
    put_jobs(c, 60000, n, "mail", "scheduled");
    put_jobs(c, 90000, n, "mail", "failed");
    EXPECT_STR(said(c,
                    "INSERT INTO leasehold.event(at, type, job, queue, actor) "
                    "SELECT leasehold.clock(), 'job.failed', 90000 + i, 'mail', 'w' "
                    "FROM generate_series(1, %d) i",
                    n),
               "");
    EXPECT_STR(said(c,
                    "INSERT INTO leasehold.request SELECT 'request-' || i, 'enqueue', "
                    "leasehold.clock(), ARRAY[20000 + i], '{}' FROM generate_series(1, %d) i",
                    n),
               "");
    EXPECT_STR(said(c,
                    "INSERT INTO leasehold.rollup(minute, queue) SELECT date_trunc('minute', "
                    "leasehold.clock()) - interval '2 hours' - i * interval '1 minute', 'mail' "
                    "FROM generate_series(1, %d) i",
                    n),
               "");
}

static void put_running(PGconn *c, int n)
{
    put_held(c, 70000, n, "mail");
    put_held(c, 80000, 10, "slots");
}

static void fill(PGconn *c)
{
    put_the_rest(c, MANY);
    put_running(c, RUNNING);
}

/* ---------------------------------------------------------------- the acts */

#define ONE(ids_) "ARRAY[" ids_ "], '{1}'"
#define HUNDRED "ARRAY(SELECT " HELD "::bigint + i FROM generate_series(0, 99) i)"
#define HUNDRED_HELD HUNDRED ", array_fill(1::bigint, ARRAY[100])"
#define EXPIRE "UPDATE leasehold.job SET lease_until = leasehold.clock() WHERE id = " HELD
#define BATCH(flags_, ids_)                                                              \
    "SELECT leasehold.recover_batch('" flags_ "', 'timer', NULL, NULL, "                 \
    "'{0,0,0,0,0,0,0,0,0}', '{0,0,0,0,0,0,0}', '{}', '{}', '{}', '{}', '{}', " ids_ ", " \
    "NULL, NULL, NULL, NULL, NULL, false, '{}', '{}')"

static const struct act {
    const char *what;
    int about; /* expected rows per table, plus a few */
    const char *sql;
    const char *before; /* not counted */
} acts[] = {
    {"enqueue", 0, "SELECT leasehold.enqueue('mail', 'x')", NULL},
    {"enqueue with a new key", 0, "SELECT leasehold.enqueue('mail', 'x', key => 'new')", NULL},
    {"enqueue with a living key", 0, "SELECT leasehold.enqueue('mail', 'x', key => 'key-" MAIL "')",
     NULL},
    {"enqueue as a request", 0, "SELECT leasehold.enqueue('mail', 'x', request => 'new')", NULL},
    {"enqueue as a request made before", 0,
     "SELECT leasehold.enqueue('mail', 'x', request => 'request-1')", NULL},
    {"enqueue whose answer was lost", 0,
     "SELECT leasehold.enqueue_many('mail', '{0}', '{x}', of_request => 'lh:77:100000')", NULL},
    {"enqueue by the library", 0, "SELECT leasehold.enqueue_one('mail', 0, 'x', NULL)", NULL},
    {"enqueue of two by the library", 0,
     "SELECT leasehold.enqueue_many('mail', '{0,0}', '{x,y}', of_nonce => (random() * "
     "1e15)::bigint)",
     NULL},
    {"enqueue of 100", 0,
     "SELECT leasehold.enqueue_many('mail', array_fill(0::bigint, ARRAY[100]), "
     "array_fill('x'::text, ARRAY[100]))",
     NULL},
    {"plain insert", 0, "INSERT INTO leasehold.job(queue) VALUES ('mail') RETURNING id", NULL},

    {"claim of one", 0, "SELECT * FROM leasehold.claim_one('w', 'mail', NULL, true)", NULL},
    {"claim of 100 from one queue by the library", 100,
     "SELECT * FROM leasehold.claim_one('w', 'mail', NULL, true, want => 100)", NULL},
    {"claim of one that ends another", 0,
     "SELECT * FROM leasehold.claim_one('w', 'mail', NULL, true, " HELD ", 1, 'fine')", NULL},
    {"claim", 0, "SELECT * FROM leasehold.claim('w', 'mail')", NULL},
    {"claim of 100", 100, "SELECT * FROM leasehold.claim('w', 'mail', 100)", NULL},
    /* Enough jobs for the claim to compute the claim floor. */
    {"claim of 500", 500, "SELECT * FROM leasehold.claim('w', 'mail', 500)", NULL},
    {"claim as a request", 0, "SELECT * FROM leasehold.claim('w', 'mail', request => 'new')", NULL},
    {"claim by kind", 0, "SELECT * FROM leasehold.claim('w', 'mail', kinds => '{even}')", NULL},
    {"claim of 100 by kind", 100,
     "SELECT * FROM leasehold.claim('w', 'mail', 100, kinds => '{even,odd}')", NULL},
    {"claim of a kind that is not there", 0,
     "SELECT * FROM leasehold.claim('w', '{mail,slots}'::text[], 100, kinds => '{rare,none}')",
     NULL},
    {"claim of a kind from an exclusive queue", 0,
     "SELECT * FROM leasehold.claim('w', 'alone', kinds => '{rare}')", NULL},
    {"claim of what is pending anew", 0, "SELECT * FROM leasehold.claim('w', 'mail', 2)",
     "SELECT leasehold.release(" HELD ", 1)"},
    {"claim from several queues", 0,
     "SELECT * FROM leasehold.claim('w', '{still,empty,slots,mail}'::text[], 2)", NULL},
    {"claim from an empty queue", 0, "SELECT * FROM leasehold.claim('w', 'empty', 100)", NULL},
    {"claim from a paused queue", 0, "SELECT * FROM leasehold.claim('w', 'still')", NULL},
    {"claim from an exclusive queue", 0, "SELECT * FROM leasehold.claim('w', 'alone')", NULL},
    {"claim from an exclusive queue that is held", 0, "SELECT * FROM leasehold.claim('w', 'alone')",
     "SELECT * FROM leasehold.claim('v', 'alone')"},
    {"claim from a queue with a rate", 0, "SELECT * FROM leasehold.claim('w', 'rated')", NULL},
    /* It counts the running jobs of the queue, which are few. */
    {"claim from a queue with slots", 10, "SELECT * FROM leasehold.claim('w', 'slots')", NULL},
    {"claim that recovers", 0, "SELECT * FROM leasehold.claim('w', 'empty')", EXPIRE},
    {"poll", 0, "SELECT leasehold.poll('{empty,mail}', 'w')", NULL},
    {"peek of whoever keeps the store up", 0, "SELECT leasehold.poll('{}', 'w')", NULL},
    {"peek for a kind that is not there", 0, "SELECT leasehold.poll('{mail}', 'w', '{rare,none}')",
     NULL},
    {"peek for a kind", 0, "SELECT leasehold.poll('{mail}', 'w', '{rare,odd}')", NULL},
    {"peek at an empty queue", 0, "SELECT leasehold.poll('{empty}', 'w')", NULL},

    {"keep what a run wrote", 1,
     "SELECT leasehold.output_many(" ONE(HELD) ", '{NULL}', '{0}', ARRAY['x'::bytea], '{NULL}', "
                                               "'{0}', '{NULL}', '{NULL}')",
     NULL},
    {"look for a job to be retried", 0, "SELECT leasehold.retry_waits('{empty,mail}', '{}')",
     "SELECT leasehold.release(" HELD ", 1, interval '1 second')"},

    {"heartbeat", 1, "SELECT leasehold.heartbeat(" HELD ", 1)", NULL},
    {"heartbeat of 100", 100,
     "SELECT leasehold.heartbeat_many(" HUNDRED_HELD ", '{}', '{}', '{}', '{}')", NULL},
    {"heartbeat of a worker", 1, "SELECT leasehold.worker_heartbeat('w-1', " ONE(HELD) ")", NULL},
    {"complete", 1, "SELECT leasehold.complete(" HELD ", 1)", NULL},
    {"complete of 100", 100, "SELECT leasehold.complete_many(" HUNDRED_HELD ", '{}', '{}')", NULL},
    {"complete of one that is done", 1, "SELECT leasehold.complete(" HELD ", 1)",
     "SELECT leasehold.complete(" HELD ", 1)"},
    {"fail", 1, "SELECT leasehold.fail(" HELD ", 1, 'no luck')", NULL},
    {"fail of 100", 100,
     "SELECT leasehold.fail_many(" HUNDRED_HELD
     ", array_fill('no luck'::text, ARRAY[100]), '{}', '{}')",
     NULL},
    {"release", 1, "SELECT leasehold.release(" HELD ", 1)", NULL},
    {"release of 100", 100, "SELECT leasehold.release_many(" HUNDRED_HELD ", 0)", NULL},
    {"release of one by hand", 1,
     "SELECT leasehold.release_worker('w-1', ARRAY[" HELD "]::bigint[])", NULL},
    {"release of all of a worker", 1, "SELECT leasehold.release_worker('w-1')", NULL},
    {"stop of a worker", 1, "SELECT leasehold.worker_stop('w-1')",
     "SELECT leasehold.worker_heartbeat('w-1')"},
    {"answer after a revocation", 1, "SELECT leasehold.complete_many(" ONE(HELD) ", '{}', '{}')",
     "SELECT leasehold.release_worker('w-1')"},
    {"failing of a rotten job", 1, "SELECT leasehold.fail_corrupt(" HELD ", 1)", NULL},

    {"cancel", 0, "SELECT leasehold.cancel(" MAIL ")", NULL},
    {"cancel of a running job", 0, "SELECT leasehold.cancel(" HELD ")", NULL},
    {"retry", 0, "SELECT leasehold.retry(" FAILED ")", NULL},
    {"delete", 0, "SELECT leasehold.delete(" MAIL ")", NULL},
    {"reschedule", 0, "SELECT leasehold.reschedule(" SCHEDULED ", '1 h')", NULL},
    {"look at jobs", 0, "SELECT leasehold.jobs_of('{" MAIL "," HELD "}')", NULL},
    {"pause", 0, "SELECT leasehold.queue_pause('mail')", NULL},
    {"resume", 0, "SELECT leasehold.queue_resume('still')", NULL},
    {"batch of a purge", 1000, "SELECT leasehold.purge_batch('mail')", NULL},
    {"queues", 0, "SELECT * FROM leasehold.queues()", NULL},

    {"acquire of a lease", 0, "SELECT leasehold.lease_acquire('sync', 'a', 'w')", NULL},
    {"extend of a lease", 0, "SELECT leasehold.lease_extend('sync', 'a', 'w')",
     "SELECT leasehold.lease_acquire('sync', 'a', 'w')"},
    {"release of a lease", 0, "SELECT leasehold.lease_release('sync', 'a', 'w')",
     "SELECT leasehold.lease_acquire('sync', 'a', 'w')"},
    {"complete of a lease", 0, "SELECT leasehold.lease_complete('sync', 'a', 'w')",
     "SELECT leasehold.lease_acquire('sync', 'a', 'w')"},

    {"upkeep with nothing due", 0, "SELECT leasehold.maintain_round()", NULL},
    {"upkeep with one due", 0, "SELECT leasehold.maintain_round()",
     "UPDATE leasehold.job SET run_at = leasehold.clock() WHERE id = " SCHEDULED},
    {"upkeep with one expired", 0, "SELECT leasehold.maintain_round()",
     "UPDATE leasehold.job SET expires_at = leasehold.clock() WHERE id = " MAIL},
    {"maintenance with nothing due", 0, "SELECT leasehold.maintain()", NULL},
    {"maintenance with one due", 0, "SELECT leasehold.maintain()", EXPIRE},
    {"batch of a recovery with nothing due", 0, BATCH("{leases,last}", "'{}'"), NULL},
    {"batch of a recovery with one due", 0, BATCH("{leases,last}", "ARRAY[" HELD "]"), EXPIRE},
    {"list of what is stale", 0, "SELECT leasehold.stale_jobs(false, NULL, NULL, '{}', 500)",
     EXPIRE},
    {"count of what is stale", 0, "SELECT leasehold.recovery_stats()", EXPIRE},
    /* It walks over the ids in steps of five hundred. */
    {"round of pruning", 500, "SELECT leasehold.prune_round(NULL, NULL)", NULL},
};

enum { N_ACTS = sizeof acts / sizeof acts[0] };

/* ---------------------------------------------------------------- what an act reads */

enum { N_TABLES = 4 };

struct reads {
    long scans[N_TABLES]; /* sequential scans */
    long rows[N_TABLES];
};

/* What this session has counted and not reported yet; it reports only between transactions. An
 * event day is a table of its own. Rows fetched by an index are counted with the index's table. */
static struct reads reads_so_far(PGconn *c)
{
    struct reads r = {0};
    const char *text = said(
        c, "SELECT string_agg(scans || ' ' || rows, ' ' ORDER BY n) FROM ("
           "SELECT n, sum(CASE relkind WHEN 'r' THEN pg_stat_get_xact_numscans(oid) END) AS scans, "
           "sum(CASE relkind WHEN 'r' THEN pg_stat_get_xact_tuples_returned(oid) ELSE 0 END "
           "+ pg_stat_get_xact_tuples_fetched(oid)) AS rows "
           "FROM unnest('{job,event,request,rollup}'::text[]) WITH ORDINALITY t(name, n) "
           "JOIN pg_class ON relnamespace = 'leasehold'::regnamespace AND relkind IN ('r', 'i') "
           "AND relname ~ ('^' || name || '(_|$)') GROUP BY n) s");
    char *rest = NULL;

    for (int i = 0; i < N_TABLES; i++) {
        r.scans[i] = strtol(text, &rest, 10);
        r.rows[i] = strtol(rest, &rest, 10);
        text = rest;
    }
    EXPECT(*text == '\0');
    return r;
}

/* A batch of n is looked up, locked, written, and read for its policies. */
static long allowed(const struct act *act)
{
    return 20 + 4L * act->about;
}

/* Adds a line to `complaints` for each table of which the act has read too much. */
static void judge(const struct act *act, struct reads was, struct reads is, const char *where,
                  char *complaints, size_t size)
{
    static const char *const names[N_TABLES] = {"jobs", "events", "requests", "minutes"};

    for (int i = 0; i < N_TABLES; i++) {
        long scans = is.scans[i] - was.scans[i];
        long rows = is.rows[i] - was.rows[i];
        size_t used = strlen(complaints);
        if (scans > 0 || rows > allowed(act))
            (void)snprintf(complaints + used, size - used,
                           "\n%s%s read %ld rows of %s, %ld are allowed, with %ld scans", act->what,
                           where, rows, names[i], allowed(act), scans);
    }
}

/* Within the current transaction. */
static struct reads make_and_undo(PGconn *c, const struct act *act, struct reads *was)
{
    done(c, "SAVEPOINT before");
    if (act->before != NULL)
        done(c, act->before);
    *was = reads_so_far(c);
    done(c, act->sql);
    struct reads is = reads_so_far(c);
    done(c, "ROLLBACK TO before");
    return is;
}

static void expect_few_rows_read(PGconn *c)
{
    static char complaints[40000];
    struct reads was;

    for (int rules = 0; rules < 2; rules++) {
        obey_rules(c, rules);
        done(c, "BEGIN");
        for (int i = 0; i < N_ACTS; i++) {
            struct reads is = make_and_undo(c, &acts[i], &was);
            judge(&acts[i], was, is, rules ? " under rules" : "", complaints, sizeof complaints);
        }
        done(c, "ROLLBACK");
    }
    if (complaints[0] != '\0')
        FAIL("too much is read:%s", complaints);
}

/* Generic plans, as the server keeps them after some calls, in a store that has `few` jobs of
 * each kind besides its content, and as few running. */
static void make_all_plans(PGconn *c, int few)
{
    struct reads ignored;

    done(c, "SET plan_cache_mode = force_generic_plan");
    for (int rules = 0; rules < 2; rules++) {
        obey_rules(c, rules);
        done(c, "BEGIN");
        put_the_rest(c, few);
        put_running(c, FEW);
        for (int i = 0; i < N_ACTS; i++)
            (void)make_and_undo(c, &acts[i], &ignored);
        done(c, "ROLLBACK");
    }
}

/* ---------------------------------------------------------------- the stores */

TEST(no_act_reads_more_rows_than_it_needs)
{
    PGconn *c = session_at(START_MS);
    make_rules(c);
    fill(c);
    done(c, "ANALYZE");
    expect_few_rows_read(c);
    PQfinish(c);
}

#define TRUNCATE "TRUNCATE leasehold.job, leasehold.event, leasehold.request, leasehold.rollup"
/* (Running jobs may not be deleted.) */
#define DRAIN                                                                           \
    "UPDATE leasehold.job SET state = 'cancelled', worker = NULL, lease_until = NULL "  \
    "WHERE state = 'running'; "                                                         \
    "WITH gone AS (DELETE FROM leasehold.job), past AS (DELETE FROM leasehold.rollup) " \
    "DELETE FROM leasehold.request"

/* Plans are made while the store is empty; then it is filled. */
static void fill_after_plans(const char *make_empty)
{
    PGconn *c = session_at(START_MS), *other = session_at(START_MS);
    make_rules(c);
    put_the_rest(c, FEW);
    put_running(c, FEW);
    done(c, make_empty);
    done(c, "ANALYZE");
    make_all_plans(c, FEW);
    fill(other);
    expect_few_rows_read(c);
    PQfinish(c);
    PQfinish(other);
}

TEST(no_act_reads_more_rows_than_it_needs_with_plans_made_in_an_empty_store)
{
    fill_after_plans(TRUNCATE);
}

/* Pages without rows: the planner estimates no rows, however many pages there are. */
TEST(no_act_reads_more_rows_than_it_needs_with_plans_made_in_a_drained_store)
{
    fill_after_plans(DRAIN);
}

/* A new session plans in the filled store, with the statistics of an earlier state. */
static void plan_after_filling(bool was_full, const char *look)
{
    PGconn *c = session_at(START_MS);
    make_rules(c);
    if (was_full) {
        fill(c);
        done(c, "ANALYZE");
        done(c, TRUNCATE);
    }
    put_the_rest(c, FEW);
    put_running(c, FEW);
    done(c, DRAIN);
    done(c, look);
    fill(c);
    expect_few_rows_read(c);
    PQfinish(c);
}

TEST(no_act_reads_more_rows_than_it_needs_without_statistics)
{
    plan_after_filling(false, "SELECT 1");
}

TEST(no_act_reads_more_rows_than_it_needs_with_statistics_of_no_page)
{
    plan_after_filling(false, "VACUUM");
}

TEST(no_act_reads_more_rows_than_it_needs_with_statistics_of_no_row)
{
    plan_after_filling(false, "ANALYZE");
}

/* The server keeps statistics of the columns, but estimates no rows. */
TEST(no_act_reads_more_rows_than_it_needs_with_statistics_of_a_drained_store)
{
    plan_after_filling(true, "ANALYZE");
}

TEST(no_act_reads_more_rows_than_it_needs_with_statistics_of_an_empty_store)
{
    plan_after_filling(true, "VACUUM");
}

TEST(no_act_reads_more_rows_than_it_needs_with_plans_made_while_nothing_ran)
{
    PGconn *c = session_at(START_MS), *other = session_at(START_MS);
    make_rules(c);
    put_the_rest(c, MANY);
    done(c, "ANALYZE");
    make_all_plans(c, 0);
    put_running(other, RUNNING);
    expect_few_rows_read(c);
    PQfinish(c);
    PQfinish(other);
}

/* Plans are made before any sleeper existed; then there are many queues. */
TEST(an_enqueue_finds_the_sleepers_of_its_queue_among_many_others)
{
    static const char *const ways[] = {
        "SELECT leasehold.enqueue_one('mail', 0, 'x', NULL)",
        "SELECT leasehold.enqueue('mail', 'x')",
        "INSERT INTO leasehold.job(queue) VALUES ('mail') RETURNING id",
    };
    PGconn *c = session_at(START_MS), *other = session_at(START_MS);

    done(c, "VACUUM ANALYZE leasehold.sleeper");
    for (size_t i = 0; i < 3; i++)
        done(c, ways[i]);
    done(other, "UPDATE leasehold.meta SET sleepers_until = 'infinity'");
    done(other, "INSERT INTO leasehold.sleeper SELECT 'q-' || i, true, 'infinity' "
                "FROM generate_series(1, 1000) i");
    for (size_t i = 0; i < 3; i++) {
        done(c, "BEGIN");
        done(c, ways[i]);
        EXPECT_STR(said(c, "SELECT pg_stat_get_xact_numscans('leasehold.sleeper'::regclass)"), "0");
        done(c, "ROLLBACK");
    }
    PQfinish(c);
    PQfinish(other);
}
