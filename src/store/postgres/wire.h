/*
 * wire.h: connections and what goes over them, for conn.c, hosts.c, pool.c, call.c, perform.c, wake.c,
 * open.c and migrate.c. The acts and reads need only pg.h.
 */
#ifndef LHI_PG_WIRE_H
#define LHI_PG_WIRE_H

#include "base/forks.h"
#include "store/death_watch.h"
#include "store/postgres/pg.h"

#include <pthread.h>

/* With this search_path, names of operators and types mean the server's own, whatever a role or
 * database sets. */
#define OUR_PATH "pg_catalog, pg_temp"

enum {
    MOST_CONNS = 8, /* per handle, without the listener's */
    MOST_HOSTS = 16,
    MOST_SETTINGS = 48,
    ACT_MS = 5000,    /* default time limit of an act */
    SCAN_MS = 60000,  /* ... and of an act that scans many rows */
    CONNECT_MS = 3000 /* for one host */
};

/* ---- deadlines: in real time, even if a test replaces the clock ---- */

int64_t pg_real_ms(void);
/* Wait until a descriptor is ready. False: the deadline has passed, or the handle is being
 * closed. */
bool pg_await_fd(const struct pg *pg, int fd, short events, int64_t deadline);

/* ---- notice.c: notices and warnings of the server ---- */

struct notice {
    struct notice *next;
    int level;
    int64_t job, token, attempt;
    char *message, *queue, *worker, *reason; /* NULL: none */
    char text[];                             /* memory of all these strings */
};

struct notices {
    struct notice *first, *last;
    bool unconfirmed; /* a commit did not wait for its standby and may still be lost */
};

void pg_notice_keep(struct notices *notices, const PGresult *result);
void pg_notices_log(struct notices *notices, const struct lhi_log *log);
void pg_notices_drop(struct notices *notices);

/* ---- conn.c ---- */

/* A parsed conninfo string: its settings, and the hosts to try. */
struct target {
    const char *keys[MOST_SETTINGS], *values[MOST_SETTINGS];
    size_t n;
    struct {
        const char *host, *hostaddr, *port; /* NULL: libpq's default */
    } hosts[MOST_HOSTS];
    size_t n_hosts;
    int64_t connect_ms;
    char name[256]; /* for messages: without the password */
    char database[128];
    struct lhi_arena arena;
};

int pg_target_parse(struct target *target, const char *url, struct lhi_error *err);
void pg_target_clear(struct target *target);

struct conn {
    PGconn *pg;
    struct pg *owner;
    struct conn *next; /* next connection in the pool */
    int place;         /* index of its descriptor in pg->fds */
    bool pooled;       /* there is a pooler in between: no session state is kept */
    bool broken;       /* to be closed, not to be used again */
    bool listens;      /* it is the listener's and not part of the pool */
    bool quiet;        /* the pooler's sessions hide notices: each transaction asks for them */
    /* The pooler's sessions do not default to READ COMMITTED: each transaction asks for it. */
    bool isolated;
    int64_t cluster, timeline; /* of the server; timeline 0: it is a standby */
    int64_t clock;             /* server time minus real monotonic time at connect */
    int64_t idle_since;
    struct notices notices;
    bool prepared[LHI_POSTGRES_COUNT];
    unsigned renewed; /* how often statements had to be prepared again */
};

/* Connect to one host. LH_EUNREACH: it refused the connection, or another server has replaced
 * it. */
int pg_conn_to_host(struct pg *pg, size_t host, int64_t deadline, struct conn **out,
                    struct lhi_error *err);
int pg_fail_replaced(const struct conn *conn, struct lhi_error *err);
void pg_conn_close(struct conn *conn);
bool pg_conn_alive(struct conn *conn);
/* Ask the server to cancel the current statement of this connection; does not wait. */
void pg_conn_cancel(struct conn *conn);

/* ---- hosts.c ---- */

/* Connect to the first suitable host. LH_EUNREACH: there is none. */
int pg_conn_open(struct pg *pg, int64_t deadline, struct conn **out, struct lhi_error *err);
/* Has another server replaced the one of this connection? */
bool pg_was_replaced(const struct conn *conn);
/* The current server may have been replaced: check all hosts at the next connect. */
void pg_hosts_recheck(struct pg *pg);

/* ---- the handle ---- */

/* A caller that waits for a connection of the pool. */
struct pool_wait {
    struct pool_wait *next;
    bool for_holder; /* may use the listener's connection, and does not queue */
};

struct pg {
    struct target target;
    lh_open_opts opts;
    struct lhi_log log;
    int64_t clock;      /* server time minus real monotonic time; atomic */
    int64_t clock_at;   /* when `clock` was measured; atomic */
    bool no_prepare;    /* a pooler was recognized late: prepare no statements; atomic */
    uint32_t last_host; /* host of the last successful connect; atomic */
    int64_t last_job;   /* highest job id seen on this server; a failover may lower it; atomic */
    bool hosts_checked; /* all hosts were checked since the last doubt; atomic */

