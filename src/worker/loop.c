/*
 * loop.c: the main loop of a worker.
 *
 * The loop waits for signals, reports of guardians, ended processes, answers of the store, and time. After
 * each of them it takes the same steps: it does what is due and starts the calls that are possible. It
 * never calls the store itself.
 */
#include "worker/worker.h"

#include "base/clock.h"
#include "base/notify.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

int64_t worker_now(const struct worker *w)
{
    return lhi_clock_ms(w->clock);
}

/* ---- descriptors ---- */

bool source_add(struct worker *w, struct source *source)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
    return epoll_ctl(w->epoll, EPOLL_CTL_ADD, source->fd, &event) == 0;
}

void source_close(struct worker *w, struct source *source)
{
    if (source->fd < 0)
        return;
    /* Another process may have the same file open; then closing ours would not end the events. */
    (void)epoll_ctl(w->epoll, EPOLL_CTL_DEL, source->fd, NULL);
    (void)close(source->fd);
    source->fd = -1;
}

void loop_wake(struct worker *w)
{
    uint64_t one = 1;
    (void)!write(w->wakeup.fd, &one, sizeof one);
}

/* ---- reporting ---- */

void worker_report(struct worker *w, lh_work_event *event, const struct lh_task *task)
{
    char stage[STAGE_MOST + 1] = "";

    if (w->opts.tell == NULL)
        return;
    event->worker = w->id;
    event->running = w->running;
    event->ahead = w->ahead;
    event->progress = -1;
    if (task != NULL) {
        event->job = task->job;
        event->run_ms = task->started_at ? worker_now(w) - task->started_at : 0;
        pthread_mutex_lock(&w->mutex);
        event->progress = task->progress;
        lhi_format(stage, sizeof stage, "%s", task->stage ? task->stage : "");
        pthread_mutex_unlock(&w->mutex);
        event->stage = stage[0] != '\0' ? stage : NULL;
    }
    w->opts.tell(w->opts.tell_arg, event);
}

/* Report a failed call once, and once more when it works again. */
void worker_trouble(struct worker *w, struct store_call *call, const char *doing)
{
    char text[560];

    if (call->rc >= 0) {
        if (call->failures > 0)
            worker_report(w, &(lh_work_event){.what = LH_WORK_WELL, .error = doing}, NULL);
        call->failures = 0;
        return;
    }
    if (call->failures == 0) {
        lhi_format(text, sizeof text, "%s: %s", doing, call->error);
        worker_report(w, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, NULL);
    }
    store_call_failed(call, call->rc);
}

/* ---- stopping ---- */

static void stop_running(struct worker *w, int64_t kill_after_ms)
{
    for (size_t i = 0; i < w->n_tasks; i++)
        if (w->tasks[i].state == TASK_STARTING || w->tasks[i].state == TASK_RUNNING)
            task_stop(&w->tasks[i], STOP_SHUTDOWN, kill_after_ms);
}

void worker_stop(struct worker *w, bool at_once)
{
    int64_t now = worker_now(w);

    if (w->stage == STAGE_WORK) {
        w->stage = STAGE_STOPPING;
        w->grace_until = now + (w->opts.grace_ms == LH_NOW ? 0 : w->opts.grace_ms);
        lhi_notify("STOPPING=1");
        claims_cancel(w);
        for (size_t i = 0; i < w->n_tasks; i++)
            if (w->tasks[i].state == TASK_AHEAD)
                task_ended(&w->tasks[i], LH_RAN_RELEASED);
        if (w->handlers != NULL)
            handlers_recall(w);
        worker_report(w, &(lh_work_event){.what = LH_WORK_STOPPING}, NULL);
    }
    if (w->stage == STAGE_STOPPING && (at_once || now >= w->grace_until)) {
        w->stage = STAGE_KILLING;
        w->give_up_at = now + w->opts.kill_after_ms + GIVE_UP_MS;
        stop_running(w, at_once ? 0 : w->opts.kill_after_ms);
    } else if (w->stage == STAGE_KILLING && at_once) {
        stop_running(w, 0);
    }
}

void worker_fail(struct worker *w, int rc, const char *error)
{
    if (w->rc == LH_OK) {
        w->rc = rc;
        lhi_format(w->error, sizeof w->error, "%s", error);
    }
    worker_stop(w, false);
}

