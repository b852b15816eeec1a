/*
 * Opening after a crash: an unclean stop and a new boot are noticed, the store is checked and its log
 * folded before anything else, what is forfeit is recovered, and a report tells of it.
 */
#include "store/crashed.h"

#include <signal.h>
#include <unistd.h>

/* ---- unclean and clean stops ---- */

static void hold_a_job_and_write_a_lot(lh_store *store)
{
    hold_a_job(store);
    for (int i = 0; i < 50; i++)
        (void)add(store, "other", "x");
}

TEST(an_unclean_stop_is_noticed_and_the_report_tells_what_was_done)
{
    freeze_now();
    struct lines lines;
    crash(hold_a_job_and_write_a_lot);
    pass_ms(1000);
    int64_t frames = (file_size("store.db-wal") - 32) / FRAME_BYTES;
    EXPECT(frames > 0);
    lh_store *store = open_logged(&lines, (lh_open_opts){0});
    EXPECT_CONTAINS(lines.text, "was not closed cleanly");
    lh_report *report = last_report(store);
    EXPECT_STR(report->trigger, "startup");
    EXPECT(report->completed_at != 0);
    EXPECT(report->integrity.ran && report->integrity.passed);
    EXPECT(!report->integrity.repair_attempted);
    EXPECT_EQ(report->wal_frames, frames);
    EXPECT_EQ(report->entries_reclaimed, 1);
    EXPECT_EQ(report->n_inconsistencies, 0);
    lh_report_free(report);
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    EXPECT(file_size("store.db-wal") < frames * FRAME_BYTES); /* folded, and begun anew */
    store_check(store);
    lh_close(store);
}

TEST(a_clean_stop_leaves_nothing_to_do)
{
    freeze_now();
    struct lines lines;
    lh_store *store = store_new();
    hold_a_job(store);
    lh_close(store);
    pass_ms(1000);
    store = open_logged(&lines, (lh_open_opts){0});
    EXPECT_EQ(reports(store), 0);
    EXPECT_STR(lines.text, "");
    EXPECT_EQ(counts_of(store, "mail").running, 1);
    lh_close(store);
}

TEST(an_unclean_stop_is_made_good_once)
{
    crash(write_a_little);
    for (int i = 0; i < 3; i++) {
        lh_store *store = store_open("store.db", (lh_open_opts){0});
        EXPECT_EQ(reports(store), 1);
        lh_close(store);
    }
}

TEST(a_death_beside_somebody_who_has_it_open_is_no_unclean_stop)
{
    int go;
    pid_t child = test_fork_waiting(&go);
    if (child == 0) {
        write_a_little(store_new());
        (void)kill(getpid(), SIGKILL);
    }
    lh_store *store = store_new();
    close(go);
    EXPECT_EQ(test_wait(child).sig, SIGKILL);
    lh_store *other = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(reports(other), 0);
    lh_close(other);
    lh_close(store); /* the last clean close */
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(reports(store), 0);
    EXPECT_EQ(counts_of(store, "mail").pending, 5);
    lh_close(store);
}

/* It has inherited the locks, and must not seem to have the store open. */
TEST(a_child_that_outlives_its_parent_does_not_hide_the_crash)
{
    struct lines lines;
    int hold[2], ready[2];
    char byte;
    EXPECT(pipe(hold) == 0 && pipe(ready) == 0);
    pid_t parent = test_fork();
    if (parent == 0) {
        lh_store *store = store_new();
        write_a_little(store);
        pid_t child = test_fork();
        if (child == 0) { /* never calls anything */
            close(hold[1]);
            EXPECT_EQ(write(ready[1], "", 1), 1);
            EXPECT_EQ(read(hold[0], &byte, 1), 0);
            test_child_done();
        }
        EXPECT_EQ(read(ready[0], &byte, 1), 1);
        (void)kill(getpid(), SIGKILL);
    }
    EXPECT_EQ(test_wait(parent).sig, SIGKILL);
    lh_store *store = open_logged(&lines, (lh_open_opts){.busy_ms = 500});
    EXPECT_CONTAINS(lines.text, "was not closed cleanly");
    EXPECT_EQ(reports(store), 1);
    lh_close(store);
    close(hold[0]);
    close(hold[1]);
}

