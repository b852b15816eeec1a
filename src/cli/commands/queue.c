#include <inttypes.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/input/policy_keys.h"

/* clang-format off */
#define SPEC_QUEUE_OR_ANY {.kind = VALUE_NAME, .word = "*"}
/* clang-format on */

/** "*" means any, which is NULL to the library. */
static const char *or_any(const char *name)
{
    return name != NULL && strcmp(name, "*") == 0 ? NULL : name;
}

/* ---- queue list ------------------------------------------------------------------------------ */

enum { LIST_POLICIES };

static const struct option list_options[] = {
    [LIST_POLICIES] = {"policies", 0, NULL, SPEC_FLAG, 0,
                       "the policies as they were set, in place of the queues"},
    {.name = NULL},
};

static int list_policies(struct cli *cli)
{
    static const char *const heads[] = {"QUEUE", "KIND", "SETTINGS", NULL};
    lh_policies *policies = NULL;
    struct js json = {0};
    struct table table;
    int rc = lh_policy_list(cli->store, &policies);

    if (rc != LH_OK)
        return cli_failed(cli, rc);
    table_begin(&table, heads);
    for (size_t i = 0; i < policies->n; i++) {
        const lh_policy_row *row = &policies->row[i];
        struct buf text = {0};
        char value[64];
        if (cli->json) {
            js_open(&json, '{');
            js_key_text(&json, "queue", row->queue);
            js_key_text(&json, "kind", row->kind);
            js_policy(&json, &row->policy);
            js_close(&json, '}');
            js_line(&json);
            continue;
        }
        for (size_t k = 0; k < policy_key_count; k++)
            if ((row->policy.set & policy_keys[k].field) != 0)
                buf_format(&text, "%s%s %s", text.n ? ", " : "", policy_keys[k].option,
                           policy_key_text(&policy_keys[k], &row->policy, value, sizeof value));
        table_cell(&table, STYLE_NONE, row->queue ? row->queue : "*");
        table_cell(&table, STYLE_NONE, row->kind ? row->kind : "*");
        table_cell(&table, STYLE_NONE, buf_str(&text));
        buf_clear(&text);
    }
    table_end(&table);
    js_clear(&json);
    lh_policies_free(policies);
    return 0;
}

static void list_row(struct table *table, const lh_queue *q)
{
    char text[64], per[32];

    table_cell(table, STYLE_NONE, q->queue);
    table_cell(table, q->paused ? STYLE_YELLOW : STYLE_NONE, q->paused ? "paused" : "open");
    table_number(table, q->pending);
    table_number(table, q->running);
    table_cell(table, STYLE_NONE,
               q->oldest_pending_ms < 0 ? NULL
                                        : text_span(q->oldest_pending_ms, text, sizeof text));
    if (q->rate_n > 0)
        snprintf(text, sizeof text, "%" PRId64 "/%s", q->rate_n,
                 lh_duration_format(q->rate_per_ms, per, sizeof per));
    table_cell(table, STYLE_NONE, q->rate_n > 0 ? text : NULL);
    if (q->concurrency > 0)
        snprintf(text, sizeof text, "%" PRId64, q->concurrency);
    table_cell(table, STYLE_NONE, q->concurrency > 0 ? text : NULL);
    table_number(table, q->hour_enqueued);
    table_number(table, q->hour_completed);
    table_number(table, q->hour_failed);
    table_number(table, q->hour_recovered);
}

static int run_list(struct cli *cli, const struct args *args)
{
    static const char *const heads[] = {
        "QUEUE",           "",         ">PENDING",       ">RUNNING",        ">OLDEST PENDING",
        ">RATE",           ">AT ONCE", ">ENQUEUED/HOUR", ">COMPLETED/HOUR", ">FAILED/HOUR",
        ">RECOVERED/HOUR", NULL};
    lh_queues *queues = NULL;
    struct js json = {0};
    struct table table;
    int exit = cli_open(cli, ACCESS_READ);
    int rc;

    if (exit != 0)
        return exit;
    if (args->option[LIST_POLICIES].given)
        return list_policies(cli);
    rc = lh_queue_list(cli->store, &queues);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    table_begin(&table, heads);
    for (size_t i = 0; i < queues->n; i++) {
        if (cli->json) {
            js_queue(&json, &queues->queue[i], true);
            js_line(&json);
        } else {
            list_row(&table, &queues->queue[i]);
        }
    }
    table_end(&table);
    js_clear(&json);
    lh_queues_free(queues);
    return 0;
}

