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

/* So an operator or a type is the server's own, whatever the role or the database has set. */
#define OUR_PATH "pg_catalog, pg_temp"

enum {
    MOST_CONNS = 8, /* of one handle; the listener's comes on top */
    MOST_HOSTS = 16,
    MOST_SETTINGS = 48,
    ACT_MS = 5000,    /* how long an act may take, where the caller has not said otherwise … */
    SCAN_MS = 60000,  /* … and one that looks at many rows */
    CONNECT_MS = 3000 /* for one host */
};

/* ---- deadlines: real time, whatever a test makes of the clock ---- */

int64_t pg_real_ms(void);
/* Wait until a descriptor is ready; false: the deadline has passed, or the handle is being closed. */
bool pg_await_fd(const struct pg *pg, int fd, short events, int64_t deadline);

/* ---- notice.c: what the server says beside its answers ---- */

struct notice {
    struct notice *next;
    int level;
    int64_t job, token, attempt;
    char *message, *queue, *worker, *reason; /* NULL: none */
    char text[];                             /* all of them live here */
};

struct notices {
    struct notice *first, *last;
    bool unconfirmed; /* a commit did not wait for its standby: it may yet be lost */
};

void pg_notice_keep(struct notices *notices, const PGresult *result);
void pg_notices_log(struct notices *notices, const struct lhi_log *log);
void pg_notices_drop(struct notices *notices);

/* ---- conn.c ---- */

/* A string of libpq, taken apart: what is set, and the hosts to be tried. */
struct target {
    const char *keys[MOST_SETTINGS], *values[MOST_SETTINGS];
    size_t n;
    struct {
        const char *host, *hostaddr, *port; /* NULL: libpq's choice */
    } hosts[MOST_HOSTS];
    size_t n_hosts;
    int64_t connect_ms;
    char name[256]; /* for messages: without its password */
    char database[128];
    struct lhi_arena arena;
};

int pg_target_parse(struct target *target, const char *url, struct lhi_error *err);
void pg_target_clear(struct target *target);

struct conn {
    PGconn *pg;
    struct pg *owner;
    struct conn *next;         /* in the pool */
    int place;                 /* of its descriptor among those of the handle */
    bool pooled;               /* a pooler in between: nothing of a session lasts */
    bool broken;               /* to be closed, not to be lent again */
    bool listens;              /* it is the listener's, and not of the pool */
    bool quiet;                /* its sessions hide notices: they are asked for each time */
    bool isolated;             /* they do not act under READ COMMITTED unless they are told to */
    int64_t cluster, timeline; /* of the server; timeline 0: it is a standby */
    int64_t clock;             /* its time less the real monotonic clock, as it was greeted */
    int64_t idle_since;
    struct notices notices;
    bool prepared[LHI_POSTGRES_COUNT];
    unsigned renewed; /* how often statements had to be prepared anew */
};

/* LH_EUNREACH: this host did not let us in, or was replaced by another. */
int pg_conn_to_host(struct pg *pg, size_t host, int64_t deadline, struct conn **out,
                    struct lhi_error *err);
int pg_fail_replaced(const struct conn *conn, struct lhi_error *err);
void pg_conn_close(struct conn *conn);
bool pg_conn_alive(struct conn *conn);
/* Ask the server to stop what it is doing for this connection; does not wait. */
void pg_conn_cancel(struct conn *conn);

/* ---- hosts.c ---- */

/* LH_EUNREACH: no host let us in. */
int pg_conn_open(struct pg *pg, int64_t deadline, struct conn **out, struct lhi_error *err);
/* Has another server taken over from the one that this connection leads to? */
bool pg_was_replaced(const struct conn *conn);
/* Something speaks against the server that we have: with the next connection all hosts are asked. */
void pg_hosts_recheck(struct pg *pg);

/* ---- the handle ---- */

/* A caller that waits for a connection of the pool. */
struct pool_wait {
    struct pool_wait *next;
    bool for_holder; /* it may use the listener's connection, and does not queue */
};

struct pg {
    struct target target;
    lh_open_opts opts;
    struct lhi_log log;
    int64_t clock;      /* the server's time less the real monotonic clock; atomic */
    int64_t clock_at;   /* when that was found out; atomic */
    bool no_prepare;    /* a pooler was found out late; atomic */
    uint32_t last_host; /* the one that let us in; atomic */
    int64_t last_job;   /* the highest id that was seen; of this server, so it may fall; atomic */
    bool hosts_checked; /* all hosts were asked, nothing speaks against the one we have; atomic */

