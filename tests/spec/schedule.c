/*
 * Schedules: the job of each instant is enqueued once, by any process; missed instants are recorded; clock
 * changes and deaths do not change that. Which instants a cron line means is tested in unit/cron.c.
 */
#include "recovery_world.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MINUTE_MS INT64_C(60000)
#define HOUR_MS (60 * MINUTE_MS)
#define DAY_MS (24 * HOUR_MS)

/* schedule(&w, "tick", "mail", "mail", "* * * * *", .catch_up = LH_CATCH_UP_NONE) */
#define schedule(w_, name_, queue_, ...) \
    lh_schedule_set((w_)->store,         \
                    &(lh_schedule){.name = (name_), .queue = (queue_), .cron = __VA_ARGS__})

static void free_schedules(void *schedules)
{
    lh_schedules_free(schedules);
}

static const lh_schedules *schedules(struct world *w)
{
    lh_schedules *all = NULL;
    EXPECT_OK(lh_schedule_list(w->store, &all));
    keep(w, all, free_schedules);
    return all;
}

static lh_schedule schedule_of(struct world *w, const char *name)
{
    const lh_schedules *all = schedules(w);
    for (size_t i = 0; i < all->n; i++)
        if (strcmp(all->schedule[i].name, name) == 0)
            return all->schedule[i];
    FAIL("there is no schedule \"%s\"", name);
}

static size_t jobs_in(struct world *w, const char *queue)
{
    return jobs_where(w, (lh_job_filter){.queue = queue, .limit = 10000})->n;
}

static size_t events_named(struct world *w, const char *type)
{
    const lh_events *events = events_of(w, 0);
    size_t n = 0;
    for (size_t i = 0; i < events->n; i++)
        n += strcmp(events->event[i].type, type) == 0 ? 1 : 0;
    return n;
}

/* Set only the wall clock, as an administrator or NTP does. */
static void set_clock_by(int64_t ms)
{
    __atomic_add_fetch(&lhi_control()->wall_ms, ms, __ATOMIC_SEQ_CST);
}

/* ---- ticking ---- */

SPEC(a_schedule_enqueues_its_job_at_each_of_its_instants)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "*/5 * * * *",
                       .job = {.payload = "hello",
                               .payload_len = 5,
                               .kind = "k",
                               .priority = 7,
                               .max_attempts = 9,
                               .lease_ms = 1234}));
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    EXPECT_EQ(jobs_in(&w, "mail"), 0);
    for (int i = 1; i <= 3; i++) {
        clock_advance_ms(&w, 5 * MINUTE_MS);
        EXPECT_EQ(upkeep(&w).enqueued, 1);
        EXPECT_EQ(upkeep(&w).enqueued, 0);
        EXPECT_EQ(jobs_in(&w, "mail"), i);
    }
    lh_job job = job_of(&w, 3);
    EXPECT_EQ(job.state, LH_PENDING);
    EXPECT_STR(job.kind, "k");
    EXPECT_EQ(job.priority, 7);
    EXPECT_EQ(job.max_attempts, 9);
    EXPECT_MEM(job.payload, job.payload_len, "hello", 5);
    EXPECT_EQ(job.run_at, WORLD_START_MS + 15 * MINUTE_MS);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.lease_ms, 1234);
    EXPECT_EQ(events_named(&w, "schedule.missed"), 0);
    world_close(&w);
}

SPEC(a_schedule_shows_its_last_and_its_next_instant)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "0 * * * *", .zone = "Europe/Berlin"));
    lh_schedule s = schedule_of(&w, "tick");
    EXPECT_EQ(s.next_at, WORLD_START_MS + 30 * MINUTE_MS);
    EXPECT_EQ(s.last_at, 0);
    EXPECT_EQ(s.last_job, 0);
    EXPECT_STR(s.cron, "0 * * * *");
    EXPECT_STR(s.zone, "Europe/Berlin");
    EXPECT(s.error == NULL);
    clock_advance_ms(&w, 30 * MINUTE_MS + 250);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    s = schedule_of(&w, "tick");
    EXPECT_EQ(s.last_at, WORLD_START_MS + 30 * MINUTE_MS);
    EXPECT_EQ(s.last_job, 1);
    EXPECT_EQ(s.next_at, WORLD_START_MS + 90 * MINUTE_MS);
    world_close(&w);
}

