/*
 * The report of a recovery.
 *
 * The report is one row. It is created when the first thing is found, and updated with every batch.
 * Each thing that was found is an event with the number of the report. A report that a crash
 * interrupted has no end.
 */
#include "store/sqlite/acts/acts.h"
#include "store/sqlite/acts/recovery.h"
#include "store/sqlite/open.h"
#include "store/sqlite/rows.h"

#include "base/hook.h"

#include <string.h>

enum { MANY_DEAD = 64 }; /* workers per transaction; the next run handles the rest */

/* ---- the report of a run ---- */

int sq_recovery_event(struct txn *txn, const struct lhi_run *run, struct event *event,
                      struct lhi_error *err)
{
    event->actor = "system/recovery";
    event->report = run->report;
    return sq_txn_event(txn, event, err);
}

/* The database refused a write: by a constraint, by a user's trigger, or because a trigger is
 * broken. */
static bool is_refusal(int status)
{
    return status == LH_EINVAL || status == LH_EFAIL;
}

/* The database's message without the words that every refusal begins with. */
static const char *reason_of(const struct lhi_error *err)
{
    const char *words = lh_status_text(err->status);
    size_t n = strlen(words);

    return strncmp(err->text, words, n) == 0 && err->text[n] == ':' ? err->text + n + 2 : err->text;
}

/* Name the recovery and its step in the message of a refused write. */
static int name_step(const char *step, struct lhi_error *err)
{
    struct lhi_error why = *err;

    if (!is_refusal(why.status))
        return why.status;
    return lhi_fail(err, why.status, "recovery could not %s: %s", step, reason_of(&why));
}

int sq_recovery_begin(struct txn *txn, struct lhi_run *run, struct lhi_error *err)
{
    if (run->report != 0)
        return LH_OK;
    if (run->started_at == 0)
        run->started_at = txn->now;
    if (sq_run(txn->conn, LHI_SQL_REPORT_BEGIN, err, "ti", run->trigger, run->started_at) < 0)
        return name_step("begin its report", err);
    txn->changed = true;
    run->report = sqlite3_last_insert_rowid(txn->conn->db);
    if (sq_recovery_event(
            txn, run, &(struct event){.type = "recovery.started", .reason = run->trigger}, err) < 0)
        return name_step("record that it started", err);
    return LH_OK;
}

static int add_total(struct txn *txn, const char *key, int64_t n, struct lhi_error *err)
{
    return n == 0 || sq_run(txn->conn, LHI_SQL_TOTAL_ADD, err, "ti", key, n) >= 0 ? LH_OK
                                                                                  : err->status;
}

/* Add to the totals since the store was created, which monitoring reads. */
static int add_totals(struct txn *txn, struct lhi_run *run, struct lhi_error *err)
{
    const struct {
        const char *key;
        int64_t n;
    } totals[] = {
        {"recovery:retried", run->retried},   {"recovery:made_pending", run->made_pending},
        {"recovery:failed", run->failed},     {"recovery:released", run->released},
        {"recovery:leases", run->leases},     {"recovery:dead_workers", run->dead_workers},
        {"recovery:failures", run->failures},
    };

    _Static_assert(sizeof totals / sizeof totals[0] == sizeof run->counted / sizeof run->counted[0],
                   "one count for each");
    for (size_t i = 0; i < sizeof totals / sizeof totals[0]; i++) {
        if (add_total(txn, totals[i].key, totals[i].n - run->counted[i], err) != LH_OK)
            return err->status;
        run->counted[i] = totals[i].n;
    }
    return LH_OK;
}

/* Called with every batch, so that an interrupted run shows how far it got. */
int sq_recovery_count(struct txn *txn, struct lhi_run *run, struct lhi_error *err)
{
    if (run->report == 0)
        return LH_OK;
    int rc =
        sq_run(txn->conn, LHI_SQL_REPORT_COUNT, err, "iiiiii", run->orphaned,
               lhi_run_reclaimed(run), run->leases, run->dead_workers, run->failures, run->report);
    return rc < 0 ? rc : add_totals(txn, run, err);
}

/* ---- one step of a run ---- */

/* Was this failure recorded before? Its event says so, and for leases and workers the store must be
 * degraded, too: otherwise a recovery has succeeded since. */
static int is_known(struct txn *txn, const struct recovery_step *step, bool *known,
                    struct lhi_error *err)
{
    const struct event *about = &step->about;
    char degraded[256] = "";
    int64_t told = 0;
    int rc;

    if (about->job != 0)
        rc = sq_int(txn->conn, LHI_SQL_FAILURE_RECORDED, err, 0, &told, "ii", about->job,
                    about->token);
    else if ((rc = sq_meta_text(txn->conn, "degraded", degraded, sizeof degraded, err)) == LH_OK &&
             degraded[0] != '\0')
        rc = sq_int(txn->conn, LHI_SQL_FAILURE_RECORDED_OF_OTHER, err, 0, &told, "ttIt",
                    about->lease, about->worker, about->token, step->what);
    *known = told != 0;
    return rc;
}

