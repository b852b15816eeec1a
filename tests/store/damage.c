/* See damage.h. */
#include "store/damage.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BATCH = 500 };

/* ---- a store with rows in every table ---- */

static void enqueue_batch(lh_store *store, int first, int n)
{
    static char payloads[BATCH][12000], keys[BATCH][32];
    lh_new_job jobs[BATCH] = {0};
    lh_enqueued out[BATCH];

    for (int i = 0; i < n; i++) {
        int at = first + i;
        size_t len = at % 50 == 7 ? sizeof payloads[0] - 1 : 40;
        memset(payloads[i], 'a' + at % 26, len);
        payloads[i][len] = '\0';
        (void)snprintf(payloads[i], 30, "payload-of-job-%06d-%s", at, "x");
        payloads[i][strlen(payloads[i])] = '.';
        jobs[i] = (lh_new_job){.payload = payloads[i], .payload_len = len, .priority = at % 5};
        if (at % 4 == 1)
            jobs[i].kind = "letter";
        if (at % 9 == 2) {
            (void)snprintf(keys[i], sizeof keys[i], "key-%06d", at);
            jobs[i].key = keys[i];
        }
        if (at % 11 == 3)
            jobs[i].delay_ms = 3600000 + at;
        if (at % 13 == 4)
            jobs[i].expires_ms = 7200000 + at;
    }
    char request[32];
    (void)snprintf(request, sizeof request, "request-%06d", first);
    if (lh_enqueue(store, first / BATCH % 2 ? "mail" : "print", jobs, (size_t)n, request, out) !=
        LH_OK)
        FAIL("could not enqueue: %s", lh_errmsg(store));
}

static void enqueue_many(lh_store *store, int first, int n)
{
    for (int done = 0; done < n; done += BATCH)
        enqueue_batch(store, first + done, n - done < BATCH ? n - done : BATCH);
}

static void work(lh_store *store, int n)
{
    const char *queues[] = {"print", "mail"};
    static char lines[9000]; /* longer than a page */
    lh_jobs *jobs = NULL;

    memset(lines, 'l', sizeof lines);
    EXPECT_OK(lh_claim(
        store,
        &(lh_claim_opts){
            .queues = queues, .n_queues = 2, .worker = "w1", .n = (size_t)n, .lease_ms = 3600000},
        &jobs));
    for (size_t i = 0; i < jobs->n; i++) {
        const lh_job *job = &jobs->job[i];
        const lh_output output = {.out = {.head = "well done", .head_len = 9},
                                  .err = {.tail = lines, .tail_len = i * 16 % sizeof lines}};
        if (i % 5 < 2)
            EXPECT_OK(lh_complete(store,
                                  &(lh_done){.job = job->id,
                                             .token = job->token,
                                             .result = "well done",
                                             .result_len = 9,
                                             .output = &output},
                                  1, NULL, NULL));
        else if (i % 5 == 2)
            EXPECT_OK(lh_fail(store,
                              &(lh_failure){.job = job->id,
                                            .token = job->token,
                                            .error = "out of paper",
                                            .permanent = i % 2 == 0},
                              1, NULL, NULL));
        else if (i % 5 == 3)
            EXPECT_OK(lh_cancel(store, &job->id, 1, NULL, NULL));
    }
    lh_jobs_free(jobs);
}

static void furnish(lh_store *store)
{
    char id[160];

    EXPECT_OK(lh_policy_set(store, "mail", NULL,
                            &(lh_policy){.set = LH_POLICY_LEASE, .lease_ms = 600000}, 0));
    EXPECT_OK(lh_policy_set(store, "print", "letter",
                            &(lh_policy){.set = LH_POLICY_AUDIT, .audit = LH_AUDIT_FULL}, 0));
    EXPECT_OK(lh_lease_acquire(store, "sync", "chunk-1",
                               &(lh_lease_opts){.owner = "me", .ttl_ms = 3600000}, NULL));
    EXPECT_OK(lh_lease_acquire(
        store, "sync", "chunk-2",
        &(lh_lease_opts){.owner = "me", .ttl_ms = 3600000, .value = "{\"row\":17}"}, NULL));
    EXPECT_OK(lh_worker_register(store, &(lh_worker_opts){.label = "press", .interval_ms = 3600000},
                                 id, sizeof id));
    EXPECT_OK(lh_queue_pause(store, "fax"));
    EXPECT_OK(lh_schedule_set(store, &(lh_schedule){.name = "yearly",
                                                    .queue = "mail",
                                                    .cron = "@every 365d",
                                                    .job = {.payload = "\0x", .payload_len = 2}}));
    EXPECT_OK(lh_schedule_set(store, &(lh_schedule){.name = "later",
                                                    .queue = "print",
                                                    .cron = "@every 3650d",
                                                    .job = {.kind = "letter", .key = "k"}}));
}

