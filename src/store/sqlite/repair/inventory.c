/*
 * What can be learned from a damaged file before it is changed.
 *
 * The indexes list the jobs. And if every page of every table is consistent, REINDEX and VACUUM
 * lose nothing. A page that is in use but that no tree leads to proves that they may lose rows.
 */
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/repair/repair.h"

#include <stdlib.h>

/* ---- ids ---- */

bool sq_ids_add(struct ids *ids, int64_t id)
{
    int64_t *grown = sq_grow(ids->id, ids->n, sizeof *grown);
    if (grown == NULL)
        return false;
    ids->id = grown;
    ids->id[ids->n++] = id;
    return true;
}

static int compare_ids(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

void sq_ids_sort(struct ids *ids)
{
    size_t n = 0;

    if (ids->n > 0)
        qsort(ids->id, ids->n, sizeof *ids->id, compare_ids);
    for (size_t i = 0; i < ids->n; i++)
        if (n == 0 || ids->id[n - 1] != ids->id[i])
            ids->id[n++] = ids->id[i];
    ids->n = n;
}

bool sq_ids_have(const struct ids *ids, int64_t id)
{
    return ids->n > 0 && bsearch(&id, ids->id, ids->n, sizeof id, compare_ids) != NULL;
}

/* ---- reading the indexes ---- */

static const char *const indexes[JOB_INDEXES] = {"lh_job_pending", "lh_job_timed", "lh_job_key"};

struct learning {
    struct inventory *inventory;
    uint32_t root[JOB_INDEXES];
    struct ids tables, others; /* roots of our tables, and of all other indexes */
    size_t at;
};

static int learn_root(void *arg, const struct row *row, struct lhi_error *err)
{
    struct learning *learning = arg;
    int64_t root;

    if (row->broken || !sq_row_int(row, 3, &root) || root < 0 || root > UINT32_MAX) {
        learning->inventory->tables_whole = false;
        return LH_OK;
    }
    for (size_t i = 0; i < JOB_INDEXES; i++)
        if (sq_row_equals(row, 1, indexes[i])) {
            learning->root[i] = (uint32_t)root;
            return LH_OK;
        }
    struct ids *list = sq_row_equals(row, 0, "index") ? &learning->others : &learning->tables;
    return root == 0 || sq_ids_add(list, root) ? LH_OK : lhi_no_memory(err);
}

/* The row id is the last value of an index entry. */
static int learn_id(void *arg, const struct row *row, struct lhi_error *err)
{
    struct learning *learning = arg;
    int64_t id;

    if (row->broken || !sq_row_int(row, row->n - 1, &id))
        return LH_OK;
    return sq_ids_add(&learning->inventory->ids[learning->at], id) ? LH_OK : lhi_no_memory(err);
}

static int learn_hole(void *arg, uint32_t page, int64_t above, int64_t upto, struct lhi_error *err)
{
    struct learning *learning = arg;

    (void)page;
    (void)above;
    (void)upto;
    (void)err;
    if (learning->at < JOB_INDEXES)
        learning->inventory->whole[learning->at] = false;
    return LH_OK;
}

static int skip_row(void *arg, const struct row *row, struct lhi_error *err)
{
    (void)arg;
    (void)row;
    (void)err;
    return LH_OK;
}

static int look_at_row(void *arg, const struct row *row, struct lhi_error *err)
{
    struct learning *learning = arg;

    (void)err;
    learning->inventory->tables_whole = learning->inventory->tables_whole && !row->broken;
    return LH_OK;
}

static int table_hole(void *arg, uint32_t page, int64_t above, int64_t upto, struct lhi_error *err)
{
    struct learning *learning = arg;

    (void)page;
    (void)above;
    (void)upto;
    (void)err;
    learning->inventory->tables_whole = false;
    return LH_OK;
}

static int table_suspect(void *arg, uint32_t page, bool counted, struct lhi_error *err)
{
    (void)counted;
    return table_hole(arg, page, 0, 0, err);
}

static int look_at_tables(struct learning *learning, struct pages *pages, struct lhi_error *err)
{
    struct walker walker = {false, look_at_row, table_hole, learning, table_suspect};
    int rc = LH_OK;

    for (size_t i = 0; i < learning->tables.n && rc == LH_OK; i++) {
        uint32_t root = (uint32_t)learning->tables.id[i];
        rc = sq_pages_is_keyed(pages, root, &walker.index, err);
        if (rc == LH_OK)
            rc = sq_pages_walk(pages, root, &walker, err);
    }
    return rc;
}

/* A page in use that no tree leads to belonged to a tree. */
static int look_for_orphans(struct learning *learning, struct pages *pages, struct lhi_error *err)
{
    const struct walker walker = {true, skip_row, learn_hole, learning, NULL};
    struct orphan orphan = {0};
    int rc = LH_OK;

    learning->at = JOB_INDEXES;
    for (size_t i = 0; i < learning->others.n && rc == LH_OK; i++)
        rc = sq_pages_walk(pages, (uint32_t)learning->others.id[i], &walker, err);
    if (rc == LH_OK)
        rc = sq_pages_next_orphan(pages, &orphan, err);
    if (orphan.page != 0)
        learning->inventory->tables_whole = false;
    return rc;
}

static int look_at_indexes(struct learning *learning, struct pages *pages, struct lhi_error *err)
{
    struct inventory *inventory = learning->inventory;
    const struct walker walker = {true, learn_id, learn_hole, learning, NULL};
    int rc = LH_OK;

    for (size_t i = 0; i < JOB_INDEXES && rc == LH_OK; i++) {
        learning->at = i;
        inventory->whole[i] = learning->root[i] != 0;
        if (inventory->whole[i])
            rc = sq_pages_walk(pages, learning->root[i], &walker, err);
        sq_ids_sort(&inventory->ids[i]);
    }
    return rc;
}

int sq_inventory_read(struct inventory *inventory, const char *file, struct lhi_error *err)
{
    struct learning learning = {.inventory = inventory};
    const struct walker schema = {false, learn_root, table_hole, &learning, table_suspect};
    struct pages pages;
    int rc = sq_pages_open(&pages, file, err);

    if (rc == LH_ECORRUPT)
        return LH_OK; /* then nothing can be learned */
    inventory->tables_whole = true;
    if (rc == LH_OK && (rc = sq_pages_walk(&pages, 1, &schema, err)) == LH_OK &&
        (rc = look_at_tables(&learning, &pages, err)) == LH_OK &&
        (rc = look_at_indexes(&learning, &pages, err)) == LH_OK)
        rc = look_for_orphans(&learning, &pages, err);
    sq_pages_close(&pages);
    lhi_free(learning.tables.id);
    lhi_free(learning.others.id);
    return rc;
}

void sq_inventory_free(struct inventory *inventory)
{
    for (size_t i = 0; i < JOB_INDEXES; i++)
        lhi_free(inventory->ids[i].id);
    *inventory = (struct inventory){0};
}
