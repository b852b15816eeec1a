-- Workers.

-- name: worker_register
SELECT leasehold.worker_register($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
                                 $16, $17);

-- name: worker_heartbeat
SELECT * FROM leasehold.worker_heartbeat_put($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: worker_leave
SELECT * FROM leasehold.worker_leave($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: worker_started
SELECT leasehold.worker_started($1, $2, $3);

-- name: worker_sessions
SELECT leasehold.worker_sessions($1, $2, $3);

-- name: worker_degraded
SELECT leasehold.worker_degraded($1, $2);

-- name: worker_list
-- The state as it is now; the row has only what was last reported.
WITH t AS MATERIALIZED (
    SELECT c.now, leasehold.due(c.now, m.no_expiry_before) AS due
      FROM (SELECT leasehold.clock() AS now) c, leasehold.meta m)
SELECT w.id, w.label, w.host, w.queues, w.version,
       CASE WHEN w.state = 'dead' OR w.state = 'stopped' THEN w.state
            WHEN w.silent_at <= t.due THEN 'dead'
            WHEN t.now - w.last_heartbeat_at > leasehold.span(w.interval_ms) THEN 'late'
            ELSE 'alive' END,
       w.state = 'dead', w.pid, w.interval_ms, w.multiplier, w.registered_at, w.last_heartbeat_at,
       w.stopped_at, greatest(leasehold.ms(t.now - w.last_heartbeat_at), 0), w.degraded,
       coalesce(held.n, 0)
  FROM leasehold.worker w CROSS JOIN t
  LEFT JOIN (SELECT worker, count(*) AS n FROM leasehold.job WHERE state = 'running'
              GROUP BY worker) held ON held.worker = w.id
 ORDER BY w.id;
