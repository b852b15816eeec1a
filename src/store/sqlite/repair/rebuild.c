/*
 * The new file for salvaged rows, and what it needs beside them.
 *
 * Our tables come from our own migrations, in the version that was found; an older store is
 * migrated afterwards, as always. Tables, indexes, views and triggers of other programs come from
 * the schema of the damaged file, each as a single CREATE statement. Constraints are checked while
 * rows are inserted; triggers do not run. If the lost part of the file had the store's identity,
 * its epoch or the highest ids, they are set so that nothing is issued twice.
 */
#include "store/sqlite/open.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/repair/salvage.h"
#include "store/sqlite/row_sum.h"

#include "base/clock.h"
#include "base/sys.h"

#include <string.h>
#include <unistd.h>

enum {
    APPLICATION_ID = 0x4c484c44, /* "LHLD", as in schema.c */
};

/* ---- the file ---- */

static bool starts_with(const char *text, const char *start)
{
    return sqlite3_strnicmp(text, start, (int)strlen(start)) == 0;
}

static bool is_own(const struct salvage *s)
{
    if (s->own_file >= 0)
        return s->own_file != 0;
    for (size_t i = 0; i < s->n_objects; i++)
        if (!starts_with(s->object[i].name, "lh_") && !starts_with(s->object[i].name, "sqlite_"))
            return false;
    return true;
}

