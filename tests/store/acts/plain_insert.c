/* A plain INSERT by any client is a valid enqueue, checked by the schema. */
#include "store/sqlite.h"

#include "base/checksum.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NOW_MS "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"

struct ground {
    lh_store *store;
    sqlite3 *db; /* the connection of another program */
};

static struct ground ground_open(void)
{
    freeze_now();
    struct ground g = {.store = store_new()};
    g.db = db_open("store.db");
    return g;
}

static void ground_close(struct ground *g)
{
    store_check(g->store);
    sqlite3_close(g->db);
    lh_close(g->store);
}

static lh_job first_job(struct ground *g, lh_jobs **jobs)
{
    EXPECT_OK(lh_job_list(g->store, NULL, jobs));
    EXPECT_EQ((*jobs)->n, 1);
    return (*jobs)->job[0];
}

TEST(a_plain_insert_is_an_enqueue)
{
    struct ground g = ground_open();
    lh_jobs *jobs = NULL;
    db_exec(g.db, "INSERT INTO lh_job(queue, payload) VALUES('mail', '{\"to\":\"a@b.c\"}')");
    lh_job job = first_job(&g, &jobs);
    EXPECT_EQ(job.id, 1);
    EXPECT_EQ(job.state, LH_PENDING);
    EXPECT_STR(job.queue, "mail");
    EXPECT_MEM(job.payload, job.payload_len, "{\"to\":\"a@b.c\"}", 14);
    EXPECT(job.kind == NULL);
    EXPECT_EQ(job.priority, 0);
    EXPECT_EQ(job.attempt, 0);
    EXPECT_EQ(job.max_attempts, 0); /* taken from the policy at the first claim */
    EXPECT_EQ(job.recoveries, 0);
    EXPECT_EQ(job.token, 0);
    EXPECT_EQ(job.run_at, 0);
    EXPECT_EQ(job.progress, -1);
    int64_t age = job.created_at - lh_now(g.store);
    EXPECT(age > -5000 && age < 60000);
    EXPECT_EQ(job.created_at, job.state_changed_at);
    lh_jobs_free(jobs);
    EXPECT_EQ(counts_of(g.store, "mail").pending, 1);
    EXPECT_EQ(counts_of(g.store, "mail").hour_enqueued, 1);
    EXPECT_EQ(add(g.store, "mail", "next"), 2);
    EXPECT_EQ(counts_of(g.store, "mail").pending, 2);
    ground_close(&g);
}

TEST(inserted_job_can_be_claimed_and_completed)
{
    struct ground g = ground_open();
    EXPECT_OK(lh_policy_set(g.store, "mail", "k",
                            &(lh_policy){.set = LH_POLICY_MAX_ATTEMPTS | LH_POLICY_LEASE,
                                         .max_attempts = 7,
                                         .lease_ms = 1000},
                            0));
    db_exec(g.db, "INSERT INTO lh_job(queue, kind, priority, payload) VALUES('mail', 'k', 5, 'x')");
    pass_ms(60000);
    lh_jobs *jobs = take(g.store, "mail", "w1", 0);
    EXPECT(jobs != NULL);
    EXPECT_EQ(jobs->job[0].attempt, 1);
    EXPECT_EQ(jobs->job[0].max_attempts, 7);
    EXPECT_EQ(jobs->job[0].lease_ms, 1000);
    EXPECT_EQ(jobs->job[0].priority, 5);
    EXPECT_OK(lh_complete(g.store, &(lh_done){.job = jobs->job[0].id, .token = jobs->job[0].token},
                          1, NULL, NULL));
    lh_jobs_free(jobs);
    EXPECT_EQ(counts_of(g.store, "mail").completed, 1);
    ground_close(&g);
}

