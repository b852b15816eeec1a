/*
 * The last method of a repair: make a new file from every row that can still be read.
 *
 * The damaged file is read page by page (pages.c): first each tree in the schema, then pages in use
 * that no tree leads to. These were below a damaged page, and their rows show to which table they
 * belong. So a damaged leaf costs its own rows, and a damaged inner page of a table costs nothing.
 * Every loss gets a finding.
 */
#include "store/sqlite/repair/salvage.h"
#include "store/sqlite/open.h"
#include "store/sqlite/reads/reads.h"

#include <string.h>

enum { DEEPEST = 40 }; /* no sound tree is deeper */

/* ---- losses ---- */

static int name_row(struct salvage *s, int64_t above, int64_t upto, struct lhi_error *err)
{
    const char *name = s->at->name;
    bool job = sq_is_job_table(s->at);
    int64_t first = (s->at->ours && above < 0 ? 0 : above) + 1; /* ids of our tables begin at 1 */

    if (s->at->keyed)
        return NAME(s, "error", "lost", "a row of %s cannot be read and is lost", name);
    if (first == upto && job)
        return sq_repair_add_lost_job(s->result, upto, "its row cannot be read", err);
    if (first == upto)
        return NAME(s, "error", "lost", "row %lld of %s is lost: it cannot be read",
                    (long long)upto, name);
    if (upto == INT64_MAX)
        return NAME(s, "error", "lost", "a row of %s after id %lld cannot be read and is lost",
                    name, (long long)first - 1);
    if (job)
        return NAME(s, "error", "lost",
                    "a job with an id from %lld to %lld is lost: its row cannot be read",
                    (long long)first, (long long)upto);
    return NAME(s, "error", "lost",
                "a row of %s with an id from %lld to %lld cannot be read and is lost", name,
                (long long)first, (long long)upto);
}

static int note_hole(void *arg, uint32_t page, int64_t above, int64_t upto, struct lhi_error *err)
{
    struct salvage *s = arg;

    s->at->damaged = true;
    if (s->orphan)
        return LH_OK;
    if (page == 0)
        return name_row(s, above, upto, err);
    struct hole *grown = sq_grow(s->hole, s->n_holes, sizeof *grown);
    if (grown == NULL)
        return lhi_no_memory(err);
    s->hole = grown;
    s->hole[s->n_holes++] =
        (struct hole){.table = s->at, .page = page, .above = above, .upto = upto};
    return LH_OK;
}

/* The page is not consistent. If it is with another number of cells, no row is missing. */
static int note_suspect(void *arg, uint32_t page, bool counted, struct lhi_error *err)
{
    struct salvage *s = arg;

    s->at->damaged = true;
    if (counted)
        return LH_OK;
    return NAME(s, "error", "lost", "page %u of %s is damaged: some of its rows may be lost", page,
                s->at->name);
}

/* An inner page of a table holds no rows, and the pages below it were found without it. */
static int tell_hole(struct salvage *s, const struct hole *hole, struct lhi_error *err)
{
    const char *name = hole->table->name;
    /* ids of our tables begin at 1 */
    int64_t above = hole->table->ours && hole->above < 0 ? 0 : hole->above;
    bool inner = false;
    int rc = hole->table->keyed ? LH_OK : sq_pages_is_parent(&s->pages, hole->page, &inner, err);

    if (rc != LH_OK || inner || hole->filled)
        return rc;
    if (hole->table->keyed)
        return NAME(s, "error", "lost", "page %u of %s cannot be read: its rows are lost",
                    hole->page, name);
    if (hole->upto == INT64_MAX)
        return NAME(s, "error", "lost",
                    "page %u of %s cannot be read: its rows above id %lld are lost", hole->page,
                    name, (long long)above);
    return NAME(s, "error", "lost",
                "page %u of %s cannot be read: its rows with ids %lld to %lld are lost", hole->page,
                name, (long long)above + 1, (long long)hole->upto);
}

/* ---- pages that no tree leads to ---- */

struct guess {
    struct salvage *s;
    bool index;
    bool *fits; /* for each table: can the rows be its rows? */
};

