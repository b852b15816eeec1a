/* Waiting for jobs, for maintenance and for commits: the operations of a store, by its wake-ups. */
#include "store/sqlite/coordination/watch.h"

#include "base/clock.h"

enum { MAX_QUEUES = 64 };

static size_t hash_queues(const lh_claim_opts *opts, uint32_t hashes[MAX_QUEUES])
{
    size_t n = opts->n_queues < MAX_QUEUES ? opts->n_queues : MAX_QUEUES;
    for (size_t i = 0; i < n; i++)
        hashes[i] = sq_queue_hash(opts->queues[i]);
    return n;
}

uint32_t sq_db_ticket(void *self, const struct lhi_topic *topic)
{
    struct db *db = self;
    uint32_t hashes[MAX_QUEUES];

    if (db->coord.page == NULL)
        return 0;
    switch (topic->on) {
    case LHI_ON_JOBS:
        return sq_queue_ticket(&db->coord, hashes, hash_queues(topic->opts, hashes));
    case LHI_ON_MAINTENANCE:
        return sq_maintenance_ticket(&db->coord);
    default:
        return sq_commit_ticket(&db->coord);
    }
}

/* The ticket is all there is to it: wake-ups are counted in shared memory. */
enum lhi_subscribed sq_db_subscribe(void *self, const struct lhi_topic *topic)
{
    (void)self;
    (void)topic;
    return LHI_SUBSCRIBED_BEFORE;
}

bool sq_db_wait(void *self, const struct lhi_topic *topic, uint32_t ticket, int64_t timeout_ms)
{
    struct db *db = self;
    uint32_t hashes[MAX_QUEUES];

    if (db->coord.page == NULL) {
        lhi_sleep_ms(timeout_ms);
        return topic->on !=
               LHI_ON_MAINTENANCE; /* without a coordination file nothing wakes it: poll */
    }
    sq_death_watch_start(db);
    if (topic->on == LHI_ON_MAINTENANCE)
        return sq_wait_maintenance(&db->coord, ticket, timeout_ms);
    sq_foreign_writers_watch(db);
    if (topic->on == LHI_ON_COMMITS)
        return sq_wait_commit(&db->coord, ticket, timeout_ms);
    return sq_wait_queue(&db->coord, ticket, hashes, hash_queues(topic->opts, hashes), timeout_ms);
}

uint32_t sq_db_deaths(void *self)
{
    const struct db *db = self;
    return db->coord.page ? sq_maintenance_ticket(&db->coord) : 0;
}

void sq_db_wake(void *self)
{
    struct db *db = self;

    if (db->coord.page == NULL)
        return;
    sq_wake_all_queues(&db->coord);
    sq_wake_maintenance(&db->coord);
    sq_wake_commit(&db->coord);
}
