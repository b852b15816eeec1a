/* The contents of a database file: our tables, their version, and the values in lh_meta. */
#include "store/sqlite/open.h"
#include "store/sqlite/row_sum.h"

#include "base/clock.h"
#include "base/hook.h"
#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { APPLICATION_ID = 0x4c484c44 }; /* "LHLD" */

/* ---- meta ---- */

enum { META_VALUE = 1 };

/* Read the row of this key. A damaged row is an error. */
static int meta_get(struct conn *conn, const char *key, sqlite3_stmt **out, struct lhi_error *err)
{
    *out = sq_stmt(conn, LHI_SQL_META_GET, err, "t", key);
    int rc = *out ? sq_step(conn, *out, err) : err->status;

    /* A later version may compute checksums in another way, and first it must be recognized as
     * later. */
    if (rc != LH_OK || strcmp(key, "schema_version") == 0 || sq_row_sum_matches(*out))
        return rc;
    sq_reset(*out);
    return sq_damaged_row("value in lh_meta", key, err);
}

int sq_meta_int(struct conn *conn, const char *key, int64_t fallback, int64_t *out,
                struct lhi_error *err)
{
    sqlite3_stmt *stmt;
    int rc = meta_get(conn, key, &stmt, err);

    if (rc < 0)
        return rc;
    *out = rc == LH_OK ? sqlite3_column_int64(stmt, META_VALUE) : fallback;
    sq_reset(stmt);
    return LH_OK;
}

int sq_meta_set_int(struct conn *conn, const char *key, int64_t value, struct lhi_error *err)
{
    return sq_run(conn, LHI_SQL_META_SET, err, "ti", key, value) < 0 ? err->status : LH_OK;
}

int sq_meta_set_text(struct conn *conn, const char *key, const char *value, struct lhi_error *err)
{
    return sq_run(conn, LHI_SQL_META_SET, err, "tt", key, value) < 0 ? err->status : LH_OK;
}

int sq_epoch_set(struct conn *conn, int64_t epoch, struct lhi_error *err)
{
    int rc = sq_meta_set_int(conn, "epoch", epoch, err);
    return rc < 0 ? rc : sq_meta_set_int(conn, "epoch_copy", epoch, err);
}

int sq_meta_text(struct conn *conn, const char *key, char *out, size_t len, struct lhi_error *err)
{
    sqlite3_stmt *stmt;
    int rc = meta_get(conn, key, &stmt, err);

    if (rc < 0)
        return rc;
    const unsigned char *text = rc == LH_OK ? sqlite3_column_text(stmt, META_VALUE) : NULL;
    lhi_format(out, len, "%s", text ? (const char *)text : "");
    sq_reset(stmt);
    return LH_OK;
}

/* ---- what is in the file ---- */

