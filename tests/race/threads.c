/* Threads on one handle, and several handles in one process. */
#include "race/history.h"
#include "race/sizes.h"

#include "harness/harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 16, EACH = 25 * RACE_SCALE };

static lh_store *open_store(void)
{
    lh_store *store = NULL;
    int rc =
        lh_open(test_store(), &(lh_open_opts){.create = true, .busy_ms = TEST_BUSY_MS}, &store);
    if (rc != LH_OK)
        FAIL("%s: %s", lh_status_name(rc), lh_errmsg(store));
    return store;
}

struct thread {
    pthread_t id;
    lh_store *store;
    int me;
    int64_t got[EACH];
};

static struct thread crew[THREADS];

static void run_threads(int n, void *(*body)(void *), lh_store **stores, int n_stores)
{
    for (int i = 0; i < n; i++) {
        crew[i] = (struct thread){.store = stores[i % n_stores], .me = i};
        EXPECT_EQ(pthread_create(&crew[i].id, NULL, body, &crew[i]), 0);
    }
    for (int i = 0; i < n; i++)
        EXPECT_EQ(pthread_join(crew[i].id, NULL), 0);
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

/* ---------------------------------------------------------------- one handle */

static void *enqueue_some(void *arg)
{
    struct thread *t = arg;
    char payload[32];

    for (int i = 0; i < EACH; i++) {
        lh_enqueued out;
        int len = snprintf(payload, sizeof payload, "%d/%d", t->me, i);
        int rc =
            lh_enqueue(t->store, "q", &(lh_new_job){.payload = payload, .payload_len = (size_t)len},
                       1, NULL, &out);
        if (rc != LH_OK)
            FAIL("%s: %s", lh_status_name(rc), lh_errmsg(t->store));
        t->got[i] = out.id;
    }
    return NULL;
}

TEST_TIMEOUT(sixteen_threads_enqueue_on_one_handle, 60)
{
    lh_store *store = open_store();
    lh_store_info info;

    run_threads(THREADS, enqueue_some, &store, 1);
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < EACH; k++) {
            char payload[32];
            lh_jobs *jobs = NULL;
            int len = snprintf(payload, sizeof payload, "%d/%d", i, k);
            /* Each call returned its own job, not that of another call in the same transaction. */
            EXPECT_OK(lh_job_get(store, crew[i].got[k], &jobs));
            EXPECT_MEM(jobs->job[0].payload, jobs->job[0].payload_len, payload, len);
            EXPECT(k == 0 || crew[i].got[k] > crew[i].got[k - 1]);
            lh_jobs_free(jobs);
        }
    EXPECT_OK(lh_store_status(store, &info));
    (void)fprintf(stderr, "%lld transactions\n", (long long)info.changes);
    /* They shared some; on PostgreSQL it is the server that lets commits share what they wait for. */
    EXPECT(info.changes < THREADS * EACH + test_store_is_postgres());
    expect_sound(store);
    lh_close(store);
}

/* Some calls are invalid: only they are refused, not the others in their transaction. */
static void *enqueue_or_fail(void *arg)
{
    struct thread *t = arg;
    static char large[2000];
    const int64_t nobody = 1000000000;

    for (int i = 0; i < EACH; i++) {
        lh_enqueued out;
        lh_new_job job = {.payload = large, .payload_len = 10};
        int status = 1;
        switch ((t->me + i) % 4) {
        case 0:
            job.payload_len = sizeof large;
            EXPECT_STATUS(lh_enqueue(t->store, "small", &job, 1, NULL, &out), LH_ETOOBIG);
            EXPECT(strstr(lh_errmsg(t->store), "2000") != NULL);
            break;
        case 1:
            EXPECT_STATUS(lh_delete(t->store, &nobody, 1, &status), LH_ENOTFOUND);
            EXPECT_EQ(status, LH_ENOTFOUND);
            break;
        case 2:
            EXPECT_STATUS(
                lh_complete(t->store, &(lh_done){.job = nobody, .token = 1}, 1, NULL, NULL),
                LH_ENOTFOUND);
            break;
        default:
            EXPECT_OK(lh_enqueue(t->store, "small", &job, 1, NULL, &out));
            EXPECT_STR(lh_errmsg(t->store), "");
            t->got[i] = out.id;
            break;
        }
    }
    return NULL;
}

TEST_TIMEOUT(a_failing_call_does_not_affect_others_in_its_transaction, 60)
{
    lh_store *store = open_store();
    lh_queues *queues = NULL;
    int64_t n = 0;

    EXPECT_OK(lh_policy_set(store, "small", NULL,
                            &(lh_policy){.set = LH_POLICY_MAX_PAYLOAD, .max_payload = 1000}, 0));
    run_threads(THREADS, enqueue_or_fail, &store, 1);
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < EACH; k++)
            n += crew[i].got[k] != 0;
    EXPECT_OK(lh_queue_list(store, &queues));
    EXPECT_EQ(queues->n, 1);
    EXPECT_EQ(queues->queue[0].pending, n);
    EXPECT_EQ(n, THREADS * EACH / 4);
    lh_queues_free(queues);
    expect_sound(store);
    lh_close(store);
}

/* ---------------------------------------------------------------- several handles */

static struct history *history;

static void *drain(void *arg)
{
    struct thread *t = arg;
    const char *queue = "q";
    char name[16];

    (void)snprintf(name, sizeof name, "w-%d", t->me);
    for (;;) {
        lh_jobs *jobs = NULL;
        lh_done done[10];
        int status[10];
        int64_t call_ns = history_now();
        int rc = lh_claim(
            t->store, &(lh_claim_opts){.queues = &queue, .n_queues = 1, .worker = name, .n = 10},
            &jobs);
        if (rc == LH_EMPTY)
            return NULL;
        if (rc != LH_OK)
            FAIL("%s: %s", lh_status_name(rc), lh_errmsg(t->store));
        int64_t now = history_now();
        for (size_t i = 0; i < jobs->n; i++) {
            done[i] = (lh_done){.job = jobs->job[i].id, .token = jobs->job[i].token};
            history_add(history, t->me,
                        &(struct entry){.job = done[i].job,
                                        .token = done[i].token,
                                        .call_ns = call_ns,
                                        .return_ns = now});
        }
        EXPECT_OK(lh_complete(t->store, done, jobs->n, status, NULL));
        for (size_t i = 0; i < jobs->n; i++)
            history_add(history, t->me,
                        &(struct entry){.job = done[i].job,
                                        .token = done[i].token,
                                        .call_ns = now,
                                        .return_ns = history_now(),
                                        .complete = true,
                                        .status = status[i]});
        lh_jobs_free(jobs);
    }
}

TEST_TIMEOUT(several_handles_of_one_process_share_the_work, 60)
{
    enum { HANDLES = 4, JOBS = THREADS * EACH };
    static lh_new_job jobs[JOBS];
    static lh_enqueued out[JOBS];
    lh_store *stores[HANDLES];

    history = history_new();
    history_watch_locks(history);
    for (int i = 0; i < HANDLES; i++)
        stores[i] = open_store();
    EXPECT_OK(lh_enqueue(stores[0], "q", jobs, JOBS, NULL, out));
    run_threads(THREADS, drain, stores, HANDLES);
    history_check(history, stores[0], "q", JOBS, 300000);
    EXPECT_EQ(history->busy, 0);
    for (int i = 0; i < HANDLES; i++)
        lh_close(stores[i]);
}
