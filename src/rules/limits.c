/* limits.c: the checks of a caller's values, before a store sees them. */
#include "rules/limits.h"

#include <string.h>

enum { MAX_KEY = 256 };

/* ---- single values ---- */

int lhi_need_out(const void *out, struct lhi_error *err)
{
    return out ? LH_OK : lhi_fail(err, LH_EMISUSE, "the output argument is NULL");
}

int lhi_need_wait(int64_t wait_ms, struct lhi_error *err)
{
    if (wait_ms >= -1)
        return LH_OK;
    return lhi_fail(err, LH_EINVAL, "wait must be -1 (forever) or at least 0 ms, got %lld",
                    (long long)wait_ms);
}

int lhi_need_name(const char *what, const char *name, struct lhi_error *err)
{
    if (name == NULL)
        return lhi_fail(err, LH_EINVAL, "%s is missing", what);
    if (lh_name_ok(name))
        return LH_OK;
    return lhi_fail(err, LH_EINVAL,
                    "%s \"%.140s\" is not a name: 1 to 128 of A-Z a-z 0-9 . _ : @ - are allowed",
                    what, name);
}

int lhi_need_range(const char *what, int64_t value, int64_t min, int64_t max, struct lhi_error *err)
{
    if (value >= min && value <= max)
        return LH_OK;
    return lhi_fail(err, LH_EINVAL, "%s is %lld: %lld to %lld is allowed", what, (long long)value,
                    (long long)min, (long long)max);
}

int lhi_need_duration(const char *what, int64_t ms, int64_t min, int64_t max, struct lhi_error *err)
{
    char low[32], high[32];
    if (ms >= min && ms <= max)
        return LH_OK;
    return lhi_fail(err, LH_EINVAL, "%s is %lld ms: %s to %s is allowed", what, (long long)ms,
                    min > 0 ? lh_duration_format(min, low, sizeof low) : "0",
                    lh_duration_format(max, high, sizeof high));
}

int lhi_need_text(const char *what, const char *text, size_t max, struct lhi_error *err)
{
    size_t len = strnlen(text, max + 1);
    if (len > max)
        return lhi_fail(err, LH_ETOOBIG, "%s is too large: at most %zu bytes are allowed", what,
                        max);
    if (!lh_text_ok(text, len))
        return lhi_fail(err, LH_EINVAL, "%s is not UTF-8", what);
    return LH_OK;
}

int lhi_need_run_at(int64_t run_at, struct lhi_error *err)
{
    return lhi_need_range("time to run at", run_at, INT64_C(100000000000), LHI_LAST_MOMENT, err);
}

/* ---- new jobs ---- */

int lhi_check_request(const char *request, struct lhi_error *err)
{
    if (request == NULL)
        return LH_OK;
    if (request[0] == '\0')
        return lhi_fail(err, LH_EINVAL, "request id is empty: 1 to 256 bytes are allowed");
    return lhi_need_text("request id", request, LHI_REQUEST_MAX, err);
}

static int check_new_job(const lh_new_job *job, struct lhi_error *err)
{
    int rc = LHI_NEED_RESERVED(job, err);

    if (rc == LH_OK && job->kind != NULL)
        rc = lhi_need_name("kind", job->kind, err);
    if (rc == LH_OK)
        rc = lhi_need_range("priority", job->priority, -32768, 32767, err);
    if (rc == LH_OK && job->delay_ms != 0 && job->run_at != 0)
        rc = lhi_fail(err, LH_EINVAL, "a job has a delay or a time to run at, not both");
    if (rc == LH_OK)
        rc = lhi_need_duration("delay", job->delay_ms, 0, LHI_MAX_TIME_MS, err);
    if (rc == LH_OK && job->run_at != 0)
        rc = lhi_need_run_at(job->run_at, err);
    if (rc == LH_OK && job->key != NULL && job->key[0] == '\0')
        rc = lhi_fail(err, LH_EINVAL, "key is empty: 1 to 256 bytes are allowed");
    if (rc == LH_OK && job->key != NULL)
        rc = lhi_need_text("key", job->key, MAX_KEY, err);
    if (rc == LH_OK && job->max_attempts != 0 && job->max_attempts != LH_UNLIMITED)
        rc = lhi_need_range("max attempts", job->max_attempts, 1, 1000000, err);
    if (rc == LH_OK && job->lease_ms != 0)
        rc = lhi_need_duration("lease", job->lease_ms, 1, LHI_MAX_LEASE_MS, err);
    if (rc == LH_OK)
        rc = lhi_need_duration("expiry", job->expires_ms, 0, LHI_MAX_TIME_MS, err);
    if (rc == LH_OK)
        rc = lhi_need_duration("backoff", job->backoff_ms, 0, LHI_MAX_TIME_MS, err);
    if (rc == LH_OK)
        rc = lhi_need_duration("backoff cap", job->backoff_cap_ms, 0, LHI_MAX_TIME_MS, err);
    if (rc == LH_OK && job->payload == NULL && job->payload_len > 0)
        rc = lhi_fail(err, LH_EMISUSE, "payload has a length but no bytes");
    if (rc == LH_OK && job->payload_len > LHI_MAX_PAYLOAD)
        rc = lhi_fail(err, LH_ETOOBIG,
                      "payload of %zu bytes is too large: at most %d bytes are allowed",
                      job->payload_len, LHI_MAX_PAYLOAD);
    return rc;
}

int lhi_check_enqueue(const char *queue, const lh_new_job *jobs, size_t n, const lh_enqueued *out,
                      struct lhi_error *err)
{
    int rc = lhi_need_name("queue", queue, err);

