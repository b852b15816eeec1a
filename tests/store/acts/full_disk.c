/* A full disk: new jobs are refused, everything else goes on, and the store recovers when there is
 * room. */
#include "store/mounts.h"
#include "store/sqlite.h"

#include "core/core.h"
#include "store/sqlite/sync.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { RESERVE = 4 << 20 };

/* ---- disks ---- */

static void small_disk(const char *size)
{
    own_mounts();
    EXPECT_EQ(mkdir("d", 0700), 0);
    mount_tmpfs("d", size);
}

static int64_t room(void)
{
    struct statvfs fs;
    EXPECT_EQ(statvfs("d", &fs), 0);
    return (int64_t)(fs.f_bavail * fs.f_frsize);
}

/* The bytes of the reserve behind the coordination file. */
static int64_t reserve(void)
{
    struct stat st;
    EXPECT_EQ(stat("d/store.db-lease", &st), 0);
    EXPECT_EQ(st.st_size, 4096);
    return (int64_t)st.st_blocks * 512 - 4096;
}

static lh_store *disk_store(void)
{
    return store_open("d/store.db", (lh_open_opts){.create = true});
}

static int try_add(lh_store *store, const char *payload, size_t len)
{
    lh_enqueued out;
    return lh_enqueue(store, "mail", &(lh_new_job){.payload = payload, .payload_len = len}, 1, NULL,
                      &out);
}

static void add_many(lh_store *store, int n)
{
    for (int i = 0; i < n; i++)
        add(store, "mail", "of some length, as jobs are");
}

static void expect_refused(lh_store *store)
{
    lh_queue before = counts_of(store, "mail");

    EXPECT_STATUS(try_add(store, "x", 1), LH_ENOSPC);
    EXPECT_CONTAINS(lh_errmsg(store), "no space left");
    EXPECT_EQ(counts_of(store, "mail").pending, before.pending);
    EXPECT_EQ(counts_of(store, "mail").hour_enqueued, before.hour_enqueued);
}

/* ---- acts that must succeed ---- */

static lh_ref take_one(lh_store *store)
{
    lh_jobs *jobs = take(store, "mail", "w", 60000);

    EXPECT(jobs != NULL);
    lh_ref ref = {jobs->job[0].id, jobs->job[0].token};
    lh_jobs_free(jobs);
    return ref;
}

static void good(lh_store *store, int rc)
{
    if (rc != LH_OK)
        FAIL("%s: %s", lh_status_name(rc), lh_errmsg(store));
}

static void complete_one(lh_store *store, lh_ref ref)
{
    good(store, lh_heartbeat(store, &(lh_beat){.job = ref.job, .token = ref.token}, 1, NULL, NULL));
    good(store, lh_complete(store, &(lh_done){.job = ref.job, .token = ref.token}, 1, NULL, NULL));
}

static void fail_one(lh_store *store, lh_ref ref)
{
    good(
        store,
        lh_fail(store,
                &(lh_failure){
                    .job = ref.job,
                    .token = ref.token,
                    .error =
                        "could not be done, for reasons of its own, which take some words to tell: "
                        "none of the things it needs was there, and nobody knows where they went",
                    .permanent = true},
                1, NULL, NULL));
}

static void release_one(lh_store *store, lh_ref ref)
{
    good(store, lh_release(store, &ref, 1, 0, NULL, NULL));
}

static void prune_all(lh_store *store, int64_t pruned)
{
    int64_t n = 0;

    pass_ms(60000);
    good(store, lh_prune(store, 1000, NULL, &n));
    EXPECT_EQ(n, pruned);
}

/* Let leases end, and recover the jobs. */
static void recover_many(lh_store *store, int n)
{
    for (int i = 0; i < n; i++)
        (void)take_one(store);
    pass_ms(120000);
    good(store, lh_recover(store, NULL, NULL));
    EXPECT_EQ(counts_of(store, "mail").running, 0);
}

/* ---- the reserve ---- */

TEST(reserve_needs_no_file_of_its_own)
{
    small_disk("32m");
    lh_store *store = disk_store();
    EXPECT(reserve() >= RESERVE);
    lh_close(store);
    EXPECT(reserve() >= RESERVE);
    int64_t before = room();
    store = disk_store(); /* one pass is enough */
    EXPECT(reserve() < RESERVE + 65536);
    lh_close(store);
    EXPECT_EQ(room(), before);
}

