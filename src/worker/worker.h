/*
 * worker.h: a worker at work, as its files see it.
 *
 *   run.c       lh_worker_run(): what is asked for, setting up, taking down
 *   loop.c      the one loop: what has happened, and what is to be done now
 *   hands.c     threads that call the store, so that the loop never waits for it
 *   claims.c    what is claimed, what is started, limits of our own
 *   beats.c     heartbeats, and the deadlines that they put off
 *   ends.c      how a run ended, and telling the store
 *   output.c    what runs write, kept for the store
 *   command.c   a job as a command: its descriptors, its lines back, its exit code
 *   guard.c     guardians, seen from the worker
 *   program.c   finding programs, their environment; what lease_run.c does the same way
 *   handler.c   a job as a call of a function; lh_task_…
 *   lease_run.c lh_lease_run()
 *   guardian.c  the guardian itself, a program of its own; spawn.c: how both start a process
 *
 * Everything below belongs to the thread that runs the loop, except what stands under a hand while it
 * is `busy`, and what is marked as shared: that is under `mutex`.
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
    ERROR_MOST = 4096,     /* of its standard error, the end */
    STAGE_MOST = 256,
    TOLD_MOST = 1, /* lines of a command that are not understood */
    CHECKPOINT_MOST = 64 << 10,
    HANDS = 7,
    BURST_US = 10000, /* of short runs of handlers, those that begin within this … */
    RECALL_MS = 1000, /* what waits so long behind others after all is given back */
    BURST_MOST = 64,  /* … and so many at the most are handed out ahead */
    LARGEST_RESULT = 64 << 20,
    LINE_MOST = 66 * 1024, /* of what it says back: a checkpoint and its word */
    FAILURES_IN_A_ROW = 5, /* make a worker degraded */
    RETRY_MS = 100,        /* the first pause after a failure of the store; doubles … */
    RETRY_MOST_MS = 10000, /* … up to this */
    DETAIL_MS = 250,       /* news of a job are told no sooner after the last beat of it */
    GLANCE_MS = 1000,   /* by a clock that goes on while the machine sleeps: look at it so often */
    SAME_STOP_MS = 100, /* signals so close together are one */
    WAITING_MS = 250,   /* a drain that waits longer for retries says so */
    GIVE_UP_MS = 10000, /* of a stop: for a store that does not answer */
};

struct worker;

/* What the loop waits for: an open descriptor, and whom to call. */
struct source {
    int fd; /* -1: none */
    void (*ready)(struct worker *w, struct source *source, uint32_t events);
};

/* ---- hands ---- */

struct hand {
    struct worker *worker;
    pthread_t thread;
    pthread_cond_t cond;
    void (*act)(struct worker *w);  /* on the hand's thread */
    void (*done)(struct worker *w); /* in the loop, afterwards */
    bool alive;
    bool asked, finished, quit; /* shared */
    bool busy;
    /* What its call came to. */
    int rc;
    char error[480];
    int failures; /* in a row */
    int64_t retry_at;
};

/* ---- tasks: the jobs in hand ---- */

enum task_state {
    TASK_FREE = 0,
    TASK_AHEAD,     /* claimed, not started */
    TASK_RECORDING, /* about to be started: the store is being told … */
    TASK_RECORDED,  /* … and knows */
    TASK_STARTING,  /* its guardian has been told */
    TASK_RUNNING,
    TASK_ENDED, /* the store has to be told how */
    TASK_TELLING
};

/* Why a run was stopped by us. */
enum stop_reason { STOP_NONE = 0, STOP_LOST, STOP_FENCE, STOP_TIMEOUT, STOP_SHUTDOWN };

/* The jobs of one claim share the memory their strings are in. */
struct batch {
    lh_jobs *jobs;
    size_t left;
};

/* Bytes that grow up to a limit. */
struct bytes {
    char *at;
    size_t len, room;
};

/* What a run wrote to a stream: its beginning and its end. */
struct stream {
    struct bytes head, tail;
    int64_t bytes; /* in all */
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
    uint64_t order;      /* of claims */
    struct guard *guard; /* of a command */
    bool orphaned;       /* its guardian was killed; what that had below it is being swept … */
    int64_t session;     /* … in this session, and among those who came to us */
    int64_t sent_at;     /* when the last confirmed beat, or the claim, was sent */
    int64_t warn_at, term_at, kill_at;
    int64_t started_at, timeout_ms, stop_asked_at, stop_kill_at;
    int64_t begun_at; /* atomic: a thread has taken it; 0: it waits for one */
    bool warned;
    enum stop_reason stop;
    int lost; /* shared, atomic: told to a handler */
    bool cancelled;
    lh_outcome outcome;
    lh_outcome returned; /* by a handler, … */
    int64_t run_us;      /* … after so long */
    bool begun;          /* by a thread */

    struct pipe_end out, err, talk;
    char refused[160];      /* its last words, by the store */
    int64_t not_understood; /* lines */
    struct bytes line;      /* of `talk`, not yet ended */

