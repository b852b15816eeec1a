/* The calls of a job's holder: heartbeat, complete, fail, release. */
#include "world.h"

#include <stdlib.h>

static int beat_with(struct world *w, const lh_job *job, lh_beat beat)
{
    beat.job = job->id;
    beat.token = job->token;
    return lh_heartbeat(w->store, &beat, 1, NULL, NULL);
}

static int complete_with(struct world *w, const lh_job *job, const void *result, size_t len)
{
    return lh_complete(
        w->store,
        &(lh_done){.job = job->id, .token = job->token, .result = result, .result_len = len}, 1,
        NULL, NULL);
}

static int fail_with(struct world *w, const lh_job *job, lh_failure failure)
{
    failure.job = job->id;
    failure.token = job->token;
    return lh_fail(w->store, &failure, 1, NULL, NULL);
}

/* ---- heartbeat ---- */

SPEC(a_heartbeat_extends_the_lease_by_the_length_that_was_claimed)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 600);
    lh_jobs *after = NULL;
    EXPECT_OK(
        lh_heartbeat(w.store, &(lh_beat){.job = job.id, .token = job.token}, 1, NULL, &after));
    keep_jobs(&w, after);
    EXPECT_EQ(after->n, 1);
    EXPECT_EQ(after->job[0].lease_until, WORLD_START_MS + 1600);
    EXPECT_EQ(after->job[0].remaining_ms, 1000);
    EXPECT_EQ(after->job[0].last_heartbeat_at, WORLD_START_MS + 600);
    EXPECT_EQ(after->job[0].token, job.token);
    EXPECT_EQ(after->job[0].state, LH_RUNNING);
    EXPECT_EQ(after->job[0].started_at, WORLD_START_MS);
    clock_advance_ms(&w, 999);
    EXPECT_OK(beat(&w, &job));
    EXPECT_EQ(job_of(&w, job.id).attempt, 1);
    world_close(&w);
}

SPEC(a_heartbeat_with_its_own_lease_does_not_change_the_claimed_length)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    EXPECT_OK(beat_with(&w, &job, (lh_beat){.lease_ms = 9000}));
    EXPECT_EQ(job_of(&w, job.id).lease_until, WORLD_START_MS + 9000);
    EXPECT_EQ(job_of(&w, job.id).lease_ms, 1000);
    EXPECT_OK(beat(&w, &job));
    EXPECT_EQ(job_of(&w, job.id).lease_until, WORLD_START_MS + 1000);
    world_close(&w);
}

SPEC(a_heartbeat_is_accepted_in_the_last_millisecond_and_lost_at_the_deadline)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 999);
    EXPECT_OK(beat(&w, &job));
    clock_advance_ms(&w, 1000);
    EXPECT_STATUS(beat(&w, &job), LH_ELOST);
    EXPECT_CONTAINS(lh_errmsg(w.store), "expired");
    EXPECT_EQ(job_of(&w, job.id).lease_until, WORLD_START_MS + 1999);
    EXPECT_EQ(job_of(&w, job.id).last_heartbeat_at, WORLD_START_MS + 999);
    EXPECT_EQ(job_of(&w, job.id).state, LH_RUNNING); /* a heartbeat recovers nothing */
    world_close(&w);
}

SPEC(a_heartbeat_carries_progress_stage_and_checkpoint)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(beat_with(&w, &job,
                        (lh_beat){.has_progress = true,
                                  .progress = 40,
                                  .stage = "testing",
                                  .checkpoint = "{\"done\":[1,2]}"}));
    lh_job seen = job_of(&w, job.id);
    EXPECT_EQ(seen.progress, 40);
    EXPECT_STR(seen.stage, "testing");
    EXPECT_STR(seen.checkpoint, "{\"done\":[1,2]}");

    EXPECT_OK(beat(&w, &job)); /* fields that are not given stay unchanged */
    seen = job_of(&w, job.id);
    EXPECT_EQ(seen.progress, 40);
    EXPECT_STR(seen.stage, "testing");
    EXPECT_STR(seen.checkpoint, "{\"done\":[1,2]}");

    EXPECT_OK(beat_with(&w, &job, (lh_beat){.has_progress = true, .progress = 0}));
    EXPECT_EQ(job_of(&w, job.id).progress, 0);
    EXPECT_OK(beat_with(&w, &job, (lh_beat){.has_progress = true, .progress = 100}));
    EXPECT_EQ(job_of(&w, job.id).progress, 100);
    EXPECT_OK(beat_with(&w, &job, (lh_beat){.checkpoint = "[]"}));
    EXPECT_STR(job_of(&w, job.id).checkpoint, "[]");
    world_close(&w);
}

