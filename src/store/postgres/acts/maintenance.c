/* Maintenance: promotion, expiry, schedules, counts, pruning. Every round is bounded; if it
 * found a full batch, the caller runs another. */
#include "store/postgres/wire.h"

int pg_act_maintain(struct txn *txn, struct lhi_act *act)
{
    enum { EXPIRED, PROMOTED, SCHEDULES, MORE };
    lh_maintained *done = &act->maintain.done;
    struct rows rows;
    bool more = false;
    int rc = pg_call(txn, LHI_POSTGRES_MAINTAIN, NULL, &rows, &act->err);

    if (rc != LH_OK)
        return rc;
    done->expired = pg_row_int(&rows, 0, EXPIRED);
    done->promoted = pg_row_int(&rows, 0, PROMOTED);
    act->maintain.more = pg_row_bool(&rows, 0, MORE);
    bool schedules = pg_row_bool(&rows, 0, SCHEDULES);
    pg_rows_free(&rows);
    if (schedules)
        rc = pg_run_due_schedules(txn, LHI_BATCH, &done->enqueued, &more, &act->err);
    act->maintain.more = act->maintain.more || more;
    return rc;
}

int pg_act_prune(struct txn *txn, struct lhi_act *act)
{
    enum { AFTER, PRUNED, MORE };
    struct args args = {0};
    struct rows rows;

    pg_arg_opt(&args, act->prune.older_than_ms);
    pg_arg_ref(&args, act->prune.after);
    int rc = pg_call(txn, LHI_POSTGRES_PRUNE, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    if (act->prune.after != NULL)
        *act->prune.after = pg_row_int(&rows, 0, AFTER);
    act->prune.pruned = pg_row_int(&rows, 0, PRUNED);
    act->prune.more = pg_row_bool(&rows, 0, MORE);
    pg_rows_free(&rows);
    return LH_OK;
}

int pg_read_poll(struct txn *txn, struct lhi_act *act)
{
    enum { SOMETHING, NEXT_MS, SPARE_MS };
    const lh_claim_opts *opts = act->poll.opts;
    size_t n = opts ? opts->n_queues : 0;
    char keeper[200];
    struct args args = {0};
    struct rows rows;

    pg_arg_names(&args, n > 0 ? opts->queues : NULL, n);
    pg_handle_name(txn->pg, keeper, sizeof keeper);
    pg_arg_text(&args, act->poll.waiting || (n > 0 && pg_has_maintainer(txn->pg)) ? keeper : NULL);
    if (n > 0 && opts->n_kinds > 0)
        pg_arg_names(&args, opts->kinds, opts->n_kinds);
    else
        pg_arg_no_array(&args, OID_TEXT);
    int rc = pg_call(txn, LHI_POSTGRES_POLL, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    act->poll.found = pg_row_bool(&rows, 0, SOMETHING);
    act->poll.next_ms = pg_row_null(&rows, 0, NEXT_MS) ? -1 : pg_row_int(&rows, 0, NEXT_MS);
    if (act->poll.waiting)
        pg_set_leader(txn->pg, pg_row_int(&rows, 0, SPARE_MS));
    pg_rows_free(&rows);
    return LH_OK;
}

int pg_read_retries(struct txn *txn, struct lhi_act *act)
{
    const lh_claim_opts *opts = act->retries.opts;
    struct args args = {0};
    struct rows rows;

    pg_arg_names(&args, opts->queues, opts->n_queues);
    pg_arg_names(&args, opts->n_kinds > 0 ? opts->kinds : NULL, opts->n_kinds);
    int rc = pg_call(txn, LHI_POSTGRES_RETRY_WAITS, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    act->retries.waiting = pg_row_bool(&rows, 0, 0);
    pg_rows_free(&rows);
    return LH_OK;
}
