-- Workers: registration, heartbeats, stop.

CREATE FUNCTION leasehold.worker_event(now timestamptz, type text, worker text,
                                       reason text DEFAULT NULL) RETURNS void LANGUAGE sql
RETURN leasehold.event_put(now, type, NULL, NULL, worker, NULL, NULL, NULL, worker, reason, NULL);

-- [[1,2],[3,4]] from {1,3} and {2,4}.
CREATE FUNCTION leasehold.pairs(firsts bigint[], seconds bigint[]) RETURNS text
LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT '[' || coalesce(string_agg(format('[%s,%s]', a, b), ',' ORDER BY n), '') || ']'
      FROM unnest(firsts, seconds) WITH ORDINALITY u(a, b, n);
END;

-- Insert or replace the row of a worker: a registration replaces everything that was known about the id. of_pid
-- NULL: no process of ours; only time decides. of_sessions as leasehold.pairs() returns it; NULL: none yet.
CREATE FUNCTION leasehold.worker_put(
    now timestamptz, of_worker text, of_label text, of_host text, of_machine text, of_boot text,
    of_pid_ns bigint, of_time_ns bigint, of_pid bigint, of_start bigint, of_queues text,
    of_version text, of_interval_ms bigint, of_multiplier bigint, tells_started boolean, of_sessions text)
RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO leasehold.worker(id, label, host, machine, boot, pid_ns, time_ns, pid,
                                 process_start, queues, version, interval_ms, multiplier,
                                 registered_at, last_heartbeat_at, silent_at, started, sessions)
    VALUES (of_worker, coalesce(of_label, of_worker), of_host, of_machine, of_boot, of_pid_ns,
            of_time_ns, of_pid, of_start, of_queues, of_version, coalesce(of_interval_ms, 30000),
            coalesce(of_multiplier, 3), now, now,
            now + leasehold.span(coalesce(of_interval_ms, 30000) * coalesce(of_multiplier, 3)),
            CASE WHEN tells_started THEN '[]' END, of_sessions)
        ON CONFLICT (id) DO UPDATE
       SET label = excluded.label, host = excluded.host, machine = excluded.machine,
           boot = excluded.boot, pid_ns = excluded.pid_ns, time_ns = excluded.time_ns,
           pid = excluded.pid,
           process_start = excluded.process_start, queues = excluded.queues,
           version = excluded.version, state = 'alive', interval_ms = excluded.interval_ms,
           multiplier = excluded.multiplier, registered_at = excluded.registered_at,
           last_heartbeat_at = excluded.last_heartbeat_at, stopped_at = NULL,
           silent_at = excluded.silent_at, started = excluded.started, sessions = excluded.sessions,
           degraded = NULL, uncleaned = NULL, stuck = false;
    PERFORM leasehold.worker_event(now, 'worker.started', of_worker);
    PERFORM pg_notify('leasehold', '+');  -- death watches have one more process to watch
    IF coalesce(of_interval_ms, 30000) * coalesce(of_multiplier, 3) <= 1000 THEN
        PERFORM leasehold.wake_maintenance(now);
    END IF;
END $$;

-- Processes are given by their pids and start times.
CREATE FUNCTION leasehold.need_sessions(pids bigint[], starts bigint[]) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.need_list('pid', pids), leasehold.need_list('start', starts);
    IF pg_catalog.cardinality(pids) <> pg_catalog.cardinality(starts) THEN
        PERFORM leasehold.refuse(-3, pg_catalog.format('there are %s pids and %s starts: one start for each pid is allowed',
                                            pg_catalog.cardinality(pids), pg_catalog.cardinality(starts)));
    END IF;
END $$;

CREATE FUNCTION leasehold.need_worker_times(interval_ms bigint, multiplier bigint) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM leasehold.need_ms('heartbeat interval', interval_ms, 1, 2592000000);
    PERFORM leasehold.need_range('multiplier', multiplier, 1, 1000);
END $$;

CREATE FUNCTION leasehold.worker_register(
    of_worker text, of_label text, of_host text, of_machine text, of_boot text, of_pid_ns bigint,
    of_time_ns bigint, of_pid bigint, of_start bigint, of_queues text, of_version text, of_interval_ms bigint,
    of_multiplier bigint, tells_started boolean, has_sessions boolean, pids bigint[],
    starts bigint[])
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.need_name('worker', of_worker);
    PERFORM leasehold.need_worker_times(of_interval_ms, of_multiplier);
    IF has_sessions THEN
        PERFORM leasehold.need_sessions(pids, starts);
    END IF;
    PERFORM leasehold.worker_put(
        leasehold.clock(), of_worker, of_label, of_host, of_machine, of_boot, of_pid_ns, of_time_ns,
        of_pid, of_start, of_queues, of_version, of_interval_ms, of_multiplier, tells_started,
        CASE WHEN has_sessions THEN leasehold.pairs(pids, starts) END);
