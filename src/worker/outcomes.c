/*
 * outcomes.c: the outcomes of runs, and writing them to the store.
 *
 * An outcome is written until the store has accepted it. A complete is compared by token only, so a late
 * or repeated one does no harm. If the store answers that the job is not ours any more, the run counts
 * as lost.
 */
#include "worker/worker.h"

#include "base/text.h"

#include <string.h>

/* ---- the end of a run ---- */

static void count_failure(struct worker *w, const struct lh_task *task)
{
    const char *error = task->error.at ? task->error.at : "";

    w->failures_in_a_row++;
    lhi_format(w->last_failure, sizeof w->last_failure, "%.*s",
               (int)lhi_text_cut(error, sizeof w->last_failure - 1), error);
    if (w->failures_in_a_row >= FAILURES_IN_A_ROW)
        w->degraded = true;
}

static void not_completed(struct worker *w, const struct lh_task *task)
{
    if (!w->opts.once || w->rc != LH_OK)
        return;
    w->rc = LH_EFAIL;
    lhi_format(w->error, sizeof w->error, "job %lld was not completed", (long long)task->job->id);
}

void task_ended(struct lh_task *task, lh_outcome outcome)
{
    struct worker *w = task->worker;

    if (task->state == TASK_AHEAD)
        w->ahead--;
    else
        w->running--;
    task->state = TASK_ENDED;
    task->outcome = outcome;
    task->guard = NULL;
    w->started_changed = w->opts.ahead > 0 || w->started_changed;
    if (outcome == LH_RAN_OK) {
        w->failures_in_a_row = 0;
        w->degraded = false;
    } else if (outcome == LH_RAN_FAILED || outcome == LH_RAN_PERMANENT) {
        count_failure(w, task);
    } else if (outcome == LH_RAN_CRITICAL) {
        worker_fail(w, LH_EFAIL,
                    task->error.len > 0 ? task->error.at
                                        : "a job reported that this worker cannot work");
    }
    if (outcome != LH_RAN_OK)
        not_completed(w, task);
}

/* ---- writing outcomes, on a thread of store_calls.c ---- */

/* Collect the positions in w->outcome.tasks of tasks with this outcome. Returns their number. */
static size_t pick(const struct worker *w, lh_outcome outcome, size_t *at)
{
    size_t n = 0;

    for (size_t i = 0; i < w->outcome.n; i++)
        if (w->outcome.tasks[i]->outcome == outcome && w->outcome.status[i] == LH_EMPTY)
            at[n++] = i;
    return n;
}

/* Keep the answer for each task, and the first failure of a call. */
static void note(struct worker *w, const size_t *at, const int *status, size_t n, int rc)
{
    for (size_t i = 0; i < n; i++)
        w->outcome.status[at[i]] = status[i];
    if (rc < 0 && w->outcome_call.rc == LH_OK) {
        w->outcome_call.rc = rc;
        lhi_format(w->outcome_call.error, sizeof w->outcome_call.error, "%s", lh_errmsg(w->store));
    }
}

static void clear_status(int *status, size_t n)
{
    for (size_t i = 0; i < n; i++)
        status[i] = LH_EMPTY;
}

/* The claim that was made with the completes is committed. The completes may still wait for a sync. */
static void claimed_with(void *arg, lh_jobs *jobs)
{
    struct worker *w = arg;

    pthread_mutex_lock(&w->mutex);
    w->outcome.jobs = jobs;
    pthread_mutex_unlock(&w->mutex);
    loop_wake(w);
}

void outcomes_claimed(struct worker *w)
{
    pthread_mutex_lock(&w->mutex);
    lh_jobs *jobs = w->outcome.jobs;
    w->outcome.jobs = NULL;
    pthread_mutex_unlock(&w->mutex);
    if (jobs == NULL)
        return;
    w->outcome.claim = 0;
    claims_take(w, jobs);
}