/* SIGTERM and SIGHUP often come together and mean one stop. The same signal again stops immediately. */
static void stop_by_signal(struct worker *w, uint32_t signal)
{
    int64_t now = worker_now(w);
    bool first = w->signalled_at == 0;

    if (first) {
        w->signalled_at = now;
        w->signal = signal;
    }
    worker_stop(w, !first && (signal == w->signal || now - w->signalled_at > SAME_STOP_MS));
}

static void on_signal(struct worker *w, struct source *source, uint32_t events)
{
    struct signalfd_siginfo info;

    (void)events;
    while (read(source->fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            stop_by_signal(w, info.ssi_signo);
    guards_reap(w);
}

static void look_at_flag(struct worker *w)
{
    int raised = lh_flag_raised(w->opts.cancel);

    if (raised > 0 && (w->stage == STAGE_WORK || raised > 1))
        worker_stop(w, raised > 1);
}

void maintain_cancel(struct worker *w)
{
    if (__atomic_exchange_n(&w->maintain_cancel, 1, __ATOMIC_RELAXED) == 0 && w->maintain_call.busy)
        lh_wake(w->store);
}

/* ---- replacing a stopped handle ---- */

/* Does waiting not help against this failure? */
bool is_final(int rc)
{
    return rc == LH_ECORRUPT || rc == LH_ENEWER || rc == LH_EOLDER || rc == LH_EINVAL ||
           rc == LH_EMISUSE;
}

static bool store_is_idle(struct worker *w)
{
    pthread_mutex_lock(&w->mutex);
    bool idle = w->calls == 0;
    pthread_mutex_unlock(&w->mutex);
    return idle && !w->claim_call.busy && !w->heartbeat_call.busy && !w->outcome_call.busy &&
           !w->record_call.busy && !w->output_call.busy && !w->maintain_call.busy;
}

/* Check the new handle and register on it. A failure is explained in w->open_call. */
static int resume_on(struct worker *w, lh_store *store)
{
    lh_store_info info;
    int rc = lh_store_status(store, &info);

    if (rc == LH_OK && strcmp(info.uuid, w->store_uuid) != 0) {
        lhi_format(w->open_call.error, sizeof w->open_call.error,
                   "there is a different store at this address now");
        return LH_EINVAL;
    }
    /* A restored store does not know this worker. */
    if (rc == LH_OK)
        rc = worker_enrol(w, store);
    if (rc == LH_OK && w->opts.ahead > 0)
        rc = lh_worker_started(store, w->id, w->record.started, w->record.n_started);
    if (rc < 0)
        lhi_format(w->open_call.error, sizeof w->open_call.error, "%s", lh_errmsg(store));
    return rc;
}

static void open_again(struct worker *w)
{
    lh_store *store = w->store;
    int64_t asked_at = worker_now(w);
    int rc =
        w->opts.reopen(w->opts.reopen_arg, &store, w->open_call.error, sizeof w->open_call.error);

    if (rc == LH_OK)
        rc = resume_on(w, store);
    w->open_call.rc = rc;
    if (rc == LH_OK)
        w->opened_at = asked_at;
    pthread_mutex_lock(&w->mutex);
    w->store = store;
    pthread_mutex_unlock(&w->mutex);
}

static void set_reopen(struct worker *w, bool reopen)
{
    pthread_mutex_lock(&w->mutex);
    w->reopen = reopen;
    pthread_mutex_unlock(&w->mutex);
}

static void opened_again(struct worker *w)
{
    worker_trouble(w, &w->open_call, "could not open the store again");
    if (w->open_call.rc < 0) {
        if (is_final(w->open_call.rc)) { /* no outcome can be written any more */
            worker_fail(w, w->open_call.rc, w->open_call.error);
            worker_stop(w, true);
        }
        return;
    }
    set_reopen(w, false);
    w->confirmed_at = w->opened_at;
    w->sessions_changed = w->started_changed = true;
    w->outcome_call.retry_at = w->heartbeat_call.retry_at = w->record_call.retry_at =
        w->claim_call.retry_at = w->output_call.retry_at = 0;
    w->heartbeat_at = 0;
    w->heartbeat_now = true;
}

static void reopen_step(struct worker *w, int64_t now)
{
    claims_cancel(w);
    maintain_cancel(w);
    if (w->opts.reopen == NULL) {
        worker_fail(w, LH_ESTOPPED, "the store cannot be used any more: open it again");
        w->stage = STAGE_KILLING;
        if (w->give_up_at == 0)
            w->give_up_at = now + w->opts.kill_after_ms;
        stop_running(w, w->opts.kill_after_ms);
    } else if (!w->open_call.busy && now >= w->open_call.retry_at && store_is_idle(w)) {
        record_lay_out(w); /* registered with it, in case this worker dies right after */
        store_call_ask(&w->open_call);
    }
}

/* ---- maintenance ---- */

static void maintain(struct worker *w)
{
    lh_maintain_opts opts = {
        .wait_ms = w->opts.detection_ms, .cancel = &w->maintain_cancel, .woken = true};

    w->maintain_call.rc = lh_maintain(w->store, &opts, NULL);
    if (w->maintain_call.rc < 0)
        lhi_format(w->maintain_call.error, sizeof w->maintain_call.error, "%s",
                   lh_errmsg(w->store));
}

static void maintain_done(struct worker *w)
{
    if (w->maintain_call.rc != LH_EINTR)
        worker_trouble(w, &w->maintain_call, "maintenance failed");
}

static int64_t maintain_due(const struct worker *w)
{
    /* After a failure our heartbeats and outcomes go first, so that we do not declare ourselves dead. */
    if (w->opts.no_recovery || w->maintain_call.busy || w->stage >= STAGE_KILLING ||
        w->heartbeat_failing || w->outcome_call.failures > 0)
        return INT64_MAX;
    return w->maintain_call.failures > 0 ? w->maintain_call.retry_at : 0;
}

static void maintain_step(struct worker *w, int64_t now)
{
    if (now < maintain_due(w))
        return;
    __atomic_store_n(&w->maintain_cancel, 0, __ATOMIC_RELAXED);
    store_call_ask(&w->maintain_call);
}

/* ---- the loop ---- */

static bool all_done(const struct worker *w)
{
    for (size_t i = 0; i < w->n_tasks; i++)
        if (w->tasks[i].state != TASK_FREE)
            return false;
    return !w->claim_call.busy && !w->outcome_call.busy;
}

static void watchdog_step(struct worker *w, int64_t now)
{
    if (w->watchdog_ms > 0 && now >= w->watchdog_at) {
        lhi_notify("WATCHDOG=1");
        w->watchdog_at = now + w->watchdog_ms / 2;
    }
}

/* When to give up: if nothing runs any more, only writes to the store are left. */
static int64_t give_up_at(const struct worker *w)
{
    int64_t written_by = w->idle_since + (w->reopen ? w->opts.kill_after_ms : GIVE_UP_MS);

    if (w->stage == STAGE_STOPPING)
        return w->idle_since > 0 ? written_by : INT64_MAX;
    return w->idle_since > 0 && written_by < w->give_up_at ? written_by : w->give_up_at;
}

/* A handler cannot be stopped: wait for it as long as its lease can be extended. */
static bool handlers_go_on(const struct worker *w)
{
    return w->handlers != NULL && w->running > 0 && !w->reopen;
}

static void give_up(struct worker *w)
{
    const char *why = w->running > 0                 ? "a command does not end"
                      : w->reopen                    ? w->open_call.error
                      : w->outcome_call.failures > 0 ? w->outcome_call.error
                                                     : "the store did not answer";

    if (w->rc == LH_OK) {
        w->rc = w->reopen ? LH_EUNREACH : w->outcome_call.rc < 0 ? w->outcome_call.rc : LH_EFAIL;
        lhi_format(w->error, sizeof w->error, "stopped before every job was released: %s", why);
    }
    w->stage = STAGE_OVER;
}

static void step(struct worker *w)
{
    int64_t now = worker_now(w);

    look_at_flag(w);
    w->idle_since = w->running > 0 || w->stage == STAGE_WORK ? 0
                    : w->idle_since                          ? w->idle_since
                                                             : now;
    if (w->stage == STAGE_STOPPING && now >= w->grace_until)
        worker_stop(w, false);
    watchdog_step(w, now);
    deadlines_step(w, now);
    heartbeats_step(w, now);
    guards_sweep(w, now);
    handlers_step(w, now);
    if (w->reopen) {
        reopen_step(w, now);
    } else {
        outcomes_step(w, now);
        output_step(w, now);
        start_tasks(w);
        record_step(w, now);
        claims_step(w);
        maintain_step(w, now);
    }
    if (w->stage > STAGE_WORK && all_done(w))
        w->stage = STAGE_OVER;
    if (w->stage > STAGE_WORK && w->stage != STAGE_OVER && now >= give_up_at(w) &&
        !handlers_go_on(w))
        give_up(w);
}

static int sleep_ms(struct worker *w)
{
    int64_t now = worker_now(w), next = deadlines_next(w);
    int64_t others[] = {
        heartbeats_next(w),
        w->reopen ? INT64_MAX : outcomes_next(w),
        w->reopen ? INT64_MAX : claims_next(w),
        w->reopen ? INT64_MAX : output_next(w),
        guards_next(w),
        handlers_next(w),
        w->watchdog_ms > 0 ? w->watchdog_at : INT64_MAX,
        w->stage == STAGE_STOPPING ? w->grace_until : INT64_MAX,
        w->stage > STAGE_WORK && !handlers_go_on(w) ? give_up_at(w) : INT64_MAX,
        w->reopen && !w->open_call.busy
            ? (w->open_call.retry_at > now ? w->open_call.retry_at : now + 10)
            : INT64_MAX,
        w->reopen || w->maintain_call.failures == 0 ? INT64_MAX : maintain_due(w),
        w->reopen ? INT64_MAX : record_next(w),
        w->opts.cancel ? now + 100 : INT64_MAX, /* the flag is polled */
    };

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i] < next)
            next = others[i];
    if (next == INT64_MAX)
        return -1;
    /* The wait does not end while the machine sleeps, although this clock runs: keep it short. */
    int64_t most = w->running > 0 && w->clock != CLOCK_MONOTONIC ? CHECK_MS : 60000;
    return next <= now ? 0 : next - now > most ? (int)most : (int)(next - now);
}

