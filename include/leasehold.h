/*
 * leasehold.h: the whole public interface of libleasehold, a job queue that heals itself.
 *
 * A worker holds a job under a lease. Whatever happens to the worker, the job comes back: at the
 * moment its lease ends, counted, explained, and fenced off from the old holder by a token that
 * only ever rises. Delivery is at least once; the token lets a resource make effects exactly once.
 *
 * Conventions that hold for every call below:
 *
 *   Outcomes   0 (LH_OK) is done, a positive value is a normal answer other than "done", a negative
 *              value is a failure. lh_errmsg() has the sentence, per handle and thread.
 *   Options    A NULL options pointer, and a zeroed field, mean "the default". Set fields by name and leave
 *              the rest zero: `{.create = true}` does. `reserved` is for fields of later versions, and
 *              must be zero: a program that was built for this version then runs with those, too.
 *   Ownership  What is passed in is borrowed for the call. What comes out through a `**out` is
 *              yours, and freed by the one function named for its type. Every free and close
 *              accepts NULL. Except for lh_open, a failure leaves outputs untouched.
 *   Time       Times are milliseconds since 1970, UTC, by the store's clock alone. Durations are
 *              milliseconds.
 *   Text       Strings are UTF-8 with a terminating zero; payloads and results are bytes plus length.
 *              Names (queue, kind, worker) are 1 to 128 bytes of A-Z a-z 0-9 . _ : @ -
 *   Threads    Any number of threads may call at once on one handle; writes that arrive together
 *              share one transaction and one sync.
 *   Fork       A handle belongs to the process that opened it. In a forked child every call on it
 *              is refused with LH_EMISUSE, and lh_close() frees what is safe to free. A child that was
 *              forked while a SQLite store was open cannot open one: close all before fork, or open
 *              after exec. docs/guides/fork.md has the pattern for servers that fork.
 *   Crash      Every act is one transaction. What was acknowledged survives SIGKILL and, with
 *              durability full (the default), power loss.
 */
#ifndef LEASEHOLD_H
#define LEASEHOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LH_VERSION_MAJOR 0
#define LH_VERSION_MINOR 1
#define LH_VERSION_PATCH 0
#define LH_VERSION "0.1.0"

#if defined(__GNUC__)
#define LH_API __attribute__((visibility("default")))
#else
#define LH_API
#endif

/* ---- outcomes -------------------------------------------------------------------------------- */

enum lh_status {
    LH_OK = 0,
    LH_EMPTY = 1,       /* nothing is pending now */
    LH_EFAIL = -1,      /* failed, see the message */
    LH_EMISUSE = -2,    /* the call breaks the contract of this header */
    LH_EINVAL = -3,     /* a value is not allowed; the message names it and what is allowed */
    LH_ETOOBIG = -4,    /* a value is larger than its limit */
    LH_ENOTFOUND = -5,  /* no such job, queue, worker or lease */
    LH_ESTATE = -6,     /* it exists, but its state does not allow the act */
    LH_ENOSTORE = -7,   /* no store there, or a database without our tables */
    LH_ELOST = -8,      /* the lease is no longer held under this token */
    LH_ECANCELLED = -9, /* the lease was lost because the job was cancelled */
    LH_EHELD = -10,     /* a named lease is held by another owner */
    LH_EBUSY = -11,     /* the store stayed locked for the whole busy timeout */
    LH_EUNREACH = -12,  /* the store cannot be reached */
    LH_ECORRUPT = -13,  /* the store is damaged */
    LH_EREADONLY = -14, /* the store can be read but not written */
    LH_EOLDER = -15,    /* the store is older than its high-water mark; see accept_loss */
    LH_EUNKNOWN = -16,  /* the outcome is unknown; repeat under lh_last_request() */
    LH_ENEWER = -17,    /* the store was made by a newer version */
    LH_EIO = -18,       /* input or output failed; nothing was done */
    LH_ENOMEM = -19,    /* out of memory; nothing was done */
    LH_ENOSPC = -20,    /* no space left on the device; nothing was done */
    LH_ESTOPPED = -21,  /* the handle was stopped by an earlier failure: close it and open anew */
    LH_EINTR = -22      /* the cancel flag was raised */
};

/** The name of a status without its prefix ("ELOST"), its code in JSON ("lease_lost"), its text, its
 *  exit code, its HTTP status. */
LH_API const char *lh_status_name(int status);
LH_API const char *lh_status_code(int status);
LH_API const char *lh_status_text(int status);
LH_API int lh_status_exit(int status);
LH_API int lh_status_http(int status);

/* ---- flags ----------------------------------------------------------------------------------- */

/**
 * A flag that ends a call which takes one as `cancel`; 0 is not raised.
 *
 * lh_flag_raise() may be called by any thread and in a signal handler. A thread that finds the flag raised
 * sees everything that was written before it (release and acquire). `static volatile sig_atomic_t` is of this type, too:
 * it may be set directly in a signal handler, but by threads only with these functions. One flag may
 * serve several calls, and must outlive them.
 */
typedef volatile int lh_flag;

LH_API void lh_flag_raise(lh_flag *flag); /* once more, if it is raised */
LH_API void lh_flag_lower(lh_flag *flag);
/** How often it was raised since it was lowered; 0 for NULL. */
LH_API int lh_flag_raised(const lh_flag *flag);

/* ---- the store ------------------------------------------------------------------------------- */

typedef struct lh_store lh_store;

/** Severities of a log line: an error needs a person, debug is for us. */
enum lh_log_level { LH_LOG_ERROR = 0, LH_LOG_WARN, LH_LOG_INFO, LH_LOG_DEBUG };

/** One line of the log: a sentence, and what it is about, for whoever keeps logs as data. */
typedef struct lh_log_entry {
    int level;
    const char *line;                    /* the whole sentence, without a newline */
    int64_t job, token, attempt;         /* 0: not about one */
    const char *queue, *worker, *reason; /* NULL: none */
    uint64_t reserved[4];
} lh_log_entry;

/** Receives one line; called from any thread, must not call the library. */
typedef void lh_log_fn(void *arg, const lh_log_entry *entry);

enum lh_durability {
    LH_DURABLE_FULL = 0, /* an acknowledged act survives power loss */
    LH_DURABLE_RELAXED   /* it survives the death of every process, not of the machine */
};

typedef struct lh_open_opts {
    bool read_only;     /* never write; a missing store is LH_ENOSTORE */
    bool create;        /* create a missing SQLite file, migrate an older store */
    bool adopt;         /* put our tables into an existing database that has none (migrate) */
    bool accept_loss;   /* write to a store older than its high-water mark; raises the epoch */
    bool force_network; /* open a SQLite file on a network file system all the same */
    bool remote;  /* holders are elsewhere: claims and heartbeats are synced before answering */
    bool startup; /* a long-running program starts: check the store and recover first */
    /* Leave recovering to the lh_recover() that follows, or to the next open: for acts of a holder,
     * which must not lose the very job they name. */
    bool recover_later;
    bool no_recovery; /* take nothing back by itself, not on claims; lh_recover() still does */
    bool no_integrity_check; /* not even after a crash */
    bool repair;             /* check and repair, also in a database shared with other tables */
    enum lh_durability durability;
    int64_t busy_ms; /* how long to wait for other writers of ours; 0: 5000 */
    lh_log_fn *log;  /* NULL: no logging */
    void *log_arg;
    /* PostgreSQL: at most this many connections, 2 to 9, the one that is notified included; 0: 9. With 2,
     * heartbeats and ends of jobs share the notified one, everything else waits for the other. */
    int64_t max_connections;
    uint64_t reserved[7];
} lh_open_opts;

/**
 * Open the store at `url`: a path or `sqlite:PATH`.
 *
 * The first writing open after an unclean stop or a new boot of the machine, and every open with
 * `startup`, first makes the store sound: integrity check, repair on a copy where that failed, log
 * folded into the database, dead workers and their jobs, expired leases, a report of it all. With
 * `read_only` nothing is written: a store on a read-only file system is read from a copy.
 *
 * Returns  LH_OK        *out is a working handle
 *          LH_ENOSTORE  there is no store, or a database without our tables (see adopt)
 *          LH_ENEWER    made by a newer version; LH_EOLDER older than its high-water mark
 *          LH_EMISUSE   this process was forked while a SQLite store was open (see Fork above)
 *          LH_ECORRUPT, LH_EREADONLY, LH_EINVAL (path is a directory, not a database), LH_ENOMEM …
 * On failure *out is a handle all the same (NULL only when out of memory): read lh_errmsg() from
 * it, then lh_close() it.
 */
