/*
 * wait.h: the steps of a call that waits for a job, or for maintenance to fall due.
 *
 * The state machine calls neither the store nor a clock. The caller takes the next step and reports its
 * result.
 */
#ifndef LHI_WAIT_H
#define LHI_WAIT_H

#include "store/store.h"

enum lhi_wait_step { LHI_STEP_CLAIM, LHI_STEP_SUBSCRIBE, LHI_STEP_POLL, LHI_STEP_SLEEP };

struct lhi_wait {
    enum lhi_wait_step step;
    bool claims;        /* the call waits for a job; false: for maintenance */
    bool claim_at_once; /* after a wake-up claim without a poll, because both cost the same */
    bool looked;        /* a claim or a poll found nothing since the last sleep */
    bool subscribed;    /* the call has subscribed since the last sleep */
    bool polled;        /* there was a poll, so it is known when something falls due */
    bool believed;      /* the last poll found something, so a claim was made */
    bool woken;         /* a wake-up ended the last sleep */
    bool pause;         /* the next sleep is a short one, before subscribing again */
    bool deaf;          /* wake-ups do not reach this process */
    int64_t early_ms;   /* the pause before the next poll after subscribing; 0: no such poll */
    int64_t deaf_ms;    /* the pause between two polls of a deaf process */
};

void lhi_wait_begin(struct lhi_wait *wait, bool claims, bool claim_at_once);

/* Report the result of a step. */
void lhi_wait_claimed_nothing(struct lhi_wait *wait);
void lhi_wait_subscribed(struct lhi_wait *wait, enum lhi_subscribed how);
void lhi_wait_polled(struct lhi_wait *wait, bool found);
/* The step failed but may succeed later: sleep next. */
void lhi_wait_failed(struct lhi_wait *wait);
void lhi_wait_slept(struct lhi_wait *wait, bool woken);

/* Something has changed: claim next. */
void lhi_wait_claim(struct lhi_wait *wait);
/* What the poll found cannot be done now: do not poll again soon. */
void lhi_wait_calm(struct lhi_wait *wait);

/* The longest next sleep; -1: unlimited. `dice`: a random number, so that processes that were woken together do not
 * continue together. */
int64_t lhi_wait_ms(const struct lhi_wait *wait, uint32_t dice);

#endif
