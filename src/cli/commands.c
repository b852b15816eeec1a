/*
 * All commands, in the order they are shown.
 */
#include "cli.h"

const struct command *const commands[] = {
    &cmd_enqueue,
    &cmd_claim,
    &cmd_heartbeat,
    &cmd_complete,
    &cmd_fail,
    &cmd_release,
    &cmd_cancel,
    &cmd_retry,
    &cmd_reschedule,
    &cmd_delete,
    &cmd_wait,
    &cmd_work,
    &cmd_show,
    &cmd_logs,
    &cmd_list,
    &cmd_events,
    &cmd_status,
    &cmd_top,
    &cmd_queue_list,
    &cmd_queue_show,
    &cmd_queue_set,
    &cmd_queue_pause,
    &cmd_queue_resume,
    &cmd_queue_purge,
    &cmd_queue_delete,
    &cmd_queue_recovery_status,
    &cmd_queue_recovery_report,
    &cmd_schedule_add,
    &cmd_schedule_list,
    &cmd_schedule_remove,
    &cmd_worker_list,
    &cmd_worker_heartbeat,
    &cmd_worker_stop,
    &cmd_lease_acquire,
    &cmd_lease_extend,
    &cmd_lease_release,
    &cmd_lease_complete,
    &cmd_lease_show,
    &cmd_lease_list,
    &cmd_lease_run,
    &cmd_recover,
    &cmd_recovery_status,
    &cmd_recovery_report,
    &cmd_check,
    &cmd_prune,
    &cmd_backup,
    &cmd_restore,
    &cmd_migrate,
    &cmd_move,
    &cmd_bench,
    &cmd_help,
    &cmd_gen,
    NULL,
};

const struct group groups[] = {
    {"queue", "look at queues, set their policies, pause, resume and purge them"},
    {"schedule", "periodic work: jobs that are enqueued by a cron line"},
    {"worker", "look at workers, beat for one, say goodbye for one"},
    {"lease", "named leases: time-limited ownership of anything that has a name"},
    {NULL, NULL},
};

const struct section sections[] = {
    {"The life of a job", "enqueue claim heartbeat complete fail release cancel retry reschedule "
                          "delete wait"},
    {"Running it", "work"},
    {"Looking at it", "show logs list events status top"},
    {"Queues, schedules, workers, named leases", "queue schedule worker lease"},
    {"The store",
     "recover recovery-status recovery-report check backup restore prune migrate move bench"},
    {"This program", "help"},
    {NULL, NULL},
};

const struct option global_options[GLOBALS + 1] = {
    [GLOBAL_STORE] = {"store", 0, "URL", SPEC_TEXT(1023), 0,
                      "the store: a path, sqlite:PATH or postgresql://USER@HOST/DATABASE (default: "
                      "$LEASEHOLD_STORE, store: of the config file, leasehold.db)"},
    [GLOBAL_CONFIG] = {"config", 0, "FILE", SPEC_FILE, 0,
                       "the config file (default: $LEASEHOLD_CONFIG, leasehold.yaml)"},
    [GLOBAL_JSON] = {"json", 0, NULL, SPEC_FLAG, 0, "print data as JSON, one object per line"},
    [GLOBAL_LOG] = {"log", 0, "LEVEL", SPEC_CHOICE("error warn info debug"), 0,
                    "what is logged on standard error (default: $LEASEHOLD_LOG, warn)"},
    [GLOBAL_NETWORK] = {"force-network", 0, NULL, SPEC_FLAG, 0,
                        "open a SQLite file on a network file system all the same"},
    [GLOBAL_HELP] = {"help", 'h', NULL, SPEC_FLAG, 0, "say how a command is used, and end"},
    [GLOBAL_VERSION] = {"version", 0, NULL, SPEC_FLAG, 0, "print the version, and end"},
    [GLOBALS] = {.name = NULL},
};

const struct exit_note common_exits[] = {
    {"done; also an empty list, or nothing found to recover or prune", 0},
    {"failed, see the message", 1},
    {"wrong usage or bad input; nothing was changed", 2},
    {"nothing to do: no job pending, no such job, queue, worker, lease or store, not in a state "
     "that "
     "allows it",
     3},
    {"the lease is lost, or held by another", 4},
    {"the store stayed busy, or is unreachable", 5},
    {"the store is corrupt", 6},
    {"the store can be read but not written", 7},
    {"the outcome is unknown; the request id to repeat with is printed", 8},
    {NULL, 0},
};
