/* A handle with a limited number of connections: how many sessions its worker has, and which
 * calls do not wait for others. */
#include "postgres/session.h"

#include "core/core.h"
#include "store/postgres/wire.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE = 20000, WORKERS = 5 };

struct post {
    lh_store *store;
    lh_flag stop, end; /* of the worker; of its job */
    pthread_t thread;
};

static lh_outcome until_end(void *arg, lh_task *task, const lh_job *job)
{
    struct post *post = arg;

    (void)job;
    while (lh_flag_raised(&post->end) == 0 && !lh_task_lost(task))
        (void)usleep(1000);
    return LH_RAN_OK;
}

static void *be_worker(void *arg)
{
    static const char *const queue = "q";
    struct post *post = arg;
    char why[480] = "";
    lh_work_opts opts = {.queues = &queue,
                         .n_queues = 1,
                         .handler = until_end,
                         .handler_arg = post,
                         .lease_ms = 60000,
                         .heartbeat_ms = 100,
                         .multiplier = 600,
                         .cancel = &post->stop};

    if (lh_open(test_store(), &(lh_open_opts){.startup = true, .max_connections = 2},
                &post->store) != LH_OK)
        FAIL("%s", lh_errmsg(post->store));
    int rc = lh_worker_run(post->store, &opts, NULL, why, sizeof why);
    if (rc != LH_OK)
        FAIL("%s", why);
    lh_close(post->store);
    return NULL;
}

static void begin(struct post *post)
{
    EXPECT_EQ(pthread_create(&post->thread, NULL, be_worker, post), 0);
}

static void finish(struct post *post)
{
    lh_flag_raise(&post->end);
    lh_flag_raise(&post->stop);
    EXPECT_EQ(pthread_join(post->thread, NULL), 0);
}

static void expect_soon(PGconn *watch, const char *sql, const char *answer)
{
    for (int i = 0; i < PATIENCE && strcmp(said(watch, "%s", sql), answer) != 0; i++)
        (void)usleep(1000);
    EXPECT_STR(said(watch, "%s", sql), answer);
}

#define OTHERS                                                                             \
    "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()" \
    " AND backend_type = 'client backend'"

/* Repeats the query until it has this answer; returns the largest number of sessions seen
 * meanwhile. */
static int most_sessions_until(PGconn *watch, const char *sql, const char *answer)
{
    int most = 0;

    for (int i = 0; i < PATIENCE && strcmp(said(watch, "%s", sql), answer) != 0; i++) {
        int n = atoi(said(watch, "SELECT count(*) " OTHERS));
        most = n > most ? n : most;
    }
    EXPECT_STR(said(watch, "%s", sql), answer);
    return most;
}

/* From before the first worker connects until each worker has had a job. */
TEST_TIMEOUT(workers_that_start_together_have_at_most_two_sessions_each, 60)
{
    static const char running[] = "SELECT count(*) FROM leasehold.job WHERE state = 'running'";
    static const char completed[] = "SELECT count(*) FROM leasehold.job WHERE state = 'completed'";
    struct post posts[WORKERS] = {0};
    PGconn *watch = session_to(test_store());

    for (int i = 0; i < WORKERS; i++)
        begin(&posts[i]);
    for (int i = 0; i < WORKERS; i++)
        done(watch, "SELECT leasehold.enqueue('q', 'x')");
    EXPECT(most_sessions_until(watch, running, "5") <= 2 * WORKERS);
    for (int i = 0; i < WORKERS; i++)
        lh_flag_raise(&posts[i].end);
    EXPECT(most_sessions_until(watch, completed, "5") <= 2 * WORKERS);
    EXPECT(most_sessions_until(watch, "SELECT count(*) " OTHERS, "10") <= 2 * WORKERS);
    for (int i = 0; i < WORKERS; i++)
        finish(&posts[i]);
    PQfinish(watch);
}

static void *recover(void *arg)
{
    struct post *post = arg;

    EXPECT_OK(lh_recover(post->store, NULL, NULL));
    return NULL;
}

