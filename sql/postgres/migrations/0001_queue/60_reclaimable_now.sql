-- What a recovery would take right now: for reports, for dry runs, and for claims that found something due.

-- Is a worker dead, and not everything that it held freed?
CREATE FUNCTION leasehold.unclean(since timestamptz, due timestamptz) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (SELECT 1 FROM leasehold.worker WHERE uncleaned IS NOT NULL)
       OR EXISTS (SELECT 1 FROM leasehold.worker WHERE silent_at IS NOT NULL AND silent_at > since AND silent_at <= due);

-- Jobs of dead workers whose leases still run.
CREATE FUNCTION leasehold.stale_of_dead(due timestamptz, of_queue text, some_stay boolean, most bigint)
RETURNS SETOF bigint LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT j.id FROM leasehold.job j
     WHERE j.state = 'running' AND j.lease_until > due AND (of_queue IS NULL OR j.queue = of_queue)
       AND j.worker IN (SELECT w.id FROM leasehold.worker w WHERE w.uncleaned IS NOT NULL
                        UNION ALL
                        SELECT w.id FROM leasehold.worker w
                         WHERE w.silent_at IS NOT NULL AND w.silent_at <= due AND w.pid IS NOT NULL)
       AND (NOT some_stay OR leasehold.recovery_is_on(j.queue, j.kind))
     ORDER BY j.lease_until, j.id LIMIT most;
END;

-- The ids of all reclaimable jobs. `dead`: workers known to be dead whose rows do not say so yet. `most` NULL:
-- all.
CREATE FUNCTION leasehold.stale(now timestamptz, m leasehold.meta, o leasehold.recovery_opts,
                                dead text[], most bigint, l leasehold.scan)
RETURNS SETOF bigint LANGUAGE plpgsql STABLE
AS $$
DECLARE
    due  timestamptz := leasehold.due(now, m.no_expiry_before);
    stay boolean := NOT o.by_hand AND leasehold.any_recovery_off(m);
BEGIN
    IF o.threshold_ms IS NOT NULL THEN
        RETURN QUERY SELECT j.id FROM leasehold.job j
                      WHERE j.state = 'running' AND (o.queue IS NULL OR j.queue = o.queue)
                        AND now - greatest(j.started_at, j.last_heartbeat_at)
                            >= leasehold.span(o.threshold_ms)
                      ORDER BY j.lease_until, j.id LIMIT most;
        RETURN;
    END IF;
    RETURN QUERY
    (SELECT j.id FROM leasehold.job j
      WHERE $[lease_ended(j, l.since, due)]
        AND (o.queue IS NULL OR j.queue = o.queue) AND (NOT stay OR leasehold.recovery_is_on(j.queue, j.kind))
      ORDER BY j.lease_until, j.id LIMIT most)
    UNION ALL
    (SELECT j.id FROM leasehold.job j
      WHERE j.state = 'running' AND j.lease_until = ANY (l.left_at) AND j.lease_until <= least(due, l.since)
        AND (o.queue IS NULL OR j.queue = o.queue) AND (NOT stay OR leasehold.recovery_is_on(j.queue, j.kind))
      LIMIT most)
    UNION ALL
    SELECT d FROM leasehold.stale_of_dead(due, o.queue, stay, most) d WHERE leasehold.unclean(l.since, due)
    UNION ALL
    SELECT j.id FROM leasehold.job j
     WHERE dead <> '{}' AND j.state = 'running' AND j.worker = ANY (dead) AND j.lease_until > due
       AND (o.queue IS NULL OR j.queue = o.queue)
       AND NOT EXISTS (SELECT 1 FROM leasehold.worker w
                        WHERE w.id = j.worker AND (w.uncleaned IS NOT NULL OR w.silent_at <= due))
       AND (NOT stay OR leasehold.recovery_is_on(j.queue, j.kind))
    LIMIT most;
END $$;

