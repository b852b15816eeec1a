/*
 * Moving a queue to another store: from a file into the store under test, and from there into a file. The test
 * compares both through the public calls, not through the comparison of the move itself.
 */
#include "world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static const unsigned char bytes[] = {'a', 0, 0xff, 0xfe, 'z'};

/* ---- a store with something of everything ---- */

static struct world other_world(const char *path, bool create)
{
    struct world w = {0};
    int rc = lh_open(path, &(lh_open_opts){.create = create}, &w.store);

    if (rc != LH_OK)
        FAIL("could not open \"%s\": %s", path, lh_errmsg(w.store));
    return w;
}

static void end_jobs(struct world *w)
{
    lh_job job;

    EXPECT_OK(claim_one(w, "done", &job, .request = "claimed-once"));
    EXPECT_OK(lh_heartbeat(w->store,
                           &(lh_beat){.job = job.id,
                                      .token = job.token,
                                      .has_progress = true,
                                      .progress = 40,
                                      .stage = "half",
                                      .checkpoint = "{\"at\": 7}"},
                           1, NULL, NULL));
    EXPECT_OK(lh_complete(
        w->store,
        &(lh_done){.job = job.id,
                   .token = job.token,
                   .result = bytes,
                   .result_len = sizeof bytes,
                   .result_bytes = 1000,
                   .output = &(lh_output){.out = {.head = bytes, .head_len = sizeof bytes},
                                          .err = {.tail = "text", .tail_len = 4, .bytes = 70000}}},
        1, NULL, NULL));
    EXPECT_OK(claim_one(w, "done", &job));
    EXPECT_OK(
        lh_fail(w->store,
                &(lh_failure){.job = job.id, .token = job.token, .error = "no", .permanent = true},
                1, NULL, NULL));
    EXPECT_OK(claim_one(w, "done", &job));
    EXPECT_OK(fail(w, &job, "try again"));
    EXPECT_OK(claim_one(w, "done", &job));
    EXPECT_OK(release(w, &job));
    EXPECT_OK(cancel(w, job.id));
}

static void die_once(struct world *w)
{
    lh_job job;

    enqueue(w, "dead", "x");
    EXPECT_OK(claim_one(w, "dead", &job, .lease_ms = 1000));
    clock_advance_ms(w, 1000);
    EXPECT_OK(lh_recover(w->store, NULL, NULL));
}

static void set_things(struct world *w)
{
    EXPECT_OK(policy(w, "mail", NULL, .set = LH_POLICY_LEASE | LH_POLICY_RATE, .lease_ms = 90000,
                     .rate_n = 20, .rate_per_ms = 60000));
    EXPECT_OK(policy(w, NULL, "big", .set = LH_POLICY_RECOVERY | LH_POLICY_MAX_OUTPUT,
                     .recovery = false, .max_output = 1000));
    EXPECT_OK(lh_scope_set(w->store, "sync", 120000));
    EXPECT_OK(lh_queue_pause(w->store, "asleep"));
    EXPECT_OK(lh_schedule_set(
        w->store, &(lh_schedule){.name = "nightly",
                                 .queue = "mail",
                                 .cron = "30 2 * * *",
                                 .zone = "Europe/Berlin",
                                 .job = {.payload = bytes, .payload_len = sizeof bytes}}));
    EXPECT_OK(lh_lease_acquire(w->store, "sync", "held",
                               &(lh_lease_opts){.owner = "me", .value = "{\"page\":3}"}, NULL));
    EXPECT_OK(lh_lease_acquire(w->store, "sync", "done", &(lh_lease_opts){.owner = "me"}, NULL));
    EXPECT_OK(lh_lease_complete(w->store, "sync", "done",
                                &(lh_lease_opts){.owner = "me", .has_rows = true, .rows = 500},
                                NULL));
}

