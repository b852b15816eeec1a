/*
 * guards.pml: what can be taken out of the model, what is looked at, and how large the world is.
 *
 *   spin -DCRASHES=1 -DWITHOUT=BEAT_TOKEN ...   one kill; heartbeats do not compare the token
 *   spin -DFREEZES=1 -DONLY=APART ...           one freeze; one property is looked at
 *
 * More guards than one are taken out by adding them: -DWITHOUT=BEAT_TOKEN+BEAT_EXPIRY.
 */

/* ---- guards ---- */

/* recovery */
#define JUDGED_AGAIN (1 << 0)    /* what was found outside is judged again, in the transaction */
#define RECOVER_STATE (1 << 1)   /* job_recover: AND state = 'running' */
#define RECOVER_TOKEN (1 << 2)   /* job_recover: AND token = :token */
#define RECOVER_EXPIRY (1 << 3)  /* job_recover: AND lease_until = :lease_until */
#define RECOVER_RAISES (1 << 4)  /* job_recover: token = :new_token */
#define RECOVER_POISON (1 << 5)  /* a death is judged by max_recoveries ... */
#define RECOVER_LAST (1 << 6)    /* ... and by max_attempts */
#define BURY_BEAT (1 << 7)       /* worker_mark_dead: AND last_heartbeat_at = :last_heartbeat_at */
#define WHOLE_DEATH (1 << 8)     /* death is proven when what the worker started is gone too */
/* the acts of a holder */
#define BEAT_TOKEN (1 << 9)      /* job_heartbeat: AND token = :token */
#define BEAT_EXPIRY (1 << 10)    /* job_heartbeat: AND lease_until > :now */
#define END_TOKEN (1 << 11)      /* job_complete, job_end_fail, job_release: AND token = :token */
#define END_SYNCED (1 << 12)     /* a complete is on the disk before it is answered */
/* live leases revoked by hand */
#define HOLD_KEPT (1 << 13)      /* the job is in quarantine until the deadline ... */
#define HOLD_TOKEN (1 << 14)     /* ... or until the holder it waits for, and no other, answers */
/* the worker and its guardian */
#define SELF_FENCING (1 << 15)   /* a run is stopped before its job can be another's ... */
#define FENCE_EARLIER (1 << 16)  /* ... at the earlier of lease and silence limit ... */
#define FENCE_SENDING (1 << 17)  /* ... counted from the sending of a beat, not from its answer */
#define CLAIM_BEATS (1 << 18)    /* who has not beaten lately beats before it claims */
/* the store and its clock */
#define EPOCH_RAISED (1 << 19)   /* a new boot raises the epoch ... */
#define EPOCH_SYNCED (1 << 20)   /* ... on the disk before the first claim */
#define CLOCK_SHIFTED (1 << 21)  /* deadlines jump with the wall clock */
/* the user's resource */
#define RESOURCE_GUARD (1 << 22) /* ... WHERE token <= $mine */

#ifndef WITHOUT
#define WITHOUT 0
#endif
#define HAS(guard) (((WITHOUT) & (guard)) == 0)
#define KEEP(guard, condition) (!HAS(guard) || (condition))

/* ---- properties ---- */

#define TOKEN 1   /* a token is above every one the job ever had */
#define STAYS 2   /* what was told to be completed stays completed */
#define APART 3   /* no run starts, or is confirmed by a beat, beside another run of its job */
#define FENCED 4  /* the resource takes no write of an older lease after one of a newer */
#define LIMITS 5  /* attempt <= max_attempts, recoveries <= max_recoveries */
#define ONCE 6    /* recovery ends the very lease that it judged, and nobody had ended that */
#define FORFEIT 7 /* ... and that job is reclaimable at that moment */
#define ANSWER 8  /* who is told "done" had the lease until then, and did it */
#define ENDS 9    /* every job ends, under fair scheduling (LTL) */

#ifndef ONLY
#define CHECK(property, condition) assert((property) == 0 || (condition)) /* says which it is */
#else
#define CHECK(property, condition) assert((property) != ONLY || (condition))
#endif

/* ---- the world: how many there are, and how often each fault may strike ---- */

#ifndef JOBS
#define JOBS 1
#endif
#ifndef RECOVERERS
#define RECOVERERS 2
#endif
#ifndef BEATS /* in one run */
#define BEATS 1
#endif
#ifndef CRASHES /* SIGKILL of a worker or a recoverer */
#define CRASHES 0
#endif
#ifndef FREEZES /* worker, guardian and job all stand still, and go on later */
#define FREEZES 0
#endif
#ifndef HANDS /* recover --threshold: live leases are revoked too */
#define HANDS 0
#endif
#ifndef RELEASES /* a holder gives its job back, and the answer may get lost */
#define RELEASES 0
#endif
#ifndef JUMPS /* the wall clock is set */
#define JUMPS 0
#endif
#ifndef BOOTS /* power loss: all processes are gone, and transactions that were not synced */
#define BOOTS 0
#endif
#ifndef EFFECTS /* 1: runs write to a resource, and a write may be under way for any time */
#define EFFECTS 0
#endif
#ifndef EXCLUSIVE /* 1: the queue is exclusive */
#define EXCLUSIVE 0
#endif
#ifndef ACTION_PENDING /* 1: the policy's action is pending, not retry */
#define ACTION_PENDING 0
#endif
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 2
#endif
#ifndef MAX_RECOVERIES
#define MAX_RECOVERIES 1
#endif

#define WORKERS 2

/* In ticks. A run has been stopped FENCE after the sending of its last confirmed beat, its worker
 * counts as dead SILENCE after that beat was written, the lease ends LEASE after. */
#define SILENCE 2
#define LEASE 3
#if (WITHOUT) & FENCE_EARLIER
#define FENCE (LEASE - 1)
#else
#define FENCE (SILENCE - 1)
#endif

#define EPOCH_STEP 16 /* for 1 << 40 */
