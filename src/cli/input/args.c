/*
 * The parser of the command line.
 */
#include "args.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

static size_t count_options(const struct option *options)
{
    size_t n = 0;

    while (options != NULL && options[n].name != NULL)
        n++;
    return n;
}

struct parse {
    int argc;
    char **argv;
    int i; /* index of the word being read */
    struct args *args;
    const struct group *group; /* a group whose command has not been read yet */
    const char **words;        /* the positional arguments */
    size_t n_words;
    bool ended; /* `--` was seen */
};

static const struct option *option_named(const struct option *options, const char *name, size_t len)
{
    for (; options != NULL && options->name != NULL; options++)
        if (strlen(options->name) == len && memcmp(options->name, name, len) == 0)
            return options;
    return NULL;
}

static const struct option *option_lettered(const struct option *options, char letter)
{
    for (; options != NULL && options->name != NULL; options++)
        if (options->letter == letter && letter != '\0')
            return options;
    return NULL;
}

/** Finds an option by name or letter, first in the command and then in the general options; sets
 *  `*value` to its place. */
static const struct option *lookup(const struct args *args, const char *name, size_t len,
                                   char letter, struct value *globals, struct value **value)
{
    const struct option *own = args->command ? args->command->options : NULL;
    const struct option *found;

    found = name ? option_named(own, name, len) : option_lettered(own, letter);
    if (found != NULL) {
        *value = &args->option[found - own];
        return found;
    }
    found =
        name ? option_named(global_options, name, len) : option_lettered(global_options, letter);
    if (found != NULL)
        *value = &globals[found - global_options];
    return found;
}

static bool is_global(const struct option *option)
{
    return option >= global_options && option < global_options + GLOBALS;
}

static void remember(struct args *args, struct value *value, const char *text)
{
    const char **all = arena_alloc(&args->arena, (value->given + 1) * sizeof *all);

    if (value->given > 0)
        memcpy(all, value->all, value->given * sizeof *all);
    all[value->given++] = text;
    value->all = all;
    value->text = text;
}

/** Whether the word is an option that exists; then it is probably not the value of another
 *  option. */
static bool looks_like_option(struct parse *p, const char *word)
{
    struct value *unused;

    if (strncmp(word, "--", 2) != 0)
        return false;
    return lookup(p->args, word + 2, strcspn(word + 2, "="), 0, p->args->global, &unused) != NULL;
}

static int read_option(struct parse *p, const struct option *option, struct value *value,
                       const char *attached)
{
    const struct command *command = p->args->command;
    const char *text = attached;
    char why[VALUE_WHY];
    char shown[128];

    if (value->given > 0 && (option->flags & OPTION_REPEATS) == 0 && !is_global(option))
        return usage_error(command, "--%s is given twice", option->name);
    if (option->spec.kind == VALUE_NONE) {
        if (attached != NULL)
            return usage_error(command, "--%s takes no value, but was given %s", option->name,
                               value_quote(attached, shown, sizeof shown));
        remember(p->args, value, NULL);
        return -1;
    }
    if (text == NULL && (option->flags & OPTION_VALUE_OPTIONAL) != 0) {
        /* The next word is the value if it can be parsed as one; else it is an argument. */
        struct value probe = {0};
        if (!option_is_attached(option) && p->i + 1 < p->argc &&
            value_parse(&option->spec, p->argv[p->i + 1], &probe, why))
            text = p->argv[++p->i];
        else {
            remember(p->args, value, NULL);
            return -1;
        }
    }
    if (text == NULL) {
        if (p->i + 1 >= p->argc || looks_like_option(p, p->argv[p->i + 1]))
            return usage_error(command, "--%s needs a value: --%s %s", option->name, option->name,
                               option->meta);
        text = p->argv[++p->i];
    }
    if (!value_parse(&option->spec, text, value, why))
        return usage_error(command, "--%s %s %s", option->name,
                           value_quote(text, shown, sizeof shown), why);
    remember(p->args, value, text);
    return -1;
}

static int option_word(struct parse *p)
{
    char *word = p->argv[p->i];
    struct value *value = NULL;
    const struct option *option;
    const char *attached = NULL;

    if (word[1] == '-') {
        size_t len = strcspn(word + 2, "=");
        if (word[2 + len] == '=')
            attached = word + 2 + len + 1;
        option = lookup(p->args, word + 2, len, 0, p->args->global, &value);
        if (option == NULL) {
            char name[128];
            snprintf(name, sizeof name, "%.*s", (int)len, word + 2);
            return option_unknown(p->args->command, name);
        }
        return read_option(p, option, value, attached);
    }
    option = lookup(p->args, NULL, 0, word[1], p->args->global, &value);
    if (option == NULL) {
        char shown[320];
        return usage_error(
            p->args->command, "unknown option %s%s", value_quote(word, shown, sizeof shown),
            word[1] >= '0' && word[1] <= '9' ? ": write -- before words that begin with a dash"
                                             : "");
    }
    if (word[2] != '\0') {
        if (option->spec.kind == VALUE_NONE)
            return usage_error(p->args->command, "-%c takes no value, but was given \"%s\"",
                               word[1], word + 2);
        attached = word + 2;
    }
    return read_option(p, option, value, attached);
}

