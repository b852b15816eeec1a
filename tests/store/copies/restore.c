/* Restores: nothing is issued twice, the replaced store is kept, processes that have it open are
 * stopped, and an unusable copy changes nothing. */
#include "store/copies.h"
#include "store/mounts.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the new store and the old one ---- */

TEST(restored_store_is_the_copy_and_the_old_store_is_kept)
{
    lh_store *store = store_new();
    add(store, "q", "one");
    backup(store, "copy.db", (lh_backup_opts){0});
    add(store, "q", "two");
    add(store, "q", "three");
    lh_close(store);
    restore("copy.db");
    EXPECT_CONTAINS(kept, "store.db.replaced-");
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "q").pending, 1);
    store_check(store);
    lh_close(store);
    store = store_open(kept, (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "q").pending, 3);
    store_check(store);
    lh_close(store);
    EXPECT_EQ(files_with(".", "store.db.repair-"), 0);
    EXPECT_EQ(files_with(".", "copy.db"), 1);
}

TEST(log_of_the_replaced_store_is_kept_with_it)
{
    lh_store *store = store_new();
    backup(store, "copy.db", (lh_backup_opts){0});
    add(store, "q", "only in the log so far");
    /* the log is not checkpointed, because another process has the store open */
    restore("copy.db");
    lh_close(store);
    store = store_open(kept, (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "q").pending, 1);
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "q").pending, 0);
    lh_close(store);
}

TEST(restore_creates_a_missing_store)
{
    lh_store *store = store_new();
    add(store, "q", "one");
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_close(store);
    EXPECT_EQ(rename("store.db", "gone"), 0);
    EXPECT_EQ(unlink("store.db-lease"), 0);
    (void)unlink("store.db-wal");
    restore("copy.db");
    EXPECT_STR(kept, "");
    EXPECT_EQ(files_with(".", ".replaced-"), 0);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "q").pending, 1);
    add(store, "q", "two");
    store_check(store);
    lh_close(store);
}

static void no_warning(void *arg, const lh_log_entry *entry)
{
    (void)arg;
    if (entry->level <= LH_LOG_WARN)
        FAIL("a warning: %s", entry->line);
}

TEST(unclean_stop_of_the_replaced_store_is_forgotten)
{
    lh_store *store = store_new();
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_close(store);
    pid_t child = test_fork();
    if (child == 0) {
        (void)add(store_open("store.db", (lh_open_opts){0}), "q", "x");
        (void)kill(getpid(), SIGKILL);
    }
    EXPECT_EQ(test_wait(child).sig, SIGKILL);
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){.log = no_warning});
    add(store, "q", "y");
    lh_close(store);
}

TEST(a_copy_of_another_store_becomes_the_store)
{
    lh_store *store = store_new(), *other = NULL;
    add(store, "q", "of this one");
    lh_close(store);
    other = store_open("other.db", (lh_open_opts){.create = true});
    add(other, "q", "a");
    add(other, "q", "b");
    backup(other, "copy.db", (lh_backup_opts){0});
    lh_store_info theirs = info_of(other);
    lh_close(other);
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){0});
    lh_store_info ours = info_of(store);
    EXPECT_STR(ours.uuid, theirs.uuid);
    EXPECT_EQ(counts_of(store, "q").pending, 2);
    add(store, "q", "c");
    store_check(store);
    lh_close(store);
}

TEST(a_damaged_store_is_replaced_and_kept)
{
    lh_store *store = store_new();
    add(store, "q", "one");
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_close(store);
    file_write("store.db", "nothing of it is left", 21);
    restore("copy.db");
    EXPECT_EQ(file_size(kept), 21);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "q").pending, 1);
    store_check(store);
    lh_close(store);
}

