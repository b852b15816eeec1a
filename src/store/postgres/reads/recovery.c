/*
 * Reads for recoveries: workers to check, and reclaimable jobs.
 *
 * A process that checks the workers also compares the server's clock with this machine's. Deadlines
 * follow the server's clock; if it was set, they are shifted with it before anything is compared
 * with it.
 */
#include "store/postgres/wire.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { JUMP_MS = 1000 };

/* ---- the clock ---- */

/* By how much the server's clock was set since the last check, as far as no process has reported
 * it yet; 0: not at all. If a jump was reported only after the last check, it may have happened
 * before it: then the clocks agree. */
static int64_t compare_clocks(struct pg *pg, const struct clock_sample *now, int64_t *elapsed_ms)
{
    pthread_mutex_lock(&pg->mutex);
    struct clock_sample before = pg->clock_sample;
    bool newest = !before.taken || now->boot_ms >= before.boot_ms;
    if (newest)
        pg->clock_sample = *now;
    pthread_mutex_unlock(&pg->mutex);
    *elapsed_ms = now->boot_ms - before.boot_ms;
    if (!before.taken || !newest)
        return 0;
    int64_t apart = now->server_ms - before.server_ms - *elapsed_ms;
    int64_t unknown = apart - (now->jumped_ms - before.jumped_ms);
    int64_t seeming = JUMP_MS + now->trip_ms + before.trip_ms;
    return llabs(apart) > seeming && llabs(unknown) > seeming ? unknown : 0;
}

/* If the call fails, the next process that checks may report the jump. */
static void watch_clock(struct txn *txn, const struct clock_sample *now)
{
    int64_t elapsed_ms, jump_ms = compare_clocks(txn->pg, now, &elapsed_ms);
    struct args args = {0};
    struct lhi_error ignored;

    if (jump_ms == 0 || pg_opts(txn->pg)->read_only)
        return;
    lhi_error_clear(&ignored);
    pg_arg_int(&args, jump_ms);
    pg_arg_int(&args, now->jumped_ms);
    pg_arg_int(&args, elapsed_ms);
    (void)pg_call(txn, LHI_POSTGRES_CLOCK_JUMPED, &args, NULL, &ignored);
}

/* ---- workers ---- */

enum {
    W_NOW,
    W_JUMPED_MS,
    W_ID,
    W_STATE,
    W_MACHINE,
    W_BOOT,
    W_PID_NS,
    W_TIME_NS,
    W_PID,
    W_START,
    W_INTERVAL_MS,
    W_MULTIPLIER,
    W_BEAT,
    W_SESSIONS
};

static void copy_text(const struct rows *rows, int row, int column, char *out, size_t len)
{
    const char *text = pg_row_text(rows, row, column);
    lhi_format(out, len, "%s", text ? text : "");
}

static bool suspect_from_row(const struct rows *rows, int row, struct lhi_arena *arena,
                             struct lhi_suspect *s)
{
    bool ok = true;

    s->id = pg_row_copy(rows, row, W_ID, arena, &ok);
    s->late = strcmp(pg_row_text(rows, row, W_STATE), "late") == 0;
    copy_text(rows, row, W_MACHINE, s->process.machine, sizeof s->process.machine);
    copy_text(rows, row, W_BOOT, s->process.boot, sizeof s->process.boot);
    s->process.pid_ns = pg_row_int(rows, row, W_PID_NS);
    s->process.time_ns = pg_row_int(rows, row, W_TIME_NS);
    s->process.pid = pg_row_int(rows, row, W_PID);
    s->process.start = pg_row_int(rows, row, W_START);
    s->interval_ms = pg_row_int(rows, row, W_INTERVAL_MS);
    s->multiplier = pg_row_int(rows, row, W_MULTIPLIER);
    s->last_heartbeat_at = pg_row_time(rows, row, W_BEAT);
    s->sessions = pg_row_copy(rows, row, W_SESSIONS, arena, &ok);
    if (ok && s->sessions != NULL)
        ok = lhi_sessions_parse(s->sessions, arena, s);
    return ok;
}

