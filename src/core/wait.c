/*
 * wait.c: the state machine of a waiting call, for both stores.
 *
 *   claim ─ nothing ─▶ subscribe ─▶ poll ─ nothing ─▶ sleep ─ woken ─▶ claim
 *                                    │                  └─ in time ──▶ subscribe
 *                                    └─ found ─▶ claim
 *
 * A wait for maintenance does not claim: it polls first, then subscribes and polls once more. The poll after
 * subscribing finds what was committed before the subscription. A transaction that was committing at that moment has
 * not seen the subscription and sends no wake-up, so a few more polls follow, at growing intervals. A process that no
 * wake-up can reach (a deaf one) only polls, at growing intervals.
 *
 * One wake-up reaches every waiter of a queue. A waiter whose claim then finds nothing pauses for a moment before it
 * subscribes and polls: the job that comes next may wake it without either. A poll that found a job which the claim
 * did not get (another worker was faster, or a limit holds it back) is not repeated before a sleep.
 */
#include "core/wait.h"

enum {
    PAUSE_MS = 4,
    EARLY_MS = 4, /* from the subscription to the first extra poll; then four times as long */
    EARLY_MOST_MS = 256, /* … up to this pause */
    DEAF_MS = 50,        /* the first pause of a deaf process; it doubles */
    DEAF_MOST_MS = 1000,
};

void lhi_wait_begin(struct lhi_wait *wait, bool claims, bool claim_at_once)
{
    *wait = (struct lhi_wait){.step = claims ? LHI_STEP_CLAIM : LHI_STEP_POLL,
                              .claims = claims,
                              .claim_at_once = claim_at_once,
                              .deaf_ms = DEAF_MS};
}

void lhi_wait_claimed_nothing(struct lhi_wait *wait)
{
    wait->looked = true;
    wait->pause = wait->woken && wait->claim_at_once;
    wait->step = wait->believed || wait->pause ? LHI_STEP_SLEEP : LHI_STEP_SUBSCRIBE;
    wait->believed = wait->woken = false;
}

void lhi_wait_subscribed(struct lhi_wait *wait, enum lhi_subscribed how)
{
    wait->subscribed = true;
    wait->deaf = how == LHI_SUBSCRIBED_DEAF;
    if (how == LHI_SUBSCRIBED_NOW)
        wait->early_ms = EARLY_MS;
    else if (how == LHI_SUBSCRIBED_DEAF)
        wait->early_ms = 0;
    /* If the subscription existed all the time, or the process is deaf, another poll would find nothing new. */
    bool known = how == LHI_SUBSCRIBED_BEFORE || how == LHI_SUBSCRIBED_DEAF;
    wait->step = known && wait->looked && wait->polled ? LHI_STEP_SLEEP : LHI_STEP_POLL;
}

void lhi_wait_polled(struct lhi_wait *wait, bool found)
{
    wait->polled = true;
    wait->looked = !found;
    wait->believed = found;
    wait->step = found && wait->claims ? LHI_STEP_CLAIM
                 : wait->subscribed    ? LHI_STEP_SLEEP
                                       : LHI_STEP_SUBSCRIBE;
}

void lhi_wait_failed(struct lhi_wait *wait)
{
    wait->looked = wait->believed = wait->woken = wait->pause = false;
    wait->step = LHI_STEP_SLEEP;
}

void lhi_wait_slept(struct lhi_wait *wait, bool woken)
{
    bool paused = wait->pause;

    wait->pause = false;
    wait->looked = paused && !woken;
    wait->subscribed = false;
    wait->woken = woken;
    if (paused && !woken) {
        wait->polled = false; /* another process may have subscribed meanwhile: poll */
        wait->step = LHI_STEP_SUBSCRIBE;
        return;
    }
    if (woken)
        wait->early_ms = 0;
    else if (wait->early_ms > 0)
        wait->early_ms = wait->early_ms * 4 <= EARLY_MOST_MS ? wait->early_ms * 4 : 0;
    if (wait->deaf)
        wait->deaf_ms = wait->deaf_ms * 2 < DEAF_MOST_MS ? wait->deaf_ms * 2 : DEAF_MOST_MS;
    wait->step = !wait->claims                  ? LHI_STEP_POLL
                 : woken && wait->claim_at_once ? LHI_STEP_CLAIM
                                                : LHI_STEP_SUBSCRIBE;
}

void lhi_wait_claim(struct lhi_wait *wait)
{
    wait->believed = wait->woken = wait->pause = false;
    wait->step = LHI_STEP_CLAIM;
}

void lhi_wait_calm(struct lhi_wait *wait)
{
    wait->early_ms = 0;
    wait->deaf_ms = DEAF_MOST_MS;
}

int64_t lhi_wait_ms(const struct lhi_wait *wait, uint32_t dice)
{
    if (wait->pause)
        return (int64_t)(dice % PAUSE_MS) + 1;
    if (wait->deaf)
        return wait->deaf_ms;
    return wait->early_ms > 0 ? wait->early_ms : -1;
}
