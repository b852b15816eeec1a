/* Enqueue: the fields of a new job, its payload, its time, its key, and its request id. */
#include "world.h"

#include <stdlib.h>

/* ---- a new job ---- */

SPEC(a_job_without_a_time_is_pending_at_once)
{
    struct world w = world_open();
    lh_enqueued out = {0};
    EXPECT_OK(lh_enqueue(w.store, "mail", &(lh_new_job){.payload = "hello", .payload_len = 5}, 1,
                         NULL, &out));
    EXPECT(out.id > 0);
    EXPECT_EQ(out.state, LH_PENDING);
    EXPECT(!out.duplicate);

    lh_job job = job_of(&w, out.id);
    EXPECT_EQ(job.state, LH_PENDING);
    EXPECT_STR(job.queue, "mail");
    EXPECT_MEM(job.payload, job.payload_len, "hello", 5);
    EXPECT(job.payload_is_text);
    EXPECT(job.kind == NULL);
    EXPECT(job.key == NULL);
    EXPECT(job.worker == NULL);
    EXPECT(job.last_error == NULL);
    EXPECT(job.stage == NULL);
    EXPECT(job.checkpoint == NULL);
    EXPECT(job.result == NULL);
    EXPECT(!job.expired);
    EXPECT_EQ(job.priority, 0);
    EXPECT_EQ(job.progress, -1);
    EXPECT_EQ(job.attempt, 0);
    EXPECT_EQ(job.recoveries, 0);
    EXPECT_EQ(job.max_attempts, 3);
    EXPECT_EQ(job.token, 0);
    EXPECT_EQ(job.lease_until, 0);
    EXPECT_EQ(job.run_at, 0);
    EXPECT_EQ(job.started_at, 0);
    EXPECT_EQ(job.finished_at, 0);
    EXPECT_EQ(job.last_heartbeat_at, 0);
    EXPECT_EQ(job.expires_at, 0);
    EXPECT_EQ(job.created_at, WORLD_START_MS);
    EXPECT_EQ(job.state_changed_at, WORLD_START_MS);
    world_close(&w);
}

SPEC(a_job_keeps_the_values_it_was_enqueued_with)
{
    struct world w = world_open();
    int64_t id = enqueue(&w, "mail", "{\"to\":\"a@b.c\"}", .kind = "welcome", .priority = -7,
                         .key = "user 12", .max_attempts = 9, .expires_ms = 60000);
    lh_job job = job_of(&w, id);
    EXPECT_STR(job.kind, "welcome");
    EXPECT_STR(job.key, "user 12");
    EXPECT_EQ(job.priority, -7);
    EXPECT_EQ(job.max_attempts, 9);
    EXPECT_EQ(job.expires_at, WORLD_START_MS + 60000);
    world_close(&w);
}

SPEC(a_job_may_have_no_limit_of_attempts)
{
    struct world w = world_open();
    int64_t id = enqueue(&w, "mail", "x", .max_attempts = LH_UNLIMITED);
    EXPECT_EQ(job_of(&w, id).max_attempts, LH_UNLIMITED);
    world_close(&w);
}

SPEC(limits_that_an_enqueue_omits_come_from_the_policy)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", "bulk", .set = LH_POLICY_MAX_ATTEMPTS, .max_attempts = 8));
    EXPECT_EQ(job_of(&w, enqueue(&w, "mail", "x", .kind = "bulk")).max_attempts, 8);
    EXPECT_EQ(job_of(&w, enqueue(&w, "mail", "x", .kind = "bulk", .max_attempts = 2)).max_attempts,
              2);
    EXPECT_EQ(job_of(&w, enqueue(&w, "mail", "x")).max_attempts, 3);
    world_close(&w);
}

SPEC(ids_rise_in_the_order_of_the_calls)
{
    struct world w = world_open();
    int64_t a = enqueue(&w, "mail", "a"), b = enqueue(&w, "other", "b"),
            c = enqueue(&w, "mail", "c");
    EXPECT(a < b);
    EXPECT(b < c);
    world_close(&w);
}

