/* The checksums of a job cover every column that decides something. A check finds the damage, and
 * claims, recoveries and repairs set a damaged job aside under a token that was never issued. Rows
 * are changed without triggers and constraints, as bytes change on a disk. */
#include "store/sqlite.h"

#include <stdio.h>

static void damage(const char *sql)
{
    sqlite3 *db = db_open_to_damage("store.db");

    db_exec(db, sql);
    EXPECT_EQ(sqlite3_changes(db), 1);
    sqlite3_close(db);
}

static bool check_says(const char *part)
{
    lh_findings *findings = NULL;
    bool said = false;
    lh_store *store = store_open("store.db", (lh_open_opts){.read_only = true});

    EXPECT_OK(lh_check(store, NULL, &findings));
    for (size_t i = 0; i < findings->n; i++)
        said = said || (strcmp(findings->finding[i].level, "error") == 0 &&
                        strstr(findings->finding[i].text, part) != NULL);
    lh_findings_free(findings);
    lh_close(store);
    return said;
}

static void expect_damage_found(const char *change, const char *part)
{
    char sql[200];

    copy_file("store.db", "sound.db");
    EXPECT(!check_says("checksum"));
    (void)snprintf(sql, sizeof sql, "UPDATE lh_job SET %s WHERE id = 1", change);
    damage(sql);
    if (!check_says(part))
        FAIL("a check does not say \"%s\" after %s", part, change);
    copy_file("sound.db", "store.db");
}

/* A job with every column set, after every kind of act. */
static void store_with_a_job(void)
{
    lh_store *store = store_new();
    lh_new_job job = {.kind = "k",
                      .key = "order-7",
                      .payload = "x",
                      .payload_len = 1,
                      .lease_ms = 60000,
                      .expires_ms = 3600000,
                      .backoff_ms = 10,
                      .backoff_cap_ms = 20};
    lh_enqueued out;

    EXPECT_OK(lh_enqueue(store, "mail", &job, 1, NULL, &out));
    lh_jobs_free(take(store, "mail", "w-1", 0));
    lh_close(store);
}

TEST(check_finds_damage_in_every_number_that_decides_something)
{
    static const char *const columns[] = {
        "priority",    "attempt",    "max_attempts",  "recoveries", "token",
        "lease_until", "held_ms",    "created_at",    "started_at", "expires_at",
        "lease_ms",    "backoff_ms", "backoff_cap_ms"};
    static const char *const others[] = {"run_at = 1800000000000",
                                         "finished_at = 1800000000000",
                                         "last_heartbeat_at = 1800000000000",
                                         "max_attempts = NULL",
                                         "held_ms = NULL",
                                         "state = 'completed'",
                                         "payload_sum = NULL",
                                         "name_sum = NULL",
                                         "id = 77"};
    char change[80];

    store_with_a_job();
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        (void)snprintf(change, sizeof change, "%s = %s - 1", columns[i], columns[i]);
        expect_damage_found(change, "row does not match its checksum");
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        expect_damage_found(others[i], "row does not match its checksum");
}

TEST(a_check_finds_damage_in_queue_kind_and_key)
{
    static const char *const changes[] = {"queue = 'maim'", "kind = 'l'", "kind = NULL",
                                          "key = 'order-3'", "key = NULL"};

    store_with_a_job();
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
        expect_damage_found(changes[i], "job 1: queue, kind or key does not match its checksum");
}

TEST(job_of_a_plain_insert_gets_checksums)
{
    lh_close(store_new());
    sqlite3 *db = db_open("store.db");
    db_exec(db, "INSERT INTO lh_job(queue, priority, payload) VALUES('mail', 3, 'x')");
    sqlite3_close(db);
    expect_damage_found("priority = 4", "job 1: row does not match its checksum");
    lh_store *store = store_new();
    lh_jobs_free(take(store, "mail", "w-1", 0));
    lh_close(store);
    expect_damage_found("queue = 'maim'", "queue, kind or key does not match its checksum");
    expect_damage_found("payload = 'y'", "payload does not match its checksum");
}

static void expect_corrupt(lh_store *store, int64_t id, const char *why)
{
    lh_jobs *jobs = NULL;

    EXPECT_OK(lh_job_get(store, id, &jobs));
    EXPECT_EQ(jobs->job[0].state, LH_FAILED);
    EXPECT_CONTAINS(jobs->job[0].last_error, "CORRUPT: ");
    EXPECT_CONTAINS(jobs->job[0].last_error, why);
    lh_jobs_free(jobs);
}

/* A retry gets a token above all that were issued, whatever the row says. */
static void expect_higher_token(lh_store *store, int64_t id, int64_t before)
{
    EXPECT_OK(lh_retry(store, &id, 1, 0, NULL, NULL));
    lh_jobs *jobs = take(store, "mail", "w-2", 0);
    EXPECT(jobs != NULL);
    EXPECT_EQ(jobs->job[0].id, id);
    EXPECT(jobs->job[0].token > before);
    lh_jobs_free(jobs);
}

TEST(damaged_pending_job_is_set_aside_and_its_token_rises)
{
    lh_store *store = store_new();
    int64_t id = add(store, "mail", "x"), token = 0;

    for (int i = 0; i < 3; i++) {
        lh_jobs *jobs = take(store, "mail", "w-1", 0);
        token = jobs->job[0].token;
        EXPECT_OK(lh_release(store, &(lh_ref){.job = id, .token = token}, 1, 0, NULL, NULL));
        lh_jobs_free(jobs);
    }
    int64_t sound = add(store, "mail", "behind it");
    damage("UPDATE lh_job SET token = 1 WHERE id = 1");
    lh_jobs *jobs = take(store, "mail", "w-1", 0);
    EXPECT_EQ(jobs->job[0].id, sound);
    lh_jobs_free(jobs);
    expect_corrupt(store, id, "row does not match its checksum");
    expect_higher_token(store, id, token);
    store_check(store);
    lh_close(store);
}

