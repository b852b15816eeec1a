/*
 * Workers and guardians that are killed or stopped while a job runs: all processes of the job are dead
 * before another worker gets it.
 *
 * The command and everything it starts hold a file lock, which the next run cannot get while one of them
 * lives.
 */
#include "work/shift.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first attempt starts a child, a grandchild in the background and a daemon, and writes "ready". The second
 * attempt reports whether it gets the lock. */
#define CROWD                                                                                \
    "exec 9>>lock; flock -n 9 || { echo \"two runs at once\" >&2; exit 65; };"               \
    "if [ $LEASEHOLD_ATTEMPT != 1 ]; then date +%s%N >second; exit 0; fi;"                   \
    "trap '' TERM HUP INT;"                                                                  \
    "sleep 600 & echo $! >child; (sleep 600 & echo $! >orphan);"                             \
    "setsid sh -c 'setsid sh -c \"echo \\$\\$ >daemon; exec sleep 600 >/dev/null 2>&1\" &';" \
    "echo $$ >command; " UNTIL("daemon") " : >ready; while :; do sleep 0.05; done"

static const char *const crowd[] = {"command", "child", "orphan", "daemon"};

static void expect_crowd_gone(void)
{
    for (size_t i = 0; i < sizeof crowd / sizeof *crowd; i++)
        if (!gone(number_in(crowd[i])))
            FAIL("%s %lld is still there", crowd[i], (long long)number_in(crowd[i]));
}

static bool crowd_gone(void)
{
    for (size_t i = 0; i < sizeof crowd / sizeof *crowd; i++)
        if (!gone(number_in(crowd[i])))
            return false;
    return true;
}

TEST(the_processes_of_a_killed_worker_are_dead_before_its_job_runs_again)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift first = SHIFT("q", "--", SH(CROWD));
    EVENTUALLY(exists("ready"));
    struct shift second = SHIFT("q", "--", SH(CROWD));
    int64_t killed_at = now_ms();
    shift_signal(&first, SIGKILL);
    EVENTUALLY(exists("second"));
    printf("healed after %lld ms\n", (long long)(now_ms() - killed_at));
    expect_crowd_gone();
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(look(&shop, job)->attempt, 2);
    EXPECT_EQ(look(&shop, job)->recoveries, 1);
    EXPECT_EQ(shift_wait(&first), -SIGKILL);
    EXPECT_EQ(shift_stop(&second), 0);
    shop_close(&shop);
}

TEST(the_commands_of_a_dead_worker_die_even_if_no_process_recovers)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift first = SHIFT("q", "--", SH(CROWD));
    EVENTUALLY(exists("ready"));
    pid_t guardian = guardian_of(&first);
    shift_signal(&first, SIGKILL);
    EVENTUALLY(crowd_gone() && gone(guardian));
    EXPECT_EQ(state_of(&shop, job), LH_RUNNING);
    EXPECT_EQ(shift_wait(&first), -SIGKILL);
    shop_close(&shop);
}

/* Worker and guardian are both dead, so the process that recovers the job must kill the rest. */
TEST(leftover_processes_are_killed_before_the_job_runs_again)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift first = SHIFT("q", "--", SH(CROWD));
    EVENTUALLY(exists("ready"));
    pid_t guardian = guardian_of(&first);
    struct shift second = SHIFT("q", "--", SH(CROWD));
    /* Both are stopped first, so that neither notices the death of the other. */
    shift_signal(&first, SIGSTOP);
    EXPECT_EQ(kill(guardian, SIGSTOP), 0);
    EXPECT_EQ(kill(guardian, SIGKILL), 0);
    shift_signal(&first, SIGKILL);
    EVENTUALLY(exists("second"));
    expect_crowd_gone();
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(look(&shop, job)->recoveries, 1);
    EXPECT_EQ(shift_wait(&first), -SIGKILL);
    EXPECT_EQ(shift_stop(&second), 0);
    shop_close(&shop);
}