SPEC(one_call_enqueues_several_jobs_in_their_order)
{
    struct world w = world_open();
    lh_new_job jobs[3] = {{.payload = "a", .payload_len = 1},
                          {.payload = "b", .payload_len = 1, .delay_ms = 5000},
                          {.payload = "c", .payload_len = 1, .priority = 3}};
    lh_enqueued out[3];
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, 3, NULL, out));
    EXPECT(out[0].id < out[1].id);
    EXPECT(out[1].id < out[2].id);
    EXPECT_EQ(out[0].state, LH_PENDING);
    EXPECT_EQ(out[1].state, LH_SCHEDULED);
    for (int i = 0; i < 3; i++)
        EXPECT_MEM(job_of(&w, out[i].id).payload, 1, jobs[i].payload, 1);
    world_close(&w);
}

SPEC(a_batch_with_one_bad_job_enqueues_none_of_them)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_MAX_PAYLOAD, .max_payload = 4));
    lh_new_job jobs[2] = {{.payload = "fits", .payload_len = 4},
                          {.payload = "does not", .payload_len = 8}};
    lh_enqueued out[2] = {{.id = -1}, {.id = -2}};
    EXPECT_STATUS(lh_enqueue(w.store, "mail", jobs, 2, NULL, out), LH_ETOOBIG);
    EXPECT_EQ(out[0].id, -1);
    EXPECT_EQ(out[1].id, -2);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){0})->n, 0);
    EXPECT_EQ(queue_of(&w, "mail").hour_enqueued, 0);
    world_close(&w);
}

/* ---- bytes ---- */

static void expect_bytes_survive(struct world *w, const void *bytes, size_t len, bool text)
{
    lh_enqueued out;
    lh_job job;
    EXPECT_OK(lh_enqueue(w->store, "bytes", &(lh_new_job){.payload = bytes, .payload_len = len}, 1,
                         NULL, &out));
    EXPECT_OK(claim_one(w, "bytes", &job));
    EXPECT_EQ(job.id, out.id);
    EXPECT(job.payload != NULL);
    EXPECT_MEM(job.payload, job.payload_len, bytes, len);
    EXPECT_EQ(job.payload_is_text, text);
    EXPECT_OK(complete(w, &job));
    lh_job again = job_of(w, out.id);
    EXPECT_MEM(again.payload, again.payload_len, bytes, len);
}

SPEC(payload_bytes_are_kept_exactly)
{
    struct world w = world_open();
    unsigned char all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (unsigned char)i;
    expect_bytes_survive(&w, "plain", 5, true);
    expect_bytes_survive(&w, "gr\xc3\xbc\xc3\x9f \xf0\x9f\x90\x8c", 11, true);
    expect_bytes_survive(&w, "a\0b", 3, false);
    expect_bytes_survive(&w, "\0", 1, false);
    expect_bytes_survive(&w, "zero at the end\0", 16, false);
    expect_bytes_survive(&w, "\xff\xfe", 2, false);
    expect_bytes_survive(&w, "\xc0\xaf", 2, false);         /* overlong */
    expect_bytes_survive(&w, "\xed\xa0\x80", 3, false);     /* a surrogate */
    expect_bytes_survive(&w, "cut \xe2\x82", 6, false);     /* ends inside a character */
    expect_bytes_survive(&w, "\xf5\x80\x80\x80", 4, false); /* beyond U+10FFFF */
    expect_bytes_survive(&w, "\xef\xbb\xbf{}", 5, true);    /* a mark of byte order */
    expect_bytes_survive(&w, "line\r\nline\n", 11, true);
    expect_bytes_survive(&w, "'; DROP TABLE lh_job; --", 24, true);
    expect_bytes_survive(&w, all, sizeof all, false);
    world_close(&w);
}

SPEC(an_empty_payload_differs_from_no_payload)
{
    struct world w = world_open();
    lh_enqueued out;
    lh_job job;
    EXPECT_OK(
        lh_enqueue(w.store, "mail", &(lh_new_job){.payload = "", .payload_len = 0}, 1, NULL, &out));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT(job.payload != NULL);
    EXPECT_EQ(job.payload_len, 0);
    EXPECT_OK(lh_enqueue(w.store, "mail", &(lh_new_job){0}, 1, NULL, &out));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT(job.payload == NULL);
    EXPECT_EQ(job.payload_len, 0);
    world_close(&w);
}

