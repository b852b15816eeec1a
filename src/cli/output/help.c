/*
 * --help and `leasehold help`, made from the tables of commands and options.
 */
#include <string.h>

#include "cli/cli.h"

enum { WIDTH = 80 };

/** The length of the next word. Words in brackets stay together: `[--grace D]`. */
static size_t word_length(const char *text)
{
    size_t depth = 0, n = 0;

    for (; text[n] != '\0' && text[n] != '\n' && (text[n] != ' ' || depth > 0); n++) {
        if (text[n] == '[')
            depth++;
        else if (text[n] == ']' && depth > 0)
            depth--;
    }
    return n;
}

/** Prints text wrapped to the width, with further lines indented, and ends the line. `first` is the
 *  column where the text starts; if it is less than `indent`, other text precedes it. */
static void fill(const char *text, size_t first, size_t indent)
{
    size_t column = first;
    bool fresh = first == indent;

    for (const char *p = text; *p != '\0';) {
        size_t len = word_length(p);
        size_t width = text_width(p, len);
        if (strncmp(p, "\n\n", 2) == 0) {
            printf("\n\n%*s", (int)indent, "");
            column = indent;
            fresh = true;
            p += 2;
            continue;
        }
        if (len == 0) {
            p++;
            continue;
        }
        if (!fresh && column + 1 + width > WIDTH) {
            printf("\n%*s", (int)indent, "");
            column = indent;
        } else if (!fresh) {
            putchar(' ');
            column++;
        }
        fresh = false;
        printf("%.*s", (int)len, p);
        column += width;
        p += len;
    }
    putchar('\n');
}

static void print_head(const char *title)
{
    bool colors = text_colors(stdout);

    printf("\n%s%s%s\n", style_on(STYLE_BOLD, colors), title, style_off(STYLE_BOLD, colors));
}

static void print_option(const struct option *option)
{
    enum { INDENT = 26 };
    char left[96];
    bool maybe = (option->flags & OPTION_VALUE_OPTIONAL) != 0;
    size_t width;

    snprintf(left, sizeof left, "  %c%c%c --%s%s%s%s", option->letter ? '-' : ' ',
             option->letter ? option->letter : ' ', option->letter ? ',' : ' ', option->name,
             option->meta ? (option_is_attached(option) ? "[="
                             : maybe                    ? " ["
                                                        : " ")
                          : "",
             option->meta ? option->meta : "", maybe ? "]" : "");
    width = text_width(left, strlen(left));
    if (width + 2 > INDENT)
        printf("%s\n%*s", left, INDENT, "");
    else
        printf("%s%*s", left, (int)(INDENT - width), "");
    if (option->spec.kind == VALUE_CHOICE) {
        struct buf help = {0};
        buf_format(&help, "%s: ", option->help);
        for (const char *p = option->spec.choices; *p != '\0'; p++)
            buf_text(&help, *p == ' ' ? ", " : (char[2]){*p, '\0'});
        fill(buf_str(&help), INDENT, INDENT);
        buf_clear(&help);
    } else {
        fill(option->help, INDENT, INDENT);
    }
}

static void print_options(const char *title, const struct option *options)
{
    if (options == NULL || options->name == NULL)
        return;
    print_head(title);
    for (; options->name != NULL; options++)
        print_option(options);
}

static void print_line(const char *name, const char *summary)
{
    printf("  %-16s ", name); /* the longest name is recovery-status */
    fill(summary, 19, 19);
}

void help_command(const struct command *command)
{
    char title[64];
    const char *form = command->args;
    bool first = true;

    command_title(command, title, sizeof title);
    do {
        size_t len = strcspn(form, "\n");
        struct buf line = {0};
        printf("%s leasehold", first ? "Usage:" : "      ");
        buf_format(&line, "%s %.*s", title, (int)len, form);
        fill(buf_str(&line), 16, 17);
        buf_clear(&line);
        first = false;
        form += len;
    } while (*form++ == '\n');
    putchar('\n');
    fill(command->text, 0, 0);
    print_options("Options", command->options);
    print_options("General options", global_options);
    if (command->examples != NULL && command->examples->line != NULL) {
        print_head("Examples");
        for (const struct example *e = command->examples; e->line != NULL; e++)
            printf("  # %s\n  %s\n", e->what, e->line);
    }
    print_head("Exit codes");
    for (const struct exit_note *e = common_exits; e->when != NULL; e++) {
        const char *when = e->when;
        for (const struct exit_note *own = command->exits; own && own->when; own++)
            if (own->code == e->code)
                when = own->when;
        printf("  %d  ", e->code);
        fill(when, 5, 5);
    }
}

void help_group(const struct group *group)
{
    char name[64];

    printf("Usage: leasehold %s COMMAND\n\n", group->name);
    fill(group->summary, 0, 0);
    print_head("Commands");
    for (size_t i = 0; commands[i] != NULL; i++)
        if (commands[i]->group != NULL && strcmp(commands[i]->group, group->name) == 0)
            print_line(commands[i]->name, commands[i]->summary);
    snprintf(name, sizeof name, "leasehold %s COMMAND --help", group->name);
    printf("\nSee '%s' for each of them.\n", name);
}

void help_program(void)
{
    printf("Usage: leasehold COMMAND …\n\n");
    fill("A job queue that heals itself: a worker holds a job under a lease. If the worker dies, "
         "the job returns to the queue.",
         0, 0);
    for (const struct index_entry *e = command_index; e->section || e->command || e->group; e++) {
        const struct group *group = e->group ? group_find(e->group) : NULL;
        if (e->section != NULL)
            print_head(e->section);
        else if (group != NULL)
            print_line(group->name, group->summary);
        else
            print_line(e->command->name, e->command->summary);
    }
    print_options("General options, before or after the command", global_options);
    printf("\nSee 'leasehold COMMAND --help' for each of them.\n");
}

/* ---- leasehold help -------------------------------------------------------------------------- */

static int run(struct cli *cli, const struct args *args)
{
    const char *first = args->n > 0 ? args->positional[0].text : NULL;
    const char *second = args->n > 1 ? args->positional[1].text : NULL;
    const struct group *group = first ? group_find(first) : NULL;
    const struct command *command;

    (void)cli;
    if (first == NULL) {
        help_program();
        return EXIT_DONE;
    }
    if (group != NULL && second == NULL) {
        help_group(group);
        return EXIT_DONE;
    }
    command = group ? command_find(first, second) : command_find(NULL, first);
    if (command == NULL)
        return command_unknown(group, group ? second : first);
    if (group == NULL && second != NULL)
        return usage_error(args->command, "unexpected argument \"%s\"", second);
    help_command(command);
    return EXIT_DONE;
}

static const struct positional positionals[] = {
    {"COMMAND", SPEC_BYTES, true, false},
    {"COMMAND", SPEC_BYTES, true, false},
    {.meta = NULL},
};

static const struct example examples[] = {
    {"leasehold help queue set", "how to set a policy"},
    {.line = NULL},
};

const struct command cmd_help = {
    .name = "help",
    .args = "[COMMAND [COMMAND]]",
    .summary = "show how to use a command",
    .text = "Prints how to use a command; without one, the list of commands.",
    .positionals = positionals,
    .examples = examples,
    .run = run,
    .bare = true,
};
