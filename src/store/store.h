/*
 * store.h: the operations of a store: what the core asks of SQLite and PostgreSQL.
 *
 * A store keeps the rows, the clock and the wake-ups. Each operation below is one *act*: a whole step,
 * such as a claim, with its guard in the write itself. The core checks the caller's values before it asks;
 * a store does not check them again. A store decides nothing that src/rules decides. Acts that are given
 * together share one transaction. Each has its own outcome: an act that fails leaves no trace and does not
 * undo the others. In the contracts, "moves" a job means: if its row still is what the act expects.
 *
 * Every act can also fail with LH_EBUSY, LH_EUNREACH, LH_EREADONLY, LH_EOLDER, LH_ECORRUPT, LH_ENOSPC,
 * LH_EIO, LH_ENOMEM or LH_ESTOPPED; then it has changed nothing. LH_EUNKNOWN: the commit may have happened.
 */
#ifndef LHI_STORE_H
#define LHI_STORE_H

#include <leasehold.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/processes.h"
#include "base/sys.h"
#include "rules/fate.h"
#include "rules/limits.h"
#include "rules/policy.h"
#include "rules/schedule.h"
#include "rules/stream.h"
#include "rules/tables.h"
#include "rules/worker_death.h"
#include "store/types.h"

enum { LHI_POLL_MS = 1000 }; /* the longest sleep, where a store does not say another */
enum {
    LHI_MOVE_BYTES = 4 << 20
}; /* a move reads fewer rows at a time if they have more bytes than this */

/* The operations. A list of items has one outcome per item, in act->status. `after` of an act on jobs
 * receives the jobs that exist, as they are afterwards. */
enum lhi_verb {
    /* ---- enqueueing and claiming ---- */

    /* Insert n jobs: all of them or none. A job whose key a live job of the queue has is that job. A request id
     * that was used before returns the jobs of its first call. LH_ETOOBIG, LH_EINVAL: the policy's limits.
     * Afterwards: the jobs exist, are counted, and idle workers of the queue wake up. */
    LHI_ENQUEUE,
    /* Recover what is reclaimable, then move up to opts->n pending jobs to running, by queue, priority and id, each
     * with a new token and a lease. No paused queue, no queue at its rate or concurrency, no exclusive queue
     * whose lease is held. LH_OK also without jobs. A corrupt payload fails its job. */
    LHI_CLAIM,

    /* ---- the holder of a job; each item names a job and a token ---- */

    /* Extend the lease, store progress, stage and checkpoint. Items: LH_ELOST (expired, or another token),
     * LH_ECANCELLED, LH_ENOTFOUND. */
    LHI_HEARTBEAT,
    /* Move the job to completed with its result, whether or not the lease has expired. Items: LH_ELOST, LH_ECANCELLED,
     * LH_ENOTFOUND, LH_ETOOBIG (the job stays as it is). The same complete again: LH_OK. */
    LHI_COMPLETE,
    /* Move the job to scheduled with the backoff, or to failed if it is permanent or was the last attempt. Items as
     * LHI_COMPLETE. */
    LHI_FAIL,
    /* Move the job to pending (scheduled with a delay), and give the attempt back. Items as LHI_COMPLETE. */
    LHI_RELEASE,
    /* Store the output of runs, cut to the policy's limit; more than what is stored replaces it. Items: LH_ELOST (another
     * token, and nothing stored under this one), LH_ENOTFOUND. The newest LHI_OUTPUT_RUNS runs of a job stay. */
    LHI_OUTPUT,

    /* ---- operators ---- */

    /* Release jobs of a worker, all or the named ones. A job with a live lease goes into quarantine unless `now`.
     * Items: LH_ENOTFOUND, LH_ESTATE (this worker does not hold it). */
    LHI_RELEASE_WORKER,
    /* Move live jobs to cancelled. A running one is quarantined against a retry until its holder has answered.
     * Items: LH_ENOTFOUND, LH_ESTATE. */
    LHI_CANCEL,
    /* Move failed and cancelled jobs (with LH_RETRY_FORCE completed ones, too) to pending, with attempts and
     * recoveries 0. Items: LH_ENOTFOUND, LH_ESTATE. */
    LHI_RETRY,
    LHI_DELETE,      /* delete jobs that are not running; items: LH_ENOTFOUND, LH_ESTATE */
    LHI_RESCHEDULE,  /* set run_at of a scheduled or pending job; items: LH_ENOTFOUND, LH_ESTATE */
    LHI_QUEUE_PAUSE, /* pause or resume a queue; workers of a resumed queue wake up */
    LHI_QUEUE_PURGE, /* delete up to LHI_BATCH scheduled and pending jobs; `more`: there were more */
    LHI_QUEUE_DELETE, /* delete an empty queue; LH_ENOTFOUND, LH_ESTATE (it has jobs or a schedule) */
    LHI_POLICY_SET,   /* set and unset fields of the row for (queue, kind) */
    LHI_SCOPE_SET,    /* set the default ttl of a scope; 0: remove it */
    /* Create or replace a schedule. With the same cron line and zone it continues, else it starts after now. */
    LHI_SCHEDULE_SET,
    LHI_SCHEDULE_REMOVE, /* LH_ENOTFOUND */
    /* Acquire, extend, release or complete a named lease; one that expired is free. LH_EHELD, LH_ELOST as in
     * leasehold.h. Afterwards `out` is the lease. */
    LHI_LEASE_ACT,

