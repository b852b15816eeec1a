-- The recovery as it is called: batch by batch by the library; as a whole by psql, drivers and pg_cron.

-- ---- by the library ----

-- State of a run after a batch: the counters, and whether the run is over.
CREATE TYPE leasehold.batch AS (
    report       bigint,
    started_at   timestamptz,
    $[recovery_counters()],
    untold       bigint,
    over         boolean
);

-- One batch of a run, in one transaction: dead workers are marked, those of `ids` that are reclaimable are
-- reclaimed, expired named leases are freed, the report is updated, and with the last batch it is ended.
--
--   flags      always, whole (of the run), leases, last (of this batch), by_hand, at_once
--   counts     orphaned, retried, made_pending, failed, released, leases, dead_workers, failures, untold,
--              as the last batch left them; and the seven that have totals, as they were at the last update
--   verdicts   per worker: late, silent or proven
--   integrity  of the store, with the last batch; NULL: not checked
CREATE FUNCTION leasehold.recover_batch(
    flags text[], trigger text, report bigint, started_at timestamptz, counts bigint[],
    counted bigint[], workers text[], beats timestamptz[], verdicts text[], whats text[],
    sessions text[], ids bigint[], threshold_ms bigint, action bigint, queue text, integrity text,
    wal_frames bigint, repaired boolean, finding_types text[], findings text[])
RETURNS leasehold.batch LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    now    timestamptz := leasehold.clock();
    m      leasehold.meta;
    r      leasehold.run;
    o      leasehold.recovery_opts;
    due    timestamptz;
    before bigint;
    over   boolean := 'last' = ANY (flags);
    s      record;
BEGIN
    PERFORM leasehold.need_list('count', counts), leasehold.need_list('total', counted), leasehold.need_list('worker', workers),
            leasehold.need_given('trigger', trigger IS NOT NULL),
            leasehold.need_range('number of counts', cardinality(counts), 9, 9),
            leasehold.need_range('number of totals', cardinality(counted), 7, 7),
            leasehold.need_ranges('count', counts, 0, 1000000000000), leasehold.need_ranges('total', counted, 0, 1000000000000),
            leasehold.need_range('action', action, 1, 3), leasehold.need_ms('threshold', threshold_ms, 0, 253402300799999),
            leasehold.need_same_length(cardinality(workers), array_dims(beats), array_dims(verdicts), array_dims(whats),
                                  array_dims(sessions));
    IF integrity NOT IN ('skipped', 'passed', 'repaired', 'failed') THEN
        PERFORM leasehold.refuse(-3, format('integrity "%s" is not known: skipped, passed, repaired or failed is allowed',
                                            left(integrity, 140)));
    END IF;
    r := (trigger, 'always' = ANY (flags), 'whole' = ANY (flags), report, started_at, counts[1], counts[2], counts[3],
          counts[4], counts[5], counts[6], counts[7], counts[8], counts[9], counted, '{}')::leasehold.run;
    o := ('by_hand' = ANY (flags), threshold_ms, action, queue, 'at_once' = ANY (flags))::leasehold.recovery_opts;
    SELECT * INTO m FROM leasehold.meta WHERE one;
    m := leasehold.same_server(m, now);
    due := leasehold.due(now, m.no_expiry_before);
    IF r.always THEN
        r := leasehold.run_begin(r, now);
    END IF;
    FOR i IN 1..pg_catalog.cardinality(workers) LOOP
        -- Another session has the worker's row: the worker is no longer as it was judged, or the next run marks
        -- it.
        PERFORM 1 FROM leasehold.worker w WHERE w.id = workers[i] FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            CONTINUE;
        ELSIF verdicts[i] = 'late' THEN
            r := leasehold.mark_late(r, now, workers[i], beats[i], o.by_hand);
        ELSE
            r := leasehold.declare_dead(r, now, due, workers[i], beats[i], whats[i], sessions[i],
                                verdicts[i] = 'proven', o.by_hand);
        END IF;
    END LOOP;
    r := leasehold.reclaim(r, now, m, ids, o);
    IF 'leases' = ANY (flags) THEN
        FOR s IN SELECT * FROM leasehold.scan_ranges(leasehold.recovery_scan(m, now, o.by_hand), due) LOOP
            before := r.leases;
            r := leasehold.recover_leases(r, now, s.since, s.up_to, o.by_hand);
            over := over AND r.leases < before + 500;
        END LOOP;
    END IF;
    IF over THEN
        r := leasehold.record_findings(r, now, finding_types, findings, repaired);
        r := leasehold.run_end(r, leasehold.clock(), m, coalesce(integrity, 'skipped'),
                               coalesce(wal_frames, -1));
    ELSE
        r := leasehold.run_count(r);
        PERFORM leasehold.extend_recovering(now, m);
    END IF;
    r := leasehold.log_now(r);
    RETURN (r.report, r.started_at, r.orphaned, r.retried, r.made_pending, r.failed, r.released,
            r.leases, r.dead_workers, r.failures, r.untold, over)::leasehold.batch;
