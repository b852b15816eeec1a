/*
 * pg.h: the parts of the PostgreSQL store, and what they share.
 *
 *   open.c       opens and closes the store; the table of its operations
 *   migrate.c    creates the schema or brings it up to date
 *   conn.c       one connection to one host
 *   hosts.c      chooses one of several hosts
 *   pool.c       lends a bounded number of connections, each for one transaction
 *   call.c       sends one call, waits until its deadline, classifies failures
 *   args.c       parameters of a call
 *   rows.c       results of a call, and rows into structs
 *   notice.c     notices and warnings of the server
 *   perform.c    acts in one transaction; repeats them after a lost connection
 *   wake.c       subscriptions, wake-ups, waits
 *   listener.c   the thread that receives notifications
 *   leader.c     the maintenance leader and its followers
 *   acts/        one function per act: parameters in, outcome out
 *   reads/       what only reads
 *   move.c       the store as source or target of a move
 *
 * The acts themselves are functions in the database (sql/postgres/migrations): nothing is decided
 * here. Every function that more than one file uses begins with pg_, because the SQLite store is in the
 * same library.
 */
#ifndef LHI_PG_H
#define LHI_PG_H

#include "store/open.h"

#include "sql_postgres.h"

#include <libpq-fe.h>

/* ---- args.c: parameters ---- */

enum {
    MOST_ARGS = 32,
    MOST_MIB =
        1000 /* all arrays of a call: the server ends a session that sends a message of 1 GiB */
};

/* Types of the parameters. These oids never change. */
enum {
    OID_BOOL = 16,
    OID_BYTEA = 17,
    OID_INT8 = 20,
    OID_TEXT = 25,
    OID_TIMESTAMPTZ = 1184,
    OID_BOOL_ARRAY = 1000,
    OID_BYTEA_ARRAY = 1001,
    OID_TEXT_ARRAY = 1009,
    OID_INT8_ARRAY = 1016,
    OID_TIMESTAMPTZ_ARRAY = 1185,
};

/* The parameters of a call. Numbers, times, bytes and arrays are sent in binary, text as it is.
 * Arrays live until pg_args_clear(). Text and bytes of single parameters are not copied, so the
 * caller's memory must live as long. If memory runs out, the call fails later, not the function
 * that adds a parameter. */
struct args {
    int n;
    Oid type[MOST_ARGS];
    const char *value[MOST_ARGS];
    int length[MOST_ARGS], format[MOST_ARGS];
    char number[MOST_ARGS][8];
    struct lhi_arena arena;
    struct {
        char *bytes;
        size_t used, room;
        Oid element;
        size_t n, left;
        bool nulls;
    } array;      /* the array being built */
    size_t total; /* bytes of all arrays */
    bool no_memory, too_big;
};

void pg_args_clear(struct args *args);

void pg_arg_text(struct args *args, const char *text);    /* NULL: NULL */
void pg_arg_int(struct args *args, int64_t value);        /* bigint */
void pg_arg_opt(struct args *args, int64_t value);        /* bigint; 0: NULL */
void pg_arg_ref(struct args *args, const int64_t *value); /* bigint; NULL: NULL */
void pg_arg_bool(struct args *args, bool value);
void pg_arg_time(struct args *args, int64_t ms);                       /* timestamptz; 0: NULL */
void pg_arg_bytes(struct args *args, const void *bytes, size_t len);   /* NULL: NULL */
void pg_arg_text_len(struct args *args, const void *text, size_t len); /* text; NULL: NULL */

/* Begin an array of n elements of this type (OID_INT8, OID_TEXT, ...); then call pg_put_...() n
 * times. */
void pg_arg_array(struct args *args, Oid element, size_t n);
void pg_arg_no_array(struct args *args, Oid element);                     /* NULL: not given */
void pg_arg_names(struct args *args, const char *const *names, size_t n); /* array of text */
void pg_put_int(struct args *args, int64_t value);
void pg_put_opt(struct args *args, int64_t value); /* 0: NULL */
void pg_put_text(struct args *args, const char *text);
void pg_put_bytes(struct args *args, const void *bytes, size_t len); /* NULL: NULL; also for text */
void pg_put_bool(struct args *args, bool value);
void pg_put_time(struct args *args, int64_t ms); /* 0: NULL */
void pg_put_null(struct args *args);

/* ---- rows.c: results, in binary ---- */

struct rows {
    PGresult *result;
    int n;
};

void pg_rows_free(struct rows *rows);
bool pg_row_null(const struct rows *rows, int row, int column);
int64_t pg_row_int(const struct rows *rows, int row, int column);  /* of any width; NULL: 0 */
bool pg_row_bool(const struct rows *rows, int row, int column);    /* NULL: false */
int64_t pg_row_time(const struct rows *rows, int row, int column); /* ms; NULL, infinite: 0 */
const char *pg_row_text(const struct rows *rows, int row,
                        int column); /* NULL: NULL; valid as long as rows */
