/*
 * lease.pml: the life of a lease, for the model checker Spin.
 *
 * Workers claim a job, run it, beat, and end it; recoverers take back reclaimable jobs; the world
 * (world.pml) lets time pass, kills, freezes, sets the clock, cuts the power. Spin tries every
 * order of these steps. With all guards the properties hold, with a guard taken out one of them
 * breaks (both are listed in guards.pml). run.py looks at all of it; README.md says what is left
 * out.
 *
 * Each d_step is one transaction of the store, or one thing that happens outside it: nothing comes
 * in between. Times are kept as ticks that are left, so that no clock runs away: a lease is expired
 * when `left` is 0.
 */
#include "guards.pml"

#define NONE 15
#define GONE 14 /* the holder is a process that is gone */

/* ---- the store ---- */

mtype = { pending, running, completed, failed };

/* lh_job, with its row of lh_quarantine */
typedef Row {
    mtype state = pending;
    byte token, attempt, recoveries;
    byte holder = NONE;
    byte left;              /* until lease_until, when running; 0: expired */
    bit started;            /* started_at is set; a row given back or taken back has none */
    byte hold, hold_token;  /* in quarantine this long, because of the holder of this token */
    byte lease, given_back; /* for the checks: number of the present lease, of the released one */
};
Row row[JOBS];

/* lh_worker. What it says matters only while the worker holds a job. */
typedef Record {
    byte quiet = SILENCE; /* ticks since the last beat */
    bit buried;           /* found dead: its jobs are reclaimable */
};
Record record[WORKERS];

byte epoch;
byte exclusive_job = NONE, exclusive_left; /* the named lease processing/QUEUE */

#define NEXT_TOKEN(token) ((token > epoch * EPOCH_STEP -> token : epoch * EPOCH_STEP) + 1)

#if BOOTS
Row disk[JOBS]; /* what would be found after a power loss */
byte disk_epoch;
bit unsynced;
#endif

/* ---- outside the store ---- */

mtype = { idle, asked, holds, dead };
mtype = { unfinished, finished, cut };

/* A worker, its guardian and its run; and what it believes. */
typedef Work {
    mtype phase = idle;
    byte job, token, lease;
    bit going;                 /* the run goes on, whatever the worker does */
    mtype over = unfinished;
    byte fence;                /* ticks until the run must have been stopped */
    byte renewed = NONE;       /* a beat is under way: what `fence` becomes when answered ... */
    bit kept;                  /* ... and the answer: the lease is still its own */
    byte beats;
    bit frozen, late;          /* late: the deadline passed while nothing could obey it */
    bit again;                 /* the answer to a release got lost: it is asked again */
    bit wrote;
    byte effect, effect_lease; /* a write to the resource that is under way */
};
Work work[WORKERS];

mtype = { expired, orphaned, aged };

/* What a recoverer has read, outside of any transaction that writes, and not yet acted on. */
typedef Candidate {
    byte job = NONE, worker = NONE; /* whom to take from, or whom to bury */
    mtype cause;
    byte token, left, lease;
    bit same; /* lease_until (of a worker: last_heartbeat_at) is what it was */
};
#if RECOVERERS
Candidate cand[RECOVERERS];
#endif

byte resource_token, resource_lease; /* of the last write that the resource took */

/* ---- what only the checks know ---- */

byte claims[JOBS];         /* leases handed out so far, by number */
byte highest[JOBS];        /* token the job ever had */
bit told_completed[JOBS];  /* somebody was told so */

byte crashes = CRASHES, freezes = FREEZES, hands = HANDS, releases = RELEASES, jumps = JUMPS,
     boots = BOOTS;

/* Scratch, written before it is read in each step, so that it need not be part of a state. (A
 * search for the shortest way cannot have it hidden.) */
#ifdef SHORTEST
byte i, j, v;
#else
hidden byte i, j, v;
#endif

/* ---- judgements ---- */

