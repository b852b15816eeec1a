/*
 * lease_take.c: acquiring a named lease, and waiting for it.
 *
 * A waiting call sleeps until an event of the store, until the holder's lease expires, or until the holder is
 * found dead; for the last, a thread runs maintenance meanwhile. It also polls once a second.
 */
#include "worker/lease_run.h"

#include <signal.h>
#include <string.h>

enum { LOOK_MS = 1000, EVENTS = 1000 };

/* ---- one try ---- */

struct holder {
    char name[160];
    int64_t remaining_ms;
};

/* Try to acquire, never to extend: a lease that this owner holds belongs to another run. */
static int try_once(struct lease_run *run, struct holder *holder, struct lhi_error *err)
{
    lh_lease_opts opts = {.owner = run->owner, .ttl_ms = run->opts.ttl_ms, .take_only = true};
    lh_leases *leases = NULL;

    run->sent_at = lease_now(run);
    int rc = lh_lease_acquire(run->store, run->scope, run->name, &opts, &leases);
    if (rc == LH_OK) {
        run->token = leases->lease[0].token;
        run->limit_ms = leases->lease[0].remaining_ms;
    } else {
        (void)lhi_fail(err, rc, "%s", lh_errmsg(run->store));
    }
    if (rc == LH_EHELD && leases != NULL) {
        lhi_format(holder->name, sizeof holder->name, "%s", leases->lease[0].owner);
        holder->remaining_ms = leases->lease[0].remaining_ms;
    }
    lh_leases_free(leases);
    return rc;
}

/* Recover the lease if its holder is proven dead. True: done. */
static bool recover_from(struct lease_run *run, const struct holder *holder)
{
    lh_workers *dead = NULL;
    bool is_dead = false;

    if (lh_workers_stale(run->store, &dead) != LH_OK)
        return false;
    for (size_t i = 0; i < dead->n; i++)
        is_dead = is_dead || strcmp(dead->worker[i].id, holder->name) == 0;
    lh_workers_free(dead);
    return is_dead && lh_maintain(run->store, NULL, NULL) == LH_OK;
}

/* ---- maintenance while we wait ---- */

static void *watch(void *arg)
{
    struct lease_run *run = arg;
    lh_maintain_opts opts = {.wait_ms = -1, .cancel = &run->unwatch};

    /* If this fails, the lease can still be acquired when it expires. */
    while (lh_maintain(run->store, &opts, NULL) == LH_OK &&
           !__atomic_load_n(&run->unwatch, __ATOMIC_RELAXED))
        continue;
    return NULL;
}

static void start_watching(struct lease_run *run)
{
    sigset_t all, before;

    if (run->watching)
        return;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    run->watching = pthread_create(&run->maintainer, NULL, watch, run) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void lease_taken(struct lease_run *run)
{
    if (run->watching)
        (void)pthread_join(run->maintainer, NULL);
    run->watching = false;
}

/* ---- waiting ---- */

static int newest_event(struct lease_run *run, int64_t *id, struct lhi_error *err)
{
    lh_event_filter filter = {.newest = true, .limit = 1};
    lh_events *events = NULL;
    int rc = lh_event_list(run->store, &filter, &events);

    if (rc != LH_OK)
        return lhi_fail(err, rc, "%s", lh_errmsg(run->store));
    *id = events->n > 0 ? events->event[0].id : 0;
    lh_events_free(events);
    return LH_OK;
}

static bool looks_free(struct lease_run *run)
{
    lh_leases *leases = NULL;
    int rc = lh_lease_get(run->store, run->scope, run->name, &leases);
    bool is_free = rc != LH_OK || leases->lease[0].owner == NULL || leases->lease[0].stale;

    lh_leases_free(leases);
    return is_free;
}

/* Sleep until the next event of any kind, or for `ms`. */
static int await_event(struct lease_run *run, int64_t ms, int64_t *after, struct lhi_error *err)
{
    lh_event_filter filter = {
        .after = *after, .limit = EVENTS, .wait_ms = ms, .cancel = run->opts.cancel};
    lh_events *events = NULL;
    sigset_t ours;

    /* Nothing is held yet, so signals have their usual effect. */
    (void)pthread_sigmask(SIG_SETMASK, &run->mask, &ours);
    int rc = lh_event_list(run->store, &filter, &events);
    (void)pthread_sigmask(SIG_SETMASK, &ours, NULL);
    if (rc != LH_OK)
        return lhi_fail(err, rc, "%s", lh_errmsg(run->store));
    if (events->n > 0)
        *after = events->event[events->n - 1].id;
    lh_events_free(events);
    return LH_OK;
}

/* Wait until another try may succeed. Some changes have no event (the lease of an exclusive queue ends with
 * its job), so poll once a second as well. */
static int await_change(struct lease_run *run, int64_t until, int64_t *after, struct lhi_error *err)
{
    int rc = LH_OK;

    for (int64_t left; rc == LH_OK && (left = until - lease_now(run)) > 0;) {
        rc = await_event(run, left < LOOK_MS ? left : LOOK_MS, after, err);
        if (rc == LH_OK && looks_free(run))
            break;
    }
    return rc;
}

static int wait_for_it(struct lease_run *run, struct lhi_error *err)
{
    int64_t deadline = run->opts.wait_ms < 0 ? INT64_MAX : lease_now(run) + run->opts.wait_ms;
    struct holder holder = {0};
    int64_t after = 0;
    int rc = newest_event(run, &after, err);

    while (rc == LH_OK) {
        rc = try_once(run, &holder, err); /* it sees everything up to `after` */
        if (rc != LH_EHELD || lease_now(run) >= deadline)
            return rc;
        start_watching(run);
        int64_t expiry = run->sent_at + holder.remaining_ms + 1;
        rc = await_change(run, expiry < deadline ? expiry : deadline, &after, err);
    }
    return rc;
}

int lease_take(struct lease_run *run, struct lhi_error *err)
{
    struct holder holder = {0};
    int rc = try_once(run, &holder, err);

    if (rc == LH_EHELD && recover_from(run, &holder))
        rc = try_once(run, &holder, err);
    if (rc == LH_EHELD && run->opts.wait_ms != 0)
        rc = wait_for_it(run, err);
    __atomic_store_n(&run->unwatch, 1, __ATOMIC_RELAXED); /* the thread ends soon */
    if (rc == LH_OK)
        lhi_error_clear(err);
    return rc;
}
