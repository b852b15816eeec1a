/* Enqueue by the library, and enqueue on the user's own connection inside the user's own
 * transaction. */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/open.h"
#include "store/sqlite/row_sum.h"
#include "store/sqlite/rows.h"

#include "base/checksum.h"
#include "base/clock.h"
#include "base/hook.h"

#include <stdlib.h>
#include <string.h>

/* How many rows: 0 where a trigger of the user's ignores the job. */
static int run_insert(struct conn *conn, const char *queue, const lh_new_job *job,
                      const struct new_row *row, int64_t state_sum, struct lhi_error *err)
{
    return sq_run(conn, LHI_SQL_JOB_INSERT, err, "ItttiiIitIIIIiibi", row->id, queue, job->kind,
                  lh_state_name(row->state), (int64_t)row->priority, row->max_attempts, row->run_at,
                  row->created_at, job->key, row->expires_at, row->lease_ms, row->backoff_ms,
                  row->backoff_cap_ms, sq_name_sum(queue, job->kind, job->key),
                  lhi_checksum(job->payload, job->payload ? job->payload_len : 0), job->payload,
                  job->payload_len, state_sum);
}

static int next_id(struct insert_context *ctx, struct lhi_error *err)
{
    int rc = LH_OK;

    if (ctx->last_id == 0)
        rc = sq_int(ctx->conn, LHI_SQL_JOB_LAST_ID, err, 0, &ctx->last_id, "");
    if (rc == LH_OK)
        ctx->last_id++;
    return rc;
}

/* The user's own BEFORE trigger has taken the id. The database chooses one, and the checksum, which covers
 * the id, comes after. */
static int insert_without_id(struct insert_context *ctx, const char *queue, const lh_new_job *job,
                             struct new_row *row, struct lhi_error *err)
{
    struct conn *conn = ctx->conn;

    lhi_error_clear(err);
    row->id = 0;
    int rc = run_insert(conn, queue, job, row, 0, err);
    row->id = sqlite3_last_insert_rowid(conn->db);
    if (rc > 0 && sq_run(conn, LHI_SQL_JOB_SUM, err, "i", row->id) < 0)
        return err->status;
    return rc;
}

/* Ids are counted here only as long as nothing but this INSERT writes: a trigger of the user's on lh_job
 * may enqueue a job of its own. */
static int insert_row(struct insert_context *ctx, const char *queue, const lh_new_job *job,
                      struct new_row *row, struct lhi_error *err)
{
    struct conn *conn = ctx->conn;
    int rc = next_id(ctx, err);

    if (rc < 0)
        return rc;
    int before = sqlite3_total_changes(conn->db);
    row->id = ctx->last_id;
    rc = run_insert(conn, queue, job, row, sq_new_row_sum(row), err);
    if (rc < 0 && sqlite3_extended_errcode(conn->db) == SQLITE_CONSTRAINT_PRIMARYKEY)
        rc = insert_without_id(ctx, queue, job, row, err);
    if (sqlite3_total_changes(conn->db) != before + 1)
        ctx->last_id = 0; /* ask again */
    if (rc == 0)
        return lhi_fail(err, LH_EINVAL,
                        "job was not enqueued: a trigger of the database ignores it");
    return rc < 0 ? rc : LH_OK;
}

int sq_insert_job(struct insert_context *ctx, const char *queue, const lh_new_job *job,
                  lh_enqueued *out, struct lhi_error *err)
{
    struct conn *conn = ctx->conn;
    lh_policy policy;
    int rc;

    if (job->key != NULL) {
        sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_JOB_BY_KEY, err, "tt", queue, job->key);
        if (stmt == NULL)
            return err->status;
        if ((rc = sq_step(conn, stmt, err)) < 0)
            return rc;
        if (rc == LH_OK) {
            out->id = sqlite3_column_int64(stmt, 0);
            out->state = sq_column_state(stmt, 1);
            out->duplicate = true;
            sq_reset(stmt);
            return LH_OK;
        }
    }
    lhi_policy_resolve(ctx->policies, queue, job->kind, &policy);
    if (job->payload_len > (size_t)policy.max_payload)
        return lhi_fail(err, LH_ETOOBIG,
                        "payload of %zu bytes is too large: queue \"%s\" takes at most %lld bytes",
                        job->payload_len, queue, (long long)policy.max_payload);
    int64_t run_at = job->run_at ? job->run_at : job->delay_ms ? ctx->wall + job->delay_ms : 0;
    lh_state state = run_at > ctx->wall ? LH_SCHEDULED : LH_PENDING;
    struct new_row row = {.state = state,
                          .priority = job->priority,
                          .max_attempts =
                              job->max_attempts ? job->max_attempts : policy.max_attempts,
                          .run_at = run_at,
                          .created_at = ctx->now,
                          .expires_at = job->expires_ms ? ctx->wall + job->expires_ms : 0,
                          .lease_ms = job->lease_ms,
                          .backoff_ms = job->backoff_ms,
                          .backoff_cap_ms = job->backoff_cap_ms};
    if ((rc = insert_row(ctx, queue, job, &row, err)) < 0)
        return rc;
    out->id = row.id;
    if (job->expires_ms != 0 && (rc = sq_run(conn, LHI_SQL_EXPIRY_PUT, err, "ii",
                                             ctx->wall + job->expires_ms, out->id)) < 0)
        return rc;
    out->state = state;
    out->duplicate = false;
    return LH_OK;
}

