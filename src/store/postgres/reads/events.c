/*
 * Events, in the order of their ids.
 *
 * An id is assigned before its transaction ends, so an event may appear below others that are
 * already visible. A reader that follows events and asks for ids above its last one would miss it.
 * So a read returns only events below which no other can still appear.
 *
 * A transaction has its own id before it takes the id of an event, because every act writes a row
 * first. So a transaction that took an event id below the highest visible one has ended, or is in
 * progress now. Once all transactions that are in progress now have ended, everything up to that
 * highest event is final. On a quiet server that is at once.
 */
#include "store/postgres/wire.h"

#include <string.h>

enum { DEFAULT_LIMIT = 100 };

enum { MARK_ID, MARK_OLDEST, MARK_LAST };

/* `id` is visible; when the transactions up to `last` have ended, everything below it is final. */
static void remember_event(struct event_watermark *mark, int64_t id, int64_t last)
{
    /* If there is no room, replace the newest entry: older ones become final first. */
    if (mark->n == sizeof mark->seen / sizeof mark->seen[0])
        mark->n--;
    mark->seen[mark->n].id = id;
    mark->seen[mark->n++].last = last;
    mark->highest = id;
}

/* All transactions below `oldest` have ended. */
static void advance_watermark(struct event_watermark *mark, int64_t oldest)
{
    size_t over = 0;

    for (; over < mark->n && mark->seen[over].last < oldest; over++)
        mark->id = mark->seen[over].id;
    mark->n -= over;
    memmove(mark->seen, mark->seen + over, mark->n * sizeof mark->seen[0]);
}

static int64_t highest_seen(struct pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    int64_t highest = pg->watermark.highest;
    pthread_mutex_unlock(&pg->mutex);
    return highest;
}

/* The highest event below which no other can appear. */
static int read_watermark(struct txn *txn, int64_t *id, struct lhi_error *err)
{
    struct pg *pg = txn->pg;
    struct args args = {0};
    struct rows rows;

    pg_arg_int(&args, highest_seen(pg));
    int rc = pg_call(txn, LHI_POSTGRES_EVENT_MARKS, &args, &rows, err);
    if (rc != LH_OK)
        return rc;
    int64_t visible = pg_row_int(&rows, 0, MARK_ID);
    pthread_mutex_lock(&pg->mutex);
    if (visible < pg->watermark.id) /* another server took over and has lost the last events */
        pg->watermark = (struct event_watermark){0};
    if (visible > pg->watermark.highest && !pg_row_null(&rows, 0, MARK_LAST))
        remember_event(&pg->watermark, visible, pg_row_int(&rows, 0, MARK_LAST));
    advance_watermark(&pg->watermark, pg_row_int(&rows, 0, MARK_OLDEST));
    *id = pg->watermark.id;
    pthread_mutex_unlock(&pg->mutex);
    pg_rows_free(&rows);
    return LH_OK;
}

static bool event_from_row(const struct rows *rows, int row, struct lhi_arena *arena, lh_event *e)
{
    bool ok = true;

    e->id = pg_row_int(rows, row, 0);
    e->at = pg_row_time(rows, row, 1);
    e->type = pg_row_copy(rows, row, 2, arena, &ok);
    e->job = pg_row_int(rows, row, 3);
    e->queue = pg_row_copy(rows, row, 4, arena, &ok);
    e->worker = pg_row_copy(rows, row, 5, arena, &ok);
    e->lease = pg_row_copy(rows, row, 6, arena, &ok);
    e->from = pg_row_copy(rows, row, 7, arena, &ok);
    e->to = pg_row_copy(rows, row, 8, arena, &ok);
    e->actor = pg_row_copy(rows, row, 9, arena, &ok);
    e->reason = pg_row_copy(rows, row, 10, arena, &ok);
    e->token = pg_row_int(rows, row, 11);
    e->data = pg_row_copy(rows, row, 12, arena, &ok);
    e->attempt = pg_row_int(rows, row, 13);
    e->max_attempts = pg_row_int(rows, row, 14);
    e->action = pg_row_copy(rows, row, 15, arena, &ok);
    e->report = pg_row_int(rows, row, 16);
    return ok;
}

/* Two calls for a reader that follows: first the highest final event, then the events, which are
 * then all visible. */
int pg_read_events(struct txn *txn, struct lhi_act *act)
{
    const lh_event_filter *f = act->events.filter;
    enum lhi_postgres_call which =
        f->job ? (f->newest ? LHI_POSTGRES_EVENT_LAST_JOB : LHI_POSTGRES_EVENT_LIST_JOB)
               : (f->newest ? LHI_POSTGRES_EVENT_LAST : LHI_POSTGRES_EVENT_LIST);
    lh_events *out = act->events.out;
    struct args args = {0};
    struct rows rows;
    int64_t upto = INT64_MAX;
    int rc = f->wait_ms != 0 ? read_watermark(txn, &upto, &act->err) : LH_OK;

    if (rc != LH_OK || upto <= f->after)
        return rc;
    pg_arg_int(&args, f->after);
    pg_arg_int(&args, upto);
    pg_arg_int(&args, f->limit ? (int64_t)f->limit : DEFAULT_LIMIT);
    pg_arg_time(&args, f->since);
    pg_arg_text(&args, f->queue);
    pg_arg_text(&args, f->type);
    if (f->job)
        pg_arg_int(&args, f->job);
    if ((rc = pg_call(txn, which, &args, &rows, &act->err)) != LH_OK)
        return rc;
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    bool ok = arena != NULL && pg_list_room(&out->event, &rows, sizeof *out->event);
    for (int row = 0; row < rows.n && ok; row++)
        ok = event_from_row(&rows, row, arena, &out->event[out->n++]);
    pg_rows_free(&rows);
    return ok ? LH_OK : lhi_no_memory(&act->err);
}
