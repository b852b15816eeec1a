-- Polls: is there anything to do? All waiting processes ask; one of them is the maintenance leader.

-- One process that waits for maintenance runs it for all. Does a leader exist that was heard of within three
-- seconds? (A time further in the future is from before the clock was set back.)
CREATE FUNCTION leasehold.leader_is_alive(until timestamptz, now timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN until > now AND until <= now + interval '3 seconds';

-- Become the leader if there is none. The leadership is renewed by each poll, as long as nothing due is left
-- undone.
CREATE FUNCTION leasehold.become_leader(who text, now timestamptz, late boolean) RETURNS boolean LANGUAGE plpgsql
AS $$
DECLARE
    d leasehold.maintenance_task;
BEGIN
    SELECT * INTO d FROM leasehold.maintenance_task w WHERE w.name = 'recover';
    IF d.owner = who AND (late OR leasehold.leader_is_alive(d.until, now + interval '1.5 seconds')) THEN
        RETURN true;
    ELSIF d.owner <> who AND leasehold.leader_is_alive(d.until, now) THEN
        RETURN false;
    END IF;
    UPDATE leasehold.maintenance_task w SET owner = who, until = now + interval '3 seconds'
     WHERE w.name = (SELECT s.name FROM leasehold.maintenance_task s
                      WHERE s.name = 'recover' AND s.until = d.until FOR UPDATE SKIP LOCKED);
    RETURN FOUND;
END $$;

-- A leader that stops, or no longer waits, resigns: the others poll at once.
CREATE FUNCTION leasehold.resign_leader(who text) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE leasehold.maintenance_task w SET until = '-infinity' WHERE w.name = 'recover' AND w.owner = who;
    IF FOUND THEN
        PERFORM pg_notify('leasehold', '-');
    END IF;
END $$;

-- What falls due by time alone: is anything due now, and when is the next thing due, up to `ahead`? What waits
-- for no_expiry_before is not due before. A caller that polls again soon need not know what comes later: while
-- a long transaction is open, the index has an entry for every lease that was released early.
CREATE FUNCTION leasehold.next_due(now timestamptz, due timestamptz, since timestamptz,
                                   no_expiry_before timestamptz, ahead timestamptz, OUT something boolean,
                                   OUT next_at timestamptz) LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    ends timestamptz;
BEGIN
    something := EXISTS (SELECT 1 FROM leasehold.job j
                          WHERE $[lease_ended(j, since, due)])
          OR EXISTS (SELECT 1 FROM leasehold.job j
                      WHERE $[delay_ended(j, since, now)])
          OR EXISTS (SELECT 1 FROM leasehold.lease l
                      WHERE $[named_lease_ended(l, since, due)])
          OR EXISTS (SELECT 1 FROM leasehold.worker w
                      WHERE $[silence_too_long(w, since, due)])
          OR EXISTS (SELECT 1 FROM leasehold.job j
                      WHERE $[expiry_passed(j, since, now)])
          OR EXISTS (SELECT 1 FROM leasehold.schedule s WHERE s.next_at <= now)
          OR EXISTS (SELECT 1 FROM leasehold.worker w WHERE w.uncleaned IS NOT NULL AND NOT w.stuck);
    -- What is due and stays (recovery off) must not hide what comes after it.
    ends := least((SELECT j.lease_until FROM leasehold.job j
                    WHERE $[lease_ended(j, due, ahead)]
                    ORDER BY j.lease_until LIMIT 1),
                  (SELECT l.expires_at FROM leasehold.lease l
                    WHERE $[named_lease_ended(l, due, ahead)]
                    ORDER BY l.expires_at LIMIT 1),
                  (SELECT w.silent_at FROM leasehold.worker w
                    WHERE $[silence_too_long(w, due, ahead)]
                    ORDER BY w.silent_at LIMIT 1));
    IF ends < no_expiry_before THEN
        ends := no_expiry_before;
    END IF;
    next_at := least(ends,
                     (SELECT j.run_at FROM leasehold.job j
                       WHERE $[delay_ended(j, now, ahead)]
                       ORDER BY j.run_at LIMIT 1),
                     (SELECT j.expires_at FROM leasehold.job j
                       WHERE $[expiry_passed(j, now, ahead)]
                       ORDER BY j.expires_at LIMIT 1),
                     (SELECT s.next_at FROM leasehold.schedule s
                       WHERE s.next_at > now ORDER BY s.next_at LIMIT 1));
END $$;

-- The same for reports. If there are many dead entries, it reads only a limited number: what it finds due is
-- what a claim would find now, and next_at may be a time up to which nothing falls due.
CREATE FUNCTION leasehold.falls_due(now timestamptz, OUT something boolean, OUT next_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    m     leasehold.meta;
    l     leasehold.scan;
    due   timestamptz;
    ahead timestamptz := 'infinity';
    first bigint := leasehold.entries_read();
BEGIN
    SELECT * INTO m FROM leasehold.meta;
    due := leasehold.due(now, m.no_expiry_before);
    l := leasehold.recovery_scan(m, now, false);
    IF isfinite(l.since) THEN
        ahead := now + interval '1 second';
    END IF;
    LOOP
        SELECT * INTO something, next_at FROM leasehold.next_due(now, due, l.since, m.no_expiry_before, ahead);
        EXIT WHEN something OR next_at <= ahead OR NOT isfinite(ahead);
        IF leasehold.entries_read() - first >= leasehold.backlog_batch() THEN
            next_at := ahead;
            EXIT;
        END IF;
        ahead := CASE WHEN ahead < now + interval '30 days' THEN now + 2 * (ahead - now) ELSE 'infinity' END;
    END LOOP;
    IF l.left_at <> '{}' THEN
        SELECT something OR w.frees <> '{}' OR w.moves_in <> '{}' INTO something
          FROM leasehold.leftover_due(m, l.left_at, due, now) w;
    END IF;
END $$;

-- An enqueue that was about to commit when sleepers subscribed has woken nobody. Nor has one that could not
-- know of them (leasehold.subscribe), or by whose clock they slept long ago. So the leader wakes the sleepers
-- of queues with a waiting job, once per job: it may be a job that none of them takes or may have now (a limit,
-- another kind).
CREATE FUNCTION leasehold.wake_missed(now timestamptz) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    missed record;
BEGIN
    FOR missed IN
        SELECT i.queue, j.id FROM leasehold.sleeper i
         CROSS JOIN LATERAL (SELECT leasehold.newest_fresh(i.queue, coalesce(i.late, 0)) AS id) j
         WHERE i.asleep AND j.id IS NOT NULL
    LOOP
        PERFORM leasehold.wake_sleeper(missed.queue, now);
        UPDATE leasehold.sleeper i SET late = missed.id WHERE i.queue = missed.queue AND NOT i.asleep;
    END LOOP;
END $$;

-- Would a claim from these queues, of these kinds (NULL: any), find something to do; or, without queues, is
-- anything due at all? next_ms: time until the next thing falls due; NULL: none known. `keeper`: the name of
-- the caller if it runs maintenance. While another process is the leader, the caller need not poll but every
-- spare_ms: about 2 to 20 s, more if there are more workers, and not all at once.
CREATE FUNCTION leasehold.poll(queues text[], keeper text, kinds text[] DEFAULT NULL, OUT something boolean, OUT next_ms bigint,
                               OUT on_duty boolean, OUT spare_ms bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    began  timestamptz := leasehold.stopwatch();
    now    timestamptz := leasehold.clock();
    waits  boolean := keeper IS NOT NULL OR cardinality(queues) > 0;  -- and polls again within a second
    keeps  boolean := keeper IS NOT NULL AND cardinality(queues) = 0;
    spared boolean := keeper IS NOT NULL
                      AND EXISTS (SELECT 1 FROM leasehold.maintenance_task d
                                   WHERE d.name = 'recover' AND leasehold.leader_is_alive(d.until, now)
                                     AND (d.owner <> keeper OR NOT keeps));
    due    timestamptz;
    scan  leasehold.scan;
    since  timestamptz := '-infinity';
    late   boolean;
    m      leasehold.meta;
    name   text;
    next   record;
BEGIN
    PERFORM leasehold.need_given('queue', queues IS NOT NULL);
    something := false;
    on_duty := false;
    spare_ms := 0;
    SELECT * INTO m FROM leasehold.meta;
    scan := leasehold.read_scan_bound(m.generation, now, keeps AND NOT spared, interval '5 seconds');
    IF NOT spared THEN
        due := leasehold.due(now, m.no_expiry_before);
        IF keeps AND NOT scan.fresh AND scan.littered THEN
            scan := leasehold.scan_backlog(m, scan, due, now);
        END IF;
        IF waits OR scan.littered THEN
            since := scan.since;
        END IF;
        IF scan.left_at <> '{}' THEN
            SELECT w.frees <> '{}' OR w.moves_in <> '{}' INTO something
              FROM leasehold.leftover_due(m, scan.left_at, due, now) w;
        END IF;
        IF waits THEN
            SELECT * INTO next FROM leasehold.next_due(now, due, since, m.no_expiry_before, now + interval '2 seconds');
        ELSE
            SELECT * INTO next FROM leasehold.falls_due(now);
        END IF;
        -- A job may have appeared below these bounds: then a claim must scan from the beginning.
        something := something OR next.something OR (scan.late = -1 AND isfinite(since) AND cardinality(queues) > 0);
        next_ms := CASE WHEN isfinite(next.next_at)
                        THEN ceil(1000 * extract(epoch FROM next.next_at - now)) END;
    END IF;
    IF keeps AND NOT spared THEN
        late := next.something AND (SELECT l.something FROM leasehold.next_due(
            now - interval '2 seconds', due - interval '2 seconds', since, m.no_expiry_before, now) l);
        on_duty := leasehold.become_leader(keeper, now, late);
        IF NOT scan.fresh THEN
            PERFORM leasehold.save_scan_bound(m, scan,
                CASE WHEN next.something THEN leasehold.first_due(m, since, due, now) END, began, due, now);
        END IF;
    END IF;
    IF on_duty THEN
        PERFORM leasehold.wake_missed(now);
        -- Counts that nobody folds become expensive to read.
        something := something OR EXISTS (SELECT 1 FROM leasehold.delta d WHERE d.act <> 'n' OFFSET 5000)
                     OR EXISTS (SELECT 1 FROM leasehold.change OFFSET 5000);
    ELSIF keeps THEN
        spare_ms := (0.75 + random() / 2)
                    * (2000 + (SELECT 300 * count(*) FROM (SELECT 1 FROM leasehold.worker w
                                                            WHERE w.silent_at IS NOT NULL LIMIT 60) few));
    END IF;
    FOREACH name IN ARRAY queues LOOP
        EXIT WHEN something;
        something := leasehold.retried_job_waits(name, kinds) OR leasehold.fresh_job_waits(name, kinds, scan, now);
    END LOOP;
END $$;

-- Is a job of these queues and kinds (none: any kind) pending where a limit may hold it back? Asked after a
-- claim that got nothing. Without a limit, a pending job can only be locked by the session that claims it.
CREATE FUNCTION leasehold.is_limited(queues text[], kinds text[]) RETURNS boolean
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    name text;
    of_kind text;
    p leasehold.policy;
BEGIN
    FOREACH name IN ARRAY queues LOOP
        p := leasehold.policy_of(name, NULL);
        CONTINUE WHEN NOT (p.exclusive OR p.concurrency > 0)
                      OR EXISTS (SELECT 1 FROM leasehold.queue q WHERE q.queue = name AND q.paused);
        FOREACH of_kind IN ARRAY kinds LOOP
            PERFORM 1 FROM leasehold.job j
              WHERE j.state = 'pending' AND j.kind IS NOT NULL
                AND j.queue || '/' || j.kind = name || '/' || of_kind LIMIT 1;
            IF FOUND THEN
                RETURN true;
            END IF;
        END LOOP;
        CONTINUE WHEN cardinality(kinds) > 0;
        PERFORM 1 FROM leasehold.job j
          WHERE j.state = 'pending' AND NOT j.again AND j.queue = name
          ORDER BY j.priority DESC, j.id LIMIT 1;
        IF NOT FOUND THEN
            PERFORM 1 FROM leasehold.job j
              WHERE j.state = 'pending' AND j.again AND j.queue = name
              ORDER BY j.priority DESC, j.id LIMIT 1;
        END IF;
        IF FOUND THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;

-- Does a job of these queues and kinds (none: any kind) wait for its next attempt, or for a slot? A job with a
-- token waits for a retry, or is in quarantine; one without was enqueued for later. Retries are scheduled soon,
-- so the walk by time finds one early; only the answer "none" reads all scheduled jobs.
CREATE FUNCTION leasehold.retry_waits(queues text[], kinds text[]) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    m leasehold.meta;
    s record;
BEGIN
    SELECT * INTO m FROM leasehold.meta;
    FOR s IN SELECT * FROM leasehold.scan_ranges(leasehold.recovery_scan(m, leasehold.clock(), false), 'infinity') LOOP
        IF EXISTS (SELECT 1 FROM (SELECT j.id FROM leasehold.job j
                                   WHERE $[delay_ended(j, s.since, s.up_to)]
                                     AND j.token > 0 AND j.queue = ANY (queues)
                                     AND (cardinality(kinds) = 0 OR j.kind = ANY (kinds))
                                     AND NOT EXISTS (SELECT 1 FROM leasehold.queue q
                                                      WHERE q.queue = j.queue AND q.paused)
                                   ORDER BY j.run_at LIMIT 1) first) THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN leasehold.is_limited(coalesce(queues, '{}'), coalesce(kinds, '{}'));
END $$;
