/*
 * recovery.c: one run of a recovery, from the judging of workers to the report.
 *
 * A run judges the workers, reads what is reclaimable without blocking a writer, and takes it back in
 * batches. Each batch is a transaction that judges every job again and has its guard in the write. So a
 * job that a heartbeat, a complete or another recovery has changed is left alone. An interrupted run leaves
 * complete batches, and the next run does the rest.
 */
#include "core/core.h"

#include "base/clock.h"

#include <assert.h>
#include <string.h>

enum {
    MOST_ALSO = 2, /* acts that share a transaction with the last batch of a run */
    PASS = 20000,  /* the number of jobs that one pass reads */
    SMALL_BATCH = 64,
    FOLD_PAUSE = 150, /* the pause after a checkpoint, in multiples of its duration */
    LOOK_MS = 10,     /* between two searches for processes of dead workers */
};

/* ---- judging workers ---- */

/* Find the dead and the late workers among those that are recorded as alive. Free the list with lhi_free(); its
 * strings belong to `suspects`. */
int lhi_judge_workers(lh_store *store, struct lhi_suspects *suspects, struct lhi_death **deaths,
                      size_t *n, struct lhi_error *err)
{
    struct lhi_act act = {.verb = LHI_WORKER_JUDGE, .suspects = suspects};
    struct lhi_identity self;
    int rc = lhi_read(store, &act, err);

    *deaths = NULL;
    *n = 0;
    if (rc != LH_OK || suspects->n == 0)
        return rc;
    lhi_identify(&self);
    if ((rc = lhi_find_leftovers(store, suspects, &self, err)) != LH_OK)
        return rc;
    int64_t now = lh_now(store);
    struct lhi_death *found = lhi_calloc(suspects->n, sizeof *found);
    if (found == NULL)
        return lhi_no_memory(err);
    for (size_t i = 0; i < suspects->n; i++)
        *n += lhi_judge_worker(&suspects->suspect[i], &self, now, &found[*n]);
    *deaths = found;
    return LH_OK;
}

/* ---- one run ---- */

/* Pause for at least as long as the batch took, so that other writers get half of the time. A checkpoint blocks
 * them for some milliseconds; after one the run pauses long enough that fewer than one claim in a hundred meets
 * it. The pause is sliced to notice the cancel flag. */
static void give_way(int64_t began_us, int64_t folded_us, const lh_flag *cancel)
{
    int64_t took = lhi_mono_us() - began_us - folded_us;
    int64_t pause_ms = (took + folded_us * FOLD_PAUSE) / 1000;

    for (int64_t left = pause_ms > 1 ? pause_ms : 1; left > 0 && !lhi_raised(cancel); left -= 50)
        lhi_sleep_ms(left < 50 ? left : 50);
}

/* What one run has to do. */
struct work {
    struct lhi_death *deaths;
    size_t n_deaths;
    const int64_t *ids;
    size_t n;
    const struct lhi_health *health;
    struct lhi_act *also; /* performed with the last batch */
    size_t n_also;
    bool last_pass;
    const lh_flag *cancel;
};

int lhi_refused(const char *what, struct lhi_error *err)
{
    struct lhi_error said = *err;
    const char *words = lh_status_text(said.status);
    size_t n = strlen(words);

    if (said.status != LH_EINVAL && said.status != LH_EFAIL)
        return said.status;
    err->status = LH_EFAIL;
    if (strncmp(said.text, words, n) != 0 || said.text[n] != ':')
        return LH_EFAIL; /* the store's sentence names the step */
    return lhi_fail(err, LH_EFAIL, "%s was refused by the database:%s", what, said.text + n + 1);
}

/* Perform a batch; the last one together with the other acts. */
static int perform_batch(lh_store *store, struct lhi_act *batch, const struct work *work,
                         struct lhi_error *err)
{
    struct lhi_act acts[1 + MOST_ALSO] = {*batch};
    size_t n = batch->recover.last ? work->n_also : 0;
    int rc;

    assert(n <= MOST_ALSO);
    for (size_t i = 0; i < n; i++)
        acts[1 + i] = work->also[i];
    if ((rc = lhi_perform_all(store, acts, 1 + n, err)) < 0) {
        err->status = rc;
        return lhi_refused("recovery", err);
    }
    *batch = acts[0];
    for (size_t i = 0; i < n; i++)
        work->also[i] = acts[1 + i];
    if (batch->err.status >= 0)
        return LH_OK;
    *err = batch->err;
    return lhi_refused("recovery", err);
}

