/*
 * pool.c: lends a bounded number of connections, each for one transaction.
 *
 * The last used connection is lent first, so that unneeded ones become idle and are closed. A
 * caller that finds none free waits: only a moment if another may be opened, because opening one
 * costs the server more than most calls; until its deadline if there are enough.
 *
 * A handle with a limit (max_connections) has one connection that only acts of holders (heartbeats,
 * ends of runs) may use while the others are busy, so that a heartbeat never waits for a recovery.
 * If the handle listens, that connection is the listener's, which lends it between two
 * notifications. Other callers are served in order of arrival; otherwise a recovery in batches
 * could keep a claim waiting forever.
 */
#include "store/postgres/wire.h"

#include <time.h>

enum {
    IDLE_MS = 60000,
    MOMENT_MS = 50,    /* wait for a connection to be returned ... */
    OPENING_MS = 1000, /* ... and for one that is being opened */
    WITH_CLAIM_MS =
        1000, /* outcomes with a claim wait this long for a limited number of connections */
};

void pg_pool_init(struct pg *pg)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&pg->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&pg->given_back, &attr);
    pthread_condattr_destroy(&attr);
    for (size_t i = 0; i < sizeof pg->fds / sizeof pg->fds[0]; i++)
        pg->fds[i] = -1;
    pg->kept_free = 1;
}

