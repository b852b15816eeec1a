/* Claim: one call, and a check of every payload: a job whose payload does not match its checksum
 * never runs. A worker that completes one job and claims the next needs only one call. */
#include "store/postgres/pg.h"

#include "base/checksum.h"
#include "base/hook.h"

/* Columns after those of the job. */
enum {
    CLAIM_TIMEOUT = JOB_COLUMNS,
    CLAIM_MAX_OUTPUT,
    CLAIM_RETRY,
    CLAIM_SCHEDULES,
    CLAIM_REPEATED,
    CLAIM_REFUSAL /* in the first row: why the job to be completed by the same call was refused */
};

static int fail_corrupt(struct txn *txn, const lh_job *job, struct lhi_error *err)
{
    struct args args = {0};

    pg_arg_int(&args, job->id);
    pg_arg_int(&args, job->token);
    return pg_call_next(txn, LHI_POSTGRES_JOB_CORRUPT, &args, NULL, err);
}

static bool corrupt(const struct rows *rows, int row, const lh_job *job)
{
    return !pg_row_null(rows, row, JOB_PAYLOAD_SUM) &&
           pg_row_int(rows, row, JOB_PAYLOAD_SUM) !=
               lhi_checksum(job->payload, job->payload ? job->payload_len : 0);
}

static int add_job(struct txn *txn, struct lhi_act *act, const struct rows *rows, int row,
                   size_t *room)
{
    lh_jobs *out = act->claim.out;
    int64_t now = act->claim.repeated ? pg_now(txn->pg) : pg_row_time(rows, row, JOB_STARTED_AT);
    lh_job *job;

    if (!pg_jobs_add(out, room, &job))
        return lhi_no_memory(&act->err);
    if (!pg_job_from_row(rows, row, now, lhi_arena_of(&out->priv), job)) {
        out->n--;
        return lhi_no_memory(&act->err);
    }
    job->timeout_ms = pg_row_int(rows, row, CLAIM_TIMEOUT);
    job->max_output = pg_row_int(rows, row, CLAIM_MAX_OUTPUT);
    return LH_OK;
}

/* `*bad`: number of jobs that were not returned because their payload is corrupt. If one of them
 * cannot be failed, it returns with its lease and is checked again then; the jobs behind it are
 * read all the same. */
static int read_claimed(struct txn *txn, struct lhi_act *act, const struct rows *rows, size_t *bad)
{
    lh_jobs *out = act->claim.out;
    size_t room = out->n;
    int failing = LH_OK;

    if (lhi_arena_of(&out->priv) == NULL)
        return lhi_no_memory(&act->err);
    for (int row = 0; row < rows->n; row++) {
        act->claim.repeated = act->claim.repeated || pg_row_bool(rows, row, CLAIM_REPEATED);
        if (pg_row_null(rows, row, JOB_ID)) {
            act->claim.retry_ms = pg_row_int(rows, row, CLAIM_RETRY);
            act->claim.schedules = pg_row_bool(rows, row, CLAIM_SCHEDULES);
            continue;
        }
        int rc = add_job(txn, act, rows, row, &room);
        if (rc < 0)
            return rc;
        const lh_job *job = &out->job[out->n - 1];
        if (corrupt(rows, row, job)) {
            out->n--;
            (*bad)++;
            if (failing == LH_OK)
                failing = fail_corrupt(txn, job, &act->err);
        }
    }
    return failing;
}

/* Jobs of one queue and any kind: the short way (leasehold.claim_one). */
static bool claims_one_queue(const struct lhi_act *act)
{
    const lh_claim_opts *opts = act->claim.opts;
    return opts->n_queues == 1 && opts->n_kinds == 0 && opts->request == NULL;
}

static void arg_claim_one(struct txn *txn, struct args *args, const lh_claim_opts *opts,
                          size_t want, const struct lhi_act *done)
{
    pg_arg_text(args, opts->worker);
    pg_arg_text(args, opts->queues[0]);
    pg_arg_opt(args, opts->lease_ms);
    pg_arg_bool(args, !pg_opts(txn->pg)->no_recovery);
    if (done != NULL) {
        pg_arg_done(args, &done->done[0]);
    } else {
        pg_arg_opt(args, 0);
        pg_arg_opt(args, 0);
        pg_arg_text(args, NULL);
    }
    pg_arg_int(args, (int64_t)want);
}

