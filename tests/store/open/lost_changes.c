/* Lost changes: a store that is older than its high-water mark, files that disappear, corrupt
 * payloads. */
#include "store/sqlite.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define EPOCH (INT64_C(1) << 40)

/* ---- older than its high-water mark ---- */

TEST(old_copy_in_place_of_the_store_is_refused)
{
    lh_store *store = store_new();
    add(store, "mail", "in the copy");
    lh_close(store);
    copy_file("store.db", "backup.db");
    store = store_new();
    for (int i = 0; i < 5; i++)
        add(store, "mail", "after the copy");
    lh_close(store);
    copy_file("backup.db", "store.db");
    expect_open("store.db", (lh_open_opts){.create = true}, LH_EOLDER, "older than it was");
    expect_open("store.db", (lh_open_opts){0}, LH_EOLDER, "5 acknowledged changes");
    store = store_open("store.db", (lh_open_opts){.read_only = true}); /* it can be read */
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    lh_close(store);
    expect_open("store.db", (lh_open_opts){0}, LH_EOLDER, "accept-loss");
}

TEST(accepted_loss_raises_the_epoch)
{
    lh_store_info info;
    lh_store *store = store_new();
    int64_t id = add(store, "mail", "x");
    lh_close(store);
    copy_file("store.db", "backup.db");
    store = store_new();
    lh_jobs *before = take(store, "mail", "w1", 0);
    add(store, "mail", "lost");
    lh_close(store);
    copy_file("backup.db", "store.db");
    store = store_open("store.db", (lh_open_opts){.accept_loss = true});
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_EQ(info.epoch, 1);
    lh_jobs *after = take(store, "mail", "w2", 0);
    EXPECT_EQ(after->job[0].id, id);
    EXPECT(after->job[0].token > EPOCH); /* the token of the lost claim is not issued again */
    EXPECT_STATUS(
        lh_complete(store, &(lh_done){.job = id, .token = before->job[0].token}, 1, NULL, NULL),
        LH_ELOST);
    store_check(store);
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0}); /* one acceptance is enough */
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_EQ(info.epoch, 1);
    lh_close(store);
    lh_jobs_free(before);
    lh_jobs_free(after);
}

TEST(accept_loss_without_a_loss_changes_nothing)
{
    lh_store_info info;
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){.accept_loss = true});
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_EQ(info.epoch, 0);
    lh_close(store);
}

static void crash_with(int jobs)
{
    pid_t child = test_fork();
    if (child == 0) {
        lh_store *store = store_new();
        for (int i = 0; i < jobs; i++)
            add(store, "mail", "x");
        test_child_done(); /* the store is not closed, so everything is in the log */
    }
    EXPECT_EQ(test_wait(child).code, 0);
}

TEST(a_log_that_was_lost_after_a_crash_is_noticed)
{
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_close(store);
    crash_with(3);
    EXPECT_EQ(unlink("store.db-wal"), 0);
    EXPECT_EQ(unlink("store.db-shm"), 0);
    expect_open("store.db", (lh_open_opts){.create = true}, LH_EOLDER, "-wal");
}

TEST(log_that_another_program_checkpointed_after_a_crash_is_no_loss)
{
    crash_with(3);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "mail").pending, 3);
    lh_close(store);
}

TEST(other_store_in_the_same_place_starts_its_own_marks)
{
    lh_store *store = store_new();
    for (int i = 0; i < 5; i++)
        add(store, "mail", "x");
    lh_close(store);
    store = store_open("other.db", (lh_open_opts){.create = true});
    add(store, "mail", "y");
    lh_close(store);
    EXPECT_EQ(rename("other.db", "store.db"), 0);
    /* the marks of the replaced store do not apply */
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    add(store, "mail", "z");
    store_check(store);
    lh_close(store);
}

/* ---- files that disappear ---- */

TEST(store_without_its_coordination_file_opens_and_creates_it)
{
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_close(store);
    EXPECT_EQ(unlink("store.db-lease"), 0);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT(file_exists("store.db-lease"));
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    add(store, "mail", "y");
    store_check(store);
    lh_close(store);
}

TEST(emptied_coordination_file_is_created_again)
{
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_close(store);
    file_write("store.db-lease", "", 0);
    store = store_open("store.db", (lh_open_opts){0});
    add(store, "mail", "y");
    EXPECT_EQ(counts_of(store, "mail").pending, 2);
    store_check(store);
    lh_close(store);
}

TEST(foreign_file_is_not_used_as_coordination_file)
{
    size_t len;
    lh_store *store = store_new();
    lh_close(store);
    file_write("store.db-lease", "a letter", 8);
    expect_open("store.db", (lh_open_opts){0}, LH_EINVAL, "store.db-lease");
    unsigned char *bytes = file_bytes("store.db-lease", &len);
    EXPECT_MEM(bytes, len, "a letter", 8);
    free(bytes);
}

TEST(removing_the_coordination_file_stops_an_open_handle)
{
    lh_store *store = store_new();
    lh_enqueued out;
    add(store, "mail", "x");
    EXPECT_EQ(unlink("store.db-lease"), 0);
    EXPECT_STATUS(lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_ESTOPPED);
    EXPECT_CONTAINS(lh_errmsg(store), "store.db-lease");
    /* A new file does not change that, because its lock is another one. */
    lh_store *other = store_new();
    add(other, "mail", "y");
    EXPECT_STATUS(lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_ESTOPPED);
    lh_close(store);
    EXPECT_EQ(counts_of(other, "mail").pending, 2);
    store_check(other);
    lh_close(other);
}

