/* Claims, and everything that waits: for a job to claim, for a job to end. */
#include "core/core.h"

#include "base/clock.h"
#include "base/hook.h"

#include <assert.h>

enum {
    MAX_BATCH = 1000,
    CANCEL_MS = 100,
};

static int check_claim(const lh_claim_opts *opts, lh_jobs **out, struct lhi_error *err)
{
    int rc = LH_OK;

    if (opts == NULL || opts->n_queues == 0 || opts->queues == NULL)
        return lhi_fail(err, LH_EMISUSE, "claim names no queue");
    if (opts->claimed == NULL && (rc = lhi_need_out(out, err)) != LH_OK)
        return rc;
    if ((rc = LHI_NEED_RESERVED(opts, err)) != LH_OK)
        return rc;
    rc = lhi_need_range("number of queues", (int64_t)opts->n_queues, 1, 64, err);
    for (size_t i = 0; i < opts->n_queues && rc == LH_OK; i++)
        rc = lhi_need_name("queue", opts->queues[i], err);
    if (opts->n_kinds > 0 && opts->kinds == NULL)
        return lhi_fail(err, LH_EMISUSE, "claim has n_kinds %zu but no kinds", opts->n_kinds);
    for (size_t i = 0; i < opts->n_kinds && rc == LH_OK; i++)
        rc = lhi_need_name("kind", opts->kinds[i], err);
    if (rc == LH_OK)
        rc = lhi_need_name("worker", opts->worker, err);
    if (rc == LH_OK)
        rc = lhi_need_range("number of jobs", (int64_t)opts->n, 0, MAX_BATCH, err);
    if (rc == LH_OK && opts->lease_ms != 0)
        rc = lhi_need_duration("lease", opts->lease_ms, 1, LHI_MAX_LEASE_MS, err);
    if (rc == LH_OK)
        rc = lhi_need_wait(opts->wait_ms, err);
    return rc == LH_OK ? lhi_check_request(opts->request, err) : rc;
}

int64_t lhi_deadline(int64_t wait_ms)
{
    int64_t deadline;
    return __builtin_add_overflow(lhi_mono_ms(), wait_ms, &deadline) ? INT64_MAX : deadline;
}

/* A cancel flag rings no bell: it is looked at ten times a second, and nothing else is; unless whoever
 * raises it rings. */
static int64_t slice(int64_t left, const lh_flag *cancel, bool woken)
{
    return cancel != NULL && !woken && left > CANCEL_MS ? CANCEL_MS : left;
}

void lh_wake(lh_store *store)
{
    int rc;

    if (lhi_enter(store, &rc) != NULL && store->store.ops != NULL)
        store->store.ops->wake(store->store.self);
}

int64_t lhi_net_ms(lh_store *store, bool keeper)
{
    const struct lhi_store_ops *ops = store->store.ops;
    return ops->net_ms != NULL ? ops->net_ms(store->store.self, keeper)
                               : LHI_POLL_PERIOD(LHI_POLL_MS);
}

bool lhi_sleep_until(lh_store *store, const lh_claim_opts *opts, uint32_t ticket, int64_t ms,
                     const lh_flag *cancel)
{
    int64_t deadline = lhi_mono_ms() + ms;

    for (int64_t left = ms; left > 0 && !lhi_raised(cancel); left = deadline - lhi_mono_ms())
        if (store->store.ops->wait(store->store.self, ticket, opts,
                                   slice(left, cancel, opts != NULL && opts->woken)))
            return true;
    return false;
}

bool lhi_await_siren(lh_store *store, uint32_t ticket, int64_t ms, const lh_flag *cancel,
                     bool woken)
{
    int64_t deadline = lhi_mono_ms() + ms;

    for (int64_t left = ms; left > 0 && !lhi_raised(cancel); left = deadline - lhi_mono_ms())
        if (store->store.ops->await_siren(store->store.self, ticket, slice(left, cancel, woken)))
            return true;
    return false;
}

/* Somebody who waits anyway looks after the workers: when the siren was sounded a process may have
 * died. A failure is logged and does not stop the claim. */
static void look_after_workers(lh_store *store)
{
    struct lhi_run run = {0};
    struct lhi_error err;

    lhi_error_clear(&err);
    if (!store->no_recovery && lhi_run_recovery(store, &run, NULL, NULL, &err) < 0)
        lhi_log(&store->log, LH_LOG_WARN, "automatic recovery failed: %s", err.text);
}

/* One look: with `sure`, straight to the claim; else a look that costs no writer anything comes
 * first, so that an idle claimer is no load. */
