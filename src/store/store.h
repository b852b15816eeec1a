/*
 * store.h: what the core asks of a store.
 *
 * A store keeps the rows, the clock and the wake-ups, and performs *acts*: each act is one whole
 * step of a job's life, guarded in the write itself. A store never decides policy: what a policy
 * says is resolved by lhi_policy_resolve() from rows the store holds. The core never names a
 * database. Several acts given together are performed in one transaction, each judged by itself:
 * an act that fails leaves no trace and does not undo its neighbours.
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

enum { LHI_POLL_MS = 1000 }; /* the net under all wake-ups, where a store has none of its own */
enum { LHI_MOVE_BYTES = 4 << 20 }; /* with so many, fewer rows are moved at once */

enum lhi_verb {
    /* acts that write */
    LHI_ENQUEUE,
    LHI_CLAIM,
    LHI_HEARTBEAT,
    LHI_COMPLETE,
    LHI_FAIL,
    LHI_RELEASE,
    LHI_OUTPUT,
    LHI_RELEASE_WORKER,
    LHI_CANCEL,
    LHI_RETRY,
    LHI_DELETE,
    LHI_RESCHEDULE,
    LHI_QUEUE_PAUSE,
    LHI_QUEUE_PURGE,
    LHI_QUEUE_DELETE,
    LHI_POLICY_SET,
    LHI_SCOPE_SET,
    LHI_SCHEDULE_SET,
    LHI_SCHEDULE_REMOVE,
    LHI_LEASE_ACT,
    LHI_WORKER_REGISTER,
    LHI_WORKER_BEAT,
    LHI_WORKER_STOP,
    LHI_WORKER_STARTED,
    LHI_WORKER_SESSIONS,
    LHI_WORKER_DEGRADED,
    LHI_RECOVER,
    LHI_UPKEEP,
    LHI_PRUNE,
    LHI_MEND,
    LHI_MOVE,
    LHI_WRITES, /* verbs from here on only read */
    LHI_JOB_GET = LHI_WRITES,
    LHI_JOB_LIST,
    LHI_QUEUE_LIST,
    LHI_POLICY_LIST,
    LHI_SCHEDULE_LIST,
    LHI_LEASE_LIST,
    LHI_WORKER_LIST,
    LHI_EVENT_LIST,
    LHI_OUTPUT_LIST,
    LHI_WORKER_JUDGE,
    LHI_STATS,
    LHI_STALE,
    LHI_REPORT_GET,
    LHI_REPORT_LIST,
    LHI_PEEK,
    LHI_RETRIES,
    LHI_CHECK,
    LHI_INTEGRITY,
    LHI_BACKUP,
    LHI_DROP_SQL,
    LHI_MOVE_LOOK,
    LHI_MOVE_READ,
    LHI_VERBS
};

enum lhi_lease_verb { LHI_LEASE_ACQUIRE, LHI_LEASE_EXTEND, LHI_LEASE_RELEASE, LHI_LEASE_COMPLETE };

/* What opening found out about the store and did to it; the core makes a report of it. */
struct lhi_health {
    bool due; /* recovery comes before anything else: asked for, or after a crash or a new boot */
    bool checked; /* the integrity check ran … */
    bool sound;   /* … and passed, at last */
    bool repair_attempted, repaired;
    int64_t wal_frames; /* folded into the database; -1: nobody asked */
    lh_findings
        findings; /* "integrity": what the check said; else what is inconsistent, lost, partial */
};

/* One recovery, over all its batches: what it has found and done so far. */
struct lhi_run {
    const char *trigger;
    bool always;        /* a report is made also when nothing is found */
    bool whole;         /* everything is looked at: when it goes well, nothing is left to recover */
    int64_t report;     /* its id, once it is made */
    int64_t started_at; /* by the store's clock; 0: not begun */
    int64_t orphaned, retried, made_pending, failed, released;
    int64_t leases, dead_workers, failures;
    int64_t untold;     /* failures that are known, and not told again */
    int64_t counted[7]; /* of these, what is in the store's totals already */
};