/* Take jobs back in batches, one transaction each; a small run is one batch. The first batch records the
 * deaths, which makes the jobs of dead workers reclaimable. The last one frees named leases and finishes
 * the report. */
static int take_back(lh_store *store, struct lhi_run *run, const lh_recover_opts *opts,
                     struct work *work, struct lhi_error *err)
{
    size_t most = LHI_BATCH;
    bool over = false;

    for (size_t at = 0; !over;) {
        size_t batch = work->n - at < most ? work->n - at : most;
        bool last = work->last_pass && at + batch == work->n, cancelled = lhi_raised(work->cancel);
        run->whole = run->whole && !cancelled;
        struct lhi_act act = {.verb = LHI_RECOVER,
                              .n = cancelled ? 0 : batch,
                              .recover = {.run = run,
                                          .opts = opts,
                                          .deaths = work->deaths,
                                          .n_deaths = cancelled ? 0 : work->n_deaths,
                                          .ids = work->ids ? work->ids + at : NULL,
                                          .leases = last && !cancelled,
                                          .last = last || cancelled,
                                          .health = work->health}};
        int64_t began = lhi_mono_us();
        int rc = perform_batch(store, &act, work, err);
        if (rc < 0)
            return rc;
        if (last)
            work->n_also = 0; /* they are done, even if named leases are left */
        /* An interrupted run has a report, too. */
        if (cancelled)
            return lhi_fail(err, LH_EINTR, "recovery was interrupted after %zu of %zu jobs", at,
                            work->n);
        at += act.recover.done;
        over = act.recover.over || (!work->last_pass && at == work->n);
        work->n_deaths = 0;
        if (opts != NULL && opts->progress != NULL)
            opts->progress(opts->progress_arg, (int64_t)at, (int64_t)work->n);
        /* Another writer waits for our commit: make the next batches small. */
        bool waited = act.recover.done < batch;
        if (waited)
            most = SMALL_BATCH;
        else if (most < LHI_BATCH)
            most += SMALL_BATCH / 8;
        if (!over && (waited || (act.recover.folded_us > 0 && most < LHI_BATCH)))
            give_way(began, act.recover.folded_us, work->cancel);
    }
    return LH_OK;
}

static const char *trigger_of(const struct lhi_death *deaths, size_t n, size_t stale)
{
    for (size_t i = 0; i < n; i++)
        if (deaths[i].proven)
            return "death";
    return stale > 0 ? "expiry" : "timer";
}

/* Judge the workers, and kill what dead ones have left running. A run by an operator or at startup waits until
 * that is done, because nothing repeats it later. */
static int judge(lh_store *store, const struct lhi_run *run, const lh_recover_opts *opts,
                 struct lhi_suspects *suspects, struct work *work, struct lhi_error *err)
{
    bool patient = run->always && (opts == NULL || !opts->by_age);

    for (;;) {
        int rc = lhi_judge_workers(store, suspects, &work->deaths, &work->n_deaths, err);
        if (rc != LH_OK || !lhi_clear_leftovers(store, &suspects->left) || !patient ||
            lhi_raised(work->cancel))
            return rc;
        lhi_free(work->deaths);
        lhi_suspects_clear(suspects);
        lhi_sleep_ms(LOOK_MS);
    }
}

/* One pass: judge the workers, read what is reclaimable, take it back. `*more`: there may be more. */
static int one_pass(lh_store *store, struct lhi_run *run, const lh_recover_opts *opts,
                    struct work *work, bool *more, struct lhi_error *err)
{
    struct lhi_suspects suspects = {0};
    /* An operator's run reads everything first, to know the total. An automatic run reads a long list in parts,
     * because a long read needs memory and delays checkpoints. */
    struct lhi_act stale = {
        .verb = LHI_STALE,
        .stale = {.opts = opts, .acting = true, .most = opts == NULL ? PASS : 0}};
    int rc = judge(store, run, opts, &suspects, work, err);

