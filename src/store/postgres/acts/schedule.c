/*
 * Schedules: set, removed, and run when they are due.
 *
 * The client computes when a schedule is due; functions in the database do the rest. A run belongs
 * to the transaction that advances done_until and enqueues its job. So it is enqueued once, however
 * many processes see it due, and not at all if that transaction is rolled back. A schedule that
 * cannot be enqueued (its payload is too large by now, its time zone is gone) never stops the
 * others.
 */
#include "store/postgres/pg.h"

#include "base/checksum.h"
#include "base/hook.h"

#include <string.h>

enum {
    LOOK_AGAIN_MS = 60000,
    MOST_BYTES = 8 << 20, /* payloads that are returned together, as in leasehold.schedules_due */
};

/* The columns of leasehold.schedule, in the order of the table, then one more. */
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
    PAYLOAD_BYTES,
    NOW,
};

struct entry {
    lh_schedule schedule;
    int64_t done_until, payload_sum;
};

static bool read_payload(const struct rows *rows, int row, struct lhi_arena *arena, lh_new_job *job)
{
    int column = pg_row_null(rows, row, PAYLOAD) ? PAYLOAD_BYTES : PAYLOAD;

    if (pg_row_null(rows, row, column))
        return true;
    const void *bytes = pg_row_bytes(rows, row, column, &job->payload_len);
    job->payload = lhi_arena_copy(arena, bytes, job->payload_len);
    return job->payload != NULL;
}

static bool entry_read(const struct rows *rows, int row, struct lhi_arena *arena,
                       struct entry *entry)
{
    lh_schedule *s = &entry->schedule;
    lh_new_job *job = &s->job;
    bool ok = true;

    memset(entry, 0, sizeof *entry);
    s->name = pg_row_copy(rows, row, NAME, arena, &ok);
    s->queue = pg_row_copy(rows, row, QUEUE, arena, &ok);
    s->cron = pg_row_copy(rows, row, CRON, arena, &ok);
    s->zone = pg_row_copy(rows, row, TZ, arena, &ok);
    s->catch_up = (lh_catch_up)pg_row_int(rows, row, CATCH_UP);
    entry->done_until = pg_row_time(rows, row, DONE_UNTIL);
    s->next_at = pg_row_time(rows, row, NEXT_AT);
    s->last_at = pg_row_time(rows, row, LAST_AT);
    s->last_job = pg_row_int(rows, row, LAST_JOB);
    s->created_at = pg_row_time(rows, row, CREATED_AT);
    s->error = pg_row_copy(rows, row, ERROR, arena, &ok);
    job->kind = pg_row_copy(rows, row, KIND, arena, &ok);
    job->priority = (int)pg_row_int(rows, row, PRIORITY);
    job->key = pg_row_copy(rows, row, KEY, arena, &ok);
    job->max_attempts = pg_row_int(rows, row, MAX_ATTEMPTS);
    job->lease_ms = pg_row_int(rows, row, LEASE_MS);
    job->expires_ms = pg_row_int(rows, row, EXPIRES_MS);
    job->backoff_ms = pg_row_int(rows, row, BACKOFF_MS);
    job->backoff_cap_ms = pg_row_int(rows, row, BACKOFF_CAP_MS);
    entry->payload_sum = pg_row_int(rows, row, PAYLOAD_SUM);
    return read_payload(rows, row, arena, job) && ok;
}

int pg_read_schedules(struct txn *txn, struct lhi_act *act)
{
    lh_schedules *out = act->schedules;
    struct rows rows;
    int rc = pg_call(txn, LHI_POSTGRES_SCHEDULE_LIST, NULL, &rows, &act->err);

    if (rc != LH_OK)
        return rc;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    bool ok = arena != NULL;
    if (ok && rows.n > 0)
        ok = (out->schedule = lhi_calloc((size_t)rows.n, sizeof *out->schedule)) != NULL;
    for (int i = 0; i < rows.n && ok; i++) {
        struct entry entry;
        ok = entry_read(&rows, i, arena, &entry);
        if (ok)
            out->schedule[out->n++] = entry.schedule;
    }
    pg_rows_free(&rows);
    return ok ? LH_OK : lhi_no_memory(&act->err);
}

/* ---- setting and removing ---- */

/* Up to which time the runs of a schedule that is being set are done. With the same timing as
 * before they continue, including runs that are due by now. With another timing they start now,
 * but never before a run that is done. */
