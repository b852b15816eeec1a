/* Leases are measured in elapsed time: steps of the wall clock, suspends, and new boots. */
#include "base/clock.h"
#include "base/hook.h"
#include "store/sqlite.h"

#include <stdio.h>
#include <unistd.h>

#define HOUR_MS INT64_C(3600000)

static int beat(lh_store *store, const lh_job *job)
{
    return lh_heartbeat(store, &(lh_beat){.job = job->id, .token = job->token}, 1, NULL, NULL);
}

static int complete(lh_store *store, const lh_job *job)
{
    return lh_complete(store, &(lh_done){.job = job->id, .token = job->token}, 1, NULL, NULL);
}

static int64_t jumps(void)
{
    sqlite3 *db = db_open("store.db");
    int64_t n = db_int(db, "SELECT count(*) FROM lh_event WHERE type = 'clock.jump'");
    sqlite3_close(db);
    return n;
}

/* ---- a step ---- */

static void expect_step_costs_nothing(int64_t step)
{
    freeze_now();
    lh_store *store = store_new();
    bool stale;
    add(store, "mail", "x");
    lh_jobs *held = take(store, "mail", "w1", 60000);
    EXPECT_OK(lh_lease_acquire(store, "sync", "a", &(lh_lease_opts){.owner = "o", .ttl_ms = 60000},
                               NULL));
    pass_ms(30000);
    step_wall_ms(step);
    /* No live lease is lost, and */
    EXPECT(take(store, "mail", "w2", 0) == NULL);
    EXPECT_EQ(state_of(store, held->job[0].id), LH_RUNNING);
    EXPECT_EQ(jumps(), 1);
    EXPECT_OK(lh_lease_is_stale(store, "sync", "a", &stale));
    EXPECT(!stale);
    pass_ms(29999);
    EXPECT(take(store, "mail", "w2", 0) == NULL);
    EXPECT_STATUS(lh_lease_acquire(store, "sync", "a", &(lh_lease_opts){.owner = "thief"}, NULL),
                  LH_EHELD);
    /* none lasts longer. */
    pass_ms(1);
    EXPECT_STATUS(beat(store, &held->job[0]), LH_ELOST);
    EXPECT_OK(lh_lease_acquire(store, "sync", "a", &(lh_lease_opts){.owner = "next"}, NULL));
    lh_jobs *next = take(store, "mail", "w2", 0);
    EXPECT(next != NULL);
    EXPECT_EQ(next->job[0].id, held->job[0].id);
    EXPECT_EQ(jumps(), 1);
    lh_jobs_free(held);
    lh_jobs_free(next);
    store_check(store);
    lh_close(store);
}

TEST(a_clock_set_forward_by_an_hour_costs_no_live_lease_and_lengthens_none)
{
    expect_step_costs_nothing(HOUR_MS);
}

TEST(a_clock_set_back_by_an_hour_costs_no_live_lease_and_lengthens_none)
{
    expect_step_costs_nothing(-HOUR_MS);
}

TEST(a_suspend_of_ten_minutes_costs_no_live_lease)
{
    /* The monotonic clock stands still while the machine sleeps; the wall clock does not. */
    expect_step_costs_nothing(INT64_C(10) * 60000);
}

static void expect_every_act_after_a_step(int64_t step)
{
    freeze_now();
    lh_store *store = store_new();
    lh_jobs *held[5];
    for (int i = 0; i < 5; i++) {
        add(store, "mail", "x");
        held[i] = take(store, "mail", "w1", 60000);
    }
    pass_ms(1000);
    step_wall_ms(step);
    EXPECT_OK(beat(store, &held[0]->job[0]));
    EXPECT_OK(complete(store, &held[0]->job[0]));
    lh_failure failure = {.job = held[1]->job[0].id, .token = held[1]->job[0].token, .error = "no"};
    EXPECT_OK(lh_fail(store, &failure, 1, NULL, NULL));
    lh_ref ref = {held[2]->job[0].id, held[2]->job[0].token};
    EXPECT_OK(lh_release(store, &ref, 1, 0, NULL, NULL));
    EXPECT_OK(lh_cancel(store, &held[3]->job[0].id, 1, NULL, NULL));
    pass_ms(60000);
    EXPECT_OK(lh_recover(store, NULL, NULL));
    EXPECT_EQ(state_of(store, held[4]->job[0].id), LH_PENDING);
    EXPECT_OK(lh_retry(store, &held[3]->job[0].id, 1, 0, NULL, NULL));
    add(store, "mail", "y");
    for (int i = 0; i < 5; i++)
        lh_jobs_free(held[i]);
    store_check(store);
    lh_close(store);
}

