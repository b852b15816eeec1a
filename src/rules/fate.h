/*
 * fate.h: what recovery does to a job whose lease expired or whose worker died, and the sentence that
 * says so.
 */
#ifndef LHI_FATE_H
#define LHI_FATE_H

#include <leasehold.h>

/* Why a job is taken from its holder: its lease expired, its worker is dead, or an operator asked. */
enum lhi_cause { LHI_CAUSE_TTL, LHI_CAUSE_DEAD, LHI_CAUSE_MANUAL };

/* What happens to the job. */
struct lhi_fate {
    lh_state state; /* pending (the store may schedule it instead: backoff, quarantine) or failed */
    const char *action;
    bool poison;
    int64_t attempt, recoveries; /* the new values of the row */
    int64_t shown_attempt; /* for the log: the next attempt, or the last one if the job failed */
    char reason[480];
};

/* Decide the fate of `job`. `opts`: an operator's call; NULL: automatic recovery. `what` follows the
 * worker's name in the reason if the cause is LHI_CAUSE_DEAD ("is gone (pid 4711)"). `unstarted`: the
 * worker had claimed the job but not started it. */
void lhi_decide_death(const lh_job *job, const lh_policy *policy, const lh_recover_opts *opts,
                      enum lhi_cause cause, const char *what, bool unstarted, int64_t now,
                      struct lhi_fate *out);

#endif
