/*
 * Manual pages in mdoc(7): leasehold(1), and one for each command or group of commands.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "generate.h"

#define MAN_DATE "November 20, 2026"

/* ---- text ------------------------------------------------------------------------------------ */

/** Prints text for a line of mdoc, with requests and escapes made harmless. */
static void put_text(FILE *f, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        unsigned code = 0;
        size_t more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 0;
        if ((i == 0 && (c == '.' || c == '\'')) || (i > 0 && text[i - 1] == '\n' && c == '.'))
            fputs("\\&", f);
        if (c == '\\')
            fputs("\\e", f);
        else if (c == '-')
            fputs("\\-", f);
        else if (c == '"')
            fputs("\\(dq", f);
        else if (more == 0)
            fputc(c, f);
        else {
            code = c & (0x3fU >> more);
            for (size_t k = 1; k <= more && i + k < len; k++)
                code = code << 6 | ((unsigned char)text[i + k] & 0x3f);
            i += more;
            fprintf(f, "\\[u%04X]", code);
        }
    }
}

/** Prints a sentence on several short lines of source. */
static void put_filled(FILE *f, const char *text, size_t len)
{
    enum { WIDTH = 64 };

    for (size_t i = 0; i < len;) {
        size_t n = len - i;
        if (n > WIDTH) {
            n = WIDTH;
            while (n > 0 && text[i + n] != ' ')
                n--;
            while (n == 0 || (i + n < len && text[i + n] != ' '))
                n++;
        }
        put_text(f, text + i, n);
        fputc('\n', f);
        i += n;
        while (i < len && text[i] == ' ')
            i++;
    }
}

/** Prints paragraphs. Each sentence starts a new line, as mdoc asks for. */
static void put_paragraphs(FILE *f, const char *text)
{
    for (const char *p = text; *p != '\0';) {
        const char *end = strstr(p, "\n\n");
        size_t len = end ? (size_t)(end - p) : strlen(p);
        if (p != text)
            fputs(".Pp\n", f);
        for (size_t i = 0; i < len;) {
            size_t n = 1;
            while (i + n < len && !(p[i + n] == ' ' && strchr(".:;", p[i + n - 1]) != NULL))
                n++;
            put_filled(f, p + i, n);
            i += n;
            while (i < len && p[i] == ' ')
                i++;
        }
        p += len + (end ? 2 : 0);
    }
}

static void put_line(FILE *f, const char *text)
{
    put_filled(f, text, strlen(text));
}

/* ---- parts of a page ------------------------------------------------------------------------- */

static void put_head(FILE *f, const char *page, const char *summary)
{
    char title[64];
    size_t n = 0;

    for (; page[n] != '\0' && n + 1 < sizeof title; n++)
        title[n] = page[n] >= 'a' && page[n] <= 'z' ? (char)(page[n] - 'a' + 'A') : page[n];
    title[n] = '\0';
    fprintf(f,
            ".\\\" Made from the program's own tables by tools/generate.\n"
            ".Dd " MAN_DATE "\n"
            ".Dt %s 1\n"
            ".Os\n"
            ".Sh NAME\n"
            ".Nm %s\n"
            ".Nd ",
            title, page);
    put_line(f, summary);
}

static void put_synopsis(FILE *f, const struct command *command)
{
    const char *form = command->args;

    do {
        size_t len = strcspn(form, "\n");
        fprintf(f, ".Nm leasehold\n.Cm %s%s%s\n", command->group ? command->group : "",
                command->group ? " " : "", command->name);
        if (len > 0)
            put_filled(f, form, len);
        form += len;
    } while (*form++ == '\n');
}

