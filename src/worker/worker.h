/*
 * worker.h: the state of a running worker, shared by its files.
 *
 *   run.c            lh_worker_run(): options, setting up, clearing
 *   loop.c           the main loop
 *   store_calls.c    threads that call the store, so that the loop never waits for it
 *   claims.c         what to claim and what to start; our own rate limit
 *   deadlines.c      when a run must end, and stopping it
 *   heartbeats.c     extending the leases, sending what jobs report
 *   outcomes.c       the outcomes of runs, written to the store
 *   worker_record.c  the worker's record in the store
 *   output.c         the output of runs
 *   command.c        a job as a command: its descriptors, its progress lines, its exit code
 *   guard.c          the guardians, as the worker sees them
 *   handler.c        a job as a function call; lh_task_…
 *   program.c        finding programs, environments; shared with lease_run.c
 *   lease_run.c      lh_lease_run()
 *   guardian.c       the guardian, a program of its own; spawn.c: starting a process
 *
 * All fields belong to the thread of the loop, with two exceptions: the arguments of a store call while it is
 * `busy`, and fields marked as shared, which are protected by `mutex`.
 */
#ifndef LHI_WORKER_H
#define LHI_WORKER_H

#include <leasehold.h>

#include "base/error.h"
#include "base/mem.h"
#include "worker/guardian.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>

enum {
    RESULT_MOST = 1 << 20, /* of a command's standard output */
    ERROR_MOST = 4096,     /* the end of its standard error */
    STAGE_MOST = 256,
    REPORTED_MOST = 1, /* reports about unknown progress lines, per job */
    CHECKPOINT_MOST = 64 << 10,
    STORE_CALLS = 7,
    BURST_US = 10000, /* handlers get tasks in advance that should start within this time, */
    BURST_MOST = 64,  /* … at most this many, */
    RECALL_MS = 1000, /* … and a task that waits longer than this is released */
    LARGEST_RESULT = 64 << 20,
    LINE_MOST = 66 * 1024, /* of a progress line: a checkpoint and its keyword */
    FAILURES_IN_A_ROW = 5, /* make a worker degraded */
    RETRY_MS = 100,        /* the first pause after a failed call; it doubles */
    RETRY_MOST_MS = 10000, /* … up to this pause */
    DETAIL_MS = 250,       /* the shortest time between two reports of one job */
    CHECK_MS = 1000,       /* how often to check a clock that runs while the machine sleeps */
    SAME_STOP_MS = 100,    /* two signals within this time mean one stop */
    WAITING_MS = 250,      /* a draining worker reports that it waits for retries after this time */
    GIVE_UP_MS = 10000,    /* on stop, how long to wait for a store that does not answer */
};

struct worker;

/* A descriptor that the loop waits for, and the function to call. */
struct source {
    int fd; /* -1: none */
    void (*ready)(struct worker *w, struct source *source, uint32_t events);
};

/* ---- store calls ---- */

struct store_call {
    struct worker *worker;
    pthread_t thread;
    pthread_cond_t cond;
    void (*act)(struct worker *w);  /* on the thread of the call */
    void (*done)(struct worker *w); /* in the loop, afterwards */
    bool alive;
    bool asked, finished, quit; /* shared */
    bool busy;
    /* The outcome of the last call. */
    int rc;
    char error[480];
    int failures; /* in a row */
    int64_t retry_at;
};

/* ---- tasks: the claimed jobs ---- */

enum task_state {
    TASK_FREE = 0,
    TASK_AHEAD,     /* claimed, not started */
    TASK_RECORDING, /* its start is being written to the worker's record */
    TASK_RECORDED,  /* its start is recorded */
    TASK_STARTING,  /* its guardian got the order */
    TASK_RUNNING,
    TASK_ENDED, /* its outcome is not written yet */
    TASK_REPORTING
};

/* Why this worker stopped a run. */
enum stop_reason { STOP_NONE = 0, STOP_LOST, STOP_FENCE, STOP_TIMEOUT, STOP_SHUTDOWN };

/* The jobs of one claim share the memory of their strings. */
struct batch {
    lh_jobs *jobs;
    size_t left;
};

/* A buffer that grows up to a limit. */
struct bytes {
    char *at;
    size_t len, room;
};

/* What a run wrote to one stream. */
struct stream {
    struct bytes head, tail;
    int64_t bytes; /* in total */
};

struct pipe_end {
    struct source source;
    struct lh_task *task;
};

