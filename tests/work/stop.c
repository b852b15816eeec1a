/* How a worker stops, and what it reports. */
#include "work/shift.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void expect_graceful(int sig)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift =
        SHIFT("q", "--heartbeat", "500ms", "--",
              SH("trap ': >termed' TERM INT HUP; echo $$ >pid;" UNTIL("go") "echo done"));
    (void)number_in("pid");
    shift_signal(&shift, sig);
    EVENTUALLY(said(&shift, "stopping: waiting for 1 job"));
    int64_t next = put(&shop, "q", "y"), beat = look(&shop, job)->last_heartbeat_at;
    EVENTUALLY(look(&shop, job)->last_heartbeat_at > beat); /* it still extends the lease */
    EXPECT(!exists("termed"));
    EXPECT_EQ(state_of(&shop, next), LH_PENDING);
    touch("go");
    EXPECT_EQ(shift_wait(&shift), 0);
    EXPECT_EQ(state_of(&shop, job), LH_COMPLETED);
    EXPECT_EQ(look(&shop, next)->token, 0);
    EXPECT_EQ(events(&shop, "worker.stopped"), 1);
    shop_close(&shop);
}

TEST(sigterm_stops_claims_and_waits_for_running_jobs)
{
    expect_graceful(SIGTERM);
}

TEST(sigint_stops_like_sigterm)
{
    expect_graceful(SIGINT);
}

TEST(sighup_stops_like_sigterm)
{
    expect_graceful(SIGHUP);
}

/* As with nohup, or a command that a script starts with &. */
TEST(a_signal_that_was_ignored_at_the_start_stays_ignored)
{
    struct shop shop = shop_open();
    EXPECT(signal(SIGHUP, SIG_IGN) != SIG_ERR && signal(SIGINT, SIG_IGN) != SIG_ERR);
    struct shift shift = SHIFT("q", "--", "true");
    shift_signal(&shift, SIGHUP);
    shift_signal(&shift, SIGINT);
    int64_t job = put(&shop, "q", "x");
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT(!said(&shift, "stopp"));
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

TEST(an_idle_worker_stops_at_once)
{
    struct shop shop = shop_open();
    struct shift shift = SHIFT("q", "-j", "4", "--", "true");
    int64_t since = now_ms();
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT(now_ms() - since < 10000); /* an idle worker may sleep for half a minute */
    EXPECT_EQ(events(&shop, "worker.stopped"), 1);
    shop_close(&shop);
}

TEST(after_the_grace_time_running_jobs_are_stopped_and_released_without_an_attempt)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--grace", "100ms", "--kill-after", "100ms", "--",
                               SH("trap 'echo x >>termed' TERM; echo $$ >pid;"
                                  "while :; do sleep 0.02; done"));
    int64_t pid = number_in("pid");
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT(gone(pid));
    EXPECT_EQ(lines_of("termed"), 1);
    EXPECT_EQ(state_of(&shop, job), LH_PENDING);
    EXPECT_EQ(look(&shop, job)->attempt, 0);
    EXPECT_EQ(look(&shop, job)->recoveries, 0);
    EXPECT_STR(look(&shop, job)->last_error, NULL);
    shop_close(&shop);
}

TEST(a_stopped_command_that_exits_with_zero_completes_its_job)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--grace", "0s", "--kill-after", "10s", "--",
                               SH("trap 'echo done; exit 0' TERM; echo $$ >pid;"
                                  "while :; do sleep 0.02; done"));
    (void)number_in("pid");
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT_EQ(state_of(&shop, job), LH_COMPLETED);
    EXPECT_MEM(look(&shop, job)->result, look(&shop, job)->result_len, "done\n", 5);
    shop_close(&shop);
}

TEST(a_second_signal_stops_at_once)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x"), ahead = put(&shop, "q", "y");
    struct shift shift = SHIFT("q", "--batch", "1", "--grace", "1h", "--kill-after", "1h", "--",
                               SH("trap '' TERM; echo $$ >pid; while :; do sleep 0.02; done"));
    int64_t pid = number_in("pid");
    shift_signal(&shift, SIGTERM);
    EVENTUALLY(said(&shift, "stopping: waiting for 1 job"));
    EVENTUALLY(state_of(&shop, ahead) ==
               LH_PENDING); /* a job that was not started is released at once */
    EXPECT_EQ(state_of(&shop, job), LH_RUNNING);
    EXPECT_EQ(shift_stop(&shift), 0); /* long before the grace time ends */
    EXPECT(gone(pid));
    EXPECT_EQ(state_of(&shop, job), LH_PENDING);
    EXPECT_EQ(look(&shop, job)->attempt, 0);
    EXPECT_EQ(look(&shop, ahead)->attempt, 0);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- draining */

