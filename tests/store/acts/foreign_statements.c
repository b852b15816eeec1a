/* SQL statements of other programs on jobs. A refused statement changes nothing, and an accepted
 * one keeps the counts right, whatever the settings of the connection are. */
#include "store/sqlite.h"

#include <stdio.h>

struct ground {
    lh_store *store;
    sqlite3 *db; /* the connection of another program */
    int64_t running, pending;
    int64_t token; /* of the running job */
};

static int64_t add_keyed(lh_store *store, const char *key)
{
    lh_enqueued out;

    EXPECT_OK(lh_enqueue(store, "mail", &(lh_new_job){.key = key}, 1, NULL, &out));
    return out.id;
}

/* A running and a pending job, each with a key. Job 1 is running, job 2 is pending. */
static struct ground ground_open(bool recursive_triggers)
{
    struct ground g = {.store = store_new()};
    g.running = add_keyed(g.store, "held");
    lh_jobs *jobs = take(g.store, "mail", "w-1", 0);
    EXPECT(jobs != NULL);
    g.token = jobs->job[0].token;
    lh_jobs_free(jobs);
    g.pending = add_keyed(g.store, "waits");
    g.db = db_open("store.db");
    db_exec(g.db, recursive_triggers ? "PRAGMA recursive_triggers = ON"
                                     : "PRAGMA recursive_triggers = OFF");
    return g;
}

/* Nothing has changed: the holder still holds its job, the other job is still pending, and the
 * counts are right. */
static void ground_close(struct ground *g)
{
    EXPECT_EQ(state_of(g->store, g->pending), LH_PENDING);
    EXPECT_OK(
        lh_complete(g->store, &(lh_done){.job = g->running, .token = g->token}, 1, NULL, NULL));
    EXPECT_EQ(counts_of(g->store, "mail").completed, 1);
    store_check(g->store);
    sqlite3_close(g->db);
    lh_close(g->store);
    (void)remove("store.db");
    (void)remove("store.db-lease");
}

static void expect_refused(struct ground *g, const char *sql, const char *why)
{
    if (db_try(g->db, sql) != SQLITE_CONSTRAINT)
        FAIL("not refused: %s", sql);
    EXPECT_CONTAINS(sqlite3_errmsg(g->db), why);
}

static void each_connection(void (*body)(struct ground *g))
{
    for (int recursive = 0; recursive < 2; recursive++) {
        struct ground g = ground_open(recursive != 0);
        body(&g);
        ground_close(&g);
    }
}

static void replace_jobs(struct ground *g)
{
    static const char *const statements[] = {
        "INSERT OR REPLACE INTO lh_job(queue, key, payload) VALUES('mail', 'held', 'new')",
        "INSERT OR REPLACE INTO lh_job(queue, key, payload) VALUES('mail', 'waits', 'new')",
        "REPLACE INTO lh_job(queue, key) SELECT queue, key FROM lh_job",
        "REPLACE INTO lh_job(id, queue) VALUES(1, 'mail')",
        "REPLACE INTO lh_job(rowid, queue) VALUES(2, 'post')",
    };

    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++)
        expect_refused(g, statements[i], "ON CONFLICT DO NOTHING");
}

TEST(replace_deletes_no_job)
{
    each_connection(replace_jobs);
}

static void replace_by_update(struct ground *g)
{
    static const char *const statements[] = {
        "UPDATE OR REPLACE lh_job SET key = 'held' WHERE id = 2",
        "UPDATE OR REPLACE lh_job SET id = 1 WHERE id = 2",
        "UPDATE lh_job SET queue = 'post' WHERE id = 2",
        "UPDATE lh_job SET key = NULL",
        "INSERT INTO lh_job(queue, key) VALUES('mail', 'held') "
        "ON CONFLICT(queue, key) WHERE key IS NOT NULL AND (state = 'pending' OR state = 'running' "
        "OR state = 'scheduled') DO UPDATE SET key = 'other'",
    };

    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++)
        expect_refused(g, statements[i], "never change");
    expect_refused(g, "UPDATE lh_job SET payload = 'other'", "do not change");
    expect_refused(g, "UPDATE lh_job SET kind = 'other' WHERE id = 2", "do not change");
}

TEST(update_cannot_change_the_identity_of_a_job)
{
    each_connection(replace_by_update);
}

static void insert_beside(struct ground *g)
{
    static const char *const statements[] = {
        "INSERT OR IGNORE INTO lh_job(queue, key) VALUES('mail', 'held')",
        "INSERT INTO lh_job(queue, key) VALUES('mail', 'waits') ON CONFLICT DO NOTHING",
        "INSERT INTO lh_job(queue, key) VALUES('mail', 'held') ON CONFLICT(queue, key) "
        "WHERE key IS NOT NULL AND (state = 'pending' OR state = 'running' OR state = 'scheduled') "
        "DO NOTHING",
        "INSERT OR IGNORE INTO lh_job(id, queue) VALUES(1, 'mail')",
    };

    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
        db_exec(g->db, statements[i]);
        EXPECT_EQ(db_int(g->db, "SELECT changes() + count(*) FROM lh_job"), 2);
    }
    expect_refused(g, "INSERT INTO lh_job(queue, key) VALUES('mail', 'held')", "UNIQUE");
    db_exec(g->db,
            "INSERT OR IGNORE INTO lh_job(queue, key) VALUES('mail', 'free'), ('mail', 'held')");
    db_exec(g->db, "REPLACE INTO lh_job(queue, key) VALUES('mail', 'also free')");
    EXPECT_EQ(counts_of(g->store, "mail").pending, 3);
}

TEST(insert_on_conflict_do_nothing_adds_a_job_once)
{
    each_connection(insert_beside);
}

static void delete_jobs(struct ground *g)
{
    expect_refused(g, "DELETE FROM lh_job WHERE id = 1", "running");
    expect_refused(g, "DELETE FROM lh_job", "running");
    db_exec(g->db, "INSERT INTO lh_job(queue, expires_at) VALUES('mail', 4102444800000);"
                   "INSERT INTO lh_job(queue, run_at) VALUES('post', 4102444800000)");
    EXPECT_OK(lh_cancel(g->store, (int64_t[]){add_keyed(g->store, "ended")}, 1, NULL, NULL));
    db_exec(g->db, "DELETE FROM lh_job WHERE state <> 'running' AND id > 2");
    EXPECT_EQ(db_int(g->db, "SELECT count(*) FROM lh_expiry"), 0);
    EXPECT_EQ(counts_of(g->store, "post").scheduled, 0);
    EXPECT_EQ(counts_of(g->store, "mail").cancelled, 0);
    EXPECT_EQ(counts_of(g->store, "mail").pending, 1);
}

TEST(delete_is_counted_and_refused_for_running_jobs)
{
    each_connection(delete_jobs);
}