/* ---- requests: repeating a call returns the same jobs ---- */

/* A request id that the library made after an unknown outcome. lh:FIRST:COUNT:CREATED:SUM says
 * which ids the jobs have if they were enqueued.
 * Between them may be jobs that a trigger of the user's enqueued. */
static bool parse_made(const char *request, int64_t *first, int64_t *count, int64_t *created,
                       uint64_t *sum)
{
    char *end;

    if (strncmp(request, "lh:", 3) != 0)
        return false;
    *first = strtoll(request + 3, &end, 10);
    if (*end != ':')
        return false;
    *count = strtoll(end + 1, &end, 10);
    if (*end != ':')
        return false;
    *created = strtoll(end + 1, &end, 10);
    if (*end != ':')
        return false;
    *sum = strtoull(end + 1, &end, 16);
    return *end == '\0';
}

static int find_made_request(struct txn *txn, const char *request, struct lhi_act *act, bool *found)
{
    int64_t first, count, created;
    uint64_t sum;
    size_t n = 0;

    *found = false;
    if (!parse_made(request, &first, &count, &created, &sum) || count != (int64_t)act->n)
        return LH_OK;
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_REQUEST_MADE, &act->err, "itii", first,
                                 act->enqueue.queue, created, count);
    int rc = stmt ? LH_OK : act->err.status;
    while (rc == LH_OK && (rc = sq_step(txn->conn, stmt, &act->err)) == LH_OK) {
        int64_t id = sqlite3_column_int64(stmt, 0);
        if (n == 0 && (id != first || (uint64_t)sqlite3_column_int64(stmt, 2) != sum))
            break;
        act->enqueue.out[n++] =
            (lh_enqueued){.id = id, .state = sq_column_state(stmt, 1), .duplicate = true};
    }
    sq_reset(stmt);
    *found = n == act->n;
    return rc < 0 ? rc : LH_OK;
}

int sq_check_request(struct txn *txn, const char *request, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_REQUEST_GET, err, "t", request);
    int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;
    bool sound = rc != LH_OK || sq_row_sum_matches(stmt);

    sq_reset(stmt);
    if (sound)
        return rc < 0 ? rc : LH_OK;
    txn->own_damage = true;
    return sq_damaged_row("request", request, err);
}

int sq_check_same_act(sqlite3_stmt *stmt, const char *act, const char *request,
                      struct lhi_error *err)
{
    const char *before = (const char *)sqlite3_column_text(stmt, 2);
    if (before != NULL && strcmp(before, act) == 0)
        return LH_OK;
    return lhi_fail(err, LH_EINVAL, "request \"%.96s\" was used by another act before: %s", request,
                    before ? before : "?");
}

