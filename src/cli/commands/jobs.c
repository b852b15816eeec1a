/*
 * What the commands about jobs share.
 */
#include "jobs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int jobs_held(const struct args *args, const struct value *token, lh_ref *out)
{
    const struct value *job = &args->positional[0];

    out->job = job->num;
    out->token = job->num2 ? job->num2 : token->num;
    if (out->token == 0)
        return usage_error(args->command, "%s needs --token T", args->command->name);
    if (job->num2 != 0 && token->given && token->num != job->num2)
        return usage_error(args->command,
                           "--token \"%s\" contradicts JOB \"%s\": allowed: the same "
                           "token, or one of them",
                           token->text, job->text);
    return 0;
}

void jobs_print_after(const struct cli *cli, lh_jobs *after)
{
    for (size_t i = 0; cli->json && after != NULL && i < after->n; i++)
        js_job_line(&after->job[i]);
    lh_jobs_free(after);
}

/* ---- an act on many jobs --------------------------------------------------------------------- */

const struct positional many_positionals[] = {
    {"JOB", SPEC_ID, true, true},
    {.meta = NULL},
};

struct tally {
    int exit;
    int64_t done, left;
};

/** Acts on one batch. If the user gave ids, each refused job is reported as a failure. If the user
 *  gave a filter, jobs whose state does not allow the act are skipped and counted: their state may
 *  have changed since they were listed. */
static void act(struct cli *cli, const struct args *args, const struct many *many,
                const int64_t *ids, size_t n, bool by_filter, struct tally *tally)
{
    int *status = mem_array(n, sizeof *status);
    lh_jobs *after = NULL;
    int rc = many->act(cli, args, ids, n, status, &after);
    bool judged =
        rc == LH_OK; /* otherwise the whole call may have failed, and `status` is not set */
    int exit = 0;

    for (size_t i = 0; i < n; i++)
        judged = judged || status[i] != LH_OK;
    if (!judged) {
        exit = cli_failed(cli, rc);
    } else if (rc != LH_OK && by_filter) {
        for (size_t i = 0; i < n && exit == 0; i++) {
            if (status[i] == LH_ESTATE)
                tally->left++;
            else if (status[i] != LH_OK && status[i] != LH_ENOTFOUND)
                exit = cli_failed(cli, status[i]);
        }
    } else if (rc != LH_OK) {
        exit = cli_failed_jobs(cli, many->verb, ids, status, n, rc);
    }
    for (size_t i = 0; judged && i < n; i++) {
        tally->done += status[i] == LH_OK;
        if (status[i] == LH_OK && cli->json && many->print != NULL)
            many->print(ids[i]);
    }
    if (cli->json && after != NULL)
        for (size_t i = 0; i < after->n; i++)
            for (size_t k = 0; k < n; k++)
                if (ids[k] == after->job[i].id && status[k] == LH_OK) {
                    js_job_line(&after->job[i]);
                    break;
                }
    lh_jobs_free(after);
    free(status);
    if (exit > tally->exit)
        tally->exit = exit;
}

static void by_filter(struct cli *cli, const struct args *args, const struct many *many,
                      lh_state state, struct tally *tally)
{
    const struct value *opt = args->option;
    lh_job_filter filter = {
        .queue = opt[FILTER_QUEUE].text,
        .kind = opt[FILTER_KIND].text,
        .key = opt[FILTER_KEY].text,
        .state = state,
        .limit = MANY_BATCH,
    };
    int64_t ids[MANY_BATCH];

    while (tally->exit == 0 && !cli_interrupted() && !ferror(stdout)) {
        lh_jobs *jobs = NULL;
        size_t n;
        int rc = lh_job_list(cli->store, &filter, &jobs);
        if (rc != LH_OK) {
            tally->exit = cli_failed(cli, rc);
            return;
        }
        n = jobs->n;
        for (size_t i = 0; i < n; i++)
            ids[i] = jobs->job[i].id;
        lh_jobs_free(jobs);
        if (n == 0)
            return;
        filter.after = ids[n - 1];
        act(cli, args, many, ids, n, true, tally);
    }
}

int many_run(struct cli *cli, const struct args *args, const struct many *many)
{
    const struct value *opt = args->option;
    bool filtered = false;
    struct tally tally = {0};
    int exit;

    for (size_t i = 0; i < FILTERS; i++)
        filtered = filtered || opt[i].given;
    if (args->n == 0 && !filtered)
        return usage_error(args->command, "%s needs JOB, or one of --queue, --kind, --state, --key",
                           many->verb);
    if (args->n > 0 && filtered)
        return usage_error(args->command,
                           "%s takes either JOB or --queue, --kind, --state, --key, not "
                           "both",
                           many->verb);
    exit = cli_open(cli, ACCESS_WRITE);
    if (exit != 0)
        return exit;
    if (!filtered) {
        int64_t *ids = mem_array(args->n, sizeof *ids);
        for (size_t i = 0; i < args->n; i++)
            ids[i] = args->positional[i].num;
        for (size_t i = 0; i < args->n; i += MANY_BATCH)
            act(cli, args, many, ids + i, args->n - i < MANY_BATCH ? args->n - i : MANY_BATCH,
                false, &tally);
        free(ids);
        return tally.exit;
    }
    cli_cancel();
    for (lh_state state = LH_SCHEDULED; state <= LH_CANCELLED; state++)
        if (opt[FILTER_STATE].given ? opt[FILTER_STATE].num == (int64_t)state
                                    : (many->states >> state & 1) != 0)
            by_filter(cli, args, many, state, &tally);
    if (cli_interrupted() && tally.exit == 0)
        tally.exit = cli_interrupted_exit();
    cli_note("%s %" PRId64 " job%s", many->past, tally.done, text_plural(tally.done));
    if (tally.left > 0)
        cli_note("left %" PRId64 " whose state does not allow it", tally.left);
    return tally.exit;
}
