/* The session: every call of the header, in an order in which each call has something to do. */
#include "session/session.h"

#include "base/clock.h"
#include "base/hook.h"
#include "harness/harness.h"
#include "harness/recover.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum {
    STEP_MS = 10,
    LARGE_LEN = 390 * 1000, /* some hundred frames of the log */
};

/* ---------------------------------------------------------------- time */

/* Plain SQL gets the time from the VFS of SQLite, so that all use one clock. */
static int vfs_time(sqlite3_vfs *vfs, sqlite3_int64 *julian_ms)
{
    (void)vfs;
    *julian_ms = lhi_wall_ms() + INT64_C(210866760000000);
    return SQLITE_OK;
}

static void engine_keeps_our_time(void)
{
    static sqlite3_vfs clock;

    if (clock.zName != NULL)
        return;
    clock = *sqlite3_vfs_find(NULL);
    clock.zName = "session-clock";
    clock.pNext = NULL;
    clock.xCurrentTimeInt64 = vfs_time;
    EXPECT_EQ(sqlite3_vfs_register(&clock, 1), SQLITE_OK);
}

void session_clock(size_t i)
{
    struct lhi_control *control = lhi_control();
    int64_t mono = 0, wall = 0;
    const char *boot = "boot-1";

    for (size_t k = 0; k <= i && k < session_acts_n; k++) {
        mono += STEP_MS + session_acts[k].later_ms;
        wall += STEP_MS + session_acts[k].later_ms + session_acts[k].wall_ms;
        if (session_acts[k].boot != NULL)
            boot = session_acts[k].boot;
    }
    control->frozen = true;
    control->frozen_wall_ms = INT64_C(1800000000000);
    control->frozen_mono_ms = 1000000;
    control->wall_ms = wall;
    control->mono_ms = mono;
    (void)snprintf(control->boot, sizeof control->boot, "%s", boot);
}

/* ---------------------------------------------------------------- enqueue */

static int enqueue(struct session *s, int slot, const char *queue, const lh_new_job *jobs, size_t n,
                   const char *request)
{
    lh_enqueued out[BULK_N];
    int rc = lh_enqueue(s->store, queue, jobs, n, request ? request : s->request, out);

    for (size_t i = 0; rc == LH_OK && i < n; i++)
        s->notes.id[slot + (int)i] = out[i].id;
    return rc;
}

static int enqueue_mail(struct session *s)
{
    static char long_text[9000];
    static const unsigned char bytes[] = {0, 1, 2, 0xff, 0, 'x'};
    const lh_new_job jobs[5] = {
        {.payload = "{\"to\":\"a\"}", .payload_len = 10, .kind = "a", .priority = 5},
        {.payload = bytes, .payload_len = sizeof bytes, .kind = "b", .lease_ms = 90000},
        {.payload = long_text, .payload_len = sizeof long_text, .kind = "a", .max_attempts = 7},
        {.kind = "b", .priority = -1},
        {.payload = "last", .payload_len = 4, .backoff_ms = 100, .backoff_cap_ms = 100},
    };

    memset(long_text, 'm', sizeof long_text);
    return enqueue(s, MAIL, "mail", jobs, 5, "enqueue-mail");
}

static int enqueue_keyed(struct session *s)
{
    return enqueue(s, KEYED, "mail",
                   &(lh_new_job){.payload = "k", .payload_len = 1, .key = "key-1"}, 1, NULL);
}

static int enqueue_delayed(struct session *s)
{
    return enqueue(s, DELAYED, "mail",
                   &(lh_new_job){.payload = "d", .payload_len = 1, .delay_ms = 3600000}, 1,
                   "enqueue-delayed");
}

static int enqueue_fresh(struct session *s)
{
    return enqueue(s, FRESH, "fresh",
                   &(lh_new_job){.payload = "f", .payload_len = 1, .expires_ms = 5000}, 1,
                   "enqueue-fresh");
}

static int enqueue_bare(struct session *s)
{
    return enqueue(s, BARE, "bare", &(lh_new_job){.payload = "bare", .payload_len = 4}, 1, NULL);
}

static int enqueue_solo(struct session *s)
{
    const lh_new_job jobs[2] = {{.payload = "s1", .payload_len = 2},
                                {.payload = "s2", .payload_len = 2}};
    return enqueue(s, SOLO, "solo", jobs, 2, "enqueue-solo");
}

static int enqueue_slow(struct session *s)
{
    const lh_new_job jobs[3] = {{.payload = "w1", .payload_len = 2},
                                {.payload = "w2", .payload_len = 2},
                                {.payload = "w3", .payload_len = 2}};
    return enqueue(s, SLOW, "slow", jobs, 3, "enqueue-slow");
}

static int enqueue_frail(struct session *s)
{
    return enqueue(s, FRAIL, "frail", &(lh_new_job){.payload = "f", .payload_len = 1}, 1,
                   "enqueue-frail");
}

static int enqueue_doomed(struct session *s)
{
    const lh_new_job jobs[2] = {{.payload = "x", .payload_len = 1},
                                {.payload = "y", .payload_len = 1, .delay_ms = 60000}};
    return enqueue(s, DOOMED, "bare", jobs, 2, "enqueue-doomed");
}

