/*
 * A command under a named lease: `leasehold lease run` and lh_lease_run(), with real processes, terminals
 * and deaths. The next holder of the lease checks whether any process of the last run is left.
 */
#include "work/shift.h"

#include "base/processes.h"

#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- runs ---- */

enum { MOST_WORDS = 30 };

static const char *const *words_of(const char *const words[], const char *argv[MOST_WORDS])
{
    size_t n = 0;

    argv[n++] = getenv("TEST_LEASEHOLD");
    argv[n++] = "--store";
    argv[n++] = "s.db";
    argv[n++] = "lease";
    argv[n++] = "run";
    for (size_t i = 0; words[i] != NULL; i++) {
        EXPECT(n < MOST_WORDS - 1);
        argv[n++] = words[i];
    }
    argv[n] = NULL;
    return argv;
}

#define START(...) start((const char *const[]){__VA_ARGS__, NULL})
static pid_t start(const char *const words[])
{
    const char *argv[MOST_WORDS];
    return test_spawn(words_of(words, argv));
}

/* Its exit code, or minus its signal. */
static int end_of(pid_t pid)
{
    EVENTUALLY(gone(pid));
    struct run r = test_wait(pid);
    return r.code >= 0 ? r.code : -r.sig;
}

#define RUN(...) end_of(START(__VA_ARGS__))

#define SCRIPT(script_) "--", SH(script_)

static lh_lease lease_now(struct shop *shop)
{
    lh_leases *leases = NULL;
    lh_lease found = {0};

    if (lh_lease_get(shop->store, "a", "b", &leases) == LH_OK)
        found = leases->lease[0];
    lh_leases_free(leases);
    found.owner = found.owner ? "somebody" : NULL; /* the string is freed with the answer */
    return found;
}

static bool held(struct shop *shop)
{
    return lease_now(shop).owner != NULL;
}

static int64_t alive(struct shop *shop)
{
    lh_workers *list = NULL;
    int64_t n = 0;

    EXPECT_OK(lh_worker_list(shop->store, &list));
    for (size_t i = 0; i < list->n; i++)
        n += strcmp(list->worker[i].state, "alive") == 0;
    lh_workers_free(list);
    return n;
}

/* Start a child in a session of its own and a daemon, and write their pids. */
#define FAMILY                                          \
    "setsid sh -c 'echo $$ > deep; exec sleep 1000' & " \
    "(sh -c 'echo $$ > away; exec sleep 1000' &) ; "    \
    "while [ ! -s deep ] || [ ! -s away ]; do sleep 0.02; done; echo $$ > top; sleep 1000"

/* For the next run: does any process of the family live? A zombie does not. */
#define LOOK                                                                               \
    "for who in top deep away; do "                                                        \
    "if grep -qs '^State:.[^ZX]' /proc/$(cat $who)/status; then touch overlap; fi; done; " \
    "touch got"

static pid_t start_family(struct shop *shop, const char *ttl)
{
    pid_t run = START("a/b", "--ttl", ttl, SCRIPT(FAMILY));

    (void)number_in("top");
    EVENTUALLY(alive(shop) == 1);
    return run;
}

static size_t threads_of(pid_t pid)
{
    struct lhi_process process;
    return lhi_process_read(pid, &process) ? (size_t)process.threads : 0;
}

static void expect_handed_on(pid_t next)
{
    EXPECT_EQ(end_of(next), 0);
    EXPECT(exists("got"));
    EXPECT(!exists("overlap"));
}

/* ---- like flock(1) ---- */

TEST(the_exit_code_is_that_of_the_command_and_the_lease_is_released)
{
    struct shop shop = shop_open();
    EXPECT_EQ(RUN("a/b", "--", "true"), 0);
    EXPECT_EQ(RUN("a/b", SCRIPT("exit 7")), 7);
    EXPECT_EQ(RUN("a/b", SCRIPT("kill -USR2 $$")), 128 + SIGUSR2);
    EXPECT(!held(&shop));
    shop_close(&shop);
}

