/* Recovery that only PostgreSQL has: by SQL alone, with locked or refused rows, with a bound on
 * how far back claims scan, and on a server whose clock is set. */
#include "session.h"

#include "base/hook.h"
#include "store/store.h"

#include <leasehold.h>

#include <stdio.h>
#include <string.h>

/* Jobs of the queue mail, held by w-1 with leases of one second. */
static PGconn *session_with_held(int n)
{
    PGconn *c = session_at(START_MS);

    for (int i = 0; i < n; i++)
        (void)said(c, "SELECT leasehold.enqueue('mail', 'x')");
    (void)said(c, "SELECT count(*) FROM leasehold.claim('w-1', 'mail', %d, '1 s')", n);
    return c;
}

#define STATE_OF(job) "SELECT state FROM leasehold.job WHERE id = " #job
#define CLAIM "SELECT count(*) FROM leasehold.claim('w-2', 'mail', 10, '1 h')"
#define RECLAIMED "SELECT leasehold.recover() -> 'entries_reclaimed'"

/* ---------------------------------------------------------------- by SQL alone */

TEST(a_recovery_by_sql_is_reported_dry_run_and_stored)
{
    PGconn *c = session_with_held(2);
    session_clock(c, START_MS + 1000);
    EXPECT_STR(said(c, "SELECT locks_cleaned, entries_reclaimed FROM leasehold.recovery_stats()"),
               "0 2");
    EXPECT_STR(
        said(c, "SELECT r ->> 'orphaned', r ->> 'id', r ->> 'dry_run', "
                "r -> 'recovered' -> 0 ->> 'reason' "
                "FROM leasehold.recover(dry_run => true) r"),
        "2  true RECLAIMED_TTL: Exceeded TTL (1 s) at attempt 1/3, worker w-1 last seen 1s ago");
    EXPECT_STR(said(c, STATE_OF(1)), "running");
    EXPECT_STR(said(c, "SELECT r ->> 'id', r ->> 'trigger', r ->> 'entries_reclaimed', "
                       "r -> 'recovered' -> 1 ->> 'job', r -> 'recovered' -> 1 ->> 'attempt', "
                       "r -> 'recovered' -> 1 ->> 'previous_worker', r ->> 'completed_at' "
                       "FROM leasehold.recover() r"),
               "1 manual 2 2 2 w-1 2026-01-15T10:30:01.000Z");
    EXPECT_STR(said(c, STATE_OF(2)), "pending");
    EXPECT_STR(said(c, "SELECT leasehold.recovery_report() = leasehold.recovery_report(1)"), "t");
    EXPECT_STR(said(c, "SELECT entries_reclaimed FROM leasehold.recovery_stats()"), "0");
    PQfinish(c);
}

/* Many workers may start at once, in a store with many jobs. */
TEST(a_startup_reads_no_rows_to_compare_counts_and_a_recovery_by_hand_does)
{
    static const char counted[] = "SELECT pending FROM leasehold.queue WHERE queue = 'mail'";
    PGconn *c = session_with_held(1);
    lh_store *store = NULL;
    lh_report *report = NULL;

    done(c, "SELECT leasehold.maintain_round()");
    done(c, "UPDATE leasehold.queue SET pending = 7 WHERE queue = 'mail'");
    EXPECT_OK(lh_open(test_store(), &(lh_open_opts){.startup = true}, &store));
    EXPECT_STR(said(c, counted), "7");
    EXPECT_OK(lh_recover(store, NULL, &report));
    EXPECT_EQ(report->n_inconsistencies, 1);
    EXPECT_STR(said(c, counted), "0");
    lh_report_free(report);
    lh_close(store);
    PQfinish(c);
}

TEST(a_bad_recovery_by_sql_is_refused)
{
    PGconn *c = session_at(START_MS);
    EXPECT_STR(said(c, "SELECT leasehold.recover(action => 'explode')"),
               "LH003 action is \"explode\": retry, pending or fail is allowed");
    EXPECT_CONTAINS(said(c, "SELECT leasehold.recover(queue => 'a b')"),
                    "LH003 queue \"a b\" is not a name");
    EXPECT_CONTAINS(said(c, "SELECT leasehold.recover(threshold => '-1 s')"),
                    "LH003 threshold is -1000 ms: 0 to ");
    EXPECT_STR(said(c, "SELECT leasehold.recovery_report()"),
               "LH005 there is no recovery report yet");
    EXPECT_STR(said(c, "SELECT leasehold.recovery_report(7)"),
               "LH005 there is no recovery report 7");
    PQfinish(c);
}

TEST(maintenance_by_sql_skips_queues_with_recovery_off_and_reports_only_findings)
{
    PGconn *c = session_with_held(1);
    (void)said(c, "SELECT leasehold.queue_set('mail', recovery => false)");
    (void)said(c, "SELECT leasehold.enqueue('mail', 'later', delay => '1 s')");
    session_clock(c, START_MS + 1000);
    EXPECT_STR(said(c, "SELECT leasehold.maintain()"), "");
    EXPECT_STR(said(c, STATE_OF(1)), "running");
    EXPECT_STR(said(c, STATE_OF(2)), "pending");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.report"), "0");
    EXPECT_STR(said(c, RECLAIMED), "1"); /* a recovery by an operator does take it */
    PQfinish(c);
}

