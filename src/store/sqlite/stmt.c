/* Prepared statements: binding in order, and stepping. */
#include "store/sqlite/stmt.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

int sq_fail(struct conn *conn, int code, struct lhi_error *err)
{
    static const struct {
        int code, status;
    } map[] = {
        {SQLITE_BUSY, LH_EBUSY},         {SQLITE_LOCKED, LH_EBUSY},
        {SQLITE_FULL, LH_ENOSPC},        {SQLITE_NOMEM, LH_ENOMEM},
        {SQLITE_CORRUPT, LH_ECORRUPT},   {SQLITE_NOTADB, LH_EINVAL},
        {SQLITE_READONLY, LH_EREADONLY}, {SQLITE_IOERR, LH_EIO},
        {SQLITE_CANTOPEN, LH_EIO},       {SQLITE_CONSTRAINT, LH_EINVAL},
        {SQLITE_TOOBIG, LH_ETOOBIG},     {SQLITE_INTERRUPT, LH_EBUSY},
    };
    int status = LH_EFAIL;
    const char *text = conn->db ? sqlite3_errmsg(conn->db) : sqlite3_errstr(code);

    for (size_t i = 0; i < sizeof map / sizeof map[0]; i++)
        if (map[i].code == (code & 0xff))
            status = map[i].status;
    if (status == LH_ENOMEM)
        return lhi_fail(err, status, "out of memory");
    if (status == LH_EBUSY)
        return lhi_fail(err, status, "store is busy: %s",
                        (code & 0xff) == SQLITE_INTERRUPT
                            ? "reading took longer than 5 s"
                            : "another program is writing to the database file");
    int cause = conn->db ? sqlite3_system_errno(conn->db) : 0;
    if (status == LH_EIO && cause != 0)
        return lhi_fail(err, status, "%s: %s: %s", lh_status_text(status), text,
                        strerrordesc_np(cause));
    return lhi_fail(err, status, "%s: %s", lh_status_text(status), text);
}

void sq_reset(sqlite3_stmt *stmt)
{
    if (stmt != NULL)
        (void)sqlite3_reset(stmt);
}

static int bind_one(sqlite3_stmt *stmt, int at, char type, va_list ap)
{
    switch (type) {
    case 'i':
        return sqlite3_bind_int64(stmt, at, va_arg(ap, int64_t));
    case 'I': {
        int64_t value = va_arg(ap, int64_t);
        return value ? sqlite3_bind_int64(stmt, at, value) : sqlite3_bind_null(stmt, at);
    }
    case 'o': {
        const int64_t *value = va_arg(ap, const int64_t *);
        return value ? sqlite3_bind_int64(stmt, at, *value) : sqlite3_bind_null(stmt, at);
    }
    case 't':
        return sqlite3_bind_text(stmt, at, va_arg(ap, const char *), -1, SQLITE_STATIC);
    case 'b': {
        const void *bytes = va_arg(ap, const void *);
        size_t len = va_arg(ap, size_t);
        if (bytes == NULL)
            return sqlite3_bind_null(stmt, at);
        if (lh_text_ok(bytes, len))
            return sqlite3_bind_text64(stmt, at, bytes, len, SQLITE_STATIC, SQLITE_UTF8);
        return sqlite3_bind_blob64(stmt, at, bytes, len, SQLITE_STATIC);
    }
    case 'B': {
        const void *bytes = va_arg(ap, const void *);
        size_t len = va_arg(ap, size_t);
        return sqlite3_bind_blob64(stmt, at, bytes, len, SQLITE_STATIC);
    }
    default:
        assert(type == 'n');
        return sqlite3_bind_null(stmt, at);
    }
}

static sqlite3_stmt *vsql(struct conn *conn, enum lhi_sql which, struct lhi_error *err,
                          const char *fmt, va_list ap)
{
    sqlite3_stmt *stmt = conn->stmt[which];

    if (stmt == NULL) {
        int rc = sqlite3_prepare_v3(conn->db, lhi_sqlite_sql[which].text, -1,
                                    SQLITE_PREPARE_PERSISTENT, &stmt, NULL);
        if (rc != SQLITE_OK) {
            /* A column of ours does not exist: the schema is damaged. */
            if (strncmp(sqlite3_errmsg(conn->db), "no such column", 14) == 0)
                (void)lhi_fail(err, LH_ECORRUPT, "schema of the store is damaged: %s",
                               sqlite3_errmsg(conn->db));
            else
                (void)sq_fail(conn, rc, err);
            return NULL;
        }
        conn->stmt[which] = stmt;
    }
    assert(sqlite3_bind_parameter_count(stmt) == (int)strlen(fmt));
    (void)sqlite3_reset(stmt);
    for (int i = 0; fmt[i] != '\0'; i++) {
        int rc = bind_one(stmt, i + 1, fmt[i], ap);
        if (rc != SQLITE_OK) {
            (void)sq_fail(conn, rc, err);
            return NULL;
        }
    }
    return stmt;
}

