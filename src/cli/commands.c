/*
 * The list of commands and groups, and what all commands share: general options and exit codes.
 */
#include "cli.h"

#define SECTION(title)
#define GROUP(name, summary)

const struct command *const commands[] = {
#define COMMAND(name) &cmd_##name,
#define SUBCOMMAND(group, name) &cmd_##group##_##name,
#include "commands.def"
    NULL,
};

#undef COMMAND
#undef SUBCOMMAND
#undef GROUP
#define COMMAND(name)
#define SUBCOMMAND(group, name)

const struct group groups[] = {
#define GROUP(name, summary) {#name, summary},
#include "commands.def"
    {NULL, NULL},
};

#undef SECTION
#undef COMMAND
#undef GROUP

const struct index_entry command_index[] = {
#define SECTION(title) {.section = (title)},
#define COMMAND(name) {.command = &cmd_##name},
#define GROUP(name, summary) {.group = #name},
#include "commands.def"
    {.section = NULL},
};

const struct option global_options[GLOBALS + 1] = {
    [GLOBAL_STORE] = {"store", 0, "URL", SPEC_TEXT(1023), 0,
                      "the store: a path, sqlite:PATH or postgresql://USER@HOST/DATABASE (default: "
                      "$LEASEHOLD_STORE, store: of the config file, leasehold.db)"},
    [GLOBAL_CONFIG] = {"config", 0, "FILE", SPEC_FILE, 0,
                       "the config file (default: $LEASEHOLD_CONFIG, leasehold.yaml)"},
    [GLOBAL_JSON] = {"json", 0, NULL, SPEC_FLAG, 0, "print data as JSON, one object per line"},
    [GLOBAL_LOG] = {"log", 0, "LEVEL", SPEC_CHOICE("error warn info debug"), 0,
                    "log level on standard error (default: $LEASEHOLD_LOG, warn)"},
    [GLOBAL_NETWORK] = {"force-network", 0, NULL, SPEC_FLAG, 0,
                        "open a SQLite file even on a network file system"},
    [GLOBAL_HELP] = {"help", 'h', NULL, SPEC_FLAG, 0, "show how to use a command, and exit"},
    [GLOBAL_VERSION] = {"version", 0, NULL, SPEC_FLAG, 0, "print the version, and exit"},
    [GLOBALS] = {.name = NULL},
};

const struct exit_note common_exits[] = {
    {"done; also an empty list, or nothing found to recover or prune", 0},
    {"failed, see the message", 1},
    {"wrong usage or bad input; nothing was changed", 2},
    {"nothing to do: no job is pending; or the job, queue, worker, lease or store does not "
     "exist, or is in a state that does not allow it",
     3},
    {"the lease is lost, or held by another", 4},
    {"the store is busy or unreachable", 5},
    {"the store is corrupt", 6},
    {"the store can be read but not written", 7},
    {"the outcome is unknown; the request id to repeat with is printed", 8},
    {NULL, 0},
};
