/*
 * Prints the state of a store in the text format of Prometheus.
 */
#include "metrics.h"

#include <inttypes.h>
#include <stdio.h>

static void head(const char *name, const char *type, const char *help)
{
    printf("# HELP leasehold_%s %s\n# TYPE leasehold_%s %s\n", name, help, name, type);
}

static void gauge(const char *name, const char *help, int64_t value)
{
    head(name, "gauge", help);
    printf("leasehold_%s %" PRId64 "\n", name, value);
}

static void counter(const char *name, const char *help, int64_t value)
{
    head(name, "counter", help);
    printf("leasehold_%s %" PRId64 "\n", name, value);
}

static void gauge_time(const char *name, const char *help, int64_t ms)
{
    head(name, "gauge", help);
    printf("leasehold_%s %" PRId64 ".%03" PRId64 "\n", name, ms / 1000, ms % 1000);
}

/* ---- queues ---------------------------------------------------------------------------------- */

/* The characters allowed in queue names need no escaping in labels. */
static void by_queue(const lh_queues *queues, const char *name, const char *help,
                     int64_t (*of)(const lh_queue *q))
{
    head(name, "gauge", help);
    for (size_t i = 0; i < queues->n; i++)
        printf("leasehold_%s{queue=\"%s\"} %" PRId64 "\n", name, queues->queue[i].queue,
               of(&queues->queue[i]));
}

static int64_t paused_of(const lh_queue *q)
{
    return q->paused;
}

static int64_t hour_enqueued_of(const lh_queue *q)
{
    return q->hour_enqueued;
}

static int64_t hour_completed_of(const lh_queue *q)
{
    return q->hour_completed;
}

static int64_t hour_failed_of(const lh_queue *q)
{
    return q->hour_failed;
}

static int64_t hour_recovered_of(const lh_queue *q)
{
    return q->hour_recovered;
}

static void seconds(const char *metric, const char *queue, int64_t ms)
{
    printf("leasehold_%s{queue=\"%s\"} %" PRId64 ".%03" PRId64 "\n", metric, queue, ms / 1000,
           ms % 1000);
}

static void print_queues(const lh_queues *queues)
{
    head("jobs", "gauge", "Jobs by queue and state.");
    for (size_t i = 0; i < queues->n; i++) {
        const lh_queue *q = &queues->queue[i];
        const struct {
            const char *state;
            int64_t n;
        } states[] = {{"scheduled", q->scheduled}, {"pending", q->pending},
                      {"running", q->running},     {"completed", q->completed},
                      {"failed", q->failed},       {"cancelled", q->cancelled}};
        for (size_t k = 0; k < sizeof states / sizeof states[0]; k++)
            printf("leasehold_jobs{queue=\"%s\",state=\"%s\"} %" PRId64 "\n", q->queue,
                   states[k].state, states[k].n);
    }
    head("oldest_pending_seconds", "gauge",
         "Age of the oldest pending job (lowest id) of a queue that has one.");
    for (size_t i = 0; i < queues->n; i++)
        if (queues->queue[i].oldest_pending_ms >= 0)
            seconds("oldest_pending_seconds", queues->queue[i].queue,
                    queues->queue[i].oldest_pending_ms);
    by_queue(queues, "queue_paused", "1 for a paused queue.", paused_of);
    by_queue(queues, "hour_enqueued", "Jobs enqueued in the last hour.", hour_enqueued_of);
    by_queue(queues, "hour_completed", "Jobs completed in the last hour.", hour_completed_of);
    by_queue(queues, "hour_failed", "Jobs failed in the last hour.", hour_failed_of);
    by_queue(queues, "hour_recovered", "Jobs recovered in the last hour.", hour_recovered_of);
    head("hour_wait_seconds_mean", "gauge",
         "Mean time from enqueue to claim, of jobs claimed in the last hour.");
    for (size_t i = 0; i < queues->n; i++)
        if (queues->queue[i].hour_claimed > 0)
            seconds("hour_wait_seconds_mean", queues->queue[i].queue,
                    queues->queue[i].hour_wait_ms / queues->queue[i].hour_claimed);
    head("hour_run_seconds_mean", "gauge",
         "Mean time from claim to end, of jobs ended in the last hour.");
    for (size_t i = 0; i < queues->n; i++)
        if (queues->queue[i].hour_ended > 0)
            seconds("hour_run_seconds_mean", queues->queue[i].queue,
                    queues->queue[i].hour_run_ms / queues->queue[i].hour_ended);
}

