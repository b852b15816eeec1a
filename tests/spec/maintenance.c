/* Maintenance and bookkeeping: a round of maintenance, pruning, ids, lists, counts and rollups. */
#include "world.h"

#define DAY_MS INT64_C(86400000)

static int fail_for_good(struct world *w, const lh_job *job)
{
    return lh_fail(
        w->store,
        &(lh_failure){.job = job->id, .token = job->token, .error = "no", .permanent = true}, 1,
        NULL, NULL);
}

/* ---- one round of all that falls due ---- */

SPEC(one_round_of_maintenance_does_everything_that_is_due)
{
    struct world w = world_open();
    lh_job job;
    lh_maintained done;
    int64_t dead = enqueue(&w, "mail", "dead");
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000));
    int64_t due = enqueue(&w, "mail", "due", .delay_ms = 1000);
    int64_t overdue = enqueue(&w, "mail", "overdue", .expires_ms = 1000);
    int64_t later = enqueue(&w, "mail", "later", .delay_ms = 1001);
    EXPECT_OK(lh_maintain(w.store, NULL, &done));
    EXPECT_EQ(done.recovered + done.promoted + done.expired + done.pruned, 0);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_maintain(w.store, NULL, &done));
    EXPECT_EQ(done.recovered, 1);
    EXPECT_EQ(done.promoted, 1);
    EXPECT_EQ(done.expired, 1);
    EXPECT_EQ(done.pruned, 0);
    EXPECT(done.next_ms >= 0);
    EXPECT_EQ(job_of(&w, dead).state, LH_PENDING);
    EXPECT_EQ(job_of(&w, due).state, LH_PENDING);
    EXPECT_EQ(job_of(&w, overdue).state, LH_CANCELLED);
    EXPECT_EQ(job_of(&w, later).state, LH_SCHEDULED);
    EXPECT_OK(lh_maintain(w.store, NULL, &done));
    EXPECT_EQ(done.recovered + done.promoted + done.expired, 0);
    EXPECT_OK(lh_maintain(w.store, NULL, NULL));
    world_close(&w);
}

SPEC(an_unfinished_round_of_maintenance_asks_for_another_at_once)
{
    struct world w = world_open();
    static lh_new_job jobs[700];
    static lh_enqueued out[700];
    lh_maintained done;
    for (int i = 0; i < 700; i++)
        jobs[i].delay_ms = 1000;
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, 700, NULL, out));
    clock_advance_ms(&w, 1000);
    int64_t promoted = 0;
    do {
        EXPECT_OK(lh_maintain(w.store, NULL, &done));
        promoted += done.promoted;
    } while (done.next_ms == 0);
    EXPECT_EQ(promoted, 700);
    EXPECT_EQ(queue_of(&w, "mail").pending, 700);
    world_close(&w);
}

SPEC(a_round_of_maintenance_prunes_rows_past_their_retention)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    lh_maintained done;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete(&w, &job));
    clock_advance_ms(&w, 14 * DAY_MS);
    EXPECT_OK(lh_maintain(w.store, NULL, &done));
    EXPECT_EQ(done.pruned, 1);
    EXPECT(!job_exists(&w, job.id));
    world_close(&w);
}

/* ---- pruning ---- */