END $$;

-- Write integrity errors and inconsistencies into the report.
CREATE FUNCTION leasehold.record_findings(INOUT r leasehold.run, now timestamptz, types text[],
                                        findings text[], repaired boolean)
LANGUAGE plpgsql
AS $$
BEGIN
    IF r.report IS NULL THEN
        RETURN;
    END IF;
    FOR i IN 1..pg_catalog.cardinality(types) LOOP
        PERFORM leasehold.run_event(r, now, types[i], findings[i]);
    END LOOP;
    IF repaired THEN
        PERFORM leasehold.run_event(r, now, 'store.repaired', NULL);
    END IF;
END $$;

-- While a run continues from batch to batch, claims need not recover. It is a hint: nobody waits for it.
CREATE FUNCTION leasehold.extend_recovering(now timestamptz, m leasehold.meta) RETURNS void
LANGUAGE sql VOLATILE
BEGIN ATOMIC
    UPDATE leasehold.meta SET recovering_until = now + interval '5 seconds'
     WHERE one AND m.recovering_until < now + interval '2 seconds'
       AND EXISTS (SELECT 1 FROM leasehold.meta WHERE one FOR UPDATE SKIP LOCKED);
END;

CREATE FUNCTION leasehold.stale_jobs(by_hand boolean, threshold_ms bigint, queue text, dead text[],
                                     most bigint, everything boolean DEFAULT true)
RETURNS SETOF bigint LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    m   leasehold.meta;
    now timestamptz := leasehold.clock();
BEGIN
    PERFORM leasehold.need_ms('threshold', threshold_ms, 0, 253402300799999),
            leasehold.need_range('number of jobs', most, 0, 9223372036854775807);
    SELECT * INTO m FROM leasehold.meta WHERE one;
    RETURN QUERY SELECT * FROM leasehold.stale(now, m,
        (by_hand, threshold_ms, NULL, queue, false)::leasehold.recovery_opts, dead, most,
        leasehold.recovery_scan(m, now, everything));
END $$;

