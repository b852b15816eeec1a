-- Pruning: delete what is older than its retention, a little at a time.

-- The output of ended jobs may have a shorter retention than the jobs. One batch of a walk over the ids of jobs
-- with output; the walk ends at the first job that is too young to have ended before any cutoff.
CREATE FUNCTION leasehold.prune_outputs(now timestamptz, INOUT after bigint, OUT more boolean)
LANGUAGE plpgsql SET enable_bitmapscan = off
AS $$
DECLARE
    most constant bigint := 500;
    youngest timestamptz := now - leasehold.span((
        SELECT min(nullif(p.retention_output_ms, 0)) FROM leasehold.policy p));
    walked bigint := 0;
    of     record;
    keep   bigint;
BEGIN
    more := false;
    IF youngest IS NULL THEN  -- all output is kept as long as its job
        RETURN;
    END IF;
    FOR of IN
        SELECT j.id, j.queue, j.kind, j.state, j.finished_at, j.created_at
          FROM (SELECT DISTINCT w.job FROM leasehold.output w WHERE w.job > prune_outputs.after
                 ORDER BY w.job LIMIT most) o
          JOIN leasehold.job j ON j.id = o.job ORDER BY o.job
    LOOP
        EXIT WHEN of.created_at > youngest AND of.created_at <= now;
        walked := walked + 1;
        after := of.id;
        CONTINUE WHEN of.state NOT IN ('completed', 'failed', 'cancelled');
        keep := (leasehold.policy_of(of.queue, of.kind)).retention_output_ms;
        IF keep > 0 AND of.finished_at <= now - leasehold.span(keep) THEN
            DELETE FROM leasehold.output w WHERE w.job = of.id;
        END IF;
    END LOOP;
    more := walked = most;
END $$;

-- One batch of a walk over the ids, from `after` on. Ids are in order of age, so the walk ends at the first job
-- that is too young to have ended before any cutoff, and needs no index.
CREATE FUNCTION leasehold.prune_jobs(now timestamptz, older_ms bigint, INOUT after bigint,
                                     OUT pruned bigint, OUT more boolean)
LANGUAGE plpgsql SET enable_bitmapscan = off
AS $$
DECLARE
    most constant bigint := 500;
    youngest timestamptz := now - leasehold.span(coalesce(older_ms, (
        SELECT least($[retention_ms], min(p.retention_ms), min(p.retention_failed_ms))
          FROM leasehold.policy p)));
    walked bigint;
    last   bigint;
    ids    bigint[];
    silent bigint[];  -- jobs whose output is past its retention
    of     record;
