/* schedules.c: the public calls for schedules. rules/schedule.c decides when a schedule is due. */
#include "core/core.h"

static int check_schedule(const lh_schedule *schedule, struct lhi_error *err)
{
    lh_enqueued nowhere;
    int rc;

    if (schedule == NULL)
        return lhi_fail(err, LH_EMISUSE, "schedule is missing");
    if ((rc = LHI_NEED_RESERVED(schedule, err)) != LH_OK ||
        (rc = lhi_need_name("schedule", schedule->name, err)) != LH_OK)
        return rc;
    if (schedule->cron == NULL)
        return lhi_fail(err, LH_EINVAL, "schedule \"%s\" does not say when: a cron line is missing",
                        schedule->name);
    if (schedule->job.delay_ms != 0 || schedule->job.run_at != 0)
        return lhi_fail(err, LH_EINVAL,
                        "the job of schedule \"%s\" must not have a delay or a time to run at",
                        schedule->name);
    if ((rc = lhi_check_enqueue(schedule->queue, &schedule->job, 1, &nowhere, err)) != LH_OK)
        return rc;
    return lhi_need_range("catch-up", (int64_t)schedule->catch_up, LH_CATCH_UP_ONCE,
                          LH_CATCH_UP_ALL, err);
}

/* Find the next instant. A schedule that never runs is refused. */
static int find_next(const char *cron, const char *zone, int64_t after, int64_t *next,
                     struct lhi_error *err)
{
    struct lhi_timing *timing = NULL;
    int rc = lhi_timing_open(cron, zone, &timing, err);

    if (rc != LH_OK)
        return rc;
    *next = lhi_timing_next(timing, after);
    lhi_timing_close(timing);
    if (*next >= 0)
        return LH_OK;
    return lhi_fail(err, LH_EINVAL,
                    "schedule \"%.200s\" never fires: no year has such a day; day of month and "
                    "month must fit together",
                    cron);
}

int lh_schedule_next(const char *cron, const char *zone, int64_t after, int64_t *next, char *errmsg,
                     size_t errlen)
{
    struct lhi_error err;
    int64_t found = 0;

    lhi_error_clear(&err);
    int rc = lhi_need_range("moment", after, 0, LHI_LAST_MOMENT, &err);
    if (cron == NULL || next == NULL)
        rc = lhi_fail(&err, LH_EMISUSE, "the cron line, or the output argument, is missing");
    else if (rc == LH_OK && (rc = find_next(cron, zone, after, &found, &err)) == LH_OK)
        *next = found;
    if (rc != LH_OK && errmsg != NULL && errlen > 0)
        lhi_format(errmsg, errlen, "%s", err.text);
    return rc;
}

int lh_schedule_set(lh_store *store, const lh_schedule *schedule)
{
    int64_t next;
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = check_schedule(schedule, err)) != LH_OK ||
        (rc = find_next(schedule->cron, schedule->zone, lh_now(store), &next, err)) != LH_OK)
        return rc;
    struct lhi_act act = {.verb = LHI_SCHEDULE_SET, .schedule = schedule};
    return lhi_perform(store, &act, err);
}

int lh_schedule_remove(lh_store *store, const char *name)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if ((rc = lhi_need_name("schedule", name, err)) != LH_OK)
        return rc;
    struct lhi_act act = {.verb = LHI_SCHEDULE_REMOVE, .schedule_name = name};
    return lhi_perform(store, &act, err);
}

int lh_schedule_list(lh_store *store, lh_schedules **out)
{
    int rc;
    struct lhi_error *err = lhi_enter(store, &rc);

    if (err == NULL)
        return rc;
    if (lhi_need_out(out, err) != LH_OK)
        return err->status;
    lh_schedules *schedules = lhi_result_new(sizeof *schedules, err);
    if (schedules == NULL)
        return err->status;
    struct lhi_act act = {.verb = LHI_SCHEDULE_LIST, .schedules = schedules};
    rc = lhi_read(store, &act, err);
    if (rc == LH_OK)
        *out = schedules;
    else
        lh_schedules_free(schedules);
    return rc;
}

void lh_schedules_free(lh_schedules *schedules)
{
    if (schedules != NULL)
        lhi_result_free(schedules, schedules->priv, schedules->schedule);
}
