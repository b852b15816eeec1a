/* The calls of an operator: cancel, retry, delete, reschedule, and release by worker name. */
#include "world.h"

static int fail_for_good(struct world *w, const lh_job *job)
{
    return lh_fail(
        w->store,
        &(lh_failure){.job = job->id, .token = job->token, .error = "no", .permanent = true}, 1,
        NULL, NULL);
}

/* ---- cancel ---- */

SPEC(a_cancel_ends_a_pending_and_a_scheduled_job)
{
    struct world w = world_open();
    lh_job job;
    int64_t pending = enqueue(&w, "mail", "x"),
            scheduled = enqueue(&w, "mail", "x", .delay_ms = 10);
    clock_advance_ms(&w, 5);
    EXPECT_OK(cancel(&w, pending));
    EXPECT_OK(cancel(&w, scheduled));
    clock_advance_ms(&w, 1000);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_EQ(job_of(&w, pending).state, LH_CANCELLED);
    EXPECT_EQ(job_of(&w, pending).finished_at, WORLD_START_MS + 5);
    EXPECT_EQ(job_of(&w, scheduled).state, LH_CANCELLED);
    world_close(&w);
}

SPEC(the_next_heartbeat_reports_that_the_job_was_cancelled)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(cancel(&w, job.id));
    EXPECT_EQ(job_of(&w, job.id).state, LH_CANCELLED);
    EXPECT(job_of(&w, job.id).token > job.token);
    EXPECT_STATUS(beat(&w, &job), LH_ECANCELLED);
    EXPECT_STATUS(complete(&w, &job), LH_ECANCELLED);
    EXPECT_STATUS(fail(&w, &job, "no"), LH_ECANCELLED);
    EXPECT_STATUS(release(&w, &job), LH_ECANCELLED);
    EXPECT_EQ(job_of(&w, job.id).state, LH_CANCELLED);
    world_close(&w);
}

SPEC(only_a_live_job_can_be_cancelled)
{
    struct world w = world_open();
    lh_job job;
    enqueue(&w, "mail", "a");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete(&w, &job));
    EXPECT_STATUS(cancel(&w, job.id), LH_ESTATE);
    EXPECT_CONTAINS(lh_errmsg(w.store), "completed");
    EXPECT_EQ(job_of(&w, job.id).state, LH_COMPLETED);
    enqueue(&w, "mail", "b");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(fail_for_good(&w, &job));
    EXPECT_STATUS(cancel(&w, job.id), LH_ESTATE);
    int64_t c = enqueue(&w, "mail", "c");
    EXPECT_OK(cancel(&w, c));
    EXPECT_STATUS(cancel(&w, c), LH_ESTATE);
    EXPECT_STATUS(cancel(&w, c + 1), LH_ENOTFOUND);
    world_close(&w);
}

/* ---- a revoked live lease keeps its job back ---- */

SPEC(a_job_cancelled_under_a_live_holder_and_retried_waits_until_the_holder_answers)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 60000));
    EXPECT_OK(cancel(&w, old.id));
    EXPECT_OK(retry(&w, old.id));
    EXPECT_STATUS(claim_one(&w, "mail", &next, .worker = "w2"), LH_EMPTY);
    clock_advance_ms(&w, 1000);
    EXPECT_STATUS(beat(&w, &old),
                  LH_ELOST); /* the heartbeat reports the cancel, but the command still runs */
    EXPECT_STATUS(claim_one(&w, "mail", &next, .worker = "w2"), LH_EMPTY);
    EXPECT_STATUS(fail(&w, &old, "stopped"), LH_ELOST);
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
    EXPECT_EQ(next.id, old.id);
    EXPECT_EQ(next.attempt, 1);
    EXPECT(next.token > old.token);
    EXPECT_OK(complete(&w, &next));
    world_close(&w);
}

SPEC(a_job_cancelled_under_a_live_holder_and_retried_waits_no_longer_than_the_old_deadline)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 60000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(cancel(&w, old.id));
    EXPECT_OK(retry(&w, old.id));
    clock_advance_ms(&w, 58999);
    EXPECT_STATUS(claim_one(&w, "mail", &next, .worker = "w2"), LH_EMPTY);
    clock_advance_ms(&w, 1);
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
    EXPECT_EQ(next.id, old.id);
    EXPECT_STATUS(complete(&w, &old), LH_ELOST);
    EXPECT_OK(complete(&w, &next));
    world_close(&w);
}

