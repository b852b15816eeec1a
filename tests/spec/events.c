/* Events: which are always recorded, which only by a full audit, and how to read them. */
#include "world.h"

static void expect_step(const lh_event *e, const char *type, const char *from, const char *to)
{
    EXPECT_STR(e->type, type);
    if (from != NULL)
        EXPECT_STR(e->from, from);
    else
        EXPECT(e->from == NULL);
    if (to != NULL)
        EXPECT_STR(e->to, to);
    else
        EXPECT(e->to == NULL);
}

SPEC(routine_transitions_are_not_recorded_by_default)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(beat(&w, &job));
    EXPECT_OK(complete(&w, &job));
    EXPECT_EQ(events_of(&w, 0)->n, 0);
    world_close(&w);
}

SPEC(a_full_audit_records_routine_transitions)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_AUDIT, .audit = LH_AUDIT_FULL));
    int64_t id = enqueue(&w, "mail", "x");
    clock_advance_ms(&w, 10);
    EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w-1"));
    clock_advance_ms(&w, 10);
    EXPECT_OK(complete(&w, &job));
    const lh_events *events = events_of(&w, id);
    EXPECT_EQ(events->n, 3);
    expect_step(&events->event[0], "job.enqueued", NULL, "pending");
    expect_step(&events->event[1], "job.claimed", "pending", "running");
    expect_step(&events->event[2], "job.completed", "running", "completed");
    EXPECT_STR(events->event[1].worker, "w-1");
    for (size_t i = 0; i < 3; i++) {
        EXPECT_EQ(events->event[i].job, id);
        EXPECT_STR(events->event[i].queue, "mail");
        EXPECT_EQ(events->event[i].at, WORLD_START_MS + 10 * (int64_t)i);
        EXPECT(events->event[i].actor != NULL);
    }
    EXPECT_EQ(events->event[1].token, job.token);
    EXPECT_EQ(events->event[2].token, job.token);
    enqueue(&w, "post", "y");
    EXPECT_EQ(events_of(&w, 0)->n, 4); /* the change of policy, and these three */
    world_close(&w);
}

SPEC(a_full_audit_may_be_set_for_one_kind)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, NULL, "watched", .set = LH_POLICY_AUDIT, .audit = LH_AUDIT_FULL));
    int64_t plain = enqueue(&w, "mail", "x");
    int64_t watched = enqueue(&w, "mail", "x", .kind = "watched");
    lh_jobs *jobs = claim_many(&w, "mail", 2);
    EXPECT_OK(complete(&w, &jobs->job[0]));
    EXPECT_OK(complete(&w, &jobs->job[1]));
    EXPECT_STR(story_of(&w, plain), "");
    EXPECT_STR(story_of(&w, watched), "job.enqueued job.claimed job.completed");
    world_close(&w);
}

SPEC(a_full_audit_records_that_a_job_was_scheduled)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_AUDIT, .audit = LH_AUDIT_FULL));
    int64_t id = enqueue(&w, "mail", "x", .delay_ms = 1000);
    expect_step(&events_of(&w, id)->event[0], "job.enqueued", NULL, "scheduled");
    world_close(&w);
}

SPEC(exceptional_transitions_are_always_recorded)
{
    struct world w = world_open();
    lh_job job;
    int64_t id = enqueue(&w, "mail", "x", .max_attempts = 3);
    EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w-1"));
    EXPECT_OK(release(&w, &job));
    EXPECT_OK(lh_reschedule(w.store, id, 1000, 0, NULL));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w-1", .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w-2"));
    EXPECT_OK(lh_fail(
        w.store, &(lh_failure){.job = id, .token = job.token, .error = "boom", .permanent = true},
        1, NULL, NULL));
    EXPECT_OK(retry(&w, id));
    EXPECT_OK(cancel(&w, id));
    EXPECT_OK(lh_delete(w.store, &id, 1, NULL));
    const lh_events *e = events_of(&w, id);
    EXPECT_EQ(e->n, 7);
    expect_step(&e->event[0], "job.released", "running", "pending");
    expect_step(&e->event[1], "job.rescheduled", "pending", "scheduled");
    expect_step(&e->event[2], "job.recovered", "running", "pending");
    expect_step(&e->event[3], "job.failed", "running", "failed");
    expect_step(&e->event[4], "job.retried", "failed", "pending");
    expect_step(&e->event[5], "job.cancelled", "pending", "cancelled");
    expect_step(&e->event[6], "job.deleted", "cancelled", NULL);
    EXPECT_STR(e->event[2].worker, "w-1");
    EXPECT_STR(e->event[3].worker, "w-2");
    EXPECT_STR(e->event[3].reason, "boom");
    EXPECT_EQ(e->event[3].token, job.token);
    for (size_t i = 1; i < e->n; i++) {
        EXPECT(e->event[i].id > e->event[i - 1].id);
        EXPECT(e->event[i].at >= e->event[i - 1].at);
    }
    world_close(&w);
}