static void write_completed(struct worker *w, size_t *at, int *status, lh_done *done)
{
    size_t n = pick(w, LH_RAN_OK, at);

    for (size_t i = 0; i < n; i++) {
        const struct lh_task *task = w->outcome.tasks[at[i]];
        done[i] = (lh_done){.job = task->job->id,
                            .token = task->job->token,
                            .result = task->result.len ? task->result.at : NULL,
                            .result_len = task->result.len,
                            .result_bytes = task->result_bytes,
                            .output = output_of(task, &w->outcome.outputs[i])};
    }
    clear_status(status, n);
    if (n > 0 && w->outcome.claim > 0) {
        lh_claim_opts next = claim_opts(w, w->outcome.claim);
        next.claimed = claimed_with;
        next.claimed_arg = w;
        note(w, at, status, n, lh_complete_claim(w->store, done, n, status, &next, NULL));
    } else if (n > 0) {
        note(w, at, status, n, lh_complete(w->store, done, n, status, NULL));
    }
}

static void write_failed(struct worker *w, lh_outcome outcome, size_t *at, int *status,
                         lh_failure *failures)
{
    size_t n = pick(w, outcome, at);

    for (size_t i = 0; i < n; i++) {
        const struct lh_task *task = w->outcome.tasks[at[i]];
        failures[i] = (lh_failure){.job = task->job->id,
                                   .token = task->job->token,
                                   .error = task->error.len ? task->error.at : "no reason given",
                                   .permanent = outcome == LH_RAN_PERMANENT,
                                   .output = output_of(task, &w->outcome.outputs[i])};
    }
    clear_status(status, n);
    if (n > 0)
        note(w, at, status, n, lh_fail(w->store, failures, n, status, NULL));
}

/* Write the output of runs that neither completed nor failed. If that fails, only the output is lost. */
static void tell_output(struct worker *w, const size_t *at, size_t n)
{
    size_t used = 0;

    for (size_t i = 0; i < n; i++)
        used += output_of(w->outcome.tasks[at[i]], &w->outcome.outputs[used]) != NULL;
    if (used > 0)
        (void)lh_output_put(w->store, w->outcome.outputs, used, NULL);
}

/* Release jobs. A lost job is released as well: if its lease was revoked while it was live, this answer ends the
 * quarantine. */
static void write_released(struct worker *w, lh_outcome outcome, int64_t delay_ms, size_t *at,
                           int *status, lh_ref *refs)
{
    size_t n = pick(w, outcome, at);

    tell_output(w, at, n);
    for (size_t i = 0; i < n; i++)
        refs[i] = (lh_ref){w->outcome.tasks[at[i]]->job->id, w->outcome.tasks[at[i]]->job->token};
    clear_status(status, n);
    if (n > 0)
        note(w, at, status, n, lh_release(w->store, refs, n, delay_ms, status, NULL));
}

/* Write the last progress and checkpoint of ended runs, for the next attempt. If that fails, only they are lost. */
static void write_last_details(struct worker *w)
{
    for (size_t i = 0; i < w->outcome.n; i++) {
        struct lh_task *task = w->outcome.tasks[i];
        lh_beat beat = {.job = task->job->id, .token = task->job->token};
        if (!task->details || task->outcome == LH_RAN_LOST)
            continue;
        task->details = 0;
        /* Each is sent by itself: if one is not JSON, only that one is refused. */
        const char *checkpoints[] = {task->checkpoint, task->next_checkpoint};
        for (size_t k = 0; k < 2; k++) {
            beat.checkpoint = checkpoints[k];
            if (beat.checkpoint != NULL &&
                lh_heartbeat(w->store, &beat, 1, NULL, NULL) == LH_EINVAL)
                lhi_format(task->refused, sizeof task->refused, "%s", lh_errmsg(w->store));
        }
        beat.checkpoint = NULL;
        beat.has_progress = task->progress >= 0;
        beat.progress = task->progress;
        beat.stage = task->stage;
        if (beat.has_progress || beat.stage != NULL)
            (void)lh_heartbeat(w->store, &beat, 1, NULL, NULL);
    }
}

