/*
 * call.c: sends one call, waits for the result until its deadline, and classifies failures.
 *
 * Everything goes through libpq's pipeline. What must precede a statement (BEGIN, settings of the
 * transaction, PREPARE if this connection has not prepared the statement) is sent with it in one
 * round trip. The server commits at the sync, so a statement is done only when the sync is
 * answered. If the connection is lost before that, the outcome is unknown, unless the server has
 * refused the statement first.
 */
#include "store/postgres/wire.h"

#include "base/clock.h"
#include "base/hook.h"

#include <assert.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { CANCEL_MS = 1000 }; /* time for a cancelled call to report its end */

/* What the server has answered so far. */
struct answer {
    PGresult *result;  /* of the last statement */
    PGresult *refusal; /* the first refusal */
    int n;             /* results so far */
    int sent;          /* expected results, without the sync */
    int prepare;       /* index of the result that confirms a PREPARE; -1: none */
    bool prepared, synced, late;
    bool ending; /* all statements were done before the refusal: it was the commit that failed */
};

static void answer_clear(struct answer *answer)
{
    PQclear(answer->result);
    PQclear(answer->refusal);
}

/* ---- sending ---- */

static bool send_text(struct conn *conn, struct answer *answer, const char *sql)
{
    answer->sent++;
    return PQsendQueryParams(conn->pg, sql, 0, NULL, NULL, NULL, NULL, 1) != 0;
}

static bool send_setting(struct conn *conn, struct answer *answer, const char *name,
                         const char *value)
{
    const char *values[] = {name, value};

    answer->sent++;
    return PQsendQueryParams(conn->pg, "SELECT pg_catalog.set_config($1, $2, true)", 2, NULL,
                             values, NULL, NULL, 1) != 0;
}

#ifdef LHI_TEST
/* If a test moves the clock, it moves the server's, too, for this transaction. */
static bool send_test_clock(struct conn *conn, struct answer *answer)
{
    const struct lhi_control *control = lhi_control();
    char now[24];

    if (!control->frozen && __atomic_load_n(&control->wall_ms, __ATOMIC_RELAXED) == 0)
        return true;
    lhi_format(now, sizeof now, "%lld", (long long)lhi_wall_ms());
    return send_setting(conn, answer, "leasehold.test_now", now);
}
#else
static bool send_test_clock(struct conn *conn, struct answer *answer)
{
    (void)conn, (void)answer;
    return true;
}
#endif

/* Settings for the whole transaction, sent before its first statement. */
static bool send_opening(struct txn *txn, struct answer *answer)
{
    if (txn->begun)
        return true;
    if (txn->wrapped && !send_text(txn->conn, answer, "BEGIN ISOLATION LEVEL READ COMMITTED"))
        return false;
    if (txn->conn->quiet && !send_setting(txn->conn, answer, "client_min_messages", "notice"))
        return false;
    if (txn->conn->pooled && !send_setting(txn->conn, answer, "search_path", OUR_PATH))
        return false;
    if (txn->writes && txn->pg->opts.durability == LH_DURABLE_RELAXED &&
        !send_setting(txn->conn, answer, "synchronous_commit", "off"))
        return false;
    return send_test_clock(txn->conn, answer);
}

static bool may_prepare(const struct conn *conn)
{
    return !conn->pooled && !__atomic_load_n(&conn->owner->no_prepare, __ATOMIC_RELAXED);
}

static bool send_named(struct conn *conn, enum lhi_postgres_call which, const struct args *args,
                       struct answer *answer)
{
    char name[32];

    /* A statement that is prepared again gets a new name, because the old one may still exist. */
    lhi_format(name, sizeof name, "lh%u_%d", conn->renewed, (int)which);
    if (!conn->prepared[which]) {
        answer->prepare = answer->sent++;
        if (PQsendPrepare(conn->pg, name, lhi_postgres_sql[which].text, args->n, args->type) == 0)
            return false;
    }
    answer->sent++;
    return PQsendQueryPrepared(conn->pg, name, args->n, args->value, args->length, args->format,
                               1) != 0;
}

