/*
 * beats.c: heartbeats, and the deadlines that only they put off.
 *
 * A lease is good for what was left of it when the store answered, counted from before it was asked;
 * and never for longer than the worker may be silent. A run is stopped a while before that, so that it
 * has ended when the job is given to another. Who has the job's guardian obeys the same times, in case
 * that this very loop is stopped or stuck.
 */
#include "worker/worker.h"

#include "base/sys.h"

#include <string.h>

enum { MARGIN_MS = 2000, GUARDIAN_LATE_MS = 200, SAY_AGAIN_MS = 60000, BEAT_MOST_MS = 10000 };

/* ---- deadlines ---- */

int64_t fence_of(int64_t limit_ms)
{
    int64_t margin = limit_ms / 10 > MARGIN_MS ? limit_ms / 10 : MARGIN_MS;
    return limit_ms - margin > limit_ms / 2 ? limit_ms - margin : limit_ms / 2;
}

/* From the first word to the last: in a short lease the answer to a beat must still fit in before. */
int64_t notice_of(int64_t kill_after_ms, int64_t fence_ms)
{
    return kill_after_ms < fence_ms / 5 ? kill_after_ms : fence_ms / 5;
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Two things end it, whichever comes first: its lease, and the silence of the worker. The store counts
 * that from the last beat of the worker itself, so do we. */
void set_deadlines(struct lh_task *task, int64_t sent_at, int64_t remaining_ms)
{
    const struct worker *w = task->worker;
    int64_t silence = w->opts.heartbeat_ms * w->opts.multiplier;
    int64_t fence = earlier(fence_of(remaining_ms), fence_of(silence));

    task->sent_at = sent_at;
    task->warned = false;
    if (task->stop == STOP_LOST || task->stop == STOP_FENCE)
        return; /* nothing puts that off */
    task->kill_at = earlier(sent_at + fence_of(remaining_ms), w->heard_at + fence_of(silence));
    if (task->stop != STOP_NONE) { /* its time is up, but the lease is ours: it may end in order */
        task->kill_at = earlier(task->kill_at, task->stop_kill_at);
        if (task->guard != NULL)
            guard_deadline(task->guard, task, true);
        return;
    }
    task->term_at = task->kill_at - notice_of(w->opts.kill_after_ms, fence);
    task->warn_at =
        earlier(sent_at + remaining_ms - remaining_ms / 5, w->heard_at + silence - silence / 5);
    task->warn_at = earlier(task->warn_at, task->term_at);
    if (task->guard != NULL && task->state != TASK_AHEAD)
        guard_deadline(task->guard, task, false);
}

static bool in_run(const struct lh_task *task)
{
    return task->state == TASK_STARTING || task->state == TASK_RUNNING;
}

/* Our own stop of a run; what it comes to is told when it has ended. */
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
    worker_tell(task->worker, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, task);
}

/* Its guardian should have killed it by then; perhaps it is stopped itself. It is ended with all
 * below. Counted from when we asked for it: we may have been stopped ourselves. */
static int64_t overdue_at(const struct lh_task *task)
{
    if (task->stop == STOP_NONE || task->guard->killed)
        return INT64_MAX;
    int64_t from = task->kill_at > task->stop_asked_at ? task->kill_at : task->stop_asked_at;
    return from + GUARDIAN_LATE_MS;
}

/* Of a handler, counted from when a thread has taken it. */
static int64_t timeout_at(const struct lh_task *task)
{
    int64_t begun = task->worker->opts.handler == NULL
                        ? task->started_at
                        : __atomic_load_n(&task->begun_at, __ATOMIC_RELAXED);
    return task->timeout_ms > 0 && begun > 0 ? begun + task->timeout_ms : INT64_MAX;
}

/* Another user's, or stuck in the kernel: its job stays ours until it has gone. */
static void wait_longer(struct lh_task *task, int64_t now)
{
    char text[160];

    task->stop_asked_at = now + SAY_AGAIN_MS;
    lhi_format(text, sizeof text, "what job %lld has started does not end, though it was killed",
               (long long)task->job->id);
    worker_tell(task->worker, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, task);
}