END $$;

-- Heartbeat of a worker and its jobs. An unknown worker is registered, without a process of ours. Returns the
-- refused jobs.
CREATE FUNCTION leasehold.worker_heartbeat_put(of_worker text, of_interval_ms bigint, of_version text,
                                      jobs bigint[], tokens bigint[], lease_ms bigint[],
                                      progress bigint[], stages text[], checkpoints text[])
RETURNS SETOF leasehold.outcome
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- (The same settings as for heartbeat_many(): jobs are written in the order of their ids.)
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    now     timestamptz := leasehold.clock();
    m       leasehold.meta;
    refused leasehold.outcome[];
    counted boolean := leasehold.changed();
BEGIN
    PERFORM leasehold.need_name('worker', of_worker);
    PERFORM leasehold.need_worker_times(of_interval_ms, NULL);
    UPDATE leasehold.worker w
       SET last_heartbeat_at = now, state = 'alive', stopped_at = NULL,
           interval_ms = coalesce(of_interval_ms, w.interval_ms),
           silent_at = now + leasehold.span(coalesce(of_interval_ms, w.interval_ms) * w.multiplier),
           uncleaned = NULL, stuck = false
     WHERE w.id = (SELECT f.id FROM leasehold.worker f WHERE f.id = of_worker FOR UPDATE SKIP LOCKED);
    -- (If another session has locked the worker's row, its jobs still get their heartbeats.)
    IF NOT FOUND AND NOT EXISTS (SELECT 1 FROM leasehold.worker w WHERE w.id = of_worker) THEN
        PERFORM leasehold.worker_put(now, of_worker, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                                     of_version, of_interval_ms, NULL, false, NULL);
    END IF;
    IF cardinality(jobs) > 0 THEN
        PERFORM leasehold.need_heartbeats(jobs, tokens, lease_ms, progress, stages, checkpoints);
        SELECT * INTO m FROM leasehold.meta WHERE one;
        refused := leasehold.heartbeat_jobs(now, m, jobs, tokens, lease_ms, progress, stages, checkpoints);
        IF refused IS NOT NULL THEN
            RETURN QUERY SELECT * FROM unnest(refused);
        END IF;
    END IF;
END $$;

CREATE FUNCTION leasehold.refuse_unknown_worker(of_worker text) RETURNS void LANGUAGE sql
RETURN leasehold.refuse(-5, format('there is no worker "%s"', left(of_worker, 140)));

-- All jobs that this worker has started by now.
CREATE FUNCTION leasehold.worker_started(of_worker text, jobs bigint[], tokens bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.need_given('worker', of_worker IS NOT NULL), leasehold.need_refs(jobs, tokens);
    UPDATE leasehold.worker w SET started = leasehold.pairs(jobs, tokens) WHERE w.id = of_worker;
    IF NOT FOUND THEN
        PERFORM leasehold.refuse_unknown_worker(of_worker);
    END IF;
    PERFORM leasehold.changed();
END $$;

-- All processes in whose sessions the worker's jobs run.
CREATE FUNCTION leasehold.worker_sessions(of_worker text, pids bigint[], starts bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.need_given('worker', of_worker IS NOT NULL), leasehold.need_sessions(pids, starts);
    UPDATE leasehold.worker w SET sessions = leasehold.pairs(pids, starts) WHERE w.id = of_worker;
    IF NOT FOUND THEN
        PERFORM leasehold.refuse_unknown_worker(of_worker);
    END IF;
    PERFORM leasehold.changed();
END $$;

-- Everything that the worker does fails; NULL: it works again. An event is written only on a change.
CREATE FUNCTION leasehold.worker_degraded(of_worker text, why text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.need_given('worker', of_worker IS NOT NULL);
    UPDATE leasehold.worker w SET degraded = why
     WHERE w.id = of_worker AND (w.degraded IS NULL) <> (why IS NULL);
    IF NOT FOUND THEN
        IF NOT EXISTS (SELECT 1 FROM leasehold.worker w WHERE w.id = of_worker) THEN
            PERFORM leasehold.refuse_unknown_worker(of_worker);
        END IF;
    ELSIF why IS NULL THEN
        PERFORM leasehold.changed();
        PERFORM leasehold.log_message('info', 'worker ' || of_worker || ' is no longer degraded', NULL, NULL, NULL,
                               NULL, of_worker);
    ELSE
        PERFORM leasehold.worker_event(leasehold.clock(), 'worker.degraded', of_worker, why);
        PERFORM leasehold.log_message('error', 'worker ' || of_worker || ' is degraded: ' || why, NULL, NULL, NULL,
                               NULL, of_worker, why);
    END IF;
END $$;

-- The worker stops: what it still holds is released. If the worker itself says so, or if its process is gone,
-- that happens at once; otherwise its leases go into quarantine, as for any live holder.
--
-- self_...: the process that calls; NULL: no process of ours. Only a process on the worker's machine can tell
-- whether the worker's process is gone. If that must be checked, nothing is done yet, and the result names the
-- process: the caller checks it and calls again.
CREATE FUNCTION leasehold.worker_leave(
    of_worker text, self_boot text, self_machine text, self_pid_ns bigint, self_time_ns bigint,
    self_pid bigint, self_start bigint, seen_pid bigint, seen_start bigint, seen_gone boolean,
    OUT ask_pid bigint, OUT ask_start bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now    timestamptz := leasehold.clock();
    m      leasehold.meta;
    w      leasehold.worker;
    itself boolean;
BEGIN
    PERFORM leasehold.need_given('worker', of_worker IS NOT NULL);
    SELECT * INTO w FROM leasehold.worker v WHERE v.id = of_worker FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM leasehold.refuse_unknown_worker(of_worker);
    END IF;
    itself := w.pid IS NULL
              OR (coalesce(w.pid = self_pid, false) AND w.boot IS NOT DISTINCT FROM self_boot
                  AND w.process_start IS NOT DISTINCT FROM self_start);
    IF NOT itself AND w.sessions IS NULL AND self_pid IS NOT NULL
       AND w.boot IS NOT DISTINCT FROM self_boot AND w.machine IS NOT DISTINCT FROM self_machine
       AND w.pid_ns IS NOT DISTINCT FROM self_pid_ns
       AND w.time_ns IS NOT DISTINCT FROM self_time_ns THEN
        IF seen_pid IS DISTINCT FROM w.pid OR seen_start IS DISTINCT FROM w.process_start THEN
            ask_pid := w.pid;
            ask_start := w.process_start;
            RETURN;
        END IF;
        itself := coalesce(seen_gone, false);
    END IF;
    IF w.state <> 'stopped' THEN
        UPDATE leasehold.worker v
           SET state = 'stopped', stopped_at = now, silent_at = NULL, started = NULL,
               sessions = NULL, degraded = NULL
         WHERE v.id = of_worker;
    END IF;
    SELECT * INTO m FROM leasehold.meta WHERE one;
    PERFORM leasehold.release_held_by(now, leasehold.same_server(m, now), of_worker, 0, itself,
                                      of_worker);
    IF w.state <> 'stopped' THEN
        PERFORM leasehold.worker_event(now, 'worker.stopped', of_worker);
    END IF;
END $$;

-- ---- by SQL ----

-- Heartbeat of a worker and its jobs. `every` is the interval (NULL: unchanged, at first 30 s). Returns one row
-- per job: status 0, or why the worker must stop working on it.
CREATE FUNCTION leasehold.worker_heartbeat(worker text, jobs bigint[] DEFAULT '{}',
                                           tokens bigint[] DEFAULT '{}',
                                           every interval DEFAULT NULL)
RETURNS TABLE (job bigint, status integer, message text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    refused leasehold.outcome[];
BEGIN
    IF cardinality(jobs) <> cardinality(tokens) THEN
        PERFORM leasehold.refuse(-3, format('there are %s jobs and %s tokens: one token a job is allowed',
                                            cardinality(jobs), cardinality(tokens)));
    END IF;
    -- Called first, and not within the query below: without jobs, the query would never call it.
    refused := ARRAY(SELECT o FROM leasehold.worker_heartbeat_put(worker, leasehold.ms(every), NULL, jobs, tokens,
                                                         '{}', '{}', '{}', '{}') o);
    RETURN QUERY
        SELECT j.id, coalesce(r.status, 0), r.message
          FROM unnest(jobs) WITH ORDINALITY j(id, n) LEFT JOIN unnest(refused) r ON r.n = j.n
         ORDER BY j.n;
END $$;

-- The worker stops. Its jobs are released; if it is a process, they stay in quarantine until their leases end.
CREATE FUNCTION leasehold.worker_stop(worker text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM leasehold.need_name('worker', worker);
    PERFORM leasehold.worker_leave(worker, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
END $$;
