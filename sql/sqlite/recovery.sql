-- Recovery: what is forfeit, and the one statement that decides a death.

-- name: job_expired
-- :skip steps over what is stuck on purpose (recovery off).
SELECT * FROM lh_job
 WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
   AND lease_until <= :now
 ORDER BY lease_until LIMIT :n OFFSET :skip;

-- name: due_now
-- One look before a claim; nearly always there is nothing.
SELECT EXISTS (SELECT 1 FROM lh_job WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
                  AND lease_until <= :now)
       OR EXISTS (SELECT 1 FROM lh_job WHERE state <> 'pending' AND state <> 'completed' AND state = 'scheduled'
                  AND lease_until IS NULL AND run_at <= :wall)
       OR EXISTS (SELECT 1 FROM lh_lease WHERE expires_at IS NOT NULL AND expires_at <= :now)
       OR EXISTS (SELECT 1 FROM lh_expiry WHERE expires_at <= :wall);

-- name: job_recover
-- Compare-and-set on (state, token, expiry) in the write itself, so that a heartbeat, a complete or
-- another recovery that came first is never overwritten. Poison is judged first. The reason is
-- written with the change: :cause is its machine-readable prefix, :what and :who its words.
UPDATE lh_job
   SET state = CASE fate WHEN 'pending' THEN iif(:backoff_ms > 0, 'scheduled', 'pending')
                         ELSE 'failed' END,
       run_at = iif(fate = 'pending' AND :backoff_ms > 0, :now + :backoff_ms, run_at),
       attempt = max(attempt - (fate = 'pending' AND :action = 'pending'), 0),
       recoveries = recoveries + (fate = 'pending'),
       token = :new_token, worker = NULL, lease_until = NULL, started_at = NULL,
       finished_at = iif(fate = 'pending', NULL, :now), state_changed_at = :now,
       last_error = CASE fate
           WHEN 'poison' THEN 'POISON: ' || (recoveries + 1) || ' workers died under this job (max '
                || :max_recoveries || '), ' || :cause || ': ' || :what || ', ' || :who
           WHEN 'exhausted' THEN :cause || ': Max attempts reached (' || max_attempts || '), '
                || :what || ', ' || :who
           ELSE :cause || ': ' || :what || ' at attempt ' || attempt || '/'
                || iif(max_attempts = -1, 'unlimited', max_attempts) || ', ' || :who END
  FROM (SELECT CASE WHEN :max_recoveries <> -1 AND recoveries >= :max_recoveries THEN 'poison'
                    WHEN :action = 'fail' THEN 'failed'
                    WHEN :action = 'pending' OR max_attempts = -1 OR attempt < max_attempts
                    THEN 'pending'
                    ELSE 'exhausted' END AS fate
          FROM lh_job WHERE id = :id) AS death
 WHERE id = :id AND state = 'running' AND token = :token AND lease_until = :lease_until
RETURNING state, last_error;

-- name: lease_expired
SELECT scope, name, owner, token
  FROM lh_lease WHERE expires_at IS NOT NULL AND expires_at <= :now ORDER BY expires_at LIMIT :n;

-- name: recovery_count
SELECT (SELECT count(*) FROM lh_job
         WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
           AND lease_until <= :now),
       (SELECT count(*) FROM lh_lease WHERE expires_at IS NOT NULL AND expires_at <= :now);

-- name: next_due
-- Is something due by now, and when is the next thing? Leases end by store time, scheduled jobs by
-- the wall clock. What is due and stays so (recovery off) must not hide what comes after it.
SELECT EXISTS (SELECT 1 FROM lh_job WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
                  AND lease_until <= :now)
       OR EXISTS (SELECT 1 FROM lh_job WHERE state <> 'pending' AND state <> 'completed' AND state = 'scheduled'
                  AND lease_until IS NULL AND run_at <= :wall)
       OR EXISTS (SELECT 1 FROM lh_lease WHERE expires_at IS NOT NULL AND expires_at <= :now),
       (SELECT min(lease_until) FROM lh_job WHERE state <> 'pending' AND state <> 'completed' AND state = 'running'
                  AND lease_until > :now),
       (SELECT min(run_at) FROM lh_job WHERE state <> 'pending' AND state <> 'completed' AND state = 'scheduled'
                  AND lease_until IS NULL AND run_at > :wall),
       (SELECT min(expires_at) FROM lh_lease WHERE expires_at IS NOT NULL AND expires_at > :now);

-- name: peek_pending
-- The order keeps the planner on the index, whatever statistics somebody has gathered.
SELECT 1 FROM lh_job WHERE state = 'pending' AND queue = :queue ORDER BY priority DESC, id LIMIT 1;
