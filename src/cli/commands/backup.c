/*
 * leasehold backup: copy the store to a file, and check the copy.
 */
#include <inttypes.h>
#include <sys/stat.h>

#include "cli/cli.h"

enum { FORCE };

static const struct option options[] = {
    [FORCE] = {"force", 'f', NULL, SPEC_FLAG, 0, "replace FILE if it exists"},
    {.name = NULL},
};

static const struct positional positionals[] = {
    {"FILE", SPEC_FILE, false, false},
    {.meta = NULL},
};

/** The number of jobs in the copy, which is a store itself. -1: the reason why it cannot be read
 *  was printed. */
static int64_t count_jobs(const char *file)
{
    lh_store *copy = NULL;
    lh_queues *queues = NULL;
    int64_t n = 0;
    int rc = lh_open(file, &(lh_open_opts){.read_only = true}, &copy);

    if (rc == LH_OK)
        rc = lh_queue_list(copy, &queues);
    for (size_t i = 0; rc == LH_OK && i < queues->n; i++) {
        const lh_queue *q = &queues->queue[i];
        n += q->scheduled + q->pending + q->running + q->completed + q->failed + q->cancelled;
    }
    if (rc != LH_OK)
        n = cli_error(-1, "could not read the copy: %s", lh_errmsg(copy));
    lh_queues_free(queues);
    lh_close(copy);
    return n;
}

static void print(const struct cli *cli, const char *file, int64_t jobs, int64_t bytes)
{
    struct js json = {0};
    char size[32];

    if (!cli->json) {
        printf("%" PRId64 " job%s, %s\n", jobs, text_plural(jobs),
               text_bytes(bytes, size, sizeof size));
        return;
    }
    js_open(&json, '{');
    js_key_text(&json, "file", file);
    js_key_int(&json, "jobs", jobs);
    js_key_int(&json, "bytes", bytes);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
}

static int run(struct cli *cli, const struct args *args)
{
    const char *file = args->positional[0].text;
    lh_backup_opts opts = {.replace = args->option[FORCE].given > 0,
                           .cancel = cli_cancel(),
                           .progress = progress_call,
                           .progress_arg = &cli->progress};
    struct stat st = {0};
    int exit = cli_open(cli, ACCESS_READ);

    if (exit != 0)
        return exit;
    progress_begin(&cli->progress, "pages");
    int rc = lh_backup(cli->store, file, &opts);
    progress_wipe(&cli->progress);
    if (rc != LH_OK)
        return cli_failed(cli, rc);
    cli_did(cli, "the copy is complete");
    int64_t jobs = count_jobs(file);
    if (jobs < 0)
        return EXIT_FAILED;
    (void)stat(file, &st);
    print(cli, file, jobs, (int64_t)st.st_size);
    return 0;
}

static const struct example examples[] = {
    {"leasehold backup jobs-monday.db", "a copy, while workers and clients go on"},
    {"leasehold backup --force /mnt/backup/jobs.db", "replace an existing copy"},
    {.line = NULL},
};

static const struct exit_note exits[] = {
    {"FILE exists (see --force), is a directory, or belongs to the store; nothing was changed", 2},
    {"there is no store", 3},
    {"the copy is damaged because the store is: see leasehold-check(1)", 6},
    {.when = NULL},
};

const struct command cmd_backup = {
    .name = "backup",
    .args = "FILE [--force]",
    .summary = "copy the store to a file, and check the copy",
    .text =
        "Copies the whole store, as it is at one moment, to FILE, and prints the number of jobs "
        "and bytes. Workers and clients can go on. The copy is written to a temporary file "
        "beside FILE, synced, read back and checked; then it is renamed to FILE. If anything "
        "goes wrong, FILE stays as it was.\n\nThe copy is one file. Do not copy a store with "
        "other tools while it is in use: such a copy lacks the changes that are still in the "
        "log. leasehold-restore(1) restores a copy.\n\nA store on PostgreSQL is refused: use the "
        "server's own tools, such as pg_dump --schema=leasehold.",
    .positionals = positionals,
    .options = options,
    .examples = examples,
    .exits = exits,
    .run = run,
};
