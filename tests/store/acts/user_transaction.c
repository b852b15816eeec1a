/* The queue inside the user's own database, and enqueue inside the user's own transaction. */
#include "store/sqlite.h"

#include <stdio.h>
#include <stdlib.h>

static void make_users_database(void)
{
    sqlite3 *db = db_open("users.db");
    db_exec(db, "PRAGMA user_version = 77; PRAGMA application_id = 1234;"
                "CREATE TABLE orders(id INTEGER PRIMARY KEY, item TEXT);"
                "CREATE VIEW recent AS SELECT * FROM orders;"
                "INSERT INTO orders(item) VALUES('tea'), ('milk')");
    sqlite3_close(db);
}

static int64_t orders(void)
{
    sqlite3 *db = db_open("users.db");
    int64_t n = db_int(db, "SELECT count(*) FROM orders");
    sqlite3_close(db);
    return n;
}

/* ---- adding our tables to a database ---- */

TEST(a_database_without_our_tables_is_left_alone)
{
    size_t before_len, after_len;
    make_users_database();
    unsigned char *before = file_bytes("users.db", &before_len);
    expect_open("users.db", (lh_open_opts){0}, LH_ENOSTORE, "leasehold migrate");
    expect_open("users.db", (lh_open_opts){.create = true}, LH_ENOSTORE, "leasehold migrate");
    expect_open("users.db", (lh_open_opts){.read_only = true}, LH_ENOSTORE, "leasehold migrate");
    unsigned char *after = file_bytes("users.db", &after_len);
    EXPECT_MEM(after, after_len, before, before_len);
    free(before);
    free(after);
    EXPECT_EQ(orders(), 2);
}

TEST(adopted_database_keeps_its_tables_and_gets_a_queue)
{
    make_users_database();
    lh_store *store = store_open("users.db", (lh_open_opts){.adopt = true, .create = true});
    int64_t id = add(store, "mail", "hello");
    lh_jobs *jobs = take(store, "mail", "w1", 0);
    EXPECT_EQ(jobs->job[0].id, id);
    lh_jobs_free(jobs);
    store_check(store);
    lh_close(store);
    EXPECT_EQ(orders(), 2);
    sqlite3 *db = db_open("users.db");
    EXPECT_EQ(db_int(db, "PRAGMA user_version"), 77);
    EXPECT_EQ(db_int(db, "PRAGMA application_id"), 1234);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM recent"), 2);
    sqlite3_close(db);
    store = store_open("users.db", (lh_open_opts){0}); /* from here on it is a store */
    EXPECT_EQ(state_of(store, id), LH_RUNNING);
    lh_close(store);
}

TEST(adopting_twice_changes_nothing)
{
    make_users_database();
    lh_store *store = store_open("users.db", (lh_open_opts){.adopt = true, .create = true});
    lh_store_info first, second;
    add(store, "mail", "hello");
    EXPECT_OK(lh_store_status(store, &first));
    lh_close(store);
    store = store_open("users.db", (lh_open_opts){.adopt = true, .create = true});
    EXPECT_OK(lh_store_status(store, &second));
    EXPECT_STR(second.uuid, first.uuid);
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    lh_close(store);
}

TEST(dropping_removes_only_our_tables)
{
    char *sql = NULL;
    make_users_database();
    lh_store *store = store_open("users.db", (lh_open_opts){.adopt = true, .create = true});
    add(store, "mail", "hello");
    EXPECT_OK(lh_policy_set(store, "mail", NULL, &(lh_policy){.set = LH_POLICY_TIMEOUT}, 0));
    EXPECT_OK(lh_drop_sql(store, &sql));
    lh_close(store);
    sqlite3 *db = db_open("users.db");
    db_exec(db, "CREATE TABLE lhx_mine(x); CREATE TABLE lhomme(x)");
    db_exec(db, sql);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM sqlite_schema WHERE name GLOB 'lh_*'"), 0);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM sqlite_schema WHERE name IN ('lhx_mine', 'lhomme', "
                         "'orders', 'recent')"),
              4);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM orders"), 2);
    sqlite3_close(db);
    free(sql);
    expect_open("users.db", (lh_open_opts){.create = true}, LH_ENOSTORE, "leasehold migrate");
    store = store_open("users.db", (lh_open_opts){.adopt = true, .create = true});
    EXPECT_EQ(counts_of(store, "mail").pending, 0);
    lh_close(store);
}

/* ---- enqueue on the user's own connection ---- */

struct shop {
    lh_store *store;
    sqlite3 *db;
};

static struct shop shop_open(void)
{
    make_users_database();
    struct shop s = {.store =
                         store_open("users.db", (lh_open_opts){.adopt = true, .create = true})};
    s.db = db_open("users.db");
    return s;
}