LH_API int lh_open(const char *url, const lh_open_opts *opts, lh_store **out);

/** Close the handle. No other call may be under way on it: raise the cancel flag of whoever waits,
 *  and join. The last clean close of a store folds the log into the database file. */
LH_API void lh_close(lh_store *store);

/** Why the last call of this thread on this handle failed; "" if it did not. Never NULL. */
LH_API const char *lh_errmsg(const lh_store *store);

/** The request id under which the last LH_EUNKNOWN act of this thread may be repeated, or "". */
LH_API const char *lh_last_request(const lh_store *store);

/** The store's clock, now. */
LH_API int64_t lh_now(lh_store *store);

/** The clock of clock_gettime() by which a holder counts what is left of a lease. CLOCK_MONOTONIC for a
 * file: while the machine sleeps its leases do, too. CLOCK_BOOTTIME for a server, which stays awake. */
LH_API int lh_store_clock(const lh_store *store);

/** The library's version, and that of the engine below ("SQLite 3.40.1"). */
LH_API const char *lh_version(void);
LH_API const char *lh_engine_version(void);

/* ---- jobs ------------------------------------------------------------------------------------ */

typedef enum lh_state {
    LH_SCHEDULED = 1, /* waits for run_at */
    LH_PENDING,       /* may be claimed */
    LH_RUNNING,       /* held under a lease */
    LH_COMPLETED,
    LH_FAILED,
    LH_CANCELLED
} lh_state;

/** "scheduled" … "cancelled"; and back, 0 if the name is none. */
LH_API const char *lh_state_name(lh_state state);
LH_API lh_state lh_state_parse(const char *name);

#define LH_UNLIMITED (-1)

typedef struct lh_job {
    int64_t id;
    int64_t token; /* fencing token of the present or last lease; below 2^53 */
    const char *queue;
    const char *kind; /* NULL: none */
    lh_state state;
    bool expired; /* running, and the lease has ended */
    int priority;
    const void *payload; /* NULL: none */
    size_t payload_len;
    bool payload_is_text; /* valid UTF-8 without a zero byte */
    const char *key;
    int64_t attempt;      /* claims so far, releases refunded */
    int64_t max_attempts; /* LH_UNLIMITED, or 0: not yet taken from the policy */
    int64_t recoveries;   /* deaths under this job so far */
    const char *worker;   /* holder, while running */
    int64_t lease_until;  /* 0: not running */
    int64_t lease_ms;     /* length of the lease as claimed */
    int64_t remaining_ms; /* until lease_until, when the store answered; never below 0 */
    int64_t timeout_ms;   /* of the policy; 0: none. Filled by a claim only */
    int64_t run_at;       /* times: 0 means "not set" */
    int64_t created_at;
    int64_t started_at;
    int64_t finished_at;
    int64_t state_changed_at;
    int64_t last_heartbeat_at;
    int64_t expires_at;
    const char *last_error;
    const char *stage;
    int progress;           /* 0 … 100, -1: none */
    const char *checkpoint; /* JSON text, NULL: none; handed to the next attempt */
    const void *result;
    size_t result_len;
    bool result_is_text;
    int64_t
        result_cut; /* bytes of the result that were not kept. Filled for one job, not in lists */
    int64_t max_output; /* of the policy: bytes kept of each stream. Filled by a claim only */
    uint64_t reserved[8];
} lh_job;

typedef struct lh_jobs {
    size_t n;
    lh_job *job;
    /* Of a claim: lh_store_clock(), in ms, just before it was made. `remaining_ms` of its jobs counts
     * from here at the latest: a holder that stops by then never overlaps the next. */
    int64_t asked_mono_ms;
    void *priv; /* what the strings live in */
} lh_jobs;

LH_API void lh_jobs_free(lh_jobs *jobs);

/** One job to enqueue. Limits left at 0 are taken from the policy of (queue, kind). */
typedef struct lh_new_job {
    const char *kind;
    const void *payload;
    size_t payload_len;
    int priority;         /* -32768 … 32767, higher first */
    int64_t delay_ms;     /* run no earlier than now + delay */
    int64_t run_at;       /* or no earlier than this wall-clock time; not both */
    const char *key;      /* while a job with this key lives in the queue, it is returned */
    int64_t max_attempts; /* 1 … 1000000 or LH_UNLIMITED */
    int64_t lease_ms;     /* lease of a claim that names none */
    int64_t expires_ms;   /* cancelled as EXPIRED if not claimed by now + this */
    int64_t backoff_ms;   /* overrides the policy's backoff */
    int64_t backoff_cap_ms;
    uint64_t reserved[8];
} lh_new_job;

typedef struct lh_enqueued {
    int64_t id;     /* 0: a job of another role has the key, and this role may not see it */
    lh_state state; /* 0 then, too */
    bool duplicate; /* it was there before: by key, or by the request id */
    uint64_t reserved[4];
} lh_enqueued;

/**
 * Enqueue `n` jobs into `queue`, all of them or none, in one transaction.
 *
 * `request` (NULL: none) names this call: repeated under the same id it returns the same jobs.
 * Returns  LH_OK        out[0 … n-1] is filled
 *          LH_EINVAL, LH_ETOOBIG   nothing was written
 *          LH_EUNKNOWN  the commit failed half-way; repeat with lh_last_request() as `request`
 *          LH_ENOSPC, LH_EBUSY, LH_EIO …   nothing was written
 * Crash    After LH_OK the jobs are there; before it, all or none.
 */
LH_API int lh_enqueue(lh_store *store, const char *queue, const lh_new_job *jobs, size_t n,
                      const char *request, lh_enqueued *out);

struct sqlite3;

/**
 * Enqueue on the caller's own SQLite connection, as part of the caller's own transaction.
 *
 * The jobs appear if and when that transaction commits. `db` must be a database with our tables.
 * `errmsg` (NULL: not wanted) receives the reason of a failure, at most `errlen` bytes.
 */
LH_API int lh_enqueue_sqlite(struct sqlite3 *db, const char *queue, const lh_new_job *jobs,
                             size_t n, lh_enqueued *out, char *errmsg, size_t errlen);

struct pg_conn;

/**
 * The same on the caller's own connection to PostgreSQL (PGconn *), where this library has that store.
 *
 * In the caller's transaction, if one is open; what the server refuses aborts it, as every failed
 * statement does. Else the call is a transaction of its own. It waits for the answer as PQexec() does.
 *
 * Returns  LH_OK        out[0 … n-1] is filled; outside of a transaction, the jobs are there
 *          LH_EINVAL, LH_ETOOBIG   nothing was written; so also if client_encoding is not UTF8
 *          LH_EMISUSE   a query, a COPY or a pipeline is under way on the connection
 *          LH_ENOSTORE, LH_ENEWER  the database has no schema of ours, or a newer one
 *          LH_EUNREACH  the connection is lost, and nothing was written
 *          LH_EUNKNOWN  outside of a transaction only: lost before the commit was answered, or the
 *                       commit's wait for its standby was cancelled. With a `key` it may be repeated.
 *                       Where the caller has a notice receiver, that alone is told of such a wait.
 */
LH_API int lh_enqueue_postgres(struct pg_conn *conn, const char *queue, const lh_new_job *jobs,
                               size_t n, lh_enqueued *out, char *errmsg, size_t errlen);

