/* See recovery_world.h. */
#include "recovery_world.h"

static void free_report(void *thing)
{
    lh_report_free(thing);
}

const lh_report *recover_by(struct world *w, const lh_recover_opts *opts)
{
    lh_report *report = NULL;

    if (lh_recover(w->store, opts, &report) != LH_OK)
        FAIL("could not recover: %s", lh_errmsg(w->store));
    return keep(w, report, free_report);
}

const lh_report *report_of(struct world *w, int64_t id)
{
    lh_report *report = NULL;

    if (lh_report_get(w->store, id, &report) != LH_OK)
        FAIL("could not read report %lld: %s", (long long)id, lh_errmsg(w->store));
    return keep(w, report, free_report);
}

size_t reports(struct world *w)
{
    lh_reports *list = NULL;

    EXPECT_OK(lh_report_list(w->store, 10000, &list));
    size_t n = list->n;
    lh_reports_free(list);
    return n;
}

lh_maintained upkeep(struct world *w)
{
    lh_maintained done;

    EXPECT_OK(lh_maintain(w->store, NULL, &done));
    return done;
}

void enlist_with(struct world *w, lh_worker_opts opts)
{
    char id[160];

    EXPECT_OK(lh_worker_register(w->store, &opts, id, sizeof id));
    EXPECT_STR(id, opts.id);
}

void enlist_process(struct world *w, const char *id)
{
    enlist(w, id, .process = true, .interval_ms = SILENCE_MS / 3, .multiplier = 3);
}

lh_job held(struct world *w, const char *queue, const char *worker, int64_t lease_ms)
{
    lh_job job;
    int64_t id = enqueue(w, queue, "x");

    EXPECT_OK(claim_one(w, queue, &job, .worker = worker, .lease_ms = lease_ms));
    EXPECT_EQ(job.id, id);
    return job;
}

const lh_recovered_job *told_of(const lh_report *report, int64_t job)
{
    for (size_t i = 0; i < report->n_recovered; i++)
        if (report->recovered[i].job == job)
            return &report->recovered[i];
    return NULL;
}

const lh_dead_worker *dead_in(const lh_report *report, const char *worker)
{
    for (size_t i = 0; i < report->n_dead_workers; i++)
        if (strcmp(report->dead_workers[i].worker, worker) == 0)
            return &report->dead_workers[i];
    return NULL;
}

int64_t changes(struct world *w)
{
    lh_store_info info;

    EXPECT_OK(lh_store_status(w->store, &info));
    return info.changes;
}