static bool send_unnamed(struct conn *conn, const char *sql, const struct args *args,
                         struct answer *answer)
{
    answer->sent++;
    return PQsendQueryParams(conn->pg, sql, args->n, args->type, args->value, args->length,
                             args->format, 1) != 0;
}

/* ---- receiving ---- */

static void take_result(struct answer *answer, PGresult *result)
{
    switch (PQresultStatus(result)) {
    case PGRES_PIPELINE_SYNC:
        answer->synced = true;
        PQclear(result);
        return;
    case PGRES_TUPLES_OK:
    case PGRES_COMMAND_OK:
        if (answer->n++ == answer->prepare)
            answer->prepared = true;
        PQclear(answer->result);
        answer->result = result;
        return;
    case PGRES_PIPELINE_ABORTED:
        answer->n++;
        PQclear(result);
        return;
    default:
        if (answer->refusal != NULL || PQresultErrorField(result, PG_DIAG_SQLSTATE) == NULL) {
            PQclear(result); /* libpq's own message about a lost connection is read elsewhere */
            return;
        }
        answer->refusal = result;
        answer->ending = answer->n++ >= answer->sent;
        return;
    }
}

/* Read results that have arrived; false: the connection is lost. */
static bool take_results(struct conn *conn, struct answer *answer)
{
    int in_a_row = 0;

    while (!answer->synced && PQisBusy(conn->pg) == 0) {
        PGresult *result = PQgetResult(conn->pg);
        if (result != NULL)
            take_result(answer, result);
        /* NULL ends the results of one statement; NULL twice means that there are no more. */
        in_a_row = result == NULL ? in_a_row + 1 : 0;
        if (PQstatus(conn->pg) != CONNECTION_OK && in_a_row > 0)
            return false;
        if (in_a_row > 1)
            return PQstatus(conn->pg) == CONNECTION_OK;
    }
    return true;
}

static bool await_socket(struct conn *conn, bool to_send, int64_t deadline)
{
    return pg_await_fd(conn->owner, PQsocket(conn->pg), to_send ? POLLIN | POLLOUT : POLLIN,
                       deadline);
}

/* Send the rest and receive results until the sync is answered. False: the connection cannot be
 * used any more. */
static bool send_and_receive(struct conn *conn, struct answer *answer, int64_t deadline)
{
    int unsent = 1;

    while (!answer->synced) {
        if (unsent != 0 && (unsent = PQflush(conn->pg)) < 0)
            unsent = 0; /* what the server said before it closed can still be read */
        if (!take_results(conn, answer))
            break;
        if (answer->synced)
            return true;
        if (!await_socket(conn, unsent != 0, deadline)) {
            if (answer->late)
                break;
            answer->late = true;
            pg_hosts_recheck(conn->owner);
            pg_conn_cancel(conn);
            deadline = pg_real_ms() + CANCEL_MS;
            continue;
        }
        if (PQconsumeInput(conn->pg) == 0) {
            (void)take_results(conn, answer);
            break;
        }
    }
    conn->broken = conn->broken || !answer->synced;
    return answer->synced;
}

/* ---- classifying failures ---- */

static int own_status(const char *code)
{
    char *end;

    if (strncmp(code, "LH", 2) != 0)
        return 0;
    long status = strtol(code + 2, &end, 10);
    return *end == '\0' && status > 0 && status < 100 ? (int)-status : 0;
}

static int status_of(const char *code)
{
    static const struct {
        const char *starts;
        int status;
    } map[] = {
        {"08", LH_EUNREACH},    {"22", LH_EINVAL},       {"23", LH_EINVAL},
        {"25P03", LH_EUNREACH}, {"25P04", LH_EUNREACH},  {"3F000", LH_ENOSTORE},
        {"40", LH_EBUSY},       {"42501", LH_EREADONLY}, {"42P01", LH_ENOSTORE},
        {"53100", LH_ENOSPC},   {"53", LH_EBUSY},        {"54", LH_ETOOBIG},
        {"55P03", LH_EBUSY},    {"57014", LH_EBUSY},     {"57P", LH_EUNREACH},
        {"58", LH_EIO},         {"XX001", LH_ECORRUPT},  {"XX002", LH_ECORRUPT},
    };

    for (size_t i = 0; i < sizeof map / sizeof map[0]; i++)
        if (strncmp(code, map[i].starts, strlen(map[i].starts)) == 0)
            return map[i].status;
    return LH_EFAIL;
}

