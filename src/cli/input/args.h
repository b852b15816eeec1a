/*
 * Commands and their options, as tables.
 *
 * Each command describes itself once. The parser, the help, the messages about mistakes, the shell
 * completions and the manual pages use that description.
 */
#ifndef LEASEHOLD_CLI_ARGS_H
#define LEASEHOLD_CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/mem.h"
#include "value.h"

struct cli;
struct args;

enum {
    OPTION_REQUIRED = 1,
    OPTION_REPEATS = 2,        /* may be given several times */
    OPTION_VALUE_OPTIONAL = 4, /* --wait [D] */
    /* --drain[=HOW]: the value is optional. The next word is never the value, because it may be a
     * queue. */
    OPTION_VALUE_ATTACHED = 8 | OPTION_VALUE_OPTIONAL,
};

/* The fields are in the order of a line in --help. The compiler pads them. */
struct option {       /* NOLINT(clang-analyzer-optin.performance.Padding) */
    const char *name; /* the long form, without dashes; NULL ends a table */
    char letter;      /* the short form; 0: none */
    const char *meta; /* the placeholder of the value in the help; NULL for a flag */
    struct value_spec spec;
    unsigned flags;
    const char *help;
};

/** Whether the value can only be given as --name=VALUE. */
static inline bool option_is_attached(const struct option *option)
{
    return (option->flags & OPTION_VALUE_ATTACHED) == OPTION_VALUE_ATTACHED;
}

struct positional {
    const char *meta; /* NULL ends a table */
    struct value_spec spec;
    bool optional, repeats;
};

struct example {
    const char *line; /* NULL ends a table */
    const char *what;
};

struct exit_note {
    const char *when; /* NULL ends a table */
    int code;
};

struct command {
    const char *group; /* "queue" of `queue set`; NULL: none */
    const char *name;
    const char *args; /* the synopsis after the name, without the general options */
    const char *summary;
    const char *text; /* paragraphs, separated by empty lines */
    const struct positional *positionals;
    const struct option *options;
    const struct example *examples;
    const struct exit_note *exits; /* exit codes that mean something special for this command */
    int (*run)(struct cli *cli, const struct args *args);
    bool runs; /* the words after `--` are a program to run: args.program */
    bool bare; /* needs neither config file nor store */
};

struct group {
    const char *name; /* NULL ends the table */
    const char *summary;
};

/** The tables, in the order of the help (commands.c). */
extern const struct command *const commands[]; /* NULL ends it */
extern const struct group groups[];

/* A line of the list that `leasehold --help` prints: one of the three is set, and none ends the table. */
struct index_entry {
    const char *section; /* a heading */
    const struct command *command;
    const char *group;
};
extern const struct index_entry command_index[];

enum {
    GLOBAL_STORE,
    GLOBAL_CONFIG,
    GLOBAL_JSON,
    GLOBAL_LOG,
    GLOBAL_NETWORK,
    GLOBAL_HELP,
    GLOBAL_VERSION,
    GLOBALS
};
extern const struct option global_options[GLOBALS + 1];

struct args {
    const struct command *command;
    struct value global[GLOBALS];
    struct value *option;     /* in the order of command->options */
    struct value *positional; /* n of them */
    size_t n;
    char **program; /* the program to run and its arguments, NULL at the end */
    int program_n;
    struct lhi_arena arena; /* holds the arrays */
};

/** Reads the command line. Returns -1 if args->command is ready to run. Otherwise returns the exit
 *  code: 0 after --help and --version, 2 after a mistake, which was reported. */
int args_parse(int argc, char **argv, struct args *args);
void args_clear(struct args *args);

const struct command *command_find(const char *group, const char *name);
const struct group *group_find(const char *name);
/** Writes the full name of a command, like "queue set", into `buf`; returns `buf`. */
const char *command_title(const struct command *command, char *buf, size_t len);

/** Reports an unknown command of the group (NULL: of the program) with the nearest name. Returns
 *  2. */
int command_unknown(const struct group *group, const char *word);

/** Reports an unknown option `--word` with the nearest name. Returns 2. */
int option_unknown(const struct command *command, const char *word);

/** Reports a mistake in how the command was called, with a pointer to its help. Returns 2. */
int usage_error(const struct command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* output/help.c */
void help_program(void);
void help_group(const struct group *group);
void help_command(const struct command *command);

/** The exit codes that every command may return. */
extern const struct exit_note common_exits[];

#endif
