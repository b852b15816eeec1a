/* The exact reason that a recovery gives for each job, and which fields of the job it changes. */
#include "recovery_world.h"

#include <stdio.h>

/* The job, its event and the report contain the same reason. */
static void expect_reason(struct world *w, const lh_report *report, int64_t id, const char *wanted)
{
    const lh_events *events = events_of(w, id);
    EXPECT_STR(job_of(w, id).last_error, wanted);
    EXPECT(events->n > 0);
    EXPECT_STR(events->event[events->n - 1].reason, wanted);
    EXPECT(told_of(report, id) != NULL);
    EXPECT_STR(told_of(report, id)->reason, wanted);
    EXPECT(told_of(report, id)->success);
    EXPECT(told_of(report, id)->error == NULL);
}

SPEC(the_reason_of_an_expired_lease_is_exact)
{
    struct world w = world_open();
    lh_job half_an_hour = held(&w, "mail", "w-1", 1800000);
    clock_advance_ms(&w, 1500000);
    lh_job odd = held(&w, "mail", "w-2", 1500), seconds = held(&w, "mail", "w-3", 2000);
    clock_advance_ms(&w, 300000);
    const lh_report *report = recover_by(&w, NULL);
    expect_reason(&w, report, half_an_hour.id,
                  "RECLAIMED_TTL: Exceeded TTL (30 min) at attempt 1/3, worker w-1 last seen 30m "
                  "ago");
    expect_reason(&w, report, odd.id,
                  "RECLAIMED_TTL: Exceeded TTL (1500 ms) at attempt 1/3, worker w-2 last seen 5m "
                  "ago");
    expect_reason(&w, report, seconds.id,
                  "RECLAIMED_TTL: Exceeded TTL (2 s) at attempt 1/3, worker w-3 last seen 5m ago");
    world_close(&w);
}

SPEC(the_reason_of_an_expired_lease_at_the_last_attempt_is_exact)
{
    struct world w = world_open();
    lh_job job;
    enqueue(&w, "mail", "x", .max_attempts = 1);
    EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w-1", .lease_ms = 1000));
    clock_advance_ms(&w, 2000);
    expect_reason(&w, recover_by(&w, NULL), job.id,
                  "RECLAIMED_TTL: Max attempts reached (1), Exceeded TTL (1 s), worker w-1 last "
                  "seen 2s ago");
    world_close(&w);
}

SPEC(the_reason_of_a_silent_worker_is_exact)
{
    static const char begin[] = "RECLAIMED_DEAD: worker w-1 has been silent for 1m30s (3 × 30s), ";
    struct world w = world_open();
    enlist(&w, "w-1", .process = true, .interval_ms = 30000, .multiplier = 3);
    lh_job job = held(&w, "mail", "w-1", 600000);
    clock_advance_ms(&w, 90000);
    const lh_report *report = recover_by(&w, NULL);
    const char *reason = job_of(&w, job.id).last_error;
    EXPECT_MEM(reason, strnlen(reason, sizeof begin - 1), begin, sizeof begin - 1);
    EXPECT_CONTAINS(reason, "attempt 1/3");
    EXPECT_CONTAINS(reason, "last seen 1m30s ago");
    expect_reason(&w, report, job.id, reason);
    world_close(&w);
}

SPEC(the_reason_of_a_silent_worker_at_the_last_attempt_is_exact)
{
    struct world w = world_open();
    lh_job job;
    enlist_process(&w, "w-1");
    enqueue(&w, "mail", "x", .max_attempts = 1);
    EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w-1", .lease_ms = 60000));
    clock_advance_ms(&w, SILENCE_MS);
    recover_by(&w, NULL);
    EXPECT_CONTAINS(job_of(&w, job.id).last_error,
                    "RECLAIMED_DEAD: Max attempts reached (1), worker w-1 has been silent for 3s");
    world_close(&w);
}

SPEC(the_reason_of_a_recovery_by_an_operator_is_exact)
{
    struct world w = world_open();
    lh_job job = held(&w, "mail", "w-1", 600000);
    clock_advance_ms(&w, 300000);
    const lh_report *report =
        recover_by(&w, &(lh_recover_opts){.by_age = true, .threshold_ms = 240000});
    expect_reason(&w, report, job.id,
                  "RECLAIMED_MANUAL: taken back by hand, silent for at least 4m at attempt 1/3, "
                  "worker w-1 last seen 5m ago");
    world_close(&w);
}