static void shop_close(struct shop *s)
{
    store_check(s->store);
    sqlite3_close(s->db);
    lh_close(s->store);
}

static int enqueue_here(struct shop *s, const char *payload, lh_enqueued *out)
{
    char why[200] = "";
    int rc = lh_enqueue_sqlite(s->db, "mail",
                               &(lh_new_job){.payload = payload, .payload_len = strlen(payload)}, 1,
                               out, why, sizeof why);
    EXPECT_EQ(rc < 0, why[0] != '\0');
    return rc;
}

TEST(a_job_enqueued_in_the_users_transaction_appears_when_that_commits)
{
    struct shop s = shop_open();
    lh_enqueued out = {0};
    db_exec(s.db, "BEGIN; INSERT INTO orders(item) VALUES('cake')");
    EXPECT_OK(enqueue_here(&s, "cake", &out));
    EXPECT(out.id > 0);
    EXPECT_EQ(out.state, LH_PENDING);
    EXPECT(!out.duplicate);
    EXPECT_EQ(sqlite3_get_autocommit(s.db), 0); /* the user's transaction is still open */
    EXPECT_EQ(counts_of(s.store, "mail").pending, 0);
    db_exec(s.db, "COMMIT");
    EXPECT_EQ(counts_of(s.store, "mail").pending, 1);
    EXPECT_EQ(counts_of(s.store, "mail").hour_enqueued, 1);
    lh_jobs *jobs = take(s.store, "mail", "w1", 0);
    EXPECT_EQ(jobs->job[0].id, out.id);
    EXPECT_MEM(jobs->job[0].payload, jobs->job[0].payload_len, "cake", 4);
    EXPECT_EQ(jobs->job[0].max_attempts, 3);
    lh_jobs_free(jobs);
    shop_close(&s);
}

TEST(a_job_enqueued_in_the_users_transaction_is_gone_when_that_rolls_back)
{
    struct shop s = shop_open();
    lh_enqueued out;
    db_exec(s.db, "BEGIN; INSERT INTO orders(item) VALUES('cake')");
    EXPECT_OK(enqueue_here(&s, "cake", &out));
    db_exec(s.db, "ROLLBACK");
    EXPECT_EQ(counts_of(s.store, "mail").pending, 0);
    EXPECT(take(s.store, "mail", "w1", 0) == NULL);
    EXPECT_EQ(orders(), 2);
    shop_close(&s);
}

TEST(enqueue_without_a_user_transaction_is_a_transaction_of_its_own)
{
    struct shop s = shop_open();
    lh_enqueued out;
    EXPECT_OK(enqueue_here(&s, "cake", &out));
    EXPECT_EQ(sqlite3_get_autocommit(s.db), 1);
    EXPECT_EQ(counts_of(s.store, "mail").pending, 1);
    shop_close(&s);
}

TEST(a_refused_enqueue_leaves_the_users_transaction_as_it_was)
{
    struct shop s = shop_open();
    char why[200] = "";
    lh_enqueued out[2] = {{.id = -1}, {.id = -2}};
    EXPECT_OK(lh_policy_set(s.store, "mail", NULL,
                            &(lh_policy){.set = LH_POLICY_MAX_PAYLOAD, .max_payload = 4}, 0));
    lh_new_job jobs[2] = {{.payload = "fits", .payload_len = 4},
                          {.payload = "does not", .payload_len = 8}};
    db_exec(s.db, "BEGIN; INSERT INTO orders(item) VALUES('cake')");
    EXPECT_STATUS(lh_enqueue_sqlite(s.db, "mail", jobs, 2, out, why, sizeof why), LH_ETOOBIG);
    EXPECT_CONTAINS(why, "too large");
    EXPECT_EQ(out[0].id, -1); /* a failure leaves the outputs unchanged */
    EXPECT_EQ(out[1].id, -2);
    EXPECT_EQ(sqlite3_get_autocommit(s.db), 0);
    db_exec(s.db, "COMMIT");
    EXPECT_EQ(orders(), 3);
    EXPECT_EQ(counts_of(s.store, "mail").pending, 0);
    EXPECT_STATUS(lh_enqueue_sqlite(s.db, "bad name", jobs, 1, out, NULL, 0), LH_EINVAL);
    EXPECT_STATUS(lh_enqueue_sqlite(s.db, "mail", NULL, 1, out, why, sizeof why), LH_EMISUSE);
    EXPECT_STATUS(lh_enqueue_sqlite(NULL, "mail", jobs, 1, out, why, sizeof why), LH_EMISUSE);
    EXPECT_EQ(sqlite3_get_autocommit(s.db), 1);
    shop_close(&s);
}

