/*
 * wake.pml: how a waiting claim on PostgreSQL learns of a job (src/core/wait.c, src/store/postgres/wake.c,
 * leasehold.subscribe and leasehold.ring_name in SQL).
 *
 * A producer inserts a job, looks whether somebody has subscribed, and commits. If somebody had, the commit also ends
 * the subscription and notifies all processes that listen. What is not committed is seen by nobody: neither the job
 * nor the end of the subscription. A waiter claims, subscribes, polls and sleeps. A wake-up counts for the ticket that
 * the waiter took before it claimed. A producer that looked before the subscription was committed notifies nobody: the
 * leader finds that job, when nothing else happens any more.
 *
 * With all guards: whenever nothing happens any more, no job waits (FOUND); and the leader is needed only for jobs
 * whose producer looked before a subscription and committed after it (SOON).
 */

/* ---- guards ---- */
#define OLD_TICKET 1       /* a wake-up that comes between the claim and the sleep ends the sleep */
#define POLL_ONCE 2        /* after subscribing the waiter polls before it sleeps */
#define LEADER_NOTIFIES 4  /* the leader notifies of jobs that nobody was notified of */
#define SUBSCRIBE_AGAIN 8  /* a waiter that was woken subscribes again before it sleeps */

#ifndef WITHOUT
#define WITHOUT 0
#endif
#define HAS(guard) (((WITHOUT) & (guard)) == 0)

#define FOUND 1
#define SOON 2
#ifdef ONLY
#define EXPECT(property, condition) assert((ONLY) != (property) || (condition))
#else
#define EXPECT(property, condition) assert(condition)
#endif

#define PRODUCERS 3
#define WAITERS 2

byte waiting;         /* jobs that are committed and pending */
byte to_come = PRODUCERS;
bool subscribed;      /* as committed */
byte wakeups;         /* notifications that every process has heard */
byte taken;
bool late;            /* a producer looked before a subscription and committed after it */

inline notify()
{
    subscribed = false;
    wakeups++
}

proctype Producer()
{
    bool rings;

    rings = subscribed; /* in its transaction … */
    atomic {            /* … and the commit */
        waiting++;
        to_come--;
        if
        :: rings -> notify()
        :: !rings && subscribed -> late = true
        :: else
        fi
    }
}

/* Each waiter goes on until all jobs are taken. */
proctype Waiter()
{
    byte ticket;
    bool found, known; /* known: this process has subscribed, and has not heard that it was ended */

    do
    :: taken == PRODUCERS -> break
    :: else ->
        ticket = wakeups;
        atomic {
            found = waiting > 0;
            if
            :: found -> waiting--; taken++
            :: else
            fi
        }
        if
        :: found
        :: else ->
            if
            :: HAS(SUBSCRIBE_AGAIN) || !known -> subscribed = true; known = true
            :: else
            fi;
            if
            :: HAS(POLL_ONCE) -> found = waiting > 0
            :: else
            fi;
            if
            :: found
            :: else ->
                if
                :: HAS(OLD_TICKET)
                :: else -> ticket = wakeups
                fi;
                wakeups != ticket || taken == PRODUCERS
            fi
        fi;
        found = false
    od
}

/* Runs when nothing else can. */
proctype Leader()
{
    do
    :: timeout ->
        if
        :: taken == PRODUCERS -> break
        :: else ->
            if
            :: HAS(LEADER_NOTIFIES) && waiting > 0 && subscribed -> EXPECT(SOON, late); notify()
            :: else -> EXPECT(FOUND, waiting == 0 && taken == PRODUCERS); break
            fi
        fi
    od
}

init {
    atomic {
        byte i;
        for (i : 1 .. PRODUCERS) { run Producer() }
        for (i : 1 .. WAITERS) { run Waiter() }
        run Leader()
    }
}