SPEC(a_checkpoint_that_is_not_json_is_refused_and_nothing_is_extended)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 500);
    EXPECT_STATUS(beat_with(&w, &job, (lh_beat){.checkpoint = "{page: 7"}), LH_EINVAL);
    EXPECT_CONTAINS(lh_errmsg(w.store), "checkpoint");
    EXPECT_EQ(job_of(&w, job.id).lease_until, WORLD_START_MS + 1000);
    EXPECT(job_of(&w, job.id).checkpoint == NULL);
    world_close(&w);
}

SPEC(a_checkpoint_may_have_64_kib_and_not_more)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    size_t limit = 64 << 10;
    char *json = keep(&w, calloc(1, limit + 2), free);
    EXPECT_OK(claim_one(&w, "mail", &job));
    memset(json, 'a', limit);
    json[0] = json[limit - 1] = '"';
    EXPECT_OK(beat_with(&w, &job, (lh_beat){.checkpoint = json}));
    EXPECT_STR(job_of(&w, job.id).checkpoint, json);
    json[limit - 1] = 'a';
    json[limit] = '"';
    EXPECT_STATUS(beat_with(&w, &job, (lh_beat){.checkpoint = json}), LH_ETOOBIG);
    world_close(&w);
}

SPEC(a_heartbeat_of_an_unknown_job_is_not_found)
{
    struct world w = world_open();
    EXPECT_STATUS(beat(&w, &(lh_job){.id = 42, .token = 1}), LH_ENOTFOUND);
    EXPECT_STATUS(complete(&w, &(lh_job){.id = 42, .token = 1}), LH_ENOTFOUND);
    EXPECT_STATUS(fail(&w, &(lh_job){.id = 42, .token = 1}, "no"), LH_ENOTFOUND);
    EXPECT_STATUS(release(&w, &(lh_job){.id = 42, .token = 1}), LH_ENOTFOUND);
    world_close(&w);
}

SPEC(a_wrong_token_changes_nothing)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    lh_job above = {.id = job.id, .token = job.token + 1};
    clock_advance_ms(&w, 10);
    EXPECT_STATUS(beat(&w, &above), LH_ELOST);
    EXPECT_STATUS(complete(&w, &above), LH_ELOST);
    EXPECT_STATUS(fail(&w, &above, "no"), LH_ELOST);
    EXPECT_STATUS(release(&w, &above), LH_ELOST);
    lh_job seen = job_of(&w, job.id);
    EXPECT_EQ(seen.state, LH_RUNNING);
    EXPECT_EQ(seen.lease_until, WORLD_START_MS + 1000);
    EXPECT_EQ(seen.last_heartbeat_at, 0);
    EXPECT(seen.last_error == NULL);
    EXPECT_OK(complete(&w, &job));
    world_close(&w);
}

/* ---- complete ---- */

SPEC(a_complete_ends_the_job)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    clock_advance_ms(&w, 250);
    lh_jobs *after = NULL;
    EXPECT_OK(lh_complete(w.store, &(lh_done){.job = job.id, .token = job.token}, 1, NULL, &after));
    keep_jobs(&w, after);
    EXPECT_EQ(after->n, 1);
    EXPECT_EQ(after->job[0].state, LH_COMPLETED);
    EXPECT_EQ(after->job[0].finished_at, WORLD_START_MS + 250);
    EXPECT_EQ(after->job[0].state_changed_at, WORLD_START_MS + 250);
    EXPECT_EQ(after->job[0].started_at, WORLD_START_MS);
    EXPECT_EQ(after->job[0].attempt, 1);
    EXPECT_EQ(after->job[0].token, job.token);
    EXPECT(after->job[0].worker == NULL);
    EXPECT(after->job[0].result == NULL);
    world_close(&w);
}

SPEC(a_late_complete_is_accepted_if_the_job_was_not_recovered)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 3600000);
    EXPECT(job_of(&w, job.id).expired);
    EXPECT_OK(complete(&w, &job));
    EXPECT_EQ(job_of(&w, job.id).state, LH_COMPLETED);
    EXPECT_EQ(job_of(&w, job.id).recoveries, 0);
    world_close(&w);
}

SPEC(a_late_complete_is_refused_after_the_job_was_recovered)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_recover(w.store, NULL, NULL));
    EXPECT_STATUS(complete(&w, &job), LH_ELOST);
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    world_close(&w);
}

