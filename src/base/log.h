/* log.h: the log function of a handle, and how to write a line to it. */
#ifndef LHI_LOG_H
#define LHI_LOG_H

#include <leasehold.h>

struct lhi_log {
    lh_log_fn *fn; /* NULL: no log */
    void *arg;
};

void lhi_log(const struct lhi_log *log, int level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for a line about a job or a worker: `about` has all fields except level and line. */
void lhi_log_about(const struct lhi_log *log, int level, const lh_log_entry *about, const char *fmt,
                   ...) __attribute__((format(printf, 4, 5)));

#endif