/* Once a failure is recorded, an automatic recovery does not record it again. */
static int note_failure(struct txn *txn, const struct recovery_step *step, struct lhi_run *run,
                        const char *why, struct lhi_error *err)
{
    struct event event = step->about;
    char line[sizeof err->text + 256];
    bool known;
    int rc = is_known(txn, step, &known, err);

    if (rc < 0)
        return rc;
    if (known && !step->by_operator) {
        run->untold++;
        return LH_OK;
    }
    if ((rc = sq_recovery_begin(txn, run, err)) < 0)
        return rc;
    lhi_format(line, sizeof line, "%s: %s", step->what, why);
    event.type = "recovery.failed";
    event.reason = event.job != 0 ? why : line;
    if (sq_recovery_event(txn, run, &event, err) < 0) {
        lhi_format(line, sizeof line, "record that %s", step->what);
        return name_step(line, err);
    }
    txn->changed = true;
    run->failures++;
    sq_txn_log(txn, LH_LOG_ERROR,
               &(lh_log_entry){.job = event.job,
                               .token = event.token,
                               .attempt = event.attempt,
                               .queue = event.queue,
                               .worker = event.worker,
                               .reason = why},
               "%s: %s", step->what, why);
    return LH_OK;
}

int sq_recovery_step(struct txn *txn, struct lhi_run *run, const struct recovery_step *step,
                     bool *done, struct lhi_error *err)
{
    struct lhi_run before = *run;
    int rc = sq_txn_savepoint(txn, step->fn, step->arg, err);

    *done = rc >= 0;
    if (rc >= 0 || !is_refusal(rc) || txn->gone)
        return rc;
    *run = before;
    struct lhi_error why = *err;
    lhi_error_clear(err);
    return note_failure(txn, step, run, reason_of(&why), err);
}

/* What a dead worker still holds, and whether a recovery may take back any of it. */
static int still_holds(struct txn *txn, const char *worker, bool *anything, bool *free_it,
                       struct lhi_error *err)
{
    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_WORKER_HOLDS, err, "t", worker);
    int rc = LH_OK;

    *anything = *free_it = false;
    if (stmt == NULL)
        return err->status;
    while (!*free_it && (rc = sq_step(txn->conn, stmt, err)) == LH_OK) {
        *anything = true;
        *free_it = sq_txn_policy(txn, sq_text_or_empty(stmt, 0),
                                 (const char *)sqlite3_column_text(stmt, 1))
                       ->recovery;
    }
    sq_reset(stmt);
    return rc < 0 ? rc : LH_OK;
}

/* A dead worker with nothing left to recover, or only with what recovery leaves alone on
 * purpose. */
struct cleaning {
    const char *worker;
    bool holds, changed;
    const struct lhi_run *run;
    struct lhi_error *err;
};

static int write_clean(struct txn *txn, void *arg)
{
    struct cleaning *c = arg;
    int n = sq_run(txn->conn, c->holds ? LHI_SQL_WORKER_STUCK : LHI_SQL_WORKER_CLEANED, c->err, "t",
                   c->worker);

    c->changed = n > 0;
    if (n <= 0 || c->holds)
        return n;
    return sq_recovery_event(
        txn, c->run, &(struct event){.type = "worker.cleaned", .worker = c->worker}, c->err);
}

static int clean_worker(struct txn *txn, const char *worker, struct lhi_run *run,
                        struct lhi_error *err)
{
    struct cleaning c = {.worker = worker, .run = run, .err = err};
    char what[192];
    bool free_it, done;
    int rc = still_holds(txn, worker, &c.holds, &free_it, err);

    if (rc < 0 || free_it)
        return rc;
    lhi_format(what, sizeof what, "worker %s cannot be marked as cleaned up", worker);
    rc = sq_recovery_step(
        txn, run,
        &(struct recovery_step){
            .fn = write_clean, .arg = &c, .what = what, .about = {.worker = worker}},
        &done, err);
    if (rc < 0 || !done || !c.changed)
        return rc;
    txn->changed = true;
    if (!c.holds)
        sq_txn_log(txn, LH_LOG_INFO, &(lh_log_entry){.worker = worker},
                   "worker %s is cleaned up: everything it held is free", worker);
    return LH_OK;
}

/* Mark dead workers with nothing left to free as cleaned up. */
int sq_clean_workers(struct txn *txn, struct lhi_run *run, struct lhi_error *err)
{
    const char *names[MANY_DEAD];
    size_t n = 0;
    bool ok = true;
    int rc = LH_OK;

    sqlite3_stmt *stmt = sq_stmt(txn->conn, LHI_SQL_WORKER_TO_CLEAN, err, "");
    if (stmt == NULL)
        return err->status;
    while (n < MANY_DEAD && (rc = sq_step(txn->conn, stmt, err)) == LH_OK)
        names[n++] = sq_column_text(stmt, 0, &txn->arena, &ok);
    sq_reset(stmt);
    if (rc < 0)
        return rc;
    if (!ok)
        return lhi_no_memory(err);
    for (size_t i = 0; i < n; i++)
        if ((rc = clean_worker(txn, names[i], run, err)) < 0)
            return rc;
    return LH_OK;
}

