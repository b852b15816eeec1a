/*
 * leasehold.h: the whole public interface of libleasehold, a job queue that heals itself.
 *
 * A worker holds a job under a lease. If the worker dies, the job returns to the queue: immediately
 * if the death is proven, otherwise when the lease expires. The recovery is recorded, and the old
 * worker's token no longer works. A job is delivered at least once; a resource that compares tokens
 * can make the effect happen exactly once. docs/glossary.md defines the terms.
 *
 * Conventions for all calls:
 *
 *   Outcomes   0 (LH_OK): done. Positive: a normal answer other than "done". Negative: a failure;
 *              lh_errmsg() returns the sentence that explains it.
 *   Options    A NULL options pointer and a zero field mean the default: `{.create = true}` is enough.
 *              `reserved` must be zero. Later versions use it for new fields.
 *   Ownership  The library reads arguments during the call only. The caller frees what it gets through
 *              `**out`, with the function named after the type. Every free and close function accepts
 *              NULL. A failed call leaves its outputs unchanged, except lh_open().
 *   Time       Times are milliseconds since 1970 (UTC) by the store's clock. Durations are milliseconds.
 *   Text       Strings are UTF-8 and end with a zero byte. Payloads and results are bytes with a length.
 *              A name (queue, kind, worker) is 1 to 128 bytes of A-Z a-z 0-9 . _ : @ -
 *   Threads    Any number of threads may use one handle. Writes that arrive together share one
 *              transaction and one sync.
 *   Fork       A handle belongs to the process that opened it. In a forked child every call on it
 *              fails with LH_EMISUSE, and lh_close() frees what is safe to free. A child that was forked
 *              while a SQLite store was open cannot open a SQLite store: close all handles before fork,
 *              or open after exec (docs/guides/fork.md).
 *   Crash      Every act is one transaction. An acknowledged act survives SIGKILL and, with
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
    LH_EMPTY = 1,       /* no job is pending */
    LH_EFAIL = -1,      /* failed; see the message */
    LH_EMISUSE = -2,    /* the call breaks the contract of this header */
    LH_EINVAL = -3,     /* a value is not allowed; the message names it and what is allowed */
    LH_ETOOBIG = -4,    /* a value is larger than its limit */
    LH_ENOTFOUND = -5,  /* no such job, queue, worker or lease */
    LH_ESTATE = -6,     /* the state of the job or queue does not allow the act */
    LH_ENOSTORE = -7,   /* there is no store, or the database does not have our tables */
    LH_ELOST = -8,      /* the lease is no longer held under this token */
    LH_ECANCELLED = -9, /* the lease was lost because the job was cancelled */
    LH_EHELD = -10,     /* a named lease is held by another owner */
    LH_EBUSY = -11,     /* the store stayed locked for the whole busy timeout */
    LH_EUNREACH = -12,  /* the store cannot be reached */
    LH_ECORRUPT = -13,  /* the store is damaged */
    LH_EREADONLY = -14, /* the store can be read but not written */
    LH_EOLDER = -15,    /* the store is older than its high-water mark (accept_loss) */
    LH_EUNKNOWN = -16,  /* the outcome is unknown; repeat the call under lh_last_request() */
    LH_ENEWER = -17,    /* a newer version made the store */
    LH_EIO = -18,       /* input or output failed; nothing was done */
    LH_ENOMEM = -19,    /* out of memory; nothing was done */
    LH_ENOSPC = -20,    /* no space left on the device; nothing was done */
    LH_ESTOPPED = -21,  /* an earlier failure stopped the handle: close it and open a new one */
    LH_EINTR = -22      /* the cancel flag was raised */
};

/** Of a status: the name without LH_ ("ELOST"), the code in JSON ("lease_lost"), a text, the exit code,
 *  the HTTP status. */
LH_API const char *lh_status_name(int status);
LH_API const char *lh_status_code(int status);
LH_API const char *lh_status_text(int status);
LH_API int lh_status_exit(int status);
LH_API int lh_status_http(int status);

/* ---- flags ----------------------------------------------------------------------------------- */

/**
 * A flag that ends the calls it is passed to as `cancel`. 0: not raised.
 *
 * Any thread and any signal handler may call lh_flag_raise(). A thread that sees the flag raised also
 * sees all writes before the raise (release and acquire). A `static volatile sig_atomic_t` may be passed
 * as well; a signal handler may set it directly. One flag may serve several calls, and must outlive them.
 */
typedef volatile int lh_flag;

LH_API void lh_flag_raise(lh_flag *flag); /* raising it again counts up */
LH_API void lh_flag_lower(lh_flag *flag);
/** How many times the flag was raised since it was lowered; 0 for NULL. */
LH_API int lh_flag_raised(const lh_flag *flag);

/* ---- the store ------------------------------------------------------------------------------- */

typedef struct lh_store lh_store;

/** Levels of a log line. An error needs an operator; debug is for the developers of this library. */
enum lh_log_level { LH_LOG_ERROR = 0, LH_LOG_WARN, LH_LOG_INFO, LH_LOG_DEBUG };

/** One line of the log: the sentence, and its subject as data. */
typedef struct lh_log_entry {
    int level;
    const char *line;                    /* the sentence, without a newline */
    int64_t job, token, attempt;         /* 0: the line is not about a job */
    const char *queue, *worker, *reason; /* NULL: none */
    uint64_t reserved[4];
} lh_log_entry;

/** Receives one line of the log. Called from any thread; must not call the library. */
typedef void lh_log_fn(void *arg, const lh_log_entry *entry);

enum lh_durability {
    LH_DURABLE_FULL = 0, /* an acknowledged act survives power loss */
    LH_DURABLE_RELAXED   /* it survives the death of every process, but not power loss */
};

typedef struct lh_open_opts {
    bool read_only;     /* never write; a missing store is LH_ENOSTORE */
    bool create;        /* create a missing SQLite file, migrate an older store */
    bool adopt;         /* create our tables in an existing database that has none */
    bool accept_loss;   /* write to a store older than its high-water mark; raises the epoch */
    bool force_network; /* open a SQLite file even if it is on a network file system */
    bool remote;  /* the holders of jobs are on other machines: sync claims and heartbeats, too */
    bool startup; /* check the store and recover first, as a long-running program should */
    /* Do not recover while opening: the caller holds a job, and must not lose it to this open. */
    bool recover_later;
    bool no_recovery;        /* recover only in lh_recover(), not on claims */
    bool no_integrity_check; /* not even after a crash */
    bool repair;             /* repair also a database that has tables of other programs */
    enum lh_durability durability;
    int64_t busy_ms; /* how long to wait for other writers; 0: 5000 */
    lh_log_fn *log;  /* NULL: no logging */
    void *log_arg;
    /* PostgreSQL: the maximum number of connections, 2 to 9, including the one that receives
     * notifications; 0: 9. With 2, heartbeats and outcomes of jobs share that one. */
    int64_t max_connections;
    uint64_t reserved[7];
} lh_open_opts;

/**
 * Open the store at `url`: a path or `sqlite:PATH`.
 *
 * The first writing open after an unclean stop or a new boot, and every open with `startup`, runs the
 * startup recovery: it checks the integrity, repairs the store on a copy if the check fails, checkpoints
 * the log, recovers the jobs of dead workers and the expired leases, and writes a report. With
 * `read_only` nothing is written; a store on a read-only file system is read from a copy.
 *
 * Returns  LH_OK        *out is a working handle
 *          LH_ENOSTORE  there is no store, or the database does not have our tables (adopt)
 *          LH_ENEWER    a newer version made the store
 *          LH_EOLDER    the store is older than its high-water mark (accept_loss)
 *          LH_EMISUSE   this process was forked while a SQLite store was open (see Fork above)
 *          LH_ECORRUPT, LH_EREADONLY, LH_EINVAL (the path is a directory, or no database), LH_ENOMEM …
 * Also on failure *out is a handle (NULL only if out of memory): read lh_errmsg(), then lh_close() it.
 */