static void enter(struct parse *p, const struct command *command)
{
    struct args *args = p->args;

    args->command = command;
    args->option =
        arena_alloc(&args->arena, (count_options(command->options) + 1) * sizeof *args->option);
}

static int plain_word(struct parse *p)
{
    char *word = p->argv[p->i];
    const struct command *command;

    if (p->args->command != NULL) {
        p->words[p->n_words++] = word;
        return -1;
    }
    if (p->group == NULL && (p->group = group_find(word)) != NULL)
        return -1;
    command = command_find(p->group ? p->group->name : NULL, word);
    if (command != NULL) {
        enter(p, command);
        return -1;
    }
    return command_unknown(p->group, word);
}

static int read_positionals(struct parse *p)
{
    struct args *args = p->args;
    const struct command *command = args->command;
    const struct positional *slot = command->positionals;
    size_t in_slot = 0;
    char why[VALUE_WHY];
    char shown[128];

    args->positional = arena_alloc(&args->arena, (p->n_words + 1) * sizeof *args->positional);
    for (size_t i = 0; i < p->n_words; i++) {
        struct value *value = &args->positional[i];
        if (slot == NULL || slot->meta == NULL)
            return usage_error(command, "unexpected argument %s",
                               value_quote(p->words[i], shown, sizeof shown));
        if (!value_parse(&slot->spec, p->words[i], value, why))
            return usage_error(command, "%s %s %s", slot->meta,
                               value_quote(p->words[i], shown, sizeof shown), why);
        value->text = p->words[i];
        value->given = 1;
        args->n++;
        in_slot++;
        if (!slot->repeats) {
            slot++;
            in_slot = 0;
        }
    }
    if (slot != NULL && slot->meta != NULL && !slot->optional && in_slot == 0) {
        char title[64];
        return usage_error(command, "%s needs %s", command_title(command, title, sizeof title),
                           slot->meta);
    }
    return -1;
}

static int check_required(const struct args *args)
{
    char title[64];

    for (size_t i = 0; i < count_options(args->command->options); i++) {
        const struct option *option = &args->command->options[i];
        if ((option->flags & OPTION_REQUIRED) != 0 && args->option[i].given == 0)
            return usage_error(args->command, "%s needs --%s %s",
                               command_title(args->command, title, sizeof title), option->name,
                               option->meta);
    }
    return -1;
}

static int print_version(const struct args *args)
{
    if (args->global[GLOBAL_JSON].given) {
        struct js json = {0};
        js_open(&json, '{');
        js_key_text(&json, "version", lh_version());
        js_key_text(&json, "engine", lh_engine_version());
        js_key_int(&json, "schema", lh_schema_version());
        js_close(&json, '}');
        js_line(&json);
        js_clear(&json);
    } else {
        printf("leasehold %s (%s)\n", lh_version(), lh_engine_version());
    }
    return 0;
}

int args_parse(int argc, char **argv, struct args *args)
{
    struct parse p = {.argc = argc, .argv = argv, .args = args};
    int exit = -1;

    p.words = arena_alloc(&args->arena, ((size_t)argc + 1) * sizeof *p.words);
    for (p.i = 1; p.i < argc && exit < 0; p.i++) {
        const char *word = argv[p.i];
        if (!p.ended && strcmp(word, "--") == 0) {
            p.ended = true;
            if (args->command != NULL && args->command->runs) {
                args->program = argv + p.i + 1;
                args->program_n = argc - p.i - 1;
                break;
            }
        } else if (!p.ended && word[0] == '-' && word[1] != '\0')
            exit = option_word(&p);
        else
            exit = plain_word(&p);
        /* Print the help even if the other words are wrong. */
        if (exit < 0 && args->global[GLOBAL_HELP].given > 0)
            break;
    }
    if (exit >= 0)
        return exit;
    if (args->global[GLOBAL_HELP].given > 0) {
        /* `leasehold --help claim` prints the help of claim. */
        for (p.i++; args->command == NULL && p.i < argc && argv[p.i][0] != '-'; p.i++)
            if ((exit = plain_word(&p)) >= 0)
                return exit;
        if (args->command != NULL)
            help_command(args->command);
        else if (p.group != NULL)
            help_group(p.group);
        else
            help_program();
        return 0;
    }
    if (args->global[GLOBAL_VERSION].given > 0)
        return print_version(args);
    if (args->command == NULL)
        return command_unknown(p.group, NULL);
    exit = read_positionals(&p);
    return exit >= 0 ? exit : check_required(args);
}

void args_clear(struct args *args)
{
    lhi_arena_clear(&args->arena);
}