static void fill(struct world *w)
{
    static const lh_new_job asked = {.payload = "asked", .payload_len = 5};
    lh_enqueued out;
    lh_maintained done;

    set_things(w);
    for (int i = 0; i < 4; i++)
        enqueue(w, "done", "{\"n\":1}", .kind = "big");
    end_jobs(w);
    die_once(w);
    enqueue(w, "mail", "keyed", .key = "k 1", .priority = 7, .max_attempts = LH_UNLIMITED);
    enqueue(w, "mail", "later", .delay_ms = 3600000, .expires_ms = 7200000, .lease_ms = 5000);
    enqueue(w, "mail", NULL);
    EXPECT_OK(lh_enqueue(w->store, "mail",
                         &(lh_new_job){.payload = bytes, .payload_len = sizeof bytes}, 1, NULL,
                         &out));
    EXPECT_OK(lh_enqueue(w->store, "asleep", &asked, 1, "asked-once", &out));
    EXPECT_OK(lh_maintain(w->store, NULL, &done)); /* a move does this too */
}

/* The world of the source store, with the clock stopped. */
static struct world full_source(void)
{
    struct world w = world_open();
    world_close(&w);
    w = other_world("old.db", true);
    fill(&w);
    return w;
}

/* ---- what the public calls tell of a store, as text ---- */

static void draw_bytes(FILE *out, const void *data, size_t len)
{
    const unsigned char *p = data;
    if (data == NULL)
        (void)fputs(" -", out);
    for (size_t i = 0; data != NULL && i < len; i++)
        (void)fprintf(out, "%s%02x", i ? "" : " ", p[i]);
}

#define WORD(text_) ((text_) ? (text_) : "-")
#define NUM(value_) ((long long)(value_))

static void draw_output(FILE *out, struct world *w, int64_t job)
{
    lh_outputs *outputs = NULL;
    EXPECT_OK(lh_output_list(w->store, &(lh_output_filter){.job = job}, &outputs));
    for (size_t i = 0; i < outputs->n; i++) {
        const lh_output *o = &outputs->output[i];
        (void)fprintf(out, "output %lld %lld %lld %lld %lld %lld %lld", NUM(o->job), NUM(o->token),
                      NUM(o->attempt), NUM(o->at), NUM(o->result_bytes), NUM(o->out.bytes),
                      NUM(o->err.bytes));
        draw_bytes(out, o->out.head, o->out.head_len);
        draw_bytes(out, o->out.tail, o->out.tail_len);
        draw_bytes(out, o->err.head, o->err.head_len);
        draw_bytes(out, o->err.tail, o->err.tail_len);
        (void)fputc('\n', out);
    }
    lh_outputs_free(outputs);
}

static void draw_jobs(FILE *out, struct world *w)
{
    const lh_jobs *jobs = jobs_where(w, (lh_job_filter){.limit = 1000});

    for (size_t i = 0; i < jobs->n; i++) {
        const lh_job *j = &jobs->job[i];
        (void)fprintf(out, "job %lld %lld %s %s %s %d %s %lld/%lld %lld", NUM(j->id), NUM(j->token),
                      j->queue, WORD(j->kind), lh_state_name(j->state), j->priority, WORD(j->key),
                      NUM(j->attempt), NUM(j->max_attempts), NUM(j->recoveries));
        (void)fprintf(out, " %lld %lld %lld %lld %lld %lld %lld %lld %s %s %d %s", NUM(j->run_at),
                      NUM(j->created_at), NUM(j->started_at), NUM(j->finished_at),
                      NUM(j->state_changed_at), NUM(j->last_heartbeat_at), NUM(j->expires_at),
                      NUM(j->lease_ms), WORD(j->last_error), WORD(j->stage), j->progress,
                      WORD(j->checkpoint));
        draw_bytes(out, j->payload, j->payload_len);
        draw_bytes(out, j->result, j->result_len);
        (void)fputc('\n', out);
        draw_output(out, w, j->id);
    }
}

static void draw_queues(FILE *out, struct world *w)
{
    lh_queues *queues = NULL;
    EXPECT_OK(lh_queue_list(w->store, &queues));
    for (size_t i = 0; i < queues->n; i++) {
        const lh_queue *q = &queues->queue[i];
        (void)fprintf(
            out, "queue %s %d %lld %lld %lld %lld %lld %lld, hour %lld %lld %lld %lld %lld %lld\n",
            q->queue, q->paused, NUM(q->scheduled), NUM(q->pending), NUM(q->running),
            NUM(q->completed), NUM(q->failed), NUM(q->cancelled), NUM(q->hour_enqueued),
            NUM(q->hour_claimed), NUM(q->hour_completed), NUM(q->hour_failed),
            NUM(q->hour_recovered), NUM(q->hour_ended));
    }
    lh_queues_free(queues);
}