static void arg_claim(struct txn *txn, struct args *args, const lh_claim_opts *opts, size_t want)
{
    pg_arg_text(args, opts->worker);
    pg_arg_names(args, opts->queues, opts->n_queues);
    if (opts->n_kinds > 0)
        pg_arg_names(args, opts->kinds, opts->n_kinds);
    else
        pg_arg_no_array(args, OID_TEXT);
    pg_arg_int(args, (int64_t)want);
    pg_arg_opt(args, opts->lease_ms);
    pg_arg_text(args, opts->request);
    pg_arg_bool(args, !pg_opts(txn->pg)->no_recovery);
}

/* `done`: the completion to be made by the same call; NULL: none. */
static int claim_once(struct txn *txn, struct lhi_act *done, struct lhi_act *act, size_t want,
                      bool again, size_t *bad)
{
    const bool one = claims_one_queue(act);
    struct args args = {0};
    struct rows rows = {0};

    *bad = 0;
    if (one)
        arg_claim_one(txn, &args, act->claim.opts, want, done);
    else
        arg_claim(txn, &args, act->claim.opts, want);
    int rc = (again ? pg_call_next : pg_call)(
        txn, one ? LHI_POSTGRES_JOB_CLAIM_ONE : LHI_POSTGRES_JOB_CLAIM, &args, &rows, &act->err);
    if (rc == LH_OK && done != NULL)
        pg_read_refusal(&rows, CLAIM_REFUSAL, done);
    if (rc == LH_OK)
        rc = read_claimed(txn, act, &rows, bad);
    pg_rows_free(&rows);
    return rc;
}

/* If a claim in its own transaction has got jobs, the caller gets them, whatever failed
 * afterwards; otherwise nobody would run them until their leases end. A claim with a request id
 * is repeated instead, and gets all its jobs. */
static bool is_held(const struct txn *txn, const struct lhi_act *act)
{
    return !txn->wrapped && act->claim.out->n > 0 && act->claim.opts->request == NULL;
}

static int claim(struct txn *txn, struct lhi_act *done, struct lhi_act *act)
{
    const bool named = act->claim.opts->request != NULL;
    const lh_jobs *out = act->claim.out;
    size_t want = act->claim.opts->n ? act->claim.opts->n : 1, bad = 0;
    bool stands = false; /* the completion by the same call is done */
    int rc;

    do {
        rc = claim_once(txn, stands ? NULL : done, act, want - out->n, bad > 0, &bad);
        stands = done != NULL && (stands || bad > 0);
        /* Some were corrupt: sound ones may follow. */
    } while (rc == LH_OK && bad > 0 && !named);
    LHI_POINT("job_claim:inside");
    if (rc < 0 && (stands || is_held(txn, act))) {
        lhi_log(pg_log(txn->pg), LH_LOG_WARN, "claim got %zu of %zu jobs: %s", out->n, want,
                act->err.text);
        lhi_error_clear(&act->err);
        rc = LH_OK;
    }
    if (rc < 0)
        return rc;
    /* A request id has its answer now and gets no other one. */
    act->claim.repeated = act->claim.repeated || (named && bad > 0);
    return out->n > 0 ? LH_OK : LH_EMPTY;
}

int pg_act_claim(struct txn *txn, struct lhi_act *act)
{
    return claim(txn, NULL, act);
}

bool pg_is_complete_claim(const struct lhi_act *acts, size_t n)
{
    return n == 2 && pg_completes_one(&acts[0]) && acts[1].verb == LHI_CLAIM &&
           claims_one_queue(&acts[1]);
}

int pg_act_complete_claim(struct txn *txn, struct lhi_act *acts)
{
    int rc = claim(txn, &acts[0], &acts[1]);
    LHI_POINT("job_complete:inside");
    return rc;
}
