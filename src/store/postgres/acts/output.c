/* The output of runs: one call to store it, one to read it. The rules are in
 * sql/postgres/migrations (43_output.sql). */
#include "store/postgres/pg.h"

#include "base/hook.h"

/* ---- writing ---- */

static const lh_stream *stream_of(const struct lhi_written *run, bool err)
{
    static const lh_stream nothing;

    if (run->output == NULL)
        return &nothing;
    return err ? &run->output->err : &run->output->out;
}

static void put_part(struct args *args, const void *bytes, size_t len)
{
    if (len > 0)
        pg_put_bytes(args, bytes, len);
    else
        pg_put_null(args);
}

static void arg_streams(struct args *args, const struct lhi_act *act, bool err)
{
    pg_arg_array(args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(args, stream_of(&act->outputs[i], err)->bytes);
    pg_arg_array(args, OID_BYTEA, act->n);
    for (size_t i = 0; i < act->n; i++)
        put_part(args, stream_of(&act->outputs[i], err)->head,
                 stream_of(&act->outputs[i], err)->head_len);
    pg_arg_array(args, OID_BYTEA, act->n);
    for (size_t i = 0; i < act->n; i++)
        put_part(args, stream_of(&act->outputs[i], err)->tail,
                 stream_of(&act->outputs[i], err)->tail_len);
}

int pg_act_output(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(&args, act->outputs[i].job);
    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_int(&args, act->outputs[i].token);
    pg_arg_array(&args, OID_INT8, act->n);
    for (size_t i = 0; i < act->n; i++)
        pg_put_opt(&args, act->outputs[i].result_bytes);
    arg_streams(&args, act, false);
    arg_streams(&args, act, true);
    int rc = pg_call_list(txn, act, LHI_POSTGRES_OUTPUT_PUT, &args, NULL);
    LHI_POINT("job_output:inside");
    return rc;
}

/* ---- reading ---- */

static bool stream_from_row(const struct rows *rows, int row, int column, struct lhi_arena *arena,
                            lh_stream *out)
{
    bool ok = true;

    out->bytes = pg_row_int(rows, row, column);
    if (!pg_row_null(rows, row, column + 1)) {
        const void *raw = pg_row_bytes(rows, row, column + 1, &out->head_len);
        ok = (out->head = lhi_arena_copy(arena, raw, out->head_len)) != NULL;
    }
    if (ok && !pg_row_null(rows, row, column + 2)) {
        const void *raw = pg_row_bytes(rows, row, column + 2, &out->tail_len);
        ok = (out->tail = lhi_arena_copy(arena, raw, out->tail_len)) != NULL;
    }
    return ok;
}

int pg_read_outputs(struct txn *txn, struct lhi_act *act)
{
    enum { TOKEN, ATTEMPT, AT, RESULT_BYTES, STDOUT, STDERR = STDOUT + 3 };
    const lh_output_filter *filter = act->output_list.filter;
    lh_outputs *out = act->output_list.out;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    struct args args = {0};
    struct rows rows;

    pg_arg_int(&args, filter->job);
    pg_arg_int(&args, filter->attempt);
    pg_arg_time(&args, filter->since);
    int rc = pg_call(txn, LHI_POSTGRES_OUTPUT_LIST, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    bool ok =
        arena != NULL &&
        (rows.n == 0 || (out->output = lhi_calloc((size_t)rows.n, sizeof *out->output)) != NULL);
    for (int row = 0; row < rows.n && ok; row++) {
        lh_output *one = &out->output[out->n++];
        one->job = filter->job;
        one->token = pg_row_int(&rows, row, TOKEN);
        one->attempt = pg_row_int(&rows, row, ATTEMPT);
        one->at = pg_row_time(&rows, row, AT);
        one->result_bytes = pg_row_int(&rows, row, RESULT_BYTES);
        ok = stream_from_row(&rows, row, STDOUT, arena, &one->out) &&
             stream_from_row(&rows, row, STDERR, arena, &one->err);
    }
    pg_rows_free(&rows);
    return ok ? LH_OK : lhi_no_memory(&act->err);
}