static int look(lh_store *store, const lh_claim_opts *opts, bool sure, lh_jobs *jobs,
                int64_t *next_ms, bool *limited, bool *final, struct lhi_error *err)
{
    *next_ms = -1;
    *limited = false;
    if (!sure) {
        struct lhi_act poll = {.verb = LHI_POLL, .poll = {.opts = opts}};
        int rc = lhi_read(store, &poll, err);
        if (rc < 0)
            return rc;
        *next_ms = poll.poll.next_ms;
        if (!poll.poll.found)
            return LH_EMPTY;
    }
    struct lhi_act act = {.verb = LHI_CLAIM, .claim = {.opts = opts, .out = jobs}};
    jobs->asked_mono_ms = lhi_clock_ms(lh_store_clock(store));
    int rc = lhi_perform(store, &act, err);
    *final = act.claim.repeated;
    *limited = act.claim.retry_ms > 0;
    if (act.claim.retry_ms > 0 && (*next_ms < 0 || act.claim.retry_ms < *next_ms))
        *next_ms = act.claim.retry_ms;
    if (rc == LH_OK && jobs->n == 0 && jobs->priv != NULL)
        lhi_arena_clear(jobs->priv); /* what was looked at and not taken: the wait may be long */
    return rc < 0 ? rc : jobs->n > 0 ? LH_OK : LH_EMPTY;
}

/* A claim that drains has found nothing. LH_OK: a job may still come; LH_EMPTY: none will. A retry may
 * become pending between the claim and the look for retries, so `*no_retries` asks for another claim. */
static int drained(lh_store *store, const lh_claim_opts *opts, bool *no_retries,
                   struct lhi_error *err)
{
    struct lhi_act act = {.verb = LHI_RETRIES, .retries = {.opts = opts}};

    if (*no_retries)
        return LH_EMPTY;
    int rc = lhi_read(store, &act, err);
    *no_retries = rc >= 0 && !act.retries.waiting;
    return rc;
}

static int claim_waiting(lh_store *store, const lh_claim_opts *opts, lh_jobs *jobs,
                         struct lhi_error *err)
{
    int64_t deadline = opts->wait_ms > 0 ? lhi_deadline(opts->wait_ms) : 0;
    uint32_t siren = 0;
    bool sure = true, waited = false, no_retries = false;

    for (;;) {
        int64_t again_ms;
        bool again = lhi_leftovers_due(store, &again_ms);
        uint32_t ticket = store->store.ops->ticket(store->store.self, opts);
        if (!sure &&
            (!waited || again || store->store.ops->siren(store->store.self, false) != siren)) {
            siren = store->store.ops->siren(store->store.self, false);
            look_after_workers(store);
            (void)lhi_leftovers_due(store, &again_ms);
            waited = true;
        }
        int64_t next_ms, left = -1;
        bool rung = false, limited,
             final = false; /* the answer of a request that was made before never changes */
        int rc = look(store, opts, sure, jobs, &next_ms, &limited, &final, err);
        /* A store that is busy for a while is one more thing to wait for. */
        if ((rc != LH_EMPTY && rc != LH_EBUSY) || opts->wait_ms == 0 || final)
            return rc;
        if (opts->wait_ms > 0 && (left = deadline - lhi_mono_ms()) <= 0)
            return rc;
        if (opts->drain && rc == LH_EMPTY && !limited) {
            if ((rc = drained(store, opts, &no_retries, err)) != LH_OK)
                return rc;
            if (no_retries) {
                sure = true;
                continue;
            }
        } else {
            no_retries = false;
        }
        if (lhi_raised(opts->cancel))
            return lhi_fail(err, LH_EINTR, "interrupted while waiting for a job");
        /* After a claim that found nothing, one look tells how long to sleep. */
        if (!sure) {
            /* Expired means lease_until <= now: one later is surely past. */
            int64_t ms = lhi_sooner(lhi_net_ms(store, false), next_ms >= 0 ? next_ms + 1 : -1);
            ms = lhi_sooner(lhi_sooner(ms, left), again_ms);
            rung = lhi_sleep_until(store, opts, ticket, ms, opts->cancel);
            if (lhi_raised(opts->cancel)) /* before it claims what it will not use */
                return lhi_fail(err, LH_EINTR, "interrupted while waiting for a job");
        }
        sure = rung && store->store.ops->cheap_claims;
    }
}

static int hand_out(int rc, lh_jobs *jobs, const lh_claim_opts *opts, struct lhi_error *err,
                    lh_jobs **out)
{
    if (rc == LH_OK && opts->claimed != NULL)
        opts->claimed(opts->claimed_arg, jobs);
    else if (rc == LH_OK)
        *out = jobs;
    else
        lh_jobs_free(jobs);
    if (rc == LH_EUNKNOWN && opts->request != NULL)
        lhi_format(err->request, sizeof err->request, "%s", opts->request);
    return rc;
}