SPEC(an_interval_counts_from_when_it_was_set_and_does_not_drift)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "@every 90s"));
    EXPECT_EQ(schedule_of(&w, "tick").next_at, WORLD_START_MS + 90000);
    clock_advance_ms(&w, 91000);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    EXPECT_EQ(schedule_of(&w, "tick").next_at, WORLD_START_MS + 180000);
    clock_advance_ms(&w, 88999);
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    clock_advance_ms(&w, 1);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    world_close(&w);
}

SPEC(a_claim_runs_a_due_schedule)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(schedule(&w, "tick", "mail", "@every 1m"));
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    clock_advance_ms(&w, MINUTE_MS);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(job.run_at, WORLD_START_MS + MINUTE_MS);
    EXPECT_STATUS(claim_one(&w, "mail", &job), LH_EMPTY);
    world_close(&w);
}

SPEC(many_schedules_due_at_once_are_all_enqueued)
{
    enum { MANY = 603 };
    struct world w = world_open();
    for (int i = 0; i < MANY; i++) {
        char name[32];
        snprintf(name, sizeof name, "s-%d", i);
        EXPECT_OK(schedule(&w, name, "mail", "@every 10m"));
    }
    clock_advance_ms(&w, 10 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, MANY);
    EXPECT_EQ(jobs_in(&w, "mail"), MANY);
    world_close(&w);
}

SPEC(with_a_full_audit_a_scheduled_job_names_its_schedule)
{
    struct world w = world_open();
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_AUDIT, .audit = LH_AUDIT_FULL));
    EXPECT_OK(schedule(&w, "tick", "mail", "@every 1m"));
    clock_advance_ms(&w, MINUTE_MS);
    (void)upkeep(&w);
    EXPECT_STR(story_of(&w, 1), "job.enqueued");
    lh_event e = last_event(&w, "job.enqueued");
    EXPECT_STR(e.actor, "system/schedule");
    EXPECT_STR(e.data, "{\"schedule\":\"tick\",\"instant\":\"2026-01-15T10:31:00.000Z\"}");
    world_close(&w);
}

/* ---- when to come back ---- */

SPEC(maintenance_returns_the_time_until_the_next_schedule)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "@every 7s"));
    EXPECT_EQ(upkeep(&w).next_ms, 7000);
    clock_advance_ms(&w, 6000);
    EXPECT_EQ(upkeep(&w).next_ms, 1000);
    clock_advance_ms(&w, 1000);
    EXPECT_EQ(upkeep(&w).next_ms, 7000);
    EXPECT_OK(lh_schedule_remove(w.store, "tick"));
    EXPECT_EQ(upkeep(&w).next_ms, 60000);
    world_close(&w);
}

struct waiter {
    pthread_t thread;
    lh_store *store;
    lh_jobs *jobs;
    lh_maintained done;
    int rc;
};

static void *wait_for_job(void *arg)
{
    struct waiter *waiter = arg;
    const char *queue = "mail";
    waiter->rc =
        lh_claim(waiter->store,
                 &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w", .wait_ms = -1},
                 &waiter->jobs);
    return NULL;
}

static void *keep_up(void *arg)
{
    struct waiter *waiter = arg;
    do
        waiter->rc = lh_maintain(waiter->store, &(lh_maintain_opts){.wait_ms = -1}, &waiter->done);
    while (waiter->rc == LH_OK && waiter->done.enqueued == 0);
    return NULL;
}

static void begin(struct waiter *waiter, void *(*body)(void *))
{
    EXPECT_EQ(pthread_create(&waiter->thread, NULL, body, waiter), 0);
    EXPECT(test_thread_sleeps(waiter->thread));
}

