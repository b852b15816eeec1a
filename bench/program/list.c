#include <inttypes.h>
#include <string.h>

#include "list.h"

const struct measure bench_measures[BENCH_NAMES] = {
    {.name = "enqueue",
     .what = "one durable job at a time",
     .fn = bench_enqueue,
     .vary = offsetof(struct bench, processes),
     .unit = "at once",
     .values = {1, 4, 16},
     .batch = 1,
     .seconds = 2},
    {.name = "bulk",
     .what = "enqueue of many in one call",
     .fn = bench_bulk,
     .vary = offsetof(struct bench, batch),
     .unit = "a call",
     .values = {1000},
     .jobs = {100000}},
    {.name = "drain",
     .what = "claim and complete, by one worker",
     .fn = bench_drain,
     .vary = offsetof(struct bench, batch),
     .unit = "a batch",
     .values = {1, 10, 100},
     .jobs = {3000, 20000, 100000}},
    {.name = "cycle",
     .what = "enqueue, claim and complete",
     .fn = bench_cycle,
     .vary = offsetof(struct bench, batch),
     .unit = "a batch",
     .values = {1, 100},
     .jobs = {2000, 50000}},
    {.name = "wake",
     .what = "from an enqueue to its claim by an idle worker in another process",
     .fn = bench_wake,
     .values = {1},
     .jobs = {500},
     .batch = 1},
    {.name = "claim",
     .what = "one claim beside many jobs",
     .fn = bench_claim,
     .vary = offsetof(struct bench, pending),
     .unit = "pending",
     .values = {1000, 100000},
     .jobs = {1000, 1000},
     .batch = 1},
    {.name = "kind",
     .what = "one claim of a rare kind, behind many jobs of another",
     .fn = bench_kind,
     .vary = offsetof(struct bench, pending),
     .unit = "pending",
     .values = {1000, 100000},
     .jobs = {50, 50},
     .batch = 1},
    {.name = "memory",
     .what = "what a worker needs beside many jobs",
     .fn = bench_memory,
     .vary = offsetof(struct bench, pending),
     .unit = "pending",
     .values = {100000},
     .jobs = {10000},
     .batch = 100},
    {.name = "idle",
     .what = "CPU of an idle worker while another queue is busy",
     .fn = bench_idle,
     .values = {1},
     .batch = 1,
     .seconds = 5},
    {.name = "recovery",
     .what = "a start after a crash, with orphans among many jobs",
     .fn = bench_recovery,
     .vary = offsetof(struct bench, pending),
     .unit = "pending",
     .values = {50000},
     .jobs = {1000},
     .batch = 1,
     .completed = 50000},
    {.name = "beat",
     .what = "a heartbeat of a worker with many jobs",
     .fn = bench_beat,
     .vary = offsetof(struct bench, jobs),
     .unit = "jobs",
     .values = {100},
     .jobs = {100},
     .batch = 1},
    {.name = "death",
     .what = "from the death of a worker to the claim of its job by another process",
     .fn = bench_death,
     .values = {1},
     .jobs = {50},
     .batch = 1},
    {.name = "expiry",
     .what = "from the end of a lease to the claim of its job by another process",
     .fn = bench_expiry,
     .values = {1},
     .jobs = {50},
     .batch = 1},
    {.name = "flood",
     .what = "claims on another queue, before and while many leases end at once",
     .fn = bench_flood,
     .vary = offsetof(struct bench, jobs),
     .unit = "leases",
     .values = {50000},
     .jobs = {50000},
     .batch = 1,
     .seconds = 2},
    {.name = "work",
     .what = "leasehold work, with a command that does nothing",
     .fn = bench_work,
     .vary = offsetof(struct bench, processes),
     .unit = "at once",
     .values = {1, 4, 16},
     .jobs = {1000, 2000, 2000},
     .batch = 1},
    {.name = "handler",
     .what = "a worker in this program, with a handler that does nothing",
     .fn = bench_handler,
     .vary = offsetof(struct bench, processes),
     .unit = "at once",
     .values = {4},
     .jobs = {50000},
     .batch = 100},
    {.name = "heal",
     .what = "from SIGKILL of leasehold work to the next start of its command by another",
     .fn = bench_heal,
     .values = {1},
     .jobs = {20},
     .batch = 1},
    {.name = "rest",
     .what = "leasehold work with nothing to do: alone (1), and beside a busy queue (2)",
     .fn = bench_rest,
     .vary = offsetof(struct bench, processes),
     .unit = "processes",
     .values = {1, 2},
     .batch = 1,
     .seconds = 5},
};

/* ---- results ------------------------------------------------------------------------------------ */

static int64_t per_second(const struct bench_result *r)
{
    return r->elapsed_ns > 0 ? (int64_t)((double)r->jobs * 1e9 / (double)r->elapsed_ns) : 0;
}

/* Is the time it took the time of its jobs? */
static bool counts_jobs(const struct measure *m)
{
    return m->fn != bench_idle && m->fn != bench_rest && m->fn != bench_beat &&
           m->fn != bench_recovery;
}

static void add_times_ns(struct js *json, const struct bench_result *r)
{
    js_key(json, "times_ns");
    js_open(json, '[');
    for (size_t i = 0; i < r->n_times; i++)
        js_int(json, r->times_ns[i]);
    js_close(json, ']');
}

