/*
 * leasehold bench: measures the product on a store that it creates.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "bench_measure.h"

/* ---- what can be measured ---------------------------------------------------------------------- */

enum { NAMES = 9, VARIANTS = 4 };

/* When nothing else is asked for, each is run once for every value of the field that it varies, with
 * so many jobs; 0 ends the list. */
static const struct measure {
    const char *name;
    const char *what; /* for the heading */
    bench_fn *fn;
    size_t vary;      /* offset in struct bench */
    const char *unit; /* of the varied value; NULL: nothing is varied */
    int64_t values[VARIANTS];
    int64_t jobs[VARIANTS];
    int64_t batch, seconds;
} measures[NAMES] = {
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
};

/* ---- the command line --------------------------------------------------------------------------- */

struct wanted {
    bool measure[NAMES];
    bool any;
    const char *dir, *on;
    bool relaxed;
    int64_t jobs, batch, processes, seconds, payload, pending, completed; /* -1: not given */
};

/* clang-format off: one a line, as a table */
static const struct number_option {
    const char *name;
    struct value_spec spec;
    size_t at;
} number_options[] = {
    {"--jobs", SPEC_INT(1, 100000000), offsetof(struct wanted, jobs)},
    {"--batch", SPEC_INT(1, 1000), offsetof(struct wanted, batch)},
    {"--processes", SPEC_INT(1, BENCH_MAX_PROCESSES), offsetof(struct wanted, processes)},
    {"--seconds", SPEC_INT(1, 3600), offsetof(struct wanted, seconds)},
    {"--payload", SPEC_INT(0, 1048576), offsetof(struct wanted, payload)},
    {"--pending", SPEC_INT(1, 100000000), offsetof(struct wanted, pending)},
    {"--completed", SPEC_INT(0, 100000000), offsetof(struct wanted, completed)},
};
/* clang-format on */
enum { NUMBERS = sizeof number_options / sizeof number_options[0] };

static const char *const other_options[] = {"--dir", "--on", "--relaxed"};
enum { OTHERS = sizeof other_options / sizeof other_options[0] };

static int unknown(struct cli *cli, const char *word)
{
    const char *known[NUMBERS + OTHERS + NAMES];
    size_t n = 0;
    char shown[128];

    for (size_t i = 0; i < NUMBERS && word[0] == '-'; i++)
        known[n++] = number_options[i].name;
    for (size_t i = 0; i < OTHERS && word[0] == '-'; i++)
        known[n++] = other_options[i];
    for (size_t i = 0; i < NAMES && word[0] != '-'; i++)
        known[n++] = measures[i].name;
    const char *near = value_nearest(word, known, n);
    value_quote(word, shown, sizeof shown);
    if (near != NULL)
        return usage_error(cli->command, "%s %s: did you mean %s?",
                           word[0] == '-' ? "unknown option" : "nothing to measure is called",
                           shown, near);
    return usage_error(cli->command, "%s %s",
                       word[0] == '-' ? "unknown option" : "nothing to measure is called", shown);
}

static int read_number(struct cli *cli, const struct number_option *option, const char *text,
                       struct wanted *wanted)
{
    struct value value = {0};
    char why[VALUE_WHY], shown[128];

    if (text == NULL)
        return usage_error(cli->command, "option %s needs a value", option->name);
    if (!value_parse(&option->spec, text, &value, why))
        return usage_error(cli->command, "option %s: value %s %s", option->name,
                           value_quote(text, shown, sizeof shown), why);
    memcpy((char *)wanted + option->at, &value.num, sizeof value.num);
    return 0;
}

static int read_option(struct cli *cli, char **argv, int *i, struct wanted *wanted)
{
    char name[32];
    const char *word = argv[*i], *value = strchr(word, '=');
    size_t len = value ? (size_t)(value - word) : strlen(word);
    bool inside = value != NULL;

    snprintf(name, sizeof name, "%.*s", (int)len, word);
    if (strcmp(name, "--relaxed") == 0 && !inside) {
        wanted->relaxed = true;
        return 0;
    }
    value = inside ? value + 1 : argv[*i + 1];
    if (!inside && value != NULL)
        ++*i;
    for (size_t o = 0; o < NUMBERS; o++)
        if (strcmp(name, number_options[o].name) == 0)
            return read_number(cli, &number_options[o], value, wanted);
    const char **text = strcmp(name, "--dir") == 0  ? &wanted->dir
                        : strcmp(name, "--on") == 0 ? &wanted->on
                                                    : NULL;
    if (text == NULL)
        return unknown(cli, word);
    if (value == NULL || value[0] == '\0')
        return usage_error(cli->command, "option %s needs a value", name);
    *text = value;
    return 0;
}