/* A thread that has read the clock just before the test moved it sleeps for the whole time again. So the clock
 * is moved on until the thread ends. */
static void end(struct world *w, struct waiter *waiter)
{
    while (test_thread_sleeps(waiter->thread))
        clock_advance_ms(w, 10);
    EXPECT_EQ(pthread_join(waiter->thread, NULL), 0);
    EXPECT_OK(waiter->rc);
}

SPEC(a_waiting_claim_wakes_for_a_due_schedule)
{
    struct world w = world_open();
    struct waiter waiter = {.store = w.store};
    EXPECT_OK(schedule(&w, "tick", "mail", "@every 5s"));
    begin(&waiter, wait_for_job);
    clock_advance_ms(&w, 4999);
    EXPECT(test_thread_sleeps(waiter.thread));
    EXPECT_EQ(jobs_in(&w, "mail"), 0);
    clock_advance_ms(&w, 2);
    end(&w, &waiter);
    EXPECT_EQ(waiter.jobs->n, 1);
    EXPECT_EQ(waiter.jobs->job[0].run_at, WORLD_START_MS + 5000);
    /* SQLite needs no poll for it. A server does not notice that the test moved the clock, so a poll may find it. */
    if (!test_store_is_postgres())
        EXPECT(waiter.jobs->job[0].created_at < WORLD_START_MS + 5000 + 900);
    lh_jobs_free(waiter.jobs);
    world_close(&w);
}

SPEC(waiting_maintenance_wakes_for_a_schedule_that_was_set_later)
{
    struct world w = world_open();
    struct waiter waiter = {.store = world_second_handle()};
    clock_advance_ms(&w, 59900);
    begin(&waiter, keep_up);
    EXPECT_OK(schedule(&w, "tick", "mail", "* * * * *"));
    EXPECT(test_thread_sleeps(waiter.thread));
    clock_advance_ms(&w, 101);
    end(&w, &waiter);
    EXPECT_EQ(waiter.done.enqueued, 1);
    EXPECT(job_of(&w, 1).created_at < WORLD_START_MS + 60250); /* a poll would have come later */
    lh_close(waiter.store);
    world_close(&w);
}

SPEC(a_waiting_claim_wakes_for_a_schedule_that_was_set_later)
{
    struct world w = world_open();
    struct waiter waiter = {.store = world_second_handle()};
    clock_advance_ms(&w, 59900);
    begin(&waiter, wait_for_job);
    EXPECT_OK(schedule(&w, "tick", "mail", "* * * * *"));
    EXPECT(test_thread_sleeps(waiter.thread));
    clock_advance_ms(&w, 101);
    end(&w, &waiter);
    EXPECT(waiter.jobs->job[0].created_at <
           WORLD_START_MS + 60250); /* a poll would have come later */
    lh_jobs_free(waiter.jobs);
    lh_close(waiter.store);
    world_close(&w);
}

SPEC(a_store_without_schedules_has_nothing_due)
{
    struct world w = world_open();
    lh_store_info info;
    EXPECT_OK(lh_store_status(w.store, &info));
    EXPECT_EQ(info.next_due_at, 0);
    EXPECT_OK(schedule(&w, "tick", "mail", "@every 5m"));
    EXPECT_OK(lh_store_status(w.store, &info));
    EXPECT_EQ(info.next_due_at, WORLD_START_MS + 5 * MINUTE_MS);
    world_close(&w);
}

/* ---- once, however many look ---- */