SPEC(each_kind_of_answer_to_a_cancel_frees_the_retried_job)
{
    struct world w = world_open();
    for (int answer = 0; answer < 3; answer++) {
        lh_job old, next;
        enqueue(&w, "mail", "x");
        EXPECT_OK(claim_one(&w, "mail", &old));
        EXPECT_OK(cancel(&w, old.id));
        int rc = answer == 0   ? complete(&w, &old)
                 : answer == 1 ? fail(&w, &old, "stopped")
                               : release(&w, &old);
        EXPECT_STATUS(rc, LH_ECANCELLED);
        EXPECT_OK(retry(&w, old.id));
        EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
        EXPECT_EQ(next.id, old.id);
        EXPECT_OK(complete(&w, &next));
    }
    world_close(&w);
}

SPEC(only_the_holder_whose_lease_was_revoked_can_answer_for_it)
{
    struct world w = world_with_job("mail", "x");
    lh_job earlier, old, next;
    EXPECT_OK(claim_one(&w, "mail", &earlier, .worker = "w0"));
    EXPECT_OK(release(&w, &earlier));
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 60000));
    EXPECT_OK(cancel(&w, old.id));
    EXPECT_OK(retry(&w, old.id));
    EXPECT_STATUS(complete(&w, &earlier), LH_ELOST);
    EXPECT_STATUS(complete(&w, &(lh_job){.id = old.id, .token = old.token + 1}), LH_ELOST);
    EXPECT_STATUS(claim_one(&w, "mail", &next, .worker = "w2"), LH_EMPTY);
    EXPECT_STATUS(complete(&w, &old), LH_ELOST);
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
    world_close(&w);
}

SPEC(a_job_cancelled_under_a_live_holder_and_retried_after_its_deadline_is_not_quarantined)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 1000));
    EXPECT_OK(cancel(&w, old.id));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(retry(&w, old.id));
    EXPECT_EQ(job_of(&w, old.id).state, LH_PENDING);
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
    world_close(&w);
}

SPEC(a_job_cancelled_after_its_lease_expired_is_not_quarantined)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(cancel(&w, old.id));
    EXPECT_OK(retry(&w, old.id));
    EXPECT_EQ(job_of(&w, old.id).state, LH_PENDING);
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
    world_close(&w);
}

SPEC(a_quarantined_job_cannot_be_rescheduled_out_of_quarantine)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 60000));
    EXPECT_OK(cancel(&w, old.id));
    EXPECT_OK(retry(&w, old.id));
    EXPECT_OK(lh_reschedule(w.store, old.id, 0, 0, NULL));
    EXPECT_STATUS(claim_one(&w, "mail", &next, .worker = "w2"), LH_EMPTY);
    clock_advance_ms(&w, 60000);
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
    world_close(&w);
}

SPEC(a_quarantined_job_that_is_cancelled_and_retried_stays_in_quarantine)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .lease_ms = 60000));
    EXPECT_OK(cancel(&w, old.id));
    EXPECT_OK(retry(&w, old.id));
    EXPECT_OK(cancel(&w, old.id));
    EXPECT_OK(retry(&w, old.id));
    EXPECT_STATUS(claim_one(&w, "mail", &next, .worker = "w2"), LH_EMPTY);
    EXPECT_STATUS(release(&w, &old), LH_ELOST); /* the holder answers */
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
    world_close(&w);
}

/* ---- release by worker ---- */

SPEC(a_release_by_worker_name_quarantines_the_job_until_the_holder_answers)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    int64_t released = -1;
    EXPECT_OK(claim_one(&w, "mail", &old, .worker = "w1", .lease_ms = 60000));
    EXPECT_OK(lh_release_worker(w.store, "w1", NULL, 0, 0, false, NULL, &released));
    EXPECT_EQ(released, 1);
    lh_job seen = job_of(&w, old.id);
    EXPECT(seen.state == LH_SCHEDULED || seen.state == LH_PENDING);
    EXPECT_EQ(seen.attempt, 0);
    EXPECT(seen.token > old.token);
    EXPECT(seen.worker == NULL);
    EXPECT_STATUS(claim_one(&w, "mail", &next, .worker = "w2"), LH_EMPTY);
    EXPECT_STATUS(beat(&w, &old), LH_ELOST);
    EXPECT_STATUS(claim_one(&w, "mail", &next, .worker = "w2"), LH_EMPTY);
    EXPECT_STATUS(complete(&w, &old), LH_ELOST);
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
    EXPECT_EQ(next.attempt, 1);
    world_close(&w);
}

