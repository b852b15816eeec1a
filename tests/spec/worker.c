/* Workers: registration, heartbeats, the limit of silence, and stopping. */
#include "world.h"

#include <unistd.h>

static void join(struct world *w, const char *id, int64_t interval_ms, int64_t multiplier)
{
    char got[160];
    EXPECT_OK(lh_worker_register(
        w->store, &(lh_worker_opts){.id = id, .interval_ms = interval_ms, .multiplier = multiplier},
        got, sizeof got));
    EXPECT_STR(got, id);
}

SPEC(a_registered_worker_is_listed_as_alive)
{
    struct world w = world_open();
    char id[160];
    EXPECT_OK(lh_worker_register(
        w.store, &(lh_worker_opts){.id = "w-1", .queues = "mail,post", .process = true}, id,
        sizeof id));
    lh_worker worker = worker_of(&w, "w-1");
    EXPECT_STR(worker.state, "alive");
    EXPECT_STR(worker.queues, "mail,post");
    EXPECT_STR(worker.version, lh_version());
    EXPECT_EQ(worker.pid, getpid());
    EXPECT(worker.host != NULL && worker.host[0] != '\0');
    EXPECT_EQ(worker.interval_ms, 30000);
    EXPECT_EQ(worker.multiplier, 3);
    EXPECT_EQ(worker.registered_at, WORLD_START_MS);
    EXPECT_EQ(worker.last_heartbeat_at, WORLD_START_MS);
    EXPECT_EQ(worker.stopped_at, 0);
    EXPECT_EQ(worker.silent_ms, 0);
    EXPECT_EQ(worker.running, 0);
    EXPECT_STR(last_event(&w, "worker.started").worker, "w-1");
    world_close(&w);
}

SPEC(a_worker_label_becomes_unique_with_each_start)
{
    struct world w = world_open();
    char first[160], second[160], third[160];
    lh_worker_opts opts = {.label = "mailer"};
    EXPECT_OK(lh_worker_register(w.store, &opts, first, sizeof first));
    EXPECT_OK(lh_worker_register(w.store, &opts, second, sizeof second));
    EXPECT(strncmp(first, "mailer", 6) == 0);
    EXPECT(strlen(first) > 6);
    EXPECT(strcmp(first, second) != 0);
    EXPECT_STR(worker_of(&w, first).label, "mailer");
    EXPECT(lh_name_ok(first));
    EXPECT_OK(lh_worker_register(w.store, NULL, third, sizeof third));
    EXPECT(lh_name_ok(third));
    world_close(&w);
}

SPEC(a_remote_worker_has_no_pid)
{
    struct world w = world_open();
    join(&w, "remote", 0, 0);
    EXPECT_EQ(worker_of(&w, "remote").pid, 0);
    world_close(&w);
}

SPEC(a_worker_is_judged_by_its_own_interval_and_multiplier)
{
    struct world w = world_open();
    lh_store_info info;
    join(&w, "quick", 1000, 2);
    join(&w, "slow", 60000, 5);
    clock_advance_ms(&w, 999);
    EXPECT_STR(worker_of(&w, "quick").state, "alive");
    clock_advance_ms(&w, 2); /* a beat was missed */
    EXPECT_STR(worker_of(&w, "quick").state, "late");
    EXPECT_EQ(worker_of(&w, "quick").silent_ms, 1001);
    EXPECT_OK(lh_store_status(w.store, &info));
    EXPECT_EQ(info.workers_alive, 1);
    EXPECT_EQ(info.workers_late, 1);
    EXPECT_EQ(info.workers_dead, 0);
    clock_advance_ms(&w, 998);
    EXPECT_STR(worker_of(&w, "quick").state, "late");
    clock_advance_ms(&w, 1); /* silent for multiplier × interval */
    EXPECT_STR(worker_of(&w, "quick").state, "dead");
    EXPECT_STR(worker_of(&w, "slow").state, "alive");
    EXPECT_OK(lh_store_status(w.store, &info));
    EXPECT_EQ(info.workers_alive, 1);
    EXPECT_EQ(info.workers_late, 0);
    EXPECT_EQ(info.workers_dead, 1);
    clock_advance_ms(&w, 298000);
    EXPECT_STR(worker_of(&w, "slow").state, "dead");
    world_close(&w);
}

