/*
 * worker_death.c: whether a worker is dead or late.
 *
 * The store marks a worker as dead under a guard, so a worker that has sent a heartbeat since it was
 * judged stays alive.
 */
#include "rules/worker_death.h"

#include "base/error.h"
#include "base/processes.h"

#include <leasehold.h>

#include <stdlib.h>
#include <string.h>

void lhi_suspects_clear(struct lhi_suspects *suspects)
{
    lhi_arena_drop(&suspects->priv);
    lhi_free(suspects->left.process);
    lhi_free(suspects->suspect);
    memset(suspects, 0, sizeof *suspects);
}

bool lhi_same_place(const struct lhi_identity *a, const struct lhi_identity *b)
{
    return a->boot[0] != '\0' && strcmp(a->boot, b->boot) == 0 &&
           strcmp(a->machine, b->machine) == 0 && a->pid_ns != 0 && a->pid_ns == b->pid_ns &&
           a->time_ns == b->time_ns; /* a time namespace shifts start times */
}

bool lhi_sessions_parse(const char *json, struct lhi_arena *arena, struct lhi_suspect *worker)
{
    size_t room = strlen(json) / 5 + 1; /* [1,0], */
    struct lhi_session *leaders = lhi_arena_alloc(arena, room * sizeof *leaders);
    const char *p = json;

    if (leaders == NULL)
        return false;
    for (; worker->n_leaders < room && *p == (worker->n_leaders == 0 ? '[' : ',') && p[1] == '[';
         worker->n_leaders++) {
        struct lhi_session *leader = &leaders[worker->n_leaders];
        char *comma, *end;
        leader->pid = strtoll(p + 2, &comma, 10);
        if (*comma != ',')
            break;
        leader->start = strtoll(comma + 1, &end, 10);
        if (*end != ']')
            break;
        p = end + 1;
    }
    worker->has_sessions = true;
    worker->leaders = leaders;
    worker->unreadable = strcmp(p, "]") != 0 && strcmp(json, "[]") != 0;
    return true;
}

/* A heartbeat comes every interval, plus or minus a tenth. After one and a half intervals one was missed. */
static bool missed_a_heartbeat(const struct lhi_suspect *worker, int64_t now)
{
    return now - worker->last_heartbeat_at > worker->interval_ms + worker->interval_ms / 2;
}

/* Did the worker run in another boot, which has ended? If the store is shared by several machines, the worker
 * must be of this machine. Machine ids may be cloned, so a heartbeat must be missing as well. */
static bool of_earlier_boot(const struct lhi_suspect *worker, const struct lhi_identity *self,
                            int64_t now)
{
    const struct lhi_identity *id = &worker->process;

    if (strcmp(id->boot, self->boot) == 0)
        return false;
    return worker->boot_proves ||
           (self->machine[0] != '\0' && strcmp(id->machine, self->machine) == 0 &&
            missed_a_heartbeat(worker, now));
}

/* Is it proven that the process and everything it started are gone? That takes the same machine, boot, pid
 * namespace and time namespace. */
static bool proven_gone(const struct lhi_suspect *worker, const struct lhi_identity *self,
                        int64_t now, char what[96])
{
    const struct lhi_identity *id = &worker->process;

    if (id->pid == 0 || self->boot[0] == '\0' || id->boot[0] == '\0')
        return false;
    if (of_earlier_boot(worker, self, now)) {
        lhi_format(what, 96, "is gone (another boot)");
        return true;
    }
    /* If the worker records sessions, its processes must have been searched after it was gone. */
    if ((worker->has_sessions && !worker->nothing_left) || !lhi_same_place(id, self) ||
        !lhi_process_gone(id->pid, id->start))
        return false;
    lhi_format(what, 96, "is gone (pid %lld)", (long long)id->pid);
    return true;
}

static bool too_silent(const struct lhi_suspect *worker, int64_t now, char what[96])
{
    char silence[32], interval[32];
    int64_t silent = now - worker->last_heartbeat_at;

    if (silent < worker->interval_ms * worker->multiplier)
        return false;
    lhi_format(what, 96, "has been silent for %s (%lld × %s)",
               lh_duration_format(silent, silence, sizeof silence), (long long)worker->multiplier,
               lh_duration_format(worker->interval_ms, interval, sizeof interval));
    return true;
}

bool lhi_judge_worker(const struct lhi_suspect *worker, const struct lhi_identity *self,
                      int64_t now, struct lhi_death *out)
{
    int64_t silence = now - worker->last_heartbeat_at;

    *out = (struct lhi_death){.worker = worker->id,
                              .last_heartbeat_at = worker->last_heartbeat_at,
                              .sessions = worker->sessions,
                              .process = worker->process.pid != 0,
                              .beat_missed = silence > worker->interval_ms};
    out->silent = too_silent(worker, now, out->what);
    out->proven = proven_gone(worker, self, now, out->what);
    if (out->silent || out->proven)
        return true;
    out->late = !worker->late && missed_a_heartbeat(worker, now);
    return out->late;
}
