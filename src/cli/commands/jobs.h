/*
 * What the commands about jobs share: reading JOB and token, and acting on many jobs.
 */
#ifndef LEASEHOLD_CLI_JOBS_H
#define LEASEHOLD_CLI_JOBS_H

#include "cli/cli.h"

/** Reads JOB:TOKEN, or JOB and --token. 0, or exit code 2 with the mistake printed. */
int jobs_held(const struct args *args, const struct value *token, lh_ref *out);

/** With --json prints the jobs as they are after an act. Frees the list. */
void jobs_print_after(const struct cli *cli, lh_jobs *after);

/* ---- an act on many jobs, by id or by filter ------------------------------------------------- */

enum { FILTER_QUEUE, FILTER_KIND, FILTER_STATE, FILTER_KEY, FILTERS };

#define FILTER_STATES SPEC_CHOICE("scheduled pending running completed failed cancelled")

/* clang-format off: one a line, as a table */
#define FILTER_OPTIONS                                                                \
    [FILTER_QUEUE] = {"queue", 'q', "Q", SPEC_NAME, 0, "all jobs of this queue"},     \
    [FILTER_KIND] = {"kind", 'k', "K", SPEC_NAME, 0, "all jobs of this kind"},        \
    [FILTER_STATE] = {"state", 's', "S", FILTER_STATES, 0, "all jobs in this state"}, \
    [FILTER_KEY] = {"key", 0, "K", SPEC_TEXT(256), 0, "the jobs with this key"}
/* clang-format on */

struct many {
    const char *verb; /* "cancel" */
    const char *past; /* "cancelled" */
    unsigned states;  /* bits 1 << lh_state: the states that a filter covers if it names no state */
    /** Acts on up to MANY_BATCH jobs; `after` may stay NULL. */
    int (*act)(struct cli *cli, const struct args *args, const int64_t *ids, size_t n, int *status,
               lh_jobs **after);
    /** With --json, if `after` is NULL: prints a line for a job that was done. */
    void (*print)(int64_t id);
};

enum { MANY_BATCH = 500 };

int many_run(struct cli *cli, const struct args *args, const struct many *many);

extern const struct positional many_positionals[];

#endif
