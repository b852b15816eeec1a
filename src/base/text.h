/* Internal additions to the text helpers of leasehold.h. */
#ifndef LHI_TEXT_H
#define LHI_TEXT_H

#include <stdbool.h>
#include <stddef.h>

enum { LHI_NAME_MAX = 128 };

bool lhi_name_ok_n(const char *name, size_t len);

#endif
