/* A database has one name. A second name (a hard link, a mount of the single file, a rename of an
 * open store) has its own log, index and coordination file, so the locks under one name do not
 * apply under the other. */
#include "store/crashed.h"
#include "store/mounts.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static void expect_no_files_of(const char *path)
{
    static const char *const suffixes[] = {"-lease", "-wal", "-shm", "-journal"};
    char name[64];

    for (int i = 0; i < 4; i++) {
        (void)snprintf(name, sizeof name, "%s%s", path, suffixes[i]);
        EXPECT(!file_exists(name));
    }
}

static void make_store_with_job(void)
{
    lh_store *store = store_new();
    (void)add(store, "mail", "x");
    lh_close(store);
}

/* ---- hard links ---- */

TEST(database_with_two_names_is_not_opened_for_writing_under_either)
{
    make_store_with_job();
    EXPECT_EQ(link("store.db", "link.db"), 0);
    expect_open("store.db", (lh_open_opts){0}, LH_EINVAL, "has 2 names");
    expect_open("link.db", (lh_open_opts){.create = true}, LH_EINVAL, "leasehold backup");
    expect_open("link.db", (lh_open_opts){.repair = true}, LH_EINVAL, "has 2 names");
    expect_no_files_of("link.db");
    EXPECT_EQ(unlink("link.db"), 0);
    lh_store *store = store_new();
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    store_check(store);
    lh_close(store);
}

TEST(database_with_two_names_can_be_read_and_check_reports_them)
{
    struct lines lines;
    lh_findings *found = NULL;
    make_store_with_job();
    EXPECT_EQ(link("store.db", "link.db"), 0);
    lh_store *store = open_logged(&lines, (lh_open_opts){.read_only = true});
    EXPECT_CONTAINS(lines.text, "has 2 names");
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    EXPECT_OK(lh_check(store, NULL, &found));
    EXPECT_EQ(found->errors, 1);
    lh_findings_free(found);
    lh_close(store);
}

TEST(backup_and_restore_give_a_linked_database_a_file_of_its_own)
{
    struct stat st;
    make_store_with_job();
    EXPECT_EQ(link("store.db", "link.db"), 0);
    lh_store *store = store_open("store.db", (lh_open_opts){.read_only = true});
    EXPECT_OK(lh_backup(store, "copy.db", NULL));
    lh_close(store);
    EXPECT_OK(lh_restore("store.db", "copy.db", NULL, NULL, 0, NULL, 0));
    EXPECT_EQ(stat("store.db", &st), 0);
    EXPECT_EQ(st.st_nlink, 1);
    store = store_new();
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    store_check(store);
    lh_close(store);
}

TEST(hard_link_to_an_open_store_is_logged_once_and_acts_go_on)
{
    struct lines lines;
    lh_store *store = open_logged(&lines, (lh_open_opts){.create = true});
    (void)add(store, "mail", "1");
    EXPECT_EQ(link("store.db", "link.db"), 0);
    (void)add(store, "mail", "2");
    EXPECT_CONTAINS(lines.text, "has 2 names");
    EXPECT_CONTAINS(lines.text, "leasehold backup");
    lines.text[0] = '\0';
    (void)add(store, "mail", "3");
    EXPECT_STR(lines.text, "");
    /* The next link is new, so it is logged again. */
    EXPECT_EQ(unlink("link.db"), 0);
    (void)add(store, "mail", "4");
    EXPECT_STR(lines.text, "");
    EXPECT_EQ(link("store.db", "link.db"), 0);
    (void)add(store, "mail", "5");
    EXPECT_CONTAINS(lines.text, "has 2 names");
    EXPECT_EQ(counts_of(store, "mail").pending, 5);
    expect_open("link.db", (lh_open_opts){0}, LH_EINVAL, "has 2 names");
    lh_close(store);
}

static void link_all_files(const char *folder)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-lease"};
    char name[64], other[128];
    EXPECT_EQ(mkdir(folder, 0700), 0);
    for (int i = 0; i < 4; i++) {
        (void)snprintf(name, sizeof name, "store.db%s", suffixes[i]);
        (void)snprintf(other, sizeof other, "%s/%s", folder, name);
        EXPECT_EQ(link(name, other), 0);
    }
}

