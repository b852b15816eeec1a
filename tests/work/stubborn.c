/* Commands that misbehave: no process of a run is left when its job has ended. */
#include "work/shift.h"

#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20 };

/* ---------------------------------------------------------------- commands that must be killed */

TEST(a_command_that_ignores_sigterm_is_killed)
{
    struct shop shop = shop_open();
    long_backoff(&shop);
    int64_t job = put(&shop, "q", "x");
    struct shift shift =
        SHIFT("q", "--timeout", "150ms", "--kill-after", "150ms", "--",
              SH("trap 'echo termed >>log' TERM; echo $$ >pid; while :; do sleep 0.02; done"));
    int64_t pid = number_in("pid");
    EVENTUALLY(state_of(&shop, job) == LH_SCHEDULED);
    EXPECT(gone(pid));
    EXPECT_CONTAINS(look(&shop, job)->last_error, "TIMEOUT: stopped after 150ms");
    EXPECT_EQ(look(&shop, job)->attempt, 1);
    EXPECT_EQ(lines_of("log"), 1);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

TEST(a_command_that_exits_cleanly_after_its_timeout_has_failed)
{
    struct shop shop = shop_open();
    long_backoff(&shop);
    int64_t job = put(&shop, "q", "x");
    struct shift shift =
        SHIFT("q", "--timeout", "100ms", "--kill-after", "10s", "--",
              SH("trap 'echo cleaned up >&2; exit 0' TERM; while :; do sleep 0.02; done"));
    EVENTUALLY(state_of(&shop, job) == LH_SCHEDULED);
    EXPECT_CONTAINS(look(&shop, job)->last_error, "TIMEOUT: stopped after 100ms");
    EXPECT_CONTAINS(look(&shop, job)->last_error, "cleaned up");
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

TEST(the_timeout_of_the_worker_overrides_that_of_the_policy)
{
    struct shop shop = shop_open();
    long_backoff(&shop);
    policy(&shop, .set = LH_POLICY_TIMEOUT, .timeout_ms = 120);
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--", "sleep", "600");
    EVENTUALLY(state_of(&shop, job) == LH_SCHEDULED);
    EXPECT_STR(look(&shop, job)->last_error, "TIMEOUT: stopped after 120ms");
    EXPECT_EQ(shift_stop(&shift), 0);
    int64_t next = put(&shop, "p", "x");
    shift = SHIFT("p", "--timeout", "90ms", "--", "sleep", "600");
    EVENTUALLY(state_of(&shop, next) == LH_SCHEDULED);
    EXPECT_STR(look(&shop, next)->last_error, "TIMEOUT: stopped after 90ms");
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* A stopped process does not react to SIGTERM. */
TEST(a_command_that_stopped_itself_is_killed)
{
    struct shop shop = shop_open();
    long_backoff(&shop);
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--timeout", "100ms", "--kill-after", "600s", "--",
                               SH("echo $$ >pid; kill -STOP $$; sleep 600"));
    int64_t pid = number_in("pid");
    EVENTUALLY(state_of(&shop, job) == LH_SCHEDULED); /* long before SIGKILL is due */
    EXPECT(gone(pid));
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- unread input */

TEST(a_command_need_not_read_its_payload)
{
    struct shop shop = shop_open();
    char *large = calloc(1, MIB);
    EXPECT(large != NULL);
    int64_t never = put_bytes(&shop, "q", large, MIB), early = put_bytes(&shop, "q", large, MIB);
    int64_t some = put_bytes(&shop, "q", large, MIB);
    EXPECT_WORK(
        0, "q", "--drain", "--",
        SH("case $LEASEHOLD_JOB_ID in 2) exec <&-;; 3) head -c 10 >/dev/null;; esac; echo done"));
    EXPECT_EQ(state_of(&shop, never), LH_COMPLETED);
    EXPECT_EQ(state_of(&shop, early), LH_COMPLETED);
    EXPECT_EQ(state_of(&shop, some), LH_COMPLETED);
    free(large);
    shop_close(&shop);
}

TEST(a_command_may_close_all_its_descriptors)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--", SH("exec <&- >&- 2>&- 3>&-; : >closed;" UNTIL("go")));
    EVENTUALLY(exists("closed"));
    EXPECT_EQ(state_of(&shop, job), LH_RUNNING);
    touch("go");
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- leftover processes */

/* `leave` is a script that starts a process in the background and writes its pid to "pid". */
static void expect_nothing_left(const char *leave)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--kill-after", "100ms", "--", SH(leave));
    int64_t pid = number_in("pid");
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT(gone(pid));
    EXPECT_MEM(look(&shop, job)->result, look(&shop, job)->result_len, "done\n", 5);
    int64_t next = put(&shop, "p", "x");
    EXPECT_EQ(state_of(&shop, next), LH_PENDING);
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

TEST(a_background_process_that_holds_the_pipes_is_killed_with_its_command)
{
    expect_nothing_left("sleep 600 & echo $! >pid; echo done");
}

TEST(a_background_process_that_ignores_sigterm_is_killed_with_its_command)
{
    expect_nothing_left(
        "sh -c 'trap \"\" TERM; echo $$ >pid; while :; do sleep 0.02; done' & " UNTIL(
            "pid") "echo done");
}

TEST(a_daemon_is_killed_with_the_command_that_started_it)
{
    expect_nothing_left(
        "setsid sh -c 'cd /; exec </dev/null >/dev/null 2>&1 3>&-; "
        "trap \"\" TERM HUP; (setsid sh -c \"echo \\$\\$ >$0/pid; "
        "trap : TERM; while :; do sleep 0.02; done\" &)' $PWD; " UNTIL("pid") "echo done");
}

TEST(a_daemon_with_an_empty_environment_is_killed_with_its_command)
{
    expect_nothing_left(
        "env -i setsid sh -c 'echo $$ >pid; exec sleep 600 >/dev/null 2>&1' & " UNTIL(
            "pid") "echo done");
}

/* Each process starts the next one in a new session and exits. */
TEST(a_process_that_forks_forever_is_killed)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    write_file("hop", "trap '' TERM\necho $$ >>hops\nsetsid sh hop &\n", 0600);
    struct shift shift = SHIFT("q", "--kill-after", "100ms", "--", SH("sh hop; echo done"));
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    size_t hops = lines_of("hops");
    EXPECT(hops > 2);
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT_EQ(lines_of("hops"), hops);
    shop_close(&shop);
}

/* A process that holds the pipes must not delay the end of the job or the start of the next one. */
TEST(commands_that_leave_processes_behind_run_one_after_the_other)
{
    struct shop shop = shop_open();
    put_many(&shop, "q", 20);
    EXPECT_WORK(0, "q", "-j", "2", "--drain", "--", SH("sleep 600 & echo $! >>pids; exit 0"));
    EXPECT_EQ(count(&shop, LH_COMPLETED), 20);
    EXPECT_EQ(lines_of("pids"), 20);
    shop_close(&shop);
}
