/*
 * leftovers.c: processes that dead workers have left running.
 *
 * A worker that runs commands records the process sessions in which they run. Its death is not proven
 * while one of the session leaders lives, or a process in such a session, or a descendant of a leader, or a
 * process with the worker's name in its environment. The leaders (guardians) notice the death of the
 * worker and kill everything below them within milliseconds. So the search waits at first and then
 * repeats. Processes that remain after that are killed by the process that recovers the jobs. A process
 * is left alone if its pid may have been reused, or if it is an ancestor of this process; then the job
 * is recovered when its lease expires.
 *
 * All of this happens outside of transactions, because a search of all processes takes milliseconds.
 */
#include "core/core.h"

#include "base/clock.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum {
    GRACE_MS = 200,  /* time for the leaders to kill the processes themselves */
    SOON_MS = 15,    /* the pause between two searches, */
    DYING_MS = 500,  /* … for this long after the processes were killed */
    MOST_BELOW = 64, /* generations of a family tree */
};

#define VARIABLE "LEASEHOLD_WORKER"

/* Real time, because processes do not follow the clock of a test. */
static int64_t now_ms(void)
{
    return lhi_mono_us() / 1000;
}

/* ---- searching ---- */

enum leader_now { GONE, THERE, REPLACED };

struct search {
    struct lhi_suspects *suspects;
    const bool
        *wanted; /* for each suspect: is its process gone, so that its sessions are searched? */
    enum leader_now *leader; /* the leaders of all wanted suspects, in order */
    bool no_memory;
};

static struct lhi_leftover *add_leftover(struct lhi_suspects *suspects, struct lhi_suspect *worker)
{
    struct lhi_leftovers *left = &suspects->left;
    struct lhi_leftover *grown = lhi_realloc(left->process, (left->n + 1) * sizeof *grown);

    worker->outlived = true;
    if (grown == NULL)
        return NULL;
    left->process = grown;
    struct lhi_leftover *one = &grown[left->n++];
    *one = (struct lhi_leftover){0};
    lhi_format(one->worker, sizeof one->worker, "%s", worker->id);
    return one;
}

static enum leader_now check_leader(const struct lhi_session *leader)
{
    struct lhi_process found;

    if (leader->pid <= 0 || !lhi_process_read(leader->pid, &found))
        return GONE;
    /* The kernel reuses a pid only when no process of that session is left. */
    if (leader->start == 0 || found.start != leader->start)
        return REPLACED;
    return THERE;
}

/* Is the process in a session of the worker, and is that certain? */
static bool in_session(const struct lhi_suspect *worker, const enum leader_now *leader,
                       const struct lhi_met *met, bool *certain)
{
    bool in = false;

    *certain = false;
    for (size_t i = 0; i < worker->n_leaders; i++) {
        if (met->session != worker->leaders[i].pid && met->pid != worker->leaders[i].pid)
            continue;
        in = in || leader[i] != REPLACED;
        *certain = *certain || leader[i] == THERE;
    }
    return in;
}

static const struct lhi_session *leader_at(const struct lhi_suspect *worker,
                                           const enum leader_now *leader, int64_t pid)
{
    for (size_t i = 0; i < worker->n_leaders; i++)
        if (worker->leaders[i].pid == pid && leader[i] == THERE)
            return &worker->leaders[i];
    return NULL;
}

/* Is the process a descendant of a live leader? Leaders are reapers, so even a process that has left the session
 * stays below them. */
static bool is_below(const struct lhi_suspect *worker, const enum leader_now *leader,
                     const struct lhi_process *process)
{
    struct lhi_process found = *process;

    for (int i = 0; i < MOST_BELOW && found.parent > 1; i++) {
        if (leader_at(worker, leader, found.parent) != NULL)
            return true;
        if (!lhi_process_read(found.parent, &found))
            return false;
    }
    return false;
}

static void match_worker(struct search *search, struct lhi_suspect *worker,
                         const enum leader_now *leader, const struct lhi_met *met)
{
    struct lhi_process seen = {0};
    bool certain;
    bool inside = in_session(worker, leader, met, &certain);
    bool named = strcmp(met->value, worker->id) == 0;

    int error = lhi_met_read(met, &seen);
    bool below = error == 0 && is_below(worker, leader, &seen);
    if (!inside && !named && !below)
        return;
    if (error == ENOENT || error == ESRCH || (error == 0 && lhi_process_ended(&seen)))
        return;
    /* A process that is older than the worker has the name from another source. */
    if (!inside && !below && error == 0 && seen.start < worker->process.start)
        return;
    struct lhi_leftover *left = add_leftover(search->suspects, worker);
    if (left == NULL) {
        search->no_memory = true;
        return;
    }
    left->pid = met->pid;
    left->start = seen.start;
    left->sought = true;
    left->leader = leader_at(worker, leader, met->pid) != NULL;
    left->certain = (certain || named || below) && error == 0;
}

