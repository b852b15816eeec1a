/* text.h: text functions that are not in leasehold.h. */
#ifndef LHI_TEXT_H
#define LHI_TEXT_H

#include <stdbool.h>
#include <stddef.h>

enum { LHI_NAME_MAX = 128 };

bool lhi_name_ok_n(const char *name, size_t len);

/* The length of `text` when it is cut to at most `most` bytes without splitting a character. */
size_t lhi_text_cut(const char *text, size_t most);

#endif