typedef struct lh_claim_opts {
    const char *const *queues; /* looked at in this order */
    size_t n_queues;
    const char *const *kinds; /* NULL: any kind */
    size_t n_kinds;
    const char *worker;  /* required */
    size_t n;            /* up to this many; 0: 1; at most 1000 */
    int64_t lease_ms;    /* 0: the job's own, else the policy's */
    int64_t wait_ms;     /* wait so long for a job; 0: do not wait; -1: for ever */
    const char *request; /* repeated under this id, the claim returns what it got and still holds */
    const lh_flag *cancel; /* raised (non-zero) by another thread: stop waiting, LH_EINTR */
    bool woken; /* … which then calls lh_wake(): else the flag is looked at ten times a second */
    /* Wait only while a job is still to come by itself, and return LH_EMPTY when none is: while a job
     * that was claimed before is scheduled for its next attempt, or a limit of its queue (rate,
     * concurrency, exclusive) holds a pending job back. */
    bool drain;
    /* Not NULL: gets the jobs (lh_jobs_free() them) instead of `*out`, in the thread of the call.
     * lh_complete_claim() calls it as soon as the claim stands, also where the completes must still be
     * synced: the next jobs can begin meanwhile. What the call then returns is about the completes. */
    void (*claimed)(void *arg, lh_jobs *jobs);
    void *claimed_arg;
    uint64_t reserved[6];
} lh_claim_opts;

/**
 * Claim the best pending jobs and hold them: priority high to low, then in the order of
 * their ids, queue after queue.
 *
 * What is expired is recovered first, so the work of a crashed worker is among what is claimed; a
 * failure to recover is logged and does not stop the claim. A job whose payload no longer matches
 * its checksum is failed with the reason and never handed out.
 *
 * Returns  LH_OK      *out holds 1 … n jobs with their tokens; lh_jobs_free() it
 *          LH_EMPTY   nothing is pending now (paused, limited and held-back jobs are not pending)
 *          LH_EINTR   the cancel flag was raised while waiting
 *          LH_EBUSY, LH_EINVAL …
 * Crash    One transaction. If we die after it, the lease expires and recovery returns the job.
 */
LH_API int lh_claim(lh_store *store, const lh_claim_opts *opts, lh_jobs **out);

/** Whoever waits in a call on this store, in any thread and process, looks around once: for its
 *  cancel flag, above all. */
LH_API void lh_wake(lh_store *store);

/* The acts on held jobs take arrays and run in one transaction. Each item is judged by itself:
 * `status[i]` (NULL: not wanted) has its outcome, and the call returns LH_OK if every item was done,
 * else the outcome of the first that was not. `after` (NULL: not wanted) receives the jobs as they
 * are afterwards, those that exist, in the order given. */

typedef struct lh_beat {
    int64_t job, token;
    int64_t lease_ms; /* 0: as long as the claim's */
    bool has_progress;
    int progress;           /* 0 … 100 */
    const char *stage;      /* NULL: as it was */
    const char *checkpoint; /* JSON; NULL: as it was */
    uint64_t reserved[4];
} lh_beat;

/** Extend leases to now + lease. LH_ELOST once expired or passed on, LH_ECANCELLED if cancelled. */
LH_API int lh_heartbeat(lh_store *store, const lh_beat *beats, size_t n, int *status,
                        lh_jobs **after);

/** What a run wrote to one stream: its beginning and its end. Where the two are less than `bytes`, what
 *  lies between them is cut. */
typedef struct lh_stream {
    const void *head, *tail; /* NULL: none */
    size_t head_len, tail_len;
    int64_t bytes; /* written in all; 0: no more than head and tail */
} lh_stream;

/** What one run of a job wrote, under the token it ran with. */
typedef struct lh_output {
    int64_t job, token;
    lh_stream out, err; /* standard output, standard error */
    /* Filled by lh_output_list(), else not looked at: */
    int64_t attempt;      /* may repeat: a release refunds it, a retry starts again at 1 */
    int64_t at;           /* when it was last written to */
    int64_t result_bytes; /* size of the result of this run, where not all of it is kept; else 0 */
} lh_output;

typedef struct lh_done {
    int64_t job, token;
    const void *result; /* NULL: none */
    size_t result_len;
    int64_t result_bytes; /* more than result_len: so large was it before it was cut */
    const lh_output
        *output; /* NULL: none; kept in the same transaction. Its job and token do not count */
    uint64_t reserved[4];
} lh_done;

/**
 * Complete jobs. The token is compared, the clock is not asked: a slow worker may still finish as
 * long as nobody else was given the job. A repeated identical complete is done.
 */
LH_API int lh_complete(lh_store *store, const lh_done *done, size_t n, int *status,
                       lh_jobs **after);

/** Complete `done` and claim the next jobs, in one transaction. `*out` is set on LH_OK only; the
 *  outcome is that of the claim, unless the whole act failed. Workers do this (lh_worker_run()). */
LH_API int lh_complete_claim(lh_store *store, const lh_done *done, size_t n, int *status,
                             const lh_claim_opts *opts, lh_jobs **out);

#define LH_NOW (-1)

typedef struct lh_failure {
    int64_t job, token;
    const char *error;       /* required */
    bool permanent;          /* failed for good */
    int64_t retry_in_ms;     /* 0: by the backoff; LH_NOW: at once */
    const lh_output *output; /* as of a job that is done */
    uint64_t reserved[4];
} lh_failure;

/** Fail jobs: scheduled again after the backoff, or failed when permanent or out of attempts. */
LH_API int lh_fail(lh_store *store, const lh_failure *failures, size_t n, int *status,
                   lh_jobs **after);

typedef struct lh_ref {
    int64_t job, token;
} lh_ref;

#define LH_BACKOFF (-2)

/** Give jobs back, unharmed: pending again (scheduled, with a delay; LH_BACKOFF: with that of a
 *  failure), the attempt refunded. */
LH_API int lh_release(lh_store *store, const lh_ref *refs, size_t n, int64_t delay_ms, int *status,
                      lh_jobs **after);

/** The same for jobs that `worker` holds (ids NULL: all of them), by another hand: a live lease
 *  keeps its job back from others until its holder has answered or its old deadline has passed. */
LH_API int lh_release_worker(lh_store *store, const char *worker, const int64_t *ids, size_t n,
                             int64_t delay_ms, bool now, int *status, int64_t *released);

/** Cancel live jobs. A running holder learns it at its next heartbeat. */
LH_API int lh_cancel(lh_store *store, const int64_t *ids, size_t n, int *status, lh_jobs **after);

enum lh_retry_how {
    LH_RETRY_FORCE = 1, /* completed jobs too */
    LH_RETRY_NOW = 2    /* do not wait for the holder of a lease that was revoked while alive */
};

/** Retry failed or cancelled jobs: attempts and recoveries start again. `how` is 0 or a sum of the
 *  above. A job that was cancelled under a live holder stays back until that holder has answered or
 *  its old deadline has passed. */
LH_API int lh_retry(lh_store *store, const int64_t *ids, size_t n, unsigned how, int *status,
                    lh_jobs **after);

/** Delete jobs that are not running. Their ids are never used again. */
LH_API int lh_delete(lh_store *store, const int64_t *ids, size_t n, int *status);

/** Move a scheduled or pending job to now + delay, or to the wall-clock time `run_at`. */
LH_API int lh_reschedule(lh_store *store, int64_t id, int64_t delay_ms, int64_t run_at,
                         lh_jobs **after);

/** One job. LH_ENOTFOUND if there is none. */
LH_API int lh_job_get(lh_store *store, int64_t id, lh_jobs **out);

typedef struct lh_job_filter {
    const char *queue, *kind, *worker, *key;
    lh_state state; /* 0: any */
    bool expired;   /* running with an ended lease */
    bool brief;     /* without payload, checkpoint and result: they are not even read */
    int64_t after;  /* ids above this */
    size_t limit;   /* 0: 100; at most 10000 */
    uint64_t reserved[8];
} lh_job_filter;

/** Jobs by id, ascending. An empty list is LH_OK. */
LH_API int lh_job_list(lh_store *store, const lh_job_filter *filter, lh_jobs **out);

/** Wait until job `id` is completed, failed or cancelled: LH_OK and the job, LH_EMPTY on timeout
 *  (wait_ms as in a claim). */
LH_API int lh_job_wait(lh_store *store, int64_t id, int64_t wait_ms, const lh_flag *cancel,
                       lh_jobs **out);

/* ---- what runs wrote ------------------------------------------------------------------------- */