static const char *field(const PGresult *result, int which)
{
    const char *text = PQresultErrorField(result, which);
    return text != NULL ? text : "";
}

/* The plan of the statement is outdated because a table has changed, or the prepared statement
 * is missing: then a pooler that we took for the server has given us another session. */
static bool is_outdated(struct conn *conn, const PGresult *refusal)
{
    const char *code = field(refusal, PG_DIAG_SQLSTATE);
    bool gone = strcmp(code, "26000") == 0 || strcmp(code, "42P05") == 0;

    if (gone)
        __atomic_store_n(&conn->owner->no_prepare, true, __ATOMIC_RELAXED);
    if (!gone && (strcmp(code, "0A000") != 0 ||
                  strcmp(field(refusal, PG_DIAG_SOURCE_FUNCTION), "RevalidateCachedQuery") != 0))
        return false;
    memset(conn->prepared, 0, sizeof conn->prepared);
    conn->renewed++;
    return true;
}

static bool ends_session(const char *code)
{
    return strncmp(code, "57P", 3) == 0 || strncmp(code, "08", 2) == 0 ||
           strcmp(code, "25P03") == 0 || strcmp(code, "25P04") == 0;
}

/* The server or the role is read-only. A standby has no unlogged tables and no WAL insert
 * position (xlogfuncs.c), which claims and recoveries need before they write. */
static bool is_read_only(const PGresult *refusal)
{
    const char *code = field(refusal, PG_DIAG_SQLSTATE);

    return strcmp(code, "25006") == 0 ||
           (strcmp(code, "55000") == 0 &&
            strcmp(field(refusal, PG_DIAG_SOURCE_FILE), "xlogfuncs.c") == 0) ||
           (strcmp(code, "0A000") == 0 &&
            strcmp(field(refusal, PG_DIAG_SOURCE_FUNCTION), "get_relation_info") == 0);
}

/* A standby accepts no writes: another host is the primary, or this one will be. If the server
 * was a primary when we connected, it still is one, because it would have to restart to become a
 * standby. Then it is the role that may not write. */
static enum trouble trouble_of_standby(struct conn *conn)
{
    conn->broken = true;
    if (conn->timeline != 0 && !conn->pooled)
        return TROUBLE_NONE;
    pg_hosts_recheck(conn->owner);
    return TROUBLE_LOST;
}

/* The event was on its way into the default partition when another session created a partition
 * for its day. */
static bool is_misplaced(const PGresult *refusal)
{
    return strcmp(field(refusal, PG_DIAG_SQLSTATE), "23514") == 0 &&
           strcmp(field(refusal, PG_DIAG_SOURCE_FUNCTION), "ExecPartitionCheckEmitError") == 0;
}

static enum trouble trouble_of(struct conn *conn, const PGresult *refusal)
{
    const char *code = field(refusal, PG_DIAG_SQLSTATE);

    if (strcmp(code, "40001") == 0 || strcmp(code, "40P01") == 0 || is_misplaced(refusal) ||
        is_outdated(conn, refusal))
        return TROUBLE_AGAIN;
    if (ends_session(code)) {
        conn->broken = true;
        return TROUBLE_LOST;
    }
    if (is_read_only(refusal))
        return trouble_of_standby(conn);
    return TROUBLE_NONE;
}

int pg_refusal_status(const PGresult *refusal, const char *database, struct lhi_error *err)
{
    const char *code = field(refusal, PG_DIAG_SQLSTATE);
    const char *said = field(refusal, PG_DIAG_MESSAGE_PRIMARY);
    int status = own_status(code);

    if (status != 0)
        return lhi_fail(err, status, "%s", said);
    if (strcmp(field(refusal, PG_DIAG_CONSTRAINT_NAME), "delta_nonce") == 0)
        return lhi_fail(err, LH_EBUSY, "store is busy: another call has used this nonce");
    status = is_read_only(refusal) ? LH_EREADONLY : status_of(code);
    if (status == LH_ENOSTORE)
        return lhi_fail(err, status,
                        "database \"%s\" has no leasehold schema: \"leasehold migrate\" adds it",
                        database);
    if (strcmp(code, "57014") == 0)
        return lhi_fail(err, status, "store is busy: the database did not answer in time");
    return lhi_fail(err, status, "%s: %s", lh_status_text(status), said);
}

