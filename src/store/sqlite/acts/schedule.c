/*
 * Schedules: set, remove, and run when due.
 *
 * A run of a schedule belongs to the transaction that moves done_until forward and enqueues the
 * job. So a run is enqueued once however many processes check, and not at all if the transaction is
 * rolled back. A schedule that cannot enqueue (no room, its zone no longer exists) never stops the
 * others.
 */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/reads/reads.h"
#include "store/sqlite/row_sum.h"
#include "store/sqlite/rows.h"
#include "store/sqlite/sync.h"

#include "base/checksum.h"
#include "base/hook.h"

#include <string.h>

enum {
    LOOK_AGAIN_MS = 60000,
    JOB_BYTES = 1024, /* the same estimate as in group_commit.c */
};

/* The columns of lh_schedule in the order of the table. */
enum column {
    NAME,
    QUEUE,
    CRON,
    TZ,
    CATCH_UP,
    DONE_UNTIL,
    NEXT_AT,
    LAST_AT,
    LAST_JOB,
    CREATED_AT,
    ERROR,
    KIND,
    PRIORITY,
    KEY,
    MAX_ATTEMPTS,
    LEASE_MS,
    EXPIRES_MS,
    BACKOFF_MS,
    BACKOFF_CAP_MS,
    PAYLOAD_SUM,
    PAYLOAD,
};

struct entry {
    lh_schedule schedule;
    int64_t done_until, payload_sum;
    bool sound; /* the row matches its checksum */
};

static bool entry_read(sqlite3_stmt *stmt, struct lhi_arena *arena, struct entry *entry)
{
    lh_schedule *s = &entry->schedule;
    lh_new_job *job = &s->job;
    bool ok = true;

    memset(entry, 0, sizeof *entry);
    entry->sound = sq_row_sum_matches(stmt);
    s->name = sq_column_name(stmt, NAME, arena, &ok);
    s->queue = sq_column_name(stmt, QUEUE, arena, &ok);
    s->cron = sq_column_name(stmt, CRON, arena, &ok);
    s->zone = sq_column_name(stmt, TZ, arena, &ok);
    s->catch_up = (lh_catch_up)sqlite3_column_int(stmt, CATCH_UP);
    entry->done_until = sqlite3_column_int64(stmt, DONE_UNTIL);
    s->next_at = sqlite3_column_int64(stmt, NEXT_AT);
    s->last_at = sqlite3_column_int64(stmt, LAST_AT);
    s->last_job = sqlite3_column_int64(stmt, LAST_JOB);
    s->created_at = sqlite3_column_int64(stmt, CREATED_AT);
    s->error = sq_column_text(stmt, ERROR, arena, &ok);
    job->kind = sq_column_text(stmt, KIND, arena, &ok);
    job->priority = sqlite3_column_int(stmt, PRIORITY);
    job->key = sq_column_text(stmt, KEY, arena, &ok);
    job->max_attempts = sqlite3_column_int64(stmt, MAX_ATTEMPTS);
    job->lease_ms = sqlite3_column_int64(stmt, LEASE_MS);
    job->expires_ms = sqlite3_column_int64(stmt, EXPIRES_MS);
    job->backoff_ms = sqlite3_column_int64(stmt, BACKOFF_MS);
    job->backoff_cap_ms = sqlite3_column_int64(stmt, BACKOFF_CAP_MS);
    entry->payload_sum = sqlite3_column_int64(stmt, PAYLOAD_SUM);
    if (sqlite3_column_type(stmt, PAYLOAD) != SQLITE_NULL) {
        const void *bytes = sq_column_raw(stmt, PAYLOAD, &job->payload_len);
        job->payload = lhi_arena_copy(arena, bytes, job->payload_len);
        ok = ok && job->payload != NULL;
    }
    return ok;
}

