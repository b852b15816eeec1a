/*
 * This store as the source or the target of a move.
 *
 * lh_meta says which part the store has. Every handle learns it with its next transaction, because
 * the generation rises, and then refuses all other acts (group_commit.c). The statements that read
 * and write rows are made from one list of tables, so that the source and the target cannot differ.
 */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/copies/backup.h"
#include "store/sqlite/open.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/rows.h"

#include <string.h>

/* Where a table is in this store, and which of its rows belong to the store itself. */
static const struct place {
    const char *table, *filter;
} places[LHI_MOVED_TABLES] = {
    [LHI_MOVED_POLICY] = {"lh_policy", "1"},
    [LHI_MOVED_SCOPE] = {"lh_scope", "1"},
    [LHI_MOVED_QUEUE] = {"lh_queue", "queue <> '*'"},
    [LHI_MOVED_SCHEDULE] = {"lh_schedule", "1"},
    [LHI_MOVED_LEASE] = {"lh_lease", "1"},
    [LHI_MOVED_QUARANTINE] = {"lh_quarantine", "1"},
    [LHI_MOVED_TOTAL] = {"lh_meta", "key >= 'recovery:' AND key < 'recovery;'"},
    [LHI_MOVED_ROLLUP] = {"lh_rollup", "1"},
    [LHI_MOVED_REQUEST] = {"lh_request", "1"},
    [LHI_MOVED_REPORT] = {"lh_report", "1"},
    [LHI_MOVED_EVENT] = {"lh_event", "1"},
    [LHI_MOVED_OUTPUT] = {"lh_output", "1"},
    [LHI_MOVED_JOB] = {"lh_job", "1"},
};

enum { TEXT_ROOM = 2048 };

/* A minute is a number in this store, and a time in a move. */
enum { MINUTE_MS = 60000 };

static bool is_minute(enum lhi_moved table, size_t column)
{
    return table == LHI_MOVED_ROLLUP && column == 0;
}

/* ---- the part of the store ---- */

static const char *const part_names[] = {[LHI_PART_NONE] = "",
                                         [LHI_PART_SOURCE] = "source",
                                         [LHI_PART_GONE] = "gone",
                                         [LHI_PART_TARGET] = "target",
                                         [LHI_PART_FILLED] = "filled"};

static int read_part(struct conn *conn, enum lhi_part *out, struct lhi_error *err)
{
    char name[16];
    int rc = sq_meta_text(conn, "move_part", name, sizeof name, err);

    *out = LHI_PART_NONE;
    for (size_t i = 0; rc == LH_OK && i < sizeof part_names / sizeof part_names[0]; i++)
        if (strcmp(name, part_names[i]) == 0)
            *out = (enum lhi_part)i;
    return rc;
}

/* Why an act is refused in a store that takes part in a move; "": it is not. */
static void closed_words(const char *store, enum lhi_part part, const char *other, char *out,
                         size_t len)
{
    switch (part) {
    case LHI_PART_SOURCE:
        lhi_format(out, len,
                   "store \"%.150s\" is being moved to \"%.150s\": nothing can change here", store,
                   other);
        break;
    case LHI_PART_GONE:
        lhi_format(out, len, "store \"%.150s\" was moved to \"%.150s\": go on there", store, other);
        break;
    case LHI_PART_TARGET:
        lhi_format(
            out, len,
            "store \"%.150s\" is being filled from \"%.150s\": \"leasehold move\" finishes it",
            store, other);
        break;
    default:
        out[0] = '\0';
    }
}

int sq_move_closed(const struct db *db, struct conn *conn, char *out, size_t len,
                   struct lhi_error *err)
{
    enum lhi_part part;
    char url[1024];
    int rc = read_part(conn, &part, err);

    out[0] = '\0';
    if (rc != LH_OK || part == LHI_PART_NONE ||
        (rc = sq_meta_text(conn, "move_url", url, sizeof url, err)) != LH_OK)
        return rc;
    closed_words(db->path, part, url, out, len);
    return LH_OK;
}

