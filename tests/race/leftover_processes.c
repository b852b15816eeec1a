/*
 * Processes that dead workers have left running. A worker is not dead while a process that it started lives;
 * such processes are killed, and no others.
 *
 * The test kills the worker. Its processes lead the sessions in which commands of jobs run, as guardians do.
 */
#include "race/foreign_sql.h"
#include "race/worker_processes.h"

#include "base/processes.h"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SILENCE_MS = 90000, NOBODY = 65534, TRIES = 400 };

static const lh_worker_opts process = {.process = true};

/* Tests run at the same time, so each uses worker names of its own. */
static const char *ours(void)
{
    static char name[32];

    if (name[0] == '\0')
        (void)snprintf(name, sizeof name, "w-%d", (int)getpid());
    return name;
}

/* ---------------------------------------------------------------- processes */

/* How a process is started. */
struct guise {
    bool leads;       /* it leads a session */
    const char *name; /* LEASEHOLD_WORKER; NULL: none */
};

/* A shell that starts another process, and then becomes one. Returns its pid; `*child` is the other pid. */
static pid_t start(struct guise guise, pid_t *child)
{
    char name[80], line[32] = "";
    char *const environment[] = {name, NULL};
    int out[2];

    (void)snprintf(name, sizeof name, "%s%s",
                   guise.name ? "LEASEHOLD_WORKER=" : "NOBODY=", guise.name ? guise.name : "");
    EXPECT_EQ(pipe(out), 0);
    pid_t pid = test_fork();
    if (pid == 0) {
        if (guise.leads)
            (void)setsid();
        (void)dup2(out[1], 1);
        (void)dup2(open("/dev/null", O_RDWR), 2);
        (void)close_range(3, ~0U, 0); /* the child must not keep descriptors of the test open */
        (void)execle("/bin/sh", "sh", "-c",
                     "sleep 600 >/dev/null & echo $!; exec sleep 600 >/dev/null", NULL,
                     environment);
        _exit(127);
    }
    close(out[1]);
    EXPECT(read(out[0], line, sizeof line - 1) > 0);
    close(out[0]);
    *child = (pid_t)strtol(line, NULL, 10);
    EXPECT(*child > 0);
    return pid;
}

static bool alive(pid_t pid)
{
    return !lhi_process_gone(pid, 0);
}

static void end(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    for (int i = 0; i < TRIES && alive(pid); i++)
        pause_between_looks();
    EXPECT(!alive(pid));
}

/* ---------------------------------------------------------------- the store */

struct told {
    char last[256];
    int killed, spared, refused;
};

static void listen(void *arg, const lh_log_entry *entry)
{
    struct told *told = arg;

    told->killed += strncmp(entry->line, "killed process ", 15) == 0;
    told->spared += strstr(entry->line, " is left alone: ") != NULL;
    told->refused += strstr(entry->line, " cannot be killed: ") != NULL;
    (void)snprintf(told->last, sizeof told->last, "%s", entry->line);
}

static lh_store *open_telling(struct told *told)
{
    *told = (struct told){0};
    crew_log = listen;
    crew_log_arg = told;
    return crew_open();
}

static int64_t recovered(lh_store *store)
{
    lh_report *report = NULL;

    EXPECT_OK(lh_recover(store, NULL, &report));
    int64_t n = report->entries_reclaimed;
    lh_report_free(report);
    return n;
}

/* One round of maintenance that does not wait. */
static int64_t upkeep(lh_store *store)
{
    lh_maintained done;

    EXPECT_OK(lh_maintain(store, NULL, &done));
    return done.recovered;
}

static void lead(lh_store *store, pid_t pid)
{
    EXPECT_OK(lh_worker_sessions(store, ours(), &(int64_t){pid}, 1));
}

static void expect_reason(lh_store *store, int64_t id, const char *part)
{
    lh_jobs *jobs = NULL;

    EXPECT_OK(lh_job_get(store, id, &jobs));
    EXPECT_CONTAINS(jobs->job[0].last_error, part);
    lh_jobs_free(jobs);
}

