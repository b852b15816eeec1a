/*
 * ends.c: how runs ended, told to the store; and what the store knows of this worker.
 *
 * What was done is told until the store has taken it: a complete is judged by its token alone, so a
 * late or repeated one does no harm. What the store refuses because the job is not ours any more is
 * counted, and that is all.
 */
#include "worker/worker.h"

#include "base/text.h"

#include <string.h>

/* ---- the run is over ---- */

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
        worker_fail(w, LH_EFAIL, task->error.len > 0 ? task->error.at : "a job said so");
    }
    if (outcome != LH_RAN_OK)
        not_completed(w, task);
}

/* ---- telling the store ---- */

/* Those whose outcome is `outcome`, as positions in w->end.tasks; how many. */
static size_t pick(const struct worker *w, lh_outcome outcome, size_t *at)
{
    size_t n = 0;

    for (size_t i = 0; i < w->end.n; i++)
        if (w->end.tasks[i]->outcome == outcome && w->end.status[i] == LH_EMPTY)
            at[n++] = i;
    return n;
}

/* An answer for each, or none at all. */
static void note(struct worker *w, const size_t *at, const int *status, size_t n, int rc)
{
    for (size_t i = 0; i < n; i++)
        w->end.status[at[i]] = status[i];
    if (rc < 0 && w->ender.rc == LH_OK) {
        w->ender.rc = rc;
        lhi_format(w->ender.error, sizeof w->ender.error, "%s", lh_errmsg(w->store));
    }
}

static void clear_status(int *status, size_t n)
{
    for (size_t i = 0; i < n; i++)
        status[i] = LH_EMPTY;
}

/* On the ender's thread, while it may still wait for the sync of the completes. */
static void claimed_with(void *arg, lh_jobs *jobs)
{
    struct worker *w = arg;

    pthread_mutex_lock(&w->mutex);
    w->end.jobs = jobs;
    pthread_mutex_unlock(&w->mutex);
    ring(w);
}

void ends_claimed(struct worker *w)
{
    pthread_mutex_lock(&w->mutex);
    lh_jobs *jobs = w->end.jobs;
    w->end.jobs = NULL;
    pthread_mutex_unlock(&w->mutex);
    if (jobs == NULL)
        return;
    w->end.claim = 0;
    claims_take(w, jobs);
}

static void tell_completed(struct worker *w, size_t *at, int *status, lh_done *done)
{
    size_t n = pick(w, LH_RAN_OK, at);

    for (size_t i = 0; i < n; i++) {
        const struct lh_task *task = w->end.tasks[at[i]];
        done[i] = (lh_done){.job = task->job->id,
                            .token = task->job->token,
                            .result = task->result.len ? task->result.at : NULL,
                            .result_len = task->result.len,
                            .result_bytes = task->result_bytes,
                            .output = output_of(task, &w->end.outputs[i])};
    }
    clear_status(status, n);
    if (n > 0 && w->end.claim > 0) {
        lh_claim_opts next = claim_opts(w, w->end.claim);
        next.claimed = claimed_with;
        next.claimed_arg = w;
        note(w, at, status, n, lh_complete_claim(w->store, done, n, status, &next, NULL));
    } else if (n > 0) {
        note(w, at, status, n, lh_complete(w->store, done, n, status, NULL));
    }
}

static void tell_failed(struct worker *w, lh_outcome outcome, size_t *at, int *status,
                        lh_failure *failures)
{
    size_t n = pick(w, outcome, at);

    for (size_t i = 0; i < n; i++) {
        const struct lh_task *task = w->end.tasks[at[i]];
        failures[i] = (lh_failure){.job = task->job->id,
                                   .token = task->job->token,
                                   .error = task->error.len ? task->error.at : "no reason given",
                                   .permanent = outcome == LH_RAN_PERMANENT,
                                   .output = output_of(task, &w->end.outputs[i])};
    }
    clear_status(status, n);
    if (n > 0)
        note(w, at, status, n, lh_fail(w->store, failures, n, status, NULL));
}