    stale.stale.deaths = work->deaths;
    stale.stale.n_deaths = work->n_deaths;
    if (rc == LH_OK)
        rc = lhi_read(store, &stale, err);
    work->ids = stale.stale.ids;
    work->n = stale.stale.n;
    *more = stale.stale.most > 0 && work->n >= stale.stale.most;
    if (run->trigger == NULL)
        run->trigger = trigger_of(work->deaths, work->n_deaths, work->n);
    bool something =
        run->always || work->n_deaths > 0 || work->n > 0 || stale.stale.leases > 0 ||
        stale.stale.unclean || (run->whole && stale.stale.degraded) ||
        run->report != 0; /* an earlier pass has started the report, which must be finished */
    work->last_pass = !*more;
    if (rc == LH_OK && something)
        rc = take_back(store, run, opts, work, err);
    lhi_free(stale.stale.ids);
    lhi_free(work->deaths);
    lhi_suspects_clear(&suspects);
    return rc;
}

static int run_work(lh_store *store, struct lhi_run *run, const lh_recover_opts *opts,
                    struct work *work, struct lhi_error *err)
{
    bool more = true;
    int rc = LH_OK;

    while (more && rc == LH_OK) {
        int64_t before = lhi_run_reclaimed(run);
        rc = one_pass(store, run, opts, work, &more, err);
        /* Nothing could be recovered: stop here, the next run tries again. */
        if (more && rc == LH_OK && lhi_run_reclaimed(run) == before) {
            *work = (struct work){.health = work->health,
                                  .cancel = work->cancel,
                                  .also = work->also,
                                  .n_also = work->n_also,
                                  .last_pass = true};
            return run->report ? take_back(store, run, opts, work, err) : LH_OK;
        }
    }
    return rc;
}

int lhi_run_recovery(lh_store *store, struct lhi_run *run, const lh_recover_opts *opts,
                     const struct lhi_health *health, struct lhi_error *err)
{
    struct work work = {.health = health, .cancel = opts ? opts->cancel : NULL};
    return run_work(store, run, opts, &work, err);
}

int lhi_run_with(lh_store *store, struct lhi_run *run, struct lhi_act *also, size_t n_also,
                 const lh_flag *cancel, struct lhi_error *err)
{
    struct work work = {.also = also, .n_also = n_also, .cancel = cancel};
    run->whole = true;
    int rc = store->no_recovery ? LH_OK : run_work(store, run, NULL, &work, err);

    if (rc == LH_OK && work.n_also > 0)
        rc = lhi_perform_all(store, also, n_also, err);
    if (rc == LH_OK && !store->no_recovery)
        lhi_set_degraded(store, NULL);
    for (size_t i = 0; i < n_also && rc == LH_OK; i++)
        if (also[i].err.status < 0) {
            *err = also[i].err;
            rc = lhi_refused("maintenance", err);
        }
    return rc;
}

int lhi_report_health(lh_store *store, struct lhi_run *run, const struct lhi_health *health,
                      struct lhi_error *err)
{
    struct work work = {.health = health, .last_pass = true};
    return take_back(store, run, NULL, &work, err);
}

/* ---- inconsistencies ---- */

/* Find broken invariants, for the report. Wrong counters are corrected, and output without a job is deleted. */
int lhi_find_inconsistencies(lh_store *store, const lh_flag *cancel, struct lhi_health *health,
                             struct lhi_error *err)
{
    bool counts = false, output = false;
    struct lhi_act act = {.verb = LHI_CHECK,
                          .check = {.cancel = cancel, .out = &health->findings, .rows_only = true}};
    size_t before = health->findings.n;
    int rc = lhi_read(store, &act, err);

    for (size_t i = before; i < health->findings.n; i++) {
        const char *what = health->findings.finding[i].what;
        counts = counts || strcmp(what, "counts") == 0 || strcmp(what, "invariant 7") == 0;
        output = output || strcmp(what, "output") == 0;
    }
    if (rc != LH_OK || (!counts && !output))
        return rc;
    struct lhi_act recount = {.verb = LHI_RECOUNT};
    rc = lhi_perform(store, &recount, err);
    if (rc == LH_OK && counts)
        lhi_log(&store->log, LH_LOG_WARN, "counts were wrong and have been recounted");
    if (rc == LH_OK && output)
        lhi_log(&store->log, LH_LOG_WARN, "deleted the output of jobs that no longer exist");
    return rc;
}

void lhi_health_clear(struct lhi_health *health)
{
    lhi_free(health->findings.finding);
    lhi_arena_drop(&health->findings.priv);
    *health = (struct lhi_health){.wal_frames = -1};
}