TEST(small_disk_gets_no_reserve)
{
    small_disk("6m");
    lh_store *store = disk_store();
    EXPECT_EQ(reserve(), 0);
    add_many(store, 10);
    fill_up("d/filler");
    expect_refused(store);
    EXPECT_EQ(unlink("d/filler"), 0);
    complete_one(store, take_one(store));
    add_many(store, 10);
    store_check(store);
    lh_close(store);
}

/* On the file system of the tests and on tmpfs, because the kernel frees blocks in different
 * ways. */
static void spend_all(const char *folder)
{
    struct lhi_error err;
    struct db db = {.coord.fd = -1};

    (void)snprintf(db.file, sizeof db.file, "%s/slices", folder);
    EXPECT_OK(sq_coord_open(&db.coord, db.file, true, &db.log, &err));
    sq_reserve_keep(&db);
    for (int64_t left = RESERVE; left > 0; left -= RESERVE / 4) {
        struct stat st;
        EXPECT_EQ(fstat(db.coord.fd, &st), 0);
        EXPECT(st.st_blocks * 512 - left >= 4096 && st.st_blocks * 512 - left < 65536);
        EXPECT(sq_reserve_spend(&db));
        EXPECT(sq_reserve_spent(&db));
    }
    EXPECT(!sq_reserve_spend(&db));
    sq_reserve_keep(&db);
    EXPECT(!sq_reserve_spent(&db));
    EXPECT(sq_reserve_spend(&db));
    sq_coord_close(&db.coord);
}

TEST(reserve_is_freed_in_slices)
{
    spend_all(test_tmpdir());
    small_disk("32m");
    spend_all("d");
}

/* ---- full ---- */

TEST_TIMEOUT(on_a_full_disk_new_jobs_are_refused_and_the_others_go_on, 60)
{
    enum { JOBS = 1500, DONE = 500, BROKEN = 300, BACK = 200, LATE = 400 };
    lh_store_info info;

    small_disk("32m");
    freeze_now();
    lh_store *store = disk_store();
    add_many(store, JOBS);
    fill_up("d/filler");
    expect_refused(store);
    for (int i = 0; i < DONE; i++)
        complete_one(store, take_one(store));
    for (int i = 0; i < BROKEN; i++)
        fail_one(store, take_one(store));
    for (int i = 0; i < BACK; i++)
        release_one(store, take_one(store));
    recover_many(store, LATE);
    prune_all(store, DONE + BROKEN);
    expect_refused(store);
    EXPECT(reserve() < RESERVE);
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_CONTAINS(info.degraded, "device is full");

    EXPECT_EQ(unlink("d/filler"), 0);
    add_many(store, 1);
    EXPECT(reserve() >= RESERVE);
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_STR(info.degraded, "");
    EXPECT_EQ(counts_of(store, "mail").pending, JOBS - DONE - BROKEN + 1);
    store_check(store);
    lh_close(store);
}

/* A command opens the store, writes, and closes it, so the log starts empty each time. */
static void expect_command(const char *const words[], int code, const char *err)
{
    expect_program("d/store.db", words, code, "", err);
}

TEST_TIMEOUT(commands_go_on_on_a_full_disk, 60)
{
    enum { JOBS = 40 };
    lh_ref ref[JOBS];
    char id[JOBS][24], token[JOBS][24];

    small_disk("32m");
    lh_store *store = disk_store();
    add_many(store, 2 * JOBS);
    for (int i = 0; i < JOBS; i++) {
        ref[i] = take_one(store);
        (void)snprintf(id[i], sizeof id[i], "%lld", (long long)ref[i].job);
        (void)snprintf(token[i], sizeof token[i], "%lld", (long long)ref[i].token);
    }
    lh_close(store);
    fill_up("d/filler");
    for (int i = 0; i < JOBS; i += 4) {
        expect_command((const char *[]){"enqueue", "mail", "x", NULL}, 1, "no space left");
        expect_command((const char *[]){"heartbeat", id[i], "--token", token[i], NULL}, 0, "");
        expect_command((const char *[]){"complete", id[i], "--token", token[i], NULL}, 0, "");
        expect_command(
            (const char *[]){"fail", id[i + 1], "--token", token[i + 1], "--error", "no", NULL}, 0,
            "");
        expect_command((const char *[]){"release", id[i + 2], "--token", token[i + 2], NULL}, 0,
                       "");
        expect_command((const char *[]){"claim", "mail", "--worker", "w2", NULL}, 0, "");
        expect_command((const char *[]){"prune", "--older-than", "1h", NULL}, 0, "");
        expect_command((const char *[]){"status", NULL}, 0, "");
    }
    EXPECT_EQ(unlink("d/filler"), 0);
    expect_command((const char *[]){"enqueue", "mail", "x", NULL}, 0, "");
    EXPECT(reserve() >= RESERVE);
    expect_command((const char *[]){"check", NULL}, 0, "");
    store = disk_store();
    EXPECT_EQ(counts_of(store, "mail").completed, JOBS / 4);
    lh_close(store);
}