/* The other handles learn it with their next transaction, this one now. */
static int set_part(struct txn *txn, enum lhi_part part, struct lhi_error *err)
{
    bool shut = part != LHI_PART_NONE && part != LHI_PART_FILLED;
    int rc = sq_meta_set_text(txn->conn, "move_part", part_names[part], err);

    txn->changed = txn->reloaded = true;
    if (rc != LH_OK ||
        (rc = sq_run(txn->conn, shut ? LHI_SQL_MOVE_SHUT : LHI_SQL_MOVE_OPEN, err, "")) < 0 ||
        (rc = sq_run(txn->conn, LHI_SQL_STORE_GENERATION, err, "")) < 0)
        return rc;
    return sq_txn_reload(txn, err);
}

static int note_move(struct txn *txn, const struct lhi_act *act, struct lhi_error *err)
{
    int rc = sq_meta_set_text(txn->conn, "move_id", act->move.id, err);

    if (rc == LH_OK)
        rc = sq_meta_set_text(txn->conn, "move_other", act->move.other, err);
    return rc == LH_OK ? sq_meta_set_text(txn->conn, "move_url", act->move.url, err) : rc;
}

/* Refuse unless the store has this part, in this move. */
static int need_part(struct txn *txn, const struct lhi_act *act, enum lhi_part wanted,
                     struct lhi_error *err)
{
    enum lhi_part part;
    char id[40];
    int rc = read_part(txn->conn, &part, err);

    if (rc != LH_OK || (rc = sq_meta_text(txn->conn, "move_id", id, sizeof id, err)) != LH_OK)
        return rc;
    if (part == wanted && strcmp(id, act->move.id) == 0)
        return LH_OK;
    return lhi_fail(err, LH_ESTATE, "store \"%.200s\" has no part in this move any more",
                    txn->db->path);
}

/* ---- reading the part ---- */

static int last_id(struct conn *conn, const char *table, int64_t *out, struct lhi_error *err)
{
    return sq_int(conn, LHI_SQL_MOVE_LAST_ID, err, 0, out, "t", table);
}

static int count_rows(struct conn *conn, int64_t *out, struct lhi_error *err)
{
    *out = 0;
    for (int i = 0; i < LHI_MOVED_TABLES; i++) {
        sqlite3_stmt *stmt = NULL;
        char text[200];
        lhi_format(text, sizeof text, "SELECT count(*) FROM %s WHERE %s", places[i].table,
                   places[i].filter);
        int rc = sqlite3_prepare_v2(conn->db, text, -1, &stmt, NULL);
        if (rc == SQLITE_OK && (rc = sqlite3_step(stmt)) == SQLITE_ROW)
            *out += sqlite3_column_int64(stmt, 0);
        int status = rc == SQLITE_ROW ? LH_OK : sq_fail(conn, rc, err);
        (void)sqlite3_finalize(stmt);
        if (status != LH_OK)
            return status;
    }
    return LH_OK;
}

int sq_read_move_part(struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    struct lhi_standing *out = act->standing;
    int64_t empty = 0;
    int rc;

    if ((rc = sq_meta_text(conn, "store_uuid", out->uuid, sizeof out->uuid, err)) < 0 ||
        (rc = sq_meta_int(conn, "epoch", 0, &out->epoch, err)) < 0 ||
        (rc = read_part(conn, &out->part, err)) < 0 ||
        (rc = sq_meta_text(conn, "move_id", out->move, sizeof out->move, err)) < 0 ||
        (rc = sq_meta_text(conn, "move_other", out->other, sizeof out->other, err)) < 0 ||
        (rc = last_id(conn, "lh_job", &out->last_job, err)) < 0 ||
        (rc = last_id(conn, "lh_event", &out->last_event, err)) < 0 ||
        (rc = last_id(conn, "lh_report", &out->last_report, err)) < 0 ||
        (rc = sq_int(conn, LHI_SQL_MOVE_EMPTY, err, 0, &empty, "")) < 0)
        return rc;
    out->empty = empty != 0;
    return count_rows(conn, &out->rows, err);
}

