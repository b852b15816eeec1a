/*
 * pool.c: a bounded number of connections, lent out for one transaction at a time.
 *
 * The last used is lent first, so that those that are not needed fall idle, and are closed. Who finds
 * none waits for one: for a moment, as another costs the server more than most calls; until his deadline
 * when there are enough of them.
 */
#include "store/postgres/plumb.h"

#include <time.h>

enum {
    IDLE_MS = 60000,
    MOMENT_MS = 50,    /* for one to be given back … */
    OPENING_MS = 1000, /* … and for one that is being opened */
};

void pool_init(struct pg *pg)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&pg->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&pg->given_back, &attr);
    pthread_condattr_destroy(&attr);
    for (size_t i = 0; i < sizeof pg->fds / sizeof pg->fds[0]; i++)
        pg->fds[i] = -1;
}

int pool_enter_fd(struct pg *pg, int fd)
{
    for (int i = 0; i < (int)(sizeof pg->fds / sizeof pg->fds[0]); i++) {
        int none = -1;
        if (__atomic_compare_exchange_n(&pg->fds[i], &none, fd, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return i;
    }
    return -1;
}

void pool_leave_fd(struct pg *pg, int place)
{
    __atomic_store_n(&pg->fds[place], -1, __ATOMIC_RELEASE);
}

/* Those that nobody has needed for long, but one; to be closed outside of the mutex. */
static struct conn *take_outdated(struct pg *pg)
{
    struct conn *last = pg->idle;
    int64_t now = real_ms();

    while (last != NULL && last->next != NULL && now - last->next->idle_since < IDLE_MS)
        last = last->next;
    if (last == NULL)
        return NULL;
    struct conn *outdated = last->next; /* the rest is idle for longer still */
    last->next = NULL;
    for (struct conn *conn = outdated; conn != NULL; conn = conn->next)
        pg->n_conns--;
    return outdated;
}

static void close_all(struct conn *conns)
{
    while (conns != NULL) {
        struct conn *next = conns->next;
        conn_close(conns);
        conns = next;
    }
}

/* Until when whoever came at `since` waits for one that others have. */
static int64_t patience(const struct pg *pg, int64_t since, int64_t deadline)
{
    if (pg->n_conns >= MOST_CONNS)
        return deadline;
    int64_t moment = pg->opening > 0         ? since + OPENING_MS
                     : since > pg->opened_at ? since + MOMENT_MS
                                             : pg->opened_at + MOMENT_MS;
    int64_t most = since + (deadline - since) / 4; /* the rest is for a new one */
    return moment < most ? moment : most;
}

static void await_return(struct pg *pg, int64_t deadline)
{
    int64_t until_ms, since = real_ms();

    while (pg->idle == NULL && pg->n_conns > 0 &&
           (until_ms = patience(pg, since, deadline)) > real_ms()) {
        struct timespec until = {.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
        (void)pthread_cond_timedwait(&pg->given_back, &pg->mutex, &until);
    }
}

static void count_out(struct pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    pg->n_conns--;
    pthread_cond_signal(&pg->given_back);
    pthread_mutex_unlock(&pg->mutex);
}

static int open_another(struct pg *pg, int64_t deadline, struct conn **out, struct lhi_error *err)
{
    int rc = conn_open(pg, deadline, out, err);

    pthread_mutex_lock(&pg->mutex);
    pg->opening--;
    pg->opened_at = real_ms();
    pg->n_conns -= rc != LH_OK;
    pthread_cond_broadcast(&pg->given_back);
    pthread_mutex_unlock(&pg->mutex);
    return rc;
}

int pool_take(struct pg *pg, int64_t deadline, struct conn **out, struct lhi_error *err)
{
    struct conn *conn;

    for (;;) {
        pthread_mutex_lock(&pg->mutex);
        await_return(pg, deadline);
        if (pg->idle == NULL && pg->n_conns >= MOST_CONNS) {
            pthread_mutex_unlock(&pg->mutex);
            return lhi_fail(err, LH_EBUSY,
                            "store is busy: all %d connections of this handle are in use",
                            MOST_CONNS);
        }
        conn = pg->idle;
        if (conn != NULL) {
            pg->idle = conn->next;
        } else {
            pg->n_conns++;
            pg->opening++;
        }
        pthread_mutex_unlock(&pg->mutex);
        if (conn == NULL)
            return open_another(pg, deadline, out, err);
        if (conn_alive(conn)) {
            conn->next = NULL;
            *out = conn;
            return LH_OK;
        }
        conn_close(conn);
        count_out(pg);
    }
}

void pool_give(struct pg *pg, struct conn *conn)
{
    if (conn == NULL)
        return;
    notices_drop(&conn->notices);
    if (conn->broken || PQstatus(conn->pg) != CONNECTION_OK ||
        PQtransactionStatus(conn->pg) != PQTRANS_IDLE) {
        conn_close(conn);
        count_out(pg);
        return;
    }
    pthread_mutex_lock(&pg->mutex);
    conn->idle_since = real_ms();
    conn->next = pg->idle;
    pg->idle = conn;
    struct conn *outdated = take_outdated(pg);
    pthread_cond_signal(&pg->given_back);
    pthread_mutex_unlock(&pg->mutex);
    close_all(outdated);
}

void pool_clear(struct pg *pg)
{
    close_all(pg->idle);
    pg->idle = NULL;
    pthread_cond_destroy(&pg->given_back);
    pthread_mutex_destroy(&pg->mutex);
}