/* Change one byte of the state in the row only, as on a disk: the index still says pending. */
static void damage_state_in_the_file(void)
{
    static char bytes[1 << 20];
    FILE *file = fopen("store.db", "r+b");

    EXPECT(file != NULL);
    size_t len = fread(bytes, 1, sizeof bytes, file);
    char *row = memmem(bytes, len, "mailpending", 11);
    EXPECT(row != NULL);
    EXPECT_EQ(fseek(file, row - bytes + 5, SEEK_SET), 0);
    EXPECT_EQ(fputc('E', file), 'E');
    EXPECT_EQ(fclose(file), 0);
}

TEST(claim_skips_a_row_that_contradicts_its_index)
{
    const char *queue = "mail";
    const lh_claim_opts opts = {.queues = &queue, .n_queues = 1, .worker = "w-1"};
    lh_jobs *jobs = NULL;
    lh_store *store = store_new();

    (void)add(store, "mail", "x");
    lh_close(store);
    damage_state_in_the_file();
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_STATUS(lh_claim(store, &opts, &jobs), LH_EMPTY);
    int64_t sound = add(store, "mail", "sound");
    EXPECT_OK(lh_claim(store, &opts, &jobs));
    EXPECT_EQ(jobs->n, 1);
    EXPECT_EQ(jobs->job[0].id, sound);
    lh_jobs_free(jobs);
    sqlite3 *db = db_open("store.db");
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_event WHERE type = 'job.damaged' AND job = 1"),
              1);
    sqlite3_close(db);
    lh_close(store);
    store = store_open("store.db", (lh_open_opts){0});
    EXPECT_STATUS(lh_claim(store, &opts, &jobs), LH_EMPTY);
    store_check(store);
    lh_close(store);
}

TEST(a_job_whose_queue_was_damaged_is_not_run_in_another)
{
    lh_store *store = store_new();
    int64_t id = add(store, "mail", "x");

    damage("UPDATE lh_job SET queue = 'maim' WHERE id = 1");
    EXPECT(take(store, "maim", "w-1", 0) == NULL);
    expect_corrupt(store, id, "queue, kind or key");
    lh_close(store);
}

TEST(repair_sets_aside_a_running_job_with_a_damaged_queue)
{
    lh_store *store = store_new();
    int64_t id = add(store, "mail", "x");

    lh_jobs_free(take(store, "mail", "w-1", 0));
    lh_close(store);
    damage("UPDATE lh_job SET queue = 'maim' WHERE id = 1");
    store = store_open("store.db", (lh_open_opts){.repair = true});
    expect_corrupt(store, id, "queue, kind or key does not match its checksum");
    store_check(store);
    lh_close(store);
}

TEST(damaged_running_job_is_lost_for_its_holder_and_set_aside)
{
    freeze_now();
    lh_store *store = store_new();
    int64_t id = add(store, "mail", "x"), other = add(store, "mail", "sound");
    lh_jobs *first = take(store, "mail", "w-1", 1000), *second = take(store, "mail", "w-1", 1000);
    int64_t token = first->job[0].token;

    damage("UPDATE lh_job SET attempt = 2 WHERE id = 1");
    lh_beat beats[] = {{.job = id, .token = token}, {.job = other, .token = second->job[0].token}};
    int status[2];
    (void)lh_heartbeat(store, beats, 2, status, NULL);
    EXPECT_EQ(status[0], LH_ELOST);
    EXPECT_EQ(status[1], LH_OK);
    pass_ms(1001);
    EXPECT_OK(lh_recover(store, NULL, NULL));
    expect_corrupt(store, id, "row does not match its checksum");
    EXPECT_EQ(state_of(store, other), LH_PENDING);
    lh_jobs_free(take(store, "mail", "w-1", 0));
    expect_higher_token(store, id, token);
    store_check(store);
    lh_jobs_free(first);
    lh_jobs_free(second);
    lh_close(store);
}

TEST(repair_reports_and_fails_a_damaged_job)
{
    lh_store_info info;
    lh_store *store = store_new();
    int64_t id = add(store, "mail", "x");
    lh_jobs *jobs = take(store, "mail", "w-1", 0);
    int64_t token = jobs->job[0].token;

    lh_jobs_free(jobs);
    add(store, "mail", "sound");
    lh_close(store);
    damage("UPDATE lh_job SET lease_until = lease_until - 1000 WHERE id = 1");
    store = store_open("store.db", (lh_open_opts){.repair = true});
    expect_corrupt(store, id, "row was damaged");
    EXPECT_OK(lh_store_status(store, &info));
    EXPECT_EQ(info.epoch, 1);
    lh_jobs_free(take(store, "mail", "w-1", 0));
    expect_higher_token(store, id, token);
    store_check(store);
    lh_close(store);
}

TEST(an_update_by_another_program_is_refused)
{
    static const char *const changes[] = {"state = 'pending', lease_until = NULL, worker = NULL",
                                          "token = token + 1", "priority = 9", "rowid = 5"};

    store_with_a_job();
    sqlite3 *db = db_open("store.db");
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char sql[200];
        (void)snprintf(sql, sizeof sql, "UPDATE lh_job SET %s", changes[i]);
        EXPECT_EQ(db_try(db, sql), SQLITE_CONSTRAINT);
        EXPECT_CONTAINS(sqlite3_errmsg(db), "changed past leasehold");
    }
    sqlite3_close(db);
}