/* ---- rows ---- */

/* Write "a, b, c" with `after` behind each name. */
static size_t list(char *text, size_t len, const struct lhi_table *table, size_t n,
                   const char *after)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        used += lhi_format(text + used, len - used, "%s%s%s", i > 0 ? ", " : "",
                           table->column[i].name, after);
    return used;
}

static void select_text(enum lhi_moved which, bool after, bool last, char text[TEXT_ROOM])
{
    const struct lhi_table *table = &lhi_moved[which];
    size_t used = lhi_format(text, TEXT_ROOM, "SELECT ");

    used += list(text + used, TEXT_ROOM - used, table, last ? table->n_keys : table->n, "");
    used += lhi_format(text + used, TEXT_ROOM - used, " FROM %s WHERE %s", places[which].table,
                       places[which].filter);
    if (after) {
        used += lhi_format(text + used, TEXT_ROOM - used, " AND (");
        used += list(text + used, TEXT_ROOM - used, table, table->n_keys, "");
        used +=
            lhi_format(text + used, TEXT_ROOM - used, ") > (?%s)", table->n_keys > 1 ? ", ?" : "");
    }
    used += lhi_format(text + used, TEXT_ROOM - used, " ORDER BY ");
    used += list(text + used, TEXT_ROOM - used, table, table->n_keys, last ? " DESC" : "");
    lhi_format(text + used, TEXT_ROOM - used, " LIMIT %d", last ? 1 : (int)LHI_BATCH);
}

static bool read_cell(sqlite3_stmt *stmt, int column, enum lhi_cell_type type,
                      struct lhi_arena *arena, struct lhi_cell *out, size_t *bytes)
{
    *out = (struct lhi_cell){.null = sqlite3_column_type(stmt, column) == SQLITE_NULL};
    if (out->null)
        return true;
    if (type == LHI_CELL_TEXT || type == LHI_CELL_ANY || type == LHI_CELL_BYTES ||
        type == LHI_CELL_REFS) {
        const void *raw = sq_column_raw(stmt, column, &out->len);
        out->bytes = lhi_arena_copy(arena, raw, out->len);
        *bytes += out->len;
        return out->bytes != NULL;
    }
    out->number = sqlite3_column_int64(stmt, column);
    out->null = type == LHI_CELL_TIME && out->number == 0;
    return true;
}

static int bind_cell(sqlite3_stmt *stmt, int at, enum lhi_cell_type type,
                     const struct lhi_cell *cell)
{
    if (cell->null)
        return sqlite3_bind_null(stmt, at);
    switch (type) {
    case LHI_CELL_BYTES:
        return sqlite3_bind_blob64(stmt, at, cell->bytes, cell->len, SQLITE_STATIC);
    case LHI_CELL_ANY:
        if (!lh_text_ok(cell->bytes, cell->len))
            return sqlite3_bind_blob64(stmt, at, cell->bytes, cell->len, SQLITE_STATIC);
        return sqlite3_bind_text64(stmt, at, cell->bytes, cell->len, SQLITE_STATIC, SQLITE_UTF8);
    case LHI_CELL_TEXT:
    case LHI_CELL_REFS:
        return sqlite3_bind_text64(stmt, at, cell->bytes, cell->len, SQLITE_STATIC, SQLITE_UTF8);
    default:
        return sqlite3_bind_int64(stmt, at, cell->number);
    }
}

static int bind_cells(sqlite3_stmt *stmt, enum lhi_moved which, const struct lhi_cell *cell,
                      size_t n)
{
    int rc = SQLITE_OK;

    for (size_t i = 0; i < n && rc == SQLITE_OK; i++) {
        struct lhi_cell value = cell[i];
        if (is_minute(which, i))
            value.number /= MINUTE_MS;
        rc = bind_cell(stmt, (int)i + 1, lhi_moved[which].column[i].type, &value);
    }
    return rc;
}