TEST(a_recovery_by_sql_marks_a_silent_worker_dead_and_frees_its_jobs)
{
    PGconn *c = session_at(START_MS);
    (void)said(c, "SELECT leasehold.enqueue('mail', 'x')");
    (void)said(
        c, "INSERT INTO leasehold.worker(id, label, machine, boot, pid_ns, pid, process_start, "
           "interval_ms, multiplier, registered_at, last_heartbeat_at, silent_at) VALUES ('w-1', "
           "'w', 'm', 'b', 1, 2, 3, 1000, 3, leasehold.clock(), leasehold.clock(), "
           "leasehold.clock() + interval '3 s')");
    (void)said(c, "SELECT leasehold.claim('w-1', 'mail', 1, '1 h')");
    (void)said(c, "SELECT leasehold.lease_acquire('sync', 'a', 'w-1', '1 h')");
    session_clock(c, START_MS + 3000);
    EXPECT_STR(said(c,
                    "SELECT r ->> 'locks_cleaned', r -> 'dead_workers' -> 0, "
                    "r -> 'recovered' -> 0 ->> 'reason' FROM leasehold.recover(dry_run => true) r"),
               "1 {\"jobs\": [1], \"worker\": \"w-1\", \"last_heartbeat\": "
               "\"2026-01-15T10:30:00.000Z\"} RECLAIMED_DEAD: worker w-1 has been silent for 3s "
               "(3 × 1s), attempt 1/3, last seen 3s ago");
    EXPECT_STR(said(c, "SELECT r ->> 'locks_cleaned', r -> 'dead_workers' -> 0 ->> 'worker', "
                       "r ->> 'entries_reclaimed' FROM leasehold.recover() r"),
               "1 w-1 1");
    EXPECT_STR(said(c, "SELECT state, uncleaned FROM leasehold.worker"), "dead ");
    PQfinish(c);
}

/* ---------------------------------------------------------------- the same decision as the
 * library's */

static void expect_same_fate(PGconn *c, lh_job *job, const lh_policy *policy, enum lhi_cause cause,
                             bool unstarted)
{
    static const char *const states[] = {[LH_PENDING] = "pending", [LH_FAILED] = "failed"};
    const lh_recover_opts by_hand = {.by_age = true, .threshold_ms = 90000};
    const char *what = cause == LHI_CAUSE_DEAD ? "is gone (pid 7)" : "";
    struct lhi_fate fate;
    char wanted[800];

    lhi_decide_death(job, policy, cause == LHI_CAUSE_MANUAL ? &by_hand : NULL, cause, what,
                     unstarted, START_MS, &fate);
    (void)snprintf(wanted, sizeof wanted, "%s %s %s %lld %lld %lld %s", states[fate.state],
                   fate.action, fate.poison ? "t" : "f", (long long)fate.attempt,
                   (long long)fate.recoveries, (long long)fate.shown_attempt, fate.reason);
    EXPECT_STR(said(c,
                    "SELECT * FROM leasehold.fate(leasehold.clock(), 'w-1', %lld, "
                    "to_timestamp(%lld / 1000.0), %lld, %lld, %lld, %lld, %d, %s, %s, %s)",
                    (long long)job->lease_ms, (long long)job->last_heartbeat_at,
                    (long long)job->attempt, (long long)job->max_attempts,
                    (long long)job->recoveries, (long long)policy->max_recoveries,
                    (int)policy->action, cause == LHI_CAUSE_DEAD ? "'is gone (pid 7)'" : "NULL",
                    cause == LHI_CAUSE_MANUAL ? "90000" : "NULL", unstarted ? "true" : "false"),
               wanted);
}

TEST(the_database_and_the_library_decide_alike_about_a_death)
{
    static const int64_t leases[] = {1, 1500, 2000, 1800000}, ages[] = {0, 999, 61000, 90061000};
    PGconn *c = session_at(START_MS);

    for (unsigned i = 0; i < 3 * 3 * 3 * 2 * 3 * 4; i++) {
        unsigned way = i;
        enum lhi_cause cause = (enum lhi_cause)(way % 3);
        lh_policy policy = {.action = (lh_action)(1 + (way /= 3) % 3), .max_recoveries = 2};
        lh_job job = {.worker = "w-1", .attempt = 2, .recoveries = 1};
        job.max_attempts = (int64_t[]){-1, 2, 3}[(way /= 3) % 3];
        bool unstarted = (way /= 3) % 2;
        policy.max_recoveries = (int64_t[]){-1, 1, 2}[(way /= 2) % 3];
        job.lease_ms = leases[(way /= 3) % 4];
        job.last_heartbeat_at = START_MS - ages[way % 4];
        job.started_at = START_MS - 100000000;
        expect_same_fate(c, &job, &policy, cause, unstarted);
    }
    PQfinish(c);
}

