/* Moves between two files that need access to both files. */
#include "store/sqlite.h"

#include <signal.h>
#include <stdio.h>

static char why[512];

static lh_store *source(void)
{
    lh_store *store = store_open("old.db", (lh_open_opts){.create = true});

    freeze_now();
    add(store, "mail", "one");
    add(store, "mail", "two");
    EXPECT_OK(lh_lease_acquire(store, "sync", "x", &(lh_lease_opts){.owner = "me"}, NULL));
    return store;
}

/* Kill the move when all rows have arrived and nothing is compared yet. */
static void move_all_but_the_end(void)
{
    pid_t child = test_fork();

    if (child == 0) {
        (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "move:batch");
        lhi_control()->kill_skip = 4; /* the points for queue, lease, rollup, event, job */
        (void)lh_move("old.db", "new.db", NULL, NULL, why, sizeof why);
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).sig, SIGKILL);
    lhi_control()->kill_at[0] = '\0';
    sqlite3 *db = db_open("new.db");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_job"), 2);
    sqlite3_close(db);
}

static void expect_moved(void)
{
    if (lh_move("old.db", "new.db", NULL, NULL, why, sizeof why) != LH_OK)
        FAIL("not moved: %s", why);
    lh_store *store = store_open("new.db", (lh_open_opts){0});
    store_check(store);
    lh_close(store);
}

TEST(row_that_differs_after_a_move_is_found_and_sent_again)
{
    lh_close(source());
    move_all_but_the_end();
    sqlite3 *db = db_open("new.db");
    db_exec(db, "UPDATE lh_job SET priority = 9 WHERE id = 2");
    expect_moved();
    EXPECT_EQ(db_int(db, "SELECT priority FROM lh_job WHERE id = 2"), 0);
    sqlite3_close(db);
}

TEST(a_row_that_is_missing_in_the_middle_is_noticed)
{
    lh_close(source());
    move_all_but_the_end();
    sqlite3 *db = db_open("new.db");
    db_exec(db, "DELETE FROM lh_job WHERE id = 1");
    expect_moved();
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_job"), 2);
    sqlite3_close(db);
}

TEST(move_continues_after_a_new_boot)
{
    lh_close(source());
    move_all_but_the_end();
    pass_ms(60000);
    boot_again("another");
    expect_moved();
    sqlite3 *was = db_open("old.db"), *is = db_open("new.db");
    EXPECT_EQ(db_int(was, "SELECT expires_at FROM lh_lease"),
              db_int(is, "SELECT expires_at FROM lh_lease"));
    EXPECT(db_int(is, "SELECT value FROM lh_meta WHERE key = 'epoch'") >
           db_int(was, "SELECT value FROM lh_meta WHERE key = 'epoch'"));
    sqlite3_close(was);
    sqlite3_close(is);
}

TEST(nothing_is_enqueued_by_plain_sql_in_a_store_that_was_moved)
{
    lh_store *store = source();
    lh_enqueued out;
    char said[200];

    if (lh_move("old.db", "new.db", NULL, NULL, why, sizeof why) != LH_OK)
        FAIL("not moved: %s", why);
    sqlite3 *was = db_open("old.db"), *is = db_open("new.db");
    EXPECT_EQ(db_try(was, "INSERT INTO lh_job(queue) VALUES ('mail')"), SQLITE_CONSTRAINT);
    EXPECT(lh_enqueue_sqlite(was, "mail", &(lh_new_job){0}, 1, &out, said, sizeof said) < 0);
    EXPECT_CONTAINS(said, "the store is being moved, or was");
    EXPECT_EQ(db_try(is, "INSERT INTO lh_job(queue) VALUES ('mail')"), SQLITE_OK);
    EXPECT_EQ(db_int(is, "SELECT max(id) FROM lh_job"), 3);
    sqlite3_close(was);
    sqlite3_close(is);
    lh_close(store);
}
