/*
 * Refuses two entries of the config file for the same thing: at every start, one would overwrite the other.
 *
 * The entries are sorted before they are compared, because a file may have tens of thousands.
 */
#include <stdlib.h>
#include <string.h>

#include "config_reader.h"
#include "policy_keys.h"

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
    unsigned seen = 0; /* settings of the entries for the same jobs, from `first` on */

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

bool config_has_no_duplicates(const char *path, struct config *config)
{
    return policies_once(path, config) && scopes_once(path, config);
}