CREATE FUNCTION leasehold.stale_rest(threshold_ms bigint, queue text, at_once boolean, dead text[],
                                     everything boolean DEFAULT true, OUT leases bigint, OUT unclean boolean, OUT degraded boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    m   leasehold.meta;
    now timestamptz := leasehold.clock();
    due timestamptz;
    l   leasehold.scan;
BEGIN
    PERFORM leasehold.need_ms('threshold', threshold_ms, 0, 253402300799999);
    SELECT * INTO m FROM leasehold.meta WHERE one;
    due := leasehold.due(now, m.no_expiry_before);
    l := leasehold.recovery_scan(m, now, everything);
    leases := leasehold.stale_leases(
        now, l.since, due, (true, threshold_ms, NULL, queue, at_once)::leasehold.recovery_opts, dead);
    unclean := leasehold.unclean(l.since, due);
    degraded := m.degraded <> '';
END $$;

-- Recount what a check found wrong. The lock keeps folds out: a fold writes leasehold.queue, and the deltas
-- that are not folded yet are subtracted here.
CREATE FUNCTION leasehold.recount() RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    changed boolean := leasehold.changed();
BEGIN
    LOCK TABLE leasehold.queue IN SHARE ROW EXCLUSIVE MODE;
    DELETE FROM leasehold.output o
     WHERE NOT EXISTS (SELECT 1 FROM leasehold.job j WHERE j.id = o.job);
    -- An id is never used again: the sequence must not be below the highest id.
    PERFORM pg_catalog.setval(s.seq, greatest(j.top, 1))
       FROM pg_catalog.pg_get_serial_sequence('leasehold.job', 'id') s(seq),
            (SELECT max(id) FROM leasehold.job) j(top)
      WHERE j.top > coalesce(pg_catalog.pg_sequence_last_value(s.seq::regclass), 0);
    WITH now AS (
        SELECT c.queue, c.state, sum(c.n)::bigint AS n
          FROM (SELECT j.queue, j.state, count(*) AS n FROM leasehold.job j GROUP BY j.queue, j.state
                UNION ALL SELECT d.queue, d.becomes, -d.n FROM leasehold.delta d
                UNION ALL SELECT d.queue, d.was, d.n FROM leasehold.delta d
                UNION ALL SELECT q.queue, NULL, 0 FROM leasehold.queue q) c
         GROUP BY c.queue, c.state
    ), counts AS (
        SELECT n.queue,
               coalesce(sum(n.n) FILTER (WHERE n.state = 'scheduled'), 0) AS scheduled,
               coalesce(sum(n.n) FILTER (WHERE n.state = 'pending'), 0) AS pending,
               coalesce(sum(n.n) FILTER (WHERE n.state = 'running'), 0) AS running,
               coalesce(sum(n.n) FILTER (WHERE n.state = 'completed'), 0) AS completed,
               coalesce(sum(n.n) FILTER (WHERE n.state = 'failed'), 0) AS failed,
               coalesce(sum(n.n) FILTER (WHERE n.state = 'cancelled'), 0) AS cancelled
          FROM now n GROUP BY n.queue
    )
    INSERT INTO leasehold.queue AS q(queue, scheduled, pending, running, completed, failed, cancelled)
    SELECT * FROM counts c
        ON CONFLICT (queue) DO UPDATE
       SET scheduled = excluded.scheduled, pending = excluded.pending, running = excluded.running,
           completed = excluded.completed, failed = excluded.failed, cancelled = excluded.cancelled;
END $$;

-- ---- by SQL ----

-- A recovery from beginning to end, in batches of 500, within one transaction. Workers are judged by time
-- alone, because the server cannot see their processes. most: at most this many jobs; NULL: all.
CREATE FUNCTION leasehold.run_recovery(INOUT r leasehold.run, now timestamptz, m leasehold.meta,
                                       o leasehold.recovery_opts, most bigint, l leasehold.scan)
LANGUAGE plpgsql
AS $$
DECLARE
    due    timestamptz := leasehold.due(now, m.no_expiry_before);
    s      record;
    ids    bigint[];
    before bigint;
BEGIN
    IF r.always THEN
        r := leasehold.run_begin(r, now);
    END IF;
    FOR s IN SELECT * FROM leasehold.scan_ranges(l, due) LOOP
        r := leasehold.declare_silent_dead(r, now, s.since, s.up_to, o.by_hand);
    END LOOP;
    ids := ARRAY(SELECT leasehold.stale(now, m, o, '{}', most, l));
    r.whole := r.whole AND pg_catalog.cardinality(ids) IS DISTINCT FROM most;
    FOR i IN 0..(pg_catalog.cardinality(ids) - 1) / 500 LOOP
        r := leasehold.reclaim(r, now, m, ids[i * 500 + 1:i * 500 + 500], o);
        -- From here on this batch is undone only with the whole call, so its lines can be logged. If they were
        -- kept until the end, every call would copy the lines of all jobs so far.
        r := leasehold.log_now(r);
    END LOOP;
    FOR s IN SELECT * FROM leasehold.scan_ranges(l, due) LOOP
        LOOP
            before := r.leases;
            r := leasehold.recover_leases(r, now, s.since, s.up_to, o.by_hand);
            r := leasehold.log_now(r);
            EXIT WHEN r.leases < before + 500;
        END LOOP;
    END LOOP;
    r := leasehold.run_end(r, leasehold.clock(), m, 'skipped', -1);
    r := leasehold.log_now(r);
END $$;

-- What a recovery would do now, as a report that is not stored.
CREATE FUNCTION leasehold.dry_report(now timestamptz, m leasehold.meta, o leasehold.recovery_opts)
RETURNS jsonb LANGUAGE plpgsql
AS $$
DECLARE
    due  timestamptz := leasehold.due(now, m.no_expiry_before);
    ids  bigint[] := ARRAY(SELECT leasehold.stale(now, m, o, '{}', NULL, leasehold.recovery_scan(m, now, true)));
    lost leasehold.reclaimable[] := ARRAY(
        SELECT f FROM leasehold.reclaimable_jobs(ids[:10000], now, m, o, true) f ORDER BY f.n);
BEGIN
    RETURN pg_catalog.jsonb_build_object(
        'id', NULL, 'trigger', 'manual', 'started_at', leasehold.time_words(now),
        'completed_at', leasehold.time_words(now), 'duration_ms', 0,
        'integrity', jsonb '{"ran": false, "passed": false, "errors": [], "repair_attempted": false,
                             "repair_succeeded": false}',
        'wal_frames', NULL, 'orphaned', cardinality(ids), 'entries_reclaimed', cardinality(ids),
        'locks_cleaned', leasehold.stale_leases(now, '-infinity', due, o, '{}'),
        'recovery_timestamp', leasehold.time_words(now),
        'recovered', coalesce((SELECT jsonb_agg(jsonb_build_object(
                'job', f.job, 'queue', f.queue, 'kind', f.kind, 'action', f.action,
                'attempt', f.shown_attempt, 'max_attempts', leasehold.attempts_json(f.max_attempts),
                'previous_worker', f.worker, 'reason', f.reason, 'success', true, 'error', NULL)
                ORDER BY f.n) FROM unnest(lost) f), '[]'),
        'dead_workers', coalesce((SELECT jsonb_agg(jsonb_build_object(
                'worker', w.id, 'last_heartbeat', leasehold.time_words(w.last_heartbeat_at),
                'jobs', coalesce((SELECT jsonb_agg(f.job ORDER BY f.n) FROM unnest(lost) f
                                   WHERE f.worker = w.id), '[]')) ORDER BY w.id)
              FROM leasehold.worker w WHERE w.silent_at IS NOT NULL AND w.silent_at <= due), '[]'),
        'failed_recoveries', 0, 'inconsistencies', jsonb '[]', 'dry_run', true);