LH_API int lh_open(const char *url, const lh_open_opts *opts, lh_store **out);

/** Close the handle. No other call may be running on it: raise the cancel flags of waiting calls, and
 *  join their threads. The last process that closes a store checkpoints the log. */
LH_API void lh_close(lh_store *store);

/** Why this thread's last call on this handle failed; "" if it did not. Never NULL. */
LH_API const char *lh_errmsg(const lh_store *store);

/** The request id under which this thread may repeat its last call that returned LH_EUNKNOWN; or "". */
LH_API const char *lh_last_request(const lh_store *store);

/** The current time of the store's clock. */
LH_API int64_t lh_now(lh_store *store);

/** The clock (of clock_gettime()) by which a holder must measure its lease. CLOCK_MONOTONIC for SQLite:
 *  leases do not run while the machine sleeps. CLOCK_BOOTTIME for PostgreSQL: the server stays awake. */
LH_API int lh_store_clock(const lh_store *store);

/** The versions of this library and of the SQLite engine ("SQLite 3.40.1"). */
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

/** The name of a state ("scheduled" … "cancelled"), and the state of a name (0: unknown). */
LH_API const char *lh_state_name(lh_state state);
LH_API lh_state lh_state_parse(const char *name);

#define LH_UNLIMITED (-1)

typedef struct lh_job {
    int64_t id;
    int64_t token; /* fencing token of the current or last lease; below 2^53 */
    const char *queue;
    const char *kind; /* NULL: none */
    lh_state state;
    bool expired; /* the job is running, but its lease has expired */
    int priority;
    const void *payload; /* NULL: none */
    size_t payload_len;
    bool payload_is_text; /* valid UTF-8 without a zero byte */
    const char *key;
    int64_t attempt;      /* claims so far; a release gives the attempt back */
    int64_t max_attempts; /* LH_UNLIMITED; 0: never claimed, so not yet set by the policy */
    int64_t recoveries;   /* how many times the job lost its worker */
    const char *worker;   /* holder, while running */
    int64_t lease_until;  /* 0: not running */
    int64_t lease_ms;     /* length of the lease as claimed */
    int64_t remaining_ms; /* time until lease_until when the store answered; never below 0 */
    int64_t timeout_ms;   /* from the policy; 0: none. Set by a claim only */
    int64_t run_at;       /* this and the other times: 0 means not set */
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
    int64_t result_cut; /* bytes of the result that were not kept; 0 in lists */
    int64_t max_output; /* from the policy: bytes kept of each stream. Set by a claim only */
    uint64_t reserved[8];
} lh_job;

typedef struct lh_jobs {
    size_t n;
    lh_job *job;
    /* Of a claim: lh_store_clock(), in ms, just before the claim. A holder that stops at asked_mono_ms +
     * remaining_ms never overlaps with the next holder. */
    int64_t asked_mono_ms;
    void *priv; /* the memory of the strings */
} lh_jobs;

LH_API void lh_jobs_free(lh_jobs *jobs);

/** One job to enqueue. A limit of 0 means the limit of the policy of (queue, kind). */
typedef struct lh_new_job {
    const char *kind;
    const void *payload;
    size_t payload_len;
    int priority;         /* -32768 … 32767, higher first */
    int64_t delay_ms;     /* do not run before now + delay_ms */
    int64_t run_at;       /* do not run before this wall-clock time; not with delay_ms */
    const char *key;      /* if the queue has a live job with this key, that job is returned */
    int64_t max_attempts; /* 1 … 1000000 or LH_UNLIMITED */
    int64_t lease_ms;     /* the lease, if the claim names none */
    int64_t expires_ms;   /* cancel the job (EXPIRED) if it is not claimed by now + expires_ms */
    int64_t backoff_ms;   /* overrides the policy's backoff */
    int64_t backoff_cap_ms;
    uint64_t reserved[8];
} lh_new_job;

typedef struct lh_enqueued {
    int64_t id;     /* 0: a job that this database role may not see has the key */
    lh_state state; /* 0 in the same case */
    bool duplicate; /* the job existed: found by its key or by the request id */
    uint64_t reserved[4];
} lh_enqueued;

/**
 * Enqueue `n` jobs into `queue` in one transaction: all of them or none.
 *
 * `request` (NULL: none) identifies this call: a second call with the same id returns the same jobs.
 * Returns  LH_OK        out[0 … n-1] is filled
 *          LH_EUNKNOWN  the commit may have happened; repeat with lh_last_request() as `request`
 *          LH_EINVAL, LH_ETOOBIG, LH_ENOSPC, LH_EBUSY, LH_EIO …   nothing was written
 * Crash    After LH_OK the jobs exist. Before it, all of them exist or none.
 */
LH_API int lh_enqueue(lh_store *store, const char *queue, const lh_new_job *jobs, size_t n,
                      const char *request, lh_enqueued *out);

struct sqlite3;

/**
 * Enqueue on the caller's own SQLite connection, as part of the caller's own transaction.
 *
 * The jobs exist when that transaction commits. `db` must be a database with our tables. `errmsg` (may be
 * NULL) receives the reason of a failure, at most `errlen` bytes.
 */
LH_API int lh_enqueue_sqlite(struct sqlite3 *db, const char *queue, const lh_new_job *jobs,
                             size_t n, lh_enqueued *out, char *errmsg, size_t errlen);

struct pg_conn;

/**
 * The same on the caller's own connection to PostgreSQL (PGconn *), in a build with PostgreSQL.
 *
 * If a transaction is open, the jobs are part of it; an error of the server aborts it, as any failed
 * statement does. Otherwise the call is a transaction of its own. It waits like PQexec().
 *
 * Returns  LH_OK        out[0 … n-1] is filled; without an open transaction, the jobs exist
 *          LH_EINVAL, LH_ETOOBIG   nothing was written; LH_EINVAL also if client_encoding is not UTF8
 *          LH_EMISUSE   the connection is busy with a query, a COPY or a pipeline
 *          LH_ENOSTORE, LH_ENEWER  the database does not have our schema, or a newer one
 *          LH_EUNREACH  the connection is lost, and nothing was written
 *          LH_EUNKNOWN  without an open transaction: the connection was lost before the commit was
 *                       answered, or the commit's wait for a standby was cancelled (if the caller has a
 *                       notice receiver, only that receiver sees the cancelled wait). Jobs with a
 *                       `key` may be enqueued again.
 */
LH_API int lh_enqueue_postgres(struct pg_conn *conn, const char *queue, const lh_new_job *jobs,
                               size_t n, lh_enqueued *out, char *errmsg, size_t errlen);

