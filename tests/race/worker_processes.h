/*
 * Workers as processes of their own, which carry out one order of the test at a time: they hold jobs, and are
 * killed and suspended.
 *
 *     struct hand worker = hand_start(&store, "w-1", &(lh_worker_opts){.process = true});
 *     struct answer held = ask(&worker, HOLD);
 *     hand_kill(&worker);
 *
 * Every error fails the test.
 */
#ifndef RACE_CREW_H
#define RACE_CREW_H

#include "harness/harness.h"

enum deed {
    HOLD,         /* enqueue a job into "q" and claim it, for HOLD_MS */
    WAIT,         /* wait for a job of "q", for ever, and claim it */
    COMPLETE,     /* complete the last job */
    BEAT,         /* a heartbeat for that job … */
    BEAT_WORKER,  /* … and for the worker, too */
    STOP,         /* suspend itself before it reads the next order */
    FIRST_LEAVES, /* end its first thread; another thread reads the next orders */
    LEAVE,        /* exit at once, closing nothing */
    QUIT,         /* close the store and end */
};

enum { HOLD_MS = 600000 };

struct answer {
    int status;
    int64_t job, token;
    int64_t at_ns; /* when the order was done, by CLOCK_MONOTONIC */
};

struct hand {
    pid_t pid;
    char name[64];
    int orders, answers;
};

/* Where the log of every handle of crew_open() goes; NULL: nowhere. */
extern lh_log_fn *crew_log;
extern void *crew_log_arg;
lh_store *crew_open(void);

/* `opts` NULL: it does not register. The test's own handle is closed and opened again. */
struct hand hand_start(lh_store **store, const char *name, const lh_worker_opts *opts);
/* The same in a new pid namespace; pid 0: that is not possible here. */
struct hand hand_start_elsewhere(lh_store **store, const char *name, const lh_worker_opts *opts);
/* … or in a time namespace whose clocks are more than a day ahead. */
struct hand hand_start_at_another_time(lh_store **store, const char *name,
                                       const lh_worker_opts *opts);
void tell(struct hand *hand, enum deed deed);
struct answer hear(struct hand *hand);
struct answer ask(struct hand *hand, enum deed deed);
void hand_kill(const struct hand *hand); /* SIGKILL; it stays a zombie until it is reaped */
void hand_reap(struct hand *hand);
void hand_quit(struct hand *hand); /* it closes the store and exits */
void await_stop(const struct hand *hand);
void hand_continue(const struct hand *hand);

/* All processes of a test share one clock, which the test moves. Call this first. */
void clock_start(void);

/* On SQLite no waiting call returns because its poll came: only a wake-up or a deadline ends a wait.
 * After clock_start(). */
void polls_stop(void);
void clock_advance_ms(int64_t ms);

int64_t now_ns(void);
/* In a loop that waits for something to happen. */
void pause_between_looks(void);

lh_job job_now(lh_store *store, int64_t id); /* its strings are freed already */
void expect_sound(lh_store *store);

#endif