/* ---------------------------------------------------------------- locked rows */

TEST(a_locked_job_is_recovered_in_the_next_round)
{
    PGconn *c = session_with_held(3), *other = session_at(START_MS + 1000);
    session_clock(c, START_MS + 1000);
    (void)said(other, "BEGIN");
    EXPECT_STR(said(other, "SELECT state FROM leasehold.job WHERE id = 2 FOR UPDATE"), "running");
    EXPECT_STR(said(c, RECLAIMED), "2");
    EXPECT_STR(said(c, STATE_OF(2)), "running");
    (void)said(other, "ROLLBACK");
    EXPECT_STR(said(c, RECLAIMED), "1");
    PQfinish(other);
    PQfinish(c);
}

static void make_stubborn(PGconn *c)
{
    (void)said(c,
               "CREATE FUNCTION public.stubborn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
               "IF old.id = 2 AND new.state <> 'running' THEN RAISE 'it will not let go'; END IF; "
               "RETURN new; END $$");
    (void)said(c, "CREATE TRIGGER stubborn BEFORE UPDATE ON leasehold.job FOR EACH ROW "
                  "EXECUTE FUNCTION public.stubborn()");
}

TEST(a_job_that_cannot_be_recovered_is_reported_once_and_the_others_are_recovered)
{
    PGconn *c = session_with_held(3);
    make_stubborn(c);
    session_clock(c, START_MS + 1000);
    EXPECT_STR(said(c, CLAIM), "2");
    EXPECT_STR(said(c, STATE_OF(2)), "running");
    EXPECT_STR(said(c, "SELECT orphaned, reclaimed, failures FROM leasehold.report"), "3 2 1");
    EXPECT_STR(said(c, "SELECT leasehold.recovery_report() -> 'recovered' -> 1 ->> 'error'"),
               "it will not let go");
    EXPECT_STR(said(c, "SELECT degraded FROM leasehold.meta"),
               "1 recovery step failed, see recovery report 1");
    EXPECT_STR(said(c, CLAIM), "0");
    EXPECT_STR(said(c, "SELECT leasehold.maintain()"), "");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.report"), "1");
    (void)said(c, "DROP TRIGGER stubborn ON leasehold.job");
    EXPECT_STR(said(c, "SELECT leasehold.maintain() -> 'entries_reclaimed'"), "1");
    EXPECT_STR(said(c, "SELECT degraded FROM leasehold.meta"), "");
    PQfinish(c);
}

/* ---------------------------------------------------------------- steps that are refused */

enum { MOST_LOG = 2000 };

static void keep_lines(void *arg, const lh_log_entry *entry)
{
    char *log = arg;
    size_t used = strlen(log);

    if (entry->level <= LH_LOG_INFO)
        (void)snprintf(log + used, MOST_LOG - used, "%s\n", entry->line);
}