void bench_print_json(const struct measure *m, const struct bench *b, const struct bench_result *r)
{
    const struct {
        const char *key;
        int64_t value;
        bool always;
    } fields[] = {
        {"processes", b->processes, m->fn == bench_enqueue},
        {"batch", b->batch, true},
        {"payload", b->payload, true},
        {"pending", b->pending, false},
        {"completed", b->completed, false},
        {"jobs", r->jobs, true},
        {"elapsed_ns", r->elapsed_ns, false},
        {"jobs_per_s", counts_jobs(m) ? per_second(r) : 0, false},
        {"cpu_ns", r->cpu_ns, false},
        {"written_bytes", r->written_bytes, false},
        {"p50_ns", r->p50_ns, false},
        {"p90_ns", r->p90_ns, false},
        {"p95_ns", r->p95_ns, false},
        {"p99_ns", r->p99_ns, false},
        {"mean_ns", r->mean_ns, false},
        {"worst_ns", r->worst_ns, false},
        {"after_p50_ns", r->after_p50_ns, false},
        {"claims", r->claims, false},
        {"before_claims", r->before_claims, false},
        {"before_p50_ns", r->before_p50_ns, false},
        {"before_p90_ns", r->before_p90_ns, false},
        {"before_p99_ns", r->before_p99_ns, false},
        {"before_worst_ns", r->before_worst_ns, false},
        {"stale_ns", r->stale_ns, false},
        {"check_ns", r->check_ns, false},
        {"beat_cpu_ns", r->beat_cpu_ns, false},
        {"rss_bytes", r->rss_bytes, false},
        {"idle_ppm", r->idle_ppm, m->fn == bench_idle || m->fn == bench_rest},
        {"wakeups", r->wakeups, m->fn == bench_rest},
    };
    struct js json = {0};

    js_open(&json, '{');
    js_key_text(&json, "measure", m->name);
    js_key_text(&json, "durability", b->relaxed ? "relaxed" : "full");
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].always || fields[i].value != 0)
            js_key_int(&json, fields[i].key, fields[i].value);
    if (r->n_times > 0)
        add_times_ns(&json, r);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
}

static const char *span(int64_t ns, char *buf, size_t len)
{
    if (ns < 1000000)
        snprintf(buf, len, "%.1f µs", (double)ns / 1e3);
    else if (ns < 10000000000)
        snprintf(buf, len, "%.2f ms", (double)ns / 1e6);
    else
        snprintf(buf, len, "%.1f s", (double)ns / 1e9);
    return buf;
}

static void add_span(struct buf *line, const char *what, int64_t ns)
{
    char text[32];

    if (ns != 0)
        buf_format(line, "  %s %s", what, span(ns, text, sizeof text));
}

static void add_cost(struct buf *line, const struct measure *m, const struct bench_result *r)
{
    char text[32];

    if (r->elapsed_ns > 0 && counts_jobs(m))
        buf_format(line, " %9" PRId64 " jobs/s", per_second(r));
    if (r->elapsed_ns > 0 && counts_jobs(m) && r->written_bytes > 0)
        buf_format(line, "  %7.1f KiB written a job",
                   (double)r->written_bytes / 1024 / (double)(r->jobs ? r->jobs : 1));
    if (r->rss_bytes != 0)
        buf_format(line, " %s resident at most", text_bytes(r->rss_bytes, text, sizeof text));
    if (m->fn == bench_idle || m->fn == bench_rest)
        buf_format(line, " %.4f %% of a core, beside %" PRId64 " jobs/s", (double)r->idle_ppm / 1e4,
                   per_second(r));
    if (m->fn == bench_rest)
        buf_format(line, "  %.1f wakeups/s", (double)r->wakeups * 1e9 / (double)r->elapsed_ns);
    add_span(line, "CPU of a beat", r->beat_cpu_ns);
}

static void add_times(struct buf *line, const struct measure *m, const struct bench_result *r)
{
    if (m->fn == bench_recovery) {
        buf_format(line, " %" PRId64 " orphans", r->jobs);
        add_span(line, "found in", r->stale_ns);
        add_span(line, "checked in", r->check_ns);
        add_span(line, "recovered in", r->elapsed_ns);
    }
    if (r->before_p50_ns != 0) {
        add_span(line, "before: p50", r->before_p50_ns);
        add_span(line, "p99", r->before_p99_ns);
        add_span(line, "longest", r->before_worst_ns);
        buf_text(line, "; during:");
    }
    add_span(line, "p50", r->p50_ns);
    add_span(line, "p99", r->p99_ns);
    add_span(line, "longest", r->worst_ns);
}

void bench_print_text(const struct measure *m, const struct bench *b, const struct bench_result *r)
{
    struct buf line = {0};
    int64_t varied = 0;

    if (m->unit != NULL)
        memcpy(&varied, (const char *)b + m->vary, sizeof varied);
    if (varied != 0)
        buf_format(&line, "%9" PRId64 " %-10s", varied, m->unit);
    else
        buf_format(&line, "%20s", "");
    add_cost(&line, m, r);
    add_times(&line, m, r);
    printf("%s\n", buf_str(&line));
    fflush(stdout);
    buf_clear(&line);
}

void bench_print_machine(bool as_json, const char *folder, const struct bench_machine *m)
{
    struct js json = {0};

    if (!as_json) {
        printf("%s, %" PRId64 " cores, %s; leasehold %s, %s\n", m->cpu, m->cores, m->kernel,
               lh_version(), lh_engine_version());
        printf("%s on %s, fdatasync %.3f ms\n\n", folder, m->file_system,
               (double)m->fdatasync_ns / 1e6);
        return;
    }
    js_open(&json, '{');
    js_key_text(&json, "measure", "machine");
    js_key_text(&json, "cpu", m->cpu);
    js_key_int(&json, "cores", m->cores);
    js_key_text(&json, "kernel", m->kernel);
    js_key_text(&json, "leasehold", lh_version());
    js_key_text(&json, "engine", lh_engine_version());
    js_key_text(&json, "file_system", m->file_system);
    js_key_int(&json, "fdatasync_ns", m->fdatasync_ns);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
}
