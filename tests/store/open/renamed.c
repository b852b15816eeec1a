/* A database that is renamed without its log and its coordination file, while it is open or after a
 * crash. Nothing acknowledged is lost, and no token is issued twice. */
#include "store/crashed.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const int64_t NEW_EPOCH = INT64_C(1) << 40;

static void rename_or_fail(const char *from, const char *to)
{
    EXPECT_EQ(rename(from, to), 0);
}

static void expect_renamed(lh_store *store, const char *to)
{
    lh_enqueued out;
    EXPECT_STATUS(lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_ESTOPPED);
    EXPECT_CONTAINS(lh_errmsg(store), "was renamed to");
    EXPECT_CONTAINS(lh_errmsg(store), to);
}

static int64_t token_of(lh_store *store, const char *queue)
{
    lh_jobs *jobs = take(store, queue, "other", 60000);
    EXPECT(jobs != NULL);
    int64_t token = jobs->job[0].token;
    lh_jobs_free(jobs);
    return token;
}

/* ---- while it is open ---- */

TEST(rename_under_an_open_handle_saves_its_log_and_keeps_the_lease_of_its_job)
{
    struct lines lines;
    lh_store *store = open_logged(&lines, (lh_open_opts){.create = true});
    int64_t job = add(store, "mail", "x"), next = add(store, "other", "y");
    lh_jobs *held = take(store, "mail", "holder", 60000);
    EXPECT(held != NULL);
    rename_or_fail("store.db", "renamed.db");
    expect_open("renamed.db", (lh_open_opts){0}, LH_ESTOPPED, "under another name");
    expect_renamed(store, "renamed.db");
    EXPECT_CONTAINS(lines.text, "saved in it");
    lh_close(store);
    store = store_open("renamed.db", (lh_open_opts){0});
    EXPECT_EQ(state_of(store, job), LH_RUNNING);
    EXPECT(take(store, "mail", "other", 1000) == NULL);
    EXPECT_EQ(state_of(store, next), LH_PENDING);
    EXPECT(token_of(store, "other") > NEW_EPOCH);
    store_check(store);
    /* The holder completes its job under the token that it has. */
    const lh_done done = {.job = job, .token = held->job[0].token};
    EXPECT_OK(lh_complete(store, &done, 1, NULL, NULL));
    lh_jobs_free(held);
    lh_close(store);
}

