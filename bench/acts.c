/*
 * The operations of the product in plain SQLite: one connection, prepared statements, a loop.
 */
#include "floor.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_PROCESSES = 64, MAX_BATCH = 1000, BULK = 1000, LEASE_MS = 300000, SYNCS = 500 };

/* ---- the disk ---- */

void floor_sync(const struct floor_opts *opts, struct floor_result *result)
{
    char path[4200], page[4096];
    int64_t took[SYNCS];

    snprintf(path, sizeof path, "%s/sync.tmp", opts->dir);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        die("could not create \"%s\"", path);
    memset(page, 'x', sizeof page);
    for (int i = 0; i < SYNCS; i++) {
        /* Write in place again and again, as the WAL is written after its first round. */
        off_t at = i % 100 * (off_t)sizeof page;
        if (pwrite(fd, page, sizeof page, at) != sizeof page)
            die("could not write \"%s\"", path);
        int64_t start = now_ns();
        if (fdatasync(fd) != 0)
            die("could not sync \"%s\"", path);
        took[i] = now_ns() - start;
    }
    close(fd);
    unlink(path);
    qsort(took, SYNCS, sizeof took[0], compare_int64);
    result->p50_ns = took[SYNCS / 2];
    result->p99_ns = took[SYNCS * 99 / 100];
}

/* ---- insert ---- */

/* The columns that the library fills when it enqueues a plain job. payload_sum is set, so that the
 * trigger does as much as it does for the product. */
struct inserter {
    sqlite3 *db;
    sqlite3_stmt *begin, *commit, *stmt;
    char *payload;
    int payload_len;
};

static struct inserter inserter_new(sqlite3 *db, const struct floor_opts *opts)
{
    struct inserter in = {.db = db, .payload_len = (int)opts->payload};

    in.payload = malloc((size_t)opts->payload + 1);
    if (in.payload == NULL)
        die("out of memory");
    memset(in.payload, 'p', (size_t)opts->payload);
    in.begin = prepare(db, "BEGIN IMMEDIATE");
    in.commit = prepare(db, "COMMIT");
    in.stmt = prepare(db, "INSERT INTO lh_job(queue, max_attempts, created_at, state_changed_at, "
                          "payload_sum, payload) VALUES (?1, 3, ?2, ?2, ?3, ?4)");
    sqlite3_bind_text(in.stmt, 1, QUEUE, -1, SQLITE_STATIC);
    sqlite3_bind_int64(in.stmt, 3, INT64_C(0x1234567812345678));
    sqlite3_bind_text(in.stmt, 4, in.payload, in.payload_len, SQLITE_STATIC);
    return in;
}

static int insert_step(struct inserter *in)
{
    sqlite3_bind_int64(in->stmt, 2, wall_ms());
    int rc = sqlite3_step(in->stmt);
    (void)sqlite3_reset(in->stmt);
    return rc;
}

static void insert(struct inserter *in)
{
    if (insert_step(in) != SQLITE_DONE)
        die("could not insert: %s", sqlite3_errmsg(in->db));
}

static void insert_many(struct inserter *in, int64_t jobs, int64_t batch)
{
    for (int64_t done = 0; done < jobs;) {
        finish(in->begin);
        for (int64_t i = 0; i < batch && done < jobs; i++, done++)
            insert(in);
        finish(in->commit);
    }
}

/* ---- one durable insert at a time, by several processes ---- */

struct crew {
    int ready, go, stop;
    int64_t count[MAX_PROCESSES], busy[MAX_PROCESSES], worst[MAX_PROCESSES];
    int64_t cpu[MAX_PROCESSES], bytes[MAX_PROCESSES];
};

static _Noreturn void insert_until_stopped(const struct floor_opts *opts, struct crew *crew,
                                           size_t me)
{
    sqlite3 *db = db_open(db_path(opts));
    struct inserter in = inserter_new(db, opts);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    __atomic_add_fetch(&crew->ready, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&crew->go, __ATOMIC_SEQ_CST))
        pause_ms(1);
    struct meters meters = meters_start();
    while (!__atomic_load_n(&crew->stop, __ATOMIC_SEQ_CST)) {
        int64_t start = now_ns();
        int rc = insert_step(&in);
        int64_t took = now_ns() - start;
        if (took > crew->worst[me])
            crew->worst[me] = took;
        if (rc == SQLITE_DONE)
            __atomic_add_fetch(&crew->count[me], 1, __ATOMIC_SEQ_CST);
        else if (rc == SQLITE_BUSY)
            crew->busy[me]++;
        else
            die("could not insert: %s", sqlite3_errmsg(db));
    }
    struct floor_result mine = {0};
    meters_stop(&meters, &mine);
    crew->cpu[me] = mine.cpu_ns;
    crew->bytes[me] = mine.written_bytes;
    _exit(0);
}

