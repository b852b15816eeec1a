/*
 * leasehold enqueue --bulk: JSON lines become jobs, 1000 in a transaction.
 *
 * A bad line ends the run with a message that quotes it, and the other lines of its batch are not
 * written. A file can be read twice, so it is checked to its end before the first write: a bad line
 * in a file changes nothing at all.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "enqueue.h"

enum { BATCH = 1000 };

/* A batch is also full when its payloads reach this size, to bound memory. */
#define BATCH_BYTES ((size_t)64 << 20)

struct bulk {
    struct cli *cli;
    const char *queue;
    const lh_new_job *defaults;
    const char *request;
    lh_new_job jobs[BATCH];
    lh_enqueued done[BATCH];
    size_t n;               /* jobs in the batch */
    size_t bytes;           /* size of their payloads */
    int64_t batches;        /* written */
    int64_t written;        /* jobs */
    int64_t line;           /* number of the line being read */
    bool dry;               /* check the lines, write nothing */
    struct lhi_arena arena; /* for the values of the batch */
    struct buf compact, decoded;
    int64_t size; /* size of the input, if it is a file; 0: unknown */
};

/* ---- reading a line -------------------------------------------------------------------------- */

static bool refuse(struct bulk *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool refuse(struct bulk *b, const char *format, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    progress_wipe(&b->cli->progress);
    if (b->written == 0)
        cli_error(EXIT_USAGE, "line %" PRId64 ": %s; nothing was written", b->line, text);
    else
        cli_error(EXIT_USAGE, "line %" PRId64 ": %s; only the first %" PRId64 " jobs were written",
                  b->line, text, b->written);
    return false;
}

/** The keys that a line may have, and what their values may be. A key that ends in `_ms` is a
 *  number of milliseconds. */
static const struct line_key {
    const char *name;
    struct value_spec spec;
} line_keys[] = {
    {"payload", SPEC_BYTES},
    {"payload_text", SPEC_BYTES},
    {"payload_base64", SPEC_BYTES},
    {"kind", SPEC_NAME},
    {"priority", SPEC_INT(-32768, 32767)},
    {"key", SPEC_TEXT(256)},
    {"max_attempts", SPEC_ATTEMPTS},
    {"run_at", SPEC_TIME},
    {"at", SPEC_TIME},
    {"delay", SPEC_LONG_TIME},
    {"lease", SPEC_LEASE_TIME},
    {"expires", SPEC_DURATION(1, VALUE_LONG_MAX)},
    {"backoff", SPEC_DURATION(1, VALUE_LONG_MAX)},
    {"backoff_cap", SPEC_DURATION(1, VALUE_LONG_MAX)},
    {"delay_ms", SPEC_INT(0, VALUE_LONG_MAX)},
    {"lease_ms", SPEC_INT(1, VALUE_LEASE_MAX)},
    {"expires_ms", SPEC_INT(1, VALUE_LONG_MAX)},
    {"backoff_ms", SPEC_INT(1, VALUE_LONG_MAX)},
    {"backoff_cap_ms", SPEC_INT(1, VALUE_LONG_MAX)},
};

enum { LINE_KEYS = sizeof line_keys / sizeof line_keys[0] };

static bool unknown_key(struct bulk *b, const char *name)
{
    const char *known[LINE_KEYS];
    char shown[128];
    const char *nearest;

    for (size_t i = 0; i < LINE_KEYS; i++)
        known[i] = line_keys[i].name;
    nearest = value_nearest(name, known, LINE_KEYS);
    value_quote(name, shown, sizeof shown);
    if (nearest != NULL)
        return refuse(b, "key %s is unknown, did you mean \"%s\"?", shown, nearest);
    return refuse(b,
                  "key %s is unknown: allowed: payload, payload_text, payload_base64, kind, "
                  "priority, key, max_attempts, run_at, delay, lease, expires, backoff, "
                  "backoff_cap",
                  shown);
}

/** Decodes a string of the line into the batch's memory. NULL: it is no string, or no valid one. */
static const char *decode(struct bulk *b, const char *raw, size_t raw_len, size_t *len)
{
    if (raw[0] != '"')
        return NULL;
    if (memchr(raw, '\\', raw_len) == NULL) { /* the common case: nothing to decode */
        *len = raw_len - 2;
        return arena_copy(&b->arena, raw + 1, *len);
    }
    buf_reset(&b->decoded);
    if (!js_decode_string(&b->decoded, raw, raw_len))
        return NULL;
    *len = b->decoded.n;
    return arena_copy(&b->arena, buf_str(&b->decoded), *len);
}

static bool set_payload(struct bulk *b, const struct line_key *key, const struct js_member *m,
                        lh_new_job *job)
{
    char shown[128];

    if (job->payload != NULL)
        return refuse(b,
                      "a second payload, under \"%s\": allowed: one of payload, payload_text, "
                      "payload_base64",
                      key->name);
    if (strcmp(key->name, "payload") == 0) {
        job->payload = arena_copy(&b->arena, m->value, m->value_len);
        job->payload_len = m->value_len;
    } else {
        const char *text = decode(b, m->value, m->value_len, &job->payload_len);
        const char *as = arena_copy(&b->arena, m->value, m->value_len);
        if (text == NULL)
            return refuse(b, "key \"%s\": value %.60s is not text: allowed: a string of UTF-8",
                          key->name, as);
        job->payload = text;
        if (strcmp(key->name, "payload_base64") == 0) {
            buf_reset(&b->decoded);
            if (!base64_decode(&b->decoded, text, job->payload_len))
                return refuse(b,
                              "key \"%s\": value %s is not base64: allowed: RFC 4648 with padding",
                              key->name, value_quote(text, shown, sizeof shown));
            job->payload = arena_copy(&b->arena, buf_str(&b->decoded), b->decoded.n);
            job->payload_len = b->decoded.n;
        }
    }
    if (job->payload_len > (size_t)VALUE_PAYLOAD_MAX)
        return refuse(b, "the payload is %zu bytes long: allowed: at most 64 MiB",
                      job->payload_len);
    return true;
}

static void set_value(const char *name, const struct value *value, lh_new_job *job)
{
    if (strcmp(name, "kind") == 0)
        job->kind = value->text;
    else if (strcmp(name, "priority") == 0)
        job->priority = (int)value->num;
    else if (strcmp(name, "key") == 0)
        job->key = value->text;
    else if (strcmp(name, "max_attempts") == 0)
        job->max_attempts = value->num;
    else if (strcmp(name, "run_at") == 0 || strcmp(name, "at") == 0) {
        job->run_at = value->num;
        job->delay_ms = 0;
    } else if (strncmp(name, "delay", 5) == 0) {
        job->delay_ms = value->num;
        job->run_at = 0;
    } else if (strncmp(name, "lease", 5) == 0)
        job->lease_ms = value->num;
    else if (strncmp(name, "expires", 7) == 0)
        job->expires_ms = value->num;
    else if (strncmp(name, "backoff_cap", 11) == 0)
        job->backoff_cap_ms = value->num;
    else
        job->backoff_ms = value->num;
}

static bool set_member(struct bulk *b, const struct line_key *key, const struct js_member *m,
                       lh_new_job *job)
{
    bool number = key->spec.kind == VALUE_INT;
    const char *raw = arena_copy(&b->arena, m->value, m->value_len);
    const char *text = raw;
    struct value value = {0};
    char why[VALUE_WHY];
    char shown[128];
    size_t len = m->value_len;

    if (strcmp(raw, "null") == 0) /* `leasehold list --json` prints null for unset fields */
        return true;
    if (key->spec.kind == VALUE_BYTES)
        return set_payload(b, key, m, job);
    if (raw[0] == '"') {
        text = decode(b, raw, len, &len);
        if (text == NULL || strlen(text) != len)
            return refuse(b,
                          "key \"%s\": value %.60s is not text: allowed: UTF-8 without a zero byte",
                          key->name, raw);
        if (number && (key->spec.word == NULL || strcmp(text, key->spec.word) != 0))
            return refuse(b, "key \"%s\": value %s is text: allowed: a number%s%s", key->name,
                          value_quote(text, shown, sizeof shown), key->spec.word ? " or " : "",
                          key->spec.word ? key->spec.word : "");
    } else if (!number || (raw[0] != '-' && (raw[0] < '0' || raw[0] > '9'))) {
        return refuse(b, "key \"%s\": value %s is of the wrong type: allowed: %s", key->name,
                      value_quote(raw, shown, sizeof shown), number ? "a number" : "text");
    }
    if (!value_parse(&key->spec, text, &value, why))
        return refuse(b, "key \"%s\": value %s %s", key->name,
                      value_quote(text, shown, sizeof shown), why);
    value.text = text;
    set_value(key->name, &value, job);
    return true;
}

static bool read_line(struct bulk *b, const char *text, size_t len)
{
    lh_new_job *job = &b->jobs[b->n];
    struct js_error error;
    struct js_member m;
    unsigned seen = 0;
    bool timed = false;
    char shown[128];

    buf_reset(&b->compact);
    if (!js_valid(text, len, &b->compact, &error)) {
        const char *copy = arena_copy(&b->arena, text, len);
        return refuse(b, "%s is not JSON: %s at byte %zu", value_quote(copy, shown, sizeof shown),
                      error.what, error.at + 1);
    }
    if (b->compact.p[0] != '{')
        return refuse(b, "%s is not an object: allowed: {\"payload\":…}",
                      value_quote(b->compact.p, shown, sizeof shown));
    *job = *b->defaults;
    m.at = b->compact.p;
    while (js_next_member(&m)) {
        size_t name_len = 0;
        const char *name = decode(b, m.key, m.key_len, &name_len);
        size_t k = 0;
        if (name == NULL)
            return refuse(b, "a key cannot be read");
        while (k < LINE_KEYS && strcmp(line_keys[k].name, name) != 0)
            k++;
        if (k == LINE_KEYS)
            return unknown_key(b, name);
        if ((seen >> k & 1) != 0)
            return refuse(b, "key \"%s\" is given twice: allowed: once", name);
        seen |= 1U << k;
        if (strncmp(name, "delay", 5) == 0 || strcmp(name, "at") == 0 ||
            strcmp(name, "run_at") == 0) {
            if (timed && strncmp(m.value, "null", 4) != 0)
                return refuse(b,
                              "key \"%s\": a second time to run: allowed: one of delay, delay_ms, "
                              "run_at",
                              name);
            timed = timed || strncmp(m.value, "null", 4) != 0;
        }
        if (!set_member(b, &line_keys[k], &m, job))
            return false;
    }
    b->bytes += job->payload_len;
    b->n++;
    return true;
}

/* ---- batches --------------------------------------------------------------------------------- */

/** Writes the batch. 0, or the exit code. */
static int flush_batch(struct bulk *b)
{
    char request[256];
    int rc = LH_OK;

    if (b->n == 0)
        return 0;
    if (!b->dry) {
        /* Each transaction needs a request id; it is made from the given one. */
        snprintf(request, sizeof request, "%s#%" PRId64, b->request ? b->request : "",
                 b->batches + 1);
        rc = lh_enqueue(b->cli->store, b->queue, b->jobs, b->n, b->request ? request : NULL,
                        b->done);
    }
    if (rc != LH_OK) {
        int exit;
        progress_wipe(&b->cli->progress);
        exit = cli_failed(b->cli, rc);
        cli_error(
            0, "the %zu jobs up to line %" PRId64 " failed; %" PRId64 " jobs were written before",
            b->n, b->line, b->written);
        return exit;
    }
    if (!b->dry) {
        for (size_t i = 0; b->cli->json && i < b->n; i++)
            enqueue_print(&b->done[i], true);
        b->batches++;
        b->written += (int64_t)b->n;
        progress_show(&b->cli->progress, b->written, b->size > 0 ? (int64_t)ftell(stdin) : -1,
                      b->size);
    }
    b->n = 0;
    b->bytes = 0;
    lhi_arena_clear(&b->arena);
    return 0;
}

static int read_all(struct bulk *b)
{
    char *line = NULL;
    size_t cap = 0;
    int exit = 0;

    b->line = 0;
    for (;;) {
        ssize_t len;
        errno = 0;
        len = getline(&line, &cap, stdin);
        if (len < 0)
            break;
        b->line++;
        if (len > 0 && line[len - 1] == '\n')
            len--;
        if (strspn(line, " \t\r\n") >= (size_t)len) /* skip empty lines */
            continue;
        if (!read_line(b, line, (size_t)len)) {
            exit = EXIT_USAGE;
            break;
        }
        if (b->n == BATCH || b->bytes >= BATCH_BYTES)
            exit = flush_batch(b);
        if (exit != 0)
            break;
        if (cli_interrupted() || ferror(stdout))
            break;
    }
    if (exit == 0 && cli_interrupted()) {
        progress_wipe(&b->cli->progress);
        exit = cli_error(cli_interrupted_exit(), "interrupted; %" PRId64 " jobs were written",
                         b->written);
    } else if (exit == 0 && ferror(stdin)) {
        char why[128];
        progress_wipe(&b->cli->progress);
        exit = cli_error(EXIT_FAILED,
                         "could not read standard input: %s; %" PRId64 " jobs were written",
                         strerror_r(errno, why, sizeof why), b->written);
    } else if (exit == 0) {
        exit = flush_batch(b);
    }
    free(line);
    return exit;
}

/** The size of standard input if it is a file that can be read twice; else 0. */
static int64_t rereadable(void)
{
    struct stat status;

    if (fstat(STDIN_FILENO, &status) != 0 || !S_ISREG(status.st_mode) ||
        lseek(STDIN_FILENO, 0, SEEK_CUR) != 0)
        return 0;
    return (int64_t)status.st_size;
}

int enqueue_bulk(struct cli *cli, const char *queue, const lh_new_job *defaults,
                 const char *request)
{
    struct bulk *b = mem_alloc(sizeof *b);
    int exit = 0;

    *b = (struct bulk){.cli = cli, .queue = queue, .defaults = defaults, .request = request};
    cli_cancel();
    b->size = rereadable();
    if (b->size > 0) {
        b->dry = true;
        exit = read_all(b);
        b->dry = false;
        b->n = 0;
        b->bytes = 0;
        lhi_arena_clear(&b->arena);
        rewind(stdin);
    }
    if (exit == 0)
        exit = cli_open(cli, ACCESS_WRITE);
    if (exit == 0) {
        progress_begin(&cli->progress, "jobs");
        exit = read_all(b);
        progress_wipe(&b->cli->progress);
        cli_did(cli, "%" PRId64 " job%s enqueued", b->written, b->written == 1 ? " was" : "s were");
        if (exit == 0 && !cli->json)
            printf("%" PRId64 "\n", b->written);
    }
    lhi_arena_clear(&b->arena);
    buf_clear(&b->compact);
    buf_clear(&b->decoded);
    free(b);
    return exit;
}