    /* Shared: what the job says of itself. */
    struct bytes result, error;
    int64_t result_bytes;     /* before it was cut */
    struct stream written[2]; /* standard output, standard error */
    int64_t flush_at;         /* when that is sent to the store; 0: there is nothing new */
    int64_t flushed_at;
    int news; /* atomic: to be told to the store */
    int progress;
    char *stage;
    char *checkpoint, *next_checkpoint; /* one after the other: the second may be no JSON */
    int64_t told_at;
};

/* ---- guardians ---- */

struct guard {
    struct source socket, death;
    struct worker *worker;
    pid_t pid;
    bool recorded; /* in the store: may run something */
    bool killed;   /* by us */
    struct lh_task *task;
};

/* ---- the worker ---- */

enum stage { STAGE_WORK = 0, STAGE_STOPPING, STAGE_KILLING, STAGE_OVER };

struct worker { /* NOLINT(clang-analyzer-optin.performance.Padding): by subject; there is one */
    lh_store *store;
    int clock;         /* by which the store's leases are counted */
    lh_work_opts opts; /* with the defaults filled in */
    char id[160];
    char store_uuid[40];
    lh_work_tally tally;
    int epoll;
    struct source bell, signals; /* a hand or a handler has finished; a signal came */
    pthread_mutex_t mutex;

    struct lh_task *tasks;
    size_t n_tasks;
    size_t ahead, running; /* counts of tasks: claimed and not begun; begun and not ended */
    uint64_t orders;

    /* claiming */
    struct hand claimer;
    struct {
        size_t n;
        int64_t wait_ms;
        bool drain;         /* wait only for what is still to come */
        int64_t waiting_at; /* when to say that it does; INT64_MAX: not, or said */
        int cancel;         /* shared, atomic */
        lh_jobs *jobs;
    } claim;
    bool empty;        /* the last look found nothing, and nothing has changed since */
    bool out_of_means; /* no descriptors, no memory: until retry_at */
    int64_t means_at;
    double tokens; /* of opts.rate_n */
    int64_t tokens_at;

    /* beating */
    struct hand beater;
    struct {
        lh_beat *beats;
        int *status;
        struct lh_task **tasks;
        size_t n;
        bool
            detail; /* one job's news, by itself: a bad value must not cost the others their beat */
        int64_t sent_at;
    } beat;
    int64_t beat_at;
    bool beat_now; /* the store is back: before the deadlines pass */
    int64_t
        heard_at; /* since when at least the store has heard of us: of a confirmed beat, or a claim */
    int64_t beat_asked_at; /* of the heartbeat that was asked for last … */
    bool beat_overdue;     /* … it is not answered, and counts as failed */
    bool beat_failing;

    /* telling how runs ended */
    struct hand ender;
    struct {
        struct lh_task **tasks;
        int *status;
        size_t n;
        /* for the store's calls */
        size_t *at;
        int *answers;
        lh_done *done;
        lh_failure *failures;
        lh_ref *refs;
        lh_output *outputs;
        /* The claim that goes with the completes. */
        size_t claim;  /* jobs to claim; 0: none */
        lh_jobs *jobs; /* shared: what it got, which the loop has not taken yet */
    } end;
    int failures_in_a_row;
    bool degraded, degraded_told;
    char last_failure[200];

    /* the record: what was started, where, and how it goes */
    struct hand recorder;
    struct {
        lh_ref *started;
        size_t n_started;
        int64_t *sessions;
        size_t n_sessions;
        bool tell_started, tell_sessions, tell_degraded;
        bool started_told, sessions_told, degraded_told;
        char degraded[300];
    } record;
    bool sessions_changed, started_changed;

    /* what runs have written so far */
    struct hand logger;
    struct {
        lh_output *outputs; /* copies */
        int *status;
        size_t n;
    } log;

    /* upkeep of the store */
    struct hand keeper;
    int keeper_cancel; /* shared, atomic */

    /* opening the store again */
    struct hand opener;
    int64_t opened_at;
    bool reopen; /* the handle is of no use any more */
    int calls;   /* shared: of handlers, on the store */

    /* commands */
    char *command_path, *guardian_path;
    char **environment;
    struct guard *guards;
    size_t n_guards;
    size_t orphans; /* tasks */
    int64_t sweep_at, sweep_ms;
    int swept_clean;

    /* handlers */
    pthread_t *handlers;
    size_t n_handlers;
    pthread_cond_t work;
    struct lh_task **ready; /* shared: a ring of tasks to run … */
    size_t ready_at, n_ready;
    int64_t taken_at;      /* when the last was taken */
    struct lh_task **over; /* … and of those that have */
    size_t n_over;
    bool handlers_quit; /* shared */
    int64_t run_us;     /* so long a run takes; -1: not known */
    size_t burst;       /* runs that are handed out ahead of a free thread */

    enum stage stage;
    bool left_running;    /* at the end: a command that does not end */
    int64_t signalled_at; /* 0: not yet */
    uint32_t signal;      /* the first */
    int64_t grace_until, give_up_at;
    int64_t idle_since; /* of a stop: since when nothing runs; 0: something does */
    int64_t watchdog_ms, watchdog_at;
    int rc; /* what lh_worker_run() returns */
    char error[480];
};

