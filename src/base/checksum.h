/*
 * checksum.h: a checksum that detects damaged payloads. It does not protect against forgery.
 */
#ifndef LHI_CHECKSUM_H
#define LHI_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Every step is a bijection of the state, so damage within one aligned group of eight bytes, such as a
 * flipped bit, always changes the sum. */
int64_t lhi_checksum(const void *bytes, size_t len);

#endif
