/* How many jobs a round of pruning reads. */
#include "store/sqlite.h"

#include "core/core.h"

enum { JOBS = 600, HOUR_MS = 3600000 };

static void finish_jobs(lh_store *store)
{
    for (int i = 0; i < JOBS; i++) {
        add(store, "mail", "x");
        lh_jobs *jobs = take(store, "mail", "w", 0);
        lh_done done = {.job = jobs->job[0].id, .token = jobs->job[0].token};
        lh_output output = {.out = {.head = "x", .head_len = 1}};
        if (done.job == JOBS / 2)
            done.output = &output;
        EXPECT_OK(lh_complete(store, &done, 1, NULL, NULL));
        lh_jobs_free(jobs);
    }
}

static int64_t round_ends_at(lh_store *store)
{
    int64_t after = 0;
    struct lhi_act act = {.verb = LHI_PRUNE, .prune = {.after = &after}};
    struct lhi_error err;

    EXPECT_OK(lhi_perform(store, &act, &err));
    EXPECT(!act.prune.more);
    return after;
}

TEST(pruning_of_output_skips_jobs_without_output)
{
    freeze_now();
    lh_store *store =
        store_open("store.db", (lh_open_opts){.create = true, .durability = LH_DURABLE_RELAXED});
    finish_jobs(store);
    EXPECT_OK(lh_policy_set(
        store, "mail", NULL,
        &(lh_policy){.set = LH_POLICY_RETENTION_OUTPUT, .retention_output_ms = HOUR_MS}, 0));
    pass_ms(2 * HOUR_MS);
    EXPECT_EQ(round_ends_at(store), JOBS / 2);
    EXPECT_EQ(round_ends_at(store), 0);
    EXPECT_EQ(counts_of(store, "mail").completed, JOBS);
    lh_close(store);
}
