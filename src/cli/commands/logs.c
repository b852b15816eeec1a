/*
 * leasehold logs: what the runs of a job wrote.
 *
 * On a terminal, control characters are made visible. To a file or a pipe the bytes are written
 * unchanged. With --follow the streams are read again until the job has ended, and new output is
 * printed.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

enum { ATTEMPT, STREAM, FOLLOW };
enum { STDOUT_ONLY = 1, STDERR_ONLY };
enum { LOOK_MS = 500 }; /* workers store new output once a second */

static const struct positional positionals[] = {
    {"JOB", SPEC_ID, false, false},
    {.meta = NULL},
};

static const struct option options[] = {
    [ATTEMPT] = {"attempt", 'a', "N", SPEC_INT(1, 1000000), 0, "only this attempt"},
    [STREAM] = {"stream", 0, "S", SPEC_CHOICE("stdout stderr"), 0, "only this stream"},
    [FOLLOW] = {"follow", 'f', NULL, SPEC_FLAG, 0,
                "keep printing new output until the job has ended"},
    {.name = NULL},
};

/* ---- as text --------------------------------------------------------------------------------- */

/** How much of the output of a run has been printed. */
struct printed {
    int64_t token, bytes[2];
};

struct logs {
    struct cli *cli;
    bool visible, wanted[2]; /* make control characters visible; the streams to print */
    struct printed *run;
    size_t n;
    int64_t last_token; /* the run that the last line belongs to */
    int last_stream;
    bool in_line; /* the last line is not complete */
    bool any;     /* something was printed */
};

static struct printed *printed_of(struct logs *logs, int64_t token)
{
    for (size_t i = 0; i < logs->n; i++)
        if (logs->run[i].token == token)
            return &logs->run[i];
    logs->run = mem_grow(logs->run, logs->n + 1, sizeof *logs->run);
    logs->run[logs->n] = (struct printed){.token = token};
    return &logs->run[logs->n++];
}

static void put(struct logs *logs, const void *bytes, size_t len)
{
    struct buf out = {0};

    if (len == 0)
        return;
    logs->any = true;
    if (logs->visible)
        text_lines(&out, bytes, len);
    else
        buf_add(&out, bytes, len);
    fwrite(out.p, 1, out.n, stdout);
    logs->in_line = ((const char *)bytes)[len - 1] != '\n';
    buf_clear(&out);
}

static void end_line(struct logs *logs)
{
    if (logs->in_line)
        putchar('\n');
    logs->in_line = false;
}

static void print_head(struct logs *logs, const lh_output *run, int stream)
{
    bool colors = text_colors(stdout);

    if (logs->last_token == run->token && logs->last_stream == stream)
        return;
    end_line(logs);
    printf("%s==> attempt %" PRId64 ", token %" PRId64 ": %s <==%s\n", style_on(STYLE_BOLD, colors),
           run->attempt, run->token, stream ? "stderr" : "stdout", style_off(STYLE_BOLD, colors));
    logs->last_token = run->token;
    logs->last_stream = stream;
}