TEST(readable_values_of_a_damaged_replaced_store_are_used)
{
    freeze_now();
    lh_store *store = store_new();
    add(store, "q", "one");
    add(store, "q", "two");
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_job held = claim(store, "q", "w", 60000);
    lh_close(store);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)");
    int64_t page = db_int(db, "SELECT rootpage FROM sqlite_schema WHERE name = 'lh_policy'");
    sqlite3_close(db);
    size_t len;
    unsigned char *bytes = file_bytes("store.db", &len);
    memset(bytes + (page - 1) * 4096, 0xff, 4096);
    file_write("store.db", bytes, len);
    free(bytes);
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(claim(store, "q", "w2", 60000).id, 2);
    EXPECT(job_of(store, held.id).token > held.token);
    expect_nothing(store, "q");
    store_check(store);
    lh_close(store);
}

TEST(copy_with_a_log_is_restored_with_its_log)
{
    lh_store *store = store_new();
    size_t len, wal_len, after;
    add(store, "q", "one");
    copy_file("store.db", "copy.db");
    copy_file("store.db-wal", "copy.db-wal");
    lh_close(store);
    unsigned char *bytes = file_bytes("copy.db", &len), *wal = file_bytes("copy.db-wal", &wal_len);
    EXPECT(wal_len > 0);
    restore("copy.db");
    unsigned char *again = file_bytes("copy.db", &after);
    EXPECT_MEM(again, after, bytes, len);
    free(again);
    again = file_bytes("copy.db-wal", &after);
    EXPECT_MEM(again, after, wal, wal_len);
    free(again);
    free(bytes);
    free(wal);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "q").pending, 1);
    lh_close(store);
}

TEST(a_plain_file_copy_of_a_closed_store_is_restored_and_gets_no_files_beside_it)
{
    lh_store *store = store_new();
    add(store, "q", "one");
    lh_close(store);
    copy_file("store.db", "copy.db");
    restore("copy.db");
    EXPECT_EQ(files_with(".", "copy.db"), 1);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "q").pending, 1);
    lh_close(store);
}

TEST(a_copy_on_a_read_only_file_system_is_restored)
{
    own_disk("disk");
    lh_store *store = store_new();
    add(store, "q", "one");
    lh_close(store);
    copy_file("store.db", "disk/plain.db"); /* in WAL mode, unlike the copies that backup makes */
    mount_read_only("disk", true);
    restore("disk/plain.db");
    EXPECT_EQ(jobs_in("store.db"), 1);
}

/* ---- nothing is issued twice ---- */

TEST(epoch_and_changes_rise_above_both_stores)
{
    lh_store *store = store_new();
    add(store, "q", "one");
    backup(store, "copy.db", (lh_backup_opts){0});
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 5; k++)
            add(store, "q", "more");
        lh_store_info before = info_of(store);
        lh_close(store);
        restore("copy.db");
        store = store_open("store.db", (lh_open_opts){0});
        lh_store_info after = info_of(store);
        EXPECT_EQ(after.epoch, before.epoch + 1);
        EXPECT(after.changes > before.changes);
        EXPECT_STR(after.degraded, "");
    }
    lh_close(store);
}

TEST(unreadable_epoch_is_exceeded_by_a_margin)
{
    lh_store *store = store_new();
    backup(store, "copy.db", (lh_backup_opts){0});
    int64_t epoch = info_of(store).epoch;
    lh_close(store);
    for (int boot = 0; boot < 3; boot++) { /* each boot raises the epoch */
        boot_again(boot == 0 ? "boot-a" : boot == 1 ? "boot-b" : "boot-c");
        store = store_new();
        EXPECT(info_of(store).epoch > epoch);
        epoch = info_of(store).epoch;
        lh_close(store);
    }
    file_write("store.db", "nothing of it is left", 21);
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT(info_of(store).epoch > epoch);
    lh_close(store);
}

TEST(tokens_of_jobs_and_named_leases_keep_rising)
{
    freeze_now();
    lh_store *store = store_new();
    int64_t last = 0, last_lease = 0;
    lh_lease_opts opts = {.owner = "me", .ttl_ms = 1000};
    add(store, "q", "one");
    backup(store, "copy.db", (lh_backup_opts){0});
    for (int i = 0; i < 3; i++) {
        lh_job job = claim(store, "q", "w", 1000);
        lh_leases *lease = NULL;
        EXPECT(job.token > last);
        last = job.token;
        EXPECT_OK(lh_lease_acquire(store, "sync", "chunk", &opts, &lease));
        EXPECT(lease->lease[0].token > last_lease);
        last_lease = lease->lease[0].token;
        lh_leases_free(lease);
        lh_close(store);
        pass_ms(2000);
        restore("copy.db");
        store = store_open("store.db", (lh_open_opts){0});
    }
    lh_close(store);
}

