-- Reclaiming jobs: each is taken back by a write that compares again, in one transaction with its report.

-- Until a transaction that frees jobs has committed, other sessions cannot claim them: the rows are locked, and
-- look unchanged. So that transaction takes a shared lock on one row before it locks the jobs. A claim that
-- found nothing although something was due waits for that row (await_freeing), then tries again. A transaction
-- that has nothing to free gives the row back (LH000 ends the block that locked it); otherwise two such claims
-- would wait for each other.
CREATE FUNCTION leasehold.lock_for_freeing() RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM FROM leasehold.maintenance_task d WHERE d.name = 'freeing' FOR SHARE;
END $$;

-- Returns true if other transactions were freeing jobs and have ended since. The wait is bounded, because such
-- a transaction may stay open. A claim that has freed jobs itself waits only briefly, because another session
-- may be waiting for it.
CREATE FUNCTION leasehold.await_freeing(has_taken boolean) RETURNS boolean LANGUAGE plpgsql
AS $$
DECLARE
    before text := pg_catalog.current_setting('lock_timeout');
    waited boolean := false;
BEGIN
    -- In a block that is always rolled back, so that the lock on the row ends with it.
    BEGIN
        PERFORM FROM leasehold.maintenance_task d WHERE d.name = 'freeing' FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            PERFORM pg_catalog.set_config('lock_timeout', CASE WHEN has_taken THEN '100ms' ELSE '2s' END, true);
            PERFORM FROM leasehold.maintenance_task d WHERE d.name = 'freeing' FOR NO KEY UPDATE;
            waited := true;
        END IF;
        RAISE EXCEPTION USING ERRCODE = 'LH000';
    EXCEPTION WHEN SQLSTATE 'LH000' OR lock_not_available OR deadlock_detected THEN
        NULL;
    END;
    PERFORM pg_catalog.set_config('lock_timeout', before, true);
    RETURN waited;
END $$;

-- After the write: count, free what belonged to the jobs, write events and log lines.
CREATE FUNCTION leasehold.record_reclaimed(INOUT r leasehold.run, now timestamptz, m leasehold.meta,
                                     taken leasehold.reclaimable[])
LANGUAGE plpgsql
AS $$
DECLARE
    t record;
BEGIN
    r := leasehold.run_begin(r, now);
    SELECT r.failed + count(*) FILTER (WHERE f.state = 'failed'),
           r.retried + count(*) FILTER (WHERE f.action = 'retry'),
           r.made_pending + count(*) FILTER (WHERE f.action = 'pending'),
           r.released + count(*) FILTER (WHERE f.action = 'released')
      INTO r.failed, r.retried, r.made_pending, r.released
      FROM unnest(taken) f;
    FOR t IN SELECT f.queue, f.state, count(*) AS n FROM unnest(taken) f
              GROUP BY f.queue, f.state ORDER BY f.queue, f.state LOOP
        PERFORM leasehold.count_change(t.queue, now, 'r', 'running', t.state, t.n);
    END LOOP;
    IF m.has_policies THEN
        -- The lease of an exclusive queue ends with its job, and is reported like every freed lease.
        FOR t IN SELECT l.scope, l.name, l.owner, l.token, f.job, f.reason
                   FROM unnest(taken) f
                   JOIN leasehold.lease l ON l.scope = 'processing' AND l.name = f.queue AND l.job = f.job
                  WHERE f.hold_until IS NULL ORDER BY f.n LOOP
            r := leasehold.record_freed(r, now, t.scope, t.name, t.owner, t.token,
                CASE WHEN t.reason LIKE '%RECLAIMED_TTL:%' THEN 'RECLAIMED_TTL: lease had expired'
                     WHEN t.reason LIKE '%RECLAIMED_DEAD:%'
                     THEN 'RECLAIMED_DEAD: job ' || t.job || ' was taken back'
                     ELSE 'RECLAIMED_MANUAL: job ' || t.job || ' was taken back' END);
        END LOOP;
        PERFORM leasehold.release_limits(
                    now, coalesce(array_agg(f.job) FILTER (WHERE f.hold_until IS NULL), '{}'),
                    array_agg(DISTINCT f.queue))
           FROM unnest(taken) f;
    END IF;
    PERFORM leasehold.quarantine_put(f.queue, f.job, f.token, f.hold_until)
       FROM unnest(taken) f WHERE f.hold_until IS NOT NULL;
    r.log := r.log || ARRAY(
        SELECT ('warn', 'job ' || f.job || ' recovered: ' || f.reason, f.job, f.token, f.attempt, f.queue,
                f.worker, f.reason)::leasehold.log_line
          FROM unnest(taken) f ORDER BY f.n);
    INSERT INTO leasehold.event(at, type, job, queue, worker, from_state, to_state, actor, reason,
                                token, attempt, max_attempts, action, report)
    SELECT now, CASE WHEN f.poison THEN 'job.poisoned' ELSE 'job.recovered' END, f.job, f.queue,
           f.worker, 'running', f.state, 'system/recovery', f.reason, f.token, f.shown_attempt,
           f.max_attempts, f.action, r.report
      FROM unnest(taken) f ORDER BY f.n;
END $$;

-- The write itself compares state, token and expiry, so it never overwrites a heartbeat, a completion or
-- another recovery that came first. LH000: there was nothing to reclaim.
CREATE FUNCTION leasehold.reclaim_together(INOUT r leasehold.run, now timestamptz, m leasehold.meta,
                                        ids bigint[], o leasehold.recovery_opts)