TEST(inserted_job_can_set_every_option_of_an_enqueue)
{
    struct ground g = ground_open();
    lh_jobs *jobs = NULL;
    db_exec(g.db, "INSERT INTO lh_job(queue, kind, priority, max_attempts, key, lease_ms, payload) "
                  "VALUES('mail', 'k', -3, -1, 'order-7', 4321, x'00ff00')");
    lh_job job = first_job(&g, &jobs);
    EXPECT_STR(job.kind, "k");
    EXPECT_STR(job.key, "order-7");
    EXPECT_EQ(job.priority, -3);
    EXPECT_EQ(job.max_attempts, LH_UNLIMITED);
    EXPECT_MEM(job.payload, job.payload_len, "\0\xff\0", 3);
    EXPECT(!job.payload_is_text);
    lh_jobs_free(jobs);
    jobs = take(g.store, "mail", "w1", 0);
    EXPECT_EQ(jobs->job[0].lease_ms, 4321);
    EXPECT_EQ(jobs->job[0].max_attempts, LH_UNLIMITED);
    lh_jobs_free(jobs);
    ground_close(&g);
}

TEST(an_insert_without_a_payload_has_none)
{
    struct ground g = ground_open();
    db_exec(g.db, "INSERT INTO lh_job(queue) VALUES('mail')");
    db_exec(g.db, "INSERT INTO lh_job(queue, payload) VALUES('mail', '')");
    lh_jobs *jobs = take(g.store, "mail", "w1", 0);
    EXPECT(jobs->job[0].payload == NULL);
    lh_jobs_free(jobs);
    jobs = take(g.store, "mail", "w1", 0);
    EXPECT(jobs->job[0].payload != NULL);
    EXPECT_EQ(jobs->job[0].payload_len, 0);
    lh_jobs_free(jobs);
    ground_close(&g);
}

TEST(an_insert_for_the_future_is_scheduled_and_one_for_the_past_is_not)
{
    struct ground g = ground_open();
    db_exec(g.db, "INSERT INTO lh_job(queue, run_at) VALUES('mail', " NOW_MS " + 3600000)");
    db_exec(g.db, "INSERT INTO lh_job(queue, run_at) VALUES('mail', " NOW_MS " - 1000)");
    EXPECT_EQ(state_of(g.store, 1), LH_SCHEDULED);
    EXPECT_EQ(state_of(g.store, 2), LH_PENDING);
    EXPECT_EQ(counts_of(g.store, "mail").scheduled, 1);
    EXPECT_EQ(counts_of(g.store, "mail").pending, 1);
    lh_jobs *jobs = take(g.store, "mail", "w1", 0);
    EXPECT_EQ(jobs->job[0].id, 2);
    lh_jobs_free(jobs);
    EXPECT(take(g.store, "mail", "w1", 0) == NULL);
    pass_ms(3700000);
    jobs = take(g.store, "mail", "w1", 0);
    EXPECT(jobs != NULL);
    EXPECT_EQ(jobs->job[0].id, 1);
    lh_jobs_free(jobs);
    ground_close(&g);
}

TEST(an_insert_with_an_expiry_is_cancelled_when_it_is_not_claimed_by_then)
{
    struct ground g = ground_open();
    db_exec(g.db, "INSERT INTO lh_job(queue, expires_at) VALUES('mail', " NOW_MS " + 3600000)");
    pass_ms(3700000);
    EXPECT(take(g.store, "mail", "w1", 0) == NULL);
    EXPECT_EQ(state_of(g.store, 1), LH_CANCELLED);
    ground_close(&g);
}

TEST(many_rows_inserted_by_one_statement_are_all_counted)
{
    struct ground g = ground_open();
    db_exec(g.db, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) "
                  "INSERT INTO lh_job(queue, payload, priority) "
                  "SELECT 'q' || (i % 3), 'payload ' || i, i % 5 FROM n");
    EXPECT_EQ(counts_of(g.store, "q0").pending + counts_of(g.store, "q1").pending +
                  counts_of(g.store, "q2").pending,
              500);
    ground_close(&g);
}

/* ---- what the schema refuses ---- */