static void draw_settings(FILE *out, struct world *w)
{
    lh_policies *policies = NULL;
    lh_schedules *schedules = NULL;

    EXPECT_OK(lh_policy_list(w->store, &policies));
    for (size_t i = 0; i < policies->n; i++)
        (void)fprintf(out, "policy %s %s %x %lld %lld/%lld %d %lld\n", WORD(policies->row[i].queue),
                      WORD(policies->row[i].kind), policies->row[i].policy.set,
                      NUM(policies->row[i].policy.lease_ms), NUM(policies->row[i].policy.rate_n),
                      NUM(policies->row[i].policy.rate_per_ms), policies->row[i].policy.recovery,
                      NUM(policies->row[i].policy.max_output));
    lh_policies_free(policies);
    EXPECT_OK(lh_schedule_list(w->store, &schedules));
    for (size_t i = 0; i < schedules->n; i++) {
        const lh_schedule *s = &schedules->schedule[i];
        (void)fprintf(out, "schedule %s %s %s %s %lld %lld", s->name, s->queue, s->cron,
                      WORD(s->zone), NUM(s->created_at), NUM(s->next_at));
        draw_bytes(out, s->job.payload, s->job.payload_len);
        (void)fputc('\n', out);
    }
    lh_schedules_free(schedules);
}

static void draw_leases(FILE *out, struct world *w)
{
    lh_leases *leases = NULL;
    EXPECT_OK(lh_lease_list(w->store, NULL, &leases));
    for (size_t i = 0; i < leases->n; i++) {
        const lh_lease *l = &leases->lease[i];
        (void)fprintf(out, "lease %s/%s %s %lld %lld %lld %s %lld %lld\n", l->scope, l->name,
                      WORD(l->owner), NUM(l->token), NUM(l->acquired_at), NUM(l->expires_at),
                      WORD(l->value), NUM(l->rows), NUM(l->last_completed_at));
    }
    lh_leases_free(leases);
}

static void draw_events(FILE *out, struct world *w)
{
    const lh_events *events = events_of(w, 0);

    for (size_t i = 0; i < events->n; i++) {
        const lh_event *e = &events->event[i];
        if (strcmp(e->type, "store.moved") != 0)
            (void)fprintf(
                out, "event %lld %lld %s %lld %s %s %s %s→%s %s %s %lld %s %lld/%lld %s %lld\n",
                NUM(e->id), NUM(e->at), e->type, NUM(e->job), WORD(e->queue), WORD(e->worker),
                WORD(e->lease), WORD(e->from), WORD(e->to), e->actor, WORD(e->reason),
                NUM(e->token), WORD(e->data), NUM(e->attempt), NUM(e->max_attempts),
                WORD(e->action), NUM(e->report));
    }
}

static void draw_totals(FILE *out, struct world *w)
{
    lh_reports *reports = NULL;
    lh_store_info info;

    EXPECT_OK(lh_report_list(w->store, 0, &reports));
    for (size_t i = 0; i < reports->n; i++)
        (void)fprintf(out, "report %lld %s %lld %lld\n", NUM(reports->report[i].id),
                      reports->report[i].trigger, NUM(reports->report[i].started_at),
                      NUM(reports->report[i].entries_reclaimed));
    lh_reports_free(reports);
    EXPECT_OK(lh_store_status(w->store, &info));
    (void)fprintf(out, "totals %lld %lld\n", NUM(info.recovery.manual), NUM(info.recovery.retried));
}

static char *picture(struct world *w)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    if (out == NULL)
        FAIL("out of memory");
    draw_jobs(out, w);
    draw_queues(out, w);
    draw_settings(out, w);
    draw_leases(out, w);
    draw_events(out, w);
    draw_totals(out, w);
    (void)fclose(out);
    return keep(w, text, free);
}

/* ---- moving ---- */

static char why[512];

static int move(const char *from, const char *to, lh_moved *out)
{
    return lh_move(from, to, NULL, out, why, sizeof why);
}

#define EXPECT_MOVED(from_, to_)                                      \
    do {                                                              \
        int rc_ = move((from_), (to_), NULL);                         \
        if (rc_ != LH_OK)                                             \
            FAIL("move ended with %s: %s", lh_status_name(rc_), why); \
    } while (0)