static int read_words(struct cli *cli, char **argv, struct wanted *wanted)
{
    for (size_t o = 0; o < NUMBERS; o++)
        memcpy((char *)wanted + number_options[o].at, &(int64_t){-1}, sizeof(int64_t));
    for (int i = 1; argv[i] != NULL; i++) {
        size_t m = 0;
        if (argv[i][0] == '-') {
            int exit = read_option(cli, argv, &i, wanted);
            if (exit != 0)
                return exit;
            continue;
        }
        while (m < NAMES && strcmp(measures[m].name, argv[i]) != 0)
            m++;
        if (m == NAMES)
            return unknown(cli, argv[i]);
        wanted->measure[m] = wanted->any = true;
    }
    return 0;
}

/* ---- a folder of its own ------------------------------------------------------------------------ */

struct folder {
    char path[1000];
    char store[1024];
};

static bool folder_make(struct folder *folder, const char *dir)
{
    const char *tmp = getenv("TMPDIR");

    if (dir == NULL)
        dir = tmp != NULL && tmp[0] != '\0' ? tmp : "/tmp";
    if ((size_t)snprintf(folder->path, sizeof folder->path, "%s/leasehold-bench-XXXXXX", dir) >=
            sizeof folder->path ||
        mkdtemp(folder->path) == NULL) {
        cli_error(0, "could not make a folder in \"%s\": %s", dir, strerror(errno));
        folder->path[0] = '\0';
        return false;
    }
    snprintf(folder->store, sizeof folder->store, "%s/bench.db", folder->path);
    return true;
}

/** Everything in it is ours: it was made for this run. */
static void folder_empty(const struct folder *folder)
{
    DIR *dir = opendir(folder->path);
    char path[1300];

    if (dir == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder->path, entry->d_name);
        unlink(path);
    }
    closedir(dir);
}

static void folder_remove(const struct folder *folder)
{
    if (folder->path[0] == '\0')
        return;
    folder_empty(folder);
    rmdir(folder->path);
}

/** A store given by --on must have been made for this: measuring claims and completes its jobs. */
static int check_made(struct cli *cli, const char *url)
{
    lh_open_opts opts = {.read_only = true};
    lh_queues *queues = NULL;
    int exit = 0, rc;

    rc = lh_open(url, &opts, &cli->store);
    if (rc == LH_OK)
        rc = lh_queue_list(cli->store, &queues);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    for (size_t i = 0; i < queues->n && exit == 0; i++)
        if (strncmp(queues->queue[i].queue, BENCH_QUEUE, strlen(BENCH_QUEUE)) != 0)
            exit = cli_error(EXIT_USAGE,
                             "store \"%s\" has a queue \"%s\": measuring would complete its jobs, "
                             "so only stores made for it are taken",
                             url, queues->queue[i].queue);
    lh_queues_free(queues);
    lh_close(cli->store);
    cli->store = NULL;
    return exit;
}

/* ---- results ------------------------------------------------------------------------------------ */

static int64_t per_second(const struct bench_result *r)
{
    return r->elapsed_ns > 0 ? (int64_t)((double)r->jobs * 1e9 / (double)r->elapsed_ns) : 0;
}

static void print_json(const struct measure *m, const struct bench *b, const struct bench_result *r)
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
        {"jobs_per_s", m->fn == bench_idle ? 0 : per_second(r), false},
        {"cpu_ns", r->cpu_ns, false},
        {"written_bytes", r->written_bytes, false},
        {"p50_ns", r->p50_ns, false},
        {"p99_ns", r->p99_ns, false},
        {"mean_ns", r->mean_ns, false},
        {"worst_ns", r->worst_ns, false},
        {"after_p50_ns", r->after_p50_ns, false},
        {"rss_bytes", r->rss_bytes, false},
        {"idle_ppm", r->idle_ppm, m->fn == bench_idle},
    };
    struct js json = {0};

    js_open(&json, '{');
    js_key_text(&json, "measure", m->name);
    js_key_text(&json, "durability", b->relaxed ? "relaxed" : "full");
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].always || fields[i].value != 0)
            js_key_int(&json, fields[i].key, fields[i].value);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
}

static const char *span(int64_t ns, char *buf, size_t len)
{
    if (ns < 1000000)
        snprintf(buf, len, "%.1f µs", (double)ns / 1e3);
    else
        snprintf(buf, len, "%.2f ms", (double)ns / 1e6);
    return buf;
}

