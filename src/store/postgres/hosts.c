/*
 * hosts.c: which of several servers is the one.
 *
 * The one that let us in last is asked first, so that a failover is followed as soon as another host
 * takes writes. An old primary that comes back takes them, too, and nobody would ever see what is
 * written there. So all hosts are asked at first, and again when a commit was not confirmed; the newest
 * timeline wins, and no connection goes back behind what was seen.
 */
#include "store/postgres/plumb.h"

enum { LOOK_AROUND_MS = 1000 }; /* for a host that is asked though there is one */

bool was_replaced(const struct conn *conn)
{
    const struct pg *pg = conn->owner;

    return conn->timeline != 0 &&
           conn->cluster == __atomic_load_n(&pg->cluster, __ATOMIC_RELAXED) &&
           conn->timeline < __atomic_load_n(&pg->timeline, __ATOMIC_RELAXED);
}

void hosts_doubt(struct pg *pg)
{
    __atomic_store_n(&pg->looked_around, false, __ATOMIC_RELAXED);
}

static bool is_newer(const struct conn *conn, const struct conn *than)
{
    return conn->cluster == than->cluster && than->timeline != 0 && conn->timeline > than->timeline;
}

static int64_t sooner(int64_t ms, int64_t deadline)
{
    int64_t until = real_ms() + ms;
    return until < deadline ? until : deadline;
}

/* The first that lets us in, from the `*host`-th on. */
static int open_any(struct pg *pg, uint32_t *host, int64_t deadline, struct conn **out,
                    struct lhi_error *err)
{
    uint32_t first = *host;
    int rc = LH_EUNREACH;

    for (size_t i = 0; i < pg->target.n_hosts && rc == LH_EUNREACH; i++) {
        *host = (uint32_t)((first + i) % pg->target.n_hosts);
        rc = conn_to_host(pg, *host, sooner(pg->target.connect_ms, deadline), out, err);
    }
    return rc;
}

/* Is there another that has taken over? Then that one is had instead. */
static void look_around(struct pg *pg, uint32_t *host, int64_t deadline, struct conn **best)
{
    uint32_t had = *host;

    for (size_t i = 1; i < pg->target.n_hosts; i++) {
        uint32_t other = (uint32_t)((had + i) % pg->target.n_hosts);
        struct lhi_error ignored;
        struct conn *conn = NULL;

        lhi_error_clear(&ignored);
        if (conn_to_host(pg, other, sooner(LOOK_AROUND_MS, deadline), &conn, &ignored) != LH_OK)
            continue;
        if (is_newer(conn, *best)) {
            struct conn *older = *best;
            *best = conn;
            *host = other;
            conn = older;
        }
        conn_close(conn);
    }
    __atomic_store_n(&pg->looked_around, true, __ATOMIC_RELAXED);
}

static void adopt(struct pg *pg, uint32_t host, struct conn *conn)
{
    __atomic_store_n(&pg->last_host, host, __ATOMIC_RELAXED);
    __atomic_store_n(&pg->clock, conn->clock, __ATOMIC_RELAXED);
    __atomic_store_n(&pg->clock_at, real_ms(), __ATOMIC_RELAXED);
    if (conn->timeline != 0) {
        __atomic_store_n(&pg->cluster, conn->cluster, __ATOMIC_RELAXED);
        __atomic_store_n(&pg->timeline, conn->timeline, __ATOMIC_RELAXED);
    }
    conn->place = pool_enter_fd(pg, PQsocket(conn->pg));
}

int conn_open(struct pg *pg, int64_t deadline, struct conn **out, struct lhi_error *err)
{
    uint32_t host = __atomic_load_n(&pg->last_host, __ATOMIC_RELAXED);
    int rc = open_any(pg, &host, deadline, out, err);

    if (rc != LH_OK)
        return rc;
    lhi_error_clear(err); /* what the hosts before this one said */
    if (!__atomic_load_n(&pg->looked_around, __ATOMIC_RELAXED))
        look_around(pg, &host, deadline, out);
    adopt(pg, host, *out);
    return LH_OK;
}
