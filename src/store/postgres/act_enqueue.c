/* Enqueue: by the library, and on the user's own connection inside the user's own transaction. */
#include "store/postgres/plumb.h"

#include "base/checksum.h"
#include "base/hook.h"

#include <string.h>

/* ---- the jobs as arrays, side by side; one that says nothing is not sent ---- */

static bool is_text(const lh_new_job *job)
{
    return lh_text_ok(job->payload, job->payload_len);
}

static void arg_payloads(struct args *args, const lh_new_job *jobs, size_t n, bool text)
{
    bool any = text;

    for (size_t i = 0; i < n && !any; i++)
        any = jobs[i].payload != NULL && is_text(&jobs[i]) == text;
    if (!any) {
        arg_text(args, NULL);
        args->type[args->n - 1] = text ? OID_TEXT_ARRAY : OID_BYTEA_ARRAY;
        return;
    }
    arg_array(args, text ? OID_TEXT : OID_BYTEA, n);
    for (size_t i = 0; i < n; i++)
        if (jobs[i].payload != NULL && is_text(&jobs[i]) == text)
            put_bytes(args, jobs[i].payload, jobs[i].payload_len);
        else
            put_null(args);
}

static void arg_texts(struct args *args, const lh_new_job *jobs, size_t n, size_t at)
{
    bool any = false;

    for (size_t i = 0; i < n && !any; i++)
        any = *(const char *const *)(const void *)((const char *)&jobs[i] + at) != NULL;
    if (!any) {
        arg_text(args, NULL);
        args->type[args->n - 1] = OID_TEXT_ARRAY;
        return;
    }
    arg_array(args, OID_TEXT, n);
    for (size_t i = 0; i < n; i++)
        put_text(args, *(const char *const *)(const void *)((const char *)&jobs[i] + at));
}

static void arg_numbers(struct args *args, const lh_new_job *jobs, size_t n, size_t at, bool time)
{
    bool any = false;

    for (size_t i = 0; i < n && !any; i++)
        any = *(const int64_t *)(const void *)((const char *)&jobs[i] + at) != 0;
    if (!any) {
        arg_text(args, NULL);
        args->type[args->n - 1] = time ? OID_TIMESTAMPTZ_ARRAY : OID_INT8_ARRAY;
        return;
    }
    arg_array(args, time ? OID_TIMESTAMPTZ : OID_INT8, n);
    for (size_t i = 0; i < n; i++) {
        int64_t value = *(const int64_t *)(const void *)((const char *)&jobs[i] + at);
        if (time)
            put_time(args, value);
        else
            put_opt(args, value);
    }
}

static void arg_priorities(struct args *args, const lh_new_job *jobs, size_t n)
{
    bool any = false;

    for (size_t i = 0; i < n && !any; i++)
        any = jobs[i].priority != 0;
    if (!any) {
        arg_text(args, NULL);
        args->type[args->n - 1] = OID_INT8_ARRAY;
        return;
    }
    arg_array(args, OID_INT8, n);
    for (size_t i = 0; i < n; i++)
        put_int(args, jobs[i].priority);
}

static void arg_jobs(struct args *args, const char *queue, const lh_new_job *jobs, size_t n)
{
#define FIELD(name) offsetof(lh_new_job, name)
    arg_text(args, queue);
    arg_array(args, OID_INT8, n);
    for (size_t i = 0; i < n; i++)
        put_int(args, lhi_checksum(jobs[i].payload, jobs[i].payload ? jobs[i].payload_len : 0));
    arg_payloads(args, jobs, n, true);
    arg_payloads(args, jobs, n, false);
    arg_texts(args, jobs, n, FIELD(kind));
    arg_priorities(args, jobs, n);
    arg_numbers(args, jobs, n, FIELD(run_at), true);
    arg_numbers(args, jobs, n, FIELD(delay_ms), false);
    arg_texts(args, jobs, n, FIELD(key));
    arg_numbers(args, jobs, n, FIELD(max_attempts), false);
    arg_numbers(args, jobs, n, FIELD(lease_ms), false);
    arg_numbers(args, jobs, n, FIELD(expires_ms), false);
    arg_numbers(args, jobs, n, FIELD(backoff_ms), false);
    arg_numbers(args, jobs, n, FIELD(backoff_cap_ms), false);
#undef FIELD
}