TEST(every_act_works_after_the_clock_was_set_back)
{
    expect_every_act_after_a_step(-HOUR_MS);
}

TEST(every_act_works_after_the_clock_was_set_forward)
{
    expect_every_act_after_a_step(HOUR_MS);
}

TEST(clock_jump_is_reported_with_its_length)
{
    freeze_now();
    lh_store *store = store_new();
    lh_events *events = NULL;
    add(store, "mail", "x");
    step_wall_ms(-HOUR_MS);
    add(store, "mail", "y");
    EXPECT_OK(lh_event_list(store, NULL, &events));
    EXPECT_EQ(events->n, 1);
    EXPECT_STR(events->event[0].type, "clock.jump");
    EXPECT_CONTAINS(events->event[0].data, "-3600000");
    lh_events_free(events);
    lh_close(store);
}

TEST(a_drift_of_less_than_a_second_is_no_jump)
{
    freeze_now();
    lh_store *store = store_new();
    add(store, "mail", "x");
    step_wall_ms(900);
    add(store, "mail", "y");
    step_wall_ms(-1800);
    add(store, "mail", "z");
    EXPECT_EQ(jumps(), 0);
    step_wall_ms(-200); /* in total 1.1 s */
    add(store, "mail", "z");
    EXPECT_EQ(jumps(), 1);
    lh_close(store);
}

TEST(every_handle_uses_the_renewed_anchor)
{
    freeze_now();
    lh_store *a = store_new(), *b = store_new();
    add(a, "mail", "x");
    add(b, "mail", "y"); /* both have read the old anchor */
    lh_jobs *held = take(a, "mail", "w1", 60000);
    step_wall_ms(HOUR_MS);
    lh_jobs *other = take(b, "mail", "w2", 60000); /* this handle notices the jump */
    EXPECT_EQ(jumps(), 1);
    EXPECT_OK(beat(a, &held->job[0]));
    EXPECT_EQ(jumps(), 1);
    EXPECT_EQ(lh_now(a), lh_now(b));
    EXPECT_OK(complete(a, &held->job[0]));
    EXPECT_OK(complete(b, &other->job[0]));
    lh_jobs_free(held);
    lh_jobs_free(other);
    lh_close(a);
    lh_close(b);
}

TEST(run_at_means_the_wall_clock)
{
    freeze_now();
    lh_store *store = store_new();
    lh_enqueued out;
    EXPECT_OK(
        lh_enqueue(store, "mail", &(lh_new_job){.run_at = lh_now(store) + HOUR_MS}, 1, NULL, &out));
    pass_ms(1000);
    EXPECT(take(store, "mail", "w1", 0) == NULL);
    step_wall_ms(HOUR_MS); /* the wall clock has reached run_at */
    lh_jobs *jobs = take(store, "mail", "w1", 0);
    EXPECT(jobs != NULL);
    lh_jobs_free(jobs);
    lh_close(store);
}