/**
 * Keep what runs have written by now, all of it each time: it replaces what was kept before, unless that
 * is more. For runs that are under way; what ends is kept with lh_complete() and lh_fail().
 *
 * Each stream is cut to `max_output` of the policy: the first quarter of that, and the rest from its end.
 * Of a job the newest 20 runs are kept. On a full disk (SQLite) only the sizes of the streams are.
 * Returns  LH_OK        every item was kept, or its policy keeps nothing
 *          LH_ELOST     the token is not that of the job any more, and nothing was kept under it before
 *          LH_ENOTFOUND, LH_EINVAL, LH_ETOOBIG (more than 16 MiB) …
 * Crash    It survives the death of every process. With durability full it survives power loss once the
 *          run has ended, and not before.
 */
LH_API int lh_output_put(lh_store *store, const lh_output *outputs, size_t n, int *status);

typedef struct lh_output_filter {
    int64_t job;     /* required */
    int64_t attempt; /* 0: any */
    int64_t since;   /* only what was written to at this time or later */
    uint64_t reserved[8];
} lh_output_filter;

typedef struct lh_outputs {
    size_t n;
    lh_output *output;
    void *priv;
} lh_outputs;

/** What the runs of a job wrote, oldest run first; a run that wrote nothing is not in it. An empty list is
 *  LH_OK, also where there is no such job. */
LH_API int lh_output_list(lh_store *store, const lh_output_filter *filter, lh_outputs **out);
LH_API void lh_outputs_free(lh_outputs *outputs);

/* ---- queues and policies --------------------------------------------------------------------- */

typedef struct lh_queue {
    const char *queue;
    bool paused;
    int64_t scheduled, pending, running, completed, failed, cancelled;
    int64_t
        oldest_pending_ms; /* since created_at of the pending job with the lowest id; -1: none */
    int64_t rate_n, rate_per_ms; /* 0: unlimited */
    int64_t concurrency;         /* 0: unlimited */
    /* The last 60 full minutes and the current one, from the rollups. */
    int64_t hour_enqueued, hour_completed, hour_failed, hour_recovered;
    int64_t hour_wait_ms, hour_run_ms; /* sums over what was claimed, and what ended */
    int64_t hour_claimed, hour_ended;
    uint64_t reserved[8];
} lh_queue;

typedef struct lh_queues {
    size_t n;
    lh_queue *queue;
    void *priv;
} lh_queues;

LH_API int lh_queue_list(lh_store *store, lh_queues **out);
LH_API void lh_queues_free(lh_queues *queues);

/** Pausing stops claims of the queue; what runs goes on. Repeating it is harmless. */
LH_API int lh_queue_pause(lh_store *store, const char *queue);
LH_API int lh_queue_resume(lh_store *store, const char *queue);

/** Delete what waits in the queue (scheduled and pending). `*purged` counts it. */
LH_API int lh_queue_purge(lh_store *store, const char *queue, int64_t *purged);

/** Remove an empty queue, with its history of the last hour, its pause and the policies that name it.
 * LH_ENOTFOUND: there is no such queue. LH_ESTATE: it has a job in any state or in quarantine, or a
 * schedule enqueues into it. The next enqueue makes a new queue. */
LH_API int lh_queue_delete(lh_store *store, const char *queue);

typedef enum lh_action { LH_ACTION_RETRY = 1, LH_ACTION_PENDING, LH_ACTION_FAIL } lh_action;
typedef enum lh_audit { LH_AUDIT_EXCEPTIONAL = 1, LH_AUDIT_FULL } lh_audit;

enum lh_policy_field {
    LH_POLICY_LEASE = 1 << 0,
    LH_POLICY_MAX_ATTEMPTS = 1 << 1,
    LH_POLICY_MAX_RECOVERIES = 1 << 2,
    LH_POLICY_ACTION = 1 << 3,
    LH_POLICY_RECOVERY = 1 << 4,
    LH_POLICY_RECOVERY_BACKOFF = 1 << 5,
    LH_POLICY_BACKOFF = 1 << 6,
    LH_POLICY_BACKOFF_CAP = 1 << 7,
    LH_POLICY_TIMEOUT = 1 << 8,
    LH_POLICY_EXCLUSIVE = 1 << 9, /* of a queue as a whole, see below */
    LH_POLICY_AUDIT = 1 << 10,
    LH_POLICY_RETENTION = 1 << 11,
    LH_POLICY_RETENTION_FAILED = 1 << 12,
    LH_POLICY_MAX_PAYLOAD = 1 << 13,
    /* of a queue as a whole: kind must be NULL, queue must not */
    LH_POLICY_RATE = 1 << 14,
    LH_POLICY_CONCURRENCY = 1 << 15,
    /* of a queue and kind again */
    LH_POLICY_MAX_OUTPUT = 1 << 16,
    LH_POLICY_RETENTION_OUTPUT = 1 << 17,
    LH_POLICY_ALL = (1 << 18) - 1
};

typedef struct lh_policy {
    unsigned set;           /* which of the fields below are given (enum lh_policy_field) */
    int64_t lease_ms;       /* 1 … 30 d */
    int64_t max_attempts;   /* 1 … 1000000, LH_UNLIMITED */
    int64_t max_recoveries; /* 0 … 1000000, LH_UNLIMITED */
    lh_action action;       /* what a death does */
    bool recovery;          /* off: stuck jobs stay for inspection, only a hand recovers them */
    int64_t recovery_backoff_ms;
    int64_t backoff_ms; /* first delay after a fail; doubles */
    int64_t backoff_cap_ms;
    int64_t timeout_ms; /* 0: none */
    bool exclusive;     /* one job at a time, under the named lease processing/QUEUE */
    lh_audit audit;
    int64_t retention_ms; /* completed, cancelled */
    int64_t retention_failed_ms;
    int64_t max_payload;         /* bytes, up to 64 MiB */
    int64_t rate_n, rate_per_ms; /* rate_n 0: unlimited */
    int64_t concurrency;         /* 0: unlimited */
    int64_t max_output;          /* bytes kept of each stream of a run, up to 16 MiB; 0: none */
    int64_t retention_output_ms; /* of what runs wrote, after the end of the job; 0: as the job */
    uint64_t reserved[8];
} lh_policy;

/** Set the fields in `policy->set` for (queue, kind); NULL means any. Fields in `unset` are taken
 *  back, so that they fall through again. */
LH_API int lh_policy_set(lh_store *store, const char *queue, const char *kind,
                         const lh_policy *policy, unsigned unset);

/** What holds for (queue, kind): every field, after falling through
 *  (queue, kind) → (queue, any) → (any, kind) → (any, any) → built in. */
LH_API int lh_policy_get(lh_store *store, const char *queue, const char *kind, lh_policy *out);

typedef struct lh_policy_row {
    const char *queue, *kind; /* NULL: any */
    lh_policy policy;
} lh_policy_row;

typedef struct lh_policies {
    size_t n;
    lh_policy_row *row;
    void *priv;
} lh_policies;

/** The rows as set, nothing fallen through. */
LH_API int lh_policy_list(lh_store *store, lh_policies **out);
LH_API void lh_policies_free(lh_policies *policies);

/** The ttl of named leases of `scope` that are acquired without one; 0 takes it back (300 s). */
LH_API int lh_scope_set(lh_store *store, const char *scope, int64_t ttl_ms);

/* ---- schedules ------------------------------------------------------------------------------- */

/** What becomes of ticks that nobody was there for. A tick counts as missed when it is a minute late,
 *  or the next one is due as well. */
typedef enum lh_catch_up {
    LH_CATCH_UP_ONCE = 0, /* one job, for the last of them */
    LH_CATCH_UP_NONE,     /* nothing: the next tick is the next one */
    LH_CATCH_UP_ALL       /* a job for each (of more than 100000: as ONCE) */
} lh_catch_up;

/** Periodic work: at each of its instants a job is enqueued, once, whoever notices. */
typedef struct lh_schedule {
    const char *name, *queue;
    const char *cron; /* "30 2 * * mon-fri", "@hourly" … "@yearly", "@every 5m" (1 s … 3650 d) */
    const char *zone; /* IANA name, what the cron line means; NULL: UTC */
    lh_catch_up catch_up;
    /* What is enqueued; `delay_ms` and `run_at` must be 0. Its run_at is the instant it is for. While a
     * job with its key lives, ticks are skipped (event schedule.skipped). */
    lh_new_job job;
    /* Filled by lh_schedule_list(), ignored by lh_schedule_set(): */
    int64_t created_at;
    int64_t last_at, last_job; /* the last instant that was enqueued, and its job; 0: none */
    int64_t next_at;
    const char *error; /* why it enqueues nothing now (its zone is gone …); NULL: it does */
    uint64_t reserved[8];
} lh_schedule;