static int enqueue_aged(struct session *s)
{
    const lh_new_job jobs[2] = {{.payload = "a1", .payload_len = 2},
                                {.payload = "a2", .payload_len = 2, .max_attempts = 1}};
    return enqueue(s, AGED, "aged", jobs, 2, "enqueue-aged");
}

/* More memory than the first block of a transaction has. */
static int enqueue_bulk(struct session *s)
{
    lh_new_job jobs[BULK_N];

    for (int i = 0; i < BULK_N; i++)
        jobs[i] = (lh_new_job){.payload = "bulk", .payload_len = 4, .kind = i % 2 ? "odd" : "even"};
    return enqueue(s, BULK, "bulk", jobs, BULK_N, "enqueue-bulk");
}

static int enqueue_large(struct session *s)
{
    static char large[LARGE_LEN];
    char request[64];

    /* The job before it was deleted, so that it has this id. */
    (void)snprintf(request, sizeof request, "enqueue-large-after-%lld",
                   (long long)s->notes.id[LARGE]);
    memset(large, 'L', sizeof large);
    return enqueue(s, LARGE, "large", &(lh_new_job){.payload = large, .payload_len = sizeof large},
                   1, request);
}

static int enqueue_late(struct session *s)
{
    return enqueue(s, LATE, "mail", &(lh_new_job){.payload = "late", .payload_len = 4}, 1,
                   "enqueue-late");
}

/* ---------------------------------------------------------------- the user's own connection */

static int user_status(sqlite3 *db, int code)
{
    (void)db;
    switch (code & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
        return LH_OK;
    case SQLITE_NOMEM:
        return LH_ENOMEM;
    case SQLITE_FULL:
        return LH_ENOSPC;
    case SQLITE_IOERR:
        return LH_EUNKNOWN;
    default:
        return LH_EFAIL;
    }
}

static int user_exec(sqlite3 *db, const char *text)
{
    return user_status(db, sqlite3_exec(db, text, NULL, NULL, NULL));
}

static int user_open(const struct session *s, sqlite3 **db)
{
    int rc = user_status(NULL, sqlite3_open_v2(s->path, db, SQLITE_OPEN_READWRITE, NULL));
    if (rc == LH_OK)
        (void)sqlite3_busy_timeout(*db, 1000);
    return rc;
}

static int user_table(struct session *s)
{
    sqlite3 *db = NULL;
    int rc = user_open(s, &db);

    if (rc == LH_OK)
        rc = user_exec(db, "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, what TEXT)");
    (void)sqlite3_close(db);
    return rc;
}

static int user_orders(struct session *s)
{
    const lh_new_job jobs[2] = {{.payload = "o1", .payload_len = 2, .kind = "b"},
                                {.payload = "o2", .payload_len = 2}};
    lh_enqueued out[2];
    sqlite3 *db = NULL;
    int rc = user_open(s, &db);

    if (rc == LH_OK)
        rc = user_exec(db, "BEGIN IMMEDIATE; INSERT INTO orders(what) VALUES ('two letters')");
    if (rc == LH_OK)
        rc = lh_enqueue_sqlite(db, "mail", jobs, 2, out, s->why, sizeof s->why);
    if (rc == LH_OK)
        rc = user_exec(db, "COMMIT");
    (void)sqlite3_close(db);
    for (int i = 0; rc == LH_OK && i < 2; i++)
        s->notes.id[ORDERED + i] = out[i].id;
    return rc;
}

static int user_insert(struct session *s)
{
    sqlite3 *db = NULL;
    int rc = user_open(s, &db);

    if (rc == LH_OK)
        rc = user_exec(db, "INSERT INTO lh_job(queue, payload) VALUES ('plain', 'by hand')");
    if (rc == LH_OK)
        s->notes.id[PLAIN] = sqlite3_last_insert_rowid(db);
    (void)sqlite3_close(db);
    return rc;
}

/* ---------------------------------------------------------------- claim */

static void note_claim(struct session *s, const lh_jobs *jobs)
{
    struct notes *notes = &s->notes;

    for (size_t i = 0; i < jobs->n; i++) {
        const lh_job *job = &jobs->job[i];
        for (int slot = 0; slot < JOBS; slot++)
            if (notes->id[slot] == job->id)
                notes->token[slot] = job->token;
        EXPECT(notes->n_issued < MOST_ISSUED);
        notes->issued[notes->n_issued++] = (lh_ref){job->id, job->token};
    }
}

static int claim_with(struct session *s, const lh_claim_opts *opts)
{
    lh_jobs *jobs = NULL;
    int rc = lh_claim(s->store, opts, &jobs);

    if (rc == LH_OK)
        note_claim(s, jobs);
    lh_jobs_free(jobs);
    return rc;
}

static int claim(struct session *s, const char *queue, size_t n, int64_t lease_ms,
                 const char *worker, const char *request)
{
    return claim_with(s, &(lh_claim_opts){.queues = &queue,
                                          .n_queues = 1,
                                          .n = n,
                                          .lease_ms = lease_ms,
                                          .worker = worker,
                                          .request = request});
}

