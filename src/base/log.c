/* log.c: passing a line to the log function of a handle. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static void put(const struct lhi_log *log, int level, lh_log_entry entry, const char *fmt,
                va_list ap) __attribute__((format(printf, 4, 0)));

static void put(const struct lhi_log *log, int level, lh_log_entry entry, const char *fmt,
                va_list ap)
{
    char line[1024];

    if (log == NULL || log->fn == NULL || vsnprintf(line, sizeof line, fmt, ap) < 0)
        return;
    entry.level = level;
    entry.line = line;
    log->fn(log->arg, &entry);
}

void lhi_log(const struct lhi_log *log, int level, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    put(log, level, (lh_log_entry){0}, fmt, ap);
    va_end(ap);
}

void lhi_log_about(const struct lhi_log *log, int level, const lh_log_entry *about, const char *fmt,
                   ...)
{
    va_list ap;

    va_start(ap, fmt);
    put(log, level, *about, fmt, ap);
    va_end(ap);
}