TEST(an_insert_that_is_not_a_job_is_refused)
{
    struct ground g = ground_open();
    static const char *const bad[] = {
        "(payload) VALUES('x')",
        "(queue) VALUES(NULL)",
        "(queue) VALUES('')",
        "(queue) VALUES('two words')",
        "(queue) VALUES('a/b')",
        "(queue) VALUES('*')",
        "(queue) VALUES('gr\xc3\xbc')",
        "(queue) VALUES(x'6d61696c')",
        "(queue, kind) VALUES('mail', '')",
        "(queue, kind) VALUES('mail', 'a b')",
        "(queue, state) VALUES('mail', 'waiting')",
        "(queue, state) VALUES('mail', 'running')",
        "(queue, state) VALUES('mail', NULL)",
        "(queue, priority) VALUES('mail', 32768)",
        "(queue, priority) VALUES('mail', -32769)",
        "(queue, priority) VALUES('mail', 'high')",
        "(queue, payload) VALUES('mail', 42)",
        "(queue, payload) VALUES('mail', 4.2)",
        "(queue, result) VALUES('mail', 42)",
        "(queue, run_at) VALUES('mail', 1768473000)", /* seconds instead of milliseconds */
        "(queue, run_at) VALUES('mail', 'tomorrow')",
        "(queue, created_at) VALUES('mail', 1768473000)",
        "(queue, expires_at) VALUES('mail', 1768473000)",
        "(queue, max_attempts) VALUES('mail', 0)",
        "(queue, max_attempts) VALUES('mail', -2)",
        "(queue, max_attempts, attempt) VALUES('mail', 2, 3)",
        "(queue, attempt) VALUES('mail', -1)",
        "(queue, recoveries) VALUES('mail', -1)",
        "(queue, lease_ms) VALUES('mail', 0)",
        "(queue, lease_ms) VALUES('mail', 2592000001)",
        "(queue, key) VALUES('mail', '')",
        "(queue, progress) VALUES('mail', 101)",
        "(queue, worker) VALUES('mail', 'me')",
        "(queue, lease_until) VALUES('mail', 1768473000000)",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char sql[256];
        (void)snprintf(sql, sizeof sql, "INSERT INTO lh_job%s", bad[i]);
        if (db_try(g.db, sql) != SQLITE_CONSTRAINT)
            FAIL("expected: the schema refuses %s", sql);
    }
    char sql[400] = "INSERT INTO lh_job(queue) VALUES('";
    memset(sql + strlen(sql), 'n', 129);
    (void)snprintf(sql + strlen(sql), 8, "')");
    EXPECT_EQ(db_try(g.db, sql), SQLITE_CONSTRAINT);
    EXPECT_EQ(db_int(g.db, "SELECT count(*) FROM lh_job"), 0);
    EXPECT_EQ(db_int(g.db, "SELECT count(*) FROM lh_queue WHERE queue <> '*'"), 0);
    ground_close(&g);
}

/* A direct UPDATE of the table must keep the rules that hold for every job. */
TEST(change_that_breaks_a_rule_of_jobs_is_refused)
{
    struct ground g = ground_open();
    static const char *const bad[] = {
        /* a running job has a start, a token, a holder and a lease */
        "started_at = NULL WHERE state = 'running'",
        "token = 0 WHERE state = 'running'",
        "worker = NULL WHERE state = 'running'",
        "lease_until = NULL WHERE state = 'running'",
        "state = 'pending' WHERE state = 'running'",
        "state = 'completed', lease_until = NULL WHERE state = 'running'",
        "worker = 'w' WHERE state = 'pending'", /* every other job has no holder */
        "lease_until = 1768473000000 WHERE state = 'pending'",
        "state = 'running' WHERE state = 'pending'",
        /* a job cannot start after its last change */
        "started_at = state_changed_at + 1 WHERE state = 'running'",
        "attempt = max_attempts + 1 WHERE state = 'running'",
        "state = 'lost' WHERE state = 'pending'",
    };
    add(g.store, "mail", "x");
    lh_jobs_free(take(g.store, "mail", "w", 60000));
    add(g.store, "mail", "y");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char sql[256];
        (void)snprintf(sql, sizeof sql, "UPDATE lh_job SET %s", bad[i]);
        if (db_try(g.db, sql) != SQLITE_CONSTRAINT)
            FAIL("expected: the schema refuses %s", sql);
    }
    ground_close(&g);
}

