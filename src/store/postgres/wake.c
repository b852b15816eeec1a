/*
 * wake.c: being woken: by the database, by deaths of processes on this machine, by another thread.
 *
 * A thread with a connection of its own listens. Who goes to sleep for a queue first says so in the
 * database (leasehold.subscribe); the next job that becomes pending there rings, once, and takes that back. As
 * every ring is heard here too, we know without asking for how long a queue stays armed. At most ten
 * rings a second are sent, and who was about to commit while we armed has not rung: for a while after
 * either, sleepers look by themselves; the last who had a job glances, at first at every millisecond,
 * for where jobs follow each other the next one comes before it may ring. Behind a pooler nobody can
 * listen: there sleepers look, less and less often.
 *
 * What is known of a queue, bells and sirens, is guarded by one mutex; those who sleep wait for one
 * condition. The net is the caller's: nobody sleeps longer than pg_max_sleep_ms() without a look.
 */
#include "store/postgres/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LOOK_MS = 100,   /* for any commit, and for a while … */
    LOOKS_MS = 1000, /* … after a ring, and after arming */
    GLANCES_MS = 8,  /* after a job: a glance a millisecond, then fewer and fewer, up to LOOK_MS */
    MOST_QUEUES = 64,
    AFTER_DUE_MS = 120, /* what came too soon after a ring to ring again is heard then */
    ARMED_MS = 25000,   /* leasehold.subscribe promises 30 s */
    BLIND_MS = 50,      /* without a listener: at first; doubled … */
    BLIND_MOST = 1000,  /* … up to this */
    AGAIN_MS = 50,      /* before the listener connects again; doubled … */
    AGAIN_MOST = 1000,
    REFRESH_MS = 10000, /* of the list of workers */
    SPARE_MS = 4500,    /* between two looks of a claimer whose process keeps the store up */
    KEPT_MS = 2000      /* whoever waited for something to fall due comes back within */
};

/* The names by which those who keep the store up are rung: something falls due soon; whoever did it for all
 * has left; and those who watch over processes: one more has come. For these two nobody need be armed. */
static const char due_name[] = "!", leaver_name[] = "-", comer_name[] = "+";

struct bell {
    char queue[264]; /* or QUEUE/KIND */
    uint32_t rings;
    int64_t looks_until; /* its sleepers look by themselves */
    int64_t armed_until; /* as far as we know */
};

struct wake {
    pthread_mutex_t mutex;
    pthread_cond_t rung;
    struct bell *bells;
    size_t n, room;
    uint32_t all;       /* rings for everybody */
    uint32_t siren;     /* a process has died, or nobody listened for a while */
    uint32_t dues;      /* the same, and whenever something falls due soon */
    int64_t due_again;  /* when that is told once more by itself */
    bool on_duty;       /* we keep the store up for all, when we last asked … */
    int64_t spare_ms;   /* … or another does: how long we need not look */
    int keepers;        /* who wait here for something to fall due … */
    int64_t kept_until; /* … or are about to */
    bool due;           /* when we last looked for ourselves, something was */

    pthread_t thread;
    bool started, listening;
    bool tried;    /* to listen: by now it is known what came of it */
    bool deaf;     /* behind a pooler: nobody listens */
    int pipe[2];   /* wakes the listener: its connection was lent and is back, or it is to stop */
    bool stopping; /* atomic */

    pthread_t busy;                        /* whose claim was the last to find something … */
    int64_t busy_at;                       /* … and when; 0: a glance has misled it since */
    int64_t blind_ms, next_look, siren_ms; /* without a listener */
};

/* ---- bells; under the mutex ---- */

static struct bell *find_bell(struct wake *wake, const char *queue)
{
    for (size_t i = 0; i < wake->n; i++)
        if (strcmp(wake->bells[i].queue, queue) == 0)
            return &wake->bells[i];
    return NULL;
}

/* NULL: no memory; then its sleepers look without being told. */
static struct bell *bell_of(struct wake *wake, const char *queue)
{
    struct bell *bell = find_bell(wake, queue);

