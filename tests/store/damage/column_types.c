/*
 * A value of the wrong type in a column of a job, as a changed byte in the header of its record
 * causes it: NULL, a blob, a text, a real or an integer. For every column and every value, acts go
 * on with the other jobs, no worker gets the damaged job, a check names it, and a repair resolves
 * it. The job's indexes may have the old value, as on a disk, or the damaged one.
 *
 * $DAMAGE_ROUNDS tries every value in every column, $DAMAGE_COLUMN every value in one column.
 */
#include "store/sqlite.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- damage ---- */

/* Write without the rules of the table and, if `rows_alone`, without its indexes, so that only the
 * row changes. The schema is restored afterwards, with the old contents of the indexes. */
static void write_past_the_schema(const char *sql, bool rows_alone)
{
    sqlite3 *db = db_open("store.db");

    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 0, NULL);
    db_exec(db, "PRAGMA writable_schema = ON;"
                "CREATE TABLE kept AS SELECT rowid AS place, * FROM sqlite_schema"
                " WHERE tbl_name = 'lh_job' AND name NOT LIKE 'sqlite%' AND type <> 'view'");
    db_exec(
        db,
        "UPDATE sqlite_schema SET sql = 'CREATE TABLE lh_job(id INTEGER PRIMARY KEY AUTOINCREMENT,"
        " queue, kind, state, priority, attempt, max_attempts, recoveries, token, worker,"
        " lease_until, held_ms, run_at, created_at, started_at, finished_at, state_changed_at,"
        " last_heartbeat_at, key, expires_at, lease_ms, backoff_ms, backoff_cap_ms, stage,"
        " progress, last_error, checkpoint, result, name_sum, state_sum, payload_sum, payload)'"
        " WHERE name = 'lh_job' AND type = 'table'");
    db_exec(db, "DELETE FROM sqlite_schema WHERE tbl_name = 'lh_job' AND type = 'trigger'");
    if (rows_alone)
        db_exec(db, "DELETE FROM sqlite_schema WHERE tbl_name = 'lh_job' AND type = 'index'");
    sqlite3_close(db);
    db = db_open("store.db");
    db_exec(db, sql);
    EXPECT(sqlite3_changes(db) > 0);
    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 0, NULL);
    db_exec(db, "PRAGMA writable_schema = ON;"
                "DELETE FROM sqlite_schema WHERE rowid IN (SELECT place FROM kept);"
                "INSERT INTO sqlite_schema(rowid, type, name, tbl_name, rootpage, sql)"
                " SELECT place, type, name, tbl_name, rootpage, sql FROM kept");
    sqlite3_close(db);
    db = db_open("store.db");
    db_exec(db, "DROP TABLE kept; PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
}

/* ---- a store with jobs in every state, each beside a sound one ---- */

enum victim { PENDING = 1, RUNNING, EXPIRED, SCHEDULED, FINISHED, VICTIMS = FINISHED };

static int64_t sound_running, tokens[12];

static lh_new_job job_like(const char *payload)
{
    return (lh_new_job){.kind = "k", .payload = payload, .payload_len = strlen(payload)};
}

static int64_t put(lh_store *store, const char *queue, const char *payload, int64_t delay_ms)
{
    lh_new_job job = job_like(payload);
    lh_enqueued out;

    job.delay_ms = delay_ms;
    EXPECT_OK(lh_enqueue(store, queue, &job, 1, NULL, &out));
    return out.id;
}

static void claim_it(lh_store *store, const char *queue, int64_t lease_ms)
{
    lh_jobs *jobs = take(store, queue, "w-1", lease_ms);

    EXPECT(jobs != NULL);
    tokens[jobs->job[0].id] = jobs->job[0].token;
    lh_jobs_free(jobs);
}

