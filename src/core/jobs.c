/* jobs.c: the public calls on jobs: checking the arguments, asking the store. Claims are in claim.c. */
#include "core/core.h"

#include "base/checksum.h"
#include "base/sys.h"

#include <string.h>

enum {
    MAX_LIST = 10000,
    MAX_CHECKPOINT = 64 << 10,
    MAX_ERROR = 64 << 10,
    MAX_STAGE = 256,
};

/* ---- enqueue ---- */

/* After an unknown outcome, make a request id that identifies the jobs by their ids and the first payload. */
static void make_request(const struct lhi_act *act, struct lhi_error *err)
{
    const lh_new_job *first = &act->enqueue.jobs[0];

    if (act->enqueue.request != NULL)
        lhi_format(err->request, sizeof err->request, "%s", act->enqueue.request);
    else if (act->enqueue.created_at != 0)
        lhi_format(err->request, sizeof err->request, "lh:%lld:%zu:%lld:%llx",
                   (long long)act->enqueue.out[0].id, act->n, (long long)act->enqueue.created_at,
                   (unsigned long long)lhi_checksum(first->payload,
                                                    first->payload ? first->payload_len : 0));
}

static bool has_key(const lh_new_job *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (jobs[i].key != NULL)
            return true;
    return false;
}

int lh_enqueue(lh_store *store, const char *queue, const lh_new_job *jobs, size_t n,
               const char *request, lh_enqueued *out)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = lhi_check_enqueue(queue, jobs, n, out, err)) != LH_OK ||
        (rc = lhi_check_request(request, err)) != LH_OK)
        return rc;
    lh_enqueued *answer = lhi_calloc(n, sizeof *answer);
    if (answer == NULL)
        return lhi_no_memory(err);
    char own[40];
    if (request == NULL && n > 1 && has_key(jobs, n)) {
        /* A job that was found by its key has no new id, so ids would not identify the call. */
        lhi_uuid(own);
        request = own;
    }
    struct lhi_act act = {
        .verb = LHI_ENQUEUE,
        .n = n,
        .enqueue = {.queue = queue, .jobs = jobs, .request = request, .out = answer}};
    rc = lhi_perform(store, &act, err);
    if (rc == LH_OK)
        memcpy(out, answer, n * sizeof *out);
    else if (rc == LH_EUNKNOWN)
        make_request(&act, err);
    lhi_free(answer);
    return rc;
}

/* ---- calls of the holder ---- */

/* Perform acts; the last one is the call on a list, with its statuses and the jobs afterwards. */
static int perform_with(lh_store *store, struct lhi_act *acts, size_t n, int *status,
                        lh_jobs **after, struct lhi_error *err)
{
    struct lhi_act *act = &acts[n - 1]; /* the acts before it share its transaction */
    lh_jobs *jobs = NULL;
    int rc = lhi_statuses(act, err);

    if (rc == LH_OK && after != NULL && (jobs = lhi_result_new(sizeof *jobs, err)) == NULL)
        rc = err->status;
    act->after = jobs;
    int whole = rc == LH_OK ? lhi_perform_all(store, acts, n, err) : rc;
    rc = lhi_list_outcome(whole, act, status, err);
    /* Return the jobs that exist even if an item failed. */
    if (jobs != NULL && whole >= 0 && (rc == LH_OK || jobs->n > 0))
        *after = jobs;
    else
        lh_jobs_free(jobs);
    lhi_free(act->status);
    return rc;
}

static int perform_list(lh_store *store, struct lhi_act *act, int *status, lh_jobs **after,
                        struct lhi_error *err)
{
    return perform_with(store, act, 1, status, after, err);
}

/* Write outcomes together with the output of the runs, in one transaction. If the output is refused, the
 * outcome is written all the same. */
static int perform_end(lh_store *store, const struct lhi_act *end, struct lhi_written *written,
                       size_t n_written, int *status, lh_jobs **after, struct lhi_error *err)
{
    struct lhi_act acts[2] = {{.verb = LHI_OUTPUT, .n = n_written, .outputs = written}, *end};
    int rc = n_written > 0 ? lhi_statuses(&acts[0], err) : LH_OK;

    if (rc == LH_OK)
        rc = n_written > 0 ? perform_with(store, acts, 2, status, after, err)
                           : perform_with(store, &acts[1], 1, status, after, err);
    lhi_free(acts[0].status);
    lhi_free(written);
    return rc;
}

