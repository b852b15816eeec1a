/* Running a job as a command: its input, its environment, its output, and its outcome. */
#include "work/shift.h"

#include <linux/close_range.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

/* ---------------------------------------------------------------- input and environment */

TEST(the_payload_is_on_standard_input_and_standard_output_is_the_result)
{
    struct shop shop = shop_open();
    unsigned char *large = malloc(MIB), every[256];
    EXPECT(large != NULL);
    for (int i = 0; i < MIB; i++)
        large[i] = (unsigned char)(i * 7 + i / 251);
    for (int i = 0; i < 256; i++)
        every[i] = (unsigned char)i;
    int64_t text = put(&shop, "q", "hello"), none = put_bytes(&shop, "q", NULL, 0);
    int64_t binary = put_bytes(&shop, "q", every, sizeof every);
    int64_t big = put_bytes(&shop, "q", large, MIB);
    EXPECT_WORK(0, "q", "-j", "4", "--drain", "--", "cat");
    EXPECT_EQ(count(&shop, LH_COMPLETED), 4);
    const lh_job *seen = look(&shop, text); /* valid until the next call of look() */
    EXPECT_MEM(seen->result, seen->result_len, "hello", 5);
    EXPECT_EQ(look(&shop, none)->result_len, 0);
    seen = look(&shop, binary);
    EXPECT_MEM(seen->result, seen->result_len, every, sizeof every);
    seen = look(&shop, big);
    EXPECT_MEM(seen->result, seen->result_len, large, MIB);
    free(large);
    shop_close(&shop);
}

static void expect_line(const char *text, const char *line)
{
    char framed[256];

    (void)snprintf(framed, sizeof framed, "\n%s\n", line);
    EXPECT_CONTAINS(text, framed);
}

static const char *environment_of(struct shop *shop, int64_t job)
{
    const lh_job *seen = look(shop, job);
    EXPECT_EQ(seen->state, LH_COMPLETED);
    return seen->result;
}

TEST(the_environment_has_the_variables_of_the_job_and_none_of_the_worker)
{
    struct shop shop = shop_open();
    lh_new_job job = {.payload = "x", .payload_len = 1, .kind = "letter"};
    lh_enqueued out[2];
    EXPECT_OK(lh_enqueue(shop.store, "q", &job, 1, NULL, &out[0]));
    job = (lh_new_job){.max_attempts = LH_UNLIMITED};
    EXPECT_OK(lh_enqueue(shop.store, "q", &job, 1, NULL, &out[1]));
    /* As if started by systemd, and by a job of another worker. */
    setenv("NOTIFY_SOCKET", "/nonesuch", 1);
    setenv("WATCHDOG_USEC", "60000000", 1);
    setenv("LEASEHOLD_TOKEN", "999", 1);
    setenv("LEASEHOLD_WORKER", "other", 1);
    setenv("LEASEHOLD_STORE", "elsewhere", 1);
    setenv("OF_THE_USER", "kept", 1);
    EXPECT_WORK(0, "q", "--drain", "--worker", "me", "--", SH("echo; env"));
    const char *env = environment_of(&shop, out[0].id);
    expect_line(env, "LEASEHOLD_JOB_ID=1");
    expect_line(env, "LEASEHOLD_TOKEN=1");
    expect_line(env, "LEASEHOLD_QUEUE=q");
    expect_line(env, "LEASEHOLD_KIND=letter");
    expect_line(env, "LEASEHOLD_ATTEMPT=1");
    expect_line(env, "LEASEHOLD_MAX_ATTEMPTS=3");
    expect_line(env, "LEASEHOLD_CHECKPOINT=");
    expect_line(env, "OF_THE_USER=kept");
    EXPECT_CONTAINS(env, "\nLEASEHOLD_WORKER=me-");
    EXPECT_CONTAINS(env, "\nLEASEHOLD_FD=");
    EXPECT(strstr(env, "NOTIFY_SOCKET") == NULL && strstr(env, "WATCHDOG") == NULL);
    EXPECT(strstr(env, "LEASEHOLD_STORE") == NULL && strstr(env, "=999") == NULL);
    env = environment_of(&shop, out[1].id);
    expect_line(env, "LEASEHOLD_MAX_ATTEMPTS=unlimited");
    expect_line(env, "LEASEHOLD_KIND=");
    int64_t told = put(&shop, "q", "x");
    EXPECT_WORK(0, "q", "--drain", "--pass-store", "--", SH("echo; env"));
    expect_line(environment_of(&shop, told), "LEASEHOLD_STORE=s.db");
    shop_close(&shop);
}

