/*
 * floor: performs one measurement of the plain database and prints it as a line of JSON.
 */
#include "floor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: floor MEASURE --dir DIR [--jobs N] [--batch N] [--processes N] [--payload BYTES]\n"
    "             [--seconds N] [--without PART] [--claim returning|select]\n"
    "       floor fill --db FILE [--completed N] [--pending N] [--kind K] [--payload BYTES]\n"
    "       floor parts\n"
    "measures: sync enqueue bulk drain cycle part uses\n";

static const struct measure {
    const char *name;
    void (*fn)(const struct floor_opts *opts, struct floor_result *result);
    int64_t jobs, batch, processes, seconds;
} measures[] = {
    {"sync", floor_sync, 0, 0, 0, 0},         {"enqueue", floor_enqueue, 0, 0, 1, 2},
    {"bulk", floor_bulk, 100000, 1000, 0, 0}, {"drain", floor_drain, 100000, 100, 0, 0},
    {"cycle", floor_cycle, 2000, 1, 0, 0},    {"part", floor_part, 20000, 100, 0, 0},
    {"uses", floor_uses, 100000, 100, 0, 0},  {"fill", floor_fill, 0, 0, 0, 0},
};

static int64_t number(const char *name, const char *text)
{
    char *end;

    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 0)
        die("%s \"%s\" is not a number", name, text);
    return value;
}

static void read_options(int argc, char **argv, struct floor_opts *opts)
{
    const struct {
        const char *name;
        const char **text;
        int64_t *number;
    } options[] = {
        {"--dir", &opts->dir, NULL},         {"--db", &opts->db, NULL},
        {"--without", &opts->without, NULL}, {"--claim", &opts->claim, NULL},
        {"--kind", &opts->kind, NULL},       {"--jobs", NULL, &opts->jobs},
        {"--batch", NULL, &opts->batch},     {"--processes", NULL, &opts->processes},
        {"--payload", NULL, &opts->payload}, {"--seconds", NULL, &opts->seconds},
        {"--pending", NULL, &opts->pending}, {"--completed", NULL, &opts->completed},
    };

    for (int i = 0; i < argc; i += 2) {
        size_t o = 0;
        while (o < sizeof options / sizeof options[0] && strcmp(options[o].name, argv[i]) != 0)
            o++;
        if (o == sizeof options / sizeof options[0] || i + 1 == argc)
            die("unknown or incomplete option \"%s\"\n%s", argv[i], usage);
        if (options[o].text != NULL)
            *options[o].text = argv[i + 1];
        else
            *options[o].number = number(argv[i], argv[i + 1]);
    }
}

static void print(const char *name, const struct floor_opts *opts, const struct floor_result *r)
{
    const struct {
        const char *key;
        int64_t value;
    } fields[] = {
        {"processes", opts->processes},
        {"batch", opts->batch},
        {"jobs", r->jobs},
        {"elapsed_ns", r->elapsed_ns},
        {"jobs_per_s",
         r->elapsed_ns > 0 ? (int64_t)((double)r->jobs * 1e9 / (double)r->elapsed_ns) : 0},
        {"cpu_ns", r->cpu_ns},
        {"written_bytes", r->written_bytes},
        {"p50_ns", r->p50_ns},
        {"p99_ns", r->p99_ns},
        {"busy", r->busy},
        {"worst_ns", r->worst_ns},
        {"insert_ns", r->insert_ns},
        {"insert_bytes", r->insert_bytes},
        {"drain_ns", r->drain_ns},
        {"drain_bytes", r->drain_bytes},
    };

    printf("{\"floor\":\"%s\"", name);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].value != 0)
            printf(",\"%s\":%lld", fields[i].key, (long long)fields[i].value);
    puts("}");
}

int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        fputs(usage, argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    if (strcmp(argv[1], "parts") == 0) {
        floor_parts();
        return 0;
    }
    for (size_t i = 0; i < sizeof measures / sizeof measures[0]; i++) {
        const struct measure *m = &measures[i];
        if (strcmp(m->name, argv[1]) != 0)
            continue;
        struct floor_opts opts = {.jobs = m->jobs,
                                  .batch = m->batch,
                                  .processes = m->processes,
                                  .seconds = m->seconds,
                                  .payload = 100};
        struct floor_result result = {0};
        read_options(argc - 2, argv + 2, &opts);
        if (opts.dir == NULL && m->fn != floor_fill)
            die("--dir is needed\n%s", usage);
        m->fn(&opts, &result);
        print(m->name, &opts, &result);
        return 0;
    }
    die("no measure is called \"%s\"\n%s", argv[1], usage);
}