static int done_so_far(struct txn *txn, const lh_schedule *s, const char *zone, int64_t *done_until,
                       struct lhi_error *err)
{
    enum { B_NOW, B_CRON, B_TZ, B_DONE_UNTIL };
    struct args args = {0};
    struct rows rows;

    pg_arg_text(&args, s->name);
    int rc = pg_call(txn, LHI_POSTGRES_SCHEDULE_BEFORE, &args, &rows, err);
    if (rc != LH_OK)
        return rc;
    int64_t now = pg_row_time(&rows, 0, B_NOW), before = pg_row_time(&rows, 0, B_DONE_UNTIL);
    bool same = !pg_row_null(&rows, 0, B_CRON) &&
                strcmp(pg_row_text(&rows, 0, B_CRON), s->cron) == 0 &&
                strcmp(pg_row_text(&rows, 0, B_TZ), zone) == 0;
    *done_until = same || before > now ? before : now;
    pg_rows_free(&rows);
    return LH_OK;
}

/* As text if possible, else as bytes. */
static void arg_payload(struct args *args, const lh_new_job *job)
{
    bool is_text = job->payload != NULL && lh_text_ok(job->payload, job->payload_len);

    pg_arg_text_len(args, is_text ? job->payload : NULL, is_text ? job->payload_len : 0);
    pg_arg_bytes(args, is_text ? NULL : job->payload, is_text ? 0 : job->payload_len);
}

static int put_schedule(struct txn *txn, const lh_schedule *s, const char *zone, int64_t done_until,
                        int64_t next, struct lhi_error *err)
{
    const lh_new_job *job = &s->job;
    struct args args = {0};

    pg_arg_text(&args, s->name);
    pg_arg_text(&args, s->queue);
    pg_arg_text(&args, s->cron);
    pg_arg_text(&args, zone);
    pg_arg_int(&args, s->catch_up);
    pg_arg_time(&args, done_until);
    pg_arg_time(&args, next);
    pg_arg_text(&args, job->kind);
    pg_arg_int(&args, job->priority);
    pg_arg_text(&args, job->key);
    pg_arg_opt(&args, job->max_attempts);
    pg_arg_opt(&args, job->lease_ms);
    pg_arg_opt(&args, job->expires_ms);
    pg_arg_opt(&args, job->backoff_ms);
    pg_arg_opt(&args, job->backoff_cap_ms);
    pg_arg_int(&args, lhi_checksum(job->payload, job->payload ? job->payload_len : 0));
    arg_payload(&args, job);
    return pg_call(txn, LHI_POSTGRES_SCHEDULE_PUT, &args, NULL, err);
}

int pg_act_schedule_set(struct txn *txn, struct lhi_act *act)
{
    const lh_schedule *s = act->schedule;
    const char *zone = s->zone ? s->zone : "UTC";
    struct lhi_timing *timing = NULL;
    int64_t done_until = 0;
    int rc = lhi_timing_open(s->cron, zone, &timing, &act->err);

    if (rc == LH_OK)
        rc = done_so_far(txn, s, zone, &done_until, &act->err);
    if (rc == LH_OK)
        rc = put_schedule(txn, s, zone, done_until, lhi_timing_next_kept(timing, done_until),
                          &act->err);
    lhi_timing_close(timing);
    return rc;
}

int pg_act_schedule_remove(struct txn *txn, struct lhi_act *act)
{
    struct args args = {0};

    pg_arg_text(&args, act->schedule_name);
    return pg_call(txn, LHI_POSTGRES_SCHEDULE_REMOVE, &args, NULL, &act->err);
}

/* ---- running what is due ---- */

/* One schedule that is due, and what to do about it. */
struct due_schedule {
    struct txn *txn;
    const struct entry *entry;
    const struct lhi_timing *timing;
    int64_t now;
    struct lhi_catch_up plan;
};

static void arg_instants(const struct due_schedule *t, struct args *args)
{
    int64_t at[LHI_BATCH];
    size_t n = 0;

    for (int64_t next = t->plan.from;
         t->plan.to != 0 && next >= 0 && next <= t->plan.to && n < LHI_BATCH;
         next = lhi_timing_next(t->timing, next))
        at[n++] = next;
    pg_arg_array(args, OID_TIMESTAMPTZ, n);
    for (size_t i = 0; i < n; i++)
        pg_put_time(args, at[i]);
}

