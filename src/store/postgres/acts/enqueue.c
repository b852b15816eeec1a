/* Enqueue: by the library, and on the user's own connection within the user's own transaction. */
#include "store/postgres/wire.h"

#include "base/checksum.h"
#include "base/hook.h"

#include <string.h>

/* ---- the jobs as parallel arrays; an array without values is not sent ---- */

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
        pg_arg_no_array(args, text ? OID_TEXT : OID_BYTEA);
        return;
    }
    pg_arg_array(args, text ? OID_TEXT : OID_BYTEA, n);
    for (size_t i = 0; i < n; i++)
        if (jobs[i].payload != NULL && is_text(&jobs[i]) == text)
            pg_put_bytes(args, jobs[i].payload, jobs[i].payload_len);
        else
            pg_put_null(args);
}

static void arg_texts(struct args *args, const lh_new_job *jobs, size_t n, size_t at)
{
    bool any = false;

    for (size_t i = 0; i < n && !any; i++)
        any = *(const char *const *)(const void *)((const char *)&jobs[i] + at) != NULL;
    if (!any) {
        pg_arg_no_array(args, OID_TEXT);
        return;
    }
    pg_arg_array(args, OID_TEXT, n);
    for (size_t i = 0; i < n; i++)
        pg_put_text(args, *(const char *const *)(const void *)((const char *)&jobs[i] + at));
}

static void arg_numbers(struct args *args, const lh_new_job *jobs, size_t n, size_t at, bool time)
{
    bool any = false;

    for (size_t i = 0; i < n && !any; i++)
        any = *(const int64_t *)(const void *)((const char *)&jobs[i] + at) != 0;
    if (!any) {
        pg_arg_no_array(args, time ? OID_TIMESTAMPTZ : OID_INT8);
        return;
    }
    pg_arg_array(args, time ? OID_TIMESTAMPTZ : OID_INT8, n);
    for (size_t i = 0; i < n; i++) {
        int64_t value = *(const int64_t *)(const void *)((const char *)&jobs[i] + at);
        if (time)
            pg_put_time(args, value);
        else
            pg_put_opt(args, value);
    }
}

static void arg_priorities(struct args *args, const lh_new_job *jobs, size_t n)
{
    bool any = false;

    for (size_t i = 0; i < n && !any; i++)
        any = jobs[i].priority != 0;
    if (!any) {
        pg_arg_no_array(args, OID_INT8);
        return;
    }
    pg_arg_array(args, OID_INT8, n);
    for (size_t i = 0; i < n; i++)
        pg_put_int(args, jobs[i].priority);
}

static void arg_jobs(struct args *args, const char *queue, const lh_new_job *jobs, size_t n)
{
#define FIELD(name) offsetof(lh_new_job, name)
    pg_arg_text(args, queue);
    pg_arg_array(args, OID_INT8, n);
    for (size_t i = 0; i < n; i++)
        pg_put_int(args, lhi_checksum(jobs[i].payload, jobs[i].payload ? jobs[i].payload_len : 0));
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
        out[i] = (lh_enqueued){.id = pg_row_int(rows, i, 0),
                               .state = pg_row_state(rows, i, 1),
                               .duplicate = pg_row_bool(rows, i, 2)};
    return LH_OK;
}

/* ---- the act ---- */

/* Does the job have nothing but a payload? */
static bool is_plain(const lh_new_job *job)
{
    return job->kind == NULL && job->priority == 0 && job->run_at == 0 && job->delay_ms == 0 &&
           job->key == NULL && job->max_attempts == 0 && job->lease_ms == 0 &&
           job->expires_ms == 0 && job->backoff_ms == 0 && job->backoff_cap_ms == 0 &&
           (job->payload == NULL || is_text(job));
}

static void arg_plain(struct args *args, const char *queue, const lh_new_job *job)
{
    size_t len = job->payload != NULL ? job->payload_len : 0;

    pg_arg_text(args, queue);
    pg_arg_int(args, lhi_checksum(job->payload, len));
    pg_arg_text_len(args, job->payload, len);
}

void pg_request_from_nonce(const struct txn *txn, char *out, size_t len)
{
    lhi_format(out, len, "lh:%lld:%lld", (long long)txn->nonce, (long long)txn->after);
}

