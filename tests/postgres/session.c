#include "session.h"

#include <stdarg.h>
#include <stdio.h>

PGconn *session_to(const char *url)
{
    PGconn *session = PQconnectdb(url);

    if (PQstatus(session) != CONNECTION_OK)
        FAIL("%s", PQerrorMessage(session));
    return session;
}

PGconn *session_at(int64_t now_ms)
{
    PGconn *session = session_to(test_store());

    (void)said(session, "SET client_min_messages = error");
    session_clock(session, now_ms);
    return session;
}

void session_clock(PGconn *session, int64_t now_ms)
{
    (void)said(session, "SET leasehold.test_now = '%lld'", (long long)now_ms);
}

void done(PGconn *session, const char *sql)
{
    PGresult *result = PQexec(session, sql);
    ExecStatusType status = PQresultStatus(result);

    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
        FAIL("%s: %s", sql, PQresultErrorMessage(result));
    PQclear(result);
}

const char *said(PGconn *session, const char *fmt, ...)
{
    static char answer[8000];
    char text[4000];
    size_t used = 0;
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    PGresult *result = PQexec(session, text);
    answer[0] = '\0';
    if (PQresultStatus(result) == PGRES_TUPLES_OK) {
        for (int i = 0; PQntuples(result) > 0 && i < PQnfields(result); i++)
            used += (size_t)snprintf(answer + used, sizeof answer - used, "%s%s", i ? " " : "",
                                     PQgetvalue(result, 0, i));
    } else if (PQresultStatus(result) != PGRES_COMMAND_OK) {
        (void)snprintf(answer, sizeof answer, "%s %s", PQresultErrorField(result, PG_DIAG_SQLSTATE),
                       PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY));
    }
    PQclear(result);
    return answer;
}
