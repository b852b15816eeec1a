/* error.c: setting an error and its sentence. */
#include "base/error.h"

#include <leasehold.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

void lhi_error_clear(struct lhi_error *err)
{
    err->status = LH_OK;
    err->text[0] = '\0';
    err->request[0] = '\0';
}

__attribute__((format(printf, 3, 0))) static void vset(struct lhi_error *err, int status,
                                                       const char *fmt, va_list ap)
{
    err->status = status;
    if (vsnprintf(err->text, sizeof err->text, fmt, ap) < 0)
        err->text[0] = '\0';
}

int lhi_fail(struct lhi_error *err, int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vset(err, status, fmt, ap);
    va_end(ap);
    return status;
}

static int status_of_errno(int e)
{
    switch (e) {
    case ENOMEM:
        return LH_ENOMEM;
    case ENOSPC:
    case EDQUOT:
        return LH_ENOSPC;
    case EROFS:
    case EACCES:
    case EPERM:
        return LH_EREADONLY;
    default:
        return LH_EIO;
    }
}

int lhi_fail_errno(struct lhi_error *err, int saved_errno, const char *fmt, ...)
{
    char reason[96];
    va_list ap;

    va_start(ap, fmt);
    vset(err, status_of_errno(saved_errno), fmt, ap);
    va_end(ap);
    /* The GNU strerror_r: the result may or may not be in the buffer. */
    const char *text = strerror_r(saved_errno, reason, sizeof reason);
    size_t used = strlen(err->text);
    lhi_format(err->text + used, sizeof err->text - used, ": %s", text);
    return err->status;
}

int lhi_no_memory(struct lhi_error *err)
{
    return lhi_fail(err, LH_ENOMEM, "out of memory");
}

size_t lhi_format(char *buf, size_t len, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(buf, len, fmt, ap);
    va_end(ap);
    if (n < 0 && len > 0)
        buf[0] = '\0';
    if (n < 0)
        return 0;
    if (len == 0)
        return 0;
    return (size_t)n < len ? (size_t)n : len - 1;
}

int lhi_need_reserved(const uint64_t *reserved, size_t n, struct lhi_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (reserved[i] != 0)
            return lhi_fail(
                err, LH_EMISUSE,
                "reserved fields of the options are not zero: set them to zero, or use the "
                "library that the program was built for");
    return LH_OK;
}