typedef struct lh_claim_opts {
    const char *const *queues; /* in order of preference */
    size_t n_queues;
    const char *const *kinds; /* NULL: any kind */
    size_t n_kinds;
    const char *worker; /* required */
    size_t n;           /* up to this many; 0: 1; at most 1000 */
    int64_t lease_ms;   /* 0: the job's own, else the policy's */
    int64_t wait_ms;    /* wait this long for a job; 0: do not wait; -1: forever */
    const char *
        request; /* a second claim with this id returns the jobs of the first that are still held */
    const lh_flag *cancel; /* when it is raised, stop waiting and return LH_EINTR */
    bool
        woken; /* the thread that raises the flag also calls lh_wake(); else the flag is polled every 100 ms */
    /* Return LH_EMPTY as soon as no job can become claimable without a new enqueue. Keep waiting while a
     * job waits for its next attempt, or while a limit of its queue (rate, concurrency, exclusive)
     * holds a pending job back. */
    bool drain;
    /* If not NULL, receives the jobs instead of `*out`, in the calling thread; free them with
     * lh_jobs_free(). lh_complete_claim() calls it as soon as the claim is committed, even if the completes
     * still wait for a sync, so the next jobs can start. The return value is then that of the completes. */
    void (*claimed)(void *arg, lh_jobs *jobs);
    void *claimed_arg;
    uint64_t reserved[6];
} lh_claim_opts;

/**
 * Claim up to n pending jobs: queue by queue, by priority (high to low), then by id.
 *
 * The claim first recovers what is reclaimable, so it can return the job of a crashed worker. If that
 * recovery fails, the failure is logged and the claim continues. A job whose payload does not match its
 * checksum fails with that reason and is not returned.
 *
 * Returns  LH_OK      *out has 1 … n jobs with their tokens
 *          LH_EMPTY   no job can be claimed now
 *          LH_EINTR   the cancel flag was raised while waiting
 *          LH_EBUSY, LH_EINVAL …
 * Crash    One transaction. If the caller dies after it, recovery returns the jobs to the queue.
 */
LH_API int lh_claim(lh_store *store, const lh_claim_opts *opts, lh_jobs **out);

/** Wake all calls that wait on this store, in all threads and processes. Each checks its cancel flag and
 *  its reason to wait once. */
LH_API void lh_wake(lh_store *store);

/* The calls on held jobs take arrays and use one transaction. Each item has its own outcome, in
 * `status[i]` (may be NULL). The call returns LH_OK if every item succeeded, else the first other
 * outcome. `after` (may be NULL) receives the new state of the jobs that exist, in the same order. */

typedef struct lh_beat {
    int64_t job, token;
    int64_t lease_ms; /* 0: the length of the claim */
    bool has_progress;
    int progress;           /* 0 … 100 */
    const char *stage;      /* NULL: unchanged */
    const char *checkpoint; /* JSON; NULL: unchanged */
    uint64_t reserved[4];
} lh_beat;

/** Extend leases to now + lease_ms. LH_ELOST: the lease has expired or belongs to another worker.
 *  LH_ECANCELLED: the job was cancelled. */
LH_API int lh_heartbeat(lh_store *store, const lh_beat *beats, size_t n, int *status,
                        lh_jobs **after);

/** What a run wrote to one stream: the head and the tail. If they have fewer than `bytes` bytes, the
 *  middle was cut. */
typedef struct lh_stream {
    const void *head, *tail; /* NULL: none */
    size_t head_len, tail_len;
    int64_t bytes; /* written in total; 0: head and tail are all */
} lh_stream;

/** What one run of a job wrote. The token identifies the run. */
typedef struct lh_output {
    int64_t job, token;
    lh_stream out, err; /* standard output, standard error */
    /* Set by lh_output_list(), ignored elsewhere: */
    int64_t attempt;      /* not unique: a release gives it back, a retry starts at 1 */
    int64_t at;           /* time of the last write */
    int64_t result_bytes; /* size of the run's result if it was cut; else 0 */
} lh_output;

typedef struct lh_done {
    int64_t job, token;
    const void *result; /* NULL: none */
    size_t result_len;
    int64_t result_bytes; /* the size of the result before it was cut; 0: it was not */
    const lh_output
        *output; /* written in the same transaction; its job and token are ignored. NULL: none */
    uint64_t reserved[4];
} lh_done;

/**
 * Complete jobs. The token must match; the deadline is not checked. So a slow worker can still complete
 * its job unless the job was recovered. Repeating the same complete returns LH_OK.
 */
LH_API int lh_complete(lh_store *store, const lh_done *done, size_t n, int *status,
                       lh_jobs **after);

/** Complete `done` and claim the next jobs in one transaction, as lh_worker_run() does. Returns the
 *  outcome of the claim, unless the whole transaction failed. */
LH_API int lh_complete_claim(lh_store *store, const lh_done *done, size_t n, int *status,
                             const lh_claim_opts *opts, lh_jobs **out);

#define LH_NOW (-1)

typedef struct lh_failure {
    int64_t job, token;
    const char *error;       /* required */
    bool permanent;          /* do not retry */
    int64_t retry_in_ms;     /* 0: by the backoff; LH_NOW: immediately */
    const lh_output *output; /* as in lh_done */
    uint64_t reserved[4];
} lh_failure;

/** Fail jobs. A job is scheduled for its next attempt, or failed if it is permanent or was the last one. */
LH_API int lh_fail(lh_store *store, const lh_failure *failures, size_t n, int *status,
                   lh_jobs **after);

typedef struct lh_ref {
    int64_t job, token;
} lh_ref;

#define LH_BACKOFF (-2)

/** Give jobs back without counting the attempt. They are pending again, or scheduled if there is a delay
 *  (LH_BACKOFF: the delay after a failure). */
LH_API int lh_release(lh_store *store, const lh_ref *refs, size_t n, int64_t delay_ms, int *status,
                      lh_jobs **after);

/** Release jobs that `worker` holds (ids NULL: all), as an operator. If a job's lease is still live, the job
 *  stays in quarantine until its holder has answered or the old deadline has passed, unless `now`. */
LH_API int lh_release_worker(lh_store *store, const char *worker, const int64_t *ids, size_t n,
                             int64_t delay_ms, bool now, int *status, int64_t *released);

/** Cancel live jobs. The holder of a running job gets LH_ECANCELLED at its next heartbeat. */
LH_API int lh_cancel(lh_store *store, const int64_t *ids, size_t n, int *status, lh_jobs **after);

enum lh_retry_how {
    LH_RETRY_FORCE = 1, /* retry completed jobs, too */
    LH_RETRY_NOW = 2    /* no quarantine after a live lease was revoked */
};

/** Retry failed or cancelled jobs: attempts and recoveries start at 0. `how`: enum lh_retry_how. A job that
 *  was cancelled while it ran is in quarantine until its holder has answered or its old deadline has
 *  passed. */
LH_API int lh_retry(lh_store *store, const int64_t *ids, size_t n, unsigned how, int *status,
                    lh_jobs **after);

/** Delete jobs that are not running. Their ids are never reused. */
LH_API int lh_delete(lh_store *store, const int64_t *ids, size_t n, int *status);

/** Move a scheduled or pending job to now + delay, or to the wall-clock time `run_at`. */
LH_API int lh_reschedule(lh_store *store, int64_t id, int64_t delay_ms, int64_t run_at,
                         lh_jobs **after);

/** Read one job. LH_ENOTFOUND: it does not exist. */
LH_API int lh_job_get(lh_store *store, int64_t id, lh_jobs **out);

typedef struct lh_job_filter {
    const char *queue, *kind, *worker, *key;
    lh_state state; /* 0: any */
    bool expired;   /* only running jobs whose lease has expired */
    bool brief;     /* do not read payload, checkpoint and result */
    int64_t after;  /* only ids above this */
    size_t limit;   /* 0: 100; at most 10000 */
    uint64_t reserved[8];
} lh_job_filter;