static void match(void *arg, const struct lhi_met *met)
{
    struct search *search = arg;
    const enum leader_now *leader = search->leader;

    for (size_t i = 0; i < search->suspects->n; i++) {
        struct lhi_suspect *worker = &search->suspects->suspect[i];
        if (!search->wanted[i])
            continue;
        match_worker(search, worker, leader, met);
        leader += worker->n_leaders;
    }
}

/* Search all processes, and once more if nothing was found: a process that forks again and again may escape
 * one search. */
static int search_all(struct lhi_suspects *suspects, bool *wanted, struct lhi_error *err)
{
    size_t n = 0;
    struct search search = {.suspects = suspects, .wanted = wanted};

    for (size_t i = 0; i < suspects->n; i++)
        n += suspects->suspect[i].n_leaders;
    search.leader = lhi_calloc(n + 1, sizeof *search.leader);
    if (search.leader == NULL)
        return lhi_no_memory(err);
    for (int round = 0; round < 2; round++) {
        bool any = false;
        size_t at = 0;
        for (size_t i = 0; i < suspects->n; i++) {
            const struct lhi_suspect *worker = &suspects->suspect[i];
            wanted[i] = wanted[i] && !worker->outlived;
            any = any || wanted[i];
            for (size_t k = 0; wanted[i] && k < worker->n_leaders; k++)
                search.leader[at++] = check_leader(&worker->leaders[k]);
        }
        if (!any)
            break;
        bool listed = lhi_meet_processes(VARIABLE, match, &search);
        for (size_t i = 0; i < suspects->n && !listed; i++)
            if (wanted[i] && add_leftover(suspects, &suspects->suspect[i]) == NULL)
                search.no_memory = true;
    }
    lhi_free(search.leader);
    return search.no_memory ? lhi_no_memory(err) : LH_OK;
}

/* The cheap check: while a leader lives, not everything is gone. */
static int check_leaders(struct lhi_suspects *suspects, struct lhi_suspect *worker,
                         struct lhi_error *err)
{
    if (worker->unreadable && add_leftover(suspects, worker) == NULL)
        return lhi_no_memory(err);
    for (size_t i = 0; i < worker->n_leaders; i++) {
        const struct lhi_session *leader = &worker->leaders[i];
        if (leader->start == 0 || lhi_process_gone(leader->pid, leader->start))
            continue;
        struct lhi_leftover *left = add_leftover(suspects, worker);
        if (left == NULL)
            return lhi_no_memory(err);
        left->pid = leader->pid;
        left->start = leader->start;
    }
    return LH_OK;
}

/* Has the worker been gone for longer than the grace time, so that its processes are to be killed? */
static bool time_is_up(lh_store *store, const char *worker)
{
    bool up = false;

    pthread_mutex_lock(&store->slots_mutex);
    for (size_t i = 0; i < store->left.n && !up; i++)
        up = strcmp(store->left.process[i].worker, worker) == 0 &&
             now_ms() - store->left.process[i].since >= GRACE_MS;
    pthread_mutex_unlock(&store->slots_mutex);
    return up;
}

int lhi_find_leftovers(lh_store *store, struct lhi_suspects *suspects,
                       const struct lhi_identity *self, struct lhi_error *err)
{
    bool *wanted = NULL;
    int rc = LH_OK;

    for (size_t i = 0; i < suspects->n && rc == LH_OK; i++) {
        struct lhi_suspect *worker = &suspects->suspect[i];
        if (!worker->has_sessions || worker->process.pid == 0 ||
            !lhi_same_place(&worker->process, self) ||
            !lhi_process_gone(worker->process.pid, worker->process.start))
            continue;
        if (wanted == NULL && (wanted = lhi_calloc(suspects->n, sizeof *wanted)) == NULL)
            return lhi_no_memory(err);
        wanted[i] = true;
        if (worker->unreadable || !time_is_up(store, worker->id))
            rc = check_leaders(suspects, worker, err);
    }
    if (rc == LH_OK && wanted != NULL)
        rc = search_all(suspects, wanted, err);
    for (size_t i = 0; i < suspects->n && wanted != NULL; i++)
        suspects->suspect[i].nothing_left = wanted[i] && !suspects->suspect[i].outlived;
    lhi_free(wanted);
    return rc;
}

