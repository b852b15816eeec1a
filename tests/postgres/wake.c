/* Wake-ups: a sleeper is woken once per job that it may take; without sleepers nobody is
 * notified. */
#include "postgres/proxy.h"
#include "postgres/session.h"

#include "core/core.h"
#include "store/postgres/wire.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE = 10000, FOR_EVER_MS = 600000 };

/* ---------------------------------------------------------------- notifications, as any session
 * receives them */

struct scene {
    PGconn *ear, *hand;
};

static struct scene set_the_scene(void)
{
    struct scene scene = {session_at(START_MS), session_at(START_MS)};

    EXPECT_STR(said(scene.ear, "LISTEN leasehold"), "");
    return scene;
}

static void leave(struct scene *scene)
{
    PQfinish(scene->ear);
    PQfinish(scene->hand);
}

/* How often a queue was notified since the last call. Notifications arrive in the order of the
 * commits. */
static int rings_for(struct scene *scene, const char *queue)
{
    struct pollfd ear = {.fd = PQsocket(scene->ear), .events = POLLIN};
    PGnotify *notify;
    int n = 0;

    EXPECT_STR(said(scene->hand, "NOTIFY leasehold, 'no more'"), "");
    for (bool more = true; more;) {
        EXPECT(PQconsumeInput(scene->ear) == 1);
        while ((notify = PQnotifies(scene->ear)) != NULL) {
            n += strcmp(notify->extra, queue) == 0;
            more = more && strcmp(notify->extra, "no more") != 0;
            PQfreemem(notify);
        }
        if (more)
            (void)poll(&ear, 1, -1);
    }
    return n;
}

static void enqueue(struct scene *scene)
{
    EXPECT_STR(said(scene->hand, "SELECT state FROM leasehold.enqueue('q', 'x')"), "pending");
}

static void arm(struct scene *scene)
{
    (void)said(scene->hand, "SELECT leasehold.subscribe('{q}')");
}

TEST(an_enqueue_notifies_nobody_if_there_is_no_sleeper)
{
    struct scene scene = set_the_scene();

    for (int i = 0; i < 100; i++)
        enqueue(&scene);
    EXPECT_EQ(rings_for(&scene, "q"), 0);
    leave(&scene);
}

TEST(one_notification_wakes_all_sleepers_of_a_queue)
{
    struct scene scene = set_the_scene();

    EXPECT_STR(said(scene.hand, "SELECT leasehold.subscribe('{q}')"), "t");
    EXPECT_STR(said(scene.hand, "SELECT leasehold.subscribe('{q}')"), "f");
    for (int i = 0; i < 3; i++)
        enqueue(&scene);
    EXPECT_EQ(rings_for(&scene, "q"), 1);
    EXPECT_EQ(rings_for(&scene, "other"), 0);
    leave(&scene);
}

TEST(each_subscription_is_worth_one_wake_up)
{
    struct scene scene = set_the_scene();

    for (int i = 0; i < 10; i++) {
        arm(&scene);
        enqueue(&scene);
        enqueue(&scene);
    }
    EXPECT_EQ(rings_for(&scene, "q"), 10);
    leave(&scene);
}

TEST(a_rolled_back_enqueue_wakes_nobody_and_keeps_the_subscription)
{
    struct scene scene = set_the_scene();

    arm(&scene);
    EXPECT_STR(said(scene.hand, "BEGIN"), "");
    enqueue(&scene);
    EXPECT_STR(said(scene.hand, "ROLLBACK"), "");
    EXPECT_EQ(rings_for(&scene, "q"), 0);
    enqueue(&scene);
    EXPECT_EQ(rings_for(&scene, "q"), 1);
    leave(&scene);
}

TEST(a_plain_insert_wakes_sleepers)
{
    struct scene scene = set_the_scene();

    arm(&scene);
    EXPECT_STR(said(scene.hand, "INSERT INTO leasehold.job(queue) VALUES ('q')"), "");
    EXPECT_EQ(rings_for(&scene, "q"), 1);
    leave(&scene);
}

/* ---- kinds ---- */