/* A job and a named lease that have expired, and a trigger that refuses a write. */
static lh_store *store_with_a_refused_step(PGconn **c, const char *write, const char *when,
                                           char *log)
{
    lh_store *store = NULL;

    *c = session_with_held(1);
    (void)said(*c, "SELECT leasehold.lease_acquire('sync', 'all', 'w-1', '1 s')");
    (void)said(*c, "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                   "RAISE 'the auditor says no' USING ERRCODE = 'check_violation'; END $$");
    EXPECT_STR(said(*c,
                    "CREATE TRIGGER refuse BEFORE %s FOR EACH ROW WHEN (%s) "
                    "EXECUTE FUNCTION public.refuse()",
                    write, when),
               "");
    lhi_control()->frozen = true;
    lhi_control()->frozen_wall_ms = START_MS + 1000;
    EXPECT_OK(lh_open(test_store(),
                      &(lh_open_opts){.recover_later = true, .log = keep_lines, .log_arg = log},
                      &store));
    return store;
}

static void expect_refused(const char *write, const char *when, const char *message)
{
    char log[MOST_LOG] = "";
    PGconn *c;
    lh_store *store = store_with_a_refused_step(&c, write, when, log);
    lh_report *report = NULL;

    EXPECT_STATUS(lh_recover(store, NULL, &report), LH_EFAIL);
    EXPECT_STR(lh_errmsg(store), message);
    EXPECT_STR(log, "");
    lh_close(store);
    PQfinish(c);
}

TEST(a_recovery_report_that_cannot_be_written_is_named_in_the_error)
{
    expect_refused("INSERT ON leasehold.report", "true",
                   "recovery could not begin its report: the auditor says no");
}

TEST(a_failure_event_that_cannot_be_written_is_named_in_the_error)
{
    expect_refused("INSERT ON leasehold.event", "NEW.type IN ('job.recovered', 'recovery.failed')",
                   "recovery could not record that job 1 cannot be recovered: the auditor says no");
}

TEST(a_report_that_cannot_be_ended_is_not_reported_as_bad_input)
{
    expect_refused("UPDATE ON leasehold.report", "true",
                   "recovery was refused by the database: the auditor says no");
}

TEST(a_recovery_that_was_rolled_back_is_not_logged)
{
    char log[MOST_LOG] = "";
    PGconn *c;
    lh_store *store = store_with_a_refused_step(&c, "INSERT ON leasehold.event",
                                                "NEW.type = 'job.recovered'", log);
    lh_report *report = NULL;

    EXPECT_OK(lh_recover(store, NULL, &report));
    EXPECT_EQ(report->entries_reclaimed, 0);
    EXPECT_EQ(report->failed_recoveries, 1);
    EXPECT_EQ(report->locks_cleaned, 1);
    lh_report_free(report);
    EXPECT_STR(said(c, STATE_OF(1)), "running");
    EXPECT_STR(log, "job 1 cannot be recovered: the auditor says no\n"
                    "lease sync/all of w-1 was freed: RECLAIMED_TTL: lease had expired\n"
                    "recovery (manual) done: 0 jobs taken back, 1 leases freed, 0 workers dead\n");
    lh_close(store);
    PQfinish(c);
}

TEST(lease_that_cannot_be_freed_does_not_stop_the_recovery_of_jobs)
{
    char log[MOST_LOG] = "";
    PGconn *c;
    lh_store *store = store_with_a_refused_step(&c, "UPDATE OR DELETE ON leasehold.lease",
                                                "OLD.owner IS NOT NULL", log);
    lh_report *report = NULL;

    session_clock(c, START_MS + 1000);
    EXPECT_STR(said(c, CLAIM), "1");
    EXPECT_STR(said(c, "SELECT count(*), sum(failures) FROM leasehold.report"), "1 1");
    EXPECT_STR(said(c, CLAIM), "0"); /* known: no second report */
    EXPECT_STR(said(c, "SELECT count(*), sum(failures) FROM leasehold.report"), "1 1");
    EXPECT_OK(lh_recover(store, NULL, &report));
    EXPECT_EQ(report->n_recovered, 1);
    EXPECT_EQ(report->recovered[0].job, 0);
    EXPECT_STR(report->recovered[0].error, "lease sync/all cannot be freed: the auditor says no");
    EXPECT_STR(said(c, "SELECT leasehold.recovery_report() -> 'recovered' -> 0 ->> 'error'"),
               report->recovered[0].error);
    lh_report_free(report);
    (void)said(c, "DROP TRIGGER refuse ON leasehold.lease");
    EXPECT_STR(said(c, "SELECT leasehold.maintain() -> 'locks_cleaned'"), "1");
    EXPECT_STR(said(c, "SELECT degraded FROM leasehold.meta"), "");
    lh_close(store);
    PQfinish(c);
}

TEST(a_failure_that_repeats_is_reported_once_and_a_new_one_beside_it_too)
{
    char log[MOST_LOG] = "";
    PGconn *c;
    lh_store *store = store_with_a_refused_step(&c, "UPDATE OR DELETE ON leasehold.lease",
                                                "OLD.owner IS NOT NULL", log);

    session_clock(c, START_MS + 1000);
    for (int i = 0; i < 3; i++)
        (void)said(c, "SELECT leasehold.maintain()");
    EXPECT_STR(said(c, "SELECT count(*), sum(failures) FROM leasehold.report"), "1 1");
    EXPECT_STR(said(c,
                    "INSERT INTO leasehold.lease(scope, name, owner, token, ttl_ms, acquired_at, "
                    "expires_at) SELECT 'sync', 'other', 'w-2', 1, 1, n - interval '1 s', n "
                    "FROM leasehold.clock() n"),
               "");
    for (int i = 0; i < 3; i++)
        (void)said(c, "SELECT leasehold.maintain()");
    EXPECT_STR(said(c, "SELECT count(*), sum(failures) FROM leasehold.report"), "2 2");
    EXPECT_STR(said(c, "SELECT reason FROM leasehold.event WHERE type = 'recovery.failed' "
                       "ORDER BY id DESC LIMIT 1"),
               "lease sync/other cannot be freed: the auditor says no");
    EXPECT_STR(
        said(c, "SELECT starts_with(degraded, '2 recovery steps failed, ') FROM leasehold.meta"),
        "t");
    (void)said(c, "DROP TRIGGER refuse ON leasehold.lease");
    EXPECT_STR(said(c, "SELECT leasehold.maintain() -> 'locks_cleaned'"), "2");
    EXPECT_STR(said(c, "SELECT degraded FROM leasehold.meta"), "");
    lh_close(store);
    PQfinish(c);
}

/* 600 leases, more than a batch, that no recovery can free; they expire before all others. */
static lh_store *store_with_600_refused_leases(PGconn **c, char *log)
{
    lh_store *store = store_with_a_refused_step(c, "UPDATE OR DELETE ON leasehold.lease",
                                                "OLD.scope = 'refused'", log);
    EXPECT_STR(said(*c,
                    "INSERT INTO leasehold.lease(scope, name, owner, token, ttl_ms, acquired_at, "
                    "expires_at) SELECT 'refused', i, 'w-1', 1, 1, n - interval '1 s', n "
                    "FROM leasehold.clock() n, generate_series(1, 600) i"),
               "");
    return store;
}

TEST(expired_leases_behind_a_batch_of_refused_ones_are_freed)
{
    char log[MOST_LOG] = "";
    PGconn *c;
    lh_store *store = store_with_600_refused_leases(&c, log);
    lh_report *report = NULL;

    EXPECT_OK(lh_recover(store, NULL, &report));
    EXPECT_EQ(report->failed_recoveries, 600);
    EXPECT_EQ(report->locks_cleaned, 1);
    lh_report_free(report);
    lh_close(store);
    PQfinish(c);
}

TEST(a_claim_frees_expired_leases_behind_a_batch_of_refused_ones)
{
    char log[MOST_LOG] = "";
    PGconn *c;
    lh_store *store = store_with_600_refused_leases(&c, log);

    session_clock(c, START_MS + 1000);
    EXPECT_STR(said(c, CLAIM), "1");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.lease WHERE owner IS NOT NULL "
                       "AND scope <> 'refused'"),
               "0");
    lh_close(store);
    PQfinish(c);
}