#define EXPIRED(j) (row[j].state == running && row[j].left == 0)
#define IS_BURIED(j) (row[j].holder < WORKERS && record[row[j].holder].buried)
#define ORPHANED(j) (row[j].state == running && (row[j].holder == GONE || IS_BURIED(j)))
/* By hand: claim and last beat were both at least a tick ago. */
#define AGED(j) (row[j].state == running && row[j].left < LEASE)
#define JUDGED(j, why) (why == aged -> AGED(j) : EXPIRED(j) || ORPHANED(j))

#define CLAIMABLE(j) (row[j].state == pending && row[j].hold == 0 && \
                      (!EXCLUSIVE || exclusive_job == NONE || exclusive_left == 0))
#if JOBS > 1
#define ANY_CLAIMABLE (CLAIMABLE(0) || CLAIMABLE(1))
#define BEST (CLAIMABLE(0) -> 0 : 1)
#define HOLDS_ANOTHER(w, j) (row[1 - j].holder == w)
#else
#define ANY_CLAIMABLE CLAIMABLE(0)
#define BEST 0
#define HOLDS_ANOTHER(w, j) false
#endif

/* A run that no other may meet. Where everything was frozen beyond the deadline only the token
 * fences: such a run does not count, until a beat of it is confirmed. */
#define RUNS(w, j) (work[w].going && !work[w].late && (EXCLUSIVE || work[w].job == j))
#define RUNS_ELSEWHERE(w, j) RUNS(1 - w, j)

/* ---- pieces of transactions ---- */

/* lease_until = :now + ticks; 0: NULL. What a recoverer has read is compared with it later: it may
 * be the same number again, if it was set to the same moment. */
inline lease_until(j, ticks)
{
    row[j].left = ticks;
#if BOOTS
    unsynced = 1;
#endif
#if RECOVERERS
    for (i : 0 .. RECOVERERS - 1) {
        if
        :: cand[i].job == j -> cand[i].same = (ticks > 0 && ticks == cand[i].left)
        :: else
        fi
    }
#endif
}

/* Complete, fail, release, recover: the lease is over. */
inline end_lease(j, state_after)
{
    lease_until(j, 0);
    if
    :: row[j].holder < WORKERS && !HOLDS_ANOTHER(row[j].holder, j) ->
        record[row[j].holder].quiet = SILENCE;
        record[row[j].holder].buried = 0 /* worker_cleaned */
    :: else
    fi;
    row[j].state = state_after;
    row[j].holder = NONE;
    row[j].lease = 0
}

inline end_exclusive(j)
{
    if
    :: exclusive_job == j -> exclusive_job = NONE; exclusive_left = 0
    :: else
    fi
}

/* The holder of a revoked lease answers, by any act that ends a run. */
inline end_hold(j, mine)
{
    if
    :: row[j].hold > 0 && KEEP(HOLD_TOKEN, row[j].hold_token == mine) ->
        printf("job %d leaves quarantine: the holder has answered\n", j);
        row[j].hold = 0;
        row[j].hold_token = 0;
        end_exclusive(j)
    :: else
    fi
}

inline copy_row(to, from)
{
    to.state = from.state; to.token = from.token; to.attempt = from.attempt;
    to.recoveries = from.recoveries; to.holder = from.holder; to.left = from.left;
    to.started = from.started; to.hold = from.hold; to.hold_token = from.hold_token;
    to.lease = from.lease; to.given_back = from.given_back
}

/* The log has one order: a sync covers everything that was committed before it. */
inline sync()
{
#if BOOTS
    for (i : 0 .. JOBS - 1) {
        copy_row(disk[i], row[i])
    }
    disk_epoch = epoch;
    unsynced = 0;
#endif
    skip
}

/* After every act. */
inline check_row(j)
{
    CHECK(STAYS, !told_completed[j] || row[j].state == completed);
    CHECK(LIMITS, row[j].attempt <= MAX_ATTEMPTS && row[j].recoveries <= MAX_RECOVERIES)
}

/* A token was handed out, or taken back. */
inline check_token(j)
{
    CHECK(TOKEN, row[j].token > highest[j]);
    highest[j] = (row[j].token > highest[j] -> row[j].token : highest[j])
}

#include "worker.pml"
#include "recovery.pml"
#include "world.pml"
