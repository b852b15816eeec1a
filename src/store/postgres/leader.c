/*
 * leader.c: maintenance of a store that many processes share.
 *
 * One handle is the leader: it polls for what falls due, and is notified of what will within a
 * second. The others are followers: they poll rarely, and at once when the leader resigns. A handle
 * learns from its own poll which it is (leasehold.poll). The death watch notices when the process
 * of a worker on this machine has ended.
 */
#include "store/postgres/wake.h"

enum {
    REFRESH_MS = 10000,   /* interval for reading the list of workers */
    MAINTAINED_MS = 2000, /* a thread that waited for maintenance waits again within this time */
    RESIGN_MS = 500,      /* time limit of the resignation when a handle is closed */
};

/* ---- who maintains ---- */

/* Does a thread of this handle wait for maintenance, or did it until a moment ago? */
bool pg_is_maintained(const struct wake *wake)
{
    return wake->maintainers > 0 || pg_real_ms() < wake->maintained_until;
}

void pg_end_maintainer(struct wake *wake)
{
    wake->maintainers--;
    wake->maintained_until = pg_real_ms() + MAINTAINED_MS;
}

bool pg_has_maintainer(struct pg *pg)
{
    pthread_mutex_lock(&pg->wake->mutex);
    bool has = pg_is_maintained(pg->wake);
    pthread_mutex_unlock(&pg->wake->mutex);
    return has;
}

void pg_set_leader(struct pg *pg, int64_t follower_ms)
{
    pthread_mutex_lock(&pg->wake->mutex);
    pg->wake->is_leader = follower_ms == 0;
    pg->wake->follower_ms = follower_ms;
    pthread_mutex_unlock(&pg->wake->mutex);
}

void pg_handle_name(const struct pg *pg, char *out, size_t len)
{
    struct lhi_identity self;

    lhi_identify(&self);
    lhi_format(out, len, "%s:%s:%lld:%lld:%p", self.machine, self.boot, (long long)self.pid,
               (long long)self.start, (const void *)pg);
}

static bool is_leader(struct pg *pg)
{
    pthread_mutex_lock(&pg->wake->mutex);
    bool leads = pg->wake->is_leader;
    pthread_mutex_unlock(&pg->wake->mutex);
    return leads;
}

/* If the server can be reached, the followers are notified at once; otherwise they notice later. */
void pg_resign_leader(struct pg *pg)
{
    struct txn txn = {.pg = pg, .deadline = pg_real_ms() + RESIGN_MS};
    struct args args = {0};
    struct lhi_error ignored;
    char name[200];

    if (!is_leader(pg) || pg_pool_take(pg, txn.deadline, &txn.conn, &ignored) != LH_OK)
        return;
    pg_handle_name(pg, name, sizeof name);
    pg_arg_text(&args, name);
    (void)pg_call(&txn, LHI_POSTGRES_RESIGN_LEADER, &args, NULL, &ignored);
    pg_pool_give(pg, txn.conn);
}

/* ---- notifications; under the mutex ---- */

/* Waits for a job are woken, too, because a claim recovers. */
void pg_wake_due(struct wake *wake)
{
    wake->due++;
    pg_wake_all(wake);
}

/* Followers leave it to the leader. */
void pg_hear_due(struct wake *wake)
{
    if (wake->follower_ms == 0 || !pg_is_maintained(wake))
        pg_wake_due(wake);
}

void pg_hear_leader_left(struct wake *wake)
{
    wake->follower_ms = 0;
    wake->due++;
    pthread_cond_broadcast(&wake->changed);
}

void pg_note_death(struct wake *wake)
{
    wake->deaths++;
    pg_wake_due(wake);
}

/* ---- deaths ---- */

uint32_t pg_deaths(void *self)
{
    struct pg *pg = self;

    pthread_mutex_lock(&pg->wake->mutex);
    uint32_t deaths = pg->wake->deaths;
    pthread_mutex_unlock(&pg->wake->mutex);
    return deaths;
}

void pg_watch_deaths(struct pg *pg)
{
    if (!pg->opts.read_only && !pg->opts.no_recovery)
        lhi_death_watch_start(&pg->deaths, pg_deaths(pg));
}

void pg_workers_changed(struct pg *pg)
{
    lhi_death_watch_refresh(&pg->deaths);
}

static bool workers(void *arg, struct lhi_suspects *out)
{
    struct lhi_act act = {.verb = LHI_WORKER_JUDGE, .suspects = out};
    struct lhi_error ignored;

    return pg_read(arg, &act, &ignored) == LH_OK;
}

void pg_leader_init(struct pg *pg)
{
    lhi_death_watch_init(
        &pg->deaths, &(struct lhi_death_watch_of){
                         .arg = pg, .workers = workers, .wake = pg_wake, .refresh_ms = REFRESH_MS});
}