static void expect_gone(lh_store *store, pid_t pid, int64_t job)
{
    char words[128];

    EXPECT_EQ(job_now(store, job).state, LH_PENDING);
    (void)snprintf(words, sizeof words, "RECLAIMED_DEAD: worker %s is gone (pid %d)", ours(),
                   (int)pid);
    expect_reason(store, job, words);
}

/* Returns its pid. */
static pid_t kill_worker(struct hand *worker)
{
    pid_t pid = worker->pid;

    hand_kill(worker);
    hand_reap(worker);
    return pid;
}

/* A worker that holds a job and then dies. */
static pid_t killed_worker(lh_store **store, pid_t leader, int64_t *job)
{
    struct hand worker = hand_start(store, ours(), &process);

    *job = ask(&worker, HOLD).job;
    EXPECT_OK(lh_worker_sessions(*store, ours(), &(int64_t){leader}, leader ? 1 : 0));
    return kill_worker(&worker);
}

/* ---------------------------------------------------------------- not before all of it is gone */

TEST(a_worker_is_not_dead_while_the_leader_of_a_session_lives)
{
    struct told told;
    lh_store *store = open_telling(&told);
    int64_t job;
    pid_t below, leader = start((struct guise){.leads = true}, &below);
    pid_t pid = killed_worker(&store, leader, &job);
    lh_workers *stale = NULL;
    EXPECT_EQ(upkeep(store), 0);
    EXPECT_OK(lh_workers_stale(store, &stale));
    EXPECT_EQ(stale->n, 0);
    lh_workers_free(stale);
    EXPECT_EQ(job_now(store, job).state, LH_RUNNING);
    end(below);
    end(leader); /* and stays a zombie until the test ends */
    EXPECT_EQ(upkeep(store), 1);
    expect_gone(store, pid, job);
    EXPECT_EQ(told.killed, 0);
    expect_sound(store);
    lh_close(store);
}

TEST(a_worker_is_not_dead_while_a_process_of_its_sessions_lives)
{
    struct told told;
    lh_store *store = open_telling(&told);
    int64_t job;
    pid_t below, leader = start((struct guise){.leads = true}, &below);
    pid_t pid = killed_worker(&store, leader, &job);
    end(leader);
    EXPECT_EQ(upkeep(store), 0);
    end(below);
    EXPECT_EQ(upkeep(store), 1);
    expect_gone(store, pid, job);
    lh_close(store);
}

TEST(a_worker_is_not_dead_while_a_process_with_its_environment_lives)
{
    struct told told;
    lh_store *store = open_telling(&told);
    int64_t job;
    pid_t pid = killed_worker(&store, 0, &job);
    pid_t other_below, below, astray = start((struct guise){.leads = true, .name = ours()}, &below);
    char other_name[40];
    (void)snprintf(other_name, sizeof other_name, "%sx", ours()); /* the name of no other test */
    pid_t other = start((struct guise){.name = other_name}, &other_below);
    EXPECT_EQ(upkeep(store), 0);
    end(astray);
    EXPECT_EQ(upkeep(store), 0);
    end(below);
    EXPECT_EQ(upkeep(store), 1);
    expect_gone(store, pid, job);
    EXPECT(alive(other) && alive(other_below));
    end(other);
    end(other_below);
    lh_close(store);
}

TEST(a_worker_without_sessions_is_dead_with_its_process)
{
    struct told told;
    lh_store *store = open_telling(&told);
    struct hand worker = hand_start(&store, ours(), &process);
    int64_t job = ask(&worker, HOLD).job;
    pid_t below, astray = start((struct guise){.name = ours()}, &below);
    pid_t pid = kill_worker(&worker);
    EXPECT_EQ(upkeep(store), 1); /* sessions that were not announced are not searched */
    expect_gone(store, pid, job);
    EXPECT(alive(astray) && alive(below));
    end(astray);
    end(below);
    lh_close(store);
}

TEST(a_worker_that_registers_again_has_no_sessions)
{
    char id[160];
    struct told told;
    lh_store *store = open_telling(&told);
    pid_t below, leader = start((struct guise){.leads = true}, &below);
    struct hand worker = hand_start(&store, ours(), &process);
    lead(store, leader);
    lh_worker_opts again = {.id = ours(), .process = true};
    EXPECT_OK(lh_worker_register(store, &again, id, sizeof id)); /* by this process */
    hand_quit(&worker);
    worker = hand_start(&store, ours(), &process);
    int64_t job = ask(&worker, HOLD).job;
    pid_t pid = kill_worker(&worker);
    EXPECT_EQ(upkeep(store), 1);
    expect_gone(store, pid, job);
    EXPECT(alive(leader) && alive(below));
    end(leader);
    end(below);
    lh_close(store);
}