    if (bell != NULL || strlen(queue) >= sizeof bell->queue)
        return bell;
    if (wake->n == wake->room) {
        size_t room = wake->room ? wake->room * 2 : 8;
        struct bell *grown = lhi_realloc(wake->bells, room * sizeof *grown);
        if (grown == NULL)
            return NULL;
        wake->bells = grown;
        wake->room = room;
    }
    bell = &wake->bells[wake->n++];
    *bell = (struct bell){0};
    lhi_format(bell->queue, sizeof bell->queue, "%s", queue);
    return bell;
}

static uint32_t rings_for(struct wake *wake, const char *const *queues, size_t n)
{
    uint32_t rings = wake->all;

    for (size_t i = 0; i < n; i++) {
        const struct bell *bell = bell_of(wake, queues[i]);
        rings += bell != NULL ? bell->rings : 0;
    }
    return rings;
}

/* Under which names a claimer sleeps: its queues, or, where it takes only some kinds, QUEUE/KIND for each. */
struct names {
    const char *name[MOST_QUEUES + 1];
    size_t n;
    char text[MOST_QUEUES][264];
};

static void name_sleeper(const lh_claim_opts *opts, struct names *names)
{
    size_t n_kinds = opts->n_kinds;

    if (n_kinds == 0 || opts->n_queues * n_kinds > MOST_QUEUES) { /* any kind wakes it */
        for (size_t i = 0; i < opts->n_queues && i < MOST_QUEUES; i++)
            names->name[names->n++] = opts->queues[i];
        return;
    }
    for (size_t i = 0; i < opts->n_queues * n_kinds; i++) {
        lhi_format(names->text[i], sizeof names->text[i], "%s/%s", opts->queues[i / n_kinds],
                   opts->kinds[i % n_kinds]);
        names->name[names->n++] = names->text[i];
    }
}

static uint32_t rings_of(struct wake *wake, const lh_claim_opts *opts)
{
    struct names names;

    if (opts == NULL || opts->n_kinds == 0)
        return rings_for(wake, opts != NULL ? opts->queues : NULL,
                         opts != NULL ? opts->n_queues : 0);
    names.n = 0;
    name_sleeper(opts, &names);
    return rings_for(wake, names.name, names.n);
}

static void forget_armed(struct wake *wake)
{
    for (size_t i = 0; i < wake->n; i++)
        wake->bells[i].armed_until = 0;
}

/* Does somebody in this process wait for what falls due? */
static bool is_kept(const struct wake *wake)
{
    return wake->keepers > 0 || pg_real_ms() < wake->kept_until;
}

/* Whoever waits for a job looks after the store as well, when there is something to look after. */
static void tell_due(struct wake *wake)
{
    wake->dues++;
    wake->all++;
    wake->due_again = INT64_MAX;
    wake->siren_ms = BLIND_MS;
    pthread_cond_broadcast(&wake->rung);
}

static void sound_siren(struct wake *wake)
{
    wake->siren++;
    tell_due(wake);
}

static void ring(struct wake *wake, const char *queue)
{
    struct bell *bell = find_bell(wake, queue);

    if (bell != NULL) {
        bell->rings++;
        bell->looks_until = pg_real_ms() + LOOKS_MS;
        bell->armed_until = 0;
    }
    /* Of hundreds, one comes running. */
    if (strcmp(queue, due_name) == 0 && (wake->spare_ms == 0 || !is_kept(wake))) {
        tell_due(wake);
        wake->due_again = pg_real_ms() + AFTER_DUE_MS;
    }
    if (strcmp(queue, leaver_name) == 0) {
        wake->spare_ms = 0;
        wake->dues++;
    }
    pthread_cond_broadcast(&wake->rung);
}

/* Sleep until something rings or the time has come. */
static void sleep_until(struct wake *wake, int64_t until)
{
    int64_t first = wake->due_again < until ? wake->due_again : until;
    struct timespec ts = {.tv_sec = first / 1000, .tv_nsec = first % 1000 * 1000000};

    (void)pthread_cond_timedwait(&wake->rung, &wake->mutex, &ts);
    if (pg_real_ms() >= wake->due_again)
        tell_due(wake);
}