/** List jobs by ascending id. An empty list is LH_OK. */
LH_API int lh_job_list(lh_store *store, const lh_job_filter *filter, lh_jobs **out);

/** Wait until a job is completed, failed or cancelled. LH_OK: *out is the job. LH_EMPTY: wait_ms is over (as
 *  in a claim). */
LH_API int lh_job_wait(lh_store *store, int64_t id, int64_t wait_ms, const lh_flag *cancel,
                       lh_jobs **out);

/* ---- output of runs -------------------------------------------------------------------------- */

/**
 * Store the output of running jobs: everything written so far, which replaces a shorter earlier output.
 * When a run ends, pass the output to lh_complete() or lh_fail() instead.
 *
 * Each stream is cut to `max_output` of the policy: a quarter of that from its head, the rest from its tail.
 * The newest 20 runs of a job are kept. If the disk is full (SQLite), only the sizes are stored.
 * Returns  LH_OK        every item was stored, or its policy keeps no output
 *          LH_ELOST     the job has another token by now, and this run has no output yet
 *          LH_ENOTFOUND, LH_EINVAL, LH_ETOOBIG (more than 16 MiB) …
 * Crash    The output survives the death of every process, and power loss only after the run has ended.
 */
LH_API int lh_output_put(lh_store *store, const lh_output *outputs, size_t n, int *status);

typedef struct lh_output_filter {
    int64_t job;     /* required */
    int64_t attempt; /* 0: any */
    int64_t since;   /* only runs that wrote at this time or later */
    uint64_t reserved[8];
} lh_output_filter;

typedef struct lh_outputs {
    size_t n;
    lh_output *output;
    void *priv;
} lh_outputs;

/** List the output of a job's runs, oldest first, without runs that wrote nothing. An empty list is LH_OK,
 *  even if the job does not exist. */
LH_API int lh_output_list(lh_store *store, const lh_output_filter *filter, lh_outputs **out);
LH_API void lh_outputs_free(lh_outputs *outputs);

/* ---- queues and policies --------------------------------------------------------------------- */

typedef struct lh_queue {
    const char *queue;
    bool paused;
    int64_t scheduled, pending, running, completed, failed, cancelled;
    int64_t oldest_pending_ms;   /* age of the pending job with the lowest id; -1: none */
    int64_t rate_n, rate_per_ms; /* 0: unlimited */
    int64_t concurrency;         /* 0: unlimited */
    /* Counters over the last 60 full minutes and the current one. */
    int64_t hour_enqueued, hour_completed, hour_failed, hour_recovered;
    int64_t hour_wait_ms, hour_run_ms; /* sums over the claimed jobs, and over the ended runs */
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

/** A paused queue gives out no jobs. Running jobs continue. */
LH_API int lh_queue_pause(lh_store *store, const char *queue);
LH_API int lh_queue_resume(lh_store *store, const char *queue);

/** Delete the scheduled and pending jobs of a queue. `*purged` is their number. */
LH_API int lh_queue_purge(lh_store *store, const char *queue, int64_t *purged);

/** Delete an empty queue with its counters, its pause and the policies that name it. LH_ENOTFOUND: there
 *  is no such queue. LH_ESTATE: it has a job, in any state or in quarantine, or a schedule enqueues into
 *  it. The next enqueue creates a new queue. */
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
    LH_POLICY_EXCLUSIVE = 1 << 9, /* holds for the whole queue: kind must be NULL */
    LH_POLICY_AUDIT = 1 << 10,
    LH_POLICY_RETENTION = 1 << 11,
    LH_POLICY_RETENTION_FAILED = 1 << 12,
    LH_POLICY_MAX_PAYLOAD = 1 << 13,
    /* these two hold for the whole queue: kind must be NULL, queue must not */
    LH_POLICY_RATE = 1 << 14,
    LH_POLICY_CONCURRENCY = 1 << 15,
    LH_POLICY_MAX_OUTPUT = 1 << 16,
    LH_POLICY_RETENTION_OUTPUT = 1 << 17,
    LH_POLICY_ALL = (1 << 18) - 1
};

typedef struct lh_policy {
    unsigned set;           /* which of the fields below are set (enum lh_policy_field) */
    int64_t lease_ms;       /* 1 … 30 d */
    int64_t max_attempts;   /* 1 … 1000000, LH_UNLIMITED */
    int64_t max_recoveries; /* 0 … 1000000, LH_UNLIMITED */
    lh_action action;       /* what recovery does with the job of a dead worker */
    bool recovery;          /* false: only an operator recovers jobs */
    int64_t recovery_backoff_ms;
    int64_t backoff_ms; /* the first delay after a failure; it doubles */
    int64_t backoff_cap_ms;
    int64_t timeout_ms; /* 0: none */
    bool exclusive;     /* one job at a time, under the named lease processing/QUEUE */
    lh_audit audit;
    int64_t retention_ms; /* of completed and cancelled jobs */
    int64_t retention_failed_ms;
    int64_t max_payload;         /* bytes, up to 64 MiB */
    int64_t rate_n, rate_per_ms; /* rate_n 0: unlimited */
    int64_t concurrency;         /* 0: unlimited */
    int64_t max_output;          /* bytes kept of each stream of a run, up to 16 MiB; 0: none */
    int64_t retention_output_ms; /* of output after the end of the job; 0: as long as the job */
    uint64_t reserved[8];
} lh_policy;

/** Set the fields named by `policy->set` for (queue, kind); NULL means any. Fields named by `unset` fall
 *  through to wider rows again. */
LH_API int lh_policy_set(lh_store *store, const char *queue, const char *kind,
                         const lh_policy *policy, unsigned unset);

/** The policy of (queue, kind), all fields set. A field that a row does not set falls through:
 *  (queue, kind) → (queue, any) → (any, kind) → (any, any) → built-in. */
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

/** The rows as they were set. */
LH_API int lh_policy_list(lh_store *store, lh_policies **out);
LH_API void lh_policies_free(lh_policies *policies);

/** Set the default ttl of the named leases of `scope`; 0: back to 300 s. */
LH_API int lh_scope_set(lh_store *store, const char *scope, int64_t ttl_ms);

/* ---- schedules ------------------------------------------------------------------------------- */

/** What happens to missed runs of a schedule. A run is missed if it is a minute late, or if the next run is
 *  due as well. */
typedef enum lh_catch_up {
    LH_CATCH_UP_ONCE = 0, /* one job, for the last missed run */
    LH_CATCH_UP_NONE,     /* no job */
    LH_CATCH_UP_ALL       /* one job for each missed run (more than 100000: as ONCE) */
} lh_catch_up;

/** Periodic work: at each instant of the schedule one job is enqueued. */
typedef struct lh_schedule {
    const char *name, *queue;
    const char *cron; /* "30 2 * * mon-fri", "@hourly" … "@yearly", "@every 5m" (1 s … 3650 d) */
    const char *zone; /* the time zone of the cron line, an IANA name; NULL: UTC */
    lh_catch_up catch_up;
    /* The job to enqueue; its `delay_ms` and `run_at` must be 0. Its run_at will be the instant. If a job
     * with the same key is live, the run is skipped (event schedule.skipped). */
    lh_new_job job;
    /* Set by lh_schedule_list(), ignored by lh_schedule_set(): */
    int64_t created_at;
    int64_t last_at, last_job; /* the last instant that got a job, and that job; 0: none */
    int64_t next_at;
    const char *error; /* why it enqueues nothing, such as a missing zone; NULL: it works */
    uint64_t reserved[8];
} lh_schedule;

