/* Output of attempts: it is kept for each attempt, bounded, guarded by the token, and deleted with the job. */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- help ---- */

#define STREAM(text_) ((lh_stream){.head = (text_), .head_len = strlen(text_)})

static lh_outputs *outputs_of(struct world *w, lh_output_filter filter)
{
    lh_outputs *out = NULL;
    EXPECT_OK(lh_output_list(w->store, &filter, &out));
    return keep(w, out, (void (*)(void *))lh_outputs_free);
}

/* The only attempt of the job that has output. */
static lh_output output_of(struct world *w, int64_t job)
{
    lh_outputs *out = outputs_of(w, (lh_output_filter){.job = job});
    EXPECT_EQ(out->n, 1);
    return out->output[0];
}

static void expect_bytes(const void *bytes, size_t len, const char *wanted)
{
    EXPECT_EQ(len, strlen(wanted));
    EXPECT(len == 0 || memcmp(bytes, wanted, len) == 0);
}

#define EXPECT_STREAM(stream_, head_, tail_, bytes_)   \
    do {                                               \
        lh_stream is_ = (stream_);                     \
        expect_bytes(is_.head, is_.head_len, (head_)); \
        expect_bytes(is_.tail, is_.tail_len, (tail_)); \
        EXPECT_EQ(is_.bytes, (bytes_));                \
    } while (0)

static int put(struct world *w, const lh_job *job, const char *out, const char *err)
{
    return lh_output_put(
        w->store,
        &(lh_output){.job = job->id, .token = job->token, .out = STREAM(out), .err = STREAM(err)},
        1, NULL);
}

static int complete_with(struct world *w, const lh_job *job, const lh_output *output)
{
    return lh_complete(w->store, &(lh_done){job->id, job->token, "r", 1, .output = output}, 1, NULL,
                       NULL);
}

/* ---- what is kept ---- */

SPEC(the_output_of_a_completed_attempt_is_kept_with_its_outcome)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){.job = job.id})->n, 0);
    EXPECT_OK(complete_with(&w, &job, &(lh_output){.out = STREAM("hello\n"), .err = STREAM("oh")}));
    lh_output seen = output_of(&w, job.id);
    EXPECT_STREAM(seen.out, "hello\n", "", 6);
    EXPECT_STREAM(seen.err, "oh", "", 2);
    EXPECT_EQ(seen.job, job.id);
    EXPECT_EQ(seen.token, job.token);
    EXPECT_EQ(seen.attempt, 1);
    EXPECT_EQ(seen.at, WORLD_START_MS);
    EXPECT_EQ(seen.result_bytes, 0);
    world_close(&w);
}

SPEC(the_output_of_every_failed_attempt_is_kept)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    for (int i = 1; i <= 2; i++) {
        char said[16];
        snprintf(said, sizeof said, "try %d", i);
        EXPECT_OK(claim_one(&w, "mail", &job));
        EXPECT_OK(lh_fail(w.store,
                          &(lh_failure){job.id, job.token, .error = "no", .retry_in_ms = LH_NOW,
                                        .output = &(lh_output){.out = STREAM(said)}},
                          1, NULL, NULL));
    }
    lh_outputs *all = outputs_of(&w, (lh_output_filter){.job = job.id});
    EXPECT_EQ(all->n, 2);
    EXPECT_STREAM(all->output[0].out, "try 1", "", 5);
    EXPECT_STREAM(all->output[1].out, "try 2", "", 5);
    all = outputs_of(&w, (lh_output_filter){.job = job.id, .attempt = 2});
    EXPECT_EQ(all->n, 1);
    EXPECT_EQ(all->output[0].attempt, 2);
    world_close(&w);
}

SPEC(an_attempt_without_output_leaves_no_row)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(put(&w, &job, "", ""));
    EXPECT_OK(complete_with(&w, &job, &(lh_output){0}));
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){.job = job.id})->n, 0);
    world_close(&w);
}

SPEC(output_may_be_any_bytes)
{
    struct world w = world_with_job("mail", "x");
    static const char bytes[] = "a\0b\377\n";
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete_with(
        &w, &job,
        &(lh_output){.out = {.head = bytes, .head_len = 5, .tail = bytes, .tail_len = 4}}));
    lh_stream seen = output_of(&w, job.id).out;
    EXPECT_EQ(seen.bytes, 9);
    EXPECT(seen.head_len == 5 && memcmp(seen.head, bytes, 5) == 0);
    EXPECT(seen.tail_len == 4 && memcmp(seen.tail, bytes, 4) == 0);
    world_close(&w);
}

/* ---- while it runs ---- */

