/*
 * A recovery is killed, and so is the one that follows it. Each batch is recovered as a whole or not at all,
 * and the next recovery finishes the work: at the end every job was recovered once, and the store is as if no
 * process had been killed.
 */
#include "session/session.h"

#include "base/hook.h"
#include "harness/harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MASS = 700, OF_DEAD = 30, LEASES = 3, LEASE_MS = 1000 }; /* more than one batch */

/* ---------------------------------------------------------------- what is to be recovered */

static void claim(lh_store *store, const char *queue, const char *worker, size_t n,
                  int64_t lease_ms)
{
    lh_jobs *jobs = NULL;
    lh_claim_opts opts = {
        .queues = &queue, .n_queues = 1, .worker = worker, .n = n, .lease_ms = lease_ms};

    EXPECT_OK(lh_claim(store, &opts, &jobs));
    EXPECT_EQ(jobs->n, n);
    lh_jobs_free(jobs);
}

/* Expired jobs, a dead worker with its jobs, a poison job, and named leases. */
static void leave_a_mess(void)
{
    static lh_new_job jobs[MASS];
    static lh_enqueued out[MASS];
    lh_policy frail = {.set = LH_POLICY_MAX_RECOVERIES, .max_recoveries = 0};
    char id[160], name[16];
    lh_store *store = NULL;

    EXPECT_OK(lh_open("mess.db", &(lh_open_opts){.create = true}, &store));
    EXPECT_OK(lh_policy_set(store, "frail", NULL, &frail, 0));
    EXPECT_OK(lh_enqueue(store, "mass", jobs, MASS, NULL, out));
    EXPECT_OK(lh_enqueue(store, "held", jobs, OF_DEAD, NULL, out));
    EXPECT_OK(lh_enqueue(store, "frail", jobs, 1, NULL, out));
    EXPECT_OK(
        lh_worker_register(store, &(lh_worker_opts){.id = "gone", .process = true}, id, sizeof id));
    claim(store, "mass", "slow", MASS, LEASE_MS);
    claim(store, "held", "gone", OF_DEAD, 60000);
    claim(store, "frail", "slow", 1, LEASE_MS);
    for (int i = 0; i < LEASES; i++) {
        (void)snprintf(name, sizeof name, "lease-%d", i);
        lh_lease_opts opts = {.owner = i == 0 ? "gone" : "other",
                              .ttl_ms = i == 0 ? 60000 : LEASE_MS};
        EXPECT_OK(lh_lease_acquire(store, "sync", name, &opts, NULL));
    }
    lh_close(store);
}

static void make_mess(void)
{
    struct lhi_control *control = lhi_control();

    control->frozen = true;
    control->frozen_wall_ms = INT64_C(1800000000000);
    control->frozen_mono_ms = 1000000;
    pid_t gone = test_fork();
    if (gone == 0) {
        leave_a_mess();
        test_child_done();
    }
    EXPECT_EQ(test_wait(gone).code, 0);
    control->wall_ms += LEASE_MS;
    control->mono_ms += LEASE_MS;
}

/* ---------------------------------------------------------------- recovering it */

static void recover_by_hand(void)
{
    lh_store *store = NULL;

    EXPECT_OK(lh_open("s.db", &(lh_open_opts){.recover_later = true}, &store));
    EXPECT_OK(lh_recover(store, NULL, NULL));
    lh_close(store);
}

static void recover_at_startup(void)
{
    lh_store *store = NULL;

    EXPECT_OK(lh_open("s.db", &(lh_open_opts){.startup = true}, &store));
    lh_close(store);
}

static void maintain(void)
{
    lh_store *store = NULL;

    EXPECT_OK(lh_open("s.db", &(lh_open_opts){.recover_later = true}, &store));
    EXPECT_OK(lh_maintain(store, NULL, NULL));
    lh_close(store);
}

/* Every claim recovers one batch. */
static void claim_all(void)
{
    const char *queue = "none";
    lh_store *store = NULL;
    lh_jobs *jobs = NULL;

    EXPECT_OK(lh_open("s.db", &(lh_open_opts){.recover_later = true}, &store));
    for (int i = 0; i < 3; i++)
        EXPECT_STATUS(lh_claim(store,
                               &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = "w"},
                               &jobs),
                      LH_EMPTY);
    lh_close(store);
}

struct death {
    const char *point;
    int64_t skip; /* … after it was passed this often */
};

/* True: it was killed there; false: it reached its end. */
static bool die(void (*recovers)(void), const struct death *death)
{
    struct lhi_control *control = lhi_control();
    pid_t child = test_fork();

    if (child == 0) {
        (void)snprintf(control->kill_at, sizeof control->kill_at, "%s", death->point);
        control->kill_skip = death->skip;
        recovers();
        test_child_done();
    }
    struct run r = test_wait(child);
    if (r.sig != SIGKILL && r.code != 0)
        FAIL("a recovery failed by itself at %s, passed %lld times", death->point,
             (long long)death->skip);
    return r.sig == SIGKILL;
}