typedef struct lh_schedules {
    size_t n;
    lh_schedule *schedule;
    void *priv;
} lh_schedules;

/**
 * Create a schedule, or replace the one of that name.
 *
 * Its first run is at the first instant after now. If the cron line and the zone are unchanged, the
 * schedule continues where it was, so setting the same schedule again changes nothing. Claims and
 * lh_maintain() enqueue due runs; calls that wait there wake up for them.
 * Returns  LH_OK, LH_EINVAL (cron line, zone or job; or the schedule would never run) …
 * Crash    A run is recorded in the transaction that enqueues its job, so it gets exactly one job.
 */
LH_API int lh_schedule_set(lh_store *store, const lh_schedule *schedule);

/**
 * The first instant of a schedule after `after`. Needs no store.
 *
 * LH_EINVAL: the cron line or the zone is invalid, or there is no such instant. `errmsg` (may be NULL)
 * receives the reason, at most `errlen` bytes.
 */
LH_API int lh_schedule_next(const char *cron, const char *zone, int64_t after, int64_t *next,
                            char *errmsg, size_t errlen);

/** Remove a schedule; its jobs stay. LH_ENOTFOUND: there is none of that name. */
LH_API int lh_schedule_remove(lh_store *store, const char *name);

/** List all schedules by name. */
LH_API int lh_schedule_list(lh_store *store, lh_schedules **out);
LH_API void lh_schedules_free(lh_schedules *schedules);

/* ---- named leases ---------------------------------------------------------------------------- */

typedef struct lh_lease {
    const char *scope, *name;
    const char *owner; /* NULL: the lease is free */
    int64_t token;
    int64_t acquired_at, expires_at; /* 0: not held */
    int64_t remaining_ms;
    bool stale;                /* held but expired */
    const char *value;         /* JSON, kept when the lease is released */
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
    int64_t by_ms;     /* extend: add this to the expiry, instead of ttl_ms from now */
    int64_t token;     /* extend, release, complete: 0: do not compare */
    int64_t rows;      /* complete, with has_rows */
    bool has_rows;
    const char *value; /* acquire, extend, complete: JSON to keep; NULL: unchanged */
    bool take_only;    /* acquire: fail if `owner` already holds the lease, do not extend it */
    uint64_t reserved[8];
} lh_lease_opts;

/**
 * Acquire a named lease, or extend it if `owner` holds it.
 *
 * Returns  LH_OK     *out (may be NULL) is the lease with its token
 *          LH_EHELD  another owner (with take_only: any owner) holds the lease; *out is that lease
 */
LH_API int lh_lease_acquire(lh_store *store, const char *scope, const char *name,
                            const lh_lease_opts *opts, lh_leases **out);

/** Extend a named lease. LH_ELOST: it has expired, or has another owner or token. */
LH_API int lh_lease_extend(lh_store *store, const char *scope, const char *name,
                           const lh_lease_opts *opts, lh_leases **out);

/** Release a named lease. A lease that is not held: LH_OK, and `*released` is false. LH_EHELD: another owner
 *  holds it. */
LH_API int lh_lease_release(lh_store *store, const char *scope, const char *name,
                            const lh_lease_opts *opts, bool *released);

/** Release a named lease after its work is done: stores `rows`, `value` and last_completed_at. */
LH_API int lh_lease_complete(lh_store *store, const char *scope, const char *name,
                             const lh_lease_opts *opts, lh_leases **out);

/** Read one named lease. LH_ENOTFOUND: it was never held. */
LH_API int lh_lease_get(lh_store *store, const char *scope, const char *name, lh_leases **out);
LH_API int lh_lease_list(lh_store *store, const char *scope, lh_leases **out);

/** Is the lease held but expired? A lease that does not exist is not stale. */
LH_API int lh_lease_is_stale(lh_store *store, const char *scope, const char *name, bool *stale);

/** The owner that NULL stands for. It is unique to this process and handle. */
LH_API const char *lh_default_owner(lh_store *store);

/* ---- workers --------------------------------------------------------------------------------- */

typedef struct lh_worker_opts {
    const char *id; /* the full id, or a label that is made unique: */
    const char *label;
    const char *queues;  /* for display, comma-separated */
    int64_t interval_ms; /* of heartbeats; 0: 30 s */
    int64_t multiplier;  /* silence limit = multiplier × interval; 0: 3 */
    bool process; /* this process is the worker: its pid can prove its death, and its jobs are
                          * reclaimable when it is dead */
    bool
        tells_started; /* it reports its started jobs (lh_worker_started): if it dies, its other jobs
                          * are released without counting the attempt */
    const int64_t *sessions; /* as in lh_worker_sessions(); NULL: none yet */
    size_t n_sessions;
    uint64_t reserved[8];
} lh_worker_opts;

/** Register a worker. `id` receives its id, at most `idlen` bytes with the zero. Its silence counts from its
 *  last heartbeat or claim. */
LH_API int lh_worker_register(lh_store *store, const lh_worker_opts *opts, char *id, size_t idlen);

/** Send a heartbeat for a worker and its jobs in one transaction. An unknown worker is registered without a
 *  process, with `interval_ms` (0: 30 s). `status` as in lh_heartbeat(). */
LH_API int lh_worker_heartbeat(lh_store *store, const char *worker, int64_t interval_ms,
                               const lh_beat *beats, size_t n, int *status);

/** Mark a worker as stopped, and release the jobs that it holds. */
LH_API int lh_worker_stop(lh_store *store, const char *worker);

/** Report all jobs that this worker has started; replaces the last report. LH_ENOTFOUND: the worker is not
 *  registered. */
LH_API int lh_worker_started(lh_store *store, const char *worker, const lh_ref *started, size_t n);

/** Report the leaders of all process sessions in which the worker's jobs run. The worker is proven dead only
 *  when these sessions are gone, too. A recovery on this machine kills what is left of them. */
LH_API int lh_worker_sessions(lh_store *store, const char *worker, const int64_t *pids, size_t n);

/** Report that the worker can do no work, and why (event worker.degraded); NULL: it works again. */
LH_API int lh_worker_degraded(lh_store *store, const char *worker, const char *why);

typedef struct lh_worker {
    const char *id, *label, *host, *queues, *version;
    const char *state; /* "alive", "late", "dead", "stopped" */
    bool marked_dead;  /* dead, and a recovery has recorded it */
    int64_t pid;       /* 0: unknown */
    int64_t interval_ms, multiplier;
    int64_t registered_at, last_heartbeat_at, stopped_at;
    int64_t silent_ms;    /* time since the last heartbeat */
    const char *degraded; /* why it can do no work; NULL: it can */
    int64_t running;      /* jobs held */
    const int64_t *jobs;  /* their ids; set by lh_workers_stale() only */
    uint64_t reserved[8];
} lh_worker;

typedef struct lh_workers {
    size_t n;
    lh_worker *worker;
    void *priv;
} lh_workers;

LH_API int lh_worker_list(lh_store *store, lh_workers **out);

/** List dead workers that still hold jobs or are not yet recorded as dead. Changes nothing. */
LH_API int lh_workers_stale(lh_store *store, lh_workers **out);
LH_API void lh_workers_free(lh_workers *workers);

/* ---- running jobs ---------------------------------------------------------------------------- */

