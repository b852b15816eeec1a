/*
 * Finding commands by name, and messages about commands and options that do not exist.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "cli/cli.h"

enum { MOST_KNOWN = 96 };

/* ---- tables ---------------------------------------------------------------------------------- */

const struct command *command_find(const char *group, const char *name)
{
    for (size_t i = 0; commands[i] != NULL; i++) {
        const struct command *c = commands[i];
        bool same_group = group ? c->group && strcmp(c->group, group) == 0 : c->group == NULL;
        if (same_group && strcmp(c->name, name) == 0)
            return c;
    }
    return NULL;
}

const struct group *group_find(const char *name)
{
    for (const struct group *g = groups; g->name != NULL; g++)
        if (strcmp(g->name, name) == 0)
            return g;
    return NULL;
}

const char *command_title(const struct command *command, char *buf, size_t len)
{
    snprintf(buf, len, "%s%s%s", command->group ? command->group : "", command->group ? " " : "",
             command->name);
    return buf;
}

/* ---- messages -------------------------------------------------------------------------------- */

int usage_error(const struct command *command, const char *format, ...)
{
    struct buf line = {0};
    char title[64];
    char text[2048];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    buf_format(&line, "%s (see 'leasehold %s%s--help')", text,
               command ? command_title(command, title, sizeof title) : "", command ? " " : "");
    cli_error(2, "%s", buf_str(&line));
    buf_clear(&line);
    return 2;
}

/** Reports "unknown …: did you mean …?" with the nearest of the known words. */
static int unknown(const struct command *command, const char *what, const char *dashes,
                   const char *word, const char *const *known, size_t n)
{
    const char *nearest = value_nearest(word, known, n);
    char full[256], shown[320];

    snprintf(full, sizeof full, "%s%s", dashes, word);
    value_quote(full, shown, sizeof shown);
    if (nearest == NULL)
        return usage_error(command, "unknown %s %s", what, shown);
    return usage_error(command, "unknown %s %s: did you mean \"%s%s\"?", what, shown, dashes,
                       nearest);
}

static int unknown_command(const char *word)
{
    const char *known[MOST_KNOWN];
    size_t n = 0;

    for (size_t i = 0; commands[i] != NULL && n < MOST_KNOWN; i++)
        if (commands[i]->group == NULL)
            known[n++] = commands[i]->name;
    for (const struct group *g = groups; g->name != NULL && n < MOST_KNOWN; g++)
        known[n++] = g->name;
    return unknown(NULL, "command", "", word, known, n);
}

/** Lists the commands of a group, as in "list, set, pause". */
static void group_words(const struct group *group, struct buf *out)
{
    for (size_t i = 0; commands[i] != NULL; i++)
        if (commands[i]->group != NULL && strcmp(commands[i]->group, group->name) == 0)
            buf_format(out, "%s%s", out->n ? ", " : "", commands[i]->name);
}

static int unknown_subcommand(const struct group *group, const char *word)
{
    const char *known[MOST_KNOWN];
    const char *nearest;
    char shown[320], full[256];
    struct buf words = {0};
    size_t n = 0;

    group_words(group, &words);
    if (word == NULL) {
        cli_error(2, "%s needs a command: allowed: %s (see 'leasehold %s --help')", group->name,
                  buf_str(&words), group->name);
        buf_clear(&words);
        return 2;
    }
    for (size_t i = 0; commands[i] != NULL && n < MOST_KNOWN; i++)
        if (commands[i]->group != NULL && strcmp(commands[i]->group, group->name) == 0)
            known[n++] = commands[i]->name;
    nearest = value_nearest(word, known, n);
    snprintf(full, sizeof full, "%s %s", group->name, word);
    value_quote(full, shown, sizeof shown);
    if (nearest != NULL)
        cli_error(2, "unknown command %s: did you mean \"%s %s\"? (see 'leasehold %s --help')",
                  shown, group->name, nearest, group->name);
    else
        cli_error(2, "unknown command %s: allowed: %s (see 'leasehold %s --help')", shown,
                  buf_str(&words), group->name);
    buf_clear(&words);
    return 2;
}

int command_unknown(const struct group *group, const char *word)
{
    if (group != NULL)
        return unknown_subcommand(group, word);
    return word ? unknown_command(word) : usage_error(NULL, "no command given");
}

int option_unknown(const struct command *command, const char *word)
{
    const char *known[MOST_KNOWN];
    size_t n = 0;

    for (const struct option *o = command ? command->options : NULL;
         o != NULL && o->name != NULL && n < MOST_KNOWN; o++)
        known[n++] = o->name;
    for (size_t i = 0; i < GLOBALS && n < MOST_KNOWN; i++)
        known[n++] = global_options[i].name;
    return unknown(command, "option", "--", word, known, n);
}
