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
#include "store/sqlite/db.h"

#include "base/clock.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 250, REFRESH_MS = 5000 }; /* who comes sounds the siren: this is the net */

struct watched {
    int64_t pid, start;
};

struct mourner {
    struct db *db;
    struct conn conn;
    struct lhi_identity self;
    struct pollfd fds[MOST + 1]; /* the pipe, then the processes */
    struct watched who[MOST + 1];
    size_t n;
    struct watched told[MOST]; /* who was gone before we came, and was told */
    size_t n_told;
    int64_t sounded_at; /* for these */
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
    struct lhi_error ignored;
    bool gone = false, news = false;

    if (m->conn.db == NULL &&
        conn_open(&m->conn, m->db->file, SQLITE_OPEN_READONLY, &ignored) != LH_OK)
        conn_close(&m->conn);
    if (m->conn.db == NULL ||
        read_suspects(&m->conn, LHI_SQL_WORKER_JUDGE, 0, &workers, &ignored) != LH_OK) {
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
    lhi_suspects_clear(&workers);
    if (news || (gone && lhi_mono_ms() - m->sounded_at >= 1000)) {
        m->sounded_at = lhi_mono_ms();
        side_sound_siren(&m->db->side);
    }
}

/* False: told to stop. */
static bool read_pipe(struct mourner *m)
{
    char pokes[64];

    if (m->fds[0].revents == 0)
        return true;
    return read(m->fds[0].fd, pokes, sizeof pokes) > 0;
}

static void *mourn(void *arg)
{
    struct db *db = arg;
    struct mourner m = {.db = db, .n = 1, .sounded_at = -1000};

    lhi_identify(&m.self);
    m.fds[0] = (struct pollfd){.fd = db->deaths_pipe[0], .events = POLLIN};
    do {
        bool died = false;
        for (size_t i = m.n; i-- > 1;)
            if (m.fds[i].revents != 0) {
                forget(&m, i);
                died = true;
            }
        if (died)
            side_sound_siren(&db->side);
        refresh(&m);
        for (size_t i = 0; i < m.n; i++)
            m.fds[i].revents = 0;
        (void)poll(m.fds, m.n, REFRESH_MS);
    } while (read_pipe(&m));
    while (m.n > 1)
        forget(&m, m.n - 1);
    conn_close(&m.conn);
    return NULL;
}

void deaths_watch(struct db *db)
{
    uint32_t heard = side_siren(&db->side);

    if (db->opts.read_only || db->opts.no_recovery)
        return;
    pthread_mutex_lock(&db->deaths_mutex);
    if (!db->mourning && db->deaths_pipe[0] < 0 &&
        pipe2(db->deaths_pipe, O_CLOEXEC | O_NONBLOCK) == 0)
        db->mourning = lhi_thread_start(&db->mourner, mourn, db);
    /* A worker may have come since the list was last looked at. */
    else if (db->mourning && heard != db->siren_heard)
        (void)!write(db->deaths_pipe[1], "", 1);
    db->siren_heard = heard;
    pthread_mutex_unlock(&db->deaths_mutex);
}

void deaths_stop(struct db *db)
{
    if (db->mourning) {
        close(db->deaths_pipe[1]);
        db->deaths_pipe[1] = -1;
        pthread_join(db->mourner, NULL);
    }
    for (int i = 0; i < 2; i++)
        if (db->deaths_pipe[i] >= 0)
            close(db->deaths_pipe[i]);
    db->deaths_pipe[0] = db->deaths_pipe[1] = -1;
    db->mourning = false;
}
