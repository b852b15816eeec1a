/*
 * The config file: YAML, read whole and strictly before anything is done.
 *
 * Every command reads it, so that a mistake is found at the first command and not by the worker at
 * night. An unknown key, a wrong type, a value out of range and a key given twice are refused with
 * file, line, key, value and what is allowed.
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
    size_t line;              /* where it stands in the file */
    const char *queue, *kind; /* NULL: any */
    lh_policy policy;
};

struct config_scope {
    size_t line;
    const char *scope;
    int64_t ttl_ms;
};

struct config {
    const char *path;  /* NULL: there was none */
    const char *store; /* NULL: not given */
    bool relaxed;      /* durability */
    /* queue.recovery; what is given holds for all queues and kinds */
    struct config_policy recovery;
    bool integrity_check;
    /* queue.heartbeat */
    int64_t interval_ms, multiplier, detection_ms;
    struct config_policy *policies;
    size_t n_policies;
    struct config_scope *scopes;
    size_t n_scopes;
    const char *listen;
    struct lhi_arena arena; /* what the strings and arrays live in */
};

/** Reads `path`; a missing file is a mistake only if it was `named`. False: told why. */
/** Whether another user may have put a file into the current folder, for us to find: where everybody may
 *  make files (/tmp), and it belongs neither to us, nor to root, nor to the owner of the folder. */

bool config_is_planted(const struct stat *file);
bool config_load(struct config *config, const char *path, bool named);
void config_clear(struct config *config);

#endif
