/* Rows of the small tables have a checksum: lh_meta, policies, schedules, named leases, requests.
 * An act refuses a damaged row, a check names it, and a repair resolves it. Whatever row is
 * damaged, no token is issued twice. */
#include "store/sqlite.h"

#include <stdio.h>
#include <unistd.h>

static void damage(const char *sql)
{
    sqlite3 *db = db_open_to_damage("store.db");

    db_exec(db, sql);
    EXPECT(sqlite3_changes(db) > 0);
    db_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)");
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

static void expect_acquire(lh_store *store, const char *owner, int status, int64_t *token)
{
    lh_leases *leases = NULL;
    int rc = lh_lease_acquire(store, "etl", "orders",
                              &(lh_lease_opts){.owner = owner, .ttl_ms = 60000}, &leases);

    EXPECT_STATUS(rc, status);
    if (rc == LH_OK && token != NULL)
        *token = leases->lease[0].token;
    lh_leases_free(leases);
}

/* ---- every column of every table ---- */

static void fill(void)
{
    lh_store *store = store_new();
    lh_enqueued out;
    lh_new_job job = {.payload = "x", .payload_len = 1};

    EXPECT_OK(lh_enqueue(store, "mail", &job, 1, "order-7", &out));
    EXPECT_OK(lh_policy_set(store, "mail", NULL,
                            &(lh_policy){.set = LH_POLICY_EXCLUSIVE | LH_POLICY_LEASE,
                                         .exclusive = true,
                                         .lease_ms = 5000},
                            0));
    EXPECT_OK(lh_schedule_set(
        store,
        &(lh_schedule){.name = "nightly", .queue = "mail", .cron = "0 3 * * *", .job = job}));
    expect_acquire(store, "me", LH_OK, NULL);
    lh_close(store);
}

TEST(a_check_finds_damage_in_every_column_of_a_row_with_a_checksum)
{
    static const char *const tables[] = {"lh_meta", "lh_policy", "lh_schedule", "lh_lease",
                                         "lh_request"};
    sqlite3_stmt *stmt = NULL;
    int columns = 0;

    fill();
    EXPECT(!check_says("checksum"));
    copy_file("store.db", "sound.db");
    sqlite3 *db = db_open("sound.db");
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        char sql[300], part[80];
        (void)snprintf(sql, sizeof sql, "SELECT name, type FROM pragma_table_info('%s')",
                       tables[i]);
        EXPECT_EQ(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
        while (sqlite3_step(stmt) == SQLITE_ROW) {
            const char *name = (const char *)sqlite3_column_text(stmt, 0);
            bool number = strcmp((const char *)sqlite3_column_text(stmt, 1), "INTEGER") == 0;
            bool meta = i == 0;
            /* One row of lh_meta: damage to some of its others prevents opening the store. */
            (void)snprintf(sql, sizeof sql, "UPDATE %s SET %s = coalesce(%s%s, %s)%s", tables[i],
                           name, name, number ? " + 1" : " || 'y'", number ? "200000000000" : "'y'",
                           meta ? " WHERE key = 'created_at'" : "");
            copy_file("sound.db", "store.db");
            damage(sql);
            (void)snprintf(part, sizeof part, "of %s does not match its checksum", tables[i]);
            if (!check_says(part))
                FAIL("a check does not say \"%s\" after: %s", part, sql);
            columns++;
        }
        sqlite3_finalize(stmt);
    }
    sqlite3_close(db);
    EXPECT(columns > 50);
}

/* ---- acts refuse, a repair resolves ---- */

static lh_store *repaired(void)
{
    lh_store *store = store_open("store.db", (lh_open_opts){.repair = true});
    store_check(store);
    return store;
}

TEST(damaged_request_is_refused)
{
    lh_new_job job = {.payload = "x", .payload_len = 1};
    lh_enqueued out;

    fill();
    damage("UPDATE lh_request SET jobs = '[[77,0]]'");
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    EXPECT_STATUS(lh_enqueue(store, "mail", &job, 1, "order-7", &out), LH_ECORRUPT);
    EXPECT_CONTAINS(lh_errmsg(store), "order-7");
    EXPECT_EQ(lh_status_exit(LH_ECORRUPT), 6);
    EXPECT_OK(lh_enqueue(store, "mail", &job, 1, "order-8", &out));
    lh_close(store);
    store = repaired();
    EXPECT_OK(lh_enqueue(store, "mail", &job, 1, "order-7", &out));
    lh_close(store);
}

TEST(a_damaged_policy_stops_every_act_and_a_repair_pauses_its_queue)
{
    lh_jobs *jobs = NULL;
    const char *queue = "mail";
    const lh_claim_opts opts = {.queues = &queue, .n_queues = 1, .worker = "w-1"};

    fill();
    damage("UPDATE lh_policy SET exclusive = 0");
    lh_store *store = NULL;
    int rc = lh_open("store.db", NULL, &store);
    if (rc == LH_OK)
        rc = lh_claim(store, &opts, &jobs);
    EXPECT_STATUS(rc, LH_ECORRUPT);
    EXPECT_CONTAINS(lh_errmsg(store), "policy \"mail/*\"");
    lh_close(store);
    store = repaired();
    EXPECT_STATUS(lh_claim(store, &opts, &jobs), LH_EMPTY);
    EXPECT_OK(lh_queue_resume(store, "mail"));
    EXPECT_OK(lh_claim(store, &opts, &jobs));
    lh_jobs_free(jobs);
    lh_close(store);
}

