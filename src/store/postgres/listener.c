/*
 * listener.c: the thread that receives notifications of the database, on a connection of its own.
 *
 * Other threads may borrow the connection while it is idle (pool.c). Behind a pooler listening is
 * impossible, so waits poll.
 */
#include "store/postgres/wake.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum {
    AGAIN_MS = 50, /* pause before the listener connects again; doubled ... */
    AGAIN_MOST_MS = 1000,
};

static void drain_pipe(const struct wake *wake)
{
    char bytes[64];

    while (read(wake->pipe[0], bytes, sizeof bytes) > 0)
        continue;
}

/* Waits up to `ms`. False: the listener must stop. */
static bool pause_listening(const struct wake *wake, int64_t ms)
{
    struct pollfd poked = {.fd = wake->pipe[0], .events = POLLIN};

    if (poll(&poked, 1, (int)ms) > 0)
        drain_pipe(wake);
    return !__atomic_load_n(&wake->stopping, __ATOMIC_RELAXED);
}

static bool begin_listening(struct pg *pg, struct conn *conn)
{
    struct txn txn = {.pg = pg, .conn = conn, .deadline = pg_real_ms() + pg->opts.busy_ms};
    struct lhi_error ignored;

    return pg_call_script(&txn, "LISTEN leasehold", &ignored) == LH_OK;
}

/* Notifications before this were lost, so wake all waits. A gap may also have hidden a death. */
static void set_listening(struct wake *wake, bool listening, bool gap)
{
    pthread_mutex_lock(&wake->mutex);
    wake->listening = listening;
    pg_forget_subscriptions(wake);
    if (gap)
        pg_note_death(wake);
    else
        pg_wake_due(wake);
    pthread_mutex_unlock(&wake->mutex);
}

static void set_pooled(struct wake *wake)
{
    pthread_mutex_lock(&wake->mutex);
    wake->pooled = true;
    pg_wake_due(wake);
    pthread_mutex_unlock(&wake->mutex);
}

static void take_notifications(struct pg *pg, PGconn *from)
{
    struct wake *wake = pg->wake;
    PGnotify *notify;
    bool workers = false;

    pthread_mutex_lock(&wake->mutex);
    while ((notify = PQnotifies(from)) != NULL) {
        pg_wake_name(wake, notify->extra);
        if (strcmp(notify->extra, PG_DUE_NAME) == 0)
            pg_hear_due(wake);
        else if (strcmp(notify->extra, PG_LEADER_LEFT_NAME) == 0)
            pg_hear_leader_left(wake);
        workers = workers || strcmp(notify->extra, PG_WORKER_NAME) == 0;
        PQfreemem(notify);
    }
    pthread_mutex_unlock(&wake->mutex);
    if (workers)
        pg_workers_changed(pg);
}

/* Returns when the connection is lost; false: the listener must stop. */
static bool listen_on(struct pg *pg, struct conn *conn)
{
    const struct wake *wake = pg->wake;
    struct pollfd fds[2] = {{.fd = PQsocket(conn->pg), .events = POLLIN},
                            {.fd = wake->pipe[0], .events = POLLIN}};

    for (;;) {
        take_notifications(pg, conn->pg);
        pg_notices_drop(&conn->notices);
        pg_pool_lend(pg, conn);
        int n = poll(fds, 2, -1), why = errno;
        pg_pool_recall(
            pg); /* notifications that arrived while it was lent are read with the rest */
        if (fds[1].revents != 0)
            drain_pipe(wake);
        if (__atomic_load_n(&wake->stopping, __ATOMIC_RELAXED))
            return false;
        if ((n < 0 && why != EINTR) || conn->broken || PQconsumeInput(conn->pg) == 0)
            return true;
    }
}

static void *listener(void *arg)
{
    struct pg *pg = arg;
    struct wake *wake = pg->wake;
    int64_t again = AGAIN_MS;
    bool go_on = true, gap = false;

    while (go_on) {
        struct conn *conn = NULL;
        struct lhi_error ignored;
        int rc = pg_conn_open(pg, pg_real_ms() + (int64_t)pg->target.n_hosts * CONNECT_MS, &conn,
                              &ignored);
        if (rc == LH_OK && conn->pooled) {
            pg_conn_close(conn);
            pg_pool_drop_reserve(pg);
            set_pooled(wake);
            return NULL;
        }
        if (rc == LH_OK && begin_listening(pg, conn)) {
            set_listening(wake, true, gap);
            again = AGAIN_MS;
            go_on = listen_on(pg, conn);
        }
        set_listening(wake, false, true);
        gap = true;
        pg_conn_close(conn);
        go_on = go_on && pause_listening(wake, again);
        again = again * 2 < AGAIN_MOST_MS ? again * 2 : AGAIN_MOST_MS;
    }
    return NULL;
}

void pg_listener_start(struct pg *pg)
{
    struct wake *wake = pg->wake;

    pthread_mutex_lock(&wake->mutex);
    if (!wake->pooled && !pg->opts.read_only && !wake->started &&
        pipe2(wake->pipe, O_CLOEXEC | O_NONBLOCK) == 0) {
        wake->started = lhi_thread_start(&wake->listener, listener, pg);
        if (!wake->started) {
            close(wake->pipe[0]);
            close(wake->pipe[1]);
            wake->pipe[0] = wake->pipe[1] = -1;
        }
    }
    pthread_mutex_unlock(&wake->mutex);
}

void pg_listener_poke(struct pg *pg)
{
    (void)!write(pg->wake->pipe[1], "", 1);
}

void pg_listener_stop(struct pg *pg)
{
    struct wake *wake = pg->wake;

    if (!wake->started)
        return;
    __atomic_store_n(&wake->stopping, true, __ATOMIC_RELAXED);
    pg_listener_poke(pg); /* not by closing the pipe, because a forked child may have a copy */
    pthread_join(wake->listener, NULL);
    close(wake->pipe[0]);
    close(wake->pipe[1]);
}