/* LH_EMPTY: there is no such schedule. */
static int entry_get(struct txn *txn, const char *name, struct entry *entry, struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_SCHEDULE_GET, err, "t", name);
    int rc = stmt ? sq_step(txn->conn, stmt, err) : err->status;

    if (rc == LH_OK && !entry_read(stmt, &txn->arena, entry))
        rc = lhi_no_memory(err);
    sq_reset(stmt);
    return rc;
}

int sq_read_schedules(struct conn *conn, struct lhi_act *act, struct lhi_error *err)
{
    lh_schedules *out = act->schedules;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    sqlite3_stmt *stmt = sq_stmt(conn, LHI_SQL_SCHEDULE_LIST, err, "");
    int rc;

    if (stmt == NULL)
        return err->status;
    if (arena == NULL)
        return lhi_no_memory(err);
    while ((rc = sq_step(conn, stmt, err)) == LH_OK) {
        struct entry entry;
        lh_schedule *grown = sq_grow(out->schedule, out->n, sizeof *grown);
        if (grown != NULL)
            out->schedule = grown;
        if (grown == NULL || !entry_read(stmt, arena, &entry)) {
            sq_reset(stmt);
            return lhi_no_memory(err);
        }
        out->schedule[out->n++] = entry.schedule;
    }
    return rc < 0 ? rc : LH_OK;
}

/* ---- set and remove ---- */

/* If the timing is the same as before, the instants continue, including those that are due now.
 * Otherwise they start again, but never before an instant that is done. */
static int64_t done_so_far(const struct entry *old, const lh_schedule *s, const char *zone,
                           int64_t wall)
{
    if (old->schedule.name == NULL)
        return wall;
    if (strcmp(old->schedule.cron, s->cron) == 0 && strcmp(old->schedule.zone, zone) == 0)
        return old->done_until;
    return old->done_until > wall ? old->done_until : wall;
}

/* Write an event of a schedule. It names the schedule in the reason and in the data; `more` adds to
 * the data. */
static int write_event(struct txn *txn, const struct event *event, const char *name,
                       const char *what, const char *more, struct lhi_error *err)
{
    char data[600], reason[600];

    lhi_format(data, sizeof data, "{\"schedule\":\"%s\"%s}", name, more);
    lhi_format(reason, sizeof reason, "schedule %s%s%s", name, what[0] ? ": " : "", what);
    struct event told = *event;
    told.data = data;
    told.reason = reason;
    txn->changed = true;
    return sq_txn_event(txn, &told, err);
}

int sq_act_schedule_set(struct txn *txn, struct lhi_act *act)
{
    const lh_schedule *s = act->schedule;
    const lh_new_job *job = &s->job;
    const char *zone = s->zone ? s->zone : "UTC";
    struct lhi_error *err = &act->err;
    struct lhi_timing *timing = NULL;
    struct entry old = {.done_until = 0};
    char when[400];
    int64_t most = sq_txn_policy(txn, s->queue, job->kind)->max_payload;

    if (job->payload_len > (size_t)most)
        return lhi_fail(err, LH_ETOOBIG,
                        "payload of %zu bytes is too large: queue \"%s\" takes at most %lld bytes",
                        job->payload_len, s->queue, (long long)most);
    int rc = entry_get(txn, s->name, &old, err);
    if (rc < 0 || (rc = lhi_timing_open(s->cron, zone, &timing, err)) < 0)
        return rc;
    int64_t done_until = done_so_far(&old, s, zone, txn->wall);
    int64_t next = lhi_timing_next_kept(timing, done_until);
    lhi_timing_close(timing);
    rc = sq_run(txn->conn, LHI_SQL_SCHEDULE_PUT, err, "ttttiiiititIIIIIib", s->name, s->queue,
                s->cron, zone, (int64_t)s->catch_up, done_until, next, txn->now, job->kind,
                (int64_t)job->priority, job->key, job->max_attempts, job->lease_ms, job->expires_ms,
                job->backoff_ms, job->backoff_cap_ms,
                lhi_checksum(job->payload, job->payload ? job->payload_len : 0), job->payload,
                job->payload_len);
    if (rc < 0)
        return rc;
    sq_txn_falls_due(txn, next - txn->wall);
    struct event event = {.type = "schedule.set", .queue = s->queue, .actor = "hand"};
    lhi_format(when, sizeof when, "%s, %s", s->cron, zone);
    return write_event(txn, &event, s->name, when, "", err);
}