TEST(id_given_after_the_copy_is_not_given_again)
{
    lh_store *store = store_new();
    backup(store, "copy.db", (lh_backup_opts){0});
    add(store, "q", "one");
    int64_t last = add(store, "q", "two");
    lh_close(store);
    restore("copy.db");
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT(add(store, "q", "three") > last);
    store_check(store);
    lh_close(store);
}

/* ---- processes that have the old store open ---- */

TEST(process_with_the_old_store_open_is_stopped)
{
    lh_store *old = store_new(), *reader = NULL, *store = NULL;
    lh_enqueued out;
    lh_queues *queues = NULL;
    lh_new_job job = {.payload = "x", .payload_len = 1};
    add(old, "q", "one");
    reader = store_open("store.db", (lh_open_opts){.read_only = true});
    backup(old, "copy.db", (lh_backup_opts){0});
    restore("copy.db");
    EXPECT_STATUS(lh_enqueue(old, "q", &job, 1, NULL, &out), LH_ESTOPPED);
    EXPECT_STATUS(lh_queue_list(reader, &queues), LH_ESTOPPED);
    store = store_open("store.db", (lh_open_opts){0}); /* while they still have the old one open */
    add(store, "q", "two");
    lh_close(old);
    lh_close(reader);
    EXPECT_EQ(counts_of(store, "q").pending, 2);
    add(store, "q", "three");
    store_check(store);
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "q").pending, 3);
    lh_close(store);
}

static int wait_for_a_job(lh_store *store)
{
    const char *queue = "nothing";
    lh_jobs *jobs = NULL;

    return lh_claim(
        store, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w", .wait_ms = 60000},
        &jobs);
}

TEST(process_that_waits_in_the_old_store_is_stopped)
{
    int ready[2];
    char byte;
    lh_store *store = store_new();
    backup(store, "copy.db", (lh_backup_opts){0});
    EXPECT_EQ(pipe(ready), 0);
    pid_t child = test_fork_reopening(&store, store_new);
    if (child == 0) {
        lh_store *own = store_open("store.db", (lh_open_opts){0});
        EXPECT_EQ(write(ready[1], "x", 1), 1);
        EXPECT_STATUS(wait_for_a_job(own), LH_ESTOPPED);
        lh_close(own);
        test_child_done();
    }
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    restore("copy.db");
    EXPECT_EQ(test_wait(child).code, 0);
    lh_close(store);
}

/* ---- a refusal changes nothing ---- */

TEST(unusable_copy_is_refused_and_changes_nothing)
{
    lh_store *store = store_new();
    add(store, "q", "one");
    backup(store, "copy.db", (lh_backup_opts){0});
    lh_close(store);
    size_t len, before_len;
    unsigned char *before = file_bytes("store.db", &before_len);

    expect_no_restore("nowhere.db", LH_EINVAL, "there is no copy");
    EXPECT_EQ(mkdir("folder", 0700), 0);
    expect_no_restore("folder", LH_EINVAL, "is not a file");
    expect_no_restore("store.db", LH_EINVAL, "is the store itself");
    expect_no_restore("", LH_EINVAL, "empty");
    file_write("words", "only words, and not few of them, but no database at all", 55);
    expect_no_restore("words", LH_EINVAL, "is not a SQLite database");
    sqlite3 *db = db_open("app.db");
    db_exec(db, "CREATE TABLE mine(x)");
    sqlite3_close(db);
    expect_no_restore("app.db", LH_EINVAL, "no copy of a store");
    copy_file("copy.db", "newer.db");
    db = db_open("newer.db");
    db_exec(db, "UPDATE lh_meta SET value = 99 WHERE key = 'schema_version'");
    int64_t leaf = db_int(db, "SELECT rootpage FROM sqlite_schema WHERE name = 'lh_job_pending'");
    sqlite3_close(db);
    expect_no_restore("newer.db", LH_ENEWER, "schema version 99");
    unsigned char *bytes = file_bytes("copy.db", &len);
    memset(bytes + (leaf - 1) * 4096, 0, 4096);
    file_write("damaged.db", bytes, len);
    free(bytes);
    expect_no_restore("damaged.db", LH_ECORRUPT, "is damaged");

    unsigned char *after = file_bytes("store.db", &len);
    EXPECT_MEM(after, len, before, before_len);
    free(before);
    free(after);
    EXPECT_EQ(files_with(".", "store.db."), 0);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(counts_of(store, "q").pending, 1);
    EXPECT_EQ(info_of(store).epoch, 0);
    lh_close(store);
}

