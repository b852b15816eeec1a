/*
 * hosts.c: chooses one of several hosts.
 *
 * The host of the last successful connect is tried first, so a failover is followed as soon as
 * another host accepts writes. An old primary that is started again accepts writes, too, and nobody
 * would ever see them. So all hosts are asked at the first connect, and again when a commit was not
 * confirmed. The newest timeline wins, and no connection goes to an older one than the newest that
 * was seen.
 */
#include "store/postgres/wire.h"

enum { OTHER_HOST_MS = 1000 }; /* for another host, if one is connected already */

/* Under the mutex. */
static bool is_behind(const struct conn *conn)
{
    const struct pg *pg = conn->owner;

    return conn->timeline != 0 && conn->cluster == pg->cluster && conn->timeline < pg->timeline;
}

bool pg_was_replaced(const struct conn *conn)
{
    struct pg *pg = conn->owner;

    pthread_mutex_lock(&pg->mutex);
    bool behind = is_behind(conn);
    pthread_mutex_unlock(&pg->mutex);
    return behind;
}

void pg_hosts_recheck(struct pg *pg)
{
    __atomic_store_n(&pg->hosts_checked, false, __ATOMIC_RELAXED);
}

static bool is_newer(const struct conn *conn, const struct conn *than)
{
    return conn->cluster == than->cluster && than->timeline != 0 && conn->timeline > than->timeline;
}

/* A deadline after at most this time that leaves equal shares for the other hosts. */
static int64_t share(int64_t ms, int64_t deadline, size_t others)
{
    int64_t now = pg_real_ms();
    int64_t left = (deadline - now) / (int64_t)(others + 1);

    return now + (ms < left ? ms : left);
}

/* Connect to the first host that accepts, starting with `*host`. *unasked: the number of hosts
 * that were not tried. */
static int open_any(struct pg *pg, uint32_t *host, size_t *unasked, int64_t deadline,
                    struct conn **out, struct lhi_error *err)
{
    uint32_t first = *host;
    int rc = LH_EUNREACH;

    *unasked = pg->target.n_hosts;
    for (size_t i = 0; *unasked > 0 && rc == LH_EUNREACH; i++) {
        *host = (uint32_t)((first + i) % pg->target.n_hosts);
        --*unasked;
        rc = pg_conn_to_host(pg, *host, share(pg->target.connect_ms, deadline, *unasked), out, err);
    }
    return rc;
}

/* Has one of the next `unasked` hosts taken over? Then use it instead. The check takes at most
 * half of the remaining time, because the act needs the rest. */
static void check_other_hosts(struct pg *pg, uint32_t *host, size_t unasked, int64_t deadline,
                              struct conn **best)
{
    uint32_t had = *host;
    int64_t until = share(INT64_MAX, deadline, 1);

    for (size_t i = 1; i <= unasked; i++) {
        uint32_t other = (uint32_t)((had + i) % pg->target.n_hosts);
        struct lhi_error ignored;
        struct conn *conn = NULL;

        lhi_error_clear(&ignored);
        if (pg_conn_to_host(pg, other, share(OTHER_HOST_MS, until, unasked - i), &conn, &ignored) !=
            LH_OK)
            continue;
        if (is_newer(conn, *best)) {
            struct conn *older = *best;
            *best = conn;
            *host = other;
            conn = older;
        }
        pg_conn_close(conn);
    }
    __atomic_store_n(&pg->hosts_checked, true, __ATOMIC_RELAXED);
}

static bool is_same(const struct pg *pg, const struct conn *conn)
{
    return conn->cluster == pg->cluster && conn->timeline == pg->timeline;
}

/* False: meanwhile another thread has found a server that has replaced this one. */
static bool adopt(struct pg *pg, uint32_t host, struct conn *conn)
{
    pthread_mutex_lock(&pg->mutex);
    bool behind = is_behind(conn);
    if (!behind && conn->timeline != 0) {
        if (pg->timeline != 0 && !is_same(pg, conn))
            __atomic_store_n(&pg->last_job, 0, __ATOMIC_RELAXED);
        pg->cluster = conn->cluster;
        pg->timeline = conn->timeline;
    }
    pthread_mutex_unlock(&pg->mutex);
    if (behind)
        return false;
    __atomic_store_n(&pg->last_host, host, __ATOMIC_RELAXED);
    __atomic_store_n(&pg->clock, conn->clock, __ATOMIC_RELAXED);
    __atomic_store_n(&pg->clock_at, pg_real_ms(), __ATOMIC_RELAXED);
    conn->place = pg_pool_enter_fd(pg, PQsocket(conn->pg));
    return true;
}

int pg_conn_open(struct pg *pg, int64_t deadline, struct conn **out, struct lhi_error *err)
{
    uint32_t host = __atomic_load_n(&pg->last_host, __ATOMIC_RELAXED);
    struct conn *conn = NULL;
    size_t unasked;
    int rc = open_any(pg, &host, &unasked, deadline, &conn, err);

    if (rc != LH_OK)
        return rc;
    lhi_error_clear(err); /* errors of the hosts before this one */
    if (!__atomic_load_n(&pg->hosts_checked, __ATOMIC_RELAXED))
        check_other_hosts(pg, &host, unasked, deadline, &conn);
    if (!adopt(pg, host, conn)) {
        rc = pg_fail_replaced(conn, err);
        pg_conn_close(conn);
        return rc;
    }
    *out = conn;
    return LH_OK;
}