static bool has_shape(const struct table *table, const struct row *row)
{
    int64_t any;

    if (row->n > table->n || (row->n < table->n && table->ours))
        return false;
    for (size_t i = 0; i < row->n; i++) {
        const struct table_column *column = &table->column[i];
        bool null = sq_row_is_null(row, i);
        if ((null && column->required && !column->id) || (!null && column->id) ||
            (!null && column->kind == 'i' && !sq_row_int(row, i, &any)) ||
            (!null && column->kind == 't' && !sq_row_is_text(row, i)))
            return false;
    }
    return true;
}

static int guess_row(void *arg, const struct row *row, struct lhi_error *err)
{
    struct guess *guess = arg;

    (void)err;
    for (size_t i = 0; i < guess->s->n_tables; i++)
        guess->fits[i] = guess->fits[i] && has_shape(&guess->s->table[i], row);
    return LH_OK;
}

static int ignore_hole(void *arg, uint32_t page, int64_t above, int64_t upto, struct lhi_error *err)
{
    (void)arg;
    (void)page;
    (void)above;
    (void)upto;
    (void)err;
    return LH_OK;
}

/* The table that the rows fit; NULL: none, or more than one. lh_expiry does not count: its rows
 * look like an index of ours, and it is rebuilt from the jobs. */
static int guess_among(struct guess *guess, bool damaged, uint32_t page, struct table **out,
                       struct lhi_error *err)
{
    struct salvage *s = guess->s;
    const struct walker walker = {guess->index, guess_row, ignore_hole, guess, NULL};

    for (size_t i = 0; i < s->n_tables; i++)
        guess->fits[i] = s->table[i].damaged == damaged && s->table[i].keyed == guess->index &&
                         strcmp(s->table[i].name, "lh_expiry") != 0;
    int rc = sq_pages_rows(&s->pages, page, &walker, err);
    *out = NULL;
    for (size_t i = 0; i < s->n_tables && rc == LH_OK; i++) {
        if (guess->fits[i] && *out != NULL) {
            *out = NULL;
            break;
        }
        if (guess->fits[i])
            *out = &s->table[i];
    }
    return rc;
}

/* Only a table with a hole can have lost the page. If the map says that the page is in use, any
 * table can. */
static int guess_table(struct guess *guess, uint32_t page, struct table **out,
                       struct lhi_error *err)
{
    int rc = guess_among(guess, true, page, out, err);

    if (rc == LH_OK && *out == NULL && guess->s->pages.mapped && !guess->index)
        rc = guess_among(guess, false, page, out, err);
    return rc;
}

/* A damaged page below another damaged page. The map says which page is above it, and the table of
 * that page is known. */
static int note_hole_below(struct salvage *s, uint32_t page, struct lhi_error *err)
{
    uint32_t above = page;
    int rc = LH_OK;

    for (int depth = 0; depth < DEEPEST && above != 0 && rc == LH_OK; depth++) {
        rc = sq_pages_parent(&s->pages, above, &above, err);
        for (size_t i = 0; i < s->n_holes && rc == LH_OK; i++)
            if (s->hole[i].page == above) {
                const struct hole *hole = &s->hole[i];
                s->orphan = false;
                s->at = hole->table;
                rc = note_hole(s, page, hole->above, hole->upto, err);
                s->orphan = true;
                return rc;
            }
    }
    return rc;
}

static int salvage_orphans(struct salvage *s, struct lhi_error *err)
{
    struct guess guess = {.s = s, .fits = lhi_calloc(s->n_tables + 1, sizeof(bool))};
    struct orphan orphan = {0};
    int rc = LH_OK;

    if (guess.fits == NULL)
        return lhi_no_memory(err);
    s->orphan = true;
    while (rc == LH_OK && (rc = sq_pages_next_orphan(&s->pages, &orphan, err)) == LH_OK &&
           orphan.page != 0) {
        const struct walker walker = {orphan.index, sq_put_row, note_hole, s, note_suspect};
        int64_t before = s->result->jobs + s->result->rows;
        if (!orphan.readable) {
            rc = note_hole_below(s, orphan.page, err);
            continue;
        }
        guess.index = orphan.index;
        rc = guess_table(&guess, orphan.page, &s->at, err);
        if (rc == LH_OK && s->at != NULL)
            rc = sq_pages_rows(&s->pages, orphan.page, &walker, err);
        for (size_t i = 0; i < s->n_holes; i++)
            s->hole[i].filled = s->hole[i].filled || (s->hole[i].page == orphan.page &&
                                                      s->result->jobs + s->result->rows > before);
    }
    s->orphan = false;
    lhi_free(guess.fits);
    return rc;
}

