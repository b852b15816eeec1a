/*
 * cron.h: when a schedule is due.
 *
 * Five fields as in crontab(5), their names and shorthands, or "@every 5m". What a line means on
 * the days on which clocks are changed is told in docs/guides/schedules.md.
 */
#ifndef LHI_CRON_H
#define LHI_CRON_H

#include "base/error.h"
#include "base/zone.h"

#include <stdbool.h>
#include <stdint.h>

struct lhi_cron {
    int64_t every_ms;             /* "@every": so long from one to the next; 0: the fields below */
    uint64_t minutes;             /* bit n: minute n */
    uint32_t hours, days, months; /* days 1 … 31, months 1 … 12 */
    uint32_t weekdays;            /* 0 … 6, 0 is Sunday */
    bool any_day, any_weekday;    /* the field begins with a star: then both fields must agree */
};

/* LH_EINVAL names the field, its value and what is allowed. Whether it ever fires is not asked. */
int lhi_cron_parse(const char *text, struct lhi_cron *out, struct lhi_error *err);

/* The first instant after `after` (ms since 1970); -1: never. */
int64_t lhi_cron_next(const struct lhi_cron *cron, const struct lhi_zone *zone, int64_t after);

#endif
