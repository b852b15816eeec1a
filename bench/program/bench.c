/*
 * leasehold bench: measures the product on a store that it creates.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "list.h"

/* ---- the command line --------------------------------------------------------------------------- */

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
    const char *known[NUMBERS + OTHERS + BENCH_NAMES];
    size_t n = 0;
    char shown[128];

    for (size_t i = 0; i < NUMBERS && word[0] == '-'; i++)
        known[n++] = number_options[i].name;
    for (size_t i = 0; i < OTHERS && word[0] == '-'; i++)
        known[n++] = other_options[i];
    for (size_t i = 0; i < BENCH_NAMES && word[0] != '-'; i++)
        known[n++] = bench_measures[i].name;
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
        while (m < BENCH_NAMES && strcmp(bench_measures[m].name, argv[i]) != 0)
            m++;
        if (m == BENCH_NAMES)
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
    bench.completed = given(w->completed, m->completed);
    bench.seconds = given(w->seconds, m->seconds);
    bench.payload = given(w->payload, 100);
    if (!bench.made)
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

/** One run if the command line says which, else one for each usual variant. */
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
        bench_print_machine(cli->json, folder.path, &machine);
        if (run_all(cli, &wanted, &folder))
            exit = EXIT_DONE;
    }
    folder_remove(&folder);
    return cli_interrupted() ? cli_interrupted_exit() : exit;
}
