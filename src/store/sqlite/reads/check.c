/* Checking a store: the file, our invariants, payloads, log, clock, room, versions. A check changes
 * nothing. */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/files/files.h"
#include "store/sqlite/files/trust.h"
#include "store/sqlite/open.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/row_sum.h"
#include "store/sqlite/rows.h"

#include "base/checksum.h"
#include "base/clock.h"
#include "base/sys.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST = 20, STEPS = 10000, LOW_ROOM = 64 << 20, LARGE_WAL = 64 << 20 };

/* The findings of a check, and whether memory ran out. */
struct report {
    lh_findings *out;
    bool failed; /* out of memory */
};

static bool add(lh_findings *out, const char *level, const char *what, const char *fmt, va_list ap)
    __attribute__((format(printf, 4, 0)));

static bool add(lh_findings *out, const char *level, const char *what, const char *fmt, va_list ap)
{
    char text[512];

    (void)vsnprintf(text, sizeof text, fmt, ap);
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    lh_finding *grown = arena ? sq_grow(out->finding, out->n, sizeof *grown) : NULL;
    if (grown == NULL)
        return false;
    out->finding = grown;
    char *copy = lhi_arena_strdup(arena, text);
    if (copy == NULL)
        return false;
    out->finding[out->n++] = (lh_finding){.level = level, .what = what, .text = copy};
    if (strcmp(level, "error") == 0)
        out->errors++;
    return true;
}

bool sq_finding_add(lh_findings *out, const char *level, const char *what, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    bool ok = add(out, level, what, fmt, ap);
    va_end(ap);
    return ok;
}

void sq_findings_clear(lh_findings *findings)
{
    lhi_free(findings->finding);
    lhi_arena_drop(&findings->priv);
    *findings = (lh_findings){0};
}