TEST(quarantine_is_measured_in_elapsed_time)
{
    freeze_now();
    lh_store *store = store_new();
    int64_t id = add(store, "mail", "x");
    lh_jobs *held = take(store, "mail", "w1", 60000);
    EXPECT_OK(lh_cancel(store, &id, 1, NULL, NULL));
    EXPECT_OK(lh_retry(store, &id, 1, 0, NULL, NULL));
    step_wall_ms(HOUR_MS);
    EXPECT(take(store, "mail", "w2", 0) == NULL);
    step_wall_ms(-2 * HOUR_MS);
    EXPECT(take(store, "mail", "w2", 0) == NULL);
    pass_ms(59999);
    EXPECT(take(store, "mail", "w2", 0) == NULL);
    pass_ms(1);
    lh_jobs *next = take(store, "mail", "w2", 0);
    EXPECT(next != NULL);
    lh_jobs_free(held);
    lh_jobs_free(next);
    store_check(store);
    lh_close(store);
}

static const char *worker_state(lh_store *store, const char *id)
{
    static char state[16];
    lh_workers *workers = NULL;
    EXPECT_OK(lh_worker_list(store, &workers));
    state[0] = '\0';
    for (size_t i = 0; i < workers->n; i++)
        if (strcmp(workers->worker[i].id, id) == 0)
            (void)snprintf(state, sizeof state, "%s", workers->worker[i].state);
    lh_workers_free(workers);
    return state;
}

TEST(the_silence_of_a_worker_is_elapsed_time)
{
    freeze_now();
    lh_store *store = store_new();
    EXPECT_OK(lh_worker_heartbeat(store, "w1", 10000, NULL, 0, NULL));
    step_wall_ms(HOUR_MS);
    add(store, "mail", "x"); /* this handle notices the jump */
    EXPECT_STR(worker_state(store, "w1"), "alive");
    step_wall_ms(-2 * HOUR_MS);
    add(store, "mail", "x");
    pass_ms(30000);
    EXPECT_STR(worker_state(store, "w1"), "dead");
    lh_close(store);
}

/* The clock is set while a process is silent. Its jobs are reclaimable after its silence limit, not
 * before and not later. */
static void expect_silence_is_elapsed_time(int64_t step)
{
    freeze_now();
    lh_store *store = store_new();
    lh_worker_opts opts = {.id = "w1", .process = true, .interval_ms = 10000};
    char id[160];
    EXPECT_OK(lh_worker_register(store, &opts, id, sizeof id));
    add(store, "mail", "x");
    lh_jobs *held = take(store, "mail", "w1", 3 * HOUR_MS);
    pass_ms(20000);
    step_wall_ms(step);
    EXPECT(take(store, "mail", "w2", 0) == NULL);
    EXPECT_OK(lh_recover(store, NULL, NULL));
    EXPECT_STR(worker_state(store, "w1"), "late");
    pass_ms(9999);
    EXPECT_OK(lh_recover(store, NULL, NULL));
    EXPECT_EQ(state_of(store, held->job[0].id), LH_RUNNING);
    EXPECT(take(store, "mail", "w2", 0) == NULL);
    pass_ms(1);
    lh_jobs *next = take(store, "mail", "w2", 0);
    EXPECT(next != NULL);
    EXPECT_STR(worker_state(store, "w1"), "dead");
    EXPECT_EQ(jumps(), 1);
    lh_jobs_free(held);
    lh_jobs_free(next);
    store_check(store);
    lh_close(store);
}

TEST(a_clock_set_forward_by_an_hour_makes_no_worker_silent)
{
    expect_silence_is_elapsed_time(HOUR_MS);
}

TEST(a_clock_set_back_by_an_hour_spares_no_silent_worker)
{
    expect_silence_is_elapsed_time(-HOUR_MS);
}

TEST(a_suspend_of_ten_minutes_makes_no_worker_silent)
{
    expect_silence_is_elapsed_time(INT64_C(10) * 60000);
}

