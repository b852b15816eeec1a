/*
 * heartbeats.c: extending the leases of all jobs, and sending what jobs report.
 *
 * One heartbeat covers the worker and all its jobs. What a single job reports (progress, stage, checkpoint)
 * is sent by itself, so that a bad value does not cost the other jobs their heartbeat.
 */
#include "worker/worker.h"

#include "base/sys.h"

#include <string.h>

enum { ANSWER_MOST_MS = 10000 };

/* ---- when to send ---- */

/* A job that is lost, or whose outcome is being written, needs no heartbeat. */
static bool wants_heartbeat(const struct lh_task *task)
{
    return task->state != TASK_FREE && task->state != TASK_REPORTING && task->stop != STOP_LOST &&
           !(task->state == TASK_ENDED && task->outcome == LH_RAN_LOST);
}

static int64_t heartbeat_interval(const struct worker *w)
{
    int64_t every = w->opts.heartbeat_ms;
    int64_t silence_fence = fence_of(every * w->opts.multiplier) * 2 / 5;

    if (silence_fence < every)
        every = silence_fence;
    for (size_t i = 0; i < w->n_tasks; i++) {
        const struct lh_task *task = &w->tasks[i];
        if (!wants_heartbeat(task))
            continue;
        int64_t third = task->job->lease_ms / 3, two = fence_of(task->job->lease_ms) * 2 / 5;
        every = third > 0 && third < every ? third : every;
        every = two > 0 && two < every ? two : every;
    }
    return every > 0 ? every : 1;
}

/* Workers that were started together should not send their heartbeats together. */
static int64_t jittered(int64_t ms)
{
    uint32_t dice = 0;
    (void)lhi_random(&dice, sizeof dice);
    return ms - ms / 10 + (int64_t)((double)ms / 5 * (dice / 4294967296.0));
}

/* When a heartbeat without an answer counts as failed. */
static int64_t answer_due(const struct worker *w)
{
    int64_t third = w->opts.heartbeat_ms / 3;
    return w->heartbeat_asked_at + (third < ANSWER_MOST_MS ? third : ANSWER_MOST_MS);
}

/* Report the failure. The call continues, and a late answer still counts from the time it was sent. Until then
 * nothing is claimed, as after any failed heartbeat. */
static void heartbeat_overdue(struct worker *w, int64_t now)
{
    char text[96];

    if (w->heartbeat_call.failures == 0) {
        lhi_format(text, sizeof text, "a heartbeat failed: no answer after %lld ms",
                   (long long)(now - w->heartbeat_asked_at));
        worker_report(w, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, NULL);
    }
    w->heartbeat_call.failures++;
    w->heartbeat_overdue = w->heartbeat_failing = true;
}

/* ---- sending ---- */

static void send_heartbeat(struct worker *w)
{
    w->heartbeat.sent_at = worker_now(w);
    if (w->heartbeat.detail)
        w->heartbeat_call.rc =
            lh_heartbeat(w->store, w->heartbeat.beats, 1, w->heartbeat.status, NULL);
    else
        w->heartbeat_call.rc =
            lh_worker_heartbeat(w->store, w->id, w->opts.heartbeat_ms, w->heartbeat.beats,
                                w->heartbeat.n, w->heartbeat.status);
    if (w->heartbeat_call.rc < 0)
        lhi_format(w->heartbeat_call.error, sizeof w->heartbeat_call.error, "%s",
                   lh_errmsg(w->store));
}

static void take_answer(struct lh_task *task, int status)
{
    if (status == LH_OK) {
        set_deadlines(task, task->worker->heartbeat.sent_at, task->job->lease_ms);
        return;
    }
    /* The job was recovered, cancelled or given to another worker: this run no longer counts. */
    task->cancelled = status == LH_ECANCELLED;
    if (task->state == TASK_AHEAD)
        task_ended(task, LH_RAN_LOST);
    else if (task->state != TASK_ENDED)
        task_stop(task, STOP_LOST, task->worker->opts.kill_after_ms);
}

static bool is_about_lease(int status)
{
    return status == LH_OK || is_gone(status);
}

void report_refused(struct lh_task *task, const char *why)
{
    char text[560];

    lhi_format(text, sizeof text, "a report of job %lld was refused: %s", (long long)task->job->id,
               why);
    worker_report(task->worker, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, task);
}