struct lh_task {
    struct worker *worker;
    enum task_state state;
    struct batch *batch;
    const lh_job *job;
    uint64_t order;      /* the order of claims */
    struct guard *guard; /* of a command */
    bool unguarded;      /* its guardian was killed; processes below that are being killed */
    int64_t session;     /* … of this session, and orphans that became our children */
    int64_t sent_at;     /* when the last confirmed heartbeat, or the claim, was sent */
    int64_t warn_at, term_at, kill_at;
    int64_t started_at, timeout_ms, stop_asked_at, stop_kill_at;
    int64_t begun_at; /* atomic: when a thread took it; 0: it waits for one */
    bool warned;
    enum stop_reason stop;
    int lost; /* shared, atomic: what lh_task_lost() returns */
    bool cancelled;
    lh_outcome outcome;
    lh_outcome returned; /* by the handler */
    int64_t run_us;      /* how long the handler ran */
    bool begun;          /* a thread has called the handler */

    struct pipe_end out, err, talk;
    char refused[160];      /* why the store refused its last report */
    int64_t not_understood; /* lines */
    struct bytes line;      /* of `talk`, without a newline so far */

    /* Shared: what the job reports. */
    struct bytes result, error;
    int64_t result_bytes;     /* the size before it was cut */
    struct stream written[2]; /* standard output, standard error */
    int64_t flush_at;         /* when to send the output; 0: there is nothing new */
    int64_t flushed_at;
    int details; /* atomic: something is to be sent to the store */
    int progress;
    char *stage;
    char *checkpoint, *next_checkpoint; /* sent one after the other: either may be no JSON */
    int64_t detail_sent_at;
};

/* ---- guardians ---- */

struct guard {
    struct source socket, death;
    struct worker *worker;
    pid_t pid;
    bool recorded; /* in the worker's record: it may run a command */
    bool killed;   /* by us */
    struct lh_task *task;
};

/* ---- the worker ---- */

enum stage { STAGE_WORK = 0, STAGE_STOPPING, STAGE_KILLING, STAGE_OVER };

struct
    worker { /* NOLINT(clang-analyzer-optin.performance.Padding): grouped by subject; there is one */
    lh_store *store;
    int clock;         /* the clock that measures the store's leases */
    lh_work_opts opts; /* with the defaults filled in */
    char id[160];
    char store_uuid[40];
    lh_work_tally tally;
    int epoll;
    struct source wakeup, signals; /* a store call or a handler has finished; a signal came */
    pthread_mutex_t mutex;

    struct lh_task *tasks;
    size_t n_tasks;
    size_t ahead, running; /* numbers of tasks: claimed in advance; started and not ended */
    uint64_t orders;

    /* claiming */
    struct store_call claim_call;
    struct {
        size_t n;
        int64_t wait_ms;
        bool drain;         /* as in lh_claim_opts */
        int64_t waiting_at; /* when to report the wait; INT64_MAX: never, or done */
        int cancel;         /* shared, atomic */
        lh_jobs *jobs;
    } claim;
    bool empty;            /* the last claim found nothing, and nothing has changed since */
    bool out_of_resources; /* claim nothing until resources_at */
    int64_t resources_at;
    double tokens; /* of opts.rate_n */
    int64_t tokens_at;

    /* heartbeats */
    struct store_call heartbeat_call;
    struct {
        lh_beat *beats;
        int *status;
        struct lh_task **tasks;
        size_t n;
        bool detail; /* the call sends the report of one job only */
        int64_t sent_at;
    } heartbeat;
    int64_t heartbeat_at;
    bool heartbeat_now; /* send one now: the store is available again */
    int64_t
        confirmed_at; /* when the store certainly heard of us: the last confirmed heartbeat, or claim */
    int64_t heartbeat_asked_at; /* when the last call started */
    bool heartbeat_overdue;     /* it has no answer yet, and counts as failed */
    bool heartbeat_failing;

    /* outcomes */
    struct store_call outcome_call;
    struct {
        struct lh_task **tasks;
        int *status;
        size_t n;
        /* arguments of the calls */
        size_t *at;
        int *answers;
        lh_done *done;
        lh_failure *failures;
        lh_ref *refs;
        lh_output *outputs;
        /* the claim that is made with the completes */
        size_t claim;  /* jobs to claim; 0: none */
        lh_jobs *jobs; /* shared: its jobs, until the loop takes them */
    } outcome;
    int failures_in_a_row;
    bool degraded, degraded_written;
    char last_failure[200];

    /* the worker's record */
    struct store_call record_call;
    struct {
        lh_ref *started;
        size_t n_started;
        int64_t *sessions;
        size_t n_sessions;
        bool write_started, write_sessions, write_degraded;
        bool started_written, sessions_written, degraded_written;
        char degraded[300];
    } record;
    bool sessions_changed, started_changed;

    /* output of running jobs */
    struct store_call output_call;
    struct {
        lh_output *outputs; /* copies */
        int *status;
        size_t n;
    } log;

    /* maintenance */
    struct store_call maintain_call;
    int maintain_cancel; /* shared, atomic */

    /* replacing a stopped handle */
    struct store_call open_call;
    int64_t opened_at;
    bool reopen; /* shared: the handle is stopped */
    int calls;   /* shared: calls of handlers that use the handle */

    /* commands */
    char *command_path, *guardian_path;
    char **environment;
    struct guard *guards;
    size_t n_guards;
    size_t n_unguarded; /* tasks */
    int64_t sweep_at, sweep_ms;
    int swept_clean;

    /* handlers */
    pthread_t *handlers;
    size_t n_handlers;
    pthread_cond_t work;
    struct lh_task **ready; /* shared: a ring buffer of tasks to run */
    size_t ready_at, n_ready;
    int64_t taken_at;      /* when a thread took the last one */
    struct lh_task **over; /* shared: tasks that have run */
    size_t n_over;
    bool handlers_quit; /* shared */
    int64_t run_us;     /* how long a run usually takes; -1: unknown */
    size_t burst;       /* tasks that may wait for a thread */

    enum stage stage;
    bool left_running;    /* a command could not be ended */
    int64_t signalled_at; /* when the first signal came; 0: none */
    uint32_t signal;      /* the first signal */
    int64_t grace_until, give_up_at;
    int64_t idle_since; /* on stop: since when no job runs; 0: one does */
    int64_t watchdog_ms, watchdog_at;
    int rc; /* what lh_worker_run() returns */
    char error[480];
};

