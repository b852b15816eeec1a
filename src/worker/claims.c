/* Claims: how many jobs to ask for, and which of those in hand to start now. */
#include "worker/worker.h"

#include <string.h>

enum {
    MEANS_MS = 1000,
    CLAIMED_WITH_ENDS = 32, /* at the most */
};

/* ---- the limit of our own ---- */

static void refill(struct worker *w, int64_t now)
{
    double per_ms = (double)w->opts.rate_n / (double)w->opts.rate_per_ms;

    w->tokens += (double)(now - w->tokens_at) * per_ms;
    if (w->tokens > (double)w->opts.rate_n)
        w->tokens = (double)w->opts.rate_n;
    w->tokens_at = now;
}

static bool may_start(struct worker *w)
{
    if (w->opts.rate_n == 0)
        return true;
    refill(w, worker_now(w));
    return w->tokens >= 1;
}

/* When one more may be claimed than those in hand, which need their tokens to be started. */
static int64_t next_token_at(const struct worker *w)
{
    double per_ms = (double)w->opts.rate_n / (double)w->opts.rate_per_ms;
    double missing = 1 + (double)w->ahead - w->tokens;

    return missing <= 0 ? w->tokens_at : w->tokens_at + (int64_t)(missing / per_ms) + 1;
}

/* ---- tasks ---- */

static struct lh_task *task_new(struct worker *w)
{
    for (size_t i = 0; i < w->n_tasks; i++)
        if (w->tasks[i].state == TASK_FREE)
            return &w->tasks[i];
    return NULL;
}

static void task_blank(struct lh_task *task)
{
    *task = (struct lh_task){.worker = task->worker,
                             .progress = -1,
                             .out.source.fd = -1,
                             .err.source.fd = -1,
                             .talk.source.fd = -1};
}

void task_free(struct lh_task *task)
{
    command_forget(task);
    bytes_clear(&task->result);
    bytes_clear(&task->error);
    output_clear(task);
    bytes_clear(&task->line);
    lhi_free(task->stage);
    lhi_free(task->checkpoint);
    lhi_free(task->next_checkpoint);
    if (task->batch != NULL && --task->batch->left == 0) {
        lh_jobs_free(task->batch->jobs);
        lhi_free(task->batch);
    }
    task_blank(task);
}

/* ---- claiming ---- */

/* No descriptors, no memory, no processes: nothing is claimed for a while. */
void no_means(struct worker *w, const struct lh_task *task, const char *what, int error)
{
    char text[200], words[80];

    w->out_of_means = true;
    w->means_at = worker_now(w) + MEANS_MS;
    lhi_format(text, sizeof text, "%s: %s", what, strerror_r(error, words, sizeof words));
    worker_tell(w, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, task);
}

lh_claim_opts claim_opts(const struct worker *w, size_t n)
{
    return (lh_claim_opts){.queues = w->opts.queues,
                           .n_queues = w->opts.n_queues,
                           .kinds = w->opts.kinds,
                           .n_kinds = w->opts.n_kinds,
                           .worker = w->id,
                           .n = n,
                           .lease_ms = w->opts.lease_ms};
}

static void claim(struct worker *w)
{
    lh_claim_opts opts = claim_opts(w, w->claim.n);

    opts.wait_ms = w->claim.wait_ms;
    opts.cancel = &w->claim.cancel;
    opts.woken = true;
    opts.drain = w->claim.drain;
    w->claim.jobs = NULL;
    w->claimer.rc = lh_claim(w->store, &opts, &w->claim.jobs);
    if (w->claimer.rc < 0)
        lhi_format(w->claimer.error, sizeof w->claimer.error, "%s", lh_errmsg(w->store));
}

/* Without the memory for them they are given back by their leases: rare, and safe. */
void claims_take(struct worker *w, lh_jobs *jobs)
{
    struct batch *batch = lhi_malloc(sizeof *batch);
    if (batch == NULL) {
        lh_jobs_free(jobs);
        return;
    }
    *batch = (struct batch){.jobs = jobs, .left = jobs->n};
    /* A claim is a sign of life: after it the store has heard of us within half an interval. */
    if (w->heard_at < jobs->asked_mono_ms - w->opts.heartbeat_ms / 2)
        w->heard_at = jobs->asked_mono_ms - w->opts.heartbeat_ms / 2;
    w->tally.claimed += (int64_t)jobs->n;
    for (size_t i = 0; i < jobs->n; i++) {
        struct lh_task *task = task_new(w);
        if (task == NULL) { /* more than were asked for: cannot be */
            batch->left--;
            continue;
        }
        task->batch = batch;
        task->job = &jobs->job[i];
        task->state = TASK_AHEAD;
        task->order = ++w->orders;
        w->ahead++;
        set_deadlines(task, jobs->asked_mono_ms, task->job->remaining_ms);
        if (w->stage != STAGE_WORK)
            task_ended(task, LH_RAN_RELEASED);
    }
}

