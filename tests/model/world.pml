/*
 * world.pml: time, and what goes wrong. Part of lease.pml.
 *
 * Each fault strikes as often as guards.pml allows, at any moment.
 */

#define DOWN(ticks) ticks = (ticks > 0 -> ticks - 1 : 0)

inline tick()
{
    printf("a tick\n");
    for (i : 0 .. JOBS - 1) {
        DOWN(row[i].left);
        DOWN(row[i].hold);
        row[i].hold_token = (row[i].hold > 0 -> row[i].hold_token : 0)
    }
    for (i : 0 .. WORKERS - 1) {
        record[i].quiet = (record[i].quiet < SILENCE -> record[i].quiet + 1 : SILENCE);
        work[i].late = (work[i].late || (work[i].frozen && work[i].fence == 0));
        DOWN(work[i].fence);
        if
        :: work[i].renewed != NONE -> DOWN(work[i].renewed)
        :: else
        fi
    }
    DOWN(exclusive_left);
#if RECOVERERS
    for (i : 0 .. RECOVERERS - 1) {
        DOWN(cand[i].left)
    }
#endif
    skip
}

/* What the worker has started may outlive it for a moment. */
inline crash(w)
{
    printf("worker %d is killed\n", w);
    crashes--;
    work[w].phase = dead;
    work[w].again = 0;
    if
    :: !work[w].going -> stop(w, unfinished)
    :: else -> work[w].renewed = NONE; work[w].kept = 0
    fi;
    if
    :: !work[w].going || !HAS(WHOLE_DEATH) -> mourn(w)
    :: else
    fi
}

inline freeze(w)
{
    printf("worker %d is frozen, and all that belongs to it\n", w);
    freezes--;
    work[w].frozen = 1
}

inline thaw(w)
{
    printf("worker %d thaws\n", w);
    work[w].frozen = 0
}

/* The wall clock is set. All deadlines move with it, so nothing is nearer or further than it was.
 * But what a recoverer has read is a number of before, which by chance may mean any moment now. */
inline jump(by_chance)
{
    printf("the wall clock jumps\n");
    jumps--;
#if RECOVERERS
    for (i : 0 .. RECOVERERS - 1) {
        cand[i].same = 0;
        cand[i].left = (cand[i].job == NONE -> 0 : by_chance)
    }
#endif
    if
    :: HAS(CLOCK_SHIFTED)
    :: else ->
        for (i : 0 .. JOBS - 1) {
            row[i].left = 0;
            row[i].hold = 0
        }
        for (i : 0 .. WORKERS - 1) {
            record[i].quiet = SILENCE
        }
        exclusive_left = 0
    fi
}

#if BOOTS
/* The power fails: no process is left, and nothing that was not synced. The first to open the store
 * afterwards finds another boot id: clock_new_boot, in one transaction. */
inline boot()
{
    printf("the power fails; a new boot\n");
    boots--;
    for (i : 0 .. WORKERS - 1) {
        let_go(i);
        stop(i, unfinished);
        work[i].phase = dead;
        work[i].frozen = 0;
        record[i].quiet = SILENCE;
        record[i].buried = 0
    }
    for (i : 0 .. RECOVERERS - 1) {
        forget(i)
    }
    epoch = disk_epoch + HAS(EPOCH_RAISED);
    unsynced = 1;
    for (i : 0 .. JOBS - 1) {
        copy_row(row[i], disk[i]);
        if
        :: row[i].state == running -> row[i].left = 0; row[i].holder = GONE
        :: else
        fi;
        check_row(i)
    }
    if
    :: HAS(EPOCH_SYNCED) -> sync()
    :: else
    fi
}
#endif

/* What was under way reaches the resource. */
inline deliver(w)
{
    if
    :: KEEP(RESOURCE_GUARD, resource_token <= work[w].effect) ->
        printf("the resource takes the write of worker %d with token %d\n", w, work[w].effect);
        CHECK(FENCED, resource_lease <= work[w].effect_lease);
        resource_token = work[w].effect;
        resource_lease = work[w].effect_lease
    :: else -> printf("the resource refuses token %d\n", work[w].effect)
    fi;
    work[w].effect = 0;
    work[w].effect_lease = 0
}

/* Time does not pass over a deadline that somebody awake has to obey. */
#define MUST_STOP(w) (HAS(SELF_FENCING) && work[w].going && work[w].fence == 0 && !work[w].frozen)

proctype World()
{
    do
    :: d_step { !MUST_STOP(0) && !MUST_STOP(1) -> tick() }
    :: d_step { crashes > 0 && work[0].phase != dead && !work[0].frozen -> crash(0) }
    :: d_step { crashes > 0 && work[1].phase != dead && !work[1].frozen -> crash(1) }
    :: d_step { freezes > 0 && RUNNING(0) -> freeze(0) }
    :: d_step { freezes > 0 && RUNNING(1) -> freeze(1) }
    :: d_step { work[0].frozen -> thaw(0) }
    :: d_step { work[1].frozen -> thaw(1) }
#if JUMPS
    :: d_step { jumps > 0 -> jump(0) }
    :: d_step { jumps > 0 -> jump(1) }
    :: d_step { jumps > 0 -> jump(2) }
    :: d_step { jumps > 0 -> jump(3) }
#endif
#if BOOTS
    :: d_step { boots > 0 && unsynced -> printf("all is synced\n"); sync() }
    :: d_step { boots > 0 -> boot() }
#endif
    :: d_step { EFFECTS && work[0].effect != 0 -> deliver(0) }
    :: d_step { EFFECTS && work[1].effect != 0 -> deliver(1) }
    od
}

init
{
    atomic {
#if BOOTS
        disk[0].state = pending; /* the enqueue was acknowledged: it is on the disk */
#endif
        run Worker(0);
        run Worker(1);
#if RECOVERERS > 0
        run Recoverer(0);
#endif
#if RECOVERERS > 1
        run Recoverer(1);
#endif
        run World()
    }
}

#ifdef LIVENESS
ltl ends { <> (row[0].state == completed || row[0].state == failed) }
#endif
