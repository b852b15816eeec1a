/* claim.c: the public calls that claim jobs or wait for the end of a job. */
#include "core/core.h"
#include "core/wait.h"

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

/* How long to sleep at a time. A cancel flag sends no wake-up, so it is polled every CANCEL_MS, unless the thread
 * that raises it also calls lh_wake(). */
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

int64_t lhi_max_sleep_ms(lh_store *store, enum lhi_wake_on on)
{
    const struct lhi_store_ops *ops = store->store.ops;
    return ops->max_sleep_ms != NULL ? ops->max_sleep_ms(store->store.self, on)
                                     : LHI_POLL_PERIOD(LHI_POLL_MS);
}

/* The sleep is measured by the real clock: a test that stops the store's clock does not stop it. */
bool lhi_sleep(lh_store *store, const struct lhi_topic *topic, uint32_t ticket, int64_t ms,
               const lh_flag *cancel, bool wakes)
{
    int64_t until = lhi_mono_us() / 1000 + ms;

    for (int64_t left = ms; left > 0 && !lhi_raised(cancel); left = until - lhi_mono_us() / 1000)
        if (store->store.ops->wait(store->store.self, topic, ticket, slice(left, cancel, wakes)))
            return true;
    return false;
}

/* Recover the jobs of workers that have died. A failure is logged and does not stop the claim. */
static void recover_dead_workers(lh_store *store)
{
    struct lhi_run run = {0};
    struct lhi_error err;

    lhi_error_clear(&err);
    if (!store->no_recovery && lhi_run_recovery(store, &run, NULL, NULL, &err) < 0)
        lhi_log(&store->log, LH_LOG_WARN, "automatic recovery failed: %s", err.text);
}

/* The state of a waiting claim. */
struct waiting {
    lh_store *store;
    const lh_claim_opts *opts;
    struct lhi_topic topic;
    struct lhi_wait wait;
    uint32_t ticket;
    int64_t deadline; /* monotonic; 0: the wait has no end */
    int64_t
        due_at; /* real time: when something falls due, or the rate allows a claim; -1: unknown */
    int64_t
        leftovers_ms; /* until the next search for processes of dead workers; -1: there are none */
    bool judged;      /* the workers were judged since the claim began */
    bool limited;     /* a limit holds jobs back */
    bool final;       /* this was the answer to an earlier request, which never changes */
    bool no_retries;
};

static int poll_for_jobs(struct waiting *w, struct lhi_error *err)
{
    struct lhi_act poll = {.verb = LHI_POLL, .poll = {.opts = w->opts}};
    int rc = lhi_read(w->store, &poll, err);

    if (rc < 0)
        return rc;
    /* A lease has expired at lease_until; one millisecond later this is certain. */
    w->due_at = poll.poll.next_ms >= 0 ? lhi_mono_us() / 1000 + poll.poll.next_ms + 1 : -1;
    lhi_wait_polled(&w->wait, poll.poll.found);
    return poll.poll.found ? LH_OK : LH_EMPTY;
}

static int claim_jobs(struct waiting *w, lh_jobs *jobs, struct lhi_error *err)
{
    struct lhi_act act = {.verb = LHI_CLAIM, .claim = {.opts = w->opts, .out = jobs}};
    jobs->asked_mono_ms = lhi_clock_ms(lh_store_clock(w->store));
    int rc = lhi_perform(w->store, &act, err);
    w->final = act.claim.repeated;
    w->limited = act.claim.retry_ms > 0;
    if (w->limited) {
        int64_t at = lhi_mono_us() / 1000 + act.claim.retry_ms + 1;
        w->due_at = w->due_at >= 0 && w->due_at < at ? w->due_at : at;
    }
    if (rc == LH_OK && jobs->n == 0 && jobs->priv != NULL)
        lhi_arena_clear(
            jobs->priv); /* free jobs that were read but not claimed, because the wait may be long */
    if (rc >= 0 && jobs->n > 0)
        return LH_OK;
    lhi_wait_claimed_nothing(&w->wait);
    return rc < 0 ? rc : LH_EMPTY;
}

/* A draining claim has found nothing. LH_OK: a job may still come; LH_EMPTY: none will. A retry may become pending
 * between the claim and this read, so `*no_retries` asks for one more claim. */
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

/* Judge the workers if one may have died since this handle did so last. On SQLite this also happens before the first
 * sleep; on PostgreSQL, where it costs a round trip, only after the death watch has noticed a death. */
static void judge_if_needed(struct waiting *w)
{
    lh_store *store = w->store;
    uint32_t deaths = store->store.ops->deaths(store->store.self);
    bool again = lhi_leftovers_due(store, &w->leftovers_ms);
    bool first = !w->judged && !store->store.ops->cheap_claims;

    if (!first && !again && deaths == __atomic_load_n(&store->deaths_judged, __ATOMIC_RELAXED))
        return;
    __atomic_store_n(&store->deaths_judged, deaths, __ATOMIC_RELAXED);
    w->judged = true;
    recover_dead_workers(store);
    (void)lhi_leftovers_due(store, &w->leftovers_ms);
    if (store->store.ops->cheap_claims)
        lhi_wait_claim(&w->wait);
}

