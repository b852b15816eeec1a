/* Output of runs, one row per run. The token guards each write: a run writes under the job's
 * current token, or to the row that it has started. */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/rows.h"

#include "base/hook.h"

/* ---- writing ---- */

/* What is known about a run before more output is stored. */
struct run_row {
    int64_t most; /* bytes per stream, by the policy */
    int64_t attempt;
    bool has_row; /* some output was stored before */
};

/* The run may not write. */
static int read_run(struct txn *txn, const struct lhi_written *run, struct run_row *out,
                    struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_OUTPUT_OF, err, "ii", run->token, run->job);
    int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;

    if (rc < 0)
        return rc;
    if (rc == LH_EMPTY)
        return lhi_fail(err, LH_ENOTFOUND, "there is no job %lld", (long long)run->job);
    const char *queue = sq_text_or_empty(stmt, 0);
    const char *kind = (const char *)sqlite3_column_text(stmt, 1);
    out->attempt = sqlite3_column_int64(stmt, 2);
    bool may = sqlite3_column_int(stmt, 3) != 0;
    out->has_row = sqlite3_column_int(stmt, 4) != 0;
    out->most = sq_txn_policy(txn, queue, kind)->max_output;
    sq_reset(stmt);
    if (!may)
        return lhi_fail(err, LH_ELOST,
                        "output of job %lld is not kept: token %lld is not its token any more",
                        (long long)run->job, (long long)run->token);
    return LH_OK;
}

static lh_stream kept_of(const lh_stream *stream, int64_t most, bool sizes_only)
{
    lh_stream kept = {0};

    if (most > 0) {
        kept = lhi_stream_cut(stream, most);
        if (sizes_only)
            kept = (lh_stream){.bytes = kept.bytes};
    }
    return kept;
}

static int put_one(struct txn *txn, struct lhi_act *act, size_t i, struct lhi_error *err)
{
    static const lh_output nothing;
    const struct lhi_written *run = &act->outputs[i];
    const lh_output *output = run->output ? run->output : &nothing;
    struct run_row row = {0};
    int rc = read_run(txn, run, &row, err);

    if (rc < 0)
        return rc;
    lh_stream out = kept_of(&output->out, row.most, act->sizes_only);
    lh_stream errs = kept_of(&output->err, row.most, act->sizes_only);
    /* On a full disk, stored output is worth more than new sizes. But a result that was cut must
     * say so. */
    if (act->sizes_only && row.has_row && run->result_bytes == 0)
        return LH_OK;
    if (out.bytes == 0 && errs.bytes == 0 && run->result_bytes == 0)
        return LH_OK;
    rc =
        sq_run(txn->conn, LHI_SQL_OUTPUT_PUT, err, "iiiiIiBBiBB", run->job, run->token, row.attempt,
               txn->now, run->result_bytes, out.bytes, out.head, out.head_len, out.tail,
               out.tail_len, errs.bytes, errs.head, errs.head_len, errs.tail, errs.tail_len);
    if (rc >= 0 && !row.has_row)
        rc = sq_run(txn->conn, LHI_SQL_OUTPUT_TRIM, err, "ii", run->job, (int64_t)LHI_OUTPUT_RUNS);
    if (rc < 0)
        return rc;
    txn->changed = true;
    return LH_OK;
}

static int64_t run_id(const struct lhi_act *act, size_t i)
{
    return act->outputs[i].job;
}

int sq_act_output(struct txn *txn, struct lhi_act *act)
{
    int rc = sq_each_item(txn, act, put_one, run_id);
    LHI_POINT("job_output:inside");
    return rc;
}

/* ---- reading ---- */

static const void *copy_of(sqlite3_stmt *stmt, int column, struct lhi_arena *arena, size_t *len,
                           bool *ok)
{
    const void *raw = sq_column_raw(stmt, column, len);
    const void *copy = *len > 0 ? lhi_arena_copy(arena, raw, *len) : NULL;

    *ok = *ok && (copy != NULL || *len == 0);
    return copy;
}

static bool stream_from_row(sqlite3_stmt *stmt, int column, struct lhi_arena *arena, lh_stream *out)
{
    bool ok = true;

    out->bytes = sqlite3_column_int64(stmt, column);
    out->head = copy_of(stmt, column + 1, arena, &out->head_len, &ok);
    out->tail = copy_of(stmt, column + 2, arena, &out->tail_len, &ok);
    return ok;
}

int sq_read_outputs(struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    const lh_output_filter *filter = act->output_list.filter;
    lh_outputs *out = act->output_list.out;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    int rc;

    sqlite3_stmt *stmt =
        sq_stmt(conn, LHI_SQL_OUTPUT_LIST, err, "iii", filter->job, filter->attempt, filter->since);
    if (stmt == NULL)
        return err->status;
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        lh_output *grown = arena ? lhi_realloc(out->output, (out->n + 1) * sizeof *grown) : NULL;
        if (grown == NULL)
            return lhi_no_memory(err);
        out->output = grown;
        lh_output *one = &grown[out->n++];
        *one = (lh_output){.job = filter->job,
                           .token = sqlite3_column_int64(stmt, 0),
                           .attempt = sqlite3_column_int64(stmt, 1),
                           .at = sqlite3_column_int64(stmt, 2),
                           .result_bytes = sqlite3_column_int64(stmt, 3)};
        if (!stream_from_row(stmt, 4, arena, &one->out) ||
            !stream_from_row(stmt, 7, arena, &one->err))
            return lhi_no_memory(err);
    }
    return rc < 0 ? rc : LH_OK;
}
