/*
 * schedule.h: when a schedule is due, and which of its missed runs get a job.
 */
#ifndef LHI_SCHEDULE_H
#define LHI_SCHEDULE_H

#include <leasehold.h>

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { LHI_MOST_INSTANTS = 100000 }; /* missed instants are counted up to this number */

/* A parsed schedule with its time zone. */
struct lhi_timing;

/* `zone` NULL: UTC. LH_EINVAL: the schedule or the zone cannot be parsed. */
int lhi_timing_open(const char *text, const char *zone, struct lhi_timing **out,
                    struct lhi_error *err);
void lhi_timing_close(struct lhi_timing *timing);

/* The first instant after `after`; -1: there is none. */
int64_t lhi_timing_next(const struct lhi_timing *timing, int64_t after);

/* The same for a store, which keeps LHI_LAST_MOMENT if there is none. */
int64_t lhi_timing_next_kept(const struct lhi_timing *timing, int64_t after);

/* The instants of a schedule after one moment and up to another. */
struct lhi_instants {
    int64_t n;
    bool more; /* there are more than LHI_MOST_INSTANTS; they may not all be in n */
    int64_t first, last, before_last;
};
void lhi_timing_instants(const struct lhi_timing *timing, int64_t after, int64_t upto,
                         struct lhi_instants *out);

/* What happens to the instants that are due. */
struct lhi_catch_up {
    int64_t from, to; /* these instants get a job; `to` 0: none does */
    int64_t missed;   /* the number of instants that were not run on time … */
    bool more;        /* … or there are more than that */
    int64_t missed_from, missed_to;
    int64_t upto; /* all instants up to this one are done with */
};

/* Decide about the instants that are due at `now`; there is at least one. */
void lhi_catch_up(const struct lhi_timing *timing, lh_catch_up how, const struct lhi_instants *due,
                  int64_t now, struct lhi_catch_up *out);

/* The sentence about what was missed, and the members of the event's data. */
void lhi_missed_words(const struct lhi_catch_up *plan, lh_catch_up how, char what[200],
                      char data[200]);

#endif