static void claimed(struct worker *w)
{
    int rc = w->claimer.rc;

    if (rc == LH_EINTR)
        return;
    worker_trouble(w, &w->claimer, "could not claim");
    if (is_final(rc))
        worker_fail(w, rc, w->claimer.error);
    w->empty = rc == LH_EMPTY;
    if (rc == LH_OK)
        claims_take(w, w->claim.jobs);
    w->claim.jobs = NULL;
    if (w->empty && w->opts.once && w->tally.claimed == 0) {
        w->rc = LH_EMPTY;
        worker_stop(w, false);
    }
}

bool claims_init(struct worker *w)
{
    w->claimer.act = claim;
    w->claimer.done = claimed;
    w->tokens = (double)w->opts.rate_n;
    w->tokens_at = worker_now(w);
    /* As many again may have ended, while the store is being told. */
    w->n_tasks = (w->opts.jobs + w->opts.ahead) * 2;
    w->tasks = lhi_calloc(w->n_tasks, sizeof *w->tasks);
    for (size_t i = 0; i < w->n_tasks && w->tasks != NULL; i++) {
        w->tasks[i].worker = w;
        task_blank(&w->tasks[i]);
    }
    return w->tasks != NULL;
}

void claims_cancel(struct worker *w)
{
    if (__atomic_exchange_n(&w->claim.cancel, 1, __ATOMIC_RELAXED) == 0 && w->claimer.busy)
        lh_wake(w->store);
}

static size_t in_hand(const struct worker *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n_tasks; i++)
        n += w->tasks[i].state != TASK_FREE;
    return n;
}

static size_t wanted(struct worker *w)
{
    size_t most = w->opts.jobs + w->opts.ahead;
    size_t place = most > w->running ? most - w->running : 0;
    size_t room = w->n_tasks - in_hand(w);

    if (w->stage != STAGE_WORK || w->beat_failing || w->out_of_means || !may_start(w))
        return 0;
    if (w->opts.once)
        return w->tally.claimed > 0 ? 0 : 1;
    /* What is claimed ahead is claimed by the half, not one by one. */
    if (w->opts.ahead > 1 && w->ahead > w->opts.ahead / 2)
        return 0;
    size_t n = place > w->ahead ? place - w->ahead : 0;
    n = n < room ? n : room;
    if (w->opts.rate_n > 0) { /* not what could not be started after those that are in hand */
        size_t may = (size_t)w->tokens > w->ahead ? (size_t)w->tokens - w->ahead : 0;
        n = n < may ? n : may;
    }
    return n < 1000 ? n : 1000;
}

static bool drains(const struct worker *w)
{
    return w->opts.drain || w->opts.drain_pending;
}

/* All is done and nothing is left to do: --drain and --once end here. */
static void maybe_finish(struct worker *w)
{
    if (w->stage != STAGE_WORK || w->claimer.busy || in_hand(w) > 0)
        return;
    if ((drains(w) && w->empty) || (w->opts.once && w->tally.claimed > 0))
        worker_stop(w, false);
}

/* The transaction that completes jobs also claims the next ones: with a backlog a worker makes one
 * transaction for each job instead of two. Not while jobs claimed before are still to be started, and not
 * for many jobs: then the claim is not urgent, and the claimer makes it beside the completes. It claims
 * without waiting, because the completes must not wait for jobs to come; if it gets nothing, the claimer
 * waits for some. */
size_t claims_with_ends(struct worker *w)
{
    /* Without jobs in advance, those that were claimed start in this same step. */
    bool supplied = w->opts.ahead > 0 && w->ahead > 0;
    if (w->claimer.busy || w->claimer.failures > 0 || supplied)
        return 0;
    size_t n = wanted(w);
    return n <= CLAIMED_WITH_ENDS ? n : 0;
}

/* The ender claims now, or will claim when it completes what waits for it. A worker that claims in
 * advance does not wait for that: it would run out of jobs meanwhile. */
static bool claims_by_ender(const struct worker *w)
{
    return w->ender.busy && (w->end.claim > 0 || (w->opts.ahead == 0 && ends_wait(w)));
}

static int64_t claim_due(const struct worker *w)
{
    return claims_by_ender(w) ? INT64_MAX : w->claimer.failures > 0 ? w->claimer.retry_at : 0;
}