TEST(rate_is_kept_when_the_clock_is_set)
{
    freeze_now();
    lh_store *store = store_new();
    lh_policy slow = {.set = LH_POLICY_RATE, .rate_n = 1, .rate_per_ms = 60000};
    EXPECT_OK(lh_policy_set(store, "mail", NULL, &slow, 0));
    for (int i = 0; i < 4; i++)
        add(store, "mail", "x");
    lh_jobs *jobs = take(store, "mail", "w1", 0);
    EXPECT(jobs != NULL);
    lh_jobs_free(jobs);
    step_wall_ms(HOUR_MS);
    EXPECT(take(store, "mail", "w1", 0) == NULL);
    step_wall_ms(-2 * HOUR_MS);
    EXPECT(take(store, "mail", "w1", 0) == NULL);
    pass_ms(60000);
    jobs = take(store, "mail", "w1", 0);
    EXPECT(jobs != NULL);
    lh_jobs_free(jobs);
    lh_close(store);
}

/* ---- a new boot ---- */

#define EPOCH (INT64_C(1) << 40)

TEST(a_new_boot_raises_the_epoch_and_the_tokens)
{
    freeze_now();
    lh_store *store = store_new();
    lh_store_info info;
    int64_t id = add(store, "mail", "x");
    lh_jobs *before = take(store, "mail", "w1", 1000);
    EXPECT(before->job[0].token < EPOCH);
    EXPECT_OK(
        lh_lease_acquire(store, "sync", "a", &(lh_lease_opts){.owner = "o", .ttl_ms = 1000}, NULL));
    lh_close(store);
    boot_again("11111111-2222-3333-4444-555555555555");
    store = store_new();
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_EQ(info.epoch, 1);
    pass_ms(1000);
    lh_jobs *after = take(store, "mail", "w2", 1000);
    EXPECT_EQ(after->job[0].id, id);
    EXPECT(after->job[0].token > EPOCH);
    EXPECT(after->job[0].token < 2 * EPOCH);
    EXPECT_STATUS(complete(store, &before->job[0]), LH_ELOST);
    lh_leases *leases = NULL;
    EXPECT_OK(lh_lease_acquire(store, "sync", "a", &(lh_lease_opts){.owner = "p"}, &leases));
    EXPECT(leases->lease[0].token > EPOCH);
    lh_leases_free(leases);
    lh_close(store);
    store = store_new(); /* the same boot: nothing changes */
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_EQ(info.epoch, 1);
    lh_close(store);
    boot_again("99999999-2222-3333-4444-555555555555");
    store = store_new();
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_EQ(info.epoch, 2);
    add(store, "mail", "y");
    lh_jobs *third = take(store, "mail", "w2", 1000);
    EXPECT(third->job[0].token > 2 * EPOCH);
    lh_jobs_free(before);
    lh_jobs_free(after);
    lh_jobs_free(third);
    store_check(store);
    lh_close(store);
}

TEST(new_boot_ends_leases_of_processes_and_renews_all_others)
{
    freeze_now();
    lh_store *store = store_new();
    char id[160];
    EXPECT_OK(lh_worker_register(store, &(lh_worker_opts){.id = "process", .process = true}, id,
                                 sizeof id));
    EXPECT_OK(lh_worker_heartbeat(store, "remote", 0, NULL, 0, NULL));
    int64_t a = add(store, "mail", "x");
    lh_jobs *of_process = take(store, "mail", "process", 3 * HOUR_MS);
    int64_t b = add(store, "mail", "x");
    lh_jobs *of_remote = take(store, "mail", "remote", 60000);
    int64_t c = add(store, "mail", "x");
    lh_jobs *of_nobody = take(store, "mail", "somebody", 60000);
    EXPECT_OK(lh_lease_acquire(store, "sync", "a", &(lh_lease_opts){.owner = "o", .ttl_ms = 60000},
                               NULL));
    lh_close(store);

    step_wall_ms(2 * HOUR_MS); /* the machine was off for a while */
    boot_again("11111111-2222-3333-4444-555555555555");
    store = store_new();
    lh_jobs *recovered = take(store, "mail", "w2", 0);
    EXPECT(recovered != NULL);
    EXPECT_EQ(recovered->job[0].id, a); /* its process cannot be alive */
    EXPECT_EQ(recovered->job[0].recoveries, 1);
    EXPECT(take(store, "mail", "w2", 0) == NULL);
    EXPECT_EQ(state_of(store, b), LH_RUNNING);
    EXPECT_EQ(state_of(store, c), LH_RUNNING);
    EXPECT_STR(worker_state(store, "process"), "dead");
    pass_ms(59999);
    EXPECT_OK(beat(store, &of_nobody->job[0]));
    EXPECT_STATUS(lh_lease_acquire(store, "sync", "a", &(lh_lease_opts){.owner = "p"}, NULL),
                  LH_EHELD);
    pass_ms(1);
    EXPECT_STATUS(beat(store, &of_remote->job[0]), LH_ELOST);
    EXPECT_OK(lh_lease_acquire(store, "sync", "a", &(lh_lease_opts){.owner = "p"}, NULL));
    EXPECT_OK(complete(store, &of_nobody->job[0]));
    lh_jobs_free(of_process);
    lh_jobs_free(of_remote);
    lh_jobs_free(of_nobody);
    lh_jobs_free(recovered);
    store_check(store);
    lh_close(store);
}

