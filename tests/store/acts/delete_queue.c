/* Acts of several threads in one transaction: the delete of a queue while others change its jobs,
 * counts that are not written yet, and acts that are undone. */
#include "core/core.h"
#include "store/sqlite.h"

#include <stdlib.h>

/* Run these acts in one transaction, as if several threads had called at the same time. */
static void together(lh_store *store, struct lhi_act *acts, size_t n)
{
    struct lhi_error err;

    lhi_error_clear(&err);
    EXPECT_OK(lhi_perform_all(store, acts, n, &err));
    for (size_t i = 0; i < n; i++)
        EXPECT_OK(acts[i].err.status);
}

static bool is_listed(lh_store *store, const char *queue)
{
    lh_queues *queues = NULL;
    bool found = false;

    EXPECT_OK(lh_queue_list(store, &queues));
    for (size_t i = 0; i < queues->n; i++)
        found = found || strcmp(queues->queue[i].queue, queue) == 0;
    lh_queues_free(queues);
    return found;
}

TEST(a_queue_deleted_together_with_its_last_job_is_not_written_again)
{
    lh_store *store = store_new();
    int64_t id = add(store, "mail", "x");
    int status = LH_OK;
    struct lhi_act acts[] = {
        {.verb = LHI_DELETE, .n = 1, .ids = {.ids = &id}, .status = &status},
        {.verb = LHI_QUEUE_DELETE, .queue = {.queue = "mail"}},
    };

    together(store, acts, 2);
    EXPECT(!is_listed(store, "mail"));
    EXPECT_OK(lh_maintain(store, NULL, NULL));
    EXPECT(!is_listed(store, "mail"));
    (void)add(store, "mail", "y");
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    store_check(store);
    lh_close(store);
}

TEST(a_job_enqueued_together_with_the_delete_of_its_queue_is_counted)
{
    lh_store *store = store_new();
    int64_t id = add(store, "mail", "x");
    int status = LH_OK;
    lh_new_job job = {.payload = "y", .payload_len = 1};
    lh_enqueued out;
    struct lhi_act acts[] = {
        {.verb = LHI_DELETE, .n = 1, .ids = {.ids = &id}, .status = &status},
        {.verb = LHI_QUEUE_DELETE, .queue = {.queue = "mail"}},
        {.verb = LHI_ENQUEUE, .n = 1, .enqueue = {.queue = "mail", .jobs = &job, .out = &out}},
    };

    together(store, acts, 3);
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    store_check(store);
    lh_close(store);
}

/* ---- counts that are not written yet ---- */

static void expect_new_queue_empty(struct lhi_act *undo)
{
    lh_store *store = store_new();
    lh_new_job job[2] = {{.payload = "x", .payload_len = 1}, {.delay_ms = 60000}};
    lh_enqueued out[2];
    struct lhi_act acts[] = {
        {.verb = LHI_ENQUEUE, .n = 2, .enqueue = {.queue = "mail", .jobs = job, .out = out}},
        *undo,
    };

    together(store, acts, 2);
    EXPECT_EQ(counts_of(store, "mail").pending, 0);
    EXPECT_EQ(counts_of(store, "mail").scheduled, 0);
    EXPECT_EQ(counts_of(store, "mail").hour_enqueued, 2);
    store_check(store);
    lh_close(store);
}

TEST(jobs_purged_together_with_their_enqueue_into_a_new_queue_are_not_counted)
{
    expect_new_queue_empty(&(struct lhi_act){.verb = LHI_QUEUE_PURGE, .queue = {.queue = "mail"}});
}

TEST(jobs_deleted_together_with_their_enqueue_into_a_new_queue_are_not_counted)
{
    int64_t ids[2] = {1, 2};
    int status[2] = {LH_OK, LH_OK};
    expect_new_queue_empty(
        &(struct lhi_act){.verb = LHI_DELETE, .n = 2, .ids = {.ids = ids}, .status = status});
}

TEST(jobs_enqueued_together_with_a_recount_are_counted_once)
{
    lh_store *store = store_new();
    lh_new_job job = {.payload = "x", .payload_len = 1};
    lh_enqueued out;
    struct lhi_act acts[] = {
        {.verb = LHI_ENQUEUE, .n = 1, .enqueue = {.queue = "mail", .jobs = &job, .out = &out}},
        {.verb = LHI_RECOUNT},
    };

    together(store, acts, 2);
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    store_check(store);
    lh_close(store);
}

