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

enum { LHI_BATCH = 500 }; /* rows a recovery, prune or promotion touches in one transaction */

enum lhi_verb {
    /* acts that write */
    LHI_ENQUEUE,
    LHI_CLAIM,
    LHI_HEARTBEAT,
    LHI_COMPLETE,
    LHI_FAIL,
    LHI_RELEASE,
    LHI_RELEASE_WORKER,
    LHI_CANCEL,
    LHI_RETRY,
    LHI_DELETE,
    LHI_RESCHEDULE,
    LHI_QUEUE_PAUSE,
    LHI_QUEUE_PURGE,
    LHI_POLICY_SET,
    LHI_SCOPE_SET,
    LHI_LEASE_ACT,
    LHI_WORKER_REGISTER,
    LHI_WORKER_BEAT,
    LHI_WORKER_STOP,
    LHI_UPKEEP,
    LHI_PRUNE,
    LHI_WRITES, /* verbs from here on only read */
    LHI_JOB_GET = LHI_WRITES,
    LHI_JOB_LIST,
    LHI_QUEUE_LIST,
    LHI_POLICY_LIST,
    LHI_LEASE_LIST,
    LHI_WORKER_LIST,
    LHI_EVENT_LIST,
    LHI_STATS,
    LHI_PEEK,
    LHI_CHECK,
    LHI_DROP_SQL,
    LHI_VERBS
};

enum lhi_lease_verb { LHI_LEASE_ACQUIRE, LHI_LEASE_EXTEND, LHI_LEASE_RELEASE, LHI_LEASE_COMPLETE };

/* One act: what is asked, and where the answer goes. Inputs were validated by the core. */
struct lhi_act {
    enum lhi_verb verb;
    struct lhi_error err; /* the act's own outcome; err.status is what the caller gets */
    /* for acts on lists: statuses[i] has the outcome of item i; never NULL when n > 0 */
    int *status;
    size_t n;
    lh_jobs *after; /* not NULL: receives the jobs afterwards */
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
        } claim;
        struct {
            const lh_beat *beats;
            const char *worker; /* LHI_WORKER_BEAT */
            int64_t interval_ms;
        } beat;
        const lh_done *done;
        const lh_failure *failures;
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
        } worker;
        struct {
            bool by_hand; /* also where the policy has switched recovery off */
            lh_upkeep done;
            int64_t leases;
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
        struct {
            lh_store_info *info;
            lh_recovered *recovered;
        } stats;
        struct {
            const lh_claim_opts *opts;
            bool found;      /* a claim would find something to do now */
            int64_t next_ms; /* until the next thing falls due; -1: nothing in sight */
        } peek;
        struct {
            const int *cancel;
            lh_findings *out;
        } check;
        char **drop_sql;
    };
};

/* What an open store is asked to do. `self` is the store's own. */
struct lhi_store_ops {
    const char *kind;
    void (*close)(void *self);
    void (*abandon)(
        void *self); /* close in a forked child: let go, touch nothing of the parent's */
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
};

struct lhi_store {
    const struct lhi_store_ops *ops;
    void *self;
};

/* Policy: the built-in values, and what rows of increasing generality make of them (core/policy.c). */
extern const lh_policy lhi_policy_builtin;
void lhi_policy_resolve(const lh_policies *rows, const char *queue, const char *kind,
                        lh_policy *out);

void lhi_policies_clear(lh_policies *rows);

/* Put the fields that `from` has set over those of `into` (core/policy.c). */
void lhi_policy_merge(lh_policy *into, const lh_policy *from);

/* Delay before the next try after the `attempt`th, by exponential backoff with jitter; `dice` is
 * any 32 bits (core/policy.c). */
int64_t lhi_backoff_ms(int64_t base_ms, int64_t cap_ms, int64_t attempt, uint32_t dice);

/* The words a death leaves behind: what happened to the lease, and who held it (core/recovery.c).
 * The statement that decides the death puts them together. */
void lhi_death_words(const lh_job *job, int64_t now, char what[64], char who[224]);

/* What an enqueue must satisfy, wherever it is done (core/jobs.c). */
int lhi_check_enqueue(const char *queue, const lh_new_job *jobs, size_t n, const lh_enqueued *out,
                      struct lhi_error *err);

/* Opening by name (store/stores.c): the one place that knows which stores there are. */
int lhi_store_open(const char *url, const lh_open_opts *opts, const struct lhi_log *log,
                   struct lhi_store *out, struct lhi_error *err);
int lhi_schema_of(const char *url, int *version, struct lhi_error *err);
const char *lhi_engine_version(void);
int lhi_schema_version(void);

/* The stores. */
int lhi_sqlite_open(const char *path, const lh_open_opts *opts, const struct lhi_log *log,
                    struct lhi_store *out, struct lhi_error *err);
const char *lhi_sqlite_version(void);
int lhi_sqlite_schema_version(void);
int lhi_sqlite_schema_of(const char *path, int *version, struct lhi_error *err);

#endif