static int suspects_from_rows(const struct rows *rows, struct lhi_suspects *out,
                              struct lhi_error *err)
{
    struct lhi_arena *arena = lhi_arena_of(&out->priv);
    bool ok = arena != NULL && pg_list_room(&out->suspect, rows, sizeof *out->suspect);

    for (int row = 0; row < rows->n && ok; row++)
        if (!pg_row_null(rows, row, W_ID))
            ok = suspect_from_row(rows, row, arena, &out->suspect[out->n++]);
    return ok ? LH_OK : lhi_no_memory(err);
}

int pg_read_judge(struct txn *txn, struct lhi_act *act)
{
    struct rows rows;
    int64_t sent = lhi_boot_ms();
    int rc = pg_call(txn, LHI_POSTGRES_WORKER_JUDGE, NULL, &rows, &act->err);

    if (rc != LH_OK)
        return rc;
    struct clock_sample now = {.taken = true, .boot_ms = lhi_boot_ms()};
    now.trip_ms = now.boot_ms - sent;
    now.server_ms = pg_row_time(&rows, 0, W_NOW);
    now.jumped_ms = pg_row_int(&rows, 0, W_JUMPED_MS);
    rc = suspects_from_rows(&rows, act->suspects, &act->err);
    pg_rows_free(&rows);
    if (rc == LH_OK)
        watch_clock(txn, &now);
    return rc;
}

/* ---- reclaimable jobs ---- */

/* Workers that are proven dead but not marked so yet. */
static void put_dead(struct args *args, const struct lhi_act *act)
{
    const struct lhi_death *deaths = act->stale.deaths;
    size_t n = 0;

    for (size_t i = 0; i < act->stale.n_deaths; i++)
        n += deaths[i].proven;
    pg_arg_array(args, OID_TEXT, n);
    for (size_t i = 0; i < act->stale.n_deaths; i++)
        if (deaths[i].proven)
            pg_put_text(args, deaths[i].worker);
}

/* A recovery by an operator scans everything, however long that takes. All others start where
 * claims start if the indexes are full of dead entries (leasehold.recovery_scan). */
static bool scans_everything(const struct lhi_act *act)
{
    return act->stale.opts != NULL && (act->stale.acting || act->stale.rows);
}

