/* A queue that is deleted by a transaction in which other threads have changed its jobs. */
#include "core/core.h"
#include "store/sqlite.h"

/* As if these acts had come from as many threads at once: one transaction. */
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
