-- Claim one job, then finish it, in two transactions.
WITH picked AS (SELECT w.id FROM leasehold.job w
                 WHERE w.state = 'pending' AND NOT w.again AND w.queue = 'bench'
                 ORDER BY w.priority DESC, w.id LIMIT 1 FOR UPDATE SKIP LOCKED)
UPDATE leasehold.job j
   SET state = 'running', token = j.token + 1, attempt = j.attempt + 1, again = true,
       worker = 'bench', held_ms = 300000, lease_until = now() + interval '5 min',
       started_at = now(), state_changed_at = now()
  FROM picked WHERE j.id = picked.id
RETURNING j.*
\gset job_
UPDATE leasehold.job
   SET state = 'completed', lease_until = NULL, worker = NULL, finished_at = now(),
       state_changed_at = now()
 WHERE id = :job_id AND token = :job_token AND state = 'running';