SPEC(later_output_of_an_attempt_replaces_its_earlier_output)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(put(&w, &job, "one", ""));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(put(&w, &job, "one two", "err"));
    EXPECT_OK(put(&w, &job, "one", "")); /* a late part does not replace a longer one */
    lh_output seen = output_of(&w, job.id);
    EXPECT_STREAM(seen.out, "one two", "", 7);
    EXPECT_STREAM(seen.err, "err", "", 3);
    EXPECT_EQ(seen.at, WORLD_START_MS + 1000);
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){job.id, .since = WORLD_START_MS + 1000})->n, 1);
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){job.id, .since = WORLD_START_MS + 1001})->n, 0);
    world_close(&w);
}

SPEC(an_attempt_that_lost_its_lease_writes_output_only_to_its_own_row)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 1000));
    EXPECT_OK(put(&w, &old, "begun", ""));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "mail", &next));
    EXPECT_OK(put(&w, &old, "begun, and lost", ""));
    EXPECT_OK(complete_with(&w, &next, &(lh_output){.out = STREAM("mine")}));
    lh_outputs *all = outputs_of(&w, (lh_output_filter){.job = old.id});
    EXPECT_EQ(all->n, 2);
    EXPECT_STREAM(all->output[0].out, "begun, and lost", "", 15);
    EXPECT_EQ(all->output[0].attempt, 1);
    EXPECT_STREAM(all->output[1].out, "mine", "", 4);
    world_close(&w);
}

SPEC(the_first_output_of_an_attempt_that_lost_its_lease_is_refused)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "mail", &next));
    EXPECT_STATUS(put(&w, &old, "late", ""), LH_ELOST);
    EXPECT_CONTAINS(lh_errmsg(w.store), "is not its token any more");
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){.job = old.id})->n, 0);
    lh_job nobody = {.id = 4711, .token = 1};
    EXPECT_STATUS(put(&w, &nobody, "x", ""), LH_ENOTFOUND);
    world_close(&w);
}

SPEC(each_output_of_a_batch_is_judged_by_itself)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    int status[2];
    EXPECT_OK(claim_one(&w, "mail", &job));
    lh_output both[] = {{.job = 4711, .token = 1, .out = STREAM("a")},
                        {.job = job.id, .token = job.token, .out = STREAM("b")}};
    EXPECT_STATUS(lh_output_put(w.store, both, 2, status), LH_ENOTFOUND);
    EXPECT_EQ(status[0], LH_ENOTFOUND);
    EXPECT_OK(status[1]);
    EXPECT_STREAM(output_of(&w, job.id).out, "b", "", 1);
    world_close(&w);
}

/* Output that is too long does not prevent the outcome from being stored. */
SPEC(a_refused_complete_stores_no_output)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "mail", &next));
    EXPECT_STATUS(complete_with(&w, &old, &(lh_output){.out = STREAM("late")}), LH_ELOST);
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){.job = old.id})->n, 0);
    world_close(&w);
}

/* ---- limits ---- */

SPEC(long_output_keeps_its_beginning_and_its_end)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_MAX_OUTPUT, .max_output = 8));
    enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.max_output, 8);
    EXPECT_OK(complete_with(
        &w, &job,
        &(lh_output){
            .out = STREAM("0123456789abcdef"),
            .err = {
                .head = "0123", .head_len = 4, .tail = "uvwxyz", .tail_len = 6, .bytes = 1000}}));
    EXPECT_STREAM(output_of(&w, job.id).out, "01", "abcdef", 16);
    EXPECT_STREAM(output_of(&w, job.id).err, "01", "uvwxyz", 1000);
    world_close(&w);
}

SPEC(output_is_not_cut_inside_a_character)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_MAX_OUTPUT, .max_output = 8));
    enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &job));
    /* The head ends with 2 bytes of a split character, and the tail begins with 6 of one. */
    EXPECT_OK(
        complete_with(&w, &job, &(lh_output){.out = STREAM("1\303\24423456\342\202\254yzä")}));
    EXPECT_STREAM(output_of(&w, job.id).out, "1", "yz\303\244", 15);
    world_close(&w);
}

SPEC(a_cut_of_output_drops_only_bytes_of_a_split_character)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_MAX_OUTPUT, .max_output = 8));
    enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete_with(&w, &job, &(lh_output){.out = STREAM("1\3772345678\377z")}));
    EXPECT_STREAM(output_of(&w, job.id).out, "1\377", "5678\377z", 11);
    world_close(&w);
}

