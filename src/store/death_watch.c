/*
 * death_watch.c: a thread that notices at once when the process of a worker on this machine ends.
 *
 * While a process waits for a job or for maintenance, this thread holds a pidfd of every worker in the
 * same boot and pid namespace. The kernel makes a pidfd readable when its process ends. The thread then
 * raises the maintenance wake-up, and the waiting processes judge the workers and take back the jobs of
 * the dead one. If a worker records the sessions of its jobs, its death is proven only when these have
 * ended too, so the thread watches their leaders as well. A worker that cannot be watched is judged at
 * the next poll, or by its silence limit.
 */
#include "store/death_watch.h"

#include "base/clock.h"
#include "base/processes.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MOST = 250, /* processes that one thread watches */
    GAP_MS = 5, /* per worker: the shortest time between two listings of the workers */
    PAUSE_MS =
        200 /* per worker: the time between two listings if no worker is known to have come */
};

struct watched {
    int64_t pid, start;
};

struct watcher {
    const struct lhi_death_watch_of *of;
    struct lhi_identity self;
    struct pollfd fds[MOST + 1]; /* the pipe, then the processes */
    struct watched who[MOST + 1];
    size_t n;
    struct watched reported[MOST]; /* processes that were gone when they were first seen */
    size_t n_reported;
    int64_t reported_at; /* monotonic, of these */
    size_t n_workers;    /* in the last list, on any machine */
    int64_t listed_at;   /* real time, not that of the tests */
};

static bool is_watched(const struct watcher *m, int64_t pid, int64_t start)
{
    for (size_t i = 1; i < m->n; i++)
        if (m->who[i].pid == pid && m->who[i].start == start)
            return true;
    return false;
}

static void forget(struct watcher *m, size_t i)
{
    close(m->fds[i].fd);
    m->n--;
    m->fds[i] = m->fds[m->n];
    m->who[i] = m->who[m->n];
}

/* Watch a process. True: it is already gone. */
static bool watch(struct watcher *m, int64_t pid, int64_t start)
{
    if (pid == m->self.pid || is_watched(m, pid, start))
        return false;
    /* Checked before the pidfd is opened, because that of a zombie is always readable. */
    if (lhi_process_gone(pid, start))
        return true;
    if (m->n > MOST)
        return false;
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0); /* close-on-exec by default */
    if (fd < 0)
        return errno == ESRCH; /* it ended just now */
    m->fds[m->n] = (struct pollfd){.fd = fd, .events = POLLIN};
    m->who[m->n++] = (struct watched){pid, start};
    return false;
}

/* Has this process, which was gone when it was first seen, not been reported yet? Each is reported once:
 * if no process may mark the worker as dead, the wake-up and the next listing would follow each other in a loop. */
static bool is_new(struct watcher *m, const struct lhi_identity *process)
{
    for (size_t i = 0; i < m->n_reported; i++)
        if (m->reported[i].pid == process->pid && m->reported[i].start == process->start)
            return false;
    if (m->n_reported == MOST)
        return false;
    m->reported[m->n_reported++] = (struct watched){process->pid, process->start};
    return true;
}

/* Watch a worker. True: its process is gone. Then its sessions are watched, whose end proves its death. */
static bool watch_worker(struct watcher *m, const struct lhi_suspect *worker)
{
    bool gone = worker->process.pid != 0 && lhi_same_place(&worker->process, &m->self) &&
                watch(m, worker->process.pid, worker->process.start);

    for (size_t i = 0; i < worker->n_leaders && gone; i++)
        (void)watch(m, worker->leaders[i].pid, worker->leaders[i].start);
    return gone;
}

static bool is_of(const struct lhi_suspect *worker, const struct watched *who)
{
    bool is = worker->process.pid == who->pid && worker->process.start == who->start;

    for (size_t i = 0; i < worker->n_leaders && !is; i++)
        is = worker->leaders[i].pid == who->pid && worker->leaders[i].start == who->start;
    return is;
}

static bool still_known(const struct lhi_suspects *workers, const struct watched *who)
{
    for (size_t i = 0; i < workers->n; i++)
        if (is_of(&workers->suspect[i], who))
            return true;
    return false;
}