const void *pg_row_bytes(const struct rows *rows, int row, int column, size_t *len);
/* A copy in the arena; *ok becomes false when memory runs out. NULL: NULL. */
char *pg_row_copy(const struct rows *rows, int row, int column, struct lhi_arena *arena, bool *ok);
lh_state pg_row_state(const struct rows *rows, int row, int column); /* NULL: 0 */

/* The columns of leasehold.job, in the order of its table. */
enum job_column {
    JOB_ID,
    JOB_TOKEN,
    JOB_RUN_AT,
    JOB_CREATED_AT,
    JOB_STATE_CHANGED_AT,
    JOB_LEASE_UNTIL,
    JOB_STARTED_AT,
    JOB_FINISHED_AT,
    JOB_LAST_HEARTBEAT_AT,
    JOB_EXPIRES_AT,
    JOB_HELD_MS,
    JOB_LEASE_MS,
    JOB_BACKOFF_MS,
    JOB_BACKOFF_CAP_MS,
    JOB_PAYLOAD_SUM,
    JOB_NONCE,
    JOB_PRIORITY,
    JOB_ATTEMPT,
    JOB_MAX_ATTEMPTS,
    JOB_RECOVERIES,
    JOB_PROGRESS,
    JOB_AGAIN,
    JOB_PLAIN,
    JOB_STATE,
    JOB_QUEUE,
    JOB_KIND,
    JOB_WORKER,
    JOB_KEY,
    JOB_STAGE,
    JOB_LAST_ERROR,
    JOB_CHECKPOINT,
    JOB_PAYLOAD,
    JOB_PAYLOAD_BYTES,
    JOB_RESULT,
    JOB_RESULT_BYTES,
    JOB_COLUMNS
};

/* Fill `job` from a row that begins with these columns. False: out of memory. `now` is the time
 * of the store. */
bool pg_job_from_row(const struct rows *rows, int row, int64_t now, struct lhi_arena *arena,
                     lh_job *job);
/* Add one job to the end of the list; false: out of memory. */
bool pg_jobs_add(lh_jobs *jobs, size_t *room, lh_job **out);

/* Fill `lease` from the columns of leasehold.lease_state, which begin at `column`. False: out of
 * memory. */
bool pg_lease_from_row(const struct rows *rows, int row, int column, struct lhi_arena *arena,
                       lh_lease *lease);
/* Allocate a zeroed array with one element per row. `array` is the address of the pointer in a
 * result struct (&out->job). False: out of memory. */
bool pg_list_room(void *array, const struct rows *rows, size_t size);

/* Up to which event id no lower event can still appear (reads/events.c). */
struct event_watermark {
    int64_t id;      /* all events up to it are visible or will never exist */
    int64_t highest; /* highest id seen */
    size_t n;
    struct {
        /* No id below `id` can appear once all transactions up to `last` have ended. */
        int64_t id, last;
    } seen[16];
};

/* The server's clock compared with this machine's, at the last check (reads/recovery.c). */
struct clock_sample {
    bool taken;        /* a check was made */
    int64_t boot_ms;   /* this machine's clock when the answer arrived */
    int64_t server_ms; /* the server's time in that answer */
    int64_t trip_ms;   /* duration of the round trip */
    int64_t jumped_ms; /* sum of the shifts of deadlines up to then */
};

/* ---- connections ---- */

struct conn;
struct pg;

/* Why a call failed, and what happened to its transaction. */
enum trouble {
    TROUBLE_NONE,    /* the server refused; nothing of the transaction remains */
    TROUBLE_AGAIN,   /* the same, but another try may succeed (a deadlock, an outdated plan) */
    TROUBLE_LOST,    /* the connection is lost, and nothing of the transaction remains */
    TROUBLE_UNKNOWN, /* the connection is lost, and the transaction may have committed */
};

/* A transaction in which acts are performed, on a connection from the pool. */
struct txn {
    struct pg *pg;
    struct conn *conn;
    struct lhi_arena arena; /* memory that lives as long as the transaction */
    /* The same for all tries of the acts in this transaction. An act without another identity
     * writes the nonce with its data; if `repeated`, it first searches for the nonce, because an
     * earlier try may have committed. */
    int64_t nonce; /* positive */
    int64_t after; /* a job that existed before the first try */
    bool repeated;
    /* The rest is for call.c and perform.c. */
    int64_t deadline;
    bool wrapped, begun; /* between BEGIN and COMMIT; else each call is a transaction of its own */
    bool writes;
    int calls; /* number of calls that were answered */
    enum trouble trouble;
};

/* Call a statement of sql/postgres and wait for its result until the deadline of the
 * transaction. Returns LH_OK or a failure; `rows` may be NULL. If leasehold.refuse() refuses the
 * call (LH008), the function returns that status and message. args may be NULL; it is cleared in
 * any case. */