static void found(struct report *report, const char *level, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void found(struct report *report, const char *level, const char *what, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    if (!add(report->out, level, what, fmt, ap))
        report->failed = true;
    va_end(ap);
}

static int raised(void *arg)
{
    const lh_flag *cancel = arg;
    return __atomic_load_n(cancel, __ATOMIC_RELAXED) != 0;
}

/* SQLite's check reports a page that it could not read as if it were damaged. But running out of
 * memory and a failed read are not damage. */
static int trouble_of(const char *line)
{
    const char *code = line ? strstr(line, "error code=") : NULL;
    int rc = line == NULL ? SQLITE_NOMEM : code ? (int)strtol(code + 11, NULL, 10) : SQLITE_OK;

    if (rc == SQLITE_NOMEM || rc == SQLITE_IOERR_NOMEM)
        return SQLITE_NOMEM;
    return (rc & 0xff) == SQLITE_IOERR && rc != SQLITE_IOERR_SHORT_READ ? rc : SQLITE_OK;
}

/* A message of SQLite's check may have several lines below a heading. */
static void found_lines(struct report *report, const char *text)
{
    while (*text != '\0') {
        size_t len = strcspn(text, "\n");
        if (len > 0 && strncmp(text, "***", 3) != 0)
            found(report, "error", "integrity", "%.*s", (int)(len < 400 ? len : 400), text);
        text += len + (text[len] == '\n');
    }
}

static int run_check(struct conn *conn, const char *pragma, struct report *report,
                     struct lhi_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(conn->db, pragma, -1, &stmt, NULL);

    while (rc == SQLITE_OK && (rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(stmt, 0);
        rc = trouble_of(text);
        if (rc == SQLITE_OK && strcmp(text, "ok") != 0)
            found_lines(report, text);
    }
    int status = LH_OK;
    if ((rc & 0xff) == SQLITE_CORRUPT || (rc & 0xff) == SQLITE_NOTADB)
        found(report, "error", "integrity", "%s", sqlite3_errmsg(conn->db));
    else if (rc == SQLITE_INTERRUPT)
        status = lhi_fail(err, LH_EINTR, "check was interrupted");
    else if (rc != SQLITE_DONE)
        status = sq_fail(conn, rc, err);
    (void)sqlite3_finalize(stmt);
    return status;
}

/* A second check, of the schema's own table. If the first root that SQLite meets belongs to a view,
 * it checks only one table and leaves out the list of free pages. */
int sq_check_file(struct conn *conn, const lh_flag *cancel, lh_findings *out, struct lhi_error *err)
{
    struct report report = {.out = out};
    size_t before = out->errors;
    char whole[64];

    if (cancel != NULL && raised((void *)(uintptr_t)cancel) != 0)
        return lhi_fail(err, LH_EINTR, "check was interrupted");
    lhi_format(whole, sizeof whole, "PRAGMA integrity_check(%d)", MOST);
    if (cancel != NULL)
        sqlite3_progress_handler(conn->db, STEPS, raised, (void *)(uintptr_t)cancel);
    int rc = run_check(conn, whole, &report, err);
    if (rc == LH_OK && out->errors == before)
        rc = run_check(conn, "PRAGMA integrity_check(sqlite_schema)", &report, err);
    sqlite3_progress_handler(conn->db, 0, NULL, NULL);
    if (rc == LH_OK && report.failed)
        return lhi_no_memory(err);
    return rc;
}

static int check_invariant(struct conn *conn, struct report *report, enum lhi_sql which,
                           const char *what, struct lhi_error *err)
{
    bool limited = strstr(lhi_sqlite_sql[which].text, ":n") != NULL;
    sqlite3_stmt *stmt =
        limited ? sq_stmt(conn, which, err, "i", (int64_t)MOST) : sq_stmt(conn, which, err, "");
    int rc;

    if (stmt == NULL)
        return err->status;
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        const char *text = (const char *)sqlite3_column_text(stmt, 1);
        if (sqlite3_column_type(stmt, 0) == SQLITE_NULL)
            found(report, "error", what, "%s", text ? text : "?");
        else
            found(report, "error", what, "job %lld: %s", (long long)sqlite3_column_int64(stmt, 0),
                  text ? text : "?");
    }
    return rc < 0 ? rc : LH_OK;
}

/* Compare the tables with those that the migrations make, which are made in memory. */
static int check_schema(struct conn *conn, struct report *report, const char *what,
                        struct lhi_error *err)
{
    struct conn model = {0};
    sqlite3_stmt *wanted, *there = NULL;
    int rc = sq_conn_open(&model, ":memory:", SQLITE_OPEN_READWRITE, err);

    for (int i = 0; i < lhi_sqlite_migration_count && rc == LH_OK; i++)
        rc = sq_exec(&model, lhi_sqlite_migrations[i].text, err);
    wanted = rc == LH_OK ? sq_stmt(&model, LHI_SQL_CHECK_SCHEMA, err, "") : NULL;
    while (wanted != NULL && (rc = sq_step(&model, wanted, err)) == LH_OK) {
        const char *name = (const char *)sqlite3_column_text(wanted, 0);
        const char *text = (const char *)sqlite3_column_text(wanted, 1);
        bool found_it = false, same = false;
        int step = LH_EMPTY;
        there = sq_stmt(conn, LHI_SQL_CHECK_SCHEMA, err, "");
        while (there != NULL && !found_it && (step = sq_step(conn, there, err)) == LH_OK) {
            found_it = strcmp((const char *)sqlite3_column_text(there, 0), name) == 0;
            same = found_it && strcmp((const char *)sqlite3_column_text(there, 1), text) == 0;
        }
        sq_reset(there);
        if (there == NULL || step < 0) {
            rc = err->status;
            break;
        }
        if (!found_it)
            found(report, "error", what, "%s is missing", name);
        else if (!same)
            found(report, "error", what, "%s differs from its definition", name);
    }
    sq_reset(wanted);
    sq_conn_close(&model);
    return rc < 0 ? rc : LH_OK;
}

/* SQLite cannot check our checksum of queue, kind and key. */
static int check_names(struct conn *conn, struct report *report, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_CHECK_NAMES, err, "");
    int64_t bad = 0;
    int rc = stmt ? LH_OK : err->status;

    while (rc == LH_OK && (rc = sq_step(conn, stmt, err)) == LH_OK)
        if (sq_names_damaged(stmt) && bad++ < MOST)
            found(report, "error", "row", "job %lld: %s", (long long)sqlite3_column_int64(stmt, 0),
                  sq_damage_words(DAMAGED_NAMES));
    return rc < 0 ? rc : LH_OK;
}

