/* Time zones by their IANA names, from the system's own files, without touching the zone of the
 * process: $TZ belongs to the program that embeds us, and setting it is a race. */
#ifndef LHI_ZONE_H
#define LHI_ZONE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct lhi_zone;

/* Load the zone `name` ("Europe/Berlin") from $TZDIR or the usual folder. "UTC" needs no file.
 * LH_EINVAL: there is no such zone. */
int lhi_zone_load(const char *name, struct lhi_zone **out, struct lhi_error *err);
void lhi_zone_free(struct lhi_zone *zone);

/* Seconds to add to `utc` (seconds since 1970) to read a clock there; `*until` is when that changes
 * next, INT64_MAX: never. */
int64_t lhi_zone_offset(const struct lhi_zone *zone, int64_t utc, int64_t *until);

/* The first moment at which clocks there show `local` (seconds since 1970 as if it were UTC) or
 * more: for a time that occurs twice the first of the two, for one that is skipped the end of the
 * gap. */
int64_t lhi_zone_moment(const struct lhi_zone *zone, int64_t local);

/* Days since 1970-01-01 of the Gregorian calendar, and back. */
int64_t lhi_days_from_civil(int64_t year, int month, int day);
void lhi_civil_from_days(int64_t days, int64_t *year, int *month, int *day);

#endif