SPEC(the_reason_of_poison_is_exact)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_MAX_RECOVERIES, .max_recoveries = 1));
    lh_job job = held(&w, "mail", "w-1", 1000);
    clock_advance_ms(&w, 1000);
    EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w-2", .lease_ms = 1000));
    clock_advance_ms(&w, 1000);
    expect_reason(&w, recover_by(&w, NULL), job.id,
                  "POISON: 2 workers died under this job (max 1), RECLAIMED_TTL: Exceeded TTL "
                  "(1 s), worker w-2 last seen 1s ago");
    world_close(&w);
}

SPEC(the_reason_of_a_job_that_was_not_started_is_exact)
{
    struct world w = world_open();
    enlist(&w, "w-1", .process = true, .tells_started = true, .interval_ms = 1000);
    lh_job job = held(&w, "mail", "w-1", 60000);
    clock_advance_ms(&w, SILENCE_MS);
    recover_by(&w, NULL);
    EXPECT_CONTAINS(job_of(&w, job.id).last_error,
                    "RECLAIMED_DEAD: worker w-1 has been silent for 3s (3 × 1s) before it started "
                    "the job");
    world_close(&w);
}

SPEC(the_reason_of_a_named_lease_is_exact)
{
    struct world w = world_open();
    enlist_process(&w, "w-1");
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "brief",
                               &(lh_lease_opts){.owner = "o-1", .ttl_ms = 1000}, NULL));
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "long",
                               &(lh_lease_opts){.owner = "w-1", .ttl_ms = 60000}, NULL));
    clock_advance_ms(&w, 1000);
    EXPECT_EQ(recover_by(&w, NULL)->locks_cleaned, 1);
    EXPECT_STR(last_event(&w, "lease.recovered").lease, "sync/brief");
    EXPECT_CONTAINS(last_event(&w, "lease.recovered").reason, "RECLAIMED_TTL: ");
    clock_advance_ms(&w, SILENCE_MS - 1000);
    EXPECT_EQ(recover_by(&w, NULL)->locks_cleaned, 1);
    EXPECT_STR(last_event(&w, "lease.recovered").lease, "sync/long");
    EXPECT_STR(last_event(&w, "lease.recovered").worker, "w-1");
    EXPECT_CONTAINS(last_event(&w, "lease.recovered").reason,
                    "RECLAIMED_DEAD: worker w-1 has been silent for 3s");
    world_close(&w);
}

/* ---- what is written, and what is not ---- */

/* Invariants 4 and 5, and that another worker can claim the job. */
static void expect_only_the_lease_changed(const lh_job *before, const lh_job *after)
{
    EXPECT_STR(after->queue, before->queue);
    EXPECT_STR(after->kind, before->kind);
    EXPECT_MEM(after->payload, after->payload_len, before->payload, before->payload_len);
    EXPECT_EQ(after->priority, before->priority);
    EXPECT_STR(after->key, before->key);
    EXPECT_EQ(after->max_attempts, before->max_attempts);
    EXPECT_EQ(after->created_at, before->created_at);
    EXPECT_EQ(after->expires_at, before->expires_at);
    EXPECT_STR(after->stage, before->stage);
    EXPECT_EQ(after->progress, before->progress);
    EXPECT_STR(after->checkpoint, before->checkpoint);
    EXPECT_EQ(after->last_heartbeat_at, before->last_heartbeat_at);
    EXPECT(after->token > before->token);
    EXPECT(after->worker == NULL && after->started_at == 0 && after->lease_until == 0);
    EXPECT(after->state_changed_at > before->state_changed_at);
    EXPECT(after->attempt <= before->attempt && after->attempt <= after->max_attempts);
    EXPECT(after->recoveries <= before->recoveries + 1 && after->recoveries <= 3);
}

struct way {
    const lh_recover_opts *opts;
    lh_action action;
    int64_t lease_ms, max_recoveries;
    bool tells_started;
    lh_state to;
};

