/* Resources of a worker are missing for a while: disk space, the store, descriptors, memory. */
#include "store/mounts.h"
#include "work/shift.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---------------------------------------------------------------- a full disk */

static struct shop shop_on_small_disk(const char *size)
{
    own_mounts();
    EXPECT_EQ(mkdir("d", 0700), 0);
    mount_tmpfs("d", size);
    return shop_open_at("d/s.db");
}

TEST(a_full_disk_costs_no_lease_and_the_job_completes)
{
    struct shop shop = shop_on_small_disk("16m");
    int64_t job = put(&shop, "q", "x"), beat;
    struct shift shift =
        SHIFT("q", "--lease", "20s", "--heartbeat", "500ms", "--", SH(UNTIL("go") "echo done"));
    EVENTUALLY((beat = look(&shop, job)->last_heartbeat_at) > 0);
    fill_up("d/filler");
    EVENTUALLY(look(&shop, job)->last_heartbeat_at > beat + 1000);
    touch("go");
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(remove("d/filler"), 0);
    int64_t next = put(&shop, "q", "y");
    EVENTUALLY(state_of(&shop, next) == LH_COMPLETED);
    EXPECT_EQ(look(&shop, next)->attempt, 1);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* The results need more space than there is, including the reserve. */
TEST(outcomes_that_a_full_disk_refused_are_written_when_there_is_space)
{
    enum { JOBS = 8 };
    struct shop shop = shop_on_small_disk("64m");
    put_many(&shop, "q", JOBS);
    struct shift shift =
        SHIFT("q", "-j", "8", "--lease", "60s", "--",
              SH("echo >>started;" UNTIL("go") "head -c 1048576 /dev/urandom; echo >>runs"));
    EVENTUALLY(lines_of("started") == JOBS);
    fill_up("d/filler");
    touch("go");
    EVENTUALLY(lines_of("runs") == JOBS && said(&shift, "could not record how jobs ended"));
    EXPECT(count(&shop, LH_COMPLETED) < JOBS);
    EXPECT_EQ(remove("d/filler"), 0);
    EVENTUALLY(count(&shop, LH_COMPLETED) == JOBS);
    EVENTUALLY(said(&shift, "resolved: could not record how jobs ended"));
    EXPECT_EQ(lines_of("runs"), JOBS);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- a replaced or missing store */

TEST(a_worker_reopens_a_restored_store)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    PROGRAM("backup", "copy.db");
    struct shift shift = SHIFT("q", "--heartbeat", "500ms", "--kill-after", "100ms", "--",
                               SH("echo $$ >>pid; [ $(wc -l <pid) -gt 1 ] && exit 0; sleep 600"));
    int64_t pid = number_in("pid");
    lh_jobs_free(shop.seen);
    lh_close(shop.store);
    PROGRAM("restore", "copy.db");
    shop = shop_open();
    EVENTUALLY(gone(pid));
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(lines_of("pid"), 2);
    EXPECT(look(&shop, job)->token > (INT64_C(1) << 40)); /* the token has a new epoch */
    int64_t next = put(&shop, "q", "y");
    EVENTUALLY(state_of(&shop, next) == LH_COMPLETED);
    EXPECT_EQ(workers(&shop), 1);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

TEST(an_idle_worker_notices_a_restored_store)
{
    struct shop shop = shop_open();
    PROGRAM("backup", "copy.db");
    struct shift shift = SHIFT("q", "--heartbeat", "500ms", "--", "true");
    lh_close(shop.store);
    PROGRAM("restore", "copy.db");
    shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

static const char *const files[] = {"s.db", "s.db-wal", "s.db-shm", "s.db-lease"};

static void move_store(const char *from, const char *to)
{
    char old[64], new[64];

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        (void)snprintf(old, sizeof old, "%s/%s", from, files[i]);
        (void)snprintf(new, sizeof new, "%s/%s", to, files[i]);
        EXPECT(rename(old, new) == 0 || i == 1 || i == 2);
    }
}

/* The store is missing for a while, as when a disk is unmounted. The worker must not create a new one. */
TEST(a_worker_continues_when_a_missing_store_is_back)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--heartbeat", "500ms", "--kill-after", "100ms", "--",
                               SH("echo $$ >>pid; [ $(wc -l <pid) -gt 1 ] && exit 0; sleep 600"));
    int64_t pid = number_in("pid");
    lh_jobs_free(shop.seen);
    lh_close(shop.store);
    EXPECT_EQ(mkdir("away", 0700), 0);
    move_store(".", "away");
    EVENTUALLY(said(&shift, "could not open the store again"));
    EVENTUALLY(gone(pid)); /* fenced, because no heartbeat was confirmed */
    EXPECT(!exists("s.db"));
    move_store("away", ".");
    shop = shop_open();
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(lines_of("pid"), 2);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* Only the database is renamed, without its log: the lease must be in the renamed file. */
TEST(a_running_job_of_a_renamed_database_is_not_handed_out_under_the_new_name)
{
    lh_jobs *jobs = NULL;
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--heartbeat", "500ms", "--kill-after", "100ms", "--",
                               SH("echo $$ >>pid; sleep 600"));
    int64_t pid = number_in("pid");
    int64_t token = look(&shop, job)->token;
    lh_jobs_free(shop.seen);
    lh_close(shop.store);
    EXPECT_EQ(rename("s.db", "renamed.db"), 0);
    EVENTUALLY(said(&shift, "was renamed to"));
    EVENTUALLY(said(&shift, "could not open the store again"));
    shop = shop_open_at("renamed.db");
    EXPECT_EQ(look(&shop, job)->token, token);
    EXPECT_EQ(state_of(&shop, job), LH_RUNNING);
    const char *const queues[] = {"q"};
    EXPECT_OK(lh_claim(
        shop.store,
        &(lh_claim_opts){.queues = queues, .n_queues = 1, .worker = "other", .wait_ms = -1},
        &jobs));
    /* The worker has stopped its job before the lease expired. */
    EXPECT(gone(pid));
    EXPECT_EQ(jobs->job[0].id, job);
    EXPECT(jobs->job[0].token > token);
    lh_jobs_free(jobs);
    shift_signal(&shift, SIGTERM);
    EXPECT(shift_wait(&shift) > 0);
    shop_close(&shop);
}