static int claim_mail(struct session *s)
{
    return claim(s, "mail", 3, 0, "w-1", "claim-mail");
}

static int claim_bare(struct session *s)
{
    return claim(s, "bare", 1, 0, "w-2", NULL);
}

static int claim_kind(struct session *s)
{
    const char *const queues[] = {"plain", "mail"}, *const kinds[] = {"b"};
    return claim_with(s, &(lh_claim_opts){.queues = queues,
                                          .n_queues = 2,
                                          .kinds = kinds,
                                          .n_kinds = 1,
                                          .worker = "w-1",
                                          .request = "claim-kind"});
}

static int claim_plain(struct session *s)
{
    return claim(s, "plain", 1, 30000, "w-2", "claim-plain");
}

static int claim_solo(struct session *s)
{
    return claim(s, "solo", 2, 0, "w-1", "claim-solo");
}

static int claim_bulk(struct session *s)
{
    return claim(s, "bulk", BULK_N, 0, "w-2", "claim-bulk");
}

static int claim_solo_busy(struct session *s)
{
    return claim(s, "solo", 1, 0, "w-2", NULL);
}

static int claim_solo_next(struct session *s)
{
    return claim(s, "solo", 1, 0, "w-1", "claim-solo-next");
}

static int claim_slow(struct session *s)
{
    return claim(s, "slow", 3, 0, "w-1", "claim-slow");
}

static int claim_slow_more(struct session *s)
{
    return claim(s, "slow", 3, 0, "w-3", "claim-slow-more");
}

static int claim_paused(struct session *s)
{
    return claim(s, "mail", 1, 0, "w-1", NULL);
}

static int claim_frail(struct session *s)
{
    return claim(s, "frail", 1, 1000, "w-2", "claim-frail");
}

static int claim_aged(struct session *s)
{
    return claim(s, "aged", 2, 0, "w-5", "claim-aged");
}

static int claim_aged_again(struct session *s)
{
    return claim(s, "aged", 2, 0, "w-6", "claim-aged-again");
}

static int claim_frail_again(struct session *s)
{
    return claim(s, "frail", 1, 1000, "w-2", "claim-frail-again");
}

static int claim_and_heal(struct session *s)
{
    return claim(s, "mail", 1, 0, "w-2", "claim-and-heal");
}

static int claim_after_boot(struct session *s)
{
    return claim(s, "mail", 2, 0, "w-2", "claim-after-boot");
}

static int claim_late(struct session *s)
{
    return claim(s, "mail", 10, 0, "w-2", "claim-late");
}

/* ---------------------------------------------------------------- holders */

#define REF(slot) .job = s->notes.id[slot], .token = s->notes.token[slot]

static int register_worker(struct session *s)
{
    char id[160];
    return lh_worker_register(
        s->store, &(lh_worker_opts){.id = "w-1", .queues = "mail,solo", .process = true}, id,
        sizeof id);
}

static int start_two(struct session *s)
{
    const lh_ref started[2] = {{REF(MAIL)}, {REF(MAIL + 1)}};
    return lh_worker_started(s->store, "w-1", started, 2);
}

static int register_silent(struct session *s)
{
    char id[160];
    lh_worker_opts opts = {.id = "w-5", .process = true, .tells_started = true};
    return lh_worker_register(s->store, &opts, id, sizeof id);
}

static int beat_two(struct session *s)
{
    const lh_beat beats[2] = {
        {REF(MAIL), .has_progress = true, .progress = 40, .stage = "half", .checkpoint = "[1,2]"},
        {REF(SOLO), .lease_ms = 120000},
    };
    lh_jobs *after = NULL;
    int rc = lh_heartbeat(s->store, beats, 2, NULL, &after);
    lh_jobs_free(after);
    return rc;
}

static int beat_worker(struct session *s)
{
    return lh_worker_heartbeat(s->store, "w-1", 5000, &(lh_beat){REF(MAIL)}, 1, NULL);
}

static int beat_stranger(struct session *s)
{
    return lh_worker_heartbeat(s->store, "w-9", 0, NULL, 0, NULL);
}

/* Remote workers, whose processes are not checked. */
static int lead_stranger(struct session *s)
{
    return lh_worker_sessions(s->store, "w-9", (const int64_t[]){1, 1}, 2);
}

static int degrade_stranger(struct session *s)
{
    return lh_worker_degraded(s->store, "w-9", "5 failures in a row");
}

static int beat_wrong_token(struct session *s)
{
    lh_beat beat = {REF(MAIL)};
    beat.token += 7;
    return lh_heartbeat(s->store, &beat, 1, NULL, NULL);
}

/* Output of an attempt so far, and at its end. */
static int write_output(struct session *s)
{
    return lh_output_put(s->store, &(lh_output){REF(MAIL), .out = {.head = "half", .head_len = 4}},
                         1, NULL);
}

