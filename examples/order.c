/*
 * An order and the job that confirms it, in one transaction of the application's own database:
 * both exist, or neither.
 *
 *     order DATABASE WHAT
 */
#include <leasehold.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

static int place_order(sqlite3 *db, const char *what)
{
    char why[256] = "";
    char payload[128];
    lh_enqueued made;
    sqlite3_stmt *insert = NULL;
    int rc = LH_EFAIL;

    if (sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK)
        return LH_EBUSY;
    if (sqlite3_prepare_v2(db, "INSERT INTO orders(what) VALUES (?1)", -1, &insert, NULL) ==
            SQLITE_OK &&
        sqlite3_bind_text(insert, 1, what, -1, SQLITE_STATIC) == SQLITE_OK &&
        sqlite3_step(insert) == SQLITE_DONE) {
        snprintf(payload, sizeof payload, "{\"order\":%lld}",
                 (long long)sqlite3_last_insert_rowid(db));
        lh_new_job job = {.kind = "confirm", .payload = payload, .payload_len = strlen(payload)};
        rc = lh_enqueue_sqlite(db, "mail", &job, 1, &made, why, sizeof why);
    }
    sqlite3_finalize(insert);
    if (rc == LH_OK && sqlite3_exec(db, "COMMIT", NULL, NULL, NULL) == SQLITE_OK) {
        printf("ordered, and job %lld will confirm it\n", (long long)made.id);
        return LH_OK;
    }
    sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    fprintf(stderr, "no order: %s\n", why[0] ? why : sqlite3_errmsg(db));
    return rc == LH_OK ? LH_EFAIL : rc;
}

int main(int argc, char **argv)
{
    sqlite3 *db = NULL;

    if (argc != 3 || sqlite3_open(argv[1], &db) != SQLITE_OK) {
        fprintf(stderr, "usage: order DATABASE WHAT\n");
        return 2;
    }
    sqlite3_busy_timeout(db, 5000);
    int rc = place_order(db, argv[2]);
    sqlite3_close(db);
    return lh_status_exit(rc);
}
