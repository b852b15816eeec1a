-- Jobs: enqueue, claim, and the acts of a holder.

-- name: job_insert
-- The caller gives the id, because the checksum of the row covers it: sq_new_row_sum().
INSERT INTO lh_job(id, queue, kind, state, priority, max_attempts, run_at, created_at,
                   state_changed_at, key, expires_at, lease_ms, backoff_ms, backoff_cap_ms, name_sum,
                   payload_sum, payload, state_sum)
VALUES (:id, :queue, :kind, :state, :priority, :max_attempts, :run_at, :now, :now,
        :key, :expires_at, :lease_ms, :backoff_ms, :backoff_cap_ms, :name_sum, :payload_sum, :payload,
:state_sum);

-- name: job_last_id
SELECT seq FROM sqlite_sequence WHERE name = 'lh_job';

-- name: job_sign
-- A job from a plain INSERT gets the library's checksums with its first claim.
UPDATE lh_job SET name_sum = :name_sum, payload_sum = :payload_sum WHERE id = :id;

-- name: job_sum
-- The row has its final values: compute its checksum again.
UPDATE lh_job SET state_sum = lh_job_sum() WHERE id = :id;

-- name: recount_sums
UPDATE lh_job SET state_sum = lh_job_sum() WHERE state_sum = 0;

-- name: job_by_key
SELECT id, state FROM lh_job
 WHERE queue = :queue AND key = :key
   AND (state = 'pending' OR state = 'running' OR state = 'scheduled');

-- name: job_get
SELECT * FROM lh_job WHERE id = :id;

-- name: job_next
-- Best first: by priority, then by age.
SELECT * FROM lh_job
 WHERE state = 'pending' AND queue = :queue
 ORDER BY priority DESC, id LIMIT :n;

-- name: job_next_of_kind
-- The best job of one kind. A claim of several kinds chooses from the best of each.
SELECT priority, id FROM lh_job
 WHERE state = 'pending' AND queue = :queue AND kind = :kind
 ORDER BY priority DESC, id LIMIT :n;

-- name: job_claim
-- The new token fences off every earlier holder: its writes are refused from now on.
UPDATE lh_job
   SET state = 'running', token = :token, attempt = attempt + 1, max_attempts = :max_attempts,
       worker = :worker, lease_until = :lease_until, held_ms = :held_ms,
       started_at = :now, state_changed_at = :now, finished_at = NULL,
       stage = NULL, progress = NULL
 WHERE id = :id AND state = 'pending';

-- name: job_heartbeat
-- The guard is in the write: a lease that has ended or has another holder is not extended.
UPDATE lh_job
   SET lease_until = :now + coalesce(:lease_ms, held_ms), last_heartbeat_at = :now,
       progress = coalesce(:progress, progress), stage = coalesce(:stage, stage),
       checkpoint = coalesce(:checkpoint, checkpoint)
 WHERE id = :id AND token = :token AND state = 'running' AND lease_until > :now;

-- name: job_complete
-- Compares the token, not the clock: a slow worker may finish while no other worker has the job.
UPDATE lh_job
   SET state = 'completed', lease_until = NULL, worker = NULL, result = :result,
       finished_at = :now, state_changed_at = max(:now, coalesce(started_at, 0))
 WHERE id = :id AND token = :token AND state = 'running';

-- name: job_held
-- What an act of a holder needs to know if it still is the holder. RETURNING would make the UPDATE
-- twice as expensive.
SELECT queue, kind, attempt, max_attempts, started_at, backoff_ms, backoff_cap_ms, worker,
       lease_until
  FROM lh_job WHERE id = :id AND token = :token AND state = 'running';

-- name: job_end_fail
-- (Here and below: if the clock was set back, a job must not change before it was started.)
UPDATE lh_job
   SET state = :state, lease_until = NULL, worker = NULL, last_error = :error, run_at = :run_at,
       finished_at = :finished_at, state_changed_at = max(:now, coalesce(started_at, 0))
 WHERE id = :id AND token = :token AND state = 'running';

-- name: job_release
-- A release is no failure: the attempt is given back. If an operator releases the job, the token
-- rises.
UPDATE lh_job
   SET state = :state, lease_until = NULL, worker = NULL, started_at = NULL,
       attempt = attempt - 1, run_at = :run_at, state_changed_at = :now,
       token = :new_token
 WHERE id = :id AND token = :token AND state = 'running';