static int repeat_request(struct txn *txn, struct lhi_act *act, bool *found)
{
    struct lhi_error *err = &act->err;
    const char *request = act->enqueue.request;
    size_t n = 0;
    int rc = sq_check_request(txn, request, err);

    if (rc < 0)
        return rc;
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_REQUEST_JOBS, err, "t", request);
    if (stmt == NULL)
        return err->status;
    while ((rc = sq_step(txn->conn, stmt, err)) == LH_OK) {
        if (n == 0 && (rc = sq_check_same_act(stmt, "enqueue", request, err)) < 0) {
            sq_reset(stmt);
            return rc;
        }
        if (n < act->n)
            act->enqueue.out[n] =
                (lh_enqueued){.id = sqlite3_column_int64(stmt, 0), .duplicate = true};
        n++;
    }
    if (rc < 0)
        return rc;
    if (n == 0)
        return find_made_request(txn, request, act, found);
    if (n != act->n)
        return lhi_fail(err, LH_EINVAL,
                        "request \"%s\" was made before with %zu jobs, now with %zu", request, n,
                        act->n);
    *found = true;
    for (size_t i = 0; i < n; i++) {
        stmt = sq_stmt(txn->conn, LHI_SQL_JOB_GET, err, "i", act->enqueue.out[i].id);
        if (stmt == NULL)
            return err->status;
        if ((rc = sq_step(txn->conn, stmt, err)) < 0)
            return rc;
        /* The job has been pruned, so it was completed long ago. */
        act->enqueue.out[i].state = rc == LH_OK ? sq_column_state(stmt, JOB_STATE) : LH_COMPLETED;
        bool elsewhere =
            rc == LH_OK && strcmp(sq_text_or_empty(stmt, JOB_QUEUE), act->enqueue.queue) != 0;
        sq_reset(stmt);
        if (elsewhere)
            return lhi_fail(err, LH_EINVAL, "request \"%.96s\" was made before for another queue",
                            request);
    }
    return LH_OK;
}

static int remember_request(struct txn *txn, struct lhi_act *act)
{
    size_t room = act->n * 32 + 8, used = 0;
    char *jobs = lhi_arena_alloc(&txn->arena, room);

    if (jobs == NULL)
        return lhi_no_memory(&act->err);
    for (size_t i = 0; i < act->n; i++)
        used += lhi_format(jobs + used, room - used, "%s[%lld,0]", i ? "," : "[",
                           (long long)act->enqueue.out[i].id);
    lhi_format(jobs + used, room - used, "]");
    int rc = sq_run(txn->conn, LHI_SQL_REQUEST_PUT, &act->err, "ttit", act->enqueue.request,
                    "enqueue", txn->now, jobs);
    return rc < 0 ? rc : LH_OK;
}

int sq_act_enqueue(struct txn *txn, struct lhi_act *act)
{
    struct lhi_error *err = &act->err;
    struct insert_context ctx = {
        .conn = txn->conn, .now = txn->now, .wall = txn->wall, .policies = &txn->db->policies};
    int rc;

    if (act->enqueue.request != NULL) {
        bool found = false;
        if ((rc = repeat_request(txn, act, &found)) < 0 || found)
            return rc;
    }
    struct tally *tally = sq_txn_tally(txn, act->enqueue.queue, err);
    if (tally == NULL)
        return err->status;
    for (size_t i = 0; i < act->n; i++) {
        const lh_new_job *job = &act->enqueue.jobs[i];
        lh_enqueued *out = &act->enqueue.out[i];
        if ((rc = sq_insert_job(&ctx, act->enqueue.queue, job, out, err)) < 0)
            return rc;
        if (out->duplicate)
            continue;
        txn->changed = true;
        sq_tally_move(tally, 0, out->state);
        tally->enqueued++;
        if (sq_txn_policy(txn, act->enqueue.queue, job->kind)->audit == LH_AUDIT_FULL &&
            (rc = sq_txn_event(txn,
                               &(struct event){.type = "job.enqueued",
                                               .job = out->id,
                                               .queue = act->enqueue.queue,
                                               .to = out->state,
                                               .actor = "library"},
                               err)) < 0)
            return rc;
    }
    act->enqueue.created_at = txn->now;
    LHI_POINT("job_enqueue:inside");
    if (act->enqueue.request != NULL) {
        txn->changed = true;
        return remember_request(txn, act);
    }
    return LH_OK;
}

/* ---- on the user's own connection ---- */

static int check_ours(struct conn *conn, struct lhi_error *err)
{
    int64_t version;
    int rc = sq_meta_int(conn, "schema_version", 0, &version, err);
    if (rc == LH_EFAIL) /* the table does not exist */
        return lhi_fail(err, LH_ENOSTORE,
                        "this database has no leasehold tables: \"leasehold migrate\" adds them");
    if (rc < 0)
        return rc;
    if (version != lhi_sqlite_migration_count)
        return lhi_fail(err, version > lhi_sqlite_migration_count ? LH_ENEWER : LH_ENOSTORE,
                        "this database has schema version %lld, the library version %d",
                        (long long)version, lhi_sqlite_migration_count);
    return LH_OK;
}

/* The same bookkeeping as in one of our transactions, but in the user's. It does not take the
 * writer lock: the user already holds the database's lock, and taking them in this order could
 * deadlock. */