static void expect_way(const struct way *way)
{
    struct world w = world_open();
    lh_job job;
    enlist(&w, "w-1", .process = true, .tells_started = way->tells_started, .interval_ms = 1000);
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_ACTION | LH_POLICY_MAX_RECOVERIES,
                     .action = way->action, .max_recoveries = way->max_recoveries));
    int64_t id = enqueue(&w, "mail", "payload", .kind = "k", .priority = 4, .key = "key",
                         .expires_ms = 3600000);
    EXPECT_OK(claim_one(&w, "mail", &job, .worker = "w-1", .lease_ms = way->lease_ms));
    clock_advance_ms(&w, 100);
    EXPECT_OK(lh_heartbeat(w.store,
                           &(lh_beat){.job = id,
                                      .token = job.token,
                                      .has_progress = true,
                                      .progress = 55,
                                      .stage = "rebasing",
                                      .checkpoint = "{\"n\":1}"},
                           1, NULL, NULL));
    lh_job before = job_of(&w, id);
    clock_advance_ms(&w, SILENCE_MS);
    EXPECT_EQ(recover_by(&w, way->opts)->entries_reclaimed, 1);
    lh_job after = job_of(&w, id);
    EXPECT_EQ(after.state, way->to);
    expect_only_the_lease_changed(&before, &after);
    world_close(&w);
}

SPEC(every_kind_of_recovery_keeps_the_fields_of_the_job)
{
    static const lh_recover_opts by_age = {.by_age = true};
    static const struct way ways[] = {
        {.action = LH_ACTION_RETRY, .lease_ms = 1000, .max_recoveries = 3, .to = LH_PENDING},
        {.action = LH_ACTION_RETRY, .lease_ms = 60000, .max_recoveries = 3, .to = LH_PENDING},
        {.action = LH_ACTION_PENDING, .lease_ms = 60000, .max_recoveries = 3, .to = LH_PENDING},
        {.action = LH_ACTION_FAIL, .lease_ms = 60000, .max_recoveries = 3, .to = LH_FAILED},
        {.action = LH_ACTION_RETRY, .lease_ms = 60000, .max_recoveries = 0, .to = LH_FAILED},
        {.action = LH_ACTION_RETRY,
         .lease_ms = 60000,
         .max_recoveries = 3,
         .tells_started = true,
         .to = LH_PENDING},
        {.opts = &by_age,
         .action = LH_ACTION_RETRY,
         .lease_ms = 60000,
         .max_recoveries = 3,
         .to = LH_SCHEDULED},
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        expect_way(&ways[i]);
        test_store_renew();
    }
}

SPEC(the_events_of_a_recovery_are_in_order_and_name_its_report)
{
    struct world w = world_open();
    enlist_process(&w, "w-1");
    lh_job dead = held(&w, "mail", "w-1", 60000), late = held(&w, "mail", "w-2", 1000);
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "a",
                               &(lh_lease_opts){.owner = "o-1", .ttl_ms = 1000}, NULL));
    int64_t before = last_event(&w, "worker.started").id;
    clock_advance_ms(&w, SILENCE_MS);
    const lh_report *report = recover_by(&w, NULL);
    lh_events *events = NULL;
    EXPECT_OK(lh_event_list(w.store, &(lh_event_filter){.after = before}, &events));
    static const char *const order[] = {"recovery.started",  "worker.dead",     "job.recovered",
                                        "job.recovered",     "lease.recovered", "worker.cleaned",
                                        "recovery.completed"};
    size_t at = 0;
    for (size_t i = 0; i < events->n; i++) {
        const lh_event *event = &events->event[i];
        if (strcmp(event->type, "lease.acquired") == 0)
            continue;
        EXPECT(at < sizeof order / sizeof order[0]);
        EXPECT_STR(event->type, order[at++]);
        EXPECT_STR(event->actor, "system/recovery");
        EXPECT_EQ(event->report, report->id);
        EXPECT_EQ(event->at, WORLD_START_MS + SILENCE_MS);
    }
    EXPECT_EQ(at, sizeof order / sizeof order[0]);
    lh_events_free(events);
    EXPECT_STR(last_event(&w, "recovery.started").reason, "manual");
    EXPECT_STR(last_event(&w, "worker.dead").worker, "w-1");
    EXPECT_STR(last_event(&w, "worker.dead").reason, "has been silent for 3s (3 × 1s)");
    EXPECT_STR(last_event(&w, "worker.cleaned").worker, "w-1");
    for (int i = 0; i < 2; i++) {
        const lh_job *job = i == 0 ? &dead : &late;
        const lh_event *event = &events_of(&w, job->id)->event[0];
        EXPECT_STR(event->from, "running");
        EXPECT_STR(event->to, "pending");
        EXPECT_EQ(event->token, job->token);
        EXPECT_EQ(event->attempt, 2);
        EXPECT_EQ(event->max_attempts, 3);
        EXPECT_STR(event->action, "retry");
        EXPECT_STR(event->worker, job->worker);
    }
    world_close(&w);
}
