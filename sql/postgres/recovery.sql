-- Recovery: workers to check, reclaimable jobs, a batch of a run, and the reports.

-- name: worker_judge
-- All workers that count as alive, with what can prove the death of a process; and the server's clock with the
-- sum of its known jumps, also if there is no worker.
WITH t AS MATERIALIZED (
    SELECT leasehold.clock() AS now, m.jumped_ms FROM leasehold.meta m)
SELECT t.now, t.jumped_ms, w.id, w.state, w.machine, w.boot, w.pid_ns, w.time_ns, w.pid,
       w.process_start, w.interval_ms, w.multiplier, w.last_heartbeat_at, w.sessions
  FROM t LEFT JOIN leasehold.worker w ON w.silent_at IS NOT NULL;

-- name: clock_jumped
SELECT leasehold.clock_jumped($1, $2, $3);

-- name: recover_batch
SELECT * FROM leasehold.recover_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
                                      $16, $17, $18, $19, $20);

-- name: recount
SELECT leasehold.recount();

-- name: stale_jobs
SELECT * FROM leasehold.stale_jobs($1, $2, $3, $4, $5, $6);

-- name: stale_rest
SELECT leases, unclean, degraded FROM leasehold.stale_rest($1, $2, $3, $4, $5);

-- name: stale_rows
-- What a recovery needs about these jobs: their rows, what is known about their workers, and whether a worker
-- had begun them.
SELECT j.id, j.queue, j.kind, j.worker, j.attempt, j.max_attempts, j.recoveries, j.token, j.lease_until,
       j.held_ms, j.started_at, j.last_heartbeat_at, w.uncleaned,
       w.started IS NOT NULL AND NOT EXISTS (
           SELECT 1 FROM json_array_elements(w.started::json) s
            WHERE (s ->> 0)::bigint = j.id AND (s ->> 1)::bigint = j.token)
  FROM unnest($1) WITH ORDINALITY i(id, n)
  JOIN leasehold.job j ON j.id = i.id AND j.worker IS NOT NULL
  LEFT JOIN leasehold.worker w ON w.id = j.worker
 ORDER BY i.n;

-- name: report_get
SELECT * FROM leasehold.report WHERE id = $1;

-- name: report_last
SELECT * FROM leasehold.report ORDER BY id DESC LIMIT $1;

-- name: report_events
-- The findings of a report in order. The kind comes from the job, while it exists.
SELECT e.type, e.job, e.queue, e.worker, e.reason, e.attempt, e.max_attempts, e.action,
       (e.data::json ->> 'last_heartbeat')::bigint,
       (SELECT j.kind FROM leasehold.job j WHERE j.id = e.job)
  FROM leasehold.event e
 WHERE e.report = $1 ORDER BY e.id;