TEST(a_command_that_cannot_be_run_acquires_nothing)
{
    struct shop shop = shop_open();
    write_file("no-program", "hello\n", 0600);
    EXPECT_EQ(RUN("a/b", "--", "no-such-program"), 2);
    EXPECT_EQ(RUN("a/b", "--", "./no-program"), 2);
    EXPECT_EQ(events(&shop, "lease.acquired"), 0);
    /* An executable file that no kernel can run. */
    write_file("no-format", "hello\n", 0700);
    EXPECT_EQ(RUN("a/b", "--", "./no-format"), 2);
    EXPECT(!held(&shop));
    shop_close(&shop);
}

TEST(no_other_owner_gets_the_lease_while_the_command_runs)
{
    struct shop shop = shop_open();
    pid_t first = START("a/b", SCRIPT("touch begun; " UNTIL("end")));
    EVENTUALLY(exists("begun"));
    EXPECT_EQ(RUN("a/b", "--", "touch", "second"), 4);
    EXPECT_EQ(RUN("a/b", "--wait=50ms", "--", "touch", "second"), 4);
    EXPECT(!exists("second"));
    touch("end");
    EXPECT_EQ(end_of(first), 0);
    EXPECT_EQ(RUN("a/b", "--", "touch", "second"), 0);
    EXPECT(exists("second"));
    shop_close(&shop);
}

/* Is a lease of this length extended while its command runs? A busy machine may not do it in a second. */
static bool is_extended(struct shop *shop, int64_t ttl_ms)
{
    char ttl[32];

    (void)snprintf(ttl, sizeof ttl, "%lldms", (long long)ttl_ms);
    pid_t run = START("a/b", "--ttl", ttl, SCRIPT("touch begun; " UNTIL("end")));
    EVENTUALLY(exists("begun") || gone(run));
    lh_lease before = lease_now(shop);
    EVENTUALLY(gone(run) || lease_now(shop).expires_at > before.acquired_at + 2 * ttl_ms);
    bool extended = !gone(run);
    if (extended) {
        EXPECT_EQ(lease_now(shop).token, before.token);
        EXPECT_EQ(lease_now(shop).acquired_at, before.acquired_at);
    }
    touch("end");
    EXPECT_EQ(end_of(run), extended ? 0 : 4);
    EXPECT(unlink("begun") == 0 || !extended);
    EXPECT_EQ(unlink("end"), 0);
    return extended;
}

TEST_TIMEOUT(a_lease_is_extended_for_as_long_as_the_command_runs, 120)
{
    struct shop shop = shop_open();
    EXPECT(is_extended(&shop, 1500) || is_extended(&shop, 4000) || is_extended(&shop, 10000));
    EXPECT(!held(&shop));
    shop_close(&shop);
}

TEST(a_lease_that_the_owner_already_holds_is_neither_extended_nor_released)
{
    struct shop shop = shop_open();
    lh_lease_opts opts = {.owner = "me", .ttl_ms = 600000};
    EXPECT_OK(lh_lease_acquire(shop.store, "a", "b", &opts, NULL));
    lh_lease before = lease_now(&shop);
    EXPECT_EQ(RUN("a/b", "--owner", "me", "--ttl", "20m", "--", "touch", "ran"), 4);
    EXPECT(!exists("ran"));
    EXPECT_EQ(lease_now(&shop).expires_at, before.expires_at);
    EXPECT_EQ(lease_now(&shop).token, before.token);
    shop_close(&shop);
}

TEST_TIMEOUT(many_runs_by_the_same_owner_never_overlap, 60)
{
    enum { RUNS = 12 };
    struct shop shop = shop_open();
    pid_t runs[RUNS];
    for (int i = 0; i < RUNS; i++)
        runs[i] = START("a/b", "--owner", "same", "--wait",
                        SCRIPT("mkdir one || touch overlap; echo x >> done; rmdir one"));
    for (int i = 0; i < RUNS; i++)
        EXPECT_EQ(end_of(runs[i]), 0);
    EXPECT_EQ(lines_of("done"), RUNS);
    EXPECT(!exists("overlap"));
    shop_close(&shop);
}

