-- Schedules.

-- name: schedule_due
SELECT name FROM lh_schedule WHERE next_at <= :wall ORDER BY next_at LIMIT :n;

-- name: schedule_get
SELECT * FROM lh_schedule WHERE name = :name;

-- name: schedule_list
SELECT * FROM lh_schedule ORDER BY name;

-- name: schedule_of_queue
SELECT name FROM lh_schedule WHERE queue = :queue ORDER BY name LIMIT 1;

-- name: schedule_put
INSERT INTO lh_schedule(name, queue, cron, tz, catch_up, done_until, next_at, created_at, kind,
                        priority, key, max_attempts, lease_ms, expires_ms, backoff_ms,
                        backoff_cap_ms, payload_sum, payload)
VALUES (:name, :queue, :cron, :tz, :catch_up, :done_until, :next_at, :now, :kind, :priority, :key,
        :max_attempts, :lease_ms, :expires_ms, :backoff_ms, :backoff_cap_ms, :payload_sum, :payload)
    ON CONFLICT DO UPDATE
   SET queue = excluded.queue, cron = excluded.cron, tz = excluded.tz,
       catch_up = excluded.catch_up, done_until = excluded.done_until,
       next_at = excluded.next_at, error = NULL, kind = excluded.kind,
       priority = excluded.priority, key = excluded.key, max_attempts = excluded.max_attempts,
       lease_ms = excluded.lease_ms, expires_ms = excluded.expires_ms,
       backoff_ms = excluded.backoff_ms, backoff_cap_ms = excluded.backoff_cap_ms,
       payload_sum = excluded.payload_sum, payload = excluded.payload, row_sum = lh_row_sum();

-- name: schedule_advance
-- Compare-and-set: of all processes that found it due, one moves it forward and enqueues.
UPDATE lh_schedule SET done_until = :upto, next_at = :next_at
 WHERE name = :name AND done_until = :done_until;

-- name: schedule_result
-- The result of a run.
UPDATE lh_schedule
   SET last_at = coalesce(:last_at, last_at), last_job = coalesce(:last_job, last_job),
       error = :error
 WHERE name = :name;

-- name: schedule_put_off
-- It is unknown when the schedule is due. No run is done, and it is checked again later.
UPDATE lh_schedule SET next_at = :next_at, error = :error WHERE name = :name;

-- name: schedule_rewind
-- The clock was set back by more than a day. It was wrong before, and nobody wants to wait until
-- then. Within a day no instant comes twice.
UPDATE lh_schedule SET done_until = :wall, next_at = :wall WHERE done_until > :wall + 86400000;

-- name: schedule_delete
DELETE FROM lh_schedule WHERE name = :name;
