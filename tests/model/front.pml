/*
 * front.pml: where a claim on PostgreSQL begins to look (sql/postgres/migrations/0001_queue/31_front.sql).
 *
 * Ids are given in order and commit in any. Claims seek above `low`; who finds nothing there seeks above
 * `floor`; once in a while one claim looks at all of it and sets both anew. Jobs that take no longer than
 * two ticks to commit are prompt; others may take for ever.
 *
 * With all guards: no claim answers "nothing there" while a prompt job waits (PROMPT), nor while one waits
 * that the last look at all of it has seen (SEEN); and every job that commits is claimed (TAKEN, LTL).
 */

/* ---- guards ---- */
#define SEEK_FLOOR 1   /* who finds nothing above low seeks above floor */
#define FLOOR_AGED 2   /* the floor is what was given out two ticks ago, not just now */
#define LOOK_LOWERS 4  /* a look at all of it that finds something below sets low and floor below it */
#define LOOKS 8        /* somebody looks at all of it now and then */

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

byte state[JOBS + 1];   /* by id, from 1 on */
bool prompt[JOBS + 1], seen_waiting[JOBS + 1];
byte given;             /* the highest id so far */
byte low, floor, seen, age;

inline first_above(bound, id)
{
    id = bound + 1;
    do
    :: id <= JOBS && state[id] != WAITING -> id++
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

/* Time passes: a prompt job that was given before the floor to come was noted has committed by then. */
proctype Clock()
{
    byte id;
    bool ready;

    do
    :: d_step {
           ready = true;
           id = 1;
           do
           :: id <= seen -> ready = ready && !(prompt[id] && state[id] == GIVEN); id++
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
        EXPECT(SEEN, !(seen_waiting[id] && state[id] == WAITING));
        id++
    :: else -> break
    od
}

proctype Claimer()
{
    byte id;

    do
    :: d_step { /* an ordinary claim */
           first_above(low, id);
           if
           :: id > JOBS && HAS(SEEK_FLOOR) -> first_above(floor, id)
           :: else
           fi;
           if
           :: id <= JOBS -> state[id] = TAKEN
           :: else -> answer_nothing(id)
           fi;
           id = 0
       }
    :: d_step { /* front_move: now and then, as far as is known to be gone */
           first_above(low, id);
           if
           :: id <= JOBS -> low = id - 1
           :: else
           fi;
           id = 0
       }
    od
}

/* The claims that look at all of it, and take what comes first. */
proctype Looker()
{
    byte id;

    do
    :: HAS(LOOKS) -> d_step {
           first_above(0, id);
           if
           :: id <= JOBS -> state[id] = TAKEN
           :: else
           fi;
           first_above(0, id);
           if
           :: id <= JOBS && HAS(LOOK_LOWERS) ->
               low = id - 1;
               if
               :: age >= 2 || !HAS(FLOOR_AGED) -> floor = (seen < low -> seen : low)
               :: else -> floor = (floor < low -> floor : low)
               fi
           :: id <= JOBS && !HAS(LOOK_LOWERS) ->
               if
               :: age >= 2 || !HAS(FLOOR_AGED) -> floor = (floor > seen -> floor : seen)
               :: else
               fi;
               low = (id - 1 > floor -> id - 1 : floor)
           :: else ->
               if
               :: age >= 2 || !HAS(FLOOR_AGED) -> floor = seen
               :: else
               fi;
               low = (low > floor -> low : floor)
           fi;
           if
           :: age >= 2 || !HAS(FLOOR_AGED) -> seen = given; age = 0
           :: else
           fi;
           id = 1;
           do
           :: id <= JOBS -> seen_waiting[id] = seen_waiting[id] || state[id] == WAITING; id++
           :: else -> break
           od;
           id = 0
       }
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
        run Looker()
    }
}

#ifdef LIVENESS
#define waits (state[1] == WAITING || state[2] == WAITING || state[3] == WAITING)
ltl taken { []<> !waits }
#endif