static int complete_two(struct session *s)
{
    const lh_output output = {.out = {.head = "half, and whole", .head_len = 15},
                              .err = {.tail = "\377", .tail_len = 1, .bytes = 70000}};
    const lh_done done[2] = {{REF(MAIL), .result = "{\"ok\":true}", .result_len = 11,
                              .result_bytes = 12, .output = &output},
                             {REF(MAIL + 1)}};
    int status[2];
    lh_jobs *after = NULL;
    int rc = lh_complete(s->store, done, 2, status, &after);
    lh_jobs_free(after);
    return rc;
}

static int complete_and_claim(struct session *s)
{
    const char *queue = "mail";
    lh_jobs *jobs = NULL;
    int rc = lh_complete_claim(s->store, &(lh_done){REF(MAIL + 2)}, 1, NULL,
                               &(lh_claim_opts){.queues = &queue,
                                                .n_queues = 1,
                                                .n = 3,
                                                .worker = "w-1",
                                                .request = "complete-and-claim"},
                               &jobs);
    if (rc == LH_OK)
        note_claim(s, jobs);
    lh_jobs_free(jobs);
    return rc;
}

static int complete_bulk_and_solo(struct session *s)
{
    lh_done done[BULK_N + 1];

    for (int i = 0; i < BULK_N; i++)
        done[i] = (lh_done){REF(BULK + i)};
    done[BULK_N] = (lh_done){REF(SOLO), .result = "", .result_len = 0};
    return lh_complete(s->store, done, BULK_N + 1, NULL, NULL);
}

static int complete_plain(struct session *s)
{
    return lh_complete(s->store, &(lh_done){REF(PLAIN)}, 1, NULL, NULL);
}

static int complete_late(struct session *s)
{
    return lh_complete(s->store, &(lh_done){REF(LATE)}, 1, NULL, NULL);
}

static int fail_for_now(struct session *s)
{
    const lh_output output = {.err = {.head = "no route", .head_len = 8}};
    return lh_fail(
        s->store,
        &(lh_failure){REF(SLOW), .error = "no route", .retry_in_ms = 5000, .output = &output}, 1,
        NULL, NULL);
}

static int fail_for_good(struct session *s)
{
    return lh_fail(s->store,
                   &(lh_failure){REF(SOLO + 1), .error = "bad address", .permanent = true}, 1, NULL,
                   NULL);
}

static int fail_and_retry_at_once(struct session *s)
{
    return lh_fail(s->store, &(lh_failure){REF(KEYED), .error = "again", .retry_in_ms = LH_NOW}, 1,
                   NULL, NULL);
}

static int release_later(struct session *s)
{
    return lh_release(s->store, &(lh_ref){REF(ORDERED)}, 1, 20000, NULL, NULL);
}

static int release_now(struct session *s)
{
    return lh_release(s->store, &(lh_ref){REF(SLOW + 1)}, 1, 0, NULL, NULL);
}

static int release_by_hand(struct session *s)
{
    int64_t released;
    return lh_release_worker(s->store, "w-3", NULL, 0, 0, false, NULL, &released);
}

static int stop_worker(struct session *s)
{
    return lh_worker_stop(s->store, "w-1");
}

/* ---------------------------------------------------------------- a hand */

static int pause_mail(struct session *s)
{
    return lh_queue_pause(s->store, "mail");
}

static int resume_mail(struct session *s)
{
    return lh_queue_resume(s->store, "mail");
}

static int cancel_two(struct session *s)
{
    const int64_t ids[2] = {s->notes.id[MAIL + 4], s->notes.id[SLOW + 2]};
    lh_jobs *after = NULL;
    int rc = lh_cancel(s->store, ids, 2, NULL, &after);
    lh_jobs_free(after);
    return rc;
}

static int beat_cancelled(struct session *s)
{
    return lh_heartbeat(s->store, &(lh_beat){REF(MAIL + 4)}, 1, NULL, NULL);
}

static int complete_cancelled(struct session *s)
{
    return lh_complete(s->store, &(lh_done){REF(MAIL + 4)}, 1, NULL, NULL);
}

static int retry_two(struct session *s)
{
    const int64_t ids[2] = {s->notes.id[SOLO + 1], s->notes.id[MAIL + 4]};
    return lh_retry(s->store, ids, 2, false, NULL, NULL);
}

static int retry_completed(struct session *s)
{
    return lh_retry(s->store, &s->notes.id[SOLO], 1, true, NULL, NULL);
}

static int reschedule(struct session *s)
{
    return lh_reschedule(s->store, s->notes.id[DELAYED], 7200000, 0, NULL);
}

static int delete_two(struct session *s)
{
    const int64_t ids[2] = {s->notes.id[MAIL + 1], s->notes.id[SOLO + 1]};
    return lh_delete(s->store, ids, 2, NULL);
}

static int delete_large(struct session *s)
{
    return lh_delete(s->store, &s->notes.id[LARGE], 1, NULL);
}

static int purge_bare(struct session *s)
{
    int64_t purged;
    return lh_queue_purge(s->store, "bare", &purged);
}

static int prune_old(struct session *s)
{
    int64_t pruned;
    return lh_prune(s->store, 3600000, NULL, &pruned);
}

