/*
 * worker_death.h: whether a worker is dead or late.
 *
 * A worker is dead when its process is proven gone, or when it sent no heartbeat for longer than its
 * silence limit. It is late after one missed heartbeat.
 */
#ifndef LHI_WORKER_DEATH_H
#define LHI_WORKER_DEATH_H

#include "base/mem.h"
#include "base/sys.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The leader of a process session in which jobs of a worker run. */
struct lhi_session {
    int64_t pid, start; /* start 0: the process was gone when the worker recorded it */
};

/* A worker that is recorded as alive, and what is known about it. */
struct lhi_suspect {
    const char *id;
    struct lhi_identity process; /* pid 0: the worker has registered no process */
    int64_t interval_ms, multiplier, last_heartbeat_at;
    bool late; /* already recorded as late */
    bool
        boot_proves; /* all workers of the store share one machine, so another boot id is a proof */
    bool
        has_sessions; /* the worker records its sessions; false: leftover processes are not searched */
    const char *sessions;              /* as they are recorded in the store; NULL: none ever were */
    const struct lhi_session *leaders; /* the same, parsed */
    size_t n_leaders;
    bool unreadable; /* the recorded sessions cannot be parsed, so the death is never proven */
    bool outlived;   /* the worker is gone, but some of its processes are not (core/leftovers.c) */
    bool nothing_left; /* the worker and all of its processes are gone */
};

/* A process that a dead worker has left running (core/leftovers.c). */
struct lhi_leftover {
    char worker[160];
    int64_t pid, start; /* pid 0: it is unknown whether there is such a process */
    bool sought;        /* found in a search of all processes, which finds all others as well */
    bool leader;        /* leader of a session, which is killed last */
    bool certain;       /* identified with certainty, so it may be killed */
    bool dealt_with;    /* killed, or the reason why not was logged */
    int64_t since;      /* monotonic: when the worker was first seen to be gone */
};

struct lhi_leftovers {
    size_t n;
    struct lhi_leftover *process;
};

struct lhi_suspects {
    size_t n;
    struct lhi_suspect *suspect;
    struct lhi_leftovers left; /* of those workers that are gone */
    void *priv;
};

void lhi_suspects_clear(struct lhi_suspects *suspects);

/* The verdict on a worker that is dead or late, and the record it was made from. */
struct lhi_death {
    const char *worker;
    int64_t last_heartbeat_at;
    const char *sessions; /* as they are recorded in the store */
    bool process;         /* the worker has registered its process, so its jobs are reclaimable */
    bool proven;          /* its process is gone; false: only its silence says so */
    bool silent;          /* it was silent for longer than its limit */
    bool beat_missed;     /* it was silent for longer than one interval */
    bool late;            /* it is not dead, but became late */
    char what[96];        /* "is gone (pid 4711)" */
};

/* True: the worker is dead or late. `self` is the process that asks. */
bool lhi_judge_worker(const struct lhi_suspect *worker, const struct lhi_identity *self,
                      int64_t now, struct lhi_death *out);

/* Parse recorded sessions, [[pid, start], …], into `worker`. False: no memory. */
bool lhi_sessions_parse(const char *json, struct lhi_arena *arena, struct lhi_suspect *worker);

/* Do both processes live on one machine, in one boot and in the same namespaces, so that a pid and a
 * start time mean the same for both? */
bool lhi_same_place(const struct lhi_identity *a, const struct lhi_identity *b);

#endif