/** The outcome of one run of a job. */
typedef enum lh_outcome {
    LH_RAN_OK = 0,    /* completed */
    LH_RAN_FAILED,    /* failed, with retry while attempts are left */
    LH_RAN_PERMANENT, /* failed for good */
    LH_RAN_NOT_NOW,   /* released with the delay of a failure; the attempt does not count */
    LH_RAN_CRITICAL,  /* released, and the worker stops: it cannot do this work */
    LH_RAN_RELEASED,  /* released because the worker stops or reached a limit; not for handlers */
    LH_RAN_LOST       /* recovered, cancelled or past its deadline; not for handlers */
} lh_outcome;

typedef struct lh_task lh_task;

/**
 * Runs one job on a thread of the worker; several at a time if `jobs` is above 1.
 *
 * The worker extends the lease meanwhile. The handler should check lh_task_lost() where it can stop: once
 * it returns true, another worker may have the job, and the handler's outcome is ignored.
 */
typedef lh_outcome lh_handler(void *arg, lh_task *task, const lh_job *job);

/** Was the lease lost, or must the handler stop? Cheap; any thread may call it. */
LH_API bool lh_task_lost(const lh_task *task);
/** Report the progress (0 … 100) or the stage with the next heartbeat, which is sent soon. LH_EINVAL: the
 *  value is not allowed. */
LH_API int lh_task_progress(lh_task *task, int percent);
LH_API int lh_task_stage(lh_task *task, const char *stage);
/** Store a checkpoint, JSON for the next attempt. It is stored when the call returns LH_OK. LH_EINVAL (not
 *  JSON), LH_ELOST, LH_ECANCELLED, or a failure of the store. */
LH_API int lh_task_checkpoint(lh_task *task, const char *json);
/** Set the result of a completed job, or the error of a failed one; both are copied. LH_ETOOBIG: a result
 *  above 64 MiB. A long error keeps its end. */
LH_API int lh_task_result(lh_task *task, const void *bytes, size_t len);
LH_API int lh_task_error(lh_task *task, const char *text);
/** Append to the run's standard output (1) or standard error (2), see lh_output_list(). The bytes are copied
 *  and kept up to the limit of the policy. Any thread may call it. */
LH_API int lh_task_output(lh_task *task, int stream, const void *bytes, size_t len);

/** What a running worker reports; see lh_work_opts.tell. */
enum lh_work_what {
    LH_WORK_READY,    /* registered; the first claim follows */
    LH_WORK_STARTED,  /* a job started */
    LH_WORK_PROGRESS, /* a job reported its progress */
    LH_WORK_ENDED,    /* a job ended: `outcome`, and `error` unless it is LH_RAN_OK */
    LH_WORK_OUTPUT,   /* a command wrote `output` to `stream`; only with tell_output */
    LH_WORK_TROUBLE,  /* something failed and will be tried again: `error` */
    LH_WORK_WELL,     /* it works again */
    LH_WORK_WAITING,  /* a draining worker waits for the next retry */
    LH_WORK_STOPPING, /* no more claims; the worker waits for `running` jobs */
    LH_WORK_STOPPED
};

typedef struct lh_work_event {
    enum lh_work_what what;
    const lh_job *job; /* NULL: the event is not about a job */
    int64_t run_ms;    /* how long the job has run */
    int progress;      /* -1: none */
    const char *stage; /* NULL: none */
    lh_outcome outcome;
    const char *error; /* NULL: none */
    const char *worker;
    size_t running, ahead; /* running jobs; jobs claimed in advance */
    const void *output;    /* bytes as they were read, not lines; NULL: none */
    size_t output_len;
    int stream; /* 1 standard output, 2 standard error */
    uint64_t reserved[4];
} lh_work_event;

typedef struct lh_work_opts {
    const char *const *queues; /* in order of preference */
    size_t n_queues;
    const char *const *kinds; /* NULL: any kind */
    size_t n_kinds;
    const char *label;           /* of the worker; NULL: USER@HOST */
    size_t jobs;                 /* run up to this many at once; 0: 1; at most 1000 */
    size_t ahead;                /* claim up to this many more in advance; at most 1000 */
    int64_t lease_ms;            /* 0: the job's own, else the policy's */
    int64_t heartbeat_ms;        /* the heartbeat interval; 0: 30 s */
    int64_t multiplier;          /* silence limit = multiplier × interval; 0: 3 */
    int64_t timeout_ms;          /* of one run; 0: the policy's */
    int64_t rate_n, rate_per_ms; /* start at most rate_n jobs per rate_per_ms; 0: no limit */
    int64_t grace_ms;      /* on stop, wait this long for running jobs; 0: 30 s; LH_NOW: do not */
    int64_t kill_after_ms; /* from SIGTERM to SIGKILL; 0: 5 s */
    bool drain;            /* stop when no job is pending or waits for a retry */
    bool drain_pending;    /* stop when no job can be claimed, even if retries wait */
    bool once;             /* stop after one job */
    bool no_recovery;      /* do not run maintenance (lh_maintain) */
    int64_t detection_ms;  /* run maintenance at least this often; 0: 60 s */

    /* Either a handler: */
    lh_handler *handler;
    void *handler_arg;
    /* Or a command that is run for each job. It gets the payload on standard input and the job in
     * LEASEHOLD_… variables. Its standard output is the result; exit codes as in sysexits (0, 75, 65, 78). */
    char *const *command;  /* ends with NULL; the first word is searched in $PATH */
    const char *store_url; /* passed to the command as LEASEHOLD_STORE; NULL: it is not */
    const char *guardian;  /* path of the guardian program; NULL: the installed one */
    /* The process is only this worker: SIGTERM, SIGINT and SIGHUP stop it, a second signal stops it
     * immediately, and it has no other children. */
    bool own_signals;

    /* Called if a failure stopped the handle (LH_ESTOPPED): close *store and open a new handle into
     * *store. If that fails, set *store to NULL; the worker tries again. NULL: the worker ends. */
    int (*reopen)(void *arg, lh_store **store, char *errmsg, size_t errlen);
    void *reopen_arg;

    const lh_flag *cancel; /* raised once: stop as by SIGTERM; twice: as by a second SIGTERM */
    /* Receives the events of the worker, in the thread that called lh_worker_run(); may be NULL. */
    void (*tell)(void *arg, const lh_work_event *event);
    void *tell_arg;
    bool tell_output; /* report the output of commands, too */
    uint64_t reserved[8];
} lh_work_opts;

/** Counters of one worker. */
typedef struct lh_work_tally {
    int64_t completed, failed, released, lost; /* jobs, by outcome */
    int64_t claimed, started;
    char worker[160]; /* its id */
    uint64_t reserved[4];
} lh_work_tally;

/**
 * Run a worker: claim jobs, run them, extend their leases and record their outcomes, until it is stopped.
 *
 * The worker registers its process, so that its death can be proven, and runs maintenance (lh_maintain).
 * A run ends before its lease can go to another worker: it is stopped at its deadline if no heartbeat was
 * confirmed, with a command even if the worker itself hangs. If the worker is killed, everything that its
 * commands have started is killed, too. A worker with a command makes its process the reaper of orphaned
 * descendants (PR_SET_CHILD_SUBREAPER). `tally` (may be NULL) receives the counters. `errmsg` (may be
 * NULL) receives the reason of a failure or "", at most `errlen` bytes; lh_errmsg() does not have it,
 * because the worker may have replaced the handle.
 *
 * Returns  LH_OK     stopped, or drained; the worker holds no job any more
 *          LH_EMPTY  `once`, and there was no job
 *          LH_EFAIL  a job returned LH_RAN_CRITICAL; with `once`: the job was not completed
 *          LH_EINVAL the command cannot be run, or a value is not allowed; nothing was claimed
 *          LH_ESTOPPED …  the store cannot be used any more
 * Crash    Recovery returns its jobs to the queue: see lh_worker_register().
 */
