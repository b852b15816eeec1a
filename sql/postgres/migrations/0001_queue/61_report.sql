-- The report of a recovery: one row, inserted with the first finding and updated with every batch. Each finding
-- is an event that names the report. A report without an end was interrupted by a crash.

CREATE FUNCTION leasehold.reclaimed(r leasehold.run) RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN r.retried + r.made_pending + r.failed + r.released;

CREATE FUNCTION leasehold.run_event(r leasehold.run, now timestamptz, type text, reason text,
                                    data text DEFAULT NULL)
RETURNS void LANGUAGE sql VOLATILE
RETURN leasehold.event_put(now, type, NULL, NULL, NULL, NULL, NULL, NULL, 'system/recovery', reason,
                           NULL, data, NULL, NULL, NULL, r.report);

CREATE FUNCTION leasehold.run_begin(INOUT r leasehold.run, now timestamptz) LANGUAGE plpgsql
AS $$
BEGIN
    IF r.report IS NULL THEN
        r.started_at := coalesce(r.started_at, now);
        BEGIN
            INSERT INTO leasehold.report(started_by, started_at) VALUES (r.trigger, r.started_at)
            RETURNING id INTO r.report;
        EXCEPTION WHEN integrity_constraint_violation OR raise_exception OR data_exception THEN
            PERFORM leasehold.refuse(-1, 'recovery could not begin its report: ' || SQLERRM);
        END;
        PERFORM leasehold.run_event(r, now, 'recovery.started', r.trigger);
    END IF;
END $$;

-- Add to the counters since the store was created, for monitoring.
CREATE FUNCTION leasehold.add_totals(keys text[], counts bigint[]) RETURNS void LANGUAGE sql VOLATILE
BEGIN ATOMIC
    INSERT INTO leasehold.total
    SELECT 'recovery:' || k.key, k.n FROM unnest(keys, counts) k(key, n) WHERE k.n <> 0;
END;

-- Called with every batch, so that the report of an interrupted run shows how far it got.
CREATE FUNCTION leasehold.run_count(INOUT r leasehold.run) LANGUAGE plpgsql
AS $$
DECLARE
    counts bigint[] := ARRAY[r.retried, r.made_pending, r.failed, r.released, r.leases, r.dead_workers,
                             r.failures];
BEGIN
    IF r.report IS NULL THEN
        RETURN;
    END IF;
    UPDATE leasehold.report p
       SET orphaned = r.orphaned, reclaimed = leasehold.reclaimed(r), locks_cleaned = r.leases,
           dead_workers = r.dead_workers, failures = r.failures
     WHERE p.id = r.report;
    PERFORM leasehold.add_totals(
        ARRAY['retried', 'made_pending', 'failed', 'released', 'leases', 'dead_workers', 'failures'],
        ARRAY(SELECT c.n - c.before FROM unnest(counts, r.counted) WITH ORDINALITY c(n, before, i)
               ORDER BY c.i));
    r.counted := counts;
END $$;

-- The store is degraded until a complete run had no failures.
CREATE FUNCTION leasehold.set_degraded(r leasehold.run) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    why text := '';
BEGIN
    IF r.failures = 0 AND (NOT r.whole OR r.untold > 0) THEN
        RETURN;
    END IF;
    IF r.failures > 0 THEN
        why := pg_catalog.format('%s recovery step%s failed, see recovery report %s', r.failures + r.untold,
                                 CASE r.failures + r.untold WHEN 1 THEN '' ELSE 's' END, r.report);
    END IF;
    UPDATE leasehold.meta SET degraded = why WHERE degraded <> why;
END $$;