SPEC(a_payload_of_one_mebibyte_is_accepted_and_one_byte_more_is_refused)
{
    struct world w = world_open();
    size_t limit = 1 << 20;
    char *bytes = keep(&w, malloc(limit + 1), free);
    lh_enqueued out = {.id = -1};
    for (size_t i = 0; i <= limit; i++)
        bytes[i] = (char)('a' + i % 26);
    expect_bytes_survive(&w, bytes, limit, true);
    EXPECT_STATUS(lh_enqueue(w.store, "bytes",
                             &(lh_new_job){.payload = bytes, .payload_len = limit + 1}, 1, NULL,
                             &out),
                  LH_ETOOBIG);
    EXPECT_EQ(out.id, -1);
    EXPECT_CONTAINS(lh_errmsg(w.store), "1048577");
    EXPECT_CONTAINS(lh_errmsg(w.store), "1048576");
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){0})->n, 1);
    world_close(&w);
}

SPEC(a_policy_raises_and_lowers_the_limit_of_a_payload)
{
    struct world w = world_open();
    size_t len = (1 << 20) + 1;
    char *bytes = keep(&w, calloc(1, len), free);
    lh_enqueued out;
    EXPECT_OK(policy(&w, "big", NULL, .set = LH_POLICY_MAX_PAYLOAD, .max_payload = 2 << 20));
    EXPECT_OK(policy(&w, "small", NULL, .set = LH_POLICY_MAX_PAYLOAD, .max_payload = 3));
    EXPECT_OK(lh_enqueue(w.store, "big", &(lh_new_job){.payload = bytes, .payload_len = len}, 1,
                         NULL, &out));
    EXPECT_OK(lh_enqueue(w.store, "small", &(lh_new_job){.payload = "abc", .payload_len = 3}, 1,
                         NULL, &out));
    EXPECT_STATUS(lh_enqueue(w.store, "small", &(lh_new_job){.payload = "abcd", .payload_len = 4},
                             1, NULL, &out),
                  LH_ETOOBIG);
    world_close(&w);
}

/* ---- time ---- */

SPEC(a_delayed_job_is_scheduled_and_cannot_be_claimed_before_it_is_due)
{
    struct world w = world_open();
    lh_job job;
    int64_t id = enqueue(&w, "mail", "x", .delay_ms = 5000);
    EXPECT_EQ(job_of(&w, id).state, LH_SCHEDULED);
    EXPECT_EQ(job_of(&w, id).run_at, WORLD_START_MS + 5000);
    clock_advance_ms(&w, 4999);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_EQ(job_of(&w, id).state, LH_SCHEDULED);
    clock_advance_ms(&w, 1);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.id, id);
    world_close(&w);
}

SPEC(a_job_with_a_run_time_waits_for_that_time)
{
    struct world w = world_open();
    lh_job job;
    int64_t id = enqueue(&w, "mail", "x", .run_at = WORLD_START_MS + 60000);
    EXPECT_EQ(job_of(&w, id).state, LH_SCHEDULED);
    clock_advance_ms(&w, 59999);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    clock_advance_ms(&w, 1);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.id, id);
    world_close(&w);
}

SPEC(a_job_with_a_run_time_in_the_past_is_pending_at_once)
{
    struct world w = world_open();
    lh_job job;
    int64_t past = enqueue(&w, "mail", "x", .run_at = WORLD_START_MS - 1);
    int64_t present = enqueue(&w, "mail", "x", .run_at = WORLD_START_MS);
    EXPECT_EQ(job_of(&w, past).state, LH_PENDING);
    EXPECT_EQ(job_of(&w, present).state, LH_PENDING);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.id, past);
    world_close(&w);
}

SPEC(a_job_that_is_not_claimed_before_it_expires_is_cancelled_with_a_reason)
{
    struct world w = world_open();
    lh_job job;
    int64_t id = enqueue(&w, "mail", "x", .expires_ms = 1000);
    clock_advance_ms(&w, 1000);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    job = job_of(&w, id);
    EXPECT_EQ(job.state, LH_CANCELLED);
    EXPECT(strncmp(job.last_error, "EXPIRED:", 8) == 0);
    EXPECT_EQ(job.finished_at, WORLD_START_MS + 1000);
    EXPECT_STR(story_of(&w, id), "job.cancelled");
    EXPECT(strncmp(last_event(&w, "job.cancelled").reason, "EXPIRED:", 8) == 0);
    world_close(&w);
}

