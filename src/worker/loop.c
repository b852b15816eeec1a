/*
 * loop.c: the one place where everything that happens to a worker meets.
 *
 * Signals, what children and guardians say, answers of the store, and time. After each of them the
 * same steps are taken: what is due is done, what may be asked is asked, and the loop sleeps until
 * the next thing. It never calls the store.
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
    /* Others may have the same open: closing ours is then not enough to hear no more of it. */
    (void)epoll_ctl(w->epoll, EPOLL_CTL_DEL, source->fd, NULL);
    (void)close(source->fd);
    source->fd = -1;
}

void ring(struct worker *w)
{
    uint64_t one = 1;
    (void)!write(w->bell.fd, &one, sizeof one);
}

/* ---- telling ---- */

void worker_tell(struct worker *w, lh_work_event *event, const struct lh_task *task)
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

/* A call that failed: said once, until it works again. */
void worker_trouble(struct worker *w, struct hand *hand, const char *doing)
{
    char text[560];

    if (hand->rc >= 0) {
        if (hand->failures > 0)
            worker_tell(w, &(lh_work_event){.what = LH_WORK_WELL, .error = doing}, NULL);
        hand->failures = 0;
        return;
    }
    if (hand->failures == 0) {
        lhi_format(text, sizeof text, "%s: %s", doing, hand->error);
        worker_tell(w, &(lh_work_event){.what = LH_WORK_TROUBLE, .error = text}, NULL);
    }
    hand_fails(hand, hand->rc);
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
        worker_tell(w, &(lh_work_event){.what = LH_WORK_STOPPING}, NULL);
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

/* SIGTERM and SIGHUP often come together, and mean one stop; the same once more means it. */
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

void keeper_cancel(struct worker *w)
{
    if (__atomic_exchange_n(&w->keeper_cancel, 1, __ATOMIC_RELAXED) == 0 && w->keeper.busy)
        lh_wake(w->store);
}

/* ---- a handle that is of no use any more ---- */

/* What no waiting mends. */
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
    return idle && !w->claimer.busy && !w->beater.busy && !w->ender.busy && !w->recorder.busy &&
           !w->logger.busy && !w->keeper.busy;
}

/* On the handle that was opened anew; on failure the reason is in w->opener. */
static int take_up_again(struct worker *w, lh_store *store)
{
    lh_store_info info;
    int rc = lh_store_status(store, &info);

    if (rc == LH_OK && strcmp(info.uuid, w->store_uuid) != 0) {
        lhi_format(w->opener.error, sizeof w->opener.error,
                   "another store stands in the place of the one it was");
        return LH_EINVAL;
    }
    /* One that was restored has never heard of us. */
    if (rc == LH_OK)
        rc = worker_enrol(w, store);
    if (rc == LH_OK && w->opts.ahead > 0)
        rc = lh_worker_started(store, w->id, w->record.started, w->record.n_started);
    if (rc < 0)
        lhi_format(w->opener.error, sizeof w->opener.error, "%s", lh_errmsg(store));
    return rc;
}

static void open_again(struct worker *w)
{
    lh_store *store = w->store;
    int64_t asked_at = worker_now(w);
    int rc = w->opts.reopen(w->opts.reopen_arg, &store, w->opener.error, sizeof w->opener.error);

    if (rc == LH_OK)
        rc = take_up_again(w, store);
    w->opener.rc = rc;
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
    worker_trouble(w, &w->opener, "could not open the store again");
    if (w->opener.rc < 0) {
        if (is_final(w->opener.rc)) { /* what runs can be told to nobody */
            worker_fail(w, w->opener.rc, w->opener.error);
            worker_stop(w, true);
        }
        return;
    }
    set_reopen(w, false);
    w->heard_at = w->opened_at;
    w->sessions_changed = w->started_changed = true;
    w->ender.retry_at = w->beater.retry_at = w->recorder.retry_at = w->claimer.retry_at =
        w->logger.retry_at = 0;
    w->beat_at = 0;
    w->beat_now = true;
}

static void reopen_step(struct worker *w, int64_t now)
{
    claims_cancel(w);
    keeper_cancel(w);
    if (w->opts.reopen == NULL) {
        worker_fail(w, LH_ESTOPPED, "the store cannot be used any more: open it anew");
        w->stage = STAGE_KILLING;
        if (w->give_up_at == 0)
            w->give_up_at = now + w->opts.kill_after_ms;
        stop_running(w, w->opts.kill_after_ms);
    } else if (!w->opener.busy && now >= w->opener.retry_at && store_is_idle(w)) {
        record_lay_out(w); /* told with it: should we die right after, what runs is on record */
        hand_ask(&w->opener);
    }
}

/* ---- upkeep of the store ---- */

static void keep(struct worker *w)
{
    lh_maintain_opts opts = {
        .wait_ms = w->opts.detection_ms, .cancel = &w->keeper_cancel, .woken = true};

    w->keeper.rc = lh_maintain(w->store, &opts, NULL);
    if (w->keeper.rc < 0)
        lhi_format(w->keeper.error, sizeof w->keeper.error, "%s", lh_errmsg(w->store));
}

static void kept(struct worker *w)
{
    if (w->keeper.rc != LH_EINTR)
        worker_trouble(w, &w->keeper, "could not look after the store");
}

