/*
 * handler.c: running a job as a call of a function, on a thread; and the functions that a handler calls
 * (lh_task_…).
 */
#include "worker/worker.h"

#include "base/clock.h"
#include "base/sys.h"

#include <string.h>

/* ---- threads ---- */

static void *handler_main(void *arg)
{
    struct worker *w = arg;

    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (w->n_ready == 0 && !w->handlers_quit)
            pthread_cond_wait(&w->work, &w->mutex);
        if (w->n_ready == 0)
            break;
        struct lh_task *task = w->ready[w->ready_at];
        w->ready_at = (w->ready_at + 1) % w->n_tasks;
        w->n_ready--;
        w->taken_at = worker_now(w);
        pthread_mutex_unlock(&w->mutex);
        /* A task that was lost while it waited is not started. */
        task->begun = !lh_task_lost(task);
        if (task->begun) {
            int64_t began = lhi_mono_us();
            __atomic_store_n(&task->begun_at, worker_now(w), __ATOMIC_RELAXED);
            task->returned = w->opts.handler(w->opts.handler_arg, task, task->job);
            task->run_us = lhi_mono_us() - began;
        }
        pthread_mutex_lock(&w->mutex);
        w->over[w->n_over++] = task;
        if (w->n_over == 1)
            loop_wake(w);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

bool handlers_start(struct worker *w)
{
    w->ready = lhi_calloc(w->n_tasks, sizeof(struct lh_task *));
    w->over = lhi_calloc(w->n_tasks, sizeof(struct lh_task *));
    w->handlers = lhi_calloc(w->opts.jobs, sizeof *w->handlers);
    if (w->ready == NULL || w->over == NULL || w->handlers == NULL)
        return false;
    while (w->n_handlers < w->opts.jobs &&
           lhi_thread_start(&w->handlers[w->n_handlers], handler_main, w))
        w->n_handlers++;
    return w->n_handlers == w->opts.jobs;
}

/* Wait for handlers that have not returned: a thread cannot be stopped from outside. */
void handlers_stop(struct worker *w)
{
    pthread_mutex_lock(&w->mutex);
    w->handlers_quit = true;
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->mutex);
    while (w->n_handlers > 0)
        pthread_join(w->handlers[--w->n_handlers], NULL);
    lhi_free(w->handlers);
    lhi_free(w->ready);
    lhi_free(w->over);
}

void handlers_run(struct lh_task *task)
{
    struct worker *w = task->worker;

    pthread_mutex_lock(&w->mutex);
    if (w->n_ready == 0)
        w->taken_at = worker_now(w);
    w->ready[(w->ready_at + w->n_ready++) % w->n_tasks] = task;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->mutex);
}

/* If runs are short, several tasks are handed to the threads together and recorded as started in one write.
 * Otherwise each task would wait for a write of its own. */
static void learn_pace(struct worker *w, int64_t run_us)
{
    w->run_us = w->run_us < 0 ? run_us : w->run_us + (run_us - w->run_us) / 8;
    size_t due = (size_t)(BURST_US / (w->run_us > 0 ? w->run_us : 1)) * w->opts.jobs;
    w->burst = due < BURST_MOST ? due : BURST_MOST;
    if (w->burst > w->opts.ahead)
        w->burst = w->opts.ahead;
}

/* Release the tasks that no thread has taken yet. */
void handlers_recall(struct worker *w)
{
    struct lh_task *task = NULL;

    do {
        pthread_mutex_lock(&w->mutex);
        task = w->n_ready > 0 ? w->ready[w->ready_at] : NULL;
        if (task != NULL) {
            w->ready_at = (w->ready_at + 1) % w->n_tasks;
            w->n_ready--;
        }
        pthread_mutex_unlock(&w->mutex);
        if (task != NULL)
            task_ended(task, LH_RAN_RELEASED);
    } while (task != NULL);
}

/* Release waiting tasks if all threads are busy for longer than expected: other workers may run them. */
void handlers_step(struct worker *w, int64_t now)
{
    if (w->handlers == NULL || now < handlers_next(w))
        return;
    w->burst = 0;
    w->run_us = BURST_US;
    handlers_recall(w);
}

int64_t handlers_next(struct worker *w)
{
    if (w->handlers == NULL || w->burst == 0)
        return INT64_MAX;
    pthread_mutex_lock(&w->mutex);
    int64_t next = w->n_ready > 0 ? w->taken_at + RECALL_MS : INT64_MAX;
    pthread_mutex_unlock(&w->mutex);
    return next;
}