int64_t worker_now(const struct worker *w);

/* run.c */
int worker_enrol(struct worker *w, lh_store *store); /* register, under w->id if there is one */

/* loop.c */
bool loop_init(struct worker *w);
void stop_signals(sigset_t *set);
void loop_clear(struct worker *w);
void worker_loop(struct worker *w);
void maintain_cancel(struct worker *w);
void worker_stop(struct worker *w, bool at_once);
void worker_fail(struct worker *w, int rc,
                 const char *error); /* set the outcome of the worker, and stop */
void worker_report(struct worker *w, lh_work_event *event, const struct lh_task *task);
void worker_trouble(struct worker *w, struct store_call *call, const char *doing);
bool source_add(struct worker *w, struct source *source);
void source_close(struct worker *w, struct source *source);
bool is_final(int rc);            /* waiting does not help against this failure */
void loop_wake(struct worker *w); /* wake the loop; any thread may call it */

/* store_calls.c */
bool store_call_start(struct worker *w, struct store_call *call);
void store_call_ask(struct store_call *call);
void store_call_stop(struct store_call *call); /* waits for the thread */
void store_calls_done(struct worker *w);
void store_call_failed(struct store_call *call, int rc);

/* claims.c */
bool claims_init(struct worker *w);
void claims_step(struct worker *w);
void claims_cancel(struct worker *w);
void out_of_resources(struct worker *w, const struct lh_task *task, const char *what, int error);
void start_tasks(struct worker *w);
size_t claims_with_outcomes(struct worker *w); /* the number of jobs to claim with the completes */
lh_claim_opts claim_opts(const struct worker *w, size_t n);
void claims_take(struct worker *w, lh_jobs *jobs);
int64_t claims_next(struct worker *w); /* when the next step is due; INT64_MAX: after an event */
void task_free(struct lh_task *task);

/* heartbeats.c */
bool heartbeats_init(struct worker *w);
void heartbeats_clear(struct worker *w);
void heartbeats_step(struct worker *w, int64_t now);
int64_t heartbeats_next(const struct worker *w);
void report_refused(struct lh_task *task, const char *why); /* a report of the job was refused */

