/*
 * deaths.c: the processes of workers, watched.
 *
 * Whoever waits for something (a claim, maintenance) keeps a thread that holds a pidfd of every worker
 * of this machine, boot and pid namespace. The kernel makes it readable when the process ends, however
 * it ends; then the siren sounds, and those who wait judge the workers and take back what the dead
 * one held. Of a worker that is gone, those are watched in whose sessions its jobs run: the death is
 * proven when the last of them has ended. A worker that cannot be watched is judged at the next
 * look, or by time.
 */
#include "store/deaths.h"

#include "base/clock.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MOST = 250,
    GAP_MS = 5,   /* for each worker of the list: between two looks at it … */
    REST_MS = 200 /* … and where nobody has called, unless that is sooner than agreed */
};

struct watched {
    int64_t pid, start;
};

struct mourner {
    const struct lhi_deaths_of *of;
    struct lhi_identity self;
    struct pollfd fds[MOST + 1]; /* the pipe, then the processes */
    struct watched who[MOST + 1];
    size_t n;
    struct watched told[MOST]; /* who was gone before we came, and was told */
    size_t n_told;
    int64_t sounded_at; /* for these */
    size_t n_workers;   /* of the list, wherever they are */
    int64_t looked_at;  /* real time */
};

static bool is_watched(const struct mourner *m, int64_t pid, int64_t start)
{
    for (size_t i = 1; i < m->n; i++)
        if (m->who[i].pid == pid && m->who[i].start == start)
            return true;
    return false;
}

static void forget(struct mourner *m, size_t i)
{
    close(m->fds[i].fd);
    m->n--;
    m->fds[i] = m->fds[m->n];
    m->who[i] = m->who[m->n];
}

/* True: it is gone already. */
static bool watch(struct mourner *m, int64_t pid, int64_t start)
{
    if (pid == m->self.pid || is_watched(m, pid, start))
        return false;
    /* Asked first: the pidfd of a zombie would wake us again and again. */
    if (lhi_process_gone(pid, start))
        return true;
    if (m->n > MOST)
        return false;
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0); /* closed on exec by itself */
    if (fd < 0)
        return errno == ESRCH; /* it went in this very moment */
    m->fds[m->n] = (struct pollfd){.fd = fd, .events = POLLIN};
    m->who[m->n++] = (struct watched){pid, start};
    return false;
}

/* One who was gone before we came is told at once, and only once: where nobody can bury the dead, those
 * who wait and we must not drive each other in a circle. */
static bool is_news(struct mourner *m, const struct lhi_identity *process)
{
    for (size_t i = 0; i < m->n_told; i++)
        if (m->told[i].pid == process->pid && m->told[i].start == process->start)
            return false;
    if (m->n_told == MOST)
        return false;
    m->told[m->n_told++] = (struct watched){process->pid, process->start};
    return true;
}

/* True: it is gone already; not before what it started is gone too does it matter to anybody. */
static bool watch_worker(struct mourner *m, const struct lhi_suspect *worker)
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

/* The list of workers, as it is now. */
static void refresh(struct mourner *m)
{
    struct lhi_suspects workers = {0};
    bool gone = false, news = false;

    if (!m->of->workers(m->of->arg, &workers)) {
        lhi_suspects_clear(&workers);
        return;
    }
    for (size_t i = m->n; i-- > 1;)
        if (!still_known(&workers, &m->who[i]))
            forget(m, i);
    for (size_t i = m->n_told; i-- > 0;)
        if (!still_known(&workers, &m->told[i]))
            m->told[i] = m->told[--m->n_told];
    for (size_t i = 0; i < workers.n; i++) {
        bool dead = watch_worker(m, &workers.suspect[i]);
        gone = gone || dead;
        news = (dead && is_news(m, &workers.suspect[i].process)) || news;
    }
    m->n_workers = workers.n;
    lhi_suspects_clear(&workers);
    if (news || (gone && lhi_mono_ms() - m->sounded_at >= 1000)) {
        m->sounded_at = lhi_mono_ms();
        m->of->sound(m->of->arg);
    }
}

