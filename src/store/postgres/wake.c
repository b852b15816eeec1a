/*
 * wake.c: wake-ups of calls that wait for jobs.
 *
 * A process subscribes to a queue by a row in the database (leasehold.subscribe). The next transaction that makes a job
 * pending there notifies all listeners and ends the subscription. Every process with a listener (listener.c) hears
 * that, so it knows without asking whether a queue is still subscribed to. When to subscribe, poll and sleep is
 * decided by core/wait.c.
 */
#include "store/postgres/wake.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_NAMES = 64,
    SUBSCRIBED_MS = 25000, /* leasehold.subscribe promises 30 s */
    COMMITS_MS = 100,      /* poll interval of waits for any commit, which no commit notifies */
    FOLLOWER_MS =
        4500, /* time between two polls of a claim in a process where another thread waits for maintenance */
    LONGEST_MS = 86400000,
};

/* ---- subscriptions ---- */

static struct subscription *find(struct wake *wake, const char *name)
{
    for (size_t i = 0; i < wake->n; i++)
        if (strcmp(wake->subscriptions[i].name, name) == 0)
            return &wake->subscriptions[i];
    return NULL;
}

/* NULL: out of memory; then its waiters poll. */
static struct subscription *find_or_add(struct wake *wake, const char *name)
{
    struct subscription *found = find(wake, name);

    if (found != NULL || strlen(name) >= sizeof found->name)
        return found;
    if (wake->n == wake->room) {
        size_t room = wake->room ? wake->room * 2 : 8;
        struct subscription *grown = lhi_realloc(wake->subscriptions, room * sizeof *grown);
        if (grown == NULL)
            return NULL;
        wake->subscriptions = grown;
        wake->room = room;
    }
    found = &wake->subscriptions[wake->n++];
    *found = (struct subscription){0};
    lhi_format(found->name, sizeof found->name, "%s", name);
    return found;
}

/* The names to which a waiter subscribes. */
struct names {
    const char *name[MOST_NAMES + 1];
    size_t n;
    char text[MOST_NAMES][264];
};

/* The queues of a claim; or QUEUE/KIND for each pair, if it takes only some kinds. */
static void name_jobs(const lh_claim_opts *opts, struct names *names)
{
    size_t n_kinds = opts->n_kinds;

    names->n = 0;
    if (n_kinds == 0 || opts->n_queues * n_kinds > MOST_NAMES) { /* any kind wakes it */
        for (size_t i = 0; i < opts->n_queues && i < MOST_NAMES; i++)
            names->name[names->n++] = opts->queues[i];
        return;
    }
    for (size_t i = 0; i < opts->n_queues * n_kinds; i++) {
        lhi_format(names->text[i], sizeof names->text[i], "%s/%s", opts->queues[i / n_kinds],
                   opts->kinds[i % n_kinds]);
        names->name[names->n++] = names->text[i];
    }
}

static void name_topic(const struct wake *wake, const struct lhi_topic *topic, struct names *names)
{
    names->n = 0;
    if (topic->on == LHI_ON_JOBS)
        name_jobs(topic->opts, names);
    if (topic->on == LHI_ON_MAINTENANCE || !pg_is_maintained(wake))
        names->name[names->n++] = PG_DUE_NAME;
}

static uint32_t wakeups_of(struct wake *wake, const struct names *names)
{
    uint32_t wakeups = wake->all;

    for (size_t i = 0; i < names->n; i++) {
        const struct subscription *s = find_or_add(wake, names->name[i]);
        wakeups += s != NULL ? s->wakeups : 0;
    }
    return wakeups;
}

static uint32_t ticket(struct wake *wake, const struct lhi_topic *topic)
{
    struct names names;

    if (topic->on == LHI_ON_MAINTENANCE)
        return wake->due;
    if (topic->on == LHI_ON_COMMITS)
        return wake->all;
    name_jobs(topic->opts, &names);
    return wakeups_of(wake, &names);
}

void pg_wake_all(struct wake *wake)
{
    wake->all++;
    pthread_cond_broadcast(&wake->changed);
}

void pg_forget_subscriptions(struct wake *wake)
{
    for (size_t i = 0; i < wake->n; i++)
        wake->subscriptions[i].until = 0;
}

void pg_wake_name(struct wake *wake, const char *name)
{
    struct subscription *s = find(wake, name);

    if (s != NULL) {
        s->wakeups++;
        s->until = 0;
    }
    pthread_cond_broadcast(&wake->changed);
}

/* ---- subscribe, wait ---- */

/* Does this process know of no subscription to one of the names? */
static bool lacks_one(struct wake *wake, const struct names *names)
{
    int64_t now = pg_real_ms();

    for (size_t i = 0; i < names->n; i++) {
        const struct subscription *s = find_or_add(wake, names->name[i]);
        if (s == NULL || s->until <= now)
            return true;
    }
    return false;
}

/* Releases the mutex for a while. */
static enum lhi_subscribed subscribe(struct pg *pg, const struct names *names)
{
    struct wake *wake = pg->wake;
    struct args args = {0};
    struct rows rows;
    struct lhi_error ignored;
    int64_t until = pg_real_ms() + SUBSCRIBED_MS;
    uint32_t before = wakeups_of(wake, names);

