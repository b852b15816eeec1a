-- The server's clock was set. Leases are measured in elapsed time and are shifted with the clock.
--
-- Every process that recovers compares the server's clock with its own monotonic clock in each round. All of
-- them see a jump, each in its own next round, and only the first may act on it. So the store keeps the sum of
-- all jumps, and processes compare with that.

-- The clock is further by `jump_ms` than the `elapsed_ms` since the last check explain. `known_ms`: the sum of
-- jumps that the caller knew. Returns false if there is nothing to do.
CREATE FUNCTION leasehold.clock_jumped(jump_ms bigint, known_ms bigint, elapsed_ms bigint)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now   timestamptz := leasehold.clock();
    jump  interval;
    known bigint;
BEGIN
    -- A jump is no larger than the times that a store may contain.
    PERFORM leasehold.need_range('jump', jump_ms, -253402300799999, 253402300799999),
            leasehold.need_range('elapsed time', elapsed_ms, 0, 253402300799999);
    jump := leasehold.span(jump_ms);
    PERFORM leasehold.need_given('jump', jump_ms IS NOT NULL), leasehold.need_given('elapsed time', elapsed_ms IS NOT NULL);
    SELECT m.jumped_ms INTO known FROM leasehold.meta m WHERE m.one FOR UPDATE;
    IF known <> known_ms OR pg_catalog.abs(jump_ms) <= 1000
       OR leasehold.any_heartbeat_between(now - jump + interval '1 second',
                                     now - leasehold.span(elapsed_ms) - interval '1 second') THEN
        RETURN false;
    END IF;
    UPDATE leasehold.meta m SET jumped_ms = known + jump_ms;
    PERFORM leasehold.shift_leases(now, jump, now - leasehold.span(elapsed_ms));
    PERFORM leasehold.event_put(now, 'clock.jump', NULL, NULL, NULL, NULL, NULL, NULL, 'system/clock',
                                NULL, NULL, pg_catalog.format('{"jump_ms":%s}', jump_ms));
    PERFORM leasehold.log_message('warn', 'clock jumped by ' || jump_ms || ' ms: leases shifted with it');
    RETURN true;
END $$;

-- A clock that jumped forward has skipped a range of time. If a heartbeat has a time within it, the server's
-- clock did not jump: the caller's machine was suspended.
CREATE FUNCTION leasehold.any_heartbeat_between(low timestamptz, high timestamptz) RETURNS boolean
LANGUAGE sql STABLE
RETURN EXISTS (SELECT 1 FROM leasehold.worker w
                WHERE w.last_heartbeat_at > low AND w.last_heartbeat_at < high)
       OR EXISTS (SELECT 1 FROM leasehold.job j
                   WHERE j.state = 'running' AND greatest(j.started_at, j.last_heartbeat_at) > low
                     AND greatest(j.started_at, j.last_heartbeat_at) < high);

-- Was this time read from the clock before the jump? After a jump forward, a time within the range counts as
-- from before: such a lease becomes longer by the jump, and not shorter. After a jump back, times since the
-- last check are from the new clock.
CREATE FUNCTION leasehold.before_jump(at timestamptz, now timestamptz, jump interval,
                                      looked_at timestamptz)
RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN CASE WHEN jump > interval '0' THEN at <= now - jump ELSE at < looked_at OR at > now END;

-- Shift what measures elapsed time: leases, quarantines, silence, rates. What the store has noted about them is
-- void (generation) or shifted, too. Workers are locked before jobs and leases, as by their heartbeats, which
-- all arrive now.
CREATE FUNCTION leasehold.shift_leases(now timestamptz, jump interval, looked_at timestamptz)
RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1 FROM leasehold.worker w ORDER BY w.id FOR UPDATE;
    PERFORM 1 FROM leasehold.job j WHERE j.state = 'running' ORDER BY j.id FOR UPDATE;
    UPDATE leasehold.job j
       SET lease_until = j.lease_until + jump, started_at = j.started_at + jump,
           state_changed_at = j.state_changed_at + jump, last_heartbeat_at = j.last_heartbeat_at + jump
     WHERE j.state = 'running'
       AND leasehold.before_jump(greatest(j.started_at, j.last_heartbeat_at), now, jump, looked_at);
    UPDATE leasehold.job j SET run_at = j.run_at + jump
      FROM leasehold.quarantine h
     WHERE h.job = j.id AND h.queue = j.queue AND j.state = 'scheduled' AND j.run_at = h.until;
    UPDATE leasehold.quarantine h SET until = h.until + jump;
    UPDATE leasehold.delta d SET at = d.at + jump WHERE d.act = 'n';
    UPDATE leasehold.queue q SET bucket_at = q.bucket_at + jump
     WHERE q.queue IN (SELECT o.queue FROM leasehold.queue o
                        WHERE leasehold.before_jump(o.bucket_at, now, jump, looked_at)
                          FOR UPDATE SKIP LOCKED);
    UPDATE leasehold.lease l SET expires_at = l.expires_at + jump, acquired_at = l.acquired_at + jump
     WHERE l.expires_at IS NOT NULL
       AND leasehold.before_jump(l.expires_at - leasehold.span(l.ttl_ms), now, jump, looked_at);
    UPDATE leasehold.worker w
       SET last_heartbeat_at = w.last_heartbeat_at + jump, silent_at = w.silent_at + jump
     WHERE w.silent_at IS NOT NULL
       AND leasehold.before_jump(w.last_heartbeat_at, now, jump, looked_at);
    -- A clock that was set back by more than a day was wrong before, and nobody wants to wait until then.
    -- Within a day, no scheduled run happens twice.
    UPDATE leasehold.schedule s SET done_until = now, next_at = now
     WHERE s.done_until > now + interval '1 day';
    -- The time of the next scan below the floor was from the old clock; the row is made again by the next
    -- claim.
    DELETE FROM leasehold.claim_floor f
     WHERE (f.queue, f.look, f.priority) IN (SELECT s.queue, s.look, s.priority FROM leasehold.claim_floor s
                                                FOR UPDATE SKIP LOCKED);
    UPDATE leasehold.meta
       SET generation = generation + 1, no_expiry_before = no_expiry_before + jump,
           sleepers_until = now + interval '10 minutes',
           recovering_until = '-infinity';
END $$;