SPEC(a_failure_that_is_retried_is_recorded_with_its_reason)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(fail(&w, &job, "try later"));
    expect_step(&events_of(&w, job.id)->event[0], "job.failed", "running", "scheduled");
    EXPECT_STR(last_event(&w, "job.failed").reason, "try later");
    world_close(&w);
}

SPEC(a_refused_call_records_no_event)
{
    struct world w = world_with_job("mail", "x");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    job.token++;
    EXPECT_STATUS(fail(&w, &job, "no"), LH_ELOST);
    EXPECT_STATUS(release(&w, &job), LH_ELOST);
    EXPECT_STATUS(retry(&w, job.id), LH_ESTATE);
    EXPECT_STATUS(lh_delete(w.store, &job.id, 1, NULL), LH_ESTATE);
    EXPECT_EQ(events_of(&w, 0)->n, 0);
    world_close(&w);
}

/* ---- reading ---- */

static struct world world_with_events(int64_t ids[6])
{
    struct world w = world_open();
    for (int i = 0; i < 6; i++) {
        ids[i] = enqueue(&w, "mail", "x");
        EXPECT_OK(cancel(&w, ids[i]));
    }
    return w;
}

SPEC(events_are_read_oldest_first_in_pages)
{
    int64_t ids[6];
    struct world w = world_with_events(ids);
    int64_t after = 0;
    for (int i = 0; i < 6; i += 2) {
        lh_events *page = NULL;
        EXPECT_OK(lh_event_list(w.store, &(lh_event_filter){.after = after, .limit = 2}, &page));
        EXPECT_EQ(page->n, 2);
        EXPECT_EQ(page->event[0].job, ids[i]);
        EXPECT_EQ(page->event[1].job, ids[i + 1]);
        after = page->event[1].id;
        lh_events_free(page);
    }
    lh_events *end = NULL;
    EXPECT_OK(lh_event_list(w.store, &(lh_event_filter){.after = after}, &end));
    EXPECT_EQ(end->n, 0);
    lh_events_free(end);
    world_close(&w);
}

SPEC(the_newest_events_are_listed_in_order)
{
    int64_t ids[6];
    struct world w = world_with_events(ids);
    lh_events *events = NULL;
    EXPECT_OK(lh_event_list(w.store, &(lh_event_filter){.newest = true, .limit = 2}, &events));
    EXPECT_EQ(events->n, 2);
    EXPECT_EQ(events->event[0].job, ids[4]);
    EXPECT_EQ(events->event[1].job, ids[5]);
    lh_events_free(events);
    world_close(&w);
}

SPEC(the_events_of_one_job_contain_no_others)
{
    int64_t ids[6];
    struct world w = world_with_events(ids);
    EXPECT_OK(retry(&w, ids[2]));
    EXPECT_OK(cancel(&w, ids[2]));
    EXPECT_STR(story_of(&w, ids[2]), "job.cancelled job.retried job.cancelled");
    EXPECT_STR(story_of(&w, ids[3]), "job.cancelled");
    EXPECT_STR(story_of(&w, 99999), "");
    lh_events *events = NULL;
    EXPECT_OK(lh_event_list(w.store, &(lh_event_filter){.job = ids[2], .newest = true, .limit = 2},
                            &events));
    EXPECT_EQ(events->n, 2);
    EXPECT_STR(events->event[0].type, "job.retried");
    EXPECT_STR(events->event[1].type, "job.cancelled");
    lh_events_free(events);
    world_close(&w);
}