/** Prints the new output of a stream, and how much of it was dropped before we read it. */
static void print_stream(struct logs *logs, const lh_output *run, int stream)
{
    const lh_stream *s = stream ? &run->err : &run->out;
    int64_t *done = &printed_of(logs, run->token)->bytes[stream];
    int64_t tail_at = s->bytes - (int64_t)s->tail_len;

    if (!logs->wanted[stream] || s->bytes <= *done)
        return;
    print_head(logs, run, stream);
    if (*done < (int64_t)s->head_len) {
        put(logs, (const char *)s->head + *done, s->head_len - (size_t)*done);
        *done = (int64_t)s->head_len;
    }
    if (*done < tail_at) {
        end_line(logs);
        printf("[... %" PRId64 " bytes cut ...]\n", tail_at - *done);
        *done = tail_at;
    }
    if (*done < s->bytes)
        put(logs, (const char *)s->tail + (*done - tail_at), (size_t)(s->bytes - *done));
    *done = s->bytes;
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static void js_part(struct js *json, const char *stream, const char *part, const void *bytes,
                    size_t len)
{
    bool text = lh_text_ok(bytes, len);
    struct buf name = {0}, form = {0};

    buf_format(&name, "%s%s_%s", stream, part, text ? "text" : "base64");
    if (text)
        buf_add(&form, bytes, len);
    else
        base64_encode(&form, bytes, len);
    js_key_text(json, buf_str(&name), buf_str(&form));
    buf_clear(&name);
    buf_clear(&form);
}

/** One text if nothing was dropped, else the beginning and the end. */
static void js_stream(struct js *json, const char *name, const lh_stream *s)
{
    int64_t cut = s->bytes - (int64_t)s->head_len - (int64_t)s->tail_len;
    struct buf key = {0}, whole = {0};

    buf_format(&key, "%s_bytes", name);
    js_key_int(json, buf_str(&key), s->bytes);
    buf_reset(&key);
    buf_format(&key, "%s_cut_bytes", name);
    js_key_int(json, buf_str(&key), cut);
    if (cut > 0) {
        js_part(json, name, "_head", s->head, s->head_len);
        js_part(json, name, "_tail", s->tail, s->tail_len);
    } else {
        buf_add(&whole, s->head, s->head_len);
        buf_add(&whole, s->tail, s->tail_len);
        js_part(json, name, "", buf_str(&whole), whole.n);
    }
    buf_clear(&key);
    buf_clear(&whole);
}

static void print_json(struct logs *logs, const lh_output *run)
{
    struct printed *printed = printed_of(logs, run->token);
    struct js json = {0};

    if (printed->bytes[0] == run->out.bytes && printed->bytes[1] == run->err.bytes)
        return;
    printed->bytes[0] = run->out.bytes;
    printed->bytes[1] = run->err.bytes;
    js_open(&json, '{');
    js_key_int(&json, "job", run->job);
    js_key_int(&json, "attempt", run->attempt);
    js_key_int(&json, "token", run->token);
    js_key_time(&json, "at", run->at);
    if (logs->wanted[0])
        js_stream(&json, "stdout", &run->out);
    if (logs->wanted[1])
        js_stream(&json, "stderr", &run->err);
    js_close(&json, '}');
    js_line(&json);
    js_clear(&json);
}

/* ---- the command ----------------------------------------------------------------------------- */

/** Prints new output; sets `*since` to the time of the last write to any run. */
static int print_new(struct logs *logs, const lh_output_filter *filter, int64_t *since)
{
    lh_output_filter now = *filter;
    lh_outputs *outputs = NULL;

    now.since = *since;
    int rc = lh_output_list(logs->cli->store, &now, &outputs);
    for (size_t i = 0; rc == LH_OK && i < outputs->n; i++) {
        const lh_output *run = &outputs->output[i];
        *since = run->at > *since ? run->at : *since;
        if (logs->cli->json) {
            print_json(logs, run);
        } else {
            print_stream(logs, run, 0);
            print_stream(logs, run, 1);
        }
    }
    lh_outputs_free(outputs);
    return rc;
}

static int follow(struct logs *logs, const lh_output_filter *filter, int64_t *since)
{
    int rc;

    do {
        lh_jobs *job = NULL;
        /* Stop if the reader is gone. If the job writes nothing, no write of ours fails. */
        if (fflush(stdout) != 0 || cli_reader_gone())
            return LH_OK;
        rc = lh_job_wait(logs->cli->store, filter->job, LOOK_MS, cli_cancel(), &job);
        lh_jobs_free(job);
        int printed = rc >= 0 ? print_new(logs, filter, since) : LH_OK;
        rc = printed < 0 ? printed : rc;
    } while (rc == LH_EMPTY);
    return rc;
}

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    lh_output_filter filter = {.job = args->positional[0].num, .attempt = opt[ATTEMPT].num};
    struct logs logs = {.cli = cli,
                        .visible = isatty(STDOUT_FILENO),
                        .wanted = {opt[STREAM].num != STDERR_ONLY, opt[STREAM].num != STDOUT_ONLY}};
    lh_jobs *job = NULL;
    int64_t since = 0;
    int exit = cli_open(cli, ACCESS_READ);

    if (exit != 0)
        return exit;
    int rc = lh_job_get(cli->store, filter.job, &job);
    if (rc == LH_OK)
        rc = print_new(&logs, &filter, &since);
    if (rc == LH_OK && opt[FOLLOW].given)
        rc = follow(&logs, &filter, &since);
    end_line(&logs);
    if (rc < 0)
        exit = cli_failed(cli, rc);
    else if (!logs.any && !cli->json)
        cli_note("no output of job %" PRId64 " is kept", filter.job);
    lh_jobs_free(job);
    free(logs.run);
    return exit;
}

static const struct example examples[] = {
    {"leasehold logs 17", "what did job 17 write?"},
    {"leasehold logs 17 --attempt 2 --stream stderr > errors.txt", "one stream of one attempt"},
    {"leasehold logs 17 --follow", "watch it while it runs"},
    {.line = NULL},
};

const struct command cmd_logs = {
    .name = "logs",
    .args = "JOB [--attempt N] [--stream S] [--follow]",
    .summary = "show what the runs of a job wrote",
    .text =
        "Prints what each run of a job wrote to standard output and standard error, the oldest "
        "run first. A line with attempt, token and stream precedes each stream. Of long output "
        "the beginning and the end are kept, up to the size in the policy max-output; a line "
        "says how many bytes between them were cut. The newest 20 runs of a job are kept, for "
        "the time in the policy retention-output and not longer than the job.\n\nAn attempt may "
        "occur twice, because a release refunds it; a token never does. While a job runs, its "
        "worker stores new output about once a second, so the last output of a killed worker may "
        "be missing. On a terminal, control characters are made visible; to a file or a pipe the "
        "bytes are written unchanged.\n\nWith --json it prints one object per run: stdout_bytes "
        "and stdout_cut_bytes, and the stream as stdout_text, or as stdout_head_text and "
        "stdout_tail_text if it was cut. Bytes that are not UTF-8 are in …_base64. stderr "
        "likewise.",
    .positionals = positionals,
    .options = options,
    .examples = examples,
    .run = run,
};