/* The counts of other queues must not be dropped together with those of the deleted one. */
TEST(a_queue_enqueued_purged_and_deleted_together_is_gone_and_others_are_counted)
{
    static const char *const queues[] = {"a", "mail", "b"};
    lh_store *store = store_new();
    lh_new_job job = {.payload = "x", .payload_len = 1};
    lh_enqueued out[3];
    struct lhi_act acts[5] = {
        [3] = {.verb = LHI_QUEUE_PURGE, .queue = {.queue = "mail"}},
        [4] = {.verb = LHI_QUEUE_DELETE, .queue = {.queue = "mail"}},
    };

    for (int i = 0; i < 3; i++)
        acts[i] = (struct lhi_act){
            .verb = LHI_ENQUEUE,
            .n = 1,
            .enqueue = {.queue = queues[i], .jobs = &job, .out = &out[i]},
        };
    together(store, acts, 5);
    EXPECT(!is_listed(store, "mail"));
    EXPECT_EQ(counts_of(store, "a").pending, 1);
    EXPECT_EQ(counts_of(store, "b").pending, 1);
    store_check(store);
    lh_close(store);
}

/* ---- an act that is undone, beside others ---- */

TEST(an_act_that_is_undone_takes_nothing_of_the_others_with_it)
{
    lh_store *store = store_new();
    lh_new_job good = {.payload = "x", .payload_len = 1};
    lh_new_job batch[2] = {{.payload = "y", .payload_len = 1}, {.kind = "refused"}};
    lh_enqueued out[4];
    struct lhi_error err;
    sqlite3 *db = db_open("store.db");
    db_exec(db, "CREATE TRIGGER user_no BEFORE INSERT ON lh_job WHEN new.kind = 'refused' BEGIN "
                "SELECT RAISE(ABORT, 'no'); END");
    struct lhi_act acts[] = {
        {.verb = LHI_ENQUEUE, .n = 1, .enqueue = {.queue = "a", .jobs = &good, .out = &out[0]}},
        {.verb = LHI_ENQUEUE, .n = 2, .enqueue = {.queue = "a", .jobs = batch, .out = &out[1]}},
        {.verb = LHI_ENQUEUE, .n = 2, .enqueue = {.queue = "b", .jobs = batch, .out = &out[1]}},
        {.verb = LHI_ENQUEUE, .n = 1, .enqueue = {.queue = "b", .jobs = &good, .out = &out[3]}},
    };

    lhi_error_clear(&err);
    EXPECT_OK(lhi_perform_all(store, acts, 4, &err));
    EXPECT_OK(acts[0].err.status);
    EXPECT_STATUS(acts[1].err.status, LH_EINVAL);
    EXPECT_STATUS(acts[2].err.status, LH_EINVAL);
    EXPECT_OK(acts[3].err.status);
    EXPECT_EQ(counts_of(store, "a").pending, 1);
    EXPECT_EQ(counts_of(store, "b").pending, 1);
    store_check(store);
    sqlite3_close(db);
    lh_close(store);
}

/* A claim of several jobs that the database refuses after the first ones. */
TEST(a_claim_that_is_refused_half_way_beside_others_leaves_no_job_running)
{
    static const char *const queues[] = {"mail"};
    lh_store *store = store_new();
    lh_new_job good = {.payload = "x", .payload_len = 1};
    lh_enqueued out;
    struct lhi_error err;
    lh_jobs *jobs = calloc(1, sizeof *jobs);
    lh_claim_opts opts = {.queues = queues, .n_queues = 1, .worker = "w1", .n = 3};

    EXPECT(jobs != NULL);
    for (int i = 0; i < 3; i++)
        (void)add(store, "mail", "x");
    sqlite3 *db = db_open("store.db");
    db_exec(db, "CREATE TRIGGER user_no BEFORE UPDATE ON lh_job WHEN new.id = 2 BEGIN "
                "SELECT RAISE(ABORT, 'no'); END");
    struct lhi_act acts[] = {
        {.verb = LHI_CLAIM, .n = 3, .claim = {.opts = &opts, .out = jobs}},
        {.verb = LHI_ENQUEUE, .n = 1, .enqueue = {.queue = "a", .jobs = &good, .out = &out}},
    };

    lhi_error_clear(&err);
    EXPECT_OK(lhi_perform_all(store, acts, 2, &err));
    EXPECT_STATUS(acts[0].err.status, LH_EINVAL);
    EXPECT_OK(acts[1].err.status);
    EXPECT_EQ(counts_of(store, "mail").running, 0);
    EXPECT_EQ(state_of(store, 1), LH_PENDING);
    store_check(store);
    sqlite3_close(db);
    lh_jobs_free(jobs);
    lh_close(store);
}
