/* events.c: the public call that reads events and waits for new ones. */
#include "core/core.h"

#include "base/clock.h"

enum { MAX_EVENTS = 10000 };

static const struct lhi_topic any_commit = {.on = LHI_ON_COMMITS};

void lh_events_free(lh_events *events)
{
    if (events != NULL)
        lhi_result_free(events, events->priv, events->event);
}

static int check_events(const lh_event_filter *filter, lh_events **out, struct lhi_error *err)
{
    int rc;

    if ((rc = lhi_need_out(out, err)) != LH_OK || (rc = LHI_NEED_RESERVED(filter, err)) != LH_OK ||
        (rc = lhi_need_wait(filter->wait_ms, err)) != LH_OK ||
        (filter->queue != NULL && (rc = lhi_need_name("queue", filter->queue, err)) != LH_OK) ||
        (filter->type != NULL && (rc = lhi_need_name("type", filter->type, err)) != LH_OK) ||
        (rc = lhi_need_range("time", filter->since, 0, LHI_LAST_MOMENT, err)) != LH_OK)
        return rc;
    return lhi_need_range("limit", (int64_t)filter->limit, 0, MAX_EVENTS, err);
}

static int read_events(lh_store *store, const lh_event_filter *filter, lh_events **out,
                       struct lhi_error *err)
{
    lh_events *events = lhi_result_new(sizeof *events, err);

    if (events == NULL)
        return LH_ENOMEM;
    struct lhi_act act = {.verb = LHI_EVENT_LIST, .events = {.filter = filter, .out = events}};
    int rc = lhi_read(store, &act, err);
    if (rc < 0)
        lh_events_free(events);
    else
        *out = events;
    return rc;
}

/* The id of the newest event of any kind. A wait with a filter need not read the events below it again. */
static int last_event(lh_store *store, const lh_event_filter *filter, int64_t *id,
                      struct lhi_error *err)
{
    lh_event_filter any = {
        .after = filter->after, .limit = 1, .newest = true, .wait_ms = filter->wait_ms};
    lh_events *events = NULL;
    int rc = read_events(store, &any, &events, err);

    if (rc == LH_OK && events->n > 0)
        *id = events->event[0].id;
    lh_events_free(events);
    return rc;
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
    if ((rc = check_events(filter, out, err)) != LH_OK)
        return rc;
    int64_t deadline = filter->wait_ms > 0 ? lhi_deadline(filter->wait_ms) : 0;
    lh_event_filter next = *filter;
    bool some =
        filter->wait_ms != 0 && (filter->job != 0 || filter->type != NULL || filter->queue != NULL);
    for (;;) {
        lh_events *events = NULL;
        int64_t seen = next.after;
        uint32_t ticket = store->store.ops->ticket(store->store.self, &any_commit);
        if ((some && (rc = last_event(store, &next, &seen, err)) < 0) ||
            (rc = read_events(store, &next, &events, err)) < 0)
            return rc;
        int64_t left = filter->wait_ms < 0 ? LHI_POLL_MS : deadline - lhi_mono_ms();
        if (events->n > 0 || filter->wait_ms == 0 || left <= 0) {
            *out = events;
            return LH_OK;
        }
        lh_events_free(events);
        next.after = seen;
        if (lhi_raised(filter->cancel))
            return lhi_fail(err, LH_EINTR, "interrupted while waiting for events");
        (void)lhi_sleep(store, &any_commit, ticket, left < LHI_POLL_MS ? left : LHI_POLL_MS,
                        filter->cancel, false);
    }
}