/* ---- the schema and lh_meta, which are needed to read the rest ---- */

static int note_object(void *arg, const struct row *row, struct lhi_error *err)
{
    struct salvage *s = arg;
    bool ok = true;
    int64_t root = 0;
    struct object *grown = sq_grow(s->object, s->n_objects, sizeof *grown);

    if (grown == NULL)
        return lhi_no_memory(err);
    s->object = grown;
    struct object *object = &s->object[s->n_objects];
    *object = (struct object){.type = sq_row_text(row, 0, s->echo, &s->arena, &ok),
                              .name = sq_row_text(row, 1, s->echo, &s->arena, &ok),
                              .table = sq_row_text(row, 2, s->echo, &s->arena, &ok),
                              .sql = sq_row_text(row, 4, s->echo, &s->arena, &ok)};
    if (!ok)
        return lhi_no_memory(err);
    if (sq_row_int(row, 3, &root) && root > 0 && root <= UINT32_MAX)
        object->root = (uint32_t)root;
    if (object->type != NULL && object->name != NULL && object->table != NULL)
        s->n_objects++;
    else
        s->schema_damaged = true;
    return LH_OK;
}

static int note_schema_hole(void *arg, uint32_t page, int64_t above, int64_t upto,
                            struct lhi_error *err)
{
    struct salvage *s = arg;

    s->schema_damaged = true;
    return ignore_hole(arg, page, above, upto, err);
}

static int look_at_meta(void *arg, const struct row *row, struct lhi_error *err)
{
    struct salvage *s = arg;
    bool ok = true;
    const char *key = sq_row_text(row, 0, s->echo, &s->arena, &ok);

    if (!ok)
        return lhi_no_memory(err);
    if (key != NULL && strcmp(key, "schema_version") == 0)
        (void)sq_row_int(row, 1, &s->version);
    if (key != NULL && strcmp(key, "own_file") == 0)
        (void)sq_row_int(row, 1, &s->own_file);
    return LH_OK;
}

static uint32_t root_of(const struct salvage *s, const char *name)
{
    for (size_t i = 0; i < s->n_objects; i++)
        if (strcmp(s->object[i].type, "table") == 0 && strcmp(s->object[i].name, name) == 0)
            return s->object[i].root;
    return 0;
}

static int look_at_schema(struct salvage *s, struct lhi_error *err)
{
    const struct walker objects = {false, note_object, note_schema_hole, s, NULL};
    const struct walker meta = {true, look_at_meta, ignore_hole, s, NULL};
    int rc = sq_pages_walk(&s->pages, 1, &objects, err);

    if (rc == LH_OK && root_of(s, "lh_meta") != 0)
        rc = sq_pages_walk(&s->pages, root_of(s, "lh_meta"), &meta, err);
    sq_pages_forget(&s->pages); /* lh_meta is read again later, as a table */
    if (rc == LH_OK && s->version > lhi_sqlite_migration_count)
        return lhi_fail(err, LH_ENEWER,
                        "store \"%s\" has schema version %lld, this program knows up to %d: use a "
                        "newer leasehold",
                        s->db->path, (long long)s->version, lhi_sqlite_migration_count);
    if (s->version < 1)
        s->version =
            s->pages.user_version >= 1 && s->pages.user_version <= lhi_sqlite_migration_count
                ? s->pages.user_version
                : lhi_sqlite_migration_count;
    return rc;
}

/* ---- all tables ---- */

static int put_counter(void *arg, const struct row *row, struct lhi_error *err)
{
    struct salvage *s = arg;
    bool ok = true;
    int64_t last;
    const char *name = sq_row_text(row, 0, s->echo, &s->arena, &ok);

    if (!ok)
        return lhi_no_memory(err);
    if (name == NULL || !sq_row_int(row, 1, &last)) {
        s->counters_damaged = true;
        return LH_OK;
    }
    s->counters_found = s->counters_found || strcmp(name, "lh_job") == 0;
    return sq_rebuild_counter(s, name, last, err);
}

static int note_counter_hole(void *arg, uint32_t page, int64_t above, int64_t upto,
                             struct lhi_error *err)
{
    struct salvage *s = arg;

    s->counters_damaged = true;
    return ignore_hole(arg, page, above, upto, err);
}