-- Leases that a recovery would free: expired ones, those of dead workers, and the leases of exclusive queues
-- whose jobs it would reclaim. `dead`: workers known to be dead whose rows do not say so yet.
CREATE FUNCTION leasehold.stale_leases(now timestamptz, since timestamptz, due timestamptz,
                                       o leasehold.recovery_opts, dead text[])
RETURNS bigint LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT (SELECT count(*) FROM leasehold.lease l
             WHERE $[named_lease_ended(l, since, due)])
         + (SELECT count(*)
              FROM (SELECT w.id, false AS unmarked FROM leasehold.worker w
                     WHERE w.uncleaned IS NOT NULL
                    UNION
                    SELECT w.id, true FROM leasehold.worker w
                     WHERE $[silence_too_long(w, since, due)]
                       AND w.pid IS NOT NULL
                    UNION
                    SELECT d.id, true FROM unnest(dead) d(id)) w
              JOIN leasehold.lease l ON l.owner = w.id
             WHERE l.expires_at > due
               AND CASE WHEN l.job IS NULL THEN w.unmarked
                        ELSE o.threshold_ms IS NULL AND (o.queue IS NULL OR l.name = o.queue) END)
         + (SELECT count(*) FROM leasehold.lease l JOIN leasehold.job j ON j.id = l.job
             WHERE o.threshold_ms IS NOT NULL AND o.at_once AND l.expires_at > due AND l.job IS NOT NULL
               AND (o.queue IS NULL OR l.name = o.queue) AND j.state = 'running'
               AND now - greatest(j.started_at, j.last_heartbeat_at) >= leasehold.span(o.threshold_ms));
END;

-- ---- on a claim that found something due ----

-- Jobs whose leases expired in a time range, 500 at most.
CREATE FUNCTION leasehold.expired_jobs(m leasehold.meta, since timestamptz, due timestamptz) RETURNS bigint[]
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF leasehold.any_recovery_off(m) THEN
        RETURN ARRAY(SELECT e.id
                       FROM (SELECT j.id, leasehold.recovery_is_on(j.queue, j.kind) AS free_it FROM leasehold.job j
                              WHERE $[lease_ended(j, since, due)]
                              ORDER BY j.lease_until LIMIT leasehold.most_skipped()) e
                      WHERE e.free_it LIMIT 500);
    END IF;
    RETURN ARRAY(SELECT j.id FROM leasehold.job j
                  WHERE $[lease_ended(j, since, due)]
                  ORDER BY j.lease_until LIMIT 500);
END $$;

-- Returns true if it has freed jobs.
CREATE FUNCTION leasehold.recover_on_claim(now timestamptz, m leasehold.meta, l leasehold.scan) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    r   leasehold.run := leasehold.new_run('claim', false, false);
    due timestamptz := leasehold.due(now, m.no_expiry_before);
    s   record;
    ids bigint[] := '{}';
BEGIN
    FOR s IN SELECT * FROM leasehold.scan_ranges(l, due) LOOP
        r := leasehold.declare_silent_dead(r, now, s.since, s.up_to, false);
    END LOOP;
    IF leasehold.unclean(l.since, due) THEN
        r := leasehold.reclaim(r, now, m,
            ARRAY(SELECT leasehold.stale_of_dead(due, NULL, leasehold.any_recovery_off(m), 500)),
            leasehold.automatic_recovery());
        r := leasehold.clean_workers(r, now);
    END IF;
    FOR s IN SELECT * FROM leasehold.scan_ranges(l, due) LOOP
        r := leasehold.recover_leases(r, now, s.since, s.up_to, false);
        ids := ids || leasehold.expired_jobs(m, s.since, s.up_to);
    END LOOP;
    r := leasehold.reclaim(r, now, m, ids, leasehold.automatic_recovery());
    IF r.report IS NOT NULL THEN
        r := leasehold.end_report(r, leasehold.clock(), 'skipped', -1);
    END IF;
    PERFORM leasehold.log_now(r);
    RETURN leasehold.reclaimed(r) > 0;
END $$;