int sq_act_schedule_remove(struct txn *txn, struct lhi_act *act)
{
    const char *name = act->schedule_name;
    int n = sq_run(txn->conn, LHI_SQL_SCHEDULE_DELETE, &act->err, "t", name);

    if (n < 0)
        return n;
    if (n == 0)
        return lhi_fail(&act->err, LH_ENOTFOUND, "there is no schedule \"%s\"", name);
    struct event event = {.type = "schedule.removed", .actor = "hand"};
    return write_event(txn, &event, name, "", "", &act->err);
}

/* ---- due schedules ---- */

/* A schedule that is due, and what to do about it. */
struct ticking {
    struct txn *txn;
    const struct entry *entry;
    const struct lhi_timing *timing;
    struct lhi_catch_up plan;
    int64_t ran; /* out: jobs enqueued */
    int64_t last_at, last_job;
    char error[200]; /* out: why it enqueued nothing */
};

/* The same failure is recorded only once. */
static int record_failure(const struct ticking *t, const char *why, struct lhi_error *err)
{
    const lh_schedule *s = &t->entry->schedule;
    struct event event = {.type = "schedule.failed", .queue = s->queue, .actor = "system/schedule"};

    if (s->error != NULL && strcmp(s->error, why) == 0)
        return LH_OK;
    sq_txn_log(t->txn, LH_LOG_ERROR, &(lh_log_entry){.queue = s->queue, .reason = why},
               "schedule %s enqueues nothing: %s", s->name, why);
    return write_event(t->txn, &event, s->name, why, "", err);
}

static int record_missed(const struct ticking *t, struct lhi_error *err)
{
    const lh_schedule *s = &t->entry->schedule;
    struct event event = {.type = "schedule.missed", .queue = s->queue, .actor = "system/schedule"};
    char what[200], data[200];

    lhi_missed_words(&t->plan, s->catch_up, what, data);
    sq_txn_log(t->txn, LH_LOG_WARN, &(lh_log_entry){.queue = s->queue, .reason = what},
               "schedule %s: %s", s->name, what);
    return write_event(t->txn, &event, s->name, what, data, err);
}

/* A live job has the schedule's key, so this run is skipped. */
static int record_skipped(const struct ticking *t, int64_t at, const lh_enqueued *live,
                          struct lhi_error *err)
{
    const lh_schedule *s = &t->entry->schedule;
    struct event event = {
        .type = "schedule.skipped", .job = live->id, .queue = s->queue, .actor = "system/schedule"};
    char time[40], what[160], more[80];

    lh_time_format(at, time, sizeof time);
    lhi_format(what, sizeof what, "run of %s skipped, job %lld with its key is %s", time,
               (long long)live->id, lh_state_name(live->state));
    lhi_format(more, sizeof more, ",\"instant\":\"%s\"", time);
    return write_event(t->txn, &event, s->name, what, more, err);
}

static int record_enqueued(const struct ticking *t, int64_t at, const lh_enqueued *made,
                           struct lhi_error *err)
{
    const lh_schedule *s = &t->entry->schedule;
    struct event event = {.type = "job.enqueued",
                          .job = made->id,
                          .queue = s->queue,
                          .to = made->state,
                          .actor = "system/schedule"};
    char time[40], more[80];

    lhi_format(more, sizeof more, ",\"instant\":\"%s\"", lh_time_format(at, time, sizeof time));
    return write_event(t->txn, &event, s->name, "", more, err);
}