void floor_enqueue(const struct floor_opts *opts, struct floor_result *result)
{
    struct crew *crew =
        mmap(NULL, sizeof *crew, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    size_t n = (size_t)opts->processes;

    if (crew == MAP_FAILED || n > MAX_PROCESSES)
        die("at most %d processes", MAX_PROCESSES);
    db_create(opts);
    for (size_t i = 0; i < n; i++) {
        pid_t pid = fork();
        if (pid < 0)
            die("could not fork");
        if (pid == 0)
            insert_until_stopped(opts, crew, i);
    }
    while (__atomic_load_n(&crew->ready, __ATOMIC_SEQ_CST) < (int)n)
        pause_ms(1);
    int64_t start = now_ns();
    __atomic_store_n(&crew->go, 1, __ATOMIC_SEQ_CST);
    pause_ms(opts->seconds * 1000);
    /* Count now: an insert that still waits in the busy handler is not done. */
    for (size_t i = 0; i < n; i++)
        result->jobs += __atomic_load_n(&crew->count[i], __ATOMIC_SEQ_CST);
    result->elapsed_ns = now_ns() - start;
    __atomic_store_n(&crew->stop, 1, __ATOMIC_SEQ_CST);
    for (size_t i = 0; i < n; i++) {
        int status;
        if (wait(&status) < 0 || status != 0)
            die("a process failed");
    }
    for (size_t i = 0; i < n; i++) {
        result->busy += crew->busy[i];
        result->cpu_ns += crew->cpu[i];
        result->written_bytes += crew->bytes[i];
        if (crew->worst[i] > result->worst_ns)
            result->worst_ns = crew->worst[i];
    }
    munmap(crew, sizeof *crew);
    db_remove(opts);
}

void floor_bulk(const struct floor_opts *opts, struct floor_result *result)
{
    db_create(opts);
    sqlite3 *db = db_open(db_path(opts));
    struct inserter in = inserter_new(db, opts);
    struct meters meters = meters_start();
    insert_many(&in, opts->jobs, opts->batch ? opts->batch : BULK);
    meters_stop(&meters, result);
    result->jobs = opts->jobs;
    free(in.payload);
    db_close(db);
    db_remove(opts);
}

/* ---- claim and complete ---- */

/* Claim with one statement or with two: which one is faster depends on the batch. */
enum how { ONE, RETURNING, SELECT };

struct drainer {
    sqlite3 *db;
    enum how how;
    int64_t batch;
    sqlite3_stmt *begin, *commit, *select, *claim, *complete;
    int64_t id[MAX_BATCH], token[MAX_BATCH];
    size_t held;
    int64_t seen_bytes; /* reads the payloads, as a worker would */
};

#define SET_CLAIMED                                                                            \
    "SET state = 'running', token = token + 1, attempt = attempt + 1, worker = '" WORKER "', " \
    "lease_until = ?2, held_ms = ?3, started_at = ?1, state_changed_at = ?1 "
#define BEST \
    "FROM lh_job WHERE state = 'pending' AND queue = '" QUEUE "' ORDER BY priority DESC, id "

static struct drainer drainer_new(sqlite3 *db, const struct floor_opts *opts)
{
    struct drainer d = {.db = db, .batch = opts->batch};

    if (d.batch < 1 || d.batch > MAX_BATCH)
        die("batch is 1 to %d", MAX_BATCH);
    if (opts->claim != NULL)
        d.how = strcmp(opts->claim, "select") == 0 ? SELECT : d.batch == 1 ? ONE : RETURNING;
    else
        d.how = d.batch == 1 ? ONE : SELECT;
    d.begin = prepare(db, "BEGIN IMMEDIATE");
    d.commit = prepare(db, "COMMIT");
    if (d.how == SELECT) {
        d.select = prepare(db, "SELECT id, token, payload " BEST "LIMIT ?1");
        d.claim = prepare(db, "UPDATE lh_job " SET_CLAIMED "WHERE id = ?4");
    } else if (d.how == ONE) {
        d.claim = prepare(db, "UPDATE lh_job " SET_CLAIMED "WHERE id = (SELECT id " BEST
                              "LIMIT 1) RETURNING id, token, payload");
    } else {
        d.claim = prepare(db, "UPDATE lh_job " SET_CLAIMED "WHERE id IN (SELECT id " BEST
                              "LIMIT ?4) RETURNING id, token, payload");
    }
    d.complete = prepare(db, "UPDATE lh_job SET state = 'completed', lease_until = NULL, "
                             "worker = NULL, finished_at = ?1, state_changed_at = ?1 "
                             "WHERE id = ?2 AND token = ?3 AND state = 'running'");
    return d;
}

static void hold(struct drainer *d, sqlite3_stmt *row, int64_t more)
{
    d->id[d->held] = sqlite3_column_int64(row, 0);
    d->token[d->held++] = sqlite3_column_int64(row, 1) + more;
    if (sqlite3_column_text(row, 2) != NULL)
        d->seen_bytes += sqlite3_column_bytes(row, 2);
}

static void claim(struct drainer *d)
{
    int64_t now = wall_ms();

    d->held = 0;
    if (d->how == SELECT) {
        sqlite3_bind_int64(d->select, 1, d->batch);
        while (sqlite3_step(d->select) == SQLITE_ROW)
            hold(d, d->select, 1);
        (void)sqlite3_reset(d->select);
    }
    sqlite3_bind_int64(d->claim, 1, now);
    sqlite3_bind_int64(d->claim, 2, now + LEASE_MS);
    sqlite3_bind_int64(d->claim, 3, LEASE_MS);
    if (d->how == SELECT) {
        for (size_t i = 0; i < d->held; i++) {
            sqlite3_bind_int64(d->claim, 4, d->id[i]);
            finish(d->claim);
        }
        return;
    }
    if (d->how == RETURNING)
        sqlite3_bind_int64(d->claim, 4, d->batch);
    while (sqlite3_step(d->claim) == SQLITE_ROW)
        hold(d, d->claim, 0);
    (void)sqlite3_reset(d->claim);
}

static void complete(struct drainer *d)
{
    sqlite3_bind_int64(d->complete, 1, wall_ms());
    for (size_t i = 0; i < d->held; i++) {
        sqlite3_bind_int64(d->complete, 2, d->id[i]);
        sqlite3_bind_int64(d->complete, 3, d->token[i]);
        finish(d->complete);
        if (sqlite3_changes(d->db) != 1)
            die("a job was not held");
    }
}

/* Completes the held jobs and claims the next in one transaction, until the queue is empty or the
 * time is up. Returns the number of completed jobs. */
static int64_t drain(struct drainer *d, int64_t until_ns)
{
    int64_t done = 0;

    finish(d->begin);
    claim(d);
    finish(d->commit);
    while (d->held > 0 && now_ns() < until_ns) {
        done += (int64_t)d->held;
        finish(d->begin);
        complete(d);
        claim(d);
        finish(d->commit);
    }
    return done;
}

void floor_drain(const struct floor_opts *opts, struct floor_result *result)
{
    db_create(opts);
    sqlite3 *db = db_open(db_path(opts));
    struct inserter in = inserter_new(db, opts);
    insert_many(&in, opts->jobs, BULK);
    run(db, "PRAGMA wal_checkpoint(TRUNCATE)");
    struct drainer d = drainer_new(db, opts);
    struct meters meters = meters_start();
    result->jobs = drain(&d, INT64_MAX);
    meters_stop(&meters, result);
    if (result->jobs != opts->jobs || d.seen_bytes != opts->jobs * opts->payload)
        die("drained %lld of %lld jobs", (long long)result->jobs, (long long)opts->jobs);
    free(in.payload);
    db_close(db);
    db_remove(opts);
}

/* For parts.c: the cost of an insert and of a drain on a changed schema. Without its index a claim
 * reads all rows, so the drain has a time limit. */
void floor_insert_and_drain(const struct floor_opts *opts, struct floor_result *insert,
                            struct floor_result *drained)
{
    db_create(opts);
    sqlite3 *db = db_open(db_path(opts));
    struct inserter in = inserter_new(db, opts);
    struct meters meters = meters_start();
    insert_many(&in, opts->jobs, BULK);
    meters_stop(&meters, insert);
    insert->jobs = opts->jobs;
    struct drainer d = drainer_new(db, opts);
    meters = meters_start();
    drained->jobs = drain(&d, meters.ns + INT64_C(2000000000));
    meters_stop(&meters, drained);
    free(in.payload);
    db_close(db);
    db_remove(opts);
}

/* For parts.c: a database with `jobs` completed jobs, and a batch each of pending and running jobs.
 * The file is kept. */
void floor_leave_some(const struct floor_opts *opts, struct floor_result *result)
{
    struct floor_opts all = *opts;

    all.without =
        NULL; /* the index is dropped below: filling the table without it takes too long */
    db_create(&all);
    sqlite3 *db = db_open(db_path(opts));
    struct inserter in = inserter_new(db, opts);
    insert_many(&in, opts->jobs, BULK);
    struct drainer d = drainer_new(db, opts);
    result->jobs = drain(&d, INT64_MAX);
    insert_many(&in, 2 * opts->batch, BULK);
    finish(d.begin);
    claim(&d);
    finish(d.commit);
    free(in.payload);
    if (opts->without != NULL) {
        char *cut = sqlite3_mprintf("DROP %s", opts->without);
        run(db, cut);
        sqlite3_free(cut);
    }
    db_close(db);
}

/* Enqueue, then complete and claim: two durable transactions for each batch. */
void floor_cycle(const struct floor_opts *opts, struct floor_result *result)
{
    db_create(opts);
    sqlite3 *db = db_open(db_path(opts));
    struct inserter in = inserter_new(db, opts);
    struct drainer d = drainer_new(db, opts);
    struct meters meters = meters_start();
    while (result->jobs < opts->jobs) {
        insert_many(&in, opts->batch, opts->batch);
        finish(d.begin);
        result->jobs += (int64_t)d.held;
        complete(&d);
        claim(&d);
        finish(d.commit);
    }
    meters_stop(&meters, result);
    free(in.payload);
    db_close(db);
    db_remove(opts);
}