TEST(a_command_inherits_four_descriptors_only)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    /* Descriptors that were open when this test started do not count. */
    EXPECT_EQ(close_range(3, ~0U, CLOSE_RANGE_CLOEXEC), 0);
    EXPECT_WORK(0, "q", "-j", "3", "--drain", "--", "ls", "-v", "/proc/self/fd");
    EXPECT_EQ(state_of(&shop, job), LH_COMPLETED);
    /* descriptor 4 is the folder that ls reads */
    EXPECT_MEM(look(&shop, job)->result, look(&shop, job)->result_len, "0\n1\n2\n3\n4\n", 10);
    shop_close(&shop);
}

TEST(a_command_starts_with_default_signals)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    EXPECT(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    EXPECT_WORK(0, "q", "--drain", "--", "cat", "/proc/self/status");
    EXPECT_EQ(state_of(&shop, job), LH_COMPLETED);
    EXPECT_CONTAINS(look(&shop, job)->result,
                    "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
                    "SigCgt:\t0000000000000000\n");
    shop_close(&shop);
}

/* ---------------------------------------------------------------- output */

TEST(the_first_mebibyte_of_standard_output_is_the_result)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    EXPECT_WORK(0, "q", "--drain", "--",
                SH("head -c 1048575 /dev/zero; printf abc; head -c 3000000 /dev/zero"));
    const lh_job *seen = look(&shop, job);
    EXPECT_EQ(seen->state, LH_COMPLETED);
    EXPECT_EQ(seen->result_len, MIB);
    EXPECT_EQ(((const char *)seen->result)[MIB - 1], 'a');
    shop_close(&shop);
}

TEST_TIMEOUT(a_gibibyte_of_output_costs_no_memory_and_the_job_completes, 60)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--drain", "--", SH("head -c 1073741824 /dev/zero"));
    struct rusage used;
    int status;
    EXPECT_EQ(wait4(shift.pid, &status, 0, &used), shift.pid);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(look(&shop, job)->state, LH_COMPLETED);
    EXPECT_EQ(look(&shop, job)->result_len, MIB);
    if (used.ru_maxrss > 64L * 1024)
        FAIL("the worker took %ld KiB", used.ru_maxrss);
    shop_close(&shop);
}

TEST(a_result_larger_than_its_queue_allows_is_dropped_and_the_job_completes)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    policy(&shop, .set = LH_POLICY_MAX_PAYLOAD, .max_payload = 1000);
    struct shift shift = SHIFT("q", "--drain", "--", "head", "-c", "1001", "/dev/zero");
    EXPECT_EQ(shift_wait(&shift), 0);
    EXPECT(said(&shift, "the result of job 1 is not kept: 1001 bytes"));
    EXPECT_EQ(look(&shop, job)->state, LH_COMPLETED);
    EXPECT_EQ(look(&shop, job)->result_len, 0);
    shop_close(&shop);
}

TEST(the_end_of_standard_error_is_the_error_and_is_made_text)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    EXPECT_WORK(
        0, "q", "--drain=pending", "--",
        SH("echo the beginning >&2; head -c 100000 /dev/zero | tr '\\0' 'x' >&2;"
           "printf 'bad \\377 byte, \\033[31mred, \\303\\244 nul \\000.\\n\\n' >&2; exit 1"));
    const lh_job *seen = look(&shop, job);
    EXPECT(strncmp(seen->last_error, "exit code 1: xxx", 16) == 0);
    EXPECT_CONTAINS(seen->last_error, "xxxbad ? byte, ?[31mred, \303\244 nul ?.");
    EXPECT(strlen(seen->last_error) <= 4096 + 200 && strlen(seen->last_error) > 4000);
    EXPECT(strstr(seen->last_error, "beginning") == NULL);
    shop_close(&shop);
}