/* ---------------------------------------------------------------- policies */

static int policy_mail(struct session *s)
{
    return lh_policy_set(s->store, "mail", NULL,
                         &(lh_policy){.set = LH_POLICY_LEASE | LH_POLICY_AUDIT,
                                      .lease_ms = 60000,
                                      .audit = LH_AUDIT_FULL},
                         0);
}

static int policy_bulk(struct session *s)
{
    return lh_policy_set(s->store, "bulk", NULL,
                         &(lh_policy){.set = LH_POLICY_AUDIT, .audit = LH_AUDIT_FULL}, 0);
}

static int policy_solo(struct session *s)
{
    return lh_policy_set(s->store, "solo", NULL,
                         &(lh_policy){.set = LH_POLICY_EXCLUSIVE, .exclusive = true}, 0);
}

static int policy_slow(struct session *s)
{
    return lh_policy_set(s->store, "slow", NULL,
                         &(lh_policy){.set = LH_POLICY_RATE | LH_POLICY_CONCURRENCY,
                                      .rate_n = 5,
                                      .rate_per_ms = 60000,
                                      .concurrency = 2},
                         0);
}

static int policy_frail(struct session *s)
{
    return lh_policy_set(s->store, "frail", NULL,
                         &(lh_policy){.set = LH_POLICY_MAX_RECOVERIES, .max_recoveries = 1}, 0);
}

static int policy_unset(struct session *s)
{
    return lh_policy_set(s->store, "slow", NULL, &(lh_policy){0}, LH_POLICY_RATE);
}

static int scope_sync(struct session *s)
{
    return lh_scope_set(s->store, "sync", 120000);
}

/* ---------------------------------------------------------------- schedules */

static int schedule_often(struct session *s)
{
    return lh_schedule_set(s->store, &(lh_schedule){.name = "often",
                                                    .queue = "ticks",
                                                    .cron = "@every 1s",
                                                    .catch_up = LH_CATCH_UP_ALL,
                                                    .job = {.payload = "t", .payload_len = 1}});
}

static int schedule_nightly(struct session *s)
{
    return lh_schedule_set(s->store, &(lh_schedule){.name = "nightly",
                                                    .queue = "ticks",
                                                    .cron = "0 2 * * *",
                                                    .zone = "Europe/Berlin",
                                                    .job = {.key = "night"}});
}

/* A claim recovers what is due, and finds no job to claim. */
static int claim_ticks(struct session *s)
{
    const char *queue = "none";
    lh_claim_opts opts = {.queues = &queue, .n_queues = 1, .worker = "w-9"};
    lh_jobs *jobs = NULL;
    int rc = lh_claim(s->store, &opts, &jobs);

    lh_jobs_free(jobs);
    return rc;
}

static int look_at_schedules(struct session *s)
{
    lh_schedules *schedules = NULL;
    int rc = lh_schedule_list(s->store, &schedules);

    lh_schedules_free(schedules);
    return rc;
}

static int schedule_remove(struct session *s)
{
    return lh_schedule_remove(s->store, "often");
}

/* ---------------------------------------------------------------- named leases */

static int lease_acquire(struct session *s)
{
    lh_leases *lease = NULL;
    int rc = lh_lease_acquire(s->store, "sync", "users",
                              &(lh_lease_opts){.owner = "o-1", .value = "{\"page\":1}"}, &lease);
    if (rc == LH_OK)
        s->notes.lease_token = lease->lease[0].token;
    lh_leases_free(lease);
    return rc;
}

static int lease_extend(struct session *s)
{
    return lh_lease_extend(
        s->store, "sync", "users",
        &(lh_lease_opts){.owner = "o-1", .ttl_ms = 90000, .token = s->notes.lease_token}, NULL);
}

static int lease_held(struct session *s)
{
    lh_leases *holder = NULL;
    int rc = lh_lease_acquire(s->store, "sync", "users", &(lh_lease_opts){.owner = "o-2"}, &holder);
    lh_leases_free(holder);
    return rc;
}

static int lease_complete(struct session *s)
{
    return lh_lease_complete(s->store, "sync", "users",
                             &(lh_lease_opts){.owner = "o-1",
                                              .token = s->notes.lease_token,
                                              .rows = 500,
                                              .has_rows = true,
                                              .value = "{\"page\":2}"},
                             NULL);
}

static int lease_brief(struct session *s)
{
    return lh_lease_acquire(s->store, "sync", "brief",
                            &(lh_lease_opts){.owner = "o-1", .ttl_ms = 1000}, NULL);
}

static int lease_other(struct session *s)
{
    return lh_lease_acquire(s->store, "sync", "other", &(lh_lease_opts){.owner = "o-1"}, NULL);
}

static int lease_release(struct session *s)
{
    bool released;
    return lh_lease_release(s->store, "sync", "other", &(lh_lease_opts){.owner = "o-1"}, &released);
}

/* ---------------------------------------------------------------- the store as a whole */

static int open_store(struct session *s)
{
    return session_open(s, SIZE_MAX);
}