int64_t worker_now(const struct worker *w);

/* run.c */
int worker_enrol(struct worker *w, lh_store *store); /* under the id it has, if it has one */

/* loop.c */
bool loop_init(struct worker *w);
void stop_signals(sigset_t *set);
void loop_clear(struct worker *w);
void worker_loop(struct worker *w);
void keeper_cancel(struct worker *w);
void worker_stop(struct worker *w, bool at_once);
void worker_fail(struct worker *w, int rc, const char *error); /* and stop */
void worker_tell(struct worker *w, lh_work_event *event, const struct lh_task *task);
void worker_trouble(struct worker *w, struct hand *hand, const char *doing);
bool source_add(struct worker *w, struct source *source);
void source_close(struct worker *w, struct source *source);
bool is_final(int rc);       /* a failure of the store that no waiting mends */
void ring(struct worker *w); /* any thread: the loop has something to look at */

/* hands.c */
bool hand_start(struct worker *w, struct hand *hand);
void hand_ask(struct hand *hand);
void hand_stop(struct hand *hand); /* waits for it */
void hands_done(struct worker *w);
void hand_fails(struct hand *hand, int rc);

/* claims.c */
bool claims_init(struct worker *w);
void claims_step(struct worker *w);
void claims_cancel(struct worker *w);
void no_means(struct worker *w, const struct lh_task *task, const char *what, int error);
void start_tasks(struct worker *w);
size_t claims_with_ends(struct worker *w); /* how many jobs to claim with the completes */
lh_claim_opts claim_opts(const struct worker *w, size_t n);
void claims_take(struct worker *w, lh_jobs *jobs);
int64_t claims_next(struct worker *w); /* when to look again; INT64_MAX: when told */
void task_free(struct lh_task *task);

/* beats.c */
bool beats_init(struct worker *w);
void beats_clear(struct worker *w);
void beats_step(struct worker *w, int64_t now);
int64_t beats_next(const struct worker *w);
int64_t fence_of(int64_t limit_ms); /* when a run has ended that may have begun with the limit */
int64_t notice_of(int64_t kill_after_ms, int64_t fence_ms); /* from SIGTERM to SIGKILL, before it */
void set_deadlines(struct lh_task *task, int64_t sent_at, int64_t remaining_ms);
void bad_news(struct lh_task *task, const char *why); /* what a job said was not taken */
void task_stop(struct lh_task *task, enum stop_reason why, int64_t kill_after_ms);

/* ends.c */
bool is_gone(int status); /* an answer: the job is not ours any more */
bool ends_init(struct worker *w);
void ends_clear(struct worker *w);
void ends_step(struct worker *w, int64_t now);
void ends_claimed(struct worker *w);
bool ends_wait(const struct worker *w); /* completes wait for the ender */
int64_t ends_next(const struct worker *w);
void task_ended(struct lh_task *task, lh_outcome outcome); /* the run is over */
void record_step(struct worker *w, int64_t now);
int64_t record_next(const struct worker *w);
void record_lay_out(struct worker *w);

/* output.c */
bool output_init(struct worker *w);
void output_end(struct worker *w);
void output_step(struct worker *w, int64_t now);
int64_t output_next(struct worker *w);
bool output_add(struct lh_task *task, bool err, const void *bytes, size_t len);
/* What the run has written, as the store takes it, in `room`; NULL: nothing. */
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
void command_orphaned(struct lh_task *task); /* its guardian is gone, and so is the command */
void command_forget(struct lh_task *task);
lh_outcome stop_outcome(struct lh_task *task); /* of a run that we have stopped; says why */

/* program.c */
char *find_command(const char *name, struct lhi_error *err);
char *find_guardian(const char *given, struct lhi_error *err);
/* Can a command be guarded here? */
int check_system(struct lhi_error *err);
/* Ours, without those that begin like one of `without`; NULL: no memory. */
char **make_environment(const char *const *without, const char *worker, const char *store);
void free_environment(char **made, bool store);

struct manners {
    sigset_t mask;
    int subreaper;
};

void change_manners(const sigset_t *blocked, bool reaper, struct manners *before);
void restore_manners(const struct manners *before);

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
/* A guardian, in a session of its own or in ours; *socket is our end. -1: errno says why. */
pid_t guardian_start(const char *guardian, const char *path, char *const *command,
                     char *const *environment, bool session, int *socket);
/* The message, with those of `fds` that it names, and more behind it; false: it is gone. */
bool guardian_order(int socket, const struct guardian_message *message, const char *body,
                    size_t len, const int *fds);

/* handler.c */
bool handlers_start(struct worker *w);
void handlers_stop(struct worker *w);
void handlers_run(struct lh_task *task);
void handlers_recall(struct worker *w);
void handlers_step(struct worker *w, int64_t now);
int64_t handlers_next(struct worker *w);
void handlers_over(struct worker *w); /* in the loop: those that have returned */

/* bytes */
bool bytes_add(struct bytes *bytes, const void *more, size_t len, size_t most);
void bytes_keep_end(struct bytes *bytes, const void *more, size_t len, size_t most);
void bytes_clear(struct bytes *bytes);

#endif