static int refused(struct txn *txn, const PGresult *refusal, struct lhi_error *err)
{
    txn->trouble = trouble_of(txn->conn, refusal);
    if (own_status(field(refusal, PG_DIAG_SQLSTATE)) == 0)
        lhi_log(&txn->pg->log, LH_LOG_DEBUG, "database refused a call: %s: %s; %s",
                field(refusal, PG_DIAG_SQLSTATE), field(refusal, PG_DIAG_MESSAGE_PRIMARY),
                field(refusal, PG_DIAG_CONTEXT));
    return pg_refusal_status(refusal, txn->pg->target.database, err);
}

static int lost(struct txn *txn, const struct answer *answer, bool may_stand, struct lhi_error *err)
{
    const char *why = answer->late              ? "no answer in time"
                      : answer->refusal != NULL ? field(answer->refusal, PG_DIAG_MESSAGE_PRIMARY)
                                                : PQerrorMessage(txn->conn->pg);

    txn->trouble = may_stand ? TROUBLE_UNKNOWN : TROUBLE_LOST;
    if (may_stand)
        return lhi_fail(err, LH_EUNKNOWN,
                        "outcome is unknown: the connection to \"%s\" was lost: %.*s",
                        txn->pg->target.name, (int)strcspn(why, "\n"), why);
    return lhi_fail(err, answer->late ? LH_EBUSY : LH_EUNREACH,
                    answer->late ? "store is busy: \"%s\": %.*s"
                                 : "connection to \"%s\" was lost: %.*s",
                    txn->pg->target.name, (int)strcspn(why, "\n"), why);
}

bool pg_from_pooler(const PGresult *refusal)
{
    return PQresultErrorField(refusal, PG_DIAG_SOURCE_FUNCTION) == NULL;
}

/* ---- a call ---- */

int pg_fail_too_big(struct lhi_error *err)
{
    return lhi_fail(err, LH_ETOOBIG, "call is larger than %d MiB: split it", MOST_MIB);
}

/* `may_stand`: if the connection is lost now, the transaction may have committed. */
static int finish_call(struct txn *txn, struct answer *answer, bool sent, bool may_stand,
                       struct lhi_error *err)
{
    struct conn *conn = txn->conn;

    txn->trouble = TROUBLE_NONE;
    if (!sent || PQpipelineSync(conn->pg) == 0) {
        conn->broken = true;
        return lost(txn, answer, sent && may_stand, err);
    }
    bool came = send_and_receive(conn, answer, txn->deadline);
    /* A refused statement was not done. But a server that stopped during the commit may have
     * committed, and a pooler that lost its server does not know. */
    if (!came && (answer->refusal == NULL || answer->ending || pg_from_pooler(answer->refusal)))
        return lost(txn, answer, may_stand, err);
    if (answer->refusal != NULL)
        return refused(txn, answer->refusal, err);
    /* If memory ran out, libpq may have discarded the last result, although the server has done
     * the statement. */
    if (answer->result == NULL || answer->n != answer->sent) {
        conn->broken = true;
        return lost(txn, answer, may_stand, err);
    }
    return LH_OK;
}

static int run(struct txn *txn, int which, const char *sql, struct args *args, struct rows *rows,
               struct lhi_error *err)
{
    static const struct args none;
    struct answer answer = {.prepare = -1};
    const struct args *given = args != NULL ? args : &none;