/* False: told to stop. */
static bool read_pipe(struct mourner *m, const struct lhi_deaths *deaths)
{
    char pokes[64];

    if (m->fds[0].revents != 0)
        (void)!read(m->fds[0].fd, pokes, sizeof pokes);
    return !__atomic_load_n(&deaths->stopping, __ATOMIC_ACQUIRE);
}

/* Every worker watches over all: the more there are, the rarer each of them looks. How long until then. */
static int look(struct mourner *m)
{
    int64_t now = lhi_mono_us() / 1000, workers = (int64_t)m->n_workers;
    int64_t too_soon = m->looked_at + workers * GAP_MS - now;

    if (too_soon > 0)
        return (int)too_soon;
    m->looked_at = now;
    refresh(m);
    return (int)(workers * REST_MS > m->of->refresh_ms ? workers * REST_MS : m->of->refresh_ms);
}

static void *mourn(void *arg)
{
    struct lhi_deaths *deaths = arg;
    struct mourner m = {.of = &deaths->of, .n = 1, .sounded_at = -1000};

    lhi_identify(&m.self);
    m.fds[0] = (struct pollfd){.fd = deaths->pipe[0], .events = POLLIN};
    do {
        bool died = false;
        for (size_t i = m.n; i-- > 1;)
            if (m.fds[i].revents != 0) {
                forget(&m, i);
                died = true;
            }
        if (died)
            m.of->sound(m.of->arg);
        int pause = look(&m);
        for (size_t i = 0; i < m.n; i++)
            m.fds[i].revents = 0;
        (void)poll(m.fds, m.n, pause);
    } while (read_pipe(&m, deaths));
    while (m.n > 1)
        forget(&m, m.n - 1);
    return NULL;
}

void lhi_deaths_init(struct lhi_deaths *deaths, const struct lhi_deaths_of *of)
{
    *deaths = (struct lhi_deaths){.of = *of, .pipe = {-1, -1}};
    pthread_mutex_init(&deaths->mutex, NULL);
}

void lhi_deaths_watch(struct lhi_deaths *deaths, uint32_t heard)
{
    pthread_mutex_lock(&deaths->mutex);
    if (!deaths->watching && deaths->pipe[0] < 0 &&
        pipe2(deaths->pipe, O_CLOEXEC | O_NONBLOCK) == 0)
        deaths->watching = lhi_thread_start(&deaths->thread, mourn, deaths);
    /* A worker may have come since the list was last looked at. */
    else if (deaths->watching && heard != deaths->heard)
        (void)!write(deaths->pipe[1], "", 1);
    deaths->heard = heard;
    pthread_mutex_unlock(&deaths->mutex);
}

void lhi_deaths_look(struct lhi_deaths *deaths)
{
    pthread_mutex_lock(&deaths->mutex);
    if (deaths->watching)
        (void)!write(deaths->pipe[1], "", 1);
    pthread_mutex_unlock(&deaths->mutex);
}

void lhi_deaths_stop(struct lhi_deaths *deaths)
{
    if (deaths->watching) {
        /* Not by closing the pipe: a forked child may have a copy, and the thread would wait for its end. */
        __atomic_store_n(&deaths->stopping, true, __ATOMIC_RELEASE);
        (void)!write(deaths->pipe[1], "", 1);
        pthread_join(deaths->thread, NULL);
    }
    for (int i = 0; i < 2; i++)
        if (deaths->pipe[i] >= 0)
            close(deaths->pipe[i]);
    deaths->pipe[0] = deaths->pipe[1] = -1;
    deaths->watching = deaths->stopping = false;
}

void lhi_deaths_clear(struct lhi_deaths *deaths)
{
    lhi_deaths_stop(deaths);
    pthread_mutex_destroy(&deaths->mutex);
}