SPEC(finished_jobs_are_pruned_by_the_retention_of_their_policy)
{
    struct world w = world_open();
    lh_job completed, failed, brief;
    int64_t pruned = -1;
    enqueue(&w, "mail", "completed");
    enqueue(&w, "mail", "failed");
    EXPECT_OK(claim_one(&w, "mail", &completed));
    EXPECT_OK(complete(&w, &completed));
    EXPECT_OK(claim_one(&w, "mail", &failed));
    EXPECT_OK(fail_for_good(&w, &failed));
    int64_t cancelled = enqueue(&w, "mail", "cancelled");
    EXPECT_OK(cancel(&w, cancelled));
    int64_t pending = enqueue(&w, "mail", "pending");
    EXPECT_OK(policy(&w, "brief", NULL, .set = LH_POLICY_RETENTION, .retention_ms = 1000));
    enqueue(&w, "brief", "x");
    EXPECT_OK(claim_one(&w, "brief", &brief));
    EXPECT_OK(complete(&w, &brief));

    clock_advance_ms(&w, 999);
    EXPECT_OK(lh_prune(w.store, 0, NULL, &pruned));
    EXPECT_EQ(pruned, 0);
    clock_advance_ms(&w, 1);
    EXPECT_OK(lh_prune(w.store, 0, NULL, &pruned));
    EXPECT_EQ(pruned, 1);
    EXPECT(!job_exists(&w, brief.id));
    clock_advance_ms(&w, 14 * DAY_MS - 1001);
    EXPECT_OK(lh_prune(w.store, 0, NULL, &pruned));
    EXPECT_EQ(pruned, 0);
    clock_advance_ms(&w, 1);
    EXPECT_OK(lh_prune(w.store, 0, NULL, &pruned));
    EXPECT_EQ(pruned, 2);
    EXPECT(!job_exists(&w, completed.id));
    EXPECT(!job_exists(&w, cancelled));
    EXPECT(job_exists(&w, failed.id));
    clock_advance_ms(&w, 16 * DAY_MS - 1);
    EXPECT_OK(lh_prune(w.store, 0, NULL, &pruned));
    EXPECT_EQ(pruned, 0);
    clock_advance_ms(&w, 1);
    EXPECT_OK(lh_prune(w.store, 0, NULL, &pruned));
    EXPECT_EQ(pruned, 1);
    EXPECT(!job_exists(&w, failed.id));
    clock_advance_ms(&w, 1000 * DAY_MS); /* unfinished jobs are never pruned */
    EXPECT_OK(lh_prune(w.store, 0, NULL, &pruned));
    EXPECT_EQ(pruned, 0);
    EXPECT_EQ(job_of(&w, pending).state, LH_PENDING);
    world_close(&w);
}

SPEC(a_prune_by_age_ignores_the_policy)
{
    struct world w = world_open();
    lh_job old, young;
    int64_t pruned;
    enqueue(&w, "mail", "old");
    enqueue(&w, "mail", "young");
    EXPECT_OK(claim_one(&w, "mail", &old));
    EXPECT_OK(claim_one(&w, "mail", &young));
    EXPECT_OK(fail_for_good(&w, &old));
    clock_advance_ms(&w, 600);
    EXPECT_OK(complete(&w, &young));
    clock_advance_ms(&w, 400);
    EXPECT_OK(lh_prune(w.store, 1000, NULL, &pruned));
    EXPECT_EQ(pruned, 1);
    EXPECT(!job_exists(&w, old.id));
    EXPECT(job_exists(&w, young.id));
    world_close(&w);
}

SPEC(the_retention_of_a_job_counts_from_its_end)
{
    struct world w = world_open();
    lh_job job;
    int64_t pruned;
    int64_t id = enqueue(&w, "mail", "x");
    clock_advance_ms(&w, 100 * DAY_MS);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete(&w, &job));
    EXPECT_OK(lh_prune(w.store, 0, NULL, &pruned));
    EXPECT_EQ(pruned, 0);
    EXPECT(job_exists(&w, id));
    world_close(&w);
}

SPEC(pruning_of_more_than_one_batch_skips_live_jobs)
{
    struct world w = world_open();
    static lh_new_job jobs[1600];
    static lh_enqueued out[1600];
    static int64_t odd[800];
    int64_t pruned;
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, 1600, NULL, out));
    for (int i = 0; i < 800; i++)
        odd[i] = out[2 * i + 1].id;
    EXPECT_OK(lh_cancel(w.store, odd, 800, NULL, NULL));
    clock_advance_ms(&w, 14 * DAY_MS);
    EXPECT_OK(lh_prune(w.store, 0, NULL, &pruned));
    EXPECT_EQ(pruned, 800);
    EXPECT_EQ(queue_of(&w, "mail").pending, 800);
    EXPECT_EQ(queue_of(&w, "mail").cancelled, 0);
    world_close(&w);
}