SPEC(a_late_fail_or_release_is_accepted_if_the_job_was_not_recovered)
{
    struct world w = world_open();
    lh_job a, b;
    enqueue(&w, "mail", "a");
    enqueue(&w, "mail", "b");
    EXPECT_OK(claim_one(&w, "mail", &a, .lease_ms = 1000));
    EXPECT_OK(claim_one(&w, "mail", &b, .lease_ms = 1000));
    clock_advance_ms(&w, 5000);
    EXPECT_OK(fail(&w, &a, "no"));
    EXPECT_OK(release(&w, &b));
    EXPECT_EQ(job_of(&w, a.id).state, LH_SCHEDULED);
    EXPECT_EQ(job_of(&w, b.id).state, LH_PENDING);
    EXPECT_EQ(job_of(&w, b.id).attempt, 0);
    world_close(&w);
}

static void expect_result_survives(struct world *w, const void *result, size_t len, bool text)
{
    lh_job job;
    enqueue(w, "results", "x");
    EXPECT_OK(claim_one(w, "results", &job));
    EXPECT_OK(complete_with(w, &job, result, len));
    lh_job seen = job_of(w, job.id);
    EXPECT(seen.result != NULL);
    EXPECT_MEM(seen.result, seen.result_len, result, len);
    EXPECT_EQ(seen.result_is_text, text);
}

SPEC(a_result_may_be_text_json_bytes_or_absent)
{
    struct world w = world_open();
    lh_job job;
    expect_result_survives(&w, "done", 4, true);
    expect_result_survives(&w, "{\"rows\": 12}", 12, true);
    expect_result_survives(&w, "\0\xff\0", 3, false);
    expect_result_survives(&w, "", 0, true);
    enqueue(&w, "results", "x");
    EXPECT_OK(claim_one(&w, "results", &job));
    EXPECT_OK(complete(&w, &job));
    EXPECT(job_of(&w, job.id).result == NULL);
    EXPECT_EQ(job_of(&w, job.id).result_len, 0);
    world_close(&w);
}

SPEC(a_result_is_limited_like_a_payload)
{
    struct world w = world_open();
    size_t limit = 1 << 20;
    char *bytes = keep(&w, malloc(limit + 1), free);
    memset(bytes, 'r', limit + 1);
    expect_result_survives(&w, bytes, limit, true);
    lh_job job;
    enqueue(&w, "results", "x");
    EXPECT_OK(claim_one(&w, "results", &job));
    EXPECT_STATUS(complete_with(&w, &job, bytes, limit + 1), LH_ETOOBIG);
    EXPECT_EQ(job_of(&w, job.id).state, LH_RUNNING);
    EXPECT_OK(policy(&w, "results", NULL, .set = LH_POLICY_MAX_PAYLOAD, .max_payload = 2 << 20));
    EXPECT_OK(complete_with(&w, &job, bytes, limit + 1));
    world_close(&w);
}

SPEC(a_repeated_identical_complete_is_done)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete_with(&w, &job, "r", 1));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(complete_with(&w, &job, "r", 1));
    EXPECT_EQ(job_of(&w, job.id).finished_at, WORLD_START_MS);
    EXPECT_EQ(queue_of(&w, "mail").hour_completed, 1);
    EXPECT_STATUS(complete_with(&w, &job, "s", 1), LH_ELOST);
    EXPECT_STATUS(complete_with(&w, &job, "rs", 2), LH_ELOST);
    EXPECT_STATUS(complete_with(&w, &job, "", 0), LH_ELOST);
    EXPECT_STATUS(complete(&w, &job), LH_ELOST);
    EXPECT_STATUS(fail(&w, &job, "no"), LH_ELOST);
    EXPECT_STATUS(release(&w, &job), LH_ELOST);
    EXPECT_STATUS(beat(&w, &job), LH_ELOST);
    EXPECT_MEM(job_of(&w, job.id).result, job_of(&w, job.id).result_len, "r", 1);
    world_close(&w);
}

SPEC(a_repeated_complete_distinguishes_an_empty_result_from_none)
{
    struct world w = world_open();
    lh_job job;
    enqueue(&w, "mail", "a");
    enqueue(&w, "mail", "b");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete(&w, &job));
    EXPECT_OK(complete(&w, &job));
    EXPECT_STATUS(complete_with(&w, &job, "", 0), LH_ELOST);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete_with(&w, &job, "", 0));
    EXPECT_OK(complete_with(&w, &job, "", 0));
    EXPECT_STATUS(complete(&w, &job), LH_ELOST);
    world_close(&w);
}

/* ---- fail ---- */