TEST(a_job_wakes_sleepers_that_take_its_kind_or_any_kind)
{
    static const struct {
        const char *sql, *asleep;
    } cases[] = {
        {"SELECT leasehold.enqueue('q', 'x', kind => 'red')", "other/red q/blue"},
        {"INSERT INTO leasehold.job(queue, kind) VALUES ('q', 'red')", "other/red q/blue"},
        {"SELECT leasehold.enqueue('q', 'x', kind => 'red', key => 'k')", "other/red q/blue"},
        {"SELECT leasehold.enqueue_many('q', '{1,2}', '{x,y}', kinds => '{red,blue}')",
         "other/red"},
        {"SELECT leasehold.enqueue('q', 'x')", "other/red q/blue q/red"},
        {"SELECT leasehold.enqueue_one('q', 0, 'x', NULL)", "other/red q/blue q/red"},
        /* The kinds of jobs that become pending again are not known. */
        {"SELECT leasehold.count_change('q', leasehold.clock(), 'o', 'scheduled', 'pending', 1)",
         "other/red"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scene scene = set_the_scene();
        done(scene.hand, "SELECT leasehold.subscribe('{q,q/red,q/blue,other/red}')");
        done(scene.hand, cases[i].sql);
        EXPECT_STR(said(scene.hand, "SELECT string_agg(queue, ' ' ORDER BY queue) "
                                    "FROM leasehold.sleeper WHERE asleep"),
                   cases[i].asleep);
        leave(&scene);
        test_store_renew();
    }
}

TEST(the_leader_wakes_a_sleeper_only_for_a_job_of_its_kind)
{
    struct scene scene = set_the_scene();

    done(scene.hand, "SELECT leasehold.enqueue('q', 'x', kind => 'red')");
    done(scene.hand, "SELECT leasehold.subscribe('{q/red,q/blue}')");
    EXPECT_STR(said(scene.hand, "SELECT on_duty FROM leasehold.poll('{}', 'a')"), "t");
    EXPECT_EQ(rings_for(&scene, "q/red"), 1);
    EXPECT_STR(said(scene.hand, "SELECT queue FROM leasehold.sleeper WHERE asleep"), "q/blue");
    leave(&scene);
}

TEST(a_subscription_names_a_queue_and_may_name_a_kind)
{
    struct scene scene = set_the_scene();

    EXPECT_CONTAINS(said(scene.hand, "SELECT leasehold.subscribe('{q/}')"),
                    "LH003 kind \"\" is not");
    EXPECT_CONTAINS(said(scene.hand, "SELECT leasehold.subscribe('{/k}')"),
                    "LH003 queue \"\" is not");
    EXPECT_CONTAINS(said(scene.hand, "SELECT leasehold.subscribe('{q/k/k}')"),
                    "LH003 kind \"k/k\" is not");
    leave(&scene);
}

/* ---- are there sleepers at all? read by an enqueue of one job ---- */

static void enqueue_one(struct scene *scene)
{
    EXPECT_STR(said(scene->hand, "SELECT leasehold.enqueue_one('q', 0, 'x', NULL) > 0"), "t");
}

/* Does the enqueue search for sleepers? */
static bool enqueue_looks(struct scene *scene, int64_t ms)
{
    static const char looks[] =
        "SELECT pg_stat_get_xact_numscans('leasehold.sleeper_pkey'::regclass)";

    session_clock(scene->hand, START_MS + ms);
    EXPECT_STR(said(scene->hand, "BEGIN"), "");
    int before = atoi(said(scene->hand, looks));
    enqueue_one(scene);
    int after = atoi(said(scene->hand, looks));
    EXPECT_STR(said(scene->hand, "COMMIT"), "");
    return after > before;
}

TEST(an_enqueue_of_one_job_searches_sleepers_only_while_there_may_be_some)
{
    struct scene scene = set_the_scene();

    (void)said(scene.hand, "SELECT leasehold.subscribe('{!}')"); /* waits for something else */
    EXPECT(!enqueue_looks(&scene, 0));
    EXPECT_STR(said(scene.hand, "SELECT leasehold.subscribe('{!,q}')"), "t");
    EXPECT(enqueue_looks(&scene, 0));
    EXPECT_EQ(rings_for(&scene, "q"), 1);
    EXPECT(enqueue_looks(&scene, 599999));
    EXPECT(!enqueue_looks(&scene, 600000));
    leave(&scene);
}

TEST(a_sleeper_renews_its_subscription_long_before_it_ends)
{
    static const char minutes[] =
        "SELECT (EXTRACT(epoch FROM sleepers_until - leasehold.clock()) / 60)::int "
        "FROM leasehold.meta";
    struct scene scene = set_the_scene();

    EXPECT_STR(said(scene.hand, "SELECT leasehold.subscribe('{q}')"), "t");
    EXPECT_STR(said(scene.hand, minutes), "10");
    for (int minute = 1; minute < 5; minute++) {
        session_clock(scene.hand, START_MS + minute * INT64_C(60000));
        arm(&scene);
    }
    EXPECT_STR(said(scene.hand, minutes), "6");
    /* Another process subscribed to its queue, but the note that there are sleepers at all is
     * about to end. */
    session_clock(scene.hand, START_MS + INT64_C(299000));
    arm(&scene);
    session_clock(scene.hand, START_MS + INT64_C(301000));
    EXPECT_STR(said(scene.hand, "SELECT leasehold.subscribe('{q}')"), "t");
    EXPECT_STR(said(scene.hand, minutes), "10");
    EXPECT_STR(said(scene.hand, "SELECT leasehold.subscribe('{q}')"), "f");
    leave(&scene);
}

TEST(the_leader_wakes_a_sleeper_that_subscribed_before_a_clock_jump)
{
    struct scene scene = set_the_scene();

    arm(&scene);
    EXPECT(!enqueue_looks(&scene, 3600000));
    EXPECT_EQ(rings_for(&scene, "q"), 0);
    EXPECT_STR(said(scene.hand, "SELECT on_duty FROM leasehold.poll('{}', 'a')"), "t");
    EXPECT_EQ(rings_for(&scene, "q"), 1);
    leave(&scene);
}

/* A policy is being set in a transaction that stays open. */
TEST(a_subscription_does_not_wait_for_a_locked_row_and_is_repeated)
{
    struct scene scene = set_the_scene();
    PGconn *other = session_at(START_MS);

    done(other, "BEGIN");
    done(other, "UPDATE leasehold.meta SET generation = generation + 1");
    for (int i = 0; i < 2; i++)
        EXPECT_STR(said(scene.hand, "SELECT leasehold.subscribe('{q}')"), "t");
    enqueue_one(&scene);
    EXPECT_EQ(rings_for(&scene, "q"), 0);
    EXPECT_STR(said(scene.hand, "SELECT on_duty FROM leasehold.poll('{}', 'a')"), "t");
    EXPECT_EQ(rings_for(&scene, "q"), 1); /* by the leader */
    done(other, "COMMIT");
    arm(&scene);
    session_clock(scene.hand, START_MS + 100);
    enqueue_one(&scene);
    EXPECT_EQ(rings_for(&scene, "q"), 1);
    PQfinish(other);
    leave(&scene);
}

/* A process sleeps, a job waits, and the leader polls. */
static int late_rings(struct scene *scene)
{
    arm(scene);
    (void)rings_for(scene, "q");
    EXPECT_STR(said(scene->hand, "SELECT on_duty FROM leasehold.poll('{}', 'a')"), "t");
    return rings_for(scene, "q");
}

TEST(the_leader_wakes_sleepers_for_jobs_that_committed_without_a_notification)
{
    struct scene scene = set_the_scene();

    enqueue(&scene); /* and is about to commit while the other session subscribes */
    EXPECT_EQ(late_rings(&scene), 1);
    EXPECT_STR(said(scene.hand, "SELECT on_duty FROM leasehold.poll('{}', 'a')"), "t");
    EXPECT_EQ(rings_for(&scene, "q"), 0); /* there is no sleeper any more */
    leave(&scene);
}

TEST(the_leader_wakes_sleepers_once_for_a_job_that_nobody_takes)
{
    struct scene scene = set_the_scene();

    enqueue(&scene);
    EXPECT_EQ(late_rings(&scene), 1);
    EXPECT_EQ(late_rings(&scene), 0);
    enqueue(&scene); /* notifies by itself, and may be a job that they take */
    EXPECT_EQ(late_rings(&scene), 1);
    EXPECT_EQ(late_rings(&scene), 0);
    leave(&scene);
}

TEST(waits_for_maintenance_are_notified_of_what_falls_due_within_a_second)
{
    struct scene scene = set_the_scene();

    (void)said(scene.hand, "SELECT leasehold.subscribe('{!}')");
    (void)said(scene.hand, "SELECT leasehold.enqueue('q', 'x', delay => '1001 ms')");
    EXPECT_EQ(rings_for(&scene, "!"), 0);
    (void)said(scene.hand, "SELECT leasehold.enqueue('q', 'x', delay => '1 s')");
    EXPECT_EQ(rings_for(&scene, "!"), 1);
    (void)said(scene.hand, "SELECT leasehold.subscribe('{!}')");
    (void)said(scene.hand, "INSERT INTO leasehold.job(queue, run_at) VALUES "
                           "('q', leasehold.clock() + interval '500 ms')");
    EXPECT_EQ(rings_for(&scene, "!"), 1);
    leave(&scene);
}

/* ---------------------------------------------------------------- a sleeper */

/* A thread that sleeps again whenever it was woken. It is not woken for polls, as the core does. */
struct sleeper {
    lh_store *store;
    PGconn *watch;
    pthread_t thread;
    int up, gone; /* atomic */
};

static void *sleep_on(void *arg)
{
    struct sleeper *sleeper = arg;
    const char *queue = "q";
    const lh_claim_opts opts = {.queues = &queue, .n_queues = 1};
    const struct lhi_topic topic = {.on = LHI_ON_JOBS, .opts = &opts};
    void *pg = sleeper->store->store.self;

    while (!__atomic_load_n(&sleeper->up, __ATOMIC_SEQ_CST)) {
        uint32_t ticket = pg_ticket(pg, &topic);
        (void)pg_subscribe(pg, &topic);
        (void)pg_wait(pg, &topic, ticket, FOR_EVER_MS);
    }
    __atomic_store_n(&sleeper->gone, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void lie_down(struct sleeper *sleeper, const char *url)
{
    sleeper->watch = session_at(START_MS);
    EXPECT_OK(lh_open(url, NULL, &sleeper->store));
    EXPECT_EQ(pthread_create(&sleeper->thread, NULL, sleep_on, sleeper), 0);
}

static void enqueue_real(struct sleeper *sleeper)
{
    lh_enqueued out;
    EXPECT_OK(lh_enqueue(sleeper->store, "q", &(lh_new_job){.payload = "x", .payload_len = 1}, 1,
                         NULL, &out));
}

static void get_up(struct sleeper *sleeper)
{
    __atomic_store_n(&sleeper->up, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&sleeper->gone, __ATOMIC_SEQ_CST)) {
        enqueue_real(sleeper);
        (void)usleep(10000);
    }
    EXPECT_EQ(pthread_join(sleeper->thread, NULL), 0);
    lh_close(sleeper->store);
    PQfinish(sleeper->watch);
}

static void expect_soon(struct sleeper *sleeper, const char *sql, const char *answer)
{
    for (int i = 0; i < PATIENCE && strcmp(said(sleeper->watch, "%s", sql), answer) != 0; i++)
        (void)usleep(1000);
    EXPECT_STR(said(sleeper->watch, "%s", sql), answer);
}

static const char asleep[] = "SELECT asleep FROM leasehold.sleeper WHERE queue = 'q'";
static const char rung_at[] = "SELECT notified_at FROM leasehold.sleeper WHERE queue = 'q'";
static const char listeners[] =
    "SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN leasehold'"
    " AND datname = current_database()";

/* The thread sleeps; a notification ends its subscription. So if it is subscribed again, it was
 * woken. */
static void expect_wakes(struct sleeper *sleeper)
{
    char before[64];

    expect_soon(sleeper, asleep, "t");
    (void)snprintf(before, sizeof before, "%s", said(sleeper->watch, rung_at));
    for (int i = 0; i < PATIENCE / 10 && strcmp(said(sleeper->watch, rung_at), before) == 0; i++) {
        enqueue_real(sleeper); /* soon after a notification there is no other */
        (void)usleep(10000);
    }
    EXPECT(strcmp(said(sleeper->watch, rung_at), before) != 0);
    expect_soon(sleeper, asleep, "t");
}

TEST_TIMEOUT(a_sleeper_is_woken_by_every_notification, 60)
{
    struct sleeper sleeper = {0};

    lie_down(&sleeper, test_store());
    for (int i = 0; i < 3; i++)
        expect_wakes(&sleeper);
    EXPECT_STR(said(sleeper.watch, listeners), "1");
    get_up(&sleeper);
}

/* ---------------------------------------------------------------- a claim that waits */

/* The operations of the store; those that call the server are counted. */
static struct {
    const struct lhi_store_ops *real;
    int calls, first_sleep_after; /* number of calls; 0: it has not slept */
} counted;

static int counted_perform(void *self, struct lhi_act *acts, size_t n, struct lhi_error *err)
{
    counted.calls++;
    return counted.real->perform(self, acts, n, err);
}

static int counted_read(void *self, struct lhi_act *act, struct lhi_error *err)
{
    counted.calls++;
    return counted.real->read(self, act, err);
}

static enum lhi_subscribed counted_subscribe(void *self, const struct lhi_topic *topic)
{
    enum lhi_subscribed how = counted.real->subscribe(self, topic);
    counted.calls += how != LHI_SUBSCRIBED_BEFORE;
    return how;
}

static bool counted_wait(void *self, const struct lhi_topic *topic, uint32_t ticket,
                         int64_t timeout_ms)
{
    if (counted.first_sleep_after == 0)
        counted.first_sleep_after = counted.calls;
    return counted.real->wait(self, topic, ticket, timeout_ms);
}

TEST(an_idle_claim_makes_three_round_trips_before_it_sleeps)
{
    static struct lhi_store_ops ops;
    const char *queue = "q";
    lh_store *store = NULL;
    lh_jobs *jobs = NULL;

    EXPECT_OK(lh_open(test_store(), NULL, &store));
    counted.real = store->store.ops;
    ops = *counted.real;
    ops.perform = counted_perform;
    ops.read = counted_read;
    ops.subscribe = counted_subscribe;
    ops.wait = counted_wait;
    store->store.ops = &ops;
    EXPECT_STATUS(
        lh_claim(store,
                 &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w", .wait_ms = 300},
                 &jobs),
        LH_EMPTY);
    EXPECT(counted.first_sleep_after > 0 && counted.first_sleep_after <= 3);
    lh_close(store);
}

TEST_TIMEOUT(a_listener_reconnects_after_its_connection_is_lost, 60)
{
    struct sleeper sleeper = {0};

    lie_down(&sleeper, test_store());
    expect_wakes(&sleeper);
    EXPECT_STR(said(sleeper.watch, "SELECT count(pg_terminate_backend(pid, 5000)) > 1"
                                   " FROM pg_stat_activity WHERE datname = current_database()"
                                   " AND pid <> pg_backend_pid() AND usename = current_user"),
               "t");
    expect_soon(&sleeper, listeners, "1");
    expect_wakes(&sleeper);
    get_up(&sleeper);
}

TEST_TIMEOUT(behind_a_pooler_waits_poll_instead_of_listening, 60)
{
    struct proxy *proxy = proxy_start();
    lh_store *store = NULL;
    PGconn *watch = session_at(START_MS);
    const char *queue = "q";
    lh_jobs *jobs = NULL;

    proxy_renumber(proxy);
    EXPECT_OK(lh_open(proxy->url, NULL, &store));
    const lh_claim_opts opts = {.queues = &queue, .n_queues = 1, .worker = "w", .wait_ms = 300};
    const struct lhi_topic topic = {.on = LHI_ON_JOBS, .opts = &opts};
    EXPECT_STATUS(lh_claim(store, &opts, &jobs), LH_EMPTY);
    EXPECT(pg_subscribe(store->store.self, &topic) == LHI_SUBSCRIBED_DEAF);
    EXPECT_STR(said(watch, listeners), "0");
    EXPECT_STR(said(watch, "SELECT count(*) FROM leasehold.sleeper WHERE asleep"), "0");
    lh_close(store);
    PQfinish(watch);
    proxy_stop(proxy);
}