static void write_outcomes(struct worker *w)
{
    size_t *at = w->outcome.at;
    int *status = w->outcome.answers;

    write_last_details(w);
    write_completed(w, at, status, w->outcome.done);
    write_failed(w, LH_RAN_FAILED, at, status, w->outcome.failures);
    write_failed(w, LH_RAN_PERMANENT, at, status, w->outcome.failures);
    write_released(w, LH_RAN_NOT_NOW, LH_BACKOFF, at, status, w->outcome.refs);
    write_released(w, LH_RAN_CRITICAL, 0, at, status, w->outcome.refs);
    write_released(w, LH_RAN_RELEASED, 0, at, status, w->outcome.refs);
    write_released(w, LH_RAN_LOST, 0, at, status, w->outcome.refs);
}

/* ---- the answers ---- */

bool is_gone(int status)
{
    return status == LH_ELOST || status == LH_ECANCELLED || status == LH_ENOTFOUND ||
           status == LH_ESTATE;
}

static void count(struct worker *w, lh_outcome outcome, bool ours)
{
    if (!ours)
        w->tally.lost++;
    else if (outcome == LH_RAN_OK)
        w->tally.completed++;
    else if (outcome == LH_RAN_FAILED || outcome == LH_RAN_PERMANENT)
        w->tally.failed++;
    else
        w->tally.released++;
}

/* The store refuses the result, but the work is done: complete the job without it. */
static void drop_result(struct worker *w, struct lh_task *task)
{
    char text[200];

    lhi_format(text, sizeof text,
               "the result of job %lld is not kept: %zu bytes exceed the limit of its queue",
               (long long)task->job->id, task->result.len);
    worker_report(w, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, task);
    bytes_clear(&task->result);
    task->state = TASK_ENDED;
}

/* Report the outcome that the store has accepted. */
static void report_ended(struct worker *w, const struct lh_task *task, bool ours)
{
    static const char *const stopped[] = {
        [STOP_NONE] = NULL,
        [STOP_LOST] = "the lease was lost",
        [STOP_FENCE] = "no heartbeat was confirmed in time",
        [STOP_TIMEOUT] = NULL,
        [STOP_SHUTDOWN] = "the worker stops",
    };
    lh_outcome outcome = ours ? task->outcome : LH_RAN_LOST;
    const char *why = outcome == LH_RAN_OK ? NULL
                      : task->cancelled    ? "the job was cancelled"
                      : task->outcome == LH_RAN_OK
                          ? "completed too late: the job had been recovered"
                      : task->error.len > 0         ? task->error.at
                      : stopped[task->stop] != NULL ? stopped[task->stop]
                      : outcome == LH_RAN_RELEASED  ? "not started"
                                                    : NULL;
    worker_report(w, &(lh_work_event){.what = LH_WORK_ENDED, .outcome = outcome, .error = why},
                  task);
}

static void outcomes_written(struct worker *w)
{
    bool answered = w->outcome_call.rc == LH_OK;

    for (size_t i = 0; i < w->outcome.n; i++) {
        struct lh_task *task = w->outcome.tasks[i];
        int status = w->outcome.status[i];
        if (task->refused[0] != '\0')
            report_refused(task, task->refused);
        task->refused[0] = '\0';
        if (status == LH_OK || is_gone(status)) {
            bool ours = status == LH_OK && task->outcome != LH_RAN_LOST;
            task->cancelled = task->cancelled || status == LH_ECANCELLED;
            if (!ours)
                not_completed(w, task);
            count(w, task->outcome, ours);
            report_ended(w, task, ours);
            task_free(task);
            answered = true;
        } else if ((status == LH_ETOOBIG || status == LH_EINVAL) && task->result.len > 0) {
            drop_result(w, task);
            answered = true;
        } else {
            /* An error text that the store refuses must not prevent the outcome. */
            if ((w->outcome_call.rc == LH_EINVAL || w->outcome_call.rc == LH_ETOOBIG) &&
                !lh_text_ok(task->error.at, task->error.len))
                bytes_clear(&task->error);
            task->state = TASK_ENDED;
        }
    }
    if (answered && w->outcome_call.rc != LH_ESTOPPED)
        w->outcome_call.rc = LH_OK;
    w->empty = false; /* a released job may be claimed again */
    outcomes_claimed(w);
    w->outcome.claim = 0;
    worker_trouble(w, &w->outcome_call, "could not record how jobs ended");
}