SPEC(a_release_by_worker_name_quarantines_the_job_until_the_old_deadline)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .worker = "w1", .lease_ms = 60000));
    EXPECT_OK(lh_release_worker(w.store, "w1", NULL, 0, 0, false, NULL, NULL));
    clock_advance_ms(&w, 59999);
    EXPECT_STATUS(claim_one(&w, "mail", &next, .worker = "w2"), LH_EMPTY);
    clock_advance_ms(&w, 1);
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
    world_close(&w);
}

SPEC(a_release_by_worker_name_with_now_frees_the_job_at_once)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .worker = "w1", .lease_ms = 60000));
    EXPECT_OK(lh_release_worker(w.store, "w1", NULL, 0, 0, true, NULL, NULL));
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
    EXPECT(next.token > old.token);
    EXPECT_STATUS(complete(&w, &old), LH_ELOST);
    world_close(&w);
}

SPEC(a_release_by_worker_name_of_an_expired_lease_quarantines_nothing)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .worker = "w1", .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_release_worker(w.store, "w1", NULL, 0, 0, false, NULL, NULL));
    EXPECT_EQ(job_of(&w, old.id).state, LH_PENDING);
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
    EXPECT_EQ(next.recoveries, 0);
    world_close(&w);
}

SPEC(a_release_by_worker_name_may_delay_the_job)
{
    struct world w = world_with_job("mail", "x");
    lh_job old, next;
    EXPECT_OK(claim_one(&w, "mail", &old, .worker = "w1"));
    EXPECT_OK(lh_release_worker(w.store, "w1", NULL, 0, 5000, true, NULL, NULL));
    EXPECT_EQ(job_of(&w, old.id).run_at, WORLD_START_MS + 5000);
    clock_advance_ms(&w, 4999);
    EXPECT_STATUS(claim_one(&w, "mail", &next, .worker = "w2"), LH_EMPTY);
    clock_advance_ms(&w, 1);
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w2"));
    world_close(&w);
}

SPEC(a_release_by_worker_name_takes_all_jobs_of_that_worker_and_no_others)
{
    struct world w = world_open();
    lh_job job, other;
    for (int i = 0; i < 3; i++) {
        enqueue(&w, "mail", "x");
        enqueue(&w, "post", "x");
    }
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w1"));
        EXPECT_OK(claim_one(&w, "post", &job, .worker = "w1"));
    }
    EXPECT_OK(claim_one(&w, "mail", &other, .worker = "w10"));
    int64_t released = 0;
    EXPECT_OK(lh_release_worker(w.store, "w1", NULL, 0, 0, true, NULL, &released));
    EXPECT_EQ(released, 4);
    EXPECT_EQ(queue_of(&w, "mail").running, 1);
    EXPECT_EQ(queue_of(&w, "post").running, 0);
    EXPECT_OK(complete(&w, &other));
    EXPECT_OK(lh_release_worker(w.store, "nobody", NULL, 0, 0, true, NULL, &released));
    EXPECT_EQ(released, 0);
    world_close(&w);
}

SPEC(a_release_by_worker_name_of_chosen_jobs_judges_each_by_itself)
{
    struct world w = world_open();
    lh_job mine, theirs;
    enqueue(&w, "mail", "x");
    enqueue(&w, "mail", "x");
    int64_t pending = enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &mine, .worker = "w1"));
    EXPECT_OK(claim_one(&w, "mail", &theirs, .worker = "w2"));
    int64_t ids[] = {theirs.id, mine.id, pending, 99999}, released = 0;
    int status[4];
    EXPECT_STATUS(lh_release_worker(w.store, "w1", ids, 4, 0, true, status, &released), LH_ELOST);
    EXPECT_STATUS(status[0], LH_ELOST);
    EXPECT_OK(status[1]);
    EXPECT_STATUS(status[2], LH_ELOST);
    EXPECT_STATUS(status[3], LH_ENOTFOUND);
    EXPECT_EQ(released, 1);
    EXPECT_EQ(job_of(&w, mine.id).state, LH_PENDING);
    EXPECT_EQ(job_of(&w, theirs.id).state, LH_RUNNING);
    world_close(&w);
}

