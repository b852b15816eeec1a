/* workers.c: the public calls for workers. Heartbeats of a worker are in jobs.c. */
#include "core/core.h"

#include "base/sys.h"

#include <string.h>

enum { MAX_SESSIONS = 1000, MAX_WHY = 1024 };

/* Make an id: the label and a suffix that is unique to this start. So a restarted worker does not keep its
 * predecessor's jobs alive. */
static int make_id(const lh_worker_opts *opts, char *id, size_t len, struct lhi_error *err)
{
    uint32_t nonce = 0;
    int rc;

    if (opts->id != NULL) {
        if ((rc = lhi_need_name("worker", opts->id, err)) != LH_OK)
            return rc;
        lhi_format(id, len, "%s", opts->id);
        return LH_OK;
    }
    const char *label = opts->label ? opts->label : "worker";
    if ((rc = lhi_need_name("worker label", label, err)) != LH_OK)
        return rc;
    if (strlen(label) > 119)
        return lhi_fail(err, LH_EINVAL, "worker label is %zu bytes long: 1 to 119 are allowed",
                        strlen(label));
    if (!lhi_random(&nonce, sizeof nonce))
        return lhi_fail(err, LH_EFAIL, "there is no randomness for a worker's id");
    lhi_format(id, len, "%s-%08x", label, nonce);
    return LH_OK;
}

/* Read the start times of the processes, outside of any transaction. */
static int identify_leaders(const int64_t *pids, size_t n, struct lhi_session **out,
                            struct lhi_error *err)
{
    struct lhi_session *leaders = lhi_calloc(n + 1, sizeof *leaders);

    if (leaders == NULL)
        return lhi_no_memory(err);
    for (size_t i = 0; i < n; i++) {
        int rc = lhi_need_range("process id", pids[i], 1, INT32_MAX, err);
        if (rc != LH_OK) {
            lhi_free(leaders);
            return rc;
        }
        leaders[i] = (struct lhi_session){pids[i], lhi_process_start(pids[i])};
        if (leaders[i].start == 0 && !lhi_process_gone(pids[i], 0)) {
            lhi_free(leaders);
            return lhi_fail(err, LH_EFAIL, "process %lld cannot be looked at", (long long)pids[i]);
        }
    }
    *out = leaders;
    return LH_OK;
}

int lh_worker_register(lh_store *store, const lh_worker_opts *opts, char *id, size_t idlen)
{
    static const lh_worker_opts defaults;
    struct lhi_session *leaders = NULL;
    char made[160];
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if (opts == NULL)
        opts = &defaults;
    if ((rc = LHI_NEED_RESERVED(opts, err)) != LH_OK ||
        (rc = make_id(opts, made, sizeof made, err)) != LH_OK)
        return rc;
    if (id == NULL || idlen <= strlen(made))
        return lhi_fail(err, LH_EMISUSE, "worker id needs %zu bytes", strlen(made) + 1);
    if (opts->queues != NULL && (rc = lhi_need_text("queues", opts->queues, 4096, err)) != LH_OK)
        return rc;
    if (opts->interval_ms != 0 && (rc = lhi_need_duration("heartbeat interval", opts->interval_ms,
                                                          1, LHI_MAX_LEASE_MS, err)) != LH_OK)
        return rc;
    if (opts->multiplier != 0 &&
        (rc = lhi_need_range("multiplier", opts->multiplier, 1, 1000, err)) != LH_OK)
        return rc;
    if (opts->sessions != NULL &&
        ((rc = lhi_need_range("number of sessions", (int64_t)opts->n_sessions, 0, MAX_SESSIONS,
                              err)) != LH_OK ||
         (rc = identify_leaders(opts->sessions, opts->n_sessions, &leaders, err)) != LH_OK))
        return rc;
    struct lhi_act act = {.verb = LHI_WORKER_REGISTER,
                          .n = leaders ? opts->n_sessions : 0,
                          .worker = {.opts = opts, .id = made, .leaders = leaders}};
    rc = lhi_perform(store, &act, err);
    lhi_free(leaders);
    if (rc == LH_OK)
        lhi_format(id, idlen, "%s", made);
    return rc;
}

int lh_worker_stop(lh_store *store, const char *worker)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    struct lhi_act act = {.verb = LHI_WORKER_STOP, .worker = {.id = worker}};

    if (err == NULL)
        return rc;
    rc = lhi_need_name("worker", worker, err);
    return rc == LH_OK ? lhi_perform(store, &act, err) : rc;
}

/* Mark the workers as dead whose processes are gone, which the store has not recorded yet. */
static int judge(lh_store *store, lh_workers *workers, struct lhi_error *err)
{
    struct lhi_suspects suspects = {0};
    struct lhi_death *deaths = NULL;
    size_t n = 0;
    int rc = lhi_judge_workers(store, &suspects, &deaths, &n, err);

    for (size_t i = 0; i < workers->n && n > 0; i++)
        for (size_t k = 0; k < n; k++)
            if (!deaths[k].late && strcmp(deaths[k].worker, workers->worker[i].id) == 0)
                workers->worker[i].state = "dead";
    lhi_free(deaths);
    lhi_suspects_clear(&suspects);
    return rc;
}