SPEC(a_prune_by_age_reaches_all_jobs_after_an_unfinished_round)
{
    enum { N = 700 }; /* more than one round reads */
    struct world w = world_open();
    static lh_new_job jobs[N];
    static lh_enqueued out[N];
    static lh_done ends[N];
    lh_maintained done;
    int64_t pruned;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_RETENTION, .retention_ms = 90 * DAY_MS));
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, N, NULL, out));
    const lh_jobs *held = claim_many(&w, "mail", N);
    for (int i = 0; i < N; i++)
        ends[i] = (lh_done){.job = held->job[i].id, .token = held->job[i].token};
    EXPECT_OK(lh_complete(w.store, ends, N, NULL, NULL));
    clock_advance_ms(&w, 15 * DAY_MS);
    EXPECT_OK(lh_maintain(w.store, NULL, &done));
    EXPECT_EQ(done.pruned, 0); /* nothing is past its retention */
    EXPECT_OK(lh_prune(w.store, DAY_MS, NULL, &pruned));
    EXPECT_EQ(pruned, N);
    world_close(&w);
}

SPEC(events_and_requests_are_pruned_by_age)
{
    struct world w = world_open();
    lh_new_job new_job = {.payload = "x", .payload_len = 1};
    lh_enqueued first, second;
    int64_t pruned;
    EXPECT_OK(lh_enqueue(w.store, "mail", &new_job, 1, "r-1", &first));
    EXPECT_OK(cancel(&w, first.id));
    clock_advance_ms(&w, DAY_MS);
    int64_t young = enqueue(&w, "mail", "y");
    EXPECT_OK(cancel(&w, young));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_prune(w.store, DAY_MS, NULL, &pruned));
    EXPECT_EQ(pruned, 1);
    EXPECT_STR(story_of(&w, first.id), "");
    EXPECT_STR(story_of(&w, young), "job.cancelled");
    EXPECT_OK(lh_enqueue(w.store, "mail", &new_job, 1, "r-1", &second));
    EXPECT(!second.duplicate);
    EXPECT(second.id > first.id);
    world_close(&w);
}

/* ---- invariant 7 ---- */

SPEC(an_id_is_never_used_again)
{
    struct world w = world_open();
    lh_job job;
    int64_t highest = enqueue(&w, "mail", "x"), purged, id;
    EXPECT_OK(lh_delete(w.store, &highest, 1, NULL)); /* after a delete */
    id = enqueue(&w, "mail", "x");
    EXPECT(id > highest);
    highest = id;
    EXPECT_OK(lh_queue_purge(w.store, "mail", &purged)); /* after a purge */
    EXPECT_EQ(purged, 1);
    id = enqueue(&w, "mail", "x");
    EXPECT(id > highest);
    highest = id;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(complete(&w, &job));
    clock_advance_ms(&w, 14 * DAY_MS);
    EXPECT_OK(lh_prune(w.store, 0, NULL, &purged)); /* after a prune */
    EXPECT_EQ(purged, 1);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){0})->n, 0);
    lh_store *reopened = world_second_handle();
    lh_close(reopened);
    id = enqueue(&w, "mail", "x");
    EXPECT(id > highest);
    EXPECT_STATUS(complete(&w, &job), LH_ENOTFOUND);
    world_close(&w);
}

/* ---- lists ---- */

SPEC(jobs_are_listed_by_filter)
{
    struct world w = world_open();
    lh_job job;
    int64_t a = enqueue(&w, "mail", "x", .kind = "k", .key = "one");
    int64_t b = enqueue(&w, "mail", "x", .kind = "l");
    int64_t c = enqueue(&w, "post", "x", .kind = "k", .delay_ms = 1000);
    EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w-9", .lease_ms = 1000));
    EXPECT_EQ(job.id, a);
    lh_jobs *all = jobs_where(&w, (lh_job_filter){0});
    EXPECT_EQ(all->n, 3);
    EXPECT_EQ(all->job[0].id, a);
    EXPECT_EQ(all->job[1].id, b);
    EXPECT_EQ(all->job[2].id, c);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.queue = "mail"})->n, 2);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.kind = "k"})->n, 2);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.queue = "post", .kind = "k"})->job[0].id, c);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.worker = "w-9"})->job[0].id, a);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.worker = "w-8"})->n, 0);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.key = "one"})->job[0].id, a);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.state = LH_SCHEDULED})->job[0].id, c);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.state = LH_PENDING})->job[0].id, b);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.state = LH_COMPLETED})->n, 0);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.expired = true})->n, 0);
    clock_advance_ms(&w, 1000);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.expired = true})->job[0].id, a);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.after = a})->job[0].id, b);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.after = a, .limit = 1})->n, 1);
    EXPECT_STATUS(lh_job_get(w.store, 99999, &all), LH_ENOTFOUND);
    world_close(&w);
}