/* ---- the end of a run ---- */

static int tell_findings(struct txn *txn, const struct lhi_health *health, struct lhi_run *run,
                         struct lhi_error *err)
{
    for (size_t i = 0; i < health->findings.n; i++) {
        const lh_finding *f = &health->findings.finding[i];
        bool damage = strcmp(f->what, "integrity") == 0;
        int rc = sq_recovery_event(
            txn, run,
            &(struct event){.type = damage ? "store.damaged" : "recovery.inconsistency",
                            .reason = f->text},
            err);
        if (rc < 0)
            return rc;
    }
    if (!health->repaired)
        return LH_OK;
    return sq_recovery_event(txn, run, &(struct event){.type = "store.repaired"}, err);
}

/* The store is degraded until a complete run succeeds. */
static int set_degraded(struct txn *txn, const struct lhi_run *run, struct lhi_error *err)
{
    char text[160] = "", known[256];
    int rc = sq_meta_text(txn->conn, "degraded", known, sizeof known, err);

    if (rc < 0 || (run->failures == 0 && (!run->whole || run->untold > 0)))
        return rc;
    if (run->failures > 0) {
        int64_t n = run->failures + run->untold;
        lhi_format(text, sizeof text, "%lld recovery step%s failed, see recovery report %lld",
                   (long long)n, n == 1 ? "" : "s", (long long)run->report);
    }
    if (strcmp(text, known) == 0)
        return LH_OK;
    txn->changed = true;
    return sq_meta_set_text(txn->conn, "degraded", text, err);
}

int sq_recovery_end_report(struct txn *txn, struct lhi_run *run, const struct lhi_health *health,
                           struct lhi_error *err)
{
    const char *integrity = health == NULL || !health->checked ? "skipped"
                            : health->repaired                 ? "repaired"
                            : health->sound                    ? "passed"
                                                               : "failed";
    char data[96], trigger[32];

    lhi_format(trigger, sizeof trigger, "recovery:%s", run->trigger);
    if ((health != NULL && tell_findings(txn, health, run, err) < 0) ||
        sq_recovery_count(txn, run, err) < 0 || add_total(txn, trigger, 1, err) < 0 ||
        add_total(txn, "recovery:duration_ms", txn->now - run->started_at, err) < 0 ||
        set_degraded(txn, run, err) < 0)
        return name_step("count what it did", err);
    if (sq_run(txn->conn, LHI_SQL_REPORT_END, err, "itii", txn->now, integrity,
               health ? health->wal_frames : (int64_t)-1, run->report) < 0)
        return name_step("end its report", err);
    txn->changed = true;
    lhi_format(data, sizeof data, "{\"jobs\":%lld,\"leases\":%lld,\"dead_workers\":%lld}",
               (long long)lhi_run_reclaimed(run), (long long)run->leases,
               (long long)run->dead_workers);
    sq_txn_log(txn, LH_LOG_INFO, NULL,
               "recovery (%s) done: %lld jobs taken back, %lld leases freed, %lld workers dead",
               run->trigger, (long long)lhi_run_reclaimed(run), (long long)run->leases,
               (long long)run->dead_workers);
    if (sq_recovery_event(txn, run, &(struct event){.type = "recovery.completed", .data = data},
                          err) < 0)
        return name_step("record that it is complete", err);
    return LH_OK;
}

int sq_recovery_end(struct txn *txn, struct lhi_run *run, const struct lhi_health *health,
                    struct lhi_error *err)
{
    int rc = sq_clean_workers(txn, run, err);

    LHI_POINT("recovery:before_end");
    txn->run_over = true;
    txn->all_recovered = txn->all_recovered || run->whole;
    if (rc < 0 || run->report != 0)
        return rc < 0 ? rc : sq_recovery_end_report(txn, run, health, err);
    return set_degraded(txn, run, err);
}

int sq_act_recount(struct txn *txn, struct lhi_act *act)
{
    txn->changed = true;
    if (sq_txn_count(txn, &act->err) < 0 ||
        sq_run(txn->conn, LHI_SQL_RECOUNT_NO_IDS, &act->err, "") < 0 ||
        sq_run(txn->conn, LHI_SQL_RECOUNT_IDS, &act->err, "") < 0 ||
        sq_run(txn->conn, LHI_SQL_RECOUNT_OUTPUTS, &act->err, "") < 0 ||
        sq_run(txn->conn, LHI_SQL_RECOUNT_QUEUES, &act->err, "") < 0 ||
        sq_run(txn->conn, LHI_SQL_RECOUNT_COUNTS, &act->err, "") < 0)
        return act->err.status;
    return LH_OK;
}