static void on_wakeup(struct worker *w, struct source *source, uint32_t events)
{
    uint64_t rings;

    (void)events;
    (void)!read(source->fd, &rings, sizeof rings);
    outcomes_claimed(w);
    store_calls_done(w);
    handlers_over(w);
}

/* The signals that stop a worker. One that was ignored when we started stays ignored (nohup). */
void stop_signals(sigset_t *set)
{
    static const int all[] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction before;

    (void)sigemptyset(set);
    (void)sigaddset(set, SIGCHLD);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (sigaction(all[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            (void)sigaddset(set, all[i]);
}

static bool open_sources(struct worker *w)
{
    sigset_t set;

    w->wakeup = (struct source){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = on_wakeup};
    if (w->wakeup.fd < 0 || !source_add(w, &w->wakeup))
        return false;
    if (!w->opts.own_signals)
        return true;
    stop_signals(&set);
    w->signals =
        (struct source){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .ready = on_signal};
    return w->signals.fd >= 0 && source_add(w, &w->signals);
}

bool loop_init(struct worker *w)
{
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->maintain_call.act = maintain;
    w->maintain_call.done = maintain_done;
    w->open_call.act = open_again;
    w->open_call.done = opened_again;
    w->watchdog_ms = lhi_notify_watchdog_ms();
    return w->epoll >= 0 && open_sources(w);
}

void loop_clear(struct worker *w)
{
    source_close(w, &w->signals);
    source_close(w, &w->wakeup);
    if (w->epoll >= 0)
        (void)close(w->epoll);
    w->epoll = -1;
}

void worker_loop(struct worker *w)
{
    struct epoll_event events[64];

    for (step(w); w->stage != STAGE_OVER; step(w)) {
        int n = epoll_wait(w->epoll, events, 64, sleep_ms(w));
        for (int i = 0; i < n; i++) {
            struct source *source = events[i].data.ptr;
            if (source->fd >= 0)
                source->ready(w, source, events[i].events);
        }
    }
}
