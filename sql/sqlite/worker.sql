-- Workers.

-- name: worker_register
INSERT INTO lh_worker(id, label, host, machine, boot, pid_ns, time_ns, pid, process_start, queues,
                      version, interval_ms, multiplier, registered_at, last_heartbeat_at, silent_at, started)
VALUES (:id, :label, :host, :machine, :boot, :pid_ns, :time_ns, :pid, :process_start, :queues,
        :version, :interval_ms, :multiplier, :now, :now, :now + :interval_ms * :multiplier, :started)
    ON CONFLICT(id) DO UPDATE
   SET label = excluded.label, host = excluded.host, machine = excluded.machine,
       boot = excluded.boot, pid_ns = excluded.pid_ns, time_ns = excluded.time_ns, pid = excluded.pid,
       process_start = excluded.process_start, queues = excluded.queues,
       version = excluded.version, state = 'alive', interval_ms = excluded.interval_ms,
       multiplier = excluded.multiplier, registered_at = excluded.registered_at,
       last_heartbeat_at = excluded.last_heartbeat_at, stopped_at = NULL,
       silent_at = excluded.silent_at, started = excluded.started, sessions = NULL,
       degraded = NULL, uncleaned = NULL, stuck = 0;

-- name: worker_heartbeat
UPDATE lh_worker SET last_heartbeat_at = :now, state = 'alive', stopped_at = NULL,
       interval_ms = coalesce(:interval_ms, interval_ms),
       silent_at = :now + coalesce(:interval_ms, interval_ms) * multiplier, uncleaned = NULL,
       stuck = 0
 WHERE id = :id;

-- name: worker_claims
-- A claim is a sign of life, for a worker that waited long and had no heartbeat to send. It also
-- revives a worker that was marked dead. Nothing is written for a worker that sends heartbeats.
UPDATE lh_worker
   SET last_heartbeat_at = :now, state = 'alive', silent_at = :now + interval_ms * multiplier,
       uncleaned = NULL, stuck = 0
 WHERE id = :id AND pid IS NOT NULL AND state <> 'stopped'
   AND (silent_at IS NULL OR last_heartbeat_at < :now - interval_ms / 2);

-- name: worker_stop
UPDATE lh_worker SET state = 'stopped', stopped_at = :now, silent_at = NULL, started = NULL,
       sessions = NULL, degraded = NULL
 WHERE id = :id AND state <> 'stopped';

-- name: worker_other_process
-- The registered process, if it is another one: pid, start time, and whether it is on this machine
-- and had nothing running in sessions.
SELECT pid, process_start,
       boot IS :boot AND machine IS :machine AND pid_ns IS :pid_ns AND time_ns IS :time_ns
       AND sessions IS NULL
  FROM lh_worker
 WHERE id = :id AND pid IS NOT NULL AND NOT (pid = :pid AND process_start IS :start AND boot IS :boot);

-- name: worker_started
UPDATE lh_worker SET started = :started WHERE id = :id;

-- name: worker_sessions
UPDATE lh_worker SET sessions = :sessions WHERE id = :id;

-- name: worker_is_degraded
SELECT degraded IS NOT NULL FROM lh_worker WHERE id = :id;

-- name: worker_degraded
UPDATE lh_worker SET degraded = :why WHERE id = :id;

-- name: worker_tells
SELECT started IS NOT NULL FROM lh_worker WHERE id = :id;

-- name: worker_start_list
SELECT s.value ->> 0 AS job, s.value ->> 1 FROM lh_worker w, json_each(w.started) s
 WHERE w.id = :id AND w.started IS NOT NULL ORDER BY job;

-- name: worker_known
SELECT state FROM lh_worker WHERE id = :id;

-- name: worker_judge
-- Every worker that counts as alive, with what can prove the death of its process.
SELECT id, state, machine, boot, pid_ns, pid, process_start, interval_ms, multiplier,
       last_heartbeat_at, sessions, time_ns
  FROM lh_worker WHERE silent_at IS NOT NULL;

-- name: worker_silent
SELECT id, state, machine, boot, pid_ns, pid, process_start, interval_ms, multiplier,
       last_heartbeat_at, sessions, time_ns
  FROM lh_worker WHERE silent_at IS NOT NULL AND silent_at <= :now LIMIT :n;

-- name: worker_mark_dead
-- Guarded by the heartbeat by which the worker was checked: a worker that has sent one since is not
-- dead. If its death was proven, also guarded by the sessions that were checked, because it may
-- have started more before it died. A worker without a process on this machine loses its leases
-- only by time; what other workers held is freed.
UPDATE lh_worker
   SET state = 'dead', silent_at = NULL, uncleaned = iif(pid IS NULL, NULL, :what)
 WHERE id = :id AND silent_at IS NOT NULL AND last_heartbeat_at = :last_heartbeat_at
   AND (:proven OR silent_at <= :now)
   AND (NOT :proven OR silent_at <= :now OR sessions IS :sessions);

-- name: worker_late
UPDATE lh_worker SET state = 'late'
 WHERE id = :id AND state = 'alive' AND last_heartbeat_at = :last_heartbeat_at;

-- name: worker_uncleaned
-- Why a dead worker is dead, while its jobs are being recovered.
SELECT uncleaned FROM lh_worker WHERE id = :id AND uncleaned IS NOT NULL;

-- name: worker_to_clean
-- (The column stuck makes SQLite use the index, and puts workers with something to free first.)
SELECT id FROM lh_worker WHERE uncleaned IS NOT NULL AND stuck >= 0 ORDER BY stuck;

-- name: worker_cleaned
-- Everything that it held is free. If the worker returns, it still reports what it starts.
UPDATE lh_worker SET uncleaned = NULL, stuck = 0, started = iif(started IS NULL, NULL, '[]')
 WHERE id = :id AND uncleaned IS NOT NULL;

-- name: worker_stuck
-- What it still holds stays on purpose (recovery off), so claims need not check it again.
UPDATE lh_worker SET stuck = 1 WHERE id = :id AND stuck = 0;

-- name: worker_holds
SELECT queue, kind FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running' AND worker = :id;

-- name: worker_list
SELECT id, label, host, queues, version, state, pid, interval_ms, multiplier, registered_at,
       last_heartbeat_at, stopped_at, coalesce(held.n, 0), degraded
  FROM lh_worker
  LEFT JOIN (SELECT worker, count(*) AS n FROM lh_job
              WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
              GROUP BY worker) held ON held.worker = id
 ORDER BY id;

-- name: worker_counts
SELECT coalesce(sum(silent_at IS NOT NULL AND :now - last_heartbeat_at <= interval_ms), 0),
       coalesce(sum(silent_at IS NOT NULL AND :now - last_heartbeat_at > interval_ms
                    AND silent_at > :now), 0),
       coalesce(sum(state = 'dead' OR (silent_at IS NOT NULL AND silent_at <= :now)), 0),
       coalesce(sum(degraded IS NOT NULL AND silent_at > :now), 0)
  FROM lh_worker;

-- name: worker_prune
-- A row is removed only after the jobs that name it.
DELETE FROM lh_worker
 WHERE ((state = 'stopped' AND stopped_at < :before)
        OR (state = 'dead' AND uncleaned IS NULL AND last_heartbeat_at < :before))
   AND id NOT IN (SELECT worker FROM lh_job
                   WHERE state <> 'pending' AND state <> 'completed' AND state = 'running');