TEST(drain_ends_when_no_job_is_pending_or_running)
{
    struct shop shop = shop_open();
    EXPECT_WORK(0, "q", "--drain=pending", "--", "false");
    int64_t first = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--drain", "--", SH("echo >>runs;" UNTIL("go")));
    EVENTUALLY(lines_of("runs") == 1);
    int64_t second = put(&shop, "q", "y"); /* enqueued while the worker drains */
    touch("go");
    EXPECT_EQ(shift_wait(&shift), 0);
    EXPECT_EQ(state_of(&shop, first), LH_COMPLETED);
    EXPECT_EQ(state_of(&shop, second), LH_COMPLETED);
    shop_close(&shop);
}

TEST(once_runs_one_job_and_returns_its_outcome)
{
    struct shop shop = shop_open();
    long_backoff(&shop);
    EXPECT_WORK(3, "q", "--once", "--", "true");
    int64_t first = put(&shop, "q", "0"), second = put(&shop, "q", "1"),
            third = put(&shop, "q", "75");
    EXPECT_WORK(0, "q", "--once", "-j", "4", "--batch", "4", "--", SH("read c; exit $c"));
    EXPECT_EQ(state_of(&shop, first), LH_COMPLETED);
    EXPECT_EQ(look(&shop, second)->token, 0);
    EXPECT_WORK(1, "q", "--once", "--", SH("read c; exit $c"));
    EXPECT_EQ(state_of(&shop, second), LH_SCHEDULED);
    EXPECT_WORK(1, "q", "--once", "--", SH("read c; exit $c"));
    EXPECT_EQ(state_of(&shop, third), LH_SCHEDULED);
    EXPECT_WORK(3, "other", "--once", "--", "true");
    shop_close(&shop);
}

