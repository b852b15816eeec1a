/* Backups: of one moment, complete, checked, and never in the way of another process. */
#include "store/copies.h"
#include "store/mounts.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Large enough to be copied in several steps. */
static lh_store *large_store(void)
{
    enum { JOBS = 12 };
    static char payload[1 << 20];
    lh_store *store = store_new();
    lh_new_job job = {.payload = payload, .payload_len = sizeof payload};
    lh_enqueued out;

    memset(payload, 'x', sizeof payload);
    for (int i = 0; i < JOBS; i++)
        EXPECT_OK(lh_enqueue(store, "q", &job, 1, NULL, &out));
    return store;
}

/* ---- the copy ---- */

TEST(a_copy_is_one_whole_file_of_its_moment)
{
    struct stat st;
    lh_store *store = store_new();
    for (int i = 0; i < 5; i++)
        add(store, "q", "before");
    backup(store, "copy.db", (lh_backup_opts){0});
    add(store, "q", "after");
    EXPECT_EQ(stat("copy.db", &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600);
    EXPECT_EQ(files_with(".", "copy.db"), 1);
    EXPECT_EQ(jobs_in("copy.db"), 5);
    EXPECT_EQ(files_with(".", "copy.db"), 1); /* reading it creates no other files */
    EXPECT_EQ(counts_of(store, "q").pending, 6);
    lh_close(store);
}

TEST(a_copy_that_is_opened_elsewhere_works_as_a_store)
{
    lh_store *store = store_new();
    add(store, "q", "one");
    add(store, "q", "two");
    lh_jobs_free(take(store, "q", "w", 60000));
    EXPECT_EQ(mkdir("elsewhere", 0700), 0);
    backup(store, "elsewhere/copy.db", (lh_backup_opts){0});
    lh_store *copy = store_open("elsewhere/copy.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(copy, "q").running, 1);
    lh_jobs *jobs = take(copy, "q", "w2", 60000);
    EXPECT(jobs != NULL);
    EXPECT_OK(lh_complete(copy, &(lh_done){.job = jobs->job[0].id, .token = jobs->job[0].token}, 1,
                          NULL, NULL));
    lh_jobs_free(jobs);
    store_check(copy);
    lh_close(copy);
    EXPECT_EQ(counts_of(store, "q").completed, 0); /* the store does not know about it */
    lh_close(store);
}

TEST(a_handle_that_only_reads_can_copy)
{
    lh_store *store = store_new();
    add(store, "q", "x");
    lh_store *reader = store_open("store.db", (lh_open_opts){.read_only = true});
    backup(reader, "copy.db", (lh_backup_opts){0});
    EXPECT_EQ(jobs_in("copy.db"), 1);
    lh_close(reader);
    lh_close(store);
}

TEST(a_database_shared_with_other_tables_is_copied_with_them)
{
    sqlite3 *db = db_open("store.db");
    db_exec(db, "PRAGMA encoding = 'UTF-16'; CREATE TABLE mine(x); INSERT INTO mine VALUES(7)");
    lh_store *store = store_open("store.db", (lh_open_opts){.create = true, .adopt = true});
    add(store, "q", "x");
    backup(store, "copy.db", (lh_backup_opts){0});
    EXPECT_EQ(jobs_in("copy.db"), 1);
    sqlite3 *copy = db_open("copy.db");
    EXPECT_EQ(db_int(copy, "SELECT x FROM mine"), 7);
    sqlite3_close(copy);
    lh_close(store);
    sqlite3_close(db);
}

/* ---- while other processes work ---- */

struct busy {
    lh_store *other;
    int64_t steps, done, total;
};

/* Between two steps of the copy another handle writes, and more time passes than a reader may
 * take. */
static void write_meanwhile(void *arg, int64_t done, int64_t total)
{
    struct busy *busy = arg;

    EXPECT(done > busy->done);
    if (busy->steps++ > 0)
        EXPECT_EQ(total, busy->total);
    busy->done = done;
    busy->total = total;
    for (int i = 0; i < 20; i++)
        add(busy->other, "q", "meanwhile");
    pass_ms(10000);
}

TEST(backup_never_starts_again_while_others_write)
{
    freeze_now();
    lh_store *store = large_store();
    struct busy busy = {.other = store_open("store.db", (lh_open_opts){0})};
    backup(store, "copy.db", (lh_backup_opts){.progress = write_meanwhile, .progress_arg = &busy});
    EXPECT(busy.steps >= 3);
    EXPECT_EQ(busy.done, busy.total);
    EXPECT_EQ(jobs_in("copy.db"), 12);
    EXPECT_EQ(counts_of(store, "q").pending, 12 + 20 * busy.steps);
    lh_close(busy.other);
    lh_close(store);
}

static void read_meanwhile(void *arg, int64_t done, int64_t total)
{
    (void)done;
    (void)total;
    EXPECT_EQ(counts_of(arg, "q").pending, 12);
}

TEST(a_backup_does_not_keep_other_reads_of_its_handle_waiting)
{
    lh_store *store = large_store();
    backup(store, "copy.db", (lh_backup_opts){.progress = read_meanwhile, .progress_arg = store});
    lh_close(store);
}

TEST(copy_made_while_others_write_has_whole_transactions)
{
    enum { WRITERS = 3, COPIES = 8 };
    pid_t writers[WRITERS];
    lh_store *store = store_new();
    int64_t last = 0;
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = test_fork_reopening(&store, store_new);
        if (writers[i] == 0) {
            lh_store *own = store_open("store.db", (lh_open_opts){0});
            lh_new_job pair[2] = {{.payload = "a", .payload_len = 1},
                                  {.payload = "b", .payload_len = 1}};
            lh_enqueued out[2];
            for (;;)
                EXPECT_OK(lh_enqueue(own, "q", pair, 2, NULL, out));
        }
    }
    for (int i = 0; i < COPIES; i++) {
        int64_t acknowledged = counts_of(store, "q").pending;
        backup(store, "copy.db", (lh_backup_opts){.replace = true});
        int64_t n = jobs_in("copy.db");
        EXPECT_EQ(n % 2, 0);
        EXPECT(n >= acknowledged && n >= last);
        last = n;
    }
    EXPECT(last > 0);
    for (int i = 0; i < WRITERS; i++) {
        EXPECT_EQ(kill(writers[i], SIGKILL), 0);
        EXPECT_EQ(test_wait(writers[i]).sig, SIGKILL);
    }
    lh_close(store);
}

/* ---- the place of the copy ---- */

static void never(void *arg, int64_t done, int64_t total)
{
    (void)arg;
    FAIL("copied %lld of %lld pages", (long long)done, (long long)total);
}

TEST(existing_file_is_replaced_only_on_request)
{
    lh_store *store = store_new();
    file_write("copy.db", "precious", 8);
    expect_no_backup(store, "copy.db", (lh_backup_opts){.progress = never}, LH_EINVAL, "--force");
    EXPECT_EQ(file_size("copy.db"), 8);
    backup(store, "copy.db", (lh_backup_opts){.replace = true});
    EXPECT_EQ(jobs_in("copy.db"), 0);
    EXPECT_EQ(files_with(".", "copy.db"), 1);
    lh_close(store);
}

static void make_file(void *arg, int64_t done, int64_t total)
{
    (void)done;
    (void)total;
    file_write(arg, "precious", 8);
}

TEST(a_file_that_appears_meanwhile_is_not_replaced_either)
{
    lh_store *store = store_new();
    expect_no_backup(store, "copy.db",
                     (lh_backup_opts){.progress = make_file, .progress_arg = (char[]){"copy.db"}},
                     LH_EINVAL, "exists already");
    EXPECT_EQ(file_size("copy.db"), 8);
    EXPECT_EQ(files_with(".", "partial"), 0);
    lh_close(store);
}

TEST(files_of_the_store_are_never_overwritten)
{
    static const char *const names[] = {"store.db",         "store.db-wal",    "store.db-shm",
                                        "store.db-lease",   "./store.db",      "link.db",
                                        "../here/store.db", "store.db-journal"};
    lh_backup_opts replace = {.replace = true};
    EXPECT_EQ(mkdir("here", 0700), 0);
    EXPECT_EQ(chdir("here"), 0);
    lh_store *store = store_new();
    add(store, "q", "x");
    EXPECT_EQ(link("store.db", "link.db"), 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        expect_no_backup(store, names[i], replace, LH_EINVAL, "belongs to the store");
    EXPECT_EQ(unlink("link.db"), 0);
    add(store, "q", "y");
    EXPECT_EQ(counts_of(store, "q").pending, 2);
    store_check(store);
    lh_close(store);
}

TEST(unusable_target_of_a_backup_is_refused_with_a_message)
{
    lh_backup_opts replace = {.replace = true};
    lh_store *store = store_new();
    EXPECT_EQ(mkdir("folder", 0700), 0);
    EXPECT_EQ(mkfifo("pipe", 0600), 0);
    file_write("target", "precious", 8);
    EXPECT_EQ(symlink("target", "link"), 0);
    expect_no_backup(store, "folder", replace, LH_EINVAL, "is a directory");
    expect_no_backup(store, "folder/", replace, LH_EINVAL, "is a directory");
    expect_no_backup(store, "pipe", replace, LH_EINVAL, "not a regular file");
    expect_no_backup(store, "link", replace, LH_EINVAL, "not a regular file");
    expect_no_backup(store, "nowhere/copy.db", replace, LH_EINVAL, "no folder \"nowhere\"");
    expect_no_backup(store, "", replace, LH_EINVAL, "empty");
    EXPECT_STATUS(lh_backup(store, NULL, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_backup(NULL, "copy.db", NULL), LH_EMISUSE);
    EXPECT_EQ(file_size("target"), 8);
    EXPECT_EQ(files_with(".", "partial"), 0);
    lh_close(store);
}

TEST(backup_beside_a_foreign_log_is_refused)
{
    static const char *const names[] = {"copy.db-wal", "copy.db-journal", "copy.db-lease"};
    lh_store *store = store_new();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        file_write(names[i], "of another", 10);
        expect_no_backup(store, "copy.db", (lh_backup_opts){0}, LH_EINVAL, names[i]);
        EXPECT_EQ(unlink(names[i]), 0);
    }
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_close(store);
}

/* ---- failures ---- */

static int cancel_flag;

static void raise_flag(void *arg, int64_t done, int64_t total)
{
    (void)arg;
    (void)done;
    (void)total;
    cancel_flag = 1;
}

TEST(a_backup_that_is_cancelled_leaves_nothing_behind)
{
    lh_store *store = large_store();
    file_write("copy.db", "precious", 8);
    expect_no_backup(
        store, "copy.db",
        (lh_backup_opts){.replace = true, .cancel = &cancel_flag, .progress = raise_flag}, LH_EINTR,
        "interrupted");
    EXPECT_EQ(files_with(".", "partial"), 0);
    EXPECT_EQ(file_size("copy.db"), 8);
    lh_close(store);
}

TEST(a_damaged_store_gives_no_copy)
{
    lh_store *store = large_store();
    size_t len;
    lh_close(store);
    unsigned char *bytes = file_bytes("store.db", &len);
    sqlite3 *db = db_open("store.db");
    int64_t leaf = db_int(db, "SELECT rootpage FROM sqlite_schema WHERE name = 'lh_job_pending'");
    sqlite3_close(db);
    memset(bytes + (leaf - 1) * 4096, 0, 4096);
    store = store_open("store.db", (lh_open_opts){.read_only = true});
    file_write("store.db", bytes, len);
    free(bytes);
    file_write("copy.db", "precious", 8);
    EXPECT_STATUS(lh_backup(store, "copy.db", &(lh_backup_opts){.replace = true}), LH_ECORRUPT);
    EXPECT_EQ(file_size("copy.db"), 8);
    EXPECT_EQ(files_with(".", "partial"), 0);
    lh_close(store);
}

static void fill_disk(void *arg, int64_t done, int64_t total)
{
    (void)done;
    (void)total;
    own_disk_fill(arg, 0);
}

TEST(a_disk_that_is_or_becomes_full_gives_no_copy_and_gets_its_room_back)
{
    own_disk("disk");
    lh_store *store = large_store();
    expect_no_backup(
        store, "disk/copy.db",
        (lh_backup_opts){.progress = fill_disk, .progress_arg = (char[]){"disk/filler"}}, LH_ENOSPC,
        "disk/copy.db");
    EXPECT_EQ(files_with("disk", "copy.db"), 0);
    expect_no_backup(store, "disk/copy.db", (lh_backup_opts){0}, LH_ENOSPC, "needs");
    EXPECT_EQ(files_with("disk", "copy.db"), 0);
    EXPECT_EQ(unlink("disk/filler"), 0);
    backup(store, "disk/copy.db", (lh_backup_opts){0});
    EXPECT_EQ(jobs_in("disk/copy.db"), 12);
    lh_close(store);
}

TEST(a_store_on_a_file_system_that_became_read_only_is_copied_with_its_log)
{
    own_disk("disk");
    pid_t child = test_fork();
    if (child == 0) { /* it is killed before the log is checkpointed */
        lh_store *own = store_open("disk/store.db", (lh_open_opts){.create = true});
        add(own, "q", "x");
        (void)kill(getpid(), SIGKILL);
    }
    EXPECT_EQ(test_wait(child).sig, SIGKILL);
    mount_read_only("disk", true);
    lh_store *store = store_open("disk/store.db", (lh_open_opts){.read_only = true});
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_close(store);
    EXPECT_EQ(jobs_in("copy.db"), 1);
}

/* Use another program: a forked child would share SQLite's knowledge about the file. */
static void write_over_there(void *arg, int64_t done, int64_t total)
{
    const char *program = getenv("TEST_LEASEHOLD");
    const char *argv[] = {program, "--store", arg, "enqueue", "q", "y", NULL};

    (void)done;
    (void)total;
    EXPECT(program != NULL);
    struct run r = run(NULL, argv);
    if (r.code != 0)
        FAIL("%s", r.err);
    run_clear(&r);
}

TEST(a_store_that_only_others_can_write_is_not_copied_while_they_do)
{
    own_disk("disk");
    EXPECT_EQ(mkdir("view", 0700), 0);
    lh_store *store = store_open("disk/store.db", (lh_open_opts){.create = true});
    add(store, "q", "x");
    lh_close(store);
    /* without its index the log can be neither read nor locked */
    (void)unlink("disk/store.db-wal");
    (void)unlink("disk/store.db-shm");
    mount_again("disk", "view");
    mount_read_only("view", true);
    store = store_open("view/store.db", (lh_open_opts){.read_only = true});
    expect_no_backup(
        store, "copy.db",
        (lh_backup_opts){.progress = write_over_there, .progress_arg = (char[]){"disk/store.db"}},
        LH_EBUSY, "written to by others");
    EXPECT_EQ(files_with(".", "copy.db"), 0);
    backup(store, "copy.db", (lh_backup_opts){0});
    EXPECT_EQ(jobs_in("copy.db"), 2);
    lh_close(store);
}

TEST(backup_without_memory_fails_with_a_message_and_leaves_no_file)
{
    lh_store *store = store_new();
    struct lhi_control *control = lhi_control();
    int failures = 0, rc = LH_ENOMEM;
    add(store, "q", "x");
    for (int n = 1; rc != LH_OK; n++) {
        control->calls[LHI_FAULT_ALLOC] = 0;
        control->fail_at[LHI_FAULT_ALLOC] = n;
        rc = lh_backup(store, "copy.db", NULL);
        control->fail_at[LHI_FAULT_ALLOC] = 0;
        if (rc == LH_OK)
            break;
        EXPECT_STATUS(rc, LH_ENOMEM);
        EXPECT_EQ(files_with(".", "copy.db"), 0);
        failures++;
    }
    EXPECT(failures > 0);
    EXPECT_EQ(jobs_in("copy.db"), 1);
    lh_close(store);
}

TEST(killed_backup_leaves_the_earlier_copy_unchanged)
{
    static const char *const points[] = {"backup:begun", "copy:step", "backup:copied",
                                         "backup:checked"};
    lh_store *store = store_new();
    add(store, "q", "x");
    backup(store, "copy.db", (lh_backup_opts){0});
    add(store, "q", "y");
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
        pid_t child = test_fork_reopening(&store, store_new);
        if (child == 0) {
            store = store_open("store.db", (lh_open_opts){0});
            (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "%s", points[i]);
            (void)lh_backup(store, "copy.db", &(lh_backup_opts){.replace = true});
            test_child_done();
        }
        EXPECT_EQ(test_wait(child).sig, SIGKILL);
        EXPECT_EQ(jobs_in("copy.db"), 1);
        /* The backup that was killed now; the folder of the one before was removed. */
        EXPECT_EQ(files_with(".", "partial"), 1);
    }
    backup(store, "copy.db", (lh_backup_opts){.replace = true});
    EXPECT_EQ(jobs_in("copy.db"), 2);
    EXPECT_EQ(files_with(".", "partial"), 0);
    lh_close(store);
}

/* ---- folders of killed backups ---- */

static void leave_partial(const char *name, mode_t mode)
{
    char copy[64];

    EXPECT_EQ(mkdir(name, mode), 0);
    EXPECT_EQ(chmod(name, mode), 0);
    (void)snprintf(copy, sizeof copy, "%s/copy", name);
    file_write(copy, "x", 1);
}

TEST(backup_removes_the_folders_of_killed_backups)
{
    lh_store *store = store_new();
    leave_partial("monday.db.partial-0123abcd", 0700);
    leave_partial("tuesday.db.partial-89efcd01", 0700);
    file_write("tuesday.db.partial-89efcd01/copy-journal", "x", 1);
    backup(store, "wednesday.db", (lh_backup_opts){0});
    EXPECT_EQ(files_with(".", "partial"), 0);
    lh_close(store);
}

TEST(backup_leaves_the_folder_of_another_backup_at_work)
{
    lh_store *store = store_new();
    leave_partial("other.db.partial-0123abcd", 0700);
    int fd = open("other.db.partial-0123abcd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    EXPECT_EQ(flock(fd, LOCK_EX), 0);
    backup(store, "copy.db", (lh_backup_opts){0});
    EXPECT(file_exists("other.db.partial-0123abcd/copy"));
    EXPECT_EQ(close(fd), 0); /* its backup has been killed */
    backup(store, "copy.db", (lh_backup_opts){.replace = true});
    EXPECT(!file_exists("other.db.partial-0123abcd"));
    lh_close(store);
}

TEST(backup_removes_only_what_a_backup_made)
{
    lh_store *store = store_new();
    leave_partial("a.db.partial-0123abc", 0700);  /* the suffix is too short */
    leave_partial("b.db.partial-0123abcD", 0700); /* the suffix has a letter that we do not use */
    leave_partial("c.db.partial-0123abcd", 0755); /* the folder is not private */
    leave_partial("d.db.partial-0123abcd", 0700); /* it has another file in it */
    file_write("d.db.partial-0123abcd/notes", "x", 1);
    file_write("e.db.partial-0123abcd", "x", 1); /* it is a file */
    EXPECT_EQ(symlink("a.db.partial-0123abc", "f.db.partial-0123abcd"), 0);
    backup(store, "copy.db", (lh_backup_opts){0});
    EXPECT_EQ(files_with(".", "partial"), 6);
    EXPECT(file_exists("d.db.partial-0123abcd/notes"));
    EXPECT(file_exists("a.db.partial-0123abc/copy"));
    lh_close(store);
}