static bool read_row(sqlite3_stmt *stmt, enum lhi_moved which, struct lhi_rows *out,
                     struct lhi_arena *arena, size_t *bytes)
{
    size_t width = (size_t)sqlite3_column_count(stmt);
    struct lhi_cell *cell = lhi_rows_room(out, width);

    for (size_t i = 0; cell != NULL && i < width; i++) {
        if (!read_cell(stmt, (int)i, lhi_moved[which].column[i].type, arena, &cell[i], bytes))
            return false;
        if (is_minute(which, i))
            cell[i].number *= MINUTE_MS;
    }
    out->n += cell != NULL;
    return cell != NULL;
}

int sq_read_moved(struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    enum lhi_moved which = act->rows.table;
    const struct lhi_cell *after = act->rows.after;
    struct lhi_arena *arena = lhi_arena_of(&act->rows.out->priv);
    char text[TEXT_ROOM];
    sqlite3_stmt *stmt = NULL;
    size_t bytes = 0;
    int rc;

    if (arena == NULL)
        return lhi_no_memory(err);
    select_text(which, after != NULL, act->rows.last, text);
    int engine = sqlite3_prepare_v2(conn->db, text, -1, &stmt, NULL);
    if (engine == SQLITE_OK && after != NULL)
        engine = bind_cells(stmt, which, after, lhi_moved[which].n_keys);
    if (engine != SQLITE_OK) {
        (void)sqlite3_finalize(stmt);
        return sq_fail(conn, engine, err);
    }
    while ((rc = sq_step(conn, stmt, err)) == LH_OK && bytes < LHI_MOVE_BYTES)
        if (!read_row(stmt, which, act->rows.out, arena, &bytes)) {
            rc = lhi_no_memory(err);
            break;
        }
    (void)sqlite3_finalize(stmt);
    return rc < 0 ? rc : LH_OK;
}

static void insert_text(enum lhi_moved which, char text[TEXT_ROOM])
{
    const struct lhi_table *table = &lhi_moved[which];
    size_t used = lhi_format(text, TEXT_ROOM, "INSERT INTO %s(", places[which].table);

    used += list(text + used, TEXT_ROOM - used, table, table->n, "");
    used += lhi_format(text + used, TEXT_ROOM - used, ") VALUES (");
    for (size_t i = 0; i < table->n; i++)
        used +=
            lhi_format(text + used, TEXT_ROOM - used,
                       /* a bucket that was never used has no time in a move */
                       strcmp(table->column[i].name, "bucket_at") == 0 ? "%scoalesce(?, 0)" : "%s?",
                       i > 0 ? ", " : "");
    lhi_format(text + used, TEXT_ROOM - used, ")");
}

static int sq_put_row(struct conn *conn, sqlite3_stmt *stmt, enum lhi_moved which,
                      const struct lhi_cell *cell, struct lhi_error *err)
{
    int rc = bind_cells(stmt, which, cell, lhi_moved[which].n);

    if (rc != SQLITE_OK)
        return sq_fail(conn, rc, err);
    rc = sq_step(conn, stmt, err);
    return rc == LH_EMPTY ? LH_OK : rc;
}

static int put_all(struct conn *conn, const struct lhi_act *act, struct lhi_error *err)
{
    const struct lhi_rows *rows = act->move.rows;
    enum lhi_moved which = act->move.table;
    char text[TEXT_ROOM];
    sqlite3_stmt *stmt = NULL;

    insert_text(which, text);
    int engine = sqlite3_prepare_v2(conn->db, text, -1, &stmt, NULL);
    int rc = engine == SQLITE_OK ? LH_OK : sq_fail(conn, engine, err);
    for (size_t i = 0; i < rows->n && rc == LH_OK; i++)
        rc = sq_put_row(conn, stmt, which, rows->cell + i * lhi_moved[which].n, err);
    (void)sqlite3_finalize(stmt);
    return rc;
}