/* Enqueue the job of one instant. LH_ETOOBIG, LH_EINVAL: its queue no longer takes it. */
static int enqueue_run(struct ticking *t, int64_t at, struct lhi_error *err)
{
    struct txn *txn = t->txn;
    const lh_schedule *s = &t->entry->schedule;
    struct insert_context ctx = {
        .conn = txn->conn, .now = txn->now, .wall = txn->wall, .policies = &txn->db->policies};
    lh_new_job job = s->job;
    lh_enqueued made = {.id = 0};

    job.run_at = at;
    int rc = sq_insert_job(&ctx, s->queue, &job, &made, err);
    if (rc < 0)
        return rc;
    if (made.duplicate)
        return record_skipped(t, at, &made, err);
    struct tally *tally = sq_txn_tally(txn, s->queue, err);
    if (tally == NULL)
        return err->status;
    sq_tally_move(tally, 0, made.state);
    tally->enqueued++;
    t->ran++;
    t->last_at = at;
    t->last_job = made.id;
    return sq_txn_policy(txn, s->queue, job.kind)->audit == LH_AUDIT_FULL
               ? record_enqueued(t, at, &made, err)
               : LH_OK;
}

static int enqueue_runs(struct ticking *t, struct lhi_error *err)
{
    const lh_new_job *job = &t->entry->schedule.job;
    int rc = LH_OK;

    if (lhi_checksum(job->payload, job->payload ? job->payload_len : 0) != t->entry->payload_sum)
        rc =
            lhi_fail(err, LH_EINVAL, "payload does not match its checksum: set the schedule again");
    for (int64_t at = t->plan.from; rc == LH_OK && at >= 0 && at <= t->plan.to;
         at = lhi_timing_next(t->timing, at))
        rc = enqueue_run(t, at, err);
    if (rc != LH_ETOOBIG && rc != LH_EINVAL)
        return rc;
    lhi_format(t->error, sizeof t->error, "%s", err->text);
    lhi_error_clear(err); /* the failure concerns this schedule only, so the act goes on */
    return record_failure(t, t->error, err);
}

/* Is there room for the jobs of this schedule? */
static bool admitted(const struct ticking *t, int64_t n)
{
    struct lhi_error ignored;
    int64_t bytes = (int64_t)t->entry->schedule.job.payload_len + JOB_BYTES;

    return sq_reserve_admit(t->txn->db, bytes * (n < LHI_BATCH ? n : LHI_BATCH), &ignored) == LH_OK;
}

static int advance(struct ticking *t, const struct lhi_instants *due, int64_t *next,
                   struct lhi_error *err)
{
    struct txn *txn = t->txn;
    const char *name = t->entry->schedule.name;

    lhi_catch_up(t->timing, t->entry->schedule.catch_up, due, txn->wall, &t->plan);
    *next = lhi_timing_next_kept(t->timing, t->plan.upto);
    int rc = sq_run(txn->conn, LHI_SQL_SCHEDULE_ADVANCE, err, "iiti", t->plan.upto, *next, name,
                    t->entry->done_until);
    if (rc <= 0)
        return rc; /* another transaction has already done it */
    txn->changed = true;
    LHI_POINT("schedule_tick:inside");
    if (t->plan.missed > 0 && (rc = record_missed(t, err)) < 0)
        return rc;
    if (t->plan.to != 0 && (rc = enqueue_runs(t, err)) < 0)
        return rc;
    rc = sq_run(txn->conn, LHI_SQL_SCHEDULE_RESULT, err, "IItt", t->last_at, t->last_job,
                t->error[0] ? t->error : NULL, name);
    return rc < 0 ? rc : LH_OK;
}

/* The zone no longer exists, or a later version wrote the line. */
static int put_off(struct ticking *t, const struct lhi_error *why, struct lhi_error *err)
{
    int rc = record_failure(t, why->text, err);

    t->txn->changed = true;
    if (rc == LH_OK)
        rc = sq_run(t->txn->conn, LHI_SQL_SCHEDULE_PUT_OFF, err, "itt",
                    t->txn->wall + LOOK_AGAIN_MS, why->text, t->entry->schedule.name);
    return rc < 0 ? rc : LH_OK;
}

