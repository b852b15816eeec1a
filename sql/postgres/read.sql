-- Reads of one SELECT each.

-- name: job_get
SELECT j.*, t.now, coalesce(j.lease_until <= leasehold.due(t.now, m.no_expiry_before), false),
       (SELECT o.result_bytes FROM leasehold.output o WHERE o.job = j.id AND o.token = j.token)
  FROM leasehold.job j, leasehold.meta m, (SELECT leasehold.clock() AS now OFFSET 0) t
 WHERE j.id = $1;

-- name: queue_list
SELECT * FROM leasehold.queues();

-- name: policy_list
SELECT * FROM leasehold.policy ORDER BY queue, kind;

-- name: event_list
-- Types, queues and times have no index: an event is written far more often than it is searched for.
SELECT * FROM leasehold.event
 WHERE id > $1 AND id <= $2 AND ($4 IS NULL OR at >= $4) AND ($5 IS NULL OR queue = $5)
   AND ($6 IS NULL OR type = $6 OR pg_catalog.starts_with(type, $6 || '.'))
 ORDER BY id LIMIT $3;

-- name: event_last
SELECT * FROM (
    SELECT * FROM leasehold.event
     WHERE id > $1 AND id <= $2 AND ($4 IS NULL OR at >= $4) AND ($5 IS NULL OR queue = $5)
       AND ($6 IS NULL OR type = $6 OR pg_catalog.starts_with(type, $6 || '.'))
     ORDER BY id DESC LIMIT $3) e
 ORDER BY id;

-- name: event_list_job
SELECT * FROM leasehold.event
 WHERE id > $1 AND id <= $2 AND ($4 IS NULL OR at >= $4) AND ($5 IS NULL OR queue = $5)
   AND ($6 IS NULL OR type = $6 OR pg_catalog.starts_with(type, $6 || '.')) AND job = $7
 ORDER BY id LIMIT $3;

-- name: event_last_job
SELECT * FROM (
    SELECT * FROM leasehold.event
     WHERE id > $1 AND id <= $2 AND ($4 IS NULL OR at >= $4) AND ($5 IS NULL OR queue = $5)
       AND ($6 IS NULL OR type = $6 OR pg_catalog.starts_with(type, $6 || '.')) AND job = $7
     ORDER BY id DESC LIMIT $3) e
 ORDER BY id;

-- name: event_marks
-- The highest visible event; the oldest transaction in progress; and if that event is above $1, the newest
-- transaction in progress. (The snapshot's xmax is the id after the last ended transaction, which is not
-- enough. A transaction with an id holds a lock on it; the lock shows only 32 bits.)
SELECT m.id, x.oldest,
       CASE WHEN m.id > $1 THEN coalesce(
           (SELECT max(x.next - 2147483648
                       + (l.transactionid::text::bigint - x.next % 4294967296 + 6442450944) % 4294967296)
              FROM pg_locks l
             WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted), 0) END
  FROM (SELECT coalesce(max(id), 0) FROM leasehold.event) m(id),
       (SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint
          FROM pg_current_snapshot() s) x(oldest, next);

-- name: store_stats
-- One row per total. Is something due by now, and when is the next thing due? Jobs that are due and stay
-- (recovery off) must not hide what comes after them.
WITH t AS MATERIALIZED (
    SELECT c.now, leasehold.due(c.now, m.no_expiry_before) AS due,
           m.*
      FROM (SELECT leasehold.clock() AS now) c, leasehold.meta m
), workers AS (
    SELECT count(*) FILTER (WHERE w.silent_at > t.due
                              AND t.now - w.last_heartbeat_at <= leasehold.span(w.interval_ms)) AS alive,
           count(*) FILTER (WHERE w.silent_at > t.due
                              AND t.now - w.last_heartbeat_at > leasehold.span(w.interval_ms)) AS late,
           count(*) FILTER (WHERE w.state = 'dead' OR w.silent_at <= t.due) AS dead,
           count(*) FILTER (WHERE w.degraded IS NOT NULL AND w.silent_at > t.due) AS degraded
      FROM leasehold.worker w, t
)
SELECT t.uuid::text, t.schema_version, t.epoch, coalesce(leasehold.closed_words(), t.degraded), t.now,
       CASE WHEN d.something THEN t.now ELSE d.next_at END,
       (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
         WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relkind = 'r'),
       (SELECT position FROM leasehold.maintenance_task WHERE name = 'fold')
       + (SELECT count(DISTINCT c.by::text) FROM (SELECT xmin AS by FROM leasehold.delta WHERE act <> 'n' UNION ALL
                                                  SELECT xmin FROM leasehold.change) c),
       w.alive, w.late, w.dead, w.degraded, n.key, n.value
  FROM t CROSS JOIN workers w
 CROSS JOIN leasehold.falls_due(t.now) d
  LEFT JOIN (SELECT key, sum(value)::bigint AS value FROM leasehold.total GROUP BY key) n ON true;