TEST(removed_database_acknowledges_nothing_more)
{
    lh_store *store = store_new();
    lh_enqueued out;
    add(store, "mail", "x");
    EXPECT_EQ(unlink("store.db"), 0);
    EXPECT_STATUS(lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_ESTOPPED);
    EXPECT_CONTAINS(lh_errmsg(store), "removed or replaced");
    EXPECT_STATUS(lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_ESTOPPED);
    EXPECT_STATUS(lh_queue_pause(store, "mail"), LH_ESTOPPED);
    lh_close(store);
    EXPECT(!file_exists("store.db"));
}

TEST(replaced_database_acknowledges_nothing_more)
{
    lh_store *store = store_new();
    lh_enqueued out;
    add(store, "mail", "x");
    lh_store *other = store_open("other.db", (lh_open_opts){.create = true});
    lh_close(other);
    EXPECT_EQ(rename("other.db", "store.db"), 0);
    EXPECT_STATUS(lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_ESTOPPED);
    EXPECT_STATUS(lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_ESTOPPED);
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "mail").pending, 0); /* the other store is unchanged */
    store_check(store);
    lh_close(store);
}

TEST(act_refused_while_the_database_was_away_was_not_done)
{
    lh_store *store = store_new();
    lh_enqueued out;
    add(store, "mail", "x");
    EXPECT_EQ(rename("store.db", "away.db"), 0);
    EXPECT_STATUS(lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_ESTOPPED);
    lh_close(store);
    EXPECT_EQ(rename("away.db", "store.db"), 0);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    store_check(store);
    lh_close(store);
}

/* ---- corrupt payloads and damaged files ---- */

/* Flip one bit at the first `marker` in the file. */
static void rot(const char *path, const char *marker)
{
    size_t len, n = strlen(marker);
    unsigned char *bytes = file_bytes(path, &len);
    size_t at = 0;
    while (at + n <= len && memcmp(bytes + at, marker, n) != 0)
        at++;
    EXPECT(at + n <= len);
    bytes[at + n / 2] ^= 4;
    file_write(path, bytes, len);
    free(bytes);
}

TEST(corrupt_payload_fails_its_job_and_is_never_claimed)
{
    lh_store *store = store_new();
    lh_jobs *jobs = NULL;
    lh_findings *findings = NULL;
    int64_t id = add(store, "mail", "send-this-letter-to-alice");
    lh_close(store);
    rot("store.db", "send-this-letter-to-alice");
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_OK(lh_check(store, NULL, &findings));
    EXPECT_EQ(findings->errors, 1);
    lh_findings_free(findings);
    EXPECT(take(store, "mail", "w1", 0) == NULL);
    EXPECT_OK(lh_job_get(store, id, &jobs));
    EXPECT_EQ(jobs->job[0].state, LH_FAILED);
    EXPECT_CONTAINS(jobs->job[0].last_error, "checksum");
    EXPECT_EQ(jobs->job[0].attempt, 0);
    lh_jobs_free(jobs);
    lh_events *events = NULL;
    EXPECT_OK(lh_event_list(store, &(lh_event_filter){.job = id}, &events));
    EXPECT_EQ(events->n, 1);
    EXPECT_STR(events->event[0].type, "job.failed");
    EXPECT_CONTAINS(events->event[0].reason, "checksum");
    lh_events_free(events);
    EXPECT_EQ(counts_of(store, "mail").failed, 1);
    EXPECT_EQ(counts_of(store, "mail").pending, 0);
    lh_close(store);
}

TEST(corrupt_payload_does_not_hide_the_next_job)
{
    lh_store *store = store_new();
    add(store, "mail", "this-one-will-rot-on-the-disk");
    int64_t sound = add(store, "mail", "this-one-stays");
    lh_close(store);
    rot("store.db", "this-one-will-rot-on-the-disk");
    store = store_open("store.db", (lh_open_opts){0});
    lh_jobs *jobs = take(store, "mail", "w1", 0);
    EXPECT(jobs != NULL);
    EXPECT_EQ(jobs->n, 1);
    EXPECT_EQ(jobs->job[0].id, sound);
    lh_jobs_free(jobs);
    lh_close(store);
}

TEST(corrupt_payload_takes_no_exclusive_lease)
{
    lh_store *store = store_new();
    lh_leases *leases = NULL;
    EXPECT_OK(lh_policy_set(store, "mail", NULL,
                            &(lh_policy){.set = LH_POLICY_EXCLUSIVE, .exclusive = true}, 0));
    add(store, "mail", "this-one-will-rot-on-the-disk");
    lh_close(store);
    rot("store.db", "this-one-will-rot-on-the-disk");
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT(take(store, "mail", "w1", 0) == NULL);
    EXPECT_STATUS(lh_lease_get(store, "processing", "mail", &leases), LH_ENOTFOUND);
    add(store, "mail", "sound");
    lh_jobs *jobs = take(store, "mail", "w1", 0);
    EXPECT(jobs != NULL);
    lh_jobs_free(jobs);
    lh_close(store);
}

TEST(damaged_file_is_reported_and_not_written)
{
    lh_store *store = store_new();
    for (int i = 0; i < 200; i++)
        add(store, "mail", "a payload of some length, so that the table has several pages");
    lh_close(store);
    size_t len;
    unsigned char *bytes = file_bytes("store.db", &len);
    for (size_t page = 1; page < len / 4096; page++) /* every page except the first */
        memset(bytes + page * 4096, 0x5a, 4096);
    file_write("store.db", bytes, len);
    free(bytes);
    store = NULL;
    int rc = lh_open("store.db", &(lh_open_opts){0}, &store);
    if (rc == LH_OK) {
        lh_enqueued out;
        rc = lh_enqueue(store, "mail", &(lh_new_job){0}, 1, NULL, &out);
    }
    EXPECT_STATUS(rc, LH_ECORRUPT);
    lh_close(store);
}
