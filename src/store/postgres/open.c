/*
 * open.c: opens and closes a PostgreSQL store; the table of its operations.
 *
 * An open parses the string, connects, refuses a newer schema, and migrates an older one. A
 * database gets our schema only if the caller asks for it. The core then recovers what must be
 * recovered. A handle never gives up: if the server is gone, every act tries to connect again.
 */
#include "store/postgres/wire.h"

#include "base/clock.h"
#include "base/hook.h"

#include <string.h>
#include <unistd.h>

enum { CLOCK_MS = 60000 }; /* interval of the checks of the server's clock */

static void pg_free(struct pg *pg)
{
    pg_pool_clear(pg);
    lhi_forks_hold();
    lhi_forks_remove(&pg->fork);
    lhi_forks_resume();
    pg_target_clear(&pg->target);
    lhi_free(pg);
}

static void pg_close(void *self)
{
    struct pg *pg = self;

    pg_resign_leader(pg);
    __atomic_store_n(&pg->closing, true, __ATOMIC_RELAXED);
    pg_wake_clear(pg);
    pg_free(pg);
}

/* In a forked child, at once: the connections belong to the parent. A message from the child
 * would end the parent's sessions, and a session exists on the server as long as any process has
 * its socket open. */
static void close_inherited_sockets(void *arg)
{
    struct pg *pg = arg;

    for (size_t i = 0; i < sizeof pg->fds / sizeof pg->fds[0]; i++) {
        int fd = __atomic_load_n(&pg->fds[i], __ATOMIC_ACQUIRE);
        if (fd >= 0)
            close(fd);
    }
}

/* ---- the clock ---- */

static void ask_clock(struct pg *pg)
{
    struct rows rows;
    struct lhi_error ignored;
    int64_t asked = pg_real_ms();

    __atomic_store_n(&pg->clock_at, asked,
                     __ATOMIC_RELAXED); /* one thread asks, whatever the result */
    if (pg_ask(pg, LHI_POSTGRES_STORE_CLOCK, NULL, &rows, &ignored) != LH_OK)
        return;
    __atomic_store_n(&pg->clock, pg_row_time(&rows, 0, 0) - (asked + pg_real_ms()) / 2,
                     __ATOMIC_RELAXED);
    pg_rows_free(&rows);
}

int64_t pg_now(struct pg *pg)
{
#ifdef LHI_TEST
    const struct lhi_control *control = lhi_control();
    if (control->frozen || __atomic_load_n(&control->wall_ms, __ATOMIC_RELAXED) != 0)
        return lhi_wall_ms();
#endif
    if (pg_real_ms() - __atomic_load_n(&pg->clock_at, __ATOMIC_RELAXED) > CLOCK_MS)
        ask_clock(pg);
    return __atomic_load_n(&pg->clock, __ATOMIC_RELAXED) + pg_real_ms();
}

static int64_t now(void *self)
{
    return pg_now(self);
}

const lh_open_opts *pg_opts(const struct pg *pg)
{
    return &pg->opts;
}

const struct lhi_log *pg_log(const struct pg *pg)
{
    return &pg->log;
}

const char *pg_name(const struct pg *pg)
{
    return pg->target.name;
}

/* ---- opening ---- */

static const struct lhi_store_ops postgres_ops = {
    .kind = "postgres",
    .clock = CLOCK_BOOTTIME,
    .cheap_claims = true,
    .close = pg_close,
    .perform = pg_perform,
    .read = pg_read,
    .now = now,
    .ticket = pg_ticket,
    .subscribe = pg_subscribe,
    .wait = pg_wait,
    .deaths = pg_deaths,
    .max_sleep_ms = pg_max_sleep_ms,
    .wake = pg_wake,
};

static struct pg *pg_new(const lh_open_opts *opts, const struct lhi_log *log)
{
    struct pg *pg = lhi_calloc(1, sizeof *pg);

    if (pg == NULL)
        return NULL;
    pg->opts = *opts;
    if (pg->opts.busy_ms == 0)
        pg->opts.busy_ms = ACT_MS;
    pg->log = *log;
    pg_pool_init(pg);
    lhi_forks_hold();
    lhi_forks_add(&pg->fork, close_inherited_sockets, pg);
    lhi_forks_resume();
    if (!pg_wake_init(pg)) {
        pg_free(pg);
        return NULL;
    }
    return pg;
}

/* Connect, and see what the database contains. */
static int reach(struct pg *pg, const char *url, struct txn *txn, struct schema *schema,
                 struct lhi_error *err)
{
    int64_t ms = pg->opts.busy_ms > ACT_MS ? pg->opts.busy_ms : ACT_MS;
    int rc = pg_target_parse(&pg->target, url, err);

    *txn = (struct txn){.pg = pg, .deadline = pg_real_ms() + ms};
    if (rc == LH_OK)
        rc = pg_pool_take(pg, txn->deadline, &txn->conn, err);
    return rc == LH_OK ? pg_schema_look(txn, schema, err) : rc;
}

/* Damage that the server knows of. We cannot repair it, so it is reported, and the open
 * continues. */
static int check_health(struct pg *pg, struct lhi_health *health, struct lhi_error *err)
{
    struct lhi_act act = {.verb = LHI_INTEGRITY, .check = {.out = &health->findings}};
    size_t before = health->findings.n;

    if (!health->due || (pg->opts.no_integrity_check && !pg->opts.repair))
        return LH_OK;
    int rc = pg_read(pg, &act, err);
    if (rc != LH_OK)
        return rc;
    health->checked = true;
    health->sound = health->findings.n == before;
    for (size_t i = before; i < health->findings.n; i++)
        lhi_log(&pg->log, LH_LOG_ERROR, "integrity check: %s", health->findings.finding[i].text);
    return LH_OK;
}

int lhi_postgres_open(const char *url, const lh_open_opts *opts, const struct lhi_log *log,
                      struct lhi_store *out, struct lhi_health *health, struct lhi_error *err)
{
    struct schema schema;
    struct txn txn;
    struct pg *pg = pg_new(opts, log);

    if (pg == NULL)
        return lhi_no_memory(err);
    int rc = reach(pg, url, &txn, &schema, err);
    if (rc == LH_OK)
        rc = pg_schema_update(&txn, &schema, err);
    pg_pool_give(pg, txn.conn);
    if (rc == LH_OK && !opts->read_only) {
        health->due = health->due || opts->startup || opts->repair || schema.recovery_due;
        /* A crash of the server leaves rows and counts consistent. To compare them reads every job, and
         * many workers may start at once. */
        health->rows_suspect = opts->repair || schema.recovery_due;
        rc = check_health(pg, health, err);
    }
    if (rc != LH_OK) {
        pg_close(pg);
        return rc;
    }
    out->ops = &postgres_ops;
    out->self = pg;
    return LH_OK;
}

int lhi_postgres_schema_of(const char *url, int *version, struct lhi_error *err)
{
    static const lh_open_opts opts = {.read_only = true};
    static const struct lhi_log silence;
    struct schema schema = {0};
    struct txn txn;
    struct pg *pg = pg_new(&opts, &silence);

    if (pg == NULL)
        return lhi_no_memory(err);
    int rc = reach(pg, url, &txn, &schema, err);
    pg_pool_give(pg, txn.conn);
    pg_close(pg);
    *version = rc == LH_OK ? schema.version : 0;
    return rc;
}