TEST(a_second_insert_under_a_live_key_is_refused)
{
    struct ground g = ground_open();
    db_exec(g.db, "INSERT INTO lh_job(queue, key) VALUES('mail', 'k')");
    EXPECT_EQ(db_try(g.db, "INSERT INTO lh_job(queue, key) VALUES('mail', 'k')"),
              SQLITE_CONSTRAINT);
    db_exec(g.db, "INSERT INTO lh_job(queue, key) VALUES('post', 'k')");
    int64_t id = 1;
    EXPECT_OK(lh_cancel(g.store, &id, 1, NULL, NULL));
    db_exec(g.db, "INSERT INTO lh_job(queue, key) VALUES('mail', 'k')");
    lh_enqueued out;
    EXPECT_OK(lh_enqueue(g.store, "mail", &(lh_new_job){.key = "k"}, 1, NULL, &out));
    EXPECT(out.duplicate);
    EXPECT_EQ(out.id, 3);
    ground_close(&g);
}

/* ---- in another program's transaction ---- */

TEST(an_insert_counts_when_its_transaction_commits_and_not_before)
{
    struct ground g = ground_open();
    db_exec(g.db, "CREATE TABLE orders(id INTEGER PRIMARY KEY)");
    db_exec(g.db, "BEGIN; INSERT INTO orders VALUES(1); "
                  "INSERT INTO lh_job(queue, payload) VALUES('mail', '1')");
    EXPECT_EQ(counts_of(g.store, "mail").pending, 0);
    db_exec(g.db, "ROLLBACK");
    EXPECT_EQ(counts_of(g.store, "mail").pending, 0);
    EXPECT(take(g.store, "mail", "w1", 0) == NULL);
    db_exec(g.db, "BEGIN; INSERT INTO orders VALUES(2); "
                  "INSERT INTO lh_job(queue, payload) VALUES('mail', '2'); COMMIT");
    lh_jobs *jobs = take(g.store, "mail", "w1", 0);
    EXPECT_MEM(jobs->job[0].payload, jobs->job[0].payload_len, "2", 1);
    lh_jobs_free(jobs);
    ground_close(&g);
}

/* ---- the audit ---- */

static int64_t enqueued_events(struct ground *g)
{
    return db_int(g->db, "SELECT count(*) FROM lh_event WHERE type = 'job.enqueued'");
}

TEST(plain_insert_is_an_event_under_full_audit)
{
    struct ground g = ground_open();
    lh_policy full = {.set = LH_POLICY_AUDIT, .audit = LH_AUDIT_FULL};
    lh_policy brief = {.set = LH_POLICY_AUDIT, .audit = LH_AUDIT_EXCEPTIONAL};
    db_exec(g.db, "INSERT INTO lh_job(queue) VALUES('mail')");
    EXPECT_EQ(enqueued_events(&g), 0);
    EXPECT_OK(lh_policy_set(g.store, "mail", NULL, &full, 0));
    db_exec(g.db, "INSERT INTO lh_job(queue) VALUES('mail')");
    EXPECT_EQ(enqueued_events(&g), 1);
    db_exec(g.db, "INSERT INTO lh_job(queue) VALUES('post')");
    EXPECT_EQ(enqueued_events(&g), 1);
    /* The levels of the audit apply as they do elsewhere. */
    EXPECT_OK(lh_policy_set(g.store, "mail", "quiet", &brief, 0));
    db_exec(g.db, "INSERT INTO lh_job(queue, kind) VALUES('mail', 'quiet')");
    EXPECT_EQ(enqueued_events(&g), 1);
    EXPECT_OK(lh_policy_set(g.store, NULL, "loud", &full, 0));
    db_exec(g.db, "INSERT INTO lh_job(queue, kind) VALUES('post', 'loud')");
    EXPECT_EQ(enqueued_events(&g), 2);
    EXPECT_OK(lh_policy_set(g.store, NULL, NULL, &full, 0));
    db_exec(g.db, "INSERT INTO lh_job(queue) VALUES('post')");
    EXPECT_EQ(enqueued_events(&g), 3);
    EXPECT_OK(lh_policy_set(g.store, "post", NULL, &brief, 0));
    db_exec(g.db, "INSERT INTO lh_job(queue, kind) VALUES('post', 'loud')");
    EXPECT_EQ(enqueued_events(&g), 3); /* (queue, any kind) comes before (any queue, kind) */
    lh_events *events = NULL;
    EXPECT_OK(lh_event_list(g.store, &(lh_event_filter){.job = 2}, &events));
    EXPECT_EQ(events->n, 1);
    EXPECT_STR(events->event[0].type, "job.enqueued");
    EXPECT_STR(events->event[0].queue, "mail");
    EXPECT_STR(events->event[0].to, "pending");
    lh_events_free(events);
    ground_close(&g);
}