static void build(int jobs)
{
    lh_store *store = store_new();

    furnish(store);
    enqueue_many(store, 0, jobs);
    work(store, jobs < 10000 ? jobs / 10 : 1000);
    sqlite3 *db = db_open("store.db");
    db_exec(db, "INSERT INTO lh_job(queue, payload) VALUES ('sql', 'plain'), ('sql', x'00ff00')");
    sqlite3_close(db);
    lh_close(store);
}

void full_store_build(int jobs)
{
    build(jobs);
    copy_file("store.db", "before.db");
    EXPECT(!file_exists("store.db-wal") || file_size("store.db-wal") == 0);
}

void full_store_build_crashed(int jobs, int tail)
{
    build(jobs);
    pid_t child = test_fork();
    if (child == 0) {
        lh_store *store = store_new();
        enqueue_many(store, 1000000, tail);
        test_child_done(); /* the store is not closed, so everything is in the log */
    }
    EXPECT_EQ(test_wait(child).code, 0);
    copy_file("store.db", "before.db");
    copy_file("store.db-wal", "before.db-wal");
    sqlite3 *db = db_open("before.db");
    db_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_close(db);
}

void full_store_share(void)
{
    sqlite3 *db = db_open("store.db");
    db_exec(
        db,
        "CREATE TABLE account(name TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0));"
        "CREATE TABLE pair(a, b, PRIMARY KEY (b, a)) WITHOUT ROWID;"
        "CREATE TABLE doc(title TEXT, body BLOB, size INTEGER AS (length(body)) STORED, "
        "                 half INTEGER AS (size / 2));"
        "CREATE VIRTUAL TABLE words USING fts5(word);"
        "CREATE INDEX doc_title ON doc(title);"
        "CREATE INDEX account_of_job ON lh_job(created_at);"
        "CREATE VIEW rich AS SELECT name FROM account WHERE cents > 100000;"
        "CREATE TRIGGER doc_word AFTER INSERT ON doc BEGIN "
        "  INSERT INTO words VALUES (new.title); END;"
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
        "INSERT INTO account SELECT 'account-' || i, i * 7 FROM n;"
        "INSERT INTO pair SELECT cents, name FROM account WHERE cents < 4000;"
        "INSERT INTO doc(rowid, title, body) SELECT cents * 3, name, randomblob(cents) "
        "  FROM account WHERE cents % 4 = 0 AND cents < 9000;"
        "ALTER TABLE account ADD COLUMN limit_cents INTEGER DEFAULT 5000;"
        "INSERT INTO account VALUES ('late', 3, 17);"
        "UPDATE lh_meta SET value = 0, row_sum = NULL WHERE key = 'own_file';"
        "PRAGMA wal_checkpoint(TRUNCATE);");
    sqlite3_close(db);
    copy_file("store.db", "before.db");
}

/* ---- damage ---- */

/* Ask SQLite which page belongs to which tree. */
static int64_t find_page(const char *tree, const char *kind, int n, int *count)
{
    sqlite3 *db = db_open("before.db");
    sqlite3_stmt *stmt = NULL;
    int64_t pages[20000];
    int found = 0;

    EXPECT_EQ(sqlite3_prepare_v2(db,
                                 "SELECT pageno FROM dbstat WHERE name = ?1 AND pagetype = ?2 "
                                 "ORDER BY path",
                                 -1, &stmt, NULL),
              SQLITE_OK);
    sqlite3_bind_text(stmt, 1, tree, -1, SQLITE_STATIC);
    sqlite3_bind_text(stmt, 2, kind, -1, SQLITE_STATIC);
    while (sqlite3_step(stmt) == SQLITE_ROW && found < 20000)
        pages[found++] = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    *count = found;
    if (n < 0)
        n += found;
    return n >= 0 && n < found ? pages[n] : 0;
}

int64_t page_of(const char *tree, const char *kind, int n)
{
    int count;
    int64_t page = find_page(tree, kind, n, &count);

    if (page == 0)
        FAIL("%s has only %d pages of the kind \"%s\"", tree, count, kind);
    return page;
}

int pages_of(const char *tree, const char *kind)
{
    int count;

    (void)find_page(tree, kind, 0, &count);
    return count;
}

int64_t root_of(const char *tree)
{
    char text[200];
    sqlite3 *db = db_open("before.db");

    (void)snprintf(text, sizeof text, "SELECT rootpage FROM sqlite_schema WHERE name = '%s'", tree);
    int64_t root = db_int(db, text);
    sqlite3_close(db);
    return root;
}