TEST(enqueue_on_the_users_connection_applies_keys_delays_and_policies)
{
    freeze_now();
    struct shop s = shop_open();
    lh_enqueued out[3];
    EXPECT_OK(lh_policy_set(s.store, "mail", "k",
                            &(lh_policy){.set = LH_POLICY_MAX_ATTEMPTS, .max_attempts = 9}, 0));
    lh_new_job jobs[3] = {
        {.key = "one", .kind = "k"}, {.key = "one"}, {.delay_ms = 5000, .priority = 3}};
    EXPECT_OK(lh_enqueue_sqlite(s.db, "mail", jobs, 3, out, NULL, 0));
    EXPECT(!out[0].duplicate);
    EXPECT(out[1].duplicate);
    EXPECT_EQ(out[1].id, out[0].id);
    EXPECT_EQ(out[2].state, LH_SCHEDULED);
    EXPECT_EQ(counts_of(s.store, "mail").scheduled, 1);
    EXPECT_EQ(counts_of(s.store, "mail").pending, 1);
    lh_jobs *jobs_now = NULL;
    EXPECT_OK(lh_job_get(s.store, out[0].id, &jobs_now));
    EXPECT_EQ(jobs_now->job[0].max_attempts, 9);
    lh_jobs_free(jobs_now);
    shop_close(&s);
}

TEST(an_enqueue_on_the_users_connection_may_expire)
{
    freeze_now();
    struct shop s = shop_open();
    lh_enqueued out;
    EXPECT_OK(lh_enqueue_sqlite(s.db, "mail", &(lh_new_job){.expires_ms = 1000}, 1, &out, NULL, 0));
    pass_ms(1000);
    EXPECT(take(s.store, "mail", "w1", 0) == NULL);
    EXPECT_EQ(state_of(s.store, out.id), LH_CANCELLED);
    shop_close(&s);
}

TEST(enqueue_on_the_users_connection_is_an_event_under_full_audit)
{
    struct shop s = shop_open();
    lh_enqueued out;
    lh_events *events = NULL;
    EXPECT_OK(lh_policy_set(s.store, "mail", NULL,
                            &(lh_policy){.set = LH_POLICY_AUDIT, .audit = LH_AUDIT_FULL}, 0));
    EXPECT_OK(enqueue_here(&s, "cake", &out));
    EXPECT_OK(lh_event_list(s.store, &(lh_event_filter){.job = out.id}, &events));
    EXPECT_EQ(events->n, 1);
    EXPECT_STR(events->event[0].type, "job.enqueued");
    EXPECT_STR(events->event[0].to, "pending");
    lh_events_free(events);
    shop_close(&s);
}

TEST(an_enqueue_on_a_database_without_our_tables_is_refused)
{
    char why[200] = "";
    lh_enqueued out;
    make_users_database();
    sqlite3 *db = db_open("users.db");
    EXPECT_STATUS(lh_enqueue_sqlite(db, "mail", &(lh_new_job){0}, 1, &out, why, sizeof why),
                  LH_ENOSTORE);
    EXPECT_CONTAINS(why, "leasehold migrate");
    EXPECT_EQ(sqlite3_get_autocommit(db), 1);
    sqlite3_close(db);
}

TEST(an_enqueue_on_a_store_of_a_newer_version_is_refused)
{
    struct shop s = shop_open();
    char why[200] = "";
    lh_enqueued out;
    db_exec(s.db, "UPDATE lh_meta SET value = 999 WHERE key = 'schema_version'");
    EXPECT_STATUS(lh_enqueue_sqlite(s.db, "mail", &(lh_new_job){0}, 1, &out, why, sizeof why),
                  LH_ENEWER);
    EXPECT_CONTAINS(why, "999");
    (void)snprintf(why, sizeof why, "UPDATE lh_meta SET value = %d WHERE key = 'schema_version'",
                   lh_schema_version());
    db_exec(s.db, why);
    EXPECT_EQ(db_int(s.db, "SELECT count(*) FROM lh_job"), 0);
    shop_close(&s);
}

/* This takes 1.55 s of real time. */
TEST(writers_wait_for_a_user_who_locks_the_database_and_then_fail)
{
    struct shop s = shop_open();
    lh_enqueued out;
    db_exec(s.db, "BEGIN IMMEDIATE");
    EXPECT_STATUS(lh_enqueue(s.store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_EBUSY);
    EXPECT_CONTAINS(lh_errmsg(s.store), "another program");
    db_exec(s.db, "COMMIT");
    add(s.store, "mail", "x");
    shop_close(&s);
}