SPEC(a_fail_schedules_the_job_again_after_its_backoff)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    clock_advance_ms(&w, 100);
    EXPECT_OK(fail(&w, &job, "no route to host"));
    lh_job seen = job_of(&w, job.id);
    EXPECT_EQ(seen.state, LH_SCHEDULED);
    EXPECT_STR(seen.last_error, "no route to host");
    EXPECT_EQ(seen.attempt, 1);
    EXPECT_EQ(seen.recoveries, 0);
    EXPECT(seen.worker == NULL);
    EXPECT_EQ(seen.finished_at, 0);
    EXPECT_EQ(seen.state_changed_at, WORLD_START_MS + 100);
    EXPECT(seen.run_at >= WORLD_START_MS + 100 + 500);
    EXPECT(seen.run_at <= WORLD_START_MS + 100 + 1000);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.attempt, 2);
    EXPECT_STR(job.last_error, "no route to host");
    world_close(&w);
}

SPEC(a_permanent_fail_is_final)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    clock_advance_ms(&w, 100);
    EXPECT_OK(fail_with(&w, &job, (lh_failure){.error = "no such user", .permanent = true}));
    lh_job seen = job_of(&w, job.id);
    EXPECT_EQ(seen.state, LH_FAILED);
    EXPECT_EQ(seen.finished_at, WORLD_START_MS + 100);
    EXPECT_STR(seen.last_error, "no such user");
    clock_advance_ms(&w, 3600000);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    world_close(&w);
}

SPEC(a_fail_at_the_last_attempt_is_final)
{
    struct world w = world_open();
    lh_job job;
    int64_t id = enqueue(&w, "mail", "x", .max_attempts = 2);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(fail_with(&w, &job, (lh_failure){.error = "one", .retry_in_ms = LH_NOW}));
    EXPECT_EQ(job_of(&w, id).state, LH_PENDING);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.attempt, 2);
    EXPECT_OK(fail_with(&w, &job, (lh_failure){.error = "two", .retry_in_ms = LH_NOW}));
    EXPECT_EQ(job_of(&w, id).state, LH_FAILED);
    EXPECT_STR(job_of(&w, id).last_error, "two");
    world_close(&w);
}

SPEC(a_job_without_a_limit_of_attempts_is_always_retried)
{
    struct world w = world_open();
    lh_job job;
    enqueue(&w, "mail", "x", .max_attempts = LH_UNLIMITED);
    for (int i = 1; i <= 50; i++) {
        EXPECT_OK(claim_one(&w, "mail", &job));
        EXPECT_EQ(job.attempt, i);
        EXPECT_OK(fail_with(&w, &job, (lh_failure){.error = "no", .retry_in_ms = LH_NOW}));
        EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    }
    world_close(&w);
}

SPEC(a_fail_may_set_the_delay_of_the_retry)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(fail_with(&w, &job, (lh_failure){.error = "later", .retry_in_ms = 7777}));
    EXPECT_EQ(job_of(&w, job.id).state, LH_SCHEDULED);
    EXPECT_EQ(job_of(&w, job.id).run_at, WORLD_START_MS + 7777);
    clock_advance_ms(&w, 7777);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(fail_with(&w, &job, (lh_failure){.error = "now", .retry_in_ms = LH_NOW}));
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    EXPECT_OK(claim_one(&w, "mail", &job));
    world_close(&w);
}

SPEC(a_repeated_identical_fail_is_done)
{
    struct world w = world_open();
    lh_job job, last;
    enqueue(&w, "mail", "a");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(fail(&w, &job, "no"));
    int64_t run_at = job_of(&w, job.id).run_at;
    EXPECT_OK(fail(&w, &job, "no"));
    EXPECT_EQ(job_of(&w, job.id).run_at, run_at);
    EXPECT_EQ(job_of(&w, job.id).attempt, 1);
    EXPECT_STATUS(fail(&w, &job, "yes"), LH_ELOST);
    EXPECT_STATUS(complete(&w, &job), LH_ELOST);
    EXPECT_STATUS(release(&w, &job), LH_ELOST);
    EXPECT_EQ(queue_of(&w, "mail").hour_failed, 1);
    EXPECT_STR(story_of(&w, job.id), "job.failed");

    enqueue(&w, "last", "b", .max_attempts = 1);
    EXPECT_OK(claim_one(&w, "last", &last));
    EXPECT_OK(fail(&w, &last, "no"));
    EXPECT_OK(fail(&w, &last, "no"));
    EXPECT_STATUS(fail(&w, &last, "yes"), LH_ELOST);
    EXPECT_EQ(job_of(&w, last.id).state, LH_FAILED);
    world_close(&w);
}