static int close_store(struct session *s)
{
    lh_close(s->store);
    s->store = NULL;
    return LH_OK;
}

static int reopen(struct session *s)
{
    (void)close_store(s);
    return open_store(s);
}

/* A long-running program starts and recovers first. */
static int start_up(struct session *s)
{
    lh_open_opts opts = s->opts;

    (void)close_store(s);
    s->opts.startup = true;
    s->opts.recover_later = false;
    int rc = open_store(s);
    s->opts = opts;
    return rc;
}

static int recover(struct session *s)
{
    lh_recovered out;
    return recovered_by_hand(s->store, &out);
}

static int recover_dry(struct session *s)
{
    lh_report *report = NULL;
    int rc = lh_recover(s->store, &(lh_recover_opts){.dry_run = true}, &report);
    lh_report_free(report);
    return rc;
}

static int recover_by_age(struct session *s)
{
    lh_recover_opts opts = {.by_age = true, .threshold_ms = STEP_MS, .queue = "aged"};
    lh_report *report = NULL;
    int rc = lh_recover(s->store, &opts, &report);
    lh_report_free(report);
    return rc;
}

static int maintain(struct session *s)
{
    lh_maintained out;
    return lh_maintain(s->store, NULL, &out);
}

static int look_at_jobs(struct session *s)
{
    lh_jobs *one = NULL, *list = NULL, *waited = NULL;
    int rc = lh_job_get(s->store, s->notes.id[MAIL], &one);

    if (rc == LH_OK)
        rc = lh_job_list(s->store, &(lh_job_filter){.queue = "mail", .limit = 50}, &list);
    if (rc == LH_OK)
        rc = lh_job_wait(s->store, s->notes.id[MAIL], 0, NULL, &waited);
    lh_jobs_free(one);
    lh_jobs_free(list);
    lh_jobs_free(waited);
    return rc;
}

static int look_at_lists(struct session *s)
{
    lh_queues *queues = NULL;
    lh_policies *policies = NULL;
    lh_leases *leases = NULL, *lease = NULL;
    lh_workers *workers = NULL;
    lh_events *events = NULL;
    lh_policy policy;
    bool stale;
    int rc = lh_queue_list(s->store, &queues);

    if (rc == LH_OK)
        rc = lh_policy_list(s->store, &policies);
    if (rc == LH_OK)
        rc = lh_policy_get(s->store, "mail", "a", &policy);
    if (rc == LH_OK)
        rc = lh_lease_list(s->store, NULL, &leases);
    if (rc == LH_OK)
        rc = lh_lease_get(s->store, "sync", "users", &lease);
    if (rc == LH_OK)
        rc = lh_lease_is_stale(s->store, "sync", "users", &stale);
    if (rc == LH_OK)
        rc = lh_worker_list(s->store, &workers);
    if (rc == LH_OK)
        rc = lh_event_list(s->store, &(lh_event_filter){.limit = 30, .newest = true}, &events);
    lh_queues_free(queues);
    lh_policies_free(policies);
    lh_leases_free(leases);
    lh_leases_free(lease);
    lh_workers_free(workers);
    lh_events_free(events);
    return rc;
}

static int look_at_recovery(struct session *s)
{
    lh_report *last = NULL, *integrity = NULL;
    lh_reports *reports = NULL;
    lh_workers *stale = NULL;
    int rc = lh_report_get(s->store, 0, &last);

    if (rc == LH_OK)
        rc = lh_report_list(s->store, 0, &reports);
    if (rc == LH_OK)
        rc = lh_workers_stale(s->store, &stale);
    if (rc == LH_OK)
        rc = lh_check_integrity(s->store, NULL, &integrity);
    lh_report_free(last);
    lh_reports_free(reports);
    lh_workers_free(stale);
    lh_report_free(integrity);
    return rc;
}

static int look_at_store(struct session *s)
{
    lh_store_info info;
    lh_recovered stale;
    lh_findings *findings = NULL;
    char *drop = NULL;
    int rc = lh_store_status(s->store, &info);

    if (rc == LH_OK)
        rc = lh_recovery_stats(s->store, &stale);
    if (rc == LH_OK)
        rc = lh_check(s->store, NULL, &findings);
    if (rc == LH_OK)
        rc = lh_drop_sql(s->store, &drop);
    lh_findings_free(findings);
    free(drop);
    return rc;
}

/* ---------------------------------------------------------------- the script */

enum {
    UNSYNCED = ACT_UNSYNCED,
    ANEW = ACT_NO_IDENTITY,
    USER = ACT_USER | ACT_NO_IDENTITY,
    START = ACT_STEPS | ACT_KEEPS_LOG | ACT_HEALS | ACT_UNSYNCED,
};

#define FILL                                                                                    \
    {.name = "enqueue_large", .run = enqueue_large, .flags = ACT_FILLER},                       \
    {                                                                                           \
        .name = "delete_large", .run = delete_large, .flags = ACT_FILLER, .again = LH_ENOTFOUND \
    }

