/*
 * move.c: this store as the source or the target of a move.
 *
 * The database knows which part the store has in a move, and closes it meanwhile (84_move.sql). The
 * statements that read and write rows are generated from the one list of tables, so both sides
 * always agree.
 */
#include "store/postgres/pg.h"

#include <stdio.h>
#include <string.h>

enum { TEXT_ROOM = 4096 };

/* ---- state of the move ---- */

static void read_part(const struct rows *rows, struct lhi_standing *out)
{
    static const char *const names[] = {[LHI_PART_SOURCE] = "source",
                                        [LHI_PART_GONE] = "gone",
                                        [LHI_PART_TARGET] = "target",
                                        [LHI_PART_FILLED] = "filled"};
    const char *part = pg_row_text(rows, 0, 2);

    for (size_t i = LHI_PART_SOURCE; part != NULL && i <= LHI_PART_FILLED; i++)
        if (strcmp(part, names[i]) == 0)
            out->part = (enum lhi_part)i;
    if (part == NULL)
        return;
    lhi_format(out->move, sizeof out->move, "%s", pg_row_text(rows, 0, 3));
    lhi_format(out->other, sizeof out->other, "%s", pg_row_text(rows, 0, 4));
}

int pg_read_standing(struct txn *txn, struct lhi_act *act)
{
    struct lhi_standing *out = act->standing;
    struct rows rows;
    int rc = pg_call(txn, LHI_POSTGRES_MOVE_LOOK, NULL, &rows, &act->err);

    if (rc != LH_OK)
        return rc;
    lhi_format(out->uuid, sizeof out->uuid, "%s", pg_row_text(&rows, 0, 0));
    out->epoch = pg_row_int(&rows, 0, 1);
    read_part(&rows, out);
    out->last_job = pg_row_int(&rows, 0, 5);
    out->last_event = pg_row_int(&rows, 0, 6);
    out->last_report = pg_row_int(&rows, 0, 7);
    out->empty = pg_row_bool(&rows, 0, 8);
    out->rows = pg_row_int(&rows, 0, 9);
    pg_rows_free(&rows);
    return LH_OK;
}

/* ---- generated SQL ---- */

struct text {
    char sql[TEXT_ROOM];
    size_t used;
};