    pg_arg_names(&args, names->name, names->n);
    pthread_mutex_unlock(&wake->mutex);
    int rc = pg_ask(pg, LHI_POSTGRES_STORE_SUBSCRIBE, &args, &rows, &ignored);
    bool is_new = rc == LH_OK && pg_row_bool(&rows, 0, 0);
    if (rc == LH_OK)
        pg_rows_free(&rows);
    pthread_mutex_lock(&wake->mutex);
    if (rc != LH_OK)
        return LHI_SUBSCRIBED_DEAF;
    /* A wake-up in the meantime has ended the subscription. */
    for (size_t i = 0; i < names->n && wakeups_of(wake, names) == before; i++) {
        struct subscription *s = find(wake, names->name[i]);
        if (s != NULL)
            s->until = until;
    }
    return is_new ? LHI_SUBSCRIBED_NOW : LHI_SUBSCRIBED_OTHERS;
}

uint32_t pg_ticket(void *self, const struct lhi_topic *topic)
{
    struct pg *pg = self;

    pthread_mutex_lock(&pg->wake->mutex);
    uint32_t taken = ticket(pg->wake, topic);
    pthread_mutex_unlock(&pg->wake->mutex);
    return taken;
}

enum lhi_subscribed pg_subscribe(void *self, const struct lhi_topic *topic)
{
    struct pg *pg = self;
    struct wake *wake = pg->wake;
    enum lhi_subscribed how = LHI_SUBSCRIBED_BEFORE;
    struct names names;

    pg_listener_start(pg);
    pthread_mutex_lock(&wake->mutex);
    name_topic(wake, topic, &names);
    if (!wake->listening)
        how = LHI_SUBSCRIBED_DEAF;
    else if (topic->on == LHI_ON_MAINTENANCE && wake->follower_ms > 0)
        how = LHI_SUBSCRIBED_BEFORE; /* another process is woken */
    else if (lacks_one(wake, &names))
        how = subscribe(pg, &names);
    pthread_mutex_unlock(&wake->mutex);
    return how;
}

bool pg_wait(void *self, const struct lhi_topic *topic, uint32_t before, int64_t timeout_ms)
{
    struct pg *pg = self;
    struct wake *wake = pg->wake;
    int64_t until = pg_real_ms() + (timeout_ms < LONGEST_MS ? timeout_ms : LONGEST_MS);
    const bool maintains = topic->on == LHI_ON_MAINTENANCE, any = topic->on == LHI_ON_COMMITS;

    if (any && until > pg_real_ms() + COMMITS_MS)
        until = pg_real_ms() + COMMITS_MS;
    if (!any)
        pg_watch_deaths(pg);
    struct timespec ts = {.tv_sec = until / 1000, .tv_nsec = until % 1000 * 1000000};
    pthread_mutex_lock(&wake->mutex);
    wake->maintainers += maintains;
    while (ticket(wake, topic) == before && pg_real_ms() < until)
        (void)pthread_cond_timedwait(&wake->changed, &wake->mutex, &ts);
    bool woken = ticket(wake, topic) != before;
    if (maintains)
        pg_end_maintainer(wake);
    pthread_mutex_unlock(&wake->mutex);
    return woken || any;
}

/* If the server notifies, polls are only for what it could not notify. Of hundreds of processes,
 * the leader polls once a second for what falls due and for jobs without a notification. The
 * others, in case the leader is gone, poll less often the more they are. */
int64_t pg_max_sleep_ms(void *self, enum lhi_wake_on on)
{
    struct pg *pg = self;
    struct wake *wake = pg->wake;
    const bool maintains = on == LHI_ON_MAINTENANCE;

    pthread_mutex_lock(&wake->mutex);
    int64_t ms = wake->follower_ms > 0 || maintains ? wake->follower_ms : FOLLOWER_MS;
    bool rarely = wake->listening && ms > 0 && (maintains || pg_is_maintained(wake));
    int64_t maintained_ms = wake->maintained_until - pg_real_ms() + 1;
    if (!maintains && wake->maintainers == 0 && maintained_ms < ms)
        ms = maintained_ms;
    pthread_mutex_unlock(&wake->mutex);
    return rarely ? ms : LHI_POLL_MS;
}

void pg_wake(void *self)
{
    struct pg *pg = self;

    pthread_mutex_lock(&pg->wake->mutex);
    pg_note_death(pg->wake);
    pthread_mutex_unlock(&pg->wake->mutex);
}

/* ---- beginning and end ---- */

bool pg_wake_init(struct pg *pg)
{
    struct wake *wake = lhi_calloc(1, sizeof *wake);
    pthread_condattr_t attr;

    if (wake == NULL)
        return false;
    wake->pipe[0] = wake->pipe[1] = -1;
    pthread_mutex_init(&wake->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&wake->changed, &attr);
    pthread_condattr_destroy(&attr);
    pg->wake = wake;
    pg_leader_init(pg);
    return true;
}

void pg_wake_clear(struct pg *pg)
{
    struct wake *wake = pg->wake;

    lhi_death_watch_clear(&pg->deaths);
    pg_listener_stop(pg);
    pthread_cond_destroy(&wake->changed);
    pthread_mutex_destroy(&wake->mutex);
    lhi_free(wake->subscriptions);
    lhi_free(wake);
    pg->wake = NULL;
}
