/*
 * lease_run.h: running a command under a named lease, for the files that do it.
 *
 *   lease_run.c    lh_lease_run(): the command, its guardian, how it ended
 *   lease_take.c   acquiring the lease, and waiting for it
 *   lease_keep.c   extending the lease, on a thread of its own
 */
#ifndef LHI_LEASE_RUN_H
#define LHI_LEASE_RUN_H

#include "worker/worker.h"

struct lease_run {
    lh_store *store;
    int clock; /* the clock that measures its leases */
    const char *scope, *name;
    lh_lease_run_opts opts; /* with the defaults filled in */
    char owner[160];
    bool own_name; /* the owner is unique to this run, so it may be registered as a worker */
    sigset_t mask; /* before the call */

    /* the lease */
    int64_t token;
    int64_t limit_ms; /* how long the lease was valid when the store answered, */
    int64_t sent_at;  /* … counted from this time, before the call */

    /* the thread that runs maintenance while we wait for the lease */
    pthread_t maintainer;
    bool watching;
    int unwatch; /* shared, atomic */

    /* the command */
    char *command_path, *guardian_path;
    char **environment;
    pid_t guardian, command;
    int socket, death, signals; /* -1: not open */
    int status;                 /* as of waitpid() */

    /* the thread that extends the lease */
    pthread_t extender;
    bool keeping;
    int quit;           /* eventfd */
    int quitting, lost; /* shared, atomic */
    bool enrolled;      /* written by that thread only, until it is joined */
    char error[480];    /* likewise: why the lease was lost or is not extended */

    pthread_mutex_t mutex; /* protects the times of the guardian */
    bool stopping;         /* the times are not put off any more */
    int64_t kill_at;
};

/* lease_take.c: acquire the lease; LH_OK sets token, limit_ms and sent_at. The maintenance thread of the wait
 * ends with the second call. */
int lease_take(struct lease_run *run, struct lhi_error *err);
void lease_taken(struct lease_run *run);

/* lease_keep.c */
int64_t lease_now(const struct lease_run *run);
struct guardian_message lease_times(const struct lease_run *run, uint32_t order);
/* Send new times unless the command is being stopped. False: the guardian is gone. */
bool lease_order(struct lease_run *run, const struct guardian_message *m, const char *body,
                 size_t len, const int *fds);
void lease_stop(struct lease_run *run);
bool extender_start(struct lease_run *run); /* it owns limit_ms and sent_at from now on */
void extender_quit(struct lease_run *run);  /* after this it changes nothing */
void extender_join(struct lease_run *run);  /* wait until it has ended */

#endif