SPEC(a_fail_repeated_after_the_next_claim_is_lost)
{
    struct world w = world_with_job("mail", "x");
    lh_job job, next;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(fail_with(&w, &job, (lh_failure){.error = "no", .retry_in_ms = LH_NOW}));
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
    EXPECT_STATUS(fail(&w, &job, "no"), LH_ELOST);
    EXPECT_EQ(job_of(&w, job.id).state, LH_RUNNING);
    world_close(&w);
}

/* ---- release ---- */

SPEC(a_release_returns_the_job_and_refunds_the_attempt)
{
    struct world w = world_open();
    lh_job job;
    enqueue(&w, "mail", "x", .max_attempts = 1);
    for (int i = 0; i < 5; i++) {
        EXPECT_OK(claim_one(&w, "mail", &job));
        EXPECT_EQ(job.attempt, 1);
        clock_advance_ms(&w, 10);
        EXPECT_OK(release(&w, &job));
        lh_job seen = job_of(&w, job.id);
        EXPECT_EQ(seen.state, LH_PENDING);
        EXPECT_EQ(seen.attempt, 0);
        EXPECT_EQ(seen.recoveries, 0);
        EXPECT_EQ(seen.started_at, 0);
        EXPECT(seen.worker == NULL);
        EXPECT(seen.last_error == NULL);
        EXPECT_EQ(seen.state_changed_at, lh_now(w.store));
    }
    world_close(&w);
}

SPEC(a_release_with_a_delay_schedules_the_job)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(lh_release(w.store, &(lh_ref){job.id, job.token}, 1, 3000, NULL, NULL));
    EXPECT_EQ(job_of(&w, job.id).state, LH_SCHEDULED);
    EXPECT_EQ(job_of(&w, job.id).run_at, WORLD_START_MS + 3000);
    EXPECT_EQ(job_of(&w, job.id).attempt, 0);
    clock_advance_ms(&w, 2999);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    clock_advance_ms(&w, 1);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.attempt, 1);
    world_close(&w);
}

SPEC(a_repeated_release_is_done)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(release(&w, &job));
    EXPECT_OK(release(&w, &job));
    EXPECT_EQ(job_of(&w, job.id).attempt, 0);
    EXPECT_STR(story_of(&w, job.id), "job.released");
    EXPECT_STATUS(complete(&w, &job), LH_ELOST);
    EXPECT_STATUS(fail(&w, &job, "no"), LH_ELOST);
    EXPECT_STATUS(beat(&w, &job), LH_ELOST);
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    world_close(&w);
}

SPEC(a_release_of_no_jobs_is_done)
{
    struct world w = world_open();
    EXPECT_OK(lh_release(w.store, NULL, 0, 0, NULL, NULL));
    world_close(&w);
}

/* ---- invariant 3 ---- */

SPEC(no_call_of_a_holder_changes_a_finished_job)
{
    struct world w = world_open();
    lh_job job, before, after;
    for (int end = 0; end < 3; end++) {
        enqueue(&w, "mail", "x", .max_attempts = 1);
        EXPECT_OK(claim_one(&w, "mail", &job));
        if (end == 0)
            EXPECT_OK(complete_with(&w, &job, "r", 1));
        else if (end == 1)
            EXPECT_OK(fail(&w, &job, "no"));
        else
            EXPECT_OK(cancel(&w, job.id));
        before = job_of(&w, job.id);
        clock_advance_ms(&w, 1000000);
        for (int64_t token = job.token; token <= before.token; token++) {
            lh_job as = {.id = job.id, .token = token};
            (void)beat_with(&w, &as, (lh_beat){.has_progress = true, .progress = 1});
            (void)complete_with(&w, &as, "other", 5);
            (void)fail(&w, &as, "other");
            (void)release(&w, &as);
        }
        EXPECT_OK(lh_recover(w.store, NULL, NULL));
        EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
        after = job_of(&w, before.id);
        EXPECT_EQ(after.state, before.state);
        EXPECT_EQ(after.token, before.token);
        EXPECT_EQ(after.finished_at, before.finished_at);
        EXPECT_EQ(after.state_changed_at, before.state_changed_at);
        EXPECT_EQ(after.attempt, before.attempt);
        EXPECT_EQ(after.recoveries, before.recoveries);
        EXPECT_EQ(after.progress, before.progress);
        EXPECT_STR(after.last_error, before.last_error);
        EXPECT_MEM(after.result, after.result_len, before.result, before.result_len);
    }
    world_close(&w);
}
