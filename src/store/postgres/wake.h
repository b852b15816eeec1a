/* wake.h: what wake.c, listener.c and leader.c share. One mutex guards all of it, and those who sleep wait for one
 * condition. Functions without the prefix pg_ expect the mutex to be held. */
#ifndef LHI_PG_WAKE_H
#define LHI_PG_WAKE_H

#include "store/postgres/wire.h"

/* Names under which the database notifies, beside those of queues: something falls due soon; the leader has left;
 * a worker has come. */
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
    uint32_t all; /* wake-ups of everybody */

    /* leader.c */
    uint32_t due;             /* wake-ups of those who wait for maintenance */
    uint32_t deaths;          /* of workers; or nobody has listened for a while */
    bool is_leader;           /* when this handle asked last; otherwise … */
    int64_t follower_ms;      /* … how long it need not poll */
    int maintainers;          /* threads that wait for maintenance … */
    int64_t maintained_until; /* … or will again soon; real time */

    /* listener.c */
    pthread_t listener;
    bool started, listening;
    bool pooled;   /* behind a pooler: nobody can listen */
    int pipe[2];   /* wakes the listener: its connection was lent and is back, or it is to stop */
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