SPEC(without_a_policy_64_KiB_of_a_stream_are_kept)
{
    struct world w = world_with_job("mail", "x");
    size_t len = 100000;
    char *large = keep(&w, malloc(len), free);
    lh_job job;
    memset(large, 'x', len);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.max_output, 65536);
    EXPECT_OK(complete_with(&w, &job, &(lh_output){.out = {.head = large, .head_len = len}}));
    lh_stream seen = output_of(&w, job.id).out;
    EXPECT_EQ(seen.head_len, 16384);
    EXPECT_EQ(seen.tail_len, 65536 - 16384);
    EXPECT_EQ(seen.bytes, len);
    world_close(&w);
}

SPEC(a_policy_may_turn_output_off)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_MAX_OUTPUT, .max_output = 0));
    enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.max_output, 0);
    EXPECT_OK(put(&w, &job, "secret", "secret"));
    EXPECT_OK(complete_with(&w, &job, &(lh_output){.out = STREAM("secret")}));
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){.job = job.id})->n, 0);
    world_close(&w);
}

SPEC(invalid_output_is_refused)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    lh_output no_bytes = {job.id, job.token, .out = {.head_len = 1}};
    EXPECT_STATUS(lh_output_put(w.store, &no_bytes, 1, NULL), LH_EMISUSE);
    lh_output too_few = {job.id, job.token, .out = {.head = "abc", .head_len = 3, .bytes = 2}};
    EXPECT_STATUS(lh_output_put(w.store, &too_few, 1, NULL), LH_EINVAL);
    lh_output too_large = {job.id, job.token, .err = {.tail = "abc", .tail_len = (16 << 20) + 1}};
    EXPECT_STATUS(lh_output_put(w.store, &too_large, 1, NULL), LH_ETOOBIG);
    EXPECT_STATUS(complete_with(&w, &job, &too_large), LH_ETOOBIG);
    EXPECT_STATUS(lh_fail(w.store,
                          &(lh_failure){job.id, job.token, .error = "x", .output = &too_large}, 1,
                          NULL, NULL),
                  LH_ETOOBIG);
    EXPECT_STATUS(lh_output_put(w.store, NULL, 0, NULL), LH_EMISUSE);
    lh_outputs *out = NULL;
    EXPECT_STATUS(lh_output_list(w.store, NULL, &out), LH_EMISUSE);
    EXPECT_STATUS(lh_output_list(w.store, &(lh_output_filter){0}, &out), LH_EINVAL);
    EXPECT_STATUS(
        policy(&w, "mail", NULL, .set = LH_POLICY_MAX_OUTPUT, .max_output = (16 << 20) + 1),
        LH_EINVAL);
    world_close(&w);
}

/* ---- results that are cut ---- */

SPEC(a_truncated_result_reports_its_full_length)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(lh_complete(w.store,
                          &(lh_done){job.id, job.token, "beginning", 9, .result_bytes = 1000}, 1,
                          NULL, NULL));
    EXPECT_EQ(job_of(&w, job.id).result_cut, 991);
    EXPECT_EQ(output_of(&w, job.id).result_bytes, 1000);
    EXPECT_OK(lh_retry(w.store, &job.id, 1, LH_RETRY_FORCE, NULL, NULL));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(lh_complete(w.store, &(lh_done){job.id, job.token, "all", 3, .result_bytes = 3}, 1,
                          NULL, NULL));
    EXPECT_EQ(job_of(&w, job.id).result_cut, 0);
    world_close(&w);
}

SPEC(a_truncated_result_is_reported_even_with_output_off)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_MAX_OUTPUT, .max_output = 0));
    enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(lh_complete(w.store,
                          &(lh_done){job.id, job.token, "ab", 2, .result_bytes = 3,
                                     .output = &(lh_output){.out = STREAM("abc")}},
                          1, NULL, NULL));
    EXPECT_EQ(job_of(&w, job.id).result_cut, 1);
    EXPECT_STREAM(output_of(&w, job.id).out, "", "", 0);
    world_close(&w);
}

SPEC(complete_and_claim_keeps_output_too)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    lh_jobs *next = NULL;
    int64_t second = enqueue(&w, "mail", "y");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(lh_complete_claim(
        w.store, &(lh_done){job.id, job.token, .output = &(lh_output){.err = STREAM("hm")}}, 1,
        NULL,
        &(lh_claim_opts){.queues = (const char *const[]){"mail"}, .n_queues = 1, .worker = "w"},
        &next));
    EXPECT_EQ(keep_jobs(&w, next)->job[0].id, second);
    EXPECT_STREAM(output_of(&w, job.id).err, "hm", "", 2);
    world_close(&w);
}

/* ---- retention ---- */

