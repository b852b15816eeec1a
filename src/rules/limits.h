/*
 * limits.h: the limits that hold for every store, and the checks of a caller's values against them.
 *
 * Each check returns LH_OK, or fails with LH_EINVAL, LH_ETOOBIG or LH_EMISUSE and a sentence that names
 * the value and what is allowed.
 */
#ifndef LHI_LIMITS_H
#define LHI_LIMITS_H

#include <leasehold.h>

#include "base/error.h"

#define LHI_MAX_LEASE_MS (INT64_C(30) * 86400000)      /* a lease of a job, or a named lease */
#define LHI_MAX_TIME_MS (INT64_C(10) * 365 * 86400000) /* any other duration */
#define LHI_MAX_EVERY_MS (INT64_C(3650) * 86400000)    /* the interval of "@every" */
#define LHI_LAST_MOMENT INT64_C(253402300799999)       /* 9999-12-31T23:59:59.999Z */

enum {
    LHI_MAX_PAYLOAD = 64 << 20, /* bytes of a payload or a result */
    LHI_MAX_OUTPUT = 16 << 20,  /* bytes of one output stream of a run */
    LHI_OUTPUT_RUNS = 20,       /* the newest runs of a job whose output is kept (43_output.sql) */
    LHI_BATCH = 500, /* rows that a recovery, a pruning or a promotion changes in one transaction */
};

int lhi_need_out(const void *out, struct lhi_error *err); /* LH_EMISUSE if it is NULL */
int lhi_need_wait(int64_t wait_ms, struct lhi_error *err);
int lhi_need_name(const char *what, const char *name, struct lhi_error *err);
int lhi_need_range(const char *what, int64_t value, int64_t min, int64_t max,
                   struct lhi_error *err);
int lhi_need_duration(const char *what, int64_t ms, int64_t min, int64_t max,
                      struct lhi_error *err);
int lhi_need_text(const char *what, const char *text, size_t max, struct lhi_error *err);
int lhi_need_run_at(int64_t run_at, struct lhi_error *err);

int lhi_check_request(const char *request, struct lhi_error *err); /* NULL is allowed */
/* The arguments of lh_enqueue(), except the request id. */
int lhi_check_enqueue(const char *queue, const lh_new_job *jobs, size_t n, const lh_enqueued *out,
                      struct lhi_error *err);
int lhi_check_output(const lh_output *output, struct lhi_error *err); /* NULL is allowed */
/* The values that `policy` sets for a queue and a kind; NULL means any. */
int lhi_check_policy(const char *queue, const char *kind, const lh_policy *policy,
                     struct lhi_error *err);

#endif
