/*
 * Completions for bash, zsh and fish.
 *
 * They offer commands, options and the allowed words of options. They do not offer names of queues
 * and jobs: pressing a key must not open a store.
 */
#include <string.h>

#include "generate.h"

static bool takes_value(const struct option *option)
{
    return option->spec.kind != VALUE_NONE;
}

/** The words that an option allows; NULL: any text. */
static const char *words_of(const struct option *option)
{
    if (option->spec.kind == VALUE_CHOICE)
        return option->spec.choices;
    return option->spec.kind == VALUE_SWITCH ? "on off" : NULL;
}

static bool is_path(const struct option *option)
{
    return option->spec.kind == VALUE_FILE || option == &global_options[GLOBAL_STORE];
}

static bool in_group(const struct command *command, const struct group *group)
{
    return command->group != NULL && strcmp(command->group, group->name) == 0;
}

/* ---- bash ------------------------------------------------------------------------------------ */

static void bash_names(const struct option *options)
{
    for (; options != NULL && options->name != NULL; options++)
        printf(" --%s", options->name);
}

/** The possible values of each option. */
static void bash_values(const struct option *options, const char *indent)
{
    for (; options != NULL && options->name != NULL; options++) {
        const char *words = words_of(options);
        if (!takes_value(options) || (options->flags & OPTION_VALUE_OPTIONAL) != 0)
            continue;
        printf("%s--%s", indent, options->name);
        if (options->letter != '\0')
            printf("|-%c", options->letter);
        if (is_path(options))
            puts(") COMPREPLY=($(compgen -f -- \"$cur\")); return ;;");
        else if (words != NULL)
            printf(") COMPREPLY=($(compgen -W '%s' -- \"$cur\")); return ;;\n", words);
        else
            puts(") return ;;");
    }
}

static void bash_command(const struct command *command)
{
    char title[64];

    printf("    '%s')\n", command_title(command, title, sizeof title));
    if (command->options != NULL && command->options->name != NULL) {
        puts("        case $prev in");
        bash_values(command->options, "        ");
        puts("        esac");
    }
    printf("        words='");
    bash_names(command->options);
    puts("' ;;");
}

void generate_bash(void)
{
    puts("# bash completion for leasehold, made from the program's own tables\n"
         "_leasehold()\n"
         "{\n"
         "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
         "    local command='' words='' word i\n"
         "    COMPREPLY=()\n"
         "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "        word=${COMP_WORDS[i]}\n"
         "        case $word in");
    printf("        ");
    for (size_t i = 0, n = 0; i < GLOBALS; i++)
        if (takes_value(&global_options[i]))
            printf("%s--%s", n++ ? "|" : "", global_options[i].name);
    puts(") ((i++)) ;;\n"
         "        -*) ;;\n"
         "        *)\n"
         "            case $command in\n"
         "            '') command=$word ;;");
    printf("            ");
    for (const struct group *g = groups; g->name != NULL; g++)
        printf("%s%s", g == groups ? "" : "|", g->name);
    puts(") command=\"$command $word\" ;;\n"
         "            esac ;;\n"
         "        esac\n"
         "    done\n"
         "    case $prev in");
    bash_values(global_options, "    ");
    puts("    esac\n"
         "    case $command in");
    printf("    '') words='");
    for (size_t i = 0; commands[i] != NULL; i++)
        if (commands[i]->group == NULL)
            printf("%s ", commands[i]->name);
    for (const struct group *g = groups; g->name != NULL; g++)
        printf("%s%s", g == groups ? "" : " ", g->name);
    puts("' ;;");
    for (const struct group *g = groups; g->name != NULL; g++) {
        printf("    %s) words='", g->name);
        for (size_t i = 0; commands[i] != NULL; i++)
            if (in_group(commands[i], g))
                printf(" %s", commands[i]->name);
        puts("' ;;");
    }
    for (size_t i = 0; commands[i] != NULL; i++)
        bash_command(commands[i]);
    puts("    esac");
    printf("    COMPREPLY=($(compgen -W \"$words");
    bash_names(global_options);
    puts("\" -- \"$cur\"))\n"
         "}\n"
         "complete -o default -F _leasehold leasehold");
}

/* ---- zsh ------------------------------------------------------------------------------------- */

