/* SQL statements of another program, on both stores: a running job is not deleted, a key is used once. */
#include "world.h"

#include "race/foreign_sql.h"

SPEC(a_running_job_cannot_be_deleted_by_sql)
{
    struct world w = world_open();
    int64_t id = enqueue(&w, "mail", "held");
    lh_job job;
    EXPECT_OK(claim_one(&w, "mail", &job));
    int64_t waits = enqueue(&w, "mail", "waits");

    EXPECT_EQ(job.id, id);
    stranger_is_refused("DELETE FROM lh_job", "running: cancel it first");
    EXPECT_EQ(job_of(&w, waits).state, LH_PENDING);
    EXPECT_OK(complete(&w, &job));
    world_close(&w);
}

SPEC(an_insert_under_a_live_key_does_nothing_on_conflict)
{
    static const char insert[] =
        "INSERT INTO lh_job(queue, key) VALUES('mail', 'order-7') ON CONFLICT DO NOTHING";
    struct world w = world_open();
    lh_job job;

    EXPECT_EQ(run_as_stranger("%s", insert), 1);
    EXPECT_EQ(run_as_stranger("%s", insert), 0);
    EXPECT_OK(claim_one(&w, "mail", &job));
    EXPECT_EQ(run_as_stranger("%s", insert), 0);
    EXPECT_OK(complete(&w, &job));
    EXPECT_EQ(run_as_stranger("%s", insert), 1);
    EXPECT_EQ(queue_of(&w, "mail").pending, 1);
    world_close(&w);
}
