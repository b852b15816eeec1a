-- Queues, policies and the counts per queue.

-- name: queue_tally
-- Once per transaction and queue, within the current minute.
UPDATE lh_queue
   SET scheduled = scheduled + :scheduled, pending = pending + :pending,
       running = running + :running, completed = completed + :completed,
       failed = failed + :failed, cancelled = cancelled + :cancelled,
       m_enqueued = m_enqueued + :m_enqueued, m_claimed = m_claimed + :m_claimed,
       m_completed = m_completed + :m_completed, m_failed = m_failed + :m_failed,
       m_recovered = m_recovered + :m_recovered, m_ended = m_ended + :m_ended,
       m_wait_ms = m_wait_ms + :m_wait_ms, m_run_ms = m_run_ms + :m_run_ms
 WHERE queue = :queue AND minute = :minute;

-- name: queue_roll
-- The minute is over: move its counts to the history.
INSERT INTO lh_rollup
SELECT minute, queue, m_enqueued, m_claimed, m_completed, m_failed, m_recovered, m_ended,
       m_wait_ms, m_run_ms
  FROM lh_queue WHERE queue = :queue AND minute > 0
    ON CONFLICT DO UPDATE
   SET enqueued = enqueued + excluded.enqueued, claimed = claimed + excluded.claimed,
       completed = completed + excluded.completed, failed = failed + excluded.failed,
       recovered = recovered + excluded.recovered, ended = ended + excluded.ended,
       wait_ms = wait_ms + excluded.wait_ms, run_ms = run_ms + excluded.run_ms;

-- name: queue_minute
INSERT INTO lh_queue(queue, minute) VALUES (:queue, :minute)
    ON CONFLICT DO UPDATE
   SET minute = excluded.minute, m_enqueued = 0, m_claimed = 0, m_completed = 0, m_failed = 0,
       m_recovered = 0, m_ended = 0, m_wait_ms = 0, m_run_ms = 0;

-- name: queue_running_set
-- Correct a wrong count.
UPDATE lh_queue SET running = running + :drift WHERE queue = :queue;

-- name: queue_bucket
SELECT bucket, bucket_at FROM lh_queue WHERE queue = :queue;

-- name: queue_bucket_set
INSERT INTO lh_queue(queue, bucket, bucket_at) VALUES (:queue, :bucket, :at)
    ON CONFLICT DO UPDATE SET bucket = excluded.bucket, bucket_at = excluded.bucket_at;

-- name: queue_pause
INSERT INTO lh_queue(queue, paused) VALUES (:queue, 1)
    ON CONFLICT DO UPDATE SET paused = 1 WHERE paused = 0;

-- name: queue_resume
UPDATE lh_queue SET paused = 0 WHERE queue = :queue AND paused = 1;

-- name: queue_counts
SELECT scheduled, pending, running, completed, failed, cancelled FROM lh_queue WHERE queue = :queue;

-- name: queue_quarantine
SELECT count(*) FROM lh_quarantine WHERE queue = :queue AND until > :now;

-- name: queue_delete
DELETE FROM lh_queue WHERE queue = :queue;

-- name: queue_delete_rollups
DELETE FROM lh_rollup WHERE queue = :queue;

-- name: queue_delete_policies
DELETE FROM lh_policy WHERE queue = :queue;

-- name: queue_delete_quarantine
-- Quarantines whose deadline has passed and which maintenance has not removed yet.
DELETE FROM lh_quarantine WHERE queue = :queue;

-- name: queue_paused
SELECT queue FROM lh_queue WHERE paused;

