/*
 * worker.pml: the acts of a holder, and when a worker does them. Part of lease.pml.
 */

/* worker_beat: whoever was found dead by an earlier beat, or is about to be, lives. */
inline beat_of_worker(w)
{
    record[w].quiet = 0;
    record[w].buried = 0;
#if RECOVERERS
    for (i : 0 .. RECOVERERS - 1) {
        if
        :: cand[i].worker == w -> cand[i].same = 0
        :: else
        fi
    }
#endif
}

/* The beat before the claim is part of this step: nobody judges a worker that holds nothing. */
inline claim(w)
{
    j = BEST;
    if
    :: HAS(CLAIM_BEATS) -> beat_of_worker(w)
    :: else
    fi;
    row[j].state = running;
    row[j].token = NEXT_TOKEN(row[j].token);
    row[j].attempt++;
    row[j].holder = w;
    row[j].started = 1;
    lease_until(j, LEASE);
    if
    :: EXCLUSIVE -> exclusive_job = j; exclusive_left = LEASE
    :: else
    fi;
    printf("worker %d claims job %d under token %d, attempt %d\n", w, j, row[j].token,
           row[j].attempt);
    claims[j]++;
    row[j].lease = claims[j];
    check_token(j);
    check_row(j);
    work[w].phase = asked;
    work[w].job = j;
    work[w].token = row[j].token;
    work[w].lease = row[j].lease;
    work[w].fence = FENCE
}

/* The run has ended; what is known of its deadline no longer matters. */
inline stop(w, how)
{
    work[w].going = 0;
    work[w].late = 0;
    work[w].over = how;
    work[w].fence = 0;
    work[w].renewed = NONE;
    work[w].kept = 0
}

/* The answer to the claim is there. What would have to be stopped at once is not started. */
inline start(w)
{
    work[w].phase = holds;
    if
    :: KEEP(SELF_FENCING, work[w].fence > 0) ->
        printf("worker %d starts job %d under token %d\n", w, work[w].job, work[w].token);
        work[w].going = 1;
        CHECK(APART, !RUNS_ELSEWHERE(w, work[w].job))
    :: else -> stop(w, cut)
    fi
}

/* One beat for the worker and for what it holds. The deadline that it brings counts from here. */
inline beat(w)
{
    j = work[w].job;
    beat_of_worker(w);
    work[w].beats++;
    work[w].renewed = FENCE;
    if
    :: row[j].state == running && KEEP(BEAT_TOKEN, row[j].token == work[w].token) &&
       KEEP(BEAT_EXPIRY, row[j].left > 0) ->
        printf("worker %d beats for job %d: it holds it\n", w, j);
        work[w].kept = 1;
        CHECK(ANSWER, row[j].lease == work[w].lease);
        lease_until(j, LEASE);
        if
        :: exclusive_job == j -> exclusive_left = LEASE
        :: else
        fi
    :: else -> printf("worker %d beats for job %d: it has lost it\n", w, j)
    fi;
    check_row(j)
}

inline beat_answered(w)
{
    work[w].fence = (HAS(FENCE_SENDING) -> work[w].renewed : FENCE);
    work[w].renewed = NONE;
    if
    :: !work[w].kept ->
        printf("worker %d learns that it lost job %d, and stops it\n", w, work[w].job);
        stop(w, cut)
    :: work[w].kept && work[w].fence > 0 ->
        printf("worker %d goes on with job %d\n", w, work[w].job);
        work[w].late = 0;
        CHECK(APART, !RUNS_ELSEWHERE(w, work[w].job))
    :: else
    fi;
    work[w].kept = 0
}

inline let_go(w)
{
    work[w].phase = idle;
    work[w].job = 0;
    work[w].token = 0;
    work[w].lease = 0;
    work[w].over = unfinished;
    work[w].beats = 0;
    work[w].again = 0;
    work[w].wrote = 0
}

#define HELD(w, j) (row[j].state == running && KEEP(END_TOKEN, row[j].token == work[w].token))

/* The clock is not asked: late is good enough, as long as nobody else was given the job. */
inline complete(w)
{
    j = work[w].job;
    if
    :: HELD(w, j) ->
        printf("worker %d completes job %d\n", w, j);
        CHECK(ANSWER, row[j].lease == work[w].lease);
        end_lease(j, completed);
        end_exclusive(j);
        told_completed[j] = 1;
        if
        :: HAS(END_SYNCED) -> sync()
        :: else
        fi
    :: else ->
        printf("worker %d cannot complete job %d: it has lost it\n", w, j);
        end_hold(j, work[w].token)
    fi;
    check_row(j);
    let_go(w)
}