/* The output of a job that is always released would fill the store. */
SPEC(the_output_of_the_newest_20_attempts_is_kept)
{
    struct world w = world_with_job("mail", "x");
    int64_t other = enqueue(&w, "other", "y");
    lh_job job, mine;
    EXPECT_OK(claim_one(&w, "other", &mine));
    EXPECT_OK(put(&w, &mine, "of another job", ""));
    for (int i = 1; i <= 23; i++) {
        char said[16];
        snprintf(said, sizeof said, "run %d", i);
        EXPECT_OK(claim_one(&w, "mail", &job));
        EXPECT_OK(put(&w, &job, "run", ""));
        EXPECT_OK(put(&w, &job, said, ""));
        EXPECT_OK(lh_release(w.store, &(lh_ref){job.id, job.token}, 1, 0, NULL, NULL));
    }
    lh_outputs *all = outputs_of(&w, (lh_output_filter){.job = job.id});
    EXPECT_EQ(all->n, 20);
    EXPECT_STREAM(all->output[0].out, "run 4", "", 5);
    EXPECT_STREAM(all->output[19].out, "run 23", "", 6);
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){.job = other})->n, 1);
    world_close(&w);
}

/* More jobs than one batch, after a job that keeps its output. */
SPEC(output_is_pruned_before_its_jobs)
{
    enum { JOBS = 600 };
    static lh_new_job jobs[JOBS];
    static lh_enqueued ids[JOBS];
    static lh_done done[JOBS];
    struct world w = world_open();
    const char *queue = "mail";
    lh_output output = {.out = STREAM("x")};
    lh_jobs *claimed = NULL;
    lh_job job;
    size_t left = 0;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RETENTION_OUTPUT,
                     .retention_output_ms = 3600000));
    int64_t kept = enqueue(&w, "other", "keeps it");
    EXPECT_OK(claim_one(&w, "other", &job));
    EXPECT_OK(complete_with(&w, &job, &output));
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, JOBS, NULL, ids));
    EXPECT_OK(lh_claim(w.store,
                       &(lh_claim_opts){.queues = &queue, .n_queues = 1, .n = JOBS, .worker = "w"},
                       &claimed));
    EXPECT_EQ(keep_jobs(&w, claimed)->n, JOBS);
    for (size_t i = 0; i < JOBS; i++)
        done[i] =
            (lh_done){.job = claimed->job[i].id, .token = claimed->job[i].token, .output = &output};
    EXPECT_OK(lh_complete(w.store, done, JOBS, NULL, NULL));
    clock_advance_ms(&w, 3600000);
    EXPECT_OK(lh_prune(w.store, 0, NULL, NULL));
    for (size_t i = 0; i < JOBS; i++)
        left += outputs_of(&w, (lh_output_filter){.job = ids[i].id})->n;
    EXPECT_EQ(left, 0);
    EXPECT(job_exists(&w, ids[JOBS - 1].id));
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){.job = kept})->n, 1);
    world_close(&w);
}

SPEC(deleting_a_job_deletes_its_output)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete_with(&w, &job, &(lh_output){.out = STREAM("x")}));
    int64_t other = enqueue(&w, "mail", "y");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.id, other);
    EXPECT_OK(complete_with(&w, &job, &(lh_output){.out = STREAM("y")}));
    int64_t first = other - 1;
    EXPECT_OK(lh_delete(w.store, &first, 1, NULL));
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){.job = first})->n, 0);
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){.job = other})->n, 1);
    clock_advance_ms(&w, INT64_C(15) * 86400000);
    EXPECT_OK(lh_prune(w.store, 0, NULL, NULL));
    EXPECT(!job_exists(&w, other));
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){.job = other})->n, 0);
    world_close(&w);
}

SPEC(output_may_have_a_shorter_retention_than_its_job)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RETENTION_OUTPUT,
                     .retention_output_ms = 3600000));
    int64_t kept = enqueue(&w, "mail", "runs on");
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 86400000));
    EXPECT_OK(put(&w, &job, "still at it", ""));
    int64_t ended = enqueue(&w, "mail", "ends");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete_with(&w, &job, &(lh_output){.out = STREAM("x")}));
    clock_advance_ms(&w, 3599000);
    EXPECT_OK(lh_prune(w.store, 0, NULL, NULL));
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){.job = ended})->n, 1);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_prune(w.store, 0, NULL, NULL));
    EXPECT(job_exists(&w, ended));
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){.job = ended})->n, 0);
    EXPECT_EQ(outputs_of(&w, (lh_output_filter){.job = kept})->n, 1);
    world_close(&w);
}