/* ---------------------------------------------------------------- what does not go is killed */

TEST(a_recovery_by_an_operator_kills_processes_left_by_a_dead_worker)
{
    struct told told;
    lh_store *store = open_telling(&told);
    int64_t job;
    pid_t below, leader = start((struct guise){.leads = true}, &below);
    pid_t pid = killed_worker(&store, leader, &job);
    pid_t astray_below,
        astray = start((struct guise){.leads = true, .name = ours()}, &astray_below);
    int64_t n = 0;
    for (int i = 0; i < TRIES && n == 0; i++)
        n = recovered(store); /* on a busy machine a killed process takes some time to die */
    EXPECT_EQ(n, 1);
    EXPECT(!alive(leader) && !alive(below) && !alive(astray) && !alive(astray_below));
    EXPECT_EQ(told.killed, 4);
    expect_gone(store, pid, job);
    expect_sound(store);
    lh_close(store);
}

/* No poll ends the wait. The claim wakes by itself to kill the processes, and to see that all are dead. */
TEST(a_waiting_worker_gets_the_job_after_leftover_processes_are_killed)
{
    struct told told;
    clock_start();
    polls_stop();
    lh_store *store = open_telling(&told);
    struct hand next = hand_start(&store, "next", &process);
    struct hand worker = hand_start(&store, ours(), &process);
    pid_t below, leader = start((struct guise){.leads = true}, &below);
    int64_t job = ask(&worker, HOLD).job;
    lead(store, leader);
    tell(&next, WAIT);
    (void)kill_worker(&worker);
    EXPECT_EQ(hear(&next).job, job);
    EXPECT(!alive(leader) && !alive(below));
    EXPECT_OK(ask(&next, COMPLETE).status);
    hand_quit(&next);
    expect_sound(store);
    lh_close(store);
}

TEST(waiting_maintenance_kills_processes_left_by_a_dead_worker)
{
    struct told told;
    lh_store *store = open_telling(&told);
    int64_t job;
    lh_maintained done = {0};
    pid_t below, leader = start((struct guise){.leads = true}, &below);
    pid_t pid = killed_worker(&store, leader, &job);
    for (int i = 0; i < TRIES && done.recovered == 0; i++) {
        EXPECT_OK(lh_maintain(store, &(lh_maintain_opts){.wait_ms = 1000}, &done));
        EXPECT(done.recovered == 1 ||
               done.next_ms <= 1000); /* a call that does not wait returns when to call again */
    }
    EXPECT_EQ(done.recovered, 1);
    EXPECT(!alive(leader) && !alive(below));
    EXPECT_EQ(told.killed, 2);
    expect_gone(store, pid, job);
    lh_close(store);
}

/* ---------------------------------------------------------------- and nothing else */

static void forge(const char *sessions)
{
    EXPECT_EQ(
        run_as_stranger("UPDATE lh_worker SET sessions = '%s' WHERE id = '%s'", sessions, ours()),
        1);
}

TEST(a_process_with_the_reused_pid_of_a_session_leader_is_not_killed)
{
    struct told told;
    lh_store *store = open_telling(&told);
    int64_t job;
    pid_t below, other = start((struct guise){.leads = true}, &below);
    pid_t pid = killed_worker(&store, 0, &job);
    char older[64];
    (void)snprintf(older, sizeof older, "[[%d,%lld]]", (int)other,
                   (long long)lhi_process_start(other) - 1);
    forge(older);
    EXPECT_EQ(upkeep(store), 1);
    expect_gone(store, pid, job);
    EXPECT(alive(other) && alive(below));
    end(other);
    end(below);
    lh_close(store);
}