LH_API int lh_worker_run(lh_store *store, const lh_work_opts *opts, lh_work_tally *tally,
                         char *errmsg, size_t errlen);

/** Check the options of lh_worker_run() without a store, and whether the command can be run. LH_EINVAL: they
 *  are not allowed, and `errmsg` says why. */
LH_API int lh_worker_check(const lh_work_opts *opts, char *errmsg, size_t errlen);

typedef struct lh_lease_run_opts {
    const char *owner;     /* NULL: unique to this run */
    int64_t ttl_ms;        /* 0: the scope's, else 300 s */
    int64_t wait_ms;       /* wait this long for the lease; 0: do not wait; -1: forever */
    int64_t kill_after_ms; /* from SIGTERM to SIGKILL; 0: 5 s */
    const char *guardian;  /* path of the guardian program; NULL: the installed one */
    bool own_signals;      /* pass SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 on to the
                            * command; false: they do what the caller has set */
    const lh_flag *cancel; /* when it is raised, stop waiting, or stop the command */
    /* Receives failures that will be retried, on a thread of the library; may be NULL. */
    void (*tell)(void *arg, const char *trouble);
    void *tell_arg;
    uint64_t reserved[8];
} lh_lease_run_opts;

/**
 * Hold a named lease while `command` runs. The command has this process's standard input, output and error
 * and its terminal, and LEASEHOLD_LEASE and LEASEHOLD_TOKEN in its environment.
 *
 * The lease is extended while the command runs. If it is lost, or no extension was confirmed in time,
 * everything that the command started is stopped before another owner can have the lease. Processes that
 * the command leaves behind are killed when it ends. If `owner` already holds the lease, the call waits for
 * it. A waiting call gets the lease when it is released, expires, or its holder is proven dead.
 *
 * Returns  LH_OK     the command ended with *status (may be NULL; as of waitpid); the lease is released
 *          LH_EHELD  another owner holds the lease; nothing was run
 *          LH_ELOST  the lease was lost; the command was stopped and ended with *status
 *          LH_EINVAL the command cannot be run, or a value is not allowed; nothing was acquired
 *          LH_EINTR  `cancel` was raised; the lease is released
 * Crash    If this process is killed, everything that the command has started is killed. The lease is free
 *          when it expires. Without `owner` it is free immediately, once the command has run for a
 *          moment: the run is registered as a worker, so its death is proven.
 * Process  During the call this process is the reaper of orphaned descendants.
 * `errmsg` (may be NULL) receives the reason of a failure, at most `errlen` bytes.
 */
LH_API int lh_lease_run(lh_store *store, const char *scope, const char *name, char *const *command,
                        const lh_lease_run_opts *opts, int *status, char *errmsg, size_t errlen);

/* ---- recovery and maintenance ---------------------------------------------------------------- */

typedef struct lh_recovered {
    int64_t locks_cleaned;     /* freed leases: named leases and those of exclusive queues */
    int64_t entries_reclaimed; /* recovered jobs */
    int64_t recovery_timestamp;
    uint64_t reserved[4];
} lh_recovered;

/** One job of a report; or a lease or a worker that could not be recovered. */
typedef struct lh_recovered_job {
    int64_t job; /* 0: `error` names the lease or the worker */
    const char *queue, *kind;
    const char *action;   /* "retry", "pending", "failed" or "released" */
    int64_t attempt;      /* the next attempt; the last one if the job failed */
    int64_t max_attempts; /* LH_UNLIMITED */
    const char *previous_worker, *reason;
    bool success;      /* false: `error` says why it could not be recovered */
    const char *error; /* NULL: none */
} lh_recovered_job;

typedef struct lh_dead_worker {
    const char *worker;
    int64_t last_heartbeat;
    const int64_t *jobs; /* the jobs that were taken back from it */
    size_t n_jobs;
} lh_dead_worker;

/** What one recovery found and did. A list has at most LH_REPORT_MOST entries; the counters are complete. */
#define LH_REPORT_MOST 10000

typedef struct lh_report {
    int64_t id;                       /* 0: not stored (a dry run, or nothing was found) */
    const char *trigger;              /* "startup", "claim", "timer", "expiry", "death", "manual" */
    int64_t started_at, completed_at; /* completed_at 0: it runs, or was ended by a crash */
    int64_t duration_ms;
    struct {
        bool ran, passed; /* passed: the final result, after a repair */
        bool repair_attempted, repair_succeeded;
        const char *const *errors;
        size_t n_errors;
    } integrity;
    int64_t wal_frames; /* checkpointed frames of the log; -1: there was no checkpoint */
    int64_t orphaned;   /* reclaimable jobs */
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
    bool dry_run; /* change nothing, report what would be done */
    bool by_age;  /* recover all jobs that were claimed and last sent a heartbeat at least */
    int64_t threshold_ms; /* … this long ago, even if their leases are live; 0: all running jobs */
    bool now;             /* no quarantine for jobs with live leases */
    lh_action action;     /* 0: that of the policy */
    const char *queue;    /* NULL: all queues */
    const lh_flag *cancel; /* checked between batches */
    /* Called after every batch, in the calling thread; may be NULL. */
    void (*progress)(void *arg, int64_t done, int64_t total);
    void *progress_arg;
    uint64_t reserved[8];
} lh_recover_opts;

/**
 * Recover now: the jobs of dead workers, jobs and named leases that have expired, inconsistencies.
 *
 * This is an operator's recovery, so it also covers policies with recovery off. Each batch is one
 * transaction whose writes repeat their guards: a job that a heartbeat, a complete or another recovery
 * changed first is left alone.
 * Returns  LH_OK     *out (may be NULL) is the report, which is also stored
 *          LH_EINTR  the cancel flag was raised; the batches up to then are recovered
 * Crash    A batch is recovered completely or not at all. Run it again to finish the work.
 */
LH_API int lh_recover(lh_store *store, const lh_recover_opts *opts, lh_report **out);

/** Count what lh_recover() would recover now. Changes nothing. */
LH_API int lh_recovery_stats(lh_store *store, lh_recovered *out);

/** Recover jobs by age, as lh_recover() with by_age. `*reclaimed` (may be NULL) is their number. */
LH_API int lh_reclaim_stale(lh_store *store, int64_t threshold_ms, int64_t *reclaimed);

/** Read a report by its id; 0: the last one. LH_ENOTFOUND: there is none. */
LH_API int lh_report_get(lh_store *store, int64_t id, lh_report **out);

typedef struct lh_reports {
    size_t n;
    lh_report *report; /* without the lists */
    void *priv;
} lh_reports;

/** List the last `limit` reports (0: 100; at most 10000), newest first. */
LH_API int lh_report_list(lh_store *store, size_t limit, lh_reports **out);
LH_API void lh_reports_free(lh_reports *reports);

typedef struct lh_maintain_opts {
    /* First wait up to this long (-1: forever) until something falls due: an expired lease, a dead worker,
     * a job to promote, a schedule. 0: do not wait. */
    int64_t wait_ms;
    const lh_flag *cancel; /* when it is raised, stop waiting and return LH_EINTR */
    bool woken;            /* as in a claim */
    uint64_t reserved[8];
} lh_maintain_opts;