SPEC(a_job_may_be_claimed_until_the_last_moment_before_its_expiry)
{
    struct world w = world_open();
    lh_job job;
    enqueue(&w, "mail", "x", .expires_ms = 1000);
    clock_advance_ms(&w, 999);
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 60000));
    clock_advance_ms(&w, 5000);
    EXPECT_OK(beat(&w, &job));
    EXPECT_OK(complete(&w, &job));
    world_close(&w);
}

SPEC(a_scheduled_job_expires_too)
{
    struct world w = world_open();
    lh_maintained done;
    int64_t id = enqueue(&w, "mail", "x", .delay_ms = 5000, .expires_ms = 1000);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_maintain(w.store, NULL, &done));
    EXPECT_EQ(done.expired, 1);
    EXPECT_EQ(job_of(&w, id).state, LH_CANCELLED);
    world_close(&w);
}

SPEC(a_job_that_was_claimed_in_time_does_not_expire_when_its_worker_dies)
{
    struct world w = world_open();
    lh_job job, again;
    int64_t id = enqueue(&w, "mail", "x", .expires_ms = 1000);
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 5000));
    clock_advance_ms(&w, 5000);
    EXPECT_OK(claim_one(&w, "mail", &again));
    EXPECT_EQ(again.id, id);
    world_close(&w);
}

SPEC(a_job_that_was_claimed_in_time_does_not_expire_while_it_waits_for_its_next_attempt)
{
    struct world w = world_open();
    lh_job job;
    int64_t id = enqueue(&w, "mail", "x", .expires_ms = 1000);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(lh_fail(
        w.store, &(lh_failure){.job = id, .token = job.token, .error = "no", .retry_in_ms = 5000},
        1, NULL, NULL));
    clock_advance_ms(&w, 5000);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.id, id);
    world_close(&w);
}

/* ---- keys ---- */

static lh_enqueued enqueue_key(struct world *w, const char *queue, const char *key)
{
    lh_enqueued out;
    EXPECT_OK(lh_enqueue(w->store, queue,
                         &(lh_new_job){.payload = "x", .payload_len = 1, .key = key}, 1, NULL,
                         &out));
    return out;
}

SPEC(a_second_enqueue_under_a_live_key_returns_the_first_job)
{
    struct world w = world_open();
    lh_job job;
    lh_enqueued first = enqueue_key(&w, "mail", "k");
    EXPECT(!first.duplicate);
    lh_enqueued second = enqueue_key(&w, "mail", "k");
    EXPECT(second.duplicate);
    EXPECT_EQ(second.id, first.id);
    EXPECT_EQ(second.state, LH_PENDING);
    EXPECT_OK(claim_one(&w, "mail", &job));
    second = enqueue_key(&w, "mail", "k");
    EXPECT(second.duplicate);
    EXPECT_EQ(second.state, LH_RUNNING);
    EXPECT_OK(lh_fail(
        w.store,
        &(lh_failure){.job = job.id, .token = job.token, .error = "no", .retry_in_ms = 1000}, 1,
        NULL, NULL));
    second = enqueue_key(&w, "mail", "k");
    EXPECT(second.duplicate);
    EXPECT_EQ(second.state, LH_SCHEDULED);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.key = "k"})->n, 1);
    EXPECT_EQ(queue_of(&w, "mail").hour_enqueued, 1);
    world_close(&w);
}

SPEC(a_key_is_free_again_once_its_job_has_ended)
{
    struct world w = world_open();
    lh_job job;
    lh_enqueued first = enqueue_key(&w, "mail", "k");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete(&w, &job));
    lh_enqueued second = enqueue_key(&w, "mail", "k");
    EXPECT(!second.duplicate);
    EXPECT(second.id > first.id);
    EXPECT_OK(cancel(&w, second.id));
    lh_enqueued third = enqueue_key(&w, "mail", "k");
    EXPECT(!third.duplicate);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(lh_fail(
        w.store, &(lh_failure){.job = job.id, .token = job.token, .error = "no", .permanent = true},
        1, NULL, NULL));
    EXPECT(!enqueue_key(&w, "mail", "k").duplicate);
    world_close(&w);
}

