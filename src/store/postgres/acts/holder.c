/* The acts of a holder: heartbeat, complete, fail, release. Each is one call; the rules are in
 * sql/postgres/migrations (40_holder.sql, 41_outcome.sql). */
#include "store/postgres/pg.h"

#include "base/hook.h"

#include <stdlib.h>

/* ---- shared by the acts ---- */

/* The ids of the jobs in an act, for the read of the jobs afterwards; NULL: out of memory. */
static int64_t *ids_of(struct txn *txn, const struct lhi_act *act,
                       int64_t (*id_of)(const struct lhi_act *, size_t))
{
    int64_t *ids = lhi_arena_alloc(&txn->arena, act->n * sizeof *ids);

    for (size_t i = 0; i < act->n && ids != NULL; i++)
        ids[i] = id_of(act, i);
    return ids;
}

int pg_call_list(struct txn *txn, struct lhi_act *act, enum lhi_postgres_call which,
                 struct args *args, int64_t (*id_of)(const struct lhi_act *, size_t))
{
    struct rows rows = {0};
    int rc = pg_call(txn, which, args, &rows, &act->err);

    if (rc == LH_OK)
        rc = pg_outcomes(act, &rows);
    pg_rows_free(&rows);
    if (rc < 0 || act->after == NULL || id_of == NULL)
        return rc;
    int64_t *ids = ids_of(txn, act, id_of);
    return ids ? pg_read_after(txn, act, ids, act->n) : lhi_no_memory(&act->err);
}

/* ---- heartbeat ---- */

static bool any_lease(const struct lhi_act *act)
{
    for (size_t i = 0; i < act->n; i++)
        if (act->beat.beats[i].lease_ms != 0)
            return true;
    return false;
}

static bool any_word(const struct lhi_act *act)
{
    for (size_t i = 0; i < act->n; i++)
        if (act->beat.beats[i].has_progress || act->beat.beats[i].stage != NULL ||
            act->beat.beats[i].checkpoint != NULL)
            return true;
    return false;
}