typedef struct lh_schedules {
    size_t n;
    lh_schedule *schedule;
    void *priv;
} lh_schedules;

/**
 * Set the schedule of that name, in place of the one there is.
 *
 * The first instant is the first one after now. With the same cron line and zone as before the
 * instants go on as they were, so that setting a schedule again and again changes nothing.
 * Whoever claims, or runs lh_maintain(), enqueues what is due; whoever waits there wakes for it.
 * Returns  LH_OK, LH_EINVAL (the line, the zone, the job; or it would never fire) …
 * Crash    A tick is settled in the transaction that enqueues its job: once, or not yet.
 */
LH_API int lh_schedule_set(lh_store *store, const lh_schedule *schedule);

/**
 * The first instant after `after` at which such a schedule is due; needs no store.
 *
 * LH_EINVAL: line or zone are none, or it never fires; `errmsg` (NULL: not wanted) receives the
 * reason, at most `errlen` bytes.
 */
LH_API int lh_schedule_next(const char *cron, const char *zone, int64_t after, int64_t *next,
                            char *errmsg, size_t errlen);

/** LH_ENOTFOUND if there is none. Jobs that it has enqueued stay. */
LH_API int lh_schedule_remove(lh_store *store, const char *name);

/** All of them, by name. */
LH_API int lh_schedule_list(lh_store *store, lh_schedules **out);
LH_API void lh_schedules_free(lh_schedules *schedules);

/* ---- named leases ---------------------------------------------------------------------------- */

typedef struct lh_lease {
    const char *scope, *name;
    const char *owner; /* NULL: held by nobody */
    int64_t token;
    int64_t acquired_at, expires_at; /* 0: not held */
    int64_t remaining_ms;
    bool stale;                /* held, and expired */
    const char *value;         /* JSON; outlives the holder */
    int64_t rows;              /* -1: none */
    int64_t last_completed_at; /* 0: never */
    uint64_t reserved[8];
} lh_lease;

typedef struct lh_leases {
    size_t n;
    lh_lease *lease;
    void *priv;
} lh_leases;

LH_API void lh_leases_free(lh_leases *leases);

typedef struct lh_lease_opts {
    const char *owner; /* NULL: unique to this process */
    int64_t ttl_ms;    /* 0: the scope's, else 300 s */
    int64_t by_ms;     /* extend only: add to the expiry instead */
    int64_t token;     /* extend, release, complete: 0 means "do not compare" */
    int64_t rows;      /* complete only, with has_rows */
    bool has_rows;
    const char *value; /* acquire, extend, complete: JSON to keep; NULL: as it was */
    bool take_only;    /* acquire only: what `owner` holds already is held, and not extended */
    uint64_t reserved[8];
} lh_lease_opts;

/**
 * Acquire (scope, name), or extend it when `owner` holds it already.
 *
 * Returns  LH_OK     *out (NULL: not wanted) is the lease with its token
 *          LH_EHELD  an active lease of another owner (take_only: of any); *out, if wanted, is
 *                    that lease
 */
LH_API int lh_lease_acquire(lh_store *store, const char *scope, const char *name,
                            const lh_lease_opts *opts, lh_leases **out);

/** LH_ELOST once the lease is expired or no longer names this owner (and token). */
LH_API int lh_lease_extend(lh_store *store, const char *scope, const char *name,
                           const lh_lease_opts *opts, lh_leases **out);

/** Give it back. Releasing what is not held is harmless: LH_OK and `*released` false. LH_EHELD if
 *  another owner holds it. */
LH_API int lh_lease_release(lh_store *store, const char *scope, const char *name,
                            const lh_lease_opts *opts, bool *released);

/** Give it back with its work done: keeps row count and value, stamps last_completed_at. */
LH_API int lh_lease_complete(lh_store *store, const char *scope, const char *name,
                             const lh_lease_opts *opts, lh_leases **out);

/** LH_ENOTFOUND if nothing is known of it. */
LH_API int lh_lease_get(lh_store *store, const char *scope, const char *name, lh_leases **out);
LH_API int lh_lease_list(lh_store *store, const char *scope, lh_leases **out);

/** Held and expired? No lease is not stale. */
LH_API int lh_lease_is_stale(lh_store *store, const char *scope, const char *name, bool *stale);

/** The owner a NULL owner stands for: unique to this process and handle. */
LH_API const char *lh_default_owner(lh_store *store);

/* ---- workers --------------------------------------------------------------------------------- */

typedef struct lh_worker_opts {
    const char *id;      /* the full id; or */
    const char *label;   /* a label, made unique to this start */
    const char *queues;  /* for display, comma separated */
    int64_t interval_ms; /* 0: 30 s */
    int64_t multiplier;  /* 0: 3 */
    bool process;        /* this process is the worker: its death is proven by its pid, and silence
                          * forfeits its jobs */
    bool tells_started;  /* it says what it starts (lh_worker_started): what a dead one held and did
                          * not start is given back as if it had released it */
    const int64_t *sessions; /* as lh_worker_sessions() tells them; NULL: none yet */
    size_t n_sessions;
    uint64_t reserved[8];
} lh_worker_opts;

/** Register a worker; `id` receives its id (at most `idlen` bytes with the zero). Its silence is
 *  counted from its last beat or claim. */
LH_API int lh_worker_register(lh_store *store, const lh_worker_opts *opts, char *id, size_t idlen);

/** Beat for a worker and its jobs in one transaction. A worker that is unknown is registered, as
 *  one without a process of ours, with `interval_ms` (0: 30 s). `status` as for lh_heartbeat. */
LH_API int lh_worker_heartbeat(lh_store *store, const char *worker, int64_t interval_ms,
                               const lh_beat *beats, size_t n, int *status);

/** The worker says goodbye. What it still holds is released. */
LH_API int lh_worker_stop(lh_store *store, const char *worker);

/** What this worker has started by now: all of it, replacing what it said before. LH_ENOTFOUND if
 *  the worker is not registered. */
LH_API int lh_worker_started(lh_store *store, const char *worker, const lh_ref *started, size_t n);

/** The processes in whose sessions its jobs run, all of them: a worker is not proven dead before
 *  these and all in their sessions are gone, and what is left of them is killed by whoever recovers
 *  its jobs on this machine. */
LH_API int lh_worker_sessions(lh_store *store, const char *worker, const int64_t *pids, size_t n);

/** It fails at everything (`why`, told in the event worker.degraded), or (NULL) works again. */
LH_API int lh_worker_degraded(lh_store *store, const char *worker, const char *why);

typedef struct lh_worker {
    const char *id, *label, *host, *queues, *version;
    const char *state; /* "alive", "late", "dead", "stopped" */
    bool marked_dead; /* … and a recovery has found it so: what it held is free, or being freed */
    int64_t pid;      /* 0: no process of ours */
    int64_t interval_ms, multiplier;
    int64_t registered_at, last_heartbeat_at, stopped_at;
    int64_t silent_ms;    /* since the last beat */
    const char *degraded; /* why it fails at everything; NULL: it does not */
    int64_t running;      /* jobs held */
    const int64_t *jobs;  /* which; filled by lh_workers_stale() only */
    uint64_t reserved[8];
} lh_worker;

typedef struct lh_workers {
    size_t n;
    lh_worker *worker;
    void *priv;
} lh_workers;

LH_API int lh_worker_list(lh_store *store, lh_workers **out);

/** Workers that are dead and still hold jobs, or are dead and not yet marked so: silent past their
 *  own limit, or gone for certain (a process of this machine). Changes nothing. */
LH_API int lh_workers_stale(lh_store *store, lh_workers **out);
LH_API void lh_workers_free(lh_workers *workers);

/* ---- running jobs ---------------------------------------------------------------------------- */

