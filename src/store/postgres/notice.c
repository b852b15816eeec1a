/*
 * notice.c: notices and warnings of the server.
 *
 * The acts in the database log by notices (leasehold.log_message): the SQLSTATE has the level, the
 * detail is a flat JSON object. Notices are kept until the transaction is committed, because what
 * was rolled back did not happen. One warning of the server itself matters: a commit did not wait
 * for its standby. Its text is translated, so it is recognized by its source function.
 */
#include "store/postgres/wire.h"

#include <stdlib.h>
#include <string.h>

/* ---- the detail ---- */

struct scan {
    const char *at;
    char *out; /* where the next string is written */
};

static void skip_blanks(struct scan *scan)
{
    scan->at += strspn(scan->at, " \t\r\n");
}

static bool take(struct scan *scan, char c)
{
    skip_blanks(scan);
    if (*scan->at != c)
        return false;
    scan->at++;
    return true;
}

static bool take_hex(struct scan *scan, unsigned *out)
{
    char digits[5] = "";
    char *end;

    for (int i = 0; i < 4 && scan->at[i] != '\0'; i++)
        digits[i] = scan->at[i];
    *out = (unsigned)strtoul(digits, &end, 16);
    if (end != digits + 4)
        return false;
    scan->at += 4;
    return true;
}

static bool take_escape(struct scan *scan)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    unsigned c;
    char letter = *scan->at;

    if (letter == '\0')
        return false;
    scan->at++;
    const char *known = strchr(from, letter);
    if (known != NULL) {
        *scan->out++ = to[known - from];
        return true;
    }
    /* Only control characters are escaped by number. */
    if (letter != 'u' || !take_hex(scan, &c) || c == 0 || c > 127)
        return false;
    *scan->out++ = (char)c;
    return true;
}

/* A JSON string is never shorter than its value, so there is enough room. */
static char *take_string(struct scan *scan)
{
    char *text = scan->out;

    if (!take(scan, '"'))
        return NULL;
    while (*scan->at != '"') {
        if (*scan->at == '\0')
            return NULL;
        if (*scan->at == '\\') {
            scan->at++;
            if (!take_escape(scan))
                return NULL;
        } else {
            *scan->out++ = *scan->at++;
        }
    }
    scan->at++;
    *scan->out++ = '\0';
    return text;
}

static bool take_number(struct scan *scan, int64_t *out)
{
    char *end;

    *out = strtoll(scan->at, &end, 10);
    if (end == scan->at)
        return false;
    scan->at = end;
    return true;
}

static bool take_field(struct scan *scan, struct notice *notice)
{
    const struct {
        const char *name;
        int64_t *number;
        char **text;
    } fields[] = {
        {"job", &notice->job, NULL},         {"token", &notice->token, NULL},
        {"attempt", &notice->attempt, NULL}, {"queue", NULL, &notice->queue},
        {"worker", NULL, &notice->worker},   {"reason", NULL, &notice->reason},
    };
    const char *name = take_string(scan);

    if (name == NULL || !take(scan, ':'))
        return false;
    skip_blanks(scan);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strcmp(name, fields[i].name) != 0)
            continue;
        if (fields[i].number != NULL)
            return take_number(scan, fields[i].number);
        return (*fields[i].text = take_string(scan)) != NULL;
    }
    return false;
}

/* Fields that cannot be parsed are left out: the message is complete without them. */
static void read_detail(struct notice *notice, struct scan *scan)
{
    if (!take(scan, '{') || take(scan, '}'))
        return;
    while (take_field(scan, notice) && take(scan, ','))
        ;
}

/* ---- keeping and logging ---- */

static const char *field(const PGresult *result, int which)
{
    const char *text = PQresultErrorField(result, which);
    return text != NULL ? text : "";
}

static int level_of(const char *code)
{
    static const char letters[] = "EWI"; /* in the order of the levels */

    if (strncmp(code, "LH", 2) != 0 || strlen(code) != 5)
        return LH_LOG_DEBUG;
    const char *letter = strchr(letters, code[2]);
    return letter != NULL ? LH_LOG_ERROR + (int)(letter - letters) : LH_LOG_DEBUG;
}

void pg_notice_keep(struct notices *notices, const PGresult *result)
{
    const char *message = field(result, PG_DIAG_MESSAGE_PRIMARY);
    const char *detail = field(result, PG_DIAG_MESSAGE_DETAIL);
    int level = level_of(field(result, PG_DIAG_SQLSTATE));
    size_t len = strlen(message) + 1;

    if (strcmp(field(result, PG_DIAG_SOURCE_FUNCTION), "SyncRepWaitForLSN") == 0)
        notices->unconfirmed = true;
    struct notice *notice = lhi_calloc(1, sizeof *notice + len + strlen(detail) + 1);
    if (notice == NULL)
        return; /* the act matters more than its log line */
    notice->level = level;
    notice->message = memcpy(notice->text, message, len);
    if (level != LH_LOG_DEBUG)
        read_detail(notice, &(struct scan){.at = detail, .out = notice->text + len});
    if (notices->last != NULL)
        notices->last->next = notice;
    else
        notices->first = notice;
    notices->last = notice;
}

void pg_notices_drop(struct notices *notices)
{
    while (notices->first != NULL) {
        struct notice *notice = notices->first;
        notices->first = notice->next;
        lhi_free(notice);
    }
    *notices = (struct notices){0};
}

void pg_notices_log(struct notices *notices, const struct lhi_log *log)
{
    for (const struct notice *n = notices->first; n != NULL; n = n->next) {
        lh_log_entry about = {.job = n->job,
                              .token = n->token,
                              .attempt = n->attempt,
                              .queue = n->queue,
                              .worker = n->worker,
                              .reason = n->reason};
        lhi_log_about(log, n->level, &about, n->level == LH_LOG_DEBUG ? "database: %s" : "%s",
                      n->message);
    }
    pg_notices_drop(notices);
}