/* deadlines.c */
int64_t fence_of(int64_t limit_ms); /* how long a run may last within a lease of this length */
int64_t notice_of(int64_t kill_after_ms, int64_t fence_ms); /* from SIGTERM to SIGKILL */
void set_deadlines(struct lh_task *task, int64_t sent_at, int64_t remaining_ms);
bool task_in_run(const struct lh_task *task);
void task_stop(struct lh_task *task, enum stop_reason why, int64_t kill_after_ms);
void deadlines_step(struct worker *w, int64_t now);
int64_t deadlines_next(const struct worker *w);

/* outcomes.c */
bool is_gone(int status); /* does this answer mean that the job is not ours any more? */
bool outcomes_init(struct worker *w);
void outcomes_clear(struct worker *w);
void outcomes_step(struct worker *w, int64_t now);
void outcomes_claimed(struct worker *w);
bool outcomes_wait(const struct worker *w); /* do completes wait to be written? */
int64_t outcomes_next(const struct worker *w);
void task_ended(struct lh_task *task, lh_outcome outcome); /* the run has ended */

/* worker_record.c */
bool record_init(struct worker *w);
void record_clear(struct worker *w);
void record_step(struct worker *w, int64_t now);
int64_t record_next(const struct worker *w);
void record_lay_out(struct worker *w);

/* output.c */
bool output_init(struct worker *w);
void output_end(struct worker *w);
void output_step(struct worker *w, int64_t now);
int64_t output_next(struct worker *w);
bool output_add(struct lh_task *task, bool err, const void *bytes, size_t len);
/* The output of a run as an argument of the store, in `room`; NULL: none. */
const lh_output *output_of(const struct lh_task *task, lh_output *room);
void output_clear(struct lh_task *task);

/* command.c */
int command_locate(const lh_work_opts *opts, char **command, char **guardian,
                   struct lhi_error *err);
int command_init(struct worker *w, struct lhi_error *err);
void command_clear(struct worker *w);
bool command_start(struct lh_task *task);
void command_started(struct lh_task *task);
void command_refused(struct lh_task *task, int error);
void command_ended(struct lh_task *task, const struct guardian_answer *answer);
void command_unguarded(struct lh_task *task); /* the guardian and the command are gone */
void command_forget(struct lh_task *task);
lh_outcome stop_outcome(
    struct lh_task *task); /* the outcome of a run that was stopped; sets its error */

/* program.c */
char *find_command(const char *name, struct lhi_error *err);
char *find_guardian(const char *given, struct lhi_error *err);
/* Can a worker run on this system? */
int check_system(struct lhi_error *err);
/* A copy of our environment without variables that begin like one of `without`; NULL: no memory. */
char **make_environment(const char *const *without, const char *worker, const char *store);
void free_environment(char **made, bool store);

struct process_state {
    sigset_t mask;
    int subreaper;
};

void change_process_state(const sigset_t *blocked, bool reaper, struct process_state *before);
void restore_process_state(const struct process_state *before);

/* guard.c */
struct guard *guard_idle(struct worker *w);
bool guard_spare(const struct worker *w);
bool guard_new(struct worker *w);
bool guard_run(struct guard *guard, struct lh_task *task, const char *variables, size_t len,
               const int fds[GUARDIAN_FDS]);
void guard_deadline(struct guard *guard, const struct lh_task *task, bool stop);
bool guard_is_stopped(const struct guard *guard);
void guard_continue(const struct guard *guard);
void guard_kill(struct guard *guard);
void guards_sweep(struct worker *w, int64_t now);
int64_t guards_next(const struct worker *w);
void guards_reap(struct worker *w);
void guard_end(struct worker *w, struct guard *guard);
void guards_close(struct worker *w);
/* Start a guardian, in a new session or in ours. *socket is our end. -1: errno says why. */
pid_t guardian_start(const char *guardian, const char *path, char *const *command,
                     char *const *environment, bool session, int *socket);
/* Send a message with the descriptors that it names and a body. False: the guardian is gone. */
bool guardian_order(int socket, const struct guardian_message *message, const char *body,
                    size_t len, const int *fds);

/* handler.c */
bool handlers_start(struct worker *w);
void handlers_stop(struct worker *w);
void handlers_run(struct lh_task *task);
void handlers_recall(struct worker *w);
void handlers_step(struct worker *w, int64_t now);
int64_t handlers_next(struct worker *w);
void handlers_over(struct worker *w); /* in the loop: take the tasks whose handlers have returned */

/* bytes */
bool bytes_add(struct bytes *bytes, const void *more, size_t len, size_t most);
void bytes_keep_end(struct bytes *bytes, const void *more, size_t len, size_t most);
void bytes_clear(struct bytes *bytes);

#endif