-- name: job_cancel
-- The new token makes a running holder learn of it at its next heartbeat.
UPDATE lh_job
   SET state = 'cancelled', lease_until = NULL, worker = NULL, token = :new_token,
       last_error = :reason,
       finished_at = :now, state_changed_at = max(:now, coalesce(started_at, 0))
 WHERE id = :id AND token = :token AND state IN ('scheduled', 'pending', 'running');

-- name: job_retry
UPDATE lh_job
   SET state = :state, run_at = :run_at, attempt = 0, recoveries = 0, started_at = NULL,
       finished_at = NULL, result = NULL, token = :new_token,
       expires_at = NULL, state_changed_at = :now
 WHERE id = :id AND state IN ('failed', 'cancelled', 'completed');

-- name: job_delete
-- The trigger lh_job_delete subtracts it from the counts.
DELETE FROM lh_job WHERE id = :id AND state <> 'running';

-- name: job_reschedule
UPDATE lh_job SET state = :state, run_at = :run_at, state_changed_at = max(:now, coalesce(started_at, 0))
 WHERE id = :id AND state IN ('scheduled', 'pending');

-- name: quarantine_put
INSERT INTO lh_quarantine(queue, job, token, until) VALUES (:queue, :job, :token, :until)
    ON CONFLICT DO UPDATE SET token = excluded.token, until = excluded.until;

-- name: quarantine_get
SELECT token, until FROM lh_quarantine WHERE queue = :queue AND job = :job;

-- name: quarantine_of_job
-- The queue of a quarantine whose job was deleted.
SELECT queue FROM lh_quarantine WHERE job = :job;

-- name: quarantine_end
DELETE FROM lh_quarantine WHERE queue = :queue AND job = :job;

-- name: quarantine_prune
DELETE FROM lh_quarantine WHERE until <= :now;

-- name: job_leave_quarantine
-- The holder of a revoked lease has answered: the job may be claimed now.
UPDATE lh_job SET run_at = :wall WHERE id = :id AND state = 'scheduled' AND run_at = :until;

-- name: job_of_worker
-- What a worker holds. The index contains the worker, so this scans running jobs without reading
-- their rows.
SELECT id, token FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
   AND worker = :worker;

-- name: queue_slots
-- The slots in use, by the count. Slots of revoked leases are not free yet.
SELECT running + (SELECT count(*) FROM lh_quarantine WHERE queue = :queue AND until > :now)
  FROM lh_queue WHERE queue = :queue;

-- name: job_slots
-- The same, counted over the running jobs, when the count says that the queue is full.
SELECT (SELECT count(*) FROM lh_job
         WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
           AND queue = :queue)
     + (SELECT count(*) FROM lh_quarantine WHERE queue = :queue AND until > :now);

-- name: job_retry_waits
-- A job with a token waits for a retry (or is in quarantine); a job without one was enqueued for
-- later. Retries are scheduled soon, so the scan by time finds one early. Only the answer "none"
-- reads all scheduled jobs.
SELECT 1 FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'scheduled'
   AND lease_until IS NULL AND token > 0
   AND queue = :queue AND (:kind IS NULL OR kind = :kind)
   AND NOT EXISTS (SELECT 1 FROM lh_queue q WHERE q.queue = :queue AND q.paused)
 ORDER BY run_at LIMIT 1;

-- name: job_limited
-- After a claim that got nothing: jobs that are still pending wait for a limit of their queue.
SELECT 1 FROM lh_job
 WHERE state = 'pending' AND queue = :queue
   AND NOT EXISTS (SELECT 1 FROM lh_queue q WHERE q.queue = :queue AND q.paused)
 ORDER BY priority DESC, id LIMIT 1;

-- name: job_limited_of_kind
SELECT 1 FROM lh_job
 WHERE state = 'pending' AND queue = :queue AND kind = :kind
   AND NOT EXISTS (SELECT 1 FROM lh_queue q WHERE q.queue = :queue AND q.paused)
 ORDER BY priority DESC, id LIMIT 1;

-- name: job_due
SELECT id, queue, kind, state FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'scheduled'
   AND lease_until IS NULL AND run_at <= :wall ORDER BY run_at LIMIT :n;

-- name: job_promote
UPDATE lh_job SET state = 'pending', state_changed_at = max(:now, coalesce(started_at, 0))
 WHERE id = :id AND state = 'scheduled';