static int64_t epoch_of(struct world *w)
{
    lh_store_info info;
    EXPECT_OK(lh_store_status(w->store, &info));
    return info.epoch;
}

/* ---- the tests ---- */

SPEC(a_move_and_a_move_back_preserve_everything)
{
    struct world old = full_source();
    char *before = picture(&old);
    lh_moved moved;

    EXPECT_OK(move("old.db", test_store(), &moved));
    EXPECT_EQ(moved.jobs, 10);
    EXPECT_EQ(moved.leases, 2);
    EXPECT_EQ(moved.policies, 3);
    EXPECT_EQ(moved.schedules, 1);
    EXPECT(moved.events > 0 && !moved.already);
    struct world here = {.store = world_second_handle()};
    EXPECT_STR(picture(&here), before);
    EXPECT_EQ(epoch_of(&here), epoch_of(&old) + 1);
    world_check(&here);

    EXPECT_MOVED(test_store(), "back.db");
    struct world back = other_world("back.db", false);
    EXPECT_STR(picture(&back), before);
    EXPECT_EQ(epoch_of(&back), epoch_of(&old) + 2);
    world_close(&back);
    world_close(&here);
    world_close(&old);
}

SPEC(moved_jobs_continue_in_the_new_store)
{
    struct world old = full_source();
    int64_t last = enqueue(&old, "mail", "last");
    lh_job job, held = job_of(&old, last);
    lh_enqueued again;
    int64_t deleted = enqueue(&old, "mail", "gone");

    EXPECT_OK(lh_delete(old.store, &deleted, 1, NULL));
    EXPECT_MOVED("old.db", test_store());
    struct world w = {.store = world_second_handle()};
    /* Ids are not reused, tokens rise, keys and request ids are known. */
    EXPECT(enqueue(&w, "mail", "new") > deleted);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_STR(job.key, "k 1"); /* the highest priority */
    EXPECT(job.token > INT64_C(1) << 40 && job.token > held.token);
    EXPECT_OK(complete(&w, &job));
    EXPECT_OK(lh_enqueue(w.store, "asleep", &(lh_new_job){.payload = "asked", .payload_len = 5}, 1,
                         "asked-once", &again));
    EXPECT(again.duplicate);
    EXPECT_STATUS(lh_lease_acquire(w.store, "sync", "held", &(lh_lease_opts){.owner = "you"}, NULL),
                  LH_EHELD);
    EXPECT_STATUS(claim_one(&w, "asleep", &job), LH_EMPTY);
    /* A delay, an expiry and the end of a lease take effect at their times. */
    clock_advance_ms(&w, 7200000);
    lh_maintained done;
    EXPECT_OK(lh_maintain(w.store, NULL, &done));
    EXPECT_OK(lh_lease_acquire(w.store, "sync", "held", &(lh_lease_opts){.owner = "you"}, NULL));
    EXPECT_STR(last_event(&w, "store.moved").actor, "move");
    world_close(&w);
    world_close(&old);
}

SPEC(nothing_is_moved_while_a_job_is_running)
{
    struct world old = full_source();
    lh_job job;

    EXPECT_OK(claim_one(&old, "mail", &job, .lease_ms = 60000));
    EXPECT_STATUS(move("old.db", test_store(), NULL), LH_ESTATE);
    EXPECT_CONTAINS(why, "1 job is running in store \"old.db\"");
    EXPECT_OK(beat(&old, &job)); /* the store is not closed */
    EXPECT_OK(complete(&old, &job));
    EXPECT_MOVED("old.db", test_store());
    world_close(&old);

    struct world w = {.store = world_second_handle()};
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = 60000));
    EXPECT_STATUS(move(test_store(), "back.db", NULL), LH_ESTATE);
    EXPECT_CONTAINS(why, "1 job is running in store \"");
    EXPECT_OK(beat(&w, &job));
    EXPECT_OK(complete(&w, &job));
    EXPECT_MOVED(test_store(), "back.db");
    world_close(&w);
}

