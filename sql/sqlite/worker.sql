-- Workers.

-- name: worker_register
INSERT INTO lh_worker(id, label, host, machine, boot, pid_ns, pid, process_start, queues, version,
                      interval_ms, multiplier, registered_at, last_heartbeat_at)
VALUES (:id, :label, :host, :machine, :boot, :pid_ns, :pid, :process_start, :queues, :version,
        :interval_ms, :multiplier, :now, :now)
    ON CONFLICT(id) DO UPDATE
   SET label = excluded.label, host = excluded.host, machine = excluded.machine,
       boot = excluded.boot, pid_ns = excluded.pid_ns, pid = excluded.pid,
       process_start = excluded.process_start, queues = excluded.queues,
       version = excluded.version, state = 'alive', interval_ms = excluded.interval_ms,
       multiplier = excluded.multiplier, registered_at = excluded.registered_at,
       last_heartbeat_at = excluded.last_heartbeat_at, stopped_at = NULL;

-- name: worker_beat
UPDATE lh_worker SET last_heartbeat_at = :now, state = 'alive', stopped_at = NULL,
       interval_ms = coalesce(:interval_ms, interval_ms)
 WHERE id = :id;

-- name: worker_stop
UPDATE lh_worker SET state = 'stopped', stopped_at = :now WHERE id = :id AND state <> 'stopped';

-- name: worker_known
SELECT state FROM lh_worker WHERE id = :id;

-- name: worker_list
SELECT id, label, host, queues, version, state, pid, interval_ms, multiplier, registered_at,
       last_heartbeat_at, stopped_at, coalesce(held.n, 0)
  FROM lh_worker
  LEFT JOIN (SELECT worker, count(*) AS n FROM lh_job
              WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
              GROUP BY worker) held ON held.worker = id
 ORDER BY id;

-- name: worker_counts
SELECT coalesce(sum(state = 'alive' AND :now - last_heartbeat_at <= interval_ms), 0),
       coalesce(sum(state = 'alive' AND :now - last_heartbeat_at > interval_ms
                    AND :now - last_heartbeat_at < multiplier * interval_ms), 0),
       coalesce(sum(state = 'dead' OR (state = 'alive'
                    AND :now - last_heartbeat_at >= multiplier * interval_ms)), 0)
  FROM lh_worker;

-- name: worker_prune
DELETE FROM lh_worker
 WHERE state = 'stopped' AND stopped_at < :before;