int pg_act_enqueue(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};
    struct rows rows = {0};
    const char *request = act->enqueue.request;
    char made[64];

    /* An earlier try may have committed: its jobs are found by their nonce. (A call whose jobs
     * have keys has a request id from the start, because a nonce does not tell which jobs
     * already existed.) */
    if (request == NULL && txn->repeated) {
        pg_request_from_nonce(txn, made, sizeof made);
        request = made;
    }
    bool one = act->n == 1 && request == NULL && is_plain(act->enqueue.jobs);
    if (one) {
        arg_plain(&args, act->enqueue.queue, act->enqueue.jobs);
        pg_arg_ref(&args, &txn->nonce);
    } else {
        arg_jobs(&args, act->enqueue.queue, act->enqueue.jobs, act->n);
        pg_arg_text(&args, request);
        pg_arg_ref(&args, &txn->nonce);
        pg_arg_text(&args, "library");
    }
    int rc = pg_call(txn, one ? LHI_POSTGRES_JOB_ENQUEUE_ONE : LHI_POSTGRES_JOB_ENQUEUE, &args,
                     &rows, &act->err);
    if (rc == LH_OK && one)
        act->enqueue.out[0] = (lh_enqueued){.id = pg_row_int(&rows, 0, 0), .state = LH_PENDING};
    else if (rc == LH_OK)
        rc = read_enqueued(&rows, act->n, act->enqueue.out, &act->err);
    pg_rows_free(&rows);
    for (size_t i = 0; rc == LH_OK && i < act->n; i++)
        if (!act->enqueue.out[i].duplicate)
            pg_saw_job(txn->pg, act->enqueue.out[i].id);
    LHI_POINT("job_enqueue:inside");
    return rc;
}

/* ---- on the user's own connection ---- */

/* The server's answer. */
struct answer {
    PGresult *rows, *refusal; /* NULL: none */
    bool ending;              /* refused after the results: it was the commit that failed */
    struct notices notices;
    PQnoticeReceiver receiver; /* the receiver before ours; NULL: ours is not installed */
};

static void answer_clear(struct answer *answer)
{
    PQclear(answer->rows);
    PQclear(answer->refusal);
    pg_notices_drop(&answer->notices);
}

/* Can we use the connection as it is? */
static int check_conn(PGconn *conn, struct lhi_error *err)
{
    const char *encoding = PQparameterStatus(conn, "client_encoding");

    /* A connection that was lost before is reported as such: nothing was sent. */
    if (PQstatus(conn) != CONNECTION_OK || PQconsumeInput(conn) == 0 ||
        PQstatus(conn) != CONNECTION_OK)
        return lhi_fail(err, LH_EUNREACH, "connection is lost: %.*s",
                        (int)strcspn(PQerrorMessage(conn), "\n"), PQerrorMessage(conn));
    if (PQpipelineStatus(conn) != PQ_PIPELINE_OFF || PQtransactionStatus(conn) == PQTRANS_ACTIVE)
        return lhi_fail(err, LH_EMISUSE,
                        "connection is in use: no query, COPY or pipeline may be in progress");
    /* The server would take our bytes for another encoding and store other characters. */
    if (encoding != NULL && strcmp(encoding, "UTF8") != 0 && strcmp(encoding, "SQL_ASCII") != 0)
        return lhi_fail(err, LH_EINVAL,
                        "client_encoding of the connection is \"%s\": UTF8 is allowed", encoding);
    return LH_OK;
}

/* libpq's default receiver. It has no argument, and passes notices to the user's processor. */
static PQnoticeReceiver first_receiver(void)
{
    PGconn *never_made = PQconnectStart("nowhere");
    PQnoticeReceiver receiver =
        never_made != NULL ? PQsetNoticeReceiver(never_made, NULL, NULL) : NULL;

    PQfinish(never_made);
    return receiver;
}

static void hear(void *arg, const PGresult *notice)
{
    struct answer *answer = arg;

    pg_notice_keep(&answer->notices, notice);
    answer->receiver(NULL, notice);
}

/* Only if the user has installed no receiver, because libpq does not tell with which argument
 * the user's own would have to be restored. */
