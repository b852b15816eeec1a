/*
 * The last step of a repair, on a sound file before it takes the store's place.
 *
 * A file that SQLite calls sound may have lost rows. The indexes of the damaged file list the jobs
 * that existed: those that are missing now are lost, and each gets a finding. Payloads that do not
 * match their checksum get a finding too; a claim will fail their jobs. If anything is lost, the
 * epoch rises, so that no token is issued a second time.
 */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/open.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/repair/repair.h"
#include "store/sqlite/row_sum.h"
#include "store/sqlite/rows.h"

#include "base/clock.h"

#include <string.h>

/* added to the highest id when it is unknown how many ids were given */
enum { SKIPPED_IDS = 1000000 };

/* ---- the schema ---- */

static bool same_text(sqlite3_stmt *a, sqlite3_stmt *b, int column)
{
    const char *x = (const char *)sqlite3_column_text(a, column);
    const char *y = (const char *)sqlite3_column_text(b, column);
    return x != NULL && y != NULL && strcmp(x, y) == 0;
}

/* SQLite accepts every schema that it can parse. But a changed byte may be in the condition of one
 * of our indexes, which would then find nothing. */
static int compare_schema(struct conn *conn, struct conn *model, struct lhi_error *err)
{
    sqlite3_stmt *wanted = sq_stmt(model, LHI_SQL_CHECK_SCHEMA, err, "");
    sqlite3_stmt *there = wanted ? sq_stmt(conn, LHI_SQL_CHECK_SCHEMA, err, "") : NULL;
    int rc = there ? LH_OK : err->status;

    while (rc == LH_OK && (rc = sq_step(model, wanted, err)) == LH_OK) {
        /* Both lists are ordered by name. Another program's names may begin like ours. */
        do
            rc = sq_step(conn, there, err);
        while (rc == LH_OK && !same_text(wanted, there, 0));
        if (rc == LH_EMPTY || (rc == LH_OK && !same_text(wanted, there, 1)))
            rc = lhi_fail(err, LH_ECORRUPT, "%s differs from its definition",
                          (const char *)sqlite3_column_text(wanted, 0));
    }
    sq_reset(wanted);
    sq_reset(there);
    return rc < 0 ? rc : LH_OK;
}

int sq_schema_as_made(struct conn *conn, struct lhi_error *err)
{
    struct conn model = {0};
    int64_t version = 0;
    int rc = sq_meta_int(conn, "schema_version", 0, &version, err);

    if (rc == LH_OK)
        rc = sq_conn_open(&model, ":memory:", SQLITE_OPEN_READWRITE, err);
    for (int i = 0; i < (int)version && rc == LH_OK; i++)
        rc = sq_exec(&model, lhi_sqlite_migrations[i].text, err);
    if (rc == LH_OK)
        rc = compare_schema(conn, &model, err);
    sq_conn_close(&model);
    return rc;
}

/* ---- lost jobs ---- */

/* By index of the damaged file: the jobs that belong in it. */
static const enum lhi_sql belongs[JOB_INDEXES] = {LHI_SQL_CHECK_JOBS_PENDING,
                                                  LHI_SQL_CHECK_JOBS_TIMED, LHI_SQL_CHECK_JOBS_KEY};

static int load_ids(struct conn *conn, enum lhi_sql which, struct ids *ids, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(conn, which, err, "");
    int rc = stmt ? LH_OK : err->status;

    while (rc == LH_OK && (rc = sq_step(conn, stmt, err)) == LH_OK)
        if (!sq_ids_add(ids, sqlite3_column_int64(stmt, 0)))
            rc = lhi_no_memory(err);
    sq_reset(stmt);
    return rc < 0 ? rc : LH_OK;
}

/* Find the jobs that the index lists but the table does not have. If the whole index could be read
 * and it lists as many wrong jobs as are missing, its entries were wrong and nothing is lost. */
static int compare_index(struct conn *conn, const struct inventory *inventory, size_t i,
                         const struct ids *jobs, int64_t last, struct ids *lost,
                         struct lhi_error *err)
{
    const struct ids *entries = &inventory->ids[i];
    struct ids belong = {0};
    size_t extra = 0, missing = 0;
    int rc = load_ids(conn, belongs[i], &belong, err);

    for (size_t k = 0; k < entries->n; k++)
        if (entries->id[k] > 0 && entries->id[k] <= last && !sq_ids_have(jobs, entries->id[k]))
            extra++;
    for (size_t k = 0; k < belong.n; k++)
        missing += sq_ids_have(entries, belong.id[k]) ? 0 : 1;
    lhi_free(belong.id);
    if (rc != LH_OK || extra == 0 || (inventory->whole[i] && extra <= missing))
        return rc;
    for (size_t k = 0; k < entries->n; k++)
        if (entries->id[k] > 0 && entries->id[k] <= last && !sq_ids_have(jobs, entries->id[k]) &&
            !sq_ids_add(lost, entries->id[k]))
            return lhi_no_memory(err);
    return LH_OK;
}