int lhi_check_refs(size_t n, const void *items, struct lhi_error *err)
{
    if (n == 0 || items == NULL)
        return lhi_fail(err, LH_EMISUSE, "no job was named");
    return LH_OK;
}

int lhi_check_ref(int64_t job, int64_t token, struct lhi_error *err)
{
    if (job <= 0)
        return lhi_fail(err, LH_EINVAL, "job %lld is not an id: ids start at 1", (long long)job);
    if (token <= 0)
        return lhi_fail(err, LH_EINVAL, "token %lld is not a token: tokens start at 1",
                        (long long)token);
    return LH_OK;
}

static int check_beats(const lh_beat *beats, size_t n, struct lhi_error *err)
{
    int rc = LH_OK;
    for (size_t i = 0; i < n && rc == LH_OK; i++) {
        const lh_beat *b = &beats[i];
        rc = LHI_NEED_RESERVED(b, err);
        if (rc == LH_OK)
            rc = lhi_check_ref(b->job, b->token, err);
        if (rc == LH_OK && b->lease_ms != 0)
            rc = lhi_need_duration("lease", b->lease_ms, 1, LHI_MAX_LEASE_MS, err);
        if (rc == LH_OK && b->has_progress)
            rc = lhi_need_range("progress", b->progress, 0, 100, err);
        if (rc == LH_OK && b->stage != NULL)
            rc = lhi_need_text("stage", b->stage, MAX_STAGE, err);
        if (rc == LH_OK && b->checkpoint != NULL)
            rc = lhi_need_text("checkpoint", b->checkpoint, MAX_CHECKPOINT, err);
    }
    return rc;
}

int lh_heartbeat(lh_store *store, const lh_beat *beats, size_t n, int *status, lh_jobs **after)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    struct lhi_act act = {.verb = LHI_HEARTBEAT, .n = n, .beat = {.beats = beats}};

    if (err == NULL)
        return rc;
    if ((rc = lhi_check_refs(n, beats, err)) != LH_OK || (rc = check_beats(beats, n, err)) != LH_OK)
        return rc;
    return perform_list(store, &act, status, after, err);
}

int lhi_check_done(const lh_done *done, size_t n, struct lhi_error *err)
{
    int rc = LH_OK;
    for (size_t i = 0; i < n && rc == LH_OK; i++) {
        rc = LHI_NEED_RESERVED(&done[i], err);
        if (rc == LH_OK)
            rc = lhi_check_ref(done[i].job, done[i].token, err);
        if (rc == LH_OK && done[i].result == NULL && done[i].result_len > 0)
            rc = lhi_fail(err, LH_EMISUSE, "result has a length but no bytes");
        if (rc == LH_OK && done[i].result_len > LHI_MAX_PAYLOAD)
            rc = lhi_fail(err, LH_ETOOBIG, "result of %zu bytes is too large: at most %d",
                          done[i].result_len, LHI_MAX_PAYLOAD);
        if (rc == LH_OK)
            rc = lhi_check_output(done[i].output, err);
    }
    return rc;
}

int lhi_written_by(const lh_done *done, size_t n, struct lhi_written **out, size_t *n_out,
                   struct lhi_error *err)
{
    struct lhi_written *written = NULL;
    size_t used = 0;

    for (size_t i = 0; i < n; i++) {
        bool cut = done[i].result_bytes > (int64_t)done[i].result_len;
        if (done[i].output == NULL && !cut)
            continue;
        if (written == NULL && (written = lhi_calloc(n, sizeof *written)) == NULL)
            return lhi_no_memory(err);
        written[used++] = (struct lhi_written){done[i].job, done[i].token, done[i].output,
                                               cut ? done[i].result_bytes : 0};
    }
    *out = written;
    *n_out = used;
    return LH_OK;
}

int lh_complete(lh_store *store, const lh_done *done, size_t n, int *status, lh_jobs **after)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    struct lhi_act act = {.verb = LHI_COMPLETE, .n = n, .done = done};
    struct lhi_written *written = NULL;
    size_t n_written = 0;

    if (err == NULL)
        return rc;
    if ((rc = lhi_check_refs(n, done, err)) != LH_OK ||
        (rc = lhi_check_done(done, n, err)) != LH_OK ||
        (rc = lhi_written_by(done, n, &written, &n_written, err)) != LH_OK)
        return rc;
    return perform_end(store, &act, written, n_written, status, after, err);
}