TEST(worker_that_cannot_be_marked_dead_does_not_stop_the_recovery_of_jobs)
{
    char log[MOST_LOG] = "";
    PGconn *c;
    lh_store *store =
        store_with_a_refused_step(&c, "INSERT ON leasehold.event", "NEW.type = 'worker.dead'", log);

    session_clock(c, START_MS);
    (void)said(c, "SELECT leasehold.worker_heartbeat('w-9', every => '1 s')");
    session_clock(c, START_MS + 60000);
    EXPECT_STR(said(c, CLAIM), "1");
    EXPECT_STR(said(c, "SELECT reason FROM leasehold.event WHERE type = 'recovery.failed'"),
               "worker w-9 cannot be marked dead: the auditor says no");
    lh_close(store);
    PQfinish(c);
}

TEST(a_worker_that_cannot_be_marked_late_does_not_hold_back_jobs)
{
    char log[MOST_LOG] = "";
    PGconn *c;
    lh_store *store =
        store_with_a_refused_step(&c, "INSERT ON leasehold.event", "NEW.type = 'worker.late'", log);
    lh_report *report = NULL;

    (void)said(c, "SELECT leasehold.worker_heartbeat('w-9', every => '1 s')");
    lhi_control()->frozen_wall_ms = START_MS + 2500;
    EXPECT_OK(lh_recover(store, NULL, &report));
    EXPECT_EQ(report->entries_reclaimed, 1);
    EXPECT_EQ(report->failed_recoveries, 1);
    EXPECT_STR(report->recovered[0].error, "worker w-9 cannot be marked late: the auditor says no");
    lh_report_free(report);
    EXPECT_STR(said(c, "SELECT state FROM leasehold.worker WHERE id = 'w-9'"), "alive");
    EXPECT(strstr(log, "is late") == NULL); /* what was undone is not logged */
    lh_close(store);
    PQfinish(c);
}

TEST(a_worker_that_cannot_be_marked_clean_does_not_hold_back_jobs)
{
    char log[MOST_LOG] = "";
    PGconn *c;
    lh_store *store = store_with_a_refused_step(
        &c, "INSERT ON leasehold.event", "NEW.type = 'worker.cleaned' AND NEW.worker = 'w-8'", log);
    lh_report *report = NULL;

    (void)said(c, "INSERT INTO leasehold.worker(id, label, pid, interval_ms, multiplier, "
                  "registered_at, last_heartbeat_at, state, uncleaned) "
                  "SELECT w, w, 1, 1000, 3, n, n, 'dead', 'is gone' "
                  "FROM leasehold.clock() n, unnest(ARRAY['w-8', 'w-9']) w");
    EXPECT_OK(lh_recover(store, NULL, &report));
    EXPECT_EQ(report->entries_reclaimed, 1);
    EXPECT_EQ(report->failed_recoveries, 1);
    lh_report_free(report);
    EXPECT_STR(said(c, "SELECT reason FROM leasehold.event WHERE type = 'recovery.failed'"),
               "worker w-8 cannot be marked as cleaned up: the auditor says no");
    EXPECT_STR(said(c, "SELECT string_agg(id, ' ') FROM leasehold.worker "
                       "WHERE uncleaned IS NOT NULL"),
               "w-8");
    EXPECT(strstr(log, "worker w-8 was cleaned") == NULL);
    EXPECT_CONTAINS(log, "worker w-9 is cleaned up");
    lh_close(store);
    PQfinish(c);
}

/* ---------------------------------------------------------------- how far back claims scan */

/* The scan bound relative to START_MS; "" from the beginning. A claim saves it once a second; it
 * is one second before the previous save. */