TEST(a_restore_that_finds_no_room_changes_nothing)
{
    static char payload[1 << 20];
    lh_new_job job = {.payload = payload, .payload_len = sizeof payload};
    lh_enqueued out;
    char why[512] = "";
    own_disk("disk");
    memset(payload, 'x', sizeof payload);
    lh_store *store = store_open("disk/store.db", (lh_open_opts){.create = true});
    for (int i = 0; i < 6; i++)
        EXPECT_OK(lh_enqueue(store, "q", &job, 1, NULL, &out));
    backup(store, "copy.db", (lh_backup_opts){0});
    add(store, "q", "after the copy");
    own_disk_fill("disk/filler", 3 << 20);
    EXPECT_STATUS(lh_restore("disk/store.db", "copy.db", NULL, NULL, 0, why, sizeof why),
                  LH_ENOSPC);
    EXPECT_CONTAINS(why, "copy.db");
    EXPECT_EQ(files_with("disk", ".repair-"), 0);
    EXPECT_EQ(files_with("disk", ".replaced-"), 0);
    EXPECT_EQ(unlink("disk/filler"), 0);
    add(store, "q", "still the store");
    store_check(store);
    lh_close(store);
    EXPECT_EQ(jobs_in("disk/store.db"), 8);
}

TEST(restore_without_memory_fails_with_a_message_and_changes_nothing)
{
    lh_store *store = store_new();
    struct lhi_control *control = lhi_control();
    int failures = 0, rc = LH_ENOMEM;
    add(store, "q", "one");
    claim(store, "q", "w", 60000);
    backup(store, "copy.db", (lh_backup_opts){0});
    add(store, "q", "two");
    lh_close(store);
    for (int n = 1; rc != LH_OK; n++) {
        control->calls[LHI_FAULT_ALLOC] = 0;
        control->fail_at[LHI_FAULT_ALLOC] = n;
        rc = lh_restore("store.db", "copy.db", NULL, NULL, 0, NULL, 0);
        control->fail_at[LHI_FAULT_ALLOC] = 0;
        if (rc == LH_OK)
            break;
        EXPECT_STATUS(rc, LH_ENOMEM);
        EXPECT_EQ(jobs_in("store.db"), 1);
        EXPECT_EQ(files_with(".", ".repair-"), 0);
        failures++;
    }
    EXPECT(failures > 3);
    /* the job that runs in the replaced store is in quarantine */
    EXPECT_EQ(jobs_in("store.db"), 0);
}

TEST(a_database_that_is_not_ours_is_not_replaced)
{
    lh_store *other = store_open("other.db", (lh_open_opts){.create = true});
    backup(other, "copy.db", (lh_backup_opts){0});
    lh_close(other);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "CREATE TABLE mine(x)");
    expect_no_restore("copy.db", LH_EINVAL, "not replaced");
    EXPECT(!file_exists("store.db-lease"));
    lh_store *store = store_open("store.db", (lh_open_opts){.create = true, .adopt = true});
    expect_no_restore("copy.db", LH_EINVAL, "not replaced");
    /* but a copy of the store itself may be restored */
    backup(store, "mine.db", (lh_backup_opts){0});
    lh_close(store);
    sqlite3_close(db);
    restore("mine.db");
    db = db_open("store.db");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM mine"), 0);
    sqlite3_close(db);
}