static void keep_deadline(struct lh_task *task, int64_t now)
{
    const struct worker *w = task->worker;

    if (task->state == TASK_AHEAD && now >= task->kill_at)
        task_ended(task, LH_RAN_LOST);
    /* Not begun, and too late to begin. */
    if ((task->state == TASK_RECORDING || task->state == TASK_RECORDED) && now >= task->term_at)
        task->stop = STOP_FENCE;
    if (in_run(task) && task->guard != NULL && now >= overdue_at(task)) {
        /* With a lease that is kept there is no hurry: then only one that is stopped. */
        if (task->stop == STOP_FENCE || task->stop == STOP_LOST || guard_is_stopped(task->guard))
            guard_kill(task->guard);
        else
            wait_longer(task, now);
    }
    if (!in_run(task) || task->stop != STOP_NONE)
        return;
    if (now >= task->warn_at && !task->warned)
        warn(task);
    if (now >= task->term_at)
        task_stop(task, STOP_FENCE, task->kill_at - now > 0 ? task->kill_at - now : 0);
    else if (now >= timeout_at(task))
        task_stop(task, STOP_TIMEOUT, w->opts.kill_after_ms);
}

/* ---- when to beat ---- */

/* What is lost needs no beat any more. */
static bool wants_beat(const struct lh_task *task)
{
    return task->state != TASK_FREE && task->state != TASK_TELLING && task->stop != STOP_LOST &&
           !(task->state == TASK_ENDED && task->outcome == LH_RAN_LOST);
}

static int64_t beat_every(const struct worker *w)
{
    int64_t every = w->opts.heartbeat_ms;
    int64_t silence_fence = fence_of(every * w->opts.multiplier) * 2 / 5;

    if (silence_fence < every)
        every = silence_fence;
    for (size_t i = 0; i < w->n_tasks; i++) {
        const struct lh_task *task = &w->tasks[i];
        if (!wants_beat(task))
            continue;
        int64_t third = task->job->lease_ms / 3, two = fence_of(task->job->lease_ms) * 2 / 5;
        every = third > 0 && third < every ? third : every;
        every = two > 0 && two < every ? two : every;
    }
    return every > 0 ? every : 1;
}

/* Workers that were started together must not beat together for ever. */
static int64_t jittered(int64_t ms)
{
    uint32_t dice = 0;
    (void)lhi_random(&dice, sizeof dice);
    return ms - ms / 10 + (int64_t)((double)ms / 5 * (dice / 4294967296.0));
}

/* A heartbeat that was not answered by then has failed. */
static int64_t answer_due(const struct worker *w)
{
    int64_t third = w->opts.heartbeat_ms / 3;
    return w->beat_asked_at + (third < BEAT_MOST_MS ? third : BEAT_MOST_MS);
}

/* The call itself goes on: when its answer comes it still counts, from the time it was sent. Until
 * then nothing is claimed, as after any heartbeat that failed. */
static void beat_overdue(struct worker *w, int64_t now)
{
    char text[96];

    if (w->beater.failures == 0) {
        lhi_format(text, sizeof text, "a heartbeat failed: no answer after %lld ms",
                   (long long)(now - w->beat_asked_at));
        worker_tell(w, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, NULL);
    }
    w->beater.failures++;
    w->beat_overdue = w->beat_failing = true;
}

/* ---- beating ---- */

static void beat(struct worker *w)
{
    w->beat.sent_at = worker_now(w);
    if (w->beat.detail)
        w->beater.rc = lh_heartbeat(w->store, w->beat.beats, 1, w->beat.status, NULL);
    else
        w->beater.rc = lh_worker_heartbeat(w->store, w->id, w->opts.heartbeat_ms, w->beat.beats,
                                           w->beat.n, w->beat.status);
    if (w->beater.rc < 0)
        lhi_format(w->beater.error, sizeof w->beater.error, "%s", lh_errmsg(w->store));
}

