/* maintenance.c: the public calls lh_maintain() and lh_prune(). */
#include "core/core.h"
#include "core/wait.h"

#include "base/clock.h"

enum { PRUNE_MS = 60000 }; /* the pause between two prunings */

static const struct lhi_topic maintenance = {.on = LHI_ON_MAINTENANCE};

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

int lh_prune(lh_store *store, int64_t older_than_ms, const lh_flag *cancel, int64_t *pruned)
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

static bool prune_due(const lh_store *store)
{
    int64_t last = __atomic_load_n(&store->pruned_at, __ATOMIC_RELAXED);
    return last == 0 || lhi_mono_ms() - last >= PRUNE_MS;
}

/* Recovery, promotion, schedules, expiry and pruning: one transaction unless there is much to do. */
static int one_round(lh_store *store, struct lhi_run *run, const lh_flag *cancel,
                     lh_maintained *done, struct lhi_error *err)
{
    bool prune = prune_due(store), more = true;
    struct lhi_act acts[2];
    int rc = LH_OK;

    for (bool first = true; more && rc == LH_OK; first = false) {
        acts[0] = (struct lhi_act){.verb = LHI_MAINTAIN};
        acts[1] = (struct lhi_act){.verb = LHI_PRUNE};
        rc = first ? lhi_run_with(store, run, acts, prune ? 2 : 1, cancel, err)
                   : lhi_perform(store, &acts[0], err);
        done->enqueued += acts[0].maintain.done.enqueued;
        done->promoted += acts[0].maintain.done.promoted;
        done->expired += acts[0].maintain.done.expired;
        more = acts[0].maintain.more;
        if (more && lhi_raised(cancel))
            return lhi_fail(err, LH_EINTR, "maintenance was interrupted");
        if (!first || !prune || rc != LH_OK)
            continue;
        done->pruned = acts[1].prune.pruned;
        if (acts[1].prune.more)
            done->next_ms = 0;
        else
            __atomic_store_n(&store->pruned_at, lhi_mono_ms(), __ATOMIC_RELAXED);
    }
    return rc < 0 ? lhi_refused("maintenance", err) : rc;
}

static int poll_due(lh_store *store, bool waiting, bool *due, int64_t *next_ms,
                    struct lhi_error *err)
{
    struct lhi_act poll = {.verb = LHI_POLL, .poll = {.waiting = waiting}};
    int rc = lhi_read(store, &poll, err);

    *due = poll.poll.found;
    *next_ms = poll.poll.next_ms;
    return rc;
}

/* Wait until something is due, or a worker's process has ended. LH_EMPTY: nothing was, and another process runs
 * maintenance for all. */
static int wait_until_due(lh_store *store, const lh_maintain_opts *opts, struct lhi_error *err)
{
    int64_t deadline = opts->wait_ms > 0 ? lhi_deadline(opts->wait_ms) : 0;
    const struct lhi_store_ops *ops = store->store.ops;
    struct lhi_wait wait;
    int64_t next_ms = -1, again_ms, left = -1;
    uint32_t ticket = 0, deaths = ops->deaths(store->store.self);
    bool due = false;

    lhi_wait_begin(&wait, false, false);
    for (;;) {
        if (lhi_leftovers_due(store, &again_ms))
            return LH_OK;
        if (!wait.looked)
            ticket = ops->ticket(store->store.self, &maintenance);
        if (wait.step == LHI_STEP_SUBSCRIBE) {
            lhi_wait_subscribed(&wait, ops->subscribe(store->store.self, &maintenance));
        } else if (wait.step == LHI_STEP_POLL) {
            int rc = poll_due(store, true, &due, &next_ms, err);
            if (rc != LH_OK || (due && !__atomic_load_n(&store->stuck, __ATOMIC_RELAXED)))
                return rc;
            lhi_wait_polled(&wait, false);
        }
        if (lhi_raised(opts->cancel))
            return lhi_fail(err, LH_EINTR, "interrupted while waiting for maintenance");
        if (wait.step != LHI_STEP_SLEEP)
            continue;
        if (due)
            lhi_wait_calm(&wait);
        const int64_t most = lhi_max_sleep_ms(store, LHI_ON_MAINTENANCE);
        /* The leader returns to prune, even if the caller waits longer. */
        if (ops->max_sleep_ms != NULL && most <= LHI_POLL_MS && prune_due(store))
            return LH_OK;
        if (opts->wait_ms > 0 && (left = deadline - lhi_mono_ms()) < 0)
            left = 0;
        int64_t ms = lhi_sooner(lhi_sooner(most, next_ms >= 0 ? next_ms + 1 : -1), left);
        ms = lhi_sooner(lhi_sooner(ms, again_ms), lhi_wait_ms(&wait, 0));
        lhi_wait_slept(&wait,
                       lhi_sleep(store, &maintenance, ticket, ms, opts->cancel, opts->woken));
        if (ops->deaths(store->store.self) != deaths)
            return LH_OK;
        /* Something else may be due now. */
        __atomic_store_n(&store->stuck, false, __ATOMIC_RELAXED);
        if (opts->wait_ms > 0 && lhi_mono_ms() >= deadline && !lhi_raised(opts->cancel))
            return lhi_max_sleep_ms(store, LHI_ON_MAINTENANCE) > LHI_POLL_MS ? LH_EMPTY : LH_OK;
    }
}

int lh_maintain(lh_store *store, const lh_maintain_opts *opts, lh_maintained *out)
{
    static const lh_maintain_opts defaults;
    struct lhi_run run = {0};
    lh_maintained done = {.next_ms = PRUNE_MS};
    bool due = false, due_before = false;
    int64_t next_ms;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if (opts == NULL)
        opts = &defaults;
    if ((rc = LHI_NEED_RESERVED(opts, err)) != LH_OK ||
        (rc = lhi_need_wait(opts->wait_ms, err)) != LH_OK)
        return rc;
    if (opts->wait_ms != 0 && (rc = wait_until_due(store, opts, err)) != LH_OK) {
        if (rc != LH_EMPTY)
            return rc;
        done.next_ms = lhi_sooner(done.next_ms, lhi_max_sleep_ms(store, LHI_ON_MAINTENANCE));
        if (out != NULL)
            *out = done;
        return LH_OK;
    }
    if ((rc = poll_due(store, false, &due_before, &next_ms, err)) < 0 ||
        (rc = one_round(store, &run, opts->cancel, &done, err)) < 0)
        return rc;
    done.recovered = lhi_run_reclaimed(&run);
    done.dead_workers = run.dead_workers;
    done.report = run.report;
    if ((rc = poll_due(store, false, &due, &next_ms, err)) < 0)
        return rc;
    /* Something is due before and after a round that did nothing: maintenance does not do it (recovery off). */
    bool idle =
        done.recovered + done.promoted + done.expired + done.enqueued + done.dead_workers == 0;
    __atomic_store_n(&store->stuck, due && due_before && idle, __ATOMIC_RELAXED);
    done.next_ms = lhi_sooner(done.next_ms, next_ms);
    (void)lhi_leftovers_due(store, &next_ms);
    done.next_ms = lhi_sooner(done.next_ms, next_ms);
    if (out != NULL)
        *out = done;
    return LH_OK;
}
