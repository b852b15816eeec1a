/* The steps of a call that waits. */
#include "core/wait.h"
#include "harness/harness.h"

#include <string.h>

static char letter(const struct lhi_wait *wait)
{
    switch (wait->step) {
    case LHI_STEP_CLAIM:
        return 'c';
    case LHI_STEP_SUBSCRIBE:
        return 's';
    case LHI_STEP_POLL:
        return 'p';
    default:
        return 'z';
    }
}

/* What each step finds: the steps a wait takes until the answers end, as letters: claim, subscribe, poll, sleep (z).
 * Answers: '-' nothing, '+' found or woken, 'b' subscribed before, 'o' others had, 'n' now, 'd' deaf. */
static const char *steps(struct lhi_wait *wait, const char *answers)
{
    static char taken[64];
    size_t n = 0;

    for (const char *answer = answers; *answer != '\0'; answer++) {
        taken[n++] = letter(wait);
        if (wait->step == LHI_STEP_CLAIM)
            lhi_wait_claimed_nothing(wait);
        else if (wait->step == LHI_STEP_SUBSCRIBE)
            lhi_wait_subscribed(wait, *answer == 'b'   ? LHI_SUBSCRIBED_BEFORE
                                      : *answer == 'o' ? LHI_SUBSCRIBED_OTHERS
                                      : *answer == 'n' ? LHI_SUBSCRIBED_NOW
                                                       : LHI_SUBSCRIBED_DEAF);
        else if (wait->step == LHI_STEP_POLL)
            lhi_wait_polled(wait, *answer == '+');
        else
            lhi_wait_slept(wait, *answer == '+');
    }
    taken[n++] = letter(wait);
    taken[n] = '\0';
    return taken;
}

static const char *claim_steps(bool claim_at_once, const char *answers)
{
    struct lhi_wait wait;

    lhi_wait_begin(&wait, true, claim_at_once);
    return steps(&wait, answers);
}

TEST(an_idle_claim_subscribes_and_polls_once_before_it_sleeps)
{
    EXPECT_STR(claim_steps(true, "-n-"), "cspz");
    EXPECT_STR(claim_steps(true, "-o-"), "cspz");
    EXPECT_STR(claim_steps(true, "-b-"), "cspz"); /* the poll says when the next thing falls due */
    EXPECT_STR(claim_steps(true, "-d-"), "cspz");
}

TEST(a_claim_that_is_woken_claims_at_once_or_polls_first)
{
    EXPECT_STR(claim_steps(true, "-n-+"), "cspzc");
    EXPECT_STR(claim_steps(false, "-b-+b"), "cspzsp");
}

TEST(a_claim_that_was_woken_for_nothing_pauses_and_then_subscribes_and_polls)
{
    EXPECT_STR(claim_steps(true, "-n-+--n-"), "cspzczspz");
    EXPECT_STR(claim_steps(true, "-n-+-+"), "cspzczc"); /* woken again in the pause */
}

TEST(a_poll_that_misleads_is_not_repeated_before_a_sleep)
{
    EXPECT_STR(claim_steps(true, "-n+-"), "cspcz");
    EXPECT_STR(claim_steps(true, "-n+--b+-"), "cspczspcz");
    EXPECT_STR(claim_steps(false, "-b+--b+-"), "cspczspcz");
}

TEST(a_wait_for_maintenance_polls_before_and_after_it_subscribes)
{
    struct lhi_wait wait;

    lhi_wait_begin(&wait, false, false);
    EXPECT_STR(steps(&wait, "-n--"), "pspzp");
    lhi_wait_begin(&wait, false, false);
    EXPECT_STR(steps(&wait, "-b+-b"), "pszpsz"); /* a follower is subscribed for */
    lhi_wait_begin(&wait, false, false);
    EXPECT_STR(steps(&wait, "-d-"), "pszp");
}

/* A transaction that was about to commit when this process subscribed wakes nobody. */
TEST(after_subscribing_a_few_polls_follow_and_then_none)
{
    struct lhi_wait wait;
    int64_t slept = 0;
    int polls = 0;

    lhi_wait_begin(&wait, true, true);
    (void)steps(&wait, "-n-");
    for (int64_t ms; (ms = lhi_wait_ms(&wait, 0)) > 0; polls++) {
        slept += ms;
        EXPECT_STR(steps(&wait, "-b-"), "zspz");
    }
    EXPECT(polls == 4 && slept >= 300 && slept <= 400);
}

TEST(where_no_wake_up_comes_polls_become_rare)
{
    struct lhi_wait wait;
    int64_t before = 0;

    lhi_wait_begin(&wait, true, true);
    (void)steps(&wait, "-d-");
    for (int i = 0; i < 10; i++) {
        int64_t ms = lhi_wait_ms(&wait, 0);
        EXPECT(ms >= before && ms <= 1000);
        before = ms;
        EXPECT_STR(steps(&wait, "-d-"), "zspz");
    }
    EXPECT_EQ(before, 1000);
}

TEST(a_call_that_failed_is_slept_upon)
{
    struct lhi_wait wait;

    lhi_wait_begin(&wait, true, true);
    lhi_wait_failed(&wait);
    EXPECT_STR(steps(&wait, "-n-"), "zspz");
}