static int note_counter_suspect(void *arg, uint32_t page, bool counted, struct lhi_error *err)
{
    return counted ? LH_OK : note_counter_hole(arg, page, 0, 0, err);
}

static int skip_row(void *arg, const struct row *row, struct lhi_error *err)
{
    (void)arg;
    (void)row;
    (void)err;
    return LH_OK;
}

/* Walk over a tree whose rows are not needed, so that its pages count as reached. */
static int pass_by(struct salvage *s, uint32_t root, bool index, struct lhi_error *err)
{
    const struct walker walker = {index, skip_row, ignore_hole, s, NULL};
    return sq_pages_walk(&s->pages, root, &walker, err);
}

static bool is_wanted(const struct salvage *s, const char *name)
{
    for (size_t i = 0; i < s->n_tables; i++)
        if (strcmp(s->table[i].name, name) == 0)
            return true;
    return false;
}

static int salvage_tables(struct salvage *s, struct lhi_error *err)
{
    const struct walker counters = {false, put_counter, note_counter_hole, s, note_counter_suspect};
    int rc = pass_by(s, 1, false, err);

    for (size_t i = 0; i < s->n_tables && rc == LH_OK; i++) {
        struct table *table = &s->table[i];
        const struct walker walker = {table->keyed, sq_put_row, note_hole, s, note_suspect};
        s->at = table;
        table->root = root_of(s, table->name);
        if (table->root != 0)
            rc = sq_pages_walk(&s->pages, table->root, &walker, err);
        else
            table->damaged = s->schema_damaged;
    }
    for (size_t i = 0; i < s->n_objects && rc == LH_OK; i++) {
        const struct object *object = &s->object[i];
        bool index = strcmp(object->type, "index") == 0;
        if (object->root == 0 || is_wanted(s, object->name))
            continue;
        if (strcmp(object->name, "sqlite_sequence") == 0)
            rc = sq_pages_walk(&s->pages, object->root, &counters, err);
        else
            rc = pass_by(s, object->root, index, err);
    }
    return rc;
}

static int salvage_rows(struct salvage *s, const char *to, struct lhi_error *err)
{
    int rc = look_at_schema(s, err);

    if (rc != LH_OK || (rc = sq_rebuild_begin(s, to, err)) != LH_OK ||
        (rc = salvage_tables(s, err)) != LH_OK || (rc = salvage_orphans(s, err)) != LH_OK)
        return rc;
    for (size_t i = 0; i < s->n_holes && rc == LH_OK; i++)
        rc = tell_hole(s, &s->hole[i], err);
    if (rc == LH_OK && s->schema_damaged)
        rc = NAME(s, "error", "lost",
                  "part of the schema is lost: rows were assigned to tables by their shape, and "
                  "rows that fit no table are lost");
    if (rc == LH_OK && s->result->jobs + s->result->rows == 0)
        return lhi_fail(err, LH_ECORRUPT, "no row of it can be read");
    return rc == LH_OK ? sq_rebuild_end(s, to, err) : rc;
}

int sq_salvage(struct db *db, const char *from, const char *to, struct repair_result *result,
               struct lhi_error *err)
{
    struct salvage *s = lhi_calloc(1, sizeof *s);

    if (s == NULL)
        return lhi_no_memory(err);
    s->db = db;
    s->result = result;
    s->own_file = -1;
    int rc = sq_pages_open(&s->pages, from, err);
    if (rc == LH_OK &&
        (rc = sq_conn_open(&s->memory, ":memory:", SQLITE_OPEN_READWRITE, err)) == LH_OK &&
        sqlite3_prepare_v2(s->memory.db, "SELECT ?1", -1, &s->echo, NULL) != SQLITE_OK)
        rc = lhi_no_memory(err);
    if (rc == LH_OK)
        rc = salvage_rows(s, to, err);
    for (size_t i = 0; i < s->n_tables; i++) {
        (void)sqlite3_finalize(s->table[i].insert);
        lhi_free(s->table[i].column);
    }
    (void)sqlite3_finalize(s->echo);
    sq_conn_close(&s->memory);
    sq_conn_close(&s->conn);
    sq_pages_close(&s->pages);
    lhi_free(s->table);
    lhi_free(s->object);
    lhi_free(s->hole);
    lhi_arena_clear(&s->arena);
    lhi_free(s);
    return rc;
}
