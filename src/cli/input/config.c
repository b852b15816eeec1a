#include "config.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <yaml.h>

#include "cli/cli.h"
#include "policy_keys.h"
#include "value.h"

enum { MOST_BYTES = 1 << 20, MOST_DEPTH = 16 };

struct reader {
    const char *path;
    yaml_document_t *doc;
    struct config *config;
};

/* A key that a mapping may have. `read` gets the value's node. */
struct key {
    const char *name; /* NULL ends a table */
    bool (*read)(struct reader *r, const struct key *key, yaml_node_t *node, void *into);
    struct value_spec spec; /* for `read_value` */
    void (*set)(struct config *config, const struct value *value);
};

/* ---- mistakes -------------------------------------------------------------------------------- */

static size_t line_of(const yaml_node_t *node)
{
    return node->start_mark.line + 1;
}

static bool refuse(struct reader *r, const yaml_node_t *node, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool refuse(struct reader *r, const yaml_node_t *node, const char *format, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    cli_error(EXIT_USAGE, "%s:%zu: %s", r->path, line_of(node), text);
    return false;
}

static const char *type_name(const yaml_node_t *node)
{
    switch (node->type) {
    case YAML_MAPPING_NODE:
        return "a mapping";
    case YAML_SEQUENCE_NODE:
        return "a list";
    default:
        return "a single value";
    }
}

static bool wrong_type(struct reader *r, const char *key, const yaml_node_t *node,
                       const char *allowed)
{
    char shown[128];

    if (node->type != YAML_SCALAR_NODE)
        return refuse(r, node, "key \"%s\": value is %s: allowed: %s", key, type_name(node),
                      allowed);
    value_quote((const char *)node->data.scalar.value, shown, sizeof shown);
    return refuse(r, node, "key \"%s\": value %s is %s: allowed: %s", key, shown, type_name(node),
                  allowed);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static const char *scalar(const yaml_node_t *node)
{
    return (const char *)node->data.scalar.value;
}

/** The words of a table of keys: "store, durability, queue". */
static void key_words(const struct key *keys, struct buf *out)
{
    for (const struct key *k = keys; k->name != NULL; k++)
        buf_format(out, "%s%s", out->n ? ", " : "", k->name);
}

static bool unknown_key(struct reader *r, const yaml_node_t *node, const struct key *keys)
{
    const char *known[POLICY_KEYS + 8];
    char shown[128];
    const char *nearest;
    struct buf words = {0};
    size_t n = 0;

    for (const struct key *k = keys; k->name != NULL; k++)
        known[n++] = k->name;
    nearest = value_nearest(scalar(node), known, n);
    key_words(keys, &words);
    refuse(r, node, "key %s is unknown%s%s%s: allowed: %s",
           value_quote(scalar(node), shown, sizeof shown), nearest ? " (did you mean \"" : "",
           nearest ? nearest : "", nearest ? "\"?)" : "", buf_str(&words));
    buf_clear(&words);
    return false;
}

/** Reads a mapping by a table of its keys. `name` is the key it stands under, for messages. */
static bool read_mapping(struct reader *r, const char *name, yaml_node_t *node,
                         const struct key *keys, void *into)
{
    size_t seen = 0; /* one bit for each key */

    if (node->type != YAML_MAPPING_NODE) {
        struct buf words = {0};
        struct buf allowed = {0};
        key_words(keys, &words);
        buf_format(&allowed, "a mapping with the keys %s", buf_str(&words));
        wrong_type(r, name, node, buf_str(&allowed));
        buf_clear(&allowed);
        buf_clear(&words);
        return false;
    }
    for (yaml_node_pair_t *pair = node->data.mapping.pairs.start;
         pair < node->data.mapping.pairs.top; pair++) {
        yaml_node_t *key = yaml_document_get_node(r->doc, pair->key);
        yaml_node_t *value = yaml_document_get_node(r->doc, pair->value);
        const struct key *k = keys;
        if (key->type != YAML_SCALAR_NODE)
            return refuse(r, key, "a key is %s: allowed: a word", type_name(key));
        /* A zero byte in the key ends the word early: then the lengths differ. */
        while (k->name != NULL &&
               (strlen(k->name) != key->data.scalar.length || strcmp(k->name, scalar(key)) != 0))
            k++;
        if (k->name == NULL)
            return unknown_key(r, key, keys);
        if ((seen >> (k - keys) & 1) != 0)
            return refuse(r, key, "key \"%s\" is given twice: allowed: once", k->name);
        seen |= (size_t)1 << (k - keys);
        if (!k->read(r, k, value, into))
            return false;
    }
    return true;
}

/** A value without structure, read by a spec. Numbers and switches must stand without quotes: what
 *  is quoted is text. */
static bool read_scalar(struct reader *r, const char *name, const struct value_spec *spec,
                        yaml_node_t *node, struct value *out)
{
    bool number = spec->kind == VALUE_INT || spec->kind == VALUE_SWITCH;
    char why[VALUE_WHY];
    char shown[128];

    if (node->type != YAML_SCALAR_NODE)
        return wrong_type(r, name, node, "a single value");
    value_quote(scalar(node), shown, sizeof shown);
    if (strlen(scalar(node)) != node->data.scalar.length)
        return refuse(r, node, "key \"%s\": value %s has a zero byte: allowed: text", name, shown);
    if (number && node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return refuse(r, node, "key \"%s\": value %s is text in quotes: allowed: %s", name, shown,
                      spec->kind == VALUE_INT ? "a number without quotes"
                                              : "on or off without quotes");
    if (!value_parse(spec, scalar(node), out, why))
        return refuse(r, node, "key \"%s\": value %s %s", name, shown, why);
    out->text = arena_copy(&r->config->arena, scalar(node), node->data.scalar.length);
    out->given = 1;
    return true;
}

/** For keys that set a field of the config. */
static bool read_value(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    struct value value = {0};

    (void)into;
    if (!read_scalar(r, key->name, &key->spec, node, &value))
        return false;
    key->set(r->config, &value);
    return true;
}

/** Reads a list of mappings; `grow` makes room for one more and returns it. */
static bool read_list(struct reader *r, const char *name, yaml_node_t *node, const struct key *keys,
                      void *(*grow)(struct config *config, const yaml_node_t *node),
                      bool (*check)(struct reader *r, yaml_node_t *node, void *item))
{
    if (node->type != YAML_SEQUENCE_NODE)
        return wrong_type(r, name, node, "a list");
    for (yaml_node_item_t *item = node->data.sequence.items.start;
         item < node->data.sequence.items.top; item++) {
        yaml_node_t *one = yaml_document_get_node(r->doc, *item);
        void *into = grow(r->config, node);
        if (!read_mapping(r, name, one, keys, into) || !check(r, one, into))
            return false;
    }
    return true;
}

static size_t list_length(const yaml_node_t *node)
{
    return (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
}

/* ---- queue.recovery and queue.heartbeat ------------------------------------------------------ */

static void set_action(struct config *c, const struct value *v)
{
    policy_key_set(&policy_keys[POLICY_KEY_LH_POLICY_ACTION], v, &c->recovery.policy);
}

static void set_max_recoveries(struct config *c, const struct value *v)
{
    policy_key_set(&policy_keys[POLICY_KEY_LH_POLICY_MAX_RECOVERIES], v, &c->recovery.policy);
}

static void set_integrity(struct config *c, const struct value *v)
{
    c->integrity_check = v->num != 0;
}

static void set_interval(struct config *c, const struct value *v)
{
    c->interval_ms = v->num * 1000;
}

static void set_multiplier(struct config *c, const struct value *v)
{
    c->multiplier = v->num;
}

static void set_detection(struct config *c, const struct value *v)
{
    c->detection_ms = v->num * 1000;
}

static const struct key recovery_keys[] = {
    {"action", read_value, SPEC_ACTION, set_action},
    {"maxRecoveryAttempts", read_value, SPEC_RECOVERIES, set_max_recoveries},
    {"integrityCheckOnStartup", read_value, SPEC_SWITCH, set_integrity},
    {.name = NULL},
};

static const struct key heartbeat_keys[] = {
    {"intervalSeconds", read_value, SPEC_INT(1, 86400), set_interval},
    {"staleThresholdMultiplier", read_value, SPEC_INT(1, 1000), set_multiplier},
    {"detectionIntervalSeconds", read_value, SPEC_INT(0, 86400), set_detection},
    {.name = NULL},
};

static bool read_recovery(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    r->config->recovery.line = line_of(node);
    return read_mapping(r, key->name, node, recovery_keys, into);
}

static bool read_heartbeat(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    return read_mapping(r, key->name, node, heartbeat_keys, into);
}

static const struct key queue_keys[] = {
    {.name = "recovery", .read = read_recovery},
    {.name = "heartbeat", .read = read_heartbeat},
    {.name = NULL},
};

static bool read_queue(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    return read_mapping(r, key->name, node, queue_keys, into);
}

/* ---- policies -------------------------------------------------------------------------------- */

static bool read_policy_name(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    struct config_policy *policy = into;
    struct value value = {0};

    if (!read_scalar(r, key->name, &key->spec, node, &value))
        return false;
    if (strcmp(key->name, "queue") == 0)
        policy->queue = value.text;
    else
        policy->kind = value.text;
    return true;
}

static bool read_policy_key(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    struct config_policy *policy = into;
    struct value value = {0};

    for (size_t i = 0; i < policy_key_count; i++) {
        if (strcmp(policy_keys[i].config, key->name) != 0)
            continue;
        if (!read_scalar(r, key->name, &policy_keys[i].spec, node, &value))
            return false;
        policy_key_set(&policy_keys[i], &value, &policy->policy);
    }
    return true;
}

static const struct key policy_mapping[] = {
    {"queue", read_policy_name, SPEC_NAME, NULL},
    {"kind", read_policy_name, SPEC_NAME, NULL},
#define POLICY_KEY(config, option, json, meta, spec, field, help) \
    {config, read_policy_key, spec, NULL},
#include "policy_keys.def"
#undef POLICY_KEY
    {.name = NULL},
};

static void *grow_policy(struct config *config, const yaml_node_t *node)
{
    if (config->policies == NULL)
        config->policies =
            arena_alloc(&config->arena, list_length(node) * sizeof *config->policies);
    return &config->policies[config->n_policies++];
}

static bool check_policy(struct reader *r, yaml_node_t *node, void *item)
{
    struct config_policy *policy = item;
    bool of_queue = (policy->policy.set & POLICY_QUEUE_ONLY) != 0;
    const char *key = (policy->policy.set & LH_POLICY_RATE) != 0 ? "rate" : "concurrency";

    if (of_queue && policy->queue == NULL)
        return refuse(r, node,
                      "key \"%s\": holds for one queue, and this policy names none: "
                      "allowed: together with key \"queue\"",
                      key);
    if (of_queue && policy->kind != NULL)
        return refuse(r, node,
                      "key \"%s\": holds for a whole queue, and this policy is for kind "
                      "\"%s\": allowed: without key \"kind\"",
                      key, policy->kind);
    if (policy->policy.exclusive && policy->kind != NULL)
        return refuse(r, node,
                      "key \"exclusive\": holds for a whole queue, and this policy is for kind "
                      "\"%s\": allowed: without key \"kind\", or no",
                      policy->kind);
    /* A kind is never exclusive: saying so sets nothing, and the library takes nothing of the sort. */
    if (policy->kind != NULL)
        policy->policy.set &= ~(unsigned)LH_POLICY_EXCLUSIVE;
    policy->line = line_of(node);
    return true;
}

static bool read_policies(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    (void)into;
    return read_list(r, key->name, node, policy_mapping, grow_policy, check_policy);
}

/* ---- leases ---------------------------------------------------------------------------------- */

static bool read_scope_key(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    struct config_scope *scope = into;
    struct value value = {0};

    if (!read_scalar(r, key->name, &key->spec, node, &value))
        return false;
    if (strcmp(key->name, "scope") == 0)
        scope->scope = value.text;
    else
        scope->ttl_ms = value.num;
    return true;
}

static const struct key scope_mapping[] = {
    {"scope", read_scope_key, SPEC_NAME, NULL},
    {"ttl", read_scope_key, SPEC_LEASE_TIME, NULL},
    {.name = NULL},
};

static void *grow_scope(struct config *config, const yaml_node_t *node)
{
    if (config->scopes == NULL)
        config->scopes = arena_alloc(&config->arena, list_length(node) * sizeof *config->scopes);
    return &config->scopes[config->n_scopes++];
}

static bool check_scope(struct reader *r, yaml_node_t *node, void *item)
{
    struct config_scope *scope = item;

    if (scope->scope == NULL)
        return refuse(r, node, "key \"scope\" is missing: allowed: a name");
    if (scope->ttl_ms == 0)
        return refuse(r, node, "key \"ttl\" is missing: allowed: 1ms to 30d");
    scope->line = line_of(node);
    return true;
}

static bool read_leases(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    (void)into;
    return read_list(r, key->name, node, scope_mapping, grow_scope, check_scope);
}

/* ---- server ---------------------------------------------------------------------------------- */

static bool address_ok(const char *text)
{
    const char *colon = strrchr(text, ':');
    const struct value_spec ports = SPEC_INT(0, 65535);
    struct value port = {0};
    char why[VALUE_WHY];

    if (strncmp(text, "unix:", 5) == 0)
        return text[5] != '\0';
    return colon != NULL && colon > text && value_parse(&ports, colon + 1, &port, why);
}

static bool read_listen(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    struct value value = {0};
    char shown[128];

    (void)into;
    if (!read_scalar(r, key->name, &key->spec, node, &value))
        return false;
    assert(value.text != NULL);
    if (!address_ok(value.text))
        return refuse(r, node,
                      "key \"%s\": value %s is not an address: allowed: ADDR:PORT, port 0 to "
                      "65535, or unix:PATH",
                      key->name, value_quote(value.text, shown, sizeof shown));
    r->config->listen = value.text;
    return true;
}

static const struct key server_keys[] = {
    {"listen", read_listen, SPEC_TEXT(1024), NULL},
    {.name = NULL},
};

static bool read_server(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    return read_mapping(r, key->name, node, server_keys, into);
}

/* ---- said twice ------------------------------------------------------------------------------ */

/* Two entries for one thing would be written over each other at every start. They may stand far
 * apart, so they are sorted first: a file may have tens of thousands. */

static int compare_names(const char *a, const char *b)
{
    return strcmp(a != NULL ? a : "", b != NULL ? b : "");
}

static int compare_lines(size_t a, size_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_policies(const void *left, const void *right)
{
    const struct config_policy *a = *(const struct config_policy *const *)left;
    const struct config_policy *b = *(const struct config_policy *const *)right;
    int order = compare_names(a->queue, b->queue);

    if (order == 0)
        order = compare_names(a->kind, b->kind);
    return order != 0 ? order : compare_lines(a->line, b->line);
}

static int compare_scopes(const void *left, const void *right)
{
    const struct config_scope *a = *(const struct config_scope *const *)left;
    const struct config_scope *b = *(const struct config_scope *const *)right;
    int order = strcmp(a->scope, b->scope);

    return order != 0 ? order : compare_lines(a->line, b->line);
}

static bool same_policy(const struct config_policy *a, const struct config_policy *b)
{
    return compare_names(a->queue, b->queue) == 0 && compare_names(a->kind, b->kind) == 0;
}

static bool said_twice(const char *path, const struct config_policy *first,
                       const struct config_policy *second)
{
    unsigned both = first->policy.set & second->policy.set;
    size_t i = 0;

    while ((policy_keys[i].field & both) == 0)
        i++;
    cli_error(EXIT_USAGE, "%s:%zu: key \"%s\": line %zu sets it for the same jobs: allowed: once",
              path, second->line, policy_keys[i].config, first->line);
    return false;
}

static bool policies_once(const char *path, struct config *config)
{
    size_t n = config->n_policies + 1;
    const struct config_policy **sorted = arena_alloc(&config->arena, n * sizeof(void *));
    unsigned seen = 0; /* in entries for the same jobs, from `first` on */

    for (size_t i = 0; i + 1 < n; i++)
        sorted[i] = &config->policies[i];
    sorted[n - 1] = &config->recovery;
    qsort(sorted, n, sizeof(void *), compare_policies);
    for (size_t i = 0, first = 0; i < n; i++) {
        if (!same_policy(sorted[first], sorted[i])) {
            first = i;
            seen = 0;
        }
        unsigned twice = sorted[i]->policy.set & seen;
        if (twice != 0) {
            while ((sorted[first]->policy.set & twice) == 0)
                first++;
            return said_twice(path, sorted[first], sorted[i]);
        }
        seen |= sorted[i]->policy.set;
    }
    return true;
}

static bool scopes_once(const char *path, struct config *config)
{
    size_t n = config->n_scopes;
    const struct config_scope **sorted = arena_alloc(&config->arena, (n + 1) * sizeof(void *));

    for (size_t i = 0; i < n; i++)
        sorted[i] = &config->scopes[i];
    qsort(sorted, n, sizeof(void *), compare_scopes);
    for (size_t i = 1; i < n; i++)
        if (strcmp(sorted[i - 1]->scope, sorted[i]->scope) == 0) {
            cli_error(EXIT_USAGE, "%s:%zu: key \"scope\": line %zu has \"%s\" too: allowed: once",
                      path, sorted[i]->line, sorted[i - 1]->line, sorted[i]->scope);
            return false;
        }
    return true;
}

/* ---- the file -------------------------------------------------------------------------------- */

static void set_store(struct config *c, const struct value *v)
{
    c->store = v->text;
}

static void set_durability(struct config *c, const struct value *v)
{
    c->relaxed = v->num == 2;
}

static const struct key top_keys[] = {
    {"store", read_value, SPEC_TEXT(1023), set_store},
    {"durability", read_value, SPEC_CHOICE("full relaxed"), set_durability},
    {.name = "queue", .read = read_queue},
    {.name = "policies", .read = read_policies},
    {.name = "leases", .read = read_leases},
    {.name = "server", .read = read_server},
    {.name = NULL},
};

static bool read_document(struct reader *r)
{
    yaml_node_t *root = yaml_document_get_root_node(r->doc);

    if (root == NULL) /* empty, or only comments: nothing is set */
        return true;
    if (root->type != YAML_MAPPING_NODE) {
        struct buf words = {0};
        key_words(top_keys, &words);
        refuse(r, root, "the file holds %s: allowed: a mapping with the keys %s", type_name(root),
               buf_str(&words));
        buf_clear(&words);
        return false;
    }
    return read_mapping(r, "", root, top_keys, NULL);
}

/* libyaml takes quadratic time for brackets in brackets, and reads the whole file before it hands
 * anything out. Nothing here is nested deeper than a list of mappings. */
static bool too_deep(const char *path, const struct buf *text)
{
    int depth = 0, deepest = 0;
    size_t line = 1;

    for (size_t i = 0; i < text->n && deepest <= MOST_DEPTH; i++) {
        char c = text->p[i];
        line += c == '\n';
        if (c == '[' || c == '{')
            deepest = ++depth > deepest ? depth : deepest;
        else if (c == ']' || c == '}')
            depth--;
    }
    if (deepest <= MOST_DEPTH)
        return false;
    cli_error(EXIT_USAGE, "%s:%zu: brackets are nested deeper than %d", path, line, MOST_DEPTH);
    return true;
}

static bool parse(struct config *config, const char *path, const struct buf *text)
{
    yaml_parser_t parser;
    yaml_document_t doc;
    struct reader r = {.path = path, .doc = &doc, .config = config};
    bool ok = false;

    if (too_deep(path, text))
        return false;
    if (!yaml_parser_initialize(&parser)) {
        cli_error(EXIT_FAILED, "out of memory");
        return false;
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)(text->n > 0 ? text->p : ""),
                                 text->n);
    if (yaml_parser_load(&parser, &doc)) {
        ok = read_document(&r);
        yaml_document_delete(&doc);
    }
    if (ok && yaml_parser_load(&parser, &doc)) {
        yaml_node_t *more = yaml_document_get_root_node(&doc);
        if (more != NULL)
            ok = refuse(&r, more, "a second document begins: allowed: one");
        yaml_document_delete(&doc);
    }
    if (parser.error != YAML_NO_ERROR) {
        ok = false;
        cli_error(EXIT_USAGE, "%s:%zu: not YAML: %s%s%s", path, parser.problem_mark.line + 1,
                  parser.problem ? parser.problem : "it cannot be read", parser.context ? " " : "",
                  parser.context ? parser.context : "");
    }
    yaml_parser_delete(&parser);
    return ok && policies_once(path, config) && scopes_once(path, config);
}

/* What a descriptor that never waits gives, up to the largest size and a byte. NULL, or why not. */
static const char *read_all(int fd, struct buf *text, char *why, size_t len)
{
    char chunk[65536];
    struct stat status;

    if (fstat(fd, &status) != 0)
        return strerror_r(errno, why, len);
    if (S_ISDIR(status.st_mode))
        return "it is a directory";
    if (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode))
        return "it is a pipe or a socket: allowed: a file";
    while (text->n <= MOST_BYTES) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n == 0)
            return NULL;
        if (n < 0)
            return strerror_r(errno, why, len);
        buf_add(text, chunk, (size_t)n);
    }
    return "it is too large: allowed: at most 1 MiB";
}

bool config_is_planted(const struct stat *file)
{
    struct stat folder;

    return stat(".", &folder) == 0 && (folder.st_mode & S_IWOTH) && file->st_uid != geteuid() &&
           file->st_uid != 0 && file->st_uid != folder.st_uid;
}

/** Why a config file that nobody named is not read; NULL: it is. */
static const char *refuse_planted(int fd, char *room, size_t size)
{
    struct stat file;

    if (fstat(fd, &file) != 0 || !config_is_planted(&file))
        return NULL;
    snprintf(room, size,
             "it belongs to user %lu, who may have put it there: remove it, or name it with "
             "--config",
             (unsigned long)file.st_uid);
    return room;
}

bool config_load(struct config *config, const char *path, bool named)
{
    /* A pipe that nobody writes to must not keep us waiting, neither here nor when it is read. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct buf text = {0};
    char room[160];

    config->integrity_check = true;
    config->interval_ms = 30000;
    config->multiplier = 3;
    config->detection_ms = 60000;
    if (fd < 0 && errno == ENOENT && !named)
        return true;
    const char *why = fd < 0 ? strerror_r(errno, room, sizeof room) : NULL;
    if (fd >= 0 && !named)
        why = refuse_planted(fd, room, sizeof room);
    if (why == NULL)
        why = read_all(fd, &text, room, sizeof room);
    bool ok = why == NULL;
    if (!ok)
        cli_error(EXIT_USAGE, "could not read the config file \"%s\": %s", path, why);
    config->path = path;
    ok = ok && parse(config, path, &text);
    if (fd >= 0)
        close(fd);
    buf_clear(&text);
    return ok;
}

void config_clear(struct config *config)
{
    lhi_arena_clear(&config->arena);
    *config = (struct config){0};
}
