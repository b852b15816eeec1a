/*
 * Applying the config file: what a long-running command writes into the store at its start, and the
 * settings that it uses itself.
 *
 * Only differences are written, so a restart changes nothing. Settings that the file does not name
 * keep the values in the store.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "policy_keys.h"

static bool same_name(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/** The policy that is set for exactly this queue and kind; NULL: none. */
static const lh_policy *find_row(const lh_policies *rows, const struct config_policy *wanted)
{
    for (size_t i = 0; i < rows->n; i++)
        if (same_name(rows->row[i].queue, wanted->queue) &&
            same_name(rows->row[i].kind, wanted->kind))
            return &rows->row[i].policy;
    return NULL;
}

/** The fields of `wanted` that are missing in `now` or different there. */
static unsigned differing(const lh_policy *wanted, const lh_policy *now)
{
    unsigned fields = 0;

    for (size_t i = 0; i < policy_key_count; i++) {
        struct value want, have;
        policy_key_get(&policy_keys[i], wanted, &want);
        policy_key_get(&policy_keys[i], now, &have);
        if (want.given && (!have.given || want.num != have.num || want.num2 != have.num2))
            fields |= policy_keys[i].field;
    }
    return fields;
}

static int refused(struct cli *cli, size_t line, const char *what, int status)
{
    const char *why = lh_errmsg(cli->store);

    return cli_refused(status, "%s:%zu: could not apply the %s: %s", cli->config.path, line, what,
                       why[0] != '\0' ? why : lh_status_text(status));
}

static const char *policy_name(const struct config_policy *policy, char *buf, size_t len)
{
    if (policy->queue == NULL && policy->kind == NULL)
        snprintf(buf, len, "policy of all queues");
    else if (policy->kind == NULL)
        snprintf(buf, len, "policy of queue \"%s\"", policy->queue);
    else if (policy->queue == NULL)
        snprintf(buf, len, "policy of kind \"%s\"", policy->kind);
    else
        snprintf(buf, len, "policy of queue \"%s\", kind \"%s\"", policy->queue, policy->kind);
    return buf;
}

static int apply_policy(struct cli *cli, const lh_policies *rows, const struct config_policy *entry)
{
    static const lh_policy nothing;
    const lh_policy *now = find_row(rows, entry);
    lh_policy change = entry->policy;
    char name[320];
    int rc;

    change.set = differing(&entry->policy, now != NULL ? now : &nothing);
    if (change.set == 0)
        return 0;
    rc = lh_policy_set(cli->store, entry->queue, entry->kind, &change, 0);
    return rc == LH_OK ? 0 : refused(cli, entry->line, policy_name(entry, name, sizeof name), rc);
}

static int apply_policies(struct cli *cli)
{
    const struct config *config = &cli->config;
    lh_policies *rows = NULL;
    int exit, rc;

    if (config->n_policies == 0 && config->recovery.policy.set == 0)
        return 0;
    rc = lh_policy_list(cli->store, &rows);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    exit = apply_policy(cli, rows, &config->recovery);
    for (size_t i = 0; i < config->n_policies && exit == 0; i++)
        exit = apply_policy(cli, rows, &config->policies[i]);
    lh_policies_free(rows);
    return exit;
}

static int apply_scopes(struct cli *cli)
{
    const struct config *config = &cli->config;

    for (size_t i = 0; i < config->n_scopes; i++) {
        const struct config_scope *entry = &config->scopes[i];
        char name[160];
        int rc = lh_scope_set(cli->store, entry->scope, entry->ttl_ms);
        snprintf(name, sizeof name, "ttl of lease scope \"%s\"", entry->scope);
        if (rc != LH_OK)
            return refused(cli, entry->line, name, rc);
    }
    return 0;
}

int cli_apply_config(struct cli *cli)
{
    int exit = apply_policies(cli);

    return exit == 0 ? apply_scopes(cli) : exit;
}

void cli_worker_settings(const struct cli *cli, int64_t *heartbeat_ms, int64_t *multiplier,
                         int64_t *detection_ms, bool *recovery)
{
    bool by_variable = cli->recovery_interval_ms >= 0;

    *heartbeat_ms = cli->config.interval_ms;
    *multiplier = cli->config.multiplier;
    *detection_ms = by_variable ? cli->recovery_interval_ms : cli->config.detection_ms;
    *recovery = *detection_ms > 0;
}