/** What became of one run of a job. */
typedef enum lh_outcome {
    LH_RAN_OK = 0,    /* completed */
    LH_RAN_FAILED,    /* failed, with retry while attempts are left */
    LH_RAN_PERMANENT, /* failed for good */
    LH_RAN_NOT_NOW,   /* given back, to come again after the backoff; the attempt is refunded */
    LH_RAN_CRITICAL,  /* given back, and the worker stops: it cannot do this work */
    LH_RAN_RELEASED, /* given back because the worker stops or a limit was hit; no handler says so */
    LH_RAN_LOST      /* not ours any more: recovered, cancelled, past its deadline; nor this */
} lh_outcome;

typedef struct lh_task lh_task;

/**
 * Runs one job, on a thread of the worker's; several at once when `jobs` is above 1.
 *
 * The lease is renewed behind its back. It looks at lh_task_lost() where it can stop: once that is
 * true the job may be somebody else's, and whatever it returns is refused.
 */
typedef lh_outcome lh_handler(void *arg, lh_task *task, const lh_job *job);

/** Is the job no longer ours, or must we stop? Cheap; any thread. */
LH_API bool lh_task_lost(const lh_task *task);
/** Sent with the next beat, which is then soon: 0 … 100; a stage. A bad value is LH_EINVAL and changes
 *  nothing. */
LH_API int lh_task_progress(lh_task *task, int percent);
LH_API int lh_task_stage(lh_task *task, const char *stage);
/** JSON for the next attempt. Written at once: after LH_OK it is kept. LH_EINVAL (no JSON), LH_ELOST,
 *  LH_ECANCELLED, or a failure of the store. */
LH_API int lh_task_checkpoint(lh_task *task, const char *json);
/** The result of a completed job, or why it failed: copied. LH_ETOOBIG beyond 64 MiB (of an error,
 *  the end is kept). */
LH_API int lh_task_result(lh_task *task, const void *bytes, size_t len);
LH_API int lh_task_error(lh_task *task, const char *text);
/** Add to what the run has written to standard output (1) or standard error (2), which lh_output_list()
 *  shows: copied, kept up to the limit of the policy. Any thread. */
LH_API int lh_task_output(lh_task *task, int stream, const void *bytes, size_t len);

/** What a worker tells while it runs; see lh_work_opts.tell. */
enum lh_work_what {
    LH_WORK_READY,    /* registered; the first claim follows */
    LH_WORK_STARTED,  /* a job */
    LH_WORK_PROGRESS, /* a job said how far it is */
    LH_WORK_ENDED,    /* a job: `outcome`; `error` says why it is none of LH_RAN_OK */
    LH_WORK_OUTPUT,   /* a command wrote `output` to `stream`; only with tell_output */
    LH_WORK_TROUBLE,  /* something does not work and is tried again: `error` */
    LH_WORK_WELL,     /* … and now it does */
    LH_WORK_WAITING,  /* a worker that drains has nothing to do before the next retry */
    LH_WORK_STOPPING, /* no more claims; `running` jobs are waited for */
    LH_WORK_STOPPED
};

typedef struct lh_work_event {
    enum lh_work_what what;
    const lh_job *job; /* NULL: not about one */
    int64_t run_ms;    /* so long has it run */
    int progress;      /* -1: none */
    const char *stage; /* NULL: none */
    lh_outcome outcome;
    const char *error; /* NULL: none */
    const char *worker;
    size_t running, ahead; /* jobs under way; claimed and not started */
    const void *output;    /* bytes as they came, not lines; NULL: none */
    size_t output_len;
    int stream; /* 1 standard output, 2 standard error */
    uint64_t reserved[4];
} lh_work_event;

typedef struct lh_work_opts {
    const char *const *queues; /* looked at in this order */
    size_t n_queues;
    const char *const *kinds; /* NULL: any kind */
    size_t n_kinds;
    const char *label;           /* of the worker; NULL: USER@HOST */
    size_t jobs;                 /* at once; 0: 1; at most 1000 */
    size_t ahead;                /* claimed ahead of being started; at most 1000 */
    int64_t lease_ms;            /* 0: the job's own, else the policy's */
    int64_t heartbeat_ms;        /* 0: 30 s */
    int64_t multiplier;          /* of it, after which silence is death; 0: 3 */
    int64_t timeout_ms;          /* of one run; 0: the policy's */
    int64_t rate_n, rate_per_ms; /* start at most so many in so long; 0: no limit */
    int64_t grace_ms;            /* of a stop; 0: 30 s; LH_NOW: none */
    int64_t kill_after_ms;       /* from SIGTERM to SIGKILL; 0: 5 s */
    bool drain;                  /* stop when nothing is pending and no retry waits */
    bool drain_pending;          /* … or nothing can be claimed: retries are left behind */
    bool once;                   /* stop after one job */
    bool no_recovery;            /* do not look after the store (lh_maintain) */
    int64_t detection_ms;        /* and do it at least so often; 0: 60 s */

    /* Either a handler … */
    lh_handler *handler;
    void *handler_arg;
    /* … or a command, run once a job: payload on standard input, the job in LEASEHOLD_… variables,
     * standard output is the result, exit codes as sysexits has them (0, 75, 65, 78). */
    char *const *command;  /* ends with NULL; the first is looked for in $PATH */
    const char *store_url; /* NULL: not told; else in LEASEHOLD_STORE of the command */
    const char
        *guardian; /* the program that stands over each command; NULL: where it was installed */
    /* The program is nothing but this worker: SIGTERM, SIGINT and SIGHUP stop it, the second at once, and
     * it has no other children. */
    bool own_signals;

    /* NULL: the worker ends with LH_ESTOPPED. A handle was stopped by a failure: close *store and open it
     * anew into *store, which from then on is used; on failure leave NULL there, it is tried again. */
    int (*reopen)(void *arg, lh_store **store, char *errmsg, size_t errlen);
    void *reopen_arg;

    const lh_flag *cancel; /* raised: stop as by SIGTERM; above 1: as by the second */
    /* NULL: not wanted. Called from the thread that called lh_worker_run(). */
    void (*tell)(void *arg, const lh_work_event *event);
    void *tell_arg;
    bool tell_output; /* and what commands write, as it comes */
    uint64_t reserved[8];
} lh_work_opts;

/** How it went. */
typedef struct lh_work_tally {
    int64_t completed, failed, released, lost; /* jobs, by what became of them */
    int64_t claimed, started;
    char worker[160]; /* the id it had */
    uint64_t reserved[4];
} lh_work_tally;

/**
 * Be a worker: claim jobs, run them, renew their leases, finish them; until told to stop.
 *
 * It registers as a process, so that its death is proven at once, and looks after the store as
 * lh_maintain() does. A run has ended before its lease can be given to another: it is stopped at
 * its own deadline when no heartbeat was confirmed, also when the worker itself hangs (with a command).
 * Whatever kills the worker, everything its commands have started dies with it. In a process with a
 * command, the worker becomes the reaper of orphaned descendants (PR_SET_CHILD_SUBREAPER).
 * `tally` (NULL: not wanted) counts. `errmsg` (NULL: not wanted) receives the reason of a failure, at most
 * `errlen` bytes, and "" if there was none; lh_errmsg() does not have it, since the worker may have replaced
 * the handle.
 *
 * Returns  LH_OK     told to stop, or drained; nothing is held any more
 *          LH_EMPTY  `once`, and there was no job
 *          LH_EFAIL  a job said that this worker cannot work (LH_RAN_CRITICAL); with `once`: the job
 *                    was not completed
 *          LH_EINVAL the command cannot be run, or another value is not allowed; nothing was claimed
 *          LH_ESTOPPED …  the store cannot be used any more
 * Crash    What it held comes back: see lh_worker_register().
 */
LH_API int lh_worker_run(lh_store *store, const lh_work_opts *opts, lh_work_tally *tally,
                         char *errmsg, size_t errlen);

/** Would lh_worker_run() take these, and can the command be run? Needs no store, changes nothing.
 *  LH_OK, or LH_EINVAL and, in `errmsg`, why not. */
LH_API int lh_worker_check(const lh_work_opts *opts, char *errmsg, size_t errlen);