TEST(a_worker_without_its_store_can_be_stopped)
{
    struct shop shop = shop_open();
    (void)put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--heartbeat", "500ms", "--kill-after", "100ms", "--grace",
                               "100ms", "--", SH("echo $$ >pid; sleep 600"));
    int64_t pid = number_in("pid");
    lh_jobs_free(shop.seen);
    lh_close(shop.store);
    EXPECT_EQ(mkdir("away", 0700), 0);
    move_store(".", "away");
    EVENTUALLY(said(&shift, "could not open the store again"));
    shift_signal(&shift, SIGTERM);
    int code = shift_wait(&shift);
    EXPECT(code > 0); /* it could not release its jobs */
    EXPECT(gone(pid));
    EXPECT(!exists("s.db"));
}

/* ---------------------------------------------------------------- descriptors and memory */

static int descriptors_open(const struct shift *shift)
{
    char path[64];
    int n = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)shift->pid);
    DIR *dir = opendir(path);
    EXPECT(dir != NULL);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

TEST(a_job_leaves_no_descriptor_and_no_process_behind)
{
    struct shop shop = shop_open();
    (void)put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--", SH("sleep 600 & echo progress 1 >&3; exit 0"));
    EVENTUALLY(count(&shop, LH_COMPLETED) == 1);
    pid_t guardian = guardian_of(&shift);
    int before = descriptors_open(&shift);
    const struct shift below = {.pid = guardian};
    int before_below = descriptors_open(&below);
    put_many(&shop, "q", 30);
    EVENTUALLY(count(&shop, LH_COMPLETED) == 31);
    EXPECT_EQ(guardian_of(&shift), guardian);
    /* The store may have opened a few files since, but not one per job. */
    EVENTUALLY(descriptors_open(&shift) < before + 15);
    EXPECT_EQ(descriptors_open(&below), before_below);
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT(gone(guardian));
    shop_close(&shop);
}

