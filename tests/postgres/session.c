/* session.c: a plain SQL client for tests; see session.h. */
#include "session.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_MS = 5000 };

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

void begin_to_wait(PGconn *session, const char *sql)
{
    PGconn *watch = session_to(test_store());
    bool waits = false;

    EXPECT(PQsendQuery(session, sql));
    for (int i = 0; i < PATIENCE_MS && !waits; i++) {
        waits = strcmp(said(watch, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %d",
                            PQbackendPID(session)),
                       "Lock") == 0;
        EXPECT(PQconsumeInput(session));
        if (!PQisBusy(session))
            FAIL("it did not wait: %s", sql);
        (void)usleep(1000);
    }
    EXPECT(waits);
    PQfinish(watch);
}
