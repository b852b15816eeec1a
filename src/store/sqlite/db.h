/*
 * db.h: what the files of the SQLite store share. See README.md for the protocol.
 *
 *   coord.c       the side file: turnstile, bell, siren, marks
 *   open.c       opening, settings, closing
 *   fork.c       no SQLite in a process that was forked while a store was open
 *   identity.c   is it the store that the side file knows?
 *   names.c      the names of the files; the database must not have two
 *   zeroed_header.c   a store whose header was zeroed
 *   other_names.c  processes that have the database open by another name
 *   last_path.c     the name by which the store was last open
 *   trust.c      files beside it that another user may have put there
 *   schema.c     what is in the file: our tables, their versions, meta
 *   health.c     what is looked at when a store is opened after a crash
 *   group_commit.c    one transaction for all threads that come together
 *   txn.c        the transaction, and what acts use inside it
 *   sync.c       how commits get to the disk, and the log into the database
 *   wal.c        the log's own checksums
 *   clock.c      elapsed time against wall time, new boots
 *   stmt.c       prepared statements, binding, rows into structs
 *   acts/       what each act does inside a transaction
 *   read.c       what only reads; recovery.c and report.c for recoveries
 *   check.c      integrity and invariants
 *   foreign_writers.c      foreign writers
 *   death_watch.c     the processes of workers
 *   partial.c    where a copy is made until it has its name
 *   backup.c     copies; restore.c puts one back, replaced_store.c what the store before it knew
 *   replace_file.c       another file in the store's place
 *   repair.c     the ladder of repair, on a copy; repair.h names its other files
 *   degraded.c   reading where nothing can be written; private_copy.c its copy
 *   reserve.c    room for a full disk
 *   move.c       everything into another store, or out of one
 */
#ifndef LHI_SQLITE_DB_H
#define LHI_SQLITE_DB_H

#include "base/sys.h"
#include "sql_sqlite.h"
#include "store/death_watch.h"
#include "store/open.h"
#include "store/sqlite/coordination/coord.h"
#include "store/sqlite/files/fork.h"

#include <pthread.h>
#include <sqlite3.h>
#include <sys/types.h>

/* One connection with its prepared statements. */
struct conn {
    sqlite3 *db;
    sqlite3_stmt *stmt[LHI_SQL_COUNT];
};

struct call; /* one perform() on its way through the combiner, group_commit.c */

struct db {
    struct conn conn; /* writes; used by whoever leads, under the turnstile */
    struct coord coord;
    struct fork_guard fork_guard;
    char path[1024];    /* as it was given: for messages */
    char file[4096];    /* as it is reached: absolute, whatever becomes of the working directory */
    char degraded[256]; /* why it can only be read, or "" */
    int64_t seen;       /* then: how its files looked when they were read; 0: it is read live */
    bool in_place;      /* … and they are read where they are, not from a copy */
    dev_t dev;          /* which file it is */
    ino_t ino;
    uint64_t wal_ino, shm_ino; /* its log, and the index of that; 0: not opened */
    uint32_t links;            /* how many names the database had at the last look */
    lh_open_opts opts;
    struct lhi_log log;
    struct lhi_health *health; /* while opening */
    bool alone;                /* while opening: nobody else has the store */
    bool fresh;                /* while opening: its tables have just been made */
    bool known;                /* while opening: it is the file that the side file knows */
    char boot[40];
    struct lhi_time_ns time;
    sqlite3_file *wal; /* the log's file, to sync it; belongs to conn */

    /* combining */
    pthread_mutex_t mutex;
    struct call *queue_head, *queue_tail;
    bool leading;
    int stopped; /* an earlier failure has stopped this handle */
    int wal_frames;
    pthread_mutex_t sync_mutex;
    int64_t stuck_sync; /* the ticket under which another's sync did not end; -1: none */

    /* caches, valid for `generation`; touched only by the leader … */
    int64_t generation;
    int64_t stuck_until; /* leases that ended until then stay on purpose (recovery off) */
    int64_t epoch;
    lh_policies policies;
    char **paused;
    size_t n_paused;
    char closed[480]; /* why only a move may act here, or "" */
    /* … but for the clock, which is read from any thread: store time minus
     * the machine's monotonic clock */
    int64_t clock;

    /* reading */
    pthread_mutex_t read_mutex;
    struct conn reader;
    int64_t read_deadline;

