/*
 * recovery.pml: reclaimable jobs are found, judged, and taken back. Part of lease.pml.
 */

#if RECOVERERS

/* What is found is found outside of any transaction that writes. */
inline read_job(r, j, why)
{
    cand[r].job = j;
    cand[r].cause = why;
    cand[r].token = row[j].token;
    cand[r].left = row[j].left;
    cand[r].lease = row[j].lease;
    cand[r].same = 1
}

inline find_job(r, j, why)
{
    printf("recoverer %d reads job %d: %e\n", r, j, why);
    read_job(r, j, why)
}

inline find_silent(r, j)
{
    printf("recoverer %d reads worker %d: silent\n", r, row[j].holder);
    cand[r].worker = row[j].holder;
    cand[r].same = 1
}

inline forget(r)
{
    cand[r].job = NONE;
    cand[r].worker = NONE;
    cand[r].cause = 0;
    cand[r].token = 0;
    cand[r].left = 0;
    cand[r].lease = 0;
    cand[r].same = 0
}

/* lhi_decide_death: poison is judged first. */
inline decide_death(j)
{
    if
    :: HAS(RECOVER_POISON) && row[j].recoveries >= MAX_RECOVERIES -> end_lease(j, failed)
    :: else ->
        if
        :: HAS(RECOVER_LAST) && !ACTION_PENDING && row[j].attempt >= MAX_ATTEMPTS ->
            end_lease(j, failed)
        :: else ->
            end_lease(j, pending);
            row[j].recoveries++;
            row[j].attempt = row[j].attempt - ACTION_PENDING
        fi
    fi
}

/* One job of a batch. The store judges the row as it is now, then writes WHERE it still is so. In
 * SQLite nothing can come between the two; where the judgement is not repeated, or another store
 * would let others in between, the WHERE alone must do. */
inline take_back(r)
{
    j = cand[r].job;
    if
    :: HAS(JUDGED_AGAIN) && JUDGED(j, cand[r].cause) -> read_job(r, j, cand[r].cause)
    :: else
    fi;
    if
    :: KEEP(JUDGED_AGAIN, JUDGED(j, cand[r].cause)) &&
       KEEP(RECOVER_STATE, row[j].state == running) &&
       KEEP(RECOVER_TOKEN, row[j].token == cand[r].token) &&
       KEEP(RECOVER_EXPIRY, cand[r].same) ->
        printf("recoverer %d takes job %d back\n", r, j);
        CHECK(ONCE, row[j].lease != 0 && row[j].lease == cand[r].lease);
        CHECK(FORFEIT, EXPIRED(j) || ORPHANED(j) || (cand[r].cause == aged && AGED(j)));
        /* A job that an operator revokes under a live lease is in quarantine. */
        if
        :: HAS(HOLD_KEPT) && cand[r].cause == aged && row[j].left > 0 ->
            row[j].hold = row[j].left;
            row[j].hold_token = row[j].token
        :: else -> end_exclusive(j)
        fi;
        decide_death(j);
        row[j].started = 0;
        if
        :: HAS(RECOVER_RAISES) -> row[j].token = NEXT_TOKEN(cand[r].token); check_token(j)
        :: else
        fi;
        check_row(j)
    :: else -> printf("recoverer %d comes too late for job %d\n", r, j)
    fi;
    forget(r)
}

/* Who has beaten since he was read is not buried. */
inline bury(r)
{
    v = cand[r].worker;
    if
    :: KEEP(BURY_BEAT, cand[r].same) ->
        printf("recoverer %d marks worker %d as dead\n", r, v);
        record[v].buried = 1
    :: else -> printf("recoverer %d finds that worker %d has beaten\n", r, v)
    fi;
    forget(r)
}

#define FREE(r) (cand[r].job == NONE && cand[r].worker == NONE)
/* (Recoverers are alike too: who reads first may as well be called recoverer 0.) */
#define READS(r) (FREE(r) && (r == 0 || !FREE(0)))
#define SILENT(j) (row[j].state == running && row[j].holder < WORKERS && !IS_BURIED(j) && \
                   record[row[j].holder].quiet >= SILENCE)

/* Everybody who recovers: at startup, on a timer, at the moment of expiry, by hand. A claim that
 * recovers first is one that reads and writes without a pause. */
proctype Recoverer(byte r)
{
    do
    :: d_step { READS(r) && EXPIRED(0) -> find_job(r, 0, expired) }
    :: d_step { READS(r) && ORPHANED(0) -> find_job(r, 0, orphaned) }
    :: d_step { READS(r) && AGED(0) && hands > 0 -> hands--; find_job(r, 0, aged) }
    :: d_step { READS(r) && SILENT(0) -> find_silent(r, 0) }
#if JOBS > 1
    :: d_step { READS(r) && EXPIRED(1) -> find_job(r, 1, expired) }
    :: d_step { READS(r) && ORPHANED(1) -> find_job(r, 1, orphaned) }
    :: d_step { READS(r) && AGED(1) && hands > 0 -> hands--; find_job(r, 1, aged) }
    :: d_step { READS(r) && SILENT(1) -> find_silent(r, 1) }
#endif
    :: d_step { cand[r].job != NONE -> take_back(r) }
    :: d_step { cand[r].worker != NONE -> bury(r) }
    :: d_step { !FREE(r) && crashes > 0 ->
                printf("recoverer %d is killed\n", r);
                crashes--;
                forget(r) }
    od
}

#endif