static void build(void)
{
    lh_store *store = store_new();

    EXPECT_EQ(put(store, "pending", "damaged", 0), PENDING);
    EXPECT_EQ(put(store, "running", "damaged", 0), RUNNING);
    EXPECT_EQ(put(store, "expired", "damaged", 0), EXPIRED);
    EXPECT_EQ(put(store, "scheduled", "damaged", 1000), SCHEDULED);
    EXPECT_EQ(put(store, "finished", "damaged", 0), FINISHED);
    claim_it(store, "running", 3600000);
    claim_it(store, "expired", 1000);
    claim_it(store, "finished", 1000);
    EXPECT_OK(
        lh_complete(store, &(lh_done){.job = FINISHED, .token = tokens[FINISHED]}, 1, NULL, NULL));
    (void)put(store, "pending", "sound", 0);
    sound_running = put(store, "running", "sound", 0);
    claim_it(store, "running", 3600000);
    (void)put(store, "expired", "sound", 0);
    claim_it(store, "expired", 1000);
    (void)put(store, "scheduled", "sound", 1000);
    lh_close(store);
}

/* ---- every act ---- */

static const char *now_doing;

#define DAMAGE_ONLY(rc, act)                                                                   \
    do {                                                                                       \
        int rc_ = (rc);                                                                        \
        if (rc_ < 0 && rc_ != LH_ECORRUPT && rc_ != LH_ELOST && rc_ != LH_ENOTFOUND &&         \
            rc_ != LH_ESTATE)                                                                  \
            FAIL("%s: %s says %s: %s", now_doing, act, lh_status_name(rc_), lh_errmsg(store)); \
    } while (0)

#define ACT_OK(rc, act)                                                                        \
    do {                                                                                       \
        int rc_ = (rc);                                                                        \
        if (rc_ != LH_OK)                                                                      \
            FAIL("%s: %s says %s: %s", now_doing, act, lh_status_name(rc_), lh_errmsg(store)); \
    } while (0)

/* The sound job is claimed. The damaged one is claimed only if the damaged column decides
 * nothing. */
static void expect_claim(lh_store *store, const char *queue, bool by_kind, bool harmless)
{
    lh_jobs *jobs = NULL;
    const char *kind = "k";
    bool sound = false;
    int rc = lh_claim(store,
                      &(lh_claim_opts){.queues = &queue,
                                       .n_queues = 1,
                                       .kinds = by_kind ? &kind : NULL,
                                       .n_kinds = by_kind ? 1 : 0,
                                       .n = 10,
                                       .worker = "w-2"},
                      &jobs);

    if (rc != LH_OK)
        FAIL("%s: a claim from %s says %s: %s", now_doing, queue, lh_status_name(rc),
             lh_errmsg(store));
    for (size_t i = 0; i < jobs->n; i++) {
        sound = sound ||
                (jobs->job[i].payload_len == 5 && memcmp(jobs->job[i].payload, "sound", 5) == 0);
        if (jobs->job[i].id <= VICTIMS && !harmless)
            FAIL("%s: a claim from %s hands job %lld out", now_doing, queue,
                 (long long)jobs->job[i].id);
    }
    if (!sound)
        FAIL("%s: a claim from %s does not find the sound job", now_doing, queue);
    lh_jobs_free(jobs);
}

static void hold(lh_store *store)
{
    int status[2];
    lh_beat beats[] = {{.job = RUNNING, .token = tokens[RUNNING]},
                       {.job = sound_running, .token = tokens[sound_running]}};
    lh_failure failures[] = {{.job = RUNNING, .token = tokens[RUNNING], .error = "x"},
                             {.job = sound_running, .token = tokens[sound_running], .error = "x"}};

    (void)lh_heartbeat(store, beats, 2, status, NULL);
    DAMAGE_ONLY(status[0], "a heartbeat");
    if (status[1] != LH_OK)
        FAIL("%s: a heartbeat of the sound job says %s", now_doing, lh_status_name(status[1]));
    DAMAGE_ONLY(lh_release(store, &(lh_ref){.job = RUNNING, .token = 77}, 1, 0, NULL, NULL),
                "a release");
    (void)lh_fail(store, failures, 2, status, NULL);
    DAMAGE_ONLY(status[0], "a failure");
    if (status[1] != LH_OK)
        FAIL("%s: the failure of the sound job says %s", now_doing, lh_status_name(status[1]));
    DAMAGE_ONLY(
        lh_complete(store, &(lh_done){.job = RUNNING, .token = tokens[RUNNING]}, 1, NULL, NULL),
        "a complete");
}