SPEC(a_heartbeat_makes_a_dead_worker_alive)
{
    struct world w = world_open();
    join(&w, "w-1", 1000, 3);
    clock_advance_ms(&w, 2000);
    EXPECT_STR(worker_of(&w, "w-1").state, "late");
    EXPECT_OK(lh_worker_heartbeat(w.store, "w-1", 0, NULL, 0, NULL));
    EXPECT_STR(worker_of(&w, "w-1").state, "alive");
    EXPECT_EQ(worker_of(&w, "w-1").last_heartbeat_at, WORLD_START_MS + 2000);
    EXPECT_EQ(worker_of(&w, "w-1").interval_ms, 1000);
    EXPECT_EQ(worker_of(&w, "w-1").registered_at, WORLD_START_MS);
    world_close(&w);
}

SPEC(one_call_sends_heartbeats_for_a_worker_and_its_jobs)
{
    struct world w = world_open();
    lh_job a, b, gone;
    int status[3];
    join(&w, "w-1", 1000, 3);
    for (int i = 0; i < 3; i++)
        enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &a, .worker = "w-1", .lease_ms = 5000));
    EXPECT_OK(claim_one(&w, "mail", &b, .worker = "w-1", .lease_ms = 5000));
    EXPECT_OK(claim_one(&w, "mail", &gone, .worker = "w-1", .lease_ms = 5000));
    EXPECT_EQ(worker_of(&w, "w-1").running, 3);
    EXPECT_OK(cancel(&w, gone.id));
    EXPECT_EQ(worker_of(&w, "w-1").running, 2);
    clock_advance_ms(&w, 500);
    lh_beat beats[] = {{.job = a.id, .token = a.token, .has_progress = true, .progress = 9},
                       {.job = gone.id, .token = gone.token},
                       {.job = b.id, .token = b.token, .lease_ms = 9000}};
    EXPECT_STATUS(lh_worker_heartbeat(w.store, "w-1", 0, beats, 3, status), LH_ECANCELLED);
    EXPECT_OK(status[0]);
    EXPECT_STATUS(status[1], LH_ECANCELLED);
    EXPECT_OK(status[2]);
    EXPECT_EQ(worker_of(&w, "w-1").last_heartbeat_at, WORLD_START_MS + 500);
    EXPECT_EQ(job_of(&w, a.id).lease_until, WORLD_START_MS + 5500);
    EXPECT_EQ(job_of(&w, a.id).progress, 9);
    EXPECT_EQ(job_of(&w, b.id).lease_until, WORLD_START_MS + 9500);
    world_close(&w);
}

SPEC(a_heartbeat_of_an_unknown_worker_registers_it_as_remote)
{
    struct world w = world_open();
    EXPECT_OK(lh_worker_heartbeat(w.store, "stranger", 7000, NULL, 0, NULL));
    lh_worker worker = worker_of(&w, "stranger");
    EXPECT_STR(worker.state, "alive");
    EXPECT_EQ(worker.interval_ms, 7000);
    EXPECT_EQ(worker.pid, 0);
    EXPECT_OK(lh_worker_heartbeat(w.store, "other", 0, NULL, 0, NULL));
    EXPECT_EQ(worker_of(&w, "other").interval_ms, 30000);
    EXPECT_STR(story_of(&w, 0), "worker.started worker.started");
    EXPECT_OK(lh_worker_heartbeat(w.store, "stranger", 0, NULL, 0, NULL));
    EXPECT_EQ(worker_of(&w, "stranger").interval_ms, 7000);
    EXPECT_EQ(events_of(&w, 0)->n, 2);
    world_close(&w);
}