/* ---- retry ---- */

SPEC(a_retry_of_a_failed_job_resets_its_counts)
{
    struct world w = world_open();
    lh_job job;
    int64_t id = enqueue(&w, "mail", "x", .max_attempts = 2);
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    EXPECT_EQ(job.recoveries, 1);
    EXPECT_OK(fail(&w, &job, "no"));
    EXPECT_EQ(job_of(&w, id).state, LH_FAILED);
    clock_advance_ms(&w, 10);
    lh_jobs *after = NULL;
    EXPECT_OK(lh_retry(w.store, &id, 1, 0, NULL, &after));
    keep_jobs(&w, after);
    EXPECT_EQ(after->job[0].state, LH_PENDING);
    EXPECT_EQ(after->job[0].attempt, 0);
    EXPECT_EQ(after->job[0].recoveries, 0);
    EXPECT_EQ(after->job[0].finished_at, 0);
    EXPECT_EQ(after->job[0].started_at, 0);
    EXPECT_EQ(after->job[0].state_changed_at, WORLD_START_MS + 1010);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.id, id);
    EXPECT_EQ(job.attempt, 1);
    world_close(&w);
}

SPEC(a_retry_keeps_the_limit_the_job_was_enqueued_with)
{
    struct world w = world_open();
    lh_job job;
    int64_t ten = enqueue(&w, "mail", "x", .max_attempts = 10);
    EXPECT_OK(cancel(&w, ten));
    EXPECT_OK(retry(&w, ten));
    EXPECT_EQ(job_of(&w, ten).max_attempts, 10);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.max_attempts, 10);
    int64_t unlimited = enqueue(&w, "mail", "x", .max_attempts = LH_UNLIMITED);
    EXPECT_OK(cancel(&w, unlimited));
    EXPECT_OK(retry(&w, unlimited));
    EXPECT_EQ(job_of(&w, unlimited).max_attempts, LH_UNLIMITED);
    world_close(&w);
}

SPEC(a_cancelled_job_can_be_retried)
{
    struct world w = world_open();
    lh_job job;
    int64_t id = enqueue(&w, "mail", "x");
    EXPECT_OK(cancel(&w, id));
    EXPECT_OK(retry(&w, id));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.id, id);
    world_close(&w);
}

SPEC(an_expired_job_that_is_retried_does_not_expire_at_once)
{
    struct world w = world_open();
    lh_job job;
    int64_t id = enqueue(&w, "mail", "x", .expires_ms = 1000);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_maintain(w.store, NULL, NULL));
    EXPECT_EQ(job_of(&w, id).state, LH_CANCELLED);
    EXPECT_OK(retry(&w, id));
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.id, id);
    world_close(&w);
}

SPEC(a_completed_job_is_retried_only_by_force)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete(&w, &job));
    EXPECT_STATUS(retry(&w, job.id), LH_ESTATE);
    EXPECT_EQ(job_of(&w, job.id).state, LH_COMPLETED);
    EXPECT_OK(lh_retry(w.store, &job.id, 1, LH_RETRY_FORCE, NULL, NULL));
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    EXPECT_STATUS(complete(&w, &job), LH_ELOST); /* the old attempt may not end the new one */
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete(&w, &job));
    world_close(&w);
}

SPEC(a_live_job_cannot_be_retried)
{
    struct world w = world_open();
    lh_job job;
    int64_t scheduled = enqueue(&w, "mail", "x", .delay_ms = 1000),
            pending = enqueue(&w, "mail", "x");
    EXPECT_STATUS(retry(&w, scheduled), LH_ESTATE);
    EXPECT_STATUS(retry(&w, pending), LH_ESTATE);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_STATUS(retry(&w, pending), LH_ESTATE);
    EXPECT_STATUS(lh_retry(w.store, &pending, 1, LH_RETRY_FORCE, NULL, NULL), LH_ESTATE);
    EXPECT_STATUS(retry(&w, 12345), LH_ENOTFOUND);
    EXPECT_OK(complete(&w, &job));
    world_close(&w);
}

