/*
 * cron.h: parsing a schedule, and its instants.
 *
 * A schedule is five fields as in crontab(5), with their names and shorthands, or "@every 5m".
 * docs/guides/schedules.md says what happens on the days on which clocks are changed.
 */
#ifndef LHI_CRON_H
#define LHI_CRON_H

#include "base/error.h"
#include "base/zone.h"

#include <stdbool.h>
#include <stdint.h>

struct lhi_cron {
    int64_t every_ms;             /* "@every": the interval; 0: the fields below */
    uint64_t minutes;             /* bit n: minute n */
    uint32_t hours, days, months; /* days 1 … 31, months 1 … 12 */
    uint32_t weekdays;            /* 0 … 6, 0 is Sunday */
    bool any_day, any_weekday; /* the field begins with a star: then a day must match both fields */
};

/* Parse a schedule. LH_EINVAL: the sentence names the field, its value and what is allowed. A schedule that
 * never runs is accepted. */
int lhi_cron_parse(const char *text, struct lhi_cron *out, struct lhi_error *err);

/* The first instant after `after` (ms since 1970); -1: there is none. */
int64_t lhi_cron_next(const struct lhi_cron *cron, const struct lhi_zone *zone, int64_t after);

#endif
