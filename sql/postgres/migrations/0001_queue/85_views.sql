-- Views for people and dashboards, with durations in seconds. They hide nothing: a role that may read them may
-- read the tables (90_access.sql), so none is a security barrier.
--
-- The clock is read once per query, not for every row: hence MATERIALIZED.

-- How close each running job is to being reclaimed.
CREATE VIEW leasehold.stale_monitor AS
WITH c AS MATERIALIZED (SELECT leasehold.clock() AS now)
SELECT job_id, queue, kind, worker, attempt, started_at, last_heartbeat_at, lease_until,
       age_ms / 1000.0::double precision AS age_s, term_ms / 1000.0::double precision AS lease_s,
       age_ms / term_ms::double precision AS ratio,
       CASE WHEN age_ms >= term_ms THEN 'STALE' WHEN age_ms >= 0.8 * term_ms THEN 'WARNING'
            ELSE 'OK' END AS health
  FROM (SELECT j.id AS job_id, j.queue, j.kind, j.worker, j.attempt, j.started_at,
               j.last_heartbeat_at, j.lease_until,
               leasehold.ms(c.now - greatest(j.started_at, j.last_heartbeat_at)) AS age_ms,
               -- length of the current lease: a heartbeat may have asked for another one than the claim did
               nullif(leasehold.ms(j.lease_until - greatest(j.started_at, j.last_heartbeat_at)), 0)
                   AS term_ms
          FROM leasehold.job j, c
         WHERE j.state = 'running') held;

-- Jobs that run beyond twice their lease, where no policy has recovery off and expiry is not suspended: claims
-- and recoveries should have reclaimed them. Must be empty wherever workers claim.
CREATE VIEW leasehold.stale_validation AS
SELECT s.* FROM leasehold.stale_monitor s
 WHERE s.ratio >= 2
   AND s.lease_until <= (SELECT leasehold.due(leasehold.clock(), m.no_expiry_before) FROM leasehold.meta m)
   AND coalesce((SELECT p.recovery FROM leasehold.policy p
                  WHERE p.queue IN (s.queue, '*') AND p.kind IN (coalesce(s.kind, '*'), '*')
                    AND p.recovery IS NOT NULL
                  ORDER BY p.queue = '*', p.kind = '*' LIMIT 1), true);

-- Every job that was reclaimed, as long as events are kept.
CREATE VIEW leasehold.recovery_history AS
SELECT job AS job_id, at, action, attempt, worker AS previous_worker, reason
  FROM leasehold.event WHERE action IS NOT NULL AND job IS NOT NULL;

-- State of a job at this moment, from its columns. While expiry is suspended (the clock jumped, another server
-- took over), no lease has expired.
CREATE VIEW leasehold.job_state AS
WITH c AS MATERIALIZED (
    SELECT t.now, leasehold.due(t.now, m.no_expiry_before) AS due
      FROM (SELECT leasehold.clock() AS now OFFSET 0) t, leasehold.meta m)
SELECT j.id AS job_id,
       CASE WHEN j.state = 'running'
            THEN CASE WHEN j.lease_until <= c.due THEN 'EXPIRED' ELSE 'RUNNING' END
            WHEN j.state = 'pending' OR (j.state = 'scheduled' AND j.run_at <= c.now)
            THEN 'AVAILABLE'
            ELSE upper(j.state) END AS derived_state
  FROM leasehold.job j, c;

-- The output of each run of a job, as text.
CREATE VIEW leasehold.job_output AS
SELECT o.job AS job_id, o.attempt, o.token, o.at, o.stdout_bytes,
       leasehold.stream_text(o.stdout_bytes, o.stdout_head, o.stdout_tail) AS stdout, o.stderr_bytes,
       leasehold.stream_text(o.stderr_bytes, o.stderr_head, o.stderr_tail) AS stderr, o.result_bytes
  FROM leasehold.output o;

CREATE VIEW leasehold.worker_health AS
WITH c AS MATERIALIZED (SELECT leasehold.clock() AS now)
SELECT w.id AS worker, w.label, w.host, w.pid,
       CASE WHEN w.state = 'dead' OR w.state = 'stopped' THEN w.state
            WHEN w.silent_ms >= w.multiplier * w.interval_ms THEN 'dead'
            WHEN w.silent_ms > w.interval_ms THEN 'late' ELSE 'alive' END AS state,
       w.last_heartbeat_at, w.silent_ms / 1000.0::double precision AS silent_s,
       w.interval_ms / 1000.0::double precision AS interval_s,
       w.multiplier * w.interval_ms / 1000.0::double precision AS limit_s,
       coalesce(r.running, 0) AS running, w.degraded
  FROM (SELECT s.*, greatest(leasehold.ms(c.now - s.last_heartbeat_at), 0) AS silent_ms
          FROM leasehold.worker s, c) w
  LEFT JOIN (SELECT j.worker, count(*) AS running FROM leasehold.job j
              WHERE j.state = 'running' GROUP BY j.worker) r ON r.worker = w.id;