/* ---- waiting claims are woken ---- */

struct waiter {
    pthread_t thread;
    lh_store *store;
    lh_jobs *jobs;
    int rc;
};

static void *wait_for_mail(void *arg)
{
    struct waiter *x = arg;
    const char *queue = "mail";
    x->rc = lh_claim(
        x->store,
        &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w1", .wait_ms = 15000},
        &x->jobs);
    return NULL;
}

TEST(an_insert_wakes_a_claim_that_waits_in_another_thread)
{
    lh_store *store = store_new();
    sqlite3 *db = db_open("store.db");
    struct waiter x = {.store = store};
    EXPECT_EQ(pthread_create(&x.thread, NULL, wait_for_mail, &x), 0);
    db_exec(db, "INSERT INTO lh_job(queue, payload) VALUES('mail', 'hello')");
    pthread_join(x.thread, NULL);
    EXPECT_OK(x.rc);
    EXPECT_MEM(x.jobs->job[0].payload, x.jobs->job[0].payload_len, "hello", 5);
    lh_jobs_free(x.jobs);
    sqlite3_close(db);
    lh_close(store);
}

TEST(an_insert_of_another_process_wakes_a_claim_that_waits)
{
    int ready[2];
    char byte;
    EXPECT_EQ(pipe(ready), 0);
    lh_store *made = store_new();
    lh_close(made);
    pid_t child = test_fork();
    if (child == 0) {
        EXPECT_EQ(read(ready[0], &byte, 1), 1);
        sqlite3 *db = db_open("store.db");
        db_exec(db, "INSERT INTO lh_job(queue, payload) VALUES('mail', 'from afar')");
        sqlite3_close(db);
        test_child_done();
    }
    struct waiter x = {.store = store_new()};
    EXPECT_EQ(pthread_create(&x.thread, NULL, wait_for_mail, &x), 0);
    EXPECT_EQ(write(ready[1], "x", 1), 1);
    pthread_join(x.thread, NULL);
    EXPECT_OK(x.rc);
    EXPECT_MEM(x.jobs->job[0].payload, x.jobs->job[0].payload_len, "from afar", 9);
    lh_jobs_free(x.jobs);
    EXPECT_EQ(test_wait(child).code, 0);
    lh_close(x.store);
}

TEST(a_plain_insert_obeys_the_max_payload_of_its_queue)
{
    static const struct {
        const char *queue, *kind;
        int most;
    } cases[] = {
        {.queue = "small", .kind = "NULL", .most = 10},
        {.queue = "small", .kind = "'big'", .most = 20},
        {.queue = "mail", .kind = "NULL", .most = 1048576},
        {.queue = "large", .kind = "NULL", .most = 2000000},
    };
    struct ground g = ground_open();
    EXPECT_OK(lh_policy_set(g.store, "small", NULL,
                            &(lh_policy){.set = LH_POLICY_MAX_PAYLOAD, .max_payload = 10}, 0));
    EXPECT_OK(lh_policy_set(g.store, "small", "big",
                            &(lh_policy){.set = LH_POLICY_MAX_PAYLOAD, .max_payload = 20}, 0));
    EXPECT_OK(lh_policy_set(g.store, "large", NULL,
                            &(lh_policy){.set = LH_POLICY_MAX_PAYLOAD, .max_payload = 2000000}, 0));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int more = 0; more < 2; more++) {
            char sql[160];
            (void)snprintf(
                sql, sizeof sql,
                "INSERT INTO lh_job(queue, kind, payload) VALUES('%s', %s, zeroblob(%d))",
                cases[i].queue, cases[i].kind, cases[i].most + more);
            if (db_try(g.db, sql) != (more == 0 ? SQLITE_OK : SQLITE_CONSTRAINT))
                FAIL("%s: %s", sql, sqlite3_errmsg(g.db));
        }
    }
    EXPECT_STR(sqlite3_errmsg(g.db), "payload is too large: see max_payload of its queue");
    ground_close(&g);
}

