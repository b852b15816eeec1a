/* Named leases: the call of leasehold.lease_act(), and its result. */
#include "store/postgres/pg.h"

/* Columns of the result: the outcome, and then the lease as it is now. */
enum { STATUS, MESSAGE, RELEASED, LEASE };

static const char *verb_name(enum lhi_lease_verb verb)
{
    switch (verb) {
    case LHI_LEASE_ACQUIRE:
        return "acquire";
    case LHI_LEASE_EXTEND:
        return "extend";
    case LHI_LEASE_RELEASE:
        return "release";
    case LHI_LEASE_COMPLETE:
    default:
        return "complete";
    }
}

/* The lease as it is now, for the caller. */
static int answer(struct lhi_act *act, const struct rows *rows)
{
    lh_leases *out = act->lease.out;

    if (out == NULL || pg_row_null(rows, 0, LEASE))
        return LH_OK;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    if (arena != NULL && out->lease == NULL)
        out->lease = lhi_calloc(1, sizeof *out->lease);
    if (out->lease == NULL || !pg_lease_from_row(rows, 0, LEASE, arena, out->lease))
        return lhi_no_memory(&act->err);
    out->n = 1;
    return LH_OK;
}

int pg_act_lease(struct txn *txn, struct lhi_act *act)
{
    const lh_lease_opts *opts = act->lease.opts;
    struct args args = {0};
    struct rows rows;

    pg_arg_text(&args, verb_name(act->lease.verb));
    pg_arg_text(&args, act->lease.scope);
    pg_arg_text(&args, act->lease.name);
    pg_arg_text(&args, act->lease.owner);
    pg_arg_opt(&args, opts->ttl_ms);
    pg_arg_opt(&args, opts->by_ms);
    pg_arg_opt(&args, opts->token);
    pg_arg_text(&args, opts->value);
    pg_arg_ref(&args, opts->has_rows ? &opts->rows : NULL);
    pg_arg_bool(&args, opts->take_only);
    int rc = pg_call(txn, LHI_POSTGRES_LEASE_ACT, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    if ((rc = answer(act, &rows)) == LH_OK) {
        act->lease.released = pg_row_bool(&rows, 0, RELEASED);
        rc = (int)pg_row_int(&rows, 0, STATUS);
        if (rc < 0)
            (void)lhi_fail(&act->err, rc, "%s", pg_row_text(&rows, 0, MESSAGE));
    }
    pg_rows_free(&rows);
    return rc;
}
