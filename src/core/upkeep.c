/* Upkeep: recovery by hand, one round of what is due, pruning; and events, which tell of it all. */
#include "core/core.h"

#include "base/clock.h"

#include <string.h>

enum { MAX_EVENTS = 10000, UPKEEP_MS = 60000, POLL_MS = 1000 };

int lh_recover(lh_store *store, const int *cancel, lh_recovered *out)
{
    lh_recovered total = {0};
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    struct lhi_act act;

    if (err == NULL)
        return rc;
    /* Batch after batch, each a transaction of its own: others get their turn in between. */
    do {
        act = (struct lhi_act){.verb = LHI_UPKEEP, .upkeep = {.by_hand = true}};
        if ((rc = lhi_perform(store, &act, err)) < 0)
            return rc;
        total.entries_reclaimed += act.upkeep.done.recovered;
        total.locks_cleaned += act.upkeep.leases;
        if (lhi_raised(cancel))
            return lhi_fail(err, LH_EINTR, "recovery was interrupted after %lld jobs",
                            (long long)total.entries_reclaimed);
    } while (act.upkeep.more);
    total.recovery_timestamp = lh_now(store);
    if (out != NULL)
        *out = total;
    return LH_OK;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): the store moves *after on */
static int prune_round(lh_store *store, int64_t older_than_ms, int64_t *after, int64_t *pruned,
                       bool *more, struct lhi_error *err)
{
    struct lhi_act act = {.verb = LHI_PRUNE,
                          .prune = {.older_than_ms = older_than_ms, .after = after}};
    int rc = lhi_perform(store, &act, err);
    if (rc < 0)
        return rc;
    *pruned += act.prune.pruned;
    *more = act.prune.more;
    return LH_OK;
}

int lh_prune(lh_store *store, int64_t older_than_ms, const int *cancel, int64_t *pruned)
{
    int64_t count = 0, after = 0;
    bool more = true;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_duration("age", older_than_ms, 0, LHI_MAX_TIME_MS, err)) != LH_OK)
        return rc;
    while (more) {
        if ((rc = prune_round(store, older_than_ms, &after, &count, &more, err)) < 0)
            return rc;
        if (lhi_raised(cancel))
            return lhi_fail(err, LH_EINTR, "pruning was interrupted after %lld jobs",
                            (long long)count);
    }
    if (pruned != NULL)
        *pruned = count;
    return LH_OK;
}

int lh_maintain(lh_store *store, lh_upkeep *out)
{
    struct lhi_act act = {.verb = LHI_UPKEEP};
    bool more = false;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = lhi_perform(store, &act, err)) < 0)
        return rc;
    lh_upkeep done = act.upkeep.done;
    if ((rc = prune_round(store, 0, NULL, &done.pruned, &more, err)) < 0)
        return rc;
    done.next_ms = more || act.upkeep.more ? 0 : UPKEEP_MS;
    if (out != NULL)
        *out = done;
    return LH_OK;
}

/* ---- events ---- */

void lh_events_free(lh_events *events)
{
    if (events != NULL)
        lhi_result_free(events, events->priv, events->event);
}

int lh_event_list(lh_store *store, const lh_event_filter *filter, lh_events **out)
{
    static const lh_event_filter any;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if (filter == NULL)
        filter = &any;
    if ((rc = lhi_need_out(out, err)) != LH_OK ||
        (rc = lhi_need_wait(filter->wait_ms, err)) != LH_OK ||
        (rc = lhi_need_range("limit", (int64_t)filter->limit, 0, MAX_EVENTS, err)) != LH_OK)
        return rc;
    int64_t deadline = filter->wait_ms > 0 ? lhi_deadline(filter->wait_ms) : 0;
    for (;;) {
        lh_events *events = lhi_result_new(sizeof *events, err);
        if (events == NULL)
            return err->status;
        uint32_t ticket = store->store.ops->ticket(store->store.self, NULL);
        struct lhi_act act = {.verb = LHI_EVENT_LIST, .events = {.filter = filter, .out = events}};
        rc = lhi_read(store, &act, err);
        int64_t left = filter->wait_ms < 0 ? POLL_MS : deadline - lhi_mono_ms();
        if (rc == LH_OK && (events->n > 0 || filter->wait_ms == 0 || left <= 0)) {
            *out = events;
            return LH_OK;
        }
        lh_events_free(events);
        if (rc < 0)
            return rc;
        if (lhi_raised(filter->cancel))
            return lhi_fail(err, LH_EINTR, "interrupted while waiting for events");
        lhi_sleep_until(store, NULL, ticket, left < POLL_MS ? left : POLL_MS, filter->cancel);
    }
}