static int64_t keep_due(const struct worker *w)
{
    /* After trouble our own beat and ends come first: it must not bury us. */
    if (w->opts.no_recovery || w->keeper.busy || w->stage >= STAGE_KILLING || w->beat_failing ||
        w->ender.failures > 0)
        return INT64_MAX;
    return w->keeper.failures > 0 ? w->keeper.retry_at : 0;
}

static void keep_step(struct worker *w, int64_t now)
{
    if (now < keep_due(w))
        return;
    __atomic_store_n(&w->keeper_cancel, 0, __ATOMIC_RELAXED);
    hand_ask(&w->keeper);
}

/* ---- the loop ---- */

static bool all_done(const struct worker *w)
{
    for (size_t i = 0; i < w->n_tasks; i++)
        if (w->tasks[i].state != TASK_FREE)
            return false;
    return !w->claimer.busy && !w->ender.busy;
}

static void watchdog_step(struct worker *w, int64_t now)
{
    if (w->watchdog_ms > 0 && now >= w->watchdog_at) {
        lhi_notify("WATCHDOG=1");
        w->watchdog_at = now + w->watchdog_ms / 2;
    }
}

/* When nothing runs any more there is only the store to be told. */
static int64_t give_up_at(const struct worker *w)
{
    int64_t told_by = w->idle_since + (w->reopen ? w->opts.kill_after_ms : GIVE_UP_MS);

    if (w->stage == STAGE_STOPPING)
        return w->idle_since > 0 ? told_by : INT64_MAX;
    return w->idle_since > 0 && told_by < w->give_up_at ? told_by : w->give_up_at;
}

/* A handler can only be waited for: as long as its lease can be kept, it is. */
static bool handlers_go_on(const struct worker *w)
{
    return w->handlers != NULL && w->running > 0 && !w->reopen;
}

static void give_up(struct worker *w)
{
    const char *why = w->running > 0          ? "a command does not end"
                      : w->reopen             ? w->opener.error
                      : w->ender.failures > 0 ? w->ender.error
                                              : "the store did not answer";

    if (w->rc == LH_OK) {
        w->rc = w->reopen ? LH_EUNREACH : w->ender.rc < 0 ? w->ender.rc : LH_EFAIL;
        lhi_format(w->error, sizeof w->error, "stopped without giving everything back: %s", why);
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
    beats_step(w, now);
    guards_sweep(w, now);
    handlers_step(w, now);
    if (w->reopen) {
        reopen_step(w, now);
    } else {
        ends_step(w, now);
        output_step(w, now);
        start_tasks(w);
        record_step(w, now);
        claims_step(w);
        keep_step(w, now);
    }
    if (w->stage > STAGE_WORK && all_done(w))
        w->stage = STAGE_OVER;
    if (w->stage > STAGE_WORK && w->stage != STAGE_OVER && now >= give_up_at(w) &&
        !handlers_go_on(w))
        give_up(w);
}

static int sleep_ms(struct worker *w)
{
    int64_t now = worker_now(w), next = beats_next(w);
    int64_t others[] = {
        w->reopen ? INT64_MAX : ends_next(w),
        w->reopen ? INT64_MAX : claims_next(w),
        w->reopen ? INT64_MAX : output_next(w),
        guards_next(w),
        handlers_next(w),
        w->watchdog_ms > 0 ? w->watchdog_at : INT64_MAX,
        w->stage == STAGE_STOPPING ? w->grace_until : INT64_MAX,
        w->stage > STAGE_WORK && !handlers_go_on(w) ? give_up_at(w) : INT64_MAX,
        w->reopen && !w->opener.busy ? (w->opener.retry_at > now ? w->opener.retry_at : now + 10)
                                     : INT64_MAX,
        w->reopen || w->keeper.failures == 0 ? INT64_MAX : keep_due(w),
        w->reopen ? INT64_MAX : record_next(w),
        w->opts.cancel ? now + 100 : INT64_MAX, /* a flag rings no bell */
    };

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i] < next)
            next = others[i];
    if (next == INT64_MAX)
        return -1;
    /* A sleep of the machine does not end a wait, though time goes on in it: so the wait is short. */
    int64_t most = w->running > 0 && w->clock != CLOCK_MONOTONIC ? GLANCE_MS : 60000;
    return next <= now ? 0 : next - now > most ? (int)most : (int)(next - now);
}

static void on_bell(struct worker *w, struct source *source, uint32_t events)
{
    uint64_t rings;

    (void)events;
    (void)!read(source->fd, &rings, sizeof rings);
    ends_claimed(w);
    hands_done(w);
    handlers_over(w);
}

/* What was ignored when we came stays so: nohup, and jobs that a script put into the background. */
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

    w->bell = (struct source){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = on_bell};
    if (w->bell.fd < 0 || !source_add(w, &w->bell))
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
    w->keeper.act = keep;
    w->keeper.done = kept;
    w->opener.act = open_again;
    w->opener.done = opened_again;
    w->watchdog_ms = lhi_notify_watchdog_ms();
    return w->epoll >= 0 && open_sources(w);
}

void loop_clear(struct worker *w)
{
    source_close(w, &w->signals);
    source_close(w, &w->bell);
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
