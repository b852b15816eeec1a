/*
 * zone.h: time zones by their IANA names, read from the files of the system.
 *
 * The time zone of the process ($TZ) is not used: it belongs to the program that embeds us.
 */
#ifndef LHI_ZONE_H
#define LHI_ZONE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct lhi_zone;

/* Load the zone `name` ("Europe/Berlin") from $TZDIR or /usr/share/zoneinfo. "UTC" needs no file.
 * LH_EINVAL: there is no such zone. */
int lhi_zone_load(const char *name, struct lhi_zone **out, struct lhi_error *err);
void lhi_zone_free(struct lhi_zone *zone);

/* The offset of the zone at `utc`, in seconds. `*until` is the next change; INT64_MAX: none. */
int64_t lhi_zone_offset(const struct lhi_zone *zone, int64_t utc, int64_t *until);

/* The first moment (UTC) at which clocks in the zone show `local` or later. For a time that occurs twice this
 * is the first one; for a time that is skipped it is the end of the gap. */
int64_t lhi_zone_moment(const struct lhi_zone *zone, int64_t local);

/* Convert between a date of the Gregorian calendar and days since 1970-01-01. */
int64_t lhi_days_from_civil(int64_t year, int month, int day);
void lhi_civil_from_days(int64_t days, int64_t *year, int *month, int *day);

#endif
