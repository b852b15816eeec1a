/* wake.h: what wake.c, listener.c and leader.c share. One mutex guards all of it, and all
 * waiting threads use one condition variable. Functions without the prefix pg_ expect the mutex
 * to be held. */
#ifndef LHI_PG_WAKE_H
#define LHI_PG_WAKE_H

#include "store/postgres/wire.h"

/* Names of notifications besides those of queues: something falls due soon; the leader has
 * resigned; a worker has registered. */
#define PG_DUE_NAME "!"
#define PG_LEADER_LEFT_NAME "-"
#define PG_WORKER_NAME "+"

struct subscription {
    char name[264]; /* a queue, or QUEUE/KIND, or PG_DUE_NAME */
    uint32_t wakeups;
    int64_t until; /* real time; as far as this process knows */
};

struct wake {
    pthread_mutex_t mutex;
    pthread_cond_t changed;

    /* wake.c */
    struct subscription *subscriptions;
    size_t n, room;
    uint32_t all; /* wake-ups for all waits */

    /* leader.c */
    uint32_t due;             /* wake-ups for waits for maintenance */
    uint32_t deaths;          /* of workers; or there was no listener for a while */
    bool is_leader;           /* at this handle's last poll; otherwise ... */
    int64_t follower_ms;      /* ... how long it need not poll */
    int maintainers;          /* threads that wait for maintenance ... */
    int64_t maintained_until; /* ... or will soon wait again; real time */

    /* listener.c */
    pthread_t listener;
    bool started, listening;
    bool pooled;   /* behind a pooler: listening is impossible */
    int pipe[2];   /* wakes the listener when its connection is returned, or to stop it */
    bool stopping; /* atomic */
};

/* wake.c */
void pg_wake_all(struct wake *wake);
void pg_forget_subscriptions(struct wake *wake);
void pg_wake_name(struct wake *wake, const char *name);
/* leader.c */
bool pg_is_maintained(const struct wake *wake);
void pg_wake_due(struct wake *wake);
void pg_note_death(struct wake *wake);
void pg_hear_due(struct wake *wake);
void pg_hear_leader_left(struct wake *wake);
void pg_end_maintainer(struct wake *wake);
void pg_leader_init(struct pg *pg);

#endif
