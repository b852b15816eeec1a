/* Proof of death with real processes: whose process is gone is dead at once, whoever cannot be looked
 * at is judged by time. */
#include "race/foreign_sql.h"
#include "race/late_holder.h"
#include "race/worker_processes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SILENCE_MS = 90000 };

static const lh_worker_opts process = {.process = true};

static int64_t recovered(lh_store *store)
{
    lh_report *report = NULL;

    EXPECT_OK(lh_recover(store, NULL, &report));
    int64_t n = report->entries_reclaimed;
    lh_report_free(report);
    return n;
}

/* The reason why a job was recovered. */
static void expect_reason(lh_store *store, int64_t id, const char *part)
{
    lh_jobs *jobs = NULL;

    EXPECT_OK(lh_job_get(store, id, &jobs));
    EXPECT_CONTAINS(jobs->job[0].last_error, part);
    lh_jobs_free(jobs);
}

static void expect_gone(lh_store *store, const struct hand *worker, int64_t job)
{
    char words[128];

    EXPECT_EQ(recovered(store), 1);
    EXPECT_EQ(job_now(store, job).state, LH_PENDING);
    EXPECT_EQ(job_now(store, job).recoveries, 1);
    (void)snprintf(words, sizeof words, "RECLAIMED_DEAD: worker %s is gone (pid %d)", worker->name,
                   (int)worker->pid);
    expect_reason(store, job, words);
}

/* ---------------------------------------------------------------- gone */

TEST(a_killed_worker_is_dead_while_it_is_still_a_zombie)
{
    lh_store *store = crew_open();
    struct hand worker = hand_start(&store, "w-1", &process);
    int64_t job = ask(&worker, HOLD).job;
    EXPECT_EQ(recovered(store), 0);
    hand_kill(&worker);
    siginfo_t info; /* it is dead and not yet reaped */
    EXPECT_EQ(waitid(P_PID, (id_t)worker.pid, &info, WEXITED | WNOWAIT), 0);
    expect_gone(store, &worker, job);
    hand_reap(&worker);
    expect_sound(store);
    lh_close(store);
}

TEST(a_worker_that_exits_without_stopping_is_dead)
{
    lh_store *store = crew_open();
    struct hand worker = hand_start(&store, "w-1", &process);
    int64_t job = ask(&worker, HOLD).job;
    tell(&worker, LEAVE);
    (void)test_wait(worker.pid);
    expect_gone(store, &worker, job);
    lh_close(store);
}

TEST(a_remote_worker_does_not_die_with_the_process_that_registered_it)
{
    lh_store *store = crew_open();
    struct hand worker = hand_start(&store, "w-1", &(lh_worker_opts){.process = false});
    int64_t job = ask(&worker, HOLD).job;
    hand_kill(&worker);
    hand_reap(&worker);
    EXPECT_EQ(recovered(store), 0);
    EXPECT_EQ(job_now(store, job).state, LH_RUNNING);
    lh_close(store);
}

TEST(a_worker_is_alive_while_any_of_its_threads_lives)
{
    lh_store *store = crew_open();
    struct hand worker = hand_start(&store, "w-1", &process);
    int64_t job = ask(&worker, HOLD).job;
    (void)ask(&worker, FIRST_LEAVES);
    EXPECT_OK(ask(&worker, BEAT).status); /* by the other thread */
    char path[64], line[256] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)worker.pid);
    for (int i = 0; i < 200 && strstr(line, ") Z ") == NULL; i++) {
        pause_between_looks();
        FILE *in = fopen(path, "re");
        EXPECT(in != NULL && fgets(line, sizeof line, in) != NULL);
        (void)fclose(in);
    }
    EXPECT_CONTAINS(line, ") Z "); /* so it looks if only the first thread is checked */
    EXPECT_EQ(recovered(store), 0);
    tell(&worker, LEAVE);
    (void)test_wait(worker.pid);
    expect_gone(store, &worker, job);
    lh_close(store);
}

/* ---------------------------------------------------------------- identity */

static void forge(const char *what)
{
    EXPECT_EQ(run_as_stranger("UPDATE lh_worker SET %s WHERE id = 'w-1'", what), 1);
}