int lh_worker_list(lh_store *store, lh_workers **out)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    if (err == NULL)
        return rc;
    if (lhi_need_out(out, err) != LH_OK)
        return err->status;
    lh_workers *workers = lhi_result_new(sizeof *workers, err);
    if (workers == NULL)
        return err->status;
    struct lhi_act act = {.verb = LHI_WORKER_LIST, .workers = {.out = workers}};
    rc = lhi_read(store, &act, err);
    if (rc == LH_OK)
        rc = judge(store, workers, err);
    if (rc == LH_OK && out != NULL)
        *out = workers;
    else
        lh_workers_free(workers);
    return rc;
}

void lh_workers_free(lh_workers *workers)
{
    if (workers != NULL)
        lhi_result_free(workers, workers->priv, workers->worker);
}

int lh_worker_started(lh_store *store, const char *worker, const lh_ref *started, size_t n)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_name("worker", worker, err)) != LH_OK ||
        (rc = lhi_need_range("number of jobs", (int64_t)n, 0, 100000, err)) != LH_OK)
        return rc;
    if (n > 0 && started == NULL)
        return lhi_fail(err, LH_EMISUSE, "%zu jobs were started, but none is named", n);
    struct lhi_act act = {
        .verb = LHI_WORKER_STARTED, .n = n, .started = {.worker = worker, .started = started}};
    return lhi_perform(store, &act, err);
}

int lh_worker_sessions(lh_store *store, const char *worker, const int64_t *pids, size_t n)
{
    struct lhi_session *leaders = NULL;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_name("worker", worker, err)) != LH_OK ||
        (rc = lhi_need_range("number of sessions", (int64_t)n, 0, MAX_SESSIONS, err)) != LH_OK)
        return rc;
    if (n > 0 && pids == NULL)
        return lhi_fail(err, LH_EMISUSE, "there are %zu sessions, but none is named", n);
    if ((rc = identify_leaders(pids, n, &leaders, err)) != LH_OK)
        return rc;
    struct lhi_act act = {
        .verb = LHI_WORKER_SESSIONS, .n = n, .sessions = {.worker = worker, .leaders = leaders}};
    rc = lhi_perform(store, &act, err);
    lhi_free(leaders);
    return rc;
}

int lh_worker_degraded(lh_store *store, const char *worker, const char *why)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    struct lhi_act act = {.verb = LHI_WORKER_DEGRADED, .degraded = {.worker = worker, .why = why}};

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_name("worker", worker, err)) != LH_OK)
        return rc;
    if (why != NULL && why[0] == '\0')
        return lhi_fail(err, LH_EINVAL,
                        "why worker \"%s\" is degraded is empty: 1 to %d bytes are "
                        "allowed",
                        worker, MAX_WHY);
    if (why != NULL && (rc = lhi_need_text("reason", why, MAX_WHY, err)) != LH_OK)
        return rc;
    return lhi_perform(store, &act, err);
}

/* ---- stale workers ---- */

static int name_jobs(lh_store *store, lh_workers *workers, lh_worker *worker, struct lhi_error *err)
{
    lh_jobs *jobs = NULL;
    lh_job_filter filter = {.worker = worker->id, .limit = LH_REPORT_MOST};
    struct lhi_act act = {.verb = LHI_JOB_LIST, .jobs = {.filter = &filter}};
    int rc = lhi_read_jobs(store, &act, err, &jobs);

    if (rc != LH_OK)
        return rc;
    struct lhi_arena *arena = lhi_arena_of(&workers->priv);
    int64_t *ids = arena ? lhi_arena_alloc(arena, (jobs->n + 1) * sizeof *ids) : NULL;
    for (size_t i = 0; i < jobs->n && ids != NULL; i++)
        ids[i] = jobs->job[i].id;
    worker->running = (int64_t)jobs->n;
    worker->jobs = ids;
    lh_jobs_free(jobs);
    return ids ? LH_OK : lhi_no_memory(err);
}

int lh_workers_stale(lh_store *store, lh_workers **out)
{
    lh_workers *workers = NULL;
    size_t kept = 0;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if (lhi_need_out(out, err) != LH_OK)
        return err->status;
    rc = lh_worker_list(store, &workers);
    if (rc != LH_OK || workers == NULL)
        return rc;
    for (size_t i = 0; i < workers->n && rc == LH_OK; i++) {
        const lh_worker *one = &workers->worker[i];
        if (strcmp(one->state, "dead") != 0 || (one->marked_dead && one->running == 0))
            continue;
        workers->worker[kept] = *one;
        rc = name_jobs(store, workers, &workers->worker[kept++], err);
    }
    workers->n = kept;
    if (rc == LH_OK)
        *out = workers;
    else
        lh_workers_free(workers);
    return rc;
}
