/* Damage to a database with tables of another program. It is never repaired automatically, and a
 * repair on request keeps every readable row of the other program. */
#include "store/damage.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JOBS = 1000 };

static lh_store *open_repairing(void)
{
    return store_open("store.db", (lh_open_opts){.repair = true});
}

/* The other program's rows, computed columns, indexes and triggers. */
static void expect_theirs(void)
{
    sqlite3 *db = db_open("store.db");

    db_exec(db, "ATTACH 'before.db' AS was");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM (SELECT rowid, * FROM was.account EXCEPT "
                         "SELECT rowid, * FROM main.account)"),
              0);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM (SELECT * FROM was.pair EXCEPT "
                         "SELECT * FROM main.pair)"),
              0);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM (SELECT rowid, * FROM was.doc EXCEPT "
                         "SELECT rowid, * FROM main.doc)"),
              0);
    EXPECT(db_int(db, "SELECT count(*) FROM main.doc WHERE half = size / 2") > 100);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM (SELECT type, name, sql FROM was.sqlite_schema "
                         "WHERE name <> 'sqlite_sequence' EXCEPT "
                         "SELECT type, name, sql FROM main.sqlite_schema)"),
              0);
    EXPECT_EQ(db_int(db, "SELECT limit_cents FROM main.account WHERE name = 'account-7'"), 5000);
    EXPECT_EQ(db_int(db, "SELECT limit_cents FROM main.account WHERE name = 'late'"), 17);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM main.rich"),
              db_int(db, "SELECT count(*) FROM was.rich"));
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM main.words WHERE words MATCH 'account'"),
              db_int(db, "SELECT count(*) FROM was.words WHERE words MATCH 'account'"));
    db_exec(db, "INSERT INTO doc(title, body) VALUES ('unheardof', 'x')");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM main.words WHERE words MATCH 'unheardof'"), 1);
    EXPECT_EQ(
        db_int(db, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'"), 0);
    sqlite3_close(db);
}

static void build(void)
{
    full_store_build(JOBS);
    full_store_share();
}

TEST(damage_in_a_shared_database_is_repaired_only_on_request)
{
    build();
    page_fill(page_of("lh_job_pending", "leaf", 1), 0);
    note_damaged_file();
    expect_open("store.db", (lh_open_opts){.startup = true}, LH_ECORRUPT,
                "leasehold check --repair");
    expect_nothing_left();
}

TEST(damage_to_our_tables_costs_nothing_of_another_program)
{
    build();
    page_fill(root_of("lh_job"), 0);
    note_damaged_file();
    lh_store *store = open_repairing();
    expect_same(store, NULL, 0);
    EXPECT_EQ(epoch_of(store), 0);
    expect_theirs();
    lh_close(store);
}

TEST(damage_to_another_programs_index_is_repaired_on_request)
{
    build();
    page_fill(root_of("doc_title"), 0);
    note_damaged_file();
    lh_store *store = open_repairing();
    expect_same(store, NULL, 0);
    expect_theirs();
    lh_close(store);
}

TEST(damage_to_another_programs_table_costs_the_rows_of_its_page)
{
    build();
    page_fill(page_of("account", "leaf", 3), 0);
    note_damaged_file();
    lh_store *store = open_repairing();
    lh_report *report = repair_report(store);
    expect_said(report, "of account cannot be read: its rows with ids ");
    expect_same(store, NULL, 0);
    int64_t gone = rows_gone("account", "name");
    EXPECT(gone > 10 && gone < 300);
    EXPECT_EQ(rows_changed("account", "true"), gone);
    EXPECT_EQ(rows_changed("pair", "true"), 0);
    EXPECT_EQ(rows_changed("doc", "true"), 0);
    lh_report_free(report);
    lh_close(store);
}

TEST(text_in_place_of_another_programs_definition_is_not_run)
{
    build();
    page_patch(0, "CREATE VIEW rich AS SELECT name FROM account WHERE cents > 100000",
               "DELETE FROM lh_job                                               ", 65);
    page_fill(root_of("lh_job_pending"), 0);
    lh_store *store = open_repairing();
    lh_report *report = repair_report(store);
    expect_said(report, "view \"rich\" could not be created again");
    EXPECT_EQ(rows_changed("lh_job", "true"), 0);
    lh_report_free(report);
    lh_close(store);
}

/* A database with another encoding, another page size, and no map of its pages. */
static void build_adopted(void)
{
    sqlite3 *db = db_open("store.db");
    db_exec(db, "PRAGMA encoding = 'UTF-16le'; PRAGMA page_size = 1024;"
                "CREATE TABLE note(id INTEGER PRIMARY KEY, text TEXT);"
                "INSERT INTO note(text) VALUES ('Grüße'), ('日')");
    sqlite3_close(db);
    lh_store *store = store_open("store.db", (lh_open_opts){.adopt = true});
    for (int i = 0; i < 300; i++)
        (void)add(store, "mail", "Grüße an alle");
    lh_close(store);
    copy_file("store.db", "before.db");
}

static void expect_adopted(lh_store *store)
{
    sqlite3 *db = db_open("store.db");

    EXPECT_EQ(db_int(db, "PRAGMA page_size"), 1024);
    EXPECT_EQ(db_int(db, "PRAGMA application_id"), 0);
    EXPECT_EQ(db_int(db, "PRAGMA auto_vacuum"), 0);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM pragma_encoding WHERE encoding = 'UTF-16le'"), 1);
    sqlite3_close(db);
    EXPECT_EQ(rows_changed("note", "true"), 0);
    expect_same(store, NULL, 0);
}

TEST(repair_keeps_the_encoding_of_a_database)
{
    build_adopted();
    page_fill(root_of("lh_job_pending"), 0);
    note_damaged_file();
    lh_store *store = open_repairing();
    EXPECT_EQ(epoch_of(store), 0);
    expect_adopted(store);
    lh_close(store);
}

TEST(pages_below_a_damaged_one_are_found_without_a_map_of_pages)
{
    build_adopted();
    page_fill(root_of("lh_job"), 0);
    note_damaged_file();
    lh_store *store = open_repairing();
    EXPECT_EQ(epoch_of(store), 1); /* it is unknown whether the page had rows */
    expect_adopted(store);
    lh_close(store);
}

/* A page that no tree leads to may then be a free page with deleted rows. */
TEST(deleted_rows_do_not_return_without_a_page_map)
{
    build_adopted();
    sqlite3 *db = db_open("store.db");
    db_exec(db, "PRAGMA secure_delete = OFF; DELETE FROM lh_job WHERE id < 200");
    EXPECT(db_int(db, "PRAGMA freelist_count") > 3);
    db_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
    copy_file("store.db", "before.db");
    page_fill(root_of("lh_job"), 0);
    static const unsigned char nowhere[4] = {0, 0, 0, 1};
    size_t len;
    unsigned char *bytes = file_bytes("store.db", &len);
    memcpy(bytes + 32, nowhere, 4);
    file_write("store.db", bytes, len);
    free(bytes);
    lh_store *store = open_repairing();
    db = db_open("store.db");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_job WHERE id < 200"), 0);
    sqlite3_close(db);
    lh_close(store);
}