SPEC(the_same_key_may_be_used_in_two_queues)
{
    struct world w = world_open();
    lh_enqueued here = enqueue_key(&w, "mail", "k"), there = enqueue_key(&w, "post", "k");
    EXPECT(!there.duplicate);
    EXPECT(here.id != there.id);
    EXPECT(!enqueue_key(&w, "mail", "K").duplicate);
    world_close(&w);
}

SPEC(the_same_key_twice_in_one_batch_makes_one_job)
{
    struct world w = world_open();
    lh_new_job jobs[2] = {{.payload = "a", .payload_len = 1, .key = "k"},
                          {.payload = "b", .payload_len = 1, .key = "k"}};
    lh_enqueued out[2];
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, 2, NULL, out));
    EXPECT(!out[0].duplicate);
    EXPECT(out[1].duplicate);
    EXPECT_EQ(out[0].id, out[1].id);
    EXPECT_MEM(job_of(&w, out[0].id).payload, 1, "a", 1);
    world_close(&w);
}

/* ---- requests ---- */

SPEC(a_repeated_enqueue_returns_the_same_jobs_and_reports_the_repeat)
{
    struct world w = world_open();
    lh_new_job jobs[2] = {{.payload = "a", .payload_len = 1}, {.payload = "b", .payload_len = 1}};
    lh_enqueued first[2], second[2];
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, 2, "r-1", first));
    EXPECT(!first[0].duplicate);
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, 2, "r-1", second));
    for (int i = 0; i < 2; i++) {
        EXPECT(second[i].duplicate);
        EXPECT_EQ(second[i].id, first[i].id);
        EXPECT_EQ(second[i].state, LH_PENDING);
    }
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){0})->n, 2);
    EXPECT_EQ(queue_of(&w, "mail").hour_enqueued, 2);
    world_close(&w);
}

SPEC(a_repeated_enqueue_returns_its_job_even_after_the_job_has_finished)
{
    struct world w = world_open();
    lh_new_job new_job = {.payload = "a", .payload_len = 1};
    lh_enqueued first, second;
    lh_job job;
    EXPECT_OK(lh_enqueue(w.store, "mail", &new_job, 1, "r-1", &first));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete(&w, &job));
    EXPECT_OK(lh_enqueue(w.store, "mail", &new_job, 1, "r-1", &second));
    EXPECT(second.duplicate);
    EXPECT_EQ(second.id, first.id);
    EXPECT_EQ(second.state, LH_COMPLETED);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    world_close(&w);
}

SPEC(an_enqueue_with_another_request_id_makes_another_job)
{
    struct world w = world_open();
    lh_new_job new_job = {.payload = "a", .payload_len = 1};
    lh_enqueued first, second;
    EXPECT_OK(lh_enqueue(w.store, "mail", &new_job, 1, "r-1", &first));
    EXPECT_OK(lh_enqueue(w.store, "mail", &new_job, 1, "r-2", &second));
    EXPECT(!second.duplicate);
    EXPECT(second.id != first.id);
    world_close(&w);
}

SPEC(a_request_id_is_remembered_after_its_handle_is_closed)
{
    struct world w = world_open();
    lh_new_job new_job = {.payload = "a", .payload_len = 1};
    lh_enqueued first, second;
    EXPECT_OK(lh_enqueue(w.store, "mail", &new_job, 1, "r-1", &first));
    lh_store *other = world_second_handle();
    EXPECT_OK(lh_enqueue(other, "mail", &new_job, 1, "r-1", &second));
    EXPECT(second.duplicate);
    EXPECT_EQ(second.id, first.id);
    lh_close(other);
    world_close(&w);
}