sqlite3_stmt *sq_stmt(struct conn *conn, enum lhi_sql which, struct lhi_error *err, const char *fmt,
                      ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *stmt = vsql(conn, which, err, fmt, ap);
    va_end(ap);
    return stmt;
}

/* Only damage makes one of our statements break these rules of lh_job: the constraint over the
 * whole row (damaged_job.c), a type, a NULL, or a missing entry of an index. A user's trigger may
 * write to other tables and break their rules. The names of our columns distinguish the two. */
static bool is_damage_of_job(sqlite3_stmt *stmt, int code, const char *text)
{
    const char *words = sqlite3_sql(stmt);

    if (strncmp(words, "UPDATE lh_job", 13) != 0 && strncmp(words, "DELETE FROM lh_job", 18) != 0)
        return false;
    switch (code) {
    case SQLITE_CONSTRAINT_CHECK:
        /* The checksum does not cover the holder and the progress. */
        return strstr(text, "row is damaged") != NULL ||
               strstr(text, "(state = 'running') = (worker IS NOT NULL)") != NULL ||
               strstr(text, "progress BETWEEN 0 AND 100") != NULL;
    case SQLITE_CONSTRAINT_NOTNULL:
        return strstr(text, " lh_job.") != NULL;
    case SQLITE_CONSTRAINT_DATATYPE:
        return strstr(text, "column lh_job.") != NULL;
    default:
        return code == SQLITE_CORRUPT_INDEX;
    }
}

int sq_step(struct conn *conn, sqlite3_stmt *stmt, struct lhi_error *err)
{
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        return LH_OK;
    if (rc == SQLITE_DONE) {
        (void)sqlite3_reset(stmt);
        return LH_EMPTY;
    }
    /* For its holder, the lease of a damaged job is lost. */
    int status = is_damage_of_job(stmt, rc, sqlite3_errmsg(conn->db))
                     ? lhi_fail(err, LH_ELOST, "row of the job is damaged: the job is set aside")
                     : sq_fail(conn, rc, err);
    (void)sqlite3_reset(stmt);
    return status;
}

int sq_run(struct conn *conn, enum lhi_sql which, struct lhi_error *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *stmt = vsql(conn, which, err, fmt, ap);
    va_end(ap);
    if (stmt == NULL)
        return err->status;
    int rc;
    do
        rc = sq_step(conn, stmt, err);
    while (rc == LH_OK);
    return rc < 0 ? rc : sqlite3_changes(conn->db);
}

int sq_int(struct conn *conn, enum lhi_sql which, struct lhi_error *err, int64_t fallback,
           int64_t *out, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *stmt = vsql(conn, which, err, fmt, ap);
    va_end(ap);
    if (stmt == NULL)
        return err->status;
    int rc = sq_step(conn, stmt, err);
    if (rc < 0)
        return rc;
    *out = rc == LH_OK && sqlite3_column_type(stmt, 0) != SQLITE_NULL
               ? sqlite3_column_int64(stmt, 0)
               : fallback;
    sq_reset(stmt);
    return LH_OK;
}

int sq_exec(struct conn *conn, const char *text, struct lhi_error *err)
{
    int rc = sqlite3_exec(conn->db, text, NULL, NULL, NULL);
    return rc == SQLITE_OK ? LH_OK : sq_fail(conn, rc, err);
}

int sq_check_json(struct conn *conn, const char *text, const char *what, struct lhi_error *err)
{
    int64_t valid = 1;
    int rc = LH_OK;

    /* json_valid() also returns 0 when it is out of memory. If it returns 0 twice, the text is not
     * JSON. */
    for (int try = 0; text != NULL && try < 2; try++) {
        rc = sq_int(conn, LHI_SQL_JSON_CHECK, err, 0, &valid, "t", text);
        if (rc != LH_OK || valid != 0)
            break;
    }
    if (rc == LH_EFAIL || (rc == LH_OK && valid == 0)) /* "malformed JSON", or JSON5 */
        return lhi_fail(err, LH_EINVAL, "%s is not JSON: %.80s", what, text);
    return rc;
}

void sq_conn_close(struct conn *conn)
{
    for (int i = 0; i < LHI_SQL_COUNT; i++) {
        (void)sqlite3_finalize(conn->stmt[i]);
        conn->stmt[i] = NULL;
    }
    (void)sqlite3_close_v2(conn->db);
    conn->db = NULL;
}