SPEC(a_hundred_jobs_are_listed_unless_more_are_asked_for)
{
    struct world w = world_open();
    static lh_new_job jobs[150];
    static lh_enqueued out[150];
    EXPECT_OK(lh_enqueue(w.store, "mail", jobs, 150, NULL, out));
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){0})->n, 100);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.limit = 10000})->n, 150);
    world_close(&w);
}

SPEC(the_names_of_states_are_recognized)
{
    for (int i = LH_SCHEDULED; i <= LH_CANCELLED; i++)
        EXPECT_EQ(lh_state_parse(lh_state_name((lh_state)i)), i);
    EXPECT_STR(lh_state_name(LH_SCHEDULED), "scheduled");
    EXPECT_STR(lh_state_name(LH_PENDING), "pending");
    EXPECT_STR(lh_state_name(LH_RUNNING), "running");
    EXPECT_STR(lh_state_name(LH_COMPLETED), "completed");
    EXPECT_STR(lh_state_name(LH_FAILED), "failed");
    EXPECT_STR(lh_state_name(LH_CANCELLED), "cancelled");
    EXPECT_EQ(lh_state_parse("expired"), 0);
    EXPECT_EQ(lh_state_parse(""), 0);
    EXPECT_EQ(lh_state_parse(NULL), 0);
}

/* ---- counts ---- */

/* After this call all counts are right. */
#define THEN(act_)       \
    do {                 \
        EXPECT_OK(act_); \
        world_check(&w); \
    } while (0)

SPEC(the_counts_of_a_queue_are_right_after_every_call)
{
    struct world w = world_open();
    lh_job a, b, c;
    int64_t n, id[8];
    for (int i = 0; i < 8; i++) {
        id[i] = enqueue(&w, "mail", "x", .delay_ms = i == 7 ? 5000 : 0);
        world_check(&w);
    }
    EXPECT_EQ(queue_of(&w, "mail").pending, 7);
    EXPECT_EQ(queue_of(&w, "mail").scheduled, 1);
    THEN(claim_one(&w, "mail", &a, .lease_ms = 1000));
    THEN(claim_one(&w, "mail", &b, .lease_ms = 100000));
    THEN(beat(&w, &b));
    THEN(complete(&w, &b));
    THEN(complete(&w, &b));
    THEN(claim_one(&w, "mail", &b));
    THEN(fail(&w, &b, "no"));
    THEN(fail(&w, &b, "no"));
    THEN(claim_one(&w, "mail", &b));
    THEN(fail_for_good(&w, &b));
    THEN(claim_one(&w, "mail", &c));
    THEN(release(&w, &c));
    THEN(release(&w, &c));
    THEN(cancel(&w, c.id));
    THEN(retry(&w, c.id));
    THEN(claim_one(&w, "mail", &c));
    THEN(cancel(&w, c.id));
    THEN(retry(&w, c.id));
    EXPECT_STATUS(release(&w, &c), LH_ELOST);
    world_check(&w);
    THEN(lh_reschedule(w.store, id[6], 1000, 0, NULL));
    THEN(lh_reschedule(w.store, id[6], 0, 0, NULL));
    clock_advance_ms(&w, 1000);
    THEN(lh_recover(w.store, NULL, NULL)); /* a */
    THEN(claim_one(&w, "mail", &a, .worker = "w-2"));
    THEN(lh_release_worker(w.store, "w-2", NULL, 0, 0, false, NULL, &n));
    clock_advance_ms(&w, 300000);
    THEN(lh_maintain(w.store, NULL, NULL));
    THEN(lh_retry(w.store, &b.id, 1, 0, NULL, NULL));
    THEN(lh_delete(w.store, &b.id, 1, NULL));
    THEN(lh_queue_pause(w.store, "mail"));
    THEN(lh_queue_resume(w.store, "mail"));
    THEN(lh_queue_purge(w.store, "mail", &n));
    clock_advance_ms(&w, 40 * DAY_MS);
    THEN(lh_prune(w.store, 0, NULL, &n));
    lh_queue q = queue_of(&w, "mail");
    EXPECT_EQ(q.scheduled + q.pending + q.running + q.completed + q.failed + q.cancelled, 0);
    world_close(&w);
}