static const char *swept(PGconn *c)
{
    return said(c, "SELECT (extract(epoch FROM s.since) * 1000 - 1768473000000)::bigint FROM "
                   "leasehold.meta m, leasehold.read_scan_bound(m.generation, leasehold.clock()) s "
                   "WHERE s.since > '-infinity'");
}

/* Two claims that find nothing, two seconds apart. */
static void sweep_at(PGconn *c, int64_t now_ms)
{
    session_clock(c, now_ms - 2000);
    (void)said(c, "SELECT count(*) FROM leasehold.claim('sweeper', 'nothing')");
    session_clock(c, now_ms);
    (void)said(c, "SELECT count(*) FROM leasehold.claim('sweeper', 'nothing')");
}

TEST(claims_scan_back_no_further_than_necessary)
{
    PGconn *c = session_at(START_MS);
    EXPECT_STR(said(c, CLAIM), "0");
    EXPECT_STR(swept(c), "");
    session_clock(c, START_MS + 2000);
    EXPECT_STR(said(c, CLAIM), "0");
    EXPECT_STR(swept(c), "-1000");
    session_clock(c, START_MS + 2900);
    EXPECT_STR(said(c, CLAIM), "0");
    EXPECT_STR(swept(c), "-1000"); /* not at every claim */
    session_clock(c, START_MS + 10000);
    EXPECT_STR(said(c, CLAIM), "0");
    EXPECT_STR(swept(c), "1000");
    session_clock(c, START_MS + 5000); /* the clock was set back */
    EXPECT_STR(swept(c), "");
    (void)said(c, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    EXPECT_STR(said(c, CLAIM), "0"); /* its snapshot may be older */
    (void)said(c, "COMMIT");
    session_clock(c, START_MS + 10000);
    EXPECT_STR(swept(c), "1000");
    PQfinish(c);
}

TEST(jobs_with_recovery_off_are_skipped_and_found_when_it_is_on_again)
{
    PGconn *c = session_with_held(1);
    (void)said(c, "SELECT leasehold.queue_set('mail', recovery => false)");
    sweep_at(c, START_MS + 60000);
    EXPECT_STR(swept(c), "57000");
    (void)said(c, "SELECT leasehold.queue_set('mail', recovery => true)");
    EXPECT_STR(said(c, CLAIM), "1");
    PQfinish(c);
}

/* What a transaction has seen counts for others only once it has committed. */
static void expect_found_after_rollback(const char *act)
{
    PGconn *c = session_with_held(1);
    for (int i = 0; i < 3; i++) {
        session_clock(c, START_MS + 60000 + 3000 * i);
        done(c, "BEGIN");
        done(c, act);
        done(c, CLAIM);
        done(c, "ROLLBACK");
    }
    EXPECT_STR(said(c, STATE_OF(1)), "running");
    EXPECT_STR(said(c, CLAIM), "1");
    PQfinish(c);
}

TEST(an_expired_job_is_found_after_a_rollback_of_its_complete)
{
    expect_found_after_rollback("SELECT leasehold.complete(1, 1)");
}

TEST(an_expired_job_is_found_after_a_rollback_of_its_next_claim)
{
    expect_found_after_rollback(CLAIM);
}

/* A claim of job 2 whose lease ends while its transaction is open, and others have claimed
 * since. */
static PGconn *late_claim(PGconn *c)
{
    PGconn *late = session_at(START_MS);
    (void)said(c, "SELECT leasehold.enqueue('mail', 'y')");
    (void)said(late, "BEGIN");
    EXPECT_STR(said(late, "SELECT count(*) FROM leasehold.claim('w-3', 'mail', 1, '2 s')"), "1");
    return late;
}

TEST(a_lease_that_expired_before_its_claim_committed_is_found_by_the_next_claim)
{
    PGconn *c = session_with_held(1), *late = late_claim(c);
    sweep_at(c, START_MS + 60000);
    sweep_at(c, START_MS + 64000);
    EXPECT_STR(swept(c), "61000");
    (void)said(late, "COMMIT");
    EXPECT_STR(said(c, "SELECT string_agg(id::text, ' ') FROM "
                       "leasehold.claim('w-2', 'mail', 10, '1 h')"),
               "1 2");
    PQfinish(late);
    PQfinish(c);
}

/* By any claim: what is pending and what is due is saved for all claims. */
TEST(a_job_that_fell_due_before_its_commit_is_found_by_the_next_claim)
{
    PGconn *c = session_at(START_MS), *late = session_at(START_MS);
    (void)said(late, "BEGIN");
    done(late, "SELECT leasehold.enqueue('mail', 'x', delay => '1 s')");
    sweep_at(c, START_MS + 60000);
    sweep_at(c, START_MS + 64000);
    (void)said(late, "COMMIT");
    EXPECT_STR(said(c, CLAIM), "1");
    PQfinish(late);
    PQfinish(c);
}

TEST(transactions_that_do_not_touch_the_store_do_not_hold_back_the_scan_bound)
{
    PGconn *c = session_at(START_MS), *other = session_at(START_MS);
    done(other, "BEGIN");
    done(other, "CREATE TEMPORARY TABLE elsewhere (a integer)");
    sweep_at(c, START_MS + 60000);
    sweep_at(c, START_MS + 64000);
    EXPECT_STR(said(c, "SELECT open FROM leasehold.scan_bound ORDER BY id DESC LIMIT 1"), "{}");
    done(other, "COMMIT");
    EXPECT_STR(swept(c), "61000");
    PQfinish(other);
    PQfinish(c);
}

TEST(old_scan_bounds_are_deleted)
{
    PGconn *c = session_at(START_MS);
    done(c,
         "INSERT INTO leasehold.scan_bound(generation, at, bound, given, given_before, floor, xid, "
         "open, "
         "late, looked, rest_until, whole_at) SELECT 0, leasehold.clock(), '-infinity', 0, 0, 0, "
         "'1', '{}', 0, 0, '-infinity', 'infinity' "
         "FROM generate_series(1, 127)");
    sweep_at(c, START_MS + 4000);
    EXPECT_STR(said(c, "SELECT min(id), max(id) FROM leasehold.scan_bound"), "64 129");
    PQfinish(c);
}

/* ---------------------------------------------------------------- counts */

TEST(a_recount_repairs_folded_and_unfolded_counts)
{
    static const char counted[] =
        "SELECT pending, running FROM leasehold.queues() WHERE queue = 'mail'";
    PGconn *c = session_with_held(2);
    (void)said(c, "SELECT leasehold.enqueue('mail', 'z')");
    (void)said(c, "SELECT leasehold.maintain_round()");
    (void)said(c, "UPDATE leasehold.queue SET pending = 17, running = -4");
    (void)said(c, "SELECT leasehold.enqueue('mail', 'not folded')");
    EXPECT_STR(said(c, counted), "18 -4");
    (void)said(c, "SELECT leasehold.recount()");
    EXPECT_STR(said(c, counted), "2 2");
    (void)said(c, "SELECT leasehold.maintain_round()");
    EXPECT_STR(said(c, counted), "2 2");
    PQfinish(c);
}

TEST(the_view_of_output_shows_text_escapes_bytes_and_marks_what_was_cut)
{
    PGconn *c = session_with_held(1);
    (void)said(c, "SELECT leasehold.output_many('{1}', '{1}', '{NULL}', '{0}', "
                  "ARRAY['\\xc3a4'::bytea], ARRAY['!'::bytea], '{1000}', ARRAY['\\xff'::bytea], "
                  "ARRAY['z'::bytea])");
    EXPECT_STR(said(c, "SELECT stdout FROM leasehold.job_output WHERE job_id = 1 AND attempt = 1"),
               "\303\244!");
    EXPECT_STR(said(c, "SELECT stderr FROM leasehold.job_output"),
               "\\377\n[... 998 bytes cut ...]\nz");
    EXPECT_STR(said(c, "SELECT stdout_bytes, stderr_bytes FROM leasehold.job_output"), "3 1000");
    (void)said(c, "SELECT leasehold.complete(1, 1); DELETE FROM leasehold.job");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.output"), "0");
    PQfinish(c);
}

TEST(output_without_a_job_is_found_and_repaired)
{
    PGconn *c = session_with_held(1);
    (void)said(c,
               "INSERT INTO leasehold.output(job, token, attempt, at) VALUES (4711, 1, 1, now())");
    (void)said(c, "SELECT leasehold.recount()");
    EXPECT_STR(said(c, "SELECT count(*) FROM leasehold.output"), "0");
    PQfinish(c);
}

/* ---------------------------------------------------------------- the server's clock is set */

static void freeze(void)
{
    struct lhi_control *control = lhi_control();
    control->frozen = true;
    control->frozen_wall_ms = START_MS;
    control->frozen_mono_ms = 1000000;
}

/* Time passes ... */
static void pass_ms(int64_t ms)
{
    lhi_control()->wall_ms += ms;
    lhi_control()->mono_ms += ms;
}

/* ... and here only the server's clock says so. */
static void jump_ms(int64_t ms)
{
    lhi_control()->wall_ms += ms;
}

static lh_store *store_open(void)
{
    lh_store *store = NULL;
    if (lh_open(test_store(), NULL, &store) != LH_OK)
        FAIL("%s", lh_errmsg(store));
    return store;
}

static lh_job held_by(lh_store *store, const char *worker, int64_t lease_ms)
{
    const char *queue = "mail";
    lh_jobs *jobs = NULL;
    lh_job job;
    EXPECT_OK(lh_enqueue(store, queue, &(lh_new_job){.payload = "x", .payload_len = 1}, 1, NULL,
                         &(lh_enqueued){0}));
    EXPECT_OK(lh_claim(
        store,
        &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = worker, .lease_ms = lease_ms},
        &jobs));
    job = jobs->job[0];
    lh_jobs_free(jobs);
    return job;
}