typedef struct lh_lease_run_opts {
    const char *owner;     /* NULL: unique to this run */
    int64_t ttl_ms;        /* 0: the scope's, else 300 s */
    int64_t wait_ms;       /* wait so long for it; 0: do not; -1: for ever */
    int64_t kill_after_ms; /* from SIGTERM to SIGKILL; 0: 5 s */
    const char
        *guardian;    /* the program that stands over the command; NULL: where it was installed */
    bool own_signals; /* SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to
                            * the command; without it they do what the caller has set */
    const lh_flag *cancel; /* raised: stop waiting, or the command */
    /* NULL: not wanted. What does not work and is tried again; from a thread of the run's. */
    void (*tell)(void *arg, const char *trouble);
    void *tell_arg;
    uint64_t reserved[8];
} lh_lease_run_opts;

/**
 * Hold (scope, name) while `command` runs, with this process's standard input, output and error, and
 * its terminal. LEASEHOLD_LEASE and LEASEHOLD_TOKEN tell it what is held.
 *
 * The lease is extended while it runs; if it is lost all the same, or no extension was confirmed in
 * time, everything the command started is stopped, before another can have the lease. What the
 * command leaves behind ends with it. A lease that this owner holds already is not extended but
 * waited for. Who waits has it as soon as it is released, its time is up, or its holder is proven dead.
 *
 * Returns  LH_OK     *status (NULL: not wanted; as of waitpid) says how the command ended; the lease
 *                    is released
 *          LH_EHELD  another holds it, still; nothing was run
 *          LH_ELOST  the lease was lost; the command was stopped, and *status says how it ended
 *          LH_EINVAL the command cannot be run, or another value is not allowed; nothing was acquired
 *          LH_EINTR  `cancel` was raised; the lease is released
 * Crash    Whatever kills this process, everything the command has started dies with it. The lease
 *          is then free by time; without `owner`, once the command has run for a moment, at once: the
 *          run is registered as a worker, so that its death is proven (lh_worker_register()).
 * Process  While it runs, this process is the reaper of orphaned descendants.
 * `errmsg` (NULL: not wanted) receives the reason of a failure, at most `errlen` bytes.
 */
LH_API int lh_lease_run(lh_store *store, const char *scope, const char *name, char *const *command,
                        const lh_lease_run_opts *opts, int *status, char *errmsg, size_t errlen);

/* ---- recovery and upkeep --------------------------------------------------------------------- */

typedef struct lh_recovered {
    int64_t locks_cleaned;     /* leases freed: named ones, and the locks of exclusive queues */
    int64_t entries_reclaimed; /* jobs taken back */
    int64_t recovery_timestamp;
    uint64_t reserved[4];
} lh_recovered;

/** One job of a report; or a lease or a worker that the database refused to change. */
typedef struct lh_recovered_job {
    int64_t job; /* 0: none, `error` names the lease or the worker */
    const char *queue, *kind;
    const char *action;   /* what became of it: "retry", "pending", "failed", "released" */
    int64_t attempt;      /* number of the next attempt; of the last if it failed */
    int64_t max_attempts; /* LH_UNLIMITED */
    const char *previous_worker, *reason;
    bool success;      /* false: it could not be recovered, `error` says why */
    const char *error; /* NULL: none */
} lh_recovered_job;

typedef struct lh_dead_worker {
    const char *worker;
    int64_t last_heartbeat;
    const int64_t *jobs; /* what was taken back from it */
    size_t n_jobs;
} lh_dead_worker;

/** What one recovery found and did. The lists hold at most LH_REPORT_MOST entries, the counts all. */
#define LH_REPORT_MOST 10000

typedef struct lh_report {
    int64_t id;                       /* 0: not kept (a dry run, or nothing was found) */
    const char *trigger;              /* "startup", "claim", "timer", "expiry", "death", "manual" */
    int64_t started_at, completed_at; /* completed_at 0: under way, or cut off by a crash */
    int64_t duration_ms;
    struct {
        bool ran, passed; /* passed: at last, after a repair */
        bool repair_attempted, repair_succeeded;
        const char *const *errors;
        size_t n_errors;
    } integrity;
    int64_t wal_frames; /* folded into the database; -1: not asked for */
    int64_t orphaned;   /* jobs found forfeit */
    int64_t entries_reclaimed, locks_cleaned;
    int64_t recovery_timestamp;
    int64_t failed_recoveries;
    const lh_recovered_job *recovered;
    size_t n_recovered;
    const lh_dead_worker *dead_workers;
    size_t n_dead_workers;
    const char *const *inconsistencies;
    size_t n_inconsistencies;
    bool dry_run;
    void *priv;
    uint64_t reserved[8];
} lh_report;

LH_API void lh_report_free(lh_report *report);

typedef struct lh_recover_opts {
    bool dry_run; /* change nothing, tell what would be done */
    bool by_age;  /* take jobs whose claim and last heartbeat are both at least threshold_ms ago, */
    int64_t threshold_ms;  /* live leases included; 0: all that runs */
    bool now;              /* do not keep back what was taken from a live holder */
    lh_action action;      /* 0: as the policy says */
    const char *queue;     /* NULL: all */
    const lh_flag *cancel; /* looked at between batches */
    /* NULL: not wanted. Called after every batch, from the thread that called lh_recover(). */
    void (*progress)(void *arg, int64_t done, int64_t total);
    void *progress_arg;
    uint64_t reserved[8];
} lh_recover_opts;

/**
 * Recover now: dead workers, orphaned jobs, expired named leases, inconsistencies.
 *
 * By hand, so also where a policy has recovery off. In batches, each a transaction that repeats its
 * guard in the write: what a heartbeat, a complete or another recovery reached first is not touched.
 * Returns  LH_OK     *out (NULL: not wanted) is the report, which is also kept in the store
 *          LH_EINTR  the cancel flag was raised; what was recovered until then is
 * Crash    A batch is recovered as a whole or not at all; running it again finishes the work.
 */
LH_API int lh_recover(lh_store *store, const lh_recover_opts *opts, lh_report **out);

/** What lh_recover() would take back now, also where a policy has recovery off; changes nothing. */
LH_API int lh_recovery_stats(lh_store *store, lh_recovered *out);

/** Take back by age, as lh_recover() with by_age does. `*reclaimed` (NULL: not wanted) counts. */
LH_API int lh_reclaim_stale(lh_store *store, int64_t threshold_ms, int64_t *reclaimed);

/** A report by its id; 0: the last. LH_ENOTFOUND if there is none. */
LH_API int lh_report_get(lh_store *store, int64_t id, lh_report **out);

typedef struct lh_reports {
    size_t n;
    lh_report *report; /* without the lists */
    void *priv;
} lh_reports;

/** The last `limit` reports (0: 100; at most 10000), newest first. */
LH_API int lh_report_list(lh_store *store, size_t limit, lh_reports **out);
LH_API void lh_reports_free(lh_reports *reports);

typedef struct lh_maintain_opts {
    /* First wait, so long (-1: for ever), until something is due: the earliest lease to end, a
     * worker silent for too long or gone, a job to be promoted, a schedule. 0: do not wait. */
    int64_t wait_ms;
    const lh_flag *cancel; /* ends the wait: LH_EINTR */
    bool woken;            /* as in a claim */
    uint64_t reserved[8];
} lh_maintain_opts;

typedef struct lh_upkeep {
    int64_t recovered, promoted, expired, pruned;
    int64_t ticked; /* jobs that schedules have enqueued */
    int64_t dead_workers;
    int64_t report;  /* id of the report, if anything was found to recover; 0: none */
    int64_t next_ms; /* come back in so long */
    uint64_t reserved[4];
} lh_upkeep;

/** One round of all that falls due: recovery, schedules, promotion, expiry, pruning. Whoever runs it in a loop
 *  with a wait recovers a job at the moment its lease ends or its worker is gone. On PostgreSQL one of all who
 *  wait does it for all: the others come back from a wait in vain without a round. */
LH_API int lh_maintain(lh_store *store, const lh_maintain_opts *opts, lh_upkeep *out);

/** Delete finished jobs, events, requests and rollups past their retention (older_than_ms 0: by
 *  policy; else older than this). `*pruned` counts jobs. */
LH_API int lh_prune(lh_store *store, int64_t older_than_ms, const lh_flag *cancel, int64_t *pruned);

/* ---- events ---------------------------------------------------------------------------------- */