static int name_lost(struct conn *conn, const struct inventory *inventory,
                     struct repair_result *result, struct lhi_error *err)
{
    struct ids jobs = {0}, lost = {0};
    int64_t last = 0;
    int rc = sq_int(conn, LHI_SQL_REPAIR_LAST_ID, err, 0, &last, "");

    if (rc == LH_OK)
        rc = load_ids(conn, LHI_SQL_CHECK_JOBS, &jobs, err);
    for (size_t i = 0; i < JOB_INDEXES && rc == LH_OK; i++)
        rc = compare_index(conn, inventory, i, &jobs, last, &lost, err);
    sq_ids_sort(&lost);
    sq_ids_sort(&result->lost_jobs);
    for (size_t k = 0; k < lost.n && rc == LH_OK; k++)
        if (!sq_ids_have(&result->lost_jobs, lost.id[k]) &&
            !sq_repair_add_loss(result, "error", "lost", "job %lld is lost", (long long)lost.id[k]))
            rc = lhi_no_memory(err);
    lhi_free(jobs.id);
    lhi_free(lost.id);
    return rc;
}

int sq_counters_skip(struct conn *conn, int64_t seen, struct repair_result *result,
                     struct lhi_error *err)
{
    int64_t last = seen + SKIPPED_IDS;

    if (sq_run(conn, LHI_SQL_RESTORE_ID_ROW, err, "t", "lh_job") < 0 ||
        sq_run(conn, LHI_SQL_RESTORE_ID, err, "it", last, "lh_job") < 0 ||
        sq_run(conn, LHI_SQL_REPAIR_SKIP_IDS, err, "i", (int64_t)SKIPPED_IDS) < 0)
        return err->status;
    if (!sq_repair_add_loss(result, "error", "lost",
                            "highest ids ever issued are lost: new jobs begin above %lld",
                            (long long)last))
        return lhi_no_memory(err);
    return LH_OK;
}

/* The highest ids ever given must be known, or ids would be given twice. */
static int look_at_counters(struct conn *conn, struct repair_result *result, struct lhi_error *err)
{
    int64_t seen = 0, given = -1;
    int rc = sq_int(conn, LHI_SQL_CHECK_LAST_JOB, err, 0, &seen, "");

    if (rc == LH_OK)
        rc = sq_int(conn, LHI_SQL_REPAIR_LAST_ID, err, -1, &given, "");
    if (rc != LH_OK || given >= seen)
        return rc;
    return sq_counters_skip(conn, seen, result, err);
}

/* ---- damaged jobs ---- */

/* The job's queue, kind or key was damaged. Fail it, because it must not run as another job. */
static int fail_renamed(struct conn *conn, int64_t id, struct repair_result *result,
                        struct lhi_error *err)
{
    result->fence = true;
    if (sq_run(conn, LHI_SQL_REPAIR_SET_ASIDE, err, "iti", lhi_wall_ms(),
               "CORRUPT: queue, kind or key does not match its checksum", id) < 0 ||
        sq_run(conn, LHI_SQL_JOB_SUM, err, "i", id) < 0)
        return err->status;
    if (!sq_repair_add_loss(
            result, "warning", "partial",
            "job %lld is partial, and failed so that no worker runs it: its queue, kind or "
            "key does not match its checksum",
            (long long)id))
        return lhi_no_memory(err);
    return LH_OK;
}

static int name_partial(struct conn *conn, struct repair_result *result, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_CHECK_PAYLOADS, err, "");
    int rc = stmt ? LH_OK : err->status;

    while (rc == LH_OK && (rc = sq_step(conn, stmt, err)) == LH_OK) {
        enum damage damage = sq_summed_damage(stmt);
        if (damage == DAMAGED_PAYLOAD &&
            !sq_repair_add_loss(
                result, "warning", "partial",
                "job %lld is partial: its payload does not match its checksum, a claim "
                "will fail it",
                (long long)sqlite3_column_int64(stmt, 0)))
            rc = lhi_no_memory(err);
        if (damage == DAMAGED_NAMES)
            rc = fail_renamed(conn, sqlite3_column_int64(stmt, 0), result, err);
    }
    sq_reset(stmt);
    return rc < 0 ? rc : LH_OK;
}

/* ---- rows of other tables that do not match their checksums ---- */

/* A damaged policy must not allow what the sound one forbids: its queue is paused until an operator
 * sets the policy again. */
static int resolve_policy(struct conn *conn, const char *queue, const char *kind,
                          struct repair_result *result, struct lhi_error *err)
{
    bool all = strcmp(queue, "*") == 0;