static void handler_ended(struct lh_task *task)
{
    lh_outcome outcome = task->returned;

    if (!task->begun) {
        bool lost = task->stop == STOP_LOST || task->stop == STOP_FENCE;
        task_ended(task, lost ? LH_RAN_LOST : LH_RAN_RELEASED);
        return;
    }
    learn_pace(task->worker, task->run_us);
    if (outcome > LH_RAN_CRITICAL || (int)outcome < 0) {
        static const char bad[] = "the handler returned an outcome that is not allowed";
        bytes_clear(&task->error);
        (void)bytes_add(&task->error, bad, sizeof bad - 1, ERROR_MOST);
        outcome = LH_RAN_FAILED;
    }
    /* The handler was asked to stop, and did not complete the job. */
    if (task->stop == STOP_LOST || task->stop == STOP_FENCE)
        outcome = LH_RAN_LOST;
    else if (task->stop == STOP_SHUTDOWN && outcome != LH_RAN_OK)
        outcome = LH_RAN_RELEASED;
    else if (task->stop == STOP_TIMEOUT && outcome != LH_RAN_OK)
        outcome = stop_outcome(task);
    task_ended(task, outcome);
}

void handlers_over(struct worker *w)
{
    struct lh_task *some[64];
    size_t n;

    if (w->handlers == NULL)
        return;
    do {
        pthread_mutex_lock(&w->mutex);
        n = w->n_over < 64 ? w->n_over : 64;
        w->n_over -= n;
        for (size_t i = 0; i < n; i++)
            some[i] = w->over[w->n_over + i];
        pthread_mutex_unlock(&w->mutex);
        for (size_t i = 0; i < n; i++)
            handler_ended(some[i]);
    } while (n > 0);
}

/* ---- functions that a handler calls ---- */

bool lh_task_lost(const lh_task *task)
{
    return task == NULL || __atomic_load_n(&task->lost, __ATOMIC_RELAXED) != 0;
}

static void details_changed(lh_task *task)
{
    if (__atomic_exchange_n(&task->details, 1, __ATOMIC_RELAXED) == 0)
        loop_wake(task->worker);
}

int lh_task_progress(lh_task *task, int percent)
{
    if (task == NULL)
        return LH_EMISUSE;
    if (percent < 0 || percent > 100)
        return LH_EINVAL;
    pthread_mutex_lock(&task->worker->mutex);
    task->progress = percent;
    pthread_mutex_unlock(&task->worker->mutex);
    details_changed(task);
    return LH_OK;
}

int lh_task_stage(lh_task *task, const char *stage)
{
    if (task == NULL || stage == NULL)
        return LH_EMISUSE;
    if (strlen(stage) > STAGE_MOST || !lh_text_ok(stage, strlen(stage)))
        return LH_EINVAL;
    char *copy = lhi_strdup(stage);
    if (copy == NULL)
        return LH_ENOMEM;
    pthread_mutex_lock(&task->worker->mutex);
    char *before = task->stage;
    task->stage = copy;
    pthread_mutex_unlock(&task->worker->mutex);
    lhi_free(before);
    details_changed(task);
    return LH_OK;
}

int lh_task_checkpoint(lh_task *task, const char *json)
{
    if (task == NULL || json == NULL)
        return LH_EMISUSE;
    struct worker *w = task->worker;
    lh_beat beat = {.job = task->job->id, .token = task->job->token, .checkpoint = json};
    /* The loop must not replace the handle during this call. */
    pthread_mutex_lock(&w->mutex);
    lh_store *store = w->store;
    bool usable = store != NULL && !w->reopen;
    w->calls += usable;
    pthread_mutex_unlock(&w->mutex);
    if (!usable)
        return LH_ESTOPPED;
    int rc = lh_heartbeat(store, &beat, 1, NULL, NULL);
    pthread_mutex_lock(&w->mutex);
    w->calls--;
    pthread_mutex_unlock(&w->mutex);
    return rc;
}

int lh_task_result(lh_task *task, const void *bytes, size_t len)
{
    struct bytes made = {0};

    if (task == NULL || (bytes == NULL && len > 0))
        return LH_EMISUSE;
    if (len > LARGEST_RESULT)
        return LH_ETOOBIG;
    if (len > 0 && !bytes_add(&made, bytes, len, LARGEST_RESULT))
        return LH_ENOMEM;
    bytes_clear(&task->result);
    task->result = made;
    task->result_bytes = (int64_t)len;
    return LH_OK;
}

int lh_task_error(lh_task *task, const char *text)
{
    if (task == NULL || text == NULL)
        return LH_EMISUSE;
    if (!lh_text_ok(text, strlen(text)))
        return LH_EINVAL;
    size_t len = strlen(text), skip = len > ERROR_MOST ? len - ERROR_MOST : 0;
    while (((unsigned char)text[skip] & 0xC0U) == 0x80)
        skip++; /* do not start inside a character */
    task->error.len = 0;
    return bytes_add(&task->error, text + skip, len - skip, ERROR_MOST) ? LH_OK : LH_ENOMEM;
}
