/*
 * Jobs, events, leases, schedules, workers and queues as JSON. Users rely on the order of the keys: a new key
 * is added at the end.
 */
#include "json.h"

#include <inttypes.h>
#include <string.h>

#include "cli/input/policy_keys.h"

void js_attempts(struct js *json, int64_t most)
{
    if (most == LH_UNLIMITED)
        js_text(json, "unlimited");
    else
        js_int_or_null(json, most, 0);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/** Writes bytes in the first of three forms that fits: JSON value, text, base64. */
static void js_bytes(struct js *json, const char *key, const void *bytes, size_t len, bool text)
{
    struct buf form = {0};
    struct buf name = {0};

    if (bytes == NULL) {
        js_key(json, key);
        js_null(json);
        return;
    }
    if (text && js_valid(bytes, len, &form, NULL)) {
        js_key(json, key);
        js_raw(json, form.p, form.n);
    } else if (text) {
        buf_reset(&form);
        buf_add(&form, bytes, len);
        buf_format(&name, "%s_text", key);
        js_key_text(json, name.p, buf_str(&form));
    } else {
        base64_encode(&form, bytes, len);
        buf_format(&name, "%s_base64", key);
        js_key_text(json, name.p, buf_str(&form));
    }
    buf_clear(&form);
    buf_clear(&name);
}

static void js_job_fields(struct js *json, const lh_job *job)
{
    js_key_int(json, "id", job->id);
    js_key_text(json, "queue", job->queue);
    js_key_text(json, "kind", job->kind);
    js_key_text(json, "state", lh_state_name(job->state));
    js_key_bool(json, "expired", job->expired);
    js_key_int(json, "priority", job->priority);
    js_bytes(json, "payload", job->payload, job->payload_len, job->payload_is_text);
    js_key_text(json, "key", job->key);
    js_key_int(json, "attempt", job->attempt);
    js_key(json, "max_attempts");
    js_attempts(json, job->max_attempts);
    js_key_int(json, "recoveries", job->recoveries);
    js_key_int(json, "token", job->token);
    js_key_text(json, "worker", job->worker);
    js_key_time(json, "lease_until", job->lease_until);
    js_key_time(json, "run_at", job->run_at);
    js_key_time(json, "created_at", job->created_at);
    js_key_time(json, "started_at", job->started_at);
    js_key_time(json, "finished_at", job->finished_at);
    js_key_time(json, "state_changed_at", job->state_changed_at);
    js_key_time(json, "last_heartbeat_at", job->last_heartbeat_at);
    js_key_text(json, "last_error", job->last_error);
    js_key_text(json, "stage", job->stage);
    js_key(json, "progress");
    js_int_or_null(json, job->progress, -1);
    js_key_value(json, "checkpoint", job->checkpoint);
    js_bytes(json, "result", job->result, job->result_len, job->result_is_text);
    if (job->result_cut > 0)
        js_key_int(json, "result_cut_bytes", job->result_cut);
    js_key(json, "lease_ms");
    js_int_or_null(json, job->lease_ms, 0);
    js_key(json, "remaining_ms");
    if (job->state == LH_RUNNING)
        js_int(json, job->remaining_ms);
    else
        js_null(json);
    js_key_time(json, "expires_at", job->expires_at);
}

void js_job(struct js *json, const lh_job *job, const lh_events *events, bool claimed)
{
    js_open(json, '{');
    js_job_fields(json, job);
    if (claimed) { /* only a claim returns these fields */
        js_key(json, "timeout_ms");
        js_int_or_null(json, job->timeout_ms, 0);
    }
    if (events != NULL) {
        js_key(json, "events");
        js_open(json, '[');
        for (size_t i = 0; i < events->n; i++)
            js_event(json, &events->event[i]);
        js_close(json, ']');
    }
    js_close(json, '}');
}

void js_job_line(const lh_job *job)
{
    struct js json = {0};

    js_job(&json, job, NULL, false);
    js_line(&json);
    js_clear(&json);
}

void js_event(struct js *json, const lh_event *event)
{
    js_open(json, '{');
    js_key_int(json, "id", event->id);
    js_key_time(json, "at", event->at);
    js_key_text(json, "type", event->type);
    js_key(json, "job");
    js_int_or_null(json, event->job, 0);
    js_key_text(json, "queue", event->queue);
    js_key_text(json, "worker", event->worker);
    js_key_text(json, "lease", event->lease);
    js_key_text(json, "from", event->from);
    js_key_text(json, "to", event->to);
    js_key_text(json, "actor", event->actor);
    js_key_text(json, "reason", event->reason);
    js_key(json, "token");
    js_int_or_null(json, event->token, 0);
    js_key_value(json, "data", event->data);
    js_key(json, "attempt");
    js_int_or_null(json, event->attempt, 0);
    js_key(json, "max_attempts");
    js_attempts(json, event->max_attempts);
    js_key_text(json, "action", event->action);
    js_key(json, "report");
    js_int_or_null(json, event->report, 0);
    js_close(json, '}');
}

/* ---- events, leases, schedules, workers, queues ---------------------------------------------- */

void js_lease(struct js *json, const lh_lease *lease)
{
    js_open(json, '{');
    js_key_text(json, "scope", lease->scope);
    js_key_text(json, "name", lease->name);
    js_key_text(json, "owner", lease->owner);
    js_key_int(json, "token", lease->token);
    js_key_time(json, "acquired_at", lease->acquired_at);
    js_key_time(json, "expires_at", lease->expires_at);
    js_key_bool(json, "stale", lease->stale);
    js_key_value(json, "value", lease->value);
    js_key(json, "rows");
    js_int_or_null(json, lease->rows, -1);
    js_key_time(json, "last_completed_at", lease->last_completed_at);
    js_key(json, "remaining_ms");
    if (lease->owner != NULL)
        js_int(json, lease->remaining_ms);
    else
        js_null(json);
    js_close(json, '}');
}

void js_schedule(struct js *json, const lh_schedule *schedule)
{
    static const char *const catch_up[] = {"once", "none", "all"};
    const lh_new_job *job = &schedule->job;

    js_open(json, '{');
    js_key_text(json, "name", schedule->name);
    js_key_text(json, "queue", schedule->queue);
    js_key_text(json, "cron", schedule->cron);
    js_key_text(json, "tz", schedule->zone);
    js_key_text(json, "catch_up", catch_up[schedule->catch_up]);
    js_key_time(json, "next_at", schedule->next_at);
    js_key_time(json, "last_at", schedule->last_at);
    js_key(json, "last_job");
    js_int_or_null(json, schedule->last_job, 0);
    js_key_text(json, "error", schedule->error);
    js_key_text(json, "kind", job->kind);
    js_key_int(json, "priority", job->priority);
    js_bytes(json, "payload", job->payload, job->payload_len,
             lh_text_ok(job->payload, job->payload_len));
    js_key_text(json, "key", job->key);
    js_key(json, "max_attempts");
    js_attempts(json, job->max_attempts);
    js_key(json, "lease_ms");
    js_int_or_null(json, job->lease_ms, 0);
    js_key(json, "expires_ms");
    js_int_or_null(json, job->expires_ms, 0);
    js_key_time(json, "created_at", schedule->created_at);
    js_close(json, '}');
}

void js_worker(struct js *json, const lh_worker *worker, bool asked, const lh_worker *stale)
{
    js_open(json, '{');
    js_key_text(json, "worker", worker->id);
    js_key_text(json, "label", worker->label);
    js_key_text(json, "state", worker->state);
    js_key_text(json, "host", worker->host);
    js_key(json, "pid");
    js_int_or_null(json, worker->pid, 0);
    js_key_text(json, "queues", worker->queues);
    js_key_text(json, "version", worker->version);
    js_key_int(json, "interval_ms", worker->interval_ms);
    js_key_int(json, "multiplier", worker->multiplier);
    js_key_time(json, "registered_at", worker->registered_at);
    js_key_time(json, "last_heartbeat_at", worker->last_heartbeat_at);
    js_key_time(json, "stopped_at", worker->stopped_at);
    js_key_int(json, "silent_ms", worker->silent_ms);
    js_key_int(json, "running", worker->running);
    js_key_int(json, "limit_ms", worker->interval_ms * worker->multiplier);
    js_key_text(json, "degraded", worker->degraded);
    if (asked) {
        js_key_bool(json, "stale", stale != NULL);
        js_key(json, "stale_jobs");
        js_open(json, '[');
        for (int64_t i = 0; stale != NULL && i < stale->running; i++)
            js_int(json, stale->jobs[i]);
        js_close(json, ']');
    }
    js_close(json, '}');
}

void js_queue(struct js *json, const lh_queue *queue, bool all)
{
    js_open(json, '{');
    js_key_text(json, "queue", queue->queue);
    js_key_bool(json, "paused", queue->paused);
    js_key_int(json, "scheduled", queue->scheduled);
    js_key_int(json, "pending", queue->pending);
    js_key_int(json, "running", queue->running);
    js_key_int(json, "completed", queue->completed);
    js_key_int(json, "failed", queue->failed);
    js_key_int(json, "cancelled", queue->cancelled);
    js_key(json, "oldest_pending_ms");
    js_int_or_null(json, queue->oldest_pending_ms, -1);
    if (all) {
        js_key(json, "rate_n");
        js_int_or_null(json, queue->rate_n, 0);
        js_key(json, "rate_per_ms");
        js_int_or_null(json, queue->rate_per_ms, 0);
        js_key(json, "concurrency");
        js_int_or_null(json, queue->concurrency, 0);
        js_key(json, "last_hour");
        js_open(json, '{');
        js_key_int(json, "enqueued", queue->hour_enqueued);
        js_key_int(json, "claimed", queue->hour_claimed);
        js_key_int(json, "completed", queue->hour_completed);
        js_key_int(json, "failed", queue->hour_failed);
        js_key_int(json, "recovered", queue->hour_recovered);
        js_key_int(json, "wait_ms", queue->hour_wait_ms);
        js_key_int(json, "run_ms", queue->hour_run_ms);
        js_key_int(json, "ended", queue->hour_ended);
        js_close(json, '}');
    }
    js_close(json, '}');
}

void js_policy(struct js *json, const lh_policy *policy)
{
    char text[64];
    char name[64];

    for (size_t i = 0; i < policy_key_count; i++) {
        const struct policy_key *key = &policy_keys[i];
        struct value value;
        policy_key_get(key, policy, &value);
        if (!value.given)
            continue;
        snprintf(name, sizeof name, "%s%s", key->json,
                 key->spec.kind == VALUE_DURATION ? "_ms" : "");
        if (key->spec.kind == VALUE_RATE) {
            js_key(json, "rate_n");
            js_int_or_null(json, value.num, 0);
            js_key(json, "rate_per_ms");
            js_int_or_null(json, value.num2, 0);
            continue;
        }
        js_key(json, name);
        if (key->spec.kind == VALUE_SWITCH)
            js_bool(json, value.num != 0);
        else if (key->spec.kind == VALUE_CHOICE || value.num == LH_UNLIMITED)
            js_text(json, value_format(&key->spec, &value, text, sizeof text));
        else if (key->spec.word != NULL && value.num == key->spec.word_value)
            js_null(json);
        else
            js_int(json, value.num);
    }
}