TEST(a_plain_insert_with_a_time_of_its_own_is_as_old_as_its_insert)
{
    static const char *const queues[] = {"past", "future"};
    struct ground g = ground_open();
    lh_jobs *jobs = NULL;

    db_exec(g.db, "INSERT INTO lh_job(queue, created_at, state_changed_at) VALUES"
                  "('past', 150000000000, 150000000000), ('future', 9999999999999, 9999999999999)");
    pass_ms(600000);
    for (size_t i = 0; i < 2; i++) {
        int64_t age = counts_of(g.store, queues[i]).oldest_pending_ms;
        if (age <= 300000 || age > 600000)
            FAIL("queue %s: age is %lld ms", queues[i], (long long)age);
    }
    EXPECT_OK(lh_job_list(g.store, NULL, &jobs));
    EXPECT_EQ(jobs->n, 2);
    for (size_t i = 0; i < 2; i++) {
        EXPECT(llabs(lh_now(g.store) - 600000 - jobs->job[i].created_at) < 300000);
        EXPECT_EQ(jobs->job[i].created_at, jobs->job[i].state_changed_at);
    }
    lh_jobs_free(jobs);
    ground_close(&g);
}

/* The default of created_at is the machine's clock, which may have lost its time. */
TEST(plain_insert_with_a_time_before_1973_names_the_column)
{
    static const struct {
        const char *sql, *part;
    } cases[] = {
        {"INSERT INTO lh_job(queue, created_at) VALUES('mail', 5000)",
         "created_at is before 1973: set the clock"},
        {"INSERT INTO lh_job(queue, run_at) VALUES('mail', 1700000000)",
         "run_at is before 1973: it must be in milliseconds"},
        {"INSERT INTO lh_job(queue, expires_at) VALUES('mail', 1700000000)",
         "expires_at is before 1973: it must be in milliseconds"},
    };
    lh_close(store_new());
    sqlite3 *db = db_open("store.db");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EXPECT_EQ(db_try(db, cases[i].sql), SQLITE_CONSTRAINT);
        EXPECT_CONTAINS(sqlite3_errmsg(db), cases[i].part);
    }
    sqlite3_close(db);
}

/* ---- a user's trigger that enqueues ---- */

enum { TRIGGERED = 3 };