    /* ---- workers ---- */

    LHI_WORKER_REGISTER, /* write the worker's record; processes that watch for deaths wake up */
    LHI_WORKER_HEARTBEAT, /* a heartbeat of the worker, and LHI_HEARTBEAT of its jobs; an unknown worker is registered */
    LHI_WORKER_STOP,     /* record that it stopped, release its jobs; LH_ENOTFOUND */
    LHI_WORKER_STARTED,  /* replace the list of started jobs; LH_ENOTFOUND */
    LHI_WORKER_SESSIONS, /* replace the list of sessions; LH_ENOTFOUND */
    LHI_WORKER_DEGRADED, /* record why it can do no work, or that it can again; LH_ENOTFOUND */

    /* ---- recovery and maintenance ---- */

    /* One batch of a recovery: record the deaths, judge the named jobs again and move each by lhi_decide_death(),
     * with an event; then, if asked, free expired named leases and finish the report. A job that has changed
     * since is left alone. A step that the database refuses is undone and counted as a failure. `done`: how many
     * jobs were judged, fewer than n if another writer waits. */
    LHI_RECOVER,
    /* Promote scheduled jobs that are due, enqueue due runs of schedules, cancel expired jobs, up to LHI_BATCH each;
     * `more`: there is more to do now. */
    LHI_MAINTAIN,
    /* Delete a batch of finished jobs, events, request ids and rollups past their retention; `more`: as above. */
    LHI_PRUNE,
    LHI_RECOUNT, /* correct wrong counters of queues, delete output without a job */
    LHI_MOVE,    /* one step of a move (enum lhi_move_step) */

    /* ---- reading; from here on, verbs change nothing ---- */

    LHI_WRITES,
    LHI_JOB_GET = LHI_WRITES, /* LH_ENOTFOUND */
    LHI_JOB_LIST,
    LHI_QUEUE_LIST,
    LHI_POLICY_LIST, /* the rows as they were set */
    LHI_SCHEDULE_LIST,
    LHI_LEASE_LIST, /* of one scope, or all; one lease: LH_ENOTFOUND */
    LHI_WORKER_LIST,
    LHI_EVENT_LIST, /* with wait_ms: only events below which none can still be committed */
    LHI_OUTPUT_LIST,
    LHI_WORKER_JUDGE, /* the workers that are recorded as alive, for lhi_judge_worker() */
    LHI_STATS,        /* lh_store_info, without what only the core knows */
    /* The reclaimable jobs, and those of the given deaths, by id; up to `most`. */
    LHI_STALE,
    LHI_REPORT_GET, /* LH_ENOTFOUND */
    LHI_REPORT_LIST,
    /* Is there anything to claim, or (opts NULL) anything due? And when does the next thing fall due? */
    LHI_POLL,
    LHI_RETRIES,   /* can a draining claim still get a job without a new enqueue? */
    LHI_CHECK,     /* findings of all checks, or (rows_only) of those of rows and counters */
    LHI_INTEGRITY, /* findings of the engine's own check */
    LHI_BACKUP,    /* write a checked copy */
    LHI_DROP_SQL,  /* the SQL that removes the schema */
    LHI_MOVE_LOOK, /* struct lhi_standing */
    LHI_MOVE_READ, /* rows of one table after a key; none: that was the last */
    LHI_VERBS
};

enum lhi_lease_verb { LHI_LEASE_ACQUIRE, LHI_LEASE_EXTEND, LHI_LEASE_RELEASE, LHI_LEASE_COMPLETE };

