/*
 * An order and the job that confirms it, in one transaction of the application's own database on
 * PostgreSQL: both exist, or neither.
 *
 *     order_pg CONNECTION WHAT
 */
#include <leasehold.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int done(PGresult *result)
{
    int ok = PQresultStatus(result) == PGRES_COMMAND_OK;
    PQclear(result);
    return ok;
}

/* The number of the new order; 0: it was refused. */
static long insert_order(PGconn *db, const char *what)
{
    long number = 0;
    PGresult *result = PQexecParams(db, "INSERT INTO purchase(what) VALUES ($1) RETURNING id", 1,
                                    NULL, &what, NULL, NULL, 0);

    if (PQresultStatus(result) == PGRES_TUPLES_OK)
        number = strtol(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return number;
}

/* The transaction is open. */
static int order_and_enqueue(PGconn *db, const char *what, lh_enqueued *made, char *why, size_t len)
{
    char payload[64];
    long number = insert_order(db, what);

    if (number == 0)
        return LH_EFAIL;
    snprintf(payload, sizeof payload, "{\"order\":%ld}", number);
    lh_new_job job = {.kind = "confirm", .payload = payload, .payload_len = strlen(payload)};
    return lh_enqueue_postgres(db, "mail", &job, 1, made, why, len);
}

static int place_order(PGconn *db, const char *what)
{
    char why[256] = "";
    lh_enqueued made;

    if (!done(PQexec(db, "BEGIN")))
        return LH_EUNREACH;
    int rc = order_and_enqueue(db, what, &made, why, sizeof why);
    if (rc == LH_OK && done(PQexec(db, "COMMIT"))) {
        printf("ordered, and job %lld will confirm it\n", (long long)made.id);
        return LH_OK;
    }
    if (rc == LH_OK && PQstatus(db) != CONNECTION_OK) {
        fprintf(stderr, "whether it was ordered is not known: %s", PQerrorMessage(db));
        return LH_EUNKNOWN;
    }
    fprintf(stderr, "no order: %s\n", why[0] ? why : PQerrorMessage(db));
    PQclear(PQexec(db, "ROLLBACK"));
    return rc == LH_OK ? LH_EFAIL : rc;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: order_pg CONNECTION WHAT\n");
        return 2;
    }
    PGconn *db = PQconnectdb(argv[1]);
    int rc = LH_EUNREACH;
    if (PQstatus(db) != CONNECTION_OK)
        fprintf(stderr, "%s", PQerrorMessage(db));
    else if (PQsetClientEncoding(db, "UTF8") == 0)
        rc = place_order(db, argv[2]);
    PQfinish(db);
    return lh_status_exit(rc);
}