SPEC(an_expired_lease_does_not_prevent_a_move)
{
    struct world old = full_source();
    lh_job job;

    EXPECT_OK(claim_one(&old, "mail", &job, .lease_ms = 60000));
    clock_advance_ms(&old, 60000);
    EXPECT_MOVED("old.db", test_store());
    struct world w = {.store = world_second_handle()};
    EXPECT_EQ(job_of(&w, job.id).state, LH_PENDING);
    EXPECT_EQ(job_of(&w, job.id).recoveries, 1);
    EXPECT_STATUS(complete(&w, &job), LH_ELOST);
    world_close(&w);
    world_close(&old);
}

SPEC(a_store_that_was_moved_is_read_only)
{
    struct world old = full_source();
    lh_enqueued out;
    lh_job job;

    EXPECT_MOVED("old.db", test_store());
    EXPECT_STATUS(lh_enqueue(old.store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_EREADONLY);
    EXPECT_CONTAINS(lh_errmsg(old.store), "store \"old.db\" was moved to \"");
    EXPECT_STATUS(claim_one(&old, "mail", &job), LH_EREADONLY);
    EXPECT_EQ(jobs_where(&old, (lh_job_filter){.limit = 100})->n, 10);
    EXPECT_STATUS(move("old.db", "third.db", NULL), LH_ESTATE);
    EXPECT_STATUS(lh_move("old.db", NULL, &(lh_move_opts){.abandon = true}, NULL, why, sizeof why),
                  LH_ESTATE);
    /* The other store is read-only, too, after it was moved. */
    EXPECT_MOVED(test_store(), "back.db");
    struct world w = {.store = world_second_handle()};
    EXPECT_STATUS(lh_enqueue(w.store, "mail", &(lh_new_job){0}, 1, NULL, &out), LH_EREADONLY);
    EXPECT_CONTAINS(lh_errmsg(w.store), "was moved to \"sqlite:back.db\": go on there");
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EREADONLY);
    EXPECT_STATUS(lh_lease_acquire(w.store, "a", "b", NULL, NULL), LH_EREADONLY);
    EXPECT_STATUS(lh_queue_pause(w.store, "mail"), LH_EREADONLY);
    EXPECT_EQ(jobs_where(&w, (lh_job_filter){.limit = 100})->n, 10);
    world_close(&w);
    world_close(&old);
}

SPEC(a_finished_move_is_not_repeated)
{
    struct world old = full_source();
    lh_moved moved;

    EXPECT_MOVED("old.db", test_store());
    struct world w = {.store = world_second_handle()};
    enqueue(&w, "mail", "since");
    char *now = picture(&w);
    EXPECT_OK(move("old.db", test_store(), &moved));
    EXPECT(moved.already);
    EXPECT_STR(picture(&w), now);
    world_close(&w);
    world_close(&old);
}

SPEC(nothing_is_moved_into_a_store_that_is_in_use)
{
    struct world w = world_with_job("mail", "here");
    struct world old = other_world("old.db", true);
    int64_t id = 1;

    enqueue(&old, "mail", "there");
    EXPECT_STATUS(move("old.db", test_store(), NULL), LH_ESTATE);
    EXPECT_CONTAINS(why, "is not empty");
    /* Ids were used, although no row is left. */
    EXPECT_OK(lh_delete(w.store, &id, 1, NULL));
    EXPECT_STATUS(move("old.db", test_store(), NULL), LH_ESTATE);
    EXPECT_STATUS(move("old.db", "old.db", NULL), LH_EINVAL);
    enqueue(&old, "mail", "it was not closed");
    world_close(&old);
    world_close(&w);
}

/* ---- killed ---- */

static void move_killed(const char *point, int skip)
{
    pid_t child = test_fork();

    if (child == 0) {
        (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "%s", point);
        lhi_control()->kill_skip = skip;
        (void)move("old.db", test_store(), NULL);
        test_child_done();
    }
    if (test_wait(child).sig != SIGKILL)
        FAIL("a move never passes %s %d times", point, skip + 1);
    lhi_control()->kill_at[0] = '\0';
}

static bool is_open(struct world *w)
{
    lh_enqueued out;
    int64_t id;
    int rc = lh_enqueue(w->store, "probe", &(lh_new_job){0}, 1, NULL, &out);

    if (rc == LH_EREADONLY)
        return false;
    EXPECT_OK(rc);
    id = out.id;
    EXPECT_OK(lh_delete(w->store, &id, 1, NULL));
    return true;
}