-- name: expiry_put
INSERT INTO lh_expiry(expires_at, job) VALUES (:expires_at, :job);

-- name: job_overdue
-- The job was not claimed before its expiry. If it was deleted or has ended, there is nothing to
-- cancel.
SELECT e.job, j.queue, j.kind, j.state, j.token, e.expires_at
  FROM lh_expiry e LEFT JOIN lh_job j ON j.id = e.job
 WHERE e.expires_at <= :wall ORDER BY e.expires_at LIMIT :n;

-- name: expiry_end
DELETE FROM lh_expiry WHERE expires_at = :expires_at AND job = :job;

-- name: job_waiting_pending
SELECT id FROM lh_job WHERE state = 'pending' AND queue = :queue ORDER BY priority DESC, id LIMIT :n;

-- name: job_waiting_scheduled
SELECT id FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'scheduled' AND queue = :queue
 LIMIT :n;

-- name: job_aged
-- Pruning scans by id. Ids are ordered by age, so the scan ends at the first job that was created
-- too late to have ended before any cutoff, and no index is needed.
SELECT id, queue, kind, state, finished_at, created_at FROM lh_job
 WHERE id > :after ORDER BY id LIMIT :n;

-- name: job_set_aside
-- The row does not match a checksum: the job never runs and is kept for inspection. Every value
-- that the table would refuse is replaced. job_sum then computes the checksum again, over the
-- values that an operator sees.
UPDATE lh_job
   SET state = 'failed', worker = NULL, lease_until = NULL, token = :token, last_error = :reason,
       finished_at = :now, state_changed_at = :now, state_sum = 0,
       priority = iif(typeof(priority) = 'integer' AND priority BETWEEN -32768 AND 32767, priority, 0),
       max_attempts = iif(typeof(max_attempts) = 'integer' AND (max_attempts = -1 OR max_attempts > 0),
                          max_attempts, NULL),
       attempt = iif(typeof(attempt) = 'integer' AND attempt >= 0
                     AND (max_attempts IS NULL OR max_attempts <= 0 OR attempt <= max_attempts), attempt, 0),
       recoveries = iif(typeof(recoveries) = 'integer' AND recoveries >= 0, recoveries, 0),
       held_ms = iif(typeof(held_ms) = 'integer', held_ms, NULL),
       run_at = iif(typeof(run_at) = 'integer' AND run_at >= 100000000000, run_at, NULL),
       created_at = iif(typeof(created_at) = 'integer' AND created_at >= 100000000000, created_at, :now),
       started_at = iif(typeof(started_at) = 'integer' AND started_at <= :now, started_at, NULL),
       last_heartbeat_at = iif(typeof(last_heartbeat_at) = 'integer', last_heartbeat_at, NULL),
       expires_at = iif(typeof(expires_at) = 'integer' AND expires_at >= 100000000000, expires_at, NULL),
       lease_ms = iif(typeof(lease_ms) = 'integer' AND lease_ms BETWEEN 1 AND 2592000000, lease_ms, NULL),
       backoff_ms = iif(typeof(backoff_ms) = 'integer', backoff_ms, NULL),
       backoff_cap_ms = iif(typeof(backoff_cap_ms) = 'integer', backoff_cap_ms, NULL),
       stage = iif(typeof(stage) = 'text', stage, NULL),
       progress = iif(typeof(progress) = 'integer' AND progress BETWEEN 0 AND 100, progress, NULL),
       checkpoint = iif(typeof(checkpoint) = 'text', checkpoint, NULL),
       result = iif(typeof(result) = 'text' OR typeof(result) = 'blob', result, NULL),
       name_sum = iif(typeof(name_sum) = 'integer', name_sum, NULL),
       payload_sum = iif(typeof(payload_sum) = 'integer', payload_sum, NULL)
 WHERE id = :id AND (state = 'pending' OR state = 'running' OR state = 'scheduled');

-- name: job_next_ids
-- The same order as job_next, from the index alone: a row that cannot be read does not hide the
-- others.
SELECT id FROM lh_job WHERE state = 'pending' AND queue = :queue ORDER BY priority DESC, id;

-- name: damage_recorded
-- Was it recorded before that this job is skipped?
SELECT 1 FROM lh_event WHERE job = :job AND type = 'job.damaged' LIMIT 1;