SPEC(many_processes_enqueue_a_due_job_once)
{
    enum { PROCESSES = 6, TICKS = 10 };
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "@every 1m"));
    EXPECT_OK(schedule(&w, "other", "post", "* * * * *"));
    for (int tick = 1; tick <= TICKS; tick++) {
        pid_t pids[PROCESSES];
        clock_advance_ms(&w, MINUTE_MS);
        for (int i = 0; i < PROCESSES; i++) {
            if ((pids[i] = world_fork(&w)) != 0)
                continue;
            lh_store *own = world_handle((lh_open_opts){0});
            const char *queue = "none";
            lh_claim_opts claim = {.queues = &queue, .n_queues = 1, .worker = "w"};
            lh_jobs *jobs = NULL;
            if (i % 2 == 0)
                EXPECT_OK(lh_maintain(own, NULL, NULL));
            else
                EXPECT_STATUS(lh_claim(own, &claim, &jobs), LH_EMPTY);
            lh_close(own);
            test_child_done();
        }
        for (int i = 0; i < PROCESSES; i++)
            EXPECT_EQ(test_wait(pids[i]).code, 0);
        EXPECT_EQ(jobs_in(&w, "mail"), tick);
        EXPECT_EQ(jobs_in(&w, "post"), tick);
    }
    world_close(&w);
}

/* The thread sanitizer checks that threads that run a schedule at a time share no unguarded memory. */
SPEC(threads_on_one_handle_enqueue_a_due_job_once)
{
    enum { THREADS = 4 };
    struct world w = world_open();
    struct waiter waiters[THREADS];
    EXPECT_OK(schedule(&w, "tick", "mail", "@every 1m"));
    clock_advance_ms(&w, MINUTE_MS);
    for (int i = 0; i < THREADS; i++) {
        waiters[i] = (struct waiter){.store = w.store};
        EXPECT_EQ(pthread_create(&waiters[i].thread, NULL, i ? wait_for_job : keep_up, &waiters[i]),
                  0);
    }
    for (int i = 0; i < THREADS; i++) {
        while (test_thread_sleeps(waiters[i].thread))
            clock_advance_ms(&w, MINUTE_MS / 4);
        EXPECT_EQ(pthread_join(waiters[i].thread, NULL), 0);
    }
    const lh_jobs *jobs = jobs_where(&w, (lh_job_filter){.queue = "mail"});
    EXPECT(jobs->n >= 1);
    for (size_t i = 1; i < jobs->n; i++)
        EXPECT(jobs->job[i].run_at > jobs->job[i - 1].run_at);
    for (int i = 0; i < THREADS; i++)
        lh_jobs_free(waiters[i].jobs);
    world_close(&w);
}

SPEC(a_process_that_dies_while_it_runs_a_schedule_leaves_it_to_the_next)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "@every 1m"));
    clock_advance_ms(&w, MINUTE_MS);
    pid_t pid = world_fork(&w);
    if (pid == 0) {
        snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "schedule_tick:inside");
        lh_store *own = world_handle((lh_open_opts){0});
        (void)lh_maintain(own, NULL, NULL);
        test_child_done();
    }
    EXPECT_EQ(test_wait(pid).sig, 9);
    EXPECT_EQ(jobs_in(&w, "mail"), 0);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    EXPECT_EQ(jobs_in(&w, "mail"), 1);
    world_close(&w);
}

/* ---- what was missed ---- */

SPEC(after_downtime_one_job_replaces_all_missed_instants)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "*/5 * * * *"));
    clock_advance_ms(&w, HOUR_MS + 2 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    EXPECT_EQ(job_of(&w, 1).run_at, WORLD_START_MS + HOUR_MS);
    lh_event e = last_event(&w, "schedule.missed");
    EXPECT_STR(e.data,
               "{\"schedule\":\"tick\",\"missed\":12,\"more\":false,\"caught_up\":1,"
               "\"from\":\"2026-01-15T10:35:00.000Z\",\"to\":\"2026-01-15T11:30:00.000Z\"}");
    EXPECT_STR(e.reason, "schedule tick: 12 runs missed from 2026-01-15T10:35:00.000Z to "
                         "2026-01-15T11:30:00.000Z, 1 caught up with");
    EXPECT_STR(e.queue, "mail");
    EXPECT_EQ(schedule_of(&w, "tick").next_at, WORLD_START_MS + 65 * MINUTE_MS);
    world_close(&w);
}