/* Arrays without values are sent empty: most heartbeats carry nothing. */
void pg_heartbeat_args(struct args *args, const struct lhi_act *act)
{
    const lh_beat *beats = act->beat.beats;
    size_t leases = any_lease(act) ? act->n : 0, words = any_word(act) ? act->n : 0;

    pg_arg_array(args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(args, beats[i].job);
    pg_arg_array(args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(args, beats[i].token);
    pg_arg_array(args, OID_INT8, leases);
    for (size_t i = 0; i < leases; i++)
        pg_put_opt(args, beats[i].lease_ms);
    pg_arg_array(args, OID_INT8, words);
    for (size_t i = 0; i < words; i++)
        if (beats[i].has_progress)
            pg_put_int(args, beats[i].progress);
        else
            pg_put_null(args);
    pg_arg_array(args, OID_TEXT, words);
    for (size_t i = 0; i < words; i++)
        pg_put_text(args, beats[i].stage);
    pg_arg_array(args, OID_TEXT, words);
    for (size_t i = 0; i < words; i++)
        pg_put_text(args, beats[i].checkpoint);
}

static int64_t beat_id(const struct lhi_act *act, size_t i)
{
    return act->beat.beats[i].job;
}

int pg_act_heartbeat(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_heartbeat_args(&args, act);
    int rc = pg_call_list(txn, act, LHI_POSTGRES_JOB_HEARTBEAT, &args, beat_id);
    LHI_POINT("job_heartbeat:inside");
    return rc;
}

/* ---- complete ---- */

/* Text goes into the text column, so that people can read it; other bytes go into the bytes
 * column. */
static bool has_result(const lh_done *done, bool text)
{
    return done->result != NULL && lh_text_ok(done->result, done->result_len) == text;
}

static bool any_result(const struct lhi_act *act, bool text)
{
    for (size_t i = 0; i < act->n; i++)
        if (has_result(&act->done[i], text))
            return true;
    return false;
}

static void put_results(struct args *args, const struct lhi_act *act, bool text)
{
    size_t n = any_result(act, text) ? act->n : 0;

    pg_arg_array(args, text ? OID_TEXT : OID_BYTEA, n);
    for (size_t i = 0; i < n; i++)
        if (has_result(&act->done[i], text))
            pg_put_bytes(args, act->done[i].result, act->done[i].result_len);
        else
            pg_put_null(args);
}

static int64_t done_id(const struct lhi_act *act, size_t i)
{
    return act->done[i].job;
}

bool pg_completes_one(const struct lhi_act *act)
{
    return act->verb == LHI_COMPLETE && act->n == 1 && act->after == NULL &&
           !any_result(act, false);
}

void pg_arg_done(struct args *args, const lh_done *done)
{
    pg_arg_int(args, done->job);
    pg_arg_int(args, done->token);
    pg_arg_text_len(args, done->result, done->result != NULL ? done->result_len : 0);
}

void pg_read_refusal(const struct rows *rows, int column, struct lhi_act *act)
{
    char *message;

    act->status[0] = LH_OK;
    if (rows->n == 0 || pg_row_null(rows, 0, column))
        return;
    act->status[0] = (int)strtol(pg_row_text(rows, 0, column), &message, 10);
    (void)lhi_fail(&act->err, act->status[0], "%s", message + 1);
}

/* A single completion, the common case, which costs less. */
static int complete_one(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};
    struct rows rows = {0};

    pg_arg_done(&args, &act->done[0]);
    int rc = pg_call(txn, LHI_POSTGRES_JOB_COMPLETE_ONE, &args, &rows, &act->err);
    if (rc == LH_OK)
        pg_read_refusal(&rows, 0, act);
    pg_rows_free(&rows);
    return rc;
}

static int complete_many(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(&args, act->done[i].job);
    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(&args, act->done[i].token);
    put_results(&args, act, true);
    put_results(&args, act, false);
    return pg_call_list(txn, act, LHI_POSTGRES_JOB_COMPLETE, &args, done_id);
}

int pg_act_complete(struct txn *txn, struct lhi_act *act)
{
    int rc = pg_completes_one(act) ? complete_one(txn, act) : complete_many(txn, act);
    LHI_POINT("job_complete:inside");
    return rc;
}

/* ---- fail ---- */

static int64_t failure_id(const struct lhi_act *act, size_t i)
{
    return act->failures[i].job;
}

int pg_act_fail(struct txn *txn, struct lhi_act *act)
{
    const lh_failure *failures = act->failures;
    struct args args = {0};

    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(&args, failures[i].job);
    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(&args, failures[i].token);
    pg_arg_array(&args, OID_TEXT, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_text(&args, failures[i].error);
    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(&args, failures[i].retry_in_ms);
    pg_arg_array(&args, OID_BOOL, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_bool(&args, failures[i].permanent);
    int rc = pg_call_list(txn, act, LHI_POSTGRES_JOB_FAIL, &args, failure_id);
    LHI_POINT("job_fail:inside");
    return rc;
}

/* ---- release ---- */

static int64_t ref_id(const struct lhi_act *act, size_t i)
{
    return act->release.refs[i].job;
}

int pg_act_release(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(&args, act->release.refs[i].job);
    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(&args, act->release.refs[i].token);
    pg_arg_int(&args, act->release.delay_ms);
    int rc = pg_call_list(txn, act, LHI_POSTGRES_JOB_RELEASE, &args, ref_id);
    LHI_POINT("job_release:inside");
    return rc;
}

static int release_all(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};
    struct rows rows = {0};

    pg_arg_text(&args, act->release.worker);
    pg_arg_int(&args, act->release.delay_ms);
    pg_arg_bool(&args, act->release.now);
    int rc = pg_call(txn, LHI_POSTGRES_JOB_RELEASE_WORKER_ALL, &args, &rows, &act->err);
    if (rc == LH_OK)
        act->release.released = pg_row_int(&rows, 0, 0);
    pg_rows_free(&rows);
    return rc;
}

int pg_act_release_worker(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    if (act->release.ids == NULL)
        return release_all(txn, act);
    pg_arg_text(&args, act->release.worker);
    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(&args, act->release.ids[i]);
    pg_arg_int(&args, act->release.delay_ms);
    pg_arg_bool(&args, act->release.now);
    int rc = pg_call_list(txn, act, LHI_POSTGRES_JOB_RELEASE_WORKER, &args, NULL);
    act->release.released = 0;
    for (size_t i = 0; i < act->n && rc >= 0; i++)
        act->release.released += act->status[i] == LH_OK;
    return rc;
}