/* For each job in "mail" the trigger enqueues a job in "audit". */
static void expect_enqueue_beside_trigger(const char *when, bool by_user, const char *request)
{
    struct ground g = ground_open();
    lh_new_job jobs[TRIGGERED] = {{.kind = "k"}, {.key = "one"}, {.expires_ms = 60000}};
    lh_enqueued out[TRIGGERED], again[TRIGGERED];
    char sql[200], why[200] = "";

    (void)snprintf(sql, sizeof sql,
                   "CREATE TRIGGER user_audit %s INSERT ON lh_job WHEN new.queue = 'mail' BEGIN "
                   "INSERT INTO lh_job(queue, payload) VALUES ('audit', 'x'); END",
                   when);
    db_exec(g.db, sql);
    int rc = by_user ? lh_enqueue_sqlite(g.db, "mail", jobs, TRIGGERED, out, why, sizeof why)
                     : lh_enqueue(g.store, "mail", jobs, TRIGGERED, request, out);
    if (rc != LH_OK)
        FAIL("%s", by_user ? why : lh_errmsg(g.store));
    for (int i = 0; i < TRIGGERED; i++) {
        lh_jobs *job = NULL;
        EXPECT_OK(lh_job_get(g.store, out[i].id, &job));
        EXPECT_STR(job->job[0].queue, "mail");
        EXPECT_EQ(job->job[0].kind != NULL, i == 0);
        EXPECT_EQ(job->job[0].key != NULL, i == 1);
        EXPECT_EQ(job->job[0].expires_at != 0, i == 2);
        lh_jobs_free(job);
    }
    EXPECT_EQ(counts_of(g.store, "mail").pending, TRIGGERED);
    EXPECT_EQ(counts_of(g.store, "audit").pending, TRIGGERED);
    if (request != NULL) {
        EXPECT_OK(lh_enqueue(g.store, "mail", jobs, TRIGGERED, request, again));
        for (int i = 0; i < TRIGGERED; i++) {
            EXPECT(again[i].duplicate);
            EXPECT_EQ(again[i].id, out[i].id);
        }
    }
    ground_close(&g);
}

TEST(a_trigger_of_the_users_may_enqueue_after_each_job_of_a_batch)
{
    expect_enqueue_beside_trigger("AFTER", false, "r1");
}

TEST(a_trigger_of_the_users_may_enqueue_before_each_job_of_a_batch)
{
    expect_enqueue_beside_trigger("BEFORE", false, "r1");
}

TEST(a_trigger_of_the_users_may_enqueue_beside_jobs_of_the_users_connection)
{
    expect_enqueue_beside_trigger("AFTER", true, NULL);
    (void)unlink("store.db");
    (void)unlink("store.db-lease");
    expect_enqueue_beside_trigger("BEFORE", true, NULL);
}

/* After an unknown outcome, the request id says where the first job would be. */
TEST(a_repeat_after_an_unknown_outcome_finds_its_jobs_beside_those_of_a_trigger)
{
    struct ground g = ground_open();
    lh_new_job jobs[2] = {{.kind = "k"}, {.kind = "k"}};
    lh_enqueued out[2], again[2];
    lh_jobs *job = NULL;
    char request[96];

    db_exec(g.db, "CREATE TRIGGER user_audit AFTER INSERT ON lh_job WHEN new.queue = 'mail' BEGIN "
                  "INSERT INTO lh_job(queue, payload) VALUES ('mail.audit', 'x'); END");
    EXPECT_OK(lh_enqueue(g.store, "mail", jobs, 2, NULL, out));
    EXPECT_OK(lh_job_get(g.store, out[0].id, &job));
    (void)snprintf(request, sizeof request, "lh:%lld:2:%lld:%llx", (long long)out[0].id,
                   (long long)job->job[0].created_at, (unsigned long long)lhi_checksum(NULL, 0));
    lh_jobs_free(job);
    if (lh_enqueue(g.store, "mail", jobs, 2, request, again) != LH_OK)
        FAIL("%s: %s", request, lh_errmsg(g.store));
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(again[i].id, out[i].id);
        EXPECT(again[i].duplicate);
    }
    EXPECT_EQ(counts_of(g.store, "mail").pending, 2);
    ground_close(&g);
}

TEST(a_job_that_a_trigger_of_the_users_ignores_is_not_reported_as_enqueued)
{
    struct ground g = ground_open();
    lh_enqueued out = {0};

    db_exec(g.db, "CREATE TRIGGER user_no BEFORE INSERT ON lh_job WHEN new.queue = 'mail' BEGIN "
                  "SELECT RAISE(IGNORE); END");
    EXPECT_STATUS(lh_enqueue(g.store, "mail", &(lh_new_job){.kind = "k"}, 1, NULL, &out),
                  LH_EINVAL);
    EXPECT_CONTAINS(lh_errmsg(g.store), "a trigger of the database ignores it");
    EXPECT_OK(lh_enqueue(g.store, "other", &(lh_new_job){.kind = "k"}, 1, NULL, &out));
    ground_close(&g);
}