TEST(folder_copied_with_links_can_be_read_by_both_names_while_the_store_is_in_use)
{
    struct lines lines;
    lh_store *store = store_new();
    (void)add(store, "mail", "1");
    link_all_files("copy");
    (void)add(store, "mail", "2");
    lh_store *reader = open_logged(&lines, (lh_open_opts){.read_only = true});
    EXPECT_CONTAINS(lines.text, "has 2 names");
    lh_store *other = store_open("copy/store.db", (lh_open_opts){.read_only = true});
    EXPECT_EQ(counts_of(reader, "mail").pending, 2);
    EXPECT_EQ(counts_of(other, "mail").pending, 2);
    /* The same holds for every call for which the first handle reads on a connection of its own. */
    (void)add(store, "mail", "3");
    EXPECT_EQ(counts_of(store, "mail").pending, 3);
    EXPECT_EQ(counts_of(other, "mail").pending, 3);
    lh_close(other);
    lh_close(reader);
    expect_open("copy/store.db", (lh_open_opts){0}, LH_EINVAL, "leasehold backup");
    lh_close(store);
}

TEST(linked_log_is_not_read_in_a_shared_folder)
{
    EXPECT_EQ(mkdir("shared", 0700), 0);
    EXPECT_EQ(chmod("shared", 01777), 0);
    EXPECT_EQ(chdir("shared"), 0);
    lh_store *store = store_new();
    (void)add(store, "mail", "1");
    link_all_files("copy");
    expect_open("store.db", (lh_open_opts){.read_only = true}, LH_EINVAL, "has 2 names");
    lh_close(store);
}

/* ---- mounts ---- */

TEST(database_mounted_as_a_single_file_is_refused_and_its_folder_is_not)
{
    make_store_with_job();
    EXPECT_EQ(mkdir("in", 0700), 0);
    EXPECT_EQ(mkdir("folder", 0700), 0);
    file_write("in/jobs.db", "", 0);
    own_mounts();
    mount_again("store.db", "in/jobs.db");
    expect_open("in/jobs.db", (lh_open_opts){.create = true}, LH_EINVAL, "mount the folder");
    expect_no_files_of("in/jobs.db");
    EXPECT_STATUS(lh_restore("in/jobs.db", "store.db", NULL, NULL, 0, NULL, 0), LH_EINVAL);
    lh_store *reader = store_open("in/jobs.db", (lh_open_opts){.read_only = true});
    EXPECT_EQ(counts_of(reader, "mail").pending, 1);
    lh_close(reader);
    mount_again(".", "folder");
    lh_store *host = store_new(), *guest = store_open("folder/store.db", (lh_open_opts){0});
    (void)add(guest, "mail", "y");
    EXPECT_EQ(counts_of(host, "mail").pending, 2);
    store_check(host);
    lh_close(guest);
    lh_close(host);
}

/* ---- renamed while it is open ---- */

static void open_and_wait(int ready[2], int go[2])
{
    lh_store *store = store_new();
    lh_jobs *jobs = take(store, "mail", "holder", 60000);
    char byte = 'r';
    EXPECT(jobs != NULL);
    EXPECT_EQ(write(ready[1], &byte, 1), 1);
    EXPECT_EQ(close(go[1]), 0);
    EXPECT_EQ(read(go[0], &byte, 1), 0);
    lh_jobs_free(jobs);
    lh_close(store);
}

TEST(database_that_is_open_under_another_name_is_refused)
{
    int ready[2], go[2];
    char byte;
    make_store_with_job();
    EXPECT_EQ(pipe(ready), 0);
    EXPECT_EQ(pipe(go), 0);
    pid_t holder = test_fork();
    if (holder == 0) {
        open_and_wait(ready, go);
        test_child_done();
    }
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    /* Without its log the claim is not in the file, and its token would be issued again. */
    EXPECT_EQ(rename("store.db", "renamed.db"), 0);
    expect_open("renamed.db", (lh_open_opts){0}, LH_ESTOPPED, "under another name");
    expect_no_files_of("renamed.db");
    EXPECT_EQ(rename("renamed.db", "store.db"), 0);
    lh_store *store = store_new();
    EXPECT(take(store, "mail", "other", 1000) == NULL);
    lh_close(store);
    EXPECT_EQ(close(go[1]), 0);
    EXPECT_EQ(test_wait(holder).code, 0);
}

/* Another process tries to take SQLite's exclusive lock once `go` is closed. It must fail while the
 * file is open. */
static void expect_locked(int go[2])
{
    char byte;
    EXPECT_EQ(close(go[1]), 0);
    EXPECT_EQ(read(go[0], &byte, 1), 0);
    sqlite3 *db = db_open("store.db");
    EXPECT_EQ(db_try(db, "PRAGMA journal_mode = DELETE"), SQLITE_BUSY);
    sqlite3_close(db);
}

