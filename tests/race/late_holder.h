/*
 * Writes of the library by a process that has read the store some time ago. Between its read and its write
 * other processes may have changed everything.
 */
#ifndef RACE_LATE_H
#define RACE_LATE_H

#include "harness/harness.h"

enum late_write { LATE_RECOVER, LATE_COMPLETE, LATE_FAIL, LATE_RELEASE, LATE_BEAT };

/* Of a job as it was seen; `lease_ms` is how long a beat holds it. How many rows were changed. */
int64_t write_late(enum late_write which, const lh_job *seen, int64_t lease_ms);

/* Worker w-1 is dead, by its last beat and its sessions as they were seen (NULL: none ever); `proven` if
 * not by its silence alone. How many rows were changed. */
struct seen_worker {
    int64_t last_heartbeat_at;
    const char *sessions;
};
int64_t bury_late(const struct seen_worker *seen, bool proven, int64_t now);

#endif
