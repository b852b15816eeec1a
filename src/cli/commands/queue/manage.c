/*
 * leasehold queue pause, resume, purge, delete.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/cli.h"

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
    {"leasehold queue pause mail", "stop claims of its jobs"},
    {.line = NULL},
};

const struct command cmd_queue_pause = {
    .group = "queue",
    .name = "pause",
    .args = "QUEUE",
    .summary = "stop claims from a queue",
    .text =
        "Stops claims from the queue. Running jobs continue, and jobs can be enqueued. Repeating "
        "it is harmless.",
    .positionals = one_queue,
    .examples = pause_examples,
    .run = run_pause,
};

static const struct example resume_examples[] = {
    {"leasehold queue resume mail", "allow claims of its jobs again"},
    {.line = NULL},
};

const struct command cmd_queue_resume = {
    .group = "queue",
    .name = "resume",
    .args = "QUEUE",
    .summary = "allow claims from a paused queue again",
    .text = "Allows claims from the queue again. Repeating it is harmless.",
    .positionals = one_queue,
    .examples = resume_examples,
    .run = run_resume,
};

static const struct example purge_examples[] = {
    {"leasehold queue purge mail", "delete its scheduled and pending jobs"},
    {.line = NULL},
};

const struct command cmd_queue_purge = {
    .group = "queue",
    .name = "purge",
    .args = "QUEUE",
    .summary = "delete all scheduled and pending jobs of a queue",
    .text = "Deletes the scheduled and pending jobs of the queue, and prints their number. "
            "Running jobs, and jobs that have ended, stay.",
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
    .text =
        "Removes the queue with its history, its pause and the policies that name it. It is "
        "refused if the queue has a job in any state (also completed or in quarantine), or if a "
        "schedule enqueues into it. The next enqueue creates a new queue.",
    .positionals = one_queue,
    .examples = delete_examples,
    .run = run_delete,
};
