/* A program without the library writes to the same store while workers run. */
#include "race/foreign_sql.h"
#include "race/history.h"
#include "race/sizes.h"

#include "harness/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WORKERS = 4, STRANGERS = 2, FOREIGN_TXNS = 20 * RACE_SCALE, FOREIGN_ROWS = 5 };

static lh_store *open_store(void)
{
    lh_store *store = NULL;
    int rc =
        lh_open(test_store(), &(lh_open_opts){.create = true, .busy_ms = TEST_BUSY_MS}, &store);
    if (rc != LH_OK)
        FAIL("%s: %s", lh_status_name(rc), lh_errmsg(store));
    return store;
}

/* Plain INSERTs, five in a transaction, with a busy timeout as other programs have it. */
static void be_a_stranger(int64_t *inserted)
{
    struct stranger *stranger = stranger_open();

    for (int i = 0; i < FOREIGN_TXNS; i++) {
        stranger_begin(stranger);
        for (int k = 0; k < FOREIGN_ROWS; k++)
            (void)stranger_run(stranger,
                               "INSERT INTO lh_job(queue, payload) VALUES ('q', 'foreign')");
        stranger_commit(stranger);
        (void)__atomic_add_fetch(inserted, FOREIGN_ROWS, __ATOMIC_SEQ_CST);
        /* A pause between transactions: a program that writes without a pause would starve all others. */
        (void)usleep(1000);
    }
    stranger_close(stranger);
}

static void work(struct history *history, int me)
{
    const char *queue = "q";
    char name[16];
    lh_store *store = open_store();

    (void)snprintf(name, sizeof name, "w-%d", me);
    for (;;) {
        lh_jobs *jobs = NULL;
        lh_done done[20];
        lh_enqueued out;
        bool stop = __atomic_load_n(&history->stop, __ATOMIC_SEQ_CST);
        int64_t call_ns = history_now();
        int rc = lh_claim(
            store,
            &(lh_claim_opts){
                .queues = &queue, .n_queues = 1, .worker = name, .n = 20, .wait_ms = stop ? 0 : 50},
            &jobs);
        if (rc == LH_EMPTY && stop)
            break;
        if (rc != LH_OK && rc != LH_EMPTY)
            FAIL("%s: %s", lh_status_name(rc), lh_errmsg(store));
        int64_t now = history_now();
        for (size_t i = 0; rc == LH_OK && i < jobs->n; i++) {
            done[i] = (lh_done){.job = jobs->job[i].id, .token = jobs->job[i].token};
            history_add(history, me,
                        &(struct entry){.job = done[i].job,
                                        .token = done[i].token,
                                        .call_ns = call_ns,
                                        .return_ns = now});
            /* Calls of the library, too, so that both kinds of writers meet. */
            if (done[i].job % 3 == 0 && !stop)
                EXPECT_OK(lh_enqueue(store, "ours", &(lh_new_job){.kind = "k"}, 1, NULL, &out));
        }
        if (rc == LH_OK)
            EXPECT_OK(lh_complete(store, done, jobs->n, NULL, NULL));
        lh_jobs_free(jobs);
    }
    lh_close(store);
}

TEST_TIMEOUT(plain_sql_writers_and_workers_do_not_block_each_other, 120)
{
    struct history *history = history_new();
    int64_t *inserted =
        mmap(NULL, sizeof *inserted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t worker[WORKERS], stranger[STRANGERS];
    lh_store *store = open_store();
    lh_queues *queues = NULL;
    lh_findings *findings = NULL;

    EXPECT(inserted != MAP_FAILED);
    for (int i = 0; i < STRANGERS; i++)
        if ((stranger[i] = test_fork_reopening(&store, open_store)) == 0) {
            be_a_stranger(inserted);
            test_child_done();
        }
    for (int i = 0; i < WORKERS; i++)
        if ((worker[i] = test_fork_reopening(&store, open_store)) == 0) {
            work(history, i);
            test_child_done();
        }
    for (int i = 0; i < STRANGERS; i++)
        EXPECT_EQ(test_wait(stranger[i]).code, 0);
    __atomic_store_n(&history->stop, true, __ATOMIC_SEQ_CST);
    for (int i = 0; i < WORKERS; i++)
        EXPECT_EQ(test_wait(worker[i]).code, 0);

    EXPECT_EQ(*inserted, STRANGERS * FOREIGN_TXNS * FOREIGN_ROWS);
    EXPECT_OK(lh_queue_list(store, &queues));
    for (size_t i = 0; i < queues->n; i++)
        if (strcmp(queues->queue[i].queue, "q") == 0) {
            EXPECT_EQ(queues->queue[i].completed, *inserted);
            EXPECT_EQ(queues->queue[i].pending + queues->queue[i].running, 0);
        }
    lh_queues_free(queues);
    /* Each job was handed out once. */
    size_t claims = 0;
    char *seen = calloc((size_t)*inserted * 3, 1);
    EXPECT(seen != NULL);
    for (int i = 0; i < WORKERS; i++)
        for (size_t k = 0; k < history->place[i].n; k++, claims++) {
            int64_t job = history->place[i].entry[k].job;
            EXPECT(job < *inserted * 3);
            EXPECT_EQ(seen[job]++, 0);
        }
    EXPECT_EQ(claims, *inserted);
    free(seen);
    EXPECT_OK(lh_check(store, NULL, &findings));
    EXPECT_EQ(findings->errors, 0);
    lh_findings_free(findings);
    lh_close(store);
}