static void put_options(FILE *f, const struct option *options)
{
    fputs(".Bl -tag -width Ds\n", f);
    for (const struct option *o = options; o->name != NULL; o++) {
        struct buf help = {0};
        fputs(".It ", f);
        if (o->letter != '\0')
            fprintf(f, "Fl %c , ", o->letter);
        fprintf(f, "Fl \\-%s", o->name);
        if (o->meta != NULL) {
            bool maybe = (o->flags & OPTION_VALUE_OPTIONAL) != 0;
            if (option_is_attached(o))
                fputs(" Ns Oo Ns = Ns Ar ", f);
            else
                fprintf(f, " %sAr ", maybe ? "Op " : "");
            put_text(f, o->meta, strlen(o->meta));
            if (option_is_attached(o))
                fputs(" Oc", f);
        }
        fputc('\n', f);
        buf_text(&help, o->help);
        if (o->spec.kind == VALUE_CHOICE) {
            buf_text(&help, ": ");
            for (const char *p = o->spec.choices; *p != '\0'; p++) {
                if (*p == ' ')
                    buf_char(&help, ',');
                buf_char(&help, *p);
            }
        }
        if ((o->flags & OPTION_REQUIRED) != 0)
            buf_text(&help, " (required)");
        buf_char(&help, '.');
        put_line(f, buf_str(&help));
        buf_clear(&help);
    }
    fputs(".El\n", f);
}

static void put_examples(FILE *f, const struct example *examples)
{
    for (const struct example *e = examples; e != NULL && e->line != NULL; e++) {
        char first = e->what[0];
        if (e != examples)
            fputs(".Pp\n", f);
        fputc(first >= 'a' && first <= 'z' ? first - 'a' + 'A' : first, f);
        put_text(f, e->what + 1, strlen(e->what + 1));
        fputs(":\n.Bd -literal -offset indent\n", f);
        put_text(f, e->line, strlen(e->line));
        fputs("\n.Ed\n", f);
    }
}

static void put_exits(FILE *f, const struct exit_note *own)
{
    fputs(".Bl -tag -width Ds\n", f);
    for (const struct exit_note *e = common_exits; e->when != NULL; e++) {
        const char *when = e->when;
        for (const struct exit_note *o = own; o != NULL && o->when != NULL; o++)
            if (o->code == e->code)
                when = o->when;
        fprintf(f, ".It %d\n", e->code);
        put_line(f, when);
    }
    fputs(".El\n", f);
}

static bool has_options(const struct command *command)
{
    return command->options != NULL && command->options->name != NULL;
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void command_page(FILE *f, const struct command *command)
{
    char page[96];

    snprintf(page, sizeof page, "leasehold-%s", command->name);
    put_head(f, page, command->summary);
    fputs(".Sh SYNOPSIS\n", f);
    put_synopsis(f, command);
    fputs(".Sh DESCRIPTION\n", f);
    put_paragraphs(f, command->text);
    if (has_options(command)) {
        fputs(".Pp\nThe options are:\n", f);
        put_options(f, command->options);
    }
    fputs(".Pp\nThe general options are described in\n.Xr leasehold 1 .\n", f);
    fputs(".Sh EXIT STATUS\n", f);
    put_exits(f, command->exits);
    fputs(".Sh EXAMPLES\n", f);
    put_examples(f, command->examples);
    fputs(".Sh SEE ALSO\n.Xr leasehold 1\n", f);
}

static void group_page(FILE *f, const struct group *group)
{
    char page[96];

    snprintf(page, sizeof page, "leasehold-%s", group->name);
    put_head(f, page, group->summary);
    fputs(".Sh SYNOPSIS\n", f);
    for (size_t i = 0; commands[i] != NULL; i++)
        if (commands[i]->group != NULL && strcmp(commands[i]->group, group->name) == 0)
            put_synopsis(f, commands[i]);
    fputs(".Sh DESCRIPTION\n", f);
    for (size_t i = 0; commands[i] != NULL; i++) {
        const struct command *c = commands[i];
        if (c->group == NULL || strcmp(c->group, group->name) != 0)
            continue;
        fprintf(f, ".Ss %s %s\n", group->name, c->name);
        put_paragraphs(f, c->text);
        if (has_options(c)) {
            fputs(".Pp\nThe options are:\n", f);
            put_options(f, c->options);
        }
        if (c->exits != NULL) {
            fputs(".Pp\nExit codes with a special meaning:\n.Bl -tag -width Ds\n", f);
            for (const struct exit_note *e = c->exits; e->when != NULL; e++) {
                fprintf(f, ".It %d\n", e->code);
                put_line(f, e->when);
            }
            fputs(".El\n", f);
        }
        fputs(".Pp\n", f);
        put_examples(f, c->examples);
    }
    fputs(".Sh EXIT STATUS\n", f);
    put_exits(f, NULL);
    fputs(".Sh SEE ALSO\n.Xr leasehold 1\n", f);
}

static void put_environment(FILE *f)
{
    static const struct {
        const char *name, *text;
    } variables[] = {
        {"LEASEHOLD_STORE", "The store, if --store is not given."},
        {"LEASEHOLD_CONFIG", "The config file, if --config is not given."},
        {"LEASEHOLD_RECOVERY_INTERVAL",
         "The interval of automatic recovery in milliseconds; overrides detectionIntervalSeconds "
         "of the config file. 0 turns automatic recovery by this process off."},
        {"LEASEHOLD_LOG", "The log level on standard error: error, warn, info or debug."},
        {"LEASEHOLD_LOG_FORMAT", "The format of the log: text or json."},
        {"NO_COLOR", "If set and not empty, no colours are used."},
    };

    fputs(".Sh ENVIRONMENT\n.Bl -tag -width Ds\n", f);
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        fprintf(f, ".It Ev %s\n", variables[i].name);
        put_line(f, variables[i].text);
    }
    fputs(".El\n", f);
}

