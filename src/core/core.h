/* core.h: the handle behind lh_store, and what the files of the core share. */
#ifndef LHI_CORE_H
#define LHI_CORE_H

#include "store/store.h"

#include <pthread.h>
#include <sys/types.h>

/* The last error of one thread. */
struct lhi_slot {
    struct lhi_slot *prev, *next;
    lh_store *owner;
    struct lhi_error err;
};

struct lh_store {
    struct lhi_store store; /* ops NULL: opening failed */
    pid_t pid;
    pthread_key_t key;
    bool has_key;
    pthread_mutex_t slots_mutex;
    struct lhi_slot *slots;
    struct lhi_error open_err; /* the error of lh_open(), and of a thread without a slot */
    struct lhi_log log;
    bool trace; /* print every operation (trace.c) */
    char owner[160];
    bool no_recovery;          /* only lh_recover() recovers */
    struct lhi_health health;  /* what opening found, until it is in a report */
    uint32_t deaths_judged;    /* count of deaths when claims judged the workers last; atomic */
    int64_t pruned_at;         /* monotonic: when maintenance last pruned */
    struct lhi_leftovers left; /* processes of dead workers, as of the last search (leftovers.c) */
    int64_t search_again_at;   /* monotonic: when to search again; 0: there are none */
    char degraded[160];        /* what failed at opening, or "" */
    bool stuck;                /* something is due that maintenance does not do (recovery off) */
};

/* The stores by name (stores.c, the one file that knows which stores there are). */
int lhi_store_open(const char *url, const lh_open_opts *opts, const struct lhi_log *log,
                   struct lhi_store *out, struct lhi_health *health, struct lhi_error *err);
int lhi_store_restore(const char *url, const char *from, const lh_open_opts *opts,
                      const struct lhi_log *log, char *kept, size_t keptlen, struct lhi_error *err);
int lhi_schema_of(const char *url, int *version, struct lhi_error *err);
const char *lhi_store_kind(const char *url);
const char *lhi_engine_version(void);
int lhi_schema_version(void);

/* Start a public call. Returns the cleared error of this thread; NULL: the handle cannot be used, and *status
 * says why. */
struct lhi_error *lhi_enter(lh_store *store, int *status);

/* Perform one act that writes, or one that reads. Returns its outcome. */
int lhi_perform(lh_store *store, struct lhi_act *act, struct lhi_error *err);
int lhi_read(lh_store *store, struct lhi_act *act, struct lhi_error *err);

/* Print operations on standard error if the environment asks for it (trace.c). */
bool lhi_trace_wanted(void);
void lhi_trace(const struct lhi_act *acts, size_t n, int whole, int64_t began_us);

/* Perform acts in one transaction. LH_OK: it is committed, and each act has its outcome in err. */
int lhi_perform_all(lh_store *store, struct lhi_act *acts, size_t n, struct lhi_error *err);

/* For an act on a list: allocate act->status, which the caller frees. */
int lhi_statuses(struct lhi_act *act, struct lhi_error *err);
/* Copy the outcomes of the items to `status` if the transaction is committed (whole >= 0), else the failure of the
 * transaction for each item. Returns the first outcome that is not LH_OK. */
int lhi_list_outcome(int whole, const struct lhi_act *act, int *status, struct lhi_error *err);

/* The shorter of two waits; a negative `other` means none. */
static inline int64_t lhi_sooner(int64_t ms, int64_t other)
{
    return other >= 0 && other < ms ? other : ms;
}

/* Has the caller's cancel flag been raised? */
static inline bool lhi_raised(const lh_flag *cancel)
{
    return lh_flag_raised(cancel) != 0;
}

/* When a wait of `wait_ms` (> 0) ends, by the monotonic clock. */
int64_t lhi_deadline(int64_t wait_ms);

/* Sleep until a wake-up for the topic (true), for `ms`, or until the cancel flag is raised. `wakes`: the thread that
 * raises the flag also calls lh_wake(), so the flag need not be polled. */
bool lhi_sleep(lh_store *store, const struct lhi_topic *topic, uint32_t ticket, int64_t ms,
               const lh_flag *cancel, bool wakes);

/* The longest sleep without a poll. */
int64_t lhi_max_sleep_ms(lh_store *store, enum lhi_wake_on on);

/* What jobs.c and claim.c share. */
int lhi_check_refs(size_t n, const void *items, struct lhi_error *err);
int lhi_check_ref(int64_t job, int64_t token, struct lhi_error *err);
int lhi_check_done(const lh_done *done, size_t n, struct lhi_error *err);
/* Collect the output of runs and the sizes of cut results; NULL: none. Free it with lhi_free(). */
int lhi_written_by(const lh_done *done, size_t n, struct lhi_written **out, size_t *n_out,
                   struct lhi_error *err);
int lhi_read_jobs(lh_store *store, struct lhi_act *act, struct lhi_error *err, lh_jobs **out);

/* Run a recovery (recovery.c). `opts` NULL: an automatic one, which respects policies with recovery off. */
int lhi_run_recovery(lh_store *store, struct lhi_run *run, const lh_recover_opts *opts,
                     const struct lhi_health *health, struct lhi_error *err);
/* Run an automatic recovery and other acts of maintenance, in its last transaction or in one of their own. */
int lhi_run_with(lh_store *store, struct lhi_run *run, struct lhi_act *also, size_t n_also,
                 const lh_flag *cancel, struct lhi_error *err);
/* The database refused a write of recovery or maintenance (a constraint, a trigger). Turn LH_EINVAL into LH_EFAIL,
 * because the caller's values are not at fault. */
int lhi_refused(const char *what, struct lhi_error *err);
/* Set what failed at opening; NULL: it works again. */
void lhi_set_degraded(lh_store *store, const char *why);
/* Write a report about the store without a recovery. */
int lhi_report_health(lh_store *store, struct lhi_run *run, const struct lhi_health *health,
                      struct lhi_error *err);
int lhi_judge_workers(lh_store *store, struct lhi_suspects *suspects, struct lhi_death **deaths,
                      size_t *n, struct lhi_error *err);

/* Processes that dead workers have left running (leftovers.c). Search for them, and mark the suspects that
 * have some. */
int lhi_find_leftovers(lh_store *store, struct lhi_suspects *suspects,
                       const struct lhi_identity *self, struct lhi_error *err);
/* Kill those whose grace time is over. True: search again soon. */
bool lhi_clear_leftovers(lh_store *store, struct lhi_leftovers *found);
/* Is another search due? Otherwise it is due in *ms (-1: never). True is returned once per search. */
bool lhi_leftovers_due(lh_store *store, int64_t *ms);

/* Count what a recovery would take back now. `opts` NULL: an automatic one. */
int lhi_count_stale(lh_store *store, const lh_recover_opts *opts, lh_recovered *out,
                    struct lhi_error *err);
int lhi_find_inconsistencies(lh_store *store, const lh_flag *cancel, struct lhi_health *health,
                             struct lhi_error *err);
void lhi_health_clear(struct lhi_health *health);
/* Run the startup recovery if it is due. */
int lhi_recover_at_startup(lh_store *store, const lh_open_opts *opts, struct lhi_error *err);

/* Result structs. */
void *lhi_result_new(size_t size, struct lhi_error *err);
void lhi_result_free(void *result, void *priv, void *array);

#endif