/* The schedule would enqueue something that nobody asked for. The row's checksum stays wrong, so
 * that a check and a repair find it. A row that contradicts its index cannot even be put off. */
static int refuse_damaged(struct ticking *t, struct lhi_error *err)
{
    struct txn *txn = t->txn;
    struct lhi_error why;

    sq_coord_set_recovery_due(&txn->db->coord, true);
    (void)sq_damaged_row("schedule", t->entry->schedule.name, &why);
    int rc = sq_run(txn->conn, LHI_SQL_SCHEDULE_PUT_OFF, err, "itt", txn->wall + LOOK_AGAIN_MS,
                    why.text, t->entry->schedule.name);
    if (rc == LH_ECORRUPT) {
        lhi_error_clear(err);
        lhi_log(&txn->db->log, LH_LOG_ERROR, "%s", why.text);
        return LH_OK;
    }
    txn->changed = true;
    return rc < 0 ? rc : record_failure(t, why.text, err);
}

static int run_one(struct txn *txn, const struct entry *entry, int64_t *ran, bool *more,
                   struct lhi_error *err)
{
    struct ticking t = {.txn = txn, .entry = entry};
    struct lhi_timing *timing = NULL;
    struct lhi_instants due;
    struct lhi_error why;
    int64_t next = 0;

    lhi_error_clear(&why);
    if (!entry->sound)
        return refuse_damaged(&t, err);
    int rc = lhi_timing_open(entry->schedule.cron, entry->schedule.zone, &timing, &why);
    if (rc == LH_ENOMEM)
        return lhi_no_memory(err);
    if (rc < 0)
        return put_off(&t, &why, err);
    t.timing = timing;
    lhi_timing_instants(timing, entry->done_until, txn->wall, &due);
    if (due.n == 0) {
        next = lhi_timing_next_kept(timing, entry->done_until);
        rc = sq_run(txn->conn, LHI_SQL_SCHEDULE_PUT_OFF, err, "itt", next, (const char *)NULL,
                    entry->schedule.name);
        txn->changed = true;
    } else if (admitted(&t, due.n)) {
        rc = advance(&t, &due, &next, err);
        *more = *more || (rc == LH_OK && next <= txn->wall);
    }
    if (next > txn->wall)
        sq_txn_falls_due(txn, next - txn->wall);
    *ran += t.ran;
    lhi_timing_close(timing);
    return rc < 0 ? rc : LH_OK;
}

/* Read only the names first: each row may contain a payload. */
static int read_names(struct txn *txn, size_t limit, const char **names, size_t *n,
                      struct lhi_error *err)
{
    sqlite3_stmt *stmt =
        sq_stmt(txn->conn, LHI_SQL_SCHEDULE_DUE, err, "ii", txn->wall, (int64_t)limit);
    bool ok = true;
    int rc = stmt ? LH_OK : err->status;

    *n = 0;
    while (rc == LH_OK && ok && *n < limit && (rc = sq_step(txn->conn, stmt, err)) == LH_OK)
        names[(*n)++] = sq_column_name(stmt, 0, &txn->arena, &ok);
    sq_reset(stmt);
    if (!ok)
        return lhi_no_memory(err);
    return rc < 0 ? rc : LH_OK;
}

int sq_run_due_schedules(struct txn *txn, size_t limit, int64_t *enqueued, bool *more,
                         struct lhi_error *err)
{
    const char *names[LHI_BATCH];
    size_t n;
    int rc = read_names(txn, limit < LHI_BATCH ? limit : LHI_BATCH, names, &n, err);

    *enqueued = 0;
    *more = false;
    for (size_t i = 0; i < n && rc == LH_OK; i++) {
        struct entry entry;
        if ((rc = entry_get(txn, names[i], &entry, err)) == LH_OK)
            rc = run_one(txn, &entry, enqueued, more, err);
        else if (rc == LH_EMPTY)
            rc = LH_OK;
    }
    *more = rc == LH_OK && (*more || (n == limit && *enqueued > 0));
    return rc;
}