static void put_files(FILE *f)
{
    fputs(".Sh FILES\n"
          ".Bl -tag -width Ds\n"
          ".It Pa leasehold.db\n"
          "The store, if none is named; beside it\n"
          ".Pa leasehold.db\\-wal ,\n"
          ".Pa leasehold.db\\-shm\n"
          "and\n"
          ".Pa leasehold.db\\-lease .\n"
          "They belong together: copy or move all of them, or none.\n"
          ".It Pa leasehold.yaml\n"
          "The config file, if none is named.\n"
          "An unknown key, a wrong type or a value out of range is refused.\n"
          "It may hold:\n"
          ".Bd -literal\n",
          f);
    fputs("store: leasehold.db\n"
          "durability: full            # or relaxed\n"
          "queue:\n"
          "  recovery:  { action: retry, maxRecoveryAttempts: 3,\n"
          "               integrityCheckOnStartup: true }\n"
          "  heartbeat: { intervalSeconds: 30, staleThresholdMultiplier: 3,\n"
          "               detectionIntervalSeconds: 60 }\n"
          "policies:\n"
          "  - { queue: mail, kind: welcome, lease: 30m, maxAttempts: 10 }\n"
          "  - { queue: embeddings, rate: 20/1m, concurrency: 4 }\n"
          "leases: [ { scope: sync, ttl: 2m } ]\n"
          "server: { listen: 127.0.0.1:8385 }\n"
          ".Ed\n"
          ".El\n",
          f);
}

