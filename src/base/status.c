/* status.c: names, texts, exit codes and HTTP statuses of outcomes, from the table in status.def. */
#include <leasehold.h>

struct row {
    int value;
    const char *name;
    int exit_code;
    int http;
    const char *code;
    const char *text;
};

static const struct row rows[] = {
#define LH_STATUS(name, value, exit_code, http, code, text) \
    {value, #name, exit_code, http, code, text},
#include "base/status.def"
#undef LH_STATUS
};

#define LH_STATUS(name, value, exit_code, http, code, text) \
    _Static_assert(LH_##name == (value), "leasehold.h and status.def disagree on " #name);
#include "base/status.def"
#undef LH_STATUS

static const struct row *find(int status)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].value == status)
            return &rows[i];
    return NULL;
}

const char *lh_status_name(int status)
{
    const struct row *row = find(status);
    return row ? row->name : "?";
}

const char *lh_status_code(int status)
{
    const struct row *row = find(status);
    return row ? row->code : "failed";
}

const char *lh_status_text(int status)
{
    const struct row *row = find(status);
    return row ? row->text : "unknown status";
}

int lh_status_exit(int status)
{
    const struct row *row = find(status);
    return row ? row->exit_code : 1;
}

int lh_status_http(int status)
{
    const struct row *row = find(status);
    return row ? row->http : 500;
}
