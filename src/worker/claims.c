/* claims.c: how many jobs to claim, and which of the claimed jobs to start. */
#include "worker/worker.h"

#include <string.h>

enum {
    RESOURCES_MS = 1000,
    CLAIMED_WITH_OUTCOMES = 32, /* at the most */
};

/* ---- the worker's own rate limit ---- */

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

/* When there is a token for one more job than those that were claimed and not started. */
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

/* Descriptors, memory or processes are used up: report that, and claim nothing for a while. */
void out_of_resources(struct worker *w, const struct lh_task *task, const char *what, int error)
{
    char text[200], words[80];

    w->out_of_resources = true;
    w->resources_at = worker_now(w) + RESOURCES_MS;
    lhi_format(text, sizeof text, "%s: %s", what, strerror_r(error, words, sizeof words));
    worker_report(w, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, task);
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
    w->claim_call.rc = lh_claim(w->store, &opts, &w->claim.jobs);
    if (w->claim_call.rc < 0)
        lhi_format(w->claim_call.error, sizeof w->claim_call.error, "%s", lh_errmsg(w->store));
}

/* Take over claimed jobs. Without memory for them their leases expire, which is safe. */
void claims_take(struct worker *w, lh_jobs *jobs)
{
    struct batch *batch = lhi_malloc(sizeof *batch);
    if (batch == NULL) {
        lh_jobs_free(jobs);
        return;
    }
    *batch = (struct batch){.jobs = jobs, .left = jobs->n};
    /* The store counts a claim as a sign of life, at most half an interval late. */
    if (w->confirmed_at < jobs->asked_mono_ms - w->opts.heartbeat_ms / 2)
        w->confirmed_at = jobs->asked_mono_ms - w->opts.heartbeat_ms / 2;
    w->tally.claimed += (int64_t)jobs->n;
    for (size_t i = 0; i < jobs->n; i++) {
        struct lh_task *task = task_new(w);
        if (task == NULL) { /* cannot happen: more jobs than requested */
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
    int rc = w->claim_call.rc;

    if (rc == LH_EINTR)
        return;
    worker_trouble(w, &w->claim_call, "could not claim");
    if (is_final(rc))
        worker_fail(w, rc, w->claim_call.error);
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
    w->claim_call.act = claim;
    w->claim_call.done = claimed;
    w->tokens = (double)w->opts.rate_n;
    w->tokens_at = worker_now(w);
    /* As many again may have ended and wait for their outcomes to be written. */
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
    if (__atomic_exchange_n(&w->claim.cancel, 1, __ATOMIC_RELAXED) == 0 && w->claim_call.busy)
        lh_wake(w->store);
}

static size_t tasks_held(const struct worker *w)
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
    size_t room = w->n_tasks - tasks_held(w);

    if (w->stage != STAGE_WORK || w->heartbeat_failing || w->out_of_resources || !may_start(w))
        return 0;
    if (w->opts.once)
        return w->tally.claimed > 0 ? 0 : 1;
    /* Claim jobs in advance when half of them are used up, not one by one. */
    if (w->opts.ahead > 1 && w->ahead > w->opts.ahead / 2)
        return 0;
    size_t n = place > w->ahead ? place - w->ahead : 0;
    n = n < room ? n : room;
    if (w->opts.rate_n > 0) { /* not more than there are tokens for, after the claimed jobs */
        size_t may = (size_t)w->tokens > w->ahead ? (size_t)w->tokens - w->ahead : 0;
        n = n < may ? n : may;
    }
    return n < 1000 ? n : 1000;
}

static bool drains(const struct worker *w)
{
    return w->opts.drain || w->opts.drain_pending;
}

/* Stop a worker that drains or runs once if there is nothing left to do. */
static void maybe_finish(struct worker *w)
{
    if (w->stage != STAGE_WORK || w->claim_call.busy || tasks_held(w) > 0)
        return;
    if ((drains(w) && w->empty) || (w->opts.once && w->tally.claimed > 0))
        worker_stop(w, false);
}

/* How many jobs to claim in the transaction that completes others; 0: none. With a backlog this makes one
 * transaction per job instead of two. Not while claimed jobs still wait to be started, and not for many
 * jobs: then the claim is not urgent, and a separate call makes it. This claim does not wait for jobs,
 * because the completes must not wait. If it gets none, a separate call waits. */
size_t claims_with_outcomes(struct worker *w)
{
    /* Without jobs in advance, those that were claimed start in this same step. */
    bool supplied = w->opts.ahead > 0 && w->ahead > 0;
    if (w->claim_call.busy || w->claim_call.failures > 0 || supplied)
        return 0;
    size_t n = wanted(w);
    return n <= CLAIMED_WITH_OUTCOMES ? n : 0;
}

/* Does the call that writes outcomes also claim, now or next time? A worker that claims in advance does not wait
 * for that call, because it would run out of jobs. */
static bool outcome_call_claims(const struct worker *w)
{
    return w->outcome_call.busy &&
           (w->outcome.claim > 0 || (w->opts.ahead == 0 && outcomes_wait(w)));
}

static int64_t claim_due(const struct worker *w)
{
    return outcome_call_claims(w)       ? INT64_MAX
           : w->claim_call.failures > 0 ? w->claim_call.retry_at
                                        : 0;
}

void claims_step(struct worker *w)
{
    int64_t now = worker_now(w);
    size_t n;

    if (w->out_of_resources && now >= w->resources_at)
        w->out_of_resources = false;
    n = wanted(w);
    if (w->claim_call.busy) {
        /* Cancel the wait if no job may be claimed any more, or if a draining worker has no job of its own
         * left and must claim in another way. */
        if (n == 0 || (drains(w) && w->claim.wait_ms != 0 && !w->claim.drain && tasks_held(w) == 0))
            claims_cancel(w);
        if (now >= w->claim.waiting_at) {
            w->claim.waiting_at = INT64_MAX;
            worker_report(w, &(lh_work_event){.what = LH_WORK_WAITING}, NULL);
        }
        return;
    }
    maybe_finish(w);
    if (w->stage != STAGE_WORK || n == 0 || now < claim_due(w))
        return;
    w->claim.n = n;
    bool last = drains(w) && tasks_held(w) == 0; /* no job of ours can still be retried */
    w->claim.wait_ms = w->opts.once || (last && w->opts.drain_pending) ? 0 : -1;
    w->claim.drain = last && w->claim.wait_ms != 0;
    w->claim.waiting_at = w->claim.drain ? now + WAITING_MS : INT64_MAX;
    __atomic_store_n(&w->claim.cancel, 0, __ATOMIC_RELAXED);
    store_call_ask(&w->claim_call);
}

int64_t claims_next(struct worker *w)
{
    if (w->claim_call.busy)
        return w->claim.waiting_at;
    if (w->stage != STAGE_WORK)
        return INT64_MAX;
    if (wanted(w) > 0)
        return claim_due(w);
    if (w->out_of_resources)
        return w->resources_at;
    if (w->opts.rate_n > 0 && w->running + w->ahead < w->opts.jobs + w->opts.ahead &&
        !w->heartbeat_failing)
        return next_token_at(w);
    return INT64_MAX;
}

/* ---- starting ---- */

/* Release the jobs that cannot be started because of our own limit: another worker may start them. */
static void release_rest(struct worker *w)
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
        worker_report(w, &(lh_work_event){.what = LH_WORK_STARTED}, task);
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
            w->tokens += w->opts.rate_n > 0; /* the start did not happen */
            task_ended(task, task->stop == STOP_NONE ? LH_RAN_RELEASED : LH_RAN_LOST);
        } else if (w->opts.handler != NULL || guard_idle(w) != NULL) {
            (void)start_one(w, task);
        } else if (!guard_new(w)) {
            task->stop =
                STOP_SHUTDOWN; /* its guardian is gone, and a new one cannot be started now */
        }
    }
}

void start_tasks(struct worker *w)
{
    struct lh_task *task;

    start_recorded(w);
    while (w->stage == STAGE_WORK && (task = oldest_ahead(w)) != NULL) {
        if (!may_start(
                w)) { /* checked first, so that a job does not wait for a slot under our own limit */
            release_rest(w);
            break;
        }
        if (w->running >= w->opts.jobs + w->burst)
            break;
        if (w->opts.handler == NULL && !guard_spare(w)) {
            if (!guard_new(w))
                release_rest(w);
            break;
        }
        w->ahead--;
        w->running++;
        w->tokens -= w->opts.rate_n > 0;
        task->state = TASK_RECORDED;
        if (w->opts.ahead > 0) { /* record first which jobs of a batch are started */
            task->state = TASK_RECORDING;
            w->started_changed = true;
        } else {
            (void)start_one(w, task);
        }
    }
}