static void limit(const struct shift *shift, int what, rlim_t most)
{
    struct rlimit now;

    EXPECT_EQ(prlimit(shift->pid, (__rlimit_resource_t)what, NULL, &now), 0);
    now.rlim_cur = most < now.rlim_max ? most : now.rlim_max;
    EXPECT_EQ(prlimit(shift->pid, (__rlimit_resource_t)what, &now, NULL), 0);
}

/* The lowest free descriptor. */
static rlim_t descriptors_of(const struct shift *shift)
{
    char path[64], target[64];

    for (rlim_t fd = 0;; fd++) {
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%lu", (int)shift->pid, (unsigned long)fd);
        if (readlink(path, target, sizeof target) < 0)
            return fd;
    }
}

TEST(without_descriptors_running_jobs_continue_and_claims_pause)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", UNTIL("go"));
    struct shift shift =
        SHIFT("q", "-j", "3", "--heartbeat", "500ms", "--lease", "20s", "--", "sh");
    EVENTUALLY(look(&shop, job)->last_heartbeat_at > 0);
    limit(&shift, RLIMIT_NOFILE, descriptors_of(&shift));
    int64_t second = put(&shop, "q", "exit 0"), third = put(&shop, "q", "exit 0");
    EVENTUALLY(said(&shift, "Too many open files"));
    int64_t beat = look(&shop, job)->last_heartbeat_at;
    EVENTUALLY(look(&shop, job)->last_heartbeat_at > beat);
    EXPECT(look(&shop, second)->attempt <= 1);
    touch("go");
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    limit(&shift, RLIMIT_NOFILE, RLIM_INFINITY);
    EVENTUALLY(count(&shop, LH_COMPLETED) == 3);
    EXPECT_EQ(look(&shop, second)->attempt, 1); /* failed starts in between did not count */
    EXPECT_EQ(look(&shop, third)->attempt, 1);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

static rlim_t memory_of(const struct shift *shift)
{
    char path[64], pages[64] = "";

    (void)snprintf(path, sizeof path, "/proc/%d/statm", (int)shift->pid);
    FILE *file = fopen(path, "re");
    EXPECT(file != NULL && fgets(pages, sizeof pages, file) != NULL);
    (void)fclose(file);
    return (rlim_t)strtoul(pages, NULL, 10) * (rlim_t)sysconf(_SC_PAGESIZE);
}

TEST(without_memory_running_jobs_continue_and_no_job_is_lost)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", UNTIL("go") "head -c 1000000 /dev/zero");
    struct shift shift =
        SHIFT("q", "-j", "3", "--heartbeat", "500ms", "--lease", "20s", "--", "sh");
    EVENTUALLY(look(&shop, job)->last_heartbeat_at > 0);
    limit(&shift, RLIMIT_AS, memory_of(&shift));
    int64_t second = put(&shop, "q", "exit 0");
    char *large = calloc(1, 1 << 20);
    EXPECT(large != NULL);
    memset(large, '\n', 1 << 20);
    int64_t third = put_bytes(&shop, "q", large, 1 << 20);
    free(large);
    EVENTUALLY(said(&shift, "memory") || said(&shift, "could not"));
    EXPECT(!gone(shift.pid));
    limit(&shift, RLIMIT_AS, RLIM_INFINITY);
    touch("go");
    EVENTUALLY(count(&shop, LH_COMPLETED) == 3);
    EXPECT_EQ(look(&shop, second)->attempt, 1);
    EXPECT_EQ(look(&shop, third)->attempt, 1);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}
