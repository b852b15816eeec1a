/* A checksum for payloads at rest: it tells rot from truth, it is no defence against forgery. */
#ifndef LHI_CHECKSUM_H
#define LHI_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Every step is a bijection of the state, so damage within one aligned group of eight bytes, one
 * flipped bit included, always changes the sum. */
int64_t lhi_checksum(const void *bytes, size_t len);

#endif
