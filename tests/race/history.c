#include "race/history.h"

#include "harness/harness.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct history *history_new(void)
{
    /* Most of the mapping is never touched, and takes no memory. */
    struct history *history = mmap(NULL, sizeof *history, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT(history != MAP_FAILED);
    return history;
}

int64_t history_now(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void history_add(struct history *history, int worker, const struct entry *entry)
{
    struct place *place = &history->place[worker];

    EXPECT(place->n < MOST_ENTRIES);
    place->entry[place->n] = *entry;
    __atomic_store_n(&place->n, place->n + 1, __ATOMIC_RELEASE);
}

/* ---------------------------------------------------------------- locks */

static struct {
    struct history *history;
    sqlite3_vfs vfs, *real;
    sqlite3_io_methods methods;
    int (*shm_lock)(sqlite3_file *, int, int, int);
} watch;

/* Locks 0 and 1 of the log's index are the writer's and the checkpointer's. */
static int watch_shm_lock(sqlite3_file *file, int offset, int n, int flags)
{
    int rc = watch.shm_lock(file, offset, n, flags);

    if (rc == SQLITE_BUSY && offset <= 1 && (flags & SQLITE_SHM_EXCLUSIVE) != 0)
        (void)__atomic_add_fetch(&watch.history->busy, 1, __ATOMIC_RELAXED);
    return rc;
}

static int watch_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags,
                      int *out_flags)
{
    (void)vfs;
    int rc = watch.real->xOpen(watch.real, name, file, flags, out_flags);
    if (rc == SQLITE_OK && (flags & SQLITE_OPEN_MAIN_DB) != 0) {
        if (watch.shm_lock == NULL) {
            watch.methods = *file->pMethods;
            watch.shm_lock = watch.methods.xShmLock;
            watch.methods.xShmLock = watch_shm_lock;
        }
        file->pMethods = &watch.methods;
    }
    return rc;
}

void history_watch_locks(struct history *history)
{
    watch.history = history;
    if (watch.real != NULL)
        return;
    watch.real = sqlite3_vfs_find(NULL);
    watch.vfs = *watch.real;
    watch.vfs.zName = "watch";
    watch.vfs.pNext = NULL;
    watch.vfs.xOpen = watch_open;
    EXPECT_EQ(sqlite3_vfs_register(&watch.vfs, 1), SQLITE_OK);
}

void history_log(void *arg, const lh_log_entry *entry)
{
    struct history *history = arg;
    const char *line = entry->line;

    if (entry->level > LH_LOG_WARN ||
        (strstr(line, "busy") == NULL && strstr(line, "locked") == NULL))
        return;
    (void)fprintf(stderr, "log: %s\n", line);
    (void)__atomic_add_fetch(&history->busy, 1, __ATOMIC_RELAXED);
}

/* ---------------------------------------------------------------- the check */

static int by_job_and_time(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;

    if (a->job != b->job)
        return a->job < b->job ? -1 : 1;
    return a->call_ns < b->call_ns ? -1 : a->call_ns > b->call_ns;
}

static int by_token(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;

    if (a->complete != b->complete)
        return a->complete ? 1 : -1;
    return a->token < b->token ? -1 : a->token > b->token;
}

static struct entry *gather(const struct history *history, size_t *n)
{
    struct entry *all;
    size_t at = 0;

    *n = 0;
    for (int i = 0; i < MOST_WORKERS; i++)
        *n += history->place[i].n;
    all = malloc((*n + 1) * sizeof *all);
    EXPECT(all != NULL);
    for (int i = 0; i < MOST_WORKERS; i++)
        for (size_t k = 0; k < history->place[i].n; k++)
            all[at++] = history->place[i].entry[k];
    qsort(all, *n, sizeof *all, by_job_and_time);
    return all;
}

/* All entries of one job. */
static void check_job(struct entry *entry, size_t n, const lh_job *final, int64_t lease_ms)
{
    enum { SLACK_NS = 2000000 };
    long long job = (long long)entry[0].job;
    int completed = 0;

    qsort(entry, n, sizeof *entry, by_token);
    for (size_t i = 0; i < n; i++) {
        const struct entry *e = &entry[i], *next = &entry[i + 1];
        if (e->complete) {
            completed += e->status == LH_OK;
            if (e->status == LH_OK && e->token != final->token)
                FAIL("job %lld was completed under token %lld, and handed out later under %lld",
                     job, (long long)e->token, (long long) final->token);
            continue;
        }
        if (e->token > final->token)
            FAIL("job %lld was handed out under token %lld, and its row has %lld", job,
                 (long long)e->token, (long long) final->token);
        if (i + 1 == n || next->complete)
            continue;
        if (next->token == e->token)
            FAIL("job %lld was handed out twice under token %lld", job, (long long)e->token);
        if (next->return_ns < e->call_ns)
            FAIL("job %lld: token %lld was handed out before token %lld", job,
                 (long long)next->token, (long long)e->token);
        if (next->return_ns < e->call_ns + lease_ms * 1000000 - SLACK_NS)
            FAIL("job %lld: token %lld was handed out while the lease of token %lld ran", job,
                 (long long)next->token, (long long)e->token);
    }
    if (completed > 1)
        FAIL("job %lld was completed %d times", job, completed);
}

static void check_jobs(struct entry *all, size_t n, lh_store *store, int64_t jobs, int64_t lease_ms)
{
    int64_t seen = 0;
    size_t at = 0;

    while (seen < jobs) {
        lh_jobs *list = NULL;
        EXPECT_OK(lh_job_list(store, &(lh_job_filter){.after = seen, .limit = 10000}, &list));
        EXPECT(list->n > 0);
        for (size_t i = 0; i < list->n; i++) {
            const lh_job *job = &list->job[i];
            size_t end = at;
            EXPECT_EQ(job->id, ++seen); /* no job is missing */
            if (job->state != LH_COMPLETED)
                FAIL("job %lld is %s in the end", (long long)job->id, lh_state_name(job->state));
            while (end < n && all[end].job == job->id)
                end++;
            if (end > at)
                check_job(all + at, end - at, job, lease_ms);
            at = end;
        }
        lh_jobs_free(list);
    }
    EXPECT_EQ(at, n); /* no job was made up */
}

static void expect_sound(lh_store *store)
{
    lh_findings *findings = NULL;

    EXPECT_OK(lh_check(store, NULL, &findings));
    for (size_t i = 0; i < findings->n; i++)
        if (strcmp(findings->finding[i].level, "error") == 0)
            FAIL("check: %s: %s", findings->finding[i].what, findings->finding[i].text);
    lh_findings_free(findings);
}

void history_check(const struct history *history, lh_store *store, const char *queue, int64_t n,
                   int64_t lease_ms)
{
    lh_queues *queues = NULL;
    size_t entries;
    struct entry *all = gather(history, &entries);

    check_jobs(all, entries, store, n, lease_ms);
    free(all);
    EXPECT_OK(lh_queue_list(store, &queues));
    for (size_t i = 0; i < queues->n; i++)
        if (strcmp(queues->queue[i].queue, queue) == 0) {
            EXPECT_EQ(queues->queue[i].completed, n);
            EXPECT_EQ(queues->queue[i].pending + queues->queue[i].running, 0);
        }
    lh_queues_free(queues);
    expect_sound(store);
}