const struct act session_acts[] = {
    {.name = "open_store", .run = open_store, .flags = ACT_STEPS},
    {.name = "policy_mail", .run = policy_mail},
    {.name = "policy_bulk", .run = policy_bulk},
    {.name = "policy_solo", .run = policy_solo},
    {.name = "policy_slow", .run = policy_slow},
    {.name = "policy_frail", .run = policy_frail},
    {.name = "scope_sync", .run = scope_sync},
    {.name = "user_table", .run = user_table, .flags = ACT_USER},
    {.name = "enqueue_mail", .run = enqueue_mail},
    {.name = "enqueue_keyed", .run = enqueue_keyed},
    {.name = "enqueue_keyed_again", .run = enqueue_keyed},
    {.name = "enqueue_delayed", .run = enqueue_delayed},
    {.name = "enqueue_fresh", .run = enqueue_fresh},
    {.name = "enqueue_bare", .run = enqueue_bare, .flags = ANEW},
    {.name = "user_orders", .run = user_orders, .flags = USER},
    {.name = "user_insert", .run = user_insert, .flags = USER},
    {.name = "enqueue_solo", .run = enqueue_solo},
    {.name = "enqueue_slow", .run = enqueue_slow},
    {.name = "enqueue_frail", .run = enqueue_frail},
    {.name = "enqueue_bulk", .run = enqueue_bulk},
    {.name = "register_worker", .run = register_worker, .flags = UNSYNCED},
    {.name = "claim_mail", .run = claim_mail, .flags = UNSYNCED},
    {.name = "start_two", .run = start_two, .flags = UNSYNCED},
    {.name = "claim_bare", .run = claim_bare, .flags = UNSYNCED | ANEW},
    {.name = "claim_kind", .run = claim_kind, .flags = UNSYNCED},
    {.name = "claim_plain", .run = claim_plain, .flags = UNSYNCED},
    {.name = "claim_solo", .run = claim_solo, .flags = UNSYNCED},
    {.name = "claim_solo_busy", .run = claim_solo_busy, .flags = UNSYNCED, .outcome = LH_EMPTY},
    {.name = "claim_slow", .run = claim_slow, .flags = UNSYNCED},
    {.name = "beat_two", .run = beat_two, .flags = UNSYNCED},
    {.name = "beat_worker", .run = beat_worker, .flags = UNSYNCED},
    {.name = "beat_stranger", .run = beat_stranger, .flags = UNSYNCED},
    {.name = "lead_stranger", .run = lead_stranger, .flags = UNSYNCED},
    {.name = "degrade_stranger", .run = degrade_stranger, .flags = UNSYNCED},
    {.name = "beat_wrong_token", .run = beat_wrong_token, .flags = UNSYNCED, .outcome = LH_ELOST},
    {.name = "write_output", .run = write_output, .flags = UNSYNCED},
    {.name = "complete_two", .run = complete_two},
    {.name = "complete_and_claim", .run = complete_and_claim},
    {.name = "claim_bulk", .run = claim_bulk, .flags = UNSYNCED},
    {.name = "complete_bulk_and_solo", .run = complete_bulk_and_solo},
    {.name = "complete_plain", .run = complete_plain},
    {.name = "claim_solo_next", .run = claim_solo_next, .flags = UNSYNCED},
    {.name = "fail_for_now", .run = fail_for_now},
    {.name = "fail_for_good", .run = fail_for_good},
    {.name = "fail_and_retry_at_once", .run = fail_and_retry_at_once},
    {.name = "release_later", .run = release_later},
    {.name = "release_now", .run = release_now},
    {.name = "pause_mail", .run = pause_mail},
    {.name = "claim_paused", .run = claim_paused, .flags = UNSYNCED, .outcome = LH_EMPTY},
    {.name = "resume_mail", .run = resume_mail},
    {.name = "cancel_two", .run = cancel_two, .again = LH_ESTATE},
    {.name = "beat_cancelled", .run = beat_cancelled, .flags = UNSYNCED, .outcome = LH_ECANCELLED},
    {.name = "complete_cancelled", .run = complete_cancelled, .outcome = LH_ECANCELLED},
    {.name = "retry_two", .run = retry_two, .again = LH_ESTATE},
    {.name = "retry_completed", .run = retry_completed, .again = LH_ESTATE},
    {.name = "reschedule", .run = reschedule},
    {.name = "delete_two", .run = delete_two, .again = LH_ENOTFOUND},
    {.name = "claim_slow_more", .run = claim_slow_more, .flags = UNSYNCED},
    {.name = "release_by_hand", .run = release_by_hand},
    {.name = "stop_worker", .run = stop_worker},
    {.name = "lease_acquire", .run = lease_acquire},
    {.name = "lease_extend", .run = lease_extend},
    {.name = "lease_held", .run = lease_held, .outcome = LH_EHELD},
    {.name = "lease_complete", .run = lease_complete, .again = LH_ELOST},
    {.name = "lease_brief", .run = lease_brief},
    {.name = "lease_other", .run = lease_other},
    {.name = "lease_release", .run = lease_release},
    {.name = "claim_frail", .run = claim_frail, .flags = UNSYNCED},
    {.name = "enqueue_aged", .run = enqueue_aged},
    {.name = "register_silent", .run = register_silent, .flags = UNSYNCED},
    {.name = "claim_aged", .run = claim_aged, .flags = UNSYNCED},
    {.name = "recover_dry", .run = recover_dry, .flags = UNSYNCED},
    {.name = "recover", .run = recover, .flags = UNSYNCED, .later_ms = 400000},
    {.name = "claim_frail_again", .run = claim_frail_again, .flags = UNSYNCED | ACT_HEALS},
    {.name = "claim_aged_again", .run = claim_aged_again, .flags = UNSYNCED},
    {.name = "recover_by_age", .run = recover_by_age, .flags = UNSYNCED},
    {.name = "claim_and_heal",
     .run = claim_and_heal,
     .flags = UNSYNCED | ACT_HEALS,
     .later_ms = 2000},
    {.name = "beat_after_a_jump", .run = beat_stranger, .flags = UNSYNCED, .wall_ms = 3600000},
    {.name = "maintain", .run = maintain, .flags = UNSYNCED | ACT_STEPS, .later_ms = 7200000},
    {.name = "enqueue_doomed", .run = enqueue_doomed},
    {.name = "purge_bare", .run = purge_bare},
    {.name = "look_at_jobs", .run = look_at_jobs, .flags = UNSYNCED},
    {.name = "look_at_lists", .run = look_at_lists, .flags = UNSYNCED},
    {.name = "look_at_store", .run = look_at_store, .flags = UNSYNCED},
    {.name = "look_at_recovery", .run = look_at_recovery, .flags = UNSYNCED},
    {.name = "prune_old", .run = prune_old, .flags = ANEW},
    {.name = "policy_unset", .run = policy_unset},
    {.name = "schedule_often", .run = schedule_often},
    {.name = "schedule_nightly", .run = schedule_nightly},
    {.name = "claim_ticks",
     .run = claim_ticks,
     .flags = UNSYNCED | ACT_HEALS,
     .outcome = LH_EMPTY,
     .later_ms = 1000},
    {.name = "maintain_ticks", .run = maintain, .flags = UNSYNCED | ACT_STEPS, .later_ms = 3000},
    {.name = "look_at_schedules", .run = look_at_schedules, .flags = UNSYNCED},
    {.name = "schedule_remove", .run = schedule_remove, .again = LH_ENOTFOUND},
    {.name = "reopen", .run = reopen, .flags = ACT_STEPS | ACT_KEEPS_LOG},
    {.name = "start_up", .run = start_up, .flags = START},
    {.name = "reopen_after_boot",
     .run = reopen,
     .flags = ACT_STEPS,
     .later_ms = 1000,
     .boot = "boot-2"},
    {.name = "start_up_after_boot", .run = start_up, .flags = START},
    {.name = "claim_after_boot", .run = claim_after_boot, .flags = UNSYNCED},
    FILL,
    FILL,
    FILL,
    {.name = "enqueue_large", .run = enqueue_large, .flags = ACT_FILLER},
    /* This call takes the WAL past 800 frames, so that it is checkpointed and started over. */
    {.name = "delete_large", .run = delete_large, .flags = ACT_KEEPS_LOG, .again = LH_ENOTFOUND},
    {.name = "enqueue_late", .run = enqueue_late},
    {.name = "claim_late", .run = claim_late, .flags = UNSYNCED},
    {.name = "complete_late", .run = complete_late},
    {.name = "close_store", .run = close_store, .flags = ACT_CLOSES | ACT_KEEPS_LOG},
};
const size_t session_acts_n = COUNT(session_acts);