TEST(a_command_dies_with_its_guardian_and_the_worker_continues)
{
    struct shop shop = shop_open();
    no_backoff(&shop);
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--", SH(CROWD));
    EVENTUALLY(exists("ready"));
    EXPECT_EQ(kill(guardian_of(&shift), SIGKILL), 0);
    EVENTUALLY(exists("second"));
    expect_crowd_gone();
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(look(&shop, job)->attempt, 2);
    EXPECT_EQ(look(&shop, job)->recoveries, 0);
    EXPECT(said(&shift, "its guardian was killed"));
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* The daemon has another session and an empty environment, but it has become a child of the worker. */
TEST(a_daemon_with_an_empty_environment_dies_with_the_guardian)
{
    struct shop shop = shop_open();
    long_backoff(&shop);
    int64_t job = put(&shop, "q", "x");
    struct shift shift =
        SHIFT("q", "--",
              SH("env -i setsid sh -c 'echo $$ >pid; exec sleep 600 >/dev/null 2>&1' & "
                 "wait"));
    int64_t pid = number_in("pid");
    EXPECT_EQ(kill(guardian_of(&shift), SIGKILL), 0);
    EVENTUALLY(state_of(&shop, job) == LH_SCHEDULED);
    EXPECT_STR(look(&shop, job)->last_error, "its guardian was killed");
    EXPECT(gone(pid));
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

TEST(a_killed_guardian_does_not_touch_the_other_jobs)
{
    struct shop shop = shop_open();
    int64_t first = put(&shop, "q", "echo $$ >one; exec sleep 600");
    struct shift shift = SHIFT("q", "-j", "2", "--", SH("exec sh /dev/stdin"));
    int64_t one = number_in("one");
    pid_t guardian = guardian_of(&shift);
    int64_t second = put(&shop, "q", "(setsid sleep 600 & echo $! >two); " UNTIL("go"));
    int64_t two = number_in("two");
    EXPECT_EQ(kill(guardian, SIGKILL), 0);
    EVENTUALLY(state_of(&shop, first) != LH_RUNNING);
    EXPECT(gone(one));
    EXPECT(!gone(two));
    EXPECT_EQ(state_of(&shop, second), LH_RUNNING);
    touch("go");
    EVENTUALLY(state_of(&shop, second) == LH_COMPLETED);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

TEST(an_idle_guardian_that_is_killed_is_replaced)
{
    struct shop shop = shop_open();
    int64_t first = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--", "true");
    EVENTUALLY(state_of(&shop, first) == LH_COMPLETED);
    pid_t guardian = guardian_of(&shift);
    EXPECT_EQ(kill(guardian, SIGKILL), 0);
    EVENTUALLY(gone(guardian));
    int64_t second = put(&shop, "q", "x");
    EVENTUALLY(state_of(&shop, second) == LH_COMPLETED);
    EXPECT_EQ(look(&shop, second)->attempt, 1);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* A stopped guardian cannot keep the deadlines, so the worker does. */
TEST(the_command_of_a_stopped_guardian_is_killed_at_its_deadline)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--heartbeat", "500ms", "--kill-after", "200ms", "--",
                               SH("echo $$ >pid; exec sleep 600"));
    int64_t pid = number_in("pid");
    EXPECT_EQ(kill(guardian_of(&shift), SIGSTOP), 0);
    cancel(&shop, job);
    EVENTUALLY(gone(pid));
    EVENTUALLY(said(&shift, "job 1 lost"));
    int64_t next = put(&shop, "q", "x");
    EVENTUALLY(number_in("pid") != pid);
    EXPECT_EQ(state_of(&shop, next), LH_RUNNING);
    EXPECT_EQ(kill(guardian_of(&shift), SIGSTOP), 0);
    pid = number_in("pid");
    shift_signal(&shift, SIGTERM);
    EVENTUALLY(said(&shift, "stopping"));
    EXPECT_EQ(shift_stop(&shift), 0); /* the second signal stops it immediately */
    EXPECT(gone(pid));
    EXPECT_EQ(state_of(&shop, next), LH_PENDING);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- stopped */

enum { LEASE_MS = 1600 };

/* The worker hangs, so its guardian kills the command at the deadline, before the lease expires. */
TEST(the_command_of_a_stopped_worker_is_dead_before_its_lease_expires)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift first = SHIFT("q", "--lease", "1600ms", "--", SH(CROWD));
    EVENTUALLY(exists("ready"));
    struct shift second = SHIFT("q", "--lease", "1600ms", "--", SH(CROWD));
    shift_freeze(&first);
    int64_t until = look(&shop, job)->lease_until;
    EXPECT(until > now_wall_ms());
    EVENTUALLY(crowd_gone());
    int64_t left = until - now_wall_ms();
    printf("dead %lld ms before the end of a lease of %d ms\n", (long long)left, LEASE_MS);
    EXPECT(left > LEASE_MS / 4);
    EXPECT(!exists("second"));
    EXPECT_EQ(state_of(&shop, job), LH_RUNNING);
    EVENTUALLY(exists("second"));
    EXPECT(now_wall_ms() >= until);
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(look(&shop, job)->attempt, 2);
    EXPECT_EQ(look(&shop, job)->recoveries, 1);
    EXPECT_EQ(shift_stop(&second), 0);
    shift_signal(&first, SIGCONT);
    EVENTUALLY(said(&first, "job 1 lost"));
    EXPECT_EQ(remove("ready"), 0);
    int64_t next = put(&shop, "q", "x");
    EVENTUALLY(exists("ready"));
    EXPECT_EQ(state_of(&shop, next), LH_RUNNING);
    cancel(&shop, next);
    EVENTUALLY(crowd_gone());
    EXPECT_EQ(state_of(&shop, job), LH_COMPLETED);
    EXPECT_EQ(shift_stop(&first), 0);
    shop_close(&shop);
}

TEST(a_worker_that_was_stopped_briefly_keeps_its_job)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift =
        SHIFT("q", "--lease", "20s", "--heartbeat", "500ms", "--", SH(UNTIL("go")));
    EVENTUALLY(state_of(&shop, job) == LH_RUNNING);
    shift_signal(&shift, SIGSTOP);
    shift_signal(&shift, SIGCONT);
    int64_t beat = look(&shop, job)->last_heartbeat_at;
    EVENTUALLY(look(&shop, job)->last_heartbeat_at > beat);
    touch("go");
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(look(&shop, job)->attempt, 1);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* A worker that was declared dead and whose row was deleted registers again when it continues. */
TEST(a_worker_that_was_declared_dead_works_again)
{
    struct shop shop = shop_open();
    struct shift shift = SHIFT("q", "--heartbeat", "100ms", "--", "true");
    shift_freeze(&shift);
    EVENTUALLY((recover(&shop), events(&shop, "worker.dead") == 1));
    shift_signal(&shift, SIGCONT);
    int64_t job = put(&shop, "q", "x");
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(look(&shop, job)->attempt, 1);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- claimed in advance */

TEST(jobs_that_a_killed_worker_had_not_started_are_released)
{
    struct shop shop = shop_open();
    int64_t jobs[5];
    for (int i = 0; i < 5; i++)
        jobs[i] = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--batch", "4", "--", SH(": >started; exec sleep 600"));
    EVENTUALLY(exists("started"));
    EVENTUALLY(count(&shop, LH_RUNNING) == 5);
    shift_signal(&shift, SIGKILL);
    EXPECT_EQ(shift_wait(&shift), -SIGKILL);
    EVENTUALLY((recover(&shop), count(&shop, LH_PENDING) == 5));
    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(look(&shop, jobs[i])->attempt, i == 0);
        EXPECT_EQ(look(&shop, jobs[i])->recoveries, i == 0);
    }
    shop_close(&shop);
}

/* A worker with jobs claimed in advance that cannot record the start of one. */
static struct shift shift_that_cannot_start(struct shop *shop, sqlite3 **db)
{
    EXPECT_EQ(sqlite3_open("s.db", db), SQLITE_OK);
    EXPECT_EQ(sqlite3_busy_timeout(*db, 5000), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(*db,
                           "CREATE TRIGGER obstacle BEFORE UPDATE OF started ON lh_worker BEGIN "
                           "SELECT raise(ABORT, 'not now'); END",
                           NULL, NULL, NULL),
              SQLITE_OK);
    struct shift shift = SHIFT("q", "--batch", "1", "--lease", "1s", "--heartbeat", "500ms", "--",
                               SH("echo $LEASEHOLD_TOKEN >>tokens"));
    (void)put(shop, "q", "x");
    EVENTUALLY(said(&shift, "could not update the record of this worker"));
    return shift;
}

static void remove_obstacle(sqlite3 *db)
{
    EXPECT_EQ(sqlite3_exec(db, "DROP TRIGGER obstacle", NULL, NULL, NULL), SQLITE_OK);
    EXPECT_EQ(sqlite3_close(db), SQLITE_OK);
}

TEST(a_worker_killed_before_it_started_anything_costs_no_attempt)
{
    struct shop shop = shop_open();
    sqlite3 *db;
    struct shift shift = shift_that_cannot_start(&shop, &db);
    shift_signal(&shift, SIGKILL);
    EXPECT_EQ(shift_wait(&shift), -SIGKILL);
    remove_obstacle(db);
    EVENTUALLY((recover(&shop), state_of(&shop, 1) == LH_PENDING));
    EXPECT_EQ(look(&shop, 1)->attempt, 0);
    EXPECT_EQ(look(&shop, 1)->recoveries, 0);
    shop_close(&shop);
}

TEST(a_job_cancelled_before_it_was_started_is_not_started)
{
    struct shop shop = shop_open();
    sqlite3 *db;
    struct shift shift = shift_that_cannot_start(&shop, &db);
    cancel(&shop, 1);
    EVENTUALLY(said(&shift, "job 1 lost"));
    remove_obstacle(db);
    int64_t next = put(&shop, "q", "y");
    EVENTUALLY(state_of(&shop, next) == LH_COMPLETED);
    EXPECT_EQ(lines_of("tokens"), 1);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* The worker was stopped before it started the job, and continues after the lease has expired. */
TEST(a_job_is_not_started_after_its_lease_has_expired)
{
    struct shop shop = shop_open();
    sqlite3 *db;
    struct shift shift = shift_that_cannot_start(&shop, &db);
    shift_freeze(&shift);
    EVENTUALLY((recover(&shop), state_of(&shop, 1) == LH_PENDING));
    int64_t ended = look(&shop, 1)->token;
    remove_obstacle(db);
    shift_signal(&shift, SIGCONT);
    EVENTUALLY(state_of(&shop, 1) == LH_COMPLETED);
    EXPECT_EQ(lines_of("tokens"), 1);
    EXPECT(number_in("tokens") > ended);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- several */

TEST(two_workers_run_each_job_once)
{
    struct shop shop = shop_open();
    struct shift one = SHIFT("q", "-j", "3", "--", SH("echo $LEASEHOLD_JOB_ID >>runs"));
    struct shift two =
        SHIFT("q", "-j", "2", "--batch", "5", "--", SH("echo $LEASEHOLD_JOB_ID >>runs"));
    put_many(&shop, "q", 60);
    EVENTUALLY(count(&shop, LH_COMPLETED) == 60);
    EXPECT_EQ(lines_of("runs"), 60);
    EXPECT_EQ(shift_stop(&one), 0);
    EXPECT_EQ(shift_stop(&two), 0);
    shop_close(&shop);
}

TEST(an_exclusive_queue_runs_one_job_at_a_time_across_workers)
{
    struct shop shop = shop_open();
    policy(&shop, .set = LH_POLICY_EXCLUSIVE, .exclusive = true);
    struct shift one = SHIFT("q", "-j", "4", "--", SH("flock -n lock sleep 0.02"));
    struct shift two = SHIFT("q", "-j", "4", "--batch", "3", "--", SH("flock -n lock sleep 0.02"));
    put_many(&shop, "q", 12);
    EVENTUALLY(count(&shop, LH_COMPLETED) + count(&shop, LH_SCHEDULED) == 12);
    EXPECT_EQ(count(&shop, LH_COMPLETED), 12);
    EXPECT_EQ(shift_stop(&one), 0);
    EXPECT_EQ(shift_stop(&two), 0);
    shop_close(&shop);
}
