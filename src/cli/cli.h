/*
 * What the commands share: settings, the store, and one way to report a failure.
 *
 * Data goes to standard output; messages go to standard error. A command returns its exit code. The exit
 * code of an outcome of the library is lh_status_exit().
 */
#ifndef LEASEHOLD_CLI_CLI_H
#define LEASEHOLD_CLI_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <leasehold.h>

#include "cli/input/args.h"
#include "cli/input/config.h"
#include "cli/input/value.h"
#include "cli/json/json.h"
#include "cli/output/progress.h"
#include "cli/output/text.h"
#include "mem.h"

enum {
    EXIT_DONE = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_NOTHING = 3,
    EXIT_LOST = 4,
    EXIT_CORRUPT = 6,
};

struct cli {
    const struct command *command;
    const char *url; /* of the store */
    bool json;       /* --json */
    struct config config;
    int64_t recovery_interval_ms; /* LEASEHOLD_RECOVERY_INTERVAL; -1: not given */
    int log_level;
    bool log_given; /* --log or LEASEHOLD_LOG */
    bool log_json;
    bool force_network;
    struct progress progress; /* the command's progress bar; wiped before a line is logged */
    bool never_wait;          /* drop a log line that cannot be written at once */
    long dropped_lines;
    struct work_lines *lines; /* the job lines of a worker on a terminal; NULL: none */
    bool writes;              /* the store was opened for writing */
    char did[512];            /* see cli_did() */
    lh_store *store;          /* after cli_open() */
};

/* ---- output/errors.c ------------------------------------------------------------------------- */

/** If --json is among the arguments, errors and notes are JSON from now on. */
void cli_errors_as_json(char *const *argv);

/** Prints `leasehold: …` on standard error, with control characters made visible. With --json
 *  `{"error":{"code":…,"message":…}}`. Returns `exit`, so that a failing command can return the call. */
int cli_error(int exit, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** The same for an outcome of the library; returns its exit code. */
int cli_refused(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Prints a remark that is not an error on standard error. With --json `{"note":…}`. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Prints the store's sentence about its last failure, with the request id after an unknown outcome, and
 *  with advice for a corrupt store. Returns the exit code of `status`. */
int cli_failed(struct cli *cli, int status);

/** Prints a line for each job that failed and returns the highest exit code. `verb` as in "could not
 *  cancel job 5: …". `rc` is the status of the whole call. */
int cli_failed_jobs(struct cli *cli, const char *verb, const int64_t *ids, const int *status,
                    size_t n, int rc);

/** Whether the store is a file (SQLite). */
bool cli_is_file(const struct cli *cli);

/** Writes a whole line at once, so that lines of several threads or processes do not mix. */
void put_stderr_line(const struct buf *line);

/* ---- output/log.c ---------------------------------------------------------------------------- */

/** Logs a line on standard error. `arg` is the struct cli: this is also the store's log callback. */
void cli_log_line(void *arg, const lh_log_entry *entry);

/* ---- settings.c ------------------------------------------------------------------------------ */

/** Reads the environment and the config file for what the options leave open. 0, or the exit code. */
int cli_settings(struct cli *cli, const struct args *args);

/** Refuses the default store if another user may have put it into this folder: its jobs would be run.
 *  0, or the exit code. */
int cli_refuse_planted_store(const struct cli *cli);

/** USER@HOST, with every character that a name may not have replaced by a dash. Returns `buf`. */
const char *cli_default_worker(char *buf, size_t len);

/* ---- open.c ---------------------------------------------------------------------------------- */

/* Connections of one process, on PostgreSQL: one for calls and one for notifications. Hundreds of workers
 * and waiting commands may share a server. */
enum { PROGRAM_CONNECTIONS = 2 };

/* How a store is opened: ACCESS_READ, or a sum of the others. */
enum access {
    ACCESS_READ = 0,                 /* never write; a missing store is exit code 3 */
    ACCESS_WRITE = 1,                /* create a missing SQLite file, migrate an older store */
    ACCESS_ADOPT = ACCESS_WRITE | 2, /* also add our tables to a database that has none */
    /* With ACCESS_WRITE: */
    ACCESS_HOLDER = 4, /* for a call by the holder of a job: leave recovery to another process */
    ACCESS_RECOVER =
        8, /* for `leasehold recover`: check the store, even if the settings say not to */
    ACCESS_STARTUP = 64, /* for a long-running command: check and recover as the settings say */
    /* Without ACCESS_WRITE: write to a store that exists, create none. */
    ACCESS_ACCEPT_LOSS = 16, /* even if the store is older than its high-water mark */
    ACCESS_REPAIR = 32       /* and repair damage */
};

/** The options to open a store with. The store's log goes to standard error. */
lh_open_opts cli_opts(struct cli *cli, unsigned access);

/** Opens cli->store. 0, or the exit code with the reason printed. */
int cli_open(struct cli *cli, unsigned access);

/* ---- input/apply.c --------------------------------------------------------------------------- */

/** Writes `policies:`, `leases:` and `queue.recovery` of the config file into the open store. Values that
 *  are in the store already are not written again. 0, or the exit code with the entry and the reason
 *  printed. */
int cli_apply_config(struct cli *cli);

/** The heartbeat settings of a long-running command: LEASEHOLD_RECOVERY_INTERVAL, then
 *  queue.heartbeat of the config file, then the built-in values. `recovery` is false for an interval of 0:
 *  then this process recovers nothing. */
void cli_worker_settings(const struct cli *cli, int64_t *heartbeat_ms, int64_t *multiplier,
                         int64_t *detection_ms, bool *recovery);

/* ---- interrupt.c ----------------------------------------------------------------------------- */

/** From now on SIGINT, SIGTERM and SIGHUP set this flag and do not end the program. A second signal
 *  ends it. */
const lh_flag *cli_cancel(void);
bool cli_interrupted(void);
/** The exit code after an interruption: 128 plus the signal, as in shells. */
int cli_interrupted_exit(void);

/* ---- input/stdin.c --------------------------------------------------------------------------- */

/** Reads all of standard input, at most `most` bytes. False: the reason was printed. */
bool cli_read_stdin(struct buf *out, size_t most, const char *what);

/* ---- output/finish.c ------------------------------------------------------------------------- */

/** Whether standard output is a pipe that nobody reads any more. */
bool cli_reader_gone(void);

/** Notes what the command has done ("job 5 was enqueued"), for cli_finish(). */
void cli_did(struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Flushes standard output. Returns `exit`, or 1 if the output was lost; then standard error says what the
 *  command has done. */
int cli_finish(const struct cli *cli, int exit);

/* ---- the commands ---------------------------------------------------------------------------- */

#define SECTION(title)
#define COMMAND(name) extern const struct command cmd_##name;
#define GROUP(name, summary)
#define SUBCOMMAND(group, name) extern const struct command cmd_##group##_##name;
#include "commands.def"
#undef SECTION
#undef COMMAND
#undef GROUP
#undef SUBCOMMAND

#endif
