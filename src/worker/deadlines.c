/*
 * deadlines.c: when a run must end, and stopping it.
 *
 * A lease is valid for the time that was left when the store answered, counted from before the call, and
 * never for longer than the worker's silence limit. A run is stopped some time before that, so that it has
 * ended when another worker gets the job. The guardian of the job keeps the same deadlines, in case this
 * process is stopped or hangs.
 */
#include "worker/worker.h"

enum { MARGIN_MS = 2000, GUARDIAN_LATE_MS = 200, REPORT_AGAIN_MS = 60000 };

int64_t fence_of(int64_t limit_ms)
{
    int64_t margin = limit_ms / 10 > MARGIN_MS ? limit_ms / 10 : MARGIN_MS;
    return limit_ms - margin > limit_ms / 2 ? limit_ms - margin : limit_ms / 2;
}

/* The time from SIGTERM to SIGKILL. With a short lease it is shorter, so that a heartbeat fits in before. */
int64_t notice_of(int64_t kill_after_ms, int64_t fence_ms)
{
    return kill_after_ms < fence_ms / 5 ? kill_after_ms : fence_ms / 5;
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Set the deadlines of a run: the earlier of the end of its lease and the silence limit of the worker, which
 * counts from the last heartbeat of the worker. */
void set_deadlines(struct lh_task *task, int64_t sent_at, int64_t remaining_ms)
{
    const struct worker *w = task->worker;
    int64_t silence = w->opts.heartbeat_ms * w->opts.multiplier;
    int64_t fence = earlier(fence_of(remaining_ms), fence_of(silence));

    task->sent_at = sent_at;
    task->warned = false;
    if (task->stop == STOP_LOST || task->stop == STOP_FENCE)
        return; /* no heartbeat puts this off */
    task->kill_at = earlier(sent_at + fence_of(remaining_ms), w->confirmed_at + fence_of(silence));
    if (task->stop !=
        STOP_NONE) { /* it is being stopped, but the lease is ours: it has time to end */
        task->kill_at = earlier(task->kill_at, task->stop_kill_at);
        if (task->guard != NULL)
            guard_deadline(task->guard, task, true);
        return;
    }
    task->term_at = task->kill_at - notice_of(w->opts.kill_after_ms, fence);
    task->warn_at =
        earlier(sent_at + remaining_ms - remaining_ms / 5, w->confirmed_at + silence - silence / 5);
    task->warn_at = earlier(task->warn_at, task->term_at);
    if (task->guard != NULL && task->state != TASK_AHEAD)
        guard_deadline(task->guard, task, false);
}

bool task_in_run(const struct lh_task *task)
{
    return task->state == TASK_STARTING || task->state == TASK_RUNNING;
}

/* Stop a run. Its outcome is written when it has ended. */
void task_stop(struct lh_task *task, enum stop_reason why, int64_t kill_after_ms)
{
    int64_t now = worker_now(task->worker);

    if (task->stop == STOP_NONE || why == STOP_LOST)
        task->stop = why;
    __atomic_store_n(&task->lost, 1, __ATOMIC_RELAXED);
    if (task->stop_asked_at == 0)
        task->stop_asked_at = now;
    if (task->stop_kill_at == 0 || task->stop_kill_at > now + kill_after_ms)
        task->stop_kill_at = now + kill_after_ms;
    if (task->term_at > now)
        task->term_at = now;
    if (task->kill_at > now + kill_after_ms)
        task->kill_at = now + kill_after_ms;
    if (task->guard != NULL)
        guard_deadline(task->guard, task, true);
}

static void warn(struct lh_task *task)
{
    char text[200];

    task->warned = true;
    lhi_format(text, sizeof text,
               "no heartbeat was confirmed for %lld ms: the lease of job %lld is in its last fifth",
               (long long)(worker_now(task->worker) - task->sent_at), (long long)task->job->id);
    worker_report(task->worker, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, task);
}

/* When the guardian should have killed the run; if it has not, it may be stopped (SIGSTOP) itself. Counts from
 * the stop, because this process may have been stopped meanwhile. */
static int64_t overdue_at(const struct lh_task *task)
{
    if (task->stop == STOP_NONE || task->guard->killed)
        return INT64_MAX;
    int64_t from = task->kill_at > task->stop_asked_at ? task->kill_at : task->stop_asked_at;
    return from + GUARDIAN_LATE_MS;
}

/* When the timeout of a run ends. For a handler it counts from when a thread has taken the job. */
static int64_t timeout_at(const struct lh_task *task)
{
    int64_t begun = task->worker->opts.handler == NULL
                        ? task->started_at
                        : __atomic_load_n(&task->begun_at, __ATOMIC_RELAXED);
    return task->timeout_ms > 0 && begun > 0 ? begun + task->timeout_ms : INT64_MAX;
}

/* A process of another user, or stuck in the kernel, did not end: keep the job until it has. */
static void wait_longer(struct lh_task *task, int64_t now)
{
    char text[160];

    task->stop_asked_at = now + REPORT_AGAIN_MS;
    lhi_format(text, sizeof text, "processes of job %lld were killed but have not ended",
               (long long)task->job->id);
    worker_report(task->worker, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, task);
}

static void keep_deadline(struct lh_task *task, int64_t now)
{
    const struct worker *w = task->worker;

    if (task->state == TASK_AHEAD && now >= task->kill_at)
        task_ended(task, LH_RAN_LOST);
    /* It is too late to start the job. */
    if ((task->state == TASK_RECORDING || task->state == TASK_RECORDED) && now >= task->term_at)
        task->stop = STOP_FENCE;
    if (task_in_run(task) && task->guard != NULL && now >= overdue_at(task)) {
        /* While the lease is extended there is time: kill only a guardian that is stopped. */
        if (task->stop == STOP_FENCE || task->stop == STOP_LOST || guard_is_stopped(task->guard))
            guard_kill(task->guard);
        else
            wait_longer(task, now);
    }
    if (!task_in_run(task) || task->stop != STOP_NONE)
        return;
    if (now >= task->warn_at && !task->warned)
        warn(task);
    if (now >= task->term_at)
        task_stop(task, STOP_FENCE, task->kill_at - now > 0 ? task->kill_at - now : 0);
    else if (now >= timeout_at(task))
        task_stop(task, STOP_TIMEOUT, w->opts.kill_after_ms);
}

void deadlines_step(struct worker *w, int64_t now)
{
    for (size_t i = 0; i < w->n_tasks; i++)
        keep_deadline(&w->tasks[i], now);
}

static int64_t next_deadline(const struct lh_task *task)
{
    if (task->state == TASK_AHEAD)
        return task->kill_at;
    if (!task_in_run(task))
        return INT64_MAX;
    int64_t next = task->guard != NULL ? overdue_at(task) : INT64_MAX;
    if (task->stop != STOP_NONE)
        return next;
    next = earlier(next, task->warned ? INT64_MAX : task->warn_at);
    return earlier(earlier(next, task->term_at), timeout_at(task));
}

int64_t deadlines_next(const struct worker *w)
{
    int64_t next = INT64_MAX;

    for (size_t i = 0; i < w->n_tasks; i++)
        next = earlier(next, next_deadline(&w->tasks[i]));
    return next;
}
