/*
 * lease_run.h: a command under a named lease, as its files see it.
 *
 *   lease_run.c    lh_lease_run(): the command, its guardian, how it ended
 *   lease_take.c   getting the lease, and waiting for it
 *   lease_keep.c   extending it, on a thread of its own
 */
#ifndef LHI_LEASE_RUN_H
#define LHI_LEASE_RUN_H

#include "worker/worker.h"

struct lease_run {
    lh_store *store;
    int clock; /* by which its leases are counted */
    const char *scope, *name;
    lh_lease_run_opts opts; /* with the defaults filled in */
    char owner[160];
    bool own_name; /* the owner is nobody else: it may be registered, so that its death is proven */
    sigset_t mask; /* as it was before the call */

    /* the lease */
    int64_t token;
    int64_t limit_ms; /* so long was it good when the store answered … */
    int64_t sent_at;  /* … counted from here */

    /* looking after the store while we wait for it */
    pthread_t watchman;
    bool watching;
    int unwatch; /* shared, atomic */

    /* the command */
    char *command_path, *guardian_path;
    char **environment;
    pid_t guardian, command;
    int socket, death, signals; /* -1: not open */
    int status;                 /* as of waitpid() */

    /* the keeper */
    pthread_t keeper;
    bool keeping;
    int quit;           /* eventfd */
    int quitting, lost; /* shared, atomic */
    bool enrolled;      /* the keeper's, until it is joined */
    char error[480];    /* likewise: why it was lost, or is not extended */

    pthread_mutex_t mutex; /* of the guardian's times */
    bool stopping;         /* nothing puts them off any more */
    int64_t kill_at;
};

/* lease_take.c: LH_OK with token, limit_ms and sent_at. What looked after the store while we waited
 * is gone only after the second. */
int lease_take(struct lease_run *run, struct lhi_error *err);
void lease_taken(struct lease_run *run);

/* lease_keep.c */
int64_t lease_now(const struct lease_run *run);
struct guardian_message lease_times(const struct lease_run *run, uint32_t order);
/* … unless it is being stopped; false: the guardian is gone. */
bool lease_order(struct lease_run *run, const struct guardian_message *m, const char *body,
                 size_t len, const int *fds);
void lease_stop(struct lease_run *run);
bool keeper_start(struct lease_run *run); /* limit_ms and sent_at are its own from here on */
void keeper_quit(struct lease_run *run);  /* from now on it changes nothing … */
void keeper_join(struct lease_run *run);  /* … and now it is gone */

#endif