TEST(a_command_may_complete_its_lease_itself)
{
    struct shop shop = shop_open();
    EXPECT_EQ(setenv("PROGRAM", getenv("TEST_LEASEHOLD"), 1), 0);
    EXPECT_EQ(RUN("a/b", SCRIPT("$PROGRAM --store s.db lease complete $LEASEHOLD_LEASE --rows 5 "
                                "--token $LEASEHOLD_TOKEN; exit 3")),
              3);
    EXPECT_EQ(lease_now(&shop).rows, 5);
    /* But if the command releases the lease to another owner and continues, the lease is lost. */
    EXPECT_EQ(RUN("a/b", SCRIPT("$PROGRAM --store s.db lease release a/b --token $LEASEHOLD_TOKEN; "
                                "$PROGRAM --store s.db lease acquire a/b --owner other")),
              4);
    shop_close(&shop);
}

TEST(a_short_command_leaves_no_worker_behind)
{
    struct shop shop = shop_open();
    int64_t left = 1;
    for (int i = 0; i < 20 && left > 0; i++) { /* try again if the machine is slow */
        int64_t before = workers(&shop);
        EXPECT_EQ(RUN("a/b", "--", "true"), 0);
        left = workers(&shop) - before;
    }
    EXPECT_EQ(left, 0);
    shop_close(&shop);
}

/* ---- signals and terminals ---- */

TEST(signals_are_passed_on_to_the_command)
{
    struct shop shop = shop_open();
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        pid_t run =
            START("a/b", SCRIPT("trap 'exit 41' TERM; trap 'exit 42' INT; trap 'exit 43' HUP; "
                                "trap 'exit 44' USR1; touch begun; " UNTIL("end")));
        EVENTUALLY(exists("begun"));
        EXPECT_EQ(kill(run, signals[i]), 0);
        EXPECT_EQ(end_of(run), 41 + (int)i);
        EXPECT_EQ(unlink("begun"), 0);
    }
    EXPECT(!held(&shop));
    shop_close(&shop);
}

TEST(ignored_signals_stay_ignored)
{
    struct shop shop = shop_open();
    EXPECT(signal(SIGHUP, SIG_IGN) != SIG_ERR);
    pid_t run = START("a/b", SCRIPT("kill -HUP $$; kill -HUP $PPID; touch lives; " UNTIL("end")));
    EVENTUALLY(exists("lives"));
    EXPECT_EQ(kill(run, SIGHUP), 0);
    touch("end");
    EXPECT_EQ(end_of(run), 0);
    /* Signals that the library ignores are not ignored in the command. */
    EXPECT_EQ(RUN("a/b", SCRIPT("kill -PIPE $$")), 128 + SIGPIPE);
    shop_close(&shop);
}

struct terminal {
    int fd; /* our end */
    pid_t pid;
};

/* On a terminal of its own, as a shell would start it. */
static struct terminal on_terminal(const char *script)
{
    struct terminal t = {.fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)};
    const char *argv[MOST_WORDS];

    EXPECT(t.fd >= 0 && grantpt(t.fd) == 0 && unlockpt(t.fd) == 0);
    (void)words_of((const char *const[]){"a/b", SCRIPT(script), NULL}, argv);
    t.pid = test_fork();
    if (t.pid == 0) {
        union {
            const char *const *given;
            char *const *wanted;
        } args = {.given = argv};
        (void)setsid();
        int fd = open(ptsname(t.fd), O_RDWR);
        if (ioctl(fd, TIOCSCTTY, 0) == 0 && dup2(fd, 0) == 0 && dup2(fd, 1) == 1 &&
            dup2(fd, 2) == 2)
            (void)execv(argv[0], args.wanted);
        _exit(127);
    }
    return t;
}

static void type(const struct terminal *t, const char *keys)
{
    EXPECT_EQ(write(t->fd, keys, strlen(keys)), (ssize_t)strlen(keys));
}

