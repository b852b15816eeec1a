/* Claim: one call, and a look at every payload: one that does not match its checksum is never run. */
#include "store/postgres/pg.h"

#include "base/checksum.h"
#include "base/hook.h"

/* After the columns of a job. */
enum { CLAIM_TIMEOUT = JOB_COLUMNS, CLAIM_RETRY, CLAIM_SCHEDULES, CLAIM_REPEATED };

static void arg_names(struct args *args, const char *const *names, size_t n)
{
    if (n == 0) {
        arg_text(args, NULL);
        args->type[args->n - 1] = OID_TEXT_ARRAY;
        return;
    }
    arg_array(args, OID_TEXT, n);
    for (size_t i = 0; i < n; i++)
        put_text(args, names[i]);
}

/* By a claim of its own transaction this is another: when it fails, the job comes back with its lease, and
 * is looked at again. */
static int fail_rotten(struct txn *txn, const lh_job *job, struct lhi_error *err)
{
    struct args args = {0};

    arg_int(&args, job->id);
    arg_int(&args, job->token);
    return call_next(txn, LHI_POSTGRES_JOB_ROTTEN, &args, err);
}

static bool rotten(const struct rows *rows, int row, const lh_job *job)
{
    return !row_null(rows, row, JOB_PAYLOAD_SUM) &&
           row_int(rows, row, JOB_PAYLOAD_SUM) !=
               lhi_checksum(job->payload, job->payload ? job->payload_len : 0);
}

/* `*bad`: so many were not handed out, because their payload is damaged. */
static int read_claimed(struct txn *txn, struct lhi_act *act, const struct rows *rows, size_t *bad)
{
    lh_jobs *out = act->claim.out;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    size_t room = out->n;

    if (arena == NULL)
        return lhi_no_memory(&act->err);
    for (int row = 0; row < rows->n; row++) {
        lh_job *job;
        act->claim.repeated = act->claim.repeated || row_bool(rows, row, CLAIM_REPEATED);
        if (row_null(rows, row, JOB_ID)) {
            act->claim.retry_ms = row_int(rows, row, CLAIM_RETRY);
            act->claim.schedules = row_bool(rows, row, CLAIM_SCHEDULES);
            continue;
        }
        int64_t now = act->claim.repeated ? pg_now(txn->pg) : row_time(rows, row, JOB_STARTED_AT);
        if (!jobs_add(out, &room, &job) || !job_from_row(rows, row, now, arena, job))
            return lhi_no_memory(&act->err);
        job->timeout_ms = row_int(rows, row, CLAIM_TIMEOUT);
        if (rotten(rows, row, job)) {
            int rc = fail_rotten(txn, job, &act->err);
            if (rc < 0)
                return rc;
            out->n--;
            (*bad)++;
        }
    }
    return LH_OK;
}

static int claim_once(struct txn *txn, struct lhi_act *act, size_t want, size_t *bad)
{
    const lh_claim_opts *opts = act->claim.opts;
    struct args args = {0};
    struct rows rows = {0};

    *bad = 0;
    bool one = want == 1 && opts->n_queues == 1 && opts->n_kinds == 0 && opts->request == NULL;
    arg_text(&args, opts->worker);
    if (one) {
        arg_text(&args, opts->queues[0]);
    } else {
        arg_names(&args, opts->queues, opts->n_queues);
        arg_names(&args, opts->kinds, opts->n_kinds);
        arg_int(&args, (int64_t)want);
    }
    arg_opt(&args, opts->lease_ms);
    if (!one)
        arg_text(&args, opts->request);
    arg_bool(&args, !pg_opts(txn->pg)->no_recovery);
    int rc = call(txn, one ? LHI_POSTGRES_JOB_CLAIM_ONE : LHI_POSTGRES_JOB_CLAIM, &args, &rows,
                  &act->err);
    if (rc == LH_OK)
        rc = read_claimed(txn, act, &rows, bad);
    rows_free(&rows);
    return rc;
}

int act_claim(struct txn *txn, struct lhi_act *act)
{
    size_t want = act->claim.opts->n ? act->claim.opts->n : 1, bad;
    int rc;

    do {
        rc = claim_once(txn, act, want - act->claim.out->n, &bad);
        /* Some were rotten: sound ones may wait behind them. */
    } while (rc == LH_OK && bad > 0 && act->claim.opts->request == NULL);
    LHI_POINT("job_claim:inside");
    if (rc < 0)
        return rc;
    return act->claim.out->n > 0 ? LH_OK : LH_EMPTY;
}