/* One act: its arguments, and where its results go (out). */
struct lhi_act {
    enum lhi_verb verb;
    struct lhi_error err; /* out: the outcome of the act; err.status is the status of the call */
    /* Acts on lists: status[i] is the outcome of item i; not NULL if n > 0. */
    int *status;
    size_t n;
    lh_jobs *after;  /* out: the jobs afterwards; NULL: not wanted */
    bool sizes_only; /* LHI_OUTPUT, set by the store: the disk is full, store sizes only */
    union {
        struct {
            const char *queue;
            const lh_new_job *jobs;
            const char *request;
            lh_enqueued *out;
            int64_t created_at; /* out: the time of the jobs */
        } enqueue;
        struct {
            const lh_claim_opts *opts;
            lh_jobs *out;
            int64_t retry_ms; /* out: how long a rate holds jobs back; 0: none does */
            bool repeated; /* out: this is the answer of an earlier call with the same request id */
            bool schedules; /* out: runs of schedules are due that this claim did not enqueue */
            /* May be called when the claim is committed, before other acts of the transaction are synced.
             * NULL: not wanted. */
            void (*stands)(struct lhi_act *act);
            void *stands_arg;
        } claim;
        struct {
            const lh_beat *beats;
            const char *worker; /* LHI_WORKER_HEARTBEAT */
            int64_t interval_ms;
        } beat;
        const lh_done *done;
        const lh_failure *failures;
        const struct lhi_written *outputs; /* LHI_OUTPUT */
        struct {
            const lh_output_filter *filter;
            lh_outputs *out;
        } output_list;
        struct {
            const lh_ref *refs;
            const char *worker; /* LHI_RELEASE_WORKER */
            const int64_t *ids; /* NULL: all jobs of the worker */
            int64_t delay_ms;
            bool now;
            int64_t released;
        } release;
        struct {
            const int64_t *ids;
            unsigned how;             /* LHI_RETRY: enum lh_retry_how */
            int64_t run_at, delay_ms; /* LHI_RESCHEDULE */
        } ids;
        struct {
            const char *queue;
            bool paused;
            int64_t count;
            bool more; /* out: there may be more jobs to purge */
        } queue;
        struct {
            const char *queue, *kind; /* "*": any */
            const lh_policy *policy;
            unsigned unset;
        } policy;
        struct {
            const char *scope;
            int64_t ttl_ms;
        } scope;
        const lh_schedule *schedule; /* LHI_SCHEDULE_SET */
        const char *schedule_name;   /* LHI_SCHEDULE_REMOVE */
        lh_schedules *schedules;     /* LHI_SCHEDULE_LIST */
        struct {
            enum lhi_lease_verb verb;
            const char *scope, *name;
            const lh_lease_opts *opts;
            const char *owner;
            bool released;
            lh_leases *out;
        } lease;
        struct {
            const lh_worker_opts *opts;
            const char *id;
            const struct lhi_session *leaders; /* act->n of them; NULL: the worker records none */
        } worker;
        struct {
            const char *worker;
            const lh_ref *started; /* act->n of them */
        } started;
        struct {
            const char *worker;
            const struct lhi_session *leaders; /* act->n of them */
        } sessions;
        struct {
            const char *worker, *why; /* why NULL: it works again */
        } degraded;
        struct {
            struct lhi_run *run;
            const lh_recover_opts *opts; /* of an operator; NULL: automatic recovery */
            const struct lhi_death *deaths;
            size_t n_deaths;
            const int64_t *ids; /* act->n jobs to judge again */
            size_t done;        /* out: how many were judged; fewer if another writer waits */
            bool leases;        /* free expired named leases, too */
            bool last;          /* finish the report when all of this is done */
            const struct lhi_health *health; /* for the report; NULL: none */
            bool over;                       /* out: the report is finished */
            int64_t folded_us;               /* out: how long a checkpoint blocked other writers */
        } recover;
        struct {
            lh_maintained done;
            bool more; /* out: more is due now */
        } maintain;
        struct {
            int64_t older_than_ms;
            int64_t *
                after; /* in and out: the id up to which jobs were visited; NULL: kept in the store */
            int64_t pruned;
            bool more;
        } prune;
        struct {
            const lh_job_filter *filter;
            int64_t id;
            lh_jobs *out;
        } jobs;
        struct {
            lh_queues *out;
        } queues;
        struct {
            lh_policies *out;
        } policies;
        struct {
            const char *scope, *name; /* NULL: all */
            lh_leases *out;
        } leases;
        struct {
            lh_workers *out;
        } workers;
        struct {
            const lh_event_filter *filter;
            lh_events *out;
        } events;
        lh_store_info *info;
        struct {
            const lh_recover_opts *opts;    /* of an operator; NULL: automatic recovery */
            bool rows;                      /* fill `jobs`, too */
            const struct lhi_death *deaths; /* workers that are not recorded as dead yet */
            size_t n_deaths;
            bool acting;  /* a recovery follows, so claims need not start one */
            size_t most;  /* the maximum number of ids; 0: all */
            int64_t *ids; /* out: lhi_free() it */
            size_t n;
            struct lhi_stale_job *jobs; /* out: lhi_free() it; at most LH_REPORT_MOST */
            size_t n_jobs;
            void *priv;     /* out: the memory of their strings */
            int64_t leases; /* out: named leases that have expired or belong to a dead worker */
            bool unclean;   /* out: a dead worker still holds something */
            bool degraded;  /* out: an earlier run could not recover everything */
        } stale;
        struct {
            int64_t id; /* 0: the last */
            lh_report *out;
        } report;
        struct {
            size_t limit;
            lh_reports *out;
        } reports;
        struct {
            const char *path;
            const lh_backup_opts *opts;
        } backup;
        struct {
            const lh_claim_opts *opts; /* NULL: anything that is due */
            bool waiting;    /* the caller waits for maintenance, as other processes may do */
            bool found;      /* out: there is something to do now */
            int64_t next_ms; /* out: until something falls due; -1: nothing will */
        } poll;
        struct {
            const lh_claim_opts *opts;
            /* out: a job waits for its next attempt, or the concurrency or the exclusive lease of its
             * queue holds a pending job back */
            bool waiting;
        } retries;
        struct {
            const lh_flag *cancel;
            lh_findings *out;
            bool rows_only; /* check only the invariants of rows and counters */
        } check;
        struct lhi_suspects *suspects;
        char **drop_sql;
        struct {
            enum lhi_move_step step;
            const char *id;          /* of the move */
            const char *other, *url; /* the other store: its uuid and its address */
            bool again;              /* PREPARE: delete rows of an earlier try */
            enum lhi_moved table;    /* PUT */
            const struct lhi_rows *rows;
            const struct lhi_standing *source; /* FINISH */
        } move;
        struct lhi_standing *standing; /* LHI_MOVE_LOOK */
        struct {
            enum lhi_moved table;         /* LHI_MOVE_READ */
            const struct lhi_cell *after; /* rows after these keys; NULL: from the first row */
            bool last;                    /* read only the keys of the last row */
            struct lhi_rows *out;         /* a batch of rows; none: there are no more */
        } rows;
    };
};