/* Insert rows without counting them and without scheduling anything because of them. */
static int put_rows(struct txn *txn, const struct lhi_act *act, struct lhi_error *err)
{
    int rc = need_part(txn, act, LHI_PART_TARGET, err);

    if (rc != LH_OK)
        return rc;
    txn->changed = true;
    (void)sqlite3_db_config(txn->conn->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    rc = put_all(txn->conn, act, err);
    (void)sqlite3_db_config(txn->conn->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 1, NULL);
    return rc;
}

/* ---- the other steps ---- */

static int refuse_running(struct txn *txn, struct lhi_error *err)
{
    char until[40];
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_MOVE_RUNNING, err, "");
    int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;

    if (rc < 0)
        return rc;
    int64_t n = sqlite3_column_int64(stmt, 0), last = sqlite3_column_int64(stmt, 1);
    sq_reset(stmt);
    if (n == 0)
        return LH_OK;
    return lhi_fail(err, LH_ESTATE,
                    "%lld job%s running in store \"%.200s\": stop the workers, or wait for the "
                    "leases to end (%s)",
                    (long long)n, n == 1 ? " is" : "s are", txn->db->path,
                    lh_time_format(last, until, sizeof until));
}

static int close_source(struct txn *txn, const struct lhi_act *act, struct lhi_error *err)
{
    enum lhi_part part;
    int rc = read_part(txn->conn, &part, err);

    if (rc == LH_OK && part != LHI_PART_NONE && part != LHI_PART_FILLED)
        rc = lhi_fail(err, LH_ESTATE, "store \"%.200s\" takes part in another move", txn->db->path);
    if (rc != LH_OK || (rc = refuse_running(txn, err)) != LH_OK ||
        (rc = sq_run(txn->conn, LHI_SQL_MOVE_ROLL, err, "")) < 0 ||
        (rc = sq_run(txn->conn, LHI_SQL_MOVE_ROLLED, err, "")) < 0 ||
        (rc = note_move(txn, act, err)) != LH_OK)
        return rc;
    return set_part(txn, LHI_PART_SOURCE, err);
}

/* Remove what an unused store, or an interrupted move, has in the tables that will be filled. */
static int clear_rows(struct txn *txn, struct lhi_error *err)
{
    int rc = LH_OK;

    for (int i = 0; i < LHI_MOVED_TABLES && rc == LH_OK; i++) {
        char text[200];
        lhi_format(text, sizeof text, "DELETE FROM %s WHERE %s", places[i].table, places[i].filter);
        rc = sq_exec(txn->conn, text, err);
    }
    return rc;
}

static int prepare_target(struct txn *txn, const struct lhi_act *act, struct lhi_error *err)
{
    enum lhi_part part;
    char id[40], other[40];
    int64_t empty = 0;
    int rc = read_part(txn->conn, &part, err);

    if (rc != LH_OK || (rc = sq_meta_text(txn->conn, "move_id", id, sizeof id, err)) != LH_OK ||
        (rc = sq_meta_text(txn->conn, "move_other", other, sizeof other, err)) != LH_OK ||
        (rc = sq_int(txn->conn, LHI_SQL_MOVE_EMPTY, err, 0, &empty, "")) != LH_OK)
        return rc;
    bool half = part == LHI_PART_TARGET && strcmp(other, act->move.other) == 0;
    if (half && strcmp(id, act->move.id) == 0 && !act->move.again)
        return LH_OK; /* continue with the next table */
    if (!half &&
        (part == LHI_PART_TARGET || part == LHI_PART_SOURCE || part == LHI_PART_GONE || empty == 0))
        return lhi_fail(err, LH_ESTATE,
                        "store \"%.200s\" is not empty: a store is moved into a new one",
                        txn->db->path);
    if ((rc = clear_rows(txn, err)) != LH_OK || (rc = note_move(txn, act, err)) != LH_OK)
        return rc;
    return set_part(txn, LHI_PART_TARGET, err);
}

