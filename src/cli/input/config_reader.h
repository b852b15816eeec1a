/*
 * Reading a YAML document by tables of keys. Every mistake is reported with file, line, key, value, and what is
 * allowed.
 */
#ifndef LEASEHOLD_CLI_CONFIG_READER_H
#define LEASEHOLD_CLI_CONFIG_READER_H

#include <yaml.h>

#include "cli/cli.h"

struct reader {
    const char *path;
    yaml_document_t *doc;
    struct config *config;
};

/* A key that a mapping may have. */
struct key {
    const char *name; /* NULL ends a table */
    /** Reads the value at `node`; `into` is the item that the mapping describes. */
    bool (*read)(struct reader *r, const struct key *key, yaml_node_t *node, void *into);
    struct value_spec spec; /* for `config_read_value` */
    void (*set)(struct config *config, const struct value *value);
};

/* The keys of the whole file (config_keys.c). */
extern const struct key config_keys[];

size_t line_of(const yaml_node_t *node);
/** Reports a mistake at the line of the node; returns false. */
bool config_refuse(struct reader *r, const yaml_node_t *node, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
const char *yaml_type_name(const yaml_node_t *node);
/** The names of a table of keys, as in "store, durability, queue". */
void key_names(const struct key *keys, struct buf *out);

/** Reads a mapping by a table of its keys. `name` is the mapping's own key, for messages. */
bool config_read_mapping(struct reader *r, const char *name, yaml_node_t *node,
                         const struct key *keys, void *into);
/** Reads a single value by its spec. Numbers and switches must be without quotes: a quoted value is text. */
bool config_read_scalar(struct reader *r, const char *name, const struct value_spec *spec,
                        yaml_node_t *node, struct value *out);
/** For keys that set a field of the config with their `set`. */
bool config_read_value(struct reader *r, const struct key *key, yaml_node_t *node, void *into);
/** Reads a list of mappings. `grow` makes room for one more item and returns it; `check` judges the item. */
bool config_read_list(struct reader *r, const char *name, yaml_node_t *node, const struct key *keys,
                      void *(*grow)(struct config *config, const yaml_node_t *node),
                      bool (*check)(struct reader *r, yaml_node_t *node, void *item));
size_t list_length(const yaml_node_t *node);

/** Refuses two entries of the file that set the same thing (config_duplicates.c). */
bool config_has_no_duplicates(const char *path, struct config *config);

#endif
