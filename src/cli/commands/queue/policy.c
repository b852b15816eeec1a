/*
 * leasehold queue show, queue set: the policy of a queue or of a kind of job.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/input/policy_keys.h"

/* clang-format off */
#define SPEC_QUEUE_OR_ANY {.kind = VALUE_NAME, .word = "*"}
/* clang-format on */

/** The user writes "*" for any queue; the library takes NULL. */
static const char *or_any(const char *name)
{
    return name != NULL && strcmp(name, "*") == 0 ? NULL : name;
}

/* ---- show ------------------------------------------------------------------------------------ */

enum { SHOW_KIND };

static const struct option show_options[] = {
    [SHOW_KIND] = {"kind", 'k', "K", SPEC_NAME, 0, "for jobs of this kind"},
    {.name = NULL},
};

static const struct positional queue_or_any[] = {
    {"QUEUE", SPEC_QUEUE_OR_ANY, false, false},
    {.meta = NULL},
};

static int print_policy(struct cli *cli, const char *queue, const char *kind)
{
    lh_policy policy = {0};
    struct js json = {0};
    char value[64];
    int rc = lh_policy_get(cli->store, queue, kind, &policy);

    if (rc != LH_OK)
        return cli_failed(cli, rc);
    if (cli->json) {
        js_open(&json, '{');
        js_key_text(&json, "queue", queue);
        js_key_text(&json, "kind", kind);
        js_policy(&json, &policy);
        js_close(&json, '}');
        js_line(&json);
        js_clear(&json);
        return 0;
    }
    for (size_t i = 0; i < policy_key_count; i++)
        if ((policy.set & policy_keys[i].field) != 0)
            printf("%-18s %s\n", policy_keys[i].option,
                   policy_key_text(&policy_keys[i], &policy, value, sizeof value));
    return 0;
}

static int run_show(struct cli *cli, const struct args *args)
{
    int exit = cli_open(cli, ACCESS_READ);

    if (exit != 0)
        return exit;
    return print_policy(cli, or_any(args->positional[0].text), args->option[SHOW_KIND].text);
}

static const struct example show_examples[] = {
    {"leasehold queue show mail --kind welcome", "the settings that apply to these jobs"},
    {.line = NULL},
};

const struct command cmd_queue_show = {
    .group = "queue",
    .name = "show",
    .args = "QUEUE [--kind K]",
    .summary = "show the settings that apply to a queue",
    .text =
        "Prints all settings that apply to the jobs of QUEUE. A setting that is not set for this "
        "queue and kind comes from the policy of the queue, else of the kind in any queue, else "
        "of any queue, else it is built in. * means any queue.",
    .positionals = queue_or_any,
    .options = show_options,
    .examples = show_examples,
    .run = run_show,
};

/* ---- set ------------------------------------------------------------------------------------- */

enum { SET_KIND, SET_UNSET, SET_KEYS };

/* The names of all settings, for --unset. */
#define KEY_NAMES                                                                             \
    "lease max-attempts max-recoveries action recovery recovery-backoff backoff backoff-cap " \
    "timeout exclusive audit retention retention-failed max-payload rate concurrency "        \
    "max-output retention-output"

static const struct option set_options[] = {
    [SET_KIND] = {"kind", 'k', "K", SPEC_NAME, 0, "for jobs of this kind only"},
    [SET_UNSET] = {"unset", 'u', "KEY", SPEC_CHOICE(KEY_NAMES), OPTION_REPEATS,
                   "remove a setting, so that the wider policy applies again"},
#define POLICY_KEY(config, option, json, meta, spec, field, help) \
    [SET_KEYS + POLICY_KEY_##field] = {option, 0, meta, spec, 0, help},
#include "cli/input/policy_keys.def"
#undef POLICY_KEY
    {.name = NULL},
};

static int run_set(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    const char *queue = or_any(args->positional[0].text);
    const char *kind = opt[SET_KIND].text;
    lh_policy policy = {0};
    unsigned unset = 0;
    int exit, rc;

    for (size_t i = 0; i < policy_key_count; i++)
        if (opt[SET_KEYS + i].given)
            policy_key_set(&policy_keys[i], &opt[SET_KEYS + i], &policy);
    for (size_t i = 0; i < opt[SET_UNSET].given; i++)
        for (size_t k = 0; k < policy_key_count; k++)
            if (strcmp(opt[SET_UNSET].all[i], policy_keys[k].option) == 0)
                unset |= policy_keys[k].field;
    if (policy.set == 0 && unset == 0)
        return usage_error(args->command, "queue set needs a setting, or --unset KEY");
    for (size_t k = 0; k < policy_key_count; k++) {
        if ((policy.set & unset & policy_keys[k].field) != 0)
            return usage_error(args->command, "--%s and --unset %s exclude each other",
                               policy_keys[k].option, policy_keys[k].option);
        if (((policy.set | unset) & POLICY_QUEUE_ONLY & policy_keys[k].field) == 0)
            continue;
        if (queue == NULL)
            return usage_error(args->command,
                               "--%s applies to one queue: QUEUE \"*\" is not allowed",
                               policy_keys[k].option);
        if (kind != NULL)
            return usage_error(args->command,
                               "--%s applies to a whole queue: --kind \"%s\" is not allowed",
                               policy_keys[k].option, kind);
    }
    exit = cli_open(cli, ACCESS_WRITE);
    if (exit != 0)
        return exit;
    rc = lh_policy_set(cli->store, queue, kind, &policy, unset);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    return cli->json ? print_policy(cli, queue, kind) : 0;
}

static const struct example set_examples[] = {
    {"leasehold queue set mail --lease 2m --max-attempts 10", "for a queue"},
    {"leasehold queue set mail --kind newsletter --timeout 1h", "for one kind of its jobs"},
    {"leasehold queue set '*' --audit full", "for all queues"},
    {"leasehold queue set mail --rate 20/1m --concurrency 4", "limits of a whole queue"},
    {.line = NULL},
};

const struct command cmd_queue_set = {
    .group = "queue",
    .name = "set",
    .args = "QUEUE [--kind K] [--SETTING VALUE]… [--unset KEY]…",
    .summary = "set the policy of a queue",
    .text = "Sets the policy for the jobs of QUEUE, or for one kind of them; * means any queue. A "
            "setting that is not set comes from the policy of the queue, else of the kind in any "
            "queue, else of any queue, else it is built in. Rate and concurrency limit a whole "
            "queue. With --json it prints the settings that apply afterwards.",
    .positionals = queue_or_any,
    .options = set_options,
    .examples = set_examples,
    .run = run_set,
};