static int64_t recovered(lh_store *store)
{
    lh_maintained done;
    EXPECT_OK(lh_maintain(store, NULL, &done));
    return done.recovered;
}

#define JUMPS "SELECT count(*), max(data) FROM leasehold.event WHERE type = 'clock.jump'"

static void expect_lease_of(PGconn *c, int64_t job, int64_t ends_in_ms)
{
    char wanted[40];
    (void)snprintf(wanted, sizeof wanted, "%lld", (long long)ends_in_ms);
    EXPECT_STR(said(c,
                    "SELECT leasehold.ms(lease_until - to_timestamp(%lld / 1000.0)) "
                    "FROM leasehold.job WHERE id = %lld",
                    (long long)(START_MS + lhi_control()->wall_ms), (long long)job),
               wanted);
}

/* A lease of at least ten minutes, of which nine are left, and a server whose clock is set. */
static void expect_lease_kept(int64_t age, int64_t jump)
{
    freeze();
    lh_store *store = store_open();
    PGconn *c = session_at(START_MS);
    char jumped[60];
    lh_job job = held_by(store, "w-1", age + 600000);
    pass_ms(age);
    EXPECT_EQ(recovered(store), 0);
    pass_ms(60000);
    jump_ms(jump);
    EXPECT_EQ(recovered(store), 0);
    (void)snprintf(jumped, sizeof jumped, "1 {\"jump_ms\":%lld}", (long long)jump);
    EXPECT_STR(said(c, JUMPS), jumped);
    expect_lease_of(c, job.id, 540000);
    pass_ms(539999);
    EXPECT_EQ(recovered(store), 0);
    pass_ms(1);
    EXPECT_EQ(recovered(store), 1); /* nor does it last longer */
    EXPECT_STR(said(c, JUMPS), jumped);
    lh_close(store);
    PQfinish(c);
}