SPEC(a_retry_is_refused_while_another_job_lives_under_the_same_key)
{
    struct world w = world_open();
    int64_t first = enqueue(&w, "mail", "x", .key = "k");
    EXPECT_OK(cancel(&w, first));
    int64_t second = enqueue(&w, "mail", "x", .key = "k");
    EXPECT(second != first);
    EXPECT_STATUS(retry(&w, first), LH_ESTATE);
    EXPECT_EQ(job_of(&w, first).state, LH_CANCELLED);
    EXPECT_OK(cancel(&w, second));
    EXPECT_OK(retry(&w, first));
    world_close(&w);
}

/* ---- delete ---- */

SPEC(a_delete_removes_any_job_that_is_not_running)
{
    struct world w = world_open();
    lh_job job;
    int64_t ids[5];
    enqueue(&w, "mail", "completed");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete(&w, &job));
    ids[0] = job.id;
    enqueue(&w, "mail", "failed");
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(fail_for_good(&w, &job));
    ids[1] = job.id;
    ids[2] = enqueue(&w, "mail", "cancelled");
    EXPECT_OK(cancel(&w, ids[2]));
    ids[3] = enqueue(&w, "mail", "pending");
    ids[4] = enqueue(&w, "mail", "scheduled", .delay_ms = 1000);
    EXPECT_OK(lh_delete(w.store, ids, 5, NULL));
    for (int i = 0; i < 5; i++)
        EXPECT(!job_exists(&w, ids[i]));
    lh_queue counts = queue_of(&w, "mail");
    EXPECT_EQ(counts.completed + counts.failed + counts.cancelled + counts.pending +
                  counts.scheduled + counts.running,
              0);
    EXPECT_STATUS(lh_delete(w.store, ids, 1, NULL), LH_ENOTFOUND);
    world_close(&w);
}

SPEC(a_running_job_cannot_be_deleted)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_STATUS(lh_delete(w.store, &job.id, 1, NULL), LH_ESTATE);
    EXPECT_OK(complete(&w, &job));
    world_close(&w);
}

/* ---- reschedule ---- */

SPEC(a_reschedule_moves_a_pending_job_into_the_future_and_back)
{
    struct world w = world_open();
    lh_job job;
    int64_t id = enqueue(&w, "mail", "x");
    lh_jobs *after = NULL;
    EXPECT_OK(lh_reschedule(w.store, id, 5000, 0, &after));
    keep_jobs(&w, after);
    EXPECT_EQ(after->job[0].state, LH_SCHEDULED);
    EXPECT_EQ(after->job[0].run_at, WORLD_START_MS + 5000);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_OK(lh_reschedule(w.store, id, 0, WORLD_START_MS + 9000, NULL));
    EXPECT_EQ(job_of(&w, id).run_at, WORLD_START_MS + 9000);
    clock_advance_ms(&w, 5000);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    EXPECT_OK(lh_reschedule(w.store, id, 0, 0, NULL));
    EXPECT_EQ(job_of(&w, id).state, LH_PENDING);
    EXPECT_OK(claim_one(&w, "mail", &job));
    world_close(&w);
}

SPEC(only_a_waiting_job_can_be_rescheduled)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_STATUS(lh_reschedule(w.store, job.id, 1000, 0, NULL), LH_ESTATE);
    EXPECT_OK(complete(&w, &job));
    EXPECT_STATUS(lh_reschedule(w.store, job.id, 1000, 0, NULL), LH_ESTATE);
    EXPECT_STATUS(lh_reschedule(w.store, job.id + 1, 1000, 0, NULL), LH_ENOTFOUND);
    EXPECT_STATUS(lh_reschedule(w.store, job.id, 1000, WORLD_START_MS, NULL), LH_EINVAL);
    world_close(&w);
}

SPEC(a_retry_with_now_does_not_wait_for_the_holder)
{
    struct world w = world_with_job("mail", "hello");
    lh_job job = {0}, next = {0};
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 60000));
    EXPECT_OK(lh_cancel(w.store, &job.id, 1, NULL, NULL));
    EXPECT_OK(lh_retry(w.store, &job.id, 1, LH_RETRY_NOW, NULL, NULL));
    EXPECT_OK(claim_one(&w, "mail", &next, .lease_ms = 60000));
    EXPECT_EQ(next.id, job.id);
    EXPECT(next.token > job.token);
    EXPECT_STATUS(complete(&w, &job), LH_ELOST);
    EXPECT_OK(complete(&w, &next));
    world_close(&w);
}