/* Jobs taken back so far. */
static inline int64_t lhi_run_reclaimed(const struct lhi_run *run)
{
    return run->retried + run->made_pending + run->failed + run->released;
}

/* A job that is forfeit, and why. */
struct lhi_stale_job {
    lh_job job; /* without payload and result */
    enum lhi_cause cause;
    char what[96]; /* is said of its worker, where that is why */
    bool unstarted;
};

/* Which part a store has in a move. All but the first and the last are closed to every other act. */
enum lhi_part {
    LHI_PART_NONE,
    LHI_PART_SOURCE, /* read from */
    LHI_PART_GONE,   /* everything is in another store: this one is over */
    LHI_PART_TARGET, /* written to */
    LHI_PART_FILLED, /* was a target, and is a store like any other now */
};

/* How a store stands, as far as a move asks. */
struct lhi_standing {
    char uuid[40];
    int64_t epoch;
    int64_t last_job, last_event, last_report; /* the highest ids ever given */
    int64_t rows;                              /* that would be moved */
    bool empty;                                /* it never had a job, and has no settings */
    enum lhi_part part;
    char move[40], other[40]; /* which move; uuid of the other store */
};

enum lhi_move_step {
    LHI_MOVE_CLOSE,   /* the source: no job may be running; counts are brought in order */
    LHI_MOVE_PREPARE, /* the target: empty, or the half of a move from the same source */
    LHI_MOVE_PUT,     /* the target: rows of a table */
    LHI_MOVE_LEAVE,   /* the source: everything is over there */
    LHI_MOVE_FINISH,  /* the target: ids and epoch go on from the source's, it is open */
    LHI_MOVE_REOPEN,  /* the source: the move is given up */
};

/* What one run has written, cut to no limit yet; and the size of a result that is not kept whole. */
struct lhi_written {
    int64_t job, token;
    const lh_output *output; /* NULL: nothing */
    int64_t result_bytes;    /* 0: the result is whole */
};