TEST(a_new_boot_is_not_taken_for_a_jump_of_the_clock)
{
    freeze_now();
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_jobs *held = take(store, "mail", "w1", 60000);
    lh_close(store);
    boot_again("11111111-2222-3333-4444-555555555555");
    store = store_new();
    EXPECT_EQ(jumps(), 0);
    pass_ms(59999);
    EXPECT_OK(beat(store, &held->job[0]));
    lh_jobs_free(held);
    lh_close(store);
}

/* ---- a clock that lost its time ---- */

#define NO_TIME                                                                            \
    "the clock of this machine says 1970-01-01T00:00:05.000Z: the store takes times from " \
    "1973-03-03 on: set the clock"

static void lose_the_time(void)
{
    step_wall_ms(5000 - lhi_wall_ms());
}

TEST(store_time_continues_when_the_wall_clock_is_lost)
{
    freeze_now();
    lh_store *store = store_new();
    add(store, "mail", "x");
    lh_jobs *held = take(store, "mail", "w1", 60000);
    EXPECT_OK(lh_schedule_set(
        store, &(lh_schedule){.name = "nightly", .queue = "mail", .cron = "@every 1h"}));
    lose_the_time();
    add(store, "mail", "y");
    EXPECT_OK(beat(store, &held->job[0]));
    EXPECT_OK(complete(store, &held->job[0]));
    lh_jobs_free(held);
    EXPECT_EQ(jumps(), 0);
    store_check(store);
    lh_close(store);
}

TEST(store_is_not_created_with_a_lost_clock)
{
    lh_store *store = NULL;
    freeze_now();
    lose_the_time();
    EXPECT_STATUS(lh_open("store.db", &(lh_open_opts){.create = true}, &store), LH_EFAIL);
    EXPECT_CONTAINS(lh_errmsg(store), NO_TIME);
    lh_close(store);
}

TEST(lost_clock_is_named_after_a_boot)
{
    freeze_now();
    lh_close(store_new());
    lose_the_time();
    (void)snprintf(lhi_control()->boot, sizeof lhi_control()->boot, "another-boot");
    lh_store *store = NULL;
    EXPECT_STATUS(lh_open("store.db", NULL, &store), LH_EFAIL);
    EXPECT_CONTAINS(lh_errmsg(store), NO_TIME);
    lh_close(store);
}

TEST(enqueue_on_the_users_connection_names_a_lost_clock)
{
    freeze_now();
    lh_close(store_new());
    lose_the_time();
    sqlite3 *db = db_open("store.db");
    lh_enqueued out;
    char why[200] = "";
    EXPECT_STATUS(lh_enqueue_sqlite(db, "mail", &(lh_new_job){0}, 1, &out, why, sizeof why),
                  LH_EFAIL);
    EXPECT_STR(why, NO_TIME);
    sqlite3_close(db);
}
