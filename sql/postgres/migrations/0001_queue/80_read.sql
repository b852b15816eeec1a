-- Reads that are more than one SELECT. Nothing here changes anything.

-- When the oldest pending job of a queue was enqueued. Ids are in order of age, so it is the first of one of
-- the priorities. The function goes from priority to priority instead of reading all jobs, and starts at the
-- claim floor.
CREATE FUNCTION leasehold.oldest_pending(of_queue text) RETURNS timestamptz LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    s     record;
    top   integer;
    first record;
    best  bigint;
BEGIN
    FOR s IN SELECT * FROM leasehold.fresh_ranges(of_queue) LOOP
        top := s.most_priority;
        WHILE top >= s.least_priority LOOP
            SELECT j.priority, j.id INTO first FROM leasehold.job j
             WHERE j.state = 'pending' AND NOT j.again AND j.queue = of_queue
               AND j.priority >= s.least_priority AND j.priority <= top AND j.id > s.above
             ORDER BY j.priority DESC, j.id LIMIT 1;
            EXIT WHEN NOT FOUND;
            best := least(best, first.id);
            top := first.priority - 1;
        END LOOP;
    END LOOP;
    top := 32767;
    LOOP
        SELECT j.priority, j.id INTO first FROM leasehold.job j
         WHERE j.state = 'pending' AND j.again AND j.queue = of_queue AND j.priority <= top
         ORDER BY j.priority DESC, j.id LIMIT 1;
        EXIT WHEN NOT FOUND;
        best := least(best, first.id);
        top := first.priority - 1;
    END LOOP;
    RETURN (SELECT j.created_at FROM leasehold.job j WHERE j.id = best);
END $$;

-- By the index, whatever number of rows the server estimates.
CREATE FUNCTION leasehold.minutes_since(since timestamptz) RETURNS SETOF leasehold.rollup LANGUAGE sql STABLE
SET enable_seqscan = off
BEGIN ATOMIC SELECT * FROM leasehold.rollup r WHERE r.minute >= since; END;

