/* Random bytes of an open store change. For every byte, no process crashes, no job is claimed with
 * another payload or from another queue, no token is issued twice, no lease ends early, and no act
 * blames its caller (exit 2) for the damage. A check finds every change of a value that decides
 * something. $DAMAGE_ROUNDS and $DAMAGE_SEED run more of it. */
#include "store/sqlite.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { JOBS = 24, ROUNDS = 200 };

static uint64_t state;

static size_t dice(size_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (size_t)(state % below);
}

/* ---- the store ---- */

static struct {
    int64_t token, lease_until;
    char queue[8];
} known[2 * JOBS + 1];
static int64_t lease_token, long_lease;
static const char *now_doing;

static void build(void)
{
    static const char *const queues[] = {"mail", "bulk", "slow"};
    lh_store *store = store_open("store.db", (lh_open_opts){.create = true});
    lh_leases *leases = NULL;

    EXPECT_OK(lh_policy_set(store, "slow", NULL,
                            &(lh_policy){.set = LH_POLICY_CONCURRENCY, .concurrency = 3}, 0));
    for (int i = 0; i < JOBS; i++) {
        char payload[40];
        lh_enqueued out;
        int len = snprintf(payload, sizeof payload, "payload of %s", queues[i % 3]);
        lh_new_job job = {.kind = i % 2 ? "k" : NULL,
                          .payload = payload,
                          .payload_len = (size_t)len,
                          .delay_ms = i % 8 == 7 ? 3600000 : 0};
        EXPECT_OK(lh_enqueue(store, queues[i % 3], &job, 1, i == 4 ? "order-7" : NULL, &out));
        (void)snprintf(known[out.id].queue, sizeof known[0].queue, "%s", queues[i % 3]);
    }
    for (int i = 0; i < 6; i++) { /* some jobs that run for long */
        lh_jobs *jobs = take(store, queues[i % 3], "w-1", INT64_C(20) * 86400000);
        EXPECT(jobs != NULL);
        known[jobs->job[0].id].token = jobs->job[0].token;
        known[jobs->job[0].id].lease_until = long_lease = jobs->job[0].lease_until;
        lh_jobs_free(jobs);
    }
    EXPECT_OK(lh_lease_acquire(store, "etl", "orders",
                               &(lh_lease_opts){.owner = "me", .ttl_ms = 3600000}, &leases));
    lease_token = leases->lease[0].token;
    lh_leases_free(leases);
    lh_close(store);
}

/* ---- what must never happen ---- */

/* The act succeeded, or was refused because of damage or for a reason that is not the caller's
 * fault. */
static void expect_no_blame(int rc, const char *act, lh_store *store)
{
    if (lh_status_exit(rc) == 2)
        FAIL("%s: %s says %s: %s", now_doing, act, lh_status_name(rc), lh_errmsg(store));
}

static void judge_claimed(const lh_job *job, const char *queue)
{
    char payload[40];
    int len = snprintf(payload, sizeof payload, "payload of %s", queue);

    if (job->id < 1 || job->id > JOBS || strcmp(job->queue, queue) != 0 ||
        strcmp(known[job->id].queue, queue) != 0)
        FAIL("%s: job %lld is handed out in queue %s", now_doing, (long long)job->id, queue);
    if (job->payload_len != (size_t)len || memcmp(job->payload, payload, (size_t)len) != 0)
        FAIL("%s: job %lld is handed out with another payload", now_doing, (long long)job->id);
    if (job->token <= known[job->id].token)
        FAIL("%s: job %lld gets token %lld after %lld", now_doing, (long long)job->id,
             (long long)job->token, (long long)known[job->id].token);
    if (known[job->id].lease_until != 0)
        FAIL("%s: the lease of job %lld ended early", now_doing, (long long)job->id);
}

static void claim_all(lh_store *store, const char *queue)
{
    lh_jobs *jobs = NULL;
    int rc = lh_claim(
        store, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .n = 100, .worker = "w-2"}, &jobs);

    expect_no_blame(rc, "a claim", store);
    for (size_t i = 0; rc == LH_OK && i < jobs->n; i++)
        judge_claimed(&jobs->job[i], queue);
    lh_jobs_free(jobs);
}

static void act(lh_store *store)
{
    lh_leases *leases = NULL;
    lh_jobs *jobs = NULL;
    lh_enqueued out;
    lh_new_job job = {.payload = "payload of bulk", .payload_len = 15, .kind = "k"};
    lh_maintained upkeep;

    expect_no_blame(lh_recover(store, NULL, NULL), "a recovery", store);
    claim_all(store, "mail");
    claim_all(store, "bulk");
    claim_all(store, "slow");
    int rc = lh_enqueue(store, "bulk", &job, 1, "order-7", &out);
    expect_no_blame(rc, "a repeated enqueue", store);
    if (rc == LH_OK && out.duplicate && out.id != 5)
        FAIL("%s: a repeated enqueue answers with job %lld", now_doing, (long long)out.id);
    rc = lh_lease_acquire(store, "etl", "orders", &(lh_lease_opts){.owner = "another"}, &leases);
    expect_no_blame(rc, "an acquire", store);
    if (rc == LH_OK)
        FAIL("%s: a lease that is held is taken", now_doing);
    lh_leases_free(leases);
    expect_no_blame(lh_job_list(store, &(lh_job_filter){.limit = 100}, &jobs), "a list", store);
    lh_jobs_free(jobs);
    expect_no_blame(lh_maintain(store, NULL, &upkeep), "maintenance", store);
}

