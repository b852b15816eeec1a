/*
 * error.h: a status and the sentence that explains it, in a fixed buffer, so that reporting an error
 * cannot fail. The lowest layer that knows the names writes the sentence; the layers above pass it on.
 */
#ifndef LHI_ERROR_H
#define LHI_ERROR_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

enum { LHI_REQUEST_MAX = 256 };

struct lhi_error {
    int status;
    char text[480];
    char request[LHI_REQUEST_MAX +
                 1]; /* with LH_EUNKNOWN: the request id under which to repeat the act */
};

void lhi_error_clear(struct lhi_error *err);

/* Set the status and the sentence. Returns the status, for `return lhi_fail(…)`. */
int lhi_fail(struct lhi_error *err, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The same, with ": REASON" of an errno appended. ENOSPC, ENOMEM and EROFS get their own status. */
int lhi_fail_errno(struct lhi_error *err, int saved_errno, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

int lhi_no_memory(struct lhi_error *err);

/* Check that the reserved fields are zero. LH_EMISUSE: they are not, so the caller was probably built for a
 * later version of the header. */
#define LHI_NEED_RESERVED(opts, err) \
    lhi_need_reserved((opts)->reserved, sizeof(opts)->reserved / sizeof(opts)->reserved[0], err)
int lhi_need_reserved(const uint64_t *reserved, size_t n, struct lhi_error *err);

/* snprintf() that always writes a final zero and returns the number of bytes it really wrote. */
size_t lhi_format(char *buf, size_t len, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