int pg_call(struct txn *txn, enum lhi_postgres_call which, struct args *args, struct rows *rows,
            struct lhi_error *err);
/* Call another statement after the act's first one. If acts are transactions of their own (not
 * `wrapped`), this call is one, too: what was committed before stays, whatever happens to it. */
int pg_call_next(struct txn *txn, enum lhi_postgres_call which, struct args *args,
                 struct rows *rows, struct lhi_error *err);
/* Call a statement that is given as text. */
int pg_call_text(struct txn *txn, const char *sql, struct args *args, struct rows *rows,
                 struct lhi_error *err);

/* For acts on lists: store rows of (n, status, message), as in leasehold.outcome, in
 * act->status, and the first refusal in act->err. */
int pg_outcomes(struct lhi_act *act, const struct rows *rows);
/* Fill act->after, if the caller wants it, with the jobs of these ids. */
int pg_read_after(struct txn *txn, struct lhi_act *act, const int64_t *ids, size_t n);
/* For acts on lists: make the call, store the outcome of each item, read the jobs afterwards
 * (`id_of` NULL: there are none to read). In acts/holder.c, like the next function. */
int pg_call_list(struct txn *txn, struct lhi_act *act, enum lhi_postgres_call which,
                 struct args *args, int64_t (*id_of)(const struct lhi_act *, size_t));
/* Add act->beat as the arrays of leasehold.heartbeat_many(). */
void pg_heartbeat_args(struct args *args, const struct lhi_act *act);

/* The failure for args->too_big. */
int pg_fail_too_big(struct lhi_error *err);
/* Remember that a job with this id exists: later jobs have higher ids. */
void pg_saw_job(struct pg *pg, int64_t id);
/* The request id under which an enqueue can be repeated if its answer was lost. */
void pg_request_from_nonce(const struct txn *txn, char *out, size_t len);
/* Is this error from a pooler? The server always names the source function of an error, a pooler
 * does not. */
bool pg_from_pooler(const PGresult *refusal);
/* The status and message of a refusal on the user's own connection. */
int pg_refusal_status(const PGresult *refusal, const char *database, struct lhi_error *err);

/* The server's time in ms, as far as the client knows it: exact to the length of a round trip. */
int64_t pg_now(struct pg *pg);
const lh_open_opts *pg_opts(const struct pg *pg);
const char *pg_name(const struct pg *pg); /* for messages: without the password */
const struct lhi_log *pg_log(const struct pg *pg);

/* ---- acts; each is one call unless its comment says otherwise ---- */

typedef int act_fn(struct txn *txn, struct lhi_act *act);

act_fn pg_act_enqueue, pg_act_claim;
act_fn pg_act_heartbeat, pg_act_complete, pg_act_fail, pg_act_release, pg_act_release_worker,
    pg_act_output;
act_fn pg_act_cancel, pg_act_retry, pg_act_delete, pg_act_reschedule;
act_fn pg_act_queue_pause, pg_act_queue_purge, pg_act_queue_delete, pg_act_policy_set,
    pg_act_scope_set;
act_fn pg_act_schedule_set, pg_act_schedule_remove;
act_fn pg_act_lease;
act_fn pg_act_worker_register, pg_act_worker_heartbeat, pg_act_worker_stop, pg_act_worker_started;
act_fn pg_act_worker_sessions, pg_act_worker_degraded;
act_fn pg_act_recover, pg_act_maintain, pg_act_prune, pg_act_recount;
act_fn pg_act_move;

/* Complete one job and claim the next with one call: can these two acts be done like that, and
 * do them. */
bool pg_is_complete_claim(const struct lhi_act *acts, size_t n);
int pg_act_complete_claim(struct txn *txn, struct lhi_act *acts);

/* Completion of one job with a text result: can the act be done like that, its parameters, and
 * the server's refusal. */
bool pg_completes_one(const struct lhi_act *act);
void pg_arg_done(struct args *args, const lh_done *done);
void pg_read_refusal(const struct rows *rows, int column, struct lhi_act *act);

/* Enqueue the jobs of schedules that are due, in this transaction; several calls. `*more`:
 * others are due. */
int pg_run_due_schedules(struct txn *txn, size_t limit, int64_t *enqueued, bool *more,
                         struct lhi_error *err);

/* ---- reads ---- */

act_fn pg_read_job, pg_read_jobs, pg_read_queues, pg_read_policies, pg_read_schedules,
    pg_read_leases, pg_read_workers;
act_fn pg_read_events, pg_read_outputs, pg_read_judge, pg_read_stats, pg_read_stale, pg_read_report,
    pg_read_reports, pg_read_poll, pg_read_retries;
act_fn pg_read_check, pg_read_integrity, pg_read_drop_sql;
act_fn pg_read_standing, pg_read_moved;

#endif