static size_t page_size(void)
{
    sqlite3 *db = db_open("before.db");
    int64_t size = db_int(db, "PRAGMA page_size");

    sqlite3_close(db);
    return (size_t)size;
}

void page_fill(int64_t page, int byte)
{
    size_t len, size = page_size();
    unsigned char *bytes = file_bytes("store.db", &len);

    EXPECT((size_t)page * size <= len);
    memset(bytes + (size_t)(page - 1) * size, byte, size);
    file_write("store.db", bytes, len);
    free(bytes);
}

void page_patch(int64_t page, const void *was, const void *now, size_t len)
{
    size_t size, one = page_size();
    unsigned char *bytes = file_bytes("store.db", &size);
    size_t at = page ? (size_t)(page - 1) * one : 0, end = page ? at + one : size;

    while (at + len <= end && memcmp(bytes + at, was, len) != 0)
        at++;
    EXPECT(at + len <= end);
    memcpy(bytes + at, now, len);
    file_write("store.db", bytes, size);
    free(bytes);
}

void page_write(int64_t page, size_t at, const void *bytes, size_t len)
{
    size_t size, one = page_size();
    unsigned char *file = file_bytes("store.db", &size);

    EXPECT((size_t)page * one <= size && at + len <= one);
    memcpy(file + (size_t)(page - 1) * one + at, bytes, len);
    file_write("store.db", file, size);
    free(file);
}

unsigned char *page_bytes(int64_t page)
{
    size_t size, one = page_size();
    unsigned char *file = file_bytes("before.db", &size), *bytes = malloc(one);

    EXPECT(bytes != NULL && (size_t)page * one <= size);
    memcpy(bytes, file + (size_t)(page - 1) * one, one);
    free(file);
    return bytes;
}

/* By the file format: a cell of a leaf begins with its length and its row id, as varints. */
static const unsigned char *varint(const unsigned char *p, int64_t *out)
{
    *out = 0;
    for (int i = 0; i < 9; i++, p++) {
        *out = *out << 7 | (*p & 0x7f);
        if ((*p & 0x80) == 0)
            return p + 1;
    }
    return p;
}

int jobs_on(int64_t page, int64_t *ids, int room)
{
    size_t len;
    unsigned char *bytes = file_bytes("before.db", &len);
    const unsigned char *p = bytes + (size_t)(page - 1) * page_size();

    EXPECT_EQ(p[0], 0x0d);
    int cells = p[3] << 8 | p[4];
    for (int i = 0; i < cells && i < room; i++) {
        int64_t ignored;
        (void)varint(varint(p + (p[8 + i * 2] << 8 | p[9 + i * 2]), &ignored), &ids[i]);
    }
    EXPECT(cells > 0 && cells <= room);
    free(bytes);
    return cells;
}

/* ---- opening ---- */

lh_store *repair_open(void)
{
    return store_open("store.db", (lh_open_opts){.startup = true});
}

lh_report *repair_report(lh_store *store)
{
    lh_report *report = NULL;

    if (lh_report_get(store, 0, &report) != LH_OK)
        FAIL("no report: %s", lh_errmsg(store));
    return report;
}

int report_count(const lh_report *report, const char *part)
{
    int n = 0;

    for (size_t i = 0; i < report->n_inconsistencies; i++)
        n += strstr(report->inconsistencies[i], part) != NULL;
    return n;
}

void expect_said(const lh_report *report, const char *fmt, ...)
{
    char part[300];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(part, sizeof part, fmt, ap);
    va_end(ap);
    if (report_count(report, part) == 0) {
        for (size_t i = 0; i < report->n_inconsistencies; i++)
            (void)fprintf(stderr, "  said: %s\n", report->inconsistencies[i]);
        FAIL("the report does not say: %s", part);
    }
}

int64_t epoch_of(lh_store *store)
{
    lh_store_info info;

    EXPECT_OK(lh_store_status(store, &info));
    return info.epoch;
}

/* ---- comparing ---- */

int64_t rows_changed(const char *table, const char *where)
{
    char text[600];
    sqlite3 *db = db_open("store.db");

    db_exec(db, "ATTACH 'before.db' AS was");
    (void)snprintf(text, sizeof text,
                   "SELECT count(*) FROM (SELECT * FROM was.%s WHERE %s EXCEPT "
                   "SELECT * FROM main.%s)",
                   table, where, table);
    int64_t n = db_int(db, text);
    sqlite3_close(db);
    return n;
}

int64_t rows_gone(const char *table, const char *key)
{
    char text[600];
    sqlite3 *db = db_open("store.db");

    db_exec(db, "ATTACH 'before.db' AS was");
    (void)snprintf(text, sizeof text,
                   "SELECT count(*) FROM (SELECT %s FROM was.%s EXCEPT SELECT %s FROM main.%s)",
                   key, table, key, table);
    int64_t n = db_int(db, text);
    sqlite3_close(db);
    return n;
}

