/*
 * Inserting a salvaged row into the new file, through the constraints of its table.
 *
 * A job that breaks them is corrected as far as possible and failed, because it may no longer be
 * the job that was asked for. Any other row that breaks them is lost. Both get a finding.
 */
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/repair/salvage.h"
#include "store/sqlite/rows.h"

#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MOST_NAMED = 100 };

#define LAST_ID INT64_C(4503599627370495) /* the limit in the trigger of lh_job */

/* ---- findings ---- */

bool sq_repair_add_loss(struct repair_result *result, const char *level, const char *what,
                        const char *fmt, ...)
{
    char text[400];
    va_list ap;

    if (strcmp(what, "lost") == 0)
        result->lost = true;
    if (result->named >= MOST_NAMED) {
        result->unnamed++;
        return true;
    }
    result->named++;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return sq_finding_add(&result->findings, level, what, "%s", text);
}

int sq_repair_add_lost_job(struct repair_result *result, int64_t id, const char *why,
                           struct lhi_error *err)
{
    if (!sq_ids_add(&result->lost_jobs, id) ||
        !sq_repair_add_loss(result, "error", "lost", "job %lld is lost: %s", (long long)id, why))
        return lhi_no_memory(err);
    return LH_OK;
}

void sq_repair_result_clear(struct repair_result *result)
{
    sq_findings_clear(&result->findings);
    lhi_free(result->lost_jobs.id);
    *result = (struct repair_result){0};
}

/* ---- inserting a row ---- */

bool sq_is_job_table(const struct table *table)
{
    return table->ours && strcmp(table->name, "lh_job") == 0;
}

static int prepare_insert(struct salvage *s, struct table *table, size_t width,
                          struct lhi_error *err)
{
    if (table->insert != NULL && table->width == width)
        return LH_OK;
    (void)sqlite3_finalize(table->insert);
    table->insert = NULL;
    table->width = width;
    sqlite3_str *text = sqlite3_str_new(s->conn.db);
    const char *comma = "";
    sqlite3_str_appendf(text, "INSERT INTO \"%w\"(", table->name);
    for (size_t i = 0; i < width; i++)
        if (table->column[i].name != NULL) {
            sqlite3_str_appendf(text, "%s\"%w\"", comma, table->column[i].name);
            comma = ", ";
        }
    if (table->rowid != NULL)
        sqlite3_str_appendf(text, "%s%s", comma, table->rowid);
    sqlite3_str_appendall(text, ") VALUES (");
    comma = "";
    for (size_t i = 0; i < width; i++)
        if (table->column[i].name != NULL) {
            sqlite3_str_appendf(text, "%s?%d", comma, (int)i + 1);
            comma = ", ";
        }
    if (table->rowid != NULL)
        sqlite3_str_appendf(text, "%s?%d", comma, (int)width + 1);
    sqlite3_str_appendall(text, ")");
    char *sql_text = sqlite3_str_finish(text);
    if (sql_text == NULL)
        return lhi_no_memory(err);
    int rc = sqlite3_prepare_v2(s->conn.db, sql_text, -1, &table->insert, NULL);
    sqlite3_free(sql_text);
    return rc == SQLITE_OK ? LH_OK : sq_fail(&s->conn, rc, err);
}