static const struct {
    const char *point;
    int skip;
    bool moved; /* the move is complete by then */
} kills[] = {
    {"move:closed", 0, false},  {"move:prepared", 0, false}, {"move:batch", 0, false},
    {"move:batch", 5, false},   {"move:batch", 10, false},   {"move:left", 0, false},
    {"move:finished", 0, true},
};

TEST_TIMEOUT(a_killed_move_can_be_continued_and_only_one_store_is_writable, 60)
{
    for (size_t i = 0; i < sizeof kills / sizeof kills[0]; i++) {
        struct world old = full_source();
        char *before = picture(&old);

        lh_close(old.store); /* a handle does not outlive a fork */
        move_killed(kills[i].point, kills[i].skip);
        old.store = other_world("old.db", false).store;
        struct world w = {.store = world_handle((lh_open_opts){.recover_later = true})};
        EXPECT(!is_open(&old)); /* closed for writes from the first of these points on */
        EXPECT_EQ(kills[i].point[5] == 'c' || is_open(&w) == kills[i].moved, true);
        EXPECT_MOVED("old.db", test_store());
        if (!kills[i].moved)
            EXPECT_STR(picture(&w), before);
        EXPECT(is_open(&w) && !is_open(&old));
        world_close(&w);
        world_close(&old);
        EXPECT_EQ(remove("old.db"), 0);
        EXPECT_EQ(remove("old.db-lease"), 0);
        test_store_renew();
    }
}

SPEC(a_cancelled_move_restores_the_source_and_can_be_repeated)
{
    struct world old = full_source();

    lh_close(old.store);
    move_killed("move:batch", 10);
    EXPECT_OK(lh_move("old.db", NULL, &(lh_move_opts){.abandon = true}, NULL, why, sizeof why));
    old.store = other_world("old.db", false).store;
    EXPECT_STATUS(lh_move("old.db", NULL, &(lh_move_opts){.abandon = true}, NULL, why, sizeof why),
                  LH_ESTATE);
    lh_job job;
    EXPECT_OK(claim_one(&old, "mail", &job)); /* the source has changed since */
    EXPECT_OK(complete(&old, &job));
    char *before = picture(&old);
    EXPECT_MOVED("old.db", test_store());
    /* A recovery after the kill would add a report to the target. */
    struct world w = {.store = world_handle((lh_open_opts){.recover_later = true})};
    EXPECT_STR(picture(&w), before);
    world_close(&w);
    world_close(&old);
}

SPEC(an_unfinished_move_accepts_no_rows_of_another_store)
{
    struct world old = full_source(), third = other_world("third.db", true);

    enqueue(&third, "mail", "x");
    world_close(&old);
    world_close(&third);
    move_killed("move:batch", 3);
    EXPECT_STATUS(move("third.db", test_store(), NULL), LH_ESTATE);
    EXPECT_CONTAINS(why, "is being filled from another store");
    EXPECT_STATUS(move("old.db", "fourth.db", NULL), LH_ESTATE);
    EXPECT_CONTAINS(why, "is being moved to another store");
    EXPECT_MOVED("old.db", test_store());
}

SPEC(a_move_copies_large_payloads_and_more_rows_than_one_batch)
{
    enum { MANY = 1300, LARGE = 900000 };
    static lh_new_job jobs[MANY];
    static lh_enqueued out[MANY];
    struct world old = full_source();
    char *large = keep(&old, malloc(LARGE), free);

    memset(large, 'x', LARGE);
    for (int i = 0; i < MANY; i++)
        jobs[i] = (lh_new_job){.payload = large, .payload_len = i % 100 == 0 ? LARGE : (size_t)i};
    for (int i = 0; i < MANY; i += 100)
        EXPECT_OK(lh_enqueue(old.store, "bulk", jobs + i, 100, NULL, out + i));
    EXPECT_MOVED("old.db", test_store());
    struct world w = {.store = world_second_handle()};
    EXPECT_EQ(queue_of(&w, "bulk").pending, MANY);
    for (int i = 0; i < MANY; i += 50) {
        lh_job job = job_of(&w, out[i].id);
        EXPECT_MEM(job.payload, job.payload_len, jobs[i].payload, jobs[i].payload_len);
    }
    world_close(&w);
    world_close(&old);
}