-- name: queue_list
SELECT q.queue, q.paused, q.scheduled, q.pending, q.running, q.completed, q.failed, q.cancelled,
       iif(q.minute >= :since, q.m_enqueued, 0) + coalesce(r.enqueued, 0), iif(q.minute >= :since, q.m_claimed, 0) + coalesce(r.claimed, 0),
       iif(q.minute >= :since, q.m_completed, 0) + coalesce(r.completed, 0), iif(q.minute >= :since, q.m_failed, 0) + coalesce(r.failed, 0),
       iif(q.minute >= :since, q.m_recovered, 0) + coalesce(r.recovered, 0), iif(q.minute >= :since, q.m_ended, 0) + coalesce(r.ended, 0),
       iif(q.minute >= :since, q.m_wait_ms, 0) + coalesce(r.wait_ms, 0), iif(q.minute >= :since, q.m_run_ms, 0) + coalesce(r.run_ms, 0)
  FROM lh_queue q
  LEFT JOIN (SELECT queue, sum(enqueued) AS enqueued, sum(claimed) AS claimed,
                    sum(completed) AS completed, sum(failed) AS failed,
                    sum(recovered) AS recovered, sum(ended) AS ended, sum(wait_ms) AS wait_ms,
                    sum(run_ms) AS run_ms
               FROM lh_rollup WHERE minute >= :since GROUP BY queue) r ON r.queue = q.queue
 WHERE q.queue <> '*' ORDER BY q.queue;

-- name: queue_oldest
-- The oldest pending job. Ids rise with age, so it is the first job of one of the priorities. The
-- scan jumps from priority to priority.
WITH RECURSIVE first(priority, id) AS (
    SELECT * FROM (SELECT priority, id FROM lh_job WHERE state = 'pending' AND queue = :queue
                    ORDER BY priority DESC, id LIMIT 1)
    UNION ALL
    SELECT (SELECT j.priority FROM lh_job j WHERE j.state = 'pending' AND j.queue = :queue
               AND j.priority < first.priority ORDER BY j.priority DESC LIMIT 1),
           (SELECT j.id FROM lh_job j WHERE j.state = 'pending' AND j.queue = :queue
               AND j.priority < first.priority ORDER BY j.priority DESC, j.id LIMIT 1)
      FROM first WHERE first.priority IS NOT NULL)
SELECT created_at FROM lh_job WHERE id = (SELECT min(id) FROM first);

-- name: rollup_prune
DELETE FROM lh_rollup WHERE (minute, queue) IN
 (SELECT minute, queue FROM lh_rollup WHERE minute < :before LIMIT :n);

-- name: policy_list
SELECT * FROM lh_policy ORDER BY queue, kind;

-- name: policy_put
INSERT INTO lh_policy(queue, kind, lease_ms, max_attempts, max_recoveries, action, recovery,
                      recovery_backoff_ms, backoff_ms, backoff_cap_ms, timeout_ms, exclusive, audit,
                      retention_ms, retention_failed_ms, max_payload, rate_n, rate_per_ms, concurrency,
                      max_output, retention_output_ms)
VALUES
 (:queue, :kind, :lease_ms, :max_attempts, :max_recoveries, :action, :recovery,
  :recovery_backoff_ms, :backoff_ms, :backoff_cap_ms, :timeout_ms, :exclusive, :audit,
  :retention_ms, :retention_failed_ms, :max_payload, :rate_n, :rate_per_ms, :concurrency,
  :max_output, :retention_output_ms)
    ON CONFLICT DO UPDATE SET
  lease_ms = excluded.lease_ms, max_attempts = excluded.max_attempts,
  max_recoveries = excluded.max_recoveries, action = excluded.action, recovery = excluded.recovery,
  recovery_backoff_ms = excluded.recovery_backoff_ms, backoff_ms = excluded.backoff_ms,
  backoff_cap_ms = excluded.backoff_cap_ms, timeout_ms = excluded.timeout_ms,
  exclusive = excluded.exclusive, audit = excluded.audit, retention_ms = excluded.retention_ms,
  retention_failed_ms = excluded.retention_failed_ms, max_payload = excluded.max_payload,
  rate_n = excluded.rate_n, rate_per_ms = excluded.rate_per_ms, concurrency = excluded.concurrency,
  max_output = excluded.max_output, retention_output_ms = excluded.retention_output_ms,
  row_sum = lh_row_sum();

-- name: policy_delete
DELETE FROM lh_policy WHERE queue = :queue AND kind = :kind;

-- name: scope_get
SELECT ttl_ms FROM lh_scope WHERE scope = :scope;

-- name: scope_set
-- Changes nothing if it is set already.
INSERT INTO lh_scope(scope, ttl_ms) VALUES (:scope, :ttl_ms)
    ON CONFLICT DO UPDATE SET ttl_ms = excluded.ttl_ms WHERE ttl_ms <> excluded.ttl_ms;

-- name: scope_delete
DELETE FROM lh_scope WHERE scope = :scope;