void outcomes_step(struct worker *w, int64_t now)
{
    if (w->outcome_call.busy || (w->outcome_call.failures > 0 && now < w->outcome_call.retry_at))
        return;
    bool completed = true;
    w->outcome.n = 0;
    /* Do not write an outcome while the task's progress is in flight: it would arrive after the outcome. */
    const struct lh_task *in_flight =
        w->heartbeat_call.busy && w->heartbeat.detail ? w->heartbeat.tasks[0] : NULL;
    for (size_t i = 0; i < w->n_tasks; i++)
        if (w->tasks[i].state == TASK_ENDED && &w->tasks[i] != in_flight) {
            w->tasks[i].state = TASK_REPORTING;
            w->outcome.status[w->outcome.n] = LH_EMPTY;
            w->outcome.tasks[w->outcome.n++] = &w->tasks[i];
            completed = completed && w->tasks[i].outcome == LH_RAN_OK;
        }
    if (w->outcome.n == 0)
        return;
    /* Other outcomes need calls of their own, for which the next jobs should not wait. */
    w->outcome.claim = completed ? claims_with_outcomes(w) : 0;
    store_call_ask(&w->outcome_call);
}

bool outcomes_wait(const struct worker *w)
{
    for (size_t i = 0; i < w->n_tasks && w->outcome_call.failures == 0; i++)
        if (w->tasks[i].state == TASK_ENDED && w->tasks[i].outcome == LH_RAN_OK)
            return true;
    return false;
}

int64_t outcomes_next(const struct worker *w)
{
    for (size_t i = 0; i < w->n_tasks && w->outcome_call.failures > 0 && !w->outcome_call.busy; i++)
        if (w->tasks[i].state == TASK_ENDED)
            return w->outcome_call.retry_at;
    return INT64_MAX;
}

bool outcomes_init(struct worker *w)
{
    size_t n = w->n_tasks;

    w->outcome_call.act = write_outcomes;
    w->outcome_call.done = outcomes_written;
    w->outcome.tasks = lhi_calloc(n, sizeof(struct lh_task *));
    w->outcome.status = lhi_calloc(n, sizeof *w->outcome.status);
    w->outcome.answers = lhi_calloc(n, sizeof *w->outcome.answers);
    w->outcome.at = lhi_calloc(n, sizeof *w->outcome.at);
    w->outcome.done = lhi_calloc(n, sizeof *w->outcome.done);
    w->outcome.failures = lhi_calloc(n, sizeof *w->outcome.failures);
    w->outcome.refs = lhi_calloc(n, sizeof *w->outcome.refs);
    w->outcome.outputs = lhi_calloc(n, sizeof *w->outcome.outputs);
    return w->outcome.tasks && w->outcome.status && w->outcome.answers && w->outcome.at &&
           w->outcome.done && w->outcome.failures && w->outcome.refs && w->outcome.outputs;
}

void outcomes_clear(struct worker *w)
{
    void *all[] = {w->outcome.tasks, w->outcome.status,   w->outcome.answers, w->outcome.at,
                   w->outcome.done,  w->outcome.failures, w->outcome.refs,    w->outcome.outputs};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        lhi_free(all[i]);
}