static void append(struct text *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void append(struct text *text, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(text->sql + text->used, sizeof text->sql - text->used, fmt, ap);
    va_end(ap);
    if (n > 0)
        text->used += (size_t)n;
}

/* ---- reading rows ---- */

static const char *comma(size_t i)
{
    return i > 0 ? ", " : "";
}

/* A column as it is read: one value, whatever columns it is stored in. */
static void append_column(struct text *text, const struct lhi_column *column)
{
    if (column->type == LHI_CELL_ANY)
        append(text, "coalesce(convert_to(t.%s, 'UTF8'), t.%s_bytes)", column->name, column->name);
    else if (column->type == LHI_CELL_REFS)
        append(
            text,
            "(SELECT '[' || coalesce(string_agg('[' || u.j || ',' || coalesce(u.k, 0) || ']', ',' "
            "ORDER BY u.n), '') || ']' FROM unnest(t.jobs, t.tokens) WITH ORDINALITY u(j, k, n))");
    else
        append(text, "t.%s", column->name);
}

static void append_keys(struct text *text, const struct lhi_table *table, const char *after)
{
    for (size_t i = 0; i < table->n_keys; i++)
        append(text, "%st.%s%s", comma(i), table->column[i].name, after);
}

/* Payloads and outputs may be large: limit the rows to a number of bytes, plus one row. */
static void append_source(struct text *text, enum lhi_moved which, bool after)
{
    if (which == LHI_MOVED_JOB)
        append(text,
               "(SELECT s.*, sum(s.bytes) OVER (ORDER BY s.id) - s.bytes AS before FROM "
               "(SELECT j.*, coalesce(octet_length(j.payload), octet_length(j.payload_bytes), 0) "
               "+ coalesce(octet_length(j.result), octet_length(j.result_bytes), 0) AS bytes "
               "FROM leasehold.job j%s ORDER BY j.id LIMIT %d) s) t WHERE t.before < %d",
               after ? " WHERE j.id > $1" : "", (int)LHI_BATCH, (int)LHI_MOVE_BYTES);
    else if (which == LHI_MOVED_OUTPUT)
        append(
            text,
            "(SELECT s.*, sum(s.bytes) OVER (ORDER BY s.job, s.token) - s.bytes AS before FROM "
            "(SELECT o.*, coalesce(octet_length(o.stdout_head), 0) "
            "+ coalesce(octet_length(o.stdout_tail), 0) + coalesce(octet_length(o.stderr_head), 0) "
            "+ coalesce(octet_length(o.stderr_tail), 0) AS bytes "
            "FROM leasehold.output o%s ORDER BY o.job, o.token LIMIT %d) s) t WHERE t.before < %d",
            after ? " WHERE (o.job, o.token) > ($1, $2)" : "", (int)LHI_BATCH, (int)LHI_MOVE_BYTES);
    else if (which == LHI_MOVED_REQUEST) /* producers' request ids belong to roles of this server */
        append(text, "leasehold.request t WHERE t.producer = 0");
    else
        append(text, "leasehold.%s t WHERE true", lhi_moved[which].name);
}

static void append_select(struct text *text, enum lhi_moved which, bool after)
{
    const struct lhi_table *table = &lhi_moved[which];

    append(text, "SELECT ");
    for (size_t i = 0; i < table->n; i++) {
        append(text, "%s", comma(i));
        append_column(text, &table->column[i]);
    }
    append(text, " FROM ");
    append_source(text, which, after);
    if (after) {
        append(text, " AND (");
        append_keys(text, table, "");
        append(text, ") > ($1%s)", table->n_keys > 1 ? ", $2" : "");
    }
    append(text, " ORDER BY ");
    append_keys(text, table, "");
    append(text, " LIMIT %d", (int)LHI_BATCH);
}

static void append_last(struct text *text, enum lhi_moved which)
{
    const struct lhi_table *table = &lhi_moved[which];

    append(text, "SELECT ");
    append_keys(text, table, "");
    append(text, " FROM leasehold.%s t ORDER BY ", table->name);
    append_keys(text, table, " DESC");
    append(text, " LIMIT 1");
}

static bool read_cell(const struct rows *rows, int row, int column, enum lhi_cell_type type,
                      struct lhi_arena *arena, struct lhi_cell *out)
{
    *out = (struct lhi_cell){.null = pg_row_null(rows, row, column)};
    if (out->null)
        return true;
    switch (type) {
    case LHI_CELL_TIME:
        out->number = pg_row_time(rows, row, column);
        return true;
    case LHI_CELL_TEXT:
    case LHI_CELL_BYTES:
    case LHI_CELL_ANY:
    case LHI_CELL_REFS:
        out->bytes = pg_row_bytes(rows, row, column, &out->len);
        out->bytes = lhi_arena_copy(arena, out->bytes, out->len);
        return out->bytes != NULL;
    default:
        out->number = pg_row_int(rows, row, column);
        return true;
    }
}

static bool read_cells(const struct rows *rows, enum lhi_moved which, size_t width,
                       struct lhi_rows *out)
{
    struct lhi_arena *arena = lhi_arena_of(&out->priv);

    for (int row = 0; row < rows->n; row++) {
        struct lhi_cell *cell = arena ? lhi_rows_room(out, width) : NULL;
        for (size_t i = 0; cell != NULL && i < width; i++)
            if (!read_cell(rows, row, (int)i, lhi_moved[which].column[i].type, arena, &cell[i]))
                return false;
        if (cell == NULL)
            return false;
        out->n++;
    }
    return true;
}

static void arg_key(struct args *args, enum lhi_cell_type type, const struct lhi_cell *cell)
{
    if (type == LHI_CELL_TEXT)
        pg_arg_text(args, cell->bytes); /* values from an arena end with a zero byte */
    else if (type == LHI_CELL_TIME)
        pg_arg_time(args, cell->number);
    else
        pg_arg_int(args, cell->number);
}

int pg_read_moved(struct txn *txn, struct lhi_act *act)
{
    enum lhi_moved which = act->rows.table;
    const struct lhi_table *table = &lhi_moved[which];
    struct text text = {.used = 0};
    struct args args = {0};
    struct rows rows;

    if (act->rows.last)
        append_last(&text, which);
    else
        append_select(&text, which, act->rows.after != NULL);
    for (size_t i = 0; act->rows.after != NULL && i < table->n_keys; i++)
        arg_key(&args, table->column[i].type, &act->rows.after[i]);
    int rc = pg_call_text(txn, text.sql, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    lhi_rows_clear(act->rows.out); /* an earlier try may have read some rows */
    bool ok = read_cells(&rows, which, act->rows.last ? table->n_keys : table->n, act->rows.out);
    pg_rows_free(&rows);
    return ok ? LH_OK : lhi_no_memory(&act->err);
}

/* ---- writing rows ---- */

/* The columns that a value goes to. */
static void append_targets(struct text *text, const struct lhi_table *table)
{
    for (size_t i = 0; i < table->n; i++) {
        const char *name = table->column[i].name;
        append(text, "%s%s", comma(i), name);
        if (table->column[i].type == LHI_CELL_ANY)
            append(text, ", %s_bytes", name);
        else if (table->column[i].type == LHI_CELL_REFS)
            append(text, ", tokens");
    }
}

static void append_refs(struct text *text, const char *name, int which)
{
    append(
        text,
        "ARRAY(SELECT (x.e ->> %d)::bigint FROM jsonb_array_elements(u.%s::jsonb) WITH ORDINALITY "
        "x(e, n) ORDER BY x.n)",
        which, name);
}

static void append_values(struct text *text, const struct lhi_table *table)
{
    for (size_t i = 0; i < table->n; i++) {
        const char *name = table->column[i].name;
        append(text, "%s", comma(i));
        if (table->column[i].type == LHI_CELL_REFS) {
            append_refs(text, name, 0);
            append(text, ", ");
            append_refs(text, name, 1);
        } else if (table->column[i].type == LHI_CELL_ANY) {
            append(text, "u.%s, u.%s_bytes", name, name);
        } else {
            append(text, "u.%s", name);
        }
    }
}

/* unnest($1, $2, ...) AS u(id, ...): one array per column, two where bytes may be text. */
static void append_sent(struct text *text, const struct lhi_table *table)
{
    size_t sent = 0;

    append(text, "unnest(");
    for (size_t i = 0; i < table->n; i++) {
        append(text, "%s$%zu", comma(i), ++sent);
        if (table->column[i].type == LHI_CELL_ANY)
            append(text, ", $%zu", ++sent);
    }
    append(text, ") AS u(");
    for (size_t i = 0; i < table->n; i++) {
        append(text, "%s%s", comma(i), table->column[i].name);
        if (table->column[i].type == LHI_CELL_ANY)
            append(text, ", %s_bytes", table->column[i].name);
    }
    append(text, ")");
}

static void append_insert(struct text *text, enum lhi_moved which)
{
    const struct lhi_table *table = &lhi_moved[which];
    /* The trigger must not count jobs that are moved. */
    bool job = which == LHI_MOVED_JOB;
    bool given_ids = strcmp(table->column[0].name, "id") == 0;

    append(text, "INSERT INTO leasehold.%s(", table->name);
    append_targets(text, table);
    append(text, "%s)%s SELECT ", job ? ", plain" : "",
           given_ids ? " OVERRIDING SYSTEM VALUE" : "");
    append_values(text, table);
    append(text, "%s FROM ", job ? ", false" : "");
    append_sent(text, table);
}

static void put_cell(struct args *args, enum lhi_cell_type type, const struct lhi_cell *cell)
{
    if (cell->null)
        pg_put_null(args);
    else if (type == LHI_CELL_TIME)
        pg_put_time(args, cell->number);
    else if (type == LHI_CELL_BOOL)
        pg_put_bool(args, cell->number != 0);
    else if (type == LHI_CELL_INT)
        pg_put_int(args, cell->number);
    else
        pg_put_bytes(args, cell->bytes, cell->len);
}

static Oid oid_of(enum lhi_cell_type type)
{
    switch (type) {
    case LHI_CELL_INT:
        return OID_INT8;
    case LHI_CELL_BOOL:
        return OID_BOOL;
    case LHI_CELL_TIME:
        return OID_TIMESTAMPTZ;
    case LHI_CELL_BYTES:
        return OID_BYTEA;
    default:
        return OID_TEXT;
    }
}

/* An array of the values that are text, or of those that are not; the others are NULL. */
static void add_any(struct args *args, const struct lhi_rows *rows, size_t width, size_t column,
                    bool text)
{
    pg_arg_array(args, text ? OID_TEXT : OID_BYTEA, rows->n);
    for (size_t i = 0; i < rows->n; i++) {
        const struct lhi_cell *cell = &rows->cell[i * width + column];
        if (cell->null || lh_text_ok(cell->bytes, cell->len) != text)
            pg_put_null(args);
        else
            pg_put_bytes(args, cell->bytes, cell->len);
    }
}

static void add_column(struct args *args, const struct lhi_rows *rows,
                       const struct lhi_table *table, size_t column)
{
    enum lhi_cell_type type = table->column[column].type;

    if (type == LHI_CELL_ANY) {
        add_any(args, rows, table->n, column, true);
        add_any(args, rows, table->n, column, false);
        return;
    }
    pg_arg_array(args, oid_of(type), rows->n);
    for (size_t i = 0; i < rows->n; i++)
        put_cell(args, type, &rows->cell[i * table->n + column]);
}

/* A SQLite file that plain SQL has written may contain text that PostgreSQL does not accept. */
static int refuse_no_text(const struct lhi_table *table, const struct lhi_rows *rows,
                          struct lhi_error *err)
{
    for (size_t i = 0; i < rows->n * table->n; i++) {
        const struct lhi_column *column = &table->column[i % table->n];
        const struct lhi_cell *cell = &rows->cell[i], *first = cell - i % table->n;
        if (column->type != LHI_CELL_TEXT || cell->null || lh_text_ok(cell->bytes, cell->len))
            continue;
        if (table->column[0].type == LHI_CELL_INT)
            return lhi_fail(err, LH_EINVAL,
                            "%s of %s %lld is not UTF-8, or has a zero byte: PostgreSQL takes "
                            "neither",
                            column->name, table->name, (long long)first->number);
        return lhi_fail(err, LH_EINVAL,
                        "%s of a row of \"%s\" is not UTF-8, or has a zero byte: PostgreSQL takes "
                        "neither",
                        column->name, table->name);
    }
    return LH_OK;
}

static int put_rows(struct txn *txn, struct lhi_act *act)
{
    const struct lhi_rows *rows = act->move.rows;
    const struct lhi_table *table = &lhi_moved[act->move.table];
    struct text text = {.used = 0};
    struct args args = {0};
    int rc = refuse_no_text(table, rows, &act->err);

    if (rc != LH_OK)
        return rc;
    pg_arg_text(&args, act->move.id);
    if ((rc = pg_call(txn, LHI_POSTGRES_MOVE_NEED, &args, NULL, &act->err)) != LH_OK)
        return rc;
    append_insert(&text, act->move.table);
    for (size_t i = 0; i < table->n; i++)
        add_column(&args, rows, table, i);
    return pg_call_text(txn, text.sql, &args, NULL, &act->err);
}

/* ---- the other steps ---- */

static int close_source(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_arg_text(&args, act->move.id);
    pg_arg_text(&args, act->move.other);
    pg_arg_text(&args, act->move.url);
    return pg_call(txn, LHI_POSTGRES_MOVE_CLOSE, &args, NULL, &act->err);
}

static int prepare_target(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_arg_text(&args, act->move.id);
    pg_arg_text(&args, act->move.other);
    pg_arg_text(&args, act->move.url);
    pg_arg_bool(&args, act->move.again);
    return pg_call(txn, LHI_POSTGRES_MOVE_PREPARE, &args, NULL, &act->err);
}

static int finish_target(struct txn *txn, struct lhi_act *act)
{
    const struct lhi_standing *source = act->move.source;
    struct args args = {0};

    pg_arg_text(&args, act->move.id);
    pg_arg_text(&args, act->move.url);
    pg_arg_int(&args, source->epoch);
    pg_arg_int(&args, source->last_job);
    pg_arg_int(&args, source->last_event);
    pg_arg_int(&args, source->last_report);
    return pg_call(txn, LHI_POSTGRES_MOVE_FINISH, &args, NULL, &act->err);
}

static int end_source(struct txn *txn, struct lhi_act *act, enum lhi_postgres_call which)
{
    struct args args = {0};

    pg_arg_text(&args, act->move.id);
    return pg_call(txn, which, &args, NULL, &act->err);
}

int pg_act_move(struct txn *txn, struct lhi_act *act)
{
    switch (act->move.step) {
    case LHI_MOVE_CLOSE:
        return close_source(txn, act);
    case LHI_MOVE_PREPARE:
        return prepare_target(txn, act);
    case LHI_MOVE_PUT:
        return put_rows(txn, act);
    case LHI_MOVE_LEAVE:
        return end_source(txn, act, LHI_POSTGRES_MOVE_LEAVE);
    case LHI_MOVE_FINISH:
        return finish_target(txn, act);
    case LHI_MOVE_REOPEN:
        return end_source(txn, act, LHI_POSTGRES_MOVE_REOPEN);
    }
    return lhi_fail(&act->err, LH_EMISUSE, "not a step of a move");
}