static void learn(struct lh_task *task, int status)
{
    if (status == LH_OK) {
        set_deadlines(task, task->worker->beat.sent_at, task->job->lease_ms);
        return;
    }
    /* Recovered, cancelled, passed on: nobody waits for what this run comes to. */
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

void bad_news(struct lh_task *task, const char *why)
{
    char text[560];

    lhi_format(text, sizeof text, "what job %lld says of itself is not kept: %s",
               (long long)task->job->id, why);
    worker_tell(task->worker, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, task);
}

/* The store did not take it: once more, before a newer one that has come meanwhile. */
static void keep_news(struct worker *w, struct lh_task *task)
{
    pthread_mutex_lock(&w->mutex);
    if (w->beat.beats[0].checkpoint != NULL && task->next_checkpoint == NULL) {
        task->next_checkpoint = task->checkpoint;
        task->checkpoint = (char *)(uintptr_t)w->beat.beats[0].checkpoint;
        w->beat.beats[0].checkpoint = NULL;
    }
    __atomic_store_n(&task->news, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&w->mutex);
}

static bool still_in_hand(const struct worker *w, size_t i)
{
    const struct lh_task *task = w->beat.tasks[i];
    return task->state != TASK_FREE && task->state != TASK_TELLING &&
           task->job->id == w->beat.beats[i].job && task->job->token == w->beat.beats[i].token;
}

/* One job's news: a bad value is told, anything else is tried again. */
static void detail_told(struct worker *w)
{
    int rc = w->beater.rc;

    if (rc == LH_EINVAL || rc == LH_ETOOBIG || w->beat.status[0] == LH_EINVAL ||
        w->beat.status[0] == LH_ETOOBIG) {
        if (still_in_hand(w, 0))
            bad_news(w->beat.tasks[0], w->beater.error);
        w->beater.rc = LH_OK;
    } else if (rc < 0 && !is_about_lease(w->beat.status[0]) && still_in_hand(w, 0)) {
        keep_news(w, w->beat.tasks[0]);
    }
}

/* Copies of what jobs said, made for this beat. */
static void forget_words(struct worker *w)
{
    for (size_t i = 0; i < w->beat.n; i++) {
        lhi_free((void *)(uintptr_t)w->beat.beats[i].stage);
        lhi_free((void *)(uintptr_t)w->beat.beats[i].checkpoint);
        w->beat.beats[i].stage = w->beat.beats[i].checkpoint = NULL;
    }
}

/* The answers are about jobs; the places they had in hand may be others' by now. */
static void beaten(struct worker *w)
{
    bool answered = w->beater.rc == LH_OK;

    for (size_t i = 0; i < w->beat.n; i++)
        answered = answered || is_about_lease(w->beat.status[i]);
    if (answered && !w->beat.detail)
        w->heard_at = w->beat.sent_at;
    for (size_t i = 0; i < w->beat.n && answered; i++)
        if (still_in_hand(w, i) && is_about_lease(w->beat.status[i]))
            learn(w->beat.tasks[i], w->beat.status[i]);
    if (answered)
        w->beater.rc = LH_OK; /* what became of single jobs is no trouble of the store */
    else if (w->beat.detail)
        detail_told(w);
    worker_trouble(w, &w->beater, "a heartbeat failed");
    forget_words(w);
    w->beat_failing = w->beater.failures > 0;
    if (w->beat_failing)
        w->beat_at = w->beater.retry_at;
    else if (!w->beat.detail)
        w->beat_at = w->beat.sent_at + jittered(beat_every(w));
}

static void ask_beat(struct worker *w)
{
    w->beat_asked_at = worker_now(w);
    w->beat_overdue = false;
    hand_ask(&w->beater);
}

static void add_beat(struct worker *w, struct lh_task *task)
{
    w->beat.tasks[w->beat.n] = task;
    w->beat.status[w->beat.n] = LH_EFAIL;
    w->beat.beats[w->beat.n++] = (lh_beat){.job = task->job->id, .token = task->job->token};
}

static struct lh_task *with_news(struct worker *w, int64_t now)
{
    for (size_t i = 0; i < w->n_tasks; i++) {
        struct lh_task *task = &w->tasks[i];
        if (in_run(task) && task->stop == STOP_NONE && now >= task->told_at + DETAIL_MS) {
            if (__atomic_load_n(&task->news, __ATOMIC_RELAXED))
                return task;
        }
    }
    return NULL;
}

static void ask_detail(struct worker *w, struct lh_task *task, int64_t now)
{
    w->beat.n = 0;
    w->beat.detail = true;
    add_beat(w, task);
    pthread_mutex_lock(&w->mutex);
    /* A checkpoint goes by itself: if it is no JSON, the rest is good all the same. */
    bool more = false;
    if (task->checkpoint != NULL) {
        w->beat.beats[0].checkpoint = task->checkpoint;
        task->checkpoint = task->next_checkpoint;
        task->next_checkpoint = NULL;
        more = task->checkpoint != NULL || task->progress >= 0 || task->stage != NULL;
    } else {
        w->beat.beats[0].has_progress = task->progress >= 0;
        w->beat.beats[0].progress = task->progress;
        w->beat.beats[0].stage = lhi_strdup(task->stage);
    }
    __atomic_store_n(&task->news, more, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&w->mutex);
    task->told_at = more ? now - DETAIL_MS : now;
    worker_tell(w, &(lh_work_event){.what = LH_WORK_PROGRESS}, task);
    ask_beat(w);
}

static void ask_all(struct worker *w)
{
    w->beat.n = 0;
    w->beat_now = false;
    w->beat.detail = false;
    for (size_t i = 0; i < w->n_tasks; i++)
        if (wants_beat(&w->tasks[i])) {
            add_beat(w, &w->tasks[i]);
            if (w->tasks[i].guard != NULL)
                guard_continue(w->tasks[i].guard);
        }
    ask_beat(w);
}

bool beats_init(struct worker *w)
{
    w->beater.act = beat;
    w->beater.done = beaten;
    w->beat_at = worker_now(w) + jittered(beat_every(w));
    w->beat.beats = lhi_calloc(w->n_tasks, sizeof *w->beat.beats);
    w->beat.status = lhi_calloc(w->n_tasks, sizeof *w->beat.status);
    w->beat.tasks = lhi_calloc(w->n_tasks, sizeof(struct lh_task *));
    return w->beat.beats && w->beat.status && w->beat.tasks;
}

void beats_clear(struct worker *w)
{
    if (w->beat.beats != NULL)
        forget_words(w);
    lhi_free(w->beat.beats);
    lhi_free(w->beat.status);
    lhi_free((void *)w->beat.tasks);
}

/* A job with a short lease may have come since the time of the next beat was chosen. */
static void not_later(struct worker *w)
{
    int64_t every = beat_every(w);

    for (size_t i = 0; i < w->n_tasks && w->beater.failures == 0; i++)
        if (wants_beat(&w->tasks[i]) && w->tasks[i].sent_at + every < w->beat_at)
            w->beat_at = w->tasks[i].sent_at + every;
    /* Whatever the answers were: not again at once. */
    if (w->beat_at < w->beat.sent_at + every / 2 && !w->beat_now && w->beater.failures == 0)
        w->beat_at = w->beat.sent_at + every / 2;
}

void beats_step(struct worker *w, int64_t now)
{
    struct lh_task *task;

    for (size_t i = 0; i < w->n_tasks; i++)
        keep_deadline(&w->tasks[i], now);
    not_later(w);
    if (w->beater.busy && !w->beat_overdue && now >= answer_due(w))
        beat_overdue(w, now);
    if (w->beater.busy || w->reopen)
        return;
    if (now >= w->beat_at)
        ask_all(w);
    else if (!w->beat_failing && (task = with_news(w, now)) != NULL)
        ask_detail(w, task, now);
}

int64_t beats_next(const struct worker *w)
{
    bool may_beat = !w->beater.busy && !w->reopen, may_tell = may_beat && !w->beat_failing;
    int64_t next = may_beat                             ? w->beat_at
                   : w->beater.busy && !w->beat_overdue ? answer_due(w)
                                                        : INT64_MAX;

    for (size_t i = 0; i < w->n_tasks; i++) {
        const struct lh_task *task = &w->tasks[i];
        if (task->state == TASK_AHEAD && task->kill_at < next)
            next = task->kill_at;
        if (!in_run(task))
            continue;
        if (task->guard != NULL && overdue_at(task) < next)
            next = overdue_at(task);
        if (task->stop != STOP_NONE)
            continue;
        int64_t times[] = {
            task->warned ? INT64_MAX : task->warn_at, task->term_at, timeout_at(task),
            may_tell && __atomic_load_n(&task->news, __ATOMIC_RELAXED) ? task->told_at + DETAIL_MS
                                                                       : INT64_MAX};
        for (size_t k = 0; k < sizeof times / sizeof *times; k++)
            if (times[k] < next)
                next = times[k];
    }
    return next;
}