/* ---- output ---- */

enum { WROTE = 200000 };

static int end_with_output(lh_store *store, lh_ref ref, size_t result)
{
    static char text[WROTE];
    lh_output output = {
        .err = {.head = text, .head_len = 16384, .tail = text, .tail_len = 49152, .bytes = WROTE}};

    memset(text, 'o', sizeof text);
    good(store, lh_heartbeat(store, &(lh_beat){.job = ref.job, .token = ref.token}, 1, NULL, NULL));
    return lh_complete(store,
                       &(lh_done){.job = ref.job,
                                  .token = ref.token,
                                  .result = text,
                                  .result_len = result,
                                  .result_bytes = result > 0 ? WROTE : 0,
                                  .output = &output},
                       1, NULL, NULL);
}

static lh_outputs *outputs_of(lh_store *store, int64_t job)
{
    lh_outputs *out = NULL;
    good(store, lh_output_list(store, &(lh_output_filter){.job = job}, &out));
    EXPECT_EQ(out->n, 1);
    return out;
}

static void expect_kept(lh_store *store, int64_t job, size_t len)
{
    lh_outputs *out = outputs_of(store, job);

    EXPECT_EQ(out->output[0].err.head_len + out->output[0].err.tail_len, len);
    EXPECT_EQ(out->output[0].err.bytes, WROTE); /* the store knows that output is missing */
    lh_outputs_free(out);
}

/* The reserve is for acts that end jobs. The output of 64 runs would use all of it. */
TEST_TIMEOUT(on_a_full_disk_runs_end_without_their_output, 60)
{
    enum { JOBS = 300 };
    lh_ref ref = {0};

    small_disk("40m");
    freeze_now();
    lh_store *store = disk_store();
    add_many(store, JOBS + 2);
    good(store, end_with_output(store, ref = take_one(store), 0));
    expect_kept(store, ref.job, 65536);
    fill_up("d/filler");
    for (int i = 0; i < JOBS; i++)
        good(store, end_with_output(store, ref = take_one(store), 0));
    expect_kept(store, ref.job, 0);
    EXPECT_EQ(counts_of(store, "mail").completed, JOBS + 1);
    store_check(store);
    EXPECT_EQ(unlink("d/filler"), 0);
    good(store, end_with_output(store, ref = take_one(store), 0));
    expect_kept(store, ref.job, 65536);
    lh_close(store);
}

/* Output that was stored while there was room stays, unless its row must say that the result was
 * cut. */
TEST(on_a_full_disk_output_that_was_kept_before_stays)
{
    lh_output begun = {.err = {.head = "begun", .head_len = 5}};

    small_disk("40m");
    lh_store *store = disk_store();
    add_many(store, 2);
    lh_ref first = take_one(store), second = take_one(store);
    for (int i = 0; i < 2; i++) {
        begun.job = i == 0 ? first.job : second.job;
        begun.token = i == 0 ? first.token : second.token;
        good(store, lh_output_put(store, &begun, 1, NULL));
    }
    fill_up("d/filler");
    good(store, end_with_output(store, first, 0));
    good(store, end_with_output(store, second, 100));
    lh_outputs *out = outputs_of(store, first.job);
    EXPECT_EQ(out->output[0].err.head_len, 5);
    lh_outputs_free(out);
    out = outputs_of(store, second.job);
    EXPECT_EQ(out->output[0].result_bytes, WROTE);
    lh_outputs_free(out);
    lh_close(store);
}