TEST(a_damaged_schedule_enqueues_nothing)
{
    lh_maintained upkeep;

    freeze_now();
    fill();
    damage("UPDATE lh_schedule SET queue = 'maim'");
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    pass_ms(INT64_C(2) * 86400000);
    EXPECT_OK(lh_maintain(store, NULL, &upkeep));
    EXPECT_EQ(upkeep.enqueued, 0);
    lh_close(store);
    lh_close(repaired());
}

TEST(damaged_lease_is_neither_taken_nor_freed_until_a_repair)
{
    static const char *const changes[] = {"expires_at = 200000000000", "owner = 'mf'", "token = 1",
                                          "owner = NULL, expires_at = NULL"};
    lh_leases *leases = NULL;

    freeze_now();
    fill();
    copy_file("store.db", "sound.db");
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char sql[200];
        (void)unlink("store.db-lease");
        copy_file("sound.db", "store.db");
        (void)snprintf(sql, sizeof sql, "UPDATE lh_lease SET %s", changes[i]);
        damage(sql);
        lh_store *store = store_open("store.db", (lh_open_opts){0});
        expect_acquire(store, "another", LH_ECORRUPT, NULL);
        EXPECT_CONTAINS(lh_errmsg(store), "lease \"etl/orders\"");
        EXPECT_OK(lh_recover(store, NULL, NULL));
        expect_acquire(store, "another", LH_ECORRUPT, NULL);
        (void)add(store, "other", "it goes on");
        lh_close(store);
        store = repaired();
        EXPECT_OK(lh_lease_get(store, "etl", "orders", &leases));
        if (i < 3)
            EXPECT(leases->lease[0].remaining_ms >= 60000);
        lh_leases_free(leases);
        leases = NULL;
        lh_close(store);
    }
}

/* ---- a token is never issued twice ---- */

enum { MOST = 400 };

static struct {
    int64_t job[MOST], lease[MOST];
    size_t jobs, leases;
} given;

static void note(int64_t *tokens, size_t *n, int64_t token, const char *after)
{
    for (size_t i = 0; i < *n; i++)
        if (tokens[i] >= token)
            FAIL("token %lld is handed out after %lld: %s", (long long)token, (long long)tokens[i],
                 after);
    EXPECT(*n < MOST);
    tokens[(*n)++] = token;
}

/* Every act that issues a token, several times. */
static void hand_out(lh_store *store, int64_t id, const char *after)
{
    const char *queue = "mail";
    const lh_claim_opts claim = {.queues = &queue, .n_queues = 1, .worker = "w-1"};
    int64_t token;

    for (int i = 0; i < 2; i++) {
        lh_jobs *jobs = NULL;
        (void)lh_retry(store, &id, 1, 0, NULL, NULL); /* if the job was set aside */
        if (lh_claim(store, &claim, &jobs) == LH_OK) {
            note(given.job, &given.jobs, jobs->job[0].token, after);
            EXPECT_OK(lh_release(store, &(lh_ref){.job = id, .token = jobs->job[0].token}, 1, 0,
                                 NULL, NULL));
        }
        lh_jobs_free(jobs);
        lh_leases *leases = NULL;
        const lh_lease_opts opts = {.owner = "me", .ttl_ms = 1000};
        if (lh_lease_acquire(store, "etl", "orders", &opts, &leases) == LH_OK) {
            token = leases->lease[0].token;
            note(given.lease, &given.leases, token, after);
            EXPECT_OK(lh_lease_release(store, "etl", "orders", &opts, NULL));
        }
        lh_leases_free(leases);
    }
    pass_ms(400000); /* the lease that the repair extended ends */
}

TEST(no_token_is_issued_twice_whatever_row_is_damaged)
{
    static const char *const damages[] = {
        "UPDATE lh_job SET token = 1",
        "UPDATE lh_job SET token = token - 1",
        "UPDATE lh_job SET token = token + 1000",
        "UPDATE lh_job SET token = 1 << 52",
        "UPDATE lh_meta SET value = 0 WHERE key = 'epoch'",
        "UPDATE lh_meta SET value = value - 1 WHERE key = 'epoch'",
        "UPDATE lh_meta SET value = value + 2 WHERE key = 'epoch'",
        "UPDATE lh_meta SET value = 1 << 40 WHERE key = 'epoch'",
        "UPDATE lh_meta SET value = x'00' WHERE key = 'epoch'",
        "UPDATE lh_meta SET value = 0 WHERE key = 'epoch_copy'",
        "UPDATE lh_lease SET token = 1",
        "UPDATE lh_lease SET token = token - 1",
        "UPDATE lh_lease SET token = token + 1000"};
    const lh_lease_opts opts = {.owner = "me", .value = "{\"at\":1}"};

    freeze_now();
    lh_store *store = store_new();
    int64_t id = add(store, "mail", "x");
    EXPECT_OK(lh_lease_acquire(store, "etl", "orders", &opts, NULL));
    EXPECT_OK(lh_lease_complete(store, "etl", "orders", &opts, NULL)); /* the row stays */
    hand_out(store, id, "nothing");
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        lh_close(store);
        damage(damages[i]);
        store = NULL;
        if (lh_open("store.db", NULL, &store) == LH_OK)
            hand_out(store, id, damages[i]);
        lh_close(store);
        store = repaired();
        hand_out(store, id, damages[i]);
    }
    EXPECT(given.jobs > 20 && given.leases > 20);
    lh_close(store);
}