static void look(lh_store *store)
{
    lh_jobs *jobs = NULL;
    lh_queues *queues = NULL;
    lh_store_info info;

    DAMAGE_ONLY(lh_job_list(store, &(lh_job_filter){.limit = 100}, &jobs), "a list");
    lh_jobs_free(jobs);
    for (int64_t id = 1; id <= VICTIMS; id++) {
        jobs = NULL;
        DAMAGE_ONLY(lh_job_get(store, id, &jobs), "a look at a job");
        lh_jobs_free(jobs);
    }
    EXPECT_OK(lh_queue_list(store, &queues));
    lh_queues_free(queues);
    EXPECT_OK(lh_store_status(store, &info));
}

static void act(bool harmless)
{
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    lh_maintained upkeep;
    int64_t ids[VICTIMS], pruned;

    look(store);
    hold(store);
    expect_claim(store, "pending", false, harmless);
    pass_ms(2000);
    expect_claim(store, "expired", false, harmless);
    expect_claim(store, "scheduled", true, harmless);
    step_wall_ms(7200000); /* leases are shifted by the jump */
    (void)add(store, "pending", "sound");
    expect_claim(store, "pending", false, harmless);
    pass_ms(3600000);
    ACT_OK(lh_recover(store, NULL, NULL), "a recovery");
    ACT_OK(lh_maintain(store, NULL, &upkeep), "maintenance");
    for (int i = 0; i < VICTIMS; i++)
        ids[i] = i + 1;
    DAMAGE_ONLY(lh_cancel(store, ids, 1, NULL, NULL), "a cancel");
    DAMAGE_ONLY(lh_retry(store, ids + 1, 1, 0, NULL, NULL), "a retry");
    DAMAGE_ONLY(lh_delete(store, ids + 2, 1, NULL), "a delete");
    pass_ms(INT64_C(100) * 86400000);
    ACT_OK(lh_prune(store, 1, NULL, &pruned), "a prune");
    look(store);
    lh_close(store);
}

/* ---- every column ---- */

static bool check_finds(void)
{
    lh_findings *findings = NULL;
    lh_store *store = store_open("store.db", (lh_open_opts){.read_only = true});

    EXPECT_OK(lh_check(store, NULL, &findings));
    bool found = findings->errors > 0;
    lh_findings_free(findings);
    lh_close(store);
    return found;
}

/* A payload that does not match its checksum stays for the claim that will fail the job. */
static void expect_sound(lh_store *store)
{
    lh_findings *findings = NULL;

    EXPECT_OK(lh_check(store, NULL, &findings));
    for (size_t i = 0; i < findings->n; i++)
        if (strcmp(findings->finding[i].level, "error") == 0 &&
            strcmp(findings->finding[i].what, "payload") != 0)
            FAIL("%s: a repair leaves: %s", now_doing, findings->finding[i].text);
    lh_findings_free(findings);
}

static void expect_repaired(bool harmless)
{
    lh_store *store = store_open("store.db", (lh_open_opts){.repair = true});
    lh_jobs *jobs = NULL;
    bool payload = strncmp(now_doing, "payload", 7) == 0;

    expect_sound(store);
    EXPECT_OK(lh_job_list(store, &(lh_job_filter){.limit = 100}, &jobs));
    for (size_t i = 0; i < jobs->n; i++)
        if (jobs->job[i].id <= VICTIMS && !harmless && !payload &&
            jobs->job[i].state != LH_FAILED && jobs->job[i].state != LH_COMPLETED)
            FAIL("%s: after a repair job %lld is %s", now_doing, (long long)jobs->job[i].id,
                 lh_state_name(jobs->job[i].state));
    lh_jobs_free(jobs);
    expect_claim(store, "pending", false, harmless);
    lh_close(store);
}

