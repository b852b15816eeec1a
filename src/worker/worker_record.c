/*
 * worker_record.c: the worker's record in the store: its sessions, the jobs it has started, and whether
 * it is degraded.
 *
 * Recovery reads the record if this worker dies. The record is written before a guardian may run a
 * command, and, with jobs claimed in advance, before a job is started.
 */
#include "worker/worker.h"

/* Write the parts that have changed. A part that was written counts, even if a later one fails. */
static void write_record(struct worker *w)
{
    int rc = LH_OK;

    if (w->record.write_sessions && (rc = lh_worker_sessions(w->store, w->id, w->record.sessions,
                                                             w->record.n_sessions)) == LH_OK)
        w->record.sessions_written = true;
    if (rc == LH_OK && w->record.write_started &&
        (rc = lh_worker_started(w->store, w->id, w->record.started, w->record.n_started)) == LH_OK)
        w->record.started_written = true;
    if (rc == LH_OK && w->record.write_degraded &&
        (rc = lh_worker_degraded(w->store, w->id,
                                 w->record.degraded[0] ? w->record.degraded : NULL)) == LH_OK)
        w->record.degraded_written = true;
    w->record_call.rc = rc;
    if (rc < 0)
        lhi_format(w->record_call.error, sizeof w->record_call.error, "%s", lh_errmsg(w->store));
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
    worker_trouble(w, &w->record_call, "could not update the record of this worker");
    w->sessions_changed =
        w->sessions_changed || (w->record.write_sessions && !w->record.sessions_written);
    w->started_changed =
        w->started_changed || (w->record.write_started && !w->record.started_written);
    if (w->record.started_written)
        clear_to_start(w);
    if (w->record.degraded_written)
        w->degraded_written = w->record.degraded[0] != '\0';
    for (size_t i = 0; i < w->n_guards && w->record.sessions_written; i++)
        for (size_t k = 0; k < w->record.n_sessions; k++)
            if (w->record.sessions[k] == w->guards[i].pid)
                w->guards[i].recorded = true;
}

void record_lay_out(struct worker *w)
{
    w->record.n_sessions = w->record.n_started = 0;
    w->record.sessions_written = w->record.started_written = w->record.degraded_written = false;
    for (size_t i = 0; i < w->n_guards; i++)
        if (w->guards[i].pid > 0)
            w->record.sessions[w->record.n_sessions++] = w->guards[i].pid;
    for (size_t i = 0; i < w->n_tasks; i++) {
        const struct lh_task *task = &w->tasks[i];
        if (task->unguarded && w->record.n_sessions < w->opts.jobs * 2)
            w->record.sessions[w->record.n_sessions++] = task->session;
        if (task->state >= TASK_RECORDING && task->state <= TASK_RUNNING)
            w->record.started[w->record.n_started++] = (lh_ref){task->job->id, task->job->token};
    }
    w->record.degraded[0] = '\0';
    if (w->degraded)
        lhi_format(w->record.degraded, sizeof w->record.degraded,
                   "%d failures in a row, the last: %s", FAILURES_IN_A_ROW, w->last_failure);
}

/* Does a job wait to be recorded before it starts? The end of a job alone needs no write. */
static bool start_waits(const struct worker *w)
{
    for (size_t i = 0; i < w->n_tasks; i++)
        if (w->tasks[i].state == TASK_RECORDING)
            return true;
    return false;
}

static bool records_started(const struct worker *w)
{
    return w->opts.ahead > 0 && w->started_changed && start_waits(w);
}

int64_t record_next(const struct worker *w)
{
    bool any = w->sessions_changed || records_started(w) || w->degraded != w->degraded_written;

    if (w->record_call.busy || !any)
        return INT64_MAX;
    return w->record_call.failures > 0 ? w->record_call.retry_at : 0;
}

void record_step(struct worker *w, int64_t now)
{
    if (now < record_next(w))
        return;
    w->record.write_sessions = w->sessions_changed;
    w->record.write_started = records_started(w);
    w->record.write_degraded = w->degraded != w->degraded_written;
    record_lay_out(w);
    w->sessions_changed = false;
    w->started_changed = w->started_changed && !w->record.write_started;
    store_call_ask(&w->record_call);
}

bool record_init(struct worker *w)
{
    w->record_call.act = write_record;
    w->record_call.done = recorded;
    w->record.started = lhi_calloc(w->n_tasks, sizeof *w->record.started);
    w->record.sessions = lhi_calloc(w->opts.jobs * 2, sizeof *w->record.sessions);
    return w->record.started && w->record.sessions;
}

void record_clear(struct worker *w)
{
    lhi_free(w->record.started);
    lhi_free(w->record.sessions);
}
