/*
 * trace.c: prints every operation of a store, for LEASEHOLD_TRACE=store.
 *
 * One line per operation on standard error: its name, its arguments, its outcome, and the time that
 * its transaction took. Payloads, results and connection strings are not printed.
 */
#include "core/core.h"

#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LINE = 640 };

static const char *const names[LHI_VERBS] = {
    [LHI_ENQUEUE] = "enqueue",
    [LHI_CLAIM] = "claim",
    [LHI_HEARTBEAT] = "heartbeat",
    [LHI_COMPLETE] = "complete",
    [LHI_FAIL] = "fail",
    [LHI_RELEASE] = "release",
    [LHI_OUTPUT] = "output",
    [LHI_RELEASE_WORKER] = "release_worker",
    [LHI_CANCEL] = "cancel",
    [LHI_RETRY] = "retry",
    [LHI_DELETE] = "delete",
    [LHI_RESCHEDULE] = "reschedule",
    [LHI_QUEUE_PAUSE] = "queue_pause",
    [LHI_QUEUE_PURGE] = "queue_purge",
    [LHI_QUEUE_DELETE] = "queue_delete",
    [LHI_POLICY_SET] = "policy_set",
    [LHI_SCOPE_SET] = "scope_set",
    [LHI_SCHEDULE_SET] = "schedule_set",
    [LHI_SCHEDULE_REMOVE] = "schedule_remove",
    [LHI_LEASE_ACT] = "lease",
    [LHI_WORKER_REGISTER] = "worker_register",
    [LHI_WORKER_HEARTBEAT] = "worker_heartbeat",
    [LHI_WORKER_STOP] = "worker_stop",
    [LHI_WORKER_STARTED] = "worker_started",
    [LHI_WORKER_SESSIONS] = "worker_sessions",
    [LHI_WORKER_DEGRADED] = "worker_degraded",
    [LHI_RECOVER] = "recover",
    [LHI_MAINTAIN] = "maintain",
    [LHI_PRUNE] = "prune",
    [LHI_RECOUNT] = "recount",
    [LHI_MOVE] = "move",
    [LHI_JOB_GET] = "job_get",
    [LHI_JOB_LIST] = "job_list",
    [LHI_QUEUE_LIST] = "queue_list",
    [LHI_POLICY_LIST] = "policy_list",
    [LHI_SCHEDULE_LIST] = "schedule_list",
    [LHI_LEASE_LIST] = "lease_list",
    [LHI_WORKER_LIST] = "worker_list",
    [LHI_EVENT_LIST] = "event_list",
    [LHI_OUTPUT_LIST] = "output_list",
    [LHI_WORKER_JUDGE] = "worker_judge",
    [LHI_STATS] = "stats",
    [LHI_STALE] = "stale",
    [LHI_REPORT_GET] = "report_get",
    [LHI_REPORT_LIST] = "report_list",
    [LHI_POLL] = "poll",
    [LHI_RETRIES] = "retries",
    [LHI_CHECK] = "check",
    [LHI_INTEGRITY] = "integrity",
    [LHI_BACKUP] = "backup",
    [LHI_DROP_SQL] = "drop_sql",
    [LHI_MOVE_LOOK] = "move_look",
    [LHI_MOVE_READ] = "move_read",
};

/* A line that is put together piece by piece, and cut when it is full. */
struct line {
    char text[LINE];
    size_t len;
};