    if (sq_run(conn, LHI_SQL_POLICY_DELETE, err, "tt", queue, kind) < 0 ||
        (!all && sq_run(conn, LHI_SQL_QUEUE_PAUSE, err, "t", queue) < 0))
        return err->status;
    if (!sq_repair_add_loss(
            result, "error", "lost",
            "policy of queue \"%.128s\", kind \"%.128s\" is lost: it does not match its checksum; "
            "%s",
            queue, kind, all ? "set it again" : "the queue is paused: set it again and resume"))
        return lhi_no_memory(err);
    return LH_OK;
}

static int resolve_lease(struct conn *conn, const char *scope, const char *name,
                         struct repair_result *result, struct lhi_error *err)
{
    result->fence = true; /* the damaged value may be its token */
    if (sq_run(conn, LHI_SQL_REPAIR_LEASE, err, "itt", lhi_wall_ms(), scope, name) < 0)
        return err->status;
    if (!sq_repair_add_loss(result, "warning", "partial",
                            "lease \"%.128s/%.128s\" is partial: it does not match its checksum; a "
                            "holder gets another full lease",
                            scope, name))
        return lhi_no_memory(err);
    return LH_OK;
}

struct settling {
    struct conn *conn;
    struct repair_result *result;
};

static int resolve_unsound(void *arg, const struct summed_table *table, sqlite3_stmt *row,
                           const char *name, struct lhi_error *err)
{
    const struct settling *s = arg;
    char first[300], second[300];

    lhi_format(first, sizeof first, "%s", sq_text_or_empty(row, 0));
    lhi_format(second, sizeof second, "%s", sq_text_or_empty(row, 1));
    if (strcmp(table->table, "lh_meta") == 0) /* salvage can fill in what is missing */
        return sq_damaged_row("value in lh_meta", name, err);
    if (strcmp(table->table, "lh_policy") == 0)
        return resolve_policy(s->conn, first, second, s->result, err);
    if (strcmp(table->table, "lh_lease") == 0)
        return resolve_lease(s->conn, first, second, s->result, err);
    bool schedule = strcmp(table->table, "lh_schedule") == 0;
    if (sq_run(s->conn, schedule ? LHI_SQL_SCHEDULE_DELETE : LHI_SQL_REQUEST_DELETE, err, "t",
               first) < 0)
        return err->status;
    if (!sq_repair_add_loss(s->result, "error", "lost",
                            "%s \"%.128s\" is lost: it does not match its checksum%s", table->what,
                            name, schedule ? "; set it again" : ""))
        return lhi_no_memory(err);
    return LH_OK;
}

static int resolve_rows(struct conn *conn, struct repair_result *result, struct lhi_error *err)
{
    struct settling s = {conn, result};
    return sq_each_unsound(conn, resolve_unsound, &s, err);
}

/* ---- all of it ---- */

static int raise(struct conn *conn, struct repair_result *result, struct lhi_error *err)
{
    int64_t epoch;
    int rc = sq_meta_int(conn, "epoch", 0, &epoch, err);

    if (rc != LH_OK)
        return rc;
    if (epoch < MOST_EPOCHS)
        return sq_epoch_set(conn, epoch + 1, err);
    if (!sq_finding_add(&result->findings, "error", "lost",
                        "store has used up its %d epochs: tokens may be issued twice", MOST_EPOCHS))
        return lhi_no_memory(err);
    return LH_OK;
}

int sq_repair_finish(struct conn *conn, const struct inventory *inventory,
                     struct repair_result *result, struct lhi_error *err)
{
    int rc = sq_exec(conn, "BEGIN IMMEDIATE", err);

    if (rc != LH_OK)
        return rc;
    if ((rc = look_at_counters(conn, result, err)) == LH_OK &&
        (rc = name_lost(conn, inventory, result, err)) == LH_OK &&
        (rc = name_partial(conn, result, err)) == LH_OK &&
        (rc = resolve_rows(conn, result, err)) == LH_OK && (result->lost || result->fence))
        rc = raise(conn, result, err);
    int touched = rc == LH_OK ? sq_run(conn, LHI_SQL_REPAIR_TOUCH, err, "") : 1;
    if (touched != 1)
        rc = touched < 0 ? touched
                         : lhi_fail(err, LH_ECORRUPT, "store has no row for itself in lh_queue");
    if (rc == LH_OK)
        rc = sq_exec(conn, "COMMIT", err);
    if (rc == LH_OK && result->unnamed > 0 &&
        !sq_finding_add(&result->findings, "error", "lost", "and %lld more are lost or partial",
                        (long long)result->unnamed))
        rc = lhi_no_memory(err);
    return rc;
}