/* The recovery waits for a lock of the test, and so occupies the connection of the pool. */
TEST_TIMEOUT(a_heartbeat_is_confirmed_while_a_recovery_of_the_same_worker_goes_on, 60)
{
    static const char beat[] = "SELECT last_heartbeat_at > now() FROM leasehold.job";
    struct post post = {0};
    PGconn *watch = session_to(test_store()), *gate = session_to(test_store());
    pthread_t recovery;

    done(watch, "SELECT leasehold.enqueue('q', 'x')");
    begin(&post);
    expect_soon(watch, "SELECT state FROM leasehold.job", "running");
    expect_soon(watch, "SELECT count(*) " OTHERS,
                "3"); /* the lock's session, and two of the worker */
    done(gate, "BEGIN; LOCK TABLE leasehold.report IN ACCESS EXCLUSIVE MODE");
    EXPECT_EQ(pthread_create(&recovery, NULL, recover, &post), 0);
    expect_soon(watch, "SELECT count(*) " OTHERS " AND wait_event_type = 'Lock'", "1");
    for (int i = 0; i < 3; i++) {
        done(watch, "BEGIN"); /* now() does not change */
        expect_soon(watch, beat, "t");
        done(watch, "COMMIT");
    }
    EXPECT_STR(said(watch, "SELECT count(*) " OTHERS " AND wait_event_type = 'Lock'"), "1");
    /* The job ends, too. */
    lh_flag_raise(&post.end);
    expect_soon(watch, "SELECT state FROM leasehold.job", "completed");
    EXPECT_STR(said(watch, "SELECT count(*) " OTHERS " AND wait_event_type = 'Lock'"), "1");
    done(gate, "COMMIT");
    EXPECT_EQ(pthread_join(recovery, NULL), 0);
    finish(&post);
    PQfinish(gate);
    PQfinish(watch);
}

TEST(max_connections_is_two_to_nine)
{
    lh_store *store = NULL;

    EXPECT_STATUS(lh_open(test_store(), &(lh_open_opts){.max_connections = 1}, &store), LH_EINVAL);
    EXPECT_CONTAINS(lh_errmsg(store), "max_connections is 1: 2 to 9");
    lh_close(store);
    EXPECT_STATUS(lh_open(test_store(), &(lh_open_opts){.max_connections = 10}, &store), LH_EINVAL);
    lh_close(store);
    EXPECT_OK(lh_open(test_store(), &(lh_open_opts){.max_connections = 9}, &store));
    lh_close(store);
}

/* ---------------------------------------------------------------- the connections themselves */

static const char *const the_queue = "q";
static const lh_claim_opts from_q = {.queues = &the_queue, .n_queues = 1, .worker = "w"};
static const struct lhi_topic jobs_of_q = {.on = LHI_ON_JOBS, .opts = &from_q};

static lh_store *open_limited(void)
{
    lh_store *store = NULL;

    EXPECT_OK(lh_open(test_store(), &(lh_open_opts){.max_connections = 2}, &store));
    return store;
}

/* The connection of the pool is taken, so a holder gets the listener's. */
static struct conn *borrow(struct pg *pg, struct conn **taken)
{
    struct conn *lent = NULL;
    struct lhi_error err;

    (void)pg_subscribe(pg, &jobs_of_q); /* starts the listener */
    EXPECT_OK(pg_pool_take(pg, pg_real_ms() + PATIENCE, taken, &err));
    EXPECT_OK(pg_pool_take_as(pg, POOL_HOLDER, pg_real_ms() + PATIENCE, &lent, &err));
    EXPECT(lent->listens && !(*taken)->listens);
    return lent;
}

/* A worker that always finds a job never waits for one; with recovery off, it does not wait for
 * maintenance either. */