END $$;

-- Recover now, for an operator: everything that is reclaimable, whatever the policy of its queue says. With a
-- threshold: all jobs whose claim and last heartbeat are at least that long ago, live leases included. Then
-- promote and expire jobs that are due. Returns the report.
--
--   SELECT leasehold.recover();
--   SELECT leasehold.recover(threshold => '10 minutes', queue => 'mail', dry_run => true);
CREATE FUNCTION leasehold.recover(threshold interval DEFAULT NULL, action text DEFAULT NULL,
                                  queue text DEFAULT NULL, dry_run boolean DEFAULT false)
RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    now     timestamptz := leasehold.clock();
    actions constant text[] := ARRAY['retry', 'pending', 'fail'];
    m       leasehold.meta;
    r       leasehold.run := leasehold.new_run('manual', true, threshold IS NULL AND queue IS NULL);
    o       leasehold.recovery_opts;
BEGIN
    IF queue IS NOT NULL THEN
        PERFORM leasehold.need_name('queue', queue);
    END IF;
    IF NOT action = ANY (actions) THEN
        PERFORM leasehold.refuse(-3, pg_catalog.format(
            'action is "%s": retry, pending or fail is allowed', pg_catalog.left(action, 140)));
    END IF;
    PERFORM leasehold.need_duration('threshold', threshold, 0, 253402300799999);
    o := (true, leasehold.ms(threshold), pg_catalog.array_position(actions, action), queue,
          false)::leasehold.recovery_opts;
    SELECT * INTO m FROM leasehold.meta WHERE one;
    IF coalesce(dry_run, false) THEN
        RETURN leasehold.dry_report(now, m, o);
    END IF;
    m := leasehold.same_server(m, now);
    r := leasehold.run_recovery(r, now, m, o, NULL, leasehold.recovery_scan(m, now, true));
    PERFORM leasehold.maintain_round();
    RETURN leasehold.report_json(r.report);
END $$;

-- Maintenance as a worker or a server runs it: a recovery that skips queues with recovery off and writes a
-- report only if it found something; then one maintenance round. For a timer where no program of ours runs. One
-- call handles ten thousand jobs at most. Returns the report, or NULL if there was nothing to recover.
--
-- Where there are many dead entries, the call begins where claims begin, if claims have been made in the last 15
-- seconds. Otherwise nobody but this call looks, and it reads everything.
CREATE FUNCTION leasehold.maintain() RETURNS jsonb LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    now timestamptz := leasehold.clock();
    m   leasehold.meta;
    r   leasehold.run := leasehold.new_run('timer', false, true);
BEGIN
    SELECT * INTO m FROM leasehold.meta WHERE one;
    m := leasehold.same_server(m, now);
    r := leasehold.run_recovery(
        r, now, m, leasehold.automatic_recovery(), 10000,
        leasehold.recovery_scan(m, now, coalesce((SELECT w.at < now - interval '15 seconds' FROM leasehold.scan_bound w
                                               ORDER BY w.id DESC LIMIT 1), true)));
    PERFORM leasehold.maintain_round();
    RETURN leasehold.report_json(r.report);
END $$;

-- What a recovery would reclaim and free right now; changes nothing.
CREATE FUNCTION leasehold.recovery_stats(OUT locks_cleaned bigint, OUT entries_reclaimed bigint,
                                         OUT recovery_timestamp timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    m leasehold.meta;
    l leasehold.scan;
BEGIN
    SELECT * INTO m FROM leasehold.meta WHERE one;
    recovery_timestamp := leasehold.clock();
    l := leasehold.recovery_scan(m, recovery_timestamp, false);
    locks_cleaned := leasehold.stale_leases(
        recovery_timestamp, l.since, leasehold.due(recovery_timestamp, m.no_expiry_before),
        (true, NULL, NULL, NULL, false)::leasehold.recovery_opts, '{}');
    SELECT count(*) INTO entries_reclaimed FROM leasehold.stale(recovery_timestamp, m,
        (true, NULL, NULL, NULL, false)::leasehold.recovery_opts, '{}', NULL, l);
END $$;
