/*
 * leasehold complete: a held job is done.
 */
#include <string.h>

#include "jobs.h"

enum { TOKEN, RESULT };

static const struct option options[] = {
    [TOKEN] = {"token", 't', "T", SPEC_ID, 0, "the token of the claim (or write JOB:TOKEN)"},
    [RESULT] = {"result", 'r', "JSON", SPEC_RESULT, 0,
                "what came of it; - reads it from standard input"},
    {.name = NULL},
};

static const struct positional positionals[] = {
    {"JOB", SPEC_REF, false, false},
    {.meta = NULL},
};

/** Reads the result from standard input. It must be valid JSON, like a result on the command
 *  line. */
static bool read_result(struct buf *input)
{
    struct js_error error;

    if (!cli_read_stdin(input, (size_t)VALUE_PAYLOAD_MAX, "result"))
        return false;
    if (js_valid(buf_str(input), input->n, NULL, &error))
        return true;
    cli_error(EXIT_USAGE,
              "the result on standard input is not JSON: %s at byte %zu: allowed: any JSON value",
              error.what, error.at + 1);
    return false;
}

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    lh_done done = {0};
    lh_ref ref;
    lh_jobs *after = NULL;
    struct buf input = {0};
    int exit = jobs_held(args, &opt[TOKEN], &ref);
    int rc;

    if (exit != 0)
        return exit;
    done.job = ref.job;
    done.token = ref.token;
    if (opt[RESULT].given && strcmp(opt[RESULT].text, "-") == 0) {
        if (!read_result(&input))
            exit = EXIT_USAGE;
        done.result = input.p;
        done.result_len = input.n;
    } else if (opt[RESULT].given) {
        done.result = opt[RESULT].text;
        done.result_len = strlen(opt[RESULT].text);
    }
    if (exit == 0)
        exit = cli_open(cli, ACCESS_WRITE | ACCESS_HOLDER);
    if (exit == 0) {
        rc = lh_complete(cli->store, &done, 1, NULL, cli->json ? &after : NULL);
        if (rc != LH_OK)
            exit = cli_failed(cli, rc);
        else
            jobs_print_after(cli, after);
    }
    buf_clear(&input);
    return exit;
}

static const struct example examples[] = {
    {"leasehold complete 17 --token 3 --result '{\"sent\":true}'", "done, with a result"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"there is no such job", 3},
    {"the lease is lost: the job was given to another, ended or was cancelled; nothing was changed",
     4},
    {.when = NULL},
};

const struct command cmd_complete = {
    .name = "complete",
    .args = "JOB --token T [--result JSON]",
    .summary = "report that a held job is done",
    .text =
        "Completes a job. Only the token is compared: a slow worker may still finish after its "
        "lease has ended, as long as nobody else was given the job. Repeating the same complete is "
        "harmless.",
    .positionals = positionals,
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
};