TEST(a_reused_pid_proves_the_death_of_its_first_process)
{
    lh_store *store = crew_open();
    struct hand worker = hand_start(&store, "w-1", &process);
    int64_t job = ask(&worker, HOLD).job;
    forge("process_start = process_start - 1"); /* the registered process was older */
    expect_gone(store, &worker, job);
    EXPECT_STATUS(ask(&worker, BEAT).status, LH_ELOST);
    hand_quit(&worker);
    lh_close(store);
}

/* The pid of a process that has ended. */
static pid_t vacant_pid(void)
{
    pid_t pid = test_fork();
    if (pid == 0)
        test_child_done();
    (void)test_wait(pid);
    return pid;
}

/* The pid says nothing about this worker: only its silence counts. */
static void expect_judged_by_time_only(lh_store *store, int64_t job)
{
    char vacant[40];

    (void)snprintf(vacant, sizeof vacant, "pid = %d", (int)vacant_pid());
    forge(vacant);
    EXPECT_EQ(recovered(store), 0);
    clock_advance_ms(SILENCE_MS / 2);
    EXPECT_EQ(recovered(store), 0);
    EXPECT_EQ(job_now(store, job).state, LH_RUNNING);
    clock_advance_ms(SILENCE_MS / 2);
    EXPECT_EQ(recovered(store), 1);
    expect_reason(store, job, "RECLAIMED_DEAD: worker w-1 has been silent for ");
}

TEST(a_worker_in_another_pid_namespace_is_judged_by_time_only)
{
    clock_start();
    lh_store *store = crew_open();
    struct hand worker = hand_start_elsewhere(&store, "w-1", &process);
    if (worker.pid == 0) {
        (void)fprintf(stderr, "no pid namespace to be had here: its number is forged\n");
        worker = hand_start(&store, "w-1", &process);
        forge("pid_ns = pid_ns + 1");
    }
    int64_t job = ask(&worker, HOLD).job;
    expect_judged_by_time_only(store, job);
    tell(&worker, LEAVE);
    hand_reap(&worker);
    lh_close(store);
}

/* Start times of processes differ there, so that the worker would seem to be another process. */
TEST(a_worker_in_another_time_namespace_is_judged_by_time_only)
{
    clock_start();
    lh_store *store = crew_open();
    struct hand worker = hand_start_at_another_time(&store, "w-1", &process);
    if (worker.pid == 0) {
        (void)fprintf(stderr, "no time namespace to be had here: its number is forged\n");
        worker = hand_start(&store, "w-1", &process);
        forge("time_ns = time_ns + 1, process_start = process_start + 1");
    }
    int64_t job = ask(&worker, HOLD).job;
    EXPECT_EQ(recovered(store), 0);
    expect_judged_by_time_only(store, job);
    tell(&worker, LEAVE);
    hand_reap(&worker);
    lh_close(store);
}

TEST(a_worker_on_another_machine_is_judged_by_time_only)
{
    clock_start();
    lh_store *store = crew_open();
    struct hand worker = hand_start(&store, "w-1", &process);
    int64_t job = ask(&worker, HOLD).job;
    forge("machine = 'another'");
    expect_judged_by_time_only(store, job);
    hand_quit(&worker);
    lh_close(store);
}

/* On SQLite at once, because all are on this machine (tests/unit/judge.c); where machines are many and their
 * ids may be cloned, not before a beat was missed. */
TEST(a_worker_of_another_boot_is_dead)
{
    clock_start();
    lh_store *store = crew_open();
    struct hand worker = hand_start(&store, "w-1", &process);
    int64_t job = ask(&worker, HOLD).job;
    forge("boot = 'another'"); /* the pid now belongs to another process */
    clock_advance_ms(SILENCE_MS / 2 + 1000);
    EXPECT_EQ(recovered(store), 1);
    expect_reason(store, job, "RECLAIMED_DEAD: worker w-1 is gone");
    hand_quit(&worker);
    lh_close(store);
}

/* ---------------------------------------------------------------- who has beaten since is not dead */