CREATE FUNCTION leasehold.end_report(INOUT r leasehold.run, now timestamptz, how_sound text,
                                     frames bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    took bigint := leasehold.ms(now - r.started_at);
BEGIN
    r := leasehold.run_count(r);
    PERFORM leasehold.add_totals(ARRAY['duration_ms', r.trigger], ARRAY[took, 1]);
    PERFORM leasehold.set_degraded(r);
    UPDATE leasehold.report p
       SET completed_at = now, duration_ms = took, integrity = how_sound, wal_frames = frames
     WHERE p.id = r.report;
    r := leasehold.log_later(r, 'info', pg_catalog.format(
        'recovery (%s) done: %s jobs taken back, %s leases freed, %s workers dead', r.trigger,
        leasehold.reclaimed(r), r.leases, r.dead_workers));
    PERFORM leasehold.run_event(r, now, 'recovery.completed', NULL, pg_catalog.format(
        '{"jobs":%s,"leases":%s,"dead_workers":%s}', leasehold.reclaimed(r), r.leases, r.dead_workers));
END $$;

-- End a run. Flags that were set for the run, or because another server took over, are cleared.
CREATE FUNCTION leasehold.run_end(INOUT r leasehold.run, now timestamptz, m leasehold.meta,
                                  how_sound text, frames bigint)
LANGUAGE plpgsql
AS $$
BEGIN
    r := leasehold.clean_workers(r, now);
    IF r.report IS NOT NULL THEN
        r := leasehold.end_report(r, now, how_sound, frames);
    ELSE
        PERFORM leasehold.set_degraded(r);
    END IF;
    IF m.recovering_until > now OR (r.whole AND m.recovery_due) THEN
        UPDATE leasehold.meta
           SET recovering_until = '-infinity', recovery_due = recovery_due AND NOT r.whole;
    END IF;
END $$;

-- ---- as JSON ----

CREATE FUNCTION leasehold.attempts_json(n integer) RETURNS jsonb LANGUAGE sql IMMUTABLE
RETURN CASE n WHEN -1 THEN jsonb '"unlimited"' ELSE to_jsonb(n) END;

-- The whole report. The lists have at most 10,000 entries; the counts have all.
CREATE FUNCTION leasehold.report_json(of_report bigint) RETURNS jsonb LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH told AS MATERIALIZED (
        SELECT e.*, (SELECT j.kind FROM leasehold.job j WHERE j.id = e.job) AS kind FROM leasehold.event e
         WHERE e.report = of_report ORDER BY e.id
    ), jobs AS MATERIALIZED (
        SELECT * FROM told WHERE type = 'recovery.failed' OR action IS NOT NULL ORDER BY id LIMIT 10000
    )
    SELECT jsonb_build_object(
        'id', p.id, 'trigger', p.started_by, 'started_at', leasehold.time_words(p.started_at),
        'completed_at', leasehold.time_words(p.completed_at), 'duration_ms', p.duration_ms,
        'integrity', jsonb_build_object(
            'ran', p.integrity <> 'skipped', 'passed', p.integrity IN ('passed', 'repaired'),
            'errors', coalesce((SELECT jsonb_agg(reason ORDER BY id) FROM told
                                 WHERE type = 'store.damaged'), '[]'),
            'repair_attempted', p.integrity = 'repaired', 'repair_succeeded', p.integrity = 'repaired'),
        'wal_frames', nullif(p.wal_frames, -1), 'orphaned', p.orphaned,
        'entries_reclaimed', p.reclaimed, 'locks_cleaned', p.locks_cleaned,
        'recovery_timestamp', leasehold.time_words(coalesce(p.completed_at, p.started_at)),
        'recovered', coalesce((SELECT jsonb_agg(jsonb_build_object(
                'job', t.job, 'queue', t.queue, 'kind', t.kind, 'action', t.action,
                'attempt', t.attempt, 'max_attempts', leasehold.attempts_json(t.max_attempts),
                'previous_worker', t.worker,
                'reason', CASE WHEN t.action IS NOT NULL THEN t.reason END,
                'success', t.action IS NOT NULL,
                'error', CASE WHEN t.action IS NULL THEN t.reason END) ORDER BY t.id) FROM jobs t), '[]'),
        'dead_workers', coalesce((SELECT jsonb_agg(jsonb_build_object(
                'worker', t.worker,
                'last_heartbeat', leasehold.time_words(timestamptz 'epoch'
                    + ((t.data::jsonb ->> 'last_heartbeat')::bigint) * interval '1 millisecond'),
                'jobs', coalesce((SELECT jsonb_agg(v.job ORDER BY v.id) FROM jobs v
                                   WHERE v.worker = t.worker AND v.job IS NOT NULL), '[]')) ORDER BY t.id)
              FROM told t WHERE t.type = 'worker.dead'), '[]'),
        'failed_recoveries', p.failures,
        'inconsistencies', coalesce((SELECT jsonb_agg(reason ORDER BY id) FROM told
                                      WHERE type = 'recovery.inconsistency'), '[]'),
        'dry_run', false)
      FROM leasehold.report p WHERE p.id = of_report;
END;

-- One report, or the last one; NULL: there is none.
CREATE FUNCTION leasehold.recovery_report(id bigint DEFAULT NULL) RETURNS jsonb LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    which  bigint := coalesce(id, (SELECT max(p.id) FROM leasehold.report p));
    report jsonb := leasehold.report_json(which);
BEGIN
    IF report IS NULL AND id IS NOT NULL THEN
        PERFORM leasehold.refuse(-5, pg_catalog.format('there is no recovery report %s', id));
    ELSIF report IS NULL THEN
        PERFORM leasehold.refuse(-5, 'there is no recovery report yet');
    END IF;
    RETURN report;
END $$;