/* ---- what a check must find ---- */

/* All values that decide something, as one text. */
static const char decides[] =
    "SELECT group_concat(t, char(10)) FROM ("
    " SELECT quote(id) || quote(queue) || quote(kind) || quote(state) || quote(priority) || "
    "quote(attempt)"
    "  || quote(max_attempts) || quote(recoveries) || quote(token) || quote(lease_until) || "
    "quote(held_ms)"
    "  || quote(run_at) || quote(created_at) || quote(started_at) || quote(finished_at) || "
    "quote(key)"
    "  || quote(expires_at) || quote(lease_ms) || quote(backoff_ms) || quote(payload) AS t"
    "  FROM lh_job NOT INDEXED"
    " UNION ALL SELECT quote(key) || quote(value) FROM lh_meta"
    " UNION ALL SELECT quote(queue) || quote(kind) || quote(concurrency) || quote(exclusive) FROM "
    "lh_policy"
    " UNION ALL SELECT quote(scope) || quote(name) || quote(owner) || quote(token) || "
    "quote(expires_at)"
    "  FROM lh_lease"
    " UNION ALL SELECT quote(request) || quote(act) || quote(jobs) FROM lh_request)";

static char *deciding(void)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    char *text = NULL;

    if (sqlite3_open_v2("store.db", &db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(db, decides, -1, &stmt, NULL) == SQLITE_OK &&
        sqlite3_step(stmt) == SQLITE_ROW && sqlite3_column_text(stmt, 0) != NULL)
        text = strdup((const char *)sqlite3_column_text(stmt, 0));
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return text;
}

static bool check_finds(void)
{
    lh_findings *findings = NULL;
    lh_store *store = NULL;
    int rc = lh_open("store.db", &(lh_open_opts){.read_only = true}, &store);

    if (rc == LH_OK)
        rc = lh_check(store, NULL, &findings);
    if (rc != LH_OK && lh_status_exit(rc) == 2 && rc != LH_EINVAL)
        FAIL("%s: a check says %s: %s", now_doing, lh_status_name(rc), lh_errmsg(store));
    bool found = rc != LH_OK || findings->errors > 0;
    lh_findings_free(findings);
    lh_close(store);
    return found;
}

/* ---- the bytes ---- */

static void put_store(const unsigned char *bytes, size_t len)
{
    (void)unlink("store.db-wal");
    (void)unlink("store.db-shm");
    (void)unlink("store.db-lease");
    file_write("store.db", bytes, len);
}

static void flip(const unsigned char *sound, size_t len, const char *before)
{
    unsigned char *bytes = malloc(len);
    size_t at = 100 + dice(len - 100);
    lh_store *store = NULL;
    char what[80];

    EXPECT(bytes != NULL);
    memcpy(bytes, sound, len);
    if (dice(4) == 0)
        bytes[at] = (unsigned char)dice(256);
    else
        bytes[at] ^= (unsigned char)(1 << dice(8));
    (void)snprintf(what, sizeof what, "byte %zu: %02x to %02x", at, sound[at], bytes[at]);
    now_doing = what;
    put_store(bytes, len);
    if (bytes[at] != sound[at]) {
        char *after = deciding();
        bool changed = after == NULL || strcmp(before, after) != 0;
        free(after);
        put_store(bytes, len);
        if (changed && !check_finds())
            FAIL("%s: a check finds nothing", what);
        put_store(bytes, len);
    }
    int rc = lh_open("store.db", NULL, &store);
    if (rc == LH_OK)
        act(store);
    else if (rc != LH_ECORRUPT && rc != LH_EINVAL && rc != LH_ENEWER && rc != LH_EIO)
        FAIL("%s: opening says %s: %s", what, lh_status_name(rc), lh_errmsg(store));
    lh_close(store);
    free(bytes);
}

TEST_TIMEOUT(random_changes_never_lead_to_a_wrong_claim, 3000)
{
    const char *rounds = getenv("DAMAGE_ROUNDS"), *first = getenv("DAMAGE_SEED");
    uint64_t seed = first ? strtoull(first, NULL, 10) : 1;
    size_t len;

    freeze_now();
    build();
    unsigned char *sound = file_bytes("store.db", &len);
    char *before = deciding();
    EXPECT(before != NULL);
    for (int i = 0; i < (rounds ? 50 * (int)strtol(rounds, NULL, 10) : ROUNDS); i++, seed++) {
        state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
        (void)dice(2);
        flip(sound, len, before);
    }
    free(before);
    free(sound);
}