/* Results must be stored. The reserve gives the room that they need, not a fixed number of pages
 * each. */
TEST(on_a_full_disk_large_results_are_kept)
{
    enum { JOBS = 2, LEN = 1 << 20 };
    char *result = calloc(1, LEN);
    lh_done done[JOBS];

    small_disk("40m");
    lh_store *store = disk_store();
    add_many(store, JOBS);
    for (int i = 0; i < JOBS; i++) {
        lh_ref ref = take_one(store);
        done[i] = (lh_done){ref.job, ref.token, .result = result, .result_len = LEN};
    }
    fill_up("d/filler");
    good(store, lh_complete(store, done, JOBS, NULL, NULL));
    EXPECT_EQ(counts_of(store, "mail").completed, JOBS);
    lh_close(store);
    free(result);
}

/* ---- a store that fills its own disk ---- */

TEST_TIMEOUT(a_disk_that_jobs_have_filled_takes_new_ones_when_old_ones_are_pruned, 60)
{
    enum { LEN = 8000 };
    static char payload[LEN];
    int64_t jobs = 0, more = 0;
    int rc;

    memset(payload, 'p', sizeof payload);
    small_disk("24m");
    freeze_now();
    lh_store *store = disk_store();
    while ((rc = try_add(store, payload, LEN)) == LH_OK)
        jobs++;
    EXPECT_STATUS(rc, LH_ENOSPC);
    EXPECT(jobs > 500);
    EXPECT_EQ(counts_of(store, "mail").pending, jobs);
    for (int64_t i = 0; i < jobs; i++)
        complete_one(store, take_one(store));
    prune_all(store, jobs);
    while (try_add(store, payload, LEN) == LH_OK)
        more++;
    EXPECT(more > jobs / 2);
    EXPECT_EQ(counts_of(store, "mail").pending, more);
    store_check(store);
    lh_close(store);
    store = disk_store();
    EXPECT_EQ(counts_of(store, "mail").pending, more);
    store_check(store);
    lh_close(store);
}

TEST(a_job_for_which_there_is_no_room_is_refused_as_a_whole)
{
    static char payload[1 << 20];

    memset(payload, 'p', sizeof payload);
    small_disk("12m");
    lh_store *store = disk_store();
    int rc, jobs = 0;
    while ((rc = try_add(store, payload, sizeof payload)) == LH_OK)
        jobs++;
    EXPECT_STATUS(rc, LH_ENOSPC);
    EXPECT(jobs > 0);
    add_many(store, 5); /* a small job still fits */
    EXPECT_EQ(counts_of(store, "mail").pending, jobs + 5);
    store_check(store);
    lh_close(store);
}

/* ---- other calls in the transaction ---- */

struct caller {
    lh_store *store;
    lh_ref ref;
    int rc;
    pthread_t thread;
};

static void *bring_too_much(void *arg)
{
    enum { JOBS = 40, LEN = 1 << 20 };
    struct caller *caller = arg;
    lh_new_job jobs[JOBS];
    lh_enqueued out[JOBS];
    char *payload = calloc(1, LEN);

    for (int i = 0; i < JOBS; i++)
        jobs[i] = (lh_new_job){.payload = payload, .payload_len = LEN};
    caller->rc = lh_enqueue(caller->store, "mail", jobs, JOBS, NULL, out);
    free(payload);
    return NULL;
}

static void *complete_mine(void *arg)
{
    struct caller *caller = arg;
    caller->rc =
        lh_complete(caller->store, &(lh_done){.job = caller->ref.job, .token = caller->ref.token},
                    1, NULL, NULL);
    return NULL;
}

/* At least n calls (1 or 2) are in the queue of the group commit. */
static bool queued(lh_store *store, int n)
{
    struct db *db = store->store.self;

    pthread_mutex_lock(&db->mutex);
    bool yes = db->leading && db->queue_head != NULL && (n < 2 || db->queue_head != db->queue_tail);
    pthread_mutex_unlock(&db->mutex);
    return yes;
}