/* ---------------------------------------------------------------- what is demanded */

/* All events of one type, job after job. */
static void expect_told_once(lh_store *store)
{
    static int recovered[MASS + OF_DEAD + 2];
    int64_t after = 0;
    int leases = 0, dead = 0;
    lh_events *events = NULL;

    memset(recovered, 0, sizeof recovered);
    do {
        lh_events_free(events);
        events = NULL;
        lh_event_filter filter = {.after = after, .limit = 1000};
        EXPECT_OK(lh_event_list(store, &filter, &events));
        for (size_t i = 0; i < events->n; i++) {
            const lh_event *event = &events->event[i];
            after = event->id;
            leases += strcmp(event->type, "lease.recovered") == 0;
            dead += strcmp(event->type, "worker.dead") == 0;
            if (strcmp(event->type, "job.recovered") == 0 ||
                strcmp(event->type, "job.poisoned") == 0)
                recovered[event->job]++;
        }
    } while (events->n > 0);
    lh_events_free(events);
    for (int job = 1; job <= MASS + OF_DEAD + 1; job++)
        EXPECT_EQ(recovered[job], 1);
    EXPECT_EQ(leases, LEASES);
    EXPECT_EQ(dead, 1);
}

/* Reports of killed recoveries have no end; together all reports list each job once. */
static void expect_reports(lh_store *store, int cut_off)
{
    lh_reports *reports = NULL;
    int without_end = 0;
    int64_t reclaimed = 0;

    EXPECT_OK(lh_report_list(store, 1000, &reports));
    for (size_t i = 0; i < reports->n; i++) {
        without_end += reports->report[i].completed_at == 0;
        reclaimed += reports->report[i].entries_reclaimed;
    }
    EXPECT(without_end <= cut_off);
    EXPECT_EQ(reports->report[0].completed_at != 0, true);
    EXPECT_EQ(reclaimed, MASS + OF_DEAD + 1);
    lh_reports_free(reports);
}

static void expect_recovered(const char *wanted, int deaths, const char *where)
{
    lh_store *store = NULL;

    EXPECT_OK(lh_open("s.db", NULL, &store)); /* the stop was unclean: it recovers first */
    session_check(store, where);
    expect_told_once(store);
    expect_reports(store, deaths);
    lh_close(store);
    char *now = session_picture("s.db", PICTURE_LOOSE);
    if (strcmp(now, wanted) != 0) {
        session_compare(where, now, wanted);
        FAIL("%s: it came out otherwise than without a death", where);
    }
    free(now);
}

static char *undisturbed(void)
{
    session_copy("mess.db", "s.db");
    recover_at_startup();
    char *picture = session_picture("s.db", PICTURE_LOOSE);
    session_remove("s.db");
    return picture;
}

static const struct death deaths[] = {
    {"job_recover:inside", 0},   {"job_recover:inside", 250}, {"job_recover:inside", 499},
    {"job_recover:inside", 500}, {"job_recover:inside", 730}, {"recovery:before_end", 0},
    {"txn:before_commit", 0},    {"txn:before_commit", 1},    {"txn:after_commit", 0},
    {"txn:after_commit", 1},     {"checkpoint:after", 0},
};

enum { N_DEATHS = sizeof deaths / sizeof deaths[0] };

/* The recovery is killed at one point, then at another one, and then it finishes. */
static void die_twice(void (*first)(void), void (*second)(void))
{
    int both = 0;
    char where[160];

    make_mess();
    char *wanted = undisturbed();
    for (size_t i = 0; i < N_DEATHS; i++) {
        const struct death *one = &deaths[i], *other = &deaths[(i * 7 + 3) % N_DEATHS];
        session_copy("mess.db", "s.db");
        int died = die(first, one);
        died += die(second, other);
        both += died == 2;
        (void)snprintf(where, sizeof where, "killed at %s (passed %lld times), then at %s (%lld)",
                       one->point, (long long)one->skip, other->point, (long long)other->skip);
        expect_recovered(wanted, died, where);
        session_remove("s.db");
    }
    (void)fprintf(stderr, "%d times both were killed\n", both);
    EXPECT(both > 0);
    free(wanted);
}

TEST_TIMEOUT(a_killed_recovery_by_an_operator_is_finished_by_the_next, 120)
{
    die_twice(recover_by_hand, recover_at_startup);
}

TEST_TIMEOUT(a_recovery_at_startup_that_is_killed_twice_is_finished_by_the_next, 120)
{
    die_twice(recover_at_startup, recover_at_startup);
}

TEST_TIMEOUT(a_recovery_by_a_killed_claim_or_maintenance_is_finished_by_the_next, 120)
{
    die_twice(maintain, claim_all);
}