-- All queues with their counts: the folded ones plus the deltas since. hour_...: the last 60 full minutes and
-- the current one.
CREATE FUNCTION leasehold.queues()
RETURNS TABLE (queue text, paused boolean, scheduled bigint, pending bigint, running bigint,
               completed bigint, failed bigint, cancelled bigint, oldest_pending_ms bigint,
               rate_n bigint, rate_per_ms bigint, concurrency bigint,
               hour_enqueued bigint, hour_claimed bigint, hour_completed bigint, hour_failed bigint,
               hour_recovered bigint, hour_ended bigint, hour_wait_ms bigint, hour_run_ms bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH t AS MATERIALIZED (
        SELECT c.now, date_trunc('minute', c.now) - interval '60 minutes' AS since
          FROM (SELECT leasehold.clock() AS now) c
    ), moved AS (
        SELECT d.queue, s.state, sum(CASE WHEN s.arrived THEN d.n ELSE -d.n END) AS n
          FROM leasehold.delta d, LATERAL (VALUES (d.becomes, true), (d.was, false)) s(state, arrived)
         WHERE s.state IS NOT NULL GROUP BY 1, 2
    ), counted AS (
        SELECT q.queue, q.paused, q.scheduled, q.pending, q.running, q.completed, q.failed,
               q.cancelled
          FROM leasehold.queue q
        UNION ALL
        SELECT m.queue, false, sum(n) FILTER (WHERE m.state = 'scheduled'),
               sum(n) FILTER (WHERE m.state = 'pending'), sum(n) FILTER (WHERE m.state = 'running'),
               sum(n) FILTER (WHERE m.state = 'completed'), sum(n) FILTER (WHERE m.state = 'failed'),
               sum(n) FILTER (WHERE m.state = 'cancelled')
          FROM moved m GROUP BY m.queue
        UNION ALL
        -- A queue with limits is listed before its first job.
        SELECT p.queue, false, 0, 0, 0, 0, 0, 0 FROM leasehold.policy p WHERE p.queue <> '*'
    ), counts AS (
        SELECT c.queue, bool_or(c.paused) AS paused, coalesce(sum(c.scheduled), 0)::bigint AS scheduled,
               coalesce(sum(c.pending), 0)::bigint AS pending,
               coalesce(sum(c.running), 0)::bigint AS running,
               coalesce(sum(c.completed), 0)::bigint AS completed,
               coalesce(sum(c.failed), 0)::bigint AS failed,
               coalesce(sum(c.cancelled), 0)::bigint AS cancelled
          FROM counted c GROUP BY c.queue
    ), done AS (
        SELECT r.queue, r.enqueued, r.claimed, r.completed, r.failed, r.recovered, r.ended, r.wait_ms,
               r.run_ms
          FROM t, LATERAL leasehold.minutes_since(t.since) r
        UNION ALL
        -- As maintenance folds them.
        SELECT d.queue, CASE WHEN d.act = 'e' THEN d.n END, CASE WHEN d.act = 'c' THEN d.n END,
               CASE WHEN d.act = 'd' THEN d.n END,
               CASE WHEN d.act = 'f' OR (d.act = 'r' AND d.becomes = 'failed') THEN d.n END,
               CASE WHEN d.act = 'r' THEN d.n END,
               CASE WHEN d.act = 'd' OR (d.act = 'f' AND d.was = 'running') THEN d.n END,
               CASE WHEN d.act = 'c' THEN d.ms END,
               CASE WHEN d.act = 'd' OR (d.act = 'f' AND d.was = 'running') THEN d.ms END
          FROM leasehold.delta d, t WHERE d.at >= t.since
    ), hour AS (
        SELECT h.queue, sum(h.enqueued) AS enqueued, sum(h.claimed) AS claimed,
               sum(h.completed) AS completed, sum(h.failed) AS failed, sum(h.recovered) AS recovered,
               sum(h.ended) AS ended, sum(h.wait_ms) AS wait_ms, sum(h.run_ms) AS run_ms
          FROM done h GROUP BY h.queue)
    SELECT c.queue, c.paused, c.scheduled, c.pending, c.running, c.completed, c.failed, c.cancelled,
           (SELECT greatest(leasehold.ms(t.now - o.made), 0)
              FROM leasehold.oldest_pending(c.queue) o(made) WHERE o.made IS NOT NULL),
           p.rate_n, p.rate_per_ms, p.concurrency,
           coalesce(h.enqueued, 0)::bigint, coalesce(h.claimed, 0)::bigint,
           coalesce(h.completed, 0)::bigint, coalesce(h.failed, 0)::bigint,
           coalesce(h.recovered, 0)::bigint, coalesce(h.ended, 0)::bigint,
           coalesce(h.wait_ms, 0)::bigint, coalesce(h.run_ms, 0)::bigint
      FROM counts c CROSS JOIN t CROSS JOIN LATERAL leasehold.policy_of(c.queue, NULL) p
      LEFT JOIN hour h ON h.queue = c.queue
     ORDER BY c.queue;
END;

-- Named leases as they are now; of one scope, or of all.
CREATE FUNCTION leasehold.leases(of_scope text DEFAULT NULL) RETURNS SETOF leasehold.lease_state
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT s.* FROM leasehold.meta m, (SELECT leasehold.clock() AS now OFFSET 0) t, leasehold.lease l,
           LATERAL leasehold.lease_state_of(l, t.now, leasehold.due(t.now, m.no_expiry_before)) s
     WHERE of_scope IS NULL OR l.scope = of_scope
     ORDER BY l.scope, l.name;
END;

CREATE FUNCTION leasehold.lease_get(scope text, name text) RETURNS leasehold.lease_state
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    l   leasehold.lease;
    now timestamptz := leasehold.clock();
BEGIN
    PERFORM leasehold.need_lease_name(scope, name);
    SELECT * INTO l FROM leasehold.lease c
     WHERE c.scope = lease_get.scope AND c.name = lease_get.name;
    IF NOT FOUND THEN
        PERFORM leasehold.refuse(-5, format('there is no lease "%s/%s"', scope, name));
    END IF;
    RETURN leasehold.lease_state_of(l, now, (SELECT leasehold.due(now, m.no_expiry_before)
                                           FROM leasehold.meta m));
END $$;