/* One act: what is asked, and where the answer goes. Inputs were validated by the core. */
struct lhi_act {
    enum lhi_verb verb;
    struct lhi_error err; /* the act's own outcome; err.status is what the caller gets */
    /* for acts on lists: statuses[i] has the outcome of item i; never NULL when n > 0 */
    int *status;
    size_t n;
    lh_jobs *after; /* not NULL: receives the jobs afterwards */
    bool
        sizes_only; /* LHI_OUTPUT, set by the store: there is room for sizes, not for what was written */
    union {
        struct {
            const char *queue;
            const lh_new_job *jobs;
            const char *request;
            lh_enqueued *out;
            int64_t created_at; /* out: by what time the jobs were written */
        } enqueue;
        struct {
            const lh_claim_opts *opts;
            lh_jobs *out;
            int64_t retry_ms; /* out: a rate holds jobs back for so long; 0: none does */
            bool repeated;    /* out: its request was made before, this is its answer */
            bool schedules;   /* out: periodic work is due, and was not enqueued by this claim */
            /* Not NULL: may be called when the claim stands, before other acts of the transaction
             * are synced. */
            void (*stands)(struct lhi_act *act);
            void *stands_arg;
        } claim;
        struct {
            const lh_beat *beats;
            const char *worker; /* LHI_WORKER_BEAT */
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
            const int64_t *ids; /* NULL: all the worker holds */
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
            bool more; /* a full batch was purged: come again */
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
            const struct lhi_session *leaders; /* act->n of them; NULL: not told */
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
            const lh_recover_opts *opts; /* by hand; NULL: by itself */
            const struct lhi_death *deaths;
            size_t n_deaths;
            const int64_t *ids; /* act->n jobs to be judged, again, and taken back */
            size_t done;        /* out: how many were; fewer when somebody waits for his turn */
            bool leases;        /* and what is expired of the named leases */
            bool last; /* when all of this is done, the run is over: its report is ended … */
            const struct lhi_health *health; /* … with this of the store; NULL: nothing */
            bool over;                       /* out: it was */
            int64_t folded_us; /* out: how long it kept everybody waiting to fold the log */
        } recover;
        struct {
            lh_upkeep done;
            bool more; /* a full batch was found: come again at once */
        } upkeep;
        struct {
            int64_t older_than_ms;
            int64_t *after; /* where a walk of its own has got to; NULL: the store's, kept in it */
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
            const lh_recover_opts *opts;    /* by hand; NULL: by itself */
            bool rows;                      /* fill `jobs` too */
            const struct lhi_death *deaths; /* and what these hold, though not yet marked dead */
            size_t n_deaths;
            bool acting;  /* a recovery follows: claims need not begin one of their own */
            size_t most;  /* 0: all; else come again for the rest */
            int64_t *ids; /* out: lhi_free() it */
            size_t n;
            struct lhi_stale_job *jobs; /* out: lhi_free() it; at most LH_REPORT_MOST */
            size_t n_jobs;
            void *priv;     /* out: what their strings live in */
            int64_t leases; /* out: named leases that are expired, or a dead worker's */
            bool unclean;   /* out: a worker is dead and not all it held is free */
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
            const lh_claim_opts *opts; /* NULL: what is due, whatever the queue */
            bool waiting;              /* to see to it: of many who do, one is enough */
            bool found;                /* a claim would find something to do now */
            int64_t next_ms;           /* until the next thing falls due; -1: nothing in sight */
        } peek;
        struct {
            const lh_claim_opts *opts;
            /* out: a job that was claimed before is scheduled for its next attempt, or the concurrency
             * or the exclusive lease of its queue holds a pending one back */
            bool waiting;
        } retries;
        struct {
            const lh_flag *cancel;
            lh_findings *out;
            bool rows_only; /* the invariants of rows and counts, nothing else */
        } check;
        struct lhi_suspects *suspects;
        char **drop_sql;
        struct {
            enum lhi_move_step step;
            const char *id;          /* of the move */
            const char *other, *url; /* the other store: its uuid, and how people call it */
            bool anew;               /* PREPARE: do not go on with what is there */
            enum lhi_moved table;    /* PUT */
            const struct lhi_rows *rows;
            const struct lhi_standing *source; /* FINISH */
        } move;
        struct lhi_standing *standing; /* LHI_MOVE_LOOK */
        struct {
            enum lhi_moved table;         /* LHI_MOVE_READ */
            const struct lhi_cell *after; /* rows behind these keys; NULL: from the first on */
            bool last;                    /* only the keys of the last row */
            struct lhi_rows *out;         /* as many as are moved at once; none: that was all */
        } rows;
    };
};

/* What an open store is asked to do. `self` is the store's own. */
struct lhi_store_ops {
    const char *kind;
    int clock; /* by which holders count their leases: see lh_store_clock() */
    /* A claim that finds nothing is in nobody's way: who was rung need not look first. */
    bool cheap_claims;
    void (*close)(void *self);
    /* Perform all of `acts` in one transaction. Returns LH_OK when the transaction stands (see each
     * act's err), else the failure of the whole, which no act survived. */
    int (*perform)(void *self, struct lhi_act *acts, size_t n, struct lhi_error *err);
    int (*read)(void *self, struct lhi_act *act, struct lhi_error *err);
    int64_t (*now)(void *self);
    /* Wake-ups, for the queues of `opts`, or (opts NULL) for any commit. A ticket taken before
     * looking makes sure that nothing that happens after the look is missed. */
    uint32_t (*ticket)(void *self, const lh_claim_opts *opts);
    /* True: there may be something to see. */
    bool (*wait)(void *self, uint32_t ticket, const lh_claim_opts *opts, int64_t timeout_ms);
    /* The same for whoever keeps the store up: raised when a worker came or its process died, and, for
     * keepers, when something falls due within LHI_POLL_MS. */
    uint32_t (*siren)(void *self, bool keeper);
    bool (*await_siren)(void *self, uint32_t ticket, int64_t timeout_ms);
    /* How long to sleep at most, where that is not LHI_POLL_MS; NULL: it is. */
    int64_t (*net_ms)(void *self, bool keeper);
    void (*wake)(void *self); /* everybody who waits, for whatever */
};

struct lhi_store {
    const struct lhi_store_ops *ops;
    void *self;
};

#endif