SPEC(a_request_id_repeated_with_another_number_of_jobs_is_refused)
{
    struct world w = world_open();
    lh_new_job jobs[2] = {{.payload = "a", .payload_len = 1}, {.payload = "b", .payload_len = 1}};
    lh_enqueued out[2];
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, 1, "r-1", out));
    EXPECT_STATUS(lh_enqueue(w.store, "mail", jobs, 2, "r-1", out), LH_EINVAL);
    EXPECT_CONTAINS(lh_errmsg(w.store), "r-1");
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){0})->n, 1);
    world_close(&w);
}

SPEC(a_refused_enqueue_does_not_use_up_its_request_id)
{
    struct world w = world_open();
    lh_enqueued out;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_MAX_PAYLOAD, .max_payload = 1));
    EXPECT_STATUS(lh_enqueue(w.store, "mail", &(lh_new_job){.payload = "ab", .payload_len = 2}, 1,
                             "r-1", &out),
                  LH_ETOOBIG);
    EXPECT_OK(lh_enqueue(w.store, "mail", &(lh_new_job){.payload = "a", .payload_len = 1}, 1, "r-1",
                         &out));
    EXPECT(!out.duplicate);
    world_close(&w);
}

SPEC(a_repeated_enqueue_under_a_live_key_returns_the_same_job)
{
    struct world w = world_open();
    lh_new_job new_job = {.payload = "a", .payload_len = 1, .key = "k"};
    lh_enqueued first, second, third;
    EXPECT_OK(lh_enqueue(w.store, "mail", &new_job, 1, "r-1", &first));
    EXPECT_OK(lh_enqueue(w.store, "mail", &new_job, 1, "r-2", &second));
    EXPECT(second.duplicate);
    EXPECT_OK(cancel(&w, first.id));
    EXPECT_OK(lh_enqueue(w.store, "mail", &new_job, 1, "r-2", &third));
    EXPECT(third.duplicate);
    EXPECT_EQ(third.id, first.id);
    EXPECT_EQ(third.state, LH_CANCELLED);
    world_close(&w);
}

SPEC(an_enqueue_and_a_claim_with_the_same_request_id_are_independent)
{
    struct world w = world_open();
    lh_new_job new_job = {.payload = "a", .payload_len = 1};
    lh_enqueued out;
    lh_job job;
    EXPECT_OK(lh_enqueue(w.store, "mail", &new_job, 1, "e-1", &out));
    EXPECT_OK(claim_one(&w, "mail", &job, .request = "c-1"));
    EXPECT_STATUS(lh_enqueue(w.store, "mail", &new_job, 1, "c-1", &out), LH_EINVAL);
    EXPECT_STATUS(claim_one(&w, "mail", &job, .request = "e-1"), LH_EINVAL);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){0})->n, 1);
    world_close(&w);
}

SPEC(a_brief_list_leaves_out_only_the_long_fields)
{
    struct world w = world_open();
    lh_new_job new_job = {.payload = "hello", .payload_len = 5, .kind = "k", .key = "one"};
    lh_enqueued out;
    lh_job job;
    lh_beat beat = {.has_progress = true, .progress = 40, .stage = "s", .checkpoint = "{}"};
    EXPECT_OK(lh_enqueue(w.store, "mail", &new_job, 1, NULL, &out));
    EXPECT_OK(claim_one(&w, "mail", &job));
    beat.job = job.id;
    beat.token = job.token;
    EXPECT_OK(lh_heartbeat(w.store, &beat, 1, NULL, NULL));

    const lh_job *whole = &jobs_where(&w, (lh_job_filter){.state = LH_RUNNING})->job[0];
    const lh_job *brief =
        &jobs_where(&w, (lh_job_filter){.state = LH_RUNNING, .brief = true})->job[0];
    EXPECT(whole->payload != NULL && whole->checkpoint != NULL);
    EXPECT(brief->payload == NULL && brief->payload_len == 0);
    EXPECT(brief->checkpoint == NULL && brief->result == NULL);
    EXPECT_EQ(brief->id, whole->id);
    EXPECT_EQ(brief->token, whole->token);
    EXPECT_EQ(brief->lease_until, whole->lease_until);
    EXPECT_EQ(brief->progress, 40);
    EXPECT_STR(brief->stage, "s");
    EXPECT_STR(brief->key, "one");
    EXPECT_STR(brief->kind, "k");
    world_close(&w);
}