SPEC(the_rollups_count_the_last_hour)
{
    struct world w = world_open();
    lh_job job;
    enqueue(&w, "mail", "a");
    enqueue(&w, "mail", "b");
    enqueue(&w, "mail", "c");
    clock_advance_ms(&w, 300);
    EXPECT_OK(claim_one(&w, "mail", &job)); /* waited 300 ms */
    clock_advance_ms(&w, 200);
    EXPECT_OK(complete(&w, &job));          /* ran 200 ms */
    EXPECT_OK(claim_one(&w, "mail", &job)); /* waited 500 ms */
    clock_advance_ms(&w, 50);
    EXPECT_OK(fail_for_good(&w, &job));                       /* ran 50 ms */
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 1000)); /* waited 550 ms */
    clock_advance_ms(&w, 1000);
    EXPECT_OK(lh_recover(w.store, NULL, NULL));
    lh_queue q = queue_of(&w, "mail");
    EXPECT_EQ(q.hour_enqueued, 3);
    EXPECT_EQ(q.hour_claimed, 3);
    EXPECT_EQ(q.hour_completed, 1);
    EXPECT_EQ(q.hour_failed, 1);
    EXPECT_EQ(q.hour_recovered, 1);
    EXPECT_EQ(q.hour_ended, 2);
    EXPECT_EQ(q.hour_wait_ms, 300 + 500 + 550);
    EXPECT_EQ(q.hour_run_ms, 200 + 50);
    world_close(&w);
}

SPEC(the_rollups_add_up_minutes_and_drop_those_older_than_an_hour)
{
    struct world w = world_open();
    for (int i = 0; i < 3; i++) {
        enqueue(&w, "mail", "x");
        clock_advance_ms(&w, 60000);
    }
    EXPECT_EQ(queue_of(&w, "mail").hour_enqueued, 3);
    clock_advance_ms(&w, 57 * 60000); /* 60 minutes after the first */
    EXPECT_EQ(queue_of(&w, "mail").hour_enqueued, 3);
    clock_advance_ms(&w, 60000);
    EXPECT_EQ(queue_of(&w, "mail").hour_enqueued, 2);
    clock_advance_ms(&w, 60000);
    EXPECT_EQ(queue_of(&w, "mail").hour_enqueued, 1);
    clock_advance_ms(&w, 60000);
    EXPECT_EQ(queue_of(&w, "mail").hour_enqueued, 0);
    enqueue(&w, "mail", "x");
    EXPECT_EQ(queue_of(&w, "mail").hour_enqueued, 1);
    world_close(&w);
}

SPEC(the_age_of_the_oldest_pending_job_includes_every_priority)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_EQ(queue_of(&w, "mail").oldest_pending_ms, -1);
    enqueue(&w, "mail", "old", .priority = -5);
    clock_advance_ms(&w, 1000);
    enqueue(&w, "mail", "new", .priority = 5);
    clock_advance_ms(&w, 500);
    enqueue(&w, "mail", "later", .delay_ms = 1000);
    EXPECT_EQ(queue_of(&w, "mail").oldest_pending_ms, 1500);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(queue_of(&w, "mail").oldest_pending_ms, 1500);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(queue_of(&w, "mail").oldest_pending_ms, -1);
    world_close(&w);
}

SPEC(the_status_describes_the_store)
{
    struct world w = world_with_job("mail", "x");
    lh_store_info info;
    EXPECT_OK(lh_store_status(w.store, &info));
    EXPECT(info.kind != NULL && info.kind[0] != '\0');
    EXPECT_EQ(strlen(info.uuid), 36);
    EXPECT_EQ(info.schema, lh_schema_version());
    EXPECT(info.changes > 0);
    EXPECT_STR(info.degraded, "");
    EXPECT_EQ(info.clock_skew_ms, 0);
    EXPECT_EQ(info.stale_jobs, 0);
    EXPECT_EQ(lh_now(w.store), WORLD_START_MS);
    clock_advance_ms(&w, 123);
    EXPECT_EQ(lh_now(w.store), WORLD_START_MS + 123);
    world_close(&w);
}
