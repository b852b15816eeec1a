/* Logging hangs from a handle: a level, and the function that takes the line. */
#ifndef LHI_LOG_H
#define LHI_LOG_H

#include <leasehold.h>

struct lhi_log {
    lh_log_fn *fn; /* NULL: silence */
    void *arg;
};

void lhi_log(const struct lhi_log *log, int level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