LANGUAGE plpgsql
AS $$
DECLARE
    mine  bigint[];
    lost  leasehold.reclaimable[];
    taken bigint[];
BEGIN
    PERFORM leasehold.lock_for_freeing();
    mine := ARRAY(SELECT j.id FROM leasehold.job j WHERE j.id = ANY (ids) AND j.worker IS NOT NULL
                   ORDER BY j.id FOR UPDATE SKIP LOCKED);
    now := leasehold.clock();  -- read again: the rows may have been locked for some time
    lost := ARRAY(SELECT f FROM leasehold.reclaimable_jobs(mine, now, m, o, false) f);
    IF pg_catalog.cardinality(lost) = 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'LH000';
    END IF;
    r.orphaned := r.orphaned + pg_catalog.cardinality(lost);
    WITH written AS (
        UPDATE leasehold.job j
           SET state = f.state, run_at = coalesce(f.run_at, j.run_at), attempt = f.next_attempt,
               recoveries = f.next_recoveries, token = leasehold.next_token(j.token, m.first_token),
               worker = NULL, lease_until = NULL, started_at = NULL,
               finished_at = CASE f.state WHEN 'failed' THEN now END, state_changed_at = now,
               last_error = f.reason, again = true
          FROM unnest(lost) f
         WHERE j.id = ANY (mine) AND j.id = f.job AND j.worker IS NOT NULL AND j.token = f.token
           AND j.lease_until = f.lease_until
        RETURNING j.id)
    SELECT array_agg(w.id) INTO taken FROM written w;
    IF pg_catalog.cardinality(taken) < pg_catalog.cardinality(lost) THEN
        lost := ARRAY(SELECT f FROM unnest(lost) f WHERE f.job = ANY (taken));
    END IF;
    IF taken IS NOT NULL THEN
        r := leasehold.record_reclaimed(r, now, m, lost);
    END IF;
END $$;

-- The database refused a step, and the rest continues. `what` says which step failed; `why` is the error of the
-- database. An automatic recovery reports a known failure only once: its event shows that it is known. For leases
-- and workers the store must be degraded, too: otherwise a recovery has succeeded since.
CREATE FUNCTION leasehold.record_failure(INOUT r leasehold.run, now timestamptz, what text, why text,
                                       by_hand boolean, of_job bigint, of_lease text, of_worker text,
                                       of_token bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    j     record;
    known boolean;
BEGIN
    SELECT v.attempt, v.max_attempts, v.queue INTO j FROM leasehold.job v WHERE v.id = of_job;
    known := CASE WHEN of_job IS NULL
                  THEN (SELECT m.degraded <> '' FROM leasehold.meta m WHERE m.one)
                       AND EXISTS (SELECT 1 FROM leasehold.event e
                                    WHERE e.type = 'recovery.failed' AND e.job IS NULL
                                      AND e.lease IS NOT DISTINCT FROM of_lease
                                      AND e.worker IS NOT DISTINCT FROM of_worker
                                      AND e.token IS NOT DISTINCT FROM of_token
                                      AND pg_catalog.starts_with(e.reason, what))
                  ELSE EXISTS (SELECT 1 FROM leasehold.event e
                                WHERE e.job = of_job AND e.type = 'recovery.failed'
                                  AND e.token = of_token) END;
    IF known AND NOT by_hand THEN
        r.untold := r.untold + 1;
        RETURN;
    END IF;
    r := leasehold.run_begin(r, now);
    BEGIN
        PERFORM leasehold.event_put(now, 'recovery.failed', of_job, j.queue, of_worker, of_lease, NULL, NULL,
            'system/recovery', CASE WHEN of_job IS NULL THEN what || ': ' || why ELSE why END, of_token,
            NULL, j.attempt, j.max_attempts, NULL, r.report);
    EXCEPTION WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
        PERFORM leasehold.refuse(-1, pg_catalog.format('recovery could not record that %s: %s', what,
                                                       SQLERRM));
    END;
    r.failures := r.failures + 1;
    r := leasehold.log_later(r, 'error', what || ': ' || why, of_job, of_token, j.attempt, j.queue, of_worker,
                             why);
END $$;

-- Reclaim those of these jobs that are reclaimable: all at once, or, if the database refuses one of them, each
-- separately. (A row is locked and written in the same subtransaction: in two, it would cost a multixact.)
CREATE FUNCTION leasehold.reclaim(INOUT r leasehold.run, now timestamptz, m leasehold.meta,
                                    ids bigint[], o leasehold.recovery_opts)
LANGUAGE plpgsql
AS $$
DECLARE
    one  bigint;
    why  text;
    held record;
BEGIN
    IF coalesce(pg_catalog.cardinality(ids), 0) = 0 THEN
        RETURN;
    END IF;
    BEGIN
        r := leasehold.reclaim_together(r, now, m, ids, o);
        RETURN;
    EXCEPTION
        WHEN SQLSTATE 'LH000' THEN
            RETURN;
        WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
            NULL;
    END;
    FOREACH one IN ARRAY ids LOOP
        BEGIN
            r := leasehold.reclaim_together(r, now, m, ARRAY[one], o);
        EXCEPTION
            WHEN SQLSTATE 'LH000' THEN
                NULL;
            WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
                why := SQLERRM;
                SELECT j.worker, j.token INTO held FROM leasehold.job j WHERE j.id = one;
                r.orphaned := r.orphaned + 1;
                r := leasehold.record_failure(r, now, 'job ' || one || ' cannot be recovered', why, o.by_hand,
                                            one, NULL, held.worker, held.token);
        END;
    END LOOP;
END $$;
