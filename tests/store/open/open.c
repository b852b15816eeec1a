/* Opening: creating a store, refusing other files, versions, reading only, closing. */
#include "store/sqlite.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- making a store ---- */

TEST(missing_store_is_created_only_on_request)
{
    expect_open("store.db", (lh_open_opts){0}, LH_ENOSTORE, "store.db");
    expect_open("store.db", (lh_open_opts){.read_only = true}, LH_ENOSTORE, "store.db");
    expect_open("store.db", (lh_open_opts){.read_only = true, .create = true}, LH_ENOSTORE,
                "store.db");
    EXPECT(!file_exists("store.db"));
    EXPECT(!file_exists("store.db-lease"));
    lh_store *store = store_new();
    EXPECT(file_exists("store.db"));
    EXPECT(file_exists("store.db-lease"));
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    lh_close(store);
}

TEST(a_store_is_named_by_its_path_or_by_a_url)
{
    lh_store_info info;
    lh_store *store = store_open("sqlite:store.db", (lh_open_opts){.create = true});
    EXPECT(file_exists("store.db"));
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_STR(info.kind, "sqlite");
    EXPECT_STR(info.url, "sqlite:store.db");
    add(store, "mail", "x");
    lh_close(store);
    store = store_open("./store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    lh_close(store);
}

TEST(only_the_user_can_read_the_files_of_a_store)
{
    static const char *const files[] = {"store.db", "store.db-wal", "store.db-shm",
                                        "store.db-lease"};
    umask(0);
    lh_store *store = store_new();
    add(store, "mail", "x");
    for (int i = 0; i < 4; i++) {
        struct stat st;
        EXPECT_EQ(stat(files[i], &st), 0);
        EXPECT_EQ(st.st_mode & 0777, 0600);
    }
    lh_close(store);
}

TEST(a_new_store_is_marked_as_ours_and_in_wal_mode)
{
    lh_store *store = store_new();
    lh_close(store);
    sqlite3 *db = db_open("store.db");
    EXPECT_EQ(db_int(db, "PRAGMA application_id"), 0x4c484c44);
    EXPECT_EQ(db_int(db, "PRAGMA user_version"), lh_schema_version());
    EXPECT_EQ(db_int(db, "PRAGMA auto_vacuum"), 2);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM pragma_journal_mode WHERE journal_mode = 'wal'"), 1);
    sqlite3_close(db);
}

TEST(empty_file_becomes_a_store_on_request)
{
    file_write("store.db", "", 0);
    expect_open("store.db", (lh_open_opts){0}, LH_ENOSTORE, "store.db");
    lh_store *store = store_new();
    add(store, "mail", "x");
    store_check(store);
    lh_close(store);
}

/* ---- what is not a store ---- */

TEST(a_path_that_is_no_store_is_refused)
{
    char long_path[1200];
    memset(long_path, 'p', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    EXPECT_EQ(mkdir("folder", 0700), 0);
    EXPECT_EQ(mkfifo("pipe", 0600), 0);
    lh_open_opts create = {.create = true};
    expect_open("folder", create, LH_EINVAL, "directory");
    expect_open("folder", (lh_open_opts){.read_only = true}, LH_EINVAL, "directory");
    expect_open("pipe", create, LH_EINVAL, "pipe");
    expect_open("nowhere/store.db", create, LH_EIO, "nowhere");
    expect_open("", create, LH_EINVAL, "path");
    expect_open(long_path, create, LH_EINVAL, "long");
    expect_open(NULL, create, LH_EMISUSE, "store");
    expect_open("store.db", (lh_open_opts){.create = true, .busy_ms = -1}, LH_EINVAL, "busy");
    EXPECT(!file_exists("store.db"));
}

/* No server listens at port 1. None of these names may be taken for the name of a file. */
TEST(a_name_of_postgresql_is_no_name_of_a_file)
{
    static const char *const names[] = {"postgres://127.0.0.1:1/x", "postgresql://127.0.0.1:1/x",
                                        "host=127.0.0.1 port=1 dbname=x"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        expect_open(names[i], (lh_open_opts){.create = true, .busy_ms = 100}, LH_EUNREACH, "x");
        EXPECT(!file_exists(names[i]));
    }
}

TEST(a_file_that_is_no_database_is_refused_and_left_alone)
{
    size_t len;
    static char words[9000];
    memset(words, 'w', sizeof words);
    file_write("words.txt", words, sizeof words);
    expect_open("words.txt", (lh_open_opts){.create = true}, LH_EINVAL, "not a SQLite database");
    expect_open("words.txt", (lh_open_opts){.create = true, .adopt = true}, LH_EINVAL,
                "not a SQLite database");
    expect_open("words.txt", (lh_open_opts){.read_only = true}, LH_EINVAL, "not a SQLite database");
    unsigned char *bytes = file_bytes("words.txt", &len);
    EXPECT_MEM(bytes, len, words, sizeof words);
    free(bytes);
}

static void zero_header(void)
{
    size_t len;
    unsigned char *bytes = file_bytes("store.db", &len);
    EXPECT(len > 100);
    memset(bytes, 0, 100);
    file_write("store.db", bytes, len);
    free(bytes);
}

TEST(store_with_a_zeroed_header_names_the_command_that_repairs_it)
{
    static const char hint[] = "\"leasehold check --repair\" repairs it";
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_close(store);
    zero_header();
    expect_open("store.db", (lh_open_opts){.create = true}, LH_ECORRUPT, hint);
    expect_open("store.db", (lh_open_opts){.read_only = true}, LH_ECORRUPT, hint);
    store = store_open("store.db", (lh_open_opts){.repair = true});
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    store_check(store);
    lh_close(store);
}

TEST(zeroed_header_is_recognized_by_our_tables)
{
    static const char hint[] = "\"leasehold check --repair\" repairs it";
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_close(store);
    zero_header();
    EXPECT_EQ(unlink("store.db-lease"), 0);
    expect_open("store.db", (lh_open_opts){.create = true}, LH_ECORRUPT, hint);
    expect_open("store.db", (lh_open_opts){.read_only = true}, LH_ECORRUPT, hint);
    store = store_open("store.db", (lh_open_opts){.repair = true});
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    store_check(store);
    lh_close(store);
}

TEST(zeroed_header_of_another_programs_database_is_not_repaired)
{
    sqlite3 *db = db_open("store.db");
    db_exec(db, "CREATE TABLE song (lh_job TEXT); CREATE TABLE lh_meta (key TEXT)");
    sqlite3_close(db);
    zero_header();
    expect_open("store.db", (lh_open_opts){.create = true}, LH_EINVAL, "not a SQLite database");
    expect_open("store.db", (lh_open_opts){.repair = true}, LH_EINVAL, "not a SQLite database");
}

TEST(text_that_has_our_tables_is_not_taken_for_a_store)
{
    static char words[4096] = "-- a dump\nCREATE TABLE lh_meta (key);\nCREATE TABLE lh_job (id);\n";
    memset(words + strlen(words), '\r', 2000);
    file_write("words.txt", words, sizeof words);
    expect_open("words.txt", (lh_open_opts){.repair = true}, LH_EINVAL, "not a SQLite database");
}

TEST(emptied_store_is_damaged_for_readers_too)
{
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_close(store);
    EXPECT_EQ(truncate("store.db", 0), 0);
    expect_open("store.db", (lh_open_opts){.create = true}, LH_ECORRUPT, "is empty, and was not");
    expect_open("store.db", (lh_open_opts){.read_only = true}, LH_ECORRUPT,
                "is empty, and was not");
}

TEST(a_symbolic_link_is_not_followed)
{
    lh_store *store = store_new();
    lh_close(store);
    EXPECT_EQ(symlink("store.db", "link.db"), 0);
    EXPECT_EQ(symlink("missing.db", "dangling.db"), 0);
    expect_open("link.db", (lh_open_opts){.create = true}, LH_EINVAL, "symbolic link");
    expect_open("link.db", (lh_open_opts){.read_only = true}, LH_EINVAL, "symbolic link");
    expect_open("dangling.db", (lh_open_opts){.create = true}, LH_EINVAL, "symbolic link");
    EXPECT(!file_exists("missing.db"));
    EXPECT(!file_exists("link.db-lease"));
}

TEST(coordination_file_that_is_a_link_is_refused)
{
    EXPECT_EQ(symlink("elsewhere", "store.db-lease"), 0);
    lh_store *store = NULL;
    EXPECT(lh_open("store.db", &(lh_open_opts){.create = true}, &store) < 0);
    EXPECT_CONTAINS(lh_errmsg(store), "store.db-lease");
    lh_close(store);
    EXPECT(!file_exists("elsewhere"));
}

/* ---- versions ---- */

TEST(a_store_of_a_newer_version_is_refused_and_left_alone)
{
    int version = -1;
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_close(store);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "UPDATE lh_meta SET value = 999 WHERE key = 'schema_version'");
    expect_open("store.db", (lh_open_opts){.create = true}, LH_ENEWER, "999");
    expect_open("store.db", (lh_open_opts){.read_only = true}, LH_ENEWER, "999");
    expect_open("store.db", (lh_open_opts){.create = true, .adopt = true, .accept_loss = true},
                LH_ENEWER, "newer leasehold");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_job"), 1);
    EXPECT_EQ(db_int(db, "SELECT value FROM lh_meta WHERE key = 'schema_version'"), 999);
    EXPECT_OK(lh_schema_of("store.db", &version, NULL, 0));
    EXPECT_EQ(version, 999);
    sqlite3_close(db);
}

TEST(version_of_a_store_is_read_without_changing_it)
{
    int version = -1;
    char why[200] = "";
    EXPECT_STATUS(lh_schema_of("store.db", &version, why, sizeof why), LH_ENOSTORE);
    EXPECT_CONTAINS(why, "store.db");
    EXPECT(!file_exists("store.db"));
    sqlite3 *db = db_open("other.db");
    db_exec(db, "CREATE TABLE x(y)");
    sqlite3_close(db);
    EXPECT_OK(lh_schema_of("other.db", &version, why, sizeof why));
    EXPECT_EQ(version, 0);
    EXPECT(!file_exists("other.db-lease"));
    lh_store *store = store_new();
    lh_close(store);
    EXPECT_OK(lh_schema_of("sqlite:store.db", &version, why, sizeof why));
    EXPECT_EQ(version, lh_schema_version());
}

TEST(name_of_a_store_shows_its_kind)
{
    EXPECT_STR(lh_store_kind("jobs.db"), "sqlite");
    EXPECT_STR(lh_store_kind("sqlite:jobs.db"), "sqlite");
    EXPECT_STR(lh_store_kind("postgresql://db/app"), "postgres");
    EXPECT_STR(lh_store_kind("host=db dbname=app"), "postgres");
    EXPECT_STR(lh_store_kind(NULL), "");
}

TEST(opening_again_migrates_nothing_twice)
{
    lh_store_info first, again;
    lh_store *store = store_new();
    add(store, "mail", "x");
    EXPECT_OK(lh_store_status(store, &first));
    lh_close(store);
    for (int i = 0; i < 3; i++) {
        store = store_new();
        EXPECT_OK(lh_store_status(store, &again));
        EXPECT_STR(again.uuid, first.uuid);
        EXPECT_EQ(again.schema, lh_schema_version());
        EXPECT_EQ(again.epoch, first.epoch);
        EXPECT_EQ(again.changes, first.changes);
        EXPECT_EQ(counts_of(store, "mail").pending, 1);
        lh_close(store);
    }
}

TEST(each_store_has_an_identity_of_its_own)
{
    lh_store_info a, b;
    lh_store *store = store_open("a.db", (lh_open_opts){.create = true});
    EXPECT_OK(lh_store_status(store, &a));
    lh_close(store);
    store = store_open("b.db", (lh_open_opts){.create = true});
    EXPECT_OK(lh_store_status(store, &b));
    lh_close(store);
    EXPECT(strcmp(a.uuid, b.uuid) != 0);
}

/* ---- reading only ---- */

TEST(a_handle_for_reading_reads_and_never_writes)
{
    lh_store *writer = store_new();
    int64_t id = add(writer, "mail", "x");
    lh_store *reader = store_open("store.db", (lh_open_opts){.read_only = true});
    lh_enqueued out;
    lh_jobs *jobs = NULL;
    const char *queue = "mail";
    lh_events *events = NULL;
    lh_recovered stats;
    EXPECT_EQ(state_of(reader, id), LH_PENDING);
    EXPECT_EQ(counts_of(reader, "mail").pending, 1);
    EXPECT_OK(lh_event_list(reader, NULL, &events));
    lh_events_free(events);
    EXPECT_OK(lh_recovery_stats(reader, &stats));
    store_check(reader);
    EXPECT_STATUS(lh_enqueue(reader, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_EREADONLY);
    EXPECT_CONTAINS(lh_errmsg(reader), "reading only");
    EXPECT_STATUS(
        lh_claim(reader, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w1"}, &jobs),
        LH_EREADONLY);
    EXPECT_STATUS(lh_cancel(reader, &id, 1, NULL, NULL), LH_EREADONLY);
    EXPECT_STATUS(lh_recover(reader, NULL, NULL), LH_EREADONLY);
    EXPECT_STATUS(lh_maintain(reader, NULL, NULL), LH_EREADONLY);
    add(writer, "mail", "y"); /* it sees new changes */
    EXPECT_EQ(counts_of(reader, "mail").pending, 2);
    lh_close(reader);
    store_check(writer);
    lh_close(writer);
}

TEST(a_handle_for_reading_leaves_the_file_as_it_is)
{
    size_t before_len, after_len;
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_close(store);
    unsigned char *before = file_bytes("store.db", &before_len);
    store = store_open("store.db", (lh_open_opts){.read_only = true});
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    lh_close(store);
    unsigned char *after = file_bytes("store.db", &after_len);
    EXPECT_MEM(after, after_len, before, before_len);
    free(before);
    free(after);
}

/* ---- closing ---- */

TEST(last_clean_close_checkpoints_the_log)
{
    lh_store *first = store_new(), *second = store_new();
    add(first, "mail", "x");
    add(second, "mail", "y");
    lh_close(first);
    EXPECT(file_size("store.db-wal") > 0); /* another process has it open */
    lh_close(second);
    EXPECT_EQ(file_size("store.db-wal"), 0);
    copy_file("store.db", "copy.db");
    lh_store *copy = store_open("copy.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(copy, "mail").pending, 2);
    store_check(copy);
    lh_close(copy);
}

TEST(store_that_was_never_closed_opens_with_all_changes)
{
    pid_t child = test_fork();
    if (child == 0) {
        lh_store *store = store_new();
        for (int i = 0; i < 10; i++)
            add(store, "mail", "x");
        test_child_done(); /* without closing the store */
    }
    EXPECT_EQ(test_wait(child).code, 0);
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "mail").pending, 10);
    store_check(store);
    lh_close(store);
}

/* ---- logging ---- */

static void count_line(void *arg, const lh_log_entry *entry)
{
    int *lines = arg;
    EXPECT(entry->level >= LH_LOG_ERROR && entry->level <= LH_LOG_DEBUG);
    EXPECT(strlen(entry->line) > 0 && strchr(entry->line, '\n') == NULL);
    (*lines)++;
}

TEST(a_recovery_is_logged)
{
    int lines = 0;
    freeze_now();
    lh_store *store = store_open(
        "store.db", (lh_open_opts){.create = true, .log = count_line, .log_arg = &lines});
    add(store, "mail", "x");
    lh_jobs_free(take(store, "mail", "w1", 1000));
    EXPECT_EQ(lines, 0);
    pass_ms(1000);
    EXPECT_OK(lh_recover(store, NULL, NULL));
    EXPECT(lines > 0);
    lh_close(store);
}