static int check_failures(const lh_failure *failures, size_t n, struct lhi_error *err)
{
    int rc = lhi_check_refs(n, failures, err);

    for (size_t i = 0; i < n && rc == LH_OK; i++) {
        const lh_failure *f = &failures[i];
        rc = LHI_NEED_RESERVED(f, err);
        if (rc == LH_OK)
            rc = lhi_check_ref(f->job, f->token, err);
        if (rc == LH_OK && f->error == NULL)
            rc = lhi_fail(err, LH_EMISUSE, "a failure needs an error text");
        if (rc == LH_OK)
            rc = lhi_need_text("error", f->error, MAX_ERROR, err);
        if (rc == LH_OK && f->retry_in_ms != LH_NOW)
            rc = lhi_need_duration("retry delay", f->retry_in_ms, 0, LHI_MAX_TIME_MS, err);
        if (rc == LH_OK)
            rc = lhi_check_output(f->output, err);
    }
    return rc;
}

int lh_fail(lh_store *store, const lh_failure *failures, size_t n, int *status, lh_jobs **after)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    struct lhi_act act = {.verb = LHI_FAIL, .n = n, .failures = failures};
    struct lhi_written *written = NULL;
    size_t n_written = 0;

    if (err == NULL)
        return rc;
    if ((rc = check_failures(failures, n, err)) != LH_OK)
        return rc;
    for (size_t i = 0; i < n; i++) {
        if (failures[i].output == NULL)
            continue;
        if (written == NULL && (written = lhi_calloc(n, sizeof *written)) == NULL)
            return lhi_no_memory(err);
        written[n_written++] =
            (struct lhi_written){failures[i].job, failures[i].token, failures[i].output, 0};
    }
    return perform_end(store, &act, written, n_written, status, after, err);
}

int lh_release(lh_store *store, const lh_ref *refs, size_t n, int64_t delay_ms, int *status,
               lh_jobs **after)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    struct lhi_act act = {
        .verb = LHI_RELEASE, .n = n, .release = {.refs = refs, .delay_ms = delay_ms}};

    if (err == NULL)
        return rc;
    if (n == 0)
        return LH_OK; /* there is nothing to release */
    rc = lhi_check_refs(n, refs, err);
    for (size_t i = 0; i < n && rc == LH_OK; i++)
        rc = lhi_check_ref(refs[i].job, refs[i].token, err);
    if (rc == LH_OK && delay_ms != LH_BACKOFF)
        rc = lhi_need_duration("delay", delay_ms, 0, LHI_MAX_TIME_MS, err);
    return rc == LH_OK ? perform_list(store, &act, status, after, err) : rc;
}

int lh_release_worker(lh_store *store, const char *worker, const int64_t *ids, size_t n,
                      int64_t delay_ms, bool now, int *status, int64_t *released)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    struct lhi_act act = {
        .verb = LHI_RELEASE_WORKER,
        .n = ids ? n : 0,
        .release = {.worker = worker, .ids = ids, .delay_ms = delay_ms, .now = now}};

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_name("worker", worker, err)) != LH_OK ||
        (rc = lhi_need_duration("delay", delay_ms, 0, LHI_MAX_TIME_MS, err)) != LH_OK)
        return rc;
    if ((rc = lhi_statuses(&act, err)) != LH_OK)
        return rc;
    int whole = lhi_perform_all(store, &act, 1, err);
    rc = lhi_list_outcome(whole, &act, status, err);
    lhi_free(act.status);
    if (released != NULL && whole >= 0)
        *released = act.release.released;
    return rc;
}

/* ---- calls of an operator ---- */

static int perform_ids(lh_store *store, struct lhi_act *act, int *status, lh_jobs **after)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    rc = lhi_check_refs(act->n, act->ids.ids, err);
    for (size_t i = 0; i < act->n && rc == LH_OK; i++)
        rc = lhi_check_ref(act->ids.ids[i], 1, err);
    return rc == LH_OK ? perform_list(store, act, status, after, err) : rc;
}

int lh_cancel(lh_store *store, const int64_t *ids, size_t n, int *status, lh_jobs **after)
{
    struct lhi_act act = {.verb = LHI_CANCEL, .n = n, .ids = {.ids = ids}};
    return perform_ids(store, &act, status, after);
}