static void add(struct line *line, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void add(struct line *line, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(line->text + line->len, LINE - line->len, fmt, ap);
    va_end(ap);
    if (n > 0)
        line->len = (size_t)n < LINE - line->len ? line->len + (size_t)n : LINE - 1;
}

static void add_text(struct line *line, const char *name, const char *value)
{
    if (value != NULL)
        add(line, " %s=%.128s", name, value);
}

static void add_number(struct line *line, const char *name, int64_t value)
{
    if (value != 0)
        add(line, " %s=%lld", name, (long long)value);
}

static void add_claim(struct line *line, const lh_claim_opts *opts)
{
    for (size_t i = 0; opts != NULL && i < opts->n_queues; i++)
        add(line, "%s%.128s", i == 0 ? " queues=" : ",", opts->queues[i]);
    for (size_t i = 0; opts != NULL && i < opts->n_kinds; i++)
        add(line, "%s%.128s", i == 0 ? " kinds=" : ",", opts->kinds[i]);
    if (opts != NULL)
        add_text(line, "worker", opts->worker);
}

/* The ids of the jobs that an act names. */
static int64_t named_job(const struct lhi_act *act, size_t i)
{
    switch (act->verb) {
    case LHI_HEARTBEAT:
    case LHI_WORKER_HEARTBEAT:
        return act->beat.beats[i].job;
    case LHI_COMPLETE:
        return act->done[i].job;
    case LHI_FAIL:
        return act->failures[i].job;
    case LHI_OUTPUT:
        return act->outputs[i].job;
    case LHI_RELEASE:
        return act->release.refs[i].job;
    case LHI_RELEASE_WORKER:
        return act->release.ids[i];
    case LHI_WORKER_STARTED:
        return act->started.started[i].job;
    case LHI_CANCEL:
    case LHI_RETRY:
    case LHI_DELETE:
    case LHI_RESCHEDULE:
        return act->ids.ids[i];
    case LHI_RECOVER:
        return act->recover.ids[i];
    default:
        return 0;
    }
}

static void add_jobs(struct line *line, const struct lhi_act *act)
{
    for (size_t i = 0; i < act->n && act->verb != LHI_ENQUEUE && act->verb != LHI_WORKER_SESSIONS;
         i++) {
        if (i == 16) {
            add(line, ",... (%zu)", act->n);
            break;
        }
        add(line, "%s%lld", i == 0 ? " jobs=" : ",", (long long)named_job(act, i));
    }
}

static void add_write_arguments(struct line *line, const struct lhi_act *act)
{
    switch (act->verb) {
    case LHI_ENQUEUE:
        add(line, " queue=%s n=%zu", act->enqueue.queue, act->n);
        add_text(line, "request", act->enqueue.request);
        break;
    case LHI_CLAIM:
        add_claim(line, act->claim.opts);
        add_number(line, "n", act->claim.opts->n > 0 ? (int64_t)act->claim.opts->n : 1);
        break;
    case LHI_WORKER_HEARTBEAT:
        add_text(line, "worker", act->beat.worker);
        break;
    case LHI_RELEASE_WORKER:
        add_text(line, "worker", act->release.worker);
        break;
    case LHI_QUEUE_PAUSE:
    case LHI_QUEUE_PURGE:
    case LHI_QUEUE_DELETE:
        add_text(line, "queue", act->queue.queue);
        break;
    case LHI_POLICY_SET:
        add_text(line, "queue", act->policy.queue);
        add_text(line, "kind", act->policy.kind);
        break;
    case LHI_SCOPE_SET:
        add_text(line, "scope", act->scope.scope);
        break;
    case LHI_SCHEDULE_SET:
        add_text(line, "name", act->schedule->name);
        break;
    case LHI_SCHEDULE_REMOVE:
        add_text(line, "name", act->schedule_name);
        break;
    case LHI_LEASE_ACT: {
        static const char *const what[] = {"acquire", "extend", "release", "complete"};
        add(line, " %s %s/%s", what[act->lease.verb], act->lease.scope, act->lease.name);
        add_text(line, "owner", act->lease.owner);
        break;
    }
    case LHI_WORKER_REGISTER:
    case LHI_WORKER_STOP:
        add_text(line, "worker", act->worker.id);
        break;
    case LHI_WORKER_STARTED:
        add_text(line, "worker", act->started.worker);
        break;
    case LHI_WORKER_SESSIONS:
        add_text(line, "worker", act->sessions.worker);
        add_number(line, "n", (int64_t)act->n);
        break;
    case LHI_WORKER_DEGRADED:
        add_text(line, "worker", act->degraded.worker);
        break;
    case LHI_RECOVER:
        add_number(line, "dead", (int64_t)act->recover.n_deaths);
        break;
    case LHI_MOVE: {
        static const char *const steps[] = {"close", "prepare", "put", "leave", "finish", "reopen"};
        add(line, " %s", steps[act->move.step]);
        if (act->move.step == LHI_MOVE_PUT)
            add_text(line, "table", lhi_moved[act->move.table].name);
        break;
    }
    default:
        break;
    }
    add_jobs(line, act);
}

static void add_read_arguments(struct line *line, const struct lhi_act *act)
{
    switch (act->verb) {
    case LHI_JOB_GET:
        add_number(line, "job", act->jobs.id);
        break;
    case LHI_JOB_LIST:
        add_text(line, "queue", act->jobs.filter->queue);
        add_number(line, "after", act->jobs.filter->after);
        break;
    case LHI_LEASE_LIST:
        add_text(line, "scope", act->leases.scope);
        add_text(line, "name", act->leases.name);
        break;
    case LHI_EVENT_LIST:
        add_text(line, "queue", act->events.filter->queue);
        add_text(line, "type", act->events.filter->type);
        add_number(line, "after", act->events.filter->after);
        break;
    case LHI_OUTPUT_LIST:
        add_number(line, "job", act->output_list.filter->job);
        break;
    case LHI_REPORT_GET:
        add_number(line, "report", act->report.id);
        break;
    case LHI_POLL:
        add_claim(line, act->poll.opts);
        break;
    case LHI_RETRIES:
        add_claim(line, act->retries.opts);
        break;
    case LHI_MOVE_READ:
        add_text(line, "table", lhi_moved[act->rows.table].name);
        break;
    default:
        break;
    }
}

/* What came out of an act that succeeded. */
static void add_result(struct line *line, const struct lhi_act *act)
{
    switch (act->verb) {
    case LHI_ENQUEUE:
        add(line, ", job %lld", (long long)act->enqueue.out[0].id);
        break;
    case LHI_CLAIM:
        for (size_t i = 0; i < act->claim.out->n && i < 16; i++)
            add(line, "%s%lld", i == 0 ? ", jobs " : ",", (long long)act->claim.out->job[i].id);
        break;
    case LHI_POLL:
        add(line, ", %s", act->poll.found ? "found" : "nothing");
        if (act->poll.next_ms >= 0)
            add(line, ", next in %lld ms", (long long)act->poll.next_ms);
        break;
    case LHI_RECOVER:
        add(line, ", %zu done", act->recover.done);
        break;
    case LHI_STALE:
        add(line, ", %zu jobs", act->stale.n);
        break;
    case LHI_WORKER_JUDGE:
        add(line, ", %zu workers", act->suspects->n);
        break;
    default:
        break;
    }
}

/* The outcome of an act on a list is that of its first item that failed. */
static int outcome_of(const struct lhi_act *act, int whole)
{
    int outcome = whole < 0 ? whole : act->err.status;

    for (size_t i = 0; i < act->n && outcome >= 0 && act->status != NULL; i++)
        if (act->status[i] < 0)
            outcome = act->status[i];
    return outcome < 0 ? outcome : whole;
}

static void print_act(const struct lhi_act *act, int whole, size_t i, size_t n, int64_t us)
{
    struct line line = {.len = 0};
    int outcome = outcome_of(act, whole);

    add(&line, "leasehold: store: %s", names[act->verb]);
    if (act->verb < LHI_WRITES)
        add_write_arguments(&line, act);
    else
        add_read_arguments(&line, act);
    add(&line, " -> %s", lh_status_code(outcome));
    if (outcome >= 0)
        add_result(&line, act);
    add(&line, ", %lld.%03lld ms", (long long)(us / 1000), (long long)(us % 1000));
    if (n > 1)
        add(&line, " (%zu of %zu)", i + 1, n);
    /* One call, so that lines of several threads do not mix. */
    (void)fprintf(stderr, "%s\n", line.text);
}

bool lhi_trace_wanted(void)
{
    const char *wanted = getenv("LEASEHOLD_TRACE");
    return wanted != NULL && strcmp(wanted, "store") == 0;
}

void lhi_trace(const struct lhi_act *acts, size_t n, int whole, int64_t began_us)
{
    int64_t us = lhi_mono_us() - began_us;

    for (size_t i = 0; i < n; i++)
        print_act(&acts[i], whole, i, n, us);
}
