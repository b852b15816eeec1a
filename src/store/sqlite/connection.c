/* One connection to the database: its settings, waiting while the file is busy, and WAL mode. */
#include "store/sqlite/files/trust.h"
#include "store/sqlite/open.h"
#include "store/sqlite/row_sum.h"

#include "base/clock.h"

#include <string.h>

enum { BUSY_STEPS = 1550 };

/* Our own writers wait for the writer lock and never meet here. But a program of somebody else may
 * hold SQLite's write lock, and the first process that opens a store rebuilds the index of the log.
 * Wait in small steps, for 1.55 s in total (50 ms, doubled four times). */
static int busy_handler(void *arg, int steps)
{
    (void)arg;
    if (steps >= BUSY_STEPS)
        return 0;
    lhi_sleep_ms(1);
    return 1;
}

void sq_conn_set_busy_wait(struct conn *conn, bool wait)
{
    (void)sqlite3_busy_handler(conn->db, wait ? busy_handler : NULL, NULL);
}

int sq_conn_open(struct conn *conn, const char *path, int flags, struct lhi_error *err)
{
    int status = sq_trust_names(path, (flags & SQLITE_OPEN_READWRITE) != 0, err);

    if (status != LH_OK)
        return status;
    int rc = sqlite3_open_v2(path, &conn->db,
                             flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, NULL);
    if (rc != SQLITE_OK)
        return sq_fail(conn, rc, err);
    (void)sqlite3_extended_result_codes(conn->db, 1);
    sq_conn_set_busy_wait(conn, true);
    (void)sqlite3_db_config(conn->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    (void)sqlite3_db_config(conn->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    (void)sqlite3_db_config(conn->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    if (sq_row_sum_register(conn, err) < 0)
        return err->status;
    return sq_exec(
        conn,
        "PRAGMA foreign_keys = ON; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;"
        "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0; PRAGMA temp_store = MEMORY",
        err);
}

static bool in_wal_mode(struct conn *conn, const char *pragma, int *rc)
{
    sqlite3_stmt *stmt = NULL;

    *rc = sqlite3_prepare_v2(conn->db, pragma, -1, &stmt, NULL);
    if (*rc == SQLITE_OK)
        *rc = sqlite3_step(stmt);
    bool wal = *rc == SQLITE_ROW &&
               sqlite3_stricmp((const char *)sqlite3_column_text(stmt, 0), "wal") == 0;
    (void)sqlite3_finalize(stmt);
    return wal;
}

/* False: the file says in its header that it is not in WAL mode. */
static bool header_says_wal(struct conn *conn)
{
    enum { WRITE_VERSION_AT = 18, WAL_VERSION = 2 };
    unsigned char versions[2] = {0};
    sqlite3_file *file = NULL;

    return sqlite3_file_control(conn->db, "main", SQLITE_FCNTL_FILE_POINTER, &file) != SQLITE_OK ||
           file == NULL || file->pMethods == NULL ||
           file->pMethods->xRead(file, versions, sizeof versions, WRITE_VERSION_AT) != SQLITE_OK ||
           (versions[0] == WAL_VERSION && versions[1] == WAL_VERSION);
}

/* A log beside the file is enough for SQLite to use WAL mode; the header then stays as it is. A power
 * loss can leave a log and the header from before the switch. As soon as that log is empty, the next
 * connection would take the file for one in rollback mode. So the WAL is checkpointed and the switch repeated. */
static bool switch_to_wal(struct conn *conn, int *rc)
{
    if (in_wal_mode(conn, "PRAGMA journal_mode", rc) && !header_says_wal(conn)) {
        (void)in_wal_mode(conn, "PRAGMA journal_mode = DELETE", rc);
        if (*rc != SQLITE_ROW)
            return false;
    }
    return in_wal_mode(conn, "PRAGMA journal_mode = WAL", rc);
}

/* Several processes may open a new file at once, and a program of somebody else may use it. SQLite
 * writes the change of mode with a rollback journal, whose checksum takes a page of zeros for a
 * page that is nearly empty. So the journal must be completely on the disk before it counts. EXTRA also
 * makes the removal of the journal durable: a journal that a power loss brings back would undo the
 * switch. */
int sq_set_wal_mode(struct conn *conn, bool *changed, struct lhi_error *err)
{
    int64_t deadline = lhi_mono_ms() + BUSY_STEPS;
    int rc;

    *changed = !in_wal_mode(conn, "PRAGMA journal_mode", &rc);
    if ((*changed || !header_says_wal(conn)) &&
        (rc = sq_exec(conn, "PRAGMA synchronous = EXTRA", err)) < 0)
        return rc;
    for (;;) {
        if (switch_to_wal(conn, &rc))
            return sq_exec(conn, "PRAGMA synchronous = NORMAL", err);
        if (rc == SQLITE_ROW)
            return lhi_fail(err, LH_EFAIL, "database cannot be switched to WAL mode here");
        int status = sq_fail(conn, rc, err);
        if (status != LH_EBUSY || lhi_mono_ms() >= deadline)
            return status;
        lhi_sleep_ms(1);
    }
}