BEGIN
    WITH next AS MATERIALIZED (
        SELECT j.id, j.queue, j.kind, j.state, j.finished_at, j.created_at
          FROM leasehold.job j WHERE j.id > after ORDER BY j.id LIMIT most),
    -- (A time in the future says nothing about the rows after it.)
    old AS MATERIALIZED (
        SELECT n.* FROM next n
         WHERE n.id < coalesce((SELECT min(y.id) FROM next y
                                 WHERE y.created_at > youngest AND y.created_at <= now),
                               9223372036854775807)),
    kept AS MATERIALIZED (
        SELECT k.queue, k.kind, leasehold.policy_of(k.queue, k.kind) AS p
          FROM (SELECT DISTINCT o.queue, o.kind FROM old o) k)
    SELECT count(*), max(o.id),
           array_agg(o.id ORDER BY o.id) FILTER (
               WHERE o.state IN ('completed', 'failed', 'cancelled')
                 AND coalesce(o.finished_at, '-infinity') <= now - leasehold.span(coalesce(older_ms,
                         CASE o.state WHEN 'failed' THEN (k.p).retention_failed_ms
                                      ELSE (k.p).retention_ms END))),
           array_agg(o.id) FILTER (
               WHERE o.state IN ('completed', 'failed', 'cancelled') AND (k.p).retention_output_ms > 0
                 AND o.finished_at <= now - leasehold.span((k.p).retention_output_ms))
      INTO walked, last, ids, silent
      FROM old o JOIN kept k ON k.queue = o.queue AND k.kind IS NOT DISTINCT FROM o.kind;
    after := coalesce(last, after);
    more := walked = most;
    pruned := 0;
    IF silent IS NOT NULL THEN
        DELETE FROM leasehold.output w WHERE w.job = ANY (silent);
    END IF;
    IF NOT more THEN  -- the walk continues over jobs that are too young to be pruned
        SELECT o.after, o.more INTO after, more FROM leasehold.prune_outputs(now, after) o;
    END IF;
    IF ids IS NULL THEN
        RETURN;
    END IF;
    FOR of IN
        WITH ended AS MATERIALIZED (
            SELECT j.id FROM leasehold.job j
             WHERE j.id = ANY (ids) AND j.state IN ('completed', 'failed', 'cancelled')
             ORDER BY j.id FOR UPDATE SKIP LOCKED),
        gone AS (
            DELETE FROM leasehold.job j WHERE j.id = ANY (ARRAY(SELECT e.id FROM ended e))
            RETURNING j.queue, j.state)
        SELECT g.queue, g.state, count(*) AS n FROM gone g GROUP BY g.queue, g.state
    LOOP
        PERFORM leasehold.count_change(of.queue, now, 'o', of.state, NULL, of.n);
        pruned := pruned + of.n;
    END LOOP;
END $$;

-- Drop a day if all of its events are old. As with the creation of a day, nobody waits for it.
CREATE FUNCTION leasehold.drop_event_day(name text) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE format('DROP TABLE leasehold.%I', name);
    PERFORM set_config('lock_timeout', before, true);
EXCEPTION WHEN OTHERS THEN
    NULL;
END $$;

-- Delete events from before a time: whole days, and rows of the default partition. `exact`: also in the day
-- that contains the time. Events that a wrong clock dated far into the future are deleted, too.
CREATE FUNCTION leasehold.prune_events(now timestamptz, before timestamptz, exact boolean, most bigint)
RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
    last constant text := 'event_' || to_char(before AT TIME ZONE 'UTC', 'YYYYMMDD');
    name text;
    more bigint;
    n    bigint;
BEGIN
    FOR name IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'leasehold.event'::regclass AND c.relname ~ '^event_[0-9]{8}$'
           AND c.relname::text COLLATE "C" < last COLLATE "C"
         ORDER BY 1
    LOOP
        PERFORM leasehold.drop_event_day(name);
    END LOOP;
    DELETE FROM leasehold.event_default e
     WHERE e.ctid = ANY (ARRAY(SELECT d.ctid FROM leasehold.event_default d
                                WHERE d.at < before OR d.at > now + interval '24 hours'
                                LIMIT most));
    GET DIAGNOSTICS n = ROW_COUNT;
    IF exact AND to_regclass('leasehold.' || last) IS NOT NULL THEN
        EXECUTE format('DELETE FROM leasehold.%1$I e WHERE e.at < $1 AND e.id IN '
                       '(SELECT d.id FROM leasehold.%1$I d ORDER BY d.id LIMIT $2)', last)
          USING before, most;
        GET DIAGNOSTICS more = ROW_COUNT;
        n := greatest(n, more);
    END IF;
    RETURN n;
END $$;

-- Other old rows: requests, counts per minute, workers, reports. Returns the largest number deleted from one
-- table.
CREATE FUNCTION leasehold.prune_rest(before timestamptz, most bigint) RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
    n    bigint;
    full_one bigint;
