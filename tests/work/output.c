/* The output of commands and handlers is kept, whatever the outcome of the run. */
#include "work/shift.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- helpers ---- */

static lh_outputs *seen;

/* The output of the runs of a job, valid until the next call. */
static const lh_outputs *outputs(struct shop *shop, int64_t job)
{
    lh_outputs_free(seen);
    seen = NULL;
    EXPECT_OK(lh_output_list(shop->store, &(lh_output_filter){.job = job}, &seen));
    return seen;
}

static const lh_output *output(struct shop *shop, int64_t job)
{
    EXPECT_EQ(outputs(shop, job)->n, 1);
    return &seen->output[0];
}

static bool is(const lh_stream *stream, const char *text)
{
    return stream->bytes == (int64_t)strlen(text) && stream->head_len == strlen(text) &&
           stream->tail_len == 0 && memcmp(stream->head, text, stream->head_len) == 0;
}

static bool has_written(struct shop *shop, int64_t job, const char *out)
{
    return outputs(shop, job)->n == 1 && is(&seen->output[0].out, out);
}

static void done_with(struct shop *shop)
{
    lh_outputs_free(seen);
    seen = NULL;
    shop_close(shop);
}

/* `leasehold work q --drain --print-output` into a pipe. */
static pid_t print_into(int pipe, const char *script)
{
    const char *const argv[] = {
        getenv("TEST_LEASEHOLD"), "--store", "s.db", "work", "q",    "--drain", "--log", "error",
        "--print-output",         "--",      "sh",   "-c",   script, NULL};
    union {
        const char *const *given;
        char *const *wanted;
    } args = {.given = argv};
    pid_t pid = test_fork();

    if (pid == 0) {
        if (setenv("LEASEHOLD_LOG_FORMAT", "json", 1) == 0 && dup2(pipe, 1) == 1)
            (void)execv(argv[0], args.wanted);
        _exit(127);
    }
    return pid;
}

/* ---- commands ---- */

TEST(both_output_streams_are_kept_for_every_outcome)
{
    static const char *const codes[] = {"0", "1", "65", "75"};
    struct shop shop = shop_open();
    int64_t job[4];
    for (int i = 0; i < 4; i++)
        job[i] = put(&shop, "q", codes[i]);
    EXPECT_WORK(0, "q", "--drain=pending", "--",
                SH("read code; echo to out; echo to err >&2; exit $code"));
    for (int i = 0; i < 4; i++) {
        EXPECT(is(&output(&shop, job[i])->out, "to out\n"));
        EXPECT(is(&output(&shop, job[i])->err, "to err\n"));
        EXPECT_EQ(output(&shop, job[i])->attempt, 1);
    }
    EXPECT_EQ(state_of(&shop, job[0]), LH_COMPLETED);
    done_with(&shop);
}

TEST(the_output_of_every_attempt_is_kept)
{
    struct shop shop = shop_open();
    no_backoff(&shop);
    int64_t job = put(&shop, "q", "x");
    EXPECT_WORK(0, "q", "--drain", "--", SH("echo try $LEASEHOLD_ATTEMPT; exit 1"));
    EXPECT_EQ(state_of(&shop, job), LH_FAILED);
    EXPECT_EQ(outputs(&shop, job)->n, 3);
    EXPECT(is(&seen->output[0].out, "try 1\n"));
    EXPECT(is(&seen->output[2].out, "try 3\n"));
    EXPECT_EQ(seen->output[2].attempt, 3);
    done_with(&shop);
}

/* In JSON a control character takes six bytes. A pipe that is ready accepts PIPE_BUF bytes. */
TEST(a_reader_that_stalls_does_not_stop_the_worker_that_prints)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    char text[8192];
    int ends[2];

    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    EXPECT(fcntl(ends[1], F_SETPIPE_SZ, (int)sizeof text) >= (int)sizeof text);
    pid_t worker = print_into(
        ends[1],
        "i=0; while [ $i -lt 9 ]; do printf '%3700d\n' 0 | tr ' 0' '\\001'; i=$((i+1)); done");
    close(ends[1]);
    EVENTUALLY(state_of(&shop, job) == LH_COMPLETED);
    EXPECT_EQ(test_wait(worker).code, 0);
    ssize_t n = read(ends[0], text, sizeof text);
    char *stop = n > 0 ? memchr(text, '\n', (size_t)n) : NULL;
    EXPECT(stop != NULL && stop - text < PIPE_BUF);
    EXPECT(text[0] == '{');
    *stop = '\0';
    EXPECT_CONTAINS(text, "\\u0001\"}");
    close(ends[0]);
    done_with(&shop);
}

TEST(a_command_that_writes_nothing_leaves_no_output)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    EXPECT_WORK(0, "q", "--drain", "--", "true");
    EXPECT_EQ(state_of(&shop, job), LH_COMPLETED);
    EXPECT_EQ(outputs(&shop, job)->n, 0);
    done_with(&shop);
}

TEST(long_output_keeps_its_head_and_tail)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    EXPECT_WORK(0, "q", "--drain=pending", "--",
                SH("echo begin >&2; head -c 3000000 /dev/zero | tr '\\0' x >&2; echo end >&2;"
                   "exit 65"));
    const lh_stream *err = &output(&shop, job)->err;
    EXPECT_EQ(err->bytes, 6 + 3000000 + 4);
    EXPECT_EQ(err->head_len, 16384);
    EXPECT_EQ(err->tail_len, 49152);
    EXPECT(memcmp(err->head, "begin\nxxx", 9) == 0);
    EXPECT(memcmp((const char *)err->tail + 49152 - 7, "xxxend\n", 7) == 0);
    done_with(&shop);
}