TEST(a_process_of_uncertain_identity_is_not_killed_and_time_decides)
{
    clock_start();
    struct told told;
    lh_store *store = open_telling(&told);
    int64_t job;
    pid_t below, leader = start((struct guise){.leads = true}, &below);
    (void)killed_worker(&store, leader, &job);
    end(leader);
    (void)test_wait(leader); /* no process is left whose identity can be read */
    EXPECT_EQ(recovered(store), 0);
    EXPECT_EQ(told.spared, 1);
    EXPECT_EQ(told.killed, 0);
    EXPECT(alive(below));
    clock_advance_ms(SILENCE_MS);
    EXPECT_EQ(recovered(store), 1);
    expect_reason(store, job, " has been silent for ");
    EXPECT(alive(below));
    end(below);
    lh_close(store);
}

TEST(with_unreadable_sessions_a_worker_is_judged_by_time)
{
    clock_start();
    struct told told;
    lh_store *store = open_telling(&told);
    int64_t job;
    (void)killed_worker(&store, 0, &job);
    forge("[[1,2");
    EXPECT_EQ(recovered(store), 0);
    clock_advance_ms(SILENCE_MS);
    EXPECT_EQ(recovered(store), 1);
    lh_close(store);
}

TEST(a_recovery_does_not_kill_its_own_process_or_its_ancestors)
{
    struct told told;
    lh_store *store = open_telling(&told);
    int64_t job;
    int said[2];
    char ready;
    EXPECT_EQ(pipe(said), 0);
    pid_t leader = test_fork_reopening(&store, crew_open);
    if (leader == 0) {
        (void)setsid();
        pid_t child = test_fork();
        if (child == 0) {
            EXPECT_EQ(read(said[0], &ready, 1), 1);
            lh_store *mine = open_telling(&told);
            EXPECT_EQ(recovered(mine), 0);
            EXPECT_EQ(told.spared,
                      1); /* this process; a leader is checked after all others are dead */
            EXPECT_EQ(told.killed, 0);
            lh_close(mine);
            test_child_done();
        }
        EXPECT_EQ(test_wait(child).code, 0);
        test_child_done();
    }
    pid_t pid = killed_worker(&store, leader, &job);
    EXPECT_EQ(write(said[1], "", 1), 1);
    EXPECT_EQ(test_wait(leader).code, 0);
    EXPECT_EQ(upkeep(store), 1);
    expect_gone(store, pid, job);
    lh_close(store);
}

/* ---------------------------------------------------------------- who may not */

/* As the user nobody, in a folder, and on SQLite with files, of that user. */
static lh_store *open_as_nobody(struct told *told)
{
    EXPECT_EQ(setgroups(0, NULL), 0);
    EXPECT_EQ(setresgid(NOBODY, NOBODY, NOBODY), 0);
    EXPECT_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
    return open_telling(told);
}

static void give_to_nobody(void)
{
    static const char *const files[] = {".", "s.db", "s.db-wal", "s.db-shm", "s.db-lease"};

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        EXPECT(chown(files[i], NOBODY, NOBODY) == 0 ||
               i > 0); /* all but the first may be missing */
}

TEST(with_processes_that_cannot_be_killed_a_worker_is_judged_by_time)
{
    if (geteuid() != 0) {
        (void)fprintf(stderr, "not run: only root has somebody else's processes to show\n");
        return;
    }
    clock_start();
    struct told told;
    lh_store *store = open_telling(&told);
    int64_t job;
    pid_t below, leader = start((struct guise){.leads = true}, &below);
    (void)killed_worker(&store, leader, &job);
    give_to_nobody();
    (void)chmod(getenv("LHI_TEST_CONTROL"), 0666);
    pid_t recoverer = test_fork_reopening(&store, crew_open);
    if (recoverer == 0) {
        lh_store *mine = open_as_nobody(&told);
        EXPECT_EQ(recovered(mine), 0);
        EXPECT_EQ(told.killed, 0);
        EXPECT(told.refused >= 1);
        clock_advance_ms(SILENCE_MS);
        EXPECT_EQ(recovered(mine), 1);
        expect_reason(mine, job, " has been silent for ");
        lh_close(mine);
        test_child_done();
    }
    EXPECT_EQ(test_wait(recoverer).code, 0);
    EXPECT(alive(leader) && alive(below));
    EXPECT_EQ(job_now(store, job).state, LH_PENDING);
    end(leader);
    end(below);
    lh_close(store);
}