SPEC(an_instant_on_time_also_replaces_the_missed_ones)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "*/5 * * * *"));
    clock_advance_ms(&w, HOUR_MS + 59999);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    lh_event e = last_event(&w, "schedule.missed");
    EXPECT_CONTAINS(e.data, "\"missed\":11,\"more\":false,\"caught_up\":0,");
    EXPECT_CONTAINS(e.data, "\"to\":\"2026-01-15T11:25:00.000Z\"");
    world_close(&w);
}

SPEC(a_single_late_instant_is_recorded_and_enqueued)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "0 11 * * *"));
    clock_advance_ms(&w, 30 * MINUTE_MS + 60000);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    EXPECT_CONTAINS(last_event(&w, "schedule.missed").reason, "1 run missed");
    world_close(&w);
}

SPEC(with_catch_up_none_missed_instants_enqueue_nothing)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "*/5 * * * *", .catch_up = LH_CATCH_UP_NONE));
    clock_advance_ms(&w, HOUR_MS + 2 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    EXPECT_EQ(jobs_in(&w, "mail"), 0);
    EXPECT_CONTAINS(last_event(&w, "schedule.missed").data,
                    "\"missed\":12,\"more\":false,\"caught_up\":0,");
    EXPECT_EQ(schedule_of(&w, "tick").last_at, 0);
    clock_advance_ms(&w, 3 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    EXPECT_EQ(events_named(&w, "schedule.missed"), 1);
    world_close(&w);
}

SPEC(with_catch_up_all_each_missed_instant_enqueues_a_job)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "@every 1m", .catch_up = LH_CATCH_UP_ALL));
    clock_advance_ms(&w, 1203 * MINUTE_MS + 1);
    EXPECT_EQ(upkeep(&w).enqueued, 1203);
    EXPECT_EQ(jobs_in(&w, "mail"), 1203);
    for (int64_t id = 1; id <= 1203; id += 100)
        EXPECT_EQ(job_of(&w, id).run_at, WORLD_START_MS + id * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    world_close(&w);
}

/* A clock that is off by years is probably wrong. */
SPEC(with_catch_up_all_more_than_a_hundred_thousand_instants_enqueue_one_job)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "* * * * *", .catch_up = LH_CATCH_UP_ALL));
    EXPECT_OK(schedule(&w, "tock", "mail", "@every 1s", .catch_up = LH_CATCH_UP_ALL));
    clock_advance_ms(&w, 400 * DAY_MS + 90000);
    EXPECT_EQ(upkeep(&w).enqueued, 2);
    EXPECT_EQ(schedule_of(&w, "tick").last_at, WORLD_START_MS + 400 * DAY_MS + MINUTE_MS);
    EXPECT_EQ(schedule_of(&w, "tock").last_at, WORLD_START_MS + 400 * DAY_MS + 90000);
    world_close(&w);
}

/* ---- clocks ---- */

SPEC(a_clock_that_is_set_back_enqueues_no_instant_twice)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "*/10 * * * *"));
    clock_advance_ms(&w, 10 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    set_clock_by(-HOUR_MS);
    for (int i = 0; i < 6; i++) { /* the hour that the clock repeats */
        EXPECT_EQ(upkeep(&w).enqueued, 0);
        clock_advance_ms(&w, 10 * MINUTE_MS);
    }
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    clock_advance_ms(&w, 10 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    EXPECT_EQ(schedule_of(&w, "tick").last_at, WORLD_START_MS + 20 * MINUTE_MS);
    EXPECT_EQ(events_named(&w, "schedule.missed"), 0);
    world_close(&w);
}

SPEC(a_clock_that_is_set_forward_counts_as_downtime)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "*/10 * * * *"));
    set_clock_by(HOUR_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    EXPECT_CONTAINS(last_event(&w, "schedule.missed").data, "\"missed\":5,");
    world_close(&w);
}