    /* death_watch.c */
    struct lhi_death_watch deaths;
    struct conn death_watch_conn; /* who watches reads by this */

    /* foreign_writers.c */
    pthread_mutex_t watch_mutex;
    pthread_t watcher;
    bool watching;
    int watch_stop[2];
};

/* What one transaction did to one queue. */
struct tally {
    struct tally *next;
    const char *queue;
    int64_t state[LH_CANCELLED + 1];
    int64_t enqueued, claimed, completed, failed, recovered, ended, wait_ms, run_ms;
    int ring; /* jobs that became pending */
};

struct txn {
    struct db *db;
    struct conn *conn;
    int64_t now;        /* store time: elapsed, readable as wall time */
    int64_t wall;       /* run_at and expiry mean this */
    int64_t tick;       /* the number of this transaction */
    bool durable;       /* something here must be synced before it is acknowledged */
    bool changed;       /* something was written */
    bool anchored;      /* the clock's anchor was renewed */
    bool reloaded;      /* an act changed settings, and they were read again */
    bool gone;          /* the engine gave the transaction up: nothing may go on in it */
    bool run_over;      /* a recovery ends with this: the side file is told after the commit … */
    bool all_recovered; /* … and that nothing is left from a crash */
    bool fenced;        /* the epoch was raised because of a damaged row */
    bool own_damage;    /* an act refuses a damaged row: the others in the transaction go on */
    bool siren;         /* something falls due sooner than those who wait will look again */
    struct tally *tallies;  /* newest first, in the arena; pointers to them stay good */
    struct lhi_arena arena; /* lives as long as the transaction */
    /* the last policy asked for: batches ask for the same again and again */
    char policy_queue[160], policy_kind[160];
    lh_policy policy;
    bool policy_valid;
    struct logged *logs; /* newest first: said once it is committed */
};

/* ---- stmt.c ---- */

/* The statement, reset, with its parameters bound in the order of their first appearance:
 * i int64, I int64 where 0 is NULL, o pointer to int64 (NULL is NULL), t text (NULL is NULL), b pointer and length as text or blob by
 * content, B pointer and length as blob (NULL is NULL), n nothing (NULL). NULL on failure, with err set. */
sqlite3_stmt *sq_stmt(struct conn *conn, enum lhi_sql which, struct lhi_error *err, const char *fmt,
                      ...);
/* Step once: LH_OK a row, LH_EMPTY done, else a failure with err set. */
int sq_step(struct conn *conn, sqlite3_stmt *stmt, struct lhi_error *err);
/* sq_stmt() and step to the end; the number of rows changed, or a negative status. */
int sq_run(struct conn *conn, enum lhi_sql which, struct lhi_error *err, const char *fmt, ...);
/* The value of the first column of the first row; `fallback` when there is no row or it is NULL. */
int sq_int(struct conn *conn, enum lhi_sql which, struct lhi_error *err, int64_t fallback,
           int64_t *out, const char *fmt, ...);
int sq_exec(struct conn *conn, const char *text, struct lhi_error *err);
/* What the engine's last error means to us, said in our words. */
int sq_fail(struct conn *conn, int code, struct lhi_error *err);
int sq_check_json(struct conn *conn, const char *text, const char *what, struct lhi_error *err);
void sq_reset(sqlite3_stmt *stmt);
void sq_conn_close(struct conn *conn);

/* The columns of lh_job in the order of the table, as SELECT * gives them. */
enum job_column {
    JOB_ID,
    JOB_QUEUE,
    JOB_KIND,
    JOB_STATE,
    JOB_PRIORITY,
    JOB_ATTEMPT,
    JOB_MAX_ATTEMPTS,
    JOB_RECOVERIES,
    JOB_TOKEN,
    JOB_WORKER,
    JOB_LEASE_UNTIL,
    JOB_HELD_MS,
    JOB_RUN_AT,
    JOB_CREATED_AT,
    JOB_STARTED_AT,
    JOB_FINISHED_AT,
    JOB_STATE_CHANGED_AT,
    JOB_LAST_HEARTBEAT_AT,
    JOB_KEY,
    JOB_EXPIRES_AT,
    JOB_LEASE_MS,
    JOB_BACKOFF_MS,
    JOB_BACKOFF_CAP_MS,
    JOB_STAGE,
    JOB_PROGRESS,
    JOB_LAST_ERROR,
    JOB_CHECKPOINT,
    JOB_RESULT,
    JOB_NAME_SUM,
    JOB_STATE_SUM,
    JOB_PAYLOAD_SUM,
    JOB_PAYLOAD,
    JOB_COLUMNS
};
extern const char *const sq_job_columns[JOB_COLUMNS];

