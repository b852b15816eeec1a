/*
 * lease_keep.c: extending a named lease while its command runs.
 *
 * A thread of its own extends the lease, so a slow store delays neither signals nor the end of the
 * command. The guardian keeps the deadlines. Only an extension that the store has confirmed puts them off,
 * counted from before the call.
 */
#include "worker/lease_run.h"

#include "base/clock.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    ENROL_MS = 100
}; /* a shorter run is not registered as a worker, which saves a transaction and a row */

/* ---- deadlines ---- */

int64_t lease_now(const struct lease_run *run)
{
    return lhi_clock_ms(run->clock);
}

struct guardian_message lease_times(const struct lease_run *run, uint32_t order)
{
    int64_t fence = fence_of(run->limit_ms), kill_at = run->sent_at + fence;

    return (struct guardian_message){.order = order,
                                     .term_at = kill_at - notice_of(run->opts.kill_after_ms, fence),
                                     .kill_at = kill_at,
                                     .clock = run->clock,
                                     .linger_ms = run->opts.kill_after_ms};
}

bool lease_order(struct lease_run *run, const struct guardian_message *m, const char *body,
                 size_t len, const int *fds)
{
    bool sent = true;

    pthread_mutex_lock(&run->mutex);
    if (!run->stopping) {
        run->kill_at = m->kill_at;
        sent = guardian_order(run->socket, m, body, len, fds);
    }
    pthread_mutex_unlock(&run->mutex);
    return sent;
}

/* Stop the command now, with SIGKILL after kill_after_ms, and at the old deadline at the latest. */
void lease_stop(struct lease_run *run)
{
    int64_t now = lease_now(run), kill_at = now + run->opts.kill_after_ms;
    struct guardian_message m = {.order = GUARDIAN_STOP,
                                 .term_at = now,
                                 .clock = run->clock,
                                 .linger_ms = run->opts.kill_after_ms};

    pthread_mutex_lock(&run->mutex);
    if (!run->stopping) {
        run->stopping = true;
        m.kill_at = kill_at < run->kill_at ? kill_at : run->kill_at;
        (void)guardian_order(run->socket, &m, NULL, 0, NULL);
    }
    pthread_mutex_unlock(&run->mutex);
}

/* At least two tries before the deadline, as for jobs. */
static int64_t extend_every(const struct lease_run *run)
{
    int64_t third = run->limit_ms / 3, two = fence_of(run->limit_ms) * 2 / 5;
    int64_t every = third < two ? third : two;

    return every > 0 ? every : 1;
}

/* ---- extending ---- */

static int extend(struct lease_run *run)
{
    lh_lease_opts opts = {.owner = run->owner, .ttl_ms = run->opts.ttl_ms, .token = run->token};
    lh_leases *leases = NULL;
    int64_t sent_at = lease_now(run);
    int rc = LH_OK;

    /* The heartbeat goes first, so that the worker is never silent for too long before its lease has ended. */
    if (run->enrolled)
        rc = lh_worker_heartbeat(run->store, run->owner, 0, NULL, 0, NULL);
    if (rc == LH_OK)
        rc = lh_lease_extend(run->store, run->scope, run->name, &opts, &leases);
    if (rc != LH_OK)
        lhi_format(run->error, sizeof run->error, "%s", lh_errmsg(run->store));
    if (rc == LH_OK) {
        run->sent_at = sent_at;
        run->limit_ms = leases->lease[0].remaining_ms;
        struct guardian_message times = lease_times(run, GUARDIAN_DEADLINE);
        (void)lease_order(run, &times, NULL, 0, NULL);
    }
    lh_leases_free(leases);
    return rc;
}

static void tell_trouble(const struct lease_run *run)
{
    char text[720];

    if (run->opts.tell == NULL)
        return;
    lhi_format(text, sizeof text, "lease \"%s/%.140s\" could not be extended, trying again: %s",
               run->scope, run->name, run->error);
    run->opts.tell(run->opts.tell_arg, text);
}

/* Extend once. Returns the time of the next try. */
static int64_t extend_step(struct lease_run *run, int *failures)
{
    int64_t pause = RETRY_MS, every = extend_every(run);
    int rc = extend(run);

    if (rc == LH_OK) {
        *failures = 0;
        run->error[0] = '\0';
        return run->sent_at + extend_every(run);
    }
    if (__atomic_load_n(&run->quitting, __ATOMIC_ACQUIRE))
        return INT64_MAX; /* this run has released it meanwhile */
    if (rc == LH_ELOST || rc == LH_ESTATE) {
        __atomic_store_n(&run->lost, 1, __ATOMIC_RELEASE);
        lease_stop(run);
        return INT64_MAX;
    }
    if ((*failures)++ == 0)
        tell_trouble(run);
    for (int i = 1; i < *failures && pause < RETRY_MOST_MS; i++)
        pause *= 2;
    return lease_now(run) + (pause < every ? pause : every);
}

/* ---- the worker's record ---- */

/* Register this run as a worker, so that its death is proven when this process and the guardian are gone. The
 * silence limit is longer than the lease. */
static void enrol(struct lease_run *run)
{
    char what[420], id[160];
    int64_t guardian = run->guardian;

    lhi_format(what, sizeof what, "%s/%s", run->scope, run->name);
    lh_worker_opts opts = {.id = run->owner,
                           .queues = what,
                           .interval_ms = run->limit_ms > 0 ? run->limit_ms : 1,
                           .process = true,
                           .sessions = &guardian,
                           .n_sessions = 1};
    run->enrolled = lh_worker_register(run->store, &opts, id, sizeof id) == LH_OK;
}

/* ---- the thread ---- */

/* Sleep until then. True: the thread is to quit. */
static bool quits_before(const struct lease_run *run, int64_t until)
{
    struct pollfd quit = {.fd = run->quit, .events = POLLIN};
    int64_t left = until == INT64_MAX ? -1 : until - lease_now(run);

    if (left < 0 && until != INT64_MAX)
        left = 0;
    return poll(&quit, 1, left > 60000 ? 60000 : (int)left) > 0;
}

static void *keep(void *arg)
{
    struct lease_run *run = arg;
    int64_t extend_at = run->sent_at + extend_every(run);
    int64_t enrol_at = run->own_name ? lease_now(run) + ENROL_MS : INT64_MAX;
    int failures = 0;

    while (!quits_before(run, extend_at < enrol_at ? extend_at : enrol_at)) {
        int64_t now = lease_now(run);
        if (now >= extend_at)
            extend_at = extend_step(run, &failures);
        if (now >= enrol_at) {
            enrol(run);
            enrol_at = INT64_MAX;
        }
    }
    return NULL;
}

bool extender_start(struct lease_run *run)
{
    sigset_t all, before;

    run->quit = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (run->quit < 0)
        return false;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    run->keeping = pthread_create(&run->extender, NULL, keep, run) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return run->keeping;
}

void extender_quit(struct lease_run *run)
{
    uint64_t one = 1;

    if (!run->keeping)
        return;
    __atomic_store_n(&run->quitting, 1, __ATOMIC_RELEASE);
    (void)!write(run->quit, &one, sizeof one);
}

void extender_join(struct lease_run *run)
{
    if (run->keeping)
        (void)pthread_join(run->extender, NULL);
    if (run->quit >= 0)
        (void)close(run->quit);
    run->keeping = false;
    run->quit = -1;
}