    /* pool.c */
    pthread_mutex_t mutex;
    pthread_cond_t given_back;
    struct conn *idle;         /* last used first */
    int n_conns, opening;      /* all, and of these still being opened */
    int64_t opened_at;         /* when the last of those was done */
    struct pool_wait *waiting; /* first come, first served */
    struct conn *spare;        /* the listener's connection, while it may be lent … */
    bool spare_lent;           /* … and is */
    int kept_free; /* of a limited number of connections: for the listener; 0 behind a pooler */
    int fds[MOST_CONNS + 2]; /* of all connections, for a forked child to close; -1: none; atomic */
    struct lhi_fork_entry fork;

    /* hosts.c; under the mutex */
    int64_t cluster;  /* the system identifier of the server … */
    int64_t timeline; /* … and the highest that was seen of it: older servers were replaced */

    /* read_event.c; under the mutex */
    struct settled settled;
    /* read_recovery.c; under the mutex */
    struct compared compared;

    /* wake.c */
    struct wake *wake;
    struct lhi_death_watch deaths;
    bool closing; /* nobody waits for anything any more; atomic */
};

/* A connection for one transaction. LH_EBUSY: all are lent out until the deadline. */
int pg_pool_take(struct pg *pg, int64_t deadline, struct conn **out, struct lhi_error *err);
/* The same for a heartbeat or the end of a job: where the number of connections is limited, it does not
 * wait for other kinds of calls. */
int pg_pool_take_for_holder(struct pg *pg, int64_t deadline, struct conn **out,
                            struct lhi_error *err);
void pg_pool_give(struct pg *pg, struct conn *conn);
/* Nobody can listen: the connection that was kept free for the listener is one of the pool. */
void pg_pool_drop_reserve(struct pg *pg);
/* Until it is recalled, others may use the listener's connection. */
void pg_pool_lend(struct pg *pg, struct conn *conn);
void pg_pool_recall(struct pg *pg);
void pg_pool_init(struct pg *pg);
void pg_pool_clear(struct pg *pg);
int pg_pool_enter_fd(struct pg *pg, int fd); /* its place */
void pg_pool_leave_fd(struct pg *pg, int place);

/* ---- call.c ---- */

/* Begin a transaction with the next call; without it every call is one. */
void pg_txn_wrap(struct txn *txn);
int pg_txn_commit(struct txn *txn, struct lhi_error *err);
void pg_txn_rollback(struct txn *txn);
/* Several statements, without parameters and answers. Only in a transaction that was begun. */
int pg_call_script(struct txn *txn, const char *sql, struct lhi_error *err);

/* ---- perform.c ---- */

int pg_perform(void *self, struct lhi_act *acts, size_t n, struct lhi_error *err);
int pg_read(void *self, struct lhi_act *act, struct lhi_error *err);
/* The standby has not confirmed a commit: whether it stands a failover will tell. */
int pg_fail_unconfirmed(struct txn *txn, struct lhi_error *err);
/* One call by the store itself, in a transaction of its own. */
int pg_ask(struct pg *pg, enum lhi_postgres_call which, struct args *args, struct rows *rows,
           struct lhi_error *err);

/* ---- migrate.c ---- */

/* What is there: version 0: nothing of ours. */
struct schema {
    int version;
    bool recovery_due;
};

int pg_schema_look(struct txn *txn, struct schema *out, struct lhi_error *err);
int pg_schema_update(struct txn *txn, struct schema *schema, struct lhi_error *err);

/* ---- wake.c ---- */

bool pg_wake_init(struct pg *pg);
void pg_wake_clear(struct pg *pg);
void pg_wake_busy(struct pg *pg);        /* a claim found something: look soon again */
void pg_wake_maintenance(struct pg *pg); /* a worker came or went */
void pg_wake_begin(struct pg *pg);       /* the listener, unless it runs or cannot */
/* Its connection was lent and is back, or it is to stop. */
void pg_wake_listener(struct pg *pg);
void pg_wake_set_leader(struct pg *pg, int64_t spare_ms); /* 0: we keep the store up for all */
bool pg_wake_is_leader(struct pg *pg);
void pg_resign_leader(struct pg *pg);
bool pg_wake_has_maintainer(struct pg *pg); /* does somebody here wait for what falls due? */
int64_t pg_max_sleep_ms(void *self, bool keeper);
uint32_t pg_ticket(void *self, const lh_claim_opts *opts);
bool pg_wait(void *self, uint32_t ticket, const lh_claim_opts *opts, int64_t timeout_ms);
uint32_t pg_siren(void *self, bool keeper);
bool pg_await_siren(void *self, uint32_t ticket, int64_t timeout_ms);
void pg_wake(void *self);

#endif