TEST(a_policy_can_switch_output_off)
{
    struct shop shop = shop_open();
    policy(&shop, .set = LH_POLICY_MAX_OUTPUT, .max_output = 0);
    int64_t job = put(&shop, "q", "x");
    EXPECT_WORK(0, "q", "--drain", "--", SH("echo result; echo secret >&2"));
    EXPECT_EQ(outputs(&shop, job)->n, 0);
    EXPECT_EQ(look(&shop, job)->result_len, 7);
    done_with(&shop);
}

TEST(a_result_that_is_cut_or_refused_is_marked)
{
    struct shop shop = shop_open();
    int64_t cut = put(&shop, "q", "1048579"), whole = put(&shop, "q", "1048576");
    EXPECT_WORK(0, "q", "--drain", "--", SH("read n; head -c $n /dev/zero"));
    EXPECT_EQ(look(&shop, cut)->result_cut, 3);
    EXPECT_EQ(look(&shop, whole)->result_cut, 0);
    policy(&shop, .set = LH_POLICY_MAX_PAYLOAD, .max_payload = 1000);
    int64_t refused = put(&shop, "q", "1001");
    EXPECT_WORK(0, "q", "--drain", "--", SH("read n; head -c $n /dev/zero"));
    EXPECT_EQ(look(&shop, refused)->state, LH_COMPLETED);
    EXPECT_EQ(look(&shop, refused)->result_len, 0);
    EXPECT_EQ(look(&shop, refused)->result_cut, 1001);
    done_with(&shop);
}

/* ---- running and stopped jobs ---- */

TEST(the_output_of_a_running_command_outlives_its_worker)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--", SH("echo one;" UNTIL("more") "echo two;" UNTIL("never")));
    EVENTUALLY(has_written(&shop, job, "one\n"));
    EXPECT_EQ(state_of(&shop, job), LH_RUNNING);
    touch("more");
    EVENTUALLY(has_written(&shop, job, "one\ntwo\n"));
    shift_signal(&shift, SIGKILL);
    EXPECT_EQ(shift_wait(&shift), -SIGKILL);
    recover(&shop);
    EXPECT(has_written(&shop, job, "one\ntwo\n"));
    done_with(&shop);
}

TEST(the_output_of_a_command_is_kept_when_its_worker_stops)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--grace", "0s", "--kill-after", "50ms", "--",
                               SH("echo begun >&2; : >begun; trap '' TERM;" UNTIL("never")));
    EVENTUALLY(exists("begun"));
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT_EQ(state_of(&shop, job), LH_PENDING);
    EXPECT(is(&output(&shop, job)->err, "begun\n"));
    done_with(&shop);
}

TEST(the_output_of_a_cancelled_command_is_kept)
{
    struct shop shop = shop_open();
    int64_t job = put(&shop, "q", "x");
    struct shift shift = SHIFT("q", "--heartbeat", "500ms", "--",
                               SH("echo begun; trap 'echo the end; exit 1' TERM;" UNTIL("never")));
    EVENTUALLY(has_written(&shop, job, "begun\n"));
    cancel(&shop, job);
    EVENTUALLY(said(&shift, "job 1 lost"));
    EXPECT(is(&output(&shop, job)->out, "begun\nthe end\n"));
    EXPECT_EQ(shift_stop(&shift), 0);
    EXPECT_EQ(state_of(&shop, job), LH_CANCELLED);
    done_with(&shop);
}

/* ---- handlers ---- */

static lh_outcome chatter(void *arg, lh_task *task, const lh_job *job)
{
    (void)arg;
    EXPECT_OK(lh_task_output(task, 1, "hello ", 6));
    EXPECT_OK(lh_task_output(task, 1, job->payload, job->payload_len));
    EXPECT_OK(lh_task_output(task, 2, "oh", 2));
    EXPECT_OK(lh_task_output(task, 2, NULL, 0));
    EXPECT_STATUS(lh_task_output(task, 3, "x", 1), LH_EMISUSE);
    EXPECT_STATUS(lh_task_output(NULL, 1, "x", 1), LH_EMISUSE);
    return LH_RAN_PERMANENT;
}

static lh_outcome wait_for_own_output(void *arg, lh_task *task, const lh_job *job)
{
    struct shop *shop = arg;
    EXPECT_OK(lh_task_output(task, 1, "so far", 6));
    EVENTUALLY(has_written(shop, job->id, "so far"));
    return LH_RAN_OK;
}

TEST(the_output_of_a_handler_is_sent_while_it_runs)
{
    struct shop shop = shop_open();
    const char *queue = "q";
    int64_t job = put(&shop, "q", "x");
    EXPECT_OK(lh_worker_run(shop.store,
                            &(lh_work_opts){.queues = &queue,
                                            .n_queues = 1,
                                            .handler = wait_for_own_output,
                                            .handler_arg = &shop,
                                            .drain = true},
                            NULL, NULL, 0));
    EXPECT_EQ(state_of(&shop, job), LH_COMPLETED);
    done_with(&shop);
}

TEST(the_output_that_a_handler_reports_is_kept)
{
    struct shop shop = shop_open();
    const char *queue = "q";
    int64_t job = put(&shop, "q", "you");
    EXPECT_OK(lh_worker_run(
        shop.store,
        &(lh_work_opts){.queues = &queue, .n_queues = 1, .handler = chatter, .drain = true}, NULL,
        NULL, 0));
    EXPECT_EQ(state_of(&shop, job), LH_FAILED);
    EXPECT(is(&output(&shop, job)->out, "hello you"));
    EXPECT(is(&output(&shop, job)->err, "oh"));
    done_with(&shop);
}