TEST(a_holder_gets_the_reserved_connection_before_any_wait)
{
    lh_store *store = open_limited();
    struct pg *pg = store->store.self;
    struct conn *taken, *lent;
    struct lhi_error err;

    EXPECT_OK(pg_pool_take(pg, pg_real_ms() + PATIENCE, &taken, &err));
    EXPECT_OK(pg_pool_take_as(pg, POOL_HOLDER, pg_real_ms() + 5000, &lent, &err));
    EXPECT(lent != taken);
    pg_pool_give(pg, lent);
    pg_pool_give(pg, taken);
    lh_close(store);
}

TEST(other_calls_do_not_get_the_connection_of_the_listener)
{
    lh_store *store = open_limited();
    struct pg *pg = store->store.self;
    struct conn *taken, *third;
    struct lhi_error err;

    pg_pool_give(pg, borrow(pg, &taken));
    EXPECT_STATUS(pg_pool_take(pg, pg_real_ms() + 50, &third, &err), LH_EBUSY);
    EXPECT_CONTAINS(err.text, "all 2 connections");
    pg_pool_give(pg, taken);
    lh_close(store);
}

TEST(a_notification_during_a_borrowed_call_is_not_lost)
{
    lh_store *store = open_limited();
    struct pg *pg = store->store.self;
    PGconn *other = session_to(test_store());
    struct conn *taken, *lent = borrow(pg, &taken);
    struct txn txn = {.pg = pg, .conn = lent, .deadline = pg_real_ms() + PATIENCE};
    struct lhi_error err;
    uint32_t ticket = pg_ticket(pg, &jobs_of_q);

    done(other, "NOTIFY leasehold, 'q'");
    EXPECT_OK(pg_call_text(&txn, "SELECT 1", NULL, NULL,
                           &err)); /* libpq has read the notification by now */
    pg_pool_give(pg, lent);
    for (int i = 0; i < PATIENCE && pg_ticket(pg, &jobs_of_q) == ticket; i++)
        (void)usleep(1000);
    EXPECT(pg_ticket(pg, &jobs_of_q) != ticket);
    pg_pool_give(pg, taken);
    lh_close(store);
    PQfinish(other);
}

TEST(a_listener_whose_borrowed_session_ends_reconnects)
{
    lh_store *store = open_limited();
    struct pg *pg = store->store.self;
    PGconn *other = session_to(test_store());
    struct conn *taken, *lent = borrow(pg, &taken);
    struct txn txn = {.pg = pg, .conn = lent, .deadline = pg_real_ms() + PATIENCE};
    int before = PQbackendPID(lent->pg);
    struct lhi_error err;

    EXPECT_STR(said(other, "SELECT pg_terminate_backend(%d, 5000)", before), "t");
    EXPECT(pg_call_text(&txn, "SELECT 1", NULL, NULL, &err) < 0);
    pg_pool_give(pg, lent);
    EXPECT_OK(pg_pool_take_as(pg, POOL_HOLDER, pg_real_ms() + PATIENCE, &lent, &err));
    EXPECT(lent->listens && PQbackendPID(lent->pg) != before);
    pg_pool_give(pg, lent);
    pg_pool_give(pg, taken);
    lh_close(store);
    PQfinish(other);
}

TEST(without_a_listener_the_last_free_connection_is_for_holders)
{
    lh_store *store = open_limited();
    struct pg *pg = store->store.self;
    struct conn *taken, *second, *third;
    struct lhi_error err;

    pg_pool_drop_reserve(pg);
    EXPECT_OK(pg_pool_take(pg, pg_real_ms() + PATIENCE, &taken, &err));
    EXPECT_STATUS(pg_pool_take(pg, pg_real_ms() + 50, &third, &err), LH_EBUSY);
    EXPECT_OK(pg_pool_take_as(pg, POOL_HOLDER, pg_real_ms() + PATIENCE, &second, &err));
    EXPECT_STATUS(pg_pool_take_as(pg, POOL_HOLDER, pg_real_ms() + 50, &third, &err), LH_EBUSY);
    pg_pool_give(pg, second);
    pg_pool_give(pg, taken);
    EXPECT_EQ(pg->n_conns, 2);
    lh_close(store);
}