/* ---------------------------------------------------------------- performing it */

bool session_same(const struct notes *a, const struct notes *b)
{
    struct notes copy = *a;
    copy.lease_token = b->lease_token;
    return memcmp(&copy, b, sizeof copy) == 0;
}

void session_start(struct session *s, const char *path, const lh_open_opts *opts)
{
    *s = (struct session){.opts = opts ? *opts : (lh_open_opts){0}};
    /* What a crash left is recovered by an act of the session, so that it comes out the same. */
    s->opts.recover_later = true;
    (void)snprintf(s->path, sizeof s->path, "%s", path);
    s->opts.create = true;
    engine_keeps_our_time();
    session_clock(0);
}

int session_open(struct session *s, size_t i)
{
    if (i == 0)
        return LH_OK;
    int rc = lh_open(s->path, &s->opts, &s->store);
    if (rc != LH_OK) {
        (void)snprintf(s->why, sizeof s->why, "%s", lh_errmsg(s->store));
        lh_close(s->store);
        s->store = NULL;
    }
    return rc;
}

int session_act(struct session *s, size_t i)
{
    session_clock(i);
    s->why[0] = '\0';
    int rc = session_acts[i].run(s);
    if (rc < 0 && s->store != NULL && s->why[0] == '\0')
        (void)snprintf(s->why, sizeof s->why, "%s", lh_errmsg(s->store));
    return rc;
}

void session_end(struct session *s)
{
    lh_close(s->store);
    s->store = NULL;
}