SPEC(a_hundred_events_are_read_unless_more_are_asked_for)
{
    struct world w = world_open();
    lh_events *events = NULL;
    for (int i = 0; i < 101; i++)
        EXPECT_OK(i % 2 ? lh_queue_resume(w.store, "mail") : lh_queue_pause(w.store, "mail"));
    EXPECT_OK(lh_event_list(w.store, NULL, &events));
    EXPECT_EQ(events->n, 100);
    lh_events_free(events);
    EXPECT_EQ(events_of(&w, 0)->n, 101);
    EXPECT_STATUS(lh_event_list(w.store, &(lh_event_filter){.limit = 10001}, &events), LH_EINVAL);
    world_close(&w);
}

/* ---- filters ---- */

static size_t count_events(struct world *w, lh_event_filter filter)
{
    lh_events *events = NULL;

    EXPECT_OK(lh_event_list(w->store, &filter, &events));
    size_t n = events->n;
    lh_events_free(events);
    return n;
}

SPEC(events_are_found_by_type_queue_and_time)
{
    struct world w = world_open();
    lh_job job;
    for (int i = 0; i < 2; i++) {
        const char *queue = i == 0 ? "mail" : "post";
        enqueue(&w, queue, "x");
        EXPECT_OK(claim_one(&w, queue, &job));
        EXPECT_OK(fail(&w, &job, "no"));
        clock_advance_ms(&w, 1000);
        EXPECT_OK(cancel(&w, job.id));
    }
    EXPECT_EQ(count_events(&w, (lh_event_filter){.type = "job.failed"}), 2);
    EXPECT_EQ(count_events(&w, (lh_event_filter){.type = "job"}), 4);
    EXPECT_EQ(count_events(&w, (lh_event_filter){.type = "jo"}), 0);
    EXPECT_EQ(count_events(&w, (lh_event_filter){.type = "job.cancelled", .queue = "mail"}), 1);
    EXPECT_EQ(count_events(&w, (lh_event_filter){.queue = "post", .newest = true}), 2);
    EXPECT_EQ(count_events(&w, (lh_event_filter){.queue = "post", .job = job.id}), 2);
    EXPECT_EQ(count_events(&w, (lh_event_filter){.since = WORLD_START_MS + 1000}), 3);
    EXPECT_EQ(count_events(&w, (lh_event_filter){.since = WORLD_START_MS + 1000, .newest = true}),
              3);
    EXPECT_EQ(
        count_events(&w, (lh_event_filter){.job = job.id, .newest = true, .type = "job.failed"}),
        1);
    world_close(&w);
}

SPEC(a_filter_of_events_that_cannot_match_is_refused)
{
    struct world w = world_open();
    lh_events *events = NULL;
    EXPECT_STATUS(lh_event_list(w.store, &(lh_event_filter){.queue = "a b"}, &events), LH_EINVAL);
    EXPECT_STATUS(lh_event_list(w.store, &(lh_event_filter){.type = "%"}, &events), LH_EINVAL);
    EXPECT_STATUS(lh_event_list(w.store, &(lh_event_filter){.since = -1}, &events), LH_EINVAL);
    world_close(&w);
}

SPEC(a_wait_for_one_type_of_event_ignores_the_others)
{
    struct world w = world_with_job("mail", "x");
    const int raised = 1;
    lh_event_filter failed = {.type = "job.failed", .wait_ms = -1, .cancel = &raised};
    lh_events *events = NULL;
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(release(&w, &job));
    EXPECT_STATUS(lh_event_list(w.store, &failed, &events), LH_EINTR);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_OK(fail(&w, &job, "no"));
    /* The call really waits: PostgreSQL shows an event only when no lower id can still commit. */
    failed.cancel = NULL;
    EXPECT_OK(lh_event_list(w.store, &failed, &events));
    EXPECT_EQ(events->n, 1);
    lh_events_free(events);
    world_close(&w);
}