/* ---- the listener ---- */

static void drain_calls(const struct wake *wake)
{
    char calls[64];

    while (read(wake->pipe[0], calls, sizeof calls) > 0)
        continue;
}

/* False: told to stop. */
static bool pause_listening(const struct wake *wake, int64_t ms)
{
    struct pollfd called = {.fd = wake->pipe[0], .events = POLLIN};

    if (poll(&called, 1, (int)ms) > 0)
        drain_calls(wake);
    return !__atomic_load_n(&wake->stopping, __ATOMIC_RELAXED);
}

static bool begin_listening(struct pg *pg, struct conn *conn)
{
    struct txn txn = {.pg = pg, .conn = conn, .deadline = pg_real_ms() + pg->opts.busy_ms};
    struct lhi_error ignored;

    return pg_call_script(&txn, "LISTEN leasehold", &ignored) == LH_OK;
}

static void set_listening(struct wake *wake, bool listening)
{
    pthread_mutex_lock(&wake->mutex);
    bool again = wake->tried;
    wake->listening = listening;
    wake->tried = true;
    forget_armed(wake);
    /* Whatever rang before was not heard: have a look. */
    wake->all++;
    if (again)
        sound_siren(wake);
    pthread_cond_broadcast(&wake->rung);
    pthread_mutex_unlock(&wake->mutex);
}

static void set_deaf(struct wake *wake)
{
    pthread_mutex_lock(&wake->mutex);
    wake->deaf = wake->tried = true;
    pthread_cond_broadcast(&wake->rung);
    pthread_mutex_unlock(&wake->mutex);
}

static void take_rings(struct pg *pg, PGconn *listening)
{
    PGnotify *notify;
    bool comers = false;

    pthread_mutex_lock(&pg->wake->mutex);
    while ((notify = PQnotifies(listening)) != NULL) {
        ring(pg->wake, notify->extra);
        comers = comers || strcmp(notify->extra, comer_name) == 0;
        PQfreemem(notify);
    }
    pthread_mutex_unlock(&pg->wake->mutex);
    if (comers)
        lhi_death_watch_refresh(&pg->deaths);
}