static int enqueue_here(struct conn *conn, const char *queue, const lh_new_job *jobs, size_t n,
                        lh_enqueued *out, struct lhi_error *err)
{
    lh_policies policies = {0};
    int64_t now = lhi_wall_ms();
    int64_t minute = now / 60000, scheduled = 0, pending = 0;
    struct insert_context ctx = {.conn = conn, .now = now, .wall = now, .policies = &policies};
    int rc = check_ours(conn, err);

    if (rc == LH_OK)
        rc = sq_clock_usable(now, err);
    if (rc == LH_OK)
        rc = sq_load_policies(conn, &policies, err);
    for (size_t i = 0; i < n && rc == LH_OK; i++) {
        rc = sq_insert_job(&ctx, queue, &jobs[i], &out[i], err);
        if (rc != LH_OK || out[i].duplicate)
            continue;
        *(out[i].state == LH_SCHEDULED ? &scheduled : &pending) += 1;
        lh_policy policy;
        lhi_policy_resolve(&policies, queue, jobs[i].kind, &policy);
        if (policy.audit == LH_AUDIT_FULL)
            rc = sq_put_event(conn, now,
                              &(struct event){.type = "job.enqueued",
                                              .job = out[i].id,
                                              .queue = queue,
                                              .to = out[i].state,
                                              .actor = "library"},
                              err);
    }
    for (int try = 0; try < 2 && rc == LH_OK && scheduled + pending > 0; try++) {
        int64_t zero = 0;
        int changed = sq_run(conn, LHI_SQL_QUEUE_TALLY, err, "iiiiiiiiiiiiiiti", scheduled, pending,
                             zero, zero, zero, zero, scheduled + pending, zero, zero, zero, zero,
                             zero, zero, zero, queue, minute);
        if (changed > 0)
            break;
        if (changed < 0 || sq_run(conn, LHI_SQL_QUEUE_ROLL, err, "t", queue) < 0 ||
            sq_run(conn, LHI_SQL_QUEUE_MINUTE, err, "ti", queue, minute) < 0)
            rc = err->status;
    }
    lhi_policies_clear(&policies);
    return rc;
}

static int enqueue_on(struct sqlite3 *handle, const char *queue, const lh_new_job *jobs, size_t n,
                      lh_enqueued *out, struct lhi_error *err)
{
    struct conn conn = {.db = handle};
    bool in_transaction = sqlite3_get_autocommit(handle) == 0;
    int rc;

    /* Enqueue all of the jobs or none, whether or not the user has a transaction open. */
    if ((rc = sq_exec(&conn, in_transaction ? "SAVEPOINT lh_enqueue" : "BEGIN IMMEDIATE", err)) < 0)
        return rc;
    rc = enqueue_here(&conn, queue, jobs, n, out, err);
    for (int i = 0; i < LHI_SQL_COUNT; i++)
        (void)sqlite3_finalize(conn.stmt[i]);
    struct lhi_error ignored;
    if (rc == LH_OK &&
        (rc = sq_exec(&conn, in_transaction ? "RELEASE lh_enqueue" : "COMMIT", err)) == LH_OK)
        return LH_OK;
    if (in_transaction)
        (void)sq_exec(&conn, "ROLLBACK TO lh_enqueue; RELEASE lh_enqueue", &ignored);
    else
        (void)sq_exec(&conn, "ROLLBACK", &ignored);
    return rc;
}

static int enqueue_and_answer(struct sqlite3 *db, const char *queue, const lh_new_job *jobs,
                              size_t n, lh_enqueued *out, struct lhi_error *err)
{
    /* The caller's array stays unchanged if this fails. */
    lh_enqueued *answer = lhi_calloc(n, sizeof *answer);
    if (answer == NULL)
        return lhi_no_memory(err);
    int rc = enqueue_on(db, queue, jobs, n, answer, err);
    if (rc == LH_OK)
        memcpy(out, answer, n * sizeof *out);
    lhi_free(answer);
    return rc;
}

int lh_enqueue_sqlite(struct sqlite3 *db, const char *queue, const lh_new_job *jobs, size_t n,
                      lh_enqueued *out, char *errmsg, size_t errlen)
{
    struct lhi_error err;

    lhi_error_clear(&err);
    int rc = db ? lhi_check_enqueue(queue, jobs, n, out, &err)
                : lhi_fail(&err, LH_EMISUSE, "connection is missing");
    if (rc == LH_OK)
        rc = enqueue_and_answer(db, queue, jobs, n, out, &err);
    if (rc < 0 && errmsg != NULL && errlen > 0)
        lhi_format(errmsg, errlen, "%s", err.text);
    return rc;
}
