/*
 * leasehold-bench: measures the product on a store that it creates and removes.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "measures.h"

/* ---- the command line --------------------------------------------------------------------------- */

static const char usage[] =
    "Usage: leasehold-bench [NAME…] [OPTION…]\n"
    "\n"
    "Measures how fast Leasehold is on this machine, on a store that it creates and removes.\n"
    "Without a NAME it measures everything; NAME is one of:\n";

static const char options_help[] =
    "\n"
    "Options\n"
    "  --jobs N        number of jobs\n"
    "  --batch N       jobs in one call, 1 to 1000\n"
    "  --processes N   processes at once, 1 to 64\n"
    "  --seconds N     duration of a measurement that has no number of jobs\n"
    "  --payload N     bytes of a payload, 0 to 1048576\n"
    "  --pending N     pending jobs in the store beforehand\n"
    "  --completed N   completed jobs in the store beforehand\n"
    "  --dir DIR       where the store is made (default: $TMPDIR, /tmp)\n"
    "  --on URL        measure on this store, SQLite or PostgreSQL; it must be made for the "
    "benchmark\n"
    "  --relaxed       with durability relaxed\n"
    "  --json          print results as JSON, one object per line\n"
    "  --help          print this, and exit\n"
    "\n"
    "Examples\n"
    "  leasehold-bench                             # everything, about two minutes\n"
    "  leasehold-bench enqueue --processes 16      # durable enqueues by 16 processes at once\n";

struct wanted {
    bool measure[BENCH_NAMES];
    bool any;
    const char *dir, *on;
    bool relaxed;
    int64_t jobs, batch, processes, seconds, payload, pending, completed; /* -1: not given */
};

/* clang-format off: one a line, as a table */
static const struct number_option {
    const char *name;
    struct value_spec spec;
    size_t at; /* offset in struct wanted */
} number_options[] = {
    {"jobs", SPEC_INT(1, 100000000), offsetof(struct wanted, jobs)},
    {"batch", SPEC_INT(1, 1000), offsetof(struct wanted, batch)},
    {"processes", SPEC_INT(1, BENCH_MAX_PROCESSES), offsetof(struct wanted, processes)},
    {"seconds", SPEC_INT(1, 3600), offsetof(struct wanted, seconds)},
    {"payload", SPEC_INT(0, 1048576), offsetof(struct wanted, payload)},
    {"pending", SPEC_INT(1, 100000000), offsetof(struct wanted, pending)},
    {"completed", SPEC_INT(0, 100000000), offsetof(struct wanted, completed)},
};
/* clang-format on */
enum { NUMBERS = sizeof number_options / sizeof number_options[0] };

static void print_help(void)
{
    fputs(usage, stdout);
    for (size_t i = 0; i < BENCH_NAMES; i++)
        printf("  %-10s %s\n", bench_measures[i].name, bench_measures[i].what);
    fputs(options_help, stdout);
}

static int read_number(const struct number_option *option, const char *text, struct wanted *wanted)
{
    struct value value = {0};
    char why[VALUE_WHY], shown[128];

    if (!value_parse(&option->spec, text, &value, why))
        return cli_error(EXIT_USAGE, "--%s %s %s", option->name,
                         value_quote(text, shown, sizeof shown), why);
    memcpy((char *)wanted + option->at, &value.num, sizeof value.num);
    return -1;
}

static int read_name(const char *word, struct wanted *wanted)
{
    const char *known[BENCH_NAMES], *nearest;
    char shown[128];

    for (size_t m = 0; m < BENCH_NAMES; m++) {
        known[m] = bench_measures[m].name;
        if (strcmp(known[m], word) == 0) {
            wanted->measure[m] = wanted->any = true;
            return -1;
        }
    }
    nearest = value_nearest(word, known, BENCH_NAMES);
    return cli_error(EXIT_USAGE, "unknown measurement %s%s%s%s (see 'leasehold-bench --help')",
                     value_quote(word, shown, sizeof shown), nearest ? ": did you mean \"" : "",
                     nearest ? nearest : "", nearest ? "\"?" : "");
}

static int read_value(const char *name, const char *text, struct wanted *wanted)
{
    if (text == NULL || text[0] == '\0')
        return cli_error(EXIT_USAGE, "--%s needs a value", name);
    if (strcmp(name, "dir") == 0)
        wanted->dir = text;
    else if (strcmp(name, "on") == 0)
        wanted->on = text;
    for (size_t o = 0; o < NUMBERS; o++)
        if (strcmp(name, number_options[o].name) == 0)
            return read_number(&number_options[o], text, wanted);
    return -1;
}

static bool takes_value(const char *name)
{
    bool found = strcmp(name, "dir") == 0 || strcmp(name, "on") == 0;

    for (size_t o = 0; o < NUMBERS; o++)
        found = found || strcmp(name, number_options[o].name) == 0;
    return found;
}