/* What a call waits for: a kind of wake-up. */
enum lhi_wake_on {
    LHI_ON_COMMITS,     /* any commit */
    LHI_ON_JOBS,        /* a job in the queues of opts, of their kinds */
    LHI_ON_MAINTENANCE, /* something falls due within LHI_POLL_MS, or a worker's process has ended */
};
struct lhi_topic {
    enum lhi_wake_on on;
    const lh_claim_opts *opts; /* LHI_ON_JOBS */
};

enum lhi_subscribed {
    LHI_SUBSCRIBED_BEFORE, /* since before the ticket was taken; this call did not ask the server */
    LHI_SUBSCRIBED_OTHERS, /* now; another process had subscribed to the same before */
    LHI_SUBSCRIBED_NOW,    /* now; a transaction that is committing may not have seen it */
    LHI_SUBSCRIBED_DEAF,   /* wake-ups do not reach this process: it has to poll */
};

/* The functions of an open store. `self` is the store's own handle. */
struct lhi_store_ops {
    const char *kind;
    int clock; /* the clock that measures leases, see lh_store_clock() */
    /* A claim without a job costs no more than a poll, because each call is a round trip. */
    bool cheap_claims;
    void (*close)(void *self);
    /* Perform acts in one transaction. LH_OK: it is committed, and each act has its outcome in err. Otherwise the
     * transaction failed, and no act has changed anything (LH_EUNKNOWN: it may have). */
    int (*perform)(void *self, struct lhi_act *acts, size_t n, struct lhi_error *err);
    int (*read)(void *self, struct lhi_act *act, struct lhi_error *err);
    int64_t (*now)(void *self);
    /* A call waits by subscribing, polling (LHI_POLL) and waiting, in the order of core/wait.c. The ticket is the
     * number of wake-ups so far: a wait with a ticket that was taken before a poll misses nothing after it. */
    uint32_t (*ticket)(void *self, const struct lhi_topic *topic);
    /* Have wake-ups for the topic sent to this process. SQLite: always subscribed. */
    enum lhi_subscribed (*subscribe)(void *self, const struct lhi_topic *topic);
    /* Sleep until there is a wake-up after the ticket (true), or for `timeout_ms` of real time (false). */
    bool (*wait)(void *self, const struct lhi_topic *topic, uint32_t ticket, int64_t timeout_ms);
    /* A number that rises when the process of a worker has ended: then waiting calls judge the workers. */
    uint32_t (*deaths)(void *self);
    /* The longest sleep; NULL: LHI_POLL_MS. */
    int64_t (*max_sleep_ms)(void *self, enum lhi_wake_on on);
    void (*wake)(void *self); /* wake all waiting calls of all processes */
};

struct lhi_store {
    const struct lhi_store_ops *ops;
    void *self;
};

#endif
