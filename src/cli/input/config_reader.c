/*
 * Reading a YAML document by tables of keys.
 */
#include "config_reader.h"

#include <stdarg.h>
#include <string.h>

#include "policy_keys.h"

/* ---- messages -------------------------------------------------------------------------------- */

size_t line_of(const yaml_node_t *node)
{
    return node->start_mark.line + 1;
}

bool config_refuse(struct reader *r, const yaml_node_t *node, const char *format, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    cli_error(EXIT_USAGE, "%s:%zu: %s", r->path, line_of(node), text);
    return false;
}

const char *yaml_type_name(const yaml_node_t *node)
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
        return config_refuse(r, node, "key \"%s\": value is %s: allowed: %s", key,
                             yaml_type_name(node), allowed);
    value_quote((const char *)node->data.scalar.value, shown, sizeof shown);
    return config_refuse(r, node, "key \"%s\": value %s is %s: allowed: %s", key, shown,
                         yaml_type_name(node), allowed);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static const char *scalar(const yaml_node_t *node)
{
    return (const char *)node->data.scalar.value;
}

void key_names(const struct key *keys, struct buf *out)
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
    key_names(keys, &words);
    config_refuse(r, node, "key %s is unknown%s%s%s: allowed: %s",
                  value_quote(scalar(node), shown, sizeof shown),
                  nearest ? " (did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?)" : "",
                  buf_str(&words));
    buf_clear(&words);
    return false;
}

bool config_read_mapping(struct reader *r, const char *name, yaml_node_t *node,
                         const struct key *keys, void *into)
{
    size_t seen = 0; /* one bit for each key */

    if (node->type != YAML_MAPPING_NODE) {
        struct buf words = {0};
        struct buf allowed = {0};
        key_names(keys, &words);
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
            return config_refuse(r, key, "a key is %s: allowed: a word", yaml_type_name(key));
        /* Compare the lengths too: a key may contain a zero byte. */
        while (k->name != NULL &&
               (strlen(k->name) != key->data.scalar.length || strcmp(k->name, scalar(key)) != 0))
            k++;
        if (k->name == NULL)
            return unknown_key(r, key, keys);
        if ((seen >> (k - keys) & 1) != 0)
            return config_refuse(r, key, "key \"%s\" is given twice: allowed: once", k->name);
        seen |= (size_t)1 << (k - keys);
        if (!k->read(r, k, value, into))
            return false;
    }
    return true;
}

bool config_read_scalar(struct reader *r, const char *name, const struct value_spec *spec,
                        yaml_node_t *node, struct value *out)
{
    bool number = spec->kind == VALUE_INT || spec->kind == VALUE_SWITCH;
    char why[VALUE_WHY];
    char shown[128];

    if (node->type != YAML_SCALAR_NODE)
        return wrong_type(r, name, node, "a single value");
    value_quote(scalar(node), shown, sizeof shown);
    if (strlen(scalar(node)) != node->data.scalar.length)
        return config_refuse(r, node, "key \"%s\": value %s has a zero byte: allowed: text", name,
                             shown);
    if (number && node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return config_refuse(
            r, node, "key \"%s\": value %s is text in quotes: allowed: %s", name, shown,
            spec->kind == VALUE_INT ? "a number without quotes" : "on or off without quotes");
    if (!value_parse(spec, scalar(node), out, why))
        return config_refuse(r, node, "key \"%s\": value %s %s", name, shown, why);
    out->text = arena_copy(&r->config->arena, scalar(node), node->data.scalar.length);
    out->given = 1;
    return true;
}

bool config_read_value(struct reader *r, const struct key *key, yaml_node_t *node, void *into)
{
    struct value value = {0};

    (void)into;
    if (!config_read_scalar(r, key->name, &key->spec, node, &value))
        return false;
    key->set(r->config, &value);
    return true;
}

bool config_read_list(struct reader *r, const char *name, yaml_node_t *node, const struct key *keys,
                      void *(*grow)(struct config *config, const yaml_node_t *node),
                      bool (*check)(struct reader *r, yaml_node_t *node, void *item))
{
    if (node->type != YAML_SEQUENCE_NODE)
        return wrong_type(r, name, node, "a list");
    for (yaml_node_item_t *item = node->data.sequence.items.start;
         item < node->data.sequence.items.top; item++) {
        yaml_node_t *one = yaml_document_get_node(r->doc, *item);
        void *into = grow(r->config, node);
        if (!config_read_mapping(r, name, one, keys, into) || !check(r, one, into))
            return false;
    }
    return true;
}

size_t list_length(const yaml_node_t *node)
{
    return (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
}
