/*
 * The checksum of a row in the small tables that decide something.
 *
 * lh_meta, policies, schedules, named leases and requests have a column row_sum over all their
 * other columns. The SQL function lh_sum() computes it; only our connections have that function.
 * tools/embed_sql.py writes it into every INSERT and UPDATE of these tables, so that no statement
 * can forget it. If a row did not match before an update, it does not match afterwards. A row that
 * another program wrote has no checksum (NULL) until our next UPDATE.
 */
#include "store/sqlite/row_sum.h"
#include "store/sqlite/rows.h"

#include "base/checksum.h"

#include <string.h>

struct value {
    int type;
    int64_t number;
    const void *bytes;
    size_t len;
};

static int64_t add_value(int64_t sum, const struct value *value)
{
    int64_t words[3] = {sum, value->type, value->number};

    if (value->type == SQLITE_TEXT || value->type == SQLITE_BLOB)
        words[2] = lhi_checksum(value->bytes, value->len);
    return lhi_checksum(words, sizeof words);
}

static void lh_sum(sqlite3_context *context, int n, sqlite3_value **values)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++) {
        struct value value = {.type = sqlite3_value_type(values[i])};
        if (value.type == SQLITE_TEXT)
            value.bytes = sqlite3_value_text(values[i]);
        else if (value.type == SQLITE_BLOB)
            value.bytes = sqlite3_value_blob(values[i]);
        else
            value.number = sqlite3_value_int64(values[i]);
        value.len = value.bytes ? (size_t)sqlite3_value_bytes(values[i]) : 0;
        sum = add_value(sum, &value);
    }
    sqlite3_result_int64(context, sum);
}

int sq_row_sum_register(struct conn *conn, struct lhi_error *err)
{
    int rc = sqlite3_create_function_v2(conn->db, "lh_sum", -1,
                                        SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_DIRECTONLY,
                                        NULL, lh_sum, NULL, NULL, NULL);
    return rc == SQLITE_OK ? LH_OK : sq_fail(conn, rc, err);
}

bool sq_row_sum_matches(sqlite3_stmt *stmt)
{
    int last = sqlite3_column_count(stmt) - 1;
    int64_t sum = 0;

    if (sqlite3_column_type(stmt, last) == SQLITE_NULL)
        return true;
    for (int i = 0; i < last; i++) {
        struct value value = {.type = sqlite3_column_type(stmt, i)};
        if (value.type == SQLITE_TEXT || value.type == SQLITE_BLOB)
            value.bytes = sq_column_raw(stmt, i, &value.len);
        else
            value.number = sqlite3_column_int64(stmt, i);
        sum = add_value(sum, &value);
    }
    return sqlite3_column_type(stmt, last) == SQLITE_INTEGER &&
           sqlite3_column_int64(stmt, last) == sum;
}

/* ---- all of them ---- */

const struct summed_table sq_summed_tables[SUMMED_TABLES] = {
    {.table = "lh_meta", .rows = LHI_SQL_SUMMED_META, .what = "value", .names = 1},
    {.table = "lh_policy", .rows = LHI_SQL_POLICY_LIST, .what = "policy", .names = 2},
    {.table = "lh_schedule", .rows = LHI_SQL_SUMMED_SCHEDULE, .what = "schedule", .names = 1},
    {.table = "lh_lease", .rows = LHI_SQL_SUMMED_LEASE, .what = "lease", .names = 2},
    {.table = "lh_request", .rows = LHI_SQL_SUMMED_REQUEST, .what = "request", .names = 1},
};

int sq_each_unsound(struct conn *conn, unsound_fn *fn, void *arg, struct lhi_error *err)
{
    int rc = LH_OK;

    for (size_t i = 0; i < SUMMED_TABLES && rc >= 0; i++) {
        const struct summed_table *table = &sq_summed_tables[i];
        sqlite3_stmt *stmt = sq_stmt(conn, table->rows, err, "");
        rc = stmt ? LH_OK : err->status;
        while (rc == LH_OK && (rc = sq_step(conn, stmt, err)) == LH_OK) {
            char name[300];
            if (sq_row_sum_matches(stmt))
                continue;
            lhi_format(name, sizeof name, "%s%s%s", sq_text_or_empty(stmt, 0),
                       table->names > 1 ? "/" : "",
                       table->names > 1 ? sq_text_or_empty(stmt, 1) : "");
            rc = fn(arg, table, stmt, name, err);
        }
        sq_reset(stmt);
    }
    return rc < 0 ? rc : LH_OK;
}

int sq_damaged_row(const char *what, const char *name, struct lhi_error *err)
{
    return lhi_fail(
        err, LH_ECORRUPT,
        "%s \"%.200s\" does not match its checksum: \"leasehold check --repair\" resolves it", what,
        name);
}