int lh_claim(lh_store *store, const lh_claim_opts *opts, lh_jobs **out)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = check_claim(opts, out, err)) != LH_OK)
        return rc;
    lh_jobs *jobs = lhi_result_new(sizeof *jobs, err);
    if (jobs == NULL)
        return err->status;
    rc = claim_waiting(store, opts, jobs, err);
    return hand_out(rc, jobs, opts, err, out);
}

/* The claim of lh_complete_claim() stands: its jobs go to the caller at once. */
static void hand_out_early(struct lhi_act *act)
{
    lh_jobs **jobs = act->claim.stands_arg;

    if ((*jobs)->n == 0)
        return;
    act->claim.opts->claimed(act->claim.opts->claimed_arg, *jobs);
    *jobs = NULL;
}

int lh_complete_claim(lh_store *store, const lh_done *done, size_t n, int *status,
                      const lh_claim_opts *opts, lh_jobs **out)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if (n == 0)
        return lh_claim(store, opts, out);
    if ((rc = check_claim(opts, out, err)) != LH_OK ||
        (rc = lhi_check_refs(n, done, err)) != LH_OK ||
        (rc = lhi_check_done(done, n, err)) != LH_OK)
        return rc;
    lh_jobs *jobs = lhi_result_new(sizeof *jobs, err);
    if (jobs == NULL)
        return err->status;
    struct lhi_act acts[3] = {
        {.verb = LHI_OUTPUT},
        {.verb = LHI_COMPLETE, .n = n, .done = done},
        {.verb = LHI_CLAIM,
         .claim = {.opts = opts,
                   .out = jobs,
                   .stands = opts->claimed != NULL ? hand_out_early : NULL,
                   .stands_arg = &jobs}},
    };
    struct lhi_act *complete = &acts[1], *claim = &acts[2];
    struct lhi_written *written = NULL;
    rc = lhi_written_by(done, n, &written, &acts[0].n, err);
    acts[0].outputs = written;
    size_t first = acts[0].n > 0 ? 0 : 1; /* without output there is no act for it */
    if (rc == LH_OK && (first == 1 || (rc = lhi_statuses(&acts[0], err)) == LH_OK) &&
        (rc = lhi_statuses(complete, err)) == LH_OK) {
        jobs->asked_mono_ms = lhi_clock_ms(lh_store_clock(store));
        rc = lhi_perform_all(store, &acts[first], 3 - first, err);
        (void)lhi_list_outcome(rc, complete, status, err);
        if (rc >= 0)
            lhi_error_clear(err); /* what became of the completes is in their statuses */
    }
    lhi_free(acts[0].status);
    lhi_free(complete->status);
    lhi_free(written);
    if (jobs == NULL)
        return rc < 0 ? rc : LH_OK;
    if (rc >= 0 && claim->err.status < 0) {
        *err = claim->err;
        rc = err->status;
    } else if (rc >= 0) {
        rc = jobs->n > 0 ? LH_OK : LH_EMPTY;
    }
    if (rc == LH_EMPTY && opts->wait_ms != 0 && !claim->claim.repeated)
        rc = claim_waiting(store, opts, jobs, err);
    return hand_out(rc, jobs, opts, err, out);
}

/* ---- the end of a job ---- */

int lh_job_wait(lh_store *store, int64_t id, int64_t wait_ms, const lh_flag *cancel, lh_jobs **out)
{
    int64_t deadline = wait_ms > 0 ? lhi_deadline(wait_ms) : 0;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_out(out, err)) != LH_OK || (rc = lhi_need_wait(wait_ms, err)) != LH_OK)
        return rc;
    for (;;) {
        lh_jobs *jobs = NULL;
        int64_t left = -1;
        uint32_t ticket = store->store.ops->ticket(store->store.self, NULL);
        struct lhi_act act = {.verb = LHI_JOB_GET, .jobs = {.id = id}};
        if ((rc = lhi_read_jobs(store, &act, err, &jobs)) != LH_OK)
            return rc;
        assert(jobs != NULL && jobs->n == 1);
        if (jobs->job[0].state >= LH_COMPLETED) {
            *out = jobs;
            return LH_OK;
        }
        lh_jobs_free(jobs);
        if (lhi_raised(cancel))
            return lhi_fail(err, LH_EINTR, "interrupted while waiting for job %lld", (long long)id);
        if (wait_ms == 0 || (wait_ms > 0 && (left = deadline - lhi_mono_ms()) <= 0))
            return LH_EMPTY;
        (void)lhi_sleep_until(store, NULL, ticket,
                              left >= 0 && left < LHI_POLL_MS ? left : LHI_POLL_MS, cancel);
    }
}