/* ---- killing ---- */

/* Copy what an earlier search knew of the process or its worker. */
static void remember(const struct lhi_leftovers *known, struct lhi_leftover *left)
{
    for (size_t i = 0; i < known->n; i++) {
        const struct lhi_leftover *before = &known->process[i];
        if (strcmp(before->worker, left->worker) != 0)
            continue;
        if (left->since == 0 || before->since < left->since)
            left->since = before->since;
        if (before->pid == left->pid && before->start == left->start)
            left->dealt_with = before->dealt_with;
    }
    if (left->since == 0)
        left->since = now_ms();
}

static bool runs_below(int64_t ancestor)
{
    struct lhi_process found;
    int64_t pid = getpid();

    for (int i = 0; i < MOST_BELOW && pid > 0; i++) {
        if (pid == ancestor)
            return true;
        pid = lhi_process_read(pid, &found) ? found.parent : 0;
    }
    return false;
}

static void deal_with(lh_store *store, const struct lhi_leftover *left)
{
    const lh_log_entry about = {.worker = left->worker};
    bool ours = left->certain && !runs_below(left->pid);
    int error = ours ? lhi_process_kill(left->pid, left->start) : 0;
    char why[128];

    if (!ours)
        lhi_log_about(&store->log, LH_LOG_WARN, &about,
                      "process %lld of dead worker %s is left alone: its jobs will be recovered "
                      "when their leases expire",
                      (long long)left->pid, left->worker);
    else if (error == 0)
        lhi_log_about(&store->log, LH_LOG_WARN, &about,
                      "killed process %lld left over by dead worker %s", (long long)left->pid,
                      left->worker);
    else if (error != ESRCH)
        lhi_log_about(&store->log, LH_LOG_WARN, &about,
                      "process %lld left over by dead worker %s cannot be killed: %s",
                      (long long)left->pid, left->worker, strerror_r(error, why, sizeof why));
}

/* Is the leader the last process of its worker? It is killed last, because its descendants are found through
 * it, and because other processes see by it that not everything is gone. */
static bool is_last(const struct lhi_leftovers *found, const struct lhi_leftover *leader)
{
    for (size_t i = 0; i < found->n; i++)
        if (!found->process[i].leader && strcmp(found->process[i].worker, leader->worker) == 0)
            return false;
    return true;
}

bool lhi_clear_leftovers(lh_store *store, struct lhi_leftovers *found)
{
    int64_t now = now_ms();
    bool soon = false;
    size_t n_due = 0;

    pthread_mutex_lock(&store->slots_mutex);
    for (size_t i = 0; i < found->n; i++) {
        struct lhi_leftover *left = &found->process[i];
        remember(&store->left, left);
        soon = soon || now - left->since < GRACE_MS + DYING_MS;
    }
    struct lhi_leftovers before = store->left;
    struct lhi_leftover *due = found->n > 0 ? lhi_calloc(found->n, sizeof *due) : NULL;
    for (size_t i = 0; i < found->n && due != NULL; i++) {
        struct lhi_leftover *left = &found->process[i];
        if (!left->sought || left->dealt_with || now - left->since < GRACE_MS ||
            (left->leader && !is_last(found, left)))
            continue;
        left->dealt_with = true;
        due[n_due++] = *left;
    }
    __atomic_store_n(&store->search_again_at,
                     found->n == 0 ? 0 : now + (soon ? SOON_MS : LHI_POLL_MS), __ATOMIC_RELAXED);
    store->left = *found;
    *found = (struct lhi_leftovers){0};
    pthread_mutex_unlock(&store->slots_mutex);
    for (size_t i = 0; i < n_due; i++)
        deal_with(store, &due[i]);
    lhi_free(due);
    lhi_free(before.process);
    return soon;
}

bool lhi_leftovers_due(lh_store *store, int64_t *ms)
{
    int64_t at = __atomic_load_n(&store->search_again_at, __ATOMIC_RELAXED);

    *ms = -1;
    if (at == 0)
        return false;
    int64_t now = now_ms();
    *ms = at > now ? at - now : SOON_MS;
    return at <= now && __atomic_compare_exchange_n(&store->search_again_at, &at, now + SOON_MS,
                                                    false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