/* Replace the store by a copy, without a log. */
static void put_store(const char *copy)
{
    static const char *const beside[] = {"store.db", "store.db-wal", "store.db-shm",
                                         "store.db-lease"};

    for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++)
        (void)unlink(beside[i]);
    copy_file(copy, "store.db");
}

/* Does the value differ from the current one in each of the jobs? */
static bool differs(const char *column, const char *value)
{
    char sql[200];
    sqlite3 *db = db_open("sound.db");

    (void)snprintf(sql, sizeof sql, "SELECT count(*) FROM lh_job WHERE id <= %d AND %s IS NOT %s",
                   VICTIMS, column, value);
    bool all = db_int(db, sql) == VICTIMS;
    sqlite3_close(db);
    return all;
}

/* Damage all jobs by one statement. The value differs from the current one in each of them. */
static void expect_survived(const char *column, const char *value, bool rows_alone)
{
    static const char *const decide_nothing[] = {
        "stage", "progress", "last_error", "checkpoint", "result", "worker", "state_changed_at"};
    char sql[300], what[300];
    bool harmless = false, decides = true;
    struct lhi_control before = *lhi_control();

    (void)snprintf(what, sizeof what, "%s = %s%s", column, value,
                   rows_alone ? " in the row alone" : "");
    now_doing = what;
    for (size_t i = 0; i < sizeof decide_nothing / sizeof decide_nothing[0]; i++)
        decides = decides && strcmp(column, decide_nothing[i]) != 0;
    harmless = !decides;
    put_store("sound.db");
    (void)snprintf(sql, sizeof sql, "UPDATE lh_job SET %s = %s WHERE id <= %d AND %s IS NOT %s",
                   column, value, VICTIMS, column, value);
    write_past_the_schema(sql, rows_alone);
    if (decides && !check_finds())
        FAIL("a check does not find %s", what);
    copy_file("store.db", "damaged.db");
    act(harmless);
    *lhi_control() = before;
    put_store("damaged.db");
    expect_repaired(harmless);
}

static void every_column(bool rows_alone)
{
    static const char *const columns[] = {"queue",
                                          "kind",
                                          "state",
                                          "priority",
                                          "attempt",
                                          "max_attempts",
                                          "recoveries",
                                          "token",
                                          "worker",
                                          "lease_until",
                                          "held_ms",
                                          "run_at",
                                          "created_at",
                                          "started_at",
                                          "finished_at",
                                          "state_changed_at",
                                          "last_heartbeat_at",
                                          "key",
                                          "expires_at",
                                          "lease_ms",
                                          "backoff_ms",
                                          "backoff_cap_ms",
                                          "stage",
                                          "progress",
                                          "last_error",
                                          "checkpoint",
                                          "result",
                                          "name_sum",
                                          "state_sum",
                                          "payload_sum",
                                          "payload"};
    /* A blob or text that reads as the same number would change nothing. */
    static const char *const values[] = {"NULL", "x'39'", "'9x'", "1.5", "7"};
    const size_t n = sizeof values / sizeof values[0];
    const char *only = getenv("DAMAGE_COLUMN"), *all = getenv("DAMAGE_ROUNDS");

    freeze_now();
    build();
    copy_file("store.db", "sound.db");
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        for (size_t k = 0, tried = 0; k < n && (tried == 0 || all != NULL || only != NULL); k++) {
            const char *value = values[(i + k) % n]; /* one value for each column, in turn */
            if ((only != NULL && strcmp(only, columns[i]) != 0) || !differs(columns[i], value))
                continue;
            tried++;
            expect_survived(columns[i], value, rows_alone);
        }
}

TEST_TIMEOUT(a_value_of_the_wrong_type_stops_no_act_for_other_jobs, 300)
{
    every_column(true);
}

/* The damage that another program causes, rather than a disk. */
TEST_TIMEOUT(a_value_of_the_wrong_type_that_the_indexes_have_too_stops_no_act_for_other_jobs, 300)
{
    every_column(false);
}