static int read_enqueued(const struct rows *rows, size_t n, lh_enqueued *out, struct lhi_error *err)
{
    if ((size_t)rows->n != n)
        return lhi_fail(err, LH_EFAIL, "the database answered for %d jobs of %zu", rows->n, n);
    for (int i = 0; i < rows->n; i++)
        out[i] = (lh_enqueued){.id = row_int(rows, i, 0),
                               .state = row_state(rows, i, 1),
                               .duplicate = row_bool(rows, i, 2)};
    return LH_OK;
}

/* ---- the act ---- */

void made_request(const struct txn *txn, char *out, size_t len)
{
    lhi_format(out, len, "lh:%lld:%lld", (long long)txn->nonce, (long long)txn->after);
}

int act_enqueue(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};
    struct rows rows = {0};
    const char *request = act->enqueue.request;
    char made[64];

    /* An earlier try may stand: its jobs are known by the number that was written with them. */
    if (request == NULL && txn->repeated) {
        made_request(txn, made, sizeof made);
        request = made;
    }
    arg_jobs(&args, act->enqueue.queue, act->enqueue.jobs, act->n);
    arg_text(&args, request);
    arg_ref(&args, request == NULL ? &txn->nonce : NULL);
    arg_text(&args, "library");
    int rc = call(txn, LHI_POSTGRES_JOB_ENQUEUE, &args, &rows, &act->err);
    if (rc == LH_OK)
        rc = read_enqueued(&rows, act->n, act->enqueue.out, &act->err);
    rows_free(&rows);
    for (size_t i = 0; rc == LH_OK && i < act->n; i++) {
        if (!act->enqueue.out[i].duplicate)
            pg_saw_job(txn->pg, act->enqueue.out[i].id);
        else if (txn->repeated && act->enqueue.request == NULL)
            act->enqueue.out[i].duplicate = false; /* it was this very call that made it */
    }
    LHI_POINT("job_enqueue:inside");
    return rc;
}

/* ---- on the user's own connection ---- */

static int enqueue_on(PGconn *conn, const char *queue, const lh_new_job *jobs, size_t n,
                      lh_enqueued *out, struct lhi_error *err)
{
    struct args args = {0};

    arg_jobs(&args, queue, jobs, n);
    arg_text(&args, NULL);
    arg_ref(&args, NULL);
    arg_text(&args, "library");
    if (args.no_memory) {
        args_clear(&args);
        return lhi_no_memory(err);
    }
    struct rows rows = {
        .result = PQexecParams(conn, lhi_postgres_sql[LHI_POSTGRES_JOB_ENQUEUE].text, args.n,
                               args.type, args.value, args.length, args.format, 1)};
    args_clear(&args);
    int rc = LH_OK;
    if (PQresultStatus(rows.result) != PGRES_TUPLES_OK)
        rc = refusal_status(rows.result, PQdb(conn), err);
    rows.n = PQntuples(rows.result);
    if (rc == LH_OK)
        rc = read_enqueued(&rows, n, out, err);
    rows_free(&rows);
    return rc;
}

int lh_enqueue_postgres(struct pg_conn *conn, const char *queue, const lh_new_job *jobs, size_t n,
                        lh_enqueued *out, char *errmsg, size_t errlen)
{
    struct lhi_error err;

    lhi_error_clear(&err);
    int rc = conn ? lhi_check_enqueue(queue, jobs, n, out, &err)
                  : lhi_fail(&err, LH_EMISUSE, "connection is missing");
    if (rc == LH_OK)
        rc = enqueue_on(conn, queue, jobs, n, out, &err);
    if (rc < 0 && errmsg != NULL && errlen > 0)
        lhi_format(errmsg, errlen, "%s", err.text);
    return rc;
}