static int name_unsound(void *arg, const struct summed_table *table, sqlite3_stmt *row,
                        const char *name, struct lhi_error *err)
{
    (void)row;
    (void)err;
    found(arg, "error", "row", "%s \"%.200s\" of %s does not match its checksum", table->what, name,
          table->table);
    return LH_OK;
}

int sq_check_tables(struct conn *conn, lh_findings *out, struct lhi_error *err)
{
    struct report report = {.out = out};
    int64_t version, changes = 0;
    int rc = sq_meta_int(conn, "schema_version", 0, &version, err);

    /* An older schema is compared after it is migrated. */
    if (rc == LH_OK && version == lhi_sqlite_migration_count)
        rc = check_schema(conn, &report, "integrity", err);
    if (rc == LH_OK && (rc = sq_int(conn, LHI_SQL_STORE_MARKS, err, -1, &changes, "")) == LH_OK &&
        changes < 0)
        found(&report, "error", "integrity", "there is no row for the store itself in lh_queue");
    if (rc == LH_OK && version == lhi_sqlite_migration_count)
        rc = check_names(conn, &report, err);
    if (rc == LH_OK && version == lhi_sqlite_migration_count)
        rc = sq_each_unsound(conn, name_unsound, &report, err);
    if (rc == LH_OK && report.failed)
        return lhi_no_memory(err);
    return rc;
}

/* Acknowledged changes are missing: the log was lost, or an old copy is in the store's place. */
static int check_age(struct db *db, struct conn *conn, struct report *report, struct lhi_error *err)
{
    struct age age;
    int rc = sq_read_age(db, conn, &age, err);

    if (rc != LH_OK)
        return rc;
    if (age.changes < 0)
        found(report, "error", "store", "there is no row for the store itself in lh_queue");
    else if (age.missing > 0)
        found(report, "error", "store",
              "store is older than it was: acknowledged changes are missing (%llu); --accept-loss "
              "goes on without them",
              (unsigned long long)age.missing);
    return LH_OK;
}

static int check_payloads(struct conn *conn, struct report *report, const lh_flag *cancel,
                          struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_CHECK_PAYLOADS, err, "");
    int64_t rows = 0, bad = 0;
    int rc;

    if (stmt == NULL)
        return err->status;
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        enum damage damage = sq_summed_damage(stmt);
        if (damage != DAMAGED_NOT && bad++ < MOST)
            found(report, "error", damage == DAMAGED_PAYLOAD ? "payload" : "row", "job %lld: %s",
                  (long long)sqlite3_column_int64(stmt, 0), sq_damage_words(damage));
        if ((++rows & 1023) == 0 && cancel != NULL && __atomic_load_n(cancel, __ATOMIC_RELAXED)) {
            sq_reset(stmt);
            return lhi_fail(err, LH_EINTR, "check was interrupted");
        }
    }
    return rc < 0 ? rc : LH_OK;
}

static int check_schedules(struct conn *conn, struct report *report, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_CHECK_SCHEDULES, err, "");
    int rc;

    if (stmt == NULL)
        return err->status;
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        size_t len;
        const void *payload = sq_column_raw(stmt, 2, &len);
        if (sqlite3_column_int64(stmt, 1) != lhi_checksum(payload, len))
            found(report, "error", "payload", "schedule %s: payload does not match its checksum",
                  sqlite3_column_text(stmt, 0));
    }
    return rc < 0 ? rc : LH_OK;
}

/* In these versions a log that is reset by a writer during a checkpoint may lose commits. */
static bool has_wal_reset_bug(int version)
{
    if (version >= 3051003)
        return false;
    return !((version >= 3044006 && version < 3045000) ||
             (version >= 3050007 && version < 3051000));
}

/* Our own writers and checkpoints never run at the same time. In a database of the user's, other
 * writers may. */
static void check_engine(struct conn *conn, struct report *report)
{
    struct lhi_error ignored;
    int64_t own = 1;

    found(report, "info", "version", "leasehold %s, SQLite %s, schema %d", LH_VERSION,
          sqlite3_libversion(), lhi_sqlite_migration_count);
    if (!has_wal_reset_bug(sqlite3_libversion_number()))
        return;
    (void)sq_meta_int(conn, "own_file", 1, &own, &ignored);
    found(report, own != 0 ? "info" : "warning", "version",
          "this SQLite has the WAL-reset bug: leasehold's own writers and checkpoints never "
          "meet, but another program that writes to this file should switch "
          "wal_autocheckpoint off");
}