TEST(a_worker_claims_only_its_queues_and_kinds)
{
    struct shop shop = shop_open();
    lh_enqueued out;
    EXPECT_OK(lh_enqueue(shop.store, "q", &(lh_new_job){.kind = "a"}, 1, NULL, &out));
    EXPECT_OK(lh_enqueue(shop.store, "q", &(lh_new_job){.kind = "b"}, 1, NULL, &out));
    EXPECT_OK(lh_enqueue(shop.store, "p", &(lh_new_job){.kind = "a"}, 1, NULL, &out));
    EXPECT_OK(lh_enqueue(shop.store, "o", &(lh_new_job){.kind = "a"}, 1, NULL, &out));
    EXPECT_WORK(0, "p", "q", "--kind", "a", "--drain", "--",
                SH("echo $LEASEHOLD_QUEUE$LEASEHOLD_KIND >>runs"));
    EXPECT_EQ(lines_of("runs"), 2);
    EXPECT_EQ(count(&shop, LH_COMPLETED), 2);
    EXPECT_EQ(state_of(&shop, 2), LH_PENDING);
    EXPECT_EQ(state_of(&shop, 4), LH_PENDING);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- the service manager */

static int notify_socket(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    (void)snprintf(at.sun_path, sizeof at.sun_path, "%s/notify", test_tmpdir());
    EXPECT(fd >= 0 && bind(fd, (const struct sockaddr *)&at, sizeof at) == 0);
    EXPECT_EQ(setenv("NOTIFY_SOCKET", at.sun_path, 1), 0);
    return fd;
}

/* Expect the next message that differs from `but`. */
static void expect_told(int fd, const char *wanted, const char *but)
{
    char text[256];

    do {
        ssize_t n = recv(fd, text, sizeof text - 1, 0);
        EXPECT(n > 0);
        text[n] = '\0';
    } while (but != NULL && strcmp(text, but) == 0);
    EXPECT_STR(text, wanted);
}

TEST(the_service_manager_is_notified_of_readiness_life_and_end)
{
    struct shop shop = shop_open();
    int fd = notify_socket();
    EXPECT_EQ(setenv("WATCHDOG_USEC", "200000", 1), 0);
    int64_t since = now_ms();
    struct shift shift = SHIFT("q", "--", "true");
    expect_told(fd, "READY=1", NULL);
    for (int i = 0; i < 10; i++) /* at half the interval, not all at once */
        expect_told(fd, "WATCHDOG=1", NULL);
    EXPECT(now_ms() - since >= 600);
    shift_signal(&shift, SIGTERM);
    expect_told(fd, "STOPPING=1", "WATCHDOG=1");
    EXPECT_EQ(shift_wait(&shift), 0);
    close(fd);
    shop_close(&shop);
}

TEST(a_waiting_worker_feeds_the_watchdog_and_a_hanging_one_does_not)
{
    struct shop shop = shop_open();
    int fd = notify_socket();
    int64_t job = put(&shop, "q", "x");
    EXPECT_EQ(setenv("WATCHDOG_USEC", "100000", 1), 0);
    struct shift shift = SHIFT("q", "--", SH(UNTIL("go")));
    expect_told(fd, "READY=1", NULL);
    EVENTUALLY(state_of(&shop, job) == LH_RUNNING);
    for (int i = 0; i < 5; i++)
        expect_told(fd, "WATCHDOG=1", NULL);
    shift_signal(&shift, SIGTERM);
    expect_told(fd, "STOPPING=1", "WATCHDOG=1");
    for (int i = 0; i < 3; i++) /* it waits for its job and still feeds the watchdog */
        expect_told(fd, "WATCHDOG=1", NULL);
    touch("go");
    EXPECT_EQ(shift_wait(&shift), 0);
    close(fd);
    shop_close(&shop);
}

TEST(a_hangup_that_comes_with_a_sigterm_is_one_stop)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--grace", "1h", "--",
                               SH("echo $$ >pid; until test -e over; do sleep 0.02; done"));
    (void)number_in("pid");
    shift_signal(&shift, SIGTERM);
    shift_signal(&shift, SIGHUP);
    EVENTUALLY(said(&shift, "stopping: waiting for 1 job"));
    EXPECT_EQ(state_of(&shop, job), LH_RUNNING);
    touch("over");
    EXPECT_EQ(shift_wait(&shift), 0);
    EXPECT_EQ(state_of(&shop, job), LH_COMPLETED);
    shop_close(&shop);
}

/* Does a command that runs for twice its lease after SIGTERM reach its end? Its heartbeats must be confirmed
 * within the lease, which takes longer than a second on a busy machine. */
static bool ends_long_after_sigterm(struct shop *shop, int64_t lease_ms)
{
    char lease[32], heartbeat[32], script[400];

    (void)snprintf(lease, sizeof lease, "%lldms", (long long)lease_ms);
    (void)snprintf(heartbeat, sizeof heartbeat, "%lldms", (long long)lease_ms / 6);
    (void)snprintf(script, sizeof script,
                   "trap 'told=1' TERM; n=0; while test $n -lt %lld; do sleep 0.02;"
                   "test -z \"$told\" || n=$((n + 1)); done; touch ended",
                   (long long)lease_ms / 10);
    int64_t job = put(shop, "q", "x");
    struct shift shift = SHIFT("q", "--lease", lease, "--heartbeat", heartbeat, "--timeout",
                               "300ms", "--kill-after", "10m", "--once", "--", SH(script));
    EXPECT_EQ(shift_wait(&shift), 1);
    if (!exists("ended")) {
        EXPECT(said(&shift, "no heartbeat was confirmed in time"));
        cancel(shop, job);
        return false;
    }
    EXPECT_EQ(state_of(shop, job), LH_SCHEDULED);
    return true;
}

TEST_TIMEOUT(a_long_time_from_sigterm_to_sigkill_is_kept_while_beats_are_confirmed, 120)
{
    struct shop shop = shop_open();
    long_backoff(&shop);
    EXPECT(ends_long_after_sigterm(&shop, 1200) || ends_long_after_sigterm(&shop, 4800) ||
           ends_long_after_sigterm(&shop, 20000));
    shop_close(&shop);
}
