/* How much is raced. On a server everything takes longer; `make torture` ($TEST_THOROUGH) races as much
 * there, too. */
#ifndef SIZES_H
#define SIZES_H

#include "harness/harness.h"
#include "session/sanitized.h"

#include <stdlib.h>

enum { RACE_SCALE = SANITIZED ? 1 : 10 };

/* `most`, or a share of it. */
static inline int race_size(int most)
{
    return test_store_is_postgres() && getenv("TEST_THOROUGH") == NULL ? most / 5 : most;
}

static inline int race_jobs(void)
{
    return race_size(SANITIZED ? 10000 : 100000);
}

#endif