TEST(call_that_is_too_large_is_refused_without_its_neighbours)
{
    struct lhi_error err;
    struct lhi_log log = {0};
    struct coord turn;
    struct caller leader, big, small;

    small_disk("32m");
    lh_store *store = disk_store();
    add_many(store, 2);
    leader = big = small = (struct caller){.store = store};
    leader.ref = take_one(store);
    small.ref = take_one(store);
    /* While this test holds the writer lock, one thread leads and waits, and the others queue
     * behind it. */
    EXPECT_OK(sq_coord_open(&turn, "d/store.db", false, &log, &err));
    EXPECT_OK(sq_writer_lock(&turn, 1000, "test", &err));
    EXPECT_EQ(pthread_create(&leader.thread, NULL, complete_mine, &leader), 0);
    while (!((struct db *)store->store.self)->leading)
        (void)sched_yield();
    EXPECT_EQ(pthread_create(&big.thread, NULL, bring_too_much, &big), 0);
    while (!queued(store, 1))
        (void)sched_yield();
    EXPECT_EQ(pthread_create(&small.thread, NULL, complete_mine, &small), 0);
    while (!queued(store, 2))
        (void)sched_yield();
    sq_writer_unlock(&turn);
    sq_coord_close(&turn);
    pthread_join(leader.thread, NULL);
    pthread_join(big.thread, NULL);
    pthread_join(small.thread, NULL);
    EXPECT_STATUS(leader.rc, LH_OK);
    EXPECT_STATUS(big.rc, LH_ENOSPC);
    EXPECT_STATUS(small.rc, LH_OK);
    EXPECT_EQ(counts_of(store, "mail").completed, 2);
    EXPECT_EQ(counts_of(store, "mail").pending, 0);
    store_check(store);
    lh_close(store);
}

/* ---- killed processes ---- */

struct tally_sheet {
    int64_t done; /* acknowledged completes */
    int64_t job[4000];
};

/* Complete one job after the other until this process is killed. */
static void work_to_death(struct tally_sheet *sheet, const char *point, int64_t skip)
{
    pid_t child = test_fork();

    if (child == 0) {
        (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "%s", point);
        lhi_control()->kill_skip = skip;
        lh_store *store = disk_store();
        for (;;) {
            lh_ref ref = take_one(store);
            complete_one(store, ref);
            sheet->job[sheet->done++] = ref.job;
        }
    }
    struct run r = test_wait(child);
    if (r.sig != SIGKILL)
        FAIL("it ended by itself before it was killed at %s, with exit code %d", point, r.code);
}