    /* pool.c */
    pthread_mutex_t mutex;
    pthread_cond_t given_back;
    struct conn *idle;         /* the last used is first */
    int n_conns, opening;      /* all connections, and those being opened */
    int64_t opened_at;         /* time of the last completed open */
    struct pool_wait *waiting; /* in order of arrival */
    struct conn *spare;        /* the listener's connection while it may be lent ... */
    bool spare_lent;           /* ... and whether it is lent */
    /* Connections kept free for the listener if their number is limited; 0 behind a pooler. */
    int kept_free;
    int fds[MOST_CONNS +
            2]; /* descriptors of all connections, which a forked child closes; -1: none; atomic */
    struct lhi_fork_entry fork;

    /* hosts.c; under the mutex */
    int64_t cluster; /* system identifier of the server ... */
    int64_t
        timeline; /* ... and its highest timeline seen: servers with a lower one were replaced */

    /* reads/events.c; under the mutex */
    struct event_watermark watermark;
    /* reads/recovery.c; under the mutex */
    struct clock_sample clock_sample;

    /* wake.c */
    struct wake *wake;
    struct lhi_death_watch deaths;
    bool closing; /* all waits end at once; atomic */
};

/* Take a connection for one transaction. LH_EBUSY: all were in use until the deadline. */
int pg_pool_take(struct pg *pg, int64_t deadline, struct conn **out, struct lhi_error *err);
/* The same for a certain caller; it matters only if the number of connections is limited. */
enum pool_caller {
    POOL_ANY,
    POOL_OUTCOMES_AND_CLAIM, /* gives up after a second */
    POOL_HOLDER              /* heartbeats and outcomes: does not wait behind other calls */
};
int pg_pool_take_as(struct pg *pg, enum pool_caller caller, int64_t deadline, struct conn **out,
                    struct lhi_error *err);
void pg_pool_give(struct pg *pg, struct conn *conn);
/* There is no listener: the connection that was kept free for it belongs to the pool. */
void pg_pool_drop_reserve(struct pg *pg);
/* Let others use the listener's connection until it is recalled. */
void pg_pool_lend(struct pg *pg, struct conn *conn);
void pg_pool_recall(struct pg *pg);
void pg_pool_init(struct pg *pg);
void pg_pool_clear(struct pg *pg);
int pg_pool_enter_fd(struct pg *pg, int fd); /* returns its index */
void pg_pool_leave_fd(struct pg *pg, int place);

/* ---- call.c ---- */

/* Begin a transaction with the next call. Without this, every call is a transaction. */
void pg_txn_wrap(struct txn *txn);
int pg_txn_commit(struct txn *txn, struct lhi_error *err);
void pg_txn_rollback(struct txn *txn);
/* Run several statements without parameters and results. Only in a transaction that has begun. */
int pg_call_script(struct txn *txn, const char *sql, struct lhi_error *err);

/* ---- perform.c ---- */

int pg_perform(void *self, struct lhi_act *acts, size_t n, struct lhi_error *err);
int pg_read(void *self, struct lhi_act *act, struct lhi_error *err);
/* The standby did not confirm a commit, so a failover may lose it: the outcome is unknown. */
int pg_fail_unconfirmed(struct txn *txn, struct lhi_error *err);
/* One call by the store itself, in a transaction of its own. */
int pg_ask(struct pg *pg, enum lhi_postgres_call which, struct args *args, struct rows *rows,
           struct lhi_error *err);

/* ---- migrate.c ---- */

/* What the database contains; version 0: no leasehold schema. */
struct schema {
    int version;
    bool recovery_due;
};

int pg_schema_look(struct txn *txn, struct schema *out, struct lhi_error *err);
int pg_schema_update(struct txn *txn, struct schema *schema, struct lhi_error *err);

/* ---- wake.c: wake-ups of calls that wait for jobs ---- */

bool pg_wake_init(struct pg *pg);
void pg_wake_clear(struct pg *pg);
uint32_t pg_ticket(void *self, const struct lhi_topic *topic);
enum lhi_subscribed pg_subscribe(void *self, const struct lhi_topic *topic);
bool pg_wait(void *self, const struct lhi_topic *topic, uint32_t ticket, int64_t timeout_ms);
int64_t pg_max_sleep_ms(void *self, enum lhi_wake_on on);
void pg_wake(void *self);

/* ---- listener.c: the thread that hears what the database notifies ---- */

/* Start it, unless it runs or cannot. */
void pg_listener_start(struct pg *pg);
/* Its connection was lent and is back. */
void pg_listener_poke(struct pg *pg);
void pg_listener_stop(struct pg *pg);

/* ---- leader.c: what falls due, who runs maintenance, and deaths ---- */

uint32_t pg_deaths(void *self);
void pg_watch_deaths(struct pg *pg);
void pg_workers_changed(struct pg *pg); /* one came or went: watch it, or no more */
void pg_set_leader(struct pg *pg,
                   int64_t follower_ms); /* 0: this handle runs maintenance for all */
void pg_resign_leader(struct pg *pg);
/* Who this handle is among all that wait for maintenance. */
void pg_handle_name(const struct pg *pg, char *out, size_t len);
bool pg_has_maintainer(struct pg *pg); /* does a thread of this handle wait for maintenance? */

#endif