/* Until the connection is lost, or we are told to stop: false. */
static bool listen_on(struct pg *pg, struct conn *conn)
{
    const struct wake *wake = pg->wake;
    struct pollfd fds[2] = {{.fd = PQsocket(conn->pg), .events = POLLIN},
                            {.fd = wake->pipe[0], .events = POLLIN}};

    for (;;) {
        take_rings(pg, conn->pg);
        pg_notices_drop(&conn->notices);
        pg_pool_lend(pg, conn);
        int n = poll(fds, 2, -1), why = errno;
        pg_pool_recall(pg); /* what was heard while it was lent is taken with the rest */
        if (fds[1].revents != 0)
            drain_calls(wake);
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
    bool go_on = true;

    while (go_on) {
        struct conn *conn = NULL;
        struct lhi_error ignored;
        int rc = pg_conn_open(pg, pg_real_ms() + (int64_t)pg->target.n_hosts * CONNECT_MS, &conn,
                              &ignored);
        if (rc == LH_OK && conn->pooled) {
            pg_conn_close(conn);
            pg_pool_drop_reserve(pg);
            set_deaf(wake);
            return NULL;
        }
        if (rc == LH_OK && begin_listening(pg, conn)) {
            set_listening(wake, true);
            again = AGAIN_MS;
            go_on = listen_on(pg, conn);
        }
        set_listening(wake, false);
        pg_conn_close(conn);
        go_on = go_on && pause_listening(wake, again);
        again = again * 2 < AGAIN_MOST ? again * 2 : AGAIN_MOST;
    }
    return NULL;
}

/* Under the mutex. */
static void start_listener(struct pg *pg)
{
    struct wake *wake = pg->wake;

    if (!wake->started && pipe2(wake->pipe, O_CLOEXEC | O_NONBLOCK) == 0) {
        wake->started = lhi_thread_start(&wake->thread, listener, pg);
        if (!wake->started) {
            close(wake->pipe[0]);
            close(wake->pipe[1]);
            wake->pipe[0] = wake->pipe[1] = -1;
        }
    }
}

void pg_wake_begin(struct pg *pg)
{
    pthread_mutex_lock(&pg->wake->mutex);
    if (!pg->wake->deaf && !pg->opts.read_only)
        start_listener(pg);
    pthread_mutex_unlock(&pg->wake->mutex);
}

/* ---- sleeping ---- */

/* A question that is answered by yes or no; a failure is a no. Leaves the mutex for a while. */
static bool ask(struct pg *pg, enum lhi_postgres_call which, struct args *args, int *rc)
{
    struct rows rows;
    struct lhi_error ignored;

    pthread_mutex_unlock(&pg->wake->mutex);
    *rc = pg_ask(pg, which, args, &rows, &ignored);
    bool yes = *rc == LH_OK && pg_row_bool(&rows, 0, 0);
    if (*rc == LH_OK)
        pg_rows_free(&rows);
    pthread_mutex_lock(&pg->wake->mutex);
    return yes;
}

/* Have those who ring know that we sleep. True: have another look first. Leaves the mutex for a while. */
static bool arm(struct pg *pg, const char *const *queues, size_t n)
{
    struct wake *wake = pg->wake;
    struct args args = {0};
    int64_t now = pg_real_ms();
    size_t lacking = 0;
    uint32_t before = rings_for(wake, queues, n);

    for (size_t i = 0; i < n; i++) {
        const struct bell *bell = bell_of(wake, queues[i]);
        lacking += bell == NULL || bell->armed_until <= now;
    }
    if (lacking == 0)
        return false;
    pg_arg_names(&args, queues, n);
    int rc;
    bool fresh = ask(pg, LHI_POSTGRES_STORE_SUBSCRIBE, &args, &rc);
    uint32_t after = rings_for(wake, queues, n);
    /* What rang meanwhile has disarmed it again. */
    for (size_t i = 0; i < n && rc == LH_OK && after == before; i++) {
        struct bell *bell = bell_of(wake, queues[i]);
        if (bell == NULL)
            continue;
        bell->armed_until = now + ARMED_MS;
        if (fresh)
            bell->looks_until = now + LOOKS_MS;
    }
    return fresh || after != before;
}

/* When a sleeper for these queues looks by himself, though nothing rang; INT64_MAX: never. */
static int64_t look_at(struct wake *wake, const struct names *names)
{
    int64_t now = pg_real_ms();

    for (size_t i = 0; i < names->n; i++) {
        if (strcmp(names->name[i], due_name) == 0)
            continue;
        const struct bell *bell = bell_of(wake, names->name[i]);
        if (bell == NULL || now < bell->looks_until)
            return now + LOOK_MS;
    }
    return INT64_MAX;
}

/* When whoever of us was the last to have a job glances whether there is another; INT64_MAX: not any more.
 * By its kind a job cannot be told at a glance. */
static int64_t glance_at(const struct wake *wake, const lh_claim_opts *opts)
{
    int64_t now = pg_real_ms(), since = now - wake->busy_at;

    if (since >= LOOK_MS || opts->n_kinds > 0 || !pthread_equal(wake->busy, pthread_self()))
        return INT64_MAX;
    return now + (since < GLANCES_MS ? 1 : since / 2);
}

/* Believed once: whoever then gets nothing (another was faster, a limit) is rung for. */
static bool glance(struct pg *pg, const lh_claim_opts *opts)
{
    struct wake *wake = pg->wake;
    struct args args = {0};
    int rc;

    pg_arg_names(&args, opts->queues, opts->n_queues);
    bool found = ask(pg, LHI_POSTGRES_STORE_HAS_FRESH_JOB, &args, &rc);
    if (found && pthread_equal(wake->busy, pthread_self()))
        wake->busy_at = 0;
    return found;
}

/* Nobody listens: look now and then, less and less often while nothing comes. */
static bool wait_blind(struct wake *wake, uint32_t ticket, const lh_claim_opts *opts, int64_t until)
{
    int64_t now = pg_real_ms();

    if (wake->next_look <= now) {
        wake->next_look = now + wake->blind_ms;
        wake->blind_ms = wake->blind_ms * 2 < BLIND_MOST ? wake->blind_ms * 2 : BLIND_MOST;
    }
    int64_t look = wake->next_look;
    while (rings_of(wake, opts) == ticket && (now = pg_real_ms()) < look && now < until)
        sleep_until(wake, look < until ? look : until);
    return rings_of(wake, opts) != ticket || now >= look;
}

static bool wait_for_ring(struct pg *pg, uint32_t ticket, const lh_claim_opts *opts, int64_t until)
{
    struct wake *wake = pg->wake;
    struct names names;

    names.n = 0;
    if (!is_kept(wake))
        names.name[names.n++] = due_name;
    name_sleeper(opts, &names);
    if (arm(pg, names.name, names.n))
        return true;
    int64_t now, look = look_at(wake, &names), next = glance_at(wake, opts);
    while (rings_of(wake, opts) == ticket && (now = pg_real_ms()) < look && now < until) {
        int64_t first = look < until ? look : until;
        if (now < next) {
            sleep_until(wake, next < first ? next : first);
            continue;
        }
        if (glance(pg, opts))
            return true;
        next = glance_at(wake, opts);
    }
    return rings_of(wake, opts) != ticket || pg_real_ms() >= look;
}

static bool wait_for_any(struct wake *wake, uint32_t ticket, int64_t until)
{
    int64_t look = pg_real_ms() + LOOK_MS;

    if (until < look)
        look = until;
    while (wake->all == ticket && pg_real_ms() < look)
        sleep_until(wake, look);
    return true;
}

static uint32_t siren_of(struct wake *wake)
{
    pthread_mutex_lock(&wake->mutex);
    uint32_t siren = wake->siren;
    pthread_mutex_unlock(&wake->mutex);
    return siren;
}

static void watch_deaths(struct pg *pg)
{
    if (!pg->opts.read_only && !pg->opts.no_recovery)
        lhi_death_watch_start(&pg->deaths, siren_of(pg->wake));
}

uint32_t pg_ticket(void *self, const lh_claim_opts *opts)
{
    struct pg *pg = self;

    pthread_mutex_lock(&pg->wake->mutex);
    uint32_t ticket = rings_of(pg->wake, opts);
    pthread_mutex_unlock(&pg->wake->mutex);
    return ticket;
}

bool pg_wait(void *self, uint32_t ticket, const lh_claim_opts *opts, int64_t timeout_ms)
{
    struct pg *pg = self;
    struct wake *wake = pg->wake;
    int64_t until = pg_real_ms() + (timeout_ms < 86400000 ? timeout_ms : 86400000);
    bool rung;

    if (opts != NULL)
        watch_deaths(pg);
    pthread_mutex_lock(&wake->mutex);
    if (opts != NULL && !wake->deaf)
        start_listener(pg);
    if (rings_of(wake, opts) != ticket)
        rung = true;
    else if (opts == NULL)
        rung = wait_for_any(wake, ticket, until);
    else if (wake->listening)
        rung = wait_for_ring(pg, ticket, opts, until);
    else
        rung = wait_blind(wake, ticket, opts, until);
    pthread_mutex_unlock(&wake->mutex);
    return rung;
}

/* ---- sirens ---- */

/* Asked before a look, by those who are about to wait. */
uint32_t pg_siren(void *self, bool keeper)
{
    struct pg *pg = self;
    struct wake *wake = pg->wake;

    pthread_mutex_lock(&wake->mutex);
    if (!wake->deaf && !pg->opts.read_only)
        start_listener(pg);
    uint32_t siren = keeper ? wake->dues : wake->siren;
    pthread_mutex_unlock(&wake->mutex);
    return siren;
}

/* Look for what the siren would have told, and sound it here. What is due and stays so is meant to
 * be, and told once. Leaves the mutex for a while. */
static void look_for_due(struct pg *pg, int64_t *next_ms)
{
    struct wake *wake = pg->wake;
    struct lhi_act poll = {.verb = LHI_POLL, .poll = {.waiting = true}};
    struct lhi_error ignored;

    pthread_mutex_unlock(&wake->mutex);
    int rc = pg_read(pg, &poll, &ignored);
    pthread_mutex_lock(&wake->mutex);
    *next_ms = -1;
    if (rc != LH_OK)
        return;
    *next_ms = poll.poll.next_ms;
    if (poll.poll.found && !wake->due)
        sound_siren(wake);
    wake->due = poll.poll.found;
}

/* Nobody listens (yet): look for what the siren would have told, less and less often while nothing
 * comes. */
static void await_blind(struct pg *pg, uint32_t ticket, int64_t until)
{
    struct wake *wake = pg->wake;
    int64_t next_ms = -1;

    while (wake->dues == ticket && !wake->listening && pg_real_ms() < until) {
        int64_t ms = next_ms >= 0 && next_ms < wake->siren_ms ? next_ms + 1 : wake->siren_ms;
        int64_t look = pg_real_ms() + ms;
        while (wake->dues == ticket && !wake->listening && pg_real_ms() < look &&
               pg_real_ms() < until)
            sleep_until(wake, look < until ? look : until);
        if (wake->dues != ticket || wake->listening || pg_real_ms() < look)
            return;
        wake->siren_ms = wake->siren_ms * 2 < BLIND_MOST ? wake->siren_ms * 2 : BLIND_MOST;
        look_for_due(pg, &next_ms);
    }
}

/* Be told from here on. What was told to nobody before, or is about to be committed just now, is looked for
 * ourselves: returns when to look again. */
static int64_t arm_siren(struct pg *pg, int64_t *due_at)
{
    static const char *const names[] = {due_name};
    const struct bell *bell = bell_of(pg->wake, due_name);
    int64_t next_ms, now = pg_real_ms();

    if (pg->wake->spare_ms > 0)
        return INT64_MAX;
    if (bell == NULL || bell->armed_until <= now)
        (void)arm(pg, names, 1);
    else if (now >= bell->looks_until)
        return bell->armed_until;
    look_for_due(pg, &next_ms);
    now = pg_real_ms();
    *due_at = next_ms >= 0 ? now + next_ms + 1 : INT64_MAX;
    return now + LOOK_MS;
}

bool pg_await_siren(void *self, uint32_t ticket, int64_t timeout_ms)
{
    struct pg *pg = self;
    struct wake *wake = pg->wake;
    int64_t until = pg_real_ms() + (timeout_ms < 86400000 ? timeout_ms : 86400000);
    int64_t due_at = INT64_MAX; /* as far as we saw ourselves */

    watch_deaths(pg);
    pthread_mutex_lock(&wake->mutex);
    wake->keepers++;
    while (wake->dues == ticket && pg_real_ms() < until && pg_real_ms() < due_at) {
        if (!wake->listening) {
            await_blind(pg, ticket, until);
            continue;
        }
        int64_t look = arm_siren(pg, &due_at);
        look = look < due_at ? look : due_at;
        if (wake->dues == ticket && wake->listening)
            sleep_until(wake, look < until ? look : until);
    }
    bool sounded = wake->dues != ticket || pg_real_ms() >= due_at;
    wake->keepers--;
    wake->kept_until = pg_real_ms() + KEPT_MS;
    pthread_mutex_unlock(&wake->mutex);
    return sounded;
}

void pg_wake_set_leader(struct pg *pg, int64_t spare_ms)
{
    pthread_mutex_lock(&pg->wake->mutex);
    pg->wake->on_duty = spare_ms == 0;
    pg->wake->spare_ms = spare_ms;
    pthread_mutex_unlock(&pg->wake->mutex);
}

void pg_wake_listener(struct pg *pg)
{
    (void)!write(pg->wake->pipe[1], "", 1);
}

bool pg_wake_is_leader(struct pg *pg)
{
    pthread_mutex_lock(&pg->wake->mutex);
    bool on_duty = pg->wake->on_duty;
    pthread_mutex_unlock(&pg->wake->mutex);
    return on_duty;
}

bool pg_wake_has_maintainer(struct pg *pg)
{
    pthread_mutex_lock(&pg->wake->mutex);
    bool kept = is_kept(pg->wake);
    pthread_mutex_unlock(&pg->wake->mutex);
    return kept;
}

/* Where the server rings, a look is for what it could not ring for. Of hundreds that sleep one has an eye on
 * what falls due, and on jobs nobody was rung for, once a second; the others, should it be gone, look the
 * less often the more they are. */
int64_t pg_max_sleep_ms(void *self, bool keeper)
{
    struct pg *pg = self;
    struct wake *wake = pg->wake;

    pthread_mutex_lock(&wake->mutex);
    int64_t spare_ms = wake->spare_ms > 0 || keeper ? wake->spare_ms : SPARE_MS;
    bool spare = wake->listening && spare_ms > 0 && (keeper || is_kept(wake));
    int64_t kept_ms = wake->kept_until - pg_real_ms() + 1; /* should they not come back */
    if (!keeper && wake->keepers == 0 && kept_ms < spare_ms)
        spare_ms = kept_ms;
    pthread_mutex_unlock(&wake->mutex);
    return spare ? spare_ms : LHI_POLL_MS;
}

void pg_wake_maintenance(struct pg *pg)
{
    pthread_mutex_lock(&pg->wake->mutex);
    sound_siren(pg->wake);
    pthread_mutex_unlock(&pg->wake->mutex);
}

void pg_wake_busy(struct pg *pg)
{
    pthread_mutex_lock(&pg->wake->mutex);
    pg->wake->blind_ms = BLIND_MS;
    pg->wake->next_look = 0;
    pg->wake->busy = pthread_self();
    pg->wake->busy_at = pg_real_ms();
    pthread_mutex_unlock(&pg->wake->mutex);
}

void pg_wake(void *self)
{
    pg_wake_maintenance(self);
}

/* ---- beginning and end ---- */

static bool workers(void *arg, struct lhi_suspects *out)
{
    struct lhi_act act = {.verb = LHI_WORKER_JUDGE, .suspects = out};
    struct lhi_error ignored;

    return pg_read(arg, &act, &ignored) == LH_OK;
}

bool pg_wake_init(struct pg *pg)
{
    struct wake *wake = lhi_calloc(1, sizeof *wake);
    pthread_condattr_t attr;

    if (wake == NULL)
        return false;
    wake->pipe[0] = wake->pipe[1] = -1;
    wake->blind_ms = wake->siren_ms = BLIND_MS;
    wake->due_again = INT64_MAX;
    pthread_mutex_init(&wake->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&wake->rung, &attr);
    pthread_condattr_destroy(&attr);
    pg->wake = wake;
    lhi_death_watch_init(
        &pg->deaths, &(struct lhi_death_watch_of){
                         .arg = pg, .workers = workers, .wake = pg_wake, .refresh_ms = REFRESH_MS});
    return true;
}

void pg_wake_clear(struct pg *pg)
{
    struct wake *wake = pg->wake;

    lhi_death_watch_clear(&pg->deaths);
    if (wake->started) {
        __atomic_store_n(&wake->stopping, true, __ATOMIC_RELAXED);
        pg_wake_listener(pg); /* not by closing the pipe: a forked child may have a copy */
        pthread_join(wake->thread, NULL);
        close(wake->pipe[0]);
        close(wake->pipe[1]);
    }
    pthread_cond_destroy(&wake->rung);
    pthread_mutex_destroy(&wake->mutex);
    lhi_free(wake->bells);
    lhi_free(wake);
    pg->wake = NULL;
}
