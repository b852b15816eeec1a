/*
 * front.pml: where a claim on PostgreSQL begins to look (sql/postgres/migrations/0001_queue/31_claim_floor.sql).
 *
 * Ids are given in order and commit in any. Claims seek above `low`; a claim that finds nothing there seeks above
 * `floor`; once in a while one claim looks at all of it and writes both as a new record. The record counts when
 * its transaction commits, which may be late or never. Jobs that take no longer than two ticks to commit
 * are prompt; others may take for ever. Claims note the highest id that was given out; after two ticks that id is
 * certain: no prompt job up to it is still to come, and no floor is above it (leasehold.scan_bound). Claims that look
 * because a late transaction has ended look no otherwise than those that look now and then.
 *
 * With all guards: no claim answers "nothing there" while a prompt job waits (PROMPT), nor while one waits
 * that the last look at all of it has seen (SEEN); and every job that commits is claimed (TAKEN, LTL).
 */

/* ---- guards ---- */
#define SEEK_FLOOR 1   /* who finds nothing above low seeks above floor */
#define FLOOR_AGED 2   /* the floor is below what was given out two ticks ago, not just now */
#define LOOK_LOWERS 4  /* a look at all of it that finds something below sets low and floor below it */
#define LOOKS 8        /* somebody looks at all of it now and then */
#define OWN_RECORD 16  /* a look writes a record of its own, and waits for no other transaction */
#define LATEST 32      /* the look that began last counts, not the one that commits last */
#define HELD_COUNTS 64 /* a job that an open transaction has taken counts as there */

#ifndef WITHOUT
#define WITHOUT 0
#endif
#define HAS(guard) (((WITHOUT) & (guard)) == 0)

#define PROMPT 1
#define SEEN 2
#ifdef ONLY
#define EXPECT(property, condition) assert((ONLY) != (property) || (condition))
#else
#define EXPECT(property, condition) assert(condition)
#endif

#define JOBS 3
#define NOBODY 0
#define GIVEN 1
#define WAITING 2
#define TAKEN 3
#define HELD 4
/* HELD + 1 or 2: taken by a looker whose transaction is open */
#define held_by_another(id, me) (state[id] > HELD && state[id] != HELD + (me))

byte state[JOBS + 1];   /* by id, from 1 on */
bool prompt[JOBS + 1];
byte given;             /* the highest id so far */

/* What a look has written: record 0 counts; the others are those of the lookers, until they commit. */
byte low[3], floor[3];
byte noted, age;        /* the highest id when it was noted, and how long ago that was */
byte certain;           /* no prompt job up to this id is still to come */
byte saw[3];            /* a bit for each job that the look found waiting */
byte last_saw;          /* of the committed look that began last */
bool open, overtaken;   /* the look of the idler: under way; a look that began later has committed */

#define least(a, b) ((a) < (b) -> (a) : (b))

/* The first that can be taken. */
inline first_above(bound, id)
{
    id = bound + 1;
    do
    :: id <= JOBS && state[id] != WAITING -> id++
    :: else -> break
    od
}

/* The first that is visible as pending: what others have taken and not committed is. */
inline first_there(bound, id, me)
{
    id = bound + 1;
    do
    :: id <= JOBS && state[id] != WAITING && !(HAS(HELD_COUNTS) && held_by_another(id, me)) -> id++
    :: else -> break
    od
}

proctype Enqueuer()
{
    byte id;

    atomic {
        given++;
        id = given;
        state[id] = GIVEN;
        if
        :: prompt[id] = true
        :: skip
        fi
    }
    state[id] = WAITING
}

/* Time passes: a prompt job that was given before the last note has committed two ticks later. */
proctype Clock()
{
    byte id;
    bool ready;

    do
    :: d_step {
           ready = true;
           id = 1;
           do
           :: id <= noted -> ready = ready && !(prompt[id] && state[id] == GIVEN); id++
           :: else -> break
           od;
           if
           :: ready && age < 2 -> age++
           :: else
           fi;
           id = 0;
           ready = false
       }
    od
}