/* The store could not be reached: send the same again, before a newer report. */
static void keep_details(struct worker *w, struct lh_task *task)
{
    pthread_mutex_lock(&w->mutex);
    if (w->heartbeat.beats[0].checkpoint != NULL && task->next_checkpoint == NULL) {
        task->next_checkpoint = task->checkpoint;
        task->checkpoint = (char *)(uintptr_t)w->heartbeat.beats[0].checkpoint;
        w->heartbeat.beats[0].checkpoint = NULL;
    }
    __atomic_store_n(&task->details, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&w->mutex);
}

static bool still_held(const struct worker *w, size_t i)
{
    const struct lh_task *task = w->heartbeat.tasks[i];
    return task->state != TASK_FREE && task->state != TASK_REPORTING &&
           task->job->id == w->heartbeat.beats[i].job &&
           task->job->token == w->heartbeat.beats[i].token;
}

/* The answer about one job's report: a bad value is reported to the caller, any other failure is retried. */
static void detail_done(struct worker *w)
{
    int rc = w->heartbeat_call.rc;

    if (rc == LH_EINVAL || rc == LH_ETOOBIG || w->heartbeat.status[0] == LH_EINVAL ||
        w->heartbeat.status[0] == LH_ETOOBIG) {
        if (still_held(w, 0))
            report_refused(w->heartbeat.tasks[0], w->heartbeat_call.error);
        w->heartbeat_call.rc = LH_OK;
    } else if (rc < 0 && !is_about_lease(w->heartbeat.status[0]) && still_held(w, 0)) {
        keep_details(w, w->heartbeat.tasks[0]);
    }
}

/* Free the copies of stages and checkpoints that were made for this call. */
static void free_details(struct worker *w)
{
    for (size_t i = 0; i < w->heartbeat.n; i++) {
        lhi_free((void *)(uintptr_t)w->heartbeat.beats[i].stage);
        lhi_free((void *)(uintptr_t)w->heartbeat.beats[i].checkpoint);
        w->heartbeat.beats[i].stage = w->heartbeat.beats[i].checkpoint = NULL;
    }
}

/* Use the answers. A task may belong to another job by now, so ids and tokens are compared. */
static void heartbeat_done(struct worker *w)
{
    bool answered = w->heartbeat_call.rc == LH_OK;

    for (size_t i = 0; i < w->heartbeat.n; i++)
        answered = answered || is_about_lease(w->heartbeat.status[i]);
    if (answered && !w->heartbeat.detail)
        w->confirmed_at = w->heartbeat.sent_at;
    for (size_t i = 0; i < w->heartbeat.n && answered; i++)
        if (still_held(w, i) && is_about_lease(w->heartbeat.status[i]))
            take_answer(w->heartbeat.tasks[i], w->heartbeat.status[i]);
    if (answered)
        w->heartbeat_call.rc = LH_OK; /* outcomes of single jobs are no failure of the store */
    else if (w->heartbeat.detail)
        detail_done(w);
    worker_trouble(w, &w->heartbeat_call, "a heartbeat failed");
    free_details(w);
    w->heartbeat_failing = w->heartbeat_call.failures > 0;
    if (w->heartbeat_failing)
        w->heartbeat_at = w->heartbeat_call.retry_at;
    else if (!w->heartbeat.detail)
        w->heartbeat_at = w->heartbeat.sent_at + jittered(heartbeat_interval(w));
}

static void ask_heartbeat(struct worker *w)
{
    w->heartbeat_asked_at = worker_now(w);
    w->heartbeat_overdue = false;
    store_call_ask(&w->heartbeat_call);
}

static void add_heartbeat(struct worker *w, struct lh_task *task)
{
    w->heartbeat.tasks[w->heartbeat.n] = task;
    w->heartbeat.status[w->heartbeat.n] = LH_EFAIL;
    w->heartbeat.beats[w->heartbeat.n++] =
        (lh_beat){.job = task->job->id, .token = task->job->token};
}

static bool has_details(const struct lh_task *task)
{
    return task_in_run(task) && task->stop == STOP_NONE &&
           __atomic_load_n(&task->details, __ATOMIC_RELAXED);
}

static struct lh_task *with_details(struct worker *w, int64_t now)
{
    for (size_t i = 0; i < w->n_tasks; i++)
        if (has_details(&w->tasks[i]) && now >= w->tasks[i].detail_sent_at + DETAIL_MS)
            return &w->tasks[i];
    return NULL;
}