static void check_surroundings(struct db *db, struct conn *conn, struct report *report)
{
    char wal[4200], problem[480];
    struct stat st;
    int64_t room = lhi_free_bytes(db->file), skew = lhi_wall_ms() - sq_db_now(db);

    if (sq_names_problem(db, problem, sizeof problem) != LH_OK)
        found(report, "error", "names", "%s", problem);
    if (!sq_trust_folder(db->file))
        found(
            report, "warning", "folder",
            "every user may rename and remove files in the folder of the store, and so replace it");
    lhi_format(wal, sizeof wal, "%s-wal", db->file);
    int64_t wal_bytes = stat(wal, &st) == 0 ? (int64_t)st.st_size : 0;
    found(report, wal_bytes > LARGE_WAL ? "warning" : "info", "wal", "%lld bytes",
          (long long)wal_bytes);
    if (room >= 0)
        found(report, room < LOW_ROOM ? "warning" : "info", "room", "%lld MiB free",
              (long long)(room >> 20));
    found(report, skew > 1000 || skew < -1000 ? "warning" : "info", "clock",
          "wall clock is %lld ms away from elapsed time", (long long)skew);
    check_engine(conn, report);
    if (db->coord.page != NULL && sq_coord_sync_failed(&db->coord))
        found(report, "error", "sync", "an earlier sync of the log has failed");
}

int sq_check_store(struct db *db, struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    static const struct {
        enum lhi_sql which;
        const char *what;
    } invariants[] = {
        {LHI_SQL_CHECK_RUNNING, "invariant 1"},
        {LHI_SQL_CHECK_COUNTS, "invariant 5"},
        {LHI_SQL_CHECK_TIMES, "invariant 5"},
        {LHI_SQL_CHECK_IDS, "invariant 7"},
        {LHI_SQL_CHECK_SUMS, "row"},
        {LHI_SQL_CHECK_TOKENS, "invariant 2"},
        {LHI_SQL_CHECK_LEASE_ROWS, "leases"},
        {LHI_SQL_CHECK_TALLIES, "counts"},
        {LHI_SQL_CHECK_QUEUES, "counts"},
        {LHI_SQL_CHECK_OUTPUTS, "output"},
    };
    struct report report = {.out = act->check.out};
    size_t before = report.out->errors;
    int rc = act->check.rows_only ? LH_OK : sq_check_file(conn, act->check.cancel, report.out, err);

    if (rc == LH_OK && !act->check.rows_only && report.out->errors == before)
        found(&report, "info", "integrity", "passed");
    /* A damaged file may stop a later step of the check. The findings so far are kept. */
    if (rc == LH_OK && !act->check.rows_only)
        rc = check_schema(conn, &report, "schema", err);
    bool damaged = report.out->errors > before;
    for (size_t i = 0; i < sizeof invariants / sizeof invariants[0] && rc == LH_OK; i++)
        rc = check_invariant(conn, &report, invariants[i].which, invariants[i].what, err);
    if (rc == LH_OK && !act->check.rows_only)
        rc = check_age(db, conn, &report, err);
    /* A private copy has another journal mode, and so may a backup that was never opened for
     * writing. */
    if (rc == LH_OK && !act->check.rows_only && db->degraded[0] == '\0' && db->coord.page != NULL)
        rc = check_invariant(conn, &report, LHI_SQL_CHECK_JOURNAL, "journal", err);
    if (rc == LH_OK && !act->check.rows_only)
        rc = check_payloads(conn, &report, act->check.cancel, err);
    if (rc == LH_OK && !act->check.rows_only)
        rc = check_schedules(conn, &report, err);
    if (rc == LH_OK)
        rc = sq_each_unsound(conn, name_unsound, &report, err);
    if ((rc == LH_ECORRUPT || rc == LH_EFAIL) && damaged) {
        found(&report, "error", "integrity", "%s", err->text);
        rc = LH_OK;
    }
    if (rc == LH_OK && !act->check.rows_only)
        check_surroundings(db, conn, &report);
    if (rc == LH_OK && report.failed)
        return lhi_no_memory(err);
    return rc;
}