static void expect_table(const char *table, const char *where)
{
    int64_t n = rows_changed(table, where);

    if (n != 0)
        FAIL("%lld rows of %s are not as they were", (long long)n, table);
}

static void expect_jobs(const int64_t *ids, int n)
{
    sqlite3 *db = db_open("store.db");
    char text[200];

    db_exec(db, "CREATE TEMP TABLE gone(id INTEGER PRIMARY KEY); ATTACH 'before.db' AS was");
    for (int i = 0; i < n; i++) {
        (void)snprintf(text, sizeof text, "INSERT INTO gone VALUES (%lld)", (long long)ids[i]);
        db_exec(db, text);
    }
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_job WHERE id IN gone"), 0);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM (SELECT * FROM was.lh_job WHERE id NOT IN gone "
                         "EXCEPT SELECT * FROM main.lh_job)"),
              0);
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM lh_job"),
              db_int(db, "SELECT count(*) FROM was.lh_job") - n);
    sqlite3_close(db);
}

void expect_same(lh_store *store, const int64_t *ids, int n)
{
    static const char *const tables[] = {"lh_policy",     "lh_scope",  "lh_lease",   "lh_request",
                                         "lh_quarantine", "lh_expiry", "lh_worker",  "lh_rollup",
                                         "lh_event",      "lh_report", "lh_schedule"};

    expect_jobs(ids, n);
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        expect_table(tables[i], "true");
    /* The output of a lost job is lost with it. */
    expect_table("lh_output", "job IN (SELECT id FROM main.lh_job)");
    expect_table("lh_meta", "key NOT IN ('epoch', 'epoch_copy')");
    if (n == 0)
        expect_table("lh_queue", "queue <> '*'");
    expect_table("sqlite_sequence", "name = 'lh_job'");
    store_check(store);
    expect_kept();
}

/* ---- files ---- */

/* The number of files with `part` in their name that do not end in `but` (NULL: any); `name`: one
 * of them. */
static int files_with(const char *part, const char *but, char *name, size_t len)
{
    DIR *dir = opendir(".");
    struct dirent *entry;
    int n = 0;

    EXPECT(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        size_t end = strlen(entry->d_name);
        if (strstr(entry->d_name, part) == NULL ||
            (but != NULL && strcmp(entry->d_name + end - strlen(but), but) == 0))
            continue;
        (void)snprintf(name, len, "%s", entry->d_name);
        n++;
    }
    (void)closedir(dir);
    return n;
}

void note_damaged_file(void)
{
    copy_file("store.db", "ruined");
    if (file_size("store.db-wal") > 0)
        copy_file("store.db-wal", "ruined-wal");
}

static void expect_bytes(const char *a, const char *b)
{
    size_t a_len, b_len;
    unsigned char *x = file_bytes(a, &a_len), *y = file_bytes(b, &b_len);

    if (a_len != b_len || memcmp(x, y, a_len) != 0)
        FAIL("%s is not as it was", a);
    free(x);
    free(y);
}

void expect_kept(void)
{
    char name[300] = "", other[300];

    EXPECT_EQ(files_with("store.db.repair-", NULL, other, sizeof other), 0);
    EXPECT_EQ(files_with("-new", NULL, other, sizeof other), 0);
    EXPECT_EQ(files_with("store.db.damaged-", "-wal", name, sizeof name), 1);
    if (file_exists("ruined"))
        expect_bytes(name, "ruined");
    if (file_exists("ruined-wal")) {
        (void)snprintf(other, sizeof other, "%.290s-wal", name);
        expect_bytes(other, "ruined-wal");
    }
}

void expect_nothing_left(void)
{
    char name[300];

    EXPECT_EQ(files_with("store.db.repair-", NULL, name, sizeof name), 0);
    EXPECT_EQ(files_with("store.db.damaged-", NULL, name, sizeof name), 0);
    expect_bytes("store.db", "ruined");
    if (file_exists("ruined-wal"))
        expect_bytes("store.db-wal", "ruined-wal");
}

void expect_as_made(void)
{
    sqlite3 *db = db_open("store.db");

    EXPECT_EQ(db_int(db, "PRAGMA auto_vacuum"), 2);
    EXPECT_EQ(db_int(db, "PRAGMA application_id"), 0x4c484c44);
    EXPECT_EQ(db_int(db, "PRAGMA user_version"), lh_schema_version());
    EXPECT_EQ(db_int(db, "SELECT count(*) FROM pragma_journal_mode WHERE journal_mode = 'wal'"), 1);
    sqlite3_close(db);
}
