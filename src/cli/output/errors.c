/*
 * Errors and notes on standard error: as text, or as JSON if --json is among the arguments.
 */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

/* main() sets this before it reads anything else, because the command line itself may be wrong. */
static bool errors_are_json;

void cli_errors_as_json(char *const *argv)
{
    for (; *argv != NULL && strcmp(*argv, "--") != 0; argv++)
        errors_are_json = errors_are_json || strcmp(*argv, "--json") == 0;
}

void put_stderr_line(const struct buf *line)
{
    fwrite(line->p, 1, line->n, stderr);
    fflush(stderr);
}

static void put_text(const char *prefix, const char *text)
{
    struct buf line = {0};

    buf_text(&line, prefix);
    text_visible(&line, text, strlen(text));
    buf_char(&line, '\n');
    put_stderr_line(&line);
    buf_clear(&line);
}

struct error {
    const char *code, *text;
    int64_t job;         /* the job it is about, of several; 0: none */
    const char *request; /* the request id to repeat with; NULL: none */
    const char *hint;    /* what to do about it; NULL: nothing known */
};

static void put_error_json(const struct error *error)
{
    struct js json = {0};

    js_open(&json, '{');
    js_key(&json, "error");
    js_open(&json, '{');
    js_key_text(&json, "code", error->code);
    js_key_text(&json, "message", error->text);
    if (error->job != 0)
        js_key_int(&json, "job", error->job);
    if (error->request != NULL)
        js_key_text(&json, "request", error->request);
    if (error->hint != NULL)
        js_key_text(&json, "hint", error->hint);
    js_close(&json, '}');
    js_close(&json, '}');
    js_end_line(&json);
    put_stderr_line(&json.buf);
    js_clear(&json);
}

static void put_error(const struct error *error)
{
    char request[160];

    /* If both streams go to one file, the output so far must precede the message. */
    fflush(stdout);
    if (errors_are_json) {
        put_error_json(error);
        return;
    }
    put_text("leasehold: ", error->text);
    if (error->request != NULL) {
        snprintf(request, sizeof request, "request id to repeat with: %s", error->request);
        put_text("leasehold: ", request);
    }
    if (error->hint != NULL)
        put_text("leasehold: ", error->hint);
}

/** The error code for JSON, when only the exit code is known. */
static const char *code_of_exit(int exit)
{
    switch (exit) {
    case EXIT_USAGE:
        return "usage";
    case EXIT_NOTHING:
        return lh_status_code(LH_ENOTFOUND);
    case EXIT_LOST:
        return lh_status_code(LH_ELOST);
    case EXIT_CORRUPT:
        return lh_status_code(LH_ECORRUPT);
    default:
        return lh_status_code(exit > 128 ? LH_EINTR : LH_EFAIL);
    }
}

int cli_error(int exit, const char *format, ...)
{
    char text[4096];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    put_error(&(struct error){.code = code_of_exit(exit), .text = text});
    return exit;
}

int cli_refused(int status, const char *format, ...)
{
    char text[4096];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    put_error(&(struct error){.code = lh_status_code(status), .text = text});
    return lh_status_exit(status);
}

void cli_note(const char *format, ...)
{
    char text[4096];
    struct js json = {0};
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    fflush(stdout);
    if (!errors_are_json) {
        put_text("", text);
        return;
    }
    js_open(&json, '{');
    js_key_text(&json, "note", text);
    js_close(&json, '}');
    js_end_line(&json);
    put_stderr_line(&json.buf);
    js_clear(&json);
}

/* ---- failures of the store ------------------------------------------------------------------- */

bool cli_is_file(const struct cli *cli)
{
    return strcmp(lh_store_kind(cli->url), "sqlite") == 0;
}

int cli_failed(struct cli *cli, int status)
{
    const char *text = lh_errmsg(cli->store), *request = lh_last_request(cli->store);
    struct error error = {.code = lh_status_code(status),
                          .text = text[0] != '\0' ? text : lh_status_text(status)};

    if (status == LH_EINTR)
        return cli_interrupted_exit();
    if (status == LH_EUNKNOWN && request[0] != '\0')
        error.request = request;
    /* The library's sentence may name a remedy already. A database on a server is not ours to repair. */
    if (status == LH_ECORRUPT && cli_is_file(cli) && strstr(text, "\"leasehold ") == NULL)
        error.hint = "\"leasehold check --repair\" repairs it";
    put_error(&error);
    return lh_status_exit(status);
}

/** `sentence` is the library's message, which exists only for the first failure; NULL: make one. */
static void put_job_error(const char *verb, int64_t id, int status, const char *sentence)
{
    char text[160];

    snprintf(text, sizeof text, "could not %s job %" PRId64 ": %s", verb, id,
             status == LH_ENOTFOUND ? "there is no such job" : lh_status_text(status));
    put_error(&(struct error){
        .code = lh_status_code(status), .text = sentence ? sentence : text, .job = id});
}

int cli_failed_jobs(struct cli *cli, const char *verb, const int64_t *ids, const int *status,
                    size_t n, int rc)
{
    struct buf first = {0};
    bool reported = false;
    int worst = 0;

    buf_text(&first, lh_errmsg(cli->store));
    for (size_t i = 0; i < n; i++) {
        int code = lh_status_exit(status[i]);
        if (status[i] == LH_OK)
            continue;
        bool is_first = !reported && first.n > 0 && status[i] == rc;
        put_job_error(verb, ids[i], status[i], is_first ? buf_str(&first) : NULL);
        reported = true;
        if (code > worst)
            worst = code;
    }
    buf_clear(&first);
    /* If no job has a status, the whole act failed. */
    return reported ? worst : cli_failed(cli, rc);
}