static const struct example list_examples[] = {
    {"leasehold queue list", "the queues, with their limits and the last hour"},
    {"leasehold queue list --policies", "what was set for whom"},
    {.line = NULL},
};

const struct command cmd_queue_list = {
    .group = "queue",
    .name = "list",
    .args = "[--policies]",
    .summary = "list the queues",
    .text =
        "Lists the queues: whether they are open or paused, what waits and runs, their limits, and "
        "the last hour.",
    .options = list_options,
    .examples = list_examples,
    .run = run_list,
};

/* ---- queue show ------------------------------------------------------------------------------ */

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
    {"leasehold queue show mail --kind welcome", "what holds for these jobs"},
    {.line = NULL},
};

const struct command cmd_queue_show = {
    .group = "queue",
    .name = "show",
    .args = "QUEUE [--kind K]",
    .summary = "the policy that holds for a queue",
    .text =
        "Prints every setting that holds for the jobs of QUEUE: what is not set for this queue and "
        "kind "
        "falls through to the queue, to the kind in any queue, to any queue, and to what is built "
        "in. * means any queue.",
    .positionals = queue_or_any,
    .options = show_options,
    .examples = show_examples,
    .run = run_show,
};

/* ---- queue set ------------------------------------------------------------------------------- */

enum { SET_KIND, SET_UNSET, SET_KEYS };

/* The names of all settings, for --unset. */
#define KEY_NAMES                                                                             \
    "lease max-attempts max-recoveries action recovery recovery-backoff backoff backoff-cap " \
    "timeout exclusive audit retention retention-failed max-payload rate concurrency "        \
    "max-output retention-output"

static const struct option set_options[] = {
    [SET_KIND] = {"kind", 'k', "K", SPEC_NAME, 0, "for jobs of this kind only"},
    [SET_UNSET] = {"unset", 'u', "KEY", SPEC_CHOICE(KEY_NAMES), OPTION_REPEATS,
                   "take a setting back, so that it falls through again"},
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
                               "--%s holds for one queue: QUEUE \"*\" is not allowed",
                               policy_keys[k].option);
        if (kind != NULL)
            return usage_error(args->command,
                               "--%s holds for a whole queue: --kind \"%s\" is not "
                               "allowed",
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
    {"leasehold queue set mail --rate 20/1m --concurrency 4", "limits of a queue as a whole"},
    {.line = NULL},
};

const struct command cmd_queue_set = {
    .group = "queue",
    .name = "set",
    .args = "QUEUE [--kind K] [--SETTING VALUE]… [--unset KEY]…",
    .summary = "set the policy of a queue",
    .text =
        "Sets what holds for the jobs of QUEUE, or only for those of one kind; * means any queue. "
        "What is "
        "not set falls through: to the queue, to the kind in any queue, to any queue, to what is "
        "built in. The rate and concurrency are of a queue as a whole. With --json what holds "
        "afterwards is printed.",
    .positionals = queue_or_any,
    .options = set_options,
    .examples = set_examples,
    .run = run_set,
};

/* ---- queue pause, resume, purge, delete -------------------------------------------------------------- */

static const struct positional one_queue[] = {
    {"QUEUE", SPEC_NAME, false, false},
    {.meta = NULL},
};

static int print_one(struct cli *cli, const char *name)
{
    lh_queues *queues = NULL;
    struct js json = {0};
    int rc;

    if (!cli->json)
        return 0;
    rc = lh_queue_list(cli->store, &queues);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    for (size_t i = 0; i < queues->n; i++)
        if (strcmp(queues->queue[i].queue, name) == 0) {
            js_queue(&json, &queues->queue[i], true);
            js_line(&json);
        }
    js_clear(&json);
    lh_queues_free(queues);
    return 0;
}