static void listen_on(PGconn *conn, struct answer *answer)
{
    PQnoticeReceiver first = first_receiver();

    if (first == NULL || PQsetNoticeReceiver(conn, NULL, NULL) != first)
        return;
    answer->receiver = first;
    (void)PQsetNoticeReceiver(conn, hear, answer);
}

static void listen_no_more(PGconn *conn, const struct answer *answer)
{
    if (answer->receiver != NULL)
        (void)PQsetNoticeReceiver(conn, answer->receiver, NULL);
}

static void take_answer(struct answer *answer, PGresult *result)
{
    if (PQresultStatus(result) == PGRES_TUPLES_OK && answer->rows == NULL) {
        answer->rows = result;
    } else if (PQresultErrorField(result, PG_DIAG_SQLSTATE) != NULL && answer->refusal == NULL) {
        answer->refusal = result;
        answer->ending = answer->rows != NULL;
    } else {
        PQclear(result); /* libpq's own message is read elsewhere */
    }
}

/* Not with PQexecParams(), which returns only the last result and does not show whether the
 * statement was done before. */
static bool ask_on(PGconn *conn, const struct args *args, struct answer *answer)
{
    PGresult *result;

    if (PQsendQueryParams(conn, lhi_postgres_sql[LHI_POSTGRES_JOB_ENQUEUE_THERE].text, args->n,
                          args->type, args->value, args->length, args->format, 1) == 0)
        return false;
    while ((result = PQgetResult(conn)) != NULL)
        take_answer(answer, result);
    return true;
}

/* `may_stand`: it was sent, and is a transaction of its own. */
static int lost_on(PGconn *conn, bool may_stand, struct lhi_error *err)
{
    const char *why = PQerrorMessage(conn);

    return lhi_fail(err, may_stand ? LH_EUNKNOWN : LH_EUNREACH,
                    may_stand ? "outcome is unknown: the connection was lost: %.*s"
                              : "connection was lost: %.*s",
                    (int)strcspn(why, "\n"), why);
}

static int judge_on(PGconn *conn, const struct answer *answer, bool may_stand,
                    struct lhi_error *err)
{
    bool lost = PQstatus(conn) != CONNECTION_OK;

    if (answer->refusal != NULL && !(lost && (answer->ending || pg_from_pooler(answer->refusal))))
        return pg_refusal_status(answer->refusal, PQdb(conn), err);
    if (lost || answer->rows == NULL)
        return lost_on(conn, may_stand, err);
    if (PQntuples(answer->rows) == 0)
        return lhi_fail(err, LH_ENEWER,
                        "database \"%s\" has a newer schema, this program knows up to version %d: "
                        "use a newer leasehold",
                        PQdb(conn), lhi_postgres_schema_version());
    if (may_stand && answer->notices.unconfirmed)
        return lhi_fail(err, LH_EUNKNOWN,
                        "outcome is unknown: the wait for the standby was cancelled");
    return LH_OK;
}

static int enqueue_on(PGconn *conn, const char *queue, const lh_new_job *jobs, size_t n,
                      lh_enqueued *out, struct lhi_error *err)
{
    struct args args = {0};
    struct answer answer = {0};
    int rc = check_conn(conn, err);

    if (rc != LH_OK)
        return rc;
    arg_jobs(&args, queue, jobs, n);
    pg_arg_text(&args, NULL);
    pg_arg_ref(&args, NULL);
    pg_arg_text(&args, "library");
    pg_arg_int(&args, lhi_postgres_schema_version());
    if (args.no_memory || args.too_big) {
        rc = args.too_big ? pg_fail_too_big(err) : lhi_no_memory(err);
        pg_args_clear(&args);
        return rc;
    }
    bool alone = PQtransactionStatus(conn) == PQTRANS_IDLE;
    if (alone)
        listen_on(conn, &answer);
    bool sent = ask_on(conn, &args, &answer);
    listen_no_more(conn, &answer);
    pg_args_clear(&args);
    rc = judge_on(conn, &answer, sent && alone, err);
    if (rc == LH_OK)
        rc = read_enqueued(&(struct rows){answer.rows, PQntuples(answer.rows)}, n, out, err);
    answer_clear(&answer);
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