bool sq_job_from_row(sqlite3_stmt *stmt, int64_t now, struct lhi_arena *arena, lh_job *job);
bool sq_jobs_add(lh_jobs *jobs, size_t *room, lh_job **slot); /* grows the array */
const void *sq_column_raw(sqlite3_stmt *stmt, int column, size_t *len);
const char *sq_column_text(sqlite3_stmt *stmt, int column, struct lhi_arena *arena, bool *ok);
/* The same for what is never NULL: damage may have made it so. */
const char *sq_column_name(sqlite3_stmt *stmt, int column, struct lhi_arena *arena, bool *ok);
const char *sq_text_or_empty(sqlite3_stmt *stmt, int column); /* for the moment; of NULL "" */
lh_state sq_column_state(sqlite3_stmt *stmt, int column);
bool sq_lease_from_row(sqlite3_stmt *stmt, int64_t now, struct lhi_arena *arena, lh_lease *lease);
int sq_load_policies(struct conn *conn, lh_policies *out, struct lhi_error *err);

/* ---- group_commit.c ---- */
int sq_db_perform(void *self, struct lhi_act *acts, size_t n, struct lhi_error *err);

/* ---- txn.c ---- */

/* Run fn inside a transaction of its own, alone; used while opening. */
int sq_txn_alone(struct db *db, int (*fn)(struct txn *, void *, struct lhi_error *), void *arg,
                 struct lhi_error *err);
struct tally *sq_txn_tally(struct txn *txn, const char *queue, struct lhi_error *err);
/* Drop what this transaction has counted of a queue: the queue is deleted. */
void sq_txn_forget_tally(struct txn *txn, const char *queue);
void sq_tally_move(struct tally *tally, lh_state from, lh_state to);
const lh_policy *sq_txn_policy(struct txn *txn, const char *queue, const char *kind);
/* Run fn inside a savepoint: when it fails, what it wrote and logged is undone. What it counted of
 * queues is not: fn must not do that before everything that can fail. */
int sq_txn_savepoint(struct txn *txn, int (*fn)(struct txn *, void *), void *arg,
                     struct lhi_error *err);
/* The same, with what it counted. */
int sq_txn_guarded(struct txn *txn, int (*fn)(struct txn *, void *), void *arg,
                   struct lhi_error *err);
