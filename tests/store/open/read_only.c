/* Reading a store that cannot be written, with real mounts and killed processes. */
#include "store/mounts.h"
#include "store/sqlite.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

enum { FOLDED = 40, LOGGED = 7, ALL = FOLDED + LOGGED };

/* ---- stores ---- */

static void in_folder(const char *folder, const char *suffix, char path[300])
{
    (void)snprintf(path, 300, "%s/store.db%s", folder, suffix);
}

static void fold_some(const char *path)
{
    lh_store *store = store_open(path, (lh_open_opts){.create = true});
    for (int i = 0; i < FOLDED; i++)
        add(store, "mail", "folded");
    lh_close(store);
}

/* A store whose last process was killed, so its changes are only in the log. */
static void leave_log(const char *path)
{
    fold_some(path);
    pid_t child = test_fork();
    if (child == 0) {
        lh_store *store = store_open(path, (lh_open_opts){0});
        for (int i = 0; i < LOGGED; i++)
            add(store, "mail", "logged");
        (void)raise(SIGKILL);
    }
    EXPECT_EQ(test_wait(child).sig, SIGKILL);
}

static void take_away(const char *folder, const char *suffix)
{
    char path[300];

    in_folder(folder, suffix, path);
    EXPECT_EQ(unlink(path), 0);
}

/* The folder "s" with a store, and "ro", the same folder through a read-only mount. */
static void two_views(void)
{
    own_mounts();
    EXPECT_EQ(mkdir("s", 0700), 0);
    EXPECT_EQ(mkdir("ro", 0700), 0);
    mount_again("s", "ro");
    mount_read_only("ro", true);
}

/* ---- comparing ---- */