TEST(the_command_controls_the_terminal)
{
    struct shop shop = shop_open();
    struct terminal t =
        on_terminal("touch begun; read line < /dev/tty; echo $line > typed; exit 5");
    EVENTUALLY(exists("begun"));
    type(&t, "hello\n");
    EXPECT_EQ(end_of(t.pid), 5);
    EXPECT_EQ(lines_of("typed"), 1);
    close(t.fd);
    shop_close(&shop);
}

/* Count interrupts; one that a process sends would be the second. */
#define COUNT_INTERRUPTS                                                                    \
    "exec python3 -c 'import os, signal, sys\n"                                             \
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"                           \
    "open(\"begun\", \"w\")\n"                                                              \
    "while not os.path.exists(\"end\"):\n"                                                  \
    "    hit = signal.sigtimedwait([signal.SIGINT], 0.02)\n"                                \
    "    if hit: print(hit, file=open(\"passed-on\" if hit.si_pid else \"hits\", \"a\"))\n" \
    "sys.exit(6)'"

TEST(an_interrupt_key_reaches_only_the_command_and_only_once)
{
    struct shop shop = shop_open();
    struct terminal t = on_terminal(COUNT_INTERRUPTS);
    EVENTUALLY(exists("begun"));
    for (size_t i = 1; i <= 3; i++) {
        type(&t, "\x03");
        EVENTUALLY(lines_of("hits") >= i);
    }
    touch("end");
    EXPECT_EQ(end_of(t.pid), 6);
    EXPECT_EQ(lines_of("hits"), 3);
    EXPECT(!exists("passed-on"));
    /* Without a shell, which may miss the key while it starts a program. */
    struct terminal plain =
        on_terminal("exec python3 -c 'import time; open(\"begun2\", \"w\"); time.sleep(1000)'");
    EVENTUALLY(exists("begun2"));
    type(&plain, "\x03");
    EXPECT_EQ(end_of(plain.pid), 128 + SIGINT);
    EXPECT(!held(&shop));
    close(t.fd);
    close(plain.fd);
    shop_close(&shop);
}

/* ---- deaths ---- */

TEST(the_processes_of_a_killed_run_die_and_its_lease_is_free_immediately)
{
    struct shop shop = shop_open();
    pid_t run = start_family(&shop, "10m");
    pid_t next = START("a/b", "--wait", SCRIPT(LOOK));
    EVENTUALLY(threads_of(next) > 1); /* a second thread runs maintenance: the run waits */
    EXPECT_EQ(kill(run, SIGKILL), 0);
    expect_handed_on(next);
    EXPECT_EQ(end_of(run), -SIGKILL);
    EXPECT_EQ(events(&shop, "lease.recovered"), 1);
    shop_close(&shop);
}

TEST(a_run_that_does_not_wait_gets_the_lease_of_a_dead_run)
{
    struct shop shop = shop_open();
    pid_t run = start_family(&shop, "10m");
    EXPECT_EQ(kill(run, SIGKILL), 0);
    EXPECT_EQ(end_of(run), -SIGKILL);
    EVENTUALLY(gone(number_in("top")) && gone(number_in("deep")) && gone(number_in("away")));
    EVENTUALLY(RUN("a/b", SCRIPT(LOOK)) == 0); /* the guardian may need a moment */
    EXPECT(!exists("overlap"));
    shop_close(&shop);
}

TEST(the_processes_of_a_killed_run_with_an_owner_die_and_its_lease_expires)
{
    struct shop shop = shop_open();
    pid_t run = START("a/b", "--owner", "me", "--ttl", "2s", SCRIPT(FAMILY));
    (void)number_in("top");
    pid_t next = START("a/b", "--wait", SCRIPT(LOOK));
    EXPECT_EQ(kill(run, SIGKILL), 0);
    expect_handed_on(next);
    EXPECT_EQ(end_of(run), -SIGKILL);
    EXPECT_EQ(events(&shop, "worker.dead"), 0);
    shop_close(&shop);
}

/* As a shell starts a job, and as `kill -9 %1` ends it. */
TEST(a_kill_of_the_process_group_also_ends_processes_that_left_it)
{
    struct shop shop = shop_open();
    const char *argv[MOST_WORDS];
    (void)words_of(
        (const char *const[]){"a/b", "--owner", "me", "--ttl", "2s", SCRIPT(FAMILY), NULL}, argv);
    pid_t run = test_fork();
    if (run == 0) {
        union {
            const char *const *given;
            char *const *wanted;
        } args = {.given = argv};
        if (setpgid(0, 0) == 0)
            (void)execv(argv[0], args.wanted);
        _exit(127);
    }
    (void)number_in("top");
    EXPECT_EQ(kill(-run, SIGKILL), 0);
    EVENTUALLY(gone(number_in("top")) && gone(number_in("deep")) && gone(number_in("away")));
    EXPECT_EQ(end_of(run), -SIGKILL);
    shop_close(&shop);
}

TEST(the_processes_of_a_killed_guardian_die)
{
    struct shop shop = shop_open();
    struct shift run = {.pid = start_family(&shop, "10m")};
    pid_t next = START("a/b", "--wait", SCRIPT(LOOK));
    EXPECT_EQ(kill(guardian_of(&run), SIGKILL), 0);
    EXPECT_EQ(end_of(run.pid), 1);
    expect_handed_on(next);
    shop_close(&shop);
}

TEST(leftover_processes_of_a_killed_run_and_guardian_die_before_the_lease_is_free)
{
    struct shop shop = shop_open();
    struct shift run = {.pid = start_family(&shop, "10m")};
    pid_t guardian = guardian_of(&run);
    pid_t next = START("a/b", "--wait", SCRIPT(LOOK));
    EXPECT_EQ(kill(run.pid, SIGSTOP), 0);
    EXPECT_EQ(kill(guardian, SIGKILL), 0);
    EXPECT_EQ(kill(run.pid, SIGKILL), 0);
    expect_handed_on(next);
    EXPECT_EQ(end_of(run.pid), -SIGKILL);
    shop_close(&shop);
}

TEST(a_stopped_run_is_fenced_by_its_guardian_before_its_lease_ends)
{
    struct shop shop = shop_open();
    pid_t run = start_family(&shop, "2s");
    pid_t next = START("a/b", "--wait", SCRIPT(LOOK));
    shift_freeze(&(struct shift){.pid = run});
    expect_handed_on(next);
    EXPECT_EQ(kill(run, SIGCONT), 0);
    EXPECT_EQ(end_of(run), 4);
    shop_close(&shop);
}

TEST(processes_that_a_command_leaves_behind_are_killed)
{
    struct shop shop = shop_open();
    EXPECT_EQ(RUN("a/b", SCRIPT("setsid sh -c 'echo $$ > deep; exec sleep 1000' & "
                                "while [ ! -s deep ]; do sleep 0.02; done; exit 3")),
              3);
    EXPECT(gone(number_in("deep")));
    EXPECT(!held(&shop));
    shop_close(&shop);
}

/* ---- the lease is lost ---- */

static void release_by_hand(struct shop *shop)
{
    lh_leases *leases = NULL;
    bool released = false;

    EXPECT_OK(lh_lease_get(shop->store, "a", "b", &leases));
    EXPECT_OK(lh_lease_release(shop->store, "a", "b",
                               &(lh_lease_opts){.owner = leases->lease[0].owner}, &released));
    EXPECT(released);
    lh_leases_free(leases);
}

TEST(a_lease_taken_by_an_operator_stops_all_processes_of_the_command)
{
    struct shop shop = shop_open();
    pid_t run =
        START("a/b", "--ttl", "6s", "--kill-after", "2s",
              SCRIPT("trap 'touch termed; exit 0' TERM; setsid sh -c 'trap \"\" TERM; echo $$ > "
                     "deep; exec sleep 1000' & while [ ! -s deep ]; do sleep 0.02; done; "
                     "touch begun; " UNTIL("never")));
    EVENTUALLY(exists("begun"));
    release_by_hand(&shop);
    EXPECT_EQ(end_of(run), 4);
    EXPECT(exists("termed"));
    EXPECT(gone(number_in("deep")));
    EXPECT(!held(&shop));
    shop_close(&shop);
}

TEST(a_command_that_ends_after_its_lease_was_taken_is_reported_as_lost)
{
    struct shop shop = shop_open();
    pid_t run = START("a/b", "--ttl", "10m", SCRIPT("touch begun; " UNTIL("end")));
    EVENTUALLY(exists("begun"));
    release_by_hand(&shop);
    EXPECT_OK(lh_lease_acquire(shop.store, "a", "b",
                               &(lh_lease_opts){.owner = "other", .ttl_ms = 600000}, NULL));
    touch("end");
    EXPECT_EQ(end_of(run), 4);
    EXPECT(held(&shop));
    shop_close(&shop);
}

TEST_TIMEOUT(a_store_that_cannot_be_written_stops_the_command_in_time, 60)
{
    struct shop shop = shop_open();
    sqlite3 *db = NULL;
    pid_t run = START("a/b", "--ttl", "2s", "--kill-after", "100ms",
                      SCRIPT("trap '' TERM; echo $$ > pid; " UNTIL("never")));
    int64_t pid = number_in("pid");
    lh_lease lease = lease_now(&shop);
    EXPECT_EQ(sqlite3_open("s.db", &db), SQLITE_OK);
    (void)sqlite3_busy_timeout(db, 5000);
    EXPECT_EQ(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    lease = lease_now(&shop);
    EVENTUALLY(gone(pid));
    EXPECT(now_wall_ms() < lease.expires_at);
    EXPECT_EQ(sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    EXPECT_EQ(sqlite3_close(db), SQLITE_OK);
    EXPECT_EQ(end_of(run), 4);
    shop_close(&shop);
}

/* ---- waiting ---- */

static int by_size(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return a < b ? -1 : a > b;
}

/* The time from the end of one run to the start of the next, as the median of some rounds. */
static int64_t handover_ms(void)
{
    enum { ROUNDS = 9 };
    int64_t took_ms[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        pid_t first = START("a/b", SCRIPT("touch begun; " UNTIL("end") "date +%s%3N > ended"));
        EVENTUALLY(exists("begun"));
        pid_t next = START("a/b", "--wait", SCRIPT("date +%s%3N > taken"));
        EVENTUALLY(threads_of(next) > 1); /* a second thread runs maintenance: the run waits */
        touch("end");
        EXPECT_EQ(end_of(first), 0);
        EXPECT_EQ(end_of(next), 0);
        took_ms[i] = number_in("taken") - number_in("ended");
        EXPECT(unlink("begun") == 0 && unlink("end") == 0 && unlink("ended") == 0 &&
               unlink("taken") == 0);
    }
    qsort(took_ms, ROUNDS, sizeof *took_ms, by_size);
    (void)fprintf(stderr,
                  "from the end of one to the start of the next: median %lld ms, longest %lld\n",
                  (long long)took_ms[ROUNDS / 2], (long long)took_ms[ROUNDS - 1]);
    return took_ms[ROUNDS / 2];
}

/* A waiting run polls once a second, which takes 500 ms in the median; a wake-up is faster. Only starting
 * two programs may take as long on a busy machine, and is then tried again when that is over. */
TEST_TIMEOUT(a_waiting_run_gets_the_lease_as_soon_as_it_is_released, 120)
{
    enum { TRIES = 8 };
    struct shop shop = shop_open();
    int tries = 0;
    while (handover_ms() >= 200)
        EXPECT(++tries < TRIES);
    shop_close(&shop);
}

TEST(a_waiting_run_gets_the_lease_when_it_expires)
{
    struct shop shop = shop_open();
    lh_lease_opts opts = {.owner = "gone", .ttl_ms = 300};
    EXPECT_OK(lh_lease_acquire(shop.store, "a", "b", &opts, NULL));
    EXPECT_EQ(RUN("a/b", "--wait=10s", "--", "touch", "ran"), 0);
    EXPECT(exists("ran"));
    shop_close(&shop);
}

TEST(a_waiting_run_can_be_interrupted)
{
    struct shop shop = shop_open();
    lh_lease_opts opts = {.owner = "other", .ttl_ms = 600000};
    EXPECT_OK(lh_lease_acquire(shop.store, "a", "b", &opts, NULL));
    struct shift run = {.pid = START("a/b", "--wait", "--", "touch", "ran")};
    pid_t guardian = guardian_of(&run);
    EXPECT_EQ(kill(run.pid, SIGTERM), 0);
    EXPECT_EQ(end_of(run.pid), -SIGTERM);
    EVENTUALLY(gone(guardian));
    EXPECT(!exists("ran"));
    shop_close(&shop);
}

/* ---- from C ---- */

static void *raise_when_begun(void *arg)
{
    EVENTUALLY(exists("begun"));
    __atomic_store_n((int *)arg, 1, __ATOMIC_RELAXED);
    return NULL;
}

TEST(a_raised_flag_stops_the_command_and_releases_the_lease)
{
    struct shop shop = shop_open();
    char sh[] = "sh", c[] = "-c", script[] = "touch begun; sleep 1000";
    char *command[] = {sh, c, script, NULL};
    char error[200];
    int flag = 0, status = -1;
    pthread_t thread;
    lh_lease_run_opts opts = {.guardian = guardian_path(), .cancel = &flag};
    EXPECT_EQ(pthread_create(&thread, NULL, raise_when_begun, &flag), 0);
    EXPECT_STATUS(lh_lease_run(shop.store, "a", "b", command, &opts, &status, error, sizeof error),
                  LH_EINTR);
    EXPECT_STR(error, "the command was stopped");
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT(!held(&shop));
    /* A raised flag also ends the wait for a lease. */
    EXPECT_OK(lh_lease_acquire(shop.store, "a", "b",
                               &(lh_lease_opts){.owner = "other", .ttl_ms = 600000}, NULL));
    opts.wait_ms = -1;
    EXPECT_STATUS(lh_lease_run(shop.store, "a", "b", command, &opts, &status, error, sizeof error),
                  LH_EINTR);
    shop_close(&shop);
}

TEST(bad_values_are_refused_with_a_sentence)
{
    struct shop shop = shop_open();
    char name[] = "true";
    char *command[] = {name, NULL};
    char error[480];
    lh_lease_run_opts opts = {.guardian = guardian_path(), .wait_ms = -2};
    EXPECT_STATUS(lh_lease_run(shop.store, "a", "b", command, &opts, NULL, error, sizeof error),
                  LH_EINVAL);
    EXPECT_CONTAINS(error, "got -2");
    opts = (lh_lease_run_opts){.guardian = guardian_path(), .kill_after_ms = -1};
    EXPECT_STATUS(lh_lease_run(shop.store, "a", "b", command, &opts, NULL, error, sizeof error),
                  LH_EINVAL);
    EXPECT_CONTAINS(error, "SIGKILL is -1 ms");
    EXPECT_STATUS(lh_lease_run(shop.store, "a", "b", NULL, NULL, NULL, error, sizeof error),
                  LH_EMISUSE);
    opts = (lh_lease_run_opts){.guardian = "/no/such/guardian"};
    EXPECT_STATUS(lh_lease_run(shop.store, "a", "b", command, &opts, NULL, error, sizeof error),
                  LH_EINVAL);
    EXPECT_CONTAINS(error, "/no/such/guardian");
    opts = (lh_lease_run_opts){.guardian = guardian_path(), .owner = "no name"};
    EXPECT_STATUS(lh_lease_run(shop.store, "a", "b", command, &opts, NULL, error, sizeof error),
                  LH_EINVAL);
    EXPECT_CONTAINS(error, "no name");
    shop_close(&shop);
}