TEST(a_clock_set_forward_ends_no_lease)
{
    expect_lease_kept(0, 3600000);
}

TEST(a_clock_set_forward_by_less_than_the_age_of_a_lease_ends_no_lease)
{
    expect_lease_kept(7200000, 3600000);
}

TEST(a_clock_set_back_lengthens_no_lease)
{
    expect_lease_kept(0, -3600000);
}

TEST(a_clock_set_back_to_the_start_of_a_lease_does_not_lengthen_it)
{
    expect_lease_kept(7200000, -3600000);
}

TEST(a_clock_jump_seen_by_two_processes_is_reported_once)
{
    freeze();
    lh_store *one = store_open(), *two = store_open(), *later = store_open();
    lh_recovered stale;
    PGconn *c = session_at(START_MS);
    lh_job job = held_by(one, "w-1", 600000);
    EXPECT_EQ(recovered(one), 0);
    EXPECT_EQ(recovered(two), 0);
    pass_ms(1000);
    jump_ms(3600000);
    EXPECT_OK(lh_recovery_stats(later,
                                &stale)); /* a handle that checks for the first time sees no jump */
    EXPECT_EQ(recovered(one), 0);
    pass_ms(1000);
    EXPECT_EQ(recovered(two), 0);
    EXPECT_EQ(recovered(later), 0);
    EXPECT_STR(said(c, JUMPS), "1 {\"jump_ms\":3600000}");
    expect_lease_of(c, job.id, 598000);
    lh_close(later);
    lh_close(two);
    lh_close(one);
    PQfinish(c);
}

TEST(a_clock_jump_reported_by_two_processes_at_once_shifts_leases_once)
{
    PGconn *c = session_with_held(1);
    session_clock(c, START_MS + 3600500);
    EXPECT_STR(said(c, "SELECT leasehold.clock_jumped(3600000, 0, 500)"), "t");
    EXPECT_STR(said(c, "SELECT leasehold.clock_jumped(3600000, 0, 500)"), "f");
    EXPECT_STR(said(c, "SELECT lease_until - leasehold.clock() FROM leasehold.job"), "00:00:00.5");
    PQfinish(c);
}

/* A process whose machine was suspended sees the same as one whose server's clock was set. */
TEST(a_suspended_process_does_not_shift_leases_that_others_renewed)
{
    freeze();
    lh_store *store = store_open();
    PGconn *c = session_at(START_MS);
    lh_job job = held_by(store, "w-1", 60000), other = held_by(store, "w-2", 60000);
    EXPECT_EQ(recovered(store), 0);
    session_clock(c, START_MS + 50000);
    EXPECT_CONTAINS(said(c, "SELECT (leasehold.heartbeat(%lld, %lld)).id", (long long)other.id,
                         (long long)other.token),
                    "2");
    jump_ms(100000);
    EXPECT_EQ(recovered(store), 1);
    EXPECT_STR(said(c, JUMPS), "0 ");
    EXPECT_STR(said(c, "SELECT state FROM leasehold.job WHERE id = %lld", (long long)job.id),
               "pending");
    lh_close(store);
    PQfinish(c);
}
