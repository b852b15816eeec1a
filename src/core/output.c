/*
 * output.c: what runs of jobs wrote, as the public calls take and return it.
 *
 * The store keeps one row a run. Here is decided what is allowed, and what is left of a stream when it is
 * cut to its limit.
 */
#include "core/core.h"

/* ---- cutting ---- */

/* How many bytes at the end are the beginning of a character whose rest is missing? */
static size_t half_character(const unsigned char *bytes, size_t len)
{
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        unsigned char c = bytes[len - back];
        if (c < 0x80 || c >= 0xf8) /* no part of a longer character */
            return 0;
        if (c >= 0xc0) {
            size_t whole = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
            return whole > back ? back : 0;
        }
    }
    return 0;
}

/* How many bytes at the start are the rest of a character whose beginning is missing? */
static size_t rest_of_character(const unsigned char *bytes, size_t len)
{
    size_t n = 0;

    while (n < 3 && n < len && (bytes[n] & 0xc0U) == 0x80)
        n++;
    return n;
}

static int64_t bytes_of(const lh_stream *stream)
{
    int64_t kept = (int64_t)(stream->head_len + stream->tail_len);
    return stream->bytes > kept ? stream->bytes : kept;
}

lh_stream lhi_stream_cut(const lh_stream *stream, int64_t most)
{
    lh_stream out = *stream;
    size_t room = (size_t)most;

    out.bytes = bytes_of(stream);
    if (out.head_len + out.tail_len > room) {
        size_t quarter = room / 4;
        if (out.tail_len == 0) { /* all of it came as the beginning: the end is in there */
            out.tail = (const char *)out.head + out.head_len;
            out.head_len = out.head_len < quarter ? out.head_len : quarter;
            out.tail_len = room - out.head_len;
            out.tail = (const char *)out.tail - out.tail_len;
        }
        out.head_len = out.head_len < quarter ? out.head_len : quarter;
        if (out.tail_len > room - out.head_len) {
            size_t drop = out.tail_len - (room - out.head_len);
            out.tail = (const char *)out.tail + drop;
            out.tail_len -= drop;
        }
    }
    if ((int64_t)(out.head_len + out.tail_len) < out.bytes) {
        out.head_len -= half_character(out.head, out.head_len);
        size_t drop = rest_of_character(out.tail, out.tail_len);
        out.tail = drop > 0 ? (const char *)out.tail + drop : out.tail;
        out.tail_len -= drop;
    }
    return out;
}

/* ---- what is allowed ---- */

static int check_stream(const lh_stream *stream, struct lhi_error *err)
{
    if ((stream->head == NULL && stream->head_len > 0) ||
        (stream->tail == NULL && stream->tail_len > 0))
        return lhi_fail(err, LH_EMISUSE, "output has a length but no bytes");
    if (stream->head_len > LHI_MAX_OUTPUT || stream->tail_len > LHI_MAX_OUTPUT ||
        stream->head_len + stream->tail_len > LHI_MAX_OUTPUT)
        return lhi_fail(err, LH_ETOOBIG, "output of %zu bytes is too large: at most %d a stream",
                        stream->head_len + stream->tail_len, LHI_MAX_OUTPUT);
    if (stream->bytes != 0)
        return lhi_need_range("size of output", stream->bytes,
                              (int64_t)(stream->head_len + stream->tail_len), INT64_MAX, err);
    return LH_OK;
}

int lhi_check_output(const lh_output *output, struct lhi_error *err)
{
    int rc = output != NULL ? check_stream(&output->out, err) : LH_OK;
    return rc == LH_OK && output != NULL ? check_stream(&output->err, err) : rc;
}

/* ---- the calls ---- */

int lh_output_put(lh_store *store, const lh_output *outputs, size_t n, int *status)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    struct lhi_act act = {.verb = LHI_OUTPUT, .n = n};

    if (err == NULL)
        return rc;
    rc = lhi_check_refs(n, outputs, err);
    for (size_t i = 0; i < n && rc == LH_OK; i++)
        if ((rc = lhi_check_ref(outputs[i].job, outputs[i].token, err)) == LH_OK)
            rc = lhi_check_output(&outputs[i], err);
    if (rc != LH_OK || (rc = lhi_statuses(&act, err)) != LH_OK)
        return rc;
    struct lhi_written *written = lhi_calloc(n, sizeof *written);
    for (size_t i = 0; i < n && written != NULL; i++)
        written[i] = (struct lhi_written){outputs[i].job, outputs[i].token, &outputs[i], 0};
    act.outputs = written;
    rc = written ? lhi_perform_all(store, &act, 1, err) : lhi_no_memory(err);
    rc = lhi_list_outcome(rc, &act, status, err);
    lhi_free(written);
    lhi_free(act.status);
    return rc;
}

void lh_outputs_free(lh_outputs *outputs)
{
    if (outputs != NULL)
        lhi_result_free(outputs, outputs->priv, outputs->output);
}

int lh_output_list(lh_store *store, const lh_output_filter *filter, lh_outputs **out)
{
    struct lhi_act act = {.verb = LHI_OUTPUT_LIST, .output_list = {.filter = filter}};
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if (filter == NULL)
        return lhi_fail(err, LH_EMISUSE, "no job was named");
    if ((rc = lhi_need_out(out, err)) != LH_OK || (rc = LHI_NEED_RESERVED(filter, err)) != LH_OK ||
        (rc = lhi_check_ref(filter->job, 1, err)) != LH_OK ||
        (rc = lhi_need_range("attempt", filter->attempt, 0, INT64_MAX, err)) != LH_OK)
        return rc;
    act.output_list.out = lhi_result_new(sizeof *act.output_list.out, err);
    if (act.output_list.out == NULL)
        return err->status;
    if ((rc = lhi_read(store, &act, err)) == LH_OK)
        *out = act.output_list.out;
    else
        lh_outputs_free(act.output_list.out);
    return rc;
}
