/* How much is raced. */
#ifndef SIZES_H
#define SIZES_H

#include "session/sanitized.h"

enum {
    RACE_JOBS = SANITIZED ? 10000 : 100000,
    RACE_SCALE = SANITIZED ? 1 : 10,
};

#endif