TEST(own_handle_under_another_name_is_refused_and_the_first_keeps_its_locks)
{
    int go[2];
    EXPECT_EQ(pipe(go), 0);
    pid_t other = test_fork();
    if (other == 0) {
        expect_locked(go);
        test_child_done();
    }
    lh_store *store = store_new();
    (void)add(store, "mail", "x");
    EXPECT_EQ(rename("store.db", "renamed.db"), 0);
    expect_open("renamed.db", (lh_open_opts){0}, LH_ESTOPPED, "under another name");
    EXPECT_EQ(rename("renamed.db", "store.db"), 0);
    EXPECT_EQ(close(go[1]), 0);
    EXPECT_EQ(test_wait(other).code, 0);
    (void)add(store, "mail", "y");
    store_check(store);
    lh_close(store);
}

TEST(database_moved_and_linked_back_under_an_open_handle_stops_it)
{
    lh_enqueued out;
    lh_store *store = store_new();
    (void)add(store, "mail", "x");
    EXPECT_EQ(rename("store.db", "moved.db"), 0);
    EXPECT_EQ(symlink("moved.db", "store.db"), 0);
    EXPECT_STATUS(lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_ESTOPPED);
    lh_close(store);
}

TEST(other_program_with_the_database_open_does_not_block_an_open)
{
    make_store_with_job();
    EXPECT_EQ(unlink("store.db-lease"), 0);
    sqlite3 *db = db_open("store.db");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_job"), 1);
    lh_store *store = store_new();
    (void)add(store, "mail", "y");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_job"), 2);
    sqlite3_close(db);
    store_check(store);
    lh_close(store);
}

/* ---- the log is removed while it is open ---- */

static void expect_log_gone(lh_store *store)
{
    lh_enqueued out;
    EXPECT_STATUS(lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_ESTOPPED);
    EXPECT_CONTAINS(lh_errmsg(store), "log \"store.db-wal\" was removed or replaced");
}

TEST(handle_whose_log_was_removed_stops_and_loses_nothing)
{
    struct lines lines;
    lh_store *store = open_logged(&lines, (lh_open_opts){.create = true});
    (void)add(store, "mail", "1");
    (void)add(store, "mail", "2");
    EXPECT_EQ(unlink("store.db-wal"), 0);
    expect_log_gone(store);
    EXPECT_CONTAINS(lines.text, "saved in the database");
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "mail").pending, 2);
    store_check(store);
    lh_close(store);
}

TEST(log_removed_before_an_idle_handle_is_closed_loses_nothing)
{
    lh_store *store = store_new();
    (void)add(store, "mail", "1");
    EXPECT_EQ(unlink("store.db-wal"), 0);
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    store_check(store);
    lh_close(store);
}

TEST(log_replaced_while_it_is_open_is_left_alone)
{
    size_t len;
    lh_store *store = store_new();
    (void)add(store, "mail", "1");
    EXPECT_EQ(unlink("store.db-wal"), 0);
    file_write("store.db-wal", "other", 5);
    expect_log_gone(store);
    lh_close(store);
    unsigned char *bytes = file_bytes("store.db-wal", &len);
    EXPECT_MEM(bytes, len, "other", 5);
    free(bytes);
}

TEST(log_removed_while_it_is_open_ends_reading_too)
{
    lh_queues *queues = NULL;
    lh_store *store = store_new();
    (void)add(store, "mail", "1");
    lh_store *reader = store_open("store.db", (lh_open_opts){.read_only = true});
    EXPECT_EQ(counts_of(reader, "mail").pending, 1);
    EXPECT_EQ(unlink("store.db-wal"), 0);
    EXPECT_STATUS(lh_queue_list(reader, &queues), LH_ESTOPPED);
    EXPECT_STATUS(lh_queue_list(store, &queues), LH_ESTOPPED);
    lh_close(reader);
    lh_close(store);
}

static bool remove_in_commit;

static int remove_log(void *arg)
{
    (void)arg;
    if (remove_in_commit)
        (void)unlink("store.db-wal");
    return 0;
}

/* SQLite calls the hook inside COMMIT, after our check of the files. */
static int hook_commits(sqlite3 *db, const char **message, const struct sqlite3_api_routines *api)
{
    (void)message, (void)api;
    (void)sqlite3_commit_hook(db, remove_log, NULL);
    return SQLITE_OK;
}

TEST(log_removed_inside_a_commit_makes_its_outcome_unknown_and_loses_nothing)
{
    lh_enqueued out;
    EXPECT_EQ(sqlite3_auto_extension((void (*)(void))hook_commits), SQLITE_OK);
    lh_store *store = store_new();
    (void)add(store, "mail", "1");
    remove_in_commit = true;
    EXPECT_STATUS(lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_EUNKNOWN);
    EXPECT_CONTAINS(lh_errmsg(store), "store.db-wal");
    remove_in_commit = false;
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "mail").pending, 2);
    store_check(store);
    lh_close(store);
}
