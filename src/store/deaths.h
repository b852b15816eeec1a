/* The processes of workers of this machine, watched: whoever waits hears at once that one died. */
#ifndef LHI_DEATHS_H
#define LHI_DEATHS_H

#include "store/store.h"

#include <pthread.h>

/* Whose workers they are. All is called by the watching thread. */
struct lhi_deaths_of {
    void *arg;
    bool (*workers)(void *arg,
                    struct lhi_suspects *out); /* as they are now; false: cannot be read */
    void (*sound)(void *arg);                  /* the siren: one is gone */
    int64_t refresh_ms;                        /* who comes sounds the siren too: this is the net */
};

struct lhi_deaths {
    struct lhi_deaths_of of;
    pthread_mutex_t mutex;
    pthread_t thread;
    bool watching;
    bool stopping;  /* atomic */
    uint32_t heard; /* of the siren, when the list of workers was last asked for */
    int pipe[2];
};

void lhi_deaths_init(struct lhi_deaths *deaths, const struct lhi_deaths_of *of);
/* Begin to watch, or look at the list anew where the siren has sounded since. */
void lhi_deaths_watch(struct lhi_deaths *deaths, uint32_t heard);
void lhi_deaths_look(struct lhi_deaths *deaths); /* … because somebody has come */
void lhi_deaths_stop(struct lhi_deaths *deaths);
void lhi_deaths_clear(struct lhi_deaths *deaths);

#endif
