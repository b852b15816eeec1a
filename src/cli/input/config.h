/*
 * The config file: YAML, which is read completely and strictly before the command does anything.
 *
 * Every command reads the file, so a mistake is found early and not by a worker at night. An
 * unknown key, a wrong type, a value out of range and a duplicate key are refused with file, line,
 * key, value, and what is allowed.
 */
#ifndef LEASEHOLD_CLI_CONFIG_H
#define LEASEHOLD_CLI_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <leasehold.h>

#include "cli/mem.h"

struct config_policy {
    size_t line;              /* line in the file */
    const char *queue, *kind; /* NULL: any */
    lh_policy policy;
};

struct config_scope {
    size_t line;
    const char *scope;
    int64_t ttl_ms;
};

struct config {
    const char *path;  /* NULL: there is no config file */
    const char *store; /* NULL: not given */
    bool relaxed;      /* durability */
    /* queue.recovery: these settings are for all queues and kinds */
    struct config_policy recovery;
    bool integrity_check;
    /* queue.heartbeat */
    int64_t interval_ms, multiplier, detection_ms;
    struct config_policy *policies;
    size_t n_policies;
    struct config_scope *scopes;
    size_t n_scopes;
    const char *listen;
    struct lhi_arena arena; /* for the strings and arrays */
};

/** Whether another user may have put the file into the current folder: everybody may create
 *  files there (/tmp), and the file belongs neither to us, nor to root, nor to the owner of the
 *  folder. */
bool config_is_planted(const struct stat *file);
/** Reads the file `path`. A missing file is a mistake only if the user `named` it. False: the reason was
 *  printed. */
bool config_load(struct config *config, const char *path, bool named);
void config_clear(struct config *config);

#endif