static int switch_queue(struct cli *cli, const struct args *args,
                        int (*act)(lh_store *store, const char *queue))
{
    const char *queue = args->positional[0].text;
    int exit = cli_open(cli, ACCESS_WRITE);
    int rc;

    if (exit != 0)
        return exit;
    rc = act(cli->store, queue);
    return rc == LH_OK ? print_one(cli, queue) : cli_failed(cli, rc);
}

static int run_pause(struct cli *cli, const struct args *args)
{
    return switch_queue(cli, args, lh_queue_pause);
}

static int run_resume(struct cli *cli, const struct args *args)
{
    return switch_queue(cli, args, lh_queue_resume);
}

static int run_purge(struct cli *cli, const struct args *args)
{
    int64_t purged = 0;
    struct js json = {0};
    int exit = cli_open(cli, ACCESS_WRITE);
    int rc;

    if (exit != 0)
        return exit;
    rc = lh_queue_purge(cli->store, args->positional[0].text, &purged);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    if (!cli->json) {
        printf("%" PRId64 "\n", purged);
        return 0;
    }
    js_open(&json, '{');
    js_key_text(&json, "queue", args->positional[0].text);
    js_key_int(&json, "purged", purged);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
    return 0;
}

static int run_delete(struct cli *cli, const struct args *args)
{
    struct js json = {0};
    int exit = cli_open(cli, ACCESS_WRITE);
    int rc;

    if (exit != 0)
        return exit;
    rc = lh_queue_delete(cli->store, args->positional[0].text);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    if (!cli->json)
        return 0;
    js_open(&json, '{');
    js_key_text(&json, "queue", args->positional[0].text);
    js_key_bool(&json, "deleted", true);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
    return 0;
}

static const struct example pause_examples[] = {
    {"leasehold queue pause mail", "stop handing out its jobs"},
    {.line = NULL},
};

const struct command cmd_queue_pause = {
    .group = "queue",
    .name = "pause",
    .args = "QUEUE",
    .summary = "hand out no more jobs of a queue",
    .text =
        "Stops claims of the queue. What runs goes on, and jobs may be enqueued. Repeating it is "
        "harmless.",
    .positionals = one_queue,
    .examples = pause_examples,
    .run = run_pause,
};

static const struct example resume_examples[] = {
    {"leasehold queue resume mail", "hand out its jobs again"},
    {.line = NULL},
};

const struct command cmd_queue_resume = {
    .group = "queue",
    .name = "resume",
    .args = "QUEUE",
    .summary = "hand out jobs of a paused queue again",
    .text = "Allows claims of the queue again. Repeating it is harmless.",
    .positionals = one_queue,
    .examples = resume_examples,
    .run = run_resume,
};

static const struct example purge_examples[] = {
    {"leasehold queue purge mail", "delete all that waits in it"},
    {.line = NULL},
};

const struct command cmd_queue_purge = {
    .group = "queue",
    .name = "purge",
    .args = "QUEUE",
    .summary = "delete all jobs that wait in a queue",
    .text = "Deletes the scheduled and pending jobs of the queue, and prints how many they were. "
            "What runs, "
            "and what has ended, stays.",
    .positionals = one_queue,
    .examples = purge_examples,
    .run = run_purge,
};

static const struct example delete_examples[] = {
    {"leasehold queue delete mail", "remove the queue, if it is empty"},
    {.line = NULL},
};

const struct command cmd_queue_delete = {
    .group = "queue",
    .name = "delete",
    .args = "QUEUE",
    .summary = "remove an empty queue",
    .text = "Removes the queue from all lists, with its history, its pause and the policies that "
            "name it. It is refused while the queue has a job in any state (also completed or in "
            "quarantine), or a schedule enqueues into it. The next enqueue makes a new queue.",
    .positionals = one_queue,
    .examples = delete_examples,
    .run = run_delete,
};