static int enqueue_runs(struct due_schedule *t, const struct lhi_instants *due, int64_t *next,
                        int64_t *ran, struct lhi_error *err)
{
    const lh_new_job *job = &t->entry->schedule.job;
    lh_catch_up how = t->entry->schedule.catch_up;
    bool corrupt =
        lhi_checksum(job->payload, job->payload ? job->payload_len : 0) != t->entry->payload_sum;
    char what[200], more[200];
    struct args args = {0};
    struct rows rows;

    lhi_catch_up(t->timing, how, due, t->now, &t->plan);
    *next = lhi_timing_next_kept(t->timing, t->plan.upto);
    lhi_missed_words(&t->plan, how, what, more);
    pg_arg_text(&args, t->entry->schedule.name);
    pg_arg_time(&args, t->entry->done_until);
    pg_arg_time(&args, t->plan.upto);
    pg_arg_time(&args, *next);
    arg_instants(t, &args);
    pg_arg_text(&args, t->plan.missed > 0 ? what : NULL);
    pg_arg_text(&args, more);
    pg_arg_text(&args, corrupt && t->plan.to != 0
                           ? "payload does not match its checksum: set the schedule again"
                           : NULL);
    int rc = pg_call(t->txn, LHI_POSTGRES_SCHEDULE_RUN, &args, &rows, err);
    if (rc != LH_OK)
        return rc;
    int64_t enqueued = pg_row_int(&rows, 0, 0); /* -1: another session did it */
    *ran += enqueued > 0 ? enqueued : 0;
    pg_rows_free(&rows);
    LHI_POINT("schedule_tick:inside");
    return LH_OK;
}

/* `why` NULL: the schedule is not due yet. Otherwise its time zone is gone, or a later version
 * wrote its line. */
static int put_off(const struct due_schedule *t, int64_t next, const char *why,
                   struct lhi_error *err)
{
    struct args args = {0};

    pg_arg_text(&args, t->entry->schedule.name);
    pg_arg_time(&args, next);
    pg_arg_text(&args, why);
    return pg_call(t->txn, LHI_POSTGRES_SCHEDULE_PUT_OFF, &args, NULL, err);
}

static int run_one(struct txn *txn, const struct entry *entry, int64_t now, int64_t *ran,
                   bool *more, struct lhi_error *err)
{
    struct due_schedule t = {.txn = txn, .entry = entry, .now = now};
    struct lhi_timing *timing = NULL;
    struct lhi_instants due;
    struct lhi_error why;
    int64_t next = 0;

    lhi_error_clear(&why);
    int rc = lhi_timing_open(entry->schedule.cron, entry->schedule.zone, &timing, &why);
    if (rc == LH_ENOMEM)
        return lhi_no_memory(err);
    if (rc < 0)
        return put_off(&t, now + LOOK_AGAIN_MS, why.text, err);
    t.timing = timing;
    lhi_timing_instants(timing, entry->done_until, now, &due);
    if (due.n == 0) {
        rc = put_off(&t, lhi_timing_next_kept(timing, entry->done_until), NULL, err);
    } else {
        rc = enqueue_runs(&t, &due, &next, ran, err);
        *more = *more || (rc == LH_OK && next <= now);
    }
    lhi_timing_close(timing);
    return rc;
}

int pg_run_due_schedules(struct txn *txn, size_t limit, int64_t *enqueued, bool *more,
                         struct lhi_error *err)
{
    struct args args = {0};
    struct rows rows;

    *enqueued = 0;
    *more = false;
    pg_arg_int(&args, (int64_t)limit);
    int rc = pg_call(txn, LHI_POSTGRES_SCHEDULE_DUE, &args, &rows, err);
    if (rc != LH_OK)
        return rc;
    size_t bytes = 0;
    for (int i = 0; i < rows.n && rc == LH_OK; i++) {
        struct entry entry;
        if (!entry_read(&rows, i, &txn->arena, &entry))
            rc = lhi_no_memory(err);
        else
            rc = run_one(txn, &entry, pg_row_time(&rows, i, NOW), enqueued, more, err);
        bytes += entry.schedule.job.payload_len;
    }
    *more = *more || (*enqueued > 0 && ((size_t)rows.n == limit || bytes > MOST_BYTES));
    pg_rows_free(&rows);
    return rc;
}
