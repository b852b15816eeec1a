/* The steps of a call that waits: for a job to claim, or for maintenance to fall due. No store, no clock: the caller
 * does what the next step says and reports what came of it. */
#ifndef LHI_WAIT_H
#define LHI_WAIT_H

#include "store/store.h"

enum lhi_wait_step { LHI_STEP_CLAIM, LHI_STEP_SUBSCRIBE, LHI_STEP_POLL, LHI_STEP_SLEEP };

struct lhi_wait {
    enum lhi_wait_step step;
    bool claims;        /* waits for a job; otherwise for maintenance */
    bool claim_at_once; /* a claim costs no more than a poll: when woken, claim */
    bool looked;        /* a claim or a poll found nothing since the last sleep */
    bool subscribed;    /* since the last sleep */
    bool polled;        /* ever: it is known when the next thing falls due */
    bool believed;      /* the last poll found something, so a claim was made */
    bool woken;         /* the last sleep ended by a wake-up */
    bool pause;         /* the next sleep is a short one, before subscribing again */
    bool deaf;          /* no wake-up reaches this process */
    int64_t early_ms;   /* until the next poll after subscribing; 0: none */
    int64_t deaf_ms;    /* between two polls while no wake-up reaches this process */
};

void lhi_wait_begin(struct lhi_wait *wait, bool claims, bool claim_at_once);

/* What came of a step. */
void lhi_wait_claimed_nothing(struct lhi_wait *wait);
void lhi_wait_subscribed(struct lhi_wait *wait, enum lhi_subscribed how);
void lhi_wait_polled(struct lhi_wait *wait, bool found);
/* The step failed, and may succeed later: sleep. */
void lhi_wait_failed(struct lhi_wait *wait);
void lhi_wait_slept(struct lhi_wait *wait, bool woken);

/* Claim, whatever the next step was: something has changed. */
void lhi_wait_claim(struct lhi_wait *wait);
/* What the poll found cannot be done now: do not poll again soon for it. */
void lhi_wait_calm(struct lhi_wait *wait);

/* How long the next sleep may last at most; -1: no limit of its own. `dice`: any number, so that processes that were
 * woken together do not go on together. */
int64_t lhi_wait_ms(const struct lhi_wait *wait, uint32_t dice);

#endif