/* List the workers, and watch those that have come since the last time. */
static void refresh(struct watcher *m)
{
    struct lhi_suspects workers = {0};
    bool gone = false, any_new = false;

    if (!m->of->workers(m->of->arg, &workers)) {
        lhi_suspects_clear(&workers);
        return;
    }
    for (size_t i = m->n; i-- > 1;)
        if (!still_known(&workers, &m->who[i]))
            forget(m, i);
    for (size_t i = m->n_reported; i-- > 0;)
        if (!still_known(&workers, &m->reported[i]))
            m->reported[i] = m->reported[--m->n_reported];
    for (size_t i = 0; i < workers.n; i++) {
        bool dead = watch_worker(m, &workers.suspect[i]);
        gone = gone || dead;
        any_new = (dead && is_new(m, &workers.suspect[i].process)) || any_new;
    }
    m->n_workers = workers.n;
    lhi_suspects_clear(&workers);
    if (any_new || (gone && lhi_mono_ms() - m->reported_at >= 1000)) {
        m->reported_at = lhi_mono_ms();
        m->of->wake(m->of->arg);
    }
}

/* Empty the pipe. False: the thread is to stop. */
static bool read_pipe(struct watcher *m, const struct lhi_death_watch *w)
{
    char bytes[64];

    if (m->fds[0].revents != 0)
        (void)!read(m->fds[0].fd, bytes, sizeof bytes);
    return !__atomic_load_n(&w->stopping, __ATOMIC_ACQUIRE);
}

/* List the workers if that is due. Every worker watches all others, so with more workers each of them
 * lists them less often. Returns the time until the next listing. */
static int refresh_if_due(struct watcher *m)
{
    int64_t now = lhi_mono_us() / 1000, workers = (int64_t)m->n_workers;
    int64_t too_soon = m->listed_at + workers * GAP_MS - now;

    if (too_soon > 0)
        return (int)too_soon;
    m->listed_at = now;
    refresh(m);
    return (int)(workers * PAUSE_MS > m->of->refresh_ms ? workers * PAUSE_MS : m->of->refresh_ms);
}

static void *watch_deaths(void *arg)
{
    struct lhi_death_watch *w = arg;
    struct watcher m = {.of = &w->of, .n = 1, .reported_at = -1000};

    lhi_identify(&m.self);
    m.fds[0] = (struct pollfd){.fd = w->pipe[0], .events = POLLIN};
    do {
        bool died = false;
        for (size_t i = m.n; i-- > 1;)
            if (m.fds[i].revents != 0) {
                forget(&m, i);
                died = true;
            }
        if (died)
            m.of->wake(m.of->arg);
        int pause = refresh_if_due(&m);
        for (size_t i = 0; i < m.n; i++)
            m.fds[i].revents = 0;
        (void)poll(m.fds, m.n, pause);
    } while (read_pipe(&m, w));
    while (m.n > 1)
        forget(&m, m.n - 1);
    return NULL;
}

void lhi_death_watch_init(struct lhi_death_watch *w, const struct lhi_death_watch_of *of)
{
    *w = (struct lhi_death_watch){.of = *of, .pipe = {-1, -1}};
    pthread_mutex_init(&w->mutex, NULL);
}

void lhi_death_watch_start(struct lhi_death_watch *w, uint32_t wakeups)
{
    pthread_mutex_lock(&w->mutex);
    if (!w->watching && w->pipe[0] < 0 && pipe2(w->pipe, O_CLOEXEC | O_NONBLOCK) == 0)
        w->watching = lhi_thread_start(&w->thread, watch_deaths, w);
    /* A worker may have come since the last listing. */
    else if (w->watching && wakeups != w->seen)
        (void)!write(w->pipe[1], "", 1);
    w->seen = wakeups;
    pthread_mutex_unlock(&w->mutex);
}

void lhi_death_watch_refresh(struct lhi_death_watch *w)
{
    pthread_mutex_lock(&w->mutex);
    if (w->watching)
        (void)!write(w->pipe[1], "", 1);
    pthread_mutex_unlock(&w->mutex);
}

void lhi_death_watch_stop(struct lhi_death_watch *w)
{
    if (w->watching) {
        /* Closing the pipe would not be enough: a forked child may have a copy of it. */
        __atomic_store_n(&w->stopping, true, __ATOMIC_RELEASE);
        (void)!write(w->pipe[1], "", 1);
        pthread_join(w->thread, NULL);
    }
    for (int i = 0; i < 2; i++)
        if (w->pipe[i] >= 0)
            close(w->pipe[i]);
    w->pipe[0] = w->pipe[1] = -1;
    w->watching = w->stopping = false;
}

void lhi_death_watch_clear(struct lhi_death_watch *w)
{
    lhi_death_watch_stop(w);
    pthread_mutex_destroy(&w->mutex);
}