/* A run that does not end as done or failed has written something, too. A failure costs only that. */
static void tell_output(struct worker *w, const size_t *at, size_t n)
{
    size_t used = 0;

    for (size_t i = 0; i < n; i++)
        used += output_of(w->end.tasks[at[i]], &w->end.outputs[used]) != NULL;
    if (used > 0)
        (void)lh_output_put(w->store, w->end.outputs, used, NULL);
}

/* One that is lost is released as well: where it was taken from us alive, that is the answer which
 * lets the next one begin. */
static void tell_released(struct worker *w, lh_outcome outcome, int64_t delay_ms, size_t *at,
                          int *status, lh_ref *refs)
{
    size_t n = pick(w, outcome, at);

    tell_output(w, at, n);
    for (size_t i = 0; i < n; i++)
        refs[i] = (lh_ref){w->end.tasks[at[i]]->job->id, w->end.tasks[at[i]]->job->token};
    clear_status(status, n);
    if (n > 0)
        note(w, at, status, n, lh_release(w->store, refs, n, delay_ms, status, NULL));
}

/* What a job said last, and there was no beat for it any more: the next attempt wants to know. A
 * failure costs only that. */
static void tell_last_words(struct worker *w)
{
    for (size_t i = 0; i < w->end.n; i++) {
        struct lh_task *task = w->end.tasks[i];
        lh_beat beat = {.job = task->job->id, .token = task->job->token};
        if (!task->news || task->outcome == LH_RAN_LOST)
            continue;
        task->news = 0;
        /* Each by itself: if one is no JSON, the rest is good all the same. */
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

static void tell_ends(struct worker *w)
{
    size_t *at = w->end.at;
    int *status = w->end.answers;

    tell_last_words(w);
    tell_completed(w, at, status, w->end.done);
    tell_failed(w, LH_RAN_FAILED, at, status, w->end.failures);
    tell_failed(w, LH_RAN_PERMANENT, at, status, w->end.failures);
    tell_released(w, LH_RAN_NOT_NOW, LH_BACKOFF, at, status, w->end.refs);
    tell_released(w, LH_RAN_CRITICAL, 0, at, status, w->end.refs);
    tell_released(w, LH_RAN_RELEASED, 0, at, status, w->end.refs);
    tell_released(w, LH_RAN_LOST, 0, at, status, w->end.refs);
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

/* The store does not take the result, but the work is done. */
static void drop_result(struct worker *w, struct lh_task *task)
{
    char text[200];

    lhi_format(text, sizeof text,
               "the result of job %lld is not kept: %zu bytes are more than its queue allows",
               (long long)task->job->id, task->result.len);
    worker_tell(w, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, task);
    bytes_clear(&task->result);
    task->state = TASK_ENDED;
}

/* Only what the store has agreed to is told as done. */
static void tell_ended(struct worker *w, const struct lh_task *task, bool ours)
{
    static const char *const stopped[] = {
        [STOP_NONE] = NULL,
        [STOP_LOST] = "the lease was lost",
        [STOP_FENCE] = "no heartbeat was confirmed in time",
        [STOP_TIMEOUT] = NULL,
        [STOP_SHUTDOWN] = "the worker stops",
    };
    lh_outcome outcome = ours ? task->outcome : LH_RAN_LOST;
    const char *why = outcome == LH_RAN_OK          ? NULL
                      : task->cancelled             ? "the job was cancelled"
                      : task->outcome == LH_RAN_OK  ? "completed too late, it had been taken back"
                      : task->error.len > 0         ? task->error.at
                      : stopped[task->stop] != NULL ? stopped[task->stop]
                      : outcome == LH_RAN_RELEASED  ? "not started"
                                                    : NULL;
    worker_tell(w, &(lh_work_event){.what = LH_WORK_ENDED, .outcome = outcome, .error = why}, task);
}

static void ends_told(struct worker *w)
{
    bool answered = w->ender.rc == LH_OK;

    for (size_t i = 0; i < w->end.n; i++) {
        struct lh_task *task = w->end.tasks[i];
        int status = w->end.status[i];
        if (task->refused[0] != '\0')
            bad_news(task, task->refused);
        task->refused[0] = '\0';
        if (status == LH_OK || is_gone(status)) {
            bool ours = status == LH_OK && task->outcome != LH_RAN_LOST;
            task->cancelled = task->cancelled || status == LH_ECANCELLED;
            if (!ours)
                not_completed(w, task);
            count(w, task->outcome, ours);
            tell_ended(w, task, ours);
            task_free(task);
            answered = true;
        } else if ((status == LH_ETOOBIG || status == LH_EINVAL) && task->result.len > 0) {
            drop_result(w, task);
            answered = true;
        } else {
            /* Words that the store does not take must not keep the outcome from it. */
            if ((w->ender.rc == LH_EINVAL || w->ender.rc == LH_ETOOBIG) &&
                !lh_text_ok(task->error.at, task->error.len))
                bytes_clear(&task->error);
            task->state = TASK_ENDED;
        }
    }
    if (answered && w->ender.rc != LH_ESTOPPED)
        w->ender.rc = LH_OK;
    w->empty = false; /* what was given back may be claimed again */
    ends_claimed(w);
    w->end.claim = 0;
    worker_trouble(w, &w->ender, "could not tell the store how jobs ended");
}

void ends_step(struct worker *w, int64_t now)
{
    if (w->ender.busy || (w->ender.failures > 0 && now < w->ender.retry_at))
        return;
    bool completed = true;
    w->end.n = 0;
    /* One whose news are on their way waits for that: else they would come after its last words. */
    const struct lh_task *news = w->beater.busy && w->beat.detail ? w->beat.tasks[0] : NULL;
    for (size_t i = 0; i < w->n_tasks; i++)
        if (w->tasks[i].state == TASK_ENDED && &w->tasks[i] != news) {
            w->tasks[i].state = TASK_TELLING;
            w->end.status[w->end.n] = LH_EMPTY;
            w->end.tasks[w->end.n++] = &w->tasks[i];
            completed = completed && w->tasks[i].outcome == LH_RAN_OK;
        }
    if (w->end.n == 0)
        return;
    /* Other ends need calls of their own, for which the next jobs do not wait. */
    w->end.claim = completed ? claims_with_ends(w) : 0;
    hand_ask(&w->ender);
}

bool ends_wait(const struct worker *w)
{
    for (size_t i = 0; i < w->n_tasks && w->ender.failures == 0; i++)
        if (w->tasks[i].state == TASK_ENDED && w->tasks[i].outcome == LH_RAN_OK)
            return true;
    return false;
}

int64_t ends_next(const struct worker *w)
{
    for (size_t i = 0; i < w->n_tasks && w->ender.failures > 0 && !w->ender.busy; i++)
        if (w->tasks[i].state == TASK_ENDED)
            return w->ender.retry_at;
    return INT64_MAX;
}

/* ---- the record of this worker ---- */

/* What was written counts, also when the rest was not. */
static void write_record(struct worker *w)
{
    int rc = LH_OK;

    if (w->record.tell_sessions && (rc = lh_worker_sessions(w->store, w->id, w->record.sessions,
                                                            w->record.n_sessions)) == LH_OK)
        w->record.sessions_told = true;
    if (rc == LH_OK && w->record.tell_started &&
        (rc = lh_worker_started(w->store, w->id, w->record.started, w->record.n_started)) == LH_OK)
        w->record.started_told = true;
    if (rc == LH_OK && w->record.tell_degraded &&
        (rc = lh_worker_degraded(w->store, w->id,
                                 w->record.degraded[0] ? w->record.degraded : NULL)) == LH_OK)
        w->record.degraded_told = true;
    w->recorder.rc = rc;
    if (rc < 0)
        lhi_format(w->recorder.error, sizeof w->recorder.error, "%s", lh_errmsg(w->store));
}

static void clear_to_start(struct worker *w)
{
    for (size_t i = 0; i < w->n_tasks; i++) {
        struct lh_task *task = &w->tasks[i];
        if (task->state != TASK_RECORDING)
            continue;
        for (size_t k = 0; k < w->record.n_started; k++)
            if (w->record.started[k].job == task->job->id &&
                w->record.started[k].token == task->job->token)
                task->state = TASK_RECORDED;
    }
}

static void recorded(struct worker *w)
{
    worker_trouble(w, &w->recorder, "could not keep the record of this worker");
    w->sessions_changed =
        w->sessions_changed || (w->record.tell_sessions && !w->record.sessions_told);
    w->started_changed = w->started_changed || (w->record.tell_started && !w->record.started_told);
    if (w->record.started_told)
        clear_to_start(w);
    if (w->record.degraded_told)
        w->degraded_told = w->record.degraded[0] != '\0';
    for (size_t i = 0; i < w->n_guards && w->record.sessions_told; i++)
        for (size_t k = 0; k < w->record.n_sessions; k++)
            if (w->record.sessions[k] == w->guards[i].pid)
                w->guards[i].recorded = true;
}

void record_lay_out(struct worker *w)
{
    w->record.n_sessions = w->record.n_started = 0;
    w->record.sessions_told = w->record.started_told = w->record.degraded_told = false;
    for (size_t i = 0; i < w->n_guards; i++)
        if (w->guards[i].pid > 0)
            w->record.sessions[w->record.n_sessions++] = w->guards[i].pid;
    for (size_t i = 0; i < w->n_tasks; i++) {
        const struct lh_task *task = &w->tasks[i];
        if (task->orphaned && w->record.n_sessions < w->opts.jobs * 2)
            w->record.sessions[w->record.n_sessions++] = task->session;
        if (task->state >= TASK_RECORDING && task->state <= TASK_RUNNING)
            w->record.started[w->record.n_started++] = (lh_ref){task->job->id, task->job->token};
    }
    w->record.degraded[0] = '\0';
    if (w->degraded)
        lhi_format(w->record.degraded, sizeof w->record.degraded,
                   "%d failures in a row, the last: %s", FAILURES_IN_A_ROW, w->last_failure);
}

/* What has ended need not be told by itself: only what is to be started waits for it. */
static bool start_waits(const struct worker *w)
{
    for (size_t i = 0; i < w->n_tasks; i++)
        if (w->tasks[i].state == TASK_RECORDING)
            return true;
    return false;
}

static bool tells_started(const struct worker *w)
{
    return w->opts.ahead > 0 && w->started_changed && start_waits(w);
}

int64_t record_next(const struct worker *w)
{
    bool any = w->sessions_changed || tells_started(w) || w->degraded != w->degraded_told;

    if (w->recorder.busy || !any)
        return INT64_MAX;
    return w->recorder.failures > 0 ? w->recorder.retry_at : 0;
}

void record_step(struct worker *w, int64_t now)
{
    if (now < record_next(w))
        return;
    w->record.tell_sessions = w->sessions_changed;
    w->record.tell_started = tells_started(w);
    w->record.tell_degraded = w->degraded != w->degraded_told;
    record_lay_out(w);
    w->sessions_changed = false;
    w->started_changed = w->started_changed && !w->record.tell_started;
    hand_ask(&w->recorder);
}

bool ends_init(struct worker *w)
{
    size_t n = w->n_tasks;

    w->ender.act = tell_ends;
    w->ender.done = ends_told;
    w->recorder.act = write_record;
    w->recorder.done = recorded;
    w->end.tasks = lhi_calloc(n, sizeof(struct lh_task *));
    w->end.status = lhi_calloc(n, sizeof *w->end.status);
    w->end.answers = lhi_calloc(n, sizeof *w->end.answers);
    w->end.at = lhi_calloc(n, sizeof *w->end.at);
    w->end.done = lhi_calloc(n, sizeof *w->end.done);
    w->end.failures = lhi_calloc(n, sizeof *w->end.failures);
    w->end.refs = lhi_calloc(n, sizeof *w->end.refs);
    w->end.outputs = lhi_calloc(n, sizeof *w->end.outputs);
    w->record.started = lhi_calloc(n, sizeof *w->record.started);
    w->record.sessions = lhi_calloc(w->opts.jobs * 2, sizeof *w->record.sessions);
    return w->end.tasks && w->end.status && w->end.answers && w->end.at && w->end.done &&
           w->end.failures && w->end.refs && w->end.outputs && w->record.started &&
           w->record.sessions;
}

void ends_clear(struct worker *w)
{
    void *all[] = {w->end.tasks,      w->end.status,     w->end.answers, w->end.at,
                   w->end.done,       w->end.failures,   w->end.refs,    w->end.outputs,
                   w->record.started, w->record.sessions};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        lhi_free(all[i]);
}