static int make_file(struct salvage *s, const char *to, struct lhi_error *err)
{
    static const char *const encodings[] = {
        [SQLITE_UTF8] = "UTF-8", [SQLITE_UTF16LE] = "UTF-16le", [SQLITE_UTF16BE] = "UTF-16be"};
    const struct pages *pages = &s->pages;
    bool own = is_own(s);
    char text[400];
    int fd, rc = sq_file_create(to, &fd, err);

    if (rc != LH_OK)
        return rc;
    close(fd);
    if ((rc = sq_copy_open(&s->conn, to, err)) != LH_OK)
        return rc;
    (void)sqlite3_db_config(s->conn.db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    lhi_format(text, sizeof text,
               "PRAGMA page_size = %u; PRAGMA encoding = '%s'; PRAGMA auto_vacuum = %d; "
               "PRAGMA application_id = %lld; PRAGMA user_version = %lld; "
               "PRAGMA journal_mode = MEMORY; PRAGMA foreign_keys = OFF; BEGIN IMMEDIATE",
               pages->size, encodings[pages->encoding],
               own || (pages->mapped && pages->incremental) ? 2
               : pages->mapped                              ? 1
                                                            : 0,
               (long long)(own ? APPLICATION_ID : pages->application_id),
               (long long)(own ? s->version : pages->user_version));
    rc = sq_exec(&s->conn, text, err);
    for (int i = 0; i < (int)s->version && rc == LH_OK; i++)
        rc = sq_exec(&s->conn, lhi_sqlite_migrations[i].text, err);
    /* The row of the store itself is salvaged with the others. */
    return rc == LH_OK ? sq_exec(&s->conn, "DELETE FROM lh_queue", err) : rc;
}

/* ---- objects of other programs ---- */

/* Run one CREATE and nothing behind it, because the text comes from a damaged file. */
static int create_object(struct salvage *s, const struct object *object, struct lhi_error *err)
{
    sqlite3_stmt *stmt = NULL;
    const char *rest = "";
    int rc = SQLITE_ERROR;

    if (starts_with(object->sql, "CREATE "))
        rc = sqlite3_prepare_v2(s->conn.db, object->sql, -1, &stmt, &rest);
    if (rc == SQLITE_OK && strspn(rest, " \t\r\n;") != strlen(rest))
        rc = SQLITE_ERROR;
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    int status = rc == SQLITE_DONE ? LH_OK : sq_fail(&s->conn, rc, err);
    (void)sqlite3_finalize(stmt);
    if (status == LH_EFAIL || status == LH_EINVAL || status == LH_ECORRUPT)
        return NAME(s, "error", "lost", "%s \"%.100s\" could not be created again: %.200s",
                    object->type, object->name, err->text);
    return status;
}

/* The tables that hold its contents exist. Only the entry in the schema is missing. */
static int create_virtual(struct salvage *s, const struct object *object, struct lhi_error *err)
{
    sqlite3_stmt *stmt = NULL;

    (void)sqlite3_db_config(s->conn.db, SQLITE_DBCONFIG_DEFENSIVE, 0, NULL);
    int status = sq_exec(&s->conn, "PRAGMA writable_schema = ON", err);
    if (status == LH_OK) {
        int rc =
            sqlite3_prepare_v2(s->conn.db,
                               "INSERT INTO sqlite_schema(type, name, tbl_name, rootpage, sql) "
                               "VALUES ('table', ?1, ?1, 0, ?2)",
                               -1, &stmt, NULL);
        if (rc == SQLITE_OK &&
            (rc = sqlite3_bind_text(stmt, 1, object->name, -1, SQLITE_STATIC)) == SQLITE_OK &&
            (rc = sqlite3_bind_text(stmt, 2, object->sql, -1, SQLITE_STATIC)) == SQLITE_OK)
            rc = sqlite3_step(stmt);
        if (rc != SQLITE_DONE)
            status = sq_fail(&s->conn, rc, err);
        (void)sqlite3_finalize(stmt);
    }
    (void)sqlite3_exec(s->conn.db, "PRAGMA writable_schema = RESET", NULL, NULL, NULL);
    (void)sqlite3_db_config(s->conn.db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    return status;
}

/* Does the new file have something with this name? */
static int is_there(struct salvage *s, const char *name, bool *yes, struct lhi_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(s->conn.db, "SELECT 1 FROM sqlite_schema WHERE name = ?1", -1,
                                &stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    *yes = rc == SQLITE_ROW;
    int status = rc == SQLITE_ROW || rc == SQLITE_DONE ? LH_OK : sq_fail(&s->conn, rc, err);
    (void)sqlite3_finalize(stmt);
    return status;
}

static int create_others(struct salvage *s, const char *type, bool virtual, struct lhi_error *err)
{
    int rc = LH_OK;

    for (size_t i = 0; i < s->n_objects && rc == LH_OK; i++) {
        const struct object *object = &s->object[i];
        bool there, is_virtual;
        if (strcmp(object->type, type) != 0 || object->sql == NULL ||
            starts_with(object->name, "sqlite_"))
            continue;
        is_virtual = starts_with(object->sql, "CREATE VIRTUAL TABLE");
        rc = is_there(s, object->name, &there, err);
        if (rc == LH_OK && !there && is_virtual == virtual)
            rc = virtual ? create_virtual(s, object, err) : create_object(s, object, err);
    }
    return rc;
}

/* ---- the columns of a table ---- */

static const char *copy_column(struct salvage *s, sqlite3_stmt *stmt, int column, bool *ok)
{
    const char *text = (const char *)sqlite3_column_text(stmt, column);
    char *copy = text ? lhi_arena_strdup(&s->arena, text) : NULL;
    *ok = *ok && copy != NULL;
    return copy;
}

static char kind_of(const char *type)
{
    if (sqlite3_stricmp(type, "INTEGER") == 0 || sqlite3_stricmp(type, "INT") == 0)
        return 'i';
    return sqlite3_stricmp(type, "TEXT") == 0 ? 't' : ' ';
}

/* The columns in the order of the record. A computed column may be in the record, but cannot be
 * set. */
static int load_columns(struct salvage *s, struct table *table, struct lhi_error *err)
{
    static const char in_order[] =
        "SELECT name, type, \"notnull\", pk, hidden FROM pragma_table_xinfo(?1) "
        "WHERE hidden <> 2 ORDER BY cid";
    static const char by_key[] =
        "SELECT c.name, c.type, c.\"notnull\", 0, c.hidden FROM pragma_index_list(?1) l "
        "JOIN pragma_index_xinfo(l.name) x JOIN pragma_table_xinfo(?1) c ON c.cid = x.cid "
        "WHERE l.origin = 'pk' AND c.hidden <> 2 ORDER BY x.seqno";
    sqlite3_stmt *stmt = NULL;
    bool ok = true;
    int keys = 0;
    size_t id = 0;
    int rc = sqlite3_prepare_v2(s->conn.db, table->keyed ? by_key : in_order, -1, &stmt, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(stmt, 1, table->name, -1, SQLITE_STATIC);
    while (rc == SQLITE_OK && ok && (rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        struct table_column *grown = sq_grow(table->column, table->n, sizeof *grown);
        rc = SQLITE_OK;
        if (grown == NULL) {
            ok = false;
            break;
        }
        table->column = grown;
        const char *name = copy_column(s, stmt, 0, &ok);
        table->column[table->n] = (struct table_column){
            .name = sqlite3_column_int(stmt, 4) == 3 ? NULL : name,
            .kind = ok ? kind_of((const char *)sqlite3_column_text(stmt, 1)) : ' ',
            .required = sqlite3_column_int(stmt, 2) != 0};
        if (sqlite3_column_int(stmt, 3) != 0) {
            keys++;
            id = table->n;
        }
        table->n++;
    }
    int status = !ok ? lhi_no_memory(err) : rc == SQLITE_DONE ? LH_OK : sq_fail(&s->conn, rc, err);
    (void)sqlite3_finalize(stmt);
    if (status == LH_OK && keys == 1 && table->column[id].kind == 'i')
        table->column[id].id = true;
    return status;
}

/* A row id that is no column has three names, and columns may have taken any of them. */
static void name_rowid(struct table *table)
{
    static const char *const names[] = {"rowid", "_rowid_", "oid"};

    for (size_t k = 0; k < 3 && !table->keyed; k++) {
        bool taken = false;
        for (size_t i = 0; i < table->n; i++) {
            if (table->column[i].id)
                return;
            taken = taken || (table->column[i].name != NULL &&
                              sqlite3_stricmp(table->column[i].name, names[k]) == 0);
        }
        if (!taken) {
            table->rowid = names[k];
            return;
        }
    }
}

static int load_tables(struct salvage *s, bool ours, struct lhi_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(s->conn.db,
                                "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' "
                                "AND type IN ('table', 'shadow') AND name NOT LIKE 'sqlite\\_%' "
                                "ESCAPE '\\'",
                                -1, &stmt, NULL);
    int status = rc == SQLITE_OK ? LH_OK : sq_fail(&s->conn, rc, err);
    while (status == LH_OK && (rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        bool known = false, ok = true;
        const char *name = (const char *)sqlite3_column_text(stmt, 0);
        for (size_t i = 0; i < s->n_tables && name != NULL; i++)
            known = known || strcmp(s->table[i].name, name) == 0;
        struct table *grown = known ? s->table : sq_grow(s->table, s->n_tables, sizeof *grown);
        if (known)
            continue;
        if (grown == NULL) {
            status = lhi_no_memory(err);
            break;
        }
        s->table = grown;
        const char *copy = copy_column(s, stmt, 0, &ok);
        if (copy == NULL) {
            status = lhi_no_memory(err);
            break;
        }
        struct table *table = &s->table[s->n_tables++];
        *table =
            (struct table){.name = copy, .ours = ours, .keyed = sqlite3_column_int(stmt, 1) != 0};
        status = load_columns(s, table, err);
        name_rowid(table);
    }
    if (status == LH_OK && rc != SQLITE_DONE)
        status = sq_fail(&s->conn, rc, err);
    (void)sqlite3_finalize(stmt);
    return status;
}

int sq_rebuild_begin(struct salvage *s, const char *to, struct lhi_error *err)
{
    int rc = make_file(s, to, err);

    if (rc != LH_OK || (rc = load_tables(s, true, err)) != LH_OK ||
        (rc = create_others(s, "table", false, err)) != LH_OK)
        return rc;
    return load_tables(s, false, err);
}

/* ---- what lh_meta must have ---- */

static int say_lost(struct salvage *s, int changed, const char *what, const char *now,
                    struct lhi_error *err)
{
    if (changed <= 0)
        return changed < 0 ? err->status : LH_OK;
    return NAME(s, "error", "lost", "%s was lost: %s", what, now);
}

/* A row that does not match its checksum is treated as lost. */
static int drop_unsound(void *arg, const struct summed_table *table, sqlite3_stmt *row,
                        const char *name, struct lhi_error *err)
{
    struct salvage *s = arg;

    (void)row;
    if (strcmp(table->table, "lh_meta") != 0)
        return LH_OK; /* sq_repair_finish() handles the others */
    if (sq_run(&s->conn, LHI_SQL_META_DELETE, err, "t", name) < 0)
        return err->status;
    return NAME(s, "error", "lost",
                "value \"%.100s\" of lh_meta is lost: it does not match its checksum", name);
}

/* The highest epoch that any row shows. */
static int last_epoch(struct conn *conn, int64_t *epoch, struct lhi_error *err)
{
    int64_t copy;
    int rc = sq_int(conn, LHI_SQL_CHECK_LAST_EPOCH, err, 0, epoch, "");

    if (rc < 0 || (rc = sq_meta_int(conn, "epoch_copy", 0, &copy, err)) < 0)
        return rc;
    if (copy > *epoch)
        *epoch = copy;
    return LH_OK;
}

static int complete_meta(struct salvage *s, struct lhi_error *err)
{
    struct conn *conn = &s->conn;
    struct coord *coord = &s->db->coord;
    char uuid[40];
    int64_t epoch;
    int rc, wall;

    lhi_format(uuid, sizeof uuid, "%s", sq_coord_uuid(coord));
    if (uuid[0] == '\0')
        lhi_uuid(uuid);
    if ((rc = sq_each_unsound(conn, drop_unsound, s, err)) < 0 ||
        (rc = last_epoch(conn, &epoch, err)) < 0 ||
        (rc = say_lost(s, sq_run(conn, LHI_SQL_REPAIR_META, err, "tt", "store_uuid", uuid),
                       "identity of the store", "the one in the coordination file is used", err)) <
            0 ||
        (rc = say_lost(s, sq_run(conn, LHI_SQL_REPAIR_META, err, "ti", "epoch", epoch), "epoch",
                       "the highest in any token is used", err)) < 0 ||
        (rc = say_lost(s, sq_run(conn, LHI_SQL_REPAIR_META, err, "tt", "anchor_boot", ""),
                       "boot of the machine", "this one counts as a new one", err)) < 0)
        return rc;
    wall = sq_run(conn, LHI_SQL_REPAIR_META, err, "ti", "anchor_wall", lhi_wall_ms());
    if ((rc = say_lost(s, wall, "anchor of the clock", "it is set again", err)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_REPAIR_META, err, "ti", "anchor_mono", sq_machine_ms(s->db))) <
            0 ||
        /* An incomplete anchor is useless. */
        (wall > 0 && (rc = sq_meta_set_text(conn, "anchor_boot", "", err)) < 0) ||
        (rc = sq_run(conn, LHI_SQL_REPAIR_META, err, "ti", "created_at", lhi_wall_ms())) < 0 ||
        (rc = sq_run(conn, LHI_SQL_REPAIR_META, err, "ti", "own_file", (int64_t)is_own(s))) < 0 ||
        (rc = sq_meta_set_int(conn, "schema_version", s->version, err)) < 0)
        return rc;
    return sq_meta_text(conn, "store_uuid", s->result->uuid, sizeof s->result->uuid, err);
}

/* The row of the whole store. Its count of changes must not be below the marks in the coordination
 * file, or the store would be taken for an old copy. */
static int complete_store_row(struct salvage *s, struct lhi_error *err)
{
    const struct coord *coord = &s->db->coord;
    uint64_t changes = sq_coord_synced(coord);

    if (sq_coord_committed(coord) > changes)
        changes = sq_coord_committed(coord);
    return say_lost(s, sq_run(&s->conn, LHI_SQL_REPAIR_STORE_ROW, err, "i", (int64_t)changes),
                    "row of the store itself",
                    "its count of changes is taken from the coordination file", err);
}

/* ---- ids are never given twice ---- */

int sq_rebuild_counter(struct salvage *s, const char *table, int64_t last, struct lhi_error *err)
{
    bool there;
    int rc = is_there(s, table, &there, err);

    if (rc != LH_OK || !there)
        return rc;
    if (sq_run(&s->conn, LHI_SQL_RESTORE_ID_ROW, err, "t", table) < 0 ||
        sq_run(&s->conn, LHI_SQL_RESTORE_ID, err, "it", last, table) < 0)
        return err->status;
    return LH_OK;
}

/* A store that never had a job has no counter for jobs. */
static int complete_counters(struct salvage *s, struct lhi_error *err)
{
    int64_t last;
    int rc = sq_int(&s->conn, LHI_SQL_CHECK_LAST_JOB, err, 0, &last, "");

    if (rc != LH_OK || (rc = sq_rebuild_counter(s, "lh_job", last, err)) != LH_OK)
        return rc;
    if (!s->counters_damaged && (s->counters_found || (last == 0 && !s->schema_damaged)))
        return LH_OK;
    return sq_counters_skip(&s->conn, last, s->result, err);
}

/* ---- the end ---- */

static bool was_damaged(const struct salvage *s, const char *name)
{
    for (size_t i = 0; i < s->n_tables; i++)
        if (strcmp(s->table[i].name, name) == 0)
            return s->table[i].damaged;
    return false;
}

int sq_rebuild_end(struct salvage *s, const char *to, struct lhi_error *err)
{
    struct conn *conn = &s->conn;
    int rc;

    if ((rc = complete_meta(s, err)) < 0 || (rc = complete_store_row(s, err)) < 0 ||
        (rc = complete_counters(s, err)) < 0 ||
        (rc = sq_run(conn, LHI_SQL_RECOUNT_SUMS, err, "")) < 0 ||
        (rc = sq_run(conn, LHI_SQL_RECOUNT_QUEUES, err, "")) < 0 ||
        (rc = sq_run(conn, LHI_SQL_RECOUNT_COUNTS, err, "")) < 0 ||
        (was_damaged(s, "lh_expiry") && (rc = sq_run(conn, LHI_SQL_CHECK_EXPIRIES, err, "")) < 0) ||
        (rc = create_others(s, "index", false, err)) < 0 ||
        (rc = create_others(s, "table", true, err)) < 0 ||
        (rc = create_others(s, "view", false, err)) < 0 ||
        (rc = create_others(s, "trigger", false, err)) < 0)
        return rc;
    for (size_t i = 0; i < s->n_tables; i++) {
        (void)sqlite3_finalize(s->table[i].insert);
        s->table[i].insert = NULL;
    }
    if ((rc = sq_exec(conn, "COMMIT", err)) != LH_OK)
        return rc;
    return sq_copy_finish(conn, to, err);
}