/* Returns an SQLite result code. */
static int insert_row(struct table *table, const struct row *row)
{
    int rc = SQLITE_OK;

    for (size_t i = 0; i < table->width && rc == SQLITE_OK; i++) {
        if (table->column[i].name == NULL)
            continue;
        if (table->column[i].id && sq_row_is_null(row, i))
            rc = sqlite3_bind_int64(table->insert, (int)i + 1, row->id);
        else
            rc = sq_row_bind(row, i, table->insert, (int)i + 1);
    }
    if (rc == SQLITE_OK && table->rowid != NULL)
        rc = sqlite3_bind_int64(table->insert, (int)table->width + 1, row->id);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(table->insert);
    (void)sqlite3_reset(table->insert);
    (void)sqlite3_clear_bindings(table->insert);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* Insert the job with a statement that corrects each column. */
static int correct_job(struct salvage *s, const struct row *row, const char *why,
                       struct lhi_error *err)
{
    char reason[300];
    sqlite3_stmt *stmt = NULL;
    int rc =
        sqlite3_prepare_v2(s->conn.db, lhi_sqlite_sql[LHI_SQL_REPAIR_JOB].text, -1, &stmt, NULL);

    lhi_format(reason, sizeof reason, "CORRUPT: row was damaged: %.200s", why);
    for (size_t i = 0; i < s->at->width && rc == SQLITE_OK; i++) {
        char name[80];
        lhi_format(name, sizeof name, ":%s", s->at->column[i].name);
        int at = sqlite3_bind_parameter_index(stmt, name);
        if (at > 0 && s->at->column[i].id)
            rc = sqlite3_bind_int64(stmt, at, row->id);
        else if (at > 0)
            rc = sq_row_bind(row, i, stmt, at);
    }
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(stmt, sqlite3_bind_parameter_index(stmt, ":reason"), reason, -1,
                               SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(stmt, sqlite3_bind_parameter_index(stmt, ":now"), lhi_wall_ms());
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    int status = LH_OK;
    if (rc == SQLITE_DONE) {
        s->result->jobs++;
        s->result->fence = true; /* the damaged value may be its token */
        status = NAME(s, "warning", "partial",
                      "job %lld is partial, and failed so that no worker runs it: %.150s",
                      (long long)row->id, why);
    } else if ((rc & 0xff) == SQLITE_CONSTRAINT) {
        status = sq_repair_add_lost_job(s->result, row->id, sqlite3_errmsg(s->conn.db), err);
    } else {
        status = sq_fail(&s->conn, rc, err);
    }
    (void)sqlite3_finalize(stmt);
    return status;
}

/* Does the row exist already? For rows from pages that no tree leads to, that is expected. */
static bool is_duplicate(int rc)
{
    return rc == SQLITE_CONSTRAINT_ROWID || rc == SQLITE_CONSTRAINT_PRIMARYKEY;
}

/* The new file refuses the row as it is. */
static int refused_row(struct salvage *s, const struct row *row, int rc, struct lhi_error *err)
{
    char why[300];

    lhi_format(why, sizeof why, "%s", sqlite3_errmsg(s->conn.db));
    if (is_duplicate(rc) && s->orphan)
        return LH_OK;
    if (sq_is_job_table(s->at) && !is_duplicate(rc))
        return correct_job(s, row, why, err);
    if (s->at->keyed)
        return NAME(s, "error", "lost", "a row of %s is lost: %s", s->at->name, why);
    return NAME(s, "error", "lost", "row %lld of %s is lost: %s", (long long)row->id, s->at->name,
                why);
}

/* The payload is the last column, so it may be cut off. With a checksum a claim will notice;
 * without one, correct the job now. */
static bool must_correct(const struct table *table, const struct row *row)
{
    return row->broken && (row->n <= JOB_PAYLOAD_SUM || sq_row_is_null(row, JOB_PAYLOAD_SUM)) &&
           table->n == JOB_COLUMNS;
}

int sq_put_row(void *arg, const struct row *row, struct lhi_error *err)
{
    struct salvage *s = arg;
    struct table *table = s->at;
    size_t width = row->n < table->n ? row->n : table->n;
    int rc = LH_OK;

    if (table->ours && row->n != table->n) {
        static const char why[] = "another stands in its place";
        table->damaged = true;
        return NAME(s, "error", "lost", "a row of %s is lost: %s", table->name, why);
    }
    if ((rc = prepare_insert(s, table, width, err)) != LH_OK)
        return rc;
    if (sq_is_job_table(table) && (row->id < 1 || row->id > LAST_ID))
        return NAME(s, "error", "lost", "a job is lost: its id was %lld", (long long)row->id);
    if (sq_is_job_table(table) && must_correct(table, row))
        return correct_job(s, row, "not all of it can be read", err);
    rc = insert_row(table, row);
    if ((rc & 0xff) == SQLITE_CONSTRAINT)
        return refused_row(s, row, rc, err);
    if (rc != SQLITE_OK)
        return sq_fail(&s->conn, rc, err);
    if (sq_is_job_table(table))
        s->result->jobs++;
    else
        s->result->rows++;
    if (!row->broken || (sq_is_job_table(table) && !sq_row_is_null(row, JOB_PAYLOAD)))
        return LH_OK; /* sq_repair_finish() reports a payload that does not match its checksum */
    return NAME(s, "warning", "partial", "row %lld of %s is partial: not all of it can be read",
                (long long)row->id, table->name);
}
