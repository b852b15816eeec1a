-- Recovery beside jobs: expired named leases are freed, silent workers are marked dead and cleaned up.

-- ---- named leases ----

CREATE FUNCTION leasehold.record_freed(INOUT r leasehold.run, now timestamptz, of_scope text,
                                     of_name text, of_owner text, of_token bigint, reason text)
LANGUAGE plpgsql
AS $$
BEGIN
    r := leasehold.run_begin(r, now);
    r.leases := r.leases + 1;
    PERFORM leasehold.lease_free(of_scope, of_name, of_token);
    PERFORM leasehold.event_put(now, 'lease.recovered', NULL, NULL, of_owner, of_scope || '/' || of_name,
                                NULL, NULL, 'system/recovery', reason, of_token, NULL, NULL, NULL, NULL,
                                r.report);
    r := leasehold.log_later(r, 'info', pg_catalog.format('lease %s/%s of %s was freed: %s', of_scope,
                                                          of_name, of_owner, reason),
                             NULL, of_token, NULL, NULL, of_owner, reason);
END $$;

-- Free these leases, whose rows are locked: all at once, or, if the database refuses one of them, each
-- separately. (The result is assigned at the end of the block, because a variable keeps its value when a block
-- fails.)
CREATE FUNCTION leasehold.free_leases(INOUT r leasehold.run, now timestamptz, leases leasehold.lease[],
                                      reason text, by_hand boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    l         leasehold.lease;
    all_freed leasehold.run := r;
BEGIN
    BEGIN
        FOREACH l IN ARRAY leases LOOP
            all_freed := leasehold.record_freed(all_freed, now, l.scope, l.name, l.owner, l.token, reason);
        END LOOP;
        r := all_freed;
        RETURN;
    EXCEPTION WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
        NULL;
    END;
    FOREACH l IN ARRAY leases LOOP
        BEGIN
            r := leasehold.record_freed(r, now, l.scope, l.name, l.owner, l.token, reason);
        EXCEPTION WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
            r := leasehold.record_failure(
                r, now, pg_catalog.format('lease %s/%s cannot be freed', l.scope, l.name), SQLERRM, by_hand,
                NULL, l.scope || '/' || l.name, l.owner, l.token);
        END;
    END LOOP;
END $$;

-- Free expired leases of a time range in batches, up to 500. A lease that is refused stays and would be found
-- again, so the loop continues behind the last lease it found.
CREATE FUNCTION leasehold.recover_leases(INOUT r leasehold.run, now timestamptz, since timestamptz,
                                         due timestamptz, by_hand boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    batch  constant integer := 500;
    enough bigint := r.leases + batch;
    found  leasehold.lease[];
    last   leasehold.lease;
BEGIN
    now := leasehold.clock();
    last.expires_at := since;
    last.scope := '';
    last.name := '';
    LOOP
        found := ARRAY(
            SELECT v FROM leasehold.lease v
             WHERE $[named_lease_ended(v, since, due)]
               AND (v.expires_at, v.scope, v.name) > (last.expires_at, last.scope, last.name)
             ORDER BY v.expires_at, v.scope, v.name LIMIT batch FOR UPDATE SKIP LOCKED);
        r := leasehold.free_leases(r, now, found, 'RECLAIMED_TTL: lease had expired', by_hand);
        EXIT WHEN cardinality(found) < batch OR r.leases >= enough;
        last := found[batch];
    END LOOP;
END $$;

-- ---- workers ----

-- Mark a worker dead. The write compares the heartbeat that the verdict is based on: a worker that sent one
-- since is alive. If its death was proven, the write also compares the sessions that were searched, because the
-- worker may have started more before it died. The leases of a worker without a process of ours end by time;
-- what other workers held is freed.
CREATE FUNCTION leasehold.mark_dead(INOUT r leasehold.run, now timestamptz, due timestamptz,
                                    of_worker text, beat timestamptz, what text, of_sessions text,
                                    proven boolean, OUT process boolean)
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE leasehold.worker w
       SET state = 'dead', silent_at = NULL, uncleaned = CASE WHEN w.pid IS NOT NULL THEN what END
     WHERE w.id = of_worker AND w.silent_at IS NOT NULL AND w.last_heartbeat_at = beat
       AND (w.silent_at <= due OR (proven AND w.sessions IS NOT DISTINCT FROM of_sessions))
    RETURNING w.pid IS NOT NULL INTO process;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    now := leasehold.clock();
    r := leasehold.run_begin(r, now);
    r.dead_workers := r.dead_workers + 1;
    r := leasehold.log_later(r, 'warn', 'worker ' || of_worker || ' is dead: it ' || what, NULL, NULL, NULL,
                             NULL, of_worker, what);
    PERFORM leasehold.event_put(now, 'worker.dead', NULL, NULL, of_worker, NULL, NULL, NULL,
        'system/recovery', what, NULL,
        pg_catalog.format('{"last_heartbeat":%s}', floor(1000 * extract(epoch FROM beat))::bigint),
        NULL, NULL, NULL, r.report);
END $$;

CREATE FUNCTION leasehold.declare_dead(INOUT r leasehold.run, now timestamptz, due timestamptz, of_worker text,
                               beat timestamptz, what text, of_sessions text, proven boolean,
                               by_hand boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    d record;
BEGIN
    BEGIN
        d := leasehold.mark_dead(r, now, due, of_worker, beat, what, of_sessions, proven);
        r := d.r;
    EXCEPTION WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
        r := leasehold.record_failure(r, now, 'worker ' || of_worker || ' cannot be marked dead', SQLERRM,
                                    by_hand, NULL, NULL, of_worker, NULL);
        RETURN;
    END;
    IF d.process THEN
        r := leasehold.free_leases(r, leasehold.clock(), ARRAY(
            SELECT v FROM leasehold.lease v WHERE v.owner = of_worker AND v.job IS NULL
             ORDER BY v.scope, v.name FOR UPDATE),
            'RECLAIMED_DEAD: worker ' || of_worker || ' ' || what, by_hand);
    END IF;
END $$;

CREATE FUNCTION leasehold.mark_late(INOUT r leasehold.run, now timestamptz, of_worker text, beat timestamptz,
                                    by_hand boolean)
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE leasehold.worker w SET state = 'late'
     WHERE w.id = of_worker AND w.state = 'alive' AND w.last_heartbeat_at = beat;
    IF FOUND THEN
        PERFORM leasehold.event_put(now, 'worker.late', NULL, NULL, of_worker, NULL, NULL, NULL,
                                    'system/recovery', NULL, NULL);
        r := leasehold.log_later(r, 'info', 'worker ' || of_worker || ' is late: it missed a heartbeat', NULL,
                                 NULL, NULL, NULL, of_worker);
    END IF;
EXCEPTION WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
    r := leasehold.record_failure(r, now, 'worker ' || of_worker || ' cannot be marked late', SQLERRM, by_hand,
                                NULL, NULL, of_worker, NULL);
END $$;

-- Mark workers dead that were silent for too long, in a time range. A worker that is just sending a heartbeat
-- is skipped.
CREATE FUNCTION leasehold.declare_silent_dead(INOUT r leasehold.run, now timestamptz, since timestamptz,
                                      due timestamptz, by_hand boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    w record;
BEGIN
    FOR w IN SELECT v.id, v.last_heartbeat_at, v.multiplier, v.interval_ms, v.sessions
               FROM leasehold.worker v
              WHERE $[silence_too_long(v, since, due)]
              ORDER BY v.id LIMIT 500 FOR UPDATE SKIP LOCKED LOOP
        r := leasehold.declare_dead(r, now, due, w.id, w.last_heartbeat_at,
                            leasehold.silence_words(now, w.last_heartbeat_at, w.multiplier, w.interval_ms),
                            w.sessions, false, by_hand);
    END LOOP;
END $$;

-- A dead worker that holds nothing any more, or only what stays on purpose (recovery off), need not be examined
-- by claims again.
CREATE FUNCTION leasehold.clean_worker(INOUT r leasehold.run, now timestamptz, of_worker text, holds boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    changed boolean;
BEGIN
    IF holds THEN
        UPDATE leasehold.worker v SET stuck = true WHERE v.id = of_worker AND NOT v.stuck;
        IF FOUND THEN
            changed := leasehold.changed();
        END IF;
        RETURN;
    END IF;
    UPDATE leasehold.worker v  -- if it comes back after all, it still reports what it starts
       SET uncleaned = NULL, stuck = false, started = CASE WHEN v.started IS NOT NULL THEN '[]' END
     WHERE v.id = of_worker;
    PERFORM leasehold.event_put(now, 'worker.cleaned', NULL, NULL, of_worker, NULL, NULL, NULL,
        'system/recovery', NULL, NULL, NULL, NULL, NULL, NULL, r.report);
    r := leasehold.log_later(r, 'info', 'worker ' || of_worker || ' is cleaned up: everything it held is free',
                             NULL, NULL, NULL, NULL, of_worker);
EXCEPTION WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
    r := leasehold.record_failure(r, now, 'worker ' || of_worker || ' cannot be marked as cleaned up', SQLERRM,
                                false, NULL, NULL, of_worker, NULL);
END $$;

-- At most 64; the next run does the rest.
CREATE FUNCTION leasehold.clean_workers(INOUT r leasehold.run, now timestamptz) LANGUAGE plpgsql
AS $$
DECLARE
    names text[];
    w     record;
BEGIN
    SELECT array_agg(d.id) INTO names
      FROM (SELECT v.id FROM leasehold.worker v WHERE v.uncleaned IS NOT NULL
             ORDER BY v.stuck LIMIT 64 FOR UPDATE SKIP LOCKED) d;
    IF names IS NULL THEN
        RETURN;
    END IF;
    FOR w IN
        SELECT d.id, h.worker IS NOT NULL AS holds
          FROM unnest(names) d(id)
          LEFT JOIN (SELECT k.worker, bool_or(leasehold.recovery_is_on(k.queue, k.kind)) AS free_it
                       FROM (SELECT DISTINCT j.worker, j.queue, j.kind FROM leasehold.job j
                              WHERE j.state = 'running' AND j.worker = ANY (names)) k
                      GROUP BY k.worker) h ON h.worker = d.id
         WHERE NOT coalesce(h.free_it, false)
    LOOP
        r := leasehold.clean_worker(r, now, w.id, w.holds);
    END LOOP;
END $$;