static void print_text(const struct measure *m, const struct bench *b, const struct bench_result *r)
{
    struct buf line = {0};
    char a[32], c[32];
    int64_t varied = 0;

    if (m->unit != NULL)
        memcpy(&varied, (const char *)b + m->vary, sizeof varied);
    if (varied != 0)
        buf_format(&line, "%9" PRId64 " %-10s", varied, m->unit);
    else
        buf_format(&line, "%20s", "");
    if (r->elapsed_ns > 0 && m->fn != bench_idle)
        buf_format(&line, " %9" PRId64 " jobs/s  %7.1f KiB written a job", per_second(r),
                   (double)r->written_bytes / 1024 / (double)(r->jobs ? r->jobs : 1));
    if (m->fn == bench_enqueue)
        buf_format(&line, "  longest %s", span(r->worst_ns, a, sizeof a));
    if (r->p50_ns != 0)
        buf_format(&line, " p50 %s  p99 %s", span(r->p50_ns, a, sizeof a),
                   span(r->p99_ns, c, sizeof c));
    if (r->rss_bytes != 0)
        buf_format(&line, " %s resident at most", text_bytes(r->rss_bytes, a, sizeof a));
    if (m->fn == bench_idle)
        buf_format(&line, " %.4f %% of a core, beside %" PRId64 " jobs/s",
                   (double)r->idle_ppm / 1e4, per_second(r));
    printf("%s\n", buf_str(&line));
    fflush(stdout);
    buf_clear(&line);
}

static void print_machine(struct cli *cli, const char *folder, const struct bench_machine *m)
{
    struct js json = {0};

    if (!cli->json) {
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

/* ---- running ------------------------------------------------------------------------------------ */

static int64_t given(int64_t wanted, int64_t otherwise)
{
    return wanted >= 0 ? wanted : otherwise;
}

static bool run_one(struct cli *cli, const struct measure *m, const struct wanted *w, size_t v,
                    const struct folder *folder)
{
    struct bench bench = {
        .url = w->on ? w->on : folder->store,
        .made = w->on != NULL,
        .relaxed = w->relaxed,
        .batch = m->batch,
        .processes = 1,
        .cancel = cli_cancel(),
    };
    struct bench_result result = {0};

    /* How much is in a store of somebody else's is not ours to say. */
    if (m->unit != NULL && !(bench.made && m->vary == offsetof(struct bench, pending)))
        memcpy((char *)&bench + m->vary, &m->values[v], sizeof m->values[v]);
    bench.jobs = given(w->jobs, m->jobs[v]);
    bench.batch = given(w->batch, bench.batch);
    bench.processes = given(w->processes, bench.processes);
    bench.pending = given(w->pending, bench.pending);
    bench.completed = given(w->completed, 0);
    bench.seconds = given(w->seconds, m->seconds);
    bench.payload = given(w->payload, 100);
    if (!bench.made)
        folder_empty(folder);
    if (!m->fn(&bench, &result))
        return false;
    if (cli->json)
        print_json(m, &bench, &result);
    else
        print_text(m, &bench, &result);
    return true;
}

/** One run if the command line says which, else one for each usual variant. */
static bool run_measure(struct cli *cli, const struct measure *m, const struct wanted *w,
                        const struct folder *folder)
{
    int64_t chosen = m->vary == offsetof(struct bench, processes) ? w->processes
                     : m->vary == offsetof(struct bench, batch)   ? w->batch
                     : m->vary == offsetof(struct bench, pending) ? w->pending
                                                                  : -1;
    size_t n = chosen >= 0 || w->on != NULL ? 1 : VARIANTS;

    if (!cli->json)
        printf("%s: %s\n", m->name, m->what);
    for (size_t v = 0; v < n && m->values[v] != 0; v++) {
        if (!run_one(cli, m, w, v, folder))
            return false;
        if (cli_interrupted())
            return false;
    }
    return true;
}

static bool run_all(struct cli *cli, const struct wanted *w, const struct folder *folder)
{
    for (size_t i = 0; i < NAMES; i++) {
        const struct measure *m = &measures[i];
        if (w->any && !w->measure[i])
            continue;
        if (!run_measure(cli, m, w, folder))
            return false;
    }
    return true;
}

int lh_cli_bench(int argc, char **argv, struct cli *cli)
{
    struct wanted wanted = {0};
    struct folder folder = {{0}, {0}};
    struct bench_machine machine;
    int exit;

    (void)argc;
    exit = read_words(cli, argv, &wanted);
    if (exit == 0 && wanted.on != NULL)
        exit = check_made(cli, wanted.on);
    if (exit != 0)
        return exit;
    (void)cli_cancel(); /* from now on an interruption cleans up */
    if (!folder_make(&folder, wanted.dir))
        return EXIT_FAILED;
    exit = EXIT_FAILED;
    if (bench_machine(folder.path, &machine)) {
        print_machine(cli, folder.path, &machine);
        if (run_all(cli, &wanted, &folder))
            exit = EXIT_DONE;
    }
    folder_remove(&folder);
    return cli_interrupted() ? cli_interrupted_exit() : exit;
}