BEGIN
    DELETE FROM leasehold.request r
     WHERE (r.request, r.producer) IN (SELECT o.request, o.producer FROM leasehold.request o WHERE o.at < before
                                        ORDER BY o.at LIMIT most FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS full_one = ROW_COUNT;
    PERFORM leasehold.update_producers();
    DELETE FROM leasehold.rollup r
     WHERE (r.minute, r.queue) IN (SELECT o.minute, o.queue FROM leasehold.rollup o
                                    WHERE o.minute < date_trunc('minute', before, 'UTC')
                                    ORDER BY o.minute, o.queue LIMIT most FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS n = ROW_COUNT;
    full_one := greatest(full_one, n);
    -- A worker's row stays as long as it has jobs.
    DELETE FROM leasehold.worker w
     WHERE w.id IN (SELECT o.id FROM leasehold.worker o
                     WHERE (o.state = 'stopped' AND o.stopped_at < before)
                        OR (o.state = 'dead' AND o.uncleaned IS NULL AND o.last_heartbeat_at < before)
                       FOR UPDATE SKIP LOCKED)
       AND NOT EXISTS (SELECT 1 FROM leasehold.job j WHERE j.state = 'running' AND j.worker = w.id);
    DELETE FROM leasehold.report r
     WHERE r.started_at < before
       AND r.id IN (SELECT o.id FROM leasehold.report o ORDER BY o.id LIMIT most FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN greatest(full_one, n);
END $$;

-- One bounded round. `after`: the position of the caller's own walk over the jobs. NULL: the walk of the store,
-- which continues where it ended; one session at a time does it, and not more often than useful.
CREATE FUNCTION leasehold.prune_round(older_ms bigint, INOUT after bigint, OUT pruned bigint,
                                      OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    most constant bigint := 500;
    now    timestamptz := leasehold.clock();
    before timestamptz;
    shared boolean := after IS NULL;
    n_events bigint;
    n_rest   bigint;
BEGIN
    PERFORM leasehold.need_ms('age', older_ms, 0, 315360000000);
    before := now - leasehold.span(coalesce(older_ms, $[retention_failed_ms]));
    IF shared THEN
        SELECT d.position INTO after FROM leasehold.maintenance_task d
         WHERE d.name = 'prune' AND (d.until <= now OR d.until > now + interval '30 seconds')
           FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            pruned := 0;
            more := false;
            RETURN;
        END IF;
    END IF;
    SELECT j.after, j.pruned, j.more INTO after, pruned, more
      FROM leasehold.prune_jobs(now, older_ms, after) j;
    IF shared THEN
        UPDATE leasehold.maintenance_task d
           SET position = CASE WHEN prune_round.more THEN prune_round.after ELSE 0 END,
               until = CASE WHEN prune_round.more THEN now ELSE now + interval '30 seconds' END
         WHERE d.name = 'prune';
    END IF;
    n_rest := leasehold.prune_rest(before, most);
    -- Last, because dropping a day locks the events until the end of the transaction.
    n_events := leasehold.prune_events(now, before, older_ms IS NOT NULL, most);
    more := more OR n_events = most OR n_rest = most;
    IF n_events > 0 OR n_rest > 0 THEN
        PERFORM leasehold.changed();
    END IF;
END $$;

-- Delete jobs that have ended and are past their retention (or `older_than`), and other rows that are that old.
-- One call deletes ten thousand jobs at most; if it returns that many, call it again.
CREATE FUNCTION leasehold.prune(older_than interval DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    most constant bigint := 10000;
    now    timestamptz := leasehold.clock();
    older  bigint := leasehold.ms(older_than);
    before timestamptz;
    r record;
    n bigint := 0;
    place bigint := 0;
BEGIN
    PERFORM leasehold.need_duration('age', older_than, 1, 315360000000);
    before := now - leasehold.span(coalesce(older, $[retention_failed_ms]));
    LOOP
        SELECT * INTO r FROM leasehold.prune_jobs(now, older, place);
        n := n + r.pruned;
        place := r.after;
        EXIT WHEN NOT r.more OR n >= most;
    END LOOP;
    PERFORM leasehold.prune_rest(before, most);
    PERFORM leasehold.prune_events(now, before, older IS NOT NULL, most);
    PERFORM leasehold.changed();
    RETURN n;
END $$;