/* The backoff is left out. */
inline fail(w)
{
    j = work[w].job;
    if
    :: HELD(w, j) ->
        printf("worker %d fails job %d\n", w, j);
        CHECK(ANSWER, row[j].lease == work[w].lease);
        end_lease(j, (row[j].attempt >= MAX_ATTEMPTS -> failed : pending));
        end_exclusive(j);
        sync()
    :: else ->
        printf("worker %d cannot fail job %d: it has lost it\n", w, j);
        end_hold(j, work[w].token)
    fi;
    check_row(j);
    let_go(w)
}

/* The token stays, the attempt is refunded. A repeat is known by its token and by a row that waits
 * and was not started: it is told "done" as well. */
inline release(w, answer_lost)
{
    j = work[w].job;
    if
    :: HELD(w, j) ->
        printf("worker %d gives job %d back\n", w, j);
        CHECK(ANSWER, row[j].lease == work[w].lease);
        row[j].given_back = row[j].lease;
        end_lease(j, pending);
        end_exclusive(j);
        row[j].attempt--;
        row[j].started = 0;
        sync()
    :: !HELD(w, j) && row[j].state == pending && row[j].token == work[w].token && !row[j].started ->
        printf("worker %d is told that it gave job %d back\n", w, j);
        CHECK(ANSWER, row[j].given_back == work[w].lease)
    :: else ->
        printf("worker %d cannot give job %d back: it has lost it\n", w, j);
        end_hold(j, work[w].token)
    fi;
    check_row(j);
    if
    :: answer_lost -> work[w].again = 1
    :: else -> let_go(w)
    fi
}

/* The process is gone for certain, and nobody will start under its id again. */
inline mourn(w)
{
    for (i : 0 .. JOBS - 1) {
        if
        :: row[i].holder == w -> row[i].holder = GONE
        :: else
        fi
    }
    beat_of_worker(w); /* whoever meant to bury it by its silence: the record is another one now */
    record[w].quiet = SILENCE
}

#define RUNNING(w) (work[w].phase == holds && work[w].going && !work[w].frozen)

/* A worker may stay where it is for any time: so SIGSTOP, a slow disk, a busy machine. */
proctype Worker(byte w)
{
    do
    /* (All workers are alike: who claims first may as well be called worker 0.) */
    :: d_step { work[w].phase == idle && ANY_CLAIMABLE && (w == 0 || claims[0] > 0) -> claim(w) }
    :: d_step { work[w].phase == asked -> start(w) }
    :: d_step { RUNNING(w) && work[w].renewed == NONE && work[w].beats < BEATS -> beat(w) }
    :: d_step { RUNNING(w) && work[w].renewed != NONE -> beat_answered(w) }
    :: d_step { EFFECTS && RUNNING(w) && !work[w].wrote && work[w].effect == 0 ->
                printf("worker %d writes to the resource with token %d\n", w, work[w].token);
                work[w].wrote = 1;
                work[w].effect = work[w].token;
                work[w].effect_lease = work[w].lease }

    /* The run ends by itself, or is stopped: by the worker, or by its guardian, should it hang. */
    :: d_step { RUNNING(w) ->
                printf("job %d of worker %d has run to its end\n", work[w].job, w);
                stop(w, finished) }
    :: d_step { HAS(SELF_FENCING) && RUNNING(w) && work[w].fence == 0 ->
                printf("job %d of worker %d is stopped at its deadline\n", work[w].job, w);
                stop(w, cut) }
    :: d_step { work[w].over == finished && !work[w].again -> complete(w) }
    :: d_step { work[w].over == finished && !work[w].again -> fail(w) }
    :: d_step { work[w].over != unfinished && releases > 0 -> releases--; release(w, 1) }
    :: d_step { work[w].again -> release(w, 0) }
    /* The store is not told, for whatever reason: time decides. */
    :: d_step { work[w].over == cut && !work[w].again ->
                printf("worker %d does not come back to job %d\n", w, work[w].job);
                let_go(w) }

    /* After a crash: what outlived the worker is killed; then another is started in its place. */
    :: d_step { work[w].phase == dead && work[w].going && !work[w].frozen ->
                printf("what worker %d had started is gone too\n", w);
                stop(w, unfinished);
                mourn(w) }
    :: d_step { work[w].phase == dead && !work[w].going ->
                printf("worker %d is started again\n", w);
                let_go(w) }
    od
}