SPEC(a_worker_that_stops_releases_its_jobs)
{
    struct world w = world_open();
    lh_job mine, other, next;
    join(&w, "w-1", 0, 0);
    enqueue(&w, "mail", "x");
    enqueue(&w, "post", "x");
    enqueue(&w, "mail", "x");
    EXPECT_OK(claim_one(&w, "mail", &mine, .worker = "w-1"));
    EXPECT_OK(claim_one(&w, "post", &next, .worker = "w-1"));
    EXPECT_OK(claim_one(&w, "mail", &other, .worker = "w-2"));
    clock_advance_ms(&w, 10);
    EXPECT_OK(lh_worker_stop(w.store, "w-1"));
    EXPECT_STR(worker_of(&w, "w-1").state, "stopped");
    EXPECT_EQ(worker_of(&w, "w-1").stopped_at, WORLD_START_MS + 10);
    EXPECT_EQ(worker_of(&w, "w-1").running, 0);
    EXPECT_EQ(job_of(&w, mine.id).state, LH_PENDING);
    EXPECT_EQ(job_of(&w, mine.id).attempt, 0);
    EXPECT_EQ(queue_of(&w, "post").pending, 1);
    EXPECT_EQ(job_of(&w, other.id).state, LH_RUNNING);
    EXPECT_STATUS(complete(&w, &mine), LH_ELOST);
    EXPECT_OK(claim_one(&w, "mail", &next, .worker = "w-2"));
    EXPECT_EQ(next.id, mine.id);
    EXPECT_STR(story_of(&w, mine.id), "job.released");
    EXPECT_STR(last_event(&w, "worker.stopped").worker, "w-1");
    world_close(&w);
}

SPEC(a_stopped_worker_stays_stopped_however_long_it_is_silent)
{
    struct world w = world_open();
    join(&w, "w-1", 1000, 2);
    EXPECT_OK(lh_worker_stop(w.store, "w-1"));
    EXPECT_OK(lh_worker_stop(w.store, "w-1")); /* twice is harmless */
    clock_advance_ms(&w, 3600000);
    EXPECT_STR(worker_of(&w, "w-1").state, "stopped");
    EXPECT_STATUS(lh_worker_stop(w.store, "nobody"), LH_ENOTFOUND);
    EXPECT_CONTAINS(lh_errmsg(w.store), "nobody");
    world_close(&w);
}

SPEC(a_worker_that_registers_again_under_its_id_is_alive)
{
    struct world w = world_open();
    join(&w, "w-1", 1000, 2);
    EXPECT_OK(lh_worker_stop(w.store, "w-1"));
    clock_advance_ms(&w, 5000);
    join(&w, "w-1", 2000, 4);
    lh_worker worker = worker_of(&w, "w-1");
    EXPECT_STR(worker.state, "alive");
    EXPECT_EQ(worker.interval_ms, 2000);
    EXPECT_EQ(worker.multiplier, 4);
    EXPECT_EQ(worker.registered_at, WORLD_START_MS + 5000);
    EXPECT_EQ(worker.stopped_at, 0);
    world_close(&w);
}

SPEC(an_id_that_does_not_fit_its_buffer_registers_no_worker)
{
    struct world w = world_open();
    char small[4];
    lh_workers *workers = NULL;
    EXPECT_STATUS(lh_worker_register(w.store, &(lh_worker_opts){.id = "w-12"}, small, sizeof small),
                  LH_EMISUSE);
    EXPECT_OK(lh_worker_list(w.store, &workers));
    EXPECT_EQ(workers->n, 0);
    lh_workers_free(workers);
    EXPECT_OK(lh_worker_register(w.store, &(lh_worker_opts){.id = "w-1"}, small, sizeof small));
    world_close(&w);
}
