/* See sqlite.h. */
#include "store/sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- time ---- */

void freeze_now(void)
{
    struct lhi_control *control = lhi_control();
    struct timespec wall;

    clock_gettime(CLOCK_REALTIME, &wall);
    control->frozen_wall_ms = (int64_t)wall.tv_sec * 1000 + wall.tv_nsec / 1000000;
    control->frozen_mono_ms = 5000000;
    control->frozen = true;
}

void pass_ms(int64_t ms)
{
    __atomic_add_fetch(&lhi_control()->wall_ms, ms, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&lhi_control()->mono_ms, ms, __ATOMIC_SEQ_CST);
}

void step_wall_ms(int64_t ms)
{
    __atomic_add_fetch(&lhi_control()->wall_ms, ms, __ATOMIC_SEQ_CST);
}

void boot_again(const char *boot)
{
    struct lhi_control *control = lhi_control();

    (void)snprintf(control->boot, sizeof control->boot, "%s", boot);
    control->mono_ms = 0;
    control->frozen_mono_ms = 1000;
}

/* ---- the store ---- */

lh_store *store_open(const char *path, lh_open_opts opts)
{
    lh_store *store = NULL;
    int rc = lh_open(path, &opts, &store);

    if (rc != LH_OK)
        FAIL("could not open \"%s\": %s: %s", path, lh_status_name(rc), lh_errmsg(store));
    EXPECT_STR(lh_errmsg(store), "");
    return store;
}

lh_store *store_new(void)
{
    return store_open("store.db", (lh_open_opts){.create = true});
}

void expect_open(const char *path, lh_open_opts opts, int status, const char *part)
{
    lh_store *store = NULL;
    int rc = lh_open(path, &opts, &store);

    EXPECT_STATUS(rc, status);
    EXPECT(store != NULL); /* the reason is read from it */
    EXPECT_CONTAINS(lh_errmsg(store), part);
    EXPECT_STATUS(lh_queue_pause(store, "mail"), LH_EMISUSE);
    EXPECT_CONTAINS(lh_errmsg(store), part); /* it can still be read */
    lh_close(store);
}

void store_check(lh_store *store)
{
    lh_findings *findings = NULL;

    EXPECT_OK(lh_check(store, NULL, &findings));
    for (size_t i = 0; i < findings->n; i++)
        if (strcmp(findings->finding[i].level, "error") == 0)
            FAIL("the store finds a fault: %s: %s", findings->finding[i].what,
                 findings->finding[i].text);
    lh_findings_free(findings);
}

int64_t add(lh_store *store, const char *queue, const char *payload)
{
    lh_enqueued out;
    lh_new_job job = {.payload = payload, .payload_len = strlen(payload)};

    if (lh_enqueue(store, queue, &job, 1, NULL, &out) != LH_OK)
        FAIL("could not enqueue: %s", lh_errmsg(store));
    return out.id;
}

lh_jobs *take(lh_store *store, const char *queue, const char *worker, int64_t lease_ms)
{
    lh_jobs *jobs = NULL;
    int rc = lh_claim(
        store,
        &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = worker, .lease_ms = lease_ms},
        &jobs);

    if (rc != LH_OK && rc != LH_EMPTY)
        FAIL("could not claim: %s", lh_errmsg(store));
    return jobs;
}

lh_state state_of(lh_store *store, int64_t id)
{
    lh_jobs *jobs = NULL;

    if (lh_job_get(store, id, &jobs) != LH_OK)
        FAIL("could not read job %lld: %s", (long long)id, lh_errmsg(store));
    lh_state state = jobs->job[0].state;
    lh_jobs_free(jobs);
    return state;
}

lh_queue counts_of(lh_store *store, const char *queue)
{
    lh_queues *queues = NULL;
    lh_queue found = {.oldest_pending_ms = -1};

    EXPECT_OK(lh_queue_list(store, &queues));
    for (size_t i = 0; i < queues->n; i++)
        if (strcmp(queues->queue[i].queue, queue) == 0)
            found = queues->queue[i];
    lh_queues_free(queues);
    found.queue = NULL;
    return found;
}

/* ---- a foreign connection ---- */

sqlite3 *db_open(const char *path)
{
    sqlite3 *db = NULL;

    if (sqlite3_open(path, &db) != SQLITE_OK)
        FAIL("could not open \"%s\": %s", path, sqlite3_errmsg(db));
    (void)sqlite3_busy_timeout(db, 5000);
    return db;
}

sqlite3 *db_open_to_damage(const char *path)
{
    sqlite3 *db = db_open(path);

    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    db_exec(db, "PRAGMA ignore_check_constraints = ON");
    return db;
}

void db_exec(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        FAIL("%s\n  in: %s", sqlite3_errmsg(db), sql);
}

int db_try(sqlite3 *db, const char *sql)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL) & 0xff;
}

int64_t db_int(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *stmt = NULL;

    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK ||
        sqlite3_step(stmt) != SQLITE_ROW)
        FAIL("%s\n  in: %s", sqlite3_errmsg(db), sql);
    int64_t value = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return value;
}

/* ---- files ---- */

bool file_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

int64_t file_size(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
}

unsigned char *file_bytes(const char *path, size_t *len)
{
    FILE *in = fopen(path, "rb");
    size_t size = (size_t)file_size(path);
    unsigned char *bytes = malloc(size + 1);

    if (in == NULL || bytes == NULL)
        FAIL("could not read \"%s\": %s", path, strerror(errno));
    *len = fread(bytes, 1, size, in);
    fclose(in);
    return bytes;
}

void file_write(const char *path, const void *bytes, size_t len)
{
    FILE *out = fopen(path, "wb");

    if (out == NULL || fwrite(bytes, 1, len, out) != len || fclose(out) != 0)
        FAIL("could not write \"%s\": %s", path, strerror(errno));
}

void copy_file(const char *from, const char *to)
{
    size_t len;
    unsigned char *bytes = file_bytes(from, &len);

    file_write(to, bytes, len);
    free(bytes);
}