typedef struct lh_event {
    int64_t id, at;
    const char *type; /* "job.recovered" … */
    int64_t job;      /* 0: none */
    const char *queue, *worker, *lease;
    const char *from, *to; /* states */
    const char *actor, *reason;
    int64_t token;
    const char *data;              /* JSON */
    int64_t attempt, max_attempts; /* 0: not told */
    const char *action;            /* of a recovery: what became of the job */
    int64_t report;                /* of a recovery: its report; 0: none */
    uint64_t reserved[8];
} lh_event;

typedef struct lh_events {
    size_t n;
    lh_event *event;
    void *priv;
} lh_events;

typedef struct lh_event_filter {
    int64_t job;       /* 0: any */
    const char *type;  /* "job.failed"; "job": every type that begins with "job."; NULL: any */
    const char *queue; /* NULL: any */
    int64_t since;     /* not before this time; 0: any */
    int64_t after;     /* ids above this */
    size_t limit;      /* 0: 100; at most 10000 */
    bool newest;       /* the last `limit` instead of the first; still ascending */
    /* Wait so long for the first event; 0: do not; -1: for ever. On PostgreSQL a transaction that is open may
     * yet commit events below those one sees: who waits is not told of any before all below it are there,
     * and misses none. */
    int64_t wait_ms;
    const lh_flag *cancel;
    uint64_t reserved[8];
} lh_event_filter;

LH_API int lh_event_list(lh_store *store, const lh_event_filter *filter, lh_events **out);
LH_API void lh_events_free(lh_events *events);

/* ---- the store as a whole -------------------------------------------------------------------- */

typedef struct lh_store_info {
    const char *kind; /* "sqlite", "postgres" */
    char url[1024];
    char uuid[40];
    int schema; /* version of our tables */
    int64_t epoch;
    int64_t wal_bytes;                /* -1: not known, as on a server */
    int64_t file_bytes;               /* of the database */
    int64_t free_bytes;               /* room on the device; -1: not known */
    int64_t changes;                  /* transactions of ours so far */
    int64_t stale_jobs, stale_leases; /* a recovery by itself takes them: none where it is off */
    int64_t workers_alive, workers_late, workers_dead;
    int64_t workers_degraded; /* of those that are not dead */
    int64_t clock_skew_ms;    /* wall clock against elapsed time since the anchor */
    int64_t next_due_at;      /* when the next lease ends or job falls due; 0: nothing in sight */
    char degraded[256];       /* "" if all is well */
    /* Since the store was made. */
    struct {
        int64_t startup, claim, timer, expiry, death, manual; /* runs, by trigger */
        int64_t retried, made_pending, failed, released;      /* jobs, by what became of them */
        int64_t leases, dead_workers, failures;
        int64_t duration_ms; /* of all runs */
    } recovery;
    uint64_t reserved[8];
} lh_store_info;

LH_API int lh_store_status(lh_store *store, lh_store_info *out);

typedef struct lh_finding {
    const char *level; /* "info", "warning", "error" */
    const char *what;  /* what was looked at: "integrity", "invariant", "wal" … */
    const char *text;
} lh_finding;

typedef struct lh_findings {
    size_t n;
    size_t errors;
    lh_finding *finding;
    void *priv;
} lh_findings;

/** Integrity of the engine's file, the invariants of jobs, counters, WAL, clock, room, versions.
 *  LH_OK also with findings: see `errors`. */
LH_API int lh_check(lh_store *store, const lh_flag *cancel, lh_findings **out);
LH_API void lh_findings_free(lh_findings *findings);

/** Is the engine's file sound? `integrity` of the report says so; nothing else in it is filled. */
LH_API int lh_check_integrity(lh_store *store, const lh_flag *cancel, lh_report **out);

/**
 * Copy the store to `path`, online and consistent, and check the copy.
 *
 * The copy is made beside `path` and renamed when it is whole and sound; an existing file is only
 * replaced with `replace`. Returns LH_OK, LH_EINVAL (the file exists), LH_ECORRUPT (the copy is not
 * sound), LH_ENOSPC, LH_EINTR …
 */
typedef struct lh_backup_opts {
    bool replace;
    const lh_flag *cancel;
    void (*progress)(void *arg, int64_t done, int64_t total); /* pages */
    void *progress_arg;
    uint64_t reserved[8];
} lh_backup_opts;

LH_API int lh_backup(lh_store *store, const char *path, const lh_backup_opts *opts);

/**
 * Put the copy at `path` in place of the store at `url`.
 *
 * The copy is checked first and stays as it is; the store that was there is kept beside it
 * (`kept`, NULL: not wanted, receives its name). The epoch rises above that of both, so that no token is
 * handed out again, and all leases in the copy are ended; what their deadlines still cover stays
 * back until then. Programs that have the old store open are told at their next act.
 */
LH_API int lh_restore(const char *url, const char *path, const lh_open_opts *opts, char *kept,
                      size_t keptlen, char *errmsg, size_t errlen);

typedef struct lh_move_opts {
    /* How both stores are opened, as far as that is the caller's to say: log, durability, busy_ms,
     * force_network. NULL: all defaults. */
    const lh_open_opts *open;
    /* Give a move up that is not over: `from` can be written to again; `to` is not looked at. */
    bool abandon;
    const lh_flag *cancel; /* looked at between batches */
    /* NULL: not wanted. Rows, as they are copied and compared. */
    void (*progress)(void *arg, int64_t done, int64_t total);
    void *progress_arg;
    uint64_t reserved[8];
} lh_move_opts;

typedef struct lh_moved {
    int64_t jobs, events, leases, policies, schedules;
    bool already; /* an earlier call had done everything: nothing is counted */
    uint64_t reserved[4];
} lh_moved;

/**
 * Move everything in the store at `from` into the one at `to`, of the same kind or another.
 *
 * Jobs with their ids, tokens and payloads, counts, named leases, policies, schedules, events,
 * reports and request ids go over; workers register anew. `to` is made where it is missing, and must
 * be empty. No job may be running in `from`, whose leases that have ended are recovered first. While
 * it is being moved, `from` is closed: other acts are refused with LH_EREADONLY, and so they are when
 * it is over. `to` is closed until every row was compared; its epoch is then above that of `from`.
 *
 * Returns  LH_OK      everything is in `to`; *out (NULL: not wanted) counts it
 *          LH_ESTATE  jobs are running; `to` is not empty; or either takes part in another move
 *          LH_EINTR   the cancel flag was raised; call it again
 *          LH_EFAIL   what arrived is not what was sent
 * Crash    Call it again with the same stores: it goes on from where it was. At no moment are both
 *          open.
 * `errmsg` (NULL: not wanted) receives the reason of a failure, at most `errlen` bytes.
 */
LH_API int lh_move(const char *from, const char *to, const lh_move_opts *opts, lh_moved *out,
                   char *errmsg, size_t errlen);

/** The SQL that would remove everything of ours from a database, as text to read; free() it. */
LH_API int lh_drop_sql(lh_store *store, char **out);

/** Schema version of this library, and of the store at `url` (0: none of ours). Changes nothing. */
LH_API int lh_schema_version(void);
LH_API int lh_schema_of(const char *url, int *version, char *errmsg, size_t errlen);

/** What kind of store a name means: "sqlite", "postgres". Nothing is opened. */
LH_API const char *lh_store_kind(const char *url);

/* ---- small helpers that programs on top need to say the same things ---------------------------- */

/** "250ms", "30s", "5m", "1h30m", "14d". */
LH_API int lh_duration_parse(const char *text, int64_t *ms);
/** Writes a duration as people write it; returns `buf`. */
LH_API char *lh_duration_format(int64_t ms, char *buf, size_t len);
/** RFC 3339 with a zone → ms; and ms → "2026-01-15T10:30:00.000Z". */
LH_API int lh_time_parse(const char *text, int64_t *ms);
LH_API char *lh_time_format(int64_t ms, char *buf, size_t len);
/** Is it a name as described at the top? */
LH_API bool lh_name_ok(const char *name);
/** Valid UTF-8 without a zero byte? */
LH_API bool lh_text_ok(const void *bytes, size_t len);

#ifdef __cplusplus
}
#endif

#endif