int pg_pool_enter_fd(struct pg *pg, int fd)
{
    for (int i = 0; i < (int)(sizeof pg->fds / sizeof pg->fds[0]); i++) {
        int none = -1;
        if (__atomic_compare_exchange_n(&pg->fds[i], &none, fd, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return i;
    }
    return -1;
}

void pg_pool_leave_fd(struct pg *pg, int place)
{
    __atomic_store_n(&pg->fds[place], -1, __ATOMIC_RELEASE);
}

/* Connections that were idle for long, except for one. The caller closes them outside of the
 * mutex. */
static struct conn *take_outdated(struct pg *pg)
{
    struct conn *last = pg->idle;
    int64_t now = pg_real_ms();

    while (last != NULL && last->next != NULL && now - last->next->idle_since < IDLE_MS)
        last = last->next;
    if (last == NULL)
        return NULL;
    struct conn *outdated = last->next; /* the rest has been idle for longer */
    last->next = NULL;
    for (struct conn *conn = outdated; conn != NULL; conn = conn->next)
        pg->n_conns--;
    return outdated;
}

static void close_all(struct conn *conns)
{
    while (conns != NULL) {
        struct conn *next = conns->next;
        pg_conn_close(conns);
        conns = next;
    }
}

/* ---- the limit; under the mutex ---- */

static bool is_limited(const struct pg *pg)
{
    return pg->opts.max_connections > 0;
}

/* Connections of the pool, without the listener's. */
static int most_conns(const struct pg *pg)
{
    int most = is_limited(pg) ? (int)pg->opts.max_connections - pg->kept_free : MOST_CONNS;

    return most < MOST_CONNS ? most : MOST_CONNS;
}

static int count_idle(const struct pg *pg)
{
    int n = 0;

    for (const struct conn *conn = pg->idle; conn != NULL; conn = conn->next)
        n++;
    return n;
}

/* May this caller use a connection of the pool, if one is free? */
static bool has_share(const struct pg *pg, const struct pool_wait *wait)
{
    if (!is_limited(pg) || wait->for_holder)
        return true;
    return pg->waiting == wait && pg->n_conns - count_idle(pg) < pg->opts.max_connections - 1;
}

static bool may_open(const struct pg *pg, const struct pool_wait *wait)
{
    return has_share(pg, wait) && pg->n_conns < most_conns(pg);
}

static void queue_up(struct pg *pg, struct pool_wait *wait)
{
    struct pool_wait **end = &pg->waiting;

    if (!is_limited(pg) || wait->for_holder)
        return;
    while (*end != NULL)
        end = &(*end)->next;
    *end = wait;
}

static void leave_queue(struct pg *pg, const struct pool_wait *wait)
{
    struct pool_wait **at = &pg->waiting;

    while (*at != NULL && *at != wait)
        at = &(*at)->next;
    if (*at != NULL)
        *at = wait->next;
    if (is_limited(pg))
        pthread_cond_broadcast(&pg->given_back);
}

/* A connection that this caller may use now, or NULL. */
static struct conn *find_conn(struct pg *pg, const struct pool_wait *wait)
{
    struct conn *conn = has_share(pg, wait) ? pg->idle : NULL;

    if (conn != NULL) {
        pg->idle = conn->next;
    } else if (wait->for_holder && is_limited(pg) && pg->spare != NULL && !pg->spare_lent) {
        conn = pg->spare;
        pg->spare_lent = true;
    }
    return conn;
}

/* With a limit, not all callers wait for the same thing. */
static void signal_returned(struct pg *pg)
{
    if (is_limited(pg))
        pthread_cond_broadcast(&pg->given_back);
    else
        pthread_cond_signal(&pg->given_back);
}

/* How long a caller that arrived at `since` waits for a connection that others use. */
static int64_t patience(const struct pg *pg, const struct pool_wait *wait, int64_t since,
                        int64_t deadline)
{
    if (!may_open(pg, wait))
        return deadline;
    int64_t moment = pg->opening > 0         ? since + OPENING_MS
                     : since > pg->opened_at ? since + MOMENT_MS
                                             : pg->opened_at + MOMENT_MS;
    int64_t most = since + (deadline - since) / 4; /* the rest is for opening a new one */
    return moment < most ? moment : most;
}

/* NULL: none was returned. If the caller may open another, it should. */
static struct conn *await_return(struct pg *pg, const struct pool_wait *wait, int64_t deadline)
{
    int64_t until_ms, since = pg_real_ms();
    struct conn *conn;

    while ((conn = find_conn(pg, wait)) == NULL && (pg->n_conns > 0 || !may_open(pg, wait)) &&
           (until_ms = patience(pg, wait, since, deadline)) > pg_real_ms()) {
        struct timespec until = {.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
        (void)pthread_cond_timedwait(&pg->given_back, &pg->mutex, &until);
    }
    return conn;
}

static void count_out(struct pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    pg->n_conns--;
    signal_returned(pg);
    pthread_mutex_unlock(&pg->mutex);
}

static int open_another(struct pg *pg, int64_t deadline, struct conn **out, struct lhi_error *err)
{
    int rc = pg_conn_open(pg, deadline, out, err);

    pthread_mutex_lock(&pg->mutex);
    pg->opening--;
    pg->opened_at = pg_real_ms();
    pg->n_conns -= rc != LH_OK;
    pthread_cond_broadcast(&pg->given_back);
    pthread_mutex_unlock(&pg->mutex);
    return rc;
}

/* How long the caller waits for a connection that others use. A call that writes outcomes and claims may
 * not use the listener's connection, because the claim could hold up heartbeats there. It gives up early,
 * and its worker then writes the outcomes alone. */
static int64_t wait_until(const struct pg *pg, enum pool_caller caller, int64_t deadline)
{
    int64_t soon = pg_real_ms() + WITH_CLAIM_MS;

    return caller == POOL_OUTCOMES_AND_CLAIM && is_limited(pg) && soon < deadline ? soon : deadline;
}

/* LH_OK with NULL: the caller must open a connection, which is already counted. */
static int choose(struct pg *pg, enum pool_caller caller, int64_t deadline, struct conn **out,
                  struct lhi_error *err)
{
    struct pool_wait wait = {.for_holder = caller == POOL_HOLDER};
    int rc = LH_OK;

    pthread_mutex_lock(&pg->mutex);
    queue_up(pg, &wait);
    *out = await_return(pg, &wait, wait_until(pg, caller, deadline));
    if (*out == NULL && may_open(pg, &wait)) {
        pg->n_conns++;
        pg->opening++;
    } else if (*out == NULL) {
        rc = lhi_fail(err, LH_EBUSY, "store is busy: all %d connections of this handle are in use",
                      is_limited(pg) ? (int)pg->opts.max_connections : MOST_CONNS);
    }
    leave_queue(pg, &wait);
    pthread_mutex_unlock(&pg->mutex);
    return rc;
}

/* The listener itself finds out what is wrong with its connection. */
static void give_spare(struct pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    pg->spare_lent = false;
    pthread_cond_broadcast(&pg->given_back);
    pthread_mutex_unlock(&pg->mutex);
    pg_listener_poke(pg);
}

static bool is_usable(const struct conn *conn)
{
    return !conn->broken && PQstatus(conn->pg) == CONNECTION_OK &&
           PQtransactionStatus(conn->pg) == PQTRANS_IDLE;
}

static void drop(struct pg *pg, struct conn *conn)
{
    if (conn->listens) {
        conn->broken = true;
        give_spare(pg);
        return;
    }
    pg_conn_close(conn);
    count_out(pg);
}

/* The connection that is kept free for holders is the listener's. A worker that always finds a job has not
 * waited for one, so start the listener now. */
static void start_listener(struct pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    bool listener = is_limited(pg) && pg->kept_free > 0;
    pthread_mutex_unlock(&pg->mutex);
    if (listener)
        pg_listener_start(pg);
}

int pg_pool_take_as(struct pg *pg, enum pool_caller caller, int64_t deadline, struct conn **out,
                    struct lhi_error *err)
{
    struct conn *conn;

    if (caller == POOL_HOLDER)
        start_listener(pg);
    for (;;) {
        int rc = choose(pg, caller, deadline, &conn, err);
        if (rc != LH_OK)
            return rc;
        if (conn == NULL)
            return open_another(pg, deadline, out, err);
        if (pg_conn_alive(conn)) {
            conn->next = NULL;
            *out = conn;
            return LH_OK;
        }
        drop(pg, conn);
    }
}

int pg_pool_take(struct pg *pg, int64_t deadline, struct conn **out, struct lhi_error *err)
{
    return pg_pool_take_as(pg, POOL_ANY, deadline, out, err);
}

void pg_pool_give(struct pg *pg, struct conn *conn)
{
    if (conn == NULL)
        return;
    pg_notices_drop(&conn->notices);
    if (!is_usable(conn)) {
        drop(pg, conn);
        return;
    }
    if (conn->listens) {
        give_spare(pg);
        return;
    }
    pthread_mutex_lock(&pg->mutex);
    conn->idle_since = pg_real_ms();
    conn->next = pg->idle;
    pg->idle = conn;
    struct conn *outdated = take_outdated(pg);
    signal_returned(pg);
    pthread_mutex_unlock(&pg->mutex);
    close_all(outdated);
}

/* ---- the listener's connection ---- */

void pg_pool_drop_reserve(struct pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    pg->kept_free = 0;
    pthread_cond_broadcast(&pg->given_back);
    pthread_mutex_unlock(&pg->mutex);
}

void pg_pool_lend(struct pg *pg, struct conn *conn)
{
    conn->listens = true;
    pthread_mutex_lock(&pg->mutex);
    pg->spare = conn;
    if (is_limited(pg))
        pthread_cond_broadcast(&pg->given_back);
    pthread_mutex_unlock(&pg->mutex);
}

void pg_pool_recall(struct pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    pg->spare = NULL; /* cleared first, so that no call borrows it again */
    while (pg->spare_lent)
        (void)pthread_cond_wait(&pg->given_back, &pg->mutex);
    pthread_mutex_unlock(&pg->mutex);
}

void pg_pool_clear(struct pg *pg)
{
    close_all(pg->idle);
    pg->idle = NULL;
    pthread_cond_destroy(&pg->given_back);
    pthread_mutex_destroy(&pg->mutex);
}
