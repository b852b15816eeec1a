/* output.c: the public calls for the output of runs. */
#include "core/core.h"

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
