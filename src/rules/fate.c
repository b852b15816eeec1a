/*
 * fate.c: what recovery does to a job that lost its worker.
 *
 * The store writes the fate under a guard, so a job that has changed since it was read stays as it is.
 */
#include "rules/fate.h"

#include "base/error.h"

#include <string.h>

/* The length of a lease in one unit: "30 min", "45 s", "1500 ms". */
static void lease_words(int64_t ms, char *buf, size_t len)
{
    if (ms % 60000 == 0)
        lhi_format(buf, len, "%lld min", (long long)(ms / 60000));
    else if (ms % 1000 == 0)
        lhi_format(buf, len, "%lld s", (long long)(ms / 1000));
    else
        lhi_format(buf, len, "%lld ms", (long long)ms);
}

/* Why the job was taken back, with a prefix that programs can read. */
static void cause_words(const lh_job *job, const lh_recover_opts *opts, enum lhi_cause cause,
                        const char *what, char *buf, size_t len)
{
    char span[32];

    switch (cause) {
    case LHI_CAUSE_DEAD:
        lhi_format(buf, len, "RECLAIMED_DEAD: worker %s %s", job->worker ? job->worker : "?", what);
        break;
    case LHI_CAUSE_MANUAL:
        lhi_format(buf, len, "RECLAIMED_MANUAL: taken back by hand, silent for at least %s",
                   opts && opts->threshold_ms > 0
                       ? lh_duration_format(opts->threshold_ms, span, sizeof span)
                       : "0s");
        break;
    case LHI_CAUSE_TTL:
        lease_words(job->lease_ms, span, sizeof span);
        lhi_format(buf, len, "RECLAIMED_TTL: Exceeded TTL (%s)", span);
        break;
    }
}

static void attempt_words(const lh_job *job, char *buf, size_t len)
{
    if (job->max_attempts == LH_UNLIMITED)
        lhi_format(buf, len, "%lld/unlimited", (long long)job->attempt);
    else
        lhi_format(buf, len, "%lld/%lld", (long long)job->attempt, (long long)job->max_attempts);
}

/* Does the cause already name the worker? */
static bool cause_of_worker(const char *cause)
{
    return strncmp(cause, "RECLAIMED_DEAD", 14) == 0;
}

static void explain(const lh_job *job, const lh_policy *policy, const char *cause, int64_t now,
                    bool unstarted, struct lhi_fate *fate)
{
    char attempt[64], who[224], age[32];
    bool names_worker = cause_of_worker(cause);
    int64_t seen =
        job->last_heartbeat_at > job->started_at ? job->last_heartbeat_at : job->started_at;
    int64_t deaths = job->recoveries + 1;
    const char *colon = strstr(cause, ": ");
    int prefix = colon ? (int)(colon - cause) : 0;

    attempt_words(job, attempt, sizeof attempt);
    lhi_format(who, sizeof who, "%s%s%slast seen %s ago", names_worker ? "" : "worker ",
               names_worker  ? ""
               : job->worker ? job->worker
                             : "?",
               names_worker ? "" : " ",
               lh_duration_format(now > seen ? now - seen : 0, age, sizeof age));
    if (fate->poison)
        lhi_format(fate->reason, sizeof fate->reason,
                   "POISON: %lld workers died under this job (max %lld), %s, %s", (long long)deaths,
                   (long long)policy->max_recoveries, cause, who);
    else if (unstarted)
        lhi_format(fate->reason, sizeof fate->reason, "%s before it started the job, %s", cause,
                   who);
    else if (fate->state == LH_FAILED && job->max_attempts != LH_UNLIMITED &&
             job->attempt >= job->max_attempts)
        lhi_format(fate->reason, sizeof fate->reason, "%.*s: Max attempts reached (%lld), %s, %s",
                   prefix, cause, (long long)job->max_attempts, colon ? colon + 2 : cause, who);
    else
        lhi_format(fate->reason, sizeof fate->reason, "%s%s attempt %s, %s", cause,
                   names_worker ? "," : " at", attempt, who);
}

void lhi_decide_death(const lh_job *job, const lh_policy *policy, const lh_recover_opts *opts,
                      enum lhi_cause cause, const char *what, bool unstarted, int64_t now,
                      struct lhi_fate *out)
{
    lh_action action = opts && opts->action ? opts->action : policy->action;
    bool spent = job->max_attempts != LH_UNLIMITED && job->attempt >= job->max_attempts;
    char words[320];

    *out = (struct lhi_fate){.state = LH_PENDING,
                             .attempt = job->attempt,
                             .recoveries = job->recoveries,
                             .shown_attempt = job->attempt};
    /* The job did not run, so its attempt does not count, as after a release. */
    if (unstarted) {
        out->action = "released";
        out->attempt = job->attempt > 0 ? job->attempt - 1 : 0;
    } else if (policy->max_recoveries != LH_UNLIMITED &&
               job->recoveries >= policy->max_recoveries) {
        out->poison = true; /* before the action: this job kills its workers */
        out->state = LH_FAILED;
    } else if (action == LH_ACTION_FAIL || (action == LH_ACTION_RETRY && spent)) {
        out->state = LH_FAILED;
    } else {
        out->recoveries = job->recoveries + 1;
        out->action = action == LH_ACTION_PENDING ? "pending" : "retry";
        if (action == LH_ACTION_PENDING)
            out->attempt = job->attempt > 0 ? job->attempt - 1 : 0;
        else
            out->shown_attempt = job->attempt + 1;
    }
    if (out->state == LH_FAILED)
        out->action = "failed";
    cause_words(job, opts, cause, what, words, sizeof words);
    explain(job, policy, words, now, unstarted, out);
}
