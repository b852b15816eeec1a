/*
 * death_watch.h: a thread that notices at once when the process of a worker on this machine ends.
 */
#ifndef LHI_DEATH_WATCH_H
#define LHI_DEATH_WATCH_H

#include "rules/worker_death.h"

#include <pthread.h>

/* What the watch needs from a store. The watching thread makes all calls. */
struct lhi_death_watch_of {
    void *arg;
    bool (*workers)(void *arg, struct lhi_suspects *out); /* list the workers; false: failed */
    void (*wake)(void *arg); /* wake the processes that do maintenance: a worker is gone */
    int64_t refresh_ms;      /* how often to list the workers if nothing is known to have changed */
};

struct lhi_death_watch {
    struct lhi_death_watch_of of;
    pthread_mutex_t mutex;
    pthread_t thread;
    bool watching;
    bool stopping; /* atomic */
    uint32_t seen; /* the maintenance wake-ups when the workers were last listed */
    int pipe[2];   /* wakes the thread */
};

void lhi_death_watch_init(struct lhi_death_watch *w, const struct lhi_death_watch_of *of);

/* Start the thread, or list the workers again if `wakeups`, the counter of maintenance wake-ups, has
 * changed since the last call: a worker may have come. */
void lhi_death_watch_start(struct lhi_death_watch *w, uint32_t wakeups);

/* List the workers again: a worker has come. */
void lhi_death_watch_refresh(struct lhi_death_watch *w);

void lhi_death_watch_stop(struct lhi_death_watch *w);
void lhi_death_watch_clear(struct lhi_death_watch *w);

#endif