static int read_ids(struct txn *txn, struct lhi_act *act)
{
    const lh_recover_opts *opts = act->stale.opts;
    struct args args = {0};
    struct rows rows;

    pg_arg_bool(&args, opts != NULL);
    pg_arg_ref(&args, opts != NULL && opts->by_age ? &opts->threshold_ms : NULL);
    pg_arg_text(&args, opts != NULL ? opts->queue : NULL);
    put_dead(&args, act);
    pg_arg_opt(&args, (int64_t)act->stale.most);
    pg_arg_bool(&args, scans_everything(act));
    int rc = pg_call(txn, LHI_POSTGRES_STALE_JOBS, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    if (!pg_list_room(&act->stale.ids, &rows, sizeof *act->stale.ids))
        rc = lhi_no_memory(&act->err);
    for (int row = 0; row < rows.n && rc == LH_OK; row++)
        act->stale.ids[act->stale.n++] = pg_row_int(&rows, row, 0);
    pg_rows_free(&rows);
    return rc;
}

static int read_rest(struct txn *txn, struct lhi_act *act)
{
    enum { LEASES, UNCLEAN, DEGRADED };
    const lh_recover_opts *opts = act->stale.opts;
    struct args args = {0};
    struct rows rows;

    pg_arg_ref(&args, opts != NULL && opts->by_age ? &opts->threshold_ms : NULL);
    pg_arg_text(&args, opts != NULL ? opts->queue : NULL);
    pg_arg_bool(&args, opts != NULL && opts->now);
    put_dead(&args, act);
    pg_arg_bool(&args, scans_everything(act));
    int rc = pg_call(txn, LHI_POSTGRES_STALE_REST, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    act->stale.leases = pg_row_int(&rows, 0, LEASES);
    act->stale.unclean = pg_row_bool(&rows, 0, UNCLEAN);
    act->stale.degraded = pg_row_bool(&rows, 0, DEGRADED);
    pg_rows_free(&rows);
    return LH_OK;
}

enum {
    S_ID,
    S_QUEUE,
    S_KIND,
    S_WORKER,
    S_ATTEMPT,
    S_MAX_ATTEMPTS,
    S_RECOVERIES,
    S_TOKEN,
    S_LEASE_UNTIL,
    S_HELD_MS,
    S_STARTED_AT,
    S_BEAT,
    S_UNCLEANED,
    S_UNSTARTED
};

/* What the report says about the job's worker, if that is why the job is reclaimable. */
static void give_cause(const struct lhi_act *act, const char *uncleaned,
                       struct lhi_stale_job *stale)
{
    lhi_format(stale->what, sizeof stale->what, "%s", uncleaned ? uncleaned : "");
    for (size_t i = 0; i < act->stale.n_deaths && stale->what[0] == '\0'; i++) {
        const struct lhi_death *death = &act->stale.deaths[i];
        if (death->process && !death->late && strcmp(death->worker, stale->job.worker) == 0)
            lhi_format(stale->what, sizeof stale->what, "%s", death->what);
    }
    stale->cause = act->stale.opts && act->stale.opts->by_age ? LHI_CAUSE_MANUAL
                   : stale->what[0] != '\0'                   ? LHI_CAUSE_DEAD
                                                              : LHI_CAUSE_TTL;
}

static bool stale_from_row(const struct rows *rows, int row, struct lhi_arena *arena,
                           const struct lhi_act *act, struct lhi_stale_job *stale)
{
    bool ok = true;

    stale->job = (lh_job){.id = pg_row_int(rows, row, S_ID),
                          .queue = pg_row_copy(rows, row, S_QUEUE, arena, &ok),
                          .kind = pg_row_copy(rows, row, S_KIND, arena, &ok),
                          .state = LH_RUNNING,
                          .worker = pg_row_copy(rows, row, S_WORKER, arena, &ok),
                          .attempt = pg_row_int(rows, row, S_ATTEMPT),
                          .max_attempts = pg_row_int(rows, row, S_MAX_ATTEMPTS),
                          .recoveries = pg_row_int(rows, row, S_RECOVERIES),
                          .token = pg_row_int(rows, row, S_TOKEN),
                          .lease_until = pg_row_time(rows, row, S_LEASE_UNTIL),
                          .lease_ms = pg_row_int(rows, row, S_HELD_MS),
                          .started_at = pg_row_time(rows, row, S_STARTED_AT),
                          .last_heartbeat_at = pg_row_time(rows, row, S_BEAT)};
    stale->unstarted = pg_row_bool(rows, row, S_UNSTARTED);
    if (ok)
        give_cause(act, pg_row_text(rows, row, S_UNCLEANED), stale);
    return ok;
}

static int read_rows(struct txn *txn, struct lhi_act *act)
{
    size_t n = act->stale.n < LH_REPORT_MOST ? act->stale.n : LH_REPORT_MOST;
    struct lhi_arena *arena = lhi_arena_of(&act->stale.priv);
    struct args args = {0};
    struct rows rows;

    pg_arg_array(&args, OID_INT8, n);
    for (size_t i = 0; i < n; i++)
        pg_put_int(&args, act->stale.ids[i]);
    int rc = pg_call(txn, LHI_POSTGRES_STALE_ROWS, &args, &rows, &act->err);
    if (rc != LH_OK)
        return rc;
    bool ok = arena != NULL && pg_list_room(&act->stale.jobs, &rows, sizeof *act->stale.jobs);
    for (int row = 0; row < rows.n && ok; row++)
        ok = stale_from_row(&rows, row, arena, act, &act->stale.jobs[act->stale.n_jobs++]);
    pg_rows_free(&rows);
    return ok ? LH_OK : lhi_no_memory(&act->err);
}

int pg_read_stale(struct txn *txn, struct lhi_act *act)
{
    int rc = read_ids(txn, act);

    if (rc == LH_OK && act->stale.rows)
        rc = read_rows(txn, act);
    return rc == LH_OK ? read_rest(txn, act) : rc;
}