inline answer_nothing(id)
{
    id = 1;
    do
    :: id <= JOBS ->
        EXPECT(PROMPT, !(prompt[id] && state[id] == WAITING));
        EXPECT(SEEN, !((last_saw & (1 << id)) != 0 && state[id] == WAITING));
        id++
    :: else -> break
    od
}

proctype Claimer()
{
    byte id;

    do
    :: d_step { /* an ordinary claim */
           first_above(low[0], id);
           if
           :: id > JOBS && HAS(SEEK_FLOOR) -> first_above(floor[0], id)
           :: else
           fi;
           if
           :: id <= JOBS -> state[id] = TAKEN
           :: else -> answer_nothing(id)
           fi;
           id = 0
       }
    :: d_step { /* front_move: now and then, as far as is known to be gone */
           first_there(floor[0], id, 0);
           if
           :: id <= JOBS ->
               low[0] = id - 1;
               floor[0] = (floor[0] > least(certain, low[0]) -> floor[0] : least(certain, low[0]))
           :: else ->
               floor[0] = (floor[0] > certain -> floor[0] : certain);
               low[0] = (low[0] > certain -> low[0] : certain)
           fi;
           id = 0
       }
    :: d_step { /* a note */
           if
           :: age >= 2 || !HAS(FLOOR_AGED) ->
               certain = (HAS(FLOOR_AGED) -> noted : given);
               noted = given;
               age = 0
           :: else
           fi
       }
    od
}

/* A claim that looks at all of it, takes what comes first, and writes what it has seen. */
inline look(me, id)
{
    first_above(0, id);
    if
    :: id <= JOBS -> state[id] = HELD + me
    :: else
    fi;
    first_there(0, id, me);
    if
    :: id <= JOBS && HAS(LOOK_LOWERS) -> low[me] = id - 1
    :: id <= JOBS && !HAS(LOOK_LOWERS) -> low[me] = (id - 1 > certain -> id - 1 : certain)
    :: else -> low[me] = (low[0] > certain -> low[0] : certain)
    fi;
    floor[me] = least(certain, low[me]);
    saw[me] = 0;
    id = 1;
    do
    :: id <= JOBS ->
        if
        :: state[id] == WAITING -> saw[me] = saw[me] | (1 << id)
        :: else
        fi;
        id++
    :: else -> break
    od;
    id = 0
}

inline settle_job(me, id, to)
{
    id = 1;
    do
    :: id <= JOBS ->
        if
        :: state[id] == HELD + me -> state[id] = to
        :: else
        fi;
        id++
    :: else -> break
    od;
    id = 0
}

inline forget(me)
{
    low[me] = 0;
    floor[me] = 0;
    saw[me] = 0
}

inline commit(me, id, late)
{
    settle_job(me, id, TAKEN);
    if
    :: !(late) || !HAS(LATEST) ->
        low[0] = low[me];
        floor[0] = floor[me]
    :: else
    fi;
    if
    :: !(late) -> last_saw = saw[me]
    :: else
    fi;
    forget(me)
}

/* One that commits at once. */
proctype Looker()
{
    byte id;

    do
    :: HAS(LOOKS) && (HAS(OWN_RECORD) || !open) -> d_step {
           look(2, id);
           commit(2, id, false);
           overtaken = open
       }
    od
}

/* One in a transaction that others began: it may be rolled back, or stay open for ever. */
proctype Idler()
{
    byte id;

    do
    :: HAS(LOOKS) -> d_step { look(1, id); open = true };
        if
        :: d_step { commit(1, id, overtaken); open = false; overtaken = false }
        :: d_step { settle_job(1, id, WAITING); forget(1); open = false; overtaken = false }
        :: false
        fi
    od
}

init {
    byte i;

    atomic {
        do
        :: i < JOBS -> run Enqueuer(); i++
        :: else -> break
        od;
        run Clock();
        run Claimer();
        run Looker();
        run Idler()
    }
}

#ifdef LIVENESS
#define waits (state[1] == WAITING || state[2] == WAITING || state[3] == WAITING)
ltl taken { []<> !waits }
#endif