static void ask_detail(struct worker *w, struct lh_task *task, int64_t now)
{
    w->heartbeat.n = 0;
    w->heartbeat.detail = true;
    add_heartbeat(w, task);
    pthread_mutex_lock(&w->mutex);
    /* Send a checkpoint by itself: if it is not JSON, only the checkpoint is refused. */
    bool more = false;
    if (task->checkpoint != NULL) {
        w->heartbeat.beats[0].checkpoint = task->checkpoint;
        task->checkpoint = task->next_checkpoint;
        task->next_checkpoint = NULL;
        more = task->checkpoint != NULL || task->progress >= 0 || task->stage != NULL;
    } else {
        w->heartbeat.beats[0].has_progress = task->progress >= 0;
        w->heartbeat.beats[0].progress = task->progress;
        w->heartbeat.beats[0].stage = lhi_strdup(task->stage);
    }
    __atomic_store_n(&task->details, more, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&w->mutex);
    task->detail_sent_at = more ? now - DETAIL_MS : now;
    worker_report(w, &(lh_work_event){.what = LH_WORK_PROGRESS}, task);
    ask_heartbeat(w);
}

static void ask_all(struct worker *w)
{
    w->heartbeat.n = 0;
    w->heartbeat_now = false;
    w->heartbeat.detail = false;
    for (size_t i = 0; i < w->n_tasks; i++)
        if (wants_heartbeat(&w->tasks[i])) {
            add_heartbeat(w, &w->tasks[i]);
            if (w->tasks[i].guard != NULL)
                guard_continue(w->tasks[i].guard);
        }
    ask_heartbeat(w);
}

bool heartbeats_init(struct worker *w)
{
    w->heartbeat_call.act = send_heartbeat;
    w->heartbeat_call.done = heartbeat_done;
    w->heartbeat_at = worker_now(w) + jittered(heartbeat_interval(w));
    w->heartbeat.beats = lhi_calloc(w->n_tasks, sizeof *w->heartbeat.beats);
    w->heartbeat.status = lhi_calloc(w->n_tasks, sizeof *w->heartbeat.status);
    w->heartbeat.tasks = lhi_calloc(w->n_tasks, sizeof(struct lh_task *));
    return w->heartbeat.beats && w->heartbeat.status && w->heartbeat.tasks;
}

void heartbeats_clear(struct worker *w)
{
    if (w->heartbeat.beats != NULL)
        free_details(w);
    lhi_free(w->heartbeat.beats);
    lhi_free(w->heartbeat.status);
    lhi_free((void *)w->heartbeat.tasks);
}

/* A job with a short lease may have been claimed since the time of the next heartbeat was set. */
static void not_later(struct worker *w)
{
    int64_t every = heartbeat_interval(w);

    for (size_t i = 0; i < w->n_tasks && w->heartbeat_call.failures == 0; i++)
        if (wants_heartbeat(&w->tasks[i]) && w->tasks[i].sent_at + every < w->heartbeat_at)
            w->heartbeat_at = w->tasks[i].sent_at + every;
    /* Do not send the next heartbeat immediately after the last one. */
    if (w->heartbeat_at < w->heartbeat.sent_at + every / 2 && !w->heartbeat_now &&
        w->heartbeat_call.failures == 0)
        w->heartbeat_at = w->heartbeat.sent_at + every / 2;
}

void heartbeats_step(struct worker *w, int64_t now)
{
    struct lh_task *task;

    not_later(w);
    if (w->heartbeat_call.busy && !w->heartbeat_overdue && now >= answer_due(w))
        heartbeat_overdue(w, now);
    if (w->heartbeat_call.busy || w->reopen)
        return;
    if (now >= w->heartbeat_at)
        ask_all(w);
    else if (!w->heartbeat_failing && (task = with_details(w, now)) != NULL)
        ask_detail(w, task, now);
}

int64_t heartbeats_next(const struct worker *w)
{
    bool may_send = !w->heartbeat_call.busy && !w->reopen;
    int64_t next = may_send                                          ? w->heartbeat_at
                   : w->heartbeat_call.busy && !w->heartbeat_overdue ? answer_due(w)
                                                                     : INT64_MAX;

    for (size_t i = 0; i < w->n_tasks && may_send && !w->heartbeat_failing; i++) {
        const struct lh_task *task = &w->tasks[i];
        if (has_details(task) && task->detail_sent_at + DETAIL_MS < next)
            next = task->detail_sent_at + DETAIL_MS;
    }
    return next;
}