static void sleep_for_jobs(struct waiting *w, int64_t left)
{
    const lh_claim_opts *opts = w->opts;
    uint32_t dice = (uint32_t)lhi_mono_us();
    int64_t ms = lhi_sooner(lhi_max_sleep_ms(w->store, LHI_ON_JOBS), left);

    if (w->due_at >= 0) {
        int64_t due_ms = w->due_at - lhi_mono_us() / 1000;
        ms = lhi_sooner(ms, due_ms > 0 ? due_ms : 0);
    }
    ms = lhi_sooner(lhi_sooner(ms, w->leftovers_ms), lhi_wait_ms(&w->wait, dice));
    w->due_at = -1;
    lhi_wait_slept(&w->wait,
                   lhi_sleep(w->store, &w->topic, w->ticket, ms, opts->cancel, opts->woken));
}

/* Take one step of the wait. LH_EMPTY: the wait continues. */
static int take_step(struct waiting *w, lh_jobs *jobs, struct lhi_error *err)
{
    const struct lhi_store_ops *ops = w->store->store.ops;

    if (!w->wait.looked)
        w->ticket = ops->ticket(w->store->store.self, &w->topic);
    if (w->wait.step == LHI_STEP_SUBSCRIBE) {
        lhi_wait_subscribed(&w->wait, ops->subscribe(w->store->store.self, &w->topic));
        return LH_EMPTY;
    }
    if (w->wait.step == LHI_STEP_CLAIM)
        return claim_jobs(w, jobs, err);
    int rc = poll_for_jobs(w, err);
    return rc == LH_OK ? LH_EMPTY : rc; /* the claim follows */
}

static int claim_waiting(lh_store *store, const lh_claim_opts *opts, lh_jobs *jobs,
                         struct lhi_error *err)
{
    struct waiting w = {.store = store,
                        .opts = opts,
                        .topic = {.on = LHI_ON_JOBS, .opts = opts},
                        .deadline = opts->wait_ms > 0 ? lhi_deadline(opts->wait_ms) : 0,
                        .due_at = -1,
                        .leftovers_ms = -1};

    lhi_wait_begin(&w.wait, true, store->store.ops->cheap_claims);
    for (bool first = true;; first = false) {
        int64_t left = -1;
        if (!first)
            judge_if_needed(&w);
        bool looks = w.wait.step != LHI_STEP_SUBSCRIBE;
        int rc = take_step(&w, jobs, err);
        /* Keep waiting also while the store is busy. */
        if ((rc != LH_EMPTY && rc != LH_EBUSY) || opts->wait_ms == 0 || w.final)
            return rc;
        if (rc == LH_EBUSY)
            lhi_wait_failed(&w.wait);
        if (opts->wait_ms > 0 && (left = w.deadline - lhi_mono_ms()) <= 0)
            return rc;
        if (looks && w.wait.step != LHI_STEP_CLAIM && opts->drain && rc == LH_EMPTY && !w.limited) {
            if ((rc = drained(store, opts, &w.no_retries, err)) != LH_OK)
                return rc;
            if (w.no_retries) {
                lhi_wait_claim(&w.wait);
                continue;
            }
        } else if (looks) {
            w.no_retries = false;
        }
        if (lhi_raised(opts->cancel))
            return lhi_fail(err, LH_EINTR, "interrupted while waiting for a job");
        if (w.wait.step == LHI_STEP_SLEEP) {
            sleep_for_jobs(&w, left);
            if (lhi_raised(opts->cancel)) /* before it claims jobs that the caller does not want */
                return lhi_fail(err, LH_EINTR, "interrupted while waiting for a job");
        }
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

/* The claim of lh_complete_claim() is committed: pass its jobs to the caller now. */
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
    size_t first = acts[0].n > 0 ? 0 : 1; /* leave out the act for output if there is none */
    if (rc == LH_OK && (first == 1 || (rc = lhi_statuses(&acts[0], err)) == LH_OK) &&
        (rc = lhi_statuses(complete, err)) == LH_OK) {
        jobs->asked_mono_ms = lhi_clock_ms(lh_store_clock(store));
        rc = lhi_perform_all(store, &acts[first], 3 - first, err);
        (void)lhi_list_outcome(rc, complete, status, err);
        if (rc >= 0)
            lhi_error_clear(err); /* the outcomes of the completes are in their statuses */
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

/* ---- waiting for the end of a job ---- */

int lh_job_wait(lh_store *store, int64_t id, int64_t wait_ms, const lh_flag *cancel, lh_jobs **out)
{
    static const struct lhi_topic any_commit = {.on = LHI_ON_COMMITS};
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
        uint32_t ticket = store->store.ops->ticket(store->store.self, &any_commit);
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
        (void)lhi_sleep(store, &any_commit, ticket,
                        left >= 0 && left < LHI_POLL_MS ? left : LHI_POLL_MS, cancel, false);
    }
}
