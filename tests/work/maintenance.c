/* A worker runs maintenance for all queues while it works, not only for its own. */
#include "work/shift.h"

#include "base/hook.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

enum { LONG_MS = 86400000 };

static const char *const queue = "q";

struct busy {
    struct shop shop;
    lh_work_opts opts;
    pthread_t thread;
    int stop, inside, rc;
};

/* Occupy the only slot of the worker, so that it makes no claims that could recover jobs. */
static lh_outcome occupy(void *arg, lh_task *task, const lh_job *job)
{
    struct busy *b = arg;

    (void)job;
    __atomic_store_n(&b->inside, 1, __ATOMIC_SEQ_CST);
    EVENTUALLY(lh_task_lost(task));
    return LH_RAN_FAILED;
}

static void *work(void *arg)
{
    struct busy *b = arg;

    b->rc = lh_worker_run(b->shop.store, &b->opts, NULL, NULL, 0);
    return NULL;
}

static void busy_start(struct busy *b, lh_work_opts opts)
{
    *b = (struct busy){.shop = shop_open(), .opts = opts};
    b->opts.queues = &queue;
    b->opts.n_queues = 1;
    b->opts.handler = occupy;
    b->opts.handler_arg = b;
    b->opts.cancel = &b->stop;
    b->opts.grace_ms = LH_NOW;
    (void)put(&b->shop, queue, "x");
    EXPECT_EQ(pthread_create(&b->thread, NULL, work, b), 0);
    EVENTUALLY(__atomic_load_n(&b->inside, __ATOMIC_SEQ_CST) == 1);
}

static void busy_end(struct busy *b)
{
    __atomic_store_n(&b->stop, 1, __ATOMIC_SEQ_CST);
    EXPECT_EQ(pthread_join(b->thread, NULL), 0);
    EXPECT_OK(b->rc);
    shop_close(&b->shop);
}

/* A running job of another queue whose holder does not exist. */
static int64_t abandon(struct busy *b, int64_t lease_ms)
{
    const char *other = "other";
    int64_t id = put(&b->shop, other, "x");
    lh_jobs *jobs = NULL;

    EXPECT_OK(lh_claim(
        b->shop.store,
        &(lh_claim_opts){.queues = &other, .n_queues = 1, .worker = "gone", .lease_ms = lease_ms},
        &jobs));
    EXPECT_EQ(jobs->job[0].id, id);
    lh_jobs_free(jobs);
    return id;
}

static int64_t event_at(struct shop *shop, const char *type)
{
    lh_events *list = NULL;
    int64_t at = 0;

    EXPECT_OK(lh_event_list(shop->store, &(lh_event_filter){.limit = 1000}, &list));
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->event[i].type, type) == 0)
            at = list->event[i].at;
    lh_events_free(list);
    return at;
}

TEST(a_worker_with_no_free_slot_recovers_jobs_whose_leases_expire)
{
    struct busy b;
    busy_start(&b, (lh_work_opts){.heartbeat_ms = LONG_MS});
    int64_t job = abandon(&b, 50);
    EVENTUALLY(state_of(&b.shop, job) == LH_PENDING);
    EXPECT_EQ(look(&b.shop, job)->recoveries, 1);
    busy_end(&b);
}

TEST(a_worker_with_no_free_slot_promotes_jobs_that_fall_due)
{
    struct busy b;
    lh_enqueued out;
    busy_start(&b, (lh_work_opts){.heartbeat_ms = LONG_MS});
    EXPECT_OK(lh_enqueue(b.shop.store, "other", &(lh_new_job){.delay_ms = 50}, 1, NULL, &out));
    EVENTUALLY(state_of(&b.shop, out.id) == LH_PENDING);
    busy_end(&b);
}

static void by_hand(const char *sql)
{
    sqlite3 *db;

    EXPECT_EQ(sqlite3_open("s.db", &db), SQLITE_OK);
    EXPECT_EQ(sqlite3_busy_timeout(db, 5000), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    EXPECT_EQ(sqlite3_close(db), SQLITE_OK);
}

/* A worker of an earlier boot. Its process cannot be watched, so only a check finds it dead. */
static void put_ghost(void)
{
    by_hand("INSERT INTO lh_worker(id, label, host, machine, boot, pid_ns, pid, process_start,"
            " interval_ms, multiplier, registered_at, last_heartbeat_at, silent_at) "
            "SELECT 'ghost', 'ghost', host, machine, 'earlier', pid_ns, 1, 1, 86400000, 3,"
            " registered_at, last_heartbeat_at, last_heartbeat_at + 3 * 86400000 "
            "FROM lh_worker LIMIT 1");
}

TEST(a_worker_checks_for_dead_workers_at_the_set_interval)
{
    struct busy b;
    busy_start(&b, (lh_work_opts){.heartbeat_ms = LONG_MS, .detection_ms = 100});
    for (int64_t n = 1; n <= 2; n++) {
        put_ghost();
        EVENTUALLY(events(&b.shop, "worker.dead") == n);
        by_hand("DELETE FROM lh_worker WHERE id = 'ghost'");
    }
    busy_end(&b);
}

static void pass(int64_t ms)
{
    struct lhi_control *clock = lhi_control();

    __atomic_add_fetch(&clock->wall_ms, ms, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&clock->mono_ms, ms, __ATOMIC_SEQ_CST);
}

TEST(a_worker_checks_for_dead_workers_every_minute_by_default)
{
    struct lhi_control *clock = lhi_control();
    struct busy b;
    clock->frozen_wall_ms = now_wall_ms();
    clock->frozen_mono_ms = now_ms();
    clock->frozen = true;
    busy_start(&b, (lh_work_opts){.heartbeat_ms = LONG_MS});
    put_ghost();
    pass(59999);
    EXPECT_EQ(events(&b.shop, "worker.dead"), 0);
    pass(1);
    EVENTUALLY(events(&b.shop, "worker.dead") == 1);
    EXPECT_EQ(event_at(&b.shop, "worker.dead") - clock->frozen_wall_ms, 60000);
    busy_end(&b);
}