TEST(a_startup_beside_others_checks_and_recovers_too)
{
    freeze_now();
    lh_store *store = store_new();
    hold_a_job(store);
    pass_ms(1000);
    lh_store *other = store_open("store.db", (lh_open_opts){.startup = true});
    lh_report *report = last_report(store);
    EXPECT_STR(report->trigger, "startup");
    EXPECT(report->integrity.ran && report->integrity.passed);
    EXPECT_EQ(report->entries_reclaimed, 1);
    lh_report_free(report);
    add(store, "mail", "goes on");
    lh_close(other);
    store_check(store);
    lh_close(store);
}

TEST(a_reader_makes_nothing_good)
{
    freeze_now();
    crash(hold_a_job);
    pass_ms(1000);
    lh_store *reader = store_open("store.db", (lh_open_opts){.read_only = true});
    EXPECT_EQ(reports(reader), 0);
    EXPECT_EQ(counts_of(reader, "mail").running, 1);
    lh_close(reader);
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(reports(store), 1); /* it was still to be done */
    lh_close(store);
}

TEST(without_an_integrity_check_the_report_says_that_there_was_none)
{
    crash(write_a_little);
    lh_store *store = store_open("store.db", (lh_open_opts){.no_integrity_check = true});
    lh_report *report = last_report(store);
    EXPECT_STR(report->trigger, "startup");
    EXPECT(!report->integrity.ran && !report->integrity.passed);
    EXPECT(report->wal_frames > 0);
    lh_report_free(report);
    lh_close(store);
}

/* ---- left to others ---- */

TEST(who_leaves_recovering_for_later_leaves_it_to_the_next_open)
{
    freeze_now();
    crash(hold_a_job);
    pass_ms(1000);
    lh_store *store = store_open("store.db", (lh_open_opts){.recover_later = true});
    EXPECT_EQ(reports(store), 0);
    EXPECT_EQ(counts_of(store, "mail").running, 1);
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    lh_report *report = last_report(store);
    EXPECT_STR(report->trigger, "startup");
    EXPECT(report->integrity.ran && report->integrity.passed);
    EXPECT_EQ(report->entries_reclaimed, 1);
    lh_report_free(report);
    lh_close(store);
}

TEST(who_leaves_recovering_for_later_may_do_it_by_hand_and_that_is_that)
{
    freeze_now();
    crash(hold_a_job);
    pass_ms(1000);
    lh_store *store = store_open("store.db", (lh_open_opts){.recover_later = true});
    lh_report *report = NULL;
    EXPECT_OK(lh_recover(store, NULL, &report));
    EXPECT_STR(report->trigger, "manual");
    EXPECT(report->integrity.ran && report->integrity.passed); /* what opening found */
    EXPECT(report->wal_frames > 0);
    EXPECT_EQ(report->entries_reclaimed, 1);
    lh_report_free(report);
    EXPECT_OK(lh_recover(store, NULL, &report)); /* another one has nothing more to tell of it */
    EXPECT(!report->integrity.ran);
    EXPECT_EQ(report->wal_frames, -1);
    lh_report_free(report);
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(reports(store), 2);
    lh_close(store);
}

TEST(what_opening_found_is_told_by_the_first_recovery_that_gets_to_its_end)
{
    freeze_now();
    int raised = 1;
    crash(hold_a_job);
    pass_ms(1000);
    lh_store *store = store_open("store.db", (lh_open_opts){.recover_later = true});
    EXPECT_STATUS(lh_recover(store, &(lh_recover_opts){.cancel = &raised}, NULL), LH_EINTR);
    EXPECT_OK(lh_recover(store, NULL, NULL));
    sqlite3 *db = db_open("store.db");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_report WHERE integrity = 'passed'"), 1);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_report WHERE wal_frames > 0"), 1);
    sqlite3_close(db);
    lh_close(store);
}

TEST(a_complete_may_be_the_first_after_a_crash_and_does_not_lose_its_own_job)
{
    freeze_now();
    crash(hold_a_job);
    pass_ms(1000); /* its lease has ended, and nobody has taken it back */
    lh_store *store = store_open("store.db", (lh_open_opts){.recover_later = true});
    EXPECT_OK(lh_complete(store, &(lh_done){.job = 1, .token = 1}, 1, NULL, NULL));
    EXPECT_EQ(state_of(store, 1), LH_COMPLETED);
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    lh_report *report = last_report(store);
    EXPECT_EQ(report->orphaned, 0);
    lh_report_free(report);
    EXPECT_EQ(state_of(store, 1), LH_COMPLETED);
    lh_close(store);
}