/* All names in a folder, with every attribute that changes on a write. */
static char *picture(const char *folder)
{
    size_t room = 8192, used = 0, len;
    char *text = calloc(1, room);
    struct dirent **names;
    int n = scandir(folder, &names, NULL, alphasort);

    EXPECT(n >= 0 && text != NULL);
    for (int i = 0; i < n; i++) {
        char path[600];
        struct stat st;
        if (strcmp(names[i]->d_name, "..") == 0) {
            free(names[i]);
            continue;
        }
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        EXPECT_EQ(lstat(path, &st), 0);
        uint64_t sum = 14695981039346656037U;
        if (S_ISREG(st.st_mode)) {
            unsigned char *bytes = file_bytes(path, &len);
            for (size_t j = 0; j < len; j++)
                sum = (sum ^ bytes[j]) * 1099511628211U;
            free(bytes);
        }
        used += (size_t)snprintf(text + used, room - used, "%s %lld %o %lld.%09ld %llx\n",
                                 names[i]->d_name, (long long)st.st_size, st.st_mode,
                                 (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
                                 (unsigned long long)sum);
        EXPECT(used < room);
        free(names[i]);
    }
    free(names);
    return text;
}

static int copies_in(const char *folder)
{
    struct dirent **names;
    int found = 0, n = scandir(folder, &names, NULL, NULL);

    EXPECT(n >= 0);
    for (int i = 0; i < n; i++) {
        found += strncmp(names[i]->d_name, "leasehold-", 10) == 0;
        free(names[i]);
    }
    free(names);
    return found;
}

/* Reads work and report the degraded state. Writes are refused. */
static void expect_only_read(const char *folder, const char *why, int64_t jobs)
{
    char path[300], line[64];
    lh_store_info info;

    in_folder(folder, "", path);
    lh_store *store = store_open(path, (lh_open_opts){.read_only = true});
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_CONTAINS(info.degraded, why);
    EXPECT_EQ(counts_of(store, "mail").pending, jobs);
    EXPECT_EQ(state_of(store, jobs), LH_PENDING);
    store_check(store);
    EXPECT_STATUS(lh_queue_pause(store, "mail"), LH_EREADONLY);
    EXPECT_EQ(counts_of(store, "mail").pending, jobs);
    lh_close(store);
    expect_open(path, (lh_open_opts){.create = true}, LH_EREADONLY, "cannot be written");

    (void)snprintf(line, sizeof line, "\"id\":%lld,", (long long)jobs);
    expect_program(path, (const char *[]){"status", NULL}, 0, why, "degraded");
    expect_program(path, (const char *[]){"status", "--json", NULL}, 0, "\"ok\":false", "degraded");
    expect_program(path, (const char *[]){"list", "--json", NULL}, 0, line, "degraded");
    expect_program(path, (const char *[]){"show", "1", NULL}, 0, "mail", "degraded");
    expect_program(path, (const char *[]){"check", NULL}, 0, "ok", "degraded");
    expect_program(path, (const char *[]){"enqueue", "mail", "x", NULL}, 7, "",
                   "cannot be written");
    expect_program(path, (const char *[]){"claim", "mail", NULL}, 7, "", "cannot be written");
    expect_program(path, (const char *[]){"prune", NULL}, 7, "", "cannot be written");
}

/* The same, and no file is changed or left behind. */
static void expect_degraded(const char *folder, const char *why, int64_t jobs)
{
    char *before = picture(folder);
    expect_only_read(folder, why, jobs);
    char *after = picture(folder);

    EXPECT_STR(after, before);
    EXPECT_EQ(copies_in(test_tmpdir()), 0);
    free(before);
    free(after);
}

/* ---- read-only mounts ---- */

TEST(a_store_that_was_closed_is_read_on_a_read_only_mount)
{
    two_views();
    fold_some("s/store.db");
    expect_degraded("ro", "file system is read-only", FOLDED);
}

TEST(a_database_file_alone_is_read_in_place_on_a_read_only_mount)
{
    two_views();
    fold_some("s/store.db");
    take_away("s", "-wal");
    take_away("s", "-shm");
    take_away("s", "-lease");
    expect_degraded("ro", "file system is read-only: reading the file in place", FOLDED);
}

TEST(empty_log_without_an_index_is_ignored)
{
    two_views();
    fold_some("s/store.db");
    take_away("s", "-shm");
    EXPECT_EQ(file_size("s/store.db-wal"), 0);
    expect_degraded("ro", "file system is read-only: reading the file in place", FOLDED);
}

TEST(the_log_of_a_killed_process_is_read_on_a_read_only_mount)
{
    two_views();
    leave_log("s/store.db");
    EXPECT(file_size("s/store.db-wal") > 0);
    expect_degraded("ro", "file system is read-only", ALL);
}

TEST(a_log_without_its_index_is_read_from_a_copy)
{
    two_views();
    leave_log("s/store.db");
    take_away("s", "-shm");
    /* SQLite alone reads nothing, or only half of it. */
    sqlite3 *db = NULL;
    EXPECT_EQ(sqlite3_open_v2("ro/store.db", &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    EXPECT_EQ(db_try(db, "SELECT 1 FROM lh_job"), SQLITE_CANTOPEN);
    sqlite3_close(db);
    EXPECT_EQ(sqlite3_open_v2("file:ro/store.db?immutable=1", &db,
                              SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL),
              SQLITE_OK);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_job"), FOLDED);
    sqlite3_close(db);
    expect_degraded("ro", "file system is read-only: reading a copy made at 20", ALL);
}

/* Another program switched the store out of WAL mode, and was killed with half of its changes in
 * the file. */
static void leave_journal(const char *path)
{
    fold_some(path);
    lh_store *store = store_open(path, (lh_open_opts){.durability = LH_DURABLE_RELAXED});
    for (int i = 0; i < 1000; i++) /* more than its cache holds */
        add(store, "other", "x");
    lh_close(store);
    pid_t child = test_fork();
    if (child == 0) {
        sqlite3 *db = db_open(path);
        db_exec(db, "PRAGMA journal_mode = DELETE; PRAGMA cache_size = 3; PRAGMA synchronous = OFF;"
                    "BEGIN; UPDATE lh_job SET priority = 7, state_sum = 0");
        (void)raise(SIGKILL);
    }
    EXPECT_EQ(test_wait(child).sig, SIGKILL);
}

static int64_t half_done(const char *path)
{
    sqlite3 *db = NULL;
    char uri[300];

    (void)snprintf(uri, sizeof uri, "file:%s?immutable=1", path);
    EXPECT_EQ(sqlite3_open_v2(uri, &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL), SQLITE_OK);
    int64_t n = db_int(db, "SELECT count(*) FROM lh_job NOT INDEXED WHERE priority = 7");
    sqlite3_close(db);
    return n;
}

TEST(a_journal_is_rolled_back_in_a_copy)
{
    lh_jobs *jobs = NULL;

    two_views();
    leave_journal("s/store.db");
    EXPECT(half_done("ro/store.db") > 0);
    expect_degraded("ro", "file system is read-only: reading a copy made at 20", FOLDED);
    lh_store *store = store_open("ro/store.db", (lh_open_opts){.read_only = true});
    EXPECT_OK(lh_job_list(store, &(lh_job_filter){.limit = 10000}, &jobs));
    EXPECT_EQ(jobs->n, FOLDED + 1000);
    for (size_t i = 0; i < jobs->n; i++)
        EXPECT_EQ(jobs->job[i].priority, 0);
    lh_jobs_free(jobs);
    lh_close(store);
}

TEST(a_copy_needs_no_nameless_files)
{
    two_views();
    leave_log("s/store.db");
    take_away("s", "-shm");
    without_nameless_files();
    expect_degraded("ro", "reading a copy made at 20", ALL);
}

TEST(a_store_may_have_any_name)
{
    static const char *const names[] = {"s/a b.db", "s/100%25 ?mode=rw&x#y.db",
                                        "s/gr\xc3\xbc\xc3\x9f.db", "s/\"':;\\.db"};
    two_views();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[300], beside[320];
        fold_some(names[i]);
        (void)snprintf(beside, sizeof beside, "%s-wal", names[i]);
        EXPECT_EQ(unlink(beside), 0);
        (void)snprintf(beside, sizeof beside, "%s-shm", names[i]);
        EXPECT_EQ(unlink(beside), 0);
        (void)snprintf(path, sizeof path, "ro/%s", names[i] + 2);
        lh_store *store = store_open(path, (lh_open_opts){.read_only = true});
        EXPECT_EQ(counts_of(store, "mail").pending, FOLDED);
        lh_close(store);
    }
}

TEST(refused_open_for_writing_creates_no_file)
{
    own_mounts();
    EXPECT_EQ(mkdir("s", 0700), 0);
    mount_again("s", "s");
    mount_read_only("s", true);
    expect_open("s/store.db", (lh_open_opts){.create = true}, LH_EREADONLY, "read-only");
    expect_open("s/store.db", (lh_open_opts){.read_only = true}, LH_ENOSTORE, "no store");
    EXPECT(!file_exists("s/store.db"));
}

/* ---- permissions ---- */

TEST(store_in_a_folder_without_write_permission_is_read)
{
    EXPECT_EQ(mkdir("s", 0700), 0);
    leave_log("s/store.db");
    take_away("s", "-shm");
    EXPECT_EQ(chmod("s/store.db", 0400), 0);
    EXPECT_EQ(chmod("s/store.db-wal", 0400), 0);
    EXPECT_EQ(chmod("s/store.db-lease", 0400), 0);
    EXPECT_EQ(chmod("s", 0500), 0);
    obey_permissions();
    expect_degraded("s", "may not write here: reading a copy made at 20", ALL);
}

TEST(database_without_write_permission_gets_no_coordination_file)
{
    EXPECT_EQ(mkdir("s", 0700), 0);
    fold_some("s/store.db");
    take_away("s", "-lease");
    EXPECT_EQ(chmod("s/store.db", 0400), 0);
    obey_permissions();
    expect_only_read("s", "may not write here", FOLDED);
    EXPECT(!file_exists("s/store.db-lease"));
}

TEST(store_with_all_its_files_works_in_a_folder_that_cannot_be_written)
{
    EXPECT_EQ(mkdir("s", 0700), 0);
    fold_some("s/store.db");
    EXPECT_EQ(chmod("s", 0500), 0);
    obey_permissions();
    lh_store_info info;
    lh_store *store = store_open("s/store.db", (lh_open_opts){0});
    add(store, "mail", "x");
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_STR(info.degraded, "");
    lh_close(store);
}

/* ---- other writers ---- */

static void expect_live(lh_store *reader, int64_t jobs)
{
    lh_store_info info;

    EXPECT_EQ(counts_of(reader, "mail").pending, jobs);
    EXPECT_OK(lh_store_status(reader, &info));
    EXPECT_STR(info.degraded, "file system is read-only");
}

TEST(reader_in_place_sees_what_others_write)
{
    two_views();
    fold_some("s/store.db");
    take_away("s", "-wal");
    take_away("s", "-shm");
    lh_store *reader = store_open("ro/store.db", (lh_open_opts){.read_only = true});
    EXPECT_EQ(counts_of(reader, "mail").pending, FOLDED);
    lh_store *writer = store_open("s/store.db", (lh_open_opts){0});
    add(writer, "mail", "more");
    expect_live(reader, FOLDED + 1);
    lh_close(writer);
    lh_close(reader);
}

TEST(reader_of_a_copy_sees_what_others_write)
{
    two_views();
    leave_log("s/store.db");
    take_away("s", "-shm");
    lh_store *reader = store_open("ro/store.db", (lh_open_opts){.read_only = true});
    EXPECT_EQ(counts_of(reader, "mail").pending, ALL);
    lh_store *writer = store_open("s/store.db", (lh_open_opts){0});
    add(writer, "mail", "more");
    expect_live(reader, ALL + 1);
    lh_close(writer);
    lh_close(reader);
}

/* Another writer, driven by an alarm signal of this process. */
static struct {
    int fd;
    off_t last;
} disturbed;

static void write_again(int sig)
{
    char byte = 0;

    (void)sig;
    if (pread(disturbed.fd, &byte, 1, disturbed.last) == 1)
        (void)!pwrite(disturbed.fd, &byte, 1, disturbed.last);
}

/* Write the last byte of a file every few milliseconds without changing it; 0: stop. */
static void disturb(const char *path, long every_ms)
{
    struct sigaction action = {.sa_handler = write_again, .sa_flags = SA_RESTART};
    struct itimerval timer = {.it_interval.tv_usec = every_ms * 1000,
                              .it_value.tv_usec = every_ms * 1000};

    if (path != NULL) {
        disturbed.fd = open(path, O_RDWR | O_CLOEXEC);
        disturbed.last = lseek(disturbed.fd, -1, SEEK_END);
        EXPECT(disturbed.last >= 0);
    }
    EXPECT_EQ(sigaction(SIGALRM, &action, NULL), 0);
    EXPECT_EQ(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

static void expect_disturbed(const char *part, long every_ms)
{
    char path[300];
    lh_store *store = NULL;

    in_folder("s", part, path);
    disturb(path, every_ms);
    int rc = lh_open("ro/store.db", &(lh_open_opts){.read_only = true}, &store);
    disturb(NULL, 0);
    EXPECT_STATUS(rc, LH_EBUSY);
    EXPECT_CONTAINS(lh_errmsg(store), "written to by others");
    lh_close(store);
    EXPECT_EQ(copies_in(test_tmpdir()), 0);
    store = store_open("ro/store.db", (lh_open_opts){.read_only = true});
    lh_close(store);
}

TEST(copy_of_a_log_that_changes_meanwhile_is_not_used)
{
    two_views();
    leave_log("s/store.db");
    take_away("s", "-shm");
    expect_disturbed("-wal", 5);
}

TEST(copy_of_a_database_that_changes_meanwhile_is_not_used)
{
    two_views();
    leave_log("s/store.db");
    take_away("s", "-shm");
    expect_disturbed("", 5);
}

/* The first write comes when the files have been unchanged long enough to start; the copy takes
 * longer. */
TEST(a_write_in_the_middle_of_a_long_copy_is_noticed)
{
    two_views();
    leave_log("s/store.db");
    take_away("s", "-shm");
    EXPECT_EQ(truncate("s/store.db", 192 << 20), 0);
    EXPECT_EQ(mkdir("copies", 0700), 0);
    mount_tmpfs("copies", "256m");
    char place[PATH_MAX];
    (void)snprintf(place, sizeof place, "%.4000s/copies", test_tmpdir());
    EXPECT_EQ(setenv("TMPDIR", place, 1), 0);
    expect_disturbed("-wal", 30);
}

TEST(read_in_place_of_a_database_that_changes_meanwhile_is_refused)
{
    two_views();
    fold_some("s/store.db");
    take_away("s", "-wal");
    take_away("s", "-shm");
    expect_disturbed("", 5);
}

/* ---- temporary folders ---- */

/* Put the store in /mnt, so that all temporary folders can be covered. Returns the path of
 * $TMPDIR. */
static void without_room(void)
{
    two_views();
    leave_log("s/store.db");
    take_away("s", "-shm");
    mount_again("ro", "/mnt");
    mount_read_only("/mnt", true);
    mount_tmpfs("/dev/shm", "64k");
    mount_tmpfs("/var/tmp", "64k");
    mount_tmpfs("/tmp", "64k");
    (void)mkdir("/tmp/own", 0700);
    EXPECT_EQ(setenv("TMPDIR", "/tmp/own", 1), 0);
}

TEST(copy_without_room_names_every_folder_that_was_tried)
{
    without_room();
    expect_open("/mnt/store.db", (lh_open_opts){.read_only = true}, LH_ENOSPC,
                "could not copy the store \"/mnt/store.db\"");
    expect_open("/mnt/store.db", (lh_open_opts){.read_only = true}, LH_ENOSPC, "/tmp/own has ");
    expect_open("/mnt/store.db", (lh_open_opts){.read_only = true}, LH_ENOSPC, "/dev/shm has ");
    expect_open("/mnt/store.db", (lh_open_opts){.read_only = true}, LH_ENOSPC, "/tmp has ");
    expect_open("/mnt/store.db", (lh_open_opts){.read_only = true}, LH_ENOSPC, "/var/tmp has ");
    EXPECT_EQ(setenv("TMPDIR", "/nowhere", 1), 0);
    expect_open("/mnt/store.db", (lh_open_opts){.read_only = true}, LH_ENOSPC,
                "/nowhere: No such file or directory");
}

TEST(copy_is_made_in_the_first_folder_with_room)
{
    without_room();
    EXPECT_EQ(setenv("TMPDIR", "/nowhere", 1), 0);
    mount_tmpfs("/tmp", "8m");
    lh_store *store = store_open("/mnt/store.db", (lh_open_opts){.read_only = true});
    EXPECT_EQ(counts_of(store, "mail").pending, ALL);
    lh_close(store);
}

TEST(copy_uses_room_only_while_it_is_open)
{
    without_room();
    EXPECT_EQ(mkdir("/dev/shm/own", 0700), 0);
    mount_tmpfs("/dev/shm/own", "2m");
    EXPECT_EQ(setenv("TMPDIR", "/dev/shm/own", 1), 0);
    for (int i = 0; i < 20; i++) {
        lh_store *store = store_open("/mnt/store.db", (lh_open_opts){.read_only = true});
        EXPECT_EQ(counts_of(store, "mail").pending, ALL);
        EXPECT_EQ(copies_in("/dev/shm/own"), 0);
        lh_close(store);
    }
}

static void die_copying(const char *point)
{
    pid_t child = test_fork();

    if (child == 0) {
        lh_store *store = NULL;
        (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "%s", point);
        (void)lh_open("ro/store.db", &(lh_open_opts){.read_only = true}, &store);
        test_child_done();
    }
    EXPECT_EQ(test_wait(child).sig, SIGKILL);
}

TEST(process_killed_while_copying_leaves_no_file)
{
    two_views();
    leave_log("s/store.db");
    take_away("s", "-shm");
    die_copying("scratch:filled");
    EXPECT_EQ(copies_in(test_tmpdir()), 0);
}

TEST(only_the_user_can_read_what_a_killed_copy_leaves)
{
    struct dirent **names;
    struct stat st;

    (void)umask(0);
    two_views();
    leave_log("s/store.db");
    take_away("s", "-shm");
    die_copying("scratch:named");
    EXPECT_EQ(copies_in(test_tmpdir()), 1);
    int n = scandir(test_tmpdir(), &names, NULL, NULL);
    for (int i = 0; i < n; i++) {
        char path[600];
        if (strncmp(names[i]->d_name, "leasehold-", 10) != 0)
            continue;
        (void)snprintf(path, sizeof path, "%s", names[i]->d_name);
        EXPECT_EQ(stat(path, &st), 0);
        EXPECT_EQ(st.st_mode & 0777, 0700);
        (void)snprintf(path, sizeof path, "%s/store.db", names[i]->d_name);
        EXPECT_EQ(stat(path, &st), 0);
        EXPECT_EQ(st.st_mode & 0777, 0600);
    }
    /* And it prevents no open for writing. */
    lh_store *store = store_open("ro/store.db", (lh_open_opts){.read_only = true});
    EXPECT_EQ(counts_of(store, "mail").pending, ALL);
    lh_close(store);
}

static int open_files(void)
{
    struct dirent **names;
    int n = scandir("/proc/self/fd", &names, NULL, NULL);

    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
    return n;
}

TEST(copy_without_memory_fails_with_a_message_and_leaves_no_file)
{
    int failed = 0, rc;

    two_views();
    leave_log("s/store.db");
    take_away("s", "-shm");
    int before = open_files();
    do {
        lh_store *store = NULL;
        lhi_control()->calls[LHI_FAULT_ALLOC] = 0;
        lhi_control()->fail_at[LHI_FAULT_ALLOC] = ++failed;
        rc = lh_open("ro/store.db", &(lh_open_opts){.read_only = true}, &store);
        lhi_control()->fail_at[LHI_FAULT_ALLOC] = 0;
        EXPECT(rc == LH_OK || rc == LH_ENOMEM);
        if (rc == LH_OK)
            EXPECT_EQ(counts_of(store, "mail").pending, ALL);
        lh_close(store);
        EXPECT_EQ(open_files(), before);
        EXPECT_EQ(copies_in(test_tmpdir()), 0);
    } while (rc != LH_OK);
    EXPECT(failed > 2);
}

/* ---- the store stays unchanged ---- */

TEST(a_store_that_can_be_written_is_not_degraded)
{
    lh_store_info info;

    fold_some("store.db");
    lh_store *store = store_open("store.db", (lh_open_opts){.read_only = true});
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_STR(info.degraded, "");
    lh_close(store);
    expect_program("store.db", (const char *[]){"status", "--json", NULL}, 0, "\"degraded\":null",
                   "");
}

TEST(damaged_log_on_a_read_only_mount_is_cut_at_its_last_valid_commit)
{
    two_views();
    leave_log("s/store.db");
    take_away("s", "-shm");
    size_t len;
    unsigned char *bytes = file_bytes("s/store.db-wal", &len);
    file_write("s/store.db-wal", bytes, len - 1); /* the last commit is incomplete */
    free(bytes);
    lh_store *store = store_open("ro/store.db", (lh_open_opts){.read_only = true});
    EXPECT_EQ(counts_of(store, "mail").pending, ALL - 1);
    lh_close(store);
}
