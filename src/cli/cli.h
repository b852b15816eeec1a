/*
 * What every command has at hand: settings, the store, and one way to say that something failed.
 *
 * Data goes to standard output, words to standard error. A command returns its exit code; the codes
 * of the library's outcomes come from lh_status_exit().
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
    bool log_given; /* somebody said which */
    bool log_json;
    bool force_network;
    struct progress progress; /* of what the command is doing; wiped when a line is logged */
    bool never_wait; /* for whoever reads the log: a line that cannot be written is left out */
    long unsaid;     /* lines */
    struct work_lines *lines; /* of a worker on a terminal; NULL: none */
    bool writes;              /* the store was opened to be changed */
    char did[512];            /* see cli_did() */
    lh_store *store;          /* after cli_open() */
};

/** If --json is among the arguments, errors and notes are JSON from now on. */
void cli_tell_as_json(char *const *argv);

/** One line on standard error, `leasehold: …`; control characters are shown, not obeyed. With --json
 *  `{"error":{"code":…,"message":…}}`. Returns `exit`, so that a failing command can end with it. */
int cli_error(int exit, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** The same, of an outcome of the library; returns its exit code. */
int cli_refused(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Words that are no mistake, on standard error. With --json `{"note":…}`. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** A line of the log, as the store's own are written. */
void cli_log(struct cli *cli, const lh_log_entry *entry);

/** The store's own sentence about its last failure; the exit code of `status`. After an unknown
 *  outcome also the request id to repeat with; what to do about a corrupt store. */
int cli_failed(struct cli *cli, int status);

/** Is the store a file, and no server's? */
bool cli_is_file(const struct cli *cli);

/** The failures of an act on several jobs: one line each, the highest exit code. `verb` as in
 *  "could not cancel job 5: …". Items in `skip` (0: none) are no failure: a status. */
int cli_failed_jobs(struct cli *cli, const char *verb, const int64_t *ids, const int *status,
                    size_t n, int rc);

/** Environment and config file, for all that the options leave open. 0, or the exit code. */
int cli_settings(struct cli *cli, const struct args *args);

/* Of one process: hundreds of workers and waiting commands may share a server. One connection is for calls, one for
 * notifications. */
enum { PROGRAM_CONNECTIONS = 2 };

/* How a store is opened: ACCESS_READ, or a sum of the others. */
enum access {
    ACCESS_READ = 0,                 /* never write; no store is exit 3 */
    ACCESS_WRITE = 1,                /* create a missing SQLite file, migrate an older store */
    ACCESS_ADOPT = ACCESS_WRITE | 2, /* also put our tables into a database that has none */
    /* With ACCESS_WRITE: */
    ACCESS_HOLDER = 4,   /* for the act of a holder: what a crash left is left to the next */
    ACCESS_RECOVER = 8,  /* to recover by hand: the store is made sound first, whatever is set */
    ACCESS_STARTUP = 64, /* by a long-running program: made sound and recovered, as it is set */
    /* Without it: write to a store that is there, make none. */
    ACCESS_ACCEPT_LOSS = 16, /* also if it is older than its high-water mark */
    ACCESS_REPAIR = 32       /* and repair what is damaged */
};

/** The options to open a store with; its log goes to standard error. */
lh_open_opts cli_opts(struct cli *cli, unsigned access);

/** Opens cli->store. 0, or the exit code with the reason told. */
int cli_open(struct cli *cli, unsigned access);

/** Brings `policies:`, `leases:` and `queue.recovery` of the config file into the open store; what is
 *  there already is not written again. 0, or the exit code with the entry and the reason told. */
int cli_apply_config(struct cli *cli);

/** What a long-running program takes for itself: LEASEHOLD_RECOVERY_INTERVAL › queue.heartbeat of
 *  the config file › built in. `recovery` false (an interval of 0): it takes nothing back. */
void cli_worker_settings(const struct cli *cli, int64_t *heartbeat_ms, int64_t *multiplier,
                         int64_t *detection_ms, bool *recovery);

/** From now on SIGINT, SIGTERM and SIGHUP raise this flag instead of ending the program; a second
 *  one ends it. */
const lh_flag *cli_cancel(void);
bool cli_interrupted(void);
/** The exit code after an interruption: 128 and the signal, as shells have it. */
int cli_interrupted_exit(void);

/** Everything standard input has, at most `most` bytes. False: told why. */
bool cli_read_stdin(struct buf *out, size_t most, const char *what);

/** Is the reader of our output, the other end of a pipe, gone? */
bool cli_reader_gone(void);

/** What was done, for when it cannot be printed: "job 5 was enqueued". */
void cli_did(struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Flushes standard output; the exit code, or 1 if what was printed did not get out. Then what was
 *  done is told on standard error. */
int cli_finish(const struct cli *cli, int exit);

/** USER@HOST, made a name. Returns `buf`. */
const char *cli_default_worker(char *buf, size_t len);

/* bench.h and cmd_*.c: the commands */
extern const struct command cmd_enqueue, cmd_claim, cmd_heartbeat, cmd_complete, cmd_fail,
    cmd_release, cmd_cancel, cmd_retry, cmd_delete, cmd_reschedule, cmd_wait, cmd_show, cmd_logs,
    cmd_list, cmd_status, cmd_queue_list, cmd_queue_show, cmd_queue_set, cmd_queue_pause,
    cmd_queue_resume, cmd_queue_purge, cmd_queue_delete, cmd_worker_list, cmd_worker_heartbeat,
    cmd_worker_stop, cmd_lease_acquire, cmd_lease_extend, cmd_lease_release, cmd_lease_complete,
    cmd_lease_show, cmd_lease_list, cmd_lease_run, cmd_schedule_add, cmd_schedule_list,
    cmd_schedule_remove, cmd_events, cmd_prune, cmd_recover, cmd_recovery_status,
    cmd_recovery_report, cmd_queue_recovery_status, cmd_queue_recovery_report, cmd_migrate,
    cmd_move, cmd_backup, cmd_restore, cmd_check, cmd_bench, cmd_work, cmd_top, cmd_help, cmd_gen;

#endif
