/*
 * Prints the result of a measurement, as JSON or as a line of text.
 */
#include <inttypes.h>
#include <string.h>

#include "measures.h"

static int64_t per_second(const struct bench_result *r)
{
    return r->elapsed_ns > 0 ? (int64_t)((double)r->jobs * 1e9 / (double)r->elapsed_ns) : 0;
}

/* Whether jobs per second can be computed from the elapsed time. */
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
        buf_format(line, "  %7.1f KiB written per job",
                   (double)r->written_bytes / 1024 / (double)(r->jobs ? r->jobs : 1));
    if (r->rss_bytes != 0)
        buf_format(line, " %s resident at most", text_bytes(r->rss_bytes, text, sizeof text));
    if (m->fn == bench_idle || m->fn == bench_rest)
        buf_format(line, " %.4f %% of a core, beside %" PRId64 " jobs/s", (double)r->idle_ppm / 1e4,
                   per_second(r));
    if (m->fn == bench_rest)
        buf_format(line, "  %.1f wakeups/s", (double)r->wakeups * 1e9 / (double)r->elapsed_ns);
    add_span(line, "CPU of a heartbeat", r->beat_cpu_ns);
}

static void add_times(struct buf *line, const struct measure *m, const struct bench_result *r)
{
    if (m->fn == bench_recovery) {
        buf_format(line, " %" PRId64 " lost jobs", r->jobs);
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