    if (given->no_memory)
        return lhi_no_memory(err);
    if (given->too_big)
        return pg_fail_too_big(err);
    assert(given->array.left == 0);
    /* A second call would be a second transaction. */
    assert(!txn->writes || txn->wrapped || txn->calls == 0);
    bool sent = send_opening(txn, &answer);
    if (sent)
        sent = which >= 0 && may_prepare(txn->conn)
                   ? send_named(txn->conn, (enum lhi_postgres_call)which, given, &answer)
                   : send_unnamed(txn->conn, sql, given, &answer);
    txn->begun = txn->wrapped;
    int rc = finish_call(txn, &answer, sent, txn->writes && !txn->wrapped, err);
    if (answer.prepared)
        txn->conn->prepared[which] = true;
    if (rc == LH_OK) {
        txn->calls++;
        if (rows != NULL) {
            rows->result = answer.result;
            rows->n = PQntuples(answer.result);
            answer.result = NULL;
        }
    }
    answer_clear(&answer);
    return rc;
}

int pg_call(struct txn *txn, enum lhi_postgres_call which, struct args *args, struct rows *rows,
            struct lhi_error *err)
{
    if (rows != NULL)
        *rows = (struct rows){0};
    int rc = run(txn, (int)which, lhi_postgres_sql[which].text, args, rows, err);
    if (args != NULL)
        pg_args_clear(args);
    return rc;
}

int pg_call_next(struct txn *txn, enum lhi_postgres_call which, struct args *args,
                 struct rows *rows, struct lhi_error *err)
{
    txn->calls = 0;
    return pg_call(txn, which, args, rows, err);
}

int pg_call_text(struct txn *txn, const char *sql, struct args *args, struct rows *rows,
                 struct lhi_error *err)
{
    if (rows != NULL)
        *rows = (struct rows){0};
    int rc = run(txn, -1, sql, args, rows, err);
    if (args != NULL)
        pg_args_clear(args);
    return rc;
}

/* ---- transactions ---- */

void pg_txn_wrap(struct txn *txn)
{
    txn->wrapped = true;
}

int pg_txn_commit(struct txn *txn, struct lhi_error *err)
{
    struct answer answer = {.prepare = -1};

    if (!txn->begun)
        return LH_OK;
    bool sent = send_text(txn->conn, &answer, "COMMIT");
    int rc = finish_call(txn, &answer, sent, txn->writes, err);
    txn->begun = false;
    if (rc == LH_OK && strcmp(PQcmdStatus(answer.result), "COMMIT") != 0)
        rc = lhi_fail(err, LH_EFAIL, "the database rolled back instead of committing");
    answer_clear(&answer);
    return rc;
}

void pg_txn_rollback(struct txn *txn)
{
    struct answer answer = {.prepare = -1};

    if (txn->begun && !txn->conn->broken && PQstatus(txn->conn->pg) == CONNECTION_OK) {
        if (!send_text(txn->conn, &answer, "ROLLBACK") || PQpipelineSync(txn->conn->pg) == 0 ||
            !send_and_receive(txn->conn, &answer, pg_real_ms() + CANCEL_MS))
            txn->conn->broken = true;
    }
    txn->begun = false;
    answer_clear(&answer);
}

int pg_call_script(struct txn *txn, const char *sql, struct lhi_error *err)
{
    struct conn *conn = txn->conn;
    struct answer answer = {.prepare = -1};

    if (PQexitPipelineMode(conn->pg) == 0 || PQsendQuery(conn->pg, sql) == 0) {
        conn->broken = true;
        return lost(txn, &answer, false, err);
    }
    /* Outside the pipeline, a NULL result ends the results. */
    bool came = true;
    int unsent = 1;
    for (PGresult *result = NULL; came;) {
        if (unsent != 0)
            unsent = PQflush(conn->pg);
        if (unsent <= 0 && PQisBusy(conn->pg) == 0) {
            if ((result = PQgetResult(conn->pg)) == NULL)
                break;
            take_result(&answer, result);
            continue;
        }
        came = await_socket(conn, unsent != 0, txn->deadline) && PQconsumeInput(conn->pg) != 0;
    }
    came = came && PQstatus(conn->pg) == CONNECTION_OK;
    conn->broken = conn->broken || !came || PQenterPipelineMode(conn->pg) == 0;
    int rc = answer.refusal != NULL ? refused(txn, answer.refusal, err)
             : came                 ? LH_OK
                                    : lost(txn, &answer, false, err);
    answer_clear(&answer);
    return rc;
}