    if (rc != LH_OK)
        return rc;
    if (jobs == NULL || out == NULL || n == 0)
        return lhi_fail(err, LH_EMISUSE, "the jobs, or the array for their ids, are missing");
    for (size_t i = 0; rc == LH_OK && i < n; i++)
        rc = check_new_job(&jobs[i], err);
    return rc;
}

/* ---- output of runs ---- */

static int check_stream(const lh_stream *stream, struct lhi_error *err)
{
    if ((stream->head == NULL && stream->head_len > 0) ||
        (stream->tail == NULL && stream->tail_len > 0))
        return lhi_fail(err, LH_EMISUSE, "output has a length but no bytes");
    if (stream->head_len > LHI_MAX_OUTPUT || stream->tail_len > LHI_MAX_OUTPUT ||
        stream->head_len + stream->tail_len > LHI_MAX_OUTPUT)
        return lhi_fail(err, LH_ETOOBIG, "output of %zu bytes is too large: at most %d a stream",
                        stream->head_len + stream->tail_len, LHI_MAX_OUTPUT);
    if (stream->bytes != 0)
        return lhi_need_range("size of output", stream->bytes,
                              (int64_t)(stream->head_len + stream->tail_len), INT64_MAX, err);
    return LH_OK;
}

int lhi_check_output(const lh_output *output, struct lhi_error *err)
{
    int rc = output != NULL ? check_stream(&output->out, err) : LH_OK;
    return rc == LH_OK && output != NULL ? check_stream(&output->err, err) : rc;
}

/* ---- policies ---- */

static int check_limit(const char *what, int64_t value, int64_t min, int64_t max,
                       struct lhi_error *err)
{
    return value == LH_UNLIMITED ? LH_OK : lhi_need_range(what, value, min, max, err);
}

int lhi_check_policy(const char *queue, const char *kind, const lh_policy *p, struct lhi_error *err)
{
    enum { WHOLE_QUEUE = LH_POLICY_RATE | LH_POLICY_CONCURRENCY };
    const struct {
        unsigned bit;
        const char *name;
        int64_t value, min, max;
    } durations[] = {
        {LH_POLICY_LEASE, "lease", p->lease_ms, 1, LHI_MAX_LEASE_MS},
        {LH_POLICY_RECOVERY_BACKOFF, "recovery backoff", p->recovery_backoff_ms, 0,
         LHI_MAX_TIME_MS},
        {LH_POLICY_BACKOFF, "backoff", p->backoff_ms, 0, LHI_MAX_TIME_MS},
        {LH_POLICY_BACKOFF_CAP, "backoff cap", p->backoff_cap_ms, 0, LHI_MAX_TIME_MS},
        {LH_POLICY_TIMEOUT, "timeout", p->timeout_ms, 0, LHI_MAX_TIME_MS},
        {LH_POLICY_RETENTION, "retention", p->retention_ms, 0, LHI_MAX_TIME_MS},
        {LH_POLICY_RETENTION_FAILED, "retention of failed jobs", p->retention_failed_ms, 0,
         LHI_MAX_TIME_MS},
        {LH_POLICY_RETENTION_OUTPUT, "retention of output", p->retention_output_ms, 0,
         LHI_MAX_TIME_MS},
    };
    int rc = LH_OK;

    if ((p->set & ~(unsigned)LH_POLICY_ALL) != 0)
        return lhi_fail(err, LH_EMISUSE, "policy has unknown fields set");
    if ((p->set & WHOLE_QUEUE) != 0 && (queue == NULL || kind != NULL))
        return lhi_fail(err, LH_EINVAL,
                        "rate and concurrency hold for a queue as a whole: name a queue, no kind");
    if ((p->set & LH_POLICY_EXCLUSIVE) != 0 && kind != NULL)
        return lhi_fail(err, LH_EINVAL, "exclusive holds for a queue as a whole: name no kind");
    for (size_t i = 0; i < sizeof durations / sizeof durations[0] && rc == LH_OK; i++)
        if (p->set & durations[i].bit)
            rc = lhi_need_duration(durations[i].name, durations[i].value, durations[i].min,
                                   durations[i].max, err);
    if (rc == LH_OK && (p->set & LH_POLICY_MAX_ATTEMPTS))
        rc = check_limit("max attempts", p->max_attempts, 1, 1000000, err);
    if (rc == LH_OK && (p->set & LH_POLICY_MAX_RECOVERIES))
        rc = check_limit("max recoveries", p->max_recoveries, 0, 1000000, err);
    if (rc == LH_OK && (p->set & LH_POLICY_ACTION))
        rc = lhi_need_range("action", p->action, LH_ACTION_RETRY, LH_ACTION_FAIL, err);
    if (rc == LH_OK && (p->set & LH_POLICY_AUDIT))
        rc = lhi_need_range("audit", p->audit, LH_AUDIT_EXCEPTIONAL, LH_AUDIT_FULL, err);
    if (rc == LH_OK && (p->set & LH_POLICY_MAX_PAYLOAD))
        rc = lhi_need_range("max payload", p->max_payload, 1, LHI_MAX_PAYLOAD, err);
    if (rc == LH_OK && (p->set & LH_POLICY_MAX_OUTPUT))
        rc = lhi_need_range("max output", p->max_output, 0, LHI_MAX_OUTPUT, err);
    if (rc == LH_OK && (p->set & LH_POLICY_RATE))
        rc = lhi_need_range("rate", p->rate_n, 0, 1000000000, err);
    if (rc == LH_OK && (p->set & LH_POLICY_RATE) && p->rate_n > 0)
        rc = lhi_need_duration("rate's period", p->rate_per_ms, 1, LHI_MAX_LEASE_MS, err);
    if (rc == LH_OK && (p->set & LH_POLICY_CONCURRENCY))
        rc = lhi_need_range("concurrency", p->concurrency, 0, 1000000, err);
    return rc;
}