/* ---------------------------------------------------------------- outcome */

struct ending {
    const char *script;
    lh_state state;
    int64_t attempt;
    const char *error; /* NULL: none */
};

static void expect_ending(struct shop *shop, int64_t job, const struct ending *e)
{
    const lh_job *seen = look(shop, job);
    int64_t delay = seen->run_at - seen->state_changed_at;

    if (seen->state != e->state || seen->attempt != e->attempt)
        FAIL("%s: %s, attempt %lld", e->script, lh_state_name(seen->state),
             (long long)seen->attempt);
    EXPECT_STR(seen->last_error, e->error);
    EXPECT_EQ(seen->recoveries, 0);
    /* The backoff is random between half of its length and its full length. */
    if (seen->state == LH_SCHEDULED && (delay < LONG_BACKOFF_MS / 2 || delay > LONG_BACKOFF_MS))
        FAIL("%s: it comes again after %lld ms", e->script, (long long)delay);
}

TEST(an_exit_code_or_a_signal_decides_the_outcome_of_the_job)
{
    static const struct ending endings[] = {
        {"exit 0", LH_COMPLETED, 1, NULL},
        {"echo words >&2; exit 0", LH_COMPLETED, 1, NULL},
        {"echo no room >&2; exit 75", LH_SCHEDULED, 0, NULL},
        {"echo bad data >&2; exit 65", LH_FAILED, 1, "exit code 65: bad data"},
        {"exit 1", LH_SCHEDULED, 1, "exit code 1"},
        {"echo oh >&2; exit 255", LH_SCHEDULED, 1, "exit code 255: oh"},
        {"kill -KILL $$", LH_SCHEDULED, 1, "killed by signal 9, SIGKILL"},
        {"echo oh >&2; kill -SEGV $$", LH_SCHEDULED, 1, "killed by signal 11, SIGSEGV: oh"},
        {"kill -TERM $$", LH_SCHEDULED, 1, "killed by signal 15, SIGTERM"},
        {"echo no key >&2; exit 78", LH_PENDING, 0, NULL},
    };
    enum { ENDINGS = sizeof endings / sizeof *endings };
    struct shop shop = shop_open();
    long_backoff(&shop);
    int64_t jobs[ENDINGS];
    for (size_t i = 0; i < ENDINGS; i++)
        jobs[i] = put(&shop, "q", endings[i].script);
    EXPECT_WORK(1, "q", "--", "sh"); /* the last one stops it */
    for (size_t i = 0; i < ENDINGS; i++)
        expect_ending(&shop, jobs[i], &endings[i]);
    shop_close(&shop);
}

TEST(a_job_out_of_attempts_has_failed)
{
    struct shop shop = shop_open();
    no_backoff(&shop);
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--", SH("echo run $LEASEHOLD_ATTEMPT >&2; exit 3"));
    EVENTUALLY(state_of(&shop, job) == LH_FAILED);
    EXPECT_EQ(look(&shop, job)->attempt, 3);
    EXPECT_STR(look(&shop, job)->last_error, "exit code 3: run 3");
    EXPECT_EQ(shift_stop(&shift), 0);
    shop_close(&shop);
}

TEST(a_critical_job_stops_the_worker_which_waits_for_the_others)
{
    struct shop shop = shop_open();
    int64_t slow = put(&shop, "q", UNTIL("go"));
    struct shift shift = SHIFT("q", "-j", "2", "--", SH("sh; exit $?"));
    EVENTUALLY(state_of(&shop, slow) == LH_RUNNING);
    int64_t critical = put(&shop, "q", "echo no key at hand >&2; exit 78");
    EVENTUALLY(said(&shift, "the worker stops"));
    int64_t next = put(&shop, "q", "exit 0");
    touch("go");
    EXPECT_EQ(shift_wait(&shift), 1);
    EXPECT(said(&shift, "leasehold: exit code 78: no key at hand"));
    EXPECT_EQ(state_of(&shop, slow), LH_COMPLETED);
    EXPECT_EQ(state_of(&shop, critical), LH_PENDING);
    EXPECT_EQ(look(&shop, critical)->attempt, 0);
    EXPECT_EQ(look(&shop, next)->token, 0);
    shop_close(&shop);
}