static int pragma_int(struct conn *conn, const char *text, int64_t *out, struct lhi_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(conn->db, text, -1, &stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        *out = sqlite3_column_int64(stmt, 0);
    int status =
        rc == SQLITE_ROW ? LH_OK : sq_fail(conn, rc == SQLITE_DONE ? SQLITE_ERROR : rc, err);
    (void)sqlite3_finalize(stmt);
    return status;
}

int sq_schema_look(struct conn *conn, enum contents *out, int64_t *version, struct lhi_error *err)
{
    int64_t tables = 0, ours = 0;
    int rc;

    *version = 0;
    if ((rc = pragma_int(conn, "SELECT count(*) FROM sqlite_schema", &tables, err)) < 0 ||
        (rc = pragma_int(conn,
                         "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN "
                         "('lh_meta', 'lh_job')",
                         &ours, err)) < 0)
        return rc;
    *out = ours == 2 ? CONTENTS_OURS : tables > 0 ? CONTENTS_FOREIGN : CONTENTS_EMPTY;
    if (ours == 1)
        return lhi_fail(err, LH_ECORRUPT, "one of the tables lh_meta and lh_job is missing");
    if (*out != CONTENTS_OURS)
        return LH_OK;
    int known = sq_meta_int(conn, "schema_version", 0, version, err);
    if (known == LH_OK && *version < 1)
        return lhi_fail(err, LH_ECORRUPT, "the tables have no schema version in lh_meta");
    return known;
}

/* All steps run in one transaction: a store has the old version or the new one. */
static int migrate(struct db *db, int64_t from, bool own_file, struct lhi_error *err)
{
    struct conn *conn = &db->conn;
    char uuid[37];
    int rc = from == 0 ? sq_clock_usable(lhi_wall_ms(), err) : LH_OK;

    if (rc < 0 || (rc = sq_exec(conn, "BEGIN IMMEDIATE", err)) < 0)
        return rc;
    for (int i = (int)from; i < lhi_sqlite_migration_count && rc == LH_OK; i++) {
        rc = sq_exec(conn, lhi_sqlite_migrations[i].text, err);
        LHI_POINT("migrate:step");
    }
    if (rc == LH_OK && from == 0) {
        lhi_uuid(uuid);
        if ((rc = sq_meta_set_text(conn, "store_uuid", uuid, err)) == LH_OK &&
            (rc = sq_meta_set_int(conn, "created_at", lhi_wall_ms(), err)) == LH_OK &&
            (rc = sq_meta_set_int(conn, "own_file", own_file, err)) == LH_OK &&
            (rc = sq_epoch_set(conn, 0, err)) == LH_OK &&
            (rc = sq_meta_set_text(conn, "last_path", db->file, err)) == LH_OK &&
            (rc = sq_meta_set_text(conn, "anchor_boot", db->boot, err)) == LH_OK &&
            (rc = sq_meta_set_int(conn, "anchor_wall", lhi_wall_ms(), err)) == LH_OK)
            rc = sq_meta_set_int(conn, "anchor_mono", sq_machine_ms(db), err);
    }
    if (rc == LH_OK)
        rc = sq_meta_set_int(conn, "schema_version", lhi_sqlite_migration_count, err);
    if (rc == LH_OK)
        rc = sq_run(conn, LHI_SQL_STORE_GENERATION, err, "") < 0 ? err->status : LH_OK;
    LHI_POINT("migrate:before_commit");
    if (rc == LH_OK)
        rc = sq_exec(conn, "COMMIT", err);
    if (rc < 0) {
        struct lhi_error ignored;
        (void)sq_exec(conn, "ROLLBACK", &ignored);
    }
    db->fresh = rc == LH_OK && from == 0;
    LHI_POINT("migrate:after_commit");
    return rc;
}

int sq_schema_update(struct db *db, struct lhi_error *err)
{
    enum contents contents;
    int64_t version;
    int rc = sq_schema_look(&db->conn, &contents, &version, err);

    if (rc < 0)
        return rc;
    if (contents == CONTENTS_OURS && version > lhi_sqlite_migration_count)
        return lhi_fail(err, LH_ENEWER,
                        "store \"%s\" has schema version %lld, this program knows up to %d: "
                        "use a newer leasehold",
                        db->path, (long long)version, lhi_sqlite_migration_count);
    if (contents == CONTENTS_FOREIGN && !db->opts.adopt)
        return lhi_fail(err, LH_ENOSTORE,
                        "database \"%s\" has no leasehold tables: \"leasehold migrate\" adds them",
                        db->path);
    if (contents == CONTENTS_OURS && version == lhi_sqlite_migration_count)
        return LH_OK;
    if (contents == CONTENTS_EMPTY && !db->opts.create)
        return lhi_fail(err, LH_ENOSTORE, "there is no store in \"%s\"", db->path);
    if (contents == CONTENTS_OURS && !db->opts.create && !db->opts.adopt)
        return lhi_fail(err, LH_ENOSTORE,
                        "store \"%s\" has the older schema version %lld: \"leasehold migrate\" "
                        "brings it up to date",
                        db->path, (long long)version);
    bool own_file = contents == CONTENTS_EMPTY;
    if (own_file) {
        /* A file that has only our tables is marked as ours; a database of the user's is not.
         * sq_set_wal_mode() explains synchronous = EXTRA. */
        char text[160];
        lhi_format(text, sizeof text,
                   "PRAGMA synchronous = EXTRA; PRAGMA auto_vacuum = INCREMENTAL; "
                   "PRAGMA application_id = %d; PRAGMA user_version = %d",
                   APPLICATION_ID, lhi_sqlite_migration_count);
        if ((rc = sq_exec(&db->conn, text, err)) < 0)
            return rc;
    }
    bool changed;
    if ((rc = sq_set_wal_mode(&db->conn, &changed, err)) < 0)
        return rc;
    rc = migrate(db, version, own_file, err);
    if (rc == LH_OK && contents != CONTENTS_EMPTY)
        lhi_log(&db->log, LH_LOG_INFO, "store \"%s\" migrated from version %lld to %d", db->path,
                (long long)version, lhi_sqlite_migration_count);
    return rc;
}

/* ---- functions for the core ---- */

static char version_text[32];
static pthread_once_t version_once = PTHREAD_ONCE_INIT;

static void format_version(void)
{
    lhi_format(version_text, sizeof version_text, "SQLite %s", sqlite3_libversion());
}

const char *lhi_sqlite_version(void)
{
    pthread_once(&version_once, format_version);
    return version_text;
}

int lhi_sqlite_schema_version(void)
{
    return lhi_sqlite_migration_count;
}

int lhi_sqlite_schema_of(const char *path, int *version, struct lhi_error *err)
{
    enum contents contents;
    int64_t found = 0;
    struct stat st;

    *version = 0;
    if (stat(path, &st) != 0)
        return lhi_fail(err, LH_ENOSTORE, "there is no store at \"%s\"", path);
    if (!S_ISREG(st.st_mode)) /* reading a pipe would wait for a writer */
        return lhi_fail(err, LH_EINVAL, "store \"%s\" is not a regular file", path);
    struct db *db = lhi_calloc(1, sizeof *db);
    if (db == NULL)
        return lhi_no_memory(err);
    lhi_format(db->path, sizeof db->path, "%s", path);
    db->opts.read_only = true;
    int rc = sq_fork_guard_enter(&db->fork_guard, path, err);
    if (rc == LH_OK && realpath(path, db->file) == NULL)
        rc = lhi_fail_errno(err, errno, "could not look at \"%s\"", path);
    if (rc == LH_OK)
        rc = sq_conn_open_to_read(db, &db->conn, err);
    if (rc == LH_OK)
        rc = sq_schema_look(&db->conn, &contents, &found, err);
    if (rc == LH_OK)
        *version = (int)found;
    sq_conn_close(&db->conn);
    sq_fork_guard_leave(&db->fork_guard);
    lhi_free(db);
    return rc;
}

int sq_schema_drop_sql(struct conn *conn, char **out, struct lhi_error *err)
{
    sqlite3_stmt *stmt = NULL;
    size_t used, room = 64;
    char *text = lhi_malloc(room);

    if (text == NULL)
        return lhi_no_memory(err);
    used = lhi_format(text, room, "BEGIN IMMEDIATE;\n");
    /* Dropping a table also drops its indexes and triggers. \\_ excludes names of the user's such
     * as lhx_. */
    int rc = sqlite3_prepare_v2(conn->db,
                                "SELECT type, name FROM sqlite_schema WHERE type IN "
                                "('view', 'table') AND name LIKE 'lh\\_%' ESCAPE '\\' "
                                "ORDER BY type DESC, name",
                                -1, &stmt, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        char line[256];
        size_t len = lhi_format(line, sizeof line, "DROP %s %s;\n", sqlite3_column_text(stmt, 0),
                                sqlite3_column_text(stmt, 1));
        char *grown = lhi_realloc(text, used + len + 16);
        rc = grown ? SQLITE_OK : SQLITE_NOMEM;
        if (grown == NULL)
            break;
        text = grown;
        memcpy(text + used, line, len + 1);
        used += len;
        room = used + 16;
    }
    if (rc != SQLITE_DONE)
        (void)sq_fail(conn, rc, err);
    (void)sqlite3_finalize(stmt);
    if (rc != SQLITE_DONE) {
        lhi_free(text);
        return err->status;
    }
    lhi_format(text + used, room - used, "COMMIT;\n");
    *out = text;
    return LH_OK;
}
