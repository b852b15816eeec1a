/*
 * The keys of the config file: what each may hold, and which field it sets.
 */
#include <assert.h>
#include <string.h>

#include "config_reader.h"
#include "policy_keys.h"

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
    {"action", config_read_value, SPEC_ACTION, set_action},
    {"maxRecoveryAttempts", config_read_value, SPEC_RECOVERIES, set_max_recoveries},
    {"integrityCheckOnStartup", config_read_value, SPEC_SWITCH, set_integrity},
    {.name = NULL},
};

static const struct key heartbeat_keys[] = {
    {"intervalSeconds", config_read_value, SPEC_INT(1, 86400), set_interval},
    {"staleThresholdMultiplier", config_read_value, SPEC_INT(1, 1000), set_multiplier},
    {"detectionIntervalSeconds", config_read_value, SPEC_INT(0, 86400), set_detection},
    {.name = NULL},
};

static bool read_recovery(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    r->config->recovery.line = line_of(node);
    return config_read_mapping(r, key->name, node, recovery_keys, into);
}

static bool read_heartbeat(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    return config_read_mapping(r, key->name, node, heartbeat_keys, into);
}

static const struct key queue_keys[] = {
    {.name = "recovery", .read = read_recovery},
    {.name = "heartbeat", .read = read_heartbeat},
    {.name = NULL},
};

static bool read_queue(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    return config_read_mapping(r, key->name, node, queue_keys, into);
}

/* ---- policies -------------------------------------------------------------------------------- */

static bool read_policy_name(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    struct config_policy *policy = into;
    struct value value = {0};

    if (!config_read_scalar(r, key->name, &key->spec, node, &value))
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
        if (!config_read_scalar(r, key->name, &policy_keys[i].spec, node, &value))
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
        return config_refuse(r, node,
                             "key \"%s\": applies to one queue, but this policy names none: "
                             "allowed: together with key \"queue\"",
                             key);
    if (of_queue && policy->kind != NULL)
        return config_refuse(r, node,
                             "key \"%s\": applies to a whole queue, but this policy is for kind "
                             "\"%s\": allowed: without key \"kind\"",
                             key, policy->kind);
    if (policy->policy.exclusive && policy->kind != NULL)
        return config_refuse(
            r, node,
            "key \"exclusive\": applies to a whole queue, but this policy is for kind \"%s\": "
            "allowed: without key \"kind\", or no",
            policy->kind);
    /* `exclusive: no` for a kind changes nothing, and the library refuses to set it. */
    if (policy->kind != NULL)
        policy->policy.set &= ~(unsigned)LH_POLICY_EXCLUSIVE;
    policy->line = line_of(node);
    return true;
}

static bool read_policies(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    (void)into;
    return config_read_list(r, key->name, node, policy_mapping, grow_policy, check_policy);
}

/* ---- leases ---------------------------------------------------------------------------------- */

static bool read_scope_key(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    struct config_scope *scope = into;
    struct value value = {0};

    if (!config_read_scalar(r, key->name, &key->spec, node, &value))
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
        return config_refuse(r, node, "key \"scope\" is missing: allowed: a name");
    if (scope->ttl_ms == 0)
        return config_refuse(r, node, "key \"ttl\" is missing: allowed: 1ms to 30d");
    scope->line = line_of(node);
    return true;
}

static bool read_leases(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    (void)into;
    return config_read_list(r, key->name, node, scope_mapping, grow_scope, check_scope);
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
    if (!config_read_scalar(r, key->name, &key->spec, node, &value))
        return false;
    assert(value.text != NULL);
    if (!address_ok(value.text))
        return config_refuse(
            r, node,
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
    return config_read_mapping(r, key->name, node, server_keys, into);
}

/* ---- the whole file -------------------------------------------------------------------------- */

static void set_store(struct config *c, const struct value *v)
{
    c->store = v->text;
}

static void set_durability(struct config *c, const struct value *v)
{
    c->relaxed = v->num == 2;
}

const struct key config_keys[] = {
    {"store", config_read_value, SPEC_TEXT(1023), set_store},
    {"durability", config_read_value, SPEC_CHOICE("full relaxed"), set_durability},
    {.name = "queue", .read = read_queue},
    {.name = "policies", .read = read_policies},
    {.name = "leases", .read = read_leases},
    {.name = "server", .read = read_server},
    {.name = NULL},
};
