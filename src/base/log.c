#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void lhi_log(const struct lhi_log *log, int level, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    if (log == NULL || log->fn == NULL)
        return;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n >= 0)
        log->fn(log->arg, level, line);
}