SPEC(a_clock_that_was_wrong_by_years_does_not_stop_a_schedule)
{
    struct world w = world_open();
    set_clock_by(3650 * DAY_MS);
    EXPECT_OK(schedule(&w, "tick", "mail", "*/10 * * * *"));
    EXPECT_OK(schedule(&w, "tock", "mail", "@every 10m"));
    clock_advance_ms(&w, 10 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 2);
    set_clock_by(-3650 * DAY_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    EXPECT_EQ(schedule_of(&w, "tick").next_at, WORLD_START_MS + 20 * MINUTE_MS);
    clock_advance_ms(&w, 10 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 2);
    world_close(&w);
}

SPEC(a_reboot_enqueues_no_instant_twice)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "*/10 * * * *"));
    clock_advance_ms(&w, 10 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    lh_close(w.store);
    snprintf(lhi_control()->boot, sizeof lhi_control()->boot, "another-boot");
    w.store = world_handle((lh_open_opts){.startup = true});
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    clock_advance_ms(&w, 10 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    world_close(&w);
}

/* ---- keys ---- */

SPEC(while_a_job_with_the_key_lives_instants_are_skipped_and_recorded)
{
    struct world w = world_open();
    lh_job job;
    EXPECT_OK(schedule(&w, "tick", "mail", "@every 1m", .job = {.key = "one"}));
    clock_advance_ms(&w, MINUTE_MS);
    EXPECT_OK(claim_one(&w, "mail", &job, .lease_ms = HOUR_MS));
    clock_advance_ms(&w, MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    EXPECT_EQ(jobs_in(&w, "mail"), 1);
    lh_event e = last_event(&w, "schedule.skipped");
    EXPECT_EQ(e.job, job.id);
    EXPECT_STR(
        e.reason,
        "schedule tick: run of 2026-01-15T10:32:00.000Z skipped, job 1 with its key is running");
    EXPECT_STR(e.data, "{\"schedule\":\"tick\",\"instant\":\"2026-01-15T10:32:00.000Z\"}");
    EXPECT_EQ(schedule_of(&w, "tick").last_at, WORLD_START_MS + MINUTE_MS);
    EXPECT_OK(complete(&w, &job));
    EXPECT_EQ(upkeep(&w).enqueued, 0); /* that instant was already enqueued */
    clock_advance_ms(&w, MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    world_close(&w);
}

/* ---- set, replaced, removed ---- */

SPEC(setting_the_same_schedule_repeatedly_does_not_delay_it)
{
    struct world w = world_open();
    for (int i = 0; i < 10; i++) {
        EXPECT_OK(schedule(&w, "tick", "mail", "@every 5m"));
        clock_advance_ms(&w, MINUTE_MS);
    }
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    EXPECT_OK(schedule(&w, "tick", "mail", "@every 5m"));
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    EXPECT_EQ(schedules(&w)->n, 1);
    EXPECT_EQ(schedule_of(&w, "tick").last_job, 1);
    EXPECT_EQ(schedule_of(&w, "tick").created_at, WORLD_START_MS);
    world_close(&w);
}

SPEC(a_schedule_that_is_replaced_enqueues_the_new_job_at_the_new_times)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "*/10 * * * *", .job = {.kind = "old"}));
    EXPECT_OK(schedule(&w, "tick", "mail", "*/15 * * * *", .job = {.kind = "new"}));
    clock_advance_ms(&w, 10 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    clock_advance_ms(&w, 5 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    EXPECT_STR(job_of(&w, 1).kind, "new");
    world_close(&w);
}

SPEC(an_instant_that_was_enqueued_is_not_enqueued_again_for_a_new_line)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "*/10 * * * *"));
    clock_advance_ms(&w, 10 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    EXPECT_OK(schedule(&w, "tick", "mail", "* * * * *"));
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    set_clock_by(-5 * MINUTE_MS);
    EXPECT_OK(schedule(&w, "tick", "mail", "*/2 * * * *"));
    clock_advance_ms(&w, 5 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    clock_advance_ms(&w, 2 * MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    world_close(&w);
}

SPEC(a_schedule_that_is_removed_enqueues_nothing_more)
{
    struct world w = world_open();
    EXPECT_OK(schedule(&w, "tick", "mail", "@every 1m"));
    clock_advance_ms(&w, MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 1);
    EXPECT_OK(lh_schedule_remove(w.store, "tick"));
    EXPECT_STATUS(lh_schedule_remove(w.store, "tick"), LH_ENOTFOUND);
    EXPECT_CONTAINS(lh_errmsg(w.store), "there is no schedule \"tick\"");
    clock_advance_ms(&w, MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 0);
    EXPECT_EQ(schedules(&w)->n, 0);
    EXPECT_EQ(jobs_in(&w, "mail"), 1);
    EXPECT_STR(story_of(&w, 0), "schedule.set schedule.removed");
    world_close(&w);
}

/* ---- what is refused ---- */

static void expect_refused(struct world *w, lh_schedule s, int status, const char *says)
{
    int64_t before = changes(w);
    EXPECT_STATUS(lh_schedule_set(w->store, &s), status);
    EXPECT_CONTAINS(lh_errmsg(w->store), says);
    EXPECT_EQ(changes(w), before);
    EXPECT_EQ(schedules(w)->n, 0);
}

SPEC(an_invalid_schedule_is_refused_and_nothing_is_written)
{
    struct world w = world_open();
    const lh_schedule good = {.name = "tick", .queue = "mail", .cron = "* * * * *"};
    lh_schedule s = good;
    s.name = "no name";
    expect_refused(&w, s, LH_EINVAL, "schedule \"no name\" is not a name");
    s = good;
    s.name = NULL;
    expect_refused(&w, s, LH_EINVAL, "schedule is missing");
    s = good;
    s.queue = "a queue";
    expect_refused(&w, s, LH_EINVAL, "queue \"a queue\" is not a name");
    s = good;
    s.cron = NULL;
    expect_refused(&w, s, LH_EINVAL, "schedule \"tick\" does not say when");
    s.cron = "61 * * * *";
    expect_refused(&w, s, LH_EINVAL, "minute \"61\" of the schedule");
    s.cron = "0 0 30 2 *";
    expect_refused(&w, s, LH_EINVAL, "schedule \"0 0 30 2 *\" never fires");
    s.cron = "@every 1ms";
    expect_refused(&w, s, LH_EINVAL, "@every \"1ms\"");
    s = good;
    s.zone = "Mars/Olympus";
    expect_refused(&w, s, LH_EINVAL, "time zone \"Mars/Olympus\" is unknown");
    s = good;
    s.catch_up = (lh_catch_up)3;
    expect_refused(&w, s, LH_EINVAL, "catch-up is 3: 0 to 2 is allowed");
    s = good;
    s.job.delay_ms = 5;
    expect_refused(&w, s, LH_EINVAL, "must not have a delay");
    s = good;
    s.job.priority = 40000;
    expect_refused(&w, s, LH_EINVAL, "priority is 40000");
    s = good;
    s.job.payload = "x";
    s.job.payload_len = 2 << 20;
    expect_refused(&w, s, LH_ETOOBIG, "payload of 2097152 bytes is too large");
    EXPECT_STATUS(lh_schedule_set(w.store, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_schedule_list(w.store, NULL), LH_EMISUSE);
    EXPECT_STATUS(lh_schedule_remove(w.store, ""), LH_EINVAL);
    lh_schedules_free(NULL);
    world_close(&w);
}

SPEC(the_next_instant_can_be_asked_for_without_a_store)
{
    char why[300] = "";
    int64_t next = 0;
    EXPECT_OK(lh_schedule_next("0 12 * * *", "Asia/Tokyo", WORLD_START_MS, &next, why, sizeof why));
    EXPECT_EQ(next, WORLD_START_MS + 16 * HOUR_MS + 30 * MINUTE_MS);
    EXPECT_STATUS(lh_schedule_next("0 24 * * *", NULL, 0, &next, why, sizeof why), LH_EINVAL);
    EXPECT_CONTAINS(why, "hour \"24\"");
    EXPECT_STATUS(lh_schedule_next("0 0 31 6 *", NULL, 0, &next, NULL, 0), LH_EINVAL);
    EXPECT_STATUS(lh_schedule_next(NULL, NULL, 0, &next, NULL, 0), LH_EMISUSE);
    EXPECT_STATUS(lh_schedule_next("@daily", NULL, -5, &next, NULL, 0), LH_EINVAL);
    EXPECT_EQ(next, WORLD_START_MS + 16 * HOUR_MS + 30 * MINUTE_MS);
}

/* ---- what fails later ---- */

SPEC(a_schedule_whose_time_zone_is_missing_waits_and_blocks_no_other)
{
    char dir[300], from[] = "/usr/share/zoneinfo/Europe/Berlin", to[400], moved[400];
    struct world w = world_open();
    snprintf(dir, sizeof dir, "%s/zones", test_tmpdir());
    snprintf(to, sizeof to, "%s/Here", dir);
    snprintf(moved, sizeof moved, "%s/Gone", dir);
    EXPECT_EQ(mkdir(dir, 0700), 0);
    EXPECT_EQ(symlink(from, to), 0);
    setenv("TZDIR", dir, 1);
    EXPECT_OK(schedule(&w, "tick", "mail", "* * * * *", .zone = "Here"));
    EXPECT_OK(schedule(&w, "tock", "post", "* * * * *"));
    EXPECT_EQ(rename(to, moved), 0);
    for (int i = 1; i <= 3; i++) {
        clock_advance_ms(&w, MINUTE_MS);
        EXPECT_EQ(upkeep(&w).enqueued, 1);
        EXPECT(upkeep(&w).next_ms > 0);
    }
    EXPECT_CONTAINS(schedule_of(&w, "tick").error, "time zone \"Here\" is unknown");
    EXPECT_EQ(events_named(&w, "schedule.failed"), 1);
    EXPECT_EQ(jobs_in(&w, "mail"), 0);
    EXPECT_EQ(rename(moved, to), 0);
    clock_advance_ms(&w, MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 2);
    EXPECT_EQ(jobs_in(&w, "mail"), 1);
    EXPECT(schedule_of(&w, "tick").error == NULL);
    EXPECT_CONTAINS(last_event(&w, "schedule.missed").data, "\"missed\":3,");
    world_close(&w);
}

SPEC(a_schedule_with_a_payload_over_the_limit_is_reported_and_blocks_no_other)
{
    struct world w = world_open();
    EXPECT_OK(
        schedule(&w, "tick", "mail", "@every 1m", .job = {.payload = "hello", .payload_len = 5}));
    EXPECT_OK(schedule(&w, "tock", "post", "@every 1m"));
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_MAX_PAYLOAD, .max_payload = 4));
    for (int i = 1; i <= 2; i++) {
        clock_advance_ms(&w, MINUTE_MS);
        EXPECT_EQ(upkeep(&w).enqueued, 1);
    }
    EXPECT_EQ(jobs_in(&w, "post"), 2);
    EXPECT_EQ(events_named(&w, "schedule.failed"), 1);
    EXPECT_CONTAINS(last_event(&w, "schedule.failed").reason, "payload of 5 bytes is too large");
    EXPECT_CONTAINS(schedule_of(&w, "tick").error, "payload of 5 bytes");
    EXPECT_OK(policy(&w, "mail", NULL, .set = LH_POLICY_MAX_PAYLOAD, .max_payload = 5));
    clock_advance_ms(&w, MINUTE_MS);
    EXPECT_EQ(upkeep(&w).enqueued, 2);
    EXPECT(schedule_of(&w, "tick").error == NULL);
    world_close(&w);
}