/* ---- a new boot ---- */

static void work_before_the_boot(lh_store *store)
{
    char id[160];
    lh_worker_opts opts = {.id = "process", .process = true};
    EXPECT_OK(lh_worker_register(store, &opts, id, sizeof id));
    add(store, "mail", "x");
    lh_jobs_free(take(store, "mail", "process", 3600000));
    lh_lease_opts of_process = {.owner = "process", .ttl_ms = 3600000};
    lh_lease_opts of_another = {.owner = "another", .ttl_ms = 3600000};
    EXPECT_OK(lh_lease_acquire(store, "sync", "a", &of_process, NULL));
    EXPECT_OK(lh_lease_acquire(store, "sync", "b", &of_another, NULL));
}

TEST(a_new_boot_after_a_clean_stop_is_a_startup)
{
    freeze_now();
    lh_store *store = store_new();
    work_before_the_boot(store);
    lh_close(store);
    boot_anew("11111111-2222-3333-4444-555555555555");
    store = store_open("store.db", (lh_open_opts){0});
    lh_report *report = last_report(store);
    EXPECT_STR(report->trigger, "startup");
    EXPECT(report->integrity.ran && report->integrity.passed);
    EXPECT_EQ(report->entries_reclaimed, 1);
    EXPECT_CONTAINS(report->recovered[0].reason, "RECLAIMED_DEAD: worker process is gone");
    lh_report_free(report);
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0}); /* the same boot */
    EXPECT_EQ(reports(store), 1);
    lh_close(store);
}

TEST(a_new_boot_finds_the_workers_of_the_old_one_dead_and_frees_all_they_held)
{
    freeze_now();
    lh_store *store = store_new();
    work_before_the_boot(store);
    lh_close(store);
    boot_anew("11111111-2222-3333-4444-555555555555");
    store = store_open("store.db", (lh_open_opts){0});
    lh_report *report = last_report(store);
    EXPECT_EQ(report->n_dead_workers, 1);
    EXPECT_STR(report->dead_workers[0].worker, "process");
    EXPECT_EQ(report->dead_workers[0].n_jobs, 1);
    EXPECT_EQ(report->locks_cleaned, 1);
    lh_report_free(report);
    lh_lease_opts next = {.owner = "next"};
    EXPECT_OK(lh_lease_acquire(store, "sync", "a", &next, NULL));
    EXPECT_STATUS(lh_lease_acquire(store, "sync", "b", &next, NULL), LH_EHELD); /* its grace */
    lh_close(store);
}

TEST(a_new_boot_tells_the_death_of_each_worker_of_the_old_one)
{
    freeze_now();
    lh_store *store = store_new();
    work_before_the_boot(store);
    lh_close(store);
    boot_anew("11111111-2222-3333-4444-555555555555");
    store = store_open("store.db", (lh_open_opts){0});
    sqlite3 *db = db_open("store.db");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_event WHERE type = 'worker.dead'"), 1);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_event WHERE type = 'worker.cleaned'"), 1);
    sqlite3_close(db);
    lh_close(store);
}

/* ---- several at once ---- */

TEST_TIMEOUT(nobody_goes_on_before_the_store_was_checked_and_recovered, 60)
{
    enum { OPENERS = 5 };
    pid_t openers[OPENERS];
    int start[2];
    char byte;
    freeze_now();
    crash(hold_a_job);
    pass_ms(1000);
    EXPECT_EQ(pipe(start), 0);
    for (int i = 0; i < OPENERS; i++) {
        openers[i] = test_fork();
        if (openers[i] == 0) {
            close(start[1]);
            EXPECT_EQ(read(start[0], &byte, 1), 0); /* all at once */
            lh_store *store = store_open("store.db", (lh_open_opts){0});
            EXPECT_EQ(counts_of(store, "mail").pending, 1);
            lh_report *report = last_report(store);
            EXPECT_STR(report->trigger, "startup");
            lh_report_free(report);
            test_child_done();
        }
    }
    close(start[0]);
    close(start[1]);
    for (int i = 0; i < OPENERS; i++)
        EXPECT_EQ(test_wait(openers[i]).code, 0);
    sqlite3 *db = db_open("store.db");
    EXPECT(db_int(db, "SELECT count(*) FROM lh_report WHERE integrity = 'passed'") >= 1);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_event WHERE type = 'job.recovered'"), 1);
    sqlite3_close(db);
}