TEST_TIMEOUT(death_on_a_full_disk_loses_nothing, 60)
{
    static const struct {
        const char *point;
        int64_t skip;
    } deaths[] = {
        {"reserve:spent", 0},      {"txn:after_commit", 150}, {"txn:before_commit", 100},
        {"txn:before_commit", 1},  {"txn:before_sync", 30},   {"checkpoint:after", 0},
        {"txn:after_commit", 333},
    };
    enum { JOBS = 1200 };
    struct tally_sheet *sheet =
        mmap(NULL, sizeof *sheet, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    EXPECT(sheet != MAP_FAILED);
    small_disk("32m");
    lh_store *store = disk_store();
    add_many(store, JOBS);
    lh_close(store);
    fill_up("d/filler");
    for (size_t i = 0; i < sizeof deaths / sizeof deaths[0]; i++)
        work_to_death(sheet, deaths[i].point, deaths[i].skip);
    store = disk_store();
    EXPECT(sheet->done > 200);
    for (int64_t i = 0; i < sheet->done; i++)
        EXPECT_EQ(state_of(store, sheet->job[i]), LH_COMPLETED);
    lh_queue counts = counts_of(store, "mail");
    EXPECT_EQ(counts.pending + counts.running + counts.completed, JOBS);
    expect_refused(store);
    store_check(store);
    EXPECT_EQ(unlink("d/filler"), 0);
    add_many(store, 1);
    store_check(store);
    lh_close(store);
}

TEST(unsynced_changes_lost_on_a_full_disk_are_no_loss)
{
    lh_open_opts relaxed = {.durability = LH_DURABLE_RELAXED};
    size_t len;

    small_disk("32m");
    lh_store *store = disk_store();
    add_many(store, 1);
    lh_close(store);
    pid_t child = test_fork();
    if (child == 0) {
        add_many(store_open("d/store.db", relaxed), 5);
        (void)raise(SIGKILL);
    }
    EXPECT_EQ(test_wait(child).sig, SIGKILL);
    /* A power loss takes the last commit, which was not acknowledged as durable. */
    unsigned char *bytes = file_bytes("d/store.db-wal", &len);
    file_write("d/store.db-wal", bytes, len - 1);
    free(bytes);
    fill_up("d/filler");
    store = store_open("d/store.db", relaxed);
    EXPECT_EQ(counts_of(store, "mail").pending, 5);
    store_check(store);
    lh_close(store);
}

/* ---- file systems with fewer features ---- */

TEST(without_a_reserve_new_jobs_still_leave_room_for_the_others)
{
    enum { LEN = 8000 };
    static char payload[LEN];

    memset(payload, 'p', sizeof payload);
    small_disk("12m");
    without_set_aside();
    lh_store *store = disk_store();
    EXPECT_EQ(reserve(), 0);
    while (try_add(store, payload, LEN) == LH_OK)
        continue;
    EXPECT_STATUS(try_add(store, payload, LEN), LH_ENOSPC);
    for (int i = 0; i < 40; i++) /* each act leaves an event, and the database grows */
        fail_one(store, take_one(store));
    store_check(store);
    lh_close(store);
}

TEST(log_that_cannot_grow_restarts_in_its_own_blocks)
{
    small_disk("32m");
    without_set_aside();
    lh_store *store = disk_store();
    add_many(store, 1);
    lh_close(store);
    store = disk_store();
    lh_ref ref = take_one(store);
    for (int i = 0; i < 100; i++)
        good(store,
             lh_heartbeat(store, &(lh_beat){.job = ref.job, .token = ref.token}, 1, NULL, NULL));
    fill_up("d/filler");
    int64_t size = file_size("d/store.db-wal");
    for (int i = 0; i < 1000; i++)
        good(store,
             lh_heartbeat(store, &(lh_beat){.job = ref.job, .token = ref.token}, 1, NULL, NULL));
    EXPECT(file_size("d/store.db-wal") < size + 65536);
    complete_one(store, ref);
    lh_close(store);
}

/* ---- closing and reading ---- */

TEST(close_on_a_full_disk_checkpoints_the_log)
{
    small_disk("32m");
    lh_store *store = disk_store();
    lh_new_job jobs[300];
    lh_enqueued out[300];
    for (int i = 0; i < 300; i++)
        jobs[i] = (lh_new_job){.payload = "x", .payload_len = 1};
    int64_t size = file_size("d/store.db");
    /* They are only in the log: the database file must still grow for them. */
    good(store, lh_enqueue(store, "mail", jobs, 300, NULL, out));
    EXPECT_EQ(file_size("d/store.db"), size);
    fill_up("d/filler");
    lh_close(store);
    EXPECT_EQ(file_size("d/store.db-wal"), 0);
    store = disk_store();
    EXPECT_EQ(counts_of(store, "mail").pending, 300);
    store_check(store);
    lh_close(store);
}

TEST(a_full_disk_can_be_read_though_the_index_of_the_log_is_gone)
{
    lh_store_info info;

    small_disk("32m");
    pid_t child = test_fork();
    if (child == 0) {
        lh_store *store = disk_store();
        add_many(store, 10);
        (void)raise(SIGKILL);
    }
    EXPECT_EQ(test_wait(child).sig, SIGKILL);
    EXPECT_EQ(unlink("d/store.db-shm"), 0);
    fill_up("d/filler");
    lh_store *store = store_open("d/store.db", (lh_open_opts){.read_only = true});
    EXPECT_EQ(counts_of(store, "mail").pending, 10);
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_CONTAINS(info.degraded, "device is full: reading a copy");
    lh_close(store);
}

TEST(a_full_disk_can_be_written_though_the_index_of_the_log_is_gone)
{
    small_disk("32m");
    lh_store *store = disk_store();
    add_many(store, 10);
    lh_close(store);
    EXPECT_EQ(unlink("d/store.db-shm"), 0);
    fill_up("d/filler");
    store = disk_store();
    complete_one(store, take_one(store));
    expect_refused(store);
    store_check(store);
    lh_close(store);
}