int lh_retry(lh_store *store, const int64_t *ids, size_t n, unsigned how, int *status,
             lh_jobs **after)
{
    struct lhi_act act = {.verb = LHI_RETRY, .n = n, .ids = {.ids = ids, .how = how}};
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((how & ~(unsigned)(LH_RETRY_FORCE | LH_RETRY_NOW)) != 0)
        return lhi_fail(err, LH_EMISUSE, "unknown retry flags: %#x", how);
    return perform_ids(store, &act, status, after);
}

int lh_delete(lh_store *store, const int64_t *ids, size_t n, int *status)
{
    struct lhi_act act = {.verb = LHI_DELETE, .n = n, .ids = {.ids = ids}};
    return perform_ids(store, &act, status, NULL);
}

int lh_reschedule(lh_store *store, int64_t id, int64_t delay_ms, int64_t run_at, lh_jobs **after)
{
    struct lhi_act act = {.verb = LHI_RESCHEDULE,
                          .n = 1,
                          .ids = {.ids = &id, .delay_ms = delay_ms, .run_at = run_at}};
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if (delay_ms != 0 && run_at != 0)
        return lhi_fail(err, LH_EINVAL, "a job has a delay or a time to run at, not both");
    if ((rc = lhi_need_duration("delay", delay_ms, 0, LHI_MAX_TIME_MS, err)) != LH_OK)
        return rc;
    if (run_at != 0 && (rc = lhi_need_run_at(run_at, err)) != LH_OK)
        return rc;
    return perform_ids(store, &act, NULL, after);
}

/* ---- reading ---- */

void lh_jobs_free(lh_jobs *jobs)
{
    if (jobs != NULL)
        lhi_result_free(jobs, jobs->priv, jobs->job);
}

int lhi_read_jobs(lh_store *store, struct lhi_act *act, struct lhi_error *err, lh_jobs **out)
{
    if (lhi_need_out(out, err) != LH_OK)
        return err->status;
    lh_jobs *jobs = lhi_result_new(sizeof *jobs, err);
    if (jobs == NULL)
        return err->status;
    act->jobs.out = jobs;
    int rc = lhi_read(store, act, err);
    if (rc == LH_OK)
        *out = jobs;
    else
        lh_jobs_free(jobs);
    return rc;
}

int lh_job_get(lh_store *store, int64_t id, lh_jobs **out)
{
    struct lhi_act act = {.verb = LHI_JOB_GET, .jobs = {.id = id}};
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    return err ? lhi_read_jobs(store, &act, err, out) : rc;
}

int lh_job_list(lh_store *store, const lh_job_filter *filter, lh_jobs **out)
{
    static const lh_job_filter any;
    struct lhi_act act = {.verb = LHI_JOB_LIST, .jobs = {.filter = filter ? filter : &any}};
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    const lh_job_filter *f = act.jobs.filter;
    if ((rc = LHI_NEED_RESERVED(f, err)) != LH_OK ||
        (f->queue != NULL && (rc = lhi_need_name("queue", f->queue, err)) != LH_OK) ||
        (f->kind != NULL && (rc = lhi_need_name("kind", f->kind, err)) != LH_OK) ||
        (f->worker != NULL && (rc = lhi_need_name("worker", f->worker, err)) != LH_OK) ||
        (rc = lhi_need_range("state", (int64_t)f->state, 0, LH_CANCELLED, err)) != LH_OK ||
        (rc = lhi_need_range("limit", (int64_t)f->limit, 0, MAX_LIST, err)) != LH_OK)
        return rc;
    return lhi_read_jobs(store, &act, err, out);
}

/* ---- heartbeats of a worker ---- */

int lh_worker_heartbeat(lh_store *store, const char *worker, int64_t interval_ms,
                        const lh_beat *beats, size_t n, int *status)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);
    struct lhi_act act = {.verb = LHI_WORKER_HEARTBEAT,
                          .n = n,
                          .beat = {.beats = beats, .worker = worker, .interval_ms = interval_ms}};

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_name("worker", worker, err)) != LH_OK ||
        (n > 0 && (rc = lhi_check_refs(n, beats, err)) != LH_OK) ||
        (rc = check_beats(beats, n, err)) != LH_OK)
        return rc;
    if (interval_ms != 0 && (rc = lhi_need_duration("heartbeat interval", interval_ms, 1,
                                                    LHI_MAX_LEASE_MS, err)) != LH_OK)
        return rc;
    return perform_list(store, &act, status, NULL, err);
}