TEST(marking_a_worker_dead_on_outdated_evidence_changes_nothing)
{
    char id[160];
    clock_start();
    lh_store *store = crew_open();
    EXPECT_OK(lh_worker_register(store, &(lh_worker_opts){.id = "w-1"}, id, sizeof id));
    int64_t judged_at = lh_now(store);
    lh_workers *workers = NULL;
    EXPECT_OK(lh_worker_list(store, &workers));
    struct seen_worker seen = {.last_heartbeat_at = workers->worker[0].last_heartbeat_at};
    lh_workers_free(workers);
    EXPECT_EQ(bury_late(&seen, false, judged_at), 0); /* silent, but not for long enough */
    clock_advance_ms(SILENCE_MS + 1000);
    EXPECT_OK(
        lh_worker_heartbeat(store, "w-1", 0, NULL, 0, NULL)); /* between the read and the write */
    EXPECT_EQ(bury_late(&seen, false, lh_now(store)), 0);
    EXPECT_EQ(bury_late(&seen, true, lh_now(store)), 0);
    EXPECT_OK(lh_worker_list(store, &workers));
    EXPECT_STR(workers->worker[0].state, "alive");
    seen.last_heartbeat_at = workers->worker[0].last_heartbeat_at;
    lh_workers_free(workers);
    EXPECT_OK(lh_worker_sessions(store, "w-1", NULL, 0)); /* it has announced sessions since */
    EXPECT_EQ(bury_late(&seen, true, lh_now(store)), 0);
    seen.sessions = "[[1,2]]";
    EXPECT_EQ(bury_late(&seen, true, lh_now(store)), 0);
    seen.sessions = "[]";
    EXPECT_EQ(bury_late(&seen, true, lh_now(store)), 1); /* with no change in between */
    lh_close(store);
}

/* ---------------------------------------------------------------- told before anybody acts */

TEST(the_jobs_of_a_dead_process_are_counted_and_listed_once)
{
    clock_start();
    lh_store *store = crew_open();
    struct hand worker = hand_start(&store, "w-1", &process);
    int64_t job = ask(&worker, HOLD).job;
    lh_workers *stale = NULL;
    lh_recovered counted;
    lh_report *would = NULL;
    lh_store_info info;
    hand_kill(&worker);
    hand_reap(&worker);
    for (int silent = 0; silent < 2; silent++) { /* dead, and dead and silent for too long */
        EXPECT_OK(lh_workers_stale(store, &stale));
        EXPECT_EQ(stale->n, 1);
        EXPECT_STR(stale->worker[0].id, "w-1");
        EXPECT_EQ(stale->worker[0].running, 1);
        EXPECT_EQ(stale->worker[0].jobs[0], job);
        lh_workers_free(stale);
        EXPECT_OK(lh_recover(store, &(lh_recover_opts){.dry_run = true}, &would));
        EXPECT_EQ(would->n_recovered, 1);
        EXPECT_EQ(would->orphaned, 1);
        EXPECT_EQ(would->n_dead_workers, 1);
        EXPECT_EQ(would->dead_workers[0].n_jobs, 1);
        EXPECT_CONTAINS(would->recovered[0].reason, "RECLAIMED_DEAD: worker w-1 is gone");
        lh_report_free(would);
        EXPECT_OK(lh_recovery_stats(store, &counted));
        EXPECT_EQ(counted.entries_reclaimed, 1);
        EXPECT_OK(lh_store_status(store, &info));
        EXPECT_EQ(info.stale_jobs, 1);
        EXPECT_EQ(info.workers_dead, 1);
        clock_advance_ms(SILENCE_MS + 1);
    }
    EXPECT_EQ(job_now(store, job).state, LH_RUNNING);
    EXPECT_EQ(recovered(store), 1);
    lh_close(store);
}

TEST(maintenance_that_finds_a_dead_process_leaves_a_report_of_its_death)
{
    lh_store *store = crew_open();
    struct hand worker = hand_start(&store, "w-1", &process);
    int64_t job = ask(&worker, HOLD).job;
    lh_maintained done;
    lh_report *report = NULL;
    lh_store_info info;
    hand_kill(&worker);
    hand_reap(&worker);
    EXPECT_OK(lh_maintain(store, NULL, &done));
    EXPECT_EQ(done.recovered, 1);
    EXPECT_EQ(done.dead_workers, 1);
    EXPECT_OK(lh_report_get(store, done.report, &report));
    EXPECT_STR(report->trigger, "death");
    EXPECT_EQ(report->recovered[0].job, job);
    EXPECT_EQ(report->n_dead_workers, 1);
    EXPECT_EQ(report->dead_workers[0].jobs[0], job);
    lh_report_free(report);
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_EQ(info.recovery.death, 1);
    lh_close(store);
}
