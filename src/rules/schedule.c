/* schedule.c: when a schedule is due, and which of its missed runs get a job. */
#include "rules/schedule.h"

#include "base/mem.h"
#include "base/zone.h"
#include "rules/cron.h"
#include "rules/limits.h"

enum { ON_TIME_MS = 60000 }; /* a run that is this late counts as missed */

struct lhi_timing {
    struct lhi_cron cron;
    struct lhi_zone *zone;
};

int lhi_timing_open(const char *text, const char *zone, struct lhi_timing **out,
                    struct lhi_error *err)
{
    struct lhi_timing *timing = lhi_calloc(1, sizeof *timing);
    int rc = timing ? lhi_cron_parse(text, &timing->cron, err) : lhi_no_memory(err);

    if (rc == LH_OK)
        rc = lhi_zone_load(zone ? zone : "UTC", &timing->zone, err);
    if (rc == LH_OK)
        *out = timing;
    else
        lhi_timing_close(timing);
    return rc;
}

void lhi_timing_close(struct lhi_timing *timing)
{
    if (timing == NULL)
        return;
    lhi_zone_free(timing->zone);
    lhi_free(timing);
}

int64_t lhi_timing_next(const struct lhi_timing *timing, int64_t after)
{
    return lhi_cron_next(&timing->cron, timing->zone, after);
}

int64_t lhi_timing_next_kept(const struct lhi_timing *timing, int64_t after)
{
    int64_t next = lhi_timing_next(timing, after);
    return next < 0 || next > LHI_LAST_MOMENT ? LHI_LAST_MOMENT : next;
}

/* Count the instants one by one, up to `most`: a schedule may have years of seconds to count. */
static void count_steps(const struct lhi_timing *timing, int64_t upto, int64_t most,
                        struct lhi_instants *out)
{
    for (int64_t at = out->first; at >= 0 && at <= upto; at = lhi_timing_next(timing, at)) {
        if (out->n == most) {
            out->more = true;
            return;
        }
        out->before_last = out->n > 0 ? out->last : 0;
        out->last = at;
        out->n++;
    }
}

/* Find the last instant up to `upto` without counting all of them: in a window before `upto`, and in a
 * wider one if that has fewer than two instants. */
static void find_last(const struct lhi_timing *timing, int64_t upto, struct lhi_instants *out)
{
    static const int64_t windows[] = {INT64_C(2) * 3600000, INT64_C(2) * 86400000,
                                      INT64_C(62) * 86400000, INT64_C(400) * 86400000};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        struct lhi_instants there = {.first = lhi_timing_next(timing, upto - windows[i])};
        count_steps(timing, upto, INT64_MAX, &there);
        if (there.n < 2)
            continue;
        out->last = there.last;
        out->before_last = there.before_last;
        return;
    }
}

void lhi_timing_instants(const struct lhi_timing *timing, int64_t after, int64_t upto,
                         struct lhi_instants *out)
{
    int64_t every = timing->cron.every_ms;

    *out = (struct lhi_instants){.first = lhi_timing_next(timing, after)};
    if (every == 0) {
        count_steps(timing, upto, LHI_MOST_INSTANTS, out);
        if (out->more)
            find_last(timing, upto, out);
    } else if (upto >= out->first) {
        out->n = (upto - after) / every;
        out->more = out->n > LHI_MOST_INSTANTS;
        out->last = after + out->n * every;
        out->before_last = out->n > 1 ? out->last - every : 0;
    }
}

/* LH_CATCH_UP_ALL: every instant gets a job, LHI_BATCH of them in one transaction. */
static void catch_up_all(const struct lhi_timing *timing, const struct lhi_instants *due,
                         struct lhi_catch_up *out)
{
    out->from = due->first;
    out->to = out->upto = due->last;
    if (due->n <= LHI_BATCH)
        return;
    out->to = out->from;
    for (int i = 1; i < LHI_BATCH; i++)
        out->to = lhi_timing_next(timing, out->to);
    out->missed = LHI_BATCH;
    out->missed_to = out->upto = out->to;
}

void lhi_catch_up(const struct lhi_timing *timing, lh_catch_up how, const struct lhi_instants *due,
                  int64_t now, struct lhi_catch_up *out)
{
    bool late = now - due->last >= ON_TIME_MS;

    *out = (struct lhi_catch_up){
        .from = due->last,
        .to = how == LH_CATCH_UP_NONE && late ? 0 : due->last,
        .missed = late ? due->n : due->n - 1,
        .more = due->more && due->n == LHI_MOST_INSTANTS,
        .missed_from = due->first,
        .missed_to = late ? due->last : due->before_last,
        .upto = due->last,
    };
    if (how == LH_CATCH_UP_ALL && !due->more)
        catch_up_all(timing, due, out);
}

void lhi_missed_words(const struct lhi_catch_up *plan, lh_catch_up how, char what[200],
                      char data[200])
{
    char from[40], to[40];
    int64_t caught_up = plan->to == 0 || plan->from > plan->missed_to ? 0
                        : how == LH_CATCH_UP_ALL                      ? plan->missed
                                                                      : 1;

    lh_time_format(plan->missed_from, from, sizeof from);
    lh_time_format(plan->missed_to, to, sizeof to);
    lhi_format(what, 200, "%s%lld run%s missed from %s to %s, %lld caught up with",
               plan->more ? "more than " : "", (long long)plan->missed,
               plan->missed == 1 ? "" : "s", from, to, (long long)caught_up);
    lhi_format(
        data, 200, ",\"missed\":%lld,\"more\":%s,\"caught_up\":%lld,\"from\":\"%s\",\"to\":\"%s\"",
        (long long)plan->missed, plan->more ? "true" : "false", (long long)caught_up, from, to);
}
