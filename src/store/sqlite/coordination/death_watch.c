/* The death watch of a SQLite store: store/death_watch.c watches the processes of its workers. */
#include "store/sqlite/acts/recovery.h"
#include "store/sqlite/coordination/watch.h"
#include "store/sqlite/open.h"

enum { REFRESH_MS = 5000 };

static bool workers(void *arg, struct lhi_suspects *out)
{
    struct db *db = arg;
    struct lhi_error ignored;

    if (db->death_watch_conn.db == NULL &&
        sq_conn_open(&db->death_watch_conn, db->file, SQLITE_OPEN_READONLY, &ignored) != LH_OK)
        sq_conn_close(&db->death_watch_conn);
    return db->death_watch_conn.db != NULL &&
           sq_read_suspects(&db->death_watch_conn, LHI_SQL_WORKER_JUDGE, 0, out, &ignored) == LH_OK;
}

static void wake(void *arg)
{
    struct db *db = arg;
    sq_wake_maintenance(&db->coord);
}

void sq_death_watch_init(struct db *db)
{
    lhi_death_watch_init(
        &db->deaths, &(struct lhi_death_watch_of){
                         .arg = db, .workers = workers, .wake = wake, .refresh_ms = REFRESH_MS});
}

void sq_death_watch_start(struct db *db)
{
    uint32_t heard = sq_maintenance_ticket(&db->coord);

    if (!db->opts.read_only && !db->opts.no_recovery)
        lhi_death_watch_start(&db->deaths, heard);
}

void sq_death_watch_clear(struct db *db)
{
    lhi_death_watch_clear(&db->deaths);
    sq_conn_close(&db->death_watch_conn);
}
