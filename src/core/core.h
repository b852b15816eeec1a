/* core.h: the handle behind lh_store, and what the public calls share. */
#ifndef LHI_CORE_H
#define LHI_CORE_H

#include "store/store.h"

#include <pthread.h>
#include <sys/types.h>

/* Each thread has its own last error, so that one thread's success does not wipe another's reason. */
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
    struct lhi_error open_err; /* of lh_open; and of a thread there is no memory for */
    struct lhi_log log;
    bool trace; /* print every operation (trace.c) */
    char owner[160];
    bool no_recovery;          /* nothing is taken back but by hand */
    struct lhi_health health;  /* what opening found, until a report tells it */
    int64_t pruned_at;         /* monotonic: when maintenance last pruned */
    struct lhi_leftovers left; /* of dead workers, as they were last seen (leftovers.c) */
    int64_t look_again_at;     /* monotonic: at them; 0: there are none */
    char degraded[160];        /* what failed when it was opened, or "" */
    bool stuck;                /* … and whether what it left is due for good (recovery off) */
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

/* Start a public call: the thread's error, cleared; NULL when the handle cannot be used here (then
 * *status says why). */
struct lhi_error *lhi_enter(lh_store *store, int *status);

/* Perform one act that writes, or one that reads, and return its outcome. */
int lhi_perform(lh_store *store, struct lhi_act *act, struct lhi_error *err);
int lhi_read(lh_store *store, struct lhi_act *act, struct lhi_error *err);

/* Print operations on standard error if the environment asks for it (trace.c). */
bool lhi_trace_wanted(void);
void lhi_trace(const struct lhi_act *acts, size_t n, int whole, int64_t began_us);

/* Perform acts in one transaction: LH_OK when it stands, see each act's err. */
int lhi_perform_all(lh_store *store, struct lhi_act *acts, size_t n, struct lhi_error *err);

/* Acts on lists: room for the outcome of each item, to be freed by the caller … */
int lhi_statuses(struct lhi_act *act, struct lhi_error *err);
/* … which is told to the caller when the transaction stands (whole >= 0), and else the failure of
 * the whole for each. Returns that, or the outcome of the first item that was not done. */
int lhi_list_outcome(int whole, const struct lhi_act *act, int *status, struct lhi_error *err);

/* The sooner of two waits; one below 0 is none. */
static inline int64_t lhi_sooner(int64_t ms, int64_t other)
{
    return other >= 0 && other < ms ? other : ms;
}

/* Has another thread, or a signal handler, raised the caller's flag? */
static inline bool lhi_raised(const lh_flag *cancel)
{
    return lh_flag_raised(cancel) != 0;
}

/* The moment a wait of `wait_ms` (> 0) is over, by the monotonic clock. */
int64_t lhi_deadline(int64_t wait_ms);

/* Sleep for `ms`, or until the bell of opts' queues (NULL: any commit), which is true, or the cancel flag. */
bool lhi_sleep_until(lh_store *store, const lh_claim_opts *opts, uint32_t ticket, int64_t ms,
                     const lh_flag *cancel);

/* How long to sleep at most without a look: for a job, or (keeper) for something to fall due. */
int64_t lhi_net_ms(lh_store *store, bool keeper);

/* The same until the siren: true when it was raised. */
bool lhi_await_siren(lh_store *store, uint32_t ticket, int64_t ms, const lh_flag *cancel,
                     bool woken);

/* What jobs.c and claim.c share. */
int lhi_check_refs(size_t n, const void *items, struct lhi_error *err);
int lhi_check_ref(int64_t job, int64_t token, struct lhi_error *err);
int lhi_check_done(const lh_done *done, size_t n, struct lhi_error *err);
/* What these runs wrote, and the marks of results that are cut; NULL: nothing. lhi_free() it. */
int lhi_written_by(const lh_done *done, size_t n, struct lhi_written **out, size_t *n_out,
                   struct lhi_error *err);
int lhi_read_jobs(lh_store *store, struct lhi_act *act, struct lhi_error *err, lh_jobs **out);

/* One recovery (recovery.c). `opts` NULL: by itself, so policies with recovery off are respected. */
int lhi_run_recovery(lh_store *store, struct lhi_run *run, const lh_recover_opts *opts,
                     const struct lhi_health *health, struct lhi_error *err);
/* … with other acts of upkeep, which go into its last transaction, or into one of their own. */
int lhi_run_with(lh_store *store, struct lhi_run *run, struct lhi_act *also, size_t n_also,
                 const lh_flag *cancel, struct lhi_error *err);
/* The database refused a write of recovery or maintenance. That is no input of the caller's, but a
 * failure of the store: the code and the message say so. */
int lhi_refused(const char *what, struct lhi_error *err);
/* What failed when the store was opened; NULL: all is well again. */
void lhi_set_degraded(lh_store *store, const char *why);
/* A report of the store alone: nothing is taken back. */
int lhi_report_health(lh_store *store, struct lhi_run *run, const struct lhi_health *health,
                      struct lhi_error *err);
int lhi_judge_workers(lh_store *store, struct lhi_suspects *suspects, struct lhi_death **deaths,
                      size_t *n, struct lhi_error *err);

/* What dead workers have left running (leftovers.c). Look for it, and mark the suspects that it
 * outlived … */
int lhi_find_leftovers(lh_store *store, struct lhi_suspects *suspects,
                       const struct lhi_identity *self, struct lhi_error *err);
/* … kill what had its time, and say whether it is worth while to look again soon … */
bool lhi_clear_leftovers(lh_store *store, struct lhi_leftovers *found);
/* … which is due now, or (`*ms`) in so long; -1: never. Told once: the next is a little later. */
bool lhi_leftovers_due(lh_store *store, int64_t *ms);

/* What a recovery would take back now: by hand with `opts`; NULL: by itself, so not where it is off. */
int lhi_count_stale(lh_store *store, const lh_recover_opts *opts, lh_recovered *out,
                    struct lhi_error *err);
int lhi_find_inconsistencies(lh_store *store, const lh_flag *cancel, struct lhi_health *health,
                             struct lhi_error *err);
void lhi_health_clear(struct lhi_health *health);
/* Startup recovery, where opening says that it is due. */
int lhi_recover_at_startup(lh_store *store, const lh_open_opts *opts, struct lhi_error *err);

/* Result structs. */
void *lhi_result_new(size_t size, struct lhi_error *err);
void lhi_result_free(void *result, void *priv, void *array);

#endif