int64_t sq_txn_next_token(const struct txn *txn, int64_t token);
/* A line about what the transaction does: it is said when that is done, and not when it is undone. */
void sq_txn_log(struct txn *txn, int level, const lh_log_entry *about, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void sq_txn_write_logs(struct txn *txn);               /* after the commit */
void sq_txn_falls_due(struct txn *txn, int64_t in_ms); /* something was written that does so then */
void sq_db_free_caches(struct db *db);

int sq_txn_reload(struct txn *txn, struct lhi_error *err); /* settings: policies, pauses, epoch */

struct event {
    const char *type;
    int64_t job;
    const char *queue, *worker, *lease;
    lh_state from, to;
    const char *actor, *reason;
    int64_t token;
    const char *data;
    int64_t attempt, max_attempts; /* 0: not told */
    const char *action;            /* of a recovery */
    int64_t report;
};
int sq_put_event(struct conn *conn, int64_t at, const struct event *event, struct lhi_error *err);
int sq_txn_event(struct txn *txn, const struct event *event, struct lhi_error *err);

/* The steps of a transaction, for whoever leads one. */
int sq_txn_begin(struct txn *txn, struct db *db, struct lhi_error *err);
int sq_txn_flush(struct txn *txn, struct lhi_error *err); /* counts what was done */
int sq_txn_commit(struct txn *txn, struct lhi_error *err);
void sq_txn_rollback(struct txn *txn);

/* ---- sync.c ---- */
int sq_sync_to(struct db *db, uint64_t tick, struct lhi_error *err);
int sq_sync_after_failure(struct db *db,
                          struct lhi_error *err); /* under the turnstile, before anything else */
int sq_db_checkpoint(struct db *db, int mode,
                     int *folded); /* under the turnstile; NULL: not asked */
/* `recovering`: this transaction was part of a recovery. How long it took, 0 if it was not due. */
void sq_checkpoint_when_due(struct db *db, bool recovering, int64_t *took_us);

/* ---- open.c ---- */
int sq_conn_open(struct conn *conn, const char *path, int flags, struct lhi_error *err);
/* The same for reading, also where the store cannot be written. */
int sq_conn_open_to_read(struct db *db, struct conn *conn, struct lhi_error *err);
void sq_conn_set_busy_wait(struct conn *conn, bool patient); /* wait when the file is busy? */
int sq_set_wal_mode(struct conn *conn, bool *changed, struct lhi_error *err);

/* ---- names.c: the names of the files, and that the database has one ---- */
bool sq_db_moved(const struct db *db); /* database, log or index: removed or replaced under us */
/* The same before a commit, under the turnstile, and whether an exchange of the file has begun. Logs a
 * warning when the database has got a second name. */
bool sq_db_files_changed(struct db *db);
int sq_db_stop_moved(struct db *db,
                     struct lhi_error *err); /* … and nothing more may be done with it */
/* The name of the log is gone, or the database was renamed without it, and nobody has made another log:
 * move what is in it into the database. Under the turnstile. True: all of it is there. */
bool sq_db_save_log(struct db *db);
int sq_refuse_file_mount(const struct db *db, struct lhi_error *err);
int sq_refuse_second_name(struct db *db, struct lhi_error *err);  /* under the turnstile */
int sq_names_problem(const struct db *db, char *out, size_t len); /* for those who only read */

/* ---- zeroed_header.c ---- */
bool sq_header_is_zeroed(
    const struct db *db); /* it is a store of ours, though SQLite cannot tell */

/* ---- other_names.c: who has the database open by another name ---- */
/* A process that may write the database has it open in WAL mode and does not use the index beside it. */
int sq_refuse_other_names(const struct db *db, struct lhi_error *err);
bool sq_index_in_use(char *shm); /* the file with this name; or it is not known */

/* ---- last_path.c: the name by which the store was last open; under the turnstile ---- */
/* LH_ESTOPPED: it is still in use by that name. LH_EOLDER: its log was left there. Otherwise the marks
 * that were left there are taken over. */
int sq_last_path_check(struct db *db, const char *uuid, int64_t changes, struct lhi_error *err);
int sq_last_path_set(struct db *db, struct lhi_error *err); /* it has this name now */

/* ---- identity.c: is it the store the side file knows? All but two under the turnstile. ---- */
uint64_t sq_inode_of(const struct db *db, const char *suffix,
                     char path[4200]); /* 0: there is none */
struct age {
    char uuid[40];
    int64_t changes;  /* transactions of ours in the snapshot; -1: the store's own row is missing */
    uint64_t missing; /* acknowledged ones that are not in it */
};
/* Without the turnstile. It must be the first to read in its snapshot: see there. */
int sq_read_age(struct db *db, struct conn *conn, struct age *age, struct lhi_error *err);
int sq_recognize_file(struct db *db, bool created, struct lhi_error *err);
/* The side file knows this file as a store, whatever is in it by now. */
bool sq_coord_knows_file(struct db *db);
int sq_refuse_emptied(const struct db *db, struct lhi_error *err);
int sq_refuse_foreign_log(struct db *db, struct lhi_error *err);
int sq_compare_marks(struct db *db, struct lhi_error *err);
int sq_resolve_failed_sync(struct db *db, struct lhi_error *err);
int sq_other_boot(struct db *db, bool *other, struct lhi_error *err);
int sq_notice_boot(struct db *db, struct lhi_error *err);

/* ---- schema.c ---- */
enum contents { CONTENTS_EMPTY, CONTENTS_FOREIGN, CONTENTS_OURS };
int sq_schema_look(struct conn *conn, enum contents *out, int64_t *version, struct lhi_error *err);
int sq_schema_update(struct db *db, struct lhi_error *err); /* makes or migrates, where it may */
int sq_schema_drop_sql(struct conn *conn, char **out, struct lhi_error *err);
int sq_meta_int(struct conn *conn, const char *key, int64_t fallback, int64_t *out,
                struct lhi_error *err);
int sq_meta_set_int(struct conn *conn, const char *key, int64_t value, struct lhi_error *err);
/* With its second copy: a repair must not fall back behind a token that was handed out. */
int sq_epoch_set(struct conn *conn, int64_t epoch, struct lhi_error *err);
int sq_meta_set_text(struct conn *conn, const char *key, const char *value, struct lhi_error *err);
int sq_meta_text(struct conn *conn, const char *key, char *out, size_t len, struct lhi_error *err);

/* ---- clock.c ---- */
int64_t sq_db_now(void *self);
int sq_clock_usable(int64_t wall_ms, struct lhi_error *err); /* LH_EFAIL: it is before 1973 */
int sq_clock_set_anchor(struct txn *txn,
                        struct lhi_error *err); /* renew it: after a jump, a new boot */
/* The monotonic clock of the machine, in whatever time namespace this process is. */
int64_t sq_machine_ms(const struct db *db);
/* Does an anchor of this boot say anything about our clock? */
bool sq_clock_of_this_boot(const struct db *db, const char *anchor_boot);
int sq_clock_check(struct txn *txn, struct lhi_error *err); /* jumps, before anything is judged */
int sq_clock_new_boot(struct txn *txn, struct lhi_error *err);
int sq_raise_epoch(struct txn *txn, struct lhi_error *err);

/* ---- acts ---- */
typedef int act_fn(struct txn *txn, struct lhi_act *act);
act_fn sq_act_enqueue, sq_act_claim, sq_act_heartbeat, sq_act_complete, sq_act_fail, sq_act_release,
    sq_act_output, sq_act_release_worker, sq_act_cancel, sq_act_retry, sq_act_delete,
    sq_act_reschedule, sq_act_queue_pause, sq_act_queue_purge, sq_act_queue_delete,
    sq_act_policy_set, sq_act_scope_set, sq_act_schedule_set, sq_act_schedule_remove, sq_act_lease,
    sq_act_worker_register, sq_act_worker_heartbeat, sq_act_worker_stop, sq_act_worker_started,
    sq_act_worker_sessions, sq_act_worker_degraded, sq_act_recover, sq_act_maintain, sq_act_prune,
    sq_act_recount, sq_act_move;

/* Acts on lists: every item is judged by itself, act->status[i] has its outcome, act->err that of
 * the first that was not done; a failure of the engine ends the whole act. */
typedef int item_fn(struct txn *txn, struct lhi_act *act, size_t i, struct lhi_error *err);
int sq_each_item(struct txn *txn, struct lhi_act *act, item_fn *one,
                 int64_t (*id_of)(const struct lhi_act *, size_t));

/* The row of a job, to be read and reset; NULL, with err set, when there is none. */
sqlite3_stmt *sq_get_job(struct txn *txn, int64_t id, struct lhi_error *err);

/* Insert jobs; shared by an act and by an enqueue on the user's own connection. */
struct insert_context {
    struct conn *conn;
    int64_t now, wall;
    const lh_policies *policies;
    int64_t last_id; /* the highest ever given; 0: not asked yet */
};
int sq_insert_job(struct insert_context *ctx, const char *queue, const lh_new_job *job,
                  lh_enqueued *out, struct lhi_error *err);

/* ---- damaged_job.c: rows that do not match their checksums ---- */
enum damage { DAMAGED_NOT, DAMAGED_PAYLOAD, DAMAGED_NAMES, DAMAGED_ROW };
struct new_row {
    int64_t id, max_attempts, created_at, run_at, expires_at, lease_ms, backoff_ms, backoff_cap_ms;
    int priority;
    lh_state state;
};
int64_t sq_new_row_sum(const struct new_row *row); /* state_sum of a row of job_insert */
int64_t sq_name_sum(const char *queue, const char *kind, const char *key);
enum damage sq_job_damage(sqlite3_stmt *stmt,
                          const lh_job *job);     /* payload and names, of SELECT * */
enum damage sq_summed_damage(sqlite3_stmt *stmt); /* the same of check_payloads */
bool sq_names_damaged(sqlite3_stmt *stmt);        /* of check_names */
const char *sq_damage_words(enum damage damage);
/* Fail the job, which has not ended, so that nobody runs it. `*held`: done, and the caller counts it; else
 * its row cannot be changed, and the job is passed over. */
int sq_set_job_aside(struct txn *txn, int64_t id, int64_t token, enum damage damage, bool *held,
                     struct lhi_error *err);
/* The row cannot be read or changed: name the job, once, and have the next open repair the store. */
int sq_skip_job(struct txn *txn, int64_t id, struct lhi_error *err);
/* Did a statement over this job end with `rc` because the row of the job is damaged? Then `err` is
 * cleared, and the transaction may go on. */
bool sq_is_damage(struct txn *txn, int64_t id, int rc, struct lhi_error *err);

/* ---- row_sum.c: rows of small tables that do not match their checksums ---- */
enum { SUMMED_TABLES = 5 };
struct summed_table {
    const char *table;
    const char *what;
    enum lhi_sql rows; /* SELECT *, and row_sum is its last column */
    int names;         /* columns that name a row */
};
extern const struct summed_table sq_summed_tables[SUMMED_TABLES];
int sq_row_sum_register(struct conn *conn,
                        struct lhi_error *err); /* lh_sum() for this connection */
bool sq_row_sum_matches(sqlite3_stmt *stmt);    /* of SELECT * */
/* Call `fn` for every row that does not match, until it fails. */
typedef int unsound_fn(void *arg, const struct summed_table *table, sqlite3_stmt *row,
                       const char *name, struct lhi_error *err);
int sq_each_unsound(struct conn *conn, unsound_fn *fn, void *arg, struct lhi_error *err);
int sq_damaged_row(const char *what, const char *name, struct lhi_error *err); /* LH_ECORRUPT */

/* What is remembered of a request must not be damaged: it would answer with the jobs of others. */
int sq_check_request(struct txn *txn, const char *request, struct lhi_error *err);
/* A row of request_jobs must be of the same kind of act. */
int sq_check_same_act(sqlite3_stmt *stmt, const char *act, const char *request,
                      struct lhi_error *err);

/* One bounded round of what falls due; `*more` says that a batch was full. */
int sq_recover_leases(struct txn *txn, size_t limit, bool by_hand, struct lhi_run *run, bool *more,
                      struct lhi_error *err);
int sq_promote_due(struct txn *txn, size_t limit, int64_t *promoted, bool *more,
                   struct lhi_error *err);
int sq_expire_overdue(struct txn *txn, size_t limit, int64_t *expired, bool *more,
                      struct lhi_error *err);
int sq_run_due_schedules(struct txn *txn, size_t limit, int64_t *ticked, bool *more,
                         struct lhi_error *err);
int sq_read_schedules(struct conn *conn, struct lhi_act *act, struct lhi_error *err);
/* What a claim takes back before it claims. */
int sq_recover_on_claim(struct txn *txn, struct lhi_error *err);
/* The report of a run: made when the first thing is found … */
int sq_recovery_begin(struct txn *txn, struct lhi_run *run, struct lhi_error *err);
int sq_recovery_event(struct txn *txn, const struct lhi_run *run, struct event *event,
                      struct lhi_error *err);
int sq_recovery_count(struct txn *txn, struct lhi_run *run, struct lhi_error *err);

/* One step of a recovery: a job, a lease or a worker. */
struct recovery_step {
    int (*fn)(struct txn *txn, void *arg); /* writes, and counts in the run alone */
    void *arg;
    const char *what;   /* that it failed, in words: "job 7 cannot be recovered" */
    bool by_hand;       /* told even if it is known */
    struct event about; /* what the event of a failure names */
};
/* Take a step inside a savepoint. What the database refuses, by a constraint or a user's trigger, is
 * undone and told, and the rest of the recovery goes on; `*done` is false then. */
int sq_recovery_step(struct txn *txn, struct lhi_run *run, const struct recovery_step *step,
                     bool *done, struct lhi_error *err);
/* … and ended with what is to be told of the store. */
int sq_recovery_end_report(struct txn *txn, struct lhi_run *run, const struct lhi_health *health,
                           struct lhi_error *err);
int sq_recovery_end(struct txn *txn, struct lhi_run *run, const struct lhi_health *health,
                    struct lhi_error *err);
/* The named leases of a dead worker. */
int sq_free_leases_of_worker(struct txn *txn, const char *owner, const char *what, bool by_hand,
                             struct lhi_run *run, struct lhi_error *err);
int sq_clean_workers(struct txn *txn, struct lhi_run *run, struct lhi_error *err);
/* A revoked lease that is kept back: its token and deadline, 0 when there is none. */
int sq_quarantine_get(struct txn *txn, const char *queue, int64_t job, int64_t *token,
                      int64_t *until, struct lhi_error *err);
int sq_quarantine_put(struct txn *txn, const char *queue, int64_t job, int64_t token, int64_t until,
                      struct lhi_error *err);
/* Give a held job back by another hand; shared by release and by a worker's stop. */
int sq_release_by_operator(struct txn *txn, int64_t id, int64_t token, int64_t delay_ms, bool now,
                           const char *actor, struct lhi_error *err);
/* What a worker holds, handed to fn one by one. */
int sq_each_job_of_worker(struct txn *txn, const char *worker,
                          int (*fn)(struct txn *, int64_t id, int64_t token, void *arg,
                                    struct lhi_error *),
                          void *arg, struct lhi_error *err);

/* ---- the exclusive lease of a queue, inside other acts: it belongs to one job ---- */
int sq_exclusive_acquire(struct txn *txn, const char *queue, int64_t job, const char *worker,
                         int64_t until, bool *got, struct lhi_error *err);
int sq_exclusive_follow(struct txn *txn, const char *queue, int64_t job, int64_t until,
                        struct lhi_error *err);
int sq_exclusive_end(struct txn *txn, const char *queue, int64_t job, struct lhi_error *err);
/* The job is taken back by a recovery, and its queue's lease with it: counted and told like every
 * lease that a recovery frees. */
int sq_exclusive_recover(struct txn *txn, const lh_job *job, enum lhi_cause cause,
                         struct lhi_run *run, struct lhi_error *err);

/* ---- repair.c: the ladder, always on a copy ---- */

/* The file is damaged. Under the turnstile, alone, with no connection open on it: repair a copy
 * (REINDEX, VACUUM INTO, row by row), check it, put it in the file's place. health->findings receives
 * what was lost, what is partial, the recovery point, where the damaged file is kept, the advice to
 * make a backup. LH_ECORRUPT: nothing helped, and the file is as it was. */
int sq_repair_store(struct db *db, struct lhi_health *health, struct lhi_error *err);
/* Finish or undo what a repair or restore that was cut off has left; same conditions. */
int sq_repair_resume(struct db *db, struct lhi_error *err);

/* ---- replace_file.c ---- */

/* Put the whole, synced file `fresh` (in the same folder) in the store's place: the old log aside,
 * the old file kept as DB.`word`-TIME (its name comes back in `kept`), one rename, the folder synced,
 * the side file's marks set to the new one. Under the turnstile, no connection of ours open on it. */
int sq_replace_file(struct db *db, const char *fresh, const char *word, int64_t at, char kept[4300],
                    struct lhi_error *err);
/* DB.`word`-TIME, as names go here. */
void sq_aside_name(const struct db *db, const char *word, int64_t at, const char *suffix,
                   char out[4300]);

/* ---- backup.c ---- */
int sq_backup_store(struct db *db, struct lhi_act *act, struct lhi_error *err);

/* ---- move.c ---- */
int sq_read_move_part(struct conn *conn, struct lhi_act *act, struct lhi_error *err);
int sq_read_moved(struct conn *conn, struct lhi_act *act, struct lhi_error *err);
/* Why only a move may act on it; "": anybody may. */
int sq_move_closed(const struct db *db, struct conn *conn, char *out, size_t len,
                   struct lhi_error *err);

/* ---- degraded.c ---- */

/* LH_EREADONLY if this process cannot write the store: asked before anything is made. */
int sq_check_writable(const struct db *db, struct lhi_error *err);
/* Opening conn for reading has failed, err says how. Where the store cannot be written it is opened
 * all the same, in place or from a copy that is gone with the connection; elsewhere the failure
 * stands. db->degraded says what was done. */
int sq_degraded_open(struct db *db, struct conn *conn, struct lhi_error *err);
void sq_degraded_note(
    struct db *db); /* it has not failed: still, say if the store cannot be written */
bool sq_degraded_outdated(const struct db *db); /* others have written since: open it anew */

/* ---- reserve.c: room for the day the disk is full; all under the turnstile ---- */
void sq_reserve_keep(struct db *db);  /* set aside, or again when there is plenty; best effort */
bool sq_reserve_spend(struct db *db); /* give a slice of it up: true when that made room */
bool sq_reserve_spent(const struct db *db);
void sq_reserve_before_open(struct db *db); /* before the database is opened for writing */
/* Before a transaction: where room is short, fold the log if it has not `wish` bytes to go; and see
 * that it has `need`, from the reserve if that must be (new jobs are no need). */
void sq_reserve_ready(struct db *db, int64_t wish, int64_t need);
/* May so many bytes of new jobs come in? LH_ENOSPC if not. */
int sq_reserve_admit(struct db *db, int64_t bytes, struct lhi_error *err);

/* ---- wal.c ---- */
/* How many frames of the log are whole, by its own checksums; call it under the turnstile. */
int sq_wal_valid_frames(const char *db_path, int64_t *frames, struct lhi_error *err);

/* ---- recovery.c ---- */

/* What is known of the worker that was asked for last: batches ask for the same again and again. */
struct holder {
    struct lhi_arena *arena; /* what its list lives in */
    char worker[160];
    char what[96];   /* "": not known to be dead */
    bool tells;      /* it says what it starts … */
    lh_ref *started; /* … and this is it, by job */
    size_t n_started;
};
int sq_holder_look_up(struct conn *conn, const char *worker, struct holder *holder,
                      struct lhi_error *err);
/* What a recovery needs of a row. */
bool sq_recovery_row(sqlite3_stmt *stmt, struct lhi_arena *arena, lh_job *job);
/* Had its worker begun the job? Who does not tell is taken to have. */
bool sq_had_started(const struct holder *holder, const lh_job *job);
int sq_read_suspects(struct conn *conn, enum lhi_sql which, int64_t now, struct lhi_suspects *out,
                     struct lhi_error *err);
/* Up to `room` ids that the statement finds for (now, queue). */
int sq_read_ids(struct conn *conn, enum lhi_sql which, int64_t now, const char *queue, int64_t *ids,
                size_t room, size_t *n, struct lhi_error *err);
int sq_read_stale(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err);

/* ---- output.c ---- */
int sq_read_outputs(struct conn *conn, struct lhi_act *act, struct lhi_error *err);

/* ---- report.c ---- */
int sq_read_report(struct conn *conn, struct lhi_act *act, struct lhi_error *err);
int sq_read_reports(struct conn *conn, struct lhi_act *act, struct lhi_error *err);
int sq_read_totals(struct conn *conn, lh_store_info *info, struct lhi_error *err);
void *sq_grow(void *array, size_t n, size_t size); /* read.c: room for one more */

/* ---- death_watch.c: the processes of workers, watched ---- */
void sq_death_watch_init(struct db *db);
void sq_death_watch_start(struct db *db); /* somebody waits: be sure that everybody is watched */
void sq_death_watch_clear(struct db *db);

/* ---- health.c ---- */
void sq_health_before_open(struct db *db); /* … the database is opened: was it left cleanly? */
/* Integrity and, alone, repair; under the turnstile. The connection may be another afterwards. */
int sq_health_check(struct db *db, struct lhi_error *err);
/* Opening failed with err: repair it, where that is damage and a repair is due. */
int sq_health_repair(struct db *db, struct lhi_error *err);
/* The same where others have the store open: without the turnstile, and no repair. */
int sq_health_check_shared(struct db *db, struct lhi_error *err);
int sq_health_after_open(struct db *db,
                         struct lhi_error *err); /* the log folded into the database */

/* ---- read.c, check.c, foreign_writers.c ---- */
int sq_db_read(void *self, struct lhi_act *act, struct lhi_error *err);
int sq_check_store(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err);
/* What the engine says of its file: one finding "integrity" of level "error" for each thing wrong. */
int sq_check_file(struct conn *conn, const lh_flag *cancel, lh_findings *out,
                  struct lhi_error *err);
/* Our tables are as they were made, and the store has a row for itself: else findings as above. */
int sq_check_tables(struct conn *conn, lh_findings *out, struct lhi_error *err);
/* False: out of memory. */
bool sq_finding_add(lh_findings *out, const char *level, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void sq_findings_clear(lh_findings *findings);
void sq_foreign_writers_watch(struct db *db);
void sq_foreign_writers_unwatch(struct db *db);

#endif