TEST(rename_that_only_a_reading_call_or_the_close_notices_saves_the_log_too)
{
    lh_queues *queues = NULL;
    lh_store *store = store_new();
    (void)add(store, "mail", "x");
    rename_or_fail("store.db", "once.db");
    EXPECT_STATUS(lh_queue_list(store, &queues), LH_ESTOPPED);
    lh_close(store);
    store = store_open("once.db", (lh_open_opts){0});
    (void)add(store, "mail", "y");
    rename_or_fail("once.db", "twice.db");
    lh_close(store);
    store = store_open("twice.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "mail").pending, 2);
    store_check(store);
    lh_close(store);
}

TEST(changes_between_a_rename_and_the_rename_back_are_kept)
{
    lh_store *store = store_new();
    (void)add(store, "mail", "1");
    lh_close(store);
    rename_or_fail("store.db", "renamed.db");
    store = store_open("renamed.db", (lh_open_opts){0});
    (void)add(store, "mail", "2");
    rename_or_fail("renamed.db", "store.db");
    lh_close(store);
    store = store_new();
    EXPECT_EQ(counts_of(store, "mail").pending, 2);
    store_check(store);
    lh_close(store);
}

TEST(old_log_is_not_moved_if_the_new_name_has_a_log)
{
    lh_store *store = store_new();
    (void)add(store, "mail", "x");
    int64_t before = file_size("store.db-wal");
    rename_or_fail("store.db", "renamed.db");
    file_write("renamed.db-wal", "another", 7);
    expect_renamed(store, "renamed.db");
    lh_close(store);
    EXPECT_EQ(file_size("store.db-wal"), before);
    EXPECT_EQ(unlink("renamed.db-wal"), 0);
    expect_open("renamed.db", (lh_open_opts){0}, LH_EOLDER, "renamed without its log");
}

TEST(store_moved_with_all_its_files_works_at_once)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-lease"};
    char from[64], to[64];
    EXPECT_EQ(mkdir("folder", 0700), 0);
    lh_store *old = store_new();
    int64_t job = add(old, "mail", "x");
    lh_jobs_free(take(old, "mail", "holder", 60000));
    for (int i = 0; i < 4; i++) {
        (void)snprintf(from, sizeof from, "store.db%s", suffixes[i]);
        (void)snprintf(to, sizeof to, "folder/store.db%s", suffixes[i]);
        rename_or_fail(from, to);
    }
    lh_store *store = store_open("folder/store.db", (lh_open_opts){0});
    EXPECT_EQ(state_of(store, job), LH_RUNNING);
    EXPECT(take(store, "mail", "other", 1000) == NULL);
    (void)add(store, "mail", "y");
    lh_enqueued out;
    EXPECT_STATUS(lh_enqueue(old, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_ESTOPPED);
    lh_close(old);
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    store_check(store);
    lh_close(store);
}

/* ---- after a crash ---- */

static void claim_and_enqueue(lh_store *store)
{
    lh_jobs_free(take(store, "mail", "holder", 60000));
    (void)add(store, "mail", "acknowledged");
}

static void crash_and_rename(const char *to)
{
    lh_store *store = store_new();
    (void)add(store, "mail", "x");
    lh_close(store);
    crash(claim_and_enqueue);
    rename_or_fail("store.db", to);
}

TEST(rename_after_a_crash_without_the_log_is_refused_until_the_log_is_moved_along)
{
    EXPECT_EQ(mkdir("folder", 0700), 0);
    crash_and_rename("folder/renamed.db");
    expect_open("folder/renamed.db", (lh_open_opts){0}, LH_EOLDER, "/store.db-wal\" to \"");
    expect_open("folder/renamed.db", (lh_open_opts){.startup = true}, LH_EOLDER, "without its log");
    rename_or_fail("store.db-wal", "folder/renamed.db-wal");
    lh_store *store = store_open("folder/renamed.db", (lh_open_opts){.no_recovery = true});
    EXPECT_EQ(counts_of(store, "mail").running, 1);
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    EXPECT(token_of(store, "mail") > NEW_EPOCH);
    store_check(store);
    lh_close(store);
}

TEST(rename_after_a_crash_without_a_log_is_found_by_the_old_marks)
{
    crash_and_rename("renamed.db");
    EXPECT_EQ(unlink("store.db-wal"), 0);
    expect_open("renamed.db", (lh_open_opts){0}, LH_EOLDER, "older than it was");
    lh_store *store = store_open("renamed.db", (lh_open_opts){.accept_loss = true});
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    EXPECT(token_of(store, "mail") > NEW_EPOCH);
    lh_close(store);
    store = store_open("renamed.db", (lh_open_opts){0});
    store_check(store);
    lh_close(store);
}

TEST(coordination_file_of_another_user_at_the_last_path_is_ignored)
{
    if (geteuid() != 0)
        test_skip("needs root");
    crash_and_rename("renamed.db");
    EXPECT_EQ(chown("store.db-lease", 20002, 20002), 0);
    lh_store *store = store_open("renamed.db", (lh_open_opts){0});
    EXPECT(token_of(store, "mail") > NEW_EPOCH);
    lh_close(store);
}

TEST(databases_swapped_after_a_crash_are_refused_without_their_logs)
{
    lh_store *other = store_open("other.db", (lh_open_opts){.create = true});
    (void)add(other, "elsewhere", "x");
    lh_close(other);
    crash_and_rename("aside.db");
    rename_or_fail("other.db", "store.db");
    rename_or_fail("aside.db", "other.db");
    expect_open("other.db", (lh_open_opts){0}, LH_EOLDER, "/store.db-wal\" to \"");
    rename_or_fail("store.db-wal", "other.db-wal");
    lh_store *store = store_open("other.db", (lh_open_opts){.no_recovery = true});
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    store_check(store);
    other = store_new();
    EXPECT_EQ(counts_of(other, "elsewhere").pending, 1);
    lh_close(other);
    lh_close(store);
}

/* ---- other paths ---- */

TEST(database_is_not_reached_through_a_link_or_a_descriptor)
{
    char path[64];
    lh_store *store = store_new();
    EXPECT_EQ(symlink("store.db", "link.db"), 0);
    expect_open("link.db", (lh_open_opts){0}, LH_EINVAL, "symbolic link");
    int fd = open("store.db", O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    expect_open(path, (lh_open_opts){0}, LH_EINVAL, "symbolic link");
    /* A folder may be mounted or linked: it has one coordination file under every path. */
    int folder = open(".", O_PATH | O_CLOEXEC);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d/store.db", folder);
    lh_store *again = store_open(path, (lh_open_opts){0});
    (void)add(again, "mail", "x");
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    lh_close(again);
    lh_close(store);
}

/* ---- copies ---- */

TEST(copy_of_an_existing_store_is_a_store_of_its_own)
{
    lh_store *store = store_new();
    (void)add(store, "mail", "1");
    lh_close(store);
    copy_file("store.db", "copy.db");
    store = store_new();
    (void)add(store, "mail", "2");
    lh_store *copy = store_open("copy.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(copy, "mail").pending, 1);
    lh_close(copy);
    EXPECT_EQ(counts_of(store, "mail").pending, 2);
    lh_close(store);
}

TEST(store_without_its_coordination_file_issues_no_token_twice)
{
    lh_store *store = store_new();
    (void)add(store, "mail", "x");
    lh_close(store);
    crash(hold_a_job);
    /* As after a rename to a folder where the other files cannot be found. */
    EXPECT_EQ(unlink("store.db-wal"), 0);
    EXPECT_EQ(unlink("store.db-lease"), 0);
    store = store_new();
    EXPECT(token_of(store, "mail") > NEW_EPOCH);
    lh_close(store);
    /* Only once: the next open knows the store. */
    store = store_new();
    (void)add(store, "mail", "y");
    EXPECT(token_of(store, "mail") < 2 * NEW_EPOCH);
    lh_close(store);
}
