/* Opening after a crash: an unclean stop and a new boot are noticed, the store is checked and its
 * log checkpointed first, reclaimable jobs are recovered, and a report is written. */
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

TEST(unclean_stop_is_noticed_and_reported)
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
    EXPECT(file_size("store.db-wal") < frames * FRAME_BYTES); /* checkpointed and started again */
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

TEST(unclean_stop_is_recovered_once)
{
    crash(write_a_little);
    for (int i = 0; i < 3; i++) {
        lh_store *store = store_open("store.db", (lh_open_opts){0});
        EXPECT_EQ(reports(store), 1);
        lh_close(store);
    }
}

TEST(death_while_another_process_has_the_store_open_is_no_unclean_stop)
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

/* It has inherited the locks, but must not count as a process that has the store open. */
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
        if (child == 0) { /* the child calls nothing */
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

TEST(startup_while_others_have_the_store_open_checks_and_recovers)
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

TEST(reader_recovers_nothing)
{
    freeze_now();
    crash(hold_a_job);
    pass_ms(1000);
    lh_store *reader = store_open("store.db", (lh_open_opts){.read_only = true});
    EXPECT_EQ(reports(reader), 0);
    EXPECT_EQ(counts_of(reader, "mail").running, 1);
    lh_close(reader);
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(reports(store), 1); /* the recovery was still due */
    lh_close(store);
}

TEST(report_says_if_there_was_no_integrity_check)
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

/* ---- recovery that is left for later ---- */

TEST(recovery_that_is_left_for_later_runs_at_the_next_open)
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

TEST(recovery_that_is_left_for_later_can_be_run_by_an_operator)
{
    freeze_now();
    crash(hold_a_job);
    pass_ms(1000);
    lh_store *store = store_open("store.db", (lh_open_opts){.recover_later = true});
    lh_report *report = NULL;
    EXPECT_OK(lh_recover(store, NULL, &report));
    EXPECT_STR(report->trigger, "manual");
    EXPECT(report->integrity.ran && report->integrity.passed); /* the findings of the open */
    EXPECT(report->wal_frames > 0);
    EXPECT_EQ(report->entries_reclaimed, 1);
    lh_report_free(report);
    EXPECT_OK(lh_recover(store, NULL, &report)); /* a second recovery has nothing more to report */
    EXPECT(!report->integrity.ran);
    EXPECT_EQ(report->wal_frames, -1);
    lh_report_free(report);
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_EQ(reports(store), 2);
    lh_close(store);
}

TEST(findings_of_an_open_are_in_the_first_complete_recovery_report)
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

TEST(first_complete_after_a_crash_does_not_lose_its_own_job)
{
    freeze_now();
    crash(hold_a_job);
    pass_ms(1000); /* its lease has ended, and no recovery has taken it back */
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
    boot_again("11111111-2222-3333-4444-555555555555");
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

TEST(new_boot_marks_old_workers_dead_and_frees_what_they_held)
{
    freeze_now();
    lh_store *store = store_new();
    work_before_the_boot(store);
    lh_close(store);
    boot_again("11111111-2222-3333-4444-555555555555");
    store = store_open("store.db", (lh_open_opts){0});
    lh_report *report = last_report(store);
    EXPECT_EQ(report->n_dead_workers, 1);
    EXPECT_STR(report->dead_workers[0].worker, "process");
    EXPECT_EQ(report->dead_workers[0].n_jobs, 1);
    EXPECT_EQ(report->locks_cleaned, 1);
    lh_report_free(report);
    lh_lease_opts next = {.owner = "next"};
    EXPECT_OK(lh_lease_acquire(store, "sync", "a", &next, NULL));
    /* one more full lease */
    EXPECT_STATUS(lh_lease_acquire(store, "sync", "b", &next, NULL), LH_EHELD);
    lh_close(store);
}

TEST(new_boot_reports_the_death_of_each_old_worker)
{
    freeze_now();
    lh_store *store = store_new();
    work_before_the_boot(store);
    lh_close(store);
    boot_again("11111111-2222-3333-4444-555555555555");
    store = store_open("store.db", (lh_open_opts){0});
    sqlite3 *db = db_open("store.db");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_event WHERE type = 'worker.dead'"), 1);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_event WHERE type = 'worker.cleaned'"), 1);
    sqlite3_close(db);
    lh_close(store);
}

/* ---- several processes at the same time ---- */

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
            EXPECT_EQ(read(start[0], &byte, 1), 0); /* all start at the same time */
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