/* ---- recovery -------------------------------------------------------------------------------- */

struct labelled {
    const char *label;
    int64_t n;
};

static void by_label(const char *name, const char *label, const struct labelled *rows, size_t n,
                     const char *help)
{
    head(name, "counter", help);
    for (size_t i = 0; i < n; i++)
        printf("leasehold_%s{%s=\"%s\"} %" PRId64 "\n", name, label, rows[i].label, rows[i].n);
}

static void print_recovery(const lh_store_info *info, const lh_report *last)
{
    const struct labelled runs[] = {
        {"startup", info->recovery.startup}, {"claim", info->recovery.claim},
        {"timer", info->recovery.timer},     {"expiry", info->recovery.expiry},
        {"death", info->recovery.death},     {"manual", info->recovery.manual}};
    const struct labelled jobs[] = {{"retry", info->recovery.retried},
                                    {"pending", info->recovery.made_pending},
                                    {"failed", info->recovery.failed},
                                    {"released", info->recovery.released}};
    enum { RUNS = sizeof runs / sizeof runs[0], JOBS = sizeof jobs / sizeof jobs[0] };
    int64_t all = 0;

    for (size_t i = 0; i < RUNS; i++)
        all += runs[i].n;
    by_label("recoveries_total", "trigger", runs, RUNS,
             "Recoveries that found something or were requested, by trigger.");
    by_label("recovered_jobs_total", "action", jobs, JOBS, "Jobs recovered, by outcome.");
    counter("recovered_leases_total", "Named leases freed by recovery.", info->recovery.leases);
    counter("dead_workers_total", "Workers found dead.", info->recovery.dead_workers);
    counter("recovery_failures_total", "Jobs and steps that could not be recovered.",
            info->recovery.failures);
    head("recovery_duration_seconds", "summary", "Duration of recoveries.");
    printf("leasehold_recovery_duration_seconds_sum %" PRId64 ".%03" PRId64 "\n",
           info->recovery.duration_ms / 1000, info->recovery.duration_ms % 1000);
    printf("leasehold_recovery_duration_seconds_count %" PRId64 "\n", all);
    if (last != NULL)
        gauge_time("last_recovery_timestamp_seconds", "Time of the last recovery.",
                   last->started_at);
    if (info->next_due_at != 0)
        gauge_time("next_due_timestamp_seconds", "Time when the next lease expires or job is due.",
                   info->next_due_at);
}

/* ---- workers and the store ------------------------------------------------------------------- */

static void print_store(const lh_store_info *info)
{
    head("workers", "gauge", "Workers by state.");
    printf("leasehold_workers{state=\"alive\"} %" PRId64 "\n", info->workers_alive);
    printf("leasehold_workers{state=\"late\"} %" PRId64 "\n", info->workers_late);
    printf("leasehold_workers{state=\"dead\"} %" PRId64 "\n", info->workers_dead);
    gauge("stale_jobs", "Running jobs whose lease has expired.", info->stale_jobs);
    gauge("stale_leases", "Named leases that are held but expired.", info->stale_leases);
    gauge("store_bytes", "Size of the database.", info->file_bytes);
    if (info->wal_bytes >= 0)
        gauge("store_wal_bytes", "Size of the write-ahead log.", info->wal_bytes);
    if (info->free_bytes >= 0)
        gauge("store_free_bytes", "Free space on the device.", info->free_bytes);
    gauge("store_clock_skew_ms", "Difference between wall clock and elapsed time.",
          info->clock_skew_ms);
    gauge("store_degraded", "1 while the store is degraded.", info->degraded[0] != '\0');
    counter("store_changes_total", "Number of transactions.", info->changes);
    head("info", "gauge", "Version of the program.");
    printf("leasehold_info{version=\"%s\",engine=\"%s\"} 1\n", lh_version(), lh_engine_version());
}

void metrics_print(const lh_queues *queues, const lh_store_info *info, const lh_report *last)
{
    print_queues(queues);
    print_store(info);
    print_recovery(info, last);
}