/** Prints text inside single quotes, with the special characters of _arguments escaped. */
static void zsh_text(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            printf("'\\''");
        else if (*text == '[' || *text == ']' || *text == ':' || *text == '\\')
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

static void zsh_option(const struct option *option, const char *indent, const char *end)
{
    const char *words = words_of(option);

    printf("%s", indent);
    if (option->letter != '\0')
        printf("'(-%c --%s)'{-%c,--%s}'[", option->letter, option->name, option->letter,
               option->name);
    else
        printf("'%s--%s%s[", (option->flags & OPTION_REPEATS) != 0 ? "*" : "", option->name,
               option_is_attached(option) ? "=-" : "");
    zsh_text(option->help);
    putchar(']');
    if (takes_value(option)) {
        printf("%s", (option->flags & OPTION_VALUE_OPTIONAL) != 0 ? "::" : ":");
        zsh_text(option->meta);
        putchar(':');
        if (is_path(option))
            printf("_files");
        else if (words != NULL)
            printf("(%s)", words);
    }
    printf("'%s\n", end);
}

static void zsh_command(const struct command *command, const char *indent)
{
    char deeper[32];

    snprintf(deeper, sizeof deeper, "%s        ", indent);
    printf("%s%s)\n%s    _arguments $globals \\\n", indent, command->name, indent);
    for (const struct option *o = command->options; o != NULL && o->name != NULL; o++)
        zsh_option(o, deeper, " \\");
    printf("%s'*:argument:_files' ;;\n", deeper);
}

/** Offers the commands of a group; NULL: the commands without a group, and the groups. */
static void zsh_describe(const struct group *group, const char *indent)
{
    printf("%slocal -a known=(\n", indent);
    for (size_t i = 0; commands[i] != NULL; i++) {
        const struct command *c = commands[i];
        if (group ? !in_group(c, group) : c->group != NULL)
            continue;
        printf("%s    '%s:", indent, c->name);
        zsh_text(c->summary);
        puts("'");
    }
    for (const struct group *g = groups; group == NULL && g->name != NULL; g++) {
        printf("%s    '%s:", indent, g->name);
        zsh_text(g->summary);
        puts("'");
    }
    printf("%s)\n%s_describe command known\n", indent, indent);
}

static void zsh_group(const struct group *group)
{
    printf("_leasehold_%s()\n{\n", group->name);
    puts("    local context state line\n"
         "    typeset -A opt_args\n"
         "    _arguments -C $globals '1:command:->command' '*::argument:->argument'\n"
         "    case $state in\n"
         "    command)");
    zsh_describe(group, "        ");
    puts("        ;;\n"
         "    argument)\n"
         "        case $words[1] in");
    for (size_t i = 0; commands[i] != NULL; i++)
        if (in_group(commands[i], group))
            zsh_command(commands[i], "        ");
    puts("        esac ;;\n"
         "    esac\n"
         "}\n");
}

void generate_zsh(void)
{
    puts("#compdef leasehold\n"
         "# zsh completion for leasehold, made from the program's own tables\n");
    for (const struct group *g = groups; g->name != NULL; g++)
        zsh_group(g);
    puts("_leasehold()\n"
         "{\n"
         "    local context state line\n"
         "    typeset -A opt_args\n"
         "    local -a globals=(");
    for (size_t i = 0; i < GLOBALS; i++)
        zsh_option(&global_options[i], "        ", "");
    puts("    )\n"
         "    _arguments -C $globals '1:command:->command' '*::argument:->argument'\n"
         "    case $state in\n"
         "    command)");
    zsh_describe(NULL, "        ");
    puts("        ;;\n"
         "    argument)\n"
         "        case $words[1] in");
    for (const struct group *g = groups; g->name != NULL; g++)
        printf("        %s) _leasehold_%s ;;\n", g->name, g->name);
    for (size_t i = 0; commands[i] != NULL; i++)
        if (commands[i]->group == NULL)
            zsh_command(commands[i], "        ");
    puts("        esac ;;\n"
         "    esac\n"
         "}\n\n"
         "_leasehold \"$@\"");
}

/* ---- fish ------------------------------------------------------------------------------------ */

static void fish_text(const char *text)
{
    putchar('\'');
    for (; *text != '\0'; text++) {
        if (*text == '\'' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
    putchar('\'');
}

static void fish_option(const struct option *option, const char *title)
{
    const char *words = words_of(option);

    printf("complete -c leasehold");
    if (title != NULL)
        printf(" -n '__leasehold_at \"%s\"'", title);
    printf(" -l %s", option->name);
    if (option->letter != '\0')
        printf(" -s %c", option->letter);
    if (takes_value(option) && is_path(option))
        printf(" -r -F");
    else if (takes_value(option) && (option->flags & OPTION_VALUE_OPTIONAL) == 0)
        printf(" -x");
    if (words != NULL && !option_is_attached(option))
        printf(" -a '%s'", words);
    printf(" -d ");
    fish_text(option->help);
    putchar('\n');
}

static void fish_word(const char *at, const char *word, const char *summary)
{
    printf("complete -c leasehold -n '__leasehold_at \"%s\"' -f -a %s -d ", at, word);
    fish_text(summary);
    putchar('\n');
}

void generate_fish(void)
{
    char title[64];

    puts("# fish completion for leasehold, made from the program's own tables\n"
         "\n"
         "# Is this the command typed so far? Empty: none yet.\n"
         "function __leasehold_at\n"
         "    set -l at\n"
         "    set -l skip 0\n"
         "    for word in (commandline -opc)[2..-1]\n"
         "        if test $skip = 1\n"
         "            set skip 0\n"
         "            continue\n"
         "        end\n"
         "        switch $word");
    printf("            case");
    for (size_t i = 0; i < GLOBALS; i++)
        if (takes_value(&global_options[i]))
            printf(" --%s", global_options[i].name);
    puts("\n"
         "                set skip 1\n"
         "            case '-*'\n"
         "            case '*'\n"
         "                if test (count $at) = 0");
    printf("                    set at $word\n"
           "                else if test (count $at) = 1; and contains -- $at[1]");
    for (const struct group *g = groups; g->name != NULL; g++)
        printf(" %s", g->name);
    puts("\n"
         "                    set at $at $word\n"
         "                end\n"
         "        end\n"
         "    end\n"
         "    test \"$at\" = \"$argv[1]\"\n"
         "end\n");
    for (size_t i = 0; i < GLOBALS; i++)
        fish_option(&global_options[i], NULL);
    for (size_t i = 0; commands[i] != NULL; i++)
        if (commands[i]->group == NULL)
            fish_word("", commands[i]->name, commands[i]->summary);
    for (const struct group *g = groups; g->name != NULL; g++) {
        fish_word("", g->name, g->summary);
        for (size_t i = 0; commands[i] != NULL; i++)
            if (in_group(commands[i], g))
                fish_word(g->name, commands[i]->name, commands[i]->summary);
    }
    for (size_t i = 0; commands[i] != NULL; i++)
        for (const struct option *o = commands[i]->options; o != NULL && o->name != NULL; o++)
            fish_option(o, command_title(commands[i], title, sizeof title));
}