typedef struct lh_maintained {
    int64_t recovered, promoted, expired, pruned;
    int64_t enqueued; /* jobs that schedules enqueued */
    int64_t dead_workers;
    int64_t report;  /* id of the recovery report; 0: nothing was recovered */
    int64_t next_ms; /* time until something may fall due */
    uint64_t reserved[4];
} lh_maintained;

/** Run one round of maintenance: recovery, schedules, promotion, expiry, pruning. A program that calls it in
 *  a loop with a wait recovers a job as soon as its lease expires or its worker dies. On PostgreSQL only the
 *  maintenance leader does so; the other processes return from the wait without a round. */
LH_API int lh_maintain(lh_store *store, const lh_maintain_opts *opts, lh_maintained *out);

/** Delete finished jobs, events, request ids and rollups that are older than their retention, or than
 *  older_than_ms if that is not 0. `*pruned` is the number of jobs. */
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
    int64_t attempt, max_attempts; /* 0: not recorded */
    const char *action;            /* of a recovery: what happened to the job */
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
    int64_t since;     /* at this time or later; 0: any time */
    int64_t after;     /* only ids above this */
    size_t limit;      /* 0: 100; at most 10000 */
    bool newest;       /* the last `limit` events instead of the first; still in ascending order */
    /* Wait up to this long for the first event; 0: do not wait; -1: forever. A waiting call returns an event
     * only when no event with a lower id can still be committed, so a reader misses none. */
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
    int64_t wal_bytes;                /* -1: unknown, as on a server */
    int64_t file_bytes;               /* of the database */
    int64_t free_bytes;               /* on the device; -1: unknown */
    int64_t changes;                  /* our transactions so far */
    int64_t stale_jobs, stale_leases; /* reclaimable by automatic recovery */
    int64_t workers_alive, workers_late, workers_dead;
    int64_t workers_degraded; /* of those that are not dead */
    int64_t clock_skew_ms;    /* wall clock against elapsed time since the anchor */
    int64_t next_due_at;      /* when the next lease expires or job is due; 0: none */
    char degraded[256];       /* "" if the store is not degraded */
    /* Totals since the store was created. */
    struct {
        int64_t startup, claim, timer, expiry, death, manual; /* recoveries by trigger */
        int64_t retried, made_pending, failed, released;      /* jobs by action */
        int64_t leases, dead_workers, failures;
        int64_t duration_ms; /* sum over all recoveries */
    } recovery;
    uint64_t reserved[8];
} lh_store_info;

LH_API int lh_store_status(lh_store *store, lh_store_info *out);

typedef struct lh_finding {
    const char *level; /* "info", "warning", "error" */
    const char *what;  /* the check: "integrity", "invariant", "wal" … */
    const char *text;
} lh_finding;

typedef struct lh_findings {
    size_t n;
    size_t errors;
    lh_finding *finding;
    void *priv;
} lh_findings;

/** Check the store: the file's integrity, the invariants of rows and counters, the log, the clock, the free
 *  space, the versions. Returns LH_OK with findings, too: see `errors`. */
LH_API int lh_check(lh_store *store, const lh_flag *cancel, lh_findings **out);
LH_API void lh_findings_free(lh_findings *findings);

/** Check the integrity of the file only. Only `integrity` of the report is filled. */
LH_API int lh_check_integrity(lh_store *store, const lh_flag *cancel, lh_report **out);

/**
 * Copy the store to `path` while it is in use, and check the copy.
 *
 * The copy is written next to `path` and renamed when it is complete and sound. An existing file is
 * replaced only with `replace`. Returns LH_OK, LH_EINVAL (the file exists), LH_ECORRUPT (the copy is
 * damaged), LH_ENOSPC, LH_EINTR …
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
 * Replace the store at `url` by a copy of the backup at `path`.
 *
 * The backup is checked first and stays unchanged. The old store is kept next to the new one; `kept` (may
 * be NULL) receives its name. The new epoch is above that of both, so no token is issued twice. All
 * leases of the backup end; jobs whose old deadlines have not passed are in quarantine until then.
 * Programs that have the old store open get an error at their next act.
 */
LH_API int lh_restore(const char *url, const char *path, const lh_open_opts *opts, char *kept,
                      size_t keptlen, char *errmsg, size_t errlen);

typedef struct lh_move_opts {
    /* Options for opening both stores: log, durability, busy_ms and force_network count. NULL: defaults. */
    const lh_open_opts *open;
    /* Abandon an unfinished move: `from` can be written again; `to` is ignored. */
    bool abandon;
    const lh_flag *cancel; /* checked between batches */
    /* Reports the rows that were copied and compared; may be NULL. */
    void (*progress)(void *arg, int64_t done, int64_t total);
    void *progress_arg;
    uint64_t reserved[8];
} lh_move_opts;

typedef struct lh_moved {
    int64_t jobs, events, leases, policies, schedules;
    bool already; /* an earlier call finished the move; the counters are 0 */
    uint64_t reserved[4];
} lh_moved;

/**
 * Move everything from one store to another, of the same kind or the other.
 *
 * The move copies jobs with their ids, tokens and payloads, counters, named leases, policies, schedules,
 * events, reports and request ids. Workers are not copied; they register again. `to` is created if it is
 * missing, and must be empty. Expired leases in `from` are recovered first; then no job may be running.
 * From the start of the move on, `from` refuses all other acts with LH_EREADONLY. `to` refuses them until
 * every row was compared; its epoch is then above that of `from`.
 *
 * Returns  LH_OK      everything is in `to`; *out (may be NULL) has the counters
 *          LH_ESTATE  a job is running, `to` is not empty, or one of the stores is part of another move
 *          LH_EINTR   the cancel flag was raised; call it again to continue
 *          LH_EFAIL   the copied rows differ from the original
 * Crash    Call it again with the same stores to continue. The two stores are never writable at once.
 * `errmsg` (may be NULL) receives the reason of a failure, at most `errlen` bytes.
 */
LH_API int lh_move(const char *from, const char *to, const lh_move_opts *opts, lh_moved *out,
                   char *errmsg, size_t errlen);

/** The SQL that removes everything of ours from a database, as text to read. Free it with free(). */
LH_API int lh_drop_sql(lh_store *store, char **out);

/** The schema version of this library, and of the store at `url` (0: not ours). Changes nothing. */
LH_API int lh_schema_version(void);
LH_API int lh_schema_of(const char *url, int *version, char *errmsg, size_t errlen);

/** The kind of store that an address means: "sqlite" or "postgres". Opens nothing. */
LH_API const char *lh_store_kind(const char *url);

/* ---- durations, times, names and text ---------------------------------------------------------- */

/** Parse a duration: "250ms", "30s", "5m", "1h30m", "14d". */
LH_API int lh_duration_parse(const char *text, int64_t *ms);
/** Write a duration in the same form; returns `buf`. */
LH_API char *lh_duration_format(int64_t ms, char *buf, size_t len);
/** Parse a time in RFC 3339 with a zone; write one as "2026-01-15T10:30:00.000Z". */
LH_API int lh_time_parse(const char *text, int64_t *ms);
LH_API char *lh_time_format(int64_t ms, char *buf, size_t len);
/** Is it a valid name (see Text at the top)? */
LH_API bool lh_name_ok(const char *name);
/** Is it valid UTF-8 without a zero byte? */
LH_API bool lh_text_ok(const void *bytes, size_t len);

#ifdef __cplusplus
}
#endif

#endif