/** Reads the option `--name`, whose value follows after `=` or in the next word. -1, or the exit code. */
static int read_option(char **argv, int *i, struct cli *cli, struct wanted *wanted)
{
    const char *word = argv[*i] + 2, *value = strchr(word, '=');
    char name[32];

    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    if (takes_value(name)) {
        value = value != NULL ? value + 1 : argv[*i + 1] != NULL ? argv[++*i] : NULL;
        return read_value(name, value, wanted);
    }
    if (value == NULL && strcmp(name, "relaxed") == 0)
        wanted->relaxed = true;
    else if (value == NULL && strcmp(name, "json") == 0)
        cli->json = true;
    else if (value == NULL && strcmp(name, "help") == 0) {
        print_help();
        return EXIT_DONE;
    } else
        return cli_error(EXIT_USAGE, "unknown option \"--%.60s\" (see 'leasehold-bench --help')",
                         word);
    return -1;
}

/** Reads the command line. -1: measure; else the exit code. */
static int read_words(char **argv, struct cli *cli, struct wanted *wanted)
{
    int exit = -1;

    for (size_t o = 0; o < NUMBERS; o++)
        memcpy((char *)wanted + number_options[o].at, &(int64_t){-1}, sizeof(int64_t));
    for (int i = 1; exit < 0 && argv[i] != NULL; i++)
        exit = strncmp(argv[i], "--", 2) == 0 ? read_option(argv, &i, cli, wanted)
                                              : read_name(argv[i], wanted);
    return exit;
}

/* ---- the folder ------------------------------------------------------------------------------ */

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

/** Refuses a store with other queues: measuring claims and completes its jobs. 0, or the exit code. */
static int check_store(struct cli *cli, const char *url)
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
                             "store \"%s\" has a queue \"%s\": measuring would complete its "
                             "jobs, so it must be a store made for the benchmark",
                             url, queues->queue[i].queue);
    lh_queues_free(queues);
    lh_close(cli->store);
    cli->store = NULL;
    return exit;
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
        .existing = w->on != NULL,
        .relaxed = w->relaxed,
        .batch = m->batch,
        .processes = 1,
        .cancel = cli_cancel(),
    };
    struct bench_result result = {0};

    /* A store that the user named has the jobs that it has. */
    if (m->unit != NULL && !(bench.existing && m->vary == offsetof(struct bench, pending)))
        memcpy((char *)&bench + m->vary, &m->values[v], sizeof m->values[v]);
    bench.jobs = given(w->jobs, m->jobs[v]);
    bench.batch = given(w->batch, bench.batch);
    bench.processes = given(w->processes, bench.processes);
    bench.pending = given(w->pending, bench.pending);
    bench.completed = given(w->completed, m->completed);
    bench.seconds = given(w->seconds, m->seconds);
    bench.payload = given(w->payload, 100);
    if (!bench.existing)
        folder_empty(folder);
    if (!m->fn(&bench, &result))
        return false;
    if (cli->json)
        bench_print_json(m, &bench, &result);
    else
        bench_print_text(m, &bench, &result);
    free(result.times_ns);
    return true;
}

/** Runs once if the command line gives the varied value, else once for each of the usual values. */
static bool run_measure(struct cli *cli, const struct measure *m, const struct wanted *w,
                        const struct folder *folder)
{
    int64_t chosen = m->vary == offsetof(struct bench, processes) ? w->processes
                     : m->vary == offsetof(struct bench, batch)   ? w->batch
                     : m->vary == offsetof(struct bench, pending) ? w->pending
                     : m->vary == offsetof(struct bench, jobs)    ? w->jobs
                                                                  : -1;
    size_t n = chosen >= 0 || w->on != NULL ? 1 : BENCH_VARIANTS;

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
    for (size_t i = 0; i < BENCH_NAMES; i++) {
        const struct measure *m = &bench_measures[i];
        if (w->any && !w->measure[i])
            continue;
        if (!run_measure(cli, m, w, folder))
            return false;
    }
    return true;
}

/** Measures what is wanted, in a folder that it removes. Returns the exit code. */
static int measure(struct cli *cli, const struct wanted *wanted)
{
    struct folder folder = {{0}, {0}};
    struct bench_machine machine;
    int exit = EXIT_FAILED;

    (void)cli_cancel(); /* from now on an interruption cleans up */
    if (!folder_make(&folder, wanted->dir))
        return EXIT_FAILED;
    if (bench_machine(folder.path, &machine)) {
        bench_print_machine(cli->json, folder.path, &machine);
        if (run_all(cli, wanted, &folder))
            exit = EXIT_DONE;
    }
    folder_remove(&folder);
    return cli_interrupted() ? cli_interrupted_exit() : exit;
}

int main(int argc, char **argv)
{
    struct cli cli = {0};
    struct wanted wanted = {0};
    int exit;

    (void)argc;
    cli_errors_as_json(argv);
    exit = read_words(argv, &cli, &wanted);
    if (exit < 0 && wanted.on != NULL && (exit = check_store(&cli, wanted.on)) == 0)
        exit = -1;
    if (exit < 0)
        exit = measure(&cli, &wanted);
    return cli_finish(&cli, exit);
}