/** Prints the commands and groups, with a list for each section. */
static void put_index(FILE *f)
{
    const struct index_entry *first = command_index;

    for (const struct index_entry *e = first; e->section || e->command || e->group; e++) {
        const struct group *group = e->group ? group_find(e->group) : NULL;
        if (e->section != NULL) {
            fputs(e == first ? ".Ss " : ".El\n.Ss ", f);
            put_line(f, e->section);
            fputs(".Bl -tag -width Ds\n", f);
            continue;
        }
        fprintf(f, ".It Xr leasehold-%s 1\n", group ? group->name : e->command->name);
        put_line(f, group ? group->summary : e->command->summary);
    }
    fputs(".El\n", f);
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/** Lists all pages in alphabetical order, as mandoc asks for. */
static void put_see_also(FILE *f)
{
    enum { MOST = 64 };
    const char *names[MOST];
    size_t n = 0;

    for (size_t i = 0; commands[i] != NULL && n < MOST; i++)
        if (commands[i]->group == NULL)
            names[n++] = commands[i]->name;
    for (const struct group *g = groups; g->name != NULL && n < MOST; g++)
        names[n++] = g->name;
    qsort(names, n, sizeof names[0], compare_names);
    for (size_t i = 0; i < n; i++)
        fprintf(f, ".Xr leasehold-%s 1%s\n", names[i], i + 1 < n ? " ," : "");
}

static void program_page(FILE *f)
{
    put_head(f, "leasehold", "a job queue that heals itself");
    fputs(".Sh SYNOPSIS\n"
          ".Nm\n"
          ".Ar command\n"
          ".Op Ar options\n"
          ".Nm\n"
          ".Fl \\-help\n"
          ".Nm\n"
          ".Fl \\-version\n"
          ".Sh DESCRIPTION\n"
          "A worker holds a job under a lease.\n"
          "If the worker dies, the job returns to the queue:\n"
          "at once if the worker is known to be dead, otherwise when the lease expires.\n"
          "The recovery is recorded, and the token of the old worker is no longer accepted.\n"
          "Delivery is at least once; the token lets a resource make effects exactly once.\n"
          ".Pp\n"
          "Data goes to standard output, messages go to standard error.\n"
          "With\n"
          ".Fl \\-json\n"
          "every command prints one JSON object per line.\n"
          "Durations are written like 250ms, 30s, 5m, 1h30m or 14d;\n"
          "names of queues, kinds and workers\n"
          "have 1 to 128 characters of A\\-Z a\\-z 0\\-9 . _ : @ \\-.\n",
          f);
    put_index(f);
    fputs(".Ss General options\nThey stand before or after the command.\n", f);
    put_options(f, global_options);
    put_environment(f);
    put_files(f);
    fputs(".Sh EXIT STATUS\n", f);
    put_exits(f, NULL);
    fputs("A command on several jobs prints one line for each failure,\n"
          "and exits with the highest code.\n"
          ".Sh EXAMPLES\n"
          "The life of a job:\n"
          ".Bd -literal -offset indent\n"
          "$ leasehold enqueue mail \\(aq{\\(dqto\\(dq:\\(dqa@b.c\\(dq}\\(aq\n"
          "1\n"
          "$ leasehold claim mail \\-\\-lease 30s\n"
          "{\\(dqid\\(dq:1,\\(dqqueue\\(dq:\\(dqmail\\(dq, ... \\(dqtoken\\(dq:1, ...}\n"
          "$ leasehold complete 1 \\-\\-token 1\n"
          ".Ed\n"
          ".Sh SEE ALSO\n",
          f);
    put_see_also(f);
}

/* ---- files ----------------------------------------------------------------------------------- */

static FILE *page_file(const char *folder, const char *name)
{
    struct buf path = {0};
    char why[128];
    FILE *f;

    buf_format(&path, "%s/%s.1", folder, name);
    f = fopen(buf_str(&path), "we");
    if (f == NULL)
        cli_error(0, "could not write \"%s\": %s", buf_str(&path),
                  strerror_r(errno, why, sizeof why));
    buf_clear(&path);
    return f;
}

/** Closes a page. False: it could not be written. */
static bool page_done(FILE *f)
{
    bool ok = ferror(f) == 0;

    if (fclose(f) != 0)
        ok = false;
    if (!ok)
        cli_error(0, "could not write a manual page");
    return ok;
}

int generate_manual(const char *folder)
{
    FILE *f = page_file(folder, "leasehold");
    char name[96];

    if (f == NULL)
        return EXIT_FAILED;
    program_page(f);
    if (!page_done(f))
        return EXIT_FAILED;
    for (size_t i = 0; commands[i] != NULL; i++) {
        if (commands[i]->group != NULL)
            continue;
        snprintf(name, sizeof name, "leasehold-%s", commands[i]->name);
        f = page_file(folder, name);
        if (f == NULL)
            return EXIT_FAILED;
        command_page(f, commands[i]);
        if (!page_done(f))
            return EXIT_FAILED;
    }
    for (const struct group *g = groups; g->name != NULL; g++) {
        snprintf(name, sizeof name, "leasehold-%s", g->name);
        f = page_file(folder, name);
        if (f == NULL)
            return EXIT_FAILED;
        group_page(f, g);
        if (!page_done(f))
            return EXIT_FAILED;
    }
    return EXIT_DONE;
}