static int go_on_from(struct txn *txn, const char *table, int64_t id, struct lhi_error *err)
{
    int rc = sq_run(txn->conn, LHI_SQL_RESTORE_ID_ROW, err, "t", table);
    return rc < 0 ? rc : sq_run(txn->conn, LHI_SQL_RESTORE_ID, err, "it", id, table);
}

static int raise_above(struct txn *txn, int64_t epoch, struct lhi_error *err)
{
    if (epoch < txn->db->epoch)
        epoch = txn->db->epoch;
    if (epoch >= MOST_EPOCHS)
        return lhi_fail(err, LH_EFAIL, "the %d epochs are used up", (int)MOST_EPOCHS);
    return sq_epoch_set(txn->conn, epoch + 1, err);
}

static int tell_of_it(struct txn *txn, const struct lhi_act *act, struct lhi_error *err)
{
    char reason[400], data[96];

    lhi_format(reason, sizeof reason, "moved from \"%.300s\"", act->move.url);
    lhi_format(data, sizeof data, "{\"epoch\":%lld,\"last_job\":%lld}", (long long)txn->db->epoch,
               (long long)act->move.source->last_job);
    return sq_txn_event(
        txn,
        &(struct event){.type = "store.moved", .actor = "move", .reason = reason, .data = data},
        err);
}

static int finish_target(struct txn *txn, const struct lhi_act *act, struct lhi_error *err)
{
    const struct lhi_standing *source = act->move.source;
    int rc = need_part(txn, act, LHI_PART_TARGET, err);

    if (rc != LH_OK || (rc = go_on_from(txn, "lh_job", source->last_job, err)) < 0 ||
        (rc = go_on_from(txn, "lh_event", source->last_event, err)) < 0 ||
        (rc = go_on_from(txn, "lh_report", source->last_report, err)) < 0 ||
        (rc = sq_run(txn->conn, LHI_SQL_RECOUNT_SUMS, err, "")) < 0 ||
        (rc = sq_run(txn->conn, LHI_SQL_CHECK_EXPIRIES, err, "")) < 0 ||
        (rc = raise_above(txn, source->epoch, err)) < 0 ||
        (rc = set_part(txn, LHI_PART_FILLED, err)) < 0)
        return rc;
    txn->falls_due = true; /* maintenance has something to do */
    return tell_of_it(txn, act, err);
}

static int reopen_source(struct txn *txn, const struct lhi_act *act, struct lhi_error *err)
{
    int rc = need_part(txn, act, LHI_PART_SOURCE, err);

    if (rc != LH_OK || (rc = sq_run(txn->conn, LHI_SQL_MOVE_FORGET, err, "")) < 0)
        return rc;
    return set_part(txn, LHI_PART_NONE, err);
}

static int leave_source(struct txn *txn, const struct lhi_act *act, struct lhi_error *err)
{
    int rc = need_part(txn, act, LHI_PART_SOURCE, err);
    return rc == LH_OK ? set_part(txn, LHI_PART_GONE, err) : rc;
}

int sq_act_move(struct txn *txn, struct lhi_act *act)
{
    switch (act->move.step) {
    case LHI_MOVE_CLOSE:
        return close_source(txn, act, &act->err);
    case LHI_MOVE_PREPARE:
        return prepare_target(txn, act, &act->err);
    case LHI_MOVE_PUT:
        return put_rows(txn, act, &act->err);
    case LHI_MOVE_LEAVE:
        return leave_source(txn, act, &act->err);
    case LHI_MOVE_FINISH:
        return finish_target(txn, act, &act->err);
    case LHI_MOVE_REOPEN:
        return reopen_source(txn, act, &act->err);
    }
    return lhi_fail(&act->err, LH_EMISUSE, "not a step of a move");
}