void claims_step(struct worker *w)
{
    int64_t now = worker_now(w);
    size_t n;

    if (w->out_of_means && now >= w->means_at)
        w->out_of_means = false;
    n = wanted(w);
    if (w->claimer.busy) {
        /* A wait for more is over when nothing may be claimed any more, or, of a worker that is to
         * stop when nothing is left, when it has nothing else to wait for. */
        if (n == 0 || (drains(w) && w->claim.wait_ms != 0 && !w->claim.drain && in_hand(w) == 0))
            claims_cancel(w);
        if (now >= w->claim.waiting_at) {
            w->claim.waiting_at = INT64_MAX;
            worker_tell(w, &(lh_work_event){.what = LH_WORK_WAITING}, NULL);
        }
        return;
    }
    maybe_finish(w);
    if (w->stage != STAGE_WORK || n == 0 || now < claim_due(w))
        return;
    w->claim.n = n;
    bool last = drains(w) && in_hand(w) == 0; /* nothing of our own can follow it */
    w->claim.wait_ms = w->opts.once || (last && w->opts.drain_pending) ? 0 : -1;
    w->claim.drain = last && w->claim.wait_ms != 0;
    w->claim.waiting_at = w->claim.drain ? now + WAITING_MS : INT64_MAX;
    __atomic_store_n(&w->claim.cancel, 0, __ATOMIC_RELAXED);
    hand_ask(&w->claimer);
}

int64_t claims_next(struct worker *w)
{
    if (w->claimer.busy)
        return w->claim.waiting_at;
    if (w->stage != STAGE_WORK)
        return INT64_MAX;
    if (wanted(w) > 0)
        return claim_due(w);
    if (w->out_of_means)
        return w->means_at;
    if (w->opts.rate_n > 0 && w->running + w->ahead < w->opts.jobs + w->opts.ahead &&
        !w->beat_failing)
        return next_token_at(w);
    return INT64_MAX;
}

/* ---- starting ---- */

/* A limit of our own: what is not started goes back at once, others may have the means. */
static void give_back_rest(struct worker *w)
{
    for (size_t i = 0; i < w->n_tasks; i++)
        if (w->tasks[i].state == TASK_AHEAD)
            task_ended(&w->tasks[i], LH_RAN_RELEASED);
}

static struct lh_task *oldest_ahead(struct worker *w)
{
    struct lh_task *first = NULL;

    for (size_t i = 0; i < w->n_tasks; i++) {
        struct lh_task *task = &w->tasks[i];
        if (task->state == TASK_AHEAD && (first == NULL || task->order < first->order))
            first = task;
    }
    return first;
}

static bool start_one(struct worker *w, struct lh_task *task)
{
    int64_t timeout = w->opts.timeout_ms ? w->opts.timeout_ms : task->job->timeout_ms;

    if (w->opts.handler == NULL && !command_start(task))
        return false;
    task->started_at = worker_now(w);
    task->timeout_ms = timeout;
    w->tally.started++;
    if (w->opts.handler != NULL) {
        task->state = TASK_RUNNING;
        worker_tell(w, &(lh_work_event){.what = LH_WORK_STARTED}, task);
        handlers_run(task);
    } else {
        task->state = TASK_STARTING;
    }
    return true;
}

static void start_recorded(struct worker *w)
{
    for (size_t i = 0; i < w->n_tasks; i++) {
        struct lh_task *task = &w->tasks[i];
        bool no_more = w->stage != STAGE_WORK || task->stop != STOP_NONE;
        if (task->state != TASK_RECORDED && !(task->state == TASK_RECORDING && no_more))
            continue;
        if (no_more) {
            w->tokens += w->opts.rate_n > 0; /* it was not started after all */
            task_ended(task, task->stop == STOP_NONE ? LH_RAN_RELEASED : LH_RAN_LOST);
        } else if (w->opts.handler != NULL || guard_idle(w) != NULL) {
            (void)start_one(w, task);
        } else if (!guard_new(w)) {
            task->stop = STOP_SHUTDOWN; /* its guardian went, and there cannot be another now */
        }
    }
}

void start_tasks(struct worker *w)
{
    struct lh_task *task;

    start_recorded(w);
    while (w->stage == STAGE_WORK && (task = oldest_ahead(w)) != NULL) {
        if (!may_start(w)) { /* asked before the slots: it is not kept until one is free */
            give_back_rest(w);
            break;
        }
        if (w->running >= w->opts.jobs + w->burst)
            break;
        if (w->opts.handler == NULL && !guard_spare(w)) {
            if (!guard_new(w))
                give_back_rest(w);
            break;
        }
        w->ahead--;
        w->running++;
        w->tokens -= w->opts.rate_n > 0;
        task->state = TASK_RECORDED;
        if (w->opts.ahead > 0) { /* the store is told first which of a batch were begun */
            task->state = TASK_RECORDING;
            w->started_changed = true;
        } else {
            (void)start_one(w, task);
        }
    }
}
